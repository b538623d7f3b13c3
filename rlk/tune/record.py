"""The record of a measurement: device, versions, command and times."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from rlk import __version__
from rlk.errors import Code, LaunchError
from rlk.tune.session import Row
from rlk.tune.shapes import SUBJECTS

PACKAGES = ("torch", "triton", "nvidia-cutlass-dsl", "numpy")
_FOLDER = Path(__file__).parent


def versions(packages: Iterable[str], commit: str | None = None) -> dict[str, str]:
    """Return the version of everything that shapes a number; packages that are not there are left out."""
    found = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {**found, "python": platform.python_version(), "rlk": commit or _commit()}


def _commit() -> str:
    """Return the commit of this checkout, else rlk's version."""
    command = ["git", "-C", str(_FOLDER), "rev-parse", "--short", "HEAD"]
    try:
        git = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # no git
        return __version__
    return git.stdout.strip() if git.returncode == 0 else __version__


def write(path: Path, device: str, command: str, rows: Sequence[Row], commit: str | None) -> None:
    """Write the record of a session."""
    found = {"device": device, "versions": versions(PACKAGES, commit), "command": command, "rows": list(rows)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def read(paths: Iterable[Path], op: str | None) -> tuple[str, list[Row]]:
    """Return the devices and the rows of an operator from records; raise LaunchError for another file.

    op: None for rows of all operators.
    """
    devices: dict[str, None] = {}
    rows: list[Row] = []
    for path in paths:
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise _unreadable(path, str(error)) from error
        if not isinstance(found, Mapping) or not {"device", "rows"} <= found.keys():
            raise _unreadable(path, "it has no device and rows")
        devices[found["device"]] = None
        for row in found["rows"]:
            if op is None or row["op"].partition("@")[0] == op:  # gradients of one input each
                if "sizes" not in row:  # a record of before other operators were tuned
                    letters = SUBJECTS[row["op"]].letters
                    row["sizes"] = dict(
                        zip(letters, (row["rows"], row["columns"], row["length"]), strict=True)
                    )
                rows.append(row)
    return ", ".join(devices), rows


def _unreadable(path: Path, why: str) -> LaunchError:
    wanted = f"a record of rlk tune ({why})"
    return LaunchError(Code.ARG_VALUE, op="rlk tune", name="--read", value=str(path), wanted=wanted)
