"""A wheel's record of a call equals the result of tracing it."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from services import NO_STREAM

from rlk.backends import binaries, triton
from rlk.digest import canonical, digest_bytes
from rlk.ops import swiglu
from rlk.runtime.binding import invocation
from rlk.runtime.binding.invocation import geometry_of
from rlk.runtime.call import dispatch
from rlk.runtime.call import entry as calls
from rlk.runtime.kernels import build, trace_cache
from rlk.runtime.launch.driver import Cuda
from rlk.runtime.launch.launcher import parameter_layout
from rlk.runtime.launch.record import ModuleRecord
from rlk.runtime.wheels import reader, wheel_lookup, wheel_metadata

pytest.importorskip("triton", reason="building a wheel needs a compiler")
from test_aot import H200, NAME, changed_head, flip, forced, unpacked, wheel  # noqa: F401
from test_launch import FakeCuda

ROWS = 8191  # as the matrix has them
SPEC = swiglu.specs[0]  # type: ignore[attr-defined]


def forget() -> None:
    """Know as little as a process that has just begun."""
    reader.forget()
    dispatch.dispatch.forget()
    invocation.interfaces.clear()
    for each in (invocation.traced, invocation.judged):
        each.cache_clear()


def never(*_: object, **__: object) -> None:
    raise AssertionError("neither traced nor kept")


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count what is traced."""
    made, real = list[int](), invocation.canonical
    monkeypatch.setattr(invocation, "canonical", lambda *a, **k: made.append(1) or real(*a, **k))
    return made


@pytest.fixture
def site(unpacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:  # noqa: F811
    """Install the wheel for a Hopper that is not there, where there is no store."""
    place = shutil.copytree(unpacked, tmp_path / "site")
    monkeypatch.syspath_prepend(str(place))
    for module in (dispatch, invocation):
        monkeypatch.setattr(module, "target_of", lambda device: H200)
    monkeypatch.setattr(dispatch, "index_of", lambda device: 0)
    monkeypatch.setattr(dispatch, "known_interface", lambda invocation, on, make: make())
    monkeypatch.setattr(build, "pool", never)
    monkeypatch.setattr(wheel_lookup, "_said", set())
    forget()
    yield place
    forget()


def said(site: Path, **members: str) -> None:
    """Change what the wheel says of choices, with digests that fit."""
    file = site / NAME / reader.CALLS
    found = json.loads(file.read_bytes())
    for each in found["choices"].values():
        each.update(members)
    data = canonical(found)
    file.write_bytes(data)
    changed_head(site, calls={"bytes": len(data), "sha256": digest_bytes(data)})


def call_of(x: torch.Tensor) -> tuple[Any, ...]:
    tensors = {"gate": x, "up": x}
    found = calls.invoke(SPEC, tensors, {}, {}, None)
    dispatch.look_up(found, tensors)
    return found, H200.softmax, geometry_of(found, tensors), tensors, H200


def answer(rows: int = ROWS, skipped: int = 0, *backends: str) -> wheel_lookup.Answer:
    """Ship rows that begin some elements after a multiple of 16 bytes, as a new process does."""
    forget()
    x = torch.zeros(rows * 512 + skipped, dtype=torch.bfloat16)[skipped:].view(rows, 512)
    return dispatch.ship(*call_of(x), backends or ("triton",))


@pytest.mark.parametrize("compiler", [True, False])
def test_a_first_call_is_launched_untraced(
    compiler: bool, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiler:
        monkeypatch.setitem(sys.modules, "triton", None)
        monkeypatch.setattr(triton, "triton_version", lambda: None)
    for name in ("canonical", "numerics_id"):
        monkeypatch.setattr(invocation, name, never)
    records = [ModuleRecord.read(p.parent) for p in site.rglob("launch.json") if "_grad" not in p.read_text()]
    library = FakeCuda(parameter_layout(records[0].kernels[0].types)[1])
    monkeypatch.setattr(binaries, "driver", lambda kind: Cuda(library))
    monkeypatch.setattr(binaries, "services", lambda: NO_STREAM)
    x = torch.zeros(ROWS, 512, dtype=torch.bfloat16)
    assert swiglu(x, x).shape == x.shape and len(library.launches) == 1


def test_it_is_what_tracing_finds(site: Path, traced: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Other sizes, and addresses that its kernels refuse, are traced."""
    own, answers = trace_cache.own_text(), []
    for text in (own, "another", None):
        monkeypatch.setattr(trace_cache, "own_text", lambda text=text: text)
        for case in [(ROWS, 0), (7700, 0), (ROWS, 8), (ROWS, 1), (8192, 0), (48, 0)]:
            traced.clear()
            found = answer(*case).found
            answers.append((found and (found.kernel, found.module), dict(wheel_lookup._first_choice)))
            assert bool(traced) == (text != own or case[0] in (8192, 48) or case[1] == 1)
    assert answers[:6] == answers[6:12] == answers[12:]
    assert answers[0][0] is not None and answers[0][1] and answers[3][0] is None  # the controls


def test_an_interface_serves_calls_of_any_sizes(site: Path, traced: list[int]) -> None:
    found, *_ = call_of(torch.zeros(48, 520, dtype=torch.bfloat16))
    told = invocation.interfaces.pop(found)
    assert not traced and told == invocation.interface(found)
    others = copy(SPEC)
    others.fn = never
    assert wheel_metadata.named(found) and wheel_metadata.named(replace(found, spec=others)) is None


def test_a_backend_that_is_wanted_more_has_to_say_it_itself(
    site: Path, traced: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, silent = reader.installed, reader.Wheel("of CuTe's", "1", site / "nowhere", ())
    theirs = lambda on, backend: real(on, backend) if backend == "triton" else ((silent,), ("why",))  # noqa: E731
    monkeypatch.setattr(wheel_lookup, "installed", theirs)
    both = answer(ROWS, 0, "triton", "cute")
    assert both.found is not None and both.refused == ("why",) == tuple(wheel_lookup._said) and not traced
    said(site, wanted="cute")
    assert answer().found is not None and not traced
    assert answer(ROWS, 0, "triton", "cute").found is not None and traced


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "another id": (lambda site: said(site, numerics_id="0" * 16), "the installed spec's is 000"),
    "no program": (lambda site: said(site, program="program"), ""),
    "an older wheel": (lambda site: changed_head(site, calls=None), ""),
    "changed": (lambda site: flip(site / NAME / reader.CALLS), "calls.json has another sha256"),
    "any user's": (lambda site: (site / NAME / reader.CALLS).chmod(0o666), "written by other users"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_may_be_wrong_is_found_by_tracing(case: str, site: Path, traced: list[int]) -> None:
    (change, reason), want = WRONG[case], answer().found
    assert want is not None and not traced
    change(site)
    found = answer()
    assert traced and found.found is not None and found.found.kernel.folder == want.kernel.folder
    assert any(reason in why for why in found.refused) == bool(reason)
    assert set(found.refused) == wheel_lookup._said


def test_nothing_is_asked_where_wheels_are_turned_off(
    site: Path, traced: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    forced(monkeypatch, aot=False)
    monkeypatch.setattr(wheel_metadata, "installed", never)
    assert answer().found is None and traced


def test_a_checkout_and_an_installed_package_have_the_same_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def text(place: str, templates: str, said: str = "") -> str | None:
        for file in ("rlk/__init__.py", "rlk/ir/__init__.py", f"{templates}/b.j2"):
            (tmp_path / place / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / place / file).write_text(file.replace(templates, "templates") + said)
        (tmp_path / "checkout/rlk/gone/__pycache__").mkdir(parents=True, exist_ok=True)  # of another branch
        monkeypatch.setattr(trace_cache, "PACKAGE", tmp_path / place / "rlk")
        monkeypatch.setattr(trace_cache, "templates", lambda: tmp_path / place / templates)
        monkeypatch.setattr(trace_cache, "_changed", lambda: False)
        return trace_cache.own_text.__wrapped__()

    beside = text("checkout", "templates")
    assert text("installed", "rlk/_templates") == beside != text("other", "templates", "# more")
