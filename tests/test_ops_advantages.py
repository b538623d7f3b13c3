"""Laws of advantages of samples: float64 formulas, groups that know no neighbours, groups without spread."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

from rlk import ops
from rlk.errors import Code, LaunchError
from rlk.interp.run import run
from rlk.passes.pipeline import canonical
from rlk.specs.advantage import group_advantage as spec
from rlk.testing.bits import as_bits, assert_same_bits, differing

EDGES = (0, 16, 16, 17, 60, 200, 202, 1500)
OPTIONS = [
    {"scale": scale, "baseline": baseline, "std": std, "eps_mode": eps_mode, "eps": eps}
    for (scale, baseline, std, eps_mode), eps in zip(
        itertools.product(
            ("group", "batch", "none"), ("mean", "loo"), ("unbiased", "pop"), ("add", "max", "inside")
        ),
        itertools.cycle((1e-4, 0.3, 1e-8)),
        strict=False,
    )
]


def offsets(*edges: int) -> torch.Tensor:
    return torch.tensor(edges or EDGES)


def rewards(seed: int = 0, scale: float = 1.0, shift: float = 0.0) -> torch.Tensor:
    drawn = torch.randn(EDGES[-1], generator=torch.Generator().manual_seed(seed))
    return shift + scale * drawn


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got.double(), want, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: " ".join(map(str, o.values())))
def test_advantages_are_their_formula(options: dict[str, Any]) -> None:
    given = rewards()
    given[20:25] = math.nan
    made = ops.group_advantage(given, offsets(), **options)
    close(made, ops.group_advantage.reference(given, offsets(), **options))
    assert (as_bits(made[20:25]) == 0).all()


def test_the_default_is_what_trl_computes() -> None:
    """GRPOTrainer: (r - mean) / (std + 1e-4), std with n - 1, groups of one size."""
    given = rewards()[:1024]
    groups = given.double().view(-1, 16)
    want = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
    close(ops.group_advantage(given, torch.arange(0, 1025, 16)), want.reshape(-1))


def test_leaving_one_out_is_the_distance_to_the_mean_of_the_others() -> None:
    given = rewards()[:30]
    want = torch.stack([given[i].double() - given[torch.arange(30) != i].double().mean() for i in range(30)])
    close(ops.group_advantage(given, offsets(0, 30), baseline="loo", scale="none"), want)


def test_one_group_of_centred_rewards_is_whitening() -> None:
    """The baseline form of REINFORCE++: centre within groups, then whiten over the batch."""
    given = rewards(1)
    centred = ops.group_advantage(given, offsets(), scale="none")
    made = ops.group_advantage(centred, offsets(0, EDGES[-1]), eps=1e-8, eps_mode="inside")
    wide = centred.double()
    close(made, (wide - wide.mean()) * torch.rsqrt(wide.var() + 1e-8))


def test_all_tokens_as_one_group_are_whitened_as_verl_whitens_them() -> None:
    """REINFORCE++: masked_whiten of the returns of active tokens, var with n - 1, over sqrt(var + 1e-8)."""
    generator = torch.Generator().manual_seed(7)
    mask = torch.rand(6, 40, generator=generator) < 0.7
    returns = torch.randn(6, 1, generator=generator).expand(6, 40)
    scored = torch.where(mask, returns, torch.nan).reshape(-1)
    made = ops.group_advantage(scored, offsets(0, scored.numel()), eps=1e-8, eps_mode="inside")
    wide = returns.double()[mask]
    want = torch.zeros(6, 40, dtype=torch.float64)
    want[mask] = (wide - wide.mean()) * torch.rsqrt(wide.var() + 1e-8)
    close(made, want.reshape(-1))


def lengths(seed: int = 5) -> torch.Tensor:
    return torch.randint(0, 90, (EDGES[-1],), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("scale", ["none", "group", "batch"])
@pytest.mark.parametrize("baseline", ["length", "best"])
def test_baselines_of_peers_are_their_formula(baseline: str, scale: str) -> None:
    """OPO: the mean weighted by lengths; Pass@k: what the best one has over the second."""
    given, options = rewards(), {"baseline": baseline, "scale": scale}
    given[20:25] = math.nan
    if baseline == "length":
        options["lengths"] = lengths()
    made = ops.group_advantage(given, offsets(), **options)
    close(made, ops.group_advantage.reference(given, offsets(), **options))
    assert (as_bits(made[20:25]) == 0).all()
    if baseline == "best":
        assert int(made.count_nonzero()) == 5  # one of each group of two or more, of one none


@pytest.mark.parametrize("baseline", ["length", "best"])
def test_equal_rewards_have_no_advantage_over_any_baseline(baseline: str) -> None:
    options = {"lengths": torch.tensor([3, 1, 5])} if baseline == "length" else {}
    equal = torch.full((3,), 1000.1)
    assert not ops.group_advantage(equal, offsets(0, 3), eps=0.0, baseline=baseline, **options).any()
    assert not ops.group_advantage(equal, offsets(0, 1, 2, 3), baseline=baseline, **options).any()
    beyond = torch.tensor([math.inf, 1.0, 2.0])
    made = ops.group_advantage(beyond, offsets(0, 2, 3), baseline=baseline, scale="none", **options)
    assert made[:2].isnan().all() and made[2] == 0


def test_samples_without_length_have_the_largest_as_their_baseline() -> None:
    none = torch.zeros(2, dtype=torch.int64)
    given = torch.tensor([1.0, 3.0])
    made = ops.group_advantage(given, offsets(0, 2), baseline="length", scale="none", lengths=none)
    assert made.tolist() == [-2.0, 0.0]


@pytest.mark.parametrize("given", [{"baseline": "length"}, {"lengths": torch.ones(2, dtype=torch.int64)}])
def test_lengths_belong_to_their_baseline(given: dict[str, Any]) -> None:
    with pytest.raises(LaunchError, match="lengths"):
        ops.group_advantage(torch.zeros(2), offsets(0, 2), **given)


# digits


@pytest.mark.parametrize("scale", ["group", "batch"])
@pytest.mark.parametrize("eps_mode", ["add", "max", "inside"])
@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e20, 1e36])
def test_spreads_whose_squares_are_no_f32_are_measured(size: float, eps_mode: str, scale: str) -> None:
    options = {"scale": scale, "eps_mode": eps_mode, "eps": 0.0}
    given = rewards(3)[:64]
    plain = ops.group_advantage(given, offsets(0, 20, 64), **options)
    made = ops.group_advantage(given * size, offsets(0, 20, 64), **options)
    close(made, plain.double())
    close(made, ops.group_advantage.reference(given * size, offsets(0, 20, 64), **options))


@pytest.mark.parametrize("baseline", ["mean", "loo"])
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_large_rewards_of_small_spread_keep_their_digits(scale: str, baseline: str) -> None:
    given = rewards(2, 0.1, 1000.0)
    options = {"scale": scale, "baseline": baseline}
    made = ops.group_advantage(given, offsets(), **options)
    close(made, ops.group_advantage.reference(given, offsets(), **options))


def test_the_difference_of_moments_would_lose_them() -> None:
    """The control: E[x^2] - E[x]^2 in f32, and a mean that is rounded at 1000."""
    given = rewards(2, 0.1, 1000.0)[202:]
    exact = ops.group_advantage.reference(given, offsets(0, len(given)), eps=0.0)
    variance = (given * given).mean() - given.mean() ** 2
    moments = (given - given.mean()) / variance.clamp(min=1e-12).sqrt()
    rounded = (given - given.mean()) / given.std()
    assert (moments.double() - exact).abs().max() > 0.1
    assert (rounded.double() - exact).abs().max() > 3e-5
    close(ops.group_advantage(given, offsets(0, len(given)), eps=0.0), exact)


@pytest.mark.parametrize("options", OPTIONS[::3] + [{"eps": 0.0}], ids=str)
def test_a_group_of_equal_rewards_has_no_advantage(options: dict[str, Any]) -> None:
    values = torch.tensor([0.1, 1 / 3, 1000.1, -7e-20, 3e10, 0.0, 1.0])
    groups = torch.tensor([0, 3, 10, 10, 11, 40, 41, 57]).cumsum(0)
    sizes = groups.diff()
    given = values[: len(sizes)].repeat_interleave(sizes)
    made = ops.group_advantage(given, groups, **options)
    if options.get("scale") != "batch":
        assert (as_bits(made) == 0).all()
    assert (made == 0).all()


def test_the_mean_of_equal_rewards_would_not_be_one_of_them() -> None:
    """The control: deviations from a mean in f32 are not 0, and a small eps makes them large."""
    given = torch.full((13,), 0.1)
    mean = given.cumsum(0)[-1] / 13
    away = given - mean
    assert away.abs().max() > 0 and (away / (away.square().mean().sqrt() + 1e-8)).abs().max() > 0.1
    assert (as_bits(ops.group_advantage(given, offsets(0, 13), eps=1e-8)) == 0).all()


@pytest.mark.parametrize("options", OPTIONS[::5], ids=str)
def test_a_group_of_one_has_no_advantage(options: dict[str, Any]) -> None:
    made = ops.group_advantage(rewards()[:40], torch.arange(41), **options)
    assert (made == 0).all()


# who is in a group


@pytest.mark.parametrize("scale", ["group", "none"])
def test_a_group_does_not_know_its_neighbours(scale: str) -> None:
    given = rewards(3)
    whole = ops.group_advantage(given, offsets(), scale=scale)
    for begin, end in itertools.pairwise(EDGES):
        alone = ops.group_advantage(given[begin:end], offsets(0, end - begin), scale=scale)
        assert_same_bits(alone, whole[begin:end], f"{begin}:{end}")


def test_a_batch_is_its_neighbours() -> None:
    """The control: what is scaled by the batch changes with it."""
    given = rewards(3)
    whole = ops.group_advantage(given, offsets(), scale="batch")
    assert differing(ops.group_advantage(given[:16], offsets(0, 16), scale="batch"), whole[:16])


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_a_reward_that_is_missing_changes_no_other(scale: str) -> None:
    given = rewards(4)[:48]
    some = torch.arange(48) % 3 > 0
    holed = ops.group_advantage(torch.where(some, given, math.nan), offsets(0, 21, 48), scale=scale)
    dense = ops.group_advantage(given[some], offsets(0, 14, 32), scale=scale)
    close(holed[some], dense.double())
    assert (as_bits(holed[~some]) == 0).all()
    assert differing(ops.group_advantage(given, offsets(0, 21, 48), scale=scale)[some], holed[some])


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_where_nothing_is_scored_nothing_is_said(scale: str) -> None:
    made = ops.group_advantage(torch.full((20,), math.nan), offsets(0, 9, 20), scale=scale)
    assert (as_bits(made) == 0).all()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_no_rewards_give_no_advantages(dtype: torch.dtype) -> None:
    none = torch.zeros(0)
    for edges in ([0], [0, 0], [0, 0, 0]):
        assert ops.group_advantage(none, torch.tensor(edges, dtype=dtype)).shape == (0,)


# offsets

WRONG = {
    "one short": (0, 16, 1499),
    "one too far": (0, 16, 1501),
    "one late": (1, 16, 1500),
    "descending": (0, 20, 16, 1500),
    "negative": (-1, 16, 1500),
}


@pytest.mark.parametrize("edges", WRONG.values(), ids=WRONG)
def test_offsets_that_miss_a_reward_are_refused_at_the_call(edges: tuple[int, ...]) -> None:
    with pytest.raises(LaunchError, match="ascending offsets from 0 to 1500") as caught:
        ops.group_advantage(rewards(), offsets(*edges))
    assert caught.value.diagnostics[0].code is Code.ARG_VALUE


@pytest.mark.parametrize("edges", [EDGES, *WRONG.values()], ids=["right", *WRONG])
def test_a_kernel_reports_offsets_that_miss(edges: tuple[int, ...]) -> None:
    """On a device nothing waits for offsets: the kernel sets the error word, and the group is NaN."""
    program = canonical(spec.trace(spec.default_variant()))
    bounds = offsets(*edges).unfold(0, 2, 1).numpy()
    found = run(program, {"rewards": rewards().numpy(), "bounds": bounds, "eps": 1e-4})
    assert bool(found.errors) == (edges != EDGES)
    empty = {WRONG["descending"]}  # the group that goes back holds nothing
    assert np.isnan(found["advantages"]).any() == (edges != EDGES and edges not in empty)


REFUSED = {
    "a matrix": (lambda: ops.group_advantage(torch.zeros(2, 2), offsets(0, 4)), Code.ARG_RANK, "rewards"),
    "halves": (lambda: ops.group_advantage(torch.zeros(4).half(), offsets(0, 4)), Code.ARG_DTYPE, "rewards"),
    "floats": (lambda: ops.group_advantage(torch.zeros(4), torch.zeros(2)), Code.ARG_DTYPE, "groups"),
    "no offsets": (lambda: ops.group_advantage(torch.zeros(4), offsets()[:0]), Code.ARG_VALUE, "groups"),
    "another scale": (
        lambda: ops.group_advantage(torch.zeros(4), offsets(0, 4), scale="std"),  # type: ignore[arg-type]
        Code.ARG_VALUE, "group, batch, none",
    ),
    "an eps that is waited for": (
        lambda: ops.group_advantage(torch.zeros(4), offsets(0, 4), eps=torch.tensor(1.0)),  # type: ignore[arg-type]
        Code.ARG_TYPE, "eps",
    ),
    "a gradient": (
        lambda: ops.group_advantage(torch.zeros(4, requires_grad=True), offsets(0, 4)),
        Code.NOT_DIFFERENTIABLE, "rewards",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_named(name: str) -> None:
    attempt, code, text = REFUSED[name]
    with pytest.raises(LaunchError, match=text) as caught:
        attempt()
    assert caught.value.diagnostics[0].code is code
