"""Guards: extents with the same recorded outcomes get the same choice of code."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from serving_cases import MODEL, ON, STEPS

from rlk.ir.tree import padded
from rlk.nn.serving import _Calls
from rlk.runtime.binding.candidates import forms
from rlk.runtime.binding.guards import GUARD, Choice, traced_choice
from rlk.runtime.binding.invocation import Invocation, geometry_of, of_one_stride, scattered
from rlk.runtime.binding.shape_buckets import Sizes, sizes_of
from rlk.runtime.call.dispatch import dispatch
from rlk.runtime.prefetch import unwritten

Extents = Mapping[str, int]


def arithmetic(e: Extents) -> tuple[int, int, bool, float]:
    """Use every operation that schedules use on extents."""
    t, b = e["T"], e["B"]
    mean = max(1, 2 * t // max(b, 1))
    tile = min(128, padded(mean))
    waves = -(-b * 8 * -(-mean // tile) // 132)
    waste = -(-t // 32) * 32 > t * 9 / 8
    odd = (t & (t - 1)) % 3 == 0 or t | 1 == b or t >> 2 != 1 << (b % 4)
    return tile, math.prod([waves, 3]), bool(waste) and odd, round(float(b) / 7, 2) if b > 50 else 0.0


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 60)), min_size=2, max_size=30))
def test_what_holds_gives_the_same_result(pairs: list[tuple[int, int]]) -> None:
    every = [{"T": t, "B": b} for t, b in pairs]
    for made_for in every:
        choice = traced_choice(made_for, arithmetic)
        assert choice.holds(made_for) and dict(choice.extents) == made_for
        kept = json.loads(json.dumps({"steps": choice.steps, "extents": choice.extents}))
        again = Choice(tuple(map(tuple, kept["steps"])), tuple(map(tuple, kept["extents"])))
        assert again == choice
        for other in every:
            assert not again.holds(other) or arithmetic(other) == arithmetic(made_for)


def test_many_sizes_share_a_choice() -> None:
    def decided(e: Extents) -> object:
        return min(128, padded(e["T"])) if e["B"] < 100 else 0

    choice = traced_choice({"T": 200, "B": 7}, decided)
    assert all(choice.holds({"T": t, "B": b}) for t in (129, 500, 8192) for b in (1, 99))
    assert not any(choice.holds({"T": t, "B": b}) for t, b in ((64, 7), (200, 100)))


@pytest.mark.parametrize("odd", [lambda n: n**2, lambda n: n.bit_count(), lambda n: abs(n), lambda n: n ^ 1])
def test_with_an_operation_that_is_not_recorded_every_extent_is_a_fact(odd: object) -> None:
    choice = traced_choice({"T": 200, "B": 7}, lambda e: odd(e["T"]) > 5)  # type: ignore[operator]
    assert choice.holds({"T": 200, "B": 7})
    assert not choice.holds({"T": 201, "B": 7}) and not choice.holds({"T": 200, "B": 8})


def calls(*sizes: tuple[int, int]) -> list[tuple[Invocation, Sizes]]:
    found: list[tuple[Invocation, Sizes]] = []

    def note(invocation: Invocation, tensors: dict[str, torch.Tensor]) -> None:
        tensors = of_one_stride(tensors, scattered(invocation, tensors))
        found.append((invocation, sizes_of(invocation, geometry_of(invocation, tensors))))

    step = _Calls(MODEL, torch.bfloat16, replace(STEPS, tokens=8192, sequences=256), 1)
    with torch.no_grad(), dispatch.recorded(lambda i, t: unwritten(i, t, note)):
        for tokens, sequences in sizes:
            step.attention(tokens, sequences)
            step.layers(tokens)
            step.scores(tokens)
    return found


def test_schedules_of_steps_are_those_of_the_choice_that_holds() -> None:
    """Each operator of a step, at random sizes; the control believes half of what a choice read."""
    rng = random.Random(7)
    sizes = [(t, rng.randint(1, min(t, 256))) for t in (1, 16, 100, 300, 1000, 3000, 8192)]
    by_call: dict[object, list[Sizes]] = {}
    for invocation, found in calls(*sizes):
        by_call.setdefault((invocation, found.static, found.split, found.strided), []).append(found)
    shared, wrong = 0, 0
    for (invocation, *_), every in by_call.items():  # type: ignore[misc]

        def decided(e: Extents, invocation: Invocation = invocation, any_of: Sizes = every[0]) -> object:
            given = replace(any_of, extents=tuple(sorted({**dict(any_of.static), **e}.items())))
            made = forms(invocation, ON.softmax, given, ON, ("cute", "triton"))
            return tuple((form.backend, form.schedules) for form in made)

        extents = [{a: n for a, n in x.extents if (a, n) not in x.static} for x in every]
        right = [decided(e) for e in extents]
        for e, its in zip(extents, right, strict=True):
            choice = traced_choice(e, decided)
            guards = [i for i, step in enumerate(choice.steps) if step[0] == GUARD]
            half = Choice(choice.steps[: guards[len(guards) // 2]] if guards else (), choice.extents)
            for other, others in zip(extents, right, strict=True):
                assert not choice.holds(other) or its == others, (invocation.spec.name, e, other)
                shared += choice.holds(other) and e != other
                wrong += half.holds(other) and its != others
    assert shared > 50 and wrong
