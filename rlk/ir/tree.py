"""The order in which a float reduction pairs its terms."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from rlk.errors import Code, SpecError, author
from rlk.ir.dims import is_power_of_two


class Rule(Enum):
    """A tree for every width: the width is known only when an axis is bound to a size."""

    HALVING = "halving"
    PAIRWISE = "pairwise"
    VECTOR8 = "vector8"


class Ascending(Enum):
    """A left fold from the lowest index up: not a tree of index bits."""

    ASCENDING = "ascending"


ASCENDING = Ascending.ASCENDING


@dataclass(frozen=True, slots=True)
class Tree:
    """A permutation of index bits: bit order[0] is paired away first.

    Any permutation of 2**n terms is a legal order; the choice is part of an operator's numerics. Missing
    terms are the identity of the sum, -0.0, so a wider tree of the same rule over the same terms has the
    same bits.

    Tree.halving adds the upper half to the lower, again and again; Tree.pairwise adds neighbours;
    Tree.vector8 is halving inside of vectors of 8, then among them.

    Shapes: an order of 2**n terms; a rule fits any extent.
    Dtypes: of float sums; integers need none.
    Raises: TREE_NOT_A_PERMUTATION, TREE_WIDTH for an explicit order of other bits, ORDER_WANTED.

    >>> L.sum(x, over=N, tree=Tree((0, 1)))         # pairwise, written out
    [2.5, 5.25]
    >>> Tree((0, 2))
    [TREE_NOT_A_PERMUTATION]
    """

    order: tuple[int, ...]

    def __post_init__(self) -> None:
        if sorted(self.order) != list(range(len(self.order))):
            raise SpecError(Code.TREE_NOT_A_PERMUTATION, author(), order=self.order)

    halving = Rule.HALVING
    """Fold the upper half onto the lower: the cheapest order when high bits sit in registers."""

    pairwise = Rule.PAIRWISE
    """Neighbours first: every aligned block of 2**k terms is a subtree."""

    vector8 = Rule.VECTOR8
    """Eight neighbours first, then halving: a thread's 16-byte vector is one term before any exchange."""


Order = Rule | Tree


def padded(width: int) -> int:
    """Return the smallest power of two that is not less than width (1 for 0)."""
    return 1 << max(width - 1, 0).bit_length()


def bind(order: Order, width: int) -> Tree:
    """Return the tree that a rule means for 2**n terms; an explicit tree must fit the width."""
    if not is_power_of_two(width):
        raise SpecError(Code.TREE_WIDTH, author(), bits="log2", width=width)
    bits = width.bit_length() - 1
    match order:
        case Rule.HALVING:
            return Tree(tuple(reversed(range(bits))))
        case Rule.PAIRWISE:
            return Tree(tuple(range(bits)))
        case Rule.VECTOR8:
            vector = min(bits, 3)
            return Tree((*reversed(range(vector)), *reversed(range(vector, bits))))
        case Tree():
            if len(order.order) != bits:
                raise SpecError(Code.TREE_WIDTH, author(), bits=len(order.order), width=width)
            return order
