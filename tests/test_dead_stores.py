"""Generated kernels assign no name whose value nothing reads: liveness over each function's syntax tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlk.lower.common.lines import Line
from rlk.lower.common.liveness import dead_stores, live

GENERATED = sorted((Path(__file__).parents[1] / "generated").rglob("*.py"))


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: "/".join(path.parts[-3:]))
def test_a_checked_in_kernel_assigns_no_name_that_nothing_reads(path: Path) -> None:
    assert not dead_stores(path.read_text())


DEAD = {
    "a name that nothing reads": "x = a + 1\nreturn a",
    "a name that is replaced before it is read": "x = a\nx = a + 1\nreturn x",
    "in a branch": "if a > 1:\n    x = a\nreturn a",
    "in a loop": "for i in range(a):\n    x = i\nreturn a",
    "replaced in each step": "x = 0\nfor i in range(a):\n    x = i\n    f(x)",
    "all names of a tuple": "x, y = a\nreturn a",
    "a sum that is never read": "x = 0\nf(x)\nx += a",
    "after the last step": "for i in range(a):\n    x = i\n    f(x)\n    x = a",
}
LIVE = {
    "an accumulator": "x = 0\nfor i in range(a):\n    x = x + i\nreturn x",
    "one name of a tuple": "x, y = a\nreturn x",
    "memory": "a[0] = 1\na.b = 2",
    "read by the next step": "x = 0\nfor i in range(a):\n    f(x)\n    x = i",
    "read after a loop that may not run": "x = 0\nfor i in range(a):\n    x = i\nreturn x",
    "read by a condition": "x = a\nwhile x > 1:\n    x = f(x)",
    "read in a comprehension": "x = a\nreturn [x + i for i in range(3)]",
    "read by a function inside": "x = a\ndef g():\n    return x\nreturn g",
    "read in one branch": "x = a\nif a > 1:\n    f(x)\nreturn a",
}


def in_function(text: str) -> str:
    return "def f(a):\n" + "\n".join(f"    {line}" for line in text.split("\n"))


@pytest.mark.parametrize("text", DEAD.values(), ids=DEAD.keys())
def test_a_dead_store_is_found(text: str) -> None:
    assert len(dead_stores(in_function(text))) == 1


@pytest.mark.parametrize("text", LIVE.values(), ids=LIVE.keys())
def test_a_value_that_some_path_reads_is_live(text: str) -> None:
    assert not dead_stores(in_function(text))


def named(name: str, expression: str) -> Line:
    return Line(f"{name} = {expression}", assigned=(name, expression))


BODY = (
    named("a", "x + 1"),
    named("b", "a * 2"),
    Line("c = b"),
    Line("for i in range(x):"),
    Line("    store(x, i)"),
    named("d", "x"),
)


@pytest.mark.parametrize(("read", "kept"), [((), "abc"), (("d",), "abcd"), (("z",), "abc")])
def test_lines_that_only_name_what_nothing_reads_are_dropped(read: tuple[str, ...], kept: str) -> None:
    """A line that an emitter wrote as a statement stays, and what it reads."""
    left = live(BODY, read)
    assert [line.text[0] for line in left if "=" in line.text] == list(kept)
    assert [line for line in left if line.assigned is None] == [x for x in BODY if x.assigned is None]


def test_a_chain_of_names_is_dropped_as_a_whole() -> None:
    assert live((named("a", "x"), named("b", "a"), named("c", "b"))) == ()


def test_a_block_keeps_a_statement_and_what_it_reads() -> None:
    inside = (Line("    b = 1", assigned=("b", "1")), Line("    c = a", assigned=("c", "a")))
    body = (named("a", "x"), named("d", "x"), Line("if x:"), *inside)
    assert [line.text for line in live(body)] == ["a = x", "if x:", "    c = a"]
