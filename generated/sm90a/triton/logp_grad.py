"""logp_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: dacc02d8dad670e9
schedule: tiles V=2048, 4 warps, 1 stages, unroll 1
"""

import triton
import triton.language as tl


@triton.jit
def logp_grad(
    logits_ptr, ids_ptr, lse_ptr, entropy_ptr, d_logp_ptr, d_lse_ptr, d_entropy_ptr, d_logits_ptr, logits_t_stride,
    d_logits_t_stride, inv_temperature, ignore_index
):
    # A program owns 1 of T, 2048 of V (rows).
    program = tl.program_id(0)
    program_2 = program // 63
    v = (program % 63) * 2048 + tl.arange(0, 2048)
    v_inside = v < 128256
    t = program_2
    ids = tl.load(ids_ptr + t)  # logp.py:168
    lse = tl.load(lse_ptr + t)  # logp.py:186
    d_lse = tl.load(d_lse_ptr + t)  # logp.py:208
    d_logp = tl.load(d_logp_ptr + t)
    d_entropy = tl.load(d_entropy_ptr + t)  # logp.py:191
    entropy = tl.load(entropy_ptr + t)
    differs = ids != ignore_index  # logp.py:200
    # logp.py:171
    logits = tl.load(logits_ptr + t.to(tl.int64) * logits_t_stride + v, mask=differs & v_inside, other=0.0)
    as_f32 = logits.to(tl.float32)  # logp.py:48
    product = as_f32 * inv_temperature  # logp.py:57
    difference = product - lse  # logp.py:186
    product_2 = difference * 1.442695  # logp.py:187
    exp2 = tl.exp2(product_2)
    difference_2 = d_lse - d_logp  # logp.py:208
    product_3 = exp2 * difference_2  # logp.py:188
    equal = exp2 == 0.0  # logp.py:191
    product_4 = d_entropy * exp2
    total = difference + entropy
    product_5 = product_4 * total
    chosen = tl.where(equal, 0.0, product_5)
    difference_3 = product_3 - chosen
    at_most = ids >= 0  # logp.py:193
    below = ids < 128256
    both = at_most & below
    chosen_2 = tl.where(both, ids, -1)  # logp.py:194
    as_i32 = chosen_2.to(tl.int32)
    equal_2 = v == as_i32
    chosen_3 = tl.where(equal_2, d_logp, 0.0)
    total_2 = difference_3 + chosen_3
    product_6 = total_2 * inv_temperature  # logp.py:63
    chosen_4 = tl.where(differs, product_6, 0.0)  # logp.py:175
    as_bf16 = chosen_4.to(tl.bfloat16)  # logp.py:178
    tl.store(d_logits_ptr + t.to(tl.int64) * d_logits_t_stride + v, as_bf16, mask=v_inside)


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
