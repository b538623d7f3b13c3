"""Sums over ranks of one node whose devices reach each other's memory: kernels of rlk move the terms and add.

torch's symmetric memory maps a buffer of every rank into all of them. The kernels of
`rlk/lower/triton/ranks.py` add in the order of `collective.pairwise_sum`, with its bits; NVLink's own sums
(multicast) are not used.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from rlk.digest import digest
from rlk.env import Env
from rlk.errors import Code, LaunchError, RlkError
from rlk.lower.triton.ranks import BLOCK, CHUNKS, UNALIGNED, WORDS, Exchange, lower_sums
from rlk.runtime.binding.arguments import VECTOR
from rlk.runtime.binding.invocation import target_of
from rlk.runtime.kernels.build import kernel_key, obtain
from rlk.runtime.kernels.loader import Host, load

MEMORY = "torch.distributed._symmetric_memory"
PATIENCE = timedelta(minutes=10)
"""How long a kernel waits for another rank where the group does not say it."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of x on a rank up to which a form is used.

    words: `sum_words`. whole: every rank adds all of x; beyond it each rank adds a share, which the backend
    gathers. None: of any size.
    """

    words: int
    whole: int | None


SIZES = {2: Sizes(1 << 19, None), 4: Sizes(1 << 18, 1 << 22), 8: Sizes(1 << 17, 1 << 20)}
"""By the number of ranks; others exchange by the backend. Two ranks send the same bytes in either form."""
_TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


@dataclass(frozen=True, slots=True)
class Memory:
    """The buffers of every rank, as this one sees them, in rank order; its own counts; and how long it waits.

    words: i64 [2 * R * words] of each. rings: bytes. flags: i32 [programs * R]. calls: i32 [2]. counts:
    i32 [programs]. limit: nanoseconds. owner: what keeps the buffers mapped.
    """

    words: Sequence[torch.Tensor]
    rings: Sequence[torch.Tensor]
    flags: Sequence[torch.Tensor]
    calls: torch.Tensor
    counts: torch.Tensor
    limit: int
    owner: Any = None


@dataclass(slots=True, eq=False)
class Transport:
    """Sums of one group, whose calls follow each other on the device, on whatever stream they are made.

    host: returns the host function of the kernels for the types of terms and sums.
    """

    rank: int
    sizes: Exchange
    memory: Memory
    host: Callable[[str, str], Host]
    hosts: dict[tuple[torch.dtype, torch.dtype], tuple[Host, tuple[torch.Tensor, ...]]] = field(
        default_factory=dict
    )
    last: Any = None

    def add(self, x: torch.Tensor, out: torch.Tensor, stride: int) -> None:
        """Write the sum over ranks of x[r * stride : r * stride + n] of flat x, out [n], on rank r.

        out: of x's dtype, or of 16 bits.
        """
        if (
            out.numel() * x.element_size() <= SIZES[self.sizes.ranks].words
            and out.numel() <= self.sizes.words
        ):
            self.by_words(x, out, stride)
        else:
            self.by_chunks(x, out, stride)

    def by_words(self, x: torch.Tensor, out: torch.Tensor, stride: int) -> None:
        """Do what `add` does, of at most `sizes.words` elements."""
        n, memory = out.numel(), self.memory
        host, _ = self._ready(x, out)
        host(WORDS, -(-n // BLOCK), x, out, n, stride, memory.limit, memory.calls, *memory.words)

    def by_chunks(self, x: torch.Tensor, out: torch.Tensor, stride: int) -> None:
        """Do what `add` does, of any number of elements."""
        n, memory, chunk = out.numel(), self.memory, self.sizes.chunk // x.element_size()
        host, buffers = self._ready(x, out)
        aligned = not (x.data_ptr() | out.data_ptr() | n | stride) % VECTOR
        name, programs = CHUNKS if aligned else UNALIGNED, min(self.sizes.programs, -(-n // chunk))
        host(name, programs, x, out, n, stride, memory.limit, memory.counts, *buffers)

    def total(
        self, flat: torch.Tensor, dtype: torch.dtype, gather: Callable[[torch.Tensor, torch.Tensor], None]
    ) -> torch.Tensor:
        """Return the sum of flat [n] over ranks, all of it; gather(out, part) gathers parts of ranks."""
        count, ranks = flat.numel(), self.sizes.ranks
        limit = SIZES[ranks].whole
        if limit is None or flat.nbytes <= limit:
            return self.whole(flat, dtype)
        vector = VECTOR * ranks
        padded = -(-count // vector) * vector
        if padded > count:
            longer = flat.new_zeros(padded)
            longer[:count] = flat
            flat = longer
        shares = flat.new_empty(ranks, padded // ranks, dtype=dtype)
        mine = shares[self.rank]
        self.add(flat, mine, len(mine))
        gather(shares.view(-1), mine)
        return shares.view(-1)[:count]

    def whole(self, flat: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the sum of flat [n] over ranks, of which this rank adds all elements."""
        out = torch.empty_like(flat, dtype=dtype)
        self.add(flat, out, 0)
        return out

    def part(self, flat: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return this rank's part [n] of the sum of flat [R * n] over ranks."""
        out = flat.new_empty(flat.numel() // self.sizes.ranks, dtype=dtype)
        self.add(flat, out, len(out))
        return out

    def _ready(self, x: torch.Tensor, out: torch.Tensor) -> tuple[Host, tuple[torch.Tensor, ...]]:
        """Return the kernels for x, and their rings and flags; this stream has the buffers next."""
        if x.is_cuda:
            self._follow(x.device)
        dtypes = x.dtype, out.dtype
        if dtypes not in self.hosts:
            pairs = zip(self.memory.rings, self.memory.flags, strict=True)
            buffers = tuple(t for ring, flags in pairs for t in (ring.view(x.dtype), flags))
            self.hosts[dtypes] = self.host(_TYPES[x.dtype], _TYPES[out.dtype]), buffers
        return self.hosts[dtypes]

    def _follow(self, device: torch.device) -> None:
        """Let this stream wait for the last one that used the buffers; who captures orders the replays."""
        stream = torch.cuda.current_stream(device)
        if stream == self.last or torch.cuda.is_current_stream_capturing():
            return
        if self.last is not None:
            stream.wait_stream(self.last)
        self.last = stream


# --- selection: every rank finds the same -----------------------------------------------------------------

_found: WeakKeyDictionary[dist.ProcessGroup, Transport | str] = WeakKeyDictionary()
"""The transport of each group, or why it has none."""


def transport(levels: tuple[dist.ProcessGroup, ...], x: torch.Tensor, op: str) -> Transport | None:
    """Return the transport of a group for x, None where the backend exchanges its terms.

    The first call of a group exchanges facts of its ranks and maps their memory, and waits for them; all of
    them make it alike. Raises LaunchError where RLK_TRANSPORT asks for symmetric memory and there is none.
    """
    asked = Env.current().transport
    if asked == "backend":
        return None
    made = _transport(levels, x)
    if isinstance(made, Transport):
        return made
    if asked == "symmetric":
        wanted = f"unset, or backend: {made}"
        raise LaunchError(Code.ARG_VALUE, op=op, name="RLK_TRANSPORT", value=asked, wanted=wanted)
    return None


def _transport(levels: tuple[dist.ProcessGroup, ...], x: torch.Tensor) -> Transport | str:
    if len(levels) != 1:
        return "the ranks are in two groups"
    if not x.is_cuda:
        return f"x is on {x.device}"
    (group,) = levels
    made = _found.get(group)
    if made is None:
        if group.size() not in SIZES:
            made = f"the group has {group.size()} ranks, not {' or '.join(map(str, SIZES))}"
        elif torch.cuda.is_current_stream_capturing():
            return "a CUDA graph captures the first call of the group"  # what a later call may have
        else:
            made = _set_up(group, x.device)
        _found[group] = made
    if isinstance(made, Transport) and x.device != made.memory.calls.device:
        return f"x is on {x.device}, the first x of the group was on {made.memory.calls.device}"
    return made


@dataclass(frozen=True, slots=True)
class Facts:
    """One rank's part of the decision: its node and device, the devices that it reaches, what it lacks."""

    node: str
    device: int
    reached: tuple[int, ...]
    lacks: str = ""


def refusal(every: Sequence[Facts]) -> str:
    """Return why ranks cannot share memory, "" if they can: the same on all ranks, of the same facts."""
    lacking = next((f"rank {r}: {facts.lacks}" for r, facts in enumerate(every) if facts.lacks), "")
    if lacking:
        return lacking
    if len({facts.node for facts in every}) > 1:
        return "the ranks are on several nodes"
    if len({facts.device for facts in every}) < len(every):
        return "the ranks do not see each other's devices (CUDA_VISIBLE_DEVICES)"
    for rank, facts in enumerate(every):
        for other in every:
            if other.device != facts.device and other.device not in facts.reached:
                return f"the device of rank {rank} does not reach device {other.device} (peer access)"
    return ""


def _set_up(group: dist.ProcessGroup, device: torch.device) -> Transport | str:
    sizes = Exchange(group.size())
    rank = group.rank()
    every = _shared(_facts(sizes, rank, device), group)
    why = refusal(every)
    if why:
        return why
    made: Transport | str
    try:
        made, failed = _mapped(group, sizes, rank, device), ""
    except RuntimeError as error:
        made = failed = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    failures = [text for text in _shared(failed, group) if text]  # and no rank sends before all have zeros
    return failures[0] if failures else made


def _shared(own: Any, group: dist.ProcessGroup) -> list[Any]:
    """Return the object of each rank."""
    every: list[Any] = [None] * group.size()
    dist.all_gather_object(every, own, group=group)
    return every


def _facts(sizes: Exchange, rank: int, device: torch.device) -> Facts:
    node, index = socket.gethostname(), device.index
    every = range(torch.cuda.device_count())
    reached = tuple(i for i in every if i != index and torch.cuda.can_device_access_peer(index, i))
    lacks = ""
    try:
        if torch.version.hip:
            lacks = "symmetric memory is used on NVIDIA's devices alone"
        import_module(MEMORY)
        _host(sizes, rank, device)("fp32", "fp32")
    except (ImportError, RlkError) as error:
        lacks = str(error).partition("\n")[0]
    return Facts(node, index, reached, lacks)


def _host(sizes: Exchange, rank: int, device: torch.device) -> Callable[[str, str], Host]:
    """Return the function that obtains the kernels of two types, from the store or compiled."""

    def host(dtype: str, out_dtype: str) -> Host:
        on = target_of(device)
        assert on is not None
        ir = digest({"sums over ranks": asdict(sizes), "rank": rank, "dtypes": [dtype, out_dtype]})
        key = kernel_key("triton", ir, {}, on.name)
        label = f"sums over {sizes.ranks} ranks"
        folder = obtain(key, lambda: lower_sums(sizes, rank, dtype, out_dtype), label=label)
        return load(folder, "cuda", device.index)[0]

    return host


def _mapped(group: dist.ProcessGroup, sizes: Exchange, rank: int, device: torch.device) -> Transport:
    """Return the transport whose buffers all ranks have mapped."""
    memory: Any = import_module(MEMORY)
    ranks = sizes.ranks
    words, ring, flags = 2 * ranks * sizes.words, ranks * sizes.ring, sizes.programs * ranks
    buffer = memory.empty(8 * words + ring + 4 * flags, dtype=torch.uint8, device=device)
    handle = memory.rendezvous(buffer, group)
    buffer.zero_()
    torch.cuda.synchronize(device)

    def each(count: int, dtype: torch.dtype, start: int) -> list[torch.Tensor]:
        at = start // dtype.itemsize
        return [handle.get_buffer(r, (count,), dtype, at) for r in range(ranks)]

    calls = torch.tensor([1, 0], dtype=torch.int32, device=device)  # no word has number 1 yet
    made = Memory(
        each(words, torch.int64, 0),
        each(ring, torch.uint8, 8 * words),
        each(flags, torch.int32, 8 * words + ring),
        calls,
        torch.zeros(sizes.programs, dtype=torch.int32, device=device),
        _limit(group, device),
        (buffer, handle),
    )
    return Transport(rank, sizes, made, _host(sizes, rank, device))


def _limit(group: dist.ProcessGroup, device: torch.device) -> int:
    """Return how long a kernel waits for another rank, in ns: the timeout of the group."""
    found = getattr(group._get_backend(device).options, "_timeout", PATIENCE)
    return int(found / timedelta(microseconds=1)) * 1000
