"""Shape buckets: the static sizes of a call, and classes of the others, that choose its code."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from rlk.lower.common.emitted import Signature
from rlk.runtime.binding.arguments import VECTOR, Geometry
from rlk.runtime.binding.invocation import Invocation, interface, strided

STEPS = 8  # classes between two powers of two


@dataclass(frozen=True, slots=True)
class Sizes:
    """The shape bucket of a call: equal sizes run the same code, but for divisibility by 16.

    static: the extents that a kernel is compiled for. extents: of every axis; dynamic ones as their class.
    split, strided: as in a signature.
    """

    static: tuple[tuple[str, int], ...]
    extents: tuple[tuple[str, int], ...]
    split: bool
    strided: frozenset[str]

    @property
    def signature(self) -> Signature:
        """Return the signature that a lowering gets, without the divisible arguments."""
        return Signature(self.static, self.split, strided=self.strided)


def sizes_of(invocation: Invocation, geometry: Geometry) -> Sizes:
    """Return the shape bucket of a call.

    Every choice depends on it alone, so that batches of other sizes in the same bucket run existing code.
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
    """Return the class of a size, its largest member: no power of two and no piece's size splits a class.

    There are STEPS classes between two powers of two. For an axis with pieces the code depends on whether
    there
    is more than one: a single piece has no merge.
    """
    found = size
    if size & (size - 1):
        high = 1 << size.bit_length()
        step = max(1, high // 2 // STEPS)
        found = min(-(-size // step) * step, high - 1)
    within = [piece for piece in pieces if size <= piece]
    return min([found, *within])


@cache
def representatives(most: int) -> tuple[int, ...]:
    """Return sizes from 1 to `most` that stand for all of them: calls of others run the same kernels.

    One of each class, and in it of each divisor of 16: which multiples of a size are divisible by 16 depends
    on what the size and 16 have in common alone.
    """
    every = range(1, most + 1)
    return tuple(sorted({(class_of(size), math.gcd(size, VECTOR)): size for size in every}.values()))
