"""Benchmark of advantages: samples over their group."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

import rlk
from benchmarks import peers
from benchmarks.harness import Bar, Case, Checked, main
from benchmarks.identity import compare, describe

GROUPS, SAMPLES = 4096, 16


def plain_groups(rewards: Tensor) -> Tensor:
    """The formula as trainers write it: groups of one size, mean and unbiased deviation."""
    groups = rewards.view(-1, SAMPLES)
    away = groups - groups.mean(1, keepdim=True)
    return (away / (groups.std(1, keepdim=True) + 1e-4)).view(-1)


def grouped(scale: str, bar: Bar | None) -> Case:
    """Groups of 16 samples whose rewards are 1000 +- 0.1."""
    rewards = 1000 + 0.1 * torch.randn(GROUPS * SAMPLES, device="cuda")
    groups = torch.arange(0, rewards.numel() + 1, SAMPLES, device="cuda")

    def advantages() -> Tensor:
        return rlk.ops.group_advantage(rewards, groups, scale=scale)

    def check() -> Checked:
        got = advantages()
        exact = rlk.ops.group_advantage.reference(rewards.cpu(), groups.cpu(), scale=scale)
        error = float((got.cpu().double() - exact).abs().max())
        return Checked(error, compare(rlk.ops.group_advantage, (got,), rewards, groups, scale=scale))

    compiled = peers.static(plain_groups)
    beside = {
        "torch_eager": lambda: peers.without_grad(lambda: plain_groups(rewards)),
        "torch_compile": lambda: peers.without_grad(lambda: compiled(rewards)),
    }
    return Case(
        op="group_advantage",
        passes="fwd",
        shape={"G": GROUPS, "N": rewards.numel(), "scale": scale},
        rlk=lambda: peers.without_grad(advantages),
        peers=beside if scale == "group" else {},
        moved=float(2 * rewards.nbytes + groups.nbytes),
        bar=bar,
        check=check,
        describe=lambda: describe(rlk.ops.group_advantage.explain(rewards, groups, scale=scale)),
        dtype="f32",
    )


def cases() -> Iterator[Case]:
    """Yield the row with the bar, then the deviation of the whole batch."""
    yield grouped("group", Bar(0.020))
    yield grouped("batch", None)


if __name__ == "__main__":
    main("advantages", cases)
