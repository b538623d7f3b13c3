"""policy_loss_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 06eb7cb1eb76f541
schedule: tiles T=128, 4 warps, 1 stages, unroll 1 placed T[6:0]
inputs:
  logp: f32 [T]
  old_logp: f32 [T]
  advantages: f32 [B]
  ref_logp: f32 [T]
  active: bool [T]
  sequence: i32 [T]
  count: i32
  d_loss: f32
outputs:
  d_logp: f32 [T]
scalars:
  beta: f32
  surrogate_least: f32
  surrogate_most: f32
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


def div(a, b):
    # Correctly rounded.
    return a / b


def fma(a, b, c):
    # a * b + c with one rounding.
    return cute.math.fma(a, b, c, rounding=NEAREST)


def fmax(a, b):
    # max.f32: the other operand if one is NaN.
    return cute.arch.fmax(a, b)


def fmin(a, b):
    # min.f32: the other operand if one is NaN.
    return cute.arch.fmin(a, b)


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


def portable_expm1(x):
    # e**x - 1, accurate near 0; expm1(-0) = -0.
    f0 = fmin(x, Float32(89.0))
    f1 = fmax(f0, Float32(-30.0))
    f2 = fma(f1, Float32(1.4426950216293335), Float32(12582912.0))
    f3 = f2 - Float32(12582912.0)
    f4 = f2 - Float32(12582912.0)
    f5 = fma(f4, Float32(-0.6931471824645996), f1)
    f6 = fma(f4, Float32(1.9046542121259336e-09), f5)
    f7 = f6 + Float32(0.5)
    f8 = select((f3 == Float32(1.0)), f7, f6)
    f9 = fma(Float32(0.00019764257012866437), f6, Float32(0.0013932347064837813))
    f10 = fma(f9, f6, Float32(0.008333543315529823))
    f11 = fma(f10, f6, Float32(0.04166649281978607))
    f12 = fma(f11, f6, Float32(0.1666666567325592))
    f13 = fma(f12, f6, Float32(0.5))
    f14 = mul(f6, f6)
    f15 = fma(f13, f14, f8)
    i16 = Float32(f2).bitcast(Int32)
    i17 = i16 << Int32(23)
    i18 = i17 + Int32(1056964608)
    f19 = Int32(i18).bitcast(Float32)
    f20 = f19 - Float32(0.5)
    f21 = f19 - f20
    f22 = f21 - Float32(0.5)
    f23 = fma(f15, f19, f22)
    f24 = f23 + f20
    f25 = select((f3 == Float32(1.0)), f15, f24)
    f26 = f25 + f25
    f27 = select((f3 == Float32(0.0)), f15, f26)
    i28 = Float32(x).bitcast(Int32)
    i29 = i28 & Int32(2147483647)
    f30 = Int32(i29).bitcast(Float32)
    f31 = select((Float32(0.0) < f30), f27, x)
    return f31


def select(condition, a, b):
    # condition ? a : b, without a branch.
    return cutlass.select_(condition, a, b)


@cute.jit
def store_where(condition, memory: cute.Tensor, index, x):
    # Store an element where the condition holds.
    if condition:
        memory[index] = x


@cute.kernel
def policy_loss_grad_rows(
    logp: cute.Tensor, old_logp: cute.Tensor, advantages: cute.Tensor, ref_logp: cute.Tensor, active: cute.Tensor,
    sequence: cute.Tensor, count: cute.Tensor, d_loss: cute.Tensor, d_logp: cute.Tensor, T: Int32, B: Int32,
    beta: Float32, surrogate_least: Float32, surrogate_most: Float32
):
    # A block owns 128 of T (rows). T: 128 indices, 1 to each of 128 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
    t = block * 128 + thread
    t_inside = t < T
    d_loss_value = d_loss[0]  # policy.py:707
    count_value = count[0]  # policy.py:550
    active_value = load_where(t_inside, active, t, Uint8(0)) != 0  # policy.py:140
    sequence_value = load_where(t_inside, sequence, t, Int32(0))
    sequence_ge_0 = 0 <= sequence_value  # policy.py:146
    sequence_lt_B = sequence_value < B
    advantages_guard = sequence_ge_0 & sequence_lt_B
    advantages_value = load_where(advantages_guard & t_inside, advantages, sequence_value, Float32(0))
    logp_value = load_where(t_inside, logp, t, Float32(0))  # policy.py:140
    old_logp_value = load_where(t_inside, old_logp, t, Float32(0))
    ref_logp_value = load_where(t_inside, ref_logp, t, Float32(0))
    count_max_1 = cutlass.max(count_value, 1)  # policy.py:550
    denominator = Int32(count_max_1).to(Float32)
    scale = div(d_loss_value, denominator)  # policy.py:560
    log_ratio = logp_value - old_logp_value  # policy.py:191
    ratio = portable_exp(log_ratio)  # policy.py:369
    advantages_is_0 = advantages_value == Float32(0.0)  # policy.py:371
    ratio_2 = select(advantages_is_0, Float32(1.0), ratio)
    ratio_times_advantages = mul(ratio_2, advantages_value)  # surrogates.py:58
    plain = -ratio_times_advantages
    bounded = fmax(ratio_2, surrogate_least)  # surrogates.py:61
    bounded_2 = fmin(bounded, surrogate_most)  # surrogates.py:63
    bounded_times_advantages = mul(bounded_2, advantages_value)  # surrogates.py:64
    limited = -bounded_times_advantages
    plain_lt_limited = plain < limited  # surrogates.py:67
    flows = select(plain_lt_limited, Boolean(False), Boolean(True))
    advantages_not_0 = advantages_value != Float32(0.0)  # surrogates.py:76
    slope_both = flows & advantages_not_0
    slope = select(slope_both, plain, Float32(0.0))
    raw = ref_logp_value - logp_value  # policy.py:331
    expm1_raw = portable_expm1(raw)  # loss.py:36
    slope_2 = -expm1_raw
    by_logp = mul(beta, slope_2)  # policy.py:386
    slope_3 = slope + by_logp  # policy.py:457
    scale_times_slope = mul(scale, slope_3)  # policy.py:619
    d_logp_value = select(active_value, scale_times_slope, Float32(0.0))  # policy.py:600
    store_where(t_inside, d_logp, t, d_logp_value)  # policy.py:602


@cute.jit
def launch_policy_loss_grad(
    logp_ptr: cute.Pointer, old_logp_ptr: cute.Pointer, advantages_ptr: cute.Pointer, ref_logp_ptr: cute.Pointer,
    active_ptr: cute.Pointer, sequence_ptr: cute.Pointer, count_ptr: cute.Pointer, d_loss_ptr: cute.Pointer,
    d_logp_ptr: cute.Pointer, T: Int32, B: Int32, beta: Float32, surrogate_least: Float32, surrogate_most: Float32,
    programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    logp = cute.make_tensor(logp_ptr, cute.make_layout((T,), stride=(1,)))
    old_logp = cute.make_tensor(old_logp_ptr, cute.make_layout((T,), stride=(1,)))
    advantages = cute.make_tensor(advantages_ptr, cute.make_layout((B,), stride=(1,)))
    ref_logp = cute.make_tensor(ref_logp_ptr, cute.make_layout((T,), stride=(1,)))
    active = cute.make_tensor(active_ptr, cute.make_layout((T,), stride=(1,)))
    sequence = cute.make_tensor(sequence_ptr, cute.make_layout((T,), stride=(1,)))
    count = cute.make_tensor(count_ptr, cute.make_layout((1,), stride=(1,)))
    d_loss = cute.make_tensor(d_loss_ptr, cute.make_layout((1,), stride=(1,)))
    d_logp = cute.make_tensor(d_logp_ptr, cute.make_layout((T,), stride=(1,)))
    policy_loss_grad_rows(
        logp, old_logp, advantages, ref_logp, active, sequence, count, d_loss, d_logp, T, B, beta, surrogate_least,
        surrogate_most
    ).launch(grid=(programs, 1, 1), block=(128, 1, 1), use_pdl=overlap, stream=stream,)


def call(
    kernels, logp, old_logp, advantages, ref_logp, active, sequence, count, d_loss, d_logp, beta, surrogate_least,
    surrogate_most, T, B
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 127) // 128)
    if programs > 0:
        kernels.policy_loss_grad(
            (programs,), logp, old_logp, advantages, ref_logp, active, sequence, count, d_loss, d_logp, T, B, beta,
            surrogate_least, surrogate_most
        )
