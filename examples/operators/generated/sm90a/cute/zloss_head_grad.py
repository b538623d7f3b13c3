"""zloss_head_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: c8e9b2fc064a45f7
schedule: tiles T.within=128, V.within=256, 8 warps, 4 stages, unroll 1, depth 64, group 8, 132 programs, clusters of 2
schedule: tiles D=256, T.within=128, 8 warps, 4 stages, unroll 1, depth 64, group 8, 132 programs, clusters of 2
schedule: tiles D=256, T.within=128, 8 warps, 4 stages, unroll 1, depth 64, group 8, 132 programs, clusters of 2
schedule: tiles D=256, T.within=128, 8 warps, 4 stages, unroll 1, depth 64, group 8, 132 programs, clusters of 2
schedule: tiles D=256, T.within=128, 8 warps, 4 stages, unroll 1, depth 64, group 8, 132 programs, clusters of 2
schedule: tiles D=256, V.within=128, 8 warps, 4 stages, unroll 1, depth 64, group 8, 132 programs, clusters of 2
inputs:
  hidden: bf16 [T, D=4096]
  weight: bf16 [V=128256, D=4096]
  targets: i64 [T]
  lse: f32 [T]
  d_loss: f32 [T]
outputs:
  d_hidden: bf16 [T, D=4096]
  d_weight: bf16 [V=128256, D=4096]
scalars:
  z_weight: f32
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


def exp2(x):
    # ex2.approx.ftz.f32.
    return cute.math.exp2(x, fastmath=True)


def from_vectors(epilogue_tile, dtype, vectors):
    # Transpose 16-byte vectors to accumulator pairs of the four threads of a row.
    words = dtype.width // 16
    pairs, places = epilogue_offsets(words)
    made = []
    for first in range(0, len(vectors), 2):
        some = vectors[first : first + 2]
        cute.arch.sync_warp()
        for i in range(len(some)):
            vector = cute.make_rmem_tensor((8 // words,), dtype)
            for j in range(8 // words):
                vector[j] = some[i][j]
            to = cute.make_tensor(epilogue_tile + cute.assume(places ^ 16 * i, divby=4), (4,))
            cute.autovec_copy(cute.recast_tensor(vector, Int32), to)
        cute.arch.sync_warp()
        for i in range(4 * len(some) // words):
            pair = cute.make_rmem_tensor((2,), dtype)
            of = cute.make_tensor(epilogue_tile + cute.assume(pairs ^ 4 * words * i, divby=words), (words,))
            cute.autovec_copy(of, cute.recast_tensor(pair, Int32))
            made += [pair[0], pair[1]]
    return made


@cute.jit
def load_vector_where(condition, memory: cute.Tensor, index, other, count: cutlass.Constexpr):
    # Load a vector, or `other` where the condition is false.
    x = cute.make_rmem_tensor((count,), memory.element_type)
    x.fill(other)
    if condition:
        cute.autovec_copy(vector_of(memory, index, count), x)
    return [x[i] for i in range(count)]


@cute.jit
def load_where(condition, memory: cute.Tensor, index, other):
    # Load an element, or `other`.
    x = other
    if condition:
        x = type(other)(memory[index])
    return x


def mul(a, b):
    # One rounding, never part of a fused operation.
    return cute.math.mul(a, b, rounding=NEAREST)


def select(condition, a, b):
    # condition ? a : b, without a branch.
    return cutlass.select_(condition, a, b)


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
class zloss_head_grad_1_memory:
    """Shared memory: mbarriers of the pipeline, a tile of A and B for each stage, epilogue scratch of warps."""

    ring: cute.struct.MemRange[Int64, 8]
    a: cute.struct.Align[cute.struct.MemRange[BFloat16, 32768], 1024]
    b: cute.struct.Align[cute.struct.MemRange[BFloat16, 65536], 1024]
    epilogue_smem: cute.struct.Align[cute.struct.MemRange[Int32, 2048], 128]


def zloss_head_grad_1_layouts():
    # Smem layouts of A and B: 128-byte swizzle, stages outermost.
    tile = (128, 256, 64)
    a = sm90.make_smem_layout_a(ROW_MAJOR, tile, BFloat16, 4)
    return a, sm90.make_smem_layout_b(ROW_MAJOR, tile, BFloat16, 4)


def zloss_head_grad_1_unit():
    # wgmma of 64 rows for each consumer warpgroup.
    a, b = OperandMajorMode.K, OperandMajorMode.K
    return sm90.make_trivial_tiled_mma(
        BFloat16, BFloat16, a, b, Float32, (2, 1, 1), tiler_mn=(64, 256)
    )


@cute.jit
def zloss_head_grad_1_place(item, tiles):
    # Grouped tile order for L2 reuse: row tiles run fastest inside a group of 8.
    band = item // 504
    rest = item - band * 504
    first = band * 8
    height = cutlass.min(tiles - first, Int32(8))
    column = rest // height
    row_tile = first + rest - column * height
    v_within_tile = column
    return row_tile, v_within_tile


@cute.kernel
def zloss_head_grad_1(
    tma_a: cute.CopyAtom, hidden: cute.Tensor, tma_b: cute.CopyAtom, weight: cute.Tensor, unit: cute.TiledMma,
    targets: cute.Tensor, lse: cute.Tensor, d_loss: cute.Tensor, dz: cute.Tensor, T_length: Int32, T: Int32,
    z_weight: Float32, T_piece: Int32, V_piece: Int32
):
    # A block owns 128 of T.within, 256 of V.within (dot_map).
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    blocks, _, _ = cute.arch.grid_dim()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(thread // 128)
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    if warp == 0:
        cpasync.prefetch_descriptor(tma_a)
        cpasync.prefetch_descriptor(tma_b)
    memory = utils.SmemAllocator().allocate(zloss_head_grad_1_memory)
    ring = pipeline.PipelineTmaAsync.create(
        barrier_storage=memory.ring.data_ptr(),
        num_stages=4,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 16),
        tx_count=49152,
        cta_layout_vmnk=cute.make_layout((1, 2, 1, 1)),
    )
    layout_a, layout_b = zloss_head_grad_1_layouts()
    a_tiles = memory.a.get_tensor(layout_a.outer, swizzle=layout_a.inner)
    b_tiles = memory.b.get_tensor(layout_b.outer, swizzle=layout_b.inner)
    tiles = (T_length + 255) // 256
    items = tiles * 63
    item = block // 2
    cute.arch.griddepcontrol_wait()
    if group == 0:
        # Producer warp: acquire a stage, issue TMA loads that complete on its mbarrier.
        cute.arch.setmaxregister_decrease(40)
        if warp == 0:
            put = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 4)
            while item < items:
                row_tile, v_within_tile = zloss_head_grad_1_place(item, tiles)
                v_within_first = v_within_tile * 256
                t_within_first = (row_tile * 2 + rank) * 128
                t_piece_begin = T_piece * 8192
                v_piece_begin = V_piece * 16032
                a_from = cute.local_tile(
                    cute.domain_offset((t_piece_begin + t_within_first, 0), hidden), (128, 64), (0, None)
                )
                b_from = cute.local_tile(
                    cute.domain_offset((v_piece_begin + v_within_first, 0), weight), (256, 64), (0, None)
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
            row_tile, v_within_tile = zloss_head_grad_1_place(item, tiles)
            v_within_first = v_within_tile * 256
            t_within_first = (row_tile * 2 + rank) * 128
            t_piece_begin = T_piece * 8192
            t_within = [t_within_first + row + 8 * r for r in range(2)]
            t_within_inside = [t_within[r] < T_length for r in range(2)]
            t = [t_piece_begin + t_within[r] for r in range(2)]
            lse_value = [load_where(t_within_inside[r], lse, t[r], Float32(0)) for r in range(2)]  # zloss_head.py:38
            # zloss_head.py:40
            targets_value = [load_where(t_within_inside[r], targets, t[r], Int64(0)) for r in range(2)]
            # zloss_head.py:41
            d_loss_value = [load_where(t_within_inside[r], d_loss, t[r], Float32(0)) for r in range(2)]
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
            v_within = v_within_first + quad
            v_piece_begin = V_piece * 16032
            v = v_piece_begin + v_within
            z_weight_times_2 = mul(Float32(2.0), z_weight)  # zloss_head.py:39
            for r in cutlass.range_constexpr(2):
                v_within_left = select(t_within_inside[r], Int32(16032) - v_within, Int32(0))
                pull_product = mul(z_weight_times_2, lse_value[r])
                at = targets_value[r] - Int64(v)  # zloss_head.py:40
                pull_sum = Float32(1.0) + pull_product  # zloss_head.py:39
                dz_product_bf16 = []  # zloss_head.py:37
                for part in cutlass.range_constexpr(4):
                    for c in cutlass.range_constexpr(16 * part, 16 * part + 16):
                        z = acc[r, c]
                        z_minus_lse = z - lse_value[r]  # zloss_head.py:38
                        p_product = mul(z_minus_lse, Float32(1.4426950216293335))
                        p = exp2(p_product)
                        pull = mul(p, pull_sum)  # zloss_head.py:39
                        hit = select((at == 8 * (c // 2) + c % 2), Float32(1.0), Float32(0.0))  # zloss_head.py:40
                        pull_minus_hit = pull - hit  # zloss_head.py:41
                        dz_product = mul(d_loss_value[r], pull_minus_hit)
                        dz_product_bf16.append(Float32(dz_product).to(BFloat16))
                    for c in cutlass.range_constexpr(16 * part, 16 * part + 16, 16):
                        vectors = to_vectors(epilogue_tile, dz.element_type, dz_product_bf16[c : c + 16])
                        for i in cutlass.range_constexpr(2):
                            store_vector_where(
                                (v_within_left > 8 * (c // 2) + 3 * quad + 32 * i), dz,
                                (t_within[r], (v_within + 8 * (c // 2) + 3 * quad + 32 * i)), vectors[i]
                            )
            item += blocks // 2


@cute.jit
def launch_zloss_head_grad_1(
    hidden_ptr: cute.Pointer, weight_ptr: cute.Pointer, targets_ptr: cute.Pointer, lse_ptr: cute.Pointer,
    d_loss_ptr: cute.Pointer, dz_ptr: cute.Pointer, T_length: Int32, T: Int32, hidden_t_stride: Int64,
    weight_v_stride: Int64, dz_t_within_stride: Int64, z_weight: Float32, T_piece: Int32, V_piece: Int32,
    programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    hidden = cute.make_tensor(
        hidden_ptr, cute.make_layout((T, 4096), stride=(cute.assume(hidden_t_stride, divby=8), 1))
    )
    weight = cute.make_tensor(
        weight_ptr, cute.make_layout((128256, 4096), stride=(cute.assume(weight_v_stride, divby=8), 1))
    )
    targets = cute.make_tensor(targets_ptr, cute.make_layout((T,), stride=(1,)))
    lse = cute.make_tensor(lse_ptr, cute.make_layout((T,), stride=(1,)))
    d_loss = cute.make_tensor(d_loss_ptr, cute.make_layout((T,), stride=(1,)))
    dz = cute.make_tensor(dz_ptr, cute.make_layout((T_length, 16032), stride=(dz_t_within_stride, 1)))
    layout_a, layout_b = zloss_head_grad_1_layouts()
    tma_a, hidden = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), hidden,
        cute.slice_(layout_a, (None, None, 0)), (128, 64),
    )
    tma_b, weight = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SMulticastOp(), weight,
        cute.slice_(layout_b, (None, None, 0)), (256, 64), 2,
    )
    zloss_head_grad_1(
        tma_a, hidden, tma_b, weight, zloss_head_grad_1_unit(), targets, lse, d_loss, dz, T_length, T, z_weight,
        T_piece, V_piece
    ).launch(
        grid=(programs, 1, 1), block=(384, 1, 1), cluster=(2, 1, 1), min_blocks_per_mp=1, use_pdl=overlap,
        stream=stream,
    )


@cute.struct
class zloss_head_grad_2_0_memory:
    """Shared memory: mbarriers of the pipeline, a tile of A and B for each stage, epilogue scratch of warps."""

    ring: cute.struct.MemRange[Int64, 8]
    a: cute.struct.Align[cute.struct.MemRange[BFloat16, 32768], 1024]
    b: cute.struct.Align[cute.struct.MemRange[BFloat16, 65536], 1024]
    epilogue_smem: cute.struct.Align[cute.struct.MemRange[Int32, 2048], 128]


def zloss_head_grad_2_0_layouts():
    # Smem layouts of A and B: 128-byte swizzle, stages outermost.
    tile = (128, 256, 64)
    a = sm90.make_smem_layout_a(ROW_MAJOR, tile, BFloat16, 4)
    return a, sm90.make_smem_layout_b(COL_MAJOR, tile, BFloat16, 4)


def zloss_head_grad_2_0_unit():
    # wgmma of 64 rows for each consumer warpgroup.
    a, b = OperandMajorMode.K, OperandMajorMode.MN
    return sm90.make_trivial_tiled_mma(
        BFloat16, BFloat16, a, b, Float32, (2, 1, 1), tiler_mn=(64, 256)
    )


@cute.jit
def zloss_head_grad_2_0_place(item, tiles):
    # Grouped tile order for L2 reuse: row tiles run fastest inside a group of 8.
    band = item // 128
    rest = item - band * 128
    first = band * 8
    height = cutlass.min(tiles - first, Int32(8))
    column = rest // height
    row_tile = first + rest - column * height
    d_tile = column
    return row_tile, d_tile


@cute.kernel
def zloss_head_grad_2_0(
    tma_a: cute.CopyAtom, dz: cute.Tensor, tma_b: cute.CopyAtom, weight: cute.Tensor,
    unit: cute.TiledMma, merged_2_0: cute.Tensor, T_length: Int32, V_piece: Int32
):
    # A block owns 128 of T.within, 256 of D (dot_map).
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    blocks, _, _ = cute.arch.grid_dim()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(thread // 128)
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    if warp == 0:
        cpasync.prefetch_descriptor(tma_a)
        cpasync.prefetch_descriptor(tma_b)
    memory = utils.SmemAllocator().allocate(zloss_head_grad_2_0_memory)
    ring = pipeline.PipelineTmaAsync.create(
        barrier_storage=memory.ring.data_ptr(),
        num_stages=4,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 16),
        tx_count=49152,
        cta_layout_vmnk=cute.make_layout((1, 2, 1, 1)),
    )
    layout_a, layout_b = zloss_head_grad_2_0_layouts()
    a_tiles = memory.a.get_tensor(layout_a.outer, swizzle=layout_a.inner)
    b_tiles = memory.b.get_tensor(layout_b.outer, swizzle=layout_b.inner)
    tiles = (T_length + 255) // 256
    items = tiles * 16
    item = block // 2
    cute.arch.griddepcontrol_wait()
    if group == 0:
        # Producer warp: acquire a stage, issue TMA loads that complete on its mbarrier.
        cute.arch.setmaxregister_decrease(40)
        if warp == 0:
            put = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 4)
            while item < items:
                row_tile, d_tile = zloss_head_grad_2_0_place(item, tiles)
                d_first = d_tile * 256
                t_within_first = (row_tile * 2 + rank) * 128
                v_piece_begin = V_piece * 16032
                a_from = cute.local_tile(
                    cute.domain_offset((t_within_first, 0), dz), (128, 64), (0, None)
                )
                b_from = cute.local_tile(
                    cute.domain_offset((d_first, v_piece_begin), weight), (256, 64), (0, None)
                )
                a_to, a_from = cpasync.tma_partition(
                    tma_a, 0, cute.make_layout(1), cute.group_modes(a_tiles, 0, 2), cute.group_modes(a_from, 0, 2)
                )
                b_to, b_from = cpasync.tma_partition(
                    tma_b, rank, cute.make_layout(2),
                    cute.group_modes(b_tiles, 0, 2), cute.group_modes(b_from, 0, 2),
                )
                for k in cutlass.range(251, unroll=1):
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
            row_tile, d_tile = zloss_head_grad_2_0_place(item, tiles)
            d_first = d_tile * 256
            t_within_first = (row_tile * 2 + rank) * 128
            t_within = [t_within_first + row + 8 * r for r in range(2)]
            t_within_inside = [t_within[r] < T_length for r in range(2)]
            ring.consumer_wait(get)
            warpgroup.fence()
            unit.set(warpgroup.Field.ACCUMULATE, False)
            for i in cutlass.range_constexpr(4):
                cute.gemm(unit, fragment, a[None, None, i, get.index], b[None, None, i, get.index], fragment)
                unit.set(warpgroup.Field.ACCUMULATE, True)
            warpgroup.commit_group()
            get.advance()
            for k in cutlass.range(1, 251, unroll=1):
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
            d = d_first + quad
            for r in cutlass.range_constexpr(2):  # zloss_head.py:37
                d_hidden = []  # zloss_head.py:43
                for part in cutlass.range_constexpr(4):
                    for c in cutlass.range_constexpr(16 * part, 16 * part + 16):
                        d_hidden.append(acc[r, c])
                    for c in cutlass.range_constexpr(16 * part, 16 * part + 16, 8):
                        vectors = to_vectors(epilogue_tile, merged_2_0.element_type, d_hidden[c : c + 8])
                        for i in cutlass.range_constexpr(2):
                            store_vector_where(
                                t_within_inside[r], merged_2_0, (t_within[r], (d + 8 * (c // 2) + 1 * quad + 16 * i)),
                                vectors[i]
                            )
            item += blocks // 2


@cute.jit
def launch_zloss_head_grad_2_0(
    weight_ptr: cute.Pointer, dz_ptr: cute.Pointer, merged_2_0_ptr: cute.Pointer, T_length: Int32,
    weight_v_stride: Int64, dz_t_within_stride: Int64, merged_2_0_t_within_stride: Int64, V_piece: Int32,
    programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    weight = cute.make_tensor(
        weight_ptr, cute.make_layout((4096, 128256), stride=(1, cute.assume(weight_v_stride, divby=8)))
    )
    dz = cute.make_tensor(
        dz_ptr, cute.make_layout((T_length, 16032), stride=(cute.assume(dz_t_within_stride, divby=8), 1))
    )
    merged_2_0 = cute.make_tensor(
        merged_2_0_ptr, cute.make_layout((T_length, 4096), stride=(merged_2_0_t_within_stride, 1))
    )
    layout_a, layout_b = zloss_head_grad_2_0_layouts()
    tma_a, dz = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), dz,
        cute.slice_(layout_a, (None, None, 0)), (128, 64),
    )
    tma_b, weight = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SMulticastOp(), weight,
        cute.slice_(layout_b, (None, None, 0)), (256, 64), 2,
    )
    zloss_head_grad_2_0(
        tma_a, dz, tma_b, weight, zloss_head_grad_2_0_unit(), merged_2_0, T_length, V_piece
    ).launch(
        grid=(programs, 1, 1), block=(384, 1, 1), cluster=(2, 1, 1),
        min_blocks_per_mp=1, use_pdl=overlap, stream=stream,
    )


@cute.struct
class zloss_head_grad_2_1_memory:
    """Shared memory: mbarriers of the pipeline, a tile of A and B for each stage, epilogue scratch of warps."""

    ring: cute.struct.MemRange[Int64, 8]
    a: cute.struct.Align[cute.struct.MemRange[BFloat16, 32768], 1024]
    b: cute.struct.Align[cute.struct.MemRange[BFloat16, 65536], 1024]
    epilogue_smem: cute.struct.Align[cute.struct.MemRange[Int32, 2048], 128]


def zloss_head_grad_2_1_layouts():
    # Smem layouts of A and B: 128-byte swizzle, stages outermost.
    tile = (128, 256, 64)
    a = sm90.make_smem_layout_a(ROW_MAJOR, tile, BFloat16, 4)
    return a, sm90.make_smem_layout_b(COL_MAJOR, tile, BFloat16, 4)


def zloss_head_grad_2_1_unit():
    # wgmma of 64 rows for each consumer warpgroup.
    a, b = OperandMajorMode.K, OperandMajorMode.MN
    return sm90.make_trivial_tiled_mma(
        BFloat16, BFloat16, a, b, Float32, (2, 1, 1), tiler_mn=(64, 256)
    )


@cute.jit
def zloss_head_grad_2_1_place(item, tiles):
    # Grouped tile order for L2 reuse: row tiles run fastest inside a group of 8.
    band = item // 128
    rest = item - band * 128
    first = band * 8
    height = cutlass.min(tiles - first, Int32(8))
    column = rest // height
    row_tile = first + rest - column * height
    d_tile = column
    return row_tile, d_tile


@cute.kernel
def zloss_head_grad_2_1(
    tma_a: cute.CopyAtom, dz: cute.Tensor, tma_b: cute.CopyAtom, weight: cute.Tensor,
    unit: cute.TiledMma, merged_2_0: cute.Tensor, merged_2_1: cute.Tensor, T_length: Int32, V_piece: Int32
):
    # A block owns 128 of T.within, 256 of D (dot_map).
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    blocks, _, _ = cute.arch.grid_dim()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(thread // 128)
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    if warp == 0:
        cpasync.prefetch_descriptor(tma_a)
        cpasync.prefetch_descriptor(tma_b)
    memory = utils.SmemAllocator().allocate(zloss_head_grad_2_1_memory)
    ring = pipeline.PipelineTmaAsync.create(
        barrier_storage=memory.ring.data_ptr(),
        num_stages=4,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 16),
        tx_count=49152,
        cta_layout_vmnk=cute.make_layout((1, 2, 1, 1)),
    )
    layout_a, layout_b = zloss_head_grad_2_1_layouts()
    a_tiles = memory.a.get_tensor(layout_a.outer, swizzle=layout_a.inner)
    b_tiles = memory.b.get_tensor(layout_b.outer, swizzle=layout_b.inner)
    tiles = (T_length + 255) // 256
    items = tiles * 16
    item = block // 2
    cute.arch.griddepcontrol_wait()
    if group == 0:
        # Producer warp: acquire a stage, issue TMA loads that complete on its mbarrier.
        cute.arch.setmaxregister_decrease(40)
        if warp == 0:
            put = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 4)
            while item < items:
                row_tile, d_tile = zloss_head_grad_2_1_place(item, tiles)
                d_first = d_tile * 256
                t_within_first = (row_tile * 2 + rank) * 128
                v_piece_begin = V_piece * 16032
                a_from = cute.local_tile(
                    cute.domain_offset((t_within_first, 0), dz), (128, 64), (0, None)
                )
                b_from = cute.local_tile(
                    cute.domain_offset((d_first, v_piece_begin), weight), (256, 64), (0, None)
                )
                a_to, a_from = cpasync.tma_partition(
                    tma_a, 0, cute.make_layout(1), cute.group_modes(a_tiles, 0, 2), cute.group_modes(a_from, 0, 2)
                )
                b_to, b_from = cpasync.tma_partition(
                    tma_b, rank, cute.make_layout(2),
                    cute.group_modes(b_tiles, 0, 2), cute.group_modes(b_from, 0, 2),
                )
                for k in cutlass.range(251, unroll=1):
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
            row_tile, d_tile = zloss_head_grad_2_1_place(item, tiles)
            d_first = d_tile * 256
            t_within_first = (row_tile * 2 + rank) * 128
            t_within = [t_within_first + row + 8 * r for r in range(2)]
            t_within_inside = [t_within[r] < T_length for r in range(2)]
            ring.consumer_wait(get)
            warpgroup.fence()
            unit.set(warpgroup.Field.ACCUMULATE, False)
            for i in cutlass.range_constexpr(4):
                cute.gemm(unit, fragment, a[None, None, i, get.index], b[None, None, i, get.index], fragment)
                unit.set(warpgroup.Field.ACCUMULATE, True)
            warpgroup.commit_group()
            get.advance()
            for k in cutlass.range(1, 251, unroll=1):
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
            d = d_first + quad
            for r in cutlass.range_constexpr(2):  # zloss_head.py:37
                earlier_2 = []
                merged_2 = []  # zloss_head.py:43
                for part in cutlass.range_constexpr(2):
                    earlier_2_vectors = [
                        load_vector_where(
                            t_within_inside[r], merged_2_0, (t_within[r], (d + 8 * (c // 2) + 1 * quad + 16 * i)),
                            Float32(0), 4
                        )
                        for c in range(32 * part, 32 * part + 32, 8) for i in range(2)
                    ]
                    earlier_2 += from_vectors(epilogue_tile, Float32, earlier_2_vectors)
                    for c in cutlass.range_constexpr(32 * part, 32 * part + 32):
                        d_hidden = acc[r, c]
                        merged_2.append(earlier_2[c] + d_hidden)
                    for c in cutlass.range_constexpr(32 * part, 32 * part + 32, 8):
                        vectors = to_vectors(epilogue_tile, merged_2_1.element_type, merged_2[c : c + 8])
                        for i in cutlass.range_constexpr(2):
                            store_vector_where(
                                t_within_inside[r], merged_2_1, (t_within[r], (d + 8 * (c // 2) + 1 * quad + 16 * i)),
                                vectors[i]
                            )
            item += blocks // 2


@cute.jit
def launch_zloss_head_grad_2_1(
    weight_ptr: cute.Pointer, dz_ptr: cute.Pointer, merged_2_0_ptr: cute.Pointer, merged_2_1_ptr: cute.Pointer,
    T_length: Int32, weight_v_stride: Int64, dz_t_within_stride: Int64, merged_2_0_t_within_stride: Int64,
    merged_2_1_t_within_stride: Int64, V_piece: Int32, programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    weight = cute.make_tensor(
        weight_ptr, cute.make_layout((4096, 128256), stride=(1, cute.assume(weight_v_stride, divby=8)))
    )
    dz = cute.make_tensor(
        dz_ptr, cute.make_layout((T_length, 16032), stride=(cute.assume(dz_t_within_stride, divby=8), 1))
    )
    merged_2_0 = cute.make_tensor(
        merged_2_0_ptr, cute.make_layout((T_length, 4096), stride=(merged_2_0_t_within_stride, 1))
    )
    merged_2_1 = cute.make_tensor(
        merged_2_1_ptr, cute.make_layout((T_length, 4096), stride=(merged_2_1_t_within_stride, 1))
    )
    layout_a, layout_b = zloss_head_grad_2_1_layouts()
    tma_a, dz = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), dz,
        cute.slice_(layout_a, (None, None, 0)), (128, 64),
    )
    tma_b, weight = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SMulticastOp(), weight,
        cute.slice_(layout_b, (None, None, 0)), (256, 64), 2,
    )
    zloss_head_grad_2_1(
        tma_a, dz, tma_b, weight, zloss_head_grad_2_1_unit(), merged_2_0, merged_2_1, T_length, V_piece
    ).launch(
        grid=(programs, 1, 1), block=(384, 1, 1), cluster=(2, 1, 1),
        min_blocks_per_mp=1, use_pdl=overlap, stream=stream,
    )


@cute.struct
class zloss_head_grad_2_2_memory:
    """Shared memory: mbarriers of the pipeline, a tile of A and B for each stage, epilogue scratch of warps."""

    ring: cute.struct.MemRange[Int64, 8]
    a: cute.struct.Align[cute.struct.MemRange[BFloat16, 32768], 1024]
    b: cute.struct.Align[cute.struct.MemRange[BFloat16, 65536], 1024]
    epilogue_smem: cute.struct.Align[cute.struct.MemRange[Int32, 2048], 128]


def zloss_head_grad_2_2_layouts():
    # Smem layouts of A and B: 128-byte swizzle, stages outermost.
    tile = (128, 256, 64)
    a = sm90.make_smem_layout_a(ROW_MAJOR, tile, BFloat16, 4)
    return a, sm90.make_smem_layout_b(COL_MAJOR, tile, BFloat16, 4)


def zloss_head_grad_2_2_unit():
    # wgmma of 64 rows for each consumer warpgroup.
    a, b = OperandMajorMode.K, OperandMajorMode.MN
    return sm90.make_trivial_tiled_mma(
        BFloat16, BFloat16, a, b, Float32, (2, 1, 1), tiler_mn=(64, 256)
    )


@cute.jit
def zloss_head_grad_2_2_place(item, tiles):
    # Grouped tile order for L2 reuse: row tiles run fastest inside a group of 8.
    band = item // 128
    rest = item - band * 128
    first = band * 8
    height = cutlass.min(tiles - first, Int32(8))
    column = rest // height
    row_tile = first + rest - column * height
    d_tile = column
    return row_tile, d_tile


@cute.kernel
def zloss_head_grad_2_2(
    tma_a: cute.CopyAtom, dz: cute.Tensor, tma_b: cute.CopyAtom, weight: cute.Tensor, unit: cute.TiledMma,
    merged_2_0: cute.Tensor, merged_2_1: cute.Tensor, merged_2_2: cute.Tensor, T_length: Int32, V_piece: Int32
):
    # A block owns 128 of T.within, 256 of D (dot_map).
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    blocks, _, _ = cute.arch.grid_dim()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(thread // 128)
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    if warp == 0:
        cpasync.prefetch_descriptor(tma_a)
        cpasync.prefetch_descriptor(tma_b)
    memory = utils.SmemAllocator().allocate(zloss_head_grad_2_2_memory)
    ring = pipeline.PipelineTmaAsync.create(
        barrier_storage=memory.ring.data_ptr(),
        num_stages=4,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 16),
        tx_count=49152,
        cta_layout_vmnk=cute.make_layout((1, 2, 1, 1)),
    )
    layout_a, layout_b = zloss_head_grad_2_2_layouts()
    a_tiles = memory.a.get_tensor(layout_a.outer, swizzle=layout_a.inner)
    b_tiles = memory.b.get_tensor(layout_b.outer, swizzle=layout_b.inner)
    tiles = (T_length + 255) // 256
    items = tiles * 16
    item = block // 2
    cute.arch.griddepcontrol_wait()
    if group == 0:
        # Producer warp: acquire a stage, issue TMA loads that complete on its mbarrier.
        cute.arch.setmaxregister_decrease(40)
        if warp == 0:
            put = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 4)
            while item < items:
                row_tile, d_tile = zloss_head_grad_2_2_place(item, tiles)
                d_first = d_tile * 256
                t_within_first = (row_tile * 2 + rank) * 128
                v_piece_begin = V_piece * 16032
                a_from = cute.local_tile(
                    cute.domain_offset((t_within_first, 0), dz), (128, 64), (0, None)
                )
                b_from = cute.local_tile(
                    cute.domain_offset((d_first, v_piece_begin), weight), (256, 64), (0, None)
                )
                a_to, a_from = cpasync.tma_partition(
                    tma_a, 0, cute.make_layout(1), cute.group_modes(a_tiles, 0, 2), cute.group_modes(a_from, 0, 2)
                )
                b_to, b_from = cpasync.tma_partition(
                    tma_b, rank, cute.make_layout(2),
                    cute.group_modes(b_tiles, 0, 2), cute.group_modes(b_from, 0, 2),
                )
                for k in cutlass.range(251, unroll=1):
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
            row_tile, d_tile = zloss_head_grad_2_2_place(item, tiles)
            d_first = d_tile * 256
            t_within_first = (row_tile * 2 + rank) * 128
            t_within = [t_within_first + row + 8 * r for r in range(2)]
            t_within_inside = [t_within[r] < T_length for r in range(2)]
            ring.consumer_wait(get)
            warpgroup.fence()
            unit.set(warpgroup.Field.ACCUMULATE, False)
            for i in cutlass.range_constexpr(4):
                cute.gemm(unit, fragment, a[None, None, i, get.index], b[None, None, i, get.index], fragment)
                unit.set(warpgroup.Field.ACCUMULATE, True)
            warpgroup.commit_group()
            get.advance()
            for k in cutlass.range(1, 251, unroll=1):
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
            d = d_first + quad
            for r in cutlass.range_constexpr(2):  # zloss_head.py:37
                earlier_2 = []
                earlier_3 = []
                merged_2 = []  # zloss_head.py:43
                for part in cutlass.range_constexpr(4):
                    earlier_2_vectors = [
                        load_vector_where(
                            t_within_inside[r], merged_2_0, (t_within[r], (d + 8 * (c // 2) + 1 * quad + 16 * i)),
                            Float32(0), 4
                        )
                        for c in range(16 * part, 16 * part + 16, 8) for i in range(2)
                    ]
                    earlier_3_vectors = [
                        load_vector_where(
                            t_within_inside[r], merged_2_1, (t_within[r], (d + 8 * (c // 2) + 1 * quad + 16 * i)),
                            Float32(0), 4
                        )
                        for c in range(16 * part, 16 * part + 16, 8) for i in range(2)
                    ]
                    earlier_2 += from_vectors(epilogue_tile, Float32, earlier_2_vectors)
                    earlier_3 += from_vectors(epilogue_tile, Float32, earlier_3_vectors)
                    for c in cutlass.range_constexpr(16 * part, 16 * part + 16):
                        d_hidden = acc[r, c]
                        merged_3 = earlier_2[c] + d_hidden
                        merged_2.append(earlier_3[c] + merged_3)
                    for c in cutlass.range_constexpr(16 * part, 16 * part + 16, 8):
                        vectors = to_vectors(epilogue_tile, merged_2_2.element_type, merged_2[c : c + 8])
                        for i in cutlass.range_constexpr(2):
                            store_vector_where(
                                t_within_inside[r], merged_2_2, (t_within[r], (d + 8 * (c // 2) + 1 * quad + 16 * i)),
                                vectors[i]
                            )
            item += blocks // 2


@cute.jit
def launch_zloss_head_grad_2_2(
    weight_ptr: cute.Pointer, dz_ptr: cute.Pointer, merged_2_0_ptr: cute.Pointer, merged_2_1_ptr: cute.Pointer,
    merged_2_2_ptr: cute.Pointer, T_length: Int32, weight_v_stride: Int64, dz_t_within_stride: Int64,
    merged_2_0_t_within_stride: Int64, merged_2_1_t_within_stride: Int64, merged_2_2_t_within_stride: Int64,
    V_piece: Int32, programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    weight = cute.make_tensor(
        weight_ptr, cute.make_layout((4096, 128256), stride=(1, cute.assume(weight_v_stride, divby=8)))
    )
    dz = cute.make_tensor(
        dz_ptr, cute.make_layout((T_length, 16032), stride=(cute.assume(dz_t_within_stride, divby=8), 1))
    )
    merged_2_0 = cute.make_tensor(
        merged_2_0_ptr, cute.make_layout((T_length, 4096), stride=(merged_2_0_t_within_stride, 1))
    )
    merged_2_1 = cute.make_tensor(
        merged_2_1_ptr, cute.make_layout((T_length, 4096), stride=(merged_2_1_t_within_stride, 1))
    )
    merged_2_2 = cute.make_tensor(
        merged_2_2_ptr, cute.make_layout((T_length, 4096), stride=(merged_2_2_t_within_stride, 1))
    )
    layout_a, layout_b = zloss_head_grad_2_2_layouts()
    tma_a, dz = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), dz,
        cute.slice_(layout_a, (None, None, 0)), (128, 64),
    )
    tma_b, weight = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SMulticastOp(), weight,
        cute.slice_(layout_b, (None, None, 0)), (256, 64), 2,
    )
    zloss_head_grad_2_2(
        tma_a, dz, tma_b, weight, zloss_head_grad_2_2_unit(), merged_2_0, merged_2_1, merged_2_2, T_length, V_piece
    ).launch(
        grid=(programs, 1, 1), block=(384, 1, 1), cluster=(2, 1, 1),
        min_blocks_per_mp=1, use_pdl=overlap, stream=stream,
    )


@cute.struct
class zloss_head_grad_2_3_memory:
    """Shared memory: mbarriers of the pipeline, a tile of A and B for each stage, epilogue scratch of warps."""

    ring: cute.struct.MemRange[Int64, 8]
    a: cute.struct.Align[cute.struct.MemRange[BFloat16, 32768], 1024]
    b: cute.struct.Align[cute.struct.MemRange[BFloat16, 65536], 1024]
    epilogue_smem: cute.struct.Align[cute.struct.MemRange[Int32, 2048], 128]


def zloss_head_grad_2_3_layouts():
    # Smem layouts of A and B: 128-byte swizzle, stages outermost.
    tile = (128, 256, 64)
    a = sm90.make_smem_layout_a(ROW_MAJOR, tile, BFloat16, 4)
    return a, sm90.make_smem_layout_b(COL_MAJOR, tile, BFloat16, 4)


def zloss_head_grad_2_3_unit():
    # wgmma of 64 rows for each consumer warpgroup.
    a, b = OperandMajorMode.K, OperandMajorMode.MN
    return sm90.make_trivial_tiled_mma(
        BFloat16, BFloat16, a, b, Float32, (2, 1, 1), tiler_mn=(64, 256)
    )


@cute.jit
def zloss_head_grad_2_3_place(item, tiles):
    # Grouped tile order for L2 reuse: row tiles run fastest inside a group of 8.
    band = item // 128
    rest = item - band * 128
    first = band * 8
    height = cutlass.min(tiles - first, Int32(8))
    column = rest // height
    row_tile = first + rest - column * height
    d_tile = column
    return row_tile, d_tile


@cute.kernel
def zloss_head_grad_2_3(
    tma_a: cute.CopyAtom, dz: cute.Tensor, tma_b: cute.CopyAtom, weight: cute.Tensor, unit: cute.TiledMma,
    d_hidden: cute.Tensor, merged_2_0: cute.Tensor, merged_2_1: cute.Tensor, merged_2_2: cute.Tensor, T_length: Int32,
    T: Int32, T_piece: Int32, V_piece: Int32
):
    # A block owns 128 of T.within, 256 of D (dot_map).
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    blocks, _, _ = cute.arch.grid_dim()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(thread // 128)
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    if warp == 0:
        cpasync.prefetch_descriptor(tma_a)
        cpasync.prefetch_descriptor(tma_b)
    memory = utils.SmemAllocator().allocate(zloss_head_grad_2_3_memory)
    ring = pipeline.PipelineTmaAsync.create(
        barrier_storage=memory.ring.data_ptr(),
        num_stages=4,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 16),
        tx_count=49152,
        cta_layout_vmnk=cute.make_layout((1, 2, 1, 1)),
    )
    layout_a, layout_b = zloss_head_grad_2_3_layouts()
    a_tiles = memory.a.get_tensor(layout_a.outer, swizzle=layout_a.inner)
    b_tiles = memory.b.get_tensor(layout_b.outer, swizzle=layout_b.inner)
    tiles = (T_length + 255) // 256
    items = tiles * 16
    item = block // 2
    cute.arch.griddepcontrol_wait()
    if group == 0:
        # Producer warp: acquire a stage, issue TMA loads that complete on its mbarrier.
        cute.arch.setmaxregister_decrease(40)
        if warp == 0:
            put = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 4)
            while item < items:
                row_tile, d_tile = zloss_head_grad_2_3_place(item, tiles)
                d_first = d_tile * 256
                t_within_first = (row_tile * 2 + rank) * 128
                v_piece_begin = V_piece * 16032
                a_from = cute.local_tile(
                    cute.domain_offset((t_within_first, 0), dz), (128, 64), (0, None)
                )
                b_from = cute.local_tile(
                    cute.domain_offset((d_first, v_piece_begin), weight), (256, 64), (0, None)
                )
                a_to, a_from = cpasync.tma_partition(
                    tma_a, 0, cute.make_layout(1), cute.group_modes(a_tiles, 0, 2), cute.group_modes(a_from, 0, 2)
                )
                b_to, b_from = cpasync.tma_partition(
                    tma_b, rank, cute.make_layout(2),
                    cute.group_modes(b_tiles, 0, 2), cute.group_modes(b_from, 0, 2),
                )
                for k in cutlass.range(251, unroll=1):
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
            row_tile, d_tile = zloss_head_grad_2_3_place(item, tiles)
            d_first = d_tile * 256
            t_within_first = (row_tile * 2 + rank) * 128
            t_within = [t_within_first + row + 8 * r for r in range(2)]
            t_within_inside = [t_within[r] < T_length for r in range(2)]
            ring.consumer_wait(get)
            warpgroup.fence()
            unit.set(warpgroup.Field.ACCUMULATE, False)
            for i in cutlass.range_constexpr(4):
                cute.gemm(unit, fragment, a[None, None, i, get.index], b[None, None, i, get.index], fragment)
                unit.set(warpgroup.Field.ACCUMULATE, True)
            warpgroup.commit_group()
            get.advance()
            for k in cutlass.range(1, 251, unroll=1):
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
            d = d_first + quad
            t_piece_begin = T_piece * 8192
            for r in cutlass.range_constexpr(2):  # zloss_head.py:37
                earlier_2 = []
                earlier_3 = []
                earlier_4 = []
                t = t_piece_begin + t_within[r]
                merged_bf16 = []  # zloss_head.py:43
                for part in cutlass.range_constexpr(4):
                    earlier_2_vectors = [
                        load_vector_where(
                            t_within_inside[r], merged_2_0, (t_within[r], (d + 8 * (c // 2) + 1 * quad + 16 * i)),
                            Float32(0), 4
                        )
                        for c in range(16 * part, 16 * part + 16, 8) for i in range(2)
                    ]
                    earlier_3_vectors = [
                        load_vector_where(
                            t_within_inside[r], merged_2_1, (t_within[r], (d + 8 * (c // 2) + 1 * quad + 16 * i)),
                            Float32(0), 4
                        )
                        for c in range(16 * part, 16 * part + 16, 8) for i in range(2)
                    ]
                    earlier_4_vectors = [
                        load_vector_where(
                            t_within_inside[r], merged_2_2, (t_within[r], (d + 8 * (c // 2) + 1 * quad + 16 * i)),
                            Float32(0), 4
                        )
                        for c in range(16 * part, 16 * part + 16, 8) for i in range(2)
                    ]
                    earlier_2 += from_vectors(epilogue_tile, Float32, earlier_2_vectors)
                    earlier_3 += from_vectors(epilogue_tile, Float32, earlier_3_vectors)
                    earlier_4 += from_vectors(epilogue_tile, Float32, earlier_4_vectors)
                    for c in cutlass.range_constexpr(16 * part, 16 * part + 16):
                        d_hidden_value = acc[r, c]
                        merged_2 = earlier_2[c] + d_hidden_value
                        merged_3 = earlier_3[c] + merged_2
                        merged_4 = earlier_4[c] + merged_3
                        merged_bf16.append(Float32(merged_4).to(BFloat16))  # zloss_head.py:44
                    for c in cutlass.range_constexpr(16 * part, 16 * part + 16, 16):
                        vectors = to_vectors(epilogue_tile, d_hidden.element_type, merged_bf16[c : c + 16])
                        for i in cutlass.range_constexpr(2):
                            store_vector_where(
                                t_within_inside[r], d_hidden, (t, (d + 8 * (c // 2) + 3 * quad + 32 * i)), vectors[i]
                            )
            item += blocks // 2


@cute.jit
def launch_zloss_head_grad_2_3(
    weight_ptr: cute.Pointer, d_hidden_ptr: cute.Pointer, dz_ptr: cute.Pointer, merged_2_0_ptr: cute.Pointer,
    merged_2_1_ptr: cute.Pointer, merged_2_2_ptr: cute.Pointer, T_length: Int32, weight_v_stride: Int64, T: Int32,
    d_hidden_t_stride: Int64, dz_t_within_stride: Int64, merged_2_0_t_within_stride: Int64,
    merged_2_1_t_within_stride: Int64, merged_2_2_t_within_stride: Int64, T_piece: Int32, V_piece: Int32,
    programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    weight = cute.make_tensor(
        weight_ptr, cute.make_layout((4096, 128256), stride=(1, cute.assume(weight_v_stride, divby=8)))
    )
    d_hidden = cute.make_tensor(d_hidden_ptr, cute.make_layout((T, 4096), stride=(d_hidden_t_stride, 1)))
    dz = cute.make_tensor(
        dz_ptr, cute.make_layout((T_length, 16032), stride=(cute.assume(dz_t_within_stride, divby=8), 1))
    )
    merged_2_0 = cute.make_tensor(
        merged_2_0_ptr, cute.make_layout((T_length, 4096), stride=(merged_2_0_t_within_stride, 1))
    )
    merged_2_1 = cute.make_tensor(
        merged_2_1_ptr, cute.make_layout((T_length, 4096), stride=(merged_2_1_t_within_stride, 1))
    )
    merged_2_2 = cute.make_tensor(
        merged_2_2_ptr, cute.make_layout((T_length, 4096), stride=(merged_2_2_t_within_stride, 1))
    )
    layout_a, layout_b = zloss_head_grad_2_3_layouts()
    tma_a, dz = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), dz,
        cute.slice_(layout_a, (None, None, 0)), (128, 64),
    )
    tma_b, weight = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SMulticastOp(), weight,
        cute.slice_(layout_b, (None, None, 0)), (256, 64), 2,
    )
    zloss_head_grad_2_3(
        tma_a, dz, tma_b, weight, zloss_head_grad_2_3_unit(), d_hidden, merged_2_0, merged_2_1, merged_2_2, T_length, T,
        T_piece, V_piece
    ).launch(
        grid=(programs, 1, 1), block=(384, 1, 1), cluster=(2, 1, 1), min_blocks_per_mp=1, use_pdl=overlap,
        stream=stream,
    )


@cute.struct
class zloss_head_grad_3_memory:
    """Shared memory: mbarriers of the pipeline, a tile of A and B for each stage, epilogue scratch of warps."""

    ring: cute.struct.MemRange[Int64, 8]
    a: cute.struct.Align[cute.struct.MemRange[BFloat16, 32768], 1024]
    b: cute.struct.Align[cute.struct.MemRange[BFloat16, 65536], 1024]
    epilogue_smem: cute.struct.Align[cute.struct.MemRange[Int32, 2048], 128]


def zloss_head_grad_3_layouts():
    # Smem layouts of A and B: 128-byte swizzle, stages outermost.
    tile = (128, 256, 64)
    a = sm90.make_smem_layout_a(COL_MAJOR, tile, BFloat16, 4)
    return a, sm90.make_smem_layout_b(COL_MAJOR, tile, BFloat16, 4)


def zloss_head_grad_3_unit():
    # wgmma of 64 rows for each consumer warpgroup.
    a, b = OperandMajorMode.MN, OperandMajorMode.MN
    return sm90.make_trivial_tiled_mma(
        BFloat16, BFloat16, a, b, Float32, (2, 1, 1), tiler_mn=(64, 256)
    )


@cute.jit
def zloss_head_grad_3_place(item, tiles):
    # Grouped tile order for L2 reuse: row tiles run fastest inside a group of 8.
    band = item // 128
    rest = item - band * 128
    first = band * 8
    height = cutlass.min(tiles - first, Int32(8))
    column = rest // height
    row_tile = first + rest - column * height
    d_tile = column
    return row_tile, d_tile


@cute.kernel
def zloss_head_grad_3(
    tma_a: cute.CopyAtom, dz: cute.Tensor, tma_b: cute.CopyAtom, hidden: cute.Tensor,
    unit: cute.TiledMma, d_weight: cute.Tensor, T_length: Int32, T: Int32, T_piece: Int32, V_piece: Int32
):
    # A block owns 128 of V.within, 256 of D (dot_map).
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    blocks, _, _ = cute.arch.grid_dim()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(thread // 128)
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    if warp == 0:
        cpasync.prefetch_descriptor(tma_a)
        cpasync.prefetch_descriptor(tma_b)
    memory = utils.SmemAllocator().allocate(zloss_head_grad_3_memory)
    ring = pipeline.PipelineTmaAsync.create(
        barrier_storage=memory.ring.data_ptr(),
        num_stages=4,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 16),
        tx_count=49152,
        cta_layout_vmnk=cute.make_layout((1, 2, 1, 1)),
    )
    layout_a, layout_b = zloss_head_grad_3_layouts()
    a_tiles = memory.a.get_tensor(layout_a.outer, swizzle=layout_a.inner)
    b_tiles = memory.b.get_tensor(layout_b.outer, swizzle=layout_b.inner)
    tiles = (16032 + 255) // 256
    items = tiles * 16
    item = block // 2
    cute.arch.griddepcontrol_wait()
    if group == 0:
        # Producer warp: acquire a stage, issue TMA loads that complete on its mbarrier.
        cute.arch.setmaxregister_decrease(40)
        if warp == 0:
            put = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 4)
            while item < items:
                row_tile, d_tile = zloss_head_grad_3_place(item, tiles)
                d_first = d_tile * 256
                v_within_first = (row_tile * 2 + rank) * 128
                t_piece_begin = T_piece * 8192
                steps = (T_length + 63) // 64
                a_from = cute.local_tile(
                    cute.domain_offset((v_within_first, 0), dz), (128, 64), (0, None)
                )
                b_from = cute.local_tile(
                    cute.domain_offset((d_first, t_piece_begin), hidden), (256, 64), (0, None)
                )
                a_to, a_from = cpasync.tma_partition(
                    tma_a, 0, cute.make_layout(1), cute.group_modes(a_tiles, 0, 2), cute.group_modes(a_from, 0, 2)
                )
                b_to, b_from = cpasync.tma_partition(
                    tma_b, rank, cute.make_layout(2),
                    cute.group_modes(b_tiles, 0, 2), cute.group_modes(b_from, 0, 2),
                )
                for k in cutlass.range(steps, unroll=1):
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
            row_tile, d_tile = zloss_head_grad_3_place(item, tiles)
            d_first = d_tile * 256
            v_within_first = (row_tile * 2 + rank) * 128
            steps = (T_length + 63) // 64
            v_within = [v_within_first + row + 8 * r for r in range(2)]
            v_within_inside = [v_within[r] < 16032 for r in range(2)]
            fragment.fill(0.0)
            unit.set(warpgroup.Field.ACCUMULATE, True)
            for k in cutlass.range(steps, unroll=1):
                ring.consumer_wait(get)
                warpgroup.fence()
                for i in cutlass.range_constexpr(4):
                    cute.gemm(unit, fragment, a[None, None, i, get.index], b[None, None, i, get.index], fragment)
                warpgroup.commit_group()
                get.advance()
                if k > 0:
                    warpgroup.wait_group(1)
                    ring.consumer_release(free)
                    free.advance()
            warpgroup.wait_group(0)
            if steps > 0:
                ring.consumer_release(free)
                free.advance()
            d = d_first + quad
            v_piece_begin = V_piece * 16032
            for r in cutlass.range_constexpr(2):  # zloss_head.py:37
                v = v_piece_begin + v_within[r]
                d_weight_bf16 = []  # zloss_head.py:46
                for part in cutlass.range_constexpr(4):
                    for c in cutlass.range_constexpr(16 * part, 16 * part + 16):
                        d_weight_value = acc[r, c]
                        d_weight_bf16.append(Float32(d_weight_value).to(BFloat16))  # zloss_head.py:47
                    for c in cutlass.range_constexpr(16 * part, 16 * part + 16, 16):
                        vectors = to_vectors(epilogue_tile, d_weight.element_type, d_weight_bf16[c : c + 16])
                        for i in cutlass.range_constexpr(2):
                            store_vector_where(
                                v_within_inside[r], d_weight, (v, (d + 8 * (c // 2) + 3 * quad + 32 * i)), vectors[i]
                            )
            item += blocks // 2


@cute.jit
def launch_zloss_head_grad_3(
    hidden_ptr: cute.Pointer, d_weight_ptr: cute.Pointer, dz_ptr: cute.Pointer, T_length: Int32, T: Int32,
    hidden_t_stride: Int64, d_weight_v_stride: Int64, dz_t_within_stride: Int64, T_piece: Int32, V_piece: Int32,
    programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    hidden = cute.make_tensor(
        hidden_ptr, cute.make_layout((4096, T), stride=(1, cute.assume(hidden_t_stride, divby=8)))
    )
    d_weight = cute.make_tensor(d_weight_ptr, cute.make_layout((128256, 4096), stride=(d_weight_v_stride, 1)))
    dz = cute.make_tensor(
        dz_ptr, cute.make_layout((16032, T_length), stride=(1, cute.assume(dz_t_within_stride, divby=8)))
    )
    layout_a, layout_b = zloss_head_grad_3_layouts()
    tma_a, dz = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), dz,
        cute.slice_(layout_a, (None, None, 0)), (128, 64),
    )
    tma_b, hidden = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SMulticastOp(), hidden,
        cute.slice_(layout_b, (None, None, 0)), (256, 64), 2,
    )
    zloss_head_grad_3(
        tma_a, dz, tma_b, hidden, zloss_head_grad_3_unit(), d_weight, T_length, T, T_piece, V_piece
    ).launch(
        grid=(programs, 1, 1), block=(384, 1, 1), cluster=(2, 1, 1),
        min_blocks_per_mp=1, use_pdl=overlap, stream=stream,
    )


def call(
    kernels, hidden, weight, targets, lse, d_loss, dz, merged_2_0, merged_2_1, merged_2_2, d_hidden, d_weight, z_weight,
    T, hidden_t_stride, weight_v_stride, dz_t_within_stride, merged_2_0_t_within_stride, merged_2_1_t_within_stride,
    merged_2_2_t_within_stride, d_hidden_t_stride, d_weight_v_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    for T_piece in range((T + 8191) // 8192):
        T_length = min(8192, T - T_piece * 8192)
        for V_piece in range(8):
            programs = min(2 * ((T_length + 255) // 256) * 63, 132)
            if programs > 0:
                kernels.zloss_head_grad_1(
                    (programs,), hidden, weight, targets, lse, d_loss, dz, T_length, T, hidden_t_stride,
                    weight_v_stride, dz_t_within_stride, z_weight, T_piece, V_piece
                )
            if V_piece in (0, 2, 4, 6):
                programs = min(2 * ((T_length + 255) // 256) * 16, 132)
                if programs > 0:
                    kernels.zloss_head_grad_2_0(
                        (programs,), weight, dz, merged_2_0, T_length, weight_v_stride, dz_t_within_stride,
                        merged_2_0_t_within_stride, V_piece
                    )
            if V_piece in (1, 5):
                programs = min(2 * ((T_length + 255) // 256) * 16, 132)
                if programs > 0:
                    kernels.zloss_head_grad_2_1(
                        (programs,), weight, dz, merged_2_0, merged_2_1, T_length, weight_v_stride, dz_t_within_stride,
                        merged_2_0_t_within_stride, merged_2_1_t_within_stride, V_piece
                    )
            if V_piece == 3:
                programs = min(2 * ((T_length + 255) // 256) * 16, 132)
                if programs > 0:
                    kernels.zloss_head_grad_2_2(
                        (programs,), weight, dz, merged_2_0, merged_2_1, merged_2_2, T_length, weight_v_stride,
                        dz_t_within_stride, merged_2_0_t_within_stride, merged_2_1_t_within_stride,
                        merged_2_2_t_within_stride, V_piece
                    )
            if V_piece == 7:
                programs = min(2 * ((T_length + 255) // 256) * 16, 132)
                if programs > 0:
                    kernels.zloss_head_grad_2_3(
                        (programs,), weight, d_hidden, dz, merged_2_0, merged_2_1, merged_2_2, T_length,
                        weight_v_stride, T, d_hidden_t_stride, dz_t_within_stride, merged_2_0_t_within_stride,
                        merged_2_1_t_within_stride, merged_2_2_t_within_stride, T_piece, V_piece
                    )
            programs = min(2 * ((16032 + 255) // 256) * 16, 132)
            if programs > 0:
                kernels.zloss_head_grad_3(
                    (programs,), hidden, d_weight, dz, T_length, T, hidden_t_stride, d_weight_v_stride,
                    dz_t_within_stride, T_piece, V_piece
                )
