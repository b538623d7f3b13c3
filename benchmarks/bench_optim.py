"""Benchmark of AdamW: one step of a model's parameters, beside torch's fused optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

import rlk
from benchmarks.harness import Bar, Case, Checked, main
from benchmarks.identity import describe
from benchmarks.peers import Launch
from rlk.optim import AdamW
from rlk.optim.adamw import factors
from rlk.runtime.call.entry import call
from rlk.specs.optim import adamw
from rlk.testing.bits import differing

SIZES = (10**9, 2**20)
"""Elements of all parameters together, and of one weight alone (what a launch for each parameter costs)."""
PARAMETERS = 64  # of about 16 million elements each, as the weights of a model of 8 billion
ALIGNED = 64  # elements of a weight are a multiple of it, as a model's are
LR, DECAY = 1e-4, 0.1
COPY_RATE = 0.9
SAMPLED = 4096


@dataclass(frozen=True, slots=True)
class Inputs:
    """Parameters, which the step writes, and their f32 gradients."""

    weights: tuple[torch.nn.Parameter, ...]
    grads: tuple[Tensor, ...]

    @property
    def elements(self) -> int:
        """The number of elements of all parameters."""
        return sum(w.numel() for w in self.weights)


def inputs(elements: int, count: int, dtype: torch.dtype, odd: bool) -> Inputs:
    """Draw weights and gradients; the number of elements of each is a multiple of `ALIGNED`, or odd."""
    each = elements // count | 1 if odd else -(-elements // count // ALIGNED) * ALIGNED
    weights = tuple(
        torch.nn.Parameter(torch.randn(each, device="cuda").to(dtype) * 0.02) for _ in range(count)
    )
    return Inputs(weights, tuple(torch.randn(each, device="cuda") * 1e-3 for _ in range(count)))


def ours(i: Inputs, seed: int | None) -> Launch:
    """Return rlk's step, whose gradients are `main_grad`."""
    for weight, grad in zip(i.weights, i.grads, strict=True):
        weight.main_grad = grad  # type: ignore[attr-defined]
    optimizer = AdamW(i.weights, lr=LR, weight_decay=DECAY, seed=seed)
    return optimizer.step


def torchs(i: Inputs, fused: bool) -> Launch:
    """Return torch's step on f32 copies of the weights: its gradients have the dtype of its parameters."""
    weights = [torch.nn.Parameter(w.detach().float()) for w in i.weights]
    for weight, grad in zip(weights, i.grads, strict=True):
        weight.grad = grad
    return torch.optim.AdamW(weights, lr=LR, weight_decay=DECAY, fused=fused, foreach=not fused).step


def bytes_moved(i: Inputs, seed: int | None) -> int:
    """Return what a step reads and writes: gradient, both moments, the weight and its master."""
    size = i.weights[0].element_size()
    master = 8 if size < 4 and seed is None else 0
    read = size if master == 0 else 0  # of a weight that has a master nothing is read
    return i.elements * (4 + 16 + master + read + size)


def arguments(dtype: torch.dtype, seed: int | None) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Return the tensors and scalars of a step of a few elements, on the host."""
    drawn = torch.Generator().manual_seed(0)
    few = {"weight": torch.randn(SAMPLED, generator=drawn).to(dtype)}
    few |= {name: torch.randn(SAMPLED, generator=drawn) for name in ("grad", "exp_avg")}
    few["exp_avg_sq"] = torch.rand(SAMPLED, generator=drawn)
    if dtype is not torch.float32 and seed is None:
        few["master"] = few["weight"].float()
    numbers = {"lr": LR, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": DECAY}
    scalars = factors(numbers, 3)
    if seed is not None:
        scalars |= {"seed": seed, "step": 3, "parameter": 1, "first": 0, "width": SAMPLED, "stride": 0}
    return few, scalars


def on_device(few: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of tensors."""
    return {name: x.cuda() for name, x in few.items()}


def described(dtype: torch.dtype, seed: int | None) -> Mapping[str, str]:
    """Return what a step runs."""
    few, scalars = arguments(dtype, seed)
    return describe(rlk.explain(call, adamw, on_device(few), scalars, {}))


def check(dtype: torch.dtype, seed: int | None) -> Checked:
    """Compare one step of a few elements with the oracle, and their weights with float64."""
    few, scalars = arguments(dtype, seed)
    there = on_device(few)
    w, g, m, v = (few[name].double() for name in ("weight", "grad", "exp_avg", "exp_avg_sq"))
    call(adamw, there, scalars, {})
    call(adamw, few, scalars, {})
    s = scalars
    m = m + (g - m) * s["rest1"]
    v = v * s["beta2"] + s["rest2"] * g * g
    want = w * s["kept"] + s["rate"] * (m / (v.sqrt() / s["root"] + s["eps"]))
    got = there.get("master", there["weight"]).cpu().double()
    return Checked(float((got - want).abs().max()), sum(differing(there[n].cpu(), few[n]) for n in few))


def case(
    elements: int, count: int, dtype: torch.dtype, seed: int | None, bar: Bar | None, odd: bool = False
) -> Case:
    """Return one step: of f32 weights, of bf16 ones with masters, or of bf16 ones rounded stochastically."""
    i = inputs(elements, count, dtype, odd)
    rounding = "stochastic" if seed is not None else "master" if dtype is not torch.float32 else "f32"
    rounding += ", odd" * odd
    peers: dict[str, Callable[[], Launch]] = {
        "torch_fused": partial(torchs, i, True),
        "torch_foreach": partial(torchs, i, False),
    }
    return Case(
        op="adamw",
        passes="step",
        shape={"N": elements, "P": count, "weights": rounding},
        dtype="f32" if dtype is torch.float32 else "bf16",
        rlk=partial(ours, i, seed),
        peers=peers,
        moved=bytes_moved(i, seed),
        bar=bar,
        reference="torch_fused",
        check=partial(check, dtype, seed),
        describe=partial(described, dtype, seed),
        extra=False,
        notes={"bar_of_copy_rate": COPY_RATE} if elements == SIZES[0] else {},
    )


def cases() -> Iterator[Case]:
    """Yield a step of 10^9 parameters in each form, then of one small weight."""
    whole = SIZES[0] // PARAMETERS * PARAMETERS
    yield case(whole, PARAMETERS, torch.float32, None, Bar(1.0, "torch_fused"))
    yield case(whole, PARAMETERS, torch.float32, None, Bar(1.0, "torch_fused"), odd=True)
    yield case(whole, PARAMETERS, torch.bfloat16, None, None)
    yield case(whole, PARAMETERS, torch.bfloat16, 1, None)
    yield case(SIZES[1], 1, torch.float32, None, None)
    yield case(2**26, 1024, torch.float32, None, Bar(1.0, "torch_fused"))  # many small ones: launches count


if __name__ == "__main__":
    main("optim", cases)
