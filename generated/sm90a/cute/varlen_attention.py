"""varlen_attention on sm_90a, written by rlk 0.1.0: do not edit.

numerics: ca497bd10c6c61b5
schedule: tiles Q*G=192, 12 consumer warps, 4 producer warps, 2 stages, 132 persistent blocks
inputs:
  q: bf16 [T, H=8, G=4, E=128]
  k: bf16 [S, H=8, E=128]
  v: bf16 [S, H=8, W=128]
  begin_q: i32 [B]
  end_q: i32 [B]
  begin_k: i32 [B]
  end_k: i32 [B]
outputs:
  o: bf16 [T, H=8, G=4, W=128]
  lse: f32 [H=8, G=4, T]
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


def add(a, b):
    # a + b: the combine of sum reductions.
    return a + b


def all_below(x, bound):
    # True if every element is less than the bound: not NaN either.
    below = x[0] < bound
    for i in range(1, len(x)):
        below = below & (x[i] < bound)
    return below


def any_lane(condition):
    # True if it holds for some thread of the warp.
    return cute.arch.vote_any_sync(condition)


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


def div(a, b):
    # Correctly rounded.
    return a / b


@cute.jit
def divided(x, by):
    # Rounded quotients: a reciprocal and two fma corrections, or divisions at range ends.
    small, large = Float32(1.0), Float32(1.0)
    for i in cutlass.range_constexpr(len(x)):
        small, large = fmin(small, magnitude(x[i])), large + magnitude(x[i])
    made = cute.make_rmem_tensor((len(x),), Float32)
    low, high = Float32(2.0**-60), Float32(2.0**60)
    usual = (small >= low) & (large <= high) & (by >= low) & (by <= high)
    if any_lane(select(usual, Boolean(False), Boolean(True))):
        for i in cutlass.range_constexpr(len(x)):
            made[i] = div(x[i], by)
    else:
        inverse = div(Float32(1.0), by)
        for i in cutlass.range_constexpr(len(x)):
            near = mul(x[i], inverse)
            near = fma(fma(-by, near, x[i]), inverse, near)
            made[i] = fma(fma(-by, near, x[i]), inverse, near)
    return [made[i] for i in range(len(x))]


@cute.jit
def earlier(rescales, place: cute.Tensor, row: cutlass.Constexpr, count: cutlass.Constexpr, init):
    # A row's accumulator of earlier pieces in shared memory, or `init` before the first rescale.
    made = cute.make_rmem_tensor((count,), Float32)
    made.fill(init)
    if rescales > 0:
        for c in cutlass.range_constexpr(count):
            made[c] = place[row, c]
    return [made[c] for c in range(count)]


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


def fmax(a, b):
    # max.f32: the other operand if one is NaN.
    return cute.arch.fmax(a, b)


def fmin(a, b):
    # min.f32: the other operand if one is NaN.
    return cute.arch.fmin(a, b)


def folded(x, stride, combine):
    # Combine elements i and i + stride of a list.
    return [combine(x[i], x[i + stride]) for i in range(len(x)) if not i & stride]


def held(x):
    # x, from a lane to itself: the compiler keeps it in a register, and does not compute it again.
    return cute.arch.shuffle_sync_bfly(x, offset=0)


def imax(a, b):
    # The maximum of integers.
    return cutlass.max(a, b)


def imin(a, b):
    # The minimum of integers.
    return cutlass.min(a, b)


@cute.jit
def load_where(condition, memory: cute.Tensor, index, other):
    # Load an element, or `other`.
    x = other
    if condition:
        x = type(other)(memory[index])
    return x


def magnitude(x):
    # Absolute value.
    return (x.bitcast(Int32) & Int32(0x7FFFFFFF)).bitcast(Float32)


def max_over_s_lane(x):
    # The max over S.lane, in any order: across the four threads of a row, all rows at once.
    x = exchanged(x, 2, fmax)
    x = exchanged(x, 1, fmax)
    return x


def max_over_s_lane_of_thread(x):
    # The max over S.lane, in any order: the elements of this thread.
    x = folded(x, 8, fmax)
    x = folded(x, 4, fmax)
    x = folded(x, 2, fmax)
    x = folded(x, 1, fmax)
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


def negative_zero():
    # -0.0. The DSL keeps constants by value, so Float32(-0.0) may become Float32(0.0), which came first.
    return Int32(-(2**31)).bitcast(Float32)


@cute.jit
def next_work_tile(thread, next_tile: cute.Tensor, work_counter: cute.Pointer, blocks, items):
    # Next tile index, by an atomic work counter; the first tiles are the block indices.
    if thread == 0:
        drawn = cute.arch.atomic_add(work_counter, Int32(1), sem="relaxed", scope="gpu")
        next_tile[0] = drawn + blocks
        if drawn + 1 == items:  # blocks draw as often as there are tiles: the next launch begins at zero
            cute.arch.atomic_add(work_counter, -items, sem="relaxed", scope="gpu")
    cute.arch.barrier(barrier_id=4, number_of_threads=128)
    item = next_tile[0]
    cute.arch.barrier(barrier_id=4, number_of_threads=128)
    return item


def of_rows(x, pick):
    # Minimum or maximum over the lists of a warp's lanes.
    while len(x) > 1:
        x = [*(pick(a, b) for a, b in zip(x[::2], x[1::2])), *x[len(x) // 2 * 2 :]]
    for lanes in (16, 8, 4, 2, 1):
        x = exchanged(x, lanes, pick)
    return cute.arch.make_warp_uniform(x[0])


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


@cute.jit
def publish_work_tile(thread, ring, state, work_tile: cute.Tensor, words):
    # Publish a work tile to the consumers. One thread waits: another could miss a phase of the mbarrier.
    if thread == 0:
        ring.producer_acquire(state)
        for i in cutlass.range_constexpr(len(words)):
            work_tile[i] = words[i]
        ring.producer_commit(state)


@cute.jit
def read_work_tile(
    ring, state, work_tile: cute.Tensor, group, alike: cutlass.Constexpr, groups: cutlass.Constexpr
):
    # Read the work tile: words for all consumers, then those of this warpgroup.
    ring.consumer_wait(state)
    words = [work_tile[i] for i in range(alike)]
    words += [work_tile[i + group - 1] for i in range(alike, cute.size(work_tile), groups)]
    # all threads of the warp must have read before one releases the stage
    cute.arch.sync_warp()
    with cute.arch.elect_one():
        ring.consumer_release(state)
    return tuple(words)


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


def sum_over_s_lane(x):
    # The sum over S.lane, halving: across the four threads of a row, all rows at once.
    x = exchanged(x, 2, add)
    x = exchanged(x, 1, add)
    x = folded(x, 1, add)
    return x


def sum_over_s_lane_of_thread(x):
    # The sum over S.lane, halving: the elements of this thread.
    x = folded(x, 8, add)
    x = folded(x, 4, add)
    x = folded(x, 2, add)
    return x


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


@cute.struct
class varlen_attention_memory:
    """Shared memory: mbarriers of the pipelines, resident tiles, and streamed tiles of each stage."""

    work_tile_pipeline: cute.struct.MemRange[Int64, 2]
    work_tile: cute.struct.MemRange[Int32, 10]
    next_tile: cute.struct.MemRange[Int32, 1]
    q_ring: cute.struct.MemRange[Int64, 2]
    k_ring: cute.struct.MemRange[Int64, 4]
    v_ring: cute.struct.MemRange[Int64, 4]
    q: cute.struct.Align[cute.struct.MemRange[BFloat16, 24576], 1024]
    k: cute.struct.Align[cute.struct.MemRange[BFloat16, 16384], 1024]
    v: cute.struct.Align[cute.struct.MemRange[BFloat16, 16384], 1024]
    o_before: cute.struct.Align[cute.struct.MemRange[Float32, 24576], 128]
    epilogue_smem: cute.struct.Align[cute.struct.MemRange[Int32, 3072], 128]


def varlen_attention_layouts():
    # Swizzled smem layouts of wgmma operands, K-major or MN-major.
    return (
        sm90.make_smem_layout_a(ROW_MAJOR, (192, 64, 128), BFloat16, 1),
        sm90.make_smem_layout_b(ROW_MAJOR, (192, 64, 128), BFloat16, 2),
        sm90.make_smem_layout_b(COL_MAJOR, (192, 128, 64), BFloat16, 2),
    )


def varlen_attention_units():
    # wgmma with both operands in smem (S, dP), and with A in registers (O += P V; dQ, dK, dV).
    k, mn, groups = OperandMajorMode.K, OperandMajorMode.MN, (3, 1, 1)
    mma_qk = sm90.make_trivial_tiled_mma(
        BFloat16, BFloat16, k, k, Float32, groups, tiler_mn=(64, 64)
    )
    mma_pv = sm90.make_trivial_tiled_mma(
        BFloat16, BFloat16, k, mn, Float32, groups, tiler_mn=(64, 128),
        a_source=warpgroup.OperandSource.RMEM,
    )
    return mma_qk, mma_pv


@cute.jit
def varlen_attention_step(
    s_step, k_consumer_state, v_consumer_state, rescales, k_ring, v_ring, q_factor, k_factor, v_tiles, v_factor, mma_qk,
    mma_pv, qk_fragment, qk, p_bf16_fragment, p_bf16, m_piece, l_piece, m_before, l_before, acc_o_fragment, acc_o,
    o_before, begin_k_value, first_steps, scale_times_log2e, quad, end_k_value, until, mine, group, last_steps,
    masked: cutlass.Constexpr, more: cutlass.Constexpr
):
    # One KV tile: online softmax of S, S of the next tile, O += P V.
    # Parameters: step; pipeline states, pipelines; tiles; wgmma, S and P; row statistics, accumulators; scalars.
    s_step_times_64 = s_step * 64  # attention.py:79
    s_begin = begin_k_value + s_step_times_64
    s_step_mod_8 = s_step % 8
    new_piece = s_step_mod_8 == 0
    if new_piece & (s_step > first_steps):
        for r in cutlass.range_constexpr(2):
            m = fmax(m_before[r], m_piece[r])  # attention.py:81
            is_empty = m == Float32(float("-inf"))
            m_safe = select(is_empty, Float32(0.0), m)
            alpha_a_exponent = m_before[r] - m_safe
            alpha_b_exponent = m_piece[r] - m_safe
            alpha_a = exp2(alpha_a_exponent)
            alpha_b = exp2(alpha_b_exponent)
            l_a_scaled = mul(l_before[r], alpha_a)
            l_b_scaled = mul(l_piece[r], alpha_b)
            l = l_a_scaled + l_b_scaled
            if rescales > 0:
                for c in cutlass.range_constexpr(32):
                    o_a_scaled = mul(o_before[r, c], alpha_a)
                    o_b_scaled = mul(acc_o[r, c], alpha_b)
                    o_before[r, c] = o_a_scaled + o_b_scaled
            else:
                for c in cutlass.range_constexpr(32):
                    o_a_scaled = mul(negative_zero(), alpha_a)
                    o_b_scaled = mul(acc_o[r, c], alpha_b)
                    o_before[r, c] = o_a_scaled + o_b_scaled
            m_piece[r], m_before[r], l_before[r] = Float32(float("-inf")), m, l
        rescales = rescales + 1
    s = [[mul(qk[r, c], scale_times_log2e) for c in range(16)] for r in range(2)]  # attention.py:281
    s_masked = [[], []]
    for r in cutlass.range_constexpr(2):
        for c in cutlass.range_constexpr(16):  # attention.py:79
            kv = s_begin + (quad + 8 * (c // 2) + c % 2)
            if cutlass.const_expr(masked):  # attention.py:81
                in_range = kv < end_k_value  # attention.py:79
                kv_lt_until = kv < until[r]
                exists = in_range & kv_lt_until
                s_masked[r].append(select(exists, s[r][c], Float32(float("-inf"))))  # attention.py:81
            else:
                s_masked[r].append(s[r][c])
    if new_piece:
        for r in cutlass.range_constexpr(2):
            # numerators of up to 2 ** 8 keep the scale: most chunks rescale no sum
            m_limit = m_piece[r] + Float32(8.0)
            m_chunk = max_over_s_lane(max_over_s_lane_of_thread(s_masked[r]))[0]
            m_grows = m_limit < m_chunk
            m_new = select(m_grows, m_chunk, m_piece[r])
            is_empty = m_new == Float32(float("-inf"))
            m_safe = select(is_empty, Float32(0.0), m_new)
            alpha_exponent = m_piece[r] - m_safe
            alpha = exp2(alpha_exponent)
            l_scaled = mul(l_piece[r], alpha)
            for c in cutlass.range_constexpr(32):
                acc_o[r, c] = mul(acc_o[r, c], alpha)
            m_piece[r], l_piece[r] = m_new, l_scaled
    if cutlass.const_expr(more):
        multiply(
            mma_qk, qk_fragment, q_factor[None, None, None, 0], k_factor[None, None, None, k_consumer_state.index],
            False, 8
        )
    l_chunk_parts = cute.make_rmem_tensor((4,), Float32)
    for r in cutlass.range_constexpr(2):
        p = []
        for c in cutlass.range_constexpr(16):
            p_exponent = s_masked[r][c] - m_piece[r]
            p.append(exp2(p_exponent))
            p_bf16[r, c] = Float32(p[c]).to(BFloat16)
        l_chunk_of_row = sum_over_s_lane_of_thread(p)
        for i in cutlass.range_constexpr(2):
            l_chunk_parts[2 * r + i] = l_chunk_of_row[i]
        # numerators that sum to less than 256 prove that the maximum stays
        stays = all_below(l_chunk_of_row, Float32(256.0))
        if any_lane(select(stays, Boolean(False), Boolean(True))):
            # numerators of up to 2 ** 8 keep the scale: most chunks rescale no sum
            m_limit = m_piece[r] + Float32(8.0)
            m_chunk = max_over_s_lane(max_over_s_lane_of_thread(s_masked[r]))[0]
            m_grows = m_limit < m_chunk
            m_new = select(m_grows, m_chunk, m_piece[r])
            is_empty = m_new == Float32(float("-inf"))
            m_safe = select(is_empty, Float32(0.0), m_new)
            alpha_exponent = m_piece[r] - m_safe
            alpha = exp2(alpha_exponent)
            l_scaled = mul(l_piece[r], alpha)
            for c in cutlass.range_constexpr(32):
                acc_o[r, c] = mul(acc_o[r, c], alpha)
            m_piece[r], l_piece[r] = m_new, l_scaled
            p_2 = []
            for c in cutlass.range_constexpr(16):
                p_exponent = s_masked[r][c] - m_safe
                p_2.append(exp2(p_exponent))
                p_bf16[r, c] = Float32(p_2[c]).to(BFloat16)
            l_chunk_of_row_2 = sum_over_s_lane_of_thread(p_2)
            for i in cutlass.range_constexpr(2):
                l_chunk_parts[2 * r + i] = l_chunk_of_row_2[i]
    if cutlass.const_expr(masked):
        if (end_k_value < s_begin + 64):
            column = 8 * (mine % 8)
            for i in cutlass.range_constexpr(4):
                down = mine % 128 // 8 + 16 * i
                kv = s_begin + down  # attention.py:79
                in_range = kv < end_k_value
                for j in cutlass.range_constexpr(2):
                    clear_vector_where(
                        select(in_range, Boolean(False), Boolean(True)), v_tiles,
                        (column + 64 * j, down, v_consumer_state.index), 8
                    )
            cute.arch.fence_view_async_shared()
            cute.arch.barrier(barrier_id=group, number_of_threads=128)
    multiply(mma_pv, acc_o_fragment, p_bf16_fragment, v_factor[None, None, None, v_consumer_state.index], True, 4)
    if cutlass.const_expr(more):
        k_next_state = k_consumer_state.clone()
        k_next_state.advance()
        if s_step + 2 < last_steps:
            k_ring.consumer_wait(k_next_state)
    l_chunk = sum_over_s_lane([l_chunk_parts[i] for i in range(4)])  # attention.py:81
    l_new = [l_piece[r] + l_chunk[r] for r in range(2)]
    for r in cutlass.range_constexpr(2):
        l_piece[r] = l_new[r]
    if cutlass.const_expr(more):
        v_ring.consumer_wait(k_consumer_state)
    warpgroup.wait_group(0)
    if cutlass.const_expr(more):
        k_ring.consumer_release(k_consumer_state)
    v_ring.consumer_release(v_consumer_state)
    v_consumer_state = k_consumer_state.clone()
    if cutlass.const_expr(more):
        k_consumer_state = k_next_state
    return k_consumer_state, v_consumer_state, rescales


@cute.kernel
def varlen_attention(
    mma_qk: cute.TiledMma, mma_pv: cute.TiledMma, tma_k: cute.CopyAtom, k: cute.Tensor, tma_v: cute.CopyAtom,
    v: cute.Tensor, q: cute.Tensor, begin_q: cute.Tensor, end_q: cute.Tensor, begin_k: cute.Tensor, end_k: cute.Tensor,
    o: cute.Tensor, lse: cute.Tensor, varlen_attention_work_counter: cute.Pointer, Q: Int32, B: Int32, S: Int32,
    T: Int32, scale: Float32
):
    # A block owns 192 of Q*G, 1 of H (back_to_back_gemm).
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    blocks, _, _ = cute.arch.grid_dim()
    group = cute.arch.make_warp_uniform(thread // 128)
    lane = cute.arch.lane_idx()
    memory = utils.SmemAllocator().allocate(varlen_attention_memory)
    q_ring = pipeline.PipelineCpAsync.create(
        barrier_storage=memory.q_ring.data_ptr(),
        num_stages=1,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 128),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 12),
    )
    k_ring = pipeline.PipelineTmaAsync.create(
        barrier_storage=memory.k_ring.data_ptr(),
        num_stages=2,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 12),
        tx_count=16384,
        cta_layout_vmnk=cute.make_layout((1, 1, 1, 1)),
    )
    v_ring = pipeline.PipelineTmaAsync.create(
        barrier_storage=memory.v_ring.data_ptr(),
        num_stages=2,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 12),
        tx_count=16384,
        cta_layout_vmnk=cute.make_layout((1, 1, 1, 1)),
    )
    work_tile_pipeline = pipeline.PipelineAsync.create(
        barrier_storage=memory.work_tile_pipeline.data_ptr(),
        num_stages=1,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 1),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 12),
    )
    work_tile = cute.make_tensor(memory.work_tile.data_ptr(), cute.make_layout(10))
    next_tile = cute.make_tensor(memory.next_tile.data_ptr(), cute.make_layout(1))
    cute.arch.griddepcontrol_wait()
    layouts = varlen_attention_layouts()
    q_tiles = memory.q.get_tensor(layouts[0].outer, swizzle=layouts[0].inner)
    k_tiles = memory.k.get_tensor(layouts[1].outer, swizzle=layouts[1].inner)
    v_tiles = memory.v.get_tensor(layouts[2].outer, swizzle=layouts[2].inner)
    tiles = Q * 4 // 192 + B
    together = S // imax(B, 1) <= 3072
    items = tiles * 8
    if group == 0:
        # Producer: draw work tiles, copy their rows by cp.async; one warp issues TMA loads of streamed tiles.
        cute.arch.setmaxregister_decrease(32)
        producer_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 2)
        tile_producer_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 1)
        item = block
        while item < items:
            tile = tiles - 1 - select(together, item // 8, item % tiles)
            b = segment_of(begin_q, tile, B, lane, 4, 192)
            segment_begin = begin_q[b].to(Int32) * 4
            segment_rows = end_q[b].to(Int32) * 4 - segment_begin
            first = (tile - (segment_begin // 192 + b)) * 192
            h = select(together, item % 8, item // tiles)
            begin_k_value = begin_k[b]  # attention.py:75
            end_k_value = end_k[b]  # attention.py:76
            keys = end_k_value - begin_k_value
            begin_q_value = begin_q[b]  # attention.py:305
            end_q_value = end_q[b]  # attention.py:306
            count = end_q_value - begin_q_value
            keys_minus_count = keys - count  # attention.py:307
            length = cutlass.max(0, keys)  # attention.py:79
            q_g = [first + lane + 32 * r for r in range(6)]
            query = [q_g[r] // 4 for r in range(6)]  # attention.py:305
            key = [query[r] + keys_minus_count for r in range(6)]  # attention.py:307
            key_plus_1 = [key[r] + 1 for r in range(6)]  # attention.py:313
            until = [key_plus_1[r] + begin_k_value for r in range(6)]
            until_minus_begin_k = [until[r] - begin_k_value for r in range(6)]  # attention.py:79
            visible = [cutlass.max(0, until_minus_begin_k[r]) for r in range(6)]
            seen = [cutlass.min(length, visible[r]) for r in range(6)]
            full_steps_2 = [seen[r] // 64 for r in range(6)]
            seen_plus_63 = [seen[r] + 63 for r in range(6)]
            steps = [seen_plus_63[r] // 64 for r in range(6)]
            first_steps = Int32(0)
            last_of = [
                select(
                    first + 64 * g < segment_rows, imax(of_rows(steps[2 * g : 2 * (g + 1)], imax), first_steps + 1),
                    first_steps + 1
                )
                for g in range(3)
            ]
            full_of = [
                imax(first_steps, imin(of_rows(full_steps_2[2 * g : 2 * (g + 1)], imin), last_of[g] - 1))
                for g in range(3)
            ]
            last_steps = imax(imax(last_of[0], last_of[1]), last_of[2])
            publish_work_tile(
                thread, work_tile_pipeline, tile_producer_state, work_tile,
                (item, b, first_steps, last_steps, *full_of, *last_of)
            )
            q_ring.producer_acquire(tile_producer_state)
            column = 8 * (thread % 8)
            for i in cutlass.range_constexpr(12):
                down = thread // 8 + 16 * i
                q_g = first + down
                query = q_g // 4  # attention.py:305
                token = begin_q_value + query  # attention.py:307
                inside = query < count
                token_ge_0 = 0 <= token  # attention.py:77
                token_lt_T = token < T
                q_guard = token_ge_0 & token_lt_T
                q_guard_2 = inside & q_guard
                g = q_g % 4
                for j in cutlass.range_constexpr(2):
                    copy_vector_where(
                        q_guard_2, q, (token, h, g, (column + 64 * j)), q_tiles, (down, column + 64 * j, 0), 8
                    )
            q_ring.producer_commit(tile_producer_state)
            tile_producer_state.advance()
            for s_step in cutlass.range(first_steps, last_steps, unroll=1):
                s_step_times_64 = s_step * 64  # attention.py:79
                s_begin = begin_k_value + s_step_times_64
                tma_load(k_ring, producer_state, tma_k, k[None, None, h], (s_begin, 0), (64, 128), k_tiles)
                tma_load(v_ring, producer_state, tma_v, v[None, None, h], (0, s_begin), (128, 64), v_tiles)
                producer_state.advance()
            item = next_work_tile(thread, next_tile, varlen_attention_work_counter, blocks, items)
        publish_work_tile(thread, work_tile_pipeline, tile_producer_state, work_tile, (items, *[0] * 9))
    else:
        # Consumers own 64 rows each; S of the next step is issued before the softmax of this one.
        cute.arch.setmaxregister_increase(160)
        mine = thread - 128
        share = cute.make_layout(3, stride=128)(group - 1)
        q_factor = mma_qk.make_fragment_A(mma_qk.get_slice(share).partition_A(q_tiles))
        k_factor = mma_qk.make_fragment_B(mma_qk.get_slice(share).partition_B(k_tiles))
        v_factor = mma_pv.make_fragment_B(mma_pv.get_slice(share).partition_B(v_tiles))
        qk_fragment = cute.make_rmem_tensor(mma_qk.partition_shape_C((192, 64)), Float32)
        qk = by_rows(qk_fragment, 8)
        p_bf16_fragment = cute.make_rmem_tensor(mma_pv.partition_shape_A((192, 64)), BFloat16)
        p_bf16 = by_rows(p_bf16_fragment, 8)
        row = mine // 32 * 16 + mine // 4 % 8
        quad = 2 * (mine % 4)
        first_of_quad = quad == 0
        # epilogue scratch of a warp: accumulator pairs to 16-byte vectors
        epilogue_tile = memory.epilogue_smem.data_ptr() + cute.assume(mine // 32 * 256, divby=256)
        k_consumer_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 2)
        v_consumer_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 2)
        tile_consumer_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 1)
        item, b, first_steps, all_steps, full_steps, last_steps = read_work_tile(
            work_tile_pipeline, tile_consumer_state, work_tile, group, 4, 3
        )
        while item < items:
            tile = tiles - 1 - select(together, item // 8, item % tiles)
            segment_begin = begin_q[b].to(Int32) * 4
            first = (tile - (segment_begin // 192 + b)) * 192
            h = select(together, item % 8, item // tiles)
            begin_k_value = begin_k[b]  # attention.py:75
            end_k_value = end_k[b]  # attention.py:76
            keys = end_k_value - begin_k_value
            begin_q_value = begin_q[b]  # attention.py:305
            end_q_value = end_q[b]  # attention.py:306
            count = end_q_value - begin_q_value
            keys_minus_count = keys - count  # attention.py:307
            scale_times_log2e = mul(scale, Float32(1.4426950216293335))  # attention.py:281
            q_g = [first + row + 8 * r for r in range(2)]  # attention.py:79
            query = [q_g[r] // 4 for r in range(2)]  # attention.py:305
            key = [query[r] + keys_minus_count for r in range(2)]  # attention.py:307
            key_plus_1 = [key[r] + 1 for r in range(2)]  # attention.py:313
            until = [key_plus_1[r] + begin_k_value for r in range(2)]
            scale_times_log2e = held(scale_times_log2e)  # attention.py:79
            m_piece = cute.make_rmem_tensor((2,), Float32)
            m_piece.fill(Float32(float("-inf")))
            l_piece = cute.make_rmem_tensor((2,), Float32)
            l_piece.fill(Float32(0.0))
            acc_o_fragment = cute.make_rmem_tensor(mma_pv.partition_shape_C((192, 128)), Float32)
            acc_o_fragment.fill(Float32(0.0))
            acc_o = by_rows(acc_o_fragment, 16)
            m_before = cute.make_rmem_tensor((2,), Float32)
            m_before.fill(Float32(float("-inf")))
            l_before = cute.make_rmem_tensor((2,), Float32)
            l_before.fill(negative_zero())
            o_before = cute.make_tensor(
                memory.o_before.data_ptr() + 4 * mine, cute.make_layout((2, (4, 8)), stride=(12288, (1, 1536)))
            )
            rescales = Int32(0)
            q_ring.consumer_wait(tile_consumer_state)
            cute.arch.fence_view_async_shared()
            k_ring.consumer_wait(k_consumer_state)
            multiply(
                mma_qk, qk_fragment, q_factor[None, None, None, 0], k_factor[None, None, None, k_consumer_state.index],
                False, 8
            )
            warpgroup.wait_group(0)
            k_ring.consumer_release(k_consumer_state)
            k_consumer_state.advance()
            if first_steps + 1 < last_steps:
                k_ring.consumer_wait(k_consumer_state)
            v_ring.consumer_wait(v_consumer_state)
            for s_step in cutlass.range(first_steps, full_steps, unroll=1):  # attention.py:81
                k_consumer_state, v_consumer_state, rescales = varlen_attention_step(
                    s_step, k_consumer_state, v_consumer_state, rescales, k_ring, v_ring, q_factor, k_factor, v_tiles,
                    v_factor, mma_qk, mma_pv, qk_fragment, qk, p_bf16_fragment, p_bf16, m_piece, l_piece, m_before,
                    l_before, acc_o_fragment, acc_o, o_before, begin_k_value, first_steps, scale_times_log2e, quad,
                    end_k_value, until, mine, group, last_steps, masked=False, more=True
                )
            for s_step in cutlass.range(full_steps, last_steps - 1, unroll=1):
                k_consumer_state, v_consumer_state, rescales = varlen_attention_step(
                    s_step, k_consumer_state, v_consumer_state, rescales, k_ring, v_ring, q_factor, k_factor, v_tiles,
                    v_factor, mma_qk, mma_pv, qk_fragment, qk, p_bf16_fragment, p_bf16, m_piece, l_piece, m_before,
                    l_before, acc_o_fragment, acc_o, o_before, begin_k_value, first_steps, scale_times_log2e, quad,
                    end_k_value, until, mine, group, last_steps, masked=True, more=True
                )
            with cute.arch.elect_one():
                q_ring.consumer_release(tile_consumer_state)
            k_consumer_state, v_consumer_state, rescales = varlen_attention_step(
                last_steps - 1, k_consumer_state, v_consumer_state, rescales, k_ring, v_ring, q_factor, k_factor,
                v_tiles, v_factor, mma_qk, mma_pv, qk_fragment, qk, p_bf16_fragment, p_bf16, m_piece, l_piece, m_before,
                l_before, acc_o_fragment, acc_o, o_before, begin_k_value, first_steps, scale_times_log2e, quad,
                end_k_value, until, mine, group, last_steps, masked=True, more=False
            )
            for s_step_2 in cutlass.range(last_steps, all_steps, unroll=1):
                k_ring.consumer_wait(k_consumer_state)
                v_ring.consumer_wait(v_consumer_state)
                k_ring.consumer_release(k_consumer_state)
                v_ring.consumer_release(v_consumer_state)
                k_consumer_state.advance()
                v_consumer_state.advance()
            for r in cutlass.range_constexpr(2):
                earlier_o_before = earlier(rescales, o_before, r, 32, negative_zero())
                token = begin_q_value + query[r]  # attention.py:307
                inside = query[r] < count
                g = q_g[r] % 4  # attention.py:77
                m = fmax(m_before[r], m_piece[r])  # attention.py:81
                is_empty = m == Float32(float("-inf"))
                m_safe = select(is_empty, Float32(0.0), m)
                alpha_a_exponent = m_before[r] - m_safe
                alpha_b_exponent = m_piece[r] - m_safe
                alpha_a = exp2(alpha_a_exponent)
                alpha_b = exp2(alpha_b_exponent)
                l_a_scaled = mul(l_before[r], alpha_a)
                l_b_scaled = mul(l_piece[r], alpha_b)
                l = l_a_scaled + l_b_scaled
                l_is_0 = l == Float32(0.0)  # attention.py:329
                log_l = portable_log(l)  # attention.py:331
                lse_value = fma(m, Float32(0.6931471824645996), log_l)
                store_where(inside & first_of_quad, lse, (h, g, token), lse_value)
                o_value = []  # attention.py:81
                for c in cutlass.range_constexpr(32):
                    o_a_scaled = mul(earlier_o_before[c], alpha_a)
                    o_b_scaled = mul(acc_o[r, c], alpha_b)
                    o_value.append(o_a_scaled + o_b_scaled)
                o_over_l = divided(o_value, l)  # attention.py:329
                mean_bf16 = []
                for c in cutlass.range_constexpr(32):
                    o_over_l_or_0 = select(l_is_0, Float32(0.0), o_over_l[c])
                    mean = o_over_l_or_0 + Float32(0.0)
                    mean_bf16.append(Float32(mean).to(BFloat16))  # attention.py:330
                for c in cutlass.range_constexpr(0, 32, 16):
                    vectors = to_vectors(epilogue_tile, o.element_type, mean_bf16[c : c + 16])
                    for i in cutlass.range_constexpr(2):
                        store_vector_where(
                            inside, o, (token, h, g, (quad + 8 * (c // 2) + 3 * quad + 32 * i)), vectors[i]
                        )
            tile_consumer_state.advance()
            item, b, first_steps, all_steps, full_steps, last_steps = read_work_tile(
                work_tile_pipeline, tile_consumer_state, work_tile, group, 4, 3
            )


@cute.jit
def launch_varlen_attention(
    q_ptr: cute.Pointer, k_ptr: cute.Pointer, v_ptr: cute.Pointer, begin_q_ptr: cute.Pointer, end_q_ptr: cute.Pointer,
    begin_k_ptr: cute.Pointer, end_k_ptr: cute.Pointer, o_ptr: cute.Pointer, lse_ptr: cute.Pointer,
    varlen_attention_work_counter_ptr: cute.Pointer, Q: Int32, B: Int32, S: Int32, T: Int32, q_t_stride: Int64,
    q_h_stride: Int64, q_g_stride: Int64, k_s_stride: Int64, k_h_stride: Int64, v_s_stride: Int64, v_h_stride: Int64,
    o_t_stride: Int64, o_h_stride: Int64, o_g_stride: Int64, lse_h_stride: Int64, lse_g_stride: Int64, scale: Float32,
    programs: Int32, overlap: Int32, stream: cuda.CUstream
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
        cute.make_layout((128, S, 8), stride=(1, cute.assume(v_s_stride, divby=8), cute.assume(v_h_stride, divby=8)))
    )
    begin_q = cute.make_tensor(begin_q_ptr, cute.make_layout((B,), stride=(1,)))
    end_q = cute.make_tensor(end_q_ptr, cute.make_layout((B,), stride=(1,)))
    begin_k = cute.make_tensor(begin_k_ptr, cute.make_layout((B,), stride=(1,)))
    end_k = cute.make_tensor(end_k_ptr, cute.make_layout((B,), stride=(1,)))
    o = cute.make_tensor(o_ptr, cute.make_layout((T, 8, 4, 128), stride=(o_t_stride, o_h_stride, o_g_stride, 1)))
    lse = cute.make_tensor(lse_ptr, cute.make_layout((8, 4, T), stride=(lse_h_stride, lse_g_stride, 1)))
    mma_qk, mma_pv = varlen_attention_units()
    layouts = varlen_attention_layouts()
    tma_k, k = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), k, cute.slice_(layouts[1], (None, None, 0)), (64, 128)
    )
    tma_v, v = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), v, cute.slice_(layouts[2], (None, None, 0)), (128, 64)
    )
    varlen_attention(
        mma_qk, mma_pv, tma_k, k, tma_v, v, q, begin_q, end_q, begin_k, end_k, o, lse,
        varlen_attention_work_counter_ptr, Q, B, S, T, scale
    ).launch(
        grid=(programs, 1, 1), block=(512, 1, 1), cluster=(1, 1, 1), min_blocks_per_mp=1, use_pdl=overlap,
        stream=stream,
    )


def call(
    kernels, q, k, v, begin_q, end_q, begin_k, end_k, o, lse, scale, Q, B, S, T, q_t_stride, q_h_stride, q_g_stride,
    k_s_stride, k_h_stride, v_s_stride, v_h_stride, o_t_stride, o_h_stride, o_g_stride, lse_h_stride, lse_g_stride,
    varlen_attention_work_counter
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = min((Q * 4 // 192 + B) * 8, 132)
    if programs > 0:
        kernels.varlen_attention(
            (programs,), q, k, v, begin_q, end_q, begin_k, end_k, o, lse, varlen_attention_work_counter, Q, B, S, T,
            q_t_stride, q_h_stride, q_g_stride, k_s_stride, k_h_stride, v_s_stride, v_h_stride, o_t_stride, o_h_stride,
            o_g_stride, lse_h_stride, lse_g_stride, scale
        )
