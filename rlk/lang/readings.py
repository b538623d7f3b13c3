"""The values that a traced program reads off its folds: log-sum-exps, means, entropies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rlk.ir.monoid import Kind
from rlk.ir.nodes import (
    Const,
    Fma,
    Fn1,
    Fn2,
    Let,
    Map1,
    Map2,
    Math,
    MathFn,
    Node,
    Result,
    Stream,
    Value,
    const_bits,
)
from rlk.ir.types import DType
from rlk.lang.folds import LN2


@dataclass(frozen=True, slots=True)
class Reading:
    """A value of a softmax fold. what: "lse", "entropy", or with a leading dot the mean of a payload."""

    stream: Value
    fold: int
    what: str


_LN2 = Const(const_bits(LN2, DType.F32))
_NO_MEANS = (".", ".max", ".sum", ".centred")


def component(stream: Stream, index: int) -> tuple[int | None, int]:
    """Return the fold that yields a result of a stream, and the index in its state; None: a carried value."""
    for i, fold in enumerate(stream.folds):
        if index < len(fold.yielded):
            return i, index
        index -= len(fold.yielded)
    return None, index


def first_result(stream: Stream, fold: int) -> int:
    """Return the index of the first component of a fold among the results of its stream."""
    return sum(len(f.yielded) for f in stream.folds[:fold])


def readings(lets: Mapping[Value, Let]) -> Iterator[tuple[Value, Reading]]:
    """Yield the values that are computed as `lse`, `mean` and `entropy` of the language compute them.

    lse: max + ln(sum); of a power sum fma(max, ln 2, ln(sum)). entropy: ln(sum) - centred / sum; of a power
    sum fma(-(centred / sum), ln 2, ln(sum)). mean: payload / sum.
    """
    for value, let in lets.items():
        match let.node:
            case Map2(fn=Fn2.ADD, a=m, b=log):
                fold, what = _same(_state(lets, m, "max"), _log_of_sum(lets, log)), "lse"
                kinds = {Kind.SOFTMAX_SUM}
            case Fma(a=m, b=factor, c=log) if _node(lets, factor) == _LN2 and _state(lets, m, "max"):
                fold, what = _same(_state(lets, m, "max"), _log_of_sum(lets, log)), "lse"
                kinds = {Kind.POWER_SUM}
            case Map2(fn=Fn2.SUB, a=log, b=mean):
                fold, what = _same(_log_of_sum(lets, log), _centred(lets, mean)), "entropy"
                kinds = {Kind.SOFTMAX_SUM}
            case Fma(a=minus, b=factor, c=log) if _node(lets, factor) == _LN2:
                node = _node(lets, minus)
                of = _centred(lets, node.x) if isinstance(node, Map1) and node.fn is Fn1.NEG else None
                fold, what = _same(_log_of_sum(lets, log), of), "entropy"
                kinds = {Kind.POWER_SUM}
            case Map2(fn=Fn2.DIV, a=a, b=b):
                fold, what = _same(_state(lets, a), _state(lets, b, "sum")), f".{_named(lets, a)}"
                kinds = {Kind.SOFTMAX_SUM, Kind.POWER_SUM}
            case _:
                continue
        if fold is not None and what not in _NO_MEANS and _kind(lets, *fold) in kinds:
            yield value, Reading(*fold, what)


def _node(lets: Mapping[Value, Let], value: Value) -> Node | None:
    """Return the node of a value; None of one that a stream carries."""
    return lets[value].node if value in lets else None


def _kind(lets: Mapping[Value, Let], stream: Value, fold: int) -> Kind:
    node = lets[stream].node
    assert isinstance(node, Stream)
    return node.folds[fold].monoid.kind


def _same(a: tuple[Value, int] | None, b: tuple[Value, int] | None) -> tuple[Value, int] | None:
    return a if a == b else None


def _log_of_sum(lets: Mapping[Value, Let], value: Value) -> tuple[Value, int] | None:
    node = _node(lets, value)
    return _state(lets, node.x, "sum") if isinstance(node, Math) and node.fn is MathFn.LOG else None


def _centred(lets: Mapping[Value, Let], value: Value) -> tuple[Value, int] | None:
    """Return the fold whose centred sum, divided by its sum, a value is."""
    node = _node(lets, value)
    if not isinstance(node, Map2) or node.fn is not Fn2.DIV:
        return None
    return _same(_state(lets, node.a, "centred"), _state(lets, node.b, "sum"))


def _named(lets: Mapping[Value, Let], value: Value) -> str:
    """Return the name of a component of a softmax fold's state; an empty text for other values."""
    node = _node(lets, value)
    stream = _node(lets, node.of) if isinstance(node, Result) else None
    if not isinstance(node, Result) or not isinstance(stream, Stream):
        return ""
    fold, index = component(stream, node.index)
    monoid = None if fold is None else stream.folds[fold].monoid
    if monoid is None or not monoid.is_softmax or index >= len(monoid.state):
        return ""
    return monoid.state[index]


def _state(lets: Mapping[Value, Let], value: Value, named: str = "") -> tuple[Value, int] | None:
    """Return the stream and the fold of which a value is a component, of any name if none is given."""
    found, node = _named(lets, value), _node(lets, value)
    if not found or named not in ("", found) or not isinstance(node, Result):
        return None
    stream = lets[node.of].node
    assert isinstance(stream, Stream)
    fold, _ = component(stream, node.index)
    return None if fold is None else (node.of, fold)
