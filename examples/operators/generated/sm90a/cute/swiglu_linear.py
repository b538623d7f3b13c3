"""swiglu_linear on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 93e945106ae72bd9
schedule: tiles N=128, T=128, 8 warps, 6 stages, unroll 1, depth 64, group 8, 132 programs, clusters of 2
inputs:
  x: bf16 [T, K=4096]
  gate: bf16 [N=4096, K=4096]
  up: bf16 [N=4096, K=4096]
outputs:
  y: bf16 [T, N=4096]
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


def epilogue_offsets(words):
    # Swizzled offsets of a thread's pairs and vectors in 8 rows of 128 bytes of shared memory.
    lane = cute.arch.lane_idx()
    row, quad = lane // 4 * 36, lane % 4
    pairs = row + quad if words == 1 else (row ^ quad // 2 * 4) + quad % 2 * 2
    return pairs, row ^ quad * 4


def fma(a, b, c):
    # a * b + c with one rounding.
    return cute.math.fma(a, b, c, rounding=NEAREST)


def fmax(a, b):
    # max.f32: the other operand if one is NaN.
    return cute.arch.fmax(a, b)


def mul(a, b):
    # One rounding, never part of a fused operation.
    return cute.math.mul(a, b, rounding=NEAREST)


def portable_sigmoid(x):
    # 1 / (1 + e**-x), accurate in both tails, with gradual underflow.
    i0 = Float32(x).bitcast(Int32)
    i1 = i0 | Int32(-2147483648)
    f2 = Int32(i1).bitcast(Float32)
    f3 = fmax(f2, Float32(-104.0))
    f4 = fma(f3, Float32(1.4426950216293335), Float32(12582912.0))
    f5 = f4 - Float32(12582912.0)
    f6 = fma(f5, Float32(-0.6931471824645996), f3)
    f7 = fma(f5, Float32(1.9046542121259336e-09), f6)
    f8 = fma(Float32(0.0013819490559399128), f7, Float32(0.008368690498173237))
    f9 = fma(f8, f7, Float32(0.041668280959129333))
    f10 = fma(f9, f7, Float32(0.1666652113199234))
    f11 = fma(f10, f7, Float32(0.4999999403953552))
    f12 = fma(f11, f7, Float32(1.0))
    f13 = mul(f12, f7)
    i14 = Float32(f4).bitcast(Int32)
    i15 = i14 - Int32(1262485504)
    i16 = i15 >> Int32(1)
    i17 = i16 << Int32(23)
    i18 = i17 + Int32(1065353216)
    f19 = Int32(i18).bitcast(Float32)
    i20 = i15 - i16
    i21 = i20 << Int32(23)
    i22 = i21 + Int32(1065353216)
    f23 = Int32(i22).bitcast(Float32)
    f24 = f13 + Float32(1.0)
    f25 = mul(f24, f19)
    f26 = mul(f25, f23)
    f27 = f26 + Float32(1.0)
    f28 = mul(f27, Float32(-1.0))
    f29 = fma(Float32(-0.2060442566871643), f27, Float32(1.2625690698623657))
    f30 = fma(f29, f27, Float32(-2.842925786972046))
    f31 = fma(f30, f27, Float32(2.784339189529419))
    f32 = fma(f31, f28, Float32(1.0))
    f33 = fma(f32, f32, f32)
    f34 = fma(f31, f33, f31)
    f35 = fma(f34, f28, Float32(1.0))
    f36 = fma(f34, f35, f34)
    f37 = f27 - Float32(1.0)
    f38 = f26 - f37
    f39 = fma(f36, f27, Float32(-1.0))
    f40 = fma(f36, f38, f39)
    f41 = mul(f36, f19)
    f42 = fma(f13, f40, f40)
    f43 = f13 - f42
    f44 = fma(f41, f43, f41)
    f45 = mul(f44, f23)
    f46 = select((x < Float32(0.0)), f45, f36)
    f47 = select((x == x), f46, x)
    return f47


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


def to_vectors(epilogue_tile, dtype, x):
    # Transpose accumulator pairs of the four threads of a row to 16-byte vectors.
    words = dtype.width // 16
    pairs, vectors = epilogue_offsets(words)
    cute.arch.sync_warp()
    for i in range(len(x) // 2):
        pair = cute.make_rmem_tensor((2,), dtype)
        pair[0], pair[1] = x[2 * i], x[2 * i + 1]
        to = cute.make_tensor(epilogue_tile + cute.assume(pairs ^ 4 * words * i, divby=words), (words,))
        cute.autovec_copy(cute.recast_tensor(pair, Int32), to)
    cute.arch.sync_warp()
    made = []
    for i in range(len(x) * words // 8):
        vector = cute.make_rmem_tensor((8 // words,), dtype)
        of = cute.make_tensor(epilogue_tile + cute.assume(vectors ^ 16 * i, divby=4), (4,))
        cute.autovec_copy(of, cute.recast_tensor(vector, Int32))
        made.append([vector[j] for j in range(8 // words)])
    return made


def vector_of(memory, index, count):
    # A view of `count` contiguous, aligned elements.
    at = cute.assume(cute.crd2idx(index, memory.layout), divby=count)
    return cute.make_tensor(memory.iterator + at, (count,))


@cute.struct
class swiglu_linear_memory:
    """Shared memory: mbarriers of the pipeline, a tile of A and B for each stage, epilogue scratch of warps."""

    ring: cute.struct.MemRange[Int64, 8]
    a: cute.struct.Align[cute.struct.MemRange[BFloat16, 32768], 1024]
    b: cute.struct.Align[cute.struct.MemRange[BFloat16, 32768], 1024]
    b_2: cute.struct.Align[cute.struct.MemRange[BFloat16, 32768], 1024]
    epilogue_smem: cute.struct.Align[cute.struct.MemRange[Int32, 2048], 128]


def swiglu_linear_layouts():
    # Smem layouts of A and B: 128-byte swizzle, stages outermost.
    tile = (128, 128, 64)
    a = sm90.make_smem_layout_a(ROW_MAJOR, tile, BFloat16, 4)
    return a, sm90.make_smem_layout_b(ROW_MAJOR, tile, BFloat16, 4)


def swiglu_linear_unit():
    # wgmma of 64 rows for each consumer warpgroup.
    a, b = OperandMajorMode.K, OperandMajorMode.K
    return sm90.make_trivial_tiled_mma(
        BFloat16, BFloat16, a, b, Float32, (2, 1, 1), tiler_mn=(64, 128)
    )


@cute.jit
def swiglu_linear_place(item, tiles):
    # Grouped tile order for L2 reuse: row tiles run fastest inside a group of 8.
    band = item // 256
    rest = item - band * 256
    first = band * 8
    height = cutlass.min(tiles - first, Int32(8))
    column = rest // height
    row_tile = first + rest - column * height
    n_tile = column
    return row_tile, n_tile


@cute.kernel
def swiglu_linear(
    tma_a: cute.CopyAtom, x: cute.Tensor, tma_b: cute.CopyAtom, gate: cute.Tensor, tma_b_2: cute.CopyAtom,
    up: cute.Tensor, unit: cute.TiledMma, y: cute.Tensor, T: Int32
):
    # A block owns 128 of T, 128 of N (dot_map).
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    blocks, _, _ = cute.arch.grid_dim()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(thread // 128)
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    if warp == 0:
        cpasync.prefetch_descriptor(tma_a)
        cpasync.prefetch_descriptor(tma_b)
        cpasync.prefetch_descriptor(tma_b_2)
    memory = utils.SmemAllocator().allocate(swiglu_linear_memory)
    ring = pipeline.PipelineTmaAsync.create(
        barrier_storage=memory.ring.data_ptr(),
        num_stages=4,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 16),
        tx_count=49152,
        cta_layout_vmnk=cute.make_layout((1, 2, 1, 1)),
    )
    layout_a, layout_b = swiglu_linear_layouts()
    a_tiles = memory.a.get_tensor(layout_a.outer, swizzle=layout_a.inner)
    b_tiles = memory.b.get_tensor(layout_b.outer, swizzle=layout_b.inner)
    b_2_tiles = memory.b_2.get_tensor(layout_b.outer, swizzle=layout_b.inner)
    tiles = (T + 255) // 256
    items = tiles * 32
    item = block // 2
    cute.arch.griddepcontrol_wait()
    if group == 0:
        # Producer warp: acquire a stage, issue TMA loads that complete on its mbarrier.
        cute.arch.setmaxregister_decrease(40)
        if warp == 0:
            put = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 4)
            while item < items:
                row_tile, n_tile = swiglu_linear_place(item, tiles)
                n_first = n_tile * 128
                t_first = (row_tile * 2 + rank) * 128
                a_from = cute.local_tile(
                    cute.domain_offset((t_first, 0), x), (128, 64), (0, None)
                )
                b_from = cute.local_tile(
                    cute.domain_offset((n_first, 0), gate), (128, 64), (0, None)
                )
                b_2_from = cute.local_tile(
                    cute.domain_offset((n_first, 0), up), (128, 64), (0, None)
                )
                a_to, a_from = cpasync.tma_partition(
                    tma_a, 0, cute.make_layout(1), cute.group_modes(a_tiles, 0, 2), cute.group_modes(a_from, 0, 2)
                )
                b_to, b_from = cpasync.tma_partition(
                    tma_b, rank, cute.make_layout(2),
                    cute.group_modes(b_tiles, 0, 2), cute.group_modes(b_from, 0, 2),
                )
                b_2_to, b_2_from = cpasync.tma_partition(
                    tma_b_2, rank, cute.make_layout(2),
                    cute.group_modes(b_2_tiles, 0, 2), cute.group_modes(b_2_from, 0, 2),
                )
                for k in cutlass.range(64, unroll=1):
                    ring.producer_acquire(put)
                    full = ring.producer_get_barrier(put)
                    cute.copy(tma_a, a_from[None, k], a_to[None, put.index], tma_bar_ptr=full)
                    cute.copy(
                        tma_b, b_from[None, k], b_to[None, put.index], tma_bar_ptr=full, mcast_mask=Int16(3)
                    )
                    cute.copy(
                        tma_b_2, b_2_from[None, k], b_2_to[None, put.index], tma_bar_ptr=full, mcast_mask=Int16(3)
                    )
                    put.advance()
                item += blocks // 2
            ring.producer_tail(put)
    else:
        # Consumer warpgroups: 64 rows each; one wgmma group is in flight while the next is issued.
        cute.arch.setmaxregister_increase(232)
        mine = thread - 128
        share = unit.get_slice(cute.make_layout(2, stride=128)(group - 1))
        a = unit.make_fragment_A(share.partition_A(a_tiles))
        b = unit.make_fragment_B(share.partition_B(b_tiles))
        b_2 = unit.make_fragment_B(share.partition_B(b_2_tiles))
        fragment = cute.make_rmem_tensor(unit.partition_shape_C((128, 128)), Float32)
        fragment_2 = cute.make_rmem_tensor(unit.partition_shape_C((128, 128)), Float32)
        # accumulator fragment: rows `row` and `row + 8`, columns 8 i + 2 (thread % 4) + {0, 1}
        acc = cute.make_tensor(
            fragment.iterator, cute.make_layout((2, (2, 16)), stride=(2, (1, 4)))
        )
        acc_2 = cute.make_tensor(
            fragment_2.iterator, cute.make_layout((2, (2, 16)), stride=(2, (1, 4)))
        )
        row = mine // 32 * 16 + mine // 4 % 8
        quad = 2 * (mine % 4)
        # epilogue scratch of a warp: accumulator pairs to 16-byte vectors
        epilogue_tile = memory.epilogue_smem.data_ptr() + cute.assume((warp - 4) * 256, divby=256)
        get = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 4)
        free = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 4)
        while item < items:
            row_tile, n_tile = swiglu_linear_place(item, tiles)
            n_first = n_tile * 128
            t_first = (row_tile * 2 + rank) * 128
            t = [t_first + row + 8 * r for r in range(2)]
            t_inside = [t[r] < T for r in range(2)]
            ring.consumer_wait(get)
            warpgroup.fence()
            unit.set(warpgroup.Field.ACCUMULATE, False)
            for i in cutlass.range_constexpr(4):
                cute.gemm(unit, fragment, a[None, None, i, get.index], b[None, None, i, get.index], fragment)
                cute.gemm(unit, fragment_2, a[None, None, i, get.index], b_2[None, None, i, get.index], fragment_2)
                unit.set(warpgroup.Field.ACCUMULATE, True)
            warpgroup.commit_group()
            get.advance()
            for k in cutlass.range(1, 64, unroll=1):
                ring.consumer_wait(get)
                warpgroup.fence()
                for i in cutlass.range_constexpr(4):
                    cute.gemm(unit, fragment, a[None, None, i, get.index], b[None, None, i, get.index], fragment)
                    cute.gemm(unit, fragment_2, a[None, None, i, get.index], b_2[None, None, i, get.index], fragment_2)
                warpgroup.commit_group()
                warpgroup.wait_group(1)
                ring.consumer_release(free)
                get.advance()
                free.advance()
            warpgroup.wait_group(0)
            ring.consumer_release(free)
            free.advance()
            n = n_first + quad
            for r in cutlass.range_constexpr(2):  # swiglu_linear.py:22
                silu_times_u_bf16 = []
                for part in cutlass.range_constexpr(2):
                    for c in cutlass.range_constexpr(16 * part, 16 * part + 16):
                        value = acc[r, c]
                        g_as_bf16 = Float32(value).to(BFloat16)
                        g = BFloat16(g_as_bf16).to(Float32)
                        value_2 = acc_2[r, c]  # swiglu_linear.py:23
                        u_as_bf16 = Float32(value_2).to(BFloat16)
                        u = BFloat16(u_as_bf16).to(Float32)
                        sigmoid_g = portable_sigmoid(g)  # swiglu_linear.py:24
                        silu_product = mul(g, sigmoid_g)
                        silu_product_bf16 = Float32(silu_product).to(BFloat16)
                        silu = BFloat16(silu_product_bf16).to(Float32)
                        silu_times_u = mul(silu, u)  # swiglu_linear.py:25
                        silu_times_u_bf16.append(Float32(silu_times_u).to(BFloat16))
                    for c in cutlass.range_constexpr(16 * part, 16 * part + 16, 16):
                        vectors = to_vectors(epilogue_tile, y.element_type, silu_times_u_bf16[c : c + 16])
                        for i in cutlass.range_constexpr(2):
                            store_vector_where(
                                t_inside[r], y, (t[r], (n + 8 * (c // 2) + 3 * quad + 32 * i)), vectors[i]
                            )
            item += blocks // 2


@cute.jit
def launch_swiglu_linear(
    x_ptr: cute.Pointer, gate_ptr: cute.Pointer, up_ptr: cute.Pointer, y_ptr: cute.Pointer, T: Int32, x_t_stride: Int64,
    gate_n_stride: Int64, up_n_stride: Int64, y_t_stride: Int64, programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    x = cute.make_tensor(x_ptr, cute.make_layout((T, 4096), stride=(cute.assume(x_t_stride, divby=8), 1)))
    gate = cute.make_tensor(gate_ptr, cute.make_layout((4096, 4096), stride=(cute.assume(gate_n_stride, divby=8), 1)))
    up = cute.make_tensor(up_ptr, cute.make_layout((4096, 4096), stride=(cute.assume(up_n_stride, divby=8), 1)))
    y = cute.make_tensor(y_ptr, cute.make_layout((T, 4096), stride=(y_t_stride, 1)))
    layout_a, layout_b = swiglu_linear_layouts()
    tma_a, x = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), x,
        cute.slice_(layout_a, (None, None, 0)), (128, 64),
    )
    tma_b, gate = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SMulticastOp(), gate,
        cute.slice_(layout_b, (None, None, 0)), (128, 64), 2,
    )
    tma_b_2, up = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SMulticastOp(), up,
        cute.slice_(layout_b, (None, None, 0)), (128, 64), 2,
    )
    swiglu_linear(
        tma_a, x, tma_b, gate, tma_b_2, up, swiglu_linear_unit(), y, T
    ).launch(
        grid=(programs, 1, 1), block=(384, 1, 1), cluster=(2, 1, 1),
        min_blocks_per_mp=1, use_pdl=overlap, stream=stream,
    )


def call(kernels, x, gate, up, y, T, x_t_stride, gate_n_stride, up_n_stride, y_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = min(2 * ((T + 255) // 256) * 32, 132)
    if programs > 0:
        kernels.swiglu_linear((programs,), x, gate, up, y, T, x_t_stride, gate_n_stride, up_n_stride, y_t_stride)
