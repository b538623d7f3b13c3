"""rope on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 9ecbade7ee57014e
schedule: tiles C=64, H=16, 4 warps, 1 stages, unroll 1 placed C[5:3] H[3:0] C[2:0]
inputs:
  x: bf16 [T, H=32, E=128]
  cos: f32 [P, C=64]
  sin: f32 [P, C=64]
  position_ids: i64 [T]
outputs:
  y: bf16 [T, H=32, E=128]
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
def load_vector_where(condition, memory: cute.Tensor, index, other, count: cutlass.Constexpr):
    # Load a vector, or `other` where the condition is false.
    x = cute.make_rmem_tensor((count,), memory.element_type)
    x.fill(other)
    if condition:
        cute.autovec_copy(vector_of(memory, index, count), x)
    return [x[i] for i in range(count)]


def mul(a, b):
    # One rounding, never part of a fused operation.
    return cute.math.mul(a, b, rounding=NEAREST)


def store_vector(memory, index, x):
    # Store a vector.
    made = cute.make_rmem_tensor((len(x),), memory.element_type)
    for i in range(len(x)):
        made[i] = x[i]
    cute.autovec_copy(made, vector_of(memory, index, len(x)))


def vector_of(memory, index, count):
    # A view of `count` contiguous, aligned elements.
    at = cute.assume(cute.crd2idx(index, memory.layout), divby=count)
    return cute.make_tensor(memory.iterator + at, (count,))


@cute.kernel
def rope_rows(
    x: cute.Tensor, cos: cute.Tensor, sin: cute.Tensor, position_ids: cute.Tensor, y: cute.Tensor, P: Int32, T: Int32
):
    # A block owns 1 of T, 16 of H, 64 of C (rows). H: 16 indices, 1 to each of 16 threads; C: 64 indices, 8 to each of
    # 8 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
    rest = block // 2
    t = rest
    h = block % 2 * 16 + thread // 8
    c_2 = [block % 1 * 64 + thread % 8 * 8 + c for c in range(8)]
    position_ids_value = position_ids[t]  # model.py:120
    position_ids_ge_0 = 0 <= position_ids_value  # model.py:121
    P_i64 = Int32(P).to(Int64)
    cos_guard_below = position_ids_value < P_i64
    cos_guard = position_ids_ge_0 & cos_guard_below
    cos_value = [
        one for c in range(0, 8, 4)
        for one in load_vector_where(cos_guard, cos, (position_ids_value.to(Int32), c_2[c]), Float32(float("nan")), 4)
    ]
    sin_value = [
        one for c in range(0, 8, 4)
        for one in load_vector_where(cos_guard, sin, (position_ids_value.to(Int32), c_2[c]), Float32(float("nan")), 4)
    ]
    second = [c_2[c] + 64 for c in range(8)]  # model.py:105
    c_ge_0 = [0 <= c_2[c] for c in range(8)]  # model.py:106
    c_lt_128 = [c_2[c] < 128 for c in range(8)]
    x_guard = [c_ge_0[c] & c_lt_128[c] for c in range(8)]
    x_value = load_vector_where(x_guard[0], x, (t, h, c_2[0]), BFloat16(0), 8)
    second_ge_0 = [0 <= second[c] for c in range(8)]
    second_lt_128 = [second[c] < 128 for c in range(8)]
    x_guard_2 = [second_ge_0[c] & second_lt_128[c] for c in range(8)]
    x_value_2 = load_vector_where(x_guard_2[0], x, (t, h, second[0]), BFloat16(0), 8)
    a = [BFloat16(x_value[c]).to(Float32) for c in range(8)]
    b = [BFloat16(x_value_2[c]).to(Float32) for c in range(8)]
    a_times_cos = [mul(a[c], cos_value[c]) for c in range(8)]  # model.py:108
    b_times_sin = [mul(b[c], sin_value[c]) for c in range(8)]
    y_difference = [a_times_cos[c] - b_times_sin[c] for c in range(8)]
    y_difference_bf16 = [Float32(y_difference[c]).to(BFloat16) for c in range(8)]
    b_times_cos = [mul(b[c], cos_value[c]) for c in range(8)]  # model.py:109
    a_times_sin = [mul(a[c], sin_value[c]) for c in range(8)]
    y_sum = [b_times_cos[c] + a_times_sin[c] for c in range(8)]
    y_sum_bf16 = [Float32(y_sum[c]).to(BFloat16) for c in range(8)]
    store_vector(y, (t, h, c_2[0]), y_difference_bf16)  # model.py:115
    store_vector(y, (t, h, second[0]), y_sum_bf16)


@cute.jit
def launch_rope(
    x_ptr: cute.Pointer, cos_ptr: cute.Pointer, sin_ptr: cute.Pointer, position_ids_ptr: cute.Pointer,
    y_ptr: cute.Pointer, P: Int32, T: Int32, x_t_stride: Int64, x_h_stride: Int64, cos_p_stride: Int64,
    sin_p_stride: Int64, y_t_stride: Int64, y_h_stride: Int64, programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    x = cute.make_tensor(x_ptr, cute.make_layout((T, 32, 128), stride=(x_t_stride, x_h_stride, 1)))
    cos = cute.make_tensor(cos_ptr, cute.make_layout((P, 64), stride=(cos_p_stride, 1)))
    sin = cute.make_tensor(sin_ptr, cute.make_layout((P, 64), stride=(sin_p_stride, 1)))
    position_ids = cute.make_tensor(position_ids_ptr, cute.make_layout((T,), stride=(1,)))
    y = cute.make_tensor(y_ptr, cute.make_layout((T, 32, 128), stride=(y_t_stride, y_h_stride, 1)))
    rope_rows(x, cos, sin, position_ids, y, P, T).launch(
        grid=(programs, 1, 1), block=(128, 1, 1), use_pdl=overlap, stream=stream,
    )


def call(
    kernels, x, cos, sin, position_ids, y, P, T, x_t_stride, x_h_stride, cos_p_stride, sin_p_stride, y_t_stride,
    y_h_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T * 2 * 1
    if programs > 0:
        kernels.rope(
            (programs,), x, cos, sin, position_ids, y, P, T, x_t_stride, x_h_stride, cos_p_stride, sin_p_stride,
            y_t_stride, y_h_stride
        )
