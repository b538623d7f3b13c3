"""expert_weights on sm_90a, written by rlk 0.1.0: do not edit.

numerics: d716a681413956c1
schedule: tiles T=16, 4 warps, 1 stages, unroll 1 placed E[5:3] T[3:0] E[2:0] E[6:6]
inputs:
  scores: bf16 [T, E=128]
  ids: i32 [T, K=8]
outputs:
  weights: f32 [T, K=8]
scalars:
  scale: f32
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import cutlass.utils as utils
import cutlass.utils.hopper_helpers as sm90
from cutlass import BFloat16, Boolean, Float16, Float32, Int16, Int32, Int64, Uint8, Uint32
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup

NEAREST = cute.math.RoundingMode.NEAREST_EVEN
ROW_MAJOR, COL_MAJOR = utils.LayoutEnum.ROW_MAJOR, utils.LayoutEnum.COL_MAJOR


def any_over_e(x):
    # The any over E, in any order.
    x = folded(x, 1, imax)
    x = folded(x, 1, imax)
    x = folded(x, 1, imax)
    x = folded(x, 1, imax)
    x = exchanged(x, 1, imax)
    x = exchanged(x, 2, imax)
    x = exchanged(x, 4, imax)
    return x[0]


def div(a, b):
    # Correctly rounded.
    return a / b


def exchanged(x, lanes, combine):
    # Combine with the elements of lane ^ lanes (butterfly).
    return [combine(a, cute.arch.shuffle_sync_bfly(a, offset=lanes)) for a in x]


def fma(a, b, c):
    # a * b + c with one rounding.
    return cute.math.fma(a, b, c, rounding=NEAREST)


def fmax(a, b):
    # max.f32: the other operand if one is NaN.
    return cute.arch.fmax(a, b)


def fmin(a, b):
    # min.f32: the other operand if one is NaN.
    return cute.arch.fmin(a, b)


def folded(x, stride, combine):
    # Combine elements i and i + stride of a list.
    return [combine(x[i], x[i + stride]) for i in range(len(x)) if not i & stride]


def imax(a, b):
    # The maximum of integers.
    return cutlass.max(a, b)


@cute.jit
def load_vector_where(condition, memory: cute.Tensor, index, other, count: cutlass.Constexpr):
    # Load a vector, or `other` where the condition is false.
    x = cute.make_rmem_tensor((count,), memory.element_type)
    x.fill(other)
    if condition:
        cute.autovec_copy(vector_of(memory, index, count), x)
    return [x[i] for i in range(count)]


@cute.jit
def load_where(condition, memory: cute.Tensor, index, other):
    # Load an element, or `other`.
    x = other
    if condition:
        x = type(other)(memory[index])
    return x


def max_over_e(x):
    # The max over E, in any order.
    x = folded(x, 1, fmax)
    x = folded(x, 1, fmax)
    x = folded(x, 1, fmax)
    x = folded(x, 1, fmax)
    x = exchanged(x, 1, fmax)
    x = exchanged(x, 2, fmax)
    x = exchanged(x, 4, fmax)
    return x[0]


def mul(a, b):
    # One rounding, never part of a fused operation.
    return cute.math.mul(a, b, rounding=NEAREST)


def portable_exp(x):
    # e**x, with gradual underflow.
    f0 = fmin(x, Float32(89.0))
    f1 = fmax(f0, Float32(-104.0))
    f2 = fma(f1, Float32(1.4426950216293335), Float32(12582912.0))
    f3 = f2 - Float32(12582912.0)
    f4 = fma(f3, Float32(-0.6931471824645996), f1)
    f5 = fma(f3, Float32(1.9046542121259336e-09), f4)
    f6 = fma(Float32(0.0013819490559399128), f5, Float32(0.008368690498173237))
    f7 = fma(f6, f5, Float32(0.041668280959129333))
    f8 = fma(f7, f5, Float32(0.1666652113199234))
    f9 = fma(f8, f5, Float32(0.4999999403953552))
    f10 = fma(f9, f5, Float32(1.0))
    f11 = fma(f10, f5, Float32(1.0))
    i12 = Float32(f2).bitcast(Int32)
    i13 = i12 - Int32(1262485504)
    i14 = i13 >> Int32(1)
    i15 = i14 << Int32(23)
    i16 = i15 + Int32(1065353216)
    f17 = Int32(i16).bitcast(Float32)
    i18 = i13 - i14
    i19 = i18 << Int32(23)
    i20 = i19 + Int32(1065353216)
    f21 = Int32(i20).bitcast(Float32)
    f22 = mul(f11, f17)
    f23 = mul(f22, f21)
    f24 = select((x == x), f23, x)
    return f24


@cute.jit
def report_where(bad, errors: cute.Pointer, code: cutlass.Constexpr, row):
    # Record an error code, and its row plus one, in the device's error words.
    if bad:
        cute.arch.atomic_max(errors, Int32(code))
        cute.arch.atomic_max(errors + 1, row)


def select(condition, a, b):
    # condition ? a : b, without a branch.
    return cutlass.select_(condition, a, b)


@cute.jit
def store_where(condition, memory: cute.Tensor, index, x):
    # Store an element where the condition holds.
    if condition:
        memory[index] = x


def vector_of(memory, index, count):
    # A view of `count` contiguous, aligned elements.
    at = cute.assume(cute.crd2idx(index, memory.layout), divby=count)
    return cute.make_tensor(memory.iterator + at, (count,))


@cute.kernel
def expert_weights_rows(
    scores: cute.Tensor, ids: cute.Tensor, weights: cute.Tensor, T: Int32, errors: cute.Pointer, scale: Float32
):
    # A block owns 16 of T (rows). E: 128 indices, 16 to each of 8 threads; T: 16 indices, 1 to each of 16 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
    t = block * 16 + thread // 8
    t_inside = t < T
    writes = (thread & 7) == 0
    e = [thread % 8 * 8 + c % 8 + c // 8 * 64 for c in range(16)]  # moe.py:185
    scores_value = [
        one for c in range(0, 16, 8) for one in load_vector_where(t_inside, scores, (t, e[c]), BFloat16(0), 8)
    ]
    ids_value = load_where(t_inside, ids, (t, 0), Int32(0))  # moe.py:186
    ids_value_2 = load_where(t_inside, ids, (t, 1), Int32(0))
    ids_value_3 = load_where(t_inside, ids, (t, 2), Int32(0))
    ids_value_4 = load_where(t_inside, ids, (t, 3), Int32(0))
    ids_value_5 = load_where(t_inside, ids, (t, 4), Int32(0))
    ids_value_6 = load_where(t_inside, ids, (t, 5), Int32(0))
    ids_value_7 = load_where(t_inside, ids, (t, 6), Int32(0))
    ids_value_8 = load_where(t_inside, ids, (t, 7), Int32(0))
    ids_ge_0 = 0 <= ids_value  # moe.py:187
    ids_lt_128 = ids_value < 128
    scores_guard = ids_ge_0 & ids_lt_128
    as_bf16 = Float32(float("nan")).to(BFloat16)
    scores_value_2 = load_where(scores_guard & t_inside, scores, (t, ids_value), as_bf16)
    ids_ge_0_2 = 0 <= ids_value_2
    ids_lt_128_2 = ids_value_2 < 128
    scores_guard_2 = ids_ge_0_2 & ids_lt_128_2
    scores_value_3 = load_where(scores_guard_2 & t_inside, scores, (t, ids_value_2), as_bf16)
    ids_ge_0_3 = 0 <= ids_value_3
    ids_lt_128_3 = ids_value_3 < 128
    scores_guard_3 = ids_ge_0_3 & ids_lt_128_3
    scores_value_4 = load_where(scores_guard_3 & t_inside, scores, (t, ids_value_3), as_bf16)
    ids_ge_0_4 = 0 <= ids_value_4
    ids_lt_128_4 = ids_value_4 < 128
    scores_guard_4 = ids_ge_0_4 & ids_lt_128_4
    scores_value_5 = load_where(scores_guard_4 & t_inside, scores, (t, ids_value_4), as_bf16)
    ids_ge_0_5 = 0 <= ids_value_5
    ids_lt_128_5 = ids_value_5 < 128
    scores_guard_5 = ids_ge_0_5 & ids_lt_128_5
    scores_value_6 = load_where(scores_guard_5 & t_inside, scores, (t, ids_value_5), as_bf16)
    ids_ge_0_6 = 0 <= ids_value_6
    ids_lt_128_6 = ids_value_6 < 128
    scores_guard_6 = ids_ge_0_6 & ids_lt_128_6
    scores_value_7 = load_where(scores_guard_6 & t_inside, scores, (t, ids_value_6), as_bf16)
    ids_ge_0_7 = 0 <= ids_value_7
    ids_lt_128_7 = ids_value_7 < 128
    scores_guard_7 = ids_ge_0_7 & ids_lt_128_7
    scores_value_8 = load_where(scores_guard_7 & t_inside, scores, (t, ids_value_7), as_bf16)
    ids_ge_0_8 = 0 <= ids_value_8
    ids_lt_128_8 = ids_value_8 < 128
    scores_guard_8 = ids_ge_0_8 & ids_lt_128_8
    scores_value_9 = load_where(scores_guard_8 & t_inside, scores, (t, ids_value_8), as_bf16)
    x = [BFloat16(scores_value[c]).to(Float32) for c in range(16)]  # moe.py:185
    c_2 = BFloat16(scores_value_2).to(Float32)  # moe.py:187
    c_3 = BFloat16(scores_value_3).to(Float32)
    c_4 = BFloat16(scores_value_4).to(Float32)
    c_5 = BFloat16(scores_value_5).to(Float32)
    c_6 = BFloat16(scores_value_6).to(Float32)
    c_7 = BFloat16(scores_value_7).to(Float32)
    c_8 = BFloat16(scores_value_8).to(Float32)
    c_9 = BFloat16(scores_value_9).to(Float32)
    ids_lt_0 = ids_value < 0  # moe.py:188
    ids_ge_128 = 128 <= ids_value
    either = ids_lt_0 | ids_ge_128
    ids_lt_0_2 = ids_value_2 < 0
    ids_ge_128_2 = 128 <= ids_value_2
    either_2 = ids_lt_0_2 | ids_ge_128_2
    ids_lt_0_3 = ids_value_3 < 0
    ids_ge_128_3 = 128 <= ids_value_3
    either_3 = ids_lt_0_3 | ids_ge_128_3
    ids_lt_0_4 = ids_value_4 < 0
    ids_ge_128_4 = 128 <= ids_value_4
    either_4 = ids_lt_0_4 | ids_ge_128_4
    ids_lt_0_5 = ids_value_5 < 0
    ids_ge_128_5 = 128 <= ids_value_5
    either_5 = ids_lt_0_5 | ids_ge_128_5
    ids_lt_0_6 = ids_value_6 < 0
    ids_ge_128_6 = 128 <= ids_value_6
    either_6 = ids_lt_0_6 | ids_ge_128_6
    ids_lt_0_7 = ids_value_7 < 0
    ids_ge_128_7 = 128 <= ids_value_7
    either_7 = ids_lt_0_7 | ids_ge_128_7
    ids_lt_0_8 = ids_value_8 < 0
    ids_ge_128_8 = 128 <= ids_value_8
    either_8 = ids_lt_0_8 | ids_ge_128_8
    either_9 = either | either_2  # moe.py:189
    either_10 = either_9 | either_3
    either_11 = either_10 | either_4
    either_12 = either_11 | either_5
    either_13 = either_12 | either_6
    either_14 = either_13 | either_7
    either_15 = either_14 | either_8
    report_where(either_15 & t_inside & writes, errors, 1, t + 1)
    ids_le_ids = ids_value_2 <= ids_value  # moe.py:154
    ids_le_ids_2 = ids_value_3 <= ids_value_2
    ids_le_ids_3 = ids_value_4 <= ids_value_3
    ids_le_ids_4 = ids_value_5 <= ids_value_4
    ids_le_ids_5 = ids_value_6 <= ids_value_5
    ids_le_ids_6 = ids_value_7 <= ids_value_6
    ids_le_ids_7 = ids_value_8 <= ids_value_7
    either_16 = ids_le_ids | ids_le_ids_2  # moe.py:155
    either_17 = either_16 | ids_le_ids_3
    either_18 = either_17 | ids_le_ids_4
    either_19 = either_18 | ids_le_ids_5
    either_20 = either_19 | ids_le_ids_6
    either_21 = either_20 | ids_le_ids_7
    report_where(either_21 & t_inside & writes, errors, 2, t + 1)
    is_nan_x = [x[c] != x[c] for c in range(16)]  # moe.py:191
    any_e = any_over_e([select(one, Int32(1), Int32(0)) for one in is_nan_x]) != 0
    nan = select(any_e, Float32(float("nan")), Float32(0.0))
    largest = max_over_e(x)  # moe.py:195
    c_minus_largest = c_2 - largest  # moe.py:196
    p = portable_exp(c_minus_largest)
    c_minus_largest_2 = c_3 - largest
    p_2 = portable_exp(c_minus_largest_2)
    c_minus_largest_3 = c_4 - largest
    p_3 = portable_exp(c_minus_largest_3)
    c_minus_largest_4 = c_5 - largest
    p_4 = portable_exp(c_minus_largest_4)
    c_minus_largest_5 = c_6 - largest
    p_5 = portable_exp(c_minus_largest_5)
    c_minus_largest_6 = c_7 - largest
    p_6 = portable_exp(c_minus_largest_6)
    c_minus_largest_7 = c_8 - largest
    p_7 = portable_exp(c_minus_largest_7)
    c_minus_largest_8 = c_9 - largest
    p_8 = portable_exp(c_minus_largest_8)
    p_plus_p = p + p_2  # moe.py:199
    total_sum = p_plus_p + p_3
    total_sum_2 = total_sum + p_4
    total_sum_3 = total_sum_2 + p_5
    total_sum_4 = total_sum_3 + p_6
    total_sum_5 = total_sum_4 + p_7
    total = total_sum_5 + p_8
    total_2 = total + nan  # moe.py:202
    p_over_total = div(p, total_2)  # moe.py:172
    w = mul(scale, p_over_total)
    p_over_total_2 = div(p_2, total_2)
    w_2 = mul(scale, p_over_total_2)
    p_over_total_3 = div(p_3, total_2)
    w_3 = mul(scale, p_over_total_3)
    p_over_total_4 = div(p_4, total_2)
    w_4 = mul(scale, p_over_total_4)
    p_over_total_5 = div(p_5, total_2)
    w_5 = mul(scale, p_over_total_5)
    p_over_total_6 = div(p_6, total_2)
    w_6 = mul(scale, p_over_total_6)
    p_over_total_7 = div(p_7, total_2)
    w_7 = mul(scale, p_over_total_7)
    p_over_total_8 = div(p_8, total_2)
    w_8 = mul(scale, p_over_total_8)
    store_where(t_inside & writes, weights, (t, 0), w)  # moe.py:173
    store_where(t_inside & writes, weights, (t, 1), w_2)
    store_where(t_inside & writes, weights, (t, 2), w_3)
    store_where(t_inside & writes, weights, (t, 3), w_4)
    store_where(t_inside & writes, weights, (t, 4), w_5)
    store_where(t_inside & writes, weights, (t, 5), w_6)
    store_where(t_inside & writes, weights, (t, 6), w_7)
    store_where(t_inside & writes, weights, (t, 7), w_8)


@cute.jit
def launch_expert_weights(
    scores_ptr: cute.Pointer, ids_ptr: cute.Pointer, weights_ptr: cute.Pointer, T: Int32, errors_ptr: cute.Pointer,
    scores_t_stride: Int64, ids_t_stride: Int64, weights_t_stride: Int64, scale: Float32, programs: Int32,
    overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    scores = cute.make_tensor(scores_ptr, cute.make_layout((T, 128), stride=(scores_t_stride, 1)))
    ids = cute.make_tensor(ids_ptr, cute.make_layout((T, 8), stride=(ids_t_stride, 1)))
    weights = cute.make_tensor(weights_ptr, cute.make_layout((T, 8), stride=(weights_t_stride, 1)))
    expert_weights_rows(scores, ids, weights, T, errors_ptr, scale).launch(
        grid=(programs, 1, 1), block=(128, 1, 1), use_pdl=overlap, stream=stream,
    )


def call(kernels, scores, ids, weights, scale, T, scores_t_stride, ids_t_stride, weights_t_stride, errors):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 15) // 16)
    if programs > 0:
        kernels.expert_weights(
            (programs,), scores, ids, weights, T, errors, scores_t_stride, ids_t_stride, weights_t_stride, scale
        )
