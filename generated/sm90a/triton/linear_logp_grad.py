"""linear_logp_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 9cb7dad71a8559e6
schedule: tiles D=2048, 4 warps, 1 stages, unroll 1
schedule: tiles T.within=128, V.within=256, 8 warps, 4 stages, unroll 1, depth 64, group 16, 132 programs
schedule: tiles D=256, T.within=128, 8 warps, 4 stages, unroll 1, depth 64, group 16, 132 programs
schedule: tiles D=256, T.within=128, 8 warps, 4 stages, unroll 1, depth 64, group 16, 132 programs, 4 parts
schedule: tiles D=256, T.within=128, 8 warps, 4 stages, unroll 1, depth 64, group 16, 132 programs, 4 parts
schedule: tiles D=256, T.within=128, 8 warps, 4 stages, unroll 1, depth 64, group 16, 132 programs, 4 parts
schedule: tiles D=256, V.within=128, 8 warps, 4 stages, unroll 1, depth 64, group 16, 132 programs
inputs:
  hidden: bf16 [T, D=4096]
  ids: i64 [T]
  order: i64 [T]
  weight: bf16 [V=128256, D=4096]
  lse: f32 [T]
  entropy: f32 [T]
  d_logp: f32 [T]
  d_lse: f32 [T]
  d_entropy: f32 [T]
outputs:
  d_hidden: bf16 [T, D=4096]
  d_weight: bf16 [V=128256, D=4096]
scalars:
  ignore_index: i64
  inv_temperature: f32
"""

import triton
import triton.language as tl


@triton.jit
def halves(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    # The lower and the upper columns: an index bit whose two values are in one thread, so that nothing moves.
    return tl.split(tl.permute(tl.reshape(x, (ROWS, 2, COLUMNS)), (0, 2, 1)))


@triton.jit
def linear_logp_grad_1(
    hidden_ptr, ids_ptr, order_ptr, rows_ptr, hidden_t_stride, rows_t_within_stride, ignore_index, T_piece
):
    # A program owns 1 of T.within, 2048 of D (rows).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    program = tl.program_id(0)
    program_2 = program // 2
    d = (program % 2) * 2048 + tl.arange(0, 2048)
    t_within = program_2
    t_piece_begin = T_piece * 8192
    t = t_piece_begin + t_within
    order = tl.load(order_ptr + t)  # linear_logp.py:131
    ids = tl.load(ids_ptr + order)
    hidden = tl.load(hidden_ptr + order * hidden_t_stride + d)  # linear_logp.py:138
    active = ids != ignore_index  # logp.py:207
    _0_bf16 = tl.full((), 0.0, tl.float32).to(tl.bfloat16)  # linear_logp.py:138
    rows_value = tl.where(active, hidden, _0_bf16)
    tl.store(rows_ptr + t_within.to(tl.int64) * rows_t_within_stride + d, rows_value)


@triton.jit
def linear_logp_grad_2(
    weight_ptr, ids_ptr, lse_ptr, entropy_ptr, order_ptr, d_logp_ptr, d_lse_ptr, d_entropy_ptr, rows_ptr, dz_ptr,
    T_length, rows_t_within_stride, weight_v_stride, dz_t_within_stride, inv_temperature, ignore_index, T_piece, V_piece
):
    # A program owns 128 of T.within, 256 of V.within (dot_map).
    tl.extra.cuda.gdc_wait()
    rows_tiles = tl.make_tensor_descriptor(
        rows_ptr, shape=[T_length, 4096], strides=[rows_t_within_stride, 1], block_shape=[128, 64]
    )
    weight_tiles = tl.make_tensor_descriptor(
        weight_ptr, shape=[128256, 4096], strides=[weight_v_stride, 1], block_shape=[256, 64]
    )
    for program in tl.range(tl.program_id(0), ((T_length + 127) // 128) * 63, tl.num_programs(0)):
        band = 16 * 63
        band_first = program // band * 16
        band_rows = tl.minimum(((T_length + 127) // 128) - band_first, 16)
        t_within_first = (band_first + program % band % band_rows) * 128
        t_within = t_within_first + tl.arange(0, 128)[:, None]
        t_within_inside = t_within < T_length
        column = program % band // band_rows
        v_within_first = column * 256
        v_within = v_within_first + tl.arange(0, 256)[None, :]
        v_within_inside = v_within < 16032
        t_piece_begin = T_piece * 8192
        t = t_piece_begin + t_within
        v_piece_begin = V_piece * 16032
        v = v_piece_begin + v_within
        order = tl.load(order_ptr + t, mask=t_within_inside, other=0)  # linear_logp.py:131
        ids = tl.load(ids_ptr + order, mask=t_within_inside, other=0)
        active = ids != ignore_index  # logp.py:207
        acc = tl.zeros((128, 256), tl.float32)  # linear_logp.py:140
        for d_first in tl.range(0, 4096, 64):
            rows = rows_tiles.load([t_within_first, d_first])
            weight = weight_tiles.load([v_piece_begin + v_within_first, d_first])
            acc = tl.dot(rows, weight.T, acc, max_num_imprecise_acc=1)
        lse = tl.load(lse_ptr + order, mask=t_within_inside, other=0.0)  # linear_logp.py:131
        entropy = tl.load(entropy_ptr + order, mask=t_within_inside, other=0.0)
        d_logp = tl.load(d_logp_ptr + order, mask=t_within_inside, other=0.0)
        d_lse = tl.load(d_lse_ptr + order, mask=t_within_inside, other=0.0)
        d_entropy = tl.load(d_entropy_ptr + order, mask=t_within_inside, other=0.0)
        z = acc * inv_temperature  # logp.py:57
        centred = z - lse  # logp.py:193
        centred_times_log2e = centred * 1.442695  # logp.py:194
        p = tl.exp2(centred_times_log2e)
        d_lse_minus_d_logp = d_lse - d_logp  # logp.py:215
        dz = p * d_lse_minus_d_logp  # logp.py:195
        p_is_0 = p == 0.0  # logp.py:198
        d_entropy_times_p = d_entropy * p
        centred_plus_entropy = centred + entropy
        dz_product = d_entropy_times_p * centred_plus_entropy
        dz_product_or_0 = tl.where(p_is_0, 0.0, dz_product)
        dz_2 = dz - dz_product_or_0
        ids_ge_0 = ids >= 0  # logp.py:200
        inside_below = ids < 128256
        inside = ids_ge_0 & inside_below
        ids_masked = tl.where(inside, ids, -1)  # logp.py:201
        ids_i32 = ids_masked.to(tl.int32)
        dz_equal = v == ids_i32
        d_logp_masked = tl.where(dz_equal, d_logp, 0.0)
        dz_3 = dz_2 + d_logp_masked
        dz_times_inv_temperature = dz_3 * inv_temperature  # logp.py:63
        grad = tl.where(active, dz_times_inv_temperature, 0.0)  # linear_logp.py:146
        grad_bf16 = grad.to(tl.bfloat16)  # linear_logp.py:149
        tl.store(
            dz_ptr + t_within.to(tl.int64) * dz_t_within_stride + v_within, grad_bf16,
            mask=t_within_inside & v_within_inside
        )


@triton.jit
def linear_logp_grad_3_0(
    weight_ptr, dz_ptr, merged_3_0_ptr, T_length, dz_t_within_stride, weight_v_stride, merged_3_0_t_within_stride,
    V_piece
):
    # A program owns 128 of T.within, 256 of D (dot_map).
    tl.extra.cuda.gdc_wait()
    dz_tiles = tl.make_tensor_descriptor(
        dz_ptr, shape=[T_length, 16032], strides=[dz_t_within_stride, 1], block_shape=[128, 64]
    )
    weight_tiles = tl.make_tensor_descriptor(
        weight_ptr, shape=[128256, 4096], strides=[weight_v_stride, 1], block_shape=[64, 256]
    )
    for program in tl.range(tl.program_id(0), ((T_length + 127) // 128) * 16, tl.num_programs(0)):
        band = 16 * 16
        band_first = program // band * 16
        band_rows = tl.minimum(((T_length + 127) // 128) - band_first, 16)
        t_within_first = (band_first + program % band % band_rows) * 128
        t_within = t_within_first + tl.arange(0, 128)[:, None]
        t_within_inside = t_within < T_length
        column = program % band // band_rows
        d_first = column * 256
        d = d_first + tl.arange(0, 256)[None, :]
        v_piece_begin = V_piece * 16032
        d_hidden = tl.zeros((128, 256), tl.float32)  # linear_logp.py:152
        for v_within_first in tl.range(0, 16032, 64):
            dz = dz_tiles.load([t_within_first, v_within_first])
            weight = weight_tiles.load([v_piece_begin + v_within_first, d_first])
            d_hidden = tl.dot(dz, weight, d_hidden, max_num_imprecise_acc=1)
        tl.store(
            merged_3_0_ptr + t_within.to(tl.int64) * merged_3_0_t_within_stride + d, d_hidden, mask=t_within_inside
        )


@triton.jit
def linear_logp_grad_3_1(
    weight_ptr, dz_ptr, merged_3_0_ptr, merged_3_1_ptr, T_length, dz_t_within_stride, weight_v_stride,
    merged_3_0_t_within_stride, merged_3_1_t_within_stride, V_piece
):
    # A program owns 128 of T.within, 256 of D (dot_map).
    tl.extra.cuda.gdc_wait()
    dz_tiles = tl.make_tensor_descriptor(
        dz_ptr, shape=[T_length, 16032], strides=[dz_t_within_stride, 1], block_shape=[128, 64]
    )
    weight_tiles = tl.make_tensor_descriptor(
        weight_ptr, shape=[128256, 4096], strides=[weight_v_stride, 1], block_shape=[64, 256]
    )
    for program in tl.range(tl.program_id(0), ((T_length + 127) // 128) * 16, tl.num_programs(0)):
        band = 16 * 16
        band_first = program // band * 16
        band_rows = tl.minimum(((T_length + 127) // 128) - band_first, 16)
        t_within_first = (band_first + program % band % band_rows) * 128
        t_within = t_within_first + tl.arange(0, 128)[:, None]
        t_within_inside = t_within < T_length
        column = program % band // band_rows
        d_first = column * 256
        v_piece_begin = V_piece * 16032
        d_hidden = tl.zeros((128, 256), tl.float32)  # linear_logp.py:152
        for v_within_first in tl.range(0, 16032, 64):
            dz = dz_tiles.load([t_within_first, v_within_first])
            weight = weight_tiles.load([v_piece_begin + v_within_first, d_first])
            d_hidden = tl.dot(dz, weight, d_hidden, max_num_imprecise_acc=1)
        low, high = halves(d_hidden, 128, 128)
        low_2, high_2 = halves(low, 128, 64)
        low_3, high_3 = halves(high, 128, 64)
        d_2 = d_first + tl.arange(0, 64)[None, :]
        earlier = tl.load(
            merged_3_0_ptr + t_within.to(tl.int64) * merged_3_0_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged = earlier + low_2
        tl.store(
            merged_3_1_ptr + t_within.to(tl.int64) * merged_3_1_t_within_stride + d_2, merged, mask=t_within_inside
        )
        d_2 = d_first + 64 + tl.arange(0, 64)[None, :]
        earlier = tl.load(
            merged_3_0_ptr + t_within.to(tl.int64) * merged_3_0_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged = earlier + high_2
        tl.store(
            merged_3_1_ptr + t_within.to(tl.int64) * merged_3_1_t_within_stride + d_2, merged, mask=t_within_inside
        )
        d_2 = d_first + 128 + tl.arange(0, 64)[None, :]
        earlier = tl.load(
            merged_3_0_ptr + t_within.to(tl.int64) * merged_3_0_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged = earlier + low_3
        tl.store(
            merged_3_1_ptr + t_within.to(tl.int64) * merged_3_1_t_within_stride + d_2, merged, mask=t_within_inside
        )
        d_2 = d_first + 192 + tl.arange(0, 64)[None, :]
        earlier = tl.load(
            merged_3_0_ptr + t_within.to(tl.int64) * merged_3_0_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged = earlier + high_3
        tl.store(
            merged_3_1_ptr + t_within.to(tl.int64) * merged_3_1_t_within_stride + d_2, merged, mask=t_within_inside
        )


@triton.jit
def linear_logp_grad_3_2(
    weight_ptr, dz_ptr, merged_3_0_ptr, merged_3_1_ptr, merged_3_2_ptr, T_length, dz_t_within_stride, weight_v_stride,
    merged_3_0_t_within_stride, merged_3_1_t_within_stride, merged_3_2_t_within_stride, V_piece
):
    # A program owns 128 of T.within, 256 of D (dot_map).
    tl.extra.cuda.gdc_wait()
    dz_tiles = tl.make_tensor_descriptor(
        dz_ptr, shape=[T_length, 16032], strides=[dz_t_within_stride, 1], block_shape=[128, 64]
    )
    weight_tiles = tl.make_tensor_descriptor(
        weight_ptr, shape=[128256, 4096], strides=[weight_v_stride, 1], block_shape=[64, 256]
    )
    for program in tl.range(tl.program_id(0), ((T_length + 127) // 128) * 16, tl.num_programs(0)):
        band = 16 * 16
        band_first = program // band * 16
        band_rows = tl.minimum(((T_length + 127) // 128) - band_first, 16)
        t_within_first = (band_first + program % band % band_rows) * 128
        t_within = t_within_first + tl.arange(0, 128)[:, None]
        t_within_inside = t_within < T_length
        column = program % band // band_rows
        d_first = column * 256
        v_piece_begin = V_piece * 16032
        d_hidden = tl.zeros((128, 256), tl.float32)  # linear_logp.py:152
        for v_within_first in tl.range(0, 16032, 64):
            dz = dz_tiles.load([t_within_first, v_within_first])
            weight = weight_tiles.load([v_piece_begin + v_within_first, d_first])
            d_hidden = tl.dot(dz, weight, d_hidden, max_num_imprecise_acc=1)
        low, high = halves(d_hidden, 128, 128)
        low_2, high_2 = halves(low, 128, 64)
        low_3, high_3 = halves(high, 128, 64)
        d_2 = d_first + tl.arange(0, 64)[None, :]
        earlier = tl.load(
            merged_3_0_ptr + t_within.to(tl.int64) * merged_3_0_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged = earlier + low_2
        earlier_2 = tl.load(
            merged_3_1_ptr + t_within.to(tl.int64) * merged_3_1_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged_2 = earlier_2 + merged
        tl.store(
            merged_3_2_ptr + t_within.to(tl.int64) * merged_3_2_t_within_stride + d_2, merged_2, mask=t_within_inside
        )
        d_2 = d_first + 64 + tl.arange(0, 64)[None, :]
        earlier = tl.load(
            merged_3_0_ptr + t_within.to(tl.int64) * merged_3_0_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged = earlier + high_2
        earlier_2 = tl.load(
            merged_3_1_ptr + t_within.to(tl.int64) * merged_3_1_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged_2 = earlier_2 + merged
        tl.store(
            merged_3_2_ptr + t_within.to(tl.int64) * merged_3_2_t_within_stride + d_2, merged_2, mask=t_within_inside
        )
        d_2 = d_first + 128 + tl.arange(0, 64)[None, :]
        earlier = tl.load(
            merged_3_0_ptr + t_within.to(tl.int64) * merged_3_0_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged = earlier + low_3
        earlier_2 = tl.load(
            merged_3_1_ptr + t_within.to(tl.int64) * merged_3_1_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged_2 = earlier_2 + merged
        tl.store(
            merged_3_2_ptr + t_within.to(tl.int64) * merged_3_2_t_within_stride + d_2, merged_2, mask=t_within_inside
        )
        d_2 = d_first + 192 + tl.arange(0, 64)[None, :]
        earlier = tl.load(
            merged_3_0_ptr + t_within.to(tl.int64) * merged_3_0_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged = earlier + high_3
        earlier_2 = tl.load(
            merged_3_1_ptr + t_within.to(tl.int64) * merged_3_1_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged_2 = earlier_2 + merged
        tl.store(
            merged_3_2_ptr + t_within.to(tl.int64) * merged_3_2_t_within_stride + d_2, merged_2, mask=t_within_inside
        )


@triton.jit
def linear_logp_grad_3_3(
    weight_ptr, order_ptr, d_hidden_ptr, dz_ptr, merged_3_0_ptr, merged_3_1_ptr, merged_3_2_ptr, T_length,
    dz_t_within_stride, weight_v_stride, merged_3_0_t_within_stride, merged_3_1_t_within_stride,
    merged_3_2_t_within_stride, d_hidden_t_stride, T_piece, V_piece
):
    # A program owns 128 of T.within, 256 of D (dot_map).
    tl.extra.cuda.gdc_wait()
    dz_tiles = tl.make_tensor_descriptor(
        dz_ptr, shape=[T_length, 16032], strides=[dz_t_within_stride, 1], block_shape=[128, 64]
    )
    weight_tiles = tl.make_tensor_descriptor(
        weight_ptr, shape=[128256, 4096], strides=[weight_v_stride, 1], block_shape=[64, 256]
    )
    for program in tl.range(tl.program_id(0), ((T_length + 127) // 128) * 16, tl.num_programs(0)):
        band = 16 * 16
        band_first = program // band * 16
        band_rows = tl.minimum(((T_length + 127) // 128) - band_first, 16)
        t_within_first = (band_first + program % band % band_rows) * 128
        t_within = t_within_first + tl.arange(0, 128)[:, None]
        t_within_inside = t_within < T_length
        column = program % band // band_rows
        d_first = column * 256
        t_piece_begin = T_piece * 8192
        t = t_piece_begin + t_within
        v_piece_begin = V_piece * 16032
        order = tl.load(order_ptr + t, mask=t_within_inside, other=0)  # linear_logp.py:131
        d_hidden = tl.zeros((128, 256), tl.float32)  # linear_logp.py:152
        for v_within_first in tl.range(0, 16032, 64):
            dz = dz_tiles.load([t_within_first, v_within_first])
            weight = weight_tiles.load([v_piece_begin + v_within_first, d_first])
            d_hidden = tl.dot(dz, weight, d_hidden, max_num_imprecise_acc=1)
        low, high = halves(d_hidden, 128, 128)
        low_2, high_2 = halves(low, 128, 64)
        low_3, high_3 = halves(high, 128, 64)
        d_2 = d_first + tl.arange(0, 64)[None, :]
        earlier = tl.load(
            merged_3_0_ptr + t_within.to(tl.int64) * merged_3_0_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged = earlier + low_2
        earlier_2 = tl.load(
            merged_3_1_ptr + t_within.to(tl.int64) * merged_3_1_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged_2 = earlier_2 + merged
        earlier_3 = tl.load(
            merged_3_2_ptr + t_within.to(tl.int64) * merged_3_2_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged_3 = earlier_3 + merged_2
        merged_bf16 = merged_3.to(tl.bfloat16)  # linear_logp.py:119
        tl.store(d_hidden_ptr + order * d_hidden_t_stride + d_2, merged_bf16, mask=t_within_inside)
        d_2 = d_first + 64 + tl.arange(0, 64)[None, :]
        earlier = tl.load(  # linear_logp.py:152
            merged_3_0_ptr + t_within.to(tl.int64) * merged_3_0_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged = earlier + high_2
        earlier_2 = tl.load(
            merged_3_1_ptr + t_within.to(tl.int64) * merged_3_1_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged_2 = earlier_2 + merged
        earlier_3 = tl.load(
            merged_3_2_ptr + t_within.to(tl.int64) * merged_3_2_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged_3 = earlier_3 + merged_2
        merged_bf16 = merged_3.to(tl.bfloat16)  # linear_logp.py:119
        tl.store(d_hidden_ptr + order * d_hidden_t_stride + d_2, merged_bf16, mask=t_within_inside)
        d_2 = d_first + 128 + tl.arange(0, 64)[None, :]
        earlier = tl.load(  # linear_logp.py:152
            merged_3_0_ptr + t_within.to(tl.int64) * merged_3_0_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged = earlier + low_3
        earlier_2 = tl.load(
            merged_3_1_ptr + t_within.to(tl.int64) * merged_3_1_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged_2 = earlier_2 + merged
        earlier_3 = tl.load(
            merged_3_2_ptr + t_within.to(tl.int64) * merged_3_2_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged_3 = earlier_3 + merged_2
        merged_bf16 = merged_3.to(tl.bfloat16)  # linear_logp.py:119
        tl.store(d_hidden_ptr + order * d_hidden_t_stride + d_2, merged_bf16, mask=t_within_inside)
        d_2 = d_first + 192 + tl.arange(0, 64)[None, :]
        earlier = tl.load(  # linear_logp.py:152
            merged_3_0_ptr + t_within.to(tl.int64) * merged_3_0_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged = earlier + high_3
        earlier_2 = tl.load(
            merged_3_1_ptr + t_within.to(tl.int64) * merged_3_1_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged_2 = earlier_2 + merged
        earlier_3 = tl.load(
            merged_3_2_ptr + t_within.to(tl.int64) * merged_3_2_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged_3 = earlier_3 + merged_2
        merged_bf16 = merged_3.to(tl.bfloat16)  # linear_logp.py:119
        tl.store(d_hidden_ptr + order * d_hidden_t_stride + d_2, merged_bf16, mask=t_within_inside)


@triton.jit
def linear_logp_grad_4(
    d_weight_ptr, rows_ptr, dz_ptr, T_length, dz_t_within_stride, rows_t_within_stride, d_weight_v_stride, V_piece
):
    # A program owns 128 of V.within, 256 of D (dot_map).
    tl.extra.cuda.gdc_wait()
    dz_tiles = tl.make_tensor_descriptor(
        dz_ptr, shape=[T_length, 16032], strides=[dz_t_within_stride, 1], block_shape=[64, 128]
    )
    rows_tiles = tl.make_tensor_descriptor(
        rows_ptr, shape=[T_length, 4096], strides=[rows_t_within_stride, 1], block_shape=[64, 256]
    )
    for program in tl.range(tl.program_id(0), 2016, tl.num_programs(0)):
        band = 16 * 16
        band_first = program // band * 16
        band_rows = tl.minimum(126 - band_first, 16)
        v_within_first = (band_first + program % band % band_rows) * 128
        v_within = v_within_first + tl.arange(0, 128)[:, None]
        v_within_inside = v_within < 16032
        column = program % band // band_rows
        d_first = column * 256
        d = d_first + tl.arange(0, 256)[None, :]
        v_piece_begin = V_piece * 16032
        v = v_piece_begin + v_within
        d_weight = tl.zeros((128, 256), tl.float32)  # linear_logp.py:154
        for t_within_first in tl.range(0, T_length, 64):
            dz = dz_tiles.load([t_within_first, v_within_first])
            rows = rows_tiles.load([t_within_first, d_first])
            d_weight = tl.dot(dz.T, rows, d_weight, max_num_imprecise_acc=1)
        d_weight_bf16 = d_weight.to(tl.bfloat16)  # linear_logp.py:121
        tl.store(d_weight_ptr + v.to(tl.int64) * d_weight_v_stride + d, d_weight_bf16, mask=v_within_inside)


def call(
    kernels, hidden, ids, order, rows, weight, lse, entropy, d_logp, d_lse, d_entropy, dz, merged_3_0, merged_3_1,
    merged_3_2, d_hidden, d_weight, ignore_index, inv_temperature, T, hidden_t_stride, rows_t_within_stride,
    weight_v_stride, dz_t_within_stride, merged_3_0_t_within_stride, merged_3_1_t_within_stride,
    merged_3_2_t_within_stride, d_hidden_t_stride, d_weight_v_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    for T_piece in range((T + 8191) // 8192):
        T_length = min(8192, T - T_piece * 8192)
        programs = T_length * 2
        if programs > 0:
            kernels.linear_logp_grad_1(
                (programs,), hidden, ids, order, rows, hidden_t_stride, rows_t_within_stride, ignore_index, T_piece
            )
        for V_piece in range(8):
            programs = min(((T_length + 127) // 128) * 63, 132)
            if programs > 0:
                kernels.linear_logp_grad_2(
                    (programs,), weight, ids, lse, entropy, order, d_logp, d_lse, d_entropy, rows, dz, T_length,
                    rows_t_within_stride, weight_v_stride, dz_t_within_stride, inv_temperature, ignore_index, T_piece,
                    V_piece
                )
            if V_piece in (0, 2, 4, 6):
                programs = min(((T_length + 127) // 128) * 16, 132)
                if programs > 0:
                    kernels.linear_logp_grad_3_0(
                        (programs,), weight, dz, merged_3_0, T_length, dz_t_within_stride, weight_v_stride,
                        merged_3_0_t_within_stride, V_piece
                    )
            if V_piece in (1, 5):
                programs = min(((T_length + 127) // 128) * 16, 132)
                if programs > 0:
                    kernels.linear_logp_grad_3_1(
                        (programs,), weight, dz, merged_3_0, merged_3_1, T_length, dz_t_within_stride, weight_v_stride,
                        merged_3_0_t_within_stride, merged_3_1_t_within_stride, V_piece
                    )
            if V_piece == 3:
                programs = min(((T_length + 127) // 128) * 16, 132)
                if programs > 0:
                    kernels.linear_logp_grad_3_2(
                        (programs,), weight, dz, merged_3_0, merged_3_1, merged_3_2, T_length, dz_t_within_stride,
                        weight_v_stride, merged_3_0_t_within_stride, merged_3_1_t_within_stride,
                        merged_3_2_t_within_stride, V_piece
                    )
            if V_piece == 7:
                programs = min(((T_length + 127) // 128) * 16, 132)
                if programs > 0:
                    kernels.linear_logp_grad_3_3(
                        (programs,), weight, order, d_hidden, dz, merged_3_0, merged_3_1, merged_3_2, T_length,
                        dz_t_within_stride, weight_v_stride, merged_3_0_t_within_stride, merged_3_1_t_within_stride,
                        merged_3_2_t_within_stride, d_hidden_t_stride, T_piece, V_piece
                    )
            programs = min(126 * 16, 132)
            if programs > 0:
                kernels.linear_logp_grad_4(
                    (programs,), d_weight, rows, dz, T_length, dz_t_within_stride, rows_t_within_stride,
                    d_weight_v_stride, V_piece
                )
