"""Equality of the inputs of two engines: tokens, positions, masks, temperature, dtypes and weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from rlk.drift.engine import Facts, Scores, Sequences

Kind = Literal[
    "token ids", "special tokens", "vocabulary", "padding side", "position ids", "mask", "temperature",
    "temperature stage", "dtype", "logits dtype", "weights", "log-probs",
]  # fmt: skip
NAMED = 8  # tensors or sequences, of those that differ


@dataclass(frozen=True, slots=True)
class Finding:
    """An input that differs. serious: the engines compute different functions; else they round differently.

    names: the tensors, of weights.
    """

    kind: Kind
    message: str
    serious: bool = True
    names: tuple[str, ...] = ()


def same_inputs(
    a: tuple[str, Facts, Scores], b: tuple[str, Facts, Scores]
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Compare the inputs of two engines, each given as its name, facts and scores.

    Returns the findings, and the kinds that one of the engines does not know, which were not compared.
    """
    (first, facts, scores), (second, others, theirs) = a, b
    tokens = list(_tokens(first, scores.tokens, second, theirs.tokens, facts, others))
    found, unknown = list(tokens), []
    for kind, compare in (
        ("special tokens", _special(first, facts, second, others)),
        ("vocabulary", _setting("vocabulary", first, facts.vocabulary, second, others.vocabulary)),
        ("temperature", _setting("temperature", first, facts.temperature, second, others.temperature)),
        ("temperature stage", _stage(first, facts, second, others)),
        ("dtype", _dtype("dtype", first, facts.dtype, second, others.dtype)),
        ("logits dtype", _dtype("logits dtype", first, facts.logits_dtype, second, others.logits_dtype)),
        ("weights", _weights(first, facts, second, others)),
        ("padding side", _padding(first, facts, second, others)),
    ):
        if compare is None:
            unknown.append(kind)
        else:
            found += compare
    if not tokens:
        for kind, mine, other, word in (
            ("position ids", scores.positions, theirs.positions, "is at position"),
            ("mask", scores.context, theirs.context, "sees this many keys:"),
        ):
            if mine is None or other is None:
                unknown.append(kind)
            else:
                found += _numbers(kind, word, first, mine, second, other, scores.tokens)  # type: ignore[arg-type]
        for name, each in ((first, scores), (second, theirs)):
            found += _given(name, each)
    return tuple(found), tuple(unknown)


def _tokens(
    first: str, mine: Sequences, second: str, other: Sequences, facts: Facts, others: Facts
) -> Iterator[Finding]:
    if len(mine) != len(other):
        text = f"{first} read {len(mine)} sequences, {second} {len(other)}: give both the same batch"
        yield Finding("token ids", text)
        return
    special = {i: name for f in (others, facts) for name, i in f.special.items()}
    for i, (x, y) in enumerate(zip(mine.lists(), other.lists(), strict=True)):
        if x == y:
            continue
        longer, shorter, who = (x, y, first) if len(x) > len(y) else (y, x, second)
        extra = longer[: len(longer) - len(shorter)]
        if extra and longer[len(extra) :] == shorter and extra[-1] in special:
            names = ", ".join(special.get(t, str(t)) for t in extra)
            text = f"sequence {i}: {who} has {len(extra)} more at the start: {names} (id {extra[0]})"
            yield Finding("special tokens", f"{text}; tokenize once, and hand ids to both")
        elif extra and longer[: len(shorter)] == shorter and longer[len(shorter)] in special:
            token = longer[len(shorter)]
            text = f"sequence {i}: {who} has {len(extra)} more at the end: {special[token]} (id {token})"
            yield Finding("special tokens", f"{text}; count the same tokens on both sides")
        elif extra and longer[len(extra) :] == shorter:
            text = f"sequence {i}: {who} has {len(extra)} more tokens at the start, from id {extra[0]} on"
            yield Finding("token ids", f"{text}: the other truncated its prompt")
        else:
            at = next((t for t, pair in enumerate(zip(x, y)) if pair[0] != pair[1]), min(len(x), len(y)))
            pair = [s[at] if at < len(s) else "none" for s in (x, y)]
            text = f"sequence {i}, token {at}: id {pair[0]} in {first}, {pair[1]} in {second}"
            yield Finding("token ids", f"{text} (lengths {len(x)}, {len(y)}); do not tokenize text again")
        return


def _special(first: str, facts: Facts, second: str, others: Facts) -> list[Finding] | None:
    if not facts.special or not others.special:
        return None
    both = sorted({*facts.special} & {*others.special})
    return [
        Finding("special tokens", f"{n} is id {facts.special[n]} in {first}, {others.special[n]} in {second}")
        for n in both
        if facts.special[n] != others.special[n]
    ]


def _setting(kind: Any, first: str, mine: Any, second: str, other: Any) -> list[Finding] | None:
    if mine is None or other is None:
        return None
    text = f"{mine} in {first}, {other} in {second}"
    hints = {
        "vocabulary": "padded rows of a head are in the sum of the softmax: cut them off",
        "temperature": "log-probs of a rollout are those of temperature T only if both divide logits by T",
    }
    return [] if mine == other else [Finding(kind, f"{text}; {hints[kind]}")]


def _stage(first: str, facts: Facts, second: str, others: Facts) -> list[Finding] | None:
    if facts.stage is None or others.stage is None:
        return None
    if facts.stage == others.stage or facts.temperature != others.temperature or facts.temperature == 1.0:
        return []
    text = f"{first} divides {facts.stage} by the temperature, {second} divides {others.stage}"
    return [Finding("temperature stage", f"{text}; divide logits, before the softmax, on both sides")]


def _dtype(kind: Any, first: str, mine: str | None, second: str, other: str | None) -> list[Finding] | None:
    if mine is None or other is None:
        return None
    text = f"{mine} in {first}, {other} in {second}: every result is rounded differently"
    return [] if mine == other else [Finding(kind, text, serious=False)]


def _padding(first: str, facts: Facts, second: str, others: Facts) -> list[Finding] | None:
    if facts.padding is None or others.padding is None:
        return None
    text = f"{facts.padding} in {first}, {others.padding} in {second}"
    note = "equal positions and masks make it the same function, in other shapes of calls"
    return [] if facts.padding == others.padding else [Finding("padding side", f"{text}; {note}", False)]


def _weights(first: str, facts: Facts, second: str, others: Facts) -> list[Finding] | None:
    mine, other = facts.weights, others.weights
    dtypes = {facts.dtype, others.dtype}
    if not mine or not other or (None not in dtypes and len(dtypes) > 1):
        return None
    found = []
    for name, has, lacks in ((first, mine, other), (second, other, mine)):
        if gone := tuple(n for n in has if n not in lacks):
            text = f"{len(gone)} tensors are in {name} alone: {_some(gone)}"
            found.append(Finding("weights", f"{text}; untied or renamed on one side", True, gone))
    if wrong := tuple(n for n in mine if n in other and mine[n] != other[n]):
        text = f"{len(wrong)} of {len(mine)} tensors have other bits: {_some(wrong)}"
        hint = (
            "send the weights again"
            if len(wrong) > 1
            else "send this tensor again, or look at its conversion"
        )
        hint += "; or their dtypes differ, which one side does not say" if None in dtypes else ""
        found.append(Finding("weights", f"{text}; {hint}", True, wrong))
    return found


def _some(names: Sequence[object]) -> str:
    rest = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(map(str, names[:NAMED])) + rest


def _numbers(
    kind: Kind, word: str, first: str, mine: torch.Tensor, second: str, other: torch.Tensor, tokens: Sequences
) -> Iterator[Finding]:
    wrong = (mine != other).nonzero().flatten()
    if not len(wrong):
        return
    at = int(wrong[0])
    place = f"sequence {int(tokens.owners[at])}, token {int(tokens.places[at])}"
    pair = f"{int(mine[at])} in {first}, {int(other[at])} in {second}"
    text = f"{len(wrong)} of {len(mine)} differ; {place} {word} {pair}"
    hints = {
        "position ids": "count positions from 0 at the first token that is no padding",
        "mask": "mask padding, and nothing else",
    }
    yield Finding(kind, f"{text}; {hints[kind]}")


def _given(name: str, scores: Scores) -> Iterator[Finding]:
    """Yield what an engine owes: log-probs that are NaN, and sequences without any."""
    tokens, missing = scores.tokens, scores.known & scores.logps.isnan()
    if bool(missing.any()):
        at = int(missing.nonzero()[0])
        owners = tokens.owners[missing].unique().tolist()
        place = f"first sequence {int(tokens.owners[at])}, token {int(tokens.places[at])}"
        text = (
            f"{name} has {int(missing.sum())} tokens without a log-prob (NaN), in sequences {_some(owners)}"
        )
        yield Finding(
            "log-probs", f"{text}; {place}; look for overflow there, or for a sampler that gave none"
        )
    parts = scores.known.split(tokens.lengths)
    if empty := [i for i, part in enumerate(parts) if len(part) > 1 and not bool(part.any())]:
        text = f"{name} has no log-prob at all of sequences {_some(empty)}"
        yield Finding("log-probs", f"{text}; let the sampler return them")
