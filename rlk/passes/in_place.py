"""Analysis of outputs that are written into inputs: which may share the input's memory while kernels run."""

from __future__ import annotations

from collections.abc import Mapping

from rlk.ir.dims import Axis
from rlk.ir.nodes import Dot, Kernel, Let, Load, Loop, Merge, Node, Pos, Program, Reduce, Store, Value
from rlk.ir.types import TileType
from rlk.passes.piecewise_launch import swept
from rlk.passes.walk import backward_slice, walk


def in_place(program: Program, into: Mapping[str, str]) -> frozenset[str]:
    """Return the outputs of a canonical program whose kernels may write the input itself.

    into: outputs, each with the input that its values go to. No kernel reads the input, or the one that
    writes does alone: it is launched once, has no axes but the input's, reads each element where it writes
    it, and reads it first. Others are written to memory of their own and copied.
    """
    return frozenset(out for out, source in into.items() if _shares(program, out, source))


def _shares(program: Program, out: str, source: str) -> bool:
    writers = [i for i, kernel in enumerate(program.kernels) if _of(kernel, Store, out)]
    readers = [i for i, kernel in enumerate(program.kernels) if _of(kernel, Load, source)]
    if len(writers) != 1:
        return False
    if not readers:
        return True
    if readers != writers or swept(program):  # loops of the host launch a kernel more than once
        return False
    kernel = program.kernels[writers[0]]
    lets = {let.value: let for let in walk(kernel.body)}
    loads, stores = _of(kernel, Load, source), _of(kernel, Store, out)
    if len(loads) != 1 or len(stores) != 1 or any(isinstance(x.node, _GATHERING) for x in lets.values()):
        return False
    (load,), (store,) = loads, stores
    assert isinstance(load.node, Load) and isinstance(store.node, Store)
    nodes = {value: let.node for value, let in lets.items()}
    axes = next(d.type.axes for d in kernel.params if d.name == source)
    # of another axis several programs would read what one of them writes
    if any(isinstance(x.type, TileType) and not {*x.type.axes} <= {*axes} for x in lets.values()):
        return False
    own = all(_is_own(x.index, axes, nodes) for x in (load.node, store.node))
    return own and load.value in backward_slice([store.node.value], lets)


# a kernel that combines elements may read its rows again after it has written some of them
_GATHERING = (Reduce, Dot, Merge, Loop)


def _is_own(index: tuple[Value, ...], axes: tuple[Axis, ...], nodes: Mapping[Value, Node]) -> bool:
    """Return whether indices are the positions along a tensor's own dims."""
    return [nodes[i] for i in index] == [Pos(axis) for axis in axes]


def _of(kernel: Kernel, kind: type[Load] | type[Store], name: str) -> list[Let]:
    return [x for x in walk(kernel.body) if isinstance(x.node, kind) and x.node.param == name]
