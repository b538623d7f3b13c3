"""Prepare all kernels of one model before its first call, with any number of processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from rlk.aot.calls import observe
from rlk.aot.matrix import Calls, Matrix, wrong
from rlk.aot.progress import Progress
from rlk.errors import Code, LaunchError, RlkError
from rlk.runtime.binding.invocation import target_of
from rlk.runtime.kernels.build import store
from rlk.runtime.kernels.pool import pool
from rlk.runtime.prefetch import Observer, started
from rlk.target.facts import Target


@dataclass(frozen=True, slots=True)
class Warmed:
    """The numbers of kernels that a model needs, that wheels have, and that were compiled here; failures.

    lost: how many no other process will find, as no store could take them; why: of one of them.
    """

    total: int
    wheels: int
    compiled: int
    failed: tuple[tuple[str, str], ...]
    lost: int = 0
    why: str = ""


def here() -> Target:
    """Return the target of the first device; raise LaunchError where there is none."""
    found = target_of(torch.device("cuda", 0)) if torch.cuda.is_available() else None
    if found is None:
        raise LaunchError(Code.ARG_MISSING, op="rlk warmup", name="--target", why="where there is no device")
    return found


def chosen_calls(
    calls: tuple[Calls, ...], dtype: str | None, names: list[str] | None, rows: list[int] | None
) -> tuple[Calls, ...]:
    """Return the calls of these operators (None: all) in a model's dtype, with these rows (None: their own).

    dtype: None: those of the calls. Raises LaunchError for an operator that the calls do not have.
    """
    known = [each.op for each in calls]
    missing = [name for name in names or () if name not in known]
    if missing:
        raise wrong("--op", ", ".join(missing), ", ".join(dict.fromkeys(known)))
    kept = [each for each in calls if names is None or each.op in names]
    return tuple(
        replace(each, dtypes=_in(dtype, each.dtypes) if dtype else each.dtypes, rows=tuple(rows or each.rows))
        for each in kept
    )


def _in(dtype: str, given: tuple[str | Mapping[str, str], ...]) -> tuple[str | Mapping[str, str], ...]:
    """Return dtypes of calls in a model's dtype: those that are given by variable stay."""
    named = tuple(each for each in given if not isinstance(each, str))
    return named if len(named) == len(given) else (dtype, *named)


def warm(
    matrix: Matrix, on: Target, progress: Progress, steps: Callable[[Observer], None] | None = None
) -> Warmed:
    """Prepare what the calls of models run on a target, which need not be here.

    steps: calls what it is given with further launches, such as those of an engine's steps.
    Compilers run in worker processes. Several processes may do this at once, such as the ranks of a node: a
    kernel is compiled by the one that holds its lock, and the others wait for it.
    """
    before = pool().compiled

    def every(observer: Observer) -> None:
        observe(matrix, observer)
        if steps is not None:
            steps(observer)

    found = started(every, on, progress.follow)
    failed: list[tuple[str, str]] = []
    entries: set[Path] = set()
    for future, name in found.items():
        try:
            entry = future.result()
        except RlkError as error:
            failed.append((name, str(error)))
            continue
        entries |= {entry} if entry is not None else set()
    progress.end()
    own = store()
    whys = {path: own.why_lost(path) for path in entries}
    lost = sorted(why for why in whys.values() if why is not None)
    shipped = sum(why is None and not path.is_relative_to(own.root) for path, why in whys.items())
    made = pool().compiled - before
    return Warmed(len(entries), shipped, made, tuple(failed), len(lost), lost[0] if lost else "")
