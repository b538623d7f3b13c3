"""Each command of `rlk` does its work, says so plainly, and ends with the right status."""

from __future__ import annotations

import fcntl
import io
import os
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlk import cli, env
from rlk.aot.progress import Progress as AheadProgress
from rlk.cache import CacheKey, Store
from rlk.cli.cache import parse_size
from rlk.cli.text import Progress, fields, size, table
from rlk.errors import LaunchError
from rlk.interp.ex2_sm90 import exp2_sm90
from rlk.ir.text import parse_program
from rlk.resources import generated, installing
from rlk.runtime import reference
from rlk.runtime.kernels import probes
from rlk.runtime.registry import operators
from rlk.terminal import Plain

Rlk = Callable[..., tuple[int, str, str]]

SPEC = '''"""Row sums of squares."""

from __future__ import annotations

from rlk.lang import Axis, L, Outputs, Tensor, Tree, f32, op

T = Axis("T", dynamic=True)
N = Axis("N")


@op(saves=("x",))
def squares(x: Tensor[f32, T, N]) -> Outputs:
    """y = sum of x^2."""
    return L.out(y=L.sum(x * x, over=N, tree=Tree.halving))


@squares.vjp("x")
def squares_grad(ctx, d_y: Tensor[f32, T]) -> Outputs:
    """d x = 2 x d_y."""
    return L.out(d_x=(2.0 * ctx.x) * d_y)
'''


@pytest.fixture
def rlk(capsys: pytest.CaptureFixture[str]) -> Rlk:
    def call(*argv: str) -> tuple[int, str, str]:
        try:
            status = cli.main(argv)
        except SystemExit as end:  # argparse ends so
            status = int(end.code or 0)
        said = capsys.readouterr()
        return status, said.out, said.err

    return call


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store of its own, with one entry."""
    found = replace(env.Env.current(), cache_dir=tmp_path / "store", cache_limit=2**20)
    monkeypatch.setattr(env, "_current", lambda: found)
    made = Store(found.cache_dir)
    key = CacheKey("ir", "schedule", "sm_90a", "triton", "emitter", (("triton", "3.6.0"),), (), "abi")
    made.get_or_build(key, lambda folder: _write(folder / "module.py"), label="logp")
    yield made


def _write(path: Path) -> None:
    path.write_text("x = 1\n")


# --- the program itself ---


def test_without_a_command_there_is_help(rlk: Rlk) -> None:
    status, out, _ = rlk()
    assert status == 0 and all(re.search(rf"^  {name} ", out, re.MULTILINE) for name in cli.COMMANDS)


def test_the_package_is_the_program() -> None:
    version = [
        subprocess.run([sys.executable, "-m", name, "--version"], capture_output=True, text=True, check=True)
        for name in ("rlk", "rlk.cli")
    ]
    assert version[0].stdout == version[1].stdout and version[0].stdout.startswith("rlk ")


def test_an_unknown_command_is_refused(rlk: Rlk) -> None:
    status, _, err = rlk("lst")
    assert status == 2 and "invalid choice: 'lst'" in err


@pytest.mark.parametrize("command", sorted(cli.COMMANDS))
def test_every_command_has_help(rlk: Rlk, command: str) -> None:
    if command == "demo":
        pytest.importorskip("transformers")
    status, out, _ = rlk(command, "--help")
    assert status == 0 and out.startswith(f"usage: rlk {command}") and len(out.splitlines()) > 4


def test_a_process_ends_with_the_status_and_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rlk.cli", "show", "lop"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and done.stdout == ""
    assert "operator 'lop' is unknown" in done.stderr and "Traceback" not in done.stderr


def test_a_reader_that_leaves_is_no_error() -> None:
    line = f"{sys.executable} -m rlk.cli show logp --ir | head -1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert done.stdout == "program logp\n" and done.stderr == ""


def test_a_missing_package_is_named_with_its_extra(rlk: Rlk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.import_module", _missing)
    status, _, err = rlk("demo")
    assert status == 2 and f"transformers is not installed: {installing('demo')}" in err


def _missing(name: str) -> None:
    raise ModuleNotFoundError("No module named 'transformers'", name="transformers")


# --- list and show ---


DOTS = (
    "grouped_matmul",
    "grouped_matmul_leaf2",
    "grouped_matmul_leaf4",
    "grouped_matmul_leaf8",
    "grouped_weight_grad",
    "linear_logp",
    "linear_logp_backward",
    "linear_logp_scores",
    "matmul",
    "matmul_backward",
    "matmul_leaf2",
    "matmul_leaf4",
    "matmul_leaf8",
    "varlen_attention",
    "paged_attention",
    "prefix_attention",
)


def test_list_names_every_operator_with_its_id(rlk: Rlk) -> None:
    status, out, _ = rlk("list")
    assert status == 0
    for name in operators():
        block = next(text for text in out.split("\n\n") if text.startswith(f"{name}: "))
        tiers = re.findall(r"(sm_90a|gfx942)\s+[0-9a-f]{16}  (exact|pinned)", block)
        # the dots of gfx942 have no validated model yet
        assert tiers == [("sm_90a", "exact"), ("gfx942", "pinned" if name in DOTS else "exact")], block
        assert "gradients" in block


COMPOSED = {
    "linear_jsd_loss": "matmul, jsd_loss",
    "optimal_token_baseline": "token_paths, token_baseline",
    "linear_policy_loss": "linear_logp, policy_loss",
    "pack": "take_rows",
}


def test_list_names_operators_without_a_spec_and_their_parts(rlk: Rlk) -> None:
    _, out, _ = rlk("list", "--target", "sm_90a")
    for name, parts in COMPOSED.items():
        block = next(text for text in out.split("\n\n") if text.startswith(f"{name}: "))
        assert block.endswith(f"runs  {parts}") and len(block.splitlines()[0]) > len(name) + 10


@pytest.mark.parametrize("command", ["show NAME --dtype F=bf16", "check NAME"])
def test_options_of_parts_are_given_to_each_part_by_name(rlk: Rlk, command: str) -> None:
    several = {name: parts for name, parts in COMPOSED.items() if "," in parts or "check" in command}
    for name, parts in several.items():
        status, out, err = rlk(*command.replace("NAME", name).split())
        assert status == 2 and out == ""
        assert f"it runs {parts.replace(', ', ' and ')}" in err and "name these" in err


@pytest.mark.parametrize("backend", ["triton", "cute", "tilelang"])
@pytest.mark.parametrize("grad", [(), ("--grad",)])
def test_show_prints_every_part_of_an_operator_without_a_spec(
    rlk: Rlk, backend: str, grad: tuple[str, ...]
) -> None:
    status, out, _ = rlk("show", "linear_policy_loss", "--source", backend, *grad)
    assert status == 0
    _, *blocks = re.split(r"^# --- (\w+), of linear_policy_loss\n", out, flags=re.MULTILINE)
    assert blocks[::2] == ["linear_logp", "policy_loss"]
    for name, text in zip(blocks[::2], blocks[1::2], strict=True):
        assert text == rlk("show", name, "--source", backend, *grad)[1] + "\n"


def test_show_says_which_part_a_backend_refuses(rlk: Rlk) -> None:
    where = ("--source", "cute", "--target", "gfx942")
    status, out, _ = rlk("show", "linear_policy_loss", *where)
    assert status == 0 and "cute on gfx942 lacks contractions" in out
    assert out.endswith(rlk("show", "policy_loss", *where)[1] + "\n")
    status, _, err = rlk("show", "optimal_token_baseline", "--source", "cute", "--grad")
    assert status == 2 and "has no gradient" in err  # neither part has one


def test_list_and_the_operators_agree_on_ids(rlk: Rlk) -> None:
    from rlk import ops

    _, out, _ = rlk("list", "--target", "gfx942")
    for name in ("rms_norm", "logp"):  # portable on both, so a CPU and gfx942 have one id
        block = next(text for text in out.split("\n\n") if text.startswith(f"{name}: "))
        assert getattr(ops, name).numerics_id("cpu") in block


def test_list_refuses_an_unknown_target(rlk: Rlk) -> None:
    status, out, err = rlk("list", "--target", "sm_13")
    assert status == 2 and out == "" and "sm_13" in err and "gfx942" in err


def test_show_describes_an_operator(rlk: Rlk) -> None:
    status, out, _ = rlk("show", "rms_norm")
    assert status == 0
    for pattern in (
        r"^rms_norm   specs/norm.py:\d+",
        r"^residual +F\[T, N\] +tensor, optional: given here +yes",
        r"^rstd +f32\[T\] +exact$",
        r"^T +run time +chunk 1, piece 64",
        r"^rms_norm_grad_2 +merge",
        r"^numerics id  [0-9a-f]{16}",
    ):
        assert re.search(pattern, out, re.MULTILINE), pattern


def test_show_of_a_gradient_prints_its_signature(rlk: Rlk) -> None:
    status, out, _ = rlk("show", "rms_norm", "--grad")
    assert status == 0 and out.startswith("rms_norm_grad ")
    for line in (
        r"weight +bf16\[N\] +saved input", r"rstd +f32\[T\] +saved output", r"d_y +bf16\[T, N\] +cotangent",
        r"d_weight +bf16\[N\] +exact", r"rms_norm_grad_1 +rows +tiles .*", r"numerics id +[0-9a-f]{16}",
    ):  # fmt: skip
        assert re.search(rf"^{line}$", out, re.M), line
    _, out, _ = rlk("show", "linear_logp", "--grad")
    assert re.search(r"^order +i64\[T\] +prepared$", out, re.M)
    assert re.search(r"^inv_temperature +f32(\[T\])? +\w+", out, re.M)
    status, out, _ = rlk("show", "rms_norm")
    assert out.startswith("rms_norm ") and "cotangent\n" in out  # the control: that of the operator


@pytest.mark.parametrize(
    "options", [("--ir",), ("--after", "trace"), ("--after", "mask"), ("--grad", "--ir")]
)
def test_show_prints_a_program_that_parses(rlk: Rlk, options: tuple[str, ...]) -> None:
    status, out, _ = rlk("show", "swiglu", *options)
    assert status == 0
    assert parse_program(out).name == ("swiglu_grad" if "--grad" in options else "swiglu")
    assert "# " in out and "specs/model.py:" in out


def test_show_takes_statics_dtypes_extents_and_inputs(rlk: Rlk) -> None:
    options = ("--static", "needs=logp,argmax", "--dtype", "F=f16", "--with", "mask,bias")
    _, out, _ = rlk("show", "logp", "--ir", *options)
    assert "in logits: f16[T, V]" in out and "in mask: bool[T]" in out
    assert "out argmax" in out and "inv_temperature" not in out
    _, out, _ = rlk("show", "logp", "--after", "specialize", "--extent", "V=50257")
    assert f"const bits={50257}" in out


def test_show_prints_generated_source(rlk: Rlk) -> None:
    status, out, _ = rlk("show", "logp", "--grad", "--source", "triton", "--target", "gfx942")
    assert status == 0 and '"""logp_grad on gfx942, written by rlk' in out
    compile(out, "logp_grad.py", "exec")


@pytest.mark.parametrize(("backend", "on"), [("triton", "sm_90a"), ("cute", "sm_90a")])
def test_shown_source_is_what_is_checked_in(backend: str, on: str, rlk: Rlk) -> None:
    """Of an operator whose pieces are side by side at these sizes."""
    status, out, _ = rlk("show", "linear_logp", "--source", backend, "--target", on)
    checked_in = (generated() / on.replace("_", "") / backend / "linear_logp.py").read_text()
    assert status == 0 and out == checked_in


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("nothing",), "operator 'nothing' is unknown"),
        (("rmsnorm",), "choose one of: rms_norm; rlk list has all"),
        (("logp", "--dtype", "F=f64"), "choose one of: bf16, f16, f32"),
        (("logp", "--dtype", "G=f32"), "dtype variable 'G' is unknown"),
        (("rms_norm", "--static", "profile=llama"), "choose one of: hf_llama, gemma, vllm"),
        (("rms_norm", "--static", "style=x"), "static 'style' is unknown"),
        (("logp", "--extent", "V=many"), "expected a positive number"),
        (("logp", "--extent", "W=3"), "axis 'W' is unknown"),
        (("logp", "--extent", "V"), "expected NAME=VALUE"),
        (("logp", "--with", "masks"), "optional input 'masks' is unknown"),
        (("logp", "--target", "h100"), "h100"),
        (("here.py:logp",), "expected a file that exists"),
    ],
)
def test_show_names_what_it_cannot_use(rlk: Rlk, options: tuple[str, ...], message: str) -> None:
    status, out, err = rlk("show", *options)
    assert status == 2 and out == "" and message in err


# --- check ---


def test_check_prints_one_line_for_each_law(rlk: Rlk, tmp_path: Path) -> None:
    path = tmp_path / "squares.py"
    path.write_text(SPEC)
    status, out, _ = rlk("check", f"{path}:squares", "--target", "sm_90a", "--law", "slope", "--law", "tiles")
    assert status == 0
    assert re.search(
        r"^squares +gradients agree with .* 1 +ok +11 slopes, largest relative error \S+$", out, re.M
    )
    assert re.search(
        r"^squares +bits do not depend on tiles +2 +ok +\d+ tilings, 0 elements differ$", out, re.M
    )
    assert "3 checks on sm_90a" in out and out.endswith("all ok\n")


def test_check_prints_which_backend_lowers_what(rlk: Rlk, tmp_path: Path) -> None:
    path = tmp_path / "squares.py"
    path.write_text(SPEC)
    laws = ("--law", "lowers", "--law", "simulated")
    status, _, err = rlk("check", f"{path}:squares", "--extent", "Q=64", *laws)
    assert status == 2 and "axis 'Q' is unknown" in err
    status, out, _ = rlk("check", f"{path}:squares", "--target", "sm_90a", "--extent", "N=256", *laws)
    assert status == 0
    for backend in ("triton", "cute", "tilelang"):
        assert re.search(rf"^squares +{backend} +sm_90a +gradient +all +yes$", out, re.M)
    assert re.search(r"^squares +source of .*: cute +4 +ok +4 runs, 0 elements differ$", out, re.M)
    assert "tilelang on sm_90a was not run: there is no simulator" in out


def test_check_says_why_no_backend_lowers_a_variant(rlk: Rlk, tmp_path: Path) -> None:
    path = tmp_path / "proj.py"
    path.write_text(
        "from rlk.lang import *\n"
        "T, N, K = Axis('T', dynamic=True), Axis('N'), Axis('K')\n"
        "@op()\n"
        "def proj(x: Tensor[bf16, T, K], w: Tensor[bf16, N, K]):\n"
        "    y = L.dot(x, w, over=K).to(bf16)\n"
        "    return L.out(z=L.dot(y, w, over=N))\n"
    )
    status, out, _ = rlk("check", str(path), "--target", "sm_90a", "--law", "lowers")
    assert status == 1
    assert re.search(
        r"^proj +triton +sm_90a +forward +all +no: .*/proj.py:6: .* computed in the same", out, re.M
    )
    assert 'instead: y = L.keep(y, "y") in the line before' in out
    laws = ("source", "compiles")
    status, out, _ = rlk("check", str(path), "--target", "sm_90a", *(f"--law={law}" for law in laws))
    assert status == 1 and out.count("FAILED proj (plain, forward on sm_90a)") == len(laws)
    assert out.count("LoweringError") == 1  # one cause, said once


def test_check_fails_on_a_wrong_gradient(rlk: Rlk, tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(SPEC.replace("2.0 * ctx.x", "2.1 * ctx.x"))
    status, out, err = rlk("check", str(path), "--law", "slope")
    assert status == 1
    assert "squares (plain): gradients agree with central differences: FAILED\n" in err
    assert "FAILED squares (plain): gradients agree with central differences" in out
    assert "by the vjp" in out and out.endswith("1 FAILED\n")


def test_operators_are_checked_side_by_side_as_one_after_the_other(rlk: Rlk, tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(SPEC.replace("2.0 * ctx.x", "2.1 * ctx.x"))
    told = [rlk("check", str(path), "swiglu", "--law", "slope", "--jobs", jobs) for jobs in "12"]
    first, second = (re.sub(r"in \d+ s", "", out) for _, out, _ in told)
    assert [status for status, *_ in told] == [1, 1] and first == second
    assert "FAILED squares" in first and re.search(r"^swiglu .* ok ", first, re.M)


def test_check_shows_a_located_error_of_the_spec(rlk: Rlk, tmp_path: Path) -> None:
    path = tmp_path / "unordered.py"
    path.write_text(SPEC.replace("tree=Tree.halving", "tree=None"))
    status, out, err = rlk("check", str(path))
    assert status == 2 and out == ""
    assert "unordered.py:14: float sum over N needs a fixed order" in err and "FLOAT_SUM_NEEDS_TREE" in err


def test_check_needs_an_operator(rlk: Rlk) -> None:
    status, _, err = rlk("check")
    assert status == 2 and "OP or --all is required" in err


def test_check_leaves_out_no_operator_that_is_not_there(rlk: Rlk) -> None:
    status, out, err = rlk("check", "--all", "--except", "smaple", "--law", "compiles")
    assert status == 2 and out == "" and "'smaple'" in err and "sample" in err


# --- gen ---


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `gen` write the kernels of two operators: `test_reference_sources.py` looks at those of all."""
    chosen = {name: operators()[name] for name in ("logp", "matmul")}
    monkeypatch.setattr(reference, "operators", lambda: chosen)


@pytest.mark.usefixtures("few")
def test_gen_writes_the_same_bytes_twice_and_sees_a_change(rlk: Rlk, tmp_path: Path) -> None:
    out_option = ("--out", str(tmp_path))
    status, out, _ = rlk("gen", *out_option)
    assert status == 0 and "sm90a/triton/logp.py" in out
    written = {path: path.read_bytes() for path in tmp_path.rglob("*.py")}
    assert len(written) > 4 and "sm90a/cute/matmul.py" in out
    _, out, _ = rlk("gen", *out_option)
    assert f"{len(written)} files in {tmp_path}: 0 written, 0 removed" in out
    assert rlk("gen", "--check", *out_option)[:2] == (0, f"{len(written)} files, 0 stale\n")
    stale = tmp_path / "sm90a" / "triton" / "logp.py"
    stale.write_text(stale.read_text().replace("numerics: ", "numerics: 0"))
    status, out, _ = rlk("gen", "--check", *out_option)
    assert status == 1 and "-numerics: 0" in out and out.endswith("1 stale; run: rlk gen\n")
    rlk("gen", *out_option)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.py")} == written


@pytest.mark.usefixtures("few")
def test_gen_removes_what_rlk_wrote_and_nothing_else(rlk: Rlk, tmp_path: Path) -> None:
    folder = tmp_path / "sm90a" / "triton"
    folder.mkdir(parents=True)
    mine, old = folder / "mine.py", folder / "old.py"
    mine.write_text("x = 1\n")
    old.write_text('"""old on sm_90a, written by rlk 0.0.1: do not edit.\n"""\n')
    status, out, _ = rlk("gen", "--check", "--out", str(tmp_path))
    assert status == 1 and "old.py: no operator emits this file" in out and "mine.py" not in out
    rlk("gen", "--out", str(tmp_path))
    assert mine.exists() and not old.exists()


# --- cache ---


def test_cache_lists_entries(rlk: Rlk, store: Store) -> None:
    status, out, _ = rlk("cache", "ls")
    assert status == 0
    assert re.search(r"^[0-9a-f]{12}  logp +triton +sm_90a +6 B +\d+ s ago$", out, re.MULTILINE)
    assert f"1 entries, 6 B in {store.root}" in out


def test_cache_shrinks_but_leaves_what_is_in_use(rlk: Rlk, store: Store) -> None:
    status, out, _ = rlk("cache", "gc", "--limit", "0")
    assert status == 0 and "evicted 0 entries" in out and "last minute stay" in out
    (entry,) = store.entries()
    os.utime(entry.path / "manifest.json", (1, 1))
    _, out, _ = rlk("cache", "gc", "--limit", "0")
    assert "evicted 1 entries (6 B); 0 left" in out and not store.entries()


def test_cache_finds_damage(rlk: Rlk, store: Store) -> None:
    status, out, _ = rlk("cache", "verify")
    assert status == 0 and "1 entries" in out and "all sound" in out
    (entry,) = store.entries()
    (entry.path / "module.py").write_text("y = 1\n")
    status, out, _ = rlk("cache", "verify")
    assert status == 1 and "damaged" in out and "sha256" in out and "quarantine" in out


@pytest.mark.parametrize(("text", "count"), [("0", 0), ("500M", 500 * 2**20), ("8GiB", 2**33), ("7 k", 7168)])
def test_sizes_are_read(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "-1", "5X", "1.5G", "G"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(LaunchError, match="such as 8G"):
        parse_size(text)


# --- doctor and its probes ---


def test_doctor_says_what_it_found_and_what_not(rlk: Rlk, store: Store) -> None:
    pytest.importorskip("triton")
    status, out, _ = rlk("doctor", "--device", "cpu")
    assert status == 0 and out.endswith("no problem found\n")
    for pattern in (r"torch +\d", r"cpu +the oracle", rf"place +{store.root}", r"a \* b \+ c +two roundings",
                    r"subnormals +kept", r"for sm_90a +two roundings", r"for gfx942 +two roundings",
                    r"GPU +not probed", r"exp2 +not probed"):  # fmt: skip
        assert re.search(pattern, out), pattern


def test_doctor_reports_fusion(rlk: Rlk, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(probes, "fuses", lambda place: True)
    status, out, _ = rlk("doctor", "--device", "cpu")
    assert status == 1 and "WRONG  the interpreter fuses a * b + c" in out and "1 problems" in out


def test_doctor_reports_an_interpreter_that_does_not_run(
    rlk: Rlk, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    from rlk.testing.simulators import interpreter_builder

    def changed(*_: Any) -> None:
        raise TypeError("create_masked_load() takes 6 arguments\nbut 7 were given")

    monkeypatch.setattr(interpreter_builder, "load", changed)
    status, out, err = rlk("doctor", "--device", "cpu")
    assert status == 1 and "Traceback" not in out + err and out.endswith("1 problems\n")
    assert "WRONG  kernels do not run on the interpreter: kernel multiply_add" in out
    assert re.search(r"a \* b \+ c +not probed", out) and re.search(r"for sm_90a +two roundings", out)


def test_doctor_refuses_a_device_that_is_not_there(rlk: Rlk) -> None:
    status, _, err = rlk("doctor", "--device", "cuda:99")
    assert status == 2 and "--device='cuda:99' is not allowed" in err and "one of cpu" in err


def stand_in(function: Callable[..., Any]) -> probes.Place:
    """A place whose every kernel is a NumPy function of its inputs."""

    def host(emitted: Any) -> Callable[..., None]:
        def launch(*args: Any) -> None:
            *inputs, out, count = args
            out[:] = function(*inputs)[:count]

        return launch

    return probes.Place("a stand-in", host, lambda x: np.array(x), lambda x: x)


def test_the_detectors_see_what_they_are_for() -> None:
    plain = stand_in(lambda a, b, c: a * b + c)
    fused = stand_in(lambda a, b, c: (a.astype(np.float64) * b + c).astype(np.float32))
    normal = np.float32(2.0**-126)
    flushing = stand_in(lambda a, b, c: np.where(abs(a * b + c) < normal, np.float32(0), a * b + c))
    assert not probes.fuses(plain) and not probes.flushes(plain) and not probes.numpy_flushes()
    assert probes.fuses(fused) and probes.flushes(flushing)


def test_compiled_text_is_judged() -> None:
    judged = probes.read_assembly
    assert judged("mul.rn.f32 a; add.rn.f32 b;") == probes.Assembly(False, False)
    assert judged("fma.rn.f32 a;").fuses and judged("mul.rn.ftz.f32 a;").flushes
    kept = ".amdhsa_float_denorm_mode_32 3\n"
    assert judged(kept + "v_mul_f32_e32 v1, v1") == probes.Assembly(False, False)
    assert judged(kept + "v_fmac_f32_e32 v1, v1").fuses and judged(kept + "v_pk_fma_f32 v[0:1]").fuses
    assert judged(".amdhsa_float_denorm_mode_32 0\n").flushes


def test_the_exp2_probe_counts_every_wrong_result() -> None:
    seen: list[int] = []
    right = probes.probe_exp2(stand_in(exp2_sm90), 10**6, seen.append)
    assert right.differing == 0 and right.first is None and right.compared == seen[-1] >= 10**6
    with np.errstate(all="ignore"):
        rounded = probes.probe_exp2(
            stand_in(lambda x: np.exp2(x.astype(np.float64)).astype(np.float32)), 10**6
        )
    assert rounded.differing > 1000 and rounded.first is not None


def test_the_interpreter_runs_the_probes() -> None:
    pytest.importorskip("triton")
    place = probes.interpreter()
    assert place is not None and not probes.fuses(place) and not probes.flushes(place)
    x = next(probes.arguments(1))
    assert (place.run(probes.EXPONENTIAL, x).view(np.int32) == exp2_sm90(x).view(np.int32)).mean() > 0.99


# --- demo ---


def test_demo_hands_over(rlk: Rlk, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    from rlk.demo import run

    given: list[Any] = []
    monkeypatch.setattr(run, "main", lambda arguments: given.append(arguments) or 0)
    assert rlk("demo", "--seed", "5")[0] == 0
    assert given[0].seed == 5


# --- text ---


HOSTILE = "logp\x1b[2J\r\n\ud800\u202e\x9b"
SHOWN = r"logp\x1b[2J\r\n\ud800\u202e\x9b"


def test_text_out_of_files_steers_no_terminal(rlk: Rlk, store: Store) -> None:
    key = CacheKey("other", "schedule", HOSTILE, "triton", "emitter", (("triton", "3.6.0"),), (), "abi")
    store.get_or_build(key, lambda folder: _write(folder / "module.py"), label=HOSTILE)
    status, out, _ = rlk("cache", "ls")
    assert status == 0 and f"{SHOWN}  triton   {SHOWN}" in out
    assert out.replace("\n", "").isprintable() and len(out.splitlines()) == 6


def test_errors_steer_no_terminal_either(rlk: Rlk) -> None:
    for arguments in (("show", HOSTILE), ("show", "logp", f"--static={HOSTILE}=1"), (HOSTILE,)):
        status, out, err = rlk(*arguments)
        assert status == 2 and out == "" and err.replace("\n", "").isprintable(), arguments


def test_what_an_encoding_lacks_is_escaped() -> None:
    held = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    print("40 \u00b5s \x1b[0m", file=Plain(held), flush=True)  # type: ignore[arg-type]
    held.seek(0)
    assert held.read() == "40 \\xb5s \\x1b[0m\n"


@pytest.mark.parametrize("command", [["list"], ["docs", "--help"], ["show", "logp"]])
def test_output_that_cannot_be_written_is_said_in_one_line(command: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "rlk.cli", *command],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    want = f"rlk {command[0]}: cannot write its output: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, want)


@pytest.mark.parametrize(("closed", "command", "status"), [(">&-", "--version", 0), ("2>&-", "lst", 2)])
def test_streams_may_be_closed(closed: str, command: str, status: int) -> None:
    line = f"{sys.executable} -m rlk.cli {command} {closed}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


@pytest.mark.parametrize("width", [40, 97, 300])
def test_progress_fits_the_terminal(width: int) -> None:
    """Both kinds, on a terminal of that width, whose lines would wrap where they are longer."""
    primary, secondary = os.openpty()
    fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    with open(secondary, "w") as terminal, pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "stderr", terminal)
        bar, ahead = Progress(2), AheadProgress(terminal, "compiled")
        for name in ("a name " * 30, "\x1b[2J"):
            bar.say(name)
            ahead.step(name)
        print("\r\x1b[Kend", end="", file=terminal, flush=True)
        said = ""
        while not said.endswith("end"):
            said += os.read(primary, 1 << 16).decode()
    os.close(primary)
    lines = said.split("\r\x1b[K")[1:-1]
    assert len(lines) == 4 and max(map(len, lines)) == min(width, 110) - 1
    assert all(line.isprintable() for line in lines)


def test_tables_align() -> None:
    text = table(("name", "size"), [("a", 1), ("longer", 100)], right=("size",))
    assert text.splitlines() == ["name    size", "------  ----", "a          1", "longer   100"]
    assert fields([("a", "x\ny"), ("long", 1)]) == "  a     x\n        y\n  long  1"
    assert (size(0), size(1536), size(3 * 2**30)) == ("0 B", "1.5 KiB", "3.0 GiB")


def test_progress_is_for_terminals_only(capsys: pytest.CaptureFixture[str]) -> None:
    bar = Progress(2)
    bar.say("work")
    assert capsys.readouterr().err == ""
    bar.live = True
    bar.step()
    bar.say("work")
    assert "[##########..........] 1/2 work" in capsys.readouterr().err
