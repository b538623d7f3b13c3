"""A run that counts what was compared, operator by operator, and keeps the first difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from rlk.nn import CausalLM
from rlk.testing.digests import bits_of, row_digests
from rlk.verify.trace import Trace, modules_of, operator_of
from rlk.verify.views import Run, Span, packed

LOGITS = "logits"


@dataclass(frozen=True, slots=True)
class Value:
    """One number where two runs differ. what: whose result. ulps: units in the last place between the two."""

    what: str
    column: int
    got: float
    want: float
    got_bits: str
    want_bits: str
    ulps: int
    differing: int
    of: int


@dataclass(frozen=True, slots=True)
class First:
    """The first difference of a view: its place, the first operator inside that differs, and values of both.

    where: "sequence 3, token 17". inside: the name of a module, None if none was watched or none differs.
    """

    where: str
    inside: str | None
    operator: str | None
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Experts:
    """Tokens whose experts were compared with training's. changed: how many had others, in some layer.

    first: the first of these in the order of the view, "sequence 3, token 17", and first_layer the lowest
    layer in which it had others; None without any. by_layer: how many had others in each layer. Layers
    without experts are not counted.
    """

    compared: int
    changed: int
    first: str | None
    first_layer: int | None
    by_layer: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Tally:
    """Counts of a view. operators: rows compared and rows that differ, by operator.

    traced: modules are compared too. unseen: those of which some call had no results, or training none.
    experts: of a model that has some.
    """

    traced: bool = False
    compared: int = 0
    unequal: int = 0
    values: int = 0
    operators: dict[str, list[Any]] = field(default_factory=dict)
    first: First | None = None
    pending: Callable[[], First] | None = None
    unseen: dict[str, None] = field(default_factory=dict)
    experts: Experts | None = None

    def add(self, operator: str, wrong: Tensor) -> None:
        """Count rows of an operator's result. wrong: bool [n]; nothing waits for the device."""
        entry = self.operators.setdefault(operator, [0, 0])
        entry[0] += len(wrong)
        entry[1] = entry[1] + wrong.sum()

    def add_experts(self, flipped: Tensor, place: Callable[[int], str]) -> None:
        """Count tokens with other experts. flipped: bool [n, layers]. place: says what a row is."""
        by_layer = flipped.sum(0).tolist()
        before = self.experts or Experts(0, 0, None, None, (0,) * len(by_layer))
        first, layer, changed = before.first, before.first_layer, 0
        if any(by_layer):
            changed = int(flipped.any(1).sum())
            if first is None:
                row, layer = (int(x) for x in flipped.nonzero()[0])
                first = place(row)
        sums = tuple(a + b for a, b in zip(before.by_layer, by_layer, strict=True))
        self.experts = Experts(before.compared + len(flipped), before.changed + changed, first, layer, sums)

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return the counts of operators as numbers."""
        return {name: (int(n), int(bad)) for name, (n, bad) in self.operators.items()}


@dataclass(eq=False)  # no slots: super() needs the class that is written here
class Watched(Run):
    """A run whose comparisons are counted. inside: digests of modules' results in training, by sequence."""

    trace: Trace = field(default_factory=Trace)
    inside: list[dict[str, Tensor]] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)

    @cached_property
    def modules(self) -> tuple[str, ...]:
        """Return the names of the modules whose results are compared."""
        return tuple(name for name, _ in modules_of(self.model))

    def learn(self, spans: Sequence[Span], hidden: Tensor) -> None:
        super().learn(spans, hidden)
        counts = [n for *_, n in spans]
        made: list[dict[str, Tensor]] = [{} for _ in spans]
        for name, y in self.trace.rows(sum(counts), None).items():
            for held, part in zip(made, row_digests(y).split(counts), strict=True):
                held[name] = part
        self.inside += made

    def forget(self) -> None:
        super().forget()
        self.inside = []

    @contextmanager
    def using(self, model: CausalLM) -> Iterator[None]:
        with super().using(model), self.trace.of(model):
            yield

    def see(self, spans: Sequence[Span], hidden: Tensor, rows: Tensor | None = None) -> Tensor:
        self.compare_experts(spans, rows)
        picked = hidden.detach() if rows is None else hidden.detach()[rows]
        return self.judge(
            spans, self.digests(picked), rows, lambda k: self.model.logits(picked[k : k + 1])[0]
        )

    def judge(
        self,
        spans: Sequence[Span],
        digests: Tensor,
        rows: Tensor | None,
        logits_of: Callable[[int], Tensor],
    ) -> Tensor:
        """Return which tokens have other logits than in training, by their digests; note the first of them.

        logits_of: returns the f32 logits [V] of the k-th token.
        """
        parts = digests.split([n for *_, n in spans])
        wrong = torch.cat([self.differs(i, a, x) for (i, a, _), x in zip(spans, parts, strict=True)])
        self.tally.values += len(wrong) * self.model.config.vocab_size
        self.tally.add(LOGITS, wrong)
        watched = self._compare_modules(spans, len(wrong), rows)
        if self.tally.pending is None and (
            bool(wrong.any()) or any(bool(w.any()) for w, _ in watched.values())
        ):
            self._note(spans, wrong, watched, logits_of)
        return wrong

    def _compare_modules(
        self, spans: Sequence[Span], count: int, rows: Tensor | None
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """Return which rows of each module's result differ, and that result; note modules without any."""
        found = {}
        for name, y in self.trace.rows(count, rows).items():
            if all(name in self.inside[i] for i, *_ in spans):
                want = torch.cat([self.inside[i][name][a : a + n] for i, a, n in spans])
                found[name] = (row_digests(y) != want, y)
                self.tally.values += y.numel()
                self.tally.add(operator_of(name) or name, found[name][0])
        if self.tally.traced:
            self.tally.unseen |= dict.fromkeys(name for name in self.modules if name not in found)
        return found

    def _note(
        self,
        spans: Sequence[Span],
        wrong: Tensor,
        watched: dict[str, tuple[Tensor, Tensor]],
        logits_of: Callable[[int], Tensor],
    ) -> None:
        """Keep the first token that differs, to be compared with training once the view has ended."""
        inner = torch.stack([wrong, *(w for w, _ in watched.values())]).any(0)
        k = int((wrong if bool(wrong.any()) else inner).nonzero()[0])
        i, at = [(i, a + t) for i, a, n in spans for t in range(n)][k]
        inside = next((name for name, (bad, _) in watched.items() if bool(bad[k])), None)
        with torch.no_grad():
            got = {LOGITS: logits_of(k).detach().clone()}
        if inside is not None:
            got[inside] = watched[inside][1][k].clone()
        self.tally.pending = lambda: self._first(i, at, inside, got)

    def _first(self, i: int, at: int, inside: str | None, got: dict[str, Tensor]) -> First:
        group = next(g for g in self.groups(self.trained, self.sizes.call) if i in g)
        before = sum(len(self.sequences[j]) for j in group[: group.index(i)]) + at
        with torch.no_grad(), self.trace.of(self.model) as trace:
            hidden = packed(self, group)
            rows = trace.rows(len(hidden), None)
            want = {LOGITS: self.model.logits(hidden[before : before + 1])[0]}
            if inside is not None:
                want[inside] = rows[inside][before]
        names = [name for name in (inside, LOGITS) if name is not None]
        values = tuple(v for name in names if (v := value_of(name, got[name], want[name])) is not None)
        operator = LOGITS if inside is None else operator_of(inside)
        return First(f"sequence {i}, token {at}", inside, operator, values)

    def match(self, got: Tensor, want: Tensor, place: Callable[[int], str]) -> Tensor:
        wrong = super().match(got, want, place)
        self.tally.values += got.numel()
        if self.tally.pending is None and bool(wrong.any()):
            k = int(wrong.nonzero()[0])
            where, rows = place(k), (got[k].detach().clone(), want[k].detach().clone())
            found = value_of(where, *rows)
            self.tally.pending = lambda: First(where, None, None, () if found is None else (found,))
        return wrong

    def match_experts(self, got: Tensor, want: Tensor, place: Callable[[int], str]) -> Tensor:
        flipped = super().match_experts(got, want, place)
        self.tally.add_experts(flipped, place)
        return flipped

    def missing(self, rows: int, what: str) -> Tensor:
        if self.tally.pending is None:
            self.tally.pending = lambda: First(what, None, None, ())
        return super().missing(rows, what)


def value_of(what: str, got: Tensor, want: Tensor) -> Value | None:
    """Return the first element where two rows have other bits, None if there is none. Raises ValueError.

    Both are of one dtype: bf16, f16 or f32.
    """
    if got.dtype != want.dtype or got.shape != want.shape:
        raise ValueError(f"{what}: {got.dtype}{list(got.shape)} against {want.dtype}{list(want.shape)}")
    a, b = (bits_of(x).cpu().to(torch.int64) for x in (got, want))
    other = (a != b).nonzero().flatten()
    if not len(other):
        return None
    j, bits = int(other[0]), 8 * got.element_size()
    low = (int(x[j]) & ((1 << bits) - 1) for x in (a, b))
    got_bits, want_bits = (f"0x{x:0{bits // 4}x}" for x in low)
    ulps = abs(_ordered(int(a[j]), bits) - _ordered(int(b[j]), bits))
    return Value(
        what, j, float(got[j]), float(want[j]), got_bits, want_bits, ulps, len(other), got.numel()
    )  # fmt: skip


def _ordered(signed: int, bits: int) -> int:
    """Return an integer that orders floats by their value, of a pattern as a signed integer."""
    return signed if signed >= 0 else -(signed + (1 << (bits - 1)))
