"""linear_attention_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: bf53b7bb2cab3ba4
schedule: tiles 1, 2 warps, 2 stages, unroll 1 placed W[2:0] K[2:0] K[5:3] W[5:3]
inputs:
  q: f32 [T, K=64]
  k: f32 [T, K=64]
  v: f32 [T, W=64]
  gate: f32 [T]
  begin: i32 [B]
  end: i32 [B]
  o: f32 [T, W=64]
  d_o: f32 [T, W=64]
outputs:
  d_q: f32 [T, K=64]
  d_k: f32 [T, K=64]
  d_v: f32 [T, W=64]
  d_gate: f32 [T]
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


def folded(x, stride, combine):
    # Combine elements i and i + stride of a list.
    return [combine(x[i], x[i + stride]) for i in range(len(x)) if not i & stride]


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


@cute.jit
def store_where(condition, memory: cute.Tensor, index, x):
    # Store an element where the condition holds.
    if condition:
        memory[index] = x


def sum_over_k(x, thread, reduce_buffers):
    # The sum over K, halving.
    x = folded(x, 32, add)
    x = folded(x, 16, add)
    x = folded(x, 8, add)
    x = across(x, reduce_buffers[0], (32,), thread, add)
    x = exchanged(x, 16, add)
    x = exchanged(x, 8, add)
    return x


def sum_over_k_2(x, thread, reduce_buffers):
    # The sum over K, halving.
    x = folded(x, 4, add)
    x = folded(x, 2, add)
    x = folded(x, 1, add)
    x = across(x, reduce_buffers[0], (32,), thread, add)
    x = exchanged(x, 16, add)
    x = exchanged(x, 8, add)
    return x[0]


def sum_over_w(x):
    # The sum over W, halving.
    x = folded(x, 4, add)
    x = folded(x, 2, add)
    x = folded(x, 1, add)
    x = exchanged(x, 4, add)
    x = exchanged(x, 2, add)
    x = exchanged(x, 1, add)
    return x


def sum_over_w_2(x):
    # The sum over W, halving.
    x = folded(x, 4, add)
    x = folded(x, 2, add)
    x = folded(x, 1, add)
    x = exchanged(x, 4, add)
    x = exchanged(x, 2, add)
    x = exchanged(x, 1, add)
    return x[0]


@cute.kernel
def linear_attention_grad_rows(
    q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, gate: cute.Tensor, begin: cute.Tensor, end: cute.Tensor,
    o: cute.Tensor, d_o: cute.Tensor, d_q: cute.Tensor, d_k: cute.Tensor, d_v: cute.Tensor, d_gate: cute.Tensor,
    T: Int32, B: Int32
):
    # A block owns 1 of B (rows). K: 64 indices, 8 to each of 8 threads; W: 64 indices, 8 to each of 8 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    shared = utils.SmemAllocator()
    reduce_smem_1 = shared.allocate_tensor(Float32, cute.make_layout((8, 64), stride=(64, 1)), 16)
    reduce_smem_2 = shared.allocate_tensor(Float32, cute.make_layout((1, 64), stride=(64, 1)), 16)
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
    b = block
    writes = (thread & 7) == 0
    writes_2 = (thread & 56) == 0
    writes_3 = thread == 0
    begin_value = begin[b]  # linear_attention.py:47
    end_value = end[b]
    end_minus_begin = end_value - begin_value
    k_value = [thread // 8 + c * 8 for c in range(8)]  # linear_attention.py:48
    w = [thread % 8 + c * 8 for c in range(8)]
    s_state = tuple([Float32(0.0) for c in range(64)])  # linear_attention.py:47
    next_s = Int32(0)
    comes = next_s < end_minus_begin
    s = begin_value + next_s
    s_ge_0 = 0 <= s  # linear_attention.py:48
    s_lt_T = s < T
    gate_guard = s_ge_0 & s_lt_T
    gate_value = load_where(comes & gate_guard, gate, s, Float32(0))
    k_value_2 = [load_where(comes & gate_guard, k, (s, k_value[c]), Float32(0)) for c in range(8)]
    v_value = [load_where(comes & gate_guard, v, (s, w[c]), Float32(0)) for c in range(8)]
    d_o_value = [load_where(comes & gate_guard, d_o, (s, w[c]), Float32(0)) for c in range(8)]  # linear_attention.py:49
    k_ahead = tuple(k_value_2)
    v_ahead = tuple(v_value)
    d_o_ahead = tuple(d_o_value)
    for s_step in cutlass.range(0, end_minus_begin, unroll=1):  # linear_attention.py:47
        next_s_2 = s_step + 1
        comes_2 = next_s_2 < end_minus_begin
        s_2 = begin_value + next_s_2
        s_ge_0_2 = 0 <= s_2  # linear_attention.py:48
        s_lt_T_2 = s_2 < T
        gate_guard_2 = s_ge_0_2 & s_lt_T_2
        gate_value_2 = load_where(comes_2 & gate_guard_2, gate, s_2, Float32(0))
        k_value_3 = [load_where(comes_2 & gate_guard_2, k, (s_2, k_value[c]), Float32(0)) for c in range(8)]
        v_value_2 = [load_where(comes_2 & gate_guard_2, v, (s_2, w[c]), Float32(0)) for c in range(8)]
        # linear_attention.py:49
        d_o_value_2 = [load_where(comes_2 & gate_guard_2, d_o, (s_2, w[c]), Float32(0)) for c in range(8)]
        s_3 = begin_value + s_step  # linear_attention.py:47
        new_product = [mul(gate_value, s_state[c]) for c in range(64)]  # linear_attention.py:48
        k_times_v = [mul(k_ahead[c // 8], v_ahead[c % 8]) for c in range(64)]
        new = [new_product[c] + k_times_v[c] for c in range(64)]
        d_o_times_new = [mul(d_o_ahead[c % 8], new[c]) for c in range(64)]  # linear_attention.py:49
        dq = sum_over_w(d_o_times_new)
        for c in cutlass.range_constexpr(8):  # linear_attention.py:50
            store_where(writes, d_q, (s_3, k_value[c]), dq[c])
        s_state, gate_value, k_ahead, v_ahead, d_o_ahead = (
            tuple(new), gate_value_2, tuple(k_value_3), tuple(v_value_2), tuple(d_o_value_2)
        )
    end_minus_1 = end_value - 1  # linear_attention.py:53
    s_state_2 = tuple([Float32(0.0) for c in range(64)])
    s_state_3 = Float32(0.0)
    next_s_2 = Int32(0)
    comes_2 = next_s_2 < end_minus_begin
    s_2 = end_minus_1 - next_s_2
    s_ge_0_2 = 0 <= s_2  # linear_attention.py:55
    s_lt_T_2 = s_2 < T
    gate_guard_2 = s_ge_0_2 & s_lt_T_2
    gate_value_2 = load_where(comes_2 & gate_guard_2, gate, s_2, Float32(0))
    k_value_3 = [load_where(comes_2 & gate_guard_2, k, (s_2, k_value[c]), Float32(0)) for c in range(8)]
    v_value_2 = [load_where(comes_2 & gate_guard_2, v, (s_2, w[c]), Float32(0)) for c in range(8)]
    d_o_value_2 = [load_where(comes_2 & gate_guard_2, d_o, (s_2, w[c]), Float32(0)) for c in range(8)]
    # linear_attention.py:57
    q_value = [load_where(comes_2 & gate_guard_2, q, (s_2, k_value[c]), Float32(0)) for c in range(8)]
    # linear_attention.py:64
    o_value = [load_where(comes_2 & gate_guard_2, o, (s_2, w[c]), Float32(0)) for c in range(8)]
    k_ahead_2 = tuple(k_value_3)
    v_ahead_2 = tuple(v_value_2)
    d_o_ahead_2 = tuple(d_o_value_2)
    q_ahead = tuple(q_value)
    o_ahead = tuple(o_value)
    for s_step_2 in cutlass.range(0, end_minus_begin, unroll=1):  # linear_attention.py:53
        next_s_3 = s_step_2 + 1
        comes_3 = next_s_3 < end_minus_begin
        s_3 = end_minus_1 - next_s_3
        s_ge_0_3 = 0 <= s_3  # linear_attention.py:55
        s_lt_T_3 = s_3 < T
        gate_guard_3 = s_ge_0_3 & s_lt_T_3
        gate_value_3 = load_where(comes_3 & gate_guard_3, gate, s_3, Float32(0))
        k_value_4 = [load_where(comes_3 & gate_guard_3, k, (s_3, k_value[c]), Float32(0)) for c in range(8)]
        v_value_3 = [load_where(comes_3 & gate_guard_3, v, (s_3, w[c]), Float32(0)) for c in range(8)]
        d_o_value_3 = [load_where(comes_3 & gate_guard_3, d_o, (s_3, w[c]), Float32(0)) for c in range(8)]
        # linear_attention.py:57
        q_value_2 = [load_where(comes_3 & gate_guard_3, q, (s_3, k_value[c]), Float32(0)) for c in range(8)]
        # linear_attention.py:64
        o_value_2 = [load_where(comes_3 & gate_guard_3, o, (s_3, w[c]), Float32(0)) for c in range(8)]
        s_4 = end_minus_1 - s_step_2  # linear_attention.py:53
        q_times_d_o = [mul(q_ahead[c // 8], d_o_ahead_2[c % 8]) for c in range(64)]  # linear_attention.py:57
        pull = [q_times_d_o[c] + s_state_2[c] for c in range(64)]
        pull_times_v = [mul(pull[c], v_ahead_2[c % 8]) for c in range(64)]  # linear_attention.py:58
        dk = sum_over_w(pull_times_v)
        for c in cutlass.range_constexpr(8):  # linear_attention.py:60
            store_where(writes, d_k, (s_4, k_value[c]), dk[c])
        pull_times_k = [mul(pull[c], k_ahead_2[c // 8]) for c in range(64)]  # linear_attention.py:62
        sum_k = sum_over_k(pull_times_k, thread, (reduce_smem_1,))
        for c in cutlass.range_constexpr(8):
            store_where(writes_2, d_v, (s_4, w[c]), sum_k[c])
        o_times_d_o = [mul(o_ahead[c], d_o_ahead_2[c]) for c in range(8)]  # linear_attention.py:64
        own = sum_over_w_2(o_times_d_o)
        k_times_dk = [mul(k_ahead_2[c], dk[c]) for c in range(8)]  # linear_attention.py:65
        sum_k_2 = sum_over_k_2(k_times_dk, thread, (reduce_smem_2,))
        own_minus_add_over_k = own - sum_k_2
        made = s_state_3 + own_minus_add_over_k
        d_gate_value = div(made, gate_value_2)  # linear_attention.py:66
        store_where(writes_3, d_gate, s_4, d_gate_value)
        gate_times_pull = [mul(gate_value_2, pull[c]) for c in range(64)]  # linear_attention.py:68
        s_state_2, s_state_3, gate_value_2, k_ahead_2, v_ahead_2, d_o_ahead_2, q_ahead, o_ahead = (
            tuple(gate_times_pull), made, gate_value_3, tuple(k_value_4), tuple(v_value_3), tuple(d_o_value_3),
            tuple(q_value_2), tuple(o_value_2)
        )


@cute.jit
def launch_linear_attention_grad(
    q_ptr: cute.Pointer, k_ptr: cute.Pointer, v_ptr: cute.Pointer, gate_ptr: cute.Pointer, begin_ptr: cute.Pointer,
    end_ptr: cute.Pointer, o_ptr: cute.Pointer, d_o_ptr: cute.Pointer, d_q_ptr: cute.Pointer, d_k_ptr: cute.Pointer,
    d_v_ptr: cute.Pointer, d_gate_ptr: cute.Pointer, T: Int32, q_t_stride: Int64, k_t_stride: Int64, v_t_stride: Int64,
    B: Int32, o_t_stride: Int64, d_o_t_stride: Int64, d_q_t_stride: Int64, d_k_t_stride: Int64, d_v_t_stride: Int64,
    programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    q = cute.make_tensor(q_ptr, cute.make_layout((T, 64), stride=(q_t_stride, 1)))
    k = cute.make_tensor(k_ptr, cute.make_layout((T, 64), stride=(k_t_stride, 1)))
    v = cute.make_tensor(v_ptr, cute.make_layout((T, 64), stride=(v_t_stride, 1)))
    gate = cute.make_tensor(gate_ptr, cute.make_layout((T,), stride=(1,)))
    begin = cute.make_tensor(begin_ptr, cute.make_layout((B,), stride=(1,)))
    end = cute.make_tensor(end_ptr, cute.make_layout((B,), stride=(1,)))
    o = cute.make_tensor(o_ptr, cute.make_layout((T, 64), stride=(o_t_stride, 1)))
    d_o = cute.make_tensor(d_o_ptr, cute.make_layout((T, 64), stride=(d_o_t_stride, 1)))
    d_q = cute.make_tensor(d_q_ptr, cute.make_layout((T, 64), stride=(d_q_t_stride, 1)))
    d_k = cute.make_tensor(d_k_ptr, cute.make_layout((T, 64), stride=(d_k_t_stride, 1)))
    d_v = cute.make_tensor(d_v_ptr, cute.make_layout((T, 64), stride=(d_v_t_stride, 1)))
    d_gate = cute.make_tensor(d_gate_ptr, cute.make_layout((T,), stride=(1,)))
    linear_attention_grad_rows(q, k, v, gate, begin, end, o, d_o, d_q, d_k, d_v, d_gate, T, B).launch(
        grid=(programs, 1, 1), block=(64, 1, 1), use_pdl=overlap, stream=stream,
    )


def call(
    kernels, q, k, v, gate, begin, end, o, d_o, d_q, d_k, d_v, d_gate, T, B, q_t_stride, k_t_stride, v_t_stride,
    o_t_stride, d_o_t_stride, d_q_t_stride, d_k_t_stride, d_v_t_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = B
    if programs > 0:
        kernels.linear_attention_grad(
            (programs,), q, k, v, gate, begin, end, o, d_o, d_q, d_k, d_v, d_gate, T, q_t_stride, k_t_stride,
            v_t_stride, B, o_t_stride, d_o_t_stride, d_q_t_stride, d_k_t_stride, d_v_t_stride
        )
