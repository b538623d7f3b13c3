"""The public operators, `rlk.ops.logp(...)`, with their ids, tiers and float64 references."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from rlk.env import Env
from rlk.lang.op import Op
from rlk.ops import reference, signatures
from rlk.ops.layout import Layout
from rlk.ops.signatures import LOSSES, Loss
from rlk.runtime.ahead import explain
from rlk.runtime.calls import model
from rlk.runtime.dispatch import Decision, decide, dispatch
from rlk.runtime.invocation import Invocation
from rlk.runtime.library import register
from rlk.specs import linear_logp as _linear
from rlk.specs import logp as _logp
from rlk.specs import loss as _loss
from rlk.specs import matmul as _matmul
from rlk.specs import model as _model
from rlk.specs import norm as _norm


class Operator:
    """A public operator: call it; ask it for its numerics id, tier, decision and float64 reference."""

    def __init__(self, fn: Callable[..., Any], spec: Op, exact: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn)
        self.fn, self.spec, self.reference = fn, spec, exact

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
        """Return what a call with these arguments runs, or, given a device alone, what calls on it run."""
        if len(args) == 1 and not options and isinstance(args[0], str | torch.device):
            return self._decision(args[0], None)
        return explain(self.fn, *args, **options)

    def _decision(self, device: torch.device | str, math: str | None) -> Decision:
        return decide(Invocation(self.spec, self.spec.reference(), model(math)), torch.device(device))

    def __repr__(self) -> str:
        return f"<rlk.ops.{self.spec.name}>"


def _published(fn: Callable[..., Any], spec: Op, exact: Callable[..., Any]) -> Callable[..., Any]:
    """Return the public function with what can be asked of it as attributes: a call costs no wrapper."""
    operator = Operator(fn, spec, exact)
    OPERATORS[spec.name] = operator
    register(spec)
    for name in ("numerics_id", "tier", "explain", "reference", "spec"):
        setattr(fn, name, getattr(operator, name))
    return fn


OPERATORS: dict[str, Operator] = {}
logp = _published(signatures.logp, _logp.logp, reference.logp)
linear_logp = _published(signatures.linear_logp, _linear.linear_logp, reference.linear_logp)
matmul = _published(signatures.matmul, _matmul.matmul, reference.matmul)
ratio_kl = _published(signatures.ratio_kl, _loss.ratio_kl, reference.ratio_kl)
policy_loss = _published(signatures.policy_loss, _loss.policy_loss, reference.policy_loss)
rms_norm = _published(signatures.rms_norm, _norm.rms_norm, reference.rms_norm)
swiglu = _published(signatures.swiglu, _model.swiglu, reference.swiglu)
rope = _published(signatures.rope, _model.rope, reference.rope)
embedding = _published(signatures.embedding, _model.embedding, reference.embedding)

if Env.current().interpret:
    from rlk.testing.interpreter import interpret

    dispatch.interpret_with(interpret)


def __getattr__(name: str) -> Any:
    from rlk.errors import Code, LaunchError

    if name.startswith("_"):
        raise AttributeError(name)
    raise LaunchError(Code.UNKNOWN_NAME, what="operator", name=name, choices=", ".join(OPERATORS))


__all__ = [
    "LOSSES",
    "OPERATORS",
    "Layout",
    "Loss",
    "Operator",
    "embedding",
    "linear_logp",
    "logp",
    "matmul",
    "policy_loss",
    "ratio_kl",
    "rms_norm",
    "rope",
    "swiglu",
]
