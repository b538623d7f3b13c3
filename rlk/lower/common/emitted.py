"""The interface between lowerings and runtime: source text, build options, and arguments of `call`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Signature:
    """Properties of a call's arguments that code depends on beside dtypes; all else is a run-time value.

    extents: of the static axes. split_rows: inputs with a leading row axis come with two strides for it,
    an outer and an inner one (`logits[:, :-1]`), and one inner extent. divisible: arguments of `call` that
    are multiples of 16: extents, addresses of tensors in bytes, and strides in bytes. strided: inputs whose
    last dim has another stride than 1, such as an expanded cotangent. listed: of a kernel that one launch
    runs on lists of tensors (`rlk.lower.common.lists`), the scalars of which each item has its own; None: of
    one call.
    """

    extents: tuple[tuple[str, int], ...] = ()
    split_rows: bool = False
    divisible: frozenset[str] = frozenset()
    strided: frozenset[str] = frozenset()
    listed: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class LoweringOptions:
    """The base of a backend's own options of its `lower`, of which most have none."""


@dataclass(frozen=True, slots=True)
class KernelArg:
    """One argument of a kernel; `value` only for a constexpr.

    divisible: whether the dispatcher checks that it is a multiple of `divisor`.
    """

    name: str
    type: str
    value: int | float | str | bool | None = None
    divisible: bool = False
    divisor: int = 16


@dataclass(frozen=True, slots=True)
class KernelBuild:
    """Compiler options of one kernel of the source; fusion of products and sums is always off.

    shared: bytes of shared memory that a launch asks for, where the kernel does not declare them. registers:
    the most of a thread, 0: as many as the compiler takes. overlaps: whether its source waits for the kernels
    before it, so that it may be launched while they run.
    """

    name: str
    args: tuple[KernelArg, ...]
    num_warps: int = 4
    num_stages: int = 2
    shared: int = 0
    registers: int = 0
    overlaps: bool = False


class From(Enum):
    """The source of the value of a parameter of `call`, on the host."""

    TENSOR = "tensor"  # the tensor named `source`
    SCALAR = "scalar"  # the scalar named `source`
    EXTENT = "extent"  # the extent of the axis named `source`
    STRIDE = "stride"  # the stride, in elements, of dim `dim` of the tensor named `source`
    OUTER_STRIDE = "outer_stride"  # of the outer of the two row dims of the tensor named `source`
    INNER_STRIDE = "inner_stride"
    INNER_EXTENT = "inner_extent"  # the extent of the inner of the two row dims of axis `source`
    LOOP_INDEX = (
        "loop_index"  # the number of the piece of the axis named `source`: a loop of `call` counts them
    )
    LENGTH = "length"  # the length of that piece
    ERRORS = "errors"  # the device's error words, i32[2]: the code, and one more than the row
    WORK_COUNTER = "work_counter"  # of the kernel named `source`, i32[1]: zero when a launch begins and ends
    SCRATCH = "scratch"  # memory of the kernel named `source`, f32[dim], uninitialized when the call begins


OF_POINTERS = (From.TENSOR, From.ERRORS, From.WORK_COUNTER, From.SCRATCH)
OF_LOOPS = frozenset({From.LOOP_INDEX, From.LENGTH})
"""Arguments of kernels that the loops of `call` compute; they are no parameters of `call`."""


@dataclass(frozen=True, slots=True)
class CallArg:
    """One parameter of the host function `call`, after the kernels."""

    name: str
    kind: From
    source: str
    dim: int = 0


@dataclass(frozen=True, slots=True)
class Emitted:
    """A module of kernels and a host function `call(kernels, ...)` that launches them in order.

    checks: the message of error code i + 1. file: the pseudo path of the compiled code. backend: the compiler
    of the source: "triton", "cute" or "tilelang".

    A CuTe module has, for each kernel, a function `launch_<name>` under cute.jit that takes the kernel's
    arguments, the number of programs, whether it may start before the kernels ahead of it have ended, and the
    stream. A TileLang module has, for each kernel, a prim_func of the kernel's arguments and the number of
    programs, whose tensors are rows of elements.
    """

    source: str
    kernels: tuple[KernelBuild, ...]
    call: tuple[CallArg, ...]
    checks: tuple[str, ...]
    file: str
    backend: str = "triton"
