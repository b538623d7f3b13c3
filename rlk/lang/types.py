"""Annotations of a spec's parameters: tensors over axes, scalars, and statics that select a variant."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlk.errors import Code, SpecError, author
from rlk.ir.dims import Axis, Share
from rlk.ir.types import DType, dtype_of


@dataclass(frozen=True, slots=True)
class DTypeVar:
    """A dtype set by the caller's tensors, among those named; the first is that of the reference variant.

    Shapes: none.
    Dtypes: the choices; parameters with one variable have one dtype.
    Raises: DTYPE_UNKNOWN; a call with another dtype is ARG_DTYPE.

    >>> DTypeVar("F", (bf16, f16, f32)).choices
    bf16, f16, f32
    """

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
    """`Tensor[bf16, T, D]`, `Tensor[F, T] | None`: the annotation of a tensor, dims outermost first.

    Shapes: one axis for each dim. An axis of two tensors has one extent: a call with two is ARG_SIZE.
    Dtypes: one of rlk.lang, or a DTypeVar that the caller's tensors decide.
    Raises: TENSOR_AXIS, DTYPE_UNKNOWN. `| None`: the parameter is None in the variant of calls without it.

    >>> Tensor[f32, T, N].written()
    Tensor[f32, T, N]
    >>> Tensor[f32, "T"]
    [TENSOR_AXIS]
    """

    def __class_getitem__(cls, items: tuple[DType | DTypeVar | Axis, ...] | DType | DTypeVar) -> TensorType:
        dtype, *axes = items if isinstance(items, tuple) else (items,)
        dims = tuple(axis for axis in axes if isinstance(axis, Axis))
        for given in axes:
            if given not in dims:
                extent = f", extent={given}" if isinstance(given, Share) else ""
                raise SpecError(Code.TENSOR_AXIS, author(), got=str(given), extent=extent)
        return TensorType(dtype if isinstance(dtype, DTypeVar) else dtype_of(dtype, "Tensor"), dims)


class Scalar:
    """`Scalar[f32]`: one run-time number. `Scalar[f32, 0.0:1.0]`: from 0 to 1; an end may be left out.

    Shapes: no axes; it broadcasts.
    Dtypes: f32, i32, i64, u32, boolean.
    Raises: DTYPE_UNKNOWN, DTYPE_WANTED, RANGE_EMPTY; DEFAULT_REFUSED for a default outside of the range, and
    ARG_VALUE for such a number of a call.

    >>> x * s
    [[0.5, -1, 1.5, 0.25], [2, 0.125, -0.5, 1]]
    >>> Scalar[bf16]
    [DTYPE_WANTED]
    """

    def __class_getitem__(cls, items: DType | tuple[DType, slice]) -> ScalarType:
        dtype, limits = items if isinstance(items, tuple) else (items, slice(None))
        assert isinstance(limits, slice) and limits.step is None, "a range is written Scalar[f32, 0.0:1.0]"
        if dtype_of(dtype, "Scalar") in (DType.F16, DType.BF16) or dtype.is_storage:
            wanted = "f32, i32, i64, u32 or boolean"
            raise SpecError(Code.DTYPE_WANTED, author(), what="Scalar", wanted=wanted, got=dtype)
        if limits.start is not None and limits.stop is not None and limits.start > limits.stop:
            raise SpecError(Code.RANGE_EMPTY, author(), least=limits.start, most=limits.stop)
        return ScalarType(dtype, least=limits.start, most=limits.stop)


class Static:
    """`Static["k1", "k2"]`: one of the listed Python values; `Static[...]` takes any hashable value.

    Shapes: none: a Python value while tracing. `if` on it is ordinary Python.
    Dtypes: none. Each value is a variant, with code of its own.
    Raises: UNKNOWN_NAME for a value that is not listed.

    >>> Static["sum", "mean"].choices
    sum, mean
    """

    def __class_getitem__(cls, choices: object) -> StaticType:
        if choices is Ellipsis:
            return StaticType(())
        return StaticType(choices if isinstance(choices, tuple) else (choices,))


class Needs:
    """`Needs["entropy", "argmax"]`: a tuple of the names of results to compute beside the others.

    Shapes: none: a tuple of texts while tracing, as in `if "entropy" in needs`.
    Dtypes: none. Each tuple is a variant, with code of its own.
    Raises: UNKNOWN_NAME for a name that is not listed.

    >>> Needs["entropy", "argmax"].several
    True
    """

    def __class_getitem__(cls, choices: str | tuple[str, ...]) -> StaticType:
        return StaticType(choices if isinstance(choices, tuple) else (choices,), several=True)
