"""Probes of this machine's arithmetic: fusion of products and sums, subnormals, and exp2 bit by bit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlk.interp.ex2_sm90 import exp2_sm90
from rlk.lower.common.emitted import Emitted, KernelArg, KernelBuild
from rlk.testing.bits import as_bits

F32 = NDArray[np.float32]
Host = Callable[..., Any]
BLOCK = 1024
CHUNK = 1 << 20

_SOURCE = """import triton
import triton.language as tl


@triton.jit
def {name}({pointers}, n):
    at = tl.program_id(0).to(tl.int64) * 1024 + tl.arange(0, 1024)
    here = at < n
{loads}
    tl.store(y_ptr + at, {value}, mask=here)


def call(k, {tensors}, n):
    k.{name}(((n + 1023) // 1024,), {tensors}, n)
"""


def _module(name: str, inputs: str, value: str) -> Emitted:
    """Return a module whose one kernel stores an expression of its inputs."""
    names = [*inputs.split(), "y"]
    loads = [f"    {n} = tl.load({n}_ptr + at, mask=here, other=0.0)" for n in names[:-1]]
    pointers = [f"{n}_ptr" for n in names]
    source = _SOURCE.format(
        name=name, pointers=", ".join(pointers), loads="\n".join(loads), value=value, tensors=", ".join(names)
    )
    args = (*(KernelArg(p, "*fp32") for p in pointers), KernelArg("n", "i32"))
    return Emitted(source, (KernelBuild(name, args),), (), (), f"rlk/probes/{name}.py")


MULTIPLY_ADD = _module("multiply_add", "a b c", "a * b + c")
EXPONENTIAL = _module("exponential", "x", "tl.exp2(x)")


@dataclass(frozen=True, slots=True)
class Place:
    """A place to run probes: `host(emitted)` launches a module, `put` and `get` move arrays."""

    name: str
    host: Callable[[Emitted], Host]
    put: Callable[[F32], Any]
    get: Callable[[Any], F32]

    def run(self, emitted: Emitted, *inputs: F32) -> F32:
        """Return the results of a probe's kernel for these inputs."""
        given = [self.put(x) for x in inputs]
        out = self.put(np.empty_like(inputs[0]))
        self.host(emitted)(*given, out, len(inputs[0]))
        return self.get(out)


def interpreter() -> Place | None:
    """Return rlk's Triton interpreter as a place; None where Triton is not installed."""
    if find_spec("triton") is None:
        return None

    def host(emitted: Emitted) -> Host:
        from rlk.runtime.kernels.loader import interpret as bind
        from rlk.testing.simulators.interpreter import interpret  # fails with a Triton that it does not know

        return bind(emitted, interpret)

    return Place("the interpreter", host, lambda x: np.array(x), lambda x: np.asarray(x))


def device(index: int, target: str, kind: str) -> Place:
    """Return a device as a place; kernels are compiled as every kernel of rlk is. kind: "cuda" or "hip"."""
    import torch

    from rlk.runtime.kernels.loader import load
    from rlk.runtime.kernels.pool import pool

    hosts: dict[str, Host] = {}

    def host(emitted: Emitted) -> Host:
        if emitted.file not in hosts:
            with TemporaryDirectory(prefix="rlk-probe-") as folder:
                pool().compile(emitted, target, Path(folder))
                hosts[emitted.file] = load(Path(folder), kind, index)[0]
        return hosts[emitted.file]

    where = torch.device("cuda", index)
    return Place(f"cuda:{index}", host, lambda x: torch.from_numpy(x).to(where), lambda x: x.cpu().numpy())


# --- detectors ---------------------------------------------------------------------------------------


def fuses(place: Place) -> bool:
    """Return whether a * b + c is rounded once: the last bit of (1 + 2**-12)**2 then survives."""
    a = np.full(BLOCK, 1 + 2.0**-12, np.float32)
    return bool(np.any(place.run(MULTIPLY_ADD, a, a, -(a * a)) != 0))


def flushes(place: Place) -> bool:
    """Return whether subnormal results or operands become 0."""
    tiny, small = np.full(BLOCK, 2.0**-126, np.float32), np.full(BLOCK, 2.0**-130, np.float32)
    half, one, zero = (np.full(BLOCK, x, np.float32) for x in (0.5, 1.0, 0.0))
    results = place.run(MULTIPLY_ADD, tiny, half, zero), place.run(MULTIPLY_ADD, small, one, small)
    return any(bool(np.any(r == 0)) for r in results)


@dataclass(frozen=True, slots=True)
class Assembly:
    """Findings in the compiled text of a * b + c: whether it fuses, and whether it flushes subnormals."""

    fuses: bool
    flushes: bool


def read_assembly(text: str) -> Assembly:
    """Judge PTX or AMD assembly of a * b + c in f32."""
    if ".amdhsa_" in text:
        fused = re.search(r"\bv_\w*(fma|mac|mad)\w*_f32", text) is not None
        return Assembly(fused, re.search(r"float_denorm_mode_32 3\b", text) is None)
    return Assembly(re.search(r"\b(fma|mad)\.", text) is not None, ".ftz" in text)


def assembly(target: str) -> Assembly:
    """Compile a * b + c for a target, on no device, as every kernel of rlk is, and judge the text."""
    from rlk.runtime.kernels.pool import pool

    with TemporaryDirectory(prefix="rlk-probe-") as folder:
        pool().compile(MULTIPLY_ADD, target, Path(folder))
        texts = [p.read_text() for p in Path(folder).iterdir() if p.suffix in (".ptx", ".amdgcn")]
    return read_assembly("\n".join(texts))


def numpy_flushes() -> bool:
    """Return whether this process's CPU makes subnormals 0, as some libraries demand when loaded."""
    return bool(np.any(np.full(64, 2.0**-126, np.float32) * np.float32(0.5) == 0))


def arguments(count: int, seed: int = 0) -> Iterator[F32]:
    """Yield at least `count` arguments of exp2: random ones, random patterns, and the neighbours of edges."""
    edges = np.arange(-160, 161, dtype=np.float32)
    near = [edges]
    for toward in (np.float32(-np.inf), np.float32(np.inf)):
        steps = [edges]
        for _ in range(64):
            steps.append(np.nextafter(steps[-1], toward))
        near += steps[1:]
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3e38, -3e38], np.float32)
    powers = np.float32(2.0) ** np.arange(-149, 9, dtype=np.float32)
    yield np.concatenate([*near, special, powers, -powers]).astype(np.float32)
    rng = np.random.default_rng(seed)
    for turn in range(-(-count // CHUNK)):
        if turn % 4 == 3:
            yield rng.integers(0, 1 << 32, CHUNK, np.uint32).view(np.float32)
        else:
            low, high = ((-150.0, 130.0), (-2.0, 0.0), (-20.0, 20.0))[turn % 4]
            yield rng.uniform(low, high, CHUNK).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Exp2:
    """compared: arguments. differing: results whose bits are not the model's. first: one such argument."""

    compared: int
    differing: int
    first: float | None


def probe_exp2(place: Place, count: int = 10**7, say: Callable[[int], None] = lambda done: None) -> Exp2:
    """Compare the place's exp2 with the sm_90 model, bit by bit."""
    compared, wrong, first = 0, 0, None
    for x in arguments(count):
        differs = as_bits(place.run(EXPONENTIAL, x)) != as_bits(exp2_sm90(x))
        compared += len(x)
        if differs.any():
            wrong += int(np.count_nonzero(differs))
            first = float(x[np.argmax(differs)]) if first is None else first
        say(compared)
    return Exp2(compared, wrong, first)
