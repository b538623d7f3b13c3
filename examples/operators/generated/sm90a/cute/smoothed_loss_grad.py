"""smoothed_loss_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 21d7835b50d34c98
schedule: tiles V=2048, 4 warps, 1 stages, unroll 1 placed V[9:3] V[2:0] V[10:10]
inputs:
  logits: bf16 [T, V=128256]
  targets: i64 [T]
  lse: f32 [T]
  d_loss: f32 [T]
outputs:
  d_logits: bf16 [T, V=128256]
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


def div(a, b):
    # Correctly rounded.
    return a / b


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
def smoothed_loss_grad_rows(
    logits: cute.Tensor, targets: cute.Tensor, lse: cute.Tensor, d_loss: cute.Tensor, d_logits: cute.Tensor, T: Int32,
    smoothing: Float32
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
    lse_value = lse[t]  # smoothed_loss.py:40
    targets_value = targets[t]  # smoothed_loss.py:41
    d_loss_value = d_loss[t]  # smoothed_loss.py:43
    logits_value = [  # smoothed_loss.py:40
        one for c in range(0, 16, 8) for one in load_vector_where(v_inside[c], logits, (t, v[c]), BFloat16(0), 8)
    ]
    logits_f32 = [BFloat16(logits_value[c]).to(Float32) for c in range(16)]
    p_difference = [logits_f32[c] - lse_value for c in range(16)]
    p_product = [mul(p_difference[c], Float32(1.4426950216293335)) for c in range(16)]
    p = [exp2(p_product[c]) for c in range(16)]
    v_i64 = [Int32(v[c]).to(Int64) for c in range(16)]  # smoothed_loss.py:41
    hit_equal = [v_i64[c] == targets_value for c in range(16)]
    _1_minus_smoothing = Float32(1.0) - smoothing
    hit = [select(hit_equal[c], _1_minus_smoothing, Float32(0.0)) for c in range(16)]
    level = div(smoothing, Float32(128256.0))  # smoothed_loss.py:42
    p_minus_hit = [p[c] - hit[c] for c in range(16)]  # smoothed_loss.py:43
    d_logits_difference = [p_minus_hit[c] - level for c in range(16)]
    d_logits_product = [mul(d_loss_value, d_logits_difference[c]) for c in range(16)]
    d_logits_product_bf16 = [Float32(d_logits_product[c]).to(BFloat16) for c in range(16)]
    for c in cutlass.range_constexpr(0, 16, 8):
        store_vector_where(v_inside[c], d_logits, (t, v[c]), d_logits_product_bf16[c:c + 8])


@cute.jit
def launch_smoothed_loss_grad(
    logits_ptr: cute.Pointer, targets_ptr: cute.Pointer, lse_ptr: cute.Pointer, d_loss_ptr: cute.Pointer,
    d_logits_ptr: cute.Pointer, T: Int32, logits_t_stride: Int64, d_logits_t_stride: Int64, smoothing: Float32,
    programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    logits = cute.make_tensor(logits_ptr, cute.make_layout((T, 128256), stride=(logits_t_stride, 1)))
    targets = cute.make_tensor(targets_ptr, cute.make_layout((T,), stride=(1,)))
    lse = cute.make_tensor(lse_ptr, cute.make_layout((T,), stride=(1,)))
    d_loss = cute.make_tensor(d_loss_ptr, cute.make_layout((T,), stride=(1,)))
    d_logits = cute.make_tensor(d_logits_ptr, cute.make_layout((T, 128256), stride=(d_logits_t_stride, 1)))
    smoothed_loss_grad_rows(logits, targets, lse, d_loss, d_logits, T, smoothing).launch(
        grid=(programs, 1, 1), block=(128, 1, 1), use_pdl=overlap, stream=stream,
    )


def call(kernels, logits, targets, lse, d_loss, d_logits, smoothing, T, logits_t_stride, d_logits_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T * 63
    if programs > 0:
        kernels.smoothed_loss_grad(
            (programs,), logits, targets, lse, d_loss, d_logits, T, logits_t_stride, d_logits_t_stride, smoothing
        )
