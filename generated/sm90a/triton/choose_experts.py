"""choose_experts on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 8cae73bdf987d114
schedule: tiles T=8, 2 warps, 1 stages, unroll 1
inputs:
  scores: bf16 [T, E=128]
outputs:
  ids: i32 [T, E.piece=8]
"""

import triton
import triton.language as tl


@triton.jit
def max_over_e(x):
    # The max over E: no order changes it.
    x = tl.max(x, 1, keep_dims=True)
    return x


@triton.jit
def min_over_e(x):
    # The min over E: no order changes it.
    x = tl.min(x, 1, keep_dims=True)
    return x


@triton.jit
def choose_experts(scores_ptr, ids_ptr, T, scores_t_stride, ids_t_stride):
    # A program owns 8 of T (rows).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    t = tl.program_id(0) * 8 + tl.arange(0, 8)[:, None]
    t_inside = t < T
    e = tl.arange(0, 128)[None, :]  # moe.py:133
    scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + e, mask=t_inside, other=0.0)
    compared = scores.to(tl.float32)
    compared_max_neg_inf = tl.maximum(compared, float("-inf"))  # moe.py:51
    bits_sum = compared_max_neg_inf + 0.0
    bits = bits_sum.to(tl.int32, bitcast=True)
    bits_shr_31 = bits >> 31  # moe.py:52
    keys_both = bits_shr_31 & 2147483647
    keys = bits ^ keys_both
    best = max_over_e(keys)  # moe.py:62
    keys_is_best = keys == best  # moe.py:63
    e_masked = tl.where(keys_is_best, e, 128)
    at = min_over_e(e_masked)
    e_is_at = e == at  # moe.py:140
    keys_2 = tl.where(e_is_at, -2147483648, keys)
    best_2 = max_over_e(keys_2)  # moe.py:62
    keys_is_best_2 = keys_2 == best_2  # moe.py:63
    e_masked_2 = tl.where(keys_is_best_2, e, 128)
    at_2 = min_over_e(e_masked_2)
    e_is_at_2 = e == at_2  # moe.py:140
    keys_3 = tl.where(e_is_at_2, -2147483648, keys_2)
    best_3 = max_over_e(keys_3)  # moe.py:62
    keys_is_best_3 = keys_3 == best_3  # moe.py:63
    e_masked_3 = tl.where(keys_is_best_3, e, 128)
    at_3 = min_over_e(e_masked_3)
    e_is_at_3 = e == at_3  # moe.py:140
    keys_4 = tl.where(e_is_at_3, -2147483648, keys_3)
    best_4 = max_over_e(keys_4)  # moe.py:62
    keys_is_best_4 = keys_4 == best_4  # moe.py:63
    e_masked_4 = tl.where(keys_is_best_4, e, 128)
    at_4 = min_over_e(e_masked_4)
    e_is_at_4 = e == at_4  # moe.py:140
    keys_5 = tl.where(e_is_at_4, -2147483648, keys_4)
    best_5 = max_over_e(keys_5)  # moe.py:62
    keys_is_best_5 = keys_5 == best_5  # moe.py:63
    e_masked_5 = tl.where(keys_is_best_5, e, 128)
    at_5 = min_over_e(e_masked_5)
    e_is_at_5 = e == at_5  # moe.py:140
    keys_6 = tl.where(e_is_at_5, -2147483648, keys_5)
    best_6 = max_over_e(keys_6)  # moe.py:62
    keys_is_best_6 = keys_6 == best_6  # moe.py:63
    e_masked_6 = tl.where(keys_is_best_6, e, 128)
    at_6 = min_over_e(e_masked_6)
    e_is_at_6 = e == at_6  # moe.py:140
    keys_7 = tl.where(e_is_at_6, -2147483648, keys_6)
    best_7 = max_over_e(keys_7)  # moe.py:62
    keys_is_best_7 = keys_7 == best_7  # moe.py:63
    e_masked_7 = tl.where(keys_is_best_7, e, 128)
    at_7 = min_over_e(e_masked_7)
    e_is_at_7 = e == at_7  # moe.py:140
    keys_8 = tl.where(e_is_at_7, -2147483648, keys_7)
    best_8 = max_over_e(keys_8)  # moe.py:62
    keys_is_best_8 = keys_8 == best_8  # moe.py:63
    e_masked_8 = tl.where(keys_is_best_8, e, 128)
    at_8 = min_over_e(e_masked_8)
    low = tl.minimum(at, at_2)  # moe.py:108
    high = tl.maximum(at, at_2)
    low_2 = tl.minimum(at_3, at_4)
    high_2 = tl.maximum(at_3, at_4)
    low_3 = tl.minimum(at_5, at_6)
    high_3 = tl.maximum(at_5, at_6)
    low_4 = tl.minimum(at_7, at_8)
    high_4 = tl.maximum(at_7, at_8)
    low_5 = tl.minimum(high, low_2)
    high_5 = tl.maximum(high, low_2)
    low_6 = tl.minimum(high_2, low_3)
    high_6 = tl.maximum(high_2, low_3)
    low_7 = tl.minimum(high_3, low_4)
    high_7 = tl.maximum(high_3, low_4)
    low_8 = tl.minimum(low, low_5)
    high_8 = tl.maximum(low, low_5)
    low_9 = tl.minimum(high_5, low_6)
    high_9 = tl.maximum(high_5, low_6)
    low_10 = tl.minimum(high_6, low_7)
    high_10 = tl.maximum(high_6, low_7)
    low_11 = tl.minimum(high_7, high_4)
    high_11 = tl.maximum(high_7, high_4)
    low_12 = tl.minimum(high_8, low_9)
    high_12 = tl.maximum(high_8, low_9)
    low_13 = tl.minimum(high_9, low_10)
    high_13 = tl.maximum(high_9, low_10)
    low_14 = tl.minimum(high_10, low_11)
    high_14 = tl.maximum(high_10, low_11)
    low_15 = tl.minimum(low_8, low_12)
    high_15 = tl.maximum(low_8, low_12)
    low_16 = tl.minimum(high_12, low_13)
    high_16 = tl.maximum(high_12, low_13)
    low_17 = tl.minimum(high_13, low_14)
    high_17 = tl.maximum(high_13, low_14)
    low_18 = tl.minimum(high_14, high_11)
    high_18 = tl.maximum(high_14, high_11)
    low_19 = tl.minimum(high_15, low_16)
    high_19 = tl.maximum(high_15, low_16)
    low_20 = tl.minimum(high_16, low_17)
    high_20 = tl.maximum(high_16, low_17)
    low_21 = tl.minimum(high_17, low_18)
    high_21 = tl.maximum(high_17, low_18)
    low_22 = tl.minimum(low_15, low_19)
    high_22 = tl.maximum(low_15, low_19)
    low_23 = tl.minimum(high_19, low_20)
    high_23 = tl.maximum(high_19, low_20)
    low_24 = tl.minimum(high_20, low_21)
    high_24 = tl.maximum(high_20, low_21)
    low_25 = tl.minimum(high_21, high_18)
    high_25 = tl.maximum(high_21, high_18)
    low_26 = tl.minimum(high_22, low_23)
    high_26 = tl.maximum(high_22, low_23)
    low_27 = tl.minimum(high_23, low_24)
    high_27 = tl.maximum(high_23, low_24)
    at_9 = tl.minimum(high_24, low_25)
    at_10 = tl.maximum(high_24, low_25)
    tl.store(ids_ptr + t.to(tl.int64) * ids_t_stride, low_22, mask=t_inside)  # moe.py:147
    tl.store(ids_ptr + 1 + t.to(tl.int64) * ids_t_stride, low_26, mask=t_inside)
    tl.store(ids_ptr + 2 + t.to(tl.int64) * ids_t_stride, high_26, mask=t_inside)
    tl.store(ids_ptr + 3 + t.to(tl.int64) * ids_t_stride, low_27, mask=t_inside)
    tl.store(ids_ptr + 4 + t.to(tl.int64) * ids_t_stride, high_27, mask=t_inside)
    tl.store(ids_ptr + 5 + t.to(tl.int64) * ids_t_stride, at_9, mask=t_inside)
    tl.store(ids_ptr + 6 + t.to(tl.int64) * ids_t_stride, at_10, mask=t_inside)
    tl.store(ids_ptr + 7 + t.to(tl.int64) * ids_t_stride, high_25, mask=t_inside)


def call(kernels, scores, ids, T, scores_t_stride, ids_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 7) // 8)
    if programs > 0:
        kernels.choose_experts((programs,), scores, ids, T, scores_t_stride, ids_t_stride)
