"""w8a16_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: c95fcc427ab2969e
schedule: tiles N=2048, 4 warps, 1 stages, unroll 1
schedule: tiles K=2048, 4 warps, 1 stages, unroll 1
schedule: tiles K=256, T=128, 8 warps, 3 stages, unroll 1, depth 64, group 16, 132 programs in one loop
inputs:
  scale: f32 [N=4096]
  d_y: bf16 [T, N=4096]
  w: i8 [N=4096, K=4096]
outputs:
  d_x: bf16 [T, K=4096]
"""

import triton
import triton.language as tl


@triton.jit
def w8a16_grad_d_y_bf16(scale_ptr, d_y_ptr, d_y_bf16_ptr, d_y_t_stride, d_y_bf16_t_stride):
    # A program owns 1 of T, 2048 of N (rows).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    program = tl.program_id(0)
    program_2 = program // 2
    n = (program % 2) * 2048 + tl.arange(0, 2048)
    t = program_2
    d_y = tl.load(d_y_ptr + t.to(tl.int64) * d_y_t_stride + n)  # w8a16.py:29
    scale = tl.load(scale_ptr + n)
    d_y_f32 = d_y.to(tl.float32)
    d_z_product = d_y_f32 * scale
    d_z = d_z_product.to(tl.bfloat16)
    tl.store(d_y_bf16_ptr + t.to(tl.int64) * d_y_bf16_t_stride + n, d_z)


@triton.jit
def w8a16_grad_w_bf16(w_ptr, w_bf16_ptr, w_n_stride, w_bf16_n_stride):
    # A program owns 1 of N, 2048 of K (rows).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    program = tl.program_id(0)
    program_2 = program // 2
    k = (program % 2) * 2048 + tl.arange(0, 2048)
    n = program_2
    w = tl.load(w_ptr + n.to(tl.int64) * w_n_stride + k)  # w8a16.py:30
    w_i32 = w.to(tl.int32)
    w_i32_f32 = w_i32.to(tl.float32)
    w_i32_f32_bf16 = w_i32_f32.to(tl.bfloat16)
    tl.store(w_bf16_ptr + n.to(tl.int64) * w_bf16_n_stride + k, w_i32_f32_bf16)


@triton.jit
def w8a16_grad(d_x_ptr, d_y_bf16_ptr, w_bf16_ptr, T, d_y_bf16_t_stride, w_bf16_n_stride, d_x_t_stride):
    # A program owns 128 of T, 256 of K (dot_map).
    tl.extra.cuda.gdc_wait()
    d_y_bf16_tiles = tl.make_tensor_descriptor(
        d_y_bf16_ptr, shape=[T, 4096], strides=[d_y_bf16_t_stride, 1], block_shape=[128, 64]
    )
    w_bf16_tiles = tl.make_tensor_descriptor(
        w_bf16_ptr, shape=[4096, 4096], strides=[w_bf16_n_stride, 1], block_shape=[64, 256]
    )
    for program in tl.range(tl.program_id(0), ((T + 127) // 128) * 16, tl.num_programs(0), flatten=True):
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
            d_z = d_y_bf16_tiles.load([t_first, n_first])
            w_bf16 = w_bf16_tiles.load([n_first, k_first])
            acc = tl.dot(d_z, w_bf16, acc, max_num_imprecise_acc=1)
        d_x_as_bf16 = acc.to(tl.bfloat16)
        tl.store(d_x_ptr + t.to(tl.int64) * d_x_t_stride + k, d_x_as_bf16, mask=t_inside)


def call(
    kernels, scale, d_y, d_y_bf16, w, w_bf16, d_x, T, d_y_t_stride, d_y_bf16_t_stride, w_n_stride, w_bf16_n_stride,
    d_x_t_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T * 2
    if programs > 0:
        kernels.w8a16_grad_d_y_bf16((programs,), scale, d_y, d_y_bf16, d_y_t_stride, d_y_bf16_t_stride)
    programs = 4096 * 2
    if programs > 0:
        kernels.w8a16_grad_w_bf16((programs,), w, w_bf16, w_n_stride, w_bf16_n_stride)
    programs = min(((T + 127) // 128) * 16, 132)
    if programs > 0:
        kernels.w8a16_grad((programs,), d_x, d_y_bf16, w_bf16, T, d_y_bf16_t_stride, w_bf16_n_stride, d_x_t_stride)
