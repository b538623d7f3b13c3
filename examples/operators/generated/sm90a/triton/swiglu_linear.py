"""swiglu_linear on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 93e945106ae72bd9
schedule: tiles N=128, T=128, 8 warps, 4 stages, unroll 1, depth 64, group 16, 132 programs
inputs:
  x: bf16 [T, K=4096]
  gate: bf16 [N=4096, K=4096]
  up: bf16 [N=4096, K=4096]
outputs:
  y: bf16 [T, N=4096]
"""

import triton
import triton.language as tl


@triton.jit
def portable_sigmoid(x):
    # 1 / (1 + e**-x), accurate in both tails, with gradual underflow.
    i0 = x.to(tl.int32, bitcast=True)
    i1 = i0 | -2147483648
    f2 = i1.to(tl.float32, bitcast=True)
    f3 = tl.maximum(f2, -104.0)
    f4 = tl.fma(f3, 1.442695, 12582912.0)
    f5 = f4 - 12582912.0
    f6 = tl.fma(f5, -0.6931472, f3)
    f7 = tl.fma(f5, 1.9046542e-09, f6)
    f8 = tl.fma(0.001381949, f7, 0.0083686905)
    f9 = tl.fma(f8, f7, 0.04166828)
    f10 = tl.fma(f9, f7, 0.16666521)
    f11 = tl.fma(f10, f7, 0.49999994)
    f12 = tl.fma(f11, f7, 1.0)
    f13 = f12 * f7
    i14 = f4.to(tl.int32, bitcast=True)
    i15 = i14 - 1262485504
    i16 = i15 >> 1
    i17 = i16 << 23
    i18 = i17 + 1065353216
    f19 = i18.to(tl.float32, bitcast=True)
    i20 = i15 - i16
    i21 = i20 << 23
    i22 = i21 + 1065353216
    f23 = i22.to(tl.float32, bitcast=True)
    f24 = f13 + 1.0
    f25 = f24 * f19
    f26 = f25 * f23
    f27 = f26 + 1.0
    f28 = f27 * -1.0
    f29 = tl.fma(-0.20604426, f27, 1.2625691)
    f30 = tl.fma(f29, f27, -2.8429258)
    f31 = tl.fma(f30, f27, 2.7843392)
    f32 = tl.fma(f31, f28, 1.0)
    f33 = tl.fma(f32, f32, f32)
    f34 = tl.fma(f31, f33, f31)
    f35 = tl.fma(f34, f28, 1.0)
    f36 = tl.fma(f34, f35, f34)
    f37 = f27 - 1.0
    f38 = f26 - f37
    f39 = tl.fma(f36, f27, -1.0)
    f40 = tl.fma(f36, f38, f39)
    f41 = f36 * f19
    f42 = tl.fma(f13, f40, f40)
    f43 = f13 - f42
    f44 = tl.fma(f41, f43, f41)
    f45 = f44 * f23
    f46 = tl.where((x < 0.0), f45, f36)
    f47 = tl.where((x == x), f46, x)
    return f47


@triton.jit
def swiglu_linear(x_ptr, gate_ptr, up_ptr, y_ptr, T, x_t_stride, gate_n_stride, up_n_stride, y_t_stride):
    # A program owns 128 of T, 128 of N (dot_map).
    tl.extra.cuda.gdc_wait()
    x_tiles = tl.make_tensor_descriptor(x_ptr, shape=[T, 4096], strides=[x_t_stride, 1], block_shape=[128, 64])
    gate_tiles = tl.make_tensor_descriptor(
        gate_ptr, shape=[4096, 4096], strides=[gate_n_stride, 1], block_shape=[128, 64]
    )
    up_tiles = tl.make_tensor_descriptor(up_ptr, shape=[4096, 4096], strides=[up_n_stride, 1], block_shape=[128, 64])
    for program in tl.range(tl.program_id(0), ((T + 127) // 128) * 32, tl.num_programs(0)):
        band = 16 * 32
        band_first = program // band * 16
        band_rows = tl.minimum(((T + 127) // 128) - band_first, 16)
        t_first = (band_first + program % band % band_rows) * 128
        t = t_first + tl.arange(0, 128)[:, None]
        t_inside = t < T
        column = program % band // band_rows
        n_first = column * 128
        n = n_first + tl.arange(0, 128)[None, :]
        acc = tl.zeros((128, 128), tl.float32)  # swiglu_linear.py:22
        for k_first in tl.range(0, 4096, 64):
            x = x_tiles.load([t_first, k_first])
            gate = gate_tiles.load([n_first, k_first])
            acc = tl.dot(x, gate.T, acc, max_num_imprecise_acc=1)
        g_as_bf16 = acc.to(tl.bfloat16)
        g = g_as_bf16.to(tl.float32)
        acc_2 = tl.zeros((128, 128), tl.float32)  # swiglu_linear.py:23
        for k_first in tl.range(0, 4096, 64):
            x = x_tiles.load([t_first, k_first])
            up = up_tiles.load([n_first, k_first])
            acc_2 = tl.dot(x, up.T, acc_2, max_num_imprecise_acc=1)
        u_as_bf16 = acc_2.to(tl.bfloat16)
        u = u_as_bf16.to(tl.float32)
        sigmoid_g = portable_sigmoid(g)  # swiglu_linear.py:24
        silu_product = g * sigmoid_g
        silu_product_bf16 = silu_product.to(tl.bfloat16)
        silu = silu_product_bf16.to(tl.float32)
        silu_times_u = silu * u  # swiglu_linear.py:25
        silu_times_u_bf16 = silu_times_u.to(tl.bfloat16)
        tl.store(y_ptr + t.to(tl.int64) * y_t_stride + n, silu_times_u_bf16, mask=t_inside)


def call(kernels, x, gate, up, y, T, x_t_stride, gate_n_stride, up_n_stride, y_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = min(((T + 127) // 128) * 32, 132)
    if programs > 0:
        kernels.swiglu_linear((programs,), x, gate, up, y, T, x_t_stride, gate_n_stride, up_n_stride, y_t_stride)
