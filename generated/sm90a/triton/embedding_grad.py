"""embedding_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: fb4f8bccb4e49366
schedule: tiles D=512, 8 warps, 1 stages, unroll 1
"""

import triton
import triton.language as tl


@triton.jit
def negative_zero():
    # Triton reads the literal -0.0 as +0.0.
    return tl.full((), -2147483648, tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def sum_over_s_lane(x):
    # The sum over S.lane, halving: two terms at a time, so that no layout chooses.
    x = tl.sum(tl.reshape(x, (512, 2, 4)), 1)
    x = tl.sum(tl.reshape(x, (512, 2, 2)), 1)
    x = tl.sum(tl.reshape(x, (512, 2)), 1)
    return tl.reshape(x, (512, 1))


@triton.jit
def embedding_grad(d_y_ptr, order_ptr, segments_ptr, d_weight_ptr, T, d_y_t_stride, d_weight_v_stride):
    # A program owns 1 of V, 512 of D (col_fold).
    program = tl.program_id(0)
    program_2 = program // 8
    d = (program % 8) * 512 + tl.arange(0, 512)[:, None]
    v = program_2
    at_most = v >= 0  # model.py:101
    below = v < 151937  # model.py:101
    both = at_most & below  # model.py:101
    segments = tl.load(segments_ptr + v, mask=both, other=0)  # model.py:101
    total = v + 1  # model.py:101
    at_most_2 = total >= 0  # model.py:101
    below_2 = total < 151937  # model.py:101
    both_2 = at_most_2 & below_2  # model.py:101
    segments_2 = tl.load(segments_ptr + total, mask=both_2, other=0)  # model.py:101
    as_i32 = segments.to(tl.int32)  # model.py:101
    as_i32_2 = segments_2.to(tl.int32)  # model.py:101
    difference = as_i32_2 - as_i32  # model.py:101
    total_2 = difference + 7  # model.py:101
    steps = total_2 // 8  # model.py:101
    full_steps = difference // 8  # model.py:101
    s_lane = tl.arange(0, 8)[None, :]  # model.py:101
    as_i64 = T.to(tl.int64)  # model.py:102
    s = tl.full((512, 1), negative_zero(), tl.float32)  # model.py:101
    for s_step in tl.range(0, full_steps):  # model.py:101
        product = s_step * 8  # model.py:101
        total_3 = as_i32 + product  # model.py:101
        s_2 = total_3 + s_lane  # model.py:101
        order = tl.load(order_ptr + s_2)  # model.py:102
        at_most_3 = order >= 0  # model.py:102
        below_3 = order < as_i64  # model.py:102
        both_3 = at_most_3 & below_3  # model.py:102
        d_y = tl.load(d_y_ptr + order * d_y_t_stride + d, mask=both_3, other=0.0)  # model.py:102
        as_f32 = d_y.to(tl.float32)  # model.py:102
        sum_s_lane = sum_over_s_lane(as_f32)  # model.py:101
        s_3 = s + sum_s_lane  # model.py:101
        s = s_3  # model.py:101
    for s_step in tl.range(full_steps, steps):  # model.py:101
        product = s_step * 8  # model.py:101
        total_3 = as_i32 + product  # model.py:101
        s_2 = total_3 + s_lane  # model.py:101
        exists = s_2 < as_i32_2  # model.py:101
        order = tl.load(order_ptr + s_2, mask=exists, other=0)  # model.py:102
        at_most_3 = order >= 0  # model.py:102
        below_3 = order < as_i64  # model.py:102
        both_3 = at_most_3 & below_3  # model.py:102
        both_4 = exists & both_3  # model.py:102
        d_y = tl.load(d_y_ptr + order * d_y_t_stride + d, mask=both_4, other=0.0)  # model.py:102
        as_f32 = d_y.to(tl.float32)  # model.py:102
        chosen = tl.where(exists, as_f32, negative_zero())  # model.py:101
        sum_s_lane = sum_over_s_lane(chosen)  # model.py:101
        s_3 = s + sum_s_lane  # model.py:101
        s = s_3  # model.py:101
    total_3 = s + 0.0  # model.py:104
    as_bf16 = total_3.to(tl.bfloat16)  # model.py:104
    tl.store(d_weight_ptr + v.to(tl.int64) * d_weight_v_stride + d, as_bf16)  # model.py:104


def call(kernels, d_y, order, segments, d_weight, T, d_y_t_stride, d_weight_v_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = 151936 * 8
    if programs > 0:
        kernels.embedding_grad((programs,), d_y, order, segments, d_weight, T, d_y_t_stride, d_weight_v_stride)
