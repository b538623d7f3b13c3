"""linear_attention on sm_90a, written by rlk 0.1.0: do not edit.

numerics: a53b837bfbfc08ff
schedule: tiles W=64, 4 warps, 1 stages, unroll 1 placed K[5:0]
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

import triton
import triton.language as tl


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
def linear_attention(
    q_ptr, k_ptr, v_ptr, gate_ptr, begin_ptr, end_ptr, o_ptr, T, k_t_stride, v_t_stride, q_t_stride, o_t_stride
):
    # A program owns 1 of B, 64 of W (rows).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    program = tl.program_id(0)
    program_2 = program // 1
    w = (program % 1) * 64 + tl.arange(0, 64)[None, :]
    b = program_2
    begin = tl.load(begin_ptr + b)  # linear_attention.py:31
    end = tl.load(end_ptr + b)
    end_minus_begin = end - begin
    k = tl.arange(0, 64)[:, None]  # linear_attention.py:32
    s_state = tl.full((64, 64), 0.0, tl.float32)  # linear_attention.py:31
    for s_step in tl.range(0, end_minus_begin):
        s = begin + s_step
        s_ge_0 = s >= 0  # linear_attention.py:32
        s_lt_T = s < T
        gate_guard = s_ge_0 & s_lt_T
        gate = tl.load(gate_ptr + s, mask=gate_guard, other=0.0)
        k_2 = tl.load(k_ptr + s.to(tl.int64) * k_t_stride + k, mask=gate_guard, other=0.0)
        v = tl.load(v_ptr + s.to(tl.int64) * v_t_stride + w, mask=gate_guard, other=0.0)
        q = tl.load(q_ptr + s.to(tl.int64) * q_t_stride + k, mask=gate_guard, other=0.0)  # linear_attention.py:33
        new_product = gate * s_state  # linear_attention.py:32
        k_times_v = k_2 * v
        new = new_product + k_times_v
        q_times_new = q * new  # linear_attention.py:33
        o = sum_over_k(q_times_new)
        tl.store(o_ptr + s.to(tl.int64) * o_t_stride + w, o)  # linear_attention.py:34
        s_state = new


def call(kernels, q, k, v, gate, begin, end, o, T, B, k_t_stride, v_t_stride, q_t_stride, o_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = B * 1
    if programs > 0:
        kernels.linear_attention(
            (programs,), q, k, v, gate, begin, end, o, T, k_t_stride, v_t_stride, q_t_stride, o_t_stride
        )
