"""Kernels of sums over ranks whose devices reach each other's memory: send, wait, add in a fixed order.

Each kernel sends this rank's terms into buffers of the other ranks and adds what they sent to it: a pairwise
tree in rank order, in f32, rounded once. In the first two, with `stride` 0 all ranks get the whole sum; with
`stride` n, rank r gets the sum of the n elements at r * n.

- `sum_words`, of few elements: a word has 32 bits and the number of the call, so that one store sends an
  element and says that it came (as the LL protocol of NCCL does). Two sets of slots alternate: a rank that
  begins call k + 2 has the words of call k + 1 of all ranks, so that their kernels of call k have ended.
  Numbers go on modulo 2**32, and a slot that larger calls alone use would keep one for longer: each call
  renews the number in some of the slots that it does not use, so that all have one of the last calls.
- `sum_chunks`, of many: each program sends its chunks into a ring of slots, with a flag that counts them, and
  adds `ahead` chunks behind. When a program sends chunk g, it has chunk g - ahead - 1 of each other rank,
  which then had consumed chunk g - 2 * ahead - 2 of this one: a ring of so many slots needs no other flag.
- `sum_shares`: rank r adds the n elements at r * n, of `stride` elements, and sends the sums to the others,
  through a second ring with as many slots: all ranks get the whole sum. Three ranks and more send fewer
  bytes so, and two where sums are shorter than terms.

None needs a barrier before or after, and the counts are in memory: a CUDA graph may record the launch. Counts
of chunks go on modulo 2**32, which waits allow for; the place in a ring is kept beside them, since the number
of slots need not divide 2**32.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlk.errors import Code, ScheduleError
from rlk.lower.common.emitted import Emitted, KernelArg, KernelBuild
from rlk.lower.common.prelude import prelude

DEVICE_MEMORY = Path(__file__).with_name("prelude_ranks.py")
BLOCK = 256
"""Elements of a program of `sum_words`: one for each thread, since a thread waits for one after the other."""
WORDS = "sum_words"
CHUNKS = "sum_chunks"
CHUNKS_UNALIGNED = "sum_chunks_unaligned"
SHARES = "sum_shares"
SHARES_UNALIGNED = "sum_shares_unaligned"

_WORD_BITS = {
    "fp32": ("{x}.to(tl.int32, bitcast=True)", "{x}.to(tl.float32, bitcast=True)"),
    "bf16": (
        "{x}.to(tl.int16, bitcast=True).to(tl.int32)",
        "{x}.to(tl.int16).to(tl.bfloat16, bitcast=True)",
    ),
    "fp16": ("{x}.to(tl.int16, bitcast=True).to(tl.int32)", "{x}.to(tl.int16).to(tl.float16, bitcast=True)"),
}
ITEMSIZE = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True, slots=True)
class Exchange:
    """The sizes of the buffers that ranks share, equal on all of them.

    words: elements that `sum_words` takes at most, a power of two from BLOCK on. Of `sum_chunks`: programs;
    chunk, the bytes that one of them sends at once; ahead, the chunks that it sends before it adds the first;
    warps of a program. Raises ScheduleError for other words.
    """

    ranks: int
    words: int = 1 << 18
    programs: int = 128
    chunk: int = 1 << 14
    ahead: int = 2
    warps: int = 8

    def __post_init__(self) -> None:
        if self.words < BLOCK or self.words.bit_count() != 1:  # `sum_words` takes a block's place by a mask
            why = f"a power of two from {BLOCK} on"
            raise ScheduleError(Code.SCHEDULE_FIELD, field="Exchange.words", value=self.words, why=why)

    @property
    def slots(self) -> int:
        """Slots of a ring, by the bound that the module's docstring derives."""
        return 2 * self.ahead + 2

    @property
    def ring(self) -> int:
        """Bytes of the rings of one sender."""
        return self.programs * self.slots * self.chunk


def lower_sums(
    sizes: Exchange, rank: int, dtype: str, out_dtype: str, *, memory: Path = DEVICE_MEMORY
) -> Emitted:
    """Return the module of one rank's kernels.

    dtype: of terms, "fp32", "bf16" or "fp16", as Triton spells it. out_dtype: of sums, that of terms or one
    of 16 bits. memory: the file of the functions that reach other devices' memory; others stand in for an
    interpreter.
    """
    others = [r for r in range(sizes.ranks) if r != rank]
    kernels = [_words(sizes, rank, others, (dtype, out_dtype))]
    kernels += [_chunks(name, sizes, rank, others, (dtype, out_dtype)) for name in (CHUNKS, CHUNKS_UNALIGNED)]
    kernels += [_shares(name, sizes, rank, others, (dtype, out_dtype)) for name in (SHARES, SHARES_UNALIGNED)]
    functions = [each.source for each in prelude(memory).values()]
    text = "\n\n".join(
        ["import triton\nimport triton.language as tl\n", *functions, *(k.source for k in kernels), _CALL]
    )
    title = f'"""Sums over {sizes.ranks} ranks, for rank {rank}: {dtype} to {out_dtype}."""\n\n'
    return Emitted(
        title + text, tuple(k.build for k in kernels), (), (), f"rlk/ranks/{rank}_{dtype}_{out_dtype}.py"
    )


_CALL = """def call(kernels, name, programs, *arguments):
    getattr(kernels, name)((programs,), *arguments)
"""


@dataclass(frozen=True, slots=True)
class _Kernel:
    source: str
    build: KernelBuild


def _tree(terms: list[str]) -> str:
    """Return the pairwise sum of terms: neighbours first."""
    while len(terms) > 1:
        terms = [f"({a} + {b})" for a, b in zip(terms[0::2], terms[1::2], strict=True)]
    return terms[0]


def _kernel(name: str, args: list[KernelArg], body: list[str], warps: int) -> _Kernel:
    signature = ", ".join(arg.name for arg in args)
    lines = ["@triton.jit", f"def {name}({signature}):", *(f"    {line}" for line in body)]
    return _Kernel("\n".join([*lines, ""]), KernelBuild(name, tuple(args), warps, 1))


def _given(dtypes: tuple[str, str], *, aligned: bool) -> list[KernelArg]:
    named = zip(("x_ptr", "y_ptr"), dtypes, strict=True)
    tensors = [KernelArg(name, f"*{dtype}", divisible=aligned) for name, dtype in named]
    sizes = [KernelArg(name, "i64", divisible=aligned) for name in ("n", "stride")]
    return [*tensors, *sizes, KernelArg("limit", "i64")]


def _shared(name: str, kind: str) -> KernelArg:
    return KernelArg(name, f"*{kind}", divisible=True)


def _words(sizes: Exchange, rank: int, others: list[int], dtypes: tuple[str, str]) -> _Kernel:
    to_bits, of_bits = _WORD_BITS[dtypes[0]]
    args = [*_given(dtypes, aligned=False), _shared("calls_ptr", "i32")]
    args += [_shared(f"words_{r}_ptr", "i64") for r in range(sizes.ranks)]
    body = [
        f"at = tl.program_id(0).to(tl.int64) * {BLOCK} + tl.arange(0, {BLOCK})",
        "here = at < n",
        "call = tl.load(calls_ptr, volatile=True)",
        f"place = (call & 1).to(tl.int64) * {sizes.ranks * sizes.words} + at",
    ]
    for r in others:
        bits = to_bits.format(x=f"x_{r}")
        body += [
            f"x_{r} = tl.load(x_ptr + {r} * stride + at, mask=here, other=0.0)",
            f"put_words(words_{r}_ptr + {rank * sizes.words} + place, {bits}, call, here)",
        ]
    body += [f"own = tl.load(x_ptr + {rank} * stride + at, mask=here, other=0.0)"]
    for r in others:
        body += [
            f"bits_{r} = take_words(words_{rank}_ptr + {r * sizes.words} + place, call, here, limit)",
            f"came_{r} = {of_bits.format(x=f'bits_{r}')}",
        ]
    terms = [f"{'own' if r == rank else f'came_{r}'}.to(tl.float32)" for r in range(sizes.ranks)]
    body += [
        f"total = {_tree(terms)}",
        "tl.store(y_ptr + at, total.to(y_ptr.dtype.element_ty), mask=here)",
        "if tl.program_id(0) == 0:  # slots beyond n: no rank sends to them before the next call of this set",
        f"    other = ((call >> 1) & {sizes.words // BLOCK - 1}) * {BLOCK} + tl.arange(0, {BLOCK})",
        f"    slot = (call & 1).to(tl.int64) * {sizes.ranks * sizes.words} + other",
        "    renewed = call.to(tl.int64) << 32",
        *(
            f"    tl.store(words_{rank}_ptr + {r * sizes.words} + slot, renewed, mask=other >= n)"
            for r in others
        ),
        "tl.debug_barrier()  # every thread has read the number of the call",
        "done = tl.atomic_add(calls_ptr + 1, 1)",
        "if done == tl.num_programs(0) - 1:",
        "    tl.store(calls_ptr + 1, 0)",
        "    tl.store(calls_ptr, call + 1)",
    ]
    return _kernel(WORDS, args, body, BLOCK // 32)


def _chunks(name: str, sizes: Exchange, rank: int, others: list[int], dtypes: tuple[str, str]) -> _Kernel:
    dtype, _ = dtypes
    args = [*_given(dtypes, aligned=name == CHUNKS), _shared("counts_ptr", "i32")]
    for r in range(sizes.ranks):
        args += [_shared(f"ring_{r}_ptr", dtype), _shared(f"flags_{r}_ptr", "i32")]
    send = [*_sent(sizes, rank, others, dtype), "publish()"]
    send += [f"set_flag(flags_{r}_ptr + {_flag(sizes, rank)}, first + step + 1)" for r in others]
    add = [*_added(sizes, rank, others, dtype), "tl.store(y_ptr + at, total, mask=here)"]
    body = [
        *_begun(sizes, dtype),
        f"for turn in range(0, steps + {sizes.ahead}):",
        "    if turn < steps:",
        *_step(sizes, dtype, 0, send),
        f"    if turn >= {sizes.ahead}:",
        *_step(sizes, dtype, sizes.ahead, add),
        *_ended(sizes),
    ]
    return _kernel(name, args, body, sizes.warps)


def _shares(name: str, sizes: Exchange, rank: int, others: list[int], dtypes: tuple[str, str]) -> _Kernel:
    dtype, out_dtype = dtypes
    ahead, ring = sizes.ahead, sizes.ring // ITEMSIZE[out_dtype]
    args = [*_given(dtypes, aligned=name == SHARES), _shared("counts_ptr", "i32")]
    for r in range(sizes.ranks):
        args += [_shared(f"ring_{r}_ptr", dtype), _shared(f"flags_{r}_ptr", "i32")]
    args += [_shared(f"sums_{r}_ptr", out_dtype) for r in range(sizes.ranks)]
    own = f"{rank} * n + at"
    add = _added(sizes, rank, others, dtype, in_shares=True)
    add += [f"tl.store(y_ptr + {own}, total, mask=here & ({own} < stride))"]
    add += [f"tl.store(sums_{r}_ptr + {rank * ring} + sum_slot, total)" for r in others]
    terms_sent, sums_sent = (
        [f"flags_{r}_ptr + {_flag(sizes, rank, sums=sums)}" for r in others] for sums in (False, True)
    )
    take = []
    for r in others:
        there = f"{r} * n + at"
        take += [
            f"wait_flag(flags_{rank}_ptr + {_flag(sizes, r, sums=True)}, first + step + 1, limit)",
            f'sum_{r} = tl.load(sums_{rank}_ptr + {r * ring} + sum_slot, cache_modifier=".cg")',
            f"tl.store(y_ptr + {there}, sum_{r}, mask=here & ({there} < stride))",
        ]
    body = [
        *_begun(sizes, dtype),
        f"for turn in range(0, steps + {2 * ahead}):",
        "    if turn < steps:",
        *_step(sizes, dtype, 0, _sent(sizes, rank, others, dtype, in_shares=True)),
        f"    if (turn >= {ahead}) & (turn < steps + {ahead}):",
        *_step(sizes, dtype, ahead, [_sum_slot(sizes, out_dtype, dtype), *add]),
        f"    if turn < steps + {ahead}:",
        "        publish()",
        "        if turn < steps:",
        *(f"            set_flag({there}, first + turn + 1)" for there in terms_sent),
        f"        if turn >= {ahead}:",
        *(f"            set_flag({there}, first + turn + {1 - ahead})" for there in sums_sent),
        f"    if turn >= {2 * ahead}:",
        *_step(sizes, dtype, 2 * ahead, [_sum_slot(sizes, out_dtype, dtype), *take]),
        *_ended(sizes),
    ]
    return _kernel(name, args, body, sizes.warps)


# --- pieces of the kernels of chunks ------------------------------------------------------------------------


def _begun(sizes: Exchange, dtype: str) -> list[str]:
    chunk = sizes.chunk // ITEMSIZE[dtype]
    return [
        "program = tl.program_id(0)",
        f"lanes = tl.arange(0, {chunk})",
        f"chunks = ((n + {chunk - 1}) // {chunk}).to(tl.int32)",
        f"steps = (chunks - program + {sizes.programs - 1}) // {sizes.programs}",
        "first = tl.load(counts_ptr + program)",
        f"place = tl.load(counts_ptr + {sizes.programs} + program)",
    ]


def _ended(sizes: Exchange) -> list[str]:
    return [
        "tl.store(counts_ptr + program, first + steps)",
        f"tl.store(counts_ptr + {sizes.programs} + program, (place + steps) % {sizes.slots})",
    ]


def _step(sizes: Exchange, dtype: str, behind: int, body: list[str]) -> list[str]:
    """Return the lines of a branch that works on the chunk so many turns behind the newest."""
    chunk = sizes.chunk // ITEMSIZE[dtype]
    lines = [
        f"step = turn - {behind}" if behind else "step = turn",
        f"at = (program + step * {sizes.programs}).to(tl.int64) * {chunk} + lanes",
        "here = at < n",
        f"slot = (program * {sizes.slots} + (place + step) % {sizes.slots}) * {chunk} + lanes",
        *body,
    ]
    return [f"        {line}" for line in lines]


def _flag(sizes: Exchange, sender: int, *, sums: bool = False) -> str:
    """Return the place of a sender's flag: first those of terms, then those of sums."""
    place = f"program * {sizes.ranks} + {sender}"
    return f"{sizes.programs * sizes.ranks} + {place}" if sums else place


def _sum_slot(sizes: Exchange, out_dtype: str, dtype: str) -> str:
    """Return the line of the place of a chunk of sums: as many elements, in a slot of as many bytes."""
    slot = sizes.chunk // ITEMSIZE[out_dtype]
    return f"sum_slot = (program * {sizes.slots} + (place + step) % {sizes.slots}) * {slot} + lanes"


def _term(rank: int, in_shares: bool) -> str:
    """Return the load of a chunk of the terms for a rank; the last shares may end before the others."""
    if in_shares:
        return f"tl.load(x_ptr + {rank} * n + at, mask=here & ({rank} * n + at < stride), other=0.0)"
    return f"tl.load(x_ptr + {rank} * stride + at, mask=here, other=0.0)"


def _sent(sizes: Exchange, rank: int, others: list[int], dtype: str, *, in_shares: bool = False) -> list[str]:
    """Return the lines that send a chunk of terms to every other rank."""
    ring, lines = sizes.ring // ITEMSIZE[dtype], list[str]()
    for r in others:
        lines += [
            f"x_{r} = {_term(r, in_shares)}",
            f"tl.store(ring_{r}_ptr + {rank * ring} + slot, x_{r})",
        ]
    return lines


def _added(
    sizes: Exchange, rank: int, others: list[int], dtype: str, *, in_shares: bool = False
) -> list[str]:
    """Return the lines that wait for a chunk of terms of every other rank, and add them."""
    ring = sizes.ring // ITEMSIZE[dtype]
    lines = [f"own = {_term(rank, in_shares)}"]
    lines += [f"wait_flag(flags_{rank}_ptr + {_flag(sizes, r)}, first + step + 1, limit)" for r in others]
    for r in others:  # not through L1, which may have an earlier chunk of the slot
        lines += [f'came_{r} = tl.load(ring_{rank}_ptr + {r * ring} + slot, cache_modifier=".cg")']
    terms = [f"{'own' if r == rank else f'came_{r}'}.to(tl.float32)" for r in range(sizes.ranks)]
    return [*lines, f"total = {_tree(terms)}.to(y_ptr.dtype.element_ty)"]
