"""Validation of segment offsets: at the call for host tensors, in kernels for device tensors."""

from __future__ import annotations

from typing import Literal

import torch

from rlk.env import Env
from rlk.errors import LaunchError
from rlk.runtime.binding.checks import has_dims, has_dtype, is_tensor, wrong_value
from rlk.runtime.call.dispatch import dispatch
from rlk.runtime.call.entry import call
from rlk.specs import packing as packing_spec

Outside = Literal["nothing", "padding"]


def checked_offsets(op: str, name: str, offsets: object) -> torch.Tensor:
    """Return offsets; raise LaunchError unless they are int32 or int64 of one dim."""
    found = is_tensor(op, name, offsets)
    has_dtype(op, name, found, torch.int32, torch.int64)
    has_dims(op, name, found.shape, 1, "1 dim")
    return found


def bounds_of(op: str, name: str, offsets: object, count: int, of: str) -> torch.Tensor:
    """Return (begin, end) of each segment, [segments, 2], of offsets that cut so many elements.

    Raises LaunchError where it can tell without waiting: offsets on the host must begin with 0, not descend,
    and end with the count. Those on a device are checked by the kernel that reads the bounds.
    """
    found = some_offsets(op, name, offsets, count, of)
    if on_the_host(found):
        refuse_misplaced(op, name, found, count, of)
    return segments_of(found)


def some_offsets(op: str, name: str, offsets: object, count: int, of: str) -> torch.Tensor:
    """Return offsets that have a segment where there is something to cut; raise LaunchError for others."""
    found = checked_offsets(op, name, offsets)
    if found.numel() == 0 or (found.numel() == 1 and count > 0):
        wanted = f"segments + 1 offsets of {count} {of}"
        raise wrong_value(op, f"{name}.shape", tuple(found.shape), wanted)
    return found


def refuse_misplaced(
    op: str, name: str, offsets: torch.Tensor, count: int, of: str, outside: Outside = "nothing"
) -> None:
    """Raise LaunchError for offsets on the host that do not ascend from 0 to the count."""
    if bool(misplaced(offsets, count, outside).any()):
        few = offsets.numel() <= 8
        shown = offsets.tolist() if few else [*offsets[:4].tolist(), "...", *offsets[-3:].tolist()]
        between = f"between 0 and {count}" if outside == "padding" else f"from 0 to {count}"
        wanted = f"ascending offsets {between}, the number of {of}"
        raise wrong_value(op, name, shown, wanted)


def misplaced(offsets: torch.Tensor, count: int | torch.Tensor, outside: Outside = "nothing") -> torch.Tensor:
    """Return which segments are wrong, bool [segments]; where the ends are, all of them.

    outside: "padding" lets elements before the first offset and behind the last one be.
    """
    first, last = offsets[0], offsets[-1]
    ends = (first < 0) | (last > count) if outside == "padding" else (first != 0) | (last != count)
    return (offsets[1:] < offsets[:-1]) | ends


def segments_of(offsets: torch.Tensor) -> torch.Tensor:
    """Return (begin, end) of each segment, [segments, 2]."""
    # a view: neighbours of one tensor, whose address stays a multiple of 16 bytes
    return offsets.contiguous().unfold(0, 2, 1) if offsets.numel() > 1 else offsets.new_empty((0, 2))


def owners_of(ends: torch.Tensor, count: int) -> torch.Tensor:
    """Return the segment of each of so many elements, int64 [count], given where segments end.

    ends: int32 or int64 [segments], ascending. Elements behind the last end go to the last segment.
    """
    ends = ends.contiguous()
    element = torch.arange(count, device=ends.device, dtype=ends.dtype)
    return torch.searchsorted(ends, element, right=True).clamp(max=max(len(ends) - 1, 0))


def on_the_host(x: torch.Tensor) -> bool:
    """Return whether a tensor's numbers can be looked at without waiting for a device.

    Those of a call that is recorded cannot: it stands for one on a device, whose numbers a kernel checks.
    """
    if torch.compiler.is_compiling() or type(x) is not torch.Tensor or x.device.type != "cpu":
        return False
    return dispatch.recorder is None and not torch._C._len_torch_dispatch_stack()  # such as of fake tensors


def all_good(op: str, bad: torch.Tensor, what: str) -> torch.Tensor:
    """Return whether no row is bad, bool []; on a device a bad one sets the error word to what it has."""
    if bad.device.type == "meta":
        return ~bad.any()  # there are no numbers to report
    try:
        return call(packing_spec.reported, {"bad": bad}, {}, {"what": what})["good"].all()
    except LaunchError as error:
        raise error.reworded(op={"reported": op}) from None


def looked_at(x: torch.Tensor) -> bool:
    """Return whether numbers on a device are checked before a call: under RLK_CHECK=1, outside of graphs."""
    return not torch.compiler.is_compiling() and Env.current().check and not on_the_host(x)
