"""Arguments that a kernel's text needs beyond its tensors and scalars: extents, strides, error words."""

from __future__ import annotations

from rlk.ir.dims import Axis, Part, extent_of, fixed_extent
from rlk.ir.nodes import Decl, Kernel
from rlk.lower.common import abi
from rlk.lower.common.emitted import CallArg, Signature


def count_of(axis: Axis, whole: str) -> str:
    """Return the text of the extent of an axis, from that of the whole axis: rounded up, as `extent_of`."""
    match axis.part:
        case Part.PIECE if axis.piece is not None:
            return tiles_of(whole, axis.piece)
        case Part.STEP if axis.piece is not None:
            return str(extent_of(axis, axis.piece))
        case Part.STEP:
            return tiles_of(tiles_of(whole, axis.split or 1), axis.chunk or 1)
        case _:
            return whole


def tiles_of(extent: str, tile: int) -> str:
    """Return the text of the number of tiles that cover an extent."""
    return extent if tile == 1 else f"(({extent} + {tile - 1}) // {tile})"


class Arguments:
    """Collects the arguments of a kernel in order of first use, and gives extents and strides as text.

    coordinates: the indices of axes, as text. inside: predicates that they are below the axis's extent.
    """

    def __init__(self, kernel: Kernel, signature: Signature, checks: list[str]) -> None:
        self.decls: dict[str, Decl] = {d.name: d for d in kernel.params}
        self.arguments: dict[str, CallArg] = {}
        self.coordinates: dict[Axis, str] = {}
        self.inside: dict[Axis, str] = {}
        self._static = dict(signature.extents)
        self._checks = checks

    def argument(self, arg: CallArg) -> str:
        """Declare an argument of the kernel and return its name."""
        self.arguments.setdefault(arg.name, arg)
        return arg.name

    def extent(self, axis: Axis) -> str:
        """Return the extent of an axis: static, an argument, or a number of pieces of one."""
        known = fixed_extent(axis, self._static)
        return self.extent_of_call(axis) if known is None else str(known)

    def extent_of_call(self, axis: Axis) -> str:
        """Return the extent of an axis from arguments alone, also where it is static."""
        if axis.part is Part.WITHIN:
            return self.argument(abi.piece_length(axis))
        return count_of(axis, self.argument(abi.extent(axis.name)))

    def stride(self, decl: Decl, dim: int) -> str:
        """Return the stride of a dim."""
        return self.argument(abi.stride(decl, dim))

    def error_code(self, what: str) -> int:
        """Return the code of a check in the device's error words, and declare these."""
        if what not in self._checks:
            self._checks.append(what)
        self.argument(abi.ERRORS)
        return self._checks.index(what) + 1
