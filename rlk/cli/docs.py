"""Write a page of Markdown for every public operator: what its spec says, with tried examples and edges."""

from __future__ import annotations

import argparse
from pathlib import Path

from rlk.cli.text import Progress, made_folder
from rlk.errors import Code, LaunchError
from rlk.pages.page import backends, index, page, public
from rlk.runtime.registry import find, unknown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `rlk docs`."""
    parser.add_argument(
        "op",
        nargs="*",
        metavar="OP",
        help="only these registered ones; default: all of rlk and of other packages",
    )
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="DIR", help="folder of the pages")


def run(arguments: argparse.Namespace) -> int:
    """Write the pages and their index."""
    names = [_name(name) for name in arguments.op] or list(public())
    for name in names:
        if name not in public():
            raise unknown(name, public())
    folder = made_folder(arguments.out, "rlk docs", "--out")
    progress = Progress(len(names))
    for name in names:
        progress.say(name)
        (folder / f"{name}.md").write_text(page(name), encoding="utf-8")
        progress.step()
    if not arguments.op:
        (folder / "index.md").write_text(index(), encoding="utf-8")
        (folder / "backends.md").write_text(backends(), encoding="utf-8")
    progress.clear()
    print(f"{len(names)} page{'s' * (len(names) != 1)} in {folder}")
    return 0


def _name(name: str) -> str:
    """Return an operator's name; of path/to/spec.py:name that under which the file registers it."""
    if ":" not in name and not name.endswith(".py"):
        return name
    op, _ = find(name)
    if not op.calls.namespace:
        raise LaunchError(Code.NOT_REGISTERED, op=op.name, who="its page needs it")
    return op.qualified
