"""Write docs/error-codes.md: every code of an error of rlk, its message, and what mends it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from rlk.errors import Code

PAGE = Path(__file__).resolve().parents[1] / "docs" / "error-codes.md"
HEAD = """# Error codes

Every error that rlk raises on purpose ends with its code in brackets. A code is stable; its message may
change between releases. Braces stand for what was found. `python tools/error_codes.py` writes this page.
"""
SAID = "what the error says, for what was found"


def page() -> str:
    """Return the page: a table for each group of codes, in the order of rlk/errors.py."""
    lines = [HEAD.rstrip()]
    for line in inspect.getsource(Code).splitlines():
        if group := re.fullmatch(r"    # (.*)", line):
            lines.append(f"\n## {group[1].capitalize()}\n\n| code | message | what to do |\n|---|---|---|")
        elif (name := re.match(r"    ([A-Z][A-Z_0-9]*) = ", line)) and name[1] in Code.__members__:
            code = Code[name[1]]
            fixes = "; ".join(code.fixes).replace("{remedy}", SAID)
            lines.append(f"| `{code.name}` | {_cell(code.message)} | {_cell(fixes)} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Return text as a cell of a table: no bar or line ends it, no underscore or asterisk formats it."""
    return re.sub(r"([|*_<>\[\]])", r"\\\1", text).replace("\n", " ")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
