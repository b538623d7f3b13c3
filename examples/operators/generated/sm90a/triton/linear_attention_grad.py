"""linear_attention_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: bf53b7bb2cab3ba4
schedule: tiles 1, 4 warps, 3 stages, unroll 1
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

import triton
import triton.language as tl


@triton.jit
def sum_over_w(x):
    # The sum over W, halving: two terms at a time, so that no layout chooses.
    x = tl.sum(tl.reshape(x, (64, 2, 32)), 1)
    x = tl.sum(tl.reshape(x, (64, 2, 16)), 1)
    x = tl.sum(tl.reshape(x, (64, 2, 8)), 1)
    x = tl.sum(tl.reshape(x, (64, 2, 4)), 1)
    x = tl.sum(tl.reshape(x, (64, 2, 2)), 1)
    x = tl.sum(tl.reshape(x, (64, 2)), 1)
    return tl.reshape(x, (64, 1))


@triton.jit
def sum_over_k(x):
    # The sum over K, halving: two terms at a time, so that no layout chooses.
    x = tl.sum(tl.reshape(x, (2, 32, 64)), 0)
    x = tl.sum(tl.reshape(x, (2, 16, 64)), 0)
    x = tl.sum(tl.reshape(x, (2, 8, 64)), 0)
    x = tl.sum(tl.reshape(x, (2, 4, 64)), 0)
    x = tl.sum(tl.reshape(x, (2, 2, 64)), 0)
    x = tl.sum(tl.reshape(x, (2, 64)), 0)
    return tl.reshape(x, (1, 64))


@triton.jit
def sum_over_w_2(x):
    # The sum over W, halving: two terms at a time, so that no layout chooses.
    x = tl.sum(tl.reshape(x, (2, 32)), 0)
    x = tl.sum(tl.reshape(x, (2, 16)), 0)
    x = tl.sum(tl.reshape(x, (2, 8)), 0)
    x = tl.sum(tl.reshape(x, (2, 4)), 0)
    x = tl.sum(tl.reshape(x, (2, 2)), 0)
    x = tl.sum(tl.reshape(x, (2,)), 0)
    return x


@triton.jit
def sum_over_k_2(x):
    # The sum over K, halving: two terms at a time, so that no layout chooses.
    x = tl.sum(tl.reshape(x, (2, 32)), 0)
    x = tl.sum(tl.reshape(x, (2, 16)), 0)
    x = tl.sum(tl.reshape(x, (2, 8)), 0)
    x = tl.sum(tl.reshape(x, (2, 4)), 0)
    x = tl.sum(tl.reshape(x, (2, 2)), 0)
    x = tl.sum(tl.reshape(x, (2,)), 0)
    return x


@triton.jit
def linear_attention_grad(
    q_ptr, k_ptr, v_ptr, gate_ptr, begin_ptr, end_ptr, o_ptr, d_o_ptr, d_q_ptr, d_k_ptr, d_v_ptr, d_gate_ptr, T,
    k_t_stride, v_t_stride, d_o_t_stride, d_q_t_stride, q_t_stride, o_t_stride, d_k_t_stride, d_v_t_stride
):
    # A program owns 1 of B (rows).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    b = tl.program_id(0)
    begin = tl.load(begin_ptr + b)  # linear_attention.py:47
    end = tl.load(end_ptr + b)
    end_minus_begin = end - begin
    k = tl.arange(0, 64)[:, None]  # linear_attention.py:48
    w = tl.arange(0, 64)[None, :]
    s_state = tl.full((64, 64), 0.0, tl.float32)  # linear_attention.py:47
    for s_step in tl.range(0, end_minus_begin, num_stages=3):
        s = begin + s_step
        s_ge_0 = s >= 0  # linear_attention.py:48
        s_lt_T = s < T
        gate_guard = s_ge_0 & s_lt_T
        gate = tl.load(gate_ptr + s, mask=gate_guard, other=0.0)
        k_2 = tl.load(k_ptr + s.to(tl.int64) * k_t_stride + k, mask=gate_guard, other=0.0)
        v = tl.load(v_ptr + s.to(tl.int64) * v_t_stride + w, mask=gate_guard, other=0.0)
        d_o = tl.load(d_o_ptr + s.to(tl.int64) * d_o_t_stride + w, mask=gate_guard, other=0.0)  # linear_attention.py:49
        new_product = gate * s_state  # linear_attention.py:48
        k_times_v = k_2 * v
        new = new_product + k_times_v
        d_o_times_new = d_o * new  # linear_attention.py:49
        dq = sum_over_w(d_o_times_new)
        tl.store(d_q_ptr + s.to(tl.int64) * d_q_t_stride + k, dq)  # linear_attention.py:50
        s_state = new
    end_minus_1 = end - 1  # linear_attention.py:53
    s_state_2 = tl.full((64, 64), 0.0, tl.float32)
    s_state_3 = 0.0
    for s_step in tl.range(0, end_minus_begin, num_stages=3):
        s = end_minus_1 - s_step
        s_ge_0 = s >= 0  # linear_attention.py:55
        s_lt_T = s < T
        gate_guard = s_ge_0 & s_lt_T
        gate = tl.load(gate_ptr + s, mask=gate_guard, other=0.0)
        k_2 = tl.load(k_ptr + s.to(tl.int64) * k_t_stride + k, mask=gate_guard, other=0.0)
        v = tl.load(v_ptr + s.to(tl.int64) * v_t_stride + w, mask=gate_guard, other=0.0)
        d_o = tl.load(d_o_ptr + s.to(tl.int64) * d_o_t_stride + w, mask=gate_guard, other=0.0)
        q = tl.load(q_ptr + s.to(tl.int64) * q_t_stride + k, mask=gate_guard, other=0.0)  # linear_attention.py:57
        o = tl.load(o_ptr + s.to(tl.int64) * o_t_stride + w, mask=gate_guard, other=0.0)  # linear_attention.py:64
        q_times_d_o = q * d_o  # linear_attention.py:57
        pull = q_times_d_o + s_state_2
        pull_times_v = pull * v  # linear_attention.py:58
        dk = sum_over_w(pull_times_v)
        tl.store(d_k_ptr + s.to(tl.int64) * d_k_t_stride + k, dk)  # linear_attention.py:60
        pull_times_k = pull * k_2  # linear_attention.py:62
        sum_k = sum_over_k(pull_times_k)
        tl.store(d_v_ptr + s.to(tl.int64) * d_v_t_stride + w, sum_k)
        o_times_d_o = o * d_o  # linear_attention.py:64
        own = sum_over_w_2(o_times_d_o)
        k_times_dk = k_2 * dk  # linear_attention.py:65
        sum_k_2 = sum_over_k_2(k_times_dk)
        own_minus_add_over_k = own - sum_k_2
        made = s_state_3 + own_minus_add_over_k
        d_gate_value = tl.div_rn(made, gate)  # linear_attention.py:66
        tl.store(d_gate_ptr + s, d_gate_value)
        gate_times_pull = gate * pull  # linear_attention.py:68
        s_state_2, s_state_3 = gate_times_pull, made


def call(
    kernels, q, k, v, gate, begin, end, o, d_o, d_q, d_k, d_v, d_gate, T, B, k_t_stride, v_t_stride, d_o_t_stride,
    d_q_t_stride, q_t_stride, o_t_stride, d_k_t_stride, d_v_t_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = B
    if programs > 0:
        kernels.linear_attention_grad(
            (programs,), q, k, v, gate, begin, end, o, d_o, d_q, d_k, d_v, d_gate, T, k_t_stride, v_t_stride,
            d_o_t_stride, d_q_t_stride, q_t_stride, o_t_stride, d_k_t_stride, d_v_t_stride
        )
