"""take_rows on gfx942, written by rlk 0.1.0: do not edit.

numerics: c3115081ff687c05
schedule: tiles D=2048, 4 warps, 1 stages, unroll 1
"""

import triton
import triton.language as tl


@triton.jit
def take_rows(source_ptr, x_ptr, back_ptr, y_ptr, R, x_r_stride, errors_ptr, y_t_stride):
    # A program owns 1 of T, 2048 of D (rows).
    program = tl.program_id(0)
    program_2 = program // 2
    d = (program % 2) * 2048 + tl.arange(0, 2048)
    t = program_2
    source = tl.load(source_ptr + t)  # packing.py:38
    at_most = source >= 0  # packing.py:38
    as_i64 = R.to(tl.int64)  # packing.py:38
    below = source < as_i64  # packing.py:38
    both = at_most & below  # packing.py:38
    back = tl.load(back_ptr + source, mask=both, other=0)  # packing.py:38
    x = tl.load(x_ptr + source * x_r_stride + d, mask=both, other=0.0)  # packing.py:40
    as_i64_2 = t.to(tl.int64)  # packing.py:38
    differs = back != as_i64_2  # packing.py:38
    both_2 = at_most & differs  # packing.py:39
    bad_row = tl.where(both_2, t + 1, 0)  # packing.py:39
    tl.atomic_max(errors_ptr, 1, mask=bad_row > 0, sem="relaxed")  # packing.py:39
    tl.atomic_max(errors_ptr + 1, bad_row, mask=bad_row > 0, sem="relaxed")  # packing.py:39
    tl.store(y_ptr + t.to(tl.int64) * y_t_stride + d, x)  # packing.py:40


def call(kernels, source, x, back, y, R, T, x_r_stride, y_t_stride, errors):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T * 2
    if programs > 0:
        kernels.take_rows((programs,), source, x, back, y, R, x_r_stride, errors, y_t_stride)
