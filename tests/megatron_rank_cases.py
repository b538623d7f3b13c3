"""Megatron-core's GPT model by rlk, with one rank and two of tensor parallelism, on the oracle."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from megatron_cases import LENGTH, factors, has_next, labels_of, offsets, policy_of, streams, texts
from nn_cases import integers
from rank_cases import Found, member, refused

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of every package that Megatron does without
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.inference.contexts import StaticInferenceContext
    from megatron.core.models import gpt
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.enums import AttnMaskType

from rlk import sync
from rlk.integrations import megatron
from rlk.nn import CausalLM
from rlk.sync.parts import by_canonical_name, megatron_parts

PAGE = Path(__file__).parent.parent / "docs/parallel.md"


def example() -> Callable[[dict[str, Any]], None]:
    """Return the code of the page about ranks that makes a model."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (block,) = [each for each in blocks if "megatron" in each]
    return lambda scope: exec(compile(block, PAGE.name, "exec"), scope)


def main(backend: str, world: int, rank: int, folder: Path) -> None:
    """Run everything as one rank, and write what it found."""
    with member(backend, world, rank, folder):
        parallel_state.initialize_model_parallel(1)
        found: Found = alone(rank)
        parallel_state.destroy_model_parallel()
        parallel_state.initialize_model_parallel(world)
        torch.save(found | shared(world), folder / f"{rank}.pt")


def alone(rank: int) -> Found:
    """Return what one rank of tensor parallelism finds, of another model on each; and controls."""
    name = ("qwen3", "qwen2")[rank]
    policy = policy_of(name)
    model, scope = made(policy, name, 1)
    found: Found = {"alone": trained(model, name) | {"total": sync.digest(model).total}}
    config = scope["config"]
    if rank == 0:
        spec = gpt_layer_specs.get_gpt_layer_local_spec(qk_layernorm=True, normalization="RMSNorm")
    else:
        with patch.object(gpt_layer_specs, "LocalSpecProvider", megatron.RlkSpecProvider):
            spec = gpt_layer_specs.get_gpt_layer_local_spec(normalization="RMSNorm")
    with without_cuda():
        options = {"position_embedding_type": "rope", "rotary_base": policy.config.ropes[0].theta}
        options["share_embeddings_and_output_weights"] = policy.config.tie_word_embeddings
        theirs = gpt.GPTModel(config, spec, 96, 512, **options).bfloat16()  # as Float16Module does
        sync.transfer(policy, theirs)
        found["control"] = trained(theirs, name)
        if rank == 1:
            found["cached"] = cached(theirs.eval(), texts(name))
    found["refused"] = refusals(config, model)
    found["norm"] = normed(config)
    return found | {"config": vars_of(model.nn_config) == vars_of(policy.config)}


@torch.no_grad()
def cached(theirs: Any, ids: torch.Tensor) -> Found:
    """Return logits of a prompt, with a cache of its keys and without, and the error of the next token."""
    context = StaticInferenceContext(len(ids), ids.shape[1])
    context.materialize_only_last_token_logits = False
    places = torch.arange(ids.shape[1]).expand(len(ids), -1)
    kept = {"inference_context": context, "runtime_gather_output": True}
    found: Found = {"prompt": theirs(ids[:, :-1], places[:, :-1], None, **kept)}
    found["whole"] = theirs(ids[:, :-1], places[:, :-1], None)
    context.sequence_len_offset = ids.shape[1] - 1
    found["next"] = refused(lambda: theirs(ids[:, -1:], places[:, -1:], None, **kept))
    return found


def normed(config: TransformerConfig) -> Found:
    """Return norms of [s, b, hidden], and the gradients of their f32 weights."""
    found: Found = {}
    wide, (x, d_y) = deepcopy(config), streams()
    wide.params_dtype = torch.float32
    for name, of in (("forward", lambda norm: norm(x)), ("of_total", lambda norm: norm.of_total(x)[0])):
        norm = megatron.RMSNorm(wide, x.shape[-1])
        y = of(norm)
        y.backward(d_y)
        found[name] = {"y": y.detach(), "grad": norm.weight.grad}
    return found


def vars_of(config: Any) -> dict[str, Any]:
    return {f.name: getattr(config, f.name) for f in fields(config) if f.compare}


def shared(world: int) -> Found:
    """Return what two ranks find of models that they share, and what they refuse."""
    found: Found = {}
    for name in ("qwen3", "llama"):
        policy = policy_of(name)
        model, scope = made(policy, name, world)
        found[name] = trained(model, name) | {"total": sync.digest(model).total}
    back = policy_of(name)
    for p in back.parameters():
        p.detach().zero_()
    found["back"] = sync.transfer(model, back).total
    before = sync.digest(model)
    model.decoder.layers[0].self_attention.linear_qkv.weight.data[-1] += 1  # of the last group's value
    found["changed"] = [str(each) for each in sync.compare(before, sync.digest(model))]
    config = scope["config"]
    config.rlk_leaves = 1
    spec, options = megatron.rlk_layer_spec(config), scope["options"]
    found["refused by two"] = {
        "shares": refused(lambda: megatron.GPTModel(config, spec, 100, 512, **options)),
        "logits": refused(lambda: model(texts("qwen3"), None, None)),
    }
    return found


def made(policy: CausalLM, name: str, tp: int) -> tuple[Any, dict[str, Any]]:
    """Return the model of the page's example, and its names."""
    scope: dict[str, Any] = {
        "policy": policy,
        "tp": tp,
        "device": "cpu",
        "ids": texts(name),
        "mask": has_next(name),
    }
    scope |= {"labels": labels_of(name), "packed": packed_of(name)}
    example()(scope)
    scope["model"].zero_grad()
    return scope["model"], scope


def packed_of(name: str) -> PackedSeqParams | None:
    if name != "llama":
        return None
    return PackedSeqParams(qkv_format="thd", cu_seqlens_q=offsets(), cu_seqlens_kv=offsets())


def trained(model: Any, name: str) -> Found:
    """Return losses, logits, and the gradients of weights by their Hugging Face names."""
    ids, given = texts(name), {"packed_seq_params": packed_of(name)}
    ours = isinstance(model, megatron.GPTModel)
    core = model.decoder.layers[0].self_attention.core_attention
    causal = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool).triu(1)
    masked = None if isinstance(core, megatron.CoreAttention) else causal
    labels = labels_of(name) if ours else labels_of(name).clamp(min=0)
    losses = model(ids, None, masked, labels=labels, loss_mask=has_next(name).float(), **given)
    losses = losses * has_next(name)
    (losses * factors(name)).sum().backward()
    found: Found = {"losses": losses.detach()}
    if ours:
        with torch.no_grad():
            found["logits"] = model(ids, None, None, **given)
            found["gathered"] = model(ids, None, None, runtime_gather_output=True, **given)
    named = by_canonical_name(model.named_parameters())
    grads = {each: p.grad for each, p in named.items()}
    parts = megatron_parts(model, named)
    return found | {"grads": {each: part.of(each, grads).clone() for each, part in parts.items()}}


@contextmanager
def without_cuda() -> Iterator[None]:
    """Let Megatron's own layers compute on a CPU: they ask for a device and its random state."""
    tracker = type(tensor_parallel.get_cuda_rng_tracker())
    with ExitStack() as stack:
        stack.enter_context(patch.object(torch.cuda, "current_device", lambda: torch.device("cpu")))
        stack.enter_context(patch.object(tracker, "fork", lambda *_: nullcontext()))
        yield


BAD = {
    "hidden_dropout": 0.1,
    "activation_func": F.gelu,
    "params_dtype": torch.float32,
    "normalization": "LayerNorm",
    "num_moe_experts": 8,
    "sequence_parallel": True,
    "context_parallel_size": 2,
    "recompute_granularity": "full",
    "rlk_leaves": 3,
}


def refusals(config: TransformerConfig, model: Any) -> Found:
    bad = deepcopy(config)
    for name, value in BAD.items():
        setattr(bad, name, value)
    spec, ids, offset = megatron.rlk_layer_spec(config), texts("qwen3"), integers(0, 70, 140)
    theirs = gpt_layer_specs.get_gpt_layer_local_spec(normalization="RMSNorm")
    padded = PackedSeqParams(qkv_format="thd", cu_seqlens_q=offset, cu_seqlens_q_padded=offset + 1)
    rope = {"position_embedding_type": "rope"}

    def forward(**given: Any) -> tuple[str, str]:
        return refused(
            lambda: model(**{"input_ids": ids, "position_ids": None, "attention_mask": None} | given)
        )

    core = model.decoder.layers[0].self_attention.core_attention
    wide = torch.zeros(4, 3, 2, 16, dtype=torch.bfloat16)
    packed = PackedSeqParams(qkv_format="thd", cu_seqlens_q=integers(0, 4), cu_seqlens_kv=integers(0, 4))

    def attend(key: torch.Tensor, value: torch.Tensor, **given: Any) -> tuple[str, str]:
        return refused(lambda: core(wide[:, :2], key, value, **given))

    with without_cuda():
        theirs_with_ours = refused(lambda: gpt.GPTModel(config, spec, 96, 512, **rope))
    return {
        "options": refused(lambda: megatron.rlk_layer_spec(bad)),
        "arguments": refused(lambda: megatron.GPTModel(config, spec, 96, 512, rope_scaling=True)),
        "spec": refused(lambda: megatron.GPTModel(config, theirs, 96, 512, **rope)),
        "their model": theirs_with_ours,
        "mask": forward(attention_mask=torch.ones(1, 1, 70, 70, dtype=torch.bool)),
        "padded": forward(input_ids=ids.view(1, -1), packed_seq_params=padded),
        "inference": forward(inference_context=object()),
        "ids": forward(input_ids=ids + 90),
        "long": forward(input_ids=ids.repeat(1, 8)),
        **{
            f"type {each.name}": attend(wide[:, :2], wide[:, :2], attn_mask_type=each)
            for each in AttnMaskType
            if each != AttnMaskType.causal
        },
        "keys": attend(wide[:3, :2], wide[:, :2]),
        "values": attend(wide[:, :2], wide),
        "packed keys": refused(lambda: core(wide[:, 0], wide[:3, 0], wide[:, 0], packed_seq_params=packed)),
        "packed values": refused(lambda: core(wide[:, 0], wide[:, 0], wide[:2, 0], packed_seq_params=packed)),
    }
