"""Every form of a policy loss, and operators around it, have on a device the bits that the oracle has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from loss_cases import LENGTHS, RECORDS, WIDTH, batch

from rlk import Layout, ops
from rlk.testing.bits import assert_same_bits

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


def moved(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) else value


def loss_on(device: torch.device, name: str, per_token: bool) -> list[torch.Tensor]:
    """Return a loss with its metrics and gradients, on the host."""
    given = batch()
    if per_token:
        given["advantages"] = torch.randn(len(LENGTHS), WIDTH, generator=torch.Generator().manual_seed(9))
    given = {n: x.to(device) for n, x in given.items()}
    layout = Layout.padded(torch.tensor(LENGTHS, device=device), WIDTH, mask=given.pop("mask"))
    leaves = {n: given[n].requires_grad_() for n in ("logp", "entropy")}
    made = ops.policy_loss(**given, layout=layout, loss=RECORDS[name])
    (1.7 * made.loss).backward()
    grads = [x.grad for x in leaves.values() if x.grad is not None]
    return [x.detach().cpu() for x in (made.loss, made.per_token, *made.metrics.values(), *grads)]


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("name", RECORDS)
def test_a_loss_has_the_bits_of_the_oracle(name: str, per_token: bool) -> None:
    for got, want in zip(loss_on(CUDA, name, per_token), loss_on(CPU, name, per_token), strict=True):
        assert_same_bits(got, want, name)


def test_another_number_gives_other_bits() -> None:
    """The control: the comparison sees a loss whose bound differs in its last bits."""
    name = "correction token truncate" if "correction token truncate" in RECORDS else next(iter(RECORDS))
    given = {n: x.to(CUDA) for n, x in batch().items()}
    layout = Layout.padded(torch.tensor(LENGTHS, device=CUDA), WIDTH, mask=given.pop("mask"))
    one = ops.policy_loss(**given, layout=layout, loss=replace(RECORDS[name], normalizer=1.0))
    other = ops.policy_loss(**given, layout=layout, loss=replace(RECORDS[name], normalizer=1.0 + 2**-20))
    with pytest.raises(AssertionError):
        assert_same_bits(one.loss.cpu(), other.loss.cpu())


def rewards(size: float) -> Callable[[torch.device], Any]:
    generator = torch.Generator().manual_seed(3)
    given, groups = torch.randn(300, generator=generator) * size, torch.tensor([0, 5, 8, 100, 100, 300])
    given[::7] = float("nan")
    return lambda on: ops.group_advantage(given.to(on), groups.to(on))


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


NONE = torch.empty(0)
X, IDS = normal(6, 2000), torch.tensor([0, 5, 1999, 77, 3, 1000])
ROWS = torch.arange(6)
HEAT = torch.tensor([1.0, 0.0, -1.0, float("nan"), float("inf"), 0.5])
BITS16 = torch.bfloat16
CALLS: dict[str, Callable[[torch.device], Any]] = {
    **{f"advantages of rewards of {size}": rewards(size) for size in (1e-30, 1.0, 1e20, 1e36)},
    "rows of bad temperatures": lambda on: ops.logp(
        X.to(on), IDS.to(on), temperature=HEAT.to(on), needs=("logp", "entropy"), math="sm90"
    )[:3],
    "draws at bad temperatures": lambda on: ops.sample(
        X.to(on), seed=1, request_id=ROWS.to(on), position=ROWS.to(on), temperature=HEAT.to(on), top_k=50,
        math="sm90",
    )[:3],
    "a draw of +inf": lambda on: ops.sample(
        X.index_fill(1, ROWS[:1], float("inf")).to(on), seed=1, request_id=ROWS.to(on), position=ROWS.to(on),
        math="sm90",
    )[:3],
    "a product over nothing": lambda on: ops.matmul(
        torch.empty(3, 0, dtype=BITS16, device=on), torch.empty(64, 0, dtype=BITS16, device=on),
        bias=normal(64, dtype=BITS16).to(on),
    ),
    "a head of no features": lambda on: ops.linear_logp(
        torch.empty(3, 0, dtype=BITS16, device=on), torch.empty(64, 0, dtype=BITS16, device=on),
        IDS[:3].to(on) % 64, math="sm90",
    )[:2],
    "no mismatched completion": lambda on: ops.kto_loss(
        normal(9).to(on), normal(9, seed=1).to(on), (normal(9) > 0).to(on),
        mismatched=(NONE.to(on), NONE.to(on)),
    )[:2],
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_edges_have_the_bits_of_the_oracle(name: str) -> None:
    def flat(made: Any) -> list[torch.Tensor]:
        return [made] if isinstance(made, torch.Tensor) else [x for x in made if x is not None]

    got, want = flat(CALLS[name](CUDA)), flat(CALLS[name](CPU))
    assert got
    for mine, theirs in zip(got, want, strict=True):
        # the payload of NaN is not promised
        assert torch.equal(mine.cpu().isnan(), theirs.isnan())
        assert_same_bits(mine.cpu().nan_to_num(7.0), theirs.nan_to_num(7.0), name)


def test_a_bad_temperature_spoils_no_other_row_of_a_head() -> None:
    hidden, weight = normal(6, 64, dtype=BITS16).to(CUDA), normal(2000, 64, seed=1, dtype=BITS16).to(CUDA)
    good = torch.where((HEAT > 0) & HEAT.isfinite(), HEAT, 1.0)
    made = ops.linear_logp(hidden, weight, IDS.to(CUDA), temperature=HEAT.to(CUDA)).logp
    want = ops.linear_logp(hidden, weight, IDS.to(CUDA), temperature=good.to(CUDA)).logp
    assert made is not None and want is not None
    bad = (good != HEAT).to(CUDA)
    assert made.isnan().equal(bad) and bad.any()
    assert_same_bits(made[~bad].cpu(), want[~bad].cpu())
