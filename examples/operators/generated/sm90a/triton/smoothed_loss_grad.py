"""smoothed_loss_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 21d7835b50d34c98
schedule: tiles V=2048, 4 warps, 1 stages, unroll 1
inputs:
  logits: bf16 [T, V=128256]
  targets: i64 [T]
  lse: f32 [T]
  d_loss: f32 [T]
outputs:
  d_logits: bf16 [T, V=128256]
scalars:
  smoothing: f32
"""

import triton
import triton.language as tl


@triton.jit
def smoothed_loss_grad(
    logits_ptr, targets_ptr, lse_ptr, d_loss_ptr, d_logits_ptr, logits_t_stride, d_logits_t_stride, smoothing
):
    # A program owns 1 of T, 2048 of V (rows).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    program = tl.program_id(0)
    program_2 = program // 63
    v = (program % 63) * 2048 + tl.arange(0, 2048)
    v_inside = v < 128256
    t = program_2
    lse = tl.load(lse_ptr + t)  # smoothed_loss.py:40
    targets = tl.load(targets_ptr + t)  # smoothed_loss.py:41
    d_loss = tl.load(d_loss_ptr + t)  # smoothed_loss.py:43
    logits = tl.load(logits_ptr + t.to(tl.int64) * logits_t_stride + v, mask=v_inside, other=0.0)  # smoothed_loss.py:40
    logits_f32 = logits.to(tl.float32)
    p_difference = logits_f32 - lse
    p_product = p_difference * 1.442695
    p = tl.exp2(p_product)
    v_i64 = v.to(tl.int64)  # smoothed_loss.py:41
    hit_equal = v_i64 == targets
    _1_minus_smoothing = 1.0 - smoothing
    hit = tl.where(hit_equal, _1_minus_smoothing, 0.0)
    level = tl.div_rn(smoothing, 128256.0)  # smoothed_loss.py:42
    p_minus_hit = p - hit  # smoothed_loss.py:43
    d_logits_difference = p_minus_hit - level
    d_logits_product = d_loss * d_logits_difference
    d_logits_product_bf16 = d_logits_product.to(tl.bfloat16)
    tl.store(d_logits_ptr + t.to(tl.int64) * d_logits_t_stride + v, d_logits_product_bf16, mask=v_inside)


def call(kernels, logits, targets, lse, d_loss, d_logits, smoothing, T, logits_t_stride, d_logits_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T * 63
    if programs > 0:
        kernels.smoothed_loss_grad(
            (programs,), logits, targets, lse, d_loss, d_logits, logits_t_stride, d_logits_t_stride, smoothing
        )
