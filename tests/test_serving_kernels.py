"""Kernels that are prepared of an engine's steps: all that layers launch at drawn sizes. None is compiled."""

from __future__ import annotations

import torch
from serving_cases import BF16, MODEL, ON, STEPS, Keys, numbers, samplers, step

from rlk.nn import serving
from rlk.runtime.binding.shape_buckets import class_of, representatives
from rlk.runtime.call.dispatch import dispatch
from rlk.runtime.prefetch import unwritten


def test_every_size_runs_what_is_prepared() -> None:
    prepared, drawn = Keys(), Keys()
    with samplers((True, False, False, False)):
        serving.observe(MODEL, BF16, STEPS, 1, ON, prepared.note)
    with torch.no_grad(), dispatch.recorded(lambda i, t: unwritten(i, t, drawn.note)):
        for tokens, sequences in numbers(40):
            step(tokens, sequences, 4096 + tokens % 2)
    missing = {name for name, _ in drawn.found.keys() - prepared.found.keys()}
    assert not missing
    assert len(drawn.found) >= 20
    # a list without the multiples of 16, and one without the classes above 16, would lack some
    for left in (lambda n: n % 16 == 0, lambda n: n > 16):
        fewer = {each for each, rows in prepared.found.items() if not all(map(left, rows))}
        assert {"matmul", "paged_attention"} & {name for name, _ in drawn.found.keys() - fewer}


def test_representatives_have_each_class_and_divisor() -> None:
    found = representatives(1000)
    facts = {(class_of(n), n & -n if n % 16 else 16) for n in found}
    assert len(facts) == len(found) < 300
    assert all((class_of(n), n & -n if n % 16 else 16) in facts for n in range(1, 1001))
