"""kto_loss on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 484f18ee07110354
schedule: tiles 1, 4 warps, 1 stages, unroll 1 placed M.lane[8:2] M.lane[1:0] M.lane[9:9]
schedule: tiles 1, 8 warps, 3 stages, unroll 1 placed P.lane[9:2] P.lane[1:0]
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


def across(x, board, apart, thread, combine):
    # Combine each element with those of the threads so far apart, in this order, through shared memory.
    for i in range(len(x)):
        board[i, thread] = x[i]
    cute.arch.sync_threads()
    far = [sum(a for k, a in enumerate(apart) if j >> k & 1) for j in range(1 << len(apart))]
    x = [[x[i], *(board[i, thread ^ f] for f in far[1:])] for i in range(len(x))]
    for _ in apart:
        x = [folded(terms, 1, combine) for terms in x]
    return [terms[0] for terms in x]


def add(a, b):
    # A term of a sum.
    return a + b


def div(a, b):
    # Correctly rounded.
    return a / b


def exchanged(x, lanes, combine):
    # Combine each element with that of the thread so many lanes away.
    return [combine(a, cute.arch.shuffle_sync_bfly(a, offset=lanes)) for a in x]


def fma(a, b, c):
    # a * b + c with one rounding.
    return cute.math.fma(a, b, c, rounding=NEAREST)


def fmax(a, b):
    # NaN loses.
    return cute.arch.fmax(a, b)


def folded(x, apart, combine):
    # Combine the elements of a thread that lie so far apart.
    return [combine(x[i], x[i + apart]) for i in range(len(x)) if not i & apart]


def halved(x, lanes, thread, combine):
    # Combine with the thread so many lanes away: each goes on with a half of the list.
    upper, half = thread & lanes != 0, len(x) // 2
    kept = [select(upper, x[i + half], x[i]) for i in range(half)]
    given = [select(upper, x[i], x[i + half]) for i in range(half)]
    return [combine(a, cute.arch.shuffle_sync_bfly(b, offset=lanes)) for a, b in zip(kept, given)]


def load_vector(memory, index, count):
    # So many elements, read at once.
    x = cute.make_rmem_tensor((count,), memory.element_type)
    cute.autovec_copy(vector_of(memory, index, count), x)
    return [x[i] for i in range(count)]


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
    f28 = div(Float32(1.0), f27)
    f29 = f27 - Float32(1.0)
    f30 = f26 - f29
    f31 = fma(f28, f27, Float32(-1.0))
    f32 = fma(f28, f30, f31)
    f33 = mul(f28, f19)
    f34 = fma(f13, f32, f32)
    f35 = f13 - f34
    f36 = fma(f33, f35, f33)
    f37 = mul(f36, f23)
    f38 = select((x < Float32(0.0)), f37, f28)
    f39 = select((x == x), f38, x)
    return f39


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
def store_where(condition, memory: cute.Tensor, index, x):
    # Write an element if the condition holds.
    if condition:
        memory[index] = x


def sum_over_m_lane(x, thread, boards):
    # The sum over M.lane, halving.
    x = folded(x, 4, add)
    x = across(x, boards[0], (64, 32), thread, add)
    x = halved(x, 16, thread, add)
    x = halved(x, 8, thread, add)
    x = exchanged(x, 4, add)
    x = exchanged(x, 2, add)
    x = exchanged(x, 1, add)
    x = exchanged(x, 16, add)
    x = exchanged(x, 8, add)
    return x[0]


def sum_over_p_lane(x, thread, boards):
    # The sum over P.lane, halving.
    x = across(x, boards[0], (128, 64, 32), thread, add)
    x = halved(x, 16, thread, add)
    x = halved(x, 8, thread, add)
    x = exchanged(x, 4, add)
    x = exchanged(x, 2, add)
    x = exchanged(x, 1, add)
    x = exchanged(x, 16, add)
    x = exchanged(x, 8, add)
    return x[0]


def vector_of(memory, index, count):
    # Neighbours in memory, the first at a multiple of so many.
    at = cute.assume(cute.crd2idx(index, memory.layout), divby=count)
    return cute.make_tensor(memory.iterator + at, (count,))


@cute.kernel
def kto_loss_1_rows(other_logp: cute.Tensor, other_ref_logp: cute.Tensor, mismatch: cute.Tensor, M: Int32):
    # A block owns everything (rows). M.lane: 1024 indices, 8 to each of 128 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    shared = utils.SmemAllocator()
    board_1 = shared.allocate_tensor(Float32, cute.make_layout((2, 4, 128), stride=(512, 128, 1)), 16)
    board_2 = shared.allocate_tensor(Float32, cute.make_layout((2, 4, 128), stride=(512, 128, 1)), 16)
    writes = thread == 0
    total = M + 1023  # preference.py:227
    steps = total // 1024  # preference.py:227
    full_steps = M // 1024  # preference.py:227
    m_lane = [thread * 4 + c % 4 + c // 4 * 512 for c in range(8)]  # preference.py:227
    s = Int32(-(2**31)).bitcast(Float32)  # preference.py:227
    for m_step in cutlass.range(0, full_steps, unroll=1):  # preference.py:227
        product = m_step * 1024  # preference.py:227
        m = [product + m_lane[c] for c in range(8)]  # preference.py:227
        other_logp_2 = [one for c in range(0, 8, 4) for one in load_vector(other_logp, m[c], 4)]  # preference.py:228
        other_ref_logp_2 = [one for c in range(0, 8, 4) for one in load_vector(other_ref_logp, m[c], 4)]  # preference.py:228
        difference = [other_logp_2[c] - other_ref_logp_2[c] for c in range(8)]  # preference.py:228
        sum_m_lane = sum_over_m_lane(difference, thread, (board_1[m_step % 2, None, None],))  # preference.py:227
        s_2 = s + sum_m_lane  # preference.py:227
        s = s_2  # preference.py:227
    s_2 = s  # preference.py:227
    for m_step_2 in cutlass.range(full_steps, steps, unroll=1):  # preference.py:227
        product = m_step_2 * 1024  # preference.py:227
        m = [product + m_lane[c] for c in range(8)]  # preference.py:227
        exists = [m[c] < M for c in range(8)]  # preference.py:227
        other_logp_2 = [load_where(exists[c], other_logp, m[c], Float32(0)) for c in range(8)]  # preference.py:228
        other_ref_logp_2 = [load_where(exists[c], other_ref_logp, m[c], Float32(0)) for c in range(8)]  # preference.py:228
        difference = [other_logp_2[c] - other_ref_logp_2[c] for c in range(8)]  # preference.py:228
        chosen = [select(exists[c], difference[c], Int32(-(2**31)).bitcast(Float32)) for c in range(8)]  # preference.py:227
        sum_m_lane = sum_over_m_lane(chosen, thread, (board_2[m_step_2 % 2, None, None],))  # preference.py:227
        s_3 = s_2 + sum_m_lane  # preference.py:227
        s_2 = s_3  # preference.py:227
    larger = cutlass.max(M, 1)  # preference.py:229
    as_f32 = Int32(larger).to(Float32)  # preference.py:229
    quotient = div(s_2, as_f32)  # preference.py:229
    below = quotient < Float32(0.0)  # preference.py:231
    total_2 = quotient + Float32(0.0)  # preference.py:231
    chosen = select(below, Float32(0.0), total_2)  # preference.py:231
    store_where(writes, mismatch, 0, chosen)  # preference.py:213


@cute.jit
def launch_kto_loss_1(other_logp_ptr: cute.Pointer, other_ref_logp_ptr: cute.Pointer, mismatch_ptr: cute.Pointer, M: Int32, programs: Int32, stream: cuda.CUstream):
    # Describe the tensors, and start the kernel on a stream.
    other_logp = cute.make_tensor(other_logp_ptr, cute.make_layout((M,), stride=(1,)))
    other_ref_logp = cute.make_tensor(other_ref_logp_ptr, cute.make_layout((M,), stride=(1,)))
    mismatch = cute.make_tensor(mismatch_ptr, cute.make_layout((1,), stride=(1,)))
    kto_loss_1_rows(other_logp, other_ref_logp, mismatch, M).launch(
        grid=(programs, 1, 1), block=(128, 1, 1), stream=stream,
    )


@cute.kernel
def kto_loss_2_rows(logp: cute.Tensor, ref_logp: cute.Tensor, desirable: cute.Tensor, per_sample: cute.Tensor, loss: cute.Tensor, divergence: cute.Tensor, count: cute.Tensor, mismatch: cute.Tensor, P: Int32, beta: Float32, desirable_weight: Float32, undesirable_weight: Float32):
    # A block owns everything (rows). P.lane: 1024 indices, 4 to each of 256 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    shared = utils.SmemAllocator()
    board_1 = shared.allocate_tensor(Float32, cute.make_layout((2, 4, 256), stride=(1024, 256, 1)), 16)
    board_2 = shared.allocate_tensor(Float32, cute.make_layout((2, 4, 256), stride=(1024, 256, 1)), 16)
    writes = thread == 0
    mismatch_2 = mismatch[0]  # preference.py:213
    total = P + 1023  # preference.py:215
    steps = total // 1024  # preference.py:215
    full_steps = P // 1024  # preference.py:215
    p_lane = [thread * 4 + c for c in range(4)]  # preference.py:215
    s = Int32(-(2**31)).bitcast(Float32)  # preference.py:215
    next_p = Int32(0)  # preference.py:215
    comes = next_p < full_steps  # preference.py:215
    product = next_p * 1024  # preference.py:215
    p = [product + p_lane[c] for c in range(4)]  # preference.py:215
    desirable_2 = [load_where(comes, desirable, p[c], Uint8(0)) != 0 for c in range(4)]  # preference.py:216
    logp_2 = load_vector_where(comes, logp, p[0], Float32(0), 4)  # preference.py:217
    ref_logp_2 = load_vector_where(comes, ref_logp, p[0], Float32(0), 4)  # preference.py:217
    desirable_ahead = tuple(desirable_2)  # preference.py:217
    logp_ahead = tuple(logp_2)  # preference.py:217
    ref_logp_ahead = tuple(ref_logp_2)  # preference.py:217
    next_p_2 = Int32(1)  # preference.py:217
    comes_2 = next_p_2 < full_steps  # preference.py:217
    product_2 = next_p_2 * 1024  # preference.py:215
    p_2 = [product_2 + p_lane[c] for c in range(4)]  # preference.py:215
    desirable_3 = [load_where(comes_2, desirable, p_2[c], Uint8(0)) != 0 for c in range(4)]  # preference.py:216
    logp_3 = load_vector_where(comes_2, logp, p_2[0], Float32(0), 4)  # preference.py:217
    ref_logp_3 = load_vector_where(comes_2, ref_logp, p_2[0], Float32(0), 4)  # preference.py:217
    desirable_ahead_2 = tuple(desirable_3)  # preference.py:217
    logp_ahead_2 = tuple(logp_3)  # preference.py:217
    ref_logp_ahead_2 = tuple(ref_logp_3)  # preference.py:217
    for p_step in cutlass.range(0, full_steps, unroll=1):  # preference.py:215
        next_p_3 = p_step + 2  # preference.py:215
        comes_3 = next_p_3 < full_steps  # preference.py:215
        product_3 = next_p_3 * 1024  # preference.py:215
        p_3 = [product_3 + p_lane[c] for c in range(4)]  # preference.py:215
        desirable_4 = [load_where(comes_3, desirable, p_3[c], Uint8(0)) != 0 for c in range(4)]  # preference.py:216
        logp_4 = load_vector_where(comes_3, logp, p_3[0], Float32(0), 4)  # preference.py:217
        ref_logp_4 = load_vector_where(comes_3, ref_logp, p_3[0], Float32(0), 4)  # preference.py:217
        product_4 = p_step * 1024  # preference.py:215
        p_4 = [product_4 + p_lane[c] for c in range(4)]  # preference.py:215
        chosen = [select(desirable_ahead[c], Float32(1.0), Float32(-1.0)) for c in range(4)]  # preference.py:241
        chosen_2 = [select(desirable_ahead[c], desirable_weight, undesirable_weight) for c in range(4)]  # preference.py:241
        difference = [logp_ahead[c] - ref_logp_ahead[c] for c in range(4)]  # preference.py:236
        difference_2 = [difference[c] - mismatch_2 for c in range(4)]  # preference.py:236
        product_5 = [mul(chosen[c], difference_2[c]) for c in range(4)]  # preference.py:217
        product_6 = [mul(beta, product_5[c]) for c in range(4)]  # preference.py:217
        negative = [-product_6[c] for c in range(4)]  # preference.py:217
        sigmoid_of = [portable_sigmoid(negative[c]) for c in range(4)]  # preference.py:217
        product_7 = [mul(chosen_2[c], sigmoid_of[c]) for c in range(4)]  # preference.py:217
        store_vector(per_sample, p_4[0], product_7)  # preference.py:218
        sum_p_lane = sum_over_p_lane(product_7, thread, (board_1[p_step % 2, None, None],))  # preference.py:215
        s_2 = s + sum_p_lane  # preference.py:215
        s, desirable_ahead, desirable_ahead_2, logp_ahead, logp_ahead_2, ref_logp_ahead, ref_logp_ahead_2 = s_2, desirable_ahead_2, tuple(desirable_4), logp_ahead_2, tuple(logp_4), ref_logp_ahead_2, tuple(ref_logp_4)  # preference.py:215
    s_2 = s  # preference.py:215
    for p_step_2 in cutlass.range(full_steps, steps, unroll=1):  # preference.py:215
        product_3 = p_step_2 * 1024  # preference.py:215
        p_3 = [product_3 + p_lane[c] for c in range(4)]  # preference.py:215
        exists = [p_3[c] < P for c in range(4)]  # preference.py:215
        desirable_4 = [load_where(exists[c], desirable, p_3[c], Uint8(0)) != 0 for c in range(4)]  # preference.py:216
        logp_4 = [load_where(exists[c], logp, p_3[c], Float32(0)) for c in range(4)]  # preference.py:217
        ref_logp_4 = [load_where(exists[c], ref_logp, p_3[c], Float32(0)) for c in range(4)]  # preference.py:217
        chosen = [select(desirable_4[c], Float32(1.0), Float32(-1.0)) for c in range(4)]  # preference.py:241
        chosen_2 = [select(desirable_4[c], desirable_weight, undesirable_weight) for c in range(4)]  # preference.py:241
        difference = [logp_4[c] - ref_logp_4[c] for c in range(4)]  # preference.py:236
        difference_2 = [difference[c] - mismatch_2 for c in range(4)]  # preference.py:236
        product_4 = [mul(chosen[c], difference_2[c]) for c in range(4)]  # preference.py:217
        product_5 = [mul(beta, product_4[c]) for c in range(4)]  # preference.py:217
        negative = [-product_5[c] for c in range(4)]  # preference.py:217
        sigmoid_of = [portable_sigmoid(negative[c]) for c in range(4)]  # preference.py:217
        product_6 = [mul(chosen_2[c], sigmoid_of[c]) for c in range(4)]  # preference.py:217
        for c in cutlass.range_constexpr(4):  # preference.py:218
            store_where(exists[c], per_sample, p_3[c], product_6[c])  # preference.py:218
        chosen_3 = [select(exists[c], product_6[c], Int32(-(2**31)).bitcast(Float32)) for c in range(4)]  # preference.py:215
        sum_p_lane = sum_over_p_lane(chosen_3, thread, (board_2[p_step_2 % 2, None, None],))  # preference.py:215
        s_3 = s_2 + sum_p_lane  # preference.py:215
        s_2 = s_3  # preference.py:215
    larger = cutlass.max(P, 1)  # preference.py:220
    total_2 = s_2 + Float32(0.0)  # preference.py:221
    as_f32 = Int32(larger).to(Float32)  # preference.py:221
    quotient = div(total_2, as_f32)  # preference.py:221
    store_where(writes, loss, 0, quotient)  # preference.py:221
    store_where(writes, divergence, 0, mismatch_2)  # preference.py:221
    store_where(writes, count, 0, larger)  # preference.py:221


@cute.jit
def launch_kto_loss_2(logp_ptr: cute.Pointer, ref_logp_ptr: cute.Pointer, desirable_ptr: cute.Pointer, per_sample_ptr: cute.Pointer, loss_ptr: cute.Pointer, divergence_ptr: cute.Pointer, count_ptr: cute.Pointer, mismatch_ptr: cute.Pointer, P: Int32, beta: Float32, desirable_weight: Float32, undesirable_weight: Float32, programs: Int32, stream: cuda.CUstream):
    # Describe the tensors, and start the kernel on a stream.
    logp = cute.make_tensor(logp_ptr, cute.make_layout((P,), stride=(1,)))
    ref_logp = cute.make_tensor(ref_logp_ptr, cute.make_layout((P,), stride=(1,)))
    desirable = cute.make_tensor(desirable_ptr, cute.make_layout((P,), stride=(1,)))
    per_sample = cute.make_tensor(per_sample_ptr, cute.make_layout((P,), stride=(1,)))
    loss = cute.make_tensor(loss_ptr, cute.make_layout((1,), stride=(1,)))
    divergence = cute.make_tensor(divergence_ptr, cute.make_layout((1,), stride=(1,)))
    count = cute.make_tensor(count_ptr, cute.make_layout((1,), stride=(1,)))
    mismatch = cute.make_tensor(mismatch_ptr, cute.make_layout((1,), stride=(1,)))
    kto_loss_2_rows(logp, ref_logp, desirable, per_sample, loss, divergence, count, mismatch, P, beta, desirable_weight, undesirable_weight).launch(
        grid=(programs, 1, 1), block=(256, 1, 1), stream=stream,
    )


def call(kernels, other_logp, other_ref_logp, mismatch, logp, ref_logp, desirable, per_sample, loss, divergence, count, beta, desirable_weight, undesirable_weight, M, P):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = 1
    if programs > 0:
        kernels.kto_loss_1((programs,), other_logp, other_ref_logp, mismatch, M)
    programs = 1
    if programs > 0:
        kernels.kto_loss_2((programs,), logp, ref_logp, desirable, per_sample, loss, divergence, count, mismatch, P, beta, desirable_weight, undesirable_weight)
