"""linear_logp_join on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 58ccf6419e6acdae
schedule: tiles T=32, 8 warps, 1 stages, unroll 8 placed T[4:0] R[2:0]
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


def exp2(x):
    # The hardware's: a table.
    return cute.math.exp2(x, fastmath=True)


def fma(a, b, c):
    # a * b + c with one rounding.
    return cute.math.fma(a, b, c, rounding=NEAREST)


def fmax(a, b):
    # NaN loses.
    return cute.arch.fmax(a, b)


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


def merge_softmax_sum(max_a, sum_a, max_b, sum_b):
    # The state of two disjoint sets: softmax_sum().
    m_2 = fmax(max_a, max_b)
    equal = m_2 == Float32(float("-inf"))
    chosen = select(equal, Float32(0.0), m_2)
    difference = max_a - chosen
    product = mul(difference, Float32(1.4426950216293335))
    power = exp2(product)
    equal_2 = m_2 == Float32(float("-inf"))
    chosen_2 = select(equal_2, Float32(0.0), m_2)
    difference_2 = max_b - chosen_2
    product_2 = mul(difference_2, Float32(1.4426950216293335))
    power_2 = exp2(product_2)
    product_3 = mul(sum_a, power)
    product_4 = mul(sum_b, power_2)
    total = product_3 + product_4
    return m_2, total


def merged(states, apart, merge):
    # Merge the states of a thread that lie so far apart.
    first = [i for i in range(len(states[0])) if not i & apart]
    each = [merge(*(x[i] for x in states), *(x[i + apart] for x in states)) for i in first]
    return tuple([state[k] for state in each] for k in range(len(states)))


def merged_across(states, boards, apart, thread, merge):
    # Merge each state with those of the threads so far apart, in this order, through shared memory.
    count = len(states[0])
    for x, board in zip(states, boards):
        for i in range(count):
            board[i, thread] = x[i]
    cute.arch.sync_threads()
    far = [sum(a for k, a in enumerate(apart) if j >> k & 1) for j in range(1 << len(apart))]
    each = []
    for i in range(count):
        terms = [[x[i], *(board[i, thread ^ f] for f in far[1:])] for x, board in zip(states, boards)]
        for _ in apart:
            terms = merged(terms, 1, merge)
        each.append([x[0] for x in terms])
    return tuple([state[k] for state in each] for k in range(len(states)))


def mul(a, b):
    # One rounding, never part of a fused operation.
    return cute.math.mul(a, b, rounding=NEAREST)


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


def softmax_sum_over_r(max, sum, thread, boards):
    # The states merged over R, pairwise.
    max, sum = merged_across((max, sum,), boards[0:2], (32, 64, 128), thread, merge_softmax_sum)
    return max[0], sum[0]


@cute.jit
def store_where(condition, memory: cute.Tensor, index, x):
    # Write an element if the condition holds.
    if condition:
        memory[index] = x


def sum_over_r(x, thread, boards):
    # The sum over R, pairwise.
    x = across(x, boards[0], (32, 64, 128), thread, add)
    return x[0]


@cute.kernel
def linear_logp_join_rows(ids: cute.Tensor, m: cute.Tensor, s: cute.Tensor, hits: cute.Tensor, logp: cute.Tensor, lse: cute.Tensor, T: Int32, errors: cute.Pointer, ignore_index: Int64, vocabulary: Int64):
    # A block owns 32 of T (rows). R: 8 indices, 1 to each of 8 threads; T: 32 indices, 1 to each of 32 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    shared = utils.SmemAllocator()
    board_1 = shared.allocate_tensor(Float32, cute.make_layout((1, 256), stride=(256, 1)), 16)
    board_2 = shared.allocate_tensor(Float32, cute.make_layout((1, 256), stride=(256, 1)), 16)
    board_3 = shared.allocate_tensor(Float32, cute.make_layout((1, 256), stride=(256, 1)), 16)
    t = block * 32 + thread % 32
    t_inside = t < T
    writes = (thread & 224) == 0
    ids_2 = load_where(t_inside, ids, t, Int64(0))  # linear_logp.py:224
    r = thread // 32  # linear_logp.py:226
    m_2 = load_where(t_inside, m, (r, t), Float32(0))  # linear_logp.py:226
    s_2 = load_where(t_inside, s, (r, t), Float32(0))  # linear_logp.py:226
    hits_2 = load_where(t_inside, hits, (r, t), Float32(0))  # linear_logp.py:228
    differs = ids_2 != ignore_index  # logp.py:197
    m_3, s_3 = softmax_sum_over_r([m_2], [s_2], thread, (board_1, board_2,))  # linear_logp.py:226
    sum_r = sum_over_r([hits_2], thread, (board_3,))  # linear_logp.py:228
    at_most = 0 <= ids_2  # linear_logp.py:229
    below = ids_2 < vocabulary  # linear_logp.py:229
    both = at_most & below  # linear_logp.py:229
    log_of = portable_log(s_3)  # linear_logp.py:86
    total = m_3 + log_of  # linear_logp.py:86
    chosen = select(both, sum_r, Float32(float("nan")))  # linear_logp.py:87
    difference = chosen - total  # linear_logp.py:87
    is_nan = difference != difference  # linear_logp.py:88
    both_2 = differs & is_nan  # linear_logp.py:88
    report_where(both_2 & t_inside & writes, errors, 1, t + 1)  # linear_logp.py:88
    chosen_2 = select(differs, difference, Float32(0.0))  # linear_logp.py:90
    chosen_3 = select(differs, total, Float32(0.0))  # linear_logp.py:91
    store_where(t_inside & writes, logp, t, chosen_2)  # linear_logp.py:89
    store_where(t_inside & writes, lse, t, chosen_3)  # linear_logp.py:89


@cute.jit
def launch_linear_logp_join(ids_ptr: cute.Pointer, m_ptr: cute.Pointer, s_ptr: cute.Pointer, hits_ptr: cute.Pointer, logp_ptr: cute.Pointer, lse_ptr: cute.Pointer, T: Int32, errors_ptr: cute.Pointer, m_r_stride: Int64, s_r_stride: Int64, hits_r_stride: Int64, ignore_index: Int64, vocabulary: Int64, programs: Int32, stream: cuda.CUstream):
    # Describe the tensors, and start the kernel on a stream.
    ids = cute.make_tensor(ids_ptr, cute.make_layout((T,), stride=(1,)))
    m = cute.make_tensor(m_ptr, cute.make_layout((8, T), stride=(m_r_stride, 1)))
    s = cute.make_tensor(s_ptr, cute.make_layout((8, T), stride=(s_r_stride, 1)))
    hits = cute.make_tensor(hits_ptr, cute.make_layout((8, T), stride=(hits_r_stride, 1)))
    logp = cute.make_tensor(logp_ptr, cute.make_layout((T,), stride=(1,)))
    lse = cute.make_tensor(lse_ptr, cute.make_layout((T,), stride=(1,)))
    linear_logp_join_rows(ids, m, s, hits, logp, lse, T, errors_ptr, ignore_index, vocabulary).launch(
        grid=(programs, 1, 1), block=(256, 1, 1), stream=stream,
    )


def call(kernels, ids, m, s, hits, logp, lse, ignore_index, vocabulary, T, m_r_stride, s_r_stride, hits_r_stride, errors):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 31) // 32)
    if programs > 0:
        kernels.linear_logp_join((programs,), ids, m, s, hits, logp, lse, T, errors, m_r_stride, s_r_stride, hits_r_stride, ignore_index, vocabulary)
