"""The environment variables that rlk reads, their values, and their defaults."""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from rlk.errors import Code, LaunchError

BACKENDS = ("triton", "cute", "tilelang", "oracle")
"""Values of RLK_BACKEND; beside them the names of registered backends and of installed entry points."""
ENTRY_POINTS = "rlk.backends"
_registered: list[str] = []
VLLM = ("1", "cpu")
TRANSPORTS = ("symmetric", "backend")
UNSET = "unset"
"""How a message shows a variable that has no value."""
LOG_LEVELS = ("debug", "info", "warning", "error")
DEFAULT_CACHE_LIMIT = 8 * 2**30
SIZE = "bytes with an optional suffix K, M, G or T, such as 8G"
_MOST_DIGITS = 18  # of a number: all of them fit into 64 bits
_LAST_DATE = 4354819199  # the last second that a zip file can name
_SHOWN = 60  # characters of a wrong value
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

# Variables of the compilers below rlk which change what they emit. They are part of every cache key, so that
# a kernel built with one of them set is never served without it.
TOOLCHAIN_VARIABLES = (
    "ALLOW_LHS_TMEM_LAYOUT_CONVERSION",
    "AMDGCN_ANALYZE_SMALL_TENSOR_RANGE",
    "AMDGCN_SCALARIZE_PACKED_FOPS",
    "AMDGCN_USE_BUFFER_ATOMICS",
    "AMDGCN_USE_BUFFER_OPS",
    "CUTE_DSL_AUTO_M2S",
    "CUTE_DSL_COMPILER_BACKEND",
    "CUTE_DSL_COMPILER_OPT",
    "CUTE_DSL_DEBUG",
    "CUTE_DSL_DRYRUN",
    "CUTE_DSL_ENABLE_ASSERTIONS",
    "CUTE_DSL_ENABLE_PYIR",
    "CUTE_DSL_LINEINFO",
    "CUTE_DSL_LOC_TRACEBACKS",
    "CUTE_DSL_TOLERATE_M2M",
    "DISABLE_LLVM_OPT",
    "DISABLE_MMA_V3",
    "DISABLE_MMA_V5",
    "DISABLE_PTXAS_OPT",
    "LLVM_EXTRACT_DI_LOCAL_VARIABLES",
    "LLVM_PASS_PLUGIN_PATH",
    "NVCC_APPEND_FLAGS",
    "NVCC_PREPEND_FLAGS",
    "PTXAS_OPTIONS",
    "TRITON_DEBUG",
    "TRITON_DEFAULT_FP_FUSION",
    "TRITON_DISABLE_LINE_INFO",
    "TRITON_ENABLE_ASAN",
    "TRITON_ENABLE_EXPERIMENTAL_CONSAN",
    "TRITON_F32_DEFAULT",
    "TRITON_HIP_USE_ASYNC_COPY",
    "TRITON_HIP_USE_BLOCK_PINGPONG",
    "TRITON_HIP_USE_IN_THREAD_TRANSPOSE",
    "TRITON_INSTRUMENTATION_MODE",
    "TRITON_KERNEL_OVERRIDE",
    "TRITON_LIBDEVICE_PATH",
    "TRITON_MOCK_PTX_VERSION",
    "TRITON_OVERRIDE_ARCH",
    "TRITON_PLUGIN_PATHS",
    "TRITON_PTXAS_PATH",
    "USE_IR_LOC",
)


@dataclass(frozen=True, slots=True)
class Env:
    """The environment as rlk sees it, read once per process.

    `cache_dir` and `cache_limit` (bytes) belong to the kernel store, `backend` forces one lowering, `check`
    raises data errors at once instead of lazily, `interpret` runs Triton source on the CPU, `jobs` is the
    number of compile processes, `log` is the level of the logger "rlk" (None: whatever the program sets),
    `cc` is the C compiler to link with, `aot` is false where no kernel of an
    installed wheel is used, `system_cache` is a store that is only read, `epoch` is the date of files in
    archives, in seconds, `schedules` is the user's table of schedules, `vllm` says that every engine of vLLM
    computes by rlk, "cpu" without a device, `transport` says how the terms of sums over ranks
    are exchanged (None: of two by symmetric memory where it can be had, else by the process group's backend),
    `overlap` is false where each kernel starts when the one before has ended,
    `toolchain` lists the compilers' own variables that are set.
    """

    cache_dir: Path
    cache_limit: int = DEFAULT_CACHE_LIMIT
    backend: str | None = None
    check: bool = False
    interpret: bool = False
    jobs: int = 2
    log: str | None = None
    cc: str | None = None
    aot: bool = True
    system_cache: Path | None = None
    epoch: int | None = None
    schedules: Path | None = None
    vllm: str | None = None
    transport: str | None = None
    overlap: bool = True
    toolchain: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def read(variables: Mapping[str, str]) -> Env:
        """Parse `variables`; an unusable value raises LaunchError with what would be accepted."""
        cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return Env(
            cache_dir=_cache_dir(variables),
            cache_limit=_size(variables, "RLK_CACHE_LIMIT", DEFAULT_CACHE_LIMIT),
            backend=_backend(variables),
            check=_switch(variables, "RLK_CHECK"),
            interpret=_switch(variables, "RLK_INTERPRET"),
            jobs=_count(variables, "RLK_JOBS", min(8, cpus)),
            log=_choice(variables, "RLK_LOG", LOG_LEVELS),
            cc=variables.get("CC") or None,
            aot=not variables.get("RLK_AOT") or _switch(variables, "RLK_AOT"),
            system_cache=_system_cache(variables),
            epoch=_epoch(variables),
            schedules=_file(variables, "RLK_SCHEDULES"),
            vllm=_choice(variables, "RLK_VLLM", VLLM),
            transport=_choice(variables, "RLK_TRANSPORT", TRANSPORTS),
            overlap=not variables.get("RLK_OVERLAP") or _switch(variables, "RLK_OVERLAP"),
            toolchain=tuple((name, variables[name]) for name in TOOLCHAIN_VARIABLES if variables.get(name)),
        )

    @staticmethod
    def current() -> Env:
        """Return the environment of this process, as it was at the first call."""
        return _current()


@cache
def _current() -> Env:
    found = Env.read(os.environ)
    if found.log is not None:
        log_from(found.log)
    return found


def launched_ranks() -> int:
    """Return how many ranks a launcher such as torchrun says it started, 1 where none did."""
    return whole(os.environ.get("WORLD_SIZE", "")) or 1


def log_from(level: str) -> None:
    """Let the logger "rlk" tell what happens from a level on, on stderr where the program logs nowhere."""
    logger = logging.getLogger("rlk")
    logger.setLevel(level.upper())
    if not any(isinstance(each, _LastResort) for each in logger.handlers):
        logger.addHandler(_LastResort())


class _LastResort(logging.Handler):
    """As logging.lastResort, for every level: a program with handlers of its own hears each line once."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            print(self.format(record), file=sys.stderr)


def _bad(name: str, value: str, wanted: str) -> LaunchError:
    value = value if len(value) <= _SHOWN else value[:_SHOWN] + "..."
    return LaunchError(Code.ARG_VALUE, op="environment", name=name, value=value, wanted=wanted)


def _cache_dir(variables: Mapping[str, str]) -> Path:
    """Choose $RLK_CACHE_DIR, else $XDG_CACHE_HOME/rlk, else ~/.cache/rlk."""
    if given := variables.get("RLK_CACHE_DIR"):
        try:
            path = Path(given).expanduser()
        except RuntimeError:  # of a user that there is not
            raise _bad("RLK_CACHE_DIR", given, "an absolute path, or ~ and a user that exists") from None
        if not path.is_absolute():
            raise _bad("RLK_CACHE_DIR", given, "an absolute path")
        return path
    base = variables.get("XDG_CACHE_HOME", "")
    if base.startswith("/"):  # the XDG specification says to ignore relative values
        return Path(base) / "rlk"
    if home := variables.get("HOME", ""):
        return Path(home) / ".cache" / "rlk"
    return Path(tempfile.gettempdir()) / f"rlk-{os.geteuid()}"


def _epoch(variables: Mapping[str, str]) -> int | None:
    value = variables.get("SOURCE_DATE_EPOCH", "")
    epoch = whole(value)
    if value and (epoch is None or epoch > _LAST_DATE):
        raise _bad("SOURCE_DATE_EPOCH", value, "seconds since 1970, until the end of 2107")
    return epoch


def _system_cache(variables: Mapping[str, str]) -> Path | None:
    given = variables.get("RLK_SYSTEM_CACHE")
    if given and not Path(given).is_absolute():
        raise _bad("RLK_SYSTEM_CACHE", given, "an absolute path")
    return Path(given) if given else None


def _file(variables: Mapping[str, str], name: str) -> Path | None:
    """Return the file that a variable names, of which every later reader finds the same."""
    given = variables.get(name)
    if not given:
        return None
    try:
        return Path(given).expanduser().absolute()
    except RuntimeError:  # of a user that there is not
        raise _bad(name, given, "a path, or ~ and a user that exists") from None


def _choice(variables: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str | None:
    value = variables.get(name, "")
    if not value:
        return None
    if value.lower() not in choices:
        raise _bad(name, value, "one of " + ", ".join(choices))
    return value.lower()


def accept_backend(name: str) -> None:
    """Let RLK_BACKEND name a backend, from the next time that the environment is read."""
    _registered.append(name)


def refuse_backend(name: str) -> None:
    """Undo `accept_backend`."""
    _registered.remove(name)


def _backend(variables: Mapping[str, str]) -> str | None:
    value = variables.get("RLK_BACKEND", "").lower()
    if value and value not in (*BACKENDS, *_registered):
        # packages are looked through only for a name that nothing else explains
        _registered.extend(each.name for each in metadata.entry_points(group=ENTRY_POINTS, name=value))
    if value and value not in (*BACKENDS, *_registered):  # whoever mistyped a name sees all of them
        there = dict.fromkeys(each.name for each in metadata.entry_points(group=ENTRY_POINTS))
        raise _bad("RLK_BACKEND", value, "one of " + ", ".join((*BACKENDS, *_registered, *there)))
    return value or None


def _switch(variables: Mapping[str, str], name: str) -> bool:
    value = variables.get(name, "")
    if value not in ("", "0", "1"):
        raise _bad(name, value, "0 or 1")
    return value == "1"


def _count(variables: Mapping[str, str], name: str, default: int) -> int:
    value = variables.get(name, "")
    if not value:
        return default
    count = whole(value)
    if not count:
        raise _bad(name, value, "a number of at least 1")
    return count


def _size(variables: Mapping[str, str], name: str, default: int) -> int:
    value = variables.get(name, "")
    if not value:
        return default
    size = size_of(value)
    if size is None:
        raise _bad(name, value, SIZE)
    return size


def whole(text: str) -> int | None:
    """Return the number from 0 on that a text of decimal digits is; None for others, and beyond 64 bits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None


def size_of(text: str) -> int | None:
    """Return the bytes that a text such as 500M, 8G or 8GiB names, None for another."""
    match = re.fullmatch(r"(\d+)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE | re.ASCII)
    count = None if match is None else whole(match[1])
    return None if match is None or count is None else count * _UNITS[match[2].upper()]


def inherited(extra: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment for a child, with `extra` set."""
    return {**os.environ, **extra}


def without_devices(extra: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment for a compiler that must not see a device, with `extra` set."""
    hidden = dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"), "")
    return inherited({**hidden, "TRITON_INTERPRET": "0", **extra})
