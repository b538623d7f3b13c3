"""adamw on sm_90a, written by rlk 0.1.0: do not edit.

numerics: f00d5523c57bdd81
schedule: tiles C=2048, 4 warps, 1 stages, unroll 1
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

import triton
import triton.language as tl


@triton.jit
def philox(c0, c1, c2, c3, k0, k1):
    # Four random words: Philox 4x32-10.
    for _ in tl.static_range(10):
        high0, low0 = tl.umulhi(c0, 0xD2511F53), c0 * 0xD2511F53
        high1, low1 = tl.umulhi(c2, 0xCD9E8D57), c2 * 0xCD9E8D57
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + 0x9E3779B9, k1 + 0xBB67AE85
    return c0, c1, c2, c3


@triton.jit
def adamw(
    weight_ptr, grad_ptr, m_ptr, v_ptr, row_ptr, weight_out_ptr, m_out_ptr, v_out_ptr, weight_r_stride, grad_r_stride,
    m_r_stride, v_r_stride, weight_out_r_stride, m_out_r_stride, v_out_r_stride, lr, beta1, beta2, eps, decay, scale1,
    scale2, seed, step
):
    # A program owns 1 of R, 2048 of C (rows).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    program = tl.program_id(0)
    program_2 = program // 2
    c = (program % 2) * 2048 + tl.arange(0, 2048)
    r = program_2
    row = tl.load(row_ptr + r)  # adamw.py:40
    weight = tl.load(weight_ptr + r.to(tl.int64) * weight_r_stride + c)  # adamw.py:34
    grad = tl.load(grad_ptr + r.to(tl.int64) * grad_r_stride + c)
    m = tl.load(m_ptr + r.to(tl.int64) * m_r_stride + c)  # adamw.py:35
    v = tl.load(v_ptr + r.to(tl.int64) * v_r_stride + c)  # adamw.py:36
    w = weight.to(tl.float32)  # adamw.py:34
    g = grad.to(tl.float32)
    _1_minus_beta1 = 1.0 - beta1  # adamw.py:35
    m_new_product = _1_minus_beta1 * g
    m_new = tl.fma(beta1, m, m_new_product)
    _1_minus_beta2 = 1.0 - beta2  # adamw.py:36
    g_times_g = g * g
    v_new_product = _1_minus_beta2 * g_times_g
    v_new = tl.fma(beta2, v, v_new_product)
    m_new_times_scale1 = m_new * scale1  # adamw.py:37
    v_new_times_scale2 = v_new * scale2
    update_sqrt = tl.sqrt_rn(v_new_times_scale2)
    update_sum = update_sqrt + eps
    update = tl.div_rn(m_new_times_scale1, update_sum)
    lr_times_decay = lr * decay  # adamw.py:38
    moved_difference = 1.0 - lr_times_decay
    moved_product = w * moved_difference
    lr_times_update = lr * update
    moved = moved_product - lr_times_update
    row_u32 = row.to(tl.uint32)  # adamw.py:40
    c_u32 = c.to(tl.uint32)
    step_u32 = step.to(tl.uint32)
    seed_u32 = seed.to(tl.uint32)
    word0, word1, word2, word3 = philox(
        row_u32, c_u32, step_u32, tl.full((), 0, tl.uint32), seed_u32, tl.full((), 0, tl.uint32)
    )
    bits = moved.to(tl.uint32, bitcast=True)  # adamw.py:16
    up_both = word0 & 65535  # adamw.py:17
    up_sum = bits + up_both
    up_shifted = up_sum >> 16
    up = up_shifted << 16
    finite_both = bits & 2139095040  # adamw.py:18
    finite = finite_both != 2139095040
    weight_out_selected = tl.where(finite, up, bits)  # adamw.py:19
    weight_out_selected_bits = weight_out_selected.to(tl.float32, bitcast=True)
    weight_out_selected_bits_bf16 = weight_out_selected_bits.to(tl.bfloat16)
    tl.store(weight_out_ptr + r.to(tl.int64) * weight_out_r_stride + c, weight_out_selected_bits_bf16)  # adamw.py:41
    tl.store(m_out_ptr + r.to(tl.int64) * m_out_r_stride + c, m_new)
    tl.store(v_out_ptr + r.to(tl.int64) * v_out_r_stride + c, v_new)


def call(
    kernels, weight, grad, m, v, row, weight_out, m_out, v_out, lr, beta1, beta2, eps, decay, scale1, scale2, seed,
    step, R, weight_r_stride, grad_r_stride, m_r_stride, v_r_stride, weight_out_r_stride, m_out_r_stride, v_out_r_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = R * 2
    if programs > 0:
        kernels.adamw(
            (programs,), weight, grad, m, v, row, weight_out, m_out, v_out, weight_r_stride, grad_r_stride, m_r_stride,
            v_r_stride, weight_out_r_stride, m_out_r_stride, v_out_r_stride, lr, beta1, beta2, eps, decay, scale1,
            scale2, seed, step
        )
