"""matmul_leaf8 on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 7eee94976425b177
schedule: tiles N=256, T=128, 8 warps, 4 stages, unroll 1, depth 64, group 16, 132 programs
schedule: tiles N=256, T=128, 8 warps, 4 stages, unroll 1, depth 64, group 16, 132 programs, 4 parts
schedule: tiles N=256, T=128, 8 warps, 4 stages, unroll 1, depth 64, group 16, 132 programs, 4 parts
schedule: tiles N=256, T=128, 8 warps, 4 stages, unroll 1, depth 64, group 16, 132 programs, 4 parts
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
    x_tiles = tl.make_tensor_descriptor(x_ptr, shape=[T, 4096], strides=[x_t_stride, 1], block_shape=[128, 64])
    w_tiles = tl.make_tensor_descriptor(w_ptr, shape=[4096, 4096], strides=[w_n_stride, 1], block_shape=[256, 64])
    for program in tl.range(tl.program_id(0), ((T + 127) // 128) * 16, tl.num_programs(0)):
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
        for k_within_first in tl.range(0, 512, 64):  # matmul.py:38
            x = x_tiles.load([t_first, k_piece_begin + k_within_first])  # matmul.py:38
            w = w_tiles.load([n_first, k_piece_begin + k_within_first])  # matmul.py:38
            z = tl.dot(x, w.T, z)  # matmul.py:38
        tl.store(merged_leaf8_0_ptr + t.to(tl.int64) * merged_leaf8_0_t_stride + n, z, mask=t_inside)  # matmul.py:38


@triton.jit
def matmul_leaf8_1(x_ptr, w_ptr, merged_leaf8_0_ptr, merged_leaf8_1_ptr, T, x_t_stride, w_n_stride, merged_leaf8_0_t_stride, merged_leaf8_1_t_stride, K_piece):
    # A program owns 128 of T, 256 of N (dot_map).
    x_tiles = tl.make_tensor_descriptor(x_ptr, shape=[T, 4096], strides=[x_t_stride, 1], block_shape=[128, 64])
    w_tiles = tl.make_tensor_descriptor(w_ptr, shape=[4096, 4096], strides=[w_n_stride, 1], block_shape=[256, 64])
    for program in tl.range(tl.program_id(0), ((T + 127) // 128) * 16, tl.num_programs(0)):
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
        for k_within_first in tl.range(0, 512, 64):  # matmul.py:38
            x = x_tiles.load([t_first, k_piece_begin + k_within_first])  # matmul.py:38
            w = w_tiles.load([n_first, k_piece_begin + k_within_first])  # matmul.py:38
            z = tl.dot(x, w.T, z)  # matmul.py:38
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
    x_tiles = tl.make_tensor_descriptor(x_ptr, shape=[T, 4096], strides=[x_t_stride, 1], block_shape=[128, 64])
    w_tiles = tl.make_tensor_descriptor(w_ptr, shape=[4096, 4096], strides=[w_n_stride, 1], block_shape=[256, 64])
    for program in tl.range(tl.program_id(0), ((T + 127) // 128) * 16, tl.num_programs(0)):
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
        for k_within_first in tl.range(0, 512, 64):  # matmul.py:38
            x = x_tiles.load([t_first, k_piece_begin + k_within_first])  # matmul.py:38
            w = w_tiles.load([n_first, k_piece_begin + k_within_first])  # matmul.py:38
            z = tl.dot(x, w.T, z)  # matmul.py:38
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
    x_tiles = tl.make_tensor_descriptor(x_ptr, shape=[T, 4096], strides=[x_t_stride, 1], block_shape=[128, 64])
    w_tiles = tl.make_tensor_descriptor(w_ptr, shape=[4096, 4096], strides=[w_n_stride, 1], block_shape=[256, 64])
    for program in tl.range(tl.program_id(0), ((T + 127) // 128) * 16, tl.num_programs(0)):
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
        for k_within_first in tl.range(0, 512, 64):  # matmul.py:38
            x = x_tiles.load([t_first, k_piece_begin + k_within_first])  # matmul.py:38
            w = w_tiles.load([n_first, k_piece_begin + k_within_first])  # matmul.py:38
            z = tl.dot(x, w.T, z)  # matmul.py:38
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
            programs = min(((T + 127) // 128) * 16, 132)
            if programs > 0:
                kernels.matmul_leaf8_0((programs,), x, w, merged_leaf8_0, T, x_t_stride, w_n_stride, merged_leaf8_0_t_stride, K_piece)
        if K_piece in (1, 5):
            programs = min(((T + 127) // 128) * 16, 132)
            if programs > 0:
                kernels.matmul_leaf8_1((programs,), x, w, merged_leaf8_0, merged_leaf8_1, T, x_t_stride, w_n_stride, merged_leaf8_0_t_stride, merged_leaf8_1_t_stride, K_piece)
        if K_piece == 3:
            programs = min(((T + 127) // 128) * 16, 132)
            if programs > 0:
                kernels.matmul_leaf8_2((programs,), x, w, merged_leaf8_0, merged_leaf8_1, merged_leaf8_2, T, x_t_stride, w_n_stride, merged_leaf8_0_t_stride, merged_leaf8_1_t_stride, merged_leaf8_2_t_stride, K_piece)
        if K_piece == 7:
            programs = min(((T + 127) // 128) * 16, 132)
            if programs > 0:
                kernels.matmul_leaf8_3((programs,), x, w, y, merged_leaf8_0, merged_leaf8_1, merged_leaf8_2, T, x_t_stride, w_n_stride, merged_leaf8_0_t_stride, merged_leaf8_1_t_stride, merged_leaf8_2_t_stride, y_t_stride, K_piece)
