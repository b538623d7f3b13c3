"""smoothed_loss on sm_90a, written by rlk 0.1.0: do not edit.

numerics: bd50af97bab9ad47
schedule: tiles 1, 2 warps, 2 stages, unroll 1 placed V.lane[5:3] V.piece[2:0] V.lane[2:0] V.lane[7:6]
inputs:
  logits: bf16 [T, V=128256]
  targets: i64 [T]
outputs:
  loss: f32 [T]
  lse: f32 [T]
scalars:
  smoothing: f32
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


def add(a, b):
    # a + b: the combine of sum reductions.
    return a + b


def div(a, b):
    # Correctly rounded.
    return a / b


def exchanged(x, lanes, combine):
    # Combine with the elements of lane ^ lanes (butterfly).
    return [combine(a, cute.arch.shuffle_sync_bfly(a, offset=lanes)) for a in x]


def exp2(x):
    # ex2.approx.ftz.f32.
    return cute.math.exp2(x, fastmath=True)


def fma(a, b, c):
    # a * b + c with one rounding.
    return cute.math.fma(a, b, c, rounding=NEAREST)


def fmax(a, b):
    # max.f32: the other operand if one is NaN.
    return cute.arch.fmax(a, b)


def folded(x, stride, combine):
    # Combine elements i and i + stride of a list.
    return [combine(x[i], x[i + stride]) for i in range(len(x)) if not i & stride]


def halved(x, lanes, thread, combine):
    # Combine with lane ^ lanes by recursive halving: each keeps one half of the list.
    upper, half = thread & lanes != 0, len(x) // 2
    own = [select(upper, x[i + half], x[i]) for i in range(half)]
    given = [select(upper, x[i], x[i + half]) for i in range(half)]
    return [combine(a, cute.arch.shuffle_sync_bfly(b, offset=lanes)) for a, b in zip(own, given)]


@cute.jit
def load_vector_where(condition, memory: cute.Tensor, index, other, count: cutlass.Constexpr):
    # Load a vector, or `other` where the condition is false.
    x = cute.make_rmem_tensor((count,), memory.element_type)
    x.fill(other)
    if condition:
        cute.autovec_copy(vector_of(memory, index, count), x)
    return [x[i] for i in range(count)]


@cute.jit
def load_where(condition, memory: cute.Tensor, index, other):
    # Load an element, or `other`.
    x = other
    if condition:
        x = type(other)(memory[index])
    return x


def max_over_v_lane(x):
    # The max over V.lane, in any order.
    x = folded(x, 1, fmax)
    x = folded(x, 1, fmax)
    x = folded(x, 1, fmax)
    x = folded(x, 1, fmax)
    x = folded(x, 1, fmax)
    x = exchanged(x, 1, fmax)
    x = exchanged(x, 2, fmax)
    x = exchanged(x, 4, fmax)
    return x[0]


def merge_softmax_sum(m_a, l_a, m_b, l_b):
    # The state of two disjoint sets: softmax_sum().
    m = fmax(m_a, m_b)
    is_empty = m == Float32(float("-inf"))
    m_safe = select(is_empty, Float32(0.0), m)
    alpha_a_distance = m_a - m_safe
    alpha_a_exponent = mul(alpha_a_distance, Float32(1.4426950216293335))
    alpha_a = exp2(alpha_a_exponent)
    is_empty_2 = m == Float32(float("-inf"))
    m_safe_2 = select(is_empty_2, Float32(0.0), m)
    alpha_b_distance = m_b - m_safe_2
    alpha_b_exponent = mul(alpha_b_distance, Float32(1.4426950216293335))
    alpha_b = exp2(alpha_b_exponent)
    l_a_scaled = mul(l_a, alpha_a)
    l_b_scaled = mul(l_b, alpha_b)
    l = l_a_scaled + l_b_scaled
    return m, l


def merge_total(total_a, total_b):
    # The state of two disjoint sets: total().
    total = total_a + total_b
    return total,


def merged(states, stride, merge):
    # Merge states i and i + stride of a thread's lists.
    first = [i for i in range(len(states[0])) if not i & stride]
    each = [merge(*(x[i] for x in states), *(x[i + stride] for x in states)) for i in first]
    return tuple([state[k] for state in each] for k in range(len(states)))


def merged_across(states, reduce_buffers, strides, thread, merge):
    # Merge with the states of thread ^ stride, stride by stride, through shared memory.
    count = len(states[0])
    for x, reduce_smem in zip(states, reduce_buffers):
        for i in range(count):
            reduce_smem[i, thread] = x[i]
    cute.arch.sync_threads()
    far = [sum(a for k, a in enumerate(strides) if j >> k & 1) for j in range(1 << len(strides))]
    each = []
    for i in range(count):
        terms = [
            [x[i], *(reduce_smem[i, thread ^ f] for f in far[1:])]
            for x, reduce_smem in zip(states, reduce_buffers)
        ]
        for _ in strides:
            terms = merged(terms, 1, merge)
        each.append([x[0] for x in terms])
    return tuple([state[k] for state in each] for k in range(len(states)))


def merged_lanes(states, lanes, merge):
    # Merge with the states of lane ^ lanes (butterfly shuffle).
    others = [[cute.arch.shuffle_sync_bfly(a, offset=lanes) for a in x] for x in states]
    each = [merge(*one, *two) for one, two in zip(zip(*states), zip(*others))]
    return tuple([state[k] for state in each] for k in range(len(states)))


def mul(a, b):
    # One rounding, never part of a fused operation.
    return cute.math.mul(a, b, rounding=NEAREST)


def negative_zero():
    # -0.0. The DSL keeps constants by value, so Float32(-0.0) may become Float32(0.0), which came first.
    return Int32(-(2**31)).bitcast(Float32)


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


def select(condition, a, b):
    # condition ? a : b, without a branch.
    return cutlass.select_(condition, a, b)


def softmax_sum_over_v_piece(m, l, thread, reduce_buffers):
    # The states merged over V.piece, pairwise.
    m, l = merged_lanes((m, l,), 8, merge_softmax_sum)
    m, l = merged_lanes((m, l,), 16, merge_softmax_sum)
    m, l = merged_across((m, l,), reduce_buffers[0:2], (32,), thread, merge_softmax_sum)
    return m[0], l[0]


@cute.jit
def store_where(condition, memory: cute.Tensor, index, x):
    # Store an element where the condition holds.
    if condition:
        memory[index] = x


def sum_over_v_lane(x, thread):
    # The sum over V.lane, halving.
    x = folded(x, 16, add)
    x = folded(x, 8, add)
    x = halved(x, 4, thread, add)
    x = halved(x, 2, thread, add)
    x = halved(x, 1, thread, add)
    x = exchanged(x, 4, add)
    x = exchanged(x, 2, add)
    x = exchanged(x, 1, add)
    return x[0]


def total_over_v_piece(total, thread, reduce_buffers):
    # The states merged over V.piece, pairwise.
    total, = merged_lanes((total,), 8, merge_total)
    total, = merged_lanes((total,), 16, merge_total)
    total, = merged_across((total,), reduce_buffers[0:1], (32,), thread, merge_total)
    return total[0]


def vector_of(memory, index, count):
    # A view of `count` contiguous, aligned elements.
    at = cute.assume(cute.crd2idx(index, memory.layout), divby=count)
    return cute.make_tensor(memory.iterator + at, (count,))


@cute.kernel
def smoothed_loss_rows(
    logits: cute.Tensor, targets: cute.Tensor, loss: cute.Tensor, lse: cute.Tensor, T: Int32, smoothing: Float32
):
    # A block owns 1 of T (rows). V.piece: 8 indices, 1 to each of 8 threads; V.lane: 256 indices, 32 to each of 8
    # threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    shared = utils.SmemAllocator()
    reduce_smem_1 = shared.allocate_tensor(Float32, cute.make_layout((1, 64), stride=(64, 1)), 16)
    reduce_smem_2 = shared.allocate_tensor(Float32, cute.make_layout((1, 64), stride=(64, 1)), 16)
    reduce_smem_3 = shared.allocate_tensor(Float32, cute.make_layout((1, 64), stride=(64, 1)), 16)
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
    t = block
    writes = thread == 0
    targets_value = targets[t]  # smoothed_loss.py:32
    targets_ge_0 = 0 <= targets_value
    logits_guard_below = targets_value < 128256
    logits_guard = targets_ge_0 & logits_guard_below
    as_bf16 = Float32(float("nan")).to(BFloat16)
    logits_value = load_where(logits_guard, logits, (t, targets_value.to(Int32)), as_bf16)
    v_piece = thread // 8  # smoothed_loss.py:27
    piece_begin_product = v_piece * 16032
    piece_begin = cutlass.min(128256, piece_begin_product)
    piece_end_sum = piece_begin + 16032
    piece_end = cutlass.min(128256, piece_end_sum)
    v_lane = [thread % 8 * 8 + c % 8 + c // 8 * 64 for c in range(32)]
    m = Float32(float("-inf"))
    l = negative_zero()
    total = negative_zero()
    next_v = Int32(0)
    comes = next_v < 62
    v_step_times_256 = next_v * 256
    v_begin = piece_begin + v_step_times_256
    v = [v_begin + v_lane[c] for c in range(32)]
    logits_value_2 = [  # smoothed_loss.py:28
        one for c in range(0, 32, 8) for one in load_vector_where(comes, logits, (t, v[c]), BFloat16(0), 8)
    ]
    logits_ahead = tuple(logits_value_2)
    for v_step in cutlass.range(0, 62, unroll=1):  # smoothed_loss.py:27
        next_v_2 = v_step + 1
        comes_2 = next_v_2 < 62
        v_step_times_256_2 = next_v_2 * 256
        v_begin_2 = piece_begin + v_step_times_256_2
        v_2 = [v_begin_2 + v_lane[c] for c in range(32)]
        logits_value_3 = [  # smoothed_loss.py:28
            one for c in range(0, 32, 8) for one in load_vector_where(comes_2, logits, (t, v_2[c]), BFloat16(0), 8)
        ]
        z = [BFloat16(logits_ahead[c]).to(Float32) for c in range(32)]
        m_chunk = max_over_v_lane(z)  # smoothed_loss.py:29
        is_empty = m_chunk == Float32(float("-inf"))
        m_safe = select(is_empty, Float32(0.0), m_chunk)
        p_distance = [z[c] - m_safe for c in range(32)]
        p_exponent = [mul(p_distance[c], Float32(1.4426950216293335)) for c in range(32)]
        p = [exp2(p_exponent[c]) for c in range(32)]
        l_chunk = sum_over_v_lane(p, thread)
        sum_v_lane = sum_over_v_lane(z, thread)  # smoothed_loss.py:30
        m_2 = fmax(m, m_chunk)  # smoothed_loss.py:29
        is_empty_2 = m_2 == Float32(float("-inf"))
        m_safe_2 = select(is_empty_2, Float32(0.0), m_2)
        alpha_a_distance = m - m_safe_2
        alpha_a_exponent = mul(alpha_a_distance, Float32(1.4426950216293335))
        alpha_a = exp2(alpha_a_exponent)
        alpha_b_distance = m_chunk - m_safe_2
        alpha_b_exponent = mul(alpha_b_distance, Float32(1.4426950216293335))
        alpha_b = exp2(alpha_b_exponent)
        l_a_scaled = mul(l, alpha_a)
        l_b_scaled = mul(l_chunk, alpha_b)
        l_2 = l_a_scaled + l_b_scaled
        total_2 = total + sum_v_lane  # smoothed_loss.py:30
        m, l, total, logits_ahead = m_2, l_2, total_2, tuple(logits_value_3)
    m_2 = m  # smoothed_loss.py:27
    l_2 = l
    total_2 = total
    for v_step_2 in cutlass.range(62, 63, unroll=1):
        v_step_times_256_2 = v_step_2 * 256
        v_begin_2 = piece_begin + v_step_times_256_2
        v_2 = [v_begin_2 + v_lane[c] for c in range(32)]
        exists = [v_2[c] < piece_end for c in range(32)]
        logits_value_3 = [  # smoothed_loss.py:28
            one for c in range(0, 32, 8) for one in load_vector_where(exists[c], logits, (t, v_2[c]), BFloat16(0), 8)
        ]
        z = [BFloat16(logits_value_3[c]).to(Float32) for c in range(32)]
        z_masked = [select(exists[c], z[c], Float32(float("-inf"))) for c in range(32)]  # smoothed_loss.py:29
        m_chunk = max_over_v_lane(z_masked)
        is_empty = m_chunk == Float32(float("-inf"))
        m_safe = select(is_empty, Float32(0.0), m_chunk)
        p_distance = [z_masked[c] - m_safe for c in range(32)]
        p_exponent = [mul(p_distance[c], Float32(1.4426950216293335)) for c in range(32)]
        p = [exp2(p_exponent[c]) for c in range(32)]
        l_chunk = sum_over_v_lane(p, thread)
        z_masked_2 = [select(exists[c], z[c], negative_zero()) for c in range(32)]  # smoothed_loss.py:30
        sum_v_lane = sum_over_v_lane(z_masked_2, thread)
        m_3 = fmax(m_2, m_chunk)  # smoothed_loss.py:29
        is_empty_2 = m_3 == Float32(float("-inf"))
        m_safe_2 = select(is_empty_2, Float32(0.0), m_3)
        alpha_a_distance = m_2 - m_safe_2
        alpha_a_exponent = mul(alpha_a_distance, Float32(1.4426950216293335))
        alpha_a = exp2(alpha_a_exponent)
        alpha_b_distance = m_chunk - m_safe_2
        alpha_b_exponent = mul(alpha_b_distance, Float32(1.4426950216293335))
        alpha_b = exp2(alpha_b_exponent)
        l_a_scaled = mul(l_2, alpha_a)
        l_b_scaled = mul(l_chunk, alpha_b)
        l_3 = l_a_scaled + l_b_scaled
        total_3 = total_2 + sum_v_lane  # smoothed_loss.py:30
        m_2, l_2, total_2 = m_3, l_3, total_3
    m_3, l_3 = softmax_sum_over_v_piece([m_2], [l_2], thread, (reduce_smem_1, reduce_smem_2,))  # smoothed_loss.py:29
    total_3 = total_over_v_piece([total_2], thread, (reduce_smem_3,))  # smoothed_loss.py:30
    log_l = portable_log(l_3)  # smoothed_loss.py:31
    lse_value = m_3 + log_l
    hit = BFloat16(logits_value).to(Float32)  # smoothed_loss.py:32
    level = div(total_3, Float32(128256.0))  # smoothed_loss.py:33
    _1_minus_smoothing = Float32(1.0) - smoothing  # smoothed_loss.py:34
    lse_minus_hit = lse_value - hit
    loss_product = mul(_1_minus_smoothing, lse_minus_hit)
    lse_minus_level = lse_value - level
    loss_product_2 = mul(smoothing, lse_minus_level)
    loss_value = loss_product + loss_product_2
    store_where(writes, loss, t, loss_value)
    store_where(writes, lse, t, lse_value)


@cute.jit
def launch_smoothed_loss(
    logits_ptr: cute.Pointer, targets_ptr: cute.Pointer, loss_ptr: cute.Pointer, lse_ptr: cute.Pointer, T: Int32,
    logits_t_stride: Int64, smoothing: Float32, programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    logits = cute.make_tensor(logits_ptr, cute.make_layout((T, 128256), stride=(logits_t_stride, 1)))
    targets = cute.make_tensor(targets_ptr, cute.make_layout((T,), stride=(1,)))
    loss = cute.make_tensor(loss_ptr, cute.make_layout((T,), stride=(1,)))
    lse = cute.make_tensor(lse_ptr, cute.make_layout((T,), stride=(1,)))
    smoothed_loss_rows(logits, targets, loss, lse, T, smoothing).launch(
        grid=(programs, 1, 1), block=(64, 1, 1), use_pdl=overlap, stream=stream,
        min_blocks_per_mp=16, preferred_smem_carveout=25,
    )


def call(kernels, logits, targets, loss, lse, smoothing, T, logits_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T
    if programs > 0:
        kernels.smoothed_loss((programs,), logits, targets, loss, lse, T, logits_t_stride, smoothing)
