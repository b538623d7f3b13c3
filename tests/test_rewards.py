"""Laws of rewards on tokens: regions, penalties, costs kept apart, layouts, shifts that are refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from rlk import Layout, ops
from rlk.errors import Code, LaunchError
from rlk.ops import Overlong
from rlk.testing.bits import as_bits, assert_same_bits

LENGTHS = torch.tensor([40, 0, 1, 70, 9])
EDGES = torch.tensor([0, 40, 40, 41, 111, 120])
TURNS = torch.tensor([0, 10, 40, 41, 41, 60, 111, 113, 120])
WIDTH, TOKENS = 75, 120


def masked(seed: int = 0) -> torch.Tensor:
    return torch.rand(TOKENS, generator=torch.Generator().manual_seed(seed)) < 0.7


def packed(mask: torch.Tensor | None = None) -> Layout:
    return Layout.packed(EDGES, tokens=TOKENS, mask=mask)


def rewards(n: int = 8, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


OPTIONS: dict[str, dict[str, Any]] = {
    "last": {},
    "all": {"at": "all"},
    "a penalty": {"overlong": Overlong(30, 20, 0.5)},
    "a penalty on all": {"at": "all", "overlong": Overlong(60, 59)},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("side", [None, "left", "right"])
def test_rewards_reach_the_tokens_of_their_region(name: str, side: str | None) -> None:
    layout = packed(masked())
    if side is not None:
        rows = Layout.padded(LENGTHS, WIDTH, side=side)  # type: ignore[arg-type]
        layout = Layout.padded(LENGTHS, WIDTH, side=side, mask=ops.unpack(masked(), rows))  # type: ignore[arg-type]
    given = {"layout": layout, "costs": rewards(seed=1), **OPTIONS[name]}
    made = ops.scatter_rewards(rewards(), TURNS, **given)
    exact = ops.scatter_rewards.reference(rewards(), TURNS, **given)
    for got, want in zip(made, exact, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-6, atol=1e-7)
    flat = ops.scatter_rewards(rewards(), TURNS, **{**given, "layout": packed(masked())})
    for got, want in zip(made, flat, strict=True):
        assert_same_bits(got[layout.active], want[packed(masked()).active])
        assert (as_bits(got[~layout.active]) == 0).all()


def test_a_reward_per_sequence_is_on_its_last_active_token() -> None:
    mask = torch.ones(TOKENS, dtype=torch.bool)
    mask[38:40] = False
    made = ops.scatter_rewards(torch.arange(1.0, 6.0), EDGES, layout=packed(mask))
    assert torch.equal(made.nonzero().reshape(-1), torch.tensor([37, 40, 110, 119]))
    assert made[[37, 40, 110, 119]].tolist() == [1.0, 3.0, 4.0, 5.0]


def test_what_all_tokens_get_is_what_a_loss_reads_by_sequence() -> None:
    each = rewards(5)
    made = ops.scatter_rewards(each, EDGES, layout=packed(), at="all")
    assert_same_bits(made, each.repeat_interleave(EDGES.diff()))


def test_costs_are_kept_apart() -> None:
    """Rewards do not know of costs, and costs of no penalty."""
    layout, overlong = packed(masked()), Overlong(30, 20)
    alone = ops.scatter_rewards(rewards(), TURNS, layout=layout, overlong=overlong)
    both = ops.scatter_rewards(rewards(), TURNS, layout=layout, overlong=overlong, costs=rewards(seed=1))
    assert_same_bits(both.rewards, alone)
    assert_same_bits(both.costs, ops.scatter_rewards(rewards(seed=1), TURNS, layout=layout))
    assert not torch.equal(both.costs, both.rewards)


@pytest.mark.parametrize(("tokens", "want"), [(10, 0.0), (12, 0.0), (16, -0.5), (20, -1.0), (50, -1.0)])
def test_a_length_penalty_falls_through_its_buffer(tokens: int, want: float) -> None:
    """DAPO, equation 13: 0 up to limit - buffer, then linear, -1 from the limit on."""
    layout = Layout.packed(torch.tensor([0, tokens]), tokens=tokens)
    made = ops.scatter_rewards(torch.zeros(1), layout.bounds[0], layout=layout, overlong=Overlong(20, 8))
    assert made[-1] == want and not made[:-1].any()


def test_only_active_tokens_are_long() -> None:
    mask = torch.arange(50) % 5 == 0
    layout = Layout.packed(torch.tensor([0, 50]), mask=mask)
    made = ops.scatter_rewards(torch.zeros(1), layout.bounds[0], layout=layout, overlong=Overlong(20, 8))
    assert not made.any()


def test_a_region_without_an_active_token_gives_nothing() -> None:
    layout = packed(torch.zeros(TOKENS, dtype=torch.bool))
    made = ops.scatter_rewards(torch.full((8,), math.nan), TURNS, layout=layout, at="all")
    assert (as_bits(made) == 0).all()


def test_nothing_gives_nothing() -> None:
    layout = Layout.packed(torch.tensor([0]), tokens=0)
    assert ops.scatter_rewards(torch.zeros(0), torch.tensor([0]), layout=layout).shape == (0,)


scattered = ops.scatter_rewards
Attempt = Callable[[Layout], object]
REFUSED: dict[str, tuple[Attempt, Code, str]] = {
    "one token short": (lambda x: scattered(rewards(1), torch.tensor([0, 119]), layout=x),
                        Code.ARG_VALUE, "from 0 to 120"),
    "two sequences": (lambda x: scattered(rewards(1), torch.tensor([0, 120]), layout=x),
                      Code.ARG_VALUE, "inside of a sequence"),
    "a turn that begins one early": (lambda x: scattered(rewards(2), torch.tensor([0, 39, 120]), layout=x),
                                     Code.ARG_VALUE, r"offsets\[1:3\]"),
    "fewer rewards": (lambda x: scattered(rewards(7), TURNS, layout=x), Code.ARG_SIZE, "rewards has N"),
    "fewer costs": (lambda x: scattered(rewards(), TURNS, layout=x, costs=rewards(7)),
                    Code.ARG_SIZE, "costs has rows"),
    "elsewhere": (lambda x: scattered(rewards(), TURNS, layout=x, at="first"),  # type: ignore[arg-type]
                  Code.ARG_VALUE, "last, all"),
    "no layout": (lambda x: scattered(rewards(), TURNS, layout=None),  # type: ignore[arg-type]
                  Code.ARG_TYPE, "layout"),
    "no buffer": (lambda x: Overlong(20, 0), Code.ARG_VALUE, "buffer"),
    "a buffer beyond the limit": (lambda x: Overlong(20, 21), Code.ARG_VALUE, "limit"),
    "a gradient": (lambda x: scattered(rewards().requires_grad_(), TURNS, layout=x),
                   Code.NOT_DIFFERENTIABLE, "rewards"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_named(name: str) -> None:
    attempt, code, text = REFUSED[name]
    with pytest.raises(LaunchError, match=text) as caught:
        attempt(packed())
    assert caught.value.diagnostics[0].code is code


@pytest.mark.parametrize("offsets", [[0, 119], [0, 120], [0, 40, 39, 120], TURNS.tolist()])
def test_where_nothing_can_be_waited_for_rewards_are_nan(
    offsets: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a device: the kernel finds bounds that do not fit."""
    monkeypatch.setattr("rlk.ops.advantages.on_the_host", lambda x: False)
    made = ops.scatter_rewards(torch.ones(len(offsets) - 1), torch.tensor(offsets), layout=packed())
    assert made.isnan().any() == (offsets != TURNS.tolist())
