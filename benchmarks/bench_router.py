"""Benchmark of the router of a layer of experts, and of the moves of its rows, at Qwen3-30B-A3B's shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

import rlk
from benchmarks import peers
from benchmarks.harness import Case, Checked, main
from benchmarks.identity import describe
from benchmarks.peers import Launch
from rlk.ops import Permuted, Route
from rlk.testing.bits import differing

EXPERTS, K, WIDTH = 128, 8, 2048
TOKENS = (8192, 64, 1)
FEW = 16


@dataclass(frozen=True, slots=True)
class Inputs:
    """scores [T, E] of a router, hidden states x [T, D], and what route and permute make of them."""

    scores: Tensor
    x: Tensor
    route: Route
    permuted: Permuted
    seed: Tensor


def inputs(tokens: int) -> Inputs:
    """Draw scores and hidden states from N(0, 1)."""
    scores = torch.randn(tokens, EXPERTS, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    x = torch.randn(tokens, WIDTH, dtype=torch.bfloat16, device="cuda")
    made = rlk.ops.route(scores.detach(), K)
    return Inputs(scores, x, made, rlk.ops.permute(x, made.ids, experts=EXPERTS), torch.randn_like(x))


def torch_route(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return softmax, top-k and renormalised weights as transformers' Qwen3-MoE has them."""
    weights, ids = torch.topk(torch.softmax(scores, -1, dtype=torch.float32), K, -1)
    return weights / weights.sum(-1, keepdim=True), ids


def torch_permute(x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows sorted by expert, their order, and counts of experts."""
    order = torch.argsort(ids.reshape(-1))
    return x[order // K], order, torch.histc(ids.int(), EXPERTS, 0, EXPERTS)


def torch_combine(rows: Tensor, weights: Tensor, place: Tensor) -> Tensor:
    """Return weighted rows of each token, added."""
    made: Tensor = (rows[place] * weights[..., None].to(rows.dtype)).sum(1)
    return made


def case(
    op: str,
    i: Inputs,
    ours: Callable[[], Launch],
    theirs: Callable[[], Launch],
    moved: float,
    check: Callable[[], Checked] | None = None,
    describes: Callable[[], dict[str, str]] | None = None,
    passes: str = "fwd",
) -> Case:
    """Return a row of an operator beside torch's own composition, compiled."""
    shape = {"T": len(i.x), "E": EXPERTS, "k": K, "D": WIDTH}
    return Case(
        op=op, passes=passes, shape=shape, rlk=ours, peers={"torch_compile": theirs}, moved=moved,
        check=check, describe=describes, reference="torch_compile",
    )  # fmt: skip


def check_route(i: Inputs) -> Checked:
    """Compare the first tokens with float64 and with the oracle."""
    few = i.scores.detach()[:FEW].cpu()
    wide, want = rlk.ops.route.reference(few, K), rlk.ops.route(few, K)
    got = i.route.weights[:FEW].cpu()
    error = float((got.double() - wide.weights).abs().max())
    return Checked(error, differing(i.route.ids[:FEW].cpu(), want.ids) + differing(got, want.weights))


def check_combine(i: Inputs) -> Checked:
    """Compare the first tokens with float64 and with the oracle, whose rows are the same."""
    y = rlk.ops.combine(i.permuted.rows, i.route.weights, i.permuted)[:FEW].cpu()
    x, made = i.x[:FEW].cpu(), Route(i.route.ids[:FEW].cpu(), i.route.weights[:FEW].cpu())
    permuted = rlk.ops.permute(x, made.ids, experts=EXPERTS)
    wide = rlk.ops.combine.reference(permuted.rows, made.weights, permuted)
    want = rlk.ops.combine(permuted.rows, made.weights, permuted)
    return Checked(float((y.double() - wide).abs().max()), differing(y, want))


def cases() -> Iterator[Case]:
    """Yield the router with its gradient, its losses, and the moves of rows, of many tokens and of few."""
    for tokens in TOKENS:
        i = inputs(tokens)
        ids, weights, permuted = i.route.ids, i.route.weights, i.permuted
        # defaults bind the numbers of this turn of the loop
        yield case(
            "route",
            i,
            lambda i=i: peers.without_grad(lambda: rlk.ops.route(i.scores, K)),
            lambda i=i: peers.without_grad(peers.compiled(torch_route, i.scores)),
            i.scores.nbytes + ids.nbytes + weights.nbytes,
            lambda i=i: check_route(i),
            lambda i=i: describe(rlk.ops.route.explain(i.scores, K)),
        )  # fmt: skip
        g = torch.randn_like(weights)
        yield case(
            "route",
            i,
            lambda i=i, g=g: peers.backward_of(lambda: rlk.ops.route(i.scores, K).weights, (i.scores,), g),
            lambda i=i, g=g: peers.backward_of(lambda: torch_route(i.scores)[0], (i.scores,), g),
            2 * i.scores.nbytes + ids.nbytes + weights.nbytes, passes="bwd",
        )  # fmt: skip
        yield case(
            "permute",
            i,
            lambda i=i, ids=ids: lambda: rlk.ops.permute(i.x, ids, experts=EXPERTS),
            lambda i=i, ids=ids: peers.compiled(torch_permute, i.x, ids),
            i.x.nbytes + permuted.rows.nbytes + ids.nbytes,
        )  # fmt: skip
        yield case(
            "combine",
            i,
            lambda i=i, w=weights, p=permuted: lambda: rlk.ops.combine(p.rows, w, p),
            lambda i=i, w=weights, p=permuted: peers.compiled(torch_combine, p.rows, w, p.place),
            i.x.nbytes + permuted.rows.nbytes + weights.nbytes,
            lambda i=i: check_combine(i),
        )  # fmt: skip
    i = inputs(TOKENS[0])
    yield case(
        "router_losses",
        i,
        lambda i=i: peers.without_grad(lambda: rlk.ops.router_losses(i.scores, i.route.ids)),
        lambda i=i: peers.without_grad(peers.compiled(torch_losses, i.scores, i.route.ids)),
        i.scores.nbytes + i.route.ids.nbytes,
    )  # fmt: skip


def torch_losses(scores: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the load-balancing loss and the z-loss."""
    share = torch.histc(ids.int(), EXPERTS, 0, EXPERTS) / len(scores)
    balance = EXPERTS * (share * torch.softmax(scores.float(), -1).mean(0)).sum()
    return balance, torch.logsumexp(scores.float(), -1).square().mean()


if __name__ == "__main__":
    main("router", cases)
