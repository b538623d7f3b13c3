"""ratio_kl on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 6181c2e178c7d5e5
schedule: tiles T=128, 4 warps, 1 stages, unroll 1 placed T[6:0]
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


def fma(a, b, c):
    # a * b + c with one rounding.
    return cute.math.fma(a, b, c, rounding=NEAREST)


def fmax(a, b):
    # NaN loses.
    return cute.arch.fmax(a, b)


def fmin(a, b):
    # NaN loses.
    return cute.arch.fmin(a, b)


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


def portable_k3(x):
    # e**d - 1 - d, accurate everywhere: the k3 estimate of a KL divergence; never negative.
    f0 = fmin(x, Float32(89.0))
    f1 = fmax(f0, Float32(-40.0))
    f2 = fma(f1, Float32(1.4426950216293335), Float32(12582912.0))
    i3 = Float32(x).bitcast(Int32)
    i4 = i3 & Int32(2147483647)
    f5 = Int32(i4).bitcast(Float32)
    f6 = select((f5 < Float32(0.75)), Float32(12582912.0), f2)
    f7 = f6 - Float32(12582912.0)
    f8 = fma(f7, Float32(-0.6931471824645996), f1)
    f9 = fma(f7, Float32(1.9046542121259336e-09), f8)
    f10 = mul(f9, f9)
    f11 = fma(Float32(2.6118525511265034e-06), f9, Float32(2.504098847566638e-05))
    f12 = fma(f11, f9, Float32(0.00019858872110489756))
    f13 = fma(f12, f9, Float32(0.0013888374669477344))
    f14 = fma(f13, f9, Float32(0.008333275094628334))
    f15 = fma(f14, f9, Float32(0.0416666679084301))
    f16 = fma(f15, f9, Float32(0.1666666716337204))
    f17 = mul(f9, f16)
    f18 = mul(f10, Float32(0.5))
    f19 = fma(f10, f17, f18)
    i20 = Float32(f6).bitcast(Int32)
    i21 = i20 << Int32(23)
    i22 = i21 + Int32(1056964608)
    f23 = Int32(i22).bitcast(Float32)
    f24 = f23 - Float32(0.5)
    f25 = fma(f0, Float32(-0.5), f24)
    f26 = fma(f23, f9, f25)
    f27 = fma(f23, f19, f26)
    f28 = f27 + f27
    f29 = select((f5 < Float32(0.75)), f19, f28)
    f30 = select((x == x), f29, x)
    return f30


def select(condition, a, b):
    # Without a branch.
    return cutlass.select_(condition, a, b)


@cute.jit
def store_where(condition, memory: cute.Tensor, index, x):
    # Write an element if the condition holds.
    if condition:
        memory[index] = x


@cute.kernel
def ratio_kl_rows(logp: cute.Tensor, old_logp: cute.Tensor, ref_logp: cute.Tensor, ratio: cute.Tensor, kl: cute.Tensor, T: Int32):
    # A block owns 128 of T (rows). T: 128 indices, 1 to each of 128 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    t = block * 128 + thread
    t_inside = t < T
    logp_2 = load_where(t_inside, logp, t, Float32(0))  # loss.py:50
    old_logp_2 = load_where(t_inside, old_logp, t, Float32(0))  # loss.py:50
    ref_logp_2 = load_where(t_inside, ref_logp, t, Float32(0))  # loss.py:51
    difference = logp_2 - old_logp_2  # loss.py:50
    exp_of = portable_exp(difference)  # loss.py:50
    difference_2 = ref_logp_2 - logp_2  # loss.py:51
    k3_of = portable_k3(difference_2)  # loss.py:23
    store_where(t_inside, ratio, t, exp_of)  # loss.py:54
    store_where(t_inside, kl, t, k3_of)  # loss.py:54


@cute.jit
def launch_ratio_kl(logp_ptr: cute.Pointer, old_logp_ptr: cute.Pointer, ref_logp_ptr: cute.Pointer, ratio_ptr: cute.Pointer, kl_ptr: cute.Pointer, T: Int32, programs: Int32, stream: cuda.CUstream):
    # Describe the tensors, and start the kernel on a stream.
    logp = cute.make_tensor(logp_ptr, cute.make_layout((T,), stride=(1,)))
    old_logp = cute.make_tensor(old_logp_ptr, cute.make_layout((T,), stride=(1,)))
    ref_logp = cute.make_tensor(ref_logp_ptr, cute.make_layout((T,), stride=(1,)))
    ratio = cute.make_tensor(ratio_ptr, cute.make_layout((T,), stride=(1,)))
    kl = cute.make_tensor(kl_ptr, cute.make_layout((T,), stride=(1,)))
    ratio_kl_rows(logp, old_logp, ref_logp, ratio, kl, T).launch(
        grid=(programs, 1, 1), block=(128, 1, 1), stream=stream,
    )


def call(kernels, logp, old_logp, ref_logp, ratio, kl, T):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 127) // 128)
    if programs > 0:
        kernels.ratio_kl((programs,), logp, old_logp, ref_logp, ratio, kl, T)
