"""geglu_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 5e660744ce51afb1
schedule: tiles N=2048, 4 warps, 1 stages, unroll 1 placed N[9:3] N[2:0] N[10:10]
inputs:
  gate: bf16 [T, N=12288]
  up: bf16 [T, N=12288]
  d_y: bf16 [T, N=12288]
outputs:
  d_gate: bf16 [T, N=12288]
  d_up: bf16 [T, N=12288]
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import cutlass.utils as utils
import cutlass.utils.hopper_helpers as sm90
from cutlass import BFloat16, Boolean, Float16, Float32, Int16, Int32, Int64, Uint8, Uint32
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup

NEAREST = cute.math.RoundingMode.NEAREST_EVEN
ROW_MAJOR, COL_MAJOR = utils.LayoutEnum.ROW_MAJOR, utils.LayoutEnum.COL_MAJOR


def fma(a, b, c):
    # a * b + c with one rounding.
    return cute.math.fma(a, b, c, rounding=NEAREST)


def fmax(a, b):
    # max.f32: the other operand if one is NaN.
    return cute.arch.fmax(a, b)


def fmin(a, b):
    # min.f32: the other operand if one is NaN.
    return cute.arch.fmin(a, b)


def load_vector(memory, index, count):
    # Load a vector.
    x = cute.make_rmem_tensor((count,), memory.element_type)
    cute.autovec_copy(vector_of(memory, index, count), x)
    return [x[i] for i in range(count)]


def magnitude(x):
    # Absolute value.
    return (x.bitcast(Int32) & Int32(0x7FFFFFFF)).bitcast(Float32)


def mul(a, b):
    # One rounding, never part of a fused operation.
    return cute.math.mul(a, b, rounding=NEAREST)


def portable_sigmoid(x):
    # 1 / (1 + e**-x), accurate in both tails, with gradual underflow.
    i0 = Float32(x).bitcast(Int32)
    i1 = i0 | Int32(-2147483648)
    f2 = Int32(i1).bitcast(Float32)
    f3 = fmax(f2, Float32(-104.0))
    f4 = fma(f3, Float32(1.4426950216293335), Float32(12582912.0))
    f5 = f4 - Float32(12582912.0)
    f6 = fma(f5, Float32(-0.6931471824645996), f3)
    f7 = fma(f5, Float32(1.9046542121259336e-09), f6)
    f8 = fma(Float32(0.0013819490559399128), f7, Float32(0.008368690498173237))
    f9 = fma(f8, f7, Float32(0.041668280959129333))
    f10 = fma(f9, f7, Float32(0.1666652113199234))
    f11 = fma(f10, f7, Float32(0.4999999403953552))
    f12 = fma(f11, f7, Float32(1.0))
    f13 = mul(f12, f7)
    i14 = Float32(f4).bitcast(Int32)
    i15 = i14 - Int32(1262485504)
    i16 = i15 >> Int32(1)
    i17 = i16 << Int32(23)
    i18 = i17 + Int32(1065353216)
    f19 = Int32(i18).bitcast(Float32)
    i20 = i15 - i16
    i21 = i20 << Int32(23)
    i22 = i21 + Int32(1065353216)
    f23 = Int32(i22).bitcast(Float32)
    f24 = f13 + Float32(1.0)
    f25 = mul(f24, f19)
    f26 = mul(f25, f23)
    f27 = f26 + Float32(1.0)
    f28 = mul(f27, Float32(-1.0))
    f29 = fma(Float32(-0.2060442566871643), f27, Float32(1.2625690698623657))
    f30 = fma(f29, f27, Float32(-2.842925786972046))
    f31 = fma(f30, f27, Float32(2.784339189529419))
    f32 = fma(f31, f28, Float32(1.0))
    f33 = fma(f32, f32, f32)
    f34 = fma(f31, f33, f31)
    f35 = fma(f34, f28, Float32(1.0))
    f36 = fma(f34, f35, f34)
    f37 = f27 - Float32(1.0)
    f38 = f26 - f37
    f39 = fma(f36, f27, Float32(-1.0))
    f40 = fma(f36, f38, f39)
    f41 = mul(f36, f19)
    f42 = fma(f13, f40, f40)
    f43 = f13 - f42
    f44 = fma(f41, f43, f41)
    f45 = mul(f44, f23)
    f46 = select((x < Float32(0.0)), f45, f36)
    f47 = select((x == x), f46, x)
    return f47


def select(condition, a, b):
    # condition ? a : b, without a branch.
    return cutlass.select_(condition, a, b)


def store_vector(memory, index, x):
    # Store a vector.
    made = cute.make_rmem_tensor((len(x),), memory.element_type)
    for i in range(len(x)):
        made[i] = x[i]
    cute.autovec_copy(made, vector_of(memory, index, len(x)))


def vector_of(memory, index, count):
    # A view of `count` contiguous, aligned elements.
    at = cute.assume(cute.crd2idx(index, memory.layout), divby=count)
    return cute.make_tensor(memory.iterator + at, (count,))


@cute.kernel
def geglu_grad_rows(
    gate: cute.Tensor, up: cute.Tensor, d_y: cute.Tensor, d_gate: cute.Tensor, d_up: cute.Tensor, T: Int32
):
    # A block owns 1 of T, 2048 of N (rows). N: 2048 indices, 16 to each of 128 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
    rest = block // 6
    t = rest
    n = [block % 6 * 2048 + thread * 8 + c % 8 + c // 8 * 1024 for c in range(16)]
    gate_value = [one for c in range(0, 16, 8) for one in load_vector(gate, (t, n[c]), 8)]  # model.py:81
    up_value = [one for c in range(0, 16, 8) for one in load_vector(up, (t, n[c]), 8)]
    d_y_value = [one for c in range(0, 16, 8) for one in load_vector(d_y, (t, n[c]), 8)]
    g = [BFloat16(gate_value[c]).to(Float32) for c in range(16)]
    u = [BFloat16(up_value[c]).to(Float32) for c in range(16)]
    d = [BFloat16(d_y_value[c]).to(Float32) for c in range(16)]
    d_times_u = [mul(d[c], u[c]) for c in range(16)]  # model.py:82
    d_times_u_bf16 = [Float32(d_times_u[c]).to(BFloat16) for c in range(16)]
    d_gelu = [BFloat16(d_times_u_bf16[c]).to(Float32) for c in range(16)]
    g_min_16 = [fmin(g[c], Float32(16.0)) for c in range(16)]  # model.py:54
    near = [fmax(g_min_16[c], Float32(-16.0)) for c in range(16)]
    square = [mul(near[c], near[c]) for c in range(16)]  # model.py:55
    g_times_g = [mul(g[c], g[c]) for c in range(16)]  # model.py:57
    z_product = [mul(g_times_g[c], g[c]) for c in range(16)]
    z_product_2 = [mul(Float32(0.044714998453855515), z_product[c]) for c in range(16)]
    z_sum = [g[c] + z_product_2[c] for c in range(16)]
    z = [mul(Float32(0.7978845834732056), z_sum[c]) for c in range(16)]
    abs_z = [magnitude(z[c]) for c in range(16)]  # model.py:58
    tail_product = [mul(Float32(-2.0), abs_z[c]) for c in range(16)]
    tail = [portable_sigmoid(tail_product[c]) for c in range(16)]
    inner_product = [mul(Float32(0.13414500653743744), square[c]) for c in range(16)]  # model.py:59
    inner_sum = [Float32(1.0) + inner_product[c] for c in range(16)]
    inner = [mul(Float32(1.5957691669464111), inner_sum[c]) for c in range(16)]
    g_gt_0 = [Float32(0.0) < g[c] for c in range(16)]  # model.py:60
    _1_minus_tail = [Float32(1.0) - tail[c] for c in range(16)]
    cdf = [select(g_gt_0[c], _1_minus_tail[c], tail[c]) for c in range(16)]
    rise_product = [mul(tail[c], _1_minus_tail[c]) for c in range(16)]
    rise_product_2 = [mul(rise_product[c], inner[c]) for c in range(16)]
    rise = [mul(near[c], rise_product_2[c]) for c in range(16)]
    g_times_cdf = [mul(g[c], cdf[c]) for c in range(16)]  # model.py:84
    gelu = [Float32(g_times_cdf[c]).to(BFloat16) for c in range(16)]
    cdf_plus_rise = [cdf[c] + rise[c] for c in range(16)]  # model.py:86
    d_gate_product = [mul(d_gelu[c], cdf_plus_rise[c]) for c in range(16)]
    d_gate_product_bf16 = [Float32(d_gate_product[c]).to(BFloat16) for c in range(16)]
    gelu_f32 = [BFloat16(gelu[c]).to(Float32) for c in range(16)]  # model.py:87
    d_up_product = [mul(d[c], gelu_f32[c]) for c in range(16)]
    d_up_product_bf16 = [Float32(d_up_product[c]).to(BFloat16) for c in range(16)]
    for c in cutlass.range_constexpr(0, 16, 8):  # model.py:85
        store_vector(d_gate, (t, n[c]), d_gate_product_bf16[c:c + 8])
    for c in cutlass.range_constexpr(0, 16, 8):
        store_vector(d_up, (t, n[c]), d_up_product_bf16[c:c + 8])


@cute.jit
def launch_geglu_grad(
    gate_ptr: cute.Pointer, up_ptr: cute.Pointer, d_y_ptr: cute.Pointer, d_gate_ptr: cute.Pointer,
    d_up_ptr: cute.Pointer, T: Int32, gate_t_stride: Int64, up_t_stride: Int64, d_y_t_stride: Int64,
    d_gate_t_stride: Int64, d_up_t_stride: Int64, programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    gate = cute.make_tensor(gate_ptr, cute.make_layout((T, 12288), stride=(gate_t_stride, 1)))
    up = cute.make_tensor(up_ptr, cute.make_layout((T, 12288), stride=(up_t_stride, 1)))
    d_y = cute.make_tensor(d_y_ptr, cute.make_layout((T, 12288), stride=(d_y_t_stride, 1)))
    d_gate = cute.make_tensor(d_gate_ptr, cute.make_layout((T, 12288), stride=(d_gate_t_stride, 1)))
    d_up = cute.make_tensor(d_up_ptr, cute.make_layout((T, 12288), stride=(d_up_t_stride, 1)))
    geglu_grad_rows(gate, up, d_y, d_gate, d_up, T).launch(
        grid=(programs, 1, 1), block=(128, 1, 1), use_pdl=overlap, stream=stream,
    )


def call(
    kernels, gate, up, d_y, d_gate, d_up, T, gate_t_stride, up_t_stride, d_y_t_stride, d_gate_t_stride, d_up_t_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T * 6
    if programs > 0:
        kernels.geglu_grad(
            (programs,), gate, up, d_y, d_gate, d_up, T, gate_t_stride, up_t_stride, d_y_t_stride, d_gate_t_stride,
            d_up_t_stride
        )
