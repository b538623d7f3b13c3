"""combine_rows_grad on gfx942, written by rlk 0.1.0: do not edit.

numerics: 4e8fa1c6d8864863
schedule: tiles 1, 4 warps, 1 stages, unroll 1
inputs:
  order: i32 [R]
  rows: bf16 [R, D=2048]
  weights: f32 [T, K=8]
  d_y: bf16 [T, D=2048]
outputs:
  d_weights: f32 [T, K=8]
  d_rows: bf16 [R, D=2048]
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
def sum_over_d(x, x_reduce_smem, thread):
    # The sum over D, vector8.
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 4, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 1, width=64))
    for c in tl.unroll(4):
        x[c] = add(x[c // 4 * 8 + c % 4], x[c // 4 * 8 + c % 4 + 4])
    for c in tl.unroll(2):
        x[c] = add(x[c // 2 * 4 + c % 2], x[c // 2 * 4 + c % 2 + 2])
    for c in tl.unroll(1):
        x[c] = add(x[2 * c], x[2 * c + 1])
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(1):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(1):
        x[c] = add(x[c], x_reduce_smem[c, thread ^ 128])
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(1):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(1):
        x[c] = add(x[c], x_reduce_smem[c, thread ^ 64])
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 32, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 16, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 8, width=64))


@tl.prim_func
def combine_rows_grad(
    order: memory("order", "int32"), rows: memory("rows", "bfloat16"), weights: memory("weights", "float32"),
    d_y: memory("d_y", "bfloat16"), d_weights: memory("d_weights", "float32"), d_rows: memory("d_rows", "bfloat16"),
    T: tl.int32, weights_t_stride: tl.int64, d_y_t_stride: tl.int64, rows_r_stride: tl.int64,
    d_weights_t_stride: tl.int64, d_rows_r_stride: tl.int64, R: tl.int32, programs: tl.int32
):
    # A block owns 1 of R (rows). D: 2048 indices, 8 to each of 256 threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        f32_reduce_smem = tl.alloc_shared((8, 256), "float32", "shared")
        d = tl.alloc_local((8,), "int32")
        d_y_value = tl.alloc_local((8,), "bfloat16")
        rows_value = tl.alloc_local((8,), "bfloat16")
        d_2 = tl.alloc_local((8,), "float32")
        rows_f32 = tl.alloc_local((8,), "float32")
        slope_product = tl.alloc_local((8,), "float32")
        slope = tl.alloc_local((8,), "float32")
        d_times_weights = tl.alloc_local((8,), "float32")
        d_times_weights_bf16 = tl.alloc_local((8,), "bfloat16")
        r = block
        writes = thread == 0
        order_value = tl.alloc_var("int32", order[r])  # moe.py:318
        token = tl.alloc_var("int32", tl.truncdiv(order_value, tl.int32(8)))
        choice = tl.alloc_var("int32", tl.truncmod(order_value, tl.int32(8)))
        token_ge_0 = tl.alloc_var("bool", 0 <= token)  # moe.py:319
        token_lt_T = tl.alloc_var("bool", token < T)
        d_y_guard = tl.alloc_var("bool", token_ge_0 & token_lt_T)
        choice_ge_0 = tl.alloc_var("bool", 0 <= choice)  # moe.py:320
        choice_lt_8 = tl.alloc_var("bool", choice < 8)
        weights_guard = tl.alloc_var("bool", choice_ge_0 & choice_lt_8)
        weights_guard_2 = tl.alloc_var("bool", d_y_guard & weights_guard)
        weights_value = tl.alloc_var(
            "float32",
            tl.if_then_else(
                weights_guard_2, weights[tl.int64(token) * weights_t_stride + choice], tl.Cast("float32", 0)
            )
        )
        for c in tl.unroll(8):  # moe.py:319
            d[c] = thread + c * 256
            d_y_value[c] = tl.if_then_else(
                d_y_guard, d_y[tl.int64(token) * d_y_t_stride + d[c]], tl.Cast("bfloat16", 0)
            )
            rows_value[c] = rows[tl.int64(r) * rows_r_stride + d[c]]  # moe.py:321
            d_2[c] = tl.Cast("float32", d_y_value[c])  # moe.py:319
            rows_f32[c] = tl.Cast("float32", rows_value[c])  # moe.py:321
            slope_product[c] = rows_f32[c] * d_2[c]
            slope[c] = slope_product[c]
        sum_over_d(slope, f32_reduce_smem, thread)
        slope_2 = slope[0]
        if writes:  # moe.py:323
            d_weights[tl.int64(token) * d_weights_t_stride + choice] = slope_2
        for c in tl.unroll(8):  # moe.py:325
            d_times_weights[c] = d_2[c] * weights_value
            d_times_weights_bf16[c] = tl.Cast("bfloat16", d_times_weights[c])
            d_rows[tl.int64(r) * d_rows_r_stride + d[c]] = d_times_weights_bf16[c]


def call(
    kernels, order, rows, weights, d_y, d_weights, d_rows, T, R, weights_t_stride, d_y_t_stride, rows_r_stride,
    d_weights_t_stride, d_rows_r_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = R
    if programs > 0:
        kernels.combine_rows_grad(
            (programs,), order, rows, weights, d_y, d_weights, d_rows, T, weights_t_stride, d_y_t_stride, rows_r_stride,
            d_weights_t_stride, d_rows_r_stride, R
        )
