"""linear_logp_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 9cb7dad71a8559e6
schedule: tiles D=2048, 4 warps, 1 stages, unroll 1 placed D[9:3] D[2:0] D[10:10]
schedule: tiles T.within=128, V.within=256, 8 warps, 4 stages, unroll 1, depth 64, group 8, 132 programs, clusters of 2
schedule: tiles D=256, T.within=128, 8 warps, 4 stages, unroll 1, depth 64, group 8, 132 programs, clusters of 2
schedule: tiles D=256, T.within=128, 8 warps, 4 stages, unroll 1, depth 64, group 8, 132 programs, clusters of 2
schedule: tiles D=256, T.within=128, 8 warps, 4 stages, unroll 1, depth 64, group 8, 132 programs, clusters of 2
schedule: tiles D=256, T.within=128, 8 warps, 4 stages, unroll 1, depth 64, group 8, 132 programs, clusters of 2
schedule: tiles D=256, V.within=128, 8 warps, 4 stages, unroll 1, depth 64, group 8, 132 programs, clusters of 2
inputs:
  hidden: bf16 [T, D=4096]
  ids: i64 [T]
  order: i64 [T]
  weight: bf16 [V=128256, D=4096]
  lse: f32 [T]
  entropy: f32 [T]
  d_logp: f32 [T]
  d_lse: f32 [T]
  d_entropy: f32 [T]
outputs:
  d_hidden: bf16 [T, D=4096]
  d_weight: bf16 [V=128256, D=4096]
scalars:
  ignore_index: i64
  inv_temperature: f32
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


def load_vector(memory, index, count):
    # Load a vector.
    x = cute.make_rmem_tensor((count,), memory.element_type)
    cute.autovec_copy(vector_of(memory, index, count), x)
    return [x[i] for i in range(count)]


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


@cute.kernel
def linear_logp_grad_1_rows(
    hidden: cute.Tensor, ids: cute.Tensor, order: cute.Tensor, rows: cute.Tensor, T: Int32, T_length: Int32,
    ignore_index: Int64, T_piece: Int32
):
    # A block owns 1 of T.within, 2048 of D (rows). D: 2048 indices, 16 to each of 128 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
    rest = block // 2
    t_within = rest
    d = [block % 2 * 2048 + thread * 8 + c % 8 + c // 8 * 1024 for c in range(16)]
    t_piece_begin = T_piece * 8192
    t = t_piece_begin + t_within
    order_value = order[t]  # linear_logp.py:131
    ids_value = ids[order_value.to(Int32)]
    # linear_logp.py:138
    hidden_value = [one for c in range(0, 16, 8) for one in load_vector(hidden, (order_value.to(Int32), d[c]), 8)]
    active = ids_value != ignore_index  # logp.py:207
    _0_bf16 = Float32(0.0).to(BFloat16)  # linear_logp.py:138
    rows_value = [select(active, hidden_value[c], _0_bf16) for c in range(16)]
    for c in cutlass.range_constexpr(0, 16, 8):
        store_vector(rows, (t_within, d[c]), rows_value[c:c + 8])


@cute.jit
def launch_linear_logp_grad_1(
    hidden_ptr: cute.Pointer, ids_ptr: cute.Pointer, order_ptr: cute.Pointer, rows_ptr: cute.Pointer, T: Int32,
    hidden_t_stride: Int64, T_length: Int32, rows_t_within_stride: Int64, ignore_index: Int64, T_piece: Int32,
    programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    hidden = cute.make_tensor(hidden_ptr, cute.make_layout((T, 4096), stride=(hidden_t_stride, 1)))
    ids = cute.make_tensor(ids_ptr, cute.make_layout((T,), stride=(1,)))
    order = cute.make_tensor(order_ptr, cute.make_layout((T,), stride=(1,)))
    rows = cute.make_tensor(rows_ptr, cute.make_layout((T_length, 4096), stride=(rows_t_within_stride, 1)))
    linear_logp_grad_1_rows(hidden, ids, order, rows, T, T_length, ignore_index, T_piece).launch(
        grid=(programs, 1, 1), block=(128, 1, 1), use_pdl=overlap, stream=stream,
    )


@cute.struct
class linear_logp_grad_2_memory:
    """Shared memory: mbarriers of the pipeline, a tile of A and B for each stage, epilogue scratch of warps."""

    ring: cute.struct.MemRange[Int64, 8]
    a: cute.struct.Align[cute.struct.MemRange[BFloat16, 32768], 1024]
    b: cute.struct.Align[cute.struct.MemRange[BFloat16, 65536], 1024]
    epilogue_smem: cute.struct.Align[cute.struct.MemRange[Int32, 2048], 128]


def linear_logp_grad_2_layouts():
    # Smem layouts of A and B: 128-byte swizzle, stages outermost.
    tile = (128, 256, 64)
    a = sm90.make_smem_layout_a(ROW_MAJOR, tile, BFloat16, 4)
    return a, sm90.make_smem_layout_b(ROW_MAJOR, tile, BFloat16, 4)


def linear_logp_grad_2_unit():
    # wgmma of 64 rows for each consumer warpgroup.
    a, b = OperandMajorMode.K, OperandMajorMode.K
    return sm90.make_trivial_tiled_mma(
        BFloat16, BFloat16, a, b, Float32, (2, 1, 1), tiler_mn=(64, 256)
    )


@cute.jit
def linear_logp_grad_2_place(item, tiles):
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
def linear_logp_grad_2(
    tma_a: cute.CopyAtom, rows: cute.Tensor, tma_b: cute.CopyAtom, weight: cute.Tensor, unit: cute.TiledMma,
    ids: cute.Tensor, lse: cute.Tensor, entropy: cute.Tensor, order: cute.Tensor, d_logp: cute.Tensor,
    d_lse: cute.Tensor, d_entropy: cute.Tensor, dz: cute.Tensor, T_length: Int32, T: Int32, inv_temperature: Float32,
    ignore_index: Int64, T_piece: Int32, V_piece: Int32
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
    memory = utils.SmemAllocator().allocate(linear_logp_grad_2_memory)
    ring = pipeline.PipelineTmaAsync.create(
        barrier_storage=memory.ring.data_ptr(),
        num_stages=4,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 16),
        tx_count=49152,
        cta_layout_vmnk=cute.make_layout((1, 2, 1, 1)),
    )
    layout_a, layout_b = linear_logp_grad_2_layouts()
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
                row_tile, v_within_tile = linear_logp_grad_2_place(item, tiles)
                v_within_first = v_within_tile * 256
                t_within_first = (row_tile * 2 + rank) * 128
                v_piece_begin = V_piece * 16032
                a_from = cute.local_tile(
                    cute.domain_offset((t_within_first, 0), rows), (128, 64), (0, None)
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
            row_tile, v_within_tile = linear_logp_grad_2_place(item, tiles)
            v_within_first = v_within_tile * 256
            t_within_first = (row_tile * 2 + rank) * 128
            t_piece_begin = T_piece * 8192
            t_within = [t_within_first + row + 8 * r for r in range(2)]
            t_within_inside = [t_within[r] < T_length for r in range(2)]
            t = [t_piece_begin + t_within[r] for r in range(2)]
            # linear_logp.py:131
            order_value = [load_where(t_within_inside[r], order, t[r], Int64(0)) for r in range(2)]
            ids_value = [load_where(t_within_inside[r], ids, order_value[r].to(Int32), Int64(0)) for r in range(2)]
            lse_value = [load_where(t_within_inside[r], lse, order_value[r].to(Int32), Float32(0)) for r in range(2)]
            entropy_value = [
                load_where(t_within_inside[r], entropy, order_value[r].to(Int32), Float32(0)) for r in range(2)
            ]
            d_logp_value = [
                load_where(t_within_inside[r], d_logp, order_value[r].to(Int32), Float32(0)) for r in range(2)
            ]
            d_lse_value = [
                load_where(t_within_inside[r], d_lse, order_value[r].to(Int32), Float32(0)) for r in range(2)
            ]
            d_entropy_value = [
                load_where(t_within_inside[r], d_entropy, order_value[r].to(Int32), Float32(0)) for r in range(2)
            ]
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
            for r in cutlass.range_constexpr(2):
                v_within_left = select(t_within_inside[r], Int32(16032) - v_within, Int32(0))
                active = ids_value[r] != ignore_index  # logp.py:207
                d_lse_minus_d_logp = d_lse_value[r] - d_logp_value[r]  # logp.py:215
                ids_ge_0 = 0 <= ids_value[r]  # logp.py:200
                inside_below = ids_value[r] < 128256
                inside = ids_ge_0 & inside_below
                ids_masked = select(inside, ids_value[r], Int64(-1))  # logp.py:201
                ids_i32 = Int64(ids_masked).to(Int32)
                at = ids_i32 - v
                grad_bf16 = []  # linear_logp.py:140
                for part in cutlass.range_constexpr(4):
                    for c in cutlass.range_constexpr(16 * part, 16 * part + 16):
                        acc_2 = acc[r, c]
                        z = mul(acc_2, inv_temperature)  # logp.py:57
                        centred = z - lse_value[r]  # logp.py:193
                        centred_times_log2e = mul(centred, Float32(1.4426950216293335))  # logp.py:194
                        p = exp2(centred_times_log2e)
                        dz_value = mul(p, d_lse_minus_d_logp)  # logp.py:195
                        p_is_0 = p == Float32(0.0)  # logp.py:198
                        d_entropy_times_p = mul(d_entropy_value[r], p)
                        centred_plus_entropy = centred + entropy_value[r]
                        dz_product = mul(d_entropy_times_p, centred_plus_entropy)
                        dz_product_or_0 = select(p_is_0, Float32(0.0), dz_product)
                        dz_value_2 = dz_value - dz_product_or_0
                        # logp.py:201
                        d_logp_masked = select((at == 8 * (c // 2) + c % 2), d_logp_value[r], Float32(0.0))
                        dz_value_3 = dz_value_2 + d_logp_masked
                        dz_times_inv_temperature = mul(dz_value_3, inv_temperature)  # logp.py:63
                        grad = select(active, dz_times_inv_temperature, Float32(0.0))  # linear_logp.py:146
                        grad_bf16.append(Float32(grad).to(BFloat16))  # linear_logp.py:149
                    for c in cutlass.range_constexpr(16 * part, 16 * part + 16, 16):
                        vectors = to_vectors(epilogue_tile, dz.element_type, grad_bf16[c : c + 16])
                        for i in cutlass.range_constexpr(2):
                            store_vector_where(
                                (v_within_left > 8 * (c // 2) + 3 * quad + 32 * i), dz,
                                (t_within[r], (v_within + 8 * (c // 2) + 3 * quad + 32 * i)), vectors[i]
                            )
            item += blocks // 2


@cute.jit
def launch_linear_logp_grad_2(
    weight_ptr: cute.Pointer, ids_ptr: cute.Pointer, lse_ptr: cute.Pointer, entropy_ptr: cute.Pointer,
    order_ptr: cute.Pointer, d_logp_ptr: cute.Pointer, d_lse_ptr: cute.Pointer, d_entropy_ptr: cute.Pointer,
    rows_ptr: cute.Pointer, dz_ptr: cute.Pointer, T_length: Int32, weight_v_stride: Int64, T: Int32,
    rows_t_within_stride: Int64, dz_t_within_stride: Int64, inv_temperature: Float32, ignore_index: Int64,
    T_piece: Int32, V_piece: Int32, programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    weight = cute.make_tensor(
        weight_ptr, cute.make_layout((128256, 4096), stride=(cute.assume(weight_v_stride, divby=8), 1))
    )
    ids = cute.make_tensor(ids_ptr, cute.make_layout((T,), stride=(1,)))
    lse = cute.make_tensor(lse_ptr, cute.make_layout((T,), stride=(1,)))
    entropy = cute.make_tensor(entropy_ptr, cute.make_layout((T,), stride=(1,)))
    order = cute.make_tensor(order_ptr, cute.make_layout((T,), stride=(1,)))
    d_logp = cute.make_tensor(d_logp_ptr, cute.make_layout((T,), stride=(1,)))
    d_lse = cute.make_tensor(d_lse_ptr, cute.make_layout((T,), stride=(1,)))
    d_entropy = cute.make_tensor(d_entropy_ptr, cute.make_layout((T,), stride=(1,)))
    rows = cute.make_tensor(
        rows_ptr, cute.make_layout((T_length, 4096), stride=(cute.assume(rows_t_within_stride, divby=8), 1))
    )
    dz = cute.make_tensor(dz_ptr, cute.make_layout((T_length, 16032), stride=(dz_t_within_stride, 1)))
    layout_a, layout_b = linear_logp_grad_2_layouts()
    tma_a, rows = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), rows,
        cute.slice_(layout_a, (None, None, 0)), (128, 64),
    )
    tma_b, weight = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SMulticastOp(), weight,
        cute.slice_(layout_b, (None, None, 0)), (256, 64), 2,
    )
    linear_logp_grad_2(
        tma_a, rows, tma_b, weight, linear_logp_grad_2_unit(), ids, lse, entropy, order, d_logp, d_lse, d_entropy, dz,
        T_length, T, inv_temperature, ignore_index, T_piece, V_piece
    ).launch(
        grid=(programs, 1, 1), block=(384, 1, 1), cluster=(2, 1, 1), min_blocks_per_mp=1, use_pdl=overlap,
        stream=stream,
    )


@cute.struct
class linear_logp_grad_3_0_memory:
    """Shared memory: mbarriers of the pipeline, a tile of A and B for each stage, epilogue scratch of warps."""

    ring: cute.struct.MemRange[Int64, 8]
    a: cute.struct.Align[cute.struct.MemRange[BFloat16, 32768], 1024]
    b: cute.struct.Align[cute.struct.MemRange[BFloat16, 65536], 1024]
    epilogue_smem: cute.struct.Align[cute.struct.MemRange[Int32, 2048], 128]


def linear_logp_grad_3_0_layouts():
    # Smem layouts of A and B: 128-byte swizzle, stages outermost.
    tile = (128, 256, 64)
    a = sm90.make_smem_layout_a(ROW_MAJOR, tile, BFloat16, 4)
    return a, sm90.make_smem_layout_b(COL_MAJOR, tile, BFloat16, 4)


def linear_logp_grad_3_0_unit():
    # wgmma of 64 rows for each consumer warpgroup.
    a, b = OperandMajorMode.K, OperandMajorMode.MN
    return sm90.make_trivial_tiled_mma(
        BFloat16, BFloat16, a, b, Float32, (2, 1, 1), tiler_mn=(64, 256)
    )


@cute.jit
def linear_logp_grad_3_0_place(item, tiles):
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
def linear_logp_grad_3_0(
    tma_a: cute.CopyAtom, dz: cute.Tensor, tma_b: cute.CopyAtom, weight: cute.Tensor,
    unit: cute.TiledMma, merged_3_0: cute.Tensor, T_length: Int32, V_piece: Int32
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
    memory = utils.SmemAllocator().allocate(linear_logp_grad_3_0_memory)
    ring = pipeline.PipelineTmaAsync.create(
        barrier_storage=memory.ring.data_ptr(),
        num_stages=4,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 16),
        tx_count=49152,
        cta_layout_vmnk=cute.make_layout((1, 2, 1, 1)),
    )
    layout_a, layout_b = linear_logp_grad_3_0_layouts()
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
                row_tile, d_tile = linear_logp_grad_3_0_place(item, tiles)
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
            row_tile, d_tile = linear_logp_grad_3_0_place(item, tiles)
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
            for r in cutlass.range_constexpr(2):  # linear_logp.py:138
                d_hidden = []  # linear_logp.py:152
                for part in cutlass.range_constexpr(4):
                    for c in cutlass.range_constexpr(16 * part, 16 * part + 16):
                        d_hidden.append(acc[r, c])
                    for c in cutlass.range_constexpr(16 * part, 16 * part + 16, 8):
                        vectors = to_vectors(epilogue_tile, merged_3_0.element_type, d_hidden[c : c + 8])
                        for i in cutlass.range_constexpr(2):
                            store_vector_where(
                                t_within_inside[r], merged_3_0, (t_within[r], (d + 8 * (c // 2) + 1 * quad + 16 * i)),
                                vectors[i]
                            )
            item += blocks // 2


@cute.jit
def launch_linear_logp_grad_3_0(
    weight_ptr: cute.Pointer, dz_ptr: cute.Pointer, merged_3_0_ptr: cute.Pointer, T_length: Int32,
    weight_v_stride: Int64, dz_t_within_stride: Int64, merged_3_0_t_within_stride: Int64, V_piece: Int32,
    programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    weight = cute.make_tensor(
        weight_ptr, cute.make_layout((4096, 128256), stride=(1, cute.assume(weight_v_stride, divby=8)))
    )
    dz = cute.make_tensor(
        dz_ptr, cute.make_layout((T_length, 16032), stride=(cute.assume(dz_t_within_stride, divby=8), 1))
    )
    merged_3_0 = cute.make_tensor(
        merged_3_0_ptr, cute.make_layout((T_length, 4096), stride=(merged_3_0_t_within_stride, 1))
    )
    layout_a, layout_b = linear_logp_grad_3_0_layouts()
    tma_a, dz = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), dz,
        cute.slice_(layout_a, (None, None, 0)), (128, 64),
    )
    tma_b, weight = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SMulticastOp(), weight,
        cute.slice_(layout_b, (None, None, 0)), (256, 64), 2,
    )
    linear_logp_grad_3_0(
        tma_a, dz, tma_b, weight, linear_logp_grad_3_0_unit(), merged_3_0, T_length, V_piece
    ).launch(
        grid=(programs, 1, 1), block=(384, 1, 1), cluster=(2, 1, 1),
        min_blocks_per_mp=1, use_pdl=overlap, stream=stream,
    )


@cute.struct
class linear_logp_grad_3_1_memory:
    """Shared memory: mbarriers of the pipeline, a tile of A and B for each stage, epilogue scratch of warps."""

    ring: cute.struct.MemRange[Int64, 8]
    a: cute.struct.Align[cute.struct.MemRange[BFloat16, 32768], 1024]
    b: cute.struct.Align[cute.struct.MemRange[BFloat16, 65536], 1024]
    epilogue_smem: cute.struct.Align[cute.struct.MemRange[Int32, 2048], 128]


def linear_logp_grad_3_1_layouts():
    # Smem layouts of A and B: 128-byte swizzle, stages outermost.
    tile = (128, 256, 64)
    a = sm90.make_smem_layout_a(ROW_MAJOR, tile, BFloat16, 4)
    return a, sm90.make_smem_layout_b(COL_MAJOR, tile, BFloat16, 4)


def linear_logp_grad_3_1_unit():
    # wgmma of 64 rows for each consumer warpgroup.
    a, b = OperandMajorMode.K, OperandMajorMode.MN
    return sm90.make_trivial_tiled_mma(
        BFloat16, BFloat16, a, b, Float32, (2, 1, 1), tiler_mn=(64, 256)
    )


@cute.jit
def linear_logp_grad_3_1_place(item, tiles):
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
def linear_logp_grad_3_1(
    tma_a: cute.CopyAtom, dz: cute.Tensor, tma_b: cute.CopyAtom, weight: cute.Tensor,
    unit: cute.TiledMma, merged_3_0: cute.Tensor, merged_3_1: cute.Tensor, T_length: Int32, V_piece: Int32
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
    memory = utils.SmemAllocator().allocate(linear_logp_grad_3_1_memory)
    ring = pipeline.PipelineTmaAsync.create(
        barrier_storage=memory.ring.data_ptr(),
        num_stages=4,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 16),
        tx_count=49152,
        cta_layout_vmnk=cute.make_layout((1, 2, 1, 1)),
    )
    layout_a, layout_b = linear_logp_grad_3_1_layouts()
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
                row_tile, d_tile = linear_logp_grad_3_1_place(item, tiles)
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
            row_tile, d_tile = linear_logp_grad_3_1_place(item, tiles)
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
            for r in cutlass.range_constexpr(2):  # linear_logp.py:138
                earlier_2 = []
                merged_2 = []  # linear_logp.py:152
                for part in cutlass.range_constexpr(2):
                    earlier_2_vectors = [
                        load_vector_where(
                            t_within_inside[r], merged_3_0, (t_within[r], (d + 8 * (c // 2) + 1 * quad + 16 * i)),
                            Float32(0), 4
                        )
                        for c in range(32 * part, 32 * part + 32, 8) for i in range(2)
                    ]
                    earlier_2 += from_vectors(epilogue_tile, Float32, earlier_2_vectors)
                    for c in cutlass.range_constexpr(32 * part, 32 * part + 32):
                        d_hidden = acc[r, c]
                        merged_2.append(earlier_2[c] + d_hidden)
                    for c in cutlass.range_constexpr(32 * part, 32 * part + 32, 8):
                        vectors = to_vectors(epilogue_tile, merged_3_1.element_type, merged_2[c : c + 8])
                        for i in cutlass.range_constexpr(2):
                            store_vector_where(
                                t_within_inside[r], merged_3_1, (t_within[r], (d + 8 * (c // 2) + 1 * quad + 16 * i)),
                                vectors[i]
                            )
            item += blocks // 2


@cute.jit
def launch_linear_logp_grad_3_1(
    weight_ptr: cute.Pointer, dz_ptr: cute.Pointer, merged_3_0_ptr: cute.Pointer, merged_3_1_ptr: cute.Pointer,
    T_length: Int32, weight_v_stride: Int64, dz_t_within_stride: Int64, merged_3_0_t_within_stride: Int64,
    merged_3_1_t_within_stride: Int64, V_piece: Int32, programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    weight = cute.make_tensor(
        weight_ptr, cute.make_layout((4096, 128256), stride=(1, cute.assume(weight_v_stride, divby=8)))
    )
    dz = cute.make_tensor(
        dz_ptr, cute.make_layout((T_length, 16032), stride=(cute.assume(dz_t_within_stride, divby=8), 1))
    )
    merged_3_0 = cute.make_tensor(
        merged_3_0_ptr, cute.make_layout((T_length, 4096), stride=(merged_3_0_t_within_stride, 1))
    )
    merged_3_1 = cute.make_tensor(
        merged_3_1_ptr, cute.make_layout((T_length, 4096), stride=(merged_3_1_t_within_stride, 1))
    )
    layout_a, layout_b = linear_logp_grad_3_1_layouts()
    tma_a, dz = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), dz,
        cute.slice_(layout_a, (None, None, 0)), (128, 64),
    )
    tma_b, weight = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SMulticastOp(), weight,
        cute.slice_(layout_b, (None, None, 0)), (256, 64), 2,
    )
    linear_logp_grad_3_1(
        tma_a, dz, tma_b, weight, linear_logp_grad_3_1_unit(), merged_3_0, merged_3_1, T_length, V_piece
    ).launch(
        grid=(programs, 1, 1), block=(384, 1, 1), cluster=(2, 1, 1),
        min_blocks_per_mp=1, use_pdl=overlap, stream=stream,
    )


@cute.struct
class linear_logp_grad_3_2_memory:
    """Shared memory: mbarriers of the pipeline, a tile of A and B for each stage, epilogue scratch of warps."""

    ring: cute.struct.MemRange[Int64, 8]
    a: cute.struct.Align[cute.struct.MemRange[BFloat16, 32768], 1024]
    b: cute.struct.Align[cute.struct.MemRange[BFloat16, 65536], 1024]
    epilogue_smem: cute.struct.Align[cute.struct.MemRange[Int32, 2048], 128]


def linear_logp_grad_3_2_layouts():
    # Smem layouts of A and B: 128-byte swizzle, stages outermost.
    tile = (128, 256, 64)
    a = sm90.make_smem_layout_a(ROW_MAJOR, tile, BFloat16, 4)
    return a, sm90.make_smem_layout_b(COL_MAJOR, tile, BFloat16, 4)


def linear_logp_grad_3_2_unit():
    # wgmma of 64 rows for each consumer warpgroup.
    a, b = OperandMajorMode.K, OperandMajorMode.MN
    return sm90.make_trivial_tiled_mma(
        BFloat16, BFloat16, a, b, Float32, (2, 1, 1), tiler_mn=(64, 256)
    )


@cute.jit
def linear_logp_grad_3_2_place(item, tiles):
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
def linear_logp_grad_3_2(
    tma_a: cute.CopyAtom, dz: cute.Tensor, tma_b: cute.CopyAtom, weight: cute.Tensor, unit: cute.TiledMma,
    merged_3_0: cute.Tensor, merged_3_1: cute.Tensor, merged_3_2: cute.Tensor, T_length: Int32, V_piece: Int32
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
    memory = utils.SmemAllocator().allocate(linear_logp_grad_3_2_memory)
    ring = pipeline.PipelineTmaAsync.create(
        barrier_storage=memory.ring.data_ptr(),
        num_stages=4,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 16),
        tx_count=49152,
        cta_layout_vmnk=cute.make_layout((1, 2, 1, 1)),
    )
    layout_a, layout_b = linear_logp_grad_3_2_layouts()
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
                row_tile, d_tile = linear_logp_grad_3_2_place(item, tiles)
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
            row_tile, d_tile = linear_logp_grad_3_2_place(item, tiles)
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
            for r in cutlass.range_constexpr(2):  # linear_logp.py:138
                earlier_2 = []
                earlier_3 = []
                merged_2 = []  # linear_logp.py:152
                for part in cutlass.range_constexpr(4):
                    earlier_2_vectors = [
                        load_vector_where(
                            t_within_inside[r], merged_3_0, (t_within[r], (d + 8 * (c // 2) + 1 * quad + 16 * i)),
                            Float32(0), 4
                        )
                        for c in range(16 * part, 16 * part + 16, 8) for i in range(2)
                    ]
                    earlier_3_vectors = [
                        load_vector_where(
                            t_within_inside[r], merged_3_1, (t_within[r], (d + 8 * (c // 2) + 1 * quad + 16 * i)),
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
                        vectors = to_vectors(epilogue_tile, merged_3_2.element_type, merged_2[c : c + 8])
                        for i in cutlass.range_constexpr(2):
                            store_vector_where(
                                t_within_inside[r], merged_3_2, (t_within[r], (d + 8 * (c // 2) + 1 * quad + 16 * i)),
                                vectors[i]
                            )
            item += blocks // 2


@cute.jit
def launch_linear_logp_grad_3_2(
    weight_ptr: cute.Pointer, dz_ptr: cute.Pointer, merged_3_0_ptr: cute.Pointer, merged_3_1_ptr: cute.Pointer,
    merged_3_2_ptr: cute.Pointer, T_length: Int32, weight_v_stride: Int64, dz_t_within_stride: Int64,
    merged_3_0_t_within_stride: Int64, merged_3_1_t_within_stride: Int64, merged_3_2_t_within_stride: Int64,
    V_piece: Int32, programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    weight = cute.make_tensor(
        weight_ptr, cute.make_layout((4096, 128256), stride=(1, cute.assume(weight_v_stride, divby=8)))
    )
    dz = cute.make_tensor(
        dz_ptr, cute.make_layout((T_length, 16032), stride=(cute.assume(dz_t_within_stride, divby=8), 1))
    )
    merged_3_0 = cute.make_tensor(
        merged_3_0_ptr, cute.make_layout((T_length, 4096), stride=(merged_3_0_t_within_stride, 1))
    )
    merged_3_1 = cute.make_tensor(
        merged_3_1_ptr, cute.make_layout((T_length, 4096), stride=(merged_3_1_t_within_stride, 1))
    )
    merged_3_2 = cute.make_tensor(
        merged_3_2_ptr, cute.make_layout((T_length, 4096), stride=(merged_3_2_t_within_stride, 1))
    )
    layout_a, layout_b = linear_logp_grad_3_2_layouts()
    tma_a, dz = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), dz,
        cute.slice_(layout_a, (None, None, 0)), (128, 64),
    )
    tma_b, weight = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SMulticastOp(), weight,
        cute.slice_(layout_b, (None, None, 0)), (256, 64), 2,
    )
    linear_logp_grad_3_2(
        tma_a, dz, tma_b, weight, linear_logp_grad_3_2_unit(), merged_3_0, merged_3_1, merged_3_2, T_length, V_piece
    ).launch(
        grid=(programs, 1, 1), block=(384, 1, 1), cluster=(2, 1, 1),
        min_blocks_per_mp=1, use_pdl=overlap, stream=stream,
    )


@cute.struct
class linear_logp_grad_3_3_memory:
    """Shared memory: mbarriers of the pipeline, a tile of A and B for each stage, epilogue scratch of warps."""

    ring: cute.struct.MemRange[Int64, 8]
    a: cute.struct.Align[cute.struct.MemRange[BFloat16, 32768], 1024]
    b: cute.struct.Align[cute.struct.MemRange[BFloat16, 65536], 1024]
    epilogue_smem: cute.struct.Align[cute.struct.MemRange[Int32, 2048], 128]


def linear_logp_grad_3_3_layouts():
    # Smem layouts of A and B: 128-byte swizzle, stages outermost.
    tile = (128, 256, 64)
    a = sm90.make_smem_layout_a(ROW_MAJOR, tile, BFloat16, 4)
    return a, sm90.make_smem_layout_b(COL_MAJOR, tile, BFloat16, 4)


def linear_logp_grad_3_3_unit():
    # wgmma of 64 rows for each consumer warpgroup.
    a, b = OperandMajorMode.K, OperandMajorMode.MN
    return sm90.make_trivial_tiled_mma(
        BFloat16, BFloat16, a, b, Float32, (2, 1, 1), tiler_mn=(64, 256)
    )


@cute.jit
def linear_logp_grad_3_3_place(item, tiles):
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
def linear_logp_grad_3_3(
    tma_a: cute.CopyAtom, dz: cute.Tensor, tma_b: cute.CopyAtom, weight: cute.Tensor, unit: cute.TiledMma,
    order: cute.Tensor, d_hidden: cute.Tensor, merged_3_0: cute.Tensor, merged_3_1: cute.Tensor,
    merged_3_2: cute.Tensor, T_length: Int32, T: Int32, T_piece: Int32, V_piece: Int32
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
    memory = utils.SmemAllocator().allocate(linear_logp_grad_3_3_memory)
    ring = pipeline.PipelineTmaAsync.create(
        barrier_storage=memory.ring.data_ptr(),
        num_stages=4,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 16),
        tx_count=49152,
        cta_layout_vmnk=cute.make_layout((1, 2, 1, 1)),
    )
    layout_a, layout_b = linear_logp_grad_3_3_layouts()
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
                row_tile, d_tile = linear_logp_grad_3_3_place(item, tiles)
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
            row_tile, d_tile = linear_logp_grad_3_3_place(item, tiles)
            d_first = d_tile * 256
            t_within_first = (row_tile * 2 + rank) * 128
            t_piece_begin = T_piece * 8192
            t_within = [t_within_first + row + 8 * r for r in range(2)]
            t_within_inside = [t_within[r] < T_length for r in range(2)]
            t = [t_piece_begin + t_within[r] for r in range(2)]
            # linear_logp.py:131
            order_value = [load_where(t_within_inside[r], order, t[r], Int64(0)) for r in range(2)]
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
            for r in cutlass.range_constexpr(2):  # linear_logp.py:138
                earlier_2 = []
                earlier_3 = []
                earlier_4 = []
                merged_bf16 = []  # linear_logp.py:152
                for part in cutlass.range_constexpr(4):
                    earlier_2_vectors = [
                        load_vector_where(
                            t_within_inside[r], merged_3_0, (t_within[r], (d + 8 * (c // 2) + 1 * quad + 16 * i)),
                            Float32(0), 4
                        )
                        for c in range(16 * part, 16 * part + 16, 8) for i in range(2)
                    ]
                    earlier_3_vectors = [
                        load_vector_where(
                            t_within_inside[r], merged_3_1, (t_within[r], (d + 8 * (c // 2) + 1 * quad + 16 * i)),
                            Float32(0), 4
                        )
                        for c in range(16 * part, 16 * part + 16, 8) for i in range(2)
                    ]
                    earlier_4_vectors = [
                        load_vector_where(
                            t_within_inside[r], merged_3_2, (t_within[r], (d + 8 * (c // 2) + 1 * quad + 16 * i)),
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
                        merged_bf16.append(Float32(merged_4).to(BFloat16))  # linear_logp.py:119
                    for c in cutlass.range_constexpr(16 * part, 16 * part + 16, 16):
                        vectors = to_vectors(epilogue_tile, d_hidden.element_type, merged_bf16[c : c + 16])
                        for i in cutlass.range_constexpr(2):
                            store_vector_where(
                                t_within_inside[r], d_hidden,
                                (order_value[r].to(Int32), (d + 8 * (c // 2) + 3 * quad + 32 * i)), vectors[i]
                            )
            item += blocks // 2


@cute.jit
def launch_linear_logp_grad_3_3(
    weight_ptr: cute.Pointer, order_ptr: cute.Pointer, d_hidden_ptr: cute.Pointer, dz_ptr: cute.Pointer,
    merged_3_0_ptr: cute.Pointer, merged_3_1_ptr: cute.Pointer, merged_3_2_ptr: cute.Pointer, T_length: Int32,
    weight_v_stride: Int64, T: Int32, d_hidden_t_stride: Int64, dz_t_within_stride: Int64,
    merged_3_0_t_within_stride: Int64, merged_3_1_t_within_stride: Int64, merged_3_2_t_within_stride: Int64,
    T_piece: Int32, V_piece: Int32, programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    weight = cute.make_tensor(
        weight_ptr, cute.make_layout((4096, 128256), stride=(1, cute.assume(weight_v_stride, divby=8)))
    )
    order = cute.make_tensor(order_ptr, cute.make_layout((T,), stride=(1,)))
    d_hidden = cute.make_tensor(d_hidden_ptr, cute.make_layout((T, 4096), stride=(d_hidden_t_stride, 1)))
    dz = cute.make_tensor(
        dz_ptr, cute.make_layout((T_length, 16032), stride=(cute.assume(dz_t_within_stride, divby=8), 1))
    )
    merged_3_0 = cute.make_tensor(
        merged_3_0_ptr, cute.make_layout((T_length, 4096), stride=(merged_3_0_t_within_stride, 1))
    )
    merged_3_1 = cute.make_tensor(
        merged_3_1_ptr, cute.make_layout((T_length, 4096), stride=(merged_3_1_t_within_stride, 1))
    )
    merged_3_2 = cute.make_tensor(
        merged_3_2_ptr, cute.make_layout((T_length, 4096), stride=(merged_3_2_t_within_stride, 1))
    )
    layout_a, layout_b = linear_logp_grad_3_3_layouts()
    tma_a, dz = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), dz,
        cute.slice_(layout_a, (None, None, 0)), (128, 64),
    )
    tma_b, weight = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SMulticastOp(), weight,
        cute.slice_(layout_b, (None, None, 0)), (256, 64), 2,
    )
    linear_logp_grad_3_3(
        tma_a, dz, tma_b, weight, linear_logp_grad_3_3_unit(), order, d_hidden, merged_3_0, merged_3_1, merged_3_2,
        T_length, T, T_piece, V_piece
    ).launch(
        grid=(programs, 1, 1), block=(384, 1, 1), cluster=(2, 1, 1), min_blocks_per_mp=1, use_pdl=overlap,
        stream=stream,
    )


@cute.struct
class linear_logp_grad_4_memory:
    """Shared memory: mbarriers of the pipeline, a tile of A and B for each stage, epilogue scratch of warps."""

    ring: cute.struct.MemRange[Int64, 8]
    a: cute.struct.Align[cute.struct.MemRange[BFloat16, 32768], 1024]
    b: cute.struct.Align[cute.struct.MemRange[BFloat16, 65536], 1024]
    epilogue_smem: cute.struct.Align[cute.struct.MemRange[Int32, 2048], 128]


def linear_logp_grad_4_layouts():
    # Smem layouts of A and B: 128-byte swizzle, stages outermost.
    tile = (128, 256, 64)
    a = sm90.make_smem_layout_a(COL_MAJOR, tile, BFloat16, 4)
    return a, sm90.make_smem_layout_b(COL_MAJOR, tile, BFloat16, 4)


def linear_logp_grad_4_unit():
    # wgmma of 64 rows for each consumer warpgroup.
    a, b = OperandMajorMode.MN, OperandMajorMode.MN
    return sm90.make_trivial_tiled_mma(
        BFloat16, BFloat16, a, b, Float32, (2, 1, 1), tiler_mn=(64, 256)
    )


@cute.jit
def linear_logp_grad_4_place(item, tiles):
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
def linear_logp_grad_4(
    tma_a: cute.CopyAtom, dz: cute.Tensor, tma_b: cute.CopyAtom, rows: cute.Tensor,
    unit: cute.TiledMma, d_weight: cute.Tensor, T_length: Int32, V_piece: Int32
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
    memory = utils.SmemAllocator().allocate(linear_logp_grad_4_memory)
    ring = pipeline.PipelineTmaAsync.create(
        barrier_storage=memory.ring.data_ptr(),
        num_stages=4,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 16),
        tx_count=49152,
        cta_layout_vmnk=cute.make_layout((1, 2, 1, 1)),
    )
    layout_a, layout_b = linear_logp_grad_4_layouts()
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
                row_tile, d_tile = linear_logp_grad_4_place(item, tiles)
                d_first = d_tile * 256
                v_within_first = (row_tile * 2 + rank) * 128
                steps = (T_length + 63) // 64
                a_from = cute.local_tile(
                    cute.domain_offset((v_within_first, 0), dz), (128, 64), (0, None)
                )
                b_from = cute.local_tile(
                    cute.domain_offset((d_first, 0), rows), (256, 64), (0, None)
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
            row_tile, d_tile = linear_logp_grad_4_place(item, tiles)
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
            for r in cutlass.range_constexpr(2):  # linear_logp.py:138
                v = v_piece_begin + v_within[r]
                d_weight_bf16 = []  # linear_logp.py:154
                for part in cutlass.range_constexpr(4):
                    for c in cutlass.range_constexpr(16 * part, 16 * part + 16):
                        d_weight_value = acc[r, c]
                        d_weight_bf16.append(Float32(d_weight_value).to(BFloat16))  # linear_logp.py:121
                    for c in cutlass.range_constexpr(16 * part, 16 * part + 16, 16):
                        vectors = to_vectors(epilogue_tile, d_weight.element_type, d_weight_bf16[c : c + 16])
                        for i in cutlass.range_constexpr(2):
                            store_vector_where(
                                v_within_inside[r], d_weight, (v, (d + 8 * (c // 2) + 3 * quad + 32 * i)), vectors[i]
                            )
            item += blocks // 2


@cute.jit
def launch_linear_logp_grad_4(
    d_weight_ptr: cute.Pointer, rows_ptr: cute.Pointer, dz_ptr: cute.Pointer, T_length: Int32, d_weight_v_stride: Int64,
    rows_t_within_stride: Int64, dz_t_within_stride: Int64, V_piece: Int32, programs: Int32, overlap: Int32,
    stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    d_weight = cute.make_tensor(d_weight_ptr, cute.make_layout((128256, 4096), stride=(d_weight_v_stride, 1)))
    rows = cute.make_tensor(
        rows_ptr, cute.make_layout((4096, T_length), stride=(1, cute.assume(rows_t_within_stride, divby=8)))
    )
    dz = cute.make_tensor(
        dz_ptr, cute.make_layout((16032, T_length), stride=(1, cute.assume(dz_t_within_stride, divby=8)))
    )
    layout_a, layout_b = linear_logp_grad_4_layouts()
    tma_a, dz = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), dz,
        cute.slice_(layout_a, (None, None, 0)), (128, 64),
    )
    tma_b, rows = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SMulticastOp(), rows,
        cute.slice_(layout_b, (None, None, 0)), (256, 64), 2,
    )
    linear_logp_grad_4(
        tma_a, dz, tma_b, rows, linear_logp_grad_4_unit(), d_weight, T_length, V_piece
    ).launch(
        grid=(programs, 1, 1), block=(384, 1, 1), cluster=(2, 1, 1),
        min_blocks_per_mp=1, use_pdl=overlap, stream=stream,
    )


def call(
    kernels, hidden, ids, order, rows, weight, lse, entropy, d_logp, d_lse, d_entropy, dz, merged_3_0, merged_3_1,
    merged_3_2, d_hidden, d_weight, ignore_index, inv_temperature, T, hidden_t_stride, rows_t_within_stride,
    weight_v_stride, dz_t_within_stride, merged_3_0_t_within_stride, merged_3_1_t_within_stride,
    merged_3_2_t_within_stride, d_hidden_t_stride, d_weight_v_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    for T_piece in range((T + 8191) // 8192):
        T_length = min(8192, T - T_piece * 8192)
        programs = T_length * 2
        if programs > 0:
            kernels.linear_logp_grad_1(
                (programs,), hidden, ids, order, rows, T, hidden_t_stride, T_length, rows_t_within_stride, ignore_index,
                T_piece
            )
        for V_piece in range(8):
            programs = min(2 * ((T_length + 255) // 256) * 63, 132)
            if programs > 0:
                kernels.linear_logp_grad_2(
                    (programs,), weight, ids, lse, entropy, order, d_logp, d_lse, d_entropy, rows, dz, T_length,
                    weight_v_stride, T, rows_t_within_stride, dz_t_within_stride, inv_temperature, ignore_index,
                    T_piece, V_piece
                )
            if V_piece in (0, 2, 4, 6):
                programs = min(2 * ((T_length + 255) // 256) * 16, 132)
                if programs > 0:
                    kernels.linear_logp_grad_3_0(
                        (programs,), weight, dz, merged_3_0, T_length, weight_v_stride, dz_t_within_stride,
                        merged_3_0_t_within_stride, V_piece
                    )
            if V_piece in (1, 5):
                programs = min(2 * ((T_length + 255) // 256) * 16, 132)
                if programs > 0:
                    kernels.linear_logp_grad_3_1(
                        (programs,), weight, dz, merged_3_0, merged_3_1, T_length, weight_v_stride, dz_t_within_stride,
                        merged_3_0_t_within_stride, merged_3_1_t_within_stride, V_piece
                    )
            if V_piece == 3:
                programs = min(2 * ((T_length + 255) // 256) * 16, 132)
                if programs > 0:
                    kernels.linear_logp_grad_3_2(
                        (programs,), weight, dz, merged_3_0, merged_3_1, merged_3_2, T_length, weight_v_stride,
                        dz_t_within_stride, merged_3_0_t_within_stride, merged_3_1_t_within_stride,
                        merged_3_2_t_within_stride, V_piece
                    )
            if V_piece == 7:
                programs = min(2 * ((T_length + 255) // 256) * 16, 132)
                if programs > 0:
                    kernels.linear_logp_grad_3_3(
                        (programs,), weight, order, d_hidden, dz, merged_3_0, merged_3_1, merged_3_2, T_length,
                        weight_v_stride, T, d_hidden_t_stride, dz_t_within_stride, merged_3_0_t_within_stride,
                        merged_3_1_t_within_stride, merged_3_2_t_within_stride, T_piece, V_piece
                    )
            programs = min(2 * ((16032 + 255) // 256) * 16, 132)
            if programs > 0:
                kernels.linear_logp_grad_4(
                    (programs,), d_weight, rows, dz, T_length, d_weight_v_stride, rows_t_within_stride,
                    dz_t_within_stride, V_piece
                )
