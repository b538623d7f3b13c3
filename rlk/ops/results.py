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


class NLLLoss(NamedTuple):
    """loss: f32 []. per_token: f32 of the tokens' shape. metrics: i32 [] by name. Both detached."""

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


class TokenAdvantages(NamedTuple):
    """Advantages and returns (rewards to come) of tokens, f32 of the tokens' shape, 0 where inactive."""

    advantages: torch.Tensor
    returns: torch.Tensor


class Attention(NamedTuple):
    """o: [Tq, Hq, F], the dtype of v. lse: f32 [Hq, Tq], natural log of each query's softmax denominator."""

    o: torch.Tensor
    lse: torch.Tensor


class RMSNorm(NamedTuple):
    """y: the normalised rows. residual: x + residual in x's dtype."""

    y: torch.Tensor
    residual: torch.Tensor


class Csr(NamedTuple):
    """Kept ids of rows: those of row i are ids[offsets[i] : offsets[i + 1]], each once. int64 or int32."""

    offsets: torch.Tensor
    ids: torch.Tensor


class Support(NamedTuple):
    """The support of a row's distribution: scores above a threshold, and those equal to it up to an index.

    threshold: f32 [B]. ties: i32 [B], how many that equal it are kept. last: i32 [B], the largest index of
    those, -1 without any. `to_csr` lists the ids.
    """

    threshold: torch.Tensor
    ties: torch.Tensor
    last: torch.Tensor

    def to_csr(self, scores: torch.Tensor) -> Csr:
        """Return the ids that are kept of the scores that were drawn from, [B, V]; waits for the device."""
        kept = self.holds(scores.float(), torch.arange(scores.shape[1], device=scores.device))
        sizes = kept.sum(1)
        offsets = torch.cat((sizes.new_zeros(1), sizes.cumsum(0)))
        return Csr(offsets, kept.nonzero()[:, 1])

    def holds(self, scores: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """Return whether tokens at indices of the vocabulary are kept, bool of the scores' shape."""
        threshold, last = self.threshold[:, None], self.last[:, None]
        return (scores > threshold) | ((scores == threshold) & (index <= last))
