"""cache_qkv on sm_90a, written by rlk 0.1.0: do not edit.

numerics: cfab151da164a14e
schedule: tiles J=16, 4 warps, 1 stages, unroll 1 placed E[5:3] J[3:0] E[2:0] E[6:6]
inputs:
  qkv: bf16 [T, J=48, E=128]
  slots: i64 [T]
  q_weight: bf16 [E=128]
  k_weight: bf16 [E=128]
  cos: f32 [P, C=64]
  sin: f32 [P, C=64]
  position_ids: i64 [T]
outputs:
  q_out: bf16 [T, H=32, E=128]
  k_out: bf16 [B, O, G=8, E=128]
  v_out: bf16 [B, O, G=8, E=128]
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


@cute.jit
def report_where(bad, errors: cute.Pointer, code: cutlass.Constexpr, row):
    # Record an error code, and its row plus one, in the device's error words.
    if bad:
        cute.arch.atomic_max(errors, Int32(code))
        cute.arch.atomic_max(errors + 1, row)


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
def store_vector_where(condition, memory: cute.Tensor, index, x):
    # Store a vector where the condition holds.
    if condition:
        store_vector(memory, index, x)


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
def cache_qkv_rows(
    qkv: cute.Tensor, slots: cute.Tensor, q_weight: cute.Tensor, k_weight: cute.Tensor, cos: cute.Tensor,
    sin: cute.Tensor, position_ids: cute.Tensor, q_out: cute.Tensor, k_out: cute.Tensor, v_out: cute.Tensor, P: Int32,
    O: Int32, B: Int32, errors: cute.Pointer, T: Int32, eps: Float32
):
    # A block owns 1 of T, 16 of J (rows). E: 128 indices, 16 to each of 8 threads; J: 16 indices, 1 to each of 16
    # threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
    rest = block // 3
    t = rest
    j = block % 3 * 16 + thread // 8
    writes = thread == 0
    position_ids_value = position_ids[t]  # heads.py:277
    slots_value = slots[t]  # heads.py:215
    e = [thread % 8 * 8 + c % 8 + c // 8 * 64 for c in range(16)]  # heads.py:275
    qkv_value = [one for c in range(0, 16, 8) for one in load_vector(qkv, (t, j, e[c]), 8)]
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
    qkv_value_2 = [qkv[(t, j, partner[c])] for c in range(16)]  # heads.py:278
    q_weight_value = [one for c in range(0, 16, 8) for one in load_vector(q_weight, e[c], 8)]  # heads.py:281
    k_weight_value = [one for c in range(0, 16, 8) for one in load_vector(k_weight, e[c], 8)]
    q_weight_value_2 = [q_weight[partner[c]] for c in range(16)]  # heads.py:284
    k_weight_value_2 = [k_weight[partner[c]] for c in range(16)]
    is_q = j < 32  # heads.py:274
    is_v = 40 <= j
    made = [BFloat16(qkv_value[c]).to(Float32) for c in range(16)]  # heads.py:276
    other = [BFloat16(qkv_value_2[c]).to(Float32) for c in range(16)]  # heads.py:278
    made_times_made = [mul(made[c], made[c]) for c in range(16)]  # heads.py:88
    sum_e = sum_over_e(made_times_made)
    rstd_quotient = div(sum_e, Float32(128.0))
    rstd_sum = rstd_quotient + eps
    rstd = portable_rsqrt(rstd_sum)
    weight = [select(is_q, q_weight_value[c], k_weight_value[c]) for c in range(16)]  # heads.py:281
    n = [mul(made[c], rstd) for c in range(16)]  # heads.py:93
    n_bf16 = [Float32(n[c]).to(BFloat16) for c in range(16)]  # heads.py:95
    n_2 = [BFloat16(n_bf16[c]).to(Float32) for c in range(16)]
    weight_f32 = [BFloat16(weight[c]).to(Float32) for c in range(16)]  # norm.py:16
    made_product = [mul(n_2[c], weight_f32[c]) for c in range(16)]  # heads.py:96
    made_product_bf16 = [Float32(made_product[c]).to(BFloat16) for c in range(16)]
    made_2 = [BFloat16(made_product_bf16[c]).to(Float32) for c in range(16)]  # heads.py:282
    weight_2 = [select(is_q, q_weight_value_2[c], k_weight_value_2[c]) for c in range(16)]  # heads.py:285
    n_3 = [mul(other[c], rstd) for c in range(16)]  # heads.py:93
    n_bf16_2 = [Float32(n_3[c]).to(BFloat16) for c in range(16)]  # heads.py:95
    n_4 = [BFloat16(n_bf16_2[c]).to(Float32) for c in range(16)]
    weight_f32_2 = [BFloat16(weight_2[c]).to(Float32) for c in range(16)]  # norm.py:16
    other_product = [mul(n_4[c], weight_f32_2[c]) for c in range(16)]  # heads.py:96
    other_product_bf16 = [Float32(other_product[c]).to(BFloat16) for c in range(16)]
    other_2 = [BFloat16(other_product_bf16[c]).to(Float32) for c in range(16)]  # heads.py:285
    turned = [mul(other_2[c], sin_value[c]) for c in range(16)]  # heads.py:82
    made_times_cos = [mul(made_2[c], cos_value[c]) for c in range(16)]  # heads.py:83
    neg_turned = [-turned[c] for c in range(16)]
    made_selected = [select(ahead[c], neg_turned[c], turned[c]) for c in range(16)]
    made_3 = [made_times_cos[c] + made_selected[c] for c in range(16)]
    turned_2 = [Float32(made_3[c]).to(BFloat16) for c in range(16)]  # heads.py:84
    size = Int32(O).to(Int64)  # heads.py:215
    there = 0 <= slots_value  # heads.py:216
    B_i64 = Int32(B).to(Int64)  # heads.py:217
    kept_product = B_i64 * size
    kept_below = slots_value < kept_product
    kept = there & kept_below
    below = slots_value < -1  # heads.py:218
    not_kept = select(kept, Boolean(False), Boolean(True))
    both = there & not_kept
    either = below | both
    report_where(either & writes, errors, 1, t + 1)
    at = select(kept, slots_value, Int64(0))  # heads.py:219
    at_over_size = at // size  # heads.py:220
    B_2 = Int64(at_over_size).to(Int32)
    at_mod_size = at % size
    O_2 = Int64(at_mod_size).to(Int32)
    for c in cutlass.range_constexpr(0, 16, 8):  # heads.py:288
        store_vector_where(is_q, q_out, (t, j, e[c]), turned_2[c:c + 8])
    j_minus_32 = j - 32  # heads.py:289
    not_is_q = select(is_q, Boolean(False), Boolean(True))
    not_is_v = select(is_v, Boolean(False), Boolean(True))
    k_out_guard = not_is_q & not_is_v
    k_out_guard_2 = k_out_guard & kept
    for c in cutlass.range_constexpr(0, 16, 8):
        store_vector_where(k_out_guard_2, k_out, (B_2, O_2, j_minus_32, e[c]), turned_2[c:c + 8])
    j_minus_40 = j - 40  # heads.py:290
    v_out_guard = is_v & kept
    for c in cutlass.range_constexpr(0, 16, 8):
        store_vector_where(v_out_guard, v_out, (B_2, O_2, j_minus_40, e[c]), qkv_value[c:c + 8])


@cute.jit
def launch_cache_qkv(
    qkv_ptr: cute.Pointer, slots_ptr: cute.Pointer, q_weight_ptr: cute.Pointer, k_weight_ptr: cute.Pointer,
    cos_ptr: cute.Pointer, sin_ptr: cute.Pointer, position_ids_ptr: cute.Pointer, q_out_ptr: cute.Pointer,
    k_out_ptr: cute.Pointer, v_out_ptr: cute.Pointer, P: Int32, O: Int32, B: Int32, errors_ptr: cute.Pointer, T: Int32,
    qkv_t_stride: Int64, qkv_j_stride: Int64, cos_p_stride: Int64, sin_p_stride: Int64, q_out_t_stride: Int64,
    q_out_h_stride: Int64, k_out_b_stride: Int64, k_out_o_stride: Int64, k_out_g_stride: Int64, v_out_b_stride: Int64,
    v_out_o_stride: Int64, v_out_g_stride: Int64, eps: Float32, programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    qkv = cute.make_tensor(qkv_ptr, cute.make_layout((T, 48, 128), stride=(qkv_t_stride, qkv_j_stride, 1)))
    slots = cute.make_tensor(slots_ptr, cute.make_layout((T,), stride=(1,)))
    q_weight = cute.make_tensor(q_weight_ptr, cute.make_layout((128,), stride=(1,)))
    k_weight = cute.make_tensor(k_weight_ptr, cute.make_layout((128,), stride=(1,)))
    cos = cute.make_tensor(cos_ptr, cute.make_layout((P, 64), stride=(cos_p_stride, 1)))
    sin = cute.make_tensor(sin_ptr, cute.make_layout((P, 64), stride=(sin_p_stride, 1)))
    position_ids = cute.make_tensor(position_ids_ptr, cute.make_layout((T,), stride=(1,)))
    q_out = cute.make_tensor(q_out_ptr, cute.make_layout((T, 32, 128), stride=(q_out_t_stride, q_out_h_stride, 1)))
    k_out = cute.make_tensor(
        k_out_ptr, cute.make_layout((B, O, 8, 128), stride=(k_out_b_stride, k_out_o_stride, k_out_g_stride, 1))
    )
    v_out = cute.make_tensor(
        v_out_ptr, cute.make_layout((B, O, 8, 128), stride=(v_out_b_stride, v_out_o_stride, v_out_g_stride, 1))
    )
    cache_qkv_rows(
        qkv, slots, q_weight, k_weight, cos, sin, position_ids, q_out, k_out, v_out, P, O, B, errors_ptr, T, eps
    ).launch(grid=(programs, 1, 1), block=(128, 1, 1), use_pdl=overlap, stream=stream,)


def call(
    kernels, qkv, slots, q_weight, k_weight, cos, sin, position_ids, q_out, k_out, v_out, eps, P, O, B, T, qkv_t_stride,
    qkv_j_stride, cos_p_stride, sin_p_stride, q_out_t_stride, q_out_h_stride, k_out_b_stride, k_out_o_stride,
    k_out_g_stride, v_out_b_stride, v_out_o_stride, v_out_g_stride, errors
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T * 3
    if programs > 0:
        kernels.cache_qkv(
            (programs,), qkv, slots, q_weight, k_weight, cos, sin, position_ids, q_out, k_out, v_out, P, O, B, errors,
            T, qkv_t_stride, qkv_j_stride, cos_p_stride, sin_p_stride, q_out_t_stride, q_out_h_stride, k_out_b_stride,
            k_out_o_stride, k_out_g_stride, v_out_b_stride, v_out_o_stride, v_out_g_stride, eps
        )
