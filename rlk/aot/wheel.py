"""Write a wheel whose bytes depend on the content of its files alone."""

from __future__ import annotations

import base64
import hashlib
import os
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlk.env import Env
from rlk.runtime.wheels.reader import GROUP

_EARLIEST = 315532800  # 1980: the first second that a zip file can name
_MODE = 0o100644


@dataclass(frozen=True, slots=True)
class Facts:
    """The metadata of a wheel. tag: the machines that it is for, such as "py3-none-any"."""

    name: str
    version: str
    summary: str
    requires: tuple[str, ...]
    tag: str

    @property
    def file(self) -> str:
        """The name of the wheel's file."""
        return f"{self.name}-{self.version}-{self.tag}.whl"


def write_wheel(facts: Facts, files: Mapping[str, bytes], folder: Path) -> Path:
    """Write a wheel of package data and return its path; `files` by their path inside the package.

    Members are sorted and dated by SOURCE_DATE_EPOCH (1980 without it); modes are fixed. The wheel is
    replaced whole, also where several processes write it at once. Raises OSError.
    """
    info = f"{facts.name}-{facts.version}.dist-info"
    members = {f"{facts.name}/{name}": data for name, data in files.items()}
    members[f"{info}/METADATA"] = _metadata(facts).encode()
    members[f"{info}/WHEEL"] = _wheel(facts).encode()
    members[f"{info}/entry_points.txt"] = f"[{GROUP}]\n{facts.name} = {facts.name}\n".encode()
    record = "".join(f"{name},{_digest(data)},{len(data)}\n" for name, data in sorted(members.items()))
    members[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    path = folder / facts.file
    when = time.gmtime(max(_EARLIEST, Env.current().epoch or 0))[:6]
    partial = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}.partial")
    try:
        with zipfile.ZipFile(partial, "x") as archive:
            for name, data in sorted(members.items()):
                member = zipfile.ZipInfo(name, when)
                member.compress_type, member.external_attr, member.create_system = (
                    zipfile.ZIP_DEFLATED,
                    _MODE << 16,
                    3,
                )
                archive.writestr(member, data, compresslevel=9)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return path


def _digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _metadata(facts: Facts) -> str:
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {facts.name}",
        f"Version: {facts.version}",
        f"Summary: {facts.summary}",
        "License: Apache-2.0",
        "Requires-Python: >=3.11",
        *(f"Requires-Dist: {each}" for each in facts.requires),
    ]
    return "\n".join(lines) + "\n"


def _wheel(facts: Facts) -> str:
    pure = "true" if facts.tag.endswith("-any") else "false"
    return f"Wheel-Version: 1.0\nGenerator: rlk\nRoot-Is-Purelib: {pure}\nTag: {facts.tag}\n"
