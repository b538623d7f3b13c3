"""A GRPO step from hidden states as a row: log-probs, loss, and the gradients of hidden states and weight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import torch
from torch import Tensor

import rlk
from benchmarks import heads, peers
from benchmarks.harness import Bar, Case, Checked, Room
from benchmarks.heads import Step
from benchmarks.identity import describe, differing_there, oracle
from benchmarks.timing import Launch, Timing
from rlk.testing.bits import differing

SAMPLED = [0, -1]  # tokens of the first completion


def layout_of(s: Step) -> rlk.Layout:
    """Return the layout of a step's tokens."""
    return rlk.Layout.padded(s.lengths, s.ids.shape[1])


def ours(s: Step) -> Callable[[], Tensor]:
    """Return the loss through rlk, GRPO with beta 0.04."""
    given = (s.hidden, s.weight, s.ids, s.old, s.advantages)
    options = {"layout": layout_of(s), "loss": "grpo", "ref_logp": s.ref}
    return lambda: rlk.ops.linear_policy_loss(*given, **options).loss


def buffered(s: Step) -> Launch:
    """Return the step with its gradient of weight added to an f32 buffer."""
    buffer = torch.zeros(s.weight.shape, device=s.weight.device)
    given = (s.hidden, s.weight, s.ids, s.old, s.advantages)
    options = {"layout": layout_of(s), "loss": "grpo", "ref_logp": s.ref, "weight_grad_out": buffer}

    def run() -> object:
        loss = rlk.ops.linear_policy_loss(*given, **options).loss
        return torch.autograd.grad(loss, (s.hidden, s.weight), allow_unused=True)

    return run


def stepped(
    s: Step,
    shape: dict[str, int | str],
    bar: Bar | None,
    room: Room | None,
    timer: Callable[[Launch], Timing] | None = None,
    checked: Callable[[Step], Checked] | None = None,
) -> Case:
    """Return the row of a step; `shape` says how its tokens are counted, `checked` what is compared."""
    vocabulary, depth = s.weight.shape
    given = (s.hidden, s.weight, s.ids, s.old, s.advantages)
    options = {"layout": layout_of(s), "loss": "grpo", "ref_logp": s.ref}
    return Case(
        op="linear_policy_loss",
        passes="fwd+bwd",
        shape={**shape, "D": depth, "V": vocabulary},
        rlk=lambda: peers.with_grad(ours(s), s.leaves, None),
        peers=heads.step_peers(s) | {"rlk_weight_grad_out": lambda: buffered(s)},
        moved=2.0 * (s.hidden.nbytes + s.weight.nbytes),
        flops=8.0 * s.ids.numel() * depth * vocabulary,
        bar=bar,
        room=room,
        check=lambda: (checked or check)(s),
        describe=lambda: describe(rlk.ops.linear_policy_loss.explain(*given, **options)),
        timer=timer,
    )


def check(s: Step) -> Checked:
    """Compare the loss with float64, links of the chain with the oracle, and all rows with turned ones.

    The oracle's gradient of the head takes too long at this size: `tests/gpu` compares smaller ones.
    """
    with torch.no_grad():
        lp = rlk.ops.linear_logp(s.hidden, s.weight, s.ids, mask=s.mask).logp
        wide = heads.exact_logp(s.hidden.flatten(0, 1), s.weight, s.ids.flatten()).view(s.ids.shape)
    exact = rlk.ops.policy_loss.reference(
        wide, s.old, s.advantages, layout=layout_of(s), loss="grpo", ref_logp=s.ref
    ).loss
    loss = ours(s)()
    few = (s.hidden[0, SAMPLED].detach(), s.weight.detach(), s.ids[0, SAMPLED])
    few_lp = oracle(rlk.ops.linear_logp, lp.device, *few).logp
    want_loss, want_d_lp = policy(s, lp, "cpu")
    pairs = [(lp[0, SAMPLED], few_lp), (loss, want_loss), (policy(s, lp, "cuda")[1], want_d_lp)]
    wrong = sum(differing(got.detach().cpu(), want.detach()) for got, want in pairs)
    return Checked(float((loss.detach().double() - exact).abs()), wrong + differing_when_turned(s))


def differing_when_turned(s: Step) -> int:
    """Count the values of the hidden gradient that change when completions come in the opposite order."""
    flipped = {f.name: getattr(s, f.name).detach().flip(0) for f in fields(s) if f.name != "weight"}
    flipped["hidden"].requires_grad_(True)
    other = replace(s, **flipped)
    d_hidden, d_other = (torch.autograd.grad(ours(x)(), x.leaves)[0] for x in (s, other))
    return differing_there(d_other.flip(0), d_hidden)


def policy(s: Step, lp: Tensor, device: str) -> tuple[Tensor, Tensor]:
    """Return the loss of given log-probs and its gradient, computed on a device; the CPU is the oracle."""
    leaf = lp.detach().to(device).requires_grad_(True)
    old, advantages, ref, lengths = (t.to(device) for t in (s.old, s.advantages, s.ref, s.lengths))
    layout = rlk.Layout.padded(lengths, s.ids.shape[1])
    loss = rlk.ops.policy_loss(leaf, old, advantages, layout=layout, loss="grpo", ref_logp=ref).loss
    return loss, torch.autograd.grad(loss, leaf)[0]
