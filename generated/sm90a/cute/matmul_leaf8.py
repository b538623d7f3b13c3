"""matmul_leaf8 on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 1cf8556dd84801f8
schedule: tiles N=128, T=128, 8 warps, 5 stages, unroll 1, depth 64, group 8, 132 programs, clusters of 2
inputs:
  x: bf16 [T, K=4096]
  w: bf16 [N=4096, K=4096]
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


def add_here(a, b):
    # a + b. The compiler moves plain sums behind later loops, where both terms take registers.
    return cute.arch.inline_ptx(
        "add.rn.f32 {$w0}, {$r0}, {$r1};", write_only_types=[Float32], read_only_args=[a, b]
    )


def epilogue_offsets(words):
    # Swizzled offsets of a thread's pairs and vectors in 8 rows of 128 bytes of shared memory.
    lane = cute.arch.lane_idx()
    row, quad = lane // 4 * 36, lane % 4
    pairs = row + quad if words == 1 else (row ^ quad // 2 * 4) + quad % 2 * 2
    return pairs, row ^ quad * 4


def put_sum(to, a, b):
    # Add two accumulators where this stands.
    for i in range(cute.size(to)):
        to[i] = add_here(a[i], b[i])


def put_sums(parts, merges):
    # Add accumulators: parts[to] = parts[left] + parts[right].
    for to, left, right in merges:
        put_sum(parts[to], parts[left], parts[right])


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


@cute.struct
class matmul_leaf8_memory:
    """Shared memory: mbarriers of the pipeline, a tile of A and B for each stage, epilogue scratch of warps."""

    ring: cute.struct.MemRange[Int64, 10]
    a: cute.struct.Align[cute.struct.MemRange[BFloat16, 40960], 1024]
    b: cute.struct.Align[cute.struct.MemRange[BFloat16, 40960], 1024]
    spilled: cute.struct.Align[cute.struct.MemRange[Float32, 16384], 128]


def matmul_leaf8_layouts():
    # Smem layouts of A and B: 128-byte swizzle, stages outermost.
    tile = (128, 128, 64)
    a = sm90.make_smem_layout_a(ROW_MAJOR, tile, BFloat16, 5)
    return a, sm90.make_smem_layout_b(ROW_MAJOR, tile, BFloat16, 5)


def matmul_leaf8_unit():
    # wgmma of 64 rows for each consumer warpgroup.
    a, b = OperandMajorMode.K, OperandMajorMode.K
    return sm90.make_trivial_tiled_mma(
        BFloat16, BFloat16, a, b, Float32, (2, 1, 1), tiler_mn=(64, 128)
    )


def matmul_leaf8_merges(piece):
    # Accumulator of a piece; merges (to, left, right) before its first products, and while they run.
    return [
        (0, [], [], False),
        (1, [], [], False),
        (2, [], [(0, 0, 1)], False),
        (1, [], [], False),
        (1, [(2, 2, 1)], [(0, 0, 2)], True),
        (0, [], [], False),
        (2, [], [(1, 1, 0)], False),
        (0, [], [], False),
    ][piece]


@cute.jit
def matmul_leaf8_place(item, tiles):
    # Grouped tile order for L2 reuse: row tiles run fastest inside a group of 8.
    band = item // 256
    rest = item - band * 256
    first = band * 8
    height = cutlass.min(tiles - first, Int32(8))
    column = rest // height
    row_tile = first + rest - column * height
    n_tile = column
    return row_tile, n_tile


@cute.kernel
def matmul_leaf8(
    tma_a: cute.CopyAtom, x: cute.Tensor, tma_b: cute.CopyAtom, w: cute.Tensor,
    unit: cute.TiledMma, y: cute.Tensor, T: Int32
):
    # A block owns 128 of T, 128 of N (dot_map).
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    blocks, _, _ = cute.arch.grid_dim()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(thread // 128)
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    if warp == 0:
        cpasync.prefetch_descriptor(tma_a)
        cpasync.prefetch_descriptor(tma_b)
    memory = utils.SmemAllocator().allocate(matmul_leaf8_memory)
    ring = pipeline.PipelineTmaAsync.create(
        barrier_storage=memory.ring.data_ptr(),
        num_stages=5,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 16),
        tx_count=32768,
        cta_layout_vmnk=cute.make_layout((1, 2, 1, 1)),
    )
    layout_a, layout_b = matmul_leaf8_layouts()
    a_tiles = memory.a.get_tensor(layout_a.outer, swizzle=layout_a.inner)
    b_tiles = memory.b.get_tensor(layout_b.outer, swizzle=layout_b.inner)
    tiles = (T + 255) // 256
    items = tiles * 32
    item = block // 2
    cute.arch.griddepcontrol_wait()
    if group == 0:
        # Producer warp: acquire a stage, issue TMA loads that complete on its mbarrier.
        cute.arch.setmaxregister_decrease(24)
        if warp == 0:
            put = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 5)
            while item < items:
                row_tile, n_tile = matmul_leaf8_place(item, tiles)
                n_first = n_tile * 128
                t_first = (row_tile * 2 + rank) * 128
                for K_piece in cutlass.range(8, unroll=1):
                    k_piece_begin = K_piece * 512  # matmul.py:79
                    a_from = cute.local_tile(
                        cute.domain_offset((t_first, k_piece_begin), x), (128, 64), (0, None)
                    )
                    b_from = cute.local_tile(
                        cute.domain_offset((n_first, k_piece_begin), w), (128, 64), (0, None)
                    )
                    a_to, a_from = cpasync.tma_partition(
                        tma_a, 0, cute.make_layout(1), cute.group_modes(a_tiles, 0, 2), cute.group_modes(a_from, 0, 2)
                    )
                    b_to, b_from = cpasync.tma_partition(
                        tma_b, rank, cute.make_layout(2),
                        cute.group_modes(b_tiles, 0, 2), cute.group_modes(b_from, 0, 2),
                    )
                    for k in cutlass.range(8, unroll=1):
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
        cute.arch.setmaxregister_increase(240)
        mine = thread - 128
        share = unit.get_slice(cute.make_layout(2, stride=128)(group - 1))
        a = unit.make_fragment_A(share.partition_A(a_tiles))
        b = unit.make_fragment_B(share.partition_B(b_tiles))
        shape = unit.partition_shape_C((128, 128))
        parts = [cute.make_rmem_tensor(shape, Float32) for i in range(3)]
        # accumulator fragment: rows `row` and `row + 8`, columns 8 i + 2 (thread % 4) + {0, 1}
        acc = cute.make_tensor(
            parts[1].iterator, cute.make_layout((2, (2, 16)), stride=(2, (1, 4)))
        )
        row = mine // 32 * 16 + mine // 4 % 8
        quad = 2 * (mine % 4)
        # epilogue scratch of a warp: accumulator pairs to 16-byte vectors
        epilogue_tile = cute.recast_ptr(
            memory.spilled.data_ptr() + cute.assume((warp - 4) * 2048, divby=256), dtype=Int32
        )
        # the sum of the first half of the pieces is spilled to shared memory, four registers of a thread together
        fours = cute.make_layout((4, 16), stride=(1, 4))
        place = mine // 32 * 2048 + mine % 32 * 4
        spilled = cute.make_tensor(
            memory.spilled.data_ptr() + cute.assume(place, divby=4),
            cute.make_layout((4, 16), stride=(1, 128)),
        )
        registers = cute.make_tensor(parts[0].iterator, fours)
        spare = cute.make_tensor(parts[2].iterator, fours)
        get = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 5)
        free = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 5)
        fragment = parts[0]
        ring.consumer_wait(get)
        warpgroup.fence()
        unit.set(warpgroup.Field.ACCUMULATE, False)
        for i in cutlass.range_constexpr(4):
            cute.gemm(unit, fragment, a[None, None, i, get.index], b[None, None, i, get.index], fragment)
            unit.set(warpgroup.Field.ACCUMULATE, True)
        warpgroup.commit_group()
        get.advance()
        while item < items:
            row_tile, n_tile = matmul_leaf8_place(item, tiles)
            n_first = n_tile * 128
            t_first = (row_tile * 2 + rank) * 128
            t = [t_first + row + 8 * r for r in range(2)]
            t_inside = [t[r] < T for r in range(2)]
            # One accumulation chain for each piece; pairwise merges, the lower pieces on the left.
            for piece in cutlass.range_constexpr(8):
                slot, before, overlapped, spills = matmul_leaf8_merges(piece)
                fragment = parts[slot]
                if cutlass.const_expr(len(before) > 0):
                    # no accumulator is free
                    warpgroup.wait_group(0)
                    ring.consumer_release(free)
                    free.advance()
                    put_sums(parts, before)
                if cutlass.const_expr(piece > 0):
                    ring.consumer_wait(get)
                    warpgroup.fence()
                    unit.set(warpgroup.Field.ACCUMULATE, False)
                    for i in cutlass.range_constexpr(4):
                        cute.gemm(unit, fragment, a[None, None, i, get.index], b[None, None, i, get.index], fragment)
                        unit.set(warpgroup.Field.ACCUMULATE, True)
                    warpgroup.commit_group()
                    get.advance()
                if cutlass.const_expr(piece > 0 and len(before) == 0):
                    warpgroup.wait_group(1)
                    ring.consumer_release(free)
                    free.advance()
                # these overlap the products of the first step
                put_sums(parts, overlapped)
                if cutlass.const_expr(spills):
                    cute.arch.sync_warp()
                    cute.autovec_copy(registers, spilled)
                for k in cutlass.range(1, 8, unroll=1):
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
            put_sums(parts, [(2, 2, 0)])
            # the next tile's first products overlap the epilogue; after the last tile nobody reads them
            if item + blocks // 2 < items:
                ring.consumer_wait(get)
            fragment = parts[0]
            warpgroup.fence()
            unit.set(warpgroup.Field.ACCUMULATE, False)
            for i in cutlass.range_constexpr(4):
                cute.gemm(unit, fragment, a[None, None, i, get.index], b[None, None, i, get.index], fragment)
                unit.set(warpgroup.Field.ACCUMULATE, True)
            warpgroup.commit_group()
            get.advance()
            put_sums(parts, [(1, 1, 2)])
            cute.autovec_copy(spilled, spare)
            put_sums(parts, [(1, 2, 1)])
            n = n_first + quad
            for r in cutlass.range_constexpr(2):
                y_bf16 = []
                for part in cutlass.range_constexpr(2):
                    for c in cutlass.range_constexpr(16 * part, 16 * part + 16):
                        y_value = acc[r, c]
                        y_bf16.append(Float32(y_value).to(BFloat16))  # matmul.py:92
                    for c in cutlass.range_constexpr(16 * part, 16 * part + 16, 16):
                        vectors = to_vectors(epilogue_tile, y.element_type, y_bf16[c : c + 16])
                        for i in cutlass.range_constexpr(2):
                            store_vector_where(
                                t_inside[r], y, (t[r], (n + 8 * (c // 2) + 3 * quad + 32 * i)), vectors[i]
                            )
            item += blocks // 2
        warpgroup.wait_group(0)


@cute.jit
def launch_matmul_leaf8(
    x_ptr: cute.Pointer, w_ptr: cute.Pointer, y_ptr: cute.Pointer, T: Int32, x_t_stride: Int64, w_n_stride: Int64,
    y_t_stride: Int64, programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    x = cute.make_tensor(x_ptr, cute.make_layout((T, 4096), stride=(cute.assume(x_t_stride, divby=8), 1)))
    w = cute.make_tensor(w_ptr, cute.make_layout((4096, 4096), stride=(cute.assume(w_n_stride, divby=8), 1)))
    y = cute.make_tensor(y_ptr, cute.make_layout((T, 4096), stride=(y_t_stride, 1)))
    layout_a, layout_b = matmul_leaf8_layouts()
    tma_a, x = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), x,
        cute.slice_(layout_a, (None, None, 0)), (128, 64),
    )
    tma_b, w = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SMulticastOp(), w,
        cute.slice_(layout_b, (None, None, 0)), (128, 64), 2,
    )
    matmul_leaf8(
        tma_a, x, tma_b, w, matmul_leaf8_unit(), y, T
    ).launch(
        grid=(programs, 1, 1), block=(384, 1, 1), cluster=(2, 1, 1),
        min_blocks_per_mp=1, use_pdl=overlap, stream=stream,
    )


def call(kernels, x, w, y, T, x_t_stride, w_n_stride, y_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = min(2 * ((T + 255) // 256) * 32, 132)
    if programs > 0:
        kernels.matmul_leaf8((programs,), x, w, y, T, x_t_stride, w_n_stride, y_t_stride)
