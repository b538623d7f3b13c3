"""rope on sm_90a, written by rlk 0.1.0: do not edit.

numerics: f2af05c867f567d6
schedule: tiles C=64, H=32, 4 warps, 1 stages, unroll 1
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


@cute.jit
def store_where(condition, memory: cute.Tensor, index, x):
    # Write an element if the condition holds.
    if condition:
        memory[index] = x


@cute.kernel
def rope(x: cute.Tensor, cos: cute.Tensor, sin: cute.Tensor, position_ids: cute.Tensor, y: cute.Tensor, T: Int32, P: Int32):
    # A thread owns one of T, H, C (rows).
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    element = Int64(block) * 128 + thread
    c_2 = (element % 64).to(Int32)
    rest = element // 64
    h = (rest % 32).to(Int32)
    rest_2 = rest // 32
    t = rest_2.to(Int32)
    t_inside = t < T
    position_ids_2 = load_where(t_inside, position_ids, t, Int64(0))  # model.py:70
    at_most = 0 <= position_ids_2  # model.py:71
    as_i64 = Int32(P).to(Int64)  # model.py:71
    below = position_ids_2 < as_i64  # model.py:71
    both = at_most & below  # model.py:71
    cos_2 = load_where(both & t_inside, cos, (position_ids_2.to(Int32), c_2), Float32(float("nan")))  # model.py:71
    sin_2 = load_where(both & t_inside, sin, (position_ids_2.to(Int32), c_2), Float32(float("nan")))  # model.py:71
    total = c_2 + 64  # model.py:48
    at_most_2 = 0 <= c_2  # model.py:49
    below_2 = c_2 < 128  # model.py:49
    both_2 = at_most_2 & below_2  # model.py:49
    x_2 = load_where(both_2 & t_inside, x, (t, h, c_2), BFloat16(0))  # model.py:49
    as_f32 = BFloat16(x_2).to(Float32)  # model.py:49
    at_most_3 = 0 <= total  # model.py:49
    below_3 = total < 128  # model.py:49
    both_3 = at_most_3 & below_3  # model.py:49
    x_3 = load_where(both_3 & t_inside, x, (t, h, total), BFloat16(0))  # model.py:49
    as_f32_2 = BFloat16(x_3).to(Float32)  # model.py:49
    product = mul(as_f32, cos_2)  # model.py:53
    product_2 = mul(as_f32_2, sin_2)  # model.py:53
    difference = product - product_2  # model.py:53
    as_bf16 = Float32(difference).to(BFloat16)  # model.py:53
    product_3 = mul(as_f32_2, cos_2)  # model.py:54
    product_4 = mul(as_f32, sin_2)  # model.py:54
    total_2 = product_3 + product_4  # model.py:54
    as_bf16_2 = Float32(total_2).to(BFloat16)  # model.py:54
    store_where(t_inside, y, (t, h, c_2), as_bf16)  # model.py:50
    store_where(t_inside, y, (t, h, total), as_bf16_2)  # model.py:50


@cute.jit
def launch_rope(x_ptr: cute.Pointer, cos_ptr: cute.Pointer, sin_ptr: cute.Pointer, position_ids_ptr: cute.Pointer, y_ptr: cute.Pointer, T: Int32, P: Int32, x_t_stride: Int64, x_h_stride: Int64, cos_p_stride: Int64, sin_p_stride: Int64, y_t_stride: Int64, y_h_stride: Int64, programs: Int32, stream: cuda.CUstream):
    # Describe the tensors, and start the kernel on a stream.
    x = cute.make_tensor(x_ptr, cute.make_layout((T, 32, 128), stride=(x_t_stride, x_h_stride, 1)))
    cos = cute.make_tensor(cos_ptr, cute.make_layout((P, 64), stride=(cos_p_stride, 1)))
    sin = cute.make_tensor(sin_ptr, cute.make_layout((P, 64), stride=(sin_p_stride, 1)))
    position_ids = cute.make_tensor(position_ids_ptr, cute.make_layout((T,), stride=(1,)))
    y = cute.make_tensor(y_ptr, cute.make_layout((T, 32, 128), stride=(y_t_stride, y_h_stride, 1)))
    rope(x, cos, sin, position_ids, y, T, P).launch(
        grid=(programs, 1, 1), block=(128, 1, 1), stream=stream
    )


def call(kernels, x, cos, sin, position_ids, y, T, P, x_t_stride, x_h_stride, cos_p_stride, sin_p_stride, y_t_stride, y_h_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = (T * 32 * 64 + 127) // 128
    if programs > 0:
        kernels.rope((programs,), x, cos, sin, position_ids, y, T, P, x_t_stride, x_h_stride, cos_p_stride, sin_p_stride, y_t_stride, y_h_stride)
