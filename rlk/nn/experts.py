"""Layers of experts: router, products by expert, and what routers chose, recorded or replayed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from rlk import ops
from rlk.errors import Code, LaunchError
from rlk.nn.config import Experts, ModelConfig
from rlk.ops.gated import clamped_swiglu, gated
from rlk.ops.moe import Route
from rlk.ops.routes import Flips, Routes
from rlk.runtime.binding.checks import wrong_type, wrong_value

STORED = {
    "qwen3_moe": ("mlp", "gate_proj", "up_proj", "down_proj"),
    "mixtral": ("block_sparse_moe", "w1", "w3", "w2"),
}
"""Of each family, the names in files of a layer's experts and of the weights of each."""
TRANSPOSED = ("gate_up_proj", "down_proj")
"""Weights of GPT-OSS's experts, which files and transformers have as [experts, in, out]."""
Routed = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
_EXPERTS = re.compile(r"(.*\.)mlp\.(?:experts\.(gate_up_proj|down_proj)|(gate\.weight))")


class RouteLog:
    """The routes of one forward pass, by layers that have experts: as they were chosen, or replayed.

    Pass one to a call of a model as `routes=`, and a new one to the next call. replay: recorded routes of the
    same tokens in the same order, which layers take instead of choosing; None: layers choose. A layer that
    runs again in backward (gradient checkpointing) takes the same.
    """

    def __init__(self, replay: Routes | None = None) -> None:
        if replay is not None and not isinstance(replay, Routes):
            raise wrong_type("RouteLog", "replay", replay, "rlk.ops.Routes")
        self.replay = replay
        self.made: dict[int, Route] = {}
        """What each layer's router gave: ids, weights, and tokens that flipped."""
        self.scores: dict[int, torch.Tensor] = {}
        """What each layer's router product gave, [T, E]: for auxiliary losses."""
        self.experts = 0

    def routes(self) -> Routes:
        """Return the ids of all layers, [T, layers, k]; nothing waits for the device. Raises LaunchError."""
        layers = self._layers()
        return Routes(torch.stack([layer.ids for layer in layers], 1), self.experts)

    def flips(self) -> Flips:
        """Return which tokens would have had other experts than those that were replayed; waits."""
        flipped = [layer.flipped for layer in self._layers() if layer.flipped is not None]
        if not flipped:
            raise LaunchError(Code.ARG_MISSING, op="RouteLog.flips", name="replay", why="to compare with")
        return Flips.of_layers(flipped)

    def check(self, op: str, config: ModelConfig) -> None:
        """Raise LaunchError for a model without experts, a used log, and a replay of other layers or experts.

        Each layer checks the number of tokens. A call that runs again in backward finds its own log.
        """
        at = config.experts
        if at is None:
            raise wrong_value(op, "routes", "a RouteLog", "None for a model without experts")
        if self.made and torch._C._current_graph_task_id() < 0:
            used = "a RouteLog that holds the routes of another call"
            raise wrong_value(op, "routes", used, "a new RouteLog for each call")
        if self.replay is not None:
            layers = at.number(config.num_hidden_layers)
            sizes = {"layers": layers, "k": at.k, "experts": at.count, "tokens": self.replay.tokens}
            self.replay.check(op, "the model", **sizes, name="replay")

    def _layers(self) -> list[Route]:
        if not self.made:
            why = "in a call of a model with experts: this log has no layers"
            raise LaunchError(Code.ARG_MISSING, op="RouteLog", name="routes", why=why)
        return [self.made[i] for i in sorted(self.made)]


class Router(torch.nn.Module):
    """The scores of experts and the choice by them. weight: [experts, hidden], bias: [experts] or None.

    std: of the weight and bias that are drawn.
    """

    def __init__(self, experts: int, hidden: int, bias: bool, std: float, **made: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(experts, hidden, **made))
        self.bias = torch.nn.Parameter(torch.empty(experts, **made)) if bias else None
        for p in self.parameters():
            torch.nn.init.normal_(p, std=std)

    def forward(self, x: torch.Tensor, at: Experts, layer: int, routes: RouteLog | None) -> Routed:
        """Return scores, weights and experts of x [T, hidden], as `routed` does."""
        return routed(ops.matmul(x, self.weight, bias=self.bias), at, layer, routes)


def routed(
    scores: torch.Tensor,
    at: Experts,
    layer: int,
    routes: RouteLog | None,
    correction: torch.Tensor | None = None,
) -> Routed:
    """Return scores [T, E], f32 weights and ids [T, k] of the experts that they choose, or that are replayed.

    The order is that of transformers' routers, for which hooks of modules look. routes: where they are noted.
    correction: f32 [E], added for the choice alone.
    """
    replay = None if routes is None else routes.replay
    given: dict[str, Any] = {"renormalize": at.renormalize, "bias": correction, **dict(at.choice)}
    chosen = ops.route(scores, at.k, replay=replay, layer=layer, **given)
    if routes is not None:
        routes.experts, routes.made[layer], routes.scores[layer] = at.count, chosen, scores
    return scores, chosen.weights, chosen.ids


class ExpertWeights(torch.nn.Module):
    """gate_up_proj: [experts, 2 width, hidden], down_proj: [experts, hidden, width].

    Gates are the first rows of an expert; with biases, gate_up_proj_bias [experts, 2 width] and
    down_proj_bias [experts, hidden], every other one, each beside its up. std: of the weights that are drawn,
    with biases of 0.
    """

    transposed_in_files: tuple[str, ...] = ()
    """Parameters whose last two dims files have in the other order: `rlk.sync` reads it."""

    def __init__(self, experts: int, hidden: int, width: int, biases: bool, std: float, **made: Any) -> None:
        super().__init__()
        if biases:
            self.transposed_in_files = TRANSPOSED
            self.gate_up_proj_bias = torch.nn.Parameter(torch.zeros(experts, 2 * width, **made))
            self.down_proj_bias = torch.nn.Parameter(torch.zeros(experts, hidden, **made))
        self.gate_up_proj = torch.nn.Parameter(torch.empty(experts, 2 * width, hidden, **made))
        self.down_proj = torch.nn.Parameter(torch.empty(experts, hidden, width, **made))
        torch.nn.init.normal_(self.gate_up_proj, std=std)
        torch.nn.init.normal_(self.down_proj, std=std)


def mixture(
    module: Any, x: torch.Tensor, at: Experts, layer: int, routes: RouteLog | None, leaves: int = 1
) -> torch.Tensor:
    """Return the weighted results of each token's experts, down(silu(gate) * up), [T, hidden] of x.

    module: has a router and experts, with the forward of `Router` and the parameters of `ExpertWeights`, or
    those of transformers' GPT-OSS, whose weights are [experts, in, out]. Scores are rounded to the dtype of
    x, as transformers does; weights stay f32. leaves: equal pieces of the range of experts, whose results,
    and in backward whose gradients to x, are added pairwise.
    """
    weights = module.experts
    _, factors, ids = getattr(module, at.router)(x, at, layer, routes)
    rows = ops.permute(x, ids, experts=at.count, leaves=leaves)
    first, second = weights.gate_up_proj, weights.down_proj
    if at.clamped is None:
        both = ops.grouped_matmul(rows.rows, first, rows.offsets)
        made = ops.grouped_matmul(gated(both, "silu"), second, rows.offsets)
        return ops.combine(made, factors, rows, leaves=leaves)
    if not isinstance(weights, ExpertWeights):
        first, second = transposed(first), transposed(second)
    limit, alpha = at.clamped
    both = ops.grouped_matmul(rows.rows, first, rows.offsets, bias=weights.gate_up_proj_bias)
    inner = clamped_swiglu(both, limit=limit, alpha=alpha)
    made = ops.grouped_matmul(inner, second, rows.offsets, bias=weights.down_proj_bias)
    return ops.combine(made, factors, rows, leaves=leaves)


def transposed(w: torch.Tensor) -> torch.Tensor:
    """Return weights [E, N, K] of weights [E, K, N]; a copy unless their memory is `store_transposed`'s."""
    made = w.mT
    return made if made.stride(-1) == 1 else made.contiguous()


def store_transposed(w: torch.nn.Parameter) -> None:
    """Store weights [E, K, N] in memory as [E, N, K]; shape and values stay, strides do not."""
    if w.mT.stride(-1) != 1:
        w.data = w.data.mT.contiguous().mT


class MoE(torch.nn.Module):
    """A mixture of experts: each token goes through the k experts of the largest router scores.

    layer: its index in the model; `rlk.ops.Routes` counts layers with experts alone.
    """

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        assert config.experts is not None, "a model of this config has no experts"
        options, hidden = config.experts, config.hidden_size
        made: dict[str, Any] = {"std": config.initializer_range, "device": device, "dtype": dtype}
        biases = options.clamped is not None
        self.experts: ExpertWeights
        for name, part in (
            (options.router, Router(options.count, hidden, biases, **made)),
            ("experts", ExpertWeights(options.count, hidden, options.width, biases, **made)),
        ):
            setattr(self, name, part)
        self.options, self.layer, self.leaves = options, options.number(layer), config.leaves

    def forward(self, x: torch.Tensor, routes: RouteLog | None = None) -> torch.Tensor:
        """Return [T, hidden] of x [T, hidden]. routes: where routes are noted, and read from for a replay."""
        return mixture(self, x, self.options, self.layer, routes, self.leaves)

    def extra_repr(self) -> str:
        return f"layer={self.layer}, leaves={self.leaves}, {self.options}"


def stored(tensors: Mapping[str, torch.Tensor], config: ModelConfig) -> dict[str, torch.Tensor]:
    """Return a model's parameters as files have them, views of the parameters.

    Each expert is by itself, but for those of GPT-OSS, whose files have [experts, in, out].
    """
    if config.experts is None:
        return dict(tensors)
    if config.model_type not in STORED:
        ends = tuple(f"experts.{name}" for name in TRANSPOSED)
        return {n: x.mT if n.endswith(ends) else x for n, x in tensors.items()}
    return by_expert(tensors, config.model_type)


def by_expert(tensors: Mapping[str, torch.Tensor], model_type: str) -> dict[str, torch.Tensor]:
    """Return weights with those of each expert by themselves, under the names that files have: views.

    model_type: one of STORED.
    """
    block, gate, up, down = STORED[model_type]
    made: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        found = _EXPERTS.fullmatch(name)
        if found is None:
            made[name] = tensor
            continue
        prefix, weights, router = found.groups()
        if router:
            made[f"{prefix}{block}.{router}"] = tensor
            continue
        for i, each in enumerate(tensor.unbind(0)):
            at = f"{prefix}{block}.experts.{i}"
            if weights == "down_proj":
                made[f"{at}.{down}.weight"] = each
            else:
                made[f"{at}.{gate}.weight"], made[f"{at}.{up}.weight"] = each.chunk(2)
    return made
