"""Benchmark of contractions beside cuBLAS: log-probs of a linear head, and batch-invariant products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import rlk
from benchmarks import heads, peers
from benchmarks.harness import Bar, Case, Checked, Room, main, of_backend
from benchmarks.heads import Head, drawn
from benchmarks.identity import compare, describe, differing_there
from benchmarks.steps import stepped
from rlk.ops.products import add_weight_gradient
from rlk.testing.bits import differing

HIDDEN = 4096
VOCABULARIES = (128256, 151936)
FORWARD_ROOM, TRAINING_ROOM = Room(128.0), Room(768.0)
SAMPLED = (0, -1)
KEPT = 8 * 2**30  # bytes: more than the f32 logits of 8192 tokens
SHORT = (2048, 131072)  # rows and vocabulary of a micro-batch
SIDES = (4096, 14336)
ROWS = (1, 8, 16, 64, 128, 256, 1024, 2048, 8192)
PIECES = (16, 64, 128, 256, 1024)  # rows of a product in eight leaves
TOKENS = 8192
LAYER = ((6144, 4096, True), (24576, 4096, True), (4096, 4096, False), (4096, 12288, False))
"""N, K of qkv, gate and up, o, down of Qwen3-8B, and whether ranks share N (else K)."""


def linear(
    rows: int,
    vocabulary: int,
    needs: tuple[str, ...],
    bar: Bar | None,
    *,
    depth: int = HIDDEN,
    **options: Any,
) -> Case:
    """Forward log-probs of a linear head: one product, no logits in memory."""
    h = heads.head(rows, vocabulary, depth)
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
        shape={"N": rows, "D": depth, "V": vocabulary},
        rlk=lambda: peers.without_grad(call),
        peers=every if bar else {"cublas_gemm": every["cublas_gemm"]},
        moved=hidden.nbytes + weight.nbytes,
        flops=2.0 * rows * depth * vocabulary,
        bar=bar,
        room=FORWARD_ROOM,
        reference="cublas_gemm",
        check=check,
        describe=lambda: describe(rlk.ops.linear_logp.explain(hidden, weight, ids, needs=needs, **options)),
        notes={"needs": list(needs), **options},
    )


def supported(rows: int, vocabulary: int) -> Case:
    """Forward log-probs over a sampler's support, beside those over the whole vocabulary."""
    h = heads.head(rows, vocabulary, HIDDEN)
    hidden, weight, ids = h.hidden.detach(), h.weight.detach(), h.ids
    # scores are of N(0, 3^2): about a sixth of the vocabulary
    threshold = torch.full((rows,), 3.0, device="cuda")
    last = torch.full((rows,), vocabulary, dtype=torch.int32, device="cuda")
    support = rlk.ops.Support(threshold, torch.ones_like(last), last)
    call = lambda: rlk.ops.linear_logp(hidden, weight, ids, support=support)  # noqa: E731
    whole = lambda: rlk.ops.linear_logp(hidden, weight, ids)  # noqa: E731

    def check() -> Checked:
        few = torch.tensor(SAMPLED, device="cuda") % rows
        kept = rlk.ops.Support(*(x[few].cpu() for x in support))
        want = rlk.ops.linear_logp(hidden[few].cpu(), weight.cpu(), ids[few].cpu(), support=kept, math="sm90")
        return Checked(0.0, differing(call().logp[few].cpu(), want.logp))

    return Case(
        op="linear_logp",
        passes="fwd",
        shape={"N": rows, "D": HIDDEN, "V": vocabulary},
        rlk=lambda: peers.without_grad(call),
        peers={"rlk_whole_vocabulary": lambda: peers.without_grad(whole)},
        moved=hidden.nbytes + weight.nbytes,
        flops=2.0 * rows * HIDDEN * vocabulary,
        bar=Bar(1.05, "rlk_whole_vocabulary"),
        reference="rlk_whole_vocabulary",
        check=check,
        describe=lambda: describe(rlk.ops.linear_logp.explain(hidden, weight, ids, support=support)),
        notes={"support": "threshold"},
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


def distilled(rows: int, vocabulary: int) -> Case:
    """A divergence from a teacher of equal size, with the gradients of the student: six products."""
    h, (taught, head) = heads.head(rows, vocabulary, HIDDEN), drawn(rows, vocabulary, HIDDEN)
    given = (h.hidden, h.weight, taught, head)

    def plain(hidden: Tensor, weight: Tensor) -> Tensor:
        return peers.plain_jsd(hidden @ weight.t(), taught @ head.t())

    def check() -> Checked:
        few = torch.tensor(SAMPLED, device="cuda") % rows
        sampled = (h.hidden[few].detach(), h.weight.detach(), taught[few], head)
        got = rlk.ops.linear_jsd_loss(*given)[few].detach()
        error = float((got.double() - rlk.ops.linear_jsd_loss.reference(*sampled)).abs().max())
        return Checked(error, compare(rlk.ops.linear_jsd_loss, [got], *sampled))

    return Case(
        op="linear_jsd_loss",
        passes="fwd+bwd",
        shape={"N": rows, "D": HIDDEN, "V": vocabulary},
        rlk=lambda: peers.with_grad(lambda: rlk.ops.linear_jsd_loss(*given), h.leaves, h.seed),
        peers={
            "torch_eager": lambda: peers.with_grad(lambda: plain(*h.leaves), h.leaves, h.seed),
            "torch_compile": lambda: peers.with_grad(peers.compiled(plain, *h.leaves), h.leaves, h.seed),
        },
        moved=3.0 * (h.hidden.nbytes + h.weight.nbytes),
        flops=12.0 * rows * HIDDEN * vocabulary,
        check=check,
        describe=lambda: describe(rlk.ops.linear_jsd_loss.explain(*given)),
    )


def product(m: int, n: int, k: int, bar: Bar | None, **options: Any) -> Case:
    """A product whose rows do not know how many there are; beside cuBLAS's, which rounds to 16 bits."""
    x, weight = drawn(m, n, k)
    bytes_of_result = options.get("out_dtype", x.dtype).itemsize

    def check() -> Checked:
        few = torch.tensor(SAMPLED, device="cuda") % m
        got = rlk.ops.matmul(x, weight, **options)[few]
        wide = x[few].double() @ weight.double().t()
        return Checked(
            float((got.double() - wide).abs().max()),
            compare(rlk.ops.matmul, [got], x[few], weight, **options),
        )

    return Case(
        op="matmul",
        passes="fwd",
        shape={"M": m, "N": n, "K": k},
        rlk=lambda: peers.without_grad(lambda: rlk.ops.matmul(x, weight, **options)),
        peers={"cublas_gemm": lambda: heads.product(x, weight)},
        moved=x.nbytes + weight.nbytes + bytes_of_result * m * n,
        flops=2.0 * m * n * k,
        bar=bar,
        reference="cublas_gemm",
        check=check,
        describe=lambda: describe(rlk.ops.matmul.explain(x, weight, **options)),
        notes={name: str(x) if isinstance(x, torch.dtype) else x for name, x in options.items()},
    )


def product_gradient(m: int, n: int, k: int, wanted: str, bar: Bar | None, **options: Any) -> Case:
    """The gradient of a product to x or w, or that of w added onto an f32 buffer (wanted: onto).

    cuBLAS gives the same dtype, and reads the buffer likewise (beta = 1).
    """
    x, weight = drawn(m, n, k)
    d_y = torch.randn(m, n, dtype=torch.bfloat16, device="cuda")
    buffer = torch.zeros(n, k, device="cuda") if wanted == "onto" else None
    # one of them: a node of autograd computes the gradients of all inputs that require one
    leaf = (x if wanted == "x" else weight).requires_grad_(True)

    def launch() -> Any:
        return peers.backward_of(lambda: rlk.ops.matmul(x, weight, **options), (leaf,), d_y)

    def onto() -> Any:
        other = x.detach()
        return lambda: torch.ops.rlk.matmul_weight_grad_into(d_y, other, buffer)

    def cublas() -> Any:
        a, b, t = x.detach(), weight.detach(), d_y.t()
        if wanted == "x":
            return lambda: torch.matmul(d_y, b)
        if buffer is None:
            return lambda: torch.matmul(t, a)
        try:
            torch.addmm(buffer, t, a, out_dtype=torch.float32)
        except (RuntimeError, TypeError) as error:
            raise peers.Absent(f"torch.addmm of bf16 onto f32: {error}"[:200]) from error
        return lambda: torch.addmm(buffer, t, a, out_dtype=torch.float32)

    def check() -> Checked:
        few = torch.tensor(SAMPLED, device="cuda") % (m if wanted == "x" else n)
        if buffer is not None:
            buffer.zero_()
            add_weight_gradient(d_y, x.detach(), buffer)
            got = buffer[few]
        else:
            got = launch()()[0][few]
        rows = (x[few], weight, d_y[few]) if wanted == "x" else (x, weight[few], d_y[:, few])
        given, w, seed = (t.detach() for t in rows)
        wide = seed.double() @ w.double() if wanted == "x" else seed.double().t() @ given.double()
        given, w, seed = given.cpu().requires_grad_(), w.cpu().requires_grad_(), seed.cpu()
        if buffer is not None:
            want = torch.zeros(w.shape)
            add_weight_gradient(seed, given.detach(), want)
        else:
            (want,) = torch.autograd.grad(
                rlk.ops.matmul(given, w, **options), given if wanted == "x" else w, seed
            )
        return Checked(float((got.double() - wide).abs().max()), differing(got.cpu(), want))

    return Case(
        op="matmul",
        passes={"x": "dgrad", "w": "wgrad", "onto": "wgrad onto f32"}[wanted],
        shape={"M": m, "N": n, "K": k},
        rlk=launch if buffer is None else onto,
        peers={"cublas_gemm": cublas},
        moved=2.0 * (m * n + m * k + n * k) if buffer is None else 2.0 * (m * n + m * k) + 8.0 * n * k,
        flops=2.0 * m * n * k,
        bar=bar,
        reference="cublas_gemm",
        check=check,
        describe=lambda: describe(rlk.ops.matmul.explain(x, weight, **options)),
        notes=options,
    )


def of_cublas(share: float) -> Bar:
    """Return the bar of a product that must reach a share of cuBLAS's speed."""
    return Bar(round(1 / share, 3), "cublas_gemm")


def layers() -> Iterator[Case]:
    """Yield products of a Qwen3-8B layer with their gradients; first those whose N ranks share."""
    bar, leaves = of_backend(triton=None, cute=of_cublas(0.97)), of_backend(triton=None, cute=of_cublas(0.92))
    for n, k, columns in LAYER:
        if (n, k) != (SIDES[0], SIDES[0]):  # one of `products`
            yield product(TOKENS, n, k, bar)
        for wanted in ("x", "w", "onto"):
            yield product_gradient(TOKENS, n, k, wanted, bar)
        if columns:
            yield product_gradient(TOKENS, n, k, "x", leaves, grad_leaves=8)
        else:
            yield product(TOKENS, n, k, leaves, leaves=8)
        torch.cuda.empty_cache()


def products() -> Iterator[Case]:
    """Yield products of every number of rows; few rows first."""
    for m in ROWS:
        cute = of_cublas(0.90 if m <= 64 else 0.75 if m <= 1024 else 0.95)
        bar = of_backend(triton=of_cublas(0.80) if m >= 2048 else None, cute=cute)
        for n in SIDES:
            for k in SIDES:
                yield product(m, n, k, bar)
    for m in PIECES:
        share = 0.90 if m <= 64 else 0.92 if m >= 1024 else 0.85
        yield product(m, SIDES[0], SIDES[0], of_backend(triton=None, cute=of_cublas(share)), leaves=8)


def heads_of_engines() -> Iterator[Case]:
    """Yield the products of heads of Qwen3-0.6B and 8B, whose f32 logits an engine draws from."""
    bar = of_backend(triton=None, cute=of_cublas(0.95))
    for depth in (1024, HIDDEN):
        for sequences in (1, 16, 64, 256):
            yield product(sequences, VOCABULARIES[1], depth, bar, out_dtype=torch.float32)
            torch.cuda.empty_cache()


def cases() -> Iterator[Case]:
    """Yield the rows of the family; the inputs of one row live at a time."""
    bare = of_backend(triton=Bar(1.08, "cublas_gemm"), cute=Bar(1.02, "cublas_gemm"))
    four = of_backend(triton=Bar(1.25, "cublas_gemm"), cute=Bar(1.10, "cublas_gemm"))
    first = of_backend(triton=Bar(62.0), cute=four)
    for vocabulary in VOCABULARIES:
        yield linear(8192, vocabulary, ("logp", "lse"), bare)
        yield linear(8192, vocabulary, ("logp", "lse", "entropy"), None, temperature=0.7)
        torch.cuda.empty_cache()
    yield linear(*SHORT, ("logp", "lse"), bare)
    yield supported(8192, VOCABULARIES[0])
    torch.cuda.empty_cache()
    for rows, vocabulary, bar in (
        (8192, VOCABULARIES[0], first),
        (8192, VOCABULARIES[1], four),
        (*SHORT, four),
    ):
        yield trained(rows, vocabulary, bar)
        torch.cuda.empty_cache()
    yield trained(8192, VOCABULARIES[0], None, keep_logits=KEPT)
    torch.cuda.empty_cache()
    step = of_backend(triton=Bar(65.0), cute=Bar(56.0))
    yield stepped(heads.step(8, 1024, VOCABULARIES[0], HIDDEN), {"B": 8, "L": 1024}, step, TRAINING_ROOM)
    torch.cuda.empty_cache()
    yield distilled(2048, VOCABULARIES[0])
    torch.cuda.empty_cache()
    for rows in (1, 64, 300, 1024):
        yield linear(rows, 128256, ("logp", "lse"), None)
    yield from products()
    yield from heads_of_engines()
    yield from layers()


if __name__ == "__main__":
    main("linear", cases, matrix=True)
