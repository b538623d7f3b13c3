"""One engine or trainer of `benchmarks.engines`: `python -m benchmarks.engine_child JSON`.

It appends a line of JSON to a file for everything that it has measured, so that nothing is lost with it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

PROMPTS = (16, 512)
"""Fewest and most tokens of a prompt whose rollout is compared."""
SHARED = 64
"""Tokens that the prompts of every second rollout begin with: the engine has their keys."""
PACKED = 32768
"""Tokens that the trainer scores at a time."""
SEEDS = 1 << 20
"""From the first seed of a run to that of the next: more than it has requests."""
CONTROL = "torch_head"
KERNELS = ("vllm._C", "vllm.vllm_flash_attn._vllm_fa2_C", "vllm.vllm_flash_attn._vllm_fa3_C", "flashinfer")
"""Modules of kernels that vLLM uses where they are there."""

Say = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """Work of one child.

    part: "engine", "trainer" or "steps" (of GRPO, by both). arm: of the engine. folder: a checkpoint. out: a
    file of lines, rollouts lie beside it. batches: numbers of sequences. prompt, new: tokens of each in a
    timed run. repeats: steps of GRPO. turns: whether an engine is timed when standard input says so: a number
    of sequences a line, "end" behind the last. tokens: drawn at each of batches, to be compared; 0: none.
    options: of `vllm.LLM`. adapter: the folder of one that all requests have, or none.
    """

    part: str
    arm: str
    folder: str
    out: str
    batches: tuple[int, ...] = ()
    prompt: int = 0
    new: int = 0
    repeats: int = 3
    turns: bool = True
    tokens: tuple[int, ...] = ()
    options: dict[str, Any] | None = None
    seed: int = 0
    warm: bool = False
    adapter: str = ""

    @property
    def rollouts(self) -> Path:
        """Return the file of the arm's rollouts."""
        return Path(self.out).with_suffix(f".{self.arm}.pt")


def main() -> None:
    """Run the part that the command line asks for."""
    given = json.loads(sys.argv[1])
    asked = Asked(**{name: tuple(x) if isinstance(x, list) else x for name, x in given.items()})

    def say(line: dict[str, Any]) -> None:
        with Path(asked.out).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"part": asked.part, "arm": asked.arm, **line}) + "\n")
        print(f"{asked.part} {asked.arm}: {line}", flush=True)

    {"engine": engine, "steps": engine, "trainer": trainer}[asked.part](asked, say)


# --- an engine ----------------------------------------------------------------------------------------------


def engine(asked: Asked, say: Say) -> None:
    """Start an engine, time it, and store rollouts with their log-probs."""
    if asked.part == "steps":  # which give the engine new weights where they are
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    begin = time.perf_counter()
    from vllm import LLM

    given = {"skip_tokenizer_init": True, "dtype": "bfloat16", "seed": 0}
    if asked.arm == "rlk":
        import rlk
        import rlk.integrations.vllm

        rlk.integrations.vllm.register()  # its entry point, where rlk is not installed but on the path
        given |= {"quantization": "rlk", "attention_backend": "CUSTOM"}
    imported = time.perf_counter()
    llm = LLM(asked.folder, **given, **(asked.options or {}))
    made = time.perf_counter()
    times = {"import_s": round(imported - begin, 2), "start_s": round(made - imported, 2)}
    say({**times, "warm": asked.warm, **described(llm)})
    if asked.arm == "rlk":
        from benchmarks.identity import describe

        x = torch.empty(2, 256, dtype=torch.bfloat16, device="cuda" if torch.cuda.is_available() else "cpu")
        backend = describe(rlk.ops.matmul.explain(x, x))["backend"]
        found = {"calls": llm.collective_rpc("rlk_calls")[0], "backend": backend}
        say({**found, "numerics_id": llm.collective_rpc("rlk_numerics_id")[0]})
    if asked.part == "steps":
        from benchmarks.engine_step import steps

        steps(llm, asked, say)
        return
    vocabulary = llm.llm_engine.vllm_config.model_config.get_vocab_size()
    drawn = torch.Generator().manual_seed(asked.seed)
    if asked.turns:
        # an engine's first seconds are slower, which rows of few sequences would show
        timed(llm, asked, max(asked.batches), vocabulary, drawn)
        say({"ready": True})
        known = set()
        for line in sys.stdin:
            if line.strip() == "end":
                break
            batch = int(line)
            if batch not in known:  # not counted
                timed(llm, asked, batch, vocabulary, drawn)
                known.add(batch)
            say({"batch": batch, **timed(llm, asked, batch, vocabulary, drawn)})
    stored = []
    for batch, tokens in zip(asked.batches, asked.tokens, strict=False):
        begin, before = time.perf_counter(), len(stored)
        for rollout in rollouts(llm, asked, batch, tokens, vocabulary, drawn):
            stored.append({"batch": batch, **rollout})
        count, seconds = sum(len(x["logps"]) for x in stored[before:]), time.perf_counter() - begin
        torch.save(stored, asked.rollouts)
        if count:
            say({"batch": batch, "drawn": count, "s": round(seconds, 3), "seed": asked.seed})


def described(llm: Any) -> dict[str, Any]:
    """Return the forms of graphs, runner and attention that an engine has taken."""
    config = llm.llm_engine.vllm_config
    compiled = config.compilation_config
    # in another process with VLLM_ENABLE_V1_MULTIPROCESSING=1
    executor = getattr(llm.llm_engine, "model_executor", None)
    worker = getattr(executor, "driver_worker", None)  # in others, too, with several ranks
    sampler = worker and type(worker.model_runner.sampler).__name__
    layers = (getattr(x, "get_attn_backend", None) for x in compiled.static_forward_context.values())
    return {
        "attention": sorted({get().get_name() for get in layers if get}), "lacks": lacking(),
        "runner": 2 if config.use_v2_model_runner else 1, "page": config.cache_config.block_size,
        "compilation": getattr(compiled.mode, "name", str(compiled.mode)),
        "graphs": getattr(compiled.cudagraph_mode, "name", str(compiled.cudagraph_mode)),
        "sizes": list(compiled.cudagraph_capture_sizes or ()),
        "sampler": sampler, "in_process": worker is not None,
        "async": bool(config.scheduler_config.async_scheduling),
    }  # fmt: skip


def lacking() -> list[str]:
    """Return which kernels that vLLM would use are not installed."""
    found = []
    for name in KERNELS:
        try:
            there = find_spec(name) is not None
        except ImportError:  # the package around it
            there = False
        found += [] if there else [name]
    return found


def prompt(length: int, vocabulary: int, drawn: torch.Generator) -> list[int]:
    """Draw the tokens of a prompt."""
    found: list[int] = torch.randint(vocabulary, (length,), generator=drawn).tolist()
    return found


def generate(
    llm: Any, prompts: Sequence[list[int]], new: int, seed: int, adapter: str = ""
) -> tuple[float, list[Any]]:
    """Return the seconds of a call with a seed for each prompt, and its outputs."""
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    lora = LoRARequest("adapter", 1, adapter) if adapter else None
    asked = [
        SamplingParams(
            max_tokens=new, temperature=1.0, logprobs=0, flat_logprobs=True, ignore_eos=True,
            detokenize=False, seed=seed + i,
        )
        for i in range(len(prompts))
    ]  # fmt: skip
    begin = time.perf_counter()
    given = [{"prompt_token_ids": p} for p in prompts]
    made = llm.generate(given, asked, use_tqdm=False, lora_request=lora)
    return time.perf_counter() - begin, list(made)


def timed(llm: Any, asked: Asked, batch: int, vocabulary: int, drawn: torch.Generator) -> dict[str, Any]:
    """Return the seconds of reading prompts, and of drawing `new` tokens behind them.

    Tokens are drawn behind the same prompts, of which the engine has the keys of all whole pages; what is
    left is read once more and subtracted.
    """
    prompts = [prompt(asked.prompt, vocabulary, drawn) for _ in range(batch)]
    read, again, both = (
        generate(llm, prompts, new, i, asked.adapter)[0] for i, new in enumerate((1, 1, 1 + asked.new))
    )
    return {"prefill_s": [round(read, 5)], "decode_s": [round(both - again, 5)]}


def rollouts(
    llm: Any, asked: Asked, batch: int, tokens: int, vocabulary: int, drawn: torch.Generator
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield whole sequences and the log-probs of their drawn tokens, `batch` at a time.

    Sequences are as long as the engine takes. At the most that it runs at a time, twice as many requests
    wait, so that some are read while others are drawn.
    """
    config, seed = llm.llm_engine.vllm_config, 1 + asked.seed * SEEDS
    longest, most = config.model_config.max_model_len, config.scheduler_config.max_num_seqs
    low, high = PROMPTS
    high = min(high, longest // 2)
    new = max(1, min(tokens, longest - high - 1))
    shared = prompt(min(SHARED, low), vocabulary, drawn)
    while tokens > 0:
        count = min(2 * batch if batch == most > 1 else batch, -(-tokens // new))
        lengths = torch.randint(low, high + 1, (count,), generator=drawn).tolist()
        prompts = [prompt(length, vocabulary, drawn) for length in lengths]
        prompts[::2] = [[*shared, *p[len(shared) :]] for p in prompts[::2]]
        _, outputs = generate(llm, prompts, new, seed, asked.adapter)
        seed += count
        for output in outputs:
            one = output.outputs[0]
            logps = torch.tensor(list(one.logprobs.logprobs), dtype=torch.float64).float()
            assert len(logps) == len(one.token_ids)
            tokens -= len(logps)
            yield {"ids": torch.tensor([*output.prompt_token_ids, *one.token_ids]), "logps": logps}


# --- the trainer --------------------------------------------------------------------------------------------


@torch.no_grad()
def trainer(asked: Asked, say: Say) -> None:
    """Score the rollouts of all arms beside `out` by `rlk.nn`, and count log-probs of other bits."""
    from rlk.nn import CausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = CausalLM.from_pretrained(asked.folder, device=device)
    numerics_id = model.numerics_id(device)
    if asked.adapter:
        adapt(model, Path(asked.adapter))
    weight = model.model.embed_tokens.weight
    hidden = model(torch.arange(64, device=device) * 7 % len(weight))
    sigma = float(model.logits(hidden).std(-1).mean())
    say({"numerics_id": numerics_id, "sigma": round(sigma, 3)})
    out = Path(asked.out)
    for file in sorted(out.parent.glob(f"{out.stem}.*.pt")):
        stored = torch.load(file)
        for batch in sorted({x["batch"] for x in stored}):
            rows, of = [x for x in stored if x["batch"] == batch], file.suffixes[-2][1:]
            say({"of": of, "batch": batch, **compared(model, rows, device)})
            if of == "rlk":
                say({"of": CONTROL, "batch": batch, **torch_head(model, rows[0], device)})
            if of == "rlk" and asked.adapter:
                with without_adapter(model):
                    say({"of": "no_adapter", "batch": batch, **compared(model, rows[:1], device)})
    if device == "cuda":
        del model, hidden
        torch.cuda.empty_cache()
        from benchmarks.timing import ceilings

        made = ceilings(matrix=True)
        say({"copy_bytes_per_s": made.bytes_per_s, "gemm_flops_per_s": made.flops_per_s})


class Adapted(torch.nn.Module):
    """A linear layer with an adapter, as peft computes it: scale b(a(x)) beside the layer."""

    def __init__(self, base: torch.nn.Module, a: torch.Tensor, b: torch.Tensor, scale: float) -> None:
        super().__init__()
        self.base, self.a, self.b, self.scale = base, a, b, scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's result with what the adapter adds."""
        from rlk import ops

        made: torch.Tensor = self.base(x) + ops.matmul(ops.matmul(x, self.a), self.b) * self.scale
        return made


def adapt(model: Any, folder: Path) -> None:
    """Give the layers of a model the adapter that lies in a folder."""
    from safetensors.torch import load_file

    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    device = str(model.model.embed_tokens.weight.device)
    weights = load_file(folder / "adapter_model.safetensors", device=device)
    for name in [name for name in weights if name.endswith(".lora_A.weight")]:
        place = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        parent, _, last = place.rpartition(".")
        holder = model.get_submodule(parent)
        a, b = weights[name], weights[name.replace("lora_A", "lora_B")]
        setattr(holder, last, Adapted(getattr(holder, last), a, b, config["lora_alpha"] / config["r"]))


@contextmanager
def without_adapter(model: Any) -> Iterator[None]:
    """Let a model compute what it does without its adapter: a control."""
    layers = [(module, name, x) for module in model.modules() for name, x in module.named_children()]
    adapted = [each for each in layers if isinstance(each[2], Adapted)]
    for module, name, layer in adapted:
        setattr(module, name, layer.base)
    try:
        yield
    finally:
        for module, name, layer in adapted:
            setattr(module, name, layer)


def compared(model: Any, stored: Sequence[dict[str, Any]], device: str) -> dict[str, Any]:
    """Return how many log-probs rollouts have, how many differ from the trainer's, and by how much."""
    total = differing = 0
    worst = 0.0
    for group in groups([len(x["ids"]) for x in stored]):
        rows = [stored[i] for i in group]
        ids = torch.cat([x["ids"] for x in rows]).to(device)
        cu = torch.tensor([0, *(len(x["ids"]) for x in rows)], dtype=torch.int32).cumsum(0).int()
        from rlk.ops import Layout

        made = model.logps(ids, Layout.packed(cu.to(device), tokens=len(ids))).logp.cpu()
        begins = cu.tolist()[1:]
        want = torch.cat([made[end - len(x["logps"]) : end] for end, x in zip(begins, rows, strict=True)])
        got = torch.cat([x["logps"] for x in rows])
        made = counted(got, want)
        total += made["compared"]
        differing += made["differing"]
        worst = max(worst, made["max"])
    return {"compared": total, "differing": differing, "max": worst}


def counted(got: torch.Tensor, want: torch.Tensor) -> dict[str, Any]:
    """Return how many f32 numbers there are, how many have other bits, and the largest difference."""
    differing = int((got.view(torch.int32) != want.view(torch.int32)).sum())
    return {"compared": len(got), "differing": differing, "max": float((got - want).abs().max())}


def torch_head(model: Any, row: dict[str, Any], device: str) -> dict[str, Any]:
    """Compare a rollout's log-probs with the control: head and softmax by torch."""
    ids, got = row["ids"].to(device), row["logps"]
    hidden = model(ids)[-len(got) - 1 : -1]
    z = torch.nn.functional.linear(hidden, model.lm_head.weight).float()
    want = torch.log_softmax(z, -1).gather(-1, ids[-len(got) :, None])[:, 0]
    return counted(got, want.cpu())


def groups(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield the numbers of sequences that are scored together, of at most PACKED tokens or one sequence."""
    group: list[int] = []
    for i, length in enumerate(lengths):
        if group and sum(lengths[j] for j in group) + length > PACKED:
            yield group
            group = []
        group.append(i)
    if group:
        yield group


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # an engine's threads may not end by themselves
