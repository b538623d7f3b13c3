"""Results of every rank of a test: `python -m rank_cases BACKEND WORLD RANK FOLDER` writes one file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from rlk.env import Env
from rlk.errors import RlkError
from rlk.ops import collective as of_collective
from rlk.ops import ordered_all_reduce, ordered_gather_sum, ordered_reduce_scatter
from rlk.ops.collective import reference, scatter_reference
from rlk.runtime.call import collective
from rlk.runtime.call.collective import ordered_gather
from rlk.runtime.call.symmetric import NO_MULTICAST
from rlk.testing.bits import differing

Found = dict[str, Any]
LIMIT = timedelta(seconds=60)


def wide(*shape: int, seed: int) -> torch.Tensor:
    """Return numbers whose sums depend on their order: 24 binades, both signs."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator) * 2.0 ** torch.randint(-12, 12, shape, generator=generator)


BIG = float(torch.finfo(torch.float32).max)
INF, NAN, TINY = float("inf"), float("nan"), 2.0**-149
SPECIAL = (
    (BIG, -0.0, 2.0**24, INF, TINY, NAN, 1.0, -0.0, 2.0**-126),
    (BIG, -0.0, 1.0, 1.0, TINY, 1.0, -1.0, 0.0, -TINY),
    (-BIG, -0.0, -(2.0**24), -INF, -TINY, 1.0, -0.0, -0.0, TINY),
    (-BIG, -0.0, 1.0, 2.0, TINY, 1.0, -0.0, -0.0, TINY),
)
"""One row a rank: overflow that depends on the order, a zero's sign, cancellation, the smallest numbers."""

SUMS: dict[str, Callable[[int], torch.Tensor]] = {
    "one number": lambda rank: wide(1, seed=rank)[0],
    "one element": lambda rank: wide(1, seed=rank),
    "three elements": lambda rank: wide(3, seed=rank),
    "a whole share for each rank": lambda rank: wide(4096, seed=rank),
    "an odd count": lambda rank: wide(1001, seed=rank),
    "a last share of one": lambda rank: wide(2, 7, 4, seed=rank).view(-1)[:49],
    "three dims": lambda rank: wide(3, 5, 67, seed=rank),
    "a transposed matrix": lambda rank: wide(37, 20, seed=rank).t(),
    "every second element": lambda rank: wide(200, seed=rank)[::2],
    "a row for all rows": lambda rank: wide(1, 7, seed=rank).expand(5, 7),
    "a negated view": lambda rank: torch._neg_view(wide(33, seed=rank)),
    "special values": lambda rank: torch.tensor(SPECIAL[rank % 4]),
    "a parameter": lambda rank: torch.nn.Parameter(wide(5, seed=rank), requires_grad=False),
    "nothing": lambda rank: torch.empty(0, 5),
    "many": lambda rank: wide((1 << 17) + 3, seed=rank),
}

GATHERS: dict[str, Callable[[int], torch.Tensor]] = {
    "f32 by column": lambda rank: wide(4, 6, seed=rank).t(),
    "bf16": lambda rank: wide(3, 5, seed=rank).bfloat16(),
    "f16 of one number": lambda rank: wide(1, seed=rank).half()[0],
    "int64": lambda rank: torch.arange(5) + (rank << 40),
    "bool": lambda rank: torch.arange(9) % (rank + 2) == 0,
    "a negated view": lambda rank: torch._neg_view(wide(33, seed=rank)),
    "complex, conjugated": lambda rank: torch.complex(*wide(2, 3, seed=rank)).conj(),
    "nothing": lambda rank: torch.empty(3, 0, dtype=torch.int32),
}


def refused(call: Callable[[], object]) -> tuple[str, str]:
    """Return the code and the text of what a call raises."""
    try:
        call()
    except RlkError as error:
        return error.code.name, str(error)
    return "", "nothing was raised"


def shown(x: torch.Tensor) -> torch.Tensor:
    """Return the values of a tensor, where a lazy view keeps others in memory."""
    return x.detach().resolve_conj().resolve_neg()


def untouched(fn: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Return fn(x) on the host, after checking that x kept its bits and shares no memory with it."""
    before = shown(x).clone()
    made = fn(x)
    assert differing(shown(x), before) == 0
    assert made.is_contiguous() and not made.requires_grad and made.device == x.device
    assert not made.numel() or made.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    return made.cpu()


@contextmanager
def member(
    backend: str,
    world: int,
    rank: int,
    folder: Path,
    limit: timedelta = LIMIT,
    device: torch.device | None = None,
) -> Iterator[torch.device]:
    """Be one of the ranks; the rank's device is given: by NCCL one of its own, else the host, if not asked.

    limit: of the time that a rank waits for others.
    """
    torch.set_num_threads(1)
    if device is None:
        device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store = f"file://{folder / 'store'}"
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=world, timeout=limit)
    yield device
    dist.barrier()
    dist.destroy_process_group()


def main(backend: str, world: int, rank: int, folder: Path) -> None:
    """Run everything as one rank, and write what it found."""
    with member(backend, world, rank, folder) as device:
        torch.save(everything(world, rank, device), folder / f"{rank}.pt")


def everything(world: int, rank: int, device: torch.device) -> Found:
    add, gather = partial(ordered_all_reduce, group=None), partial(ordered_gather, group=None)
    found: Found = {"sums": {name: untouched(add, make(rank).to(device)) for name, make in SUMS.items()}}
    with patch.object(collective, "GATHERED", 0):
        found["sums, not gathered"] = {
            name: untouched(add, make(rank).to(device)) for name, make in SUMS.items()
        }
    found["gathers"] = {name: untouched(gather, make(rank).to(device)) for name, make in GATHERS.items()}
    x = SUMS["many"](rank).to(device)
    found["reference"] = reference(x, None).cpu()
    dist.all_reduce(x)
    found["backend"] = x.cpu()
    found["repeats"] = repeats(wide(5, 1001, seed=rank).to(device))
    found["groups"] = groups(world, rank, device)
    found["forms"] = forms(world, rank, device)
    found["errors"] = errors(device)
    found["other terms"] = other_terms(world, rank, device)
    return found


def repeats(x: torch.Tensor) -> int:
    """Return how many of 100 calls, the device never waited for, have other bits than the first."""
    first = ordered_all_reduce(x, None)
    if x.is_cuda:
        torch.cuda.set_sync_debug_mode("error")
    again = [ordered_all_reduce(x, dist.group.WORLD) for _ in range(100)]
    if x.is_cuda:
        torch.cuda.set_sync_debug_mode("default")
    return sum(not torch.equal(y.view(torch.int32), first.view(torch.int32)) for y in again)


def groups(world: int, rank: int, device: torch.device) -> Found:
    """Return what groups of some of the ranks give: each rank alone, every second one, all but the last."""
    alone = [dist.new_group([r]) for r in range(world)][rank]
    odd, most = dist.new_group(list(range(1, world, 2))), dist.new_group(list(range(world - 1)))
    x = wide(77, seed=rank).to(device)
    made: Found = {
        "alone": untouched(partial(ordered_all_reduce, group=alone), x),
        "gathered alone": untouched(partial(ordered_gather, group=alone), x),
    }
    if rank % 2:
        made["odd"] = ordered_all_reduce(x, odd).cpu()
    else:
        made["not in odd"] = refused(lambda: ordered_all_reduce(x, odd))
    if rank < world - 1:
        made["gathered most"] = ordered_gather(x, most).cpu()
        made["reduced most"] = refused(lambda: ordered_all_reduce(x, most))
    return made


DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def form_of(rank: int, dtype: torch.dtype) -> torch.Tensor:
    return (wide(8, 37, seed=rank) / 64).to(dtype)


def cotangent(rank: int, world: int) -> torch.Tensor:
    return wide(8 // world, 37, seed=90 + rank)


def forms(world: int, rank: int, device: torch.device) -> Found:
    """Return the sum in each form, for each dtype: of one group, and of nodes of two ranks; gradients."""
    inside = [dist.new_group([r - r % 2, r - r % 2 + 1]) for r in range(0, world, 2)][rank // 2]
    between = [dist.new_group(list(range(first, world, 2))) for first in range(2)][rank % 2]
    levels: dict[str, Any] = {"one group": None, "nodes": (between, inside)}
    if Env.current().transport == "symmetric":
        del levels["nodes"]  # refused: its memory is of one node
    made: Found = {}
    for dtype in DTYPES:
        x = form_of(rank, dtype).to(device)
        for name, group in levels.items():
            made[f"{name} {dtype}"] = {
                "all": untouched(partial(ordered_all_reduce, group=group), x),
                "odd": untouched(partial(ordered_all_reduce, group=group), x[:, :5]),
                "part": untouched(partial(ordered_reduce_scatter, group=group), x),
                "gathered": untouched(partial(ordered_gather_sum, group=group), x),
            }
            with patch.object(collective, "GATHERED", 0):
                made[f"{name} {dtype}"] |= {
                    "all by shares": untouched(partial(ordered_all_reduce, group=group), x),
                    "part by shares": untouched(partial(ordered_reduce_scatter, group=group), x),
                }
            if dtype is torch.float32:
                made[f"{name} {dtype}"] |= shorter(group, x)
    for name, group in levels.items():
        x, whole = (form_of(rank, torch.float32).to(device).requires_grad_() for _ in range(2))
        ordered_reduce_scatter(x, group).backward(cotangent(rank, world).to(device))
        ordered_gather_sum(whole, group).backward(form_of(7, torch.float32).to(device))
        assert x.grad is not None and whole.grad is not None
        made[f"twice {name}"] = refused(
            lambda group=group: twice(group, form_of(rank, torch.float32).to(device))
        )
        made[f"gradients {name}"] = {"part": x.grad.cpu(), "gathered": whole.grad.cpu()}
    made["part in float64"] = scatter_reference(form_of(rank, torch.float32).to(device), None).cpu()
    return made


def shorter(group: Any, x: torch.Tensor) -> Found:
    """Return sums of f32 terms that are rounded to bf16: gathered, and by shares."""
    made: Found = {}
    for how, most in (("", collective.GATHERED), (" by shares", 0)):
        with patch.object(collective, "GATHERED", most):
            made[f"short{how}"] = ordered_all_reduce(x, group, out_dtype=torch.bfloat16).cpu()
            made[f"short part{how}"] = ordered_reduce_scatter(x, group, out_dtype=torch.bfloat16).cpu()
    return made


def twice(group: Any, x: torch.Tensor) -> None:
    """Differentiate a part of a sum twice."""
    x = x.requires_grad_()
    part = ordered_reduce_scatter(x, group)
    (slope,) = torch.autograd.grad(part.square().sum(), x, create_graph=True)
    slope.sum().backward()


def other_terms(world: int, rank: int, device: torch.device) -> Found:
    """Return what ranks raise of which the last one adds other terms; how often terms are compared."""
    last, x = rank == world - 1, torch.ones(6, 2, device=device)
    calls: dict[str, Callable[[], object]] = {
        "count": lambda: ordered_all_reduce(x[: 4 + last], None),
        "shape": lambda: ordered_all_reduce(x.t() if last else x, None),
        "dtype": lambda: ordered_all_reduce(x.half() if last else x.bfloat16(), None),
        "dtype of the sum": lambda: ordered_all_reduce(x, None, out_dtype=DTYPES[1 + last]),
        "part": lambda: ordered_reduce_scatter(x.repeat(4, 1 + last), None),
        "function": lambda: (ordered_gather_sum if last else ordered_all_reduce)(x.repeat(3, 3), None),
        "transport": lambda: with_transport("backend" if last else None, x.repeat(1, 3)),
        "alike": lambda: ordered_all_reduce((x.t() if last else x.view(2, 6)), None),
    }
    found: Found = {name: refused(call) for name, call in calls.items()}
    compared, line = [], dist.new_group()  # a new group has compared nothing
    with patch.object(collective, "compare", lambda *given, **_: compared.append(given)):
        for each in (x, x.clone(), x[:2], x[:2], x):
            ordered_all_reduce(each, line)
    return found | {"compared": len(compared), "known": known_elsewhere(rank, x)}


def known_elsewhere(rank: int, x: torch.Tensor) -> tuple[str, str]:
    """Return what a rank raises of two: terms are new to the first, the second sums others that are not."""
    pair = dist.new_group([0, 1])
    if rank > 1:
        return "", ""
    ordered_all_reduce(x, pair)
    store = _get_default_store()
    waited = store.timeout
    if rank == 0:
        store.set_timeout(timedelta(seconds=1))
        said = refused(lambda: ordered_all_reduce(x[:1], pair))
        store.set_timeout(waited)
        store.set("gave up", "")
        return said

    def lost(*_: object) -> None:
        store.wait(["gave up"], waited)
        raise RuntimeError("the other rank does not come")  # as a backend says after its timeout

    with patch.object(of_collective, "sum_over_ranks", lost):
        return refused(lambda: ordered_all_reduce(x, pair))


def with_transport(asked: str | None, x: torch.Tensor) -> torch.Tensor:
    """Return the sum of x, as where RLK_TRANSPORT is set so."""
    found = replace(Env.current(), transport=asked)
    with patch.object(Env, "current", lambda: found):
        return ordered_all_reduce(x, None)


class Kind(torch.Tensor):
    """A subclass, as DTensor is one."""


def errors(device: torch.device) -> dict[str, tuple[str, str]]:
    """Return what is refused; a rank that raised has sent nothing, so that all stay in step."""
    x = torch.ones(3, device=device)
    elsewhere = torch.ones(3, device="meta")
    calls: dict[str, Callable[[], object]] = {
        "f64": lambda: ordered_all_reduce(x.double(), None),
        "wider sums": lambda: ordered_all_reduce(x.half(), None, out_dtype=torch.float32),
        "a gradient of short sums": lambda: ordered_reduce_scatter(
            torch.ones(8, device=device, requires_grad=True), None, out_dtype=torch.float16
        ),
        "no whole parts": lambda: ordered_reduce_scatter(x, None),
        "three groups": lambda: ordered_gather_sum(x, (dist.group.WORLD,) * 3),  # type: ignore[arg-type]
        "integers": lambda: ordered_all_reduce(x.int(), None),
        "no tensor": lambda: ordered_all_reduce([1.0], None),  # type: ignore[arg-type]
        "a subclass": lambda: ordered_all_reduce(x.as_subclass(Kind), None),
        "sparse": lambda: ordered_all_reduce(x.to_sparse(), None),
        "a gradient": lambda: ordered_all_reduce(x.clone().requires_grad_(), None),
        "a gradient to gather": lambda: ordered_gather(x.clone().requires_grad_(), None, op="mine"),
        "a number as group": lambda: ordered_all_reduce(x, 3),  # type: ignore[arg-type]
        "a device without a backend": lambda: ordered_all_reduce(elsewhere, None),
    }
    found = {name: refused(call) for name, call in calls.items()}
    with torch.no_grad():
        found["a gradient that is off"] = refused(lambda: ordered_all_reduce(x.requires_grad_(), None))
    return found


def run(
    backend: str,
    world: int,
    folder: Path,
    module: str = "rank_cases",
    seconds: int = 2 * LIMIT.seconds,
    *more: str,
) -> list[Found]:
    """Run every rank of a module in a process of its own; return what each found. more: arguments of it."""
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "GLOO_SOCKET_IFNAME": "lo", **NO_MULTICAST}
    given = [[module, backend, str(world), str(r), str(folder), *more] for r in range(world)]
    if backend == "gloo":
        given = [["forked_ranks", module, backend, str(world), str(folder), *more]]
    commands = [[sys.executable, "-m", *words] for words in given]
    ranks = [subprocess.Popen(command, env=here, start_new_session=True) for command in commands]
    end = time.monotonic() + seconds
    try:
        # where one failed, the others would wait for it until the limit of an exchange
        while None in (ended := [rank.poll() for rank in ranks]) and not any(ended):
            assert time.monotonic() < end, f"the ranks did not end within {seconds} s: {ended}"
            time.sleep(0.05)
    finally:
        for rank in ranks:
            with suppress(ProcessLookupError):
                os.killpg(rank.pid, signal.SIGKILL)  # and its forks
            rank.wait()
    assert not any(ended), f"the ranks ended with {ended}"
    return [torch.load(folder / f"{r}.pt", weights_only=True) for r in range(world)]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
