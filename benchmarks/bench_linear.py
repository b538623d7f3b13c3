"""What contractions cost beside cuBLAS: log-probs of a linear head, and batch-invariant products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import rlk
from benchmarks import peers
from benchmarks.harness import Bar, Case, Checked, main
from benchmarks.identity import compare, describe
from benchmarks.peers import Launch

HIDDEN = 4096
SAMPLED = (0, -1)
PRODUCTS = ((8192, 4096, 4096), (8192, 14336, 4096), (2048, 4096, 14336), (256, 4096, 4096), (64, 4096, 4096))


def drawn(rows: int, columns: int, depth: int) -> tuple[Tensor, Tensor]:
    """Draw rows from N(0, 1) and a weight that makes scores of about N(0, 3^2)."""
    x = torch.randn(rows, depth, dtype=torch.bfloat16, device="cuda")
    weight = torch.empty(columns, depth, dtype=torch.bfloat16, device="cuda").normal_(0.0, 3.0 / depth**0.5)
    return x, weight


def cublas(x: Tensor, weight: Tensor) -> Launch:
    """Return the bare product, written as bf16 into memory that stays."""
    out = torch.empty(len(x), len(weight), dtype=x.dtype, device=x.device)
    return peers.without_grad(lambda: torch.matmul(x, weight.t(), out=out))


def linear(rows: int, vocabulary: int, needs: tuple[str, ...], bar: Bar | None, **options: Any) -> Case:
    """Forward log-probs of a linear head: one product, no logits in memory."""
    hidden, weight = drawn(rows, vocabulary, HIDDEN)
    ids = torch.randint(vocabulary, (rows,), device="cuda")
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
        peers={"cublas_gemm": lambda: cublas(hidden, weight)},
        moved=hidden.nbytes + weight.nbytes,
        flops=2.0 * rows * HIDDEN * vocabulary,
        bar=bar,
        reference="cublas_gemm",
        check=check,
        describe=lambda: describe(rlk.ops.linear_logp.explain(hidden, weight, ids, needs=needs, **options)),
        notes={"needs": list(needs), **options},
    )


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
        peers={"cublas_gemm": lambda: cublas(x, weight)},
        moved=x.nbytes + weight.nbytes + 2 * m * n,
        flops=2.0 * m * n * k,
        bar=bar,
        reference="cublas_gemm",
        check=check,
        describe=lambda: describe(rlk.ops.matmul.explain(x, weight)),
    )


def cases() -> Iterator[Case]:
    """Yield the rows of the family; the inputs of one row live at a time."""
    for vocabulary in (128256, 151936):
        yield linear(8192, vocabulary, ("logp", "lse"), Bar(1.08, "cublas_gemm"))
        yield linear(8192, vocabulary, ("logp", "lse", "entropy"), None, temperature=0.7)
        torch.cuda.empty_cache()
    for rows in (1, 64, 300, 1024):
        yield linear(rows, 128256, ("logp", "lse"), None)
    for m, n, k in PRODUCTS:
        yield product(m, n, k, Bar(1.25, "cublas_gemm") if m >= 2048 else None)


if __name__ == "__main__":
    main("linear", cases)
