"""Laws of compiling and launching CuTe modules: on no device, repeatably, and loaded without the compiler."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from services import NO_STREAM, Torch

import rlk
from rlk.backends import binaries, cute, triton
from rlk.backends.cubin import usage
from rlk.backends.cute import load_cute
from rlk.backends.interface import ToolError
from rlk.backends.source import executed
from rlk.env import Env
from rlk.errors import CompileError, InternalError, LaunchError, UnsupportedError
from rlk.ir.nodes import MathModel
from rlk.lower.common.emitted import CallArg, Emitted, From, KernelArg, KernelBuild
from rlk.ops import swiglu
from rlk.runtime import prefetch
from rlk.runtime.binding.invocation import geometry_of
from rlk.runtime.call import dispatch as dispatching
from rlk.runtime.call import entry as calls
from rlk.runtime.call.dispatch import lowered
from rlk.runtime.kernels import build, loader
from rlk.runtime.kernels.pool import Pool
from rlk.runtime.launch.record import LaunchRecord, ModuleRecord, decode_request, encode_request
from rlk.target.facts import target

needs_no_device = pytest.mark.skipif(torch.cuda.is_available(), reason="would launch with made-up addresses")

SOURCE = """
from __future__ import annotations

import cuda.bindings.driver as cuda
from cutlass import BFloat16, Boolean, Float32, Int32, Int64, Uint32, cute

THREADS = 128


@cute.kernel
def scale_kernel(x: cute.Tensor, y: cute.Tensor, kept: cute.Tensor, scale: Float32, flag: Boolean):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    i = block * 128 + thread
    if i < x.shape[0]:
        v = x[i].to(Float32)
        if kept[i] != 0:
            v = v * scale
        if flag:
            v = v + Float32(1.0)
        y[i] = v


@cute.jit
def launch_scale(
    x_ptr: cute.Pointer, y_ptr: cute.Pointer, kept_ptr: cute.Pointer, T: Int32, x_stride: Int64,
    scale: Float32, flag: Boolean, seed: Uint32, programs: Int32, overlap: Int32,
    stream: cuda.CUstream,
):
    x = cute.make_tensor(x_ptr, cute.make_layout((T,), stride=(x_stride,)))
    y = cute.make_tensor(y_ptr, cute.make_layout((T,)))
    kept = cute.make_tensor(kept_ptr, cute.make_layout((T,)))
    scale_kernel(x, y, kept, scale, flag).launch(
        grid=(programs, 1, 1), block=(THREADS, 1, 1), use_pdl=overlap, stream=stream
    )


def call(kernels, x, y, kept, T, scale):
    programs = (T + THREADS - 1) // THREADS
    if programs > 0:
        kernels.scale((programs,), x, y, kept, T, 1, scale, 1, 7)
"""
KERNEL = KernelBuild(
    "scale",
    (
        KernelArg("x_ptr", "*bf16", divisible=True),
        KernelArg("y_ptr", "*fp32"),
        KernelArg("kept_ptr", "*i1"),
        KernelArg("T", "i32", divisible=True),
        KernelArg("x_stride", "i64"),
        KernelArg("scale", "fp32"),
        KernelArg("flag", "i1"),
        KernelArg("seed", "u32"),
    ),
)
CALL = (CallArg("x", From.TENSOR, "x"), CallArg("T", From.EXTENT, "T"))
EMITTED = Emitted(SOURCE, (KERNEL,), CALL, ("an id is out of range",), "rlk/sm90a/cute/scale.py", "cute")
RECORD = LaunchRecord("scale", "scale.so", tuple(a.type for a in KERNEL.args), 4, shared=0, scratch=0)

# An array that is indexed by what only the device knows cannot lie in registers.
SPILLING = SOURCE.replace(
    "v = x[i].to(Float32)",
    "many = cute.make_rmem_tensor((512,), Float32)\n"
    "        for j in range(512):\n"
    "            many[j] = Float32(j) * scale\n"
    "        v = many[(i * 7 + x.shape[0]) % 512] + x[i].to(Float32)",
)


@pytest.fixture(scope="module")
def workers() -> Iterator[Pool]:
    pool = Pool(1)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def entry(workers: Pool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(workers, tmp_path_factory.mktemp("cute") / "entry")


def compiled(workers: Pool, folder: Path, emitted: Emitted = EMITTED) -> Path:
    folder.mkdir()
    workers.compile(emitted, "sm_90a", folder)
    return folder


class Tensor:
    def __init__(self, address: int) -> None:
        self.address = address

    def data_ptr(self) -> int:
        return self.address


ARGUMENTS = (Tensor(1 << 20), Tensor(1 << 21), Tensor(1 << 22), 100, 1, 2.0, 1, 7)


# compiling


def test_requests_of_both_backends_survive_the_pipe(tmp_path: Path) -> None:
    for emitted in (EMITTED, replace(EMITTED, backend="triton")):
        assert decode_request(encode_request(emitted, "sm_90a", tmp_path, ""))[0] == emitted


@pytest.mark.cutlass
def test_a_kernel_compiles_without_a_device(entry: Path) -> None:
    assert {path.name for path in entry.iterdir()} == {"module.py", "launch.json", "scale.so", "scale.cubin"}
    record = ModuleRecord.read(entry)
    assert record == ModuleRecord((RECORD,), CALL, EMITTED.checks, "cute")
    assert (entry / "module.py").read_text() == SOURCE
    assert str(entry).encode() not in (entry / "scale.so").read_bytes()


@pytest.mark.cutlass
def test_two_processes_give_the_same_bytes(entry: Path, tmp_path: Path) -> None:
    other = Pool(1)
    again = compiled(other, tmp_path / "again")
    other.close()
    assert all((again / path.name).read_bytes() == path.read_bytes() for path in entry.iterdir())


@pytest.mark.cutlass
def test_modules_of_both_backends_share_a_worker(workers: Pool, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    source = "import triton\n\n\n@triton.jit\ndef nothing(n):\n    pass\n\n\ndef call(kernels):\n    pass\n"
    kernel = KernelBuild("nothing", (KernelArg("n", "i32"),))
    folder = compiled(workers, tmp_path / "triton", Emitted(source, (kernel,), (), (), "rlk/nothing.py"))
    assert ModuleRecord.read(folder).backend == "triton"
    found = usage((folder / "nothing.cubin").read_bytes())
    assert (found["nothing"].stack, found["nothing"].shared) == (0, 0)
    compiled(workers, tmp_path / "cute")


def test_a_module_has_only_its_own_future_imports() -> None:
    """The DSL reads the fields of a struct: strings would not do."""
    with executed("class Storage:\n    ring: int\n", "rlk/x.py") as module:
        assert module.Storage.__annotations__ == {"ring": int}


@pytest.mark.cutlass
def test_a_mistake_names_the_backend_and_the_kept_source(workers: Pool, tmp_path: Path) -> None:
    wrong = replace(EMITTED, source=SOURCE.replace("cute.arch.thread_idx()", "cute.arch.no_such_thing()"))
    with pytest.raises(CompileError, match="cute cannot compile(.|\n)*no_such_thing"):
        compiled(workers, tmp_path / "entry", wrong)


def test_types_and_targets_without_a_form_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="not for sm_100a"):
        cute.compile_cute(EMITTED, "sm_100a", tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.cutlass
def test_an_argument_of_an_unknown_type_is_refused(workers: Pool, tmp_path: Path) -> None:
    args = (*KERNEL.args[:-1], KernelArg("seed", "fp8"))
    with pytest.raises(CompileError, match="argument seed of type fp8 has no form"):
        compiled(workers, tmp_path / "entry", replace(EMITTED, kernels=(KernelBuild("scale", args),)))


def test_a_machine_without_a_linker_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cute.shutil, "which", lambda name: None)
    with pytest.raises(ToolError, match="install gcc, or name one in CC"):
        cute.compile_cute(EMITTED, "sm_90a", tmp_path)


# what the code uses


@pytest.mark.cutlass
def test_a_kernel_that_fits_has_no_stack(entry: Path) -> None:
    (found,) = usage((entry / "scale.cubin").read_bytes()).values()
    assert (found.stack, found.shared) == (0, 0)
    assert 0 < found.registers <= 32


@pytest.mark.cutlass
def test_a_kernel_that_spills_shows(workers: Pool, tmp_path: Path) -> None:
    folder = compiled(workers, tmp_path / "entry", replace(EMITTED, source=SPILLING))
    (found,) = usage((folder / "scale.cubin").read_bytes()).values()
    assert found.stack >= 512 * 4


# keys


def fresh_key(monkeypatch: pytest.MonkeyPatch, version: Callable[[str], str]) -> Any:
    monkeypatch.setattr(cute.metadata, "version", version)
    monkeypatch.setattr(build, "digest_sources", lambda folders: "emitter")
    cute.toolchain.cache_clear()
    try:
        return build.kernel_key("cute", "ir", None, "sm_90a")
    finally:
        cute.toolchain.cache_clear()


@pytest.mark.cutlass
def test_keys_hold_the_compiler_and_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    known = cute.metadata.version
    found = cute.flavour()
    assert found is not None
    plain = fresh_key(monkeypatch, known)
    tools = dict(plain.toolchain)
    assert plain.backend == "cute"
    assert tools[f"nvidia-cutlass-dsl-libs-cu{found.major}"] == tools["nvidia-cutlass-dsl"]
    assert len(tools["compiler and ptxas"]) == 43  # a sha256 in base64
    for package in ("nvidia-cutlass-dsl", "apache-tvm-ffi"):
        other = fresh_key(monkeypatch, lambda name, package=package: known(name) + ".1" * (name == package))
        assert other.digest() != plain.digest()


@pytest.mark.cutlass
def test_the_flavour_is_the_compilers_own_choice() -> None:
    probe = "from cutlass.base_dsl.version_info import CUDA_VERSION; print(CUDA_VERSION.major)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    found = cute.flavour()
    assert found is not None and found.major == int(done.stdout)


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cute, "toolchain", lambda: None)
    with pytest.raises(UnsupportedError, match=r"pip install .*\[cute\]'"):
        build.kernel_key("cute", "ir", None, "sm_90a")


def test_an_old_driver_chooses_an_older_flavour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for major in (12, 13):
        library = tmp_path / f"cu{major}" / "lib" / "libcute_dsl_runtime.so"
        library.parent.mkdir(parents=True)
        library.touch()
    spec = types.SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(cute, "find_spec", lambda name: spec)
    for driver, major in ((None, 13), (14, 13), (13, 13), (12, 12), (11, None)):
        monkeypatch.setattr(cute, "_driver_major", lambda driver=driver: driver)
        found = cute.flavour.__wrapped__()
        assert (None if found is None else found.major) == major


# calling


@pytest.mark.cutlass
@needs_no_device
def test_a_launch_passes_every_check_up_to_the_driver(entry: Path) -> None:
    launch = load_cute(entry, RECORD, 0, NO_STREAM)
    with pytest.raises(LaunchError, match="launching scale failed: .*cudaErrorInsufficientDriver"):
        launch((1,), *ARGUMENTS)
    with pytest.raises(LaunchError, match="cudaErrorInsufficientDriver"):  # and does not wait for ever
        launch((1,), *ARGUMENTS)
    launch((0,), *ARGUMENTS)


@pytest.mark.cutlass
@needs_no_device
@pytest.mark.parametrize(
    ("at", "value", "said"),
    [
        (0, Tensor("address"), "argument #0"),  # type: ignore[arg-type]
        (3, 1.5, "argument #3.*expected int"),
        (3, 2**31, "argument #3.*int32 range"),
        (5, "much", "argument #5.*expected float"),
        (7, -1, "argument #7.*uint32 range"),
    ],
)
def test_an_argument_of_another_type_is_refused(
    entry: Path, tmp_path: Path, at: int, value: object, said: str
) -> None:
    library = shutil.copy(entry / RECORD.file, tmp_path)  # one that no driver has refused yet
    launch = load_cute(Path(library).parent, RECORD, 0, NO_STREAM)
    with pytest.raises(LaunchError, match=said):
        launch((1,), *ARGUMENTS[:at], value, *ARGUMENTS[at + 1 :])


@pytest.mark.cutlass
@needs_no_device
def test_an_entry_is_loaded_and_called(entry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "services", lambda: NO_STREAM)
    call, record = loader.load(entry, "cuda", 0)
    assert record.checks == EMITTED.checks
    call(*ARGUMENTS[:3], 0, 2.0)
    with pytest.raises(LaunchError, match="cudaErrorInsufficientDriver"):
        call(*ARGUMENTS[:3], 300, 2.0)


@pytest.mark.cutlass
def test_loading_imports_no_compiler(entry: Path) -> None:
    probe = (
        "import sys\nfrom pathlib import Path\n"
        "from rlk.backends.cute import load_cute\nfrom rlk.runtime.launch.launcher import Services\n"
        "from rlk.runtime.launch.record import ModuleRecord\n"
        f"folder = Path({str(entry)!r})\n"
        "services = Services(lambda d: 0, lambda: 0, lambda d: None)\n"
        "load_cute(folder, ModuleRecord.read(folder).kernels[0], 0, services)\n"
        "print([m for m in ('cutlass', 'triton') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.cutlass
def test_a_damaged_library_is_an_error_and_not_the_end(entry: Path, tmp_path: Path) -> None:
    whole = (entry / "scale.so").read_bytes()
    for kept in (0, 40, 64, 5000, len(whole) // 2, len(whole) - 1):
        (tmp_path / "scale.so").write_bytes(whole[:kept])
        with pytest.raises(InternalError, match="scale.so cannot be loaded"):
            load_cute(tmp_path, RECORD, 0, NO_STREAM)
    (tmp_path / "scale.so").unlink()
    with pytest.raises(FileNotFoundError):
        load_cute(tmp_path, RECORD, 0, NO_STREAM)


@pytest.mark.parametrize(("current", "overlaps"), [(0, True), (1, False)])
def test_a_launch_is_on_its_own_device(current: int, overlaps: bool) -> None:
    """On the current stream of the tensors' device, whichever device is current."""
    seen: list[tuple[Any, ...]] = []
    place = Torch(current)
    launch = cute._launcher(
        replace(RECORD, types=("*fp32", "i32", "*i1"), overlaps=overlaps),
        lambda *args: seen.append((place.now, *args)),
        1,
        place.services,
    )
    launch((5,), Tensor(64), 3, Tensor(96))
    launch((0,), Tensor(64), 3, Tensor(96))
    assert seen == [(1, 64, 3, 96, 5, int(overlaps), 0x51)]
    assert place.now == current


def test_a_library_that_was_refused_is_not_called_again() -> None:
    """The runtime library of 4.7 would wait for ever; after a success it is called whatever happens."""
    failing, made = [True], []

    def call(*args: int) -> None:
        made.append(args)
        if failing[0]:
            raise RuntimeError("no memory")

    for library, first in (("one.so", True), ("two.so", False)):
        careful = cute._loaded_once(library, call)
        failing[0] = first
        outcomes = []
        for _ in range(2):
            try:
                outcomes.append(careful(1))
            except RuntimeError as error:
                outcomes.append(str(error))
            failing[0] = not failing[0]
        assert outcomes == (["no memory"] * 2 if first else [None, "no memory"])
    assert len(made) == 1 + 2


# choosing


def forced(monkeypatch: pytest.MonkeyPatch, backend: str | None) -> None:
    env = replace(Env.current(), backend=backend)
    monkeypatch.setattr(Env, "current", staticmethod(lambda: env))


def test_the_environment_chooses_among_what_a_target_has(monkeypatch: pytest.MonkeyPatch) -> None:
    for wanted, on, chosen in (
        (None, "gfx942", "triton"), ("triton", "gfx942", "triton"), ("cute", "sm_90a", "cute"),
        ("tilelang", "gfx942", "tilelang"), ("tilelang", "sm_90a", "tilelang"),
    ):  # fmt: skip
        forced(monkeypatch, wanted)
        assert dispatching.asked_for(target(on)) == (chosen,)
    for wanted, on, instead in (
        ("cute", "gfx942", "triton, tilelang"), ("cute", "sm_100a", "triton"),
        ("tilelang", "sm_80", "triton"), ("oracle", "sm_90a", "triton, cute, tilelang"),
    ):  # fmt: skip
        forced(monkeypatch, wanted)
        with pytest.raises(UnsupportedError, match=f"alternatives: {instead}   "):
            dispatching.asked_for(target(on))


def test_the_faster_lowering_is_asked_where_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    forced(monkeypatch, None)
    for compiles, chosen in ((True, ("cute", "triton")), (False, ("triton",))):
        monkeypatch.setattr(cute, "compiles", lambda compiles=compiles: compiles)
        assert dispatching.asked_for(target("sm_90a")) == chosen


def test_kernels_are_compiled_by_releases_that_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cute, "_linker", lambda: ["cc"])
    for version, wanted in (("4.8.1", True), ("4.7.0", True), ("4.9.0", False), ("5.7.0", False)):
        monkeypatch.setattr(cute, "toolchain", lambda version=version: (("nvidia-cutlass-dsl", version),))
        assert cute.compiles.__wrapped__() == wanted
    monkeypatch.setattr(cute, "toolchain", lambda: None)
    assert not cute.compiles.__wrapped__()


def lowering(monkeypatch: pytest.MonkeyPatch, lower: Callable[..., Emitted]) -> None:
    """Put a CuTe lowering in the place of rlk's."""
    monkeypatch.setattr("rlk.lower.cute.lower", lower)


def refusing(*args: Any, **options: Any) -> Emitted:
    raise UnsupportedError(cute.Code.UNSUPPORTED, what="it", backend="cute", target="", alternatives="triton")


def accepting(*args: Any, **options: Any) -> Emitted:
    from rlk.lower.triton import lower

    return replace(lower(*args, **options), backend="cute")


@pytest.mark.parametrize(("lower", "runs"), [(accepting, "cute"), (refusing, "triton")])
def test_what_cute_refuses_is_tritons_and_explained_so(
    lower: Callable[..., Emitted], runs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowering(monkeypatch, lower)
    sm_90a = target("sm_90a")
    monkeypatch.setattr(prefetch, "target_of", lambda device: sm_90a)
    monkeypatch.setattr(prefetch, "lowered", lambda *args: lowered(*args, backend="cute"))
    x = torch.ones(2, 8)
    assert rlk.explain(swiglu, x, x).backend == runs
    found = lowered_swiglu(x, "cute")
    monkeypatch.setattr(build, "digest_sources", lambda folders: "emitter")
    monkeypatch.setattr(cute, "toolchain", lambda: (("nvidia-cutlass-dsl", "4.8.1"),))
    if runs == "cute" or triton.triton_version() is not None:
        assert dispatching.entry_key(found[0], found[2], found[3], sm_90a).backend == runs


def test_tensors_on_a_cpu_are_lowered_for_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    lowering(monkeypatch, accepting)
    forced(monkeypatch, "cute")
    assert lowered_swiglu(torch.ones(2, 8), None)[3].backend == "triton"


def lowered_swiglu(x: torch.Tensor, backend: str | None) -> Any:
    invocation = calls.invoke(swiglu.specs[0], {"gate": x, "up": x}, {}, {}, None)  # type: ignore[attr-defined]
    tensors = {"gate": x, "up": x}
    geometry = geometry_of(invocation, tensors)
    return lowered(invocation, MathModel.SM90, geometry, tensors, target("sm_90a"), backend=backend)


def test_launch_files_name_their_backend(tmp_path: Path) -> None:
    ModuleRecord((RECORD,), CALL, (), "cute").write(tmp_path)
    assert json.loads((tmp_path / "launch.json").read_text())["backend"] == "cute"
    (tmp_path / "module.py").write_text(SOURCE)
    ModuleRecord((RECORD,), CALL, (), "metal").write(tmp_path)
    with pytest.raises(InternalError, match="unknown backend, 'metal'"):
        loader.load(tmp_path, "cuda", 0)
