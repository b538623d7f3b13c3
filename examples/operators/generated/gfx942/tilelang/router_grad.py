"""router_grad on gfx942, written by rlk 0.1.0: do not edit.

numerics: 00eecae45cad6990
schedule: tiles T=8, 2 warps, 1 stages, unroll 1
inputs:
  gates: f32 [T, E=128]
  d_gates: f32 [T, E=128]
outputs:
  d_logits: f32 [T, E=128]
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
def sum_over_e(x, x_reduce_smem, thread):
    # The sum over E, halving.
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(8):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(8):
        x[c] = add(x[c], x_reduce_smem[c, thread ^ 64])
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 32, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 16, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 8, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 4, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 1, width=64))


@tl.prim_func
def router_grad(
    gates: memory("gates", "float32"), d_gates: memory("d_gates", "float32"), d_logits: memory("d_logits", "float32"),
    T: tl.int32, gates_t_stride: tl.int64, d_gates_t_stride: tl.int64, d_logits_t_stride: tl.int64, programs: tl.int32
):
    # A block owns 8 of T (rows). E: 128 indices, 1 to each of 128 threads; T: 8 indices, 8 to each of 1 threads.
    with tl.Kernel(programs, threads=128) as block:
        thread = tl.get_thread_binding()
        f32_reduce_smem = tl.alloc_shared((8, 128), "float32", "shared")
        t = tl.alloc_local((8,), "int32")
        t_inside = tl.alloc_local((8,), "bool")
        gates_value = tl.alloc_local((8,), "float32")
        d_gates_value = tl.alloc_local((8,), "float32")
        gates_times_d_gates = tl.alloc_local((8,), "float32")
        level = tl.alloc_local((8,), "float32")
        d_gates_minus_level = tl.alloc_local((8,), "float32")
        d_logits_value = tl.alloc_local((8,), "float32")
        for c in tl.unroll(8):
            t[c] = block * 8 + c
            t_inside[c] = t[c] < T
        e = tl.alloc_var("int32", thread)  # router.py:39
        for c in tl.unroll(8):
            gates_value[c] = tl.if_then_else(
                t_inside[c], gates[tl.int64(t[c]) * gates_t_stride + e], tl.Cast("float32", 0)
            )
            d_gates_value[c] = tl.if_then_else(
                t_inside[c], d_gates[tl.int64(t[c]) * d_gates_t_stride + e], tl.Cast("float32", 0)
            )
            gates_times_d_gates[c] = gates_value[c] * d_gates_value[c]
            level[c] = gates_times_d_gates[c]
        sum_over_e(level, f32_reduce_smem, thread)
        for c in tl.unroll(8):  # router.py:40
            d_gates_minus_level[c] = d_gates_value[c] - level[c]
            d_logits_value[c] = gates_value[c] * d_gates_minus_level[c]
            if t_inside[c]:
                d_logits[tl.int64(t[c]) * d_logits_t_stride + e] = d_logits_value[c]


def call(kernels, gates, d_gates, d_logits, T, gates_t_stride, d_gates_t_stride, d_logits_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 7) // 8)
    if programs > 0:
        kernels.router_grad(
            (programs,), gates, d_gates, d_logits, T, gates_t_stride, d_gates_t_stride, d_logits_t_stride
        )
