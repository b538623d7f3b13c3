"""zloss_head on sm_90a, written by rlk 0.1.0: do not edit.

numerics: f94e51503483bc07
schedule: tiles T=128, 8 warps, 4 stages, unroll 1, depth 64, group 8, 132 programs, clusters of 2
schedule: tiles T=32, 8 warps, 1 stages, unroll 8 placed T[4:0] V.piece[2:0]
inputs:
  hidden: bf16 [T, D=4096]
  weight: bf16 [V=128256, D=4096]
  targets: i64 [T]
outputs:
  loss: f32 [T]
  lse: f32 [T]
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


def add(a, b):
    # a + b: the combine of sum reductions.
    return a + b


def exchanged(x, lanes, combine):
    # Combine with the elements of lane ^ lanes (butterfly).
    return [combine(a, cute.arch.shuffle_sync_bfly(a, offset=lanes)) for a in x]


def exp2(x):
    # ex2.approx.ftz.f32.
    return cute.math.exp2(x, fastmath=True)


def fma(a, b, c):
    # a * b + c with one rounding.
    return cute.math.fma(a, b, c, rounding=NEAREST)


def fmax(a, b):
    # max.f32: the other operand if one is NaN.
    return cute.arch.fmax(a, b)


def folded(x, stride, combine):
    # Combine elements i and i + stride of a list.
    return [combine(x[i], x[i + stride]) for i in range(len(x)) if not i & stride]


@cute.jit
def load_where(condition, memory: cute.Tensor, index, other):
    # Load an element, or `other`.
    x = other
    if condition:
        x = type(other)(memory[index])
    return x


def max_over_v_lane(x):
    # The max over V.lane, in any order.
    x = folded(x, 32, fmax)
    x = folded(x, 16, fmax)
    x = folded(x, 8, fmax)
    x = folded(x, 4, fmax)
    x = folded(x, 2, fmax)
    x = exchanged(x, 2, fmax)
    x = exchanged(x, 1, fmax)
    x = folded(x, 1, fmax)
    return x[0]


def merge_softmax_sum(m_a, l_a, m_b, l_b):
    # The state of two disjoint sets: softmax_sum().
    m = fmax(m_a, m_b)
    is_empty = m == Float32(float("-inf"))
    m_safe = select(is_empty, Float32(0.0), m)
    alpha_a_distance = m_a - m_safe
    alpha_a_exponent = mul(alpha_a_distance, Float32(1.4426950216293335))
    alpha_a = exp2(alpha_a_exponent)
    is_empty_2 = m == Float32(float("-inf"))
    m_safe_2 = select(is_empty_2, Float32(0.0), m)
    alpha_b_distance = m_b - m_safe_2
    alpha_b_exponent = mul(alpha_b_distance, Float32(1.4426950216293335))
    alpha_b = exp2(alpha_b_exponent)
    l_a_scaled = mul(l_a, alpha_a)
    l_b_scaled = mul(l_b, alpha_b)
    l = l_a_scaled + l_b_scaled
    return m, l


def merge_total(total_a, total_b):
    # The state of two disjoint sets: total().
    total = total_a + total_b
    return total,


def merged(states, stride, merge):
    # Merge states i and i + stride of a thread's lists.
    first = [i for i in range(len(states[0])) if not i & stride]
    each = [merge(*(x[i] for x in states), *(x[i + stride] for x in states)) for i in first]
    return tuple([state[k] for state in each] for k in range(len(states)))


def merged_across(states, reduce_buffers, strides, thread, merge):
    # Merge with the states of thread ^ stride, stride by stride, through shared memory.
    count = len(states[0])
    for x, reduce_smem in zip(states, reduce_buffers):
        for i in range(count):
            reduce_smem[i, thread] = x[i]
    cute.arch.sync_threads()
    far = [sum(a for k, a in enumerate(strides) if j >> k & 1) for j in range(1 << len(strides))]
    each = []
    for i in range(count):
        terms = [
            [x[i], *(reduce_smem[i, thread ^ f] for f in far[1:])]
            for x, reduce_smem in zip(states, reduce_buffers)
        ]
        for _ in strides:
            terms = merged(terms, 1, merge)
        each.append([x[0] for x in terms])
    return tuple([state[k] for state in each] for k in range(len(states)))


def mul(a, b):
    # One rounding, never part of a fused operation.
    return cute.math.mul(a, b, rounding=NEAREST)


def negative_zero():
    # -0.0. The DSL keeps constants by value, so Float32(-0.0) may become Float32(0.0), which came first.
    return Int32(-(2**31)).bitcast(Float32)


def portable_log(x):
    # Natural logarithm; log(+-0) = -inf, log(x < 0) = NaN.
    f0 = mul(x, Float32(8388608.0))
    f1 = select((x < Float32(1.1754943508222875e-38)), f0, x)
    i2 = Float32(f1).bitcast(Int32)
    i3 = i2 - Int32(1061158912)
    i4 = i3 >> Int32(23)
    i5 = i4 << Int32(23)
    i6 = i2 - i5
    f7 = Int32(i6).bitcast(Float32)
    f8 = f7 - Float32(1.0)
    f9 = Int32(i4).to(Float32)
    f10 = select((x < Float32(1.1754943508222875e-38)), Float32(-23.0), Float32(0.0))
    f11 = f9 + f10
    f12 = fma(Float32(-0.04513518512248993), f8, Float32(0.10471279174089432))
    f13 = fma(f12, f8, Float32(-0.13164202868938446))
    f14 = fma(f13, f8, Float32(0.1447800248861313))
    f15 = fma(f14, f8, Float32(-0.1664692461490631))
    f16 = fma(f15, f8, Float32(0.1999083161354065))
    f17 = fma(f16, f8, Float32(-0.25000107288360596))
    f18 = fma(f17, f8, Float32(0.3333345055580139))
    f19 = fma(f18, f8, Float32(-0.5))
    f20 = mul(f8, f8)
    f21 = fma(f19, f20, f8)
    f22 = fma(f11, Float32(0.6931471824645996), f21)
    f23 = select((x < Float32(float("inf"))), f22, x)
    f24 = select((x == Float32(0.0)), Float32(float("-inf")), f23)
    f25 = select((x < Float32(0.0)), Float32(float("nan")), f24)
    return f25


def select(condition, a, b):
    # condition ? a : b, without a branch.
    return cutlass.select_(condition, a, b)


def softmax_sum_over_v_piece(m, l, thread, reduce_buffers):
    # The states merged over V.piece, pairwise.
    m, l = merged_across((m, l,), reduce_buffers[0:2], (32, 64, 128), thread, merge_softmax_sum)
    return m[0], l[0]


@cute.jit
def store_where(condition, memory: cute.Tensor, index, x):
    # Store an element where the condition holds.
    if condition:
        memory[index] = x


def sum_over_v_lane(x):
    # The sum over V.lane, halving.
    x = folded(x, 32, add)
    x = folded(x, 16, add)
    x = folded(x, 8, add)
    x = folded(x, 4, add)
    x = folded(x, 2, add)
    x = exchanged(x, 2, add)
    x = exchanged(x, 1, add)
    x = folded(x, 1, add)
    return x[0]


def total_over_v_piece(total, thread, reduce_buffers):
    # The states merged over V.piece, pairwise.
    total, = merged_across((total,), reduce_buffers[0:1], (32, 64, 128), thread, merge_total)
    return total[0]


@cute.struct
class zloss_head_1_memory:
    """Shared memory: mbarriers of the pipeline, and a tile of A and B for each stage."""

    ring: cute.struct.MemRange[Int64, 8]
    a: cute.struct.Align[cute.struct.MemRange[BFloat16, 32768], 1024]
    b: cute.struct.Align[cute.struct.MemRange[BFloat16, 65536], 1024]


def zloss_head_1_layouts():
    # Smem layouts of A and B: 128-byte swizzle, stages outermost.
    tile = (128, 256, 64)
    a = sm90.make_smem_layout_a(ROW_MAJOR, tile, BFloat16, 4)
    return a, sm90.make_smem_layout_b(ROW_MAJOR, tile, BFloat16, 4)


def zloss_head_1_unit():
    # wgmma of 64 rows for each consumer warpgroup.
    a, b = OperandMajorMode.K, OperandMajorMode.K
    return sm90.make_trivial_tiled_mma(
        BFloat16, BFloat16, a, b, Float32, (2, 1, 1), tiler_mn=(64, 256)
    )


@cute.jit
def zloss_head_1_place(item, tiles):
    # Grouped tile order for L2 reuse: row tiles run fastest inside a group of 8.
    band = item // 4032
    rest = item - band * 4032
    first = band * 8
    height = cutlass.min(tiles - first, Int32(8))
    column = rest // height
    row_tile = first + rest - column * height
    v_piece_tile = column % 8
    v_step_tile = column // 8
    return row_tile, v_piece_tile, v_step_tile


@cute.kernel
def zloss_head_1(
    tma_a: cute.CopyAtom, hidden: cute.Tensor, tma_b: cute.CopyAtom, weight: cute.Tensor, unit: cute.TiledMma,
    targets: cute.Tensor, max_of_step: cute.Tensor, sum_of_step1: cute.Tensor, sum_of_step2: cute.Tensor, T: Int32
):
    # A block owns 128 of T, 1 of V.step, 1 of V.piece (stream_dot).
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    blocks, _, _ = cute.arch.grid_dim()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(thread // 128)
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    if warp == 0:
        cpasync.prefetch_descriptor(tma_a)
        cpasync.prefetch_descriptor(tma_b)
    memory = utils.SmemAllocator().allocate(zloss_head_1_memory)
    ring = pipeline.PipelineTmaAsync.create(
        barrier_storage=memory.ring.data_ptr(),
        num_stages=4,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 16),
        tx_count=49152,
        cta_layout_vmnk=cute.make_layout((1, 2, 1, 1)),
    )
    layout_a, layout_b = zloss_head_1_layouts()
    a_tiles = memory.a.get_tensor(layout_a.outer, swizzle=layout_a.inner)
    b_tiles = memory.b.get_tensor(layout_b.outer, swizzle=layout_b.inner)
    tiles = (T + 255) // 256
    items = tiles * 504
    item = block // 2
    cute.arch.griddepcontrol_wait()
    if group == 0:
        # Producer warp: acquire a stage, issue TMA loads that complete on its mbarrier.
        cute.arch.setmaxregister_decrease(40)
        if warp == 0:
            put = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 4)
            while item < items:
                row_tile, v_piece_tile, v_step_tile = zloss_head_1_place(item, tiles)
                v_step = v_step_tile
                v_piece = v_piece_tile
                t_first = (row_tile * 2 + rank) * 128
                piece_begin_product = v_piece * 16032  # zloss_head.py:26
                piece_begin = cutlass.min(128256, piece_begin_product)
                v_step_times_256 = v_step * 256
                v_begin = piece_begin + v_step_times_256
                a_from = cute.local_tile(
                    cute.domain_offset((t_first, 0), hidden), (128, 64), (0, None)
                )
                b_from = cute.local_tile(
                    cute.domain_offset((v_begin, 0), weight), (256, 64), (0, None)
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
        first_of_quad = quad == 0
        get = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 4)
        free = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 4)
        while item < items:
            row_tile, v_piece_tile, v_step_tile = zloss_head_1_place(item, tiles)
            v_step = v_step_tile
            v_piece = v_piece_tile
            t_first = (row_tile * 2 + rank) * 128
            t = [t_first + row + 8 * r for r in range(2)]
            t_inside = [t[r] < T for r in range(2)]
            targets_value = [load_where(t_inside[r], targets, t[r], Int64(0)) for r in range(2)]  # zloss_head.py:29
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
            piece_begin_product = v_piece * 16032  # zloss_head.py:26
            piece_begin = cutlass.min(128256, piece_begin_product)
            piece_end_sum = piece_begin + 16032
            piece_end = cutlass.min(128256, piece_end_sum)
            v_step_times_256 = v_step * 256
            v_begin = piece_begin + v_step_times_256
            v = v_begin + quad
            exists = [(v + 8 * (c // 2) + c % 2) < piece_end for c in range(64)]
            for r in cutlass.range_constexpr(2):
                at = targets_value[r] - Int64(v)  # zloss_head.py:29
                z_masked, z_masked_2 = [], []  # zloss_head.py:27
                for c in cutlass.range_constexpr(64):
                    z = acc[r, c]
                    z_masked_3 = select((at == 8 * (c // 2) + c % 2), z, Float32(0.0))  # zloss_head.py:29
                    z_masked.append(select(exists[c], z, Float32(float("-inf"))))  # zloss_head.py:28
                    z_masked_2.append(select(exists[c], z_masked_3, negative_zero()))  # zloss_head.py:29
                m_chunk = max_over_v_lane(z_masked)  # zloss_head.py:28
                sum_v_lane = sum_over_v_lane(z_masked_2)  # zloss_head.py:29
                is_empty = m_chunk == Float32(float("-inf"))  # zloss_head.py:28
                m_safe = select(is_empty, Float32(0.0), m_chunk)
                p = []
                for c in cutlass.range_constexpr(64):
                    p_distance = z_masked[c] - m_safe
                    p_exponent = mul(p_distance, Float32(1.4426950216293335))
                    p.append(exp2(p_exponent))
                l_chunk = sum_over_v_lane(p)
                # zloss_head.py:26
                store_where(t_inside[r] & first_of_quad, max_of_step, (v_step, v_piece, t[r]), m_chunk)
                store_where(t_inside[r] & first_of_quad, sum_of_step2, (v_step, v_piece, t[r]), sum_v_lane)
                store_where(t_inside[r] & first_of_quad, sum_of_step1, (v_step, v_piece, t[r]), l_chunk)
            item += blocks // 2


@cute.jit
def launch_zloss_head_1(
    hidden_ptr: cute.Pointer, weight_ptr: cute.Pointer, targets_ptr: cute.Pointer, max_of_step_ptr: cute.Pointer,
    sum_of_step1_ptr: cute.Pointer, sum_of_step2_ptr: cute.Pointer, T: Int32, hidden_t_stride: Int64,
    weight_v_stride: Int64, max_of_step_v_step_stride: Int64, max_of_step_v_piece_stride: Int64,
    sum_of_step1_v_step_stride: Int64, sum_of_step1_v_piece_stride: Int64, sum_of_step2_v_step_stride: Int64,
    sum_of_step2_v_piece_stride: Int64, programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    hidden = cute.make_tensor(
        hidden_ptr, cute.make_layout((T, 4096), stride=(cute.assume(hidden_t_stride, divby=8), 1))
    )
    weight = cute.make_tensor(
        weight_ptr, cute.make_layout((128256, 4096), stride=(cute.assume(weight_v_stride, divby=8), 1))
    )
    targets = cute.make_tensor(targets_ptr, cute.make_layout((T,), stride=(1,)))
    max_of_step = cute.make_tensor(
        max_of_step_ptr, cute.make_layout((63, 8, T), stride=(max_of_step_v_step_stride, max_of_step_v_piece_stride, 1))
    )
    sum_of_step1 = cute.make_tensor(
        sum_of_step1_ptr,
        cute.make_layout((63, 8, T), stride=(sum_of_step1_v_step_stride, sum_of_step1_v_piece_stride, 1))
    )
    sum_of_step2 = cute.make_tensor(
        sum_of_step2_ptr,
        cute.make_layout((63, 8, T), stride=(sum_of_step2_v_step_stride, sum_of_step2_v_piece_stride, 1))
    )
    layout_a, layout_b = zloss_head_1_layouts()
    tma_a, hidden = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), hidden,
        cute.slice_(layout_a, (None, None, 0)), (128, 64),
    )
    tma_b, weight = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SMulticastOp(), weight,
        cute.slice_(layout_b, (None, None, 0)), (256, 64), 2,
    )
    zloss_head_1(
        tma_a, hidden, tma_b, weight, zloss_head_1_unit(), targets, max_of_step, sum_of_step1, sum_of_step2, T
    ).launch(
        grid=(programs, 1, 1), block=(384, 1, 1), cluster=(2, 1, 1),
        min_blocks_per_mp=1, use_pdl=overlap, stream=stream,
    )


@cute.kernel
def zloss_head_2_rows(
    loss: cute.Tensor, lse: cute.Tensor, max_of_step: cute.Tensor, sum_of_step1: cute.Tensor, sum_of_step2: cute.Tensor,
    T: Int32, z_weight: Float32
):
    # A block owns 32 of T (merge). V.piece: 8 indices, 1 to each of 8 threads; T: 32 indices, 1 to each of 32 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    shared = utils.SmemAllocator()
    reduce_smem_1 = shared.allocate_tensor(Float32, cute.make_layout((1, 256), stride=(256, 1)), 16)
    reduce_smem_2 = shared.allocate_tensor(Float32, cute.make_layout((1, 256), stride=(256, 1)), 16)
    reduce_smem_3 = shared.allocate_tensor(Float32, cute.make_layout((1, 256), stride=(256, 1)), 16)
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
    t = block * 32 + thread % 32
    t_inside = t < T
    writes = (thread & 224) == 0
    v_piece = thread // 32  # zloss_head.py:26
    m = Float32(float("-inf"))
    l = negative_zero()
    total = negative_zero()
    for v_step_step in cutlass.range(0, 63, unroll=8):
        max_of_step_value = load_where(t_inside, max_of_step, (v_step_step, v_piece, t), Float32(0))
        sum_of_step1_value = load_where(t_inside, sum_of_step1, (v_step_step, v_piece, t), Float32(0))
        sum_of_step2_value = load_where(t_inside, sum_of_step2, (v_step_step, v_piece, t), Float32(0))
        m_2 = fmax(m, max_of_step_value)  # zloss_head.py:28
        is_empty = m_2 == Float32(float("-inf"))
        m_safe = select(is_empty, Float32(0.0), m_2)
        alpha_a_distance = m - m_safe
        alpha_a_exponent = mul(alpha_a_distance, Float32(1.4426950216293335))
        alpha_a = exp2(alpha_a_exponent)
        alpha_b_distance = max_of_step_value - m_safe
        alpha_b_exponent = mul(alpha_b_distance, Float32(1.4426950216293335))
        alpha_b = exp2(alpha_b_exponent)
        l_a_scaled = mul(l, alpha_a)
        l_b_scaled = mul(sum_of_step1_value, alpha_b)
        l_2 = l_a_scaled + l_b_scaled
        total_2 = total + sum_of_step2_value  # zloss_head.py:29
        m, l, total = m_2, l_2, total_2
    m_2, l_2 = softmax_sum_over_v_piece([m], [l], thread, (reduce_smem_1, reduce_smem_2,))  # zloss_head.py:28
    total_2 = total_over_v_piece([total], thread, (reduce_smem_3,))  # zloss_head.py:29
    log_l = portable_log(l_2)  # zloss_head.py:30
    lse_value = m_2 + log_l
    lse_minus_hit = lse_value - total_2  # zloss_head.py:31
    lse_times_lse = mul(lse_value, lse_value)
    loss_product = mul(z_weight, lse_times_lse)
    loss_value = lse_minus_hit + loss_product
    store_where(t_inside & writes, loss, t, loss_value)
    store_where(t_inside & writes, lse, t, lse_value)


@cute.jit
def launch_zloss_head_2(
    loss_ptr: cute.Pointer, lse_ptr: cute.Pointer, max_of_step_ptr: cute.Pointer, sum_of_step1_ptr: cute.Pointer,
    sum_of_step2_ptr: cute.Pointer, T: Int32, max_of_step_v_step_stride: Int64, max_of_step_v_piece_stride: Int64,
    sum_of_step1_v_step_stride: Int64, sum_of_step1_v_piece_stride: Int64, sum_of_step2_v_step_stride: Int64,
    sum_of_step2_v_piece_stride: Int64, z_weight: Float32, programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    loss = cute.make_tensor(loss_ptr, cute.make_layout((T,), stride=(1,)))
    lse = cute.make_tensor(lse_ptr, cute.make_layout((T,), stride=(1,)))
    max_of_step = cute.make_tensor(
        max_of_step_ptr, cute.make_layout((63, 8, T), stride=(max_of_step_v_step_stride, max_of_step_v_piece_stride, 1))
    )
    sum_of_step1 = cute.make_tensor(
        sum_of_step1_ptr,
        cute.make_layout((63, 8, T), stride=(sum_of_step1_v_step_stride, sum_of_step1_v_piece_stride, 1))
    )
    sum_of_step2 = cute.make_tensor(
        sum_of_step2_ptr,
        cute.make_layout((63, 8, T), stride=(sum_of_step2_v_step_stride, sum_of_step2_v_piece_stride, 1))
    )
    zloss_head_2_rows(loss, lse, max_of_step, sum_of_step1, sum_of_step2, T, z_weight).launch(
        grid=(programs, 1, 1), block=(256, 1, 1), use_pdl=overlap, stream=stream,
    )


def call(
    kernels, hidden, weight, targets, max_of_step, sum_of_step1, sum_of_step2, loss, lse, z_weight, T, hidden_t_stride,
    weight_v_stride, max_of_step_v_step_stride, max_of_step_v_piece_stride, sum_of_step1_v_step_stride,
    sum_of_step1_v_piece_stride, sum_of_step2_v_step_stride, sum_of_step2_v_piece_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = min(2 * ((T + 255) // 256) * 504, 132)
    if programs > 0:
        kernels.zloss_head_1(
            (programs,), hidden, weight, targets, max_of_step, sum_of_step1, sum_of_step2, T, hidden_t_stride,
            weight_v_stride, max_of_step_v_step_stride, max_of_step_v_piece_stride, sum_of_step1_v_step_stride,
            sum_of_step1_v_piece_stride, sum_of_step2_v_step_stride, sum_of_step2_v_piece_stride
        )
    programs = ((T + 31) // 32)
    if programs > 0:
        kernels.zloss_head_2(
            (programs,), loss, lse, max_of_step, sum_of_step1, sum_of_step2, T, max_of_step_v_step_stride,
            max_of_step_v_piece_stride, sum_of_step1_v_step_stride, sum_of_step1_v_piece_stride,
            sum_of_step2_v_step_stride, sum_of_step2_v_piece_stride, z_weight
        )
