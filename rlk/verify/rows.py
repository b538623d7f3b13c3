"""Runners of the contract's rows: comparisons of bits, errors against float64, measurements."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

import rlk
from rlk.nn import RouteLog
from rlk.observe import hooked, positions_of
from rlk.testing.digests import row_digests
from rlk.verify import peers, views
from rlk.verify.bench import Bench, Outcome
from rlk.verify.peers import Peer, PeerView
from rlk.verify.trace import Trace
from rlk.verify.views import Span, View
from rlk.verify.watched import Tally

NOT_FINITE = "log-probs whose difference is not finite"
OTHER_EXPERTS, LEFT_OUT = "tokens with other experts", "tokens left out"
ACCURACY_TOKENS = 1024  # of all, whose errors are taken
Row = Callable[[Bench, float], Outcome]
"""Runs a row of the contract until a time (of time.monotonic), at least once."""


# --- bits ---------------------------------------------------------------------------------------------------


def compared(
    view: View, most: int | None = None, *, traced: bool = True, until_difference: bool = False
) -> Row:
    """Return the row that compares a view with training. most: tokens, None for one pass over all.

    traced: compare the results of modules too. until_difference: go on beyond `most` until something differs.
    """

    def run(bench: Bench, deadline: float) -> Outcome:
        model = bench.run.model if traced else None
        return _outcome(
            bench, lambda: view(bench.run), model, most, deadline, until_difference=until_difference
        )

    return run


def patched(view: PeerView, most: int | None) -> Row:
    """Return the row that compares a view of a patched model of transformers with rlk.nn in training.

    most: tokens, None for one pass over all.
    """

    def run(bench: Bench, deadline: float) -> Outcome:
        watched = bench.run

        def see(spans: Sequence[Span], logits: Tensor, rows: Tensor | None) -> Tensor:
            flat = logits.detach()
            return watched.judge(spans, row_digests(flat), rows, lambda k: flat[k])

        peer = Peer(bench.stock, watched.trained_sequences, see, bench.sizes.call)
        with rlk.patch(bench.stock):
            return _outcome(bench, lambda: view(peer), bench.stock, most, deadline)

    return run


def patched_gradients(bench: Bench, deadline: float) -> Outcome:
    """Compare gradients of a patched model with those of rlk.nn, row by row of their parameters."""
    run = bench.run
    want = views.gradients_of(run)
    sequences = [run.sequences[i] for i in views.micro_batch(run)]
    with rlk.patch(bench.stock) as model, _every_id_is_real(bench.stock):
        ids, mask, _ = views.padded_ids(sequences, "left", extra=3)
        positions = positions_of(mask)
        logp = model.logps(ids, attention_mask=mask, position_ids=positions).logp
        assert logp is not None
        (logp.sum() / sum(map(len, sequences))).backward()
        got = peers.taken_gradients(bench.stock)
    return _matched(bench, got, want)


def _matched(bench: Bench, got: dict[str, Tensor], want: dict[str, Tensor]) -> Outcome:
    def view() -> Iterator[Tensor]:
        yield views.matched(bench.run, got, want)

    return _outcome(bench, view, None, None, math.inf)


@contextmanager
def _every_id_is_real(model: Any) -> Iterator[None]:
    """Let the padding id have a gradient meanwhile, which torch leaves out: random ids hold it."""
    embedding = model.get_input_embeddings()
    own, embedding.padding_idx = embedding.padding_idx, None
    try:
        yield
    finally:
        embedding.padding_idx = own


def _outcome(
    bench: Bench,
    view: Callable[[], Iterator[Tensor]],
    model: torch.nn.Module | None,
    most: int | None,
    deadline: float,
    *,
    until_difference: bool = False,
) -> Outcome:
    """Run a view until a number of tokens or a time, at least once, and return what was counted.

    model: whose modules are compared with those of rlk.nn in training, None for none. until_difference: the
    number of tokens ends the row only where something differs.
    """
    tally = bench.run.tally = Tally(traced=model is not None)
    how = nullcontext() if model is None else bench.run.trace.of(model)
    complete = True
    with how:
        found = view()
        for wrong in found:
            tally.compared += len(wrong)
            tally.unequal += int(wrong.sum())
            enough = most is not None and tally.compared >= most
            if enough and not (until_difference and tally.unequal == 0 and not tally.pending):
                break
            if time.monotonic() > deadline:
                complete = False
                break
        found.close()  # type: ignore[attr-defined]  # a control puts its model back
    first = None if tally.pending is None else tally.pending()
    return Outcome(
        tally.compared,
        tally.unequal,
        tally.values,
        tally.counts(),
        first,
        complete=complete,
        unseen=tuple(tally.unseen),
        experts=tally.experts,
    )


# --- errors against float64 ---------------------------------------------------------------------------------


def accuracy(bench: Bench, deadline: float, *, what: str) -> Outcome:
    """Return the error of whole logits against float64, and that of transformers in the same dtype.

    what: the figure of the row, "root_mean_square" of all, or "largest" of each token, their mean. Of a model
    of experts roundings alone are compared: tokens that a change of experts reaches are left out and counted.
    """
    found = bench.once("errors", partial(_errors, deadline=deadline))
    figures = found.log_probs | found.experts
    if len(found.ours):
        both = _figure(found.ours, what), _figure(found.theirs, what)
        ratio = both[0] / both[1] if both[1] else 1.0
        figures = {"rlk": both[0], "transformers": both[1], "ratio": ratio, **figures}
    return Outcome(
        len(found.ours), 0, found.ours.numel(), figures=figures, profile=found.profile,
        complete=found.complete,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class _Errors:
    """Errors of logits [T, V] against float64, the largest of log-probs, and those of modules.

    experts: of a model of experts, how many tokens have others than in float64, and how many are left out.
    """

    ours: Tensor
    theirs: Tensor
    log_probs: dict[str, float]
    experts: dict[str, float]
    profile: tuple[tuple[str, float, float], ...]
    complete: bool


def _errors(bench: Bench, deadline: float) -> _Errors:
    """Run sequences by all three models until a time, one at least."""
    complete = True
    ours: list[Tensor] = []
    theirs: list[Tensor] = []
    log_ours: list[Tensor] = []
    log_theirs: list[Tensor] = []
    profile: dict[str, list[Tensor]] = {}
    of_experts = bench.run.model.config.experts is not None
    other = left_out = 0
    with torch.no_grad():
        for ids in _some(bench.run.sequences):
            exact, inside, exact_ids = _stock_logits(bench.exact, ids)
            eager, eager_inside, eager_ids = _stock_logits(bench.eager, ids)
            log = RouteLog() if of_experts else None
            with bench.run.trace.of(bench.run.model) as trace:
                own = bench.run.model.logits(bench.run.model(ids, routes=log))
                own_inside = trace.rows(len(ids), None)
            keep = torch.ones(len(ids), dtype=torch.bool, device=ids.device)
            if log is not None:
                flipped = _flipped(log.routes().ids.long(), exact_ids) | _flipped(eager_ids, exact_ids)
                last = bench.run.model.config.num_hidden_layers - 1
                keep = unreached(flipped, last_is_read=bench.run.model.config.is_dense(last))
                other, left_out = other + int(flipped.any(1).sum()), left_out + int((~keep).sum())
            for found, errors, logs in ((own, ours, log_ours), (eager, theirs, log_theirs)):
                errors.append((found.double() - exact).abs()[keep])
                logs.append((peers.chosen(found, ids).double() - peers.chosen(exact, ids)).abs()[keep[:-1]])
            for name, want in inside.items():
                squares = [((x[name].double() - want)[keep] ** 2).sum() for x in (own_inside, eager_inside)]
                want = want[keep]
                profile.setdefault(name, []).append(torch.stack([*squares, (want**2).sum()]))
            if time.monotonic() > deadline:
                complete = False
                break
    figures = {}
    for name, logs in (("rlk", log_ours), ("transformers", log_theirs)):
        joined = torch.cat(logs)
        figures[f"largest error of log-probs, {name}"] = float(joined.max()) if len(joined) else 0.0
    errors_by_module = tuple((name, *_relative(torch.stack(x).sum(0))) for name, x in profile.items())
    counts = {OTHER_EXPERTS: float(other), LEFT_OUT: float(left_out)} if of_experts else {}
    return _Errors(torch.cat(ours), torch.cat(theirs), figures, counts, errors_by_module, complete)


def _flipped(ids: Tensor, exact: Tensor) -> Tensor:
    """Return in which layers tokens have other experts, bool [T, layers], of ascending ids [T, layers, k]."""
    return (ids != exact).any(-1)


def unreached(flipped: Tensor, *, last_is_read: bool) -> Tensor:
    """Return which tokens of a sequence no change of experts reaches, bool [T].

    flipped: bool [T, layers of experts]. A token is reached by its own, and through attention by those of
    tokens before it in all layers but the model's last, whose result no attention reads. last_is_read:
    whether the last layer of experts is another one.
    """
    read = flipped if last_is_read else flipped[:, :-1]
    before = read.any(1).cumsum(0) - read.any(1).long()
    return ~flipped.any(1) & (before == 0)


def _figure(errors: Tensor, what: str) -> float:
    return float(errors.square().mean().sqrt() if what == "root_mean_square" else errors.amax(-1).mean())


def _relative(sums: Tensor) -> tuple[float, float]:
    ours, theirs, scale = (float(x) for x in sums)
    scale = max(scale, 1e-300)
    return (ours / scale) ** 0.5, (theirs / scale) ** 0.5


def _some(sequences: Sequence[Tensor]) -> list[Tensor]:
    made: list[Tensor] = []
    for ids in sequences:
        if made and sum(map(len, made)) + len(ids) > ACCURACY_TOKENS:
            break
        made.append(ids)
    return made


def _stock_logits(model: torch.nn.Module, ids: Tensor) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Return logits, results of modules, and ascending ids of experts, int64 [T, layers of experts, k]."""
    trace, routed = Trace(), []
    routers = [(name, m) for name, m in model.named_modules() if name.endswith(".mlp.gate")]

    def see(name: str, module: torch.nn.Module, args: Any, kwargs: Any, made: Any) -> None:
        routed.append(made[2].long().sort(-1).values)

    with trace.of(model), hooked(routers, see):
        logits = model(ids[None], use_cache=False).logits[0]
        experts = torch.stack(routed, 1) if routed else ids.new_zeros(len(ids), 0, 0)
        return logits, trace.rows(len(ids), None), experts


# --- stock transformers: measured ---------------------------------------------------------------------------


def stock(view: PeerView, most: int | None) -> Row:
    """Return the row that measures a view of stock transformers against its sequences one by one.

    most: tokens, None for one pass over all.
    """

    def run(bench: Bench, deadline: float) -> Outcome:
        want, whole = bench.once("one by one", partial(_alone, deadline=deadline))
        got, ended = _log_probs(bench, view, most, deadline)
        pairs = [(g, w, g.seen & w.seen) for g, w in zip(got, want, strict=True)]
        unequal = sum(int((g.digests != w.digests)[both].sum()) for g, w, both in pairs)
        seen = sum(int(both.sum()) for *_, both in pairs)
        gaps = torch.cat([(g.logp - w.logp)[both[:-1]] for g, w, both in pairs]).abs()
        finite = gaps[gaps.isfinite()]
        figures = {
            "log-probs": float(len(gaps)),
            "log-probs that differ": float((gaps != 0).sum()),
            NOT_FINITE: float(len(gaps) - len(finite)),
            "largest difference of log-probs": _largest(finite),
            "mean difference of log-probs": float(finite.sum() / max(1, len(finite))),
        }
        if bench.absent(("float64",)) is None:
            exact = bench.once("exact", partial(_exact, deadline=deadline))
            errors = [(g.logp.double() - x)[both[:-1]] for (g, _, both), x in zip(pairs, exact, strict=False)]
            joined = torch.cat(errors).abs()
            figures["largest error of log-probs"] = _largest(joined[joined.isfinite()])
        vocabulary = bench.run.model.config.vocab_size
        return Outcome(seen, unequal, seen * vocabulary, figures=figures, complete=whole and ended)

    return run


def _largest(found: Tensor) -> float:
    return float(found.max()) if len(found) else 0.0


class _Seen:
    """Of one sequence: digests of logits, log-probs f32 of its tokens after the first, NaN where not seen."""

    def __init__(self, ids: Tensor) -> None:
        self.digests = torch.zeros(len(ids), dtype=torch.int64, device=ids.device)
        self.seen = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
        self.logp = torch.full((max(0, len(ids) - 1),), torch.nan, device=ids.device)


def _log_probs(bench: Bench, view: PeerView, most: int | None, deadline: float) -> tuple[list[_Seen], bool]:
    """Return what a view of stock transformers gives, and whether no deadline cut it short."""
    sequences = bench.run.trained_sequences
    made = [_Seen(ids) for ids in sequences]

    def see(spans: Sequence[Span], logits: Tensor, rows: Tensor | None) -> Tensor:
        at = 0
        for i, first, count in spans:
            z, held, ids = logits[at : at + count].detach(), made[i], sequences[i]
            held.digests[first : first + count] = row_digests(z)
            held.seen[first : first + count] = True
            after = ids[first + 1 : first + 1 + count]
            logp = torch.log_softmax(z[: len(after)].float(), -1).gather(-1, after[:, None])[:, 0]
            held.logp[first : first + len(after)] = logp
            at += count
        return logits.new_zeros(at, dtype=torch.bool)

    count = 0
    for part in view(Peer(bench.stock, sequences, see, bench.sizes.call)):
        count += len(part)
        if most is not None and count >= most:
            break
        if time.monotonic() > deadline:
            return made, False
    return made, True


def _alone(bench: Bench, deadline: float) -> tuple[list[_Seen], bool]:
    return _log_probs(bench, peers.one_by_one, None, deadline)


def _exact(bench: Bench, deadline: float) -> list[Tensor]:
    """Return the log-probs of each sequence's tokens after the first in float64, until a time."""
    made: list[Tensor] = []
    with torch.no_grad():
        for x in bench.run.trained_sequences:
            made.append(peers.chosen(bench.exact(x[None], use_cache=False).logits[0], x))
            if time.monotonic() > deadline:
                break
    return made


def stock_gradients(bench: Bench, deadline: float) -> Outcome:
    """Measure gradients of stock transformers, of padded rows against packed sequences."""
    some = peers.micro_batch(bench.run.sequences, bench.sizes.call)
    want, got = (peers.gradients_of(bench.stock, some, how) for how in ("packed", "left"))
    largest = 0.0
    for name in got.keys() & want.keys():
        scale = float(want[name].abs().max())
        largest = max(largest, float((got[name] - want[name]).abs().max()) / scale if scale else 0.0)
    figures = {"largest difference over the largest element": largest}
    return replace(_matched(bench, got, want), figures=figures)
