"""rope on gfx942, written by rlk 0.1.0: do not edit.

numerics: 9ecbade7ee57014e
schedule: tiles C=64, H=32, 4 warps, 1 stages, unroll 1
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
        cos_2 = tl.alloc_local((8,), "float32")
        sin_2 = tl.alloc_local((8,), "float32")
        total = tl.alloc_local((8,), "int32")
        at_most_2 = tl.alloc_local((8,), "bool")
        below_2 = tl.alloc_local((8,), "bool")
        both_2 = tl.alloc_local((8,), "bool")
        x_2 = tl.alloc_local((8,), "bfloat16")
        at_most_3 = tl.alloc_local((8,), "bool")
        below_3 = tl.alloc_local((8,), "bool")
        both_3 = tl.alloc_local((8,), "bool")
        x_3 = tl.alloc_local((8,), "bfloat16")
        as_f32 = tl.alloc_local((8,), "float32")
        as_f32_2 = tl.alloc_local((8,), "float32")
        product = tl.alloc_local((8,), "float32")
        product_2 = tl.alloc_local((8,), "float32")
        difference = tl.alloc_local((8,), "float32")
        as_bf16 = tl.alloc_local((8,), "bfloat16")
        product_3 = tl.alloc_local((8,), "float32")
        product_4 = tl.alloc_local((8,), "float32")
        total_2 = tl.alloc_local((8,), "float32")
        as_bf16_2 = tl.alloc_local((8,), "bfloat16")
        t = block
        h = thread % 32
        for c in tl.unroll(8):
            c_2[c] = thread // 32 + c * 8
        position_ids_2 = tl.alloc_var("int64", position_ids[t])  # model.py:70
        at_most = tl.alloc_var("bool", 0 <= position_ids_2)  # model.py:71
        as_i64 = tl.alloc_var("int64", tl.Cast("int64", P))
        below = tl.alloc_var("bool", position_ids_2 < as_i64)
        both = tl.alloc_var("bool", at_most & below)
        for c in tl.unroll(8):
            cos_2[c] = tl.if_then_else(both, cos[position_ids_2 * cos_p_stride + c_2[c]], f32(float("nan")))
            sin_2[c] = tl.if_then_else(both, sin[position_ids_2 * sin_p_stride + c_2[c]], f32(float("nan")))
            total[c] = c_2[c] + 64  # model.py:48
            at_most_2[c] = 0 <= c_2[c]  # model.py:49
            below_2[c] = c_2[c] < 128
            both_2[c] = at_most_2[c] & below_2[c]
            x_2[c] = tl.if_then_else(
                both_2[c], x[tl.int64(t) * x_t_stride + tl.int64(h) * x_h_stride + c_2[c]], tl.Cast("bfloat16", 0)
            )
            at_most_3[c] = 0 <= total[c]
            below_3[c] = total[c] < 128
            both_3[c] = at_most_3[c] & below_3[c]
            x_3[c] = tl.if_then_else(
                both_3[c], x[tl.int64(t) * x_t_stride + tl.int64(h) * x_h_stride + total[c]], tl.Cast("bfloat16", 0)
            )
            as_f32[c] = tl.Cast("float32", x_2[c])
            as_f32_2[c] = tl.Cast("float32", x_3[c])
            product[c] = as_f32[c] * cos_2[c]  # model.py:53
            product_2[c] = as_f32_2[c] * sin_2[c]
            difference[c] = product[c] - product_2[c]
            as_bf16[c] = tl.Cast("bfloat16", difference[c])
            product_3[c] = as_f32_2[c] * cos_2[c]  # model.py:54
            product_4[c] = as_f32[c] * sin_2[c]
            total_2[c] = product_3[c] + product_4[c]
            as_bf16_2[c] = tl.Cast("bfloat16", total_2[c])
            y[tl.int64(t) * y_t_stride + tl.int64(h) * y_h_stride + c_2[c]] = as_bf16[c]  # model.py:50
            y[tl.int64(t) * y_t_stride + tl.int64(h) * y_h_stride + total[c]] = as_bf16_2[c]


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
