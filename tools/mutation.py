"""Share of small bugs in the core that the tests of their area find: mutants of a library, sampled.

`make mutation` writes docs/mutation.md. Cosmic Ray's operators make the mutants, one at a time, in a copy of
this tree; a line is drawn first, then one of its mutants, by a fixed seed. tools/mutation.txt says why a
survivor is one. Results lie in .mutation, by area and seed: a run that was stopped goes on where it was, and
--again runs those that survived once more, after a test or the code was mended.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import platform
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).resolve().parents[1]
STATE, REASONS, PAGE = ROOT / ".mutation", ROOT / "tools" / "mutation.txt", ROOT / "docs" / "mutation.md"
LONGEST = 900  # seconds for the tests of one mutant: one that hangs is found
HANGS = "no end"

AREAS: tuple[tuple[str, str, str], ...] = (
    (
        "ir",
        "rlk/ir/*.py",
        "reference_sources verified_streams fold_states integers ir numerics lang passes portable",
    ),
    ("passes", "rlk/passes/*.py", "reference_sources simplify integers fold_states passes shard_pass sweep"),
    ("interp", "rlk/interp/*.py", "floats cdna_dots integers fold_states oracle dot"),
    ("ops", "rlk/ops/advantages.py rlk/ops/offsets.py rlk/ops/packing.py", "packing ops_advantages"),
    ("ops", "rlk/ops/signatures.py rlk/ops/checks.py rlk/ops/results.py", "ops_logp ops_model"),
    ("ops", "rlk/ops/losses.py rlk/ops/presets.py rlk/ops/layout.py", "peer_constants losses ops_loss"),
    ("ops", "rlk/ops/preference.py rlk/ops/value.py", "value preference"),
    ("ops", "rlk/ops/attention.py rlk/ops/[ls][ia][nm]*.py", "ops_linear ops_sample ops_attention"),
    ("cache", "rlk/cache/*.py", "cache cache_faults"),
    (
        "triton",
        "rlk/lower/triton/*.py",
        "reference_sources integers random_and_kept triton_lowering dot_lowering",
    ),
    (
        "cute",
        "rlk/lower/cute/*.py",
        "reference_sources cute_protocol integers random_and_kept cute_lowering cute_rows",
    ),
    ("tilelang", "rlk/lower/tilelang/*.py", "reference_sources integers tilelang_lowering tilelang_dots"),
)
"""An area, the files of it, and the test files that are to find what is wrong in them, quick ones first."""

EQUAL = ("Is_Eq", "Eq_Is", "IsNot_NotEq", "NotEq_IsNot", "RemoveDecorator")
"""Operators whose mutants are mostly equal: of what is compared by identity, of caches and of frozen data."""

HEAD = """# Mutation

Written by `make mutation` (Cosmic Ray {library}, Python {python}, {seeds}): small bugs, drawn by lines
from the core, one at a time; the tests of the area alone run, up to the first failure. *killed*: a test
that passes without it failed, or the tests did not end in {longest} s.

| area | mutants | killed | survived | score | when drawn |
|---|---|---|---|---|---|
"""
TAIL = """
Not drawn: annotations, decorators, text that is no Python, and operators whose mutants are mostly equal
({equal}). {broken} of the killed could not be
imported, or stopped a test file from being read. Each file is tested by what `tools/mutation.py` names for
it; that other tests would find a survivor is not counted. A survivor that led to a test, or to a test file in
that table, was run again, so that the score is one after mending; the last column is the score of the same
sample before that. {gone} more mutants survived when drawn and are no longer possible: the code was made
simpler.

## Survivors

"""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A file with one line changed; tests: those that are to find it."""

    area: str
    file: str
    line: int
    before: str
    after: str
    operator: str
    occurrence: int
    tests: str

    @property
    def key(self) -> str:
        return f"{self.file}: {self.before} -> {self.after}"


@dataclass(frozen=True, slots=True)
class Row:
    """The result of a mutant; first: when it was drawn. gone: the code has no such line any more."""

    key: str
    area: str
    line: int
    killed: bool
    seconds: float
    by: str
    first: bool
    gone: bool = False


# --- which mutants there are ---


def operators() -> dict[str, Operator]:
    """Return the library's operators that take no arguments, by name."""
    made = {name: get_operator(name) for name in sorted(operator_names()) if not name.endswith(EQUAL)}
    return {name: operator() for name, operator in made.items() if not operator.arguments()}


def lines_of_code(source: str) -> set[int]:
    """Return the lines that run: those of statements without annotations of their own."""
    quiet: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(returns=returns):
                typed = (returns, *(a.annotation for a in ast.walk(node.args) if isinstance(a, ast.arg)))
            case ast.AnnAssign(annotation=annotation):
                typed = (annotation,)
            case ast.Import() | ast.ImportFrom():
                typed = (node,)
            case _:
                typed = ()
        for each in (t for t in typed if t is not None):
            quiet.update(range(each.lineno, (each.end_lineno or each.lineno) + 1))
    listed = source.splitlines()
    return {n for n, text in enumerate(listed, 1) if n not in quiet and not text.lstrip().startswith("@")}


def places(source: str, known: dict[str, Operator]) -> dict[int, list[tuple[str, int]]]:
    """Return the mutants of a file by line: an operator, and which of its occurrences."""
    tree, wanted = get_ast(source), lines_of_code(source)
    found: dict[int, list[tuple[str, int]]] = {}
    for name, operator in known.items():
        positions = (p for node in ast_nodes(tree) for p in operator.mutation_positions(node))
        for occurrence, ((line, _), _) in enumerate(positions):
            if line in wanted:
                found.setdefault(line, []).append((name, occurrence))
    return found


def drawn(area: str, count: int, seed: int) -> Iterator[Mutant]:
    """Yield mutants of an area, as many as asked for: of lines drawn first, one each."""
    rng, known = random.Random(f"{seed} {area}"), operators()
    lines = []
    for name, globs, tests in AREAS:
        paths = [path for glob in globs.split() for path in ROOT.glob(glob)] if name == area else []
        for path in sorted(paths):
            source = path.read_text(encoding="utf-8")
            lines += [(path, tests, line, at) for line, at in sorted(places(source, known).items())]
    rng.shuffle(lines)
    for path, tests, line, at in lines[: 2 * count]:  # some are no Python
        operator, occurrence = rng.choice(at)
        source = path.read_text(encoding="utf-8")
        mutated = mutate_code(source, known[operator], occurrence)
        if count and is_python(mutated):
            count -= 1
            file = path.relative_to(ROOT).as_posix()
            yield Mutant(area, file, line, *changed(source, mutated), operator, occurrence, tests)


def found_again(row: Row) -> Mutant | None:
    """Return the mutant of a row in the code as it is now, or None if there is none."""
    file, known = row.key.split(": ", 1)[0], operators()
    source = (ROOT / file).read_text(encoding="utf-8")
    globbed = [(globs, tests) for name, globs, tests in AREAS if name == row.area]
    tests = next(
        tests for globs, tests in globbed if ROOT / file in {p for g in globs.split() for p in ROOT.glob(g)}
    )
    for line, at in places(source, known).items():
        for operator, occurrence in at:
            change = changed(source, mutate_code(source, known[operator], occurrence))
            mutant = Mutant(row.area, file, line, *change, operator, occurrence, tests)
            if mutant.key == row.key:
                return mutant
    return None


def is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def changed(source: str, mutated: str) -> tuple[str, str]:
    """Return the lines that differ, before and after."""
    lines = list(difflib.ndiff(source.splitlines(), mutated.splitlines()))
    removed, added = (" / ".join(x[2:].strip() for x in lines if x[:2] == sign) for sign in ("- ", "+ "))
    return removed, added


# --- whether tests find them ---


def tested(tree: Path, tests: list[str], scratch: Path) -> str | None:
    """Run tests in a copy of this tree; return the first that fails, or None."""
    options = ["-q", "-x", "-p", "no:cacheprovider", "--basetemp", str(scratch / "pytest")]
    env = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "1000"}
    command = [sys.executable, "-m", "pytest", *options, *tests]
    try:
        done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        return HANGS
    if not done.returncode:
        return None
    named = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if named is None:
        raise SystemExit(f"tests did not run: {(done.stderr or done.stdout)[-300:]}")
    return named[1]


def judged(mutant: Mutant, tree: Path, scratch: Path) -> Row:
    """Put a mutant into a copy of this tree, run its tests, and take it out again."""
    path, known = tree / mutant.file, operators()
    source = path.read_text(encoding="utf-8")
    path.write_text(mutate_code(source, known[mutant.operator], mutant.occurrence), encoding="utf-8")
    begin = time.monotonic()
    try:
        failed = tested(tree, [f"tests/test_{name}.py" for name in mutant.tests.split()], scratch)
    finally:
        path.write_text(source, encoding="utf-8")
    seconds = round(time.monotonic() - begin, 1)
    if failed not in (None, HANGS) and tested(tree, [failed], scratch) is not None:
        raise SystemExit(f"{failed} fails without a mutant")
    killed = failed is not None
    return Row(mutant.key, mutant.area, mutant.line, killed, seconds, failed or "", first=killed)


def copied(to: Path) -> Path:
    """Return a copy of this tree without what is built or hidden."""
    hidden = shutil.ignore_patterns(".*", "build", "dist", "__pycache__")
    return Path(shutil.copytree(ROOT, to, ignore=hidden))


def run(areas: list[str], count: int, seed: int) -> None:
    """Put a sample of each area into a copy of this tree, and keep each result as it comes."""
    with TemporaryDirectory() as folder:
        scratch = Path(folder)
        tree = copied(scratch / "tree")
        for mutant in (m for area in areas for m in drawn(area, count, seed)):
            rows = kept(mutant.area, seed)
            if mutant.key not in {row.key for row in rows}:
                row = judged(mutant, tree, scratch)
                keep(mutant.area, seed, [*rows, row])
                say(row, mutant)


def run_again(areas: list[str], seed: int) -> None:
    """Run the survivors of a sample once more, with the code and the tests that there are now."""
    with TemporaryDirectory() as folder:
        scratch = Path(folder)
        tree = copied(scratch / "tree")
        for area in areas:
            rows = kept(area, seed)
            for i, row in enumerate(rows):
                if row.killed or row.gone:
                    continue
                mutant = found_again(row)
                now = judged(mutant, tree, scratch) if mutant else replace(row, gone=True)
                rows[i] = replace(now, first=row.first)
                keep(area, seed, rows)
                say(rows[i], mutant)


def say(row: Row, mutant: Mutant | None) -> None:
    word = "gone" if row.gone else "killed" if row.killed else "SURVIVED"
    text = f"{mutant.file}:{mutant.line}  {mutant.after}" if mutant else row.key
    print(f"{word:8} {row.seconds:6.1f} s  {text}", flush=True)


def keep(area: str, seed: int, rows: list[Row]) -> None:
    STATE.mkdir(exist_ok=True)
    _file(area, seed).write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")


def kept(area: str, seed: int) -> list[Row]:
    """Return the results of an area that a run has left."""
    file = _file(area, seed)
    return [Row(**row) for row in json.loads(file.read_text(encoding="utf-8"))] if file.exists() else []


def _file(area: str, seed: int) -> Path:
    return STATE / f"{area}-{seed}.json"


# --- the page ---


def reasons() -> dict[str, str]:
    """Return why survivors are there: in the file a mutant's key, then an indented line."""
    lines = REASONS.read_text(encoding="utf-8").splitlines()
    return {key: why.strip() for key, why in zip(lines, lines[1:], strict=False) if why.startswith(" ")}


def score(rows: list[Row]) -> str:
    there = [row for row in rows if not row.gone]
    killed, first = sum(row.killed for row in there), sum(row.first for row in rows)
    counts = f"{len(there)} | {killed} | {len(there) - killed}"
    return f"{counts} | {killed / len(there):.0%} | {first} of {len(rows)}"


def page(rows: list[Row], seeds: list[int]) -> str:
    """Return docs/mutation.md."""
    known = reasons()
    said = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {' and '.join(map(str, seeds))}"
    numbers = {"library": version("cosmic-ray"), "python": platform.python_version(), "seeds": said}
    text = HEAD.format(**numbers, longest=LONGEST)
    for area in dict.fromkeys(name for name, _, _ in AREAS):
        of_area = [row for row in rows if row.area == area]
        text += f"| {area} | {score(of_area)} |\n" if of_area else f"| {area} | 0 | | | | |\n"
    text += f"| all | {score(rows)} |\n"
    broken, gone = sum(row.by.endswith(".py") for row in rows), sum(row.gone for row in rows)
    text += TAIL.format(equal=", ".join(EQUAL), broken=broken, gone=gone)
    for row in rows:
        if not row.killed and not row.gone:
            file, change = row.key.split(": ", 1)
            before, after = change.split(" -> ", 1)
            text += f"- `{file}`: `{before}` became `{after}`. {known.get(row.key, 'No reason yet.')}\n"
    return text


def main() -> None:
    """Run a sample and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=8, help="mutants of each area and seed")
    parser.add_argument("--seed", type=int, action="append", help="of a sample; 1 and 2 without it")
    parser.add_argument("--area", action="append", choices=list(dict.fromkeys(a for a, _, _ in AREAS)))
    parser.add_argument("--again", action="store_true", help="run the survivors of these samples once more")
    given = parser.parse_args()
    every, seeds = list(dict.fromkeys(area for area, _, _ in AREAS)), given.seed or [1, 2]
    for seed in seeds:
        if given.again:
            run_again(given.area or every, seed)
        else:
            run(given.area or every, given.count, seed)
    rows = {row.key: row for area in every for seed in seeds for row in kept(area, seed)}
    PAGE.write_text(page(list(rows.values()), seeds), encoding="utf-8")


if __name__ == "__main__":
    main()
