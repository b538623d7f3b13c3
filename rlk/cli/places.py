"""Folders of a store that this user cannot use, with the reason: owner and permissions."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

WORKED_IN = ("locks", "staging", "quarantine")  # beside entries, by whoever fills the store
SHOWN = 4  # reasons


def unusable(root: Path, *, filled: bool) -> list[str]:
    """Return why folders of a store do not serve this user; nothing where all do, or there is no store.

    filled: whether this user is to add entries, and not only to read them.
    """
    found: Counter[str] = Counter()
    examples: dict[str, Path] = {}
    for place, written in _folders(root, filled):
        why = _why(place, written)
        if why is not None:
            found[why] += 1
            examples.setdefault(why, place)
    lines = []
    for why, count in found.most_common(SHOWN):
        more = f" and {count - 1} more" if count > 1 else ""
        lines.append(f"{examples[why]}{more}: {why}")
    return lines


def _folders(root: Path, filled: bool) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of a store down to those of entries, and whether they have to be written."""
    yield root, False
    if filled:
        yield from ((root / name, True) for name in WORKED_IN if os.path.exists(root / name))
    entries = root / "entries"
    if os.path.exists(entries):  # False where the root is closed, which `Path.exists` raises
        yield entries, filled
        for shard in _listed(entries):
            yield shard, filled
            yield from ((entry, False) for entry in _listed(shard))


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(each for each in folder.iterdir() if each.is_dir())
    except OSError:  # which is said of the folder itself
        return []


def _why(place: Path, written: bool) -> str | None:
    try:
        status = place.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot be reached: {error.strerror}"
    needed = os.R_OK | os.X_OK | (os.W_OK if written else 0)
    if os.access(place, needed):
        return None
    lacking = "written" if os.access(place, os.R_OK | os.X_OK) else "read"
    return f"cannot be {lacking}: it is of user {status.st_uid}, with mode {status.st_mode & 0o7777:04o}"
