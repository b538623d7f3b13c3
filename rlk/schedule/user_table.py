"""A user's table of schedules: entries by operator and kernel, consulted before the reviewed tables."""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from rlk.env import BACKENDS, Env
from rlk.errors import Code, RlkError, ScheduleError
from rlk.ir.nodes import Kernel
from rlk.ir.types import DType
from rlk.schedule.axes import roles
from rlk.schedule.entries import Range
from rlk.schedule.schedule import Schedule, Span
from rlk.target.facts import TARGETS

logger = logging.getLogger("rlk.schedule")
REQUIRED = ("op", "kernel", "target", "backend", "use")
FIELDS = tuple(f.name for f in fields(Schedule))
_PLAIN: Mapping[str, type] = {
    f.name: type(f.default) for f in fields(Schedule) if f.name not in ("tiles", "placed")
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A schedule of one kernel of an operator.

    op: its name, with its namespace if it is not rlk's; that of a gradient is the gradient's. kernel: by its
    name in the launched program. sizes: ranges of extents by axis; of dynamic axes the class of the extent
    is compared (`shape_buckets.class_of`). use: fields of Schedule and their values; the others stay as
    chosen without the table. place: file and number of the entry, for messages. dtypes: of dtype variables,
    by name. gradients: of an entry of a gradient whose inputs have kernels of their own, the inputs whose
    gradients a kernel computes; of none it is for every one.
    """

    op: str
    kernel: str
    target: str
    backend: str
    sizes: tuple[tuple[str, Range], ...]
    use: tuple[tuple[str, Any], ...]
    why: str
    place: str
    dtypes: tuple[tuple[str, str], ...] = ()
    gradients: tuple[str, ...] = ()

    def meets(self, backend: str, kernel: str, extents: Mapping[str, int]) -> bool:
        """Return whether an entry of this operator and target is for a kernel of these extents."""
        within = all(axis in extents and held.holds(extents[axis]) for axis, held in self.sizes)
        return (self.backend, self.kernel) == (backend, kernel) and within

    @property
    def facts(self) -> list[Any]:
        """The facts that decide a schedule, for keys: all but the place and the reason."""
        sizes = [[axis, held.over, held.most] for axis, held in self.sizes]
        use = [[name, repr(value)] for name, value in self.use]
        found = [self.kernel, self.backend, sizes, use, self.dtypes]
        return [*found, self.gradients] if self.gradients else found


Entries = tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """The entries of a file, in its order."""

    entries: Entries = ()

    def of(self, op: str, target: str) -> Entries:
        """Return the entries of an operator on a target."""
        return tuple(e for e in self.entries if (e.op, e.target) == (op, target))


_given: ContextVar[Table | None] = ContextVar("rlk_schedules", default=None)


def current() -> Table:
    """Return the table that RLK_SCHEDULES names, read once, or that of `using`; without one an empty one.

    Raises ScheduleError for a file that is no table.
    """
    given = _given.get()
    return _of_environment() if given is None else given


@cache
def _of_environment() -> Table:
    path = Env.current().schedules
    return Table() if path is None else read(path)


@contextmanager
def using(table: Table) -> Iterator[None]:
    """Choose by this table in this context; calls that are bound already stay as they are."""
    token = _given.set(table)
    try:
        yield
    finally:
        _given.reset(token)


# --- reading ------------------------------------------------------------------------------------------------


def read(path: Path) -> Table:
    """Return the table in a file; raise ScheduleError, naming file and entry, for what it may not say."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise _wrong(str(path), f"it cannot be read: {error}") from None
    return parse(text, str(path))


def parse(text: str, file: str) -> Table:
    """Return the table in a text; `file`: its name in messages."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _wrong(file, f"it is not TOML: {error}") from None
    _keys(document, {"entry"}, (), file)
    listed = document.get("entry", [])
    if not isinstance(listed, list):
        raise _wrong(file, "entry is not a list of tables: write [[entry]]")
    return Table(tuple(_entry(found, f"{file}, entry {i}") for i, found in enumerate(listed, 1)))


def _entry(found: object, place: str) -> Entry:
    held = _keys(found, {*REQUIRED, "sizes", "dtypes", "gradients", "why"}, REQUIRED, place)
    for name in ("op", "kernel", "target", "backend", "why"):
        if not isinstance(held.get(name, ""), str):
            raise _wrong(place, f"{name} is {held[name]!r}, not a text")
    axes, use = held.get("sizes", {}), held["use"]
    if not isinstance(axes, dict):
        raise _wrong(place, "sizes is not a table of axes, such as { T = { most = 1024 }, N = 4096 }")
    sizes = tuple(sorted((axis, _range(axis, value, place)) for axis, value in axes.items()))
    kinds = held.get("dtypes", {})
    known = [dtype.value for dtype in DType]
    if not isinstance(kinds, dict) or not all(kind in known for kind in kinds.values()):
        raise _wrong(place, f"dtypes is {kinds!r}: write dtypes by variable, such as {{ F = 'bf16' }}")
    inputs = held.get("gradients", [])
    if not isinstance(inputs, list) or not all(isinstance(name, str) for name in inputs):
        raise _wrong(place, f"gradients is {inputs!r}: write names of inputs, such as ['x']")
    if not use:
        raise _wrong(place, f"use is empty: give at least one of {', '.join(FIELDS)}")
    given = _keys(use, {*FIELDS}, (), f"{place}, use")
    values = tuple(sorted((name, _value(name, value, place)) for name, value in given.items()))
    made = Entry(
        op=held["op"],
        kernel=held["kernel"],
        target=held["target"],
        backend=held["backend"],
        sizes=sizes,
        use=values,
        why=held.get("why", ""),
        place=place,
        dtypes=tuple(sorted(kinds.items())),
        gradients=tuple(sorted(inputs)),
    )
    _changed(made, Schedule())
    # packages may have targets and backends of their own, which nothing here knows
    if made.target not in TARGETS:
        logger.warning("%s: no target %r is known; rlk's are %s", place, made.target, ", ".join(TARGETS))
    if made.backend not in BACKENDS:
        logger.warning("%s: rlk has no backend %r; its own are %s", place, made.backend, ", ".join(BACKENDS))
    return made


def _keys(found: object, names: Set[str], required: Iterable[str], place: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise _wrong(place, f"{found!r} is not a table")
    for name in sorted(found.keys() - names):
        raise _wrong(place, f"unknown field {name!r}; fields are {', '.join(sorted(names))}")
    for name in required:
        if name not in found:
            raise _wrong(place, f"{name} is missing")
    return found


def _range(axis: str, value: object, place: str) -> Range:
    if type(value) is int:
        return Range(value - 1, value)
    known = isinstance(value, dict) and value and value.keys() <= {"over", "most"}
    if not known or any(type(n) is not int for n in value.values()):  # type: ignore[attr-defined]
        wanted = "a number, { over = n }, { most = n } or both"
        raise _wrong(place, f"sizes.{axis} is {value!r}: write {wanted}")
    return Range(**value)  # type: ignore[arg-type]


def _value(name: str, value: object, place: str) -> Any:
    if name == "tiles":
        if not isinstance(value, dict) or any(type(n) is not int or n < 1 for n in value.values()):
            raise _wrong(place, f"use.tiles is {value!r}: write indices by axis, such as {{ N = 64 }}")
        return tuple(sorted(value.items()))
    if name == "placed":
        listed = value if isinstance(value, list) else [value]
        return tuple(_span(text, place) for text in listed)
    if type(value) is not _PLAIN[name]:
        raise _wrong(place, f"use.{name} is {value!r}, not of type {_PLAIN[name].__name__}")
    return value


def _span(text: object, place: str) -> Span:
    axis, _, bits = str(text).removesuffix("]").rpartition("[")
    high, _, low = bits.partition(":")
    if not axis or not str(text).endswith("]") or not (high.isdecimal() and low.isdecimal()):
        raise _wrong(place, f"use.placed has {text!r}: write the bits of an axis, such as 'N[7:3]'")
    if int(high) < int(low):
        raise _wrong(place, f"use.placed has {text!r}: the high bit comes first")
    return Span(axis, int(low), int(high) - int(low) + 1)


def _changed(entry: Entry, chosen: Schedule) -> Schedule:
    try:
        return replace(chosen, **dict(entry.use))
    except ScheduleError as error:
        raise _wrong(entry.place, error.diagnostics[0].message) from None


def _wrong(place: str, why: str) -> ScheduleError:
    return ScheduleError(Code.SCHEDULE_TABLE, place=place, why=why)


# --- choosing -----------------------------------------------------------------------------------------------


def entry_of(
    entries: Sequence[Entry], backend: str, kernel: Kernel, extents: Mapping[str, int]
) -> Entry | None:
    """Return the entry for a kernel, the last of those that meet it: what was appended to a file counts."""
    return next((e for e in reversed(entries) if e.meets(backend, kernel.name, extents)), None)


def overridden(
    entries: Sequence[Entry],
    backend: str,
    kernels: Sequence[Kernel],
    chosen: Sequence[Schedule],
    extents: Mapping[str, int],
) -> tuple[tuple[Schedule, ...], Entries]:
    """Return the schedules of kernels, those of a table in place of the chosen ones, and its entries used.

    entries: of the operator and target. Raises ScheduleError for a schedule that does not fit its kernel.
    """
    made, used = [], []
    for kernel, schedule in zip(kernels, chosen, strict=True):
        entry = entry_of(entries, backend, kernel, extents) if entries else None
        if entry is not None:
            schedule = _changed(entry, schedule)
            _check(entry, kernel, schedule, extents)
            used.append(entry)
        made.append(schedule)
    return tuple(made), tuple(used)


def _check(entry: Entry, kernel: Kernel, made: Schedule, extents: Mapping[str, int]) -> None:
    """Raise ScheduleError where a tile or a placed bit is of no axis of the kernel."""
    found = roles(kernel, extents)
    parallel, inside = [str(a) for a in found.parallel], {str(a): n for a, n in found.inside}
    for axis, _ in made.tiles:
        if axis not in parallel:
            choices = ", ".join(parallel) or "none"
            raise _wrong(entry.place, f"tiles of {axis}: the parallel axes of {kernel.name} are {choices}")
    lengths = {**inside, **dict(made.tiles)}
    placed: set[tuple[str, int]] = set()
    for span in made.placed:
        bits = lengths.get(span.axis, 1).bit_length() - 1
        held = {(span.axis, bit) for bit in range(span.low, span.low + span.bits)}
        if span.low + span.bits > bits or held & placed:
            why = "it is placed twice" if held & placed else f"the tile has {bits} index bits of this axis"
            raise _wrong(entry.place, f"placed {span} does not fit {kernel.name}: {why}")
        placed |= held


def wrong_condition(entry: Entry, name: str, why: str) -> ScheduleError:
    """Return the error of a condition that an operator cannot meet; name: sizes.T, dtypes.F."""
    return _wrong(entry.place, f"{name}: {why}")


def refused(entries: Sequence[Entry], error: RlkError) -> ScheduleError:
    """Return the error of a lowering that accepts a kernel without these entries, and not with them."""
    places = ", ".join(e.place for e in entries)
    said = error.diagnostics[0].message if error.diagnostics else str(error)
    return _wrong(places, f"{entries[0].backend} refuses {entries[0].kernel} with this schedule: {said}")


# --- writing ------------------------------------------------------------------------------------------------


def written(entry: Entry) -> str:
    """Return an entry as a table has it."""
    sizes = ", ".join(f"{axis} = {_written_range(held)}" for axis, held in entry.sizes)
    use = ", ".join(f"{name} = {_written(name, value)}" for name, value in entry.use)
    names = "".join(
        f"{name} = {_text(getattr(entry, name))}\n" for name in ("op", "kernel", "target", "backend")
    )
    kinds = ", ".join(f"{name} = {_text(dtype)}" for name, dtype in entry.dtypes)
    names += f"dtypes = {{ {kinds} }}\n" * bool(kinds)
    names += f"gradients = [{', '.join(map(_text, entry.gradients))}]\n" * bool(entry.gradients)
    return f"[[entry]]\n{names}sizes = {{ {sizes} }}\nuse = {{ {use} }}\nwhy = {_text(entry.why)}\n"


def append(path: Path, entries: Sequence[Entry]) -> None:
    """Append entries to a table, which is made where there is none; raise ScheduleError for another file."""
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    text = before + "\n" * bool(before) + "\n".join(map(written, entries))
    parse(text, str(path))
    path.write_text(text, encoding="utf-8")


def _text(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") + '"'


def _written_range(held: Range) -> str:
    if held.over is not None and held.most == held.over + 1:
        return str(held.most)
    bounds = [f"{n} = {v}" for n in ("over", "most") if (v := getattr(held, n)) is not None]
    return "{ " + ", ".join(bounds) + " }"


def _written(name: str, value: Any) -> str:
    match name:
        case "tiles":
            return "{ " + ", ".join(f"{_text(axis)} = {n}" for axis, n in value) + " }" if value else "{}"
        case "placed":
            return "[" + ", ".join(_text(str(span)) for span in value) + "]"
        case _:
            return str(value).lower()
