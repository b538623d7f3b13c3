"""The reference of the language: every public word is described, and every example gives what it says."""

from __future__ import annotations

import inspect
import re
import runpy
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlk.errors import LoweringError, RlkError
from rlk.ir.dims import completed
from rlk.ir.text import axes_in
from rlk.lang import Axis, L
from rlk.lang.reserved import is_free
from rlk.runtime.reference import emit
from rlk.target.facts import target

TOOL: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[1] / "tools/language.py"))
WORDS = {word.name: word for word in TOOL["words"]() if word.name != "L"}
LOWERINGS = [
    ("sm_90a", "triton"),
    ("sm_90a", "cute"),
    ("sm_90a", "tilelang"),
    ("gfx942", "triton"),
    ("gfx942", "tilelang"),
]
FACTS = ("Shapes: ", "Dtypes: ", "Raises: ")


def lacking(word: Any) -> list[str]:
    """Return what a docstring does not say: a fact, an example, or a code of an error that exists."""
    facts = [fact for fact in FACTS if f"\n{fact}" not in word.doc]
    shown = [] if any(TOOL["examples"](word)) else ["an example"]
    return facts + shown + [name for name, there in TOOL["codes"](word).items() if not there]


def wrong(word: Any) -> list[str]:
    """Return the examples that give something else than they say, or say nothing."""
    found = [(code, want, TOOL["result"](code)) for code, want in TOOL["examples"](word)]
    return [f"{code[-1].strip()} gives {got}, not {want}" for code, want, got in found if got != want]


@pytest.mark.parametrize("name", WORDS)
def test_a_word_has_shapes_dtypes_errors_and_an_example_that_runs(name: str) -> None:
    assert lacking(WORDS[name]) == [] and wrong(WORDS[name]) == []


def test_parameters_of_the_examples_may_be_those_of_a_spec() -> None:
    names = {*TOOL["FORMALS"], *TOOL["EXTENTS"]}
    assert names and [name for name in names if not is_free(name)] == []


def test_an_example_lowers_everywhere_or_is_refused_at_its_line() -> None:
    refused: Counter[str] = Counter()
    for code, _ in (each for word in WORDS.values() for each in TOOL["examples"](word)):
        try:
            program, _ = TOOL["traced"](code)
        except RlkError:
            continue  # the example of a mistake
        sized = [axis for axis in axes_in(program) if axis.extent is not None]
        extents = completed("example", sized, dict(TOOL["EXTENTS"]))
        for on, by in LOWERINGS:
            try:
                emit(program, extents, target(on), by)
            except LoweringError as error:
                refused[by] += 1
                assert all(each.loc.file == TOOL["__file__"] and each.loc.line for each in error.diagnostics)
    assert refused["triton"] == 0 and 0 < refused["cute"] <= 5 and 0 < refused["tilelang"] <= 4


def test_every_public_name_is_a_word() -> None:
    there = {f"L.{name}" for name in vars(L) if not name.startswith("_")}
    there |= {f"Axis.{n}" for n, m in vars(Axis).items() if isinstance(m, property) and not n.startswith("_")}
    assert there <= WORDS.keys() and len(there) > 45
    fields = [name for name in Axis.__dataclass_fields__ if name not in ("name", "part")]
    assert [name for name in fields if f"\n{name}: " not in WORDS["Axis"].doc] == []


@pytest.mark.parametrize("name", ["total", "softmax_sum", "argmax", "carry", "top"])
def test_members_of_a_fold_are_described_and_shown(name: str) -> None:
    fold = getattr(L, name)
    shown = "".join(line for code, _ in TOOL["examples"](WORDS[f"L.{name}"]) for line in code)
    members = TOOL["members"](fold)
    assert len(members) >= 2 and all(inspect.getdoc(getattr(fold, member)) for member in members)
    rest = [m for m in members if not re.search(rf"\.{m}\b", shown) and m not in ("states", "max", "index")]
    assert rest == []


def test_the_page_is_current() -> None:
    assert TOOL["PAGE"].read_text() == TOOL["page"](TOOL["head"]()), "run: python tools/language.py"


def test_a_missing_fact_an_unknown_code_and_a_wrong_example_are_found() -> None:
    """The control."""
    word = WORDS["L.maximum"]
    assert lacking(replace(word, doc=word.doc.replace("Dtypes: ", "Types: "))) == ["Dtypes: "]
    assert lacking(replace(word, doc=word.doc.replace("DTYPE_MIX", "DTYPE_MIXED"))) == ["DTYPE_MIXED"]
    assert lacking(replace(word, doc=word.doc.partition(">>>")[0])) == ["an example"]
    assert wrong(replace(word, doc=word.doc.replace("[[1, 0, 3", "[[1, 1, 3"))) != []
    assert wrong(replace(word, doc=word.doc.replace("[DTYPE_MIX]", "[[1]]"))) != []
