"""What offsets of segments must be: refused at the call on the host, reported by kernels on a device."""

from __future__ import annotations

import torch

from rlk.errors import Code, LaunchError


def checked_offsets(op: str, name: str, offsets: object) -> torch.Tensor:
    """Return offsets; raise LaunchError unless they are int32 or int64 of one dim."""
    if not isinstance(offsets, torch.Tensor):
        got = type(offsets).__name__
        raise LaunchError(Code.ARG_TYPE, op=op, name=name, wanted="torch.Tensor", got=got)
    if offsets.dtype not in (torch.int32, torch.int64):
        wanted = "torch.int32 or torch.int64"
        raise LaunchError(Code.ARG_DTYPE, op=op, name=name, got=offsets.dtype, wanted=wanted)
    if offsets.dim() != 1:
        got, shape = offsets.dim(), tuple(offsets.shape)
        raise LaunchError(Code.ARG_RANK, op=op, name=name, got=got, shape=shape, wanted="1 dim")
    return offsets


def bounds_of(op: str, name: str, offsets: object, count: int, of: str) -> torch.Tensor:
    """Return (begin, end) of each segment, [segments, 2], of offsets that cut so many elements.

    Raises LaunchError where it can tell without waiting: offsets on the host must begin with 0, not descend,
    and end with the count. Those on a device are checked by the kernel that reads the bounds.
    """
    found = checked_offsets(op, name, offsets)
    if found.numel() == 0 or (found.numel() == 1 and count > 0):
        wanted = f"segments + 1 offsets of {count} {of}"
        raise LaunchError(
            Code.ARG_VALUE, op=op, name=f"{name}.shape", value=tuple(found.shape), wanted=wanted
        )
    if type(found) is torch.Tensor and found.device.type == "cpu" and not _covers(found, count):
        shown = found.tolist() if found.numel() <= 8 else [*found[:4].tolist(), "...", *found[-3:].tolist()]
        wanted = f"ascending offsets from 0 to {count}, the number of {of}"
        raise LaunchError(Code.ARG_VALUE, op=op, name=name, value=shown, wanted=wanted)
    return segments_of(found)


def segments_of(offsets: torch.Tensor) -> torch.Tensor:
    """Return (begin, end) of each segment, [segments, 2]."""
    # a view: neighbours of one tensor, whose address stays a multiple of 16 bytes
    return offsets.contiguous().unfold(0, 2, 1) if offsets.numel() > 1 else offsets.new_empty((0, 2))


def _covers(offsets: torch.Tensor, count: int) -> bool:
    ascending = bool((offsets[1:] >= offsets[:-1]).all())
    return ascending and int(offsets[0]) == 0 and int(offsets[-1]) == count
