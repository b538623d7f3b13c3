"""Gated linear attention over packed sequences: a recurrence whose state is a matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import rlk
from rlk.lang import Axis, L, Outputs, Ragged, Tensor, Tree, f32, i32, op

T = Axis("T", dynamic=True)  # tokens of all sequences
B = Axis("B", dynamic=True)  # sequences
S = Ragged("S", over=B)  # tokens of one sequence, one by one
K = Axis("K")  # width of keys and queries
W = Axis("W")  # width of values


@op(saves=("q", "k", "v", "gate", "begin", "end", "o"), returns=("o",))
def linear_attention(
    q: Tensor[f32, T, K], k: Tensor[f32, T, K], v: Tensor[f32, T, W], gate: Tensor[f32, T],
    begin: Tensor[i32, B], end: Tensor[i32, B],
) -> Outputs:  # fmt: skip
    """S_t = gate_t S_(t-1) + k_t v_t^T, o_t = S_t^T q_t, S = 0 before a sequence (Yang et al. 2024).

    begin, end: the tokens of each sequence; sequences follow each other and cover all tokens. A step after
    the other, each product and sum rounded; the sum over K is a halving tree.
    """
    state = L.carry(0.0, B, K, W)
    for s in L.stream(S, begin=begin, end=end):
        new = gate.at(s.pos) * state.value + k.at(s.pos, K) * v.at(s.pos, W)
        o = L.sum(q.at(s.pos, K) * new, over=K, tree=Tree.halving)
        L.place("o", (T, W), ({T: s.pos}, o))
        state.hand(new)
    return L.out()


@linear_attention.vjp("q", "k", "v", "gate")
def linear_attention_grad(ctx, d_o: Tensor[f32, T, W]) -> Outputs:
    """dq_t = S_t do_t, and with A_t = q_t do_t^T + gate_(t+1) A_(t+1): dk_t = A_t v_t, dv_t = A_t^T k_t.

    gate_t d gate_t = o_t . do_t - k_t . dk_t + gate_(t+1) d gate_(t+1): a gate must not be 0.
    """
    state, back, slope = L.carry(0.0, B, K, W), L.carry(0.0, B, K, W), L.carry(0.0, B)
    if ctx.wants("q"):
        for s in L.stream(S, begin=ctx.begin, end=ctx.end):
            new = ctx.gate.at(s.pos) * state.value + ctx.k.at(s.pos, K) * ctx.v.at(s.pos, W)
            dq = L.sum(d_o.at(s.pos, W) * new, over=W, tree=Tree.halving)
            L.place("d_q", (T, K), ({T: s.pos}, dq))
            state.hand(new)
    if ctx.wants("k") or ctx.wants("v") or ctx.wants("gate"):
        for s in L.stream(S, begin=ctx.begin, end=ctx.end, reverse=True):
            gate, k, v, g = (
                ctx.gate.at(s.pos), ctx.k.at(s.pos, K), ctx.v.at(s.pos, W), d_o.at(s.pos, W),
            )  # fmt: skip
            pull = ctx.q.at(s.pos, K) * g + back.value
            dk = L.sum(pull * v, over=W, tree=Tree.halving)
            if ctx.wants("k"):
                L.place("d_k", (T, K), ({T: s.pos}, dk))
            if ctx.wants("v"):
                L.place("d_v", (T, W), ({T: s.pos}, L.sum(pull * k, over=K, tree=Tree.halving)))
            if ctx.wants("gate"):
                own = L.sum(ctx.o.at(s.pos, W) * g, over=W, tree=Tree.halving)
                made = slope.value + (own - L.sum(k * dk, over=K, tree=Tree.halving))
                L.place("d_gate", (T,), ({T: s.pos}, made / gate))
                slope.hand(made)
            back.hand(gate * pull)
    return L.out()


def linear_attention_float64(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gate: torch.Tensor,
    begin: torch.Tensor, end: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """The same in float64, token by token."""
    rows = []
    for first, last in zip(begin.tolist(), end.tolist()):
        state = q.new_zeros(q.shape[-1], v.shape[-1])
        for t in range(int(first), int(last)):
            state = gate[t] * state + k[t, :, None] * v[t]
            rows.append(q[t] @ state)
    return torch.stack(rows) if rows else torch.zeros_like(v)


def packed(rng: np.random.Generator) -> dict[str, Any]:
    """Return three sequences of 4, 0 and 3 tokens."""
    return {
        "q": rng.normal(size=(7, 5)), "k": rng.normal(size=(7, 5)), "v": rng.normal(size=(7, 6)),
        "gate": 1.0 - 0.5 * rng.random(7), "begin": [0, 4, 4], "end": [4, 4, 7],
    }  # fmt: skip


rlk.register(
    linear_attention,
    namespace="gallery",
    reference=linear_attention_float64,
    inputs=packed,
    extents={"K": 64, "W": 64},
    usage="""
        q, k, v = (torch.randn(7, 16, requires_grad=True) for _ in range(3))
        gate = (0.5 + 0.5 * torch.rand(7)).requires_grad_()
        begin, end = torch.tensor([0, 4], dtype=torch.int32), torch.tensor([4, 7], dtype=torch.int32)
        o = rlk.ops.gallery.linear_attention(q, k, v, gate, begin, end)
        o.square().sum().backward()
    """,
    edges=[
        ("a sequence alone or packed", "the same bits",
         "same(f(q[4:], k[4:], v[4:], gate[4:], begin[:1], end[1:] - 4), o[4:])"),
        ("an empty sequence between others", "no rows of its own",
         "same(f(q, k, v, gate, begin[[0, 1, 1]], end[[0, 0, 1]]), o)"),
    ],
)  # fmt: skip
