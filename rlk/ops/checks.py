"""Whether an argument is of the kind that an operator takes: refused by name, before anything is launched."""

from __future__ import annotations

import numbers

import numpy as np
import torch

from rlk.errors import Code, LaunchError


def is_tensor(op: str, name: str, value: object) -> torch.Tensor:
    """Return a tensor; raise LaunchError for anything else."""
    if not isinstance(value, torch.Tensor):
        raise wrong_type(op, name, value, "torch.Tensor")
    return value


def are_tensors(op: str, **values: object) -> None:
    """Raise LaunchError for the first that is no tensor."""
    for name, value in values.items():
        is_tensor(op, name, value)


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


def is_among(op: str, name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise LaunchError for an option that is none of the choices."""
    if value not in choices:
        raise wrong_value(op, name, value, ", ".join(choices))


def wrong_value(op: str, name: str, value: object, wanted: object) -> LaunchError:
    """Return the error for the value of an argument."""
    return LaunchError(Code.ARG_VALUE, op=op, name=name, value=value, wanted=wanted)


def number(op: str, name: str, value: float) -> float:
    """Return a number of the host; a tensor would have to be waited for. Raises LaunchError."""
    if type(value) is not float and (isinstance(value, torch.Tensor) or not isinstance(value, numbers.Real)):
        raise wrong_type(op, name, value, "number")
    return float(value)


def positive(op: str, name: str, value: float | None) -> None:
    """Raise LaunchError for a number of the host that is not positive; None is left to its default."""
    if value is not None and not number(op, name, value) > 0:
        raise wrong_value(op, name, value, "a positive number")


def reciprocal(op: str, name: str, value: float) -> float:
    """Return 1 / value in f32, rounded once: what scores are multiplied by."""
    positive(op, name, value)
    return float(np.float32(1.0) / np.float32(value))


def integer(op: str, name: str, value: object) -> int:
    """Return an integer of the host; raise LaunchError for anything else, True among it."""
    if type(value) is not int:
        raise wrong_type(op, name, value, "int")
    return value


def some_rows(op: str, name: str, size: torch.Size, ids: torch.Tensor) -> None:
    """Refuse a table that has nothing an id could name, where there are ids."""
    if 0 in size and ids.numel():
        raise wrong_value(op, name, 0, "at least 1")
