"""varlen_attention_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 56c4815123ee58b1
schedule: tiles G=4, T=2, 2 warps, 1 stages, unroll 1
schedule: tiles Q*G=128, 8 warps, 3 stages, unroll 1
schedule: tiles J=128, 8 warps, 2 stages, unroll 1
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
    # Segment of a tile of rows: segment i starts at tile begin[i] * EACH // TILE + i.
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
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
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
    lse_times_log2e = lse * 1.442695  # attention.py:97
    shift_neg = lse_times_log2e * -1.0
    tl.store(
        shift_ptr + h.to(tl.int64) * shift_h_stride + t.to(tl.int64) * shift_t_stride + g, shift_neg, mask=t_inside
    )
    d_o_f32 = d_o.to(tl.float32)  # attention.py:99
    o_f32 = o.to(tl.float32)
    row_product = d_o_f32 * o_f32
    row = sum_over_w(row_product)
    delta_value = row - d_lse  # attention.py:100
    tl.store(
        delta_ptr + h.to(tl.int64) * delta_h_stride + t.to(tl.int64) * delta_t_stride + g, delta_value, mask=t_inside
    )


@triton.jit
def varlen_attention_grad_2(
    q_ptr, k_ptr, v_ptr, begin_q_ptr, end_q_ptr, begin_k_ptr, end_k_ptr, d_o_ptr, shift_ptr, delta_ptr, d_q_ptr,
    k_s_stride, k_h_stride, v_s_stride, v_h_stride, Q, B, q_t_stride, q_h_stride, q_g_stride, d_o_t_stride,
    d_o_h_stride, d_o_g_stride, shift_t_stride, shift_h_stride, delta_t_stride, delta_h_stride, d_q_t_stride,
    d_q_h_stride, d_q_g_stride, scale
):
    # A program owns 1 of H, 1 of B, 128 of Q*G (back_to_back_gemm).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
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
    begin_q = tl.load(begin_q_ptr + b)  # attention.py:305
    end_q = tl.load(end_q_ptr + b)  # attention.py:306
    g = q_g % 4  # attention.py:97
    query = q_g // 4  # attention.py:305
    count = end_q - begin_q  # attention.py:306
    token = begin_q + query  # attention.py:307
    inside = query < count
    q = tl.load(  # attention.py:114
        q_ptr + h.to(tl.int64) * q_h_stride + token.to(tl.int64) * q_t_stride + g.to(tl.int64) * q_g_stride + e,
        mask=inside, other=0.0
    )
    d_o = tl.load(  # attention.py:115
        d_o_ptr + h.to(tl.int64) * d_o_h_stride + token.to(tl.int64) * d_o_t_stride + g.to(tl.int64) * d_o_g_stride + w,
        mask=inside, other=0.0
    )
    keys = end_k - begin_k  # attention.py:113
    keys_minus_count = keys - count  # attention.py:307
    key = query + keys_minus_count
    shift = tl.load(  # attention.py:116
        shift_ptr + h.to(tl.int64) * shift_h_stride + token.to(tl.int64) * shift_t_stride + g, mask=inside, other=0.0
    )
    delta = tl.load(  # attention.py:117
        delta_ptr + h.to(tl.int64) * delta_h_stride + token.to(tl.int64) * delta_t_stride + g, mask=inside, other=0.0
    )
    key_plus_1 = key + 1  # attention.py:313
    until = key_plus_1 + begin_k
    length = tl.maximum(keys, 0)  # attention.py:119
    until_minus_begin_k = until - begin_k
    visible = tl.maximum(until_minus_begin_k, 0)
    seen = tl.minimum(length, visible)
    full_steps = seen // 64
    seen_plus_63 = seen + 63
    steps = seen_plus_63 // 64
    z_lane = tl.arange(0, 64)[None, :]
    scale_times_log2e = scale * 1.442695  # attention.py:167
    last_steps = tl.max(tl.reshape(steps, (128,)), 0)  # attention.py:119
    dq = tl.full((128, 128), 0.0, tl.float32)
    k_rows = tl.make_tensor_descriptor(
        k_ptr + h.to(tl.int64) * k_h_stride, shape=[end_k, 128], strides=[k_s_stride, 1], block_shape=[64, 128]
    )
    v_rows = tl.make_tensor_descriptor(
        v_ptr + h.to(tl.int64) * v_h_stride, shape=[end_k, 128], strides=[v_s_stride, 1], block_shape=[64, 128]
    )
    first_full_steps = tl.min(tl.reshape(full_steps, (128,)), 0)
    for z_step in tl.range(0, last_steps, num_stages=3):
        z_step_times_64 = z_step * 64
        z_begin = begin_k + z_step_times_64
        k = k_rows.load([z_begin, 0])  # attention.py:120
        v = v_rows.load([z_begin, 0])
        s = tl.dot(q, k.T)  # attention.py:121
        p_fma_sum = tl.fma(s, scale_times_log2e, shift)  # attention.py:167
        p = tl.exp2(p_fma_sum)
        dp = tl.dot(d_o, v.T)  # attention.py:122
        dp_minus_delta = dp - delta  # attention.py:123
        p_masked = p
        if z_step >= first_full_steps:
            kv = z_begin + z_lane  # attention.py:119
            in_range = kv < end_k
            kv_lt_until = kv < until
            exists = in_range & kv_lt_until
            p_masked = tl.where(exists, p, 0.0)
        ds = p_masked * dp_minus_delta  # attention.py:123
        ds_bf16 = ds.to(tl.bfloat16)
        acc_new = tl.dot(ds_bf16, k, dq)
        dq = acc_new
    dq_times_scale = dq * scale  # attention.py:124
    dq_times_scale_bf16 = dq_times_scale.to(tl.bfloat16)
    tl.store(
        d_q_ptr + h.to(tl.int64) * d_q_h_stride + token.to(tl.int64) * d_q_t_stride + g.to(tl.int64) * d_q_g_stride + e,
        dq_times_scale_bf16, mask=inside
    )


@triton.jit
def varlen_attention_grad_3(
    q_ptr, k_ptr, v_ptr, begin_q_ptr, end_q_ptr, begin_k_ptr, end_k_ptr, d_o_ptr, shift_ptr, delta_ptr, d_k_ptr,
    d_v_ptr, q_t_stride, q_h_stride, q_g_stride, d_o_t_stride, d_o_h_stride, d_o_g_stride, J, B, k_s_stride, k_h_stride,
    v_s_stride, v_h_stride, shift_t_stride, shift_h_stride, delta_t_stride, delta_h_stride, d_k_s_stride, d_k_h_stride,
    d_v_s_stride, d_v_h_stride, scale
):
    # A program owns 1 of H, 128 of J, 1 of B (back_to_back_gemm).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
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
    begin_q = tl.load(begin_q_ptr + b)  # attention.py:305
    end_q = tl.load(end_q_ptr + b)  # attention.py:306
    keys = end_k - begin_k  # attention.py:113
    token = begin_k + j  # attention.py:131
    inside = j < keys
    # attention.py:132
    k = tl.load(k_ptr + h.to(tl.int64) * k_h_stride + token.to(tl.int64) * k_s_stride + e, mask=inside, other=0.0)
    v = tl.load(v_ptr + h.to(tl.int64) * v_h_stride + token.to(tl.int64) * v_s_stride + w, mask=inside, other=0.0)
    count = end_q - begin_q  # attention.py:306
    scale_times_log2e = scale * 1.442695  # attention.py:167
    key_plus_count = j + count  # attention.py:135
    query = key_plus_count - keys
    begin_q_plus_query = begin_q + query  # attention.py:158
    since = begin_q_plus_query * 4
    begin_q_times_4 = begin_q * 4  # attention.py:137
    end_q_times_4 = end_q * 4
    length_difference = end_q_times_4 - begin_q_times_4
    length = tl.maximum(length_difference, 0)
    full_steps = length // 64
    unseen_difference = since - begin_q_times_4
    unseen = tl.maximum(unseen_difference, 0)
    first_step = unseen // 64
    length_plus_63 = length + 63
    steps = length_plus_63 // 64
    unseen_plus_63 = unseen + 63
    first_full_step_quotient = unseen_plus_63 // 64
    first_full_step = tl.minimum(first_full_step_quotient, steps)
    r_lane = tl.arange(0, 64)[None, :]
    first_first_step = tl.min(tl.reshape(first_step, (128,)), 0)
    dv = tl.full((128, 128), 0.0, tl.float32)
    dk = tl.full((128, 128), 0.0, tl.float32)
    q_rows = tl.make_tensor_descriptor(
        q_ptr + h.to(tl.int64) * q_h_stride, shape=[end_q_times_4 // 4, 4, 128], strides=[q_t_stride, q_g_stride, 1],
        block_shape=[16, 4, 128]
    )
    d_o_rows = tl.make_tensor_descriptor(
        d_o_ptr + h.to(tl.int64) * d_o_h_stride, shape=[end_q_times_4 // 4, 4, 128],
        strides=[d_o_t_stride, d_o_g_stride, 1], block_shape=[16, 4, 128]
    )
    last_first_full_step = tl.max(tl.reshape(first_full_step, (128,)), 0)
    for r_step in tl.range(first_first_step, steps, num_stages=2):
        r_step_times_64 = r_step * 64
        r_begin = begin_q_times_4 + r_step_times_64
        qg = r_begin + r_lane
        in_range = qg < end_q_times_4
        asks = qg // 4  # attention.py:138
        head = qg % 4
        q = tl.reshape(q_rows.load([r_begin // 4, 0, 0]), (64, 128))  # attention.py:139
        d_o = tl.reshape(d_o_rows.load([r_begin // 4, 0, 0]), (64, 128))
        shift = tl.load(  # attention.py:140
            shift_ptr + h.to(tl.int64) * shift_h_stride + asks.to(tl.int64) * shift_t_stride + head, mask=in_range,
            other=0.0
        )
        delta = tl.load(  # attention.py:141
            delta_ptr + h.to(tl.int64) * delta_h_stride + asks.to(tl.int64) * delta_t_stride + head, mask=in_range,
            other=0.0
        )
        s = tl.dot(k, q.T)  # attention.py:142
        p_fma_sum = tl.fma(s, scale_times_log2e, shift)  # attention.py:167
        p = tl.exp2(p_fma_sum)
        dp = tl.dot(v, d_o.T)  # attention.py:146
        dp_minus_delta = dp - delta  # attention.py:147
        p_masked = p  # attention.py:144
        if (r_step < last_first_full_step) | (r_step >= full_steps):
            since_le_qg = since <= qg  # attention.py:137
            exists = in_range & since_le_qg
            p_masked = tl.where(exists, p, 0.0)
        p_bf16 = p_masked.to(tl.bfloat16)  # attention.py:144
        acc_new = tl.dot(p_bf16, d_o, dv)
        ds = p_masked * dp_minus_delta  # attention.py:147
        ds_bf16 = ds.to(tl.bfloat16)
        acc_new_2 = tl.dot(ds_bf16, q, dk)
        dv, dk = acc_new, acc_new_2
    dk_times_scale = dk * scale  # attention.py:149
    dk_times_scale_bf16 = dk_times_scale.to(tl.bfloat16)
    tl.store(
        d_k_ptr + h.to(tl.int64) * d_k_h_stride + token.to(tl.int64) * d_k_s_stride + e, dk_times_scale_bf16,
        mask=inside
    )
    dv_bf16 = dv.to(tl.bfloat16)  # attention.py:151
    tl.store(d_v_ptr + h.to(tl.int64) * d_v_h_stride + token.to(tl.int64) * d_v_s_stride + w, dv_bf16, mask=inside)


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
