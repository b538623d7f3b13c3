"""Torch on a device: inductor and its graphs, checkpoints, autocast, second devices, meshes, children."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_cases import run
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from rlk import ops
from rlk.errors import Code, LaunchError
from rlk.runtime.call.dispatch import dispatch
from rlk.testing.bits import assert_same_bits, differing

BF16 = torch.bfloat16
TWO = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices")
Call = Callable[[torch.Tensor], torch.Tensor]


def made(rows: int, width: int = 1024, device: str = "cuda", seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)).to(device, BF16)


def scores(x: torch.Tensor) -> torch.Tensor:
    weight = torch.linspace(-40, 40, 700 * x.shape[1], device=x.device).view(700, -1).sin().to(x.dtype)
    found = ops.linear_logp(x, weight, torch.arange(len(x), device=x.device))
    assert found.logp is not None
    return found.logp


CALLS: dict[str, Call] = {
    "rms_norm": lambda x: ops.rms_norm(x, x.new_ones(x.shape[1])),  # type: ignore[dict-item, return-value]
    "swiglu": lambda x: ops.swiglu(ops.rms_norm(x, x.new_ones(x.shape[1])), 2 * x),  # type: ignore[arg-type]
    "logp": lambda x: ops.logp(x, torch.arange(len(x), device=x.device), temperature=0.7).logp,  # type: ignore[dict-item, return-value]
    "linear_logp": scores,
}


def stepped(call: Call, x: torch.Tensor) -> list[torch.Tensor]:
    """Return results and the gradient of x, on the host."""
    leaf = x.detach().clone().requires_grad_()
    y = call(leaf)
    y.backward(torch.linspace(-1, 1, y.numel(), device=x.device).view(y.shape).to(y.dtype))
    assert leaf.grad is not None
    return [y.detach().clone().cpu(), leaf.grad.clone().cpu()]


def assert_same(got: list[torch.Tensor], want: list[torch.Tensor]) -> None:
    for a, b in zip(got, want, strict=True):
        assert_same_bits(a, b)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("name", CALLS)
def test_inductor_has_the_bits_of_eager_calls(name: str, mode: str) -> None:
    """reduce-overhead: captured into CUDA graphs, which replay from the third call on."""
    torch._dynamo.reset()
    call = torch.compile(CALLS[name], fullgraph=True, mode=mode)
    for seed in range(5):
        x = made(64, seed=seed)
        assert_same(stepped(call, x), stepped(CALLS[name], x))
    assert differing(stepped(call, x)[0], stepped(call, made(64, seed=9))[0])


@pytest.mark.parametrize("kept", ["rms_norm", "swiglu"])
def test_a_checkpoint_keeps_what_its_policy_names(kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    saves = getattr(torch.ops.rlk, kept).default

    def policy(ctx: Any, op: object, *_: Any, **__: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if op is saves else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, policy)
    x, call = made(64), CALLS["swiglu"]
    want, seen, find = stepped(call, x), [], dispatch.find
    monkeypatch.setattr(dispatch, "find", lambda i, t: (seen.append(i.spec.name), find(i, t))[1])
    assert_same(stepped(lambda t: checkpoint(call, t, use_reentrant=False, context_fn=contexts), x), want)
    again = {"rms_norm": 2, "swiglu": 2} | {kept: 1}
    assert {name: seen.count(name) for name in again} == again


@pytest.mark.parametrize("name", CALLS)
def test_autocast_changes_no_bit(name: str) -> None:
    x = made(64)
    want = stepped(CALLS[name], x)
    with torch.autocast("cuda", torch.float16):
        assert (x.float() @ x.float().t()).dtype is torch.float16
        assert_same(stepped(CALLS[name], x), want)


@TWO
@pytest.mark.parametrize("name", CALLS)
def test_a_device_that_is_not_the_current_one_has_the_same_bits(name: str) -> None:
    x, there = made(64), torch.device("cuda", 1)
    assert torch.cuda.current_device() == 0
    want, stream = stepped(CALLS[name], x), torch.cuda.Stream(there)
    assert_same(stepped(CALLS[name], x.to(there)), want)
    torch.cuda.synchronize(there)
    with torch.cuda.stream(stream):
        assert_same(stepped(CALLS[name], x.to(there)), want)
    assert CALLS[name](x.to(there)).device == there


@TWO
def test_tensors_of_two_devices_are_refused() -> None:
    with pytest.raises(LaunchError) as caught:
        ops.swiglu(made(4), made(4, device="cuda:1"))
    assert caught.value.code is Code.ARG_DEVICE


@TWO
def test_a_mesh_of_devices_has_the_bits_of_plain_tensors(tmp_path: Path) -> None:
    for found in run("nccl", 2, tmp_path, module="dtensor_cases"):
        for form in ("copies", "shards", "compiled"):
            for name, got in found[form].items():
                for a, b in zip(got, found["plain"][name], strict=True):
                    assert_same_bits(a.cpu(), b.cpu(), name)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_have_the_bits_of_their_parent(method: str) -> None:
    """fork: before the parent has used the device, as CUDA wants it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "process_cases", method, "cuda"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    parent, first, second, other = done.stdout.split()
    assert first == second == parent and other not in (parent, "nothing")
