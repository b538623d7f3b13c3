"""A program of one rank is the whole program with fewer pieces of one axis, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from linear_cases import pairwise

from rlk.errors import Code, LaunchError
from rlk.interp.run import run
from rlk.ir.dims import Axis
from rlk.ir.nodes import MathModel, Program
from rlk.ir.numerics import home, numerics_id
from rlk.ir.text import parse_program, print_program
from rlk.ir.verify import verify
from rlk.lang.op import Op, Variant
from rlk.passes.pipeline import canonical
from rlk.passes.shard import shard
from rlk.runtime.binding.invocation import Invocation, traced
from rlk.specs.linear_logp import linear_logp, linear_logp_backward
from rlk.specs.logp import logp
from rlk.specs.matmul import matmul, matmul_leaf8
from rlk.testing.bits import assert_same_bits, differing

RANKS = [2, 4, 8]


def program_of(op: Op, present: tuple[str, ...] = (), **statics: object) -> Program:
    plain = op.default_variant()
    known = {**dict(plain.statics), **statics}
    return op.trace(Variant.of(dict(plain.dtypes), plain.present | set(present), known))


PROGRAMS = {
    "logp": ("V", program_of(logp, needs=("logp", "entropy", "argmax"))),
    "linear_logp": ("V", program_of(linear_logp, ("bias", "mask"))),
    "states": ("V", program_of(linear_logp, needs=("entropy",), keep=True, states=True)),
    "backward": ("V", program_of(linear_logp_backward, ("d_logp", "weight_grad"), partial=True)),
    "matmul_leaf8": ("K", program_of(matmul_leaf8, ("bias",))),
}


def axes(part: Any) -> Iterator[Axis]:
    """Yield every axis that stands anywhere in a part of a program."""
    if isinstance(part, Axis):
        yield part
    elif isinstance(part, tuple):
        for item in part:
            yield from axes(item)
    elif is_dataclass(part):
        for field in fields(part):
            yield from axes(getattr(part, field.name))


# --- what is replaced ---


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_axis_has_fewer_pieces_everywhere(name: str, ranks: int) -> None:
    axis, whole = PROGRAMS[name]
    before, after = list(axes(whole)), list(axes(shard(whole, axis, ranks)))
    assert any(a.name == axis for a in before)
    assert after == [replace(a, split=8 // ranks) if a.name == axis else a for a in before]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_else_changes(name: str, ranks: int) -> None:
    axis, whole = PROGRAMS[name]
    text = print_program(shard(whole, axis, ranks))
    assert text.count(f"split={8 // ranks}") == 1
    assert text.replace(f"split={8 // ranks}", "split=8") == print_program(whole)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_shard_is_a_program_that_can_be_printed_and_read(name: str, ranks: int) -> None:
    axis, whole = PROGRAMS[name]
    for part in (shard(whole, axis, ranks), canonical(shard(whole, axis, ranks))):
        verify(part)
        assert parse_program(print_program(part)) == part
        assert {a.split for a in axes(part) if a.name == axis} == {8 // ranks}


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_size_of_a_piece_is_found_after_sharing_out(name: str, ranks: int) -> None:
    """The control: canonical programs divide the extent by the pieces of the whole axis."""
    axis, whole = PROGRAMS[name]
    part, late = canonical(shard(whole, axis, ranks)), shard(canonical(whole), axis, ranks)
    assert list(axes(part)) == list(axes(late)) and part != late


@pytest.mark.parametrize("name", PROGRAMS)
def test_shards_of_shards_are_shards(name: str) -> None:
    axis, whole = PROGRAMS[name]
    assert shard(shard(whole, axis, 2), axis, 4) == shard(whole, axis, 8)
    assert shard(shard(whole, axis, 4), axis, 2) == shard(whole, axis, 8)
    assert shard(whole, axis, 1) is whole


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_whole_program_stays_as_it_is(name: str) -> None:
    axis, whole = PROGRAMS[name]
    text = print_program(whole)
    shard(whole, axis, 8)
    assert print_program(whole) == text


def test_a_program_without_the_axis_stays_as_it_is() -> None:
    whole = program_of(matmul)
    assert shard(whole, "V", 8) == whole and shard(PROGRAMS["logp"][1], "D", 8) == PROGRAMS["logp"][1]


@pytest.mark.parametrize("ranks", [3, 5, 6, 16])
@pytest.mark.parametrize("name", PROGRAMS)
def test_pieces_that_cannot_be_shared_out_are_refused(name: str, ranks: int) -> None:
    axis, whole = PROGRAMS[name]
    with pytest.raises(LaunchError) as refused:
        shard(whole, axis, ranks)
    assert refused.value.code is Code.ARG_VALUE
    assert f"ranks={ranks}" in str(refused.value) and "a divisor of 8" in str(refused.value)


def test_a_shard_has_an_id_of_its_own() -> None:
    axis, whole = PROGRAMS["states"]
    parts = [canonical(shard(whole, axis, ranks)) for ranks in (1, *RANKS)]
    assert len({numerics_id((part,), home(part, "sm_90a")) for part in parts}) == 4


def test_invocations_of_shards_are_told_apart() -> None:
    variant = linear_logp.default_variant()
    invocations = [Invocation(linear_logp, variant, None, ("V", ranks)) for ranks in (1, *RANKS)]
    assert (
        len({i.key for i in invocations}) == 4 and len({print_program(traced(i)) for i in invocations}) == 4
    )
    assert traced(invocations[0]) == traced(Invocation(linear_logp, variant))
    again = Invocation(linear_logp, variant, None, ("V", 4), frozenset({"logp"}))
    assert again.key not in {i.key for i in invocations}


# --- what it means ---


def summed(ranks: int, x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    """Return x w^T of each rank's share of K, f32."""
    part = canonical(shard(program_of(matmul_leaf8, keep_f32=True), "K", ranks))
    size = x.shape[1] // ranks
    slices = [slice(r * size, (r + 1) * size) for r in range(ranks)]
    shares = [[t[:, s].contiguous().view(torch.uint16).numpy() for t in (x, w)] for s in slices]
    made = [run(part, {"x": a, "w": b}, softmax=MathModel.PORTABLE)["y"] for a, b in shares]
    return [torch.from_numpy(np.array(y)) for y in made]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("length", [8, 120, 1000])
def test_results_of_all_ranks_merge_into_that_of_the_whole(length: int, ranks: int) -> None:
    drawn = torch.Generator().manual_seed(length)
    x, w = (torch.randn(n, length, generator=drawn).bfloat16() for n in (30, 50))
    (want,) = summed(1, x, w)
    assert_same_bits(pairwise(summed(ranks, x, w)), want, "y")
    if length == 1000 and ranks > 2:
        a, b, *rest = summed(ranks, x, w)
        assert differing(pairwise([a, rest[0], b, *rest[1:]]), want) > want.numel() // 4
