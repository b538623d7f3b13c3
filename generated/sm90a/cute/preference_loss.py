"""preference_loss on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 6710ae4eae46314d
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


def magnitude(x):
    # Without its sign.
    return (x.bitcast(Int32) & Int32(0x7FFFFFFF)).bitcast(Float32)


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


def portable_log1p(x):
    # log(1 + x); log1p(-1) = -inf, log1p(x < -1) = NaN, log1p(-0) = -0.
    f0 = x + Float32(1.0)
    i1 = Float32(f0).bitcast(Int32)
    i2 = i1 - Int32(1061158912)
    i3 = i2 >> Int32(23)
    i4 = i3 << Int32(23)
    i5 = Float32(x).bitcast(Int32)
    i6 = i5 - i4
    f7 = Int32(i6).bitcast(Float32)
    i8 = Int32(1082130432) - i4
    f9 = Int32(i8).bitcast(Float32)
    f10 = fma(Float32(0.25), f9, Float32(-1.0))
    f11 = f7 + f10
    f12 = Int32(i3).to(Float32)
    f13 = fma(Float32(-0.04513518512248993), f11, Float32(0.10471279174089432))
    f14 = fma(f13, f11, Float32(-0.13164202868938446))
    f15 = fma(f14, f11, Float32(0.1447800248861313))
    f16 = fma(f15, f11, Float32(-0.1664692461490631))
    f17 = fma(f16, f11, Float32(0.1999083161354065))
    f18 = fma(f17, f11, Float32(-0.25000107288360596))
    f19 = fma(f18, f11, Float32(0.3333345055580139))
    f20 = fma(f19, f11, Float32(-0.5))
    f21 = mul(f11, f11)
    f22 = fma(f20, f21, f11)
    f23 = fma(f12, Float32(0.6931471824645996), f22)
    f24 = select((x < Float32(float("inf"))), f23, x)
    f25 = select((x == Float32(-1.0)), Float32(float("-inf")), f24)
    f26 = select((x < Float32(-1.0)), Float32(float("nan")), f25)
    f27 = select((x == Float32(0.0)), x, f26)
    return f27


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


def sum_over_p_lane_2(x, thread, boards):
    # The sum over P.lane, in any order.
    x = folded(x, 1, add)
    x = folded(x, 1, add)
    x = exchanged(x, 1, add)
    x = exchanged(x, 2, add)
    x = exchanged(x, 4, add)
    x = exchanged(x, 8, add)
    x = exchanged(x, 16, add)
    x = across(x, boards[0], (32, 64, 128), thread, add)
    return x[0]


def vector_of(memory, index, count):
    # Neighbours in memory, the first at a multiple of so many.
    at = cute.assume(cute.crd2idx(index, memory.layout), divby=count)
    return cute.make_tensor(memory.iterator + at, (count,))


@cute.kernel
def preference_loss_rows(chosen: cute.Tensor, rejected: cute.Tensor, ref_chosen: cute.Tensor, ref_rejected: cute.Tensor, per_pair: cute.Tensor, loss: cute.Tensor, chosen_reward: cute.Tensor, rejected_reward: cute.Tensor, accuracy: cute.Tensor, count: cute.Tensor, P: Int32, beta: Float32):
    # A block owns everything (rows). P.lane: 1024 indices, 4 to each of 256 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    shared = utils.SmemAllocator()
    board_1 = shared.allocate_tensor(Float32, cute.make_layout((4, 256), stride=(256, 1)), 16)
    board_2 = shared.allocate_tensor(Int32, cute.make_layout((1, 256), stride=(256, 1)), 16)
    board_3 = shared.allocate_tensor(Float32, cute.make_layout((4, 256), stride=(256, 1)), 16)
    board_4 = shared.allocate_tensor(Float32, cute.make_layout((4, 256), stride=(256, 1)), 16)
    board_5 = shared.allocate_tensor(Float32, cute.make_layout((4, 256), stride=(256, 1)), 16)
    board_6 = shared.allocate_tensor(Int32, cute.make_layout((1, 256), stride=(256, 1)), 16)
    board_7 = shared.allocate_tensor(Float32, cute.make_layout((4, 256), stride=(256, 1)), 16)
    board_8 = shared.allocate_tensor(Float32, cute.make_layout((4, 256), stride=(256, 1)), 16)
    writes = thread == 0
    total = P + 1023  # preference.py:158
    steps = total // 1024  # preference.py:158
    full_steps = P // 1024  # preference.py:158
    p_lane = [thread * 4 + c for c in range(4)]  # preference.py:158
    s = Int32(-(2**31)).bitcast(Float32)  # preference.py:158
    s_2 = Int32(0)  # preference.py:158
    s_3 = Int32(-(2**31)).bitcast(Float32)  # preference.py:158
    s_4 = Int32(-(2**31)).bitcast(Float32)  # preference.py:158
    next_p = Int32(0)  # preference.py:158
    comes = next_p < full_steps  # preference.py:158
    product = next_p * 1024  # preference.py:158
    p = [product + p_lane[c] for c in range(4)]  # preference.py:158
    ref_chosen_2 = load_vector_where(comes, ref_chosen, p[0], Float32(0), 4)  # preference.py:159
    ref_rejected_2 = load_vector_where(comes, ref_rejected, p[0], Float32(0), 4)  # preference.py:159
    chosen_2 = load_vector_where(comes, chosen, p[0], Float32(0), 4)  # preference.py:161
    rejected_2 = load_vector_where(comes, rejected, p[0], Float32(0), 4)  # preference.py:161
    ref_chosen_ahead = tuple(ref_chosen_2)  # preference.py:161
    ref_rejected_ahead = tuple(ref_rejected_2)  # preference.py:161
    chosen_ahead = tuple(chosen_2)  # preference.py:161
    rejected_ahead = tuple(rejected_2)  # preference.py:161
    next_p_2 = Int32(1)  # preference.py:161
    comes_2 = next_p_2 < full_steps  # preference.py:161
    product_2 = next_p_2 * 1024  # preference.py:158
    p_2 = [product_2 + p_lane[c] for c in range(4)]  # preference.py:158
    ref_chosen_3 = load_vector_where(comes_2, ref_chosen, p_2[0], Float32(0), 4)  # preference.py:159
    ref_rejected_3 = load_vector_where(comes_2, ref_rejected, p_2[0], Float32(0), 4)  # preference.py:159
    chosen_3 = load_vector_where(comes_2, chosen, p_2[0], Float32(0), 4)  # preference.py:161
    rejected_3 = load_vector_where(comes_2, rejected, p_2[0], Float32(0), 4)  # preference.py:161
    ref_chosen_ahead_2 = tuple(ref_chosen_3)  # preference.py:161
    ref_rejected_ahead_2 = tuple(ref_rejected_3)  # preference.py:161
    chosen_ahead_2 = tuple(chosen_3)  # preference.py:161
    rejected_ahead_2 = tuple(rejected_3)  # preference.py:161
    for p_step in cutlass.range(0, full_steps, unroll=1):  # preference.py:158
        next_p_3 = p_step + 2  # preference.py:158
        comes_3 = next_p_3 < full_steps  # preference.py:158
        product_3 = next_p_3 * 1024  # preference.py:158
        p_3 = [product_3 + p_lane[c] for c in range(4)]  # preference.py:158
        ref_chosen_4 = load_vector_where(comes_3, ref_chosen, p_3[0], Float32(0), 4)  # preference.py:159
        ref_rejected_4 = load_vector_where(comes_3, ref_rejected, p_3[0], Float32(0), 4)  # preference.py:159
        chosen_4 = load_vector_where(comes_3, chosen, p_3[0], Float32(0), 4)  # preference.py:161
        rejected_4 = load_vector_where(comes_3, rejected, p_3[0], Float32(0), 4)  # preference.py:161
        product_4 = p_step * 1024  # preference.py:158
        p_4 = [product_4 + p_lane[c] for c in range(4)]  # preference.py:158
        difference = [chosen_ahead[c] - ref_chosen_ahead[c] for c in range(4)]  # preference.py:128
        difference_2 = [rejected_ahead[c] - ref_rejected_ahead[c] for c in range(4)]  # preference.py:128
        difference_3 = [difference[c] - difference_2[c] for c in range(4)]  # preference.py:54
        product_5 = [mul(beta, difference_3[c]) for c in range(4)]  # preference.py:54
        smaller = [fmin(product_5[c], Float32(0.0)) for c in range(4)]  # preference.py:20
        magnitude_2 = [magnitude(product_5[c]) for c in range(4)]  # preference.py:20
        negative = [-magnitude_2[c] for c in range(4)]  # preference.py:20
        exp_of = [portable_exp(negative[c]) for c in range(4)]  # preference.py:20
        log1p_of = [portable_log1p(exp_of[c]) for c in range(4)]  # preference.py:20
        difference_4 = [smaller[c] - log1p_of[c] for c in range(4)]  # preference.py:20
        negative_2 = [-difference_4[c] for c in range(4)]  # preference.py:67
        store_vector(per_pair, p_4[0], negative_2)  # preference.py:163
        below = [difference_2[c] < difference[c] for c in range(4)]  # preference.py:165
        as_i32 = [Boolean(below[c]).to(Int32) for c in range(4)]  # preference.py:165
        product_6 = [mul(beta, difference[c]) for c in range(4)]  # preference.py:166
        product_7 = [mul(beta, difference_2[c]) for c in range(4)]  # preference.py:167
        sum_p_lane = sum_over_p_lane(negative_2, thread, (board_1,))  # preference.py:158
        sum_p_lane_2 = sum_over_p_lane_2(as_i32, thread, (board_2,))  # preference.py:158
        sum_p_lane_3 = sum_over_p_lane(product_6, thread, (board_3,))  # preference.py:158
        sum_p_lane_4 = sum_over_p_lane(product_7, thread, (board_4,))  # preference.py:158
        s_5 = s + sum_p_lane  # preference.py:158
        s_6 = s_2 + sum_p_lane_2  # preference.py:158
        s_7 = s_3 + sum_p_lane_3  # preference.py:158
        s_8 = s_4 + sum_p_lane_4  # preference.py:158
        s, s_2, s_3, s_4, ref_chosen_ahead, ref_chosen_ahead_2, ref_rejected_ahead, ref_rejected_ahead_2, chosen_ahead, chosen_ahead_2, rejected_ahead, rejected_ahead_2 = s_5, s_6, s_7, s_8, ref_chosen_ahead_2, tuple(ref_chosen_4), ref_rejected_ahead_2, tuple(ref_rejected_4), chosen_ahead_2, tuple(chosen_4), rejected_ahead_2, tuple(rejected_4)  # preference.py:158
    s_5 = s  # preference.py:158
    s_6 = s_2  # preference.py:158
    s_7 = s_3  # preference.py:158
    s_8 = s_4  # preference.py:158
    for p_step_2 in cutlass.range(full_steps, steps, unroll=1):  # preference.py:158
        product_3 = p_step_2 * 1024  # preference.py:158
        p_3 = [product_3 + p_lane[c] for c in range(4)]  # preference.py:158
        exists = [p_3[c] < P for c in range(4)]  # preference.py:158
        ref_chosen_4 = [load_where(exists[c], ref_chosen, p_3[c], Float32(0)) for c in range(4)]  # preference.py:159
        ref_rejected_4 = [load_where(exists[c], ref_rejected, p_3[c], Float32(0)) for c in range(4)]  # preference.py:159
        chosen_4 = [load_where(exists[c], chosen, p_3[c], Float32(0)) for c in range(4)]  # preference.py:161
        rejected_4 = [load_where(exists[c], rejected, p_3[c], Float32(0)) for c in range(4)]  # preference.py:161
        difference = [chosen_4[c] - ref_chosen_4[c] for c in range(4)]  # preference.py:128
        difference_2 = [rejected_4[c] - ref_rejected_4[c] for c in range(4)]  # preference.py:128
        difference_3 = [difference[c] - difference_2[c] for c in range(4)]  # preference.py:54
        product_4 = [mul(beta, difference_3[c]) for c in range(4)]  # preference.py:54
        smaller = [fmin(product_4[c], Float32(0.0)) for c in range(4)]  # preference.py:20
        magnitude_2 = [magnitude(product_4[c]) for c in range(4)]  # preference.py:20
        negative = [-magnitude_2[c] for c in range(4)]  # preference.py:20
        exp_of = [portable_exp(negative[c]) for c in range(4)]  # preference.py:20
        log1p_of = [portable_log1p(exp_of[c]) for c in range(4)]  # preference.py:20
        difference_4 = [smaller[c] - log1p_of[c] for c in range(4)]  # preference.py:20
        negative_2 = [-difference_4[c] for c in range(4)]  # preference.py:67
        for c in cutlass.range_constexpr(4):  # preference.py:163
            store_where(exists[c], per_pair, p_3[c], negative_2[c])  # preference.py:163
        below = [difference_2[c] < difference[c] for c in range(4)]  # preference.py:165
        as_i32 = [Boolean(below[c]).to(Int32) for c in range(4)]  # preference.py:165
        product_5 = [mul(beta, difference[c]) for c in range(4)]  # preference.py:166
        product_6 = [mul(beta, difference_2[c]) for c in range(4)]  # preference.py:167
        chosen_5 = [select(exists[c], negative_2[c], Int32(-(2**31)).bitcast(Float32)) for c in range(4)]  # preference.py:158
        sum_p_lane = sum_over_p_lane(chosen_5, thread, (board_5,))  # preference.py:158
        chosen_6 = [select(exists[c], as_i32[c], Int32(0)) for c in range(4)]  # preference.py:158
        sum_p_lane_2 = sum_over_p_lane_2(chosen_6, thread, (board_6,))  # preference.py:158
        chosen_7 = [select(exists[c], product_5[c], Int32(-(2**31)).bitcast(Float32)) for c in range(4)]  # preference.py:158
        sum_p_lane_3 = sum_over_p_lane(chosen_7, thread, (board_7,))  # preference.py:158
        chosen_8 = [select(exists[c], product_6[c], Int32(-(2**31)).bitcast(Float32)) for c in range(4)]  # preference.py:158
        sum_p_lane_4 = sum_over_p_lane(chosen_8, thread, (board_8,))  # preference.py:158
        s_9 = s_5 + sum_p_lane  # preference.py:158
        s_10 = s_6 + sum_p_lane_2  # preference.py:158
        s_11 = s_7 + sum_p_lane_3  # preference.py:158
        s_12 = s_8 + sum_p_lane_4  # preference.py:158
        s_5, s_6, s_7, s_8 = s_9, s_10, s_11, s_12  # preference.py:158
    larger = cutlass.max(P, 1)  # preference.py:168
    total_2 = s_5 + Float32(0.0)  # preference.py:171
    as_f32 = Int32(larger).to(Float32)  # preference.py:171
    quotient = div(total_2, as_f32)  # preference.py:171
    total_3 = s_7 + Float32(0.0)  # preference.py:171
    quotient_2 = div(total_3, as_f32)  # preference.py:171
    total_4 = s_8 + Float32(0.0)  # preference.py:171
    quotient_3 = div(total_4, as_f32)  # preference.py:171
    as_f32_2 = Int32(s_6).to(Float32)  # preference.py:172
    quotient_4 = div(as_f32_2, as_f32)  # preference.py:172
    store_where(writes, loss, 0, quotient)  # preference.py:172
    store_where(writes, chosen_reward, 0, quotient_2)  # preference.py:172
    store_where(writes, rejected_reward, 0, quotient_3)  # preference.py:172
    store_where(writes, accuracy, 0, quotient_4)  # preference.py:172
    store_where(writes, count, 0, larger)  # preference.py:172


@cute.jit
def launch_preference_loss(chosen_ptr: cute.Pointer, rejected_ptr: cute.Pointer, ref_chosen_ptr: cute.Pointer, ref_rejected_ptr: cute.Pointer, per_pair_ptr: cute.Pointer, loss_ptr: cute.Pointer, chosen_reward_ptr: cute.Pointer, rejected_reward_ptr: cute.Pointer, accuracy_ptr: cute.Pointer, count_ptr: cute.Pointer, P: Int32, beta: Float32, programs: Int32, stream: cuda.CUstream):
    # Describe the tensors, and start the kernel on a stream.
    chosen = cute.make_tensor(chosen_ptr, cute.make_layout((P,), stride=(1,)))
    rejected = cute.make_tensor(rejected_ptr, cute.make_layout((P,), stride=(1,)))
    ref_chosen = cute.make_tensor(ref_chosen_ptr, cute.make_layout((P,), stride=(1,)))
    ref_rejected = cute.make_tensor(ref_rejected_ptr, cute.make_layout((P,), stride=(1,)))
    per_pair = cute.make_tensor(per_pair_ptr, cute.make_layout((P,), stride=(1,)))
    loss = cute.make_tensor(loss_ptr, cute.make_layout((1,), stride=(1,)))
    chosen_reward = cute.make_tensor(chosen_reward_ptr, cute.make_layout((1,), stride=(1,)))
    rejected_reward = cute.make_tensor(rejected_reward_ptr, cute.make_layout((1,), stride=(1,)))
    accuracy = cute.make_tensor(accuracy_ptr, cute.make_layout((1,), stride=(1,)))
    count = cute.make_tensor(count_ptr, cute.make_layout((1,), stride=(1,)))
    preference_loss_rows(chosen, rejected, ref_chosen, ref_rejected, per_pair, loss, chosen_reward, rejected_reward, accuracy, count, P, beta).launch(
        grid=(programs, 1, 1), block=(256, 1, 1), stream=stream,
    )


def call(kernels, chosen, rejected, ref_chosen, ref_rejected, per_pair, loss, chosen_reward, rejected_reward, accuracy, count, beta, P):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = 1
    if programs > 0:
        kernels.preference_loss((programs,), chosen, rejected, ref_chosen, ref_rejected, per_pair, loss, chosen_reward, rejected_reward, accuracy, count, P, beta)
