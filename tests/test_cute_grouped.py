"""Grouped products by the CuTe lowering, simulated thread by thread, have the bits of the oracle."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")  # stands in where CuTe has no form

from edited_text import joined
from test_grouped_matmul import F16, F32, Drawn, batched, batched_rows, normal
from test_interpreted_ops import rescheduled

from rlk import ops
from rlk.lower.cute.plan import MOST_SEGMENTS
from rlk.runtime.call import dispatch as runtime
from rlk.runtime.call.dispatch import dispatch
from rlk.schedule.schedule import Schedule
from rlk.specs import grouped as spec
from rlk.testing.bits import assert_same_bits, differing
from rlk.testing.simulators import hopper
from rlk.testing.simulators.interpreter import interpret
from rlk.testing.simulators.simt import Fault

WIDE = (0, 0, 270, 5)  # tiles of 128 rows
FEW = (3, 0, 1, 9, 5, 0, 40)  # tiles of 32 rows, which are the columns of an instruction, in clusters
Edit = Callable[[str], str]


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Leave the oracle in charge; fill memory that nobody wrote with NaN, so that reading it is seen."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
    dispatch.interpret_with(None)


def by_cute() -> None:
    dispatch.interpret_with(interpret, cute=hopper.interpret)


def made(it: Drawn, **options: Any) -> list[torch.Tensor]:
    """Return the product with a bias, d x and d w, or what a buffer has then."""
    x, w = (t.clone().requires_grad_() for t in (it.x, it.w))
    y = ops.grouped_matmul(x, w, it.offsets, bias=it.bias, **options)
    y.backward(it.d_y.to(y.dtype))
    found = (y.detach(), x.grad, w.grad, options.get("weight_grad_out"))
    return [t for t in found if t is not None]


def assert_same(got: list[torch.Tensor], want: list[torch.Tensor]) -> None:
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert_same_bits(a, b, f"result {i}")


def edited(monkeypatch: pytest.MonkeyPatch, edit: Edit) -> list[bool]:
    """Have the text of every CuTe module edited from now on; return for each whether it is another then."""
    real, found = runtime.lowered, list[bool]()

    def lowered(*args: Any, **options: Any) -> Any:
        *rest, emitted = real(*args, **options)
        source = joined(emitted.source)
        found.append(edit(source) != source)
        return *rest, replace(emitted, source=edit(source))

    monkeypatch.setattr(runtime, "lowered", lowered)
    return found


# --- bits ---

CASES: dict[str, Callable[[], list[torch.Tensor]]] = {
    "tiles of 128 rows": lambda: made(Drawn(WIDE, 80, 64)),
    "few rows": lambda: made(Drawn(FEW, 80, 128)),
    "f16, f32 results": lambda: made(Drawn((20, 9, 0, 133), 48, 48, F16), out_dtype=F32),
    "more experts than lanes": lambda: made(Drawn(tuple(i * 7 % 5 for i in range(70)), 32, 32)),
    "two pieces of rows": lambda: made(Drawn((5, 8200), 16, 32)),
    "leaves, one after the other": lambda: made(Drawn((3, 0, 70, 1), 128, 128), leaves=2, grad_leaves=2),
    "a buffer": lambda: made(Drawn((3, 0, 70, 1), 80, 64), weight_grad_out=normal(4, 80, 64, dtype=F32)),
}


@pytest.mark.parametrize("case", CASES)
def test_it_has_the_bits_of_the_oracle(case: str, backends: list[str]) -> None:
    want = CASES[case]()
    by_cute()
    got = CASES[case]()
    assert set(backends) == {"cute"}, "every kernel has a form"
    assert_same(got, want)


@pytest.mark.parametrize(
    ("spec", "x", "w"), [(batched, (3, 7, 64), (3, 128, 64)), (batched_rows, (70, 3, 64), (3, 64, 48))]
)
def test_each_index_of_a_batch_has_them_too(
    spec: Any, x: tuple[int, ...], w: tuple[int, ...], backends: list[str]
) -> None:
    a, b = normal(*x), normal(*w, seed=1)
    want = spec(a, b)
    by_cute()
    got = spec(a, b)
    assert backends[-1] == "cute"
    assert_same_bits(got, want)


CHANGES: dict[str, tuple[tuple[int, ...], Callable[[Schedule], Schedule]]] = {
    "blocks alone, few": (WIDE, lambda s: replace(s, cluster=1, stages=2, group=1, programs=3)),
    "tiles of 64 rows in clusters": (WIDE, lambda s: replace(s, cluster=2, group=3).with_tile("R", 64)),
    "tiles of 192 of K": (WIDE, lambda s: s.with_tile("K", 192) if s.tile("K") > 1 else s),
    "tiles of 8 rows": (FEW, lambda s: s.with_tile("R", 8)),
    "rows of an instruction": (FEW, lambda s: s.with_tile("R", 64)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_no_schedule_changes_a_bit(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts, by = CHANGES[change]
    it, used = Drawn(counts, 128, 64), set[tuple[Schedule, ...]]()
    want = made(it)
    monkeypatch.setattr(runtime, "lowered", rescheduled(by, used))
    by_cute()
    assert_same(made(it), want)
    assert len(used) >= 2, "the schedule was not used"


# --- neighbours ---


def between(counts: tuple[int, ...]) -> tuple[Drawn, list[torch.Tensor]]:
    """Return three experts, the second between rows that are not numbers, and the results of the second."""
    it = Drawn(counts, 48, 64)
    want = of_second(it, made(it))
    for k in (0, 2):
        it.x[it.rows(k)], it.d_y[it.rows(k)] = torch.inf, torch.inf
    return it, want


def of_second(it: Drawn, found: list[torch.Tensor]) -> list[torch.Tensor]:
    y, d_x, d_w = found
    return [y[it.rows(1)], d_x[it.rows(1)], d_w[1]]


@pytest.mark.parametrize("counts", [(3, 200, 1), (3, 9, 1)])
def test_rows_of_a_neighbour_that_are_not_numbers_stay_with_it(counts: tuple[int, ...]) -> None:
    """Tiles reach into the rows of the next expert, also along the contracted axis of d w."""
    it, want = between(counts)
    by_cute()
    assert_same(of_second(it, made(it)), want)


@pytest.mark.parametrize("factor", ["a", "b"])
def test_rows_of_a_neighbour_that_nobody_clears_are_seen(
    factor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    it, want = between((3, 9, 1))
    edited(monkeypatch, lambda text: re.sub(rf"clear_end\({factor}_tiles.*", "pass", text))
    by_cute()
    assert differing(of_second(it, made(it))[2], want[2])


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (r"cute.arch.fence_view_async_shared\(\)", "no fence"),
        (r"cute.arch.barrier\(.*", "other threads may"),
        (r"cute.arch.griddepcontrol_.*", "before the kernels"),
    ],
)
def test_zeros_that_products_may_not_see_are_refused(
    call: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    edited(monkeypatch, lambda text: re.sub(rf"  {call}", "  pass", text))
    by_cute()
    with pytest.raises(Fault, match=why):
        made(Drawn((3, 9), 16, 16))


def test_offsets_that_are_wrong_write_no_other_memory(backends: list[str]) -> None:
    """The spec alone, as a device runs it: tiles that begin before the rows, and end behind them."""
    it = Drawn((2, 3), 16, 16)
    begin, end = torch.tensor([-1, 2], dtype=torch.int32), torch.tensor([2, 900], dtype=torch.int32)
    want = ops.grouped_matmul(it.x, it.w, it.offsets)
    by_cute()
    assert_same_bits(spec.grouped_matmul(it.x, it.w, begin, end), want)
    assert set(backends) == {"cute"}


def test_nothing_is_nothing() -> None:
    by_cute()
    found = made(Drawn((0, 0, 1), 16, 16))
    assert not found[2][:2].view(torch.int16).any(), "the gradient of an expert without rows is +0"
    assert ops.grouped_matmul(normal(0, 16), normal(3, 16, 16), torch.zeros(4, dtype=torch.int32)).shape == (
        0,
        16,
    )


def test_more_experts_than_a_warp_counts_run_by_triton(backends: list[str]) -> None:
    it = Drawn((1,) * 9 + (0,) * MOST_SEGMENTS, 16, 16)
    want = ops.grouped_matmul(it.x, it.w, it.offsets)
    by_cute()
    assert_same_bits(ops.grouped_matmul(it.x, it.w, it.offsets), want)
    assert backends == ["triton"]


# --- controls ---

WRONG: dict[str, tuple[str, str]] = {
    "tiles of x begin one row late": ("begin_value + r_first", "begin_value + 1 + r_first"),
    "tiles of w of another expert": ("w[None, None, e]", "w[None, None, e - 1]"),
    "tiles that are counted from the first expert": ("tile - cute.arch.make_warp_uniform(first)", "tile"),
    "a warpgroup that passes tiles in which it has rows": ("* (group - 1) < end", "* group < end"),
    "a sum of pieces without the product": (
        "put_sum(total, total, fragment)",
        "put_sum(total, total, total)",
    ),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_in_the_text_is_seen(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    it = Drawn((0, 3, 270, 5), 48, 64)
    want, found = made(it), edited(monkeypatch, lambda text: text.replace(*WRONG[mistake]))
    by_cute()
    got = made(it)
    assert any(found)
    assert any(differing(a, b) for a, b in zip(got, want, strict=True))
