"""Structural rules of this repository, as functions from source text to a list of findings."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jinja2
from jinja2 import nodes

ROOT = Path(__file__).resolve().parents[1]
parsed = cache(ast.parse)
"""The tree of a source, which nobody may change: a dozen rules look at each."""
FILE_LINES = 1000
FUNCTION_LINES = 60
TABLE_CASES, CASE_LINES = 12, 12
ORACLE = "rlk/interp/run.py"
ORACLE_LINES = 700
REPOSITORY_BYTES = 12 * 2**20

# Who may import whom: a package imports packages of lower rank, never of its own or a higher one.
RANK = {
    "errors": 0, "env": 1, "digest": 1, "resources": 1, "terminal": 1,
    "ir": 2,
    "lang": 3, "interp": 3, "passes": 3,
    "target": 4, "schedule": 5,
    "lower": 6,
    "cache": 7,
    "backends.hip": 8,  # compiles HIP source, for the TileLang backend and for the simulator of CDNA
    # the tools of testing know no runtime, its checks of whole operators do
    "testing.bits": 8, "testing.simulators": 9,
    # what a backend writes and launches; then the rooms of the runtime
    "runtime.launch": 10,
    "backends": 11,
    "runtime.binding": 12,
    "runtime.kernels": 13,
    "runtime.wheels": 14,
    "runtime.call": 15,
    "runtime": 16,
    "testing": 17,
    "ops": 18,
    "nn": 19, "observe": 19, "optim": 19,
    "aot": 20, "integrations": 20, "sync": 20,
    "tune": 20, "pages": 20,
    "drift": 21, "parallel": 21,
    "verify": 22,
    "demo": 23,
    "cli": 24,
    "__main__": 25,
}  # fmt: skip
SPECS_IMPORT = frozenset({"", "lang"})
KNOWS_SPECS = RANK["runtime"]  # from here up a package may import rlk.specs
KNOWS_ROOT = RANK["ops"]  # from here up a package may use the names that rlk itself offers
KNOWS_TORCH = RANK["testing.bits"]
COMPILERS = frozenset({"triton", "cutlass", "tilelang"})
COMPILER_USERS = frozenset({"backends", "testing"})

LATE = frozenset({("rlk/lang/op.py", "rlk.runtime.operator")})
"""An import that points up, by its file: a call of an operator, of the language, is run by the runtime."""

USES_TESTING = {
    "rlk/backends/triton.py": "_simulate",
    "rlk/backends/cute.py": "_simulate",
    "rlk/backends/tilelang.py": "_simulate",
    "rlk/runtime/kernels/probes.py": None,  # probes of arithmetic, which `rlk doctor` prints
    "rlk/ops/__init__.py": None,  # RLK_INTERPRET runs calls in the interpreter
    "rlk/ops/laws.py": None,  # laws of operators
    "rlk/demo/measure.py": None,
    "rlk/verify/rows.py": None,  # digests of rows
    "rlk/verify/views.py": None,
    "rlk/verify/watched.py": None,
    "rlk/drift/operators.py": None,  # bits of results
    "rlk/drift/digests.py": None,  # digests of rows, which launch nothing
    "rlk/tune/registered.py": "_drawing",
    "rlk/cli/check.py": None,
    "rlk/cli/doctor.py": None,
}
"""Modules outside of rlk/testing that may import it. With a name, only this function may: the one that a
backend gives as `Backend.simulate`, and that of the tuner, which draws inputs as checks do."""

PRELUDE = re.compile(r"rlk/lower/(triton|cute|tilelang)/prelude\w*\.py")
"""Text that lowerings copy into generated modules: it may import compilers, and no module may import it."""
PRELUDE_IMPORTS = re.compile(r"(triton|cutlass|tilelang|struct|rlk\.lower\.(triton|cute|tilelang)\.prelude)")

# What reads text that was emitted: a call of one of these methods, or a search for a word in a line. Record
# what a line reads and calls when it is written.
TEXT_METHODS = frozenset(
    "split rsplit splitlines partition rpartition replace translate find rfind startswith endswith "
    "removeprefix removesuffix strip lstrip rstrip".split()
)
READ_OTHER_TEXT = {
    "rlk/lower/common/names.py": "hints of names",
    "rlk/lower/common/layout.py": "a whole module, to break its lines",
    "rlk/lower/common/liveness.py": "the lines of a function, to drop names that nothing reads",
    "rlk/lower/common/machine.py": "docstrings of portable functions",
    "rlk/lower/common/prelude.py": "prelude files",
    "rlk/lower/triton/module.py": "the version of the compiler",
    "rlk/lower/cute/attention/step.py": "the lines of a step, whose free names are its arguments",
}
"""Files of lowerings that read text, and which."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One breach of a rule, at a place."""

    path: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


def python_files(*folders: str) -> list[Path]:
    """List the Python files of the named top-level folders that exist, generated ones left out."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sorted(path for path in found if "generated" not in path.parts)


def name_of(path: Path) -> str:
    """Return a path as the rules write it: relative to the repository, with forward slashes."""
    return path.relative_to(ROOT).as_posix()


# --- imports ---


def package_of(path: str) -> str:
    """Return the part of rlk that a file belongs to, as RANK names it; "" for rlk/__init__.py."""
    module = ".".join(path.removesuffix(".py").split("/")[1:])
    return "" if module == "__init__" else part_of(module)


def part_of(module: str) -> str:
    """Return the part that a module below rlk belongs to: its own, or the package."""
    names = module.split(".")
    own = ".".join(names[:2])
    return own if own in RANK else names[0]


def imported_modules(tree: ast.AST, submodules: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield each module that a source imports; `from rlk import x` is rlk.x for a submodule."""
    known = frozenset(submodules)
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield ("rlk:rlk" if alias.name == "rlk" else alias.name), node.lineno
            case ast.ImportFrom(module="rlk", names=names):
                for alias in names:
                    yield (f"rlk.{alias.name}" if alias.name in known else f"rlk:{alias.name}"), node.lineno
            case ast.ImportFrom(module=str(module), names=names, level=0):
                for alias in names:
                    yield f"{module}.{alias.name}", node.lineno
            case ast.ImportFrom(level=level) if level > 0:
                yield ".", node.lineno
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name)), *_]):
                yield name, node.lineno
            case ast.Call(
                func=ast.Name(id="__import__" | "import_module"), args=[ast.Constant(value=str(name)), *_]
            ):
                yield name, node.lineno


def import_direction(path: str, source: str) -> list[Finding]:
    """Check one file of rlk against the ranks, the specs' rule, and the rules for torch and compilers."""
    owner = package_of(path)
    if owner == "":
        return []
    if owner != "specs" and owner not in RANK:
        return [Finding(path, 1, f"rlk/{owner} has no rank in the table of import directions")]
    found = []
    for module, line in imported_modules(parsed(source), {*RANK, "specs"}):
        wrong = None if (path, module) in LATE else _wrong_import(path, owner, module)
        if wrong:
            found.append(Finding(path, line, wrong))
    return found


def _wrong_import(path: str, owner: str, module: str) -> str | None:
    top, _, rest = module.partition(".")
    rank = RANK.get(owner, -1)
    if module == ".":
        return "relative import"
    if PRELUDE.match(path):
        return None if PRELUDE_IMPORTS.match(module) else f"a prelude imports {module}"
    if PRELUDE_IMPORTS.match(module) and top == "rlk":
        return "imports a prelude, which is the text of generated modules"
    if top in COMPILERS and owner.split(".")[0] not in COMPILER_USERS:
        return f"{owner} imports {top}; only generated code, backends and testing may"
    if top == "torch" and rank < KNOWS_TORCH:
        return f"{owner} imports torch; nothing below testing and runtime knows it"
    if module.startswith("rlk:__"):
        return None  # from rlk import __version__
    if module.startswith("rlk:"):
        return None if owner == "specs" or rank >= KNOWS_ROOT else f"{owner} imports names of rlk itself"
    return _wrong_target(path, owner, rest) if top == "rlk" else None


def _wrong_target(path: str, owner: str, module: str) -> str | None:
    """Judge an import of rlk.<module> by a file of rlk/<owner>."""
    target, rank = part_of(module), RANK.get(owner, -1)
    if target == owner:
        return _crossing_lowerings(path, module) if owner == "lower" else None
    if owner == "specs":
        return None if target in SPECS_IMPORT else f"specs import rlk.{target}, not only rlk and rlk.lang"
    if target == "specs":
        return None if rank >= KNOWS_SPECS else f"{owner} imports specs"
    if target not in RANK:
        return f"rlk.{target} has no rank in the table of import directions"
    return None if RANK[target] < rank else f"{owner} imports rlk.{target}, which is not below it"


def _crossing_lowerings(path: str, module: str) -> str | None:
    mine = path.split("/")[2].removesuffix(".py")
    other = module.split(".")[1] if "." in module else ""
    backends = {folder.name for folder in (ROOT / "rlk/lower").glob("*/")} | {"triton", "cute", "tilelang"}
    if mine in backends - {"common"} and other in backends - {"common", mine}:
        return f"lower/{mine} imports lower/{other}"
    if mine == "common" and other in backends - {"common"}:
        return f"lower/common imports lower/{other}"
    return None


def testing_imports(path: str, source: str) -> list[Finding]:
    """Refuse imports of rlk.testing by modules that compile, launch or call kernels."""
    if path.startswith("rlk/testing/") or (path in USES_TESTING and USES_TESTING[path] is None):
        return []
    tree, only = parsed(source), USES_TESTING.get(path)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == only]
    lines = {line for node in functions for line in range(node.lineno, (node.end_lineno or 0) + 1)}
    return [
        Finding(path, line, f"imports {module}; only tests and checks may")
        for module, line in imported_modules(tree, {"testing"})
        if module.startswith("rlk.testing") and line not in lines
    ]


# --- import cycles ---


def module_name(path: str) -> str:
    """Return the dotted name of a module."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def import_cycles(sources: Mapping[str, str]) -> list[Finding]:
    """Find modules that import each other, by paths and sources; one finding for each group of them.

    Imports inside functions and for type checkers count: what two modules share belongs in one below both. A
    package's `__init__` counts for names that it defines, not for importing a module of the package.
    """
    modules = {module_name(path): path for path in sources}
    graph = {
        name: {
            found: line
            for module, line in imported_modules(parsed(sources[path]), ())
            if (path, module) not in LATE
            if (found := _known_module(module, modules)) not in (None, name)
        }
        for name, path in modules.items()
    }
    return [
        Finding(modules[first], graph[first][second], f"imports in a circle: {' -> '.join(circle)}")
        for circle in _circles(graph)
        for first, second in [circle[:2]]
    ]


def _known_module(imported: str, modules: Mapping[str, str]) -> str | None:
    """Return which module an import reads: the one named, or the one that defines the name."""
    name = imported.replace("rlk:", "rlk.")
    return next((m for m in (name, name.rpartition(".")[0]) if m in modules), None)


def _circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return a shortest circle for each group of nodes that reach each other; its first node is its last."""
    reached = {name: _paths(name, graph) for name in graph}
    found, seen = [], set[str]()
    for name in sorted(graph):
        if name in reached[name] and name not in seen:
            seen |= {other for other in reached[name] if name in reached[other]}
            found.append(reached[name][name])
    return found


def _paths(start: str, graph: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Return a shortest path from a node to every node that it reaches."""
    paths: dict[str, list[str]] = {}
    waiting = [[start]]
    for path in waiting:
        for target in graph[path[-1]]:
            if target not in paths:
                paths[target] = [*path, target]
                waiting.append(paths[target])
    return paths


# --- dead code ---


def unused_names(rlk: Mapping[str, str], others: Mapping[str, str]) -> list[Finding]:
    """Find names that a module of rlk defines at its top and nothing uses: it, another module, or a test.

    Both are sources by paths. A use is a load of the name in its module outside of its own definition, an
    import of it, an attribute of its name, or a word of a text of words and dots. Functions with a decorator
    may be registered by it, and prelude files are text.
    """
    trees = {path: parsed(source) for path, source in {**rlk, **others}.items()}
    imported, mentioned = set[tuple[str, str]](), set[str]()
    for tree in trees.values():
        for node in ast.walk(tree):
            match node:
                case ast.ImportFrom(module=str(module), names=names):
                    imported |= {(module, alias.name) for alias in names}
                case ast.Attribute(attr=attr):
                    mentioned.add(attr)
                case ast.Constant(value=str(text)) if re.fullmatch(r"[\w.:]+", text):
                    mentioned |= set(re.findall(r"\w+", text))
    loads = {path: [(top, _loaded(top)) for top in trees[path].body] for path in rlk}
    return [
        Finding(path, node.lineno, f"nothing uses {name}")
        for path in rlk
        if not PRELUDE.match(path)
        for node, name in _defined(trees[path])
        if (module_name(path), name) not in imported
        and name not in mentioned
        and not name.startswith("__")  # Python reads these by itself
        and not any(name in loaded for top, loaded in loads[path] if top is not node)
    ]


def _defined(tree: ast.Module) -> Iterator[tuple[ast.stmt, str]]:
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name, decorator_list=[]) | ast.ClassDef(name=name):
                yield node, name
            case ast.Assign(targets=targets):
                yield from ((node, each.id) for each in targets if isinstance(each, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield node, name


def _loaded(tree: ast.AST) -> set[str]:
    """Return the names that a tree reads."""
    walked = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    return {node.id for node in walked if isinstance(node.ctx, ast.Load)}


def unraised_codes(errors: str, rlk: Mapping[str, str]) -> list[Finding]:
    """Find members of `Code` in rlk/errors.py that no module of rlk names."""
    named = {word for source in rlk.values() for word in re.findall(r"\bCode\.([A-Z_0-9]+)", source)}
    return [
        Finding("rlk/errors.py", node.lineno, f"nothing raises Code.{each.id}")
        for top in parsed(errors).body
        if isinstance(top, ast.ClassDef) and top.name == "Code"
        for node in top.body
        if isinstance(node, ast.Assign)
        for each in node.targets
        if isinstance(each, ast.Name) and each.id not in named
    ]


# --- sizes, docstrings, environment ---


def file_size(path: str, source: str) -> list[Finding]:
    """Limit the lines of a file; the oracle has its own limit."""
    limit = ORACLE_LINES if path == ORACLE else FILE_LINES
    lines = len(source.splitlines())
    return [Finding(path, lines, f"{lines} lines, the limit is {limit}")] if lines > limit else []


def function_size(path: str, source: str) -> list[Finding]:
    """Limit the lines of a function, docstring included, decorators not.

    A match over many kinds of node is a table, not a long function: it counts by its cases, kept short.
    """
    found = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = _lines(node) - sum(
                _lines(part) for part in node.body if _is_table(part) or _is_text(part)
            )
            if lines > FUNCTION_LINES:
                what = f"{node.name} has {lines} lines, the limit is {FUNCTION_LINES}"
                found.append(Finding(path, node.lineno, what))
    return found


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _is_text(node: ast.stmt) -> bool:
    """Return whether a statement is a docstring: an explanation has the length that it needs."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_table(node: ast.stmt) -> bool:
    if not isinstance(node, ast.Match) or len(node.cases) < TABLE_CASES:
        return False
    starts = [case.pattern.lineno for case in node.cases] + [(node.end_lineno or 0) + 1]
    return all(after - start <= CASE_LINES for start, after in zip(starts, starts[1:], strict=False))


def module_docstring(path: str, source: str) -> list[Finding]:
    """Want a first sentence in every module."""
    tree = parsed(source)
    text = ast.get_docstring(tree)
    if not text:
        return [Finding(path, 1, "no module docstring")]
    if "." not in text:  # a first sentence may have several lines
        return [Finding(path, 1, "the module docstring is no sentence")]
    return []


def environment_use(path: str, source: str) -> list[Finding]:
    """Forbid every reading or writing of the environment but rlk/env.py's."""
    if path == "rlk/env.py":
        return []
    found = []
    for node in ast.walk(parsed(source)):
        match node:
            case ast.Attribute(
                value=ast.Name(id="os"), attr="environ" | "environb" | "getenv" | "putenv" as attr
            ):
                found.append(Finding(path, node.lineno, f"os.{attr} outside rlk/env.py"))
            case ast.ImportFrom(module="os", names=names):
                bad = [
                    alias.name for alias in names if alias.name in ("environ", "environb", "getenv", "putenv")
                ]
                found += [Finding(path, node.lineno, f"os.{name} outside rlk/env.py") for name in bad]
    return found


# --- templates ---


def template_rules(path: str, source: str) -> list[Finding]:
    """Allow names, attributes, `for` over them, bare `if`, includes and `indent`."""
    try:
        tree = jinja2.Environment().parse(source)
    except jinja2.TemplateSyntaxError as error:
        return [Finding(path, error.lineno, f"not a template: {error.message}")]
    return [Finding(path, node.lineno, what) for node in _walk(tree) if (what := _wrong_node(node))]


def _walk(node: nodes.Node) -> Iterator[nodes.Node]:
    yield node
    for child in node.iter_child_nodes():
        yield from _walk(child)


def _plain(node: nodes.Node | None) -> bool:
    """Say whether an expression is a name or attributes of one."""
    while isinstance(node, nodes.Getattr):
        node = node.node
    return isinstance(node, nodes.Name)


def _wrong_node(node: nodes.Node) -> str | None:
    match node:
        case nodes.Template() | nodes.Output() | nodes.TemplateData() | nodes.Name() | nodes.Getattr():
            return None
        case nodes.If():
            return None if _plain(node.test) else "`if` on something other than a name"
        case nodes.For():
            fine = _plain(node.iter) and isinstance(node.target, nodes.Name) and node.test is None
            return None if fine and not node.recursive else "`for` over something other than a field"
        case nodes.Include():
            return None if isinstance(node.template, nodes.Const) else "include of a computed name"
        case nodes.Filter(name="indent"):
            return None if node.node is None or _plain(node.node) else "indent of an expression"
        case nodes.FilterBlock():
            return None
        case nodes.Const():
            return None  # names a file to include or a width to indent by: nothing else can hold one
        case nodes.Keyword():
            return None
        case nodes.Filter():
            return f"filter {node.name}"
        case _:
            return f"{type(node).__name__.lower()} in a template"


# --- emitted text ---


def text_reads(path: str, source: str) -> list[Finding]:
    """Find what searches or takes apart the text that a lowering emits."""
    if path in READ_OTHER_TEXT or PRELUDE.match(path):
        return []
    found = ((node, _text_read(node)) for node in ast.walk(parsed(source)))
    return [Finding(path, getattr(node, "lineno", 1), what) for node, what in found if what]


def _text_read(node: ast.AST) -> str | None:
    match node:
        case ast.Import(names=names) if any(alias.name == "re" for alias in names):
            return "imports re"
        case ast.ImportFrom(module="re"):
            return "imports re"
        case ast.Call(func=ast.Attribute(value=ast.Name(id="ast"), attr="parse")):
            return f"parses text: {ast.unparse(node)}"
        case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in TEXT_METHODS:
            return None if isinstance(value, ast.Constant) else f"takes text apart: {ast.unparse(node)}"
        case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()], comparators=[within]) if _is_word(left):
            fine = isinstance(within, ast.Tuple | ast.List | ast.Set | ast.Dict)
            return None if fine else f"searches text: {ast.unparse(node)}"
    return None


def _is_word(node: ast.expr) -> bool:
    """Say whether an expression is a text literal with a letter; punctuation only decides on parentheses."""
    if isinstance(node, ast.JoinedStr):
        return True
    return (
        isinstance(node, ast.Constant) and isinstance(node.value, str) and any(map(str.isalpha, node.value))
    )


# --- operator names ---


def operator_names(sources: Iterable[str]) -> frozenset[str]:
    """Collect functions decorated with @op, @op(...) or @operator.vjp(...) in the specs' sources."""
    names = set()
    for source in sources:
        for node in ast.walk(parsed(source)):
            if isinstance(node, ast.FunctionDef) and any(_registers(d) for d in node.decorator_list):
                names.add(node.name)
    return frozenset(names)


def _registers(decorator: ast.expr) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    match target:
        case ast.Name(id="op") | ast.Attribute(attr="op" | "vjp"):
            return True
    return False


def operator_mentions(path: str, source: str, operators: frozenset[str]) -> list[Finding]:
    """Find operators' names among the identifiers and the whole string literals of a lowering or template."""
    words = _python_words(source) if path.endswith(".py") else _text_words(source)
    stem = Path(path).name.split(".")[0]
    found = [Finding(path, line, f"names the operator {word}") for word, line in words if word in operators]
    return [Finding(path, 1, f"is named after the operator {stem}")] * (stem in operators) + found


def _python_words(source: str) -> Iterator[tuple[str, int]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            yield token.string, token.start[0]
        elif token.type == tokenize.STRING:
            yield token.string.strip("\"'"), token.start[0]


def _text_words(source: str) -> Iterator[tuple[str, int]]:
    for number, line in enumerate(source.splitlines(), 1):
        yield from ((word, number) for word in re.findall(r"[A-Za-z_]\w*", line))


# --- words ---

# Identifiers and phrases that have a standard name (docs/glossary.md has the words that are ours).
RETIRED = {
    r"\b(send_mail|read_mail|mail_ring)\b": (
        "work-tile pipeline: publish_work_tile, read_work_tile",
        "send_mail(x)",
    ),
    r"\b(by_tickets|tickets_protocol|TicketEmitter|TICKETS)\b": (
        "work counter, dynamic tile scheduler",
        "if plan.by_tickets:",
    ),
    r"\b(by|a|draws?) tickets?\b": ("work counter, dynamic tile scheduler", "# drawn by tickets"),
    r"\b(send_box|by_boxes|box_of|BoxRing|BoxedRing)\b": ("TMA tile, TMA load", "send_box(k)"),
    r"\b(chained_dot|ChainedPlan|ChainedEmitter)\b": (
        "back-to-back GEMM, fused attention",
        "class ChainedPlan:",
    ),
    r"contracts? what (it|they) (has |have )?computed": (
        "back-to-back GEMM, fused attention",
        "# it contracts what it computed",
    ),
    r"\b(acc_of_weights|what they weigh)\b(?!,)": ("probabilities p", "acc_of_weights = 0"),
    r"\b(held_by|axes_held|held_each|spread_out|spread_rows|SpreadAxis)\b": (
        "fragment, thread-value layout",
        "axes_held = 1",
    ),
    r"\b(plan|memory|addresses)\.(owned|held)\b|\bowns_tile\b": (
        "tiled axes, tile coordinate, dims of a value",
        "for axis in plan.owned:",
    ),
    r"\b(kept_of_warp|put_away)\b": ("spilled to shared memory", "if put_away:"),
    r"\bbox_ring\b|\bTMA box(es)?\b": ("TMA tile, pipeline of TMA loads", "box_ring(stages)"),
    r"\broles_apart\b": ("warp specialization", "if roles_apart:"),
    r"\b(carried_interface|carried_choice|recalled)\b": (
        "wheel metadata, trace cache",
        "carried_choice(wheel)",
    ),
    r"\b(monoid|fold)\.weighs\b": ("softmax, numerators", "if monoid.weighs:"),
    r"\b(rows_are_alone|pieces_apart|told_apart|numbers_apart)\b": (
        "row-independent, parallel pieces",
        "rows_are_alone(kernel)",
    ),
    r"\b(picked_sums|boards)\b": ("one-hot sum, reduction buffer", "# boards of a block"),
    r"\bthose (who|that) (multiply|copy)\b": ("consumer, producer", "# those who multiply"),
    r"\bwarps that (multiply|copy)\b": ("consumer warps, producer warps", "# warps that copy"),
    r"\brows? (that is none|that (is|are) not there)\b": (
        "out-of-bounds row, padding",
        "rows that are not there",
    ),
    r"\w_turn\b": ("merges of a piece, or the index of a host loop", "matmul_leaf8_turn(piece)"),
}
"""Patterns of retired words: the standard name, and a text that each finds."""


def texts() -> list[Path]:
    """List the files whose words are read: code, templates, generated modules, pages."""
    folders = ("rlk", "templates", "docs", "generated", "examples")
    found = (path for folder in folders for path in (ROOT / folder).rglob("*"))
    pages = (path for path in ROOT.glob("*.md") if path.name != "CHANGELOG.md")  # it says what was renamed
    return sorted([*(path for path in found if path.suffix in (".py", ".j2", ".md")), *pages])


def retired_words(path: str, source: str) -> list[Finding]:
    """Find identifiers and phrases that have a standard name."""
    return [
        Finding(path, source.count("\n", 0, found.start()) + 1, f"{found[0]!r} has a standard name: {name}")
        for pattern, (name, _) in RETIRED.items()
        for found in re.finditer(pattern, source)
    ]


INDIRECT = frozenset("What How Which Where Who When Whose Whether Why Those That".split())


def indirect_docstrings(path: str, source: str) -> list[Finding]:
    """Want noun phrases or plain sentences as docstrings of modules, classes and functions.

    A function's docstring is imperative, a class's or a module's names it: neither is an indirect question.
    """
    found = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            words = (ast.get_docstring(node) or "").split(maxsplit=1)
            if words and words[0].rstrip(",:;") in INDIRECT:
                name = "the module" if isinstance(node, ast.Module) else node.name
                line = 1 if isinstance(node, ast.Module) else node.lineno
                found.append(Finding(path, line, f"the docstring of {name} begins with {words[0]!r}"))
    return found


# --- backends ---


BACKENDS = frozenset({"triton", "cute", "tilelang"})
KNOW_BACKENDS = ("rlk/backends/", "rlk/lower/", "rlk/env.py", "rlk/testing/simulators/")
"""Where a backend may be told from others; a simulator is that of one backend, and stands for its modules."""


def backend_names(path: str, source: str) -> list[Finding]:
    """Refuse decisions by a backend's name: comparisons, cases, and tables whose keys are names.

    Elsewhere a backend is asked through `rlk.backends.interface.Backend`: what holds for one that another
    package registers is written there.
    """
    if path.startswith(KNOW_BACKENDS):
        return []
    return [
        Finding(path, node.lineno, f"decides by the name of backend {name!r}; ask its Backend")
        for node in ast.walk(parsed(source))
        for name in sorted(_decided_by(node))
    ]


def _decided_by(node: ast.AST) -> set[str]:
    """Return the backends whose names a comparison, a case, a table or a call such as startswith holds."""
    match node:
        case ast.Compare(left=left, comparators=others):
            held = [left, *others]
        case ast.MatchValue(value=value):
            held = [value]
        case ast.Dict(keys=keys):
            held = [key for key in keys if key is not None]
        case ast.Subscript(slice=index):
            held = [index]
        case ast.Call(
            func=ast.Attribute(attr="startswith" | "endswith" | "get" | "index" | "count"), args=args
        ):
            held = list(args)
        case _:
            return set()
    inside = (part for each in held for part in _with_items(each))
    return {part.value for part in inside if isinstance(part, ast.Constant) and part.value in BACKENDS}


def _with_items(node: ast.expr) -> Iterator[ast.expr]:
    """Yield an expression, and the items of a tuple, list or set, or of a call that makes one."""
    yield node
    match node:
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
            for item in items:
                yield from _with_items(item)
        case ast.Call(func=ast.Name(id="frozenset" | "set" | "tuple" | "list"), args=args):
            for arg in args:
                yield from _with_items(arg)


# --- the repository ---


def tracked_sizes(root: Path) -> dict[str, int]:
    """Return the size in bytes of every tracked file; empty where there is no git checkout."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=False)
    names = listing.stdout.decode().split("\0") if listing.returncode == 0 else []
    return {name: (root / name).stat().st_size for name in names if name and (root / name).is_file()}


def repository_size(sizes: dict[str, int], limit: int = REPOSITORY_BYTES) -> list[Finding]:
    """Limit the sum of the tracked files; the finding names the largest."""
    total = sum(sizes.values())
    if total <= limit:
        return []
    largest = max(sizes, key=lambda name: sizes[name])
    return [
        Finding(largest, 1, f"tracked files hold {total} bytes, the limit is {limit}; this is the largest")
    ]
