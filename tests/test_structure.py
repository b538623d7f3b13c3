"""The repository keeps its own rules: directions, sizes, templates, names; and each rule can fail."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import lints
import pytest
from lints import Finding, name_of, python_files


@pytest.fixture(scope="module", autouse=True)
def trees() -> Iterator[None]:
    """Forget the trees of all sources afterwards: they are some hundred megabytes."""
    yield
    lints.parsed.cache_clear()


def report(findings: Iterable[Finding]) -> str:
    return "\n".join(str(finding) for finding in findings)


def check(rule: Callable[[str, str], list[Finding]], files: Iterable[Path]) -> None:
    files = list(files)
    assert files, "no files to check"
    findings = [f for path in files for f in rule(name_of(path), path.read_text(encoding="utf-8"))]
    assert not findings, "\n" + report(findings)


def templates() -> list[Path]:
    return sorted(path for path in (lints.ROOT / "templates").rglob("*") if path.suffix in (".j2", ".jinja"))


def test_imports_point_down() -> None:
    check(lints.import_direction, python_files("rlk"))


def test_no_modules_import_each_other() -> None:
    sources = {name_of(path): path.read_text(encoding="utf-8") for path in python_files("rlk")}
    findings = lints.import_cycles(sources)
    assert not findings, report(findings)


def sources(*folders: str) -> dict[str, str]:
    return {name_of(path): path.read_text(encoding="utf-8") for path in python_files(*folders)}


def test_every_name_is_used() -> None:
    findings = lints.unused_names(sources("rlk"), sources("tests", "tools", "benchmarks", "examples"))
    assert not findings, report(findings)


def test_every_error_code_is_raised() -> None:
    findings = lints.unraised_codes(sources("rlk")["rlk/errors.py"], sources("rlk"))
    assert not findings, report(findings)


def test_files_are_short() -> None:
    check(lints.file_size, [*python_files("rlk", "tests", "tools", "benchmarks", "examples"), *templates()])


def test_functions_are_short() -> None:
    check(lints.function_size, python_files("rlk"))


def test_modules_say_what_they_decide() -> None:
    check(lints.module_docstring, python_files("rlk", "tests", "tools", "benchmarks", "examples"))


def test_only_env_reads_the_environment() -> None:
    check(lints.environment_use, python_files("rlk"))


def test_templates_punctuate() -> None:
    check(lints.template_rules, templates())


def test_lowerings_know_no_operator() -> None:
    specs = [path.read_text(encoding="utf-8") for path in python_files("rlk/specs")]
    operators = lints.operator_names(specs)
    files = [*python_files("rlk/lower"), *templates()]
    check(lambda path, source: lints.operator_mentions(path, source, operators), files)


def test_emitted_text_is_not_read_again() -> None:
    check(lints.text_reads, python_files("rlk/lower"))


def test_repository_is_small() -> None:
    findings = lints.repository_size(lints.tracked_sizes(lints.ROOT))
    assert not findings, report(findings)


def test_words_are_the_fields() -> None:
    check(lints.retired_words, lints.texts())


def test_docstrings_are_no_indirect_questions() -> None:
    check(lints.indirect_docstrings, python_files("rlk", "tests", "tools", "benchmarks", "examples"))


def test_backends_are_asked_and_not_told_apart() -> None:
    check(lints.backend_names, lints.python_files("rlk"))


def test_what_compiles_and_launches_kernels_imports_no_simulator() -> None:
    check(lints.testing_imports, lints.python_files("rlk"))


# --- each rule finds what it is for ---

WRONG_IMPORTS = {
    "upward": ("rlk/ir/nodes.py", "from rlk.lang.op import op"),
    "upward, inside a function": ("rlk/lower/common/x.py", "def f():\n    import rlk.runtime.kernels.loader"),
    "upward, by a string": ("rlk/cache/store.py", "import importlib\nimportlib.import_module('rlk.runtime')"),
    "sideways": ("rlk/passes/pipeline.py", "from rlk.interp import run"),
    "sideways through the root": ("rlk/passes/pipeline.py", "from rlk import interp"),
    "the root": ("rlk/lower/common/emit.py", "import rlk"),
    "runtime to the tuner": ("rlk/runtime/call/dispatch.py", "from rlk.tune.measure import alone"),
    "runtime to the checks": ("rlk/runtime/kernels/loader.py", "from rlk.testing import check"),
    "testing's tools to runtime": ("rlk/testing/bits.py", "from rlk.runtime.kernels import loader"),
    "testing's tools to its checks": (
        "rlk/testing/simulators/interpreter.py",
        "from rlk.testing.check import laws",
    ),
    "names of the root": ("rlk/lower/common/emit.py", "from rlk import Layout"),
    "a prelude": ("rlk/lower/cute/emit.py", "from rlk.lower.cute import prelude"),
    "a prelude of one vendor": ("rlk/runtime/cute.py", "import rlk.lower.tilelang.prelude_amd"),
    "a lowering in a prelude": ("rlk/lower/cute/prelude.py", "from rlk.lower.cute import text"),
    "torch in a prelude": ("rlk/lower/cute/prelude.py", "import torch"),
    "relative": ("rlk/ir/nodes.py", "from . import dims"),
    "torch in a lowering": ("rlk/lower/triton/emit.py", "import torch"),
    "torch in the cache": ("rlk/cache/store.py", "def f():\n    from torch import nn"),
    "torch in a spec": ("rlk/specs/norm.py", "import torch.nn"),
    "triton in a lowering": ("rlk/lower/triton/emit.py", "import triton.language as tl"),
    "triton in runtime": ("rlk/runtime/kernels/loader.py", "import triton"),
    "a backend to the dispatcher": ("rlk/backends/cute.py", "from rlk.runtime.call import dispatch"),
    "a record to a backend": ("rlk/runtime/launch/record.py", "from rlk.backends import registry"),
    "cutlass in ops": ("rlk/ops/surface.py", "import cutlass"),
    "one lowering in another": ("rlk/lower/cute/emit.py", "from rlk.lower.triton import emit"),
    "a lowering in common": ("rlk/lower/common/emit.py", "from rlk.lower.triton import emit"),
    "spec to ir": ("rlk/specs/norm.py", "from rlk.ir.tree import Tree"),
    "ir to spec": ("rlk/ir/nodes.py", "from rlk.specs import norm"),
    "a part without a rank": ("rlk/misc/things.py", "import os"),
    "to a part without a rank": ("rlk/cli.py", "from rlk.misc import things"),
}
RIGHT_IMPORTS = {
    "down": (
        "rlk/lower/triton/emit.py",
        "from rlk.ir.tree import Tree\nfrom rlk.schedule.schedule import Schedule",
    ),
    "the dispatcher to a backend": ("rlk/runtime/call/dispatch.py", "from rlk.backends import registry"),
    "a backend to records": (
        "rlk/backends/cute.py",
        "from rlk.runtime.launch.record import LaunchRecord",
    ),
    "within a part": (
        "rlk/lower/triton/emit.py",
        "from rlk.lower.triton import plan\nfrom rlk.lower.common import w",
    ),
    "spec": ("rlk/specs/norm.py", "from rlk import lang as L\nfrom rlk.lang import op, Axis"),
    "compilers where they belong": ("rlk/backends/triton.py", "import torch, triton"),
    "a compiler in a check": ("rlk/testing/check.py", "import triton"),
    "specs from above": ("rlk/ops/surface.py", "import rlk.specs.norm"),
    "the root from above": ("rlk/demo/step.py", "import rlk\nfrom rlk import Layout, ops"),
    "testing's tools from runtime": ("rlk/runtime/kernels/probes.py", "from rlk.testing.bits import as_bits"),
    "the checks to runtime": ("rlk/testing/check.py", "from rlk.runtime.kernels import loader"),
    "torch in testing": ("rlk/testing/bits.py", "import torch, triton"),
    "a compiler in a prelude": (
        "rlk/lower/cute/prelude.py",
        "import cutlass\nfrom cutlass.cute import nvgpu",
    ),
    "a prelude in that of a vendor": (
        "rlk/lower/tilelang/prelude_amd.py",
        "from rlk.lower.tilelang.prelude import held",
    ),
    "the reader of preludes": ("rlk/lower/cute/emit.py", "from rlk.lower.common.prelude import Helpers"),
    "version": ("rlk/lower/triton/x.py", "from rlk import __version__"),
    "version in runtime": ("rlk/runtime/kernels/loader.py", "from rlk import __version__"),
}


@pytest.mark.parametrize("case", WRONG_IMPORTS)
def test_a_wrong_import_is_found(case: str) -> None:
    assert lints.import_direction(*WRONG_IMPORTS[case])


@pytest.mark.parametrize("case", RIGHT_IMPORTS)
def test_a_right_import_passes(case: str) -> None:
    assert not lints.import_direction(*RIGHT_IMPORTS[case])


def test_an_import_of_testing_is_found_outside_of_the_function_that_simulates() -> None:
    inside = "def _simulate():\n    from rlk.testing.simulators import hopper\n"
    assert not lints.testing_imports("rlk/backends/cute.py", inside)
    assert lints.testing_imports("rlk/backends/cute.py", inside.replace("_simulate", "compile_cute"))
    assert lints.testing_imports("rlk/backends/cute.py", "from rlk.testing.simulators import hopper\n")
    assert lints.testing_imports("rlk/runtime/call/dispatch.py", inside)
    assert lints.testing_imports("rlk/backends/hip.py", "from rlk import testing\n")
    assert not lints.testing_imports("rlk/cli/check.py", "import rlk.testing.check\n")


USED = {
    "by its module": ("def f(): ...\nf()", ""),
    "by an import": ("def f(): ...", "from rlk.a import f"),
    "as an attribute": ("def f(): ...", "import rlk.a\nrlk.a.f()"),
    "by a text": ("def f(): ...", "patch('rlk.a.f')"),
    "by a decorator": ("@register\ndef f(): ...", ""),
}
UNUSED = {
    "nowhere": ("def f(): ...", "def f(): ...\nf()"),
    "only by itself": ("def f(): return f()", ""),
    "a constant": ("F = 1", ""),
    "an annotated one": ("F: int = 1", ""),
    "a class": ("class F: ...", "from rlk.b import F"),
    "only in a sentence": ("F = 1", "print('F is one')"),
}


@pytest.mark.parametrize("case", USED)
def test_a_used_name_passes(case: str) -> None:
    mine, other = USED[case]
    assert not lints.unused_names({"rlk/a.py": mine}, {"tests/test_a.py": other})


@pytest.mark.parametrize("case", UNUSED)
def test_an_unused_name_is_found(case: str) -> None:
    mine, other = UNUSED[case]
    assert len(lints.unused_names({"rlk/a.py": mine}, {"tests/test_a.py": other})) == 1


def test_an_error_code_that_nothing_raises_is_found() -> None:
    errors = "class Code(Enum):\n    HERE = ('x',)\n    NOT_HERE = ('y',)\n"
    (found,) = lints.unraised_codes(errors, {"rlk/a.py": "raise LaunchError(Code.HERE)"})
    assert found.line == 3 and "NOT_HERE" in found.what


CIRCLES = {
    "of two": {"a": "from rlk.ir import b", "b": "import rlk.ir.a"},
    "of three": {"a": "from rlk.ir.b import x", "b": "from rlk.ir.c import x", "c": "from rlk.ir.a import x"},
    "inside a function": {"a": "def f():\n    from rlk.ir import b", "b": "from rlk.ir.a import f"},
    "for a type checker": {
        "a": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from rlk.ir.b import B",
        "b": "from rlk.ir.a import A",
    },
    "by a string": {"a": "import importlib\nimportlib.import_module('rlk.ir.b')", "b": "import rlk.ir.a"},
    "through the package": {"__init__": "from rlk.ir.a import x", "a": "from rlk.ir import y"},
}


@pytest.mark.parametrize("case", CIRCLES)
def test_modules_that_import_each_other_are_found(case: str) -> None:
    sources = {f"rlk/ir/{name}.py": source for name, source in CIRCLES[case].items()}
    (finding,) = lints.import_cycles(sources)
    assert finding.path in sources
    sources[finding.path] = ""
    assert not lints.import_cycles(sources)


def test_modules_that_share_one_below_them_pass() -> None:
    below = {"a": "from rlk.ir import c", "b": "from rlk.ir.c import x\nfrom rlk.ir.a import y", "c": ""}
    package = {"__init__": "from rlk.ir.a import x", "a": "from rlk.ir import b", "b": ""}
    for sources in (below, package):
        assert not lints.import_cycles({f"rlk/ir/{name}.py": source for name, source in sources.items()})


def test_a_long_file_is_found() -> None:
    assert lints.file_size("rlk/ir/x.py", "x = 1\n" * (lints.FILE_LINES + 1))
    assert not lints.file_size("rlk/ir/x.py", "x = 1\n" * lints.FILE_LINES)
    assert not lints.file_size(lints.ORACLE, "x = 1\n" * 700)
    assert lints.file_size(lints.ORACLE, "x = 1\n" * 701)


def test_a_long_function_is_found() -> None:
    body = "    x = 1\n"
    assert lints.function_size("rlk/ir/x.py", "def f():\n" + body * 60)
    assert lints.function_size("rlk/ir/x.py", "class A:\n    async def f(self):\n" + ("    " + body) * 60)
    assert not lints.function_size("rlk/ir/x.py", "def f():\n" + body * 59)


def test_a_table_of_cases_is_judged_by_its_cases() -> None:
    def table(cases: int, lines: int) -> str:
        body = "            x = 1\n" * lines
        return "def f(x):\n    match x:\n" + "".join(f"        case {n}:\n{body}" for n in range(cases))

    assert not lints.function_size("rlk/ir/x.py", table(20, 4))
    assert lints.function_size("rlk/ir/x.py", table(20, 12))
    assert lints.function_size("rlk/ir/x.py", table(8, 8))
    assert lints.function_size("rlk/ir/x.py", table(20, 4) + "    x = 1\n" * 60)


def test_a_module_without_a_sentence_is_found() -> None:
    assert lints.module_docstring("rlk/x.py", "x = 1\n")
    assert lints.module_docstring("rlk/x.py", "")
    assert lints.module_docstring("rlk/x.py", '"""Stuff"""\n')
    assert not lints.module_docstring("rlk/x.py", '"""The layout of x."""\n')


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.environ['A']",
        "import os\nos.getenv('A')",
        "from os import environ",
        "import os\nos.putenv('a', 'b')",
    ],
)
def test_a_use_of_the_environment_is_found(source: str) -> None:
    assert lints.environment_use("rlk/runtime/x.py", source)
    assert not lints.environment_use("rlk/env.py", source)
    assert not lints.environment_use("rlk/runtime/x.py", "import os\nos.path.join('environ')")


@pytest.mark.parametrize(
    "source",
    [
        "{{ f(x) }}",
        "{{ x + 1 }}",
        "{{ x == 1 }}",
        "{{ x[0] }}",
        "{{ x | upper }}",
        "{{ x ~ y }}",
        "{{ 'text' | indent }}",
        "{{ x if y else z }}",
        "{% if x > 1 %}{% endif %}",
        "{% if not x %}{% endif %}",
        "{% if x and y %}{% endif %}",
        "{% if x is defined %}{% endif %}",
        "{% if x %}{% elif y == 1 %}{% endif %}",
        "{% for a in f(x) %}{% endfor %}",
        "{% for a in x if a %}{% endfor %}",
        "{% for a, b in x %}{% endfor %}",
        "{% for a in range(3) %}{% endfor %}",
        "{% set x = 1 %}",
        "{% macro m(a) %}{% endmacro %}",
        "{% import 'x' as y %}",
        "{% extends 'x' %}",
        "{% include name %}",
        "{% filter upper %}{% endfilter %}",
        "{% if x %}",
    ],
)
def test_a_template_that_decides_is_found(source: str) -> None:
    assert lints.template_rules("templates/x.py.j2", source)


@pytest.mark.parametrize(
    "source",
    [
        "plain {{ kernel.name }} text",
        "{% for line in k.body %}{{ line.text }}{% if line.at %}  # {{ line.at }}{% endif %}\n{% endfor %}",
        "{% if kernel.persistent %}a{% elif other %}b{% else %}c{% endif %}",
        "{% include 'header.py.j2' %}",
        "{{ kernel.body | indent(4) }}",
        "{% filter indent(8) %}{% include 'body.j2' %}{% endfilter %}",
    ],
)
def test_a_template_that_punctuates_passes(source: str) -> None:
    assert not lints.template_rules("templates/x.py.j2", source)


def test_an_operator_named_in_a_lowering_is_found() -> None:
    spec = (
        '@op(saves=("x",))\ndef rms_norm(x): ...\n\n'
        '@rms_norm.vjp("x")\ndef rms_norm_grad(ctx, d): ...\n\n'
        "def other(x): ...\n"
    )
    operators = lints.operator_names([spec])
    assert operators == {"rms_norm", "rms_norm_grad"}
    for source in ["if name == 'rms_norm': ...\n", "def rms_norm(): ...\n", "x = k.rms_norm\n"]:
        assert lints.operator_mentions("rlk/lower/x.py", source, operators)
    assert lints.operator_mentions("rlk/lower/rms_norm.py", "x = 1\n", operators)
    assert lints.operator_mentions("templates/triton/x.py.j2", "def rms_norm_kernel(): rms_norm\n", operators)
    assert not lints.operator_mentions("rlk/lower/x.py", "x = other  # as rms_norm does\n", operators)


@pytest.mark.parametrize(
    "source",
    [
        "import re",
        "from re import sub",
        "x = line.text.split(' = ')",
        "x = ast.parse(line.text)",
        "x = made.startswith('select(')",
        "x = self.lines.pop().text.strip()",
        "x = 'thread' in line.text",
        "x = f'{name}(' in words",
        "x = f'{name}(' not in ' '.join(words)",
    ],
)
def test_a_read_of_emitted_text_is_found(source: str) -> None:
    assert lints.text_reads("rlk/lower/cute/emit.py", source)
    assert not lints.text_reads("rlk/lower/cute/prelude.py", source)
    assert not lints.text_reads("rlk/lower/common/names.py", source)


@pytest.mark.parametrize(
    "source",
    [
        "x = 'a b c'.split()",
        "x = replace(plan, kind='rows')",
        "x = value in self.text",
        "x = kind in ('rows', 'gemm')",
        "x = 'rows' in ('rows', 'gemm')",
        "x = f'({t})' if ' ' in t else t",
    ],
)
def test_text_that_is_not_read_passes(source: str) -> None:
    assert not lints.text_reads("rlk/lower/cute/emit.py", source)


def test_retired_words_are_found() -> None:
    """The control: each retired identifier or phrase, and ordinary English beside them."""
    for pattern, (name, wrong) in lints.RETIRED.items():
        assert any(name in found.what for found in lints.retired_words("rlk/x.py", f"{wrong}\n")), pattern
    for fine in ("a box of tools", "held for an hour", "hear both sides apart", "early in the loop"):
        assert not lints.retired_words("rlk/x.py", f"# {fine}\n"), fine


def test_indirect_questions_are_found() -> None:
    """The control: a module, a class, a method and a coroutine, and statements beside them."""
    wrong, right = '"""What a kernel is."""\n', '"""Return the kernel of a call."""\n'
    for head in ("", "class A:\n    ", "class A:\n    def f(self):\n        ", "async def f():\n    "):
        assert lints.indirect_docstrings("rlk/x.py", head + wrong), head
        assert not lints.indirect_docstrings("rlk/x.py", head + right), head
    assert not lints.indirect_docstrings("rlk/x.py", "def f():\n    return 'What'\n")


@pytest.mark.parametrize(
    "source",
    [
        "if backend == 'triton': pass",
        "x = 1 if 'cute' != emitted.backend else 2",
        "if asked in ('triton', 'cute'): pass",
        "if asked not in {'tilelang'}: pass",
        "if asked in frozenset(['tilelang']): pass",
        "match backend:\n    case 'triton':\n        pass",
        "match backend:\n    case 'cute' | 'tilelang':\n        pass",
        "match x:\n    case Emitted(backend='cute'):\n        pass",
        "lowerings = {'triton': 1}",
        "lowerings['triton']",
        "lowerings.get('cute')",
        "backend.startswith('tilelang')",
    ],
)
def test_a_decision_by_a_backends_name_is_found(source: str) -> None:
    assert lints.backend_names("rlk/runtime/x.py", source)
    assert lints.backend_names("rlk/testing/x.py", source)
    for path in ("rlk/backends/cute.py", "rlk/lower/cute/x.py", "rlk/env.py"):
        assert not lints.backend_names(path, source)


@pytest.mark.parametrize(
    "source",
    [
        "if backend.complete: pass",
        "if find_spec('triton') is None: pass",
        "if backend == other: pass",
        "PACKAGES = ('torch', 'triton')",
        "match node:\n    case 'relu':\n        pass",
        "def f(backend: str = 'triton'): pass",
    ],
)
def test_what_decides_by_no_backends_name_passes(source: str) -> None:
    assert not lints.backend_names("rlk/runtime/x.py", source)


def test_a_large_repository_is_found() -> None:
    assert lints.repository_size({"a": 3, "b": 9}, limit=11)[0].path == "b"
    assert not lints.repository_size({"a": 3, "b": 8}, limit=11)


def test_every_part_of_the_package_has_a_rank() -> None:
    parts = {lints.package_of(name_of(path)) for path in python_files("rlk")} - {"", "specs"}
    assert parts == set(lints.RANK)


def test_the_rules_read_real_syntax() -> None:
    """Guard the guards: a file that does not parse must fail a lint, not slip through it."""
    with pytest.raises(SyntaxError):
        lints.function_size("rlk/x.py", "def f(:\n")
    assert isinstance(ast.parse(""), ast.Module)
