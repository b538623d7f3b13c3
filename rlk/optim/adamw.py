"""AdamW in f32 by one launch for all parameters of a kind, the same bits however parameters are sharded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import sqrt
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from rlk.errors import Code, LaunchError
from rlk.optim.shards import MAIN, Place, gradient, local, place
from rlk.runtime.binding.checks import integer, number
from rlk.runtime.binding.invocation import Scalars, Tensors
from rlk.runtime.binding.parts import part, plain
from rlk.runtime.call.collective import share_of
from rlk.runtime.call.lists import Repeated, call_each
from rlk.runtime.call.marked import mark_anew
from rlk.specs import optim as spec

NAME = "AdamW"
STATES = ("exp_avg", "exp_avg_sq", "master")
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
GROUP = {"lr": 0.0, "eps": 0.0, "weight_decay": 0.0}
"""Numbers of a group, and the least that they may be."""

Stepped = tuple[torch.Tensor, torch.Tensor, dict[str, Any], int]
"""A parameter, its gradient, its state ("step" counts the step that is made), and its number in params."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """The last step of a group.

    memory: of each parameter its addresses and all else that chooses launches, as `_addresses` gives them; no
    tensor, so that states can be freed. launches: each with its step minus the first parameter's; True: it
    draws bits.
    """

    memory: list[tuple[Any, ...]]
    launches: list[tuple[int, bool, Repeated]]

    def holds(self, stepped: Sequence[Stepped]) -> bool:
        """Return whether a step has the same memory."""
        first = stepped[0][2]["step"]
        return [_addresses(*each, first) for each in stepped] == self.memory


class AdamW(torch.optim.Optimizer):
    """AdamW (Loshchilov and Hutter 2019, algorithm 2) with f32 moments, in the order of `torch.optim.AdamW`.

    m += (g - m) (1 - beta1); v = v beta2 + (1 - beta2) g g; w = w (1 - lr weight_decay)
    - lr / (1 - beta1^t) * (m / (sqrt(v) / sqrt(1 - beta2^t) + eps)): each operation rounded once to f32, the
    factors of the host computed in f64 and rounded once.

    params: parameters or groups of them, as torch's optimizers take them; f32, bf16 or f16; a DTensor steps
    where it is, so that FSDP2's shards are updated without communication. Gradients: `p.main_grad` where a
    parameter has one (`rlk.parallel.accumulate_in_order`), else `p.grad`; of any of these dtypes.

    f32 parameters are updated as they are. 16-bit ones have an f32 master weight in the state, of which they
    are the nearest; or, given `seed`, they must be bf16, have no master, and are rounded stochastically. The
    random bits are Philox of (seed, step, number of the parameter in params, index of the element in the
    whole parameter), so that they do not depend on shards: 0 <= seed < 2^63.

    lr, betas, eps, weight_decay: as in torch, with its defaults. State: "step", "exp_avg", "exp_avg_sq" and
    "master", f32, placed as the parameter is. Raises LaunchError.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        seed: int | None = None,
    ) -> None:
        checked = None if seed is None else integer(NAME, "seed", seed, 0)
        numbers = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        self._kept: dict[int, _Kept] = {}  # by the index of the group
        super().__init__(params, {**numbers, "seed": checked})

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._kept = {}  # nothing of it is saved, or holds for another state
        super().__setstate__(state)

    @property
    def seed(self) -> int | None:
        """Return the seed of stochastic rounding; every group has it too, so that a state dict does."""
        found: int | None = self.defaults["seed"]
        return found

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, checked."""
        super().add_param_group(param_group)
        mark_anew()
        group = self.param_groups[-1]
        self._check_seed(group)
        for p in group["params"]:
            wanted = FLOATS if self.seed is None else FLOATS[:2]
            if p.dtype not in wanted:
                names = " or ".join(map(str, wanted))
                raise LaunchError(Code.ARG_DTYPE, op=NAME, name="params", got=p.dtype, wanted=names)
            if not local(p).is_contiguous():
                raise LaunchError(
                    Code.ARG_VALUE, op=NAME, name="params", value=tuple(p.shape), wanted="contiguous ones"
                )
        _numbers(group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update every parameter that has a gradient; return the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        index = 0
        for at, group in enumerate(self.param_groups):
            numbers = _numbers(group)
            stepped: list[Stepped] = []
            for p in group["params"]:
                if (grad := gradient(p)) is not None:
                    state = self._state(p)
                    state["step"] += 1
                    stepped.append((p, grad, state, index))
                index += 1
            if not stepped or self._step_again(at, stepped, numbers):
                continue
            self._kept.pop(at, None)
            launches: list[tuple[int, bool, Repeated]] = []
            alike = self._alike(stepped)
            for (step, drawn), items in alike.items():
                scalars = factors(numbers, step) | self._key(step, drawn)
                own = {name: [counters[name] for _, counters in items] for name in items[0][1]}
                found: list[Repeated] = []
                call_each(spec.adamw, [tensors for tensors, _ in items], scalars, own, {}, repeated=found)
                launches += [(step - stepped[0][2]["step"], drawn, each) for each in found]
            # of a DTensor it is not that of its local tensor
            torch.autograd.graph.increment_version([p for p, *_ in stepped])
            if len(launches) == len(alike) and all(local(grad).is_contiguous() for _, grad, *_ in stepped):
                first = stepped[0][2]["step"]
                self._kept[at] = _Kept([_addresses(*each, first) for each in stepped], launches)
        return loss

    def _alike(self, stepped: list[Stepped]) -> dict[tuple[int, bool], list[tuple[Tensors, Scalars]]]:
        """Return the tensors of parameters, and what counts their random bits, by what they share."""
        alike: dict[tuple[int, bool], list[tuple[Tensors, Scalars]]] = {}
        for p, grad, state, index in stepped:
            drawn = self.seed is not None and p.dtype is torch.bfloat16
            counters = _counters(index, place(NAME, "params", p)) if drawn else {}
            alike.setdefault((state["step"], drawn), []).append((_flat(p, grad, state), counters))
        return alike

    def _step_again(self, at: int, stepped: list[Stepped], numbers: dict[str, float]) -> bool:
        """Launch what stepped the same memory before; False if nothing did."""
        kept = self._kept.get(at)
        if kept is None or not kept.holds(stepped):
            return False
        step = stepped[0][2]["step"]
        if not all(launch.ready for _, _, launch in kept.launches):
            return False
        for offset, drawn, launch in kept.launches:
            launch.run(factors(numbers, step + offset) | self._key(step + offset, drawn))
        torch.autograd.graph.increment_version(_written(stepped))
        return True

    def _key(self, step: int, drawn: bool) -> Scalars:
        """Return what random bits depend on beside the element: the key of Philox, and the step."""
        return {"seed": self.seed, "step": step} if drawn and self.seed is not None else {}

    def _state(self, p: torch.Tensor) -> dict[str, Any]:
        """Return the state of a parameter; a new one is zero, and holds its master weight."""
        state: dict[str, Any] = self.state[p]
        if not state:
            state["step"] = 0
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = torch.zeros_like(p, dtype=torch.float32, memory_format=torch.contiguous_format)
            if self._has_master(p):
                state["master"] = p.detach().to(torch.float32)
        return state

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget gradients: `grad` as torch does, and `main_grad` is filled with -0.0, where sums start."""
        super().zero_grad(set_to_none)
        for p in chain.from_iterable(group["params"] for group in self.param_groups):
            if getattr(p, MAIN, None) is not None:
                getattr(p, MAIN).fill_(-0.0)

    def state_dict(self) -> dict[str, Any]:
        """Return the state, of which torch.distributed.checkpoint refuses what a rank has of a share."""
        made = super().state_dict()
        parameters = chain.from_iterable(group["params"] for group in self.param_groups)
        for key, p in enumerate(parameters):
            if share_of(p) is not None and key in made["state"]:
                held = made["state"][key]
                made["state"][key] = held | {name: part(held[name]) for name in STATES if name in held}
        return made

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; its tensors stay f32, where torch would round them to a parameter's dtype.

        Raises LaunchError, and loads nothing, where it is of another seed, or has master weights where this
        optimizer keeps none, or none where it does.
        """
        self._check_state(state_dict)
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            group["seed"] = self.seed
        saved = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        own = chain.from_iterable(group["params"] for group in self.param_groups)
        for key, p in zip(saved, own, strict=True):
            given = state_dict["state"].get(key, {})
            for name in STATES:
                if name in given:
                    held = plain(given[name])
                    self.state[p][name] = held.to(device=p.device, dtype=torch.float32, copy=True)
            if "step" in given:
                self.state[p]["step"] = int(given["step"])

    def _check_seed(self, group: dict[str, Any]) -> None:
        if group["seed"] != self.seed:
            wanted = f"{self.seed}, that of the optimizer: all its groups, and states that it loads, have one"
            raise LaunchError(Code.ARG_VALUE, op=NAME, name="seed", value=group["seed"], wanted=wanted)

    def _check_state(self, state_dict: dict[str, Any]) -> None:
        saved = state_dict["param_groups"]
        for group in saved:
            self._check_seed({"seed": self.seed, **group})
        keys = chain.from_iterable(group["params"] for group in saved)
        own = chain.from_iterable(group["params"] for group in self.param_groups)
        for key, p in zip(keys, own, strict=False):  # torch raises for other numbers of parameters
            given = state_dict["state"].get(key)
            if given and ("master" in given) != self._has_master(p):
                found, wanted = (
                    ("a master weight", "none") if "master" in given else ("none", "an f32 tensor")
                )
                why = f"{wanted}, for a parameter of {p.dtype} and seed={self.seed}"
                name = f"state_dict['state'][{key!r}]['master']"
                raise LaunchError(Code.ARG_VALUE, op=NAME, name=name, value=found, wanted=why)

    def _has_master(self, p: torch.Tensor) -> bool:
        return p.dtype is not torch.float32 and self.seed is None


def _numbers(group: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of a group of parameters, checked; a schedule may have changed them."""
    found = {name: number(NAME, name, float(group[name]), least=least) for name, least in GROUP.items()}
    for i, beta in enumerate(group["betas"], 1):
        found[f"beta{i}"] = number(NAME, f"betas[{i - 1}]", float(beta), least=0.0)
        if found[f"beta{i}"] >= 1.0:
            wanted = "at least 0, below 1"
            raise LaunchError(Code.ARG_VALUE, op=NAME, name=f"betas[{i - 1}]", value=beta, wanted=wanted)
    return found


def factors(numbers: dict[str, float], step: int) -> Scalars:
    """Return the scalars of a step, computed in f64; the kernel gets each rounded to f32."""
    beta1, beta2, lr = numbers["beta1"], numbers["beta2"], numbers["lr"]
    return {
        "kept": 1.0 - lr * numbers["weight_decay"],
        "rest1": 1.0 - beta1,
        "beta2": beta2,
        "rest2": 1.0 - beta2,
        "rate": -lr / (1.0 - _power(beta1, step)),
        "root": sqrt(1.0 - _power(beta2, step)),
        "eps": numbers["eps"],
    }


def _power(base: float, exponent: int) -> float:
    """Return a power by squaring: products alone, which every host rounds alike."""
    made = 1.0
    while exponent:
        if exponent & 1:
            made *= base
        base, exponent = base * base, exponent >> 1
    return made


def _counters(parameter: int, at: Place) -> Scalars:
    return {"parameter": parameter, "first": at.first, "width": at.width, "stride": at.stride}


def _addresses(
    p: torch.Tensor, grad: torch.Tensor, state: dict[str, Any], index: int, first: int
) -> tuple[Any, ...]:
    """Return where the tensors of a parameter's step are, and what else chooses its launch."""
    mean, square, master = state["exp_avg"], state["exp_avg_sq"], state.get("master")
    if isinstance(p, DTensor):
        p, grad, mean, square = local(p), local(grad), local(mean), local(square)
        master = None if master is None else local(master)
    return (
        p.data_ptr(), grad.data_ptr(), mean.data_ptr(), square.data_ptr(), p.dtype, grad.dtype, grad.numel(),
        master is None or master.data_ptr(), state["step"] - first, index, grad.is_contiguous(),
        grad.is_neg(),
    )  # fmt: skip


def _written(stepped: Sequence[Stepped]) -> list[torch.Tensor]:
    """Return the tensors that a step writes; a DTensor and its local tensor have versions of their own."""
    found: list[torch.Tensor] = []
    for p, _, state, _ in stepped:
        masters = [state["master"]] if "master" in state else []
        written = [p, state["exp_avg"], state["exp_avg_sq"], *masters]
        found += [p, *map(local, written)] if isinstance(p, DTensor) else written
    return found


def _flat(p: torch.Tensor, grad: torch.Tensor, state: dict[str, Any]) -> Tensors:
    """Return the tensors of a step of one parameter, each with one dim."""
    here = {"weight": local(p), "grad": local(grad).contiguous()}
    here |= {name: local(state[name]) for name in STATES if name in state}
    return {name: t.detach().view(-1) for name, t in here.items()}
