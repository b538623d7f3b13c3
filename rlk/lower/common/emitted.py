"""What a lowering hands to the runtime: the text of a module, and how each kernel in it is to be compiled."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KernelArg:
    """One argument of a kernel, in the order of its signature.

    `type` is "*fp32", "*bf16", "*i64", ..., "i32", "i64", "fp32", ... or "constexpr", which has a `value`.
    `divisible` lets the compiler assume a multiple of 16 (bytes of a pointer, or the value of an integer);
    whoever calls the kernel must have checked it.
    """

    name: str
    type: str
    value: int | float | str | bool | None = None
    divisible: bool = False


@dataclass(frozen=True, slots=True)
class KernelBuild:
    """How one kernel of a module is compiled. FP fusion is always off: `Fma` is a node of the IR."""

    name: str
    args: tuple[KernelArg, ...]
    num_warps: int = 4
    num_stages: int = 2


@dataclass(frozen=True, slots=True)
class Emitted:
    """A generated module: kernels, and a host function `call(k, ...)` that launches them as `k.<kernel>(...)`.

    `file` is the name under which the source appears in line info and tracebacks; it is part of the binary,
    so it names the kernel and never a place on this machine.
    """

    source: str
    kernels: tuple[KernelBuild, ...]
    file: str
