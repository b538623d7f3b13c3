"""entropy_bonus_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: fdc772efcd553533
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


def div(a, b):
    # Correctly rounded.
    return a / b


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


def select(condition, a, b):
    # Without a branch.
    return cutlass.select_(condition, a, b)


@cute.jit
def store_where(condition, memory: cute.Tensor, index, x):
    # Write an element if the condition holds.
    if condition:
        memory[index] = x


@cute.kernel
def entropy_bonus_grad_rows(active: cute.Tensor, count: cute.Tensor, d_loss: cute.Tensor, d_entropy: cute.Tensor, T: Int32, coef: Float32):
    # A block owns 128 of T (rows). T: 128 indices, 1 to each of 128 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    t = block * 128 + thread
    t_inside = t < T
    count_2 = count[0]  # value.py:93
    d_loss_2 = d_loss[0]  # value.py:93
    active_2 = load_where(t_inside, active, t, Uint8(0)) != 0  # value.py:94
    larger = cutlass.max(count_2, 1)  # value.py:93
    as_f32 = Int32(larger).to(Float32)  # value.py:93
    quotient = div(d_loss_2, as_f32)  # value.py:93
    product = mul(quotient, coef)  # value.py:94
    negative = -product  # value.py:94
    chosen = select(active_2, negative, Float32(0.0))  # value.py:94
    store_where(t_inside, d_entropy, t, chosen)  # value.py:94


@cute.jit
def launch_entropy_bonus_grad(active_ptr: cute.Pointer, count_ptr: cute.Pointer, d_loss_ptr: cute.Pointer, d_entropy_ptr: cute.Pointer, T: Int32, coef: Float32, programs: Int32, stream: cuda.CUstream):
    # Describe the tensors, and start the kernel on a stream.
    active = cute.make_tensor(active_ptr, cute.make_layout((T,), stride=(1,)))
    count = cute.make_tensor(count_ptr, cute.make_layout((1,), stride=(1,)))
    d_loss = cute.make_tensor(d_loss_ptr, cute.make_layout((1,), stride=(1,)))
    d_entropy = cute.make_tensor(d_entropy_ptr, cute.make_layout((T,), stride=(1,)))
    entropy_bonus_grad_rows(active, count, d_loss, d_entropy, T, coef).launch(
        grid=(programs, 1, 1), block=(128, 1, 1), stream=stream,
    )


def call(kernels, active, count, d_loss, d_entropy, coef, T):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 127) // 128)
    if programs > 0:
        kernels.entropy_bonus_grad((programs,), active, count, d_loss, d_entropy, T, coef)
