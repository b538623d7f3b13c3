"""Shape buckets: the static sizes of a call, and classes of the others, that choose its code."""

from __future__ import annotations

from dataclasses import dataclass

from rlk.lower.common.emitted import Signature
from rlk.runtime.binding.arguments import Geometry
from rlk.runtime.binding.invocation import Invocation, interface, strided

STEPS = 8  # classes between two powers of two


@dataclass(frozen=True, slots=True)
class Sizes:
    """What code is chosen by: calls that agree in this run the same code, but for what 16 divides.

    static: the extents that a kernel knows. extents: of every axis; where they are not static, what stands
    for their class. split, strided: as a signature has them.
    """

    static: tuple[tuple[str, int], ...]
    extents: tuple[tuple[str, int], ...]
    split: bool
    strided: frozenset[str]

    @property
    def signature(self) -> Signature:
        """What a lowering is told, but for what is divisible."""
        return Signature(self.static, self.split, strided=self.strided)


def sizes_of(invocation: Invocation, geometry: Geometry) -> Sizes:
    """Return the sizes of a call, as the choice of its code knows them.

    Everything that is chosen is chosen by these, so that batches of other sizes find code that is there.
    """
    found = interface(invocation)
    dynamic, pieces = found.dynamic, dict(found.pieces)
    static = {name: size for name, size in geometry.extents.items() if name not in dynamic}
    classes = {
        name: class_of(size, pieces.get(name, ()))
        for name, size in geometry.extents.items()
        if name in dynamic
    }
    extents = tuple(sorted((static | classes).items()))
    return Sizes(tuple(sorted(static.items())), extents, geometry.split, strided(invocation, geometry))


def class_of(size: int, pieces: tuple[int, ...] = ()) -> int:
    """Return the size that stands for others: no power of two and no piece's size lies between them.

    A class ends at an eighth of the way from one power of two to the next. Of an axis with pieces it matters
    for more than speed whether there is more than one: what nothing merges is not merged.
    """
    found = size
    if size & (size - 1):
        high = 1 << size.bit_length()
        step = max(1, high // 2 // STEPS)
        found = min(-(-size // step) * step, high - 1)
    within = [piece for piece in pieces if size <= piece]
    return min([found, *within])
