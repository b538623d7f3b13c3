"""prefix_attention on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 79b8a2e6ea6b47d0
schedule: tiles C*G=64, W=128, 4 warps, 3 stages, unroll 1, shared K/V descriptor
schedule: tiles Q*G=128, W=128, 8 warps, 2 stages, unroll 1
inputs:
  q: bf16 [T, H=8, G=4, E=128]
  k_prefix: bf16 [K, H=8, E=128]
  v_prefix: bf16 [K, H=8, W=128]
  begin_prefix: i32 [N]
  end_prefix: i32 [N]
  begin_asks: i32 [N]
  end_asks: i32 [N]
  place: i32 [T]
  k: bf16 [S, H=8, E=128]
  v: bf16 [S, H=8, W=128]
  begin_shared: i32 [B]
  end_shared: i32 [B]
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
def prefix_attention_1(
    q_ptr, k_prefix_ptr, v_prefix_ptr, begin_prefix_ptr, end_prefix_ptr, begin_asks_ptr, end_asks_ptr, place_ptr,
    m_of_piece_ptr, s_of_piece_ptr, o_of_piece_ptr, m_of_prompt_ptr, s_of_prompt_ptr, o_of_prompt_ptr,
    k_prefix_k_stride, k_prefix_h_stride, v_prefix_k_stride, v_prefix_h_stride, C, N, T, q_t_stride, q_h_stride,
    q_g_stride, m_of_piece_t_stride, m_of_piece_h_stride, s_of_piece_t_stride, s_of_piece_h_stride, o_of_piece_t_stride,
    o_of_piece_h_stride, o_of_piece_g_stride, m_of_prompt_t_stride, m_of_prompt_h_stride, s_of_prompt_t_stride,
    s_of_prompt_h_stride, o_of_prompt_t_stride, o_of_prompt_h_stride, o_of_prompt_g_stride, scale
):
    # A program owns 1 of H, 1 of N, 128 of W, 64 of C*G (back_to_back_gemm).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
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
    begin_prefix = tl.load(begin_prefix_ptr + n)  # attention.py:249
    begin_asks = tl.load(begin_asks_ptr + n)
    end_asks = tl.load(end_asks_ptr + n)  # attention.py:250
    end_prefix = tl.load(end_prefix_ptr + n)  # attention.py:253
    c = c_g // 4  # attention.py:250
    token = begin_asks + c
    end_asks_minus_begin_asks = end_asks - begin_asks
    inside = c < end_asks_minus_begin_asks
    place = tl.load(place_ptr + token, mask=inside, other=1073741824)  # attention.py:251
    token_ge_0 = token >= 0  # attention.py:252
    token_lt_T = token < T
    q_guard = token_ge_0 & token_lt_T
    q_guard_2 = inside & q_guard
    g = c_g % 4
    q = tl.load(
        q_ptr + h.to(tl.int64) * q_h_stride + token.to(tl.int64) * q_t_stride + g.to(tl.int64) * q_g_stride + e,
        mask=q_guard_2, other=0.0
    )
    end_prefix_minus_begin_prefix = end_prefix - begin_prefix  # attention.py:253
    whole_quotient = end_prefix_minus_begin_prefix // 64
    whole = whole_quotient * 64
    begin_prefix_plus_whole = begin_prefix + whole  # attention.py:255
    place_plus_1 = place + 1  # attention.py:313
    until = place_plus_1 + begin_prefix
    length_difference = begin_prefix_plus_whole - begin_prefix  # attention.py:255
    length = tl.maximum(length_difference, 0)
    until_minus_begin_prefix = until - begin_prefix
    visible = tl.maximum(until_minus_begin_prefix, 0)
    seen = tl.minimum(length, visible)
    full_steps = seen // 64
    seen_plus_63 = seen + 63
    steps = seen_plus_63 // 64
    k_lane = tl.arange(0, 64)[None, :]
    scale_times_log2e = scale * 1.442695  # attention.py:281
    last_steps = tl.max(tl.reshape(steps, (64,)), 0)  # attention.py:255
    m_piece = tl.full((64, 1), float("-inf"), tl.float32)
    l_piece = tl.full((64, 1), 0.0, tl.float32)
    acc_o = tl.full((64, 128), 0.0, tl.float32)
    m_before = tl.full((64, 1), float("-inf"), tl.float32)
    l_before = tl.full((64, 1), negative_zero(), tl.float32)
    o_before = tl.full((64, 128), negative_zero(), tl.float32)
    k_prefix_base = k_prefix_ptr + h.to(tl.int64) * k_prefix_h_stride
    v_prefix_base = v_prefix_ptr + h.to(tl.int64) * v_prefix_h_stride
    apart = v_prefix_base.to(tl.int64) - k_prefix_base.to(tl.int64)
    alone = (k_prefix_k_stride != v_prefix_k_stride) | (apart == 0) | (tl.abs(apart) >= 1 << 40)
    ordered = alone | (apart > 0)
    k_prefix_half = tl.where(ordered, 0, 1)
    v_prefix_half = 1 - k_prefix_half
    k_prefix_rows = tl.make_tensor_descriptor(
        tl.where(ordered, k_prefix_base, v_prefix_base), shape=[2, begin_prefix_plus_whole, 128],
        strides=[tl.where(alone, 8, tl.abs(apart) // 2), k_prefix_k_stride, 1], block_shape=[1, 64, 128]
    )
    v_prefix_rows = k_prefix_rows
    if alone:
        v_prefix_half, v_prefix_rows = (
            0,
            tl.make_tensor_descriptor(
                v_prefix_base, shape=[1, begin_prefix_plus_whole, 128], strides=[8, v_prefix_k_stride, 1],
                block_shape=[1, 64, 128]
            )
        )
    first_full_steps = tl.min(tl.reshape(full_steps, (64,)), 0)
    for k_step in tl.range(0, last_steps, num_stages=3):
        k_step_times_64 = k_step * 64
        k_begin = begin_prefix + k_step_times_64
        k_prefix = tl.reshape(k_prefix_rows.load([k_prefix_half, k_begin, 0]), (64, 128))  # attention.py:256
        qk = tl.dot(q, k_prefix.T)  # attention.py:247
        v_prefix = tl.reshape(v_prefix_rows.load([v_prefix_half, k_begin, 0]), (64, 128))  # attention.py:257
        s = qk * scale_times_log2e  # attention.py:281
        k_step_mod_8 = k_step % 8  # attention.py:255
        new_piece = k_step_mod_8 == 0
        if new_piece:
            m = tl.maximum(m_before, m_piece)  # attention.py:257
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
        if k_step >= first_full_steps:
            kv = k_begin + k_lane  # attention.py:255
            in_range = kv < begin_prefix_plus_whole
            kv_lt_until = kv < until
            exists = in_range & kv_lt_until
            s_masked = tl.where(exists, s, float("-inf"))
        m_chunk = max_over_k_lane(s_masked)  # attention.py:257
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
        l_chunk = sum_over_k_lane(p)
        l_new = l_scaled + l_chunk
        acc_o_scaled = acc_o * alpha
        p_bf16 = p.to(tl.bfloat16)
        acc_o_new = tl.dot(p_bf16, v_prefix, acc_o_scaled)
        m_piece, l_piece, acc_o = m_new, l_new, acc_o_new
    tl.store(  # attention.py:289
        m_of_piece_ptr + h.to(tl.int64) * m_of_piece_h_stride + token.to(tl.int64) * m_of_piece_t_stride + g, m_piece,
        mask=inside
    )
    tl.store(
        s_of_piece_ptr + h.to(tl.int64) * s_of_piece_h_stride + token.to(tl.int64) * s_of_piece_t_stride + g, l_piece,
        mask=inside
    )
    tl.store(
        o_of_piece_ptr + h.to(tl.int64) * o_of_piece_h_stride + token.to(tl.int64) * o_of_piece_t_stride
        + g.to(tl.int64) * o_of_piece_g_stride + w,
        acc_o, mask=inside
    )
    tl.store(
        m_of_prompt_ptr + h.to(tl.int64) * m_of_prompt_h_stride + token.to(tl.int64) * m_of_prompt_t_stride + g,
        m_before, mask=inside
    )
    tl.store(
        s_of_prompt_ptr + h.to(tl.int64) * s_of_prompt_h_stride + token.to(tl.int64) * s_of_prompt_t_stride + g,
        l_before, mask=inside
    )
    tl.store(
        o_of_prompt_ptr + h.to(tl.int64) * o_of_prompt_h_stride + token.to(tl.int64) * o_of_prompt_t_stride
        + g.to(tl.int64) * o_of_prompt_g_stride + w,
        o_before, mask=inside
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
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
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
    begin_shared = tl.load(begin_shared_ptr + b)  # attention.py:259
    begin_k = tl.load(begin_k_ptr + b)
    end_shared = tl.load(end_shared_ptr + b)  # attention.py:260
    end_k = tl.load(end_k_ptr + b)  # attention.py:261
    begin_q = tl.load(begin_q_ptr + b)  # attention.py:305
    end_q = tl.load(end_q_ptr + b)  # attention.py:306
    g = q_g % 4  # attention.py:252
    query = q_g // 4  # attention.py:305
    count = end_q - begin_q  # attention.py:306
    token = begin_q + query  # attention.py:307
    inside = query < count
    token_ge_0 = token >= 0  # attention.py:263
    token_lt_T = token < T
    q_guard = token_ge_0 & token_lt_T
    q_guard_2 = inside & q_guard
    q = tl.load(
        q_ptr + h.to(tl.int64) * q_h_stride + token.to(tl.int64) * q_t_stride + g.to(tl.int64) * q_g_stride + e,
        mask=q_guard_2, other=0.0
    )
    scale_times_log2e = scale * 1.442695  # attention.py:281
    shared = end_shared - begin_shared  # attention.py:260
    end_k_minus_begin_k = end_k - begin_k  # attention.py:261
    keys = shared + end_k_minus_begin_k
    keys_minus_count = keys - count  # attention.py:307
    key = query + keys_minus_count
    m_of_piece = tl.load(  # attention.py:264
        m_of_piece_ptr + h.to(tl.int64) * m_of_piece_h_stride + token.to(tl.int64) * m_of_piece_t_stride + g,
        mask=inside, other=0.0
    )
    s_of_piece = tl.load(
        s_of_piece_ptr + h.to(tl.int64) * s_of_piece_h_stride + token.to(tl.int64) * s_of_piece_t_stride + g,
        mask=inside, other=0.0
    )
    o_of_piece = tl.load(
        o_of_piece_ptr + h.to(tl.int64) * o_of_piece_h_stride + token.to(tl.int64) * o_of_piece_t_stride
        + g.to(tl.int64) * o_of_piece_g_stride + w,
        mask=inside, other=0.0
    )
    m_of_prompt = tl.load(
        m_of_prompt_ptr + h.to(tl.int64) * m_of_prompt_h_stride + token.to(tl.int64) * m_of_prompt_t_stride + g,
        mask=inside, other=0.0
    )
    s_of_prompt = tl.load(
        s_of_prompt_ptr + h.to(tl.int64) * s_of_prompt_h_stride + token.to(tl.int64) * s_of_prompt_t_stride + g,
        mask=inside, other=0.0
    )
    o_of_prompt = tl.load(
        o_of_prompt_ptr + h.to(tl.int64) * o_of_prompt_h_stride + token.to(tl.int64) * o_of_prompt_t_stride
        + g.to(tl.int64) * o_of_prompt_g_stride + w,
        mask=inside, other=0.0
    )
    shared_over_64 = shared // 64  # attention.py:265
    skipped = shared_over_64 * 64
    key_plus_1 = key + 1  # attention.py:313
    length = tl.maximum(keys, 0)  # attention.py:266
    visible = tl.maximum(key_plus_1, 0)
    seen = tl.minimum(length, visible)
    full_steps = seen // 64
    skipped_over_64 = skipped // 64
    first_step = tl.maximum(skipped_over_64, 0)
    full_steps_2 = tl.maximum(first_step, full_steps)
    seen_plus_63 = seen + 63
    steps = seen_plus_63 // 64
    s_lane = tl.arange(0, 64)[None, :]
    first_full_steps_2 = tl.min(tl.reshape(full_steps_2, (128,)), 0)
    m_piece = m_of_piece
    l_piece = s_of_piece
    acc_o = o_of_piece
    m_before = m_of_prompt
    l_before = s_of_prompt
    o_before = o_of_prompt
    for s_step in tl.range(first_step, first_full_steps_2, num_stages=2):
        s_step_times_64 = s_step * 64
        s_lane_2 = tl.arange(0, 64)[:, None]  # attention.py:270
        kv_2 = s_step_times_64 + s_lane_2
        kv_minus_shared_2 = kv_2 - shared
        total_2 = begin_k + kv_minus_shared_2
        own_2 = shared <= kv_2
        begin_shared_plus_kv_2 = begin_shared + kv_2
        not_own_2 = ~own_2
        k_prefix = tl.load(
            k_prefix_ptr + h.to(tl.int64) * k_prefix_h_stride + begin_shared_plus_kv_2.to(tl.int64) * k_prefix_k_stride
            + e,
            mask=not_own_2, other=0.0
        )
        k = tl.load(
            k_ptr + h.to(tl.int64) * k_h_stride + total_2.to(tl.int64) * k_s_stride + e, mask=own_2, other=k_prefix
        )
        v_prefix = tl.load(
            v_prefix_ptr + h.to(tl.int64) * v_prefix_h_stride + begin_shared_plus_kv_2.to(tl.int64) * v_prefix_k_stride
            + w,
            mask=not_own_2, other=0.0
        )
        v = tl.load(
            v_ptr + h.to(tl.int64) * v_h_stride + total_2.to(tl.int64) * v_s_stride + w, mask=own_2, other=v_prefix
        )
        qk = tl.dot(q, k.T)  # attention.py:247
        s = qk * scale_times_log2e  # attention.py:281
        s_step_mod_8 = s_step % 8  # attention.py:266
        new_piece = s_step_mod_8 == 0
        if new_piece:
            m = tl.maximum(m_before, m_piece)  # attention.py:274
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
            m_piece, m_before, l_before, o_before = tl.full((128, 1), float("-inf"), tl.float32), m, l, o
        m_chunk = max_over_s_lane(s)
        # numerators of up to 2 ** 8 keep the scale: most chunks rescale no sum
        m_limit = m_piece + 8.0
        m_grows = m_limit < m_chunk
        m_new = tl.where(m_grows, m_chunk, m_piece)
        is_empty = m_new == float("-inf")
        m_safe = tl.where(is_empty, 0.0, m_new)
        alpha_exponent = m_piece - m_safe
        alpha = tl.exp2(alpha_exponent)
        p_exponent = s - m_safe
        p = tl.exp2(p_exponent)
        l_scaled = l_piece * alpha
        l_chunk = sum_over_s_lane(p)
        l_new = l_scaled + l_chunk
        acc_o_scaled = acc_o * alpha
        p_bf16 = p.to(tl.bfloat16)
        acc_o_new = tl.dot(p_bf16, v, acc_o_scaled)
        m_piece, l_piece, acc_o = m_new, l_new, acc_o_new
    last_steps = tl.max(tl.reshape(steps, (128,)), 0)  # attention.py:266
    for s_step in tl.range(first_full_steps_2, last_steps, num_stages=2):
        s_step_times_64 = s_step * 64
        kv = s_step_times_64 + s_lane
        in_range = kv < keys
        s_lane_2 = tl.arange(0, 64)[:, None]  # attention.py:270
        kv_2 = s_step_times_64 + s_lane_2
        kv_minus_shared_2 = kv_2 - shared
        total_2 = begin_k + kv_minus_shared_2
        in_range_2 = kv_2 < keys
        own_2 = shared <= kv_2
        k_guard_2 = in_range_2 & own_2
        begin_shared_plus_kv_2 = begin_shared + kv_2
        not_own_2 = ~own_2
        k_prefix_guard_2 = in_range_2 & not_own_2
        k_prefix = tl.load(
            k_prefix_ptr + h.to(tl.int64) * k_prefix_h_stride + begin_shared_plus_kv_2.to(tl.int64) * k_prefix_k_stride
            + e,
            mask=k_prefix_guard_2, other=0.0
        )
        k = tl.load(
            k_ptr + h.to(tl.int64) * k_h_stride + total_2.to(tl.int64) * k_s_stride + e, mask=k_guard_2, other=k_prefix
        )
        v_prefix = tl.load(
            v_prefix_ptr + h.to(tl.int64) * v_prefix_h_stride + begin_shared_plus_kv_2.to(tl.int64) * v_prefix_k_stride
            + w,
            mask=k_prefix_guard_2, other=0.0
        )
        v = tl.load(
            v_ptr + h.to(tl.int64) * v_h_stride + total_2.to(tl.int64) * v_s_stride + w, mask=k_guard_2, other=v_prefix
        )
        exists_below = kv < key_plus_1  # attention.py:266
        exists = in_range & exists_below
        qk = tl.dot(q, k.T)  # attention.py:247
        s = qk * scale_times_log2e  # attention.py:281
        s_step_mod_8 = s_step % 8  # attention.py:266
        new_piece = s_step_mod_8 == 0
        if new_piece:
            m = tl.maximum(m_before, m_piece)  # attention.py:274
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
            m_piece, m_before, l_before, o_before = tl.full((128, 1), float("-inf"), tl.float32), m, l, o
        s_masked = tl.where(exists, s, float("-inf"))
        m_chunk = max_over_s_lane(s_masked)
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
