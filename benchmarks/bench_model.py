"""Benchmark of models: decoder layers in training and decoding, and a whole model's step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

import rlk
from benchmarks import layers, peers, whole_model
from benchmarks.harness import Bar, Case, Checked, Room, main
from benchmarks.identity import describe, differing_there
from benchmarks.layers import TorchLayer
from benchmarks.timing import Launch, Timing, captured, measure_host, measure_long
from benchmarks.whole_model import Batch, Decoding
from rlk.nn import CausalLM, DecoderLayer, ModelConfig, PagedTokens, WholeSequences

PEER, WHOLE_PEER = "torch_compile_fa4", "transformers_fa4_liger"
TRAINING = ((4, 2048), (1, 8192), (1, 16384))
"""Sequences, and the tokens of each."""
TRAINED = {"Qwen3-8B": ((4, 2048), (1, 16384)), "Llama-3-8B": ((4, 2048),), "Qwen3-0.6B": ((4, 2048),)}
DECODES = ((1, 2048), (16, 2048), (64, 2048), (256, 2048), (64, 8192))
"""Sequences, and the keys of each."""
SPLIT = 16  # sequences up to which a peer cuts its keys, to fill the device
CHECKED = 32  # sequences of a decode that are compared one by one
HOST_CALLS, HOST_REPEATS = 100, 21


def described(config: ModelConfig) -> Mapping[str, str]:
    """Return the model's id on this device; the backend and schedule are those of its products."""
    x = torch.empty(1, config.hidden_size, dtype=torch.bfloat16, device="cuda")
    return {
        **describe(rlk.ops.matmul.explain(x, x.expand(config.intermediate_size, -1).contiguous())),
        "numerics_id": CausalLM(config, device="meta").numerics_id(x.device),
    }


def unequal(got: tuple[Tensor, ...], want: tuple[Tensor, ...]) -> int:
    """Count the values whose bits differ."""
    return sum(differing_there(a, b) for a, b in zip(got, want, strict=True))


# --- a layer, forward ---


def forward(model: str, config: ModelConfig, batch: int, length: int) -> Case:
    """A layer of packed sequences. Compared: the first sequence in the batch, alone and through pages."""
    tokens = batch * length
    layer, given, at = (
        layers.layer_of(config),
        layers.states(tokens, config.hidden_size),
        layers.whole(batch, length),
    )

    def peer() -> Launch:
        torch_layer = TorchLayer.of(config, layer)
        attend = layers.attend_whole(at, torch_layer)
        return captured(peers.without_grad(lambda: torch_layer(*given, attend)))

    return Case(
        op="decoder_layer",
        passes="fwd",
        shape={"model": model, "B": batch, "S": length},
        rlk=lambda: captured(peers.without_grad(lambda: layer(*given, at))),
        peers={PEER: peer},
        moved=2.0 * layers.weights_of(config) + 8.0 * tokens * config.hidden_size,
        flops=flops(config, batch, length),
        bar=Bar(1.02, PEER),
        reference=PEER,
        check=lambda: check_forward(config, layer, given, at, length),
        describe=lambda: described(config),
        extra=False,
        notes={"compared": "the first sequence alone and through pages"},
    )


def flops(config: ModelConfig, batch: int, length: int) -> float:
    """Return the operations of a layer's forward: its products, and two over half of each square."""
    products = 2.0 * batch * length * layers.weights_of(config)
    squares = 2.0 * batch * length * (length + 1)
    return products + squares * config.num_attention_heads * config.head_dim


@torch.no_grad()
def check_forward(
    config: ModelConfig, layer: DecoderLayer, given: layers.Pair, at: WholeSequences, length: int
) -> Checked:
    """Count the bits of the first sequence that change when it is alone, or its last token is decoded."""
    whole = tuple(t[:length] for t in layer(*given, at))
    x, residual = (t[:length] for t in given)
    alone = layer(x, residual, layers.whole(1, length))
    cache = layers.pages(config, 1, length).cache
    table = torch.arange(cache.pages, dtype=torch.int32, device=x.device)[None]

    def paged(first: int, end: int) -> tuple[Tensor, Tensor]:
        cu = torch.tensor([0, end - first], dtype=torch.int32, device=x.device)
        lens = torch.tensor([end], dtype=torch.int32, device=x.device)
        new = PagedTokens.of(cache, cu, lens, table, end - first)
        made: tuple[Tensor, Tensor] = layer(x[first:end], residual[first:end], new)
        return made

    parts = (paged(0, length - 1), paged(length - 1, length))
    through = tuple(torch.cat(both) for both in zip(*parts, strict=True))
    return Checked(differing=unequal(alone, whole) + unequal(through, whole))


# --- a layer, decoding ---


def decode(model: str, config: ModelConfig, batch: int, context: int) -> Case:
    """One new token of each sequence over pages. Compared: the same token alone."""
    layer, given = layers.layer_of(config), layers.states(batch, config.hidden_size)
    at = layers.pages(config, batch, context)

    def peer(**options: Any) -> Launch:
        torch_layer = TorchLayer.of(config, layer)
        attend = layers.attend_pages(at, torch_layer, **options)
        return captured(peers.without_grad(lambda: torch_layer(*given, attend)))

    every: dict[str, Callable[[], Launch]] = {PEER: peer}
    if batch <= SPLIT:
        every[f"{PEER}_splits"] = partial(peer, num_splits=8)
    seen = 4.0 * batch * context * config.num_key_value_heads * config.head_dim
    return Case(
        op="decoder_layer",
        passes="decode",
        shape={"model": model, "B": batch, "S": context},
        rlk=lambda: captured(peers.without_grad(lambda: layer(*given, at))),
        peers=every,
        moved=2.0 * layers.weights_of(config) + seen,
        bar=Bar(1.03, PEER),
        reference=PEER,
        check=lambda: check_decode(layer, given, at),
        describe=lambda: described(config),
        extra=False,
        notes={"page": layers.PAGE, "compared": "each of the first sequences alone"},
    )


@torch.no_grad()
def check_decode(layer: DecoderLayer, given: layers.Pair, at: PagedTokens) -> Checked:
    """Count the bits of tokens that change when each is alone."""
    whole = layer(*given, at)
    wrong = 0
    cu = torch.tensor([0, 1], dtype=torch.int32, device=given[0].device)
    for i in range(min(CHECKED, len(given[0]))):
        row = slice(i, i + 1)
        one = PagedTokens.of(at.cache, cu, at.context_lens[row], at.block_table[row], 1)
        wrong += unequal(layer(*(t[row] for t in given), one), tuple(t[row] for t in whole))
    return Checked(differing=wrong)


def host(model: str, config: ModelConfig) -> Case:
    """The host's time of a layer's eager call at batch 1, which does not wait for the device."""
    layer, given, at = (
        layers.layer_of(config),
        layers.states(1, config.hidden_size),
        layers.pages(config, 1, 2048),
    )

    def peer() -> Launch:
        torch_layer = TorchLayer.of(config, layer)
        attend = layers.attend_pages(at, torch_layer)
        return peers.without_grad(lambda: torch_layer(*given, attend))

    def timer(launch: Launch) -> Timing:
        found = measure_host(launch, calls=HOST_CALLS, repeats=HOST_REPEATS)
        return Timing(found.burst_ms, found.ms, found.spread)  # the median, not the best

    return Case(
        op="decoder_layer",
        passes="decode host",
        shape={"model": model, "B": 1, "S": 2048},
        rlk=lambda: peers.without_grad(lambda: layer(*given, at)),
        peers={PEER: peer},
        moved=0.0,
        bar=Bar(0.25),
        timer=timer,
        describe=lambda: described(config),
        extra=False,
        notes={"what": "host time of one eager call, median"},
    )


# --- a layer, forward and backward ---


def training(model: str, config: ModelConfig, batch: int, length: int) -> Case:
    """Forward and backward of a layer. Compared: gradients of the first sequence alone, and of a repeat."""
    tokens = batch * length
    layer, at = layers.layer_of(config), layers.whole(batch, length)
    given = tuple(t.requires_grad_() for t in layers.states(tokens, config.hidden_size))
    seeds = tuple(torch.randn_like(t) for t in given)
    inputs = (*given, *layer.parameters())

    def peer() -> Launch:
        torch_layer = TorchLayer.of(config, layer, grad=True)
        attend = layers.attend_whole(at, torch_layer)
        return peers.with_grad(lambda: torch_layer(*given, attend), (*given, *torch_layer.weights), seeds)

    def check() -> Checked:
        whole, again = (torch.autograd.grad(layer(*given, at), inputs, seeds) for _ in range(2))
        few = tuple(t[:length].detach().requires_grad_() for t in given)
        alone = torch.autograd.grad(
            layer(*few, layers.whole(1, length)), few, tuple(t[:length] for t in seeds)
        )
        return Checked(differing=unequal(again, whole) + unequal(alone, tuple(t[:length] for t in whole[:2])))

    return Case(
        op="decoder_layer",
        passes="fwd+bwd",
        shape={"model": model, "B": batch, "S": length},
        rlk=lambda: peers.with_grad(lambda: layer(*given, at), inputs, seeds),
        peers={PEER: peer},
        moved=6.0 * layers.weights_of(config),
        flops=3.0 * flops(config, batch, length),
        bar=Bar(1.06, PEER),
        reference=PEER,
        check=check,
        describe=lambda: described(config),
        notes={"compared": "a repeat, and the first sequence alone"},
    )


# --- a whole model ---


def step(model: str, config: ModelConfig, batch: int, length: int) -> Case:
    """Forward and backward of GRPO's loss, layers checkpointed. Compared: the first sequence alone."""
    b = Batch.of(batch, length, config.vocab_size)
    weights = config.num_hidden_layers * layers.weights_of(config) + config.hidden_size * config.vocab_size

    def check() -> Checked:
        made = whole_model.model_of(config)
        with torch.no_grad():
            return Checked(differing=unequal((made(b.ids[:1]),), (made(b.ids)[:1],)))

    every = {
        WHOLE_PEER: {"liger": True, "fa4": True, "loss": whole_model.chunked_loss},
        f"{WHOLE_PEER}_grpo": {"liger": True, "fa4": True, "loss": whole_model.liger_loss},
        "transformers_sdpa": {"liger": False, "fa4": False, "loss": whole_model.chunked_loss},
    }
    attention = config.num_hidden_layers * (
        flops(config, batch, length) - 2.0 * batch * length * layers.weights_of(config)
    )
    return Case(
        op="causal_lm",
        passes="fwd+bwd",
        shape={"model": model, "B": batch, "S": length},
        rlk=lambda: whole_model.rlk_step(config, b),
        peers={name: partial(whole_model.transformers_step, config, b, **how) for name, how in every.items()},
        moved=8.0 * weights,
        flops=4.0 * (2.0 * batch * length * weights + attention),
        bar=Bar(1.05, WHOLE_PEER),
        room=Room(1.0, WHOLE_PEER),
        reference=WHOLE_PEER,
        check=check,
        describe=lambda: described(config),
        timer=measure_long,
        notes={"what": "GRPO's loss, layers checkpointed, no optimizer"},
    )


def decode_model(model: str, config: ModelConfig, batch: int, context: int) -> Case:
    """A step of a whole model over pages up to its logits, as a CUDA graph."""

    @cache
    def made() -> tuple[CausalLM, Decoding]:
        found = whole_model.model_of(config)
        return found, Decoding.of(found, batch, context)

    weights = config.num_hidden_layers * layers.weights_of(config) + config.hidden_size * config.vocab_size
    seen = 4.0 * batch * context * config.num_key_value_heads * config.head_dim * config.num_hidden_layers
    return Case(
        op="causal_lm",
        passes="decode",
        shape={"model": model, "B": batch, "S": context},
        rlk=lambda: captured(whole_model.rlk_decode(*made())),
        peers={PEER: lambda: captured(whole_model.torch_decode(*made()))},
        moved=2.0 * weights + seen,
        bar=Bar(1.03, PEER),
        reference=PEER,
        describe=lambda: described(config),
        extra=False,
        notes={"page": layers.PAGE, "what": "hidden states and logits of one token of each sequence"},
    )


# --- the family ---


def cases() -> Iterator[Case]:
    """Yield the rows of the family; the tensors of one row live at a time."""
    found = layers.models()
    main_model = "Qwen3-8B"
    for model, config in found.items():
        for batch, length in TRAINING:
            torch.cuda.empty_cache()
            yield forward(model, config, batch, length)
    for batch, context in DECODES:
        torch.cuda.empty_cache()
        yield decode(main_model, found[main_model], batch, context)
    yield host(main_model, found[main_model])
    for model, shapes in TRAINED.items():
        for batch, length in shapes:
            torch.cuda.empty_cache()
            yield training(model, found[model], batch, length)
    torch.cuda.empty_cache()
    whole = layers.config_of("qwen3", 4096, 32, 8, 12288, layers=36)
    yield step(main_model, whole, 8, 1024)
    for batch in (1, 64):
        torch.cuda.empty_cache()
        yield decode_model(main_model, whole, batch, 2048)


if __name__ == "__main__":
    main("model", cases, matrix=True)
