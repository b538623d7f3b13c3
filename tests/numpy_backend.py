"""A backend from outside of rlk: NumPy text for programs of elementwise nodes, run on CPU tensors."""

from __future__ import annotations

import types
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from rlk.backends.interface import Backend, Launcher, Toolchain
from rlk.errors import Code, UnsupportedError
from rlk.interp import floats
from rlk.ir.dims import Axis
from rlk.ir.nodes import (
    Cast,
    Const,
    Decl,
    Fn2,
    Kernel,
    Load,
    Map2,
    Math,
    Param,
    Pos,
    Program,
    Role,
    Store,
    Value,
)
from rlk.ir.types import DType
from rlk.lower.common import abi
from rlk.lower.common.emitted import CallArg, Emitted, KernelArg, KernelBuild, Signature
from rlk.lower.common.host_loops import host_lines
from rlk.passes.walk import walk
from rlk.runtime.launch.record import MODULE, LaunchRecord, ModuleRecord
from rlk.schedule.schedule import Schedule
from rlk.target.facts import Target

NAME = "numpy"
CPU = Target("cpu", "host", warp=1, cores=1)
OPERATORS = {Fn2.ADD: "+", Fn2.SUB: "-", Fn2.MUL: "*", Fn2.DIV: "/"}
HEAD = '''"""{program}, numerics {numerics_id}."""

from __future__ import annotations

import numpy as np
from rlk.interp.floats import bf16_bits, bf16_from_bits, to_bf16, portable
from numpy_backend import memory
'''


def lower(
    program: Program,
    schedules: tuple[Schedule, ...],
    target: Target,
    signature: Signature,
    *,
    numerics_id: str = "unset",
) -> Emitted:
    """Return a module of NumPy text; raise UnsupportedError for a node without a form."""
    lines, builds, launch, used = [], [], {}, list[CallArg]()
    for kernel in program.kernels:
        tensors = [d for d in kernel.params if d.role is not Role.SCALAR]
        sizes = [abi.extent(axis.name) for axis in _axes(kernel)]
        given = abi.kernel_arguments(kernel, tensors, sizes, abi.turn_axes(program))
        used += given
        names = ", ".join(a.name for a in given)
        lines += ["", "", f"def {kernel.name}({names}):", *(f"    {line}" for line in _body(kernel))]
        builds.append(KernelBuild(kernel.name, tuple(KernelArg(a.name, a.kind.value) for a in given)))
        launch[kernel.name] = [f"kernels.{kernel.name}((1,), {names})"]
    parameters = abi.call_parameters(program, signature, used)
    call = f"def call({', '.join(['kernels', *(a.name for a in parameters)])}):"
    lines += ["", "", call]
    lines += [f"    {line}" for line in host_lines(program.order, launch, {})]
    source = HEAD.format(program=program.name, numerics_id=numerics_id) + "\n".join(lines) + "\n"
    return Emitted(source, tuple(builds), parameters, (), f"rlk/cpu/numpy/{program.name}.py", backend=NAME)


def _axes(kernel: Kernel) -> list[Axis]:
    """Return the axes of a kernel: each is one dim of every value, in this order."""
    return list(dict.fromkeys(axis for d in kernel.params for axis in d.type.axes))


def _body(kernel: Kernel) -> Iterator[str]:
    decls, axes = {d.name: d for d in kernel.params}, _axes(kernel)
    for let in walk(kernel.body):
        name = _name(let.value)
        match let.node:
            case Param(name=scalar):
                yield f"{name} = np.float32({scalar})"
            case Const(bits=bits) if let.type.dtype is DType.F32:
                yield f"{name} = np.uint32({bits}).view(np.float32)"
            case Pos(axis=axis):
                dims = ", ".join("-1" if each == axis else "1" for each in axes)
                yield f"{name} = np.arange({axis.name}).reshape({dims})"
            case Load(param=param, index=index, guard=None):
                held = f"{_memory(decls[param])}[{', '.join(map(_name, index))}]"
                yield f"{name} = bf16_from_bits({held})" if _is_bf16(decls[param]) else f"{name} = {held}"
            case Store(param=param, index=index, value=value, guard=None):
                held = f"bf16_bits({_name(value)})" if _is_bf16(decls[param]) else _name(value)
                yield f"{_memory(decls[param])}[{', '.join(map(_name, index))}] = {held}"
            case Cast(x=x, dtype=DType.F32):
                yield f"{name} = {_name(x)}"  # bf16 is held as f32 that fit
            case Cast(x=x, dtype=DType.BF16):
                yield f"{name} = to_bf16({_name(x)})"
            case Map2(fn=fn, a=a, b=b) if fn in OPERATORS and let.type.dtype is DType.F32:
                yield f"{name} = {_name(a)} {OPERATORS[fn]} {_name(b)}"
            case Math(fn=fn, x=x):
                yield f"{name} = portable({fn.value!r})({_name(x)})"
            case node:
                raise UnsupportedError(
                    Code.UNSUPPORTED,
                    let.loc,
                    what=type(node).__name__.lower(),
                    backend=NAME,
                    target=CPU.name,
                    alternatives="RLK_BACKEND=oracle",
                )


def _name(value: Value) -> str:
    return f"v{value}"


def _is_bf16(decl: Decl) -> bool:
    return decl.type.dtype is DType.BF16


def _memory(decl: Decl) -> str:
    return f"memory({decl.name}, {len(decl.type.axes)})"


def memory(tensor: Any, rank: int) -> Any:
    """Return a CPU tensor's memory as an array of so many dims, bf16 as its bits: leading dims are rows."""
    import torch

    bits = tensor.view(torch.uint16) if tensor.dtype is torch.bfloat16 else tensor
    return bits.reshape(-1, *tensor.shape[tensor.dim() - rank + 1 :]).numpy()


def compile_numpy(emitted: Emitted, target: str, folder: Path) -> None:
    """Write the module and its record: Python compiles when it loads."""
    compile(emitted.source, emitted.file, "exec")
    (folder / MODULE).write_text(emitted.source)
    records = tuple(
        LaunchRecord(k.name, MODULE, tuple(a.type for a in k.args), k.num_warps, shared=0, scratch=0)
        for k in emitted.kernels
    )
    ModuleRecord(records, emitted.call, emitted.checks, emitted.backend).write(folder)


def load(folder: Path, records: tuple[LaunchRecord, ...], kind: str, device: int) -> dict[str, Launcher]:
    """Run a stored module, and return its kernels as launchers."""
    module = types.ModuleType("numpy_kernels")
    exec(compile((folder / MODULE).read_text(), str(folder / MODULE), "exec"), module.__dict__)

    def launcher(name: str) -> Launcher:
        return lambda grid, *arguments: getattr(module, name)(*arguments)

    return {record.name: launcher(record.name) for record in records}


def toolchain(target: str) -> Toolchain | None:
    """Return the versions that decide the bits."""
    return (("numpy", metadata.version("numpy")),)


BACKEND = Backend(
    name=NAME,
    targets=frozenset({CPU.name}),
    sources=(Path(__file__), Path(floats.__file__)),
    install=lambda: "pip install numpy",
    toolchain=toolchain,
    lower=lower,
    compile=compile_numpy,
    load=load,
    cpu=CPU,
)
