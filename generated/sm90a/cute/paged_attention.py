"""paged_attention on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 6c0d804943e797e0
schedule: tiles Q*G=64, 4 consumer warps, 4 producer warps, 5 stages
inputs:
  q: bf16 [T, H=8, G=4, E=128]
  k_cache: bf16 [P, O=64, H=8, E=128]
  v_cache: bf16 [P, O=64, H=8, W=128]
  block_table: i32 [B, M]
  context_lens: i32 [B]
  begin_q: i32 [B]
  end_q: i32 [B]
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


def any_lane(condition):
    # True if it holds for some thread of the warp.
    return cute.arch.vote_any_sync(condition)


def by_rows(fragment, blocks):
    # View an accumulator as [row, column]: two rows, and columns 8 i + 2 (thread % 4) + {0, 1}.
    return cute.make_tensor(fragment.iterator, cute.make_layout((2, (2, blocks)), stride=(2, (1, 4))))


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
class paged_attention_memory:
    """Shared memory: mbarriers of the pipelines, resident tiles, and streamed tiles of each stage."""

    q_ring: cute.struct.MemRange[Int64, 2]
    k_cache_ring: cute.struct.MemRange[Int64, 10]
    v_cache_ring: cute.struct.MemRange[Int64, 10]
    q: cute.struct.Align[cute.struct.MemRange[BFloat16, 8192], 1024]
    k_cache: cute.struct.Align[cute.struct.MemRange[BFloat16, 40960], 1024]
    v_cache: cute.struct.Align[cute.struct.MemRange[BFloat16, 40960], 1024]
    epilogue_smem: cute.struct.Align[cute.struct.MemRange[Int32, 1024], 128]


def paged_attention_layouts():
    # Swizzled smem layouts of wgmma operands, K-major or MN-major.
    return (
        sm90.make_smem_layout_a(ROW_MAJOR, (64, 64, 128), BFloat16, 1),
        sm90.make_smem_layout_b(ROW_MAJOR, (64, 64, 128), BFloat16, 5),
        sm90.make_smem_layout_b(COL_MAJOR, (64, 128, 64), BFloat16, 5),
    )


def paged_attention_units():
    # wgmma with both operands in smem (S, dP), and with A in registers (O += P V; dQ, dK, dV).
    k, mn, groups = OperandMajorMode.K, OperandMajorMode.MN, (1, 1, 1)
    mma_qk = sm90.make_trivial_tiled_mma(
        BFloat16, BFloat16, k, k, Float32, groups, tiler_mn=(64, 64)
    )
    mma_pv = sm90.make_trivial_tiled_mma(
        BFloat16, BFloat16, k, mn, Float32, groups, tiler_mn=(64, 128),
        a_source=warpgroup.OperandSource.RMEM,
    )
    return mma_qk, mma_pv


@cute.jit
def paged_attention_step(
    s_step, k_consumer_state, v_consumer_state, k_cache_ring, v_cache_ring, q_factor, k_cache_factor, v_cache_factor,
    mma_qk, mma_pv, qk_fragment, qk, p_bf16_fragment, p_bf16, m_piece, l_piece, m_before, l_before, acc_o_fragment,
    acc_o, o_before, first_steps, scale_times_log2e, quad, context_lens_value, key_plus_1_2, masked: cutlass.Constexpr,
    more: cutlass.Constexpr
):
    # One KV tile: online softmax of S, S of the next tile, O += P V.
    # Parameters: step; pipeline states, pipelines; tiles; wgmma, S and P; row statistics, accumulators; scalars.
    s_step_times_64 = s_step * 64  # attention.py:206
    s_step_mod_8 = s_step % 8
    new_piece = s_step_mod_8 == 0
    if new_piece & (s_step > first_steps):
        for r in cutlass.range_constexpr(2):
            m = fmax(m_before[r], m_piece[r])  # attention.py:210
            is_empty = m == Float32(float("-inf"))
            m_safe = select(is_empty, Float32(0.0), m)
            alpha_a_exponent = m_before[r] - m_safe
            alpha_b_exponent = m_piece[r] - m_safe
            alpha_a = exp2(alpha_a_exponent)
            alpha_b = exp2(alpha_b_exponent)
            l_a_scaled = mul(l_before[r], alpha_a)
            l_b_scaled = mul(l_piece[r], alpha_b)
            l = l_a_scaled + l_b_scaled
            for c in cutlass.range_constexpr(32):
                o_a_scaled = mul(o_before[r, c], alpha_a)
                o_b_scaled = mul(acc_o[r, c], alpha_b)
                o_before[r, c] = o_a_scaled + o_b_scaled
            m_piece[r], m_before[r], l_before[r] = Float32(float("-inf")), m, l
    s = [[mul(qk[r, c], scale_times_log2e) for c in range(16)] for r in range(2)]  # attention.py:281
    if cutlass.const_expr(more):
        k_cache_ring.consumer_wait(k_consumer_state)
        cute.arch.fence_view_async_shared()
        multiply(
            mma_qk, qk_fragment, q_factor[None, None, None, 0],
            k_cache_factor[None, None, None, k_consumer_state.index], False, 8
        )
    # numerators of up to 2 ** 8 keep the scale: most chunks rescale no sum
    m_limit = [m_piece[r] + Float32(8.0) for r in range(2)]  # attention.py:210
    s_masked = [[], []]
    for r in cutlass.range_constexpr(2):
        for c in cutlass.range_constexpr(16):  # attention.py:206
            kv = s_step_times_64 + (quad + 8 * (c // 2) + c % 2)
            if cutlass.const_expr(masked):  # attention.py:210
                in_range = kv < context_lens_value  # attention.py:206
                exists_below = kv < key_plus_1_2[r]
                exists = in_range & exists_below
                s_masked[r].append(select(exists, s[r][c], Float32(float("-inf"))))  # attention.py:210
            else:
                s_masked[r].append(s[r][c])
    m_chunk_parts = [x for r in range(2) for x in max_over_s_lane_of_thread(s_masked[r])]
    m_chunk = max_over_s_lane(m_chunk_parts)
    m_grows = [m_limit[r] < m_chunk[r] for r in range(2)]
    m_new = [select(m_grows[r], m_chunk[r], m_piece[r]) for r in range(2)]
    is_empty = [m_new[r] == Float32(float("-inf")) for r in range(2)]
    m_safe = [select(is_empty[r], Float32(0.0), m_new[r]) for r in range(2)]
    alpha_exponent = [m_piece[r] - m_safe[r] for r in range(2)]
    alpha = [exp2(alpha_exponent[r]) for r in range(2)]
    l_scaled = [mul(l_piece[r], alpha[r]) for r in range(2)]
    p = [[], []]
    for r in cutlass.range_constexpr(2):
        for c in cutlass.range_constexpr(16):
            p_exponent = s_masked[r][c] - m_safe[r]
            p[r].append(exp2(p_exponent))
            p_bf16[r, c] = Float32(p[r][c]).to(BFloat16)
    if any_lane((alpha[0] != Float32(1.0)) | (alpha[1] != Float32(1.0))):
        for r in cutlass.range_constexpr(2):
            for c in cutlass.range_constexpr(32):
                acc_o[r, c] = mul(acc_o[r, c], alpha[r])
    l_chunk_parts = [x for r in range(2) for x in sum_over_s_lane_of_thread(p[r])]
    v_cache_ring.consumer_wait(v_consumer_state)
    cute.arch.fence_view_async_shared()
    multiply(mma_pv, acc_o_fragment, p_bf16_fragment, v_cache_factor[None, None, None, v_consumer_state.index], True, 4)
    l_chunk = sum_over_s_lane(l_chunk_parts)
    l_new = [l_scaled[r] + l_chunk[r] for r in range(2)]
    for r in cutlass.range_constexpr(2):
        m_piece[r], l_piece[r] = m_new[r], l_new[r]
    warpgroup.wait_group(0)
    if cutlass.const_expr(more):
        with cute.arch.elect_one():
            k_cache_ring.consumer_release(k_consumer_state)
        k_consumer_state.advance()
    with cute.arch.elect_one():
        v_cache_ring.consumer_release(v_consumer_state)
    v_consumer_state.advance()
    return k_consumer_state, v_consumer_state


@cute.kernel
def paged_attention(
    mma_qk: cute.TiledMma, mma_pv: cute.TiledMma, q: cute.Tensor, k_cache: cute.Tensor, v_cache: cute.Tensor,
    block_table: cute.Tensor, context_lens: cute.Tensor, begin_q: cute.Tensor, end_q: cute.Tensor, o: cute.Tensor,
    lse: cute.Tensor, Q: Int32, B: Int32, T: Int32, M: Int32, P: Int32, scale: Float32
):
    # A block owns 64 of Q*G, 1 of H (back_to_back_gemm).
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    group = cute.arch.make_warp_uniform(thread // 128)
    lane = cute.arch.lane_idx()
    memory = utils.SmemAllocator().allocate(paged_attention_memory)
    q_ring = pipeline.PipelineCpAsync.create(
        barrier_storage=memory.q_ring.data_ptr(),
        num_stages=1,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 128),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 4),
    )
    k_cache_ring = pipeline.PipelineCpAsync.create(
        barrier_storage=memory.k_cache_ring.data_ptr(),
        num_stages=5,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 128),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 4),
    )
    v_cache_ring = pipeline.PipelineCpAsync.create(
        barrier_storage=memory.v_cache_ring.data_ptr(),
        num_stages=5,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 128),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 4),
    )
    cute.arch.griddepcontrol_wait()
    layouts = paged_attention_layouts()
    q_tiles = memory.q.get_tensor(layouts[0].outer, swizzle=layouts[0].inner)
    k_cache_tiles = memory.k_cache.get_tensor(layouts[1].outer, swizzle=layouts[1].inner)
    v_cache_tiles = memory.v_cache.get_tensor(layouts[2].outer, swizzle=layouts[2].inner)
    tiles = Q * 4 // 64 + B
    tile = tiles - 1 - block % tiles
    b = segment_of(begin_q, tile, B, lane, 4, 64)
    segment_begin = begin_q[b].to(Int32) * 4
    segment_rows = end_q[b].to(Int32) * 4 - segment_begin
    first = (tile - (segment_begin // 64 + b)) * 64
    h = block // tiles
    begin_q_value = begin_q[b]  # attention.py:305
    end_q_value = end_q[b]  # attention.py:306
    count = end_q_value - begin_q_value
    context_lens_value = context_lens[b]  # attention.py:307
    context_lens_minus_count = context_lens_value - count
    length = cutlass.max(0, context_lens_value)  # attention.py:206
    scale_times_log2e = mul(scale, Float32(1.4426950216293335))  # attention.py:281
    q_g = [first + lane + 32 * r for r in range(2)]
    query = [q_g[r] // 4 for r in range(2)]  # attention.py:305
    key = [query[r] + context_lens_minus_count for r in range(2)]  # attention.py:307
    key_plus_1 = [key[r] + 1 for r in range(2)]  # attention.py:313
    visible = [cutlass.max(0, key_plus_1[r]) for r in range(2)]  # attention.py:206
    seen = [cutlass.min(length, visible[r]) for r in range(2)]
    full_steps_2 = [seen[r] // 64 for r in range(2)]
    seen_plus_63 = [seen[r] + 63 for r in range(2)]
    steps = [seen_plus_63[r] // 64 for r in range(2)]
    first_steps = Int32(0)
    last_steps = select(first < segment_rows, imax(of_rows(steps, imax), first_steps + 1), first_steps + 1)
    full_steps = imax(first_steps, imin(of_rows(full_steps_2, imin), last_steps - 1))
    if group == 0:
        # Producer: each thread copies vectors by cp.async, zeros for out-of-bounds rows.
        cute.arch.setmaxregister_decrease(96)
        tile_producer_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 1)
        q_ring.producer_acquire(tile_producer_state)
        column = 8 * (thread % 8)
        for i in cutlass.range_constexpr(4):
            down = thread // 8 + 16 * i
            q_g_2 = first + down
            query_2 = q_g_2 // 4  # attention.py:305
            token = begin_q_value + query_2  # attention.py:307
            inside = query_2 < count
            token_ge_0 = 0 <= token  # attention.py:204
            token_lt_T = token < T
            q_guard = token_ge_0 & token_lt_T
            q_guard_2 = inside & q_guard
            g = q_g_2 % 4
            for j in cutlass.range_constexpr(2):
                copy_vector_where(
                    q_guard_2, q, (token, h, g, (column + 64 * j)), q_tiles, (down, column + 64 * j, 0), 8
                )
        q_ring.producer_commit(tile_producer_state)
        producer_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 5)
        for s_step in cutlass.range(first_steps, last_steps, unroll=1):
            k_cache_ring.producer_acquire(producer_state)
            s_step_times_64 = s_step * 64  # attention.py:206
            column = 8 * (thread % 8)
            for i in cutlass.range_constexpr(4):
                down = thread // 8 + 16 * i
                s_lane = down
                kv = s_step_times_64 + s_lane
                in_range = kv < context_lens_value
                kv_over_64 = kv // 64  # attention.py:207
                block_table_guard_at_most = 0 <= kv_over_64
                block_table_guard_below = kv_over_64 < M
                block_table_guard = block_table_guard_at_most & block_table_guard_below
                block_table_guard_2 = in_range & block_table_guard
                block_table_value = load_where(block_table_guard_2, block_table, (b, kv_over_64), Int32(0))
                slot = kv % 64
                block_table_ge_0 = 0 <= block_table_value  # attention.py:208
                block_table_lt_P = block_table_value < P
                k_cache_guard = block_table_ge_0 & block_table_lt_P
                slot_ge_0 = 0 <= slot
                slot_lt_64 = slot < 64
                k_cache_guard_2 = slot_ge_0 & slot_lt_64
                k_cache_guard_3 = k_cache_guard & k_cache_guard_2
                k_cache_guard_4 = in_range & k_cache_guard_3
                for j in cutlass.range_constexpr(2):
                    copy_vector_where(
                        k_cache_guard_4, k_cache, (block_table_value, slot, h, (column + 64 * j)), k_cache_tiles,
                        (down, column + 64 * j, producer_state.index), 8
                    )
            k_cache_ring.producer_commit(producer_state)
            v_cache_ring.producer_acquire(producer_state)
            s_step_times_64 = s_step * 64  # attention.py:206
            column = 8 * (thread % 8)
            for i in cutlass.range_constexpr(4):
                down = thread // 8 + 16 * i
                s_lane = down
                kv = s_step_times_64 + s_lane
                in_range = kv < context_lens_value
                kv_over_64 = kv // 64  # attention.py:207
                block_table_guard_at_most = 0 <= kv_over_64
                block_table_guard_below = kv_over_64 < M
                block_table_guard = block_table_guard_at_most & block_table_guard_below
                block_table_guard_2 = in_range & block_table_guard
                block_table_value = load_where(block_table_guard_2, block_table, (b, kv_over_64), Int32(0))
                slot = kv % 64
                block_table_ge_0 = 0 <= block_table_value  # attention.py:208
                block_table_lt_P = block_table_value < P
                k_cache_guard = block_table_ge_0 & block_table_lt_P
                slot_ge_0 = 0 <= slot
                slot_lt_64 = slot < 64
                k_cache_guard_2 = slot_ge_0 & slot_lt_64
                k_cache_guard_3 = k_cache_guard & k_cache_guard_2
                k_cache_guard_4 = in_range & k_cache_guard_3
                for j in cutlass.range_constexpr(2):
                    copy_vector_where(
                        k_cache_guard_4, v_cache, (block_table_value, slot, h, (column + 64 * j)), v_cache_tiles,
                        (column + 64 * j, down, producer_state.index), 8
                    )
            v_cache_ring.producer_commit(producer_state)
            producer_state.advance()
    else:
        # Consumers own 64 rows each; S of the next step is issued before the softmax of this one.
        cute.arch.setmaxregister_increase(240)
        mine = thread - 128
        share = cute.make_layout(1, stride=128)(group - 1)
        q_factor = mma_qk.make_fragment_A(mma_qk.get_slice(share).partition_A(q_tiles))
        k_cache_factor = mma_qk.make_fragment_B(mma_qk.get_slice(share).partition_B(k_cache_tiles))
        v_cache_factor = mma_pv.make_fragment_B(mma_pv.get_slice(share).partition_B(v_cache_tiles))
        qk_fragment = cute.make_rmem_tensor(mma_qk.partition_shape_C((64, 64)), Float32)
        qk = by_rows(qk_fragment, 8)
        p_bf16_fragment = cute.make_rmem_tensor(mma_pv.partition_shape_A((64, 64)), BFloat16)
        p_bf16 = by_rows(p_bf16_fragment, 8)
        row = mine // 32 * 16 + mine // 4 % 8
        quad = 2 * (mine % 4)
        first_of_quad = quad == 0
        # epilogue scratch of a warp: accumulator pairs to 16-byte vectors
        epilogue_tile = memory.epilogue_smem.data_ptr() + cute.assume(mine // 32 * 256, divby=256)
        k_consumer_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 5)
        v_consumer_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 5)
        q_g_2 = [first + row + 8 * r for r in range(2)]
        query_2 = [q_g_2[r] // 4 for r in range(2)]  # attention.py:305
        key_2 = [query_2[r] + context_lens_minus_count for r in range(2)]  # attention.py:307
        key_plus_1_2 = [key_2[r] + 1 for r in range(2)]  # attention.py:313
        m_piece = cute.make_rmem_tensor((2,), Float32)  # attention.py:206
        m_piece.fill(Float32(float("-inf")))
        l_piece = cute.make_rmem_tensor((2,), Float32)
        l_piece.fill(Float32(0.0))
        acc_o_fragment = cute.make_rmem_tensor(mma_pv.partition_shape_C((64, 128)), Float32)
        acc_o_fragment.fill(Float32(0.0))
        acc_o = by_rows(acc_o_fragment, 16)
        m_before = cute.make_rmem_tensor((2,), Float32)
        m_before.fill(Float32(float("-inf")))
        l_before = cute.make_rmem_tensor((2,), Float32)
        l_before.fill(negative_zero())
        o_before_fragment = cute.make_rmem_tensor(mma_pv.partition_shape_C((64, 128)), Float32)
        o_before_fragment.fill(negative_zero())
        o_before = by_rows(o_before_fragment, 16)
        q_ring.consumer_wait(pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 1))
        k_cache_ring.consumer_wait(k_consumer_state)
        cute.arch.fence_view_async_shared()
        multiply(
            mma_qk, qk_fragment, q_factor[None, None, None, 0],
            k_cache_factor[None, None, None, k_consumer_state.index], False, 8
        )
        warpgroup.wait_group(0)
        with cute.arch.elect_one():
            k_cache_ring.consumer_release(k_consumer_state)
        k_consumer_state.advance()
        for s_step in cutlass.range(first_steps, full_steps, unroll=1):  # attention.py:210
            k_consumer_state, v_consumer_state = paged_attention_step(
                s_step, k_consumer_state, v_consumer_state, k_cache_ring, v_cache_ring, q_factor, k_cache_factor,
                v_cache_factor, mma_qk, mma_pv, qk_fragment, qk, p_bf16_fragment, p_bf16, m_piece, l_piece, m_before,
                l_before, acc_o_fragment, acc_o, o_before, first_steps, scale_times_log2e, quad, context_lens_value,
                key_plus_1_2, masked=False, more=True
            )
        for s_step in cutlass.range(full_steps, last_steps - 1, unroll=1):
            k_consumer_state, v_consumer_state = paged_attention_step(
                s_step, k_consumer_state, v_consumer_state, k_cache_ring, v_cache_ring, q_factor, k_cache_factor,
                v_cache_factor, mma_qk, mma_pv, qk_fragment, qk, p_bf16_fragment, p_bf16, m_piece, l_piece, m_before,
                l_before, acc_o_fragment, acc_o, o_before, first_steps, scale_times_log2e, quad, context_lens_value,
                key_plus_1_2, masked=True, more=True
            )
        paged_attention_step(
            last_steps - 1, k_consumer_state, v_consumer_state, k_cache_ring, v_cache_ring, q_factor, k_cache_factor,
            v_cache_factor, mma_qk, mma_pv, qk_fragment, qk, p_bf16_fragment, p_bf16, m_piece, l_piece, m_before,
            l_before, acc_o_fragment, acc_o, o_before, first_steps, scale_times_log2e, quad, context_lens_value,
            key_plus_1_2, masked=True, more=False
        )
        for r in cutlass.range_constexpr(2):
            token = begin_q_value + query_2[r]  # attention.py:307
            inside = query_2[r] < count
            g = q_g_2[r] % 4  # attention.py:204
            m = fmax(m_before[r], m_piece[r])  # attention.py:210
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
            o_value = []  # attention.py:210
            for c in cutlass.range_constexpr(32):
                o_a_scaled = mul(o_before[r, c], alpha_a)
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
                    store_vector_where(inside, o, (token, h, g, (quad + 8 * (c // 2) + 3 * quad + 32 * i)), vectors[i])


@cute.jit
def launch_paged_attention(
    q_ptr: cute.Pointer, k_cache_ptr: cute.Pointer, v_cache_ptr: cute.Pointer, block_table_ptr: cute.Pointer,
    context_lens_ptr: cute.Pointer, begin_q_ptr: cute.Pointer, end_q_ptr: cute.Pointer, o_ptr: cute.Pointer,
    lse_ptr: cute.Pointer, Q: Int32, B: Int32, T: Int32, M: Int32, P: Int32, q_t_stride: Int64, q_h_stride: Int64,
    q_g_stride: Int64, k_cache_p_stride: Int64, k_cache_o_stride: Int64, k_cache_h_stride: Int64,
    v_cache_p_stride: Int64, v_cache_o_stride: Int64, v_cache_h_stride: Int64, block_table_b_stride: Int64,
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
    k_cache = cute.make_tensor(
        k_cache_ptr,
        cute.make_layout(
            (P, 64, 8, 128),
            stride=(
                cute.assume(k_cache_p_stride, divby=8), cute.assume(k_cache_o_stride, divby=8),
                cute.assume(k_cache_h_stride, divby=8), 1
            )
        )
    )
    v_cache = cute.make_tensor(
        v_cache_ptr,
        cute.make_layout(
            (P, 64, 8, 128),
            stride=(
                cute.assume(v_cache_p_stride, divby=8), cute.assume(v_cache_o_stride, divby=8),
                cute.assume(v_cache_h_stride, divby=8), 1
            )
        )
    )
    block_table = cute.make_tensor(block_table_ptr, cute.make_layout((B, M), stride=(block_table_b_stride, 1)))
    context_lens = cute.make_tensor(context_lens_ptr, cute.make_layout((B,), stride=(1,)))
    begin_q = cute.make_tensor(begin_q_ptr, cute.make_layout((B,), stride=(1,)))
    end_q = cute.make_tensor(end_q_ptr, cute.make_layout((B,), stride=(1,)))
    o = cute.make_tensor(o_ptr, cute.make_layout((T, 8, 4, 128), stride=(o_t_stride, o_h_stride, o_g_stride, 1)))
    lse = cute.make_tensor(lse_ptr, cute.make_layout((8, 4, T), stride=(lse_h_stride, lse_g_stride, 1)))
    mma_qk, mma_pv = paged_attention_units()
    paged_attention(
        mma_qk, mma_pv, q, k_cache, v_cache, block_table, context_lens, begin_q, end_q, o, lse, Q, B, T, M, P, scale
    ).launch(
        grid=(programs, 1, 1), block=(256, 1, 1), cluster=(1, 1, 1), min_blocks_per_mp=1, use_pdl=overlap,
        stream=stream,
    )


def call(
    kernels, q, k_cache, v_cache, block_table, context_lens, begin_q, end_q, o, lse, scale, Q, B, T, M, P, q_t_stride,
    q_h_stride, q_g_stride, k_cache_p_stride, k_cache_o_stride, k_cache_h_stride, v_cache_p_stride, v_cache_o_stride,
    v_cache_h_stride, block_table_b_stride, o_t_stride, o_h_stride, o_g_stride, lse_h_stride, lse_g_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = (Q * 4 // 64 + B) * 8
    if programs > 0:
        kernels.paged_attention(
            (programs,), q, k_cache, v_cache, block_table, context_lens, begin_q, end_q, o, lse, Q, B, T, M, P,
            q_t_stride, q_h_stride, q_g_stride, k_cache_p_stride, k_cache_o_stride, k_cache_h_stride, v_cache_p_stride,
            v_cache_o_stride, v_cache_h_stride, block_table_b_stride, o_t_stride, o_h_stride, o_g_stride, lse_h_stride,
            lse_g_stride, scale
        )
