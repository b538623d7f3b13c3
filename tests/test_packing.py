"""Laws of layouts and packing: there and back, spans that do not know padding, shifts that are refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from rlk import Layout, ops
from rlk.errors import Code, LaunchError
from rlk.interp.run import run
from rlk.lang import Variant, f32
from rlk.ops.spans import Spans
from rlk.passes.pipeline import canonical
from rlk.specs.packing import reported, take_rows
from rlk.testing.bits import assert_same_bits, differing

LENGTHS = torch.tensor([4, 0, 1, 7, 3])
EDGES = torch.tensor([0, 4, 4, 5, 12, 15])
TOKENS, WIDTH = 15, 9
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.bool)


def packed(**options: object) -> Layout:
    return Layout.packed(EDGES, tokens=TOKENS, **options)  # type: ignore[arg-type]


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    made = 9 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return made > 0 if dtype is torch.bool else made.to(dtype)


# there and back


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inner", [(), (3,), (2, 5)])
def test_tokens_go_there_and_back(side: str, dtype: torch.dtype, inner: tuple[int, ...]) -> None:
    rows = Layout.padded(LENGTHS, WIDTH, side=side)  # type: ignore[arg-type]
    x = drawn(TOKENS, *inner, dtype=dtype)
    there = ops.unpack(x, rows)
    assert there.shape == (5, WIDTH, *inner) and there.dtype is dtype
    assert not there[~rows.active].to(torch.float32).any()
    back = ops.pack(there, packed(), side=side)  # type: ignore[arg-type]
    assert torch.equal(back, x)
    for made, exact in (
        (there, ops.unpack.reference(x, rows)),
        (back, ops.pack.reference(there, packed(), side=side)),
    ):
        assert torch.equal(made.to(exact.dtype), exact)


def test_the_other_side_is_another_place() -> None:
    """The control: what is padded on the left is not what is padded on the right."""
    x = drawn(TOKENS)
    left = ops.unpack(x, Layout.padded(LENGTHS, WIDTH, side="left"))
    assert differing(left, ops.unpack(x, Layout.padded(LENGTHS, WIDTH)))
    assert differing(ops.pack(left, packed()), x)


@pytest.mark.parametrize("side", ["left", "right"])
def test_gradients_go_back_to_where_tokens_came_from(side: str) -> None:
    x = drawn(5, WIDTH, 3).requires_grad_()
    rows = Layout.padded(LENGTHS, WIDTH, side=side)  # type: ignore[arg-type]
    cotangent = drawn(TOKENS, 3, seed=1)
    ops.pack(x, packed(), side=side).backward(cotangent)  # type: ignore[arg-type]
    assert x.grad is not None
    assert_same_bits(x.grad, ops.unpack(cotangent, rows))
    y = drawn(TOKENS, 3).requires_grad_()
    over = drawn(5, WIDTH, 3, seed=2)
    ops.unpack(y, rows).backward(over)
    assert y.grad is not None
    assert_same_bits(y.grad, over[rows.active])


def test_a_tail_of_a_packed_row_is_zero() -> None:
    layout = Layout.packed(EDGES, tokens=TOKENS + 4, outside="padding")
    made = ops.pack(drawn(5, WIDTH), layout)
    assert made.shape == (TOKENS + 4,) and (made[TOKENS:] == 0).all()
    assert_same_bits(made[:TOKENS], ops.pack(drawn(5, WIDTH), packed()))


def test_padding_on_both_sides_of_a_packed_row_is_no_token() -> None:
    """Change the padding outside of all sequences: nothing inside changes, for any operator on tokens."""
    flat, wide = packed(), Layout.packed(EDGES + 3, tokens=TOKENS + 5, outside="padding")
    inside = slice(3, 3 + TOKENS)
    assert torch.equal(wide.active.nonzero().reshape(-1), torch.arange(3, 3 + TOKENS))
    assert wide.digest() == flat.digest()
    x = drawn(5, WIDTH)
    assert_same_bits(ops.pack(x, wide)[inside], ops.pack(x, flat))
    values, rewards = drawn(TOKENS + 5), drawn(TOKENS + 5, seed=1)
    factors = {"gamma": 0.9, "lam": 0.9}
    whole = ops.gae(values, rewards, layout=wide, **factors)
    part = ops.gae(values[inside], rewards[inside], layout=flat, **factors)
    assert_same_bits(whole.returns[inside], part.returns)
    assert not whole.returns[:3].any() and not whole.returns[-2:].any()
    given = drawn(5, seed=2)
    made = ops.scatter_rewards(given, EDGES, layout=wide)
    assert_same_bits(made[inside], ops.scatter_rewards(given, EDGES, layout=flat))


def test_a_mask_moves_no_token() -> None:
    x, mask = drawn(5, WIDTH), torch.arange(TOKENS) % 2 == 0
    assert_same_bits(ops.pack(x, packed(mask=mask)), ops.pack(x, packed()))


def test_nothing_can_be_packed() -> None:
    none = Layout.packed(torch.tensor([0]), tokens=0)
    assert ops.pack(drawn(0, 4), none).shape == (0,)
    assert ops.unpack(drawn(0, 2), Layout.padded(torch.zeros(3, dtype=torch.int64), 4)).shape == (3, 4, 2)


# spans


def spans(make: Callable[..., Spans], where: list[bool] | None = None) -> Spans:
    """Two turns of the first sequence, one of the fourth that overlaps another, one that is empty."""
    parts = torch.tensor([[0, 1, 2], [0, 3, 4], [3, 2, 5], [3, 4, 7], [4, 3, 3]])
    return make(*parts.T, where=None if where is None else torch.tensor(where))


INSIDE = [False, True, False, True, False, False, False, True, True, True, True, True, False, False, False]


def test_loss_spans_say_what_counts_and_modality_spans_what_does_not() -> None:
    inside = torch.tensor(INSIDE)
    assert torch.equal(packed(spans=spans(ops.loss_spans)).active, inside)
    assert torch.equal(packed(spans=spans(ops.modality_spans)).active, ~inside)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("make", [ops.loss_spans, ops.modality_spans])
def test_spans_do_not_know_where_padding_is(make: Callable[..., Spans], side: str) -> None:
    rows = Layout.padded(LENGTHS, WIDTH, side=side, spans=spans(make))  # type: ignore[arg-type]
    flat = packed(spans=spans(make))
    assert torch.equal(ops.pack(rows.active, packed(), side=side), flat.active)  # type: ignore[arg-type]
    assert rows.digest() == flat.digest()


def test_turns_are_chosen_by_their_role() -> None:
    roles = torch.tensor([0, 1, 1, 0, 1])
    chosen = packed(spans=spans(ops.loss_spans, where=(roles == 1).tolist()))
    parts = torch.tensor([[0, 3, 4], [3, 2, 5]])
    assert torch.equal(chosen.active, packed(spans=ops.loss_spans(*parts.T)).active)


def test_spans_and_a_mask_are_and_ed() -> None:
    mask = torch.arange(TOKENS) % 2 == 1
    tools = ops.modality_spans(*torch.tensor([[3, 3, 4]]).T)
    both = packed(mask=mask, spans=(spans(ops.loss_spans), tools))
    want = torch.tensor(INSIDE) & mask
    want[8] = False
    assert torch.equal(both.active, want)


def test_without_spans_nothing_counts_or_everything() -> None:
    none = torch.zeros(3, 0, dtype=torch.int64)
    assert not packed(spans=ops.loss_spans(*none)).active.any()
    assert packed(spans=ops.modality_spans(*none)).active.all()


# digests


def test_a_digest_sees_a_mask_that_is_shifted_by_one() -> None:
    mask = torch.tensor([True, False] * 7 + [True])
    digests = {packed(mask=mask.roll(n)).digest() for n in (0, 1)}
    assert len({*digests, packed().digest()}) == 3


def test_a_digest_sees_a_turn_that_is_shifted_by_one() -> None:
    """As many tokens of every sequence count: only their positions differ."""
    one, two = (packed(spans=ops.loss_spans(*torch.tensor([[3, n, n + 2]]).T)) for n in (2, 3))
    assert int(one.active.sum()) == int(two.active.sum()) and one.digest() != two.digest()


# shifts are errors

SPAN = torch.tensor([3]), torch.tensor([5]), torch.tensor([8])
REFUSED: dict[str, tuple[Callable[[], object], Code, str]] = {
    "one token too few": (lambda: Layout.packed(EDGES, tokens=14), Code.ARG_VALUE, "from 0 to 14"),
    "one token too many": (lambda: Layout.packed(EDGES, tokens=16), Code.ARG_VALUE, "from 0 to 16"),
    "a mask of one more": (
        lambda: Layout.packed(EDGES, mask=torch.ones(16, dtype=torch.bool)),
        Code.ARG_SHAPE,
        "expected .15,. by cu_seqlens",
    ),
    "a row that is too short for its sequences": (
        lambda: Layout.packed(EDGES, tokens=14, outside="padding"), Code.ARG_VALUE, "between 0 and 14"
    ),
    "a late start": (lambda: Layout.packed(EDGES[1:], tokens=15), Code.ARG_VALUE, "from 0"),
    "a step back": (lambda: Layout.packed(EDGES.flip(0), tokens=0), Code.ARG_VALUE, "ascending"),
    "an outside of another name": (
        lambda: Layout.packed(EDGES, tokens=15, outside="any"), Code.ARG_VALUE, "nothing, padding"  # type: ignore[arg-type]
    ),
    "a length beyond the row": (lambda: Layout.padded(LENGTHS, 6), Code.ARG_VALUE, "0 to L = 6"),
    "a negative length": (lambda: Layout.padded(LENGTHS - 1, 9), Code.ARG_VALUE, "lengths"),
    "a span that leaves its sequence": (
        lambda: packed(spans=ops.loss_spans(*SPAN)), Code.ARG_VALUE, r"spans\[0\]=\(3, 5, 8\)"
    ),
    "a span of no sequence": (
        lambda: packed(spans=ops.loss_spans(SPAN[0] + 2, SPAN[1] - 5, SPAN[2] - 7)), Code.ARG_VALUE, "spans"
    ),
    "spans of other counts": (
        lambda: ops.loss_spans(SPAN[0], SPAN[1], EDGES), Code.ARG_SIZE, "end has spans"
    ),
    "spans of floats": (lambda: ops.modality_spans(*SPAN[:2], SPAN[2].float()), Code.ARG_DTYPE, "end"),
    "spans where not": (lambda: ops.loss_spans(*SPAN, where=SPAN[0]), Code.ARG_DTYPE, "where"),
    "packed tokens of one more": (
        lambda: ops.unpack(drawn(16), Layout.padded(LENGTHS, WIDTH)), Code.ARG_VALUE, "from 0 to 16"
    ),
    "rows of one more": (lambda: ops.pack(drawn(6, WIDTH), packed()), Code.ARG_SIZE, "x has B = 6"),
    "rows that are too short": (lambda: ops.pack(drawn(5, 6), packed()), Code.ARG_VALUE, "0 to L = 6"),
    "the wrong layout": (
        lambda: ops.pack(drawn(5, WIDTH), Layout.padded(LENGTHS, WIDTH)), Code.ARG_VALUE, "the packed layout"
    ),
    "no rows": (lambda: ops.pack(drawn(5), packed()), Code.ARG_RANK, "B, L"),
    "bytes": (lambda: ops.pack(drawn(5, 9).to(torch.uint8), packed()), Code.ARG_DTYPE, "x has dtype"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_shift_is_refused_at_the_call(name: str) -> None:
    attempt, code, text = REFUSED[name]
    with pytest.raises(LaunchError, match=text) as caught:
        attempt()
    assert caught.value.diagnostics[0].code is code


@pytest.mark.parametrize(
    "make",
    [
        lambda: Layout.packed(EDGES, tokens=16),
        lambda: Layout.padded(LENGTHS, 6),
        lambda: Layout.packed(EDGES, tokens=15, spans=ops.loss_spans(*SPAN)),
    ],
)
def test_where_nothing_can_be_waited_for_no_token_counts(
    make: Callable[[], Layout], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a device: kernels say whether offsets, lengths and spans fit."""
    with pytest.raises(LaunchError):
        make()
    for module in ("layout", "spans"):
        monkeypatch.setattr(f"rlk.ops.{module}.on_the_host", lambda x: False)
    assert not make().active.any()
    assert packed(spans=spans(ops.loss_spans)).active.any() and Layout.padded(LENGTHS, 9).active.any()


def test_a_layout_without_numbers_has_its_shapes() -> None:
    layout = Layout.packed(EDGES.to("meta"), tokens=TOKENS)
    assert layout.active.shape == (TOKENS,) and layout.active.device.type == "meta"
    assert Layout.padded(LENGTHS.to("meta"), WIDTH).order.shape == (5 * WIDTH,)


@pytest.mark.parametrize("source", [[2, 0, -1], [2, 2, -1]])
def test_a_kernel_reports_a_row_that_is_taken_twice(source: list[int]) -> None:
    given = {"source": np.array(source), "back": np.array([1, -1, 0]), "x": np.ones((3, 2), np.float32)}
    variant = Variant.of({"F": f32})
    found = run(canonical(take_rows.trace(variant)), given)
    assert bool(found.errors) == (source[1] == 2)


@pytest.mark.parametrize("bad", [[], [False, False], [False, True]])
def test_a_kernel_reports_what_does_not_fit(bad: list[bool]) -> None:
    found = run(canonical(reported.trace(reported.default_variant())), {"bad": np.array(bad, bool)})
    assert bool(found.errors) == any(bad)
    assert found["good"].tolist() == [not each for each in bad]
