"""Values and gradients of the presets beside the peers' own functions, where those are installed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from loss_cases import Tensors, batch
from peer_losses import (
    trl_loss,
    trl_weights,
    verl_kl,
    verl_loss,
    verl_mean,
    verl_rejected,
    verl_weights,
)

from rlk import Layout, ops
from rlk.ops import LOSSES, Loss
from rlk.ops.losses import Correction, Rejection, Selection, clip, kl_cov

Peer = Callable[[Tensors, torch.Tensor], torch.Tensor]
CLOSE = 2e-6  # relative to the largest gradient, and to the mean size of what a loss sums
WIDTH, LENGTHS = 40, (40, 17, 1, 29)


def compared(loss: Loss, peer: Peer, given: Tensors, mask: torch.Tensor) -> tuple[float, float]:
    """Return how far value and gradient are from the peer's in float64."""
    wide = {n: x.double() if x.is_floating_point() else x for n, x in given.items()}
    leaf, exact = given["logp"].clone().requires_grad_(), wide["logp"].clone().requires_grad_()
    want = peer({**wide, "logp": exact}, mask)
    layout = Layout.padded(torch.full((len(mask),), WIDTH), WIDTH, mask=mask.bool())
    made = ops.policy_loss(**{**given, "logp": leaf}, layout=layout, loss=loss)
    want.backward()
    made.loss.backward()
    assert leaf.grad is not None and exact.grad is not None
    gap, scale = (leaf.grad - exact.grad).abs().max(), exact.grad.abs().max().clamp(min=1e-9)
    # a loss is a sum of terms of both signs: relative to what it would be without them
    size = want.detach().abs().clamp(min=float(scale) * float(mask.sum()) / 4)
    return float((made.loss.detach() - want.detach()).abs() / size), float(gap / scale)


def drawn(seed: int, per_token: bool = False) -> tuple[Tensors, torch.Tensor]:
    given = batch(seed, LENGTHS, WIDTH)
    mask = (given.pop("mask") & (torch.arange(WIDTH) < torch.tensor(LENGTHS)[:, None])).long()
    mask[2, 0] = 1  # verl divides by 0 in a sequence without tokens
    if per_token:
        given["advantages"] = torch.randn(mask.shape, generator=torch.Generator().manual_seed(seed))
    return given, mask


def agree(loss: Loss, peer: Peer, per_token: bool = False) -> None:
    for seed in range(4):
        value, gradient = compared(loss, peer, *drawn(seed, per_token))
        assert value <= CLOSE and gradient <= CLOSE, (seed, value, gradient)


# --- verl ---

MODES = {
    "token_mean": "token-mean", "sequence_mean": "seq-mean-token-mean", "sequence_sum": "seq-mean-token-sum",
    "sum": "token-sum",
}  # fmt: skip
VERL = (
    "vanilla",
    "dppo_tv",
    "dppo_kl",
    "gspo",
    "sapo",
    "gpg",
    "geo_mean",
    "dro",
    "cispo",
    "reinforce",
    "kl_cov",
)


@pytest.fixture
def verl() -> None:
    pytest.importorskip("verl")


@pytest.fixture
def trl() -> None:
    pytest.importorskip("trl")


@pytest.mark.usefixtures("verl")
@pytest.mark.parametrize("name", VERL)
def test_a_verl_preset_is_verls_loss(name: str) -> None:
    loss = LOSSES[f"verl/{name}"]
    # of the tokens of a sequence, verl's geo_mean averages the advantages; the paper has one
    for per_token in (False, True) if name != "geo_mean" else (False,):
        agree(loss, lambda g, m: verl_loss(name, g, m, MODES[loss.aggregation]), per_token)


@pytest.mark.usefixtures("verl")
@pytest.mark.parametrize("aggregation", MODES)
@pytest.mark.parametrize("name", ["vanilla", "gspo", "cispo"])
def test_every_aggregation_is_verls(name: str, aggregation: str) -> None:
    loss = replace(LOSSES[f"verl/{name}"], aggregation=aggregation)  # type: ignore[arg-type]
    agree(loss, lambda g, m: verl_loss(name, g, m, MODES[aggregation]))


@pytest.mark.usefixtures("verl")
def test_a_constant_normalizer_is_verls() -> None:
    loss = replace(LOSSES["verl/gpg"], aggregation="sequence_sum", normalizer=float(WIDTH))
    mode = "seq-mean-token-sum-norm"
    agree(loss, lambda g, m: verl_loss("gpg", g, m, mode))


@pytest.mark.usefixtures("verl")
@pytest.mark.parametrize("kl", ["k1", "k2", "k3", "abs", "k1+", "k3+"])
def test_a_kl_penalty_is_verls(kl: str) -> None:
    loss = replace(LOSSES["verl/vanilla"], beta=0.3, kl=kl)  # type: ignore[arg-type]

    def peer(given: Tensors, mask: torch.Tensor) -> torch.Tensor:
        plain = verl_loss("vanilla", given, mask, "token-mean")
        return plain + 0.3 * verl_mean(verl_kl(given, kl), mask, "token-mean")

    agree(loss, peer)


@pytest.mark.usefixtures("verl")
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("kind", ["truncate", "mask"])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_a_rollout_correction_is_verls(level: Any, kind: Any, normalized: bool) -> None:
    low, threshold = (None, 1.1) if kind == "truncate" else (0.9, "0.9_1.1")
    correction = Correction(kind, level, low, 1.1, 20.0, normalized)
    loss = replace(LOSSES["verl/vanilla"], correction=correction)

    def peer(given: Tensors, mask: torch.Tensor) -> torch.Tensor:
        options = {"rollout_is": level, "rollout_is_threshold": threshold}
        weights = verl_weights(given, mask, **options, rollout_is_batch_normalize=normalized)
        return verl_loss("vanilla", given, mask, "token-mean", weights=weights)

    agree(loss, peer)


RULES = {
    "token_k1": (Rejection("k1", "token", math.log(0.9), math.log(1.1), 20.0), "0.9_1.1"),
    "token_k3": (Rejection("k3", "token", None, 0.01, 20.0), "0.01"),
    "seq_sum_k1": (Rejection("k1", "sum", math.log(0.8), math.log(1.4), 20.0), "0.8_1.4"),
    "seq_mean_k2": (Rejection("k2", "mean", None, 0.005, 20.0), "0.005"),
    "seq_mean_k3": (Rejection("k3", "mean", None, 0.005, 20.0), "0.005"),
    "seq_max_k2": (Rejection("k2", "max", None, 0.03, 20.0), "0.03"),
}


@pytest.mark.usefixtures("verl")
@pytest.mark.parametrize("name", ["vanilla", "gspo"])
@pytest.mark.parametrize("rule", RULES)
def test_a_rejection_is_verls(rule: str, name: str) -> None:
    rejection, threshold = RULES[rule]
    loss = replace(LOSSES[f"verl/{name}"], rejections=(rejection,))
    mode, kept = MODES[loss.aggregation], 0

    def peer(given: Tensors, mask: torch.Tensor) -> torch.Tensor:
        return verl_loss(name, given, verl_rejected(given, mask, rule, threshold), mode)

    for seed in range(12):
        given, mask = drawn(seed)
        left = verl_rejected({n: x.double() for n, x in given.items()}, mask, rule, threshold)
        if 0 < left.sum() < mask.sum():
            value, gradient = compared(loss, peer, given, mask)
            assert value <= CLOSE and gradient <= CLOSE, (seed, value, gradient)
            kept += 1
    assert kept >= 3


SELECTED: dict[str, tuple[Loss, dict[str, float]]] = {
    "clip_cov": (
        replace(LOSSES["verl/clip_cov"], selection=Selection(1.0, 0.02, 0.6, unclipped=True)),
        {"clip_cov_ratio": 1.0, "clip_cov_lb": 0.02, "clip_cov_ub": 0.6},
    ),
    "kl_cov": (
        Loss(kl_cov(0.7), selection=Selection(0.13)), {"kl_cov_ratio": 0.13, "ppo_kl_coef": 0.7}
    ),
}  # fmt: skip


@pytest.mark.usefixtures("verl")
@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("name", SELECTED)
def test_a_selection_over_the_batch_is_verls(name: str, per_token: bool) -> None:
    """clip_cov with a share that takes all candidates: among fewer verl draws, and rlk takes the largest."""
    loss, options = SELECTED[name]
    agree(loss, lambda g, m: verl_loss(name, g, m, "token-mean", **options), per_token)


@pytest.mark.usefixtures("verl")
def test_verls_clip_cov_with_the_draw_that_takes_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    loss = replace(LOSSES["verl/clip_cov"], selection=Selection(0.1, 0.02, 0.6, unclipped=True))
    options = {"clip_cov_ratio": 0.1, "clip_cov_lb": 0.02, "clip_cov_ub": 0.6}

    def peer(given: Tensors, mask: torch.Tensor) -> torch.Tensor:
        a, lp, there = given["advantages"][:, None].expand_as(mask), given["logp"].detach(), mask.bool()
        cov = (a - a[there].mean()) * (lp - lp[there].mean())
        r = (lp - given["old_logp"]).exp()
        clipped = -a * r.clamp(0.8, 1.2) > -a * r
        candidates = cov[there & ~clipped & (cov > 0.02) & (cov < 0.6)]

        def largest(count: int) -> torch.Tensor:
            assert count == len(candidates) > int(0.1 * int(mask.sum()))
            return candidates.argsort(descending=True)

        with monkeypatch.context() as patched:
            patched.setattr(torch, "randperm", largest)
            return verl_loss("clip_cov", given, mask, "token-mean", **options)

    agree(loss, peer)


BYPASS: dict[str, tuple[Loss, dict[str, Any]]] = {
    "bypass_ppo": (LOSSES["verl/bypass_ppo"], {"loss_type": "ppo_clip"}),
    "bypass_ppo, rejecting": (
        replace(LOSSES["verl/bypass_ppo"], rejections=(Rejection("k3", "token", None, 0.05, 20.0),)),
        {"loss_type": "ppo_clip", "rollout_rs": "token_k3", "rollout_rs_threshold": "0.05"},
    ),
    "bypass_reinforce": (
        LOSSES["verl/bypass_reinforce"],
        {"loss_type": "reinforce", "rollout_is": "token", "rollout_is_threshold": 2.0},
    ),
    "bypass_reinforce of sequences, rejecting": (
        replace(
            LOSSES["verl/bypass_reinforce"], aggregation="sequence_sum",
            correction=Correction("truncate", "sequence", None, 1.5, 20.0, normalized=True),
            rejections=(Rejection("k1", "mean", math.log(0.8), math.log(1.2), 20.0),),
        ),
        {
            "loss_type": "reinforce", "rollout_is": "sequence", "rollout_is_threshold": 1.5,
            "rollout_is_batch_normalize": True, "rollout_rs": "seq_mean_k1",
            "rollout_rs_threshold": "0.8_1.2",
        },
    ),
}  # fmt: skip


@pytest.mark.usefixtures("verl")
@pytest.mark.parametrize("name", BYPASS)
def test_a_bypass_is_verls(name: str) -> None:
    loss, options = BYPASS[name]
    mode = MODES[loss.aggregation]
    agree(loss, lambda g, m: verl_loss("bypass_mode", g, m, mode, rollout_correction=options))


# --- peers that are in no registry: their formulas, in float64 ---


@pytest.mark.parametrize("name", ["ppo", "tis", "icepop", "seq_mask_tis"])
def test_an_openrlhf_preset_is_its_formula(name: str) -> None:
    """OpenRLHF `openrlhf/models/loss.py`, PolicyLoss.forward, policy_loss_type "ppo", at 3c3be62."""
    low, high, found = 0.985, 1.02, set[bool]()
    loss = LOSSES[f"openrlhf/{name}"]
    if loss.correction is not None:
        loss = replace(loss, correction=replace(loss.correction, low=low, high=high))

    def peer(given: Tensors, mask: torch.Tensor) -> torch.Tensor:
        a, there = given["advantages"][:, None], mask.bool()
        r = (given["logp"] - given["old_logp"]).clamp(-20, 20).exp()
        term = -torch.min(r * a, r.clamp(0.8, 1.2) * a)
        d = given["old_logp"] - given["rollout_logp"]
        weight = d.exp()
        match name:
            case "tis":
                term = weight.clamp(low, high) * term
            case "icepop":
                term = weight * ((weight >= low) & (weight <= high)) * term
            case "seq_mask_tis":
                mean = ((d * mask).sum(-1) / mask.sum(-1)).exp()
                kept = (mean >= low) & (mean <= high)
                found.update(kept.tolist())
                term = kept[:, None] * weight * term
        return term[there].mean()

    agree(loss, peer)
    assert found == ({False, True} if name == "seq_mask_tis" else set())


PRIME = {
    "default": ({"above": 0.2, "below": 0.2}, LOSSES["prime/default"]),
    "ipo": ({"above": 0.1, "below": 0.1}, LOSSES["prime/ipo"]),
    "ref_kl": ({"above": math.inf, "below": 0.2}, LOSSES["prime/ref_kl"]),
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", PRIME)
def test_a_prime_preset_is_its_formula(name: str, weighted: bool) -> None:
    """prime-rl `src/prime_rl/trainer/rl/loss.py`, with a component's scale and weights, at 559b447."""
    limits, loss = PRIME[name]
    loss = replace(loss, aggregation="sum", normalizer=50.0, weighted=weighted)

    def peer(given: Tensors, mask: torch.Tensor) -> torch.Tensor:
        weights = given["token_weights"] if weighted else torch.ones_like(given["logp"])
        there = mask.bool() & (weights != 0)
        lp, old = given["logp"], given["old_logp"]
        moved = (lp.exp() - old.exp()).detach()
        up, down = moved > limits["above"], moved < -limits["below"]
        a = given["advantages"][:, None].expand_as(lp)
        masked = torch.where(a > 0, up, down) if name == "default" else up | down
        if name == "ref_kl":
            a, masked = (given["ref_logp"] - lp).detach(), down
        term = -1.0 * (there & ~masked) * a * (lp - old).exp() + there * 1e-3 * (lp - old) ** 2
        return (term * weights)[there].sum() / 50.0

    for seed in range(4):
        given, mask = drawn(seed)
        if name == "ref_kl":
            given["advantages"].zero_()
        value, gradient = compared(loss, peer, given, mask)
        assert value <= CLOSE and gradient <= CLOSE, (seed, value, gradient)


# --- TRL ---

TRL: dict[str, tuple[Loss, dict[str, Any]]] = {
    "grpo": (LOSSES["trl/grpo"], {"loss_type": "grpo"}),
    "bnpo": (LOSSES["trl/bnpo"], {"loss_type": "bnpo"}),
    "dapo": (LOSSES["trl/dapo"], {"loss_type": "dapo"}),
    "dr_grpo": (replace(LOSSES["trl/dr_grpo"], normalizer=64.0), {"loss_type": "dr_grpo", "length": 64}),
    "gspo": (LOSSES["trl/gspo"], {"loss_type": "grpo", "level": "sequence"}),
    "luspo": (LOSSES["trl/luspo"], {"loss_type": "luspo", "level": "sequence"}),
    "cispo": (LOSSES["trl/cispo"], {"loss_type": "cispo", "epsilon_high": 5.0}),
    "sapo": (LOSSES["trl/sapo"], {"loss_type": "sapo"}),
    "vespo": (LOSSES["trl/vespo"], {"loss_type": "vespo"}),
    "delta": (replace(LOSSES["trl/grpo"], surrogate=clip(delta=1.3)), {"loss_type": "grpo", "delta": 1.3}),
    "delta within the bounds": (
        replace(LOSSES["trl/grpo"], surrogate=clip(delta=1.1)),
        {"loss_type": "grpo", "delta": 1.1},
    ),
    "kl": (replace(LOSSES["trl/grpo"], beta=0.3), {"loss_type": "grpo", "beta": 0.3}),
    "unbiased kl": (
        replace(LOSSES["trl/grpo"], beta=0.3, kl_enters="ratio"),
        {"loss_type": "grpo", "beta": 0.3, "unbiased_kl": True},
    ),
    "unbiased kl of sequences": (
        replace(LOSSES["trl/gspo"], beta=0.3, kl_enters="ratio"),
        {"loss_type": "grpo", "level": "sequence", "beta": 0.3, "unbiased_kl": True},
    ),
    "entropy": (replace(LOSSES["trl/grpo"], entropy_coef=0.2), {"loss_type": "grpo", "entropy_coef": 0.2}),
    "off-policy mask": (replace(LOSSES["trl/grpo"], most_drift=-0.01), {"loss_type": "grpo", "drift": -0.01}),
}


@pytest.mark.usefixtures("trl")
@pytest.mark.parametrize("name", TRL)
def test_a_trl_preset_is_trls_loss(name: str) -> None:
    loss, options = TRL[name]
    agree(loss, lambda given, mask: trl_loss(given, mask, **options))


@pytest.mark.usefixtures("trl")
@pytest.mark.parametrize("kind", ["truncate", "mask"])
@pytest.mark.parametrize(("name", "level"), [("grpo", "token"), ("grpo", "sequence"), ("vespo", "token")])
def test_a_correction_of_vllms_rollout_is_trls(name: str, level: Any, kind: Any) -> None:
    loss = replace(LOSSES[f"trl/{name}"], correction=Correction(kind, level, 0.9, 1.1))

    def peer(given: Tensors, mask: torch.Tensor) -> torch.Tensor:
        weights = trl_weights(given, mask, f"{level}_{kind}", 0.9, 1.1)
        return trl_loss(given, mask, name, correction=weights)

    agree(loss, peer)


# --- where a peer is wrong, and rlk differs on purpose (docs/losses.md) ---


@pytest.mark.usefixtures("verl")
def test_verl_lets_what_padding_holds_into_means_over_sequences() -> None:
    given, mask = drawn(0)
    spoiled = {n: x if n == "advantages" else torch.where(mask.bool(), x, math.nan) for n, x in given.items()}
    assert verl_loss("vanilla", spoiled, mask, "seq-mean-token-mean").isnan()
    layout = Layout.padded(torch.full((len(mask),), WIDTH), WIDTH, mask=mask.bool())
    assert ops.policy_loss(**spoiled, layout=layout, loss="verl/vanilla").loss.isfinite()


@pytest.mark.usefixtures("verl")
def test_verl_has_no_loss_of_no_token() -> None:
    given, mask = drawn(0)
    assert verl_loss("vanilla", given, mask * 0, "token-mean").isnan()
    layout = Layout.padded(torch.full((len(mask),), WIDTH), WIDTH, mask=mask.bool() & False)
    assert float(ops.policy_loss(**given, layout=layout, loss="verl/vanilla").loss) == 0


@pytest.mark.usefixtures("trl")
def test_trl_multiplies_an_infinite_ratio_by_no_advantage() -> None:
    given, mask = drawn(0)
    given["advantages"].zero_()
    given["old_logp"][0, mask[0].nonzero()[0]] = -200.0
    assert trl_loss({**given}, mask, "grpo").isnan()
    layout = Layout.padded(torch.full((len(mask),), WIDTH), WIDTH, mask=mask.bool())
    assert float(ops.policy_loss(**given, layout=layout, loss="trl/grpo").loss) == 0


@pytest.mark.usefixtures("verl")
def test_peers_k3_loses_its_digits_near_zero() -> None:
    d = torch.tensor([1e-4, -1e-4, 3e-4, 1e-3])
    zero = torch.zeros_like(d)
    exact = d.double() ** 2 / 2 * (1 + d.double() / 3)
    theirs = verl_kl({"logp": zero, "ref_logp": d}, "k3")
    ours = ops.ratio_kl(zero, zero, d, kl="k3").kl
    assert float(((theirs - exact) / exact).abs().max()) > 0.05
    assert float(((ours - exact) / exact).abs().max()) < 1e-6


def test_a_wrong_constant_is_seen() -> None:
    """The control: what is compared tells a clip range of 0.2 from one of 0.2001."""
    given, mask = drawn(0)
    layout = Layout.padded(torch.full((len(mask),), WIDTH), WIDTH, mask=mask.bool())

    def peer(g: Tensors, m: torch.Tensor) -> torch.Tensor:
        return ops.policy_loss.reference(**g, layout=layout, loss=Loss(clip(0.2, 0.2001))).loss

    value, _ = compared(Loss(), peer, given, mask)
    assert value > CLOSE
