"""policy_loss on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 519059d5f751f6a3
schedule: tiles 1, 4 warps, 1 stages, unroll 1 placed S.lane[8:2] S.lane[1:0] S.lane[9:9]
schedule: tiles 1, 16 warps, 1 stages, unroll 1 placed S_piece.lane[10:2] S_piece.lane[1:0] S_piece.lane[11:11]
inputs:
  logp: f32 [T]
  old_logp: f32 [T]
  advantages: f32 [B]
  ref_logp: f32 [T]
  order: i32 [S]
  active: bool [T]
  sequence: i32 [T]
outputs:
  per_token: f32 [T]
  loss: f32
  count: i32
  clip_fraction: f32
  approx_kl: f32
scalars:
  beta: f32
  surrogate_least: f32
  surrogate_most: f32
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


def across(x, reduce_smem, strides, thread, combine):
    # Combine with the elements of thread ^ stride, stride by stride, through shared memory.
    for i in range(len(x)):
        reduce_smem[i, thread] = x[i]
    cute.arch.sync_threads()
    far = [sum(a for k, a in enumerate(strides) if j >> k & 1) for j in range(1 << len(strides))]
    x = [[x[i], *(reduce_smem[i, thread ^ f] for f in far[1:])] for i in range(len(x))]
    for _ in strides:
        x = [folded(terms, 1, combine) for terms in x]
    return [terms[0] for terms in x]


def add(a, b):
    # a + b: the combine of sum reductions.
    return a + b


def div(a, b):
    # Correctly rounded.
    return a / b


def exchanged(x, lanes, combine):
    # Combine with the elements of lane ^ lanes (butterfly).
    return [combine(a, cute.arch.shuffle_sync_bfly(a, offset=lanes)) for a in x]


def fma(a, b, c):
    # a * b + c with one rounding.
    return cute.math.fma(a, b, c, rounding=NEAREST)


def fmax(a, b):
    # max.f32: the other operand if one is NaN.
    return cute.arch.fmax(a, b)


def fmin(a, b):
    # min.f32: the other operand if one is NaN.
    return cute.arch.fmin(a, b)


def folded(x, stride, combine):
    # Combine elements i and i + stride of a list.
    return [combine(x[i], x[i + stride]) for i in range(len(x)) if not i & stride]


def halved(x, lanes, thread, combine):
    # Combine with lane ^ lanes by recursive halving: each keeps one half of the list.
    upper, half = thread & lanes != 0, len(x) // 2
    own = [select(upper, x[i + half], x[i]) for i in range(half)]
    given = [select(upper, x[i], x[i + half]) for i in range(half)]
    return [combine(a, cute.arch.shuffle_sync_bfly(b, offset=lanes)) for a, b in zip(own, given)]


def load_vector(memory, index, count):
    # Load a vector.
    x = cute.make_rmem_tensor((count,), memory.element_type)
    cute.autovec_copy(vector_of(memory, index, count), x)
    return [x[i] for i in range(count)]


@cute.jit
def load_where(condition, memory: cute.Tensor, index, other):
    # Load an element, or `other`.
    x = other
    if condition:
        x = type(other)(memory[index])
    return x


def mul(a, b):
    # One rounding, never part of a fused operation.
    return cute.math.mul(a, b, rounding=NEAREST)


def negative_zero():
    # -0.0. The DSL keeps constants by value, so Float32(-0.0) may become Float32(0.0), which came first.
    return Int32(-(2**31)).bitcast(Float32)


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


def portable_k3(x):
    # e**d - 1 - d, accurate everywhere: the k3 estimate of a KL divergence; never negative.
    f0 = fmin(x, Float32(89.0))
    f1 = fmax(f0, Float32(-40.0))
    f2 = fma(f1, Float32(1.4426950216293335), Float32(12582912.0))
    i3 = Float32(x).bitcast(Int32)
    i4 = i3 & Int32(2147483647)
    f5 = Int32(i4).bitcast(Float32)
    f6 = select((f5 < Float32(0.75)), Float32(12582912.0), f2)
    f7 = f6 - Float32(12582912.0)
    f8 = fma(f7, Float32(-0.6931471824645996), f1)
    f9 = fma(f7, Float32(1.9046542121259336e-09), f8)
    f10 = mul(f9, f9)
    f11 = fma(Float32(2.6118525511265034e-06), f9, Float32(2.504098847566638e-05))
    f12 = fma(f11, f9, Float32(0.00019858872110489756))
    f13 = fma(f12, f9, Float32(0.0013888374669477344))
    f14 = fma(f13, f9, Float32(0.008333275094628334))
    f15 = fma(f14, f9, Float32(0.0416666679084301))
    f16 = fma(f15, f9, Float32(0.1666666716337204))
    f17 = mul(f9, f16)
    f18 = mul(f10, Float32(0.5))
    f19 = fma(f10, f17, f18)
    i20 = Float32(f6).bitcast(Int32)
    i21 = i20 << Int32(23)
    i22 = i21 + Int32(1056964608)
    f23 = Int32(i22).bitcast(Float32)
    f24 = f23 - Float32(0.5)
    f25 = fma(f0, Float32(-0.5), f24)
    f26 = fma(f23, f9, f25)
    f27 = fma(f23, f19, f26)
    f28 = f27 + f27
    f29 = select((f5 < Float32(0.75)), f19, f28)
    f30 = select((x == x), f29, x)
    return f30


def select(condition, a, b):
    # condition ? a : b, without a branch.
    return cutlass.select_(condition, a, b)


@cute.jit
def store_where(condition, memory: cute.Tensor, index, x):
    # Store an element where the condition holds.
    if condition:
        memory[index] = x


def sum_over_s_lane(x, thread, reduce_buffers):
    # The sum over S.lane, halving.
    x = folded(x, 4, add)
    x = across(x, reduce_buffers[0], (64, 32), thread, add)
    x = halved(x, 16, thread, add)
    x = halved(x, 8, thread, add)
    x = exchanged(x, 4, add)
    x = exchanged(x, 2, add)
    x = exchanged(x, 1, add)
    x = exchanged(x, 16, add)
    x = exchanged(x, 8, add)
    return x[0]


def sum_over_s_lane_2(x, thread, reduce_buffers):
    # The sum over S.lane, in any order.
    x = folded(x, 1, add)
    x = folded(x, 1, add)
    x = folded(x, 1, add)
    x = exchanged(x, 1, add)
    x = exchanged(x, 2, add)
    x = exchanged(x, 4, add)
    x = exchanged(x, 8, add)
    x = exchanged(x, 16, add)
    x = across(x, reduce_buffers[0], (32, 64), thread, add)
    return x[0]


def sum_over_s_piece_lane(x, thread, reduce_buffers):
    # The sum over S_piece.lane, halving.
    x = folded(x, 4, add)
    x = across(x, reduce_buffers[0], (256, 128, 64, 32), thread, add)
    x = halved(x, 16, thread, add)
    x = halved(x, 8, thread, add)
    x = exchanged(x, 4, add)
    x = exchanged(x, 2, add)
    x = exchanged(x, 1, add)
    x = exchanged(x, 16, add)
    x = exchanged(x, 8, add)
    return x[0]


def sum_over_s_piece_lane_2(x, thread, reduce_buffers):
    # The sum over S_piece.lane, in any order.
    x = folded(x, 1, add)
    x = folded(x, 1, add)
    x = folded(x, 1, add)
    x = exchanged(x, 1, add)
    x = exchanged(x, 2, add)
    x = exchanged(x, 4, add)
    x = exchanged(x, 8, add)
    x = exchanged(x, 16, add)
    x = across(x, reduce_buffers[0], (32, 64, 128, 256), thread, add)
    return x[0]


def vector_of(memory, index, count):
    # A view of `count` contiguous, aligned elements.
    at = cute.assume(cute.crd2idx(index, memory.layout), divby=count)
    return cute.make_tensor(memory.iterator + at, (count,))


@cute.kernel
def policy_loss_1_rows(
    logp: cute.Tensor, old_logp: cute.Tensor, advantages: cute.Tensor, ref_logp: cute.Tensor, order: cute.Tensor,
    active: cute.Tensor, sequence: cute.Tensor, per_token: cute.Tensor, sum_of_piece: cute.Tensor,
    sum_of_piece1: cute.Tensor, sum_of_piece2: cute.Tensor, sum_of_piece3: cute.Tensor, S: Int32, T: Int32, B: Int32,
    beta: Float32, surrogate_least: Float32, surrogate_most: Float32
):
    # A block owns 1 of S.piece (rows). S.lane: 1024 indices, 8 to each of 128 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    shared = utils.SmemAllocator()
    reduce_smem_1 = shared.allocate_tensor(Float32, cute.make_layout((4, 128), stride=(128, 1)), 16)
    reduce_smem_2 = shared.allocate_tensor(Int32, cute.make_layout((1, 128), stride=(128, 1)), 16)
    reduce_smem_3 = shared.allocate_tensor(Int32, cute.make_layout((1, 128), stride=(128, 1)), 16)
    reduce_smem_4 = shared.allocate_tensor(Float32, cute.make_layout((4, 128), stride=(128, 1)), 16)
    reduce_smem_5 = shared.allocate_tensor(Float32, cute.make_layout((4, 128), stride=(128, 1)), 16)
    reduce_smem_6 = shared.allocate_tensor(Int32, cute.make_layout((1, 128), stride=(128, 1)), 16)
    reduce_smem_7 = shared.allocate_tensor(Int32, cute.make_layout((1, 128), stride=(128, 1)), 16)
    reduce_smem_8 = shared.allocate_tensor(Float32, cute.make_layout((4, 128), stride=(128, 1)), 16)
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
    s_piece = block
    writes = thread == 0
    s_piece_times_1024 = s_piece * 1024  # loss.py:83
    piece_begin = cutlass.min(S, s_piece_times_1024)
    piece_begin_plus_1024 = piece_begin + 1024
    piece_end = cutlass.min(S, piece_begin_plus_1024)
    piece_end_minus_piece_begin = piece_end - piece_begin
    steps_sum = piece_end_minus_piece_begin + 1023
    steps = steps_sum // 1024
    full_steps = piece_end_minus_piece_begin // 1024
    s_lane = [thread * 4 + c % 4 + c // 4 * 512 for c in range(8)]
    total = negative_zero()
    total_2 = Int32(0)
    total_3 = Int32(0)
    total_4 = negative_zero()
    for s_step in cutlass.range(0, full_steps, unroll=1):
        s_step_times_1024 = s_step * 1024
        s_begin = piece_begin + s_step_times_1024
        s = [s_begin + s_lane[c] for c in range(8)]
        order_value = [order[s[c]] for c in range(8)]  # loss.py:84
        order_ge_0 = [0 <= order_value[c] for c in range(8)]  # policy.py:140
        order_lt_T = [order_value[c] < T for c in range(8)]
        active_guard = [order_ge_0[c] & order_lt_T[c] for c in range(8)]
        active_value = [load_where(active_guard[c], active, order_value[c], Uint8(0)) != 0 for c in range(8)]
        sequence_value = [load_where(active_guard[c], sequence, order_value[c], Int32(0)) for c in range(8)]
        sequence_ge_0 = [0 <= sequence_value[c] for c in range(8)]  # policy.py:146
        sequence_lt_B = [sequence_value[c] < B for c in range(8)]
        advantages_guard = [sequence_ge_0[c] & sequence_lt_B[c] for c in range(8)]
        advantages_value = [
            load_where(advantages_guard[c], advantages, sequence_value[c], Float32(0)) for c in range(8)
        ]
        logp_value = [load_where(active_guard[c], logp, order_value[c], Float32(0)) for c in range(8)]  # policy.py:140
        old_logp_value = [load_where(active_guard[c], old_logp, order_value[c], Float32(0)) for c in range(8)]
        ref_logp_value = [load_where(active_guard[c], ref_logp, order_value[c], Float32(0)) for c in range(8)]
        log_ratio = [logp_value[c] - old_logp_value[c] for c in range(8)]  # policy.py:191
        ratio = [portable_exp(log_ratio[c]) for c in range(8)]  # policy.py:369
        advantages_is_0 = [advantages_value[c] == Float32(0.0) for c in range(8)]  # policy.py:371
        ratio_2 = [select(advantages_is_0[c], Float32(1.0), ratio[c]) for c in range(8)]
        ratio_times_advantages = [mul(ratio_2[c], advantages_value[c]) for c in range(8)]  # surrogates.py:58
        plain = [-ratio_times_advantages[c] for c in range(8)]
        bounded = [fmax(ratio_2[c], surrogate_least) for c in range(8)]  # surrogates.py:61
        bounded_2 = [fmin(bounded[c], surrogate_most) for c in range(8)]  # surrogates.py:63
        bounded_times_advantages = [mul(bounded_2[c], advantages_value[c]) for c in range(8)]  # surrogates.py:64
        limited = [-bounded_times_advantages[c] for c in range(8)]
        plain_lt_limited = [plain[c] < limited[c] for c in range(8)]  # surrogates.py:67
        flows = [select(plain_lt_limited[c], Boolean(False), Boolean(True)) for c in range(8)]
        value = [select(flows[c], plain[c], limited[c]) for c in range(8)]  # surrogates.py:68
        clipped = [select(flows[c], Boolean(False), Boolean(True)) for c in range(8)]  # surrogates.py:77
        raw = [ref_logp_value[c] - logp_value[c] for c in range(8)]  # policy.py:331
        value_2 = [portable_k3(raw[c]) for c in range(8)]  # loss.py:23
        beta_times_value = [mul(beta, value_2[c]) for c in range(8)]  # policy.py:386
        value_3 = [value[c] + beta_times_value[c] for c in range(8)]
        value_masked = [select(active_value[c], value_3[c], Float32(0.0)) for c in range(8)]  # policy.py:499
        for c in cutlass.range_constexpr(8):
            per_token[order_value[c]] = value_masked[c]
        loss = [select(active_value[c], value_3[c], negative_zero()) for c in range(8)]  # policy.py:500
        count = [Boolean(active_value[c]).to(Int32) for c in range(8)]
        active_and_clipped = [active_value[c] & clipped[c] for c in range(8)]  # policy.py:517
        clipped_2 = [Boolean(active_and_clipped[c]).to(Int32) for c in range(8)]
        neg_log_ratio = [-log_ratio[c] for c in range(8)]  # policy.py:519
        total_k3 = [portable_k3(neg_log_ratio[c]) for c in range(8)]
        total_k3_masked = [select(active_value[c], total_k3[c], negative_zero()) for c in range(8)]
        sum_s_lane = sum_over_s_lane(loss, thread, (reduce_smem_1,))  # loss.py:86
        sum_s_lane_2 = sum_over_s_lane_2(count, thread, (reduce_smem_2,))
        sum_s_lane_3 = sum_over_s_lane_2(clipped_2, thread, (reduce_smem_3,))
        sum_s_lane_4 = sum_over_s_lane(total_k3_masked, thread, (reduce_smem_4,))
        total_5 = total + sum_s_lane
        total_6 = total_2 + sum_s_lane_2
        total_7 = total_3 + sum_s_lane_3
        total_8 = total_4 + sum_s_lane_4
        total, total_2, total_3, total_4 = total_5, total_6, total_7, total_8
    total_5 = total  # loss.py:83
    total_6 = total_2
    total_7 = total_3
    total_8 = total_4
    for s_step_2 in cutlass.range(full_steps, steps, unroll=1):
        s_step_times_1024 = s_step_2 * 1024
        s_begin = piece_begin + s_step_times_1024
        s = [s_begin + s_lane[c] for c in range(8)]
        exists = [s[c] < piece_end for c in range(8)]
        order_value = [load_where(exists[c], order, s[c], Int32(0)) for c in range(8)]  # loss.py:84
        order_ge_0 = [0 <= order_value[c] for c in range(8)]  # policy.py:140
        order_lt_T = [order_value[c] < T for c in range(8)]
        active_guard = [order_ge_0[c] & order_lt_T[c] for c in range(8)]
        active_guard_2 = [exists[c] & active_guard[c] for c in range(8)]
        active_value = [load_where(active_guard_2[c], active, order_value[c], Uint8(0)) != 0 for c in range(8)]
        sequence_value = [load_where(active_guard_2[c], sequence, order_value[c], Int32(0)) for c in range(8)]
        sequence_ge_0 = [0 <= sequence_value[c] for c in range(8)]  # policy.py:146
        sequence_lt_B = [sequence_value[c] < B for c in range(8)]
        advantages_guard = [sequence_ge_0[c] & sequence_lt_B[c] for c in range(8)]
        advantages_guard_2 = [exists[c] & advantages_guard[c] for c in range(8)]
        advantages_value = [
            load_where(advantages_guard_2[c], advantages, sequence_value[c], Float32(0)) for c in range(8)
        ]
        # policy.py:140
        logp_value = [load_where(active_guard_2[c], logp, order_value[c], Float32(0)) for c in range(8)]
        old_logp_value = [load_where(active_guard_2[c], old_logp, order_value[c], Float32(0)) for c in range(8)]
        ref_logp_value = [load_where(active_guard_2[c], ref_logp, order_value[c], Float32(0)) for c in range(8)]
        log_ratio = [logp_value[c] - old_logp_value[c] for c in range(8)]  # policy.py:191
        ratio = [portable_exp(log_ratio[c]) for c in range(8)]  # policy.py:369
        advantages_is_0 = [advantages_value[c] == Float32(0.0) for c in range(8)]  # policy.py:371
        ratio_2 = [select(advantages_is_0[c], Float32(1.0), ratio[c]) for c in range(8)]
        ratio_times_advantages = [mul(ratio_2[c], advantages_value[c]) for c in range(8)]  # surrogates.py:58
        plain = [-ratio_times_advantages[c] for c in range(8)]
        bounded = [fmax(ratio_2[c], surrogate_least) for c in range(8)]  # surrogates.py:61
        bounded_2 = [fmin(bounded[c], surrogate_most) for c in range(8)]  # surrogates.py:63
        bounded_times_advantages = [mul(bounded_2[c], advantages_value[c]) for c in range(8)]  # surrogates.py:64
        limited = [-bounded_times_advantages[c] for c in range(8)]
        plain_lt_limited = [plain[c] < limited[c] for c in range(8)]  # surrogates.py:67
        flows = [select(plain_lt_limited[c], Boolean(False), Boolean(True)) for c in range(8)]
        value = [select(flows[c], plain[c], limited[c]) for c in range(8)]  # surrogates.py:68
        clipped = [select(flows[c], Boolean(False), Boolean(True)) for c in range(8)]  # surrogates.py:77
        raw = [ref_logp_value[c] - logp_value[c] for c in range(8)]  # policy.py:331
        value_2 = [portable_k3(raw[c]) for c in range(8)]  # loss.py:23
        beta_times_value = [mul(beta, value_2[c]) for c in range(8)]  # policy.py:386
        value_3 = [value[c] + beta_times_value[c] for c in range(8)]
        value_masked = [select(active_value[c], value_3[c], Float32(0.0)) for c in range(8)]  # policy.py:499
        for c in cutlass.range_constexpr(8):
            store_where(exists[c], per_token, order_value[c], value_masked[c])
        loss = [select(active_value[c], value_3[c], negative_zero()) for c in range(8)]  # policy.py:500
        count = [Boolean(active_value[c]).to(Int32) for c in range(8)]
        active_and_clipped = [active_value[c] & clipped[c] for c in range(8)]  # policy.py:517
        clipped_2 = [Boolean(active_and_clipped[c]).to(Int32) for c in range(8)]
        neg_log_ratio = [-log_ratio[c] for c in range(8)]  # policy.py:519
        total_k3 = [portable_k3(neg_log_ratio[c]) for c in range(8)]
        total_k3_masked = [select(active_value[c], total_k3[c], negative_zero()) for c in range(8)]
        loss_masked = [select(exists[c], loss[c], negative_zero()) for c in range(8)]  # loss.py:86
        sum_s_lane = sum_over_s_lane(loss_masked, thread, (reduce_smem_5,))
        count_masked = [select(exists[c], count[c], Int32(0)) for c in range(8)]
        sum_s_lane_2 = sum_over_s_lane_2(count_masked, thread, (reduce_smem_6,))
        clipped_masked = [select(exists[c], clipped_2[c], Int32(0)) for c in range(8)]
        sum_s_lane_3 = sum_over_s_lane_2(clipped_masked, thread, (reduce_smem_7,))
        total_k3_masked_2 = [select(exists[c], total_k3_masked[c], negative_zero()) for c in range(8)]
        sum_s_lane_4 = sum_over_s_lane(total_k3_masked_2, thread, (reduce_smem_8,))
        total_9 = total_5 + sum_s_lane
        total_10 = total_6 + sum_s_lane_2
        total_11 = total_7 + sum_s_lane_3
        total_12 = total_8 + sum_s_lane_4
        total_5, total_6, total_7, total_8 = total_9, total_10, total_11, total_12
    store_where(writes, sum_of_piece, s_piece, total_5)  # loss.py:83
    store_where(writes, sum_of_piece1, s_piece, total_6)
    store_where(writes, sum_of_piece2, s_piece, total_7)
    store_where(writes, sum_of_piece3, s_piece, total_8)


@cute.jit
def launch_policy_loss_1(
    logp_ptr: cute.Pointer, old_logp_ptr: cute.Pointer, advantages_ptr: cute.Pointer, ref_logp_ptr: cute.Pointer,
    order_ptr: cute.Pointer, active_ptr: cute.Pointer, sequence_ptr: cute.Pointer, per_token_ptr: cute.Pointer,
    sum_of_piece_ptr: cute.Pointer, sum_of_piece1_ptr: cute.Pointer, sum_of_piece2_ptr: cute.Pointer,
    sum_of_piece3_ptr: cute.Pointer, S: Int32, T: Int32, B: Int32, beta: Float32, surrogate_least: Float32,
    surrogate_most: Float32, programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    logp = cute.make_tensor(logp_ptr, cute.make_layout((T,), stride=(1,)))
    old_logp = cute.make_tensor(old_logp_ptr, cute.make_layout((T,), stride=(1,)))
    advantages = cute.make_tensor(advantages_ptr, cute.make_layout((B,), stride=(1,)))
    ref_logp = cute.make_tensor(ref_logp_ptr, cute.make_layout((T,), stride=(1,)))
    order = cute.make_tensor(order_ptr, cute.make_layout((S,), stride=(1,)))
    active = cute.make_tensor(active_ptr, cute.make_layout((T,), stride=(1,)))
    sequence = cute.make_tensor(sequence_ptr, cute.make_layout((T,), stride=(1,)))
    per_token = cute.make_tensor(per_token_ptr, cute.make_layout((T,), stride=(1,)))
    sum_of_piece = cute.make_tensor(sum_of_piece_ptr, cute.make_layout((((S + 1023) // 1024),), stride=(1,)))
    sum_of_piece1 = cute.make_tensor(sum_of_piece1_ptr, cute.make_layout((((S + 1023) // 1024),), stride=(1,)))
    sum_of_piece2 = cute.make_tensor(sum_of_piece2_ptr, cute.make_layout((((S + 1023) // 1024),), stride=(1,)))
    sum_of_piece3 = cute.make_tensor(sum_of_piece3_ptr, cute.make_layout((((S + 1023) // 1024),), stride=(1,)))
    policy_loss_1_rows(
        logp, old_logp, advantages, ref_logp, order, active, sequence, per_token, sum_of_piece, sum_of_piece1,
        sum_of_piece2, sum_of_piece3, S, T, B, beta, surrogate_least, surrogate_most
    ).launch(grid=(programs, 1, 1), block=(128, 1, 1), use_pdl=overlap, stream=stream,)


@cute.kernel
def policy_loss_2_rows(
    loss: cute.Tensor, count: cute.Tensor, clip_fraction: cute.Tensor, approx_kl: cute.Tensor,
    sum_of_piece: cute.Tensor, sum_of_piece1: cute.Tensor, sum_of_piece2: cute.Tensor, sum_of_piece3: cute.Tensor,
    S: Int32
):
    # A block owns everything (rows). S_piece.lane: 4096 indices, 8 to each of 512 threads.
    thread, _, _ = cute.arch.thread_idx()
    shared = utils.SmemAllocator()
    reduce_smem_1 = shared.allocate_tensor(Float32, cute.make_layout((4, 512), stride=(512, 1)), 16)
    reduce_smem_2 = shared.allocate_tensor(Int32, cute.make_layout((1, 512), stride=(512, 1)), 16)
    reduce_smem_3 = shared.allocate_tensor(Int32, cute.make_layout((1, 512), stride=(512, 1)), 16)
    reduce_smem_4 = shared.allocate_tensor(Float32, cute.make_layout((4, 512), stride=(512, 1)), 16)
    reduce_smem_5 = shared.allocate_tensor(Float32, cute.make_layout((4, 512), stride=(512, 1)), 16)
    reduce_smem_6 = shared.allocate_tensor(Int32, cute.make_layout((1, 512), stride=(512, 1)), 16)
    reduce_smem_7 = shared.allocate_tensor(Int32, cute.make_layout((1, 512), stride=(512, 1)), 16)
    reduce_smem_8 = shared.allocate_tensor(Float32, cute.make_layout((4, 512), stride=(512, 1)), 16)
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
    writes = thread == 0
    s_piece_count_plus_4095 = ((S + 1023) // 1024) + 4095  # loss.py:83
    steps = s_piece_count_plus_4095 // 4096
    full_steps = ((S + 1023) // 1024) // 4096
    s_piece_lane = [thread * 4 + c % 4 + c // 4 * 2048 for c in range(8)]
    total = negative_zero()
    total_2 = Int32(0)
    total_3 = Int32(0)
    total_4 = negative_zero()
    for s_piece_step in cutlass.range(0, full_steps, unroll=1):
        s_piece_step_times_4096 = s_piece_step * 4096
        s_piece = [s_piece_step_times_4096 + s_piece_lane[c] for c in range(8)]
        sum_of_piece_value = [one for c in range(0, 8, 4) for one in load_vector(sum_of_piece, s_piece[c], 4)]
        sum_of_piece1_value = [one for c in range(0, 8, 4) for one in load_vector(sum_of_piece1, s_piece[c], 4)]
        sum_of_piece2_value = [one for c in range(0, 8, 4) for one in load_vector(sum_of_piece2, s_piece[c], 4)]
        sum_of_piece3_value = [one for c in range(0, 8, 4) for one in load_vector(sum_of_piece3, s_piece[c], 4)]
        sum_s_piece_lane = sum_over_s_piece_lane(sum_of_piece_value, thread, (reduce_smem_1,))  # loss.py:86
        sum_s_piece_lane_2 = sum_over_s_piece_lane_2(sum_of_piece1_value, thread, (reduce_smem_2,))
        sum_s_piece_lane_3 = sum_over_s_piece_lane_2(sum_of_piece2_value, thread, (reduce_smem_3,))
        sum_s_piece_lane_4 = sum_over_s_piece_lane(sum_of_piece3_value, thread, (reduce_smem_4,))
        total_5 = total + sum_s_piece_lane
        total_6 = total_2 + sum_s_piece_lane_2
        total_7 = total_3 + sum_s_piece_lane_3
        total_8 = total_4 + sum_s_piece_lane_4
        total, total_2, total_3, total_4 = total_5, total_6, total_7, total_8
    total_5 = total  # loss.py:83
    total_6 = total_2
    total_7 = total_3
    total_8 = total_4
    for s_piece_step_2 in cutlass.range(full_steps, steps, unroll=1):
        s_piece_step_times_4096 = s_piece_step_2 * 4096
        s_piece = [s_piece_step_times_4096 + s_piece_lane[c] for c in range(8)]
        exists = [s_piece[c] < ((S + 1023) // 1024) for c in range(8)]
        sum_of_piece_value = [load_where(exists[c], sum_of_piece, s_piece[c], Float32(0)) for c in range(8)]
        sum_of_piece1_value = [load_where(exists[c], sum_of_piece1, s_piece[c], Int32(0)) for c in range(8)]
        sum_of_piece2_value = [load_where(exists[c], sum_of_piece2, s_piece[c], Int32(0)) for c in range(8)]
        sum_of_piece3_value = [load_where(exists[c], sum_of_piece3, s_piece[c], Float32(0)) for c in range(8)]
        # loss.py:86
        sum_of_piece_masked = [select(exists[c], sum_of_piece_value[c], negative_zero()) for c in range(8)]
        sum_s_piece_lane = sum_over_s_piece_lane(sum_of_piece_masked, thread, (reduce_smem_5,))
        sum_of_piece1_masked = [select(exists[c], sum_of_piece1_value[c], Int32(0)) for c in range(8)]
        sum_s_piece_lane_2 = sum_over_s_piece_lane_2(sum_of_piece1_masked, thread, (reduce_smem_6,))
        sum_of_piece2_masked = [select(exists[c], sum_of_piece2_value[c], Int32(0)) for c in range(8)]
        sum_s_piece_lane_3 = sum_over_s_piece_lane_2(sum_of_piece2_masked, thread, (reduce_smem_7,))
        sum_of_piece3_masked = [select(exists[c], sum_of_piece3_value[c], negative_zero()) for c in range(8)]
        sum_s_piece_lane_4 = sum_over_s_piece_lane(sum_of_piece3_masked, thread, (reduce_smem_8,))
        total_9 = total_5 + sum_s_piece_lane
        total_10 = total_6 + sum_s_piece_lane_2
        total_11 = total_7 + sum_s_piece_lane_3
        total_12 = total_8 + sum_s_piece_lane_4
        total_5, total_6, total_7, total_8 = total_9, total_10, total_11, total_12
    total_max_1 = cutlass.max(total_6, 1)  # policy.py:566
    tokens = Int32(total_max_1).to(Float32)
    x = total_5 + Float32(0.0)  # policy.py:568
    loss_value = div(x, tokens)  # policy.py:560
    total_f32 = Int32(total_7).to(Float32)  # policy.py:573
    clip_fraction_value = div(total_f32, tokens)
    total_plus_0 = total_8 + Float32(0.0)  # policy.py:575
    approx_kl_value = div(total_plus_0, tokens)
    store_where(writes, loss, 0, loss_value)  # policy.py:473
    store_where(writes, count, 0, total_6)
    store_where(writes, clip_fraction, 0, clip_fraction_value)
    store_where(writes, approx_kl, 0, approx_kl_value)


@cute.jit
def launch_policy_loss_2(
    loss_ptr: cute.Pointer, count_ptr: cute.Pointer, clip_fraction_ptr: cute.Pointer, approx_kl_ptr: cute.Pointer,
    sum_of_piece_ptr: cute.Pointer, sum_of_piece1_ptr: cute.Pointer, sum_of_piece2_ptr: cute.Pointer,
    sum_of_piece3_ptr: cute.Pointer, S: Int32, programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    loss = cute.make_tensor(loss_ptr, cute.make_layout((1,), stride=(1,)))
    count = cute.make_tensor(count_ptr, cute.make_layout((1,), stride=(1,)))
    clip_fraction = cute.make_tensor(clip_fraction_ptr, cute.make_layout((1,), stride=(1,)))
    approx_kl = cute.make_tensor(approx_kl_ptr, cute.make_layout((1,), stride=(1,)))
    sum_of_piece = cute.make_tensor(sum_of_piece_ptr, cute.make_layout((((S + 1023) // 1024),), stride=(1,)))
    sum_of_piece1 = cute.make_tensor(sum_of_piece1_ptr, cute.make_layout((((S + 1023) // 1024),), stride=(1,)))
    sum_of_piece2 = cute.make_tensor(sum_of_piece2_ptr, cute.make_layout((((S + 1023) // 1024),), stride=(1,)))
    sum_of_piece3 = cute.make_tensor(sum_of_piece3_ptr, cute.make_layout((((S + 1023) // 1024),), stride=(1,)))
    policy_loss_2_rows(
        loss, count, clip_fraction, approx_kl, sum_of_piece, sum_of_piece1, sum_of_piece2, sum_of_piece3, S
    ).launch(grid=(programs, 1, 1), block=(512, 1, 1), use_pdl=overlap, stream=stream,)


def call(
    kernels, logp, old_logp, advantages, ref_logp, order, active, sequence, per_token, sum_of_piece, sum_of_piece1,
    sum_of_piece2, sum_of_piece3, loss, count, clip_fraction, approx_kl, beta, surrogate_least, surrogate_most, S, T, B
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((S + 1023) // 1024)
    if programs > 0:
        kernels.policy_loss_1(
            (programs,), logp, old_logp, advantages, ref_logp, order, active, sequence, per_token, sum_of_piece,
            sum_of_piece1, sum_of_piece2, sum_of_piece3, S, T, B, beta, surrogate_least, surrogate_most
        )
    programs = 1
    if programs > 0:
        kernels.policy_loss_2(
            (programs,), loss, count, clip_fraction, approx_kl, sum_of_piece, sum_of_piece1, sum_of_piece2,
            sum_of_piece3, S
        )
