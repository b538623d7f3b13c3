"""prefix_attention on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 79b8a2e6ea6b47d0
schedule: tiles C*G=64, W=128, 4 warps, 3 stages, unroll 1, shared K/V descriptor
schedule: tiles Q*G=128, W=128, 8 warps, 2 stages, unroll 1
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
def max_over_k_lane(x):
    # The max over K.lane: no order changes it.
    x = tl.max(x, 1)
    return tl.reshape(x, (64, 1))


@triton.jit
def sum_over_k_lane(x):
    # The sum over K.lane, halving: two terms at a time, so that no layout chooses.
    x = tl.sum(tl.reshape(x, (64, 2, 32)), 1)
    x = tl.sum(tl.reshape(x, (64, 2, 16)), 1)
    x = tl.sum(tl.reshape(x, (64, 2, 8)), 1)
    x = tl.sum(tl.reshape(x, (64, 2, 4)), 1)
    x = tl.sum(tl.reshape(x, (64, 2, 2)), 1)
    x = tl.sum(tl.reshape(x, (64, 2)), 1)
    return tl.reshape(x, (64, 1))


@triton.jit
def max_over_s_lane(x):
    # The max over S.lane: no order changes it.
    x = tl.max(x, 1)
    return tl.reshape(x, (128, 1))


@triton.jit
def sum_over_s_lane(x):
    # The sum over S.lane, halving: two terms at a time, so that no layout chooses.
    x = tl.sum(tl.reshape(x, (128, 2, 32)), 1)
    x = tl.sum(tl.reshape(x, (128, 2, 16)), 1)
    x = tl.sum(tl.reshape(x, (128, 2, 8)), 1)
    x = tl.sum(tl.reshape(x, (128, 2, 4)), 1)
    x = tl.sum(tl.reshape(x, (128, 2, 2)), 1)
    x = tl.sum(tl.reshape(x, (128, 2)), 1)
    return tl.reshape(x, (128, 1))


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
def prefix_attention_1(
    q_ptr, k_prefix_ptr, v_prefix_ptr, begin_prefix_ptr, end_prefix_ptr, begin_asks_ptr, end_asks_ptr, place_ptr,
    m_of_piece_ptr, s_of_piece_ptr, o_of_piece_ptr, m_of_prompt_ptr, s_of_prompt_ptr, o_of_prompt_ptr,
    k_prefix_k_stride, k_prefix_h_stride, v_prefix_k_stride, v_prefix_h_stride, C, N, T, q_t_stride, q_h_stride,
    q_g_stride, m_of_piece_t_stride, m_of_piece_h_stride, s_of_piece_t_stride, s_of_piece_h_stride, o_of_piece_t_stride,
    o_of_piece_h_stride, o_of_piece_g_stride, m_of_prompt_t_stride, m_of_prompt_h_stride, s_of_prompt_t_stride,
    s_of_prompt_h_stride, o_of_prompt_t_stride, o_of_prompt_h_stride, o_of_prompt_g_stride, scale
):
    # A program owns 1 of H, 1 of N, 128 of W, 64 of C*G (back_to_back_gemm).
    e = tl.arange(0, 128)[None, :]
    tiles = C * 4 // 64 + N
    tile = tiles - 1 - tl.program_id(0) % tiles
    n = segment_of(begin_asks_ptr, tile, N, 4, 64)
    begin = tl.load(begin_asks_ptr + n).to(tl.int32) * 4
    end = tl.load(end_asks_ptr + n).to(tl.int32) * 4
    first = (tile - (begin // 64 + n)) * 64
    if first >= end - begin:
        return
    c_g = first + tl.arange(0, 64)[:, None]
    w = tl.arange(0, 128)[None, :]
    h = tl.program_id(0) // tiles
    begin_prefix = tl.load(begin_prefix_ptr + n)  # attention.py:247
    begin_asks = tl.load(begin_asks_ptr + n)
    end_asks = tl.load(end_asks_ptr + n)  # attention.py:248
    end_prefix = tl.load(end_prefix_ptr + n)  # attention.py:251
    c = c_g // 4  # attention.py:248
    total = begin_asks + c
    difference = end_asks - begin_asks
    below = c < difference
    place = tl.load(place_ptr + total, mask=below, other=1073741824)  # attention.py:249
    at_most = total >= 0  # attention.py:250
    below_2 = total < T
    both = at_most & below_2
    both_2 = below & both
    g = c_g % 4
    q = tl.load(
        q_ptr + h.to(tl.int64) * q_h_stride + total.to(tl.int64) * q_t_stride + g.to(tl.int64) * q_g_stride + e,
        mask=both_2, other=0.0
    )
    difference_2 = end_prefix - begin_prefix  # attention.py:251
    quotient = difference_2 // 64
    product = quotient * 64
    total_2 = begin_prefix + product  # attention.py:253
    total_3 = place + 1  # attention.py:309
    total_4 = total_3 + begin_prefix
    difference_3 = total_2 - begin_prefix  # attention.py:253
    larger = tl.maximum(difference_3, 0)
    difference_4 = total_4 - begin_prefix
    larger_2 = tl.maximum(difference_4, 0)
    seen = tl.minimum(larger, larger_2)
    full_steps = seen // 64
    total_5 = seen + 63
    steps = total_5 // 64
    k_lane = tl.arange(0, 64)[None, :]
    product_2 = scale * 1.442695  # attention.py:277
    last_steps = tl.max(tl.reshape(steps, (64,)), 0)  # attention.py:253
    max_of_piece = tl.full((64, 1), float("-inf"), tl.float32)
    sum_of_piece = tl.full((64, 1), 0.0, tl.float32)
    o_of_piece = tl.full((64, 128), 0.0, tl.float32)
    m = tl.full((64, 1), float("-inf"), tl.float32)
    s = tl.full((64, 1), negative_zero(), tl.float32)
    o = tl.full((64, 128), negative_zero(), tl.float32)
    k_prefix_base = k_prefix_ptr + h.to(tl.int64) * k_prefix_h_stride
    v_prefix_base = v_prefix_ptr + h.to(tl.int64) * v_prefix_h_stride
    apart = v_prefix_base.to(tl.int64) - k_prefix_base.to(tl.int64)
    alone = (k_prefix_k_stride != v_prefix_k_stride) | (apart == 0) | (tl.abs(apart) >= 1 << 40)
    ordered = alone | (apart > 0)
    k_prefix_half = tl.where(ordered, 0, 1)
    v_prefix_half = 1 - k_prefix_half
    k_prefix_rows = tl.make_tensor_descriptor(
        tl.where(ordered, k_prefix_base, v_prefix_base), shape=[2, total_2, 128],
        strides=[tl.where(alone, 8, tl.abs(apart) // 2), k_prefix_k_stride, 1], block_shape=[1, 64, 128]
    )
    v_prefix_rows = k_prefix_rows
    if alone:
        v_prefix_half, v_prefix_rows = (
            0,
            tl.make_tensor_descriptor(
                v_prefix_base, shape=[1, total_2, 128], strides=[8, v_prefix_k_stride, 1], block_shape=[1, 64, 128]
            )
        )
    first_full_steps = tl.min(tl.reshape(full_steps, (64,)), 0)
    for k_step in tl.range(0, last_steps, num_stages=3):
        product_3 = k_step * 64
        total_6 = begin_prefix + product_3
        k_prefix = tl.reshape(k_prefix_rows.load([k_prefix_half, total_6, 0]), (64, 128))  # attention.py:254
        z = tl.dot(q, k_prefix.T)  # attention.py:245
        v_prefix = tl.reshape(v_prefix_rows.load([v_prefix_half, total_6, 0]), (64, 128))  # attention.py:254
        product_4 = z * product_2  # attention.py:277
        remainder = k_step % 8  # attention.py:253
        turn = remainder == 0
        if turn:
            m_2 = tl.maximum(m, max_of_piece)
            equal = m_2 == float("-inf")
            chosen = tl.where(equal, 0.0, m_2)
            difference_5 = m - chosen
            exp2 = tl.exp2(difference_5)
            difference_6 = max_of_piece - chosen
            exp2_2 = tl.exp2(difference_6)
            product_5 = s * exp2
            product_6 = sum_of_piece * exp2_2
            total_7 = product_5 + product_6
            product_7 = o * exp2
            product_8 = o_of_piece * exp2_2
            total_8 = product_7 + product_8
            max_of_piece, m, s, o = tl.full((64, 1), float("-inf"), tl.float32), m_2, total_7, total_8
        chosen = product_4
        if k_step >= first_full_steps:
            k = total_6 + k_lane
            exists = k < total_2
            below_3 = k < total_4
            exists_2 = exists & below_3
            chosen = tl.where(exists_2, product_4, float("-inf"))
        m_chunk = max_over_k_lane(chosen)
        total_7 = max_of_piece + 8.0
        below_3 = total_7 < m_chunk
        m_new = tl.where(below_3, m_chunk, max_of_piece)
        equal = m_new == float("-inf")
        chosen_2 = tl.where(equal, 0.0, m_new)
        difference_5 = max_of_piece - chosen_2
        again = tl.exp2(difference_5)
        difference_6 = chosen - chosen_2
        e_2 = tl.exp2(difference_6)
        product_5 = sum_of_piece * again
        s_chunk = sum_over_k_lane(e_2)
        s_new = product_5 + s_chunk
        o_before = o_of_piece * again
        p = e_2.to(tl.bfloat16)
        o_new = tl.dot(p, v_prefix, o_before)
        max_of_piece, sum_of_piece, o_of_piece = m_new, s_new, o_new
    tl.store(  # attention.py:285
        m_of_piece_ptr + h.to(tl.int64) * m_of_piece_h_stride + total.to(tl.int64) * m_of_piece_t_stride + g,
        max_of_piece, mask=below
    )
    tl.store(
        s_of_piece_ptr + h.to(tl.int64) * s_of_piece_h_stride + total.to(tl.int64) * s_of_piece_t_stride + g,
        sum_of_piece, mask=below
    )
    tl.store(
        o_of_piece_ptr + h.to(tl.int64) * o_of_piece_h_stride + total.to(tl.int64) * o_of_piece_t_stride
        + g.to(tl.int64) * o_of_piece_g_stride + w,
        o_of_piece, mask=below
    )
    tl.store(
        m_of_prompt_ptr + h.to(tl.int64) * m_of_prompt_h_stride + total.to(tl.int64) * m_of_prompt_t_stride + g, m,
        mask=below
    )
    tl.store(
        s_of_prompt_ptr + h.to(tl.int64) * s_of_prompt_h_stride + total.to(tl.int64) * s_of_prompt_t_stride + g, s,
        mask=below
    )
    tl.store(
        o_of_prompt_ptr + h.to(tl.int64) * o_of_prompt_h_stride + total.to(tl.int64) * o_of_prompt_t_stride
        + g.to(tl.int64) * o_of_prompt_g_stride + w,
        o, mask=below
    )


@triton.jit
def prefix_attention_2(
    q_ptr, k_prefix_ptr, v_prefix_ptr, k_ptr, v_ptr, begin_shared_ptr, end_shared_ptr, begin_q_ptr, end_q_ptr,
    begin_k_ptr, end_k_ptr, m_of_piece_ptr, s_of_piece_ptr, o_of_piece_ptr, m_of_prompt_ptr, s_of_prompt_ptr,
    o_of_prompt_ptr, o_ptr, lse_ptr, k_s_stride, k_h_stride, v_s_stride, v_h_stride, Q, B, T, q_t_stride, q_h_stride,
    q_g_stride, m_of_piece_t_stride, m_of_piece_h_stride, s_of_piece_t_stride, s_of_piece_h_stride, o_of_piece_t_stride,
    o_of_piece_h_stride, o_of_piece_g_stride, m_of_prompt_t_stride, m_of_prompt_h_stride, s_of_prompt_t_stride,
    s_of_prompt_h_stride, o_of_prompt_t_stride, o_of_prompt_h_stride, o_of_prompt_g_stride, k_prefix_k_stride,
    k_prefix_h_stride, v_prefix_k_stride, v_prefix_h_stride, o_t_stride, o_h_stride, o_g_stride, lse_h_stride,
    lse_g_stride, scale
):
    # A program owns 1 of H, 128 of W, 1 of B, 128 of Q*G (back_to_back_gemm).
    e = tl.arange(0, 128)[None, :]
    tiles = Q * 4 // 128 + B
    tile = tiles - 1 - tl.program_id(0) % tiles
    b = segment_of(begin_q_ptr, tile, B, 4, 128)
    begin = tl.load(begin_q_ptr + b).to(tl.int32) * 4
    end = tl.load(end_q_ptr + b).to(tl.int32) * 4
    first = (tile - (begin // 128 + b)) * 128
    if first >= end - begin:
        return
    q_g = first + tl.arange(0, 128)[:, None]
    w = tl.arange(0, 128)[None, :]
    h = tl.program_id(0) // tiles
    begin_shared = tl.load(begin_shared_ptr + b)  # attention.py:256
    begin_k = tl.load(begin_k_ptr + b)
    end_shared = tl.load(end_shared_ptr + b)  # attention.py:257
    end_k = tl.load(end_k_ptr + b)  # attention.py:258
    begin_q = tl.load(begin_q_ptr + b)  # attention.py:301
    end_q = tl.load(end_q_ptr + b)  # attention.py:302
    g = q_g % 4  # attention.py:250
    q = q_g // 4  # attention.py:301
    difference = end_q - begin_q  # attention.py:302
    total = begin_q + q  # attention.py:303
    below = q < difference
    at_most = total >= 0  # attention.py:260
    below_2 = total < T
    both = at_most & below_2
    both_2 = below & both
    q_2 = tl.load(
        q_ptr + h.to(tl.int64) * q_h_stride + total.to(tl.int64) * q_t_stride + g.to(tl.int64) * q_g_stride + e,
        mask=both_2, other=0.0
    )
    product = scale * 1.442695  # attention.py:277
    difference_2 = end_shared - begin_shared  # attention.py:257
    difference_3 = end_k - begin_k  # attention.py:258
    total_2 = difference_2 + difference_3
    difference_4 = total_2 - difference  # attention.py:303
    total_3 = q + difference_4
    m_of_piece = tl.load(  # attention.py:261
        m_of_piece_ptr + h.to(tl.int64) * m_of_piece_h_stride + total.to(tl.int64) * m_of_piece_t_stride + g,
        mask=below, other=0.0
    )
    s_of_piece = tl.load(
        s_of_piece_ptr + h.to(tl.int64) * s_of_piece_h_stride + total.to(tl.int64) * s_of_piece_t_stride + g,
        mask=below, other=0.0
    )
    o_of_piece = tl.load(
        o_of_piece_ptr + h.to(tl.int64) * o_of_piece_h_stride + total.to(tl.int64) * o_of_piece_t_stride
        + g.to(tl.int64) * o_of_piece_g_stride + w,
        mask=below, other=0.0
    )
    m_of_prompt = tl.load(
        m_of_prompt_ptr + h.to(tl.int64) * m_of_prompt_h_stride + total.to(tl.int64) * m_of_prompt_t_stride + g,
        mask=below, other=0.0
    )
    s_of_prompt = tl.load(
        s_of_prompt_ptr + h.to(tl.int64) * s_of_prompt_h_stride + total.to(tl.int64) * s_of_prompt_t_stride + g,
        mask=below, other=0.0
    )
    o_of_prompt = tl.load(
        o_of_prompt_ptr + h.to(tl.int64) * o_of_prompt_h_stride + total.to(tl.int64) * o_of_prompt_t_stride
        + g.to(tl.int64) * o_of_prompt_g_stride + w,
        mask=below, other=0.0
    )
    quotient = difference_2 // 64  # attention.py:262
    product_2 = quotient * 64
    total_4 = total_3 + 1  # attention.py:309
    larger = tl.maximum(total_2, 0)  # attention.py:263
    larger_2 = tl.maximum(total_4, 0)
    seen = tl.minimum(larger, larger_2)
    full_steps = seen // 64
    quotient_2 = product_2 // 64
    first_step = tl.maximum(quotient_2, 0)
    full_steps_2 = tl.maximum(first_step, full_steps)
    total_5 = seen + 63
    steps = total_5 // 64
    s_lane = tl.arange(0, 64)[None, :]
    first_full_steps_2 = tl.min(tl.reshape(full_steps_2, (128,)), 0)
    max_of_piece = m_of_piece
    sum_of_piece = s_of_piece
    o_of_piece_2 = o_of_piece
    m = m_of_prompt
    s = s_of_prompt
    o = o_of_prompt
    for s_step in tl.range(first_step, first_full_steps_2, num_stages=2):
        product_3 = s_step * 64
        s_2 = product_3 + s_lane
        at_most_2 = difference_2 <= s_2  # attention.py:264
        total_6 = begin_shared + s_2  # attention.py:265
        difference_5 = s_2 - difference_2
        total_7 = begin_k + difference_5
        unless = ~at_most_2  # attention.py:267
        s_lane_2 = tl.arange(0, 64)[:, None]
        s_3 = product_3 + s_lane_2
        difference_6 = s_3 - difference_2
        total_8 = begin_k + difference_6
        at_most_3 = difference_2 <= s_3
        total_9 = begin_shared + s_3
        unless_2 = ~at_most_3
        k_prefix = tl.load(
            k_prefix_ptr + h.to(tl.int64) * k_prefix_h_stride + total_9.to(tl.int64) * k_prefix_k_stride + e,
            mask=unless_2, other=0.0
        )
        k = tl.load(
            k_ptr + h.to(tl.int64) * k_h_stride + total_8.to(tl.int64) * k_s_stride + e, mask=at_most_3, other=k_prefix
        )
        v_prefix = tl.load(
            v_prefix_ptr + h.to(tl.int64) * v_prefix_h_stride + total_9.to(tl.int64) * v_prefix_k_stride + w,
            mask=unless_2, other=0.0
        )
        v = tl.load(
            v_ptr + h.to(tl.int64) * v_h_stride + total_8.to(tl.int64) * v_s_stride + w, mask=at_most_3, other=v_prefix
        )
        z = tl.dot(q_2, k.T)  # attention.py:245
        product_4 = z * product  # attention.py:277
        remainder = s_step % 8  # attention.py:263
        turn = remainder == 0
        if turn:
            m_2 = tl.maximum(m, max_of_piece)
            equal = m_2 == float("-inf")
            chosen = tl.where(equal, 0.0, m_2)
            difference_7 = m - chosen
            exp2 = tl.exp2(difference_7)
            difference_8 = max_of_piece - chosen
            exp2_2 = tl.exp2(difference_8)
            product_5 = s * exp2
            product_6 = sum_of_piece * exp2_2
            total_10 = product_5 + product_6
            product_7 = o * exp2
            product_8 = o_of_piece_2 * exp2_2
            total_11 = product_7 + product_8
            max_of_piece, m, s, o = tl.full((128, 1), float("-inf"), tl.float32), m_2, total_10, total_11
        m_chunk = max_over_s_lane(product_4)
        total_10 = max_of_piece + 8.0
        below_3 = total_10 < m_chunk
        m_new = tl.where(below_3, m_chunk, max_of_piece)
        equal = m_new == float("-inf")
        chosen = tl.where(equal, 0.0, m_new)
        difference_7 = max_of_piece - chosen
        again = tl.exp2(difference_7)
        difference_8 = product_4 - chosen
        e_2 = tl.exp2(difference_8)
        product_5 = sum_of_piece * again
        s_chunk = sum_over_s_lane(e_2)
        s_new = product_5 + s_chunk
        o_before = o_of_piece_2 * again
        p = e_2.to(tl.bfloat16)
        o_new = tl.dot(p, v, o_before)
        max_of_piece, sum_of_piece, o_of_piece_2 = m_new, s_new, o_new
    last_steps = tl.max(tl.reshape(steps, (128,)), 0)
    for s_step in tl.range(first_full_steps_2, last_steps, num_stages=2):
        product_3 = s_step * 64
        s_2 = product_3 + s_lane
        exists = s_2 < total_2
        at_most_2 = difference_2 <= s_2  # attention.py:264
        total_6 = begin_shared + s_2  # attention.py:265
        difference_5 = s_2 - difference_2
        total_7 = begin_k + difference_5
        unless = ~at_most_2  # attention.py:267
        both_3 = exists & unless
        both_4 = exists & at_most_2
        s_lane_2 = tl.arange(0, 64)[:, None]
        s_3 = product_3 + s_lane_2
        difference_6 = s_3 - difference_2
        total_8 = begin_k + difference_6
        exists_2 = s_3 < total_2
        at_most_3 = difference_2 <= s_3
        both_5 = exists_2 & at_most_3
        total_9 = begin_shared + s_3
        unless_2 = ~at_most_3
        both_6 = exists_2 & unless_2
        k_prefix = tl.load(
            k_prefix_ptr + h.to(tl.int64) * k_prefix_h_stride + total_9.to(tl.int64) * k_prefix_k_stride + e,
            mask=both_6, other=0.0
        )
        k = tl.load(
            k_ptr + h.to(tl.int64) * k_h_stride + total_8.to(tl.int64) * k_s_stride + e, mask=both_5, other=k_prefix
        )
        v_prefix = tl.load(
            v_prefix_ptr + h.to(tl.int64) * v_prefix_h_stride + total_9.to(tl.int64) * v_prefix_k_stride + w,
            mask=both_6, other=0.0
        )
        v = tl.load(
            v_ptr + h.to(tl.int64) * v_h_stride + total_8.to(tl.int64) * v_s_stride + w, mask=both_5, other=v_prefix
        )
        below_3 = s_2 < total_4  # attention.py:263
        exists_3 = exists & below_3
        z = tl.dot(q_2, k.T)  # attention.py:245
        product_4 = z * product  # attention.py:277
        remainder = s_step % 8  # attention.py:263
        turn = remainder == 0
        if turn:
            m_2 = tl.maximum(m, max_of_piece)
            equal = m_2 == float("-inf")
            chosen = tl.where(equal, 0.0, m_2)
            difference_7 = m - chosen
            exp2 = tl.exp2(difference_7)
            difference_8 = max_of_piece - chosen
            exp2_2 = tl.exp2(difference_8)
            product_5 = s * exp2
            product_6 = sum_of_piece * exp2_2
            total_10 = product_5 + product_6
            product_7 = o * exp2
            product_8 = o_of_piece_2 * exp2_2
            total_11 = product_7 + product_8
            max_of_piece, m, s, o = tl.full((128, 1), float("-inf"), tl.float32), m_2, total_10, total_11
        chosen = tl.where(exists_3, product_4, float("-inf"))
        m_chunk = max_over_s_lane(chosen)
        total_10 = max_of_piece + 8.0
        below_4 = total_10 < m_chunk
        m_new = tl.where(below_4, m_chunk, max_of_piece)
        equal = m_new == float("-inf")
        chosen_2 = tl.where(equal, 0.0, m_new)
        difference_7 = max_of_piece - chosen_2
        again = tl.exp2(difference_7)
        difference_8 = chosen - chosen_2
        e_2 = tl.exp2(difference_8)
        product_5 = sum_of_piece * again
        s_chunk = sum_over_s_lane(e_2)
        s_new = product_5 + s_chunk
        o_before = o_of_piece_2 * again
        p = e_2.to(tl.bfloat16)
        o_new = tl.dot(p, v, o_before)
        max_of_piece, sum_of_piece, o_of_piece_2 = m_new, s_new, o_new
    m_2 = tl.maximum(m, max_of_piece)
    equal = m_2 == float("-inf")
    chosen = tl.where(equal, 0.0, m_2)
    difference_5 = m - chosen
    exp2 = tl.exp2(difference_5)
    difference_6 = max_of_piece - chosen
    exp2_2 = tl.exp2(difference_6)
    product_3 = s * exp2
    product_4 = sum_of_piece * exp2_2
    total_6 = product_3 + product_4
    product_5 = o * exp2
    product_6 = o_of_piece_2 * exp2_2
    total_7 = product_5 + product_6
    equal_2 = total_6 == 0.0  # attention.py:325
    quotient_3 = divided(total_7, total_6)
    chosen_2 = tl.where(equal_2, 0.0, quotient_3)
    total_8 = chosen_2 + 0.0
    as_bf16 = total_8.to(tl.bfloat16)  # attention.py:326
    tl.store(
        o_ptr + h.to(tl.int64) * o_h_stride + total.to(tl.int64) * o_t_stride + g.to(tl.int64) * o_g_stride + w,
        as_bf16, mask=below
    )
    log = portable_log(total_6)  # attention.py:327
    fused = tl.fma(m_2, 0.6931472, log)
    tl.store(lse_ptr + h.to(tl.int64) * lse_h_stride + g.to(tl.int64) * lse_g_stride + total, fused, mask=below)


def call(
    kernels, q, k_prefix, v_prefix, begin_prefix, end_prefix, begin_asks, end_asks, place, m_of_piece, s_of_piece,
    o_of_piece, m_of_prompt, s_of_prompt, o_of_prompt, k, v, begin_shared, end_shared, begin_q, end_q, begin_k, end_k,
    o, lse, scale, C, N, T, Q, B, k_prefix_k_stride, k_prefix_h_stride, v_prefix_k_stride, v_prefix_h_stride,
    q_t_stride, q_h_stride, q_g_stride, m_of_piece_t_stride, m_of_piece_h_stride, s_of_piece_t_stride,
    s_of_piece_h_stride, o_of_piece_t_stride, o_of_piece_h_stride, o_of_piece_g_stride, m_of_prompt_t_stride,
    m_of_prompt_h_stride, s_of_prompt_t_stride, s_of_prompt_h_stride, o_of_prompt_t_stride, o_of_prompt_h_stride,
    o_of_prompt_g_stride, k_s_stride, k_h_stride, v_s_stride, v_h_stride, o_t_stride, o_h_stride, o_g_stride,
    lse_h_stride, lse_g_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = (C * 4 // 64 + N) * 8 * 1
    if programs > 0:
        kernels.prefix_attention_1(
            (programs,), q, k_prefix, v_prefix, begin_prefix, end_prefix, begin_asks, end_asks, place, m_of_piece,
            s_of_piece, o_of_piece, m_of_prompt, s_of_prompt, o_of_prompt, k_prefix_k_stride, k_prefix_h_stride,
            v_prefix_k_stride, v_prefix_h_stride, C, N, T, q_t_stride, q_h_stride, q_g_stride, m_of_piece_t_stride,
            m_of_piece_h_stride, s_of_piece_t_stride, s_of_piece_h_stride, o_of_piece_t_stride, o_of_piece_h_stride,
            o_of_piece_g_stride, m_of_prompt_t_stride, m_of_prompt_h_stride, s_of_prompt_t_stride, s_of_prompt_h_stride,
            o_of_prompt_t_stride, o_of_prompt_h_stride, o_of_prompt_g_stride, scale
        )
    programs = (Q * 4 // 128 + B) * 8 * 1
    if programs > 0:
        kernels.prefix_attention_2(
            (programs,), q, k_prefix, v_prefix, k, v, begin_shared, end_shared, begin_q, end_q, begin_k, end_k,
            m_of_piece, s_of_piece, o_of_piece, m_of_prompt, s_of_prompt, o_of_prompt, o, lse, k_s_stride, k_h_stride,
            v_s_stride, v_h_stride, Q, B, T, q_t_stride, q_h_stride, q_g_stride, m_of_piece_t_stride,
            m_of_piece_h_stride, s_of_piece_t_stride, s_of_piece_h_stride, o_of_piece_t_stride, o_of_piece_h_stride,
            o_of_piece_g_stride, m_of_prompt_t_stride, m_of_prompt_h_stride, s_of_prompt_t_stride, s_of_prompt_h_stride,
            o_of_prompt_t_stride, o_of_prompt_h_stride, o_of_prompt_g_stride, k_prefix_k_stride, k_prefix_h_stride,
            v_prefix_k_stride, v_prefix_h_stride, o_t_stride, o_h_stride, o_g_stride, lse_h_stride, lse_g_stride, scale
        )
