"""w8a16 on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 5b0d59cd3ab14a9d
schedule: tiles N=256, T=128, 8 warps, 3 stages, unroll 1, depth 64, group 16, 132 programs in one loop
inputs:
  x: bf16 [T, K=4096]
  w: i8 [N=4096, K=4096]
  scale: f32 [N=4096]
outputs:
  y: bf16 [T, N=4096]
"""

import triton
import triton.language as tl


@triton.jit
def keep_k_order(factor):
    # The same 16-bit elements. By the narrowest load behind a factor Triton chooses which 16 of K are one
    # mma.sync: elements of 8 bits give other sums than ascending steps. It looks behind no volatile assembly.
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [factor], factor.dtype, is_pure=False, pack=2)


@triton.jit
def w8a16(x_ptr, w_ptr, scale_ptr, y_ptr, T, x_t_stride, w_n_stride, y_t_stride):
    # A program owns 128 of T, 256 of N (dot_map).
    x_tiles = tl.make_tensor_descriptor(x_ptr, shape=[T, 4096], strides=[x_t_stride, 1], block_shape=[128, 64])
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
        z = tl.zeros((128, 256), tl.float32)  # w8a16.py:22
        for k_first in tl.range(0, 4096, 64):
            k = k_first + tl.arange(0, 64)
            x = x_tiles.load([t_first, k_first])
            w = tl.load(w_ptr + k[:, None] + n.to(tl.int64) * w_n_stride)
            w_i32 = w.to(tl.int32)
            w_i32_f32 = w_i32.to(tl.float32)
            w_i32_f32_bf16 = w_i32_f32.to(tl.bfloat16)
            w_i32_f32_bf16_2 = keep_k_order(w_i32_f32_bf16)
            z = tl.dot(x, w_i32_f32_bf16_2, z, max_num_imprecise_acc=1)
        scale = tl.load(scale_ptr + n)  # w8a16.py:23
        z_times_scale = z * scale
        z_times_scale_bf16 = z_times_scale.to(tl.bfloat16)
        tl.store(y_ptr + t.to(tl.int64) * y_t_stride + n, z_times_scale_bf16, mask=t_inside)


def call(kernels, x, w, scale, y, T, x_t_stride, w_n_stride, y_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = min(((T + 127) // 128) * 16, 132)
    if programs > 0:
        kernels.w8a16((programs,), x, w, scale, y, T, x_t_stride, w_n_stride, y_t_stride)
