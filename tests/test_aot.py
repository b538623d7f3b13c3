"""Laws of wheels of kernels: repeatable, found before any compiler, refused where their numbers differ."""

from __future__ import annotations

import json
import logging
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from services import NO_STREAM

import rlk
from rlk.aot import calls
from rlk.aot.inspect import contents
from rlk.aot.matrix import Calls, Matrix, Model
from rlk.backends import binaries, triton
from rlk.cli import main
from rlk.digest import canonical, digest
from rlk.env import Env
from rlk.errors import LaunchError, UnsupportedError
from rlk.ops import swiglu
from rlk.runtime import prefetch
from rlk.runtime.binding.candidates import formed
from rlk.runtime.binding.invocation import geometry_of
from rlk.runtime.binding.selection import invoke
from rlk.runtime.binding.shape_buckets import sizes_of
from rlk.runtime.call import dispatch
from rlk.runtime.kernels import build, trace_cache
from rlk.runtime.launch.driver import Cuda
from rlk.runtime.launch.launcher import parameter_layout
from rlk.runtime.launch.record import ModuleRecord
from rlk.runtime.wheels import reader, wheel_lookup
from rlk.schedule.user_table import parse, using
from rlk.target.facts import target

pytest.importorskip("triton", reason="building a wheel needs a compiler")
from aot_cases import CONFIG, REPOSITORY, built, installed
from test_launch import FakeCuda

H200 = target("sm_90a")
NAME = "rlk_aot_sm90a_triton"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("aot") / "one")


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel beside nothing else."""
    return installed(wheel, tmp_path_factory.mktemp("site"))


@pytest.fixture
def site(unpacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put a copy of what is installed on the path."""
    place = shutil.copytree(unpacked, tmp_path / "site")
    monkeypatch.syspath_prepend(str(place))
    reader.forget()
    yield place
    reader.forget()


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away Triton and everything that writes text for it."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError("nothing is compiled here")

    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(triton, "triton_version", lambda: None)
    monkeypatch.setattr(build, "pool", never)
    monkeypatch.setattr(
        trace_cache, "own_text", lambda: None
    )  # nothing is kept, for which a pool has threads


X = torch.randn(48, 512, dtype=torch.bfloat16)


def call_of(x: torch.Tensor) -> tuple[Any, ...]:
    tensors = {"gate": x, "up": x}
    invocation = invoke(swiglu.specs[0], tensors, {}, {}, None)  # type: ignore[attr-defined]
    return invocation, H200.softmax, geometry_of(invocation, tensors), tensors, H200


def explained(x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> dispatch.Decision:
    monkeypatch.setattr(prefetch, "target_of", lambda device: H200)
    monkeypatch.setattr(prefetch, "model_of", lambda invocation, device: H200.softmax)
    return rlk.explain(swiglu, x, x)


# building


@pytest.mark.slow
def test_two_builds_give_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    """In other places, with other hashes of strings, another store, time zone and folder for scratch."""
    (tmp_path / "scratch").mkdir()
    other = {"PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "TMPDIR": str(tmp_path / "scratch")}
    again = built(tmp_path / "another place", SOURCE_DATE_EPOCH="315532800", **other)
    assert sha256(again.read_bytes()).digest() == sha256(wheel.read_bytes()).digest()
    later = built(tmp_path / "later", SOURCE_DATE_EPOCH="1700000000")
    assert sha256(later.read_bytes()).digest() != sha256(wheel.read_bytes()).digest()


def test_a_wheel_names_no_place_of_the_machine_that_built_it(wheel: Path, unpacked: Path) -> None:
    places = {str(wheel.parents[1]), str(REPOSITORY), str(Path.home()), "site-packages"} - {"/"}
    files = [path for path in (unpacked / NAME).rglob("*") if path.is_file()]
    assert any(path.suffix == ".cubin" for path in files)
    for path in files:
        data = path.read_bytes()
        assert not [place for place in places if place.encode() in data], path


def test_inspection_shows_what_a_wheel_holds(wheel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["aot", "inspect", str(wheel)]) == 0
    said = capsys.readouterr().out
    identity = rlk.ops.swiglu.numerics_id("cpu")
    assert "2 kernels" in said and "swiglu_grad" in said and "N=512" in said
    assert "target sm_90a, backend triton" in said and "compiled by triton" in said
    (forward,) = (held for held in contents(wheel).entries if held.key["op"] == "swiglu")
    assert forward.key["numerics_id"] in said and len(forward.key["numerics_id"]) == len(identity)
    assert forward.size > 1000 and forward.key["exact"]


def test_a_damaged_wheel_is_named(wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import zipfile

    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(tmp_path / wheel.name, "w") as changed:
        for name in source.namelist():
            changed.writestr(name, source.read(name) + b" " * name.endswith(("module.py", "calls.json")))
    assert main(["aot", "inspect", str(tmp_path / wheel.name)]) == 1
    assert capsys.readouterr().out.count("damaged") == 3
    (tmp_path / "x.whl").write_bytes(b"x")
    assert main(["aot", "inspect", str(tmp_path / "x.whl")]) == 2


def test_a_backend_that_a_target_lacks_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--target", "sm_80", "--backend", "cute", "-o", str(tmp_path)]
    assert main(["aot", "build", "common", *options]) == 2
    assert "alternatives: triton" in capsys.readouterr().err


# finding


def test_a_call_runs_the_kernel_of_a_wheel_without_a_compiler(
    site: Path, no_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to what is handed to the driver, with the tensors' own addresses."""
    monkeypatch.setitem(sys.modules, "jinja2", None)
    (launch,) = (
        ModuleRecord.read(p.parent) for p in site.rglob("launch.json") if "_grad" not in p.read_text()
    )
    library = FakeCuda(parameter_layout(launch.kernels[0].types)[1])
    monkeypatch.setattr(binaries, "driver", lambda kind: Cuda(library))
    monkeypatch.setattr(binaries, "services", lambda: NO_STREAM)
    run = dispatch.bind_lowered(*call_of(X), torch.device("cpu", 0))
    made = run({"gate": X, "up": X}, {})
    assert made["y"].shape == X.shape
    ((numbers, values),) = library.launches
    addresses = [struct.unpack("=Q", value[:8])[0] for value in values if len(value) == 8]
    assert {X.data_ptr(), made["y"].data_ptr()} <= set(addresses)
    assert numbers[0] > 0 and numbers[3] == launch.kernels[0].num_warps * 32
    assert struct.pack("=i", 48) in b"".join(values)


def test_explain_names_the_wheel(site: Path, no_compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = explained(X, monkeypatch)
    assert found.source == f"{NAME.replace('_', '-')} {rlk.__version__}" or found.source.startswith(NAME)
    assert not found.refused and f"kernel       {found.source}" in str(found)


def test_prefetch_finds_it_too(site: Path, no_compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "target_of", lambda device: H200)
    monkeypatch.setattr(prefetch, "model_of", lambda invocation, device: H200.softmax)
    path = rlk.prefetch(swiglu, X, X).result()
    assert path is not None and path.is_relative_to(site)


def test_rows_that_no_wheel_was_built_with_are_served(site: Path, no_compiler: None) -> None:
    for rows in (1, 17, 8192, 100_000):
        answer = dispatch.ship(*call_of(X[:1].expand(rows, 512).contiguous()), ("triton",))
        assert answer.found is not None, rows


def test_calls_of_one_class_search_once_and_find_what_a_search_finds(
    site: Path, no_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(rows: int, skipped: int = 0) -> Any:
        """Ship rows that begin where 16 bytes do, or 2 bytes later."""
        memory = torch.empty(rows * 512 + skipped, dtype=torch.bfloat16)
        return dispatch.ship(*call_of(memory[skipped:].view(rows, 512)), ("triton",)).found

    def searched(rows: int, skipped: int = 0) -> Any:
        reader.forget()
        return found(rows, skipped)

    wanted = {(rows, skipped): searched(rows, skipped) for rows in (300, 301, 320) for skipped in (0, 1)}
    searched(299)
    with monkeypatch.context() as patched:
        patched.setattr(wheel_lookup, "forms", never_asked)
        for (rows, skipped), want in wanted.items():
            if want is not None:
                assert found(rows, skipped).kernel == want.kernel, (rows, skipped)
        with pytest.raises(AssertionError, match="searched"):
            found(5000)  # the control
    assert any(want is not None for want in wanted.values())


def never_asked(*_: object) -> None:
    raise AssertionError("it searched")


def test_without_a_wheel_and_a_compiler_the_error_says_both(no_compiler: None) -> None:
    reader.forget()
    with pytest.raises(UnsupportedError, match=r"\[triton\]', or a wheel of kernels for sm_90a"):
        dispatch.bind_lowered(*call_of(X), torch.device("cpu", 0))


def test_another_backend_stands_in_only_where_nothing_is_asked_for(
    site: Path, no_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlk.backends.cute.by_cute_first", lambda *_: True)
    answer = dispatch.ship(*call_of(X), dispatch.serving(H200))
    assert answer.found is not None and answer.found.form.backend == "triton"
    forced(monkeypatch, backend="cute")
    assert dispatch.serving(H200) == ("cute",)
    assert dispatch.ship(*call_of(X), dispatch.serving(H200)).found is None


def forced(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    env = replace(Env.current(), **fields)
    monkeypatch.setattr(Env, "current", staticmethod(lambda: env))


def test_a_wheel_of_another_name_is_found_where_nothing_can_be_compiled(
    site: Path, no_compiler: None
) -> None:
    (info,) = site.glob("*.dist-info")
    info.rename(site / "company_kernels-1.0.dist-info")
    metadata = site / "company_kernels-1.0.dist-info" / "METADATA"
    metadata.write_text("Metadata-Version: 2.1\nName: company-kernels\nVersion: 1.0\n")
    reader.forget()
    assert dispatch.ship(*call_of(X), ("triton",)).found is None
    found = dispatch.ship(*call_of(X), ("triton",), whole=True).found
    assert found is not None and found.kernel.wheel.label == "company-kernels 1.0"


# refusing


def entries(site: Path) -> list[Path]:
    return sorted(path.parent for path in (site / NAME).rglob("manifest.json"))


def changed_key(site: Path, **members: object) -> None:
    """Change members of all entries' keys, with digests that fit: what another version would have written."""
    for folder in entries(site):
        text = json.loads((folder / "manifest.json").read_text())
        text.pop("sha256")
        text["key"] |= members
        text["sha256"] = digest(text)
        (folder / "manifest.json").write_bytes(canonical(text))
        folder.rename(folder.parent / digest(text["key"]))


def launched_by(text: str) -> Callable[[Path], object]:
    """Give all entries this launch.json, or their own with some members, and digests that fit."""

    def change(site: Path) -> None:
        for folder in entries(site):
            path = folder / "launch.json"
            own = json.loads(path.read_text())
            path.write_text(json.dumps(own | json.loads(text)) if text.startswith("{") else text)
            manifest = json.loads((folder / "manifest.json").read_text())
            data = path.read_bytes()
            manifest["files"]["launch.json"] = {"bytes": len(data), "sha256": sha256(data).hexdigest()}
            manifest.pop("sha256")
            manifest["sha256"] = digest(manifest)
            (folder / "manifest.json").write_bytes(canonical(manifest))

    return change


def changed_head(site: Path, **members: object) -> None:
    path = site / NAME / reader.HEAD
    path.write_text(json.dumps({**json.loads(path.read_text()), **members}))


def by_all(paths: Callable[[Path], list[Path]]) -> Callable[[Path], object]:
    return lambda site: [path.chmod(0o777) for path in paths(site)]


def each(change: Callable[[Path], object], pattern: str) -> Callable[[Path], object]:
    return lambda site: [change(next(folder.glob(pattern))) for folder in entries(site)]


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "another id": (
        lambda s: changed_key(s, numerics_id="0" * 16),
        "has numerics id 0000000000000000, the inst",
    ),
    "another format": (lambda s: changed_head(s, format=9), "its format is 9, this rlk reads 1"),
    "another target": (
        lambda s: changed_head(s, target="sm_80"),
        "triton on sm_80, not for triton on sm_90a",
    ),
    "another launch": (lambda s: changed_head(s, abi="launch-1"), "its kernels are launched as launch-1"),
    "other flags": (lambda s: changed_head(s, flags=[["TRITON_DEBUG", "1"]]), "variables of compilers"),
    "no JSON": (lambda s: (s / NAME / reader.HEAD).write_bytes(b"\xff"), "wheel.json cannot be read"),
    "a list": (lambda s: (s / NAME / reader.HEAD).write_text("[]"), "its format is unknown"),
    "written by all": (by_all(lambda s: [s / NAME]), "can be written by other users; run: chmod"),
    "entries by all": (by_all(lambda s: [s / NAME / "entries"]), "can be written by other users"),
    "an entry by all": (by_all(entries), "can be written by other users"),
    "a file by all": (each(lambda path: path.chmod(0o666), "module.py"), "can be written by other users"),
    "a cut kernel": (each(lambda path: os.truncate(path, 9), "*.cubin"), "has 9 bytes instead"),
    "another kernel": (lambda s: each(flip, "*.cubin")(s), "another sha256"),
    "another launch.json": (lambda s: each(flip, "launch.json")(s), "another sha256"),
    "a linked kernel": (lambda s: each(link, "module.py")(s), "module.py is not a plain file"),
    "another program": (lambda s: changed_key(s, program="0" * 32), "lies in the folder of another program"),
    "a launch.json of text": (launched_by("launch it"), "launch.json cannot be read: JSONDecodeError"),
    "a launch.json of lists": (launched_by("[" * 99999), "launch.json cannot be read: RecursionError"),
    "a list as launch.json": (launched_by("[1]"), "launch.json cannot be read: TypeError"),
    "a number as kernels": (launched_by('{"kernels": 5}'), "launch.json cannot be read: TypeError"),
    "an unknown argument": (
        launched_by('{"call": [{"kind": "x"}]}'),
        "launch.json cannot be read: ValueError",
    ),
    "a number as backend": (launched_by('{"backend": 5}'), "launch.json says 5 where str is expected"),
    "nothing divisible": (lambda s: changed_key(s, divisible=None), "does not say what has to be divisible"),
    "a damaged manifest": (lambda s: each(flip, "manifest.json")(s), "manifest.json"),
}


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def link(path: Path) -> None:
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real"))


@pytest.mark.parametrize("case", REFUSED)
def test_a_kernel_that_may_differ_is_refused_with_its_reason(
    case: str,
    site: Path,
    no_compiler: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    change, reason = REFUSED[case]
    assert dispatch.ship(*call_of(X), ("triton",)).found is not None  # the control
    change(site)
    reader.forget()
    monkeypatch.setattr("rlk.runtime.wheels.wheel_lookup._said", set())
    with caplog.at_level(logging.WARNING, "rlk.aot"):
        found = explained(X, monkeypatch)
    assert any(reason in why for why in found.refused), found.refused
    assert found.source.startswith("none: ") and reason in caplog.text
    with pytest.raises(UnsupportedError) as caught:
        dispatch.bind_lowered(*call_of(X), torch.device("cpu", 0))
    assert reason in str(caught.value)


def test_a_changed_spec_is_refused_by_its_id(
    site: Path, no_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A spec that computes something else has another program, so the reason is found by the call."""
    monkeypatch.setattr("rlk.runtime.wheels.wheel_lookup.judged", lambda *_: ("f" * 16, ()))
    monkeypatch.setattr("rlk.runtime.wheels.wheel_lookup.program_key", lambda *_: "e" * 32)
    found = explained(X, monkeypatch)
    assert any("the installed spec's is ffff" in why for why in found.refused)


def test_addresses_that_the_kernel_does_not_expect_are_not_its_own(
    site: Path, no_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shifted = torch.randn(48 * 512 + 1, dtype=torch.bfloat16)[1:].view(48, 512)
    found = explained(shifted, monkeypatch)
    assert any("for other rows or alignments" in why for why in found.refused)


def test_a_schedule_of_the_users_is_not_served_by_a_wheel_with_another(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = 'op = "swiglu"\nkernel = "swiglu"\ntarget = "sm_90a"\nbackend = "triton"\n'
    mine = parse(f"[[entry]]\n{head}use = {{ warps = 1 }}", "mine")
    other = parse(f"[[entry]]\n{head}use = {{ warps = 1 }}".replace('"swiglu"', '"logp"', 1), "mine")
    with using(mine):
        found = explained(X, monkeypatch)
        assert "mine, entry 1: no wheel has swiglu with this schedule" in found.refused
        assert "1 warps" in found.schedules[0] and not found.source.startswith(NAME)
    with using(other):
        assert dispatch.ship(*call_of(X), ("triton",)).found is not None
    assert explained(X, monkeypatch).source.startswith(NAME)


def test_without_a_compiler_a_wheel_serves_whatever_the_table_says(
    site: Path, no_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = 'op = "swiglu"\nkernel = "swiglu"\ntarget = "sm_90a"\nbackend = "triton"\n'
    monkeypatch.setattr(dispatch, "_held", lambda found, on, device: found.kernel.folder)
    with using(parse(f"[[entry]]\n{head}use = {{ warps = 1 }}", "mine")):
        assert dispatch.resolve(*call_of(X), torch.device("cpu", 0)).is_relative_to(site)  # type: ignore[attr-defined]


def test_wheels_can_be_turned_off(site: Path, no_compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Env.read({}).aot and Env.read({"RLK_AOT": "1"}).aot and not Env.read({"RLK_AOT": "0"}).aot
    forced(monkeypatch, aot=False)
    assert dispatch.ship(*call_of(X), ("triton",)).found is None
    assert any("RLK_AOT=0" in why for why in explained(X, monkeypatch).refused)


# matrices


TINY = Model("tiny", 256, 1024, 512, 4, 2, 64, tp=(2,))


def observed(*wanted: Calls, model: Model = TINY) -> list[tuple[str, tuple[str, int]]]:
    seen: list[tuple[str, tuple[str, int]]] = []
    calls.observe(Matrix((model,), wanted), lambda i, tensors: seen.append((i.spec.name, i.shard)))
    return seen


def test_calls_of_ranks_are_those_that_ranks_make() -> None:
    seen = observed(Calls("linear_logp", (40,), backward=True), Calls("rms_norm", (40,), split=False))
    assert seen == [
        ("rms_norm", ("", 1)), ("linear_logp", ("V", 2)), ("linear_logp_join", ("", 1)),
        ("linear_logp_backward", ("V", 2)),
    ]  # fmt: skip


def test_what_is_checked_on_a_device_is_prepared_too() -> None:
    seen = observed(Calls("policy_loss", (40,), options=({"loss": "grpo"},)), model=replace(TINY, tp=(1,)))
    assert {name for name, _ in seen} == {"policy_loss", "reported"}


@pytest.mark.parametrize("op", calls.CALLERS)
def test_every_operator_of_a_matrix_can_be_called(op: str) -> None:
    options: dict[str, Any] = {"policy_loss": {"loss": "grpo"}, "linear_policy_loss": {"loss": "grpo"}}.get(
        op, {}
    )
    assert observed(Calls(op, (24,), options=(options,), backward=True), model=replace(TINY, tp=(1,)))


def test_no_kernel_knows_how_many_tokens_there_are() -> None:
    """Its sizes are what a cache key holds: a step with another number of tokens must not compile."""
    seen: dict[str, list[object]] = {}

    def note(invocation: Any, tensors: Any) -> None:
        geometry = geometry_of(invocation, tensors)
        sizes = sizes_of(invocation, geometry)
        plain, (program, schedules) = sizes.signature, formed(invocation, H200.softmax, sizes, H200)
        key = reader.program_key("triton", H200, program, schedules, plain)
        seen.setdefault(invocation.spec.name, []).append(key)

    options = ({"loss": "grpo"},)
    wanted = [
        Calls(op, (2001, 3001), options=options, backward=True)
        for op in ("policy_loss", "linear_policy_loss")
    ]
    calls.observe(Matrix((replace(TINY, tp=(1,)),), tuple(wanted)), note)
    assert len(seen.pop("reported")) == 1  # of the same number of sequences: called as before
    assert len(seen) == 4
    for name, keys in seen.items():
        assert len(keys) >= 2 and len(set(keys)) == 1, name


def test_observing_calls_leaves_nothing_behind() -> None:
    x = torch.randn(3, 512)
    want = rlk.ops.swiglu(x, x)
    observed(Calls("swiglu", (3,), ("f32",)), model=replace(TINY, tp=(1,)))
    assert torch.equal(rlk.ops.swiglu(x, x), want) and want.any()
    with pytest.raises(LaunchError, match="op='frobnicate'"):
        observed(Calls("frobnicate", (3,)))
    assert dispatch.dispatch.recorder is None


# warming up


def warmup(folder: Path, *options: str, path: str = "") -> subprocess.Popen[str]:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    command = [
        sys.executable,
        "-m",
        "rlk.cli",
        "warmup",
        "--model-config",
        "config.json",
        "--target",
        "sm_90a",
    ]
    variables = {
        "RLK_CACHE_DIR": str(folder / "store"),
        "PYTHONPATH": os.pathsep.join([path, str(REPOSITORY)]),
    }
    return subprocess.Popen(
        [*command, "--op", "swiglu", *options], cwd=folder, env={**os.environ, **variables}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.slow
def test_ranks_that_warm_up_together_compile_each_kernel_once(tmp_path: Path) -> None:
    ranks = [warmup(tmp_path, "--tp", "2") for _ in range(3)]
    said = [rank.communicate(timeout=300) for rank in ranks]
    assert all(rank.returncode == 0 for rank in ranks), said
    assert sum(int(out.rsplit("; ", 1)[1].split()[0]) for out, _ in said) == 2
    assert all("2 kernels, 0 of them" in out and "prepared [" in err for out, err in said)


def test_what_a_wheel_holds_is_not_compiled_again(unpacked: Path, tmp_path: Path) -> None:
    (tmp_path / "store").write_text("no folder")  # nor is a store needed
    rank = warmup(tmp_path, path=str(unpacked))
    out, err = rank.communicate(timeout=300)
    assert "2 kernels, 2 of them in installed wheels; 0 compiled" in out and rank.returncode == 0, err


def test_a_warm_up_that_keeps_nothing_fails(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store").chmod(0o777)
    rank = warmup(tmp_path)
    out, err = rank.communicate(timeout=300)
    assert rank.returncode == 1
    assert "2 kernels, 0 of them in installed wheels; 2 compiled, 2 kept nowhere" in out
    assert f"not kept  2 kernels end with this process: {tmp_path / 'store'} can be written" in err
