"""logp_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: dacc02d8dad670e9
schedule: tiles V=2048, 4 warps, 1 stages, unroll 1
inputs:
  logits: bf16 [T, V=128256]
  ids: i64 [T]
  lse: f32 [T]
  entropy: f32 [T]
  d_logp: f32 [T]
  d_lse: f32 [T]
  d_entropy: f32 [T]
outputs:
  d_logits: bf16 [T, V=128256]
scalars:
  inv_temperature: f32
  ignore_index: i64
"""

import triton
import triton.language as tl


@triton.jit
def logp_grad(
    logits_ptr, ids_ptr, lse_ptr, entropy_ptr, d_logp_ptr, d_lse_ptr, d_entropy_ptr, d_logits_ptr, logits_t_stride,
    d_logits_t_stride, inv_temperature, ignore_index
):
    # A program owns 1 of T, 2048 of V (rows).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    program = tl.program_id(0)
    program_2 = program // 63
    v = (program % 63) * 2048 + tl.arange(0, 2048)
    v_inside = v < 128256
    t = program_2
    ids = tl.load(ids_ptr + t)  # logp.py:175
    lse = tl.load(lse_ptr + t)  # logp.py:193
    d_lse = tl.load(d_lse_ptr + t)  # logp.py:215
    d_logp = tl.load(d_logp_ptr + t)
    d_entropy = tl.load(d_entropy_ptr + t)  # logp.py:198
    entropy = tl.load(entropy_ptr + t)
    active = ids != ignore_index  # logp.py:207
    # logp.py:178
    logits = tl.load(logits_ptr + t.to(tl.int64) * logits_t_stride + v, mask=active & v_inside, other=0.0)
    z = logits.to(tl.float32)  # logp.py:48
    z_2 = z * inv_temperature  # logp.py:57
    centred = z_2 - lse  # logp.py:193
    centred_times_log2e = centred * 1.442695  # logp.py:194
    p = tl.exp2(centred_times_log2e)
    d_lse_minus_d_logp = d_lse - d_logp  # logp.py:215
    dz = p * d_lse_minus_d_logp  # logp.py:195
    p_is_0 = p == 0.0  # logp.py:198
    d_entropy_times_p = d_entropy * p
    centred_plus_entropy = centred + entropy
    dz_product = d_entropy_times_p * centred_plus_entropy
    dz_product_or_0 = tl.where(p_is_0, 0.0, dz_product)
    dz_2 = dz - dz_product_or_0
    ids_ge_0 = ids >= 0  # logp.py:200
    inside_below = ids < 128256
    inside = ids_ge_0 & inside_below
    ids_masked = tl.where(inside, ids, -1)  # logp.py:201
    ids_i32 = ids_masked.to(tl.int32)
    dz_equal = v == ids_i32
    d_logp_masked = tl.where(dz_equal, d_logp, 0.0)
    dz_3 = dz_2 + d_logp_masked
    dz_times_inv_temperature = dz_3 * inv_temperature  # logp.py:63
    grad = tl.where(active, dz_times_inv_temperature, 0.0)  # logp.py:182
    grad_bf16 = grad.to(tl.bfloat16)  # logp.py:185
    tl.store(d_logits_ptr + t.to(tl.int64) * d_logits_t_stride + v, grad_bf16, mask=v_inside)


def call(
    kernels, logits, ids, lse, entropy, d_logp, d_lse, d_entropy, d_logits, inv_temperature, ignore_index, T,
    logits_t_stride, d_logits_t_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T * 63
    if programs > 0:
        kernels.logp_grad(
            (programs,), logits, ids, lse, entropy, d_logp, d_lse, d_entropy, d_logits, logits_t_stride,
            d_logits_t_stride, inv_temperature, ignore_index
        )
