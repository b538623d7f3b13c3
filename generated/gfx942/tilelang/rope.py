"""rope on gfx942, written by rlk 0.1.0: do not edit.

numerics: 9ecbade7ee57014e
schedule: tiles C=64, H=32, 4 warps, 1 stages, unroll 1
inputs:
  x: bf16 [T, H=32, E=128]
  cos: f32 [P, C=64]
  sin: f32 [P, C=64]
  position_ids: i64 [T]
outputs:
  y: bf16 [T, H=32, E=128]
"""

import struct

import tilelang.language as tl


def memory(name, dtype):
    """The elements of a tensor in a row: addresses are counted from the first."""
    return tl.Tensor((tl.dynamic(f"{name}_size", "int64"),), dtype)


def f32(number):
    """A constant by its bits: HIP text has seven digits, and a sum with 0.0 would be folded away."""
    return tl.reinterpret(tl.uint32(struct.unpack("<I", struct.pack("<f", number))[0]), "float32")


@tl.prim_func
def rope(
    x: memory("x", "bfloat16"), cos: memory("cos", "float32"), sin: memory("sin", "float32"),
    position_ids: memory("position_ids", "int64"), y: memory("y", "bfloat16"), P: tl.int32, cos_p_stride: tl.int64,
    sin_p_stride: tl.int64, x_t_stride: tl.int64, x_h_stride: tl.int64, y_t_stride: tl.int64, y_h_stride: tl.int64,
    T: tl.int32, programs: tl.int32
):
    # A block owns 1 of T, 32 of H, 64 of C (rows). H: 32 indices, 1 to each of 32 threads; C: 64 indices, 8 to each of
    # 8 threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        c_2 = tl.alloc_local((8,), "int32")
        cos_value = tl.alloc_local((8,), "float32")
        sin_value = tl.alloc_local((8,), "float32")
        second = tl.alloc_local((8,), "int32")
        c_ge_0 = tl.alloc_local((8,), "bool")
        c_lt_128 = tl.alloc_local((8,), "bool")
        x_guard = tl.alloc_local((8,), "bool")
        x_value = tl.alloc_local((8,), "bfloat16")
        second_ge_0 = tl.alloc_local((8,), "bool")
        second_lt_128 = tl.alloc_local((8,), "bool")
        x_guard_2 = tl.alloc_local((8,), "bool")
        x_value_2 = tl.alloc_local((8,), "bfloat16")
        a = tl.alloc_local((8,), "float32")
        b = tl.alloc_local((8,), "float32")
        a_times_cos = tl.alloc_local((8,), "float32")
        b_times_sin = tl.alloc_local((8,), "float32")
        y_difference = tl.alloc_local((8,), "float32")
        y_difference_bf16 = tl.alloc_local((8,), "bfloat16")
        b_times_cos = tl.alloc_local((8,), "float32")
        a_times_sin = tl.alloc_local((8,), "float32")
        y_sum = tl.alloc_local((8,), "float32")
        y_sum_bf16 = tl.alloc_local((8,), "bfloat16")
        t = block
        h = thread % 32
        for c in tl.unroll(8):
            c_2[c] = thread // 32 + c * 8
        position_ids_value = tl.alloc_var("int64", position_ids[t])  # model.py:120
        position_ids_ge_0 = tl.alloc_var("bool", 0 <= position_ids_value)  # model.py:121
        P_i64 = tl.alloc_var("int64", tl.Cast("int64", P))
        cos_guard_below = tl.alloc_var("bool", position_ids_value < P_i64)
        cos_guard = tl.alloc_var("bool", position_ids_ge_0 & cos_guard_below)
        for c in tl.unroll(8):
            cos_value[c] = tl.if_then_else(
                cos_guard, cos[position_ids_value * cos_p_stride + c_2[c]], f32(float("nan"))
            )
            sin_value[c] = tl.if_then_else(
                cos_guard, sin[position_ids_value * sin_p_stride + c_2[c]], f32(float("nan"))
            )
            second[c] = c_2[c] + 64  # model.py:105
            c_ge_0[c] = 0 <= c_2[c]  # model.py:106
            c_lt_128[c] = c_2[c] < 128
            x_guard[c] = c_ge_0[c] & c_lt_128[c]
            x_value[c] = tl.if_then_else(
                x_guard[c], x[tl.int64(t) * x_t_stride + tl.int64(h) * x_h_stride + c_2[c]], tl.Cast("bfloat16", 0)
            )
            second_ge_0[c] = 0 <= second[c]
            second_lt_128[c] = second[c] < 128
            x_guard_2[c] = second_ge_0[c] & second_lt_128[c]
            x_value_2[c] = tl.if_then_else(
                x_guard_2[c], x[tl.int64(t) * x_t_stride + tl.int64(h) * x_h_stride + second[c]], tl.Cast("bfloat16", 0)
            )
            a[c] = tl.Cast("float32", x_value[c])
            b[c] = tl.Cast("float32", x_value_2[c])
            a_times_cos[c] = a[c] * cos_value[c]  # model.py:108
            b_times_sin[c] = b[c] * sin_value[c]
            y_difference[c] = a_times_cos[c] - b_times_sin[c]
            y_difference_bf16[c] = tl.Cast("bfloat16", y_difference[c])
            b_times_cos[c] = b[c] * cos_value[c]  # model.py:109
            a_times_sin[c] = a[c] * sin_value[c]
            y_sum[c] = b_times_cos[c] + a_times_sin[c]
            y_sum_bf16[c] = tl.Cast("bfloat16", y_sum[c])
            y[tl.int64(t) * y_t_stride + tl.int64(h) * y_h_stride + c_2[c]] = y_difference_bf16[c]  # model.py:115
            y[tl.int64(t) * y_t_stride + tl.int64(h) * y_h_stride + second[c]] = y_sum_bf16[c]


def call(
    kernels, x, cos, sin, position_ids, y, P, T, cos_p_stride, sin_p_stride, x_t_stride, x_h_stride, y_t_stride,
    y_h_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T * 1 * 1
    if programs > 0:
        kernels.rope(
            (programs,), x, cos, sin, position_ids, y, P, cos_p_stride, sin_p_stride, x_t_stride, x_h_stride,
            y_t_stride, y_h_stride, T
        )
