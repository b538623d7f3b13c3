"""reported on gfx942, written by rlk 0.1.0: do not edit.

numerics: 82de1af30c1256ad
schedule: tiles B=2048, 4 warps, 1 stages, unroll 1
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
def reported(bad: memory("bad", "bool"), good: memory("good", "bool"), B: tl.int32, errors: memory("errors", "int32"), programs: tl.int32):
    # A block owns 2048 of B (rows). B: 2048 indices, 8 to each of 256 threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        b = tl.alloc_local((8,), "int32")
        b_inside = tl.alloc_local((8,), "bool")
        bad_2 = tl.alloc_local((8,), "bool")
        unless = tl.alloc_local((8,), "bool")
        for c in tl.unroll(8):
            b[c] = block * 2048 + thread + c * 256
            b_inside[c] = b[c] < B
            bad_2[c] = tl.if_then_else(b_inside[c], bad[b[c]], tl.Cast("bool", 0))  # packing.py:58
            if bad_2[c] & b_inside[c]:  # packing.py:58
                tl.atomic_max(errors[0], 1)  # packing.py:58
                tl.atomic_max(errors[1], b[c] + 1)  # packing.py:58
            unless[c] = tl.Not(bad_2[c])  # packing.py:59
            if b_inside[c]:  # packing.py:59
                good[b[c]] = unless[c]  # packing.py:59


def call(kernels, bad, good, B, errors):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((B + 2047) // 2048)
    if programs > 0:
        kernels.reported((programs,), bad, good, B, errors)
