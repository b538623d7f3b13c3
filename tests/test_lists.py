"""Calls on lists of tensors: the bits of a call for each item, by one launch where that has a form."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from runners import by_triton

from rlk.backends.registry import of_target
from rlk.errors import Code, LaunchError, LoweringError
from rlk.lang import Axis, DTypeVar, L, Outputs, Scalar, Static, Tensor, Tree, bf16, f32, i8, i32, op
from rlk.lower.common.emitted import Signature
from rlk.optim import AdamW
from rlk.passes.pipeline import canonical, launched
from rlk.runtime.call import lists
from rlk.runtime.call.dispatch import dispatch
from rlk.schedule.heuristics import choose
from rlk.target.facts import target
from rlk.testing.bits import assert_same_bits
from rlk.testing.cases import cases
from rlk.testing.check import calls, check_source
from rlk.testing.examples import Example
from rlk.testing.simulators.interpreter import InterpreterFault, reaching

T = Axis("T", dynamic=True)
N = Axis("N")
G = DTypeVar("G", (f32, bf16))


@op(into={"x_out": "x"})
def moved(x: Tensor[f32, T], g: Tensor[G, T], rate: Scalar[f32], shift: Scalar[i32]) -> Outputs:
    """x + rate g + the number of the element and a shift; and twice g."""
    at = (L.pos(T) + shift).to(f32)
    return L.out(x_out=x + rate * g.to(f32) + at, twice=g.to(f32) * 2.0)


@op()
def total(x: Tensor[f32, T, N]) -> Outputs:
    """The sum of each row, which is no elementwise operator."""
    return L.out(y=L.sum(x, over=N, tree=Tree.halving))


SIZES = (5000, 48, 16, 17, 4096, 3)


def drawn(dtype: torch.dtype = torch.float32) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    g = torch.Generator().manual_seed(0)
    return (
        [torch.randn(n, generator=g) for n in SIZES],
        [torch.randn(n, generator=g).to(dtype) for n in SIZES],
    )


SHIFTS = [3, 0, -5, 7, 2**30, 1]
RATES = [0.5, 0.25, -1.5, 3.0, 1e-3, 0.1]


def one_by_one(dtype: torch.dtype = torch.float32) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The bits of a call for each item, by the oracle."""
    made = [moved(*item, rate=r, shift=s) for *item, r, s in zip(*drawn(dtype), RATES, SHIFTS, strict=True)]
    return [(each.x_out, each.twice) for each in made]


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Launch kernels in Triton's interpreter; count launches on lists. Fresh outputs lie in one block."""
    by_triton()
    launched: list[int] = []
    run, outputs = lists._Launch.run, lists._Launch._outputs

    def counted(self: Any, items: Any, *rest: Any) -> Any:
        launched.append(len(items))
        made = [outputs(self, item) for item in items]
        monkeypatch.setattr(
            self.__class__, "_outputs", lambda self, item: made[[i is item for i in items].index(True)]
        )
        with reaching([t for part in (*items, *made) for t in part.values()]):
            return run(self, items, *rest)

    monkeypatch.setattr(lists._Launch, "run", counted)
    yield launched
    dispatch.interpret_with(None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_launch_has_the_bits_of_a_call_for_each_item(interpreted: list[int], dtype: torch.dtype) -> None:
    dispatch.interpret_with(None)
    want = one_by_one(dtype)
    by_triton()
    x, g = drawn(dtype)
    made = moved.each(x, g, rate=RATES, shift=SHIFTS)
    for (moved_x, twice), each, given in zip(want, made, x, strict=True):
        assert each.x_out is given
        assert_same_bits(given, moved_x)
        assert_same_bits(each.twice, twice)
    assert sum(interpreted) == len(SIZES) and len(interpreted) < len(SIZES)  # few groups of alignments
    again = moved.each(drawn(dtype)[0], g, rate=RATES, shift=[s + 1 for s in SHIFTS])
    assert not torch.equal(again[0].x_out, want[0][0])  # the control: other numbers of an item


@pytest.mark.parametrize("seed", [None, 5])
def test_steps_of_the_same_memory_launch_as_the_last(interpreted: list[int], seed: int | None) -> None:
    def optimizer() -> tuple[AdamW, list[torch.nn.Parameter]]:
        weights = [torch.nn.Parameter(x.bfloat16() if i % 2 else x) for i, x in enumerate(drawn()[0])]
        for weight, grad in zip(weights, drawn()[1], strict=True):
            weight.main_grad = grad  # type: ignore[attr-defined]
        return AdamW(weights, lr=1e-2, seed=seed), weights

    made = [optimizer(), optimizer()]
    launched: list[int] = []
    states: list[torch.Tensor] = []
    expected = {"first": False, "none": True, "lr": True, "grad": False, "transposed": False, "still": False}
    expected |= {"grad again": False, "count": False, "none again": True, "state": False, "after it": True}
    expected |= {"negated": False, "grad back": False, "and again": True, "moved states": False}
    expected |= {"still the same": True} if seed is None else {"a number more": False}
    for change in expected:
        for i, (adamw, weights) in enumerate(made):
            grad = drawn()[1][1].mul(3.0)  # of 48
            if change == "lr":
                adamw.param_groups[0]["lr"] = 1e-3
            elif change.startswith("grad"):
                weights[1].main_grad = grad  # type: ignore[attr-defined]
            elif change == "transposed":
                weights[1].main_grad = torch.stack([grad, grad], 1)[:, 0]  # type: ignore[attr-defined]
            elif change == "count":
                adamw.state[weights[2]]["step"] = 40
            elif change == "state":
                adamw.load_state_dict(copy.deepcopy(adamw.state_dict()))
            elif change == "negated":
                weights[1].main_grad = torch._neg_view(weights[1].main_grad)  # type: ignore[attr-defined]
            elif change == "moved states":
                old = [weakref.ref(adamw.state[w]["exp_avg"]) for w in weights]
                for w in weights:
                    adamw.state[w] |= {n: adamw.state[w][n].clone() for n in ("exp_avg", "exp_avg_sq")}
                states.clear()
                assert not any(ref() is not None for ref in old)
            elif change == "a number more":  # which random bits are of
                adamw.param_groups[0]["params"].insert(0, torch.nn.Parameter(torch.ones(3)))
            if i:
                adamw._kept.clear()  # the control: as if each step were the first
            before = len(interpreted)
            states = [t for w in weights for t in adamw.state[w].values() if isinstance(t, torch.Tensor)]
            with reaching([*weights, *(w.main_grad for w in weights), *states]):
                adamw.step()
            launched.append(len(interpreted) - before)
        for one, other in zip(*(w for _, w in made), strict=True):
            assert_same_bits(one.detach(), other.detach(), change)
    assert [n == 0 for n in launched[::2]] == [*expected.values()]
    assert all(launched[1::2])


def test_without_a_device_and_for_other_operators_items_are_calls(interpreted: list[int]) -> None:
    rows = [torch.randn(n, 8) for n in (3, 5)]
    with reaching([]):
        for each, x in zip(total.each(rows), rows, strict=True):
            assert_same_bits(each, total(x))
    assert interpreted == []
    dispatch.interpret_with(None)
    x, g = drawn()
    for each, (moved_x, _) in zip(moved.each(x, g, rate=RATES, shift=SHIFTS), one_by_one(), strict=True):
        assert_same_bits(each.x_out, moved_x)


def test_items_are_checked(interpreted: list[int]) -> None:
    x, g = drawn()
    with pytest.raises(LaunchError, match="lists of one length"):
        moved.each(x, g[:2], rate=1.0, shift=0)
    with pytest.raises(LaunchError) as caught:
        moved.each(x, g, rate=1.0, shift=[2**40] * len(x))
    assert caught.value.code is Code.ARG_VALUE
    with pytest.raises(LaunchError, match="g has rows = .48,., but x has rows"):
        moved.each([x[0], x[1]], [g[1], g[0]], rate=1.0, shift=0)
    whole = torch.zeros(4096)
    with pytest.raises(LaunchError) as caught:
        moved.each([whole, whole[16:]], [g[4], g[4][16:].clone()], rate=1.0, shift=0)
    assert caught.value.code is Code.ARG_OVERLAP
    assert interpreted == []
    assert moved.each([], [], rate=1.0, shift=0) == []


@op()
def scaled(x: Tensor[f32, T], by: Scalar[f32] | None, half: Static[False, True] = False) -> Outputs:
    y = x * 0.5 if half else x * 2.0
    return L.out(y=y if by is None else y * by)


def test_arguments_of_lists_are_those_of_a_call() -> None:
    x, g = drawn()
    with pytest.raises(LaunchError, match="(?s)half=.*is not allowed.*one value for all items"):
        scaled.each(x, half=[False, True] * 3)
    with pytest.raises(LaunchError, match=r"(?s)by\[2\]=None is not allowed.*a number for every item"):
        scaled.each(x[:3], by=[1.0, 2.0, None])
    with pytest.raises(LaunchError, match=r"by\[0\]=None"):
        scaled.each(x[:2], by=[None, 2.0])
    with pytest.raises(LaunchError, match="(?s)x: tuple, half: bool.*lists of one length"):
        scaled.each(tuple(x), half=True)
    for args, options in (((x, g, 1.0), {}), ((x, g), {"g": g}), (([], []), {"rte": 1.0}), (([],), {})):
        with pytest.raises(TypeError, match=r"moved\.each"):
            moved.each(*args, **{"shift": 0, "rate": 1.0} | options)
    for y, each in zip(scaled.each(x, by=[None] * len(x), half=True), x, strict=True):
        assert_same_bits(y, each * 0.5)


def test_items_of_several_groups_are_apart(interpreted: list[int]) -> None:
    """An item of another alignment, whose launch is another, reads what the first writes."""
    whole, g = torch.zeros(64), torch.zeros(8)
    with pytest.raises(LaunchError, match=r"x\[0\] is written, and its memory overlaps g\[1\]"):
        moved.each([whole[:8], whole[17:25]], [g, whole[:8]], rate=1.0, shift=0)
    with pytest.raises(LaunchError, match=r"x\[1\] is written, and its memory overlaps x\[0\]"):
        moved.each([whole[::2], whole[32::2]], [torch.zeros(32), torch.zeros(16)], rate=1.0, shift=0)
    with pytest.raises(LaunchError, match="shift"):
        moved.each([whole[:8], whole[17:25]], [g, g], rate=1.0, shift=[0, 2**40])
    assert interpreted == [] and not whole.any()
    moved.each([whole[::2], whole[1::2]], [torch.ones(32)] * 2, rate=1.0, shift=0)  # the control: apart
    assert whole.view(32, 2).eq(torch.arange(1.0, 33.0)[:, None]).all()


@op()
def widened(x: Tensor[i8, T]) -> Outputs:
    return L.out(y=x.to(f32))


def test_extents_beyond_32_bits_are_refused(interpreted: list[int]) -> None:
    large = torch.empty(1, dtype=torch.int8).expand(2**31)
    with pytest.raises(LaunchError, match="widened: x has T = 2147483648, expected at most 2147483647"):
        widened(large)
    large = torch.empty(2**31, dtype=torch.int8)  # which nothing touches
    with pytest.raises(LaunchError, match="x has T = 2147483648"):
        widened.each([large])
    assert interpreted == []


def test_addresses_outside_of_the_items_are_found(interpreted: list[int], monkeypatch: Any) -> None:
    """The control of the interpreter: a wrong address in a table is a fault."""
    value = lists.value_of
    monkeypatch.setattr(lists, "value_of", lambda c, *rest: value(c, *rest) + 2**20 * (c.name == "g"))
    x, g = drawn()
    with pytest.raises(InterpreterFault, match="outside every argument"):
        moved.each(x[:1], g[:1], rate=1.0, shift=0)


def test_other_lowerings_refuse_lists_with_the_place() -> None:
    program = launched(canonical(moved.trace(moved.default_variant())), {}, None, {"T": 4096})
    refused = 0
    for on in map(target, ("sm_90a", "gfx942")):
        signature = Signature(listed=frozenset({"shift"}))
        chosen = [choose(k, on, signature, {"T": 4096}) for k in program.kernels]
        for by in of_target(on):
            if by.complete:
                assert "item_table_ptr" in by.lower(program, chosen, on, signature).source
                continue
            with pytest.raises(LoweringError, match="lists of tensors") as caught:
                by.lower(program, chosen, on, signature)
            assert "test_lists.py" in str(caught.value)
            refused += 1
    assert refused == 3


def test_the_law_of_source_tries_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong extent in a table breaks the law: the control."""
    (case, *_), on = cases(moved, Example()), target("sm_90a")
    (call,) = calls(case)
    good = check_source(call, on)
    value = lists.value_of
    monkeypatch.setattr(lists, "value_of", lambda c, *rest: value(c, *rest) - (c.name == "T"))
    bad = check_source(call, on)
    assert good.ok and not bad.ok and "lists of tensors" in bad.note
