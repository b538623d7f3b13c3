"""Benchmark of ranks: sums over them beside NCCL's, a decoder layer that they share, the price of leaves.

One process measures what one rank pays for being one (`R=1`), leaves, and the f32 parts of two ranks. For
several, a device each: `torchrun --standalone --nproc-per-node 2 -m benchmarks.bench_parallel`.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

import rlk
from benchmarks import bench_model, layers, peers
from benchmarks.accumulation import micro_batches
from benchmarks.harness import Bar, Case, Checked, main
from benchmarks.identity import describe, differing_there
from benchmarks.layers import TorchLayer
from benchmarks.timing import (
    BURST_LAUNCHES,
    MOST_LAUNCHES,
    WARM_LAUNCHES,
    Launch,
    Timing,
    captured,
    measure,
    measure_host,
    measure_host_in_turns,
    measure_in_turns,
    timed,
)
from rlk.lower.triton.ranks import Exchange
from rlk.nn import CausalLM, DecoderLayer, Linear, ModelConfig, WholeSequences
from rlk.ops import ordered_all_reduce, ordered_reduce_scatter, products
from rlk.parallel import ColumnParallelLinear, Ranks, RowParallelLinear, parallelize, ranks_of
from rlk.runtime.call import collective, symmetric
from rlk.runtime.call.collective import ordered_gather
from rlk.testing.bits import differing

KIB = (8, 64, 512, 4096, 32768, 65536, 262144, 1048576)
LARGE = 65536  # KiB from which a sum has the tighter bar
LEAVES, PIECES = 8, 2
SECONDS, IDLE = 0.2, 0.1
HOST_CALLS = 100
SAMPLED = 1 << 20
LIMIT = timedelta(seconds=60)
"""Of a collective: ranks that lost each other end."""
SHAPES = ((4, 2048), (1, 8192))
"""Sequences, and the tokens of each."""
SMALL, FEW = "Qwen3-0.6B", 64
"""A model, and tokens of it whose layer takes the host longer than the device."""
MICRO_BATCHES, DEPTH = 8, 8
"""Of a step, and layers of its model."""
MODEL, WHOLE, ONE_LEAF, MEGATRON = "Qwen3-8B", "rlk_whole", "rlk_one_leaf", "megatron_cublas"
"""WHOLE: the same layer, with as many leaves, that no ranks share; one rank's takes turns with it."""


def together(launch: Launch) -> Timing:
    """Time a launch that all ranks make, as often on each; the times are of the slowest rank."""
    if rank_count() == 1:
        return measure(launch, seconds=SECONDS)
    for _ in range(WARM_LAUNCHES):
        launch()
    torch.cuda.synchronize()
    time.sleep(IDLE)
    burst = _slowest(statistics.median(timed(launch, BURST_LAUNCHES, flush=True)))
    launches = int(max(BURST_LAUNCHES, min(MOST_LAUNCHES, 1e3 * SECONDS / max(burst, 0.1))))
    times = sorted(timed(launch, launches, flush=True))
    tenth = len(times) // 10
    found = statistics.median(times), times[tenth], times[-1 - tenth]
    middle, low, high = map(_slowest, found)
    return Timing(middle, burst, (low, high))


def rank_count() -> int:
    """Return the number of processes, each with a device."""
    return dist.get_world_size() if dist.is_initialized() else 1


def by_host(launch: Launch) -> Timing:
    """Time the host's side of a launch."""
    return measure_host(launch, calls=HOST_CALLS)


def _slowest(ms: float) -> float:
    found = torch.tensor(ms, dtype=torch.float64, device="cuda")
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return float(found)


# --- sums ---


def tree(terms: Tensor) -> Tensor:
    """Return the f32 sum of terms [R, n] on the host: neighbours first."""
    while len(terms) > 1:
        terms = terms[0::2] + terms[1::2]
    return terms[0]


def sampled(x: Tensor) -> Tensor:
    """Return some elements of a tensor, of all of its chunks."""
    flat = x.flatten()
    return flat[:: -(-len(flat) // SAMPLED)].contiguous()


def all_reduce(kib: int, dtype: torch.dtype, *, graph: bool = False) -> Case:
    """The sum of a tensor over ranks, beside NCCL's all-reduce. Compared: some elements with a host's sum."""
    x = torch.randn(kib * 1024 // dtype.itemsize, device="cuda").to(dtype)
    place = torch.zeros_like(x)

    def check() -> Checked:
        terms = ordered_gather(sampled(x), None).cpu().float()
        want, wide = tree(terms), terms.double().sum(0)
        got = sampled(ordered_all_reduce(x, None)).cpu()
        return Checked(float((got.double() - wide).abs().max()), differing(got, want.to(dtype)))

    every = {
        "nccl": partial(dist.all_reduce, place),
        "rlk_by_nccl": partial(collective.sum_by_backend, x, (world(),), dtype),
    }
    return of_sums("all_reduce", kib, dtype, partial(ordered_all_reduce, x, None), every, 2.0, check, graph)


def world() -> dist.ProcessGroup:
    """Return the group of all ranks."""
    group = dist.group.WORLD
    assert group is not None
    return group


def transport_of(op: str) -> str:
    """Return what carries ordered sums of f32 and bf16 between all ranks here."""
    found = symmetric.transport((world(),), torch.empty(16, device="cuda"), op)
    return "nccl" if found is None else "symmetric"


def reduce_scatter(kib: int, dtype: torch.dtype, *, graph: bool = False) -> Case:
    """A rank's part of the sum, beside NCCL's reduce-scatter. Compared: some elements with a host's sum."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    x = torch.randn(ranks, kib * 1024 // dtype.itemsize // ranks, device="cuda").to(dtype)
    place = torch.empty_like(x[0])

    def check() -> Checked:
        terms = ordered_gather(torch.stack([sampled(part) for part in x]), None)[:, rank].cpu().float()
        want, wide = tree(terms), terms.double().sum(0)
        got = sampled(ordered_reduce_scatter(x, None)).cpu()
        return Checked(float((got.double() - wide).abs().max()), differing(got, want.to(dtype)))

    every = {
        "nccl": partial(dist.reduce_scatter_tensor, place, x.view(-1)),
        "rlk_by_nccl": partial(collective.part_by_backend, x.view(-1), (world(),), dtype),
    }
    ours, moved = partial(ordered_reduce_scatter, x, None), 1 + 1 / ranks
    return of_sums("reduce_scatter", kib, dtype, ours, every, moved, check, graph)


def of_sums(
    op: str,
    kib: int,
    dtype: torch.dtype,
    ours: Launch,
    every: Mapping[str, Launch],
    moved: float,
    check: Callable[[], Checked],
    graph: bool,
) -> Case:
    """Return the case of a collective; moved: of x's bytes, those read and written; graph: of each launch."""
    name = "f32" if dtype is torch.float32 else "bf16"

    def made(launch: Launch) -> Callable[[], Launch]:
        return (lambda: captured(launch)) if graph else (lambda: launch)

    return Case(
        op=op,
        passes="graph" if graph else "fwd",
        shape={"R": dist.get_world_size(), "KiB": kib, "dtype": name},
        dtype=name,
        backend=transport_of(op),
        rlk=made(ours),
        peers={name: made(launch) for name, launch in every.items()},
        moved=moved * kib * 1024,
        bar=Bar(1.1 if kib >= LARGE else 1.3, "nccl"),
        reference="nccl",
        check=check,
        describe=lambda: {
            "tier": "exact",
            "numerics_id": getattr(rlk.ops, f"ordered_{op}").numerics_id("cuda"),
        },
        timer=together,
        extra=False,
        notes={"multicast": "off"},
    )


def variants(kib: int) -> Case:
    """Other sizes of the exchange by symmetric memory, and few elements in either form."""
    x = torch.randn(kib * 256, device="cuda")
    out, place = torch.empty_like(x), torch.zeros_like(x)

    def other(**sizes: int) -> Callable[[], Launch]:
        def make() -> Launch:
            made = replace(Exchange(dist.get_world_size()), **sizes)
            buffer = symmetric._allocated(made, x.device)
            on = symmetric._mapped(world(), made, dist.get_rank(), buffer)
            dist.barrier()  # all buffers have zeros
            return partial(on.by_chunks, x, out, 0)

        return make

    def few() -> Launch:
        on = symmetric.transport((world(),), x, "ordered_all_reduce")
        if on is None or x.numel() > on.sizes.words:
            raise peers.Absent("as many elements go in chunks")
        return partial(on.by_words, x, out, 0)

    def in_shares(y: Tensor) -> Launch:
        on = symmetric.transport((world(),), x, "ordered_all_reduce")
        if on is None:
            raise peers.Absent("no symmetric memory")
        return partial(on.by_shares, x, y)

    short = out.bfloat16()
    every: dict[str, Callable[[], Launch]] = {
        "nccl": lambda: partial(dist.all_reduce, place),
        "nccl_bf16": lambda: partial(dist.all_reduce, short),
        "rlk_to_bf16": lambda: partial(ordered_all_reduce, x, None, out_dtype=torch.bfloat16),
        "rlk_shares": lambda: in_shares(out),
        "rlk_shares_to_bf16": lambda: in_shares(short),
        "rlk_words": few,
        "rlk_chunks": other(),
        "rlk_chunks_32k": other(chunk=1 << 15, warps=16),
        "rlk_programs_256": other(programs=256),
        "rlk_ahead_1": other(ahead=1),
        "rlk_ahead_4": other(ahead=4),
    }
    case = all_reduce(kib, torch.float32)
    return replace(case, passes="variants", peers=every, bar=None)


def summed_product(m: int, n: int, k: int) -> Case:
    """A rank's part of a row-parallel product and its sum over ranks, one after the other, and overlapped.

    Overlapped: in chunks of rows, each summed on a second stream beside the product of the next one.
    Compared: overlapped with not.
    """
    ranks, rank = dist.get_world_size(), dist.get_rank()
    x, w = (torch.randn(rows, k // ranks, dtype=torch.bfloat16, device="cuda") for rows in (m, n))
    own = LEAVES // ranks
    y, side = torch.empty(m, n, dtype=torch.bfloat16, device="cuda"), torch.cuda.Stream()

    def part(rows: Tensor) -> Tensor:
        return rlk.ops.matmul(rows, w, leaves=LEAVES, part=(rank * own, (rank + 1) * own))

    def ours() -> Tensor:
        return ordered_all_reduce(part(x), None, out_dtype=torch.bfloat16)

    def overlapped(chunks: int) -> Launch:
        on = symmetric.transport((world(),), x, "ordered_all_reduce")
        if on is None:
            raise peers.Absent("no symmetric memory")

        def launch() -> Tensor:
            main_stream = torch.cuda.current_stream()
            for rows, sums in zip(x.chunk(chunks), y.chunk(chunks), strict=True):
                terms = part(rows)
                side.wait_stream(main_stream)
                with torch.cuda.stream(side):
                    on.by_shares(terms, sums)
                terms.record_stream(side)
            main_stream.wait_stream(side)
            return y

        return launch

    def megatron_sum() -> Tensor:
        z = x @ w.t()
        dist.all_reduce(z)
        return z

    def check() -> Checked:
        if symmetric.transport((world(),), x, "ordered_all_reduce") is None:
            return Checked()
        return Checked(differing=differing(sampled(overlapped(4)()).cpu(), sampled(ours()).cpu()))

    return Case(
        op="row_parallel",
        passes="sum",
        shape={"M": m, "N": n, "K": k, "R": ranks},
        rlk=lambda: ours,
        peers={
            MEGATRON: lambda: megatron_sum,
            "rlk_product": lambda: partial(part, x),
            "rlk_chunks_2": lambda: overlapped(2),
            "rlk_chunks_4": lambda: overlapped(4),
            "cublas_gemm": lambda: lambda: x @ w.t(),
        },
        moved=2.0 * (m * n + (m + n) * k / ranks),
        flops=2.0 * m * n * k / ranks,
        reference=MEGATRON,
        check=check,
        describe=partial(explained, x, w, leaves=LEAVES),
        timer=together,
        extra=False,
        notes={"leaves": LEAVES, "compared": "in chunks with not"},
    )


# --- one rank of one ---


def alone() -> Ranks:
    """Return the ranks of a mesh of one; without a process group (a dry run), some that can send nothing."""
    if not dist.is_initialized():
        return Ranks(dist.ProcessGroup(0, 1), 1, 0)
    return ranks_of(init_device_mesh("cuda", (1,)), None)


def of_one_rank(style: str, m: int, n: int, k: int, *, grad: bool) -> Case:
    """A parallel layer of one rank, beside `rlk.nn.Linear` with as many leaves.

    Compared: results, or gradients of input and weight, with those of that layer.
    """
    rows = style == "row_parallel"
    made: dict[str, Any] = {"leaves": LEAVES, "device": "cuda", "dtype": torch.bfloat16}
    whole = Linear(k, n, False, parallel="rows" if rows else "columns", **made)
    shared = (RowParallelLinear if rows else ColumnParallelLinear)(k, n, False, ranks=alone(), **made)
    shared.weight = whole.weight
    x = torch.randn(m, k, dtype=torch.bfloat16, device="cuda", requires_grad=grad)
    seed = torch.randn(m, n, dtype=torch.bfloat16, device="cuda")

    def launch(layer: Linear) -> Launch:
        if grad:
            return peers.with_grad(lambda: layer(x), (x, layer.weight), seed)
        return peers.without_grad(lambda: (layer(x),))

    return Case(
        op=style,
        passes="fwd+bwd" if grad else "fwd",
        shape={"M": m, "N": n, "K": k, "R": 1},
        rlk=lambda: launch(shared),
        peers={WHOLE: lambda: launch(whole)},
        moved=2.0 * (m * n + m * k + n * k),
        flops=(3 if grad else 1) * 2.0 * m * n * k,
        bar=Bar(1.03, WHOLE),
        reference=WHOLE,
        check=lambda: Checked(differing=bench_model.unequal(launch(shared)(), launch(whole)())),
        describe=partial(explained, x, whole.weight, leaves=LEAVES),
        timer=together,
        turns=partial(measure_in_turns, seconds=SECONDS),
        extra=False,
        notes={"leaves": LEAVES, "compared": "with rlk.nn.Linear"},
    )


# --- the price of leaves and of f32 parts, on one device ---


def explained(x: Tensor, w: Tensor, **options: Any) -> Mapping[str, str]:
    """Return the identity of a product."""
    return describe(rlk.ops.matmul.explain(x, w, **options))


def product(m: int, n: int, k: int) -> Case:
    """A row-parallel product in eight leaves, beside one leaf."""
    x, w = (torch.randn(rows, k, dtype=torch.bfloat16, device="cuda") for rows in (m, n))
    return Case(
        op="row_parallel",
        passes="fwd",
        shape={"M": m, "N": n, "K": k},
        rlk=lambda: partial(rlk.ops.matmul, x, w, leaves=LEAVES),
        peers={
            ONE_LEAF: lambda: partial(rlk.ops.matmul, x, w),
            "cublas_gemm": lambda: lambda: x @ w.t(),
        },
        moved=2.0 * (m * n + m * k + n * k),
        flops=2.0 * m * n * k,
        reference=ONE_LEAF,
        describe=partial(explained, x, w, leaves=LEAVES),
        timer=together,
        extra=False,
        notes={"leaves": LEAVES},
    )


def parts_of_product(m: int, n: int, k: int) -> Case:
    """Both halves of K, as two ranks compute them, one after the other, and their sum, rounded once."""
    x, w = (torch.randn(rows, k, dtype=torch.bfloat16, device="cuda") for rows in (m, n))
    half, each = k // PIECES, LEAVES // PIECES
    halves = [[t[:, i * half : (i + 1) * half].contiguous() for t in (x, w)] for i in range(PIECES)]

    def part(i: int) -> Tensor:
        return rlk.ops.matmul(*halves[i], leaves=LEAVES, part=(i * each, (i + 1) * each))

    whole = partial(rlk.ops.matmul, x, w, leaves=LEAVES)
    said = partial(explained, x, w, leaves=LEAVES)
    return of_parts("row_parallel", "parts", {"M": m, "N": n, "K": k}, part, whole, said, "leaves")


def input_gradient(m: int, n: int, k: int) -> Case:
    """The gradient of a column-parallel product's input in eight leaves, beside one leaf."""
    d_y, w = (torch.randn(*s, dtype=torch.bfloat16, device="cuda") for s in ((m, n), (n, k)))
    return Case(
        op="column_parallel",
        passes="dgrad",
        shape={"M": m, "N": n, "K": k},
        rlk=lambda: gradient_of_input(d_y, w, LEAVES),
        peers={
            ONE_LEAF: lambda: gradient_of_input(d_y, w, 1),
            "cublas_gemm": lambda: lambda: d_y @ w,
        },
        moved=2.0 * (m * n + m * k + n * k),
        flops=2.0 * m * n * k,
        reference=ONE_LEAF,
        describe=partial(explained, d_y.new_empty(m, k), w, grad_leaves=LEAVES),
        timer=together,
        extra=False,
        notes={"grad_leaves": LEAVES},
    )


def gradient_of_input(d_y: Tensor, w: Tensor, leaves: int) -> Launch:
    """Return the backward of a product for its input, whose forward runs now."""
    x = torch.randn(len(d_y), w.shape[1], dtype=torch.bfloat16, device="cuda", requires_grad=True)
    return peers.backward_of(lambda: rlk.ops.matmul(x, w, grad_leaves=leaves), (x,), d_y)


def parts_of_input_gradient(m: int, n: int, k: int) -> Case:
    """Both halves of N, as two ranks compute them, one after the other, and their sum, rounded once."""
    d_y, w = (torch.randn(*s, dtype=torch.bfloat16, device="cuda") for s in ((m, n), (n, k)))
    half = n // PIECES
    halves = [(d_y[:, i * half : (i + 1) * half].contiguous(), w[i * half :][:half]) for i in range(PIECES)]

    def part(i: int) -> Tensor:
        return products.partial_input_gradient(*halves[i], LEAVES // PIECES)

    whole = partial(products.input_gradient, d_y, w, LEAVES)
    said = partial(explained, d_y.new_empty(m, k), w, grad_leaves=LEAVES)
    sizes: dict[str, int | str] = {"M": m, "N": n, "K": k}
    return of_parts("column_parallel", "dgrad parts", sizes, part, whole, said, "grad_leaves")


def of_parts(
    op: str,
    passes: str,
    shape: dict[str, int | str],
    part: Callable[[int], Tensor],
    whole: Launch,
    described: Callable[[], Mapping[str, str]],
    leaves: str,
) -> Case:
    """Return the case of two f32 parts and their sum, beside one product of the whole; each alone, too."""
    m, n, k = (int(size) for size in shape.values())

    def parts() -> list[Tensor]:
        return [part(i) for i in range(PIECES)]

    def added(terms: list[Tensor]) -> Tensor:
        sums = torch.empty_like(terms[0], dtype=torch.bfloat16)
        return torch.add(terms[0], terms[1], out=sums)  # as a rank adds the part that the other one sent

    return Case(
        op=op,
        passes=passes,
        shape=shape,
        rlk=lambda: lambda: added(parts()),
        peers={
            WHOLE: lambda: whole,
            "rlk_first_part": lambda: partial(part, 0),
            "rlk_second_part": lambda: partial(part, 1),
            "rlk_sum": lambda: partial(added, parts()),
        },
        moved=2.0 * (m * n + m * k + n * k),
        flops=2.0 * m * n * k,
        reference=WHOLE,
        check=lambda: Checked(differing=differing_there(added(parts()), whole())),
        describe=described,
        timer=together,
        extra=False,
        notes={leaves: LEAVES, "compared": "with the whole"},
    )


# --- a decoder layer ---


def config_of(model: str, leaves: int) -> ModelConfig:
    """Return the config of one layer of a model; of a small vocabulary, which no layer sees."""
    sizes = {MODEL: (4096, 32, 8, 12288), SMALL: (1024, 16, 8, 3072)}[model]
    return replace(layers.config_of("qwen3", *sizes, vocabulary=1024), leaves=leaves)


def layer_of(model: str, leaves: int, sp: bool | None = None) -> DecoderLayer:
    """Return a rank's layer, whose weights are those of every other run; sp: None of one that none share."""
    torch.manual_seed(0)
    made = CausalLM(config_of(model, leaves), device="cuda")
    if sp is not None and dist.is_initialized():
        parallelize(made, init_device_mesh("cuda", (rank_count(),)), sp=sp)
    layer = made.model.layers[0]
    assert isinstance(layer, DecoderLayer)
    return layer


class _Reduced(torch.autograd.Function):
    """The sum over ranks; the gradient passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> Tensor:
        return d_y


class _Copied(torch.autograd.Function):
    """The input of all ranks; its gradient is summed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> Tensor:
        d_y = d_y.contiguous()
        dist.all_reduce(d_y)
        return d_y


def megatron(
    on: TorchLayer, x: Tensor, residual: Tensor, attend: Callable[[TorchLayer, Tensor], Tensor]
) -> Any:
    """A layer as Megatron-LM shares it: cuBLAS products, all-reduces of bf16."""
    eps = on.config.rms_norm_eps
    x, residual = layers.fused(layers.add_norm)(x, residual, on.input_norm, eps)
    o = attend(on, F.linear(_Copied.apply(x), on.qkv))
    x = _Reduced.apply(F.linear(o.flatten(-2), on.o))
    x, residual = layers.fused(layers.add_norm)(x, residual, on.post_norm, eps)
    both = F.linear(_Copied.apply(x), on.gate_up)
    return _Reduced.apply(F.linear(layers.fused(layers.gated)(both), on.down)), residual


def sdpa(batch: int) -> Callable[..., Tensor]:
    """Return torch's attention of sequences of one length, called as FlashAttention's packed one."""

    def attention(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Tensor:
        q, k, v = (t.unflatten(0, (batch, -1)).transpose(1, 2) for t in (q, k, v))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return o.transpose(1, 2).flatten(0, 1)

    return attention


def torch_layer(model: str, layer: DecoderLayer, ranks: int, batch: int, grad: bool) -> TorchLayer:
    """Return the peer's layer, by FlashAttention 4 if it is there."""
    c = config_of(model, 1)
    own = replace(
        c,
        num_attention_heads=c.num_attention_heads // ranks,
        num_key_value_heads=c.num_key_value_heads // ranks,
    )
    try:
        return TorchLayer.of(own, layer, grad=grad)
    except peers.Absent:
        return TorchLayer.of(own, layer, grad=grad, attention=sdpa(batch))


def decoder_layer(
    model: str, batch: int, length: int, sp: bool, grad: bool, *, host: bool = False, graph: bool = False
) -> Case:
    """A layer that all ranks share, beside Megatron-LM's way; of one rank, beside one that none share.

    `parallelize` leaves the model of one rank as it is: both are one computation, and what their times differ
    by is the measurement's. host: the host's time of a call is measured, the device is not waited for. graph:
    replays of a CUDA graph are, in which the host has no part.
    """
    tokens, config, ranks = batch * length, config_of(model, LEAVES), rank_count()
    at = layers.whole(batch, length)
    torch.manual_seed(1)
    given = layers.states(tokens, config.hidden_size)
    seeds = layers.states(tokens, config.hidden_size)

    def own(leaves: int, sp: bool | None) -> tuple[Launch, DecoderLayer]:
        layer = layer_of(model, leaves, sp)
        rows = slice(None) if layer.ranks is None else layer.ranks.rows(tokens)
        return passes(layer, tuple(layer.parameters()), rows), layer

    def passes(call: Callable[..., Any], weights: tuple[Tensor, ...], rows: slice = slice(None)) -> Launch:
        inputs = tuple((t if ranks == 1 else t[rows].clone()).requires_grad_(grad) for t in given)
        made = peers.without_grad(lambda: call(*inputs, at))
        if grad:
            seed = tuple(t[rows] for t in seeds)
            made = peers.with_grad(lambda: call(*inputs, at), (*inputs, *weights), seed)
        return captured(made) if graph else made

    def peer() -> Launch:
        layer = layer_of(model, LEAVES, None if ranks == 1 else False)
        made = torch_layer(model, layer, ranks, batch, grad)
        attend = layers.attend_whole(at, made)

        def call(x: Tensor, residual: Tensor, _: WholeSequences) -> Any:
            return made(x, residual, attend) if ranks == 1 else megatron(made, x, residual, attend)

        return passes(call, made.weights)

    def check() -> Checked:
        launch, layer = own(LEAVES, sp)
        rows = slice(None) if layer.ranks is None else layer.ranks.rows(tokens)
        wanted = own(LEAVES, None)[0]()[:2]  # results, or gradients of x and the residual
        return Checked(differing=bench_model.unequal(launch()[:2], tuple(t[rows] for t in wanted)))

    in_turns = partial(measure_in_turns, seconds=SECONDS)
    if host:
        in_turns = partial(measure_host_in_turns, calls=HOST_CALLS)
    every: dict[str, Callable[[], Launch]] = {MEGATRON: peer}
    if ranks == 1:
        every |= {WHOLE: lambda: own(LEAVES, None)[0], ONE_LEAF: lambda: own(1, None)[0]}
    return Case(
        op="decoder_layer",
        passes=("fwd+bwd" if grad else "fwd") + (" host" if host else " graph" if graph else ""),
        shape={"model": model, "B": batch, "S": length, "R": ranks, "sp": int(sp)},
        rlk=lambda: own(LEAVES, sp)[0],
        peers=every,
        moved=2.0 * layers.weights_of(config) / ranks,
        flops=(3.0 if grad else 1.0) * bench_model.flops(config, batch, length) / ranks,
        bar=Bar(1.03, WHOLE) if ranks == 1 else None,
        reference=WHOLE if ranks == 1 else MEGATRON,
        check=check,
        describe=lambda: bench_model.described(config),
        timer=by_host if host else together,
        turns=in_turns if ranks == 1 else None,
        extra=False,
        notes={"leaves": LEAVES, "compared": "results or input gradients with those of one rank"},
    )


# --- micro-batches ---


def step(kind: str) -> Case:
    """A step of micro-batches in order, of a model that a wrapper holds."""
    config = layers.config_of("qwen3", 1024, 16, 8, 3072, layers=DEPTH, vocabulary=32768)
    return micro_batches(config, MICRO_BATCHES, *SHAPES[0], kind, _slowest)


# --- the family ---


def cases() -> Iterator[Case]:
    """Yield the rows of one device, or of ranks where there are several."""
    for case in of_ranks() if rank_count() > 1 else of_one_device():
        torch.cuda.empty_cache()
        yield case


def of_ranks() -> Iterator[Case]:
    """Yield the rows of several ranks."""
    for kib in KIB:
        for case in (all_reduce, reduce_scatter):
            yield case(kib, torch.float32)
    yield all_reduce(LARGE, torch.bfloat16)
    for kib in KIB:
        for case in (all_reduce, reduce_scatter):
            yield case(kib, torch.float32, graph=True)
    for sp in (False, True):
        for grad in (False, True):
            yield decoder_layer(MODEL, *SHAPES[0], sp, grad)
    for kind in ("ddp", "fsdp2"):
        yield step(kind)
    for k in (4096, 12288):
        yield summed_product(8192, 4096, k)
    for kib in (512, 4096, 65536, 1048576):
        yield variants(kib)


def of_one_device() -> Iterator[Case]:
    """Yield the rows of one rank, of leaves, and of the parts of two ranks one after the other."""
    for grad in (False, True) if torch.cuda.is_available() else (False,):  # fake tensors have no backward
        for batch, length in SHAPES:
            yield decoder_layer(MODEL, batch, length, False, grad)
        yield decoder_layer(SMALL, *SHAPES[0], False, grad)
        yield decoder_layer(SMALL, *SHAPES[0], False, grad, graph=True)
        yield decoder_layer(SMALL, 1, FEW, False, grad, host=True)
        for m, n, k in ((8192, 4096, 4096), (8192, 4096, 12288), (FEW, 4096, 12288)):
            yield of_one_rank("row_parallel", m, n, k, grad=grad)
        yield of_one_rank("column_parallel", 8192, 24576, 4096, grad=grad)
    for n, k in ((4096, 4096), (4096, 12288)):
        yield product(8192, n, k)
        yield parts_of_product(8192, n, k)
    for n in (6144, 24576):
        yield input_gradient(8192, n, 4096)
        if torch.cuda.is_available():
            yield parts_of_input_gradient(8192, n, 4096)
    if torch.cuda.is_available():
        yield step("none")


def joined() -> bool:
    """Join the ranks that torchrun started, or be a group of one; return whether this process reports."""
    if "RANK" not in os.environ:
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, timeout=LIMIT)
        return True
    os.environ.update(symmetric.NO_MULTICAST)
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", timeout=LIMIT, device_id=device)
    return dist.get_rank() == 0


if __name__ == "__main__":
    reporting = joined()
    try:
        main("parallel", cases, matrix=True, reports=reporting)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
