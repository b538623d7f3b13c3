"""Calls of operators that write outputs into the memory of inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch

from rlk.errors import Code, LaunchError
from rlk.ir.nodes import Decl
from rlk.runtime.binding.invocation import (
    Invocation,
    Run,
    Scalars,
    Tensors,
    interface,
    row_axis,
    written_into,
)
from rlk.runtime.call.dispatch import dispatch, look_up


def run_of(invocation: Invocation, tensors: Tensors) -> Run:
    """Return the bound call of an operator, which also writes what goes into inputs, and returns these.

    An output is written in place where its kernels may do so and the input's memory is that of an output;
    others are written to a copy of the input, which is then copied back.
    """
    if not invocation.spec.into:  # type: ignore[union-attr]
        return dispatch.find(invocation, tensors)
    look_up(invocation, tensors)
    known = interface(invocation)
    decls = {d.name: d for d in known.outputs}
    into = written_into(invocation.spec, decls)
    rows = {out: _leading(invocation, decls[out], tensors[name]) for out, name in into.items()}
    placed = {out: into[out] for out in known.in_place if _fits(tensors[into[out]], rows[out])}
    memory = _memory(tensors, into, placed, rows)
    run = dispatch.find(replace(invocation, into=frozenset(into)), tensors | memory)

    def writing(given: Tensors, scalars: Scalars) -> Tensors:
        check_apart(invocation.spec.name, given, into)
        memory = _memory(given, into, placed, rows)
        made = run(given | memory, scalars)
        for out, name in into.items():
            there = given[name]
            if made[out] is not memory[out]:  # results of a call in which nothing runs
                memory[out].copy_(made[out].view(memory[out].shape))
            if out not in placed:
                there.copy_(memory[out].view(there.shape))
        written = [given[name] for name in into.values()]
        torch.autograd.graph.increment_version([t for t in written if not t.is_inference()])
        return {out: given[into[out]] if out in into else x for out, x in made.items()}

    return writing


def _leading(invocation: Invocation, decl: Decl, tensor: torch.Tensor) -> int:
    """Return how many leading dims of a tensor are one dim of its declaration."""
    axes = decl.type.axes
    return tensor.dim() - len(axes) + 1 if axes and axes[0] == row_axis(invocation.spec) else 1


def _fits(tensor: torch.Tensor, lead: int) -> bool:
    """Return whether kernels can write a tensor itself, which is no lazily negated view."""
    if tensor.is_neg():
        return False
    return tensor.is_contiguous() or (lead == 1 and tensor.dim() > 0 and tensor.stride(-1) == 1)


def _memory(
    given: Tensors, into: Mapping[str, str], placed: Mapping[str, str], rows: Mapping[str, int]
) -> Tensors:
    """Return what kernels write: the inputs, or copies of them, rows along one dim."""
    made = {}
    for out, name in into.items():
        tensor = given[name].detach()
        if out not in placed:
            tensor = tensor.clone(memory_format=torch.contiguous_format)
        lead = rows[out]
        made[out] = tensor if lead == 1 else tensor.view(math.prod(tensor.shape[:lead]), *tensor.shape[lead:])
    return made


def check_apart(op: str, tensors: Tensors, into: Mapping[str, str]) -> None:
    """Raise LaunchError for a written tensor whose memory overlaps itself or another argument."""
    spans = {name: span(t) for name, t in tensors.items() if t.numel()}
    for name in into.values():
        if name not in spans:
            continue
        refuse_shared(op, name, tensors[name])
        low, high = spans[name]
        for other, (start, end) in spans.items():
            if start < high and low < end and other != name and not apart(tensors[name], tensors[other]):
                raise overlap(op, name, other)


def check_traced(op: str, tensors: Tensors, into: Mapping[str, str]) -> None:
    """Raise LaunchError, as `check_apart` does, for fake tensors that lie in one storage.

    Symbolic sizes are those that are traced, without a guard: a call of others is not checked.
    """
    storages = {name: t.untyped_storage()._cdata for name, t in tensors.items()}
    for name in into.values():
        together = [n for n in tensors if storages[n] == storages.get(name)]
        traced = {n: _traced(tensors[n]) for n in together if len(together) > 1}
        known = {n: t for n, t in traced.items() if t is not None}
        if name in known:
            check_apart(op, known, {name: name})


def _traced(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a fake tensor with the sizes that it is traced with; None where they are not known."""
    every = tensor.storage_offset(), *tensor.shape, *tensor.stride()
    offset, *sizes = (n if type(n) is int else n.node.hint for n in every)
    if None in (offset, *sizes):
        return None
    shape, strides = sizes[: tensor.dim()], sizes[tensor.dim() :]
    size = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True) if n) + 1
    memory = torch.empty(size, dtype=tensor.dtype, device="meta")
    return memory.as_strided(shape, strides, offset)


def overlap(op: str, name: str, other: str) -> LaunchError:
    """Return the error for a written tensor that has memory in common with another argument."""
    instead = f"t = {name}.clone(); pass t as {name}, then {name}.copy_(t)"
    return LaunchError(Code.ARG_OVERLAP, op=op, name=name, other=other, instead=instead)


def refuse_shared(op: str, name: str, tensor: torch.Tensor) -> None:
    """Raise LaunchError for a written tensor of which two elements may share memory.

    They do not where strides nest: each at least the length of all that the smaller ones reach.
    """
    if tensor.is_contiguous():
        return
    reach = 1
    dims = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, size in sorted(dim for dim in dims if dim[1] > 1):
        if stride < reach:
            other = f"itself: shape {tuple(tensor.shape)} has strides {tensor.stride()}"
            instead = f"pass a tensor that has each element once, such as {name}.contiguous()"
            raise LaunchError(Code.ARG_OVERLAP, op=op, name=name, other=other, instead=instead)
        reach += (size - 1) * stride


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first address of a tensor and the one behind its last element."""
    start = _start(tensor)
    return start, start + (tensor.nbytes if tensor.is_contiguous() else _reach(tensor))


def _start(tensor: torch.Tensor) -> int:
    """Return the address of a tensor; of one without memory, that within its storage."""
    if tensor.is_meta:
        return tensor.storage_offset() * tensor.element_size()
    return tensor.data_ptr()


def _reach(tensor: torch.Tensor, below: float = math.inf) -> int:
    """Return the bytes from the first element to the end of the last one, along strides below some bytes."""
    size = tensor.element_size()
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return size + sum((n - 1) * step * size for n, step in steps if step * size < below)


def apart(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors are different parts of the same rows, of some length in bytes.

    The length is a stride that divides the larger ones of both. Tensors have elements.
    """
    strides = [
        {step * t.element_size() for n, step in zip(t.shape, t.stride(), strict=True) if n > 1}
        for t in (a, b)
    ]
    every = strides[0] | strides[1]
    for row in every - {0}:
        if any(step > row and step % row for step in every):
            continue
        between = (_start(b) - _start(a)) % row  # of the first elements, along a row
        if _reach(a, row) <= between <= row - _reach(b, row):
            return True
    return False
