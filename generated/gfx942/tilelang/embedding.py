"""embedding on gfx942, written by rlk 0.1.0: do not edit.

numerics: 25fa30a402e64126
schedule: tiles D=2048, 4 warps, 1 stages, unroll 1
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
def embedding(ids: memory("ids", "int64"), weight: memory("weight", "bfloat16"), y: memory("y", "bfloat16"), weight_v_stride: tl.int64, errors: memory("errors", "int32"), y_t_stride: tl.int64, T: tl.int32, programs: tl.int32):
    # A block owns 1 of T, 2048 of D (rows). D: 2048 indices, 8 to each of 256 threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        d = tl.alloc_local((8,), "int32")
        weight_2 = tl.alloc_local((8,), "bfloat16")
        rest = tl.truncdiv(block, 2)
        t = rest
        for c in tl.unroll(8):
            d[c] = tl.truncmod(block, 2) * 2048 + thread + c * 256
        writes = thread == 0
        ids_2 = tl.alloc_var("int64", ids[t])  # model.py:88
        at_most = tl.alloc_var("bool", 0 <= ids_2)  # model.py:90
        below = tl.alloc_var("bool", ids_2 < 151936)  # model.py:90
        both = tl.alloc_var("bool", at_most & below)  # model.py:90
        as_bf16 = tl.alloc_var("bfloat16", tl.Cast("bfloat16", f32(float("nan"))))  # model.py:90
        for c in tl.unroll(8):  # model.py:90
            weight_2[c] = tl.if_then_else(both, weight[ids_2 * weight_v_stride + d[c]], as_bf16)  # model.py:90
        below_2 = tl.alloc_var("bool", ids_2 < 0)  # model.py:89
        at_most_2 = tl.alloc_var("bool", 151936 <= ids_2)  # model.py:89
        either = tl.alloc_var("bool", below_2 | at_most_2)  # model.py:89
        if either & writes:  # model.py:89
            tl.atomic_max(errors[0], 1)  # model.py:89
            tl.atomic_max(errors[1], t + 1)  # model.py:89
        for c in tl.unroll(8):  # model.py:90
            y[tl.int64(t) * y_t_stride + d[c]] = weight_2[c]  # model.py:90


def call(kernels, ids, weight, y, T, weight_v_stride, y_t_stride, errors):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T * 2
    if programs > 0:
        kernels.embedding((programs,), ids, weight, y, weight_v_stride, errors, y_t_stride, T)
