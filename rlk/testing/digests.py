"""Digests of rows of numbers, made on their device, to compare views of a model without keeping logits."""

from __future__ import annotations

import torch

_SEED = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, of SplitMix64 (Steele et al. 2014)
_BLOCK = 1 << 26  # numbers at a time: 8 bytes each, three tensors of them
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits_of(x: torch.Tensor) -> torch.Tensor:
    """Return the bits of each number as an integer of its size; a view where x is contiguous."""
    return x.detach().contiguous().view(_INTEGERS[x.element_size()])


def row_digests(x: torch.Tensor) -> torch.Tensor:
    """Return a digest of the bits of each row of x [T, N], int64 [T], on its device, without waiting for it.

    Equal rows have equal digests, and unequal ones equal digests by a chance of about 2**-64. A digest is
    a sum of 64-bit integers, of each number's bits mixed with its place: no order changes it. x: f32, bf16 or
    f16. NaN patterns count as they are.
    """
    bits = bits_of(x)
    factors = _mixed(torch.arange(x.shape[1], device=x.device) * _signed(_SEED) + _signed(_SEED)) | 1
    rows = max(1, _BLOCK // max(1, x.shape[1]))
    sums = [_mixed((part + _signed(_SEED)) * factors).sum(1) for part in bits.split(rows)]
    return torch.cat(sums) if sums else torch.zeros(0, dtype=torch.int64, device=x.device)


def _mixed(x: torch.Tensor) -> torch.Tensor:
    """Return 64-bit integers whose bits all depend on all of the given ones' (the end of SplitMix64)."""
    x = (x ^ (x >> 30)) * _signed(0xBF58476D1CE4E5B9)
    return x ^ (x >> 27)


def _signed(x: int) -> int:
    """Return the int64 that has the bits of an unsigned one."""
    return x - (1 << 64) if x >> 63 else x
