"""logp_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: dacc02d8dad670e9
schedule: tiles V=2048, 4 warps, 1 stages, unroll 1 placed V[9:3] V[2:0] V[10:10]
inputs:
  logits: bf16 [T, V=128256]
  ids: i64 [T]
  lse: f32 [T]
  entropy: f32 [T]
  d_logp: f32 [T]
  d_lse: f32 [T]
  d_entropy: f32 [T]
outputs:
  d_logits: bf16 [T, V=128256]
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


def exp2(x):
    # ex2.approx.ftz.f32.
    return cute.math.exp2(x, fastmath=True)


@cute.jit
def load_vector_where(condition, memory: cute.Tensor, index, other, count: cutlass.Constexpr):
    # Load a vector, or `other` where the condition is false.
    x = cute.make_rmem_tensor((count,), memory.element_type)
    x.fill(other)
    if condition:
        cute.autovec_copy(vector_of(memory, index, count), x)
    return [x[i] for i in range(count)]


def mul(a, b):
    # One rounding, never part of a fused operation.
    return cute.math.mul(a, b, rounding=NEAREST)


def select(condition, a, b):
    # condition ? a : b, without a branch.
    return cutlass.select_(condition, a, b)


def store_vector(memory, index, x):
    # Store a vector.
    made = cute.make_rmem_tensor((len(x),), memory.element_type)
    for i in range(len(x)):
        made[i] = x[i]
    cute.autovec_copy(made, vector_of(memory, index, len(x)))


@cute.jit
def store_vector_where(condition, memory: cute.Tensor, index, x):
    # Store a vector where the condition holds.
    if condition:
        store_vector(memory, index, x)


def vector_of(memory, index, count):
    # A view of `count` contiguous, aligned elements.
    at = cute.assume(cute.crd2idx(index, memory.layout), divby=count)
    return cute.make_tensor(memory.iterator + at, (count,))


@cute.kernel
def logp_grad_rows(
    logits: cute.Tensor, ids: cute.Tensor, lse: cute.Tensor, entropy: cute.Tensor, d_logp: cute.Tensor,
    d_lse: cute.Tensor, d_entropy: cute.Tensor, d_logits: cute.Tensor, T: Int32, inv_temperature: Float32,
    ignore_index: Int64
):
    # A block owns 1 of T, 2048 of V (rows). V: 2048 indices, 16 to each of 128 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
    rest = block // 63
    t = rest
    v = [block % 63 * 2048 + thread * 8 + c % 8 + c // 8 * 1024 for c in range(16)]
    v_inside = [v[c] < 128256 for c in range(16)]
    ids_value = ids[t]  # logp.py:175
    lse_value = lse[t]  # logp.py:193
    d_lse_value = d_lse[t]  # logp.py:215
    d_logp_value = d_logp[t]
    d_entropy_value = d_entropy[t]  # logp.py:198
    entropy_value = entropy[t]
    active = ids_value != ignore_index  # logp.py:207
    logits_value = [  # logp.py:178
        one for c in range(0, 16, 8)
        for one in load_vector_where(active & v_inside[c], logits, (t, v[c]), BFloat16(0), 8)
    ]
    z = [BFloat16(logits_value[c]).to(Float32) for c in range(16)]  # logp.py:48
    z_2 = [mul(z[c], inv_temperature) for c in range(16)]  # logp.py:57
    centred = [z_2[c] - lse_value for c in range(16)]  # logp.py:193
    centred_times_log2e = [mul(centred[c], Float32(1.4426950216293335)) for c in range(16)]  # logp.py:194
    p = [exp2(centred_times_log2e[c]) for c in range(16)]
    d_lse_minus_d_logp = d_lse_value - d_logp_value  # logp.py:215
    dz = [mul(p[c], d_lse_minus_d_logp) for c in range(16)]  # logp.py:195
    p_is_0 = [p[c] == Float32(0.0) for c in range(16)]  # logp.py:198
    d_entropy_times_p = [mul(d_entropy_value, p[c]) for c in range(16)]
    centred_plus_entropy = [centred[c] + entropy_value for c in range(16)]
    dz_product = [mul(d_entropy_times_p[c], centred_plus_entropy[c]) for c in range(16)]
    dz_product_or_0 = [select(p_is_0[c], Float32(0.0), dz_product[c]) for c in range(16)]
    dz_2 = [dz[c] - dz_product_or_0[c] for c in range(16)]
    ids_ge_0 = 0 <= ids_value  # logp.py:200
    inside_below = ids_value < 128256
    inside = ids_ge_0 & inside_below
    ids_masked = select(inside, ids_value, Int64(-1))  # logp.py:201
    ids_i32 = Int64(ids_masked).to(Int32)
    dz_equal = [v[c] == ids_i32 for c in range(16)]
    d_logp_masked = [select(dz_equal[c], d_logp_value, Float32(0.0)) for c in range(16)]
    dz_3 = [dz_2[c] + d_logp_masked[c] for c in range(16)]
    dz_times_inv_temperature = [mul(dz_3[c], inv_temperature) for c in range(16)]  # logp.py:63
    grad = [select(active, dz_times_inv_temperature[c], Float32(0.0)) for c in range(16)]  # logp.py:182
    grad_bf16 = [Float32(grad[c]).to(BFloat16) for c in range(16)]  # logp.py:185
    for c in cutlass.range_constexpr(0, 16, 8):
        store_vector_where(v_inside[c], d_logits, (t, v[c]), grad_bf16[c:c + 8])


@cute.jit
def launch_logp_grad(
    logits_ptr: cute.Pointer, ids_ptr: cute.Pointer, lse_ptr: cute.Pointer, entropy_ptr: cute.Pointer,
    d_logp_ptr: cute.Pointer, d_lse_ptr: cute.Pointer, d_entropy_ptr: cute.Pointer, d_logits_ptr: cute.Pointer,
    T: Int32, logits_t_stride: Int64, d_logits_t_stride: Int64, inv_temperature: Float32, ignore_index: Int64,
    programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    logits = cute.make_tensor(logits_ptr, cute.make_layout((T, 128256), stride=(logits_t_stride, 1)))
    ids = cute.make_tensor(ids_ptr, cute.make_layout((T,), stride=(1,)))
    lse = cute.make_tensor(lse_ptr, cute.make_layout((T,), stride=(1,)))
    entropy = cute.make_tensor(entropy_ptr, cute.make_layout((T,), stride=(1,)))
    d_logp = cute.make_tensor(d_logp_ptr, cute.make_layout((T,), stride=(1,)))
    d_lse = cute.make_tensor(d_lse_ptr, cute.make_layout((T,), stride=(1,)))
    d_entropy = cute.make_tensor(d_entropy_ptr, cute.make_layout((T,), stride=(1,)))
    d_logits = cute.make_tensor(d_logits_ptr, cute.make_layout((T, 128256), stride=(d_logits_t_stride, 1)))
    logp_grad_rows(
        logits, ids, lse, entropy, d_logp, d_lse, d_entropy, d_logits, T, inv_temperature, ignore_index
    ).launch(grid=(programs, 1, 1), block=(128, 1, 1), use_pdl=overlap, stream=stream,)


def call(
    kernels, logits, ids, lse, entropy, d_logp, d_lse, d_entropy, d_logits, inv_temperature, ignore_index, T,
    logits_t_stride, d_logits_t_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T * 63
    if programs > 0:
        kernels.logp_grad(
            (programs,), logits, ids, lse, entropy, d_logp, d_lse, d_entropy, d_logits, T, logits_t_stride,
            d_logits_t_stride, inv_temperature, ignore_index
        )
