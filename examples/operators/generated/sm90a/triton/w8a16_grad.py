"""w8a16_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: c95fcc427ab2969e
schedule: tiles K=256, T=128, 8 warps, 3 stages, unroll 1, depth 64, group 16, 132 programs in one loop
inputs:
  w: i8 [N=4096, K=4096]
  scale: f32 [N=4096]
  d_y: bf16 [T, N=4096]
outputs:
  d_x: bf16 [T, K=4096]
"""

import triton
import triton.language as tl


@triton.jit
def keep_k_order(factor):
    # The same 16-bit elements. By the narrowest load behind a factor Triton chooses which 16 of K are one
    # mma.sync: elements of 8 bits give other sums than ascending steps. It looks behind no volatile assembly.
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [factor], factor.dtype, is_pure=False, pack=2)


@triton.jit
def w8a16_grad(w_ptr, scale_ptr, d_y_ptr, d_x_ptr, T, d_y_t_stride, w_n_stride, d_x_t_stride):
    # A program owns 128 of T, 256 of K (dot_map).
    for program in tl.range(tl.program_id(0), ((T + 127) // 128) * 16, tl.num_programs(0)):
        band = 16 * 16
        band_first = program // band * 16
        band_rows = tl.minimum(((T + 127) // 128) - band_first, 16)
        t_first = (band_first + program % band % band_rows) * 128
        t = t_first + tl.arange(0, 128)[:, None]
        t_inside = t < T
        column = program % band // band_rows
        k_first = column * 256
        k = k_first + tl.arange(0, 256)[None, :]
        acc = tl.zeros((128, 256), tl.float32)  # w8a16.py:30
        for n_first in tl.range(0, 4096, 64):
            n = n_first + tl.arange(0, 64)
            scale = tl.load(scale_ptr + n[None, :])  # w8a16.py:29
            d_y = tl.load(d_y_ptr + n[None, :] + t.to(tl.int64) * d_y_t_stride, mask=t_inside, other=0.0)
            d_y_f32 = d_y.to(tl.float32)
            d_z_product = d_y_f32 * scale
            d_z = d_z_product.to(tl.bfloat16)
            w = tl.load(w_ptr + n[:, None].to(tl.int64) * w_n_stride + k)  # w8a16.py:30
            w_i32 = w.to(tl.int32)
            w_i32_f32 = w_i32.to(tl.float32)
            w_i32_f32_bf16 = w_i32_f32.to(tl.bfloat16)
            w_i32_f32_bf16_2 = keep_k_order(w_i32_f32_bf16)
            acc = tl.dot(d_z, w_i32_f32_bf16_2, acc, max_num_imprecise_acc=1)
        d_x_as_bf16 = acc.to(tl.bfloat16)
        tl.store(d_x_ptr + t.to(tl.int64) * d_x_t_stride + k, d_x_as_bf16, mask=t_inside)


def call(kernels, w, scale, d_y, d_x, T, d_y_t_stride, w_n_stride, d_x_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = min(((T + 127) // 128) * 16, 132)
    if programs > 0:
        kernels.w8a16_grad((programs,), w, scale, d_y, d_x, T, d_y_t_stride, w_n_stride, d_x_t_stride)
