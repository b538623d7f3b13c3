"""linear_attention on gfx942, written by rlk 0.1.0: do not edit.

numerics: a53b837bfbfc08ff
schedule: tiles 1, 1 warps, 3 stages, unroll 1
inputs:
  q: f32 [T, K=64]
  k: f32 [T, K=64]
  v: f32 [T, W=64]
  gate: f32 [T]
  begin: i32 [B]
  end: i32 [B]
outputs:
  o: f32 [T, W=64]
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
def sum_over_k(x):
    # The sum over K, halving.
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 32, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 16, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 8, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 4, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 1, width=64))


@tl.prim_func
def linear_attention(
    q: memory("q", "float32"), k: memory("k", "float32"), v: memory("v", "float32"), gate: memory("gate", "float32"),
    begin: memory("begin", "int32"), end: memory("end", "int32"), o: memory("o", "float32"), T: tl.int32,
    v_t_stride: tl.int64, k_t_stride: tl.int64, q_t_stride: tl.int64, o_t_stride: tl.int64, B: tl.int32,
    programs: tl.int32
):
    # A block owns 1 of B, 1 of W (rows). K: 64 indices, 1 to each of 64 threads.
    with tl.Kernel(programs, threads=64) as block:
        thread = tl.get_thread_binding()
        s_state = tl.alloc_var("float32")
        o_value = tl.alloc_local((1,), "float32")
        rest = tl.truncdiv(block, 64)
        b = rest
        w = tl.truncmod(block, 64)
        writes = thread == 0
        begin_value = tl.alloc_var("int32", begin[b])  # linear_attention.py:31
        end_value = tl.alloc_var("int32", end[b])
        end_minus_begin = tl.alloc_var("int32", end_value - begin_value)
        k_value = tl.alloc_var("int32", thread)  # linear_attention.py:32
        s_state = f32(0.0)  # linear_attention.py:31
        for s_step in tl.serial(0, end_minus_begin):
            s = tl.alloc_var("int32", begin_value + s_step)
            s_ge_0 = tl.alloc_var("bool", 0 <= s)  # linear_attention.py:32
            s_lt_T = tl.alloc_var("bool", s < T)
            gate_guard = tl.alloc_var("bool", s_ge_0 & s_lt_T)
            gate_value = tl.alloc_var("float32", tl.if_then_else(gate_guard, gate[s], tl.Cast("float32", 0)))
            v_value = tl.alloc_var(
                "float32", tl.if_then_else(gate_guard, v[tl.int64(s) * v_t_stride + w], tl.Cast("float32", 0))
            )
            k_value_2 = tl.alloc_var(
                "float32", tl.if_then_else(gate_guard, k[tl.int64(s) * k_t_stride + k_value], tl.Cast("float32", 0))
            )
            q_value = tl.alloc_var(  # linear_attention.py:33
                "float32", tl.if_then_else(gate_guard, q[tl.int64(s) * q_t_stride + k_value], tl.Cast("float32", 0))
            )
            new_product = tl.alloc_var("float32", gate_value * s_state)  # linear_attention.py:32
            k_times_v = tl.alloc_var("float32", k_value_2 * v_value)
            new_2 = tl.alloc_var("float32", new_product + k_times_v)
            q_times_new = tl.alloc_var("float32", q_value * new_2)  # linear_attention.py:33
            o_value[0] = q_times_new
            sum_over_k(o_value)
            o_value_2 = o_value[0]
            if writes:  # linear_attention.py:34
                o[tl.int64(s) * o_t_stride + w] = o_value_2
            s_state = new_2


def call(kernels, q, k, v, gate, begin, end, o, T, B, v_t_stride, k_t_stride, q_t_stride, o_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = B * 64
    if programs > 0:
        kernels.linear_attention(
            (programs,), q, k, v, gate, begin, end, o, T, v_t_stride, k_t_stride, q_t_stride, o_t_stride, B
        )
