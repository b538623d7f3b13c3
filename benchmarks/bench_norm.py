"""Benchmark of RMSNorm, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

import rlk
from benchmarks import peers
from benchmarks.harness import Bar, Case, Checked, main, of_backend
from benchmarks.identity import compare, describe
from benchmarks.peers import Launch
from rlk.testing.bits import differing

EPS = 1e-6
BARS = {
    "fwd": of_backend(triton=Bar(0.17), cute=Bar(0.145)),
    "bwd": of_backend(triton=Bar(0.42), cute=Bar(0.32)),
}
SAMPLED = [0, 5, -1]
SHAPES = ((32768, 4096), (8192, 8192), (64, 4096))
HEADS = ((8192, 32, 8, 128), (64, 32, 8, 128))
"""Tokens, heads of q and of k, and their width, of norms of q inside what one product for q, k and v gave."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """x[M, N] or heads x[M, H, N], weight[N] and the gradient of the output."""

    x: Tensor
    weight: Tensor
    seed: Tensor


def inputs(rows: int, width: int) -> Inputs:
    """Draw activations from N(0, 1) and weights around 1."""
    x = torch.randn(rows, width, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    weight = (1.0 + 0.1 * torch.randn(width, device="cuda")).bfloat16().requires_grad_(True)
    return Inputs(x, weight, torch.randn(rows, width, dtype=torch.bfloat16, device="cuda"))


def inputs_of_heads(tokens: int, heads: int, keys: int, width: int) -> Inputs:
    """Draw heads of q that are a part of longer rows."""
    fused = torch.randn(tokens, (heads + 2 * keys) * width, dtype=torch.bfloat16, device="cuda")
    x = fused[:, : heads * width].unflatten(1, (heads, width)).requires_grad_(True)
    weight = (1.0 + 0.1 * torch.randn(width, device="cuda")).bfloat16().requires_grad_(True)
    return Inputs(x, weight, torch.randn(tokens, heads, width, dtype=torch.bfloat16, device="cuda"))


def variants(i: Inputs) -> dict[str, Callable[[], Callable[[], Tensor]]]:
    """Return, by peer, what builds its forward."""
    anywhere: dict[str, Callable[[], Callable[[], Tensor]]] = {
        "torch_eager": lambda: peers.eager_rms_norm(i.x, i.weight, EPS),
        "torch_compile": lambda: peers.compiled(peers.plain_rms_norm, i.x, i.weight, EPS),
    }
    if not i.x.is_contiguous():  # the others copy such rows first
        return anywhere
    return anywhere | {
        "liger": lambda: peers.liger_rms_norm(i.x, i.weight, EPS),
        "quack": lambda: peers.quack_rms_norm(i.x, i.weight, EPS),
    }


def ours(i: Inputs) -> Tensor:
    """Return rlk's RMSNorm."""
    return rlk.ops.rms_norm(i.x, i.weight, eps=EPS)


def case(i: Inputs, passes: str, moved: float, bar: Bar | None) -> Case:
    """Forward without autograd, or backward of a forward that ran before."""

    def launch(build: Callable[[], Callable[[], Tensor]]) -> Callable[[], Launch]:
        if passes == "fwd":
            return lambda: peers.without_grad(build())
        return lambda: peers.backward_of(build(), (i.x, i.weight), i.seed)

    tokens, *heads, width = i.x.shape
    return Case(
        op="rms_norm",
        passes=passes,
        shape={"M": tokens, **({"H": heads[0]} if heads else {}), "N": width},
        rlk=launch(lambda: lambda: ours(i)),
        peers={name: launch(build) for name, build in variants(i).items()},
        moved=moved,
        bar=bar,
        reference="torch_compile" if heads else "quack",
        check=lambda: check(i) if passes == "fwd" else check_gradient(i),
        describe=lambda: describe(rlk.ops.rms_norm.explain(i.x, i.weight, eps=EPS)),
    )


def check(i: Inputs) -> Checked:
    """Compare sampled rows with float64 and with the oracle."""
    with torch.no_grad():
        got = ours(i)[SAMPLED]
        wide = i.x[SAMPLED].double()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS) * i.weight.double()
        differ = compare(rlk.ops.rms_norm, [got], i.x[SAMPLED], i.weight, eps=EPS)
    return Checked(float((got.double() - wide).abs().max()), differ)


def check_gradient(i: Inputs) -> Checked:
    """Compare both gradients with float64 (over the largest entry), sampled rows of dx with the oracle."""
    dx, dw = torch.autograd.grad(ours(i), (i.x, i.weight), i.seed)
    x, w = i.x.detach().double().requires_grad_(True), i.weight.detach().double().requires_grad_(True)
    wide = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * w
    gx, gw = torch.autograd.grad(wide, (x, w), i.seed.double())
    worst = max(
        float((got.double() - want).abs().max() / want.abs().max()) for got, want in ((dx, gx), (dw, gw))
    )
    few = [t.detach().cpu().requires_grad_(True) for t in (i.x[SAMPLED], i.weight)]
    (want,) = torch.autograd.grad(rlk.ops.rms_norm(*few, eps=EPS), few[:1], i.seed[SAMPLED].cpu())
    return Checked(worst, differing(dx[SAMPLED].cpu(), want))


def cases() -> Iterator[Case]:
    """Yield forward and backward of each shape, then of heads."""
    for rows, width in SHAPES:
        i = inputs(rows, width)
        first = (rows, width) == SHAPES[0]
        yield case(i, "fwd", 2 * i.x.nbytes + i.weight.nbytes, BARS["fwd"] if first else None)
        yield case(i, "bwd", 3 * i.x.nbytes + 2 * i.weight.nbytes, BARS["bwd"] if first else None)
    for shape in HEADS:
        i = inputs_of_heads(*shape)
        read = i.x.numel() * i.x.element_size()
        yield case(i, "fwd", 2 * read + i.weight.nbytes, None)
        yield case(i, "bwd", 3 * read + 2 * i.weight.nbytes, None)


if __name__ == "__main__":
    main("norm", cases)
