"""Digests of fixed size: of a token's distribution over the vocabulary, and of weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from rlk.sync import digest
from rlk.testing.digests import row_digests

WIDTH = 16
"""Numbers of a sketch."""
_BLOCK = 1 << 24  # elements of the vocabulary at a time, over all rows


@dataclass(frozen=True, slots=True, eq=False)
class Digest:
    """A digest of each token's distribution, 80 bytes whatever the vocabulary.

    bits: int64 [T], equal where all f32 logits are bitwise equal. entropy, top: f32 [T], the entropy in
    nats and the largest log-prob. sketch: f32 [T, 16], a count sketch (Charikar et al. 2002) of the
    probabilities: the squared distance of two sketches is that of the probabilities on average, with a
    relative standard deviation of about sqrt(2 / 16).
    """

    bits: torch.Tensor
    entropy: torch.Tensor
    top: torch.Tensor
    sketch: torch.Tensor

    @staticmethod
    def of(logits: torch.Tensor, temperature: float = 1.0) -> Digest:
        """Return the digest of the softmax of logits f32 [T, V], divided by a temperature."""
        logps = torch.log_softmax(logits / temperature, -1)
        p = logps.exp()
        entropy = -(p * logps.nan_to_num(neginf=0.0)).sum(-1)
        return Digest(row_digests(logits.contiguous()), entropy, logps.amax(-1), sketched(p))

    @staticmethod
    def cat(parts: Iterable[Digest]) -> Digest:
        """Join digests of several tokens."""
        each = [(d.bits, d.entropy, d.top, d.sketch) for d in parts]
        return Digest(*(torch.cat(column) for column in zip(*each, strict=True)))

    def distance(self, other: Digest) -> torch.Tensor:
        """Return an estimate of the Euclidean distance of two distributions, f32 [T]; 0 for equal bits."""
        found = (self.sketch - other.sketch).norm(dim=-1)
        return torch.where((self.bits == other.bits) & (self.top == other.top), 0.0, found)


def sketched(p: torch.Tensor) -> torch.Tensor:
    """Return a count sketch f32 [T, 16] of p [T, V]: each element goes, with a sign, into one of 16 sums."""
    index = torch.arange(p.shape[-1], device=p.device)
    mixed = (index + 1) * 0x9E3779B1 & 0xFFFFFFFF  # Knuth's multiplicative hash of 32 bits
    mixed = (mixed ^ (mixed >> 15)) * 0x85EBCA6B & 0xFFFFFFFF
    mixed = mixed ^ (mixed >> 13)
    bucket, sign = mixed % WIDTH, 1 - 2 * ((mixed >> 8) % 2)
    rows = max(1, _BLOCK // max(1, p.shape[-1]))
    made = [
        torch.zeros(len(part), WIDTH, device=p.device).index_add_(1, bucket, part.float() * sign)
        for part in p.split(rows)
    ]
    return torch.cat(made) if made else torch.zeros(0, WIDTH, device=p.device)


def weight_checksums(model: torch.nn.Module) -> dict[str, str]:
    """Return the digest of each weight by its Hugging Face name: the hex digits of `rlk.sync.digest`."""
    return {name: weight.hex for name, weight in digest(model).weights.items()}
