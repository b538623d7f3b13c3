"""w8a16 on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 5b0d59cd3ab14a9d
schedule: tiles N=128, T=128, 8 warps, 6 stages, unroll 1, depth 64, group 8, 132 programs
inputs:
  x: bf16 [T, K=4096]
  w: i8 [N=4096, K=4096]
  scale: f32 [N=4096]
outputs:
  y: bf16 [T, N=4096]
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import cutlass.utils as utils
import cutlass.utils.hopper_helpers as sm90
from cutlass import BFloat16, Boolean, Float16, Float32, Int16, Int32, Int64, Uint8, Uint32
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup

NEAREST = cute.math.RoundingMode.NEAREST_EVEN
ROW_MAJOR, COL_MAJOR = utils.LayoutEnum.ROW_MAJOR, utils.LayoutEnum.COL_MAJOR


def by_rows(fragment, blocks):
    # View an accumulator as [row, column]: two rows, and columns 8 i + 2 (thread % 4) + {0, 1}.
    return cute.make_tensor(fragment.iterator, cute.make_layout((2, (2, blocks)), stride=(2, (1, 4))))


def byte_pair(tiles, at):
    # Two contiguous bytes of shared memory as a word.
    pair = cute.make_rmem_tensor((2,), tiles.element_type)
    cute.autovec_copy(cute.make_tensor(tiles.iterator + cute.assume(at, divby=2), (2,)), pair)
    return cute.recast_tensor(pair, cutlass.Uint16)[0].to(Int32)


def byte_places(row, quad):
    # Offsets of a row's quarters of 16 bytes in a tile with rows of 64 bytes: 64-byte swizzle.
    return [64 * row + 16 * (row // 2 % 4 ^ i) + quad for i in range(4)]


def bytes_as_floats(word, magic: cutlass.Constexpr, kind: cutlass.Constexpr):
    # Two signed bytes as 16-bit floats, exactly: magic + 7 bits, less magic (+ 128 of a negative one).
    word = Int32(cute.arch.prmt(word, Int32(magic), Int32(0x5150)))
    return sub_pair(word & Int32(-0x00800081), word & Int32(-0x007F0080), kind)


def mul(a, b):
    # One rounding, never part of a fused operation.
    return cute.math.mul(a, b, rounding=NEAREST)


def put_pairs(to, x):
    # Fill the registers of A: for each 8 columns, a pair of each of a thread's two rows.
    for i in range(len(x)):
        to[i // 2 % 2, i // 4 * 2 + i % 2] = x[i]


@cute.jit
def store_where(condition, memory: cute.Tensor, index, x):
    # Store an element where the condition holds.
    if condition:
        memory[index] = x


def sub_pair(a, b, kind):
    # Differences of two 16-bit floats in a word.
    x, y = cute.make_rmem_tensor((2,), kind), cute.make_rmem_tensor((2,), kind)
    cute.recast_tensor(x, Int32)[0], cute.recast_tensor(y, Int32)[0] = a, b
    made = x.load() - y.load()
    return [made[0], made[1]]


@cute.struct
class w8a16_memory:
    """Shared memory: mbarriers of the pipeline, and a tile of A and B for each stage."""

    ring: cute.struct.MemRange[Int64, 12]
    a: cute.struct.Align[cute.struct.MemRange[cutlass.Int8, 49152], 1024]
    b: cute.struct.Align[cute.struct.MemRange[BFloat16, 49152], 1024]


def w8a16_layouts():
    # Smem layouts of A and B: 128-byte swizzle, stages outermost.
    tile = (128, 128, 64)
    a = sm90.make_smem_layout_a(ROW_MAJOR, tile, cutlass.Int8, 6)
    return a, sm90.make_smem_layout_b(ROW_MAJOR, tile, BFloat16, 6)


def w8a16_unit():
    # wgmma of 64 rows for each consumer warpgroup, with A in registers.
    a, b = OperandMajorMode.K, OperandMajorMode.K
    return sm90.make_trivial_tiled_mma(
        BFloat16, BFloat16, a, b, Float32, (2, 1, 1), tiler_mn=(64, 128),
        a_source=warpgroup.OperandSource.RMEM,
    )


@cute.jit
def w8a16_place(item, tiles, wide):
    # Grouped tile order for L2 reuse: row tiles run fastest inside a group of 8.
    band = item // (8 * wide)
    rest = item - band * (8 * wide)
    first = band * 8
    height = cutlass.min(tiles - first, Int32(8))
    column = rest // height
    row_tile = first + rest - column * height
    t_tile = column
    return row_tile, t_tile


@cute.kernel
def w8a16(
    tma_a: cute.CopyAtom, w: cute.Tensor, tma_b: cute.CopyAtom, x: cute.Tensor,
    unit: cute.TiledMma, scale: cute.Tensor, y: cute.Tensor, T: Int32
):
    # A block owns 128 of N, 128 of T (dot_map).
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    blocks, _, _ = cute.arch.grid_dim()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(thread // 128)
    rank = 0
    if warp == 0:
        cpasync.prefetch_descriptor(tma_a)
        cpasync.prefetch_descriptor(tma_b)
    memory = utils.SmemAllocator().allocate(w8a16_memory)
    ring = pipeline.PipelineTmaAsync.create(
        barrier_storage=memory.ring.data_ptr(),
        num_stages=6,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 8),
        tx_count=24576,
        cta_layout_vmnk=cute.make_layout((1, 1, 1, 1)),
    )
    layout_a, layout_b = w8a16_layouts()
    a_tiles = memory.a.get_tensor(layout_a.outer, swizzle=layout_a.inner)
    b_tiles = memory.b.get_tensor(layout_b.outer, swizzle=layout_b.inner)
    tiles = (4096 + 127) // 128
    wide = ((T + 127) // 128)
    items = tiles * wide
    item = block // 1
    if group == 0:
        # Producer warp: acquire a stage, issue TMA loads that complete on its mbarrier.
        cute.arch.setmaxregister_decrease(40)
        if warp == 0:
            put = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 6)
            while item < items:
                row_tile, t_tile = w8a16_place(item, tiles, wide)
                t_first = t_tile * 128
                n_first = row_tile * 128
                a_from = cute.local_tile(
                    cute.domain_offset((n_first, 0), w), (128, 64), (0, None)
                )
                b_from = cute.local_tile(
                    cute.domain_offset((t_first, 0), x), (128, 64), (0, None)
                )
                a_to, a_from = cpasync.tma_partition(
                    tma_a, 0, cute.make_layout(1), cute.group_modes(a_tiles, 0, 2), cute.group_modes(a_from, 0, 2)
                )
                b_to, b_from = cpasync.tma_partition(
                    tma_b, rank, cute.make_layout(1),
                    cute.group_modes(b_tiles, 0, 2), cute.group_modes(b_from, 0, 2),
                )
                for k in cutlass.range(64, unroll=1):
                    ring.producer_acquire(put)
                    full = ring.producer_get_barrier(put)
                    cute.copy(tma_a, a_from[None, k], a_to[None, put.index], tma_bar_ptr=full)
                    cute.copy(tma_b, b_from[None, k], b_to[None, put.index], tma_bar_ptr=full)
                    put.advance()
                item += blocks // 1
            ring.producer_tail(put)
    else:
        # Consumer warpgroups: 64 rows each; one wgmma group is in flight while the next is issued.
        cute.arch.setmaxregister_increase(232)
        mine = thread - 128
        share = unit.get_slice(cute.make_layout(2, stride=128)(group - 1))
        # A in registers, as an accumulator has its elements: rows `row` and `row + 8`, pairs of every 8 columns
        a = cute.make_rmem_tensor(unit.partition_shape_A((128, 64)), BFloat16)
        a_rows = by_rows(a, 8)
        a_bytes = cute.make_tensor(memory.a.data_ptr(), cute.make_layout((49152,)))
        b = unit.make_fragment_B(share.partition_B(b_tiles))
        fragment = cute.make_rmem_tensor(unit.partition_shape_C((128, 128)), Float32)
        # accumulator fragment: rows `row` and `row + 8`, columns 8 i + 2 (thread % 4) + {0, 1}
        acc = cute.make_tensor(
            fragment.iterator, cute.make_layout((2, (2, 16)), stride=(2, (1, 4)))
        )
        row = mine // 32 * 16 + mine // 4 % 8
        quad = 2 * (mine % 4)
        a_places = byte_places(row, quad)
        get = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 6)
        free = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 6)
        while item < items:
            row_tile, t_tile = w8a16_place(item, tiles, wide)
            t_first = t_tile * 128
            n_first = row_tile * 128
            n = [n_first + row + 8 * r for r in range(2)]
            scale_value = [scale[n[r]] for r in range(2)]  # w8a16.py:23
            # A step's elements of A are computed while the products before are in flight, which read the registers.
            ring.consumer_wait(get)
            a_values = []
            a_offsets = [place + 8192 * get.index for place in a_places]
            for i in cutlass.range_constexpr(8):
                for r in cutlass.range_constexpr(2):
                    a_pair = bytes_as_floats(
                        byte_pair(a_bytes, a_offsets[i // 2] + (512 * r + i % 2 * 8)), 0x43004300, BFloat16
                    )
                    for c in cutlass.range_constexpr(2):
                        a_values.append(BFloat16(a_pair[c]))  # w8a16.py:22
            put_pairs(a_rows, a_values)
            warpgroup.fence()
            unit.set(warpgroup.Field.ACCUMULATE, False)
            for i in cutlass.range_constexpr(4):
                cute.gemm(unit, fragment, a[None, None, i], b[None, None, i, get.index], fragment)
                unit.set(warpgroup.Field.ACCUMULATE, True)
            warpgroup.commit_group()
            get.advance()
            for k in cutlass.range(1, 64, unroll=1):
                ring.consumer_wait(get)
                a_values = []
                a_offsets = [place + 8192 * get.index for place in a_places]
                for i in cutlass.range_constexpr(8):
                    for r in cutlass.range_constexpr(2):
                        a_pair = bytes_as_floats(
                            byte_pair(a_bytes, a_offsets[i // 2] + (512 * r + i % 2 * 8)), 0x43004300, BFloat16
                        )
                        for c in cutlass.range_constexpr(2):
                            a_values.append(BFloat16(a_pair[c]))
                warpgroup.wait_group(0)
                ring.consumer_release(free)
                free.advance()
                put_pairs(a_rows, a_values)
                warpgroup.fence()
                for i in cutlass.range_constexpr(4):
                    cute.gemm(unit, fragment, a[None, None, i], b[None, None, i, get.index], fragment)
                warpgroup.commit_group()
                get.advance()
            warpgroup.wait_group(0)
            ring.consumer_release(free)
            free.advance()
            t = t_first + quad
            for r in cutlass.range_constexpr(2):
                z_times_scale_bf16 = []
                for part in cutlass.range_constexpr(2):
                    for c in cutlass.range_constexpr(16 * part, 16 * part + 16):
                        z = acc[r, c]
                        z_times_scale = mul(z, scale_value[r])  # w8a16.py:23
                        z_times_scale_bf16.append(Float32(z_times_scale).to(BFloat16))
                    for c in cutlass.range_constexpr(16 * part, 16 * part + 16):
                        store_where(
                            (8 * (c // 2) + c % 2 < T - t), y, ((t + 8 * (c // 2) + c % 2), n[r]), z_times_scale_bf16[c]
                        )
            item += blocks // 1


@cute.jit
def launch_w8a16(
    x_ptr: cute.Pointer, w_ptr: cute.Pointer, scale_ptr: cute.Pointer, y_ptr: cute.Pointer, T: Int32, x_t_stride: Int64,
    w_n_stride: Int64, y_t_stride: Int64, programs: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    x = cute.make_tensor(x_ptr, cute.make_layout((T, 4096), stride=(cute.assume(x_t_stride, divby=8), 1)))
    w = cute.make_tensor(w_ptr, cute.make_layout((4096, 4096), stride=(cute.assume(w_n_stride, divby=16), 1)))
    scale = cute.make_tensor(scale_ptr, cute.make_layout((4096,), stride=(1,)))
    y = cute.make_tensor(y_ptr, cute.make_layout((T, 4096), stride=(y_t_stride, 1)))
    layout_a, layout_b = w8a16_layouts()
    tma_a, w = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), w,
        cute.slice_(layout_a, (None, None, 0)), (128, 64),
    )
    tma_b, x = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), x,
        cute.slice_(layout_b, (None, None, 0)), (128, 64), 1,
    )
    w8a16(
        tma_a, w, tma_b, x, w8a16_unit(), scale, y, T
    ).launch(
        grid=(programs, 1, 1), block=(384, 1, 1), cluster=(1, 1, 1),
        min_blocks_per_mp=1, stream=stream,
    )


def call(kernels, x, w, scale, y, T, x_t_stride, w_n_stride, y_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = min(1 * ((4096 + 127) // 128) * ((T + 127) // 128), 132)
    if programs > 0:
        kernels.w8a16((programs,), x, w, scale, y, T, x_t_stride, w_n_stride, y_t_stride)
