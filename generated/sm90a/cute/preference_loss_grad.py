"""preference_loss_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 6964ac7caf1f1f4f
schedule: tiles P=128, 4 warps, 1 stages, unroll 1 placed P[6:0]
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
    # NaN loses.
    return cute.arch.fmax(a, b)


@cute.jit
def load_where(condition, memory: cute.Tensor, index, other):
    # An element, or what stands for it.
    x = other
    if condition:
        x = type(other)(memory[index])
    return x


def mul(a, b):
    # One rounding, never part of a fused operation.
    return cute.math.mul(a, b, rounding=NEAREST)


def portable_sigmoid(x):
    # 1 / (1 + e**-x), accurate in both tails, with gradual underflow.
    i0 = Float32(x).bitcast(Int32)
    i1 = i0 | Int32(-2147483648)
    f2 = Int32(i1).bitcast(Float32)
    f3 = fmax(f2, Float32(-104.0))
    f4 = fma(f3, Float32(1.4426950216293335), Float32(12582912.0))
    f5 = f4 - Float32(12582912.0)
    f6 = fma(f5, Float32(-0.6931471824645996), f3)
    f7 = fma(f5, Float32(1.9046542121259336e-09), f6)
    f8 = fma(Float32(0.0013819490559399128), f7, Float32(0.008368690498173237))
    f9 = fma(f8, f7, Float32(0.041668280959129333))
    f10 = fma(f9, f7, Float32(0.1666652113199234))
    f11 = fma(f10, f7, Float32(0.4999999403953552))
    f12 = fma(f11, f7, Float32(1.0))
    f13 = mul(f12, f7)
    i14 = Float32(f4).bitcast(Int32)
    i15 = i14 - Int32(1262485504)
    i16 = i15 >> Int32(1)
    i17 = i16 << Int32(23)
    i18 = i17 + Int32(1065353216)
    f19 = Int32(i18).bitcast(Float32)
    i20 = i15 - i16
    i21 = i20 << Int32(23)
    i22 = i21 + Int32(1065353216)
    f23 = Int32(i22).bitcast(Float32)
    f24 = f13 + Float32(1.0)
    f25 = mul(f24, f19)
    f26 = mul(f25, f23)
    f27 = f26 + Float32(1.0)
    f28 = div(Float32(1.0), f27)
    f29 = f27 - Float32(1.0)
    f30 = f26 - f29
    f31 = fma(f28, f27, Float32(-1.0))
    f32 = fma(f28, f30, f31)
    f33 = mul(f28, f19)
    f34 = fma(f13, f32, f32)
    f35 = f13 - f34
    f36 = fma(f33, f35, f33)
    f37 = mul(f36, f23)
    f38 = select((x < Float32(0.0)), f37, f28)
    f39 = select((x == x), f38, x)
    return f39


def select(condition, a, b):
    # Without a branch.
    return cutlass.select_(condition, a, b)


@cute.jit
def store_where(condition, memory: cute.Tensor, index, x):
    # Write an element if the condition holds.
    if condition:
        memory[index] = x


@cute.kernel
def preference_loss_grad_rows(chosen: cute.Tensor, rejected: cute.Tensor, ref_chosen: cute.Tensor, ref_rejected: cute.Tensor, count: cute.Tensor, d_loss: cute.Tensor, d_chosen: cute.Tensor, d_rejected: cute.Tensor, P: Int32, beta: Float32):
    # A block owns 128 of P (rows). P: 128 indices, 1 to each of 128 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    p = block * 128 + thread
    p_inside = p < P
    count_2 = count[0]  # preference.py:181
    d_loss_2 = d_loss[0]  # preference.py:181
    chosen_2 = load_where(p_inside, chosen, p, Float32(0))  # preference.py:128
    ref_chosen_2 = load_where(p_inside, ref_chosen, p, Float32(0))  # preference.py:128
    rejected_2 = load_where(p_inside, rejected, p, Float32(0))  # preference.py:128
    ref_rejected_2 = load_where(p_inside, ref_rejected, p, Float32(0))  # preference.py:128
    difference = chosen_2 - ref_chosen_2  # preference.py:128
    difference_2 = rejected_2 - ref_rejected_2  # preference.py:128
    difference_3 = difference - difference_2  # preference.py:54
    product = mul(beta, difference_3)  # preference.py:54
    negative = -product  # preference.py:63
    sigmoid_of = portable_sigmoid(negative)  # preference.py:64
    negative_2 = -sigmoid_of  # preference.py:67
    product_2 = mul(beta, negative_2)  # preference.py:58
    negative_3 = -product_2  # preference.py:58
    as_f32 = Int32(count_2).to(Float32)  # preference.py:181
    quotient = div(d_loss_2, as_f32)  # preference.py:181
    product_3 = mul(quotient, product_2)  # preference.py:188
    product_4 = mul(quotient, negative_3)  # preference.py:188
    store_where(p_inside, d_chosen, p, product_3)  # preference.py:186
    store_where(p_inside, d_rejected, p, product_4)  # preference.py:186


@cute.jit
def launch_preference_loss_grad(chosen_ptr: cute.Pointer, rejected_ptr: cute.Pointer, ref_chosen_ptr: cute.Pointer, ref_rejected_ptr: cute.Pointer, count_ptr: cute.Pointer, d_loss_ptr: cute.Pointer, d_chosen_ptr: cute.Pointer, d_rejected_ptr: cute.Pointer, P: Int32, beta: Float32, programs: Int32, stream: cuda.CUstream):
    # Describe the tensors, and start the kernel on a stream.
    chosen = cute.make_tensor(chosen_ptr, cute.make_layout((P,), stride=(1,)))
    rejected = cute.make_tensor(rejected_ptr, cute.make_layout((P,), stride=(1,)))
    ref_chosen = cute.make_tensor(ref_chosen_ptr, cute.make_layout((P,), stride=(1,)))
    ref_rejected = cute.make_tensor(ref_rejected_ptr, cute.make_layout((P,), stride=(1,)))
    count = cute.make_tensor(count_ptr, cute.make_layout((1,), stride=(1,)))
    d_loss = cute.make_tensor(d_loss_ptr, cute.make_layout((1,), stride=(1,)))
    d_chosen = cute.make_tensor(d_chosen_ptr, cute.make_layout((P,), stride=(1,)))
    d_rejected = cute.make_tensor(d_rejected_ptr, cute.make_layout((P,), stride=(1,)))
    preference_loss_grad_rows(chosen, rejected, ref_chosen, ref_rejected, count, d_loss, d_chosen, d_rejected, P, beta).launch(
        grid=(programs, 1, 1), block=(128, 1, 1), stream=stream,
    )


def call(kernels, chosen, rejected, ref_chosen, ref_rejected, count, d_loss, d_chosen, d_rejected, beta, P):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((P + 127) // 128)
    if programs > 0:
        kernels.preference_loss_grad((programs,), chosen, rejected, ref_chosen, ref_rejected, count, d_loss, d_chosen, d_rejected, P, beta)
