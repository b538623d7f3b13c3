"""The host function of a module, which launches its kernels, and the build of each kernel's arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from rlk.ir.nodes import Decl, Program
from rlk.lower.common import abi
from rlk.lower.common.emitted import CallArg, KernelArg, Signature
from rlk.lower.common.host_loops import host_lines
from rlk.lower.common.lines import Function, Line
from rlk.lower.common.spelling import argument_type


def launch_lines(kernel: str, given: Iterable[CallArg], programs: Sequence[str]) -> list[str]:
    """Return the lines that launch a kernel once, unless it has no programs.

    programs: the lines that give the variable `programs` its value.
    """
    names = ", ".join(argument.name for argument in given)
    return [*programs, "if programs > 0:", f"    kernels.{kernel}((programs,), {names})"]


def host_function(
    program: Program, signature: Signature, used: Iterable[CallArg], launches: Mapping[str, Sequence[str]]
) -> tuple[tuple[CallArg, ...], Function]:
    """Return the parameters of `call`, and the function: it launches the kernels of a program in order.

    used: arguments of the kernels and of their launches. launches: the lines that launch each kernel once.
    """
    parameters = abi.call_parameters(program, signature, used)
    lines = tuple(Line(text) for text in host_lines(program.order, launches, dict(signature.extents)))
    return parameters, Function("call", tuple(p.name for p in parameters), program.name, lines)


def kernel_args(
    given: Iterable[CallArg],
    decls: Mapping[str, Decl],
    divisible: Callable[[CallArg], bool],
    name: Callable[[CallArg], str] = lambda argument: argument.name,
) -> tuple[KernelArg, ...]:
    """Return how a kernel is built for its arguments.

    divisible: whether a value or an address is a multiple, as `Signature.divisible` has it. name: of an
    argument, as the kernel has it.
    """
    return tuple(
        KernelArg(
            name(a), argument_type(a, decls), divisible=divisible(a), divisor=abi.multiple_of(a, decls)
        )
        for a in given
    )
