"""Device functions of generated CuTe modules: text that the lowering copies, parsed and never imported.

A module gets the functions that its kernels call, and those that they call in turn. The ones with @cute.jit
branch on values of the device; the others run while a kernel is traced, and are inlined.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64, Uint32
from cutlass.cute.nvgpu import cpasync, warpgroup

NEAREST = cute.math.RoundingMode.NEAREST_EVEN  # as the head of every module says


def mul(a, b):
    # One rounding, never part of a fused operation.
    return cute.math.mul(a, b, rounding=NEAREST)


def fma(a, b, c):
    # a * b + c with one rounding.
    return cute.math.fma(a, b, c, rounding=NEAREST)


def div(a, b):
    # Correctly rounded.
    return a / b


@cute.jit
def divided(x, by):
    # Rounded quotients: a reciprocal and two fma corrections, or divisions at range ends.
    small, large = Float32(1.0), Float32(1.0)
    for i in cutlass.range_constexpr(len(x)):
        small, large = fmin(small, magnitude(x[i])), large + magnitude(x[i])
    made = cute.make_rmem_tensor((len(x),), Float32)
    low, high = Float32(2.0**-60), Float32(2.0**60)
    usual = (small >= low) & (large <= high) & (by >= low) & (by <= high)
    if any_lane(select(usual, Boolean(False), Boolean(True))):
        for i in cutlass.range_constexpr(len(x)):
            made[i] = div(x[i], by)
    else:
        inverse = div(Float32(1.0), by)
        for i in cutlass.range_constexpr(len(x)):
            near = mul(x[i], inverse)
            near = fma(fma(-by, near, x[i]), inverse, near)
            made[i] = fma(fma(-by, near, x[i]), inverse, near)
    return [made[i] for i in range(len(x))]


def fmax(a, b):
    # max.f32: the other operand if one is NaN.
    return cute.arch.fmax(a, b)


def fmin(a, b):
    # min.f32: the other operand if one is NaN.
    return cute.arch.fmin(a, b)


def exp2(x):
    # ex2.approx.ftz.f32.
    return cute.math.exp2(x, fastmath=True)


def square_root(x):
    # sqrt.rn.f32.
    return cute.math.sqrt(x)


def rounded_down(x):
    # cvt.rmi.f32.f32.
    return cute.math.floor(x)


def select(condition, a, b):
    # condition ? a : b, without a branch.
    return cutlass.select_(condition, a, b)


def all_below(x, bound):
    # True if every element is less than the bound: not NaN either.
    below = x[0] < bound
    for i in range(1, len(x)):
        below = below & (x[i] < bound)
    return below


def any_lane(condition):
    # True if it holds for some thread of the warp.
    return cute.arch.vote_any_sync(condition)


def put_sum(to, a, b):
    # Add two accumulators where this stands.
    for i in range(cute.size(to)):
        to[i] = add_here(a[i], b[i])


def put_sums(parts, merges):
    # Add accumulators: parts[to] = parts[left] + parts[right].
    for to, left, right in merges:
        put_sum(parts[to], parts[left], parts[right])


def add_here(a, b):
    # a + b. The compiler moves plain sums behind later loops, where both terms take registers.
    return cute.arch.inline_ptx(
        "add.rn.f32 {$w0}, {$r0}, {$r1};", write_only_types=[Float32], read_only_args=[a, b]
    )


def add(a, b):
    # a + b: the combine of sum reductions.
    return a + b


def folded(x, stride, combine):
    # Combine elements i and i + stride of a list.
    return [combine(x[i], x[i + stride]) for i in range(len(x)) if not i & stride]


def exchanged(x, lanes, combine):
    # Combine with the elements of lane ^ lanes (butterfly).
    return [combine(a, cute.arch.shuffle_sync_bfly(a, offset=lanes)) for a in x]


def merged(states, stride, merge):
    # Merge states i and i + stride of a thread's lists.
    first = [i for i in range(len(states[0])) if not i & stride]
    each = [merge(*(x[i] for x in states), *(x[i + stride] for x in states)) for i in first]
    return tuple([state[k] for state in each] for k in range(len(states)))


def magnitude(x):
    # Absolute value.
    return (x.bitcast(Int32) & Int32(0x7FFFFFFF)).bitcast(Float32)


def mulhi(a, b):
    # The upper word of a product of words.
    return (Int64(a) * Int64(b) >> 32).to(Uint32)


def philox(c0, c1, c2, c3, k0, k1):
    # Four random words: Philox 4x32-10.
    for _ in range(10):
        high0, low0 = mulhi(c0, Uint32(0xD2511F53)), c0 * Uint32(0xD2511F53)
        high1, low1 = mulhi(c2, Uint32(0xCD9E8D57)), c2 * Uint32(0xCD9E8D57)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + Uint32(0x9E3779B9), k1 + Uint32(0xBB67AE85)
    return c0, c1, c2, c3


def negative_zero():
    # -0.0. The DSL keeps constants by value, so Float32(-0.0) may become Float32(0.0), which came first.
    return Int32(-(2**31)).bitcast(Float32)


def imin(a, b):
    # The minimum of integers.
    return cutlass.min(a, b)


def imax(a, b):
    # The maximum of integers.
    return cutlass.max(a, b)


def halved(x, lanes, thread, combine):
    # Combine with lane ^ lanes by recursive halving: each keeps one half of the list.
    upper, half = thread & lanes != 0, len(x) // 2
    own = [select(upper, x[i + half], x[i]) for i in range(half)]
    given = [select(upper, x[i], x[i + half]) for i in range(half)]
    return [combine(a, cute.arch.shuffle_sync_bfly(b, offset=lanes)) for a, b in zip(own, given)]


def across(x, reduce_smem, strides, thread, combine):
    # Combine with the elements of thread ^ stride, stride by stride, through shared memory.
    for i in range(len(x)):
        reduce_smem[i, thread] = x[i]
    cute.arch.sync_threads()
    far = [sum(a for k, a in enumerate(strides) if j >> k & 1) for j in range(1 << len(strides))]
    x = [[x[i], *(reduce_smem[i, thread ^ f] for f in far[1:])] for i in range(len(x))]
    for _ in strides:
        x = [folded(terms, 1, combine) for terms in x]
    return [terms[0] for terms in x]


def merged_lanes(states, lanes, merge):
    # Merge with the states of lane ^ lanes (butterfly shuffle).
    others = [[cute.arch.shuffle_sync_bfly(a, offset=lanes) for a in x] for x in states]
    each = [merge(*one, *two) for one, two in zip(zip(*states), zip(*others))]
    return tuple([state[k] for state in each] for k in range(len(states)))


def merged_across(states, reduce_buffers, strides, thread, merge):
    # Merge with the states of thread ^ stride, stride by stride, through shared memory.
    count = len(states[0])
    for x, reduce_smem in zip(states, reduce_buffers):
        for i in range(count):
            reduce_smem[i, thread] = x[i]
    cute.arch.sync_threads()
    far = [sum(a for k, a in enumerate(strides) if j >> k & 1) for j in range(1 << len(strides))]
    each = []
    for i in range(count):
        terms = [
            [x[i], *(reduce_smem[i, thread ^ f] for f in far[1:])]
            for x, reduce_smem in zip(states, reduce_buffers)
        ]
        for _ in strides:
            terms = merged(terms, 1, merge)
        each.append([x[0] for x in terms])
    return tuple([state[k] for state in each] for k in range(len(states)))


def vector_of(memory, index, count):
    # A view of `count` contiguous, aligned elements.
    at = cute.assume(cute.crd2idx(index, memory.layout), divby=count)
    return cute.make_tensor(memory.iterator + at, (count,))


def load_vector(memory, index, count):
    # Load a vector.
    x = cute.make_rmem_tensor((count,), memory.element_type)
    cute.autovec_copy(vector_of(memory, index, count), x)
    return [x[i] for i in range(count)]


@cute.jit
def load_vector_where(condition, memory: cute.Tensor, index, other, count: cutlass.Constexpr):
    # Load a vector, or `other` where the condition is false.
    x = cute.make_rmem_tensor((count,), memory.element_type)
    x.fill(other)
    if condition:
        cute.autovec_copy(vector_of(memory, index, count), x)
    return [x[i] for i in range(count)]


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


@cute.jit
def load_where(condition, memory: cute.Tensor, index, other):
    # Load an element, or `other`.
    x = other
    if condition:
        x = type(other)(memory[index])
    return x


@cute.jit
def store_where(condition, memory: cute.Tensor, index, x):
    # Store an element where the condition holds.
    if condition:
        memory[index] = x


@cute.jit
def store_pair_where(condition, memory: cute.Tensor, index, x, y):
    # Store two contiguous elements, the first at an even index, where the condition holds.
    if condition:
        pair = cute.make_rmem_tensor((2,), memory.element_type)
        pair[0], pair[1] = x, y
        even = cute.assume(cute.crd2idx(index, memory.layout), divby=2)
        cute.autovec_copy(pair, cute.make_tensor(memory.iterator + even, (2,)))


def epilogue_offsets(words):
    # Swizzled offsets of a thread's pairs and vectors in 8 rows of 128 bytes of shared memory.
    lane = cute.arch.lane_idx()
    row, quad = lane // 4 * 36, lane % 4
    pairs = row + quad if words == 1 else (row ^ quad // 2 * 4) + quad % 2 * 2
    return pairs, row ^ quad * 4


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


def from_vectors(epilogue_tile, dtype, vectors):
    # Transpose 16-byte vectors to accumulator pairs of the four threads of a row.
    words = dtype.width // 16
    pairs, places = epilogue_offsets(words)
    made = []
    for first in range(0, len(vectors), 2):
        some = vectors[first : first + 2]
        cute.arch.sync_warp()
        for i in range(len(some)):
            vector = cute.make_rmem_tensor((8 // words,), dtype)
            for j in range(8 // words):
                vector[j] = some[i][j]
            to = cute.make_tensor(epilogue_tile + cute.assume(places ^ 16 * i, divby=4), (4,))
            cute.autovec_copy(cute.recast_tensor(vector, Int32), to)
        cute.arch.sync_warp()
        for i in range(4 * len(some) // words):
            pair = cute.make_rmem_tensor((2,), dtype)
            of = cute.make_tensor(epilogue_tile + cute.assume(pairs ^ 4 * words * i, divby=words), (words,))
            cute.autovec_copy(of, cute.recast_tensor(pair, Int32))
            made += [pair[0], pair[1]]
    return made


def copy_vector_where(
    condition, memory: cute.Tensor, index, tiles: cute.Tensor, place, count: cutlass.Constexpr
):
    # cp.async of 16 bytes to shared memory, zeros where the condition is false.
    way = cpasync.CopyG2SOp(cache_mode=cpasync.LoadCacheMode.GLOBAL)
    atom = cute.make_copy_atom(way, memory.element_type, num_bits_per_copy=128)
    at = cute.assume(cute.crd2idx(place, tiles.layout), divby=count)
    chosen = cute.make_rmem_tensor((1,), Boolean)
    chosen[0] = condition
    every = cute.make_tensor(chosen.iterator, cute.make_layout((count,), stride=(0,)))
    to = cute.make_tensor(tiles.iterator + at, (count,))
    cute.copy(atom, vector_of(memory, index, count), to, pred=every)


@cute.jit
def tma_load(
    ring, state, atom: cute.CopyAtom, memory: cute.Tensor, first, shape: cutlass.Constexpr, tiles: cute.Tensor
):
    # Issue a TMA load to a stage once it is free (warp 0); zeros out of the tensor's bounds.
    if cute.arch.make_warp_uniform(cute.arch.warp_idx()) == 0:
        ring.producer_acquire(state)
        source = cute.local_tile(cute.domain_offset(first, memory), shape, (0, 0))
        to, source = cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(tiles, 0, 2), cute.group_modes(source, 0, 2)
        )
        full = ring.producer_get_barrier(state)
        cute.copy(atom, source, to[None, state.index], tma_bar_ptr=full)


@cute.jit
def acquire_from(first, thread, ring, state):
    # producer_acquire by the threads from `first` on, which fill the stage.
    if thread >= first:
        ring.producer_acquire(state)


@cute.jit
def commit_from(first, thread, ring, state):
    # producer_commit by the threads from `first` on.
    if thread >= first:
        ring.producer_commit(state)


@cute.jit
def publish_work_tile(thread, ring, state, work_tile: cute.Tensor, words):
    # Publish a work tile to the consumers. One thread waits: another could miss a phase of the mbarrier.
    if thread == 0:
        ring.producer_acquire(state)
        for i in cutlass.range_constexpr(len(words)):
            work_tile[i] = words[i]
        ring.producer_commit(state)


@cute.jit
def read_work_tile(
    ring, state, work_tile: cute.Tensor, group, alike: cutlass.Constexpr, groups: cutlass.Constexpr
):
    # Read the work tile: words for all consumers, then those of this warpgroup.
    ring.consumer_wait(state)
    words = [work_tile[i] for i in range(alike)]
    words += [work_tile[i + group - 1] for i in range(alike, cute.size(work_tile), groups)]
    # all threads of the warp must have read before one releases the stage
    cute.arch.sync_warp()
    with cute.arch.elect_one():
        ring.consumer_release(state)
    return tuple(words)


@cute.jit
def next_work_tile(thread, next_tile: cute.Tensor, work_counter: cute.Pointer, blocks, items):
    # Next tile index, by an atomic work counter; the first tiles are the block indices.
    if thread == 0:
        drawn = cute.arch.atomic_add(work_counter, Int32(1), sem="relaxed", scope="gpu")
        next_tile[0] = drawn + blocks
        if drawn + 1 == items:  # blocks draw as often as there are tiles: the next launch begins at zero
            cute.arch.atomic_add(work_counter, -items, sem="relaxed", scope="gpu")
    cute.arch.barrier(barrier_id=4, number_of_threads=128)
    item = next_tile[0]
    cute.arch.barrier(barrier_id=4, number_of_threads=128)
    return item


@cute.jit
def earlier(rescales, place: cute.Tensor, row: cutlass.Constexpr, count: cutlass.Constexpr, init):
    # A row's accumulator of earlier pieces in shared memory, or `init` before the first rescale.
    made = cute.make_rmem_tensor((count,), Float32)
    made.fill(init)
    if rescales > 0:
        for c in cutlass.range_constexpr(count):
            made[c] = place[row, c]
    return [made[c] for c in range(count)]


def held(x):
    # x, from a lane to itself: the compiler keeps it in a register, and does not compute it again.
    return cute.arch.shuffle_sync_bfly(x, offset=0)


@cute.jit
def clear_vector_where(condition, tiles: cute.Tensor, place, count: cutlass.Constexpr):
    # Zero 16 bytes of shared memory where the condition holds.
    zeros = cute.make_rmem_tensor((count,), tiles.element_type)
    zeros.fill(0)
    at = cute.assume(cute.crd2idx(place, tiles.layout), divby=count)
    if condition:
        cute.autovec_copy(zeros, cute.make_tensor(tiles.iterator + at, (count,)))


def pair_along(tiles, row, k, stage):
    # Elements k and k + 1 of a row of a tile, which are contiguous.
    pair = cute.make_rmem_tensor((2,), tiles.element_type)
    at = cute.assume(cute.crd2idx((row, k, stage), tiles.layout), divby=2)
    cute.autovec_copy(cute.make_tensor(tiles.iterator + at, (2,)), pair)
    return [pair[0], pair[1]]


def pair_across(tiles, row, k, stage):
    # Elements k and k + 1 of a row of a tile whose rows are contiguous.
    return [tiles[row, k, stage], tiles[row, k + 1, stage]]


def byte_places(row, quad, width: cutlass.Constexpr):
    # Offsets of a row's parts of 16 bytes in a tile with rows of 64 or 128 bytes: a swizzle of as many.
    parts = width // 16
    return [width * row + 16 * (row * parts // 8 % parts ^ i) + quad for i in range(parts)]


def byte_pair(tiles, at):
    # Two contiguous bytes of shared memory as a word.
    pair = cute.make_rmem_tensor((2,), tiles.element_type)
    cute.autovec_copy(cute.make_tensor(tiles.iterator + cute.assume(at, divby=2), (2,)), pair)
    return cute.recast_tensor(pair, cutlass.Uint16)[0].to(Int32)


def sub_pair(a, b, kind):
    # Differences of two 16-bit floats in a word.
    x, y = cute.make_rmem_tensor((2,), kind), cute.make_rmem_tensor((2,), kind)
    cute.recast_tensor(x, Int32)[0], cute.recast_tensor(y, Int32)[0] = a, b
    made = x.load() - y.load()
    return [made[0], made[1]]


def bytes_as_floats(word, magic, kind: cutlass.Constexpr):
    # Two signed bytes as 16-bit floats, exactly: magic + 7 bits, less magic (+ 128 of a negative one).
    word = Int32(cute.arch.prmt(word, magic, Int32(0x5150)))
    return sub_pair(word & Int32(-0x00800081), word & Int32(-0x007F0080), kind)


def put_pairs(to, x):
    # Fill the registers of A: for each 8 columns, a pair of each of a thread's two rows.
    for i in range(len(x)):
        to[i // 2 % 2, i // 4 * 2 + i % 2] = x[i]


def tile_registers(rows, columns, threads, kind):
    # A thread's registers of a tile of which warps have 16 rows each.
    return cute.make_rmem_tensor((rows * columns // threads,), kind)


def matrix_places(lane, rows: cutlass.Constexpr, depth: cutlass.Constexpr):
    # Byte offsets of a lane's row of four 8x8 matrices, 32 elements of 8 rows: 128-byte swizzle, 64 elements.
    row = lane % 8
    return [128 * (row + i // 2 * rows) + 16 * (row ^ i % 2 * 4 + lane // 8) for i in range(depth // 32)]


def warp_products(unit, to, a, tiles, places):
    # Add the products of a warp's 16 rows of A and the rows of a tile, 16 of K at a time, ascending.
    load = cute.make_copy_atom(cute.nvgpu.warp.LdMatrix8x8x16bOp(False, 4), a.element_type)
    for i in range(len(places)):
        for j in range(cute.size(to) // 4):
            two = cute.make_rmem_tensor((8,), a.element_type)
            at = cute.recast_ptr(tiles + cute.assume(places[i] + 1024 * j, divby=16), dtype=a.element_type)
            cute.copy_atom_call(load, cute.make_tensor(at, (8,)), two)
            sums = cute.make_tensor(to.iterator + 4 * j, cute.make_layout(((2, 2), 1, 1)))
            for half in range(2):
                one = cute.make_tensor(a.iterator + 8 * (2 * i + half), cute.make_layout(((2, 2, 2), 1, 1)))
                other = cute.make_tensor(two.iterator + 4 * half, cute.make_layout(((2, 2), 1, 1)))
                cute.gemm(unit, sums, one, other, sums)


def clear_end(tiles, stage, first, mine, rows: cutlass.Constexpr, depth: cutlass.Constexpr):
    # Zero an MN-major tile from `first` of the contracted axis on, by the threads of a warpgroup.
    across = rows // 8
    for i in range((across * depth + 127) // 128):
        at = mine % 128 + 128 * i
        down = at // across
        clear_vector_where((down >= first) & (down < depth), tiles, (at % across * 8, down, stage), 8)


def copy_either_vector(
    condition,
    memory: cute.Tensor,
    index,
    otherwise,
    other: cute.Tensor,
    beside,
    tiles: cute.Tensor,
    place,
    count: cutlass.Constexpr,
):
    # cp.async of 16 bytes of one of two tensors to shared memory, zeros where neither has them.
    way = cpasync.CopyG2SOp(cache_mode=cpasync.LoadCacheMode.GLOBAL)
    atom = cute.make_copy_atom(way, memory.element_type, num_bits_per_copy=128)
    chosen = cute.make_rmem_tensor((1,), Boolean)
    chosen[0] = condition | otherwise
    every = cute.make_tensor(chosen.iterator, cute.make_layout((count,), stride=(0,)))
    one = (memory.iterator + cute.crd2idx(index, memory.layout)).toint()
    two = (other.iterator + cute.crd2idx(beside, other.layout)).toint()
    address = cutlass.select_(condition, one, two)
    of = cute.make_ptr(memory.element_type, address, cute.AddressSpace.gmem, assumed_align=16)
    at = cute.assume(cute.crd2idx(place, tiles.layout), divby=count)
    to = cute.make_tensor(tiles.iterator + at, (count,))
    cute.copy(atom, cute.make_tensor(of, (count,)), to, pred=every)


@cute.jit
def copy_statistic_where(mine, condition, memory: cute.Tensor, index, statistics: cute.Tensor, place):
    # cp.async of 4 bytes to shared memory if `mine`, zero where the condition is false.
    chosen = cute.make_rmem_tensor((1,), Boolean)
    chosen[0] = condition
    if mine:
        atom = cute.make_copy_atom(cpasync.CopyG2SOp(), memory.element_type, num_bits_per_copy=32)
        to = cute.make_tensor(statistics.iterator + cute.crd2idx(place, statistics.layout), (1,))
        cute.copy(atom, vector_of(memory, index, 1), to, pred=chosen)


def statistics_of(statistics, first, stage, count):
    # A thread's column values of a stage: two of every 8 columns, from `first` on.
    made = []
    for i in range(count // 2):
        pair = cute.make_rmem_tensor((2,), statistics.element_type)
        at = cute.assume(cute.crd2idx((first + 8 * i, stage), statistics.layout), divby=2)
        cute.autovec_copy(cute.make_tensor(statistics.iterator + at, (2,)), pair)
        made += [pair[0], pair[1]]
    return made


def multiply(unit, to, a, b, onto, count):
    # Issue a wgmma group of `count` instructions, accumulating if `onto`.
    atom = cute.make_mma_atom(unit.op)
    atom.set(warpgroup.Field.ACCUMULATE, onto)
    warpgroup.fence()
    for i in range(count):
        cute.gemm(atom, to, a[None, None, i], b[None, None, i], to)
        atom.set(warpgroup.Field.ACCUMULATE, True)
    warpgroup.commit_group()


def by_rows(fragment, blocks):
    # View an accumulator as [row, column]: two rows, and columns 8 i + 2 (thread % 4) + {0, 1}.
    return cute.make_tensor(fragment.iterator, cute.make_layout((2, (2, blocks)), stride=(2, (1, 4))))


@cute.jit
def segment_of(begin: cute.Tensor, tile, count, lane, each: cutlass.Constexpr, size: cutlass.Constexpr):
    # Segment of a tile: segment i starts at tile begin[i] * each // size + i.
    early = Int32(0)
    for first in cutlass.range(0, count, 32, unroll=4):
        i = first + lane
        at = load_where(i < count, begin, i, begin.element_type(0)).to(Int32) * each // size + i
        early += select((i < count) & (at <= tile), Int32(1), Int32(0))
    for lanes in (16, 8, 4, 2, 1):
        early += cute.arch.shuffle_sync_bfly(early, offset=lanes)
    return cute.arch.make_warp_uniform(cutlass.max(early - 1, Int32(0)))


def segment_ends(begin, end, lane, most, count: cutlass.Constexpr, size: cutlass.Constexpr):
    # Tiles of all segments up to each, of a lane every 32nd; and of all. A segment has at most `most` rows.
    ends, before = [], Int32(0)
    for first in range(0, count, 32):
        i = first + lane
        from_, to = (
            load_where(i < count, begin, i, begin.element_type(0)),
            load_where(i < count, end, i, end.element_type(0)),
        )
        rows = imin(imax(to.to(Int32) - from_.to(Int32), Int32(0)), Int32(most))
        upto = (rows + Int32(size - 1)) // size
        total = upto
        for lanes in (1, 2, 4, 8, 16):
            other = cute.arch.shuffle_sync_bfly(total, offset=lanes)
            upto += select(lane & lanes != 0, other, Int32(0))
            total += other
        ends.append(before + upto)
        before += total
    return ends, cute.arch.make_warp_uniform(before)


def segment_of_tile(ends, tile):
    # Segment of a tile, and the number of the tile in it.
    earlier_ones, first = Int32(0), Int32(0)
    for end in ends:
        earlier_ones += select(end <= tile, Int32(1), Int32(0))
        first = imax(first, select(end <= tile, end, Int32(0)))
    for lanes in (1, 2, 4, 8, 16):
        earlier_ones += cute.arch.shuffle_sync_bfly(earlier_ones, offset=lanes)
        first = imax(first, cute.arch.shuffle_sync_bfly(first, offset=lanes))
    return cute.arch.make_warp_uniform(earlier_ones), tile - cute.arch.make_warp_uniform(first)


def of_rows(x, pick):
    # Minimum or maximum over the lists of a warp's lanes.
    while len(x) > 1:
        x = [*(pick(a, b) for a, b in zip(x[::2], x[1::2])), *x[len(x) // 2 * 2 :]]
    for lanes in (16, 8, 4, 2, 1):
        x = exchanged(x, lanes, pick)
    return cute.arch.make_warp_uniform(x[0])


@cute.jit
def report_where(bad, errors: cute.Pointer, code: cutlass.Constexpr, row):
    # Record an error code, and its row plus one, in the device's error words.
    if bad:
        cute.arch.atomic_max(errors, Int32(code))
        cute.arch.atomic_max(errors + 1, row)
