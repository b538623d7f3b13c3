"""Rows of `rlk.drift` on a GPU: engines compared at the shapes of Qwen3-1.7B, and the monitor's time.

`python -m benchmarks.drift_device` writes benchmarks/results/<device>/drift.json after each row, beside those
that `--only` left out; `--dry` takes a tiny model on a CPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.drift import LENGTHS, Row, drift_row, monitor_row
from benchmarks.engines import MODELS, TINY, Model, write_checkpoint
from benchmarks.harness import PACKAGES, device_slug
from benchmarks.merge import merged
from benchmarks.rows import RESULTS, text_of
from rlk.drift import Monitor, Sequences
from rlk.nn import CausalLM
from rlk.tune.record import versions

SECONDS = 60
"""The bar of one comparison."""
PAIRS = (
    ("rlk.nn", "rlk.nn:chunk=1"),
    ("transformers", "transformers:chunk=1"),
    ("rlk.nn", "rlk.nn:chunk=16,page=16,batch=2"),
    ("transformers:batch=1", "transformers"),
    ("rlk.patch:side=left", "rlk.nn"),
)
MONITOR = "monitor"
TRAINED = (8, 1024)
"""Sequences of the step that the monitor is timed beside, and the tokens of each."""


def rows(model: Model, folder: Path, trained: tuple[int, int], only: str = "") -> Iterator[Row]:
    """Yield the monitor's row, then one for each pair of engines; only: part of their names."""
    drawn = torch.Generator().manual_seed(0)
    vocabulary = model.options["vocab_size"]
    sequences = Sequences.of([torch.randint(vocabulary, (n,), generator=drawn).tolist() for n in LENGTHS])
    if only in MONITOR:
        yield {**monitored(folder, trained), "shape": model.shape}
        torch.cuda.empty_cache()
    for names in (pair for pair in PAIRS if only in " ".join(pair)):
        row = drift_row(names, str(folder), sequences, SECONDS)
        del row["layers"], row["drift"]
        yield {**row, "shape": model.shape}
        torch.cuda.empty_cache()


def monitored(folder: Path, trained: tuple[int, int]) -> Row:
    """Time the monitor beside a step of `rlk.nn` on packed log-probs, without an optimizer's update."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    policy = CausalLM.from_pretrained(folder, device=device)
    watch = Monitor(alarm=0.1)
    ids = torch.randint(policy.config.vocab_size, trained, device=device)
    mask = torch.ones_like(ids)

    def step() -> torch.Tensor:
        logps = policy.logps(ids).logp
        assert logps is not None
        (-logps.mean()).backward()
        policy.zero_grad()
        return logps.detach()

    return monitor_row(step, lambda logps, sampled: watch.update(logps, sampled, mask, ids))


def main() -> None:
    """Measure, and write the rows of the device."""
    parser = argparse.ArgumentParser(description="Measure rlk.drift on a GPU.")
    parser.add_argument("--out", type=Path, default=RESULTS, help="of results")
    parser.add_argument("--commit", help="what to record as rlk's version, where there is no git checkout")
    parser.add_argument("--only", default="", help='part of the names of a row: "monitor", "rlk.nn rlk.nn"')
    parser.add_argument("--dry", action="store_true", help="a tiny model on a CPU")
    given = parser.parse_args()
    if not given.dry and not torch.cuda.is_available():
        raise SystemExit("a CUDA or ROCm device is needed, or --dry")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    model = TINY if given.dry else MODELS["Qwen3-1.7B"]
    file = given.out / device_slug(device) / "drift.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    made: list[Row] = []
    old = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(model, Path(folder))
        for row in rows(model, Path(folder), (2, 16) if given.dry else TRAINED, given.only):
            print({name: x for name, x in row.items() if name not in ("shape", "depends")}, flush=True)
            made.append(row)
            head = {
                "device": device, "versions": versions((*PACKAGES, "transformers"), given.commit),
                "command": " ".join(["python -m benchmarks.drift_device", *sys.argv[1:]]), "rows": made,
            }  # fmt: skip
            file.write_text(text_of(merged(old, [head])), encoding="utf-8")
    missed = [f"{row['op']} {row.get('b', '')}" for row in made if not row["holds"]]
    print(f"wrote {file}" + (f"; missed: {missed}" if missed else ""))


if __name__ == "__main__":
    main()
