"""Checks of public arguments: refused by name, before anything is launched."""

from __future__ import annotations

import keyword
import math
import numbers
import re

import numpy as np
import torch

from rlk.errors import Code, LaunchError

_WORD = re.compile(r"[a-z_][a-z0-9_]*")
F32_MOST = float(np.finfo(np.float32).max)
F32_LEAST = float(np.finfo(np.float32).smallest_subnormal)


def is_tensor(op: str, name: str, value: object) -> torch.Tensor:
    """Return a tensor; raise LaunchError for anything else."""
    if not isinstance(value, torch.Tensor):
        raise wrong_type(op, name, value, "torch.Tensor")
    return value


def are_tensors(op: str, **values: object) -> None:
    """Raise LaunchError for the first that is no tensor."""
    for name, value in values.items():
        if not isinstance(value, torch.Tensor):
            raise wrong_type(op, name, value, "torch.Tensor")


def wrong_type(op: str, name: str, value: object, wanted: str) -> LaunchError:
    """Return the error for the type of an argument."""
    return LaunchError(Code.ARG_TYPE, op=op, name=name, wanted=wanted, got=type(value).__name__)


def has_dtype(op: str, name: str, x: torch.Tensor, *dtypes: torch.dtype) -> None:
    """Raise LaunchError for a tensor of none of the dtypes."""
    if x.dtype not in dtypes:
        raise LaunchError(Code.ARG_DTYPE, op=op, name=name, got=x.dtype, wanted=" or ".join(map(str, dtypes)))


def has_dims(op: str, name: str, shape: tuple[int, ...], count: int, wanted: str) -> None:
    """Raise LaunchError for the shape of a tensor unless it has so many dims."""
    if len(shape) != count:
        raise wrong_dims(op, name, shape, wanted)


def wrong_dims(op: str, name: str, shape: tuple[int, ...], wanted: str) -> LaunchError:
    """Return the error for the number of a tensor's dims."""
    return LaunchError(Code.ARG_RANK, op=op, name=name, got=len(shape), shape=tuple(shape), wanted=wanted)


def same_device(op: str, name: str, x: torch.Tensor, other: str, device: torch.device) -> None:
    """Raise LaunchError for a tensor on another device than that of `other`."""
    if x.device != device:
        raise LaunchError(Code.ARG_DEVICE, op=op, name=name, got=x.device, other=other, wanted=device)


def flag(op: str, name: str, value: object) -> bool:
    """Return a bool; raise LaunchError for anything else, such as a tensor or an int."""
    if type(value) is not bool:
        raise wrong_type(op, name, value, "bool")
    return value


def is_among(op: str, name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise LaunchError for an option outside of the choices."""
    if not isinstance(value, str) or value not in choices:
        raise wrong_value(op, name, value, ", ".join(choices))


def is_device(op: str, value: object) -> torch.device:
    """Return a device by its name; raise LaunchError for anything else."""
    try:
        return torch.device(value)  # type: ignore[call-overload, no-any-return]
    except (RuntimeError, TypeError):
        wanted = 'a device of torch, such as "cuda" or "cpu"'
        raise wrong_value(op, "device", value, wanted) from None


def is_choice(op: str, name: str, value: object, choices: tuple[object, ...]) -> object:
    """Return an option that is among the choices, of the same type; raise LaunchError for another."""
    for choice in choices:
        if value is choice:
            return value  # the common case: a literal
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        raise wrong_value(op, name, value, ", ".join(map(repr, choices)))
    return value


def python_name(op: str, name: str, value: object) -> str:
    """Return a name of Python in lower case; raise LaunchError for anything else."""
    is_keyword = isinstance(value, str) and keyword.iskeyword(value)
    if not isinstance(value, str) or not _WORD.fullmatch(value) or is_keyword:
        wanted = f"a name of lower-case letters, digits and _{', no keyword of Python' * is_keyword}"
        raise wrong_value(op, name, value, wanted)
    return value


def wrong_value(op: str, name: str, value: object, wanted: object) -> LaunchError:
    """Return the error for the value of an argument."""
    return LaunchError(Code.ARG_VALUE, op=op, name=name, value=value, wanted=wanted)


def number(
    op: str,
    name: str,
    value: object,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    above: float = -math.inf,
    infinite: bool = False,
) -> float:
    """Return a number of the host that f32 holds; a tensor would have to be waited for.

    least, most: inclusive bounds; above: an exclusive lower bound. infinite: whether a limit of other values
    may be infinite. Raises LaunchError for another value, NaN included, or another type.
    """
    if type(value) is float and least <= value <= most and value > above and -F32_MOST <= value <= F32_MOST:
        return value  # the common case
    if type(value) is not float and (
        isinstance(value, (torch.Tensor, bool)) or not isinstance(value, numbers.Real)
    ):
        raise wrong_type(op, name, value, "number")
    try:
        found = float(value)
    except OverflowError:
        found = math.nan
    # comparisons that hold: NaN is refused
    good = least <= found <= most and found > above if above != -math.inf else least <= found <= most
    if not (good and (abs(found) <= F32_MOST or (infinite and abs(found) == math.inf))):
        raise wrong_value(op, name, value, _allowed(least, most, above, infinite))
    return found


def _allowed(least: float, most: float, above: float, infinite: bool) -> str:
    """Return the range of `number` in words."""
    if above == 0.0 and least == -math.inf and most == math.inf:
        return "a positive number" + ("" if infinite else " that f32 holds")
    kind = "a number" if infinite else "a finite number"
    bounds = [f"above {above:g}"] if above != -math.inf else []
    bounds += [f"of at least {least:g}"] if least != -math.inf else []
    bounds += [f"of at most {most:g}"] if most != math.inf else []
    return " ".join((kind, " and ".join(bounds))) if bounds else f"{kind} that f32 holds"


def positive(op: str, name: str, value: object) -> float:
    """Return a number above 0, also when it is rounded to f32; raise LaunchError for anything else."""
    found = number(op, name, value, above=0.0)
    if found < F32_LEAST:
        raise wrong_value(op, name, value, "a positive number that f32 holds")
    return found


def reciprocal(op: str, name: str, value: object) -> float:
    """Return 1 / value in f32, rounded once: the factor of scores. Raises LaunchError."""
    found = positive(op, name, value)
    if found < 1.0 / F32_MOST:
        raise wrong_value(op, name, value, f"at least {1.0 / F32_MOST:.3g}, whose reciprocal f32 holds")
    return float(np.float32(1.0) / np.float32(found))


def ordered(op: str, low: tuple[str, float | None], high: tuple[str, float | None]) -> None:
    """Raise LaunchError for a lower limit, by its name, above the upper one; None is no limit."""
    (name, least), (other, most) = low, high
    if least is not None and most is not None and least > most:
        raise wrong_value(op, name, least, f"at most {other}={most!r}")


def integer(op: str, name: str, value: object, least: int = -(2**63), most: int = 2**63 - 1) -> int:
    """Return an int of the host from least to most; raise LaunchError for anything else, True among it."""
    if type(value) is not int:
        raise wrong_type(op, name, value, "int")
    if not least <= value <= most:
        raise wrong_value(op, name, value, _range(least, most))
    return value


def size(op: str, name: str, value: object) -> int:
    """Return a count of elements: an int, or torch.compile's SymInt. Raises LaunchError."""
    if isinstance(value, torch.SymInt):
        return value  # type: ignore[return-value]
    return integer(op, name, value, 0, 2**31 - 1)


def _range(least: int, most: int) -> str:
    ends = {2**63 - 1: "2**63 - 1", 2**31 - 1: "2**31 - 1", -(2**63): "-2**63", -(2**31): "-2**31"}
    return f"{ends.get(least, least)} to {ends.get(most, most)}"


def names_among(op: str, name: str, values: object, choices: tuple[str, ...]) -> tuple[str, ...]:
    """Return names as a tuple; raise LaunchError for one outside of the choices, or for a bare string."""
    if isinstance(values, str) or not isinstance(values, (tuple, list, set, frozenset)):
        raise wrong_value(op, name, values, f"a tuple of {', '.join(choices)}")
    for value in values:
        is_among(op, name, value, choices)
    return tuple(values)
