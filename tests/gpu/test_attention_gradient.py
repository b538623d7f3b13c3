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


@pytest.mark.parametrize("width", [64, 128])
def test_what_is_not_a_number_stays_in_its_sequence(width: int) -> None:
    """Hardware copies rows behind the end of a sequence too: they are cleared before they are multiplied."""
    given = drawn((333, 200, 70), width)
    alone = gradients(given)
    spoilt = [given[0], tuple(torch.full_like(t, torch.nan) for t in given[1]), given[2]]
    found = gradients(spoilt)
    for i in (0, 2):
        assert moved(found[i], alone[i]) == [0, 0, 0], i
    assert all(x.isnan().all() for x in found[1]), "the control"


def of_views(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, d: torch.Tensor) -> list[torch.Tensor]:
    """Return the results and gradients of two sequences, of tensors as they lie."""
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
    cu = torch.tensor([0, 200, len(q)], device="cuda", dtype=torch.int32)
    made = ops.varlen_attention(*leaves, cu, cu).o
    return [made.detach(), *torch.autograd.grad(made, leaves, d)]


LIES = (
    "one tensor", "values before keys", "keys as values", "keys with room", "one head of keys",
    "one head of d_o", "one token of d_o", "room",
)  # fmt: skip


@pytest.mark.parametrize("how", LIES)
def test_how_tensors_lie_does_not_count(how: str) -> None:
    """Hardware copies by strides: of heads of one tensor, of none at all, of rows with room behind them."""
    many = torch.randn(333, HEADS + 2 * SHARED, WIDTH + 8, device="cuda").bfloat16()
    q, k, v = many[..., :WIDTH].split((HEADS, SHARED, SHARED), 1)
    d = torch.randn(333, HEADS, WIDTH, device="cuda").bfloat16()
    views = {
        "one tensor": (q, k, v, d),
        "values before keys": (q, v, k, d),
        "keys as values": (q, k, k, d),
        "keys with room": (q, k, v.contiguous(), d),
        "one head of keys": (q, k[:, :1].expand_as(k), v[:, :1].expand_as(v), d),
        "one head of d_o": (q, k, v, d[:, :1].expand_as(d)),
        "one token of d_o": (q, k, v, d[:1].expand_as(d)),
        "room": (q, k, v, torch.nn.functional.pad(d, (0, 8))[..., :WIDTH]),
    }[how]
    for name, got, want in zip(
        "oqkv", of_views(*views), of_views(*map(torch.Tensor.contiguous, views)), strict=True
    ):
        assert_same_bits(got.contiguous().cpu(), want.contiguous().cpu(), name)


@pytest.mark.parametrize(("queries", "keys"), [(0, 300), (300, 0)])
def test_nobody_asks_or_nothing_is_there(queries: int, keys: int) -> None:
    (asked,), (kept,) = drawn((queries,)), drawn((keys,))
    leaves = tuple(t.requires_grad_() for t in (asked[0], *kept[1:3]))
    ends = (torch.tensor([0, n], device="cuda", dtype=torch.int32) for n in (queries, keys))
    made = torch.autograd.grad(ops.varlen_attention(*leaves, *ends).o, leaves, asked[3])
    assert all(not x.any() for x in made)


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
