"""varlen_attention on sm_90a, written by rlk 0.1.0: do not edit.

numerics: ca497bd10c6c61b5
schedule: tiles Q*G=64, W=128, 4 warps, 3 stages, unroll 1, shared K/V descriptor
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
    return tl.reshape(x, (64, 1))


@triton.jit
def sum_over_s_lane(x):
    # The sum over S.lane, halving: two terms at a time, so that no layout chooses.
    x = tl.sum(tl.reshape(x, (64, 2, 32)), 1)
    x = tl.sum(tl.reshape(x, (64, 2, 16)), 1)
    x = tl.sum(tl.reshape(x, (64, 2, 8)), 1)
    x = tl.sum(tl.reshape(x, (64, 2, 4)), 1)
    x = tl.sum(tl.reshape(x, (64, 2, 2)), 1)
    x = tl.sum(tl.reshape(x, (64, 2)), 1)
    return tl.reshape(x, (64, 1))


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
def varlen_attention(
    q_ptr, k_ptr, v_ptr, begin_q_ptr, end_q_ptr, begin_k_ptr, end_k_ptr, o_ptr, lse_ptr, k_s_stride, k_h_stride,
    v_s_stride, v_h_stride, Q, B, T, q_t_stride, q_h_stride, q_g_stride, o_t_stride, o_h_stride, o_g_stride,
    lse_h_stride, lse_g_stride, scale
):
    # A program owns 1 of H, 128 of W, 1 of B, 64 of Q*G (back_to_back_gemm).
    e = tl.arange(0, 128)[None, :]
    tiles = Q * 4 // 64 + B
    tile = tiles - 1 - tl.program_id(0) % tiles
    b = segment_of(begin_q_ptr, tile, B, 4, 64)
    begin = tl.load(begin_q_ptr + b).to(tl.int32) * 4
    end = tl.load(end_q_ptr + b).to(tl.int32) * 4
    first = (tile - (begin // 64 + b)) * 64
    if first >= end - begin:
        return
    q_g = first + tl.arange(0, 64)[:, None]
    w = tl.arange(0, 128)[None, :]
    h = tl.program_id(0) // tiles
    begin_k = tl.load(begin_k_ptr + b)  # attention.py:75
    end_k = tl.load(end_k_ptr + b)  # attention.py:76
    begin_q = tl.load(begin_q_ptr + b)  # attention.py:301
    end_q = tl.load(end_q_ptr + b)  # attention.py:302
    q = q_g // 4  # attention.py:301
    difference = end_q - begin_q  # attention.py:302
    total = begin_q + q  # attention.py:303
    below = q < difference
    at_most = total >= 0  # attention.py:77
    below_2 = total < T
    both = at_most & below_2
    both_2 = below & both
    g = q_g % 4
    q_2 = tl.load(
        q_ptr + h.to(tl.int64) * q_h_stride + total.to(tl.int64) * q_t_stride + g.to(tl.int64) * q_g_stride + e,
        mask=both_2, other=0.0
    )
    difference_2 = end_k - begin_k  # attention.py:76
    difference_3 = difference_2 - difference  # attention.py:303
    total_2 = q + difference_3
    total_3 = total_2 + 1  # attention.py:309
    total_4 = total_3 + begin_k
    larger = tl.maximum(difference_2, 0)  # attention.py:79
    difference_4 = total_4 - begin_k
    larger_2 = tl.maximum(difference_4, 0)
    seen = tl.minimum(larger, larger_2)
    full_steps = seen // 64
    total_5 = seen + 63
    steps = total_5 // 64
    s_lane = tl.arange(0, 64)[None, :]
    product = scale * 1.442695  # attention.py:277
    last_steps = tl.max(tl.reshape(steps, (64,)), 0)  # attention.py:79
    max_of_piece = tl.full((64, 1), float("-inf"), tl.float32)
    sum_of_piece = tl.full((64, 1), 0.0, tl.float32)
    o_of_piece = tl.full((64, 128), 0.0, tl.float32)
    m = tl.full((64, 1), float("-inf"), tl.float32)
    s = tl.full((64, 1), negative_zero(), tl.float32)
    o = tl.full((64, 128), negative_zero(), tl.float32)
    k_base = k_ptr + h.to(tl.int64) * k_h_stride
    v_base = v_ptr + h.to(tl.int64) * v_h_stride
    apart = v_base.to(tl.int64) - k_base.to(tl.int64)
    alone = (k_s_stride != v_s_stride) | (apart == 0) | (tl.abs(apart) >= 1 << 40)
    ordered = alone | (apart > 0)
    k_half = tl.where(ordered, 0, 1)
    v_half = 1 - k_half
    k_rows = tl.make_tensor_descriptor(
        tl.where(ordered, k_base, v_base), shape=[2, end_k, 128],
        strides=[tl.where(alone, 8, tl.abs(apart) // 2), k_s_stride, 1], block_shape=[1, 64, 128]
    )
    v_rows = k_rows
    if alone:
        v_half, v_rows = (
            0,
            tl.make_tensor_descriptor(
                v_base, shape=[1, end_k, 128], strides=[8, v_s_stride, 1], block_shape=[1, 64, 128]
            )
        )
    first_full_steps = tl.min(tl.reshape(full_steps, (64,)), 0)
    for s_step in tl.range(0, last_steps, num_stages=3):
        product_2 = s_step * 64
        total_6 = begin_k + product_2
        k = tl.reshape(k_rows.load([k_half, total_6, 0]), (64, 128))  # attention.py:80
        z = tl.dot(q_2, k.T)
        v = tl.reshape(v_rows.load([v_half, total_6, 0]), (64, 128))  # attention.py:81
        product_3 = z * product  # attention.py:277
        remainder = s_step % 8  # attention.py:79
        turn = remainder == 0
        if turn:
            m_2 = tl.maximum(m, max_of_piece)
            equal = m_2 == float("-inf")
            chosen = tl.where(equal, 0.0, m_2)
            difference_5 = m - chosen
            exp2 = tl.exp2(difference_5)
            difference_6 = max_of_piece - chosen
            exp2_2 = tl.exp2(difference_6)
            product_4 = s * exp2
            product_5 = sum_of_piece * exp2_2
            total_7 = product_4 + product_5
            product_6 = o * exp2
            product_7 = o_of_piece * exp2_2
            total_8 = product_6 + product_7
            max_of_piece, m, s, o = tl.full((64, 1), float("-inf"), tl.float32), m_2, total_7, total_8
        chosen = product_3
        if s_step >= first_full_steps:
            s_2 = total_6 + s_lane
            exists = s_2 < end_k
            below_3 = s_2 < total_4
            exists_2 = exists & below_3
            chosen = tl.where(exists_2, product_3, float("-inf"))
        m_chunk = max_over_s_lane(chosen)
        total_7 = max_of_piece + 8.0
        below_3 = total_7 < m_chunk
        m_new = tl.where(below_3, m_chunk, max_of_piece)
        equal = m_new == float("-inf")
        chosen_2 = tl.where(equal, 0.0, m_new)
        difference_5 = max_of_piece - chosen_2
        again = tl.exp2(difference_5)
        difference_6 = chosen - chosen_2
        e_2 = tl.exp2(difference_6)
        product_4 = sum_of_piece * again
        s_chunk = sum_over_s_lane(e_2)
        s_new = product_4 + s_chunk
        o_before = o_of_piece * again
        p = e_2.to(tl.bfloat16)
        o_new = tl.dot(p, v, o_before)
        max_of_piece, sum_of_piece, o_of_piece = m_new, s_new, o_new
    m_2 = tl.maximum(m, max_of_piece)
    equal = m_2 == float("-inf")
    chosen = tl.where(equal, 0.0, m_2)
    difference_5 = m - chosen
    exp2 = tl.exp2(difference_5)
    difference_6 = max_of_piece - chosen
    exp2_2 = tl.exp2(difference_6)
    product_2 = s * exp2
    product_3 = sum_of_piece * exp2_2
    total_6 = product_2 + product_3
    product_4 = o * exp2
    product_5 = o_of_piece * exp2_2
    total_7 = product_4 + product_5
    equal_2 = total_6 == 0.0  # attention.py:325
    quotient = divided(total_7, total_6)
    chosen_2 = tl.where(equal_2, 0.0, quotient)
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
    kernels, q, k, v, begin_q, end_q, begin_k, end_k, o, lse, scale, Q, B, T, k_s_stride, k_h_stride, v_s_stride,
    v_h_stride, q_t_stride, q_h_stride, q_g_stride, o_t_stride, o_h_stride, o_g_stride, lse_h_stride, lse_g_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = (Q * 4 // 64 + B) * 8 * 1
    if programs > 0:
        kernels.varlen_attention(
            (programs,), q, k, v, begin_q, end_q, begin_k, end_k, o, lse, k_s_stride, k_h_stride, v_s_stride,
            v_h_stride, Q, B, T, q_t_stride, q_h_stride, q_g_stride, o_t_stride, o_h_stride, o_g_stride, lse_h_stride,
            lse_g_stride, scale
        )
