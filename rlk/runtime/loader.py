"""Loading of store entries: binaries on a device, and the host function around them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

from rlk.cache.manifest import BadEntry
from rlk.errors import Code, InternalError
from rlk.lower.common.emitted import Emitted
from rlk.runtime.cute import HOST, load_cute
from rlk.runtime.driver import driver
from rlk.runtime.launch import Services, make_launcher
from rlk.runtime.record import MODULE, LaunchRecord, ModuleRecord

Host = Callable[..., Any]
Launcher = Callable[..., None]


class Interpreter(Protocol):
    """Loads generated source to run on a CPU: the module's kernels are launched as fn[grid](...)."""

    def __call__(self, source: str, *, filename: str | None = None) -> Any: ...


def load(folder: Path, kind: str, device: int) -> tuple[Host, ModuleRecord]:
    """Return the host function of an entry, bound to its kernels on `device` of `kind` ("cuda" or "hip").

    The record says how to call it. Raises FileNotFoundError when the entry was evicted meanwhile.
    """
    source = (folder / MODULE).read_text()
    try:
        module = ModuleRecord.read(folder)
    except BadEntry as error:  # its digests are right: it was built so
        raise InternalError(Code.INTERNAL, what=f"{folder.name}: {error}") from None
    match module.backend:
        case "triton" | "tilelang":
            launchers = _load_binaries(folder, module.kernels, kind, device)
        case "cute":
            services = _services()
            launchers = {each.name: load_cute(folder, each, device, services) for each in module.kernels}
        case other:
            raise InternalError(Code.INTERNAL, what=f"{folder.name} is of an unknown backend, {other!r}")
    return bind(source, str(folder / MODULE), SimpleNamespace(**launchers)), module


def _load_binaries(
    folder: Path, kernels: tuple[LaunchRecord, ...], kind: str, device: int
) -> dict[str, Launcher]:
    """Load binaries through the driver; all are read before the first, for the entry may vanish meanwhile."""
    images = {record.name: (folder / record.file).read_bytes() for record in kernels}
    backend = driver(kind)
    services, allocate = _services(), _scratch(device)
    launchers: dict[str, Launcher] = {}
    for record in kernels:
        function = backend.load(images[record.name], record.symbol or record.name, record.shared, device)
        launchers[record.name] = make_launcher(record, function, backend, services, allocate)
    return launchers


def interpret(emitted: Emitted, interpreter: Interpreter) -> Host:
    """Return the host function of a module whose kernels run on the CPU, bit for bit as a device would."""
    module = interpreter(emitted.source, filename=emitted.file)
    kernels = SimpleNamespace()
    if emitted.backend == "cute":
        hosts = {kernel.name: getattr(module, f"{HOST}{kernel.name}") for kernel in emitted.kernels}
        return bind(
            emitted.source, emitted.file, SimpleNamespace(**{n: _hosted(h) for n, h in hosts.items()})
        )
    for kernel in emitted.kernels:
        constants = {arg.name: arg.value for arg in kernel.args if arg.type == "constexpr"}
        names = tuple(arg.name for arg in kernel.args if arg.type != "constexpr")
        setattr(kernels, kernel.name, _interpreted(getattr(module, kernel.name), names, constants))
    return bind(emitted.source, emitted.file, kernels)


def _hosted(host: Callable[..., None]) -> Callable[..., None]:
    def launch(grid: tuple[int, ...], *args: Any) -> None:
        host(*args, grid[0], None)

    return launch


def _interpreted(function: Any, names: tuple[str, ...], constants: dict[str, Any]) -> Callable[..., None]:
    def launch(grid: tuple[int, ...], *args: Any) -> None:
        function[grid](**dict(zip(names, args, strict=True)), **constants)

    return launch


def bind(source: str, file: str, kernels: SimpleNamespace) -> Host:
    """Return `call` of a generated module with its first argument, the kernels, filled in.

    Only `call` and the module's constants are executed: the process that launches needs no Triton.
    """
    tree = ast.parse(source, file)
    host = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "call"]
    if len(host) != 1:
        raise InternalError(Code.INTERNAL, what=f"{file} has {len(host)} host functions named call")
    tree.body = [node for node in tree.body if _is_constant(node)] + list[ast.stmt](host)
    scope: dict[str, Any] = {}
    exec(compile(tree, file, "exec"), scope)
    call = scope["call"]

    def bound(*args: Any) -> Any:
        return call(kernels, *args)

    return bound


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


def _services() -> Services:
    """Return what a launch asks of torch."""
    import torch

    return Services(
        torch._C._cuda_getCurrentRawStream, torch._C._cuda_getDevice, lambda index: torch.cuda.device(index)
    )


def _scratch(device: int) -> Callable[[int], Any]:
    """Return what allocates bytes that a launch needs for itself."""
    import torch

    where = torch.device("cuda", device)
    return lambda size: torch.empty(size, dtype=torch.uint8, device=where)
