"""Laws of compiling and launching: on no device, repeatably, in other processes, and with the right bytes."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from services import Torch

from rlk.backends import binaries
from rlk.backends.triton import compile_triton
from rlk.cache import CacheKey, Store
from rlk.env import Env
from rlk.errors import CompileError, InternalError, LaunchError
from rlk.lower.common.emitted import CallArg, Emitted, From, KernelArg, KernelBuild
from rlk.runtime.binding import host_stub
from rlk.runtime.kernels import build as build_module
from rlk.runtime.kernels import loader
from rlk.runtime.kernels.pool import Pool
from rlk.runtime.launch import driver
from rlk.runtime.launch.driver import Cuda, Function, Hip
from rlk.runtime.launch.launcher import make_launcher, parameter_layout
from rlk.runtime.launch.record import ABI, LaunchRecord, ModuleRecord, decode_request, encode_request
from rlk.target.facts import TARGETS

pytest.importorskip("triton")

REPOSITORY = Path(__file__).resolve().parent.parent
SOURCE = """
from __future__ import annotations
import triton
import triton.language as tl

WIDTH = 64


@triton.jit
def scale_rows(x, y, scale, n, flag, stride, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, WIDTH)
    v = tl.load(x + row * stride + cols, mask=cols < n, other=0.0)
    v = tl.where(flag != 0, v * scale + 1.0, v)
    tl.store(y + row * stride + cols, v, mask=cols < n)


def call(k, x, y, rows, n, scale, stride):
    k.scale_rows((rows, 1, 1), x, y, scale, min(n, WIDTH), 1, stride)
"""
WAITS = "    tl.extra.cuda.gdc_wait()\n    tl.extra.cuda.gdc_launch_dependents()\n"
OVERLAPPING = SOURCE.replace("    row = ", f"{WAITS}    row = ")
KERNEL = KernelBuild(
    "scale_rows",
    (
        KernelArg("x", "*fp32", divisible=True),
        KernelArg("y", "*fp32"),
        KernelArg("scale", "fp32"),
        KernelArg("n", "i32"),
        KernelArg("flag", "i8"),
        KernelArg("stride", "i64"),
        KernelArg("WIDTH", "constexpr", 64),
    ),
    num_warps=2,
)
CALL = (CallArg("x", From.TENSOR, "x"), CallArg("rows", From.EXTENT, "T"), CallArg("s", From.STRIDE, "x", 0))
EMITTED = Emitted(SOURCE, (KERNEL,), CALL, ("an id is out of range",), "rlk/sm_90a/triton/scale_rows.py")
BROKEN = replace(EMITTED, source=SOURCE.replace("tl.program_id(0)", "tl.no_such_thing(0)"))
DEADLY = replace(
    EMITTED, source=SOURCE + "\nimport os, sys\nprint('goodbye', file=sys.stderr)\nos._exit(7)\n"
)
TYPES = tuple(arg.type for arg in KERNEL.args if arg.type != "constexpr")
RECORD = LaunchRecord("scale_rows", "scale_rows.cubin", TYPES, num_warps=2, shared=512, scratch=0)


@pytest.fixture(scope="module")
def workers() -> Iterator[Pool]:
    pool = Pool(2)
    yield pool
    pool.close()


def compiled(workers: Pool, folder: Path, emitted: Emitted = EMITTED, target: str = "sm_90a") -> Path:
    folder.mkdir()
    workers.compile(emitted, target, folder)
    return folder


# compiling


def test_a_kernel_has_no_more_registers_than_its_schedule_says(workers: Pool, tmp_path: Path) -> None:
    few = replace(EMITTED, kernels=(replace(KERNEL, registers=24),))
    text = (compiled(workers, tmp_path / "few", few) / "scale_rows.ptx").read_text()
    assert ".maxnreg 24" in text
    assert ".maxnreg" not in (compiled(workers, tmp_path / "plain") / "scale_rows.ptx").read_text()
    amd = compiled(workers, tmp_path / "amd", few, "gfx942") / "scale_rows.amdgcn"
    assert amd.exists()  # HIP has no such option


def test_a_kernel_that_may_start_early_waits_before_it_touches_memory(workers: Pool, tmp_path: Path) -> None:
    early = replace(EMITTED, source=OVERLAPPING, kernels=(replace(KERNEL, overlaps=True),))
    folder = compiled(workers, tmp_path / "entry", early)
    assert ModuleRecord.read(folder).kernels[0].overlaps
    text = (folder / "scale_rows.ptx").read_text()
    assert text.index("griddepcontrol.wait") < text.index("griddepcontrol.launch_dependents")
    assert text.index("griddepcontrol.launch_dependents") < text.index("ld.global")
    late = SOURCE.replace("    v = tl.where", f"{WAITS}    v = tl.where")
    for number, source in enumerate((late, SOURCE)):  # these are launched when the one before has ended
        folder = compiled(workers, tmp_path / str(number), replace(early, source=source))
        assert not ModuleRecord.read(folder).kernels[0].overlaps


def test_a_kernel_has_the_stages_that_fit_into_shared_memory(workers: Pool, tmp_path: Path) -> None:
    source = """import triton
import triton.language as tl


@triton.jit
def scale_rows(x, y, scale, n, flag, stride, WIDTH: tl.constexpr):
    at, k = tl.arange(0, 64), tl.arange(0, 128)
    z = tl.zeros((64, 64), tl.float32)
    for step in tl.range(0, n):
        a = tl.load(x + step * 8192 + at[:, None] * 128 + k[None, :])
        z = tl.dot(a, tl.trans(a * 2), z)
    tl.store(y + at[:, None] * 64 + at[None, :], z)


def call(k):
    pass
"""
    for stages in (3, 20):
        args = (replace(KERNEL.args[0], type="*bf16"), *KERNEL.args[1:])
        asked = replace(EMITTED, source=source, kernels=(replace(KERNEL, args=args, num_stages=stages),))
        record = ModuleRecord.read(compiled(workers, tmp_path / str(stages), asked)).kernels[0]
        assert (record.shared > 16384) and record.shared <= 227 * 1024, stages
    small = patch.dict(TARGETS, {"sm_90a": replace(TARGETS["sm_90a"], shared=9)})
    (tmp_path / "none").mkdir()
    with small, pytest.raises(ValueError, match="scale_rows needs .* KiB of shared memory, sm_90a has 9:"):
        compile_triton(asked, "sm_90a", tmp_path / "none")


def test_requests_survive_the_pipe(tmp_path: Path) -> None:
    line = encode_request(EMITTED, "sm_90a", tmp_path, "module:function")
    assert "\n" not in line
    assert decode_request(line) == (EMITTED, "sm_90a", tmp_path, "module:function")


@pytest.mark.parametrize("target", ["sm_90a", "gfx90a", "gfx942", "gfx950"])
def test_kernels_compile_without_a_device(workers: Pool, tmp_path: Path, target: str) -> None:
    folder = compiled(workers, tmp_path / "entry", target=target)
    record = ModuleRecord.read(folder)
    assert record.call == CALL
    assert record.checks == EMITTED.checks
    (kernel,) = record.kernels
    assert (kernel.name, kernel.types, kernel.num_warps, kernel.scratch) == ("scale_rows", TYPES, 2, 0)
    assert (folder / kernel.file).read_bytes()[:4] == b"\x7fELF"


def test_two_compiles_give_the_same_bytes_and_leave_nothing_behind(workers: Pool, tmp_path: Path) -> None:
    one, two = compiled(workers, tmp_path / "one"), compiled(workers, tmp_path / "two")
    names = {path.name for path in one.iterdir()}
    assert names == {"module.py", "launch.json", "scale_rows.cubin", "scale_rows.ptx"}
    assert all((one / name).read_bytes() == (two / name).read_bytes() for name in names)
    other = compiled(workers, tmp_path / "other", replace(EMITTED, file="rlk/elsewhere.py"))
    # nor does the place of a source reach what is compiled: lines are in no table
    assert (other / "scale_rows.cubin").read_bytes() == (one / "scale_rows.cubin").read_bytes()


def test_products_and_sums_stay_apart(workers: Pool, tmp_path: Path) -> None:
    ptx = (compiled(workers, tmp_path / "entry") / "scale_rows.ptx").read_text()
    assert "fma.rn" not in ptx
    assert re.search(r"mul\.(rn\.)?f32", ptx) and re.search(r"add\.(rn\.)?f32", ptx)


def test_a_source_that_does_not_compile_is_kept_and_named(workers: Pool, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="no_such_thing") as caught:
        compiled(workers, tmp_path / "entry", BROKEN)
    match = re.search(r"generated source: (\S+)", str(caught.value))
    assert match is not None
    assert Path(match[1]).read_text() == BROKEN.source
    compiled(workers, tmp_path / "next")


def test_a_compiler_that_dies_is_an_error_and_not_the_end(workers: Pool, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="ended with status 7\ngoodbye"):
        compiled(workers, tmp_path / "entry", DEADLY)
    compiled(workers, tmp_path / "next")
    idle = workers._idle[-1]
    shutil.rmtree(idle._scratch)  # as who cleans /tmp does
    compiled(workers, tmp_path / "cleaned")
    idle._process.kill()
    idle._process.wait()
    with pytest.raises(CompileError, match="ended with status -9"):
        compiled(workers, tmp_path / "killed")


def test_a_full_disk_is_reported_as_such(workers: Pool, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        workers.compile(EMITTED, "sm_90a", tmp_path / "missing")


def test_workers_see_no_device_and_no_torch(workers: Pool, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    spy = (
        "\nimport os, sys\nfrom pathlib import Path\n"
        "seen = os.environ['CUDA_VISIBLE_DEVICES'], 'torch' in sys.modules\n"
        f"Path({str(seen)!r}).write_text(repr(seen))\n"
    )
    compiled(workers, tmp_path / "entry", replace(EMITTED, source=SOURCE + spy))
    assert seen.read_text() == "('', False)"


def test_an_unguarded_script_is_not_run_again_by_its_workers(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import json, sys\nfrom pathlib import Path\n"
        "from rlk.runtime.kernels.pool import pool\nfrom rlk.runtime.launch.record import decode_request\n"
        "print('running')\n"
        f"emitted, target, folder, _ = decode_request(Path({str(tmp_path / 'request')!r}).read_text())\n"
        "pool().submit(lambda: pool().compile(emitted, target, folder)).result()\n"
    )
    (tmp_path / "entry").mkdir()
    (tmp_path / "request").write_text(encode_request(EMITTED, "sm_90a", tmp_path / "entry", ""))
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "running\n"), done.stderr
    assert (tmp_path / "entry" / "scale_rows.cubin").exists()


# obtaining


@pytest.fixture
def fresh_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: Pool) -> Store:
    store = Store(tmp_path / "store")
    monkeypatch.setattr(build_module, "store", lambda: store)
    monkeypatch.setattr(build_module, "pool", lambda: workers)
    return store


def test_a_kernel_is_lowered_and_compiled_once(fresh_store: Store) -> None:
    emissions: list[int] = []

    def emit() -> Emitted:
        emissions.append(1)
        return EMITTED

    key = build_module.kernel_key("triton", "ir", None, "sm_90a")
    futures = [build_module.obtain_later(key, emit, label="scale") for _ in range(3)]
    paths = {future.result(timeout=60) for future in futures}
    assert paths == {build_module.obtain(key, emit, label="scale")}
    assert len(emissions) == 1
    assert fresh_store.counters.builds == 1


def test_keys_hold_the_compiler_the_emitter_and_the_compilers_variables(
    fresh_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    import triton

    def with_flags(*flags: tuple[str, str]) -> CacheKey:
        found = replace(Env.current(), toolchain=flags)
        monkeypatch.setattr(Env, "current", staticmethod(lambda: found))
        return build_module.kernel_key("triton", "ir", None, "sm_90a")

    key, plain = with_flags(("TRITON_F32_DEFAULT", "ieee"), ("PTXAS_OPTIONS", "-O1")), with_flags()
    assert key.toolchain == (("triton", triton.__version__),)
    assert key.flags == (("TRITON_F32_DEFAULT", "ieee"), ("PTXAS_OPTIONS", "-O1")) and plain.flags == ()
    assert key.digest() != plain.digest()
    assert (key.abi, len(key.emitter)) == (ABI, 64)


# launching


ON_1 = Torch(current=1, of=0x57)


class FakeCuda:
    """Enough of libcuda to load a kernel and to see what a launch passes."""

    def __init__(self, offsets: tuple[int, ...], *, contexts: bool = True, torch: Torch = ON_1) -> None:
        self.offsets, self.torch = offsets, torch
        self.launches: list[tuple[tuple[int, ...], list[bytes]]] = []
        self.has_context = contexts
        self.attributes: list[tuple[int, int]] = []
        pointer = ctypes.c_void_p
        self.cuLaunchKernelEx = ctypes.CFUNCTYPE(ctypes.c_int, pointer, pointer, pointer, pointer)(
            self._launch
        )

    def _launch(self, configuration: int, function: int, parameters: int, extra: int) -> int:
        if not self.has_context:
            return 201
        if self.torch.now != FUNCTION.device:
            return 400  # the handle of a default stream is of the current device
        numbers = struct.unpack("=IIIIIII4xQQI4x", ctypes.string_at(configuration, 56))
        pointers = (ctypes.c_void_p * len(self.offsets)).from_address(parameters)
        ends = [*self.offsets[1:], self.offsets[-1] + 8]
        sizes = [end - start for start, end in zip(self.offsets, ends, strict=True)]
        self.launches.append(
            (numbers, [ctypes.string_at(p, n) for p, n in zip(pointers, sizes, strict=True)])
        )
        return 0

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGet(self, handle: Any, device: int) -> int:
        handle._obj.value = device
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:
        context._obj.value = 0xC0 + device.value
        return 0

    def cuCtxPushCurrent_v2(self, context: Any) -> int:
        return 0

    def cuCtxPopCurrent_v2(self, context: Any) -> int:
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:
        self.has_context = True
        return 0

    def cuModuleLoadData(self, module: Any, image: bytes) -> int:
        module._obj.value = 0xABC
        return 0 if image[:4] == b"\x7fELF" else 209

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:
        function._obj.value = 0xF00
        return 0

    def cuFuncSetAttribute(self, function: Any, attribute: int, value: int) -> int:
        self.attributes.append((attribute, value))
        return 0

    def cuFuncGetParamInfo(self, function: Any, index: Any, offset: Any, size: Any) -> int:
        if index.value >= len(self.offsets):
            return 1
        offset._obj.value = self.offsets[index.value]
        return 0

    def cuGetErrorString(self, error: int, text: Any) -> int:
        text._obj.value = b"made up"
        return 0


class Tensor:
    def __init__(self, address: int) -> None:
        self.address = address

    def data_ptr(self) -> int:
        return self.address


OFFSETS = parameter_layout(TYPES)[1]
FUNCTION = Function(0xF00, 0xC1, 1)


def launcher(library: FakeCuda, record: LaunchRecord = RECORD) -> Any:
    return make_launcher(record, FUNCTION, Cuda(library), library.torch.services, lambda size: Tensor(size))


def test_parameters_lie_where_the_compiler_reads_them(workers: Pool, tmp_path: Path) -> None:
    assembly = (compiled(workers, tmp_path / "entry", target="gfx942") / "scale_rows.amdgcn").read_text()
    arguments = assembly[assembly.index(".args:") : assembly.index(".group_segment_fixed_size")]
    assert tuple(int(at) for at in re.findall(r"\.offset:\s+(\d+)", arguments)) == OFFSETS


def test_a_launch_passes_every_argument(tmp_path: Path) -> None:
    library = FakeCuda(OFFSETS)
    launcher(library)((5, 2), Tensor(0x1000), Tensor(2**63 + 8), 1.5, -3, 1, 2**40)
    ((numbers, values),) = library.launches
    assert numbers == (5, 2, 1, 64, 1, 1, 512, 0x58, 0, 0)
    x, y, scale, n, flag, stride, scratch, profile = values
    assert struct.unpack("=QQ", x + y) == (0x1000, 2**63 + 8)
    assert struct.unpack("=f", scale) == (1.5,)
    assert struct.unpack("=i", n) == (-3,)
    assert flag[:1] == b"\x01"
    assert struct.unpack("=q", stride) == (2**40,)
    assert scratch == profile == bytes(8)


def test_a_kernel_that_may_start_early_has_the_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeCuda(OFFSETS)
    for overlaps in (False, True):
        record = replace(RECORD, overlaps=overlaps)
        launcher(library, record)((5, 2), Tensor(0x1000), Tensor(2**63 + 8), 1.5, -3, 1, 2**40)
    (plain, values), ((*numbers, address, count), same) = library.launches
    assert (*numbers, 0, 0) == plain and count == 1 and same == values
    assert struct.unpack("=IIi60s", ctypes.string_at(address, 72)) == (6, 0, 1, bytes(60))
    for on, version in ((True, 12030), (False, 13000), (True, 12020), (True, None)):
        env = replace(Env.current(), overlap=on)
        monkeypatch.setattr(Env, "current", staticmethod(lambda env=env: env))
        monkeypatch.setattr(driver, "cuda_version", lambda version=version: version)
        assert binaries.overlapping(record).overlaps is (version == 12030)


def test_an_empty_grid_is_not_launched() -> None:
    library = FakeCuda(OFFSETS)
    launcher(library)((0,), Tensor(1), Tensor(2), 1.0, 1, 1, 1)
    assert not library.launches


def test_scratch_grows_with_the_grid() -> None:
    library = FakeCuda(OFFSETS)
    launcher(library, replace(RECORD, scratch=128))((3, 2), Tensor(1), Tensor(2), 1.0, 1, 1, 1)
    assert struct.unpack("=Q", library.launches[0][1][6]) == (3 * 2 * 128,)


def test_threads_never_share_arguments() -> None:
    library = FakeCuda(OFFSETS)
    launch = launcher(library)

    def work(number: int) -> None:
        for step in range(200):
            launch((1,), Tensor(number), Tensor(number), 0.0, number, 1, step * 10 + number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(library.launches) == 800
    for _, values in library.launches:
        (number,) = struct.unpack("=Q", values[0])
        assert struct.unpack("=Q", values[1]) == struct.unpack("=i", values[3]) == (number,)
        assert struct.unpack("=q", values[5])[0] % 10 == number


def test_a_thread_without_a_context_gets_one() -> None:
    library = FakeCuda(OFFSETS, contexts=False)
    launcher(library)((1,), Tensor(1), Tensor(2), 1.0, 1, 1, 1)
    assert len(library.launches) == 1


def test_the_device_of_a_launch_is_made_current() -> None:
    library = FakeCuda(OFFSETS, torch=Torch(current=0))
    launcher(library)((1,), Tensor(1), Tensor(2), 1.0, 1, 1, 1)
    assert len(library.launches) == 1 and library.torch.now == 0
    still = replace(library.torch.services, current=lambda: FUNCTION.device)  # as if nobody asked
    launch = make_launcher(RECORD, FUNCTION, Cuda(library), still, lambda size: Tensor(size))
    with pytest.raises(LaunchError, match="CUDA error 400"):
        launch((1,), Tensor(1), Tensor(2), 1.0, 1, 1, 1)


def test_a_failed_launch_says_why() -> None:
    library = FakeCuda(OFFSETS)
    pointer = ctypes.c_void_p
    library.cuLaunchKernelEx = ctypes.CFUNCTYPE(ctypes.c_int, *[pointer] * 4)(lambda *_: 701)
    with pytest.raises(LaunchError, match="launching scale_rows failed: CUDA error 701: made up"):
        launcher(library)((1,), Tensor(1), Tensor(2), 1.0, 1, 1, 1)


def test_a_wrong_layout_is_refused_before_a_launch() -> None:
    with pytest.raises(InternalError, match="expects parameters at"):
        launcher(FakeCuda((*OFFSETS[:-1], OFFSETS[-1] + 8)))
    with pytest.raises(InternalError, match="fp8"):
        parameter_layout(("fp8",))


def test_cuda_loads_binaries_and_asks_for_shared_memory() -> None:
    library = FakeCuda(OFFSETS)
    driver = Cuda(library)
    assert driver.load(b"\x7fELF...", "scale_rows", 1024, 1) == FUNCTION
    assert not library.attributes
    driver.load(b"\x7fELF...", "scale_rows", 100_000, 1)
    assert library.attributes == [(8, 100_000)]
    with pytest.raises(InternalError, match="loading scale_rows: CUDA error 209"):
        driver.load(b"text", "scale_rows", 0, 0)


def test_hip_launches_with_the_same_arguments() -> None:
    seen: list[tuple[Any, ...]] = []

    def launched(function: int, *rest: Any) -> int:
        parameters = (ctypes.c_void_p * len(OFFSETS)).from_address(rest[8])
        seen.append((function, *rest[:8], ctypes.string_at(parameters[5], 8)))
        return 0

    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3)
    library = SimpleNamespace(hipModuleLaunchKernel=kind(launched))
    services = Torch(current=1, of=0x98).services
    launch = make_launcher(RECORD, FUNCTION, Hip(library), services, lambda size: Tensor(size))
    launch((7, 1, 1), Tensor(16), Tensor(32), 2.0, 4, 1, 77)
    assert seen == [(0xF00, 7, 1, 1, 128, 1, 1, 512, 0x99, struct.pack("=q", 77))]


# host functions


def test_the_host_function_needs_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    calls: list[tuple[Any, ...]] = []
    kernels = SimpleNamespace(scale_rows=lambda *args: calls.append(args))
    call = loader.bind(SOURCE, "rlk/x.py", kernels)
    call("x", "y", 4, 100, 1.5, 64)
    assert calls == [((4, 1, 1), "x", "y", 1.5, 64, 1, 64)]


def test_an_entry_is_loaded_and_called(
    workers: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = FakeCuda(OFFSETS)
    monkeypatch.setattr(binaries, "driver", lambda kind: Cuda(library))
    monkeypatch.setattr(binaries, "services", lambda: library.torch.services)
    call, record = loader.load(compiled(workers, tmp_path / "entry"), "cuda", 1)
    call(Tensor(64), Tensor(128), 3, 10, 2.0, 64)
    ((numbers, values),) = library.launches
    assert numbers[:8] == (3, 1, 1, 64, 1, 1, record.kernels[0].shared, 0x58)
    assert struct.unpack("=i", values[3]) == (10,)


def test_the_same_module_runs_interpreted(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from rlk.testing.simulators.interpreter import interpret

    x, y = torch.arange(128.0).reshape(2, 64), torch.zeros(2, 64)
    loader.interpret(replace(EMITTED, source=OVERLAPPING), interpret)(x, y, 2, 50, 3.0, 64)
    assert torch.equal(y[:, :50], x[:, :50] * 3.0 + 1.0)
    assert not y[:, 50:].any()


def test_launch_files_are_readable_json(workers: Pool, tmp_path: Path) -> None:
    members = json.loads((compiled(workers, tmp_path / "entry") / "launch.json").read_text())
    assert members["call"][1] == {"name": "rows", "kind": "extent", "source": "T", "dim": 0}


@pytest.mark.parametrize("recorded", [False, True])
def test_error_words_are_cleared_on_a_stream_that_is_not_recorded(
    recorded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams, cleared = ["current"], list[tuple[bool, str]]()
    caller = threading.get_ident()

    class Words:
        def zero_(self) -> Words:
            cleared.append((threading.get_ident() == caller, streams[-1]))
            return self

    @contextmanager
    def stream(name: str) -> Iterator[None]:
        streams.append(name)
        yield
        streams.pop()

    cuda = SimpleNamespace(
        is_current_stream_capturing=lambda: recorded, Stream=lambda device: "another", stream=stream
    )
    monkeypatch.setattr(
        host_stub, "torch", SimpleNamespace(empty=lambda *_, **__: Words(), int32=None, cuda=cuda)
    )
    assert isinstance(host_stub.error_words.__wrapped__(SimpleNamespace(type="cuda")), Words)
    assert cleared == [(False, "another") if recorded else (True, "current")]


@pytest.mark.parametrize("addressed", [False, True])
def test_workspaces_of_launches_by_address_are_places_in_one_block(addressed: bool) -> None:
    import torch

    seen: list[Any] = []

    def host(*given: Any) -> None:
        seen.extend(given)
        ctypes.memset(given[1].data_ptr(), 1, 12)
        ctypes.memset(given[2].data_ptr(), 2, 40)
        assert ctypes.string_at(given[1].data_ptr(), 12) == b"\x01" * 12

    work = [("a", (3,), torch.float32), ("b", (2, 5), torch.int32)]
    together, cpu = ({"a": 0, "b": 512}, 552), torch.device("cpu")
    outs = [("y", (4,), torch.float32)]
    run = host_stub.compose(outs, work, ["y", "a", "b"], {}, host, cpu, together, addressed=addressed)
    assert [*run({}, {})] == ["y"]
    y, a, b = seen
    assert isinstance(y, torch.Tensor) and isinstance(a, torch.Tensor) is not addressed
    assert (b.data_ptr() - a.data_ptr() == 512) is addressed
    alone = host_stub.compose([], work[:1], ["a"], {}, seen.append, cpu, together, addressed=True)
    alone({}, {})
    assert isinstance(seen[-1], torch.Tensor)  # a block of one would save nothing
