"""entropy_bonus on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 75daa7e468f74cba
schedule: tiles 1, 4 warps, 1 stages, unroll 1 placed S.lane[8:2] S.lane[1:0] S.lane[9:9]
schedule: tiles 1, 16 warps, 1 stages, unroll 1 placed S_piece.lane[10:2] S_piece.lane[1:0] S_piece.lane[11:11]
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


@cute.jit
def store_where(condition, memory: cute.Tensor, index, x):
    # Write an element if the condition holds.
    if condition:
        memory[index] = x


def sum_over_s_lane(x, thread, boards):
    # The sum over S.lane, halving.
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


def sum_over_s_lane_2(x, thread, boards):
    # The sum over S.lane, in any order.
    x = folded(x, 1, add)
    x = folded(x, 1, add)
    x = folded(x, 1, add)
    x = exchanged(x, 1, add)
    x = exchanged(x, 2, add)
    x = exchanged(x, 4, add)
    x = exchanged(x, 8, add)
    x = exchanged(x, 16, add)
    x = across(x, boards[0], (32, 64), thread, add)
    return x[0]


def sum_over_s_piece_lane(x, thread, boards):
    # The sum over S_piece.lane, halving.
    x = folded(x, 4, add)
    x = across(x, boards[0], (256, 128, 64, 32), thread, add)
    x = halved(x, 16, thread, add)
    x = halved(x, 8, thread, add)
    x = exchanged(x, 4, add)
    x = exchanged(x, 2, add)
    x = exchanged(x, 1, add)
    x = exchanged(x, 16, add)
    x = exchanged(x, 8, add)
    return x[0]


def sum_over_s_piece_lane_2(x, thread, boards):
    # The sum over S_piece.lane, in any order.
    x = folded(x, 1, add)
    x = folded(x, 1, add)
    x = folded(x, 1, add)
    x = exchanged(x, 1, add)
    x = exchanged(x, 2, add)
    x = exchanged(x, 4, add)
    x = exchanged(x, 8, add)
    x = exchanged(x, 16, add)
    x = across(x, boards[0], (32, 64, 128, 256), thread, add)
    return x[0]


def vector_of(memory, index, count):
    # Neighbours in memory, the first at a multiple of so many.
    at = cute.assume(cute.crd2idx(index, memory.layout), divby=count)
    return cute.make_tensor(memory.iterator + at, (count,))


@cute.kernel
def entropy_bonus_1_rows(entropy: cute.Tensor, order: cute.Tensor, active: cute.Tensor, sum_of_piece: cute.Tensor, sum_of_piece1: cute.Tensor, S: Int32, T: Int32):
    # A block owns 1 of S.piece (rows). S.lane: 1024 indices, 8 to each of 128 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    shared = utils.SmemAllocator()
    board_1 = shared.allocate_tensor(Float32, cute.make_layout((4, 128), stride=(128, 1)), 16)
    board_2 = shared.allocate_tensor(Int32, cute.make_layout((1, 128), stride=(128, 1)), 16)
    board_3 = shared.allocate_tensor(Float32, cute.make_layout((4, 128), stride=(128, 1)), 16)
    board_4 = shared.allocate_tensor(Int32, cute.make_layout((1, 128), stride=(128, 1)), 16)
    s_piece = block
    writes = thread == 0
    product = s_piece * 1024  # value.py:80
    piece_begin = cutlass.min(S, product)  # value.py:80
    total = piece_begin + 1024  # value.py:80
    piece_end = cutlass.min(S, total)  # value.py:80
    difference = piece_end - piece_begin  # value.py:80
    total_2 = difference + 1023  # value.py:80
    steps = total_2 // 1024  # value.py:80
    full_steps = difference // 1024  # value.py:80
    s_lane = [thread * 4 + c % 4 + c // 4 * 512 for c in range(8)]  # value.py:80
    s = Int32(-(2**31)).bitcast(Float32)  # value.py:80
    s_2 = Int32(0)  # value.py:80
    for s_step in cutlass.range(0, full_steps, unroll=1):  # value.py:80
        product_2 = s_step * 1024  # value.py:80
        total_3 = piece_begin + product_2  # value.py:80
        s_3 = [total_3 + s_lane[c] for c in range(8)]  # value.py:80
        order_2 = [order[s_3[c]] for c in range(8)]  # value.py:81
        at_most = [0 <= order_2[c] for c in range(8)]  # value.py:82
        below = [order_2[c] < T for c in range(8)]  # value.py:82
        both = [at_most[c] & below[c] for c in range(8)]  # value.py:82
        active_2 = [load_where(both[c], active, order_2[c], Uint8(0)) != 0 for c in range(8)]  # value.py:82
        entropy_2 = [load_where(both[c], entropy, order_2[c], Float32(0)) for c in range(8)]  # value.py:83
        chosen = [select(active_2[c], entropy_2[c], Int32(-(2**31)).bitcast(Float32)) for c in range(8)]  # value.py:83
        as_i32 = [Boolean(active_2[c]).to(Int32) for c in range(8)]  # value.py:84
        sum_s_lane = sum_over_s_lane(chosen, thread, (board_1,))  # value.py:80
        sum_s_lane_2 = sum_over_s_lane_2(as_i32, thread, (board_2,))  # value.py:80
        s_4 = s + sum_s_lane  # value.py:80
        s_5 = s_2 + sum_s_lane_2  # value.py:80
        s, s_2 = s_4, s_5  # value.py:80
    s_3 = s  # value.py:80
    s_4 = s_2  # value.py:80
    for s_step_2 in cutlass.range(full_steps, steps, unroll=1):  # value.py:80
        product_2 = s_step_2 * 1024  # value.py:80
        total_3 = piece_begin + product_2  # value.py:80
        s_5 = [total_3 + s_lane[c] for c in range(8)]  # value.py:80
        exists = [s_5[c] < piece_end for c in range(8)]  # value.py:80
        order_2 = [load_where(exists[c], order, s_5[c], Int32(0)) for c in range(8)]  # value.py:81
        at_most = [0 <= order_2[c] for c in range(8)]  # value.py:82
        below = [order_2[c] < T for c in range(8)]  # value.py:82
        both = [at_most[c] & below[c] for c in range(8)]  # value.py:82
        both_2 = [exists[c] & both[c] for c in range(8)]  # value.py:82
        active_2 = [load_where(both_2[c], active, order_2[c], Uint8(0)) != 0 for c in range(8)]  # value.py:82
        entropy_2 = [load_where(both_2[c], entropy, order_2[c], Float32(0)) for c in range(8)]  # value.py:83
        chosen = [select(active_2[c], entropy_2[c], Int32(-(2**31)).bitcast(Float32)) for c in range(8)]  # value.py:83
        as_i32 = [Boolean(active_2[c]).to(Int32) for c in range(8)]  # value.py:84
        chosen_2 = [select(exists[c], chosen[c], Int32(-(2**31)).bitcast(Float32)) for c in range(8)]  # value.py:80
        sum_s_lane = sum_over_s_lane(chosen_2, thread, (board_3,))  # value.py:80
        chosen_3 = [select(exists[c], as_i32[c], Int32(0)) for c in range(8)]  # value.py:80
        sum_s_lane_2 = sum_over_s_lane_2(chosen_3, thread, (board_4,))  # value.py:80
        s_6 = s_3 + sum_s_lane  # value.py:80
        s_7 = s_4 + sum_s_lane_2  # value.py:80
        s_3, s_4 = s_6, s_7  # value.py:80
    store_where(writes, sum_of_piece, s_piece, s_3)  # value.py:80
    store_where(writes, sum_of_piece1, s_piece, s_4)  # value.py:80


@cute.jit
def launch_entropy_bonus_1(entropy_ptr: cute.Pointer, order_ptr: cute.Pointer, active_ptr: cute.Pointer, sum_of_piece_ptr: cute.Pointer, sum_of_piece1_ptr: cute.Pointer, S: Int32, T: Int32, programs: Int32, stream: cuda.CUstream):
    # Describe the tensors, and start the kernel on a stream.
    entropy = cute.make_tensor(entropy_ptr, cute.make_layout((T,), stride=(1,)))
    order = cute.make_tensor(order_ptr, cute.make_layout((S,), stride=(1,)))
    active = cute.make_tensor(active_ptr, cute.make_layout((T,), stride=(1,)))
    sum_of_piece = cute.make_tensor(sum_of_piece_ptr, cute.make_layout((((S + 1023) // 1024),), stride=(1,)))
    sum_of_piece1 = cute.make_tensor(sum_of_piece1_ptr, cute.make_layout((((S + 1023) // 1024),), stride=(1,)))
    entropy_bonus_1_rows(entropy, order, active, sum_of_piece, sum_of_piece1, S, T).launch(
        grid=(programs, 1, 1), block=(128, 1, 1), stream=stream,
    )


@cute.kernel
def entropy_bonus_2_rows(loss: cute.Tensor, mean: cute.Tensor, count: cute.Tensor, sum_of_piece: cute.Tensor, sum_of_piece1: cute.Tensor, S: Int32, coef: Float32):
    # A block owns everything (rows). S_piece.lane: 4096 indices, 8 to each of 512 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    shared = utils.SmemAllocator()
    board_1 = shared.allocate_tensor(Float32, cute.make_layout((4, 512), stride=(512, 1)), 16)
    board_2 = shared.allocate_tensor(Int32, cute.make_layout((1, 512), stride=(512, 1)), 16)
    board_3 = shared.allocate_tensor(Float32, cute.make_layout((4, 512), stride=(512, 1)), 16)
    board_4 = shared.allocate_tensor(Int32, cute.make_layout((1, 512), stride=(512, 1)), 16)
    writes = thread == 0
    total = ((S + 1023) // 1024) + 4095  # value.py:80
    steps = total // 4096  # value.py:80
    full_steps = ((S + 1023) // 1024) // 4096  # value.py:80
    s_piece_lane = [thread * 4 + c % 4 + c // 4 * 2048 for c in range(8)]  # value.py:80
    s = Int32(-(2**31)).bitcast(Float32)  # value.py:80
    s_2 = Int32(0)  # value.py:80
    for s_piece_step in cutlass.range(0, full_steps, unroll=1):  # value.py:80
        product = s_piece_step * 4096  # value.py:80
        s_piece = [product + s_piece_lane[c] for c in range(8)]  # value.py:80
        sum_of_piece_2 = [one for c in range(0, 8, 4) for one in load_vector(sum_of_piece, s_piece[c], 4)]  # value.py:80
        sum_of_piece1_2 = [one for c in range(0, 8, 4) for one in load_vector(sum_of_piece1, s_piece[c], 4)]  # value.py:80
        sum_s_piece_lane = sum_over_s_piece_lane(sum_of_piece_2, thread, (board_1,))  # value.py:80
        sum_s_piece_lane_2 = sum_over_s_piece_lane_2(sum_of_piece1_2, thread, (board_2,))  # value.py:80
        s_3 = s + sum_s_piece_lane  # value.py:80
        s_4 = s_2 + sum_s_piece_lane_2  # value.py:80
        s, s_2 = s_3, s_4  # value.py:80
    s_3 = s  # value.py:80
    s_4 = s_2  # value.py:80
    for s_piece_step_2 in cutlass.range(full_steps, steps, unroll=1):  # value.py:80
        product = s_piece_step_2 * 4096  # value.py:80
        s_piece = [product + s_piece_lane[c] for c in range(8)]  # value.py:80
        exists = [s_piece[c] < ((S + 1023) // 1024) for c in range(8)]  # value.py:80
        sum_of_piece_2 = [load_where(exists[c], sum_of_piece, s_piece[c], Float32(0)) for c in range(8)]  # value.py:80
        sum_of_piece1_2 = [load_where(exists[c], sum_of_piece1, s_piece[c], Int32(0)) for c in range(8)]  # value.py:80
        chosen = [select(exists[c], sum_of_piece_2[c], Int32(-(2**31)).bitcast(Float32)) for c in range(8)]  # value.py:80
        sum_s_piece_lane = sum_over_s_piece_lane(chosen, thread, (board_3,))  # value.py:80
        chosen_2 = [select(exists[c], sum_of_piece1_2[c], Int32(0)) for c in range(8)]  # value.py:80
        sum_s_piece_lane_2 = sum_over_s_piece_lane_2(chosen_2, thread, (board_4,))  # value.py:80
        s_5 = s_3 + sum_s_piece_lane  # value.py:80
        s_6 = s_4 + sum_s_piece_lane_2  # value.py:80
        s_3, s_4 = s_5, s_6  # value.py:80
    total_2 = s_3 + Float32(0.0)  # value.py:85
    larger = cutlass.max(s_4, 1)  # value.py:85
    as_f32 = Int32(larger).to(Float32)  # value.py:85
    quotient = div(total_2, as_f32)  # value.py:85
    product = mul(coef, quotient)  # value.py:87
    negative = -product  # value.py:87
    total_3 = negative + Float32(0.0)  # value.py:87
    store_where(writes, loss, 0, total_3)  # value.py:87
    store_where(writes, mean, 0, quotient)  # value.py:87
    store_where(writes, count, 0, s_4)  # value.py:87


@cute.jit
def launch_entropy_bonus_2(loss_ptr: cute.Pointer, mean_ptr: cute.Pointer, count_ptr: cute.Pointer, sum_of_piece_ptr: cute.Pointer, sum_of_piece1_ptr: cute.Pointer, S: Int32, coef: Float32, programs: Int32, stream: cuda.CUstream):
    # Describe the tensors, and start the kernel on a stream.
    loss = cute.make_tensor(loss_ptr, cute.make_layout((1,), stride=(1,)))
    mean = cute.make_tensor(mean_ptr, cute.make_layout((1,), stride=(1,)))
    count = cute.make_tensor(count_ptr, cute.make_layout((1,), stride=(1,)))
    sum_of_piece = cute.make_tensor(sum_of_piece_ptr, cute.make_layout((((S + 1023) // 1024),), stride=(1,)))
    sum_of_piece1 = cute.make_tensor(sum_of_piece1_ptr, cute.make_layout((((S + 1023) // 1024),), stride=(1,)))
    entropy_bonus_2_rows(loss, mean, count, sum_of_piece, sum_of_piece1, S, coef).launch(
        grid=(programs, 1, 1), block=(512, 1, 1), stream=stream,
    )


def call(kernels, entropy, order, active, sum_of_piece, sum_of_piece1, loss, mean, count, coef, S, T):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((S + 1023) // 1024)
    if programs > 0:
        kernels.entropy_bonus_1((programs,), entropy, order, active, sum_of_piece, sum_of_piece1, S, T)
    programs = 1
    if programs > 0:
        kernels.entropy_bonus_2((programs,), loss, mean, count, sum_of_piece, sum_of_piece1, S, coef)
