"""combine_rows on sm_90a, written by rlk 0.1.0: do not edit.

numerics: c99f183c0bef3b61
schedule: tiles D=2048, 4 warps, 1 stages, unroll 1 placed D[9:3] D[2:0] D[10:10]
inputs:
  place: i32 [T, K=8]
  rows: bf16 [R, D=2048]
  weights: f32 [T, K=8]
outputs:
  y: bf16 [T, D=2048]
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


@cute.jit
def report_where(bad, errors: cute.Pointer, code: cutlass.Constexpr, row):
    # Record an error code, and its row plus one, in the device's error words.
    if bad:
        cute.arch.atomic_max(errors, Int32(code))
        cute.arch.atomic_max(errors + 1, row)


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
def combine_rows_rows(
    place: cute.Tensor, rows: cute.Tensor, weights: cute.Tensor, y: cute.Tensor, R: Int32, errors: cute.Pointer,
    T: Int32
):
    # A block owns 1 of T, 2048 of D (rows). D: 2048 indices, 16 to each of 128 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
    t = block
    d = [block % 1 * 2048 + thread * 8 + c % 8 + c // 8 * 1024 for c in range(16)]
    writes = thread == 0
    place_value = place[(t, 0)]  # moe.py:243
    place_value_2 = place[(t, 1)]
    place_value_3 = place[(t, 2)]
    place_value_4 = place[(t, 3)]
    place_value_5 = place[(t, 4)]
    place_value_6 = place[(t, 5)]
    place_value_7 = place[(t, 6)]
    place_value_8 = place[(t, 7)]
    weights_value = weights[(t, 0)]  # moe.py:308
    weights_value_2 = weights[(t, 1)]
    weights_value_3 = weights[(t, 2)]
    weights_value_4 = weights[(t, 3)]
    weights_value_5 = weights[(t, 4)]
    weights_value_6 = weights[(t, 5)]
    weights_value_7 = weights[(t, 6)]
    weights_value_8 = weights[(t, 7)]
    place_ge_0 = 0 <= place_value
    place_lt_R = place_value < R
    rows_guard = place_ge_0 & place_lt_R
    rows_value = [
        one for c in range(0, 16, 8) for one in load_vector_where(rows_guard, rows, (place_value, d[c]), BFloat16(0), 8)
    ]
    place_ge_0_2 = 0 <= place_value_2
    place_lt_R_2 = place_value_2 < R
    rows_guard_2 = place_ge_0_2 & place_lt_R_2
    rows_value_2 = [
        one for c in range(0, 16, 8)
        for one in load_vector_where(rows_guard_2, rows, (place_value_2, d[c]), BFloat16(0), 8)
    ]
    place_ge_0_3 = 0 <= place_value_3
    place_lt_R_3 = place_value_3 < R
    rows_guard_3 = place_ge_0_3 & place_lt_R_3
    rows_value_3 = [
        one for c in range(0, 16, 8)
        for one in load_vector_where(rows_guard_3, rows, (place_value_3, d[c]), BFloat16(0), 8)
    ]
    place_ge_0_4 = 0 <= place_value_4
    place_lt_R_4 = place_value_4 < R
    rows_guard_4 = place_ge_0_4 & place_lt_R_4
    rows_value_4 = [
        one for c in range(0, 16, 8)
        for one in load_vector_where(rows_guard_4, rows, (place_value_4, d[c]), BFloat16(0), 8)
    ]
    place_ge_0_5 = 0 <= place_value_5
    place_lt_R_5 = place_value_5 < R
    rows_guard_5 = place_ge_0_5 & place_lt_R_5
    rows_value_5 = [
        one for c in range(0, 16, 8)
        for one in load_vector_where(rows_guard_5, rows, (place_value_5, d[c]), BFloat16(0), 8)
    ]
    place_ge_0_6 = 0 <= place_value_6
    place_lt_R_6 = place_value_6 < R
    rows_guard_6 = place_ge_0_6 & place_lt_R_6
    rows_value_6 = [
        one for c in range(0, 16, 8)
        for one in load_vector_where(rows_guard_6, rows, (place_value_6, d[c]), BFloat16(0), 8)
    ]
    place_ge_0_7 = 0 <= place_value_7
    place_lt_R_7 = place_value_7 < R
    rows_guard_7 = place_ge_0_7 & place_lt_R_7
    rows_value_7 = [
        one for c in range(0, 16, 8)
        for one in load_vector_where(rows_guard_7, rows, (place_value_7, d[c]), BFloat16(0), 8)
    ]
    place_ge_0_8 = 0 <= place_value_8
    place_lt_R_8 = place_value_8 < R
    rows_guard_8 = place_ge_0_8 & place_lt_R_8
    rows_value_8 = [
        one for c in range(0, 16, 8)
        for one in load_vector_where(rows_guard_8, rows, (place_value_8, d[c]), BFloat16(0), 8)
    ]
    place_le_place = place_value_2 <= place_value  # moe.py:154
    place_le_place_2 = place_value_3 <= place_value_2
    place_le_place_3 = place_value_4 <= place_value_3
    place_le_place_4 = place_value_5 <= place_value_4
    place_le_place_5 = place_value_6 <= place_value_5
    place_le_place_6 = place_value_7 <= place_value_6
    place_le_place_7 = place_value_8 <= place_value_7
    either = place_le_place | place_le_place_2  # moe.py:155
    either_2 = either | place_le_place_3
    either_3 = either_2 | place_le_place_4
    either_4 = either_3 | place_le_place_5
    either_5 = either_4 | place_le_place_6
    either_6 = either_5 | place_le_place_7
    report_where(either_6 & writes, errors, 1, t + 1)
    rows_f32 = [BFloat16(rows_value[c]).to(Float32) for c in range(16)]  # moe.py:308
    y_product = [mul(rows_f32[c], weights_value) for c in range(16)]
    rows_f32_2 = [BFloat16(rows_value_2[c]).to(Float32) for c in range(16)]
    y_product_2 = [mul(rows_f32_2[c], weights_value_2) for c in range(16)]
    rows_f32_3 = [BFloat16(rows_value_3[c]).to(Float32) for c in range(16)]
    y_product_3 = [mul(rows_f32_3[c], weights_value_3) for c in range(16)]
    rows_f32_4 = [BFloat16(rows_value_4[c]).to(Float32) for c in range(16)]
    y_product_4 = [mul(rows_f32_4[c], weights_value_4) for c in range(16)]
    rows_f32_5 = [BFloat16(rows_value_5[c]).to(Float32) for c in range(16)]
    y_product_5 = [mul(rows_f32_5[c], weights_value_5) for c in range(16)]
    rows_f32_6 = [BFloat16(rows_value_6[c]).to(Float32) for c in range(16)]
    y_product_6 = [mul(rows_f32_6[c], weights_value_6) for c in range(16)]
    rows_f32_7 = [BFloat16(rows_value_7[c]).to(Float32) for c in range(16)]
    y_product_7 = [mul(rows_f32_7[c], weights_value_7) for c in range(16)]
    rows_f32_8 = [BFloat16(rows_value_8[c]).to(Float32) for c in range(16)]
    y_product_8 = [mul(rows_f32_8[c], weights_value_8) for c in range(16)]
    y_sum = [y_product[c] + y_product_2[c] for c in range(16)]  # moe.py:230
    y_sum_2 = [y_sum[c] + y_product_3[c] for c in range(16)]
    y_sum_3 = [y_sum_2[c] + y_product_4[c] for c in range(16)]
    y_sum_4 = [y_sum_3[c] + y_product_5[c] for c in range(16)]
    y_sum_5 = [y_sum_4[c] + y_product_6[c] for c in range(16)]
    y_sum_6 = [y_sum_5[c] + y_product_7[c] for c in range(16)]
    y_sum_7 = [y_sum_6[c] + y_product_8[c] for c in range(16)]
    y_sum_bf16 = [Float32(y_sum_7[c]).to(BFloat16) for c in range(16)]  # moe.py:309
    for c in cutlass.range_constexpr(0, 16, 8):
        store_vector(y, (t, d[c]), y_sum_bf16[c:c + 8])


@cute.jit
def launch_combine_rows(
    place_ptr: cute.Pointer, rows_ptr: cute.Pointer, weights_ptr: cute.Pointer, y_ptr: cute.Pointer, R: Int32,
    errors_ptr: cute.Pointer, T: Int32, place_t_stride: Int64, rows_r_stride: Int64, weights_t_stride: Int64,
    y_t_stride: Int64, programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    place = cute.make_tensor(place_ptr, cute.make_layout((T, 8), stride=(place_t_stride, 1)))
    rows = cute.make_tensor(rows_ptr, cute.make_layout((R, 2048), stride=(rows_r_stride, 1)))
    weights = cute.make_tensor(weights_ptr, cute.make_layout((T, 8), stride=(weights_t_stride, 1)))
    y = cute.make_tensor(y_ptr, cute.make_layout((T, 2048), stride=(y_t_stride, 1)))
    combine_rows_rows(place, rows, weights, y, R, errors_ptr, T).launch(
        grid=(programs, 1, 1), block=(128, 1, 1), use_pdl=overlap, stream=stream,
    )


def call(kernels, place, rows, weights, y, R, T, place_t_stride, rows_r_stride, weights_t_stride, y_t_stride, errors):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T * 1
    if programs > 0:
        kernels.combine_rows(
            (programs,), place, rows, weights, y, R, errors, T, place_t_stride, rows_r_stride, weights_t_stride,
            y_t_stride
        )
