"""Device functions of generated kernels: explicitly rounded arithmetic, reductions, predicated memory."""

from __future__ import annotations

from dataclasses import dataclass

from rlk.ir.types import DType
from rlk.lower.common.lines import Function, Line
from rlk.lower.common.machine import TextMachine, written
from rlk.lower.cute.text import literal


@dataclass(frozen=True, slots=True)
class Helper:
    """A device function; traced: with @cute.jit, since it has a branch; others are inlined."""

    function: Function
    traced: bool = False


def _helper(name: str, arguments: str, about: str, *body: str, traced: bool = False) -> Helper:
    return Helper(Function(name, tuple(arguments.split(", ")), about, tuple(map(Line, body))), traced)


_ALL = (
    _helper(
        "mul", "a, b", "One rounding, never part of a fused operation.",
        "return cute.math.mul(a, b, rounding=NEAREST)",
    ),
    _helper(
        "fma", "a, b, c", "a * b + c with one rounding.",
        "return cute.math.fma(a, b, c, rounding=NEAREST)",
    ),
    _helper("div", "a, b", "Correctly rounded.", "return a / b"),
    _helper(
        "divided", "x, by",
        "Rounded quotients: a reciprocal and two fma corrections, or divisions at range ends.",
        "small, large = Float32(1.0), Float32(1.0)",
        "for i in cutlass.range_constexpr(len(x)):",
        "    small, large = fmin(small, magnitude(x[i])), large + magnitude(x[i])",
        "made = cute.make_rmem_tensor((len(x),), Float32)",
        "low, high = Float32(2.0**-60), Float32(2.0**60)",
        "usual = (small >= low) & (large <= high) & (by >= low) & (by <= high)",
        "if any_lane(select(usual, Boolean(False), Boolean(True))):",
        "    for i in cutlass.range_constexpr(len(x)):",
        "        made[i] = div(x[i], by)",
        "else:",
        "    inverse = div(Float32(1.0), by)",
        "    for i in cutlass.range_constexpr(len(x)):",
        "        near = mul(x[i], inverse)",
        "        near = fma(fma(-by, near, x[i]), inverse, near)",
        "        made[i] = fma(fma(-by, near, x[i]), inverse, near)",
        "return [made[i] for i in range(len(x))]",
        traced=True,
    ),
    _helper("fmax", "a, b", "The other operand if one is NaN.", "return cute.arch.fmax(a, b)"),
    _helper("fmin", "a, b", "The other operand if one is NaN.", "return cute.arch.fmin(a, b)"),
    _helper("exp2", "x", "ex2.approx.ftz.f32.", "return cute.math.exp2(x, fastmath=True)"),
    _helper("select", "condition, a, b", "Branchless.", "return cutlass.select_(condition, a, b)"),
    _helper(
        "any_lane", "condition", "True if it holds for some thread of the warp.",
        "return cute.arch.vote_any_sync(condition)",
    ),
    _helper(
        "put_sum", "to, a, b", "Add two accumulators.", "to.store(a.load() + b.load())"
    ),
    _helper("add", "a, b", "A term of a sum.", "return a + b"),
    _helper(
        "folded", "x, stride, combine", "Combine elements i and i + stride of a list.",
        "return [combine(x[i], x[i + stride]) for i in range(len(x)) if not i & stride]",
    ),
    _helper(
        "exchanged", "x, lanes, combine", "Combine with the elements of lane ^ lanes (butterfly).",
        "return [combine(a, cute.arch.shuffle_sync_bfly(a, offset=lanes)) for a in x]",
    ),
    _helper(
        "merged", "states, stride, merge", "Merge states i and i + stride of a thread's lists.",
        "first = [i for i in range(len(states[0])) if not i & stride]",
        "each = [merge(*(x[i] for x in states), *(x[i + stride] for x in states)) for i in first]",
        "return tuple([state[k] for state in each] for k in range(len(states)))",
    ),
    _helper(
        "magnitude", "x", "Absolute value.",
        "return (x.bitcast(Int32) & Int32(0x7FFFFFFF)).bitcast(Float32)",
    ),
    _helper(
        "mulhi", "a, b", "The upper word of a product of words.",
        "return (Int64(a) * Int64(b) >> 32).to(Uint32)",
    ),
    _helper(
        "philox", "c0, c1, c2, c3, k0, k1", "Four random words: Philox 4x32-10.",
        "for _ in range(10):",
        "    high0, low0 = mulhi(c0, Uint32(0xD2511F53)), c0 * Uint32(0xD2511F53)",
        "    high1, low1 = mulhi(c2, Uint32(0xCD9E8D57)), c2 * Uint32(0xCD9E8D57)",
        "    c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0",
        "    k0, k1 = k0 + Uint32(0x9E3779B9), k1 + Uint32(0xBB67AE85)",
        "return c0, c1, c2, c3",
    ),
    _helper("least", "a, b", "Of integers.", "return cutlass.min(a, b)"),
    _helper("most", "a, b", "Of integers.", "return cutlass.max(a, b)"),
    _helper(
        "halved", "x, lanes, thread, combine",
        "Combine with lane ^ lanes by recursive halving: each keeps one half of the list.",
        "upper, half = thread & lanes != 0, len(x) // 2",
        "kept = [select(upper, x[i + half], x[i]) for i in range(half)]",
        "given = [select(upper, x[i], x[i + half]) for i in range(half)]",
        "return [combine(a, cute.arch.shuffle_sync_bfly(b, offset=lanes)) for a, b in zip(kept, given)]",
    ),
    _helper(
        "across", "x, reduce_smem, strides, thread, combine",
        "Combine with the elements of thread ^ stride, stride by stride, through shared memory.",
        "for i in range(len(x)):",
        "    reduce_smem[i, thread] = x[i]",
        "cute.arch.sync_threads()",
        "far = [sum(a for k, a in enumerate(strides) if j >> k & 1) for j in range(1 << len(strides))]",
        "x = [[x[i], *(reduce_smem[i, thread ^ f] for f in far[1:])] for i in range(len(x))]",
        "for _ in strides:",
        "    x = [folded(terms, 1, combine) for terms in x]",
        "return [terms[0] for terms in x]",
    ),
    _helper(
        "merged_lanes", "states, lanes, merge", "Merge with the states of lane ^ lanes (butterfly shuffle).",
        "others = [[cute.arch.shuffle_sync_bfly(a, offset=lanes) for a in x] for x in states]",
        "each = [merge(*one, *two) for one, two in zip(zip(*states), zip(*others))]",
        "return tuple([state[k] for state in each] for k in range(len(states)))",
    ),
    _helper(
        "merged_across", "states, reduce_buffers, strides, thread, merge",
        "Merge with the states of thread ^ stride, stride by stride, through shared memory.",
        "count = len(states[0])",
        "for x, reduce_smem in zip(states, reduce_buffers):",
        "    for i in range(count):",
        "        reduce_smem[i, thread] = x[i]",
        "cute.arch.sync_threads()",
        "far = [sum(a for k, a in enumerate(strides) if j >> k & 1) for j in range(1 << len(strides))]",
        "each = []",
        "for i in range(count):",
        "    terms = [[x[i], *(reduce_smem[i, thread ^ f] for f in far[1:])] "
        "for x, reduce_smem in zip(states, reduce_buffers)]",
        "    for _ in strides:",
        "        terms = merged(terms, 1, merge)",
        "    each.append([x[0] for x in terms])",
        "return tuple([state[k] for state in each] for k in range(len(states)))",
    ),
    _helper(
        "vector_of", "memory, index, count", "A view of `count` contiguous, aligned elements.",
        "at = cute.assume(cute.crd2idx(index, memory.layout), divby=count)",
        "return cute.make_tensor(memory.iterator + at, (count,))",
    ),
    _helper(
        "load_vector", "memory, index, count", "Load a vector.",
        "x = cute.make_rmem_tensor((count,), memory.element_type)",
        "cute.autovec_copy(vector_of(memory, index, count), x)",
        "return [x[i] for i in range(count)]",
    ),
    _helper(
        "load_vector_where", "condition, memory: cute.Tensor, index, other, count: cutlass.Constexpr",
        "Load a vector, or `other` where the condition is false.",
        "x = cute.make_rmem_tensor((count,), memory.element_type)",
        "x.fill(other)",
        "if condition:",
        "    cute.autovec_copy(vector_of(memory, index, count), x)",
        "return [x[i] for i in range(count)]",
        traced=True,
    ),
    _helper(
        "store_vector", "memory, index, x", "Store a vector.",
        "made = cute.make_rmem_tensor((len(x),), memory.element_type)",
        "for i in range(len(x)):",
        "    made[i] = x[i]",
        "cute.autovec_copy(made, vector_of(memory, index, len(x)))",
    ),
    _helper(
        "store_vector_where", "condition, memory: cute.Tensor, index, x",
        "Store a vector where the condition holds.",
        "if condition:",
        "    store_vector(memory, index, x)",
        traced=True,
    ),
    _helper(
        "load_where", "condition, memory: cute.Tensor, index, other", "Load an element, or `other`.",
        "x = other", "if condition:", "    x = type(other)(memory[index])", "return x", traced=True,
    ),
    _helper(
        "store_where", "condition, memory: cute.Tensor, index, x", "Store an element if it holds.",
        "if condition:", "    memory[index] = x", traced=True,
    ),
    _helper(
        "store_pair_where", "condition, memory: cute.Tensor, index, x, y",
        "Store two contiguous elements, the first at an even index, where the condition holds.",
        "if condition:",
        "    pair = cute.make_rmem_tensor((2,), memory.element_type)",
        "    pair[0], pair[1] = x, y",
        "    even = cute.assume(cute.crd2idx(index, memory.layout), divby=2)",
        "    cute.autovec_copy(pair, cute.make_tensor(memory.iterator + even, (2,)))",
        traced=True,
    ),
    _helper(
        "epilogue_offsets", "words",
        "Swizzled offsets of a thread's pairs and vectors in 8 rows of 128 bytes of shared memory.",
        "lane = cute.arch.lane_idx()",
        "row, quad = lane // 4 * 36, lane % 4",
        "pairs = row + quad if words == 1 else (row ^ quad // 2 * 4) + quad % 2 * 2",
        "return pairs, row ^ quad * 4",
    ),
    _helper(
        "to_vectors", "epilogue_tile, dtype, x",
        "Transpose accumulator pairs of the four threads of a row to 16-byte vectors.",
        "words = dtype.width // 16",
        "pairs, vectors = epilogue_offsets(words)",
        "cute.arch.sync_warp()",
        "for i in range(len(x) // 2):",
        "    pair = cute.make_rmem_tensor((2,), dtype)",
        "    pair[0], pair[1] = x[2 * i], x[2 * i + 1]",
        "    to = cute.make_tensor(epilogue_tile + "
        "cute.assume(pairs ^ 4 * words * i, divby=words), (words,))",
        "    cute.autovec_copy(cute.recast_tensor(pair, Int32), to)",
        "cute.arch.sync_warp()",
        "made = []",
        "for i in range(len(x) * words // 8):",
        "    vector = cute.make_rmem_tensor((8 // words,), dtype)",
        "    of = cute.make_tensor(epilogue_tile + cute.assume(vectors ^ 16 * i, divby=4), (4,))",
        "    cute.autovec_copy(of, cute.recast_tensor(vector, Int32))",
        "    made.append([vector[j] for j in range(8 // words)])",
        "return made",
    ),
    _helper(
        "from_vectors", "epilogue_tile, dtype, vectors",
        "Transpose 16-byte vectors to accumulator pairs of the four threads of a row.",
        "words = dtype.width // 16",
        "pairs, places = epilogue_offsets(words)",
        "made = []",
        "for first in range(0, len(vectors), 2):",
        "    some = vectors[first : first + 2]",
        "    cute.arch.sync_warp()",
        "    for i in range(len(some)):",
        "        vector = cute.make_rmem_tensor((8 // words,), dtype)",
        "        for j in range(8 // words):",
        "            vector[j] = some[i][j]",
        "        to = cute.make_tensor(epilogue_tile + cute.assume(places ^ 16 * i, divby=4), (4,))",
        "        cute.autovec_copy(cute.recast_tensor(vector, Int32), to)",
        "    cute.arch.sync_warp()",
        "    for i in range(4 * len(some) // words):",
        "        pair = cute.make_rmem_tensor((2,), dtype)",
        "        of = cute.make_tensor(epilogue_tile + "
        "cute.assume(pairs ^ 4 * words * i, divby=words), (words,))",
        "        cute.autovec_copy(of, cute.recast_tensor(pair, Int32))",
        "        made += [pair[0], pair[1]]",
        "return made",
    ),
    _helper(
        "copy_vector_where",
        "condition, memory: cute.Tensor, index, tiles: cute.Tensor, place, count: cutlass.Constexpr",
        "cp.async of 16 bytes to shared memory, zeros where the condition is false.",
        "way = cpasync.CopyG2SOp(cache_mode=cpasync.LoadCacheMode.GLOBAL)",
        "atom = cute.make_copy_atom(way, memory.element_type, num_bits_per_copy=128)",
        "at = cute.assume(cute.crd2idx(place, tiles.layout), divby=count)",
        "chosen = cute.make_rmem_tensor((1,), Boolean)",
        "chosen[0] = condition",
        "every = cute.make_tensor(chosen.iterator, cute.make_layout((count,), stride=(0,)))",
        "to = cute.make_tensor(tiles.iterator + at, (count,))",
        "cute.copy(atom, vector_of(memory, index, count), to, pred=every)",
    ),
    _helper(
        "tma_load",
        "ring, state, atom: cute.CopyAtom, memory: cute.Tensor, first, shape: cutlass.Constexpr, "
        "tiles: cute.Tensor",
        "Issue a TMA load to a stage once it is free (warp 0); zeros out of the tensor's bounds.",
        "if cute.arch.make_warp_uniform(cute.arch.warp_idx()) == 0:",
        "    ring.producer_acquire(state)",
        "    source = cute.local_tile(cute.domain_offset(first, memory), shape, (0, 0))",
        "    to, source = cpasync.tma_partition(",
        "        atom, 0, cute.make_layout(1), cute.group_modes(tiles, 0, 2), cute.group_modes(source, 0, 2)",
        "    )",
        "    full = ring.producer_get_barrier(state)",
        "    cute.copy(atom, source, to[None, state.index], tma_bar_ptr=full)",
        traced=True,
    ),
    _helper(
        "acquire_from",
        "first, thread, ring, state",
        "producer_acquire by the threads from `first` on, which fill the stage.",
        "if thread >= first:",
        "    ring.producer_acquire(state)",
        traced=True,
    ),
    _helper(
        "commit_from",
        "first, thread, ring, state",
        "producer_commit by the threads from `first` on.",
        "if thread >= first:",
        "    ring.producer_commit(state)",
        traced=True,
    ),
    _helper(
        "publish_work_tile",
        "thread, ring, state, work_tile: cute.Tensor, words",
        "Publish a work tile to the consumers. One thread waits: another could miss a phase of the mbarrier.",
        "if thread == 0:",
        "    ring.producer_acquire(state)",
        "    for i in cutlass.range_constexpr(len(words)):",
        "        work_tile[i] = words[i]",
        "    ring.producer_commit(state)",
        traced=True,
    ),
    _helper(
        "read_work_tile",
        "ring, state, work_tile: cute.Tensor, group, alike: cutlass.Constexpr, groups: cutlass.Constexpr",
        "Read the work tile: words for all consumers, then those of this warpgroup.",
        "ring.consumer_wait(state)",
        "words = [work_tile[i] for i in range(alike)]",
        "words += [work_tile[i + group - 1] for i in range(alike, cute.size(work_tile), groups)]",
        "# all threads of the warp must have read before one releases the stage",
        "cute.arch.sync_warp()",
        "with cute.arch.elect_one():",
        "    ring.consumer_release(state)",
        "return tuple(words)",
        traced=True,
    ),
    _helper(
        "next_work_tile",
        "thread, next_tile: cute.Tensor, work_counter: cute.Pointer, blocks",
        "Next tile index, by an atomic work counter; the first tiles are the block indices.",
        "if thread == 0:",
        '    next_tile[0] = cute.arch.atomic_add(work_counter, Int32(1), sem="relaxed", '
        'scope="gpu") + blocks',
        "cute.arch.barrier(barrier_id=4, number_of_threads=128)",
        "item = next_tile[0]",
        "cute.arch.barrier(barrier_id=4, number_of_threads=128)",
        "return item",
        traced=True,
    ),
    _helper(
        "earlier",
        "rescales, place: cute.Tensor, row: cutlass.Constexpr, count: cutlass.Constexpr, init",
        "A row's accumulator of earlier pieces in shared memory, or `init` before the first rescale.",
        "made = cute.make_rmem_tensor((count,), Float32)",
        "made.fill(init)",
        "if rescales > 0:",
        "    for c in cutlass.range_constexpr(count):",
        "        made[c] = place[row, c]",
        "return [made[c] for c in range(count)]",
        traced=True,
    ),
    _helper(
        "clear_vector_where",
        "condition, tiles: cute.Tensor, place, count: cutlass.Constexpr",
        "Zero 16 bytes of shared memory where the condition holds.",
        "zeros = cute.make_rmem_tensor((count,), tiles.element_type)",
        "zeros.fill(0)",
        "at = cute.assume(cute.crd2idx(place, tiles.layout), divby=count)",
        "if condition:",
        "    cute.autovec_copy(zeros, cute.make_tensor(tiles.iterator + at, (count,)))",
        traced=True,
    ),
    _helper(
        "copy_either_vector",
        "condition, memory: cute.Tensor, index, otherwise, other: cute.Tensor, beside, tiles: cute.Tensor, "
        "place, count: cutlass.Constexpr",
        "cp.async of 16 bytes of one of two tensors to shared memory, zeros where neither has them.",
        "way = cpasync.CopyG2SOp(cache_mode=cpasync.LoadCacheMode.GLOBAL)",
        "atom = cute.make_copy_atom(way, memory.element_type, num_bits_per_copy=128)",
        "chosen = cute.make_rmem_tensor((1,), Boolean)",
        "chosen[0] = condition | otherwise",
        "every = cute.make_tensor(chosen.iterator, cute.make_layout((count,), stride=(0,)))",
        "one = (memory.iterator + cute.crd2idx(index, memory.layout)).toint()",
        "two = (other.iterator + cute.crd2idx(beside, other.layout)).toint()",
        "address = cutlass.select_(condition, one, two)",
        "of = cute.make_ptr(memory.element_type, address, cute.AddressSpace.gmem, assumed_align=16)",
        "at = cute.assume(cute.crd2idx(place, tiles.layout), divby=count)",
        "to = cute.make_tensor(tiles.iterator + at, (count,))",
        "cute.copy(atom, cute.make_tensor(of, (count,)), to, pred=every)",
    ),
    _helper(
        "copy_number_where",
        "mine, condition, memory: cute.Tensor, index, numbers: cute.Tensor, place",
        "cp.async of 4 bytes to shared memory if `mine`, zero where the condition is false.",
        "chosen = cute.make_rmem_tensor((1,), Boolean)",
        "chosen[0] = condition",
        "if mine:",
        "    atom = cute.make_copy_atom(cpasync.CopyG2SOp(), memory.element_type, num_bits_per_copy=32)",
        "    to = cute.make_tensor(numbers.iterator + cute.crd2idx(place, numbers.layout), (1,))",
        "    cute.copy(atom, vector_of(memory, index, 1), to, pred=chosen)",
        traced=True,
    ),
    _helper(
        "numbers_of", "numbers, first, stage, count",
        "A thread's column values of a stage: two of every 8 columns, from `first` on.",
        "made = []",
        "for i in range(count // 2):",
        "    pair = cute.make_rmem_tensor((2,), numbers.element_type)",
        "    at = cute.assume(cute.crd2idx((first + 8 * i, stage), numbers.layout), divby=2)",
        "    cute.autovec_copy(cute.make_tensor(numbers.iterator + at, (2,)), pair)",
        "    made += [pair[0], pair[1]]",
        "return made",
    ),
    _helper(
        "multiply", "unit, to, a, b, onto, count",
        "Issue a wgmma group of `count` instructions, accumulating if `onto`.",
        "atom = cute.make_mma_atom(unit.op)",
        "atom.set(warpgroup.Field.ACCUMULATE, onto)",
        "warpgroup.fence()",
        "for i in range(count):",
        "    cute.gemm(atom, to, a[None, None, i], b[None, None, i], to)",
        "    atom.set(warpgroup.Field.ACCUMULATE, True)",
        "warpgroup.commit_group()",
    ),
    _helper(
        "by_rows", "fragment, blocks",
        "View an accumulator as [row, column]: two rows, and columns 8 i + 2 (thread % 4) + {0, 1}.",
        "return cute.make_tensor(fragment.iterator, cute.make_layout((2, (2, blocks)), stride=(2, (1, 4))))",
    ),
    _helper(
        "segment_of",
        "begin: cute.Tensor, tile, count, lane, each: cutlass.Constexpr, size: cutlass.Constexpr",
        "Segment of a tile: segment i starts at tile begin[i] * each // size + i.",
        "early = Int32(0)",
        "for first in cutlass.range(0, count, 32, unroll=4):",
        "    i = first + lane",
        "    at = load_where(i < count, begin, i, begin.element_type(0)).to(Int32) * each // size + i",
        "    early += select((i < count) & (at <= tile), Int32(1), Int32(0))",
        "for lanes in (16, 8, 4, 2, 1):",
        "    early += cute.arch.shuffle_sync_bfly(early, offset=lanes)",
        "return cute.arch.make_warp_uniform(cutlass.max(early - 1, Int32(0)))",
        traced=True,
    ),
    _helper(
        "of_rows", "x, pick", "Minimum or maximum over the lists of a warp's lanes.",
        "while len(x) > 1:",
        "    x = [*(pick(a, b) for a, b in zip(x[::2], x[1::2])), *x[len(x) // 2 * 2 :]]",
        "for lanes in (16, 8, 4, 2, 1):",
        "    x = exchanged(x, lanes, pick)",
        "return cute.arch.make_warp_uniform(x[0])",
    ),
    _helper(
        "report_where", "bad, errors: cute.Pointer, code: cutlass.Constexpr, row",
        "Record an error code, and its row plus one, in the device's error words.",
        "if bad:",
        "    cute.arch.atomic_max(errors, Int32(code))",
        "    cute.arch.atomic_max(errors + 1, row)",
        traced=True,
    ),
)  # fmt: skip
HELPERS = {h.function.name: h for h in _ALL}


class CuteMachine(TextMachine):
    """Spellings of CuTe DSL."""

    __slots__ = ()

    def f32(self, value: float) -> str:
        return literal(float(value), DType.F32)

    def i32(self, value: int) -> str:
        return literal(value, DType.I32)

    def mul(self, a: str, b: str) -> str:
        return self.let(f"mul({a}, {b})", "f")

    def div(self, a: str, b: str) -> str:
        return self.let(f"div({a}, {b})", "f")

    def fma(self, a: str, b: str, c: str) -> str:
        return self.let(f"fma({a}, {b}, {c})", "f")

    def min(self, a: str, b: str) -> str:
        return self.let(f"fmin({a}, {b})", "f")

    def max(self, a: str, b: str) -> str:
        return self.let(f"fmax({a}, {b})", "f")

    def select(self, cond: str, a: str, b: str) -> str:
        return self.let(f"select({cond}, {a}, {b})", "f")

    def shl(self, a: str, bits: int) -> str:
        return self.let(f"{a} << Int32({bits})", "i")

    def sar(self, a: str, bits: int) -> str:
        return self.let(f"{a} >> Int32({bits})", "i")

    def as_i32(self, x: str) -> str:
        return self.let(f"Float32({x}).bitcast(Int32)", "i")

    def as_f32(self, i: str) -> str:
        return self.let(f"Int32({i}).bitcast(Float32)", "f")

    def to_f32(self, i: str) -> str:
        return self.let(f"Int32({i}).to(Float32)", "f")


def portable(name: str) -> Helper:
    """Return a portable function as a function of one element."""
    return Helper(written(name, CuteMachine()))
