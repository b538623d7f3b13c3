"""The host ABI: the parameters of `call`, of its kernels, and their names, from the IR alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rlk.ir.dims import Axis, Part, fixed_extent
from rlk.ir.nodes import Check, Const, Decl, Dot, Extent, Kernel, Load, Node, Pos, Program, Role, Store
from rlk.lower.common.emitted import OF_LOOPS, CallArg, From, Signature
from rlk.lower.common.host_loops import length_name, loop_extents
from rlk.lower.common.memory import VECTOR
from rlk.lower.common.names import axis_name, stride_name
from rlk.lower.common.segments import segments
from rlk.passes.pack_gqa import computed_factor
from rlk.passes.walk import walk
from rlk.schedule.axes import roles

ERRORS = CallArg("errors", From.ERRORS, "errors")
"""The device's error words."""


def tensor(decl: Decl) -> CallArg:
    """Return the parameter for a tensor."""
    return CallArg(decl.name, From.TENSOR, decl.name)


def extent(axis: str) -> CallArg:
    """Return the parameter for the extent of a whole axis, by name."""
    return CallArg(axis, From.EXTENT, axis)


def piece_length(axis: Axis) -> CallArg:
    """Return the kernel argument for the length of the current piece of a loop of `call`."""
    return CallArg(length_name(axis), From.LENGTH, axis.name)


def stride(decl: Decl, dim: int) -> CallArg:
    """Return the parameter for the stride of a dim, in elements."""
    return CallArg(stride_name(decl, dim), From.STRIDE, decl.name, dim)


def counter(kernel: str, name: str) -> CallArg:
    """Return the parameter for a work counter of a kernel; `call` finds it zero."""
    return CallArg(name, From.WORK_COUNTER, kernel)


def scratch(kernel: str, name: str, words: int) -> CallArg:
    """Return the parameter for memory of a kernel, f32[words], uninitialized when `call` begins."""
    return CallArg(name, From.SCRATCH, kernel, words)


def multiple_of(argument: CallArg, decls: Mapping[str, Decl]) -> int:
    """Return what a divisible argument is a multiple of: a stride, in elements, of 16 bytes of its tensor."""
    if argument.kind in (From.STRIDE, From.OUTER_STRIDE, From.INNER_STRIDE):
        return VECTOR // decls[argument.source].type.dtype.bytes
    return VECTOR


def row_strides(decl: Decl) -> tuple[CallArg, CallArg, CallArg]:
    """Return the parameters for rows that are two dims in memory: inner extent, outer and inner stride."""
    axis = decl.type.axes[0]
    stem = f"{decl.name}_{axis_name(axis)}"
    return (
        CallArg(f"{axis.name}_inner", From.INNER_EXTENT, axis.name),
        CallArg(f"{stem}_outer_stride", From.OUTER_STRIDE, decl.name),
        CallArg(f"{stem}_inner_stride", From.INNER_STRIDE, decl.name),
    )


def has_two_row_strides(decl: Decl, signature: Signature) -> bool:
    """Return whether the rows of a tensor may be two dims in memory."""
    return signature.split_rows and decl.role is Role.IN and decl.type.axes[0].dynamic


def has_unit_stride(decl: Decl, dim: int, signature: Signature) -> bool:
    """Return whether the elements of a dim follow each other in memory."""
    return dim == len(decl.type.axes) - 1 and decl.name not in signature.strided


# --- assembly from what kernels use ---


def turn_axes(program: Program) -> dict[str, str]:
    """Return the axis whose pieces each loop index of `call` counts, by the index's name."""
    return {turn.index: turn.axis.name for each in program.order for turn in each.turns}


def kernel_arguments(
    kernel: Kernel, tensors: Iterable[Decl], sizes: Iterable[CallArg], loop_indices: Mapping[str, str]
) -> list[CallArg]:
    """Return the arguments of a kernel in order: tensors, then sizes, then scalars.

    sizes: extents, strides, error words and counters in the order in which the kernel's text first uses them.
    loop_indices: see `turn_axes`.
    """
    scalars = [
        CallArg(d.name, From.LOOP_INDEX, loop_indices[d.name])
        if d.name in loop_indices
        else CallArg(d.name, From.SCALAR, d.name)
        for d in kernel.params
        if d.role is Role.SCALAR
    ]
    return [*map(tensor, tensors), *sizes, *scalars]


def call_parameters(program: Program, signature: Signature, used: Iterable[CallArg]) -> tuple[CallArg, ...]:
    """Return the parameters of `call`, each once, by kind: those of its launches and of its loops.

    used: by the kernels and their launches, in order; loop indices and piece lengths are no parameters.
    """
    found: dict[str, CallArg] = {}
    for arg in used:
        if arg.kind not in OF_LOOPS:
            found.setdefault(arg.name, arg)
    for axis in loop_extents(program.order, dict(signature.extents)):
        found.setdefault(axis.name, extent(axis.name))
    return tuple(sorted(found.values(), key=lambda arg: list(From).index(arg.kind)))


# --- what a program needs, whatever the lowering ---


def host_parameters(program: Program, signature: Signature) -> tuple[CallArg, ...]:
    """Return the parameters that the kernels of a specialized program need in every lowering, by kind.

    They decide which sizes and addresses a dispatcher tests for alignment before it lowers anything. A
    lowering adds the parameters of its own form of a kernel: work counters, and extents that describe a
    tensor and bound no index. It leaves out parameters of a form that it does not launch.

    Raises UnsupportedError where a kernel has no form in any lowering.
    """
    loop_indices = turn_axes(program)
    used: list[CallArg] = []
    for kernel in program.kernels:
        tensors = [d for d in kernel.params if d.role is not Role.SCALAR]
        used += kernel_arguments(kernel, tensors, _sizes(kernel, signature), loop_indices)
    return call_parameters(program, signature, used)


def _sizes(kernel: Kernel, signature: Signature) -> Iterator[CallArg]:
    """Yield the extents that count tiles and bound loops, the strides of accesses, and the error words."""
    extents = dict(signature.extents)
    found = roles(kernel, extents)
    rows = segments(kernel, found.parallel)
    for axis in found.parallel:
        if rows is not None and axis == rows.axis:
            yield extent(rows.whole)
        else:
            yield from _extent(axis, extents)
    decls = {d.name: d for d in kernel.params}
    nodes = {let.value: let.node for let in walk(kernel.body)}
    # the only index of an axis of length 1 adds nothing to an address
    zero = {v for v, node in nodes.items() if _is_zero(node, {axis for axis, n in found.inside if n == 1})}
    computed = computed_factor(kernel)
    for node in nodes.values():
        match node:
            case Extent(axis=axis):
                yield from _extent(axis, extents)
            case Load(param=name, index=index) | Store(param=name, index=index):
                dims = [dim for dim, value in enumerate(index) if value not in zero]
                yield from _strides(decls[name], dims, signature)
            case Dot(a=a, b=b, over=over):
                if not computed and over.over is None:  # offsets bound the rows of a segment
                    yield from _extent(over, extents)
                factors = (nodes.get(a), nodes.get(b))
                for load in (factor for factor in factors if isinstance(factor, Load)):
                    yield from _factor(decls[load.param], signature, bounded=not computed)
            case Check():
                yield ERRORS
            case _:
                pass


def _factor(decl: Decl, signature: Signature, bounded: bool) -> Iterator[CallArg]:
    """Yield the parameters of a factor of a contraction, for any form of its loads.

    bounded: whether tiles may reach beyond the tensor.
    """
    if bounded:
        for axis in decl.type.axes:
            yield from _extent(axis, dict(signature.extents))
    yield from _strides(decl, range(len(decl.type.axes) - 1), signature)


def _extent(axis: Axis, extents: Mapping[str, int]) -> Iterator[CallArg]:
    """Yield the parameter for an extent that is known only at a call."""
    if fixed_extent(axis, extents) is None:
        yield piece_length(axis) if axis.part is Part.WITHIN else extent(axis.name)


def _strides(decl: Decl, dims: Iterable[int], signature: Signature) -> Iterator[CallArg]:
    """Yield the parameters for the strides of some dims."""
    for dim in dims:
        if dim == 0 and has_two_row_strides(decl, signature):
            yield from row_strides(decl)
        elif not has_unit_stride(decl, dim, signature):
            yield stride(decl, dim)


def _is_zero(node: Node, single: set[Axis]) -> bool:
    match node:
        case Const(bits=bits):
            return bits == 0
        case Pos(axis=axis):
            return axis in single
        case _:
            return False
