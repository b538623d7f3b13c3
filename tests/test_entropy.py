"""The entropy of softmax(z) is near float64 and not negative, however far from 0 the scores z lie."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from head_cases import shard_of
from linear_cases import head
from rank_turns import Exchange, in_turn

from rlk import ops
from rlk.interp.run import run
from rlk.ir import fold
from rlk.lang import Axis, L, Op, Outputs, Tensor, f32, op
from rlk.passes.pipeline import canonical
from rlk.testing.bits import as_bits, assert_same_bits, differing

INF = float("inf")
SHIFTS = (0.0, 30.0, -30.0, 1000.0, -1000.0)
VOCABULARY = 8 * 330  # two chunks in each piece
LOG2E = 1.4426950408889634
RTOL, ATOL = 1e-6, 5e-7
"""Those of a sum of some thousand f32 terms, none of which knows the shift."""

ROWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "near": lambda x: x,
    "wide": lambda x: 6 * x,
    "equal": lambda x: 0 * x,
    "peaked": lambda x: torch.where(torch.arange(len(x)) == 700, 18.0, x),
    "one score": lambda x: torch.where(torch.arange(len(x)) == 2600, x, -INF),
    "half of them": lambda x: torch.where(torch.arange(len(x)) % 2 == 0, x, -INF),
    "the last piece": lambda x: torch.where(torch.arange(len(x)) < 2400, -INF, x),
}


@cache
def scores(shift: float) -> torch.Tensor:
    """Return a row of each kind, shifted and rounded to f32."""
    x = torch.randn(len(ROWS), VOCABULARY, generator=torch.Generator().manual_seed(4))
    return torch.stack([make(row) for make, row in zip(ROWS.values(), x, strict=True)]) + shift


def exact(z: torch.Tensor) -> torch.Tensor:
    """Return the entropy in float64, of scores as they are."""
    logs = torch.log_softmax(z.double(), -1)
    return -torch.where(logs == -INF, 0.0, logs.exp() * logs).sum(-1)


def close(got: Any, want: torch.Tensor, rtol: float = RTOL, atol: float = ATOL) -> None:
    torch.testing.assert_close(torch.as_tensor(got).double(), want, rtol=rtol, atol=atol)


def ids_of(z: torch.Tensor) -> torch.Tensor:
    return z.argmax(-1)


# --- operators ---


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("math", ["portable", "sm90"])
@pytest.mark.parametrize("shift", SHIFTS)
def test_the_entropy_of_logits_is_near_float64(shift: float, math: str, temperature: float) -> None:
    z = scores(shift)
    got = ops.logp(z, ids_of(z), needs=("logp", "entropy"), temperature=temperature, math=math)
    if temperature != 1.0:  # the scores that f32 has: where they are coarse, so is the distribution
        z = z * torch.tensor(1 / temperature)
    close(got.entropy, exact(z))
    assert_same_bits(got.logp, ops.logp(scores(shift), ids_of(z), temperature=temperature, math=math).logp)


@pytest.mark.parametrize("shift", SHIFTS)
def test_scores_that_round_alike_have_the_same_entropy(shift: float) -> None:
    """A shift of scores in steps of 1 / 64 is exact, and no bit of the entropy knows it."""
    z = (scores(0.0) * 64).round() / 64
    made = [ops.logp(x, ids_of(z), needs=("entropy",)).entropy for x in (z, z + shift)]
    assert_same_bits(*made)


@pytest.mark.parametrize("shift", SHIFTS)
def test_no_entropy_is_negative_and_that_of_one_score_is_0(shift: float) -> None:
    generator = torch.Generator().manual_seed(6)
    z = torch.randn(400, 300, generator=generator) * torch.logspace(-3, 3, 400)[:, None] + shift
    z[::7, 5] += 90.0
    got = ops.logp(z, ids_of(z), needs=("entropy",)).entropy
    assert (got >= 0).all()
    far = torch.full((3, 300), shift)
    far[0], far[1], far[2] = -INF, shift - 200.0, -3e38
    far[:, 130] = shift
    assert (as_bits(ops.logp(far, ids_of(far), needs=("entropy",)).entropy) == 0).all()


@pytest.mark.parametrize("shift", SHIFTS)
def test_rows_without_a_distribution_keep_their_policy(shift: float) -> None:
    z = scores(shift)[:1].repeat(6, 1)
    z[1], z[2, 40], z[3, 41] = -INF, float("nan"), INF
    mask = torch.tensor([True, True, True, True, False, True])
    z[4] = float("nan")
    got = ops.logp(z, torch.zeros(6, dtype=torch.long), mask=mask, needs=("lse", "entropy"))
    assert got.lse[1] == -INF and got.entropy[1:4].isnan().all()
    assert as_bits(got.entropy)[4] == 0
    assert_same_bits(got.entropy[5], got.entropy[0])
    close(got.entropy[0], exact(z[0]))


@pytest.mark.parametrize("shift", [1000.0, -1000.0])
def test_the_gradient_of_an_entropy_is_as_good_as_its_lse(shift: float) -> None:
    """z - lse has the rounding of lse, half an ulp of 1000 at most; the entropy adds nothing to that."""
    z = scores(shift).clone().requires_grad_()
    ops.logp(z, ids_of(z), needs=("entropy",)).entropy.sum().backward()
    logs = torch.log_softmax(z.detach().double(), -1)
    p, want = logs.exp(), exact(z.detach())[:, None]
    want = -torch.where(p == 0, 0.0, p * (torch.where(p == 0, 0.0, logs) + want))
    assert z.grad is not None
    assert (z.grad.double() - want).abs().max() < 2.0**-15 * p.max()
    assert z.grad.double().sum(-1).abs().max() < 2.0**-14


def shifted_head(shift: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return hidden, weight, ids, and a bias that shifts all scores."""
    hidden, weight, ids = head(rows=(9,), vocabulary=VOCABULARY)
    weight[700] += hidden[3] / 2
    return hidden, weight, ids, torch.full((VOCABULARY,), shift, dtype=hidden.dtype)


def entropy_of_head(rank: int = 0, world: int = 1, group: Any = None, shift: float = 1000.0) -> torch.Tensor:
    hidden, weight, ids, bias = shifted_head(shift)
    part = shard_of(rank, world, VOCABULARY)
    more = {} if group is None else {"group": group, "vocab_start": part.start}
    made = ops.linear_logp(hidden, weight[part], ids, bias=bias[part], needs=("entropy",), **more)
    assert made.entropy is not None
    return made.entropy


def exact_of_head(shift: float) -> torch.Tensor:
    hidden, weight, ids, bias = shifted_head(shift)
    z = ops.matmul(hidden, weight, out_dtype=torch.float32) + bias.float()
    return torch.where(ids == -100, 0.0, exact(z))


@pytest.mark.parametrize("shift", SHIFTS)
def test_the_entropy_of_a_linear_head_is_near_float64(shift: float) -> None:
    want = exact_of_head(shift)
    assert want[3] < 0.2 < want.max(), "a peaked row and others"
    close(entropy_of_head(shift=shift), want)


@pytest.mark.parametrize("world", [2, 4, 8])
@pytest.mark.parametrize("shift", [1000.0, -1000.0])
def test_ranks_share_an_entropy_far_from_0(shift: float, world: int) -> None:
    def step(rank: int, group: dist.ProcessGroup) -> dict[str, torch.Tensor]:
        return {"entropy": entropy_of_head(rank, world, group, shift)}

    alone = entropy_of_head(shift=shift)
    for found in in_turn(step, Exchange(world)):
        assert_same_bits(found["entropy"], alone)
        close(found["entropy"], exact_of_head(shift))


# --- folds: every leaf, both units of scores ---

AXES = {
    "pieces of a split": Axis("V", chunk=256, split=8),
    "pieces of a size": Axis("V", chunk=64, piece=256, dynamic=True),
    "one piece": Axis("V", chunk=128),
    "a leaf of a piece": Axis("V", chunk=64, piece=256, leaf="piece", dynamic=True),
    "elements": Axis("V", chunk=1, split=8),
}
T = Axis("T", dynamic=True)


def folded(axis: Axis, unit: str, z: torch.Tensor) -> dict[str, np.ndarray]:
    """Return the entropy, and the means of e and of another payload, under softmax(z)."""

    def entropy(z: Any, y: Any) -> Outputs:
        power = unit == "ln 2"
        soft = L.power_sum(entropy=True) if power else L.softmax_sum(entropy=True)
        for v in L.stream(axis):
            soft.absorb(z[v] * LOG2E if power else z[v], y=y[v])
        return L.out(entropy=soft.entropy(), lse=soft.lse(), mean=soft.mean("y"))

    entropy.__annotations__ = {"z": Tensor[f32, T, axis], "y": Tensor[f32, T, axis]}
    spec = op()(entropy)
    given = {"z": z.numpy(), "y": payload().numpy()}
    return run(canonical(spec.trace(spec.default_variant())), given).tensors


@cache
def payload() -> torch.Tensor:
    return torch.randn(len(ROWS), VOCABULARY, generator=torch.Generator().manual_seed(8))


@pytest.mark.parametrize("unit", ["1", "ln 2"])
@pytest.mark.parametrize("name", AXES)
@pytest.mark.parametrize("shift", [0.0, 1000.0, -1000.0])
def test_every_leaf_has_a_centred_sum(shift: float, name: str, unit: str) -> None:
    z = scores(shift)
    made = folded(AXES[name], unit, z)
    # z log2(e) is rounded: scores in units of ln 2 are others, by up to half an ulp of 1443
    wide = z.double() if unit == "1" else (z * torch.tensor(LOG2E)).double() / LOG2E
    # one element after the other: a chain of 330 additions in each piece
    close(made["entropy"], exact(wide), 4e-6, 1e-5 if name == "elements" else 1e-6)
    # payloads stand behind the centred sum
    close(made["mean"], (wide.softmax(-1) * payload().double()).sum(-1), 1e-5, 1e-6)


# --- controls ---


@cache
def by_difference() -> Op:
    """Return the entropy as lse less the mean of z, as it was."""
    axis = AXES["pieces of a split"]

    def difference(z: Any) -> Outputs:
        soft = L.softmax_sum()
        for v in L.stream(axis):
            soft.absorb(z[v], zbar=z[v])
        return L.out(entropy=soft.lse() - soft.mean("zbar"))

    difference.__annotations__ = {"z": Tensor[f32, T, axis]}
    return op()(difference)


def test_a_difference_of_large_numbers_is_seen() -> None:
    program = canonical(by_difference().trace(by_difference().default_variant()))
    made = {shift: run(program, {"z": scores(shift).numpy()}) for shift in (0.0, 1000.0)}
    close(made[0.0]["entropy"], exact(scores(0.0)), 1e-6, 4e-6)
    with pytest.raises(AssertionError):
        close(made[1000.0]["entropy"], exact(scores(1000.0)), 1e-5, 1e-5)
    assert (made[1000.0]["entropy"] < 0).any() or differing(made[1000.0]["entropy"], made[0.0]["entropy"]) > 3


@pytest.mark.parametrize("name", ["pieces of a split", "a leaf of a piece"])
def test_a_sum_that_keeps_its_old_centre_is_seen(name: str) -> None:
    """Merges that leave out the move from one maximum to another."""

    def kept(b: Any, centred: Any, s: Any, distance: Any, name: str = "") -> Any:
        return centred

    fold.merging.cache_clear()
    with patch.object(fold, "recentred", kept):
        made = folded(AXES[name], "1", scores(0.0))
    fold.merging.cache_clear()
    wrong = (torch.as_tensor(made["entropy"]).double() - exact(scores(0.0))).abs()
    assert wrong[0] > 0.01 and wrong[1] > 0.01
