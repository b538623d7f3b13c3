"""The calls that an engine makes of a model, for every number of tokens and sequences, and their kernels.

The calls are those of the layers that compute a model in vLLM (`rlk.integrations.vllm`), on tensors that
stand for the engine's, of one size of each class that runs the same kernels (`representatives`). Nothing is
launched.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from itertools import product
from math import gcd
from pathlib import Path
from typing import Any

import torch

from rlk import ops
from rlk.errors import RlkError
from rlk.nn.config import ModelConfig
from rlk.nn.logits import head_logits
from rlk.nn.products import column_linear, row_linear
from rlk.ops import sampling
from rlk.ops.attention import paged_attention_into
from rlk.ops.gated import gated
from rlk.ops.results import Support
from rlk.runtime.binding.arguments import VECTOR
from rlk.runtime.binding.invocation import Invocation, Tensors
from rlk.runtime.binding.shape_buckets import class_of, representatives
from rlk.runtime.call.dispatch import asked_for, dispatch
from rlk.runtime.kernels.pool import pool
from rlk.runtime.kernels.trace_cache import cached
from rlk.runtime.prefetch import Observer, chosen_for, stand_in, started, unwritten
from rlk.schedule import user_table
from rlk.target.facts import Target

logger = logging.getLogger("rlk.compile")
VOCABULARY = 64  # an engine's embedding has a multiple of so many rows
AXES = "T", "B"  # of tokens, and of sequences
PAGE = 64
"""Tokens of a page, where nobody asks for another size: attention loads such pages by TMA (decision 74)."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The sizes of an engine's steps; the defaults are vLLM's, with pages of PAGE tokens.

    tokens, sequences: the most of a step. context: the most tokens of a sequence. page: tokens of a page.
    pages: of the cache; None where it is not known yet. logprobs: whether those of the model's own logits
    ("raw") or of what was drawn from ("processed") are asked for. adapters: their rank, 0 without.
    """

    context: int
    tokens: int = 8192
    sequences: int = 256
    page: int = PAGE
    pages: int | None = None
    logprobs: str = "raw"
    adapters: int = 0

    @property
    def tables(self) -> tuple[int, ...]:
        """Return the columns that a table of pages may have: vLLM's second runner rounds them up."""
        least, step = -(-self.context // self.page), max(1, 128 // self.page)
        return tuple(dict.fromkeys((least, -(-least // step) * step)))

    @property
    def bucket(self) -> Steps:
        """Return steps that run the same kernels: of starts that find slightly different memory, the same."""
        if self.pages is None:
            return self
        most = class_of(self.pages)
        return replace(
            self, pages=most - most % VECTOR if self.pages % VECTOR == 0 else most - (most % VECTOR == 0)
        )

    @property
    def caches(self) -> tuple[int, ...]:
        """Return numbers of pages that stand for those that a cache may have."""
        return (self.pages,) if self.pages is not None else (4097, 4096)


def observe(
    model: ModelConfig, dtype: torch.dtype, steps: Steps, ranks: int, on: Target, observer: Observer
) -> None:
    """Call `observer` with what steps of an engine launch on a target, on one of so many ranks.

    dtype: of weights and activations. Calls may be repeated. The sums over ranks are not among them. Raises
    LaunchError for a dense model's options that an operator does not take.
    """
    calls = _Calls(model, dtype, steps, ranks)
    seen: list[tuple[Invocation, Tensors]] = []

    def noted(invocation: Invocation, tensors: Tensors) -> None:
        seen.append((invocation, tensors))
        observer(invocation, tensors)

    def each(call: Callable[..., None], *most: int) -> None:
        """Call with the largest sizes, then with one size of each choice of code."""
        seen.clear()
        call(*most)
        chosen = [chosen_for(invocation, tensors, on) for invocation, tensors in seen]
        for sizes in _chosen(chosen, *most):
            call(*sizes)

    recorded = dispatch.recorded(lambda i, tensors: unwritten(i, tensors, noted))
    with torch.no_grad(), torch.device("cpu"), recorded:  # stand-ins take no memory of a device
        sequences = min(steps.tokens, steps.sequences)
        # the sampler first: it compiles longest, beside what else is lowered
        for options in product((True, False), repeat=4):
            each(partial(calls.draw, options=options), sequences)
        each(calls.attention, steps.tokens, sequences)
        each(calls.logprobs, sequences)
        each(calls.layers, steps.tokens)
        each(calls.scores, steps.tokens)


def _chosen(
    chosen: Sequence[Callable[[Mapping[str, int]], Hashable]], *most: int
) -> Iterator[tuple[int, ...]]:
    """Yield sizes, one tuple for each choice of code that calls of sizes up to `most` make.

    chosen: tells the choices of a call apart, by the extents of its axes of tokens and of sequences. Which
    multiples of a size are divisible by 16 depends on what it and 16 have in common alone. There are no more
    sequences than tokens.
    """
    found: dict[object, tuple[int, ...]] = {}
    for classes in product(*(_by_class(size).items() for size in most)):
        every = [sizes for sizes in product(*(members for _, members in classes)) if sizes[-1] <= sizes[0]]
        if not every:
            continue
        tops = (min(top, size) for (top, _), size in zip(classes, most, strict=True))
        extents = dict(zip(AXES, tops, strict=False))
        choices = tuple(each(extents) for each in chosen)
        found |= {(choices, *(gcd(size, VECTOR) for size in sizes)): sizes for sizes in every}
    yield from found.values()


@dataclass(frozen=True, slots=True)
class _Calls:
    """The calls of one step, by its numbers of tokens and sequences."""

    model: ModelConfig
    dtype: torch.dtype
    steps: Steps
    ranks: int

    def float(self, *shape: int) -> torch.Tensor:
        """Return a tensor of the model's dtype."""
        return stand_in(*shape, dtype=self.dtype)

    def share(self, size: int) -> int:
        """Return a rank's share of heads or columns; at least 1, as kept by ranks that share a head."""
        return max(1, size // self.ranks)

    def layers(self, rows: int) -> None:
        """Call what computes tokens one by one: embedding, norms, products, activation, cache."""
        m, dim = self.model, self.model.head_dim
        heads, keys = self.share(m.num_attention_heads), self.share(m.num_key_value_heads)
        wide, hidden = self.share(m.intermediate_size), m.hidden_size
        x = self.float(rows, hidden)
        ids = torch.zeros(rows, dtype=torch.int64)
        ops.embedding(ids, self.float(self._vocabulary(), hidden))
        weight = self.float(hidden)
        ops.rms_norm(x, weight, eps=m.rms_norm_eps, profile=m.norm_profile)
        residual = self.float(rows, hidden)
        ops.rms_norm(x, weight, residual=residual, eps=m.rms_norm_eps, profile=m.norm_profile)
        gated(self.float(rows, 2 * wide), m.activation)
        for columns, bias in (((heads + 2 * keys) * dim, m.qkv_bias), (2 * wide, m.mlp_bias)):
            column_linear(x, self.float(columns, hidden), self._bias(bias, columns), m.leaves)
        for length, bias in ((heads * dim, m.o_bias), (wide, m.mlp_bias)):
            y, w = self.float(rows, length), self.float(hidden, length)
            if self.ranks == 1:
                row_linear(y, w, self._bias(bias, hidden), m.leaves)
            else:
                ops.matmul(y, w, leaves=m.leaves, part=(0, m.leaves // self.ranks))
        if self.steps.adapters:
            self.adapters(rows, heads * dim, keys * dim, wide)
        qkv = self.float(rows, (heads + 2 * keys) * dim)
        given: dict[str, Any] = {}
        if m.qk_norm:
            given = {"q_weight": self.float(dim), "k_weight": self.float(dim)}
            given |= {"eps": m.rms_norm_eps, "profile": m.norm_profile}
        for pages, rotated in product(self.steps.caches, sorted({rope.dim for rope in m.ropes})):
            cos, sin = self.float(m.max_position_embeddings, rotated).chunk(2, -1)
            ops.cache_qkv(
                qkv, *self._cache(pages, keys), ids, cos=cos, sin=sin, position_ids=ids,
                rotary_dim=None if rotated == dim else rotated, **given,
            )  # fmt: skip

    def adapters(self, rows: int, queries: int, keys: int, wide: int) -> None:
        """Call the two products of adapters of linear layers, of each weight with so many rows."""
        hidden, rank = self.model.hidden_size, self.steps.adapters
        layers = ((hidden, {queries, keys, wide}), (queries, {hidden}), (wide, {hidden}))
        for length, columns in layers:
            y = ops.matmul(self.float(rows, length), self.float(rank, length))
            for each in sorted(columns):
                ops.matmul(y, self.float(each, rank))

    def scores(self, rows: int) -> None:
        """Call the head, and the log-probs of a prompt's tokens."""
        vocab = self.model.vocab_size if self.ranks == 1 else self._vocabulary()
        weight = self.float(vocab, self.model.hidden_size)
        head_logits(self.float(rows, self.model.hidden_size), weight, self.model.final_softcap)
        ids = torch.zeros(rows, dtype=torch.int64)
        ops.logp(stand_in(rows, self.model.vocab_size), ids, needs=("lse",))

    def draw(self, rows: int, options: tuple[bool, ...]) -> None:
        """Call the sampler. options: whether rows have temperature, top_k, top_p and min_p."""
        heated, top_k, top_p, min_p = options
        scores, ids = stand_in(rows, self.model.vocab_size), torch.zeros(rows, dtype=torch.int64)
        each, few = stand_in(rows), torch.zeros(rows, dtype=torch.int32)
        given = (
            each if heated else 1.0,
            few if top_k else 0,
            each if top_p else 1.0,
            each if min_p else 0.0,
        )
        sampling.draw(scores, {"seed": ids, "request_id": ids, "position": ids}, *given)

    def logprobs(self, rows: int) -> None:
        """Call penalties, and log-probs of what is drawn."""
        scores, vocab = stand_in(rows, self.model.vocab_size), self.model.vocab_size
        each, few = stand_in(rows), torch.zeros(rows, dtype=torch.int32)
        counts, prompt = stand_in(rows, vocab, dtype=torch.int32), stand_in(rows, vocab, dtype=torch.bool)
        ops.penalize(scores, ops.Penalties(counts, prompt, repetition=each, frequency=each, presence=each))
        ids, raw = torch.zeros(rows, dtype=torch.int64), self.steps.logprobs == "raw"
        supports = (None,) if raw else (None, Support(each, few, few))
        for support, heat, field in product(supports, (1.0,) if raw else (1.0, each), ("logp", "lse")):
            ops.logp(scores, ids, temperature=heat, support=support, needs=(field,))

    def attention(self, rows: int, sequences: int) -> None:
        """Call attention over pages, with each window that layers have."""
        m, dim = self.model, self.model.head_dim
        heads, keys = self.share(m.num_attention_heads), self.share(m.num_key_value_heads)
        q = self.float(rows, heads, dim)
        edges = torch.linspace(0, rows, sequences + 1).to(torch.int32)
        lengths = torch.ones(sequences, dtype=torch.int32)
        windows = sorted({w is not None for w in m.windows})
        for pages, columns, window in product(self.steps.caches, self.steps.tables, windows):
            table = torch.zeros(sequences, columns, dtype=torch.int32)
            paged_attention_into(
                torch.empty_like(q), q, *self._cache(pages, keys), table, lengths, edges,
                scale=m.attention_scale, window=1 if window else None, softcap=m.attention_softcap,
            )  # fmt: skip

    def _bias(self, given: bool, columns: int) -> torch.Tensor | None:
        return self.float(columns) if given else None

    def _vocabulary(self) -> int:
        """Return a rank's rows of the embedding."""
        return -(-self.model.vocab_size // VOCABULARY) * VOCABULARY // self.ranks

    def _cache(self, pages: int, keys: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and the values of a cache [pages, Hk, page, 2 E], as attention reads them."""
        made = torch.empty(pages, keys, self.steps.page, 2 * self.model.head_dim, dtype=self.dtype)
        keys_of, values_of = made.transpose(1, 2).chunk(2, -1)
        return keys_of, values_of


def _by_class(most: int) -> dict[int, list[int]]:
    """Return the representatives of sizes up to `most`, by their class."""
    found: dict[int, list[int]] = {}
    for size in representatives(most):
        found.setdefault(class_of(size), []).append(size)
    return found


# --- preparing ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prepared:
    """The kernels of steps: folders of the entries that hold them; those that were not compiled, and why."""

    entries: tuple[str, ...]
    failed: tuple[str, ...] = ()


def prepare(
    model: ModelConfig,
    dtype: torch.dtype,
    steps: Steps,
    ranks: int,
    on: Target,
    say: Callable[..., None] = logger.info,
) -> Prepared:
    """Compile what steps of an engine launch and no store has, side by side, and wait for it.

    What an earlier process prepared is not looked up kernel by kernel. What does not compile is left to the
    first call, which raises its error. say: gets a line when it begins to compile, and one at the end.
    """
    begin, steps = time.monotonic(), steps.bucket
    compiled = pool().compiled

    def make() -> Prepared:
        say("preparing the kernels of steps of up to %d tokens", steps.tokens)
        entries, failed = set(), []
        for future, name in started(partial(observe, model, dtype, steps, ranks, on), on).items():
            try:
                entries.add(str(future.result()))
            except RlkError as error:
                failed.append(f"{name}: {error}")
        return Prepared(tuple(sorted(entries)), tuple(failed))

    def read(kept: dict[str, Any]) -> Prepared:
        if not all(Path(each).is_dir() for each in kept["entries"]):
            raise ValueError("an entry is gone")  # evicted, or of a wheel that is no longer installed
        return Prepared(tuple(kept["entries"]))

    table = [entry.facts for entry in user_table.current().entries]
    facts = [
        ["steps", model.model_type],
        repr(model),
        str(dtype),
        astuple(steps),
        ranks,
        asked_for(on),
        table,
    ]
    made = cached("steps", on, facts, make, lambda found: {"entries": found.entries}, read)
    say(
        "%d kernels of steps are there, %d of them compiled now, in %.1f s",
        len(made.entries), pool().compiled - compiled, time.monotonic() - begin,
    )  # fmt: skip
    for why in made.failed:
        logger.warning("left to its first call: %s", why)
    return made
