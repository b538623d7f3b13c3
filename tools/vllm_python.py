"""Install the Python of vLLM's wheel alone: no compiled extension, no CUDA, for tests on a CPU.

Usage: python tools/vllm_python.py 0.26.0
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

LEFT_OUT = (".so", "vllm/vllm-rs")
"""How the names of binaries end."""


def install(version: str) -> None:
    """Download the wheel of a version, and unpack it into this environment without its binaries."""
    to = sysconfig.get_path("purelib")
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        subprocess.run([*pip, "--dest", folder, f"vllm=={version}"], check=True)
        (wheel,) = Path(folder).glob("vllm-*.whl")
        with zipfile.ZipFile(wheel) as opened:
            opened.extractall(to, [name for name in opened.namelist() if not name.endswith(LEFT_OUT)])
    print(f"vllm {version} without its binaries in {to}")


if __name__ == "__main__":
    install(sys.argv[1])
