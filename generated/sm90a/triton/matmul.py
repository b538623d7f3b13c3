"""matmul on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 23360251d483b899
schedule: tiles N=256, T=128, 8 warps, 3 stages, unroll 1, depth 64, group 16, 132 programs in one loop, 4 parts
inputs:
  x: bf16 [T, K=4096]
  w: bf16 [N=14336, K=4096]
  residual: bf16 [T, N=14336]
outputs:
  y: bf16 [T, N=14336]
"""

import triton
import triton.language as tl


@triton.jit
def halves(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    # The lower and the upper columns: an index bit whose two values are in one thread, so that nothing moves.
    return tl.split(tl.permute(tl.reshape(x, (ROWS, 2, COLUMNS)), (0, 2, 1)))


@triton.jit
def matmul(x_ptr, w_ptr, residual_ptr, y_ptr, T, x_t_stride, w_n_stride, residual_t_stride, y_t_stride):
    # A program owns 128 of T, 256 of N (dot_map).
    tl.extra.cuda.gdc_wait()
    x_tiles = tl.make_tensor_descriptor(x_ptr, shape=[T, 4096], strides=[x_t_stride, 1], block_shape=[128, 64])
    w_tiles = tl.make_tensor_descriptor(w_ptr, shape=[14336, 4096], strides=[w_n_stride, 1], block_shape=[256, 64])
    for program in tl.range(tl.program_id(0), ((T + 127) // 128) * 56, tl.num_programs(0), flatten=True):
        band = 16 * 56
        band_first = program // band * 16
        band_rows = tl.minimum(((T + 127) // 128) - band_first, 16)
        t_first = (band_first + program % band % band_rows) * 128
        t = t_first + tl.arange(0, 128)[:, None]
        t_inside = t < T
        column = program % band // band_rows
        n_first = column * 256
        y = tl.zeros((128, 256), tl.float32)  # matmul.py:37
        for k_first in tl.range(0, 4096, 64):
            x = x_tiles.load([t_first, k_first])
            w = w_tiles.load([n_first, k_first])
            y = tl.dot(x, w.T, y, max_num_imprecise_acc=1)
        low, high = halves(y, 128, 128)
        low_2, high_2 = halves(low, 128, 64)
        low_3, high_3 = halves(high, 128, 64)
        n_2 = n_first + tl.arange(0, 64)[None, :]
        # matmul.py:91
        residual = tl.load(residual_ptr + t.to(tl.int64) * residual_t_stride + n_2, mask=t_inside, other=0.0)
        residual_f32 = residual.to(tl.float32)
        y_2 = low_2 + residual_f32
        y_bf16 = y_2.to(tl.bfloat16)  # matmul.py:92
        tl.store(y_ptr + t.to(tl.int64) * y_t_stride + n_2, y_bf16, mask=t_inside)
        n_2 = n_first + 64 + tl.arange(0, 64)[None, :]
        # matmul.py:91
        residual = tl.load(residual_ptr + t.to(tl.int64) * residual_t_stride + n_2, mask=t_inside, other=0.0)
        residual_f32 = residual.to(tl.float32)
        y_2 = high_2 + residual_f32
        y_bf16 = y_2.to(tl.bfloat16)  # matmul.py:92
        tl.store(y_ptr + t.to(tl.int64) * y_t_stride + n_2, y_bf16, mask=t_inside)
        n_2 = n_first + 128 + tl.arange(0, 64)[None, :]
        # matmul.py:91
        residual = tl.load(residual_ptr + t.to(tl.int64) * residual_t_stride + n_2, mask=t_inside, other=0.0)
        residual_f32 = residual.to(tl.float32)
        y_2 = low_3 + residual_f32
        y_bf16 = y_2.to(tl.bfloat16)  # matmul.py:92
        tl.store(y_ptr + t.to(tl.int64) * y_t_stride + n_2, y_bf16, mask=t_inside)
        n_2 = n_first + 192 + tl.arange(0, 64)[None, :]
        # matmul.py:91
        residual = tl.load(residual_ptr + t.to(tl.int64) * residual_t_stride + n_2, mask=t_inside, other=0.0)
        residual_f32 = residual.to(tl.float32)
        y_2 = high_3 + residual_f32
        y_bf16 = y_2.to(tl.bfloat16)  # matmul.py:92
        tl.store(y_ptr + t.to(tl.int64) * y_t_stride + n_2, y_bf16, mask=t_inside)


def call(kernels, x, w, residual, y, T, x_t_stride, w_n_stride, residual_t_stride, y_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = min(((T + 127) // 128) * 56, 132)
    if programs > 0:
        kernels.matmul((programs,), x, w, residual, y, T, x_t_stride, w_n_stride, residual_t_stride, y_t_stride)
