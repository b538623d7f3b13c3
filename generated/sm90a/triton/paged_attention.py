"""paged_attention on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 6c0d804943e797e0
schedule: tiles Q*G=16, W=128, 4 warps, 3 stages, unroll 1
"""

import triton
import triton.language as tl


@triton.jit
def segment_of(begin_ptr, tile, count, EACH: tl.constexpr, TILE: tl.constexpr):
    # The segment that a tile of rows lies in: segment i takes the tiles from begin[i] * EACH // TILE + i on.
    low, high = 0, count
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
    # Rows over a number of each, rounded once: corrected twice where nothing is very small or large.
    bits, below = x.to(tl.uint32, bitcast=True), by.to(tl.int32, bitcast=True)
    least = (tl.min(bits * 2 - 1, 1) >> 1).to(tl.int32)[:, None]  # of magnitudes but zeros
    most = tl.sum(tl.abs(x), 1).to(tl.int32, bitcast=True)[:, None]  # at least
    room = (least - 0x217fffff) | (0x5d800000 - most)
    room = room | (below - 0x21800000) | (0x5d800000 - below)
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
    e = tl.arange(0, 128)[None, :]
    tiles = Q * 4 // 16 + B
    tile = tiles - 1 - tl.program_id(0) % tiles
    b = segment_of(begin_q_ptr, tile, B, 4, 16)
    begin = tl.load(begin_q_ptr + b).to(tl.int32) * 4
    end = tl.load(end_q_ptr + b).to(tl.int32) * 4
    first = (tile - (begin // 16 + b)) * 16
    if first >= end - begin:
        return
    q_g = first + tl.arange(0, 16)[:, None]
    w = tl.arange(0, 128)[None, :]
    h = tl.program_id(0) // tiles
    begin_q = tl.load(begin_q_ptr + b)  # attention.py:301
    end_q = tl.load(end_q_ptr + b)  # attention.py:302
    context_lens = tl.load(context_lens_ptr + b)  # attention.py:303
    q = q_g // 4  # attention.py:301
    difference = end_q - begin_q  # attention.py:302
    total = begin_q + q  # attention.py:303
    below = q < difference
    at_most = total >= 0  # attention.py:203
    below_2 = total < T
    both = at_most & below_2
    both_2 = below & both
    g = q_g % 4
    q_2 = tl.load(
        q_ptr + h.to(tl.int64) * q_h_stride + total.to(tl.int64) * q_t_stride + g.to(tl.int64) * q_g_stride + e,
        mask=both_2, other=0.0
    )
    difference_2 = context_lens - difference  # attention.py:303
    total_2 = q + difference_2
    total_3 = total_2 + 1  # attention.py:309
    larger = tl.maximum(context_lens, 0)  # attention.py:205
    larger_2 = tl.maximum(total_3, 0)
    seen = tl.minimum(larger, larger_2)
    full_steps = seen // 64
    total_4 = seen + 63
    steps = total_4 // 64
    s_lane = tl.arange(0, 64)[None, :]
    product = scale * 1.442695  # attention.py:277
    first_full_steps = tl.min(tl.reshape(full_steps, (16,)), 0)  # attention.py:205
    max_of_piece = tl.full((16, 1), float("-inf"), tl.float32)
    sum_of_piece = tl.full((16, 1), 0.0, tl.float32)
    o_of_piece = tl.full((16, 128), 0.0, tl.float32)
    m = tl.full((16, 1), float("-inf"), tl.float32)
    s = tl.full((16, 1), negative_zero(), tl.float32)
    o = tl.full((16, 128), negative_zero(), tl.float32)
    for s_step in tl.range(0, first_full_steps, num_stages=3):
        product_2 = s_step * 64
        s_2 = product_2 + s_lane
        quotient = s_2 // 64  # attention.py:206
        at_most_2 = quotient >= 0
        below_3 = quotient < M
        both_3 = at_most_2 & below_3
        block_table = tl.load(block_table_ptr + b.to(tl.int64) * block_table_b_stride + quotient, mask=both_3, other=0)
        remainder = s_2 % 64
        at_most_3 = block_table >= 0  # attention.py:207
        below_4 = block_table < P
        both_4 = at_most_3 & below_4
        at_most_4 = remainder >= 0
        below_5 = remainder < 64
        both_5 = at_most_4 & below_5
        both_6 = both_4 & both_5
        s_lane_2 = tl.arange(0, 64)[:, None]
        s_3 = product_2 + s_lane_2
        quotient_2 = s_3 // 64
        at_most_5 = quotient_2 >= 0
        below_6 = quotient_2 < M
        both_7 = at_most_5 & below_6
        block_table_2 = tl.load(
            block_table_ptr + b.to(tl.int64) * block_table_b_stride + quotient_2, mask=both_7, other=0
        )
        remainder_2 = s_3 % 64
        at_most_6 = block_table_2 >= 0
        below_7 = block_table_2 < P
        both_8 = at_most_6 & below_7
        at_most_7 = remainder_2 >= 0
        below_8 = remainder_2 < 64
        both_9 = at_most_7 & below_8
        both_10 = both_8 & both_9
        k_cache = tl.load(
            k_cache_ptr + h.to(tl.int64) * k_cache_h_stride + block_table_2.to(tl.int64) * k_cache_p_stride
            + remainder_2.to(tl.int64) * k_cache_o_stride + e,
            mask=both_10, other=0.0
        )
        z = tl.dot(q_2, k_cache.T)
        v_cache = tl.load(  # attention.py:208
            v_cache_ptr + h.to(tl.int64) * v_cache_h_stride + block_table_2.to(tl.int64) * v_cache_p_stride
            + remainder_2.to(tl.int64) * v_cache_o_stride + w,
            mask=both_10, other=0.0
        )
        product_3 = z * product  # attention.py:277
        remainder_3 = s_step % 8  # attention.py:205
        turn = remainder_3 == 0
        if turn:
            m_2 = tl.maximum(m, max_of_piece)
            equal = m_2 == float("-inf")
            chosen = tl.where(equal, 0.0, m_2)
            difference_3 = m - chosen
            exp2 = tl.exp2(difference_3)
            difference_4 = max_of_piece - chosen
            exp2_2 = tl.exp2(difference_4)
            product_4 = s * exp2
            product_5 = sum_of_piece * exp2_2
            total_5 = product_4 + product_5
            product_6 = o * exp2
            product_7 = o_of_piece * exp2_2
            total_6 = product_6 + product_7
            max_of_piece, m, s, o = tl.full((16, 1), float("-inf"), tl.float32), m_2, total_5, total_6
        m_chunk = max_over_s_lane(product_3)
        total_5 = max_of_piece + 8.0
        below_9 = total_5 < m_chunk
        m_new = tl.where(below_9, m_chunk, max_of_piece)
        equal = m_new == float("-inf")
        chosen = tl.where(equal, 0.0, m_new)
        difference_3 = max_of_piece - chosen
        again = tl.exp2(difference_3)
        difference_4 = product_3 - chosen
        e_2 = tl.exp2(difference_4)
        product_4 = sum_of_piece * again
        s_chunk = sum_over_s_lane(e_2)
        s_new = product_4 + s_chunk
        o_before = o_of_piece * again
        p = e_2.to(tl.bfloat16)
        o_new = tl.dot(p, v_cache, o_before)
        max_of_piece, sum_of_piece, o_of_piece = m_new, s_new, o_new
    last_steps = tl.max(tl.reshape(steps, (16,)), 0)
    for s_step in tl.range(first_full_steps, last_steps, num_stages=3):
        product_2 = s_step * 64
        s_2 = product_2 + s_lane
        exists = s_2 < context_lens
        quotient = s_2 // 64  # attention.py:206
        at_most_2 = quotient >= 0
        below_3 = quotient < M
        both_3 = at_most_2 & below_3
        both_4 = exists & both_3
        block_table = tl.load(block_table_ptr + b.to(tl.int64) * block_table_b_stride + quotient, mask=both_4, other=0)
        remainder = s_2 % 64
        at_most_3 = block_table >= 0  # attention.py:207
        below_4 = block_table < P
        both_5 = at_most_3 & below_4
        at_most_4 = remainder >= 0
        below_5 = remainder < 64
        both_6 = at_most_4 & below_5
        both_7 = both_5 & both_6
        both_8 = exists & both_7
        s_lane_2 = tl.arange(0, 64)[:, None]
        s_3 = product_2 + s_lane_2
        quotient_2 = s_3 // 64
        exists_2 = s_3 < context_lens
        at_most_5 = quotient_2 >= 0
        below_6 = quotient_2 < M
        both_9 = at_most_5 & below_6
        both_10 = exists_2 & both_9
        block_table_2 = tl.load(
            block_table_ptr + b.to(tl.int64) * block_table_b_stride + quotient_2, mask=both_10, other=0
        )
        remainder_2 = s_3 % 64
        at_most_6 = block_table_2 >= 0
        below_7 = block_table_2 < P
        both_11 = at_most_6 & below_7
        at_most_7 = remainder_2 >= 0
        below_8 = remainder_2 < 64
        both_12 = at_most_7 & below_8
        both_13 = both_11 & both_12
        both_14 = exists_2 & both_13
        k_cache = tl.load(
            k_cache_ptr + h.to(tl.int64) * k_cache_h_stride + block_table_2.to(tl.int64) * k_cache_p_stride
            + remainder_2.to(tl.int64) * k_cache_o_stride + e,
            mask=both_14, other=0.0
        )
        below_9 = s_2 < total_3  # attention.py:205
        exists_3 = exists & below_9
        z = tl.dot(q_2, k_cache.T)  # attention.py:207
        v_cache = tl.load(  # attention.py:208
            v_cache_ptr + h.to(tl.int64) * v_cache_h_stride + block_table_2.to(tl.int64) * v_cache_p_stride
            + remainder_2.to(tl.int64) * v_cache_o_stride + w,
            mask=both_14, other=0.0
        )
        product_3 = z * product  # attention.py:277
        remainder_3 = s_step % 8  # attention.py:205
        turn = remainder_3 == 0
        if turn:
            m_2 = tl.maximum(m, max_of_piece)
            equal = m_2 == float("-inf")
            chosen = tl.where(equal, 0.0, m_2)
            difference_3 = m - chosen
            exp2 = tl.exp2(difference_3)
            difference_4 = max_of_piece - chosen
            exp2_2 = tl.exp2(difference_4)
            product_4 = s * exp2
            product_5 = sum_of_piece * exp2_2
            total_5 = product_4 + product_5
            product_6 = o * exp2
            product_7 = o_of_piece * exp2_2
            total_6 = product_6 + product_7
            max_of_piece, m, s, o = tl.full((16, 1), float("-inf"), tl.float32), m_2, total_5, total_6
        chosen = tl.where(exists_3, product_3, float("-inf"))
        m_chunk = max_over_s_lane(chosen)
        total_5 = max_of_piece + 8.0
        below_10 = total_5 < m_chunk
        m_new = tl.where(below_10, m_chunk, max_of_piece)
        equal = m_new == float("-inf")
        chosen_2 = tl.where(equal, 0.0, m_new)
        difference_3 = max_of_piece - chosen_2
        again = tl.exp2(difference_3)
        difference_4 = chosen - chosen_2
        e_2 = tl.exp2(difference_4)
        product_4 = sum_of_piece * again
        s_chunk = sum_over_s_lane(e_2)
        s_new = product_4 + s_chunk
        o_before = o_of_piece * again
        p = e_2.to(tl.bfloat16)
        o_new = tl.dot(p, v_cache, o_before)
        max_of_piece, sum_of_piece, o_of_piece = m_new, s_new, o_new
    m_2 = tl.maximum(m, max_of_piece)
    equal = m_2 == float("-inf")
    chosen = tl.where(equal, 0.0, m_2)
    difference_3 = m - chosen
    exp2 = tl.exp2(difference_3)
    difference_4 = max_of_piece - chosen
    exp2_2 = tl.exp2(difference_4)
    product_2 = s * exp2
    product_3 = sum_of_piece * exp2_2
    total_5 = product_2 + product_3
    product_4 = o * exp2
    product_5 = o_of_piece * exp2_2
    total_6 = product_4 + product_5
    equal_2 = total_5 == 0.0  # attention.py:325
    quotient = divided(total_6, total_5)
    chosen_2 = tl.where(equal_2, 0.0, quotient)
    total_7 = chosen_2 + 0.0
    as_bf16 = total_7.to(tl.bfloat16)  # attention.py:326
    tl.store(
        o_ptr + h.to(tl.int64) * o_h_stride + total.to(tl.int64) * o_t_stride + g.to(tl.int64) * o_g_stride + w,
        as_bf16, mask=below
    )
    log = portable_log(total_5)  # attention.py:327
    fused = tl.fma(m_2, 0.6931472, log)
    tl.store(lse_ptr + h.to(tl.int64) * lse_h_stride + g.to(tl.int64) * lse_g_stride + total, fused, mask=below)


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
