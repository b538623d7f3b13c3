"""router_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 00eecae45cad6990
schedule: tiles T=8, 4 warps, 1 stages, unroll 1 placed E[5:2] T[2:0] E[1:0] E[6:6]
inputs:
  gates: f32 [T, E=128]
  d_gates: f32 [T, E=128]
outputs:
  d_logits: f32 [T, E=128]
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


def sum_over_e(x, thread):
    # The sum over E, halving.
    x = folded(x, 4, add)
    x = halved(x, 8, thread, add)
    x = halved(x, 4, thread, add)
    x = exchanged(x, 2, add)
    x = exchanged(x, 1, add)
    x = exchanged(x, 8, add)
    x = exchanged(x, 4, add)
    return x[0]


def vector_of(memory, index, count):
    # A view of `count` contiguous, aligned elements.
    at = cute.assume(cute.crd2idx(index, memory.layout), divby=count)
    return cute.make_tensor(memory.iterator + at, (count,))


@cute.kernel
def router_grad_rows(gates: cute.Tensor, d_gates: cute.Tensor, d_logits: cute.Tensor, T: Int32):
    # A block owns 8 of T (rows). E: 128 indices, 8 to each of 16 threads; T: 8 indices, 1 to each of 8 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
    t = block * 8 + thread // 16
    t_inside = t < T
    e = [thread % 16 * 4 + c % 4 + c // 4 * 64 for c in range(8)]  # router.py:39
    gates_value = [one for c in range(0, 8, 4) for one in load_vector_where(t_inside, gates, (t, e[c]), Float32(0), 4)]
    d_gates_value = [
        one for c in range(0, 8, 4) for one in load_vector_where(t_inside, d_gates, (t, e[c]), Float32(0), 4)
    ]
    gates_times_d_gates = [mul(gates_value[c], d_gates_value[c]) for c in range(8)]
    level = sum_over_e(gates_times_d_gates, thread)
    d_gates_minus_level = [d_gates_value[c] - level for c in range(8)]  # router.py:40
    d_logits_value = [mul(gates_value[c], d_gates_minus_level[c]) for c in range(8)]
    for c in cutlass.range_constexpr(0, 8, 4):
        store_vector_where(t_inside, d_logits, (t, e[c]), d_logits_value[c:c + 4])


@cute.jit
def launch_router_grad(
    gates_ptr: cute.Pointer, d_gates_ptr: cute.Pointer, d_logits_ptr: cute.Pointer, T: Int32, gates_t_stride: Int64,
    d_gates_t_stride: Int64, d_logits_t_stride: Int64, programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    gates = cute.make_tensor(gates_ptr, cute.make_layout((T, 128), stride=(gates_t_stride, 1)))
    d_gates = cute.make_tensor(d_gates_ptr, cute.make_layout((T, 128), stride=(d_gates_t_stride, 1)))
    d_logits = cute.make_tensor(d_logits_ptr, cute.make_layout((T, 128), stride=(d_logits_t_stride, 1)))
    router_grad_rows(gates, d_gates, d_logits, T).launch(
        grid=(programs, 1, 1), block=(128, 1, 1), use_pdl=overlap, stream=stream,
    )


def call(kernels, gates, d_gates, d_logits, T, gates_t_stride, d_gates_t_stride, d_logits_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 7) // 8)
    if programs > 0:
        kernels.router_grad(
            (programs,), gates, d_gates, d_logits, T, gates_t_stride, d_gates_t_stride, d_logits_t_stride
        )
