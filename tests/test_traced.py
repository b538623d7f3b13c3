"""Calls under torch's tools: compiled for all sizes, checkpointed by name, autocast, exported."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from head_cases import HEADS, log_probs
from test_dispatch import BF16, CALLS, IDS, N, V, f32, flat, with_gradient
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from rlk import Layout, ops
from rlk.errors import Code, LaunchError
from rlk.testing.bits import assert_same_bits, differing

Call = Callable[..., Any]
WEIGHT, TABLE, HEAD, ONE = f32(V, seed=3), f32(99, 4), f32(V, V).to(BF16), torch.tensor([0, 3])


def assert_same(got: list[torch.Tensor], want: list[torch.Tensor]) -> None:
    for a, b in zip(got, want, strict=True):
        assert_same_bits(a, b)


# torch.compile: test_dispatch has the bits of every operator

ROWS: dict[str, Call] = {
    "logp": lambda x, g: ops.logp(x, torch.arange(x.shape[0]) % V, needs=("logp", "entropy")),
    "linear_logp": lambda x, g: ops.linear_logp(x.to(BF16), HEAD, torch.arange(x.shape[0]) % V),
    "rms_norm": lambda x, g: ops.rms_norm(x, WEIGHT),
    "swiglu": lambda x, g: ops.swiglu(x, x + 1),
    "rope": lambda x, g: ops.rope(
        x.view(-1, 5, 8), x.view(-1, 5, 8), TABLE, TABLE, position_ids=torch.arange(x.shape[0])
    ),
    "varlen_attention": lambda x, g: ops.varlen_attention(
        x.to(BF16).view(-1, 10, 4), *(x.to(BF16).view(-1, 10, 4)[:, :5],) * 2, ONE, ONE
    ).o[:3],
    "policy_loss": lambda x, g: (
        ops.policy_loss(
            x[:, 0], g, g, layout=Layout.packed(ONE, tokens=x.shape[0], outside="padding")
        ).loss
    ),
}  # fmt: skip


def graphs(call: Call, **options: Any) -> list[int]:
    """Return how many graphs there are after calls of ever more rows, each with the bits of an eager one."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled, found = torch.compile(call, fullgraph=True, backend=counter, **options), []
    for rows in (6, 7, 9, 33):
        x, g = f32(rows, V), f32(rows, seed=1)
        assert_same(with_gradient(compiled, x, g), with_gradient(call, x, g))
        found.append(counter.frame_count)
    return found


@pytest.mark.parametrize("name", ROWS)
def test_one_graph_serves_every_number_of_rows(name: str) -> None:
    assert graphs(ROWS[name]) == [1, 2, 2, 2]


def test_graphs_of_one_shape_each_are_counted() -> None:
    """The control."""
    assert graphs(ROWS["swiglu"], dynamic=False) == [1, 2, 3, 4]


# buffers and groups of a head: test_sharded has ranks that are processes

BUFFERED = {
    "plain": HEADS["a buffer is added to"],
    "all options": HEADS["a buffer, and all options"],
    "hidden is frozen": replace(HEADS["hidden is frozen"], buffer=True),
    "weight is frozen": replace(HEADS["weight is frozen"], buffer=True),
    "nothing has a gradient": replace(HEADS["nothing has a gradient"], buffer=True),
}


@pytest.mark.parametrize("name", BUFFERED)
def test_a_graph_adds_to_a_buffer(name: str) -> None:
    cpu = torch.device("cpu")
    want = log_probs(BUFFERED[name], cpu)
    got = log_probs(BUFFERED[name], cpu, compiled=True)
    assert got.keys() == want.keys()
    assert_same(list(got.values()), list(want.values()))


def added(buffer: torch.Tensor, step: Call, seed: int) -> torch.Tensor:
    """Return a head's log-probs, of which backward adds to a buffer."""
    x = f32(6, V, seed=seed).to(BF16).requires_grad_()
    return step(x, HEAD.clone().requires_grad_(), buffer)


def head_of(x: torch.Tensor, weight: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    return ops.linear_logp(x, weight, IDS, weight_grad_out=buffer).logp


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_buffer_adds_up_over_graphs_run_in_turn(backend: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(head_of, fullgraph=True, backend=backend)
    buffers = [torch.zeros(V, V) for _ in range(3)]
    for seed in (1, 2, 3):
        for buffer, step, turn in zip(buffers, (head_of, compiled, head_of), (1, 1, -1), strict=True):
            added(buffer, step, turn * seed % 4).sum().backward()
    assert_same_bits(buffers[1], buffers[0])
    assert differing(buffers[2], buffers[0]) > 10  # the control: the same sums in another order


def test_graphs_that_share_a_buffer_take_turns() -> None:
    """A compiler keeps the buffer for backward, and torch refuses what was changed since."""
    buffer = torch.zeros(V, V)
    first, second = (added(buffer, head_of, seed) for seed in (1, 2))
    (first.sum() + second.sum()).backward()  # without a compiler any order goes
    torch._dynamo.reset()
    compiled = torch.compile(head_of, fullgraph=True, backend="aot_eager")
    first, second = (added(buffer, compiled, seed) for seed in (1, 2))
    first.sum().backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        second.sum().backward()


def test_a_checkpoint_runs_a_head_again_and_adds_once() -> None:
    buffers = [torch.zeros(V, V) for _ in range(2)]
    weight = HEAD.clone().requires_grad_()
    x = f32(6, V).to(BF16)
    for buffer, saves in zip(buffers, (None, torch.ops.rlk.linear_logp_shard.default), strict=True):
        leaf = x.clone().requires_grad_()
        selective(saves, lambda y, buffer=buffer: head_of(y, weight, buffer))(leaf, None).sum().backward()
    plain = torch.zeros(V, V)
    head_of(x.clone().requires_grad_(), weight, plain).sum().backward()
    assert_same(buffers, [plain, plain])


# selective checkpoints

GAIN = f32(N, seed=5)


def block(x: torch.Tensor) -> torch.Tensor:
    return ops.swiglu(ops.rms_norm(x, GAIN), 2 * x)


def selective(saves: object, call: Call = block) -> Call:
    """Return a call of which backward keeps one operator's outputs, by its name, and runs the rest again."""

    def policy(ctx: Any, op: object, *_: Any, **__: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if op is saves else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, policy)
    return lambda x, _: checkpoint(call, x, use_reentrant=False, context_fn=contexts)


KEPT = {
    "rms_norm": (torch.ops.rlk.rms_norm.default, {"swiglu": 2, "rms_norm": 1}),
    "swiglu": (torch.ops.rlk.swiglu.default, {"swiglu": 1, "rms_norm": 2}),
    "neither": (None, {"swiglu": 2, "rms_norm": 2}),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", KEPT)
def test_a_checkpoint_keeps_what_its_policy_names(name: str, compiled: bool, launched: list[str]) -> None:
    x, (saves, runs) = f32(6, N), KEPT[name]
    want = with_gradient(lambda x, _: block(x), x, x)
    step = selective(saves)
    if compiled:
        torch._dynamo.reset()  # a policy is a constant of its graph
        step = torch.compile(step, fullgraph=True, backend="aot_eager")
        runs = runs | {"swiglu": 1}  # whose output no gradient reads: a graph runs nothing for nobody
    launched.clear()
    assert_same(with_gradient(step, x, x), want)
    assert {op: launched.count(op) for op in runs} == runs
    assert launched.count("swiglu_grad") == launched.count("rms_norm_grad") == 1


def test_a_graph_under_a_checkpoint_has_no_second_derivative_either() -> None:
    x = f32(6, N).requires_grad_()
    (grad,) = torch.autograd.grad(selective(None)(x, x).sum(), x, create_graph=True)
    with pytest.raises(LaunchError) as caught:
        grad.sum().backward()
    assert caught.value.code is Code.DOUBLE_BACKWARD


# autocast


@pytest.mark.parametrize("name", CALLS)
def test_autocast_changes_no_dtype_and_no_bit(name: str) -> None:
    x, g = f32(6, V), f32(6, seed=1)
    want = with_gradient(CALLS[name], x, g)
    with torch.autocast("cpu", BF16):
        assert_same(with_gradient(CALLS[name], x, g), want)


def test_autocast_is_on_and_hides_no_mixture_of_dtypes() -> None:
    """The control: torch's own product is cast; an operator asks for one dtype as it does elsewhere."""
    with torch.autocast("cpu", BF16):
        assert (f32(6, V) @ f32(V, 6)).dtype is BF16
        with pytest.raises(LaunchError) as caught:
            ops.linear_logp(f32(6, V).to(BF16), f32(V, V), IDS)
    assert caught.value.code is Code.ARG_DTYPE and "weight has dtype torch.float32" in str(caught.value)


# torch.export


class Module(torch.nn.Module):
    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: torch.Tensor, g: torch.Tensor) -> Any:
        return flat(self.call(x, g))


@pytest.mark.parametrize("name", CALLS)
def test_an_exported_call_has_the_bits_of_an_eager_one(name: str) -> None:
    x, g = f32(6, V), f32(6, seed=1)
    program = torch.export.export(Module(CALLS[name]), (x, g))
    assert [n for n in program.graph.nodes if str(n.target).startswith("rlk.")]
    for seed in (0, 7):
        x = f32(6, V, seed=seed)
        assert_same(with_gradient(program.module(), x, g), with_gradient(CALLS[name], x, g))
    other = with_gradient(CALLS[name], x, g)
    assert any(differing(a, b) for a, b in zip(other, with_gradient(CALLS[name], 2 * x, g), strict=True))


class Watch(TorchDispatchMode):
    """Keeps the arguments of gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func).endswith("_grad.default"):
            self.seen.append((func.overloadpacket.__name__, args))
        return func(*args, **(kwargs or {}))


CHILD = """
import sys, torch
import rlk.ops
x, g, gradients = torch.load(sys.argv[1])
program = torch.export.load(sys.argv[2]).module()
made = [getattr(torch.ops.rlk, name)(*args) for name, args in gradients]
torch.save((program(x, g), made), sys.argv[3])
"""


def test_another_process_runs_what_was_saved(tmp_path: Path) -> None:
    """A program for every number of rows, and the gradients that a compiler's store would hold."""
    call = CALLS["logp of rows"]
    batch = torch.export.Dim("rows")
    whole = lambda x, g: (ops.swiglu(x, x), ops.logp(x, g.long(), temperature=0.7, needs=("logp", "entropy")))  # noqa: E731
    sizes = ({0: batch}, {0: batch})
    program = torch.export.export(Module(whole), (f32(6, V), f32(6)), dynamic_shapes=sizes)
    file = io.BytesIO()
    torch.export.save(program, file)
    (tmp_path / "program.pt2").write_bytes(file.getvalue())
    x, g = f32(6, V), f32(6, seed=1)
    with Watch() as watch:
        with_gradient(call, x, g)
        with_gradient(CALLS["policy_loss"], x, g)
    seen = [each for each in watch.seen if not each[0].startswith("policy_loss_")]
    assert len(seen) == 1
    x, g = f32(11, V, seed=2), f32(11).abs()
    places = [str(tmp_path / name) for name in ("given", "program.pt2", "made")]
    torch.save((x, g, seen), places[0])
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", CHILD, *places], check=True, timeout=240, env=here)
    forward, made = torch.load(places[2])
    assert_same(forward, flat(whole(x, g)))
    assert_same(flat(made), flat([getattr(torch.ops.rlk, name)(*args) for name, args in seen]))
