"""penalize on gfx942, written by rlk 0.1.0: do not edit.

numerics: 139404401aa03e4a
schedule: tiles V=2048, 4 warps, 1 stages, unroll 1
"""

import triton
import triton.language as tl


@triton.jit
def penalize(logits_ptr, counts_ptr, prompt_ptr, repetition_ptr, frequency_ptr, presence_ptr, scores_ptr, logits_t_stride, counts_t_stride, prompt_t_stride, scores_t_stride):
    # A program owns 1 of T, 2048 of V (rows).
    program = tl.program_id(0)
    program_2 = program // 75
    v = (program % 75) * 2048 + tl.arange(0, 2048)
    v_inside = v < 151936
    t = program_2
    repetition = tl.load(repetition_ptr + t)  # sampling.py:358
    frequency = tl.load(frequency_ptr + t)  # sampling.py:359
    presence = tl.load(presence_ptr + t)  # sampling.py:360
    logits = tl.load(logits_ptr + t.to(tl.int64) * logits_t_stride + v, mask=v_inside, other=0.0)  # sampling.py:356
    counts = tl.load(counts_ptr + t.to(tl.int64) * counts_t_stride + v, mask=v_inside, other=0)  # sampling.py:356
    prompt = tl.load(prompt_ptr + t.to(tl.int64) * prompt_t_stride + v, mask=v_inside, other=0)  # sampling.py:357
    as_f32 = logits.to(tl.float32)  # sampling.py:356
    below = counts > 0  # sampling.py:356
    either = below | prompt  # sampling.py:357
    below_2 = as_f32 > 0.0  # sampling.py:358
    quotient = tl.div_rn(as_f32, repetition)  # sampling.py:358
    product = as_f32 * repetition  # sampling.py:358
    chosen = tl.where(below_2, quotient, product)  # sampling.py:358
    chosen_2 = tl.where(either, chosen, as_f32)  # sampling.py:358
    as_f32_2 = counts.to(tl.float32)  # sampling.py:359
    product_2 = frequency * as_f32_2  # sampling.py:359
    difference = chosen_2 - product_2  # sampling.py:359
    chosen_3 = tl.where(below, presence, 0.0)  # sampling.py:360
    difference_2 = difference - chosen_3  # sampling.py:360
    tl.store(scores_ptr + t.to(tl.int64) * scores_t_stride + v, difference_2, mask=v_inside)  # sampling.py:360


def call(kernels, logits, counts, prompt, repetition, frequency, presence, scores, T, logits_t_stride, counts_t_stride, prompt_t_stride, scores_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T * 75
    if programs > 0:
        kernels.penalize((programs,), logits, counts, prompt, repetition, frequency, presence, scores, logits_t_stride, counts_t_stride, prompt_t_stride, scores_t_stride)
