"""Whole models whose weights ranks share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from rlk.errors import Code, LaunchError
from rlk.integrations.patching import Patched
from rlk.nn.model import CausalLM
from rlk.nn.modules import Attention, DecoderLayer, Embedding, GatedMLP, Linear, RMSNorm, lay_out
from rlk.nn.ranks import Ranks, mark_shares
from rlk.parallel.agree import agree_at_start
from rlk.parallel.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    SequenceParallelRMSNorm,
    VocabParallelEmbedding,
    WholeEmbedding,
    of_all_tokens,
)
from rlk.parallel.patched import parallelize_patched
from rlk.parallel.plan import (
    OP,
    Style,
    Styles,
    already_shared,
    check_shares,
    group_of,
    put,
    ranks_in,
    shares_of,
)
from rlk.parallel.state import mark_parts
from rlk.parallel.styles import Plan, plan_facts, resolved
from rlk.runtime.binding.checks import wrong_value

Model = TypeVar("Model", CausalLM, Patched)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""The attributes of a module that hold its hooks."""


def parallelize(
    model: Model,
    mesh: DeviceMesh | dist.ProcessGroup,
    *,
    tp: str | int | None = None,
    sp: bool = False,
    plan: Plan | None = None,
) -> Model:
    """Keep this rank's shares of a model's weights, and let ranks compute together; return the model.

    model: an `rlk.nn.CausalLM`, or what `rlk.patch` returned of a causal language model of transformers.
    Every rank has the same whole model, and calls it with the same arguments: ids of all tokens. mesh: a
    DeviceMesh, of which `tp` is a dim's name or number, or a process group. sp: between the products, a rank
    has its own tokens alone. Gradients are of a rank's shares, those of whole parameters (norms, biases of
    row-parallel layers) the same on all ranks. Forward and gradients have the bits of one rank; one rank
    leaves the model as it is. `undo()` of a patch brings no whole weights back. Layers of a `CausalLM` are
    replaced, and parameters of both: make optimizers and register hooks afterwards.

    plan: how ranks share the layers, by patterns of their names: styles of torch.distributed.tensor.parallel,
    or their names in transformers, as in a config's `base_model_tp_plan`; layers that it leaves out are whole
    on every rank. None for `PLAN`, in which all are shared.

    Raises LaunchError on every rank, before anything is sent, where the number of ranks does not divide
    leaves or heads, where the plan has no form that keeps the bits, for layers that are wrapped (adapters) or
    have hooks and would be replaced, and where ranks differ in what
    `rlk.parallel.agree` compares of a model, in sp or in the plan; a rank that does not come is named by the
    others after the timeout of the default group's store: that of init_process_group, unless it was given a
    store.
    """
    if not isinstance(model, (Patched, CausalLM)):
        wanted, got = "rlk.nn.CausalLM, or what rlk.patch returns", type(model).__name__
        raise LaunchError(Code.ARG_TYPE, op=OP, name="model", wanted=wanted, got=got)
    group = group_of(mesh, tp)
    whole = model.model if isinstance(model, Patched) else model
    styles, refusal = _planned(whole, plan, group, sp)
    taken = "taken" if refusal is None else str(refusal).partition("\n")[0]
    agree_at_start(OP, model, group, sp=sp, plan=taken, **plan_facts(whole, styles))
    if refusal is not None:
        raise refusal
    ranks = ranks_in(group, sp)
    if isinstance(model, Patched):
        parallelize_patched(model, ranks, styles)
        return model
    if model.model.ranks is not None:
        raise already_shared(model.model.ranks)
    check_shares(model.config, ranks, styles)
    return model if ranks.size == 1 else shared(model, ranks, styles)


def _planned(
    model: torch.nn.Module, plan: Plan | None, group: dist.ProcessGroup, sp: bool
) -> tuple[Styles, LaunchError | None]:
    """Return how ranks share a model's modules, and what is wrong with that: the other ranks are told."""
    try:
        ranks = ranks_in(group, sp)
        styles = resolved(model, plan, ranks.sequence)
        if ranks.size > 1 and isinstance(model, CausalLM) and model.model.ranks is None:
            _check_replaced(model, ranks, styles)
        return styles, None
    except LaunchError as refusal:
        return {}, refusal


def _check_replaced(model: CausalLM, ranks: Ranks, styles: Styles) -> None:
    """Raise LaunchError where a layer of ranks would replace one of another kind, or one with hooks."""
    for name, module in model.named_modules():
        style = styles.get(name)
        if style is not None and not isinstance(module, Linear | Embedding):
            wanted = "a layer of rlk.nn: merge adapters into its weight first"
            raise wrong_value(OP, name, type(module).__name__, wanted)
        if _kind(name, module, ranks, style) is not None and any(getattr(module, at) for at in HOOKS):
            wanted = "a layer without hooks, since another one takes its place: register them afterwards"
            raise wrong_value(OP, name, "a layer with hooks", wanted)


def shared(model: CausalLM, ranks: Ranks, styles: Styles) -> CausalLM:
    """Keep a rank's shares of a model that was checked, which may be on the meta device; return the model."""
    shares = shares_of(model, ranks, styles)
    for name, module in list(model.named_modules()):
        made = _made(name, module, ranks, styles.get(name))
        if made is not None:
            owner, _, last = name.rpartition(".")
            setattr(model.get_submodule(owner), last, made)
    put(model, shares)
    for name, module in model.named_modules():
        if isinstance(module, Attention) and f"{name}.o_proj" in styles:
            at = module.options
            module.options = replace(
                at, heads=ranks.share(at.heads), key_heads=ranks.share(at.key_heads), ranks=ranks
            )
        elif isinstance(module, DecoderLayer):
            module.ranks = ranks
        elif ranks.sequence and isinstance(module, Attention | GatedMLP):
            if not any(each.startswith(f"{name}.") for each in styles):
                of_all_tokens(module, ranks)
    model.model.ranks = ranks
    model.lm_head.shares = {"weight": 0} if "lm_head" in styles else {}
    mark_parts(model.lm_head, model.lm_head.shares, ranks)  # its class is that of whole heads
    lay_out(model)
    mark_shares(model, ranks)
    return model


def _made(name: str, module: torch.nn.Module, ranks: Ranks, style: Style | None) -> torch.nn.Module | None:
    """Return the layer that takes a module's place, without memory; None to keep the module."""
    on: dict[str, Any] = {"ranks": ranks, "device": "meta"}
    kind: Any = _kind(name, module, ranks, style)
    made: torch.nn.Module
    match module:
        case _ if kind is None:
            return None
        case Linear():
            features = module.in_features, module.out_features
            made = kind(*features, module.bias is not None, leaves=module.leaves, **on)
        case Embedding():
            made = kind(module.num_embeddings, module.embedding_dim, scale=module.scale, **on)
        case RMSNorm():
            made = kind(len(module.weight), eps=module.eps, profile=module.profile, **on)
    return made.train(module.training)


def _kind(name: str, module: torch.nn.Module, ranks: Ranks, style: Style | None) -> type | None:
    """Return the class of the layer that takes a module's place; None to keep the module."""
    match module:
        case Linear():  # the head reads its shard by `ops.linear_logp`
            return {"column": ColumnParallelLinear, "row": RowParallelLinear}.get(style or "")
        case Embedding():
            return WholeEmbedding if style is None else VocabParallelEmbedding
        case RMSNorm() if ranks.sequence and ".self_attn." not in name:
            return SequenceParallelRMSNorm
    return None
