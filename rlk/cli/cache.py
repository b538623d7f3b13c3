"""The kernel store: list it, shrink it, hash every file and set damaged ones aside, carry it elsewhere."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from tarfile import TarError

from rlk.cache import Entry, Store
from rlk.cache.archive import StoreError, export_entries, import_entries
from rlk.cache.gc import is_of_calls
from rlk.cli.text import size, table
from rlk.env import SIZE, Env, size_of
from rlk.errors import Code, LaunchError
from rlk.terminal import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `rlk cache`."""
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="ls | gc | verify | export | import"
    )
    commands.add_parser("ls", help="the entries, most recently used first")
    gc = commands.add_parser("gc", help="evict the least recently used entries beyond a size")
    gc.add_argument("--limit", metavar="SIZE", help="such as 500M or 8G; default: RLK_CACHE_LIMIT")
    commands.add_parser("verify", help="hash every file; exit 1 if an entry is damaged")
    export = commands.add_parser("export", help="write entries to an archive, which another store can import")
    export.add_argument("file", type=Path)
    export.add_argument("--target", help="only those for this target")
    export.add_argument("--backend", help="only those of this backend")
    load = commands.add_parser("import", help="add the entries of an archive; it is code: know who made it")
    load.add_argument("file", type=Path)


def run(arguments: argparse.Namespace) -> int:
    """Act on the store that the environment names; raise LaunchError for one that cannot be used."""
    env = Env.current()
    limit = env.cache_limit
    if arguments.command == "gc" and arguments.limit is not None:
        limit = parse_size(arguments.limit)
    store = Store(env.cache_dir)
    if store.refused is not None:  # what a temporary folder holds is no answer
        raise _no_store(env.cache_dir, store.refused)
    match arguments.command:
        case "ls":
            _list(store)
            return 0
        case "gc":
            _shrink(store, limit)
            return 0
        case "export":
            return _export(store, arguments)
        case "import":
            return _import(store, arguments.file)
        case _:
            return _verify(store)


def parse_size(text: str) -> int:
    """Return the bytes that a text such as 500M or 8GiB names; raise LaunchError for anything else."""
    count = size_of(text)
    if count is None:
        raise LaunchError(Code.ARG_VALUE, op="rlk cache gc", name="--limit", value=text[:60], wanted=SIZE)
    return count


def _list(store: Store) -> None:
    entries = store.entries()
    kernels = [entry for entry in entries if not is_of_calls(entry)]
    if kernels:
        rows = [_row(entry) for entry in reversed(kernels)]
        print(table(("entry", "kernel", "backend", "target", "size", "last used"), rows, right=("size",)))
        print()
    others = len(entries) - len(kernels)
    also = f" ({others} say which kernels calls run)" if others else ""
    print(f"{len(entries)} entries{also}, {size(sum(e.size for e in entries))} in {store.root}")


def _row(entry: Entry) -> tuple[str, ...]:
    key = entry.key if isinstance(entry.key, dict) else {}
    names = (str(key.get(field, "?")) for field in ("backend", "target"))
    return entry.name[:12], entry.label or "-", *names, size(entry.size), _ago(entry.last_used)


def _ago(when: float) -> str:
    seconds = max(0.0, time.time() - when)
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def _shrink(store: Store, limit: int) -> None:
    evicted = store.gc(limit)
    left = store.entries()
    freed = size(sum(e.size for e in evicted))
    kept = sum(e.size for e in left)
    print(f"evicted {len(evicted)} entries ({freed}); {len(left)} left, {size(kept)} of {size(limit)}")
    if kept > limit:
        print("entries used in the last minute stay: a process may be reading them")


def _verify(store: Store) -> int:
    count = len(store.entries())
    damaged = store.verify()
    for finding in damaged:
        print(f"damaged  {finding.name[:12]}  {printable(finding.problem)}")
    if damaged:
        print(f"{len(damaged)} moved to {store.root / 'quarantine'}; they are rebuilt when next needed")
        return 1
    print(f"{count} entries in {store.root}, all sound")
    return 0


def _export(store: Store, arguments: argparse.Namespace) -> int:
    wanted = {"target": arguments.target, "backend": arguments.backend}
    chosen = [e for e in store.entries() if isinstance(e.key, dict)
              and all(value in (None, e.key.get(field)) for field, value in wanted.items())]  # fmt: skip
    try:
        count = export_entries(chosen, arguments.file)
    except OSError as error:
        raise _unusable(arguments.file, error) from None
    print(f"{count} entries, {size(arguments.file.stat().st_size)} in {arguments.file}")
    return 0


def _import(store: Store, file: Path) -> int:
    try:
        made = import_entries(store, file)
    except StoreError as error:
        raise _no_store(store.root, str(error)) from None
    except (OSError, TarError) as error:
        raise _unusable(file, error) from None
    for name, why in made.refused:
        print(f"refused  {printable(name[:12])}  {printable(why)}")
    print(f"{len(made.added)} entries added to {store.root}, {len(made.present)} were there")
    return 1 if made.refused else 0


def _no_store(root: Path, why: str) -> LaunchError:
    wanted = f"a store that can be used: it {why}"
    return LaunchError(Code.ARG_VALUE, op="rlk cache", name="RLK_CACHE_DIR", value=str(root), wanted=wanted)


def _unusable(file: Path, error: Exception) -> LaunchError:
    wanted = f"an archive of entries ({error})"
    return LaunchError(Code.ARG_VALUE, op="rlk cache", name="FILE", value=str(file), wanted=wanted)
