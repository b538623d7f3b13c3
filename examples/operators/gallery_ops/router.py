"""A mixture-of-experts router: softmax over the best k of all experts, as a dense row of gates."""

from __future__ import annotations

import math

import torch

import rlk
from rlk.lang import Axis, DTypeVar, L, Outputs, Static, Tensor, Tree, bf16, f16, f32, op

T = Axis("T", dynamic=True)
E = Axis("E")
F = DTypeVar("F", (f32, bf16, f16))
COUNTS = (1, 2, 4, 8)


@op(saves=("logits", "gates"), returns=("gates",), nonempty=(E,))
def router(logits: Tensor[F, T, E], k: Static[COUNTS] = 2) -> Outputs:
    """gates = softmax of a row's k largest logits, 0 for other experts (Shazeer et al. 2017).

    Equal logits: the lower index first. f32; the sum is a halving tree over all experts.
    """
    z = logits.to(f32)
    best = L.max(z, over=E)
    chosen = L.pos(E) < 0
    for _ in range(k):  # k is a Python number: k copies of the body
        rest = L.where(chosen, -math.inf, z)
        largest = L.max(rest, over=E)
        first = L.min(L.where((rest == largest) & ~chosen, L.pos(E), 1 << 30), over=E)
        chosen = chosen | (L.pos(E) == first)
    e = L.where(chosen, L.exp(z - best), 0.0)
    return L.out(gates=e / L.sum(e, over=E, tree=Tree.halving))


@router.vjp("logits")
def router_grad(ctx, d_gates: Tensor[f32, T, E]) -> Outputs:
    """dz = gates (g - sum(gates g)): 0 for experts that were not chosen."""
    level = L.sum(ctx.gates * d_gates, over=E, tree=Tree.halving)
    return L.out(d_logits=(ctx.gates * (d_gates - level)).to(ctx.logits.dtype))


def router_float64(logits: torch.Tensor, k: int = 2) -> torch.Tensor:
    """The same in float64."""
    order = torch.sort(logits, dim=-1, descending=True, stable=True).indices[..., :k]
    chosen = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, True)
    return torch.softmax(logits.masked_fill(~chosen, -math.inf), -1)


rlk.register(
    router,
    namespace="gallery",
    reference=router_float64,
    extents={"E": 128},
    usage="""
        logits = torch.randn(5, 16, requires_grad=True)
        gates = rlk.ops.gallery.router(logits, k=4)
        gates.square().sum().backward()
    """,
    edges=[
        ("every row", "k experts", "((gates > 0).sum(-1) == 4).all()"),
        ("a row alone or in a batch", "the same bits", "same(f(logits[2:], k=4), gates[2:])"),
        ("equal logits", "the lower index", "f(torch.zeros(1, 4), k=2).tolist() == [[0.5, 0.5, 0, 0]]"),
        ("another k", "raises", "f(logits, k=3)"),
    ],
)
