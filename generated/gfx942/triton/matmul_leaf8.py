"""matmul_leaf8 on gfx942, written by rlk 0.1.0: do not edit.

numerics: 65e0988e9031a8ff
schedule: tiles N=256, T=128, 8 warps, 1 stages, unroll 1, depth 64, group 16
schedule: tiles N=256, T=128, 8 warps, 1 stages, unroll 1, depth 64, group 16, 4 parts
schedule: tiles N=256, T=128, 8 warps, 1 stages, unroll 1, depth 64, group 16, 4 parts
schedule: tiles N=256, T=128, 8 warps, 1 stages, unroll 1, depth 64, group 16, 4 parts
"""

import triton
import triton.language as tl


@triton.jit
def halves(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    # The lower and the upper columns: an index bit that each thread holds both values of.
    return tl.split(tl.permute(tl.reshape(x, (ROWS, 2, COLUMNS)), (0, 2, 1)))


@triton.jit
def matmul_leaf8_0(x_ptr, w_ptr, merged_leaf8_0_ptr, T, x_t_stride, w_n_stride, merged_leaf8_0_t_stride, K_piece):
    # A program owns 128 of T, 256 of N (dot_map).
    program = tl.program_id(0)
    band = 16 * 16
    band_first = program // band * 16
    band_rows = tl.minimum(((T + 127) // 128) - band_first, 16)
    t_first = (band_first + program % band % band_rows) * 128
    t = t_first + tl.arange(0, 128)[:, None]
    t_inside = t < T
    column = program % band // band_rows
    n_first = column * 256
    n = n_first + tl.arange(0, 256)[None, :]
    k_piece_begin = K_piece * 512  # matmul.py:38
    z = tl.zeros((128, 256), tl.float32)  # matmul.py:38
    x_start = x_ptr + k_piece_begin + t.to(tl.int64) * x_t_stride  # matmul.py:38
    w_start = w_ptr + k_piece_begin + n.to(tl.int64) * w_n_stride  # matmul.py:38
    for k_within_first in tl.range(0, 512, 64):  # matmul.py:38
        k_within = k_within_first + tl.arange(0, 64)  # matmul.py:38
        x = tl.load(x_start + k_within[None, :], mask=t_inside, other=0.0)  # matmul.py:38
        w = tl.load(w_start + k_within[:, None])  # matmul.py:38
        z = tl.dot(x, w, z)  # matmul.py:38
    tl.store(merged_leaf8_0_ptr + t.to(tl.int64) * merged_leaf8_0_t_stride + n, z, mask=t_inside)  # matmul.py:38


@triton.jit
def matmul_leaf8_1(x_ptr, w_ptr, merged_leaf8_0_ptr, merged_leaf8_1_ptr, T, x_t_stride, w_n_stride, merged_leaf8_0_t_stride, merged_leaf8_1_t_stride, K_piece):
    # A program owns 128 of T, 256 of N (dot_map).
    program = tl.program_id(0)
    band = 16 * 16
    band_first = program // band * 16
    band_rows = tl.minimum(((T + 127) // 128) - band_first, 16)
    t_first = (band_first + program % band % band_rows) * 128
    t = t_first + tl.arange(0, 128)[:, None]
    t_inside = t < T
    column = program % band // band_rows
    n_first = column * 256
    n = n_first + tl.arange(0, 256)[None, :]
    k_piece_begin = K_piece * 512  # matmul.py:38
    z = tl.zeros((128, 256), tl.float32)  # matmul.py:38
    x_start = x_ptr + k_piece_begin + t.to(tl.int64) * x_t_stride  # matmul.py:38
    w_start = w_ptr + k_piece_begin + n.to(tl.int64) * w_n_stride  # matmul.py:38
    for k_within_first in tl.range(0, 512, 64):  # matmul.py:38
        k_within = k_within_first + tl.arange(0, 64)  # matmul.py:38
        x = tl.load(x_start + k_within[None, :], mask=t_inside, other=0.0)  # matmul.py:38
        w = tl.load(w_start + k_within[:, None])  # matmul.py:38
        z = tl.dot(x, w, z)  # matmul.py:38
    low, high = halves(z, 128, 128)  # matmul.py:38
    low_2, high_2 = halves(low, 128, 64)  # matmul.py:38
    low_3, high_3 = halves(high, 128, 64)  # matmul.py:38
    n_2 = n_first + tl.arange(0, 64)[None, :]  # matmul.py:38
    earlier = tl.load(merged_leaf8_0_ptr + t.to(tl.int64) * merged_leaf8_0_t_stride + n_2, mask=t_inside, other=0.0)  # matmul.py:38
    merged = earlier + low_2  # matmul.py:38
    tl.store(merged_leaf8_1_ptr + t.to(tl.int64) * merged_leaf8_1_t_stride + n_2, merged, mask=t_inside)  # matmul.py:38
    n_2 = n_first + 64 + tl.arange(0, 64)[None, :]  # matmul.py:38
    earlier = tl.load(merged_leaf8_0_ptr + t.to(tl.int64) * merged_leaf8_0_t_stride + n_2, mask=t_inside, other=0.0)  # matmul.py:38
    merged = earlier + high_2  # matmul.py:38
    tl.store(merged_leaf8_1_ptr + t.to(tl.int64) * merged_leaf8_1_t_stride + n_2, merged, mask=t_inside)  # matmul.py:38
    n_2 = n_first + 128 + tl.arange(0, 64)[None, :]  # matmul.py:38
    earlier = tl.load(merged_leaf8_0_ptr + t.to(tl.int64) * merged_leaf8_0_t_stride + n_2, mask=t_inside, other=0.0)  # matmul.py:38
    merged = earlier + low_3  # matmul.py:38
    tl.store(merged_leaf8_1_ptr + t.to(tl.int64) * merged_leaf8_1_t_stride + n_2, merged, mask=t_inside)  # matmul.py:38
    n_2 = n_first + 192 + tl.arange(0, 64)[None, :]  # matmul.py:38
    earlier = tl.load(merged_leaf8_0_ptr + t.to(tl.int64) * merged_leaf8_0_t_stride + n_2, mask=t_inside, other=0.0)  # matmul.py:38
    merged = earlier + high_3  # matmul.py:38
    tl.store(merged_leaf8_1_ptr + t.to(tl.int64) * merged_leaf8_1_t_stride + n_2, merged, mask=t_inside)  # matmul.py:38


@triton.jit
def matmul_leaf8_2(x_ptr, w_ptr, merged_leaf8_0_ptr, merged_leaf8_1_ptr, merged_leaf8_2_ptr, T, x_t_stride, w_n_stride, merged_leaf8_0_t_stride, merged_leaf8_1_t_stride, merged_leaf8_2_t_stride, K_piece):
    # A program owns 128 of T, 256 of N (dot_map).
    program = tl.program_id(0)
    band = 16 * 16
    band_first = program // band * 16
    band_rows = tl.minimum(((T + 127) // 128) - band_first, 16)
    t_first = (band_first + program % band % band_rows) * 128
    t = t_first + tl.arange(0, 128)[:, None]
    t_inside = t < T
    column = program % band // band_rows
    n_first = column * 256
    n = n_first + tl.arange(0, 256)[None, :]
    k_piece_begin = K_piece * 512  # matmul.py:38
    z = tl.zeros((128, 256), tl.float32)  # matmul.py:38
    x_start = x_ptr + k_piece_begin + t.to(tl.int64) * x_t_stride  # matmul.py:38
    w_start = w_ptr + k_piece_begin + n.to(tl.int64) * w_n_stride  # matmul.py:38
    for k_within_first in tl.range(0, 512, 64):  # matmul.py:38
        k_within = k_within_first + tl.arange(0, 64)  # matmul.py:38
        x = tl.load(x_start + k_within[None, :], mask=t_inside, other=0.0)  # matmul.py:38
        w = tl.load(w_start + k_within[:, None])  # matmul.py:38
        z = tl.dot(x, w, z)  # matmul.py:38
    low, high = halves(z, 128, 128)  # matmul.py:38
    low_2, high_2 = halves(low, 128, 64)  # matmul.py:38
    low_3, high_3 = halves(high, 128, 64)  # matmul.py:38
    n_2 = n_first + tl.arange(0, 64)[None, :]  # matmul.py:38
    earlier = tl.load(merged_leaf8_0_ptr + t.to(tl.int64) * merged_leaf8_0_t_stride + n_2, mask=t_inside, other=0.0)  # matmul.py:38
    merged = earlier + low_2  # matmul.py:38
    earlier_2 = tl.load(merged_leaf8_1_ptr + t.to(tl.int64) * merged_leaf8_1_t_stride + n_2, mask=t_inside, other=0.0)  # matmul.py:38
    merged_2 = earlier_2 + merged  # matmul.py:38
    tl.store(merged_leaf8_2_ptr + t.to(tl.int64) * merged_leaf8_2_t_stride + n_2, merged_2, mask=t_inside)  # matmul.py:38
    n_2 = n_first + 64 + tl.arange(0, 64)[None, :]  # matmul.py:38
    earlier = tl.load(merged_leaf8_0_ptr + t.to(tl.int64) * merged_leaf8_0_t_stride + n_2, mask=t_inside, other=0.0)  # matmul.py:38
    merged = earlier + high_2  # matmul.py:38
    earlier_2 = tl.load(merged_leaf8_1_ptr + t.to(tl.int64) * merged_leaf8_1_t_stride + n_2, mask=t_inside, other=0.0)  # matmul.py:38
    merged_2 = earlier_2 + merged  # matmul.py:38
    tl.store(merged_leaf8_2_ptr + t.to(tl.int64) * merged_leaf8_2_t_stride + n_2, merged_2, mask=t_inside)  # matmul.py:38
    n_2 = n_first + 128 + tl.arange(0, 64)[None, :]  # matmul.py:38
    earlier = tl.load(merged_leaf8_0_ptr + t.to(tl.int64) * merged_leaf8_0_t_stride + n_2, mask=t_inside, other=0.0)  # matmul.py:38
    merged = earlier + low_3  # matmul.py:38
    earlier_2 = tl.load(merged_leaf8_1_ptr + t.to(tl.int64) * merged_leaf8_1_t_stride + n_2, mask=t_inside, other=0.0)  # matmul.py:38
    merged_2 = earlier_2 + merged  # matmul.py:38
    tl.store(merged_leaf8_2_ptr + t.to(tl.int64) * merged_leaf8_2_t_stride + n_2, merged_2, mask=t_inside)  # matmul.py:38
    n_2 = n_first + 192 + tl.arange(0, 64)[None, :]  # matmul.py:38
    earlier = tl.load(merged_leaf8_0_ptr + t.to(tl.int64) * merged_leaf8_0_t_stride + n_2, mask=t_inside, other=0.0)  # matmul.py:38
    merged = earlier + high_3  # matmul.py:38
    earlier_2 = tl.load(merged_leaf8_1_ptr + t.to(tl.int64) * merged_leaf8_1_t_stride + n_2, mask=t_inside, other=0.0)  # matmul.py:38
    merged_2 = earlier_2 + merged  # matmul.py:38
    tl.store(merged_leaf8_2_ptr + t.to(tl.int64) * merged_leaf8_2_t_stride + n_2, merged_2, mask=t_inside)  # matmul.py:38


@triton.jit
def matmul_leaf8_3(x_ptr, w_ptr, y_ptr, merged_leaf8_0_ptr, merged_leaf8_1_ptr, merged_leaf8_2_ptr, T, x_t_stride, w_n_stride, merged_leaf8_0_t_stride, merged_leaf8_1_t_stride, merged_leaf8_2_t_stride, y_t_stride, K_piece):
    # A program owns 128 of T, 256 of N (dot_map).
    program = tl.program_id(0)
    band = 16 * 16
    band_first = program // band * 16
    band_rows = tl.minimum(((T + 127) // 128) - band_first, 16)
    t_first = (band_first + program % band % band_rows) * 128
    t = t_first + tl.arange(0, 128)[:, None]
    t_inside = t < T
    column = program % band // band_rows
    n_first = column * 256
    n = n_first + tl.arange(0, 256)[None, :]
    k_piece_begin = K_piece * 512  # matmul.py:38
    z = tl.zeros((128, 256), tl.float32)  # matmul.py:38
    x_start = x_ptr + k_piece_begin + t.to(tl.int64) * x_t_stride  # matmul.py:38
    w_start = w_ptr + k_piece_begin + n.to(tl.int64) * w_n_stride  # matmul.py:38
    for k_within_first in tl.range(0, 512, 64):  # matmul.py:38
        k_within = k_within_first + tl.arange(0, 64)  # matmul.py:38
        x = tl.load(x_start + k_within[None, :], mask=t_inside, other=0.0)  # matmul.py:38
        w = tl.load(w_start + k_within[:, None])  # matmul.py:38
        z = tl.dot(x, w, z)  # matmul.py:38
    low, high = halves(z, 128, 128)  # matmul.py:38
    low_2, high_2 = halves(low, 128, 64)  # matmul.py:38
    low_3, high_3 = halves(high, 128, 64)  # matmul.py:38
    n_2 = n_first + tl.arange(0, 64)[None, :]  # matmul.py:38
    earlier = tl.load(merged_leaf8_0_ptr + t.to(tl.int64) * merged_leaf8_0_t_stride + n_2, mask=t_inside, other=0.0)  # matmul.py:38
    merged = earlier + low_2  # matmul.py:38
    earlier_2 = tl.load(merged_leaf8_1_ptr + t.to(tl.int64) * merged_leaf8_1_t_stride + n_2, mask=t_inside, other=0.0)  # matmul.py:38
    merged_2 = earlier_2 + merged  # matmul.py:38
    earlier_3 = tl.load(merged_leaf8_2_ptr + t.to(tl.int64) * merged_leaf8_2_t_stride + n_2, mask=t_inside, other=0.0)  # matmul.py:38
    merged_3 = earlier_3 + merged_2  # matmul.py:38
    as_bf16 = merged_3.to(tl.bfloat16)  # matmul.py:46
    tl.store(y_ptr + t.to(tl.int64) * y_t_stride + n_2, as_bf16, mask=t_inside)  # matmul.py:46
    n_2 = n_first + 64 + tl.arange(0, 64)[None, :]  # matmul.py:46
    earlier = tl.load(merged_leaf8_0_ptr + t.to(tl.int64) * merged_leaf8_0_t_stride + n_2, mask=t_inside, other=0.0)  # matmul.py:38
    merged = earlier + high_2  # matmul.py:38
    earlier_2 = tl.load(merged_leaf8_1_ptr + t.to(tl.int64) * merged_leaf8_1_t_stride + n_2, mask=t_inside, other=0.0)  # matmul.py:38
    merged_2 = earlier_2 + merged  # matmul.py:38
    earlier_3 = tl.load(merged_leaf8_2_ptr + t.to(tl.int64) * merged_leaf8_2_t_stride + n_2, mask=t_inside, other=0.0)  # matmul.py:38
    merged_3 = earlier_3 + merged_2  # matmul.py:38
    as_bf16 = merged_3.to(tl.bfloat16)  # matmul.py:46
    tl.store(y_ptr + t.to(tl.int64) * y_t_stride + n_2, as_bf16, mask=t_inside)  # matmul.py:46
    n_2 = n_first + 128 + tl.arange(0, 64)[None, :]  # matmul.py:46
    earlier = tl.load(merged_leaf8_0_ptr + t.to(tl.int64) * merged_leaf8_0_t_stride + n_2, mask=t_inside, other=0.0)  # matmul.py:38
    merged = earlier + low_3  # matmul.py:38
    earlier_2 = tl.load(merged_leaf8_1_ptr + t.to(tl.int64) * merged_leaf8_1_t_stride + n_2, mask=t_inside, other=0.0)  # matmul.py:38
    merged_2 = earlier_2 + merged  # matmul.py:38
    earlier_3 = tl.load(merged_leaf8_2_ptr + t.to(tl.int64) * merged_leaf8_2_t_stride + n_2, mask=t_inside, other=0.0)  # matmul.py:38
    merged_3 = earlier_3 + merged_2  # matmul.py:38
    as_bf16 = merged_3.to(tl.bfloat16)  # matmul.py:46
    tl.store(y_ptr + t.to(tl.int64) * y_t_stride + n_2, as_bf16, mask=t_inside)  # matmul.py:46
    n_2 = n_first + 192 + tl.arange(0, 64)[None, :]  # matmul.py:46
    earlier = tl.load(merged_leaf8_0_ptr + t.to(tl.int64) * merged_leaf8_0_t_stride + n_2, mask=t_inside, other=0.0)  # matmul.py:38
    merged = earlier + high_3  # matmul.py:38
    earlier_2 = tl.load(merged_leaf8_1_ptr + t.to(tl.int64) * merged_leaf8_1_t_stride + n_2, mask=t_inside, other=0.0)  # matmul.py:38
    merged_2 = earlier_2 + merged  # matmul.py:38
    earlier_3 = tl.load(merged_leaf8_2_ptr + t.to(tl.int64) * merged_leaf8_2_t_stride + n_2, mask=t_inside, other=0.0)  # matmul.py:38
    merged_3 = earlier_3 + merged_2  # matmul.py:38
    as_bf16 = merged_3.to(tl.bfloat16)  # matmul.py:46
    tl.store(y_ptr + t.to(tl.int64) * y_t_stride + n_2, as_bf16, mask=t_inside)  # matmul.py:46


def call(kernels, x, w, merged_leaf8_0, merged_leaf8_1, merged_leaf8_2, y, T, x_t_stride, w_n_stride, merged_leaf8_0_t_stride, merged_leaf8_1_t_stride, merged_leaf8_2_t_stride, y_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    for K_piece in range(8):
        if K_piece in (0, 2, 4, 6):
            programs = ((T + 127) // 128) * 16
            if programs > 0:
                kernels.matmul_leaf8_0((programs,), x, w, merged_leaf8_0, T, x_t_stride, w_n_stride, merged_leaf8_0_t_stride, K_piece)
        if K_piece in (1, 5):
            programs = ((T + 127) // 128) * 16
            if programs > 0:
                kernels.matmul_leaf8_1((programs,), x, w, merged_leaf8_0, merged_leaf8_1, T, x_t_stride, w_n_stride, merged_leaf8_0_t_stride, merged_leaf8_1_t_stride, K_piece)
        if K_piece == 3:
            programs = ((T + 127) // 128) * 16
            if programs > 0:
                kernels.matmul_leaf8_2((programs,), x, w, merged_leaf8_0, merged_leaf8_1, merged_leaf8_2, T, x_t_stride, w_n_stride, merged_leaf8_0_t_stride, merged_leaf8_1_t_stride, merged_leaf8_2_t_stride, K_piece)
        if K_piece == 7:
            programs = ((T + 127) // 128) * 16
            if programs > 0:
                kernels.matmul_leaf8_3((programs,), x, w, y, merged_leaf8_0, merged_leaf8_1, merged_leaf8_2, T, x_t_stride, w_n_stride, merged_leaf8_0_t_stride, merged_leaf8_1_t_stride, merged_leaf8_2_t_stride, y_t_stride, K_piece)
