"""verl's policy losses as records of rlk, with its aggregation over a global batch and its metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from rlk import ops
from rlk.integrations.tensors import f32, no_form, rows_of
from rlk.ops import LOSSES, Loss
from rlk.ops.losses import Correction, Surrogate, cispo, clip, dppo_kl, dppo_tv, dro, reinforce, sapo

Made = tuple[torch.Tensor, dict[str, Any]]
MODES = {
    "token-mean": "token_mean",
    "token-sum": "sum",
    "seq-mean-token-sum": "sequence_sum",
    "seq-mean-token-sum-norm": "sequence_sum",
    "seq-mean-token-mean": "sequence_mean",
}


# --- records ------------------------------------------------------------------------------------------------


def _bounds(config: Any) -> tuple[float, float]:
    """Return a config's clip range below and above."""
    low, high = config.clip_ratio_low, config.clip_ratio_high
    return (config.clip_ratio if low is None else low, config.clip_ratio if high is None else high)


def _clip(config: Any, dual: float | None = None) -> Surrogate:
    """Return the clip of a config; its lower bound is none from 1 on, as no ratio is below 0."""
    low, high = _bounds(config)
    return clip(low if low < 1.0 else None, high, dual=dual)


def _vanilla(config: Any) -> Loss:
    return replace(LOSSES["verl/vanilla"], surrogate=_clip(config, dual=config.get("clip_ratio_c", 3.0)))


def _dppo_tv(config: Any) -> Loss:
    most = config.get("clip_ratio_c", 20.0)
    return replace(LOSSES["verl/dppo_tv"], surrogate=dppo_tv(*_bounds(config), most=most))


def _dppo_kl(config: Any) -> Loss:
    most = config.get("clip_ratio_c", 20.0)
    return replace(LOSSES["verl/dppo_kl"], surrogate=dppo_kl(*_bounds(config), most=most))


def _gspo(config: Any) -> Loss:
    return replace(LOSSES["verl/gspo"], surrogate=_clip(config))


def _sapo(config: Any) -> Loss:
    return replace(LOSSES["verl/sapo"], surrogate=sapo(config.tau_pos, config.tau_neg))


def _geo_mean(config: Any) -> Loss:
    low, high = _bounds(config)
    return replace(LOSSES["verl/geo_mean"], token_limits=(-low, high))


def _dro(config: Any) -> Loss:
    beta = config.policy_loss.dro_beta
    if beta is None or beta <= 0:
        raise ValueError("dro takes a positive policy_loss.dro_beta")
    return replace(LOSSES["verl/dro"], surrogate=dro(beta))


def _cispo(config: Any) -> Loss:
    low, high = _bounds(config)
    return replace(LOSSES["verl/cispo"], surrogate=cispo(1 - low, 1 + high))


def _plain(config: Any) -> Loss:
    return LOSSES["verl/gpg"]


# --- aggregation --------------------------------------------------------------------------------------------


def _aggregated(loss: Loss, mode: str, info: Mapping[str, Any], width: int, rows: int) -> tuple[Loss, Any]:
    """Return a record with the aggregation of verl's mode, and what its loss is multiplied by.

    info: of the global batch, as verl's agg_loss takes it: dp_size, batch_num_tokens, global_batch_size,
    loss_scale_factor. width, rows: of the local tokens. Raises UnsupportedError for another mode.
    """
    if mode not in MODES:
        raise no_form("verl", f"loss_agg_mode={mode!r}", f"use one of {', '.join(MODES)}")
    many = info.get("dp_size", 1)
    made = replace(loss, aggregation=MODES[mode], sequences="active")  # type: ignore[arg-type]
    if mode == "token-sum":
        return made, many
    name = "batch_num_tokens" if mode == "token-mean" else "global_batch_size"
    total = info.get(name)
    if total is None and many > 1:
        raise ValueError(f"{name} is needed when dp_size is {many}")
    factor: Any = 1.0
    if mode == "seq-mean-token-sum-norm":
        scale = info.get("loss_scale_factor")
        factor = 1.0 / (width if scale is None else scale)
    if total is None:
        return made, factor
    if mode == "seq-mean-token-mean":  # the mean over all local rows, times how many they are
        return replace(made, sequences="all"), factor * rows * many / total
    return replace(made, aggregation="sum"), factor * many / total


def agg_loss(
    loss_mat: torch.Tensor,
    loss_mask: torch.Tensor,
    loss_agg_mode: str,
    dp_size: int = 1,
    batch_num_tokens: int | None = None,
    global_batch_size: int | None = None,
    loss_scale_factor: int | None = None,
) -> torch.Tensor:
    """Return the aggregate of the unmasked tokens [B, L] by verl's mode."""
    info = {
        "dp_size": dp_size, "batch_num_tokens": batch_num_tokens, "global_batch_size": global_batch_size,
        "loss_scale_factor": loss_scale_factor,
    }  # fmt: skip
    rows, width = loss_mat.shape
    record = Loss(reinforce(), metrics=())  # -A x, with A = -1
    record, factor = _aggregated(record, loss_agg_mode, info, width, rows)
    values = f32(loss_mat)
    given = torch.full((rows,), -1.0, device=values.device)
    made = ops.policy_loss(values, values.detach(), given, layout=rows_of(loss_mask), loss=record)
    return made.loss * factor


# --- losses -------------------------------------------------------------------------------------------------


def _loss(
    name: str, record: Loss, given: tuple[torch.Tensor, ...], mode: str, config: Any,
    weights: torch.Tensor | None,
) -> Made:  # fmt: skip
    """Return a policy loss and verl's metrics. given: old log-probs, log-probs, advantages, mask: [B, L]."""
    old, logp, advantages = (f32(x) for x in given[:3])
    mask, rollout = given[3], {}
    rows, width = logp.shape
    factor: Any = 1.0
    if name == "geo_mean":
        advantages, weights = _of_sequences(advantages, mask, weights)
    else:
        mode = "seq-mean-token-mean" if name == "sapo" else mode
        record, factor = _aggregated(record, mode, config.global_batch_info, width, rows)
    if weights is not None and name == "dro":
        # the penalty has the weight too: exp(old - rollout) is the weight
        rollout["rollout_logp"] = old - f32(weights).log()
        record = replace(record, correction=Correction("truncate", "token", None, None))
    elif weights is not None:
        advantages = advantages * f32(weights)  # every other summand is linear in it
    made = ops.policy_loss(logp, old, advantages.contiguous(), layout=rows_of(mask), loss=record, **rollout)
    return made.loss * factor, _metrics(name, record, given, made.metrics, config)


def _of_sequences(
    advantages: torch.Tensor, mask: torch.Tensor, weights: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the means of advantages over sequences, and geometric means of weights: of f64 sums."""
    counted = mask != 0
    count = counted.sum(-1).clamp(min=1)
    means = torch.where(counted, advantages.double(), 0.0).sum(-1) / count
    if weights is None:
        return means.float(), None
    logs = torch.where(counted, (weights.double() + 1e-10).log(), 0.0).sum(-1) / count
    return means.float(), logs.exp().float()


@torch.no_grad()
def _metrics(
    name: str, record: Loss, given: tuple[torch.Tensor, ...], made: dict[str, torch.Tensor], config: Any
) -> dict[str, Any]:
    """Return verl's metrics as device tensors, without a synchronisation.

    The clip fraction is that of the loss kernel where both mean the same; the other means are torch's.
    """
    if name == "gpg":
        return {}
    old, logp, advantages = (f32(x) for x in given[:3])
    counted = given[3] != 0
    d = logp - old
    limited = d if name in ("gspo", "geo_mean", "dro", "reinforce") else d.clamp(-20.0, 20.0)

    def mean(x: torch.Tensor) -> torch.Tensor:
        return torch.where(counted, x.float(), 0.0).sum() / counted.sum().clamp(min=1)

    found = {"actor/ppo_kl": mean(-limited)}
    if name in ("dro", "reinforce"):
        return found
    clipped, lower = made["clip_fraction"], torch.zeros_like(found["actor/ppo_kl"])
    if name == "sapo":
        clipped = lower
    elif name == "geo_mean":
        low, high = record.token_limits
        outside = d != d.clamp(low, high)
        clipped, lower = mean(outside & (advantages > 0)), mean(outside & (advantages < 0))
    elif name == "vanilla":
        low, high = _bounds(config)
        ratio, bound = limited.exp(), config.get("clip_ratio_c", 3.0)
        term = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - low, 1 + high))
        lower = mean((term > -advantages * bound) & (advantages < 0))
    elif name in ("dppo_tv", "dppo_kl"):
        over = limited.exp() > config.get("clip_ratio_c", 20.0)
        lower = mean(over & ~_too_far(name, old.exp(), logp.exp(), advantages, *_bounds(config)))
    return {**found, "actor/pg_clipfrac": clipped, "actor/pg_clipfrac_lower": lower}


def _too_far(
    name: str, before: torch.Tensor, after: torch.Tensor, advantages: torch.Tensor, low: float, high: float
) -> torch.Tensor:
    """Return which probabilities moved along their advantage by more than a bound, which shuts them off."""
    gains, rises = advantages > 0, after > before
    if name == "dppo_tv":
        moved = after - before
        return torch.where(gains, moved > high, -moved > low)
    stays = (1 - before) * torch.log((1 - before + 1e-8) / (1 - after + 1e-8))
    moved = before * torch.log(before / after) + stays
    return torch.where(gains, rises & (moved > high), (after < before) & (moved > low))


Replacement = Callable[..., Made]


def _replacement(name: str, record_of: Callable[[Any], Loss], mode: str) -> Replacement:
    """Return the replacement of one of verl's functions, with its own default mode."""

    def compute_policy_loss(
        old_log_prob: torch.Tensor,
        log_prob: torch.Tensor,
        advantages: torch.Tensor,
        response_mask: torch.Tensor,
        loss_agg_mode: str = mode,
        config: Any = None,
        rollout_is_weights: torch.Tensor | None = None,
    ) -> Made:
        given = (old_log_prob, log_prob, advantages, response_mask)
        return _loss(name, record_of(config), given, loss_agg_mode, config, rollout_is_weights)

    return compute_policy_loss


def compute_policy_loss_reinforce(
    rollout_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "seq-mean-token-sum",
    config: Any = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> Made:
    """Return the mean of -A lp, weighted where weights are given."""
    given = (rollout_log_prob, log_prob, advantages, response_mask)
    return _loss("reinforce", _plain(config), given, loss_agg_mode, config, rollout_is_weights)


REPLACEMENTS: dict[str, Replacement] = {
    "compute_policy_loss_vanilla": _replacement("vanilla", _vanilla, "token-mean"),
    "compute_policy_loss_dppo_tv": _replacement("dppo_tv", _dppo_tv, "token-mean"),
    "compute_policy_loss_dppo_kl": _replacement("dppo_kl", _dppo_kl, "token-mean"),
    "compute_policy_loss_gspo": _replacement("gspo", _gspo, "seq-mean-token-mean"),
    "compute_policy_loss_sapo": _replacement("sapo", _sapo, "seq-mean-token-mean"),
    "compute_policy_loss_gpg": _replacement("gpg", _plain, "token-mean"),
    "compute_policy_loss_geo_mean": _replacement("geo_mean", _geo_mean, "token-mean"),
    "compute_policy_loss_dro": _replacement("dro", _dro, "token-mean"),
    "compute_policy_loss_cispo": _replacement("cispo", _cispo, "token-mean"),
    "compute_policy_loss_reinforce": compute_policy_loss_reinforce,
}
"""The replacements of verl's functions; clip_cov and kl_cov have no record, and stay as they are."""
