"""Simulator of generated CuTe modules on a CPU, with the bits of a device.

`interpret(source)` executes a module with these objects in the place of the DSL. A block's copying warp runs
first, into a ring without an end; then its multiplying threads take the stages in order, multiply by the
oracle's rule and hold their accumulators as the hardware hands them out: all at once, or one warpgroup after
another where each is told what its steps are. That the roles may run side by side is what
`lower.cute.protocol` proves.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import chain
from types import CodeType, SimpleNamespace
from typing import Any

import numpy as np

from rlk.interp import arithmetic as ops
from rlk.interp.dot import dot
from rlk.ir.dotmodel import DotModel
from rlk.ir.types import DType
from rlk.testing.simulators import block_memory, pipelines, simt, tile_scheduler, warp_exchange
from rlk.testing.simulators.pipelines import Rows, State, TmaRing
from rlk.testing.simulators.simt import Array, Fault, Float32, Int32, Memory, Number

WARP, WARPGROUP = 32, 128
BARRIER_OF_PRODUCER = 4  # behind those of up to three consumer warpgroups
EPILOGUE_WORDS = 256  # of a warp
SPILLED_WORDS = 64  # of a thread: the largest accumulator that may wait in shared memory
DEPTH_OF_INSTRUCTION = 16
SWIZZLED = 128  # bytes
OVERRIDDEN = {
    made.__name__: made
    for made in (
        simt.load_where, simt.store_where, simt.store_pair_where, simt.report_where, simt.any_lane,
        block_memory.load_vector, block_memory.load_vector_where,
        block_memory.store_vector, block_memory.store_vector_where,
        pipelines.statistics_of,
    )
}  # fmt: skip
"""Helpers with a branch of their own, which here act on the threads that take it, and those for vectors."""


def interpret(source: str, *, filename: str = "generated.py") -> SimpleNamespace:
    """Return the names that a module defines; its host functions take CPU tensors for pointers."""
    scope: dict[str, Any] = dict(_dsl())
    exec(_code(source, filename), scope)
    made = (
        OVERRIDDEN
        | OF_STAGES
        | {each.__name__: partial(each, lambda: _now.threads) for each in pipelines.COPIES}
    )
    scope.update({name: each for name, each in made.items() if name in scope})
    return SimpleNamespace(**scope)


@lru_cache(maxsize=256)
def _code(source: str, filename: str) -> CodeType:
    tree = ast.parse(source, filename)
    tree.body = [node for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom)]
    return compile(tile_scheduler.Branches().visit(tree), filename, "exec", dont_inherit=True)


# --- a launch ---


@dataclass(slots=True)
class _Block:
    """The block that runs: its number, how many there are, the threads that run now, and their ring.

    rings: those that threads fill, by name. warps: that multiply. elected: whether one thread of each acts
    for all. scheduler: the work-tile pipeline of persistent blocks. given, read, groups: accumulators that
    products go into and what they read, not yet a group; and groups in flight.
    """

    index: int = 0
    count: int = 1
    cluster: int = 1
    threads: Array = field(default_factory=lambda: np.arange(1))
    ring: Any = None
    epilogue_smem: Any = None
    reduce_buffers: list[block_memory.SharedTensor] = field(default_factory=list)
    rings: dict[str, pipelines.CopyRing] = field(default_factory=dict)
    warps: int = 0
    elected: bool = False
    scheduler: Any = None
    given: list[Any] = field(default_factory=list)
    read: set[pipelines.Use] = field(default_factory=set)
    groups: list[tuple[list[Any], set[pipelines.Use]]] = field(default_factory=list)


_now = _Block()


@dataclass(frozen=True, slots=True)
class _Kernel:
    body: Callable[..., None]

    def __call__(self, *args: Any) -> _Launch:
        kinds = inspect.get_annotations(self.body).values()
        return _Launch(self.body, tuple(map(simt.typed, args, kinds)))


@dataclass(frozen=True, slots=True)
class _Launch:
    body: Callable[..., None]
    args: tuple[Any, ...]

    def launch(
        self, *, grid: Any, block: Any, stream: Any, cluster: Any = None, use_pdl: int = 0, **hints: int
    ) -> None:
        """Run every block; one of a contraction as its copying warp, then as its multiplying warpgroups.

        use_pdl: whether the kernels before may still run, until the threads have waited for them.
        """
        global _now
        count, threads = int(grid[0]), int(block[0])
        warp_specialized, cluster = cluster is not None, cluster or (1, 1, 1)
        if count % cluster[0]:
            raise Fault(f"{count} blocks in clusters of {cluster[0]}")
        whole = np.arange(threads)
        copying = WARPGROUP if "PipelineCpAsync" in self.body.__code__.co_names else WARP
        before, after = ([whole[:copying]], whole[WARPGROUP:]) if warp_specialized else ([], whole)
        tiles = tile_scheduler.Tiles()
        for index in range(count):
            scheduler = tile_scheduler.SchedulerModel(tiles, _threads, _is_elected)
            ring: list[Any] = []
            rings: dict[str, pipelines.CopyRing] = {}
            for acting in chain(before, scheduler.together(after, rings.values())):
                _now = _Block(index, count, cluster[0], acting, ring, rings=rings, warps=threads // WARP - 4)
                _now.scheduler = scheduler
                simt.Order.waited = not use_pdl
                try:
                    with np.errstate(all="ignore"):
                        self.body(*self.args)
                    simt.Order.check()
                finally:
                    simt.Order.waited = True
            scheduler.end()
            if ring and ring[0].taken != len(ring[0].filled):
                raise Fault(f"{len(ring[0].filled)} stages were filled, {ring[0].taken} read")
        tiles.check()


# --- the ring ---


def _ring(*, barrier_storage: Any, **given: Any) -> Any:
    if barrier_storage is not None:
        return pipelines.tma_ring(_around(), barrier_storage=barrier_storage, **given)
    if not _now.ring:
        stages, size = given["num_stages"], given["tx_count"]
        _now.ring.append(TmaRing(stages=stages, bytes=size, flying=lambda: _now.groups))
    return _now.ring[0]


# --- copies ---


@dataclass(frozen=True, slots=True)
class _Stage:
    """A factor's place in shared memory, and a stage of it."""

    name: str
    index: Any = None
    layout: Any = None

    @property
    def ring(self) -> TmaRing:
        made: TmaRing = _now.ring[0]
        return made

    @property
    def reading(self) -> Array:
        """Return the tile that is read."""
        return self.ring.filled[self.ring.reading][self.name]

    def get_tensor(self, outer: Any, *, swizzle: Any) -> _Stage:
        return replace(self, layout=outer)

    def data_ptr(self) -> _Stage | None:
        return None if self.name == "ring" else self

    def __getitem__(self, index: tuple[Any, ...]) -> _Stage:
        return _Stage(self.name, index[1:] if len(index) == 2 else index[2:])


def _copy(atom: Any, rows: Rows, to: _Stage, *, tma_bar_ptr: int, mcast_mask: Any = None) -> None:
    ring: TmaRing = _now.ring[0]
    if to.index != (tma_bar_ptr % ring.stages,):
        raise Fault("a TMA tile lands in another stage than its barrier counts")
    if (mcast_mask is not None) != (atom.shared > 1):
        raise Fault("a copy for a cluster without a cluster, or none for one")
    tile = rows.tile()
    ring.filled[tma_bar_ptr][to.name] = tile
    ring.kinds[to.name] = rows.memory.element_type
    ring.landed[tma_bar_ptr] += tile.size * rows.memory.dtype.bytes


def _local_tile(of: Any, shape: tuple[int, int], index: tuple[int, None]) -> Rows:
    rows = of if isinstance(of, Rows) else Rows(of)
    return replace(rows, rows=shape[0], depth=shape[1])


# --- products ---


@dataclass(slots=True)
class _Unit:
    """The instruction: 64 rows a warpgroup, so many columns."""

    dtype: DType
    groups: int
    columns: int
    accumulates: bool = False

    def get_slice(self, thread: Any) -> _Unit:
        return self

    def partition_A(self, tiles: _Stage) -> _Stage:
        return tiles

    partition_B = make_fragment_A = make_fragment_B = partition_A

    @property
    def op(self) -> _Unit:
        return replace(self)

    def partition_shape_A(self, tile: tuple[int, int]) -> tuple[int, int]:
        return tile

    def partition_shape_C(self, tile: tuple[int, int]) -> tuple[int, int]:
        if tile != (64 * self.groups, self.columns):
            raise Fault(f"a tile of {tile} for {self.groups} warpgroups of 64 x {self.columns}")
        return tile

    def set(self, what: str, accumulates: bool) -> None:
        self.accumulates = accumulates


@dataclass(slots=True)
class _Fragment:
    """An accumulator, or weights: a matrix of which every thread has some registers; `step`: a part of it."""

    matrix: Array
    kind: type[Number] = Float32
    step: int = -1

    @property
    def iterator(self) -> _Fragment:
        return self

    def fill(self, x: Any) -> None:
        self.load()[...] = x.data if isinstance(x, Number) else x

    def __getitem__(self, index: tuple[None, None, int] | int) -> Any:
        if isinstance(index, int):
            return self.kind.of(self.load()[_places(_now.threads.tobytes(), index)])
        return _Fragment(self.matrix, self.kind, index[2])

    def __setitem__(self, register: int, x: Number) -> None:
        self.load()[_places(_now.threads.tobytes(), register)] = x.data

    @property
    def size(self) -> int:
        """The registers of a thread."""
        return self.matrix.shape[1] // 2

    def part(self, depth: int) -> tuple[Array, None]:
        """Return what an instruction reads of weights."""
        return self.matrix[:, self.step * depth : (self.step + 1) * depth], None

    def load(self) -> Array:
        flying = [_now.given, *(group for group, _ in _now.groups)]
        if any(self.matrix is each for group in flying for each in group):
            raise Fault("an accumulator is read before its products were waited for")
        return self.matrix

    def store(self, x: Array) -> None:
        self.matrix[...] = x


@dataclass(frozen=True, slots=True)
class _View:
    """Registers of an accumulator by coordinates, through a layout."""

    fragment: _Fragment
    shape: Any
    stride: Any

    def __getitem__(self, at: tuple[int, int]) -> Number:
        found = self.fragment.kind.of(self.fragment.load()[self.places(at)])
        assert isinstance(found, Number)
        return found

    def __setitem__(self, at: tuple[int, int], x: Number) -> None:
        if type(x) is not self.fragment.kind:
            raise Fault(f"{type(x).__name__} in registers of {self.fragment.kind.__name__}")
        self.fragment.load()[self.places(at)] = x.data

    def places(self, at: tuple[int, int]) -> tuple[Array, Array]:
        """Return where the threads' elements at a coordinate lie in the accumulator."""
        register = sum(
            warp_exchange.place(c, s, d) for c, s, d in zip(at, self.shape, self.stride, strict=True)
        )
        return _places(_now.threads.tobytes(), register)


def _own_rows() -> slice:
    """Return which rows of an accumulator the threads have that run: 64 a warpgroup."""
    first, last = int(_now.threads[0]) - WARPGROUP, int(_now.threads[-1]) + 1 - WARPGROUP
    return slice(first // 2, last // 2)


def _moved(source: Any, to: Any) -> None:
    """Copy an accumulator to shared memory or back."""
    view, memory = (source, to) if isinstance(source, _View) else (to, source)
    if view.shape != memory.shape or view.stride != (1, 4) or memory.stride[0] != 1:
        raise Fault(f"registers {view.shape}:{view.stride} in memory {memory.shape}:{memory.stride}")
    fours, columns = view.shape
    for column in range(columns):
        registers = warp_exchange.Registers(Float32, fours)
        if view is source:
            registers.held = [view[i, column] for i in range(fours)]
            warp_exchange.copy(warp_exchange.Recast(registers), memory.places(column), _now.threads)
            continue
        warp_exchange.copy(memory.places(column), warp_exchange.Recast(registers), _now.threads)
        for i in range(fours):
            view.fragment.matrix[view.places((i, column))] = registers[i].data


def accumulator_place(thread: Array, register: int) -> tuple[Array, Array]:
    """Return the row and the column of a register of a multiplying thread: 64 rows a warpgroup."""
    warp, lane = thread // WARP, thread % WARP
    return warp * 16 + register // 2 % 2 * 8 + lane // 4, register // 4 * 8 + lane % 4 * 2 + register % 2


@lru_cache(maxsize=1024)
def _places(threads: bytes, register: int) -> tuple[Array, Array]:
    return accumulator_place(np.frombuffer(threads, np.int64) - WARPGROUP, register)


def _gemm(unit: _Unit, to: _Fragment, a: Any, b: Any, onto: _Fragment) -> None:
    if not isinstance(b, _Stage):
        _products(unit, to, a, b)
        return
    ring: TmaRing = _now.ring[0]
    step, index = b.index
    in_registers = isinstance(a, _Fragment)
    if (a.step if in_registers else a.index) != (step if in_registers else b.index):
        raise Fault("other elements of A than of B")
    if ring.reading + 1 == len(ring.filled) and index == len(ring.filled) % ring.stages:
        _now.given.append(to.matrix)  # after the last tile: what a stage had before
        to.matrix[...] = np.nan
        return
    if index != ring.reading % ring.stages:
        raise Fault("factors of a stage that is not read")
    pipelines.check_cleared(ring)
    tiles = ring.filled[ring.reading]
    part = slice(step * DEPTH_OF_INSTRUCTION, (step + 1) * DEPTH_OF_INSTRUCTION)
    start = onto.matrix if unit.accumulates else None
    _now.given += [to.matrix, *([a.matrix] if in_registers else [])]
    _now.read.add((id(ring), ring.reading))
    one = (a.matrix if in_registers else tiles[a.name])[:, part]
    to.matrix[...] = dot(one, tiles[b.name][:, part], DotModel.CHAIN16, unit.dtype, start)


def _stage_pair(tiles: _Stage, row: Number, k: Number, stage: int, *, along: bool) -> list[Number]:
    """Read two elements of a row of the stage that is read."""
    ring = tiles.ring
    if stage != ring.reading % ring.stages or ring.taken > ring.reading:
        raise Fault("an element of a stage that is not read")
    if along != (tiles.layout.inner == 1) or (k.data % 2).any():
        raise Fault("two elements that do not follow each other, or are not aligned")
    tile, kind = tiles.reading, ring.kinds[tiles.name]
    return [kind.of(tile[row.data, k.data + i].astype(kind.held, copy=False)) for i in range(2)]


def _products(unit: _Unit, to: _Fragment, a: Any, b: pipelines.Tiles) -> None:
    """Multiply a tile or weights with a tile that threads copied."""
    (one, used), (two, of) = a.part(DEPTH_OF_INSTRUCTION), b.part(DEPTH_OF_INSTRUCTION)
    _now.given += [to.matrix, *([] if used is not None else [a.matrix])]
    _now.read |= {use for use in (used, of) if use is not None}
    if len(two) != unit.columns:
        raise Fault(f"{len(two)} columns for an instruction of {unit.columns}")
    rows = _own_rows()
    start = to.matrix[rows] if unit.accumulates else None
    to.matrix[rows] = dot(one[rows], two, DotModel.CHAIN16, unit.dtype, start)


def _warp_products(unit: _Unit, to: _Fragment, a: _Fragment, tiles: _Stage, places: list[Number]) -> None:
    """Multiply the warps' rows of A with a tile that each reads from its own places, as matrices of 8 x 8."""
    ring, tile, rows = tiles.ring, tiles.reading, _own_rows()
    lanes = _now.threads.reshape(-1, WARP) % WARP
    for i, place in enumerate(places):
        for first in range(0, to.matrix.shape[1], 8):
            stage, at = np.divmod(place.data.reshape(lanes.shape) + 128 * first, 2 * tile.size)
            part, at = np.divmod(at, SWIZZLED * len(tile))
            row, byte = np.divmod(at, SWIZZLED)
            k = part * SWIZZLED // 2 + 8 * (byte // 16 ^ row % 8)
            if (stage != ring.reading % ring.stages).any() or ring.taken > ring.reading or (byte % 16).any():
                raise Fault("matrices of a stage that is not read, or not aligned")
            if (row != row[0]).any() or (k != k[0]).any():
                raise Fault("consumer warps whose matrices differ")
            every = [tile[row[0], k[0] + element] for element in range(8)]  # of the row of each lane
            matrices = np.stack(every, 1).reshape(4, 8, 8)  # matrix, row, element
            for half in range(2):
                two = np.concatenate(matrices[2 * half : 2 * half + 2], 1)
                one = a.load()[rows, 32 * i + 16 * half : 32 * i + 16 * half + 16]
                sums = to.matrix[rows, first : first + 8]
                to.matrix[rows, first : first + 8] = dot(one, two, DotModel.CHAIN16, unit.dtype, sums)


def _byte_pair(tiles: _Stage, at: Number) -> Number:
    """Read two bytes of a row of the stage that is read, where the swizzle of its width puts them."""
    ring, tile = tiles.ring, tiles.reading
    stage, place = np.divmod(at.data, tile.size)
    row, k = np.divmod(place, tile.shape[1])
    k = k ^ 16 * (row % 8 if tile.shape[1] == SWIZZLED else row // 2 % 4)
    if (stage != ring.reading % ring.stages).any() or ring.taken > ring.reading or (k % 2).any():
        raise Fault("bytes of a stage that is not read, or not aligned")
    low, high = (tile[row, k + i].astype(np.uint8).astype(np.int32) for i in range(2))
    found: Number = Int32.of(low | high << 8)
    return found


def _prmt(a: Number, b: Number, pick: Number) -> Number:
    """Pick four of the eight bytes of two words: PTX 9.7.9.7, without its modes."""
    every = [(w.data.view(np.uint32) >> 8 * i) & 0xFF for w in (a, b) for i in range(4)]
    made = sum(every[int(pick) >> 4 * i & 7] << np.uint32(8 * i) for i in range(4))
    found: Number = Int32.of(np.asarray(made, np.uint32).view(np.int32))
    return found


def _inline_ptx(code: str, write_only_types: list[type[Number]], read_only_args: list[Number]) -> Number:
    """Execute an instruction that a helper names: the only one is a sum with one rounding."""
    a, b = read_only_args
    if code != "add.rn.f32 {$w0}, {$r0}, {$r1};" or write_only_types != [Float32]:
        raise Fault(f"an instruction without a meaning here: {code}")
    return a + b


def _sub_pair(a: Number, b: Number, kind: type[Number]) -> list[Number]:
    """Subtract two 16-bit floats in a word, each rounded once."""
    made = []
    for shift in (0, 16):
        x, y = (
            ops.decode((w.data >> shift).astype(np.uint16).view(ops.storage(kind.dtype)), kind.dtype)
            for w in (a, b)
        )
        made.append(kind(Float32.of(x - y)))
    return made


def _commit_group() -> None:
    _now.groups.append((_now.given, _now.read))
    _now.given, _now.read = [], set()


def _wait_group(left: int) -> None:
    del _now.groups[: max(0, len(_now.groups) - left)]


# --- the names of the DSL ---


class _Ranges:
    """Stands for types in subscripts: `MemRange[Int64, 8]`."""

    def __getitem__(self, what: Any) -> Any:
        return what


class _Struct:
    MemRange, Align = _Ranges(), _Ranges()

    def __call__(self, made: type) -> type:
        return made


def _pointer(tensor: Any) -> tuple[Array, DType]:
    """Return the storage of a CPU tensor, patterns of bf16 as u16; bools and 8-bit floats are bytes."""
    import torch

    names = {
        torch.float32: DType.F32, torch.bfloat16: DType.BF16, torch.float16: DType.F16,
        torch.int32: DType.I32, torch.int64: DType.I64, torch.uint32: DType.U32,
        torch.int8: DType.I8, torch.uint8: DType.U8,
        torch.bool: DType.U8, torch.float8_e4m3fn: DType.U8, torch.float8_e5m2: DType.U8,
    }  # fmt: skip
    dtype = names[tensor.dtype]
    raw = tensor.view({DType.BF16: torch.int16, DType.U8: torch.uint8}.get(dtype, tensor.dtype))
    size = 1 + sum((n - 1) * s for n, s in zip(raw.shape, raw.stride(), strict=True)) if raw.numel() else 0
    flat = raw.as_strided((size,), (1,)).numpy()
    return flat.view(np.uint16) if dtype is DType.BF16 else flat, dtype


def _make_tensor(of: Any, layout: Any) -> Any:
    if isinstance(of, _Stage):
        return of
    if isinstance(of, tile_scheduler.WorkTilePipeline):
        of.size = layout.shape
    if isinstance(of, tile_scheduler.WorkTilePipeline | tile_scheduler.NextTile):
        return of
    if isinstance(of, _Fragment):
        return _View(of, layout.shape, layout.stride)
    if isinstance(of, warp_exchange.Words) and isinstance(layout, _Layout):
        return warp_exchange.Kept(of, layout.shape, layout.stride, lambda: _now.threads)
    if isinstance(of, warp_exchange.Words):
        return replace(of, count=layout[0])
    flat, dtype = _pointer(of)
    return Memory(flat, dtype, layout.shape, layout.stride)


def _registers(shape: tuple[int, ...], kind: Any) -> Any:
    """Return an accumulator, or a few elements of each thread."""
    if len(shape) == 1:
        return warp_exchange.Registers(kind, shape[0])
    return _Fragment(np.zeros(shape, np.float32), kind)


def _recast(of: warp_exchange.Registers, kind: Any) -> warp_exchange.Recast:
    if kind is not Int32:
        raise Fault(f"registers as {kind.__name__}")
    return warp_exchange.Recast(of)


def _autovec_copy(source: Any, to: Any) -> None:
    if isinstance(source, _View) or isinstance(to, _View):
        _moved(source, to)
    else:
        warp_exchange.copy(source, to, _now.threads)


def _wait_for_grids() -> None:
    simt.Order.waited = True


def _sync_warp() -> None:
    _now.epilogue_smem.meetings += 1


def _tma(op: Any, tensor: Memory, layout: Any, tile: Any, shared: int = 1) -> tuple[Any, Memory]:
    strides = sorted(s for each in tensor.strides for s in (each if isinstance(each, tuple) else (each,)))
    if strides[0] != 1 or strides[1] * tensor.dtype.bytes % 16:
        raise Fault("rows that do not lie at multiples of 16 bytes")
    loaded = _TmaTensor(tensor.flat, tensor.dtype, tensor.shape, tensor.strides)
    return SimpleNamespace(tile=tile, shared=shared), loaded


class _TmaTensor(Memory):
    """A tensor that TMA loads: before its first part, as an index of -1 asks for, are zeros."""

    def part(self, index: tuple[Any, ...]) -> Memory:
        at = [None if i is None else simt.shared(i) for i in index]
        if -1 not in at:
            return super().part(index)
        strides = [self.strides[d] for d, i in enumerate(at) if i is None]
        return Memory(self.flat, self.dtype, [0] * len(strides), strides)


def _range(*bounds: Any, unroll: int = 1) -> Iterator[int]:
    return map(simt.Step, range(*map(int, bounds)))


def _cute() -> SimpleNamespace:
    arch = SimpleNamespace(
        thread_idx=lambda: (Int32(_now.threads), Int32(0), Int32(0)),
        block_idx=lambda: (Int32(_now.index), Int32(0), Int32(0)),
        grid_dim=lambda: (_now.count, 1, 1),
        block_idx_in_cluster=lambda: Int32(_now.index % _now.cluster),
        warp_idx=lambda: Int32(_now.threads // WARP),
        make_warp_uniform=lambda x: simt.uniform(x, WARP),
        setmaxregister_decrease=lambda count: None,
        setmaxregister_increase=lambda count: None,
        lane_idx=lambda: Int32(_now.threads % WARP),
        sync_warp=_sync_warp,
        elect_one=_elected,
        griddepcontrol_wait=_wait_for_grids,
        griddepcontrol_launch_dependents=simt.Order.check,
        fence_view_async_shared=lambda: pipelines.fence(_rings()),
        prmt=_prmt,
        inline_ptx=_inline_ptx,
        fmax=simt.fmax,
        fmin=simt.fmin,
        shuffle_sync_bfly=simt.shuffled,
        vote_any_sync=simt.any_lane,
        sync_threads=_barrier,
        atomic_add=lambda counter, x, sem, scope: tile_scheduler.atomic_add(_threads, counter, x),
        barrier=lambda barrier_id, number_of_threads: _met(barrier_id, number_of_threads),
    )
    return SimpleNamespace(
        kernel=_Kernel,
        jit=lambda fn: fn,
        struct=_Struct(),
        arch=arch,
        math=SimpleNamespace(
            RoundingMode=SimpleNamespace(NEAREST_EVEN="nearest"), mul=simt.mul, fma=simt.fma, exp2=simt.exp2,
            sqrt=simt.sqrt, floor=simt.floor,
        ),
        make_layout=_Layout,
        make_tensor=_make_tensor,
        make_rmem_tensor=_registers,
        size=lambda of: of.size,
        recast_tensor=_recast,
        recast_ptr=lambda pointer, dtype: pointer,
        autovec_copy=_autovec_copy,
        assume=lambda x, divby: simt.assumed(x, divby),
        domain_offset=lambda at, of: Rows(of, int(at[0]), int(at[1])),
        local_tile=_local_tile,
        group_modes=lambda x, first, last: x,
        slice_=lambda layout, at: layout,
        copy=_copy,
        gemm=_gemm,
        make_mma_atom=lambda unit: unit,
        make_tiled_mma=lambda unit: unit,
        nvgpu=SimpleNamespace(
            warp=SimpleNamespace(MmaF16BF16Op=lambda kind, acc, shape: _Unit(kind.dtype, 1, shape[1]))
        ),
        Pointer=object, Tensor=object, CopyAtom=object, TiledMma=object,
    )  # fmt: skip


def _tiles(side: int, order: str, tile: tuple[int, int, int], kind: Any, stages: int) -> SimpleNamespace:
    return SimpleNamespace(outer=pipelines.layout(order, tile[side], tile[2]), inner=None)


def _dsl() -> dict[str, Any]:
    sm90 = SimpleNamespace(
        make_smem_layout_a=partial(_tiles, 0),
        make_smem_layout_b=partial(_tiles, 1),
        make_trivial_tiled_mma=lambda a, b, ka, kb, acc, groups, tiler_mn, a_source=None: _Unit(
            a.dtype, groups[0], tiler_mn[1]
        ),
    )
    pipeline = SimpleNamespace(
        PipelineTmaAsync=SimpleNamespace(create=_ring),
        PipelineAsync=SimpleNamespace(create=lambda **given: _now.scheduler.ring(_now.warps, **given)),
        PipelineCpAsync=SimpleNamespace(create=lambda **given: pipelines.ring(_around(), **given)),
        CooperativeGroup=lambda agent, count=1: count,
        Agent=SimpleNamespace(Thread="thread"),
        PipelineUserType=SimpleNamespace(Producer="producer", Consumer="consumer"),
        make_pipeline_state=lambda role, stages: State(stages),
    )
    cpasync = SimpleNamespace(
        prefetch_descriptor=lambda atom: None,
        tma_partition=lambda atom, rank, layout, to, of: (to, of),
        make_tiled_tma_atom=_tma,
        CopyBulkTensorTileG2SOp=lambda: "copy",
        CopyBulkTensorTileG2SMulticastOp=lambda: "copy for a cluster",
    )
    cutlass = SimpleNamespace(
        range=_range, range_constexpr=range, min=simt.least, max=simt.most, select_=simt.select,
        Constexpr=int, const_expr=bool, Int8=simt.Int8,
    )  # fmt: skip
    utils = SimpleNamespace(
        SmemAllocator=lambda: SimpleNamespace(allocate=_shared, allocate_tensor=_shared_tensor),
        LayoutEnum=SimpleNamespace(ROW_MAJOR="row", COL_MAJOR="column"),
    )
    warpgroup = SimpleNamespace(
        fence=lambda: None, commit_group=_commit_group, wait_group=_wait_group,
        Field=SimpleNamespace(ACCUMULATE="accumulate"), OperandSource=SimpleNamespace(RMEM="registers"),
    )  # fmt: skip
    kinds = {k.__name__: k for k in (*simt.KINDS.values(), simt.Int16) if k is not simt.Int8}
    return kinds | {
        "acting": _acting,
        "cuda": SimpleNamespace(CUstream=object),
        "cutlass": cutlass,
        "cute": _cute(),
        "pipeline": pipeline,
        "sm90": sm90,
        "utils": utils,
        "OperandMajorMode": SimpleNamespace(K="K", MN="MN"),
        "cpasync": cpasync,
        "warpgroup": warpgroup,
    }


OF_STAGES = {
    "pair_along": partial(_stage_pair, along=True),
    "pair_across": partial(_stage_pair, along=False),
    "byte_pair": _byte_pair,
    "sub_pair": _sub_pair,
    "tile_registers": lambda rows, columns, threads, kind: _registers((rows, columns), kind),
    "warp_products": _warp_products,
}
"""Helpers that read a stage's elements, or what the DSL's vectors do."""


class _Layout:
    """A layout: extents and strides; called, the offset of an index."""

    def __init__(self, shape: Any, stride: Any = None) -> None:
        self.shape, self.stride = shape, stride

    def __call__(self, index: Any) -> Any:
        return index * self.stride


def _shared(of: type) -> SimpleNamespace:
    if "ring" not in of.__annotations__:
        _now.epilogue_smem = warp_exchange.Shared(EPILOGUE_WORDS * (int(_now.threads[-1]) + 1) // WARP)
        parts = {name: _storage(name, *what) for name, what in of.__annotations__.items()}
        return SimpleNamespace(**{**parts, "epilogue_smem": _now.epilogue_smem})
    words = SPILLED_WORDS * WARP if "spilled" in of.__annotations__ else EPILOGUE_WORDS
    _now.epilogue_smem = spilled = warp_exchange.Shared(words * len(_now.threads) // WARP)
    parts = {name: _Stage(name) for name in of.__annotations__}
    return SimpleNamespace(**{**parts, "epilogue_smem": _now.epilogue_smem, "spilled": spilled})


def _storage(name: str, kind: Any, size: Any) -> Any:
    """Return a part of shared memory: a ring's, or numbers, which travel with tiles or are a thread's own."""
    if kind is Int32:
        return _now.scheduler.words(name)
    made = pipelines.Storage(name, _now.rings)
    if isinstance(kind, tuple) and kind[0] is Float32:
        words = warp_exchange.Shared(kind[1])
        return SimpleNamespace(get_tensor=made.get_tensor, data_ptr=words.data_ptr)
    return made


def _shared_tensor(kind: type[Number], layout: _Layout, alignment: int) -> block_memory.SharedTensor:
    made = block_memory.SharedTensor(kind, layout.shape, _now.threads)
    _now.reduce_buffers.append(made)
    return made


def _barrier() -> None:
    for reduce_smem in _now.reduce_buffers:
        reduce_smem.barrier()


def _rings() -> list[Any]:
    return [*_now.ring, *_now.rings.values()]


def _around() -> pipelines.Around:
    return pipelines.Around(_now.rings, lambda: _now.groups, _now.warps, _is_elected, _threads)


def _threads() -> Array:
    return _now.threads


def _is_elected() -> bool:
    return _now.elected


@contextmanager
def _acting(condition: Number) -> Iterator[None]:
    """Let those threads act of which a condition holds."""
    every = _now.threads
    _now.threads = every[np.broadcast_to(condition.data, every.shape)]
    yield
    _now.threads = every


@contextmanager
def _elected() -> Iterator[None]:
    _now.elected = True
    yield
    _now.elected = False


def _met(name: Any, threads: int) -> None:
    """Let each warpgroup meet by a barrier of its own: number 0 is that of all threads, not of the first."""
    names, groups = np.broadcast_to(Int32(name).data, _now.threads.shape), _now.threads // WARPGROUP
    own = np.where(groups == 0, BARRIER_OF_PRODUCER, groups)
    if threads != WARPGROUP or len(own) % WARPGROUP or not np.array_equal(names, own):
        raise Fault("a barrier that is not the one of a warpgroup")
    pipelines.barrier(_rings())
    _now.scheduler.next_tile.barrier()
