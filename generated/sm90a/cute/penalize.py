"""penalize on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 139404401aa03e4a
schedule: tiles V=2048, 4 warps, 1 stages, unroll 1 placed V[9:3] V[2:0] V[10:10]
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


@cute.jit
def load_vector_where(condition, memory: cute.Tensor, index, other, count: cutlass.Constexpr):
    # So many elements, read at once, or what stands for them.
    x = cute.make_rmem_tensor((count,), memory.element_type)
    x.fill(other)
    if condition:
        cute.autovec_copy(vector_of(memory, index, count), x)
    return [x[i] for i in range(count)]


@cute.jit
def load_where(condition, memory: cute.Tensor, index, other):
    # An element, or what stands for it.
    x = other
    if condition:
        x = type(other)(memory[index])
    return x


def mul(a, b):
    # One rounding, never part of a fused operation.
    return cute.math.mul(a, b, rounding=NEAREST)


def select(condition, a, b):
    # Without a branch.
    return cutlass.select_(condition, a, b)


def store_vector(memory, index, x):
    # Write elements that follow each other at once.
    made = cute.make_rmem_tensor((len(x),), memory.element_type)
    for i in range(len(x)):
        made[i] = x[i]
    cute.autovec_copy(made, vector_of(memory, index, len(x)))


@cute.jit
def store_vector_where(condition, memory: cute.Tensor, index, x):
    # Write elements that follow each other at once, if the condition holds.
    if condition:
        store_vector(memory, index, x)


def vector_of(memory, index, count):
    # Neighbours in memory, the first at a multiple of so many.
    at = cute.assume(cute.crd2idx(index, memory.layout), divby=count)
    return cute.make_tensor(memory.iterator + at, (count,))


@cute.kernel
def penalize_rows(logits: cute.Tensor, counts: cute.Tensor, prompt: cute.Tensor, repetition: cute.Tensor, frequency: cute.Tensor, presence: cute.Tensor, scores: cute.Tensor, T: Int32):
    # A block owns 1 of T, 2048 of V (rows). V: 2048 indices, 16 to each of 128 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    rest = block // 75
    t = rest
    v = [block % 75 * 2048 + thread * 8 + c % 8 + c // 8 * 1024 for c in range(16)]
    v_inside = [v[c] < 151936 for c in range(16)]
    repetition_2 = repetition[t]  # sampling.py:358
    frequency_2 = frequency[t]  # sampling.py:359
    presence_2 = presence[t]  # sampling.py:360
    logits_2 = [one for c in range(0, 16, 8) for one in load_vector_where(v_inside[c], logits, (t, v[c]), BFloat16(0), 8)]  # sampling.py:356
    counts_2 = [one for c in range(0, 16, 4) for one in load_vector_where(v_inside[c], counts, (t, v[c]), Int32(0), 4)]  # sampling.py:356
    prompt_2 = [load_where(v_inside[c], prompt, (t, v[c]), Uint8(0)) != 0 for c in range(16)]  # sampling.py:357
    as_f32 = [BFloat16(logits_2[c]).to(Float32) for c in range(16)]  # sampling.py:356
    below = [0 < counts_2[c] for c in range(16)]  # sampling.py:356
    either = [below[c] | prompt_2[c] for c in range(16)]  # sampling.py:357
    below_2 = [Float32(0.0) < as_f32[c] for c in range(16)]  # sampling.py:358
    quotient = [div(as_f32[c], repetition_2) for c in range(16)]  # sampling.py:358
    product = [mul(as_f32[c], repetition_2) for c in range(16)]  # sampling.py:358
    chosen = [select(below_2[c], quotient[c], product[c]) for c in range(16)]  # sampling.py:358
    chosen_2 = [select(either[c], chosen[c], as_f32[c]) for c in range(16)]  # sampling.py:358
    as_f32_2 = [Int32(counts_2[c]).to(Float32) for c in range(16)]  # sampling.py:359
    product_2 = [mul(frequency_2, as_f32_2[c]) for c in range(16)]  # sampling.py:359
    difference = [chosen_2[c] - product_2[c] for c in range(16)]  # sampling.py:359
    chosen_3 = [select(below[c], presence_2, Float32(0.0)) for c in range(16)]  # sampling.py:360
    difference_2 = [difference[c] - chosen_3[c] for c in range(16)]  # sampling.py:360
    for c in cutlass.range_constexpr(0, 16, 4):  # sampling.py:360
        store_vector_where(v_inside[c], scores, (t, v[c]), difference_2[c:c + 4])  # sampling.py:360


@cute.jit
def launch_penalize(logits_ptr: cute.Pointer, counts_ptr: cute.Pointer, prompt_ptr: cute.Pointer, repetition_ptr: cute.Pointer, frequency_ptr: cute.Pointer, presence_ptr: cute.Pointer, scores_ptr: cute.Pointer, T: Int32, logits_t_stride: Int64, counts_t_stride: Int64, prompt_t_stride: Int64, scores_t_stride: Int64, programs: Int32, stream: cuda.CUstream):
    # Describe the tensors, and start the kernel on a stream.
    logits = cute.make_tensor(logits_ptr, cute.make_layout((T, 151936), stride=(logits_t_stride, 1)))
    counts = cute.make_tensor(counts_ptr, cute.make_layout((T, 151936), stride=(counts_t_stride, 1)))
    prompt = cute.make_tensor(prompt_ptr, cute.make_layout((T, 151936), stride=(prompt_t_stride, 1)))
    repetition = cute.make_tensor(repetition_ptr, cute.make_layout((T,), stride=(1,)))
    frequency = cute.make_tensor(frequency_ptr, cute.make_layout((T,), stride=(1,)))
    presence = cute.make_tensor(presence_ptr, cute.make_layout((T,), stride=(1,)))
    scores = cute.make_tensor(scores_ptr, cute.make_layout((T, 151936), stride=(scores_t_stride, 1)))
    penalize_rows(logits, counts, prompt, repetition, frequency, presence, scores, T).launch(
        grid=(programs, 1, 1), block=(128, 1, 1), stream=stream,
    )


def call(kernels, logits, counts, prompt, repetition, frequency, presence, scores, T, logits_t_stride, counts_t_stride, prompt_t_stride, scores_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T * 75
    if programs > 0:
        kernels.penalize((programs,), logits, counts, prompt, repetition, frequency, presence, scores, T, logits_t_stride, counts_t_stride, prompt_t_stride, scores_t_stride)
