"""Kernels with streams of two axes have on a device the bits that the oracle gives on a CPU."""

from __future__ import annotations

import pytest
import torch

from rlk.lang import Axis, DTypeVar, L, Outputs, Ragged, Scalar, Tensor, bf16, f32, i32, op
from rlk.runtime.call.entry import call
from rlk.testing.bits import assert_same_bits

P = Axis("P", dynamic=True)  # tokens
B = Axis("B", dynamic=True)  # pairs
C = Ragged("C", over=B, chunk=1024)
R = Ragged("R", over=B, chunk=1024)
T = Axis("T", dynamic=True)
V = Axis("V", chunk=256, split=8)
W = Axis("W", chunk=256, split=8)
F = DTypeVar("F", (bf16, f32))


@op()
def pair_margin(
    logp: Tensor[f32, P],
    chosen_begin: Tensor[i32, B],
    chosen_end: Tensor[i32, B],
    rejected_begin: Tensor[i32, B],
    rejected_end: Tensor[i32, B],
    beta: Scalar[f32, 0.0:] = 0.1,
) -> Outputs:
    """Difference of the log-probs of two segments: two ragged streams."""
    chosen, rejected = L.total(), L.total()
    for c in L.stream(C, begin=chosen_begin, end=chosen_end):
        chosen.absorb(logp.at(c.pos))
    for r in L.stream(R, begin=rejected_begin, end=rejected_end):
        rejected.absorb(logp.at(r.pos))
    return L.out(margin=beta * (chosen.value - rejected.value))


@op(saves=("x", "y", "a", "b"), returns=("gap",))
def lse_gap(x: Tensor[F, T, V], y: Tensor[F, T, W]) -> Outputs:
    """Difference of log-sum-exps over two vocabularies, and the entropy of the first."""
    one, two = L.softmax_sum(entropy=True), L.softmax_sum()
    for v in L.stream(V):
        one.absorb(x[v].to(f32))
    for w in L.stream(W):
        two.absorb(y[w].to(f32))
    a, b = one.lse(), two.lse()
    return L.out(gap=a - b + one.entropy(), a=a, b=b)


def pairs(device: str) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(0, 3000, (2, 40), generator=draw)
    lengths[0, 3], lengths[1, 5] = 0, 0
    ends = lengths.T.flatten().cumsum(0).int()
    begins = (ends - lengths.T.flatten()).int()
    logp = -torch.rand(int(ends[-1]), generator=draw)
    given = {
        "logp": logp,
        "chosen_begin": begins[::2], "chosen_end": ends[::2],
        "rejected_begin": begins[1::2], "rejected_end": ends[1::2],
    }  # fmt: skip
    return {n: x.contiguous().to(device) for n, x in given.items()}


def vocabularies(device: str) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    sizes = {"x": 5000, "y": 3333}
    return {n: torch.randn(70, v, generator=draw).mul(4).bfloat16().to(device) for n, v in sizes.items()}


def reversed_segments(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same tokens of each segment in the opposite order."""
    logp = given["logp"].clone()
    for kind in ("chosen", "rejected"):
        for begin, end in zip(given[f"{kind}_begin"].tolist(), given[f"{kind}_end"].tolist(), strict=True):
            logp[begin:end] = given["logp"][begin:end].flip(0)
    return {**given, "logp": logp}


def reversed_vocabulary(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {**given, "x": given["x"].flip(1).contiguous()}


CASES = {
    "pair_margin": (pair_margin, pairs, reversed_segments, {"beta": 0.1}),
    "lse_gap": (lse_gap, vocabularies, reversed_vocabulary, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_two_streams_in_one_kernel_have_the_bits_of_the_oracle(name: str) -> None:
    spec, inputs, reordered, scalars = CASES[name]
    want = call(spec, inputs("cpu"), scalars, {}, "portable")
    got = call(spec, inputs("cuda"), scalars, {}, "portable")
    other = call(spec, reordered(inputs("cuda")), scalars, {}, "portable")
    for output, x in want.items():
        assert_same_bits(got[output].cpu(), x, output)
    first = next(iter(want))
    assert (other[first].cpu() != want[first]).any()  # the order of additions shows in the bits
