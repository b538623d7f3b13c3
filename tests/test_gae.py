"""Laws of advantages of tokens: the recurrence in float64, tokens that are passed over, layouts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from rlk import Layout, ops
from rlk.errors import Code, LaunchError
from rlk.interp.run import run
from rlk.passes.pipeline import canonical
from rlk.specs.advantage import gae as spec
from rlk.testing.bits import as_bits, assert_same_bits, differing

LENGTHS = (37, 0, 1, 64, 9)
WIDTH = 70
VALID = torch.arange(WIDTH) < torch.tensor(LENGTHS)[:, None]
EDGES = torch.tensor([0, *LENGTHS]).cumsum(0)
FACTORS = {"gamma": 0.99, "lam": 0.95}
Pair = tuple[torch.Tensor, torch.Tensor]


def drawn(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Values, rewards, and which tokens of padded rows count."""
    generator = torch.Generator().manual_seed(seed)
    values, rewards = (torch.randn(len(LENGTHS), WIDTH, generator=generator) for _ in range(2))
    return values, rewards, torch.rand(len(LENGTHS), WIDTH, generator=generator) < 0.7


def padded(mask: torch.Tensor | None = None, **options: Any) -> Layout:
    return Layout.padded(torch.tensor(LENGTHS), WIDTH, mask=mask, **options)


def step_by_step(
    values: torch.Tensor, rewards: torch.Tensor, mask: torch.Tensor, gamma: float, lam: float
) -> Pair:
    """The recurrence as trainers write it (verl `compute_gae_advantage_return`), in float64."""
    v, r, m = values.double(), rewards.double(), mask.double()
    after = ahead = torch.zeros(len(v), dtype=torch.float64)
    columns = []
    for t in reversed(range(v.shape[1])):
        made = r[:, t] + gamma * after - v[:, t] + gamma * lam * ahead
        after = m[:, t] * v[:, t] + (1 - m[:, t]) * after
        ahead = m[:, t] * made + (1 - m[:, t]) * ahead
        columns.append(ahead)
    advantages = torch.stack(columns[::-1], 1) * m
    return advantages, (advantages + v) * m


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got.double(), want, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(("gamma", "lam"), [(0.99, 0.95), (1.0, 1.0), (1.0, 0.0), (0.0, 0.9)])
def test_estimates_are_their_recurrence(gamma: float, lam: float) -> None:
    values, rewards, mask = drawn()
    made = ops.gae(values, rewards, layout=padded(mask), gamma=gamma, lam=lam)
    for got, want in zip(made, step_by_step(values, rewards, mask & VALID, gamma, lam), strict=True):
        close(got, want)
    for got, want in zip(
        made, ops.gae.reference(values, rewards, layout=padded(mask), gamma=gamma, lam=lam), strict=True
    ):
        close(got, want)


def test_without_discount_returns_are_the_rewards_to_come() -> None:
    values, rewards, _ = drawn(1)
    made = ops.gae(values, rewards, layout=padded(), gamma=1.0, lam=1.0)
    to_come = torch.where(VALID, rewards.double(), 0.0).flip(1).cumsum(1).flip(1)
    close(made.returns, torch.where(VALID, to_come, 0.0))


def test_a_sequence_that_was_cut_off_goes_on_with_its_value() -> None:
    values, rewards, mask = drawn(2)
    last = torch.linspace(-1, 1, len(LENGTHS))
    layout = padded(mask)
    made = ops.gae(values, rewards, layout=layout, bootstrap=last, **FACTORS)
    wide = ops.gae.reference(values, rewards, layout=layout, bootstrap=last, **FACTORS)
    close(made.advantages, wide.advantages)
    ended = ops.gae(values, rewards, layout=layout, **FACTORS)
    assert differing(made.advantages[0], ended.advantages[0])
    none = torch.zeros(len(LENGTHS))
    assert_same_bits(
        ops.gae(values, rewards, layout=layout, bootstrap=none, **FACTORS).returns, ended.returns, "zeros"
    )


def forms() -> dict[str, Any]:
    """Return the forms of one batch in memory: the function that moves its tensors there, and the layout."""
    right = torch.tensor(LENGTHS)
    return {
        "packed": (lambda x: x[VALID], lambda m: Layout.packed(EDGES, mask=m)),
        "left": (rolled, lambda m: Layout.padded(right, WIDTH, side="left", mask=m)),
        "wider": (wider, lambda m: Layout.padded(right, WIDTH + 13, mask=m)),
    }


def rolled(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([row.roll(WIDTH - n) for row, n in zip(x, LENGTHS, strict=True)])


def wider(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(x, (0, 13))


@pytest.mark.parametrize("form", forms())
def test_padding_changes_no_bit_of_an_estimate(form: str) -> None:
    values, rewards, mask = drawn(3)
    layout = padded(mask)
    made = ops.gae(values, rewards, layout=layout, **FACTORS)
    move, lay = forms()[form]
    there = lay(move(mask))
    other = ops.gae(move(values).contiguous(), move(rewards).contiguous(), layout=there, **FACTORS)
    for a, b in zip(other, made, strict=True):
        assert_same_bits(a[there.active], b[layout.active], form)
        assert (as_bits(a[~there.active]) == 0).all()


def test_a_token_that_is_passed_over_might_as_well_not_be_there() -> None:
    values, rewards, mask = drawn(4)
    holed = ops.gae(values, rewards, layout=padded(mask), **FACTORS)
    for row, n in enumerate(LENGTHS):
        some = mask[row, :n]
        edges = torch.tensor([0, int(some.sum())])
        layout = Layout.packed(edges, tokens=int(some.sum()))
        dense = ops.gae(values[row, :n][some], rewards[row, :n][some], layout=layout, **FACTORS)
        assert_same_bits(dense.advantages, holed.advantages[row, :n][some], f"row {row}")


def test_a_token_that_counts_is_not_passed_over() -> None:
    """The control: the same law fails for tokens that take part."""
    values, rewards, mask = drawn(4)
    every = ops.gae(values, rewards, layout=padded(), **FACTORS)
    some = ops.gae(values, rewards, layout=padded(mask), **FACTORS)
    assert differing(every.advantages[mask & VALID], some.advantages[mask & VALID])


@pytest.mark.parametrize("junk", [math.nan, math.inf])
def test_nothing_of_an_inactive_token_is_seen(junk: float) -> None:
    values, rewards, mask = drawn(5)
    layout = padded(mask)
    made = ops.gae(values, rewards, layout=layout, **FACTORS)
    spoiled = (torch.where(layout.active, x, junk) for x in (values, rewards))
    for a, b in zip(ops.gae(*spoiled, layout=layout, **FACTORS), made, strict=True):
        assert_same_bits(a, b)


def test_another_order_of_the_sum_has_other_bits() -> None:
    """The control: sums of powers, which are the same estimates on paper."""
    values, rewards, _ = drawn(6)
    made = ops.gae(
        values[3:4, :64], rewards[3:4, :64], layout=Layout.padded(torch.tensor([64]), 64), **FACTORS
    )
    v, r = values[3, :64], rewards[3, :64]
    delta = r + 0.99 * torch.cat((v[1:], torch.zeros(1))) - v
    power = torch.tensor(0.99 * 0.95, dtype=torch.float32) ** torch.arange(64)
    sums = torch.stack([(delta[t:] * power[: 64 - t]).sum() for t in range(64)])
    torch.testing.assert_close(made.advantages[0], sums, rtol=1e-4, atol=1e-4)
    assert differing(made.advantages[0], sums)


@pytest.mark.parametrize("tokens", [0, 5])
def test_no_active_token_is_no_estimate(tokens: int) -> None:
    layout = Layout.packed(torch.tensor([0, tokens]), mask=torch.zeros(tokens, dtype=torch.bool))
    made = ops.gae(torch.full((tokens,), math.nan), torch.ones(tokens), layout=layout, **FACTORS)
    assert made.advantages.shape == (tokens,) and (as_bits(made.advantages) == 0).all()


@pytest.mark.parametrize("edges", [(0, 30, 100), (0, 30, 99), (1, 30, 100), (0, 101, 100)])
def test_a_kernel_reports_bounds_that_miss(edges: tuple[int, ...]) -> None:
    """On a device nothing waits for bounds: the kernel sets the error word, and the sequence is NaN."""
    given = {name: np.ones(100, np.float32) for name in ("values", "rewards")}
    bounds = torch.tensor(edges).unfold(0, 2, 1).numpy()
    rest = {"active": np.ones(100, bool), "bounds": bounds, "gamma": 1.0, "decay": 1.0}
    found = run(canonical(spec.trace(spec.default_variant())), {**given, **rest})
    right = edges == (0, 30, 100)
    assert bool(found.errors) != right and np.isnan(found["advantages"]).any() != right


REFUSED = {
    "no layout": (lambda x: ops.gae(x, x, layout=VALID, **FACTORS), Code.ARG_TYPE, "layout"),  # type: ignore[arg-type]
    "one value too many": (
        lambda x: ops.gae(x, x[:, :-1], layout=padded(), **FACTORS), Code.LAYOUT_MISMATCH, "rewards has"
    ),
    "halves": (lambda x: ops.gae(x, x.half(), layout=padded(), **FACTORS), Code.ARG_DTYPE, "rewards"),
    "a bootstrap of others": (
        lambda x: ops.gae(x, x, layout=padded(), bootstrap=x[0], **FACTORS), Code.ARG_SIZE, "bootstrap"
    ),
    "a factor that is waited for": (
        lambda x: ops.gae(x, x, layout=padded(), gamma=x[0, 0], lam=1.0), Code.ARG_TYPE, "gamma"
    ),
    "a gradient": (
        lambda x: ops.gae(x.requires_grad_(), x.detach(), layout=padded(), **FACTORS),
        Code.NOT_DIFFERENTIABLE, "values",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_named(name: str) -> None:
    attempt, code, text = REFUSED[name]
    with pytest.raises(LaunchError, match=text) as caught:
        attempt(torch.zeros(len(LENGTHS), WIDTH))
    assert caught.value.diagnostics[0].code is code
