"""Lint of commit subjects: at most 72 characters, and a verb in the imperative first.

    python tests/commit_subjects.py

checks the commits that descend from the one which added this file: older ones had other rules. A shallow
clone is checked as far as its history goes; where there is no history, nothing is, and that is said.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE = "tests/commit_subjects.py"
LONGEST = 72
EXEMPT = ("Merge ",)  # written by git
MERGED = frozenset({"4db9327c", "e6d330f2", "4c81bf6c"})
"""Commits that others were built on before their subjects were seen to be too long; they stay as they are."""

NO_VERBS = frozenset(
    "a an the this that these those it its one two both all each every some no not only more most less "
    "what how why who whose which when where whether if in on at of by for from to with without into and or "
    "but so as also now then here there we i you he she they our my your minor small new old wip".split()
)
_NO_IMPERATIVE = re.compile(r"(ed|ing|[^s]s|tion|sion|ness|ity|ment|ance|ence)$")
VERBS = frozenset(
    "embed feed seed speed exceed proceed need bring string ring alias bias focus mention position condition "
    "partition transition function caution implement document comment complement supplement increment "
    "decrement experiment augment segment balance enhance advance reference sequence".split()
)
"""Imperatives that end as participles, plurals and nouns do."""


def wrong(subject: str) -> list[str]:
    """Return what is wrong with a subject line."""
    if subject.startswith(EXEMPT):
        return []
    first = subject.partition(" ")[0]
    word = first.lower()
    found = []
    if len(subject) > LONGEST:
        found.append(f"has {len(subject)} characters, the limit is {LONGEST}")
    if not re.fullmatch(r"[A-Z][a-z]+(-[a-z]+)*", first):
        found.append(f"begins with {first!r}, not with a capitalised verb")
    elif word in NO_VERBS or (word not in VERBS and _NO_IMPERATIVE.search(word)):
        found.append(f"begins with {first!r}, which is no verb in the imperative")
    return found


def subjects(root: Path) -> tuple[dict[str, str], str]:
    """Return the subjects that are checked, by commit, and from where on; none where there is no history."""
    top = _git(root, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != root.resolve():
        return {}, "there is no git history here"
    added = (_git(root, "log", "--diff-filter=A", "--format=%H", "--", FILE) or "").split()
    if not added:
        return {}, f"no commit has {FILE} yet"
    first = added[-1]
    # not what a branch without the rule brings: merges of those are later, their commits are not
    lines = _git(root, "log", "--ancestry-path", "--format=%h%x09%s", f"{first}..HEAD") or ""
    found = dict(line.split("\t", 1) for line in lines.splitlines())
    found = {commit: subject for commit, subject in found.items() if commit[:8] not in MERGED}
    return found, f"commits after {first[:9]}"


def _git(root: Path, *words: str) -> str | None:
    """Return what git prints; None where it is not there or fails."""
    try:
        ran = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return ran.stdout.strip() if ran.returncode == 0 else None


def main(root: Path = ROOT) -> int:
    """Check this repository, and say what was checked; return 1 if a subject is wrong."""
    found, since = subjects(root)
    findings = [
        f"{commit} {subject!r} {what}" for commit, subject in found.items() for what in wrong(subject)
    ]
    print("\n".join([*findings, f"{len(found)} subjects checked: {since}"]))
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main())
