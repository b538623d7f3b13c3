"""Samples as tensors: padded and packed forms of the same tokens, masks and advantages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlk.demo.text import Sample

PAD_ID = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples as tensors; position t of a sample predicts its token t + 1.

    `inputs`, `targets` and `mask` [B, L] are padded on the right; `lengths` [B] counts their positions,
    `mask` marks those that predict completion tokens; `advantages` and `rewards` are per sample [B].
    """

    inputs: Tensor
    targets: Tensor
    mask: Tensor
    lengths: Tensor
    advantages: Tensor
    rewards: Tensor

    @property
    def real(self) -> Tensor:
        """Mark the positions [B, L] that hold a token and not padding."""
        return torch.arange(self.inputs.shape[1], device=self.lengths.device) < self.lengths[:, None]

    @property
    def cu_seqlens(self) -> Tensor:
        """Return where each sample starts in packed form, int32 [B + 1]."""
        ends = torch.cumsum(self.lengths, 0)
        return torch.cat([ends.new_zeros(1), ends]).to(torch.int32)

    def pack(self, padded: Tensor) -> Tensor:
        """Lay the real positions [B, L, ...] of all samples end to end: [T, ...]."""
        return padded[self.real]

    def select(self, samples: Sequence[int]) -> Batch:
        """Keep some samples, in the given order."""
        at = torch.tensor(list(samples), device=self.inputs.device)
        return Batch(*(tensor[at] for tensor in self.tensors()))

    def cut(self, length: int) -> Batch:
        """Keep the first positions of every sample."""
        return Batch(*(tensor[:, :length] if tensor.dim() == 2 else tensor for tensor in self.tensors()))

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the fields in order."""
        return (self.inputs, self.targets, self.mask, self.lengths, self.advantages, self.rewards)


@dataclass(frozen=True, slots=True)
class Case:
    """A batch with the policy's logits [B, L, V] and the old and reference policies' log-probs [B, L]."""

    batch: Batch
    logits: Tensor
    old: Tensor
    ref: Tensor

    def select(self, samples: Sequence[int], length: int | None = None) -> Case:
        """Keep some samples in the given order, and the first positions of each."""
        at = torch.tensor(list(samples), device=self.logits.device)
        batch = self.batch.select(samples)
        parts = (tensor[at, :length] for tensor in (self.logits, self.old, self.ref))
        return Case(batch if length is None else batch.cut(length), *parts)


def advantages_of(rewards: Tensor, group_size: int) -> Tensor:
    """Return GRPO's advantages: rewards less their group's mean, over its standard deviation plus 1e-4."""
    groups = rewards.view(-1, group_size)
    spread = groups.std(1, keepdim=True)
    return ((groups - groups.mean(1, keepdim=True)) / (spread + 1e-4)).reshape(-1)


def make_batch(samples: Sequence[Sample], group_size: int, device: str) -> Batch:
    """Pad samples to a common length and move them to a device."""
    length = max(len(sample) for sample in samples) - 1
    inputs = torch.full((len(samples), length), PAD_ID)
    targets = torch.full((len(samples), length), PAD_ID)
    mask = torch.zeros((len(samples), length), dtype=torch.bool)
    for row, sample in enumerate(samples):
        ids = torch.tensor(sample.prompt + sample.completion)
        inputs[row, : len(ids) - 1] = ids[:-1]
        targets[row, : len(ids) - 1] = ids[1:]
        mask[row, len(sample.prompt) - 1 : len(ids) - 1] = True
    rewards = torch.tensor([sample.reward for sample in samples], dtype=torch.float64)
    advantages = advantages_of(rewards, group_size).to(torch.float32)
    lengths = torch.tensor([len(sample) - 1 for sample in samples])
    tensors = (inputs, targets, mask, lengths, advantages, rewards)
    return Batch(*(tensor.to(device) for tensor in tensors))
