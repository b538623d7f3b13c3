"""Sums over ranks of one node whose devices reach each other's memory: kernels of rlk move the terms and add.

torch's symmetric memory maps a buffer of every rank into all of them. The kernels of
`rlk/lower/triton/ranks.py` add in the order of `collective.pairwise_sum`, with its bits; NVLink's own sums
(multicast) are not used.
"""

from __future__ import annotations

import logging
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
from rlk.errors import Code, LaunchError
from rlk.lower.triton.ranks import (
    BLOCK,
    CHUNKS,
    CHUNKS_UNALIGNED,
    SHARES,
    SHARES_UNALIGNED,
    WORDS,
    Exchange,
    lower_sums,
)
from rlk.runtime.binding.arguments import VECTOR
from rlk.runtime.binding.invocation import target_of
from rlk.runtime.kernels.build import kernel_key, obtain
from rlk.runtime.kernels.loader import Host, load

logger = logging.getLogger("rlk.ranks")
MEMORY = "torch.distributed._symmetric_memory"
NO_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}
"""The environment of ranks that set up no sums by NVLink's switch, which would be in its own order."""
PATIENCE = timedelta(minutes=10)
"""How long a kernel waits for another rank where the group does not say it."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of x on a rank up to which a form is used; None: of any size.

    words: `sum_words`. whole: every rank adds all of x; beyond it each rank adds a share and sends the sums.
    short: as `whole`, where sums have fewer bytes than terms. unasked: whether so many ranks use symmetric
    memory where RLK_TRANSPORT is unset.
    """

    words: int
    whole: int | None
    short: int | None
    unasked: bool = False


SIZES = {
    2: Sizes(1 << 18, None, None, unasked=True),
    4: Sizes(1 << 18, 1 << 20, 1 << 20, unasked=True),
    8: Sizes(1 << 17, 1 << 20, 1 << 20),
}
"""By the number of ranks; others exchange by the backend.

Two ranks send as many bytes in shares as whole. 512 KiB of two H200s take the same time by words and by
chunks, whose programs leave room on each SM. On four, all-reduce in graphs takes 0.015 ms whole and 0.016 by
shares at 512 KiB, 0.054 and 0.039 at 4 MiB. Run on no device: eight ranks, which use this only if asked, and
`sum_shares` of two, which do not use it.
"""
_TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


@dataclass(frozen=True, slots=True)
class Memory:
    """The buffers of every rank, as this one sees them, in rank order; its own counts; and how long it waits.

    words: i64 [2 * R * words] of each. rings: bytes, of terms and then of sums. flags: i32 [2 * programs * R]
    likewise. calls: i32 [2]. counts: i32 [2 * programs], of chunks and then of places in a ring. limit:
    nanoseconds. owner: of the mapped buffers.
    """

    words: Sequence[torch.Tensor]
    rings: Sequence[torch.Tensor]
    flags: Sequence[torch.Tensor]
    calls: torch.Tensor
    counts: torch.Tensor
    limit: int
    owner: Any = None


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The kernels for two types of elements; ring and flags of each rank, and the rings of sums."""

    host: Host
    rings: tuple[torch.Tensor, ...]
    sums: tuple[torch.Tensor, ...]


@dataclass(slots=True, eq=False)
class Transport:
    """Sums of one group, whose calls follow each other on the device, on whatever stream they are made.

    host: returns the host function of the kernels for the types of terms and sums. device: the index of the
    memory's, None where it is the host's. x of calls is contiguous and on it, and not empty. last, captured:
    the streams of the newest sums outside and inside of captures; last_handle: that of `last`, if no sum was
    captured since.
    """

    rank: int
    sizes: Exchange
    memory: Memory
    host: Callable[[str, str], Host]
    device: int | None = None
    loaded: dict[tuple[torch.dtype, torch.dtype], _Loaded] = field(default_factory=dict)
    last: Any = None
    captured: Any = None
    last_handle: int = -1

    def total(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the sum over ranks of x [...], all of it, in this dtype: that of x, or one of 16 bits."""
        limits = SIZES[self.sizes.ranks]
        limit = limits.whole if dtype is x.dtype else limits.short
        if limit is None or x.nbytes <= limit:
            return self.whole(x, dtype)
        out = torch.empty_like(x, dtype=dtype)
        self.by_shares(x, out)
        return out

    def whole(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return what `total` does, of which this rank adds all elements."""
        out = torch.empty_like(x, dtype=dtype)
        self._add(x, out, 0)
        return out

    def part(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return this rank's part [n, ...] of the sum of x [R * n, ...] over ranks."""
        out = x.new_empty((len(x) // self.sizes.ranks, *x.shape[1:]), dtype=dtype)
        self._add(x, out, out.numel())
        return out

    # --- forms: rank r writes the sum of the n elements at r * stride of x into out, of n elements ---

    def _add(self, x: torch.Tensor, out: torch.Tensor, stride: int) -> None:
        n = out.numel()
        if n <= self.sizes.words and n * x.element_size() <= SIZES[self.sizes.ranks].words:
            self.by_words(x, out, stride)
        else:
            self.by_chunks(x, out, stride)

    def by_words(self, x: torch.Tensor, out: torch.Tensor, stride: int) -> None:
        """Add by `sum_words`, of at most `sizes.words` elements."""
        n, memory = out.numel(), self.memory
        host = self._ready(x, out).host
        host(WORDS, -(-n // BLOCK), x, out, n, stride, memory.limit, memory.calls, *memory.words)

    def by_chunks(self, x: torch.Tensor, out: torch.Tensor, stride: int) -> None:
        """Add by `sum_chunks`, of any number of elements."""
        n, ready = out.numel(), self._ready(x, out)
        name = CHUNKS_UNALIGNED if (x.data_ptr() | out.data_ptr() | n | stride) % VECTOR else CHUNKS
        memory, programs = self.memory, self._programs(n, x)
        ready.host(name, programs, x, out, n, stride, memory.limit, memory.counts, *ready.rings)

    def by_shares(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Add by `sum_shares`: all of x, of any number of elements."""
        count, ready = x.numel(), self._ready(x, out)
        n = -(-count // (self.sizes.ranks * VECTOR)) * VECTOR
        name = SHARES_UNALIGNED if (x.data_ptr() | out.data_ptr() | count) % VECTOR else SHARES
        memory, programs = self.memory, self._programs(n, x)
        buffers = *ready.rings, *ready.sums
        ready.host(name, programs, x, out, n, count, memory.limit, memory.counts, *buffers)

    def _programs(self, n: int, x: torch.Tensor) -> int:
        return min(self.sizes.programs, -(-n // (self.sizes.chunk // x.element_size())))

    def _ready(self, x: torch.Tensor, out: torch.Tensor) -> _Loaded:
        """Return the kernels of two types with their buffers, which this stream may use next."""
        if self.device is not None:
            handle = torch._C._cuda_getCurrentRawStream(self.device)
            if handle != self.last_handle:
                self._follow(handle)
        dtypes = x.dtype, out.dtype
        if dtypes not in self.loaded:
            host, at = self.host(_TYPES[x.dtype], _TYPES[out.dtype]), self.sizes.ranks * self.sizes.ring
            pairs = zip(self.memory.rings, self.memory.flags, strict=True)
            rings = tuple(t for ring, flags in pairs for t in (ring[:at].view(x.dtype), flags))
            sums = tuple(ring[at:].view(out.dtype) for ring in self.memory.rings)
            self.loaded[dtypes] = _Loaded(host, rings, sums)
        return self.loaded[dtypes]

    def _follow(self, handle: int) -> None:
        """Let this stream wait for the last one that used the buffers, in the same capture or outside of any.

        Who captures orders the replays. A sum of a capture may have been on `last`, whose handle was known.
        """
        stream = torch.cuda.current_stream(self.device)
        if _captures(stream):
            for other in (self.last, self.captured):
                if other is not None and _captures(other):
                    stream.wait_stream(other)
            self.captured, self.last_handle = stream, -1
            return
        if self.last is not None:
            if _captures(self.last):
                wanted = f"no sum outside of the capture before that of {self.last} ends"
                op, name = "a sum over ranks", "the current stream"
                raise LaunchError(Code.ARG_VALUE, op=op, name=name, value=str(stream), wanted=wanted)
            stream.wait_stream(self.last)
        self.last, self.last_handle = stream, handle


def _captures(stream: Any) -> bool:
    """Return whether a CUDA graph captures what goes to a stream; the legacy default one cannot be."""
    with torch.cuda.stream(stream):
        return bool(stream.cuda_stream) and torch.cuda.is_current_stream_capturing()


# --- selection: every rank finds the same -----------------------------------------------------------------

_found: WeakKeyDictionary[dist.ProcessGroup, Transport | str] = WeakKeyDictionary()
"""The transport of each group, or why it has none."""


def known(x: object, group: object) -> Transport | None:
    """Return the transport that an earlier call found, if x needs no other check; None says nothing."""
    members = dist.group.WORLD if group is None else group
    if type(x) is not torch.Tensor or not isinstance(members, dist.ProcessGroup):
        return None
    made = _found.get(members)
    if not isinstance(made, Transport) or _by_backend(made.sizes.ranks):
        return None
    if x.layout is not torch.strided or x.requires_grad:
        return None
    there = x.get_device() == made.device and x.dtype in _TYPES
    return made if there and x.is_contiguous() and not x.is_neg() and x.numel() else None


def transport(levels: tuple[dist.ProcessGroup, ...], x: torch.Tensor, op: str) -> Transport | None:
    """Return the transport of a group for x, None where the backend exchanges its terms.

    The first call of a group exchanges facts of its ranks and maps their memory, and waits for them; all of
    them make it alike. Raises LaunchError where RLK_TRANSPORT asks for symmetric memory and there is none,
    and where x is on another device than the first one of the group.
    """
    if _by_backend(levels[0].size()):
        return None
    made = _transport(levels, x)
    if isinstance(made, Transport):
        if x.device.index != made.device:  # an error: this rank cannot know what the others choose
            wanted = f"cuda:{made.device}, as at the group's first sum, or RLK_TRANSPORT=backend on all ranks"
            raise LaunchError(Code.ARG_VALUE, op=op, name="x.device", value=str(x.device), wanted=wanted)
        return made
    asked = Env.current().transport
    if asked == "symmetric":
        wanted = f"unset, or backend: {made}"
        raise LaunchError(Code.ARG_VALUE, op=op, name="RLK_TRANSPORT", value=asked, wanted=wanted)
    return None


def _by_backend(ranks: int) -> bool:
    """Return whether so many ranks exchange by the backend, whatever their devices can do."""
    asked = Env.current().transport
    return asked == "backend" or (asked is None and ranks in SIZES and not SIZES[ranks].unasked)


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
        by = "symmetric memory" if isinstance(made, Transport) else f"the group's backend: {made}"
        logger.info("sums over %d ranks are exchanged by %s", group.size(), by)
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
        return "ranks share a device, or do not see each other's (CUDA_VISIBLE_DEVICES)"
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
    # a rank without a buffer would miss the rendezvous, and no rank may send before all have zeros
    buffer, why = _on_all(group, lambda: _allocated(sizes, device))
    if why:
        return why
    made, why = _on_all(group, lambda: _mapped(group, sizes, rank, buffer))
    return why or made


def _on_all(group: dist.ProcessGroup, step: Callable[[], Any]) -> tuple[Any, str]:
    """Return what a step made, and why it failed on the first rank where it did: "" if on none."""
    made: Any = None
    try:
        made, failed = step(), ""
    except Exception as error:
        failed = _said(error)
    return made, next(filter(None, _shared(failed, group)), "")


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _shared(own: Any, group: dist.ProcessGroup) -> list[Any]:
    """Return the object of each rank."""
    every: list[Any] = [None] * group.size()
    dist.all_gather_object(every, own, group=group)
    return every


def _facts(sizes: Exchange, rank: int, device: torch.device) -> Facts:
    """Return this rank's facts; it raises nothing, since the others wait for them."""
    index = device.index
    try:
        if torch.version.hip:
            return Facts("", index, (), "symmetric memory is used on NVIDIA's devices alone")
        every = range(torch.cuda.device_count())
        reached = tuple(i for i in every if i != index and torch.cuda.can_device_access_peer(index, i))
        import_module(MEMORY)
        _host(sizes, rank, device)("fp32", "fp32")
        return Facts(socket.gethostname(), index, reached)
    except Exception as error:
        return Facts("", index, (), _said(error))


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


def _lengths(sizes: Exchange) -> tuple[int, int, int]:
    """Return the number of words, of bytes of rings, and of flags in the buffer of a rank."""
    ranks = sizes.ranks
    return 2 * ranks * sizes.words, 2 * ranks * sizes.ring, 2 * sizes.programs * ranks


def _allocated(sizes: Exchange, device: torch.device) -> torch.Tensor:
    """Return the buffer of this rank, which others can map."""
    memory: Any = import_module(MEMORY)
    words, ring, flags = _lengths(sizes)
    buffer: torch.Tensor = memory.empty(8 * words + ring + 4 * flags, dtype=torch.uint8, device=device)
    return buffer


def _mapped(group: dist.ProcessGroup, sizes: Exchange, rank: int, buffer: torch.Tensor) -> Transport:
    """Return the transport whose buffers all ranks have mapped."""
    memory: Any = import_module(MEMORY)
    ranks, device = sizes.ranks, buffer.device
    words, ring, flags = _lengths(sizes)
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
        torch.zeros(2 * sizes.programs, dtype=torch.int32, device=device),
        _limit(group, device),
        (buffer, handle),
    )
    return Transport(rank, sizes, made, _host(sizes, rank, device), device.index)


def _limit(group: dist.ProcessGroup, device: torch.device) -> int:
    """Return how long a kernel waits for another rank, in ns: the timeout of the group."""
    found = getattr(group._get_backend(device).options, "_timeout", PATIENCE)
    return int(found / timedelta(microseconds=1)) * 1000
