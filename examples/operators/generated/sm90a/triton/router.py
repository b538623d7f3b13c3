"""router on sm_90a, written by rlk 0.1.0: do not edit.

numerics: cfebad52132abef5
schedule: tiles T=8, 2 warps, 1 stages, unroll 1
inputs:
  logits: f32 [T, E=128]
outputs:
  gates: f32 [T, E=128]
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
    x = tl.min(x, 1)
    return tl.reshape(x, (8, 1))


@triton.jit
def portable_exp(x):
    # e**x, with gradual underflow.
    f0 = tl.minimum(x, 89.0)
    f1 = tl.maximum(f0, -104.0)
    f2 = tl.fma(f1, 1.442695, 12582912.0)
    f3 = f2 - 12582912.0
    f4 = tl.fma(f3, -0.6931472, f1)
    f5 = tl.fma(f3, 1.9046542e-09, f4)
    f6 = tl.fma(0.001381949, f5, 0.0083686905)
    f7 = tl.fma(f6, f5, 0.04166828)
    f8 = tl.fma(f7, f5, 0.16666521)
    f9 = tl.fma(f8, f5, 0.49999994)
    f10 = tl.fma(f9, f5, 1.0)
    f11 = tl.fma(f10, f5, 1.0)
    i12 = f2.to(tl.int32, bitcast=True)
    i13 = i12 - 1262485504
    i14 = i13 >> 1
    i15 = i14 << 23
    i16 = i15 + 1065353216
    f17 = i16.to(tl.float32, bitcast=True)
    i18 = i13 - i14
    i19 = i18 << 23
    i20 = i19 + 1065353216
    f21 = i20.to(tl.float32, bitcast=True)
    f22 = f11 * f17
    f23 = f22 * f21
    f24 = tl.where((x == x), f23, x)
    return f24


@triton.jit
def sum_over_e(x):
    # The sum over E, halving: two terms at a time, so that no layout chooses.
    x = tl.sum(tl.reshape(x, (8, 2, 64)), 1)
    x = tl.sum(tl.reshape(x, (8, 2, 32)), 1)
    x = tl.sum(tl.reshape(x, (8, 2, 16)), 1)
    x = tl.sum(tl.reshape(x, (8, 2, 8)), 1)
    x = tl.sum(tl.reshape(x, (8, 2, 4)), 1)
    x = tl.sum(tl.reshape(x, (8, 2, 2)), 1)
    x = tl.sum(tl.reshape(x, (8, 2)), 1)
    return tl.reshape(x, (8, 1))


@triton.jit
def router(logits_ptr, gates_ptr, T, logits_t_stride, gates_t_stride):
    # A program owns 8 of T (rows).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    t = tl.program_id(0) * 8 + tl.arange(0, 8)[:, None]
    t_inside = t < T
    e = tl.arange(0, 128)[None, :]  # router.py:24
    logits = tl.load(logits_ptr + t.to(tl.int64) * logits_t_stride + e, mask=t_inside, other=0.0)
    best = max_over_e(logits)  # router.py:25
    chosen = e < 0  # router.py:26
    rest = tl.where(chosen, float("-inf"), logits)  # router.py:28
    largest = max_over_e(rest)  # router.py:29
    rest_is_largest = rest == largest  # router.py:30
    not_chosen = ~chosen
    first_both = rest_is_largest & not_chosen
    e_masked = tl.where(first_both, e, 1073741824)
    first = min_over_e(e_masked)
    e_is_first = e == first  # router.py:31
    chosen_2 = chosen | e_is_first
    rest_2 = tl.where(chosen_2, float("-inf"), logits)  # router.py:28
    largest_2 = max_over_e(rest_2)  # router.py:29
    rest_is_largest_2 = rest_2 == largest_2  # router.py:30
    not_chosen_2 = ~chosen_2
    first_both_2 = rest_is_largest_2 & not_chosen_2
    e_masked_2 = tl.where(first_both_2, e, 1073741824)
    first_2 = min_over_e(e_masked_2)
    e_is_first_2 = e == first_2  # router.py:31
    chosen_3 = chosen_2 | e_is_first_2
    logits_minus_best = logits - best  # router.py:32
    e_exp = portable_exp(logits_minus_best)
    e_2 = tl.where(chosen_3, e_exp, 0.0)
    sum_e = sum_over_e(e_2)  # router.py:33
    gates_value = tl.div_rn(e_2, sum_e)
    tl.store(gates_ptr + t.to(tl.int64) * gates_t_stride + e, gates_value, mask=t_inside)


def call(kernels, logits, gates, T, logits_t_stride, gates_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 7) // 8)
    if programs > 0:
        kernels.router((programs,), logits, gates, T, logits_t_stride, gates_t_stride)
