"""Benchmark of the gallery's operators (examples/operators) beside torch, torch.compile and libraries.

Rows go to authors.json. Every time has torch.compile's as its bar; norms and elementwise operators have a
share of the copy rate too.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import rlk
from benchmarks import peers
from benchmarks.harness import Bar, Case, Checked, main
from benchmarks.identity import compare, describe
from benchmarks.peers import Launch
from benchmarks.timing import Timing, captured, measure
from rlk.lang import Axis, L, Outputs, bf16, op
from rlk.lang import Tensor as TensorOf

PACKAGE = Path(__file__).parents[1] / "examples/operators"
SAMPLED = [0, 3, -1]
STEP = {
    "lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "decay": 0.01, "scale1": 10.0, "scale2": 20.0,
    "seed": 1, "step": 1,
}  # fmt: skip
BAR = Bar(1.0, "torch_compile")
OF_BF16 = Bar(1 / 1.6, "cublas_bf16_weights")
COPY_RATE = 0.9
LAYERS = 8
"""Layers of weights that a graph of a decode step reads one after the other: several times the largest L2."""


def gallery() -> Any:
    """Import the package from its folder, whether or not it is installed."""
    if str(PACKAGE) not in sys.path:
        sys.path.insert(0, str(PACKAGE))
    return importlib.import_module("gallery_ops")


@dataclass(frozen=True, slots=True)
class Work:
    """An operator on one shape.

    plain: the same in torch, of the same arguments. wrt: those that have a gradient. few: the arguments of
    the first output's sampled elements `rows`, which the oracle computes. moved, flops: of the passes.
    derives: whether a derived gradient is timed beside the operator's own.
    beside: other peers, each of which builds a call. clean: whether L2 holds no modified lines. bar: of the
    time. share: the least part of the copy rate.
    """

    op: Any
    shape: dict[str, int | str]
    args: tuple[Tensor, ...]
    plain: Callable[..., Any]
    wrt: tuple[int, ...]
    few: tuple[Tensor, ...]
    rows: Any
    moved: Mapping[str, float]
    flops: Mapping[str, float] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "bf16"
    derives: bool = False
    beside: Mapping[str, Callable[[], Callable[[], Any]]] = field(default_factory=dict)
    clean: bool = False
    bar: Bar = BAR
    share: float | None = None

    def ours(self) -> Any:
        return self.op(*self.args, **self.options)

    def derived(self) -> Callable[[], Any]:
        """Return a call of the same spec with a derived gradient."""
        spec = op(saves=self.op.saves, name=self.op.name, returns=self.op.returns)(self.op.fn)
        spec.derive_vjp(*self.op.gradient.wrt)
        return lambda: spec(*self.args, **self.options)


def _first(made: Any) -> Tensor:
    return made if isinstance(made, Tensor) else made[0]


def case(work: Work, passes: str) -> Case:
    """Forward without autograd, backward of a forward that ran before, or both."""

    def launch(call: Callable[[], Any]) -> Launch:
        inputs = tuple(work.args[i] for i in work.wrt)
        if passes == "fwd":
            return peers.without_grad(call)
        seed = torch.randn_like(_first(call()))
        return (peers.backward_of if passes == "bwd" else peers.with_grad)(call, inputs, seed)

    ours = {"rlk_derived": lambda: launch(work.derived())} if work.derives and passes != "fwd" else {}
    return Case(
        op=f"gallery.{work.op.name}",
        passes=passes,
        shape=work.shape,
        rlk=lambda: launch(work.ours),
        peers={
            "torch_eager": lambda: launch(lambda: work.plain(*work.args, **work.options)),
            "torch_compile": lambda: launch(
                peers.compiled(lambda *args: work.plain(*args, **work.options), *work.args)
            ),
            **ours,
            **{
                name: lambda build=build: launch(build())
                for name, build in work.beside.items()
                if passes == "fwd" or not name.endswith("_fwd")
            },
        },
        moved=work.moved[passes],
        flops=work.flops.get(passes, 0.0),
        dtype=work.dtype,
        bar=work.bar,
        share=work.share,
        timer=partial(measure, clean=True) if work.clean else None,
        reference="torch_compile",
        check=lambda: check(work),
        describe=lambda: describe(work.op.explain(*work.args, **work.options)),
    )


def check(work: Work) -> Checked:
    """Compare sampled elements of the forward's first output with float64 and with the oracle."""
    with torch.no_grad():
        got = _first(work.ours())[work.rows]
        exact = work.op.record.reference(
            *map(_wide, work.few), **{n: _wide(x) for n, x in work.options.items()}
        )
        differ = compare(_Alone(work.op), [got], *work.few, **work.options)
    error = None if isinstance(exact, dict) else float((got.double() - exact).abs().max())
    return Checked(error, differ)


def _wide(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


@dataclass(frozen=True, slots=True)
class _Alone:
    """An operator whose call returns its first output alone."""

    op: Any

    @property
    def __signature__(self) -> Any:
        return self.op.__signature__

    def explain(self, *args: Any, **options: Any) -> Any:
        return self.op.explain(*args, **options)

    def __call__(self, *args: Any, **options: Any) -> Tensor:
        return _first(self.op(*args, **options))


# --- the operators ---


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16, grad: bool = True) -> Tensor:
    """Draw from N(0, 1) on the device."""
    return torch.randn(*shape, dtype=dtype, device="cuda").requires_grad_(grad)


def layer_norm(rows: int, width: int) -> Work:
    """Activations and weights."""
    x, weight, bias = normal(rows, width), normal(width), normal(width)
    return Work(
        gallery().layer_norm,
        {"M": rows, "N": width},
        (x, weight),
        lambda x, weight, bias: F.layer_norm(x, x.shape[-1:], weight, bias, 1e-5),
        (0, 1),
        (x[SAMPLED], weight),
        SAMPLED,
        {"fwd": 2.0 * x.nbytes, "bwd": 3.0 * x.nbytes},
        options={"bias": bias},
        derives=True,
        beside={
            "liger": lambda: peers.liger_layer_norm(x, weight, bias, 1e-5),
            "quack_fwd": lambda: peers.quack_layer_norm(x, weight, bias, 1e-5),
        },
        share=COPY_RATE,
    )


def plain_smoothed(logits: Tensor, targets: Tensor) -> Tensor:
    """Label-smoothed cross-entropy the way a trainer writes it."""
    return F.cross_entropy(logits.float(), targets, reduction="none", label_smoothing=0.1)


def smoothed_loss(rows: int, vocabulary: int) -> Work:
    """Logits and targets."""
    logits = normal(rows, vocabulary)
    targets = torch.randint(vocabulary, (rows,), device="cuda")
    return Work(
        gallery().smoothed_loss,
        {"N": rows, "V": vocabulary},
        (logits, targets),
        plain_smoothed,
        (0,),
        (logits[SAMPLED], targets[SAMPLED]),
        SAMPLED,
        {"fwd": logits.nbytes, "bwd": 2.0 * logits.nbytes},
        derives=True,
    )


def plain_zloss_head(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy with z-loss of logits that are in memory."""
    z = (hidden @ weight.T).float()
    lse = torch.logsumexp(z, -1)
    return lse - z.gather(-1, targets[:, None])[:, 0] + 1e-4 * lse.square()


def zloss_head(rows: int, width: int, vocabulary: int) -> Work:
    """Hidden states and a head."""
    hidden = normal(rows, width)
    weight = (normal(vocabulary, width, grad=False) / math.sqrt(width)).requires_grad_()
    targets = torch.randint(vocabulary, (rows,), device="cuda")
    once = 2.0 * rows * width * vocabulary
    read = hidden.nbytes + weight.nbytes
    return Work(
        gallery().zloss_head,
        {"N": rows, "D": width, "V": vocabulary},
        (hidden, weight, targets),
        plain_zloss_head,
        (0, 1),
        (hidden[SAMPLED], weight, targets[SAMPLED]),
        SAMPLED,
        {"fwd": read, "fwd+bwd": 2.0 * read},
        {"fwd": once, "fwd+bwd": 3.0 * once},
        derives=True,
        beside={"liger_flce": lambda: peers.liger_zloss_head(hidden, weight, targets, 1e-4)},
    )


def plain_router(logits: Tensor, k: int) -> Tensor:
    """Gates by torch's top-k."""
    best, index = torch.topk(logits, k, dim=-1)
    return torch.zeros_like(logits).scatter(-1, index, torch.softmax(best, -1))


def router(rows: int, experts: int) -> Work:
    """Scores of experts."""
    logits = normal(rows, experts, dtype=torch.float32)
    return Work(
        gallery().router,
        {"T": rows, "E": experts, "k": 8},
        (logits,),
        plain_router,
        (0,),
        (logits[SAMPLED],),
        SAMPLED,
        {"fwd": 2.0 * logits.nbytes, "bwd": 3.0 * logits.nbytes},
        options={"k": 8},
        dtype="f32",
        derives=True,
        beside={"quack_compact": lambda: peers.quack_top_k(logits, 8)},
    )


def plain_adamw(
    weight: Tensor, grad: Tensor, m: Tensor, v: Tensor, row: Tensor, *, lr: float, beta1: float, beta2: float,
    eps: float, decay: float, scale1: float, scale2: float, seed: int, step: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The same step, rounded by torch's own random numbers."""
    g = grad.float()
    m, v = beta1 * m + (1.0 - beta1) * g, beta2 * v + (1.0 - beta2) * g * g
    moved = weight.float() * (1.0 - lr * decay) - lr * (m * scale1) / (torch.sqrt(v * scale2) + eps)
    bits = moved.view(torch.int32) + torch.randint_like(moved, 1 << 16, dtype=torch.int32)
    return ((bits >> 16) << 16).view(torch.float32).bfloat16(), m, v


def adamw(rows: int, width: int) -> Work:
    """A weight, its gradient and both moments."""
    weight, grad = normal(rows, width, grad=False), normal(rows, width, grad=False)
    m, v = torch.zeros(2, rows, width, device="cuda").unbind()
    row = torch.arange(rows, dtype=torch.int32, device="cuda")
    args = (weight, grad, m, v, row)
    return Work(
        gallery().adamw,
        {"R": rows, "C": width},
        args,
        plain_adamw,
        (),
        tuple(a[SAMPLED] for a in args),
        SAMPLED,
        {"fwd": 2.0 * weight.nbytes + grad.nbytes + 4.0 * m.nbytes},
        options=STEP,
        share=COPY_RATE,
    )


CHUNK = 64
"""Tokens that torch's form of linear attention multiplies at once; fewer where sequences are shorter."""


def linear_attention(sequences: int, length: int, width: int) -> Work:
    """Packed sequences of one length, a state of width x width for each."""
    tokens = sequences * length
    q, k, v = (normal(tokens, width, dtype=torch.float32) for _ in range(3))
    gate = torch.rand(tokens, device="cuda").mul(0.1).add(0.9).requires_grad_()
    begin = torch.arange(0, tokens, length, dtype=torch.int32, device="cuda")
    end = begin + length
    one, chunk = slice(0, length), min(CHUNK, length)

    def plain(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, begin: Tensor, end: Tensor) -> Tensor:
        """By chunks of tokens, all sequences at once: products inside of a chunk, a state between two."""
        q, k, v, gate = (x.unflatten(0, (sequences, -1, chunk)) for x in (q, k, v, gate))
        sums = gate.log().cumsum(-1)
        decay = (sums[..., :, None] - sums[..., None, :]).exp().tril()
        inside = (q @ k.mT * decay) @ v
        grown = (k * (sums[..., -1:] - sums).exp()[..., None]).mT @ v
        state, rows = q.new_zeros(sequences, width, width), []
        for c in range(length // chunk):
            rows.append(inside[:, c] + q[:, c] @ state * sums[:, c].exp()[..., None])
            state = state * sums[:, c, -1].exp()[:, None, None] + grown[:, c]
        return torch.stack(rows, 1).flatten(0, 2)

    def by_token() -> Tensor:
        """Token by token, as the operator's definition."""
        each = [x.unflatten(0, (sequences, length)) for x in (q, k, v, gate)]
        state, rows = q.new_zeros(sequences, width, width), []
        for t in range(length):
            of_q, of_k, of_v, g = (x[:, t] for x in each)
            state = g[:, None, None] * state + of_k[:, :, None] * of_v[:, None, :]
            rows.append((of_q[:, :, None] * state).sum(1))
        return torch.stack(rows, 1).flatten(0, 1)

    return Work(
        gallery().linear_attention,
        {"B": sequences, "S": length, "K": width, "W": width},
        (q, k, v, gate, begin, end),
        plain,
        (0, 1, 2, 3),
        (q[one], k[one], v[one], gate[one], begin[:1], end[:1]),
        one,
        {"fwd": 4.0 * q.nbytes, "bwd": 8.0 * q.nbytes},
        dtype="f32",
        beside={
            "torch_by_token": lambda: by_token,
            "fla": lambda: peers.fla_linear_attention(q, k, v, gate, sequences),
        },
    )


def plain_int8_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as int8, the way a library without kernels writes it."""
    xf = x.float()
    scale = xf.abs().amax(-1) / 127.0
    return torch.round(xf / torch.where(scale > 0, scale, 1.0)[:, None]).to(torch.int8), scale


def int8_rows(rows: int, width: int) -> Work:
    """Activations."""
    x = normal(rows, width, grad=False)
    return Work(
        gallery().int8_rows,
        {"M": rows, "N": width},
        (x,),
        plain_int8_rows,
        (),
        (x[SAMPLED],),
        SAMPLED,
        {"fwd": 1.5 * x.nbytes},
        share=COPY_RATE,
    )


def plain_w8a16(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    """A product of weights that torch.compile may dequantise on the way."""
    return (F.linear(x, w.to(x.dtype)).float() * scale).to(x.dtype)


def w8a16(rows: int, out: int, width: int, clean: bool = False) -> Work:
    """Int8 weights, beside bf16 weights by cuBLAS: at few rows, which wait for weights, half of the bytes."""
    x, dense = normal(rows, width, grad=False), normal(out, width, grad=False) / math.sqrt(width)
    w, scale = plain_int8_rows(dense)
    few = [0, -1]
    return Work(
        gallery().w8a16,
        {"M": rows, "N": out, "K": width, **({"L2": "clean"} if clean else {})},
        (x, w, scale),
        plain_w8a16,
        (),
        (x[few], w, scale),
        few,
        {"fwd": x.nbytes + w.nbytes + scale.nbytes + 2.0 * rows * out},
        {"fwd": 2.0 * rows * out * width},
        beside={"cublas_bf16_weights": lambda: lambda: F.linear(x, dense)},
        clean=clean,
        bar=OF_BF16 if clean else BAR,
    )


def decode(rows: int, out: int, width: int) -> Case:
    """The same in a CUDA graph of `LAYERS` weights, as a decode step reads them; the time is that of a layer.

    Every weight replaces those before in L2, so nothing is evicted between launches.
    """
    work = w8a16(rows, out, width)
    x, w, scale = work.args
    every = [(x, w.clone(), scale) for _ in range(LAYERS)]
    dense = [(w.to(x.dtype) * scale[:, None]).to(x.dtype) for _ in range(LAYERS)]

    def timer(launch: Launch) -> Timing:
        found = measure(launch, flush=False)
        ms, burst, least, most = (t / LAYERS for t in (found.ms, found.burst_ms, *found.spread))
        return Timing(ms, burst, (least, most))

    def graph(calls: Callable[[], list[Any]]) -> Launch:
        return captured(peers.without_grad(calls))

    alone = case(work, "fwd")
    return replace(
        alone,
        shape={**alone.shape, "layers": LAYERS},
        rlk=lambda: graph(lambda: [work.op(*args) for args in every]),
        peers={
            "cublas_bf16_weights": lambda: graph(lambda: [F.linear(x, weight) for weight in dense]),
        },
        bar=OF_BF16,
        timer=timer,
        extra=False,
        reference="cublas_bf16_weights",
    )


def plain_fp8_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as e4m3, the way a library without kernels writes it."""
    xf = x.float()
    scale = xf.abs().amax(-1) / 448.0
    q = (xf / torch.where(scale > 0, scale, 1.0)[:, None]).clamp(-448.0, 448.0)
    return q.to(torch.float8_e4m3fn), scale


def fp8_rows(rows: int, width: int) -> Work:
    """Activations."""
    x = normal(rows, width, grad=False)
    return Work(
        gallery().fp8_rows,
        {"M": rows, "N": width},
        (x,),
        plain_fp8_rows,
        (),
        (x[SAMPLED],),
        SAMPLED,
        {"fwd": 1.5 * x.nbytes},
        share=COPY_RATE,
    )


def plain_fp8_linear(x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor) -> Tensor:
    """The same product of numbers in bf16, which torch.compile may convert on the way."""
    return (F.linear(x.bfloat16(), w.bfloat16()).float() * x_scale[:, None] * w_scale).bfloat16()


def fp8_linear(rows: int, out: int, width: int) -> Work:
    """Activations and weights in e4m3, each row with a scale."""
    dense = normal(rows, width, grad=False), normal(out, width, grad=False) / math.sqrt(width)
    (x, x_scale), (w, w_scale) = map(plain_fp8_rows, dense)
    few = [0, -1]
    return Work(
        gallery().fp8_linear,
        {"M": rows, "N": out, "K": width},
        (x, w, x_scale, w_scale),
        plain_fp8_linear,
        (),
        (x[few], w, x_scale[few], w_scale),
        few,
        {"fwd": x.nbytes + w.nbytes + x_scale.nbytes + w_scale.nbytes + 2.0 * rows * out},
        {"fwd": 2.0 * rows * out * width},
        beside={
            "torch_scaled_mm": lambda: (
                lambda: torch._scaled_mm(
                    x, w.t(), scale_a=x_scale[:, None], scale_b=w_scale[None], out_dtype=torch.bfloat16
                )
            )
        },
    )


def plain_swiglu_linear(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    """Two products and the activation, which torch.compile fuses."""
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


def swiglu_linear(rows: int, out: int, width: int) -> Work:
    """Activations and both weights, beside cuBLAS and rlk's swiglu, and beside rlk's own three."""
    x = normal(rows, width, grad=False)
    gate, up = (normal(out, width, grad=False) / math.sqrt(width) for _ in range(2))
    few = [0, -1]
    return Work(
        gallery().swiglu_linear,
        {"M": rows, "N": out, "K": width},
        (x, gate, up),
        plain_swiglu_linear,
        (),
        (x[few], gate, up),
        few,
        {"fwd": x.nbytes + gate.nbytes + up.nbytes + 2.0 * rows * out},
        {"fwd": 4.0 * rows * out * width},
        beside={
            "cublas_and_swiglu": lambda: lambda: rlk.ops.swiglu(F.linear(x, gate), F.linear(x, up)),
            "rlk_apart": lambda: lambda: rlk.ops.swiglu(rlk.ops.matmul(x, gate), rlk.ops.matmul(x, up)),
        },
    )


# --- a product of a product, which no operator of the gallery has ---

T, N, K, R = Axis("T", dynamic=True), Axis("N"), Axis("K"), Axis("R")


@op()
def lora_linear(
    x: TensorOf[bf16, T, K], w: TensorOf[bf16, N, K], down: TensorOf[bf16, R, K], up: TensorOf[bf16, N, R]
) -> Outputs:
    """y = x w^T + (x down^T) up^T (Hu et al. 2021), rounded once; x down^T is rounded and kept in memory."""
    h = L.keep(L.dot(x, down, over=K).to(bf16), "h")
    return L.out(y=(L.dot(x, w, over=K) + L.dot(h, up, over=R)).to(bf16))


def plain_lora(x: Tensor, w: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """Three products and a sum, as adapters have them."""
    return F.linear(x, w) + F.linear(F.linear(x, down), up)


def lora(rows: int, out: int, width: int, rank: int) -> Work:
    """Activations, a weight, and an adapter of a rank, beside cuBLAS's product without the adapter."""
    x = normal(rows, width, grad=False)
    w, down = (normal(n, width, grad=False) / math.sqrt(width) for n in (out, rank))
    up = normal(out, rank, grad=False) / math.sqrt(rank)
    few = [0, -1]
    rlk.register(lora_linear, namespace="bench_gallery", reference=plain_lora)
    return Work(
        lora_linear,
        {"M": rows, "N": out, "K": width, "R": rank},
        (x, w, down, up),
        plain_lora,
        (),
        (x[few], w, down, up),
        few,
        {"fwd": x.nbytes + w.nbytes + down.nbytes + up.nbytes + 2.0 * rows * out},
        {"fwd": 2.0 * rows * (out * width + rank * (width + out))},
        beside={"cublas_without_adapter": lambda: lambda: F.linear(x, w)},
    )


def cases() -> Iterator[Case]:
    """Yield the rows of every operator, in the order of the gallery's page."""
    yield from (case(layer_norm(32768, 4096), passes) for passes in ("fwd", "bwd"))
    yield from (case(smoothed_loss(8192, 128256), passes) for passes in ("fwd", "bwd"))
    yield from (case(zloss_head(8192, 4096, 128256), passes) for passes in ("fwd", "fwd+bwd"))
    yield from (case(router(131072, 128), passes) for passes in ("fwd", "bwd"))
    yield case(adamw(16384, 4096), "fwd")
    yield from (case(linear_attention(512, 128, 64), passes) for passes in ("fwd", "bwd"))
    yield case(int8_rows(32768, 4096), "fwd")
    yield from (case(w8a16(rows, 12288, 4096), "fwd") for rows in (1, 16, 64, 256, 1024, 4096))
    yield from (case(w8a16(rows, 12288, 4096, clean=True), "fwd") for rows in (1, 16, 64))
    yield from (decode(rows, 12288, 4096) for rows in (1, 16, 64))
    yield case(fp8_rows(32768, 4096), "fwd")
    yield from (case(fp8_linear(rows, 12288, 4096), "fwd") for rows in (16, 4096))
    yield from (case(swiglu_linear(rows, 12288, 4096), "fwd") for rows in (16, 8192))
    yield from (case(lora(rows, 12288, 4096, 64), "fwd") for rows in (16, 8192))


if __name__ == "__main__":
    main("authors", cases)
