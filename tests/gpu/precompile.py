"""Compiles, where there is no device, the kernels that device tests and benchmarks run: time there is dear.

`python -m gpu.precompile gpu.cute_child attention` runs the cases whose names hold a word, with the CPU in
the place of a Hopper, `python -m gpu.precompile pytest FILE` tests: kernels go into the store that
RLK_CACHE_DIR names and are not run, results are whatever memory held, and comparisons hold. Those of a
benchmark's rows are compiled side by side: `python -m gpu.precompile benchmarks.bench_attention varlen,full`
takes rows whose names hold one of these texts. `rlk cache export` makes one file of the store,
`rlk cache import` fills the
device's; versions of compilers and of Python must be those of the device.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import pytest
import torch

from benchmarks.dry import OnCpu
from benchmarks.peers import Absent
from benchmarks.rows import label
from rlk.runtime.binding import invocation
from rlk.runtime.call import dispatch
from rlk.runtime.launch.record import ModuleRecord
from rlk.runtime.prefetch import Observer, started, unwritten
from rlk.target.facts import Target, target

DEVICE = "sm_90a"
LARGE = 1 << 20  # elements that are left as they are: nobody reads them
DRAWN = {torch.randn, torch.rand, torch.randn_like, torch.rand_like}


class Undrawn(OnCpu):
    """A host on which no large random tensor is drawn."""

    def made(self, fn: Any, *args: Any, **options: Any) -> Any:
        if fn is torch.Tensor.normal_ and args[0].numel() > LARGE:
            return args[0]
        if fn not in DRAWN:
            return super().made(fn, *args, **options)
        options.pop("generator", None)
        empty = torch.empty if fn in (torch.randn, torch.rand) else torch.empty_like
        return empty(*args, **options).requires_grad_(options.pop("requires_grad", False))


class Generator(torch.Generator):
    """One of the host, whatever device is named."""

    def __new__(cls, *_: object) -> Generator:
        return super().__new__(cls, "cpu")


def _patches(on: Target) -> dict[str, Any]:
    """Return what is put in the place of names, "module.name"."""
    cuda: dict[str, Any] = {
        "is_available": lambda: True, "device_count": lambda: 1, "current_device": lambda: 0,
        "get_device_capability": lambda *_: (9, 0), "synchronize": lambda *_: None,
        "empty_cache": lambda: None, "Stream": MagicMock, "CUDAGraph": MagicMock, "Event": MagicMock,
        "stream": MagicMock(), "graph": MagicMock(), "set_sync_debug_mode": lambda *_: None,
        "current_stream": MagicMock(),
        "get_device_properties": lambda *_: SimpleNamespace(multi_processor_count=132, name="NVIDIA H200"),
    }  # fmt: skip
    return {
        **{f"torch.cuda.{name}": put for name, put in cuda.items()},
        "torch.Generator": Generator,
        "torch.equal": lambda *_: True,
        "rlk.runtime.call.dispatch._asked": lambda on, _: dispatch.asked_for(on),
        "rlk.runtime.call.dispatch.load": lambda folder, *_: (lambda *_: None, ModuleRecord.read(folder)),
        "rlk.ops.offsets.on_the_host": lambda _: False,
        "gpu.serving.unequal": lambda *_: 0,
        "rlk.testing.bits.differing": lambda *_: 0,
        "rlk.testing.bits.assert_same_bits": lambda *_: None,
    }


@contextmanager
def standing_in(on: Target) -> Iterator[None]:
    """Let the CPU stand for a device: calls compile their kernels, and return memory as it is."""
    found = invocation.target_of

    def target_of(device: torch.device) -> Target:
        return on

    places = _patches(on)
    originals = {id(_named(place)): put for place, put in places.items() if not place.startswith("torch.")}
    originals[id(found)] = target_of
    held = [
        (module, name, originals[id(value)])
        for key, module in list(sys.modules.items())
        if key.split(".")[0] in ("rlk", "gpu", "benchmarks")
        for name, value in list(vars(module).items())
        if id(value) in originals
    ]
    undo = [patch.object(module, name, put) for module, name, put in held]
    undo += [patch(place, put) for place, put in places.items() if place.startswith("torch.")]
    for one in undo:
        one.start()
    try:
        with Undrawn():
            yield
    finally:
        for one in reversed(undo):
            one.stop()


def _named(place: str) -> Any:
    module, _, name = place.rpartition(".")
    return getattr(importlib.import_module(module), name)


class Compiled(BaseException):
    """Ends a child before it asks the oracle."""


def _stop(*_: object) -> None:
    raise Compiled


def of_children(module: str, words: str) -> None:
    """Run the cases of children whose names hold these words."""
    child = importlib.import_module(module)
    sys.modules[child.main.__module__].by_oracle = _stop  # type: ignore[attr-defined]
    given = (child.CASES, child.CHANGES) if hasattr(child, "CHANGES") else ()
    for name in child.CASES:
        if words in name:
            print(name, flush=True)
            try:
                child.main(*given, name, Path())
            except Compiled:
                continue


def of_benchmark(module: str, words: str) -> None:
    """Compile, side by side, the kernels of rows whose names hold one of these words, with commas."""
    begin, on = time.monotonic(), target(DEVICE)
    futures = started(lambda observer: observe(module, words.split(","), observer), on)
    print(f"{len(futures)} kernels were named within {time.monotonic() - begin:.0f} s", flush=True)
    for future in futures:
        future.result()
    print(f"and compiled within {time.monotonic() - begin:.0f} s", flush=True)


def observe(module: str, words: list[str], observer: Observer) -> None:
    """Tell what rows of a benchmark launch, and rlk's variants among their peers; nothing is computed."""
    with dispatch.dispatch.recorded(lambda invocation, tensors: unwritten(invocation, tensors, observer)):
        for case in importlib.import_module(module).cases():
            name = label({"op": case.op, "pass": case.passes, "shape": case.shape, **case.notes})
            if any(word in name for word in words):
                print(name, flush=True)
                case.rlk()()
                for peer, made in case.peers.items():
                    if peer.startswith("rlk"):
                        with suppress(Absent):
                            made()()


def main(what: str, arguments: list[str]) -> None:
    """Compile what tests, the cases of a child or the rows of a benchmark run."""
    if what == "pytest":
        pytest.main([*arguments, "-p", "no:cacheprovider", "-p", "no:xdist"])
    elif what.startswith("benchmarks."):
        of_benchmark(what, " ".join(arguments))
    else:
        of_children(what, " ".join(arguments))


if __name__ == "__main__":
    with standing_in(target(DEVICE)):
        main(sys.argv[1], sys.argv[2:])
