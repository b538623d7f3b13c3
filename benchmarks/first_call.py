"""Time of first calls: from a wheel with an empty cache, from a warm store, and newly compiled.

Each measurement is a process of its own, which has imported torch and rlk, initialised the device and made
its inputs. `python -m benchmarks.first_call --wheel rlk_aot_sm90a_triton-*.whl`; without --wheel it is built.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
OPERATORS = ("linear_logp", "logp", "policy_loss", "rms_norm", "swiglu")
CALL = '[[call]]\nop = "{}"\nrows = [8191]\nbackward = true\noptions = [{}]\n'
MATRIX = '[[model]]\nname = "llama-3-8b"\n' + "".join(
    CALL.format(name, '{ loss = "grpo" }' if name == "policy_loss" else "{}") for name in OPERATORS
)

CHILD = """
import json, os, sys, time
import torch
if os.environ.get("RLK_AOT") != "0":
    sys.modules["triton"] = sys.modules["cutlass"] = None
import rlk
from rlk import ops

bf16 = dict(dtype=torch.bfloat16, device="cuda")
rows, hidden, vocab, wide = 8191, 4096, 128256, 14336
h = torch.randn(rows, hidden, **bf16, requires_grad=True)
w = (torch.randn(vocab, hidden, **bf16) / 64).requires_grad_()
ids = torch.randint(0, vocab, (rows,), device="cuda")
z = torch.randn(rows, vocab, **bf16, requires_grad=True)
g = torch.ones(hidden, **bf16, requires_grad=True)
up = torch.randn(rows, wide, **bf16, requires_grad=True)
lp, old = torch.randn(rows, device="cuda", requires_grad=True), torch.zeros(rows, device="cuda")
one, two = torch.ones(rows, device="cuda"), torch.ones(2, device="cuda")
cot, cot_wide = torch.randn(rows, hidden, **bf16), torch.randn(rows, wide, **bf16)
edges = torch.tensor([0, 4000, rows], dtype=torch.int32, device="cuda")
layout = rlk.Layout.packed(edges, tokens=rows)
loss = dict(layout=layout, loss="grpo", ref_logp=old)
torch.autograd.grad(lp * lp, [lp], one)  # torch's own first gradient imports half a second of modules
CALLS = {
    "linear_logp": (lambda: ops.linear_logp(h, w, ids).logp, [h, w], one),
    "logp": (lambda: ops.logp(z, ids).logp, [z], one),
    "policy_loss": (lambda: ops.policy_loss(lp, old, two, **loss).loss, [lp], None),
    "rms_norm": (lambda: ops.rms_norm(h, g), [h, g], cot),
    "swiglu": (lambda: ops.swiglu(up, up), [up], cot_wide),
}


def timed(work):
    torch.cuda.synchronize()
    start = time.perf_counter()
    made = work()
    returned = time.perf_counter()
    torch.cuda.synchronize()
    return made, 1e3 * (returned - start), 1e3 * (time.perf_counter() - start)


found = {}
for name in sys.argv[1].split(","):
    call, inputs, cotangent = CALLS[name]
    made, host, forward = timed(call)
    backward = timed(lambda: torch.autograd.grad(made, inputs, cotangent))[2] if "," in sys.argv[1] else 0.0
    found[name] = [forward, backward, host]
second = timed(CALLS["linear_logp"][0])[2]
source = rlk.explain(ops.linear_logp, h, w, ids).source
print(json.dumps({"first": found, "second_ms": second, "source": source}))
"""


def child(names: tuple[str, ...], cache: Path, *places: Path, **variables: str) -> dict[str, Any]:
    """Run one process and return what it measured: [forward, backward, forward until it returned] in ms."""
    path = os.pathsep.join(map(str, (*places, REPOSITORY)))
    environment = {**os.environ, "PYTHONPATH": path, "RLK_CACHE_DIR": str(cache), **variables}
    command = [sys.executable, "-c", CHILD, ",".join(names)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=570)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def installed(wheel: Path | None, folder: Path) -> Path:
    """Return a folder in which the wheel is installed; build one of MATRIX if none is given."""
    if wheel is None:
        (folder / "matrix.toml").write_text(MATRIX)
        command = [sys.executable, "-m", "rlk.cli", "aot", "build", "matrix.toml", "--target", "sm_90a"]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "RLK_CACHE_DIR": str(folder / "building")}
        subprocess.run(command, cwd=folder, env=environment, check=True)
        (wheel,) = (folder / "dist").glob("*.whl")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, "--target", str(folder / "site"), str(wheel)], check=True)
    return folder / "site"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", type=Path)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, help="a JSON file of everything measured")
    arguments = parser.parse_args()
    one, runs = OPERATORS[:1], range(arguments.repeats)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        site = installed(arguments.wheel, folder)
        rows = {"wheel, alone": [child(one, folder / f"a{i}", site) for i in runs]}
        rows["wheel, five operators"] = [child(OPERATORS, folder / f"b{i}", site) for i in runs]
        rows["compiled"] = [child(OPERATORS, folder / "c", RLK_AOT="0")]
        rows["store"] = [child(OPERATORS, folder / "c", RLK_AOT="0") for _ in runs]
        left = list(folder.glob("[ab]*/**/manifest.json"))
    for name, found in rows.items():
        firsts = sorted(run["first"]["linear_logp"][0] for run in found)
        host = statistics.median(run["first"]["linear_logp"][2] for run in found)
        second = statistics.median(run["second_ms"] for run in found)
        total = statistics.median(sum(sum(each[:2]) for each in run["first"].values()) for run in found)
        print(
            f"{name}: linear_logp {statistics.median(firsts):.1f} ms ({firsts[0]:.1f}-{firsts[-1]:.1f}), "
            f"until it returns {host:.1f}, second {second:.1f}; all {total:.0f} ms; {found[0]['source']}"
        )
    print(f"kernels in the caches of the wheel's runs: {len(left)}")
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
