"""linear_attention on sm_90a, written by rlk 0.1.0: do not edit.

numerics: a53b837bfbfc08ff
schedule: tiles W=16, 1 warps, 2 stages, unroll 1 placed W[3:0] K[5:5] K[4:0]
inputs:
  q: f32 [T, K=64]
  k: f32 [T, K=64]
  v: f32 [T, W=64]
  gate: f32 [T]
  begin: i32 [B]
  end: i32 [B]
outputs:
  o: f32 [T, W=64]
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


def exchanged(x, lanes, combine):
    # Combine with the elements of lane ^ lanes (butterfly).
    return [combine(a, cute.arch.shuffle_sync_bfly(a, offset=lanes)) for a in x]


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


def mul(a, b):
    # One rounding, never part of a fused operation.
    return cute.math.mul(a, b, rounding=NEAREST)


def select(condition, a, b):
    # condition ? a : b, without a branch.
    return cutlass.select_(condition, a, b)


@cute.jit
def store_where(condition, memory: cute.Tensor, index, x):
    # Store an element where the condition holds.
    if condition:
        memory[index] = x


def sum_over_k(x, thread):
    # The sum over K, halving.
    x = halved(x, 16, thread, add)
    x = halved(x, 16, thread, add)
    x = halved(x, 16, thread, add)
    x = halved(x, 16, thread, add)
    x = halved(x, 16, thread, add)
    x = exchanged(x, 16, add)
    return x[0]


def vector_of(memory, index, count):
    # A view of `count` contiguous, aligned elements.
    at = cute.assume(cute.crd2idx(index, memory.layout), divby=count)
    return cute.make_tensor(memory.iterator + at, (count,))


@cute.kernel
def linear_attention_rows(
    q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, gate: cute.Tensor, begin: cute.Tensor, end: cute.Tensor,
    o: cute.Tensor, T: Int32, B: Int32
):
    # A block owns 1 of B, 16 of W (rows). K: 64 indices, 32 to each of 2 threads; W: 16 indices, 1 to each of 16
    # threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
    rest = block // 4
    b = rest
    w = block % 4 * 16 + thread % 16
    writes = (thread & 16) == 0
    begin_value = begin[b]  # linear_attention.py:31
    end_value = end[b]
    end_minus_begin = end_value - begin_value
    k_value = [thread // 16 * 32 + c for c in range(32)]  # linear_attention.py:32
    s_state = tuple([Float32(0.0) for c in range(32)])  # linear_attention.py:31
    next_s = Int32(0)
    comes = next_s < end_minus_begin
    s = begin_value + next_s
    s_ge_0 = 0 <= s  # linear_attention.py:32
    s_lt_T = s < T
    gate_guard = s_ge_0 & s_lt_T
    gate_value = load_where(comes & gate_guard, gate, s, Float32(0))
    k_value_2 = [
        one for c in range(0, 32, 4) for one in load_vector_where(comes & gate_guard, k, (s, k_value[c]), Float32(0), 4)
    ]
    v_value = load_where(comes & gate_guard, v, (s, w), Float32(0))
    q_value = [  # linear_attention.py:33
        one for c in range(0, 32, 4) for one in load_vector_where(comes & gate_guard, q, (s, k_value[c]), Float32(0), 4)
    ]
    k_ahead = tuple(k_value_2)
    q_ahead = tuple(q_value)
    for s_step in cutlass.range(0, end_minus_begin, unroll=1):  # linear_attention.py:31
        next_s_2 = s_step + 1
        comes_2 = next_s_2 < end_minus_begin
        s_2 = begin_value + next_s_2
        s_ge_0_2 = 0 <= s_2  # linear_attention.py:32
        s_lt_T_2 = s_2 < T
        gate_guard_2 = s_ge_0_2 & s_lt_T_2
        gate_value_2 = load_where(comes_2 & gate_guard_2, gate, s_2, Float32(0))
        k_value_3 = [
            one for c in range(0, 32, 4)
            for one in load_vector_where(comes_2 & gate_guard_2, k, (s_2, k_value[c]), Float32(0), 4)
        ]
        v_value_2 = load_where(comes_2 & gate_guard_2, v, (s_2, w), Float32(0))
        q_value_2 = [  # linear_attention.py:33
            one for c in range(0, 32, 4)
            for one in load_vector_where(comes_2 & gate_guard_2, q, (s_2, k_value[c]), Float32(0), 4)
        ]
        s_3 = begin_value + s_step  # linear_attention.py:31
        new_product = [mul(gate_value, s_state[c]) for c in range(32)]  # linear_attention.py:32
        k_times_v = [mul(k_ahead[c], v_value) for c in range(32)]
        new = [new_product[c] + k_times_v[c] for c in range(32)]
        q_times_new = [mul(q_ahead[c], new[c]) for c in range(32)]  # linear_attention.py:33
        o_value = sum_over_k(q_times_new, thread)
        store_where(writes, o, (s_3, w), o_value)  # linear_attention.py:34
        s_state, gate_value, k_ahead, v_value, q_ahead = (
            tuple(new), gate_value_2, tuple(k_value_3), v_value_2, tuple(q_value_2)
        )


@cute.jit
def launch_linear_attention(
    q_ptr: cute.Pointer, k_ptr: cute.Pointer, v_ptr: cute.Pointer, gate_ptr: cute.Pointer, begin_ptr: cute.Pointer,
    end_ptr: cute.Pointer, o_ptr: cute.Pointer, T: Int32, q_t_stride: Int64, k_t_stride: Int64, v_t_stride: Int64,
    B: Int32, o_t_stride: Int64, programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    q = cute.make_tensor(q_ptr, cute.make_layout((T, 64), stride=(q_t_stride, 1)))
    k = cute.make_tensor(k_ptr, cute.make_layout((T, 64), stride=(k_t_stride, 1)))
    v = cute.make_tensor(v_ptr, cute.make_layout((T, 64), stride=(v_t_stride, 1)))
    gate = cute.make_tensor(gate_ptr, cute.make_layout((T,), stride=(1,)))
    begin = cute.make_tensor(begin_ptr, cute.make_layout((B,), stride=(1,)))
    end = cute.make_tensor(end_ptr, cute.make_layout((B,), stride=(1,)))
    o = cute.make_tensor(o_ptr, cute.make_layout((T, 64), stride=(o_t_stride, 1)))
    linear_attention_rows(q, k, v, gate, begin, end, o, T, B).launch(
        grid=(programs, 1, 1), block=(32, 1, 1), use_pdl=overlap, stream=stream,
    )


def call(kernels, q, k, v, gate, begin, end, o, T, B, q_t_stride, k_t_stride, v_t_stride, o_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = B * 4
    if programs > 0:
        kernels.linear_attention(
            (programs,), q, k, v, gate, begin, end, o, T, q_t_stride, k_t_stride, v_t_stride, B, o_t_stride
        )
