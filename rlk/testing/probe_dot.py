"""Probe of a device's matrix units against the dot models, on random and adversarial products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlk.interp.dot import dot
from rlk.interp.floats import bf16_bits, f16_bits, to_bf16, to_f16
from rlk.ir.dotmodel import DotModel
from rlk.ir.types import DType
from rlk.lower.common.emitted import Emitted, KernelArg, KernelBuild
from rlk.runtime.kernels.probes import Place
from rlk.testing.bits import as_bits

Array = NDArray[Any]
F32 = NDArray[np.float32]

SIDE = 256  # outputs of one launch: SIDE * SIDE
DEPTH = 48  # three groups of chain16
_TRITON = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}

_SOURCE = """import triton
import triton.language as tl


@triton.jit
def dot_{kind}_{tile}(a_ptr, b_ptr, acc_ptr, y_ptr, N, K, M_TILE: tl.constexpr, N_TILE: tl.constexpr):
    m = tl.program_id(0) * M_TILE + tl.arange(0, M_TILE)
    n = tl.program_id(1) * N_TILE + tl.arange(0, N_TILE)
    k = tl.arange(0, 16)
    at = m[:, None] * N + n[None, :]
    acc = tl.load(acc_ptr + at)
    for start in range(0, K, 16):
        a = tl.load(a_ptr + m[:, None] * K + start + k[None, :]).to(tl.{type}, bitcast=True)
        b = tl.load(b_ptr + n[None, :] * K + start + k[:, None]).to(tl.{type}, bitcast=True)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    tl.store(y_ptr + at, acc)


def call(k, a, b, acc, y, m, n, depth):
    k.dot_{kind}_{tile}((m // {m_tile}, n // {n_tile}), a, b, acc, y, n, depth)
"""


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile that makes Triton choose one kind of instruction."""

    name: str
    m: int
    n: int


WARPGROUP = Tile("warpgroup", 64, 64)
"""128 threads with 64 rows: wgmma on sm_90."""
WARP = Tile("warp", 16, 32)
"""Fewer rows than a warpgroup has: mma.sync."""
TILES = (WARPGROUP, WARP)


def kernel(kind: str, tile: Tile) -> Emitted:
    """Return a module whose `call` adds a[m, k] b[n, k] to acc[m, n], k in ascending steps of 16."""
    source = _SOURCE.format(kind=kind, type=_TRITON[kind], tile=tile.name, m_tile=tile.m, n_tile=tile.n)
    stored = "*i32" if kind == "f32" else "*i16"
    args = (
        KernelArg("a_ptr", stored, divisible=True),
        KernelArg("b_ptr", stored, divisible=True),
        KernelArg("acc_ptr", "*fp32", divisible=True),
        KernelArg("y_ptr", "*fp32", divisible=True),
        KernelArg("N", "i32", divisible=True),
        KernelArg("K", "i32", divisible=True),
        KernelArg("M_TILE", "constexpr", tile.m),
        KernelArg("N_TILE", "constexpr", tile.n),
    )
    name = f"dot_{kind}_{tile.name}"
    return Emitted(source, (KernelBuild(name, args),), (), (), f"rlk/probes/{name}.py")


def product(place: Place, kind: str, tile: Tile, a: F32, b: F32, acc: F32) -> F32:
    """Return acc + a b^T as the place's matrix units compute it; extents must be multiples of the tile's."""
    pack: Callable[[F32], Array] = {"bf16": bf16_bits, "f16": f16_bits}.get(kind, np.ascontiguousarray)
    width = np.int32 if kind == "f32" else np.int16
    tensors = [place.put(pack(x).view(width)) for x in (a, b)]
    out = place.put(np.empty_like(acc))
    place.host(kernel(kind, tile))(*tensors, place.put(acc), out, len(a), len(b), a.shape[1])
    return place.get(out)


# --- inputs ------------------------------------------------------------------------------------------

FAMILIES = ("normal", "wide", "tiny", "subnormal", "huge", "cancelling", "sparse", "edges", "patterns", "few")


def factors(rng: np.random.Generator, shape: tuple[int, ...], kind: str, family: str) -> F32:
    """Return factors with one kind of trouble, as f32 that fit "bf16" or "f16"."""
    fit = to_bf16 if kind == "bf16" else to_f16
    low, high = (-133, 127) if kind == "bf16" else (-24, 15)
    normal = rng.standard_normal(shape)
    match family:
        case "normal":
            x = normal
        case "wide":
            x = np.ldexp(normal, rng.integers(low // 2, high // 2, shape))
        case "tiny":  # products around the smallest f32
            x = np.ldexp(normal, rng.integers(low // 2 - 8, low // 2 + 8, shape))
        case "subnormal":
            x = np.ldexp(normal, rng.integers(low, low + 12, shape))
        case "huge":  # sums around the largest f32 (or, for f16, the largest products)
            sizes = rng.choice([1.0, 1.5, 1.9921875, -1.0, -1.5, -1.9921875], shape)
            x = np.ldexp(sizes, rng.integers(high // 2 - 4, high // 2, shape))
        case "cancelling":
            x = np.ldexp(rng.choice([-1.0, 1.0], shape), rng.integers(-2, 3, shape))
        case "sparse":
            x = np.where(rng.random(shape) < 0.9, rng.choice([0.0, -0.0], shape), normal)
        case "edges":
            edges = np.array(
                [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 2.0**low, -(2.0**low), 2.0**high]
            )
            x = rng.choice(edges, shape, p=[0.25, 0.24, 0.25, 0.24, *[0.003] * 3, 0.004, 0.004, 0.003])
        case "patterns":  # every finite number is as likely as any other
            bits = rng.integers(0, 1 << 16, shape, np.uint16)
            x = (bits.astype(np.uint32) << 16).view(np.float32) if kind == "bf16" else bits.view(np.float16)
            x = np.where(np.isfinite(x), x, 1)
        case "few":  # a group has one or two products, below or hardly above the smallest f32
            small = np.ldexp(normal, rng.integers(low // 2 - 11, low // 2 - 3, shape))
            x = np.where(rng.random(shape) < 0.4, small, 0.0)
        case _:
            raise ValueError(f"{family!r} is none of {', '.join(FAMILIES)}")
    with np.errstate(all="ignore"):
        fitting: F32 = fit(x.astype(np.float32))
    return fitting


def accumulators(rng: np.random.Generator, a: F32, b: F32) -> F32:
    """Return accumulators far below, near and above the sums a b^T, their negatives, zeros, and any bits."""
    with np.errstate(all="ignore"):
        sums = (a.astype(np.float64) @ b.T.astype(np.float64)).astype(np.float32)
        scale = np.median(np.abs(np.append(sums[np.isfinite(sums)], np.float32(1e-30))))
        size = np.exp2(rng.integers(-40, 40, sums.shape))
        near = (rng.standard_normal(sums.shape) * scale * size).astype(np.float32)
    any_bits = rng.integers(0, 1 << 32, sums.shape, np.uint32).view(np.float32)
    zero = rng.choice(np.array([0.0, -0.0], np.float32), sums.shape)
    which = rng.choice(4, sums.shape, p=[0.5, 0.3, 0.15, 0.05])
    return np.choose(which, [near, -sums, zero, any_bits])


def operands(rng: np.random.Generator, kind: str, family: str, side: int = SIDE) -> tuple[F32, F32, F32]:
    """Return a[side, DEPTH], b[side, DEPTH] and acc[side, side]; b is in part of another family."""
    format = "bf16" if kind == "f32" else kind
    a, b = (factors(rng, (side, DEPTH), format, family) for _ in range(2))
    if family not in ("tiny", "huge", "few"):
        # the products of a single subnormal number would all vanish
        other, rows = ("wide", side) if family == "subnormal" else ("normal", side // 4)
        b[:rows] = factors(rng, (rows, DEPTH), format, other)
    acc = accumulators(rng, a, b)
    if kind == "f32":
        with np.errstate(all="ignore"):
            a, b = a * np.float32(1.2345678), b * np.float32(1.2345678)
    return a, b, acc


# --- the comparison ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a probe of one kind of factors.

    differing: by tile and family. examples: one difference of each family, in words.
    """

    kind: str
    compared: int
    differing: dict[tuple[str, str], int]
    examples: tuple[str, ...]

    @property
    def wrong(self) -> int:
        """Return the number of outputs that differ from the model's."""
        return sum(self.differing.values())


def probe(
    place: Place,
    kind: str,
    count: int,
    *,
    side: int = SIDE,
    families: tuple[str, ...] = FAMILIES,
    say: Callable[[int], None] = lambda done: None,
) -> Found:
    """Compare at least `count` outputs of "bf16", "f16" (chain16) or "f32" (fma) dots with their model."""
    model = DotModel.FMA if kind == "f32" else DotModel.CHAIN16
    differing = {(tile.name, family): 0 for tile in TILES for family in families}
    examples: dict[str, str] = {}
    compared = 0
    for round in range(-(-count // (side * side * len(differing)))):
        for index, family in enumerate(families):
            a, b, acc = operands(np.random.default_rng((round, index)), kind, family, side)
            want = as_bits(dot(a, b, model, DType(kind), acc))
            for tile in TILES:
                got = as_bits(product(place, kind, tile, a, b, acc))
                wrong = got != want
                compared += got.size
                say(compared)
                if wrong.any():
                    differing[tile.name, family] += int(np.count_nonzero(wrong))
                    examples.setdefault(family, _example(tile, (round, index), wrong, got, want, acc))
    text = tuple(f"{family}: {example}" for family, example in examples.items())
    return Found(kind, compared, differing, text)


def describe(found: Found) -> list[str]:
    """Return what a probe found in lines of text: the count, and where outputs differ, the details."""
    model = "a chain of fma" if found.kind == "f32" else "chain16"
    lines = [f"{found.wrong:,} of {found.compared:,} outputs differ from {model}"]
    for tile in TILES:
        wrong = [f"{f} {n:,}" for (t, f), n in found.differing.items() if t == tile.name and n]
        lines += [f"  {tile.name} tile: {', '.join(wrong)}"] if wrong else []
    return [*lines, *(f"  {example}" for example in found.examples)]


def _example(tile: Tile, seed: tuple[int, int], wrong: Array, got: Array, want: Array, acc: F32) -> str:
    m, n = (int(i) for i in np.argwhere(wrong)[0])
    return (
        f"0x{got[m, n]:08x}, the model has 0x{want[m, n]:08x} "
        f"({tile.name} tile, seed {seed}, row {m}, column {n}, acc {float(acc[m, n])!r})"
    )
