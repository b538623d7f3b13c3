"""Views of a model: the ways that training, scoring and a rollout run the same tokens, and their comparison.

A view is a generator: it runs the tokens of a `Run` in its way and yields which of them have other bits than
the packed pass with gradients gave them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor

import rlk
from rlk.nn import CausalLM, PagedCache, RouteLog
from rlk.testing.digests import row_digests

ROWS = 1024  # of logits at a time
GRADIENT_TOKENS = 2048  # of the micro-batch whose gradients are compared

Span = tuple[int, int, int]
"""Consecutive tokens: the number of a sequence, the first of them in it, how many."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens in all, the most of a call and of a sequence; steps of a decode; batches; slots of a page.

    chunks: of a chunked prefill, of which each sequence takes any.
    """

    tokens: int
    call: int = 8192
    longest: int = 2048
    steps: int = 64
    batches: tuple[int, ...] = (1, 16, 64)
    page: int = 64
    chunks: tuple[int, ...] = (1, 17, 64, 100, 500, 1000)


@dataclass(slots=True, eq=False)
class Run:
    """A model, its sequences, and the digests that each token of the first of them had in training.

    experts: of a model that has some, those of each token in training, [n, layers, k]. log: of the latest
    call.
    """

    model: CausalLM
    sizes: Sizes
    sequences: list[Tensor]
    random: random.Random
    cache: PagedCache | None = None
    want: list[Tensor] = field(default_factory=list)
    experts: list[Tensor] = field(default_factory=list)
    log: RouteLog | None = None

    @property
    def device(self) -> torch.device:
        """Return the device of the model."""
        return self.model.lm_head.weight.device

    @property
    def trained(self) -> list[int]:
        """Return the sequences whose digests are known."""
        return list(range(len(self.want)))

    @property
    def trained_sequences(self) -> list[Tensor]:
        """Return the ids of these sequences."""
        return self.sequences[: len(self.want)]

    def integers(self, numbers: Sequence[int]) -> Tensor:
        """Return int32 numbers on the device."""
        return torch.tensor(numbers, dtype=torch.int32, device=self.device)

    def offsets(self, lengths: Sequence[int]) -> Tensor:
        """Return where sequences of these lengths begin."""
        return self.integers([0, *torch.tensor(lengths).cumsum(0).tolist()])

    def digests(self, hidden: Tensor) -> Tensor:
        """Return the digest of the logits of each hidden state, a few rows of logits at a time."""
        with torch.no_grad():
            made = [row_digests(self.model.logits(part)) for part in hidden.detach().split(ROWS)]
        return torch.cat(made) if made else torch.zeros(0, dtype=torch.int64, device=self.device)

    def differs(self, index: int, first: int, digests: Tensor) -> Tensor:
        """Return which tokens of a sequence, from its first-th on, have other digests than in training."""
        return self.want[index][first : first + len(digests)] != digests

    def learn(self, spans: Sequence[Span], hidden: Tensor) -> None:
        """Take what a pass of training gave to whole sequences, hidden states [T, hidden], as theirs."""
        counts = [n for *_, n in spans]
        self.want += self.digests(hidden).split(counts)
        chosen = self.chosen()
        if chosen is not None:
            self.experts += chosen.split(counts)

    def forget(self) -> None:
        """Drop what earlier passes of training gave."""
        self.want, self.experts = [], []

    def noted(self) -> RouteLog | None:
        """Return the log of the call that follows, None for a dense model."""
        self.log = None if self.model.config.experts is None else RouteLog()
        return self.log

    def chosen(self) -> Tensor | None:
        """Return the experts [T, layers, k] of the latest call, None if it noted none, and drop its log."""
        log, self.log = self.log, None  # which holds what the gradients of its scores need
        return None if log is None else log.routes().ids

    def compare_experts(self, spans: Sequence[Span], rows: Tensor | None = None) -> None:
        """Compare the experts that the latest call noted with those of training; spans, rows: as of `see`."""
        got = self.chosen()
        if got is not None:
            want = torch.cat([self.experts[i][a : a + n] for i, a, n in spans])

            def place(row: int) -> str:
                return [f"sequence {i}, token {a + t}" for i, a, n in spans for t in range(n)][row]

            self.match_experts(got if rows is None else got[rows], want, place)

    def match_experts(self, got: Tensor, want: Tensor, place: Callable[[int], str]) -> Tensor:
        """Return where experts [n, layers, k] differ, bool [n, layers]. place: says what a row is."""
        return (got != want).any(-1)

    def see(self, spans: Sequence[Span], hidden: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return which tokens have other bits than in training, bool [n].

        hidden: [T, hidden], what a call returned. rows: which of its rows belong to the tokens of the spans,
        in their order; None if all do.
        """
        self.compare_experts(spans, rows)
        digests = self.digests(hidden if rows is None else hidden[rows])
        parts = digests.split([n for *_, n in spans])
        return torch.cat([self.differs(i, a, part) for (i, a, _), part in zip(spans, parts, strict=True)])

    def match(self, got: Tensor, want: Tensor, place: Callable[[int], str]) -> Tensor:
        """Return which rows of two tensors [n, m] have other bits. place: says what a row is."""
        return row_digests(got) != row_digests(want)

    def missing(self, rows: int, what: str) -> Tensor:
        """Return that all rows of a tensor differ, which one of two has not. what: says which."""
        return torch.ones(rows, dtype=torch.bool, device=self.device)

    @contextmanager
    def using(self, model: CausalLM) -> Iterator[None]:
        """Run another model meanwhile."""
        own, self.model = self.model, model
        try:
            yield
        finally:
            self.model = own

    def groups(self, order: Sequence[int], tokens: int) -> Iterator[list[int]]:
        """Yield sequences in turn, of at most so many tokens, or one of more."""
        group: list[int] = []
        for i in order:
            if group and sum(len(self.sequences[j]) for j in (*group, i)) > tokens:
                yield group
                group = []
            group.append(i)
        if group:
            yield group


View = Callable[[Run], Iterator[Tensor]]
"""A generator of bool [n], which of n tokens (or rows of gradients) have other bits than in training."""


def random_sequences(sizes: Sizes, vocabulary: int, device: str) -> list[Tensor]:
    """Return sequences of random ids, of at least steps tokens each but the last, which may be cut."""
    how, found = random.Random(1), 0
    drawn = torch.Generator().manual_seed(1)
    made = []
    while found < sizes.tokens:
        count = min(how.randint(sizes.steps, sizes.longest), sizes.tokens - found)
        made.append(torch.randint(vocabulary, (count,), generator=drawn).to(device))
        found += len(made[-1])
    return made


# --- whole sequences ----------------------------------------------------------------------------------------


def whole(run: Run, group: Sequence[int]) -> list[Span]:
    """Return the spans of whole sequences."""
    return [(i, 0, len(run.sequences[i])) for i in group]


def packed(run: Run, group: Sequence[int]) -> Tensor:
    """Return the hidden states of packed sequences."""
    lengths = [len(run.sequences[i]) for i in group]
    layout = rlk.Layout.packed(run.offsets(lengths), tokens=sum(lengths))
    return run.model(torch.cat([run.sequences[i] for i in group]), layout, routes=run.noted())


def train(run: Run, deadline: float) -> None:
    """Take the digests of all sequences by packed passes with gradients, until the deadline."""
    run.forget()
    for group in run.groups(range(len(run.sequences)), run.sizes.call):
        run.learn(whole(run, group), packed(run, group))
        if time.monotonic() > deadline:
            return


def again(run: Run) -> Iterator[Tensor]:
    """Pack as in training, once more, without gradients."""
    with torch.no_grad():
        for group in run.groups(run.trained, run.sizes.call):
            yield run.see(whole(run, group), packed(run, group))


def other_batches(run: Run) -> Iterator[Tensor]:
    """Pack in another order, into calls of other sizes."""
    order = run.trained
    run.random.shuffle(order)
    with torch.no_grad():
        for group in run.groups(order, run.sizes.call // 3):
            yield run.see(whole(run, group), packed(run, group))


def one_by_one(run: Run) -> Iterator[Tensor]:
    """Score each sequence alone."""
    with torch.no_grad():
        for i in run.trained:
            yield run.see(whole(run, [i]), run.model(run.sequences[i], routes=run.noted()))


def rows_of(lengths: Sequence[int], width: int, side: str) -> list[slice]:
    """Return where sequences lie in rows of a width, padded on one side."""
    return [slice(0, n) if side == "right" else slice(width - n, width) for n in lengths]


def padded_ids(sequences: Sequence[Tensor], side: str, extra: int = 0) -> tuple[Tensor, Tensor, list[slice]]:
    """Return ids and mask, int64 [B, L], of sequences as rows, 0 at padding, and where they lie in them.

    extra: columns more than the longest needs.
    """
    lengths = [len(ids) for ids in sequences]
    width = max(lengths) + extra
    ids, mask = (sequences[0].new_zeros(len(sequences), width, dtype=torch.int64) for _ in range(2))
    at = rows_of(lengths, width, side)
    for row, real, inside, each in zip(ids, mask, at, sequences, strict=True):
        row[inside], real[inside] = each, 1
    return ids, mask, at


def padded_layout(mask: Tensor, side: Any) -> rlk.Layout:
    """Return the layout of rows that are padded on a side, by their mask [B, L]."""
    return rlk.Layout.padded(mask.sum(1).to(torch.int32), mask.shape[1], side=side)


def padded(run: Run, sides: Sequence[str] = ("right", "left"), extra: int = 0) -> Iterator[Tensor]:
    """Score rows of one length, with padding on a side; the sides in turn."""
    with torch.no_grad():
        for group, side in zip(run.groups(run.trained, run.sizes.call), cycle(sides)):
            ids, mask, at = padded_ids([run.sequences[i] for i in group], side, extra)
            layout = padded_layout(mask, side)
            hidden = run.model(ids, layout, routes=run.noted())
            exist = torch.cat([x[inside] for x, inside in zip(hidden, at, strict=True)])
            yield run.see(whole(run, group), exist)


def checkpointed(run: Run) -> Iterator[Tensor]:
    """Pack as in training, with gradients and gradient checkpointing."""
    with checkpointing(run.model):
        for group in run.groups(run.trained, run.sizes.call):
            yield run.see(whole(run, group), packed(run, group))


@contextmanager
def checkpointing(model: CausalLM) -> Iterator[None]:
    """Run layers again in backward meanwhile."""
    model.gradient_checkpointing_enable()
    try:
        yield
    finally:
        model.model.gradient_checkpointing = False


# --- gradients and log-probs --------------------------------------------------------------------------------


def micro_batch(run: Run) -> list[int]:
    """Return the sequences whose gradients are compared."""
    return next(run.groups(run.trained, min(GRADIENT_TOKENS, run.sizes.call)))


def gradients_of(run: Run, side: str | None = None) -> dict[str, Tensor]:
    """Return the gradients of a micro-batch's mean log-prob by names of parameters, packed or padded."""
    sequences = [run.sequences[i] for i in micro_batch(run)]
    if side is None:
        lengths = [len(ids) for ids in sequences]
        ids, layout = torch.cat(sequences), rlk.Layout.packed(run.offsets(lengths), tokens=sum(lengths))
    else:
        ids, mask, _ = padded_ids(sequences, side, extra=3)
        layout = padded_layout(mask, side)
    logp = run.model.logps(ids, layout).logp
    assert logp is not None
    (logp.sum() / sum(map(len, sequences))).backward()
    return taken_gradients(run.model)


def taken_gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return the gradients of a model by names of its parameters, and leave it without."""
    made = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return made


def matched(run: Run, got: dict[str, Tensor], want: dict[str, Tensor]) -> Tensor:
    """Return which rows of gradients have other bits, parameter by parameter; all of one that is missing."""
    found = []
    for name in {**want, **got}:
        rows = [x[name].reshape(-1, x[name].shape[-1]) for x in (got, want) if name in x]
        if len(rows) == 2:
            found.append(run.match(rows[0], rows[1], f"gradient of {name}, row {{}}".format))
        else:
            found.append(run.missing(len(rows[0]), f"gradient of {name}, which is missing"))
    return torch.cat(found)


def gradients(run: Run) -> Iterator[Tensor]:
    """Compare gradients with checkpointing and without; count rows of parameters, not tokens."""
    yield from _gradients(run, None, checkpointing)


def gradients_again(run: Run) -> Iterator[Tensor]:
    """Compare gradients of the same micro-batch, taken twice."""
    yield from _gradients(run, None, nullcontext)


def gradients_padded(run: Run) -> Iterator[Tensor]:
    """Compare gradients of padded rows with those of packed sequences."""
    yield from _gradients(run, "left", nullcontext)


def _gradients(run: Run, side: str | None, how: Callable[[CausalLM], object]) -> Iterator[Tensor]:
    want = gradients_of(run)
    with how(run.model):  # type: ignore[attr-defined]
        got = gradients_of(run, side)
    yield matched(run, got, want)


def without_logits(run: Run) -> Iterator[Tensor]:
    """Compare log-probs by `linear_logp` with `logp` of the logits."""
    with torch.no_grad():
        for group in run.groups(run.trained, run.sizes.call):
            lengths = [len(run.sequences[i]) for i in group]
            ids = torch.cat([run.sequences[i] for i in group])
            layout = rlk.Layout.packed(run.offsets(lengths), tokens=len(ids))
            got = run.model.logps(ids, layout, routes=run.noted()).logp
            run.compare_experts(whole(run, group))
            hidden = run.model(ids, layout)
            assert got is not None
            after = ids.roll(-1)
            want = [
                rlk.ops.logp(run.model.logits(h), t).logp
                for h, t in zip(hidden.split(ROWS), after.split(ROWS), strict=True)
            ]
            there = torch.ones(len(ids), dtype=torch.bool, device=run.device)
            there[run.offsets(lengths)[:-1].long()] = False  # nothing predicts a first token
            moved = torch.cat(want).roll(1)  # type: ignore[arg-type]
            names = [f"sequence {i}, token {t}" for i, _, n in whole(run, group) for t in range(1, n)]
            yield run.match(got[there][:, None], moved[there][:, None], names.__getitem__)


def generated(run: Run) -> Iterator[Tensor]:
    """Compare log-probs of tokens that `generate` draws, in few pages, with those of finished sequences."""
    steps, most = run.sizes.steps, run.model.config.max_position_embeddings
    batch = min(16, max(run.sizes.batches))  # few pages hold few sequences: the others wait for their turn
    for group in _batches(run.trained, batch):
        prompts = [run.sequences[i][: max(1, len(run.sequences[i]) // 2)].tolist() for i in group]
        new = min(steps, most - max(map(len, prompts)))
        need = -(-(max(map(len, prompts)) + new) // run.sizes.page)
        made = run.model.generate(
            prompts, max_new_tokens=new, seed=group, page_size=run.sizes.page, pages=need + 1,
            max_batch=batch, chunk=max(run.sizes.chunks[:2]), routes=run.model.config.experts is not None,
        )  # fmt: skip
        lengths = [len(x.sequence) for x in made]
        ids = torch.tensor([t for x in made for t in x.sequence], device=run.device)
        with torch.no_grad():
            layout = rlk.Layout.packed(run.offsets(lengths), tokens=len(ids))
            logp = run.model.logps(ids, layout, routes=run.noted()).logp
        assert logp is not None
        chosen = run.chosen()
        if chosen is not None:
            drawn = torch.cat([x.routes.ids for x in made if x.routes is not None]).to(chosen.device)
            every = [
                f"sequence {i}, token {t}" for i, n in zip(group, lengths, strict=True) for t in range(n)
            ]
            run.match_experts(drawn, chosen, every.__getitem__)
        want = torch.cat([r[len(x.prompt) :] for r, x in zip(logp.split(lengths), made, strict=True)])
        got = torch.cat([x.raw_logps for x in made]).to(want.device)
        names = [
            f"sequence {i}, token {t}"
            for i, x in zip(group, made, strict=True)
            for t in range(len(x.prompt), len(x.sequence))
        ]
        yield run.match(got[:, None], want[:, None], names.__getitem__)


# --- pages --------------------------------------------------------------------------------------------------


def tables(run: Run, rows: int, page: int | None = None) -> tuple[PagedCache, Tensor]:
    """Return the cache, NaN in all its pages, and pages for as many sequences in any order.

    page: slots of a page, by default those of the sizes.
    """
    page = run.sizes.page if page is None else page
    columns = -(-run.sizes.longest // page)
    if run.cache is None or run.cache.page_size != page or run.cache.pages < rows * columns:
        run.cache = None  # before the next one takes memory
        run.cache = run.model.cache(columns * max(16, rows, *run.sizes.batches), page)
    for x in (run.cache.keys, run.cache.values):
        x.fill_(torch.nan)
    order = list(range(run.cache.pages))
    run.random.shuffle(order)
    return run.cache, run.integers(order[: rows * columns]).view(rows, columns)


def advance(
    run: Run, group: Sequence[int], cache: PagedCache, table: Tensor, begins: list[int], ends: list[int]
) -> Tensor:
    """Prefill tokens [begin, end) of each sequence in one call; return their hidden states."""
    counts = [b - a for a, b in zip(begins, ends, strict=True)]
    ids = torch.cat([run.sequences[i][a:b] for i, a, b in zip(group, begins, ends, strict=True)])
    given = run.integers(ends), run.offsets(counts)
    return run.model.prefill(ids, cache, table, *given, routes=run.noted())


def between(group: Sequence[int], begins: list[int], ends: list[int]) -> list[Span]:
    """Return the spans [begin, end) of sequences."""
    return [(i, a, b - a) for i, a, b in zip(group, begins, ends, strict=True)]


def fill(run: Run, group: Sequence[int], cache: PagedCache, table: Tensor, ends: list[int]) -> None:
    """Prefill the first tokens of each sequence, in calls of bounded size."""
    each = max(1, run.sizes.call // len(group))
    for first in range(0, max(ends), each):
        begins, until = ([min(at, n) for n in ends] for at in (first, first + each))
        advance(run, group, cache, table, begins, until)


def prefilled(run: Run, chunks: Sequence[int] | None = None, page: int | None = None) -> Iterator[Tensor]:
    """Prefill by chunks of any size, or of the given ones, beside others."""
    sizes = run.sizes.chunks if chunks is None else chunks
    for group in _batches(run.trained, 16):
        cache, table = tables(run, len(group), page)
        lengths = [len(run.sequences[i]) for i in group]
        begins = [0] * len(group)
        while begins != lengths:
            taken = [run.random.choice(sizes) for _ in group]
            ends = [min(a + n, top) for a, n, top in zip(begins, taken, lengths, strict=True)]
            made = advance(run, group, cache, table, begins, ends)
            yield run.see(between(group, begins, ends), made)
            begins = ends


def hit(run: Run) -> Iterator[Tensor]:
    """Prefill what follows a prefix, whose pages another sequence filled."""
    page = run.sizes.page
    for group in _batches([i for i in run.trained if len(run.sequences[i]) > page], 8):
        cache, table = tables(run, 2 * len(group))
        lengths = [len(run.sequences[i]) for i in group]
        first, second = table.split(len(group))
        fill(run, group, cache, first, lengths)
        shared = [run.random.randrange(1, (n - 1) // page + 1) for n in lengths]
        for row, other, n in zip(second, first, shared, strict=True):
            row[:n] = other[:n]
        begins = [n * page for n in shared]
        made = advance(run, group, cache, second, begins, lengths)
        yield run.see(between(group, begins, lengths), made)


def token_by_token(run: Run, page: int | None = None) -> Iterator[Tensor]:
    """Decode sequences beside each other from their first token on, as long as each lasts."""
    for group in _batches(run.trained, max(run.sizes.batches)):
        cache, table = tables(run, len(group), page)
        seen = []
        for at in range(max(len(run.sequences[i]) for i in group)):
            slots = [k for k, i in enumerate(group) if at < len(run.sequences[i])]
            live = [group[k] for k in slots]
            now = torch.stack([run.sequences[i][at] for i in live])
            lens = run.integers([at + 1] * len(live))
            hidden = run.model.decode(now, cache, table[slots], lens, routes=run.noted())
            seen.append(run.see([(i, at, 1) for i in live], hidden))
        yield torch.cat(seen)


def _batches(order: Sequence[int], size: int) -> Iterator[list[int]]:
    for at in range(0, len(order), size):
        yield list(order[at : at + size])


@dataclass(frozen=True, slots=True)
class Decoding:
    """Static buffers of a step, whose unused slots have a context of 0."""

    cache: PagedCache
    ids: Tensor
    table: Tensor
    lens: Tensor

    def hidden(self, run: Run) -> Tensor:
        """Run a step."""
        return run.model.decode(self.ids, self.cache, self.table, self.lens, routes=run.noted())


def decoded(
    run: Run,
    batch: int,
    *,
    page: int | None = None,
    graph: bool = False,
    empty: int = 0,
    preempt: bool = False,
) -> Iterator[Tensor]:
    """Decode the sequences' own tokens from any place on, in a batch of which some slots may be empty.

    page: slots of a page. preempt: half-way through the pages are taken away, and all is read again. It has
    no end where some sequence is long enough.
    """
    steps = run.sizes.steps
    long = [i for i in run.trained if len(run.sequences[i]) >= steps]
    if not long:
        return
    cache, table = tables(run, batch, page)
    zeros = partial(torch.zeros, batch, device=run.device)
    at = Decoding(cache, zeros(dtype=torch.int64), table.clone(), zeros(dtype=torch.int32))
    step = captured(run, at) if graph else lambda: at.hidden(run)
    while True:
        run.random.shuffle(long)
        for group in _batches(list(islice(cycle(long), -(-len(long) // batch) * batch)), batch):
            group = group[: batch - empty]
            slots = sorted(run.random.sample(range(batch), len(group)))
            begins = [run.random.randrange(len(run.sequences[i]) - steps + 1) for i in group]
            at.table.copy_(tables(run, batch, page)[1])
            fill(run, group, cache, at.table[slots], begins)
            pairs = list(zip(group, begins, strict=True))
            newest = torch.stack([run.sequences[i][a : a + steps] for i, a in pairs])
            seen = []
            for s in range(steps):
                if preempt and s == steps // 2:
                    at.table.copy_(tables(run, batch, page)[1])
                    fill(run, group, cache, at.table[slots], [a + s for a in begins])
                at.ids.zero_(), at.lens.zero_()
                at.ids[slots], at.lens[slots] = newest[:, s], run.integers([a + s + 1 for a in begins])
                spans = [(i, a + s, 1) for i, a in pairs]
                seen.append(run.see(spans, step(), torch.tensor(slots, device=run.device)))
            yield torch.cat(seen)


def captured(run: Run, at: Decoding) -> Callable[[], Tensor]:
    """Capture a step in a CUDA graph, with empty slots; return its replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        at.hidden(run)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        hidden = at.hidden(run)
    log = run.log  # the tensors in it are the graph's

    def replay() -> Tensor:
        graph.replay()
        run.log = log
        return hidden

    return replay


def compiled(run: Run) -> Iterator[Tensor]:
    """Pack as in training, by `torch.compile` of the decoder."""
    decoder = torch.compile(run.model.model, dynamic=True)
    with torch.no_grad():
        for group in run.groups(run.trained, run.sizes.call):
            lengths = [len(run.sequences[i]) for i in group]
            ids = torch.cat([run.sequences[i] for i in group])
            tokens = rlk.nn.WholeSequences.of(run.offsets(lengths), len(ids))
            yield run.see(whole(run, group), decoder(ids, tokens))
