"""policy_loss_of_sequences_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: b36010a06a852012
schedule: tiles 1, 4 warps, 1 stages, unroll 1 placed Q.lane[8:2] Q.lane[1:0] Q.lane[9:9]
schedule: tiles T=128, 4 warps, 1 stages, unroll 1 placed T[6:0]
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


def fmin(a, b):
    # NaN loses.
    return cute.arch.fmin(a, b)


def folded(x, apart, combine):
    # Combine the elements of a thread that lie so far apart.
    return [combine(x[i], x[i + apart]) for i in range(len(x)) if not i & apart]


def halved(x, lanes, thread, combine):
    # Combine with the thread so many lanes away: each goes on with a half of the list.
    upper, half = thread & lanes != 0, len(x) // 2
    kept = [select(upper, x[i + half], x[i]) for i in range(half)]
    given = [select(upper, x[i], x[i + half]) for i in range(half)]
    return [combine(a, cute.arch.shuffle_sync_bfly(b, offset=lanes)) for a, b in zip(kept, given)]


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


def portable_exp(x):
    # e**x, with gradual underflow.
    f0 = fmin(x, Float32(89.0))
    f1 = fmax(f0, Float32(-104.0))
    f2 = fma(f1, Float32(1.4426950216293335), Float32(12582912.0))
    f3 = f2 - Float32(12582912.0)
    f4 = fma(f3, Float32(-0.6931471824645996), f1)
    f5 = fma(f3, Float32(1.9046542121259336e-09), f4)
    f6 = fma(Float32(0.0013819490559399128), f5, Float32(0.008368690498173237))
    f7 = fma(f6, f5, Float32(0.041668280959129333))
    f8 = fma(f7, f5, Float32(0.1666652113199234))
    f9 = fma(f8, f5, Float32(0.4999999403953552))
    f10 = fma(f9, f5, Float32(1.0))
    f11 = fma(f10, f5, Float32(1.0))
    i12 = Float32(f2).bitcast(Int32)
    i13 = i12 - Int32(1262485504)
    i14 = i13 >> Int32(1)
    i15 = i14 << Int32(23)
    i16 = i15 + Int32(1065353216)
    f17 = Int32(i16).bitcast(Float32)
    i18 = i13 - i14
    i19 = i18 << Int32(23)
    i20 = i19 + Int32(1065353216)
    f21 = Int32(i20).bitcast(Float32)
    f22 = mul(f11, f17)
    f23 = mul(f22, f21)
    f24 = select((x == x), f23, x)
    return f24


def select(condition, a, b):
    # Without a branch.
    return cutlass.select_(condition, a, b)


@cute.jit
def store_where(condition, memory: cute.Tensor, index, x):
    # Write an element if the condition holds.
    if condition:
        memory[index] = x


def sum_over_q_lane(x, thread, boards):
    # The sum over Q.lane, halving.
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


@cute.kernel
def policy_loss_of_sequences_grad_1_rows(advantages: cute.Tensor, order: cute.Tensor, active: cute.Tensor, begin: cute.Tensor, end: cute.Tensor, ratio_of_sequence: cute.Tensor, weight_of_sequence: cute.Tensor, slopes_of_sequence: cute.Tensor, S: Int32, T: Int32, B: Int32, surrogate_least: Float32, surrogate_most: Float32):
    # A block owns 1 of B (rows). Q.lane: 1024 indices, 8 to each of 128 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    shared = utils.SmemAllocator()
    board_1 = shared.allocate_tensor(Float32, cute.make_layout((2, 4, 128), stride=(512, 128, 1)), 16)
    board_2 = shared.allocate_tensor(Float32, cute.make_layout((2, 4, 128), stride=(512, 128, 1)), 16)
    b = block
    writes = thread == 0
    begin_2 = begin[b]  # policy.py:537
    end_2 = end[b]  # policy.py:537
    difference = end_2 - begin_2  # policy.py:537
    total = difference + 1023  # policy.py:537
    steps = total // 1024  # policy.py:537
    full_steps = difference // 1024  # policy.py:537
    q_lane = [thread * 4 + c % 4 + c // 4 * 512 for c in range(8)]  # policy.py:537
    larger = cutlass.max(difference, 1)  # policy.py:451
    as_f32 = Int32(larger).to(Float32)  # policy.py:451
    s = Int32(-(2**31)).bitcast(Float32)  # policy.py:537
    for q_step in cutlass.range(0, full_steps, unroll=1):  # policy.py:537
        advantages_2 = advantages[b]  # policy.py:112
        ratio_of_sequence_2 = ratio_of_sequence[b]  # policy.py:112
        weight_of_sequence_2 = weight_of_sequence[b]  # policy.py:112
        product = q_step * 1024  # policy.py:537
        total_2 = begin_2 + product  # policy.py:537
        q = [total_2 + q_lane[c] for c in range(8)]  # policy.py:537
        at_most = [0 <= q[c] for c in range(8)]  # policy.py:538
        below = [q[c] < S for c in range(8)]  # policy.py:538
        both = [at_most[c] & below[c] for c in range(8)]  # policy.py:538
        order_2 = [load_where(both[c], order, q[c], Int32(0)) for c in range(8)]  # policy.py:538
        at_most_2 = [0 <= order_2[c] for c in range(8)]  # policy.py:106
        below_2 = [order_2[c] < T for c in range(8)]  # policy.py:106
        both_2 = [at_most_2[c] & below_2[c] for c in range(8)]  # policy.py:106
        active_2 = [load_where(both_2[c], active, order_2[c], Uint8(0)) != 0 for c in range(8)]  # policy.py:106
        exp_of = portable_exp(ratio_of_sequence_2)  # policy.py:316
        equal = advantages_2 == Float32(0.0)  # policy.py:317
        chosen = select(equal, Float32(1.0), exp_of)  # policy.py:317
        product_2 = mul(chosen, advantages_2)  # surrogates.py:56
        negative = -product_2  # surrogates.py:56
        larger_2 = fmax(chosen, surrogate_least)  # surrogates.py:59
        smaller = fmin(larger_2, surrogate_most)  # surrogates.py:61
        product_3 = mul(smaller, advantages_2)  # surrogates.py:62
        negative_2 = -product_3  # surrogates.py:62
        below_3 = negative < negative_2  # surrogates.py:65
        unless = select(below_3, Boolean(False), Boolean(True))  # surrogates.py:65
        differs = advantages_2 != Float32(0.0)  # surrogates.py:72
        both_3 = unless & differs  # surrogates.py:72
        chosen_2 = select(both_3, negative, Float32(0.0))  # surrogates.py:72
        product_4 = mul(weight_of_sequence_2, chosen_2)  # policy.py:367
        chosen_3 = [select(active_2[c], product_4, Int32(-(2**31)).bitcast(Float32)) for c in range(8)]  # policy.py:540
        quotient = [div(chosen_3[c], as_f32) for c in range(8)]  # policy.py:456
        sum_q_lane = sum_over_q_lane(quotient, thread, (board_1[q_step % 2, None, None],))  # policy.py:537
        s_2 = s + sum_q_lane  # policy.py:537
        s = s_2  # policy.py:537
    s_2 = s  # policy.py:537
    for q_step_2 in cutlass.range(full_steps, steps, unroll=1):  # policy.py:537
        advantages_2 = advantages[b]  # policy.py:112
        ratio_of_sequence_2 = ratio_of_sequence[b]  # policy.py:112
        weight_of_sequence_2 = weight_of_sequence[b]  # policy.py:112
        product = q_step_2 * 1024  # policy.py:537
        total_2 = begin_2 + product  # policy.py:537
        q = [total_2 + q_lane[c] for c in range(8)]  # policy.py:537
        exists = [q[c] < end_2 for c in range(8)]  # policy.py:537
        at_most = [0 <= q[c] for c in range(8)]  # policy.py:538
        below = [q[c] < S for c in range(8)]  # policy.py:538
        both = [at_most[c] & below[c] for c in range(8)]  # policy.py:538
        both_2 = [exists[c] & both[c] for c in range(8)]  # policy.py:538
        order_2 = [load_where(both_2[c], order, q[c], Int32(0)) for c in range(8)]  # policy.py:538
        at_most_2 = [0 <= order_2[c] for c in range(8)]  # policy.py:106
        below_2 = [order_2[c] < T for c in range(8)]  # policy.py:106
        both_3 = [at_most_2[c] & below_2[c] for c in range(8)]  # policy.py:106
        both_4 = [exists[c] & both_3[c] for c in range(8)]  # policy.py:106
        active_2 = [load_where(both_4[c], active, order_2[c], Uint8(0)) != 0 for c in range(8)]  # policy.py:106
        exp_of = portable_exp(ratio_of_sequence_2)  # policy.py:316
        equal = advantages_2 == Float32(0.0)  # policy.py:317
        chosen = select(equal, Float32(1.0), exp_of)  # policy.py:317
        product_2 = mul(chosen, advantages_2)  # surrogates.py:56
        negative = -product_2  # surrogates.py:56
        larger_2 = fmax(chosen, surrogate_least)  # surrogates.py:59
        smaller = fmin(larger_2, surrogate_most)  # surrogates.py:61
        product_3 = mul(smaller, advantages_2)  # surrogates.py:62
        negative_2 = -product_3  # surrogates.py:62
        below_3 = negative < negative_2  # surrogates.py:65
        unless = select(below_3, Boolean(False), Boolean(True))  # surrogates.py:65
        differs = advantages_2 != Float32(0.0)  # surrogates.py:72
        both_5 = unless & differs  # surrogates.py:72
        chosen_2 = select(both_5, negative, Float32(0.0))  # surrogates.py:72
        product_4 = mul(weight_of_sequence_2, chosen_2)  # policy.py:367
        chosen_3 = [select(active_2[c], product_4, Int32(-(2**31)).bitcast(Float32)) for c in range(8)]  # policy.py:540
        quotient = [div(chosen_3[c], as_f32) for c in range(8)]  # policy.py:456
        chosen_4 = [select(exists[c], quotient[c], Int32(-(2**31)).bitcast(Float32)) for c in range(8)]  # policy.py:537
        sum_q_lane = sum_over_q_lane(chosen_4, thread, (board_2[q_step_2 % 2, None, None],))  # policy.py:537
        s_3 = s_2 + sum_q_lane  # policy.py:537
        s_2 = s_3  # policy.py:537
    total_2 = s_2 + Float32(0.0)  # policy.py:542
    store_where(writes, slopes_of_sequence, b, total_2)  # policy.py:542


@cute.jit
def launch_policy_loss_of_sequences_grad_1(advantages_ptr: cute.Pointer, order_ptr: cute.Pointer, active_ptr: cute.Pointer, begin_ptr: cute.Pointer, end_ptr: cute.Pointer, ratio_of_sequence_ptr: cute.Pointer, weight_of_sequence_ptr: cute.Pointer, slopes_of_sequence_ptr: cute.Pointer, S: Int32, T: Int32, B: Int32, surrogate_least: Float32, surrogate_most: Float32, programs: Int32, stream: cuda.CUstream):
    # Describe the tensors, and start the kernel on a stream.
    advantages = cute.make_tensor(advantages_ptr, cute.make_layout((B,), stride=(1,)))
    order = cute.make_tensor(order_ptr, cute.make_layout((S,), stride=(1,)))
    active = cute.make_tensor(active_ptr, cute.make_layout((T,), stride=(1,)))
    begin = cute.make_tensor(begin_ptr, cute.make_layout((B,), stride=(1,)))
    end = cute.make_tensor(end_ptr, cute.make_layout((B,), stride=(1,)))
    ratio_of_sequence = cute.make_tensor(ratio_of_sequence_ptr, cute.make_layout((B,), stride=(1,)))
    weight_of_sequence = cute.make_tensor(weight_of_sequence_ptr, cute.make_layout((B,), stride=(1,)))
    slopes_of_sequence = cute.make_tensor(slopes_of_sequence_ptr, cute.make_layout((B,), stride=(1,)))
    policy_loss_of_sequences_grad_1_rows(advantages, order, active, begin, end, ratio_of_sequence, weight_of_sequence, slopes_of_sequence, S, T, B, surrogate_least, surrogate_most).launch(
        grid=(programs, 1, 1), block=(128, 1, 1), stream=stream,
    )


@cute.kernel
def policy_loss_of_sequences_grad_2_rows(active: cute.Tensor, sequence: cute.Tensor, begin: cute.Tensor, end: cute.Tensor, sequences: cute.Tensor, d_loss: cute.Tensor, slopes_of_sequence: cute.Tensor, d_logp: cute.Tensor, T: Int32, B: Int32):
    # A block owns 128 of T (rows). T: 128 indices, 1 to each of 128 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    t = block * 128 + thread
    t_inside = t < T
    d_loss_2 = d_loss[0]  # policy.py:579
    sequences_2 = sequences[0]  # policy.py:468
    active_2 = load_where(t_inside, active, t, Uint8(0)) != 0  # policy.py:106
    sequence_2 = load_where(t_inside, sequence, t, Int32(0))  # policy.py:106
    at_most = 0 <= sequence_2  # policy.py:112
    below = sequence_2 < B  # policy.py:112
    both = at_most & below  # policy.py:112
    end_2 = load_where(both & t_inside, end, sequence_2, Int32(0))  # policy.py:112
    begin_2 = load_where(both & t_inside, begin, sequence_2, Int32(0))  # policy.py:112
    larger = cutlass.max(sequences_2, 1)  # policy.py:468
    as_f32 = Int32(larger).to(Float32)  # policy.py:468
    quotient = div(d_loss_2, as_f32)  # policy.py:473
    slopes_of_sequence_2 = load_where(both & t_inside, slopes_of_sequence, sequence_2, Float32(0))  # policy.py:112
    difference = end_2 - begin_2  # policy.py:450
    larger_2 = cutlass.max(difference, 1)  # policy.py:451
    as_f32_2 = Int32(larger_2).to(Float32)  # policy.py:451
    quotient_2 = div(slopes_of_sequence_2, as_f32_2)  # policy.py:546
    product = mul(quotient, quotient_2)  # policy.py:553
    chosen = select(active_2, product, Float32(0.0))  # policy.py:513
    store_where(t_inside, d_logp, t, chosen)  # policy.py:515


@cute.jit
def launch_policy_loss_of_sequences_grad_2(active_ptr: cute.Pointer, sequence_ptr: cute.Pointer, begin_ptr: cute.Pointer, end_ptr: cute.Pointer, sequences_ptr: cute.Pointer, d_loss_ptr: cute.Pointer, slopes_of_sequence_ptr: cute.Pointer, d_logp_ptr: cute.Pointer, T: Int32, B: Int32, programs: Int32, stream: cuda.CUstream):
    # Describe the tensors, and start the kernel on a stream.
    active = cute.make_tensor(active_ptr, cute.make_layout((T,), stride=(1,)))
    sequence = cute.make_tensor(sequence_ptr, cute.make_layout((T,), stride=(1,)))
    begin = cute.make_tensor(begin_ptr, cute.make_layout((B,), stride=(1,)))
    end = cute.make_tensor(end_ptr, cute.make_layout((B,), stride=(1,)))
    sequences = cute.make_tensor(sequences_ptr, cute.make_layout((1,), stride=(1,)))
    d_loss = cute.make_tensor(d_loss_ptr, cute.make_layout((1,), stride=(1,)))
    slopes_of_sequence = cute.make_tensor(slopes_of_sequence_ptr, cute.make_layout((B,), stride=(1,)))
    d_logp = cute.make_tensor(d_logp_ptr, cute.make_layout((T,), stride=(1,)))
    policy_loss_of_sequences_grad_2_rows(active, sequence, begin, end, sequences, d_loss, slopes_of_sequence, d_logp, T, B).launch(
        grid=(programs, 1, 1), block=(128, 1, 1), stream=stream,
    )


def call(kernels, advantages, order, active, begin, end, ratio_of_sequence, weight_of_sequence, slopes_of_sequence, sequence, sequences, d_loss, d_logp, surrogate_least, surrogate_most, S, T, B):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = B
    if programs > 0:
        kernels.policy_loss_of_sequences_grad_1((programs,), advantages, order, active, begin, end, ratio_of_sequence, weight_of_sequence, slopes_of_sequence, S, T, B, surrogate_least, surrogate_most)
    programs = ((T + 127) // 128)
    if programs > 0:
        kernels.policy_loss_of_sequences_grad_2((programs,), active, sequence, begin, end, sequences, d_loss, slopes_of_sequence, d_logp, T, B)
