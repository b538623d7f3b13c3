"""The named tuples that operators return; a field that was not asked for is None."""

from __future__ import annotations

from typing import NamedTuple

import torch


class LogProbs(NamedTuple):
    """Per-row results of `logp`, f32 of the rows' shape (argmax: i32)."""

    logp: torch.Tensor | None = None
    lse: torch.Tensor | None = None
    entropy: torch.Tensor | None = None
    argmax: torch.Tensor | None = None
    lse2: torch.Tensor | None = None


class RatioKL(NamedTuple):
    """Per-token importance ratio and KL estimate, f32."""

    ratio: torch.Tensor
    kl: torch.Tensor


class PolicyLoss(NamedTuple):
    """loss: f32 []. per_token: f32 of the tokens' shape. metrics: f32 or i32 [] by name. Both detached."""

    loss: torch.Tensor
    per_token: torch.Tensor
    metrics: dict[str, torch.Tensor]


class PreferenceLoss(NamedTuple):
    """loss: f32 []. per_pair: f32 [P]. metrics: f32 [] by name. Both detached."""

    loss: torch.Tensor
    per_pair: torch.Tensor
    metrics: dict[str, torch.Tensor]


class KTOLoss(NamedTuple):
    """loss: f32 []. per_sample: f32 [P]. metrics: f32 [] by name. Both detached."""

    loss: torch.Tensor
    per_sample: torch.Tensor
    metrics: dict[str, torch.Tensor]


class ValueLoss(NamedTuple):
    """loss: f32 []. per_token: f32 of the tokens' shape. metrics: f32 or i32 [] by name. Both detached."""

    loss: torch.Tensor
    per_token: torch.Tensor
    metrics: dict[str, torch.Tensor]


class EntropyBonus(NamedTuple):
    """loss: f32 [], to be added. entropy: the token mean, f32 [], detached."""

    loss: torch.Tensor
    entropy: torch.Tensor


class TokenRewards(NamedTuple):
    """Rewards and costs of tokens, f32 of the tokens' shape, 0 where none was given."""

    rewards: torch.Tensor
    costs: torch.Tensor


class Gae(NamedTuple):
    """Advantages and returns of tokens, f32 of the tokens' shape, 0 where inactive."""

    advantages: torch.Tensor
    returns: torch.Tensor


class RMSNorm(NamedTuple):
    """y: the normalised rows. residual: x + residual in x's dtype."""

    y: torch.Tensor
    residual: torch.Tensor
