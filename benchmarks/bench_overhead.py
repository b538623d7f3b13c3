"""Host overhead: one eager call of a small operator, with and without autograd, and `import rlk`."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

import rlk
from benchmarks import peers
from benchmarks.harness import Bar, Case, main
from benchmarks.identity import describe
from benchmarks.timing import Launch, Timing, measure_host

WIDTH = 256
EPS = 1e-6
IMPORTS = 7

IMPORT_PROGRAM = """
import json, time
import torch
start = time.perf_counter()
import rlk
{use}
took = time.perf_counter() - start
print(json.dumps(dict(ms=1e3 * took, cuda=torch.cuda.is_initialized())))
"""


@cache
def custom_op() -> Callable[[Tensor, Tensor], Tensor]:
    """Return the same norm through torch.library, as most kernel packages register theirs."""

    @torch.library.custom_op("rlk_bench::rms_norm", mutates_args=())
    def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, EPS)

    return rms_norm


def call_case(*, autograd: bool, bar: Bar) -> Case:
    """One call of rms_norm on a [4, 256] tensor, timed on the host, with or without a graph recorded."""
    x = torch.randn(4, WIDTH, dtype=torch.bfloat16, device="cuda", requires_grad=autograd)
    weight = torch.full((WIDTH,), 1.5, dtype=torch.bfloat16, device="cuda")

    def timer(launch: Launch) -> Timing:
        with torch.set_grad_enabled(autograd):
            return measure_host(launch)

    return Case(
        op="rms_norm",
        passes="fwd",
        shape={"M": 4, "N": WIDTH},
        rlk=lambda: lambda: rlk.ops.rms_norm(x, weight, eps=EPS),
        peers={
            "torch_eager": lambda: peers.eager_rms_norm(x, weight, EPS),
            "torch_custom_op": lambda: lambda: custom_op()(x, weight),
            "liger": lambda: peers.liger_rms_norm(x, weight, EPS),
            "quack": lambda: peers.quack_rms_norm(x, weight, EPS),
        },
        moved=2 * x.nbytes + weight.nbytes,
        bar=bar,
        reference="torch_eager",
        describe=lambda: describe(rlk.ops.rms_norm.explain(x, weight, eps=EPS)),
        timer=timer,
        extra=False,
        notes={"what": "host time of one eager call", "autograd": autograd},
    )


def import_case(op: str, use: str, bar: Bar | None) -> Case:
    """`import rlk` after torch, in processes of their own; a CUDA context fails the row."""
    command = [sys.executable, "-c", IMPORT_PROGRAM.format(use=use)]

    def timer(_: Launch) -> Timing:
        runs = [
            json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
            for _ in range(IMPORTS)
        ]
        if any(run["cuda"] for run in runs):
            raise RuntimeError("import rlk initialised CUDA")
        times = sorted(run["ms"] for run in runs)
        return Timing(statistics.median(times), times[0], (times[0], times[-1]))

    return Case(
        op=op,
        passes="host",
        shape={},
        rlk=lambda: lambda: None,
        peers={},
        moved=0.0,
        bar=bar,
        timer=timer,
        extra=False,
        notes={"what": "beyond import torch, no CUDA context"},
    )


def cases() -> Iterator[Case]:
    """Yield the no-grad call, the call that records a graph, and the import."""
    yield call_case(autograd=False, bar=Bar(0.015))
    yield call_case(autograd=True, bar=Bar(0.030))
    yield import_case("import rlk", "", Bar(150.0))
    yield import_case("import rlk.ops", "rlk.ops.logp", None)


if __name__ == "__main__":
    main("overhead", cases)
