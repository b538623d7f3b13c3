"""swiglu_linear_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 74fe5773832d74d5
schedule: tiles N=128, T=128, 8 warps, 4 stages, unroll 1, depth 64, group 16, 132 programs
schedule: tiles K=128, T=128, 8 warps, 4 stages, unroll 1, depth 64, group 16, 132 programs
schedule: tiles K=256, N=128, 8 warps, 3 stages, unroll 1, depth 64, group 16, 132 programs in one loop
schedule: tiles K=256, N=128, 8 warps, 3 stages, unroll 1, depth 64, group 16, 132 programs in one loop
inputs:
  x: bf16 [T, K=4096]
  gate: bf16 [N=4096, K=4096]
  up: bf16 [N=4096, K=4096]
  d_y: bf16 [T, N=4096]
outputs:
  d_x: bf16 [T, K=4096]
  d_gate: bf16 [N=4096, K=4096]
  d_up: bf16 [N=4096, K=4096]
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
def swiglu_linear_grad_1(
    x_ptr, gate_ptr, up_ptr, d_y_ptr, d_z_bf16_ptr, d_z_bf16_2_ptr, T, x_t_stride, up_n_stride, gate_n_stride,
    d_y_t_stride, d_z_bf16_t_stride, d_z_bf16_2_t_stride
):
    # A program owns 128 of T, 128 of N (dot_map).
    tl.extra.cuda.gdc_wait()
    x_tiles = tl.make_tensor_descriptor(x_ptr, shape=[T, 4096], strides=[x_t_stride, 1], block_shape=[128, 64])
    up_tiles = tl.make_tensor_descriptor(up_ptr, shape=[4096, 4096], strides=[up_n_stride, 1], block_shape=[128, 64])
    gate_tiles = tl.make_tensor_descriptor(
        gate_ptr, shape=[4096, 4096], strides=[gate_n_stride, 1], block_shape=[128, 64]
    )
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
        d_y = tl.load(d_y_ptr + t.to(tl.int64) * d_y_t_stride + n, mask=t_inside, other=0.0)  # swiglu_linear.py:25
        d_y_f32 = d_y.to(tl.float32)
        acc = tl.zeros((128, 128), tl.float32)  # swiglu_linear.py:23
        for k_first in tl.range(0, 4096, 64):
            x = x_tiles.load([t_first, k_first])
            up = up_tiles.load([n_first, k_first])
            acc = tl.dot(x, up.T, acc, max_num_imprecise_acc=1)
        u_as_bf16 = acc.to(tl.bfloat16)
        u = u_as_bf16.to(tl.float32)
        d_silu = d_y_f32 * u  # swiglu_linear.py:25
        acc_2 = tl.zeros((128, 128), tl.float32)  # swiglu_linear.py:22
        for k_first in tl.range(0, 4096, 64):
            x = x_tiles.load([t_first, k_first])
            gate = gate_tiles.load([n_first, k_first])
            acc_2 = tl.dot(x, gate.T, acc_2, max_num_imprecise_acc=1)
        g_as_bf16 = acc_2.to(tl.bfloat16)
        g = g_as_bf16.to(tl.float32)
        sigmoid_g = portable_sigmoid(g)  # swiglu_linear.py:24
        silu_product = g * sigmoid_g
        silu_product_bf16 = silu_product.to(tl.bfloat16)
        silu = silu_product_bf16.to(tl.float32)
        d_u = d_y_f32 * silu  # swiglu_linear.py:25
        d_g_product = d_silu * sigmoid_g  # swiglu_linear.py:24
        d_silu_times_g = d_silu * g
        neg_g = g * -1.0
        d_g_sigmoid = portable_sigmoid(neg_g)
        d_g_product_2 = sigmoid_g * d_g_sigmoid
        d_g_product_3 = d_silu_times_g * d_g_product_2
        d_u_bf16 = d_u.to(tl.bfloat16)  # swiglu_linear.py:23
        tl.store(d_z_bf16_ptr + t.to(tl.int64) * d_z_bf16_t_stride + n, d_u_bf16, mask=t_inside)
        d_g = d_g_product + d_g_product_3  # swiglu_linear.py:22
        d_g_bf16 = d_g.to(tl.bfloat16)
        tl.store(d_z_bf16_2_ptr + t.to(tl.int64) * d_z_bf16_2_t_stride + n, d_g_bf16, mask=t_inside)


@triton.jit
def swiglu_linear_grad_2(
    gate_ptr, up_ptr, d_x_ptr, d_z_bf16_ptr, d_z_bf16_2_ptr, T, d_z_bf16_t_stride, up_n_stride, d_z_bf16_2_t_stride,
    gate_n_stride, d_x_t_stride
):
    # A program owns 128 of T, 128 of K (dot_map).
    tl.extra.cuda.gdc_wait()
    d_z_bf16_tiles = tl.make_tensor_descriptor(
        d_z_bf16_ptr, shape=[T, 4096], strides=[d_z_bf16_t_stride, 1], block_shape=[128, 64]
    )
    up_tiles = tl.make_tensor_descriptor(up_ptr, shape=[4096, 4096], strides=[up_n_stride, 1], block_shape=[64, 128])
    d_z_bf16_2_tiles = tl.make_tensor_descriptor(
        d_z_bf16_2_ptr, shape=[T, 4096], strides=[d_z_bf16_2_t_stride, 1], block_shape=[128, 64]
    )
    gate_tiles = tl.make_tensor_descriptor(
        gate_ptr, shape=[4096, 4096], strides=[gate_n_stride, 1], block_shape=[64, 128]
    )
    for program in tl.range(tl.program_id(0), ((T + 127) // 128) * 32, tl.num_programs(0)):
        band = 16 * 32
        band_first = program // band * 16
        band_rows = tl.minimum(((T + 127) // 128) - band_first, 16)
        t_first = (band_first + program % band % band_rows) * 128
        t = t_first + tl.arange(0, 128)[:, None]
        t_inside = t < T
        column = program % band // band_rows
        k_first = column * 128
        k = k_first + tl.arange(0, 128)[None, :]
        acc = tl.zeros((128, 128), tl.float32)  # swiglu_linear.py:23
        for n_first in tl.range(0, 4096, 64):
            d_z_bf16 = d_z_bf16_tiles.load([t_first, n_first])
            up = up_tiles.load([n_first, k_first])
            acc = tl.dot(d_z_bf16, up, acc, max_num_imprecise_acc=1)
        acc_2 = tl.zeros((128, 128), tl.float32)  # swiglu_linear.py:22
        for n_first in tl.range(0, 4096, 64):
            d_z_bf16 = d_z_bf16_2_tiles.load([t_first, n_first])
            gate = gate_tiles.load([n_first, k_first])
            acc_2 = tl.dot(d_z_bf16, gate, acc_2, max_num_imprecise_acc=1)
        d_x = acc + acc_2
        d_x_bf16 = d_x.to(tl.bfloat16)
        tl.store(d_x_ptr + t.to(tl.int64) * d_x_t_stride + k, d_x_bf16, mask=t_inside)


@triton.jit
def swiglu_linear_grad_3(x_ptr, d_gate_ptr, d_z_bf16_2_ptr, T, d_z_bf16_2_t_stride, x_t_stride, d_gate_n_stride):
    # A program owns 128 of N, 256 of K (dot_map).
    tl.extra.cuda.gdc_wait()
    d_z_bf16_2_tiles = tl.make_tensor_descriptor(
        d_z_bf16_2_ptr, shape=[T, 4096], strides=[d_z_bf16_2_t_stride, 1], block_shape=[64, 128]
    )
    x_tiles = tl.make_tensor_descriptor(x_ptr, shape=[T, 4096], strides=[x_t_stride, 1], block_shape=[64, 256])
    for program in tl.range(tl.program_id(0), 512, tl.num_programs(0), flatten=True):
        band = 16 * 16
        band_first = program // band * 16
        band_rows = tl.minimum(32 - band_first, 16)
        n_first = (band_first + program % band % band_rows) * 128
        n = n_first + tl.arange(0, 128)[:, None]
        column = program % band // band_rows
        k_first = column * 256
        k = k_first + tl.arange(0, 256)[None, :]
        d_gate = tl.zeros((128, 256), tl.float32)  # swiglu_linear.py:22
        for t_first in tl.range(0, T, 64):
            d_z_bf16 = d_z_bf16_2_tiles.load([t_first, n_first])
            x = x_tiles.load([t_first, k_first])
            d_gate = tl.dot(d_z_bf16.T, x, d_gate, max_num_imprecise_acc=1)
        d_gate_bf16 = d_gate.to(tl.bfloat16)
        tl.store(d_gate_ptr + n.to(tl.int64) * d_gate_n_stride + k, d_gate_bf16)


@triton.jit
def swiglu_linear_grad_4(x_ptr, d_up_ptr, d_z_bf16_ptr, T, d_z_bf16_t_stride, x_t_stride, d_up_n_stride):
    # A program owns 128 of N, 256 of K (dot_map).
    tl.extra.cuda.gdc_wait()
    d_z_bf16_tiles = tl.make_tensor_descriptor(
        d_z_bf16_ptr, shape=[T, 4096], strides=[d_z_bf16_t_stride, 1], block_shape=[64, 128]
    )
    x_tiles = tl.make_tensor_descriptor(x_ptr, shape=[T, 4096], strides=[x_t_stride, 1], block_shape=[64, 256])
    for program in tl.range(tl.program_id(0), 512, tl.num_programs(0), flatten=True):
        band = 16 * 16
        band_first = program // band * 16
        band_rows = tl.minimum(32 - band_first, 16)
        n_first = (band_first + program % band % band_rows) * 128
        n = n_first + tl.arange(0, 128)[:, None]
        column = program % band // band_rows
        k_first = column * 256
        k = k_first + tl.arange(0, 256)[None, :]
        d_up = tl.zeros((128, 256), tl.float32)  # swiglu_linear.py:23
        for t_first in tl.range(0, T, 64):
            d_z_bf16 = d_z_bf16_tiles.load([t_first, n_first])
            x = x_tiles.load([t_first, k_first])
            d_up = tl.dot(d_z_bf16.T, x, d_up, max_num_imprecise_acc=1)
        d_up_bf16 = d_up.to(tl.bfloat16)
        tl.store(d_up_ptr + n.to(tl.int64) * d_up_n_stride + k, d_up_bf16)


def call(
    kernels, x, gate, up, d_y, d_z_bf16, d_z_bf16_2, d_x, d_gate, d_up, T, x_t_stride, up_n_stride, gate_n_stride,
    d_y_t_stride, d_z_bf16_t_stride, d_z_bf16_2_t_stride, d_x_t_stride, d_gate_n_stride, d_up_n_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = min(((T + 127) // 128) * 32, 132)
    if programs > 0:
        kernels.swiglu_linear_grad_1(
            (programs,), x, gate, up, d_y, d_z_bf16, d_z_bf16_2, T, x_t_stride, up_n_stride, gate_n_stride,
            d_y_t_stride, d_z_bf16_t_stride, d_z_bf16_2_t_stride
        )
    programs = min(((T + 127) // 128) * 32, 132)
    if programs > 0:
        kernels.swiglu_linear_grad_2(
            (programs,), gate, up, d_x, d_z_bf16, d_z_bf16_2, T, d_z_bf16_t_stride, up_n_stride, d_z_bf16_2_t_stride,
            gate_n_stride, d_x_t_stride
        )
    programs = min(32 * 16, 132)
    if programs > 0:
        kernels.swiglu_linear_grad_3(
            (programs,), x, d_gate, d_z_bf16_2, T, d_z_bf16_2_t_stride, x_t_stride, d_gate_n_stride
        )
    programs = min(32 * 16, 132)
    if programs > 0:
        kernels.swiglu_linear_grad_4((programs,), x, d_up, d_z_bf16, T, d_z_bf16_t_stride, x_t_stride, d_up_n_stride)
