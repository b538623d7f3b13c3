"""Wheels of kernels: compile a matrix of calls into them without a GPU, and show what one holds."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rlk import __version__
from rlk.backends.registry import complete, registered
from rlk.cli.text import made_folder, size, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `rlk aot`."""
    commands = parser.add_subparsers(dest="command", required=True, metavar="build | inspect")
    build = commands.add_parser("build", help="compile a matrix into one wheel for each target and backend")
    build.add_argument("matrix", help="a TOML file (docs/aot.md), or common: the one that ships with rlk")
    build.add_argument("--target", action="append", required=True, help="such as sm_90a; may be repeated")
    names = ", ".join(each.name for each in registered() if each.wheels is not None)
    build.add_argument("--backend", action="append", help=f"{names}; by default {complete().name}")
    build.add_argument("--model", action="append", help="only these models of the matrix")
    build.add_argument("--name", help="of the wheels (default: rlk_aot); for kernels of your own operators")
    build.add_argument("--version", help="of the wheels; default: rlk's")
    build.add_argument("-o", "--out", default="dist", type=Path, metavar="FOLDER", help="default: dist")
    inspect = commands.add_parser("inspect", help="operators, signatures, ids, sizes, compilers")
    inspect.add_argument("wheel", type=Path)


def run(arguments: argparse.Namespace) -> int:
    """Build wheels, or show one."""
    return _inspect(arguments.wheel) if arguments.command == "inspect" else _build(arguments)


def _build(arguments: argparse.Namespace) -> int:
    from rlk.aot.build import build
    from rlk.aot.matrix import Matrix, read_matrix, wrong
    from rlk.aot.progress import Progress
    from rlk.runtime.call.dispatch import backends_of
    from rlk.target.facts import target

    matrix = read_matrix(arguments.matrix)
    if arguments.model:
        known = {model.name: model for model in matrix.models}
        if not set(arguments.model) <= set(known):
            raise wrong("--model", ", ".join(arguments.model), ", ".join(known))
        matrix = Matrix(tuple(known[name] for name in arguments.model), matrix.calls)
    targets, backends = [target(name) for name in arguments.target], arguments.backend or [complete().name]
    # a backend that one target lacks is an error only where no target has it
    pairs = [(on, b) for on in targets for b in backends if len(targets) == 1 or b in backends_of(on)]
    out = made_folder(arguments.out, "rlk aot", "--out")
    version = arguments.version or __version__
    for made in build(matrix, pairs, out, Progress(sys.stderr, "compiled"), arguments.name, version):
        print(f"{made.path}  {made.entries} kernels, {size(made.path.stat().st_size)}")
        for name in made.left:
            print(f"  left out: {name}", file=sys.stderr)
    return 0


def _inspect(path: Path) -> int:
    from rlk.aot.inspect import contents, signature

    found = contents(path)
    head = found.head
    tools = ", ".join(f"{tool} {version}" for tool, version in sorted(head["toolchain"].items()))
    print(f"{path.name}: {len(found.entries)} kernels, {size(found.size)}")
    print(f"target {head['target']}, backend {head['backend']}, launches {head['abi']}, rlk {head['rlk']}")
    print(f"compiled by {tools}\n")
    rows = [
        (h.key["op"], signature(h, found.entries), h.key["numerics_id"],
         "exact" if h.key["exact"] else "pinned", size(h.size))
        for h in found.entries
    ]  # fmt: skip
    print(table(("operator", "signature", "numerics id", "tier", "size"), rows, right=("size",)))
    for what in found.damaged:
        print(f"damaged  {what}")
    return 1 if found.damaged else 0
