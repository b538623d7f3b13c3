"""Kernels that are prepared of an engine's steps: all that layers launch at drawn sizes. None is compiled."""

from __future__ import annotations

from dataclasses import replace

import torch
from serving_cases import BF16, MODEL, ON, STEPS, Keys, numbers, samplers, step

from rlk.nn import serving
from rlk.runtime.binding.invocation import Invocation, Tensors
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


def test_an_engine_with_adapters_prepares_their_products() -> None:
    """At sizes of each class; without adapters none has an inner dim of their rank."""
    ranks = []
    for adapters in (0, 16):
        found: set[tuple[int, int, int]] = set()

        def note(invocation: Invocation, tensors: Tensors, found: set[tuple[int, int, int]] = found) -> None:
            if invocation.spec.name == "matmul":
                (rows, length), columns = tensors["x"].shape, tensors["w"].shape[0]
                found.add((rows, length, columns))

        calls = serving._Calls(MODEL, BF16, replace(STEPS, adapters=adapters), 1)
        with torch.no_grad(), dispatch.recorded(lambda i, t, note=note: unwritten(i, t, note)):
            calls.layers(5)
        ranks.append(found)
    hidden, wide = MODEL.hidden_size, MODEL.intermediate_size
    heads = MODEL.num_attention_heads * MODEL.head_dim
    keys = MODEL.num_key_value_heads * MODEL.head_dim
    assert ranks[1] - ranks[0] == {
        *((5, length, 16) for length in (hidden, wide, heads)),
        *((5, 16, columns) for columns in (hidden, wide, heads, keys)),
    }


def test_representatives_have_each_class_and_divisor() -> None:
    found = representatives(1000)
    facts = {(class_of(n), n & -n if n % 16 else 16) for n in found}
    assert len(facts) == len(found) < 300
    assert all((class_of(n), n & -n if n % 16 else 16) in facts for n in range(1, 1001))
