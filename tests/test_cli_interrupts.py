"""Ctrl-C ends every command that compiles: at once, cleanly, in one line, and a second one too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="nothing is compiled without a compiler")

REPOSITORY = Path(__file__).resolve().parent.parent
FOREVER = 900  # seconds that a stand-in compiles: whoever waits for it has failed
LIMIT = 90  # seconds that a busy machine may take to end what ends in one

# found by every Python that starts with this folder on its path: the command, its children, their workers
SLOW_COMPILER = f'''
import os, subprocess, sys, tempfile, time
from pathlib import Path

if "rlk.runtime.kernels.worker" in sys.orig_argv:
    import rlk.backends.triton

    def compile_in_scratch(emitted, target, folder):
        assembler = subprocess.Popen(["sleep", "{FOREVER}"])
        tempfile.mkdtemp()  # which nobody but a killer removes
        mark = Path(os.environ["MARKS"])
        (mark / f"{{os.getpid()}}.new").write_text(f"{{os.getpid()}} {{assembler.pid}}")
        (mark / f"{{os.getpid()}}.new").rename(mark / f"{{os.getpid()}}")
        time.sleep({FOREVER})

    rlk.backends.triton.compile_in_scratch = compile_in_scratch
'''
MODEL = """
[[model]]
name = "small"
hidden = 256
vocab = 512
intermediate = 512
heads = 4
kv_heads = 2
head_dim = 64
"""
CONFIG = (
    '{"hidden_size": 256, "vocab_size": 512, "intermediate_size": 512, "num_attention_heads": 4, '
    '"num_key_value_heads": 2, "head_dim": 64}'
)
COMMANDS = {
    "aot": ["aot", "build", "{at}/matrix.toml", "--target", "sm_90a", "-o", "{at}/dist"],
    "warmup": ["warmup", "--model-config", "{at}/config.json", "--target", "sm_90a", "--op", "swiglu"],
    "check": ["check", "swiglu", "rms_norm", "--jobs", "2", "--law", "compiles"],
    "tune": ["tune", "matmul", "--dry", "--shape", "M=64,N=256,K=256"],
}


def started(command: str, at: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """Start a command with a compiler that never ends; return it, and what compiles when it does."""
    (at / "sitecustomize.py").write_text(SLOW_COMPILER)
    (at / "matrix.toml").write_text(MODEL)
    (at / "config.json").write_text(CONFIG)
    for folder in ("marks", "scratch"):
        (at / folder).mkdir()
    own = {
        "PYTHONPATH": f"{at}{os.pathsep}{REPOSITORY}", "MARKS": str(at / "marks"), "RLK_JOBS": "2",
        "RLK_CACHE_DIR": str(at / "store"), "TMPDIR": str(at / "scratch"),
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "rlk.cli", *(word.format(at=at) for word in COMMANDS[command])],
        env={**os.environ, **own}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,  # as a terminal's foreground: all of it hears Ctrl-C
    )  # fmt: skip
    end = time.monotonic() + LIMIT
    while not (marks := [path for path in (at / "marks").iterdir() if path.suffix == ""]):
        assert process.poll() is None and time.monotonic() < end, process.communicate()
        time.sleep(0.05)
    return process, [int(word) for mark in marks for word in mark.read_text().split()]


def gone(process: int) -> bool:
    """Return whether a process ended; a zombie that nobody has waited for has."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def all_end(processes: list[int]) -> bool:
    end = time.monotonic() + LIMIT
    while not all(map(gone, processes)) and time.monotonic() < end:
        time.sleep(0.05)
    return all(map(gone, processes))


@pytest.mark.parametrize("command", COMMANDS)
def test_an_interrupted_command_stops_compiling_and_leaves_nothing(command: str, tmp_path: Path) -> None:
    process, compiling = started(command, tmp_path)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 130, err
    (line,) = err.splitlines()
    assert line.startswith(f"rlk {command}: interrupted") and out == ""
    assert all_end(compiling)
    store = tmp_path / "store"
    assert not [*store.glob("staging/*"), *store.glob("quarantine/*")]
    assert not list((tmp_path / "scratch").iterdir())
    assert not list((tmp_path / "dist").glob("*"))


@pytest.mark.parametrize("command", ["aot", "check"])
def test_impatience_brings_no_traceback(command: str, tmp_path: Path) -> None:
    process, compiling = started(command, tmp_path)
    for _ in range(5):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.02)
        if process.poll() is not None:
            break
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 130 and len(err.splitlines()) <= 1, err
    assert all_end(compiling)


def test_compilers_end_with_a_process_that_is_killed(tmp_path: Path) -> None:
    process, compiling = started("warmup", tmp_path)
    scratch = tmp_path / "scratch"
    (others := scratch / "file of another process").touch()
    process.kill()
    process.communicate(timeout=LIMIT)
    assert all_end(compiling)
    assert [*scratch.iterdir()] == [others]
