"""On a device a sequence has the gradients of attention that it has alone, again and again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from rlk import ops
from rlk.testing.bits import assert_same_bits, differing

LENGTHS = (4096, 200, 1, 3000, 777)
HEADS, SHARED, WIDTH = 8, 2, 128
REPEATS = 1000
Sequences = list[tuple[torch.Tensor, ...]]
"""Of each its queries, keys, values, and the gradient of its results."""


def drawn(lengths: Sequence[int], width: int = WIDTH, dtype: torch.dtype = torch.bfloat16) -> Sequences:
    made = torch.Generator("cuda").manual_seed(5)
    heads = (HEADS, SHARED, SHARED, HEADS)
    return [
        tuple(torch.randn(n, h, width, generator=made, device="cuda").to(dtype) for h in heads)
        for n in lengths
    ]


def gradients(given: Sequences, device: str = "cuda", **options: object) -> list[tuple[torch.Tensor, ...]]:
    """Return the gradients of each sequence's queries, keys and values, packed in this order."""
    lengths = [len(x[0]) for x in given]
    q, k, v, d = (torch.cat(parts).to(device) for parts in zip(*given, strict=True))
    cu = torch.tensor([0, *lengths], device=device).cumsum(0).int()
    leaves = tuple(t.requires_grad_() for t in (q, k, v))
    made = torch.autograd.grad(ops.varlen_attention(*leaves, cu, cu, **options).o, leaves, d)  # type: ignore[arg-type]
    return list(zip(*(x.split(lengths) for x in made), strict=True))


def moved(got: tuple[torch.Tensor, ...], want: tuple[torch.Tensor, ...]) -> list[int]:
    return [differing(a.cpu(), b.cpu()) for a, b in zip(got, want, strict=True)]


@pytest.mark.parametrize("width", [64, 128])
def test_neighbours_and_places_do_not_count(width: int) -> None:
    given = drawn(LENGTHS, width)
    together = gradients(given)
    for order in ((4, 1, 0), (3,), (2, 3)):
        for i, got in zip(order, gradients([given[i] for i in order]), strict=True):
            assert moved(got, together[i]) == [0, 0, 0], (order, i)


def test_a_thousand_runs_beside_other_work_have_the_same_bits() -> None:
    given, beside = drawn(LENGTHS), torch.cuda.Stream()
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    first = gradients(given)
    for run in range(REPEATS):
        with torch.cuda.stream(beside):
            x @ x
        for got, want in zip(gradients(given), first, strict=True):
            for a, b in zip(got, want, strict=True):
                assert torch.equal(a.view(torch.int16), b.view(torch.int16)), run


def test_a_sequence_has_the_bits_of_the_oracle() -> None:
    (got,) = gradients(drawn((333,)))
    math = ops.varlen_attention.explain("cuda").math.value
    (want,) = gradients([tuple(t.cpu() for t in x) for x in drawn((333,))], "cpu", math=math)
    for name, a, b in zip("qkv", got, want, strict=True):
        assert_same_bits(a.cpu(), b, name)


def test_another_order_of_queries_is_seen() -> None:
    """The control: turned around, without a mask, nothing but the order of additions is another one."""
    given = drawn((777,), dtype=torch.float16)
    turned = [tuple(t.flip(0) for t in x) for x in given]
    (want,), (got,) = gradients(given, causal=False), gradients(turned, causal=False)
    assert all(moved(tuple(x.flip(0) for x in got), want))


def test_gradients_are_close_to_float64() -> None:
    (x,) = drawn((2000,))
    (got,) = gradients([x])
    leaves = tuple(t.double().requires_grad_() for t in x[:3])
    cu = torch.tensor([0, 2000], device="cuda", dtype=torch.int32)
    made = torch.autograd.grad(ops.varlen_attention.reference(*leaves, cu, cu).o, leaves, x[3].double())
    for a, b in zip(got, made, strict=True):
        assert float((a.double() - b).norm() / b.norm()) < 2.0**-7
