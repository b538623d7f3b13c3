"""Calls on CPU tensors: the oracle itself, with the bits of a device, not fast."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import numpy as np
import torch

from rlk.env import Env
from rlk.errors import Code, LaunchError
from rlk.ir.nodes import MathModel, Role
from rlk.runtime.binding.arguments import TORCH_DTYPES, Geometry, output_shape
from rlk.runtime.binding.invocation import (
    Invocation,
    Run,
    Scalars,
    Tensors,
    bound_program,
    inputs_of,
    outputs_of,
)

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)  # NumPy has neither: their patterns are u8


def to_numpy(tensor: torch.Tensor, rows: int) -> Any:
    """Return a tensor as the oracle reads it: leading dims flattened, bf16 and 8-bit floats as their bits."""
    tensor = tensor.detach()
    if rows != 1:
        tensor = tensor.reshape(-1, *tensor.shape[rows:])
    # by DLPack: Tensor.numpy() would forbid FSDP2 to free the memory of an unsharded parameter ever after
    if tensor.dtype is torch.bfloat16:
        return np.from_dlpack(tensor.contiguous().view(torch.int16)).view(np.uint16)
    if tensor.dtype in FLOAT8:
        return np.from_dlpack(tensor.contiguous().view(torch.uint8))
    return np.from_dlpack(tensor.contiguous())


def memory_of(tensor: torch.Tensor) -> Any:
    """Return a tensor that the oracle writes, as an array: writable with every version of numpy."""
    tensor = tensor.detach().contiguous()
    if tensor.dtype in FLOAT8:
        return tensor.view(torch.uint8).numpy()
    return (tensor.view(torch.uint16) if tensor.dtype is torch.bfloat16 else tensor).numpy()


def from_numpy(array: np.ndarray[Any, Any], dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Return an array of the oracle as a tensor, which is no view: the inverse of `to_numpy`."""
    array = np.ascontiguousarray(array)
    if dtype is torch.bfloat16:
        made = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    elif dtype in FLOAT8:
        made = torch.from_numpy(array.view(np.uint8)).view(dtype)
    else:
        made = torch.from_numpy(array).to(dtype)
    return made.reshape(shape).detach()


@cache
def survive_forks() -> None:
    """Let children of fork compute: they have no threads of torch, and OpenMP would wait for ever."""
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


def evaluate(*args: Any, **options: Any) -> Any:
    """Run the oracle, which is imported here: processes with tensors on a device do not need it."""
    from rlk.interp.run import run

    return run(*args, **options)


def bind_oracle(invocation: Invocation, model: MathModel, geometry: Geometry) -> Run:
    """Return the call that runs the oracle for tensors of these shapes."""
    survive_forks()
    program = bound_program(invocation, model, {})
    tensors_in = [d for d in inputs_of(invocation) if d.role is Role.IN]
    scalars_in = [d.name for d in inputs_of(invocation) if d.role is Role.SCALAR]
    outs = [(d.name, output_shape(d, geometry), TORCH_DTYPES[d.type.dtype]) for d in outputs_of(invocation)]
    leads = {
        d.name: len(geometry.lead) if d.type.axes and d.type.axes[0] == geometry.row_axis else 1
        for d in tensors_in
    }

    def run(given: Tensors, scalars: Scalars) -> Tensors:
        arrays = {d.name: to_numpy(given[d.name], leads[d.name]) for d in tensors_in}
        numbers = {name: scalars[name] for name in scalars_in}
        kept = {name: memory_of(given[name]) for name in invocation.into}
        found = evaluate(program, arrays | numbers | kept, softmax=model, extents=geometry.extents)
        if Env.current().check and found.errors:
            what, row = next(iter(found.rows.items()))
            raise LaunchError(Code.BAD_ROW, op=invocation.spec.name, row=row, what=what)
        for name in kept:
            if not given[name].is_contiguous():  # the oracle wrote a copy
                given[name].copy_(from_numpy(found[name], given[name].dtype, tuple(given[name].shape)))
        stored = (each for each in outs if each[0] not in kept and each[0] not in invocation.unstored)
        made = {n: from_numpy(found[n], dtype, shape) for n, shape, dtype in stored}
        made |= {
            n: torch.empty(shape, dtype=t) for n, shape, t in outs if n in invocation.unstored - kept.keys()
        }
        return {n: given[n] if n in kept else made[n] for n, _, _ in outs}

    return run
