"""Generated source of a shared head, of kept logits and of a buffer, interpreted, has the oracle's bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from head_cases import HEADS, PARTS, Head, log_probs
from linear_cases import cotangents, head
from rank_cases import Found
from rank_turns import Exchange, in_turn

from rlk import ops
from rlk.runtime.call.dispatch import dispatch
from rlk.testing.bits import assert_same_bits, differing
from rlk.testing.simulators.interpreter import interpret

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def nothing_unwritten() -> Iterator[None]:
    """Fill memory that nobody wrote with NaN, so that reading it is seen."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@contextmanager
def generated() -> Iterator[None]:
    """Run generated source instead of the oracle."""
    before = dispatch.interpreter
    dispatch.interpret_with(interpret)
    try:
        yield
    finally:
        dispatch.interpret_with(before)


def small(case: Head) -> Head:
    """Return a head of fewer words: interpreted kernels are slow."""
    return replace(case, vocabulary=min(case.vocabulary, 40 * PARTS))


def heads(case: Head, world: int) -> list[Found]:
    return in_turn(lambda rank, group: log_probs(case, CPU, world, rank, group), Exchange(world))


LONG = "more rows than a piece"  # with kept logits it would take minutes
MIXED = ("plain", "a buffer, and all options", "a support by thresholds, and all options")
CASES = [(n, w) for n in HEADS if not n.startswith(LONG) for w in ((1, 2, 8) if n in MIXED else (1, 8))]
"""Whole heads and eighths, and of three heads halves, whose kernels are between; the oracle has all."""
SLOW = pytest.param(LONG, 1, marks=pytest.mark.slow)


@pytest.mark.parametrize(("name", "world"), [*CASES, SLOW])
def test_every_rank_of_generated_source_has_the_bits_of_the_oracle(name: str, world: int) -> None:
    case = small(HEADS[name])
    with generated():
        made = heads(case, world)
    for rank, (got, want) in enumerate(zip(made, heads(case, world), strict=True)):
        assert got.keys() == want.keys()
        for field, x in want.items():
            assert_same_bits(got[field], x, f"{field} on rank {rank} of {world}")


def accumulated(seeds: range) -> list[torch.Tensor]:
    """Return what is in a buffer after each of several gradients."""
    hidden, weight, ids = head((9,), 24, 300)
    buffer, found = torch.zeros(weight.shape), []
    for seed in seeds:
        hidden.requires_grad_(), weight.requires_grad_()
        made = ops.linear_logp(
            hidden, weight, ids, weight_grad_out=buffer, keep_logits=1 << 20 if seed else 0
        )
        made.logp.backward(cotangents((9,), seed=seed)["logp"])
        found.append(buffer.clone())
    assert weight.grad is None and hidden.grad is not None
    return found


def test_a_buffer_adds_up_in_the_order_of_the_calls() -> None:
    want = accumulated(range(4))
    with generated():
        got = accumulated(range(4))
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert_same_bits(a, b, f"after {i + 1} calls")
    other = accumulated(range(3, -1, -1))[-1]
    assert differing(other, want[-1]) > 100
