"""sample on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 63a6ef2510bdb909
schedule: tiles 1, 8 warps, 1 stages, unroll 1 placed W.lane[10:3] W.lane[2:0] J.piece[3:0]
schedule: tiles 1, 16 warps, 1 stages, unroll 1 placed U.piece[8:0] J.piece[3:0] U.piece[9:9]
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


def exp2(x):
    # The hardware's: a table.
    return cute.math.exp2(x, fastmath=True)


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


@cute.jit
def load_where(condition, memory: cute.Tensor, index, other):
    # An element, or what stands for it.
    x = other
    if condition:
        x = type(other)(memory[index])
    return x


def max_over_j_piece(x):
    # The max over J.piece, in any order.
    x = folded(x, 1, most)
    x = folded(x, 1, most)
    x = folded(x, 1, most)
    x = folded(x, 1, most)
    return x[0]


def max_over_w_lane(x, thread, boards):
    # The max over W.lane, in any order.
    x = folded(x, 1, most)
    x = folded(x, 1, most)
    x = exchanged(x, 1, most)
    x = exchanged(x, 2, most)
    x = exchanged(x, 4, most)
    x = exchanged(x, 8, most)
    x = exchanged(x, 16, most)
    x = across(x, boards[0], (32, 64, 128), thread, most)
    return x[0]


def most(a, b):
    # Of integers.
    return cutlass.max(a, b)


def mul(a, b):
    # One rounding, never part of a fused operation.
    return cute.math.mul(a, b, rounding=NEAREST)


def mulhi(a, b):
    # The upper word of a product of words.
    return (Int64(a) * Int64(b) >> 32).to(Uint32)


def philox(c0, c1, c2, c3, k0, k1):
    # Four random words: Philox 4x32-10.
    for _ in range(10):
        high0, low0 = mulhi(c0, Uint32(0xD2511F53)), c0 * Uint32(0xD2511F53)
        high1, low1 = mulhi(c2, Uint32(0xCD9E8D57)), c2 * Uint32(0xCD9E8D57)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + Uint32(0x9E3779B9), k1 + Uint32(0xBB67AE85)
    return c0, c1, c2, c3


def portable_log(x):
    # Natural logarithm; log(+-0) = -inf, log(x < 0) = NaN.
    f0 = mul(x, Float32(8388608.0))
    f1 = select((x < Float32(1.1754943508222875e-38)), f0, x)
    i2 = Float32(f1).bitcast(Int32)
    i3 = i2 - Int32(1061158912)
    i4 = i3 >> Int32(23)
    i5 = i4 << Int32(23)
    i6 = i2 - i5
    f7 = Int32(i6).bitcast(Float32)
    f8 = f7 - Float32(1.0)
    f9 = Int32(i4).to(Float32)
    f10 = select((x < Float32(1.1754943508222875e-38)), Float32(-23.0), Float32(0.0))
    f11 = f9 + f10
    f12 = fma(Float32(-0.04513518512248993), f8, Float32(0.10471279174089432))
    f13 = fma(f12, f8, Float32(-0.13164202868938446))
    f14 = fma(f13, f8, Float32(0.1447800248861313))
    f15 = fma(f14, f8, Float32(-0.1664692461490631))
    f16 = fma(f15, f8, Float32(0.1999083161354065))
    f17 = fma(f16, f8, Float32(-0.25000107288360596))
    f18 = fma(f17, f8, Float32(0.3333345055580139))
    f19 = fma(f18, f8, Float32(-0.5))
    f20 = mul(f8, f8)
    f21 = fma(f19, f20, f8)
    f22 = fma(f11, Float32(0.6931471824645996), f21)
    f23 = select((x < Float32(float("inf"))), f22, x)
    f24 = select((x == Float32(0.0)), Float32(float("-inf")), f23)
    f25 = select((x < Float32(0.0)), Float32(float("nan")), f24)
    return f25


@cute.jit
def report_where(bad, errors: cute.Pointer, code: cutlass.Constexpr, row):
    # Write what was found, and one more than its row, into the device's error words.
    if bad:
        cute.arch.atomic_max(errors, Int32(code))
        cute.arch.atomic_max(errors + 1, row)


def select(condition, a, b):
    # Without a branch.
    return cutlass.select_(condition, a, b)


@cute.jit
def store_where(condition, memory: cute.Tensor, index, x):
    # Write an element if the condition holds.
    if condition:
        memory[index] = x


def sum_over_u_piece(x, thread, boards):
    # The sum over U.piece, in any order.
    x = folded(x, 1, add)
    x = exchanged(x, 1, add)
    x = exchanged(x, 2, add)
    x = exchanged(x, 4, add)
    x = exchanged(x, 8, add)
    x = exchanged(x, 16, add)
    x = across(x, boards[0], (32, 64, 128, 256), thread, add)
    return x[0]


def sum_over_u_piece_2(x, thread, boards):
    # The sum over U.piece, in any order.
    x = folded(x, 1, add)
    x = exchanged(x, 1, add)
    x = exchanged(x, 2, add)
    x = exchanged(x, 4, add)
    x = exchanged(x, 8, add)
    x = exchanged(x, 16, add)
    x = across(x, boards[0], (32, 64, 128, 256), thread, add)
    return x


def sum_over_w_lane(x, thread, boards):
    # The sum over W.lane, in any order.
    x = folded(x, 16, add)
    x = folded(x, 16, add)
    x = exchanged(x, 1, add)
    x = exchanged(x, 2, add)
    x = exchanged(x, 4, add)
    x = exchanged(x, 8, add)
    x = exchanged(x, 16, add)
    x = across(x, boards[0], (32, 64, 128), thread, add)
    return x


def sum_over_w_lane_2(x, thread, boards):
    # The sum over W.lane, in any order.
    x = folded(x, 1, add)
    x = folded(x, 1, add)
    x = exchanged(x, 1, add)
    x = exchanged(x, 2, add)
    x = exchanged(x, 4, add)
    x = exchanged(x, 8, add)
    x = exchanged(x, 16, add)
    x = across(x, boards[0], (32, 64, 128), thread, add)
    return x[0]


@cute.kernel
def sample_1_rows(scores: cute.Tensor, inv_temperature: cute.Tensor, top_k: cute.Tensor, top_p: cute.Tensor, min_p: cute.Tensor, best: cute.Tensor, goal: cute.Tensor, cut: cute.Tensor, most_ties: cute.Tensor, T: Int32):
    # A block owns 1 of T (rows). W.lane: 1024 indices, 4 to each of 256 threads; J.piece: 16 indices, 16 to each of 1 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    shared = utils.SmemAllocator()
    board_1 = shared.allocate_tensor(Int32, cute.make_layout((1, 256), stride=(256, 1)), 16)
    board_2 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_3 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_4 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_5 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_6 = shared.allocate_tensor(Int32, cute.make_layout((1, 256), stride=(256, 1)), 16)
    board_7 = shared.allocate_tensor(Int32, cute.make_layout((1, 256), stride=(256, 1)), 16)
    board_8 = shared.allocate_tensor(Int32, cute.make_layout((1, 256), stride=(256, 1)), 16)
    board_9 = shared.allocate_tensor(Int32, cute.make_layout((1, 256), stride=(256, 1)), 16)
    board_10 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_11 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_12 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_13 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_14 = shared.allocate_tensor(Int32, cute.make_layout((1, 256), stride=(256, 1)), 16)
    board_15 = shared.allocate_tensor(Int32, cute.make_layout((1, 256), stride=(256, 1)), 16)
    board_16 = shared.allocate_tensor(Int32, cute.make_layout((1, 256), stride=(256, 1)), 16)
    board_17 = shared.allocate_tensor(Int32, cute.make_layout((1, 256), stride=(256, 1)), 16)
    board_18 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_19 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_20 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_21 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_22 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_23 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_24 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_25 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_26 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_27 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_28 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_29 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_30 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_31 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_32 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_33 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_34 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_35 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_36 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_37 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_38 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_39 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_40 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_41 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_42 = shared.allocate_tensor(Int32, cute.make_layout((1, 256), stride=(256, 1)), 16)
    board_43 = shared.allocate_tensor(Int32, cute.make_layout((1, 256), stride=(256, 1)), 16)
    board_44 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_45 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_46 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_47 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_48 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_49 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_50 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_51 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    t = block
    writes = thread == 0
    inv_temperature_2 = inv_temperature[t]  # sampling.py:328
    min_p_2 = min_p[t]  # sampling.py:335
    top_k_2 = top_k[t]  # sampling.py:337
    top_p_2 = top_p[t]  # sampling.py:339
    equal = inv_temperature_2 == Float32(float("inf"))  # sampling.py:328
    chosen = select(equal, Float32(1.0), inv_temperature_2)  # sampling.py:329
    w_lane = [thread // 128 + thread % 128 * 8 + c * 2 for c in range(4)]  # sampling.py:331
    first = tuple([Int32(-2147483648) for c in range(4)])  # sampling.py:331
    second = tuple([Int32(-2147483648) for c in range(4)])  # sampling.py:331
    third = tuple([Int32(-2147483648) for c in range(4)])  # sampling.py:331
    for w_step in cutlass.range(0, 148, unroll=1):  # sampling.py:331
        product = w_step * 1024  # sampling.py:331
        w = [product + w_lane[c] for c in range(4)]  # sampling.py:331
        scores_2 = [scores[(t, w[c])] for c in range(4)]  # sampling.py:332
        as_f32 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:332
        larger = [fmax(as_f32[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:118
        total = [larger[c] + Float32(0.0) for c in range(4)]  # sampling.py:118
        as_i32 = [Float32(total[c]).bitcast(Int32) for c in range(4)]  # sampling.py:118
        shifted = [as_i32[c] >> 31 for c in range(4)]  # sampling.py:119
        both = [shifted[c] & 2147483647 for c in range(4)]  # sampling.py:119
        xor = [as_i32[c] ^ both[c] for c in range(4)]  # sampling.py:119
        shifted_2 = [xor[c] >> 16 for c in range(4)]  # sampling.py:67
        smaller = [cutlass.min(shifted_2[c], -2147483648) for c in range(4)]  # sampling.py:331
        smaller_2 = [cutlass.min(first[c], shifted_2[c]) for c in range(4)]  # sampling.py:331
        larger_2 = [cutlass.max(second[c], smaller[c]) for c in range(4)]  # sampling.py:331
        second_2 = [cutlass.max(smaller_2[c], larger_2[c]) for c in range(4)]  # sampling.py:331
        smaller_3 = [cutlass.min(first[c], smaller[c]) for c in range(4)]  # sampling.py:331
        smaller_4 = [cutlass.min(second[c], shifted_2[c]) for c in range(4)]  # sampling.py:331
        larger_3 = [cutlass.max(smaller_3[c], smaller_4[c]) for c in range(4)]  # sampling.py:331
        larger_4 = [cutlass.max(third[c], smaller[c]) for c in range(4)]  # sampling.py:331
        third_2 = [cutlass.max(larger_3[c], larger_4[c]) for c in range(4)]  # sampling.py:331
        first_2 = [cutlass.max(first[c], shifted_2[c]) for c in range(4)]  # sampling.py:331
        first, second, third = tuple(first_2), tuple(second_2), tuple(third_2)  # sampling.py:331
    first_2 = tuple(first)  # sampling.py:331
    second_2 = tuple(second)  # sampling.py:331
    third_2 = tuple(third)  # sampling.py:331
    for w_step_2 in cutlass.range(148, 149, unroll=1):  # sampling.py:331
        product = w_step_2 * 1024  # sampling.py:331
        w = [product + w_lane[c] for c in range(4)]  # sampling.py:331
        exists = [w[c] < 151936 for c in range(4)]  # sampling.py:331
        scores_2 = [load_where(exists[c], scores, (t, w[c]), BFloat16(0)) for c in range(4)]  # sampling.py:332
        as_f32 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:332
        larger = [fmax(as_f32[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:118
        total = [larger[c] + Float32(0.0) for c in range(4)]  # sampling.py:118
        as_i32 = [Float32(total[c]).bitcast(Int32) for c in range(4)]  # sampling.py:118
        shifted = [as_i32[c] >> 31 for c in range(4)]  # sampling.py:119
        both = [shifted[c] & 2147483647 for c in range(4)]  # sampling.py:119
        xor = [as_i32[c] ^ both[c] for c in range(4)]  # sampling.py:119
        shifted_2 = [xor[c] >> 16 for c in range(4)]  # sampling.py:67
        chosen_2 = [select(exists[c], shifted_2[c], Int32(-2147483648)) for c in range(4)]  # sampling.py:331
        smaller = [cutlass.min(chosen_2[c], -2147483648) for c in range(4)]  # sampling.py:331
        smaller_2 = [cutlass.min(first_2[c], chosen_2[c]) for c in range(4)]  # sampling.py:331
        larger_2 = [cutlass.max(second_2[c], smaller[c]) for c in range(4)]  # sampling.py:331
        second_3 = [cutlass.max(smaller_2[c], larger_2[c]) for c in range(4)]  # sampling.py:331
        smaller_3 = [cutlass.min(first_2[c], smaller[c]) for c in range(4)]  # sampling.py:331
        smaller_4 = [cutlass.min(second_2[c], chosen_2[c]) for c in range(4)]  # sampling.py:331
        larger_3 = [cutlass.max(smaller_3[c], smaller_4[c]) for c in range(4)]  # sampling.py:331
        larger_4 = [cutlass.max(third_2[c], smaller[c]) for c in range(4)]  # sampling.py:331
        third_3 = [cutlass.max(larger_3[c], larger_4[c]) for c in range(4)]  # sampling.py:331
        first_3 = [cutlass.max(first_2[c], chosen_2[c]) for c in range(4)]  # sampling.py:331
        first_2, second_2, third_2 = tuple(first_3), tuple(second_3), tuple(third_3)  # sampling.py:331
    max_w_lane = max_over_w_lane(first_2, thread, (board_1,))  # sampling.py:333
    shifted = max_w_lane << 16  # sampling.py:71
    below = max_w_lane < 0  # sampling.py:73
    either = shifted | 65535  # sampling.py:73
    chosen_2 = select(below, either, shifted)  # sampling.py:73
    shifted_2 = chosen_2 >> 31  # sampling.py:74
    both = shifted_2 & 2147483647  # sampling.py:74
    xor = chosen_2 ^ both  # sampling.py:74
    as_f32 = Int32(xor).bitcast(Float32)  # sampling.py:74
    larger = [cutlass.max(first_2[c], -32641) for c in range(4)]  # sampling.py:334
    larger_2 = [cutlass.max(second_2[c], -32641) for c in range(4)]  # sampling.py:334
    larger_3 = [cutlass.max(third_2[c], -32641) for c in range(4)]  # sampling.py:334
    log_of = portable_log(min_p_2)  # sampling.py:248
    quotient = div(log_of, chosen)  # sampling.py:250
    total = as_f32 + quotient  # sampling.py:251
    larger_4 = fmax(total, Float32(float("-inf")))  # sampling.py:251
    smaller = fmin(larger_4, as_f32)  # sampling.py:251
    larger_5 = fmax(smaller, Float32(float("-inf")))  # sampling.py:118
    total_2 = larger_5 + Float32(0.0)  # sampling.py:118
    as_i32 = Float32(total_2).bitcast(Int32)  # sampling.py:118
    shifted_3 = as_i32 >> 31  # sampling.py:119
    both_2 = shifted_3 & 2147483647  # sampling.py:119
    xor_2 = as_i32 ^ both_2  # sampling.py:119
    below_2 = xor_2 < 0  # sampling.py:79
    total_3 = xor_2 + 65535  # sampling.py:79
    chosen_3 = select(below_2, xor_2, total_3)  # sampling.py:79
    shifted_4 = chosen_3 >> 16  # sampling.py:79
    difference = shifted_4 - 1  # sampling.py:252
    larger_6 = cutlass.max(difference, -32641)  # sampling.py:252
    below_3 = 0 < top_k_2  # sampling.py:192
    below_4 = top_k_2 < 151936  # sampling.py:192
    both_3 = below_3 & below_4  # sampling.py:192
    j = [Int32(c) for c in range(16)]  # sampling.py:140
    shifted_5 = [j[c] << 12 for c in range(16)]  # sampling.py:140
    total_4 = [shifted_5[c] + -32768 for c in range(16)]  # sampling.py:140
    at_most = [total_4[c % 16] <= larger[c // 16] for c in range(64)]  # sampling.py:195
    as_i32_2 = [Boolean(at_most[c]).to(Int32) for c in range(64)]  # sampling.py:195
    at_most_2 = [total_4[c % 16] <= larger_2[c // 16] for c in range(64)]  # sampling.py:195
    as_i32_3 = [Boolean(at_most_2[c]).to(Int32) for c in range(64)]  # sampling.py:195
    at_most_3 = [total_4[c % 16] <= larger_3[c // 16] for c in range(64)]  # sampling.py:195
    as_i32_4 = [Boolean(at_most_3[c]).to(Int32) for c in range(64)]  # sampling.py:195
    total_5 = [as_i32_2[c] + as_i32_3[c] for c in range(64)]  # sampling.py:196
    total_6 = [total_5[c] + as_i32_4[c] for c in range(64)]  # sampling.py:196
    sum_w_lane = sum_over_w_lane(total_6, thread, (board_2,))  # sampling.py:196
    at_most_4 = [top_k_2 <= sum_w_lane[c] for c in range(16)]  # sampling.py:196
    chosen_4 = [select(at_most_4[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:130
    max_j_piece = max_over_j_piece(chosen_4)  # sampling.py:130
    shifted_6 = max_j_piece << 12  # sampling.py:142
    total_7 = shifted_6 + -32768  # sampling.py:142
    shifted_7 = [j[c] << 8 for c in range(16)]  # sampling.py:140
    total_8 = [shifted_7[c] + total_7 for c in range(16)]  # sampling.py:140
    at_most_5 = [total_8[c % 16] <= larger[c // 16] for c in range(64)]  # sampling.py:195
    as_i32_5 = [Boolean(at_most_5[c]).to(Int32) for c in range(64)]  # sampling.py:195
    at_most_6 = [total_8[c % 16] <= larger_2[c // 16] for c in range(64)]  # sampling.py:195
    as_i32_6 = [Boolean(at_most_6[c]).to(Int32) for c in range(64)]  # sampling.py:195
    at_most_7 = [total_8[c % 16] <= larger_3[c // 16] for c in range(64)]  # sampling.py:195
    as_i32_7 = [Boolean(at_most_7[c]).to(Int32) for c in range(64)]  # sampling.py:195
    total_9 = [as_i32_5[c] + as_i32_6[c] for c in range(64)]  # sampling.py:196
    total_10 = [total_9[c] + as_i32_7[c] for c in range(64)]  # sampling.py:196
    sum_w_lane_2 = sum_over_w_lane(total_10, thread, (board_3,))  # sampling.py:196
    at_most_8 = [top_k_2 <= sum_w_lane_2[c] for c in range(16)]  # sampling.py:196
    chosen_5 = [select(at_most_8[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:130
    max_j_piece_2 = max_over_j_piece(chosen_5)  # sampling.py:130
    shifted_8 = max_j_piece_2 << 8  # sampling.py:142
    total_11 = shifted_8 + total_7  # sampling.py:142
    shifted_9 = [j[c] << 4 for c in range(16)]  # sampling.py:140
    total_12 = [shifted_9[c] + total_11 for c in range(16)]  # sampling.py:140
    at_most_9 = [total_12[c % 16] <= larger[c // 16] for c in range(64)]  # sampling.py:195
    as_i32_8 = [Boolean(at_most_9[c]).to(Int32) for c in range(64)]  # sampling.py:195
    at_most_10 = [total_12[c % 16] <= larger_2[c // 16] for c in range(64)]  # sampling.py:195
    as_i32_9 = [Boolean(at_most_10[c]).to(Int32) for c in range(64)]  # sampling.py:195
    at_most_11 = [total_12[c % 16] <= larger_3[c // 16] for c in range(64)]  # sampling.py:195
    as_i32_10 = [Boolean(at_most_11[c]).to(Int32) for c in range(64)]  # sampling.py:195
    total_13 = [as_i32_8[c] + as_i32_9[c] for c in range(64)]  # sampling.py:196
    total_14 = [total_13[c] + as_i32_10[c] for c in range(64)]  # sampling.py:196
    sum_w_lane_3 = sum_over_w_lane(total_14, thread, (board_4,))  # sampling.py:196
    at_most_12 = [top_k_2 <= sum_w_lane_3[c] for c in range(16)]  # sampling.py:196
    chosen_6 = [select(at_most_12[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:130
    max_j_piece_3 = max_over_j_piece(chosen_6)  # sampling.py:130
    shifted_10 = max_j_piece_3 << 4  # sampling.py:142
    total_15 = shifted_10 + total_11  # sampling.py:142
    total_16 = [j[c] + total_15 for c in range(16)]  # sampling.py:140
    at_most_13 = [total_16[c % 16] <= larger[c // 16] for c in range(64)]  # sampling.py:195
    as_i32_11 = [Boolean(at_most_13[c]).to(Int32) for c in range(64)]  # sampling.py:195
    at_most_14 = [total_16[c % 16] <= larger_2[c // 16] for c in range(64)]  # sampling.py:195
    as_i32_12 = [Boolean(at_most_14[c]).to(Int32) for c in range(64)]  # sampling.py:195
    at_most_15 = [total_16[c % 16] <= larger_3[c // 16] for c in range(64)]  # sampling.py:195
    as_i32_13 = [Boolean(at_most_15[c]).to(Int32) for c in range(64)]  # sampling.py:195
    total_17 = [as_i32_11[c] + as_i32_12[c] for c in range(64)]  # sampling.py:196
    total_18 = [total_17[c] + as_i32_13[c] for c in range(64)]  # sampling.py:196
    sum_w_lane_4 = sum_over_w_lane(total_18, thread, (board_5,))  # sampling.py:196
    at_most_16 = [top_k_2 <= sum_w_lane_4[c] for c in range(16)]  # sampling.py:196
    chosen_7 = [select(at_most_16[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:130
    max_j_piece_4 = max_over_j_piece(chosen_7)  # sampling.py:130
    total_19 = max_j_piece_4 + total_15  # sampling.py:142
    larger_7 = cutlass.max(total_19, larger_6)  # sampling.py:205
    chosen_8 = select(both_3, larger_7, larger_6)  # sampling.py:206
    product = mul(as_f32, chosen)  # sampling.py:92
    s = tuple([Int32(0) for c in range(4)])  # sampling.py:175
    s_2 = tuple([Int32(0) for c in range(4)])  # sampling.py:175
    s_3 = tuple([Int32(0) for c in range(4)])  # sampling.py:175
    for w_step_3 in cutlass.range(0, 148, unroll=1):  # sampling.py:175
        product_2 = w_step_3 * 1024  # sampling.py:175
        w = [product_2 + w_lane[c] for c in range(4)]  # sampling.py:175
        scores_2 = [scores[(t, w[c])] for c in range(4)]  # sampling.py:176
        as_f32_2 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:176
        larger_8 = [fmax(as_f32_2[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:118
        total_20 = [larger_8[c] + Float32(0.0) for c in range(4)]  # sampling.py:118
        as_i32_14 = [Float32(total_20[c]).bitcast(Int32) for c in range(4)]  # sampling.py:118
        shifted_11 = [as_i32_14[c] >> 31 for c in range(4)]  # sampling.py:119
        both_4 = [shifted_11[c] & 2147483647 for c in range(4)]  # sampling.py:119
        xor_3 = [as_i32_14[c] ^ both_4[c] for c in range(4)]  # sampling.py:119
        shifted_12 = [xor_3[c] >> 16 for c in range(4)]  # sampling.py:67
        below_5 = [chosen_8 < shifted_12[c] for c in range(4)]  # sampling.py:178
        as_i32_15 = [Boolean(below_5[c]).to(Int32) for c in range(4)]  # sampling.py:178
        product_3 = [mul(as_f32_2[c], chosen) for c in range(4)]  # sampling.py:92
        difference_2 = [product_3[c] - product for c in range(4)]  # sampling.py:96
        product_4 = [mul(difference_2[c], Float32(1.4426950216293335)) for c in range(4)]  # sampling.py:96
        power = [exp2(product_4[c]) for c in range(4)]  # sampling.py:96
        equal_2 = [as_f32_2[c] == as_f32 for c in range(4)]  # sampling.py:98
        larger_9 = [fmax(power[c], Float32(0.0)) for c in range(4)]  # sampling.py:98
        chosen_9 = [select(equal_2[c], Float32(1.0), larger_9[c]) for c in range(4)]  # sampling.py:98
        total_21 = [chosen_9[c] + Float32(2.0) for c in range(4)]  # sampling.py:100
        as_i32_16 = [Float32(total_21[c]).bitcast(Int32) for c in range(4)]  # sampling.py:100
        difference_3 = [as_i32_16[c] - 1073741824 for c in range(4)]  # sampling.py:100
        chosen_10 = [select(below_5[c], difference_3[c], Int32(0)) for c in range(4)]  # sampling.py:179
        equal_3 = [shifted_12[c] == chosen_8 for c in range(4)]  # sampling.py:180
        as_i32_17 = [Boolean(equal_3[c]).to(Int32) for c in range(4)]  # sampling.py:180
        s_4 = [s[c] + as_i32_15[c] for c in range(4)]  # sampling.py:175
        s_5 = [s_2[c] + chosen_10[c] for c in range(4)]  # sampling.py:175
        s_6 = [s_3[c] + as_i32_17[c] for c in range(4)]  # sampling.py:175
        s, s_2, s_3 = tuple(s_4), tuple(s_5), tuple(s_6)  # sampling.py:175
    s_4 = tuple(s)  # sampling.py:175
    s_5 = tuple(s_2)  # sampling.py:175
    s_6 = tuple(s_3)  # sampling.py:175
    for w_step_4 in cutlass.range(148, 149, unroll=1):  # sampling.py:175
        product_2 = w_step_4 * 1024  # sampling.py:175
        w = [product_2 + w_lane[c] for c in range(4)]  # sampling.py:175
        exists = [w[c] < 151936 for c in range(4)]  # sampling.py:175
        scores_2 = [load_where(exists[c], scores, (t, w[c]), BFloat16(0)) for c in range(4)]  # sampling.py:176
        as_f32_2 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:176
        larger_8 = [fmax(as_f32_2[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:118
        total_20 = [larger_8[c] + Float32(0.0) for c in range(4)]  # sampling.py:118
        as_i32_14 = [Float32(total_20[c]).bitcast(Int32) for c in range(4)]  # sampling.py:118
        shifted_11 = [as_i32_14[c] >> 31 for c in range(4)]  # sampling.py:119
        both_4 = [shifted_11[c] & 2147483647 for c in range(4)]  # sampling.py:119
        xor_3 = [as_i32_14[c] ^ both_4[c] for c in range(4)]  # sampling.py:119
        shifted_12 = [xor_3[c] >> 16 for c in range(4)]  # sampling.py:67
        below_5 = [chosen_8 < shifted_12[c] for c in range(4)]  # sampling.py:178
        as_i32_15 = [Boolean(below_5[c]).to(Int32) for c in range(4)]  # sampling.py:178
        product_3 = [mul(as_f32_2[c], chosen) for c in range(4)]  # sampling.py:92
        difference_2 = [product_3[c] - product for c in range(4)]  # sampling.py:96
        product_4 = [mul(difference_2[c], Float32(1.4426950216293335)) for c in range(4)]  # sampling.py:96
        power = [exp2(product_4[c]) for c in range(4)]  # sampling.py:96
        equal_2 = [as_f32_2[c] == as_f32 for c in range(4)]  # sampling.py:98
        larger_9 = [fmax(power[c], Float32(0.0)) for c in range(4)]  # sampling.py:98
        chosen_9 = [select(equal_2[c], Float32(1.0), larger_9[c]) for c in range(4)]  # sampling.py:98
        total_21 = [chosen_9[c] + Float32(2.0) for c in range(4)]  # sampling.py:100
        as_i32_16 = [Float32(total_21[c]).bitcast(Int32) for c in range(4)]  # sampling.py:100
        difference_3 = [as_i32_16[c] - 1073741824 for c in range(4)]  # sampling.py:100
        chosen_10 = [select(below_5[c], difference_3[c], Int32(0)) for c in range(4)]  # sampling.py:179
        equal_3 = [shifted_12[c] == chosen_8 for c in range(4)]  # sampling.py:180
        as_i32_17 = [Boolean(equal_3[c]).to(Int32) for c in range(4)]  # sampling.py:180
        chosen_11 = [select(exists[c], as_i32_15[c], Int32(0)) for c in range(4)]  # sampling.py:175
        chosen_12 = [select(exists[c], chosen_10[c], Int32(0)) for c in range(4)]  # sampling.py:175
        chosen_13 = [select(exists[c], as_i32_17[c], Int32(0)) for c in range(4)]  # sampling.py:175
        s_7 = [s_4[c] + chosen_11[c] for c in range(4)]  # sampling.py:175
        s_8 = [s_5[c] + chosen_12[c] for c in range(4)]  # sampling.py:175
        s_9 = [s_6[c] + chosen_13[c] for c in range(4)]  # sampling.py:175
        s_4, s_5, s_6 = tuple(s_7), tuple(s_8), tuple(s_9)  # sampling.py:175
    sum_w_lane_5 = sum_over_w_lane_2(s_4, thread, (board_6,))  # sampling.py:181
    both_4 = [s_5[c] & 65535 for c in range(4)]  # sampling.py:124
    sum_w_lane_6 = sum_over_w_lane_2(both_4, thread, (board_7,))  # sampling.py:124
    shifted_11 = [s_5[c] >> 16 for c in range(4)]  # sampling.py:124
    sum_w_lane_7 = sum_over_w_lane_2(shifted_11, thread, (board_8,))  # sampling.py:124
    as_i64 = Int32(sum_w_lane_7).to(Int64)  # sampling.py:125
    shifted_12 = as_i64 << 16  # sampling.py:125
    as_i64_2 = Int32(sum_w_lane_6).to(Int64)  # sampling.py:125
    total_20 = shifted_12 + as_i64_2  # sampling.py:125
    sum_w_lane_8 = sum_over_w_lane_2(s_6, thread, (board_9,))  # sampling.py:182
    below_5 = sum_w_lane_5 < top_k_2  # sampling.py:208
    unless = select(both_3, Boolean(False), Boolean(True))  # sampling.py:208
    either_2 = below_5 | unless  # sampling.py:208
    larger_8 = fmax(as_f32, Float32(float("-inf")))  # sampling.py:118
    total_21 = larger_8 + Float32(0.0)  # sampling.py:118
    as_i32_14 = Float32(total_21).bitcast(Int32)  # sampling.py:118
    shifted_13 = as_i32_14 >> 31  # sampling.py:119
    both_5 = shifted_13 & 2147483647  # sampling.py:119
    xor_3 = as_i32_14 ^ both_5  # sampling.py:119
    shifted_14 = xor_3 >> 16  # sampling.py:67
    chosen_9 = select(either_2, chosen_8, shifted_14)  # sampling.py:187
    shifted_15 = chosen_8 >> 12  # sampling.py:144
    shifted_16 = chosen_9 >> 12  # sampling.py:144
    differs = shifted_15 != shifted_16  # sampling.py:144
    steps = select(differs, Int32(149), Int32(0))  # sampling.py:200
    full_steps = select(differs, Int32(148), Int32(0))  # sampling.py:200
    s_7 = tuple([Int32(0) for c in range(64)])  # sampling.py:200
    for w_step_5 in cutlass.range(0, full_steps, unroll=1):  # sampling.py:200
        product_2 = w_step_5 * 1024  # sampling.py:200
        w = [product_2 + w_lane[c] for c in range(4)]  # sampling.py:200
        scores_2 = [scores[(t, w[c])] for c in range(4)]  # sampling.py:201
        as_f32_2 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:201
        larger_9 = [fmax(as_f32_2[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:118
        total_22 = [larger_9[c] + Float32(0.0) for c in range(4)]  # sampling.py:118
        as_i32_15 = [Float32(total_22[c]).bitcast(Int32) for c in range(4)]  # sampling.py:118
        shifted_17 = [as_i32_15[c] >> 31 for c in range(4)]  # sampling.py:119
        both_6 = [shifted_17[c] & 2147483647 for c in range(4)]  # sampling.py:119
        xor_4 = [as_i32_15[c] ^ both_6[c] for c in range(4)]  # sampling.py:119
        shifted_18 = [xor_4[c] >> 16 for c in range(4)]  # sampling.py:67
        at_most_17 = [total_4[c % 16] <= shifted_18[c // 16] for c in range(64)]  # sampling.py:201
        as_i32_16 = [Boolean(at_most_17[c]).to(Int32) for c in range(64)]  # sampling.py:201
        s_8 = [s_7[c] + as_i32_16[c] for c in range(64)]  # sampling.py:200
        s_7 = tuple(s_8)  # sampling.py:200
    s_8 = tuple(s_7)  # sampling.py:200
    for w_step_6 in cutlass.range(full_steps, steps, unroll=1):  # sampling.py:200
        product_2 = w_step_6 * 1024  # sampling.py:200
        w = [product_2 + w_lane[c] for c in range(4)]  # sampling.py:200
        exists = [w[c] < 151936 for c in range(4)]  # sampling.py:200
        exists_2 = [exists[c] & differs for c in range(4)]  # sampling.py:200
        scores_2 = [load_where(exists_2[c], scores, (t, w[c]), BFloat16(0)) for c in range(4)]  # sampling.py:201
        as_f32_2 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:201
        larger_9 = [fmax(as_f32_2[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:118
        total_22 = [larger_9[c] + Float32(0.0) for c in range(4)]  # sampling.py:118
        as_i32_15 = [Float32(total_22[c]).bitcast(Int32) for c in range(4)]  # sampling.py:118
        shifted_17 = [as_i32_15[c] >> 31 for c in range(4)]  # sampling.py:119
        both_6 = [shifted_17[c] & 2147483647 for c in range(4)]  # sampling.py:119
        xor_4 = [as_i32_15[c] ^ both_6[c] for c in range(4)]  # sampling.py:119
        shifted_18 = [xor_4[c] >> 16 for c in range(4)]  # sampling.py:67
        at_most_17 = [total_4[c % 16] <= shifted_18[c // 16] for c in range(64)]  # sampling.py:201
        as_i32_16 = [Boolean(at_most_17[c]).to(Int32) for c in range(64)]  # sampling.py:201
        chosen_10 = [select(exists_2[c // 16], as_i32_16[c], Int32(0)) for c in range(64)]  # sampling.py:200
        s_9 = [s_8[c] + chosen_10[c] for c in range(64)]  # sampling.py:200
        s_8 = tuple(s_9)  # sampling.py:200
    sum_w_lane_9 = sum_over_w_lane(s_8, thread, (board_10,))  # sampling.py:202
    at_most_17 = [top_k_2 <= sum_w_lane_9[c] for c in range(16)]  # sampling.py:202
    chosen_10 = [select(at_most_17[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:130
    max_j_piece_5 = max_over_j_piece(chosen_10)  # sampling.py:130
    shifted_17 = max_j_piece_5 << 12  # sampling.py:146
    total_22 = shifted_17 + -32768  # sampling.py:146
    shifted_18 = shifted_15 << 12  # sampling.py:146
    chosen_11 = select(differs, total_22, shifted_18)  # sampling.py:146
    total_23 = [shifted_7[c] + chosen_11 for c in range(16)]  # sampling.py:140
    shifted_19 = chosen_8 >> 8  # sampling.py:144
    shifted_20 = chosen_9 >> 8  # sampling.py:144
    differs_2 = shifted_19 != shifted_20  # sampling.py:144
    steps_2 = select(differs_2, Int32(149), Int32(0))  # sampling.py:200
    full_steps_2 = select(differs_2, Int32(148), Int32(0))  # sampling.py:200
    s_9 = tuple([Int32(0) for c in range(64)])  # sampling.py:200
    for w_step_7 in cutlass.range(0, full_steps_2, unroll=1):  # sampling.py:200
        product_2 = w_step_7 * 1024  # sampling.py:200
        w = [product_2 + w_lane[c] for c in range(4)]  # sampling.py:200
        scores_2 = [scores[(t, w[c])] for c in range(4)]  # sampling.py:201
        as_f32_2 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:201
        larger_9 = [fmax(as_f32_2[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:118
        total_24 = [larger_9[c] + Float32(0.0) for c in range(4)]  # sampling.py:118
        as_i32_15 = [Float32(total_24[c]).bitcast(Int32) for c in range(4)]  # sampling.py:118
        shifted_21 = [as_i32_15[c] >> 31 for c in range(4)]  # sampling.py:119
        both_6 = [shifted_21[c] & 2147483647 for c in range(4)]  # sampling.py:119
        xor_4 = [as_i32_15[c] ^ both_6[c] for c in range(4)]  # sampling.py:119
        shifted_22 = [xor_4[c] >> 16 for c in range(4)]  # sampling.py:67
        at_most_18 = [total_23[c % 16] <= shifted_22[c // 16] for c in range(64)]  # sampling.py:201
        as_i32_16 = [Boolean(at_most_18[c]).to(Int32) for c in range(64)]  # sampling.py:201
        s_10 = [s_9[c] + as_i32_16[c] for c in range(64)]  # sampling.py:200
        s_9 = tuple(s_10)  # sampling.py:200
    s_10 = tuple(s_9)  # sampling.py:200
    for w_step_8 in cutlass.range(full_steps_2, steps_2, unroll=1):  # sampling.py:200
        product_2 = w_step_8 * 1024  # sampling.py:200
        w = [product_2 + w_lane[c] for c in range(4)]  # sampling.py:200
        exists = [w[c] < 151936 for c in range(4)]  # sampling.py:200
        exists_2 = [exists[c] & differs_2 for c in range(4)]  # sampling.py:200
        scores_2 = [load_where(exists_2[c], scores, (t, w[c]), BFloat16(0)) for c in range(4)]  # sampling.py:201
        as_f32_2 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:201
        larger_9 = [fmax(as_f32_2[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:118
        total_24 = [larger_9[c] + Float32(0.0) for c in range(4)]  # sampling.py:118
        as_i32_15 = [Float32(total_24[c]).bitcast(Int32) for c in range(4)]  # sampling.py:118
        shifted_21 = [as_i32_15[c] >> 31 for c in range(4)]  # sampling.py:119
        both_6 = [shifted_21[c] & 2147483647 for c in range(4)]  # sampling.py:119
        xor_4 = [as_i32_15[c] ^ both_6[c] for c in range(4)]  # sampling.py:119
        shifted_22 = [xor_4[c] >> 16 for c in range(4)]  # sampling.py:67
        at_most_18 = [total_23[c % 16] <= shifted_22[c // 16] for c in range(64)]  # sampling.py:201
        as_i32_16 = [Boolean(at_most_18[c]).to(Int32) for c in range(64)]  # sampling.py:201
        chosen_12 = [select(exists_2[c // 16], as_i32_16[c], Int32(0)) for c in range(64)]  # sampling.py:200
        s_11 = [s_10[c] + chosen_12[c] for c in range(64)]  # sampling.py:200
        s_10 = tuple(s_11)  # sampling.py:200
    sum_w_lane_10 = sum_over_w_lane(s_10, thread, (board_11,))  # sampling.py:202
    at_most_18 = [top_k_2 <= sum_w_lane_10[c] for c in range(16)]  # sampling.py:202
    chosen_12 = [select(at_most_18[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:130
    max_j_piece_6 = max_over_j_piece(chosen_12)  # sampling.py:130
    shifted_21 = max_j_piece_6 << 8  # sampling.py:146
    total_24 = shifted_21 + chosen_11  # sampling.py:146
    shifted_22 = shifted_19 << 8  # sampling.py:146
    chosen_13 = select(differs_2, total_24, shifted_22)  # sampling.py:146
    total_25 = [shifted_9[c] + chosen_13 for c in range(16)]  # sampling.py:140
    shifted_23 = chosen_8 >> 4  # sampling.py:144
    shifted_24 = chosen_9 >> 4  # sampling.py:144
    differs_3 = shifted_23 != shifted_24  # sampling.py:144
    steps_3 = select(differs_3, Int32(149), Int32(0))  # sampling.py:200
    full_steps_3 = select(differs_3, Int32(148), Int32(0))  # sampling.py:200
    s_11 = tuple([Int32(0) for c in range(64)])  # sampling.py:200
    for w_step_9 in cutlass.range(0, full_steps_3, unroll=1):  # sampling.py:200
        product_2 = w_step_9 * 1024  # sampling.py:200
        w = [product_2 + w_lane[c] for c in range(4)]  # sampling.py:200
        scores_2 = [scores[(t, w[c])] for c in range(4)]  # sampling.py:201
        as_f32_2 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:201
        larger_9 = [fmax(as_f32_2[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:118
        total_26 = [larger_9[c] + Float32(0.0) for c in range(4)]  # sampling.py:118
        as_i32_15 = [Float32(total_26[c]).bitcast(Int32) for c in range(4)]  # sampling.py:118
        shifted_25 = [as_i32_15[c] >> 31 for c in range(4)]  # sampling.py:119
        both_6 = [shifted_25[c] & 2147483647 for c in range(4)]  # sampling.py:119
        xor_4 = [as_i32_15[c] ^ both_6[c] for c in range(4)]  # sampling.py:119
        shifted_26 = [xor_4[c] >> 16 for c in range(4)]  # sampling.py:67
        at_most_19 = [total_25[c % 16] <= shifted_26[c // 16] for c in range(64)]  # sampling.py:201
        as_i32_16 = [Boolean(at_most_19[c]).to(Int32) for c in range(64)]  # sampling.py:201
        s_12 = [s_11[c] + as_i32_16[c] for c in range(64)]  # sampling.py:200
        s_11 = tuple(s_12)  # sampling.py:200
    s_12 = tuple(s_11)  # sampling.py:200
    for w_step_10 in cutlass.range(full_steps_3, steps_3, unroll=1):  # sampling.py:200
        product_2 = w_step_10 * 1024  # sampling.py:200
        w = [product_2 + w_lane[c] for c in range(4)]  # sampling.py:200
        exists = [w[c] < 151936 for c in range(4)]  # sampling.py:200
        exists_2 = [exists[c] & differs_3 for c in range(4)]  # sampling.py:200
        scores_2 = [load_where(exists_2[c], scores, (t, w[c]), BFloat16(0)) for c in range(4)]  # sampling.py:201
        as_f32_2 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:201
        larger_9 = [fmax(as_f32_2[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:118
        total_26 = [larger_9[c] + Float32(0.0) for c in range(4)]  # sampling.py:118
        as_i32_15 = [Float32(total_26[c]).bitcast(Int32) for c in range(4)]  # sampling.py:118
        shifted_25 = [as_i32_15[c] >> 31 for c in range(4)]  # sampling.py:119
        both_6 = [shifted_25[c] & 2147483647 for c in range(4)]  # sampling.py:119
        xor_4 = [as_i32_15[c] ^ both_6[c] for c in range(4)]  # sampling.py:119
        shifted_26 = [xor_4[c] >> 16 for c in range(4)]  # sampling.py:67
        at_most_19 = [total_25[c % 16] <= shifted_26[c // 16] for c in range(64)]  # sampling.py:201
        as_i32_16 = [Boolean(at_most_19[c]).to(Int32) for c in range(64)]  # sampling.py:201
        chosen_14 = [select(exists_2[c // 16], as_i32_16[c], Int32(0)) for c in range(64)]  # sampling.py:200
        s_13 = [s_12[c] + chosen_14[c] for c in range(64)]  # sampling.py:200
        s_12 = tuple(s_13)  # sampling.py:200
    sum_w_lane_11 = sum_over_w_lane(s_12, thread, (board_12,))  # sampling.py:202
    at_most_19 = [top_k_2 <= sum_w_lane_11[c] for c in range(16)]  # sampling.py:202
    chosen_14 = [select(at_most_19[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:130
    max_j_piece_7 = max_over_j_piece(chosen_14)  # sampling.py:130
    shifted_25 = max_j_piece_7 << 4  # sampling.py:146
    total_26 = shifted_25 + chosen_13  # sampling.py:146
    shifted_26 = shifted_23 << 4  # sampling.py:146
    chosen_15 = select(differs_3, total_26, shifted_26)  # sampling.py:146
    total_27 = [j[c] + chosen_15 for c in range(16)]  # sampling.py:140
    differs_4 = chosen_8 != chosen_9  # sampling.py:144
    steps_4 = select(differs_4, Int32(149), Int32(0))  # sampling.py:200
    full_steps_4 = select(differs_4, Int32(148), Int32(0))  # sampling.py:200
    s_13 = tuple([Int32(0) for c in range(64)])  # sampling.py:200
    for w_step_11 in cutlass.range(0, full_steps_4, unroll=1):  # sampling.py:200
        product_2 = w_step_11 * 1024  # sampling.py:200
        w = [product_2 + w_lane[c] for c in range(4)]  # sampling.py:200
        scores_2 = [scores[(t, w[c])] for c in range(4)]  # sampling.py:201
        as_f32_2 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:201
        larger_9 = [fmax(as_f32_2[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:118
        total_28 = [larger_9[c] + Float32(0.0) for c in range(4)]  # sampling.py:118
        as_i32_15 = [Float32(total_28[c]).bitcast(Int32) for c in range(4)]  # sampling.py:118
        shifted_27 = [as_i32_15[c] >> 31 for c in range(4)]  # sampling.py:119
        both_6 = [shifted_27[c] & 2147483647 for c in range(4)]  # sampling.py:119
        xor_4 = [as_i32_15[c] ^ both_6[c] for c in range(4)]  # sampling.py:119
        shifted_28 = [xor_4[c] >> 16 for c in range(4)]  # sampling.py:67
        at_most_20 = [total_27[c % 16] <= shifted_28[c // 16] for c in range(64)]  # sampling.py:201
        as_i32_16 = [Boolean(at_most_20[c]).to(Int32) for c in range(64)]  # sampling.py:201
        s_14 = [s_13[c] + as_i32_16[c] for c in range(64)]  # sampling.py:200
        s_13 = tuple(s_14)  # sampling.py:200
    s_14 = tuple(s_13)  # sampling.py:200
    for w_step_12 in cutlass.range(full_steps_4, steps_4, unroll=1):  # sampling.py:200
        product_2 = w_step_12 * 1024  # sampling.py:200
        w = [product_2 + w_lane[c] for c in range(4)]  # sampling.py:200
        exists = [w[c] < 151936 for c in range(4)]  # sampling.py:200
        exists_2 = [exists[c] & differs_4 for c in range(4)]  # sampling.py:200
        scores_2 = [load_where(exists_2[c], scores, (t, w[c]), BFloat16(0)) for c in range(4)]  # sampling.py:201
        as_f32_2 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:201
        larger_9 = [fmax(as_f32_2[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:118
        total_28 = [larger_9[c] + Float32(0.0) for c in range(4)]  # sampling.py:118
        as_i32_15 = [Float32(total_28[c]).bitcast(Int32) for c in range(4)]  # sampling.py:118
        shifted_27 = [as_i32_15[c] >> 31 for c in range(4)]  # sampling.py:119
        both_6 = [shifted_27[c] & 2147483647 for c in range(4)]  # sampling.py:119
        xor_4 = [as_i32_15[c] ^ both_6[c] for c in range(4)]  # sampling.py:119
        shifted_28 = [xor_4[c] >> 16 for c in range(4)]  # sampling.py:67
        at_most_20 = [total_27[c % 16] <= shifted_28[c // 16] for c in range(64)]  # sampling.py:201
        as_i32_16 = [Boolean(at_most_20[c]).to(Int32) for c in range(64)]  # sampling.py:201
        chosen_16 = [select(exists_2[c // 16], as_i32_16[c], Int32(0)) for c in range(64)]  # sampling.py:200
        s_15 = [s_14[c] + chosen_16[c] for c in range(64)]  # sampling.py:200
        s_14 = tuple(s_15)  # sampling.py:200
    sum_w_lane_12 = sum_over_w_lane(s_14, thread, (board_13,))  # sampling.py:202
    at_most_20 = [top_k_2 <= sum_w_lane_12[c] for c in range(16)]  # sampling.py:202
    chosen_16 = [select(at_most_20[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:130
    max_j_piece_8 = max_over_j_piece(chosen_16)  # sampling.py:130
    total_28 = max_j_piece_8 + chosen_15  # sampling.py:146
    chosen_17 = select(differs_4, total_28, chosen_8)  # sampling.py:146
    unless_2 = select(either_2, Boolean(False), Boolean(True))  # sampling.py:210
    steps_5 = select(unless_2, Int32(149), Int32(0))  # sampling.py:175
    full_steps_5 = select(unless_2, Int32(148), Int32(0))  # sampling.py:175
    s_15 = tuple([Int32(0) for c in range(4)])  # sampling.py:175
    s_16 = tuple([Int32(0) for c in range(4)])  # sampling.py:175
    s_17 = tuple([Int32(0) for c in range(4)])  # sampling.py:175
    for w_step_13 in cutlass.range(0, full_steps_5, unroll=1):  # sampling.py:175
        product_2 = w_step_13 * 1024  # sampling.py:175
        w = [product_2 + w_lane[c] for c in range(4)]  # sampling.py:175
        scores_2 = [scores[(t, w[c])] for c in range(4)]  # sampling.py:176
        as_f32_2 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:176
        larger_9 = [fmax(as_f32_2[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:118
        total_29 = [larger_9[c] + Float32(0.0) for c in range(4)]  # sampling.py:118
        as_i32_15 = [Float32(total_29[c]).bitcast(Int32) for c in range(4)]  # sampling.py:118
        shifted_27 = [as_i32_15[c] >> 31 for c in range(4)]  # sampling.py:119
        both_6 = [shifted_27[c] & 2147483647 for c in range(4)]  # sampling.py:119
        xor_4 = [as_i32_15[c] ^ both_6[c] for c in range(4)]  # sampling.py:119
        shifted_28 = [xor_4[c] >> 16 for c in range(4)]  # sampling.py:67
        below_6 = [chosen_17 < shifted_28[c] for c in range(4)]  # sampling.py:178
        as_i32_16 = [Boolean(below_6[c]).to(Int32) for c in range(4)]  # sampling.py:178
        product_3 = [mul(as_f32_2[c], chosen) for c in range(4)]  # sampling.py:92
        difference_2 = [product_3[c] - product for c in range(4)]  # sampling.py:96
        product_4 = [mul(difference_2[c], Float32(1.4426950216293335)) for c in range(4)]  # sampling.py:96
        power = [exp2(product_4[c]) for c in range(4)]  # sampling.py:96
        equal_2 = [as_f32_2[c] == as_f32 for c in range(4)]  # sampling.py:98
        larger_10 = [fmax(power[c], Float32(0.0)) for c in range(4)]  # sampling.py:98
        chosen_18 = [select(equal_2[c], Float32(1.0), larger_10[c]) for c in range(4)]  # sampling.py:98
        total_30 = [chosen_18[c] + Float32(2.0) for c in range(4)]  # sampling.py:100
        as_i32_17 = [Float32(total_30[c]).bitcast(Int32) for c in range(4)]  # sampling.py:100
        difference_3 = [as_i32_17[c] - 1073741824 for c in range(4)]  # sampling.py:100
        chosen_19 = [select(below_6[c], difference_3[c], Int32(0)) for c in range(4)]  # sampling.py:179
        equal_3 = [shifted_28[c] == chosen_17 for c in range(4)]  # sampling.py:180
        as_i32_18 = [Boolean(equal_3[c]).to(Int32) for c in range(4)]  # sampling.py:180
        s_18 = [s_15[c] + as_i32_16[c] for c in range(4)]  # sampling.py:175
        s_19 = [s_16[c] + chosen_19[c] for c in range(4)]  # sampling.py:175
        s_20 = [s_17[c] + as_i32_18[c] for c in range(4)]  # sampling.py:175
        s_15, s_16, s_17 = tuple(s_18), tuple(s_19), tuple(s_20)  # sampling.py:175
    s_18 = tuple(s_15)  # sampling.py:175
    s_19 = tuple(s_16)  # sampling.py:175
    s_20 = tuple(s_17)  # sampling.py:175
    for w_step_14 in cutlass.range(full_steps_5, steps_5, unroll=1):  # sampling.py:175
        product_2 = w_step_14 * 1024  # sampling.py:175
        w = [product_2 + w_lane[c] for c in range(4)]  # sampling.py:175
        exists = [w[c] < 151936 for c in range(4)]  # sampling.py:175
        exists_2 = [exists[c] & unless_2 for c in range(4)]  # sampling.py:175
        scores_2 = [load_where(exists_2[c], scores, (t, w[c]), BFloat16(0)) for c in range(4)]  # sampling.py:176
        as_f32_2 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:176
        larger_9 = [fmax(as_f32_2[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:118
        total_29 = [larger_9[c] + Float32(0.0) for c in range(4)]  # sampling.py:118
        as_i32_15 = [Float32(total_29[c]).bitcast(Int32) for c in range(4)]  # sampling.py:118
        shifted_27 = [as_i32_15[c] >> 31 for c in range(4)]  # sampling.py:119
        both_6 = [shifted_27[c] & 2147483647 for c in range(4)]  # sampling.py:119
        xor_4 = [as_i32_15[c] ^ both_6[c] for c in range(4)]  # sampling.py:119
        shifted_28 = [xor_4[c] >> 16 for c in range(4)]  # sampling.py:67
        below_6 = [chosen_17 < shifted_28[c] for c in range(4)]  # sampling.py:178
        as_i32_16 = [Boolean(below_6[c]).to(Int32) for c in range(4)]  # sampling.py:178
        product_3 = [mul(as_f32_2[c], chosen) for c in range(4)]  # sampling.py:92
        difference_2 = [product_3[c] - product for c in range(4)]  # sampling.py:96
        product_4 = [mul(difference_2[c], Float32(1.4426950216293335)) for c in range(4)]  # sampling.py:96
        power = [exp2(product_4[c]) for c in range(4)]  # sampling.py:96
        equal_2 = [as_f32_2[c] == as_f32 for c in range(4)]  # sampling.py:98
        larger_10 = [fmax(power[c], Float32(0.0)) for c in range(4)]  # sampling.py:98
        chosen_18 = [select(equal_2[c], Float32(1.0), larger_10[c]) for c in range(4)]  # sampling.py:98
        total_30 = [chosen_18[c] + Float32(2.0) for c in range(4)]  # sampling.py:100
        as_i32_17 = [Float32(total_30[c]).bitcast(Int32) for c in range(4)]  # sampling.py:100
        difference_3 = [as_i32_17[c] - 1073741824 for c in range(4)]  # sampling.py:100
        chosen_19 = [select(below_6[c], difference_3[c], Int32(0)) for c in range(4)]  # sampling.py:179
        equal_3 = [shifted_28[c] == chosen_17 for c in range(4)]  # sampling.py:180
        as_i32_18 = [Boolean(equal_3[c]).to(Int32) for c in range(4)]  # sampling.py:180
        chosen_20 = [select(exists_2[c], as_i32_16[c], Int32(0)) for c in range(4)]  # sampling.py:175
        chosen_21 = [select(exists_2[c], chosen_19[c], Int32(0)) for c in range(4)]  # sampling.py:175
        chosen_22 = [select(exists_2[c], as_i32_18[c], Int32(0)) for c in range(4)]  # sampling.py:175
        s_21 = [s_18[c] + chosen_20[c] for c in range(4)]  # sampling.py:175
        s_22 = [s_19[c] + chosen_21[c] for c in range(4)]  # sampling.py:175
        s_23 = [s_20[c] + chosen_22[c] for c in range(4)]  # sampling.py:175
        s_18, s_19, s_20 = tuple(s_21), tuple(s_22), tuple(s_23)  # sampling.py:175
    sum_w_lane_13 = sum_over_w_lane_2(s_18, thread, (board_14,))  # sampling.py:181
    both_6 = [s_19[c] & 65535 for c in range(4)]  # sampling.py:124
    sum_w_lane_14 = sum_over_w_lane_2(both_6, thread, (board_15,))  # sampling.py:124
    shifted_27 = [s_19[c] >> 16 for c in range(4)]  # sampling.py:124
    sum_w_lane_15 = sum_over_w_lane_2(shifted_27, thread, (board_16,))  # sampling.py:124
    as_i64_3 = Int32(sum_w_lane_15).to(Int64)  # sampling.py:125
    shifted_28 = as_i64_3 << 16  # sampling.py:125
    as_i64_4 = Int32(sum_w_lane_14).to(Int64)  # sampling.py:125
    total_29 = shifted_28 + as_i64_4  # sampling.py:125
    sum_w_lane_16 = sum_over_w_lane_2(s_20, thread, (board_17,))  # sampling.py:182
    chosen_18 = select(either_2, sum_w_lane_5, sum_w_lane_13)  # sampling.py:211
    chosen_19 = select(either_2, total_20, total_29)  # sampling.py:211
    chosen_20 = select(either_2, sum_w_lane_8, sum_w_lane_16)  # sampling.py:211
    below_6 = larger_6 < chosen_17  # sampling.py:212
    difference_2 = top_k_2 - chosen_18  # sampling.py:212
    smaller_2 = cutlass.min(chosen_20, difference_2)  # sampling.py:212
    chosen_21 = select(below_6, smaller_2, Int32(0))  # sampling.py:212
    below_7 = top_p_2 < Float32(1.0)  # sampling.py:218
    as_i64_5 = Int32(chosen_21).to(Int64)  # sampling.py:220
    shifted_29 = chosen_17 << 16  # sampling.py:71
    below_8 = chosen_17 < 0  # sampling.py:73
    either_3 = shifted_29 | 65535  # sampling.py:73
    chosen_22 = select(below_8, either_3, shifted_29)  # sampling.py:73
    shifted_30 = chosen_22 >> 31  # sampling.py:74
    both_7 = shifted_30 & 2147483647  # sampling.py:74
    xor_4 = chosen_22 ^ both_7  # sampling.py:74
    as_f32_2 = Int32(xor_4).bitcast(Float32)  # sampling.py:74
    product_2 = mul(as_f32_2, chosen)  # sampling.py:92
    difference_3 = product_2 - product  # sampling.py:96
    product_3 = mul(difference_3, Float32(1.4426950216293335))  # sampling.py:96
    power = exp2(product_3)  # sampling.py:96
    equal_2 = as_f32_2 == as_f32  # sampling.py:98
    larger_9 = fmax(power, Float32(0.0))  # sampling.py:98
    chosen_23 = select(equal_2, Float32(1.0), larger_9)  # sampling.py:98
    total_30 = chosen_23 + Float32(2.0)  # sampling.py:100
    as_i32_15 = Float32(total_30).bitcast(Int32)  # sampling.py:100
    difference_4 = as_i32_15 - 1073741824  # sampling.py:100
    as_i64_6 = Int32(difference_4).to(Int64)  # sampling.py:220
    product_4 = as_i64_5 * as_i64_6  # sampling.py:220
    larger_10 = fmax(top_p_2, Float32(0.0))  # sampling.py:221
    smaller_3 = fmin(larger_10, Float32(1.0))  # sampling.py:221
    product_5 = mul(smaller_3, Float32(1048576.0))  # sampling.py:221
    as_i64_7 = Float32(product_5).to(Int64)  # sampling.py:221
    total_31 = chosen_19 + product_4  # sampling.py:222
    product_6 = total_31 * as_i64_7  # sampling.py:222
    total_32 = product_6 + 1048575  # sampling.py:222
    shifted_31 = total_32 >> 20  # sampling.py:222
    larger_11 = cutlass.max(shifted_31, 1)  # sampling.py:222
    shifted_32 = [larger[c] << 16 for c in range(4)]  # sampling.py:71
    below_9 = [larger[c] < 0 for c in range(4)]  # sampling.py:73
    either_4 = [shifted_32[c] | 65535 for c in range(4)]  # sampling.py:73
    chosen_24 = [select(below_9[c], either_4[c], shifted_32[c]) for c in range(4)]  # sampling.py:73
    shifted_33 = [chosen_24[c] >> 31 for c in range(4)]  # sampling.py:74
    both_8 = [shifted_33[c] & 2147483647 for c in range(4)]  # sampling.py:74
    xor_5 = [chosen_24[c] ^ both_8[c] for c in range(4)]  # sampling.py:74
    as_f32_3 = [Int32(xor_5[c]).bitcast(Float32) for c in range(4)]  # sampling.py:74
    product_7 = [mul(as_f32_3[c], chosen) for c in range(4)]  # sampling.py:92
    difference_5 = [product_7[c] - product for c in range(4)]  # sampling.py:96
    product_8 = [mul(difference_5[c], Float32(1.4426950216293335)) for c in range(4)]  # sampling.py:96
    power_2 = [exp2(product_8[c]) for c in range(4)]  # sampling.py:96
    equal_3 = [as_f32_3[c] == as_f32 for c in range(4)]  # sampling.py:98
    larger_12 = [fmax(power_2[c], Float32(0.0)) for c in range(4)]  # sampling.py:98
    chosen_25 = [select(equal_3[c], Float32(1.0), larger_12[c]) for c in range(4)]  # sampling.py:98
    total_33 = [chosen_25[c] + Float32(2.0) for c in range(4)]  # sampling.py:100
    as_i32_16 = [Float32(total_33[c]).bitcast(Int32) for c in range(4)]  # sampling.py:100
    difference_6 = [as_i32_16[c] - 1073741824 for c in range(4)]  # sampling.py:100
    shifted_34 = [larger_2[c] << 16 for c in range(4)]  # sampling.py:71
    below_10 = [larger_2[c] < 0 for c in range(4)]  # sampling.py:73
    either_5 = [shifted_34[c] | 65535 for c in range(4)]  # sampling.py:73
    chosen_26 = [select(below_10[c], either_5[c], shifted_34[c]) for c in range(4)]  # sampling.py:73
    shifted_35 = [chosen_26[c] >> 31 for c in range(4)]  # sampling.py:74
    both_9 = [shifted_35[c] & 2147483647 for c in range(4)]  # sampling.py:74
    xor_6 = [chosen_26[c] ^ both_9[c] for c in range(4)]  # sampling.py:74
    as_f32_4 = [Int32(xor_6[c]).bitcast(Float32) for c in range(4)]  # sampling.py:74
    product_9 = [mul(as_f32_4[c], chosen) for c in range(4)]  # sampling.py:92
    difference_7 = [product_9[c] - product for c in range(4)]  # sampling.py:96
    product_10 = [mul(difference_7[c], Float32(1.4426950216293335)) for c in range(4)]  # sampling.py:96
    power_3 = [exp2(product_10[c]) for c in range(4)]  # sampling.py:96
    equal_4 = [as_f32_4[c] == as_f32 for c in range(4)]  # sampling.py:98
    larger_13 = [fmax(power_3[c], Float32(0.0)) for c in range(4)]  # sampling.py:98
    chosen_27 = [select(equal_4[c], Float32(1.0), larger_13[c]) for c in range(4)]  # sampling.py:98
    total_34 = [chosen_27[c] + Float32(2.0) for c in range(4)]  # sampling.py:100
    as_i32_17 = [Float32(total_34[c]).bitcast(Int32) for c in range(4)]  # sampling.py:100
    difference_8 = [as_i32_17[c] - 1073741824 for c in range(4)]  # sampling.py:100
    shifted_36 = [larger_3[c] << 16 for c in range(4)]  # sampling.py:71
    below_11 = [larger_3[c] < 0 for c in range(4)]  # sampling.py:73
    either_6 = [shifted_36[c] | 65535 for c in range(4)]  # sampling.py:73
    chosen_28 = [select(below_11[c], either_6[c], shifted_36[c]) for c in range(4)]  # sampling.py:73
    shifted_37 = [chosen_28[c] >> 31 for c in range(4)]  # sampling.py:74
    both_10 = [shifted_37[c] & 2147483647 for c in range(4)]  # sampling.py:74
    xor_7 = [chosen_28[c] ^ both_10[c] for c in range(4)]  # sampling.py:74
    as_f32_5 = [Int32(xor_7[c]).bitcast(Float32) for c in range(4)]  # sampling.py:74
    product_11 = [mul(as_f32_5[c], chosen) for c in range(4)]  # sampling.py:92
    difference_9 = [product_11[c] - product for c in range(4)]  # sampling.py:96
    product_12 = [mul(difference_9[c], Float32(1.4426950216293335)) for c in range(4)]  # sampling.py:96
    power_4 = [exp2(product_12[c]) for c in range(4)]  # sampling.py:96
    equal_5 = [as_f32_5[c] == as_f32 for c in range(4)]  # sampling.py:98
    larger_14 = [fmax(power_4[c], Float32(0.0)) for c in range(4)]  # sampling.py:98
    chosen_29 = [select(equal_5[c], Float32(1.0), larger_14[c]) for c in range(4)]  # sampling.py:98
    total_35 = [chosen_29[c] + Float32(2.0) for c in range(4)]  # sampling.py:100
    as_i32_18 = [Float32(total_35[c]).bitcast(Int32) for c in range(4)]  # sampling.py:100
    difference_10 = [as_i32_18[c] - 1073741824 for c in range(4)]  # sampling.py:100
    chosen_30 = [select(at_most[c], difference_6[c // 16], Int32(0)) for c in range(64)]  # sampling.py:227
    both_11 = [chosen_30[c] & 65535 for c in range(64)]  # sampling.py:124
    sum_w_lane_17 = sum_over_w_lane(both_11, thread, (board_18,))  # sampling.py:124
    shifted_38 = [chosen_30[c] >> 16 for c in range(64)]  # sampling.py:124
    sum_w_lane_18 = sum_over_w_lane(shifted_38, thread, (board_19,))  # sampling.py:124
    as_i64_8 = [Int32(sum_w_lane_18[c]).to(Int64) for c in range(16)]  # sampling.py:125
    shifted_39 = [as_i64_8[c] << 16 for c in range(16)]  # sampling.py:125
    as_i64_9 = [Int32(sum_w_lane_17[c]).to(Int64) for c in range(16)]  # sampling.py:125
    total_36 = [shifted_39[c] + as_i64_9[c] for c in range(16)]  # sampling.py:125
    chosen_31 = [select(at_most_2[c], difference_8[c // 16], Int32(0)) for c in range(64)]  # sampling.py:227
    both_12 = [chosen_31[c] & 65535 for c in range(64)]  # sampling.py:124
    sum_w_lane_19 = sum_over_w_lane(both_12, thread, (board_20,))  # sampling.py:124
    shifted_40 = [chosen_31[c] >> 16 for c in range(64)]  # sampling.py:124
    sum_w_lane_20 = sum_over_w_lane(shifted_40, thread, (board_21,))  # sampling.py:124
    as_i64_10 = [Int32(sum_w_lane_20[c]).to(Int64) for c in range(16)]  # sampling.py:125
    shifted_41 = [as_i64_10[c] << 16 for c in range(16)]  # sampling.py:125
    as_i64_11 = [Int32(sum_w_lane_19[c]).to(Int64) for c in range(16)]  # sampling.py:125
    total_37 = [shifted_41[c] + as_i64_11[c] for c in range(16)]  # sampling.py:125
    chosen_32 = [select(at_most_3[c], difference_10[c // 16], Int32(0)) for c in range(64)]  # sampling.py:227
    both_13 = [chosen_32[c] & 65535 for c in range(64)]  # sampling.py:124
    sum_w_lane_21 = sum_over_w_lane(both_13, thread, (board_22,))  # sampling.py:124
    shifted_42 = [chosen_32[c] >> 16 for c in range(64)]  # sampling.py:124
    sum_w_lane_22 = sum_over_w_lane(shifted_42, thread, (board_23,))  # sampling.py:124
    as_i64_12 = [Int32(sum_w_lane_22[c]).to(Int64) for c in range(16)]  # sampling.py:125
    shifted_43 = [as_i64_12[c] << 16 for c in range(16)]  # sampling.py:125
    as_i64_13 = [Int32(sum_w_lane_21[c]).to(Int64) for c in range(16)]  # sampling.py:125
    total_38 = [shifted_43[c] + as_i64_13[c] for c in range(16)]  # sampling.py:125
    total_39 = [total_36[c] + total_37[c] for c in range(16)]  # sampling.py:230
    total_40 = [total_39[c] + total_38[c] for c in range(16)]  # sampling.py:230
    at_most_21 = [larger_11 <= total_40[c] for c in range(16)]  # sampling.py:230
    chosen_33 = [select(at_most_21[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:130
    max_j_piece_9 = max_over_j_piece(chosen_33)  # sampling.py:130
    shifted_44 = max_j_piece_9 << 12  # sampling.py:142
    total_41 = shifted_44 + -32768  # sampling.py:142
    total_42 = [shifted_7[c] + total_41 for c in range(16)]  # sampling.py:140
    at_most_22 = [total_42[c % 16] <= larger[c // 16] for c in range(64)]  # sampling.py:227
    chosen_34 = [select(at_most_22[c], difference_6[c // 16], Int32(0)) for c in range(64)]  # sampling.py:227
    both_14 = [chosen_34[c] & 65535 for c in range(64)]  # sampling.py:124
    sum_w_lane_23 = sum_over_w_lane(both_14, thread, (board_24,))  # sampling.py:124
    shifted_45 = [chosen_34[c] >> 16 for c in range(64)]  # sampling.py:124
    sum_w_lane_24 = sum_over_w_lane(shifted_45, thread, (board_25,))  # sampling.py:124
    as_i64_14 = [Int32(sum_w_lane_24[c]).to(Int64) for c in range(16)]  # sampling.py:125
    shifted_46 = [as_i64_14[c] << 16 for c in range(16)]  # sampling.py:125
    as_i64_15 = [Int32(sum_w_lane_23[c]).to(Int64) for c in range(16)]  # sampling.py:125
    total_43 = [shifted_46[c] + as_i64_15[c] for c in range(16)]  # sampling.py:125
    at_most_23 = [total_42[c % 16] <= larger_2[c // 16] for c in range(64)]  # sampling.py:227
    chosen_35 = [select(at_most_23[c], difference_8[c // 16], Int32(0)) for c in range(64)]  # sampling.py:227
    both_15 = [chosen_35[c] & 65535 for c in range(64)]  # sampling.py:124
    sum_w_lane_25 = sum_over_w_lane(both_15, thread, (board_26,))  # sampling.py:124
    shifted_47 = [chosen_35[c] >> 16 for c in range(64)]  # sampling.py:124
    sum_w_lane_26 = sum_over_w_lane(shifted_47, thread, (board_27,))  # sampling.py:124
    as_i64_16 = [Int32(sum_w_lane_26[c]).to(Int64) for c in range(16)]  # sampling.py:125
    shifted_48 = [as_i64_16[c] << 16 for c in range(16)]  # sampling.py:125
    as_i64_17 = [Int32(sum_w_lane_25[c]).to(Int64) for c in range(16)]  # sampling.py:125
    total_44 = [shifted_48[c] + as_i64_17[c] for c in range(16)]  # sampling.py:125
    at_most_24 = [total_42[c % 16] <= larger_3[c // 16] for c in range(64)]  # sampling.py:227
    chosen_36 = [select(at_most_24[c], difference_10[c // 16], Int32(0)) for c in range(64)]  # sampling.py:227
    both_16 = [chosen_36[c] & 65535 for c in range(64)]  # sampling.py:124
    sum_w_lane_27 = sum_over_w_lane(both_16, thread, (board_28,))  # sampling.py:124
    shifted_49 = [chosen_36[c] >> 16 for c in range(64)]  # sampling.py:124
    sum_w_lane_28 = sum_over_w_lane(shifted_49, thread, (board_29,))  # sampling.py:124
    as_i64_18 = [Int32(sum_w_lane_28[c]).to(Int64) for c in range(16)]  # sampling.py:125
    shifted_50 = [as_i64_18[c] << 16 for c in range(16)]  # sampling.py:125
    as_i64_19 = [Int32(sum_w_lane_27[c]).to(Int64) for c in range(16)]  # sampling.py:125
    total_45 = [shifted_50[c] + as_i64_19[c] for c in range(16)]  # sampling.py:125
    total_46 = [total_43[c] + total_44[c] for c in range(16)]  # sampling.py:230
    total_47 = [total_46[c] + total_45[c] for c in range(16)]  # sampling.py:230
    at_most_25 = [larger_11 <= total_47[c] for c in range(16)]  # sampling.py:230
    chosen_37 = [select(at_most_25[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:130
    max_j_piece_10 = max_over_j_piece(chosen_37)  # sampling.py:130
    shifted_51 = max_j_piece_10 << 8  # sampling.py:142
    total_48 = shifted_51 + total_41  # sampling.py:142
    total_49 = [shifted_9[c] + total_48 for c in range(16)]  # sampling.py:140
    at_most_26 = [total_49[c % 16] <= larger[c // 16] for c in range(64)]  # sampling.py:227
    chosen_38 = [select(at_most_26[c], difference_6[c // 16], Int32(0)) for c in range(64)]  # sampling.py:227
    both_17 = [chosen_38[c] & 65535 for c in range(64)]  # sampling.py:124
    sum_w_lane_29 = sum_over_w_lane(both_17, thread, (board_30,))  # sampling.py:124
    shifted_52 = [chosen_38[c] >> 16 for c in range(64)]  # sampling.py:124
    sum_w_lane_30 = sum_over_w_lane(shifted_52, thread, (board_31,))  # sampling.py:124
    as_i64_20 = [Int32(sum_w_lane_30[c]).to(Int64) for c in range(16)]  # sampling.py:125
    shifted_53 = [as_i64_20[c] << 16 for c in range(16)]  # sampling.py:125
    as_i64_21 = [Int32(sum_w_lane_29[c]).to(Int64) for c in range(16)]  # sampling.py:125
    total_50 = [shifted_53[c] + as_i64_21[c] for c in range(16)]  # sampling.py:125
    at_most_27 = [total_49[c % 16] <= larger_2[c // 16] for c in range(64)]  # sampling.py:227
    chosen_39 = [select(at_most_27[c], difference_8[c // 16], Int32(0)) for c in range(64)]  # sampling.py:227
    both_18 = [chosen_39[c] & 65535 for c in range(64)]  # sampling.py:124
    sum_w_lane_31 = sum_over_w_lane(both_18, thread, (board_32,))  # sampling.py:124
    shifted_54 = [chosen_39[c] >> 16 for c in range(64)]  # sampling.py:124
    sum_w_lane_32 = sum_over_w_lane(shifted_54, thread, (board_33,))  # sampling.py:124
    as_i64_22 = [Int32(sum_w_lane_32[c]).to(Int64) for c in range(16)]  # sampling.py:125
    shifted_55 = [as_i64_22[c] << 16 for c in range(16)]  # sampling.py:125
    as_i64_23 = [Int32(sum_w_lane_31[c]).to(Int64) for c in range(16)]  # sampling.py:125
    total_51 = [shifted_55[c] + as_i64_23[c] for c in range(16)]  # sampling.py:125
    at_most_28 = [total_49[c % 16] <= larger_3[c // 16] for c in range(64)]  # sampling.py:227
    chosen_40 = [select(at_most_28[c], difference_10[c // 16], Int32(0)) for c in range(64)]  # sampling.py:227
    both_19 = [chosen_40[c] & 65535 for c in range(64)]  # sampling.py:124
    sum_w_lane_33 = sum_over_w_lane(both_19, thread, (board_34,))  # sampling.py:124
    shifted_56 = [chosen_40[c] >> 16 for c in range(64)]  # sampling.py:124
    sum_w_lane_34 = sum_over_w_lane(shifted_56, thread, (board_35,))  # sampling.py:124
    as_i64_24 = [Int32(sum_w_lane_34[c]).to(Int64) for c in range(16)]  # sampling.py:125
    shifted_57 = [as_i64_24[c] << 16 for c in range(16)]  # sampling.py:125
    as_i64_25 = [Int32(sum_w_lane_33[c]).to(Int64) for c in range(16)]  # sampling.py:125
    total_52 = [shifted_57[c] + as_i64_25[c] for c in range(16)]  # sampling.py:125
    total_53 = [total_50[c] + total_51[c] for c in range(16)]  # sampling.py:230
    total_54 = [total_53[c] + total_52[c] for c in range(16)]  # sampling.py:230
    at_most_29 = [larger_11 <= total_54[c] for c in range(16)]  # sampling.py:230
    chosen_41 = [select(at_most_29[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:130
    max_j_piece_11 = max_over_j_piece(chosen_41)  # sampling.py:130
    shifted_58 = max_j_piece_11 << 4  # sampling.py:142
    total_55 = shifted_58 + total_48  # sampling.py:142
    total_56 = [j[c] + total_55 for c in range(16)]  # sampling.py:140
    at_most_30 = [total_56[c % 16] <= larger[c // 16] for c in range(64)]  # sampling.py:227
    chosen_42 = [select(at_most_30[c], difference_6[c // 16], Int32(0)) for c in range(64)]  # sampling.py:227
    both_20 = [chosen_42[c] & 65535 for c in range(64)]  # sampling.py:124
    sum_w_lane_35 = sum_over_w_lane(both_20, thread, (board_36,))  # sampling.py:124
    shifted_59 = [chosen_42[c] >> 16 for c in range(64)]  # sampling.py:124
    sum_w_lane_36 = sum_over_w_lane(shifted_59, thread, (board_37,))  # sampling.py:124
    as_i64_26 = [Int32(sum_w_lane_36[c]).to(Int64) for c in range(16)]  # sampling.py:125
    shifted_60 = [as_i64_26[c] << 16 for c in range(16)]  # sampling.py:125
    as_i64_27 = [Int32(sum_w_lane_35[c]).to(Int64) for c in range(16)]  # sampling.py:125
    total_57 = [shifted_60[c] + as_i64_27[c] for c in range(16)]  # sampling.py:125
    at_most_31 = [total_56[c % 16] <= larger_2[c // 16] for c in range(64)]  # sampling.py:227
    chosen_43 = [select(at_most_31[c], difference_8[c // 16], Int32(0)) for c in range(64)]  # sampling.py:227
    both_21 = [chosen_43[c] & 65535 for c in range(64)]  # sampling.py:124
    sum_w_lane_37 = sum_over_w_lane(both_21, thread, (board_38,))  # sampling.py:124
    shifted_61 = [chosen_43[c] >> 16 for c in range(64)]  # sampling.py:124
    sum_w_lane_38 = sum_over_w_lane(shifted_61, thread, (board_39,))  # sampling.py:124
    as_i64_28 = [Int32(sum_w_lane_38[c]).to(Int64) for c in range(16)]  # sampling.py:125
    shifted_62 = [as_i64_28[c] << 16 for c in range(16)]  # sampling.py:125
    as_i64_29 = [Int32(sum_w_lane_37[c]).to(Int64) for c in range(16)]  # sampling.py:125
    total_58 = [shifted_62[c] + as_i64_29[c] for c in range(16)]  # sampling.py:125
    at_most_32 = [total_56[c % 16] <= larger_3[c // 16] for c in range(64)]  # sampling.py:227
    chosen_44 = [select(at_most_32[c], difference_10[c // 16], Int32(0)) for c in range(64)]  # sampling.py:227
    both_22 = [chosen_44[c] & 65535 for c in range(64)]  # sampling.py:124
    sum_w_lane_39 = sum_over_w_lane(both_22, thread, (board_40,))  # sampling.py:124
    shifted_63 = [chosen_44[c] >> 16 for c in range(64)]  # sampling.py:124
    sum_w_lane_40 = sum_over_w_lane(shifted_63, thread, (board_41,))  # sampling.py:124
    as_i64_30 = [Int32(sum_w_lane_40[c]).to(Int64) for c in range(16)]  # sampling.py:125
    shifted_64 = [as_i64_30[c] << 16 for c in range(16)]  # sampling.py:125
    as_i64_31 = [Int32(sum_w_lane_39[c]).to(Int64) for c in range(16)]  # sampling.py:125
    total_59 = [shifted_64[c] + as_i64_31[c] for c in range(16)]  # sampling.py:125
    total_60 = [total_57[c] + total_58[c] for c in range(16)]  # sampling.py:230
    total_61 = [total_60[c] + total_59[c] for c in range(16)]  # sampling.py:230
    at_most_33 = [larger_11 <= total_61[c] for c in range(16)]  # sampling.py:230
    chosen_45 = [select(at_most_33[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:130
    max_j_piece_12 = max_over_j_piece(chosen_45)  # sampling.py:130
    total_62 = max_j_piece_12 + total_55  # sampling.py:142
    chosen_46 = select(below_7, total_62, chosen_17)  # sampling.py:239
    larger_15 = cutlass.max(chosen_46, chosen_17)  # sampling.py:239
    steps_6 = select(below_7, Int32(149), Int32(0))  # sampling.py:175
    full_steps_6 = select(below_7, Int32(148), Int32(0))  # sampling.py:175
    w_state = tuple([Int32(0) for c in range(4)])  # sampling.py:175
    s_21 = tuple([Int32(0) for c in range(4)])  # sampling.py:175
    w_state_2 = tuple([Int32(0) for c in range(4)])  # sampling.py:175
    for w_step_15 in cutlass.range(0, full_steps_6, unroll=1):  # sampling.py:175
        product_13 = w_step_15 * 1024  # sampling.py:175
        w = [product_13 + w_lane[c] for c in range(4)]  # sampling.py:175
        scores_2 = [scores[(t, w[c])] for c in range(4)]  # sampling.py:176
        as_f32_6 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:176
        larger_16 = [fmax(as_f32_6[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:118
        total_63 = [larger_16[c] + Float32(0.0) for c in range(4)]  # sampling.py:118
        as_i32_19 = [Float32(total_63[c]).bitcast(Int32) for c in range(4)]  # sampling.py:118
        shifted_65 = [as_i32_19[c] >> 31 for c in range(4)]  # sampling.py:119
        both_23 = [shifted_65[c] & 2147483647 for c in range(4)]  # sampling.py:119
        xor_8 = [as_i32_19[c] ^ both_23[c] for c in range(4)]  # sampling.py:119
        shifted_66 = [xor_8[c] >> 16 for c in range(4)]  # sampling.py:67
        below_12 = [larger_15 < shifted_66[c] for c in range(4)]  # sampling.py:178
        as_i32_20 = [Boolean(below_12[c]).to(Int32) for c in range(4)]  # sampling.py:178
        product_14 = [mul(as_f32_6[c], chosen) for c in range(4)]  # sampling.py:92
        difference_11 = [product_14[c] - product for c in range(4)]  # sampling.py:96
        product_15 = [mul(difference_11[c], Float32(1.4426950216293335)) for c in range(4)]  # sampling.py:96
        power_5 = [exp2(product_15[c]) for c in range(4)]  # sampling.py:96
        equal_6 = [as_f32_6[c] == as_f32 for c in range(4)]  # sampling.py:98
        larger_17 = [fmax(power_5[c], Float32(0.0)) for c in range(4)]  # sampling.py:98
        chosen_47 = [select(equal_6[c], Float32(1.0), larger_17[c]) for c in range(4)]  # sampling.py:98
        total_64 = [chosen_47[c] + Float32(2.0) for c in range(4)]  # sampling.py:100
        as_i32_21 = [Float32(total_64[c]).bitcast(Int32) for c in range(4)]  # sampling.py:100
        difference_12 = [as_i32_21[c] - 1073741824 for c in range(4)]  # sampling.py:100
        chosen_48 = [select(below_12[c], difference_12[c], Int32(0)) for c in range(4)]  # sampling.py:179
        equal_7 = [shifted_66[c] == larger_15 for c in range(4)]  # sampling.py:180
        as_i32_22 = [Boolean(equal_7[c]).to(Int32) for c in range(4)]  # sampling.py:180
        s_22 = [w_state[c] + as_i32_20[c] for c in range(4)]  # sampling.py:175
        s_23 = [s_21[c] + chosen_48[c] for c in range(4)]  # sampling.py:175
        s_24 = [w_state_2[c] + as_i32_22[c] for c in range(4)]  # sampling.py:175
        w_state, s_21, w_state_2 = tuple(s_22), tuple(s_23), tuple(s_24)  # sampling.py:175
    w_state_3 = tuple(w_state)  # sampling.py:175
    s_22 = tuple(s_21)  # sampling.py:175
    w_state_4 = tuple(w_state_2)  # sampling.py:175
    for w_step_16 in cutlass.range(full_steps_6, steps_6, unroll=1):  # sampling.py:175
        product_13 = w_step_16 * 1024  # sampling.py:175
        w = [product_13 + w_lane[c] for c in range(4)]  # sampling.py:175
        exists = [w[c] < 151936 for c in range(4)]  # sampling.py:175
        exists_2 = [exists[c] & below_7 for c in range(4)]  # sampling.py:175
        scores_2 = [load_where(exists_2[c], scores, (t, w[c]), BFloat16(0)) for c in range(4)]  # sampling.py:176
        as_f32_6 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:176
        larger_16 = [fmax(as_f32_6[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:118
        total_63 = [larger_16[c] + Float32(0.0) for c in range(4)]  # sampling.py:118
        as_i32_19 = [Float32(total_63[c]).bitcast(Int32) for c in range(4)]  # sampling.py:118
        shifted_65 = [as_i32_19[c] >> 31 for c in range(4)]  # sampling.py:119
        both_23 = [shifted_65[c] & 2147483647 for c in range(4)]  # sampling.py:119
        xor_8 = [as_i32_19[c] ^ both_23[c] for c in range(4)]  # sampling.py:119
        shifted_66 = [xor_8[c] >> 16 for c in range(4)]  # sampling.py:67
        below_12 = [larger_15 < shifted_66[c] for c in range(4)]  # sampling.py:178
        as_i32_20 = [Boolean(below_12[c]).to(Int32) for c in range(4)]  # sampling.py:178
        product_14 = [mul(as_f32_6[c], chosen) for c in range(4)]  # sampling.py:92
        difference_11 = [product_14[c] - product for c in range(4)]  # sampling.py:96
        product_15 = [mul(difference_11[c], Float32(1.4426950216293335)) for c in range(4)]  # sampling.py:96
        power_5 = [exp2(product_15[c]) for c in range(4)]  # sampling.py:96
        equal_6 = [as_f32_6[c] == as_f32 for c in range(4)]  # sampling.py:98
        larger_17 = [fmax(power_5[c], Float32(0.0)) for c in range(4)]  # sampling.py:98
        chosen_47 = [select(equal_6[c], Float32(1.0), larger_17[c]) for c in range(4)]  # sampling.py:98
        total_64 = [chosen_47[c] + Float32(2.0) for c in range(4)]  # sampling.py:100
        as_i32_21 = [Float32(total_64[c]).bitcast(Int32) for c in range(4)]  # sampling.py:100
        difference_12 = [as_i32_21[c] - 1073741824 for c in range(4)]  # sampling.py:100
        chosen_48 = [select(below_12[c], difference_12[c], Int32(0)) for c in range(4)]  # sampling.py:179
        equal_7 = [shifted_66[c] == larger_15 for c in range(4)]  # sampling.py:180
        as_i32_22 = [Boolean(equal_7[c]).to(Int32) for c in range(4)]  # sampling.py:180
        chosen_49 = [select(exists_2[c], as_i32_20[c], Int32(0)) for c in range(4)]  # sampling.py:175
        chosen_50 = [select(exists_2[c], chosen_48[c], Int32(0)) for c in range(4)]  # sampling.py:175
        chosen_51 = [select(exists_2[c], as_i32_22[c], Int32(0)) for c in range(4)]  # sampling.py:175
        s_23 = [w_state_3[c] + chosen_49[c] for c in range(4)]  # sampling.py:175
        s_24 = [s_22[c] + chosen_50[c] for c in range(4)]  # sampling.py:175
        s_25 = [w_state_4[c] + chosen_51[c] for c in range(4)]  # sampling.py:175
        w_state_3, s_22, w_state_4 = tuple(s_23), tuple(s_24), tuple(s_25)  # sampling.py:175
    both_23 = [s_22[c] & 65535 for c in range(4)]  # sampling.py:124
    sum_w_lane_41 = sum_over_w_lane_2(both_23, thread, (board_42,))  # sampling.py:124
    shifted_65 = [s_22[c] >> 16 for c in range(4)]  # sampling.py:124
    sum_w_lane_42 = sum_over_w_lane_2(shifted_65, thread, (board_43,))  # sampling.py:124
    as_i64_32 = Int32(sum_w_lane_42).to(Int64)  # sampling.py:125
    shifted_66 = as_i64_32 << 16  # sampling.py:125
    as_i64_33 = Int32(sum_w_lane_41).to(Int64)  # sampling.py:125
    total_63 = shifted_66 + as_i64_33  # sampling.py:125
    below_12 = total_63 < larger_11  # sampling.py:240
    unless_3 = select(below_7, Boolean(False), Boolean(True))  # sampling.py:240
    either_7 = below_12 | unless_3  # sampling.py:240
    chosen_47 = select(either_7, larger_15, shifted_14)  # sampling.py:187
    shifted_67 = larger_15 >> 12  # sampling.py:144
    shifted_68 = chosen_47 >> 12  # sampling.py:144
    differs_5 = shifted_67 != shifted_68  # sampling.py:144
    steps_7 = select(differs_5, Int32(149), Int32(0))  # sampling.py:234
    full_steps_7 = select(differs_5, Int32(148), Int32(0))  # sampling.py:234
    s_23 = tuple([Int32(0) for c in range(64)])  # sampling.py:234
    for w_step_17 in cutlass.range(0, full_steps_7, unroll=1):  # sampling.py:234
        product_13 = w_step_17 * 1024  # sampling.py:234
        w = [product_13 + w_lane[c] for c in range(4)]  # sampling.py:234
        scores_2 = [scores[(t, w[c])] for c in range(4)]  # sampling.py:235
        as_f32_6 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:235
        larger_16 = [fmax(as_f32_6[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:118
        total_64 = [larger_16[c] + Float32(0.0) for c in range(4)]  # sampling.py:118
        as_i32_19 = [Float32(total_64[c]).bitcast(Int32) for c in range(4)]  # sampling.py:118
        shifted_69 = [as_i32_19[c] >> 31 for c in range(4)]  # sampling.py:119
        both_24 = [shifted_69[c] & 2147483647 for c in range(4)]  # sampling.py:119
        xor_8 = [as_i32_19[c] ^ both_24[c] for c in range(4)]  # sampling.py:119
        shifted_70 = [xor_8[c] >> 16 for c in range(4)]  # sampling.py:67
        at_most_34 = [total_4[c % 16] <= shifted_70[c // 16] for c in range(64)]  # sampling.py:236
        product_14 = [mul(as_f32_6[c], chosen) for c in range(4)]  # sampling.py:92
        difference_11 = [product_14[c] - product for c in range(4)]  # sampling.py:96
        product_15 = [mul(difference_11[c], Float32(1.4426950216293335)) for c in range(4)]  # sampling.py:96
        power_5 = [exp2(product_15[c]) for c in range(4)]  # sampling.py:96
        equal_6 = [as_f32_6[c] == as_f32 for c in range(4)]  # sampling.py:98
        larger_17 = [fmax(power_5[c], Float32(0.0)) for c in range(4)]  # sampling.py:98
        chosen_48 = [select(equal_6[c], Float32(1.0), larger_17[c]) for c in range(4)]  # sampling.py:98
        total_65 = [chosen_48[c] + Float32(2.0) for c in range(4)]  # sampling.py:100
        as_i32_20 = [Float32(total_65[c]).bitcast(Int32) for c in range(4)]  # sampling.py:100
        difference_12 = [as_i32_20[c] - 1073741824 for c in range(4)]  # sampling.py:100
        chosen_49 = [select(at_most_34[c], difference_12[c // 16], Int32(0)) for c in range(64)]  # sampling.py:236
        s_24 = [s_23[c] + chosen_49[c] for c in range(64)]  # sampling.py:234
        s_23 = tuple(s_24)  # sampling.py:234
    s_24 = tuple(s_23)  # sampling.py:234
    for w_step_18 in cutlass.range(full_steps_7, steps_7, unroll=1):  # sampling.py:234
        product_13 = w_step_18 * 1024  # sampling.py:234
        w = [product_13 + w_lane[c] for c in range(4)]  # sampling.py:234
        exists = [w[c] < 151936 for c in range(4)]  # sampling.py:234
        exists_2 = [exists[c] & differs_5 for c in range(4)]  # sampling.py:234
        scores_2 = [load_where(exists_2[c], scores, (t, w[c]), BFloat16(0)) for c in range(4)]  # sampling.py:235
        as_f32_6 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:235
        larger_16 = [fmax(as_f32_6[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:118
        total_64 = [larger_16[c] + Float32(0.0) for c in range(4)]  # sampling.py:118
        as_i32_19 = [Float32(total_64[c]).bitcast(Int32) for c in range(4)]  # sampling.py:118
        shifted_69 = [as_i32_19[c] >> 31 for c in range(4)]  # sampling.py:119
        both_24 = [shifted_69[c] & 2147483647 for c in range(4)]  # sampling.py:119
        xor_8 = [as_i32_19[c] ^ both_24[c] for c in range(4)]  # sampling.py:119
        shifted_70 = [xor_8[c] >> 16 for c in range(4)]  # sampling.py:67
        at_most_34 = [total_4[c % 16] <= shifted_70[c // 16] for c in range(64)]  # sampling.py:236
        product_14 = [mul(as_f32_6[c], chosen) for c in range(4)]  # sampling.py:92
        difference_11 = [product_14[c] - product for c in range(4)]  # sampling.py:96
        product_15 = [mul(difference_11[c], Float32(1.4426950216293335)) for c in range(4)]  # sampling.py:96
        power_5 = [exp2(product_15[c]) for c in range(4)]  # sampling.py:96
        equal_6 = [as_f32_6[c] == as_f32 for c in range(4)]  # sampling.py:98
        larger_17 = [fmax(power_5[c], Float32(0.0)) for c in range(4)]  # sampling.py:98
        chosen_48 = [select(equal_6[c], Float32(1.0), larger_17[c]) for c in range(4)]  # sampling.py:98
        total_65 = [chosen_48[c] + Float32(2.0) for c in range(4)]  # sampling.py:100
        as_i32_20 = [Float32(total_65[c]).bitcast(Int32) for c in range(4)]  # sampling.py:100
        difference_12 = [as_i32_20[c] - 1073741824 for c in range(4)]  # sampling.py:100
        chosen_49 = [select(at_most_34[c], difference_12[c // 16], Int32(0)) for c in range(64)]  # sampling.py:236
        chosen_50 = [select(exists_2[c // 16], chosen_49[c], Int32(0)) for c in range(64)]  # sampling.py:234
        s_25 = [s_24[c] + chosen_50[c] for c in range(64)]  # sampling.py:234
        s_24 = tuple(s_25)  # sampling.py:234
    both_24 = [s_24[c] & 65535 for c in range(64)]  # sampling.py:124
    sum_w_lane_43 = sum_over_w_lane(both_24, thread, (board_44,))  # sampling.py:124
    shifted_69 = [s_24[c] >> 16 for c in range(64)]  # sampling.py:124
    sum_w_lane_44 = sum_over_w_lane(shifted_69, thread, (board_45,))  # sampling.py:124
    as_i64_34 = [Int32(sum_w_lane_44[c]).to(Int64) for c in range(16)]  # sampling.py:125
    shifted_70 = [as_i64_34[c] << 16 for c in range(16)]  # sampling.py:125
    as_i64_35 = [Int32(sum_w_lane_43[c]).to(Int64) for c in range(16)]  # sampling.py:125
    total_64 = [shifted_70[c] + as_i64_35[c] for c in range(16)]  # sampling.py:125
    at_most_34 = [larger_11 <= total_64[c] for c in range(16)]  # sampling.py:237
    chosen_48 = [select(at_most_34[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:130
    max_j_piece_13 = max_over_j_piece(chosen_48)  # sampling.py:130
    shifted_71 = max_j_piece_13 << 12  # sampling.py:146
    total_65 = shifted_71 + -32768  # sampling.py:146
    shifted_72 = shifted_67 << 12  # sampling.py:146
    chosen_49 = select(differs_5, total_65, shifted_72)  # sampling.py:146
    total_66 = [shifted_7[c] + chosen_49 for c in range(16)]  # sampling.py:140
    shifted_73 = larger_15 >> 8  # sampling.py:144
    shifted_74 = chosen_47 >> 8  # sampling.py:144
    differs_6 = shifted_73 != shifted_74  # sampling.py:144
    steps_8 = select(differs_6, Int32(149), Int32(0))  # sampling.py:234
    full_steps_8 = select(differs_6, Int32(148), Int32(0))  # sampling.py:234
    s_25 = tuple([Int32(0) for c in range(64)])  # sampling.py:234
    for w_step_19 in cutlass.range(0, full_steps_8, unroll=1):  # sampling.py:234
        product_13 = w_step_19 * 1024  # sampling.py:234
        w = [product_13 + w_lane[c] for c in range(4)]  # sampling.py:234
        scores_2 = [scores[(t, w[c])] for c in range(4)]  # sampling.py:235
        as_f32_6 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:235
        larger_16 = [fmax(as_f32_6[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:118
        total_67 = [larger_16[c] + Float32(0.0) for c in range(4)]  # sampling.py:118
        as_i32_19 = [Float32(total_67[c]).bitcast(Int32) for c in range(4)]  # sampling.py:118
        shifted_75 = [as_i32_19[c] >> 31 for c in range(4)]  # sampling.py:119
        both_25 = [shifted_75[c] & 2147483647 for c in range(4)]  # sampling.py:119
        xor_8 = [as_i32_19[c] ^ both_25[c] for c in range(4)]  # sampling.py:119
        shifted_76 = [xor_8[c] >> 16 for c in range(4)]  # sampling.py:67
        at_most_35 = [total_66[c % 16] <= shifted_76[c // 16] for c in range(64)]  # sampling.py:236
        product_14 = [mul(as_f32_6[c], chosen) for c in range(4)]  # sampling.py:92
        difference_11 = [product_14[c] - product for c in range(4)]  # sampling.py:96
        product_15 = [mul(difference_11[c], Float32(1.4426950216293335)) for c in range(4)]  # sampling.py:96
        power_5 = [exp2(product_15[c]) for c in range(4)]  # sampling.py:96
        equal_6 = [as_f32_6[c] == as_f32 for c in range(4)]  # sampling.py:98
        larger_17 = [fmax(power_5[c], Float32(0.0)) for c in range(4)]  # sampling.py:98
        chosen_50 = [select(equal_6[c], Float32(1.0), larger_17[c]) for c in range(4)]  # sampling.py:98
        total_68 = [chosen_50[c] + Float32(2.0) for c in range(4)]  # sampling.py:100
        as_i32_20 = [Float32(total_68[c]).bitcast(Int32) for c in range(4)]  # sampling.py:100
        difference_12 = [as_i32_20[c] - 1073741824 for c in range(4)]  # sampling.py:100
        chosen_51 = [select(at_most_35[c], difference_12[c // 16], Int32(0)) for c in range(64)]  # sampling.py:236
        s_26 = [s_25[c] + chosen_51[c] for c in range(64)]  # sampling.py:234
        s_25 = tuple(s_26)  # sampling.py:234
    s_26 = tuple(s_25)  # sampling.py:234
    for w_step_20 in cutlass.range(full_steps_8, steps_8, unroll=1):  # sampling.py:234
        product_13 = w_step_20 * 1024  # sampling.py:234
        w = [product_13 + w_lane[c] for c in range(4)]  # sampling.py:234
        exists = [w[c] < 151936 for c in range(4)]  # sampling.py:234
        exists_2 = [exists[c] & differs_6 for c in range(4)]  # sampling.py:234
        scores_2 = [load_where(exists_2[c], scores, (t, w[c]), BFloat16(0)) for c in range(4)]  # sampling.py:235
        as_f32_6 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:235
        larger_16 = [fmax(as_f32_6[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:118
        total_67 = [larger_16[c] + Float32(0.0) for c in range(4)]  # sampling.py:118
        as_i32_19 = [Float32(total_67[c]).bitcast(Int32) for c in range(4)]  # sampling.py:118
        shifted_75 = [as_i32_19[c] >> 31 for c in range(4)]  # sampling.py:119
        both_25 = [shifted_75[c] & 2147483647 for c in range(4)]  # sampling.py:119
        xor_8 = [as_i32_19[c] ^ both_25[c] for c in range(4)]  # sampling.py:119
        shifted_76 = [xor_8[c] >> 16 for c in range(4)]  # sampling.py:67
        at_most_35 = [total_66[c % 16] <= shifted_76[c // 16] for c in range(64)]  # sampling.py:236
        product_14 = [mul(as_f32_6[c], chosen) for c in range(4)]  # sampling.py:92
        difference_11 = [product_14[c] - product for c in range(4)]  # sampling.py:96
        product_15 = [mul(difference_11[c], Float32(1.4426950216293335)) for c in range(4)]  # sampling.py:96
        power_5 = [exp2(product_15[c]) for c in range(4)]  # sampling.py:96
        equal_6 = [as_f32_6[c] == as_f32 for c in range(4)]  # sampling.py:98
        larger_17 = [fmax(power_5[c], Float32(0.0)) for c in range(4)]  # sampling.py:98
        chosen_50 = [select(equal_6[c], Float32(1.0), larger_17[c]) for c in range(4)]  # sampling.py:98
        total_68 = [chosen_50[c] + Float32(2.0) for c in range(4)]  # sampling.py:100
        as_i32_20 = [Float32(total_68[c]).bitcast(Int32) for c in range(4)]  # sampling.py:100
        difference_12 = [as_i32_20[c] - 1073741824 for c in range(4)]  # sampling.py:100
        chosen_51 = [select(at_most_35[c], difference_12[c // 16], Int32(0)) for c in range(64)]  # sampling.py:236
        chosen_52 = [select(exists_2[c // 16], chosen_51[c], Int32(0)) for c in range(64)]  # sampling.py:234
        s_27 = [s_26[c] + chosen_52[c] for c in range(64)]  # sampling.py:234
        s_26 = tuple(s_27)  # sampling.py:234
    both_25 = [s_26[c] & 65535 for c in range(64)]  # sampling.py:124
    sum_w_lane_45 = sum_over_w_lane(both_25, thread, (board_46,))  # sampling.py:124
    shifted_75 = [s_26[c] >> 16 for c in range(64)]  # sampling.py:124
    sum_w_lane_46 = sum_over_w_lane(shifted_75, thread, (board_47,))  # sampling.py:124
    as_i64_36 = [Int32(sum_w_lane_46[c]).to(Int64) for c in range(16)]  # sampling.py:125
    shifted_76 = [as_i64_36[c] << 16 for c in range(16)]  # sampling.py:125
    as_i64_37 = [Int32(sum_w_lane_45[c]).to(Int64) for c in range(16)]  # sampling.py:125
    total_67 = [shifted_76[c] + as_i64_37[c] for c in range(16)]  # sampling.py:125
    at_most_35 = [larger_11 <= total_67[c] for c in range(16)]  # sampling.py:237
    chosen_50 = [select(at_most_35[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:130
    max_j_piece_14 = max_over_j_piece(chosen_50)  # sampling.py:130
    shifted_77 = max_j_piece_14 << 8  # sampling.py:146
    total_68 = shifted_77 + chosen_49  # sampling.py:146
    shifted_78 = shifted_73 << 8  # sampling.py:146
    chosen_51 = select(differs_6, total_68, shifted_78)  # sampling.py:146
    total_69 = [shifted_9[c] + chosen_51 for c in range(16)]  # sampling.py:140
    shifted_79 = larger_15 >> 4  # sampling.py:144
    shifted_80 = chosen_47 >> 4  # sampling.py:144
    differs_7 = shifted_79 != shifted_80  # sampling.py:144
    steps_9 = select(differs_7, Int32(149), Int32(0))  # sampling.py:234
    full_steps_9 = select(differs_7, Int32(148), Int32(0))  # sampling.py:234
    s_27 = tuple([Int32(0) for c in range(64)])  # sampling.py:234
    for w_step_21 in cutlass.range(0, full_steps_9, unroll=1):  # sampling.py:234
        product_13 = w_step_21 * 1024  # sampling.py:234
        w = [product_13 + w_lane[c] for c in range(4)]  # sampling.py:234
        scores_2 = [scores[(t, w[c])] for c in range(4)]  # sampling.py:235
        as_f32_6 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:235
        larger_16 = [fmax(as_f32_6[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:118
        total_70 = [larger_16[c] + Float32(0.0) for c in range(4)]  # sampling.py:118
        as_i32_19 = [Float32(total_70[c]).bitcast(Int32) for c in range(4)]  # sampling.py:118
        shifted_81 = [as_i32_19[c] >> 31 for c in range(4)]  # sampling.py:119
        both_26 = [shifted_81[c] & 2147483647 for c in range(4)]  # sampling.py:119
        xor_8 = [as_i32_19[c] ^ both_26[c] for c in range(4)]  # sampling.py:119
        shifted_82 = [xor_8[c] >> 16 for c in range(4)]  # sampling.py:67
        at_most_36 = [total_69[c % 16] <= shifted_82[c // 16] for c in range(64)]  # sampling.py:236
        product_14 = [mul(as_f32_6[c], chosen) for c in range(4)]  # sampling.py:92
        difference_11 = [product_14[c] - product for c in range(4)]  # sampling.py:96
        product_15 = [mul(difference_11[c], Float32(1.4426950216293335)) for c in range(4)]  # sampling.py:96
        power_5 = [exp2(product_15[c]) for c in range(4)]  # sampling.py:96
        equal_6 = [as_f32_6[c] == as_f32 for c in range(4)]  # sampling.py:98
        larger_17 = [fmax(power_5[c], Float32(0.0)) for c in range(4)]  # sampling.py:98
        chosen_52 = [select(equal_6[c], Float32(1.0), larger_17[c]) for c in range(4)]  # sampling.py:98
        total_71 = [chosen_52[c] + Float32(2.0) for c in range(4)]  # sampling.py:100
        as_i32_20 = [Float32(total_71[c]).bitcast(Int32) for c in range(4)]  # sampling.py:100
        difference_12 = [as_i32_20[c] - 1073741824 for c in range(4)]  # sampling.py:100
        chosen_53 = [select(at_most_36[c], difference_12[c // 16], Int32(0)) for c in range(64)]  # sampling.py:236
        s_28 = [s_27[c] + chosen_53[c] for c in range(64)]  # sampling.py:234
        s_27 = tuple(s_28)  # sampling.py:234
    s_28 = tuple(s_27)  # sampling.py:234
    for w_step_22 in cutlass.range(full_steps_9, steps_9, unroll=1):  # sampling.py:234
        product_13 = w_step_22 * 1024  # sampling.py:234
        w = [product_13 + w_lane[c] for c in range(4)]  # sampling.py:234
        exists = [w[c] < 151936 for c in range(4)]  # sampling.py:234
        exists_2 = [exists[c] & differs_7 for c in range(4)]  # sampling.py:234
        scores_2 = [load_where(exists_2[c], scores, (t, w[c]), BFloat16(0)) for c in range(4)]  # sampling.py:235
        as_f32_6 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:235
        larger_16 = [fmax(as_f32_6[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:118
        total_70 = [larger_16[c] + Float32(0.0) for c in range(4)]  # sampling.py:118
        as_i32_19 = [Float32(total_70[c]).bitcast(Int32) for c in range(4)]  # sampling.py:118
        shifted_81 = [as_i32_19[c] >> 31 for c in range(4)]  # sampling.py:119
        both_26 = [shifted_81[c] & 2147483647 for c in range(4)]  # sampling.py:119
        xor_8 = [as_i32_19[c] ^ both_26[c] for c in range(4)]  # sampling.py:119
        shifted_82 = [xor_8[c] >> 16 for c in range(4)]  # sampling.py:67
        at_most_36 = [total_69[c % 16] <= shifted_82[c // 16] for c in range(64)]  # sampling.py:236
        product_14 = [mul(as_f32_6[c], chosen) for c in range(4)]  # sampling.py:92
        difference_11 = [product_14[c] - product for c in range(4)]  # sampling.py:96
        product_15 = [mul(difference_11[c], Float32(1.4426950216293335)) for c in range(4)]  # sampling.py:96
        power_5 = [exp2(product_15[c]) for c in range(4)]  # sampling.py:96
        equal_6 = [as_f32_6[c] == as_f32 for c in range(4)]  # sampling.py:98
        larger_17 = [fmax(power_5[c], Float32(0.0)) for c in range(4)]  # sampling.py:98
        chosen_52 = [select(equal_6[c], Float32(1.0), larger_17[c]) for c in range(4)]  # sampling.py:98
        total_71 = [chosen_52[c] + Float32(2.0) for c in range(4)]  # sampling.py:100
        as_i32_20 = [Float32(total_71[c]).bitcast(Int32) for c in range(4)]  # sampling.py:100
        difference_12 = [as_i32_20[c] - 1073741824 for c in range(4)]  # sampling.py:100
        chosen_53 = [select(at_most_36[c], difference_12[c // 16], Int32(0)) for c in range(64)]  # sampling.py:236
        chosen_54 = [select(exists_2[c // 16], chosen_53[c], Int32(0)) for c in range(64)]  # sampling.py:234
        s_29 = [s_28[c] + chosen_54[c] for c in range(64)]  # sampling.py:234
        s_28 = tuple(s_29)  # sampling.py:234
    both_26 = [s_28[c] & 65535 for c in range(64)]  # sampling.py:124
    sum_w_lane_47 = sum_over_w_lane(both_26, thread, (board_48,))  # sampling.py:124
    shifted_81 = [s_28[c] >> 16 for c in range(64)]  # sampling.py:124
    sum_w_lane_48 = sum_over_w_lane(shifted_81, thread, (board_49,))  # sampling.py:124
    as_i64_38 = [Int32(sum_w_lane_48[c]).to(Int64) for c in range(16)]  # sampling.py:125
    shifted_82 = [as_i64_38[c] << 16 for c in range(16)]  # sampling.py:125
    as_i64_39 = [Int32(sum_w_lane_47[c]).to(Int64) for c in range(16)]  # sampling.py:125
    total_70 = [shifted_82[c] + as_i64_39[c] for c in range(16)]  # sampling.py:125
    at_most_36 = [larger_11 <= total_70[c] for c in range(16)]  # sampling.py:237
    chosen_52 = [select(at_most_36[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:130
    max_j_piece_15 = max_over_j_piece(chosen_52)  # sampling.py:130
    shifted_83 = max_j_piece_15 << 4  # sampling.py:146
    total_71 = shifted_83 + chosen_51  # sampling.py:146
    shifted_84 = shifted_79 << 4  # sampling.py:146
    chosen_53 = select(differs_7, total_71, shifted_84)  # sampling.py:146
    total_72 = [j[c] + chosen_53 for c in range(16)]  # sampling.py:140
    differs_8 = larger_15 != chosen_47  # sampling.py:144
    steps_10 = select(differs_8, Int32(149), Int32(0))  # sampling.py:234
    full_steps_10 = select(differs_8, Int32(148), Int32(0))  # sampling.py:234
    s_29 = tuple([Int32(0) for c in range(64)])  # sampling.py:234
    for w_step_23 in cutlass.range(0, full_steps_10, unroll=1):  # sampling.py:234
        product_13 = w_step_23 * 1024  # sampling.py:234
        w = [product_13 + w_lane[c] for c in range(4)]  # sampling.py:234
        scores_2 = [scores[(t, w[c])] for c in range(4)]  # sampling.py:235
        as_f32_6 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:235
        larger_16 = [fmax(as_f32_6[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:118
        total_73 = [larger_16[c] + Float32(0.0) for c in range(4)]  # sampling.py:118
        as_i32_19 = [Float32(total_73[c]).bitcast(Int32) for c in range(4)]  # sampling.py:118
        shifted_85 = [as_i32_19[c] >> 31 for c in range(4)]  # sampling.py:119
        both_27 = [shifted_85[c] & 2147483647 for c in range(4)]  # sampling.py:119
        xor_8 = [as_i32_19[c] ^ both_27[c] for c in range(4)]  # sampling.py:119
        shifted_86 = [xor_8[c] >> 16 for c in range(4)]  # sampling.py:67
        at_most_37 = [total_72[c % 16] <= shifted_86[c // 16] for c in range(64)]  # sampling.py:236
        product_14 = [mul(as_f32_6[c], chosen) for c in range(4)]  # sampling.py:92
        difference_11 = [product_14[c] - product for c in range(4)]  # sampling.py:96
        product_15 = [mul(difference_11[c], Float32(1.4426950216293335)) for c in range(4)]  # sampling.py:96
        power_5 = [exp2(product_15[c]) for c in range(4)]  # sampling.py:96
        equal_6 = [as_f32_6[c] == as_f32 for c in range(4)]  # sampling.py:98
        larger_17 = [fmax(power_5[c], Float32(0.0)) for c in range(4)]  # sampling.py:98
        chosen_54 = [select(equal_6[c], Float32(1.0), larger_17[c]) for c in range(4)]  # sampling.py:98
        total_74 = [chosen_54[c] + Float32(2.0) for c in range(4)]  # sampling.py:100
        as_i32_20 = [Float32(total_74[c]).bitcast(Int32) for c in range(4)]  # sampling.py:100
        difference_12 = [as_i32_20[c] - 1073741824 for c in range(4)]  # sampling.py:100
        chosen_55 = [select(at_most_37[c], difference_12[c // 16], Int32(0)) for c in range(64)]  # sampling.py:236
        s_30 = [s_29[c] + chosen_55[c] for c in range(64)]  # sampling.py:234
        s_29 = tuple(s_30)  # sampling.py:234
    s_30 = tuple(s_29)  # sampling.py:234
    for w_step_24 in cutlass.range(full_steps_10, steps_10, unroll=1):  # sampling.py:234
        product_13 = w_step_24 * 1024  # sampling.py:234
        w = [product_13 + w_lane[c] for c in range(4)]  # sampling.py:234
        exists = [w[c] < 151936 for c in range(4)]  # sampling.py:234
        exists_2 = [exists[c] & differs_8 for c in range(4)]  # sampling.py:234
        scores_2 = [load_where(exists_2[c], scores, (t, w[c]), BFloat16(0)) for c in range(4)]  # sampling.py:235
        as_f32_6 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:235
        larger_16 = [fmax(as_f32_6[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:118
        total_73 = [larger_16[c] + Float32(0.0) for c in range(4)]  # sampling.py:118
        as_i32_19 = [Float32(total_73[c]).bitcast(Int32) for c in range(4)]  # sampling.py:118
        shifted_85 = [as_i32_19[c] >> 31 for c in range(4)]  # sampling.py:119
        both_27 = [shifted_85[c] & 2147483647 for c in range(4)]  # sampling.py:119
        xor_8 = [as_i32_19[c] ^ both_27[c] for c in range(4)]  # sampling.py:119
        shifted_86 = [xor_8[c] >> 16 for c in range(4)]  # sampling.py:67
        at_most_37 = [total_72[c % 16] <= shifted_86[c // 16] for c in range(64)]  # sampling.py:236
        product_14 = [mul(as_f32_6[c], chosen) for c in range(4)]  # sampling.py:92
        difference_11 = [product_14[c] - product for c in range(4)]  # sampling.py:96
        product_15 = [mul(difference_11[c], Float32(1.4426950216293335)) for c in range(4)]  # sampling.py:96
        power_5 = [exp2(product_15[c]) for c in range(4)]  # sampling.py:96
        equal_6 = [as_f32_6[c] == as_f32 for c in range(4)]  # sampling.py:98
        larger_17 = [fmax(power_5[c], Float32(0.0)) for c in range(4)]  # sampling.py:98
        chosen_54 = [select(equal_6[c], Float32(1.0), larger_17[c]) for c in range(4)]  # sampling.py:98
        total_74 = [chosen_54[c] + Float32(2.0) for c in range(4)]  # sampling.py:100
        as_i32_20 = [Float32(total_74[c]).bitcast(Int32) for c in range(4)]  # sampling.py:100
        difference_12 = [as_i32_20[c] - 1073741824 for c in range(4)]  # sampling.py:100
        chosen_55 = [select(at_most_37[c], difference_12[c // 16], Int32(0)) for c in range(64)]  # sampling.py:236
        chosen_56 = [select(exists_2[c // 16], chosen_55[c], Int32(0)) for c in range(64)]  # sampling.py:234
        s_31 = [s_30[c] + chosen_56[c] for c in range(64)]  # sampling.py:234
        s_30 = tuple(s_31)  # sampling.py:234
    both_27 = [s_30[c] & 65535 for c in range(64)]  # sampling.py:124
    sum_w_lane_49 = sum_over_w_lane(both_27, thread, (board_50,))  # sampling.py:124
    shifted_85 = [s_30[c] >> 16 for c in range(64)]  # sampling.py:124
    sum_w_lane_50 = sum_over_w_lane(shifted_85, thread, (board_51,))  # sampling.py:124
    as_i64_40 = [Int32(sum_w_lane_50[c]).to(Int64) for c in range(16)]  # sampling.py:125
    shifted_86 = [as_i64_40[c] << 16 for c in range(16)]  # sampling.py:125
    as_i64_41 = [Int32(sum_w_lane_49[c]).to(Int64) for c in range(16)]  # sampling.py:125
    total_73 = [shifted_86[c] + as_i64_41[c] for c in range(16)]  # sampling.py:125
    at_most_37 = [larger_11 <= total_73[c] for c in range(16)]  # sampling.py:237
    chosen_54 = [select(at_most_37[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:130
    max_j_piece_16 = max_over_j_piece(chosen_54)  # sampling.py:130
    total_74 = max_j_piece_16 + chosen_53  # sampling.py:146
    chosen_55 = select(differs_8, total_74, larger_15)  # sampling.py:146
    below_13 = chosen_17 < chosen_55  # sampling.py:242
    chosen_56 = select(below_13, Int32(2147483647), chosen_21)  # sampling.py:242
    chosen_57 = select(below_7, larger_11, Int64(4611686018427387904))  # sampling.py:243
    chosen_58 = select(equal, Int64(4611686018427387904), chosen_57)  # sampling.py:341
    chosen_59 = select(equal, shifted_14, chosen_55)  # sampling.py:342
    chosen_60 = select(equal, Int32(1), chosen_56)  # sampling.py:342
    store_where(writes, best, t, as_f32)  # sampling.py:344
    store_where(writes, goal, t, chosen_58)  # sampling.py:345
    store_where(writes, cut, t, chosen_59)  # sampling.py:346
    store_where(writes, most_ties, t, chosen_60)  # sampling.py:346


@cute.jit
def launch_sample_1(scores_ptr: cute.Pointer, inv_temperature_ptr: cute.Pointer, top_k_ptr: cute.Pointer, top_p_ptr: cute.Pointer, min_p_ptr: cute.Pointer, best_ptr: cute.Pointer, goal_ptr: cute.Pointer, cut_ptr: cute.Pointer, most_ties_ptr: cute.Pointer, T: Int32, scores_t_stride: Int64, programs: Int32, stream: cuda.CUstream):
    # Describe the tensors, and start the kernel on a stream.
    scores = cute.make_tensor(scores_ptr, cute.make_layout((T, 151936), stride=(scores_t_stride, 1)))
    inv_temperature = cute.make_tensor(inv_temperature_ptr, cute.make_layout((T,), stride=(1,)))
    top_k = cute.make_tensor(top_k_ptr, cute.make_layout((T,), stride=(1,)))
    top_p = cute.make_tensor(top_p_ptr, cute.make_layout((T,), stride=(1,)))
    min_p = cute.make_tensor(min_p_ptr, cute.make_layout((T,), stride=(1,)))
    best = cute.make_tensor(best_ptr, cute.make_layout((T,), stride=(1,)))
    goal = cute.make_tensor(goal_ptr, cute.make_layout((T,), stride=(1,)))
    cut = cute.make_tensor(cut_ptr, cute.make_layout((T,), stride=(1,)))
    most_ties = cute.make_tensor(most_ties_ptr, cute.make_layout((T,), stride=(1,)))
    sample_1_rows(scores, inv_temperature, top_k, top_p, min_p, best, goal, cut, most_ties, T).launch(
        grid=(programs, 1, 1), block=(256, 1, 1), stream=stream,
    )


@cute.kernel
def sample_2_rows(blocks: cute.Tensor, seed: cute.Tensor, request_id: cute.Tensor, position: cute.Tensor, inv_temperature: cute.Tensor, token: cute.Tensor, threshold: cute.Tensor, ties: cute.Tensor, last: cute.Tensor, best: cute.Tensor, goal: cute.Tensor, cut: cute.Tensor, most_ties: cute.Tensor, errors: cute.Pointer, T: Int32):
    # A block owns 1 of T (rows). J.piece: 16 indices, 16 to each of 1 threads; U.piece: 1024 indices, 2 to each of 512 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    shared = utils.SmemAllocator()
    board_1 = shared.allocate_tensor(Int32, cute.make_layout((1, 512), stride=(512, 1)), 16)
    board_2 = shared.allocate_tensor(Int32, cute.make_layout((1, 512), stride=(512, 1)), 16)
    board_3 = shared.allocate_tensor(Int32, cute.make_layout((1, 512), stride=(512, 1)), 16)
    board_4 = shared.allocate_tensor(Int32, cute.make_layout((16, 512), stride=(512, 1)), 16)
    board_5 = shared.allocate_tensor(Int32, cute.make_layout((16, 512), stride=(512, 1)), 16)
    board_6 = shared.allocate_tensor(Int32, cute.make_layout((16, 512), stride=(512, 1)), 16)
    board_7 = shared.allocate_tensor(Int32, cute.make_layout((16, 512), stride=(512, 1)), 16)
    board_8 = shared.allocate_tensor(Int32, cute.make_layout((16, 512), stride=(512, 1)), 16)
    board_9 = shared.allocate_tensor(Int32, cute.make_layout((16, 512), stride=(512, 1)), 16)
    board_10 = shared.allocate_tensor(Int32, cute.make_layout((1, 512), stride=(512, 1)), 16)
    board_11 = shared.allocate_tensor(Int32, cute.make_layout((1, 512), stride=(512, 1)), 16)
    board_12 = shared.allocate_tensor(Int32, cute.make_layout((16, 512), stride=(512, 1)), 16)
    board_13 = shared.allocate_tensor(Int32, cute.make_layout((16, 512), stride=(512, 1)), 16)
    board_14 = shared.allocate_tensor(Int32, cute.make_layout((16, 512), stride=(512, 1)), 16)
    board_15 = shared.allocate_tensor(Int32, cute.make_layout((16, 512), stride=(512, 1)), 16)
    board_16 = shared.allocate_tensor(Int32, cute.make_layout((16, 512), stride=(512, 1)), 16)
    board_17 = shared.allocate_tensor(Int32, cute.make_layout((16, 512), stride=(512, 1)), 16)
    board_18 = shared.allocate_tensor(Int32, cute.make_layout((1, 512), stride=(512, 1)), 16)
    board_19 = shared.allocate_tensor(Int32, cute.make_layout((1, 512), stride=(512, 1)), 16)
    board_20 = shared.allocate_tensor(Int32, cute.make_layout((16, 512), stride=(512, 1)), 16)
    board_21 = shared.allocate_tensor(Int32, cute.make_layout((16, 512), stride=(512, 1)), 16)
    board_22 = shared.allocate_tensor(Int32, cute.make_layout((16, 512), stride=(512, 1)), 16)
    board_23 = shared.allocate_tensor(Int32, cute.make_layout((16, 512), stride=(512, 1)), 16)
    board_24 = shared.allocate_tensor(Int32, cute.make_layout((16, 512), stride=(512, 1)), 16)
    board_25 = shared.allocate_tensor(Int32, cute.make_layout((16, 512), stride=(512, 1)), 16)
    board_26 = shared.allocate_tensor(Int32, cute.make_layout((1, 512), stride=(512, 1)), 16)
    board_27 = shared.allocate_tensor(Int32, cute.make_layout((1, 512), stride=(512, 1)), 16)
    board_28 = shared.allocate_tensor(Int32, cute.make_layout((16, 512), stride=(512, 1)), 16)
    board_29 = shared.allocate_tensor(Int32, cute.make_layout((16, 512), stride=(512, 1)), 16)
    board_30 = shared.allocate_tensor(Int32, cute.make_layout((16, 512), stride=(512, 1)), 16)
    board_31 = shared.allocate_tensor(Int32, cute.make_layout((16, 512), stride=(512, 1)), 16)
    board_32 = shared.allocate_tensor(Int32, cute.make_layout((16, 512), stride=(512, 1)), 16)
    board_33 = shared.allocate_tensor(Int32, cute.make_layout((16, 512), stride=(512, 1)), 16)
    t = block
    writes = thread == 0
    inv_temperature_2 = inv_temperature[t]  # sampling.py:328
    request_id_2 = request_id[t]  # sampling.py:264
    position_2 = position[t]  # sampling.py:264
    seed_2 = seed[t]  # sampling.py:264
    equal = inv_temperature_2 == Float32(float("inf"))  # sampling.py:328
    chosen = select(equal, Float32(1.0), inv_temperature_2)  # sampling.py:329
    j = [Int32(c) for c in range(16)]  # sampling.py:140
    shifted = [j[c] << 8 for c in range(16)]  # sampling.py:140
    shifted_2 = [j[c] << 4 for c in range(16)]  # sampling.py:140
    best_2 = best[t]  # sampling.py:344
    goal_2 = goal[t]  # sampling.py:345
    cut_2 = cut[t]  # sampling.py:346
    most_ties_2 = most_ties[t]  # sampling.py:346
    as_u32 = Int64(request_id_2).to(Uint32)  # sampling.py:264
    shifted_3 = request_id_2 >> 32  # sampling.py:264
    as_u32_2 = Int64(shifted_3).to(Uint32)  # sampling.py:264
    as_u32_3 = Int64(position_2).to(Uint32)  # sampling.py:264
    shifted_4 = position_2 >> 32  # sampling.py:264
    as_u32_4 = Int64(shifted_4).to(Uint32)  # sampling.py:264
    as_u32_5 = Int64(seed_2).to(Uint32)  # sampling.py:264
    shifted_5 = seed_2 >> 32  # sampling.py:264
    as_u32_6 = Int64(shifted_5).to(Uint32)  # sampling.py:264
    word0, word1, word2, word3 = philox(Uint32(as_u32), Uint32(as_u32_2), Uint32(as_u32_3), Uint32(as_u32_4), Uint32(as_u32_5), Uint32(as_u32_6))  # sampling.py:265
    shifted_6 = word0 >> 9  # sampling.py:266
    as_i64 = Uint32(shifted_6).to(Int64)  # sampling.py:266
    shifted_7 = as_i64 << 1  # sampling.py:266
    total = shifted_7 + 1  # sampling.py:266
    u = [thread + c * 512 for c in range(2)]  # sampling.py:278
    product = [u[c] * 149 for c in range(2)]  # sampling.py:280
    piece_begin = [cutlass.min(151936, product[c]) for c in range(2)]  # sampling.py:280
    total_2 = [piece_begin[c] + 149 for c in range(2)]  # sampling.py:280
    piece_end = [cutlass.min(151936, total_2[c]) for c in range(2)]  # sampling.py:280
    product_2 = mul(best_2, chosen)  # sampling.py:92
    s = tuple([Int32(0) for c in range(2)])  # sampling.py:280
    s_2 = tuple([Int32(0) for c in range(2)])  # sampling.py:280
    for u_step in cutlass.range(0, 149, unroll=1):  # sampling.py:280
        total_3 = [piece_begin[c] + u_step for c in range(2)]  # sampling.py:280
        exists = [total_3[c] < piece_end[c] for c in range(2)]  # sampling.py:280
        blocks_2 = [load_where(exists[c], blocks, (t, total_3[c]), BFloat16(0)) for c in range(2)]  # sampling.py:281
        as_f32 = [BFloat16(blocks_2[c]).to(Float32) for c in range(2)]  # sampling.py:281
        larger = [fmax(as_f32[c], Float32(float("-inf"))) for c in range(2)]  # sampling.py:118
        total_4 = [larger[c] + Float32(0.0) for c in range(2)]  # sampling.py:118
        as_i32 = [Float32(total_4[c]).bitcast(Int32) for c in range(2)]  # sampling.py:118
        shifted_8 = [as_i32[c] >> 31 for c in range(2)]  # sampling.py:119
        both = [shifted_8[c] & 2147483647 for c in range(2)]  # sampling.py:119
        xor = [as_i32[c] ^ both[c] for c in range(2)]  # sampling.py:119
        shifted_9 = [xor[c] >> 16 for c in range(2)]  # sampling.py:67
        equal_2 = [shifted_9[c] == cut_2 for c in range(2)]  # sampling.py:283
        as_i32_2 = [Boolean(equal_2[c]).to(Int32) for c in range(2)]  # sampling.py:283
        below = [cut_2 < shifted_9[c] for c in range(2)]  # sampling.py:284
        product_3 = [mul(as_f32[c], chosen) for c in range(2)]  # sampling.py:92
        difference = [product_3[c] - product_2 for c in range(2)]  # sampling.py:96
        product_4 = [mul(difference[c], Float32(1.4426950216293335)) for c in range(2)]  # sampling.py:96
        power = [exp2(product_4[c]) for c in range(2)]  # sampling.py:96
        equal_3 = [as_f32[c] == best_2 for c in range(2)]  # sampling.py:98
        larger_2 = [fmax(power[c], Float32(0.0)) for c in range(2)]  # sampling.py:98
        chosen_2 = [select(equal_3[c], Float32(1.0), larger_2[c]) for c in range(2)]  # sampling.py:98
        total_5 = [chosen_2[c] + Float32(2.0) for c in range(2)]  # sampling.py:100
        as_i32_3 = [Float32(total_5[c]).bitcast(Int32) for c in range(2)]  # sampling.py:100
        difference_2 = [as_i32_3[c] - 1073741824 for c in range(2)]  # sampling.py:100
        chosen_3 = [select(below[c], difference_2[c], Int32(0)) for c in range(2)]  # sampling.py:284
        chosen_4 = [select(exists[c], as_i32_2[c], Int32(0)) for c in range(2)]  # sampling.py:280
        chosen_5 = [select(exists[c], chosen_3[c], Int32(0)) for c in range(2)]  # sampling.py:280
        s_3 = [s[c] + chosen_4[c] for c in range(2)]  # sampling.py:280
        s_4 = [s_2[c] + chosen_5[c] for c in range(2)]  # sampling.py:280
        s, s_2 = tuple(s_3), tuple(s_4)  # sampling.py:280
    shifted_8 = cut_2 << 16  # sampling.py:71
    below = cut_2 < 0  # sampling.py:73
    either = shifted_8 | 65535  # sampling.py:73
    chosen_2 = select(below, either, shifted_8)  # sampling.py:73
    shifted_9 = chosen_2 >> 31  # sampling.py:74
    both = shifted_9 & 2147483647  # sampling.py:74
    xor = chosen_2 ^ both  # sampling.py:74
    as_f32 = Int32(xor).bitcast(Float32)  # sampling.py:74
    product_3 = mul(as_f32, chosen)  # sampling.py:92
    difference = product_3 - product_2  # sampling.py:96
    product_4 = mul(difference, Float32(1.4426950216293335))  # sampling.py:96
    power = exp2(product_4)  # sampling.py:96
    equal_2 = as_f32 == best_2  # sampling.py:98
    larger = fmax(power, Float32(0.0))  # sampling.py:98
    chosen_3 = select(equal_2, Float32(1.0), larger)  # sampling.py:98
    total_3 = chosen_3 + Float32(2.0)  # sampling.py:100
    as_i32 = Float32(total_3).bitcast(Int32)  # sampling.py:100
    difference_2 = as_i32 - 1073741824  # sampling.py:100
    sum_u_piece = sum_over_u_piece(s, thread, (board_1,))  # sampling.py:291
    smaller = cutlass.min(sum_u_piece, most_ties_2)  # sampling.py:291
    larger_2 = cutlass.max(difference_2, 1)  # sampling.py:293
    as_i64_2 = Int32(larger_2).to(Int64)  # sampling.py:293
    both_2 = [s_2[c] & 65535 for c in range(2)]  # sampling.py:124
    sum_u_piece_2 = sum_over_u_piece(both_2, thread, (board_2,))  # sampling.py:124
    shifted_10 = [s_2[c] >> 16 for c in range(2)]  # sampling.py:124
    sum_u_piece_3 = sum_over_u_piece(shifted_10, thread, (board_3,))  # sampling.py:124
    as_i64_3 = Int32(sum_u_piece_3).to(Int64)  # sampling.py:125
    shifted_11 = as_i64_3 << 16  # sampling.py:125
    as_i64_4 = Int32(sum_u_piece_2).to(Int64)  # sampling.py:125
    total_4 = shifted_11 + as_i64_4  # sampling.py:125
    difference_3 = goal_2 - total_4  # sampling.py:294
    larger_3 = cutlass.max(difference_3, 0)  # sampling.py:294
    difference_4 = as_i64_2 - 1  # sampling.py:294
    total_5 = larger_3 + difference_4  # sampling.py:294
    as_i64_5 = Int32(smaller).to(Int64)  # sampling.py:295
    quotient = total_5 // as_i64_2  # sampling.py:295
    smaller_2 = cutlass.min(as_i64_5, quotient)  # sampling.py:295
    as_i32_2 = Int64(smaller_2).to(Int32)  # sampling.py:295
    as_i64_6 = Int32(as_i32_2).to(Int64)  # sampling.py:296
    difference_5 = as_i64_6 - 1  # sampling.py:296
    below_2 = [u[c % 2] < shifted[c // 2] for c in range(32)]  # sampling.py:159
    chosen_4 = [select(below_2[c], s[c % 2], Int32(0)) for c in range(32)]  # sampling.py:159
    both_3 = [chosen_4[c] & 65535 for c in range(32)]  # sampling.py:124
    sum_u_piece_4 = sum_over_u_piece_2(both_3, thread, (board_4,))  # sampling.py:124
    shifted_12 = [chosen_4[c] >> 16 for c in range(32)]  # sampling.py:124
    sum_u_piece_5 = sum_over_u_piece_2(shifted_12, thread, (board_5,))  # sampling.py:124
    as_i64_7 = [Int32(sum_u_piece_5[c]).to(Int64) for c in range(16)]  # sampling.py:125
    shifted_13 = [as_i64_7[c] << 16 for c in range(16)]  # sampling.py:125
    as_i64_8 = [Int32(sum_u_piece_4[c]).to(Int64) for c in range(16)]  # sampling.py:125
    total_6 = [shifted_13[c] + as_i64_8[c] for c in range(16)]  # sampling.py:125
    at_most = [total_6[c] <= difference_5 for c in range(16)]  # sampling.py:164
    chosen_5 = [select(at_most[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:130
    max_j_piece = max_over_j_piece(chosen_5)  # sampling.py:130
    shifted_14 = max_j_piece << 8  # sampling.py:164
    total_7 = [shifted_2[c] + shifted_14 for c in range(16)]  # sampling.py:163
    below_3 = [u[c % 2] < total_7[c // 2] for c in range(32)]  # sampling.py:159
    chosen_6 = [select(below_3[c], s[c % 2], Int32(0)) for c in range(32)]  # sampling.py:159
    both_4 = [chosen_6[c] & 65535 for c in range(32)]  # sampling.py:124
    sum_u_piece_6 = sum_over_u_piece_2(both_4, thread, (board_6,))  # sampling.py:124
    shifted_15 = [chosen_6[c] >> 16 for c in range(32)]  # sampling.py:124
    sum_u_piece_7 = sum_over_u_piece_2(shifted_15, thread, (board_7,))  # sampling.py:124
    as_i64_9 = [Int32(sum_u_piece_7[c]).to(Int64) for c in range(16)]  # sampling.py:125
    shifted_16 = [as_i64_9[c] << 16 for c in range(16)]  # sampling.py:125
    as_i64_10 = [Int32(sum_u_piece_6[c]).to(Int64) for c in range(16)]  # sampling.py:125
    total_8 = [shifted_16[c] + as_i64_10[c] for c in range(16)]  # sampling.py:125
    at_most_2 = [total_8[c] <= difference_5 for c in range(16)]  # sampling.py:164
    chosen_7 = [select(at_most_2[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:130
    max_j_piece_2 = max_over_j_piece(chosen_7)  # sampling.py:130
    shifted_17 = max_j_piece_2 << 4  # sampling.py:164
    total_9 = shifted_17 + shifted_14  # sampling.py:164
    total_10 = [j[c] + total_9 for c in range(16)]  # sampling.py:163
    below_4 = [u[c % 2] < total_10[c // 2] for c in range(32)]  # sampling.py:159
    chosen_8 = [select(below_4[c], s[c % 2], Int32(0)) for c in range(32)]  # sampling.py:159
    both_5 = [chosen_8[c] & 65535 for c in range(32)]  # sampling.py:124
    sum_u_piece_8 = sum_over_u_piece_2(both_5, thread, (board_8,))  # sampling.py:124
    shifted_18 = [chosen_8[c] >> 16 for c in range(32)]  # sampling.py:124
    sum_u_piece_9 = sum_over_u_piece_2(shifted_18, thread, (board_9,))  # sampling.py:124
    as_i64_11 = [Int32(sum_u_piece_9[c]).to(Int64) for c in range(16)]  # sampling.py:125
    shifted_19 = [as_i64_11[c] << 16 for c in range(16)]  # sampling.py:125
    as_i64_12 = [Int32(sum_u_piece_8[c]).to(Int64) for c in range(16)]  # sampling.py:125
    total_11 = [shifted_19[c] + as_i64_12[c] for c in range(16)]  # sampling.py:125
    at_most_3 = [total_11[c] <= difference_5 for c in range(16)]  # sampling.py:164
    chosen_9 = [select(at_most_3[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:130
    max_j_piece_3 = max_over_j_piece(chosen_9)  # sampling.py:130
    total_12 = max_j_piece_3 + total_9  # sampling.py:164
    below_5 = [u[c] < total_12 for c in range(2)]  # sampling.py:159
    chosen_10 = [select(below_5[c], s[c], Int32(0)) for c in range(2)]  # sampling.py:159
    both_6 = [chosen_10[c] & 65535 for c in range(2)]  # sampling.py:124
    sum_u_piece_10 = sum_over_u_piece(both_6, thread, (board_10,))  # sampling.py:124
    shifted_20 = [chosen_10[c] >> 16 for c in range(2)]  # sampling.py:124
    sum_u_piece_11 = sum_over_u_piece(shifted_20, thread, (board_11,))  # sampling.py:124
    as_i64_13 = Int32(sum_u_piece_11).to(Int64)  # sampling.py:125
    shifted_21 = as_i64_13 << 16  # sampling.py:125
    as_i64_14 = Int32(sum_u_piece_10).to(Int64)  # sampling.py:125
    total_13 = shifted_21 + as_i64_14  # sampling.py:125
    difference_6 = difference_5 - total_13  # sampling.py:166
    below_6 = [u[c] < 149 for c in range(2)]  # sampling.py:288
    product_5 = total_12 * 149  # sampling.py:288
    total_14 = [product_5 + u[c] for c in range(2)]  # sampling.py:288
    chosen_11 = [select(below_6[c], total_14[c], Int32(-1)) for c in range(2)]  # sampling.py:288
    at_most_4 = [0 <= chosen_11[c] for c in range(2)]  # sampling.py:288
    below_7 = [chosen_11[c] < 151936 for c in range(2)]  # sampling.py:288
    both_7 = [at_most_4[c] & below_7[c] for c in range(2)]  # sampling.py:288
    as_bf16 = Float32(float("-inf")).to(BFloat16)  # sampling.py:288
    blocks_2 = [load_where(both_7[c], blocks, (t, chosen_11[c]), as_bf16) for c in range(2)]  # sampling.py:288
    as_f32_2 = [BFloat16(blocks_2[c]).to(Float32) for c in range(2)]  # sampling.py:288
    larger_4 = [fmax(as_f32_2[c], Float32(float("-inf"))) for c in range(2)]  # sampling.py:118
    total_15 = [larger_4[c] + Float32(0.0) for c in range(2)]  # sampling.py:118
    as_i32_3 = [Float32(total_15[c]).bitcast(Int32) for c in range(2)]  # sampling.py:118
    shifted_22 = [as_i32_3[c] >> 31 for c in range(2)]  # sampling.py:119
    both_8 = [shifted_22[c] & 2147483647 for c in range(2)]  # sampling.py:119
    xor_2 = [as_i32_3[c] ^ both_8[c] for c in range(2)]  # sampling.py:119
    shifted_23 = [xor_2[c] >> 16 for c in range(2)]  # sampling.py:67
    equal_3 = [shifted_23[c] == cut_2 for c in range(2)]  # sampling.py:297
    as_i32_4 = [Boolean(equal_3[c]).to(Int32) for c in range(2)]  # sampling.py:297
    chosen_12 = [select(below_2[c], as_i32_4[c % 2], Int32(0)) for c in range(32)]  # sampling.py:159
    both_9 = [chosen_12[c] & 65535 for c in range(32)]  # sampling.py:124
    sum_u_piece_12 = sum_over_u_piece_2(both_9, thread, (board_12,))  # sampling.py:124
    shifted_24 = [chosen_12[c] >> 16 for c in range(32)]  # sampling.py:124
    sum_u_piece_13 = sum_over_u_piece_2(shifted_24, thread, (board_13,))  # sampling.py:124
    as_i64_15 = [Int32(sum_u_piece_13[c]).to(Int64) for c in range(16)]  # sampling.py:125
    shifted_25 = [as_i64_15[c] << 16 for c in range(16)]  # sampling.py:125
    as_i64_16 = [Int32(sum_u_piece_12[c]).to(Int64) for c in range(16)]  # sampling.py:125
    total_16 = [shifted_25[c] + as_i64_16[c] for c in range(16)]  # sampling.py:125
    at_most_5 = [total_16[c] <= difference_6 for c in range(16)]  # sampling.py:164
    chosen_13 = [select(at_most_5[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:130
    max_j_piece_4 = max_over_j_piece(chosen_13)  # sampling.py:130
    shifted_26 = max_j_piece_4 << 8  # sampling.py:164
    total_17 = [shifted_2[c] + shifted_26 for c in range(16)]  # sampling.py:163
    below_8 = [u[c % 2] < total_17[c // 2] for c in range(32)]  # sampling.py:159
    chosen_14 = [select(below_8[c], as_i32_4[c % 2], Int32(0)) for c in range(32)]  # sampling.py:159
    both_10 = [chosen_14[c] & 65535 for c in range(32)]  # sampling.py:124
    sum_u_piece_14 = sum_over_u_piece_2(both_10, thread, (board_14,))  # sampling.py:124
    shifted_27 = [chosen_14[c] >> 16 for c in range(32)]  # sampling.py:124
    sum_u_piece_15 = sum_over_u_piece_2(shifted_27, thread, (board_15,))  # sampling.py:124
    as_i64_17 = [Int32(sum_u_piece_15[c]).to(Int64) for c in range(16)]  # sampling.py:125
    shifted_28 = [as_i64_17[c] << 16 for c in range(16)]  # sampling.py:125
    as_i64_18 = [Int32(sum_u_piece_14[c]).to(Int64) for c in range(16)]  # sampling.py:125
    total_18 = [shifted_28[c] + as_i64_18[c] for c in range(16)]  # sampling.py:125
    at_most_6 = [total_18[c] <= difference_6 for c in range(16)]  # sampling.py:164
    chosen_15 = [select(at_most_6[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:130
    max_j_piece_5 = max_over_j_piece(chosen_15)  # sampling.py:130
    shifted_29 = max_j_piece_5 << 4  # sampling.py:164
    total_19 = shifted_29 + shifted_26  # sampling.py:164
    total_20 = [j[c] + total_19 for c in range(16)]  # sampling.py:163
    below_9 = [u[c % 2] < total_20[c // 2] for c in range(32)]  # sampling.py:159
    chosen_16 = [select(below_9[c], as_i32_4[c % 2], Int32(0)) for c in range(32)]  # sampling.py:159
    both_11 = [chosen_16[c] & 65535 for c in range(32)]  # sampling.py:124
    sum_u_piece_16 = sum_over_u_piece_2(both_11, thread, (board_16,))  # sampling.py:124
    shifted_30 = [chosen_16[c] >> 16 for c in range(32)]  # sampling.py:124
    sum_u_piece_17 = sum_over_u_piece_2(shifted_30, thread, (board_17,))  # sampling.py:124
    as_i64_19 = [Int32(sum_u_piece_17[c]).to(Int64) for c in range(16)]  # sampling.py:125
    shifted_31 = [as_i64_19[c] << 16 for c in range(16)]  # sampling.py:125
    as_i64_20 = [Int32(sum_u_piece_16[c]).to(Int64) for c in range(16)]  # sampling.py:125
    total_21 = [shifted_31[c] + as_i64_20[c] for c in range(16)]  # sampling.py:125
    at_most_7 = [total_21[c] <= difference_6 for c in range(16)]  # sampling.py:164
    chosen_17 = [select(at_most_7[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:130
    max_j_piece_6 = max_over_j_piece(chosen_17)  # sampling.py:130
    total_22 = max_j_piece_6 + total_19  # sampling.py:164
    below_10 = 0 < as_i32_2  # sampling.py:298
    total_23 = product_5 + total_22  # sampling.py:298
    chosen_18 = select(below_10, total_23, Int32(-1))  # sampling.py:298
    equal_4 = [u[c] == total_12 for c in range(2)]  # sampling.py:299
    as_i32_5 = Int64(difference_6).to(Int32)  # sampling.py:299
    total_24 = as_i32_5 + 1  # sampling.py:299
    chosen_19 = [select(equal_4[c], total_24, Int32(0)) for c in range(2)]  # sampling.py:299
    chosen_20 = [select(below_5[c], s[c], chosen_19[c]) for c in range(2)]  # sampling.py:299
    product_6 = [chosen_20[c] * difference_2 for c in range(2)]  # sampling.py:300
    total_25 = [s_2[c] + product_6[c] for c in range(2)]  # sampling.py:300
    both_12 = [total_25[c] & 65535 for c in range(2)]  # sampling.py:124
    sum_u_piece_18 = sum_over_u_piece(both_12, thread, (board_18,))  # sampling.py:124
    shifted_32 = [total_25[c] >> 16 for c in range(2)]  # sampling.py:124
    sum_u_piece_19 = sum_over_u_piece(shifted_32, thread, (board_19,))  # sampling.py:124
    as_i64_21 = Int32(sum_u_piece_19).to(Int64)  # sampling.py:125
    shifted_33 = as_i64_21 << 16  # sampling.py:125
    as_i64_22 = Int32(sum_u_piece_18).to(Int64)  # sampling.py:125
    total_26 = shifted_33 + as_i64_22  # sampling.py:125
    shifted_34 = total_26 >> 16  # sampling.py:271
    product_7 = shifted_34 * total  # sampling.py:271
    both_13 = total_26 & 65535  # sampling.py:271
    product_8 = both_13 * total  # sampling.py:271
    shifted_35 = product_7 >> 8  # sampling.py:272
    both_14 = product_7 & 255  # sampling.py:272
    shifted_36 = both_14 << 16  # sampling.py:272
    total_27 = shifted_36 + product_8  # sampling.py:272
    shifted_37 = total_27 >> 24  # sampling.py:272
    total_28 = shifted_35 + shifted_37  # sampling.py:272
    chosen_21 = [select(below_2[c], total_25[c % 2], Int32(0)) for c in range(32)]  # sampling.py:159
    both_15 = [chosen_21[c] & 65535 for c in range(32)]  # sampling.py:124
    sum_u_piece_20 = sum_over_u_piece_2(both_15, thread, (board_20,))  # sampling.py:124
    shifted_38 = [chosen_21[c] >> 16 for c in range(32)]  # sampling.py:124
    sum_u_piece_21 = sum_over_u_piece_2(shifted_38, thread, (board_21,))  # sampling.py:124
    as_i64_23 = [Int32(sum_u_piece_21[c]).to(Int64) for c in range(16)]  # sampling.py:125
    shifted_39 = [as_i64_23[c] << 16 for c in range(16)]  # sampling.py:125
    as_i64_24 = [Int32(sum_u_piece_20[c]).to(Int64) for c in range(16)]  # sampling.py:125
    total_29 = [shifted_39[c] + as_i64_24[c] for c in range(16)]  # sampling.py:125
    at_most_8 = [total_29[c] <= total_28 for c in range(16)]  # sampling.py:164
    chosen_22 = [select(at_most_8[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:130
    max_j_piece_7 = max_over_j_piece(chosen_22)  # sampling.py:130
    shifted_40 = max_j_piece_7 << 8  # sampling.py:164
    total_30 = [shifted_2[c] + shifted_40 for c in range(16)]  # sampling.py:163
    below_11 = [u[c % 2] < total_30[c // 2] for c in range(32)]  # sampling.py:159
    chosen_23 = [select(below_11[c], total_25[c % 2], Int32(0)) for c in range(32)]  # sampling.py:159
    both_16 = [chosen_23[c] & 65535 for c in range(32)]  # sampling.py:124
    sum_u_piece_22 = sum_over_u_piece_2(both_16, thread, (board_22,))  # sampling.py:124
    shifted_41 = [chosen_23[c] >> 16 for c in range(32)]  # sampling.py:124
    sum_u_piece_23 = sum_over_u_piece_2(shifted_41, thread, (board_23,))  # sampling.py:124
    as_i64_25 = [Int32(sum_u_piece_23[c]).to(Int64) for c in range(16)]  # sampling.py:125
    shifted_42 = [as_i64_25[c] << 16 for c in range(16)]  # sampling.py:125
    as_i64_26 = [Int32(sum_u_piece_22[c]).to(Int64) for c in range(16)]  # sampling.py:125
    total_31 = [shifted_42[c] + as_i64_26[c] for c in range(16)]  # sampling.py:125
    at_most_9 = [total_31[c] <= total_28 for c in range(16)]  # sampling.py:164
    chosen_24 = [select(at_most_9[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:130
    max_j_piece_8 = max_over_j_piece(chosen_24)  # sampling.py:130
    shifted_43 = max_j_piece_8 << 4  # sampling.py:164
    total_32 = shifted_43 + shifted_40  # sampling.py:164
    total_33 = [j[c] + total_32 for c in range(16)]  # sampling.py:163
    below_12 = [u[c % 2] < total_33[c // 2] for c in range(32)]  # sampling.py:159
    chosen_25 = [select(below_12[c], total_25[c % 2], Int32(0)) for c in range(32)]  # sampling.py:159
    both_17 = [chosen_25[c] & 65535 for c in range(32)]  # sampling.py:124
    sum_u_piece_24 = sum_over_u_piece_2(both_17, thread, (board_24,))  # sampling.py:124
    shifted_44 = [chosen_25[c] >> 16 for c in range(32)]  # sampling.py:124
    sum_u_piece_25 = sum_over_u_piece_2(shifted_44, thread, (board_25,))  # sampling.py:124
    as_i64_27 = [Int32(sum_u_piece_25[c]).to(Int64) for c in range(16)]  # sampling.py:125
    shifted_45 = [as_i64_27[c] << 16 for c in range(16)]  # sampling.py:125
    as_i64_28 = [Int32(sum_u_piece_24[c]).to(Int64) for c in range(16)]  # sampling.py:125
    total_34 = [shifted_45[c] + as_i64_28[c] for c in range(16)]  # sampling.py:125
    at_most_10 = [total_34[c] <= total_28 for c in range(16)]  # sampling.py:164
    chosen_26 = [select(at_most_10[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:130
    max_j_piece_9 = max_over_j_piece(chosen_26)  # sampling.py:130
    total_35 = max_j_piece_9 + total_32  # sampling.py:164
    below_13 = [u[c] < total_35 for c in range(2)]  # sampling.py:159
    chosen_27 = [select(below_13[c], total_25[c], Int32(0)) for c in range(2)]  # sampling.py:159
    both_18 = [chosen_27[c] & 65535 for c in range(2)]  # sampling.py:124
    sum_u_piece_26 = sum_over_u_piece(both_18, thread, (board_26,))  # sampling.py:124
    shifted_46 = [chosen_27[c] >> 16 for c in range(2)]  # sampling.py:124
    sum_u_piece_27 = sum_over_u_piece(shifted_46, thread, (board_27,))  # sampling.py:124
    as_i64_29 = Int32(sum_u_piece_27).to(Int64)  # sampling.py:125
    shifted_47 = as_i64_29 << 16  # sampling.py:125
    as_i64_30 = Int32(sum_u_piece_26).to(Int64)  # sampling.py:125
    total_36 = shifted_47 + as_i64_30  # sampling.py:125
    difference_7 = total_28 - total_36  # sampling.py:166
    product_9 = total_35 * 149  # sampling.py:288
    total_37 = [product_9 + u[c] for c in range(2)]  # sampling.py:288
    chosen_28 = [select(below_6[c], total_37[c], Int32(-1)) for c in range(2)]  # sampling.py:288
    at_most_11 = [0 <= chosen_28[c] for c in range(2)]  # sampling.py:288
    below_14 = [chosen_28[c] < 151936 for c in range(2)]  # sampling.py:288
    both_19 = [at_most_11[c] & below_14[c] for c in range(2)]  # sampling.py:288
    blocks_3 = [load_where(both_19[c], blocks, (t, chosen_28[c]), as_bf16) for c in range(2)]  # sampling.py:288
    as_f32_3 = [BFloat16(blocks_3[c]).to(Float32) for c in range(2)]  # sampling.py:288
    larger_5 = [fmax(as_f32_3[c], Float32(float("-inf"))) for c in range(2)]  # sampling.py:118
    total_38 = [larger_5[c] + Float32(0.0) for c in range(2)]  # sampling.py:118
    as_i32_6 = [Float32(total_38[c]).bitcast(Int32) for c in range(2)]  # sampling.py:118
    shifted_48 = [as_i32_6[c] >> 31 for c in range(2)]  # sampling.py:119
    both_20 = [shifted_48[c] & 2147483647 for c in range(2)]  # sampling.py:119
    xor_3 = [as_i32_6[c] ^ both_20[c] for c in range(2)]  # sampling.py:119
    shifted_49 = [xor_3[c] >> 16 for c in range(2)]  # sampling.py:67
    below_15 = [cut_2 < shifted_49[c] for c in range(2)]  # sampling.py:304
    equal_5 = [shifted_49[c] == cut_2 for c in range(2)]  # sampling.py:304
    at_most_12 = [total_37[c] <= chosen_18 for c in range(2)]  # sampling.py:304
    both_21 = [equal_5[c] & at_most_12[c] for c in range(2)]  # sampling.py:304
    either_2 = [below_15[c] | both_21[c] for c in range(2)]  # sampling.py:304
    product_10 = [mul(as_f32_3[c], chosen) for c in range(2)]  # sampling.py:92
    difference_8 = [product_10[c] - product_2 for c in range(2)]  # sampling.py:96
    product_11 = [mul(difference_8[c], Float32(1.4426950216293335)) for c in range(2)]  # sampling.py:96
    power_2 = [exp2(product_11[c]) for c in range(2)]  # sampling.py:96
    equal_6 = [as_f32_3[c] == best_2 for c in range(2)]  # sampling.py:98
    larger_6 = [fmax(power_2[c], Float32(0.0)) for c in range(2)]  # sampling.py:98
    chosen_29 = [select(equal_6[c], Float32(1.0), larger_6[c]) for c in range(2)]  # sampling.py:98
    total_39 = [chosen_29[c] + Float32(2.0) for c in range(2)]  # sampling.py:100
    as_i32_7 = [Float32(total_39[c]).bitcast(Int32) for c in range(2)]  # sampling.py:100
    difference_9 = [as_i32_7[c] - 1073741824 for c in range(2)]  # sampling.py:100
    chosen_30 = [select(either_2[c], difference_9[c], Int32(0)) for c in range(2)]  # sampling.py:305
    chosen_31 = [select(below_2[c], chosen_30[c % 2], Int32(0)) for c in range(32)]  # sampling.py:159
    both_22 = [chosen_31[c] & 65535 for c in range(32)]  # sampling.py:124
    sum_u_piece_28 = sum_over_u_piece_2(both_22, thread, (board_28,))  # sampling.py:124
    shifted_50 = [chosen_31[c] >> 16 for c in range(32)]  # sampling.py:124
    sum_u_piece_29 = sum_over_u_piece_2(shifted_50, thread, (board_29,))  # sampling.py:124
    as_i64_31 = [Int32(sum_u_piece_29[c]).to(Int64) for c in range(16)]  # sampling.py:125
    shifted_51 = [as_i64_31[c] << 16 for c in range(16)]  # sampling.py:125
    as_i64_32 = [Int32(sum_u_piece_28[c]).to(Int64) for c in range(16)]  # sampling.py:125
    total_40 = [shifted_51[c] + as_i64_32[c] for c in range(16)]  # sampling.py:125
    at_most_13 = [total_40[c] <= difference_7 for c in range(16)]  # sampling.py:164
    chosen_32 = [select(at_most_13[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:130
    max_j_piece_10 = max_over_j_piece(chosen_32)  # sampling.py:130
    shifted_52 = max_j_piece_10 << 8  # sampling.py:164
    total_41 = [shifted_2[c] + shifted_52 for c in range(16)]  # sampling.py:163
    below_16 = [u[c % 2] < total_41[c // 2] for c in range(32)]  # sampling.py:159
    chosen_33 = [select(below_16[c], chosen_30[c % 2], Int32(0)) for c in range(32)]  # sampling.py:159
    both_23 = [chosen_33[c] & 65535 for c in range(32)]  # sampling.py:124
    sum_u_piece_30 = sum_over_u_piece_2(both_23, thread, (board_30,))  # sampling.py:124
    shifted_53 = [chosen_33[c] >> 16 for c in range(32)]  # sampling.py:124
    sum_u_piece_31 = sum_over_u_piece_2(shifted_53, thread, (board_31,))  # sampling.py:124
    as_i64_33 = [Int32(sum_u_piece_31[c]).to(Int64) for c in range(16)]  # sampling.py:125
    shifted_54 = [as_i64_33[c] << 16 for c in range(16)]  # sampling.py:125
    as_i64_34 = [Int32(sum_u_piece_30[c]).to(Int64) for c in range(16)]  # sampling.py:125
    total_42 = [shifted_54[c] + as_i64_34[c] for c in range(16)]  # sampling.py:125
    at_most_14 = [total_42[c] <= difference_7 for c in range(16)]  # sampling.py:164
    chosen_34 = [select(at_most_14[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:130
    max_j_piece_11 = max_over_j_piece(chosen_34)  # sampling.py:130
    shifted_55 = max_j_piece_11 << 4  # sampling.py:164
    total_43 = shifted_55 + shifted_52  # sampling.py:164
    total_44 = [j[c] + total_43 for c in range(16)]  # sampling.py:163
    below_17 = [u[c % 2] < total_44[c // 2] for c in range(32)]  # sampling.py:159
    chosen_35 = [select(below_17[c], chosen_30[c % 2], Int32(0)) for c in range(32)]  # sampling.py:159
    both_24 = [chosen_35[c] & 65535 for c in range(32)]  # sampling.py:124
    sum_u_piece_32 = sum_over_u_piece_2(both_24, thread, (board_32,))  # sampling.py:124
    shifted_56 = [chosen_35[c] >> 16 for c in range(32)]  # sampling.py:124
    sum_u_piece_33 = sum_over_u_piece_2(shifted_56, thread, (board_33,))  # sampling.py:124
    as_i64_35 = [Int32(sum_u_piece_33[c]).to(Int64) for c in range(16)]  # sampling.py:125
    shifted_57 = [as_i64_35[c] << 16 for c in range(16)]  # sampling.py:125
    as_i64_36 = [Int32(sum_u_piece_32[c]).to(Int64) for c in range(16)]  # sampling.py:125
    total_45 = [shifted_57[c] + as_i64_36[c] for c in range(16)]  # sampling.py:125
    at_most_15 = [total_45[c] <= difference_7 for c in range(16)]  # sampling.py:164
    chosen_36 = [select(at_most_15[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:130
    max_j_piece_12 = max_over_j_piece(chosen_36)  # sampling.py:130
    total_46 = max_j_piece_12 + total_43  # sampling.py:164
    total_47 = product_9 + total_46  # sampling.py:306
    below_18 = Float32(float("-inf")) < best_2  # sampling.py:348
    unless = select(below_18, Boolean(False), Boolean(True))  # sampling.py:349
    report_where(unless & writes, errors, 1, t + 1)  # sampling.py:349
    chosen_37 = select(below_18, total_47, Int32(-1))  # sampling.py:351
    as_i64_37 = Int32(chosen_37).to(Int64)  # sampling.py:351
    chosen_38 = select(below_18, as_f32, Float32(float("-inf")))  # sampling.py:352
    chosen_39 = select(below_18, as_i32_2, Int32(0))  # sampling.py:353
    chosen_40 = select(below_18, chosen_18, Int32(-1))  # sampling.py:354
    store_where(writes, token, t, as_i64_37)  # sampling.py:350
    store_where(writes, threshold, t, chosen_38)  # sampling.py:350
    store_where(writes, ties, t, chosen_39)  # sampling.py:350
    store_where(writes, last, t, chosen_40)  # sampling.py:350


@cute.jit
def launch_sample_2(blocks_ptr: cute.Pointer, seed_ptr: cute.Pointer, request_id_ptr: cute.Pointer, position_ptr: cute.Pointer, inv_temperature_ptr: cute.Pointer, token_ptr: cute.Pointer, threshold_ptr: cute.Pointer, ties_ptr: cute.Pointer, last_ptr: cute.Pointer, best_ptr: cute.Pointer, goal_ptr: cute.Pointer, cut_ptr: cute.Pointer, most_ties_ptr: cute.Pointer, errors_ptr: cute.Pointer, T: Int32, blocks_t_stride: Int64, programs: Int32, stream: cuda.CUstream):
    # Describe the tensors, and start the kernel on a stream.
    blocks = cute.make_tensor(blocks_ptr, cute.make_layout((T, 151936), stride=(blocks_t_stride, 1)))
    seed = cute.make_tensor(seed_ptr, cute.make_layout((T,), stride=(1,)))
    request_id = cute.make_tensor(request_id_ptr, cute.make_layout((T,), stride=(1,)))
    position = cute.make_tensor(position_ptr, cute.make_layout((T,), stride=(1,)))
    inv_temperature = cute.make_tensor(inv_temperature_ptr, cute.make_layout((T,), stride=(1,)))
    token = cute.make_tensor(token_ptr, cute.make_layout((T,), stride=(1,)))
    threshold = cute.make_tensor(threshold_ptr, cute.make_layout((T,), stride=(1,)))
    ties = cute.make_tensor(ties_ptr, cute.make_layout((T,), stride=(1,)))
    last = cute.make_tensor(last_ptr, cute.make_layout((T,), stride=(1,)))
    best = cute.make_tensor(best_ptr, cute.make_layout((T,), stride=(1,)))
    goal = cute.make_tensor(goal_ptr, cute.make_layout((T,), stride=(1,)))
    cut = cute.make_tensor(cut_ptr, cute.make_layout((T,), stride=(1,)))
    most_ties = cute.make_tensor(most_ties_ptr, cute.make_layout((T,), stride=(1,)))
    sample_2_rows(blocks, seed, request_id, position, inv_temperature, token, threshold, ties, last, best, goal, cut, most_ties, errors_ptr, T).launch(
        grid=(programs, 1, 1), block=(512, 1, 1), stream=stream,
    )


def call(kernels, scores, inv_temperature, top_k, top_p, min_p, best, goal, cut, most_ties, blocks, seed, request_id, position, token, threshold, ties, last, T, scores_t_stride, blocks_t_stride, errors):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T
    if programs > 0:
        kernels.sample_1((programs,), scores, inv_temperature, top_k, top_p, min_p, best, goal, cut, most_ties, T, scores_t_stride)
    programs = T
    if programs > 0:
        kernels.sample_2((programs,), blocks, seed, request_id, position, inv_temperature, token, threshold, ties, last, best, goal, cut, most_ties, errors, T, blocks_t_stride)
