"""Pages of the documentation site, in their order: `python tools/site.py FOLDER` lays them out.

The index has sections of README, without its list of contents; `docs/x.md` in a text becomes a link.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SECTIONS = ("", "Install", "Use", "Commands", "Without compilers", "In TRL, verl and vLLM")  # of the index
NAV = {
    "Get started": [
        "index.md",
        "models.md",
        "parallel.md",
        "data-parallel.md",
        "moe.md",
        "engines.md",
        "verify.md",
        "example.md",
        "patching.md",
        "integrations.md",
        "on-policy.md",
    ],
    "Write an operator in 20 minutes": [
        "writing-a-spec.md",
        "tutorial.md",
        "language.md",
        "gallery.md",
        "glossary.md",
    ],
    "Contract": ["contract.md"],
    "Architecture": ["architecture.md", "decisions/"],
    "Operators": ["shipped-operators.md", "operators/", "losses.md", "advantages.md"],
    "Backends": ["operators/backends.md", "limits.md"],
    "Performance": ["performance.md", "tuning.md", "drift-faults.md", "measured/"],
    "AOT": ["aot.md"],
    "Troubleshooting": ["troubleshooting.md", "error-codes.md", "environment.md"],
    "Changelog": ["changelog.md"],
}
EXAMPLES = "examples/operators"
"""The folder whose files a page links, which the site has too."""
STRICT = {"not_found": "warn", "anchors": "warn", "unrecognized_links": "warn", "absolute_links": "warn"}
CONFIG = {
    "site_name": "rlk",
    "docs_dir": "pages",
    "theme": {"name": "material", "font": False, "features": ["navigation.tabs", "navigation.indexes"]},
    "markdown_extensions": [
        "tables",
        "attr_list",
        "pymdownx.highlight",
        "pymdownx.superfences",
        {"toc": {"toc_depth": 3}},
    ],
    "validation": {"links": STRICT, "nav": {"not_found": "warn", "omitted_files": "warn"}},
}


def lay_out(folder: Path) -> None:
    """Copy the texts to folder/pages, make the index, and write folder/mkdocs.yml."""
    pages = folder / "pages"
    shutil.copytree(ROOT / "docs", pages, dirs_exist_ok=True)
    shutil.copy(ROOT / "CHANGELOG.md", pages / "changelog.md")
    code = shutil.ignore_patterns("*.md", "tests", "__pycache__")
    shutil.copytree(ROOT / EXAMPLES, pages / EXAMPLES, ignore=code, dirs_exist_ok=True)
    parts = sections((ROOT / "README.md").read_text(encoding="utf-8"))
    (pages / "index.md").write_text("\n".join(parts[title] for title in SECTIONS), encoding="utf-8")
    for page in pages.rglob("*.md"):
        up = "../" * (len(page.relative_to(pages).parts) - 1)
        page.write_text(linked(page.read_text(encoding="utf-8"), up), encoding="utf-8")
    named = {name for names in NAV.values() for name in names}
    guides = sorted({file.name for file in pages.glob("*.md")} - named)  # which the table does not know yet
    nav = [
        {title: [each for name in names for each in listed(pages, title, name)]}
        for title, names in {**NAV, "Operators": [*NAV["Operators"], *guides]}.items()
    ]
    (folder / "mkdocs.yml").write_text(json.dumps({**CONFIG, "nav": nav}, indent=1), encoding="utf-8")


def sections(text: str) -> dict[str, str]:
    """Return the parts of a text by their headings of the second level, the part before them as ""."""
    text = re.sub(r"^\*\*Contents\*\*:.*?\n\n", "", text, flags=re.MULTILINE | re.DOTALL)
    first, *rest = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    return {"": first} | {part.splitlines()[0].removeprefix("## "): part for part in rest}


def linked(text: str, up: str = "") -> str:
    """Return a text with links into docs/, as the site has them; `up` leads from the page to its root."""

    def link(found: re.Match[str]) -> str:
        files = list((ROOT / "docs").glob(found[1]))
        return f"[{found[0]}]({up}{files[0].relative_to(ROOT / 'docs')})" if len(files) == 1 else found[0]

    return re.sub(
        r"`(?:docs/)?([\w/-]+(?:\.md|-\*))`",
        link,
        text.replace("](docs/", f"]({up}").replace(f"](../{EXAMPLES}", f"]({up}{EXAMPLES}"),
    )


def listed(pages: Path, title: str, name: str) -> list[object]:
    """Return the page, or those of a folder, the index first, under its name where the tab has another."""
    if not name.endswith("/"):
        return [name]
    files = sorted(
        (pages / name).glob("*.md"), key=lambda file: (file.stem not in ("index", "README"), file.name)
    )
    named = {each for names in NAV.values() for each in names}
    found = [path for file in files if (path := file.relative_to(pages).as_posix()) not in named]
    own = name[:-1].capitalize()
    return [*found] if own == title else [{own: found}]


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]))
