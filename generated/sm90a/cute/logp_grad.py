"""logp_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 89720625d33dc745
schedule: tiles V=2048, 4 warps, 1 stages, unroll 1
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
    # The hardware's: a table.
    return cute.math.exp2(x, fastmath=True)


@cute.jit
def load_where(condition, memory: cute.Tensor, index, other):
    # An element, or what stands for it.
    x = other
    if condition:
        x = type(other)(memory[index])
    return x


def mul(a, b):
    # One rounding, never part of a fused operation.
    return cute.math.mul(a, b, rounding=NEAREST)


def select(condition, a, b):
    # Without a branch.
    return cutlass.select_(condition, a, b)


@cute.jit
def store_where(condition, memory: cute.Tensor, index, x):
    # Write an element if the condition holds.
    if condition:
        memory[index] = x


@cute.kernel
def logp_grad(logits: cute.Tensor, ids: cute.Tensor, lse: cute.Tensor, entropy: cute.Tensor, d_logp: cute.Tensor, d_lse: cute.Tensor, d_entropy: cute.Tensor, d_logits: cute.Tensor, T: Int32, inv_temperature: Float32, ignore_index: Int64):
    # A thread owns one of T, V (rows).
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    element = Int64(block) * 128 + thread
    v = (element % 128256).to(Int32)
    rest = element // 128256
    t = rest.to(Int32)
    t_inside = t < T
    ids_2 = load_where(t_inside, ids, t, Int64(0))  # logp.py:122
    differs = ids_2 != ignore_index  # logp.py:149
    logits_2 = load_where(differs & t_inside, logits, (t, v), BFloat16(0))  # logp.py:124
    as_f32 = BFloat16(logits_2).to(Float32)  # logp.py:45
    product = mul(as_f32, inv_temperature)  # logp.py:54
    lse_2 = load_where(t_inside, lse, t, Float32(0))  # logp.py:135
    difference = product - lse_2  # logp.py:135
    product_2 = mul(difference, Float32(1.4426950216293335))  # logp.py:136
    power = exp2(product_2)  # logp.py:136
    d_lse_2 = load_where(t_inside, d_lse, t, Float32(0))  # logp.py:157
    d_logp_2 = load_where(t_inside, d_logp, t, Float32(0))  # logp.py:157
    difference_2 = d_lse_2 - d_logp_2  # logp.py:157
    product_3 = mul(power, difference_2)  # logp.py:137
    equal = power == Float32(0.0)  # logp.py:140
    d_entropy_2 = load_where(t_inside, d_entropy, t, Float32(0))  # logp.py:140
    product_4 = mul(d_entropy_2, power)  # logp.py:140
    entropy_2 = load_where(t_inside, entropy, t, Float32(0))  # logp.py:140
    total = difference + entropy_2  # logp.py:140
    product_5 = mul(product_4, total)  # logp.py:140
    chosen = select(equal, Float32(0.0), product_5)  # logp.py:140
    difference_3 = product_3 - chosen  # logp.py:140
    at_most = 0 <= ids_2  # logp.py:142
    below = ids_2 < 128256  # logp.py:142
    both = at_most & below  # logp.py:142
    chosen_2 = select(both, ids_2, Int64(-1))  # logp.py:143
    as_i32 = Int64(chosen_2).to(Int32)  # logp.py:143
    equal_2 = v == as_i32  # logp.py:143
    chosen_3 = select(equal_2, d_logp_2, Float32(0.0))  # logp.py:143
    total_2 = difference_3 + chosen_3  # logp.py:143
    product_6 = mul(total_2, inv_temperature)  # logp.py:60
    chosen_4 = select(differs, product_6, Float32(0.0))  # logp.py:126
    as_bf16 = Float32(chosen_4).to(BFloat16)  # logp.py:127
    store_where(t_inside, d_logits, (t, v), as_bf16)  # logp.py:127


@cute.jit
def launch_logp_grad(logits_ptr: cute.Pointer, ids_ptr: cute.Pointer, lse_ptr: cute.Pointer, entropy_ptr: cute.Pointer, d_logp_ptr: cute.Pointer, d_lse_ptr: cute.Pointer, d_entropy_ptr: cute.Pointer, d_logits_ptr: cute.Pointer, T: Int32, logits_t_stride: Int64, d_logits_t_stride: Int64, inv_temperature: Float32, ignore_index: Int64, programs: Int32, stream: cuda.CUstream):
    # Describe the tensors, and start the kernel on a stream.
    logits = cute.make_tensor(logits_ptr, cute.make_layout((T, 128256), stride=(logits_t_stride, 1)))
    ids = cute.make_tensor(ids_ptr, cute.make_layout((T,), stride=(1,)))
    lse = cute.make_tensor(lse_ptr, cute.make_layout((T,), stride=(1,)))
    entropy = cute.make_tensor(entropy_ptr, cute.make_layout((T,), stride=(1,)))
    d_logp = cute.make_tensor(d_logp_ptr, cute.make_layout((T,), stride=(1,)))
    d_lse = cute.make_tensor(d_lse_ptr, cute.make_layout((T,), stride=(1,)))
    d_entropy = cute.make_tensor(d_entropy_ptr, cute.make_layout((T,), stride=(1,)))
    d_logits = cute.make_tensor(d_logits_ptr, cute.make_layout((T, 128256), stride=(d_logits_t_stride, 1)))
    logp_grad(logits, ids, lse, entropy, d_logp, d_lse, d_entropy, d_logits, T, inv_temperature, ignore_index).launch(
        grid=(programs, 1, 1), block=(128, 1, 1), stream=stream
    )


def call(kernels, logits, ids, lse, entropy, d_logp, d_lse, d_entropy, d_logits, inv_temperature, ignore_index, T, logits_t_stride, d_logits_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = (T * 128256 + 127) // 128
    if programs > 0:
        kernels.logp_grad((programs,), logits, ids, lse, entropy, d_logp, d_lse, d_entropy, d_logits, T, logits_t_stride, d_logits_t_stride, inv_temperature, ignore_index)
