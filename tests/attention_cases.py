"""Small calls of attention: packed sequences, the same in pages, and one query at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from rlk.interp.floats import bf16_bits
from rlk.interp.run import Outcome, run
from rlk.ir.nodes import MathModel, Program
from rlk.ir.text import parse_program, print_program
from rlk.lang import Op, Variant, bf16, f16, i32, i64
from rlk.passes.pipeline import canonical
from rlk.specs.attention import paged_attention, varlen_attention

DTYPES = {"bf16": bf16, "f16": f16}
OFFSETS = {np.dtype(np.int32): i32, np.dtype(np.int64): i64}
OPTIONS = frozenset({"window", "softcap", "inv_softcap", "sinks"})
Inputs = dict[str, Any]


@dataclass(frozen=True)
class Batch:
    """Sequences with all their queries, keys and values: of sequence i the last `queries[i]` tokens ask."""

    q: tuple[Any, ...]
    k: tuple[Any, ...]
    v: tuple[Any, ...]
    dtype: str = "bf16"
    options: tuple[tuple[str, Any], ...] = ()

    def only(self, *which: int) -> Batch:
        """Return some of the sequences, in this order."""
        parts = {n: tuple(getattr(self, n)[i] for i in which) for n in ("q", "k", "v")}
        return replace(self, **parts)

    def tail(self, count: int) -> Batch:
        """Return the batch with the last so many queries of each sequence."""
        return replace(self, q=tuple(x[max(0, len(x) - count) :] for x in self.q))

    def until(self, length: int) -> Batch:
        """Return the batch as it was when no sequence was longer; queries are those of keys that remain."""
        held = [len(x) - max(0, len(k) - length) for x, k in zip(self.q, self.k, strict=True)]
        q = tuple(x[: max(0, n)] for x, n in zip(self.q, held, strict=True))
        return replace(self, q=q, k=tuple(x[:length] for x in self.k), v=tuple(x[:length] for x in self.v))


def stored(x: Any, dtype: str) -> Any:
    return bf16_bits(np.asarray(x, np.float32)) if dtype == "bf16" else np.asarray(x, np.float16)


def batch(
    queries: Sequence[int], keys: Sequence[int], *, heads: int = 1, group: int = 2, e: int = 16, w: int = 16,
    dtype: str = "bf16", seed: int = 0, **options: Any,
) -> Batch:  # fmt: skip
    """Draw a batch of sequences by their numbers of queries and keys."""
    rng = np.random.default_rng(seed)

    def drawn(count: int, *shape: int) -> Any:
        return stored(rng.normal(size=(count, *shape)), dtype)

    q = tuple(drawn(n, heads, group, e) for n in queries)
    k, v = tuple(drawn(n, heads, e) for n in keys), tuple(drawn(n, heads, w) for n in keys)
    return Batch(q, k, v, dtype, tuple(sorted(options.items())))


def offsets(parts: Sequence[Any], kind: type = np.int32) -> Any:
    return np.cumsum([0, *map(len, parts)]).astype(kind)


def packed(given: Batch, kind: type = np.int32) -> Inputs:
    """Return the inputs of `varlen_attention`."""
    cu_q, cu_k = offsets(given.q, kind), offsets(given.k, kind)
    bounds = {"begin_q": cu_q[:-1], "end_q": cu_q[1:], "begin_k": cu_k[:-1], "end_k": cu_k[1:]}
    tensors = {n: np.concatenate(getattr(given, n)) for n in ("q", "k", "v")}
    return {**tensors, **bounds, "scale": 0.3, **dict(given.options)}


def paged(given: Batch, page: int = 16, seed: int = 1) -> Inputs:
    """Return the inputs of `paged_attention`: pages in any order, NaN or no page where nobody wrote."""
    inputs, rng = packed(given), np.random.default_rng(seed)
    longest = max(map(len, given.k))
    table = np.full((len(given.k), -(-longest // page) + 1), 1 << 30, np.int32)
    free = iter(rng.permutation(sum(-(-len(k) // page) for k in given.k) + 3))
    caches = {}
    for name in ("k", "v"):
        rows = getattr(given, name)
        nan = stored(np.full((table.size + 3, page, *rows[0].shape[1:]), np.nan), given.dtype)
        caches[f"{name}_cache"] = nan
    for i, (k, v) in enumerate(zip(given.k, given.v, strict=True)):
        for first in range(0, len(k), page):
            table[i, first // page] = at = next(free)
            for name, rows in (("k_cache", k), ("v_cache", v)):
                part = rows[first : first + page]
                caches[name][at, : len(part)] = part
    lengths = np.array([len(k) for k in given.k], np.int32)
    left = {n: x for n, x in inputs.items() if n not in ("k", "v", "begin_k", "end_k")}
    return {**left, **caches, "block_table": table, "context_lens": lengths}


@cache
def program(
    spec: Op, dtype: str, present: frozenset[str], causal: bool = True, offset: object = i32,
    apart: bool = False, numerics: tuple[int, int] = (64, 512),
) -> Program:  # fmt: skip
    """Return the canonical program; numerics: the chunk and the piece of the streamed axis."""
    variant = Variant.of({"F": DTYPES[dtype], "Offsets": offset}, {"scale", *present}, {"causal": causal})
    text = print_program(spec.trace(variant))
    chunk, piece = numerics
    traced = parse_program(text.replace("chunk=64 piece=512", f"chunk={chunk} piece={piece}"))
    return canonical(traced, apart=frozenset({"S"} if apart else ()))


def of(inputs: Mapping[str, Any], **more: Any) -> Program:
    """Return the program that takes these inputs."""
    spec = paged_attention if "k_cache" in inputs else varlen_attention
    dtype = "f16" if inputs["q"].dtype == np.float16 else "bf16"
    return program(spec, dtype, OPTIONS.intersection(inputs), offset=OFFSETS[inputs["begin_q"].dtype], **more)


def extents(inputs: Mapping[str, Any]) -> dict[str, int]:
    """Return the bounds of the axes that no tensor has."""
    found = {"Q": len(inputs["q"])}
    if "k_cache" in inputs:
        found["S"] = inputs["block_table"].shape[1] * inputs["k_cache"].shape[1]
    return found


def oracle(inputs: Inputs, **more: Any) -> Outcome:
    longest = int((inputs["end_q"] - inputs["begin_q"]).max(initial=1))
    return run(of(inputs, **more), inputs, softmax=MathModel.SM90, extents={**extents(inputs), "Q": longest})


def rows(outcome: Any, given: Batch) -> list[tuple[Any, Any]]:
    """Return what each sequence got: o by query, lse by query."""
    cu = offsets(given.q)
    tensors = getattr(outcome, "tensors", outcome)
    cuts = [slice(a, b) for a, b in zip(cu[:-1], cu[1:], strict=True)]
    return [(tensors["o"][cut], np.moveaxis(tensors["lse"], 2, 0)[cut]) for cut in cuts]


def last(found: Sequence[tuple[Any, Any]], count: int) -> list[tuple[Any, Any]]:
    """Return the last so many queries of each sequence."""
    return [(o[max(0, len(o) - count) :], lse[max(0, len(o) - count) :]) for o, lse in found]
