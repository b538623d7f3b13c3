"""sample on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 8c054c1a116dfd1c
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
    x = folded(x, 1, fmax)
    x = folded(x, 1, fmax)
    x = exchanged(x, 1, fmax)
    x = exchanged(x, 2, fmax)
    x = exchanged(x, 4, fmax)
    x = exchanged(x, 8, fmax)
    x = exchanged(x, 16, fmax)
    x = across(x, boards[0], (32, 64, 128), thread, fmax)
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
    board_1 = shared.allocate_tensor(Float32, cute.make_layout((1, 256), stride=(256, 1)), 16)
    board_2 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_3 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_4 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_5 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_6 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_7 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_8 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_9 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_10 = shared.allocate_tensor(Int32, cute.make_layout((1, 256), stride=(256, 1)), 16)
    board_11 = shared.allocate_tensor(Int32, cute.make_layout((1, 256), stride=(256, 1)), 16)
    board_12 = shared.allocate_tensor(Int32, cute.make_layout((1, 256), stride=(256, 1)), 16)
    board_13 = shared.allocate_tensor(Int32, cute.make_layout((1, 256), stride=(256, 1)), 16)
    board_14 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_15 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_16 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
    board_17 = shared.allocate_tensor(Int32, cute.make_layout((16, 256), stride=(256, 1)), 16)
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
    t = block
    writes = thread == 0
    inv_temperature_2 = inv_temperature[t]  # sampling.py:312
    min_p_2 = min_p[t]  # sampling.py:318
    top_k_2 = top_k[t]  # sampling.py:320
    top_p_2 = top_p[t]  # sampling.py:322
    equal = inv_temperature_2 == Float32(float("inf"))  # sampling.py:312
    chosen = select(equal, Float32(1.0), inv_temperature_2)  # sampling.py:313
    w_lane = [thread // 128 + thread % 128 * 8 + c * 2 for c in range(4)]  # sampling.py:315
    m = tuple([Float32(float("-inf")) for c in range(4)])  # sampling.py:315
    w_state = tuple([Int32(2147483647) for c in range(4)])  # sampling.py:315
    for w_step in cutlass.range(0, 148, unroll=1):  # sampling.py:315
        product = w_step * 1024  # sampling.py:315
        w = [product + w_lane[c] for c in range(4)]  # sampling.py:315
        scores_2 = [scores[(t, w[c])] for c in range(4)]  # sampling.py:316
        as_f32 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:316
        equal_2 = [as_f32[c] == as_f32[c] for c in range(4)]  # sampling.py:315
        chosen_2 = [select(equal_2[c], w[c], Int32(2147483647)) for c in range(4)]  # sampling.py:315
        below = [m[c] < as_f32[c] for c in range(4)]  # sampling.py:315
        equal_3 = [m[c] == as_f32[c] for c in range(4)]  # sampling.py:315
        below_2 = [chosen_2[c] < w_state[c] for c in range(4)]  # sampling.py:315
        both = [equal_3[c] & below_2[c] for c in range(4)]  # sampling.py:315
        either = [below[c] | both[c] for c in range(4)]  # sampling.py:315
        m_2 = [select(either[c], as_f32[c], m[c]) for c in range(4)]  # sampling.py:315
        index = [select(either[c], chosen_2[c], w_state[c]) for c in range(4)]  # sampling.py:315
        m, w_state = tuple(m_2), tuple(index)  # sampling.py:315
    m_2 = tuple(m)  # sampling.py:315
    w_state_2 = tuple(w_state)  # sampling.py:315
    for w_step_2 in cutlass.range(148, 149, unroll=1):  # sampling.py:315
        product = w_step_2 * 1024  # sampling.py:315
        w = [product + w_lane[c] for c in range(4)]  # sampling.py:315
        exists = [w[c] < 151936 for c in range(4)]  # sampling.py:315
        scores_2 = [load_where(exists[c], scores, (t, w[c]), BFloat16(0)) for c in range(4)]  # sampling.py:316
        as_f32 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:316
        chosen_2 = [select(exists[c], as_f32[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:315
        equal_2 = [chosen_2[c] == chosen_2[c] for c in range(4)]  # sampling.py:315
        chosen_3 = [select(equal_2[c], w[c], Int32(2147483647)) for c in range(4)]  # sampling.py:315
        chosen_4 = [select(exists[c], chosen_3[c], Int32(2147483647)) for c in range(4)]  # sampling.py:315
        below = [m_2[c] < chosen_2[c] for c in range(4)]  # sampling.py:315
        equal_3 = [m_2[c] == chosen_2[c] for c in range(4)]  # sampling.py:315
        below_2 = [chosen_4[c] < w_state_2[c] for c in range(4)]  # sampling.py:315
        both = [equal_3[c] & below_2[c] for c in range(4)]  # sampling.py:315
        either = [below[c] | both[c] for c in range(4)]  # sampling.py:315
        m_3 = [select(either[c], chosen_2[c], m_2[c]) for c in range(4)]  # sampling.py:315
        index = [select(either[c], chosen_4[c], w_state_2[c]) for c in range(4)]  # sampling.py:315
        m_2, w_state_2 = tuple(m_3), tuple(index)  # sampling.py:315
    max_w_lane = max_over_w_lane(m_2, thread, (board_1,))  # sampling.py:317
    log_of = portable_log(min_p_2)  # sampling.py:236
    quotient = div(log_of, chosen)  # sampling.py:238
    total = max_w_lane + quotient  # sampling.py:239
    larger = fmax(total, Float32(float("-inf")))  # sampling.py:239
    smaller = fmin(larger, max_w_lane)  # sampling.py:239
    larger_2 = fmax(smaller, Float32(float("-inf")))  # sampling.py:113
    total_2 = larger_2 + Float32(0.0)  # sampling.py:113
    as_i32 = Float32(total_2).bitcast(Int32)  # sampling.py:113
    shifted = as_i32 >> 31  # sampling.py:114
    both = shifted & 2147483647  # sampling.py:114
    xor = as_i32 ^ both  # sampling.py:114
    below = xor < 0  # sampling.py:84
    total_3 = xor + 65535  # sampling.py:84
    chosen_2 = select(below, xor, total_3)  # sampling.py:84
    shifted_2 = chosen_2 >> 16  # sampling.py:84
    difference = shifted_2 - 1  # sampling.py:240
    larger_3 = cutlass.max(difference, -32641)  # sampling.py:240
    below_2 = 0 < top_k_2  # sampling.py:186
    below_3 = top_k_2 < 151936  # sampling.py:186
    both_2 = below_2 & below_3  # sampling.py:186
    larger_4 = fmax(max_w_lane, Float32(float("-inf")))  # sampling.py:113
    total_4 = larger_4 + Float32(0.0)  # sampling.py:113
    as_i32_2 = Float32(total_4).bitcast(Int32)  # sampling.py:113
    shifted_3 = as_i32_2 >> 31  # sampling.py:114
    both_3 = shifted_3 & 2147483647  # sampling.py:114
    xor_2 = as_i32_2 ^ both_3  # sampling.py:114
    shifted_4 = xor_2 >> 16  # sampling.py:72
    larger_5 = [fmax(m_2[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:113
    total_5 = [larger_5[c] + Float32(0.0) for c in range(4)]  # sampling.py:113
    as_i32_3 = [Float32(total_5[c]).bitcast(Int32) for c in range(4)]  # sampling.py:113
    shifted_5 = [as_i32_3[c] >> 31 for c in range(4)]  # sampling.py:114
    both_4 = [shifted_5[c] & 2147483647 for c in range(4)]  # sampling.py:114
    xor_3 = [as_i32_3[c] ^ both_4[c] for c in range(4)]  # sampling.py:114
    shifted_6 = [xor_3[c] >> 16 for c in range(4)]  # sampling.py:72
    j = [Int32(c) for c in range(16)]  # sampling.py:139
    shifted_7 = [j[c] << 12 for c in range(16)]  # sampling.py:139
    total_6 = [shifted_7[c] + -32768 for c in range(16)]  # sampling.py:139
    at_most = [total_6[c % 16] <= shifted_6[c // 16] for c in range(64)]  # sampling.py:190
    as_i32_4 = [Boolean(at_most[c]).to(Int32) for c in range(64)]  # sampling.py:124
    sum_w_lane = sum_over_w_lane(as_i32_4, thread, (board_2,))  # sampling.py:124
    at_most_2 = [top_k_2 <= sum_w_lane[c] for c in range(16)]  # sampling.py:190
    chosen_3 = [select(at_most_2[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:129
    max_j_piece = max_over_j_piece(chosen_3)  # sampling.py:129
    shifted_8 = max_j_piece << 12  # sampling.py:141
    total_7 = shifted_8 + -32768  # sampling.py:141
    shifted_9 = [j[c] << 8 for c in range(16)]  # sampling.py:139
    total_8 = [shifted_9[c] + total_7 for c in range(16)]  # sampling.py:139
    at_most_3 = [total_8[c % 16] <= shifted_6[c // 16] for c in range(64)]  # sampling.py:190
    as_i32_5 = [Boolean(at_most_3[c]).to(Int32) for c in range(64)]  # sampling.py:124
    sum_w_lane_2 = sum_over_w_lane(as_i32_5, thread, (board_3,))  # sampling.py:124
    at_most_4 = [top_k_2 <= sum_w_lane_2[c] for c in range(16)]  # sampling.py:190
    chosen_4 = [select(at_most_4[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:129
    max_j_piece_2 = max_over_j_piece(chosen_4)  # sampling.py:129
    shifted_10 = max_j_piece_2 << 8  # sampling.py:141
    total_9 = shifted_10 + total_7  # sampling.py:141
    shifted_11 = [j[c] << 4 for c in range(16)]  # sampling.py:139
    total_10 = [shifted_11[c] + total_9 for c in range(16)]  # sampling.py:139
    at_most_5 = [total_10[c % 16] <= shifted_6[c // 16] for c in range(64)]  # sampling.py:190
    as_i32_6 = [Boolean(at_most_5[c]).to(Int32) for c in range(64)]  # sampling.py:124
    sum_w_lane_3 = sum_over_w_lane(as_i32_6, thread, (board_4,))  # sampling.py:124
    at_most_6 = [top_k_2 <= sum_w_lane_3[c] for c in range(16)]  # sampling.py:190
    chosen_5 = [select(at_most_6[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:129
    max_j_piece_3 = max_over_j_piece(chosen_5)  # sampling.py:129
    shifted_12 = max_j_piece_3 << 4  # sampling.py:141
    total_11 = shifted_12 + total_9  # sampling.py:141
    total_12 = [j[c] + total_11 for c in range(16)]  # sampling.py:139
    at_most_7 = [total_12[c % 16] <= shifted_6[c // 16] for c in range(64)]  # sampling.py:190
    as_i32_7 = [Boolean(at_most_7[c]).to(Int32) for c in range(64)]  # sampling.py:124
    sum_w_lane_4 = sum_over_w_lane(as_i32_7, thread, (board_5,))  # sampling.py:124
    at_most_8 = [top_k_2 <= sum_w_lane_4[c] for c in range(16)]  # sampling.py:190
    chosen_6 = [select(at_most_8[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:129
    max_j_piece_4 = max_over_j_piece(chosen_6)  # sampling.py:129
    total_13 = max_j_piece_4 + total_11  # sampling.py:141
    larger_6 = cutlass.max(total_13, -32641)  # sampling.py:199
    smaller_2 = cutlass.min(larger_6, shifted_4)  # sampling.py:199
    shifted_13 = smaller_2 >> 12  # sampling.py:143
    shifted_14 = shifted_4 >> 12  # sampling.py:143
    differs = shifted_13 != shifted_14  # sampling.py:143
    both_5 = both_2 & differs  # sampling.py:194
    steps = select(both_5, Int32(149), Int32(0))  # sampling.py:194
    full_steps = select(both_5, Int32(148), Int32(0))  # sampling.py:194
    s = tuple([Int32(0) for c in range(64)])  # sampling.py:194
    for w_step_3 in cutlass.range(0, full_steps, unroll=1):  # sampling.py:194
        product = w_step_3 * 1024  # sampling.py:194
        w = [product + w_lane[c] for c in range(4)]  # sampling.py:194
        scores_2 = [scores[(t, w[c])] for c in range(4)]  # sampling.py:195
        as_f32 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:195
        larger_7 = [fmax(as_f32[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:113
        total_14 = [larger_7[c] + Float32(0.0) for c in range(4)]  # sampling.py:113
        as_i32_8 = [Float32(total_14[c]).bitcast(Int32) for c in range(4)]  # sampling.py:113
        shifted_15 = [as_i32_8[c] >> 31 for c in range(4)]  # sampling.py:114
        both_6 = [shifted_15[c] & 2147483647 for c in range(4)]  # sampling.py:114
        xor_4 = [as_i32_8[c] ^ both_6[c] for c in range(4)]  # sampling.py:114
        shifted_16 = [xor_4[c] >> 16 for c in range(4)]  # sampling.py:72
        at_most_9 = [total_6[c % 16] <= shifted_16[c // 16] for c in range(64)]  # sampling.py:195
        as_i32_9 = [Boolean(at_most_9[c]).to(Int32) for c in range(64)]  # sampling.py:195
        s_2 = [s[c] + as_i32_9[c] for c in range(64)]  # sampling.py:194
        s = tuple(s_2)  # sampling.py:194
    s_2 = tuple(s)  # sampling.py:194
    for w_step_4 in cutlass.range(full_steps, steps, unroll=1):  # sampling.py:194
        product = w_step_4 * 1024  # sampling.py:194
        w = [product + w_lane[c] for c in range(4)]  # sampling.py:194
        exists = [w[c] < 151936 for c in range(4)]  # sampling.py:194
        exists_2 = [exists[c] & both_5 for c in range(4)]  # sampling.py:194
        scores_2 = [load_where(exists_2[c], scores, (t, w[c]), BFloat16(0)) for c in range(4)]  # sampling.py:195
        as_f32 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:195
        larger_7 = [fmax(as_f32[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:113
        total_14 = [larger_7[c] + Float32(0.0) for c in range(4)]  # sampling.py:113
        as_i32_8 = [Float32(total_14[c]).bitcast(Int32) for c in range(4)]  # sampling.py:113
        shifted_15 = [as_i32_8[c] >> 31 for c in range(4)]  # sampling.py:114
        both_6 = [shifted_15[c] & 2147483647 for c in range(4)]  # sampling.py:114
        xor_4 = [as_i32_8[c] ^ both_6[c] for c in range(4)]  # sampling.py:114
        shifted_16 = [xor_4[c] >> 16 for c in range(4)]  # sampling.py:72
        at_most_9 = [total_6[c % 16] <= shifted_16[c // 16] for c in range(64)]  # sampling.py:195
        as_i32_9 = [Boolean(at_most_9[c]).to(Int32) for c in range(64)]  # sampling.py:195
        chosen_7 = [select(exists_2[c // 16], as_i32_9[c], Int32(0)) for c in range(64)]  # sampling.py:194
        s_3 = [s_2[c] + chosen_7[c] for c in range(64)]  # sampling.py:194
        s_2 = tuple(s_3)  # sampling.py:194
    sum_w_lane_5 = sum_over_w_lane(s_2, thread, (board_6,))  # sampling.py:196
    at_most_9 = [top_k_2 <= sum_w_lane_5[c] for c in range(16)]  # sampling.py:196
    chosen_7 = [select(at_most_9[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:129
    max_j_piece_5 = max_over_j_piece(chosen_7)  # sampling.py:129
    shifted_15 = max_j_piece_5 << 12  # sampling.py:145
    total_14 = shifted_15 + -32768  # sampling.py:145
    shifted_16 = shifted_13 << 12  # sampling.py:145
    chosen_8 = select(differs, total_14, shifted_16)  # sampling.py:145
    total_15 = [shifted_9[c] + chosen_8 for c in range(16)]  # sampling.py:139
    shifted_17 = smaller_2 >> 8  # sampling.py:143
    shifted_18 = shifted_4 >> 8  # sampling.py:143
    differs_2 = shifted_17 != shifted_18  # sampling.py:143
    both_6 = both_2 & differs_2  # sampling.py:194
    steps_2 = select(both_6, Int32(149), Int32(0))  # sampling.py:194
    full_steps_2 = select(both_6, Int32(148), Int32(0))  # sampling.py:194
    s_3 = tuple([Int32(0) for c in range(64)])  # sampling.py:194
    for w_step_5 in cutlass.range(0, full_steps_2, unroll=1):  # sampling.py:194
        product = w_step_5 * 1024  # sampling.py:194
        w = [product + w_lane[c] for c in range(4)]  # sampling.py:194
        scores_2 = [scores[(t, w[c])] for c in range(4)]  # sampling.py:195
        as_f32 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:195
        larger_7 = [fmax(as_f32[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:113
        total_16 = [larger_7[c] + Float32(0.0) for c in range(4)]  # sampling.py:113
        as_i32_8 = [Float32(total_16[c]).bitcast(Int32) for c in range(4)]  # sampling.py:113
        shifted_19 = [as_i32_8[c] >> 31 for c in range(4)]  # sampling.py:114
        both_7 = [shifted_19[c] & 2147483647 for c in range(4)]  # sampling.py:114
        xor_4 = [as_i32_8[c] ^ both_7[c] for c in range(4)]  # sampling.py:114
        shifted_20 = [xor_4[c] >> 16 for c in range(4)]  # sampling.py:72
        at_most_10 = [total_15[c % 16] <= shifted_20[c // 16] for c in range(64)]  # sampling.py:195
        as_i32_9 = [Boolean(at_most_10[c]).to(Int32) for c in range(64)]  # sampling.py:195
        s_4 = [s_3[c] + as_i32_9[c] for c in range(64)]  # sampling.py:194
        s_3 = tuple(s_4)  # sampling.py:194
    s_4 = tuple(s_3)  # sampling.py:194
    for w_step_6 in cutlass.range(full_steps_2, steps_2, unroll=1):  # sampling.py:194
        product = w_step_6 * 1024  # sampling.py:194
        w = [product + w_lane[c] for c in range(4)]  # sampling.py:194
        exists = [w[c] < 151936 for c in range(4)]  # sampling.py:194
        exists_2 = [exists[c] & both_6 for c in range(4)]  # sampling.py:194
        scores_2 = [load_where(exists_2[c], scores, (t, w[c]), BFloat16(0)) for c in range(4)]  # sampling.py:195
        as_f32 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:195
        larger_7 = [fmax(as_f32[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:113
        total_16 = [larger_7[c] + Float32(0.0) for c in range(4)]  # sampling.py:113
        as_i32_8 = [Float32(total_16[c]).bitcast(Int32) for c in range(4)]  # sampling.py:113
        shifted_19 = [as_i32_8[c] >> 31 for c in range(4)]  # sampling.py:114
        both_7 = [shifted_19[c] & 2147483647 for c in range(4)]  # sampling.py:114
        xor_4 = [as_i32_8[c] ^ both_7[c] for c in range(4)]  # sampling.py:114
        shifted_20 = [xor_4[c] >> 16 for c in range(4)]  # sampling.py:72
        at_most_10 = [total_15[c % 16] <= shifted_20[c // 16] for c in range(64)]  # sampling.py:195
        as_i32_9 = [Boolean(at_most_10[c]).to(Int32) for c in range(64)]  # sampling.py:195
        chosen_9 = [select(exists_2[c // 16], as_i32_9[c], Int32(0)) for c in range(64)]  # sampling.py:194
        s_5 = [s_4[c] + chosen_9[c] for c in range(64)]  # sampling.py:194
        s_4 = tuple(s_5)  # sampling.py:194
    sum_w_lane_6 = sum_over_w_lane(s_4, thread, (board_7,))  # sampling.py:196
    at_most_10 = [top_k_2 <= sum_w_lane_6[c] for c in range(16)]  # sampling.py:196
    chosen_9 = [select(at_most_10[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:129
    max_j_piece_6 = max_over_j_piece(chosen_9)  # sampling.py:129
    shifted_19 = max_j_piece_6 << 8  # sampling.py:145
    total_16 = shifted_19 + chosen_8  # sampling.py:145
    shifted_20 = shifted_17 << 8  # sampling.py:145
    chosen_10 = select(differs_2, total_16, shifted_20)  # sampling.py:145
    total_17 = [shifted_11[c] + chosen_10 for c in range(16)]  # sampling.py:139
    shifted_21 = smaller_2 >> 4  # sampling.py:143
    shifted_22 = shifted_4 >> 4  # sampling.py:143
    differs_3 = shifted_21 != shifted_22  # sampling.py:143
    both_7 = both_2 & differs_3  # sampling.py:194
    steps_3 = select(both_7, Int32(149), Int32(0))  # sampling.py:194
    full_steps_3 = select(both_7, Int32(148), Int32(0))  # sampling.py:194
    s_5 = tuple([Int32(0) for c in range(64)])  # sampling.py:194
    for w_step_7 in cutlass.range(0, full_steps_3, unroll=1):  # sampling.py:194
        product = w_step_7 * 1024  # sampling.py:194
        w = [product + w_lane[c] for c in range(4)]  # sampling.py:194
        scores_2 = [scores[(t, w[c])] for c in range(4)]  # sampling.py:195
        as_f32 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:195
        larger_7 = [fmax(as_f32[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:113
        total_18 = [larger_7[c] + Float32(0.0) for c in range(4)]  # sampling.py:113
        as_i32_8 = [Float32(total_18[c]).bitcast(Int32) for c in range(4)]  # sampling.py:113
        shifted_23 = [as_i32_8[c] >> 31 for c in range(4)]  # sampling.py:114
        both_8 = [shifted_23[c] & 2147483647 for c in range(4)]  # sampling.py:114
        xor_4 = [as_i32_8[c] ^ both_8[c] for c in range(4)]  # sampling.py:114
        shifted_24 = [xor_4[c] >> 16 for c in range(4)]  # sampling.py:72
        at_most_11 = [total_17[c % 16] <= shifted_24[c // 16] for c in range(64)]  # sampling.py:195
        as_i32_9 = [Boolean(at_most_11[c]).to(Int32) for c in range(64)]  # sampling.py:195
        s_6 = [s_5[c] + as_i32_9[c] for c in range(64)]  # sampling.py:194
        s_5 = tuple(s_6)  # sampling.py:194
    s_6 = tuple(s_5)  # sampling.py:194
    for w_step_8 in cutlass.range(full_steps_3, steps_3, unroll=1):  # sampling.py:194
        product = w_step_8 * 1024  # sampling.py:194
        w = [product + w_lane[c] for c in range(4)]  # sampling.py:194
        exists = [w[c] < 151936 for c in range(4)]  # sampling.py:194
        exists_2 = [exists[c] & both_7 for c in range(4)]  # sampling.py:194
        scores_2 = [load_where(exists_2[c], scores, (t, w[c]), BFloat16(0)) for c in range(4)]  # sampling.py:195
        as_f32 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:195
        larger_7 = [fmax(as_f32[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:113
        total_18 = [larger_7[c] + Float32(0.0) for c in range(4)]  # sampling.py:113
        as_i32_8 = [Float32(total_18[c]).bitcast(Int32) for c in range(4)]  # sampling.py:113
        shifted_23 = [as_i32_8[c] >> 31 for c in range(4)]  # sampling.py:114
        both_8 = [shifted_23[c] & 2147483647 for c in range(4)]  # sampling.py:114
        xor_4 = [as_i32_8[c] ^ both_8[c] for c in range(4)]  # sampling.py:114
        shifted_24 = [xor_4[c] >> 16 for c in range(4)]  # sampling.py:72
        at_most_11 = [total_17[c % 16] <= shifted_24[c // 16] for c in range(64)]  # sampling.py:195
        as_i32_9 = [Boolean(at_most_11[c]).to(Int32) for c in range(64)]  # sampling.py:195
        chosen_11 = [select(exists_2[c // 16], as_i32_9[c], Int32(0)) for c in range(64)]  # sampling.py:194
        s_7 = [s_6[c] + chosen_11[c] for c in range(64)]  # sampling.py:194
        s_6 = tuple(s_7)  # sampling.py:194
    sum_w_lane_7 = sum_over_w_lane(s_6, thread, (board_8,))  # sampling.py:196
    at_most_11 = [top_k_2 <= sum_w_lane_7[c] for c in range(16)]  # sampling.py:196
    chosen_11 = [select(at_most_11[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:129
    max_j_piece_7 = max_over_j_piece(chosen_11)  # sampling.py:129
    shifted_23 = max_j_piece_7 << 4  # sampling.py:145
    total_18 = shifted_23 + chosen_10  # sampling.py:145
    shifted_24 = shifted_21 << 4  # sampling.py:145
    chosen_12 = select(differs_3, total_18, shifted_24)  # sampling.py:145
    total_19 = [j[c] + chosen_12 for c in range(16)]  # sampling.py:139
    differs_4 = smaller_2 != shifted_4  # sampling.py:143
    both_8 = both_2 & differs_4  # sampling.py:194
    steps_4 = select(both_8, Int32(149), Int32(0))  # sampling.py:194
    full_steps_4 = select(both_8, Int32(148), Int32(0))  # sampling.py:194
    s_7 = tuple([Int32(0) for c in range(64)])  # sampling.py:194
    for w_step_9 in cutlass.range(0, full_steps_4, unroll=1):  # sampling.py:194
        product = w_step_9 * 1024  # sampling.py:194
        w = [product + w_lane[c] for c in range(4)]  # sampling.py:194
        scores_2 = [scores[(t, w[c])] for c in range(4)]  # sampling.py:195
        as_f32 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:195
        larger_7 = [fmax(as_f32[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:113
        total_20 = [larger_7[c] + Float32(0.0) for c in range(4)]  # sampling.py:113
        as_i32_8 = [Float32(total_20[c]).bitcast(Int32) for c in range(4)]  # sampling.py:113
        shifted_25 = [as_i32_8[c] >> 31 for c in range(4)]  # sampling.py:114
        both_9 = [shifted_25[c] & 2147483647 for c in range(4)]  # sampling.py:114
        xor_4 = [as_i32_8[c] ^ both_9[c] for c in range(4)]  # sampling.py:114
        shifted_26 = [xor_4[c] >> 16 for c in range(4)]  # sampling.py:72
        at_most_12 = [total_19[c % 16] <= shifted_26[c // 16] for c in range(64)]  # sampling.py:195
        as_i32_9 = [Boolean(at_most_12[c]).to(Int32) for c in range(64)]  # sampling.py:195
        s_8 = [s_7[c] + as_i32_9[c] for c in range(64)]  # sampling.py:194
        s_7 = tuple(s_8)  # sampling.py:194
    s_8 = tuple(s_7)  # sampling.py:194
    for w_step_10 in cutlass.range(full_steps_4, steps_4, unroll=1):  # sampling.py:194
        product = w_step_10 * 1024  # sampling.py:194
        w = [product + w_lane[c] for c in range(4)]  # sampling.py:194
        exists = [w[c] < 151936 for c in range(4)]  # sampling.py:194
        exists_2 = [exists[c] & both_8 for c in range(4)]  # sampling.py:194
        scores_2 = [load_where(exists_2[c], scores, (t, w[c]), BFloat16(0)) for c in range(4)]  # sampling.py:195
        as_f32 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:195
        larger_7 = [fmax(as_f32[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:113
        total_20 = [larger_7[c] + Float32(0.0) for c in range(4)]  # sampling.py:113
        as_i32_8 = [Float32(total_20[c]).bitcast(Int32) for c in range(4)]  # sampling.py:113
        shifted_25 = [as_i32_8[c] >> 31 for c in range(4)]  # sampling.py:114
        both_9 = [shifted_25[c] & 2147483647 for c in range(4)]  # sampling.py:114
        xor_4 = [as_i32_8[c] ^ both_9[c] for c in range(4)]  # sampling.py:114
        shifted_26 = [xor_4[c] >> 16 for c in range(4)]  # sampling.py:72
        at_most_12 = [total_19[c % 16] <= shifted_26[c // 16] for c in range(64)]  # sampling.py:195
        as_i32_9 = [Boolean(at_most_12[c]).to(Int32) for c in range(64)]  # sampling.py:195
        chosen_13 = [select(exists_2[c // 16], as_i32_9[c], Int32(0)) for c in range(64)]  # sampling.py:194
        s_9 = [s_8[c] + chosen_13[c] for c in range(64)]  # sampling.py:194
        s_8 = tuple(s_9)  # sampling.py:194
    sum_w_lane_8 = sum_over_w_lane(s_8, thread, (board_9,))  # sampling.py:196
    at_most_12 = [top_k_2 <= sum_w_lane_8[c] for c in range(16)]  # sampling.py:196
    chosen_13 = [select(at_most_12[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:129
    max_j_piece_8 = max_over_j_piece(chosen_13)  # sampling.py:129
    total_20 = max_j_piece_8 + chosen_12  # sampling.py:145
    chosen_14 = select(differs_4, total_20, smaller_2)  # sampling.py:145
    below_4 = larger_3 < chosen_14  # sampling.py:201
    both_9 = both_2 & below_4  # sampling.py:201
    chosen_15 = select(both_9, chosen_14, larger_3)  # sampling.py:202
    product = mul(max_w_lane, chosen)  # sampling.py:87
    s_9 = tuple([Int32(0) for c in range(4)])  # sampling.py:174
    s_10 = tuple([Int32(0) for c in range(4)])  # sampling.py:174
    s_11 = tuple([Int32(0) for c in range(4)])  # sampling.py:174
    for w_step_11 in cutlass.range(0, 148, unroll=1):  # sampling.py:174
        product_2 = w_step_11 * 1024  # sampling.py:174
        w = [product_2 + w_lane[c] for c in range(4)]  # sampling.py:174
        scores_2 = [scores[(t, w[c])] for c in range(4)]  # sampling.py:175
        as_f32 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:175
        larger_7 = [fmax(as_f32[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:113
        total_21 = [larger_7[c] + Float32(0.0) for c in range(4)]  # sampling.py:113
        as_i32_8 = [Float32(total_21[c]).bitcast(Int32) for c in range(4)]  # sampling.py:113
        shifted_25 = [as_i32_8[c] >> 31 for c in range(4)]  # sampling.py:114
        both_10 = [shifted_25[c] & 2147483647 for c in range(4)]  # sampling.py:114
        xor_4 = [as_i32_8[c] ^ both_10[c] for c in range(4)]  # sampling.py:114
        shifted_26 = [xor_4[c] >> 16 for c in range(4)]  # sampling.py:72
        below_5 = [chosen_15 < shifted_26[c] for c in range(4)]  # sampling.py:177
        as_i32_9 = [Boolean(below_5[c]).to(Int32) for c in range(4)]  # sampling.py:177
        product_3 = [mul(as_f32[c], chosen) for c in range(4)]  # sampling.py:87
        difference_2 = [product_3[c] - product for c in range(4)]  # sampling.py:91
        product_4 = [mul(difference_2[c], Float32(1.4426950216293335)) for c in range(4)]  # sampling.py:91
        power = [exp2(product_4[c]) for c in range(4)]  # sampling.py:91
        equal_2 = [as_f32[c] == max_w_lane for c in range(4)]  # sampling.py:93
        larger_8 = [fmax(power[c], Float32(0.0)) for c in range(4)]  # sampling.py:93
        chosen_16 = [select(equal_2[c], Float32(1.0), larger_8[c]) for c in range(4)]  # sampling.py:93
        total_22 = [chosen_16[c] + Float32(2.0) for c in range(4)]  # sampling.py:95
        as_i32_10 = [Float32(total_22[c]).bitcast(Int32) for c in range(4)]  # sampling.py:95
        difference_3 = [as_i32_10[c] - 1073741824 for c in range(4)]  # sampling.py:95
        chosen_17 = [select(below_5[c], difference_3[c], Int32(0)) for c in range(4)]  # sampling.py:178
        equal_3 = [shifted_26[c] == chosen_15 for c in range(4)]  # sampling.py:179
        as_i32_11 = [Boolean(equal_3[c]).to(Int32) for c in range(4)]  # sampling.py:179
        s_12 = [s_9[c] + as_i32_9[c] for c in range(4)]  # sampling.py:174
        s_13 = [s_10[c] + chosen_17[c] for c in range(4)]  # sampling.py:174
        s_14 = [s_11[c] + as_i32_11[c] for c in range(4)]  # sampling.py:174
        s_9, s_10, s_11 = tuple(s_12), tuple(s_13), tuple(s_14)  # sampling.py:174
    s_12 = tuple(s_9)  # sampling.py:174
    s_13 = tuple(s_10)  # sampling.py:174
    s_14 = tuple(s_11)  # sampling.py:174
    for w_step_12 in cutlass.range(148, 149, unroll=1):  # sampling.py:174
        product_2 = w_step_12 * 1024  # sampling.py:174
        w = [product_2 + w_lane[c] for c in range(4)]  # sampling.py:174
        exists = [w[c] < 151936 for c in range(4)]  # sampling.py:174
        scores_2 = [load_where(exists[c], scores, (t, w[c]), BFloat16(0)) for c in range(4)]  # sampling.py:175
        as_f32 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:175
        larger_7 = [fmax(as_f32[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:113
        total_21 = [larger_7[c] + Float32(0.0) for c in range(4)]  # sampling.py:113
        as_i32_8 = [Float32(total_21[c]).bitcast(Int32) for c in range(4)]  # sampling.py:113
        shifted_25 = [as_i32_8[c] >> 31 for c in range(4)]  # sampling.py:114
        both_10 = [shifted_25[c] & 2147483647 for c in range(4)]  # sampling.py:114
        xor_4 = [as_i32_8[c] ^ both_10[c] for c in range(4)]  # sampling.py:114
        shifted_26 = [xor_4[c] >> 16 for c in range(4)]  # sampling.py:72
        below_5 = [chosen_15 < shifted_26[c] for c in range(4)]  # sampling.py:177
        as_i32_9 = [Boolean(below_5[c]).to(Int32) for c in range(4)]  # sampling.py:177
        product_3 = [mul(as_f32[c], chosen) for c in range(4)]  # sampling.py:87
        difference_2 = [product_3[c] - product for c in range(4)]  # sampling.py:91
        product_4 = [mul(difference_2[c], Float32(1.4426950216293335)) for c in range(4)]  # sampling.py:91
        power = [exp2(product_4[c]) for c in range(4)]  # sampling.py:91
        equal_2 = [as_f32[c] == max_w_lane for c in range(4)]  # sampling.py:93
        larger_8 = [fmax(power[c], Float32(0.0)) for c in range(4)]  # sampling.py:93
        chosen_16 = [select(equal_2[c], Float32(1.0), larger_8[c]) for c in range(4)]  # sampling.py:93
        total_22 = [chosen_16[c] + Float32(2.0) for c in range(4)]  # sampling.py:95
        as_i32_10 = [Float32(total_22[c]).bitcast(Int32) for c in range(4)]  # sampling.py:95
        difference_3 = [as_i32_10[c] - 1073741824 for c in range(4)]  # sampling.py:95
        chosen_17 = [select(below_5[c], difference_3[c], Int32(0)) for c in range(4)]  # sampling.py:178
        equal_3 = [shifted_26[c] == chosen_15 for c in range(4)]  # sampling.py:179
        as_i32_11 = [Boolean(equal_3[c]).to(Int32) for c in range(4)]  # sampling.py:179
        chosen_18 = [select(exists[c], as_i32_9[c], Int32(0)) for c in range(4)]  # sampling.py:174
        chosen_19 = [select(exists[c], chosen_17[c], Int32(0)) for c in range(4)]  # sampling.py:174
        chosen_20 = [select(exists[c], as_i32_11[c], Int32(0)) for c in range(4)]  # sampling.py:174
        s_15 = [s_12[c] + chosen_18[c] for c in range(4)]  # sampling.py:174
        s_16 = [s_13[c] + chosen_19[c] for c in range(4)]  # sampling.py:174
        s_17 = [s_14[c] + chosen_20[c] for c in range(4)]  # sampling.py:174
        s_12, s_13, s_14 = tuple(s_15), tuple(s_16), tuple(s_17)  # sampling.py:174
    sum_w_lane_9 = sum_over_w_lane_2(s_12, thread, (board_10,))  # sampling.py:180
    both_10 = [s_13[c] & 65535 for c in range(4)]  # sampling.py:119
    sum_w_lane_10 = sum_over_w_lane_2(both_10, thread, (board_11,))  # sampling.py:119
    shifted_25 = [s_13[c] >> 16 for c in range(4)]  # sampling.py:119
    sum_w_lane_11 = sum_over_w_lane_2(shifted_25, thread, (board_12,))  # sampling.py:119
    as_i64 = Int32(sum_w_lane_11).to(Int64)  # sampling.py:120
    shifted_26 = as_i64 << 16  # sampling.py:120
    as_i64_2 = Int32(sum_w_lane_10).to(Int64)  # sampling.py:120
    total_21 = shifted_26 + as_i64_2  # sampling.py:120
    sum_w_lane_12 = sum_over_w_lane_2(s_14, thread, (board_13,))  # sampling.py:180
    difference_2 = top_k_2 - sum_w_lane_9  # sampling.py:204
    smaller_3 = cutlass.min(sum_w_lane_12, difference_2)  # sampling.py:204
    chosen_16 = select(both_9, smaller_3, Int32(0))  # sampling.py:204
    below_5 = top_p_2 < Float32(1.0)  # sampling.py:210
    as_i64_3 = Int32(chosen_16).to(Int64)  # sampling.py:212
    shifted_27 = chosen_15 << 16  # sampling.py:76
    below_6 = chosen_15 < 0  # sampling.py:78
    either = shifted_27 | 65535  # sampling.py:78
    chosen_17 = select(below_6, either, shifted_27)  # sampling.py:78
    shifted_28 = chosen_17 >> 31  # sampling.py:79
    both_11 = shifted_28 & 2147483647  # sampling.py:79
    xor_4 = chosen_17 ^ both_11  # sampling.py:79
    as_f32 = Int32(xor_4).bitcast(Float32)  # sampling.py:79
    product_2 = mul(as_f32, chosen)  # sampling.py:87
    difference_3 = product_2 - product  # sampling.py:91
    product_3 = mul(difference_3, Float32(1.4426950216293335))  # sampling.py:91
    power = exp2(product_3)  # sampling.py:91
    equal_2 = as_f32 == max_w_lane  # sampling.py:93
    larger_7 = fmax(power, Float32(0.0))  # sampling.py:93
    chosen_18 = select(equal_2, Float32(1.0), larger_7)  # sampling.py:93
    total_22 = chosen_18 + Float32(2.0)  # sampling.py:95
    as_i32_8 = Float32(total_22).bitcast(Int32)  # sampling.py:95
    difference_4 = as_i32_8 - 1073741824  # sampling.py:95
    as_i64_4 = Int32(difference_4).to(Int64)  # sampling.py:212
    product_4 = as_i64_3 * as_i64_4  # sampling.py:212
    larger_8 = fmax(top_p_2, Float32(0.0))  # sampling.py:213
    smaller_4 = fmin(larger_8, Float32(1.0))  # sampling.py:213
    product_5 = mul(smaller_4, Float32(1048576.0))  # sampling.py:213
    as_i64_5 = Float32(product_5).to(Int64)  # sampling.py:213
    total_23 = total_21 + product_4  # sampling.py:214
    product_6 = total_23 * as_i64_5  # sampling.py:214
    total_24 = product_6 + 1048575  # sampling.py:214
    shifted_29 = total_24 >> 20  # sampling.py:214
    larger_9 = cutlass.max(shifted_29, 1)  # sampling.py:214
    product_7 = [mul(m_2[c], chosen) for c in range(4)]  # sampling.py:87
    difference_5 = [product_7[c] - product for c in range(4)]  # sampling.py:91
    product_8 = [mul(difference_5[c], Float32(1.4426950216293335)) for c in range(4)]  # sampling.py:91
    power_2 = [exp2(product_8[c]) for c in range(4)]  # sampling.py:91
    equal_3 = [m_2[c] == max_w_lane for c in range(4)]  # sampling.py:93
    larger_10 = [fmax(power_2[c], Float32(0.0)) for c in range(4)]  # sampling.py:93
    chosen_19 = [select(equal_3[c], Float32(1.0), larger_10[c]) for c in range(4)]  # sampling.py:93
    total_25 = [chosen_19[c] + Float32(2.0) for c in range(4)]  # sampling.py:95
    as_i32_9 = [Float32(total_25[c]).bitcast(Int32) for c in range(4)]  # sampling.py:95
    difference_6 = [as_i32_9[c] - 1073741824 for c in range(4)]  # sampling.py:95
    chosen_20 = [select(at_most[c], difference_6[c // 16], Int32(0)) for c in range(64)]  # sampling.py:218
    both_12 = [chosen_20[c] & 65535 for c in range(64)]  # sampling.py:119
    sum_w_lane_13 = sum_over_w_lane(both_12, thread, (board_14,))  # sampling.py:119
    shifted_30 = [chosen_20[c] >> 16 for c in range(64)]  # sampling.py:119
    sum_w_lane_14 = sum_over_w_lane(shifted_30, thread, (board_15,))  # sampling.py:119
    as_i64_6 = [Int32(sum_w_lane_14[c]).to(Int64) for c in range(16)]  # sampling.py:120
    shifted_31 = [as_i64_6[c] << 16 for c in range(16)]  # sampling.py:120
    as_i64_7 = [Int32(sum_w_lane_13[c]).to(Int64) for c in range(16)]  # sampling.py:120
    total_26 = [shifted_31[c] + as_i64_7[c] for c in range(16)]  # sampling.py:120
    at_most_13 = [larger_9 <= total_26[c] for c in range(16)]  # sampling.py:218
    chosen_21 = [select(at_most_13[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:129
    max_j_piece_9 = max_over_j_piece(chosen_21)  # sampling.py:129
    shifted_32 = max_j_piece_9 << 12  # sampling.py:141
    total_27 = shifted_32 + -32768  # sampling.py:141
    total_28 = [shifted_9[c] + total_27 for c in range(16)]  # sampling.py:139
    at_most_14 = [total_28[c % 16] <= shifted_6[c // 16] for c in range(64)]  # sampling.py:218
    chosen_22 = [select(at_most_14[c], difference_6[c // 16], Int32(0)) for c in range(64)]  # sampling.py:218
    both_13 = [chosen_22[c] & 65535 for c in range(64)]  # sampling.py:119
    sum_w_lane_15 = sum_over_w_lane(both_13, thread, (board_16,))  # sampling.py:119
    shifted_33 = [chosen_22[c] >> 16 for c in range(64)]  # sampling.py:119
    sum_w_lane_16 = sum_over_w_lane(shifted_33, thread, (board_17,))  # sampling.py:119
    as_i64_8 = [Int32(sum_w_lane_16[c]).to(Int64) for c in range(16)]  # sampling.py:120
    shifted_34 = [as_i64_8[c] << 16 for c in range(16)]  # sampling.py:120
    as_i64_9 = [Int32(sum_w_lane_15[c]).to(Int64) for c in range(16)]  # sampling.py:120
    total_29 = [shifted_34[c] + as_i64_9[c] for c in range(16)]  # sampling.py:120
    at_most_15 = [larger_9 <= total_29[c] for c in range(16)]  # sampling.py:218
    chosen_23 = [select(at_most_15[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:129
    max_j_piece_10 = max_over_j_piece(chosen_23)  # sampling.py:129
    shifted_35 = max_j_piece_10 << 8  # sampling.py:141
    total_30 = shifted_35 + total_27  # sampling.py:141
    total_31 = [shifted_11[c] + total_30 for c in range(16)]  # sampling.py:139
    at_most_16 = [total_31[c % 16] <= shifted_6[c // 16] for c in range(64)]  # sampling.py:218
    chosen_24 = [select(at_most_16[c], difference_6[c // 16], Int32(0)) for c in range(64)]  # sampling.py:218
    both_14 = [chosen_24[c] & 65535 for c in range(64)]  # sampling.py:119
    sum_w_lane_17 = sum_over_w_lane(both_14, thread, (board_18,))  # sampling.py:119
    shifted_36 = [chosen_24[c] >> 16 for c in range(64)]  # sampling.py:119
    sum_w_lane_18 = sum_over_w_lane(shifted_36, thread, (board_19,))  # sampling.py:119
    as_i64_10 = [Int32(sum_w_lane_18[c]).to(Int64) for c in range(16)]  # sampling.py:120
    shifted_37 = [as_i64_10[c] << 16 for c in range(16)]  # sampling.py:120
    as_i64_11 = [Int32(sum_w_lane_17[c]).to(Int64) for c in range(16)]  # sampling.py:120
    total_32 = [shifted_37[c] + as_i64_11[c] for c in range(16)]  # sampling.py:120
    at_most_17 = [larger_9 <= total_32[c] for c in range(16)]  # sampling.py:218
    chosen_25 = [select(at_most_17[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:129
    max_j_piece_11 = max_over_j_piece(chosen_25)  # sampling.py:129
    shifted_38 = max_j_piece_11 << 4  # sampling.py:141
    total_33 = shifted_38 + total_30  # sampling.py:141
    total_34 = [j[c] + total_33 for c in range(16)]  # sampling.py:139
    at_most_18 = [total_34[c % 16] <= shifted_6[c // 16] for c in range(64)]  # sampling.py:218
    chosen_26 = [select(at_most_18[c], difference_6[c // 16], Int32(0)) for c in range(64)]  # sampling.py:218
    both_15 = [chosen_26[c] & 65535 for c in range(64)]  # sampling.py:119
    sum_w_lane_19 = sum_over_w_lane(both_15, thread, (board_20,))  # sampling.py:119
    shifted_39 = [chosen_26[c] >> 16 for c in range(64)]  # sampling.py:119
    sum_w_lane_20 = sum_over_w_lane(shifted_39, thread, (board_21,))  # sampling.py:119
    as_i64_12 = [Int32(sum_w_lane_20[c]).to(Int64) for c in range(16)]  # sampling.py:120
    shifted_40 = [as_i64_12[c] << 16 for c in range(16)]  # sampling.py:120
    as_i64_13 = [Int32(sum_w_lane_19[c]).to(Int64) for c in range(16)]  # sampling.py:120
    total_35 = [shifted_40[c] + as_i64_13[c] for c in range(16)]  # sampling.py:120
    at_most_19 = [larger_9 <= total_35[c] for c in range(16)]  # sampling.py:218
    chosen_27 = [select(at_most_19[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:129
    max_j_piece_12 = max_over_j_piece(chosen_27)  # sampling.py:129
    total_36 = max_j_piece_12 + total_33  # sampling.py:141
    larger_11 = cutlass.max(total_36, chosen_15)  # sampling.py:227
    smaller_5 = cutlass.min(larger_11, shifted_4)  # sampling.py:227
    shifted_41 = smaller_5 >> 12  # sampling.py:143
    differs_5 = shifted_41 != shifted_14  # sampling.py:143
    both_16 = below_5 & differs_5  # sampling.py:222
    steps_5 = select(both_16, Int32(149), Int32(0))  # sampling.py:222
    full_steps_5 = select(both_16, Int32(148), Int32(0))  # sampling.py:222
    s_15 = tuple([Int32(0) for c in range(64)])  # sampling.py:222
    for w_step_13 in cutlass.range(0, full_steps_5, unroll=1):  # sampling.py:222
        product_9 = w_step_13 * 1024  # sampling.py:222
        w = [product_9 + w_lane[c] for c in range(4)]  # sampling.py:222
        scores_2 = [scores[(t, w[c])] for c in range(4)]  # sampling.py:223
        as_f32_2 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:223
        larger_12 = [fmax(as_f32_2[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:113
        total_37 = [larger_12[c] + Float32(0.0) for c in range(4)]  # sampling.py:113
        as_i32_10 = [Float32(total_37[c]).bitcast(Int32) for c in range(4)]  # sampling.py:113
        shifted_42 = [as_i32_10[c] >> 31 for c in range(4)]  # sampling.py:114
        both_17 = [shifted_42[c] & 2147483647 for c in range(4)]  # sampling.py:114
        xor_5 = [as_i32_10[c] ^ both_17[c] for c in range(4)]  # sampling.py:114
        shifted_43 = [xor_5[c] >> 16 for c in range(4)]  # sampling.py:72
        at_most_20 = [total_6[c % 16] <= shifted_43[c // 16] for c in range(64)]  # sampling.py:224
        product_10 = [mul(as_f32_2[c], chosen) for c in range(4)]  # sampling.py:87
        difference_7 = [product_10[c] - product for c in range(4)]  # sampling.py:91
        product_11 = [mul(difference_7[c], Float32(1.4426950216293335)) for c in range(4)]  # sampling.py:91
        power_3 = [exp2(product_11[c]) for c in range(4)]  # sampling.py:91
        equal_4 = [as_f32_2[c] == max_w_lane for c in range(4)]  # sampling.py:93
        larger_13 = [fmax(power_3[c], Float32(0.0)) for c in range(4)]  # sampling.py:93
        chosen_28 = [select(equal_4[c], Float32(1.0), larger_13[c]) for c in range(4)]  # sampling.py:93
        total_38 = [chosen_28[c] + Float32(2.0) for c in range(4)]  # sampling.py:95
        as_i32_11 = [Float32(total_38[c]).bitcast(Int32) for c in range(4)]  # sampling.py:95
        difference_8 = [as_i32_11[c] - 1073741824 for c in range(4)]  # sampling.py:95
        chosen_29 = [select(at_most_20[c], difference_8[c // 16], Int32(0)) for c in range(64)]  # sampling.py:224
        s_16 = [s_15[c] + chosen_29[c] for c in range(64)]  # sampling.py:222
        s_15 = tuple(s_16)  # sampling.py:222
    s_16 = tuple(s_15)  # sampling.py:222
    for w_step_14 in cutlass.range(full_steps_5, steps_5, unroll=1):  # sampling.py:222
        product_9 = w_step_14 * 1024  # sampling.py:222
        w = [product_9 + w_lane[c] for c in range(4)]  # sampling.py:222
        exists = [w[c] < 151936 for c in range(4)]  # sampling.py:222
        exists_2 = [exists[c] & both_16 for c in range(4)]  # sampling.py:222
        scores_2 = [load_where(exists_2[c], scores, (t, w[c]), BFloat16(0)) for c in range(4)]  # sampling.py:223
        as_f32_2 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:223
        larger_12 = [fmax(as_f32_2[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:113
        total_37 = [larger_12[c] + Float32(0.0) for c in range(4)]  # sampling.py:113
        as_i32_10 = [Float32(total_37[c]).bitcast(Int32) for c in range(4)]  # sampling.py:113
        shifted_42 = [as_i32_10[c] >> 31 for c in range(4)]  # sampling.py:114
        both_17 = [shifted_42[c] & 2147483647 for c in range(4)]  # sampling.py:114
        xor_5 = [as_i32_10[c] ^ both_17[c] for c in range(4)]  # sampling.py:114
        shifted_43 = [xor_5[c] >> 16 for c in range(4)]  # sampling.py:72
        at_most_20 = [total_6[c % 16] <= shifted_43[c // 16] for c in range(64)]  # sampling.py:224
        product_10 = [mul(as_f32_2[c], chosen) for c in range(4)]  # sampling.py:87
        difference_7 = [product_10[c] - product for c in range(4)]  # sampling.py:91
        product_11 = [mul(difference_7[c], Float32(1.4426950216293335)) for c in range(4)]  # sampling.py:91
        power_3 = [exp2(product_11[c]) for c in range(4)]  # sampling.py:91
        equal_4 = [as_f32_2[c] == max_w_lane for c in range(4)]  # sampling.py:93
        larger_13 = [fmax(power_3[c], Float32(0.0)) for c in range(4)]  # sampling.py:93
        chosen_28 = [select(equal_4[c], Float32(1.0), larger_13[c]) for c in range(4)]  # sampling.py:93
        total_38 = [chosen_28[c] + Float32(2.0) for c in range(4)]  # sampling.py:95
        as_i32_11 = [Float32(total_38[c]).bitcast(Int32) for c in range(4)]  # sampling.py:95
        difference_8 = [as_i32_11[c] - 1073741824 for c in range(4)]  # sampling.py:95
        chosen_29 = [select(at_most_20[c], difference_8[c // 16], Int32(0)) for c in range(64)]  # sampling.py:224
        chosen_30 = [select(exists_2[c // 16], chosen_29[c], Int32(0)) for c in range(64)]  # sampling.py:222
        s_17 = [s_16[c] + chosen_30[c] for c in range(64)]  # sampling.py:222
        s_16 = tuple(s_17)  # sampling.py:222
    both_17 = [s_16[c] & 65535 for c in range(64)]  # sampling.py:119
    sum_w_lane_21 = sum_over_w_lane(both_17, thread, (board_22,))  # sampling.py:119
    shifted_42 = [s_16[c] >> 16 for c in range(64)]  # sampling.py:119
    sum_w_lane_22 = sum_over_w_lane(shifted_42, thread, (board_23,))  # sampling.py:119
    as_i64_14 = [Int32(sum_w_lane_22[c]).to(Int64) for c in range(16)]  # sampling.py:120
    shifted_43 = [as_i64_14[c] << 16 for c in range(16)]  # sampling.py:120
    as_i64_15 = [Int32(sum_w_lane_21[c]).to(Int64) for c in range(16)]  # sampling.py:120
    total_37 = [shifted_43[c] + as_i64_15[c] for c in range(16)]  # sampling.py:120
    at_most_20 = [larger_9 <= total_37[c] for c in range(16)]  # sampling.py:225
    chosen_28 = [select(at_most_20[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:129
    max_j_piece_13 = max_over_j_piece(chosen_28)  # sampling.py:129
    shifted_44 = max_j_piece_13 << 12  # sampling.py:145
    total_38 = shifted_44 + -32768  # sampling.py:145
    shifted_45 = shifted_41 << 12  # sampling.py:145
    chosen_29 = select(differs_5, total_38, shifted_45)  # sampling.py:145
    total_39 = [shifted_9[c] + chosen_29 for c in range(16)]  # sampling.py:139
    shifted_46 = smaller_5 >> 8  # sampling.py:143
    differs_6 = shifted_46 != shifted_18  # sampling.py:143
    both_18 = below_5 & differs_6  # sampling.py:222
    steps_6 = select(both_18, Int32(149), Int32(0))  # sampling.py:222
    full_steps_6 = select(both_18, Int32(148), Int32(0))  # sampling.py:222
    s_17 = tuple([Int32(0) for c in range(64)])  # sampling.py:222
    for w_step_15 in cutlass.range(0, full_steps_6, unroll=1):  # sampling.py:222
        product_9 = w_step_15 * 1024  # sampling.py:222
        w = [product_9 + w_lane[c] for c in range(4)]  # sampling.py:222
        scores_2 = [scores[(t, w[c])] for c in range(4)]  # sampling.py:223
        as_f32_2 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:223
        larger_12 = [fmax(as_f32_2[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:113
        total_40 = [larger_12[c] + Float32(0.0) for c in range(4)]  # sampling.py:113
        as_i32_10 = [Float32(total_40[c]).bitcast(Int32) for c in range(4)]  # sampling.py:113
        shifted_47 = [as_i32_10[c] >> 31 for c in range(4)]  # sampling.py:114
        both_19 = [shifted_47[c] & 2147483647 for c in range(4)]  # sampling.py:114
        xor_5 = [as_i32_10[c] ^ both_19[c] for c in range(4)]  # sampling.py:114
        shifted_48 = [xor_5[c] >> 16 for c in range(4)]  # sampling.py:72
        at_most_21 = [total_39[c % 16] <= shifted_48[c // 16] for c in range(64)]  # sampling.py:224
        product_10 = [mul(as_f32_2[c], chosen) for c in range(4)]  # sampling.py:87
        difference_7 = [product_10[c] - product for c in range(4)]  # sampling.py:91
        product_11 = [mul(difference_7[c], Float32(1.4426950216293335)) for c in range(4)]  # sampling.py:91
        power_3 = [exp2(product_11[c]) for c in range(4)]  # sampling.py:91
        equal_4 = [as_f32_2[c] == max_w_lane for c in range(4)]  # sampling.py:93
        larger_13 = [fmax(power_3[c], Float32(0.0)) for c in range(4)]  # sampling.py:93
        chosen_30 = [select(equal_4[c], Float32(1.0), larger_13[c]) for c in range(4)]  # sampling.py:93
        total_41 = [chosen_30[c] + Float32(2.0) for c in range(4)]  # sampling.py:95
        as_i32_11 = [Float32(total_41[c]).bitcast(Int32) for c in range(4)]  # sampling.py:95
        difference_8 = [as_i32_11[c] - 1073741824 for c in range(4)]  # sampling.py:95
        chosen_31 = [select(at_most_21[c], difference_8[c // 16], Int32(0)) for c in range(64)]  # sampling.py:224
        s_18 = [s_17[c] + chosen_31[c] for c in range(64)]  # sampling.py:222
        s_17 = tuple(s_18)  # sampling.py:222
    s_18 = tuple(s_17)  # sampling.py:222
    for w_step_16 in cutlass.range(full_steps_6, steps_6, unroll=1):  # sampling.py:222
        product_9 = w_step_16 * 1024  # sampling.py:222
        w = [product_9 + w_lane[c] for c in range(4)]  # sampling.py:222
        exists = [w[c] < 151936 for c in range(4)]  # sampling.py:222
        exists_2 = [exists[c] & both_18 for c in range(4)]  # sampling.py:222
        scores_2 = [load_where(exists_2[c], scores, (t, w[c]), BFloat16(0)) for c in range(4)]  # sampling.py:223
        as_f32_2 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:223
        larger_12 = [fmax(as_f32_2[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:113
        total_40 = [larger_12[c] + Float32(0.0) for c in range(4)]  # sampling.py:113
        as_i32_10 = [Float32(total_40[c]).bitcast(Int32) for c in range(4)]  # sampling.py:113
        shifted_47 = [as_i32_10[c] >> 31 for c in range(4)]  # sampling.py:114
        both_19 = [shifted_47[c] & 2147483647 for c in range(4)]  # sampling.py:114
        xor_5 = [as_i32_10[c] ^ both_19[c] for c in range(4)]  # sampling.py:114
        shifted_48 = [xor_5[c] >> 16 for c in range(4)]  # sampling.py:72
        at_most_21 = [total_39[c % 16] <= shifted_48[c // 16] for c in range(64)]  # sampling.py:224
        product_10 = [mul(as_f32_2[c], chosen) for c in range(4)]  # sampling.py:87
        difference_7 = [product_10[c] - product for c in range(4)]  # sampling.py:91
        product_11 = [mul(difference_7[c], Float32(1.4426950216293335)) for c in range(4)]  # sampling.py:91
        power_3 = [exp2(product_11[c]) for c in range(4)]  # sampling.py:91
        equal_4 = [as_f32_2[c] == max_w_lane for c in range(4)]  # sampling.py:93
        larger_13 = [fmax(power_3[c], Float32(0.0)) for c in range(4)]  # sampling.py:93
        chosen_30 = [select(equal_4[c], Float32(1.0), larger_13[c]) for c in range(4)]  # sampling.py:93
        total_41 = [chosen_30[c] + Float32(2.0) for c in range(4)]  # sampling.py:95
        as_i32_11 = [Float32(total_41[c]).bitcast(Int32) for c in range(4)]  # sampling.py:95
        difference_8 = [as_i32_11[c] - 1073741824 for c in range(4)]  # sampling.py:95
        chosen_31 = [select(at_most_21[c], difference_8[c // 16], Int32(0)) for c in range(64)]  # sampling.py:224
        chosen_32 = [select(exists_2[c // 16], chosen_31[c], Int32(0)) for c in range(64)]  # sampling.py:222
        s_19 = [s_18[c] + chosen_32[c] for c in range(64)]  # sampling.py:222
        s_18 = tuple(s_19)  # sampling.py:222
    both_19 = [s_18[c] & 65535 for c in range(64)]  # sampling.py:119
    sum_w_lane_23 = sum_over_w_lane(both_19, thread, (board_24,))  # sampling.py:119
    shifted_47 = [s_18[c] >> 16 for c in range(64)]  # sampling.py:119
    sum_w_lane_24 = sum_over_w_lane(shifted_47, thread, (board_25,))  # sampling.py:119
    as_i64_16 = [Int32(sum_w_lane_24[c]).to(Int64) for c in range(16)]  # sampling.py:120
    shifted_48 = [as_i64_16[c] << 16 for c in range(16)]  # sampling.py:120
    as_i64_17 = [Int32(sum_w_lane_23[c]).to(Int64) for c in range(16)]  # sampling.py:120
    total_40 = [shifted_48[c] + as_i64_17[c] for c in range(16)]  # sampling.py:120
    at_most_21 = [larger_9 <= total_40[c] for c in range(16)]  # sampling.py:225
    chosen_30 = [select(at_most_21[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:129
    max_j_piece_14 = max_over_j_piece(chosen_30)  # sampling.py:129
    shifted_49 = max_j_piece_14 << 8  # sampling.py:145
    total_41 = shifted_49 + chosen_29  # sampling.py:145
    shifted_50 = shifted_46 << 8  # sampling.py:145
    chosen_31 = select(differs_6, total_41, shifted_50)  # sampling.py:145
    total_42 = [shifted_11[c] + chosen_31 for c in range(16)]  # sampling.py:139
    shifted_51 = smaller_5 >> 4  # sampling.py:143
    differs_7 = shifted_51 != shifted_22  # sampling.py:143
    both_20 = below_5 & differs_7  # sampling.py:222
    steps_7 = select(both_20, Int32(149), Int32(0))  # sampling.py:222
    full_steps_7 = select(both_20, Int32(148), Int32(0))  # sampling.py:222
    s_19 = tuple([Int32(0) for c in range(64)])  # sampling.py:222
    for w_step_17 in cutlass.range(0, full_steps_7, unroll=1):  # sampling.py:222
        product_9 = w_step_17 * 1024  # sampling.py:222
        w = [product_9 + w_lane[c] for c in range(4)]  # sampling.py:222
        scores_2 = [scores[(t, w[c])] for c in range(4)]  # sampling.py:223
        as_f32_2 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:223
        larger_12 = [fmax(as_f32_2[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:113
        total_43 = [larger_12[c] + Float32(0.0) for c in range(4)]  # sampling.py:113
        as_i32_10 = [Float32(total_43[c]).bitcast(Int32) for c in range(4)]  # sampling.py:113
        shifted_52 = [as_i32_10[c] >> 31 for c in range(4)]  # sampling.py:114
        both_21 = [shifted_52[c] & 2147483647 for c in range(4)]  # sampling.py:114
        xor_5 = [as_i32_10[c] ^ both_21[c] for c in range(4)]  # sampling.py:114
        shifted_53 = [xor_5[c] >> 16 for c in range(4)]  # sampling.py:72
        at_most_22 = [total_42[c % 16] <= shifted_53[c // 16] for c in range(64)]  # sampling.py:224
        product_10 = [mul(as_f32_2[c], chosen) for c in range(4)]  # sampling.py:87
        difference_7 = [product_10[c] - product for c in range(4)]  # sampling.py:91
        product_11 = [mul(difference_7[c], Float32(1.4426950216293335)) for c in range(4)]  # sampling.py:91
        power_3 = [exp2(product_11[c]) for c in range(4)]  # sampling.py:91
        equal_4 = [as_f32_2[c] == max_w_lane for c in range(4)]  # sampling.py:93
        larger_13 = [fmax(power_3[c], Float32(0.0)) for c in range(4)]  # sampling.py:93
        chosen_32 = [select(equal_4[c], Float32(1.0), larger_13[c]) for c in range(4)]  # sampling.py:93
        total_44 = [chosen_32[c] + Float32(2.0) for c in range(4)]  # sampling.py:95
        as_i32_11 = [Float32(total_44[c]).bitcast(Int32) for c in range(4)]  # sampling.py:95
        difference_8 = [as_i32_11[c] - 1073741824 for c in range(4)]  # sampling.py:95
        chosen_33 = [select(at_most_22[c], difference_8[c // 16], Int32(0)) for c in range(64)]  # sampling.py:224
        s_20 = [s_19[c] + chosen_33[c] for c in range(64)]  # sampling.py:222
        s_19 = tuple(s_20)  # sampling.py:222
    s_20 = tuple(s_19)  # sampling.py:222
    for w_step_18 in cutlass.range(full_steps_7, steps_7, unroll=1):  # sampling.py:222
        product_9 = w_step_18 * 1024  # sampling.py:222
        w = [product_9 + w_lane[c] for c in range(4)]  # sampling.py:222
        exists = [w[c] < 151936 for c in range(4)]  # sampling.py:222
        exists_2 = [exists[c] & both_20 for c in range(4)]  # sampling.py:222
        scores_2 = [load_where(exists_2[c], scores, (t, w[c]), BFloat16(0)) for c in range(4)]  # sampling.py:223
        as_f32_2 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:223
        larger_12 = [fmax(as_f32_2[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:113
        total_43 = [larger_12[c] + Float32(0.0) for c in range(4)]  # sampling.py:113
        as_i32_10 = [Float32(total_43[c]).bitcast(Int32) for c in range(4)]  # sampling.py:113
        shifted_52 = [as_i32_10[c] >> 31 for c in range(4)]  # sampling.py:114
        both_21 = [shifted_52[c] & 2147483647 for c in range(4)]  # sampling.py:114
        xor_5 = [as_i32_10[c] ^ both_21[c] for c in range(4)]  # sampling.py:114
        shifted_53 = [xor_5[c] >> 16 for c in range(4)]  # sampling.py:72
        at_most_22 = [total_42[c % 16] <= shifted_53[c // 16] for c in range(64)]  # sampling.py:224
        product_10 = [mul(as_f32_2[c], chosen) for c in range(4)]  # sampling.py:87
        difference_7 = [product_10[c] - product for c in range(4)]  # sampling.py:91
        product_11 = [mul(difference_7[c], Float32(1.4426950216293335)) for c in range(4)]  # sampling.py:91
        power_3 = [exp2(product_11[c]) for c in range(4)]  # sampling.py:91
        equal_4 = [as_f32_2[c] == max_w_lane for c in range(4)]  # sampling.py:93
        larger_13 = [fmax(power_3[c], Float32(0.0)) for c in range(4)]  # sampling.py:93
        chosen_32 = [select(equal_4[c], Float32(1.0), larger_13[c]) for c in range(4)]  # sampling.py:93
        total_44 = [chosen_32[c] + Float32(2.0) for c in range(4)]  # sampling.py:95
        as_i32_11 = [Float32(total_44[c]).bitcast(Int32) for c in range(4)]  # sampling.py:95
        difference_8 = [as_i32_11[c] - 1073741824 for c in range(4)]  # sampling.py:95
        chosen_33 = [select(at_most_22[c], difference_8[c // 16], Int32(0)) for c in range(64)]  # sampling.py:224
        chosen_34 = [select(exists_2[c // 16], chosen_33[c], Int32(0)) for c in range(64)]  # sampling.py:222
        s_21 = [s_20[c] + chosen_34[c] for c in range(64)]  # sampling.py:222
        s_20 = tuple(s_21)  # sampling.py:222
    both_21 = [s_20[c] & 65535 for c in range(64)]  # sampling.py:119
    sum_w_lane_25 = sum_over_w_lane(both_21, thread, (board_26,))  # sampling.py:119
    shifted_52 = [s_20[c] >> 16 for c in range(64)]  # sampling.py:119
    sum_w_lane_26 = sum_over_w_lane(shifted_52, thread, (board_27,))  # sampling.py:119
    as_i64_18 = [Int32(sum_w_lane_26[c]).to(Int64) for c in range(16)]  # sampling.py:120
    shifted_53 = [as_i64_18[c] << 16 for c in range(16)]  # sampling.py:120
    as_i64_19 = [Int32(sum_w_lane_25[c]).to(Int64) for c in range(16)]  # sampling.py:120
    total_43 = [shifted_53[c] + as_i64_19[c] for c in range(16)]  # sampling.py:120
    at_most_22 = [larger_9 <= total_43[c] for c in range(16)]  # sampling.py:225
    chosen_32 = [select(at_most_22[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:129
    max_j_piece_15 = max_over_j_piece(chosen_32)  # sampling.py:129
    shifted_54 = max_j_piece_15 << 4  # sampling.py:145
    total_44 = shifted_54 + chosen_31  # sampling.py:145
    shifted_55 = shifted_51 << 4  # sampling.py:145
    chosen_33 = select(differs_7, total_44, shifted_55)  # sampling.py:145
    total_45 = [j[c] + chosen_33 for c in range(16)]  # sampling.py:139
    differs_8 = smaller_5 != shifted_4  # sampling.py:143
    both_22 = below_5 & differs_8  # sampling.py:222
    steps_8 = select(both_22, Int32(149), Int32(0))  # sampling.py:222
    full_steps_8 = select(both_22, Int32(148), Int32(0))  # sampling.py:222
    s_21 = tuple([Int32(0) for c in range(64)])  # sampling.py:222
    for w_step_19 in cutlass.range(0, full_steps_8, unroll=1):  # sampling.py:222
        product_9 = w_step_19 * 1024  # sampling.py:222
        w = [product_9 + w_lane[c] for c in range(4)]  # sampling.py:222
        scores_2 = [scores[(t, w[c])] for c in range(4)]  # sampling.py:223
        as_f32_2 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:223
        larger_12 = [fmax(as_f32_2[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:113
        total_46 = [larger_12[c] + Float32(0.0) for c in range(4)]  # sampling.py:113
        as_i32_10 = [Float32(total_46[c]).bitcast(Int32) for c in range(4)]  # sampling.py:113
        shifted_56 = [as_i32_10[c] >> 31 for c in range(4)]  # sampling.py:114
        both_23 = [shifted_56[c] & 2147483647 for c in range(4)]  # sampling.py:114
        xor_5 = [as_i32_10[c] ^ both_23[c] for c in range(4)]  # sampling.py:114
        shifted_57 = [xor_5[c] >> 16 for c in range(4)]  # sampling.py:72
        at_most_23 = [total_45[c % 16] <= shifted_57[c // 16] for c in range(64)]  # sampling.py:224
        product_10 = [mul(as_f32_2[c], chosen) for c in range(4)]  # sampling.py:87
        difference_7 = [product_10[c] - product for c in range(4)]  # sampling.py:91
        product_11 = [mul(difference_7[c], Float32(1.4426950216293335)) for c in range(4)]  # sampling.py:91
        power_3 = [exp2(product_11[c]) for c in range(4)]  # sampling.py:91
        equal_4 = [as_f32_2[c] == max_w_lane for c in range(4)]  # sampling.py:93
        larger_13 = [fmax(power_3[c], Float32(0.0)) for c in range(4)]  # sampling.py:93
        chosen_34 = [select(equal_4[c], Float32(1.0), larger_13[c]) for c in range(4)]  # sampling.py:93
        total_47 = [chosen_34[c] + Float32(2.0) for c in range(4)]  # sampling.py:95
        as_i32_11 = [Float32(total_47[c]).bitcast(Int32) for c in range(4)]  # sampling.py:95
        difference_8 = [as_i32_11[c] - 1073741824 for c in range(4)]  # sampling.py:95
        chosen_35 = [select(at_most_23[c], difference_8[c // 16], Int32(0)) for c in range(64)]  # sampling.py:224
        s_22 = [s_21[c] + chosen_35[c] for c in range(64)]  # sampling.py:222
        s_21 = tuple(s_22)  # sampling.py:222
    s_22 = tuple(s_21)  # sampling.py:222
    for w_step_20 in cutlass.range(full_steps_8, steps_8, unroll=1):  # sampling.py:222
        product_9 = w_step_20 * 1024  # sampling.py:222
        w = [product_9 + w_lane[c] for c in range(4)]  # sampling.py:222
        exists = [w[c] < 151936 for c in range(4)]  # sampling.py:222
        exists_2 = [exists[c] & both_22 for c in range(4)]  # sampling.py:222
        scores_2 = [load_where(exists_2[c], scores, (t, w[c]), BFloat16(0)) for c in range(4)]  # sampling.py:223
        as_f32_2 = [BFloat16(scores_2[c]).to(Float32) for c in range(4)]  # sampling.py:223
        larger_12 = [fmax(as_f32_2[c], Float32(float("-inf"))) for c in range(4)]  # sampling.py:113
        total_46 = [larger_12[c] + Float32(0.0) for c in range(4)]  # sampling.py:113
        as_i32_10 = [Float32(total_46[c]).bitcast(Int32) for c in range(4)]  # sampling.py:113
        shifted_56 = [as_i32_10[c] >> 31 for c in range(4)]  # sampling.py:114
        both_23 = [shifted_56[c] & 2147483647 for c in range(4)]  # sampling.py:114
        xor_5 = [as_i32_10[c] ^ both_23[c] for c in range(4)]  # sampling.py:114
        shifted_57 = [xor_5[c] >> 16 for c in range(4)]  # sampling.py:72
        at_most_23 = [total_45[c % 16] <= shifted_57[c // 16] for c in range(64)]  # sampling.py:224
        product_10 = [mul(as_f32_2[c], chosen) for c in range(4)]  # sampling.py:87
        difference_7 = [product_10[c] - product for c in range(4)]  # sampling.py:91
        product_11 = [mul(difference_7[c], Float32(1.4426950216293335)) for c in range(4)]  # sampling.py:91
        power_3 = [exp2(product_11[c]) for c in range(4)]  # sampling.py:91
        equal_4 = [as_f32_2[c] == max_w_lane for c in range(4)]  # sampling.py:93
        larger_13 = [fmax(power_3[c], Float32(0.0)) for c in range(4)]  # sampling.py:93
        chosen_34 = [select(equal_4[c], Float32(1.0), larger_13[c]) for c in range(4)]  # sampling.py:93
        total_47 = [chosen_34[c] + Float32(2.0) for c in range(4)]  # sampling.py:95
        as_i32_11 = [Float32(total_47[c]).bitcast(Int32) for c in range(4)]  # sampling.py:95
        difference_8 = [as_i32_11[c] - 1073741824 for c in range(4)]  # sampling.py:95
        chosen_35 = [select(at_most_23[c], difference_8[c // 16], Int32(0)) for c in range(64)]  # sampling.py:224
        chosen_36 = [select(exists_2[c // 16], chosen_35[c], Int32(0)) for c in range(64)]  # sampling.py:222
        s_23 = [s_22[c] + chosen_36[c] for c in range(64)]  # sampling.py:222
        s_22 = tuple(s_23)  # sampling.py:222
    both_23 = [s_22[c] & 65535 for c in range(64)]  # sampling.py:119
    sum_w_lane_27 = sum_over_w_lane(both_23, thread, (board_28,))  # sampling.py:119
    shifted_56 = [s_22[c] >> 16 for c in range(64)]  # sampling.py:119
    sum_w_lane_28 = sum_over_w_lane(shifted_56, thread, (board_29,))  # sampling.py:119
    as_i64_20 = [Int32(sum_w_lane_28[c]).to(Int64) for c in range(16)]  # sampling.py:120
    shifted_57 = [as_i64_20[c] << 16 for c in range(16)]  # sampling.py:120
    as_i64_21 = [Int32(sum_w_lane_27[c]).to(Int64) for c in range(16)]  # sampling.py:120
    total_46 = [shifted_57[c] + as_i64_21[c] for c in range(16)]  # sampling.py:120
    at_most_23 = [larger_9 <= total_46[c] for c in range(16)]  # sampling.py:225
    chosen_34 = [select(at_most_23[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:129
    max_j_piece_16 = max_over_j_piece(chosen_34)  # sampling.py:129
    total_47 = max_j_piece_16 + chosen_33  # sampling.py:145
    chosen_35 = select(differs_8, total_47, smaller_5)  # sampling.py:145
    below_7 = chosen_15 < chosen_35  # sampling.py:229
    both_24 = below_5 & below_7  # sampling.py:229
    chosen_36 = select(both_24, Int32(2147483647), chosen_16)  # sampling.py:230
    chosen_37 = select(both_24, chosen_35, chosen_15)  # sampling.py:231
    chosen_38 = select(below_5, larger_9, Int64(4611686018427387904))  # sampling.py:231
    chosen_39 = select(equal, Int64(4611686018427387904), chosen_38)  # sampling.py:324
    chosen_40 = select(equal, shifted_4, chosen_37)  # sampling.py:326
    chosen_41 = select(equal, Int32(1), chosen_36)  # sampling.py:326
    store_where(writes, best, t, max_w_lane)  # sampling.py:328
    store_where(writes, goal, t, chosen_39)  # sampling.py:329
    store_where(writes, cut, t, chosen_40)  # sampling.py:330
    store_where(writes, most_ties, t, chosen_41)  # sampling.py:330


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
    inv_temperature_2 = inv_temperature[t]  # sampling.py:312
    request_id_2 = request_id[t]  # sampling.py:248
    position_2 = position[t]  # sampling.py:248
    seed_2 = seed[t]  # sampling.py:248
    equal = inv_temperature_2 == Float32(float("inf"))  # sampling.py:312
    chosen = select(equal, Float32(1.0), inv_temperature_2)  # sampling.py:313
    j = [Int32(c) for c in range(16)]  # sampling.py:139
    shifted = [j[c] << 8 for c in range(16)]  # sampling.py:139
    shifted_2 = [j[c] << 4 for c in range(16)]  # sampling.py:139
    best_2 = best[t]  # sampling.py:328
    goal_2 = goal[t]  # sampling.py:329
    cut_2 = cut[t]  # sampling.py:330
    most_ties_2 = most_ties[t]  # sampling.py:330
    as_u32 = Int64(request_id_2).to(Uint32)  # sampling.py:248
    shifted_3 = request_id_2 >> 32  # sampling.py:248
    as_u32_2 = Int64(shifted_3).to(Uint32)  # sampling.py:248
    as_u32_3 = Int64(position_2).to(Uint32)  # sampling.py:248
    shifted_4 = position_2 >> 32  # sampling.py:248
    as_u32_4 = Int64(shifted_4).to(Uint32)  # sampling.py:248
    as_u32_5 = Int64(seed_2).to(Uint32)  # sampling.py:248
    shifted_5 = seed_2 >> 32  # sampling.py:248
    as_u32_6 = Int64(shifted_5).to(Uint32)  # sampling.py:248
    word0, word1, word2, word3 = philox(Uint32(as_u32), Uint32(as_u32_2), Uint32(as_u32_3), Uint32(as_u32_4), Uint32(as_u32_5), Uint32(as_u32_6))  # sampling.py:249
    shifted_6 = word0 >> 9  # sampling.py:250
    as_i64 = Uint32(shifted_6).to(Int64)  # sampling.py:250
    shifted_7 = as_i64 << 1  # sampling.py:250
    total = shifted_7 + 1  # sampling.py:250
    u = [thread + c * 512 for c in range(2)]  # sampling.py:262
    product = [u[c] * 149 for c in range(2)]  # sampling.py:264
    piece_begin = [cutlass.min(151936, product[c]) for c in range(2)]  # sampling.py:264
    total_2 = [piece_begin[c] + 149 for c in range(2)]  # sampling.py:264
    piece_end = [cutlass.min(151936, total_2[c]) for c in range(2)]  # sampling.py:264
    product_2 = mul(best_2, chosen)  # sampling.py:87
    s = tuple([Int32(0) for c in range(2)])  # sampling.py:264
    s_2 = tuple([Int32(0) for c in range(2)])  # sampling.py:264
    for u_step in cutlass.range(0, 149, unroll=1):  # sampling.py:264
        total_3 = [piece_begin[c] + u_step for c in range(2)]  # sampling.py:264
        exists = [total_3[c] < piece_end[c] for c in range(2)]  # sampling.py:264
        blocks_2 = [load_where(exists[c], blocks, (t, total_3[c]), BFloat16(0)) for c in range(2)]  # sampling.py:265
        as_f32 = [BFloat16(blocks_2[c]).to(Float32) for c in range(2)]  # sampling.py:265
        larger = [fmax(as_f32[c], Float32(float("-inf"))) for c in range(2)]  # sampling.py:113
        total_4 = [larger[c] + Float32(0.0) for c in range(2)]  # sampling.py:113
        as_i32 = [Float32(total_4[c]).bitcast(Int32) for c in range(2)]  # sampling.py:113
        shifted_8 = [as_i32[c] >> 31 for c in range(2)]  # sampling.py:114
        both = [shifted_8[c] & 2147483647 for c in range(2)]  # sampling.py:114
        xor = [as_i32[c] ^ both[c] for c in range(2)]  # sampling.py:114
        shifted_9 = [xor[c] >> 16 for c in range(2)]  # sampling.py:72
        equal_2 = [shifted_9[c] == cut_2 for c in range(2)]  # sampling.py:267
        as_i32_2 = [Boolean(equal_2[c]).to(Int32) for c in range(2)]  # sampling.py:267
        below = [cut_2 < shifted_9[c] for c in range(2)]  # sampling.py:268
        product_3 = [mul(as_f32[c], chosen) for c in range(2)]  # sampling.py:87
        difference = [product_3[c] - product_2 for c in range(2)]  # sampling.py:91
        product_4 = [mul(difference[c], Float32(1.4426950216293335)) for c in range(2)]  # sampling.py:91
        power = [exp2(product_4[c]) for c in range(2)]  # sampling.py:91
        equal_3 = [as_f32[c] == best_2 for c in range(2)]  # sampling.py:93
        larger_2 = [fmax(power[c], Float32(0.0)) for c in range(2)]  # sampling.py:93
        chosen_2 = [select(equal_3[c], Float32(1.0), larger_2[c]) for c in range(2)]  # sampling.py:93
        total_5 = [chosen_2[c] + Float32(2.0) for c in range(2)]  # sampling.py:95
        as_i32_3 = [Float32(total_5[c]).bitcast(Int32) for c in range(2)]  # sampling.py:95
        difference_2 = [as_i32_3[c] - 1073741824 for c in range(2)]  # sampling.py:95
        chosen_3 = [select(below[c], difference_2[c], Int32(0)) for c in range(2)]  # sampling.py:268
        chosen_4 = [select(exists[c], as_i32_2[c], Int32(0)) for c in range(2)]  # sampling.py:264
        chosen_5 = [select(exists[c], chosen_3[c], Int32(0)) for c in range(2)]  # sampling.py:264
        s_3 = [s[c] + chosen_4[c] for c in range(2)]  # sampling.py:264
        s_4 = [s_2[c] + chosen_5[c] for c in range(2)]  # sampling.py:264
        s, s_2 = tuple(s_3), tuple(s_4)  # sampling.py:264
    shifted_8 = cut_2 << 16  # sampling.py:76
    below = cut_2 < 0  # sampling.py:78
    either = shifted_8 | 65535  # sampling.py:78
    chosen_2 = select(below, either, shifted_8)  # sampling.py:78
    shifted_9 = chosen_2 >> 31  # sampling.py:79
    both = shifted_9 & 2147483647  # sampling.py:79
    xor = chosen_2 ^ both  # sampling.py:79
    as_f32 = Int32(xor).bitcast(Float32)  # sampling.py:79
    product_3 = mul(as_f32, chosen)  # sampling.py:87
    difference = product_3 - product_2  # sampling.py:91
    product_4 = mul(difference, Float32(1.4426950216293335))  # sampling.py:91
    power = exp2(product_4)  # sampling.py:91
    equal_2 = as_f32 == best_2  # sampling.py:93
    larger = fmax(power, Float32(0.0))  # sampling.py:93
    chosen_3 = select(equal_2, Float32(1.0), larger)  # sampling.py:93
    total_3 = chosen_3 + Float32(2.0)  # sampling.py:95
    as_i32 = Float32(total_3).bitcast(Int32)  # sampling.py:95
    difference_2 = as_i32 - 1073741824  # sampling.py:95
    sum_u_piece = sum_over_u_piece(s, thread, (board_1,))  # sampling.py:275
    smaller = cutlass.min(sum_u_piece, most_ties_2)  # sampling.py:275
    larger_2 = cutlass.max(difference_2, 1)  # sampling.py:277
    as_i64_2 = Int32(larger_2).to(Int64)  # sampling.py:277
    both_2 = [s_2[c] & 65535 for c in range(2)]  # sampling.py:119
    sum_u_piece_2 = sum_over_u_piece(both_2, thread, (board_2,))  # sampling.py:119
    shifted_10 = [s_2[c] >> 16 for c in range(2)]  # sampling.py:119
    sum_u_piece_3 = sum_over_u_piece(shifted_10, thread, (board_3,))  # sampling.py:119
    as_i64_3 = Int32(sum_u_piece_3).to(Int64)  # sampling.py:120
    shifted_11 = as_i64_3 << 16  # sampling.py:120
    as_i64_4 = Int32(sum_u_piece_2).to(Int64)  # sampling.py:120
    total_4 = shifted_11 + as_i64_4  # sampling.py:120
    difference_3 = goal_2 - total_4  # sampling.py:278
    larger_3 = cutlass.max(difference_3, 0)  # sampling.py:278
    difference_4 = as_i64_2 - 1  # sampling.py:278
    total_5 = larger_3 + difference_4  # sampling.py:278
    as_i64_5 = Int32(smaller).to(Int64)  # sampling.py:279
    quotient = total_5 // as_i64_2  # sampling.py:279
    smaller_2 = cutlass.min(as_i64_5, quotient)  # sampling.py:279
    as_i32_2 = Int64(smaller_2).to(Int32)  # sampling.py:279
    as_i64_6 = Int32(as_i32_2).to(Int64)  # sampling.py:280
    difference_5 = as_i64_6 - 1  # sampling.py:280
    below_2 = [u[c % 2] < shifted[c // 2] for c in range(32)]  # sampling.py:158
    chosen_4 = [select(below_2[c], s[c % 2], Int32(0)) for c in range(32)]  # sampling.py:158
    both_3 = [chosen_4[c] & 65535 for c in range(32)]  # sampling.py:119
    sum_u_piece_4 = sum_over_u_piece_2(both_3, thread, (board_4,))  # sampling.py:119
    shifted_12 = [chosen_4[c] >> 16 for c in range(32)]  # sampling.py:119
    sum_u_piece_5 = sum_over_u_piece_2(shifted_12, thread, (board_5,))  # sampling.py:119
    as_i64_7 = [Int32(sum_u_piece_5[c]).to(Int64) for c in range(16)]  # sampling.py:120
    shifted_13 = [as_i64_7[c] << 16 for c in range(16)]  # sampling.py:120
    as_i64_8 = [Int32(sum_u_piece_4[c]).to(Int64) for c in range(16)]  # sampling.py:120
    total_6 = [shifted_13[c] + as_i64_8[c] for c in range(16)]  # sampling.py:120
    at_most = [total_6[c] <= difference_5 for c in range(16)]  # sampling.py:163
    chosen_5 = [select(at_most[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:129
    max_j_piece = max_over_j_piece(chosen_5)  # sampling.py:129
    shifted_14 = max_j_piece << 8  # sampling.py:163
    total_7 = [shifted_2[c] + shifted_14 for c in range(16)]  # sampling.py:162
    below_3 = [u[c % 2] < total_7[c // 2] for c in range(32)]  # sampling.py:158
    chosen_6 = [select(below_3[c], s[c % 2], Int32(0)) for c in range(32)]  # sampling.py:158
    both_4 = [chosen_6[c] & 65535 for c in range(32)]  # sampling.py:119
    sum_u_piece_6 = sum_over_u_piece_2(both_4, thread, (board_6,))  # sampling.py:119
    shifted_15 = [chosen_6[c] >> 16 for c in range(32)]  # sampling.py:119
    sum_u_piece_7 = sum_over_u_piece_2(shifted_15, thread, (board_7,))  # sampling.py:119
    as_i64_9 = [Int32(sum_u_piece_7[c]).to(Int64) for c in range(16)]  # sampling.py:120
    shifted_16 = [as_i64_9[c] << 16 for c in range(16)]  # sampling.py:120
    as_i64_10 = [Int32(sum_u_piece_6[c]).to(Int64) for c in range(16)]  # sampling.py:120
    total_8 = [shifted_16[c] + as_i64_10[c] for c in range(16)]  # sampling.py:120
    at_most_2 = [total_8[c] <= difference_5 for c in range(16)]  # sampling.py:163
    chosen_7 = [select(at_most_2[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:129
    max_j_piece_2 = max_over_j_piece(chosen_7)  # sampling.py:129
    shifted_17 = max_j_piece_2 << 4  # sampling.py:163
    total_9 = shifted_17 + shifted_14  # sampling.py:163
    total_10 = [j[c] + total_9 for c in range(16)]  # sampling.py:162
    below_4 = [u[c % 2] < total_10[c // 2] for c in range(32)]  # sampling.py:158
    chosen_8 = [select(below_4[c], s[c % 2], Int32(0)) for c in range(32)]  # sampling.py:158
    both_5 = [chosen_8[c] & 65535 for c in range(32)]  # sampling.py:119
    sum_u_piece_8 = sum_over_u_piece_2(both_5, thread, (board_8,))  # sampling.py:119
    shifted_18 = [chosen_8[c] >> 16 for c in range(32)]  # sampling.py:119
    sum_u_piece_9 = sum_over_u_piece_2(shifted_18, thread, (board_9,))  # sampling.py:119
    as_i64_11 = [Int32(sum_u_piece_9[c]).to(Int64) for c in range(16)]  # sampling.py:120
    shifted_19 = [as_i64_11[c] << 16 for c in range(16)]  # sampling.py:120
    as_i64_12 = [Int32(sum_u_piece_8[c]).to(Int64) for c in range(16)]  # sampling.py:120
    total_11 = [shifted_19[c] + as_i64_12[c] for c in range(16)]  # sampling.py:120
    at_most_3 = [total_11[c] <= difference_5 for c in range(16)]  # sampling.py:163
    chosen_9 = [select(at_most_3[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:129
    max_j_piece_3 = max_over_j_piece(chosen_9)  # sampling.py:129
    total_12 = max_j_piece_3 + total_9  # sampling.py:163
    below_5 = [u[c] < total_12 for c in range(2)]  # sampling.py:158
    chosen_10 = [select(below_5[c], s[c], Int32(0)) for c in range(2)]  # sampling.py:158
    both_6 = [chosen_10[c] & 65535 for c in range(2)]  # sampling.py:119
    sum_u_piece_10 = sum_over_u_piece(both_6, thread, (board_10,))  # sampling.py:119
    shifted_20 = [chosen_10[c] >> 16 for c in range(2)]  # sampling.py:119
    sum_u_piece_11 = sum_over_u_piece(shifted_20, thread, (board_11,))  # sampling.py:119
    as_i64_13 = Int32(sum_u_piece_11).to(Int64)  # sampling.py:120
    shifted_21 = as_i64_13 << 16  # sampling.py:120
    as_i64_14 = Int32(sum_u_piece_10).to(Int64)  # sampling.py:120
    total_13 = shifted_21 + as_i64_14  # sampling.py:120
    difference_6 = difference_5 - total_13  # sampling.py:165
    below_6 = [u[c] < 149 for c in range(2)]  # sampling.py:272
    product_5 = total_12 * 149  # sampling.py:272
    total_14 = [product_5 + u[c] for c in range(2)]  # sampling.py:272
    chosen_11 = [select(below_6[c], total_14[c], Int32(-1)) for c in range(2)]  # sampling.py:272
    at_most_4 = [0 <= chosen_11[c] for c in range(2)]  # sampling.py:272
    below_7 = [chosen_11[c] < 151936 for c in range(2)]  # sampling.py:272
    both_7 = [at_most_4[c] & below_7[c] for c in range(2)]  # sampling.py:272
    as_bf16 = Float32(float("-inf")).to(BFloat16)  # sampling.py:272
    blocks_2 = [load_where(both_7[c], blocks, (t, chosen_11[c]), as_bf16) for c in range(2)]  # sampling.py:272
    as_f32_2 = [BFloat16(blocks_2[c]).to(Float32) for c in range(2)]  # sampling.py:272
    larger_4 = [fmax(as_f32_2[c], Float32(float("-inf"))) for c in range(2)]  # sampling.py:113
    total_15 = [larger_4[c] + Float32(0.0) for c in range(2)]  # sampling.py:113
    as_i32_3 = [Float32(total_15[c]).bitcast(Int32) for c in range(2)]  # sampling.py:113
    shifted_22 = [as_i32_3[c] >> 31 for c in range(2)]  # sampling.py:114
    both_8 = [shifted_22[c] & 2147483647 for c in range(2)]  # sampling.py:114
    xor_2 = [as_i32_3[c] ^ both_8[c] for c in range(2)]  # sampling.py:114
    shifted_23 = [xor_2[c] >> 16 for c in range(2)]  # sampling.py:72
    equal_3 = [shifted_23[c] == cut_2 for c in range(2)]  # sampling.py:281
    as_i32_4 = [Boolean(equal_3[c]).to(Int32) for c in range(2)]  # sampling.py:281
    chosen_12 = [select(below_2[c], as_i32_4[c % 2], Int32(0)) for c in range(32)]  # sampling.py:158
    both_9 = [chosen_12[c] & 65535 for c in range(32)]  # sampling.py:119
    sum_u_piece_12 = sum_over_u_piece_2(both_9, thread, (board_12,))  # sampling.py:119
    shifted_24 = [chosen_12[c] >> 16 for c in range(32)]  # sampling.py:119
    sum_u_piece_13 = sum_over_u_piece_2(shifted_24, thread, (board_13,))  # sampling.py:119
    as_i64_15 = [Int32(sum_u_piece_13[c]).to(Int64) for c in range(16)]  # sampling.py:120
    shifted_25 = [as_i64_15[c] << 16 for c in range(16)]  # sampling.py:120
    as_i64_16 = [Int32(sum_u_piece_12[c]).to(Int64) for c in range(16)]  # sampling.py:120
    total_16 = [shifted_25[c] + as_i64_16[c] for c in range(16)]  # sampling.py:120
    at_most_5 = [total_16[c] <= difference_6 for c in range(16)]  # sampling.py:163
    chosen_13 = [select(at_most_5[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:129
    max_j_piece_4 = max_over_j_piece(chosen_13)  # sampling.py:129
    shifted_26 = max_j_piece_4 << 8  # sampling.py:163
    total_17 = [shifted_2[c] + shifted_26 for c in range(16)]  # sampling.py:162
    below_8 = [u[c % 2] < total_17[c // 2] for c in range(32)]  # sampling.py:158
    chosen_14 = [select(below_8[c], as_i32_4[c % 2], Int32(0)) for c in range(32)]  # sampling.py:158
    both_10 = [chosen_14[c] & 65535 for c in range(32)]  # sampling.py:119
    sum_u_piece_14 = sum_over_u_piece_2(both_10, thread, (board_14,))  # sampling.py:119
    shifted_27 = [chosen_14[c] >> 16 for c in range(32)]  # sampling.py:119
    sum_u_piece_15 = sum_over_u_piece_2(shifted_27, thread, (board_15,))  # sampling.py:119
    as_i64_17 = [Int32(sum_u_piece_15[c]).to(Int64) for c in range(16)]  # sampling.py:120
    shifted_28 = [as_i64_17[c] << 16 for c in range(16)]  # sampling.py:120
    as_i64_18 = [Int32(sum_u_piece_14[c]).to(Int64) for c in range(16)]  # sampling.py:120
    total_18 = [shifted_28[c] + as_i64_18[c] for c in range(16)]  # sampling.py:120
    at_most_6 = [total_18[c] <= difference_6 for c in range(16)]  # sampling.py:163
    chosen_15 = [select(at_most_6[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:129
    max_j_piece_5 = max_over_j_piece(chosen_15)  # sampling.py:129
    shifted_29 = max_j_piece_5 << 4  # sampling.py:163
    total_19 = shifted_29 + shifted_26  # sampling.py:163
    total_20 = [j[c] + total_19 for c in range(16)]  # sampling.py:162
    below_9 = [u[c % 2] < total_20[c // 2] for c in range(32)]  # sampling.py:158
    chosen_16 = [select(below_9[c], as_i32_4[c % 2], Int32(0)) for c in range(32)]  # sampling.py:158
    both_11 = [chosen_16[c] & 65535 for c in range(32)]  # sampling.py:119
    sum_u_piece_16 = sum_over_u_piece_2(both_11, thread, (board_16,))  # sampling.py:119
    shifted_30 = [chosen_16[c] >> 16 for c in range(32)]  # sampling.py:119
    sum_u_piece_17 = sum_over_u_piece_2(shifted_30, thread, (board_17,))  # sampling.py:119
    as_i64_19 = [Int32(sum_u_piece_17[c]).to(Int64) for c in range(16)]  # sampling.py:120
    shifted_31 = [as_i64_19[c] << 16 for c in range(16)]  # sampling.py:120
    as_i64_20 = [Int32(sum_u_piece_16[c]).to(Int64) for c in range(16)]  # sampling.py:120
    total_21 = [shifted_31[c] + as_i64_20[c] for c in range(16)]  # sampling.py:120
    at_most_7 = [total_21[c] <= difference_6 for c in range(16)]  # sampling.py:163
    chosen_17 = [select(at_most_7[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:129
    max_j_piece_6 = max_over_j_piece(chosen_17)  # sampling.py:129
    total_22 = max_j_piece_6 + total_19  # sampling.py:163
    below_10 = 0 < as_i32_2  # sampling.py:282
    total_23 = product_5 + total_22  # sampling.py:282
    chosen_18 = select(below_10, total_23, Int32(-1))  # sampling.py:282
    equal_4 = [u[c] == total_12 for c in range(2)]  # sampling.py:283
    as_i32_5 = Int64(difference_6).to(Int32)  # sampling.py:283
    total_24 = as_i32_5 + 1  # sampling.py:283
    chosen_19 = [select(equal_4[c], total_24, Int32(0)) for c in range(2)]  # sampling.py:283
    chosen_20 = [select(below_5[c], s[c], chosen_19[c]) for c in range(2)]  # sampling.py:283
    product_6 = [chosen_20[c] * difference_2 for c in range(2)]  # sampling.py:284
    total_25 = [s_2[c] + product_6[c] for c in range(2)]  # sampling.py:284
    both_12 = [total_25[c] & 65535 for c in range(2)]  # sampling.py:119
    sum_u_piece_18 = sum_over_u_piece(both_12, thread, (board_18,))  # sampling.py:119
    shifted_32 = [total_25[c] >> 16 for c in range(2)]  # sampling.py:119
    sum_u_piece_19 = sum_over_u_piece(shifted_32, thread, (board_19,))  # sampling.py:119
    as_i64_21 = Int32(sum_u_piece_19).to(Int64)  # sampling.py:120
    shifted_33 = as_i64_21 << 16  # sampling.py:120
    as_i64_22 = Int32(sum_u_piece_18).to(Int64)  # sampling.py:120
    total_26 = shifted_33 + as_i64_22  # sampling.py:120
    shifted_34 = total_26 >> 16  # sampling.py:255
    product_7 = shifted_34 * total  # sampling.py:255
    both_13 = total_26 & 65535  # sampling.py:255
    product_8 = both_13 * total  # sampling.py:255
    shifted_35 = product_7 >> 8  # sampling.py:256
    both_14 = product_7 & 255  # sampling.py:256
    shifted_36 = both_14 << 16  # sampling.py:256
    total_27 = shifted_36 + product_8  # sampling.py:256
    shifted_37 = total_27 >> 24  # sampling.py:256
    total_28 = shifted_35 + shifted_37  # sampling.py:256
    chosen_21 = [select(below_2[c], total_25[c % 2], Int32(0)) for c in range(32)]  # sampling.py:158
    both_15 = [chosen_21[c] & 65535 for c in range(32)]  # sampling.py:119
    sum_u_piece_20 = sum_over_u_piece_2(both_15, thread, (board_20,))  # sampling.py:119
    shifted_38 = [chosen_21[c] >> 16 for c in range(32)]  # sampling.py:119
    sum_u_piece_21 = sum_over_u_piece_2(shifted_38, thread, (board_21,))  # sampling.py:119
    as_i64_23 = [Int32(sum_u_piece_21[c]).to(Int64) for c in range(16)]  # sampling.py:120
    shifted_39 = [as_i64_23[c] << 16 for c in range(16)]  # sampling.py:120
    as_i64_24 = [Int32(sum_u_piece_20[c]).to(Int64) for c in range(16)]  # sampling.py:120
    total_29 = [shifted_39[c] + as_i64_24[c] for c in range(16)]  # sampling.py:120
    at_most_8 = [total_29[c] <= total_28 for c in range(16)]  # sampling.py:163
    chosen_22 = [select(at_most_8[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:129
    max_j_piece_7 = max_over_j_piece(chosen_22)  # sampling.py:129
    shifted_40 = max_j_piece_7 << 8  # sampling.py:163
    total_30 = [shifted_2[c] + shifted_40 for c in range(16)]  # sampling.py:162
    below_11 = [u[c % 2] < total_30[c // 2] for c in range(32)]  # sampling.py:158
    chosen_23 = [select(below_11[c], total_25[c % 2], Int32(0)) for c in range(32)]  # sampling.py:158
    both_16 = [chosen_23[c] & 65535 for c in range(32)]  # sampling.py:119
    sum_u_piece_22 = sum_over_u_piece_2(both_16, thread, (board_22,))  # sampling.py:119
    shifted_41 = [chosen_23[c] >> 16 for c in range(32)]  # sampling.py:119
    sum_u_piece_23 = sum_over_u_piece_2(shifted_41, thread, (board_23,))  # sampling.py:119
    as_i64_25 = [Int32(sum_u_piece_23[c]).to(Int64) for c in range(16)]  # sampling.py:120
    shifted_42 = [as_i64_25[c] << 16 for c in range(16)]  # sampling.py:120
    as_i64_26 = [Int32(sum_u_piece_22[c]).to(Int64) for c in range(16)]  # sampling.py:120
    total_31 = [shifted_42[c] + as_i64_26[c] for c in range(16)]  # sampling.py:120
    at_most_9 = [total_31[c] <= total_28 for c in range(16)]  # sampling.py:163
    chosen_24 = [select(at_most_9[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:129
    max_j_piece_8 = max_over_j_piece(chosen_24)  # sampling.py:129
    shifted_43 = max_j_piece_8 << 4  # sampling.py:163
    total_32 = shifted_43 + shifted_40  # sampling.py:163
    total_33 = [j[c] + total_32 for c in range(16)]  # sampling.py:162
    below_12 = [u[c % 2] < total_33[c // 2] for c in range(32)]  # sampling.py:158
    chosen_25 = [select(below_12[c], total_25[c % 2], Int32(0)) for c in range(32)]  # sampling.py:158
    both_17 = [chosen_25[c] & 65535 for c in range(32)]  # sampling.py:119
    sum_u_piece_24 = sum_over_u_piece_2(both_17, thread, (board_24,))  # sampling.py:119
    shifted_44 = [chosen_25[c] >> 16 for c in range(32)]  # sampling.py:119
    sum_u_piece_25 = sum_over_u_piece_2(shifted_44, thread, (board_25,))  # sampling.py:119
    as_i64_27 = [Int32(sum_u_piece_25[c]).to(Int64) for c in range(16)]  # sampling.py:120
    shifted_45 = [as_i64_27[c] << 16 for c in range(16)]  # sampling.py:120
    as_i64_28 = [Int32(sum_u_piece_24[c]).to(Int64) for c in range(16)]  # sampling.py:120
    total_34 = [shifted_45[c] + as_i64_28[c] for c in range(16)]  # sampling.py:120
    at_most_10 = [total_34[c] <= total_28 for c in range(16)]  # sampling.py:163
    chosen_26 = [select(at_most_10[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:129
    max_j_piece_9 = max_over_j_piece(chosen_26)  # sampling.py:129
    total_35 = max_j_piece_9 + total_32  # sampling.py:163
    below_13 = [u[c] < total_35 for c in range(2)]  # sampling.py:158
    chosen_27 = [select(below_13[c], total_25[c], Int32(0)) for c in range(2)]  # sampling.py:158
    both_18 = [chosen_27[c] & 65535 for c in range(2)]  # sampling.py:119
    sum_u_piece_26 = sum_over_u_piece(both_18, thread, (board_26,))  # sampling.py:119
    shifted_46 = [chosen_27[c] >> 16 for c in range(2)]  # sampling.py:119
    sum_u_piece_27 = sum_over_u_piece(shifted_46, thread, (board_27,))  # sampling.py:119
    as_i64_29 = Int32(sum_u_piece_27).to(Int64)  # sampling.py:120
    shifted_47 = as_i64_29 << 16  # sampling.py:120
    as_i64_30 = Int32(sum_u_piece_26).to(Int64)  # sampling.py:120
    total_36 = shifted_47 + as_i64_30  # sampling.py:120
    difference_7 = total_28 - total_36  # sampling.py:165
    product_9 = total_35 * 149  # sampling.py:272
    total_37 = [product_9 + u[c] for c in range(2)]  # sampling.py:272
    chosen_28 = [select(below_6[c], total_37[c], Int32(-1)) for c in range(2)]  # sampling.py:272
    at_most_11 = [0 <= chosen_28[c] for c in range(2)]  # sampling.py:272
    below_14 = [chosen_28[c] < 151936 for c in range(2)]  # sampling.py:272
    both_19 = [at_most_11[c] & below_14[c] for c in range(2)]  # sampling.py:272
    blocks_3 = [load_where(both_19[c], blocks, (t, chosen_28[c]), as_bf16) for c in range(2)]  # sampling.py:272
    as_f32_3 = [BFloat16(blocks_3[c]).to(Float32) for c in range(2)]  # sampling.py:272
    larger_5 = [fmax(as_f32_3[c], Float32(float("-inf"))) for c in range(2)]  # sampling.py:113
    total_38 = [larger_5[c] + Float32(0.0) for c in range(2)]  # sampling.py:113
    as_i32_6 = [Float32(total_38[c]).bitcast(Int32) for c in range(2)]  # sampling.py:113
    shifted_48 = [as_i32_6[c] >> 31 for c in range(2)]  # sampling.py:114
    both_20 = [shifted_48[c] & 2147483647 for c in range(2)]  # sampling.py:114
    xor_3 = [as_i32_6[c] ^ both_20[c] for c in range(2)]  # sampling.py:114
    shifted_49 = [xor_3[c] >> 16 for c in range(2)]  # sampling.py:72
    below_15 = [cut_2 < shifted_49[c] for c in range(2)]  # sampling.py:288
    equal_5 = [shifted_49[c] == cut_2 for c in range(2)]  # sampling.py:288
    at_most_12 = [total_37[c] <= chosen_18 for c in range(2)]  # sampling.py:288
    both_21 = [equal_5[c] & at_most_12[c] for c in range(2)]  # sampling.py:288
    either_2 = [below_15[c] | both_21[c] for c in range(2)]  # sampling.py:288
    product_10 = [mul(as_f32_3[c], chosen) for c in range(2)]  # sampling.py:87
    difference_8 = [product_10[c] - product_2 for c in range(2)]  # sampling.py:91
    product_11 = [mul(difference_8[c], Float32(1.4426950216293335)) for c in range(2)]  # sampling.py:91
    power_2 = [exp2(product_11[c]) for c in range(2)]  # sampling.py:91
    equal_6 = [as_f32_3[c] == best_2 for c in range(2)]  # sampling.py:93
    larger_6 = [fmax(power_2[c], Float32(0.0)) for c in range(2)]  # sampling.py:93
    chosen_29 = [select(equal_6[c], Float32(1.0), larger_6[c]) for c in range(2)]  # sampling.py:93
    total_39 = [chosen_29[c] + Float32(2.0) for c in range(2)]  # sampling.py:95
    as_i32_7 = [Float32(total_39[c]).bitcast(Int32) for c in range(2)]  # sampling.py:95
    difference_9 = [as_i32_7[c] - 1073741824 for c in range(2)]  # sampling.py:95
    chosen_30 = [select(either_2[c], difference_9[c], Int32(0)) for c in range(2)]  # sampling.py:289
    chosen_31 = [select(below_2[c], chosen_30[c % 2], Int32(0)) for c in range(32)]  # sampling.py:158
    both_22 = [chosen_31[c] & 65535 for c in range(32)]  # sampling.py:119
    sum_u_piece_28 = sum_over_u_piece_2(both_22, thread, (board_28,))  # sampling.py:119
    shifted_50 = [chosen_31[c] >> 16 for c in range(32)]  # sampling.py:119
    sum_u_piece_29 = sum_over_u_piece_2(shifted_50, thread, (board_29,))  # sampling.py:119
    as_i64_31 = [Int32(sum_u_piece_29[c]).to(Int64) for c in range(16)]  # sampling.py:120
    shifted_51 = [as_i64_31[c] << 16 for c in range(16)]  # sampling.py:120
    as_i64_32 = [Int32(sum_u_piece_28[c]).to(Int64) for c in range(16)]  # sampling.py:120
    total_40 = [shifted_51[c] + as_i64_32[c] for c in range(16)]  # sampling.py:120
    at_most_13 = [total_40[c] <= difference_7 for c in range(16)]  # sampling.py:163
    chosen_32 = [select(at_most_13[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:129
    max_j_piece_10 = max_over_j_piece(chosen_32)  # sampling.py:129
    shifted_52 = max_j_piece_10 << 8  # sampling.py:163
    total_41 = [shifted_2[c] + shifted_52 for c in range(16)]  # sampling.py:162
    below_16 = [u[c % 2] < total_41[c // 2] for c in range(32)]  # sampling.py:158
    chosen_33 = [select(below_16[c], chosen_30[c % 2], Int32(0)) for c in range(32)]  # sampling.py:158
    both_23 = [chosen_33[c] & 65535 for c in range(32)]  # sampling.py:119
    sum_u_piece_30 = sum_over_u_piece_2(both_23, thread, (board_30,))  # sampling.py:119
    shifted_53 = [chosen_33[c] >> 16 for c in range(32)]  # sampling.py:119
    sum_u_piece_31 = sum_over_u_piece_2(shifted_53, thread, (board_31,))  # sampling.py:119
    as_i64_33 = [Int32(sum_u_piece_31[c]).to(Int64) for c in range(16)]  # sampling.py:120
    shifted_54 = [as_i64_33[c] << 16 for c in range(16)]  # sampling.py:120
    as_i64_34 = [Int32(sum_u_piece_30[c]).to(Int64) for c in range(16)]  # sampling.py:120
    total_42 = [shifted_54[c] + as_i64_34[c] for c in range(16)]  # sampling.py:120
    at_most_14 = [total_42[c] <= difference_7 for c in range(16)]  # sampling.py:163
    chosen_34 = [select(at_most_14[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:129
    max_j_piece_11 = max_over_j_piece(chosen_34)  # sampling.py:129
    shifted_55 = max_j_piece_11 << 4  # sampling.py:163
    total_43 = shifted_55 + shifted_52  # sampling.py:163
    total_44 = [j[c] + total_43 for c in range(16)]  # sampling.py:162
    below_17 = [u[c % 2] < total_44[c // 2] for c in range(32)]  # sampling.py:158
    chosen_35 = [select(below_17[c], chosen_30[c % 2], Int32(0)) for c in range(32)]  # sampling.py:158
    both_24 = [chosen_35[c] & 65535 for c in range(32)]  # sampling.py:119
    sum_u_piece_32 = sum_over_u_piece_2(both_24, thread, (board_32,))  # sampling.py:119
    shifted_56 = [chosen_35[c] >> 16 for c in range(32)]  # sampling.py:119
    sum_u_piece_33 = sum_over_u_piece_2(shifted_56, thread, (board_33,))  # sampling.py:119
    as_i64_35 = [Int32(sum_u_piece_33[c]).to(Int64) for c in range(16)]  # sampling.py:120
    shifted_57 = [as_i64_35[c] << 16 for c in range(16)]  # sampling.py:120
    as_i64_36 = [Int32(sum_u_piece_32[c]).to(Int64) for c in range(16)]  # sampling.py:120
    total_45 = [shifted_57[c] + as_i64_36[c] for c in range(16)]  # sampling.py:120
    at_most_15 = [total_45[c] <= difference_7 for c in range(16)]  # sampling.py:163
    chosen_36 = [select(at_most_15[c], j[c], Int32(0)) for c in range(16)]  # sampling.py:129
    max_j_piece_12 = max_over_j_piece(chosen_36)  # sampling.py:129
    total_46 = max_j_piece_12 + total_43  # sampling.py:163
    total_47 = product_9 + total_46  # sampling.py:290
    below_18 = Float32(float("-inf")) < best_2  # sampling.py:332
    unless = select(below_18, Boolean(False), Boolean(True))  # sampling.py:333
    report_where(unless & writes, errors, 1, t + 1)  # sampling.py:333
    chosen_37 = select(below_18, total_47, Int32(-1))  # sampling.py:335
    as_i64_37 = Int32(chosen_37).to(Int64)  # sampling.py:335
    chosen_38 = select(below_18, as_f32, Float32(float("-inf")))  # sampling.py:336
    chosen_39 = select(below_18, as_i32_2, Int32(0))  # sampling.py:337
    chosen_40 = select(below_18, chosen_18, Int32(-1))  # sampling.py:338
    store_where(writes, token, t, as_i64_37)  # sampling.py:334
    store_where(writes, threshold, t, chosen_38)  # sampling.py:334
    store_where(writes, ties, t, chosen_39)  # sampling.py:334
    store_where(writes, last, t, chosen_40)  # sampling.py:334


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
