"""The demo from text to report: its stages, their order, and their messages."""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlk import __version__, ops
from rlk.demo import chain, drawn, invariance, measure, model, plain, probe, report, text, wide
from rlk.demo.batch import Batch, Case, make_batch
from rlk.demo.step import Step, Tokens, grpo, log_probs

DRAWN = 4  # prompts that continuous batching continues
DRIFT = 0.02  # deviation of the noise on each matrix, relative to its own, in place of optimiser steps
OPERATORS = ("logp", "ratio_kl", "policy_loss")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run."""

    device: str
    size: model.Size
    chain: model.Size
    seed: int
    out: Path
    sampled_rows: int
    repeats: int


@dataclass(slots=True)
class Stages:
    """Prints the current stage and its duration."""

    start: float = field(default_factory=time.perf_counter)

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        begin = time.perf_counter()
        print(f"  {what} ...", end="", flush=True)
        yield
        print(f" {time.perf_counter() - begin:.1f} s", flush=True)

    def seconds(self) -> float:
        """Return the time since the first stage."""
        return time.perf_counter() - self.start


def demo(options: Options) -> report.Report:
    """Run every stage, write the picture of the first, and return the measurements."""
    stages = Stages()
    with stages("log-probs of the same tokens, by transformers and by rlk, in four ways"):
        chain_model = model.make_model(options.chain, options.seed, options.device)
        compared = chain.rows(_chain(options, chain_model))
    with stages("log-probs of tokens that continuous batching draws, and of training"):
        generated = drawn.row(chain_model, text.cut(options.chain.shape, options.seed)[:DRAWN], options.seed)
        compared += () if generated is None else (generated,)
        del chain_model
    with stages("cutting prompts and completions from the text"):
        shape = options.size.shape
        batch = make_batch(text.cut(shape, options.seed), shape.group_size, options.device)
    with stages("three policies: reference, old, current"):
        case, scores, net = _policies(options, batch)
    with stages("the GRPO step through rlk"):
        ours = grpo(case.logits, Tokens.padded(case))
    with stages("the gradient of the model's weights"):
        norm = _weight_gradient(net, scores, ours.d_logits)
        del net, scores
    with stages(f"bits of {options.sampled_rows} sampled rows, computed again"):
        bits, notes = _again(options, case, ours)
    with stages("bits of other batches: one by one, permuted, packed"):
        bits += list(invariance.rows(case, ours, options.seed))
    with stages("errors against float64"):
        theirs, gradient = plain.step(case)
        errors = wide.errors(case, ours, theirs, gradient)
        with torch.no_grad():
            contrast = tuple(invariance.plain_rows(case, theirs))
        del theirs, gradient
    with stages("time and memory beside plain torch"):
        costs = _costs(options, case)
    return report.Report(
        setting=_setting(options, batch),
        outcome=_outcome(batch, ours, norm),
        numerics={name: getattr(ops, name).numerics_id(options.device) for name in OPERATORS},
        chain=compared,
        bits=(*chain.bits(compared), *bits),
        contrast=contrast,
        errors=tuple(errors),
        costs=tuple(costs),
        notes=(*notes, *([drawn.NOT_RUN] if generated is None else []), *_notes(options)),
        seconds=stages.seconds(),
    )


def _chain(options: Options, net: Any) -> tuple[chain.View, ...]:
    """Run the chain from tokens to log-probs in every way, and draw how they differ."""
    views = chain.both(net, text.cut(options.chain.shape, options.seed), options.device)
    options.out.mkdir(parents=True, exist_ok=True)
    chain.picture(views, options.out / report.CHAIN)
    return views


def _policies(options: Options, batch: Batch) -> tuple[Case, Tensor, Any]:
    """Return the case, the current policy's logits with their graph, and the model that made them."""
    net = model.make_model(options.size, options.seed, options.device)
    earlier = []
    for step in range(2):
        with torch.no_grad():
            probs = log_probs(model.logits_of(net, batch), batch.targets, batch.mask)
        earlier.append(probs.logp)
        model.perturb(net, DRIFT, options.seed + step)
    scores = model.logits_of(net, batch)
    return Case(batch, scores.detach(), old=earlier[1], ref=earlier[0]), scores, net


def _weight_gradient(net: Any, scores: Tensor, d_logits: Tensor) -> float:
    """Pull the gradient through the model and return its norm over all weights."""
    scores.backward(d_logits)
    squares = [p.grad.double().square().sum() for p in net.parameters() if p.grad is not None]
    return float(torch.stack(squares).sum().sqrt())


def _again(options: Options, case: Case, ours: Step) -> tuple[list[report.BitsRow], list[str]]:
    """Compare sampled rows with the other executor."""
    inputs, want = probe.choose(case, ours, options.sampled_rows, options.seed)
    if options.device != "cpu":
        oracle = probe.compute(inputs, math=ops.logp.explain(options.device).math.value)
        return list(probe.compare(want, oracle, "oracle")), []
    rows = []
    # the portable exp2 is what a CPU runs, sm_90's what a Hopper GPU would
    for math, oracle in (("portable", want), ("sm90", probe.compute(inputs, math="sm90"))):
        again = probe.interpreted(inputs, math)
        if again is None:
            return [], ["triton is not installed here, so no generated source was compared with the oracle"]
        rows += probe.compare(again, oracle, f"interpreted Triton source against oracle, {math} exp2")
    return rows, []


def _costs(options: Options, case: Case) -> list[report.CostRow]:
    tokens = Tokens.padded(case)

    def forward_rlk() -> Any:
        with torch.no_grad():
            return log_probs(case.logits, tokens.ids, tokens.mask)

    def forward_torch() -> Any:
        with torch.no_grad():
            return plain.log_probs(case.logits.float(), tokens.ids)

    device, repeats = options.device, options.repeats
    return [
        measure.cost("log-probs and entropy", forward_rlk, forward_torch, device, repeats),
        measure.cost(
            "GRPO step from logits, forward and backward",
            lambda: grpo(case.logits, tokens),
            lambda: plain.step(case),
            device,
            repeats,
        ),
    ]


def _setting(options: Options, batch: Batch) -> dict[str, str]:
    size, lengths = options.size, batch.lengths
    on_gpu = options.device != "cpu"
    name = torch.cuda.get_device_name() if on_gpu else f"a CPU ({platform.machine()})"
    rows = f"{batch.mask.sum()} completion tokens of {lengths.sum()} positions"
    return {
        "device": name,
        "versions": ", ".join(f"{what} {_version(what)}" for what in ("torch", "triton", "transformers")),
        "rlk": __version__,
        "model of the log-probs": _described(options.chain, options.seed),
        "model of the GRPO step": _described(size, options.seed),
        "batch": f"{len(lengths)} samples of {lengths.min()} to {lengths.max()} tokens, {rows}",
    }


def _described(size: model.Size, seed: int) -> str:
    shape = f"{size.layers} layers, hidden {size.hidden}, vocabulary {size.vocabulary}"
    return f"Qwen3, {shape}, random weights of seed {seed}, {size.dtype}".replace("torch.", "")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def _outcome(batch: Batch, ours: Step, norm: float) -> dict[str, float]:
    active = batch.mask
    ratio = ours.ratio[active]
    return {
        "mean reward": float(batch.rewards.mean()),
        "loss": float(ours.loss),
        "mean log-prob": float(ours.logp[active].mean()),
        "mean entropy": float(ours.entropy[active].mean()),
        "mean KL to the reference": float(ours.kl[active].mean()),
        "ratios outside 1 +- clip": float(((ratio - 1).abs() > plain.CLIP).float().mean()),
        "norm of the weights' gradient": norm,
    }


def _notes(options: Options) -> tuple[str, ...]:
    notes = [
        "In the GRPO step the model is torch's; rlk starts at the logits and returns their gradient.",
        "Weights are random; the old and the current policy differ by seeded noise instead of training.",
        "Advantages are computed by torch from the rewards of each group.",
        "A permuted batch sums its loss in another order: there, values per token are compared.",
    ]
    if options.device == "cpu":
        notes.append("On a CPU rlk runs its oracle, which is exact and not fast; kernels are for GPUs.")
    return tuple(notes)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `rlk demo`."""
    parser.add_argument("--out", type=Path, default=Path("demo-report"), help="folder of the report")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--size", choices=sorted(model.SIZES), help="default: real on a GPU, small on a CPU")
    parser.add_argument("--seed", type=int, default=0)


def options_of(arguments: argparse.Namespace) -> Options:
    """Resolve the parsed options against this machine."""
    device = arguments.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    on_gpu = device != "cpu"
    size = model.SIZES[arguments.size or ("real" if on_gpu else "small")]
    rows, repeats = (256, 5) if on_gpu else (8, 1)
    return Options(device, size, model.CHAINS[size.name], arguments.seed, arguments.out, rows, repeats)


def main(arguments: argparse.Namespace) -> int:
    """Run the demo, write its report, and return 1 if any compared bit differs."""
    options = options_of(arguments)
    print(f"rlk demo: a model's log-probs and one GRPO step, {options.size.name} size, on {options.device}")
    measured = demo(options)
    report.write(measured, options.out)
    print()
    print(report.markdown(measured))
    names = ("report.md", "report.json", report.CHAIN, "chart.png")
    print(f"report: {', '.join(str(options.out / name) for name in names)}")
    return 1 if measured.differing else 0
