"""A run of the contract: its rows one after the other, what they found, and the state to go on from."""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from rlk import __version__, nn
from rlk.digest import digest_sources
from rlk.errors import Code, LaunchError, RlkError
from rlk.observe import finite
from rlk.verify import views
from rlk.verify.bench import Bench, Outcome, installed_version
from rlk.verify.contract import CONTROL, Kind, Promise, contract, stock_contract
from rlk.verify.rows import LEFT_OUT
from rlk.verify.trace import CHAINS

Status = Literal[
    "holds", "broken", "detected", "not detected", "no difference", "measured", "not run", "failed"
]
WRONG: tuple[Status, ...] = ("broken", "not detected", "failed")
"""Statuses that fail a run; the last two have a reason."""
FORMAT = 1
TRAINING_SHARE = 2.0  # of the time, as rows have theirs
PACKAGES = ("torch", "transformers", "triton", "nvidia-cutlass-dsl", "tilelang")

Row = dict[str, Any]
"""A finished row as JSON has it: its promise, its status, and what `Outcome` has."""


@dataclass(frozen=True, slots=True)
class Report:
    """All that a run found. about: the model, the machine, the sizes; rows: in the order of the contract."""

    about: dict[str, Any]
    rows: tuple[Row, ...]

    @property
    def wrong(self) -> tuple[Row, ...]:
        """Return the rows whose promise is broken, controls that were not detected, and rows that failed."""
        return tuple(row for row in self.rows if row["status"] in WRONG)

    @property
    def ran(self) -> int:
        """Return how many promises were tried."""
        return sum(row["status"] in ("holds", "broken") for row in self.rows)

    @property
    def status(self) -> int:
        """Return the exit status: 0 all that was tried holds, 1 something is wrong, 2 nothing was tried."""
        return 1 if self.wrong else 0 if self.ran else 2

    def json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        totals = {name: sum(r["status"] == name for r in self.rows) for name in get_args(Status)}
        return {
            "format": FORMAT,
            **self.about,
            "totals": totals,
            "status": self.status,
            "rows": list(self.rows),
        }


def promises(bench: Bench, groups: Collection[str], stock: bool) -> tuple[Promise, ...]:
    """Return the rows of some groups of the contract (of all, if none is named), and the controls."""
    chosen = tuple(p for p in contract(bench) if not groups or p.group in groups or p.group == CONTROL)
    return (*chosen, *(stock_contract(bench) if stock else ()))


def verify(
    bench: Bench,
    rows: Sequence[Promise],
    *,
    seconds: float = math.inf,
    state: Path | None = None,
    begun: Callable[[dict[str, Any]], None] = lambda about: None,
    told: Callable[[Row], None] = lambda row: None,
    doing: Callable[[str], None] = lambda what: None,
) -> Report:
    """Run rows of the contract and return what was found.

    seconds: what all of it may take; each row compares less then, but something. state: a file that every
    finished row is written to, and whose rows are not run again. begun: is told of the model before the
    first row, told: of every row as it is finished, doing: of what is being run. Rows of a state that the
    time cut short are run again. Raises LaunchError for the state of another run.
    """
    end = time.monotonic() + seconds
    about = described(bench)
    done = {} if state is None else finished(state, about["identity"])
    about["resumed"] = sum(p.key in done for p in rows)
    todo = [p for p in rows if p.key not in done and bench.absent(p.needs) is None]
    left = sum(p.share for p in todo)
    if todo:
        doing("training, packed")
        with bench.run.trace.of(bench.run.model):
            views.train(bench.run, _until(end, TRAINING_SHARE, TRAINING_SHARE + left))
        about["logits_sigma"] = finite(_spread(bench))
    about["tokens"] = sum(map(len, bench.run.want or bench.run.sequences))
    begun(about)
    made = []
    for promise in rows:
        row = done.get(promise.key)
        if row is None:
            doing(promise.key)
            share = promise.share if promise in todo else 0.0
            row = run_row(bench, promise, _until(end, share, left))
            left -= share
            if state is not None and row["status"] not in ("failed", "not run"):
                done[promise.key] = row
                write_state(state, about["identity"], done)
        made.append(row)
        told(row)
    return Report(about, tuple(made))


def _spread(bench: Bench) -> float:
    """Return the deviation of the logits of a sequence."""
    with torch.no_grad():
        hidden = bench.run.model(bench.run.sequences[0])
        return float(bench.run.model.logits(hidden[-views.ROWS :]).std())


def _until(end: float, share: float, left: float) -> float:
    now = time.monotonic()
    return end if end == math.inf else now + (end - now) * (share / left if left else 1.0)


def run_row(bench: Bench, promise: Promise, deadline: float) -> Row:
    """Run a row of the contract; what rlk or the device refuses is the row's result."""
    began, trained = time.monotonic(), sum(map(len, bench.run.want))
    why = bench.absent(promise.needs)
    outcome, status = Outcome(), "not run"
    if why is None:
        bench.run.random.seed(promise.key)  # so that a row does not depend on those before it
        try:
            outcome = promise.run(bench, deadline)
            status, why = judged(promise, outcome)
        except (RlkError, torch.OutOfMemoryError) as error:
            status, why = "failed", str(error)
    return {
        "key": promise.key,
        "group": promise.group,
        "view": promise.view,
        "operator": promise.operator,
        "dtype": promise.dtype,
        "promise": promise.kind.value,
        "bar": promise.bar,
        "against": promise.against,
        "status": status,
        "reason": why,
        "unit": promise.unit,
        **finite(asdict(outcome)),
        "complete": outcome.complete and trained == sum(map(len, bench.run.sequences)),
        "trained": trained,
        "seconds": round(time.monotonic() - began, 2),
    }


def judged(promise: Promise, outcome: Outcome) -> tuple[Status, str | None]:
    """Return what a row's outcome means, and the reason where it proves nothing or is wrong."""
    if outcome.figures.get(LEFT_OUT):
        if outcome.compared == 0:
            return "not run", "a change of experts reaches every token: no roundings can be compared"
    elif outcome.compared == 0:
        return "not run", "no sequence is long enough: give more --tokens"
    inside = sum(bad for _, bad in outcome.operators.values())
    if outcome.experts is not None:
        inside += outcome.experts.changed
    lost = [name for name in outcome.unseen if name not in promise.unseen]
    if lost:
        return "failed", f"results of {len(lost)} modules were not compared, of {lost[0]} first"
    match promise.kind:
        case Kind.BITWISE:
            return ("broken" if outcome.unequal or inside else "holds"), None
        case Kind.CONTROL:
            if outcome.unequal or inside:
                return "detected", None
            if promise.may_agree is not None:
                found = f"0 of {outcome.compared:,} {promise.unit} differ"
                return "no difference", f"{found}: {promise.may_agree}"
            return "not detected", "the changed model has the bits of the model: give more --tokens"
        case Kind.ACCURACY:
            assert promise.bar is not None
            return ("holds" if outcome.figures["ratio"] <= promise.bar else "broken"), None
        case Kind.MEASURED:
            return "measured", None


# --- what was run -------------------------------------------------------------------------------------------


def described(bench: Bench) -> dict[str, Any]:
    """Return the model, the machine and the sizes of a run; "identity" is what a state must share."""
    s, c = bench.subject, bench.run.model.config
    cuda = bench.device.type == "cuda"
    identity = {
        "model": s.identity,
        "numerics_id": s.model.numerics_id(bench.device),
        "dtype": bench.dtype,
        "device": torch.cuda.get_device_name(bench.device) if cuda else f"cpu ({platform.machine()})",
        "sizes": json.loads(json.dumps(asdict(bench.sizes))),
        "sources": digest_sources([Path(nn.__file__).parent, Path(__file__).parent])[:16],
        "versions": {name: found for name in PACKAGES if (found := installed_version(name)) is not None},
    }
    return {
        "model": s.name,
        "rlk": __version__,
        "source": s.source,
        "model_type": c.model_type,
        "layers": c.num_hidden_layers,
        "hidden_size": c.hidden_size,
        "vocab_size": c.vocab_size,
        "leaves": c.leaves,
        "parameters": sum(p.numel() for p in s.model.parameters()),
        "sequences": len(bench.run.sequences),
        "operators": CHAINS,
        "identity": identity,
    }


# --- the state of an interrupted run ------------------------------------------------------------------------


def finished(path: Path, identity: dict[str, Any]) -> dict[str, Row]:
    """Return the complete rows of a state by their keys, none where there is no file.

    Raises LaunchError for a file that is no state, or the state of another model, source, device or size.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        rows = {row["key"]: row for row in found["rows"] if row.get("complete")}
        other = found["identity"]
        if found["format"] != FORMAT or not isinstance(other, dict):
            raise ValueError("another format")
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError) as error:
        what, instead = f"is no state of rlk verify: {error}", "name another file, or delete this one"
        raise LaunchError(Code.CHECKPOINT_FILE, path=str(path), what=what, instead=instead) from error
    names = [name for name in sorted({*identity, *other}) if identity.get(name) != other.get(name)]
    if names:
        name = names[0]
        raise LaunchError(
            Code.VERIFY_STATE, path=str(path), names=", ".join(names), name=name, got=other.get(name),
            wanted=identity.get(name),
        )  # fmt: skip
    return rows


def write_state(path: Path, identity: dict[str, Any], rows: dict[str, Row]) -> None:
    """Write finished rows, all or nothing."""
    part = path.with_name(f"{path.name}.part")
    text = json.dumps({"format": FORMAT, "identity": identity, "rows": list(rows.values())}, indent=1)
    part.write_text(text + "\n", encoding="utf-8")
    os.replace(part, path)
