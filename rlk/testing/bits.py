"""Bitwise equality of arrays: equal patterns once every NaN is one NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlk.interp.floats import float8_from_bits

SHOWN = 6

# kind -> (magnitude bits, pattern of infinity, the one NaN)
_FLOATS = {
    "e4m3": (0x7F, 0x7E, 0x7F),  # no infinity: the largest number
    "e5m2": (0x7F, 0x7C, 0x7E),
    "bf16": (0x7FFF, 0x7F80, 0x7FC0),
    "f16": (0x7FFF, 0x7C00, 0x7E00),
    "f32": (0x7FFFFFFF, 0x7F800000, 0x7FC00000),
    "f64": (0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000, 0x7FF8000000000000),
}
_KINDS = {
    "float16": "f16", "float32": "f32", "float64": "f64", "bfloat16": "bf16",
    "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2",
}  # fmt: skip


def kind_of(x: Any) -> str | None:
    """Return "e4m3", "e5m2", "bf16", "f16", "f32" or "f64" for floats, None for integers and booleans."""
    return _KINDS.get(str(x.dtype).removeprefix("torch."))


def _as_numpy(x: Any) -> NDArray[Any]:
    if not hasattr(x, "detach"):
        return np.asarray(x)
    x = x.detach().cpu()
    if str(x.dtype) == "torch.bfloat16":
        import torch  # numpy has no bf16: its patterns travel as int16

        return np.asarray(x.view(torch.int16).numpy())
    if _KINDS.get(str(x.dtype).removeprefix("torch.")) in ("e4m3", "e5m2"):
        import torch

        return np.asarray(x.view(torch.uint8).numpy())
    return np.asarray(x.numpy())


def canonical(bits: NDArray[Any], kind: str | None) -> NDArray[Any]:
    """Replace every NaN pattern by the quiet positive one."""
    if kind is None:
        return bits
    magnitude, infinity, quiet = (bits.dtype.type(x) for x in _FLOATS[kind])
    return np.where((bits & magnitude) > infinity, quiet, bits)


def as_bits(x: Any, kind: str | None = None) -> NDArray[Any]:
    """Return the patterns of an array or tensor as unsigned integers, every NaN made the canonical one.

    `kind` names the format of patterns that arrive as integers (bf16 in NumPy).
    """
    kind = kind or kind_of(x)
    data = np.ascontiguousarray(_as_numpy(x)).reshape(np.shape(x))
    if data.dtype == np.bool_:
        return data.astype(np.uint8)
    bits = data.view(np.dtype(f"u{data.dtype.itemsize}"))
    return canonical(bits, kind)


def differing(got: Any, want: Any, kind: str | None = None) -> int:
    """Count the elements whose patterns differ."""
    kind = kind or kind_of(got) or kind_of(want)
    return int(np.count_nonzero(as_bits(got, kind) != as_bits(want, kind)))


def assert_same_bits(got: Any, want: Any, name: str = "value", kind: str | None = None) -> None:
    """Raise AssertionError with the first differing indices and both patterns unless all bits agree."""
    kind = kind or kind_of(got) or kind_of(want)
    a, b = as_bits(got, kind), as_bits(want, kind)
    if a.shape != b.shape or a.dtype != b.dtype:
        raise AssertionError(f"{name}: got {a.dtype}{list(a.shape)}, want {b.dtype}{list(b.shape)}")
    wrong = np.argwhere(a != b)
    if not len(wrong):
        return
    lines = [f"{name}: {len(wrong)} of {a.size} values differ"]
    digits = 2 * a.dtype.itemsize
    for row in wrong[:SHOWN]:
        index = tuple(int(i) for i in row)
        x, y = int(a[index]), int(b[index])
        values = "" if kind is None else f"   ({_value(x, kind)!r} against {_value(y, kind)!r})"
        lines.append(f"  {list(index)}: got 0x{x:0{digits}x}, want 0x{y:0{digits}x}{values}")
    if len(wrong) > SHOWN:
        lines.append(f"  and {len(wrong) - SHOWN} more")
    raise AssertionError("\n".join(lines))


def _value(bits: int, kind: str) -> float:
    if kind == "bf16":
        return float(np.array(bits << 16, np.uint32).view(np.float32))
    if kind in ("e4m3", "e5m2"):
        return float(float8_from_bits(np.array(bits, np.uint8), kind))
    width = int(kind[1:])
    return float(np.array(bits, f"u{width // 8}").view(f"f{width // 8}"))
