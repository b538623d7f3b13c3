"""The public operators, `rlk.ops.logp(...)`, with their ids, tiers and float64 references."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rlk.env import Env
from rlk.errors import Code, LaunchError
from rlk.lang.op import Op
from rlk.ops import (
    advantages,
    attention,
    completions,
    composite,
    distill,
    distill_library,
    gated,
    grouped,
    heads,
    linear,
    linear_distill,
    moe,
    packing,
    policy,
    preference,
    prefix_library,
    products,
    sampling,
    sharded_library,
    signatures,
    value,
)
from rlk.ops.advantages import Overlong
from rlk.ops.collective import (
    OVER_RANKS,
    ordered_all_reduce,
    ordered_gather_sum,
    ordered_reduce_scatter,
)
from rlk.ops.float64 import attention as exact_attention
from rlk.ops.float64 import moe as exact_moe
from rlk.ops.float64 import operators, rewards
from rlk.ops.float64 import sampling as exact_sampling
from rlk.ops.layout import Layout
from rlk.ops.losses import Loss
from rlk.ops.moe import Permuted, Route, RouterLosses
from rlk.ops.presets import LOSSES
from rlk.ops.results import Csr, RatioKL, RMSNorm, Support
from rlk.ops.rotary import rope_table
from rlk.ops.routes import Flips, Routes
from rlk.ops.sampling import Penalties
from rlk.ops.spans import Spans, loss_spans, modality_spans
from rlk.runtime.call.dispatch import dispatch
from rlk.runtime.call.library import register
from rlk.runtime.operator import Operator, publish, published
from rlk.runtime.registry import namespace, namespaces
from rlk.specs import advantage as _advantage
from rlk.specs import attention as _attention
from rlk.specs import completions as _completions
from rlk.specs import distill as _distill
from rlk.specs import gated as _gated
from rlk.specs import grouped as _grouped
from rlk.specs import heads as _heads
from rlk.specs import linear_logp as _linear
from rlk.specs import logp as _logp
from rlk.specs import loss as _loss
from rlk.specs import matmul as _matmul
from rlk.specs import model as _model
from rlk.specs import moe as _moe
from rlk.specs import norm as _norm
from rlk.specs import optim as _optim
from rlk.specs import packing as _packing
from rlk.specs import policy as _policy
from rlk.specs import preference as _preference
from rlk.specs import sampling as _sampling
from rlk.specs import value as _value


def _published(
    fn: Callable[..., Any], exact: Callable[..., Any], *specs: Op, forms: tuple[Op, ...] = ()
) -> Callable[..., Any]:
    """Publish a function that maps its arguments to specs."""
    for spec in (*specs, *forms):
        register(spec)
    OPERATORS[fn.__name__] = published(fn, exact, *specs, forms=forms)
    return fn


def _generated(spec: Op, exact: Callable[..., Any], result: type | None = None) -> Callable[..., Any]:
    """Publish the function that is made from a spec's annotations."""
    register(spec)
    spec.record = replace(spec.record, reference=exact)
    OPERATORS[spec.name] = publish(spec, result)
    return OPERATORS[spec.name].fn


def _in_place(fn: Callable[..., Any], exact: Callable[..., Any], spec: Op) -> Callable[..., Any]:
    """Publish a function that writes its arguments, which torch's registry must know: `heads.register`."""
    OPERATORS[fn.__name__] = published(fn, exact, spec)
    return fn


OPERATORS: dict[str, Operator] = {}
logp = _published(signatures.logp, operators.logp, _logp.logp)
linear_logp = _published(linear.linear_logp, operators.linear_logp, _linear.linear_logp)
jsd_loss = _published(distill.jsd_loss, operators.jsd_loss, _distill.jsd_loss)
matmul = _published(
    linear.matmul,
    operators.matmul,
    _matmul.matmul,
    forms=(_matmul.matmul_leaf2, _matmul.matmul_leaf4, _matmul.matmul_leaf8),
)
grouped_matmul = _published(
    grouped.grouped_matmul,
    operators.grouped_matmul,
    _grouped.grouped_matmul,
    forms=tuple(_grouped.BY_LEAVES[leaves] for leaves in (2, 4, 8)),
)
ratio_kl = _generated(_loss.ratio_kl, operators.ratio_kl, RatioKL)
policy_loss = _published(policy.policy_loss, operators.policy_loss, _policy.policy_loss)
linear_policy_loss = _published(
    composite.linear_policy_loss, operators.linear_policy_loss, _linear.linear_logp, _policy.policy_loss
)
linear_jsd_loss = _published(
    linear_distill.linear_jsd_loss,
    operators.linear_jsd_loss,
    _matmul.matmul,  # of the student
    _matmul.matmul,  # of the teacher
    _distill.jsd_loss,
)
rms_norm = _generated(_norm.rms_norm, operators.rms_norm, RMSNorm)
swiglu = _generated(_model.swiglu, operators.swiglu)
geglu = _generated(_model.geglu, operators.geglu)
clamped_swiglu = _published(gated.clamped_swiglu, operators.clamped_swiglu, _gated.clamped_swiglu)
rope = _published(signatures.rope, operators.rope, _model.rope, forms=(_model.rope_partial,))
qk_norm = _published(heads.qk_norm, operators.qk_norm, _heads.qk_norm)
write_cache = _in_place(heads.write_cache, operators.write_cache, _heads.write_cache)
cache_qkv = _in_place(heads.cache_qkv, operators.cache_qkv, _heads.cache_qkv)
embedding = _generated(_model.embedding, operators.embedding)
group_advantage = _published(advantages.group_advantage, rewards.group_advantage, _advantage.group_advantage)
value_loss = _published(value.value_loss, rewards.value_loss, _value.value_loss)
nll_loss = _published(value.nll_loss, rewards.nll_loss, _value.nll_loss)
entropy_bonus = _published(value.entropy_bonus, rewards.entropy_bonus, _value.entropy_bonus)
preference_loss = _published(preference.preference_loss, rewards.preference_loss, _preference.preference_loss)
kto_loss = _published(preference.kto_loss, rewards.kto_loss, _preference.kto_loss)
sequence_logp = _published(completions.sequence_logp, rewards.sequence_logp, _completions.sequence_logp)
pack = _published(packing.pack, rewards.pack, _packing.take_rows)
unpack = _published(packing.unpack, rewards.unpack, _packing.take_rows)
scatter_rewards = _published(advantages.scatter_rewards, rewards.scatter_rewards, _advantage.scatter_rewards)
gae = _published(advantages.gae, rewards.gae, _advantage.gae)
optimal_token_baseline = _published(
    advantages.optimal_token_baseline,
    rewards.optimal_token_baseline,
    _advantage.token_paths,
    _advantage.token_baseline,
)
route = _published(moe.route, exact_moe.route, _moe.choose_experts, _moe.expert_weights)
router_losses = _published(moe.router_losses, exact_moe.router_losses, _moe.router_losses)
permute = _published(
    moe.permute, exact_moe.permute, _moe.places_by_expert, _moe.expert_offsets, _moe.rows_by_expert
)
combine = _published(moe.combine, exact_moe.combine, _moe.combine_rows)
penalize = _published(sampling.penalize, exact_sampling.penalize, _sampling.penalize)
sample = _published(sampling.sample, exact_sampling.sample, _sampling.sample, _sampling.penalize, _logp.logp)

for _spec in (
    _logp.softcapped,
    _policy.policy_covariance,
    _policy.policy_covariance_of_sequences,
    _packing.take_whole,
    _packing.reported,
    _grouped.grouped_weight_grad,
    _heads.qk_norm_partials,
    _heads.sum_of_heads,
    _optim.adamw,
    _optim.square_sums,
):  # parts of operators
    register(_spec)
sharded_library.register()
prefix_library.register()
distill_library.register()
products.buffered.register()
grouped.buffered.register()
heads.register()
varlen_attention = _published(
    attention.varlen_attention, exact_attention.varlen_attention, _attention.varlen_attention
)
paged_attention = _published(
    attention.paged_attention, exact_attention.paged_attention, _attention.paged_attention
)
prefix_attention = _published(
    attention.prefix_attention, exact_attention.prefix_attention, _attention.prefix_attention
)

if Env.current().interpret:
    from rlk.testing.simulators.interpreter import interpret

    dispatch.interpret_with(interpret)


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    found = namespace(name)
    if found is not None:
        globals()[name] = found
        return found
    choices = ", ".join((*OPERATORS, *OVER_RANKS, *namespaces()))
    raise LaunchError(Code.UNKNOWN_NAME, what="operator", name=name, choices=choices)


__all__ = [
    "LOSSES",
    "OPERATORS",
    "Csr",
    "Flips",
    "Layout",
    "Loss",
    "Operator",
    "Overlong",
    "Spans",
    "Penalties",
    "Permuted",
    "Route",
    "RouterLosses",
    "Routes",
    "Support",
    "cache_qkv",
    "clamped_swiglu",
    "combine",
    "embedding",
    "entropy_bonus",
    "gae",
    "geglu",
    "group_advantage",
    "grouped_matmul",
    "jsd_loss",
    "kto_loss",
    "linear_jsd_loss",
    "linear_logp",
    "linear_policy_loss",
    "logp",
    "loss_spans",
    "matmul",
    "modality_spans",
    "nll_loss",
    "optimal_token_baseline",
    "ordered_all_reduce",
    "ordered_gather_sum",
    "ordered_reduce_scatter",
    "pack",
    "paged_attention",
    "penalize",
    "permute",
    "policy_loss",
    "preference_loss",
    "prefix_attention",
    "qk_norm",
    "ratio_kl",
    "rms_norm",
    "rope",
    "rope_table",
    "route",
    "router_losses",
    "scatter_rewards",
    "sample",
    "sequence_logp",
    "swiglu",
    "unpack",
    "value_loss",
    "varlen_attention",
    "write_cache",
]
