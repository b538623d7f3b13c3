"""zloss_head_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: c8e9b2fc064a45f7
schedule: tiles T.within=128, V.within=256, 8 warps, 4 stages, unroll 1, depth 64, group 16, 132 programs
schedule: tiles D=256, T.within=128, 8 warps, 4 stages, unroll 1, depth 64, group 16, 132 programs
schedule: tiles D=256, T.within=128, 8 warps, 4 stages, unroll 1, depth 64, group 16, 132 programs, 4 parts
schedule: tiles D=256, T.within=128, 8 warps, 4 stages, unroll 1, depth 64, group 16, 132 programs, 4 parts
schedule: tiles D=256, T.within=128, 8 warps, 4 stages, unroll 1, depth 64, group 16, 132 programs, 4 parts
schedule: tiles D=256, V.within=128, 8 warps, 4 stages, unroll 1, depth 64, group 16, 132 programs
inputs:
  hidden: bf16 [T, D=4096]
  weight: bf16 [V=128256, D=4096]
  targets: i64 [T]
  lse: f32 [T]
  d_loss: f32 [T]
outputs:
  d_hidden: bf16 [T, D=4096]
  d_weight: bf16 [V=128256, D=4096]
scalars:
  z_weight: f32
"""

import triton
import triton.language as tl


@triton.jit
def halves(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    # The lower and the upper columns: an index bit whose two values are in one thread, so that nothing moves.
    return tl.split(tl.permute(tl.reshape(x, (ROWS, 2, COLUMNS)), (0, 2, 1)))


@triton.jit
def zloss_head_grad_1(
    hidden_ptr, weight_ptr, targets_ptr, lse_ptr, d_loss_ptr, dz_ptr, T, hidden_t_stride, weight_v_stride, T_length,
    dz_t_within_stride, z_weight, T_piece, V_piece
):
    # A program owns 128 of T.within, 256 of V.within (dot_map).
    tl.extra.cuda.gdc_wait()
    hidden_tiles = tl.make_tensor_descriptor(
        hidden_ptr, shape=[T, 4096], strides=[hidden_t_stride, 1], block_shape=[128, 64]
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
        z = tl.zeros((128, 256), tl.float32)  # zloss_head.py:37
        for d_first in tl.range(0, 4096, 64):
            hidden = hidden_tiles.load([t_piece_begin + t_within_first, d_first])
            weight = weight_tiles.load([v_piece_begin + v_within_first, d_first])
            z = tl.dot(hidden, weight.T, z, max_num_imprecise_acc=1)
        lse = tl.load(lse_ptr + t, mask=t_within_inside, other=0.0)  # zloss_head.py:38
        targets = tl.load(targets_ptr + t, mask=t_within_inside, other=0)  # zloss_head.py:40
        d_loss = tl.load(d_loss_ptr + t, mask=t_within_inside, other=0.0)  # zloss_head.py:41
        z_minus_lse = z - lse  # zloss_head.py:38
        p_product = z_minus_lse * 1.442695
        p = tl.exp2(p_product)
        z_weight_times_2 = z_weight * 2.0  # zloss_head.py:39
        pull_product = z_weight_times_2 * lse
        pull_sum = pull_product + 1.0
        pull = p * pull_sum
        v_i64 = v.to(tl.int64)  # zloss_head.py:40
        hit_equal = v_i64 == targets
        hit = tl.where(hit_equal, 1.0, 0.0)
        pull_minus_hit = pull - hit  # zloss_head.py:41
        dz_product = d_loss * pull_minus_hit
        dz_product_bf16 = dz_product.to(tl.bfloat16)
        tl.store(
            dz_ptr + t_within.to(tl.int64) * dz_t_within_stride + v_within, dz_product_bf16,
            mask=t_within_inside & v_within_inside
        )


@triton.jit
def zloss_head_grad_2_0(
    weight_ptr, dz_ptr, merged_2_0_ptr, T_length, dz_t_within_stride, weight_v_stride, merged_2_0_t_within_stride,
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
        d_hidden = tl.zeros((128, 256), tl.float32)  # zloss_head.py:43
        for v_within_first in tl.range(0, 16032, 64):
            dz = dz_tiles.load([t_within_first, v_within_first])
            weight = weight_tiles.load([v_piece_begin + v_within_first, d_first])
            d_hidden = tl.dot(dz, weight, d_hidden, max_num_imprecise_acc=1)
        tl.store(
            merged_2_0_ptr + t_within.to(tl.int64) * merged_2_0_t_within_stride + d, d_hidden, mask=t_within_inside
        )


@triton.jit
def zloss_head_grad_2_1(
    weight_ptr, dz_ptr, merged_2_0_ptr, merged_2_1_ptr, T_length, dz_t_within_stride, weight_v_stride,
    merged_2_0_t_within_stride, merged_2_1_t_within_stride, V_piece
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
        d_hidden = tl.zeros((128, 256), tl.float32)  # zloss_head.py:43
        for v_within_first in tl.range(0, 16032, 64):
            dz = dz_tiles.load([t_within_first, v_within_first])
            weight = weight_tiles.load([v_piece_begin + v_within_first, d_first])
            d_hidden = tl.dot(dz, weight, d_hidden, max_num_imprecise_acc=1)
        low, high = halves(d_hidden, 128, 128)
        low_2, high_2 = halves(low, 128, 64)
        low_3, high_3 = halves(high, 128, 64)
        d_2 = d_first + tl.arange(0, 64)[None, :]
        earlier = tl.load(
            merged_2_0_ptr + t_within.to(tl.int64) * merged_2_0_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged = earlier + low_2
        tl.store(
            merged_2_1_ptr + t_within.to(tl.int64) * merged_2_1_t_within_stride + d_2, merged, mask=t_within_inside
        )
        d_2 = d_first + 64 + tl.arange(0, 64)[None, :]
        earlier = tl.load(
            merged_2_0_ptr + t_within.to(tl.int64) * merged_2_0_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged = earlier + high_2
        tl.store(
            merged_2_1_ptr + t_within.to(tl.int64) * merged_2_1_t_within_stride + d_2, merged, mask=t_within_inside
        )
        d_2 = d_first + 128 + tl.arange(0, 64)[None, :]
        earlier = tl.load(
            merged_2_0_ptr + t_within.to(tl.int64) * merged_2_0_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged = earlier + low_3
        tl.store(
            merged_2_1_ptr + t_within.to(tl.int64) * merged_2_1_t_within_stride + d_2, merged, mask=t_within_inside
        )
        d_2 = d_first + 192 + tl.arange(0, 64)[None, :]
        earlier = tl.load(
            merged_2_0_ptr + t_within.to(tl.int64) * merged_2_0_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged = earlier + high_3
        tl.store(
            merged_2_1_ptr + t_within.to(tl.int64) * merged_2_1_t_within_stride + d_2, merged, mask=t_within_inside
        )


@triton.jit
def zloss_head_grad_2_2(
    weight_ptr, dz_ptr, merged_2_0_ptr, merged_2_1_ptr, merged_2_2_ptr, T_length, dz_t_within_stride, weight_v_stride,
    merged_2_0_t_within_stride, merged_2_1_t_within_stride, merged_2_2_t_within_stride, V_piece
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
        d_hidden = tl.zeros((128, 256), tl.float32)  # zloss_head.py:43
        for v_within_first in tl.range(0, 16032, 64):
            dz = dz_tiles.load([t_within_first, v_within_first])
            weight = weight_tiles.load([v_piece_begin + v_within_first, d_first])
            d_hidden = tl.dot(dz, weight, d_hidden, max_num_imprecise_acc=1)
        low, high = halves(d_hidden, 128, 128)
        low_2, high_2 = halves(low, 128, 64)
        low_3, high_3 = halves(high, 128, 64)
        d_2 = d_first + tl.arange(0, 64)[None, :]
        earlier = tl.load(
            merged_2_0_ptr + t_within.to(tl.int64) * merged_2_0_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged = earlier + low_2
        earlier_2 = tl.load(
            merged_2_1_ptr + t_within.to(tl.int64) * merged_2_1_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged_2 = earlier_2 + merged
        tl.store(
            merged_2_2_ptr + t_within.to(tl.int64) * merged_2_2_t_within_stride + d_2, merged_2, mask=t_within_inside
        )
        d_2 = d_first + 64 + tl.arange(0, 64)[None, :]
        earlier = tl.load(
            merged_2_0_ptr + t_within.to(tl.int64) * merged_2_0_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged = earlier + high_2
        earlier_2 = tl.load(
            merged_2_1_ptr + t_within.to(tl.int64) * merged_2_1_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged_2 = earlier_2 + merged
        tl.store(
            merged_2_2_ptr + t_within.to(tl.int64) * merged_2_2_t_within_stride + d_2, merged_2, mask=t_within_inside
        )
        d_2 = d_first + 128 + tl.arange(0, 64)[None, :]
        earlier = tl.load(
            merged_2_0_ptr + t_within.to(tl.int64) * merged_2_0_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged = earlier + low_3
        earlier_2 = tl.load(
            merged_2_1_ptr + t_within.to(tl.int64) * merged_2_1_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged_2 = earlier_2 + merged
        tl.store(
            merged_2_2_ptr + t_within.to(tl.int64) * merged_2_2_t_within_stride + d_2, merged_2, mask=t_within_inside
        )
        d_2 = d_first + 192 + tl.arange(0, 64)[None, :]
        earlier = tl.load(
            merged_2_0_ptr + t_within.to(tl.int64) * merged_2_0_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged = earlier + high_3
        earlier_2 = tl.load(
            merged_2_1_ptr + t_within.to(tl.int64) * merged_2_1_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged_2 = earlier_2 + merged
        tl.store(
            merged_2_2_ptr + t_within.to(tl.int64) * merged_2_2_t_within_stride + d_2, merged_2, mask=t_within_inside
        )


@triton.jit
def zloss_head_grad_2_3(
    weight_ptr, d_hidden_ptr, dz_ptr, merged_2_0_ptr, merged_2_1_ptr, merged_2_2_ptr, T_length, dz_t_within_stride,
    weight_v_stride, merged_2_0_t_within_stride, merged_2_1_t_within_stride, merged_2_2_t_within_stride,
    d_hidden_t_stride, T_piece, V_piece
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
        t_piece_begin = T_piece * 8192
        t = t_piece_begin + t_within
        d_hidden = tl.zeros((128, 256), tl.float32)  # zloss_head.py:43
        for v_within_first in tl.range(0, 16032, 64):
            dz = dz_tiles.load([t_within_first, v_within_first])
            weight = weight_tiles.load([v_piece_begin + v_within_first, d_first])
            d_hidden = tl.dot(dz, weight, d_hidden, max_num_imprecise_acc=1)
        low, high = halves(d_hidden, 128, 128)
        low_2, high_2 = halves(low, 128, 64)
        low_3, high_3 = halves(high, 128, 64)
        d_2 = d_first + tl.arange(0, 64)[None, :]
        earlier = tl.load(
            merged_2_0_ptr + t_within.to(tl.int64) * merged_2_0_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged = earlier + low_2
        earlier_2 = tl.load(
            merged_2_1_ptr + t_within.to(tl.int64) * merged_2_1_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged_2 = earlier_2 + merged
        earlier_3 = tl.load(
            merged_2_2_ptr + t_within.to(tl.int64) * merged_2_2_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged_3 = earlier_3 + merged_2
        merged_bf16 = merged_3.to(tl.bfloat16)  # zloss_head.py:44
        tl.store(d_hidden_ptr + t.to(tl.int64) * d_hidden_t_stride + d_2, merged_bf16, mask=t_within_inside)
        d_2 = d_first + 64 + tl.arange(0, 64)[None, :]
        earlier = tl.load(  # zloss_head.py:43
            merged_2_0_ptr + t_within.to(tl.int64) * merged_2_0_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged = earlier + high_2
        earlier_2 = tl.load(
            merged_2_1_ptr + t_within.to(tl.int64) * merged_2_1_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged_2 = earlier_2 + merged
        earlier_3 = tl.load(
            merged_2_2_ptr + t_within.to(tl.int64) * merged_2_2_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged_3 = earlier_3 + merged_2
        merged_bf16 = merged_3.to(tl.bfloat16)  # zloss_head.py:44
        tl.store(d_hidden_ptr + t.to(tl.int64) * d_hidden_t_stride + d_2, merged_bf16, mask=t_within_inside)
        d_2 = d_first + 128 + tl.arange(0, 64)[None, :]
        earlier = tl.load(  # zloss_head.py:43
            merged_2_0_ptr + t_within.to(tl.int64) * merged_2_0_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged = earlier + low_3
        earlier_2 = tl.load(
            merged_2_1_ptr + t_within.to(tl.int64) * merged_2_1_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged_2 = earlier_2 + merged
        earlier_3 = tl.load(
            merged_2_2_ptr + t_within.to(tl.int64) * merged_2_2_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged_3 = earlier_3 + merged_2
        merged_bf16 = merged_3.to(tl.bfloat16)  # zloss_head.py:44
        tl.store(d_hidden_ptr + t.to(tl.int64) * d_hidden_t_stride + d_2, merged_bf16, mask=t_within_inside)
        d_2 = d_first + 192 + tl.arange(0, 64)[None, :]
        earlier = tl.load(  # zloss_head.py:43
            merged_2_0_ptr + t_within.to(tl.int64) * merged_2_0_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged = earlier + high_3
        earlier_2 = tl.load(
            merged_2_1_ptr + t_within.to(tl.int64) * merged_2_1_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged_2 = earlier_2 + merged
        earlier_3 = tl.load(
            merged_2_2_ptr + t_within.to(tl.int64) * merged_2_2_t_within_stride + d_2, mask=t_within_inside, other=0.0
        )
        merged_3 = earlier_3 + merged_2
        merged_bf16 = merged_3.to(tl.bfloat16)  # zloss_head.py:44
        tl.store(d_hidden_ptr + t.to(tl.int64) * d_hidden_t_stride + d_2, merged_bf16, mask=t_within_inside)


@triton.jit
def zloss_head_grad_3(
    hidden_ptr, d_weight_ptr, dz_ptr, T_length, dz_t_within_stride, T, hidden_t_stride, d_weight_v_stride, T_piece,
    V_piece
):
    # A program owns 128 of V.within, 256 of D (dot_map).
    tl.extra.cuda.gdc_wait()
    dz_tiles = tl.make_tensor_descriptor(
        dz_ptr, shape=[T_length, 16032], strides=[dz_t_within_stride, 1], block_shape=[64, 128]
    )
    hidden_tiles = tl.make_tensor_descriptor(
        hidden_ptr, shape=[T, 4096], strides=[hidden_t_stride, 1], block_shape=[64, 256]
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
        t_piece_begin = T_piece * 8192
        v_piece_begin = V_piece * 16032
        v = v_piece_begin + v_within
        d_weight = tl.zeros((128, 256), tl.float32)  # zloss_head.py:46
        for t_within_first in tl.range(0, T_length, 64):
            dz = dz_tiles.load([t_within_first, v_within_first])
            hidden = hidden_tiles.load([t_piece_begin + t_within_first, d_first])
            d_weight = tl.dot(dz.T, hidden, d_weight, max_num_imprecise_acc=1)
        d_weight_bf16 = d_weight.to(tl.bfloat16)  # zloss_head.py:47
        tl.store(d_weight_ptr + v.to(tl.int64) * d_weight_v_stride + d, d_weight_bf16, mask=v_within_inside)


def call(
    kernels, hidden, weight, targets, lse, d_loss, dz, merged_2_0, merged_2_1, merged_2_2, d_hidden, d_weight, z_weight,
    T, hidden_t_stride, weight_v_stride, dz_t_within_stride, merged_2_0_t_within_stride, merged_2_1_t_within_stride,
    merged_2_2_t_within_stride, d_hidden_t_stride, d_weight_v_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    for T_piece in range((T + 8191) // 8192):
        T_length = min(8192, T - T_piece * 8192)
        for V_piece in range(8):
            programs = min(((T_length + 127) // 128) * 63, 132)
            if programs > 0:
                kernels.zloss_head_grad_1(
                    (programs,), hidden, weight, targets, lse, d_loss, dz, T, hidden_t_stride, weight_v_stride,
                    T_length, dz_t_within_stride, z_weight, T_piece, V_piece
                )
            if V_piece in (0, 2, 4, 6):
                programs = min(((T_length + 127) // 128) * 16, 132)
                if programs > 0:
                    kernels.zloss_head_grad_2_0(
                        (programs,), weight, dz, merged_2_0, T_length, dz_t_within_stride, weight_v_stride,
                        merged_2_0_t_within_stride, V_piece
                    )
            if V_piece in (1, 5):
                programs = min(((T_length + 127) // 128) * 16, 132)
                if programs > 0:
                    kernels.zloss_head_grad_2_1(
                        (programs,), weight, dz, merged_2_0, merged_2_1, T_length, dz_t_within_stride, weight_v_stride,
                        merged_2_0_t_within_stride, merged_2_1_t_within_stride, V_piece
                    )
            if V_piece == 3:
                programs = min(((T_length + 127) // 128) * 16, 132)
                if programs > 0:
                    kernels.zloss_head_grad_2_2(
                        (programs,), weight, dz, merged_2_0, merged_2_1, merged_2_2, T_length, dz_t_within_stride,
                        weight_v_stride, merged_2_0_t_within_stride, merged_2_1_t_within_stride,
                        merged_2_2_t_within_stride, V_piece
                    )
            if V_piece == 7:
                programs = min(((T_length + 127) // 128) * 16, 132)
                if programs > 0:
                    kernels.zloss_head_grad_2_3(
                        (programs,), weight, d_hidden, dz, merged_2_0, merged_2_1, merged_2_2, T_length,
                        dz_t_within_stride, weight_v_stride, merged_2_0_t_within_stride, merged_2_1_t_within_stride,
                        merged_2_2_t_within_stride, d_hidden_t_stride, T_piece, V_piece
                    )
            programs = min(126 * 16, 132)
            if programs > 0:
                kernels.zloss_head_grad_3(
                    (programs,), hidden, d_weight, dz, T_length, dz_t_within_stride, T, hidden_t_stride,
                    d_weight_v_stride, T_piece, V_piece
                )
