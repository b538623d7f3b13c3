"""Inputs of a linear head in benchmarks, and the call of each peer that does the same work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks import peers
from benchmarks.peers import Launch

ROWS_AT_ONCE = 1024  # of float64 or f32 scores in memory


def drawn(rows: int, columns: int, depth: int) -> tuple[Tensor, Tensor]:
    """Draw rows from N(0, 1) and a weight that makes scores of about N(0, 3^2)."""
    x = torch.randn(rows, depth, dtype=torch.bfloat16, device="cuda")
    weight = torch.empty(columns, depth, dtype=torch.bfloat16, device="cuda").normal_(0.0, 3.0 / depth**0.5)
    return x, weight


@dataclass(frozen=True, slots=True)
class Head:
    """hidden[N, D], weight[V, D], ids[N], and the gradients of the log-probs and entropies."""

    hidden: Tensor
    weight: Tensor
    ids: Tensor
    seed: Tensor
    entropy_seed: Tensor

    @property
    def leaves(self) -> tuple[Tensor, Tensor]:
        return self.hidden, self.weight


def head(rows: int, vocabulary: int, depth: int) -> Head:
    """Draw a head whose hidden states and weight want gradients."""
    hidden, weight = (t.requires_grad_(True) for t in drawn(rows, vocabulary, depth))
    ids = torch.randint(vocabulary, (rows,), device="cuda")
    seed, entropy_seed = (torch.randn(rows, device="cuda") for _ in range(2))
    return Head(hidden, weight, ids, seed, entropy_seed)


def turned(h: Head) -> Head:
    """Return a head with its rows in the opposite order."""
    hidden = h.hidden.detach().flip(0).requires_grad_(True)
    return Head(hidden, h.weight, h.ids.flip(0), h.seed.flip(0), h.entropy_seed.flip(0))


@dataclass(frozen=True, slots=True)
class Step:
    """Padded completions, all of the full length: hidden[B, L, D], and log-probs near those of the policy."""

    hidden: Tensor
    weight: Tensor
    ids: Tensor
    old: Tensor
    ref: Tensor
    advantages: Tensor
    lengths: Tensor
    mask: Tensor

    @property
    def leaves(self) -> tuple[Tensor, Tensor]:
        return self.hidden, self.weight


def step(completions: int, length: int, vocabulary: int, depth: int) -> Step:
    """Draw a GRPO step from hidden states."""
    hidden, weight = drawn(completions * length, vocabulary, depth)
    ids = torch.randint(vocabulary, (completions * length,), device="cuda")
    with torch.no_grad():
        pairs = zip(hidden.split(ROWS_AT_ONCE), ids.split(ROWS_AT_ONCE), strict=True)
        lp = torch.cat([peers.plain_logp(rows @ weight.t(), picked)[0] for rows, picked in pairs])
    shape = (completions, length)
    old, ref = (lp.view(shape) + 0.1 * torch.randn(shape, device="cuda") for _ in range(2))
    return Step(
        hidden.view(*shape, depth).requires_grad_(True),
        weight.requires_grad_(True),
        ids.view(shape),
        old,
        ref,
        torch.randn(completions, device="cuda"),
        torch.full((completions,), length, device="cuda", dtype=torch.int32),
        torch.ones(shape, device="cuda", dtype=torch.bool),
    )


# --- the bare products ---


def product(x: Tensor, weight: Tensor) -> Launch:
    """Return the scores alone, written as bf16 into memory that stays."""
    out = torch.empty(len(x), len(weight), dtype=x.dtype, device=x.device)
    return peers.without_grad(lambda: torch.matmul(x, weight.t(), out=out))


def four_products(x: Tensor, weight: Tensor) -> Launch:
    """Return what forward and a recomputing backward cannot do without: the scores twice, dH and dW."""
    out = torch.empty(len(x), len(weight), dtype=x.dtype, device=x.device)
    d_x, d_weight = torch.empty_like(x), torch.empty_like(weight)

    def launch() -> None:
        for _ in range(2):
            torch.matmul(x, weight.t(), out=out)
        torch.matmul(out, weight, out=d_x)
        torch.matmul(out.t(), x, out=d_weight)

    return peers.without_grad(launch)


# --- log-probs of a head ---


def plain_logp(hidden: Tensor, weight: Tensor, ids: Tensor) -> tuple[Tensor, ...]:
    """Log-prob and lse of a head the way a trainer writes them."""
    return peers.plain_logp(hidden @ weight.t(), ids)


def plain_logp_entropy(hidden: Tensor, weight: Tensor, ids: Tensor) -> tuple[Tensor, ...]:
    """Log-prob and entropy."""
    lp, _, entropy = peers.plain_logp_entropy(hidden @ weight.t(), ids)
    return lp, entropy


def liger_sm90(h: Head, entropy: bool) -> Callable[[], Any]:
    """Liger's Hopper kernel: negative log-probs, with the entropy on request."""
    name = "liger_kernel.ops.cutedsl.ops.fused_scaled_cross_entropy_sm90"
    op = peers.module(name).LigerFusedScaledCrossEntropySM90Function
    return lambda: op.apply(h.hidden, h.weight, h.ids, 1.0, -100, 1, entropy)


def liger_flce(h: Head, reduction: str) -> Callable[[], Tensor]:
    """Liger's fused linear cross-entropy: "mean" has its gradient made by the forward, "none" recomputes."""
    op = peers.module("liger_kernel.ops.fused_linear_cross_entropy").LigerFusedLinearCrossEntropyFunction
    return lambda: op.apply(h.hidden, h.weight, h.ids, None, None, -100, 0.0, 0.0, reduction)[0]


def cce(h: Head, **options: Any) -> Callable[[], Tensor]:
    """Cut cross-entropy; by default it leaves small gradients out, filter_eps=None keeps them."""
    op = peers.module("cut_cross_entropy").linear_cross_entropy
    return lambda: op(h.hidden, h.weight, h.ids, reduction="none", **options)


def forward_peers(h: Head) -> Mapping[str, Callable[[], Launch]]:
    """Return the peers of the forward."""
    return {
        "cublas_gemm": lambda: product(*h.leaves),
        "liger_sm90": lambda: peers.without_grad(liger_sm90(h, entropy=False)),
        "cce": lambda: peers.without_grad(cce(h)),
        "torch_eager": lambda: peers.without_grad(lambda: plain_logp(*h.leaves, h.ids)),
        "torch_compile": lambda: peers.without_grad(peers.compiled(plain_logp, *h.leaves, h.ids)),
    }


def gradient_peers(h: Head) -> Mapping[str, Callable[[], Launch]]:
    """Return the peers of forward and backward; FLCE and CCE have no entropy to differentiate."""

    def with_entropy(call: Callable[[], Any]) -> Launch:
        return peers.with_grad(call, h.leaves, (h.seed, h.entropy_seed))

    def without_entropy(call: Callable[[], Tensor]) -> Launch:
        return peers.with_grad(call, h.leaves, h.seed)

    return {
        "cublas_gemm": lambda: four_products(*h.leaves),
        "liger_sm90": lambda: with_entropy(liger_sm90(h, entropy=True)),
        "liger_flce": lambda: without_entropy(liger_flce(h, "none")),
        "liger_flce_mean": lambda: peers.with_grad(liger_flce(h, "mean"), h.leaves, None),
        "cce": lambda: without_entropy(cce(h)),
        "cce_exact": lambda: without_entropy(cce(h, filter_eps=None)),
        "torch_eager": lambda: with_entropy(lambda: plain_logp_entropy(*h.leaves, h.ids)),
        "torch_compile": lambda: with_entropy(peers.compiled(plain_logp_entropy, *h.leaves, h.ids)),
    }


# --- a policy loss of a head ---


def plain_grpo(hidden: Tensor, weight: Tensor, *rest: Tensor) -> Tensor:
    """GRPO's loss from hidden states as a trainer writes it."""
    return peers.plain_grpo(hidden @ weight.t(), *rest)


def liger_grpo(s: Step) -> Callable[[], Tensor]:
    """Liger's fused linear GRPO with its own chunks: one completion at a time, the loss compiled."""
    made = peers.module("liger_kernel.chunked_loss").LigerFusedLinearGRPOLoss(beta=0.04, loss_type="bnpo")
    given = {"ref_per_token_logps": s.ref, "old_per_token_logps": s.old}
    return lambda: made(s.hidden, s.weight, s.ids, s.mask.int(), s.advantages, **given)[0]


def step_peers(s: Step) -> dict[str, Callable[[], Launch]]:
    """Return the peers of a GRPO step, forward and backward."""
    given = (s.hidden, s.weight, s.ids, s.old, s.ref, s.advantages, s.mask)
    return {
        "torch_eager": lambda: peers.with_grad(lambda: plain_grpo(*given), s.leaves, None),
        "torch_compile": lambda: peers.with_grad(peers.compiled(plain_grpo, *given), s.leaves, None),
        "liger_grpo": lambda: peers.with_grad(liger_grpo(s), s.leaves, None),
    }


# --- float64 ---


@dataclass(frozen=True, slots=True)
class Exact:
    """Log-probs and entropies of all rows; the gradients of a few hidden states and rows of the weight."""

    logp: Tensor
    entropy: Tensor
    d_hidden: Tensor
    d_weight: Tensor


def exact_logp(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """Compute the log-probs of a head in float64, its scores some rows at a time."""
    wide = weight.detach().double()
    pairs = zip(hidden.detach().split(ROWS_AT_ONCE), ids.split(ROWS_AT_ONCE), strict=True)
    found = []
    for some, picked in pairs:
        z = some.double() @ wide.t()
        found.append(z.gather(1, picked[:, None])[:, 0] - torch.logsumexp(z, -1))
    return torch.cat(found)


def exact(
    hidden: Tensor, weight: Tensor, ids: Tensor, seeds: tuple[Tensor, Tensor], rows: Tensor, columns: Tensor
) -> Exact:
    """Compute a head in float64, its scores some rows at a time.

    seeds: of the log-probs and of the entropies. rows, columns: which gradients are returned.
    """
    wide = weight.detach().double()
    found: list[tuple[Tensor, Tensor]] = []
    d_hidden = torch.zeros(len(rows), hidden.shape[1], dtype=torch.float64, device=hidden.device)
    d_weight = torch.zeros(len(columns), hidden.shape[1], dtype=torch.float64, device=hidden.device)
    parts = [t.detach().split(ROWS_AT_ONCE) for t in (hidden, ids, *seeds)]
    for i, (some, picked, g, h) in enumerate(zip(*parts, strict=True)):
        some, g, h = some.double(), g.double()[:, None], h.double()[:, None]
        z = torch.log_softmax(some @ wide.t(), -1)
        p = torch.exp(z)
        entropy = -(p * z).sum(-1, keepdim=True)
        found.append((z.gather(1, picked[:, None])[:, 0], entropy[:, 0]))
        dz = -p * (g + h * (z + entropy))
        dz.scatter_add_(1, picked[:, None], g)
        d_weight += dz[:, columns].t() @ some
        here = (rows // ROWS_AT_ONCE == i).nonzero()[:, 0]
        d_hidden[here] = dz[rows[here] % ROWS_AT_ONCE] @ wide
    lp, entropy = (torch.cat(t) for t in zip(*found, strict=True))
    return Exact(lp, entropy, d_hidden, d_weight)
