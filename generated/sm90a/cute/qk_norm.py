"""qk_norm on sm_90a, written by rlk 0.1.0: do not edit.

numerics: b4cacf877e888f4d
schedule: tiles H=16, 4 warps, 1 stages, unroll 1 placed E[5:3] H[3:0] E[2:0] E[6:6]
inputs:
  x: bf16 [T, H=32, E=128]
  weight: bf16 [E=128]
  cos: f32 [P, C=64]
  sin: f32 [P, C=64]
  position_ids: i64 [T]
outputs:
  y: bf16 [T, H=32, E=128]
  rstd: f32 [T, H=32]
scalars:
  eps: f32
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


def add(a, b):
    # a + b: the combine of sum reductions.
    return a + b


def div(a, b):
    # Correctly rounded.
    return a / b


def exchanged(x, lanes, combine):
    # Combine with the elements of lane ^ lanes (butterfly).
    return [combine(a, cute.arch.shuffle_sync_bfly(a, offset=lanes)) for a in x]


def fma(a, b, c):
    # a * b + c with one rounding.
    return cute.math.fma(a, b, c, rounding=NEAREST)


def folded(x, stride, combine):
    # Combine elements i and i + stride of a list.
    return [combine(x[i], x[i + stride]) for i in range(len(x)) if not i & stride]


def load_vector(memory, index, count):
    # Load a vector.
    x = cute.make_rmem_tensor((count,), memory.element_type)
    cute.autovec_copy(vector_of(memory, index, count), x)
    return [x[i] for i in range(count)]


@cute.jit
def load_where(condition, memory: cute.Tensor, index, other):
    # Load an element, or `other`.
    x = other
    if condition:
        x = type(other)(memory[index])
    return x


def mul(a, b):
    # One rounding, never part of a fused operation.
    return cute.math.mul(a, b, rounding=NEAREST)


def portable_rsqrt(x):
    # 1 / sqrt(x); rsqrt(+-0) = +-inf, rsqrt(x < 0) = NaN.
    f0 = mul(x, Float32(16777216.0))
    f1 = select((x < Float32(1.1754943508222875e-38)), f0, x)
    i2 = Float32(f1).bitcast(Int32)
    i3 = i2 >> Int32(1)
    i4 = Int32(1595932665) - i3
    f5 = Int32(i4).bitcast(Float32)
    f6 = mul(f5, Float32(-0.7039522528648376))
    f7 = mul(f1, f5)
    f8 = fma(f7, f5, Float32(-2.389244556427002))
    f9 = mul(f6, f8)
    f10 = mul(f1, f9)
    f11 = fma(f10, f9, Float32(-1.0))
    f12 = mul(f9, f11)
    f13 = fma(f11, Float32(0.375), Float32(-0.5))
    f14 = fma(f12, f13, f9)
    f15 = select((x < Float32(1.1754943508222875e-38)), Float32(4096.0), Float32(1.0))
    f16 = mul(f14, f15)
    f17 = select((x == Float32(float("inf"))), Float32(0.0), x)
    f18 = select((x < Float32(float("inf"))), f16, f17)
    i19 = Float32(x).bitcast(Int32)
    i20 = i19 & Int32(-2147483648)
    i21 = i20 | Int32(2139095040)
    f22 = Int32(i21).bitcast(Float32)
    f23 = select((x == Float32(0.0)), f22, f18)
    f24 = select((x < Float32(0.0)), Float32(float("nan")), f23)
    return f24


def select(condition, a, b):
    # condition ? a : b, without a branch.
    return cutlass.select_(condition, a, b)


def store_vector(memory, index, x):
    # Store a vector.
    made = cute.make_rmem_tensor((len(x),), memory.element_type)
    for i in range(len(x)):
        made[i] = x[i]
    cute.autovec_copy(made, vector_of(memory, index, len(x)))


@cute.jit
def store_where(condition, memory: cute.Tensor, index, x):
    # Store an element where the condition holds.
    if condition:
        memory[index] = x


def sum_over_e(x):
    # The sum over E, vector8.
    x = folded(x, 4, add)
    x = folded(x, 2, add)
    x = folded(x, 1, add)
    x = folded(x, 1, add)
    x = exchanged(x, 4, add)
    x = exchanged(x, 2, add)
    x = exchanged(x, 1, add)
    return x[0]


def vector_of(memory, index, count):
    # A view of `count` contiguous, aligned elements.
    at = cute.assume(cute.crd2idx(index, memory.layout), divby=count)
    return cute.make_tensor(memory.iterator + at, (count,))


@cute.kernel
def qk_norm_rows(
    x: cute.Tensor, weight: cute.Tensor, cos: cute.Tensor, sin: cute.Tensor, position_ids: cute.Tensor, y: cute.Tensor,
    rstd: cute.Tensor, P: Int32, T: Int32, eps: Float32
):
    # A block owns 1 of T, 16 of H (rows). E: 128 indices, 16 to each of 8 threads; H: 16 indices, 1 to each of 16
    # threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
    rest = block // 2
    t = rest
    h = block % 2 * 16 + thread // 8
    writes = (thread & 7) == 0
    position_ids_value = position_ids[t]  # heads.py:123
    e = [thread % 8 * 8 + c % 8 + c // 8 * 64 for c in range(16)]  # heads.py:119
    x_value = [one for c in range(0, 16, 8) for one in load_vector(x, (t, h, e[c]), 8)]
    ahead = [e[c] < 64 for c in range(16)]  # heads.py:71
    e_minus_64 = [e[c] - 64 for c in range(16)]  # heads.py:72
    angle = [select(ahead[c], e[c], e_minus_64[c]) for c in range(16)]
    e_plus_64 = [e[c] + 64 for c in range(16)]
    partner = [select(ahead[c], e_plus_64[c], e_minus_64[c]) for c in range(16)]
    position_ids_ge_0 = 0 <= position_ids_value  # heads.py:77
    P_i64 = Int32(P).to(Int64)
    cos_guard_below = position_ids_value < P_i64
    cos_guard = position_ids_ge_0 & cos_guard_below
    angle_ge_0 = [0 <= angle[c] for c in range(16)]
    angle_lt_64 = [angle[c] < 64 for c in range(16)]
    cos_guard_2 = [angle_ge_0[c] & angle_lt_64[c] for c in range(16)]
    cos_guard_3 = [cos_guard & cos_guard_2[c] for c in range(16)]
    cos_value = [
        load_where(cos_guard_3[c], cos, (position_ids_value.to(Int32), angle[c]), Float32(float("nan")))
        for c in range(16)
    ]
    sin_value = [
        load_where(cos_guard_3[c], sin, (position_ids_value.to(Int32), angle[c]), Float32(float("nan")))
        for c in range(16)
    ]
    weight_value = [one for c in range(0, 16, 8) for one in load_vector(weight, e[c], 8)]  # norm.py:16
    x_value_2 = [x[(t, h, partner[c])] for c in range(16)]  # heads.py:125
    weight_value_2 = [weight[partner[c]] for c in range(16)]  # heads.py:126
    h_2 = [BFloat16(x_value[c]).to(Float32) for c in range(16)]  # heads.py:119
    h_times_h = [mul(h_2[c], h_2[c]) for c in range(16)]  # heads.py:88
    sum_e = sum_over_e(h_times_h)
    rstd_quotient = div(sum_e, Float32(128.0))
    rstd_sum = rstd_quotient + eps
    rstd_value = portable_rsqrt(rstd_sum)
    n = [mul(h_2[c], rstd_value) for c in range(16)]  # heads.py:93
    n_bf16 = [Float32(n[c]).to(BFloat16) for c in range(16)]  # heads.py:95
    n_2 = [BFloat16(n_bf16[c]).to(Float32) for c in range(16)]
    weight_f32 = [BFloat16(weight_value[c]).to(Float32) for c in range(16)]  # norm.py:16
    own_product = [mul(n_2[c], weight_f32[c]) for c in range(16)]  # heads.py:96
    own_product_bf16 = [Float32(own_product[c]).to(BFloat16) for c in range(16)]
    own = [BFloat16(own_product_bf16[c]).to(Float32) for c in range(16)]  # heads.py:124
    other = [BFloat16(x_value_2[c]).to(Float32) for c in range(16)]  # heads.py:125
    n_3 = [mul(other[c], rstd_value) for c in range(16)]  # heads.py:93
    n_bf16_2 = [Float32(n_3[c]).to(BFloat16) for c in range(16)]  # heads.py:95
    n_4 = [BFloat16(n_bf16_2[c]).to(Float32) for c in range(16)]
    weight_f32_2 = [BFloat16(weight_value_2[c]).to(Float32) for c in range(16)]  # norm.py:16
    other_product = [mul(n_4[c], weight_f32_2[c]) for c in range(16)]  # heads.py:96
    other_product_bf16 = [Float32(other_product[c]).to(BFloat16) for c in range(16)]
    other_2 = [BFloat16(other_product_bf16[c]).to(Float32) for c in range(16)]  # heads.py:126
    turned = [mul(other_2[c], sin_value[c]) for c in range(16)]  # heads.py:82
    own_times_cos = [mul(own[c], cos_value[c]) for c in range(16)]  # heads.py:83
    neg_turned = [-turned[c] for c in range(16)]
    made_selected = [select(ahead[c], neg_turned[c], turned[c]) for c in range(16)]
    made = [own_times_cos[c] + made_selected[c] for c in range(16)]
    made_bf16 = [Float32(made[c]).to(BFloat16) for c in range(16)]  # heads.py:84
    for c in cutlass.range_constexpr(0, 16, 8):  # heads.py:127
        store_vector(y, (t, h, e[c]), made_bf16[c:c + 8])
    store_where(writes, rstd, (t, h), rstd_value)


@cute.jit
def launch_qk_norm(
    x_ptr: cute.Pointer, weight_ptr: cute.Pointer, cos_ptr: cute.Pointer, sin_ptr: cute.Pointer,
    position_ids_ptr: cute.Pointer, y_ptr: cute.Pointer, rstd_ptr: cute.Pointer, P: Int32, T: Int32, x_t_stride: Int64,
    x_h_stride: Int64, cos_p_stride: Int64, sin_p_stride: Int64, y_t_stride: Int64, y_h_stride: Int64,
    rstd_t_stride: Int64, eps: Float32, programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    x = cute.make_tensor(x_ptr, cute.make_layout((T, 32, 128), stride=(x_t_stride, x_h_stride, 1)))
    weight = cute.make_tensor(weight_ptr, cute.make_layout((128,), stride=(1,)))
    cos = cute.make_tensor(cos_ptr, cute.make_layout((P, 64), stride=(cos_p_stride, 1)))
    sin = cute.make_tensor(sin_ptr, cute.make_layout((P, 64), stride=(sin_p_stride, 1)))
    position_ids = cute.make_tensor(position_ids_ptr, cute.make_layout((T,), stride=(1,)))
    y = cute.make_tensor(y_ptr, cute.make_layout((T, 32, 128), stride=(y_t_stride, y_h_stride, 1)))
    rstd = cute.make_tensor(rstd_ptr, cute.make_layout((T, 32), stride=(rstd_t_stride, 1)))
    qk_norm_rows(x, weight, cos, sin, position_ids, y, rstd, P, T, eps).launch(
        grid=(programs, 1, 1), block=(128, 1, 1), use_pdl=overlap, stream=stream,
    )


def call(
    kernels, x, weight, cos, sin, position_ids, y, rstd, eps, P, T, x_t_stride, x_h_stride, cos_p_stride, sin_p_stride,
    y_t_stride, y_h_stride, rstd_t_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T * 2
    if programs > 0:
        kernels.qk_norm(
            (programs,), x, weight, cos, sin, position_ids, y, rstd, P, T, x_t_stride, x_h_stride, cos_p_stride,
            sin_p_stride, y_t_stride, y_h_stride, rstd_t_stride, eps
        )
