"""Continuous batching over pages: admission, chunked prefill beside decoding, preemption by recomputation."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import index
from typing import Literal, NamedTuple, Protocol

import torch

from rlk import ops
from rlk.errors import Code, LaunchError
from rlk.nn.cache import PagedCache
from rlk.nn.config import ModelConfig
from rlk.nn.experts import RouteLog
from rlk.ops.results import Support
from rlk.ops.routes import Routes
from rlk.runtime.binding.checks import integer, wrong_value

OP = "CausalLM.generate"
Finish = Literal["eos", "length"]
SUPPORT = torch.float32, torch.int32, torch.int32
"""The dtypes of the fields of a `Support`."""


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """A finished request. prompt, ids: the given and the drawn tokens; ids may end with one of eos_ids.

    raw_logps, logps: f32 [len(ids)], on the host: of the drawn tokens under the softmax of the logits, and
    under the distribution that they were drawn from. finish: an end-of-sequence token, or max_new_tokens.
    support: of each draw, on the host, if it was asked for. preempted: how often its pages were taken away.
    routes: the experts of each token of `sequence`, on the host, if they were asked for.
    """

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    raw_logps: torch.Tensor
    logps: torch.Tensor
    finish: Finish
    support: Support | None
    preempted: int
    routes: Routes | None = None

    @property
    def sequence(self) -> tuple[int, ...]:
        """Return the whole sequence, prompt and drawn tokens."""
        return self.prompt + self.ids


class Replayable(Protocol):
    """A sequence whose tokens after the prompt were drawn: `Generation` is one."""

    @property
    def prompt(self) -> tuple[int, ...]: ...

    @property
    def support(self) -> Support | None: ...


def packed_support(generations: Sequence[Replayable], device: torch.device | str = "cpu") -> Support:
    """Return the supports of finished sequences, packed one behind the other, as `CausalLM.logps` takes them.

    Row t has that of token t + 1: the rows of drawn tokens theirs, all others the whole vocabulary. Raises
    LaunchError where generations hold no supports.
    """
    parts: list[Support] = []
    for i, each in enumerate(generations):
        if each.support is None:
            wanted = "those of generate(..., supports=True)"
            raise wrong_value("packed_support", f"generations[{i}].support", None, wanted)
        parts += [_everything(len(each.prompt) - 1), each.support, _everything(1)]
    columns = zip(*(parts or [_everything(0)]), strict=True)
    return Support(*(torch.cat(column).to(device) for column in columns))


def _everything(rows: int) -> Support:
    """Return a support that keeps every token with a finite score."""
    return Support(
        torch.full((rows,), -inf),
        torch.zeros(rows, dtype=torch.int32),
        torch.full((rows,), -1, dtype=torch.int32),
    )


# --- what is asked for --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sampling:
    """Options of `rlk.ops.sample`, of all requests."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes that change no result. pages: None for as many as the longest requests of a batch fill."""

    page_size: int
    pages: int | None
    max_batch: int
    chunk: int

    def __post_init__(self) -> None:
        for name in ("page_size", "max_batch", "chunk"):
            integer(OP, name, getattr(self, name), 1, 2**31 - 1)
        if self.pages is not None:
            integer(OP, "pages", self.pages, 1, 2**31 - 1)

    def pages_of(self, tokens: int) -> int:
        """Return how many pages so many tokens fill."""
        return -(-tokens // self.page_size)


class Draw(NamedTuple):
    """A drawn token, its log-probs and its support: a row of `ops.sampling.Sample`, as numbers.

    An f32 number is a float that is exact. Numbers, as a tensor for each is most of a small model's step.
    """

    token: int
    raw_logp: float
    logp: float
    threshold: float
    ties: int
    last: int


@dataclass(slots=True, eq=False)
class Request:
    """A sequence that grows. ids: prompt and drawn tokens. cached: how many have keys in its pages.

    noted: the routes of these, part by part; None where routes are not asked for.
    """

    id: int
    seed: int
    prompt: tuple[int, ...]
    new: int
    ids: list[int]
    pages: list[int] = field(default_factory=list)
    cached: int = 0
    preempted: int = 0
    draws: list[Draw] = field(default_factory=list)
    finish: Finish | None = None
    noted: list[Routes] | None = None

    @property
    def longest(self) -> int:
        """Return how many keys it can have: its last token is read for its routes alone."""
        return len(self.prompt) + self.new - (self.noted is None)

    @property
    def done(self) -> bool:
        """Return whether nothing is left to draw or to read."""
        return self.finish is not None and (self.noted is None or self.cached == len(self.ids))

    def preempt(self) -> None:
        """Forget what was read: its pages are taken away."""
        self.cached, self.preempted = 0, self.preempted + 1
        if self.noted is not None:
            self.noted.clear()  # the same routes are noted again

    def take(self, draw: Draw, eos_ids: Collection[int]) -> None:
        """Append a drawn token, which may be the last one."""
        self.ids.append(draw.token)
        self.draws.append(draw)
        if draw.token in eos_ids:
            self.finish = "eos"
        elif len(self.draws) == self.new:
            self.finish = "length"


def requests_of(
    prompts: Sequence[Sequence[int]],
    new: int | Sequence[int],
    seed: int | Sequence[int],
    request_ids: Sequence[int] | None,
    routes: bool = False,
) -> list[Request]:
    """Return a request for each prompt; routes: whether they are noted. Raises LaunchError."""
    count = len(prompts)
    news, seeds = _each("max_new_tokens", new, count), _each("seed", seed, count)
    names = _each("request_ids", range(count) if request_ids is None else request_ids, count)
    made = []
    for i, prompt in enumerate(prompts):
        ids = _ids(i, prompt)
        integer(OP, f"max_new_tokens[{i}]", news[i], 1, 2**31 - 1)
        made.append(Request(names[i], seeds[i], ids, news[i], list(ids), noted=[] if routes else None))
    return made


def _ids(i: int, prompt: object) -> tuple[int, ...]:
    """Return the tokens of a prompt: of a sequence, an array or a tensor of integers, [n].

    Raises LaunchError for anything else, such as text, bytes, a dict, floats and bools, and for no tokens.
    """
    is_text = isinstance(prompt, (str, bytes, bytearray, memoryview))
    numbers = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    try:
        if is_text or not isinstance(numbers, Sequence) or any(isinstance(x, bool) for x in numbers):
            raise TypeError
        ids = tuple(index(x) for x in numbers)
    except TypeError:
        wanted = "token ids: prompts is a list of lists, as tokenizer(texts).input_ids"
        raise wrong_value(OP, f"prompts[{i}]", prompt, wanted) from None
    if not ids:
        raise wrong_value(OP, f"prompts[{i}]", [], "at least one token")
    return ids


def _each(name: str, given: int | Sequence[int], count: int) -> list[int]:
    """Return a number for each request."""
    numbers = [given] * count if isinstance(given, int) else list(given)
    if len(numbers) != count:
        raise LaunchError(
            Code.ARG_SIZE, op=OP, name=name, axis="requests", got=len(numbers), other="prompts", wanted=count
        )
    return [integer(OP, f"{name}[{i}]", x) for i, x in enumerate(numbers)]


class Model(Protocol):
    """The part of `CausalLM` that generation calls."""

    config: ModelConfig

    def cache(self, pages: int, page_size: int = 16) -> PagedCache: ...

    def prefill(
        self,
        ids: torch.Tensor,
        cache: PagedCache,
        block_table: torch.Tensor,
        context_lens: torch.Tensor,
        cu_seqlens: torch.Tensor,
        *,
        routes: RouteLog | None = None,
    ) -> torch.Tensor: ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor: ...


# --- the loop -----------------------------------------------------------------------------------------------


@torch.no_grad()
def generate(
    model: Model,
    requests: list[Request],
    sampling: Sampling,
    limits: Limits,
    eos_ids: Collection[int],
    supports: bool,
) -> list[Generation]:
    """Return a generation for each request, in their order. Raises LaunchError."""
    if not requests:
        return []
    pages = _enough_pages(model.config, requests, limits)
    cache = model.cache(pages, limits.page_size)
    queue = Scheduler(limits, list(reversed(range(pages))), deque(requests))
    while queue.waiting or queue.running:
        step = queue.next_step()
        hidden = _read(model, cache, step)
        ready = [(r, end) for (r, _), end in zip(step, _ends(step), strict=True) if r.cached == len(r.ids)]
        for request, _ in ready:
            if request.done:  # its last token was read, for its routes
                queue.leave(request)
        ready = [(r, end) for r, end in ready if r.finish is None]
        if not ready:  # every sequence read a part of its prompt, or its last token
            continue
        drawing = [r for r, _ in ready]
        draws = _draw(model, hidden[[end for _, end in ready]], drawing, sampling)
        for request, draw in zip(drawing, draws, strict=True):
            request.take(draw, eos_ids)
            if request.done:
                queue.leave(request)
    return [_generation(r, supports) for r in requests]


def _enough_pages(config: ModelConfig, requests: list[Request], limits: Limits) -> int:
    """Return the number of pages; raise LaunchError for a request that no batch could hold or read."""
    most = max(limits.pages_of(r.longest) for r in requests)
    pages = limits.pages if limits.pages is not None else most * min(len(requests), limits.max_batch)
    for i, r in enumerate(requests):
        for token in r.prompt:
            if not 0 <= token < config.vocab_size:
                raise wrong_value(OP, f"prompts[{i}]", token, f"ids from 0 to {config.vocab_size - 1}")
        if r.longest > config.max_position_embeddings:
            wanted = f"prompt and new tokens within {config.max_position_embeddings} positions"
            raise wrong_value(OP, f"max_new_tokens[{i}]", r.new, wanted)
    if most > pages:
        wanted = f"at least {most}, which the longest request fills, of {limits.page_size} tokens each"
        raise wrong_value(OP, "pages", pages, wanted)
    return pages


Step = list[tuple[Request, int]]
"""The sequences of a step, and how many tokens each of them reads."""


@dataclass(slots=True, eq=False)
class Scheduler:
    """Requests that wait and run, oldest first, and the pages that nobody has."""

    limits: Limits
    free: list[int]
    waiting: deque[Request]
    running: list[Request] = field(default_factory=list)

    def next_step(self) -> Step:
        """Return what is read next, at least one token; every sequence has the pages for it."""
        self._admit()
        step: Step = []
        budget = self.limits.chunk  # of tokens that no draw follows: decoding costs nothing
        for request in self._oldest_first():
            left = len(request.ids) - request.cached
            count = left if left - 1 <= budget else budget
            if count and self._reserve(request, request.cached + count):
                budget -= min(count, left - 1)
                step.append((request, count))
        # no request of the step was preempted for a later one: the newest ones are, and older ones come first
        for request, count in step:
            request.cached += count
        return step

    def leave(self, request: Request) -> None:
        """Take a finished request out."""
        self.running.remove(request)
        self._release(request)

    def _admit(self) -> None:
        claimed = sum(self.limits.pages_of(len(r.ids)) - len(r.pages) for r in self.running)
        while self.waiting and len(self.running) < self.limits.max_batch:
            claimed += self.limits.pages_of(len(self.waiting[0].ids))
            if claimed > len(self.free):
                return
            self.running.append(self.waiting.popleft())

    def _oldest_first(self) -> Iterator[Request]:
        """Yield running requests; those that are preempted meanwhile are none."""
        at = 0
        while at < len(self.running):
            request = self.running[at]
            yield request
            at += at < len(self.running) and self.running[at] is request

    def _reserve(self, request: Request, tokens: int) -> bool:
        """Give a request the pages of so many tokens; the newest requests lose theirs where they run out."""
        missing = self.limits.pages_of(tokens) - len(request.pages)
        while missing > len(self.free):
            newest = self.running.pop()
            self._release(newest)
            newest.preempt()
            self.waiting.appendleft(newest)
            if newest is request:
                return False
        for _ in range(missing):
            request.pages.append(self.free.pop())
        return True

    def _release(self, request: Request) -> None:
        self.free.extend(request.pages)
        request.pages.clear()


def _read(model: Model, cache: PagedCache, step: Step) -> torch.Tensor:
    """Return the last hidden states of a step's tokens, whose keys and values go into the cache.

    Requests note their tokens' routes, on the device: nothing waits for it.
    """
    device = cache.keys.device
    log = None if step[0][0].noted is None else RouteLog()
    columns = max(len(r.pages) for r, _ in step)
    table = [r.pages + [0] * (columns - len(r.pages)) for r, _ in step]
    ids = [token for r, count in step for token in r.ids[r.cached - count : r.cached]]
    hidden = model.prefill(
        torch.tensor(ids, device=device),
        cache,
        torch.tensor(table, dtype=torch.int32, device=device),
        torch.tensor([r.cached for r, _ in step], dtype=torch.int32, device=device),
        torch.tensor([0, *(end + 1 for end in _ends(step))], dtype=torch.int32, device=device),
        routes=log,
    )
    if log is not None:
        found = log.routes()
        for (request, count), end in zip(step, _ends(step), strict=True):
            assert request.noted is not None
            request.noted.append(found.take(slice(end + 1 - count, end + 1)))
    return hidden


def _ends(step: Step) -> list[int]:
    """Return the row of each sequence's last token."""
    ends, at = [], 0
    for _, count in step:
        at += count
        ends.append(at - 1)
    return ends


def _draw(model: Model, hidden: torch.Tensor, requests: list[Request], sampling: Sampling) -> list[Draw]:
    """Return a draw for each row, on the host. Raises LaunchError for scores that are no distribution."""

    def column(numbers: list[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=hidden.device)

    made = ops.sample(
        model.logits(hidden),
        seed=column([r.seed for r in requests]),
        request_id=column([r.id for r in requests]),
        position=column([len(r.ids) for r in requests]),
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
    )
    columns = [x.tolist() for x in (made.token, made.raw_logp, made.logp, *made.support)]
    draws = [Draw(*row) for row in zip(*columns, strict=True)]
    for request, draw in zip(requests, draws, strict=True):
        if draw.token < 0:
            raise wrong_value(
                OP, "logits", "NaN or +inf", f"finite scores of request {request.id} at {len(request.ids)}"
            )
    return draws


def _generation(request: Request, supports: bool) -> Generation:
    _, raw_logps, logps, *support = zip(*request.draws, strict=True)
    assert request.finish is not None
    return Generation(
        prompt=request.prompt,
        ids=tuple(request.ids[len(request.prompt) :]),
        raw_logps=torch.tensor(raw_logps, dtype=torch.float32),
        logps=torch.tensor(logps, dtype=torch.float32),
        finish=request.finish,
        support=Support(*(torch.tensor(x, dtype=d) for x, d in zip(support, SUPPORT, strict=True)))
        if supports
        else None,
        preempted=request.preempted,
        routes=None if request.noted is None else Routes.cat(request.noted).to("cpu"),
    )
