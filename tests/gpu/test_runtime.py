"""On a device no operator waits for it, graphs replay the same bits, and data errors are told when asked."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

import rlk
from rlk import ops
from rlk.nn.products import merged_linear
from rlk.testing.bits import assert_same_bits

Step = Callable[[], list[torch.Tensor]]


def steps() -> dict[str, Step]:
    """Return one forward and backward step of every operator, on tensors that stay where they are."""
    cuda = {"device": "cuda"}
    logits = torch.randn(64, 5000, **cuda, dtype=torch.bfloat16)
    ids = torch.randint(0, 5000, (64,), **cuda)
    x = torch.randn(300, 1024, **cuda, dtype=torch.bfloat16)
    w = torch.randn(1024, **cuda, dtype=torch.bfloat16)
    weights = torch.randn(1536, 1024, **cuda, dtype=torch.bfloat16).split((1024, 512))
    table = torch.randn(5000, 256, **cuda)
    hidden = torch.randn(64, 256, **cuda, dtype=torch.bfloat16)
    lp, old, advantages = torch.randn(64, **cuda), torch.randn(64, **cuda), torch.randn(4, **cuda)
    lengths = torch.tensor([16, 3, 0, 9], **cuda)

    def of(fn: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> list[torch.Tensor]:
        # leaves of this step's own stream: autograd would wait for the stream that made older ones
        leaves = [t.detach().requires_grad_() for t in inputs]
        made = fn(*leaves)
        return [made.detach(), *torch.autograd.grad(made, leaves, torch.ones_like(made))]

    def loss(given: torch.Tensor) -> torch.Tensor:
        layout = rlk.Layout.padded(lengths, 16)
        return ops.policy_loss(given.view(4, 16), old.view(4, 16), advantages, layout=layout).loss

    def drawn() -> list[torch.Tensor]:
        made = ops.sample(logits, seed=1, request_id=ids, position=ids, temperature=0.7, top_k=50, top_p=0.9)
        again = ops.logp(logits, made.token, temperature=0.7, support=made.support).logp
        assert again is not None
        return [made.token, made.raw_logp, made.logp, *made.support, again]

    return {
        "sample": drawn,
        "logp": lambda: of(lambda z: ops.logp(z, ids, needs=("logp", "entropy")).logp, logits),
        "linear_logp": lambda: of(lambda h, t: ops.linear_logp(h, t, ids).logp, hidden, table.bfloat16()),
        "rms_norm": lambda: of(ops.rms_norm, x, w),
        "swiglu": lambda: of(ops.swiglu, x, x),
        "merged_linear": lambda: of(lambda a, *b: merged_linear(a, b, (None, None), 8), x, *weights),
        "embedding": lambda: of(lambda t: ops.embedding(ids, t), table),
        "ratio_kl": lambda: of(lambda a: ops.ratio_kl(a, old, old).kl, lp),
        "policy_loss": lambda: of(loss, lp),
    }


@contextmanager
def no_waiting() -> Iterator[None]:
    """Make torch raise where it would wait for the device."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


NAMES = (
    "sample", "logp", "linear_logp", "rms_norm", "swiglu", "merged_linear", "embedding", "ratio_kl",
    "policy_loss",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_no_operator_waits_for_the_device(name: str) -> None:
    step = steps()[name]
    step()
    with no_waiting():
        step()


def test_waiting_would_be_seen() -> None:
    """The control."""
    with pytest.raises(RuntimeError), no_waiting():
        torch.ones(1, device="cuda").item()


@pytest.mark.parametrize("name", NAMES)
def test_a_graph_replays_the_bits_of_eager_calls(name: str) -> None:
    step = steps()[name]
    eager = [t.clone() for t in step()]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for t in captured:
        t.zero_()
    graph.replay()
    torch.cuda.synchronize()
    for i, (got, want) in enumerate(zip(captured, eager, strict=True)):
        assert_same_bits(got.cpu(), want.cpu(), f"{name} {i}")


FIRST_IN_A_GRAPH = """
import torch
from rlk import ops
from rlk.runtime.binding.host_stub import error_words

x, ids = torch.randn(4, 100, device="cuda"), torch.tensor([1, 2, 100, 3], device="cuda")
torch.ones(1, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, capture_error_mode="thread_local"):
    made = ops.logp(x, ids)
torch.cuda.synchronize()
words = error_words(x.device)
before = words.tolist()
graph.replay()
found = words.tolist()
ids[2] = 5
words.copy_(torch.tensor([77, 78], device="cuda"))
graph.replay()
print(before, found[0] > 0, found[1], words.tolist(), made.logp.isnan().tolist())
"""


def test_a_first_call_in_a_graph_clears_error_words_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIRST_IN_A_GRAPH], capture_output=True, text=True, timeout=240
    )
    assert "[0, 0] True 3 [77, 78] [False, False, False, False]" in done.stdout, done.stdout + done.stderr


def test_a_bad_id_is_raised_only_when_asked() -> None:
    script = (
        "import torch; from rlk import ops\n"
        "r = ops.logp(torch.randn(4, 100, device='cuda'), torch.tensor([1, 2, 100, 3], device='cuda'))\n"
        "print(r.logp.isnan().tolist())\n"
    )
    lazy = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240)
    assert "[False, False, True, False]" in lazy.stdout, lazy.stderr
    strict = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "RLK_CHECK": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert strict.returncode and "row 2" in strict.stderr, strict.stderr


BAD_DATA = {
    "an offset beyond the queries": (
        "ops.varlen_attention(q, q, q, torch.tensor([0, 900], device=on), torch.tensor([0, 8], device=on))",
        "varlen_attention: row 0 has offsets",
    ),
    "a page that is not there": (
        "ops.paged_attention(q, c, c, t + 7, n, torch.tensor([0, 8], device=on, dtype=torch.int32))",
        "paged_attention: row 0 has a page outside of the cache",
    ),
    "a context beyond its pages": (
        "ops.paged_attention(q, c, c, t, n + 7, torch.tensor([0, 8], device=on, dtype=torch.int32))",
        "paged_attention: row 0 has a context outside of its pages",
    ),
    "an id that no row can keep": (
        "ops.logp(x, i, support=ops.Csr(o, o[1:] ** 9))",
        "logp: row 1 has an id outside the vocabulary",
    ),
    "a temperature below 0": (
        "ops.logp(x, i, temperature=torch.tensor([1.0, -1.0], device=on))", "logp: row 1 has"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_DATA)
def test_bad_data_on_a_device_is_raised_when_asked(name: str) -> None:
    call, said = BAD_DATA[name]
    script = (
        "import torch; from rlk import ops; on = 'cuda'\n"
        "q = torch.randn(8, 2, 64, device=on, dtype=torch.bfloat16)\n"
        "c = torch.randn(2, 16, 2, 64, device=on, dtype=torch.bfloat16)\n"
        "t = torch.zeros(1, 1, device=on, dtype=torch.int32); n = t[0] + 16\n"
        "x = torch.randn(2, 100, device=on); i = torch.tensor([1, 2], device=on)\n"
        "o = torch.arange(3, device=on)\n"
    )
    strict = subprocess.run(
        [sys.executable, "-c", script + call], env={**os.environ, "RLK_CHECK": "1"},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert strict.returncode and said in strict.stderr, strict.stderr


def test_work_is_launched_on_the_current_stream() -> None:
    x = torch.randn(300, 1024, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(1024, device="cuda", dtype=torch.bfloat16)
    want = ops.rms_norm(x, w)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        late = torch.ones_like(x)
        got = ops.rms_norm(x * late, w)
    side.synchronize()
    assert_same_bits(got.cpu(), want.cpu(), "y")


def test_negated_views_have_the_values_that_they_show() -> None:
    x = torch.randn(32, 1024, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(1024, device="cuda", dtype=torch.bfloat16)
    want, plain = ops.rms_norm(-x, w), ops.rms_norm(x, w)
    assert_same_bits(ops.rms_norm(torch._neg_view(x), w), want)
    assert_same_bits(ops.rms_norm(x, w), plain)  # the same memory, by another bound call
    assert not torch.equal(plain, want)
