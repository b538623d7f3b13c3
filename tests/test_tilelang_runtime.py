"""Laws of compiling and loading TileLang modules: rlk's own loader, cache and launcher, without a device."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ladder
import pytest
import torch
from services import NO_STREAM
from test_tilelang_lowering import lowered

from rlk.backends import tilelang
from rlk.backends.cubin import Usage, usage
from rlk.cache import Store
from rlk.env import Env
from rlk.errors import CompileError, UnsupportedError
from rlk.lower.common.emitted import Emitted
from rlk.ops import swiglu, varlen_attention
from rlk.runtime import prefetch
from rlk.runtime.binding import selection
from rlk.runtime.kernels import build
from rlk.runtime.kernels.loader import bind
from rlk.runtime.kernels.pool import Pool
from rlk.runtime.launch.driver import Hip
from rlk.runtime.launch.launcher import make_launcher
from rlk.runtime.launch.record import MODULE, LaunchRecord, ModuleRecord
from rlk.target.blocks import BLOCKS
from rlk.target.facts import target
from rlk.testing.simulators.cdna import jit
from rlk.testing.simulators.cdna.emulator import Execution, emulate
from rlk.testing.simulators.cdna.jit import Launch

needs_nvcc = pytest.mark.skipif(tilelang.nvcc() is None, reason="needs CUDA's compiler, nvcc")
SOME = (
    "rms_norm gradient",
    "swiglu forward",
    "matmul forward",
    "logp forward",
    "policy_loss forward",
    "gae forward",
)


@pytest.fixture(autouse=True)
def compilers() -> None:
    ladder.require()


@pytest.fixture(scope="module")
def workers() -> Iterator[Pool]:
    pool = Pool(1)
    yield pool
    pool.close()


def compiled(workers: Pool, folder: Path, emitted: Emitted, on: str = "gfx942") -> ModuleRecord:
    folder.mkdir()
    workers.compile(emitted, on, folder)
    return ModuleRecord.read(folder)


# --- compiling


@pytest.mark.parametrize("on", ["gfx90a", "gfx942", "gfx950", pytest.param("sm_90a", marks=needs_nvcc)])
def test_two_compiles_give_the_same_bytes(workers: Pool, tmp_path: Path, on: str) -> None:
    emitted = lowered("rms_norm gradient", on)
    one, two = (compiled(workers, tmp_path / name, emitted, on) for name in ("one", "two"))
    assert one == two and one.backend == "tilelang"
    ends = ("cubin", "cu") if on == "sm_90a" else ("hsaco", "amdgcn")
    names = {f"{kernel.name}.{end}" for kernel in emitted.kernels for end in ends} | {MODULE, "launch.json"}
    assert {path.name for path in (tmp_path / "one").iterdir()} == names
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name


def test_a_record_says_in_which_order_tilelang_takes_arguments(workers: Pool, tmp_path: Path) -> None:
    emitted = lowered("matmul forward")
    (record,) = compiled(workers, tmp_path / "entry", emitted).kernels
    names = [*(argument.name for argument in emitted.kernels[0].args), "programs"]
    assert record.symbol == "matmul_kernel" and record.name == "matmul"
    assert sorted(record.order) == list(range(len(names))) != list(record.order)
    assert [names[place] for place in record.order][:2] == ["w", "x"]
    assert record.types[record.order.index(names.index("programs"))] == "i32"


def test_a_mistake_names_the_kernel(workers: Pool, tmp_path: Path) -> None:
    emitted = lowered("swiglu forward")
    wrong = replace(emitted, source=emitted.source.replace("thread = tl.get", "thread = tl.no_such"))
    with pytest.raises(CompileError, match="no_such"):
        compiled(workers, tmp_path / "entry", wrong)


STACK = {"group_advantage": 144, "token_baseline": 128}
"""Bytes of a thread on Hopper, whose registers the rewards or the returns of a group fill."""


HOPPER = [c for c in ladder.CALLS if c.split()[0] not in ladder.LIKE_OTHERS]


@pytest.fixture(scope="module")
def on_hopper(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, Usage]]:
    """Return the CUDA source of each kernel and what it takes: nvcc reads their templates once."""
    ladder.require()
    modules = {name: lowered(name, "sm_90a") for name in HOPPER}
    sources = {
        kernel.name: tilelang.cuda_source(each.source, kernel.name, "sm_90a")
        for each in modules.values()
        for kernel in each.kernels
    }
    whole = tilelang.PREAMBLE + "\n".join(each.removeprefix(tilelang.PREAMBLE) for each in sources.values())
    made = usage(tilelang.cubin(whole, "kernels", "sm_90a", tmp_path_factory.mktemp("hopper")).read_bytes())
    return {name: (source, made[f"{name}_kernel"]) for name, source in sources.items()}


@needs_nvcc
@pytest.mark.parametrize("name", HOPPER)
def test_kernels_compile_for_hopper_without_memory_of_their_own(
    name: str, on_hopper: dict[str, tuple[str, Usage]]
) -> None:
    for kernel in lowered(name, "sm_90a").kernels:
        source, found = on_hopper[kernel.name]
        exchanges = [x for x in source.splitlines() if "__shfl" in x]
        assert all(", 32)" in x for x in exchanges)
        assert found.stack <= STACK.get(kernel.name, 0) and found.shared <= BLOCKS["sm_90a"].shared


@needs_nvcc
@pytest.mark.parametrize(
    ("name", "kernel", "tiles"),
    [
        ("matmul_leaf8 forward", "matmul_leaf8_1", ("x_tile", "w_tile")),
        ("matmul forward", "matmul", ("ring",)),
    ],
)
def test_tiles_that_the_tensor_core_reads_start_where_its_swizzle_does(
    name: str, kernel: str, tiles: tuple[str, ...]
) -> None:
    source = tilelang.cuda_source(lowered(name, "sm_90a").source, kernel, "sm_90a")
    assert "wgmma_ss" in source
    for tile in tiles:
        assert re.search(rf"__align__\({tilelang.ATOM}\) \w+ {tile}\[", source), tile


def test_contractions_of_f32_have_no_form_on_hopper() -> None:
    from test_tilelang_dots import product, program

    from rlk.ir.types import DType
    from rlk.testing.generated import run_generated

    given = {"x": torch.zeros(16, 16).numpy(), "w": torch.zeros(16, 16).numpy()}
    with pytest.raises(UnsupportedError, match="a contraction by fma"):
        run_generated(program(product, DType.F32), given, backend="tilelang", on=target("sm_90a"))


# --- loading and launching, on the emulator


class OnDevice:
    """A tensor's copy in the memory of the stand-in for HIP."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.size = tensor, tensor.numel() * tensor.element_size()
        self.address = ctypes.c_void_p()
        assert jit.runtime().hipMalloc(ctypes.byref(self.address), ctypes.c_size_t(self.size)) == 0
        ctypes.memmove(self.data_ptr(), tensor.data_ptr(), self.size)

    def data_ptr(self) -> int:
        return self.address.value or 0

    def read(self) -> None:
        ctypes.memmove(self.tensor.data_ptr(), self.data_ptr(), self.size)
        jit.runtime().hipFree(self.address)


class Loaded:
    """A device whose kernels rlk compiles, loads and launches, through its driver of HIP."""

    def __init__(self, folder: Path, change: Callable[[LaunchRecord], LaunchRecord] = lambda r: r) -> None:
        self.folder, self.change = folder, change
        self.executions: list[Execution] = []

    @contextmanager
    def __call__(self, emitted: Emitted) -> Iterator[tuple[Callable[..., None], Any]]:
        self.folder.mkdir(exist_ok=True)
        tilelang.compile_tilelang(emitted, "gfx942", self.folder)
        driver = Hip(jit.runtime())
        kernels = SimpleNamespace()
        for record in map(self.change, ModuleRecord.read(self.folder).kernels):
            image = (self.folder / record.file).read_bytes()
            jit.knows(image, (self.folder / f"{record.name}.amdgcn").read_text())
            function = driver.load(image, record.symbol, record.shared, 0)
            launch = make_launcher(record, function, driver, NO_STREAM, lambda size: None)
            setattr(kernels, record.name, self.through(launch))
        yield (lambda _, *args: bind(emitted.source, emitted.file, kernels)(*args)), kernels

    def through(self, launch: Callable[..., None]) -> Callable[..., None]:
        def start(grid: tuple[int], *values: Any) -> None:
            tensors = [torch.as_tensor(v) if hasattr(v, "shape") else v for v in values]
            given = [OnDevice(t) if isinstance(t, torch.Tensor) else t for t in tensors]
            with jit.taken_by(self.run):
                launch(grid, *given)
            for each in given:
                if isinstance(each, OnDevice):
                    each.read()

        return start

    def run(self, launch: Launch, assembly: str) -> None:
        sizes = (launch.grid, launch.block)
        self.executions.append(emulate(assembly, launch.kernel, *sizes, launch.parameters, schedule=1))


@pytest.mark.parametrize("name", SOME)
def test_what_rlk_loads_and_launches_has_the_bits_of_the_oracle(name: str, tmp_path: Path) -> None:
    device = Loaded(tmp_path / "entry")
    assert ladder.differences(name, ladder.executed(name, device=device)) == 0
    assert device.executions


def test_arguments_in_another_order_are_seen(tmp_path: Path) -> None:
    def exchanged(record: LaunchRecord) -> LaunchRecord:
        one, two, *rest = record.order
        return replace(record, order=(two, one, *rest))

    device = Loaded(tmp_path / "entry", exchanged)
    assert ladder.differences("swiglu forward", ladder.executed("swiglu forward", device=device))


# --- choosing and caching


@pytest.fixture
def on_a_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Calls on CPU tensors are decided as on a MI300X, with the TileLang backend asked for."""
    env = replace(Env.current(), backend="tilelang")
    monkeypatch.setattr(Env, "current", staticmethod(lambda: env))
    monkeypatch.setattr(build, "store", lambda: Store(tmp_path / "store", limit=1 << 30))
    for place in ("rlk.runtime.prefetch", "rlk.runtime.call.dispatch", "rlk.runtime.binding.invocation"):
        monkeypatch.setattr(f"{place}.target_of", lambda device: ladder.MI300X)
    monkeypatch.setattr("rlk.runtime.call.dispatch._asked", lambda on, tensors: ("tilelang",))
    yield
    selection._invocations.clear()


def test_explain_and_prefetch_are_of_tilelang(on_a_device: None) -> None:
    x = torch.randn(8, 64, dtype=torch.bfloat16)
    assert prefetch.explain(swiglu, x, x).backend == "tilelang"
    folder = prefetch.prefetch(swiglu, x, x).result()
    assert folder is not None and ModuleRecord.read(folder).backend == "tilelang"
    assert prefetch.prefetch(swiglu, x, x).result() == folder  # found, not compiled again


def test_what_the_lowering_has_no_form_for_is_refused(on_a_device: None) -> None:
    q = torch.randn(8, 2, 256, dtype=torch.bfloat16)
    lengths = torch.tensor([0, 8], dtype=torch.int32)
    with pytest.raises(UnsupportedError, match="of shared memory"):
        prefetch.explain(varlen_attention, q, q, q, lengths, lengths)


def test_the_key_names_every_compiler_and_header() -> None:
    key = build.kernel_key("tilelang", "ir", "s", "gfx942")
    assert {name for name, _ in key.toolchain} == {"tilelang", "apache-tvm-ffi", "ziglang"}
    assert key != build.kernel_key("tilelang", "ir", "s", "gfx90a")
    assert all(path.is_file() for path in tilelang.SOURCES)


def test_without_tilelang_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tilelang, "toolchain", lambda on: None)
    with pytest.raises(UnsupportedError, match=r"\[tilelang\]"):
        build.kernel_key("tilelang", "ir", "s", "gfx942")
