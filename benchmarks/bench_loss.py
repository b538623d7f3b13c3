"""Benchmark of a policy loss from logits: log-probs, loss and the gradient of the logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

import rlk
from benchmarks import peers
from benchmarks.harness import Bar, Case, Checked, main, of_backend
from benchmarks.identity import describe, oracle
from benchmarks.peers import Launch
from benchmarks.turns import aside
from rlk.testing.bits import differing

BATCH, LENGTH = 8, 1024
MANY = (2048, 8192)  # completions and their tokens, whose log-probs are there already
COPIED = 0.85  # share of a copy's bytes/s that a loss of so many tokens must reach
VOCABULARY = 128256
SAMPLED = [0, 3, 200]


@dataclass(frozen=True, slots=True)
class Inputs:
    """Padded completions; `room` has one position more, for peers that want it; `logits` is a view of it."""

    room: Tensor
    logits: Tensor
    ids: Tensor
    old: Tensor
    ref: Tensor
    advantages: Tensor
    lengths: Tensor
    mask: Tensor


def inputs(vocabulary: int, shortest: float) -> Inputs:
    """Draw completions of `shortest` to 1 times the length, with log-probs near those of the policy."""
    room = torch.empty(BATCH, LENGTH + 1, vocabulary, dtype=torch.bfloat16, device="cuda").normal_(0.0, 3.0)
    logits = room[:, :-1].detach().requires_grad_(True)
    ids = torch.randint(vocabulary, (BATCH, LENGTH), device="cuda")
    with torch.no_grad():
        lp = torch.stack([peers.plain_logp(row, picked)[0] for row, picked in zip(logits, ids)])
    old, ref = lp + 0.1 * torch.randn_like(lp), lp + 0.1 * torch.randn_like(lp)
    lengths = torch.randint(int(shortest * LENGTH), LENGTH + 1, (BATCH,), device="cuda", dtype=torch.int32)
    mask = torch.arange(LENGTH, device="cuda")[None] < lengths[:, None]
    advantages = torch.randn(BATCH, device="cuda")
    return Inputs(room.requires_grad_(True), logits, ids, old, ref, advantages, lengths, mask)


def ours(i: Inputs) -> Callable[[], Tensor]:
    """Return the loss through rlk: strided logits, padded layout, GRPO with beta 0.04."""
    layout = rlk.Layout.padded(i.lengths, LENGTH, side="right")
    mask = None if bool(i.mask.all()) else i.mask

    def loss() -> Tensor:
        lp = rlk.ops.logp(i.logits, i.ids, mask=mask).logp
        return rlk.ops.policy_loss(lp, i.old, i.advantages, layout=layout, loss="grpo", ref_logp=i.ref).loss

    return loss


def case(i: Inputs, bar: Bar | None) -> Case:
    """Forward and backward, the gradient in a tensor of its own; masked positions need not be read."""

    def plain(fn: Callable[..., Tensor]) -> Launch:
        return peers.with_grad(
            lambda: fn(i.logits, i.ids, i.old, i.ref, i.advantages, i.mask), (i.logits,), None
        )

    def liger() -> Launch:
        loss = peers.liger_grpo(i.room, i.ids, i.old, i.ref, i.advantages, i.mask.int())
        return peers.with_grad(loss, (i.room,), None)

    shape: dict[str, int | str] = {"B": BATCH, "L": LENGTH, "V": i.logits.shape[-1]}
    active = float(i.mask.float().mean())
    if active < 1.0:
        shape["lengths"] = f"{int(i.lengths.min())}-{int(i.lengths.max())}"
    return Case(
        op="policy_loss",
        passes="fwd+bwd",
        shape=shape,
        rlk=lambda: peers.with_grad(ours(i), (i.logits,), None),
        peers={
            "torch_eager": lambda: plain(peers.plain_grpo),
            "torch_compile": lambda: plain(peers.static(peers.plain_grpo)),
            "liger": liger,
        },
        moved=(2 * active + 1) * 2 * i.logits.numel(),
        bar=bar,
        reference="liger",
        check=lambda: check(i),
        describe=lambda: described(i),
    )


def check(i: Inputs) -> Checked:
    """Compare the loss with the plain formula in float64, and every link of the chain with the oracle."""
    total = torch.zeros((), dtype=torch.float64, device="cuda")
    with torch.no_grad():
        for b in range(BATCH):
            z, old, ref, advantage = (t[b].double() for t in (i.logits, i.old, i.ref, i.advantages))
            total += (peers.plain_grpo_terms(z, i.ids[b], old, ref, advantage) * i.mask[b]).sum()
        error = float((ours(i)().double() - total / i.mask.sum()).abs())
    return Checked(error, differing_links(i))


def described(i: Inputs) -> Mapping[str, str]:
    """Return what both operators of the chain are; it is exact when both are."""
    layout = rlk.Layout.padded(i.lengths, LENGTH, side="right")
    first = describe(rlk.ops.logp.explain(i.logits, i.ids))
    policy = rlk.ops.policy_loss.explain(
        i.old, i.old, i.advantages, layout=layout, loss="grpo", ref_logp=i.ref
    )
    second = describe(policy)
    joined = {name: f"{first[name]} + {second[name]}" for name in ("numerics_id", "schedule")}
    backends = dict.fromkeys((first["backend"], second["backend"]))
    return {
        **joined,
        "backend": " + ".join(backends),
        "tier": max(first["tier"], second["tier"]),  # "exact" < "pinned"
    }


def differing_links(i: Inputs) -> int:
    """Count values off the oracle: log-probs and gradient of sampled tokens, the loss of all log-probs."""
    layout = rlk.Layout.padded(i.lengths, LENGTH, side="right")
    lp = rlk.ops.logp(i.logits, i.ids, mask=i.mask).logp
    loss = rlk.ops.policy_loss(lp, i.old, i.advantages, layout=layout, loss="grpo", ref_logp=i.ref).loss
    d_lp, d_logits = torch.autograd.grad(loss, (lp, i.logits))
    few = i.logits[0, SAMPLED].detach().cpu().requires_grad_(True)
    counted = i.mask[0, SAMPLED].cpu()
    few_lp = oracle(rlk.ops.logp, lp.device, few, i.ids[0, SAMPLED], mask=counted).logp
    (few_grad,) = torch.autograd.grad(few_lp, few, d_lp[0, SAMPLED].cpu())
    all_lp = lp.detach().cpu().requires_grad_(True)
    there = rlk.Layout.padded(i.lengths.cpu(), LENGTH, side="right")
    old, advantages, ref = i.old.cpu(), i.advantages.cpu(), i.ref.cpu()
    want = rlk.ops.policy_loss(all_lp, old, advantages, layout=there, loss="grpo", ref_logp=ref).loss
    (want_d_lp,) = torch.autograd.grad(want, all_lp)
    pairs = [(lp[0, SAMPLED], few_lp), (d_logits[0, SAMPLED], few_grad), (loss, want), (d_lp, want_d_lp)]
    return sum(differing(a.detach().cpu(), b.detach()) for a, b in pairs)


def tokens(completions: int, length: int) -> Case:
    """The loss of 16M tokens from their log-probs, beside a copy of as many bytes."""
    lp, old, ref = (torch.randn(completions, length, device="cuda") * 0.1 for _ in range(3))
    advantages = torch.randn(completions, device="cuda")
    lengths = torch.full((completions,), length, device="cuda", dtype=torch.int32)
    layout = rlk.Layout.padded(lengths, length)
    read = [lp, old, ref, layout.active, layout.sequence, layout.order]
    moved = sum(t.nbytes for t in read) + lp.nbytes  # and the loss of every token
    there, to = (torch.empty(moved // 2, dtype=torch.int8, device="cuda").random_() for _ in range(2))

    def loss() -> Tensor:
        given = {"layout": layout, "loss": "grpo", "ref_logp": ref}
        return rlk.ops.policy_loss(lp, old, advantages, **given).loss

    def check() -> Checked:
        there = rlk.Layout.padded(lengths.cpu(), length)
        given = [t.cpu() for t in (lp, old, advantages)]
        options = {"layout": there, "loss": "grpo", "ref_logp": ref.cpu()}
        with aside():
            want = rlk.ops.policy_loss(*given, **options).loss
            wide = rlk.ops.policy_loss.reference(*given, **options).loss
        got = loss().cpu()
        return Checked(float((got.double() - wide).abs()), differing(got, want))

    described = rlk.ops.policy_loss.explain(lp, old, advantages, layout=layout, loss="grpo", ref_logp=ref)
    return Case(
        op="policy_loss",
        passes="fwd",
        shape={"B": completions, "L": length},
        rlk=lambda: peers.without_grad(loss),
        peers={"torch_copy": lambda: peers.without_grad(lambda: to.copy_(there))},
        moved=float(moved),
        bar=Bar(1 / COPIED, "torch_copy"),
        reference="torch_copy",
        check=check,
        describe=lambda: describe(described),
        dtype="f32",
    )


def cases() -> Iterator[Case]:
    """Yield the row with the bar, then a ragged batch, the larger vocabulary, and many tokens' log-probs."""
    for vocabulary, shortest, bar in (
        (VOCABULARY, 1.0, of_backend(triton=Bar(1.80), cute=Bar(1.65))),
        (VOCABULARY, 0.5, None),
        (151936, 1.0, None),
    ):
        yield case(inputs(vocabulary, shortest), bar)
        torch.cuda.empty_cache()
    yield tokens(*MANY)


if __name__ == "__main__":
    main("loss", cases)
