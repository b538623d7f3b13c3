"""adamw on gfx942, written by rlk 0.1.0: do not edit.

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

import struct

import tilelang.language as tl


def memory(name, dtype):
    """The elements of a tensor in a row: addresses are counted from the first."""
    return tl.Tensor((tl.dynamic(f"{name}_size", "int64"),), dtype)


def f32(number):
    """A constant by its bits: HIP text has seven digits, and a sum with 0.0 would be folded away."""
    return tl.reinterpret(tl.uint32(struct.unpack("<I", struct.pack("<f", number))[0]), "float32")


@tl.macro
def fma(a, b, c):
    # a * b + c with one rounding.
    return tl.call_extern("float32", "fmaf", a, b, c)


@tl.macro
def high_product(a, b):
    # The upper 32 bits of an unsigned product.
    product = tl.Cast("uint64", a) * tl.Cast("uint64", b)
    return tl.Cast("uint32", tl.shift_right(product, tl.uint64(32)))


@tl.macro
def philox(c0, c1, c2, c3, k0, k1):
    # Four random words: Philox 4x32-10.
    x0 = tl.alloc_var("uint32", c0)
    x1 = tl.alloc_var("uint32", c1)
    x2 = tl.alloc_var("uint32", c2)
    x3 = tl.alloc_var("uint32", c3)
    y0 = tl.alloc_var("uint32", k0)
    y1 = tl.alloc_var("uint32", k1)
    for _ in tl.unroll(10):
        high0 = tl.alloc_var("uint32", high_product(x0, tl.uint32(0xD2511F53)))
        high1 = tl.alloc_var("uint32", high_product(x2, tl.uint32(0xCD9E8D57)))
        low0 = tl.alloc_var("uint32", x0 * tl.uint32(0xD2511F53))
        low1 = tl.alloc_var("uint32", x2 * tl.uint32(0xCD9E8D57))
        x0 = high1 ^ x1 ^ y0
        x1 = low1
        x2 = high0 ^ x3 ^ y1
        x3 = low0
        y0 = y0 + tl.uint32(0x9E3779B9)
        y1 = y1 + tl.uint32(0xBB67AE85)
    return x0, x1, x2, x3


@tl.prim_func
def adamw(
    weight: memory("weight", "bfloat16"), grad: memory("grad", "bfloat16"), m: memory("m", "float32"),
    v: memory("v", "float32"), row: memory("row", "int32"), weight_out: memory("weight_out", "bfloat16"),
    m_out: memory("m_out", "float32"), v_out: memory("v_out", "float32"), weight_r_stride: tl.int64,
    grad_r_stride: tl.int64, m_r_stride: tl.int64, v_r_stride: tl.int64, weight_out_r_stride: tl.int64,
    m_out_r_stride: tl.int64, v_out_r_stride: tl.int64, R: tl.int32, lr: tl.float32, beta1: tl.float32,
    beta2: tl.float32, eps: tl.float32, decay: tl.float32, scale1: tl.float32, scale2: tl.float32, seed: tl.int32,
    step: tl.int32, programs: tl.int32
):
    # A block owns 1 of R, 2048 of C (rows). C: 2048 indices, 8 to each of 256 threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        c_2 = tl.alloc_local((8,), "int32")
        weight_value = tl.alloc_local((8,), "bfloat16")
        grad_value = tl.alloc_local((8,), "bfloat16")
        m_value = tl.alloc_local((8,), "float32")
        v_value = tl.alloc_local((8,), "float32")
        w = tl.alloc_local((8,), "float32")
        g = tl.alloc_local((8,), "float32")
        m_new_product = tl.alloc_local((8,), "float32")
        m_new = tl.alloc_local((8,), "float32")
        g_times_g = tl.alloc_local((8,), "float32")
        v_new_product = tl.alloc_local((8,), "float32")
        v_new = tl.alloc_local((8,), "float32")
        m_new_times_scale1 = tl.alloc_local((8,), "float32")
        v_new_times_scale2 = tl.alloc_local((8,), "float32")
        update_sqrt = tl.alloc_local((8,), "float32")
        update_sum = tl.alloc_local((8,), "float32")
        update = tl.alloc_local((8,), "float32")
        moved_product = tl.alloc_local((8,), "float32")
        lr_times_update = tl.alloc_local((8,), "float32")
        moved = tl.alloc_local((8,), "float32")
        c_u32 = tl.alloc_local((8,), "uint32")
        word_0 = tl.alloc_local((8,), "uint32")
        word_1 = tl.alloc_local((8,), "uint32")
        word_2 = tl.alloc_local((8,), "uint32")
        word_3 = tl.alloc_local((8,), "uint32")
        bits = tl.alloc_local((8,), "uint32")
        up_both = tl.alloc_local((8,), "uint32")
        up_sum = tl.alloc_local((8,), "uint32")
        up_shifted = tl.alloc_local((8,), "uint32")
        up = tl.alloc_local((8,), "uint32")
        finite_both = tl.alloc_local((8,), "uint32")
        finite = tl.alloc_local((8,), "bool")
        weight_out_selected = tl.alloc_local((8,), "uint32")
        weight_out_selected_bits = tl.alloc_local((8,), "float32")
        weight_out_selected_bits_bf16 = tl.alloc_local((8,), "bfloat16")
        rest = tl.truncdiv(block, 2)
        r = rest
        for c in tl.unroll(8):
            c_2[c] = tl.truncmod(block, 2) * 2048 + thread + c * 256
        row_value = tl.alloc_var("int32", row[r])  # adamw.py:40
        for c in tl.unroll(8):  # adamw.py:34
            weight_value[c] = weight[tl.int64(r) * weight_r_stride + c_2[c]]
            grad_value[c] = grad[tl.int64(r) * grad_r_stride + c_2[c]]
            m_value[c] = m[tl.int64(r) * m_r_stride + c_2[c]]  # adamw.py:35
            v_value[c] = v[tl.int64(r) * v_r_stride + c_2[c]]  # adamw.py:36
        lr_value = tl.alloc_var("float32", lr)
        beta1_value = tl.alloc_var("float32", beta1)
        beta2_value = tl.alloc_var("float32", beta2)
        eps_value = tl.alloc_var("float32", eps)
        decay_value = tl.alloc_var("float32", decay)
        scale1_value = tl.alloc_var("float32", scale1)
        scale2_value = tl.alloc_var("float32", scale2)
        seed_value = tl.alloc_var("int32", seed)
        step_value = tl.alloc_var("int32", step)
        for c in tl.unroll(8):  # adamw.py:34
            w[c] = tl.Cast("float32", weight_value[c])
            g[c] = tl.Cast("float32", grad_value[c])
        _1_minus_beta1 = tl.alloc_var("float32", f32(1.0) - beta1_value)  # adamw.py:35
        for c in tl.unroll(8):
            m_new_product[c] = _1_minus_beta1 * g[c]
            m_new[c] = fma(beta1_value, m_value[c], m_new_product[c])
        _1_minus_beta2 = tl.alloc_var("float32", f32(1.0) - beta2_value)  # adamw.py:36
        for c in tl.unroll(8):
            g_times_g[c] = g[c] * g[c]
            v_new_product[c] = _1_minus_beta2 * g_times_g[c]
            v_new[c] = fma(beta2_value, v_value[c], v_new_product[c])
            m_new_times_scale1[c] = m_new[c] * scale1_value  # adamw.py:37
            v_new_times_scale2[c] = v_new[c] * scale2_value
            update_sqrt[c] = tl.sqrt(v_new_times_scale2[c])
            update_sum[c] = update_sqrt[c] + eps_value
            update[c] = m_new_times_scale1[c] / update_sum[c]
        lr_times_decay = tl.alloc_var("float32", lr_value * decay_value)  # adamw.py:38
        moved_difference = tl.alloc_var("float32", f32(1.0) - lr_times_decay)
        for c in tl.unroll(8):
            moved_product[c] = w[c] * moved_difference
            lr_times_update[c] = lr_value * update[c]
            moved[c] = moved_product[c] - lr_times_update[c]
        row_u32 = tl.alloc_var("uint32", tl.Cast("uint32", row_value))  # adamw.py:40
        for c in tl.unroll(8):
            c_u32[c] = tl.Cast("uint32", c_2[c])
        step_u32 = tl.alloc_var("uint32", tl.Cast("uint32", step_value))
        seed_u32 = tl.alloc_var("uint32", tl.Cast("uint32", seed_value))
        for c in tl.unroll(8):
            word_0[c], word_1[c], word_2[c], word_3[c] = philox(
                row_u32, c_u32[c], step_u32, tl.uint32(0), seed_u32, tl.uint32(0)
            )
            bits[c] = tl.reinterpret(moved[c], "uint32")  # adamw.py:16
            up_both[c] = word_0[c] & 65535  # adamw.py:17
            up_sum[c] = bits[c] + up_both[c]
            up_shifted[c] = up_sum[c] >> 16
            up[c] = up_shifted[c] << 16
            finite_both[c] = bits[c] & 2139095040  # adamw.py:18
            finite[c] = finite_both[c] != 2139095040
            weight_out_selected[c] = tl.Select(finite[c], up[c], bits[c])  # adamw.py:19
            weight_out_selected_bits[c] = tl.reinterpret(weight_out_selected[c], "float32")
            weight_out_selected_bits_bf16[c] = tl.Cast("bfloat16", weight_out_selected_bits[c])
            weight_out[tl.int64(r) * weight_out_r_stride + c_2[c]] = weight_out_selected_bits_bf16[c]  # adamw.py:41
            m_out[tl.int64(r) * m_out_r_stride + c_2[c]] = m_new[c]
            v_out[tl.int64(r) * v_out_r_stride + c_2[c]] = v_new[c]


def call(
    kernels, weight, grad, m, v, row, weight_out, m_out, v_out, lr, beta1, beta2, eps, decay, scale1, scale2, seed,
    step, R, weight_r_stride, grad_r_stride, m_r_stride, v_r_stride, weight_out_r_stride, m_out_r_stride, v_out_r_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = R * 2
    if programs > 0:
        kernels.adamw(
            (programs,), weight, grad, m, v, row, weight_out, m_out, v_out, weight_r_stride, grad_r_stride, m_r_stride,
            v_r_stride, weight_out_r_stride, m_out_r_stride, v_out_r_stride, R, lr, beta1, beta2, eps, decay, scale1,
            scale2, seed, step
        )
