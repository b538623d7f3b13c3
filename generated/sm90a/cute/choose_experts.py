"""choose_experts on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 8cae73bdf987d114
schedule: tiles T=16, 4 warps, 1 stages, unroll 1 placed E[5:3] T[3:0] E[2:0] E[6:6]
inputs:
  scores: bf16 [T, E=128]
outputs:
  ids: i32 [T, E.piece=8]
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


def exchanged(x, lanes, combine):
    # Combine with the elements of lane ^ lanes (butterfly).
    return [combine(a, cute.arch.shuffle_sync_bfly(a, offset=lanes)) for a in x]


def fmax(a, b):
    # max.f32: the other operand if one is NaN.
    return cute.arch.fmax(a, b)


def folded(x, stride, combine):
    # Combine elements i and i + stride of a list.
    return [combine(x[i], x[i + stride]) for i in range(len(x)) if not i & stride]


def imax(a, b):
    # The maximum of integers.
    return cutlass.max(a, b)


def imin(a, b):
    # The minimum of integers.
    return cutlass.min(a, b)


@cute.jit
def load_vector_where(condition, memory: cute.Tensor, index, other, count: cutlass.Constexpr):
    # Load a vector, or `other` where the condition is false.
    x = cute.make_rmem_tensor((count,), memory.element_type)
    x.fill(other)
    if condition:
        cute.autovec_copy(vector_of(memory, index, count), x)
    return [x[i] for i in range(count)]


def max_over_e(x):
    # The max over E, in any order.
    x = folded(x, 1, imax)
    x = folded(x, 1, imax)
    x = folded(x, 1, imax)
    x = folded(x, 1, imax)
    x = exchanged(x, 1, imax)
    x = exchanged(x, 2, imax)
    x = exchanged(x, 4, imax)
    return x[0]


def min_over_e(x):
    # The min over E, in any order.
    x = folded(x, 1, imin)
    x = folded(x, 1, imin)
    x = folded(x, 1, imin)
    x = folded(x, 1, imin)
    x = exchanged(x, 1, imin)
    x = exchanged(x, 2, imin)
    x = exchanged(x, 4, imin)
    return x[0]


def select(condition, a, b):
    # condition ? a : b, without a branch.
    return cutlass.select_(condition, a, b)


@cute.jit
def store_where(condition, memory: cute.Tensor, index, x):
    # Store an element where the condition holds.
    if condition:
        memory[index] = x


def vector_of(memory, index, count):
    # A view of `count` contiguous, aligned elements.
    at = cute.assume(cute.crd2idx(index, memory.layout), divby=count)
    return cute.make_tensor(memory.iterator + at, (count,))


@cute.kernel
def choose_experts_rows(scores: cute.Tensor, ids: cute.Tensor, T: Int32):
    # A block owns 16 of T (rows). E: 128 indices, 16 to each of 8 threads; T: 16 indices, 1 to each of 16 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
    t = block * 16 + thread // 8
    t_inside = t < T
    writes = (thread & 7) == 0
    e = [thread % 8 * 8 + c % 8 + c // 8 * 64 for c in range(16)]  # moe.py:133
    scores_value = [
        one for c in range(0, 16, 8) for one in load_vector_where(t_inside, scores, (t, e[c]), BFloat16(0), 8)
    ]
    compared = [BFloat16(scores_value[c]).to(Float32) for c in range(16)]
    compared_max_neg_inf = [fmax(compared[c], Float32(float("-inf"))) for c in range(16)]  # moe.py:51
    bits_sum = [compared_max_neg_inf[c] + Float32(0.0) for c in range(16)]
    bits = [Float32(bits_sum[c]).bitcast(Int32) for c in range(16)]
    bits_shr_31 = [bits[c] >> 31 for c in range(16)]  # moe.py:52
    keys_both = [bits_shr_31[c] & 2147483647 for c in range(16)]
    keys = [bits[c] ^ keys_both[c] for c in range(16)]
    best = max_over_e(keys)  # moe.py:62
    keys_is_best = [keys[c] == best for c in range(16)]  # moe.py:63
    e_masked = [select(keys_is_best[c], e[c], Int32(128)) for c in range(16)]
    at = min_over_e(e_masked)
    e_is_at = [e[c] == at for c in range(16)]  # moe.py:140
    keys_2 = [select(e_is_at[c], Int32(-2147483648), keys[c]) for c in range(16)]
    best_2 = max_over_e(keys_2)  # moe.py:62
    keys_is_best_2 = [keys_2[c] == best_2 for c in range(16)]  # moe.py:63
    e_masked_2 = [select(keys_is_best_2[c], e[c], Int32(128)) for c in range(16)]
    at_2 = min_over_e(e_masked_2)
    e_is_at_2 = [e[c] == at_2 for c in range(16)]  # moe.py:140
    keys_3 = [select(e_is_at_2[c], Int32(-2147483648), keys_2[c]) for c in range(16)]
    best_3 = max_over_e(keys_3)  # moe.py:62
    keys_is_best_3 = [keys_3[c] == best_3 for c in range(16)]  # moe.py:63
    e_masked_3 = [select(keys_is_best_3[c], e[c], Int32(128)) for c in range(16)]
    at_3 = min_over_e(e_masked_3)
    e_is_at_3 = [e[c] == at_3 for c in range(16)]  # moe.py:140
    keys_4 = [select(e_is_at_3[c], Int32(-2147483648), keys_3[c]) for c in range(16)]
    best_4 = max_over_e(keys_4)  # moe.py:62
    keys_is_best_4 = [keys_4[c] == best_4 for c in range(16)]  # moe.py:63
    e_masked_4 = [select(keys_is_best_4[c], e[c], Int32(128)) for c in range(16)]
    at_4 = min_over_e(e_masked_4)
    e_is_at_4 = [e[c] == at_4 for c in range(16)]  # moe.py:140
    keys_5 = [select(e_is_at_4[c], Int32(-2147483648), keys_4[c]) for c in range(16)]
    best_5 = max_over_e(keys_5)  # moe.py:62
    keys_is_best_5 = [keys_5[c] == best_5 for c in range(16)]  # moe.py:63
    e_masked_5 = [select(keys_is_best_5[c], e[c], Int32(128)) for c in range(16)]
    at_5 = min_over_e(e_masked_5)
    e_is_at_5 = [e[c] == at_5 for c in range(16)]  # moe.py:140
    keys_6 = [select(e_is_at_5[c], Int32(-2147483648), keys_5[c]) for c in range(16)]
    best_6 = max_over_e(keys_6)  # moe.py:62
    keys_is_best_6 = [keys_6[c] == best_6 for c in range(16)]  # moe.py:63
    e_masked_6 = [select(keys_is_best_6[c], e[c], Int32(128)) for c in range(16)]
    at_6 = min_over_e(e_masked_6)
    e_is_at_6 = [e[c] == at_6 for c in range(16)]  # moe.py:140
    keys_7 = [select(e_is_at_6[c], Int32(-2147483648), keys_6[c]) for c in range(16)]
    best_7 = max_over_e(keys_7)  # moe.py:62
    keys_is_best_7 = [keys_7[c] == best_7 for c in range(16)]  # moe.py:63
    e_masked_7 = [select(keys_is_best_7[c], e[c], Int32(128)) for c in range(16)]
    at_7 = min_over_e(e_masked_7)
    e_is_at_7 = [e[c] == at_7 for c in range(16)]  # moe.py:140
    keys_8 = [select(e_is_at_7[c], Int32(-2147483648), keys_7[c]) for c in range(16)]
    best_8 = max_over_e(keys_8)  # moe.py:62
    keys_is_best_8 = [keys_8[c] == best_8 for c in range(16)]  # moe.py:63
    e_masked_8 = [select(keys_is_best_8[c], e[c], Int32(128)) for c in range(16)]
    at_8 = min_over_e(e_masked_8)
    low = cutlass.min(at, at_2)  # moe.py:108
    high = cutlass.max(at, at_2)
    low_2 = cutlass.min(at_3, at_4)
    high_2 = cutlass.max(at_3, at_4)
    low_3 = cutlass.min(at_5, at_6)
    high_3 = cutlass.max(at_5, at_6)
    low_4 = cutlass.min(at_7, at_8)
    high_4 = cutlass.max(at_7, at_8)
    low_5 = cutlass.min(high, low_2)
    high_5 = cutlass.max(high, low_2)
    low_6 = cutlass.min(high_2, low_3)
    high_6 = cutlass.max(high_2, low_3)
    low_7 = cutlass.min(high_3, low_4)
    high_7 = cutlass.max(high_3, low_4)
    low_8 = cutlass.min(low, low_5)
    high_8 = cutlass.max(low, low_5)
    low_9 = cutlass.min(high_5, low_6)
    high_9 = cutlass.max(high_5, low_6)
    low_10 = cutlass.min(high_6, low_7)
    high_10 = cutlass.max(high_6, low_7)
    low_11 = cutlass.min(high_7, high_4)
    high_11 = cutlass.max(high_7, high_4)
    low_12 = cutlass.min(high_8, low_9)
    high_12 = cutlass.max(high_8, low_9)
    low_13 = cutlass.min(high_9, low_10)
    high_13 = cutlass.max(high_9, low_10)
    low_14 = cutlass.min(high_10, low_11)
    high_14 = cutlass.max(high_10, low_11)
    low_15 = cutlass.min(low_8, low_12)
    high_15 = cutlass.max(low_8, low_12)
    low_16 = cutlass.min(high_12, low_13)
    high_16 = cutlass.max(high_12, low_13)
    low_17 = cutlass.min(high_13, low_14)
    high_17 = cutlass.max(high_13, low_14)
    low_18 = cutlass.min(high_14, high_11)
    high_18 = cutlass.max(high_14, high_11)
    low_19 = cutlass.min(high_15, low_16)
    high_19 = cutlass.max(high_15, low_16)
    low_20 = cutlass.min(high_16, low_17)
    high_20 = cutlass.max(high_16, low_17)
    low_21 = cutlass.min(high_17, low_18)
    high_21 = cutlass.max(high_17, low_18)
    low_22 = cutlass.min(low_15, low_19)
    high_22 = cutlass.max(low_15, low_19)
    low_23 = cutlass.min(high_19, low_20)
    high_23 = cutlass.max(high_19, low_20)
    low_24 = cutlass.min(high_20, low_21)
    high_24 = cutlass.max(high_20, low_21)
    low_25 = cutlass.min(high_21, high_18)
    high_25 = cutlass.max(high_21, high_18)
    low_26 = cutlass.min(high_22, low_23)
    high_26 = cutlass.max(high_22, low_23)
    low_27 = cutlass.min(high_23, low_24)
    high_27 = cutlass.max(high_23, low_24)
    at_9 = cutlass.min(high_24, low_25)
    at_10 = cutlass.max(high_24, low_25)
    store_where(t_inside & writes, ids, (t, 0), low_22)  # moe.py:147
    store_where(t_inside & writes, ids, (t, 1), low_26)
    store_where(t_inside & writes, ids, (t, 2), high_26)
    store_where(t_inside & writes, ids, (t, 3), low_27)
    store_where(t_inside & writes, ids, (t, 4), high_27)
    store_where(t_inside & writes, ids, (t, 5), at_9)
    store_where(t_inside & writes, ids, (t, 6), at_10)
    store_where(t_inside & writes, ids, (t, 7), high_25)


@cute.jit
def launch_choose_experts(
    scores_ptr: cute.Pointer, ids_ptr: cute.Pointer, T: Int32, scores_t_stride: Int64, ids_t_stride: Int64,
    programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    scores = cute.make_tensor(scores_ptr, cute.make_layout((T, 128), stride=(scores_t_stride, 1)))
    ids = cute.make_tensor(ids_ptr, cute.make_layout((T, 8), stride=(ids_t_stride, 1)))
    choose_experts_rows(scores, ids, T).launch(
        grid=(programs, 1, 1), block=(128, 1, 1), use_pdl=overlap, stream=stream,
    )


def call(kernels, scores, ids, T, scores_t_stride, ids_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 15) // 16)
    if programs > 0:
        kernels.choose_experts((programs,), scores, ids, T, scores_t_stride, ids_t_stride)
