"""varlen_attention_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 56c4815123ee58b1
schedule: tiles G=4, T=4, 4 warps, 1 stages, unroll 1 placed W[5:3] G[1:0] T[1:0] W[2:0] W[6:6]
schedule: tiles Q*G=128, 8 consumer warps, 4 producer warps, 4 stages
schedule: tiles J=128, 8 consumer warps, 4 producer warps, 4 stages
inputs:
  o: bf16 [T, H=8, G=4, W=128]
  lse: f32 [H=8, G=4, T]
  d_o: bf16 [T, H=8, G=4, W=128]
  d_lse: f32 [H=8, G=4, T]
  q: bf16 [T, H=8, G=4, E=128]
  k: bf16 [S, H=8, E=128]
  v: bf16 [S, H=8, W=128]
  begin_q: i32 [B]
  end_q: i32 [B]
  begin_k: i32 [B]
  end_k: i32 [B]
outputs:
  d_q: bf16 [T, H=8, G=4, E=128]
  d_k: bf16 [S, H=8, E=128]
  d_v: bf16 [S, H=8, W=128]
scalars:
  scale: f32
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


@cute.jit
def acquire_from(first, thread, ring, state):
    # producer_acquire by the threads from `first` on, which fill the stage.
    if thread >= first:
        ring.producer_acquire(state)


def add(a, b):
    # a + b: the combine of sum reductions.
    return a + b


def by_rows(fragment, blocks):
    # View an accumulator as [row, column]: two rows, and columns 8 i + 2 (thread % 4) + {0, 1}.
    return cute.make_tensor(fragment.iterator, cute.make_layout((2, (2, blocks)), stride=(2, (1, 4))))


@cute.jit
def clear_vector_where(condition, tiles: cute.Tensor, place, count: cutlass.Constexpr):
    # Zero 16 bytes of shared memory where the condition holds.
    zeros = cute.make_rmem_tensor((count,), tiles.element_type)
    zeros.fill(0)
    at = cute.assume(cute.crd2idx(place, tiles.layout), divby=count)
    if condition:
        cute.autovec_copy(zeros, cute.make_tensor(tiles.iterator + at, (count,)))


@cute.jit
def commit_from(first, thread, ring, state):
    # producer_commit by the threads from `first` on.
    if thread >= first:
        ring.producer_commit(state)


@cute.jit
def copy_statistic_where(mine, condition, memory: cute.Tensor, index, statistics: cute.Tensor, place):
    # cp.async of 4 bytes to shared memory if `mine`, zero where the condition is false.
    chosen = cute.make_rmem_tensor((1,), Boolean)
    chosen[0] = condition
    if mine:
        atom = cute.make_copy_atom(cpasync.CopyG2SOp(), memory.element_type, num_bits_per_copy=32)
        to = cute.make_tensor(statistics.iterator + cute.crd2idx(place, statistics.layout), (1,))
        cute.copy(atom, vector_of(memory, index, 1), to, pred=chosen)


def copy_vector_where(
    condition, memory: cute.Tensor, index, tiles: cute.Tensor, place, count: cutlass.Constexpr
):
    # cp.async of 16 bytes to shared memory, zeros where the condition is false.
    way = cpasync.CopyG2SOp(cache_mode=cpasync.LoadCacheMode.GLOBAL)
    atom = cute.make_copy_atom(way, memory.element_type, num_bits_per_copy=128)
    at = cute.assume(cute.crd2idx(place, tiles.layout), divby=count)
    chosen = cute.make_rmem_tensor((1,), Boolean)
    chosen[0] = condition
    every = cute.make_tensor(chosen.iterator, cute.make_layout((count,), stride=(0,)))
    to = cute.make_tensor(tiles.iterator + at, (count,))
    cute.copy(atom, vector_of(memory, index, count), to, pred=every)


def epilogue_offsets(words):
    # Swizzled offsets of a thread's pairs and vectors in 8 rows of 128 bytes of shared memory.
    lane = cute.arch.lane_idx()
    row, quad = lane // 4 * 36, lane % 4
    pairs = row + quad if words == 1 else (row ^ quad // 2 * 4) + quad % 2 * 2
    return pairs, row ^ quad * 4


def exchanged(x, lanes, combine):
    # Combine with the elements of lane ^ lanes (butterfly).
    return [combine(a, cute.arch.shuffle_sync_bfly(a, offset=lanes)) for a in x]


def exp2(x):
    # ex2.approx.ftz.f32.
    return cute.math.exp2(x, fastmath=True)


def fma(a, b, c):
    # a * b + c with one rounding.
    return cute.math.fma(a, b, c, rounding=NEAREST)


def folded(x, stride, combine):
    # Combine elements i and i + stride of a list.
    return [combine(x[i], x[i + stride]) for i in range(len(x)) if not i & stride]


def halved(x, lanes, thread, combine):
    # Combine with lane ^ lanes by recursive halving: each keeps one half of the list.
    upper, half = thread & lanes != 0, len(x) // 2
    own = [select(upper, x[i + half], x[i]) for i in range(half)]
    given = [select(upper, x[i], x[i + half]) for i in range(half)]
    return [combine(a, cute.arch.shuffle_sync_bfly(b, offset=lanes)) for a, b in zip(own, given)]


def imax(a, b):
    # The maximum of integers.
    return cutlass.max(a, b)


def imin(a, b):
    # The minimum of integers.
    return cutlass.min(a, b)


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


def multiply(unit, to, a, b, onto, count):
    # Issue a wgmma group of `count` instructions, accumulating if `onto`.
    atom = cute.make_mma_atom(unit.op)
    atom.set(warpgroup.Field.ACCUMULATE, onto)
    warpgroup.fence()
    for i in range(count):
        cute.gemm(atom, to, a[None, None, i], b[None, None, i], to)
        atom.set(warpgroup.Field.ACCUMULATE, True)
    warpgroup.commit_group()


def of_rows(x, pick):
    # Minimum or maximum over the lists of a warp's lanes.
    while len(x) > 1:
        x = [*(pick(a, b) for a, b in zip(x[::2], x[1::2])), *x[len(x) // 2 * 2 :]]
    for lanes in (16, 8, 4, 2, 1):
        x = exchanged(x, lanes, pick)
    return cute.arch.make_warp_uniform(x[0])


@cute.jit
def segment_of(begin: cute.Tensor, tile, count, lane, each: cutlass.Constexpr, size: cutlass.Constexpr):
    # Segment of a tile: segment i starts at tile begin[i] * each // size + i.
    early = Int32(0)
    for first in cutlass.range(0, count, 32, unroll=4):
        i = first + lane
        at = load_where(i < count, begin, i, begin.element_type(0)).to(Int32) * each // size + i
        early += select((i < count) & (at <= tile), Int32(1), Int32(0))
    for lanes in (16, 8, 4, 2, 1):
        early += cute.arch.shuffle_sync_bfly(early, offset=lanes)
    return cute.arch.make_warp_uniform(cutlass.max(early - 1, Int32(0)))


def select(condition, a, b):
    # condition ? a : b, without a branch.
    return cutlass.select_(condition, a, b)


def statistics_of(statistics, first, stage, count):
    # A thread's column values of a stage: two of every 8 columns, from `first` on.
    made = []
    for i in range(count // 2):
        pair = cute.make_rmem_tensor((2,), statistics.element_type)
        at = cute.assume(cute.crd2idx((first + 8 * i, stage), statistics.layout), divby=2)
        cute.autovec_copy(cute.make_tensor(statistics.iterator + at, (2,)), pair)
        made += [pair[0], pair[1]]
    return made


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


@cute.jit
def store_where(condition, memory: cute.Tensor, index, x):
    # Store an element where the condition holds.
    if condition:
        memory[index] = x


def sum_over_w(x, thread):
    # The sum over W, halving.
    x = folded(x, 8, add)
    x = halved(x, 4, thread, add)
    x = halved(x, 2, thread, add)
    x = halved(x, 1, thread, add)
    x = exchanged(x, 4, add)
    x = exchanged(x, 2, add)
    x = exchanged(x, 1, add)
    return x[0]


@cute.jit
def tma_load(
    ring, state, atom: cute.CopyAtom, memory: cute.Tensor, first, shape: cutlass.Constexpr, tiles: cute.Tensor
):
    # Issue a TMA load to a stage once it is free (warp 0); zeros out of the tensor's bounds.
    if cute.arch.make_warp_uniform(cute.arch.warp_idx()) == 0:
        ring.producer_acquire(state)
        source = cute.local_tile(cute.domain_offset(first, memory), shape, (0, 0))
        to, source = cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(tiles, 0, 2), cute.group_modes(source, 0, 2)
        )
        full = ring.producer_get_barrier(state)
        cute.copy(atom, source, to[None, state.index], tma_bar_ptr=full)


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
def varlen_attention_grad_1_rows(
    o: cute.Tensor, lse: cute.Tensor, d_o: cute.Tensor, d_lse: cute.Tensor, shift: cute.Tensor, delta: cute.Tensor,
    T: Int32
):
    # A block owns 4 of T, 1 of H, 4 of G (rows). W: 128 indices, 16 to each of 8 threads; T: 4 indices, 1 to each of 4
    # threads; G: 4 indices, 1 to each of 4 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
    rest = block // 8
    t = rest * 4 + thread // 32
    t_inside = t < T
    h = block % 8
    g = block % 1 * 4 + thread // 8 % 4
    writes = (thread & 7) == 0
    lse_value = load_where(t_inside, lse, (h, g, t), Float32(0))  # attention.py:97
    w = [thread % 8 * 8 + c % 8 + c // 8 * 64 for c in range(16)]  # attention.py:99
    d_o_value = [
        one for c in range(0, 16, 8) for one in load_vector_where(t_inside, d_o, (t, h, g, w[c]), BFloat16(0), 8)
    ]
    o_value = [one for c in range(0, 16, 8) for one in load_vector_where(t_inside, o, (t, h, g, w[c]), BFloat16(0), 8)]
    d_lse_value = load_where(t_inside, d_lse, (h, g, t), Float32(0))  # attention.py:100
    lse_times_log2e = mul(lse_value, Float32(1.4426950216293335))  # attention.py:97
    shift_neg = -lse_times_log2e
    store_where(t_inside & writes, shift, (t, h, g), shift_neg)
    d_o_f32 = [BFloat16(d_o_value[c]).to(Float32) for c in range(16)]  # attention.py:99
    o_f32 = [BFloat16(o_value[c]).to(Float32) for c in range(16)]
    row_product = [mul(d_o_f32[c], o_f32[c]) for c in range(16)]
    row = sum_over_w(row_product, thread)
    delta_value = row - d_lse_value  # attention.py:100
    store_where(t_inside & writes, delta, (t, h, g), delta_value)


@cute.jit
def launch_varlen_attention_grad_1(
    o_ptr: cute.Pointer, lse_ptr: cute.Pointer, d_o_ptr: cute.Pointer, d_lse_ptr: cute.Pointer, shift_ptr: cute.Pointer,
    delta_ptr: cute.Pointer, T: Int32, o_t_stride: Int64, o_h_stride: Int64, o_g_stride: Int64, lse_h_stride: Int64,
    lse_g_stride: Int64, d_o_t_stride: Int64, d_o_h_stride: Int64, d_o_g_stride: Int64, d_lse_h_stride: Int64,
    d_lse_g_stride: Int64, shift_t_stride: Int64, shift_h_stride: Int64, delta_t_stride: Int64, delta_h_stride: Int64,
    programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    o = cute.make_tensor(o_ptr, cute.make_layout((T, 8, 4, 128), stride=(o_t_stride, o_h_stride, o_g_stride, 1)))
    lse = cute.make_tensor(lse_ptr, cute.make_layout((8, 4, T), stride=(lse_h_stride, lse_g_stride, 1)))
    d_o = cute.make_tensor(
        d_o_ptr, cute.make_layout((T, 8, 4, 128), stride=(d_o_t_stride, d_o_h_stride, d_o_g_stride, 1))
    )
    d_lse = cute.make_tensor(d_lse_ptr, cute.make_layout((8, 4, T), stride=(d_lse_h_stride, d_lse_g_stride, 1)))
    shift = cute.make_tensor(shift_ptr, cute.make_layout((T, 8, 4), stride=(shift_t_stride, shift_h_stride, 1)))
    delta = cute.make_tensor(delta_ptr, cute.make_layout((T, 8, 4), stride=(delta_t_stride, delta_h_stride, 1)))
    varlen_attention_grad_1_rows(o, lse, d_o, d_lse, shift, delta, T).launch(
        grid=(programs, 1, 1), block=(128, 1, 1), use_pdl=overlap, stream=stream,
    )


@cute.struct
class varlen_attention_grad_2_memory:
    """Shared memory: mbarriers of the pipelines, resident tiles, and streamed tiles of each stage."""

    q_ring: cute.struct.MemRange[Int64, 2]
    d_o_ring: cute.struct.MemRange[Int64, 2]
    k_ring: cute.struct.MemRange[Int64, 8]
    v_ring: cute.struct.MemRange[Int64, 8]
    q: cute.struct.Align[cute.struct.MemRange[BFloat16, 16384], 1024]
    d_o: cute.struct.Align[cute.struct.MemRange[BFloat16, 16384], 1024]
    k: cute.struct.Align[cute.struct.MemRange[BFloat16, 32768], 1024]
    v: cute.struct.Align[cute.struct.MemRange[BFloat16, 32768], 1024]
    epilogue_smem: cute.struct.Align[cute.struct.MemRange[Int32, 2048], 128]


def varlen_attention_grad_2_layouts():
    # Swizzled smem layouts of wgmma operands, K-major or MN-major.
    return (
        sm90.make_smem_layout_a(ROW_MAJOR, (128, 64, 128), BFloat16, 1),
        sm90.make_smem_layout_a(ROW_MAJOR, (128, 64, 128), BFloat16, 1),
        sm90.make_smem_layout_b(ROW_MAJOR, (128, 64, 128), BFloat16, 4),
        sm90.make_smem_layout_b(COL_MAJOR, (128, 128, 64), BFloat16, 4),
        sm90.make_smem_layout_b(ROW_MAJOR, (128, 64, 128), BFloat16, 4),
    )


def varlen_attention_grad_2_units():
    # wgmma with both operands in smem (S, dP), and with A in registers (O += P V; dQ, dK, dV).
    k, mn, groups = OperandMajorMode.K, OperandMajorMode.MN, (2, 1, 1)
    mma_qk = sm90.make_trivial_tiled_mma(
        BFloat16, BFloat16, k, k, Float32, groups, tiler_mn=(64, 64)
    )
    mma_pv = sm90.make_trivial_tiled_mma(
        BFloat16, BFloat16, k, mn, Float32, groups, tiler_mn=(64, 128),
        a_source=warpgroup.OperandSource.RMEM,
    )
    return mma_qk, mma_pv


@cute.jit
def varlen_attention_grad_2_step(
    z_step, consumer_state, k_ring, v_ring, q_factor, d_o_factor, k_tiles, k_factor, k_transposed_factor, v_tiles,
    v_factor, mma_qk, mma_pv, s_fragment, s, dp_fragment, dp, ds_bf16_fragment, ds_bf16, dq_fragment, begin_k_value,
    end_k_value, mine, group, quad, scale_times_log2e, shift_value, until_2, delta_value, masked: cutlass.Constexpr
):
    # One tile of streamed rows: S and dP, the elementwise work, and products onto the sums.
    # Parameters: step; pipeline states, pipelines; tiles; wgmma, S and P; row statistics, accumulators; scalars.
    z_step_times_64 = z_step * 64  # attention.py:119
    z_begin = begin_k_value + z_step_times_64
    if cutlass.const_expr(masked):
        k_ring.consumer_wait(consumer_state)
        v_ring.consumer_wait(consumer_state)
        if (end_k_value < z_begin + 64):
            column = 8 * (mine % 8)
            for i in cutlass.range_constexpr(4):
                down = mine % 128 // 8 + 16 * i
                kv = z_begin + down
                in_range = kv < end_k_value
                for j in cutlass.range_constexpr(2):
                    clear_vector_where(
                        select(in_range, Boolean(False), Boolean(True)), k_tiles,
                        (down, column + 64 * j, consumer_state.index), 8
                    )
                    clear_vector_where(
                        select(in_range, Boolean(False), Boolean(True)), v_tiles,
                        (down, column + 64 * j, consumer_state.index), 8
                    )
            cute.arch.fence_view_async_shared()
            cute.arch.barrier(barrier_id=group, number_of_threads=128)
    if cutlass.const_expr(not masked):
        k_ring.consumer_wait(consumer_state)
    multiply(
        mma_qk, s_fragment, q_factor[None, None, None, 0], k_factor[None, None, None, consumer_state.index], False, 8
    )
    if cutlass.const_expr(not masked):
        v_ring.consumer_wait(consumer_state)
    multiply(
        mma_qk, dp_fragment, d_o_factor[None, None, None, 0], v_factor[None, None, None, consumer_state.index], False, 8
    )
    warpgroup.wait_group(1)
    p_masked = [[], []]
    for r in cutlass.range_constexpr(2):
        for c in cutlass.range_constexpr(16):
            kv = z_begin + (quad + 8 * (c // 2) + c % 2)
            p_fma_sum = fma(s[r, c], scale_times_log2e, shift_value[r])  # attention.py:167
            p = exp2(p_fma_sum)
            if cutlass.const_expr(masked):  # attention.py:123
                in_range = kv < end_k_value  # attention.py:119
                kv_lt_until = kv < until_2[r]
                exists = in_range & kv_lt_until
                p_masked[r].append(select(exists, p, Float32(0.0)))  # attention.py:123
            else:
                p_masked[r].append(p)
    warpgroup.wait_group(0)
    for r in cutlass.range_constexpr(2):
        for c in cutlass.range_constexpr(16):
            dp_minus_delta = dp[r, c] - delta_value[r]
            ds = mul(p_masked[r][c], dp_minus_delta)
            ds_bf16[r, c] = Float32(ds).to(BFloat16)
    multiply(
        mma_pv, dq_fragment, ds_bf16_fragment, k_transposed_factor[None, None, None, consumer_state.index], True, 4
    )
    warpgroup.wait_group(0)
    k_ring.consumer_release(consumer_state)
    v_ring.consumer_release(consumer_state)
    consumer_state.advance()
    return consumer_state


@cute.kernel
def varlen_attention_grad_2(
    mma_qk: cute.TiledMma, mma_pv: cute.TiledMma, tma_k: cute.CopyAtom, k: cute.Tensor, tma_v: cute.CopyAtom,
    v: cute.Tensor, q: cute.Tensor, begin_q: cute.Tensor, end_q: cute.Tensor, begin_k: cute.Tensor, end_k: cute.Tensor,
    d_o: cute.Tensor, shift: cute.Tensor, delta: cute.Tensor, d_q: cute.Tensor, Q: Int32, B: Int32, T: Int32, S: Int32,
    scale: Float32
):
    # A block owns 128 of Q*G, 1 of H (back_to_back_gemm).
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    group = cute.arch.make_warp_uniform(thread // 128)
    lane = cute.arch.lane_idx()
    memory = utils.SmemAllocator().allocate(varlen_attention_grad_2_memory)
    q_ring = pipeline.PipelineCpAsync.create(
        barrier_storage=memory.q_ring.data_ptr(),
        num_stages=1,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 128),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 8),
    )
    d_o_ring = pipeline.PipelineCpAsync.create(
        barrier_storage=memory.d_o_ring.data_ptr(),
        num_stages=1,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 128),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 8),
    )
    k_ring = pipeline.PipelineTmaAsync.create(
        barrier_storage=memory.k_ring.data_ptr(),
        num_stages=4,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 8),
        tx_count=16384,
        cta_layout_vmnk=cute.make_layout((1, 1, 1, 1)),
    )
    v_ring = pipeline.PipelineTmaAsync.create(
        barrier_storage=memory.v_ring.data_ptr(),
        num_stages=4,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 8),
        tx_count=16384,
        cta_layout_vmnk=cute.make_layout((1, 1, 1, 1)),
    )
    cute.arch.griddepcontrol_wait()
    layouts = varlen_attention_grad_2_layouts()
    q_tiles = memory.q.get_tensor(layouts[0].outer, swizzle=layouts[0].inner)
    d_o_tiles = memory.d_o.get_tensor(layouts[1].outer, swizzle=layouts[1].inner)
    k_tiles = memory.k.get_tensor(layouts[2].outer, swizzle=layouts[2].inner)
    k_transposed = memory.k.get_tensor(layouts[3].outer, swizzle=layouts[3].inner)
    v_tiles = memory.v.get_tensor(layouts[4].outer, swizzle=layouts[4].inner)
    tiles = Q * 4 // 128 + B
    tile = tiles - 1 - block % tiles
    b = segment_of(begin_q, tile, B, lane, 4, 128)
    segment_begin = begin_q[b].to(Int32) * 4
    segment_rows = end_q[b].to(Int32) * 4 - segment_begin
    first = (tile - (segment_begin // 128 + b)) * 128
    h = block // tiles
    begin_k_value = begin_k[b]  # attention.py:112
    end_k_value = end_k[b]  # attention.py:113
    keys = end_k_value - begin_k_value
    begin_q_value = begin_q[b]  # attention.py:305
    end_q_value = end_q[b]  # attention.py:306
    count = end_q_value - begin_q_value
    keys_minus_count = keys - count  # attention.py:307
    length = cutlass.max(0, keys)  # attention.py:119
    scale_times_log2e = mul(scale, Float32(1.4426950216293335))  # attention.py:167
    q_g = [first + lane + 32 * r for r in range(4)]
    query = [q_g[r] // 4 for r in range(4)]  # attention.py:305
    key = [query[r] + keys_minus_count for r in range(4)]  # attention.py:307
    key_plus_1 = [key[r] + 1 for r in range(4)]  # attention.py:313
    until = [key_plus_1[r] + begin_k_value for r in range(4)]
    until_minus_begin_k = [until[r] - begin_k_value for r in range(4)]  # attention.py:119
    visible = [cutlass.max(0, until_minus_begin_k[r]) for r in range(4)]
    seen = [cutlass.min(length, visible[r]) for r in range(4)]
    full_steps_2 = [seen[r] // 64 for r in range(4)]
    seen_plus_63 = [seen[r] + 63 for r in range(4)]
    steps = [seen_plus_63[r] // 64 for r in range(4)]
    first_steps = Int32(0)
    last_steps = select(first < segment_rows, of_rows(steps, imax), first_steps)
    full_steps = imax(first_steps, imin(of_rows(full_steps_2, imin), last_steps))
    if group == 0:
        # Producer: copy the block's rows by cp.async; one warp issues TMA loads of streamed tiles.
        cute.arch.setmaxregister_decrease(56)
        tile_producer_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 1)
        q_ring.producer_acquire(tile_producer_state)
        d_o_ring.producer_acquire(tile_producer_state)
        column = 8 * (thread % 8)
        for i in cutlass.range_constexpr(8):
            down = thread // 8 + 16 * i
            q_g_2 = first + down
            g = q_g_2 % 4  # attention.py:97
            query_2 = q_g_2 // 4  # attention.py:305
            token = begin_q_value + query_2  # attention.py:307
            inside = query_2 < count
            for j in cutlass.range_constexpr(2):  # attention.py:114
                copy_vector_where(inside, q, (token, h, g, (column + 64 * j)), q_tiles, (down, column + 64 * j, 0), 8)
            for j in cutlass.range_constexpr(2):  # attention.py:99
                copy_vector_where(
                    inside, d_o, (token, h, g, (column + 64 * j)), d_o_tiles, (down, column + 64 * j, 0), 8
                )
        q_ring.producer_commit(tile_producer_state)
        d_o_ring.producer_commit(tile_producer_state)
        producer_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 4)
        for z_step in cutlass.range(first_steps, last_steps, unroll=1):
            z_step_times_64 = z_step * 64  # attention.py:119
            z_begin = begin_k_value + z_step_times_64
            tma_load(k_ring, producer_state, tma_k, k[None, None, h], (z_begin, 0), (64, 128), k_tiles)
            tma_load(v_ring, producer_state, tma_v, v[None, None, h], (z_begin, 0), (64, 128), v_tiles)
            producer_state.advance()
    else:
        # Consumers own 64 rows each; the elementwise work of one overlaps the products of the other.
        cute.arch.setmaxregister_increase(224)
        mine = thread - 128
        share = cute.make_layout(2, stride=128)(group - 1)
        q_factor = mma_qk.make_fragment_A(mma_qk.get_slice(share).partition_A(q_tiles))
        d_o_factor = mma_qk.make_fragment_A(mma_qk.get_slice(share).partition_A(d_o_tiles))
        k_factor = mma_qk.make_fragment_B(mma_qk.get_slice(share).partition_B(k_tiles))
        k_transposed_factor = mma_pv.make_fragment_B(mma_pv.get_slice(share).partition_B(k_transposed))
        v_factor = mma_qk.make_fragment_B(mma_qk.get_slice(share).partition_B(v_tiles))
        s_fragment = cute.make_rmem_tensor(mma_qk.partition_shape_C((128, 64)), Float32)
        s = by_rows(s_fragment, 8)
        dp_fragment = cute.make_rmem_tensor(mma_qk.partition_shape_C((128, 64)), Float32)
        dp = by_rows(dp_fragment, 8)
        ds_bf16_fragment = cute.make_rmem_tensor(mma_pv.partition_shape_A((128, 64)), BFloat16)
        ds_bf16 = by_rows(ds_bf16_fragment, 8)
        row = mine // 32 * 16 + mine // 4 % 8
        quad = 2 * (mine % 4)
        # epilogue scratch of a warp: accumulator pairs to 16-byte vectors
        epilogue_tile = memory.epilogue_smem.data_ptr() + cute.assume(mine // 32 * 256, divby=256)
        consumer_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 4)
        q_g_2 = [first + row + 8 * r for r in range(2)]
        g = [q_g_2[r] % 4 for r in range(2)]  # attention.py:97
        query_2 = [q_g_2[r] // 4 for r in range(2)]  # attention.py:305
        token = [begin_q_value + query_2[r] for r in range(2)]  # attention.py:307
        inside = [query_2[r] < count for r in range(2)]
        key_2 = [query_2[r] + keys_minus_count for r in range(2)]
        # attention.py:116
        shift_value = [load_where(inside[r], shift, (token[r], h, g[r]), Float32(0)) for r in range(2)]
        # attention.py:117
        delta_value = [load_where(inside[r], delta, (token[r], h, g[r]), Float32(0)) for r in range(2)]
        key_plus_1_2 = [key_2[r] + 1 for r in range(2)]  # attention.py:313
        until_2 = [key_plus_1_2[r] + begin_k_value for r in range(2)]
        dq_fragment = cute.make_rmem_tensor(mma_pv.partition_shape_C((128, 128)), Float32)  # attention.py:119
        dq_fragment.fill(Float32(0.0))
        dq = by_rows(dq_fragment, 16)
        q_ring.consumer_wait(pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 1))
        d_o_ring.consumer_wait(pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 1))
        cute.arch.fence_view_async_shared()
        for z_step in cutlass.range(first_steps, full_steps, unroll=1):  # attention.py:123
            consumer_state = varlen_attention_grad_2_step(
                z_step, consumer_state, k_ring, v_ring, q_factor, d_o_factor, k_tiles, k_factor, k_transposed_factor,
                v_tiles, v_factor, mma_qk, mma_pv, s_fragment, s, dp_fragment, dp, ds_bf16_fragment, ds_bf16,
                dq_fragment, begin_k_value, end_k_value, mine, group, quad, scale_times_log2e, shift_value, until_2,
                delta_value, masked=False
            )
        for z_step in cutlass.range(full_steps, last_steps, unroll=1):
            consumer_state = varlen_attention_grad_2_step(
                z_step, consumer_state, k_ring, v_ring, q_factor, d_o_factor, k_tiles, k_factor, k_transposed_factor,
                v_tiles, v_factor, mma_qk, mma_pv, s_fragment, s, dp_fragment, dp, ds_bf16_fragment, ds_bf16,
                dq_fragment, begin_k_value, end_k_value, mine, group, quad, scale_times_log2e, shift_value, until_2,
                delta_value, masked=True
            )
        for r in cutlass.range_constexpr(2):  # attention.py:114
            dq_times_scale_bf16 = []  # attention.py:124
            for c in cutlass.range_constexpr(32):
                dq_times_scale = mul(dq[r, c], scale)
                dq_times_scale_bf16.append(Float32(dq_times_scale).to(BFloat16))
            for c in cutlass.range_constexpr(0, 32, 16):
                vectors = to_vectors(epilogue_tile, d_q.element_type, dq_times_scale_bf16[c : c + 16])
                for i in cutlass.range_constexpr(2):
                    store_vector_where(
                        inside[r], d_q, (token[r], h, g[r], (quad + 8 * (c // 2) + 3 * quad + 32 * i)), vectors[i]
                    )


@cute.jit
def launch_varlen_attention_grad_2(
    q_ptr: cute.Pointer, k_ptr: cute.Pointer, v_ptr: cute.Pointer, begin_q_ptr: cute.Pointer, end_q_ptr: cute.Pointer,
    begin_k_ptr: cute.Pointer, end_k_ptr: cute.Pointer, d_o_ptr: cute.Pointer, shift_ptr: cute.Pointer,
    delta_ptr: cute.Pointer, d_q_ptr: cute.Pointer, Q: Int32, B: Int32, T: Int32, q_t_stride: Int64, q_h_stride: Int64,
    q_g_stride: Int64, S: Int32, k_s_stride: Int64, k_h_stride: Int64, v_s_stride: Int64, v_h_stride: Int64,
    d_o_t_stride: Int64, d_o_h_stride: Int64, d_o_g_stride: Int64, shift_t_stride: Int64, shift_h_stride: Int64,
    delta_t_stride: Int64, delta_h_stride: Int64, d_q_t_stride: Int64, d_q_h_stride: Int64, d_q_g_stride: Int64,
    scale: Float32, programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    q = cute.make_tensor(
        q_ptr,
        cute.make_layout(
            (T, 8, 4, 128),
            stride=(
                cute.assume(q_t_stride, divby=8), cute.assume(q_h_stride, divby=8), cute.assume(q_g_stride, divby=8), 1
            )
        )
    )
    k = cute.make_tensor(
        k_ptr,
        cute.make_layout((S, 128, 8), stride=(cute.assume(k_s_stride, divby=8), 1, cute.assume(k_h_stride, divby=8)))
    )
    v = cute.make_tensor(
        v_ptr,
        cute.make_layout((S, 128, 8), stride=(cute.assume(v_s_stride, divby=8), 1, cute.assume(v_h_stride, divby=8)))
    )
    begin_q = cute.make_tensor(begin_q_ptr, cute.make_layout((B,), stride=(1,)))
    end_q = cute.make_tensor(end_q_ptr, cute.make_layout((B,), stride=(1,)))
    begin_k = cute.make_tensor(begin_k_ptr, cute.make_layout((B,), stride=(1,)))
    end_k = cute.make_tensor(end_k_ptr, cute.make_layout((B,), stride=(1,)))
    d_o = cute.make_tensor(
        d_o_ptr,
        cute.make_layout(
            (T, 8, 4, 128),
            stride=(
                cute.assume(d_o_t_stride, divby=8), cute.assume(d_o_h_stride, divby=8),
                cute.assume(d_o_g_stride, divby=8), 1
            )
        )
    )
    shift = cute.make_tensor(shift_ptr, cute.make_layout((T, 8, 4), stride=(shift_t_stride, shift_h_stride, 1)))
    delta = cute.make_tensor(delta_ptr, cute.make_layout((T, 8, 4), stride=(delta_t_stride, delta_h_stride, 1)))
    d_q = cute.make_tensor(
        d_q_ptr, cute.make_layout((T, 8, 4, 128), stride=(d_q_t_stride, d_q_h_stride, d_q_g_stride, 1))
    )
    mma_qk, mma_pv = varlen_attention_grad_2_units()
    layouts = varlen_attention_grad_2_layouts()
    tma_k, k = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), k, cute.slice_(layouts[2], (None, None, 0)), (64, 128)
    )
    tma_v, v = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), v, cute.slice_(layouts[4], (None, None, 0)), (64, 128)
    )
    varlen_attention_grad_2(
        mma_qk, mma_pv, tma_k, k, tma_v, v, q, begin_q, end_q, begin_k, end_k, d_o, shift, delta, d_q, Q, B, T, S, scale
    ).launch(
        grid=(programs, 1, 1), block=(384, 1, 1), cluster=(1, 1, 1), min_blocks_per_mp=1, use_pdl=overlap,
        stream=stream,
    )


@cute.struct
class varlen_attention_grad_3_memory:
    """Shared memory: mbarriers of the pipelines, resident tiles, and streamed tiles of each stage."""

    k_ring: cute.struct.MemRange[Int64, 2]
    v_ring: cute.struct.MemRange[Int64, 2]
    q_ring: cute.struct.MemRange[Int64, 8]
    d_o_ring: cute.struct.MemRange[Int64, 8]
    shift_ring: cute.struct.MemRange[Int64, 8]
    k: cute.struct.Align[cute.struct.MemRange[BFloat16, 16384], 1024]
    v: cute.struct.Align[cute.struct.MemRange[BFloat16, 16384], 1024]
    q: cute.struct.Align[cute.struct.MemRange[BFloat16, 32768], 1024]
    d_o: cute.struct.Align[cute.struct.MemRange[BFloat16, 32768], 1024]
    shift: cute.struct.Align[cute.struct.MemRange[Float32, 256], 128]
    delta: cute.struct.Align[cute.struct.MemRange[Float32, 256], 128]
    epilogue_smem: cute.struct.Align[cute.struct.MemRange[Int32, 2048], 128]


def varlen_attention_grad_3_layouts():
    # Swizzled smem layouts of wgmma operands, K-major or MN-major.
    return (
        sm90.make_smem_layout_a(ROW_MAJOR, (128, 64, 128), BFloat16, 1),
        sm90.make_smem_layout_a(ROW_MAJOR, (128, 64, 128), BFloat16, 1),
        sm90.make_smem_layout_b(ROW_MAJOR, (128, 64, 128), BFloat16, 4),
        sm90.make_smem_layout_b(COL_MAJOR, (128, 128, 64), BFloat16, 4),
        sm90.make_smem_layout_b(ROW_MAJOR, (128, 64, 128), BFloat16, 4),
        sm90.make_smem_layout_b(COL_MAJOR, (128, 128, 64), BFloat16, 4),
    )


def varlen_attention_grad_3_units():
    # wgmma with both operands in smem (S, dP), and with A in registers (O += P V; dQ, dK, dV).
    k, mn, groups = OperandMajorMode.K, OperandMajorMode.MN, (2, 1, 1)
    mma_qk = sm90.make_trivial_tiled_mma(
        BFloat16, BFloat16, k, k, Float32, groups, tiler_mn=(64, 64)
    )
    mma_pv = sm90.make_trivial_tiled_mma(
        BFloat16, BFloat16, k, mn, Float32, groups, tiler_mn=(64, 128),
        a_source=warpgroup.OperandSource.RMEM,
    )
    return mma_qk, mma_pv


@cute.jit
def varlen_attention_grad_3_step(
    r_step, consumer_state, q_ring, d_o_ring, shift_ring, k_factor, v_factor, q_tiles, q_factor, q_transposed_factor,
    d_o_tiles, d_o_factor, d_o_transposed_factor, shift_statistics, delta_statistics, mma_qk, mma_pv, s_fragment, s,
    dp_fragment, dp, p_bf16_fragment, p_bf16, ds_bf16_fragment, ds_bf16, dv_fragment, dk_fragment, begin_q_times_4,
    end_q_times_4, mine, group, quad, scale_times_log2e, since_2, masked: cutlass.Constexpr
):
    # One tile of streamed rows: S and dP, the elementwise work, and products onto the sums.
    # Parameters: step; pipeline states, pipelines; tiles; wgmma, S and P; row statistics, accumulators; scalars.
    r_step_times_64 = r_step * 64  # attention.py:137
    r_begin = begin_q_times_4 + r_step_times_64
    if cutlass.const_expr(masked):
        q_ring.consumer_wait(consumer_state)
        d_o_ring.consumer_wait(consumer_state)
        if (end_q_times_4 < r_begin + 64):
            column = 8 * (mine % 8)
            for i in cutlass.range_constexpr(4):
                down = mine % 128 // 8 + 16 * i
                qg = r_begin + down
                in_range = qg < end_q_times_4
                for j in cutlass.range_constexpr(2):
                    clear_vector_where(
                        select(in_range, Boolean(False), Boolean(True)), q_tiles,
                        (down, column + 64 * j, consumer_state.index), 8
                    )
                    clear_vector_where(
                        select(in_range, Boolean(False), Boolean(True)), d_o_tiles,
                        (down, column + 64 * j, consumer_state.index), 8
                    )
            cute.arch.fence_view_async_shared()
            cute.arch.barrier(barrier_id=group, number_of_threads=128)
    if cutlass.const_expr(not masked):
        q_ring.consumer_wait(consumer_state)
    multiply(
        mma_qk, s_fragment, k_factor[None, None, None, 0], q_factor[None, None, None, consumer_state.index], False, 8
    )
    if cutlass.const_expr(not masked):
        d_o_ring.consumer_wait(consumer_state)
    multiply(
        mma_qk, dp_fragment, v_factor[None, None, None, 0], d_o_factor[None, None, None, consumer_state.index], False, 8
    )
    warpgroup.wait_group(1)
    shift_ring.consumer_wait(consumer_state)
    shift_value = statistics_of(shift_statistics, quad, consumer_state.index, 16)  # attention.py:140
    p_masked = [[], []]
    for r in cutlass.range_constexpr(2):
        for c in cutlass.range_constexpr(16):  # attention.py:137
            qg = r_begin + (quad + 8 * (c // 2) + c % 2)
            p_fma_sum = fma(s[r, c], scale_times_log2e, shift_value[c])  # attention.py:167
            p = exp2(p_fma_sum)
            if cutlass.const_expr(masked):  # attention.py:144
                in_range = qg < end_q_times_4  # attention.py:137
                since_le_qg = since_2[r] <= qg
                exists = in_range & since_le_qg
                p_masked[r].append(select(exists, p, Float32(0.0)))  # attention.py:144
            else:
                p_masked[r].append(p)
            p_bf16[r, c] = Float32(p_masked[r][c]).to(BFloat16)
    multiply(
        mma_pv, dv_fragment, p_bf16_fragment, d_o_transposed_factor[None, None, None, consumer_state.index], True, 4
    )
    warpgroup.wait_group(1)
    delta_value = statistics_of(delta_statistics, quad, consumer_state.index, 16)  # attention.py:141
    for r in cutlass.range_constexpr(2):
        for c in cutlass.range_constexpr(16):  # attention.py:147
            dp_minus_delta = dp[r, c] - delta_value[c]
            ds = mul(p_masked[r][c], dp_minus_delta)
            ds_bf16[r, c] = Float32(ds).to(BFloat16)
    multiply(
        mma_pv, dk_fragment, ds_bf16_fragment, q_transposed_factor[None, None, None, consumer_state.index], True, 4
    )
    warpgroup.wait_group(0)
    with cute.arch.elect_one():
        shift_ring.consumer_release(consumer_state)
    q_ring.consumer_release(consumer_state)
    d_o_ring.consumer_release(consumer_state)
    consumer_state.advance()
    return consumer_state


@cute.kernel
def varlen_attention_grad_3(
    mma_qk: cute.TiledMma, mma_pv: cute.TiledMma, tma_q: cute.CopyAtom, q: cute.Tensor, tma_d_o: cute.CopyAtom,
    d_o: cute.Tensor, k: cute.Tensor, v: cute.Tensor, begin_q: cute.Tensor, end_q: cute.Tensor, begin_k: cute.Tensor,
    end_k: cute.Tensor, shift: cute.Tensor, delta: cute.Tensor, d_k: cute.Tensor, d_v: cute.Tensor, J: Int32, B: Int32,
    T: Int32, S: Int32, scale: Float32
):
    # A block owns 128 of J, 1 of H (back_to_back_gemm).
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    group = cute.arch.make_warp_uniform(thread // 128)
    lane = cute.arch.lane_idx()
    memory = utils.SmemAllocator().allocate(varlen_attention_grad_3_memory)
    k_ring = pipeline.PipelineCpAsync.create(
        barrier_storage=memory.k_ring.data_ptr(),
        num_stages=1,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 128),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 8),
    )
    v_ring = pipeline.PipelineCpAsync.create(
        barrier_storage=memory.v_ring.data_ptr(),
        num_stages=1,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 128),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 8),
    )
    q_ring = pipeline.PipelineTmaAsync.create(
        barrier_storage=memory.q_ring.data_ptr(),
        num_stages=4,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 8),
        tx_count=16384,
        cta_layout_vmnk=cute.make_layout((1, 1, 1, 1)),
    )
    d_o_ring = pipeline.PipelineTmaAsync.create(
        barrier_storage=memory.d_o_ring.data_ptr(),
        num_stages=4,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 8),
        tx_count=16384,
        cta_layout_vmnk=cute.make_layout((1, 1, 1, 1)),
    )
    shift_ring = pipeline.PipelineCpAsync.create(
        barrier_storage=memory.shift_ring.data_ptr(),
        num_stages=4,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 64),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 8),
    )
    cute.arch.griddepcontrol_wait()
    layouts = varlen_attention_grad_3_layouts()
    k_tiles = memory.k.get_tensor(layouts[0].outer, swizzle=layouts[0].inner)
    v_tiles = memory.v.get_tensor(layouts[1].outer, swizzle=layouts[1].inner)
    q_tiles = memory.q.get_tensor(layouts[2].outer, swizzle=layouts[2].inner)
    q_transposed = memory.q.get_tensor(layouts[3].outer, swizzle=layouts[3].inner)
    d_o_tiles = memory.d_o.get_tensor(layouts[4].outer, swizzle=layouts[4].inner)
    d_o_transposed = memory.d_o.get_tensor(layouts[5].outer, swizzle=layouts[5].inner)
    shift_statistics = memory.shift.get_tensor(cute.make_layout((64, 4)))
    delta_statistics = memory.delta.get_tensor(cute.make_layout((64, 4)))
    tile = block // 8
    b = segment_of(begin_k, tile, B, lane, 1, 128)
    segment_begin = begin_k[b].to(Int32) * 1
    segment_rows = end_k[b].to(Int32) * 1 - segment_begin
    first = (tile - (segment_begin // 128 + b)) * 128
    h = block % 8
    begin_k_value = begin_k[b]  # attention.py:112
    end_k_value = end_k[b]  # attention.py:113
    keys = end_k_value - begin_k_value
    begin_q_value = begin_q[b]  # attention.py:305
    end_q_value = end_q[b]  # attention.py:306
    count = end_q_value - begin_q_value
    scale_times_log2e = mul(scale, Float32(1.4426950216293335))  # attention.py:167
    begin_q_times_4 = begin_q_value * 4  # attention.py:137
    end_q_times_4 = end_q_value * 4
    length_difference = end_q_times_4 - begin_q_times_4
    length = cutlass.max(0, length_difference)
    full_steps_2 = length // 64
    length_plus_63 = length + 63
    steps = length_plus_63 // 64
    j_2 = [first + lane + 32 * r for r in range(4)]
    key_plus_count = [j_2[r] + count for r in range(4)]  # attention.py:135
    query = [key_plus_count[r] - keys for r in range(4)]
    begin_q_plus_query = [begin_q_value + query[r] for r in range(4)]  # attention.py:158
    since = [begin_q_plus_query[r] * 4 for r in range(4)]
    unseen_difference = [since[r] - begin_q_times_4 for r in range(4)]  # attention.py:137
    unseen = [cutlass.max(0, unseen_difference[r]) for r in range(4)]
    first_step = [unseen[r] // 64 for r in range(4)]
    unseen_plus_63 = [unseen[r] + 63 for r in range(4)]
    first_full_step_quotient = [unseen_plus_63[r] // 64 for r in range(4)]
    first_full_step = [cutlass.min(first_full_step_quotient[r], steps) for r in range(4)]
    first_steps = of_rows(first_step, imin)
    last_steps = select(first < segment_rows, Int32(steps), first_steps)
    late_steps = imax(first_steps, imin(of_rows(first_full_step, imax), last_steps))
    full_steps = imax(late_steps, imin(Int32(full_steps_2), last_steps))
    if group == 0:
        # Producer: copy the block's rows and row statistics by cp.async; TMA loads of streamed tiles.
        cute.arch.setmaxregister_decrease(40)
        tile_producer_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 1)
        k_ring.producer_acquire(tile_producer_state)
        v_ring.producer_acquire(tile_producer_state)
        column = 8 * (thread % 8)
        for i in cutlass.range_constexpr(8):
            down = thread // 8 + 16 * i
            j_3 = first + down
            token = begin_k_value + j_3  # attention.py:131
            inside = j_3 < keys
            for j in cutlass.range_constexpr(2):
                copy_vector_where(inside, k, (token, h, (column + 64 * j)), k_tiles, (down, column + 64 * j, 0), 8)
            for j in cutlass.range_constexpr(2):  # attention.py:99
                copy_vector_where(inside, v, (token, h, (column + 64 * j)), v_tiles, (down, column + 64 * j, 0), 8)
        k_ring.producer_commit(tile_producer_state)
        v_ring.producer_commit(tile_producer_state)
        producer_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 4)
        for r_step in cutlass.range(first_steps, last_steps, unroll=1):
            r_step_times_64 = r_step * 64  # attention.py:137
            r_begin = begin_q_times_4 + r_step_times_64
            tma_load(q_ring, producer_state, tma_q, q[None, None, h], ((0, r_begin // 4), 0), (64, 128), q_tiles)
            tma_load(
                d_o_ring, producer_state, tma_d_o, d_o[None, None, h], ((0, r_begin // 4), 0), (64, 128), d_o_tiles
            )
            acquire_from(64, thread, shift_ring, producer_state)
            down = thread % 64
            r_step_times_64 = r_step * 64
            r_begin = begin_q_times_4 + r_step_times_64
            qg = r_begin + down
            in_range = qg < end_q_times_4
            asks = qg // 4  # attention.py:138
            head = qg % 4
            copy_statistic_where(
                thread // 64 == 1, in_range, shift, (asks, h, head), shift_statistics, (down, producer_state.index)
            )
            copy_statistic_where(
                thread // 64 == 1, in_range, delta, (asks, h, head), delta_statistics, (down, producer_state.index)
            )
            commit_from(64, thread, shift_ring, producer_state)
            producer_state.advance()
    else:
        # Consumers own 64 rows each; the elementwise work of one overlaps the products of the other.
        cute.arch.setmaxregister_increase(232)
        mine = thread - 128
        share = cute.make_layout(2, stride=128)(group - 1)
        k_factor = mma_qk.make_fragment_A(mma_qk.get_slice(share).partition_A(k_tiles))
        v_factor = mma_qk.make_fragment_A(mma_qk.get_slice(share).partition_A(v_tiles))
        q_factor = mma_qk.make_fragment_B(mma_qk.get_slice(share).partition_B(q_tiles))
        q_transposed_factor = mma_pv.make_fragment_B(mma_pv.get_slice(share).partition_B(q_transposed))
        d_o_factor = mma_qk.make_fragment_B(mma_qk.get_slice(share).partition_B(d_o_tiles))
        d_o_transposed_factor = mma_pv.make_fragment_B(mma_pv.get_slice(share).partition_B(d_o_transposed))
        s_fragment = cute.make_rmem_tensor(mma_qk.partition_shape_C((128, 64)), Float32)
        s = by_rows(s_fragment, 8)
        dp_fragment = cute.make_rmem_tensor(mma_qk.partition_shape_C((128, 64)), Float32)
        dp = by_rows(dp_fragment, 8)
        p_bf16_fragment = cute.make_rmem_tensor(mma_pv.partition_shape_A((128, 64)), BFloat16)
        p_bf16 = by_rows(p_bf16_fragment, 8)
        ds_bf16_fragment = cute.make_rmem_tensor(mma_pv.partition_shape_A((128, 64)), BFloat16)
        ds_bf16 = by_rows(ds_bf16_fragment, 8)
        row = mine // 32 * 16 + mine // 4 % 8
        quad = 2 * (mine % 4)
        # epilogue scratch of a warp: accumulator pairs to 16-byte vectors
        epilogue_tile = memory.epilogue_smem.data_ptr() + cute.assume(mine // 32 * 256, divby=256)
        consumer_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 4)
        j_3 = [first + row + 8 * r for r in range(2)]
        key_plus_count_2 = [j_3[r] + count for r in range(2)]  # attention.py:135
        query_2 = [key_plus_count_2[r] - keys for r in range(2)]
        begin_q_plus_query_2 = [begin_q_value + query_2[r] for r in range(2)]  # attention.py:158
        since_2 = [begin_q_plus_query_2[r] * 4 for r in range(2)]
        dv_fragment = cute.make_rmem_tensor(mma_pv.partition_shape_C((128, 128)), Float32)  # attention.py:137
        dv_fragment.fill(Float32(0.0))
        dv = by_rows(dv_fragment, 16)
        dk_fragment = cute.make_rmem_tensor(mma_pv.partition_shape_C((128, 128)), Float32)
        dk_fragment.fill(Float32(0.0))
        dk = by_rows(dk_fragment, 16)
        k_ring.consumer_wait(pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 1))
        v_ring.consumer_wait(pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 1))
        cute.arch.fence_view_async_shared()
        for r_step in cutlass.range(first_steps, late_steps, unroll=1):  # attention.py:147
            consumer_state = varlen_attention_grad_3_step(
                r_step, consumer_state, q_ring, d_o_ring, shift_ring, k_factor, v_factor, q_tiles, q_factor,
                q_transposed_factor, d_o_tiles, d_o_factor, d_o_transposed_factor, shift_statistics, delta_statistics,
                mma_qk, mma_pv, s_fragment, s, dp_fragment, dp, p_bf16_fragment, p_bf16, ds_bf16_fragment, ds_bf16,
                dv_fragment, dk_fragment, begin_q_times_4, end_q_times_4, mine, group, quad, scale_times_log2e, since_2,
                masked=True
            )
        for r_step in cutlass.range(late_steps, full_steps, unroll=1):
            consumer_state = varlen_attention_grad_3_step(
                r_step, consumer_state, q_ring, d_o_ring, shift_ring, k_factor, v_factor, q_tiles, q_factor,
                q_transposed_factor, d_o_tiles, d_o_factor, d_o_transposed_factor, shift_statistics, delta_statistics,
                mma_qk, mma_pv, s_fragment, s, dp_fragment, dp, p_bf16_fragment, p_bf16, ds_bf16_fragment, ds_bf16,
                dv_fragment, dk_fragment, begin_q_times_4, end_q_times_4, mine, group, quad, scale_times_log2e, since_2,
                masked=False
            )
        for r_step in cutlass.range(full_steps, last_steps, unroll=1):
            consumer_state = varlen_attention_grad_3_step(
                r_step, consumer_state, q_ring, d_o_ring, shift_ring, k_factor, v_factor, q_tiles, q_factor,
                q_transposed_factor, d_o_tiles, d_o_factor, d_o_transposed_factor, shift_statistics, delta_statistics,
                mma_qk, mma_pv, s_fragment, s, dp_fragment, dp, p_bf16_fragment, p_bf16, ds_bf16_fragment, ds_bf16,
                dv_fragment, dk_fragment, begin_q_times_4, end_q_times_4, mine, group, quad, scale_times_log2e, since_2,
                masked=True
            )
        for r in cutlass.range_constexpr(2):  # attention.py:114
            token = begin_k_value + j_3[r]  # attention.py:131
            inside = j_3[r] < keys
            dk_times_scale_bf16 = []  # attention.py:149
            for c in cutlass.range_constexpr(32):
                dk_times_scale = mul(dk[r, c], scale)
                dk_times_scale_bf16.append(Float32(dk_times_scale).to(BFloat16))
            for c in cutlass.range_constexpr(0, 32, 16):
                vectors = to_vectors(epilogue_tile, d_k.element_type, dk_times_scale_bf16[c : c + 16])
                for i in cutlass.range_constexpr(2):
                    store_vector_where(inside, d_k, (token, h, (quad + 8 * (c // 2) + 3 * quad + 32 * i)), vectors[i])
            dv_bf16 = []  # attention.py:151
            for c in cutlass.range_constexpr(32):
                dv_bf16.append(Float32(dv[r, c]).to(BFloat16))
            for c in cutlass.range_constexpr(0, 32, 16):
                vectors = to_vectors(epilogue_tile, d_v.element_type, dv_bf16[c : c + 16])
                for i in cutlass.range_constexpr(2):
                    store_vector_where(inside, d_v, (token, h, (quad + 8 * (c // 2) + 3 * quad + 32 * i)), vectors[i])


@cute.jit
def launch_varlen_attention_grad_3(
    q_ptr: cute.Pointer, k_ptr: cute.Pointer, v_ptr: cute.Pointer, begin_q_ptr: cute.Pointer, end_q_ptr: cute.Pointer,
    begin_k_ptr: cute.Pointer, end_k_ptr: cute.Pointer, d_o_ptr: cute.Pointer, shift_ptr: cute.Pointer,
    delta_ptr: cute.Pointer, d_k_ptr: cute.Pointer, d_v_ptr: cute.Pointer, J: Int32, B: Int32, T: Int32,
    q_t_stride: Int64, q_h_stride: Int64, q_g_stride: Int64, S: Int32, k_s_stride: Int64, k_h_stride: Int64,
    v_s_stride: Int64, v_h_stride: Int64, d_o_t_stride: Int64, d_o_h_stride: Int64, d_o_g_stride: Int64,
    shift_t_stride: Int64, shift_h_stride: Int64, delta_t_stride: Int64, delta_h_stride: Int64, d_k_s_stride: Int64,
    d_k_h_stride: Int64, d_v_s_stride: Int64, d_v_h_stride: Int64, scale: Float32, programs: Int32, overlap: Int32,
    stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    q = cute.make_tensor(
        q_ptr,
        cute.make_layout(
            ((4, T), 128, 8),
            stride=(
                (cute.assume(q_g_stride, divby=8), cute.assume(q_t_stride, divby=8)), 1,
                cute.assume(q_h_stride, divby=8)
            )
        )
    )
    k = cute.make_tensor(
        k_ptr,
        cute.make_layout((S, 8, 128), stride=(cute.assume(k_s_stride, divby=8), cute.assume(k_h_stride, divby=8), 1))
    )
    v = cute.make_tensor(
        v_ptr,
        cute.make_layout((S, 8, 128), stride=(cute.assume(v_s_stride, divby=8), cute.assume(v_h_stride, divby=8), 1))
    )
    begin_q = cute.make_tensor(begin_q_ptr, cute.make_layout((B,), stride=(1,)))
    end_q = cute.make_tensor(end_q_ptr, cute.make_layout((B,), stride=(1,)))
    begin_k = cute.make_tensor(begin_k_ptr, cute.make_layout((B,), stride=(1,)))
    end_k = cute.make_tensor(end_k_ptr, cute.make_layout((B,), stride=(1,)))
    d_o = cute.make_tensor(
        d_o_ptr,
        cute.make_layout(
            ((4, T), 128, 8),
            stride=(
                (cute.assume(d_o_g_stride, divby=8), cute.assume(d_o_t_stride, divby=8)), 1,
                cute.assume(d_o_h_stride, divby=8)
            )
        )
    )
    shift = cute.make_tensor(shift_ptr, cute.make_layout((T, 8, 4), stride=(shift_t_stride, shift_h_stride, 1)))
    delta = cute.make_tensor(delta_ptr, cute.make_layout((T, 8, 4), stride=(delta_t_stride, delta_h_stride, 1)))
    d_k = cute.make_tensor(d_k_ptr, cute.make_layout((S, 8, 128), stride=(d_k_s_stride, d_k_h_stride, 1)))
    d_v = cute.make_tensor(d_v_ptr, cute.make_layout((S, 8, 128), stride=(d_v_s_stride, d_v_h_stride, 1)))
    mma_qk, mma_pv = varlen_attention_grad_3_units()
    layouts = varlen_attention_grad_3_layouts()
    tma_q, q = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), q, cute.slice_(layouts[2], (None, None, 0)), (64, 128)
    )
    tma_d_o, d_o = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), d_o, cute.slice_(layouts[4], (None, None, 0)), (64, 128)
    )
    varlen_attention_grad_3(
        mma_qk, mma_pv, tma_q, q, tma_d_o, d_o, k, v, begin_q, end_q, begin_k, end_k, shift, delta, d_k, d_v, J, B, T,
        S, scale
    ).launch(
        grid=(programs, 1, 1), block=(384, 1, 1), cluster=(1, 1, 1), min_blocks_per_mp=1, use_pdl=overlap,
        stream=stream,
    )


def call(
    kernels, o, lse, d_o, d_lse, shift, delta, q, k, v, begin_q, end_q, begin_k, end_k, d_q, d_k, d_v, scale, T, Q, B,
    S, J, o_t_stride, o_h_stride, o_g_stride, lse_h_stride, lse_g_stride, d_o_t_stride, d_o_h_stride, d_o_g_stride,
    d_lse_h_stride, d_lse_g_stride, shift_t_stride, shift_h_stride, delta_t_stride, delta_h_stride, q_t_stride,
    q_h_stride, q_g_stride, k_s_stride, k_h_stride, v_s_stride, v_h_stride, d_q_t_stride, d_q_h_stride, d_q_g_stride,
    d_k_s_stride, d_k_h_stride, d_v_s_stride, d_v_h_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 3) // 4) * 8 * 1
    if programs > 0:
        kernels.varlen_attention_grad_1(
            (programs,), o, lse, d_o, d_lse, shift, delta, T, o_t_stride, o_h_stride, o_g_stride, lse_h_stride,
            lse_g_stride, d_o_t_stride, d_o_h_stride, d_o_g_stride, d_lse_h_stride, d_lse_g_stride, shift_t_stride,
            shift_h_stride, delta_t_stride, delta_h_stride
        )
    programs = (Q * 4 // 128 + B) * 8
    if programs > 0:
        kernels.varlen_attention_grad_2(
            (programs,), q, k, v, begin_q, end_q, begin_k, end_k, d_o, shift, delta, d_q, Q, B, T, q_t_stride,
            q_h_stride, q_g_stride, S, k_s_stride, k_h_stride, v_s_stride, v_h_stride, d_o_t_stride, d_o_h_stride,
            d_o_g_stride, shift_t_stride, shift_h_stride, delta_t_stride, delta_h_stride, d_q_t_stride, d_q_h_stride,
            d_q_g_stride, scale
        )
    programs = (J * 1 // 128 + B) * 8
    if programs > 0:
        kernels.varlen_attention_grad_3(
            (programs,), q, k, v, begin_q, end_q, begin_k, end_k, d_o, shift, delta, d_k, d_v, J, B, T, q_t_stride,
            q_h_stride, q_g_stride, S, k_s_stride, k_h_stride, v_s_stride, v_h_stride, d_o_t_stride, d_o_h_stride,
            d_o_g_stride, shift_t_stride, shift_h_stride, delta_t_stride, delta_h_stride, d_k_s_stride, d_k_h_stride,
            d_v_s_stride, d_v_h_stride, scale
        )
