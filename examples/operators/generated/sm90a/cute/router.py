"""router on sm_90a, written by rlk 0.1.0: do not edit.

numerics: cfebad52132abef5
schedule: tiles T=8, 4 warps, 1 stages, unroll 1 placed E[5:2] T[2:0] E[1:0] E[6:6]
inputs:
  logits: f32 [T, E=128]
outputs:
  gates: f32 [T, E=128]
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


def imin(a, b):
    # The minimum of integers.
    return cutlass.min(a, b)


@cute.jit
def load_vector_where(condition, memory: cute.Tensor, index, other, count: cutlass.Constexpr):
    # Load a vector, or `other` where the condition is false.
    x = cute.make_rmem_tensor((count,), memory.element_type)
    x.fill(other)
    if condition:
        cute.autovec_copy(vector_of(memory, index, count), x)
    return [x[i] for i in range(count)]


def max_over_e(x):
    # The max over E, in any order.
    x = folded(x, 1, fmax)
    x = folded(x, 1, fmax)
    x = folded(x, 1, fmax)
    x = exchanged(x, 1, fmax)
    x = exchanged(x, 2, fmax)
    x = exchanged(x, 4, fmax)
    x = exchanged(x, 8, fmax)
    return x[0]


def min_over_e(x):
    # The min over E, in any order.
    x = folded(x, 1, imin)
    x = folded(x, 1, imin)
    x = folded(x, 1, imin)
    x = exchanged(x, 1, imin)
    x = exchanged(x, 2, imin)
    x = exchanged(x, 4, imin)
    x = exchanged(x, 8, imin)
    return x[0]


def mul(a, b):
    # One rounding, never part of a fused operation.
    return cute.math.mul(a, b, rounding=NEAREST)


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
def router_rows(logits: cute.Tensor, gates: cute.Tensor, T: Int32):
    # A block owns 8 of T (rows). E: 128 indices, 8 to each of 16 threads; T: 8 indices, 1 to each of 8 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
    t = block * 8 + thread // 16
    t_inside = t < T
    e = [thread % 16 * 4 + c % 4 + c // 4 * 64 for c in range(8)]  # router.py:24
    logits_value = [
        one for c in range(0, 8, 4) for one in load_vector_where(t_inside, logits, (t, e[c]), Float32(0), 4)
    ]
    best = max_over_e(logits_value)  # router.py:25
    chosen = [e[c] < 0 for c in range(8)]  # router.py:26
    rest = [select(chosen[c], Float32(float("-inf")), logits_value[c]) for c in range(8)]  # router.py:28
    largest = max_over_e(rest)  # router.py:29
    rest_is_largest = [rest[c] == largest for c in range(8)]  # router.py:30
    not_chosen = [select(chosen[c], Boolean(False), Boolean(True)) for c in range(8)]
    first_both = [rest_is_largest[c] & not_chosen[c] for c in range(8)]
    e_masked = [select(first_both[c], e[c], Int32(1073741824)) for c in range(8)]
    first = min_over_e(e_masked)
    e_is_first = [e[c] == first for c in range(8)]  # router.py:31
    chosen_2 = [chosen[c] | e_is_first[c] for c in range(8)]
    rest_2 = [select(chosen_2[c], Float32(float("-inf")), logits_value[c]) for c in range(8)]  # router.py:28
    largest_2 = max_over_e(rest_2)  # router.py:29
    rest_is_largest_2 = [rest_2[c] == largest_2 for c in range(8)]  # router.py:30
    not_chosen_2 = [select(chosen_2[c], Boolean(False), Boolean(True)) for c in range(8)]
    first_both_2 = [rest_is_largest_2[c] & not_chosen_2[c] for c in range(8)]
    e_masked_2 = [select(first_both_2[c], e[c], Int32(1073741824)) for c in range(8)]
    first_2 = min_over_e(e_masked_2)
    e_is_first_2 = [e[c] == first_2 for c in range(8)]  # router.py:31
    chosen_3 = [chosen_2[c] | e_is_first_2[c] for c in range(8)]
    logits_minus_best = [logits_value[c] - best for c in range(8)]  # router.py:32
    e_exp = [portable_exp(logits_minus_best[c]) for c in range(8)]
    e_2 = [select(chosen_3[c], e_exp[c], Float32(0.0)) for c in range(8)]
    sum_e = sum_over_e(e_2, thread)  # router.py:33
    gates_value = [div(e_2[c], sum_e) for c in range(8)]
    for c in cutlass.range_constexpr(0, 8, 4):
        store_vector_where(t_inside, gates, (t, e[c]), gates_value[c:c + 4])


@cute.jit
def launch_router(
    logits_ptr: cute.Pointer, gates_ptr: cute.Pointer, T: Int32, logits_t_stride: Int64, gates_t_stride: Int64,
    programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    logits = cute.make_tensor(logits_ptr, cute.make_layout((T, 128), stride=(logits_t_stride, 1)))
    gates = cute.make_tensor(gates_ptr, cute.make_layout((T, 128), stride=(gates_t_stride, 1)))
    router_rows(logits, gates, T).launch(
        grid=(programs, 1, 1), block=(128, 1, 1), use_pdl=overlap, stream=stream,
    )


def call(kernels, logits, gates, T, logits_t_stride, gates_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 7) // 8)
    if programs > 0:
        kernels.router((programs,), logits, gates, T, logits_t_stride, gates_t_stride)
