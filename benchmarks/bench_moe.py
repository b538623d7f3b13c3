"""Benchmark of grouped products, of the experts of Qwen3-30B-A3B, beside torch's grouped product."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

import rlk
from benchmarks import peers
from benchmarks.harness import Bar, Case, Checked, main
from benchmarks.identity import describe
from benchmarks.timing import Launch
from benchmarks.turns import aside
from rlk.testing.bits import differing

EXPERTS, TOP = 128, 8
GATE_UP, DOWN = (1536, 2048), (2048, 768)  # N, K
TOKENS = 8192
DECODED = {1: 0.75, 16: 0.75, 64: 0.9, 256: 0.9}
"""Tokens of a decoding step, and the share of the measured copy rate that the experts' bytes must reach."""
TIMES_OF_TORCH = Bar(round(1 / 0.95, 3), "torch_grouped_mm")


@dataclass(frozen=True, slots=True)
class Routed:
    """Rows sorted by expert, the weights of all experts, and how many rows each expert has."""

    x: Tensor
    w: Tensor
    d_y: Tensor
    offsets: Tensor
    counts: tuple[int, ...]

    @property
    def used(self) -> int:
        """The number of experts that have rows."""
        return sum(count > 0 for count in self.counts)

    def few(self) -> list[tuple[int, int]]:
        """Return the first row of the first and of the last expert that has rows, each with the expert."""
        ends = [0, *accumulate(self.counts)]
        there = [e for e, count in enumerate(self.counts) if count]
        return [(ends[e], e) for e in (there[0], there[-1])]


def balanced(tokens: int) -> tuple[int, ...]:
    """Return equal numbers of rows for all experts."""
    return (tokens * TOP // EXPERTS,) * EXPERTS


def zipf(tokens: int) -> tuple[int, ...]:
    """Return numbers of rows that fall as 1 / rank, at most one for a token, in a random order."""
    most, rows = sum(1 / (rank + 1) for rank in range(EXPERTS)), tokens * TOP
    counts = [min(tokens, int(rows / most / (rank + 1))) for rank in range(EXPERTS)]
    rank = EXPERTS
    while sum(counts) < rows:
        rank = rank - 1 if rank else EXPERTS - 1
        counts[rank] += counts[rank] < tokens
    random.Random(0).shuffle(counts)
    return tuple(counts)


def drawn(tokens: int) -> tuple[int, ...]:
    """Return the numbers of rows of tokens that each draw different experts."""
    draws, counts = random.Random(0), [0] * EXPERTS
    for _ in range(tokens):
        for expert in draws.sample(range(EXPERTS), TOP):
            counts[expert] += 1
    return tuple(counts)


ROUTINGS: dict[str, Callable[[int], tuple[int, ...]]] = {"balanced": balanced, "zipf": zipf, "drawn": drawn}


def routed(counts: tuple[int, ...], n: int, k: int) -> Routed:
    """Draw rows and weights of bf16."""
    sizes = (sum(counts), k), (EXPERTS, n, k), (sum(counts), n)
    x, w, d_y = (torch.randn(s, dtype=torch.bfloat16, device="cuda") for s in sizes)
    offsets = torch.tensor([0, *accumulate(counts)], dtype=torch.int32, device="cuda")
    return Routed(x, w, d_y, offsets, counts)


def torch_grouped(a: Tensor, b: Tensor, ends: Tensor) -> Launch:
    """Return torch's grouped product; raise Absent where it does not run."""
    try:
        torch._grouped_mm(a, b, offs=ends)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise peers.Absent(f"torch._grouped_mm: {error}"[:200]) from error
    return lambda: torch._grouped_mm(a, b, offs=ends)


def copied(count: int) -> Launch:
    """Return a copy that reads and writes so many bytes together."""
    source = torch.empty(count // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def grouped(it: Routed, routing: str, bar: Bar | None) -> Case:
    """The product beside torch's, and beside a copy of the bytes of the experts that have rows."""
    (rows, k), n = it.x.shape, it.w.shape[1]
    bytes_of_experts = 2 * it.used * n * k

    def check() -> Checked:
        few = it.few()
        got = rlk.ops.grouped_matmul(it.x, it.w, it.offsets)[[row for row, _ in few]]
        x, w = it.x[[row for row, _ in few]], it.w[[e for _, e in few]]
        with aside():
            want = rlk.ops.grouped_matmul(x.cpu(), w.cpu(), torch.arange(len(few) + 1))
        wide = (x[:, None].double() @ w.double().mT)[:, 0]
        return Checked(float((got.double() - wide).abs().max()), differing(got.cpu(), want))

    return Case(
        op="grouped_matmul",
        passes="fwd",
        shape={"T": rows, "E": EXPERTS, "N": n, "K": k, "routing": routing},
        rlk=lambda: peers.without_grad(lambda: rlk.ops.grouped_matmul(it.x, it.w, it.offsets)),
        peers={
            "torch_grouped_mm": lambda: torch_grouped(it.x, it.w.mT, it.offsets[1:]),
            "copy": lambda: copied(bytes_of_experts),
        },
        moved=it.x.nbytes + bytes_of_experts + 2 * rows * n,
        flops=2.0 * rows * n * k,
        bar=bar,
        reference="torch_grouped_mm",
        check=check,
        describe=lambda: describe(rlk.ops.grouped_matmul.explain(it.x, it.w, it.offsets)),
    )


def gradient(it: Routed, routing: str, wanted: str) -> Case:
    """The gradient to x, or to w."""
    (rows, k), n = it.x.shape, it.w.shape[1]

    def launch() -> Any:
        x, w = (t.detach().requires_grad_(name == wanted) for name, t in (("x", it.x), ("w", it.w)))
        call = lambda: rlk.ops.grouped_matmul(x, w, it.offsets)  # noqa: E731
        return peers.backward_of(call, (x if wanted == "x" else w,), it.d_y)

    def by_torch() -> Launch:
        if wanted == "x":
            return torch_grouped(it.d_y, it.w, it.offsets[1:])
        return torch_grouped(it.d_y.mT, it.x, it.offsets[1:])

    def check() -> Checked:
        """Compare the first and the last expert's: one row of d x each, or the first column of d w."""
        made, ends, error, differ = launch()()[0], [0, *accumulate(it.counts)], 0.0, 0
        for row, e in it.few():
            part = slice(row, row + 1) if wanted == "x" else slice(ends[e], ends[e + 1])
            some = slice(None) if wanted == "x" else slice(0, 1)  # of N
            x, w, d_y = it.x[part], it.w[e, some], it.d_y[part, some]
            got = made[part] if wanted == "x" else made[e, some]
            wide = d_y.double() @ w.double() if wanted == "x" else d_y.double().mT @ x.double()
            given = x.cpu().requires_grad_(), w.cpu().requires_grad_()
            with aside():
                (want,) = torch.autograd.grad(rlk.ops.matmul(*given), given[wanted == "w"], d_y.cpu())
            error = max(error, float((got.double() - wide).abs().max()))
            differ += differing(got.cpu(), want)
        return Checked(error, differ)

    return Case(
        op="grouped_matmul",
        passes={"x": "dgrad", "w": "wgrad"}[wanted],
        shape={"T": rows, "E": EXPERTS, "N": n, "K": k, "routing": routing},
        rlk=launch,
        peers={"torch_grouped_mm": by_torch},
        moved=2.0 * (rows * (n + k) + it.used * n * k),
        flops=2.0 * rows * n * k,
        bar=TIMES_OF_TORCH,
        reference="torch_grouped_mm",
        check=check,
        describe=lambda: describe(rlk.ops.grouped_matmul.explain(it.x, it.w, it.offsets)),
    )


def cases() -> Iterator[Case]:
    """Yield products and gradients of both weights of the experts, then the products of decoding."""
    for n, k in (GATE_UP, DOWN):
        for routing in ("balanced", "zipf"):
            it = routed(ROUTINGS[routing](TOKENS), n, k)
            yield grouped(it, routing, TIMES_OF_TORCH)
            for wanted in ("x", "w"):
                yield gradient(it, routing, wanted)
        for tokens, share in DECODED.items():
            it = routed(drawn(tokens), n, k)
            yield grouped(it, "drawn", Bar(round(1 / share, 3), "copy"))


if __name__ == "__main__":
    main("moe", cases, matrix=True)
