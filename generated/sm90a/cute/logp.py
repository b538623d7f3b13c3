"""logp on sm_90a, written by rlk 0.1.0: do not edit.

numerics: c3ffa29cee66a130
schedule: tiles 1, 2 warps, 2 stages, unroll 1 placed V.lane[5:3] V.piece[2:0] V.lane[2:0] V.lane[7:6]
inputs:
  logits: bf16 [T, V=128256]
  ids: i64 [T]
outputs:
  logp: f32 [T]
  lse: f32 [T]
  entropy: f32 [T]
scalars:
  inv_temperature: f32
  ignore_index: i64
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


def merge_softmax_sum(m_a, l_a, centred_a, m_b, l_b, centred_b):
    # The state of two disjoint sets: centred softmax_sum().
    m = fmax(m_a, m_b)
    is_empty = m == Float32(float("-inf"))
    m_safe = select(is_empty, Float32(0.0), m)
    alpha_a_distance = m_a - m_safe
    alpha_a_exponent = mul(alpha_a_distance, Float32(1.4426950216293335))
    alpha_a = exp2(alpha_a_exponent)
    alpha_a_moved_by = fmax(alpha_a_distance, Float32(-3.4028234663852886e+38))
    is_empty_2 = m == Float32(float("-inf"))
    m_safe_2 = select(is_empty_2, Float32(0.0), m)
    alpha_b_distance = m_b - m_safe_2
    alpha_b_exponent = mul(alpha_b_distance, Float32(1.4426950216293335))
    alpha_b = exp2(alpha_b_exponent)
    alpha_b_moved_by = fmax(alpha_b_distance, Float32(-3.4028234663852886e+38))
    l_a_scaled = mul(l_a, alpha_a)
    l_b_scaled = mul(l_b, alpha_b)
    l = l_a_scaled + l_b_scaled
    centred_a_scaled = mul(centred_a, alpha_a)
    centred_b_scaled = mul(centred_b, alpha_b)
    centred_a_moved = fma(l_a_scaled, alpha_a_moved_by, centred_a_scaled)
    centred_b_moved = fma(l_b_scaled, alpha_b_moved_by, centred_b_scaled)
    centred = centred_a_moved + centred_b_moved
    return m, l, centred


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


@cute.jit
def report_where(bad, errors: cute.Pointer, code: cutlass.Constexpr, row):
    # Record an error code, and its row plus one, in the device's error words.
    if bad:
        cute.arch.atomic_max(errors, Int32(code))
        cute.arch.atomic_max(errors + 1, row)


def select(condition, a, b):
    # condition ? a : b, without a branch.
    return cutlass.select_(condition, a, b)


def softmax_sum_over_v_piece(m, l, centred, thread, reduce_buffers):
    # The states merged over V.piece, pairwise.
    m, l, centred = merged_lanes((m, l, centred,), 8, merge_softmax_sum)
    m, l, centred = merged_lanes((m, l, centred,), 16, merge_softmax_sum)
    m, l, centred = merged_across((m, l, centred,), reduce_buffers[0:3], (32,), thread, merge_softmax_sum)
    return m[0], l[0], centred[0]


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


def vector_of(memory, index, count):
    # A view of `count` contiguous, aligned elements.
    at = cute.assume(cute.crd2idx(index, memory.layout), divby=count)
    return cute.make_tensor(memory.iterator + at, (count,))


@cute.kernel
def logp_rows(
    logits: cute.Tensor, ids: cute.Tensor, logp: cute.Tensor, lse: cute.Tensor, entropy: cute.Tensor,
    errors: cute.Pointer, T: Int32, inv_temperature: Float32, ignore_index: Int64
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
    ids_value = ids[t]  # logp.py:141
    ids_ge_0 = 0 <= ids_value  # logp.py:153
    logits_guard_below = ids_value < 128256
    logits_guard = ids_ge_0 & logits_guard_below
    as_bf16 = Float32(float("nan")).to(BFloat16)
    logits_value = load_where(logits_guard, logits, (t, ids_value.to(Int32)), as_bf16)
    active = ids_value != ignore_index  # logp.py:207
    v_piece = thread // 8  # logp.py:145
    piece_begin_product = v_piece * 16032
    piece_begin = cutlass.min(128256, piece_begin_product)
    piece_end_sum = piece_begin + 16032
    piece_end = cutlass.min(128256, piece_end_sum)
    v_lane = [thread % 8 * 8 + c % 8 + c // 8 * 64 for c in range(32)]
    steps = select(active, Int32(63), Int32(0))
    full_steps = select(active, Int32(62), Int32(0))
    m = Float32(float("-inf"))
    l = Float32(0.0)
    centred = negative_zero()
    next_v = Int32(0)
    comes = next_v < full_steps
    v_step_times_256 = next_v * 256
    v_begin = piece_begin + v_step_times_256
    v = [v_begin + v_lane[c] for c in range(32)]
    logits_value_2 = [  # logp.py:146
        one for c in range(0, 32, 8) for one in load_vector_where(comes, logits, (t, v[c]), BFloat16(0), 8)
    ]
    logits_ahead = tuple(logits_value_2)
    for v_step in cutlass.range(0, full_steps, unroll=1):  # logp.py:145
        next_v_2 = v_step + 1
        comes_2 = next_v_2 < full_steps
        v_step_times_256_2 = next_v_2 * 256
        v_begin_2 = piece_begin + v_step_times_256_2
        v_2 = [v_begin_2 + v_lane[c] for c in range(32)]
        logits_value_3 = [  # logp.py:146
            one for c in range(0, 32, 8) for one in load_vector_where(comes_2, logits, (t, v_2[c]), BFloat16(0), 8)
        ]
        z = [BFloat16(logits_ahead[c]).to(Float32) for c in range(32)]  # logp.py:48
        z_2 = [mul(z[c], inv_temperature) for c in range(32)]  # logp.py:57
        m_chunk = max_over_v_lane(z_2)  # logp.py:148
        is_empty = m_chunk == Float32(float("-inf"))
        m_safe = select(is_empty, Float32(0.0), m_chunk)
        p_distance = [z_2[c] - m_safe for c in range(32)]
        p_exponent = [mul(p_distance[c], Float32(1.4426950216293335)) for c in range(32)]
        p = [exp2(p_exponent[c]) for c in range(32)]
        p_moved_by = [fmax(p_distance[c], Float32(-3.4028234663852886e+38)) for c in range(32)]
        p_times_p_moved_by = [mul(p[c], p_moved_by[c]) for c in range(32)]
        l_chunk = sum_over_v_lane(p, thread)
        centred_chunk = sum_over_v_lane(p_times_p_moved_by, thread)
        m_2 = fmax(m, m_chunk)
        is_empty_2 = m_2 == Float32(float("-inf"))
        m_safe_2 = select(is_empty_2, Float32(0.0), m_2)
        alpha_a_distance = m - m_safe_2
        alpha_a_exponent = mul(alpha_a_distance, Float32(1.4426950216293335))
        alpha_a = exp2(alpha_a_exponent)
        alpha_a_moved_by = fmax(alpha_a_distance, Float32(-3.4028234663852886e+38))
        alpha_b_distance = m_chunk - m_safe_2
        alpha_b_exponent = mul(alpha_b_distance, Float32(1.4426950216293335))
        alpha_b = exp2(alpha_b_exponent)
        alpha_b_moved_by = fmax(alpha_b_distance, Float32(-3.4028234663852886e+38))
        l_a_scaled = mul(l, alpha_a)
        l_b_scaled = mul(l_chunk, alpha_b)
        l_2 = l_a_scaled + l_b_scaled
        centred_a_scaled = mul(centred, alpha_a)
        centred_b_scaled = mul(centred_chunk, alpha_b)
        centred_a_moved = fma(l_a_scaled, alpha_a_moved_by, centred_a_scaled)
        centred_b_moved = fma(l_b_scaled, alpha_b_moved_by, centred_b_scaled)
        centred_2 = centred_a_moved + centred_b_moved
        m, l, centred, logits_ahead = m_2, l_2, centred_2, tuple(logits_value_3)
    m_2 = m  # logp.py:145
    l_2 = l
    centred_2 = centred
    for v_step_2 in cutlass.range(full_steps, steps, unroll=1):
        v_step_times_256_2 = v_step_2 * 256
        v_begin_2 = piece_begin + v_step_times_256_2
        v_2 = [v_begin_2 + v_lane[c] for c in range(32)]
        in_range = [v_2[c] < piece_end for c in range(32)]
        exists = [in_range[c] & active for c in range(32)]
        logits_value_3 = [  # logp.py:146
            one for c in range(0, 32, 8) for one in load_vector_where(exists[c], logits, (t, v_2[c]), BFloat16(0), 8)
        ]
        z = [BFloat16(logits_value_3[c]).to(Float32) for c in range(32)]  # logp.py:48
        z_2 = [mul(z[c], inv_temperature) for c in range(32)]  # logp.py:57
        z_masked = [select(exists[c], z_2[c], Float32(float("-inf"))) for c in range(32)]  # logp.py:148
        m_chunk = max_over_v_lane(z_masked)
        is_empty = m_chunk == Float32(float("-inf"))
        m_safe = select(is_empty, Float32(0.0), m_chunk)
        p_distance = [z_masked[c] - m_safe for c in range(32)]
        p_exponent = [mul(p_distance[c], Float32(1.4426950216293335)) for c in range(32)]
        p = [exp2(p_exponent[c]) for c in range(32)]
        p_moved_by = [fmax(p_distance[c], Float32(-3.4028234663852886e+38)) for c in range(32)]
        p_times_p_moved_by = [mul(p[c], p_moved_by[c]) for c in range(32)]
        l_chunk = sum_over_v_lane(p, thread)
        centred_chunk = sum_over_v_lane(p_times_p_moved_by, thread)
        m_3 = fmax(m_2, m_chunk)
        is_empty_2 = m_3 == Float32(float("-inf"))
        m_safe_2 = select(is_empty_2, Float32(0.0), m_3)
        alpha_a_distance = m_2 - m_safe_2
        alpha_a_exponent = mul(alpha_a_distance, Float32(1.4426950216293335))
        alpha_a = exp2(alpha_a_exponent)
        alpha_a_moved_by = fmax(alpha_a_distance, Float32(-3.4028234663852886e+38))
        alpha_b_distance = m_chunk - m_safe_2
        alpha_b_exponent = mul(alpha_b_distance, Float32(1.4426950216293335))
        alpha_b = exp2(alpha_b_exponent)
        alpha_b_moved_by = fmax(alpha_b_distance, Float32(-3.4028234663852886e+38))
        l_a_scaled = mul(l_2, alpha_a)
        l_b_scaled = mul(l_chunk, alpha_b)
        l_3 = l_a_scaled + l_b_scaled
        centred_a_scaled = mul(centred_2, alpha_a)
        centred_b_scaled = mul(centred_chunk, alpha_b)
        centred_a_moved = fma(l_a_scaled, alpha_a_moved_by, centred_a_scaled)
        centred_b_moved = fma(l_b_scaled, alpha_b_moved_by, centred_b_scaled)
        centred_3 = centred_a_moved + centred_b_moved
        m_2, l_2, centred_2 = m_3, l_3, centred_3
    m_3, l_3, centred_3 = softmax_sum_over_v_piece(
        [m_2], [l_2], [centred_2], thread, (reduce_smem_1, reduce_smem_2, reduce_smem_3,)
    )
    z = BFloat16(logits_value).to(Float32)  # logp.py:48
    hit = mul(z, inv_temperature)  # logp.py:57
    log_l = portable_log(l_3)  # logp.py:156
    lse_value = m_3 + log_l
    chosen = hit - lse_value  # logp.py:157
    is_nan_chosen = chosen != chosen  # logp.py:158
    both = active & is_nan_chosen
    report_where(both & writes, errors, 1, t + 1)
    chosen_masked = select(active, chosen, Float32(0.0))  # logp.py:160
    lse_masked = select(active, lse_value, Float32(0.0))  # logp.py:161
    centred_over_l = div(centred_3, l_3)  # logp.py:162
    entropy_difference = log_l - centred_over_l
    entropy_difference_masked = select(active, entropy_difference, Float32(0.0))
    store_where(writes, logp, t, chosen_masked)  # logp.py:159
    store_where(writes, lse, t, lse_masked)
    store_where(writes, entropy, t, entropy_difference_masked)


@cute.jit
def launch_logp(
    logits_ptr: cute.Pointer, ids_ptr: cute.Pointer, logp_ptr: cute.Pointer, lse_ptr: cute.Pointer,
    entropy_ptr: cute.Pointer, errors_ptr: cute.Pointer, T: Int32, logits_t_stride: Int64, inv_temperature: Float32,
    ignore_index: Int64, programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    logits = cute.make_tensor(logits_ptr, cute.make_layout((T, 128256), stride=(logits_t_stride, 1)))
    ids = cute.make_tensor(ids_ptr, cute.make_layout((T,), stride=(1,)))
    logp = cute.make_tensor(logp_ptr, cute.make_layout((T,), stride=(1,)))
    lse = cute.make_tensor(lse_ptr, cute.make_layout((T,), stride=(1,)))
    entropy = cute.make_tensor(entropy_ptr, cute.make_layout((T,), stride=(1,)))
    logp_rows(logits, ids, logp, lse, entropy, errors_ptr, T, inv_temperature, ignore_index).launch(
        grid=(programs, 1, 1), block=(64, 1, 1), use_pdl=overlap, stream=stream,
        min_blocks_per_mp=16, preferred_smem_carveout=25,
    )


def call(kernels, logits, ids, logp, lse, entropy, inv_temperature, ignore_index, T, logits_t_stride, errors):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T
    if programs > 0:
        kernels.logp(
            (programs,), logits, ids, logp, lse, entropy, errors, T, logits_t_stride, inv_temperature, ignore_index
        )
