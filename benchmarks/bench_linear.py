"""What contractions cost beside cuBLAS: log-probs of a linear head, and batch-invariant products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import rlk
from benchmarks import heads, peers
from benchmarks.harness import Bar, Case, Checked, Room, main
from benchmarks.heads import Head, drawn
from benchmarks.identity import compare, describe, differing_there
from benchmarks.steps import stepped

HIDDEN = 4096
VOCABULARIES = (128256, 151936)
FORWARD_ROOM, TRAINING_ROOM = Room(128.0), Room(768.0)
SAMPLED = (0, -1)
KEPT = 8 * 2**30  # bytes: more than the f32 logits of 8192 tokens
PRODUCTS = ((8192, 4096, 4096), (8192, 14336, 4096), (2048, 4096, 14336), (256, 4096, 4096), (64, 4096, 4096))


def linear(rows: int, vocabulary: int, needs: tuple[str, ...], bar: Bar | None, **options: Any) -> Case:
    """Forward log-probs of a linear head: one product, no logits in memory."""
    h = heads.head(rows, vocabulary, HIDDEN)
    hidden, weight, ids = h.hidden.detach(), h.weight.detach(), h.ids
    every = heads.forward_peers(h)
    call = lambda: rlk.ops.linear_logp(hidden, weight, ids, needs=needs, **options)  # noqa: E731

    def check() -> Checked:
        few = torch.tensor(SAMPLED, device="cuda") % rows
        out = call()
        wide = rlk.ops.linear_logp.reference(hidden[few], weight, ids[few], needs=needs, **options)
        got = [getattr(out, name)[few] for name in needs]
        error = max(
            float((g.double() - getattr(wide, n)).abs().max()) for g, n in zip(got, needs, strict=True)
        )
        sampled = (hidden[few], weight, ids[few])
        return Checked(error, compare(rlk.ops.linear_logp, got, *sampled, needs=needs, **options))

    return Case(
        op="linear_logp",
        passes="fwd",
        shape={"N": rows, "D": HIDDEN, "V": vocabulary},
        rlk=lambda: peers.without_grad(call),
        peers=every if bar else {"cublas_gemm": every["cublas_gemm"]},
        moved=hidden.nbytes + weight.nbytes,
        flops=2.0 * rows * HIDDEN * vocabulary,
        bar=bar,
        room=FORWARD_ROOM,
        reference="cublas_gemm",
        check=check,
        describe=lambda: describe(rlk.ops.linear_logp.explain(hidden, weight, ids, needs=needs, **options)),
        notes={"needs": list(needs), **options},
    )


def trained(rows: int, vocabulary: int, bar: Bar | None, **options: Any) -> Case:
    """Log-probs and entropies with the gradients of hidden states and weight: four products, or three.

    Kept logits save one, change no bit, and have no bar of memory.
    """
    h = heads.head(rows, vocabulary, HIDDEN)
    needs, every = ("logp", "entropy"), heads.gradient_peers(h)
    return Case(
        op="linear_logp",
        passes="fwd+bwd",
        shape={"N": rows, "D": HIDDEN, "V": vocabulary},
        rlk=lambda: lambda: differentiated(h, needs, **options)[1],
        peers={"cublas_gemm": every["cublas_gemm"]} if options else every,
        moved=2 * (h.hidden.nbytes + h.weight.nbytes),
        flops=(6.0 if options else 8.0) * rows * HIDDEN * vocabulary,
        bar=bar,
        room=None if options else TRAINING_ROOM,
        reference="cublas_gemm",
        check=lambda: check_gradient(h, needs, **options),
        describe=lambda: describe(rlk.ops.linear_logp.explain(*h.leaves, h.ids, needs=needs, **options)),
        notes={"needs": list(needs), **options},
    )


def check_gradient(h: Head, needs: tuple[str, ...], **options: Any) -> Checked:
    """Compare sampled gradients with float64, sampled rows with the oracle, all rows with turned ones.

    The oracle's gradient takes too long at this size: `tests/gpu` compares smaller ones.
    """
    few = torch.tensor(SAMPLED, device="cuda") % len(h.ids)
    columns = h.ids[few]
    values, (d_hidden, d_weight) = differentiated(h, needs, **options)
    wide = heads.exact(h.hidden, h.weight, h.ids, (h.seed, h.entropy_seed), few, columns)
    pairs = ((d_hidden[few], wide.d_hidden), (d_weight[columns], wide.d_weight))
    error = max(float((got.double() - want).abs().max()) for got, want in pairs)
    sampled = (h.hidden[few], h.weight, h.ids[few])
    wrong = compare(rlk.ops.linear_logp, [x[few] for x in values], *sampled, needs=needs)
    _, (turned, _) = differentiated(heads.turned(h), needs)
    return Checked(error, wrong + differing_there(turned.flip(0), d_hidden))


def differentiated(
    h: Head, needs: tuple[str, ...], **options: Any
) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """Return what was asked for, and the gradients of hidden states and weight."""
    made = rlk.ops.linear_logp(h.hidden, h.weight, h.ids, needs=needs, **options)
    values = [getattr(made, name) for name in needs]
    return [x.detach() for x in values], torch.autograd.grad(values, h.leaves, (h.seed, h.entropy_seed))


def product(m: int, n: int, k: int, bar: Bar | None) -> Case:
    """A product whose rows do not know how many there are."""
    x, weight = drawn(m, n, k)

    def check() -> Checked:
        few = torch.tensor(SAMPLED, device="cuda") % m
        got = rlk.ops.matmul(x, weight)[few]
        wide = x[few].double() @ weight.double().t()
        return Checked(
            float((got.double() - wide).abs().max()), compare(rlk.ops.matmul, [got], x[few], weight)
        )

    return Case(
        op="matmul",
        passes="fwd",
        shape={"M": m, "N": n, "K": k},
        rlk=lambda: peers.without_grad(lambda: rlk.ops.matmul(x, weight)),
        peers={"cublas_gemm": lambda: heads.product(x, weight)},
        moved=x.nbytes + weight.nbytes + 2 * m * n,
        flops=2.0 * m * n * k,
        bar=bar,
        reference="cublas_gemm",
        check=check,
        describe=lambda: describe(rlk.ops.matmul.explain(x, weight)),
    )


def cases() -> Iterator[Case]:
    """Yield the rows of the family; the inputs of one row live at a time."""
    for vocabulary in VOCABULARIES:
        yield linear(8192, vocabulary, ("logp", "lse"), Bar(1.08, "cublas_gemm"))
        yield linear(8192, vocabulary, ("logp", "lse", "entropy"), None, temperature=0.7)
        torch.cuda.empty_cache()
    for vocabulary, bar in zip(VOCABULARIES, (Bar(62.0), Bar(1.25, "cublas_gemm")), strict=True):
        yield trained(8192, vocabulary, bar)
        torch.cuda.empty_cache()
    yield trained(8192, VOCABULARIES[0], None, keep_logits=KEPT)
    torch.cuda.empty_cache()
    yield stepped(heads.step(8, 1024, VOCABULARIES[0], HIDDEN), {"B": 8, "L": 1024}, Bar(65.0), TRAINING_ROOM)
    torch.cuda.empty_cache()
    for rows in (1, 64, 300, 1024):
        yield linear(rows, 128256, ("logp", "lse"), None)
    for m, n, k in PRODUCTS:
        yield product(m, n, k, Bar(1.25, "cublas_gemm") if m >= 2048 else None)


if __name__ == "__main__":
    main("linear", cases, matrix=True)
