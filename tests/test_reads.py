"""The digest of everything that a spec's trace reads: it moves with whatever moves the program."""

from __future__ import annotations

import array
import functools
import importlib
import itertools
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from enum import IntEnum
from fractions import Fraction
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from rlk.ir.text import print_program
from rlk.lang import Axis, L, Op, Outputs, Tensor, f32, op
from rlk.lang.reads import digest_of
from rlk.lang.variants import gradient_variant
from rlk.runtime.registry import operators

HELPERS = '''
from __future__ import annotations
from dataclasses import dataclass, field
from enum import Enum
from functools import partial, wraps

FACTOR, UNREAD = 2.0, 1.0
TABLE = {"forward": [1.0, 3.0], "backward": (5.0, float("nan"))}

class Kind(Enum):
    WIDE = 7.0

class Base:
    shift = 0.25

    def moved(self, x):
        return x + self.shift

@dataclass(frozen=True)
class Options(Base):
    slope: float = 11.0
    more: list[float] = field(default_factory=lambda: [13.0])

    @property
    def twice(self):
        return 2.0 * self.slope

OPTIONS = Options(slope=17.0)

def times(x, by=19.0, *, and_by=23.0):
    return x * by * and_by

def scaled(factor):
    def inner(x):
        return x * factor
    return inner

by_closure = scaled(29.0)
by_partial = partial(times, by=31.0)

def decorated(fn):
    @wraps(fn)
    def inner(*args, **options):
        return {name: tile * 37.0 for name, tile in fn(*args, **options).items()}
    return inner
'''  # fmt: skip
SPEC = '''
from __future__ import annotations
import math
import reads_helpers as helpers
from reads_helpers import OPTIONS, Kind, decorated, times
from rlk.lang import Axis, L, Outputs, Scalar, Tensor, f32, op

T, N = Axis("T", dynamic=True), Axis("N")
LIMIT = 41.0

def made(x, y):
    return L.out(y=y)

def limited(x):
    return L.minimum(x, LIMIT) if LIMIT < 1e6 else x

@op(saves=("x",))
def square(x: Tensor[f32, T, N], scale: Scalar[f32] = 1.0) -> Outputs:
    """Something of everything."""
    x = limited(x.to(f32)) * helpers.FACTOR * helpers.TABLE["forward"][0]
    x = helpers.by_partial(helpers.by_closure(times(x))) * Kind.WIDE.value * math.pi
    x = OPTIONS.moved(x) * OPTIONS.twice * OPTIONS.more[0] * scale
    return pick(x)

@decorated
def pick(x):
    inner = lambda y: y * 43.0
    return {"y": inner(x)}

def _finish(fn):
    return lambda *args, **options: L.out(**fn(*args, **options))

@square.vjp("x")
def square_grad(ctx, d_y: Tensor[f32, T, N]) -> Outputs:
    return L.out(d_x=d_y * ctx.x.to(f32) * helpers.TABLE["backward"][0])
'''.replace("    return pick(x)", "    return L.out(**pick(x))")  # fmt: skip


def load(folder: Path, **texts: str) -> ModuleType:
    """Import a spec and its helpers of these texts, as a new process would."""
    for name, text in {"reads_helpers": HELPERS, "reads_spec": SPEC, **texts}.items():
        (folder / f"{name}.py").write_text(text)
    for name in ("reads_helpers", "reads_spec"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    return importlib.import_module("reads_spec")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # edits of one second have one time stamp
    yield tmp_path
    for name in ("reads_helpers", "reads_spec"):
        sys.modules.pop(name, None)


def programs(spec: Op) -> tuple[str, str]:
    """Return what the traces of the operator and of its gradient are, by no cache."""
    spec._traced.clear()
    assert spec.gradient is not None
    variant = spec.default_variant()
    backward = gradient_variant(variant, ("x",), ("y",))
    return print_program(spec.trace(variant)), print_program(spec.gradient.trace(backward))


def digests(spec: Op) -> tuple[str, str]:
    """Return the digests of the operator and of its gradient as they are now."""
    found = digest_of(spec), digest_of(spec.gradient)
    assert found[0] is not None and found[1] is not None
    return found  # type: ignore[return-value]


EDITS = [
    ("reads_helpers", "FACTOR, UNREAD = 2.0", "FACTOR, UNREAD = 2.5"),
    ("reads_helpers", '"forward": [1.0', '"forward": [1.5'),
    ("reads_helpers", "WIDE = 7.0", "WIDE = 7.5"),
    ("reads_helpers", "shift = 0.25", "shift = 0.5"),
    ("reads_helpers", "return x + self.shift", "return x - self.shift"),
    ("reads_helpers", "lambda: [13.0]", "lambda: [13.5]"),
    ("reads_helpers", "return 2.0 * self.slope", "return 2.5 * self.slope"),
    ("reads_helpers", "Options(slope=17.0)", "Options(slope=17.5)"),
    ("reads_helpers", "by=19.0", "by=19.5"),
    ("reads_helpers", "and_by=23.0", "and_by=23.5"),
    ("reads_helpers", "scaled(29.0)", "scaled(29.5)"),
    ("reads_helpers", "by=31.0", "by=31.5"),
    ("reads_helpers", "tile * 37.0", "tile * 37.5"),
    ("reads_helpers", "return x * by * and_by", "return x * and_by * by"),
    ("reads_spec", "LIMIT = 41.0", "LIMIT = 41.5"),
    ("reads_spec", "y * 43.0", "y * 43.5"),
    ("reads_spec", "math.pi", "math.e"),
    ("reads_spec", "@decorated\n", ""),
    ("reads_spec", "L.minimum(x, LIMIT)", "L.maximum(x, LIMIT)"),
    ("reads_spec", 'Axis("N")', 'Axis("M")'),
]  # fmt: skip


@pytest.mark.parametrize("file, old, new", EDITS, ids=[f"{old} -> {new}" for _, old, new in EDITS])
def test_what_changes_a_program_changes_its_digest(folder: Path, file: str, old: str, new: str) -> None:
    text = {"reads_helpers": HELPERS, "reads_spec": SPEC}[file]
    assert text.count(old) == 1
    first = load(folder).square
    was = digests(first), programs(first)
    second = load(folder, **{file: text.replace(old, new)}).square
    now = digests(second), programs(second)
    assert was[1][0] != now[1][0], "the edit changes nothing, and so tests nothing"
    assert was[0][0] != now[0][0] and was[0][1] != now[0][1]


def test_what_the_gradient_alone_reads_is_of_the_gradient(folder: Path) -> None:
    edit = HELPERS.replace('"backward": (5.0', '"backward": (5.5'), SPEC.replace("d_y * ctx.x", "ctx.x * d_y")
    for texts in ({"reads_spec": edit[1]}, {"reads_helpers": edit[0]}):
        first = load(folder).square
        was = digests(first), programs(first)
        second = load(folder, **texts).square
        now = digests(second), programs(second)
        assert was[1][0] == now[1][0] and was[1][1] != now[1][1]
        assert was[0][1] != now[0][1]
        assert (was[0][0] == now[0][0]) == ("reads_spec" in texts)  # a table is read whole


def test_what_is_not_read_changes_nothing(folder: Path) -> None:
    """The control: the digest is not one of files, nor of a process."""
    was = digests(load(folder).square)
    assert (
        digests(load(folder, reads_helpers=HELPERS.replace("UNREAD = 2.0, 1.0", "UNREAD = 2.0, 9.0")).square)
        == was
    )
    command = (
        "from reads_spec import square; from rlk.lang.reads import digest_of; "
        "print(digest_of(square), digest_of(square.gradient))"
    )
    load(folder)
    for seed in ("1", "2"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join([str(folder), *sys.path]),
        }
        done = subprocess.run(
            [sys.executable, "-c", command], env=environment, capture_output=True, text=True
        )
        assert tuple(done.stdout.split()) == was, done.stderr


def _redefine(m: ModuleType) -> None:
    m.times = lambda x: x * 3.0


def _set_default(m: ModuleType) -> None:
    m.times.__defaults__ = (19.5,)


def _set_keyword_default(m: ModuleType) -> None:
    m.times.__kwdefaults__["and_by"] = 23.5


def _set_closure(m: ModuleType) -> None:
    m.helpers.by_closure.__closure__[0].cell_contents = 29.5


def _decorate(m: ModuleType) -> None:
    m.pick = m.decorated(m.pick)


def _set_constant(m: ModuleType) -> None:
    m.helpers.FACTOR = 2.5


def _set_element(m: ModuleType) -> None:
    m.helpers.TABLE["forward"][0] = 1.5


def _set_attribute(m: ModuleType) -> None:
    m.OPTIONS.more[0] = 13.5


def _set_method(m: ModuleType) -> None:
    m.helpers.Base.moved = lambda self, x: x


def _set_code(m: ModuleType) -> None:
    m.limited.__code__ = (lambda x: x).__code__


CHANGES = [
    _redefine, _set_default, _set_keyword_default, _set_closure, _decorate, _set_constant, _set_element,
    _set_attribute, _set_method, _set_code,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_at_run_time_changes_the_digest(folder: Path, change: Callable[[ModuleType], None]) -> None:
    module = load(folder)
    was = digests(module.square), programs(module.square)
    change(module)
    now = digests(module.square), programs(module.square)
    assert was[1][0] != now[1][0] and was[0][0] != now[0][0]


@pytest.mark.parametrize("change", CHANGES)
def test_a_process_that_has_old_programs_has_no_digest(
    folder: Path, change: Callable[[ModuleType], None]
) -> None:
    """The programs of before the change are still there, and must not be kept as those of after it."""
    module = load(folder)
    fresh = module.square.reads(), module.square.gradient.reads()
    module.square.trace(module.square.default_variant())
    assert (module.square.reads(), module.square.gradient.reads()) == fresh and None not in fresh
    change(module)
    assert module.square.reads() is None and module.square.gradient.reads() is None


# --- what cannot be followed ---

T = Axis("T", dynamic=True)
COUNTED, NUMBERS, SEEN = itertools.count(), iter([1.0, 2.0]), [0.0]
STATE = SimpleNamespace(factor=2.0)
TENSOR = torch.ones(1)
CALLED = 0


@functools.cache
def remembered() -> float:
    return SEEN[0]


def counted() -> float:
    global CALLED
    CALLED += 1
    return float(CALLED)


def imported() -> float:
    import math

    return math.pi


def through(module: Any) -> float:
    return float(module.pi)


UNKNOWN = [
    lambda: float(os.environ.get("FACTOR", "2")),
    lambda: time.time(),
    lambda: float(next(COUNTED)),
    lambda: next(NUMBERS),
    lambda: STATE.factor,
    lambda: float(TENSOR[0]),
    lambda: float(globals()["SEEN"][0]),
    lambda: float(eval("SEEN[0]")),
    lambda: float(np.log2(8.0)),
    lambda: float(through.__globals__["SEEN"][0]),
    lambda: float(getattr(through, "__globals__")["SEEN"][0]),  # noqa: B009
    lambda: through(np),
    lambda: float(hash("x")),
    lambda: random.Random(0).random(),
    lambda: array.array("d", [2.0])[0],
    lambda: float(Path("factor").read_text()),
    remembered,
    counted,
    imported,
]  # fmt: skip


def scaled_by(factor: Callable[[], float]) -> Op:
    @op()
    def scaled(x: Tensor[f32, T]) -> Outputs:
        return L.out(y=x.to(f32) * factor())

    return scaled


@pytest.mark.parametrize("factor", UNKNOWN)
def test_what_cannot_be_followed_has_no_digest(factor: Callable[[], float]) -> None:
    assert scaled_by(factor).reads() is None


ARRAY = np.array([3.0])


class Point(NamedTuple):
    x: float
    y: float


class Flavour(IntEnum):
    SWEET = 3


KNOWN = [
    lambda: 2.0,
    lambda: SEEN[0],
    lambda: max(abs(float(x)) for x in [1.0, *SEEN]),
    lambda: float(np.pi),
    lambda: float(functools.reduce(lambda a, b: a + b, SEEN)),
    lambda: float(ARRAY[0]),
    lambda: float(Fraction(1, 2) + Point(1.0, 2.0).x + Flavour.SWEET),
    functools.partial(lambda x: x, 2.0),
    np.float32(2.0).item,
]


@pytest.mark.parametrize("factor", KNOWN)
def test_what_can_be_followed_has_one(factor: Callable[[], float]) -> None:
    """The control: functions of the same form."""
    assert scaled_by(factor).reads() is not None


def test_a_spec_that_changes_what_it_reads_has_no_digest() -> None:
    held = [1.0]

    @op()
    def growing(x: Tensor[f32, T]) -> Outputs:
        held.append(2.0 * held[-1])
        return L.out(y=x.to(f32) * held[-1])

    assert growing.reads() is not None
    growing.trace(growing.default_variant())
    assert growing.reads() is None


def test_arrays_are_read_by_their_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    def read() -> float:
        return float(ARRAY[0])

    was = digest_of(read)
    monkeypatch.setitem(globals(), "ARRAY", np.array([4.0]))
    assert was is not None and digest_of(read) != was
    monkeypatch.setitem(globals(), "ARRAY", np.array([3.0]))
    assert digest_of(read) == was


def test_rlks_own_specs_are_not_followed() -> None:
    """Keys digest rlk's text; a function of another file in the place of one of rlk's is followed."""
    own = operators()["swiglu"]
    assert own.reads() == "" and own.gradient is not None and own.gradient.reads() == ""
    other = copy(own)
    other.fn = FunctionType(own.fn.__code__.replace(co_filename="/x.py"), own.fn.__globals__)
    assert other.reads() != ""
    gradient = replace(own.gradient, op=other)
    assert gradient.reads() != ""
