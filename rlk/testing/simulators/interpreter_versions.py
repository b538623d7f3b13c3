"""Differences between versions of Triton's interpreter, hidden from the rest of rlk.

Each difference is found by looking at what is installed, so a development build counts as what it is.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as base

__all__ = ["hooks", "load", "lanes_inside", "store", "validate_descriptor"]

Patch = tuple[Any, str, Any]
"""An object, one of its attributes, and what that is to be."""

_BUILDER = base.InterpreterBuilder

# How lines should be cached, which a CPU ignores: two arguments up to Triton 3.8, one from 3.9 on.
_HINTS = (None,) * (1 if "cache_policy" in inspect.signature(_BUILDER.create_masked_load).parameters else 2)

# Up to Triton 3.5 patching sets attributes itself; from 3.6 on it asks its last argument to do so.
_SCOPED = "scope" in inspect.signature(base._patch_lang_core).parameters


def load(builder: Any, ptrs: Any, mask: Any, other: Any) -> Any:
    """Return what the lanes of `mask` point at, and `other` in the others."""
    return _BUILDER.create_masked_load(builder, ptrs, mask, other, *_HINTS, False)


def store(builder: Any, ptrs: Any, value: Any, mask: Any) -> Any:
    """Write the lanes of `mask`."""
    return _BUILDER.create_masked_store(builder, ptrs, value, mask, *_HINTS)


def lanes_inside(desc: Any, indices: Any) -> tuple[Any, Any]:
    """Return handles of pointers to a descriptor's block at `indices`, and of which of them lie inside."""
    ptrs, inside = desc.materialize_pointers(indices)  # an array up to Triton 3.8, a handle from 3.9 on
    data = inside.data if isinstance(inside, base.TensorHandle) else inside
    return ptrs, base.TensorHandle(np.asarray(data), tl.int1)


def validate_descriptor(desc: Any) -> None:
    """Raise AssertionError for a descriptor that no device takes: Triton 3.5 counts strides in elements."""
    size = desc.base.dtype.element_ty.primitive_bitwidth // 8
    assert desc.base.data.item() % 16 == 0, "the base of a descriptor must be aligned to 16 bytes"
    assert len(desc.strides) == len(desc.block_shape) == desc.ndim >= 1, "a descriptor needs a dim"
    assert all(s.data.item() * size % 16 == 0 for s in desc.strides[:-1]), "a stride must be 16n bytes"
    assert desc.strides[-1].data.item() == 1, "the last dim of a descriptor must be contiguous"


def hooks() -> list[Patch]:
    """Return what Triton's own patching would set for one run of a kernel; nothing is left set."""
    recorder = _Recorder()
    try:
        for lang in (tl, tl.core):
            base._patch_lang_core(*recorder.arguments(lang))
        base._patch_lang_tensor(*recorder.arguments(tl.core.tensor))
    finally:
        recorder.restore()
    return recorder.patches


class _Recorder:
    """Collects what is patched: as the scope that newer versions ask, or by comparing before with after."""

    # All that _patch_lang_core, _patch_reduce_scan and _patch_lang_tensor of Triton 3.5 write to.
    _OWNERS = (tl, tl.core, tl.core.dtype, tl.core.tensor)

    def __init__(self) -> None:
        self._before = [dict(vars(owner)) for owner in self._OWNERS]
        self.patches: list[Patch] = []

    def arguments(self, owner: Any) -> tuple[Any, ...]:
        return (owner, self) if _SCOPED else (owner,)

    def set_attr(self, owner: Any, name: str, value: Any) -> None:
        self.patches.append((owner, name, value))

    def restore(self) -> None:
        """Undo what was set past the scope, and count it among the patches."""
        for owner, before in zip(self._OWNERS, self._before, strict=True):
            for name, value in list(vars(owner).items()):
                if name not in before:
                    delattr(owner, name)
                elif value is not before[name]:
                    setattr(owner, name, before[name])
                else:
                    continue
                self.patches.append((owner, name, value))
