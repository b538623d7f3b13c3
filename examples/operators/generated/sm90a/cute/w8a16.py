"""w8a16 on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 5b0d59cd3ab14a9d
schedule: tiles K=2048, 4 warps, 1 stages, unroll 1 placed K[9:3] K[2:0] K[10:10]
schedule: tiles N=256, T=128, 8 warps, 4 stages, unroll 1, depth 64, group 8, 132 programs, clusters of 2
inputs:
  w: i8 [N=4096, K=4096]
  x: bf16 [T, K=4096]
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


def epilogue_offsets(words):
    # Swizzled offsets of a thread's pairs and vectors in 8 rows of 128 bytes of shared memory.
    lane = cute.arch.lane_idx()
    row, quad = lane // 4 * 36, lane % 4
    pairs = row + quad if words == 1 else (row ^ quad // 2 * 4) + quad % 2 * 2
    return pairs, row ^ quad * 4


def load_vector(memory, index, count):
    # Load a vector.
    x = cute.make_rmem_tensor((count,), memory.element_type)
    cute.autovec_copy(vector_of(memory, index, count), x)
    return [x[i] for i in range(count)]


def mul(a, b):
    # One rounding, never part of a fused operation.
    return cute.math.mul(a, b, rounding=NEAREST)


def store_vector(memory, index, x):
    # Store a vector.
    made = cute.make_rmem_tensor((len(x),), memory.element_type)
    for i in range(len(x)):
        made[i] = x[i]
    cute.autovec_copy(made, vector_of(memory, index, len(x)))


@cute.jit
def store_vector_where(condition, memory: cute.Tensor, index, x):
    # Store a vector where the condition holds.
    if condition:
        store_vector(memory, index, x)


def to_vectors(epilogue_tile, dtype, x):
    # Transpose accumulator pairs of the four threads of a row to 16-byte vectors.
    words = dtype.width // 16
    pairs, vectors = epilogue_offsets(words)
    cute.arch.sync_warp()
    for i in range(len(x) // 2):
        pair = cute.make_rmem_tensor((2,), dtype)
        pair[0], pair[1] = x[2 * i], x[2 * i + 1]
        to = cute.make_tensor(epilogue_tile + cute.assume(pairs ^ 4 * words * i, divby=words), (words,))
        cute.autovec_copy(cute.recast_tensor(pair, Int32), to)
    cute.arch.sync_warp()
    made = []
    for i in range(len(x) * words // 8):
        vector = cute.make_rmem_tensor((8 // words,), dtype)
        of = cute.make_tensor(epilogue_tile + cute.assume(vectors ^ 16 * i, divby=4), (4,))
        cute.autovec_copy(of, cute.recast_tensor(vector, Int32))
        made.append([vector[j] for j in range(8 // words)])
    return made


def vector_of(memory, index, count):
    # A view of `count` contiguous, aligned elements.
    at = cute.assume(cute.crd2idx(index, memory.layout), divby=count)
    return cute.make_tensor(memory.iterator + at, (count,))


@cute.kernel
def w8a16_w_bf16_rows(w: cute.Tensor, w_bf16: cute.Tensor):
    # A block owns 1 of N, 2048 of K (rows). K: 2048 indices, 16 to each of 128 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
    rest = block // 2
    n = rest
    k = [block % 2 * 2048 + thread * 8 + c % 8 + c // 8 * 1024 for c in range(16)]
    w_value = [one for c in range(0, 16, 8) for one in load_vector(w, (n, k[c]), 8)]  # w8a16.py:22
    w_i32 = [cutlass.Int8(w_value[c]).to(Int32) for c in range(16)]
    w_i32_f32 = [Int32(w_i32[c]).to(Float32) for c in range(16)]
    w_i32_f32_bf16 = [Float32(w_i32_f32[c]).to(BFloat16) for c in range(16)]
    for c in cutlass.range_constexpr(0, 16, 8):
        store_vector(w_bf16, (n, k[c]), w_i32_f32_bf16[c:c + 8])


@cute.jit
def launch_w8a16_w_bf16(
    w_ptr: cute.Pointer, w_bf16_ptr: cute.Pointer, w_n_stride: Int64, w_bf16_n_stride: Int64, programs: Int32,
    overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    w = cute.make_tensor(w_ptr, cute.make_layout((4096, 4096), stride=(w_n_stride, 1)))
    w_bf16 = cute.make_tensor(w_bf16_ptr, cute.make_layout((4096, 4096), stride=(w_bf16_n_stride, 1)))
    w8a16_w_bf16_rows(w, w_bf16).launch(
        grid=(programs, 1, 1), block=(128, 1, 1), use_pdl=overlap, stream=stream,
    )


@cute.struct
class w8a16_memory:
    """Shared memory: mbarriers of the pipeline, a tile of A and B for each stage, epilogue scratch of warps."""

    ring: cute.struct.MemRange[Int64, 8]
    a: cute.struct.Align[cute.struct.MemRange[BFloat16, 32768], 1024]
    b: cute.struct.Align[cute.struct.MemRange[BFloat16, 65536], 1024]
    epilogue_smem: cute.struct.Align[cute.struct.MemRange[Int32, 2048], 128]


def w8a16_layouts():
    # Smem layouts of A and B: 128-byte swizzle, stages outermost.
    tile = (128, 256, 64)
    a = sm90.make_smem_layout_a(ROW_MAJOR, tile, BFloat16, 4)
    return a, sm90.make_smem_layout_b(ROW_MAJOR, tile, BFloat16, 4)


def w8a16_unit():
    # wgmma of 64 rows for each consumer warpgroup.
    a, b = OperandMajorMode.K, OperandMajorMode.K
    return sm90.make_trivial_tiled_mma(
        BFloat16, BFloat16, a, b, Float32, (2, 1, 1), tiler_mn=(64, 256)
    )


@cute.jit
def w8a16_place(item, tiles):
    # Grouped tile order for L2 reuse: row tiles run fastest inside a group of 8.
    band = item // 128
    rest = item - band * 128
    first = band * 8
    height = cutlass.min(tiles - first, Int32(8))
    column = rest // height
    row_tile = first + rest - column * height
    n_tile = column
    return row_tile, n_tile


@cute.kernel
def w8a16(
    tma_a: cute.CopyAtom, x: cute.Tensor, tma_b: cute.CopyAtom, w_bf16: cute.Tensor,
    unit: cute.TiledMma, scale: cute.Tensor, y: cute.Tensor, T: Int32
):
    # A block owns 128 of T, 256 of N (dot_map).
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    blocks, _, _ = cute.arch.grid_dim()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(thread // 128)
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    if warp == 0:
        cpasync.prefetch_descriptor(tma_a)
        cpasync.prefetch_descriptor(tma_b)
    memory = utils.SmemAllocator().allocate(w8a16_memory)
    ring = pipeline.PipelineTmaAsync.create(
        barrier_storage=memory.ring.data_ptr(),
        num_stages=4,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 16),
        tx_count=49152,
        cta_layout_vmnk=cute.make_layout((1, 2, 1, 1)),
    )
    layout_a, layout_b = w8a16_layouts()
    a_tiles = memory.a.get_tensor(layout_a.outer, swizzle=layout_a.inner)
    b_tiles = memory.b.get_tensor(layout_b.outer, swizzle=layout_b.inner)
    tiles = (T + 255) // 256
    items = tiles * 16
    item = block // 2
    cute.arch.griddepcontrol_wait()
    if group == 0:
        # Producer warp: acquire a stage, issue TMA loads that complete on its mbarrier.
        cute.arch.setmaxregister_decrease(40)
        if warp == 0:
            put = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 4)
            while item < items:
                row_tile, n_tile = w8a16_place(item, tiles)
                n_first = n_tile * 256
                t_first = (row_tile * 2 + rank) * 128
                a_from = cute.local_tile(
                    cute.domain_offset((t_first, 0), x), (128, 64), (0, None)
                )
                b_from = cute.local_tile(
                    cute.domain_offset((n_first, 0), w_bf16), (256, 64), (0, None)
                )
                a_to, a_from = cpasync.tma_partition(
                    tma_a, 0, cute.make_layout(1), cute.group_modes(a_tiles, 0, 2), cute.group_modes(a_from, 0, 2)
                )
                b_to, b_from = cpasync.tma_partition(
                    tma_b, rank, cute.make_layout(2),
                    cute.group_modes(b_tiles, 0, 2), cute.group_modes(b_from, 0, 2),
                )
                for k in cutlass.range(64, unroll=1):
                    ring.producer_acquire(put)
                    full = ring.producer_get_barrier(put)
                    cute.copy(tma_a, a_from[None, k], a_to[None, put.index], tma_bar_ptr=full)
                    cute.copy(
                        tma_b, b_from[None, k], b_to[None, put.index], tma_bar_ptr=full, mcast_mask=Int16(3)
                    )
                    put.advance()
                item += blocks // 2
            ring.producer_tail(put)
    else:
        # Consumer warpgroups: 64 rows each; one wgmma group is in flight while the next is issued.
        cute.arch.setmaxregister_increase(232)
        mine = thread - 128
        share = unit.get_slice(cute.make_layout(2, stride=128)(group - 1))
        a = unit.make_fragment_A(share.partition_A(a_tiles))
        b = unit.make_fragment_B(share.partition_B(b_tiles))
        fragment = cute.make_rmem_tensor(unit.partition_shape_C((128, 256)), Float32)
        # accumulator fragment: rows `row` and `row + 8`, columns 8 i + 2 (thread % 4) + {0, 1}
        acc = cute.make_tensor(
            fragment.iterator, cute.make_layout((2, (2, 32)), stride=(2, (1, 4)))
        )
        row = mine // 32 * 16 + mine // 4 % 8
        quad = 2 * (mine % 4)
        # epilogue scratch of a warp: accumulator pairs to 16-byte vectors
        epilogue_tile = memory.epilogue_smem.data_ptr() + cute.assume((warp - 4) * 256, divby=256)
        get = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 4)
        free = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 4)
        while item < items:
            row_tile, n_tile = w8a16_place(item, tiles)
            n_first = n_tile * 256
            t_first = (row_tile * 2 + rank) * 128
            t = [t_first + row + 8 * r for r in range(2)]
            t_inside = [t[r] < T for r in range(2)]
            ring.consumer_wait(get)
            warpgroup.fence()
            unit.set(warpgroup.Field.ACCUMULATE, False)
            for i in cutlass.range_constexpr(4):
                cute.gemm(unit, fragment, a[None, None, i, get.index], b[None, None, i, get.index], fragment)
                unit.set(warpgroup.Field.ACCUMULATE, True)
            warpgroup.commit_group()
            get.advance()
            for k in cutlass.range(1, 64, unroll=1):
                ring.consumer_wait(get)
                warpgroup.fence()
                for i in cutlass.range_constexpr(4):
                    cute.gemm(unit, fragment, a[None, None, i, get.index], b[None, None, i, get.index], fragment)
                warpgroup.commit_group()
                warpgroup.wait_group(1)
                ring.consumer_release(free)
                get.advance()
                free.advance()
            warpgroup.wait_group(0)
            ring.consumer_release(free)
            free.advance()
            n = n_first + quad
            scale_value = [scale[(n + 8 * (c // 2) + c % 2)] for c in range(64)]  # w8a16.py:23
            for r in cutlass.range_constexpr(2):
                z_times_scale_bf16 = []  # w8a16.py:22
                for part in cutlass.range_constexpr(4):
                    for c in cutlass.range_constexpr(16 * part, 16 * part + 16):
                        z = acc[r, c]
                        z_times_scale = mul(z, scale_value[c])  # w8a16.py:23
                        z_times_scale_bf16.append(Float32(z_times_scale).to(BFloat16))
                    for c in cutlass.range_constexpr(16 * part, 16 * part + 16, 16):
                        vectors = to_vectors(epilogue_tile, y.element_type, z_times_scale_bf16[c : c + 16])
                        for i in cutlass.range_constexpr(2):
                            store_vector_where(
                                t_inside[r], y, (t[r], (n + 8 * (c // 2) + 3 * quad + 32 * i)), vectors[i]
                            )
            item += blocks // 2


@cute.jit
def launch_w8a16(
    x_ptr: cute.Pointer, scale_ptr: cute.Pointer, y_ptr: cute.Pointer, w_bf16_ptr: cute.Pointer, T: Int32,
    x_t_stride: Int64, y_t_stride: Int64, w_bf16_n_stride: Int64, programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    x = cute.make_tensor(x_ptr, cute.make_layout((T, 4096), stride=(cute.assume(x_t_stride, divby=8), 1)))
    scale = cute.make_tensor(scale_ptr, cute.make_layout((4096,), stride=(1,)))
    y = cute.make_tensor(y_ptr, cute.make_layout((T, 4096), stride=(y_t_stride, 1)))
    w_bf16 = cute.make_tensor(
        w_bf16_ptr, cute.make_layout((4096, 4096), stride=(cute.assume(w_bf16_n_stride, divby=8), 1))
    )
    layout_a, layout_b = w8a16_layouts()
    tma_a, x = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), x,
        cute.slice_(layout_a, (None, None, 0)), (128, 64),
    )
    tma_b, w_bf16 = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SMulticastOp(), w_bf16,
        cute.slice_(layout_b, (None, None, 0)), (256, 64), 2,
    )
    w8a16(
        tma_a, x, tma_b, w_bf16, w8a16_unit(), scale, y, T
    ).launch(
        grid=(programs, 1, 1), block=(384, 1, 1), cluster=(2, 1, 1),
        min_blocks_per_mp=1, use_pdl=overlap, stream=stream,
    )


def call(kernels, w, w_bf16, x, scale, y, T, w_n_stride, w_bf16_n_stride, x_t_stride, y_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = 4096 * 2
    if programs > 0:
        kernels.w8a16_w_bf16((programs,), w, w_bf16, w_n_stride, w_bf16_n_stride)
    programs = min(2 * ((T + 255) // 256) * 16, 132)
    if programs > 0:
        kernels.w8a16((programs,), x, scale, y, w_bf16, T, x_t_stride, y_t_stride, w_bf16_n_stride)
