"""Benchmark of experts at the shapes of Qwen3-30B-A3B: grouped products, a layer, and records of routes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

import rlk
from benchmarks import bench_model, layers, peers, whole_model
from benchmarks.harness import Bar, Case, Checked, main
from benchmarks.identity import describe, differing_there
from benchmarks.timing import Launch, captured
from benchmarks.turns import aside
from benchmarks.whole_model import Decoding
from rlk.nn import CausalLM, ModelConfig, MoE, RouteLog
from rlk.testing.bits import differing

EXPERTS, TOP = 128, 8
GATE_UP, DOWN = (1536, 2048), (2048, 768)  # N, K
TOKENS = 8192
DECODED = {1: 0.75, 16: 0.75, 64: 0.9, 256: 0.9}
"""Tokens of a decoding step, and the share of the measured copy rate that the experts' bytes must reach."""
TIMES_OF_TORCH = Bar(round(1 / 0.95, 3), "torch_grouped_mm")
COMPOSED = "torch_grouped_mm_compile"
MODEL = "Qwen3-30B-A3B"
RECORDED_LAYERS = 24
"""Layers of the model whose decoding step records routes, of its 48: a smaller device holds them too."""
FEW = 16


@dataclass(frozen=True, slots=True)
class Routed:
    """Rows sorted by expert, the weights of all experts, and how many rows each expert has."""

    x: Tensor
    w: Tensor
    d_y: Tensor
    offsets: Tensor
    counts: tuple[int, ...]

    @property
    def used(self) -> int:
        """The number of experts that have rows."""
        return sum(count > 0 for count in self.counts)

    def few(self) -> list[tuple[int, int]]:
        """Return the first row of the first and of the last expert that has rows, each with the expert."""
        ends = [0, *accumulate(self.counts)]
        there = [e for e, count in enumerate(self.counts) if count]
        return [(ends[e], e) for e in (there[0], there[-1])]


def balanced(tokens: int) -> tuple[int, ...]:
    """Return equal numbers of rows for all experts."""
    return (tokens * TOP // EXPERTS,) * EXPERTS


def zipf(tokens: int) -> tuple[int, ...]:
    """Return numbers of rows that fall as 1 / rank, at most one for a token, in a random order."""
    most, rows = sum(1 / (rank + 1) for rank in range(EXPERTS)), tokens * TOP
    counts = [min(tokens, int(rows / most / (rank + 1))) for rank in range(EXPERTS)]
    rank = EXPERTS
    while sum(counts) < rows:
        rank = rank - 1 if rank else EXPERTS - 1
        counts[rank] += counts[rank] < tokens
    random.Random(0).shuffle(counts)
    return tuple(counts)


def drawn(tokens: int) -> tuple[int, ...]:
    """Return the numbers of rows of tokens that each draw different experts."""
    draws, counts = random.Random(0), [0] * EXPERTS
    for _ in range(tokens):
        for expert in draws.sample(range(EXPERTS), TOP):
            counts[expert] += 1
    return tuple(counts)


ROUTINGS: dict[str, Callable[[int], tuple[int, ...]]] = {"balanced": balanced, "zipf": zipf, "drawn": drawn}


def routed(counts: tuple[int, ...], n: int, k: int) -> Routed:
    """Draw rows and weights of bf16."""
    sizes = (sum(counts), k), (EXPERTS, n, k), (sum(counts), n)
    x, w, d_y = (torch.randn(s, dtype=torch.bfloat16, device="cuda") for s in sizes)
    offsets = torch.tensor([0, *accumulate(counts)], dtype=torch.int32, device="cuda")
    return Routed(x, w, d_y, offsets, counts)


def torch_grouped(a: Tensor, b: Tensor, ends: Tensor) -> Launch:
    """Return torch's grouped product; raise Absent where it does not run."""
    try:
        torch._grouped_mm(a, b, offs=ends)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise peers.Absent(f"torch._grouped_mm: {error}"[:200]) from error
    return lambda: torch._grouped_mm(a, b, offs=ends)


def copied(count: int) -> Launch:
    """Return a copy that reads and writes so many bytes together."""
    source = torch.empty(count // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def grouped(it: Routed, routing: str, bar: Bar | None) -> Case:
    """The product beside torch's, and beside a copy of the bytes of the experts that have rows."""
    (rows, k), n = it.x.shape, it.w.shape[1]
    bytes_of_experts = 2 * it.used * n * k

    def check() -> Checked:
        few = it.few()
        got = rlk.ops.grouped_matmul(it.x, it.w, it.offsets)[[row for row, _ in few]]
        x, w = it.x[[row for row, _ in few]], it.w[[e for _, e in few]]
        with aside():
            want = rlk.ops.grouped_matmul(x.cpu(), w.cpu(), torch.arange(len(few) + 1))
        wide = (x[:, None].double() @ w.double().mT)[:, 0]
        return Checked(float((got.double() - wide).abs().max()), differing(got.cpu(), want))

    return Case(
        op="grouped_matmul",
        passes="fwd",
        shape={"T": rows, "E": EXPERTS, "N": n, "K": k, "routing": routing},
        rlk=lambda: peers.without_grad(lambda: rlk.ops.grouped_matmul(it.x, it.w, it.offsets)),
        peers={
            "torch_grouped_mm": lambda: torch_grouped(it.x, it.w.mT, it.offsets[1:]),
            "copy": lambda: copied(bytes_of_experts),
        },
        moved=it.x.nbytes + bytes_of_experts + 2 * rows * n,
        flops=2.0 * rows * n * k,
        bar=bar,
        reference="torch_grouped_mm",
        check=check,
        describe=lambda: describe(rlk.ops.grouped_matmul.explain(it.x, it.w, it.offsets)),
    )


def gradient(it: Routed, routing: str, wanted: str) -> Case:
    """The gradient to x, or to w."""
    (rows, k), n = it.x.shape, it.w.shape[1]

    def launch() -> Any:
        x, w = (t.detach().requires_grad_(name == wanted) for name, t in (("x", it.x), ("w", it.w)))
        call = lambda: rlk.ops.grouped_matmul(x, w, it.offsets)  # noqa: E731
        return peers.backward_of(call, (x if wanted == "x" else w,), it.d_y)

    def by_torch() -> Launch:
        if wanted == "x":
            return torch_grouped(it.d_y, it.w, it.offsets[1:])
        return torch_grouped(it.d_y.mT, it.x, it.offsets[1:])

    def check() -> Checked:
        """Compare the first and the last expert's: one row of d x each, or the first column of d w."""
        made, ends, error, differ = launch()()[0], [0, *accumulate(it.counts)], 0.0, 0
        for row, e in it.few():
            part = slice(row, row + 1) if wanted == "x" else slice(ends[e], ends[e + 1])
            some = slice(None) if wanted == "x" else slice(0, 1)  # of N
            x, w, d_y = it.x[part], it.w[e, some], it.d_y[part, some]
            got = made[part] if wanted == "x" else made[e, some]
            wide = d_y.double() @ w.double() if wanted == "x" else d_y.double().mT @ x.double()
            given = x.cpu().requires_grad_(), w.cpu().requires_grad_()
            with aside():
                (want,) = torch.autograd.grad(rlk.ops.matmul(*given), given[wanted == "w"], d_y.cpu())
            error = max(error, float((got.double() - wide).abs().max()))
            differ += differing(got.cpu(), want)
        return Checked(error, differ)

    return Case(
        op="grouped_matmul",
        passes={"x": "dgrad", "w": "wgrad"}[wanted],
        shape={"T": rows, "E": EXPERTS, "N": n, "K": k, "routing": routing},
        rlk=launch,
        peers={"torch_grouped_mm": by_torch},
        moved=2.0 * (rows * (n + k) + it.used * n * k),
        flops=2.0 * rows * n * k,
        bar=TIMES_OF_TORCH,
        reference="torch_grouped_mm",
        check=check,
        describe=lambda: describe(rlk.ops.grouped_matmul.explain(it.x, it.w, it.offsets)),
    )


# --- a layer ---


def config(count: int = 1) -> ModelConfig:
    """Return the config of the model, of so many layers."""
    return layers.config_of(
        "qwen3_moe", 2048, 32, 4, 6144, layers=count, num_experts=EXPERTS, num_experts_per_tok=TOP,
        moe_intermediate_size=768, norm_topk_prob=True,
    )  # fmt: skip


@cache
def experts() -> MoE:
    """Make the experts and the router of a layer with weights as they are drawn."""
    return MoE(config(), 0, device="cuda", dtype=torch.bfloat16)


def moe_layer(tokens: int, passes: str) -> Case:
    """Router, products, SwiGLU and combination beside one torch.compile of the same by torch's products.

    Both are CUDA graphs, but for gradients. Compared: the first tokens alone.
    """
    module = experts()
    x, d_y = (torch.randn(tokens, 2048, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    weights = tuple(
        w.detach() for w in (module.gate.weight, module.experts.gate_up_proj, module.experts.down_proj)
    )

    def launch(call: Callable[..., Any], parameters: tuple[Tensor, ...]) -> Launch:
        if passes == "fwd":
            return captured(peers.without_grad(lambda: call(x, *parameters)))
        given = tuple(t.detach().requires_grad_() for t in (x, *parameters))
        return peers.with_grad(lambda: call(*given), given, d_y)

    def ours() -> Launch:
        if passes == "fwd":
            return launch(module, ())
        given = x.detach().requires_grad_()
        return peers.with_grad(lambda: module(given), (given, *module.parameters()), d_y)

    def check() -> Checked:
        with torch.no_grad():
            return Checked(differing=differing_there(module(x[:FEW]), module(x)[:FEW]))

    used = sum(count > 0 for count in drawn(tokens))
    of_experts = 3 * 2048 * 768
    times = 1 if passes == "fwd" else 3
    return Case(
        op="moe_layer",
        passes=passes,
        shape={"model": MODEL, "T": tokens},
        rlk=ours,
        peers={COMPOSED: lambda: launch(lambda *a: layers.fused(layers.by_experts)(*a, TOP), weights)},
        moved=times * 2.0 * (used * of_experts + 2 * tokens * 2048),
        flops=times * 2.0 * tokens * (TOP * of_experts + 2048 * EXPERTS),
        bar=Bar(1.05, COMPOSED),
        reference=COMPOSED,
        check=check,
        describe=lambda: describe(rlk.ops.matmul.explain(x, weights[0])),
        notes={"compared": "the first tokens alone"},
    )


def decoder_layers() -> Iterator[Case]:
    """Yield the whole layer in training shapes and decoding, beside that of torch with FlashAttention 4."""
    bar = Bar(1.05, bench_model.PEER)
    for batch, length in ((4, 2048), (1, 8192)):
        torch.cuda.empty_cache()
        yield replace(bench_model.forward(MODEL, config(), batch, length), bar=bar)
    torch.cuda.empty_cache()
    yield replace(bench_model.training(MODEL, config(), 4, 2048), bar=bar)
    for batch in (1, 16, 64, 256):
        torch.cuda.empty_cache()
        yield replace(bench_model.decode(MODEL, config(), batch, 2048), bar=bar)


# --- records of routes ---


def recording(batch: int, context: int) -> Case:
    """A decoding step that copies its routes into memory of the host, beside the step alone."""

    @cache
    def made() -> tuple[CausalLM, Decoding, Tensor]:
        found = whole_model.model_of(config(RECORDED_LAYERS))
        at = Decoding.of(found, batch, context)
        host = torch.empty(batch, RECORDED_LAYERS, TOP, dtype=torch.uint8, pin_memory=True)
        return found, at, host

    def recorded() -> Any:
        model, d, host = made()
        log = RouteLog()
        hidden = model.decode(d.ids, d.cache, d.table, d.lens, routes=log)
        host.copy_(log.routes().ids, non_blocking=True)
        return hidden, host

    def alone() -> Any:
        model, d, _ = made()
        return model.decode(d.ids, d.cache, d.table, d.lens)

    @torch.no_grad()
    def check() -> Checked:
        hidden, host = recorded()
        torch.cuda.synchronize()
        wrong = differing_there(hidden, alone())
        return Checked(differing=wrong + int((host.diff(dim=-1) <= 0).sum()))  # ids that do not ascend

    at = config(RECORDED_LAYERS)
    used = sum(count > 0 for count in drawn(batch))
    each = layers.weights_of(at) + at.hidden_size * 3 * 768 * (used - TOP)
    seen = 4.0 * batch * context * at.num_key_value_heads * at.head_dim
    return Case(
        op="route_log",
        passes="decode",
        shape={"model": MODEL, "layers": RECORDED_LAYERS, "B": batch, "S": context},
        rlk=lambda: captured(peers.without_grad(recorded)),
        peers={"step_alone": lambda: captured(peers.without_grad(alone))},
        moved=RECORDED_LAYERS * (2.0 * each + seen),
        bar=Bar(1.01, "step_alone"),
        reference="step_alone",
        check=check,
        extra=False,
        notes={"what": "a step whose routes are copied to the host, k bytes a token and layer"},
    )


def cases() -> Iterator[Case]:
    """Yield products and gradients of both weights of the experts, those of decoding, layers, and records."""
    for n, k in (GATE_UP, DOWN):
        for routing in ("balanced", "zipf"):
            it = routed(ROUTINGS[routing](TOKENS), n, k)
            yield grouped(it, routing, TIMES_OF_TORCH)
            for wanted in ("x", "w"):
                yield gradient(it, routing, wanted)
        for tokens, share in DECODED.items():
            it = routed(drawn(tokens), n, k)
            yield grouped(it, "drawn", Bar(round(1 / share, 3), "copy"))
    for tokens in (TOKENS, *DECODED):
        yield moe_layer(tokens, "fwd")
    yield moe_layer(TOKENS, "fwd+bwd")
    experts.cache_clear()
    yield from decoder_layers()
    for batch in (1, 64):
        torch.cuda.empty_cache()
        yield recording(batch, 2048)


if __name__ == "__main__":
    main("moe", cases, matrix=True)
