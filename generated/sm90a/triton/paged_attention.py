"""paged_attention on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 6c0d804943e797e0
schedule: tiles Q*G=16, W=128, 4 warps, 2 stages, unroll 1, at most 128 registers
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

import triton
import triton.language as tl


@triton.jit
def segment_near(begin_ptr, tile, count, EACH: tl.constexpr, TILE: tl.constexpr):
    # As segment_of; the place among segments of one index each is tried first: decoding needs no other.
    near = tl.maximum(tl.minimum((tile * TILE + TILE + EACH - 1) // (TILE + EACH), count - 1), 0)
    below = tl.load(begin_ptr + near) * EACH // TILE + near <= tile
    after = tl.load(begin_ptr + near + 1, mask=near + 1 < count, other=0) * EACH // TILE + near + 1
    found = (near + 1 >= count) | (after > tile)
    low = tl.where(below, tl.where(found, near, near + 1), 0)
    high = tl.where(below, tl.where(found, near + 1, count), near)
    while high - low > 1:
        middle = (low + high) // 2
        later = tl.load(begin_ptr + middle) * EACH // TILE + middle > tile
        low, high = tl.where(later, low, middle), tl.where(later, middle, high)
    return low


@triton.jit
def negative_zero():
    # Triton reads the literal -0.0 as +0.0.
    return tl.full((), -2147483648, tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def max_over_s_lane(x):
    # The max over S.lane: no order changes it.
    x = tl.max(x, 1)
    return tl.reshape(x, (16, 1))


@triton.jit
def sum_over_s_lane(x):
    # The sum over S.lane, halving: two terms at a time, so that no layout chooses.
    x = tl.sum(tl.reshape(x, (16, 2, 32)), 1)
    x = tl.sum(tl.reshape(x, (16, 2, 16)), 1)
    x = tl.sum(tl.reshape(x, (16, 2, 8)), 1)
    x = tl.sum(tl.reshape(x, (16, 2, 4)), 1)
    x = tl.sum(tl.reshape(x, (16, 2, 2)), 1)
    x = tl.sum(tl.reshape(x, (16, 2)), 1)
    return tl.reshape(x, (16, 1))


@triton.jit
def divided(x, by):
    # x / by, correctly rounded, with one divisor per row: a reciprocal and two fma corrections, where all
    # magnitudes are in 2**-60 .. 2**60 (0x21800000 .. 0x5D800000), so that no correction is rounded away.
    bits, below = x.to(tl.uint32, bitcast=True), by.to(tl.int32, bitcast=True)
    least = (tl.min(bits * 2 - 1, 1) >> 1).to(tl.int32)[:, None]  # the smallest magnitude above zero
    most = tl.sum(tl.abs(x), 1).to(tl.int32, bitcast=True)[:, None]  # not less than the largest
    room = (least - 0x217FFFFF) | (0x5D800000 - most)
    room = room | (below - 0x21800000) | (0x5D800000 - below)
    if tl.min(tl.min(room, 1), 0) >= 0:
        inverse, negative = tl.div_rn(1.0, by), x * -1.0
        near = x * inverse
        near = tl.fma(tl.fma(by, near, negative) * -1.0, inverse, near)  # zeros keep their signs
        quotients = tl.fma(tl.fma(by, near, negative) * -1.0, inverse, near)
    else:
        quotients = tl.div_rn(x, by)
    return quotients


@triton.jit
def portable_log(x):
    # Natural logarithm; log(+-0) = -inf, log(x < 0) = NaN.
    f0 = x * 8388608.0
    f1 = tl.where((x < 1.1754944e-38), f0, x)
    i2 = f1.to(tl.int32, bitcast=True)
    i3 = i2 - 1061158912
    i4 = i3 >> 23
    i5 = i4 << 23
    i6 = i2 - i5
    f7 = i6.to(tl.float32, bitcast=True)
    f8 = f7 - 1.0
    f9 = i4.to(tl.float32)
    f10 = tl.where((x < 1.1754944e-38), -23.0, 0.0)
    f11 = f9 + f10
    f12 = tl.fma(-0.045135185, f8, 0.10471279)
    f13 = tl.fma(f12, f8, -0.13164203)
    f14 = tl.fma(f13, f8, 0.14478002)
    f15 = tl.fma(f14, f8, -0.16646925)
    f16 = tl.fma(f15, f8, 0.19990832)
    f17 = tl.fma(f16, f8, -0.25000107)
    f18 = tl.fma(f17, f8, 0.3333345)
    f19 = tl.fma(f18, f8, -0.5)
    f20 = f8 * f8
    f21 = tl.fma(f19, f20, f8)
    f22 = tl.fma(f11, 0.6931472, f21)
    f23 = tl.where((x < float("inf")), f22, x)
    f24 = tl.where((x == 0.0), float("-inf"), f23)
    f25 = tl.where((x < 0.0), float("nan"), f24)
    return f25


@triton.jit
def paged_attention(
    q_ptr, k_cache_ptr, v_cache_ptr, block_table_ptr, context_lens_ptr, begin_q_ptr, end_q_ptr, o_ptr, lse_ptr,
    k_cache_p_stride, k_cache_o_stride, k_cache_h_stride, v_cache_p_stride, v_cache_o_stride, v_cache_h_stride, Q, B, T,
    q_t_stride, q_h_stride, q_g_stride, M, P, block_table_b_stride, o_t_stride, o_h_stride, o_g_stride, lse_h_stride,
    lse_g_stride, scale
):
    # A program owns 1 of H, 128 of W, 1 of B, 16 of Q*G (back_to_back_gemm).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    e = tl.arange(0, 128)[None, :]
    tiles = Q * 4 // 16 + B
    tile = tiles - 1 - tl.program_id(0) % tiles
    b = segment_near(begin_q_ptr, tile, B, 4, 16)
    begin = tl.load(begin_q_ptr + b).to(tl.int32) * 4
    end = tl.load(end_q_ptr + b).to(tl.int32) * 4
    first = (tile - (begin // 16 + b)) * 16
    if first >= end - begin:
        return
    q_g = first + tl.arange(0, 16)[:, None]
    w = tl.arange(0, 128)[None, :]
    h = tl.program_id(0) // tiles
    begin_q = tl.load(begin_q_ptr + b)  # attention.py:305
    end_q = tl.load(end_q_ptr + b)  # attention.py:306
    context_lens = tl.load(context_lens_ptr + b)  # attention.py:307
    query = q_g // 4  # attention.py:305
    count = end_q - begin_q  # attention.py:306
    token = begin_q + query  # attention.py:307
    inside = query < count
    token_ge_0 = token >= 0  # attention.py:204
    token_lt_T = token < T
    q_guard = token_ge_0 & token_lt_T
    q_guard_2 = inside & q_guard
    g = q_g % 4
    q = tl.load(
        q_ptr + h.to(tl.int64) * q_h_stride + token.to(tl.int64) * q_t_stride + g.to(tl.int64) * q_g_stride + e,
        mask=q_guard_2, other=0.0
    )
    context_lens_minus_count = context_lens - count  # attention.py:307
    key = query + context_lens_minus_count
    key_plus_1 = key + 1  # attention.py:313
    length = tl.maximum(context_lens, 0)  # attention.py:206
    visible = tl.maximum(key_plus_1, 0)
    seen = tl.minimum(length, visible)
    full_steps = seen // 64
    seen_plus_63 = seen + 63
    steps = seen_plus_63 // 64
    s_lane = tl.arange(0, 64)[None, :]
    scale_times_log2e = scale * 1.442695  # attention.py:281
    last_steps = tl.max(tl.reshape(steps, (16,)), 0)  # attention.py:206
    m_piece = tl.full((16, 1), float("-inf"), tl.float32)
    l_piece = tl.full((16, 1), 0.0, tl.float32)
    acc_o = tl.full((16, 128), 0.0, tl.float32)
    m_before = tl.full((16, 1), float("-inf"), tl.float32)
    l_before = tl.full((16, 1), negative_zero(), tl.float32)
    o_before = tl.full((16, 128), negative_zero(), tl.float32)
    first_full_steps = tl.min(tl.reshape(full_steps, (16,)), 0)
    for s_step in tl.range(0, last_steps, num_stages=2):
        block_table_guard_at_most = s_step >= 0  # attention.py:207
        block_table_guard_below = s_step < M
        block_table_guard = block_table_guard_at_most & block_table_guard_below
        block_table = tl.load(
            block_table_ptr + b.to(tl.int64) * block_table_b_stride + s_step, mask=block_table_guard, other=0
        )
        s_step_times_64 = s_step * 64  # attention.py:206
        kv = s_step_times_64 + s_lane
        in_range = kv < context_lens
        block_table_ge_0 = block_table >= 0  # attention.py:208
        block_table_lt_P = block_table < P
        k_cache_guard = block_table_ge_0 & block_table_lt_P
        s_lane_2 = tl.arange(0, 64)[:, None]
        kv_2 = s_step_times_64 + s_lane_2
        in_range_2 = kv_2 < context_lens
        k_cache_guard_3 = in_range_2 & k_cache_guard
        k_cache = tl.load(
            k_cache_ptr + block_table.to(tl.int64) * k_cache_p_stride + h.to(tl.int64) * k_cache_h_stride
            + s_lane_2.to(tl.int64) * k_cache_o_stride + e,
            mask=k_cache_guard_3, other=0.0
        )
        qk = tl.dot(q, k_cache.T)
        v_cache = tl.load(  # attention.py:210
            v_cache_ptr + block_table.to(tl.int64) * v_cache_p_stride + h.to(tl.int64) * v_cache_h_stride
            + s_lane_2.to(tl.int64) * v_cache_o_stride + w,
            mask=k_cache_guard_3, other=0.0
        )
        s = qk * scale_times_log2e  # attention.py:281
        s_step_mod_8 = s_step % 8  # attention.py:206
        new_piece = s_step_mod_8 == 0
        if new_piece:
            m = tl.maximum(m_before, m_piece)  # attention.py:210
            is_empty = m == float("-inf")
            m_safe = tl.where(is_empty, 0.0, m)
            alpha_a_exponent = m_before - m_safe
            alpha_a = tl.exp2(alpha_a_exponent)
            alpha_b_exponent = m_piece - m_safe
            alpha_b = tl.exp2(alpha_b_exponent)
            l_a_scaled = l_before * alpha_a
            l_b_scaled = l_piece * alpha_b
            l = l_a_scaled + l_b_scaled
            o_a_scaled = o_before * alpha_a
            o_b_scaled = acc_o * alpha_b
            o = o_a_scaled + o_b_scaled
            m_piece, m_before, l_before, o_before = tl.full((16, 1), float("-inf"), tl.float32), m, l, o
        s_masked = s
        if s_step >= first_full_steps:
            exists_below = kv < key_plus_1  # attention.py:206
            exists = in_range & exists_below
            s_masked = tl.where(exists, s, float("-inf"))
        m_chunk = max_over_s_lane(s_masked)  # attention.py:210
        # numerators of up to 2 ** 8 keep the scale: most chunks rescale no sum
        m_limit = m_piece + 8.0
        m_grows = m_limit < m_chunk
        m_new = tl.where(m_grows, m_chunk, m_piece)
        is_empty = m_new == float("-inf")
        m_safe = tl.where(is_empty, 0.0, m_new)
        alpha_exponent = m_piece - m_safe
        alpha = tl.exp2(alpha_exponent)
        p_exponent = s_masked - m_safe
        p = tl.exp2(p_exponent)
        l_scaled = l_piece * alpha
        l_chunk = sum_over_s_lane(p)
        l_new = l_scaled + l_chunk
        acc_o_scaled = acc_o * alpha
        p_bf16 = p.to(tl.bfloat16)
        acc_o_new = tl.dot(p_bf16, v_cache, acc_o_scaled)
        m_piece, l_piece, acc_o = m_new, l_new, acc_o_new
    m = tl.maximum(m_before, m_piece)
    is_empty = m == float("-inf")
    m_safe = tl.where(is_empty, 0.0, m)
    alpha_a_exponent = m_before - m_safe
    alpha_a = tl.exp2(alpha_a_exponent)
    alpha_b_exponent = m_piece - m_safe
    alpha_b = tl.exp2(alpha_b_exponent)
    l_a_scaled = l_before * alpha_a
    l_b_scaled = l_piece * alpha_b
    l = l_a_scaled + l_b_scaled
    o_a_scaled = o_before * alpha_a
    o_b_scaled = acc_o * alpha_b
    o = o_a_scaled + o_b_scaled
    l_is_0 = l == 0.0  # attention.py:329
    o_over_l = divided(o, l)
    o_over_l_or_0 = tl.where(l_is_0, 0.0, o_over_l)
    mean = o_over_l_or_0 + 0.0
    mean_bf16 = mean.to(tl.bfloat16)  # attention.py:330
    tl.store(
        o_ptr + h.to(tl.int64) * o_h_stride + token.to(tl.int64) * o_t_stride + g.to(tl.int64) * o_g_stride + w,
        mean_bf16, mask=inside
    )
    log_l = portable_log(l)  # attention.py:331
    lse_value = tl.fma(m, 0.6931472, log_l)
    tl.store(lse_ptr + h.to(tl.int64) * lse_h_stride + g.to(tl.int64) * lse_g_stride + token, lse_value, mask=inside)


def call(
    kernels, q, k_cache, v_cache, block_table, context_lens, begin_q, end_q, o, lse, scale, Q, B, T, M, P,
    k_cache_p_stride, k_cache_o_stride, k_cache_h_stride, v_cache_p_stride, v_cache_o_stride, v_cache_h_stride,
    q_t_stride, q_h_stride, q_g_stride, block_table_b_stride, o_t_stride, o_h_stride, o_g_stride, lse_h_stride,
    lse_g_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = (Q * 4 // 16 + B) * 8 * 1
    if programs > 0:
        kernels.paged_attention(
            (programs,), q, k_cache, v_cache, block_table, context_lens, begin_q, end_q, o, lse, k_cache_p_stride,
            k_cache_o_stride, k_cache_h_stride, v_cache_p_stride, v_cache_o_stride, v_cache_h_stride, Q, B, T,
            q_t_stride, q_h_stride, q_g_stride, M, P, block_table_b_stride, o_t_stride, o_h_stride, o_g_stride,
            lse_h_stride, lse_g_stride, scale
        )
