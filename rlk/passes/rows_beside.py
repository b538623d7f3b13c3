"""Rows beside folds: what a stream stores of each element, in a kernel of its own without the stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from rlk.ir.dims import Axis
from rlk.ir.nodes import (
    Block,
    Check,
    Dot,
    Keep,
    Kernel,
    Let,
    Load,
    Loop,
    Merge,
    Pos,
    Program,
    Reduce,
    Store,
    Stream,
    Value,
    bounds_of,
    operands,
)
from rlk.passes.walk import backward_slice, walk


def name_of(axis: Axis) -> str:
    """Return the name by which `canonical(apart=...)` has the rows of a streamed axis."""
    return f"{axis.name}.rows"


def beside(program: Program, apart: Iterable[str]) -> Program:
    """Return the traced program with the stores of streams of single elements in kernels without a stream.

    apart: `name_of` each axis. A row's results then need no other row's program, and a fold over rows no
    whole row: the rows run in parallel, and so do the columns that a fold is independent in. Both kernels
    load what they need. No operation is changed, nor the order of any.
    """
    axes = {axis for k in program.kernels for axis in _axes(k) if name_of(axis) in set(apart)}
    kernels = [part for kernel in program.kernels for part in _parted(kernel, axes)]
    return replace(program, kernels=tuple(kernels))


def _axes(kernel: Kernel) -> set[Axis]:
    return {let.node.axis for let in walk(kernel.body) if isinstance(let.node, Stream)}


def _parted(kernel: Kernel, axes: set[Axis]) -> list[Kernel]:
    """Return the kernel of each stream's rows, then the rest, if it does anything.

    Rows may run first: nothing that the kernel stores is loaded in it.
    """
    outside = {let.value: let for let in kernel.body.lets}
    rows: list[Kernel] = []
    rest: list[Let] = []
    for let in kernel.body.lets:
        if isinstance(let.node, Stream) and let.node.axis in axes and _stores_rows(let.node, kernel):
            before = _read_by(let.node, outside)
            rows.append(replace(kernel, body=Block((), before + let.node.body.lets)))
            if not let.node.folds:
                continue
            let = replace(let, node=_without_stores(let.node))
        rest.append(let)
    if not rows:
        return [kernel]
    left = replace(kernel, body=Block((), tuple(rest)))
    return [*rows, left] if any(isinstance(x.node, Store | Check) for x in walk(left.body)) else rows


def _read_by(stream: Stream, outside: Mapping[Value, Let]) -> tuple[Let, ...]:
    """Return the lets outside of a stream that its elements depend on, in order."""
    needed = backward_slice((v for let in stream.body.lets for v in operands(let.node)), outside)
    return tuple(let for value, let in outside.items() if value in needed)


def _without_stores(stream: Stream) -> Stream:
    """Return a stream with what its folds absorb, and no more."""
    lets = {let.value: let for let in stream.body.lets}
    needed = backward_slice((v for fold in stream.folds for v in fold.inputs), lets)
    kept = tuple(let for let in stream.body.lets if let.value in needed)
    return replace(stream, body=replace(stream.body, lets=kept))


def _stores_rows(stream: Stream, kernel: Kernel) -> bool:
    """Return whether a stream stores rows that depend on their own element and on inputs alone.

    Nor may they depend on what another kernel should compute once: a product, a sum, a materialized value.
    """
    whole = not stream.init and all(bound is None for bound in bounds_of(stream))
    lets = stream.body.lets
    places: set[Value] = {let.value for let in lets if let.node == Pos(stream.axis)}
    stores = [let.node for let in lets if isinstance(let.node, Store)]
    written = {let.node.param for let in walk(kernel.body) if isinstance(let.node, Store)}
    loads = {let.node.param for let in walk(kernel.body) if isinstance(let.node, Load)}
    before = _read_by(stream, {let.value: let for let in kernel.body.lets})
    return (
        whole
        and stream.axis.over is None
        and (stream.axis.chunk or 1) == 1
        and bool(stores)
        and all(places.intersection(store.index) for store in stores)
        and not written & loads
        and not any(isinstance(let.node, Stream | Loop | Reduce | Merge) for let in before)
        and not any(isinstance(let.node, Check | Stream | Loop) for let in lets)
        and not any(isinstance(let.node, Keep | Dot) for let in (*before, *lets))
    )
