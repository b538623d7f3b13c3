"""take_whole on gfx942, written by rlk 0.1.0: do not edit.

numerics: 200718c7f438a0d7
schedule: tiles D=2048, 4 warps, 1 stages, unroll 1
"""

import triton
import triton.language as tl


@triton.jit
def take_whole(source_ptr, x_ptr, y_ptr, R, x_r_stride, y_t_stride):
    # A program owns 1 of T, 2048 of D (rows).
    program = tl.program_id(0)
    program_2 = program // 2
    d = (program % 2) * 2048 + tl.arange(0, 2048)
    t = program_2
    source = tl.load(source_ptr + t)  # packing.py:52
    at_most = source >= 0  # packing.py:52
    as_i64 = R.to(tl.int64)  # packing.py:52
    below = source < as_i64  # packing.py:52
    both = at_most & below  # packing.py:52
    x = tl.load(x_ptr + source * x_r_stride + d, mask=both, other=0)  # packing.py:52
    tl.store(y_ptr + t.to(tl.int64) * y_t_stride + d, x)  # packing.py:52


def call(kernels, source, x, y, R, T, x_r_stride, y_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T * 2
    if programs > 0:
        kernels.take_whole((programs,), source, x, y, R, x_r_stride, y_t_stride)
