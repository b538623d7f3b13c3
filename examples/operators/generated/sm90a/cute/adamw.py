"""adamw on sm_90a, written by rlk 0.1.0: do not edit.

numerics: f00d5523c57bdd81
schedule: tiles C=2048, 4 warps, 1 stages, unroll 1 placed C[9:3] C[2:0] C[10:10]
inputs:
  weight: bf16 [R, C=4096]
  grad: bf16 [R, C=4096]
  m: f32 [R, C=4096]
  v: f32 [R, C=4096]
  row: i32 [R]
outputs:
  weight_out: bf16 [R, C=4096]
  m_out: f32 [R, C=4096]
  v_out: f32 [R, C=4096]
scalars:
  lr: f32
  beta1: f32
  beta2: f32
  eps: f32
  decay: f32
  scale1: f32
  scale2: f32
  seed: i32
  step: i32
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


def div(a, b):
    # Correctly rounded.
    return a / b


def fma(a, b, c):
    # a * b + c with one rounding.
    return cute.math.fma(a, b, c, rounding=NEAREST)


def load_vector(memory, index, count):
    # Load a vector.
    x = cute.make_rmem_tensor((count,), memory.element_type)
    cute.autovec_copy(vector_of(memory, index, count), x)
    return [x[i] for i in range(count)]


def mul(a, b):
    # One rounding, never part of a fused operation.
    return cute.math.mul(a, b, rounding=NEAREST)


def mulhi(a, b):
    # The upper word of a product of words.
    return (Int64(a) * Int64(b) >> 32).to(Uint32)


def philox(c0, c1, c2, c3, k0, k1):
    # Four random words: Philox 4x32-10.
    for _ in range(10):
        high0, low0 = mulhi(c0, Uint32(0xD2511F53)), c0 * Uint32(0xD2511F53)
        high1, low1 = mulhi(c2, Uint32(0xCD9E8D57)), c2 * Uint32(0xCD9E8D57)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + Uint32(0x9E3779B9), k1 + Uint32(0xBB67AE85)
    return c0, c1, c2, c3


def select(condition, a, b):
    # condition ? a : b, without a branch.
    return cutlass.select_(condition, a, b)


def square_root(x):
    # sqrt.rn.f32.
    return cute.math.sqrt(x)


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
def adamw_rows(
    weight: cute.Tensor, grad: cute.Tensor, m: cute.Tensor, v: cute.Tensor, row: cute.Tensor, weight_out: cute.Tensor,
    m_out: cute.Tensor, v_out: cute.Tensor, R: Int32, lr: Float32, beta1: Float32, beta2: Float32, eps: Float32,
    decay: Float32, scale1: Float32, scale2: Float32, seed: Int32, step: Int32
):
    # A block owns 1 of R, 2048 of C (rows). C: 2048 indices, 16 to each of 128 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
    rest = block // 2
    r = rest
    c_2 = [block % 2 * 2048 + thread * 8 + c % 8 + c // 8 * 1024 for c in range(16)]
    row_value = row[r]  # adamw.py:40
    weight_value = [one for c in range(0, 16, 8) for one in load_vector(weight, (r, c_2[c]), 8)]  # adamw.py:34
    grad_value = [one for c in range(0, 16, 8) for one in load_vector(grad, (r, c_2[c]), 8)]
    m_value = [one for c in range(0, 16, 4) for one in load_vector(m, (r, c_2[c]), 4)]  # adamw.py:35
    v_value = [one for c in range(0, 16, 4) for one in load_vector(v, (r, c_2[c]), 4)]  # adamw.py:36
    w = [BFloat16(weight_value[c]).to(Float32) for c in range(16)]  # adamw.py:34
    g = [BFloat16(grad_value[c]).to(Float32) for c in range(16)]
    _1_minus_beta1 = Float32(1.0) - beta1  # adamw.py:35
    m_new_product = [mul(_1_minus_beta1, g[c]) for c in range(16)]
    m_new = [fma(beta1, m_value[c], m_new_product[c]) for c in range(16)]
    _1_minus_beta2 = Float32(1.0) - beta2  # adamw.py:36
    g_times_g = [mul(g[c], g[c]) for c in range(16)]
    v_new_product = [mul(_1_minus_beta2, g_times_g[c]) for c in range(16)]
    v_new = [fma(beta2, v_value[c], v_new_product[c]) for c in range(16)]
    m_new_times_scale1 = [mul(m_new[c], scale1) for c in range(16)]  # adamw.py:37
    v_new_times_scale2 = [mul(v_new[c], scale2) for c in range(16)]
    update_sqrt = [square_root(v_new_times_scale2[c]) for c in range(16)]
    update_sum = [update_sqrt[c] + eps for c in range(16)]
    update = [div(m_new_times_scale1[c], update_sum[c]) for c in range(16)]
    lr_times_decay = mul(lr, decay)  # adamw.py:38
    moved_difference = Float32(1.0) - lr_times_decay
    moved_product = [mul(w[c], moved_difference) for c in range(16)]
    lr_times_update = [mul(lr, update[c]) for c in range(16)]
    moved = [moved_product[c] - lr_times_update[c] for c in range(16)]
    row_u32 = Int32(row_value).to(Uint32)  # adamw.py:40
    c_u32 = [Int32(c_2[c]).to(Uint32) for c in range(16)]
    step_u32 = Int32(step).to(Uint32)
    seed_u32 = Int32(seed).to(Uint32)
    words = [
        philox(Uint32(row_u32), Uint32(c_u32[c]), Uint32(step_u32), Uint32(0), Uint32(seed_u32), Uint32(0))
        for c in range(16)
    ]
    word0 = [block[0] for block in words]
    bits = [Float32(moved[c]).bitcast(Uint32) for c in range(16)]  # adamw.py:16
    up_both = [word0[c] & 65535 for c in range(16)]  # adamw.py:17
    up_sum = [bits[c] + up_both[c] for c in range(16)]
    up_shifted = [up_sum[c] >> 16 for c in range(16)]
    up = [up_shifted[c] << 16 for c in range(16)]
    finite_both = [bits[c] & 2139095040 for c in range(16)]  # adamw.py:18
    finite = [finite_both[c] != 2139095040 for c in range(16)]
    weight_out_selected = [select(finite[c], up[c], bits[c]) for c in range(16)]  # adamw.py:19
    weight_out_selected_bits = [Uint32(weight_out_selected[c]).bitcast(Float32) for c in range(16)]
    weight_out_selected_bits_bf16 = [Float32(weight_out_selected_bits[c]).to(BFloat16) for c in range(16)]
    for c in cutlass.range_constexpr(0, 16, 8):  # adamw.py:41
        store_vector(weight_out, (r, c_2[c]), weight_out_selected_bits_bf16[c:c + 8])
    for c in cutlass.range_constexpr(0, 16, 4):
        store_vector(m_out, (r, c_2[c]), m_new[c:c + 4])
    for c in cutlass.range_constexpr(0, 16, 4):
        store_vector(v_out, (r, c_2[c]), v_new[c:c + 4])


@cute.jit
def launch_adamw(
    weight_ptr: cute.Pointer, grad_ptr: cute.Pointer, m_ptr: cute.Pointer, v_ptr: cute.Pointer, row_ptr: cute.Pointer,
    weight_out_ptr: cute.Pointer, m_out_ptr: cute.Pointer, v_out_ptr: cute.Pointer, R: Int32, weight_r_stride: Int64,
    grad_r_stride: Int64, m_r_stride: Int64, v_r_stride: Int64, weight_out_r_stride: Int64, m_out_r_stride: Int64,
    v_out_r_stride: Int64, lr: Float32, beta1: Float32, beta2: Float32, eps: Float32, decay: Float32, scale1: Float32,
    scale2: Float32, seed: Int32, step: Int32, programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    weight = cute.make_tensor(weight_ptr, cute.make_layout((R, 4096), stride=(weight_r_stride, 1)))
    grad = cute.make_tensor(grad_ptr, cute.make_layout((R, 4096), stride=(grad_r_stride, 1)))
    m = cute.make_tensor(m_ptr, cute.make_layout((R, 4096), stride=(m_r_stride, 1)))
    v = cute.make_tensor(v_ptr, cute.make_layout((R, 4096), stride=(v_r_stride, 1)))
    row = cute.make_tensor(row_ptr, cute.make_layout((R,), stride=(1,)))
    weight_out = cute.make_tensor(weight_out_ptr, cute.make_layout((R, 4096), stride=(weight_out_r_stride, 1)))
    m_out = cute.make_tensor(m_out_ptr, cute.make_layout((R, 4096), stride=(m_out_r_stride, 1)))
    v_out = cute.make_tensor(v_out_ptr, cute.make_layout((R, 4096), stride=(v_out_r_stride, 1)))
    adamw_rows(
        weight, grad, m, v, row, weight_out, m_out, v_out, R, lr, beta1, beta2, eps, decay, scale1, scale2, seed, step
    ).launch(grid=(programs, 1, 1), block=(128, 1, 1), use_pdl=overlap, stream=stream,)


def call(
    kernels, weight, grad, m, v, row, weight_out, m_out, v_out, lr, beta1, beta2, eps, decay, scale1, scale2, seed,
    step, R, weight_r_stride, grad_r_stride, m_r_stride, v_r_stride, weight_out_r_stride, m_out_r_stride, v_out_r_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = R * 2
    if programs > 0:
        kernels.adamw(
            (programs,), weight, grad, m, v, row, weight_out, m_out, v_out, R, weight_r_stride, grad_r_stride,
            m_r_stride, v_r_stride, weight_out_r_stride, m_out_r_stride, v_out_r_stride, lr, beta1, beta2, eps, decay,
            scale1, scale2, seed, step
        )
