"""Loading of store entries: the launchers of their kernels, and the host function around them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any, Protocol

from rlk.backends.registry import find, of_name
from rlk.cache.manifest import BadEntry
from rlk.errors import Code, InternalError
from rlk.lower.common.emitted import Emitted
from rlk.runtime.launch.record import MODULE, ModuleRecord

Host = Callable[..., Any]


class Interpreter(Protocol):
    """Loads generated source to run on a CPU: the module's kernels are launched as fn[grid](...)."""

    def __call__(self, source: str, *, filename: str | None = None) -> Any: ...


def load(folder: Path, kind: str, device: int) -> tuple[Host, ModuleRecord]:
    """Return the host function of an entry, bound to its kernels on `device` of `kind`.

    kind: whose driver, "cuda", "hip" or the target's vendor. The record says how to call it. Raises
    FileNotFoundError when the entry was evicted meanwhile.
    """
    source = (folder / MODULE).read_text()
    try:
        module = ModuleRecord.read(folder)
    except BadEntry as error:  # its digests are right: it was built so
        raise InternalError(Code.INTERNAL, what=f"{folder.name}: {error}") from None
    loading = find(module.backend)
    if loading is None:
        raise InternalError(Code.INTERNAL, what=f"{folder.name} is of an unknown backend, {module.backend!r}")
    launchers = loading.load(folder, module.kernels, kind, device)
    return bind(source, str(folder / MODULE), SimpleNamespace(**launchers)), module


def interpret(emitted: Emitted, interpreter: Interpreter) -> Host:
    """Return the host function of a module whose kernels run on the CPU, bit for bit as a device would."""
    module = interpreter(emitted.source, filename=emitted.file)
    launchers = of_name(emitted.backend).interpret
    if launchers is None:
        raise InternalError(Code.INTERNAL, what=f"no interpreter runs the source of {emitted.backend}")
    return bind(emitted.source, emitted.file, SimpleNamespace(**launchers(emitted, module)))


def bind(source: str, file: str, kernels: SimpleNamespace) -> Host:
    """Return `call` of a generated module with its first argument, the kernels, filled in.

    Only `call` and the module's constants are executed: the process that launches needs no Triton.
    """
    scope: dict[str, Any] = {}
    exec(_host_code(source, file), scope)
    return partial(scope["call"], kernels)  # a call of it costs no frame


@lru_cache(maxsize=256)
def _host_code(source: str, file: str) -> CodeType:
    tree = ast.parse(source, file)
    host = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "call"]
    if len(host) != 1:
        raise InternalError(Code.INTERNAL, what=f"{file} has {len(host)} host functions named call")
    tree.body = [node for node in tree.body if _is_constant(node)] + list[ast.stmt](host)
    return compile(tree, file, "exec")


def _is_constant(node: ast.stmt) -> bool:
    """Tell `NAME = 128` and `from __future__` from everything that needs a compiler."""
    if isinstance(node, ast.ImportFrom):
        return node.module == "__future__"
    if not isinstance(node, ast.Assign):
        return False
    try:
        ast.literal_eval(node.value)
    except ValueError:
        return False
    return True
