"""The peers' own loss functions, called on a padded batch in float64: what parity is tested against."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch
from loss_cases import Tensors

Options = dict[str, Any]


def verl_loss(name: str, given: Tensors, mask: torch.Tensor, mode: str, **options: Any) -> torch.Tensor:
    """Return verl's policy loss by its registered name; weights: of its rollout correction."""
    from verl.trainer.ppo import core_algos
    from verl.workers.config import ActorConfig

    config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1)
    object.__setattr__(config.policy_loss, "dro_beta", 0.1)
    weights = options.pop("weights", None)
    for key, value in options.items():
        object.__setattr__(config.policy_loss, key, value)
    if name == "reinforce":
        call = core_algos.compute_policy_loss_reinforce
        return call(given["old_logp"], given["logp"], advantages(given), mask, mode, config, weights)[0]
    function = core_algos.get_policy_loss_fn(name)
    made = function(given["old_logp"], given["logp"], advantages(given), mask, mode, config, weights)
    return made[0]


def advantages(given: Tensors) -> torch.Tensor:
    """Return the advantage of each token."""
    a = given["advantages"]
    return a if a.dim() == 2 else a[:, None].expand_as(given["logp"])


def verl_weights(given: Tensors, mask: torch.Tensor, **options: Any) -> torch.Tensor:
    """Return verl's importance weights of a rollout."""
    from verl.trainer.ppo import rollout_corr_helper as helper

    ratio = given["old_logp"] - given["rollout_logp"]
    return helper.compute_rollout_correction_weights(ratio, mask, **options)[0]


def verl_rejected(given: Tensors, mask: torch.Tensor, rule: str, threshold: str) -> torch.Tensor:
    """Return the mask that verl's rejection leaves."""
    from verl.trainer.ppo import rollout_corr_helper as helper

    ratio = given["old_logp"] - given["rollout_logp"]
    return helper.compute_rollout_rejection_mask(ratio, mask, rule, threshold)[0]


def verl_mean(x: torch.Tensor, mask: torch.Tensor, mode: str, **options: Any) -> torch.Tensor:
    """Return verl's aggregation."""
    from verl.trainer.ppo import core_algos

    return core_algos.agg_loss(x, mask, mode, **options)


def verl_kl(given: Tensors, name: str) -> torch.Tensor:
    """Return verl's KL penalty of each token."""
    from verl.trainer.ppo import core_algos

    return core_algos.kl_penalty(given["logp"], given["ref_logp"], name)


def trl_loss(given: Tensors, mask: torch.Tensor, loss_type: str, **options: Any) -> torch.Tensor:
    """Return the loss of TRL's GRPOTrainer for one batch: its method, without the trainer around it.

    options: level, beta, entropy_coef, delta, unbiased_kl, epsilon, epsilon_high, drift, correction.
    """
    from trl.trainer.grpo_trainer import GRPOTrainer

    epsilon = options.get("epsilon", 0.2)
    trainer = SimpleNamespace(
        **_surroundings(given), loss_type=loss_type, beta=options.get("beta", 0.0),
        importance_sampling_level=options.get("level", "token"), epsilon_low=epsilon,
        epsilon_high=options.get("epsilon_high", epsilon), entropy_coef=options.get("entropy_coef", 0.0),
        _entropy_bonus_enabled="entropy_coef" in options, off_policy_mask_threshold=options.get("drift"),
        use_vllm="correction" in options, max_completion_length=options.get("length", mask.shape[1]),
        get_off_policy_mask=GRPOTrainer.get_off_policy_mask, get_gamma_weights=GRPOTrainer.get_gamma_weights,
    )  # fmt: skip
    trainer.args.delta, trainer.args.use_bias_correction_kl = options.get("delta"), options.get("unbiased_kl")
    inputs = {
        "prompt_ids": mask[:, :0], "prompt_mask": mask[:, :0],
        "completion_ids": mask, "completion_mask": mask,
        "advantages": given["advantages"], "old_per_token_logps": given["old_logp"],
        "ref_per_token_logps": given["ref_logp"], "num_items_in_batch": mask.sum(),
    }  # fmt: skip
    if "correction" in options:
        inputs["importance_sampling_ratio"] = options["correction"]
    return GRPOTrainer._compute_loss(trainer, None, inputs)


def trl_weights(
    given: Tensors, mask: torch.Tensor, mode: str, least: float | None, most: float
) -> torch.Tensor:
    """Return TRL's importance ratio of a rollout by vLLM, which the trainer computes in line."""
    d = (given["old_logp"] - given["rollout_logp"]) * mask
    ratio = torch.exp(d.sum(-1, keepdim=True) if mode.startswith("sequence") else d)
    if mode.endswith("truncate"):
        return ratio.clamp(least, most)
    low = -math.inf if least is None else least
    return ratio.masked_fill((ratio < low) | (ratio > most), 0.0)


def _surroundings(given: Tensors) -> Options:
    """Return what the method reads of a trainer: one process, one micro-batch, TRL's default numbers."""

    def same(x: Any, **options: Any) -> Any:
        return x

    logps = lambda *a, **o: (given["logp"], given["entropy"], None)  # noqa: E731
    accelerator = SimpleNamespace(
        num_processes=1, reduce=same, gather=same, gather_for_metrics=same, sync_gradients=True
    )
    args = SimpleNamespace(
        sapo_temperature_pos=1.0, sapo_temperature_neg=1.05, vespo_k_pos=2.0, vespo_lambda_pos=3.0,
        vespo_k_neg=3.0, vespo_lambda_neg=2.0, steps_per_generation=1,
    )  # fmt: skip
    return {
        "_get_per_token_logps_and_entropies": logps, "accelerator": accelerator, "args": args,
        "aux_loss_enabled": False, "top_entropy_quantile": 1.0, "model": SimpleNamespace(training=True),
        "vllm_importance_sampling_correction": True, "current_gradient_accumulation_steps": 1,
        "use_adaptive_entropy": False, "_metrics": {"train": _Anything()},
    }  # fmt: skip


class _Anything(dict[str, list[float]]):
    """The metrics of a trainer, which nobody reads."""

    def __missing__(self, key: str) -> list[float]:
        return self.setdefault(key, [])
