"""Building blocks of policy losses: ratios, KL estimates, and sums over tokens in compacted order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlk.lang import Axis, L, Outputs, Static, Tensor, Tile, boolean, f32, op

T = Axis("T", dynamic=True)
S = Axis("S", chunk=1024, piece=1024, fan_in=4096, dynamic=True)
KL = ("k1", "k2", "k3", "abs", "k1+", "k3+")


def kl_value(d: Tile, kl: str) -> Tile:
    """Return the estimate of d = lp_ref - lp (Schulman 2020): k1 = -d, k2 = d^2 / 2, k3 = exp(d) - d - 1."""
    match kl:
        case "k1" | "k1+":
            return -d
        case "k2":
            return (d * d) * 0.5
        case "k3" | "k3+":
            return L.k3(d)
        case _:
            return abs(d)


def kl_slope(d: Tile, kl: str) -> Tile:
    """Return the derivative of the estimate by lp; a trailing + takes that of k2 (straight-through)."""
    match kl:
        case "k1":
            return L.where(d == d, 1.0, d)
        case "k2" | "k1+" | "k3+":
            return -d
        case "k3":
            return -L.expm1(d)
        case _:
            return L.where(d < 0.0, 1.0, L.where(d > 0.0, -1.0, 0.0))


@op(saves=("logp", "old_logp", "ref_logp", "mask"), returns=("ratio", "kl"))
def ratio_kl(
    logp: Tensor[f32, T],
    old_logp: Tensor[f32, T],
    ref_logp: Tensor[f32, T],
    mask: Tensor[boolean, T] | None,
    kl: Static[KL] = "k3",
) -> Outputs:
    """ratio = exp(lp - lp_old) and the KL estimate of each token; tokens with a false mask give 1 and 0.

    kl: k1 = -d, k2 = d^2 / 2, k3 = exp(d) - d - 1, abs = |d|, with d = ref_logp - logp (Schulman 2020); k1+
    and k3+ have the gradient of k2.
    """
    ratio = L.exp(logp - old_logp)
    estimate = kl_value(ref_logp - logp, kl)
    if mask is not None:
        ratio, estimate = L.where(mask, ratio, 1.0), L.where(mask, estimate, 0.0)
    return L.out(ratio=ratio, kl=estimate)


@ratio_kl.vjp("logp")
def ratio_kl_grad(ctx, d_ratio: Tensor[f32, T] | None, d_kl: Tensor[f32, T] | None) -> Outputs:
    """d lp = g_ratio ratio + g_kl dKL/dlp."""
    grad = None
    if d_ratio is not None:
        grad = d_ratio * L.exp(ctx.logp - ctx.old_logp)
    if d_kl is not None:
        of_kl = d_kl * kl_slope(ctx.ref_logp - ctx.logp, ctx.kl)
        grad = of_kl if grad is None else grad + of_kl
    if ctx.mask is not None:
        grad = L.where(ctx.mask, grad, 0.0)
    return L.out(d_logp=grad)


def over_tokens(order: Any, body: Callable[[Tile, Tile], Mapping[str, Tile]]) -> dict[str, Tile]:
    """Return the sum over all tokens of each tile that `body` gives, by name.

    order: i32 [S], all tokens, the active ones first in compacted order; body(t, place) is traced once, for
    tokens t at their places in it. Sums run over the order in chunks of 1024 (halving trees), then
    over 4096 chunks at a time in the same way, those ascending: padded and packed inputs have the same bits.
    """
    totals: dict[str, Any] = {}
    for s in L.stream(S):
        for name, tile in body(order[s], s.pos).items():
            totals[name] = L.total()
            totals[name].absorb(tile)
    return {name: total.value for name, total in totals.items()}
