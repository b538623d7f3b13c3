"""The fold states of streams; their arithmetic is in rlk.ir.fold, once, for every consumer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from rlk.ir.tree import Order, Rule


class Kind(Enum):
    """The state of a fold and what merging two states means."""

    TOTAL = "total"  # (sum)
    # (max, sum of e, if centred: sum of e * (z - max), sum of e * payload ...), e = exp2((z - max) * log2 e)
    SOFTMAX_SUM = "softmax_sum"
    POWER_SUM = "power_sum"  # the same of scores in units of ln 2: e = exp2(z - max)
    ARGMAX = "argmax"  # (max, its lowest index)
    TOP = "top"  # the three largest integers, the largest first; only for folds with `kept`
    LARGEST = "largest"  # (the largest number), by the order of `maximum`; a NaN is -inf
    # (the largest scores, the largest first; the index of each), the lower index first of equal scores
    TOP_K = "top_k"


@dataclass(frozen=True, slots=True)
class Monoid:
    """The state of a fold: its kind, the names of its payloads, and the tree that sums a chunk's lanes.

    A softmax_sum or a power_sum has a weighted sum for each payload. A total with a payload is a contraction:
    folds that do not restart at each chunk add its products to one accumulator.
    centred: the state of a softmax_sum or power_sum also has the sum of e * (z - max). The entropy of
    softmax(z) is computed from it: log sum exp z minus the mean of z would lose precision by cancellation.
    count: of a top_k, the number of scores.
    """

    kind: Kind
    payloads: tuple[str, ...] = ()
    lanes: Order = Rule.HALVING
    centred: bool = False
    count: int = 0

    @property
    def state(self) -> tuple[str, ...]:
        """The names of the components of a state."""
        match self.kind:
            case Kind.TOTAL:
                return ("sum",)
            case Kind.SOFTMAX_SUM | Kind.POWER_SUM:
                return ("max", "sum", *(("centred",) if self.centred else ()), *self.payloads)
            case Kind.ARGMAX:
                return ("max", "index")
            case Kind.LARGEST:
                return ("largest",)
            case Kind.TOP:
                return ("first", "second", "third")
            case Kind.TOP_K:
                return (*(f"best{i}" for i in range(self.count)), *(f"index{i}" for i in range(self.count)))

    @property
    def symbols(self) -> tuple[str, ...]:
        """The names of the components in generated text, as in the papers: m and l of a softmax."""
        match self.kind:
            case Kind.SOFTMAX_SUM | Kind.POWER_SUM:
                return ("m", "l", *self.state[2:])
            case Kind.TOTAL if self.payloads:
                return ("acc",)
            case Kind.TOTAL:
                return ("total",)
            case Kind.ARGMAX:
                return ("m", "index")
            case Kind.LARGEST | Kind.TOP | Kind.TOP_K:
                return self.state

    @property
    def piece_symbols(self) -> tuple[str, ...]:
        """The same of the state of one piece, beside that of those before it."""
        return tuple(f"acc_{n}" if n in self.payloads else f"{n}_piece" for n in self.symbols)

    @property
    def is_softmax(self) -> bool:
        """Return whether the sums are of terms times powers under a maximum, the state's first component."""
        return self.kind in (Kind.SOFTMAX_SUM, Kind.POWER_SUM)

    @property
    def contracts(self) -> bool:
        """Return whether the state is the accumulator of a contraction of all that is absorbed."""
        return self.kind is Kind.TOTAL and bool(self.payloads)

    def __str__(self) -> str:
        return f"{'centred ' * self.centred}{self.kind.value}{self.count or ''}({', '.join(self.payloads)})"
