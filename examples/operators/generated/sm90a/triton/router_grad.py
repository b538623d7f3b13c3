"""router_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 00eecae45cad6990
schedule: tiles T=8, 2 warps, 1 stages, unroll 1
inputs:
  gates: f32 [T, E=128]
  d_gates: f32 [T, E=128]
outputs:
  d_logits: f32 [T, E=128]
"""

import triton
import triton.language as tl


@triton.jit
def sum_over_e(x):
    # The sum over E, halving: two terms at a time, so that no layout chooses.
    x = tl.sum(tl.reshape(x, (8, 2, 64)), 1)
    x = tl.sum(tl.reshape(x, (8, 2, 32)), 1)
    x = tl.sum(tl.reshape(x, (8, 2, 16)), 1)
    x = tl.sum(tl.reshape(x, (8, 2, 8)), 1)
    x = tl.sum(tl.reshape(x, (8, 2, 4)), 1)
    x = tl.sum(tl.reshape(x, (8, 2, 2)), 1)
    x = tl.sum(tl.reshape(x, (8, 2)), 1)
    return tl.reshape(x, (8, 1))


@triton.jit
def router_grad(gates_ptr, d_gates_ptr, d_logits_ptr, T, gates_t_stride, d_gates_t_stride, d_logits_t_stride):
    # A program owns 8 of T (rows).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    t = tl.program_id(0) * 8 + tl.arange(0, 8)[:, None]
    t_inside = t < T
    e = tl.arange(0, 128)[None, :]  # router.py:39
    gates = tl.load(gates_ptr + t.to(tl.int64) * gates_t_stride + e, mask=t_inside, other=0.0)
    d_gates = tl.load(d_gates_ptr + t.to(tl.int64) * d_gates_t_stride + e, mask=t_inside, other=0.0)
    gates_times_d_gates = gates * d_gates
    level = sum_over_e(gates_times_d_gates)
    d_gates_minus_level = d_gates - level  # router.py:40
    d_logits_value = gates * d_gates_minus_level
    tl.store(d_logits_ptr + t.to(tl.int64) * d_logits_t_stride + e, d_logits_value, mask=t_inside)


def call(kernels, gates, d_gates, d_logits, T, gates_t_stride, d_gates_t_stride, d_logits_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 7) // 8)
    if programs > 0:
        kernels.router_grad(
            (programs,), gates, d_gates, d_logits, T, gates_t_stride, d_gates_t_stride, d_logits_t_stride
        )
