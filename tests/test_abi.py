"""The parameters of `call` that the IR gives are those that every lowering's text takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch

from rlk.backends.triton import CHECKED_IN_VERSION
from rlk.errors import UnsupportedError
from rlk.ir.nodes import Block, Check, Dot, Kernel, Program
from rlk.lower import cute, tilelang, triton
from rlk.lower.common.abi import host_parameters
from rlk.lower.common.emitted import CallArg, From, Signature
from rlk.passes.pipeline import launched
from rlk.passes.walk import walk
from rlk.runtime.binding.invocation import Invocation, geometry_of
from rlk.runtime.call import dispatch
from rlk.runtime.reference import placed, reference_extents, reference_gradient, reference_variant
from rlk.runtime.registry import operators
from rlk.schedule.cute_tiles import by_warpgroups
from rlk.schedule.heuristics import choose
from rlk.schedule.tilelang_tiles import by_tilelang_tiles
from rlk.target.facts import target

H200 = target("sm_90a")


def programs(name: str) -> Iterator[tuple[Program, dict[str, int]]]:
    """Yield what an operator and its gradient launch at reference shapes, with the extents of its axes."""
    op = operators()[name]
    variant = reference_variant(op)
    for program in (placed(op, op.trace(variant)), reference_gradient(op, variant)):
        if program is not None:
            extents = reference_extents(op, program)
            yield launched(program, statics(program, extents), H200.softmax, extents), extents


def statics(program: Program, extents: dict[str, int]) -> dict[str, int]:
    axes = {axis.whole for k in program.kernels for d in k.params for axis in d.type.axes}
    return {axis.name: extents[axis.name] for axis in axes if not axis.dynamic}


def calls(
    program: Program, extents: dict[str, int], signature: Signature
) -> Iterator[tuple[str, tuple[CallArg, ...]]]:
    """Yield the parameters of `call` in the text of each lowering that has a form for a program."""
    chosen = tuple(choose(kernel, H200, signature, extents) for kernel in program.kernels)
    yield (
        "triton",
        triton.lower(program, chosen, H200, signature, options=triton.TritonOptions(CHECKED_IN_VERSION)).call,
    )
    for name, lowering, scheduled in (
        ("cute", cute, lambda: by_warpgroups(program, chosen, H200, extents)),
        ("tilelang", tilelang, lambda: by_tilelang_tiles(program, chosen, extents, H200)),
    ):
        try:
            yield name, lowering.lower(program, scheduled(), H200, signature).call
        except UnsupportedError:
            pass


def own_of_cute(program: Program) -> set[CallArg]:
    """Return what the CuTe lowering may add: extents that describe tensors."""
    axes = {axis.name for k in program.kernels for d in k.params for axis in d.type.axes if axis.dynamic}
    return {CallArg(name, From.EXTENT, name) for name in axes}


def contracts_rows(program: Program) -> bool:
    lets = (let for kernel in program.kernels for let in walk(kernel.body))
    return any(isinstance(let.node, Dot) and let.node.over.dynamic for let in lets)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("name", operators())
def test_every_lowering_takes_the_parameters_that_the_ir_gives(name: str, split: bool) -> None:
    for program, extents in programs(name):
        if split and contracts_rows(program):
            continue  # calls give these rows of one stride: rlk.runtime.binding.invocation.scattered
        signature = Signature(tuple(sorted(statics(program, extents).items())), split)
        given = set(host_parameters(program, signature))
        assert len({arg.name for arg in given}) == len(given)
        for backend, call in calls(program, extents, signature):
            added = set(call) - given
            if backend == "cute":
                added -= {*own_of_cute(program), *(arg for arg in call if arg.kind is From.WORK_COUNTER)}
            assert set(call) >= given and not added, (program.name, backend)


@pytest.mark.parametrize("what", ["check", "accesses"])
def test_other_bodies_have_other_parameters(what: str) -> None:
    """The control: error words and strides come from the nodes of the bodies, not from the declarations."""
    ((program, extents),) = list(programs("linear_logp"))[:1]
    signature = Signature(tuple(sorted(statics(program, extents).items())))

    def without(kernel: Kernel) -> Kernel:
        if what == "accesses":
            return replace(kernel, body=Block((), (), ()))
        lets = tuple(let for let in kernel.body.lets if not isinstance(let.node, Check))
        return replace(kernel, body=replace(kernel.body, lets=lets))

    changed = replace(program, kernels=tuple(map(without, program.kernels)))
    gone = set(host_parameters(program, signature)) - set(host_parameters(changed, signature))
    assert {arg.kind for arg in gone} >= {From.ERRORS}
    assert (From.STRIDE in {arg.kind for arg in gone}) == (what == "accesses")


@pytest.mark.parametrize("backend, others", [("cute", (triton, tilelang)), ("tilelang", (triton, cute))])
def test_a_call_runs_no_lowering_but_its_own(
    backend: str, others: tuple[ModuleType, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise AssertionError("another lowering ran")

    op = operators()["rms_norm"]
    invocation = Invocation(op, op.default_variant())
    x = torch.zeros(48, 4096, dtype=torch.bfloat16)
    tensors = {"x": x, "weight": x[0]}
    call = (invocation, H200.softmax, geometry_of(invocation, tensors), tensors, H200)
    dispatch.dispatch.forget()
    for lowering in others:
        monkeypatch.setattr(lowering, "lower", refuse)
    assert dispatch.lowered(*call, backend=backend)[3].backend == backend
    with pytest.raises(AssertionError, match="another lowering ran"):
        dispatch.lowered(*call, backend="triton")
