"""Digests of tensors block by block: on a GPU by the kernel of a spec, on a CPU by torch, the same bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

import torch

from rlk.runtime.call.entry import call
from rlk.sync.kernel import FACTORS, LANES, MASK, MIX, STEPS, block_digest

BLOCK = 4 * STEPS * LANES
"""Bytes of a block: 16384 words of 32 bits."""
SIZE = 16
"""Bytes of the digest of a block."""
CAST = 512  # blocks that are cast at once, so that no second copy of a whole weight is made
ROWS = 8  # blocks that a CPU takes at once, so that products stay in a cache
ALIGNED = 16  # bytes, as vector loads take them


class Weight(NamedTuple):
    """A tensor of any strides, and the dtype in which it is digested."""

    tensor: torch.Tensor
    dtype: torch.dtype


def digests_of(weights: Sequence[Weight]) -> list[bytes]:
    """Return the digests of each tensor's blocks, 16 bytes each, in order.

    A tensor's bytes are those of its elements in row-major order, after the cast; the last block is filled up
    with zeros. Each device is waited for once.
    """
    found: list[bytes | None] = [None] * len(weights)
    by_device: dict[torch.device, list[int]] = {}
    for i, weight in enumerate(weights):
        by_device.setdefault(weight.tensor.device, []).append(i)
    for device, indices in by_device.items():
        given = [weights[i] for i in indices]
        made = _on_device(given, device) if device.type == "cuda" else map(_on_host, given)
        for i, each in zip(indices, made, strict=True):
            found[i] = each
    return [each for each in found if each is not None]


def _bytes_of(weight: Weight) -> Iterator[torch.Tensor]:
    """Yield the bytes of a tensor in order, uint8; all but the last are of whole blocks."""
    flat = weight.tensor.detach().reshape(-1)
    step = len(flat) if flat.dtype is weight.dtype else CAST * BLOCK // weight.dtype.itemsize
    for at in range(0, len(flat), max(step, 1)):
        part = flat[at : at + step].to(weight.dtype).view(torch.uint8)
        yield part.clone() if part.storage_offset() % ALIGNED else part


# --- on a device ------------------------------------------------------------------------------------------


def _on_device(weights: Sequence[Weight], device: torch.device) -> list[bytes]:
    sums, row_ranges = launch_digests(weights, device)
    rows = sums.cpu().numpy()
    return [b"".join(rows[a:b].tobytes() for a, b in each) for each in row_ranges]


def launch_digests(
    weights: Sequence[Weight], device: torch.device
) -> tuple[torch.Tensor, list[list[tuple[int, int]]]]:
    """Return the digests of all blocks, i64 [B, 2] on the device, and the rows of each tensor; nothing waits.

    One launch for the whole blocks of each tensor, one for the last blocks of all.
    """
    sums: list[dict[str, torch.Tensor]] = []
    row_ranges: list[list[tuple[int, int]]] = []
    partial_blocks: list[tuple[int, torch.Tensor]] = []
    count = 0
    for i, weight in enumerate(weights):
        row_ranges.append([])
        for part in _bytes_of(weight):
            whole = len(part) // BLOCK
            if whole:
                sums.append(_sums(part[: whole * BLOCK]))
                row_ranges[-1].append((count, count + whole))
                count += whole
            if len(part) % BLOCK:
                partial_blocks.append((i, part[whole * BLOCK :]))
    if partial_blocks:
        last = torch.zeros(len(partial_blocks), BLOCK, dtype=torch.uint8, device=device)
        targets = [row[: len(part)] for row, (_, part) in zip(last, partial_blocks, strict=True)]
        torch._foreach_copy_(targets, [part for _, part in partial_blocks])
        sums.append(_sums(last))
        for row, (i, _) in enumerate(partial_blocks):
            row_ranges[i].append((count + row, count + row + 1))
    empty = torch.empty(0, dtype=torch.int64, device=device)
    both = [torch.cat([empty, *(each[name] for each in sums)]) for name in ("first", "second")]
    return torch.stack(both, 1), row_ranges


def _sums(part: torch.Tensor) -> dict[str, torch.Tensor]:
    words = part.view(torch.int32).view(-1, STEPS, LANES)
    return call(block_digest, {"words": words}, {}, {})


# --- on the host ------------------------------------------------------------------------------------------

LOWER = 0xFFFFFFFF


def _mixed(h: torch.Tensor) -> torch.Tensor:
    """Return `rlk.sync.kernel`'s bijection of 32-bit words, which are held in int64."""
    for shift, factor in MIX:
        h = (h ^ (h >> shift)) * factor & LOWER
    return h


@cache
def _constants() -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Return the word mask and the two factor tables, int64 [STEPS, LANES]."""
    lane, step = torch.arange(LANES), _mixed(torch.arange(STEPS))[:, None]
    odd = (_mixed(lane + c & LOWER) | 1 for c in FACTORS)
    mask = _mixed(lane + MASK & LOWER) + step & LOWER
    return mask, tuple(each * (step | 1) & LOWER for each in odd)


def _on_host(weight: Weight) -> bytes:
    made = []
    for part in _bytes_of(weight):
        part = part.cpu()
        whole = len(part) // BLOCK * BLOCK
        made.append(host_sums(part[:whole].view(torch.int32).view(-1, STEPS, LANES)))
        if len(part) > whole:
            last = torch.nn.functional.pad(part[whole:], (0, BLOCK + whole - len(part)))
            made.append(host_sums(last.view(torch.int32).view(-1, STEPS, LANES)))
    return b"".join(each.numpy().tobytes() for each in made)


def host_sums(words: torch.Tensor) -> torch.Tensor:
    """Digest blocks with torch: the same bits as `block_digest`; i64 [B, 2] of words [B, STEPS, LANES]."""
    mask, factors = _constants()
    found = torch.empty((len(words), 2), dtype=torch.int64)
    for at in range(0, len(words), ROWS):
        x = (words[at : at + ROWS].long() ^ mask) & LOWER
        for half, factor in enumerate(factors):
            product = x * factor  # modulo 2**64
            low, high = (each & LOWER for each in (product, product >> 32))
            low, high = (each.sum((1, 2)) & LOWER for each in (low, high))
            found[at : at + ROWS, half] = high << 32 | low
    return found
