"""varlen_attention_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 56c4815123ee58b1
schedule: tiles G=4, T=2, 2 warps, 1 stages, unroll 1
schedule: tiles Q*G=128, 8 warps, 3 stages, unroll 1
schedule: tiles J=128, 8 warps, 2 stages, unroll 1
"""

import triton
import triton.language as tl


@triton.jit
def sum_over_w(x):
    # The sum over W, halving: two terms at a time, so that no layout chooses.
    x = tl.sum(tl.reshape(x, (2, 4, 2, 64)), 2)
    x = tl.sum(tl.reshape(x, (2, 4, 2, 32)), 2)
    x = tl.sum(tl.reshape(x, (2, 4, 2, 16)), 2)
    x = tl.sum(tl.reshape(x, (2, 4, 2, 8)), 2)
    x = tl.sum(tl.reshape(x, (2, 4, 2, 4)), 2)
    x = tl.sum(tl.reshape(x, (2, 4, 2, 2)), 2)
    x = tl.sum(tl.reshape(x, (2, 4, 2)), 2)
    return tl.reshape(x, (2, 4, 1))


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
def varlen_attention_grad_1(
    o_ptr, lse_ptr, d_o_ptr, d_lse_ptr, shift_ptr, delta_ptr, T, lse_h_stride, lse_g_stride, d_o_t_stride, d_o_h_stride,
    d_o_g_stride, o_t_stride, o_h_stride, o_g_stride, d_lse_h_stride, d_lse_g_stride, shift_t_stride, shift_h_stride,
    delta_t_stride, delta_h_stride
):
    # A program owns 1 of H, 2 of T, 4 of G (rows).
    program = tl.program_id(0)
    program_2 = program // 1
    g = (program % 1) * 4 + tl.arange(0, 4)[None, :, None]
    program_3 = program_2 // ((T + 1) // 2)
    t = (program_2 % ((T + 1) // 2)) * 2 + tl.arange(0, 2)[:, None, None]
    t_inside = t < T
    h = program_3
    # attention.py:97
    lse = tl.load(lse_ptr + h.to(tl.int64) * lse_h_stride + g.to(tl.int64) * lse_g_stride + t, mask=t_inside, other=0.0)
    w = tl.arange(0, 128)[None, None, :]  # attention.py:99
    d_o = tl.load(
        d_o_ptr + h.to(tl.int64) * d_o_h_stride + t.to(tl.int64) * d_o_t_stride + g.to(tl.int64) * d_o_g_stride + w,
        mask=t_inside, other=0.0
    )
    o = tl.load(
        o_ptr + h.to(tl.int64) * o_h_stride + t.to(tl.int64) * o_t_stride + g.to(tl.int64) * o_g_stride + w,
        mask=t_inside, other=0.0
    )
    d_lse = tl.load(  # attention.py:100
        d_lse_ptr + h.to(tl.int64) * d_lse_h_stride + g.to(tl.int64) * d_lse_g_stride + t, mask=t_inside, other=0.0
    )
    product = lse * 1.442695  # attention.py:97
    negative = product * -1.0
    tl.store(shift_ptr + h.to(tl.int64) * shift_h_stride + t.to(tl.int64) * shift_t_stride + g, negative, mask=t_inside)
    as_f32 = d_o.to(tl.float32)  # attention.py:99
    as_f32_2 = o.to(tl.float32)
    product_2 = as_f32 * as_f32_2
    sum_w = sum_over_w(product_2)
    difference = sum_w - d_lse  # attention.py:100
    tl.store(
        delta_ptr + h.to(tl.int64) * delta_h_stride + t.to(tl.int64) * delta_t_stride + g, difference, mask=t_inside
    )


@triton.jit
def varlen_attention_grad_2(
    q_ptr, k_ptr, v_ptr, begin_q_ptr, end_q_ptr, begin_k_ptr, end_k_ptr, d_o_ptr, shift_ptr, delta_ptr, d_q_ptr,
    k_s_stride, k_h_stride, v_s_stride, v_h_stride, Q, B, q_t_stride, q_h_stride, q_g_stride, d_o_t_stride,
    d_o_h_stride, d_o_g_stride, shift_t_stride, shift_h_stride, delta_t_stride, delta_h_stride, d_q_t_stride,
    d_q_h_stride, d_q_g_stride, scale
):
    # A program owns 1 of H, 1 of B, 128 of Q*G (back_to_back_gemm).
    e = tl.arange(0, 128)[None, :]
    w = tl.arange(0, 128)[None, :]
    tiles = Q * 4 // 128 + B
    tile = tiles - 1 - tl.program_id(0) % tiles
    b = segment_of(begin_q_ptr, tile, B, 4, 128)
    begin = tl.load(begin_q_ptr + b).to(tl.int32) * 4
    end = tl.load(end_q_ptr + b).to(tl.int32) * 4
    first = (tile - (begin // 128 + b)) * 128
    if first >= end - begin:
        return
    q_g = first + tl.arange(0, 128)[:, None]
    h = tl.program_id(0) // tiles
    begin_k = tl.load(begin_k_ptr + b)  # attention.py:112
    end_k = tl.load(end_k_ptr + b)  # attention.py:113
    begin_q = tl.load(begin_q_ptr + b)  # attention.py:301
    end_q = tl.load(end_q_ptr + b)  # attention.py:302
    g = q_g % 4  # attention.py:97
    q = q_g // 4  # attention.py:301
    difference = end_q - begin_q  # attention.py:302
    total = begin_q + q  # attention.py:303
    below = q < difference
    q_2 = tl.load(  # attention.py:114
        q_ptr + h.to(tl.int64) * q_h_stride + total.to(tl.int64) * q_t_stride + g.to(tl.int64) * q_g_stride + e,
        mask=below, other=0.0
    )
    d_o = tl.load(  # attention.py:115
        d_o_ptr + h.to(tl.int64) * d_o_h_stride + total.to(tl.int64) * d_o_t_stride + g.to(tl.int64) * d_o_g_stride + w,
        mask=below, other=0.0
    )
    difference_2 = end_k - begin_k  # attention.py:113
    difference_3 = difference_2 - difference  # attention.py:303
    total_2 = q + difference_3
    shift = tl.load(  # attention.py:116
        shift_ptr + h.to(tl.int64) * shift_h_stride + total.to(tl.int64) * shift_t_stride + g, mask=below, other=0.0
    )
    delta = tl.load(  # attention.py:117
        delta_ptr + h.to(tl.int64) * delta_h_stride + total.to(tl.int64) * delta_t_stride + g, mask=below, other=0.0
    )
    total_3 = total_2 + 1  # attention.py:309
    total_4 = total_3 + begin_k
    larger = tl.maximum(difference_2, 0)  # attention.py:119
    difference_4 = total_4 - begin_k
    larger_2 = tl.maximum(difference_4, 0)
    seen = tl.minimum(larger, larger_2)
    full_steps = seen // 64
    total_5 = seen + 63
    steps = total_5 // 64
    z_lane = tl.arange(0, 64)[None, :]
    product = scale * 1.442695  # attention.py:166
    last_steps = tl.max(tl.reshape(steps, (128,)), 0)  # attention.py:119
    s = tl.full((128, 128), 0.0, tl.float32)
    k_rows = tl.make_tensor_descriptor(
        k_ptr + h.to(tl.int64) * k_h_stride, shape=[end_k, 128], strides=[k_s_stride, 1], block_shape=[64, 128]
    )
    v_rows = tl.make_tensor_descriptor(
        v_ptr + h.to(tl.int64) * v_h_stride, shape=[end_k, 128], strides=[v_s_stride, 1], block_shape=[64, 128]
    )
    first_full_steps = tl.min(tl.reshape(full_steps, (128,)), 0)
    for z_step in tl.range(0, last_steps, num_stages=3):
        product_2 = z_step * 64
        total_6 = begin_k + product_2
        k = k_rows.load([total_6, 0])  # attention.py:120
        v = v_rows.load([total_6, 0])
        z = tl.dot(q_2, k.T)  # attention.py:121
        fused = tl.fma(z, product, shift)  # attention.py:166
        exp2 = tl.exp2(fused)
        z_2 = tl.dot(d_o, v.T)  # attention.py:122
        difference_5 = z_2 - delta
        chosen = exp2  # attention.py:119
        if z_step >= first_full_steps:
            z_3 = total_6 + z_lane
            exists = z_3 < end_k
            below_2 = z_3 < total_4
            exists_2 = exists & below_2
            chosen = tl.where(exists_2, exp2, 0.0)
        product_3 = chosen * difference_5
        p = product_3.to(tl.bfloat16)
        sum_new = tl.dot(p, k, s)
        s = sum_new
    product_2 = s * scale  # attention.py:123
    as_bf16 = product_2.to(tl.bfloat16)
    tl.store(  # attention.py:124
        d_q_ptr + h.to(tl.int64) * d_q_h_stride + total.to(tl.int64) * d_q_t_stride + g.to(tl.int64) * d_q_g_stride + e,
        as_bf16, mask=below
    )


@triton.jit
def varlen_attention_grad_3(
    q_ptr, k_ptr, v_ptr, begin_q_ptr, end_q_ptr, begin_k_ptr, end_k_ptr, d_o_ptr, shift_ptr, delta_ptr, d_k_ptr,
    d_v_ptr, q_t_stride, q_h_stride, q_g_stride, d_o_t_stride, d_o_h_stride, d_o_g_stride, J, B, k_s_stride, k_h_stride,
    v_s_stride, v_h_stride, shift_t_stride, shift_h_stride, delta_t_stride, delta_h_stride, d_k_s_stride, d_k_h_stride,
    d_v_s_stride, d_v_h_stride, scale
):
    # A program owns 1 of H, 128 of J, 1 of B (back_to_back_gemm).
    e = tl.arange(0, 128)[None, :]
    w = tl.arange(0, 128)[None, :]
    tiles = J * 1 // 128 + B
    tile = tl.program_id(0) % tiles
    b = segment_of(begin_k_ptr, tile, B, 1, 128)
    begin = tl.load(begin_k_ptr + b).to(tl.int32) * 1
    end = tl.load(end_k_ptr + b).to(tl.int32) * 1
    first = (tile - (begin // 128 + b)) * 128
    if first >= end - begin:
        return
    j = first + tl.arange(0, 128)[:, None]
    h = tl.program_id(0) // tiles
    begin_k = tl.load(begin_k_ptr + b)  # attention.py:112
    end_k = tl.load(end_k_ptr + b)  # attention.py:113
    begin_q = tl.load(begin_q_ptr + b)  # attention.py:301
    end_q = tl.load(end_q_ptr + b)  # attention.py:302
    difference = end_k - begin_k  # attention.py:113
    total = begin_k + j  # attention.py:131
    below = j < difference
    # attention.py:132
    k = tl.load(k_ptr + h.to(tl.int64) * k_h_stride + total.to(tl.int64) * k_s_stride + e, mask=below, other=0.0)
    v = tl.load(v_ptr + h.to(tl.int64) * v_h_stride + total.to(tl.int64) * v_s_stride + w, mask=below, other=0.0)
    difference_2 = end_q - begin_q  # attention.py:302
    product = scale * 1.442695  # attention.py:166
    total_2 = j + difference_2  # attention.py:135
    difference_3 = total_2 - difference
    total_3 = begin_q + difference_3  # attention.py:157
    product_2 = total_3 * 4
    product_3 = begin_q * 4  # attention.py:137
    product_4 = end_q * 4
    difference_4 = product_4 - product_3
    larger = tl.maximum(difference_4, 0)
    full_steps = larger // 64
    difference_5 = product_2 - product_3
    unseen = tl.maximum(difference_5, 0)
    first_step = unseen // 64
    total_4 = larger + 63
    steps = total_4 // 64
    total_5 = unseen + 63
    quotient = total_5 // 64
    first_full_step = tl.minimum(quotient, steps)
    r_lane = tl.arange(0, 64)[None, :]
    first_first_step = tl.min(tl.reshape(first_step, (128,)), 0)
    s = tl.full((128, 128), 0.0, tl.float32)
    s_2 = tl.full((128, 128), 0.0, tl.float32)
    q_rows = tl.make_tensor_descriptor(
        q_ptr + h.to(tl.int64) * q_h_stride, shape=[product_4 // 4, 4, 128], strides=[q_t_stride, q_g_stride, 1],
        block_shape=[16, 4, 128]
    )
    d_o_rows = tl.make_tensor_descriptor(
        d_o_ptr + h.to(tl.int64) * d_o_h_stride, shape=[product_4 // 4, 4, 128],
        strides=[d_o_t_stride, d_o_g_stride, 1], block_shape=[16, 4, 128]
    )
    last_first_full_step = tl.max(tl.reshape(first_full_step, (128,)), 0)
    for r_step in tl.range(first_first_step, steps, num_stages=2):
        product_5 = r_step * 64
        total_6 = product_3 + product_5
        r = total_6 + r_lane
        exists = r < product_4
        quotient_2 = r // 4  # attention.py:138
        remainder = r % 4
        q = tl.reshape(q_rows.load([total_6 // 4, 0, 0]), (64, 128))  # attention.py:139
        d_o = tl.reshape(d_o_rows.load([total_6 // 4, 0, 0]), (64, 128))
        shift = tl.load(  # attention.py:140
            shift_ptr + h.to(tl.int64) * shift_h_stride + quotient_2.to(tl.int64) * shift_t_stride + remainder,
            mask=exists, other=0.0
        )
        delta = tl.load(  # attention.py:141
            delta_ptr + h.to(tl.int64) * delta_h_stride + quotient_2.to(tl.int64) * delta_t_stride + remainder,
            mask=exists, other=0.0
        )
        z = tl.dot(k, q.T)  # attention.py:142
        fused = tl.fma(z, product, shift)  # attention.py:166
        exp2 = tl.exp2(fused)
        z_2 = tl.dot(v, d_o.T)  # attention.py:146
        difference_6 = z_2 - delta
        chosen = exp2  # attention.py:137
        if (r_step < last_first_full_step) | (r_step >= full_steps):
            at_most = product_2 <= r
            exists_2 = exists & at_most
            chosen = tl.where(exists_2, exp2, 0.0)
        p = chosen.to(tl.bfloat16)
        sum_new = tl.dot(p, d_o, s)
        product_6 = chosen * difference_6
        p_2 = product_6.to(tl.bfloat16)
        sum_new_2 = tl.dot(p_2, q, s_2)
        s, s_2 = sum_new, sum_new_2
    product_5 = s_2 * scale  # attention.py:148
    as_bf16 = product_5.to(tl.bfloat16)
    tl.store(d_k_ptr + h.to(tl.int64) * d_k_h_stride + total.to(tl.int64) * d_k_s_stride + e, as_bf16, mask=below)
    as_bf16_2 = s.to(tl.bfloat16)  # attention.py:150
    tl.store(d_v_ptr + h.to(tl.int64) * d_v_h_stride + total.to(tl.int64) * d_v_s_stride + w, as_bf16_2, mask=below)


def call(
    kernels, o, lse, d_o, d_lse, shift, delta, q, k, v, begin_q, end_q, begin_k, end_k, d_q, d_k, d_v, scale, T, Q, B,
    J, lse_h_stride, lse_g_stride, d_o_t_stride, d_o_h_stride, d_o_g_stride, o_t_stride, o_h_stride, o_g_stride,
    d_lse_h_stride, d_lse_g_stride, shift_t_stride, shift_h_stride, delta_t_stride, delta_h_stride, k_s_stride,
    k_h_stride, v_s_stride, v_h_stride, q_t_stride, q_h_stride, q_g_stride, d_q_t_stride, d_q_h_stride, d_q_g_stride,
    d_k_s_stride, d_k_h_stride, d_v_s_stride, d_v_h_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = 8 * ((T + 1) // 2) * 1
    if programs > 0:
        kernels.varlen_attention_grad_1(
            (programs,), o, lse, d_o, d_lse, shift, delta, T, lse_h_stride, lse_g_stride, d_o_t_stride, d_o_h_stride,
            d_o_g_stride, o_t_stride, o_h_stride, o_g_stride, d_lse_h_stride, d_lse_g_stride, shift_t_stride,
            shift_h_stride, delta_t_stride, delta_h_stride
        )
    programs = (Q * 4 // 128 + B) * 8
    if programs > 0:
        kernels.varlen_attention_grad_2(
            (programs,), q, k, v, begin_q, end_q, begin_k, end_k, d_o, shift, delta, d_q, k_s_stride, k_h_stride,
            v_s_stride, v_h_stride, Q, B, q_t_stride, q_h_stride, q_g_stride, d_o_t_stride, d_o_h_stride, d_o_g_stride,
            shift_t_stride, shift_h_stride, delta_t_stride, delta_h_stride, d_q_t_stride, d_q_h_stride, d_q_g_stride,
            scale
        )
    programs = (J * 1 // 128 + B) * 8
    if programs > 0:
        kernels.varlen_attention_grad_3(
            (programs,), q, k, v, begin_q, end_q, begin_k, end_k, d_o, shift, delta, d_k, d_v, q_t_stride, q_h_stride,
            q_g_stride, d_o_t_stride, d_o_h_stride, d_o_g_stride, J, B, k_s_stride, k_h_stride, v_s_stride, v_h_stride,
            shift_t_stride, shift_h_stride, delta_t_stride, delta_h_stride, d_k_s_stride, d_k_h_stride, d_v_s_stride,
            d_v_h_stride, scale
        )
