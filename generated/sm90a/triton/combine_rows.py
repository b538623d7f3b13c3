"""combine_rows on sm_90a, written by rlk 0.1.0: do not edit.

numerics: c99f183c0bef3b61
schedule: tiles D=2048, 4 warps, 1 stages, unroll 1
inputs:
  place: i32 [T, K=8]
  rows: bf16 [R, D=2048]
  weights: f32 [T, K=8]
outputs:
  y: bf16 [T, D=2048]
"""

import triton
import triton.language as tl


@triton.jit
def combine_rows(
    place_ptr, rows_ptr, weights_ptr, y_ptr, place_t_stride, weights_t_stride, R, rows_r_stride, errors_ptr, y_t_stride
):
    # A program owns 1 of T, 2048 of D (rows).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    program = tl.program_id(0)
    program_2 = program // 1
    d = (program % 1) * 2048 + tl.arange(0, 2048)
    t = program_2
    place = tl.load(place_ptr + t.to(tl.int64) * place_t_stride)  # moe.py:243
    place_2 = tl.load(place_ptr + t.to(tl.int64) * place_t_stride + 1)
    place_3 = tl.load(place_ptr + t.to(tl.int64) * place_t_stride + 2)
    place_4 = tl.load(place_ptr + t.to(tl.int64) * place_t_stride + 3)
    place_5 = tl.load(place_ptr + t.to(tl.int64) * place_t_stride + 4)
    place_6 = tl.load(place_ptr + t.to(tl.int64) * place_t_stride + 5)
    place_7 = tl.load(place_ptr + t.to(tl.int64) * place_t_stride + 6)
    place_8 = tl.load(place_ptr + t.to(tl.int64) * place_t_stride + 7)
    weights = tl.load(weights_ptr + t.to(tl.int64) * weights_t_stride)  # moe.py:308
    weights_2 = tl.load(weights_ptr + t.to(tl.int64) * weights_t_stride + 1)
    weights_3 = tl.load(weights_ptr + t.to(tl.int64) * weights_t_stride + 2)
    weights_4 = tl.load(weights_ptr + t.to(tl.int64) * weights_t_stride + 3)
    weights_5 = tl.load(weights_ptr + t.to(tl.int64) * weights_t_stride + 4)
    weights_6 = tl.load(weights_ptr + t.to(tl.int64) * weights_t_stride + 5)
    weights_7 = tl.load(weights_ptr + t.to(tl.int64) * weights_t_stride + 6)
    weights_8 = tl.load(weights_ptr + t.to(tl.int64) * weights_t_stride + 7)
    place_ge_0 = place >= 0
    place_lt_R = place < R
    rows_guard = place_ge_0 & place_lt_R
    rows = tl.load(rows_ptr + place.to(tl.int64) * rows_r_stride + d, mask=rows_guard, other=0.0)
    place_ge_0_2 = place_2 >= 0
    place_lt_R_2 = place_2 < R
    rows_guard_2 = place_ge_0_2 & place_lt_R_2
    rows_2 = tl.load(rows_ptr + place_2.to(tl.int64) * rows_r_stride + d, mask=rows_guard_2, other=0.0)
    place_ge_0_3 = place_3 >= 0
    place_lt_R_3 = place_3 < R
    rows_guard_3 = place_ge_0_3 & place_lt_R_3
    rows_3 = tl.load(rows_ptr + place_3.to(tl.int64) * rows_r_stride + d, mask=rows_guard_3, other=0.0)
    place_ge_0_4 = place_4 >= 0
    place_lt_R_4 = place_4 < R
    rows_guard_4 = place_ge_0_4 & place_lt_R_4
    rows_4 = tl.load(rows_ptr + place_4.to(tl.int64) * rows_r_stride + d, mask=rows_guard_4, other=0.0)
    place_ge_0_5 = place_5 >= 0
    place_lt_R_5 = place_5 < R
    rows_guard_5 = place_ge_0_5 & place_lt_R_5
    rows_5 = tl.load(rows_ptr + place_5.to(tl.int64) * rows_r_stride + d, mask=rows_guard_5, other=0.0)
    place_ge_0_6 = place_6 >= 0
    place_lt_R_6 = place_6 < R
    rows_guard_6 = place_ge_0_6 & place_lt_R_6
    rows_6 = tl.load(rows_ptr + place_6.to(tl.int64) * rows_r_stride + d, mask=rows_guard_6, other=0.0)
    place_ge_0_7 = place_7 >= 0
    place_lt_R_7 = place_7 < R
    rows_guard_7 = place_ge_0_7 & place_lt_R_7
    rows_7 = tl.load(rows_ptr + place_7.to(tl.int64) * rows_r_stride + d, mask=rows_guard_7, other=0.0)
    place_ge_0_8 = place_8 >= 0
    place_lt_R_8 = place_8 < R
    rows_guard_8 = place_ge_0_8 & place_lt_R_8
    rows_8 = tl.load(rows_ptr + place_8.to(tl.int64) * rows_r_stride + d, mask=rows_guard_8, other=0.0)
    place_le_place = place_2 <= place  # moe.py:154
    place_le_place_2 = place_3 <= place_2
    place_le_place_3 = place_4 <= place_3
    place_le_place_4 = place_5 <= place_4
    place_le_place_5 = place_6 <= place_5
    place_le_place_6 = place_7 <= place_6
    place_le_place_7 = place_8 <= place_7
    either = place_le_place | place_le_place_2  # moe.py:155
    either_2 = either | place_le_place_3
    either_3 = either_2 | place_le_place_4
    either_4 = either_3 | place_le_place_5
    either_5 = either_4 | place_le_place_6
    either_6 = either_5 | place_le_place_7
    bad_row = tl.where(either_6, t + 1, 0)
    tl.atomic_max(errors_ptr, 1, mask=bad_row > 0, sem="relaxed")
    tl.atomic_max(errors_ptr + 1, bad_row, mask=bad_row > 0, sem="relaxed")
    rows_f32 = rows.to(tl.float32)  # moe.py:308
    y_product = rows_f32 * weights
    rows_f32_2 = rows_2.to(tl.float32)
    y_product_2 = rows_f32_2 * weights_2
    rows_f32_3 = rows_3.to(tl.float32)
    y_product_3 = rows_f32_3 * weights_3
    rows_f32_4 = rows_4.to(tl.float32)
    y_product_4 = rows_f32_4 * weights_4
    rows_f32_5 = rows_5.to(tl.float32)
    y_product_5 = rows_f32_5 * weights_5
    rows_f32_6 = rows_6.to(tl.float32)
    y_product_6 = rows_f32_6 * weights_6
    rows_f32_7 = rows_7.to(tl.float32)
    y_product_7 = rows_f32_7 * weights_7
    rows_f32_8 = rows_8.to(tl.float32)
    y_product_8 = rows_f32_8 * weights_8
    y_sum = y_product + y_product_2  # moe.py:230
    y_sum_2 = y_sum + y_product_3
    y_sum_3 = y_sum_2 + y_product_4
    y_sum_4 = y_sum_3 + y_product_5
    y_sum_5 = y_sum_4 + y_product_6
    y_sum_6 = y_sum_5 + y_product_7
    y_sum_7 = y_sum_6 + y_product_8
    y_sum_bf16 = y_sum_7.to(tl.bfloat16)  # moe.py:309
    tl.store(y_ptr + t.to(tl.int64) * y_t_stride + d, y_sum_bf16)


def call(kernels, place, rows, weights, y, R, T, place_t_stride, weights_t_stride, rows_r_stride, y_t_stride, errors):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T * 1
    if programs > 0:
        kernels.combine_rows(
            (programs,), place, rows, weights, y, place_t_stride, weights_t_stride, R, rows_r_stride, errors, y_t_stride
        )
