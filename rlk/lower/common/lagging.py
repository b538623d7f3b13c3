"""A running maximum that most steps of an online softmax leave as it is, and the values made with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlk.ir.nodes import (
    Combine,
    Const,
    Fn2,
    Let,
    Loop,
    Map2,
    Math,
    MathFn,
    MathModel,
    Node,
    Reduce,
    Select,
    Value,
    const_value,
    operands,
)
from rlk.ir.online import SLACK
from rlk.ir.types import DType

BOUND = 2.0**SLACK
"""Numerators whose sum is below it leave the maximum: ex2.approx of sm_90 of SLACK or more is no less."""


@dataclass(frozen=True, slots=True)
class LaggingMaximum:
    """The maximum of a power_sum's step: `before`, unless a score exceeds it by more than SLACK.

    chunk: the maximum of the step's scores. maximum: the new one. subtracted: the same, but 0 for -inf.
    numerators: exp2(scores - subtracted), of which `total` is the sum. scaled: each rescaled sum, and the
    carried value that it equals, bit for bit, where the maximum stays.

    Numerators exp2(scores - before) whose sum is below BOUND prove that it stays: a sum of numbers >= 0 is
    no less than any of them, so each is below BOUND, so each difference, rounded, is below SLACK, so no score
    exceeds before + SLACK, rounded. (Where `before` is -inf they are inf or NaN, and prove nothing.)
    """

    before: Value
    chunk: Let
    maximum: Value
    subtracted: Value
    scores: Value
    numerators: Value
    total: Let
    scaled: tuple[tuple[Value, Value], ...]


def lagging_maximum(loop: Loop, nodes: Mapping[Value, Node]) -> LaggingMaximum | None:
    """Return the lagging maximum of a loop's step; None without one, or where others read its values.

    nodes: the nodes of all values of the kernel.
    """
    lets = {let.value: let for let in loop.body.lets}
    new = _one([let for let in loop.body.lets if _is_limited(let, nodes)])
    if new is None or not isinstance(new.node, Select):
        return None
    before, chunk = new.node.b, lets[new.node.a]
    safe = _one([let for let in _users(loop, new.value) if isinstance(let.node, Select)])
    if safe is None or not isinstance(safe.node, Select) or not isinstance(chunk.node, Reduce):
        return None
    comparison = [lets[safe.node.cond]] if safe.node.cond in lets else []
    differences = _users(loop, safe.value)
    if len(differences) != 2 or _users(loop, new.value) != [*comparison, safe]:
        return None
    scores = chunk.node.x
    numerators, alpha = (
        _one([x for each in differences if (x := _power(loop, each, of)) is not None])
        for of in (scores, before)
    )
    if numerators is None or alpha is None:
        return None
    total = _one([x for x in _users(loop, numerators.value) if isinstance(x.node, Reduce)])
    scaled = tuple((let.value, _factor(let, alpha.value)) for let in _users(loop, alpha.value))
    sums = tuple((value, of) for value, of in scaled if of is not None)
    if total is None or not isinstance(total.node, Reduce) or total.node.fn is not Combine.ADD:
        return None
    made = LaggingMaximum(before, chunk, new.value, safe.value, scores, numerators.value, total, sums)
    return made if len(sums) == len(scaled) else None


def _users(loop: Loop, value: Value) -> list[Let]:
    return [let for let in loop.body.lets if value in operands(let.node)]


def _one(found: list[Let]) -> Let | None:
    return found[0] if len(found) == 1 else None


def _is_limited(let: Let, nodes: Mapping[Value, Node]) -> bool:
    """Return whether a value is a maximum behind its limit: before + SLACK < chunk ? chunk : before."""
    match let.node:
        case Select(cond=cond, a=a, b=before):
            pass
        case _:
            return False
    match nodes.get(cond):
        case Map2(fn=Fn2.LT, a=limit, b=chunk) if chunk == a:
            pass
        case _:
            return False
    match nodes.get(limit), nodes.get(chunk):
        case Map2(fn=Fn2.ADD, a=x, b=slack), Reduce(fn=Combine.MAX):
            number = nodes.get(slack)
            known = isinstance(number, Const) and const_value(number.bits, DType.F32) == SLACK
            return x == before and known
        case _:
            return False


def _power(loop: Loop, difference: Let, of: Value) -> Let | None:
    """Return exp2(of - subtracted), if that is all that the difference is read for."""
    made = _one(_users(loop, difference.value))
    match difference.node, made and made.node:
        case Map2(fn=Fn2.SUB, a=a), Math(fn=MathFn.EXP2, model=MathModel.SM90) if a == of:
            return made
        case _:
            return None


def _factor(let: Let, by: Value) -> Value | None:
    """Return what a product multiplies by a value."""
    match let.node:
        case Map2(fn=Fn2.MUL, a=a, b=b):
            return a if b == by else b
        case _:
            return None
