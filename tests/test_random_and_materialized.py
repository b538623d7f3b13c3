"""Random words are Philox's on every lowering; a kept fold has a sum for every piece and every lane."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("triton")

from rlk.errors import SpecError
from rlk.ir.text import parse_program, print_program
from rlk.lang import Axis, L, Outputs, Tensor, f32, i32, i64, op, u32
from rlk.runtime.call.dispatch import dispatch
from rlk.runtime.call.entry import call
from rlk.testing.simulators import hopper
from rlk.testing.simulators.interpreter import interpret

T = Axis("T", dynamic=True)
V = Axis("V", chunk=8, split=2)
W = Axis("W", chunk=1, split=4)


@pytest.fixture(autouse=True, params=["oracle", "triton", "cute"])
def lowering(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run every test by each of them, and leave the oracle in charge."""
    others = {"cute": hopper.interpret} if request.param == "cute" else {}
    dispatch.interpret_with(None if request.param == "oracle" else interpret, **others)
    yield request.param
    dispatch.interpret_with(None)


@op()
def words(
    c0: Tensor[i64, T], c1: Tensor[i64, T], c2: Tensor[i64, T], c3: Tensor[i64, T], k0: Tensor[i64, T],
    k1: Tensor[i64, T],
) -> Outputs:  # fmt: skip
    """A block of each counter and key."""
    counter, key = (c0, c1, c2, c3), (k0, k1)
    made = L.philox(tuple(c.to(u32) for c in counter), tuple(k.to(u32) for k in key))
    return L.out(**{f"word{i}": word.to(i64) for i, word in enumerate(made)})


# the vectors that Random123 publishes for philox4x32-10
VECTORS = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)


def test_random_words_are_the_published_ones(backends: list[str], lowering: str) -> None:
    names = ("c0", "c1", "c2", "c3", "k0", "k1")
    rows = [counter + key for counter, key, _ in VECTORS]
    made = call(words, {n: torch.tensor([r[i] for r in rows]) for i, n in enumerate(names)}, {}, {})
    for i, (_, _, want) in enumerate(VECTORS):
        assert tuple(int(made[f"word{w}"][i]) for w in range(4)) == want
    assert set(backends) == ({lowering} if lowering != "oracle" else set())


@op()
def by_place(x: Tensor[f32, T, V], n: Tensor[i32, T, W]) -> Outputs:
    """Of each row: the largest sum of a lane and where, the same over pieces; the counts of blocks."""
    total, count, both = L.total(kept=True), L.total(kept=True), L.total()
    for v in L.stream(V):
        total.absorb(x[v])
        both.absorb(x[v])
    for w in L.stream(W):
        count.absorb(n[w])
    lane = L.max(total.value, over=V.pieces)
    weighed = count.value * (L.pos(W.pieces) + 1)
    return L.out(largest=L.max(lane, over=V.lanes), weighed=L.sum(weighed, over=W.pieces), all=both.value)


def test_a_kept_fold_sums_every_lane_of_every_piece_by_itself() -> None:
    rows, width = 3, 61
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(0))
    n = torch.randint(9, (rows, 30), generator=torch.Generator().manual_seed(1)).int()
    made = call(by_place, {"x": x, "n": n}, {}, {})
    pieces = [torch.nn.functional.pad(p, (0, 32 - p.shape[1])) for p in x.split(31, dim=1)]
    sums = torch.stack(pieces, 1).reshape(rows, 2, 4, 8)
    lanes = sums[:, :, 0]
    for step in range(1, 4):
        lanes = lanes + sums[:, :, step]
    assert torch.equal(made["largest"], lanes.amax((1, 2)))
    blocks = torch.stack([b.sum(1) for b in n.split(8, dim=1)], 1)
    assert torch.equal(made["weighed"].long(), (blocks * torch.arange(1, 5)).sum(1))
    assert not torch.equal(made["largest"], made["all"]), "the control: merged"


def test_kept_folds_and_random_words_are_printed_and_read_back() -> None:
    for spec in (by_place, words):
        traced = spec.trace(spec.default_variant())
        assert parse_program(print_program(traced)) == traced
    assert "kept_total" in print_program(by_place.trace(by_place.default_variant()))


def test_random_words_take_words() -> None:
    @op()
    def wrong(u: Tensor[i64, T]) -> Outputs:
        return L.out(word=L.philox((u, u, u, u), (u, u))[0].to(i64))

    with pytest.raises(SpecError, match="u32"):
        wrong.trace(wrong.default_variant())

    @op()
    def few(u: Tensor[i64, T]) -> Outputs:
        return L.out(word=L.philox((u.to(u32),), (u.to(u32),))[0].to(i64))

    with pytest.raises(SpecError, match="4 words"):
        few.trace(few.default_variant())
