"""Records of store entries and compile requests as plain JSON, both ways."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from rlk.cache.manifest import BadEntry
from rlk.lower.common.emitted import CallArg, Emitted, From, KernelArg, KernelBuild

MODULE = "module.py"
LAUNCH = "launch.json"
ABI = "launch-6"  # the layout of an entry and of a launch; part of every key


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """Data for the launch of a compiled kernel: the argument types without constexprs, and its resources.

    `shared` is in bytes, `scratch` in bytes per program. A CuTe kernel's `file` knows its own launch: its
    `num_warps` is what was asked for, and the rest 0. A TileLang kernel has another name in its file, its
    `symbol`. Of the `takes` arguments of a launch its parameters, of these `types`, are those that `order`
    says, by their places; the number of programs has the place after the last.
    `overlaps`: it waits for the kernels before it ahead of its first access to memory, and may start while
    they run.
    """

    name: str
    file: str
    types: tuple[str, ...]
    num_warps: int
    shared: int
    scratch: int
    symbol: str = ""
    takes: int = 0
    order: tuple[int, ...] = ()
    overlaps: bool = False


@dataclass(frozen=True, slots=True)
class ModuleRecord:
    """A compiled module: its kernels, its `call`'s parameters, what its error codes mean, and its backend."""

    kernels: tuple[LaunchRecord, ...]
    call: tuple[CallArg, ...]
    checks: tuple[str, ...]
    backend: str = "triton"

    def write(self, folder: Path) -> None:
        """Write launch.json."""
        (folder / LAUNCH).write_text(_encode(asdict(self), indent=1))

    @staticmethod
    def read(folder: Path) -> ModuleRecord:
        """Read launch.json; raise BadEntry where it is not what `write` writes, OSError."""
        text = (folder / LAUNCH).read_bytes()
        try:
            members = json.loads(text)
            kernels = tuple(
                LaunchRecord(**{**kernel, "types": tuple(kernel["types"]), "order": tuple(kernel["order"])})
                for kernel in members["kernels"]
            )
            call, checks = read_call(members["call"]), tuple(members["checks"])
            found = ModuleRecord(kernels, call, checks, members["backend"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BadEntry(f"{LAUNCH} cannot be read: {type(error).__name__}: {error}") from None
        found._check()
        return found

    def _check(self) -> None:
        """Raise BadEntry where a member is of another type than it should be."""
        kernels = self.kernels
        texts = [
            self.backend,
            *self.checks,
            *(t for k in kernels for t in (k.name, k.file, k.symbol, *k.types)),
        ]
        texts += [arg.name for arg in self.call]
        counts = [n for k in kernels for n in (k.num_warps, k.shared, k.scratch, k.takes, *k.order)]
        switches = [k.overlaps for k in kernels]
        for held, kind in ((texts, str), (counts, int), (switches, bool)):
            for each in held:
                if type(each) is not kind:
                    raise BadEntry(f"{LAUNCH} says {each!r} where {kind.__name__} is expected")


def encode_request(emitted: Emitted, target: str, folder: Path, by: str) -> str:
    """Return one line of JSON that asks a worker to compile by a function, "module:function"."""
    return _encode({"emitted": asdict(emitted), "target": target, "folder": str(folder), "by": by})


def decode_request(line: str) -> tuple[Emitted, str, Path, str]:
    """Read back what `encode_request` wrote."""
    request = json.loads(line)
    members = request["emitted"]
    kernels = tuple(
        KernelBuild(**{**kernel, "args": tuple(KernelArg(**arg) for arg in kernel["args"])})
        for kernel in members["kernels"]
    )
    emitted = Emitted(
        source=members["source"],
        kernels=kernels,
        call=read_call(members["call"]),
        checks=tuple(members["checks"]),
        file=members["file"],
        backend=members["backend"],
    )
    return emitted, request["target"], Path(request["folder"]), request["by"]


def write_call(call: tuple[CallArg, ...]) -> list[dict[str, Any]]:
    """Return the parameters of a host function as JSON has them."""
    return [{**asdict(arg), "kind": arg.kind.value} for arg in call]


def read_call(members: list[dict[str, Any]]) -> tuple[CallArg, ...]:
    """Read back what `write_call` wrote."""
    return tuple(CallArg(**{**arg, "kind": From(arg["kind"])}) for arg in members)


def _encode(value: dict[str, Any], indent: int | None = None) -> str:
    return json.dumps(value, default=_plain, indent=indent)


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"{type(value).__name__} has no JSON form")
