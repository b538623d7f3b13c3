"""Advantages, the critic's loss and preferences beside the peers' own functions, where they are installed."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rlk import Layout, ops

SIZES = (4, 2, 8, 16)
LENGTHS, WIDTH = torch.tensor([40, 17, 1, 29]), 40
VALID = torch.arange(WIDTH) < LENGTHS[:, None]


def close(got: torch.Tensor, want: torch.Tensor, rtol: float = 2e-6) -> None:
    torch.testing.assert_close(got.detach().double(), want.detach().double(), rtol=rtol, atol=1e-6)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def verl() -> Any:
    pytest.importorskip("verl")
    from verl.trainer.ppo import core_algos

    return core_algos


def of_verl(estimator: Any, rewards: torch.Tensor, sizes: tuple[int, ...], **options: Any) -> torch.Tensor:
    """Return the advantage of each sample: verl takes rewards of tokens, here of one token a sample."""
    index = np.repeat(np.arange(len(sizes)), sizes)
    mask = torch.ones(len(rewards), 1, dtype=torch.float64)
    return estimator(rewards.double()[:, None], mask, index, **options)[0][:, 0]


@pytest.mark.parametrize("scaled", [True, False])
def test_groups_have_the_advantages_of_verl(verl: Any, scaled: bool) -> None:
    rewards, edges = drawn(sum(SIZES)), torch.tensor([0, *itertools.accumulate(SIZES)])
    options = {"epsilon": 1e-6, "norm_adv_by_std_in_grpo": scaled}
    want = of_verl(verl.compute_grpo_outcome_advantage, rewards, SIZES, **options)
    close(ops.group_advantage(rewards, edges, scale="group" if scaled else "none", eps=1e-6), want)
    left_out = of_verl(verl.compute_rloo_outcome_advantage, rewards, SIZES)
    close(ops.group_advantage(rewards, edges, baseline="loo", scale="none"), left_out)


@pytest.mark.parametrize("scaled", [True, False])
def test_the_best_of_a_group_has_verls_advantage(verl: Any, scaled: bool) -> None:
    rewards, edges = drawn(sum(SIZES)), torch.tensor([0, *itertools.accumulate(SIZES)])
    options = {"epsilon": 1e-6, "config": {"norm_adv_by_std_in_grpo": scaled}}
    want = of_verl(verl.compute_grpo_passk_outcome_advantage, rewards, SIZES, **options)
    scale = "group" if scaled else "none"
    close(ops.group_advantage(rewards, edges, baseline="best", scale=scale, eps=1e-6), want)


def test_the_baseline_of_lengths_is_verls(verl: Any) -> None:
    """OPO: verl weighs by the active tokens of each sample."""
    rewards, edges = drawn(sum(SIZES)), torch.tensor([0, *itertools.accumulate(SIZES)])
    lengths = torch.randint(1, WIDTH, (sum(SIZES),), generator=torch.Generator().manual_seed(4))
    mask = (torch.arange(WIDTH) < lengths[:, None]).double()
    index = np.repeat(np.arange(len(SIZES)), SIZES)
    placed = torch.zeros_like(mask)
    placed[:, 0] = rewards.double()
    want = verl.compute_opo_outcome_advantage(placed, mask, index)[0][:, 0]
    close(ops.group_advantage(rewards, edges, baseline="length", scale="none", lengths=lengths), want)


def test_a_lone_sample_differs_on_purpose(verl: Any) -> None:
    """verl hands on its reward as its advantage: a sample without a baseline has none, and ours is 0."""
    rewards = torch.tensor([0.7])
    assert of_verl(verl.compute_grpo_outcome_advantage, rewards, (1,)).abs() > 0.6
    assert ops.group_advantage(rewards, torch.tensor([0, 1])) == 0.0


def test_equal_rewards_differ_on_purpose(verl: Any) -> None:
    """verl divides what rounding leaves of equal rewards by eps; ours is exactly 0."""
    rewards = torch.full((3,), 1000.1)
    theirs = verl.compute_grpo_outcome_advantage(rewards[:, None].clone(), torch.ones(3, 1), np.zeros(3))[0]
    assert theirs.abs().max() > 0.5
    assert not ops.group_advantage(rewards, torch.tensor([0, 3]), eps=1e-6).any()


@pytest.mark.parametrize("lam", [0.95, 1.0])
def test_estimates_are_those_of_verl(verl: Any, lam: float) -> None:
    """verl whitens its advantages: its returns less the values are what was whitened."""
    values, rewards = drawn(4, WIDTH), drawn(4, WIDTH, seed=1)
    mask = VALID & (drawn(4, WIDTH, seed=2) > -0.5)
    given = (rewards.double(), values.double(), mask.double())
    _, returns = verl.compute_gae_advantage_return(*given, gamma=0.99, lam=lam)
    made = ops.gae(values, rewards, layout=Layout.padded(LENGTHS, WIDTH, mask=mask), gamma=0.99, lam=lam)
    close(made.returns[mask], returns[mask])
    close(made.advantages[mask], (returns - values.double())[mask])


def test_a_value_loss_is_that_of_verl(verl: Any) -> None:
    old, returns, moved = (drawn(4, WIDTH, seed=s) for s in range(3))
    mask = VALID & (drawn(4, WIDTH, seed=3) > -0.5)
    leaf, wide = (old + 0.3 * moved).requires_grad_(), (old + 0.3 * moved).double().requires_grad_()
    layout = Layout.padded(LENGTHS, WIDTH, mask=mask)
    made = ops.value_loss(leaf, returns, layout=layout, old_values=old, clip=0.2)
    loss, clipped = verl.compute_value_loss(wide, returns.double(), old.double(), mask.double(), 0.2)
    made.loss.backward()
    loss.backward()
    close(made.loss, loss)
    close(made.metrics["clip_fraction"], clipped)
    assert leaf.grad is not None and wide.grad is not None
    close(leaf.grad, wide.grad, 1e-5)


def of_a_policy(seed: int, lengths: torch.Tensor, width: int) -> dict[str, torch.Tensor]:
    """Rewards of tokens, and log-probs and sums of squares of a small vocabulary."""
    logits = 2 * drawn(len(lengths), width, 7, seed=seed)
    probs = logits.softmax(-1)
    picked = probs.flatten(0, 1).multinomial(1, generator=torch.Generator().manual_seed(seed))
    return {
        "rewards": drawn(len(lengths), width, seed=seed + 1),
        "logp": probs.gather(-1, picked.view(len(lengths), width, 1))[..., 0].log(),
        "sum_pi_squared": probs.square().sum(-1),
        "rollout_weights": 0.5 + drawn(len(lengths), width, seed=seed + 2).sigmoid(),
    }


MEMBERS = (4, 1, 2, 6)
RESPONSES = torch.tensor([40, 17, 1, 29, 12, 25, 25, 9, 0, 33, 33, 8, 2])


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("tail", ["zero", "group"])
@pytest.mark.parametrize("holes", [False, True], ids=["whole", "holes"])
@pytest.mark.parametrize("align", ["position", "active"])
def test_the_optimal_token_baseline_is_verls(
    verl: Any, align: str, holes: bool, tail: str, weighted: bool
) -> None:
    """Both of verl's: places are positions, or numbers among the active tokens (tir)."""
    if align == "position" and holes and tail == "zero":
        pytest.skip("verl takes a number of active tokens for a position there: a test of its own says so")
    given = of_a_policy(5, RESPONSES, WIDTH)
    mask = torch.arange(WIDTH) < RESPONSES[:, None]
    if holes:
        mask = mask & (drawn(len(RESPONSES), WIDTH, seed=6) > -0.5)
    if not weighted:
        del given["rollout_weights"]
    index = np.repeat(np.arange(len(MEMBERS)), MEMBERS)
    wide = {n: x.double() for n, x in given.items()}
    estimator = verl.compute_optimal_token_baseline_advantage
    if align == "active":
        estimator = verl.compute_multi_turn_optimal_token_baseline_advantage
    advantages, returns = estimator(
        wide["rewards"], mask.double(), index, wide["logp"], wide["sum_pi_squared"],
        rollout_is_weights=wide.get("rollout_weights"), handle_zero_tail=tail == "zero",
    )  # fmt: skip
    edges = torch.tensor([0, *itertools.accumulate(MEMBERS)])
    layout = Layout.padded(RESPONSES, WIDTH, mask=mask)
    made = ops.optimal_token_baseline(**given, groups=edges, layout=layout, align=align, tail=tail)  # type: ignore[arg-type]
    close(made.returns[mask], returns[mask], 1e-5)
    close(made.advantages, advantages, 2e-5)


def test_the_tail_of_a_sequence_with_holes_differs_on_purpose(verl: Any) -> None:
    """verl cuts a row of positions at how many tokens the second sequence has; ours where it ends."""
    given = of_a_policy(7, torch.tensor([8, 5]), 8)
    mask = torch.arange(8) < torch.tensor([8, 5])[:, None]
    mask[1, 1:3] = False  # 3 tokens up to position 5
    wide = {n: x.double() for n, x in given.items()}
    advantages, returns = verl.compute_optimal_token_baseline_advantage(
        wide["rewards"], mask.double(), np.zeros(2), wide["logp"], wide["sum_pi_squared"]
    )
    del given["rollout_weights"]
    layout = Layout.padded(torch.tensor([8, 5]), 8, mask=mask)
    made = ops.optimal_token_baseline(**given, groups=torch.tensor([0, 2]), layout=layout)
    close(made.advantages[0, :3], advantages[0, :3], 2e-5)
    assert bool((advantages[0, 3:] == returns[0, 3:]).all())
    assert bool((made.advantages[0, 3:5] != made.returns[0, 3:5]).all())
    assert bool((made.advantages[0, 5:] == made.returns[0, 5:]).all())


def test_a_sequence_beside_empty_ones_differs_on_purpose(verl: Any) -> None:
    """verl's baseline of positions is then the sequence itself, that of active tokens none, as ours."""
    given = of_a_policy(8, torch.tensor([8, 0]), 8)
    del given["rollout_weights"]
    mask = (torch.arange(8) < torch.tensor([8, 0])[:, None]).double()
    wide = {n: x.double() for n, x in given.items()}
    of_policy = (wide["logp"], wide["sum_pi_squared"])
    for align, estimator in (
        ("position", verl.compute_optimal_token_baseline_advantage),
        ("active", verl.compute_multi_turn_optimal_token_baseline_advantage),
    ):
        advantages, returns = estimator(
            wide["rewards"], mask, np.zeros(2), *of_policy, handle_zero_tail=False
        )
        layout = Layout.padded(torch.tensor([8, 0]), 8)
        options = {"groups": torch.tensor([0, 2]), "align": align, "tail": "group"}
        made = ops.optimal_token_baseline(**given, layout=layout, **options)  # type: ignore[arg-type]
        assert torch.equal(made.advantages, made.returns)
        assert bool((advantages == returns).all()) == (align == "active")


MODES = {
    "token_mean": ("token-mean", None), "sequence_mean": ("seq-mean-token-mean", None),
    "sequence_sum": ("seq-mean-token-sum", None), "sum": ("token-sum", None),
    "sequence_sum, normalized": ("seq-mean-token-sum-norm", 40.0),
}  # fmt: skip


@pytest.mark.parametrize("name", MODES)
def test_a_value_loss_is_averaged_as_verls(verl: Any, name: str) -> None:
    """verl divides a sequence's sum by its length + 1e-8: beyond what f32 shows."""
    old, returns, moved = (drawn(4, WIDTH, seed=s) for s in range(3))
    mask = VALID & (drawn(4, WIDTH, seed=3) > -0.5)
    mask[2] = False  # a sequence without tokens, which is not counted
    leaf, wide = (old + 0.3 * moved).requires_grad_(), (old + 0.3 * moved).double().requires_grad_()
    mode, normalizer = MODES[name]
    made = ops.value_loss(
        leaf, returns, layout=Layout.padded(LENGTHS, WIDTH, mask=mask), old_values=old,
        aggregation=name.split(",")[0], normalizer=normalizer,
    )  # fmt: skip
    given = (wide, returns.double(), old.double(), mask.double(), 0.2)
    loss, _ = verl.compute_value_loss(*given, mode)
    made.loss.backward()
    loss.backward()
    close(made.loss, loss)
    assert leaf.grad is not None and wide.grad is not None
    close(leaf.grad, wide.grad, 1e-5)


HOST = SimpleNamespace(device="cpu")


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_simpo_and_cpo_are_those_of_trl(smoothing: float) -> None:
    trainers = pytest.importorskip("trl.experimental.cpo.cpo_trainer")
    chosen, rejected = (-drawn(50, seed=s).abs() for s in (0, 1))
    tokens = torch.ones(50, dtype=torch.int64)  # TRL takes means of tokens
    counts = {"chosen_tokens": tokens, "rejected_tokens": tokens}
    for name, kind, margin in (("simpo", "simpo", 0.5), ("cpo", "sigmoid", 0.0)):
        trainer = SimpleNamespace(
            alpha=0.0, beta=2.0, loss_type=kind, simpo_gamma=margin, label_smoothing=smoothing,
            accelerator=HOST,
        )  # fmt: skip
        terms, *_ = trainers.CPOTrainer.cpo_loss(trainer, chosen.double(), rejected.double())
        options = {"loss": name, "beta": 2.0, "margin": margin, "smoothing": smoothing}
        close(ops.preference_loss(chosen, rejected, **options, **counts).per_pair, terms)


DPO = {
    "sigmoid": {}, "hinge": {}, "exo_pair": {"smoothing": 0.1}, "robust": {"smoothing": 0.1}, "ipo": {},
    "discopop": {"tau": 0.5}, "aot": {"smoothing": 0.1}, "aot_unpaired": {}, "nca_pair": {}, "bco_pair": {},
    "sppo_hard": {}, "apo_zero": {}, "apo_down": {},
}  # fmt: skip
LINKED = ("sigmoid", "hinge", "exo_pair", "robust", "ipo", "discopop")
LINKS = ("forward_kl", "js_divergence", "alpha_divergence")
CASES = [
    *((name, "reverse_kl", False, None) for name in DPO),
    *((name, link, False, None) for name in LINKED for link in LINKS),
    ("sigmoid", "reverse_kl", True, None), ("ipo", "js_divergence", True, None),
    ("sigmoid", "reverse_kl", False, 0.3), ("sft", "reverse_kl", False, None),
]  # fmt: skip


class _Discard(dict[str, Any]):
    def __missing__(self, key: str) -> Any:
        return self.setdefault(key, [])


def trl_dpo(name: str, leaf: torch.Tensor, given: dict[str, torch.Tensor], **options: Any) -> torch.Tensor:
    """Return the loss of TRL's DPOTrainer for log-probs of tokens, chosen completions before rejected."""
    trainer = pytest.importorskip("trl.trainer.dpo_trainer").DPOTrainer
    mask = given["mask"]
    full = torch.cat((torch.zeros(len(mask), 1), mask), 1)
    outputs = SimpleNamespace(
        log_probs=leaf * mask, log_sum_sq_probs=given["squares"] * mask, entropy=leaf.detach(),
        mean_logits=leaf.detach(), is_top1=mask.bool(),
    )  # fmt: skip
    same = lambda x: x  # noqa: E731
    me = SimpleNamespace(
        model=SimpleNamespace(training=False), aux_loss_enabled=False, precompute_ref_logps=True,
        accelerator=SimpleNamespace(device="cpu", gather_for_metrics=same, gather=same),
        ld_alpha=None, f_divergence_type="reverse_kl", f_alpha_divergence_coef=0.5, beta=0.3,
        loss_types=[name], loss_weights=[1.0], label_smoothing=0.0, use_weighting=False,
        args=SimpleNamespace(discopop_tau=0.5), _metrics={"eval": _Discard()}, _total_train_tokens=0,
    )  # fmt: skip
    vars(me).update(options)
    inputs = {"input_ids": full.long(), "completion_mask": full.long(), "attention_mask": full.long()}
    refs = {f"ref_{n}_logps": given[f"ref_{n}"] for n in ("chosen", "rejected")}
    model = lambda **rest: outputs  # noqa: E731
    return trainer._compute_loss(me, model, {**inputs, **refs}, False)


@pytest.mark.parametrize(("name", "link", "weighted", "tail"), CASES)
def test_a_preference_is_that_of_trls_trainer(
    name: str, link: str, weighted: bool, tail: float | None
) -> None:
    """Values and gradients by log-probs of tokens; f32 on their side too, where TRL has tables of dtypes."""
    lengths = torch.randint(3, WIDTH, (24,), generator=torch.Generator().manual_seed(3))
    mask = (torch.arange(WIDTH) < lengths[:, None]).float()
    logps = -drawn(24, WIDTH).abs()
    refs = ((logps + 0.3 * drawn(24, WIDTH, seed=1)) * mask).sum(1)
    given = {"mask": mask, "ref_chosen": refs[:12], "ref_rejected": refs[12:]}
    given["squares"] = -drawn(24, WIDTH, seed=2).abs()
    options: dict[str, Any] = {"label_smoothing": DPO.get(name, {}).get("smoothing", 0.0)}
    leaf, exact = logps.clone().requires_grad_(), logps.clone().requires_grad_()
    layout = Layout.padded(lengths, WIDTH)
    ours: dict[str, Any] = dict(DPO.get(name, {}))
    if link != "reverse_kl":
        options["f_divergence_type"], ours["divergence"] = link, link.removesuffix("_divergence")
        ours |= {"alpha": 0.5} if link == "alpha_divergence" else {}
    if weighted:
        options["use_weighting"] = True
        weights = ops.sequence_logp(logps - given["squares"], layout=layout, over="probability")
        ours["weights"] = weights[:12] * weights[12:]
    if tail is not None:
        options["ld_alpha"] = tail
    want = trl_dpo(name, exact, given, **options)
    shared = torch.minimum(lengths[:12], lengths[12:]).repeat(2)
    summed = ops.sequence_logp(
        leaf, layout=layout, **({} if tail is None else {"shared": shared, "tail": tail})
    )
    if name == "sft":
        made = ops.nll_loss(leaf[:12], layout=Layout.padded(lengths[:12], WIDTH)).loss
    else:
        if name == "ipo":
            ours |= {"chosen_tokens": lengths[:12], "rejected_tokens": lengths[12:]}
        sides = (summed[:12], summed[12:], refs[:12], refs[12:])
        made = ops.preference_loss(*sides, loss=name, beta=0.3, **ours).loss
    close(made, want, 2e-5)
    made.backward()
    want.backward()
    assert leaf.grad is not None and exact.grad is not None
    close(leaf.grad, exact.grad * mask, 2e-4)


@pytest.mark.parametrize("alpha", [0.25, -0.5])
def test_alphapo_is_trls(alpha: float) -> None:
    trainers = pytest.importorskip("trl.experimental.cpo.cpo_trainer")
    chosen, rejected = (-drawn(50, seed=s).abs() for s in (0, 1))
    tokens = torch.ones(50, dtype=torch.int64)
    trainer = SimpleNamespace(
        alpha=alpha, beta=2.0, loss_type="simpo", simpo_gamma=0.5, label_smoothing=0.0, accelerator=HOST
    )
    terms, *_ = trainers.CPOTrainer.cpo_loss(trainer, chosen.double(), rejected.double())
    options = {"loss": "alphapo", "beta": 2.0, "margin": 0.5, "alpha": alpha}
    counts = {"chosen_tokens": tokens, "rejected_tokens": tokens}
    close(ops.preference_loss(chosen, rejected, **options, **counts).per_pair, terms, 1e-5)


def test_odds_are_those_of_trl() -> None:
    trainers = pytest.importorskip("trl.experimental.orpo.orpo_trainer")
    chosen, rejected = (-drawn(50, seed=s).abs() for s in (0, 1))
    tokens = torch.ones(50, dtype=torch.int64)
    trainer = SimpleNamespace(beta=0.3, accelerator=HOST)
    terms, *_ = trainers.ORPOTrainer.odds_ratio_loss(trainer, chosen, rejected)
    counts = {"chosen_tokens": tokens, "rejected_tokens": tokens}
    close(ops.preference_loss(chosen, rejected, loss="orpo", beta=0.3, **counts).per_pair, -terms, 1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_divergences_are_those_of_trls_distillation(beta: float, temperature: float) -> None:
    """Terms of tokens of the vocabulary, summed; gradients by logits of the student."""
    trainer = pytest.importorskip("trl.experimental.gkd.gkd_trainer").GKDTrainer
    student = 3 * drawn(4, 6, 300)
    teacher, mask = student + drawn(4, 6, 300, seed=1), drawn(4, 6, seed=2) < 0.8
    labels = torch.where(mask, 1, -100)
    leaf, wide = student.clone().requires_grad_(), student.double().requires_grad_()
    want = trainer.generalized_jsd_loss(wide, teacher.double(), labels, beta, temperature)
    made = ops.jsd_loss(leaf, teacher, beta=beta, temperature=temperature, mask=mask).sum() / mask.sum()
    close(made, want)
    made.backward()
    want.backward()
    assert leaf.grad is not None and wide.grad is not None
    close(leaf.grad, wide.grad, 2e-5)
