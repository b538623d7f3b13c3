"""vLLM by rlk beside vLLM's own kernels: tokens a second, starts, and log-probs against an rlk trainer.

`python -m benchmarks.engines --model Qwen3-0.6B` writes rows `vllm_decode`, `vllm_prefill`, `vllm_logps` and
`vllm_start` into benchmarks/results/<device>/engines.json, after each of its child processes; with `--steps`
the row `grpo_step`. All engines are started, one after the other, and timed in turns: what slows the machine
for a while slows each of them. `vllm_logps` counts log-probs of drawn tokens over runs, which `--seed` tells
apart. Each child has a time limit: one that hangs or fails is recorded as an absent peer. `--lora`: all
requests have an adapter of random weights. `--own-process`: the engines are in processes of their own, as
vLLM has them by default. `--dry` runs all of it with a tiny model on a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine_child import Asked
from benchmarks.harness import PACKAGES, Bar, device_slug
from benchmarks.merge import merged
from benchmarks.merge import name as row_name
from benchmarks.rows import RESULTS, text_of
from rlk.tune.record import versions

PEER, INVARIANT = "vllm", "vllm_batch_invariant"
ARMS = ("rlk", PEER, INVARIANT)
SPEED, START = Bar(round(1 / 0.95, 4), PEER), Bar(1.2, PEER)
"""0.95 of vLLM's tokens a second, and 1.2 times its start."""
STEP = Bar(1.0, PEER)
"""A step of GRPO in the time of vLLM, transformers and their pass for old log-probs."""
SIGMA = 4.0
"""Standard deviation of a row of logits, which weights are scaled to."""
BATCHES = (1, 16, 64, 256)
SIDES = ("rlk", "trainer")
GRAPHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Tokens of a step that both arms capture a graph for: decodes, and a prompt alone."""
ENGINE = ("runner", "page", "compilation", "graphs", "sizes", "async", "in_process")
"""Forms of an engine that a row names."""
LEAVES = 8
"""Of a model that ranks share."""
OVER_RANKS = {
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
}  # fmt: skip
"""Of engines of several ranks: no sums by NVLink's switch, in either arm."""
RANK, SCALE = 16, 2
"""Of an adapter: its rank, and lora_alpha over it."""
MOST_ADAPTED = 64
"""Sequences that have an adapter, at most."""
LIMITS = {"tokens": "max_num_batched_tokens", "sequences": "max_num_seqs", "context": "max_model_len"}
"""Of `rlk warmup`, and vLLM's options."""
STEP_TOKENS = 16384
"""Tokens of a step at most: what vLLM itself takes for `LLM` on these devices."""
PAUSE = 0.02
"""Seconds between looks at what a child has written."""
ADAPTED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
WARMUP = 100
"""Seconds in which kernels are compiled before the first start; the start compiles what is left."""
MORE_PACKAGES = ("vllm", "transformers")
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "VLLM_DO_NOT_TRACK": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
}  # fmt: skip

Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Model:
    """A model of random weights, and what is asked of it.

    options: of transformers' Qwen3Config. cache: bytes of keys and values. prompt, new: tokens of a timed
    sequence. tokens: drawn and compared, at each of the batch sizes. samples: of a step of GRPO. ranks: of
    the engine, which share the weights. adapter: the rank of an adapter that all requests have, 0 for none.
    apart: whether the engine has a process of its own.
    """

    name: str
    options: Mapping[str, Any]
    cache: int
    longest: int
    prompt: int
    new: int
    batches: tuple[int, ...]
    tokens: tuple[int, ...]
    samples: int = 128
    ranks: int = 1
    adapter: int = 0
    apart: bool = False

    @property
    def shape(self) -> dict[str, int | str]:
        """Return its name and layers, ranks, adapter and process, as a row names them."""
        shape = {"model": self.name, "L": self.options["num_hidden_layers"]}
        shape |= {"TP": self.ranks} if self.ranks > 1 else {}
        shape |= {"LoRA": self.adapter} if self.adapter else {}
        return shape | ({"in_process": "no"} if self.apart else {})


def qwen3(hidden: int, inner: int, layers: int, heads: int, tied: bool) -> dict[str, Any]:
    """Return the sizes of a Qwen3 model."""
    return {
        "vocab_size": 151936, "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096, "tie_word_embeddings": tied,
    }  # fmt: skip


GIB = 2**30
# tokens: whole requests, of 1023 each where sequences have at most 1536
MODELS = {
    "Qwen3-0.6B": Model(
        "Qwen3-0.6B", qwen3(1024, 3072, 28, 16, True), 36 * GIB, 1536, 512, 128, BATCHES,
        (2046, 16368, 65472, 654720),
    ),
    "Qwen3-1.7B": Model(
        "Qwen3-1.7B", qwen3(2048, 6144, 28, 16, True), 36 * GIB, 1536, 512, 128, BATCHES,
        (2046, 8184, 32736, 261888),
    ),
    "Qwen3-8B": Model(
        "Qwen3-8B", qwen3(4096, 12288, 36, 32, False), 36 * GIB, 1536, 512, 64, BATCHES,
        (2046, 8184, 32736, 261888),
    ),
}  # fmt: skip
TINY = Model(
    "tiny",
    qwen3(64, 128, 2, 4, True) | {"vocab_size": 96, "num_key_value_heads": 2, "head_dim": 16},
    2**22, 160, 24, 4, (1, 4), (24, 32), 16,
)  # fmt: skip


# --- the checkpoint -----------------------------------------------------------------------------------------


def write_checkpoint(model: Model, folder: Path) -> None:
    """Write random weights and a config without a tokenizer; the rows of logits have a deviation of SIGMA."""
    from transformers import Qwen3Config

    from rlk.nn import CausalLM, ModelConfig

    config = Qwen3Config(**model.options, architectures=["Qwen3ForCausalLM"], bos_token_id=0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    leaves = LEAVES if model.ranks > 1 else 1
    made = CausalLM(ModelConfig.of(config, leaves=leaves), device=device, dtype=torch.bfloat16)
    drawn = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for name, p in made.named_parameters():
            if p.dim() == 1:
                p.normal_(1.0, 0.1, generator=drawn)
                continue
            # hidden states behind the last norm have a root mean square of 1
            scale = SIGMA if name.endswith(("embed_tokens.weight", "lm_head.weight")) else 1.0
            p.normal_(0.0, scale / p.shape[1] ** 0.5, generator=drawn)
    made.save_pretrained(folder, config=config)


def write_adapter(model: Model, folder: Path) -> None:
    """Write an adapter of random weights, as peft does; what it adds is as large as what a layer returns."""
    from safetensors.torch import save_file

    c, dim = model.options, model.options["head_dim"]
    hidden, inner = c["hidden_size"], c["intermediate_size"]
    heads, keys = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim
    attention = {"q_proj": (hidden, heads), "k_proj": (hidden, keys), "v_proj": (hidden, keys)}
    shapes = {"self_attn": attention | {"o_proj": (heads, hidden)}}
    shapes["mlp"] = {"gate_proj": (hidden, inner), "up_proj": (hidden, inner), "down_proj": (inner, hidden)}
    drawn, tensors = torch.Generator().manual_seed(1), {}
    for i in range(c["num_hidden_layers"]):
        for part, layers in shapes.items():
            for name, (length, columns) in layers.items():
                key = f"base_model.model.model.layers.{i}.{part}.{name}"
                a = torch.randn(model.adapter, length, generator=drawn) / length**0.5
                b = torch.randn(columns, model.adapter, generator=drawn) / (SCALE * model.adapter**0.5)
                tensors |= {f"{key}.lora_A.weight": a.bfloat16(), f"{key}.lora_B.weight": b.bfloat16()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    made = {"peft_type": "LORA", "r": model.adapter, "lora_alpha": SCALE * model.adapter, "bias": "none"}
    config = json.dumps(made | {"target_modules": ADAPTED})
    (folder / "adapter_config.json").write_text(config, encoding="utf-8")


# --- children -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Child:
    """A process that began at a time of the monotonic clock, and may take `limit` seconds."""

    process: subprocess.Popen[str]
    name: str
    begin: float
    limit: float

    def say(self, line: str) -> None:
        """Write a line to its standard input, if it still reads."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()

    def kill(self) -> None:
        """End it, and an engine's own children."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def late(self) -> bool:
        """Return whether its time is over."""
        return time.monotonic() > self.begin + self.limit

    def end(self) -> str | None:
        """Wait until it ends, or its time does; return why it is of no use, None if it ended well."""
        try:
            code = self.process.wait(max(0.0, self.begin + self.limit - time.monotonic()))
            why = None if code == 0 else f"ended with status {code}"
        except subprocess.TimeoutExpired:
            why = f"did not end in {self.limit:.0f} s"
        finally:
            self.kill()
        took = time.monotonic() - self.begin
        print(f"--- {self.name}: {took:.0f} s{', ' + why if why else ''}", flush=True)
        return why


@dataclass(slots=True)
class Children:
    """Child processes, their time, and the lines that they wrote."""

    out: Path
    until: float
    limit: float
    dry: bool
    ranks: int = 1
    apart: bool = False

    def run(self, asked: Asked, name: str) -> str | None:
        """Run a child; return why it is of no use, None if it ended well."""
        return self.call(["benchmarks.engine_child", json.dumps(asdict(asked))], asked.arm, name)

    def call(self, module: Sequence[str], arm: str, name: str, most: float = inf) -> str | None:
        """Run a module with arguments in an arm's environment; return what `run` returns. most: seconds."""
        child = self.start(module, arm, name, most)
        return child if isinstance(child, str) else child.end()

    def start(self, module: Sequence[str], arm: str, name: str, most: float = inf) -> Child | str:
        """Start a module as `call` does; return the child, or why there is none."""
        limit = min(most, self.limit, self.until - time.monotonic())
        if limit < 10:
            return "no time was left"
        print(f"--- {name}: at most {limit:.0f} s", flush=True)
        command = [sys.executable, "-m", *module]
        process = subprocess.Popen(
            command, env=self._environment(arm), start_new_session=True, stdin=subprocess.PIPE, text=True
        )
        return Child(process, name, time.monotonic(), limit)

    def in_turns(self, engines: Sequence[Asked], repeats: int, keep: Callable[[], None]) -> dict[str, str]:
        """Start engines, time each batch size of all in turns, then let them end; return what went wrong.

        keep: called when an engine has ended.
        """
        wrong: dict[str, str] = {}
        there: dict[str, Child] = {}

        def wait(arm: str, name: str, count: int) -> None:
            if (why := self._answer(there[arm], arm, name, count)) is not None:
                wrong[arm] = why
                del there[arm]

        try:
            for asked in engines:
                module = ["benchmarks.engine_child", json.dumps(asdict(asked))]
                started = self.start(module, asked.arm, asked.arm)
                if isinstance(started, str):
                    wrong[asked.arm] = started
                else:
                    there[asked.arm] = started
                    wait(asked.arm, "ready", 1)
            batches = engines[0].batches if engines else ()
            for turn, (batch, repeat) in enumerate(product(batches, range(repeats)), 1):
                for arm in [*there][:: -1 if repeat % 2 else 1]:
                    there[arm].say(str(batch))
                    wait(arm, "decode_s", turn)
            for arm in [*there]:
                there[arm].say("end")
                if (why := there.pop(arm).end()) is not None:
                    wrong[arm] = why
                keep()
        finally:
            for child in there.values():
                child.kill()  # after Ctrl-C, which does not reach it
        return wrong

    def _answer(self, child: Child, arm: str, name: str, count: int) -> str | None:
        """Wait for an arm's `count`th line with a name; return why it does not come, None if it came."""
        while sum(name in line for line in self.lines(arm)) < count:
            if child.late() or child.process.poll() is not None:
                return child.end() or "ended before it was asked to"
            time.sleep(PAUSE)
        return None

    def lines(self, arm: str, file: Path | None = None) -> list[Line]:
        """Return what a child of an arm wrote."""
        file = file or self.out
        if not file.exists():
            return []
        every = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        return [line for line in every if line["arm"] == arm]

    def _environment(self, arm: str) -> dict[str, str]:
        made = {**ENVIRONMENT, **(OVER_RANKS if self.ranks > 1 else {}), **os.environ}
        made.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        if self.apart:
            made["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
        if self.dry:
            made |= {"RLK_VLLM": "cpu", "CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "1"}
        elif arm in (PEER, INVARIANT):
            made["VLLM_PLUGINS"] = ""  # rlk is not even registered
        if arm == INVARIANT:
            made["VLLM_BATCH_INVARIANT"] = "1"
        return made


# --- rows ---------------------------------------------------------------------------------------------------


def found(lines: Sequence[Line], *names: str) -> Line:
    """Return the first line with all of the names, {} if there is none."""
    return next((line for line in lines if all(name in line for name in names)), {})


def rows(model: Model, lines: Mapping[str, Sequence[Line]], absent: Mapping[str, str]) -> list[Line]:
    """Return the rows of everything that has been measured."""
    made = []
    for op, name in (("vllm_decode", "decode_s"), ("vllm_prefill", "prefill_s")):
        for batch in model.batches:
            tokens = batch * (model.new if op == "vllm_decode" else model.prompt)
            steps = model.new if op == "vllm_decode" else 1
            row = _row(
                model, {"op": op, "shape": {**model.shape, "B": batch, "S": model.prompt}}, lines, absent,
                lambda line, name=name, batch=batch, steps=steps: (  # type: ignore[misc]
                    [x / steps for x in line[name]] if line.get("batch") == batch and name in line else None
                ),
                SPEED,
            )  # fmt: skip
            if row is None:
                continue
            row["rate"] = f"{tokens / (1e-3 * row['ms'] * steps):.0f} tokens/s"
            row["roofline"] = _roofline(model, op, batch, row["ms"], lines["trainer"])
            made.append(row)
    made += [row for batch in model.batches if (row := _equality(model, lines, batch))]
    starts = {arm: [line for line in each if "start_s" in line] for arm, each in lines.items()}
    last = {a: [*starts[a][-1:], *(x for x in each if "start_s" not in x)] for a, each in lines.items()}
    start = _row(
        model, {"op": "vllm_start", "shape": model.shape}, last, absent,
        lambda line: [line["start_s"]] if "start_s" in line else None, START,
    )  # fmt: skip
    warm = all(starts[arm] and starts[arm][-1]["warm"] for arm in ("rlk", PEER))
    if start is not None:
        if not warm:
            start["holds"] = None
        cold = {arm: [x["start_s"] for x in each if not x["warm"]] for arm, each in starts.items()}
        start |= {"warm": warm, "cold_s": {arm: each[0] for arm, each in cold.items() if each}}
        made.append(start)
    return made


def step_row(model: Model, lines: Mapping[str, Sequence[Line]], absent: Mapping[str, str]) -> list[Line]:
    """Return the row of steps of GRPO without the first, with the seconds of each phase in both arms."""
    later = {arm: [x for x in each if x.get("step", 0) > 0] for arm, each in lines.items()}
    shape = {**model.shape, "B": model.samples, "S": model.prompt}
    row = _row(
        model, {"op": "grpo_step", "shape": shape},
        {arm: [{"s": [x["step_s"] for x in each]}, *lines[arm]] for arm, each in later.items()}, absent,
        lambda line: line.get("s"), STEP,
    )  # fmt: skip
    if row is None:
        return []
    row["new"] = model.new
    row["phases_s"] = {
        arm: {n: statistics.median(x["phases"][n] for x in each) for n in each[0]["phases"]}
        for arm, each in later.items()
        if each
    }
    counts = {arm: sum(x["tokens"] - x["exact"] for x in each) for arm, each in later.items()}
    ours = later["rlk"]
    row |= {
        "bits": "mismatch" if counts["rlk"] else "exact", "differing": counts["rlk"],
        "compared": sum(x["tokens"] for x in ours), "rate": f"{1e3 / row['ms']:.2f} steps/s",
        "controls": {
            PEER: {"differing": counts[PEER], "compared": sum(x["tokens"] for x in later[PEER])},
        } if later[PEER] else {},
    }  # fmt: skip
    return [row]


def _row(
    model: Model,
    named: Line,
    lines: Mapping[str, Sequence[Line]],
    absent: Mapping[str, str],
    read: Callable[[Line], list[float] | None],
    bar: Bar,
) -> Line | None:
    """Return a row of the seconds that `read` finds in the lines of each arm."""
    times = {arm: [x for line in each for x in read(line) or ()] for arm, each in lines.items()}
    peers: dict[str, Line] = {}
    for arm in ARMS[1:]:
        if seconds := times.get(arm):
            made = found(lines[arm], "start_s")
            kernels = {name: made[name] for name in ("attention", "lacks") if made.get(name)}
            peers[arm] = {"ms": round(1e3 * statistics.median(seconds), 5), **kernels}
        else:
            peers[arm] = {"absent": absent.get(arm, "not asked for")}
    ours = times.get("rlk")
    if not ours:
        return None
    ms = 1e3 * statistics.median(ours)
    engine = found(lines["rlk"], "start_s")
    return {
        **named, "pass": "fwd", "backend": found(lines["rlk"], "backend").get("backend", "none"),
        "dtype": "bf16", "ms": round(ms, 5), "burst_ms": round(1e3 * ours[0], 5),
        "spread": [round(1e3 * min(ours), 5), round(1e3 * max(ours), 5)], "roofline": None, "bits": None,
        "engine": {name: engine.get(name) for name in ENGINE},
        "bar": str(bar), "holds": bar.holds(ms, peers), "peers": peers,
    }  # fmt: skip


def _roofline(model: Model, op: str, batch: int, ms: float, trainer: Sequence[Line]) -> float | None:
    """Return the least time of the bytes or operations of a step at the device's ceilings, by its time."""
    ceilings = found(trainer, "copy_bytes_per_s")
    if not ceilings:
        return None
    c = model.options
    attention = c["head_dim"] * (2 * c["num_attention_heads"] + 2 * c["num_key_value_heads"])
    layer = c["hidden_size"] * (attention + 3 * c["intermediate_size"])
    weights, head = layer * c["num_hidden_layers"], c["hidden_size"] * c["vocab_size"]
    key = 4 * c["num_hidden_layers"] * c["num_key_value_heads"] * c["head_dim"]  # bytes, and of its value
    if op == "vllm_decode":
        context = model.prompt + model.new // 2
        least = (2 * (weights + head) + batch * context * key) / ceilings["copy_bytes_per_s"]
    else:
        square = 2 * model.prompt**2 * c["num_attention_heads"] * c["head_dim"] * c["num_hidden_layers"]
        least = batch * (2 * model.prompt * weights + square + 2 * head) / ceilings["gemm_flops_per_s"]
    return round(1e3 * least / model.ranks / ms, 3)


def _equality(model: Model, lines: Mapping[str, Sequence[Line]], batch: int) -> Line | None:
    """Return the row of log-probs of drawn tokens of a batch size, beside those of an rlk trainer.

    Its time is that of drawing a token. Controls: the trainer's hidden states with torch's head, and
    log-probs by other kernels of vLLM.
    """
    trainer = lines["trainer"]
    counts = {
        line["of"]: {name: line[name] for name in ("compared", "differing", "max")}
        for line in trainer
        if line.get("batch") == batch and "compared" in line
    }
    ours = counts.pop("rlk", None)
    drew = next((x for x in lines["rlk"] if x.get("batch") == batch and "drawn" in x), None)
    if ours is None or drew is None:
        return None
    head = found(trainer, "numerics_id")
    ids = {side: found(given, "numerics_id")["numerics_id"] for side, given in lines.items() if side in SIDES}
    run = {
        "seed": drew["seed"],
        "id": ids["trainer"],
        "compared": ours["compared"],
        "differing": ours["differing"],
    }
    failing = all(x["differing"] for x in counts.values()) if counts else None
    equal = not ours["differing"] and ids["rlk"] == ids["trainer"]
    ms = 1e3 * drew["s"] / drew["drawn"]
    engine = found(lines["rlk"], "start_s")
    return {
        "op": "vllm_logps", "shape": {**model.shape, "B": batch}, "pass": "fwd",
        "backend": found(lines["rlk"], "backend").get("backend", "none"), "dtype": "bf16",
        "ms": round(ms, 5), "burst_ms": round(ms, 5), "spread": [round(ms, 5)] * 2, "roofline": None,
        "rate": f"{1e3 / ms:.0f} tokens/s", "engine": {name: engine.get(name) for name in ENGINE},
        "bits": "exact" if equal else "mismatch", "differing": ours["differing"],
        "compared": ours["compared"], "max_abs_err": ours["max"], "controls": counts,
        "sigma": head.get("sigma"), "numerics_id": ids["trainer"], "runs": [run], "peers": {},
        "bar": "0 differing", "holds": failing and equal,
    }  # fmt: skip


def write(made: Sequence[Line], out: Path, device: str, trainer: Sequence[Line], commit: str | None) -> Path:
    """Merge rows into those of the device, and return the file."""
    file = out / device_slug(device) / "engines.json"
    old = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    ceilings = found(trainer, "copy_bytes_per_s")
    record = {
        "device": device, "versions": versions((*PACKAGES, *MORE_PACKAGES), commit),
        "command": " ".join(["python -m benchmarks.engines", *sys.argv[1:]]),
        "ceilings": {n: ceilings.get(n) for n in ("copy_bytes_per_s", "gemm_flops_per_s")},
        "rows": with_earlier_peers(made, old),
    }  # fmt: skip
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text_of(merged(old, [record])), encoding="utf-8")
    return file


def with_earlier_peers(made: Sequence[Line], old: Line | None) -> list[Line]:
    """Return rows with what an earlier run measured of peers that this one did not, for equal engines.

    It is in `earlier_ms` and `at`, the commit: a row holds, or is faster, beside peers of its own run alone.
    """
    record = old or {"rows": [], "versions": {}}
    before = {row_name(row): row for row in record["rows"]}
    kept = []
    for row in made:
        earlier = before.get(row_name(row), {})
        held = earlier.get("peers", {}) if earlier.get("engine") == row["engine"] else {}
        at = earlier.get("rlk", record["versions"].get("rlk"))
        peers = {
            n: x | {"earlier_ms": held[n]["ms"], "at": at} if "ms" not in x and "ms" in held.get(n, {}) else x
            for n, x in row["peers"].items()
        }
        kept.append(row | {"peers": peers})
    return kept


def show(made: Sequence[Line]) -> None:
    """Print rows."""
    for row in made:
        shape = " ".join(f"{k}={v}" for k, v in row["shape"].items())
        peers = ", ".join(f"{k} {v.get('ms', v.get('absent'))}" for k, v in row["peers"].items())
        bits = f"{row['differing']} of {row['compared']} differ" if "compared" in row else ""
        holds = {True: "holds", False: "MISSES", None: "?"}[row["holds"]]
        print(f"{row['op']} {shape}: {row['ms']:.3f} ms, {row.get('rate', '')}, {holds} ({peers}) {bits}")
        for arm, control in row.get("controls", {}).items():
            print(f"    control {arm}: {control['differing']} of {control['compared']} differ")


# --- the command --------------------------------------------------------------------------------------------


def main() -> None:
    """Run the children one after the other, and write rows after each."""
    parser = argparse.ArgumentParser(description="Measure vLLM by rlk beside vLLM's own kernels.")
    parser.add_argument("--model", choices=tuple(MODELS), default="Qwen3-0.6B")
    parser.add_argument("--layers", type=int, help="fewer than the model has; the row says how many")
    parser.add_argument("--arms", default=",".join(ARMS), help="default: all")
    parser.add_argument("--batches", help="default: 1,16,64,256")
    parser.add_argument("--tokens", help="drawn and compared at each batch size (0,0,0,0: none)")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each batch size (0: none)")
    parser.add_argument("--seed", type=int, default=0, help="of rollouts: runs of other seeds are added up")
    parser.add_argument("--no-warm", action="store_true", help="no second starts")
    parser.add_argument("--options", type=json.loads, default={}, help="of vllm.LLM in all arms, as JSON")
    parser.add_argument("--seconds", type=float, default=510, help="of all children together (510)")
    parser.add_argument("--limit", type=float, default=300, help="of one child (300)")
    parser.add_argument("--folder", type=Path, help="for checkpoints (default: a temporary one)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="of results")
    parser.add_argument("--commit", help="what to record as rlk's version, where there is no git checkout")
    parser.add_argument("--steps", action="store_true", help="steps of GRPO, in place of everything else")
    parser.add_argument("--tp", type=int, default=1, help="ranks of each engine; the trainer has one device")
    parser.add_argument("--lora", action="store_true", help="an adapter of rank 16 in all requests, up to 64")
    parser.add_argument(
        "--own-process", action="store_true", help="engines in processes of their own, vLLM's default"
    )
    parser.add_argument("--dry", action="store_true", help="a tiny model on a CPU, the rlk arm alone")
    given = parser.parse_args()
    model = replace(TINY if given.dry else MODELS[given.model], ranks=given.tp, apart=given.own_process)
    if given.lora:
        kept = slice(len([batch for batch in model.batches if batch <= MOST_ADAPTED]))
        model = replace(model, adapter=RANK, batches=model.batches[kept], tokens=model.tokens[kept])
    if given.layers:
        model = replace(model, options={**model.options, "num_hidden_layers": given.layers})
    for name in ("batches", "tokens"):
        if (text := getattr(given, name)) is not None:
            model = replace(model, **{name: tuple(int(x) for x in text.split(","))})
    if "rlk" not in given.arms.split(","):
        parser.error("--arms without rlk: a row is rlk's time, with the others beside it")
    if len(model.tokens) != len(model.batches):
        parser.error("--tokens needs a number for each of --batches")
    if given.steps and (given.lora or given.own_process):
        parser.error("--steps sends all weights to an engine in its own process, which has no adapter")
    if given.steps:
        model = replace(model, new=model.new if given.dry else 256, prompt=model.prompt if given.dry else 128)
    with tempfile.TemporaryDirectory() as folder:
        measure(model, given, Path(folder))


def measure(model: Model, given: argparse.Namespace, scratch: Path) -> None:
    """Measure a model; folder of a checkpoint: `given.folder` or below `scratch`."""
    leaves = f"-leaves{LEAVES}" if model.ranks > 1 else ""
    place = (given.folder or scratch) / f"{model.name}-{model.options['num_hidden_layers']}{leaves}"
    until = time.monotonic() + given.seconds
    children = Children(scratch / "lines.json", until, given.limit, given.dry, model.ranks, model.apart)
    if not (place / "config.json").exists():
        begin = time.monotonic()
        place.mkdir(parents=True, exist_ok=True)
        write_checkpoint(model, place)
        print(f"wrote {place} in {time.monotonic() - begin:.0f} s", flush=True)
    if model.adapter and not (place / "adapter" / "adapter_config.json").exists():
        write_adapter(model, place / "adapter")
    torch.cuda.empty_cache()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    options = {
        "max_model_len": model.longest, "kv_cache_memory_bytes": model.cache, "gpu_memory_utilization": 0.02,
        "compilation_config": {"cudagraph_capture_sizes": GRAPHS}, "max_num_batched_tokens": STEP_TOKENS,
    }  # fmt: skip
    if given.dry:
        options = {
            "max_model_len": model.longest, "kv_cache_memory_bytes": model.cache, "block_size": 16,
            "max_num_batched_tokens": 64, "enforce_eager": True,
        }  # fmt: skip
    options["max_num_seqs"] = model.samples if given.steps else max(model.batches if given.dry else BATCHES)
    if model.ranks > 1:
        options["tensor_parallel_size"] = model.ranks
    if model.adapter:
        options |= {"enable_lora": True, "max_lora_rank": model.adapter, "max_loras": 1}
    options |= given.options
    asked = Asked(
        "engine", "", str(place), str(children.out), model.batches, model.prompt, model.new,
        tokens=model.tokens, options=options, seed=given.seed,
        adapter=str(place / "adapter") if model.adapter else "",
    )  # fmt: skip
    arms = [arm for arm in ARMS if arm in given.arms.split(",")]
    absent = dict.fromkeys(ARMS[1:], "needs a GPU") if given.dry else {}

    def keep() -> None:
        lines = {arm: children.lines(arm) for arm in (*ARMS, "trainer")}
        made = (step_row if given.steps else rows)(model, lines, absent)
        if made:
            print(f"wrote {write(made, given.out, device, lines['trainer'], given.commit)}", flush=True)
            show(made)

    if "rlk" in arms and not given.dry:
        warmup = ["rlk.cli", "warmup", "--model-config", str(place / "config.json")]
        for name, option in LIMITS.items():
            warmup += [f"--{name}", str(options[option])]
        children.call(warmup, "rlk", "rlk warmup", WARMUP)
    if given.steps:
        asked = replace(asked, part="steps", batches=(model.samples,), repeats=given.repeats)
        for arm in arms[:2]:
            if (why := children.run(replace(asked, arm=arm), f"{arm}, steps of GRPO")) is not None:
                absent[arm] = why
            keep()
        return
    started = json.dumps([asked.options, max(model.batches), given.commit])
    marks = {arm: place / f"started-{arm}.json" for arm in arms if arm not in absent}
    warm = {arm: x.exists() and x.read_text(encoding="utf-8") == started for arm, x in marks.items()}
    few = tuple(min(2048, n) for n in model.tokens)  # which a control needs to fail
    engines = [
        replace(asked, arm=arm, tokens=model.tokens if arm == "rlk" else few, warm=warm[arm]) for arm in marks
    ]
    absent |= children.in_turns(engines, given.repeats, keep)
    for arm in marks.keys() - absent.keys():
        marks[arm].write_text(started, encoding="utf-8")
    cold = [arm for arm in marks if arm not in absent and not warm[arm]]
    if any(model.tokens):
        children.run(replace(asked, part="trainer", arm="trainer"), "the trainer")
        keep()
    if not given.no_warm:
        for arm in cold:
            if arm != INVARIANT:
                children.run(replace(asked, arm=arm, turns=False, tokens=(), warm=True), f"{arm}, warm")
        keep()


if __name__ == "__main__":
    main()
