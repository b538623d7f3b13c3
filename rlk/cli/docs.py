"""Write a page of Markdown for every public operator: what its spec says, with tried examples and edges."""

from __future__ import annotations

import argparse
from pathlib import Path

from rlk.cli.text import Progress, made_folder
from rlk.pages.page import backends, index, page, public


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `rlk docs`."""
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="DIR", help="folder of the pages")


def run(arguments: argparse.Namespace) -> int:
    """Write the pages and their index."""
    folder = made_folder(arguments.out, "rlk docs", "--out")
    (folder / "index.md").write_text(index(), encoding="utf-8")
    progress = Progress(len(public()))
    for name in public():
        progress.say(name)
        (folder / f"{name}.md").write_text(page(name), encoding="utf-8")
        progress.step()
    (folder / "backends.md").write_text(backends(), encoding="utf-8")
    progress.clear()
    print(f"{len(public())} pages in {folder}")
    return 0
