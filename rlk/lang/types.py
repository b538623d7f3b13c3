"""Annotations of a spec's parameters: tensors over axes, scalars, and statics that select a variant."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlk.errors import Code, SpecError, author
from rlk.ir.dims import Axis
from rlk.ir.types import DType, dtype_of


@dataclass(frozen=True, slots=True)
class DTypeVar:
    """A dtype set by the caller's tensors, among those named; the first is that of the reference variant."""

    name: str
    choices: tuple[DType, ...]

    def __post_init__(self) -> None:
        for choice in self.choices:
            dtype_of(choice, f"DTypeVar {self.name}")


@dataclass(frozen=True, slots=True)
class TensorType:
    """The annotation of a tensor parameter."""

    dtype: DType | DTypeVar
    axes: tuple[Axis, ...]
    optional: bool = False

    def __or__(self, other: None) -> TensorType:
        return replace(self, optional=True)

    def written(self) -> str:
        """Return it as an author writes it, with its default."""
        dtype = self.dtype.name if isinstance(self.dtype, DTypeVar) else self.dtype
        dims = ", ".join(map(str, (dtype, *self.axes)))
        return f"Tensor[{dims}]" + (" | None = None" if self.optional else "")


@dataclass(frozen=True, slots=True)
class ScalarType:
    """The annotation of a run-time number; its value is never part of a cache key.

    least, most: the range of values that callers may give, both inclusive; None: no limit.
    """

    dtype: DType
    optional: bool = False
    least: float | None = None
    most: float | None = None

    def __or__(self, other: None) -> ScalarType:
        return replace(self, optional=True)


@dataclass(frozen=True, slots=True)
class StaticType:
    """The annotation of a Python value that selects a variant of the spec.

    choices: the values; none: any hashable value. several: a value is a tuple of some of the choices.
    """

    choices: tuple[object, ...]
    several: bool = False


class Tensor:
    """`Tensor[bf16, T, D]`, `Tensor[F, T] | None`: dims outermost first."""

    def __class_getitem__(cls, items: tuple[DType | DTypeVar | Axis, ...] | DType | DTypeVar) -> TensorType:
        dtype, *axes = items if isinstance(items, tuple) else (items,)
        dims = tuple(axis for axis in axes if isinstance(axis, Axis))
        for given in axes:
            if given not in dims:
                raise SpecError(Code.TENSOR_AXIS, author(), got=given)
        return TensorType(dtype if isinstance(dtype, DTypeVar) else dtype_of(dtype, "Tensor"), dims)


class Scalar:
    """`Scalar[f32]`: one run-time number. `Scalar[f32, 0.0:1.0]`: from 0 to 1; an end may be left out."""

    def __class_getitem__(cls, items: DType | tuple[DType, slice]) -> ScalarType:
        dtype, limits = items if isinstance(items, tuple) else (items, slice(None))
        assert isinstance(limits, slice) and limits.step is None, "a range is written Scalar[f32, 0.0:1.0]"
        return ScalarType(dtype_of(dtype, "Scalar"), least=limits.start, most=limits.stop)


class Static:
    """`Static["k1", "k2"]`: one of the listed Python values; `Static[...]` takes any hashable value."""

    def __class_getitem__(cls, choices: object) -> StaticType:
        if choices is Ellipsis:
            return StaticType(())
        return StaticType(choices if isinstance(choices, tuple) else (choices,))


class Needs:
    """`Needs["entropy", "argmax"]`: a tuple of the names of results to compute beside the others."""

    def __class_getitem__(cls, choices: str | tuple[str, ...]) -> StaticType:
        return StaticType(choices if isinstance(choices, tuple) else (choices,), several=True)
