"""The public operators, `rlk.ops.logp(...)`, with their ids, tiers and float64 references."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

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
    linear,
    linear_distill,
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
from rlk.ops.collective import ordered_all_reduce
from rlk.ops.float64 import attention as exact_attention
from rlk.ops.float64 import operators, rewards
from rlk.ops.float64 import sampling as exact_sampling
from rlk.ops.layout import Layout
from rlk.ops.losses import Loss
from rlk.ops.presets import LOSSES
from rlk.ops.results import Csr, Support
from rlk.ops.sampling import Penalties
from rlk.ops.spans import Spans, loss_spans, modality_spans
from rlk.runtime.binding.invocation import Invocation
from rlk.runtime.binding.selection import model
from rlk.runtime.call.dispatch import Decision, decide, dispatch
from rlk.runtime.call.library import register
from rlk.runtime.prefetch import explain, joined
from rlk.specs import advantage as _advantage
from rlk.specs import attention as _attention
from rlk.specs import completions as _completions
from rlk.specs import distill as _distill
from rlk.specs import linear_logp as _linear
from rlk.specs import logp as _logp
from rlk.specs import loss as _loss
from rlk.specs import matmul as _matmul
from rlk.specs import model as _model
from rlk.specs import norm as _norm
from rlk.specs import packing as _packing
from rlk.specs import policy as _policy
from rlk.specs import preference as _preference
from rlk.specs import sampling as _sampling
from rlk.specs import value as _value


class Operator:
    """A public operator: call it; ask it for its numerics id, tier, decision and float64 reference.

    specs: the specs that a call runs, in order; several for an operator composed of others.
    """

    def __init__(self, fn: Callable[..., Any], exact: Callable[..., Any], specs: tuple[Op, ...]) -> None:
        functools.update_wrapper(self, fn)
        self.fn, self.reference, self.specs = fn, exact, specs

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.fn(*args, **options)

    def numerics_id(self, device: torch.device | str, *, math: str | None = None) -> str:
        """Return the id of the operator's numerics on a device: equal ids give equal bits.

        math: as in a call, "portable" or "sm90"; by default the device decides.
        """
        return self._decision(device, math).numerics_id

    def tier(self, device: torch.device | str, *, math: str | None = None) -> dict[str, str]:
        """Return, for every output, "exact" (the oracle predicts its bits) or "pinned" (they only repeat)."""
        return {name: found.value for name, found in self._decision(device, math).tiers}

    def explain(self, *args: Any, **options: Any) -> Decision:
        """Return the code that a call with these arguments (or, given a device only, a call on it) runs."""
        if len(args) == 1 and not options and isinstance(args[0], str | torch.device):
            return self._decision(args[0], None)
        return explain(self.fn, *args, **options)

    def _decision(self, device: torch.device | str, math: str | None) -> Decision:
        try:
            on = torch.device(device)
        except (RuntimeError, TypeError):
            op, wanted = self.fn.__name__, 'a device of torch, such as "cuda" or "cpu"'
            raise LaunchError(Code.ARG_VALUE, op=op, name="device", value=device, wanted=wanted) from None
        defines = model(math, self.fn.__name__)
        invocations = [Invocation(spec, spec.reference(), defines) for spec in self.specs]
        return joined([decide(invocation, on) for invocation in invocations])

    def __repr__(self) -> str:
        return f"<rlk.ops.{self.fn.__name__}>"


def _published(fn: Callable[..., Any], exact: Callable[..., Any], *specs: Op) -> Callable[..., Any]:
    """Return the public function with the methods of `Operator` as attributes: a call costs no wrapper."""
    operator = Operator(fn, exact, specs)
    OPERATORS[fn.__name__] = operator
    for spec in specs:
        register(spec)
    for name in ("numerics_id", "tier", "explain", "reference", "specs"):
        setattr(fn, name, getattr(operator, name))
    return fn


OPERATORS: dict[str, Operator] = {}
logp = _published(signatures.logp, operators.logp, _logp.logp)
linear_logp = _published(linear.linear_logp, operators.linear_logp, _linear.linear_logp)
jsd_loss = _published(distill.jsd_loss, operators.jsd_loss, _distill.jsd_loss)
matmul = _published(linear.matmul, operators.matmul, _matmul.matmul)
ratio_kl = _published(signatures.ratio_kl, operators.ratio_kl, _loss.ratio_kl)
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
rms_norm = _published(signatures.rms_norm, operators.rms_norm, _norm.rms_norm)
swiglu = _published(signatures.swiglu, operators.swiglu, _model.swiglu)
rope = _published(signatures.rope, operators.rope, _model.rope)
embedding = _published(signatures.embedding, operators.embedding, _model.embedding)
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
penalize = _published(sampling.penalize, exact_sampling.penalize, _sampling.penalize)
sample = _published(sampling.sample, exact_sampling.sample, _sampling.sample, _sampling.penalize, _logp.logp)

for _spec in (
    _policy.policy_covariance,
    _policy.policy_covariance_of_sequences,
    _packing.take_whole,
    _packing.reported,
    _matmul.matmul_leaf2,
    _matmul.matmul_leaf4,
    _matmul.matmul_leaf8,
):  # parts and forms of operators
    register(_spec)
sharded_library.register()
prefix_library.register()
distill_library.register()
products.register()
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
    choices = ", ".join((*OPERATORS, ordered_all_reduce.__name__))
    raise LaunchError(Code.UNKNOWN_NAME, what="operator", name=name, choices=choices)


__all__ = [
    "LOSSES",
    "OPERATORS",
    "Csr",
    "Layout",
    "Loss",
    "Operator",
    "Overlong",
    "Spans",
    "Penalties",
    "Support",
    "embedding",
    "entropy_bonus",
    "gae",
    "group_advantage",
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
    "pack",
    "paged_attention",
    "penalize",
    "policy_loss",
    "preference_loss",
    "prefix_attention",
    "ratio_kl",
    "rms_norm",
    "rope",
    "scatter_rewards",
    "sample",
    "sequence_logp",
    "swiglu",
    "unpack",
    "value_loss",
    "varlen_attention",
]
