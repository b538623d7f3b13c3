"""The comparison of two engines, and its report as text, JSON and files."""

from __future__ import annotations

import json
import os
import time
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from rlk.drift.chart import layers_of, svg
from rlk.drift.engine import Engine, Facts, Scores, Sequences, Unwatched
from rlk.drift.explain import explained
from rlk.drift.metrics import LogProbDrift, bars, log_prob_drift
from rlk.drift.operators import (
    ChangedExperts,
    Comparison,
    Difference,
    Recorder,
    Trace,
    compared,
    run_hooked,
    triggers,
)
from rlk.drift.parity import Finding, same_inputs
from rlk.observe import finite

EXPLAINED = 4096
"""Tokens whose logits are kept, to explain log-probs of an engine that cannot be hooked."""
LISTED = 8
"""Tokens of a router that the text names."""


@dataclass(frozen=True, slots=True)
class Report:
    """The comparison of engine b with engine a on the same tokens.

    findings: inputs that differ; unknown: inputs that one of them does not know. drift: of log-probs, None
    where none can be compared. operators: None where one of them cannot be hooked or inputs are not those of
    the same tokens. explanation: a known mistake that gives b's log-probs from a's logits, or one engine's
    from the other's where only the other can be hooked. depends: what a
    difference of the first operator depends on (batch, padding, chunk, page, rank, graph). offsets: of the
    sequences among a's tokens. facts: of both engines.
    """

    a: str
    b: str
    tokens: int
    sequences: int
    findings: tuple[Finding, ...]
    unknown: tuple[str, ...]
    drift: LogProbDrift | None
    operators: Comparison | None
    explanation: str | None
    depends: tuple[str, ...]
    seconds: float
    offsets: tuple[int, ...]
    facts: tuple[Facts, Facts]

    @property
    def cause(self) -> str | None:
        """Return the name of what makes the engines differ: an input, else an operator; None if nothing does.

        An input that makes two different functions comes first ("weights", "position ids"), then a dtype if
        operators differ by roundings alone, then an operator ("model.layers.0.mlp.down_proj").
        """
        serious = [f.kind for f in self.findings if f.serious]
        if serious:
            return serious[0]
        if self.operators is not None and (first := self.operators.cause) is not None:
            dtypes = [f.kind for f in self.findings if "dtype" in f.kind]
            return dtypes[0] if dtypes and first.verdict == "rounding" else first.name
        if self.drift is not None and self.drift.exact < 1.0:
            return next((f.kind for f in self.findings if "dtype" in f.kind), "log-probs")
        return None

    @property
    def equal(self) -> bool:
        """Return whether inputs are equal, and all log-probs and operators that were compared bit for bit."""
        exact = self.drift is not None and self.drift.exact == 1.0
        differs = self.operators is not None and bool(self.operators.local)
        return exact and not differs and not any(f.serious for f in self.findings)

    def place(self, token: int) -> tuple[int, int]:
        """Return the sequence of a token, numbered among all, and its place there."""
        sequence = bisect_right(self.offsets, token) - 1
        return sequence, token - self.offsets[sequence]

    def text(self) -> str:
        """Return the report as lines of text."""
        return "\n".join(_lines(self))

    def as_dict(self) -> dict[str, Any]:
        """Return the report as numbers and texts, for JSON; "nan", "inf" or "-inf" for such numbers."""
        local = () if self.operators is None else self.operators.local
        first = None if self.operators is None else self.operators.cause
        found = {
            "a": self.a, "b": self.b, "tokens": self.tokens, "sequences": self.sequences,
            "equal": self.equal, "cause": self.cause, "findings": [asdict(f) for f in self.findings],
            "not_compared": list(self.unknown),
            "log_probs": None if self.drift is None else asdict(self.drift),
            "first_divergent_operator": None if first is None else self._placed(first),
            "explanation": self.explanation, "depends_on": list(self.depends),
            "operators": [self._placed(d) for d in local],
            "changed_experts": [] if self.operators is None else [asdict(x) for x in self.operators.changed],
            "drift_by_operator": {} if self.operators is None else dict(self.operators.drift),
            "observed_on_one_side": [] if self.operators is None else list(self.operators.skipped),
            "seconds": self.seconds,
        }  # fmt: skip
        made: dict[str, Any] = finite(found)
        return made

    def _placed(self, d: Difference) -> dict[str, Any]:
        sequence, token = self.place(d.first)
        return {**asdict(d), "first_sequence": sequence, "first_token": token}

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write report.txt, report.json, drift.svg and the tensors of the first divergent operator.

        operator.safetensors holds its input and both results, [T, ...] each. Returns the files.
        """
        from safetensors.torch import save_file

        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        files = [place / "report.txt", place / "report.json"]
        files[0].write_text(self.text() + "\n", encoding="utf-8")
        files[1].write_text(json.dumps(self.as_dict(), indent=1, allow_nan=False), encoding="utf-8")
        if self.operators is not None:
            files.append(place / "drift.svg")
            files[-1].write_text(
                svg(f"Drift by layer: {self.b} against {self.a}", *layers_of(self.operators)),
                encoding="utf-8",
            )
            first = self.operators.cause
            if first is not None and (tensors := self.operators.tensors(first.name)):
                files.append(place / "operator.safetensors")
                save_file(tensors, files[-1], {"operator": first.name, "a": self.a, "b": self.b})
        return files


def compare(a: Engine, b: Engine, sequences: Sequences, *, clip: float = 0.2, depends: bool = True) -> Report:
    """Compare engine b with engine a on the same tokens: inputs first, then log-probs, then operators.

    clip: of the band of ratios. depends: run the first divergent operator again without batch, padding,
    chunks and so on, as the engines' `variants` allow. Log-probs and operators are compared where both read
    the same tokens; all that was not compared is in the report.
    """
    begin = time.perf_counter()
    hooked = bool(a.modules()) and bool(b.modules())
    first, mine = run_hooked(a, sequences) if hooked else (None, a.score(sequences, Unwatched()))
    free, other = run_hooked(b, sequences) if hooked else (None, b.score(sequences, Unwatched()))
    facts = (a.facts(), b.facts())  # each digests the weights
    findings, unknown = same_inputs((f"a ({a.name})", facts[0], mine), (f"b ({b.name})", facts[1], other))
    tokens = _same_tokens(mine, other)
    drift = log_prob_drift(mine, other, clip) if tokens else None
    operators: Comparison | None = None
    explanation: str | None = None
    found: tuple[str, ...] = ()
    if hooked and tokens and _same_tokens(mine, sequences):
        operators, found = _operators(a, b, sequences, first, free, findings, depends)
        if operators.cause is not None and operators.cause.name in ("log_probs", "logits"):
            explanation = _explained(sequences, operators, facts)
    if (operators is None or operators.cause is None) and drift is not None and drift.exact < 1.0:
        explanation = _explained_by_one((a, facts[0], mine), (b, facts[1], other))
    return Report(
        a.name, b.name, len(mine.tokens.ids), len(mine.tokens), findings, unknown, drift, operators,
        explanation, found, time.perf_counter() - begin, tuple(mine.tokens.cu_seqlens.tolist()), facts,
    )  # fmt: skip


def _same_tokens(a: Scores, b: Scores | Sequences) -> bool:
    x, y = a.tokens, b.tokens if isinstance(b, Scores) else b
    return torch.equal(x.ids, y.ids) and torch.equal(x.cu_seqlens, y.cu_seqlens)


def _operators(
    a: Engine, b: Engine, sequences: Sequences, first: Trace | None, free: Trace | None,
    findings: tuple[Finding, ...], depends: bool,
) -> tuple[Comparison, tuple[str, ...]]:  # fmt: skip
    assert first is not None and free is not None
    made = compared(first, free, run_hooked(b, sequences, first)[0])
    if not depends or made.cause is None or any(f.serious for f in findings):
        return made, ()
    return made, tuple(triggers(a, b, sequences, made.cause.name, first))


def _explained(sequences: Sequences, made: Comparison, facts: tuple[Facts, Facts]) -> str | None:
    """Explain the log-probs of b on the logits of a."""
    temperature = facts[1].temperature or facts[0].temperature or 1.0
    keep, name = sequences.has_next, "log_probs"
    mine, other = made.first.outputs.get(name), made.forced.outputs.get(name)
    z = made.first.inputs.get(name)
    if mine is None or other is None or z is None:
        return None
    if made.cause is not None and made.cause.name == "logits":  # b's own, which were exchanged
        other = torch.log_softmax(made.forced.inputs[name].double() / temperature, -1)
        other = other.gather(-1, sequences.next_ids[:, None].to(other.device))
    x, y = (t[keep.to(t.device)].flatten() for t in (mine, other))
    z, ids = z[keep.to(z.device)], sequences.next_ids[keep].to(z.device)
    return explained(z, ids, temperature, _at(facts[0], temperature, z, ids, x), y)


def _at(
    facts: Facts, temperature: float, z: torch.Tensor, ids: torch.Tensor, own: torch.Tensor
) -> torch.Tensor:
    """Return an engine's log-probs `own` of logits z as they are at a temperature, which may be another's.

    What the other engine did is told by its own temperature: that the two differ is a finding.
    """
    if temperature == (facts.temperature or 1.0):
        return own
    return torch.log_softmax(z.double() / temperature, -1).gather(-1, ids[:, None])[:, 0]


def _explained_by_one(a: tuple[Engine, Facts, Scores], b: tuple[Engine, Facts, Scores]) -> str | None:
    """Explain the log-probs of one engine on the logits of the other, the only one that can be hooked."""
    for word, (engine, facts, known), (_, declared, of) in (("a", b, a), ("b", a, b)):
        if not engine.modules():
            continue
        lists = of.tokens.lists()
        ends = of.tokens.cu_seqlens[1:]
        some = Sequences.of(lists[: max(1, int((ends <= EXPLAINED).sum()))])
        recorder = Recorder(engine, len(some.ids))
        engine.score(some, recorder)
        z, own = (kept.get("log_probs") for kept in (recorder.trace.inputs, recorder.trace.outputs))
        if z is None or own is None:
            return None
        both = (of.known & known.known & of.logps.isfinite())[: len(some.ids)]
        rows = (some.has_next & both.roll(-1)).nonzero().flatten()
        z, own = z[rows.to(z.device)].cpu(), own[rows.to(own.device)].flatten().cpu()
        temperature = declared.temperature or facts.temperature or 1.0
        ids = some.next_ids[rows]
        text = explained(z, ids, temperature, _at(facts, temperature, z, ids, own), of.logps[rows + 1])
        return None if text is None else f"in {word}, {text}"
    return None


# --- text ---------------------------------------------------------------------------------------------------


def _lines(r: Report) -> Iterator[str]:
    yield f"a: {r.a}"
    yield f"b: {r.b}"
    yield f"{r.tokens} tokens in {r.sequences} sequences"
    yield ""
    yield "inputs"
    for f in r.findings:
        yield f"  {'DIFFERENT' if f.serious else 'rounding'}  {f.kind}: {f.message}"
    if not r.findings:
        yield "  equal where compared" if r.unknown else "  equal"
    if r.unknown:
        yield f"  not compared, since one side does not know them: {', '.join(r.unknown)}"
    yield ""
    yield "log-probs of b less those of a"
    yield from _drift(r)
    yield ""
    yield "operators, b's on a's inputs"
    yield from _differences(r)
    if r.operators is not None and r.operators.changed:
        yield ""
        yield "experts, of whole runs"
        for x in r.operators.changed[:12]:
            yield from (f"  {line}" for line in _changes(x, r))
        if (more := len(r.operators.changed) - 12) > 0:
            yield f"  and {more} more routers"
    yield ""
    yield f"result: {_result(r)}"


def _drift(r: Report) -> Iterator[str]:
    d = r.drift
    if d is None:
        yield "  not compared: the engines read different tokens, or one gave no log-probs"
        return
    yield f"  {d.tokens} tokens: {100 * d.exact:.2f} % with equal bits"
    if d.exact == 1.0:
        return
    if d.not_finite:
        yield f"  {d.not_finite} tokens differ by infinity or NaN, which are not in what follows"
    levels = ", ".join(f"{100 * float(q):g} %: {x:.2e}" for q, x in d.quantiles.items())
    yield f"  |d|: mean {d.mean:.2e}, largest {d.largest:.2e}; quantiles {levels}"
    yield f"  KL(a, b) in nats: k1 {d.k1:.2e}, k2 {d.k2:.2e}, k3 {d.k3:.2e}"
    yield f"  ratios outside of [{1 - d.clip:g}, {1 + d.clip:g}]: {100 * d.clipped:.2f} %"
    if d.distance is not None:
        share = 100 * (d.unequal or 0.0)
        yield f"  distributions: {share:.2f} % unequal, distance at most about {d.distance:.1e}"
    places = ", ".join(f"{i}-{j}: {x:.1e}" for i, j, x, _ in d.by_position)
    yield f"  mean |d| by position: {places}"
    worst = max(range(len(d.by_sequence)), key=lambda i: d.by_sequence[i][1])
    mean, largest, total = d.by_sequence[worst]
    yield f"  worst sequence, {worst}: mean {mean:.2e}, largest {largest:.2e}, sum of d {total:+.2e}"
    yield from (f"  {line}" for line in bars(d.histogram))


def _differences(r: Report) -> Iterator[str]:
    if r.operators is None:
        yield "  not compared: modules of both must be at hand, and the tokens the same"
        return
    for d in r.operators.local[:12]:
        yield f"  {d.name}: {_described(d, r)}"
    if not r.operators.local:
        yield f"  all {len(r.operators.drift)} have equal bits"
    if (more := len(r.operators.local) - 12) > 0:
        yield f"  and {more} more"
    if r.operators.skipped:
        count = len(r.operators.skipped)
        yield f"  {count} modules are observed on one side alone, and compared as parts of what follows them"


def _described(d: Difference, r: Report) -> str:
    if d.verdict == "not called":
        return "not called in b"
    size = f"{d.ulps:.2g} ulps, {d.relative:.1e} of a token's norm, {100 * d.share:.2g} % of elements"
    sequence, token = r.place(d.first)
    return f"{d.verdict} ({size}, {d.tokens} tokens, first sequence {sequence}, token {token})"


def _changes(x: ChangedExperts, r: Report) -> Iterator[str]:
    """Yield which tokens of a router changed experts, by how little, and through what."""

    def places(tokens: tuple[int, ...]) -> str:
        each = ", ".join("sequence {}, token {}".format(*r.place(t)) for t in tokens[:LISTED])
        return each + (f" and {len(tokens) - LISTED} more" if len(tokens) > LISTED else "")

    at = "sequence {}, token {}".format(*r.place(x.closest))
    count = f"{len(x.tokens)} of {x.total} tokens changed experts"
    yield f"{x.router}: {count}; the smallest gap of scores is {x.gap:.2e}, at {at}"
    inherited = tuple(t for t in x.tokens if t not in set(x.own))
    if x.own:
        yield f"  {len(x.own)} on equal inputs, by the router itself: {places(x.own)}"
    if inherited:
        yield f"  {len(inherited)} because its input differs: {places(inherited)}"


def _result(r: Report) -> str:
    if r.cause is None:
        return "no difference" if r.drift is not None else "nothing was compared"
    first = None if r.operators is None else r.operators.cause
    if first is None or first.name != r.cause:
        return f"{r.cause} (see above)" + (
            f"; {r.explanation}" if r.operators is None and r.explanation else ""
        )
    text = f"{r.cause}: {first.verdict}"
    if r.explanation:
        text += f"; {r.explanation}"
    if r.depends:
        text += f"; depends on: {', '.join(r.depends)}"
    return text
