"""take_rows_grad on gfx942, written by rlk 0.1.0: do not edit.

numerics: fe78123907db09c6
schedule: tiles D=2048, 4 warps, 1 stages, unroll 1
"""

import triton
import triton.language as tl


@triton.jit
def take_rows_grad(back_ptr, d_y_ptr, d_x_ptr, T, d_y_t_stride, d_x_r_stride):
    # A program owns 1 of R, 2048 of D (rows).
    program = tl.program_id(0)
    program_2 = program // 2
    d = (program % 2) * 2048 + tl.arange(0, 2048)
    r = program_2
    back = tl.load(back_ptr + r)  # packing.py:46
    at_most = back >= 0  # packing.py:46
    as_i64 = T.to(tl.int64)  # packing.py:46
    below = back < as_i64  # packing.py:46
    both = at_most & below  # packing.py:46
    d_y = tl.load(d_y_ptr + back * d_y_t_stride + d, mask=both, other=0.0)  # packing.py:46
    tl.store(d_x_ptr + r.to(tl.int64) * d_x_r_stride + d, d_y)  # packing.py:46


def call(kernels, back, d_y, d_x, T, R, d_y_t_stride, d_x_r_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = R * 2
    if programs > 0:
        kernels.take_rows_grad((programs,), back, d_y, d_x, T, d_y_t_stride, d_x_r_stride)
