"""Stubs for editors and type checkers: current, with the signatures of calls, and accepted by mypy."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import rlk
from rlk.cli import main
from rlk.ops import OPERATORS
from rlk.pages.stubs import MARK, PUBLIC, public_stub, stubs

ROOT = Path(rlk.__file__).resolve().parents[1]
MYPY = pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed")
SPEC = '''"""Two operators of another package."""

from __future__ import annotations

from rlk.lang import Axis, L, Needs, Outputs, Scalar, Static, Tensor, Tree, f32, op

T, N = Axis("T", dynamic=True), Axis("N")
SCALE = 2.0


@op(saves=("x",), returns={"y": "squashed", "total": "total"})
def squash(
    x: Tensor[f32, T, N],
    slope: Scalar[f32, 0.0:],
    shift: Tensor[f32, N] | None,
    kind: Static["one", "two"] = "one",
    needs: Needs["total"] = (),
) -> Outputs:
    """y = x * sigmoid(slope * x); a \\\\ in the docstring stays."""
    y = x * L.sigmoid(slope * x)
    total = L.sum(y, over=N, tree=Tree.halving) if "total" in needs else None
    return L.out(y=y if shift is None else y + shift, total=total)


@op()
def twice(x: Tensor[f32, T, N]) -> Outputs:
    """y = 2 x."""
    return L.out(y=x + x)
'''
RIGHT = """
import torch
import rlk
from rlk import ops
from squashing import SCALE, twice, squash

x = torch.randn(2, 8)
ops.swiglu(x, x)
rlk.ops.rms_norm(x, weight=x, profile="gemma", eps=1e-5)
rlk.explain(rlk.ops.swiglu, x, x)
ops.swiglu.numerics_id("cpu", math="portable")
tiers: dict[str, str] = ops.swiglu.tier("cpu")
ops.swiglu.explain(x, x)
ops.swiglu.reference(x, x)
ops.logp(x, x, needs=("entropy",)).entropy
ops.laws.squash(x, slope=1.0)
squash(x, slope=SCALE, shift=x, kind="two", needs=("total",))
squash.numerics_id("cpu")
twice(twice(x))
"""
WRONG = {
    "ops.swiglu(x, x, axis=1)": 'Unexpected keyword argument "axis"',
    "rlk.ops.swiglu(x)": 'Missing positional argument "up"',
    'ops.rms_norm(x, x, profile="llama")': '"profile"',
    "ops.swigl(x, x)": "not callable",
    'ops.swiglu.numeric_id("cpu")': 'no attribute "numeric_id"',
    'ops.swiglu.numerics_id("cpu", maths="sm90")': 'Unexpected keyword argument "maths"',
    "squash(x, slope=1.0, steep=True)": 'Unexpected keyword argument "steep"',
    "squash(x)": 'Missing named argument "slope"',
    'squash(x, slope=1.0, kind="three")': '"kind"',
    "twice.reference_of(x)": 'no attribute "reference_of"',
}


@pytest.mark.parametrize("path", stubs(), ids=lambda path: path.parent.name)
def test_the_stubs_of_rlk_are_current(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == stubs()[path], "run: rlk gen"


def test_the_stub_follows_a_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above: another signature is another stub."""

    def penalize(logits: object, penalties: object, *, twice: bool = False) -> object:
        """Return penalized logits."""

    monkeypatch.setattr(OPERATORS["penalize"], "fn", penalize)
    assert "twice: bool = False" in public_stub()


def test_the_stub_has_every_operator_with_its_parameters_and_docstring() -> None:
    module = ast.parse(PUBLIC.read_text(encoding="utf-8"))
    classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
    kinds = {
        node.target.id: node.annotation.id
        for node in module.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(node.annotation, ast.Name)
    }
    assert kinds.keys() == OPERATORS.keys()
    for name, operator in OPERATORS.items():
        (call,) = classes[kinds[name]].body
        assert isinstance(call, ast.FunctionDef) and call.name == "__call__"
        parameters = inspect.signature(operator.fn).parameters.values()
        assert [a.arg for a in call.args.args] == [
            "self",
            *(p.name for p in parameters if p.kind != p.KEYWORD_ONLY),
        ]
        assert [a.arg for a in call.args.kwonlyargs] == [
            p.name for p in parameters if p.kind == p.KEYWORD_ONLY
        ]
        assert ast.get_docstring(call) == (inspect.getdoc(operator.fn) or "").strip()


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Return the file of another package's operators, with its stub beside it."""
    path = tmp_path / "squashing.py"
    path.write_text(SPEC)
    assert main(["gen", f"{path}:squash", "--stubs"]) == 0
    return path


def test_gen_writes_a_stub_beside_another_packages_file(
    outside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stub = outside.with_suffix(".pyi")
    text = stub.read_text()
    assert text.startswith(MARK) and "class _Squash(Op):" in text and "class _Twice(Op):" in text
    assert main(["gen", f"{outside}:twice", "--stubs", "--check"]) == 0
    stub.write_text(text.replace("slope: float", "steep: float"))
    capsys.readouterr()
    assert main(["gen", f"{outside}:twice", "--stubs", "--check"]) == 1
    assert "+        slope: float" in capsys.readouterr().out
    assert main(["gen", f"{outside}:twice", "--stubs"]) == 0
    assert stub.read_text() == text


def test_gen_overwrites_no_stub_that_a_person_wrote(
    outside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stub = outside.with_suffix(".pyi")
    stub.write_text("x: int\n")
    assert main(["gen", f"{outside}:squash", "--stubs"]) == 2
    assert "rlk did not write" in capsys.readouterr().err and stub.read_text() == "x: int\n"


@pytest.mark.parametrize("given", [("swiglu", "--stubs"), ("--stubs",)], ids=["of rlk", "of nothing"])
def test_stubs_are_of_operators_of_other_packages(
    given: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["gen", *given]) == 2
    assert "rlk gen" in capsys.readouterr().err


@MYPY
def test_mypy_takes_right_calls_and_refuses_wrong_ones(outside: Path) -> None:
    """Other packages are not followed: their types are Any, and mypy needs seconds in place of a minute."""
    folder = outside.parent
    others = ",".join(
        f"{name}.*" for name in ("torch", "numpy", "numba", "llvmlite", "triton", "transformers")
    )
    (folder / "mypy.ini").write_text(f"[mypy]\n[mypy-{others}]\nfollow_imports = skip\n")
    head = RIGHT.partition("x = ")[0] + "x = torch.randn(2, 8)\n"
    (folder / "right.py").write_text(RIGHT)
    (folder / "wrong.py").write_text(head + "\n".join(WRONG) + "\n")
    ran = subprocess.run(
        [sys.executable, *"-m mypy --config-file mypy.ini --cache-dir cache right.py wrong.py".split()],
        cwd=folder, env={"MYPYPATH": str(ROOT)}, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    found = dict(re.findall(r"^(\w+\.pyi?:\d+): error: (.*)$", ran.stdout, re.M))
    first = head.count("\n") + 1
    wanted = {f"wrong.py:{first + i}": said for i, said in enumerate(WRONG.values())}
    assert found.keys() == wanted.keys(), ran.stdout + ran.stderr
    assert all(wanted[place] in said for place, said in found.items()), ran.stdout
