"""Rows of `rlk.drift` on a CPU: faults located, false alarms, drift of engines, the monitor's time.

`python -m benchmarks.drift` measures all, writes benchmarks/results/cpu/drift.json, and makes
docs/drift-faults.md and docs/figures/cpu-drift.svg of it. `--pages` makes the two again from the results;
`--check` writes nothing, and exits with 1 where either is stale.
"""

from __future__ import annotations

import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import PACKAGES
from benchmarks.rows import RESULTS, text_of
from rlk.drift import Monitor, Sequences, compare, opened
from rlk.drift.chart import layers_of, svg
from rlk.drift.faults import CHUNKS, FAULTS, LEFT, TEMPERATURE, Fault, engine, located, tiny_model, verdict
from rlk.drift.options import Options
from rlk.tune.record import versions

ROOT = Path(__file__).parent.parent
FILE = RESULTS / "cpu" / "drift.json"
PAGE, CHART = ROOT / "docs" / "drift-faults.md", ROOT / "docs" / "figures" / "cpu-drift.svg"
LAYERS, LENGTHS = 4, (24, 60, 9, 37)
SECONDS = 180
"""The bar of one comparison at a small size on a CPU."""
PAIRS = (
    ("transformers", "transformers:chunk=1"),
    ("transformers:attn=eager", "transformers:attn=sdpa"),
    ("transformers:side=right", "transformers:side=left"),
    ("transformers:batch=1", "transformers"),
    ("rlk.nn", "rlk.nn:chunk=1"),
    ("rlk.nn", "rlk.nn:chunk=16,page=8,batch=2"),
    ("rlk.patch:side=left", "rlk.nn"),
)
SHOWN = {
    ("transformers", "transformers:chunk=1"): "transformers: prefill, decode",
    ("rlk.nn", "rlk.nn:chunk=1"): "rlk.nn: training, decode",
}
"""The pairs of the chart."""
CLEAN = (
    ("the same", Options(), Options(), torch.bfloat16),
    ("chunks of 4", Options(), CHUNKS, torch.bfloat16),
    ("a batch, one by one", Options(batch=1), Options(), torch.bfloat16),
    ("padding on the left", Options(), LEFT, torch.bfloat16),
    ("a temperature, f32", TEMPERATURE, TEMPERATURE, torch.float32),
)
RUNS = 100

Row = dict[str, Any]


# --- measuring ----------------------------------------------------------------------------------------------


def faults() -> Iterator[Row]:
    """Inject every fault, and compare clean engines of as many seeds as it takes."""
    begin, found = time.perf_counter(), []
    for fault in FAULTS.values():
        with fault.pair() as (a, b, sequences):
            report = compare(a, b, sequences)
        named = sorted({n for f in report.findings for n in f.names})
        found.append(
            {
                "name": fault.name, "named": report.cause, "tensors": named[:2] if len(named) < 3 else "all",
                "verdict": verdict(report), "explanation": report.explanation,
                "depends": list(report.depends), "located": located(fault, report),
            }
        )  # fmt: skip
        print(f"{'ok' if found[-1]['located'] else 'NOT FOUND'}  {fault.name}: {report.cause}", flush=True)
    right = sum(each["located"] for each in found)
    yield {
        "op": "faults", "rlk": versions(())["rlk"], "faults": len(found), "located": right,
        "bar": "all of 40 or more", "holds": right == len(found) >= 40,
        "seconds": round(time.perf_counter() - begin, 1), "each": found,
    }  # fmt: skip
    begin, alarms = time.perf_counter(), 0
    for run in range(RUNS):
        name, first, second, dtype = CLEAN[run % len(CLEAN)]
        with Fault(name, "", engine(), first, second, dtype=dtype).pair(1000 + run) as (a, b, sequences):
            alarms += compare(a, b, sequences).cause is not None
    yield {
        "op": "clean", "runs": RUNS, "false_alarms": alarms, "bar": "0", "holds": alarms == 0,
        "seconds": round(time.perf_counter() - begin, 1), "kinds": [name for name, *_ in CLEAN],
    }  # fmt: skip


def drifts() -> Iterator[Row]:
    """Compare pairs of engines on one random model."""
    drawn = torch.Generator().manual_seed(0)
    sequences = Sequences.of([torch.randint(96, (n,), generator=drawn).tolist() for n in LENGTHS])
    with tempfile.TemporaryDirectory() as folder:
        tiny_model(layers=LAYERS).save_pretrained(folder)
        for names in PAIRS:
            yield drift_row(names, folder, sequences, SECONDS)


def drift_row(names: tuple[str, str], folder: str, sequences: Sequences, most: float) -> Row:
    """Compare two engines of the model in a folder; most: the bar, in seconds."""
    begin = time.perf_counter()
    with ExitStack() as stack:
        a, b = (stack.enter_context(opened(name, folder)) for name in names)
        report = compare(a, b, sequences)
    assert report.drift is not None and report.operators is not None
    layers, series = layers_of(report.operators)
    seconds, d = time.perf_counter() - begin, report.drift
    ours = all(name.startswith("rlk") for name in names)
    print(
        f"{names[0]} / {names[1]}: {100 * d.exact:.1f} % equal, {report.cause}, {seconds:.1f} s", flush=True
    )
    return {
        "op": "drift", "a": names[0], "b": names[1], "tokens": d.tokens, "exact": d.exact,
        "mean": d.mean, "max": d.largest, "k3": d.k3, "cause": report.cause,
        "depends": list(report.depends), "seconds": round(seconds, 1),
        "bar": f"<= {most} s" + (", 0 differing" if ours else ""),
        "holds": seconds <= most and (d.exact == 1.0 and report.equal if ours else True),
        "layers": layers, "drift": [float(f"{x:.3g}") for x in series["whole run, drift inherited"]],
    }  # fmt: skip


def monitor() -> Iterator[Row]:
    """Time an update of the monitor beside the training step of a tiny model with as many tokens."""
    batch, length = 8, 128
    model = tiny_model(layers=LAYERS, dtype=torch.float32, attention="sdpa")
    ids = torch.randint(96, (batch, length), generator=torch.Generator().manual_seed(0))
    watch, mask = Monitor(alarm=0.1), torch.ones(batch, length - 1)

    def step() -> torch.Tensor:
        z = model(input_ids=ids, use_cache=False).logits[:, :-1]
        logps = torch.log_softmax(z.float(), -1).gather(-1, ids[:, 1:, None])[..., 0]
        (-logps.mean()).backward()
        model.zero_grad()
        return logps.detach()

    yield monitor_row(step, lambda logps, sampled: watch.update(logps, sampled, mask, ids[:, 1:]))


def monitor_row(
    step: Callable[[], torch.Tensor], update: Callable[[torch.Tensor, torch.Tensor], None]
) -> Row:
    """Time an update with log-probs near those that a training step returns, beside that step."""
    logps = step()
    sampled = logps + 1e-3 * torch.randn_like(logps)
    steps, updates = _median(step), _median(lambda: update(logps, sampled))
    return {
        "op": "monitor", "tokens": logps.numel(), "step_ms": round(1e3 * steps, 3),
        "update_ms": round(1e3 * updates, 3), "share": float(f"{updates / steps:.3g}"), "bar": "<= 0.01",
        "holds": updates <= 0.01 * steps,
    }  # fmt: skip


def _median(run: Any, times: int = 31) -> float:
    found = []
    for _ in range(times):
        begin = time.perf_counter()
        run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        found.append(time.perf_counter() - begin)
    return sorted(found)[times // 2]


# --- pages --------------------------------------------------------------------------------------------------


def chart(rows: Sequence[Row]) -> str:
    """Return the chart of stock transformers and rlk, each in two views."""
    shown = {SHOWN[row["a"], row["b"]]: row for row in rows if (row.get("a"), row.get("b")) in SHOWN}
    stock = next(iter(shown.values()))
    names = [name for name in stock["layers"] if all(name in row["layers"] for row in shown.values())]
    series = {
        label: [dict(zip(row["layers"], row["drift"], strict=True))[name] for name in names]
        for label, row in shown.items()
    }
    return svg("Hidden states of one model in two views, bf16", names, series)


def page(record: Row) -> str:
    """Return docs/drift-faults.md."""
    rows = record["rows"]
    first = next(row for row in rows if row["op"] == "faults")
    clean = next(row for row in rows if row["op"] == "clean")
    watched = next(row for row in rows if row["op"] == "monitor")
    made = record["versions"]
    missed = "" if watched["holds"] else ": the bar of 1 % is missed"
    kinds, percent = ", ".join(clean["kinds"]), f"{100 * watched['share']:.2f} %"
    lines = f"""\
# Drift: fault-injection results

Written by `python -m benchmarks.drift` from `benchmarks/results/cpu/drift.json`. An {record["device"]} CPU of
two cores that other work shared: times are upper limits. rlk at {made["rlk"]} (faults: at {first["rlk"]}),
torch {made["torch"]}, transformers {made["transformers"]}. [The guide](on-policy.md) says
what the words mean.

Faults injected into a random Qwen3 (those of routers: Qwen3-MoE) of 2 layers and hidden size 64, mostly
bf16: {first["located"]} of {first["faults"]} located, in {first["seconds"]:.0f} s. Clean runs of the
same model and CPU, each with other
weights and tokens: {clean["false_alarms"]} false alarms in {clean["runs"]}, of {kinds}. That says nothing of
larger models or of a GPU. An update of `Monitor` with {watched["tokens"]} tokens takes
{watched["update_ms"]:.2f} ms, {percent} of a training step of the tiny model
({watched["step_ms"]:.0f} ms){missed}.

## Pairs of engines

A random Qwen3 of {LAYERS} layers in bf16, {sum(LENGTHS)} tokens in {len(LENGTHS)} sequences.

| a | b | log-probs with equal bits | mean, largest difference | k3 | first operator | depends on | s |
|---|---|---|---|---|---|---|---|""".splitlines()
    for row in rows:
        if row["op"] == "drift":
            numbers = f"{row['mean']:.1e}, {row['max']:.1e} | {row['k3']:.1e}" if row["max"] else "0, 0 | 0"
            lines.append(
                f"| `{row['a']}` | `{row['b']}` | {100 * row['exact']:.1f} % | {numbers} | "
                f"{row['cause'] or 'none'} | {', '.join(row['depends'])} | {row['seconds']:.0f} |"
            )
    lines += [
        "", "## Faults", "",
        "| fault | named | verdict | explanation, tensors | depends on |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for each in first["each"]:
        tensors = each["tensors"] if isinstance(each["tensors"], str) else ", ".join(each["tensors"])
        words = each["explanation"] or (tensors if each["named"] == "weights" else "")
        named = each["named"] if each["located"] else f"**{each['named']}** (wrong)"
        lines.append(
            f"| {each['name']} | {named} | {each['verdict']} | {words} | {', '.join(each['depends'])} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> None:
    """Measure, unless only pages are wanted; write the pages, or compare them with what stands there."""
    if not {"--pages", "--check"} & {*arguments}:
        made = [*faults(), *drifts(), *monitor()]
        command = "python -m benchmarks.drift"
        names = (*PACKAGES, "transformers")
        head = {"device": platform.machine(), "versions": versions(names), "command": command, "rows": made}
        FILE.parent.mkdir(parents=True, exist_ok=True)
        FILE.write_text(text_of(head), encoding="utf-8")
        missed = [row["op"] for row in made if not row["holds"]]
        print(f"wrote {FILE.relative_to(ROOT)}" + (f"; missed: {missed}" if missed else ""))
    record = json.loads(FILE.read_text(encoding="utf-8"))
    wanted = {PAGE: page(record), CHART: chart(record["rows"])}
    stale = [file for file, text in wanted.items() if not file.exists() or file.read_text("utf-8") != text]
    if "--check" in arguments:
        if stale:
            raise SystemExit(f"stale: {', '.join(f.name for f in stale)}; run {__spec__.name} --pages")
        return
    for file in stale:
        file.write_text(wanted[file], encoding="utf-8")
        print(f"wrote {file.relative_to(ROOT)}")


if __name__ == "__main__":
    main(sys.argv[1:])
