"""embedding_grad on gfx942, written by rlk 0.1.0: do not edit.

numerics: fb4f8bccb4e49366
schedule: tiles D=512, 8 warps, 1 stages, unroll 1
"""

import struct

import tilelang.language as tl


def memory(name, dtype):
    """The elements of a tensor in a row: addresses are counted from the first."""
    return tl.Tensor((tl.dynamic(f"{name}_size", "int64"),), dtype)


def f32(number):
    """A constant by its bits: HIP text has seven digits, and a sum with 0.0 would be folded away."""
    return tl.reinterpret(tl.uint32(struct.unpack("<I", struct.pack("<f", number))[0]), "float32")


@tl.macro
def add(a, b):
    # A term of a sum.
    return a + b


@tl.macro
def sum_over_s_lane(x):
    # The sum over S.lane, halving.
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 4, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 1, width=64))


@tl.prim_func
def embedding_grad(d_y: memory("d_y", "bfloat16"), order: memory("order", "int64"), segments: memory("segments", "int64"), d_weight: memory("d_weight", "bfloat16"), T: tl.int32, d_y_t_stride: tl.int64, d_weight_v_stride: tl.int64, programs: tl.int32):
    # A block owns 1 of V, 512 of D (col_fold). S.lane: 8 indices, 1 to each of 8 threads; D: 512 indices, 8 to each of 64 threads.
    with tl.Kernel(programs, threads=512) as block:
        thread = tl.get_thread_binding()
        d = tl.alloc_local((8,), "int32")
        s = tl.alloc_local((8,), "float32")
        d_y_2 = tl.alloc_local((8,), "bfloat16")
        as_f32 = tl.alloc_local((8,), "float32")
        sum_s_lane = tl.alloc_local((8,), "float32")
        s_3 = tl.alloc_local((8,), "float32")
        s_4 = tl.alloc_local((8,), "float32")
        d_y_3 = tl.alloc_local((8,), "bfloat16")
        as_f32_2 = tl.alloc_local((8,), "float32")
        chosen = tl.alloc_local((8,), "float32")
        sum_s_lane_2 = tl.alloc_local((8,), "float32")
        s_6 = tl.alloc_local((8,), "float32")
        total_5 = tl.alloc_local((8,), "float32")
        as_bf16 = tl.alloc_local((8,), "bfloat16")
        rest = tl.truncdiv(block, 8)
        v = rest
        for c in tl.unroll(8):
            d[c] = tl.truncmod(block, 8) * 512 + thread // 8 + c * 64
        writes = (thread & 7) == 0
        at_most = tl.alloc_var("bool", 0 <= v)  # model.py:101
        below = tl.alloc_var("bool", v < 151937)  # model.py:101
        both = tl.alloc_var("bool", at_most & below)  # model.py:101
        segments_2 = tl.alloc_var("int64", tl.if_then_else(both, segments[v], tl.Cast("int64", 0)))  # model.py:101
        total = tl.alloc_var("int32", v + 1)  # model.py:101
        at_most_2 = tl.alloc_var("bool", 0 <= total)  # model.py:101
        below_2 = tl.alloc_var("bool", total < 151937)  # model.py:101
        both_2 = tl.alloc_var("bool", at_most_2 & below_2)  # model.py:101
        segments_3 = tl.alloc_var("int64", tl.if_then_else(both_2, segments[total], tl.Cast("int64", 0)))  # model.py:101
        as_i32 = tl.alloc_var("int32", tl.Cast("int32", segments_2))  # model.py:101
        as_i32_2 = tl.alloc_var("int32", tl.Cast("int32", segments_3))  # model.py:101
        difference = tl.alloc_var("int32", as_i32_2 - as_i32)  # model.py:101
        total_2 = tl.alloc_var("int32", difference + 7)  # model.py:101
        steps = tl.alloc_var("int32", tl.truncdiv(total_2, tl.int32(8)))  # model.py:101
        full_steps = tl.alloc_var("int32", tl.truncdiv(difference, tl.int32(8)))  # model.py:101
        s_lane = tl.alloc_var("int32", thread % 8)  # model.py:101
        as_i64 = tl.alloc_var("int64", tl.Cast("int64", T))  # model.py:102
        for c in tl.unroll(8):  # model.py:101
            s[c] = f32(-0.0)  # model.py:101
        for s_step in tl.serial(0, full_steps):  # model.py:101
            product = tl.alloc_var("int32", s_step * 8)  # model.py:101
            total_3 = tl.alloc_var("int32", as_i32 + product)  # model.py:101
            s_2 = tl.alloc_var("int32", total_3 + s_lane)  # model.py:101
            order_2 = tl.alloc_var("int64", order[s_2])  # model.py:102
            at_most_3 = tl.alloc_var("bool", 0 <= order_2)  # model.py:102
            below_3 = tl.alloc_var("bool", order_2 < as_i64)  # model.py:102
            both_3 = tl.alloc_var("bool", at_most_3 & below_3)  # model.py:102
            for c in tl.unroll(8):  # model.py:102
                d_y_2[c] = tl.if_then_else(both_3, d_y[order_2 * d_y_t_stride + d[c]], tl.Cast("bfloat16", 0))  # model.py:102
                as_f32[c] = tl.Cast("float32", d_y_2[c])  # model.py:102
                sum_s_lane[c] = as_f32[c]  # model.py:101
            sum_over_s_lane(sum_s_lane)  # model.py:101
            for c in tl.unroll(8):  # model.py:101
                s_3[c] = s[c] + sum_s_lane[c]  # model.py:101
                s[c] = s_3[c]  # model.py:101
        for c in tl.unroll(8):  # model.py:101
            s_4[c] = s[c]  # model.py:101
        for s_step_2 in tl.serial(full_steps, steps):  # model.py:101
            product_2 = tl.alloc_var("int32", s_step_2 * 8)  # model.py:101
            total_4 = tl.alloc_var("int32", as_i32 + product_2)  # model.py:101
            s_5 = tl.alloc_var("int32", total_4 + s_lane)  # model.py:101
            exists = tl.alloc_var("bool", s_5 < as_i32_2)  # model.py:101
            order_3 = tl.alloc_var("int64", tl.if_then_else(exists, order[s_5], tl.Cast("int64", 0)))  # model.py:102
            at_most_4 = tl.alloc_var("bool", 0 <= order_3)  # model.py:102
            below_4 = tl.alloc_var("bool", order_3 < as_i64)  # model.py:102
            both_4 = tl.alloc_var("bool", at_most_4 & below_4)  # model.py:102
            both_5 = tl.alloc_var("bool", exists & both_4)  # model.py:102
            for c in tl.unroll(8):  # model.py:102
                d_y_3[c] = tl.if_then_else(both_5, d_y[order_3 * d_y_t_stride + d[c]], tl.Cast("bfloat16", 0))  # model.py:102
                as_f32_2[c] = tl.Cast("float32", d_y_3[c])  # model.py:102
                chosen[c] = tl.Select(exists, as_f32_2[c], f32(-0.0))  # model.py:101
                sum_s_lane_2[c] = chosen[c]  # model.py:101
            sum_over_s_lane(sum_s_lane_2)  # model.py:101
            for c in tl.unroll(8):  # model.py:101
                s_6[c] = s_4[c] + sum_s_lane_2[c]  # model.py:101
                s_4[c] = s_6[c]  # model.py:101
        for c in tl.unroll(8):  # model.py:104
            total_5[c] = s_4[c] + f32(0.0)  # model.py:104
            as_bf16[c] = tl.Cast("bfloat16", total_5[c])  # model.py:104
            if writes:  # model.py:104
                d_weight[tl.int64(v) * d_weight_v_stride + d[c]] = as_bf16[c]  # model.py:104


def call(kernels, d_y, order, segments, d_weight, T, d_y_t_stride, d_weight_v_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = 151936 * 8
    if programs > 0:
        kernels.embedding_grad((programs,), d_y, order, segments, d_weight, T, d_y_t_stride, d_weight_v_stride)
