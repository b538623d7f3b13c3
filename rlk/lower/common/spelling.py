"""Text that all lowerings share: types of arguments, names of values, the head of a module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from rlk import __version__
from rlk.ir.dims import Axis, Part, fixed_extent
from rlk.ir.nodes import Combine, Decl, Kernel, Program, Result, Role, Turn, Value, const_bits, const_value
from rlk.ir.tree import Order, Rule
from rlk.ir.types import DType
from rlk.lower.common.emitted import CallArg, From, Signature
from rlk.lower.common.thread_values import ThreadValues, TiledAxis
from rlk.passes.walk import walk
from rlk.target.facts import Target

POINTERS = {
    DType.F32: "*fp32",
    DType.F16: "*fp16",
    DType.BF16: "*bf16",
    DType.I32: "*i32",
    DType.I64: "*i64",
    DType.U32: "*u32",
    DType.BOOL: "*i1",
    DType.I8: "*i8",
    DType.U8: "*u8",
    DType.E4M3: "*u8",
    DType.E5M2: "*u8",
}
SCALARS = {DType.F32: "fp32", DType.I32: "i32", DType.I64: "i64", DType.U32: "u32", DType.BOOL: "i1"}


VERBS = {Combine.ADD: "sum", Combine.MAX: "max", Combine.MIN: "min", Combine.OR: "any"}
"""How reductions are called."""


def order_name(order: Order) -> str:
    """Return how a tree pairs its terms, in words."""
    return order.value if isinstance(order, Rule) else f"by the index bits {order.order}"


def yielded_names(kernel: Kernel) -> dict[tuple[Value, int], str]:
    """Return what the spec calls the results of loops and merges: by the node, and which of its results."""
    results = ((let.node, let.name) for let in walk(kernel.body))
    return {(node.of, node.index): name for node, name in results if isinstance(node, Result)}


def constant_cast(known: tuple[int, DType] | None, dtype: DType) -> tuple[int, DType] | None:
    """Return an integer constant in another type, rounded to the nearest f32; None where it is none."""
    if known is None or not known[1].is_int or not (dtype.is_int or dtype is DType.F32):
        return None
    number = int(const_value(*known))
    return const_bits(number if dtype.is_int else float(np.float32(number)), dtype), dtype


@dataclass(frozen=True, slots=True)
class Header:
    """The first lines of a module."""

    title: str
    numerics: str
    version: str
    target: str
    schedules: tuple[str, ...]
    parameters: tuple[str, ...]


def tile_comment(
    owner: str, tiled: Iterable[TiledAxis], kind: str, layouts: Iterable[ThreadValues] = ()
) -> str:
    """Return the comment of a kernel: the tile of a block or a program, and the layouts of its axes."""
    tile = ", ".join(f"{each.tile} of {each.axis}" for each in tiled) or "everything"
    threads = "; ".join(
        f"{each.axis}: {each.length} indices, {each.count} to each of {1 << len(each.threads)} threads"
        for each in layouts
    )
    return f"A {owner} owns {tile} ({kind}){'. ' * bool(threads)}{threads}."


HEADINGS = {Role.IN: "inputs", Role.OUT: "outputs", Role.SCALAR: "scalars"}


def header(
    program: Program, signature: Signature, target: Target, numerics: str, schedules: Iterable[object]
) -> Header:
    """Return the head of a program's module."""
    decls: dict[str, Decl] = {}
    indices = {turn.index for launch in program.order for turn in launch.turns}  # of host loops
    for decl in (decl for kernel in program.kernels for decl in kernel.params):
        if decl.role is not Role.WORK and decl.name not in indices:
            decls.setdefault(decl.name, decl)  # an output that a later kernel reads stays an output
    extents = dict(signature.extents)
    parameters: list[str] = []
    for role, heading in HEADINGS.items():
        found = [parameter(decl, extents) for decl in decls.values() if decl.role is role]
        parameters += [f"{heading}:", *(f"  {each}" for each in found)] if found else []
    words = tuple(map(str, schedules))
    return Header(program.name, numerics, __version__, target.name, words, tuple(parameters))


def parameter(decl: Decl, extents: Mapping[str, int]) -> str:
    """Return a parameter with its dtype and axes, and the extents that the module's text fixes."""
    sizes = ((axis, fixed_extent(axis, dict(extents))) for axis in decl.type.axes)
    axes = ", ".join(str(axis) if size is None else f"{axis}={size}" for axis, size in sizes)
    return f"{decl.name}: {decl.type.dtype}" + (f" [{axes}]" if axes else "")


def argument_type(argument: CallArg, decls: Mapping[str, Decl]) -> str:
    """Return the type of an argument, as builds spell it."""
    match argument.kind:
        case From.TENSOR:
            return POINTERS[decls[argument.source].type.dtype]
        case From.SCALAR:
            return SCALARS[decls[argument.source].type.dtype]
        case From.ERRORS | From.WORK_COUNTER:
            return "*i32"
        case From.SCRATCH:
            return POINTERS[DType.F32]
        case From.EXTENT | From.INNER_EXTENT | From.LENGTH | From.LOOP_INDEX:
            return "i32"
        case From.STRIDE | From.OUTER_STRIDE | From.INNER_STRIDE:
            return "i64"


def row_number(axes: Iterable[Axis], own: Callable[[Axis], str]) -> str | None:
    """Return the text of a row number for an error word, counted from 1; None without a row axis.

    own: the text of the index of an axis.
    """
    for axis in axes:
        match axis.part:
            case Part.ALL:
                return f"{own(axis)} + 1"
            case Part.WITHIN if axis.piece is not None:
                return f"{Turn(axis.pieces).index} * {axis.piece} + {own(axis)} + 1"
    return None
