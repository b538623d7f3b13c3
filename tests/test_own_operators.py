"""Operators of other packages: written by `rlk new-op`, registered, called, compiled, shown, shipped."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import rlk
from rlk.aot.build import build
from rlk.aot.calls import observe
from rlk.aot.inspect import Held, signature
from rlk.aot.matrix import NO_MODEL, Matrix, read_matrix
from rlk.aot.progress import Progress
from rlk.aot.warm import Warmed, chosen_calls
from rlk.cli import main
from rlk.errors import Code, LaunchError, SpecError
from rlk.lang import (
    Axis,
    DTypeVar,
    L,
    Needs,
    Op,
    Outputs,
    Scalar,
    Static,
    Tensor,
    Tree,
    bf16,
    f16,
    f32,
    i32,
    op,
)
from rlk.lang.record import Edge
from rlk.lang.reserved import is_free
from rlk.pages.page import page
from rlk.pages.tried import page_failures
from rlk.runtime import operator, registry
from rlk.runtime.binding.invocation import Invocation, label_of
from rlk.runtime.call import library
from rlk.runtime.reference import number_of
from rlk.target.facts import target
from rlk.testing.cases import cases
from rlk.testing.examples import Example

NAMESPACE = "trial"
T = Axis("T", dynamic=True)
N = Axis("N")
V = Axis("V", chunk=4)
F, W = (DTypeVar(name, (bf16, f16, f32)) for name in "FW")
KINDS, EXTRA = ("double", "half"), ("rest", "unused")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A package with the operator `square`, as `rlk new-op` writes it, on the path."""
    out = tmp_path_factory.mktemp("new")
    assert main(["new-op", "square", "--namespace", NAMESPACE, "-o", str(out)]) == 0
    sys.path.insert(0, str(out))
    yield out
    sys.path.remove(str(out))


@pytest.fixture(scope="module")
def module(package: Path) -> Iterator[ModuleType]:
    found = importlib.import_module(f"{NAMESPACE}_ops.square")
    yield found
    registry.unregister(f"{NAMESPACE}.square")
    for name in [n for n in sys.modules if n.startswith(f"{NAMESPACE}_ops")]:
        del sys.modules[name]


@pytest.fixture
def square(module: ModuleType) -> Op:
    found = module.square
    assert isinstance(found, Op)
    return found


@pytest.fixture
def registered() -> Iterator[list[str]]:
    """Names of operators that a test registers, which it does not keep."""
    names: list[str] = []
    yield names
    for name in names:
        registry.unregister(name)


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.detach().view(torch.int32)


# --- the package that is written ---


def test_what_is_written_passes_its_own_tests(package: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(package / "tests")]
    done = subprocess.run(command, cwd=package, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "6 passed" in done.stdout, done.stdout + done.stderr


def test_an_operator_that_is_there_is_not_written_over(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (package / f"{NAMESPACE}_ops" / "square.py").read_text()
    assert main(["new-op", "square", "--namespace", NAMESPACE, "-o", str(package)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert (package / f"{NAMESPACE}_ops" / "square.py").read_text() == before


def test_a_second_operator_is_added_to_the_matrix(tmp_path: Path) -> None:
    for name in ("first", "second"):
        assert main(["new-op", name, "--namespace", "pair", "-o", str(tmp_path)]) == 0
    text = (tmp_path / "kernels.toml").read_text()
    assert [c.op for c in read_matrix(str(tmp_path / "kernels.toml")).calls] == ["pair.first", "pair.second"]
    assert text.count("# What `rlk aot build") == 1


@pytest.mark.parametrize(
    "given", [["Square"], ["class"], ["a b"], ["x", "--namespace", "rlk"], ["x", "--package", "A"]]
)
def test_bad_names_are_refused(given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new-op", *given, "-o", str(tmp_path / "out")]) == 2
    assert "rlk" in capsys.readouterr().err and not (tmp_path / "out" / "x.py").exists()


# --- calls ---


def test_an_operator_is_called_with_autograd(square: Op) -> None:
    x = torch.randn(3, 100, requires_grad=True)
    y = square(x, scale=0.5)
    y.sum().backward()
    assert x.grad is not None and x.grad.shape == x.shape
    exact = square.reference(x.double(), scale=0.5)
    torch.testing.assert_close(y.double(), exact, rtol=1e-6, atol=0)
    assert rlk.ops.trial.square is square and repr(rlk.ops.trial) == "<rlk.ops.trial: square>"


def test_compilers_see_a_registered_operator(square: Op) -> None:
    x = torch.randn(3, 100, requires_grad=True)
    compiled = torch.compile(
        lambda x: rlk.ops.trial.square(x, scale=0.5), fullgraph=True, backend="aot_eager"
    )
    assert torch.equal(bits(compiled(x)), bits(square(x, scale=0.5)))
    torch.library.opcheck(torch.ops.trial.square.default, (x, 0.5))


def test_a_compiler_is_told_to_register(registered: list[str]) -> None:
    @op()
    def twice(x: Tensor[f32, T]) -> Outputs:
        """2 x."""
        return L.out(y=x * 2.0)

    x = torch.ones(3)
    assert twice(x).tolist() == [2.0, 2.0, 2.0]
    said = r"twice is not registered(.|\n)*rlk\.register\(twice"
    for whole in (False, True):
        torch.compiler.reset()
        compiled = torch.compile(lambda x: twice(x), fullgraph=whole, backend="eager")
        with pytest.raises(Exception, match=said):
            compiled(x)
    with torch._subclasses.FakeTensorMode(), pytest.raises(LaunchError, match=said):
        twice(torch.ones(3))
    rlk.register(twice, namespace=NAMESPACE)
    registered.append(f"{NAMESPACE}.twice")
    torch.compiler.reset()
    assert compiled(x).tolist() == [2.0, 2.0, 2.0]


def test_questions_are_answered_by_the_operator(square: Op) -> None:
    x = torch.randn(3, 100).bfloat16()  # the dtype of the default variant
    assert square.tier("cpu") == {"y": "exact"}
    assert square.numerics_id("cpu") == square.explain(x).numerics_id == rlk.explain(square, x).numerics_id
    assert list(inspect.signature(square).parameters) == ["x", "scale"]
    said = inspect.getdoc(square.public) or ""
    assert "x: [..., N] bf16, f16 or f32." in said and "Differentiable in x." in said
    assert "scale: a number, at least 0.0." in said


@op(returns=("y", "rest"))
def several(
    x: Tensor[f32, T, N],
    weight: Tensor[f32, N] | None,
    count: Scalar[i32, 1:9],
    kind: Static[KINDS] = "double",
    needs: Needs[EXTRA] = (),
) -> Outputs:
    """y = 2 x or x / 2, times a weight; rest = x + count; hidden is not returned."""
    y = x * (2.0 if kind == "double" else 0.5)
    if weight is not None:
        y = y * weight
    return L.out(y=y, rest=x + count.to(f32) if "rest" in needs else None, hidden=-x)


def test_options_select_results_and_are_checked() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    assert isinstance(several(x, count=1), torch.Tensor)
    made = several(x, weight=torch.ones(3), count=2, kind="half", needs=("rest",))
    assert made._fields == ("y", "rest") and torch.equal(made.rest, x + 2) and torch.equal(made.y, x / 2)
    refused: dict[str, Any] = {
        "count=0": lambda: several(x, count=0),
        "count=10": lambda: several(x, count=10),
        "count must be a int": lambda: several(x, count=1.5),
        "kind='third'": lambda: several(x, count=1, kind="third"),
        "needs=": lambda: several(x, count=1, needs=("other",)),
        "x must be a torch.Tensor": lambda: several([1.0], count=1),
        "x has dtype": lambda: several(x.double(), count=1),
        "N = 2": lambda: several(x, weight=torch.ones(2), count=1),
    }
    for said, call in refused.items():
        with pytest.raises(LaunchError, match=said.replace("[", r"\[")):
            call()
    for call in (lambda: several(x), lambda: several(), lambda: several(x, 3, count=1)):
        with pytest.raises(TypeError, match="several()"):
            call()


def test_a_misnamed_cotangent_is_an_error_of_the_first_call() -> None:
    @op(saves=("x",))
    def tripled(x: Tensor[f32, T]) -> Outputs:
        """3 x."""
        return L.out(y=x * 3.0)

    @tripled.vjp("x")
    def tripled_grad(ctx: Any, dy: Tensor[f32, T]) -> Outputs:
        return L.out(d_x=dy * 3.0)

    for use in (lambda: tripled(torch.ones(3)), lambda: rlk.register(tripled, namespace="trial4")):
        with pytest.raises(SpecError, match="takes dy, which is no cotangent"):
            use()


def test_an_operator_whose_registration_failed_is_registered_once_mended(registered: list[str]) -> None:
    def tripled(cotangent: str) -> Op:
        @op(name="tripled", saves=("x",))
        def made(x: Tensor[f32, T]) -> Outputs:
            """3 x."""
            return L.out(y=x * 3.0)

        scope: dict[str, Any] = {"__name__": __name__, "Tensor": Tensor, "f32": f32, "T": T, "L": L}
        exec(f"def grad(ctx, {cotangent}: Tensor[f32, T]): return L.out(d_x={cotangent} * 3.0)", scope)
        made.vjp("x")(scope["grad"])
        return made

    with pytest.raises(SpecError):
        rlk.register(tripled("dy"), namespace="trial7")
    assert not library.defined("trial7", "tripled")
    rlk.register(tripled("d_y"), namespace="trial7")
    registered.append("trial7.tripled")
    assert rlk.ops.trial7.tripled(torch.ones(1)).tolist() == [3.0]


def test_a_first_call_in_a_compiler_says_to_register() -> None:
    @op()
    def quartered(x: Tensor[f32, T]) -> Outputs:
        """x / 4."""
        return L.out(y=x * 0.25)

    for whole in (True, False):
        torch.compiler.reset()
        with pytest.raises(Exception, match="quartered is not registered"):
            torch.compile(lambda x: quartered(x), fullgraph=whole, backend="eager")(torch.ones(3))
    assert quartered(torch.ones(1)).tolist() == [0.25]


def test_an_axis_without_elements_is_refused_where_results_have_some() -> None:
    @op()
    def shifted(x: Tensor[f32, T, N], scale: Scalar[f32]) -> Outputs:
        """scale + sum of x."""
        return L.out(y=scale + L.sum(x, over=N, tree=Tree.halving))

    with pytest.raises(LaunchError, match=r"x.shape\[-1\]=0"):
        shifted(torch.ones(2, 0), scale=5.0)
    assert shifted(torch.ones(0, 3), scale=5.0).shape == (0,)
    assert shifted(torch.ones(2, 1), scale=5.0).tolist() == [6.0, 6.0]


def test_the_float64_form_gets_float64(square: Op) -> None:
    assert square.reference(torch.ones(2, 3)).dtype == torch.float64


def test_each_result_of_needs_is_a_case_of_its_own() -> None:
    """So that its source is run and compiled too; a static that chooses a formula is tried less."""
    made = cases(several, Example(lambda rng: {"count": 3}))
    needs = {case.label: case for case in made if case.label.startswith("needs=")}
    assert {dict(c.variant.statics)["needs"] for c in needs.values()} == {("rest",), ("unused",), EXTRA}
    assert not any(c.static for c in needs.values())
    assert [c.static for c in made if c.label == "kind=half"] == [True]


def test_a_page_says_what_a_call_does_not_return(registered: list[str]) -> None:
    rlk.register(several, namespace="trial6", extents={"N": 64})
    registered.append("trial6.several")
    assert "not returned by a call: `hidden`." in page("trial6.several", ())


# --- names ---


def test_names_do_not_collide(square: Op, registered: list[str]) -> None:
    def other() -> Op:
        @op(name="square")
        def another(x: Tensor[f32, T]) -> Outputs:
            """x."""
            return L.out(y=x * 1.0)

        return another

    for made, namespace, code in (
        (other(), NAMESPACE, Code.NAME_TAKEN),  # of another file
        (other(), "rlk", Code.NAME_TAKEN),
        (square, "elsewhere", Code.NAME_TAKEN),  # one operator, one name
        (other(), "Not-a-name", Code.ARG_VALUE),
        (other(), "class", Code.ARG_VALUE),
        (other(), "aten", Code.NAME_TAKEN),  # torch's
        (other(), "logp", Code.NAME_TAKEN),  # rlk.ops.logp is an operator
        (other(), "losses", Code.NAME_TAKEN),  # and this a module
    ):
        with pytest.raises(LaunchError) as caught:
            rlk.register(made, namespace=namespace)
        assert caught.value.code is code
    assert rlk.ops.trial.square is square and square(torch.ones(1, 4)).tolist() == [1.0]
    found = rlk.register(other(), namespace="trial2")  # the same name in a namespace of its own
    registered.append("trial2.square")
    assert label_of(found) == "trial2.square" and label_of(square) == "trial.square"
    assert torch.equal(rlk.ops.trial2.square(torch.ones(3)), torch.ones(3))


WORDY = """
def {name}(
    x: Tensor[f32, T], {tensor}: Tensor[f32, T], {scalar}: Scalar[f32] = 2.0, {static}: Static["a", "b"] = "a"
) -> Outputs:
    made_of = (x + {tensor}) * {scalar}
    return L.out(y=-made_of if {static} == "b" else made_of)
"""
ROLES = {"name": "wordy", "tensor": "other", "scalar": "scale", "static": "kind"}
IN_THE_TEXT = (*operator._WORDS, "self", "args", "options", "none", "torch", "Literal", "math")


@pytest.mark.parametrize("word", IN_THE_TEXT)
def test_parameters_and_operators_may_have_the_words_of_the_callables_text(word: str) -> None:
    for role in ROLES:
        if role != "static" and not is_free(word):
            continue  # refused: generated kernels use it, which have no statics
        named, scope = ROLES | {role: word}, dict(globals())
        exec(compile(WORDY.format(**named), "spec_of_words.py", "exec"), scope)
        made, x = op()(scope[named["name"]]), torch.ones(2)
        given = {named["tensor"]: x, named["scalar"]: 3.0, named["static"]: "b"}
        assert made(x, **given).tolist() == [-6.0, -6.0], role
        assert str(rlk.explain(made, x, **given)) == str(made.explain(x, **given))
        with pytest.raises(LaunchError, match=f"wordy: {named['static']}='c'" if role != "name" else "='c'"):
            made(x, x, **{named["static"]: "c"})


def test_an_option_that_a_call_has_anyway_is_refused() -> None:
    @op()
    def spread(x: Tensor[f32, T, V], math: Static[1, 2] = 1) -> Outputs:
        """The log of the sum of e^x."""
        soft = L.softmax_sum()
        for v in L.stream(V):
            soft.absorb(x[v])
        return L.out(lse=soft.lse())

    with pytest.raises(SpecError, match="choose another, such as math_value"):
        spread(torch.ones(2, 4))


def test_a_name_that_torch_has_is_refused() -> None:
    @op(name="name")
    def named(x: Tensor[f32, T]) -> Outputs:
        """x."""
        return L.out(y=x * 1.0)

    with pytest.raises(LaunchError, match=r"torch\.ops\.trial3\.name is torch's own"):
        rlk.register(named, namespace="trial3")
    theirs = torch.library.Library("trial3", "FRAGMENT")
    theirs.define("square(Tensor x) -> Tensor")

    @op(name="square")
    def another(x: Tensor[f32, T]) -> Outputs:
        """x."""
        return L.out(y=x * 1.0)

    with pytest.raises(LaunchError, match=r"torch\.ops\.trial3\.square is another package's"):
        rlk.register(another, namespace="trial3")
    assert another.calls.namespace == "" and "trial3.square" not in registry.known()
    theirs._destroy()


def test_a_module_that_runs_again_replaces_its_operators(module: ModuleType) -> None:
    old = module.square
    importlib.reload(module)
    assert module.square is not old and rlk.ops.trial.square is module.square
    x = torch.randn(2, 5)
    compiled = torch.compile(lambda x: module.square(x), fullgraph=True, backend="aot_eager")
    assert torch.equal(bits(compiled(x)), bits(module.square(x)))
    assert library.registered("trial.square") is module.square


def test_unknown_names_list_those_there_are(
    square: Op, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(LaunchError, match="operator of trial 'cube' is unknown\n    choose one of: square"):
        _ = rlk.ops.trial.cube
    with pytest.raises(LaunchError, match="operator 'trails' is unknown"):
        _ = rlk.ops.trails
    with pytest.raises(LaunchError, match="operator 'trial.cube' is unknown\n(.|\n)*trial.square"):
        registry.find("trial.cube")
    for command in (["check"], ["docs", "-o", str(tmp_path)]):
        assert main([command[0], "trails.square", *command[1:]]) == 2
        said = capsys.readouterr().err
        assert "no installed package has operators of the namespace 'trails'" in said
        assert "path/to/spec.py:square" in said and "logp" not in said


# --- what a registration says ---


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown axis": ({"extents": {"M": 3}}, "name in extents= 'M' is unknown(.|\n)*N, T"),
    "an extent of none": ({"extents": {"N": 0}}, r"extents\['N'\]=0"),
    "extents of another kind": ({"extents": [3]}, "extents must be a dict"),
    "an unknown input": ({"present": ("mask",)}, "name in present= 'mask' is unknown(.|\n)*weight"),
    "an input that is required": ({"present": ("x",)}, "name in present= 'x' is unknown"),
    "one text for several": ({"present": "weight"}, "present must be a list"),
    "an unknown static": ({"statics": {"q": 1}}, "name in statics= 'q' is unknown(.|\n)*kind, needs"),
    "an unknown value": ({"statics": {"kind": "third"}}, r"statics\['kind'\]='third'"),
    "an unknown need": ({"statics": {"needs": ("more",)}}, r"statics\['needs'\]"),
    "a reference that is no function": ({"reference": 3}, "reference must be a function"),
    "inputs that are no function": ({"inputs": {}}, "inputs must be a function"),
    "an edge of two texts": ({"edges": [("a", "b")]}, "three texts"),
    "usage that is no text": ({"usage": 3}, "usage must be a str"),
}


@pytest.mark.parametrize("given", REFUSED)
def test_a_registration_names_what_the_operator_has(given: str) -> None:
    arguments, said = REFUSED[given]
    with pytest.raises(LaunchError, match=said):
        rlk.register(several, namespace="trial4", **arguments)
    assert several.calls.namespace == "" and "trial4.several" not in registry.known()


def test_what_an_operator_has_is_registered(registered: list[str]) -> None:
    """The control of the law above."""
    rlk.register(
        several, namespace="trial4", extents={"N": 64, "T": 3}, present=["weight"],
        statics={"kind": "half", "needs": ("rest",)}, reference=several.fn, edges=[("a", "b", "True")],
    )  # fmt: skip
    registered.append("trial4.several")
    assert several.record.present == ("weight",)


def test_only_operators_are_registered() -> None:
    with pytest.raises(LaunchError, match="op must be a operator, a function under @op"):
        rlk.register(test_only_operators_are_registered, namespace="trial4")  # type: ignore[arg-type]


def test_a_keyword_is_said_to_be_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LaunchError, match="no keyword of Python"):
        rlk.register(several, namespace="lambda")
    assert main(["new-op", "lambda"]) == 2 and "no keyword of Python" in capsys.readouterr().err
    with pytest.raises(LaunchError, match="digits and _$|digits and _ "):
        rlk.register(several, namespace="Lambda")


# --- entry points ---


def test_entry_points_register_what_a_module_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registered: list[str]
) -> None:
    (tmp_path / "plain_ops.py").write_text(
        "from rlk.lang import Axis, L, Outputs, Tensor, f32, op\n"
        "T = Axis('T', dynamic=True)\n\n@op()\n"
        "def thrice(x: Tensor[f32, T]) -> Outputs:\n    '''3 x.'''\n    return L.out(y=x * 3.0)\n"
    )
    register = (
        "import rlk\nfrom plain_ops import T, Tensor, f32, L, op\n\n@op()\n"
        "def half(x: Tensor[f32, T]):\n    '''x.'''\n    return L.out(y=x * 0.5)\n"
        "rlk.register(half, namespace='broken')\n"
    )
    (tmp_path / "broken_ops.py").write_text(register + "raise RuntimeError('half installed')\n")
    (tmp_path / "hidden_ops").mkdir()  # a folder without __init__.py hides the package that is installed
    monkeypatch.syspath_prepend(str(tmp_path))
    points = [
        metadata.EntryPoint("broken", "broken_ops", registry.GROUP),
        metadata.EntryPoint("hidden", "hidden_ops", registry.GROUP),
        metadata.EntryPoint("plain", "plain_ops", registry.GROUP),
    ]
    monkeypatch.setattr(metadata, "entry_points", lambda group: [p for p in points if p.group == group])
    registry.load_entry_points.cache_clear()
    with (
        pytest.warns(UserWarning, match="broken_ops.*half installed"),
        pytest.warns(UserWarning, match="hidden_ops registers none"),
    ):
        assert rlk.ops.plain.thrice(torch.ones(2)).tolist() == [3.0, 3.0]
    assert "broken.half" not in registry.known()  # nothing of a package that is not whole
    registered.append("plain.thrice")
    assert registry.find("plain.thrice")[0] is rlk.ops.plain.thrice
    monkeypatch.undo()
    registry.load_entry_points.cache_clear()


# --- commands ---


def test_commands_know_registered_operators(
    square: Op, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", "trial.square"]) == 0
    assert "trial.square" in capsys.readouterr().out
    assert main(["gen", "trial.square", "--out", str(tmp_path / "kernels")]) == 0
    written = {p.relative_to(tmp_path / "kernels").as_posix() for p in (tmp_path / "kernels").rglob("*.py")}
    assert {"sm90a/triton/square.py", "sm90a/cute/square_grad.py", "gfx942/tilelang/square.py"} <= written
    assert main(["gen", "trial.square", "--check", "--out", str(tmp_path / "kernels")]) == 0
    assert main(["gen", "trial.square"]) == 2  # where?
    capsys.readouterr()
    assert main(["list"]) == 0
    assert "trial.square: y = scale * mean(x^2)" in capsys.readouterr().out


def test_a_list_is_of_the_named_operators(square: Op, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "trial.square", "linear_policy_loss"]) == 0
    said = capsys.readouterr().out
    assert "trial.square: y = scale" in said and "linear_policy_loss: " in said and "\nrms_norm: " not in said
    assert main(["list", "trial.squares"]) == 2 and "'trial.squares' is unknown" in capsys.readouterr().err


def test_a_page_is_written_of_a_file_that_registers(
    square: Op, tmp_path: Path, registered: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        "from rlk.lang import Axis, L, Outputs, Tensor, f32, op\n"
        "T = Axis('T', dynamic=True)\n\n@op()\n"
        "def thrice(x: Tensor[f32, T]) -> Outputs:\n    '''3 x.'''\n    return L.out(y=x * 3.0)\n"
    )
    (tmp_path / "plain.py").write_text(text)
    (tmp_path / "said.py").write_text(text + "import rlk\nrlk.register(thrice, namespace='trial5')\n")
    assert main(["docs", f"{tmp_path}/plain.py:thrice", "-o", str(tmp_path)]) == 2
    assert "thrice is not registered" in capsys.readouterr().err
    registered.append("trial5.thrice")
    assert main(["docs", f"{tmp_path}/said.py:thrice", "-o", str(tmp_path)]) == 0
    assert (tmp_path / "trial5.thrice.md").read_text().startswith("# trial5.thrice")


def test_a_page_is_written_and_tried(square: Op, tmp_path: Path) -> None:
    assert main(["docs", "trial.square", "-o", str(tmp_path)]) == 0
    text = (tmp_path / "trial.square.md").read_text()
    assert text == page("trial.square") and "rlk.ops.trial.square(x, scale=0.5)" in text
    assert page_failures(square.public, square.record) == (5, [])
    wrong = replace(square.record, edges=(Edge("wrong", "is", "f(x).sum() == 7"),))
    assert len(page_failures(square.public, wrong)[1]) == 1
    assert "raises LaunchError" in page_failures(square.public, replace(wrong, usage="f(1)"))[1][0]


# --- wheels ---


def planned(folder: Path, text: str) -> list[tuple[Invocation, dict[str, torch.Size]]]:
    (folder / "m.toml").write_text(text)
    found: list[tuple[Invocation, dict[str, torch.Size]]] = []
    observe(
        read_matrix(str(folder / "m.toml")),
        lambda invocation, tensors: found.append((invocation, {n: t.shape for n, t in tensors.items()})),
    )
    return found


def test_a_matrix_calls_registered_operators(square: Op, tmp_path: Path) -> None:
    call = '[[call]]\nop = "trial.square"\nrows = [8191]\ndtypes = ["bf16"]\nbackward = true\n'
    made = planned(tmp_path, call)
    assert [label_of(invocation.spec) for invocation, _ in made] == ["trial.square", "trial.square_grad"]
    assert made[0][1]["x"] == (8191, 4096)  # N is that of the registration
    made = planned(tmp_path, call + "sizes = { N = 640 }\noptions = [{ scale = 0.5 }]\n")
    assert made[0][1]["x"] == (8191, 640)
    model = '[[model]]\nname = "qwen3-8b"\n'
    made = planned(tmp_path, model + call + 'sizes = { N = "intermediate" }\n')
    assert made[0][1]["x"] == (8191, 12288)


def test_scalars_of_a_matrix_are_within_their_ranges(registered: list[str], tmp_path: Path) -> None:
    """Also where 1 is not: such a call was refused by the operator."""

    @op()
    def limited(
        x: Tensor[f32, T, N], a: Scalar[f32, 2.0:4.0], b: Scalar[f32, -1.0:0.5], d: Scalar[i32, 3:]
    ) -> Outputs:
        return L.out(y=x.to(f32) * a * b * d.to(f32))

    rlk.register(limited, namespace=NAMESPACE, extents={"N": 64})
    registered.append(f"{NAMESPACE}.limited")
    found = planned(tmp_path, f'[[call]]\nop = "{NAMESPACE}.limited"\nrows = [16]\n')
    assert [shapes["x"] for _, shapes in found] == [(16, 64)]
    assert [number_of(formal) for formal in limited.formals[1:]] == [2.0, 0.5, 3]
    with pytest.raises(LaunchError, match=r"a=1\.0"):  # the control: 1 is outside
        limited(torch.ones(2, 3), a=1.0, b=0.5, d=3)


def test_a_matrix_gives_each_dtype_variable_its_own(registered: list[str], tmp_path: Path) -> None:
    @op()
    def scaled(x: Tensor[F, T, N], w: Tensor[W, N]) -> Outputs:
        return L.out(y=(x.to(f32) * w.to(f32)).to(x.dtype))

    name = f"{NAMESPACE}.scaled"
    rlk.register(scaled, namespace=NAMESPACE, extents={"N": 64})
    registered.append(name)

    def dtypes(given: str) -> list[dict[str, str]]:
        made = planned(tmp_path, f'[[call]]\nop = "{name}"\nrows = [16]\ndtypes = {given}\n')
        return [{n: str(d) for n, d in invocation.variant.dtypes} for invocation, _ in made]

    assert dtypes('["f16"]') == [{"F": "f16", "W": "f16"}]  # the control: one for all
    both = {"F": "bf16", "W": "f32"}  # of two variables
    assert dtypes('["f32", { F = "bf16", W = "f32" }]') == [{"F": "f32", "W": "f32"}, both]
    assert dtypes('[{ W = "f32" }]') == [both]  # the first choice of others
    unlike = {'{ G = "f32" }': "'G = f32'(.|\n)*F = bf16 or", '{ F = "i32" }': "F = i32", "{}": "tables"}
    for wrong, said in unlike.items():
        with pytest.raises(LaunchError, match=f"dtypes(.|\n)*{said}"):
            dtypes(f"[{wrong}]")
    text = f'[[call]]\nop = "{name}"\nrows = [16]\ndtypes = ["f32", {{ F = "f16" }}]\n'
    (tmp_path / "m.toml").write_text(text)
    calls = read_matrix(str(tmp_path / "m.toml")).calls
    assert chosen_calls(calls, "bf16", None, None)[0].dtypes == ("bf16", {"F": "f16"})
    with pytest.raises(LaunchError, match="swiglu: dtypes"):
        planned(tmp_path, '[[model]]\nname = "qwen3-8b"\n' + text.replace(name, "swiglu"))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('sizes = { N = "wide" }', "the size of N"),
        ("options = [{ scales = 1.0 }]", "options"),
        ("sizes = { N = 0 }", "sizes"),
        ("sizes = { M = 3 }", "sizes='M'(.|\n)*axes of its tensors: N, T"),
        ('sizes = { N = "vocab" }', r"no \[\[model\]\] whose vocab"),
    ],
)
def test_wrong_matrices_name_what_is_wrong(square: Op, tmp_path: Path, more: str, said: str) -> None:
    call = f'[[call]]\nop = "trial.square"\nrows = [16]\n{more}\n'
    with pytest.raises(LaunchError, match=said):
        planned(tmp_path, call)
    with pytest.raises(LaunchError, match="rows = a list of whole numbers") as caught:
        planned(tmp_path, '[[call]]\nop = "trial.square"\n')
    assert "__init__" not in str(caught.value) and "which it lacks" in str(caught.value)
    with pytest.raises(LaunchError, match=r"op='trial\.cube'"):
        planned(tmp_path, '[[call]]\nop = "trial.cube"\nrows = [16]\n')


def test_wheels_of_others_have_names_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("rlk_mine", "Mine", "a-b"):
        assert main(["aot", "build", "common", "--target", "sm_90a", "--name", name]) == 2
        assert "--name" in capsys.readouterr().err


def test_a_wheel_of_other_operators_is_not_named_as_rlks(
    square: Op, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m.toml").write_text('[[call]]\nop = "trial.square"\nrows = [16]\n')
    assert main(["aot", "build", str(tmp_path / "m.toml"), "--target", "sm_90a", "-o", str(tmp_path)]) == 2
    assert "--name" in (said := capsys.readouterr().err) and "trial.square" in said
    matrix, pairs = read_matrix(str(tmp_path / "m.toml")), [(target("sm_90a"), "triton")]
    for name, wanted in ((None, "trial.square, an operator"), ("rlk_aot", "not begin with rlk")):
        with pytest.raises(LaunchError, match=wanted):
            build(matrix, pairs, tmp_path, Progress(sys.stderr, ""), name)
    assert not list(tmp_path.glob("*.whl"))


def test_a_store_is_warmed_without_a_model(
    square: Op, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Matrix] = []

    def warm(matrix: Matrix, *_: object) -> Warmed:
        asked.append(matrix)
        return Warmed(2, 0, 2, ())

    monkeypatch.setattr("rlk.aot.warm.warm", warm)
    (tmp_path / "m.toml").write_text('[[call]]\nop = "trial.square"\nrows = [16]\ndtypes = ["f32"]\n')
    assert main(["warmup", "--matrix", str(tmp_path / "m.toml"), "--target", "sm_90a"]) == 0
    assert asked[0].models == (NO_MODEL,) and asked[0].calls[0].dtypes == ("f32",)
    assert capsys.readouterr().out.startswith(f"{tmp_path}/m.toml on sm_90a: 2 kernels")
    (tmp_path / "m.toml").write_text('[[model]]\nname = "qwen3-8b"\n[[call]]\nop = "logp"\nrows = [16]\n')
    assert main(["warmup", "--matrix", str(tmp_path / "m.toml"), "--target", "sm_90a", "--tp", "2"]) == 0
    assert [(m.name, m.tp) for m in asked[1].models] == [("qwen3-8b", (2,))]
    assert main(["warmup", "--target", "sm_90a"]) == 2 and len(asked) == 2
    assert "--model-config is required" in capsys.readouterr().err


def test_entries_of_the_same_sizes_say_what_they_differ_in() -> None:
    def held(divisible: list[str], schedule: str = "a", what: str = "my.f N=4; f32") -> Held:
        return Held({"op": "my.f", "what": what, "divisible": divisible, "schedules": [schedule]}, 1)

    pair = [held(["T", "x"]), held(["x"]), held([], what="my.f N=8; f32")]
    assert [signature(h, pair) for h in pair] == [
        "N=4; f32; multiples of 16: T, x", "N=4; f32; multiples of 16: x", "N=8; f32",
    ]  # fmt: skip
    pair = [held([], "a"), held([], "b")]
    assert [signature(h, pair) for h in pair] == ["N=4; f32; schedule: a", "N=4; f32; schedule: b"]
