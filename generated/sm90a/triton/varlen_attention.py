"""varlen_attention on sm_90a, written by rlk 0.1.0: do not edit.

numerics: ca497bd10c6c61b5
schedule: tiles Q*G=64, W=128, 4 warps, 3 stages, unroll 1, shared K/V descriptor
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

import triton
import triton.language as tl


@triton.jit
def segment_of(begin_ptr, tile, count, EACH: tl.constexpr, TILE: tl.constexpr):
    # Segment of a tile of rows: segment i starts at tile begin[i] * EACH // TILE + i.
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
def varlen_attention(
    q_ptr, k_ptr, v_ptr, begin_q_ptr, end_q_ptr, begin_k_ptr, end_k_ptr, o_ptr, lse_ptr, k_s_stride, k_h_stride,
    v_s_stride, v_h_stride, Q, B, T, q_t_stride, q_h_stride, q_g_stride, o_t_stride, o_h_stride, o_g_stride,
    lse_h_stride, lse_g_stride, scale
):
    # A program owns 1 of H, 128 of W, 1 of B, 64 of Q*G (back_to_back_gemm).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
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
    begin_q = tl.load(begin_q_ptr + b)  # attention.py:305
    end_q = tl.load(end_q_ptr + b)  # attention.py:306
    query = q_g // 4  # attention.py:305
    count = end_q - begin_q  # attention.py:306
    token = begin_q + query  # attention.py:307
    inside = query < count
    token_ge_0 = token >= 0  # attention.py:77
    token_lt_T = token < T
    q_guard = token_ge_0 & token_lt_T
    q_guard_2 = inside & q_guard
    g = q_g % 4
    q = tl.load(
        q_ptr + h.to(tl.int64) * q_h_stride + token.to(tl.int64) * q_t_stride + g.to(tl.int64) * q_g_stride + e,
        mask=q_guard_2, other=0.0
    )
    keys = end_k - begin_k  # attention.py:76
    keys_minus_count = keys - count  # attention.py:307
    key = query + keys_minus_count
    key_plus_1 = key + 1  # attention.py:313
    until = key_plus_1 + begin_k
    length = tl.maximum(keys, 0)  # attention.py:79
    until_minus_begin_k = until - begin_k
    visible = tl.maximum(until_minus_begin_k, 0)
    seen = tl.minimum(length, visible)
    full_steps = seen // 64
    seen_plus_63 = seen + 63
    steps = seen_plus_63 // 64
    s_lane = tl.arange(0, 64)[None, :]
    scale_times_log2e = scale * 1.442695  # attention.py:281
    last_steps = tl.max(tl.reshape(steps, (64,)), 0)  # attention.py:79
    m_piece = tl.full((64, 1), float("-inf"), tl.float32)
    l_piece = tl.full((64, 1), 0.0, tl.float32)
    acc_o = tl.full((64, 128), 0.0, tl.float32)
    m_before = tl.full((64, 1), float("-inf"), tl.float32)
    l_before = tl.full((64, 1), negative_zero(), tl.float32)
    o_before = tl.full((64, 128), negative_zero(), tl.float32)
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
        s_step_times_64 = s_step * 64
        s_begin = begin_k + s_step_times_64
        k = tl.reshape(k_rows.load([k_half, s_begin, 0]), (64, 128))  # attention.py:80
        qk = tl.dot(q, k.T)
        v = tl.reshape(v_rows.load([v_half, s_begin, 0]), (64, 128))  # attention.py:81
        s = qk * scale_times_log2e  # attention.py:281
        s_step_mod_8 = s_step % 8  # attention.py:79
        new_piece = s_step_mod_8 == 0
        if new_piece:
            m = tl.maximum(m_before, m_piece)  # attention.py:81
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
            m_piece, m_before, l_before, o_before = tl.full((64, 1), float("-inf"), tl.float32), m, l, o
        s_masked = s
        if s_step >= first_full_steps:
            kv = s_begin + s_lane  # attention.py:79
            in_range = kv < end_k
            kv_lt_until = kv < until
            exists = in_range & kv_lt_until
            s_masked = tl.where(exists, s, float("-inf"))
        m_chunk = max_over_s_lane(s_masked)  # attention.py:81
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
        acc_o_new = tl.dot(p_bf16, v, acc_o_scaled)
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
