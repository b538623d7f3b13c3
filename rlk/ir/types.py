"""Types of values: a dtype and the set of axes that a value varies along."""

from __future__ import annotations

from dataclasses import fields
from enum import Enum

from rlk.errors import Code, SpecError, author
from rlk.ir.dims import Axis
from rlk.ir.frozen import frozen


class DType(Enum):
    """Element types: f32, f16, bf16, i32, i64, u32, boolean, and of storage i8, u8, e4m3, e5m2.

    Shapes: none.
    Dtypes: f16 and bf16 are for memory and for L.dot: cast to f32 before arithmetic. i64 is for ids and
    offsets. i8 and u8 are computed with modulo 2**8, and compared. Tiles of e4m3 and e5m2 are loaded,
    gathered, selected, stored, cast, and contracted by L.dot. These are the OCP formats
    (torch.float8_e4m3fn, torch.float8_e5m2) on every device, also on gfx942, whose own fnuz formats are
    other dtypes.
    Raises: DTYPE_UNKNOWN where another value is given for one.

    >>> bf16.is_float
    True
    >>> L.number(1.0, "f32")
    [DTYPE_UNKNOWN]
    """

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    I32 = "i32"
    I64 = "i64"
    U32 = "u32"
    BOOL = "bool"
    I8 = "i8"
    U8 = "u8"
    E4M3 = "e4m3"
    E5M2 = "e5m2"

    __hash__ = object.__hash__  # members are singletons; Enum's own hashes the name, by a Python function

    @property
    def is_float(self) -> bool:
        return self in (DType.F32, DType.F16, DType.BF16) or self.is_float8

    @property
    def is_float8(self) -> bool:
        return self in (DType.E4M3, DType.E5M2)

    @property
    def is_int8(self) -> bool:
        return self in (DType.I8, DType.U8)

    @property
    def is_storage(self) -> bool:
        """True of dtypes whose tiles nodes only move and cast: `L` writes arithmetic in wider dtypes."""
        return self.is_int8 or self.is_float8

    @property
    def is_int(self) -> bool:
        return self in (DType.I32, DType.I64, DType.U32)

    @property
    def bytes(self) -> int:
        match self:
            case DType.BOOL | DType.I8 | DType.U8 | DType.E4M3 | DType.E5M2:
                return 1
            case DType.F16 | DType.BF16:
                return 2
            case DType.F32 | DType.I32 | DType.U32:
                return 4
            case DType.I64:
                return 8

    def __str__(self) -> str:
        return self.value


def dtype_of(given: object, what: str) -> DType:
    """Return a dtype; raise a SpecError with the names of all for anything else."""
    if isinstance(given, DType):
        return given
    choices = ", ".join("boolean" if d is DType.BOOL else d.value for d in DType)
    raise SpecError(Code.DTYPE_UNKNOWN, author(), what=what, got=given, choices=choices)


f32, f16, bf16 = DType.F32, DType.F16, DType.BF16
i32, i64, u32, boolean = DType.I32, DType.I64, DType.U32, DType.BOOL
i8, u8, e4m3, e5m2 = DType.I8, DType.U8, DType.E4M3, DType.E5M2


@frozen
class TileType:
    """A dtype and the axes along which the value varies; no axes means one value for all."""

    dtype: DType
    axes: tuple[Axis, ...] = ()

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.axes))}]"


def distinct_texts(a: TileType, b: TileType) -> tuple[str, str]:
    """Return two types as text; axes of one name that differ have the fields in which they do."""

    def text(type: TileType, other: TileType) -> str:
        return f"{type.dtype}[{', '.join(_axis_beside(axis, other.axes) for axis in type.axes)}]"

    return text(a, b), text(b, a)


def _axis_beside(axis: Axis, others: tuple[Axis, ...]) -> str:
    twin = next((other for other in others if str(other) == str(axis)), axis)
    values = {f.name: (getattr(axis, f.name), getattr(twin, f.name)) for f in fields(Axis)}
    differ = [f"{name}={mine}" for name, (mine, its) in values.items() if mine != its]
    return f"{axis}({', '.join(differ)})" if differ else str(axis)


@frozen
class TupleType:
    """The type of a node that yields several values at once (a loop, a merge)."""

    items: tuple[TileType, ...]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.items))})"


@frozen
class NoType:
    """The type of a node with an effect and no value (a store, a check)."""

    def __str__(self) -> str:
        return "none"


Type = TileType | TupleType | NoType
NONE = NoType()


def tile_axes(type: Type) -> tuple[Axis, ...]:
    """Return the axes along which a value of a type varies: of what is no tile, none."""
    return type.axes if isinstance(type, TileType) else ()
