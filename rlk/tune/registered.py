"""A call of any registered operator or its gradient: tensors drawn from annotations, at given sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlk.errors import Code, LaunchError
from rlk.ir.dims import Axis
from rlk.ir.nodes import Decl, Program, Role
from rlk.ir.types import DType
from rlk.lang.op import Formal, Op
from rlk.lang.record import Example
from rlk.lang.types import ScalarType, TensorType
from rlk.lang.variants import cotangents, differentiable, gradient_variant
from rlk.runtime.binding.arguments import TORCH_DTYPES, output_shape
from rlk.runtime.binding.invocation import Invocation, geometry_of, inputs_of, outputs_of, traced
from rlk.runtime.binding.selection import invoke
from rlk.runtime.call.dispatch import dispatch
from rlk.runtime.reference import dtype_of, number_of
from rlk.tune.shapes import GROUPED, ONE, Shape, axes_of, base_of, found

PREFERRED = DType.BF16  # of tensors whose annotation leaves a choice
SPREAD = 0.7  # of bools that are true


@dataclass(frozen=True, slots=True)
class Call:
    """An invocation, and the tensors and numbers of a call."""

    invocation: Invocation
    tensors: dict[str, Tensor]
    scalars: dict[str, Any]


def call_of(shape: Shape, device: str) -> Call:
    """Return the call of a shape; raise LaunchError for inputs whose values no annotation describes."""
    name, (op, module) = base_of(shape.op), found(shape.op)
    draw = _Draw(op, device, dict(shape.sizes), _example(module, op) if device != "meta" else None)
    present = set(op.record.present)
    there = [f for f in op.formals if not f.optional or f.name in present]
    tensors = {f.name: draw.empty(f) for f in there if isinstance(f.type, TensorType)}
    scalars = {f.name: number_of(f) for f in there if isinstance(f.type, ScalarType)}
    statics = {**dict(op.default_variant().statics), **op.record.statics}
    invocation = invoke(op, tensors, scalars, statics, None)
    domains = _domains(invocation) if device != "meta" else {}
    for formal in there:
        if formal.name in tensors:
            draw.fill(formal.name, tensors[formal.name], domains.get(formal.name))
    if name == shape.op:
        return Call(invocation, tensors, scalars)
    return _gradient(op, draw, Call(invocation, tensors, scalars), shape.op.partition(ONE)[2])


def _gradient(op: Op, draw: _Draw, forward: Call, one: str) -> Call:
    """Return the call of a gradient: saved tensors, normal cotangents, and what else it reads.

    one: the input that it is of, "" for all.
    """
    assert op.gradient is not None
    invocation, tensors, scalars = forward.invocation, forward.tensors, forward.scalars
    geometry = geometry_of(invocation, tensors)
    if draw.device == "meta":
        made = {
            d.name: torch.empty(output_shape(d, geometry), dtype=TORCH_DTYPES[d.type.dtype], device="meta")
            for d in outputs_of(invocation)
        }
    else:
        made = dispatch(invocation, tensors, scalars)
    every = {**tensors, **made}
    pulls = {f"d_{n}": draw.normal(torch.empty_like(made[n])) for n in cotangents(op, invocation.variant)}
    saved = {name: every[name] for name in op.saves if name in every}
    given = saved | pulls
    if op.calls.prepare is not None:
        given |= op.calls.prepare(saved, scalars)
    wanted = frozenset({one}) if one else differentiable(op, invocation.variant)
    names = tuple(name.removeprefix("d_") for name in pulls)
    asked = Invocation(op.gradient, gradient_variant(invocation.variant, wanted, names), invocation.math)
    domains = _domains(asked) if draw.device != "meta" else {}
    for decl in inputs_of(asked):
        if decl.role is Role.IN and decl.name not in given:
            given[decl.name] = draw.declared(decl, domains.get(decl.name))
    return Call(asked, given, scalars)


def _domains(invocation: Invocation) -> Mapping[str, str]:
    """Return, of integer tensors whose elements are indices, the name of the axis that they index."""
    indexed, _ = _drawing()
    return {name: axis.name for name, axis in indexed(traced(invocation)).items()}


def _example(module: object, op: Op) -> Example:
    _, of_module = _drawing()
    return of_module(module, op)


def _drawing() -> tuple[Callable[[Program], dict[str, Axis]], Callable[[object, Op], Example]]:
    """Return what `rlk check` draws inputs by."""
    from rlk.testing.cases import indexed
    from rlk.testing.examples import of_module

    return indexed, of_module


class _Draw:
    """Draws tensors of an operator: floats normal, truth values mostly true, indices inside their dim.

    example: what the author's inputs are, for values that no annotation describes; without one (for tensors
    without memory) nothing is drawn.
    """

    def __init__(self, op: Op, device: str, sizes: Mapping[str, int], example: Example | None) -> None:
        self.op, self.device, self.sizes = op, device, sizes
        self.given = {} if example is None else example.inputs(np.random.default_rng(0))
        if example is not None and op.name == GROUPED:
            self.given = _routed(sizes["T"], sizes["E"])

    def empty(self, formal: Formal) -> Tensor:
        """Return a tensor of a parameter's type."""
        assert isinstance(formal.type, TensorType)
        dtype = dtype_of(formal, PREFERRED)
        shape = [self.sizes[axis.name] for axis in formal.type.axes]
        return torch.empty(shape, dtype=TORCH_DTYPES[dtype], device=self.device)

    def declared(self, decl: Decl, domain: str | None) -> Tensor:
        """Return a tensor that a gradient reads beside what its operator has."""
        shape = [self.sizes[axis.name] for axis in decl.type.axes]
        made = torch.empty(shape, dtype=TORCH_DTYPES[decl.type.dtype], device=self.device)
        self.fill(decl.name, made, domain)
        return made

    def normal(self, made: Tensor) -> Tensor:
        """Fill a tensor of floats."""
        return made if self.device == "meta" else made.normal_()

    def fill(self, name: str, made: Tensor, domain: str | None) -> None:
        """Write values into a tensor; domain: the axis of the dim that they index."""
        if self.device == "meta":
            return
        if name in self.given:
            made.copy_(self._repeated(name, made))
        elif made.dtype.is_floating_point:
            made.normal_()
        elif made.dtype is torch.bool:
            made.copy_(torch.rand(made.shape, device=self.device) < SPREAD)
        elif domain is not None and self.sizes[domain] == made.numel():
            # a permutation: kernels may write where it says, and two writers of a place would differ
            made.copy_(torch.randperm(made.numel(), device=self.device).reshape(made.shape))
        elif domain is not None:
            made.random_(self.sizes[domain])
        else:
            why = f"by the tuner: register {self.op.name} with inputs=, returning arrays by name"
            raise LaunchError(Code.ARG_MISSING, op=self.op.qualified, name=name, why=why)

    def _repeated(self, name: str, made: Tensor) -> Tensor:
        """Return the author's values at another size: repeated along each dim.

        Offsets of segments cannot be repeated: then the sizes must be the author's.
        """
        held = torch.as_tensor(np.asarray(self.given[name]))
        segments = any(axis.over is not None for axis in axes_of(self.op).values()) or bool(self.op.bounds)
        if held.dim() != made.dim() or (segments and held.shape != made.shape):
            wanted = f"the sizes of its inputs, {name} of shape {tuple(held.shape)}: it has segments"
            raise LaunchError(
                Code.ARG_VALUE, op=self.op.qualified, name="--shape", value=tuple(made.shape), wanted=wanted
            )
        for dim, size in enumerate(made.shape):
            held = held.index_select(dim, torch.arange(size) % held.shape[dim])
        return held


def _routed(rows: int, experts: int) -> dict[str, np.ndarray]:
    """Return the offsets of rows by expert, where each row goes to any expert."""
    drawn = np.random.default_rng(0).multinomial(rows, np.full(experts, 1 / experts))
    offsets = np.concatenate([[0], np.cumsum(drawn)])
    return {"begin": offsets[:-1], "end": offsets[1:]}


def traffic(call: Call) -> int:
    """Return the bytes that a call reads and writes once."""
    geometry = geometry_of(call.invocation, call.tensors)
    decls = inputs_of(call.invocation)
    read = sum(call.tensors[d.name].nbytes for d in decls if d.role is Role.IN)
    written = outputs_of(call.invocation)
    shapes = (
        torch.empty(output_shape(d, geometry), dtype=TORCH_DTYPES[d.type.dtype], device="meta")
        for d in written
    )
    return read + sum(made.nbytes for made in shapes)


def copying(bytes: int, copies: int, device: str) -> Callable[[int], object]:
    """Return a copy whose reads and writes are so many bytes together: the least time of a call of these."""
    half = max(1, bytes // 2)
    sources = [torch.empty(half, dtype=torch.uint8, device=device) for _ in range(copies)]
    out = torch.empty_like(sources[0])
    return lambda i: out.copy_(sources[i])
