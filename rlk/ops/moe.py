"""Mixture of experts around its grouped products: choice and weights of experts, rows by expert and back."""

from __future__ import annotations

from typing import NamedTuple

import torch

from rlk.errors import Code, LaunchError
from rlk.ops.offsets import looked_at, on_the_host
from rlk.ops.routes import INTEGERS, Routes, compact_dtype
from rlk.runtime.binding.checks import (
    are_tensors,
    flag,
    has_dims,
    has_dtype,
    integer,
    is_among,
    is_choice,
    number,
    wrong_dims,
    wrong_type,
    wrong_value,
)
from rlk.runtime.binding.selection import Statics
from rlk.runtime.call.dispatch import dispatch
from rlk.runtime.call.entry import call, observing, worded
from rlk.specs import moe as spec

MOST_EXPERTS, MOST_CHOICES = 1024, 32
LEAVES = (1, 2, 4, 8)
COUNTED = 8192
"""Pairs up to which a kernel counts the place of each on a device; beyond, and on the CPU, torch sorts them.

Not measured on any device: chosen so that the comparisons of all pairs with all, 2**26, stay few.
"""
for _op in (spec.choose_experts, spec.expert_weights):
    worded(_op, "route", ids="replay")
worded(spec.router_losses, "router_losses", given="load", active="mask")
worded(spec.rows_by_expert, "permute", place="ids", order="ids")
for _op in (spec.places_by_expert, spec.expert_offsets):
    worded(_op, "permute", others="ids", edges="experts")
worded(
    spec.combine_rows, "combine", place="permuted.place", order="permuted.order", offsets="permuted.offsets"
)


class Route(NamedTuple):
    """The experts of each token, ascending, and the factors of their results.

    ids: [..., k], uint8 up to 256 experts (torch takes uint8 indices for a mask: index with `ids.long()`),
    int16 beyond. weights: f32 [..., k]. flipped: with `replay`, bool [...]: whether these scores would have
    chosen other experts; else None.
    """

    ids: torch.Tensor
    weights: torch.Tensor
    flipped: torch.Tensor | None = None


class RouterLosses(NamedTuple):
    """balance, z: f32 [], to be weighted and added to a loss. entropy: f32 [], load: f32 [E]; detached."""

    balance: torch.Tensor
    z: torch.Tensor
    entropy: torch.Tensor
    load: torch.Tensor


class Permuted(NamedTuple):
    """Rows sorted by expert.

    rows: [T k, D]. order: i32 [T k], the pair of each row, token * k + choice. place: i32 [T, k], the row of
    each pair. offsets: i32 [experts + 1]: rows [offsets[e], offsets[e + 1]) are those of expert e.
    """

    rows: torch.Tensor
    order: torch.Tensor
    place: torch.Tensor
    offsets: torch.Tensor


def route(
    scores: torch.Tensor,
    k: int,
    *,
    score: str = "softmax",
    bias: torch.Tensor | None = None,
    groups: int = 1,
    kept_groups: int = 1,
    group_score: str = "top2",
    renormalize: bool = True,
    scale: float = 1.0,
    replay: Routes | None = None,
    layer: int | None = None,
) -> Route:
    """Return the k experts of each token and their weights.

    scores: [..., E] bf16, f16 or f32, what the router's product gives; E up to 1024. k: up to E and 32.
    score: "softmax" over the experts or "sigmoid" of each. weights = scale * p of the chosen experts, divided
    by their sum if renormalize (for softmax that is the softmax over the chosen ones alone, as in GPT-OSS;
    for sigmoid 1e-20 is added to the sum). f32 throughout.

    Choice: the largest scores; of equal ones the lowest ids. bias: f32 [E], added to p for the choice, not in
    the weights (DeepSeek-V3's balancing). groups: experts are cut into so many equal groups, and only those
    of the kept_groups best are chosen from, of equal ones the lowest; group_score: the sum of a group's two
    largest p + bias ("top2", DeepSeek-V3) or its largest ("max", DeepSeek-V2). Without a bias, or a sum of
    two, scores are compared and not p, which may round two of them to one number.
    Mixtral, GPT-OSS: `score="softmax"`; Qwen3-MoE: renormalize is its norm_topk_prob.

    A token with a NaN among its scores has weights NaN, and so has no other token; NaN counts as -inf in its
    choice. Differentiable in scores, through the weights: sums over the chosen experts ascend by id, the sum
    of the softmax is a halving tree over the experts.

    replay: recorded routes of these tokens, of which `layer` is read (to be given where they have several):
    ids are those, weights are computed from the scores at them, and `flipped` says which tokens would have
    had others (`Flips.of_layers`). Routes of other numbers of tokens, experts or choices are refused; an id
    outside of the experts, or one that a token has twice, sets the error word. Raises LaunchError.
    """
    op = "route"
    are_tensors(op, scores=scores)
    if not scores.dim() or not 1 <= scores.shape[-1] <= MOST_EXPERTS:
        raise wrong_value(op, "scores.shape", tuple(scores.shape), f"[..., E], E from 1 to {MOST_EXPERTS}")
    experts = scores.shape[-1]
    k = integer(op, "k", k)
    if not 1 <= k <= min(experts, MOST_CHOICES):
        raise wrong_value(op, "k", k, f"1 to {min(experts, MOST_CHOICES)}, of E = {experts} experts")
    is_among(op, "score", score, spec.SCORES)
    flag(op, "renormalize", renormalize)
    scale = number(op, "scale", scale)
    statics = {**_groups(experts, k, groups, kept_groups, group_score), "score": score}
    rows = scores.reshape(-1, experts)
    tensors = {"scores": rows.detach()}
    if bias is not None:
        are_tensors(op, bias=bias)
        has_dims(op, "bias", bias.shape, 1, "1 dim [E]")
        tensors["bias"] = bias.detach()
    ids = call(spec.choose_experts, tensors, {}, {"k": k, **statics})["ids"][:, :k]
    flipped = None
    if replay is not None:
        chosen, ids = ids, _recorded(replay, layer, len(rows), k, experts)
        flipped = (chosen != ids).any(-1).reshape(scores.shape[:-1])
    made = call(
        spec.expert_weights,
        {"scores": rows, "ids": ids},
        {"scale": scale},
        {"k": k, "score": score, "renormalize": renormalize},
    )
    shape = (*scores.shape[:-1], k)
    return Route(ids.to(compact_dtype(experts)).reshape(shape), made["weights"].reshape(shape), flipped)


def _groups(experts: int, k: int, groups: int, kept_groups: int, group_score: str) -> Statics:
    """Return the statics of grouped choices; refuse groups from which k experts cannot be chosen."""
    op = "route"
    groups = integer(op, "groups", groups, 1, experts)
    is_among(op, "group_score", group_score, spec.GROUP_SCORES)
    kept_groups = integer(op, "kept_groups", kept_groups, 1, groups)
    if experts % groups:
        raise wrong_value(op, "groups", groups, f"a divisor of E = {experts}")
    size = experts // groups
    if groups > 1 and group_score == "top2" and size < 2:
        raise wrong_value(op, "groups", groups, 'groups of two experts and more, or group_score="max"')
    if kept_groups * size < k:
        wanted = f"at least {-(-k // size)}: k = {k} experts from groups of {size}"
        raise wrong_value(op, "kept_groups", kept_groups, wanted)
    return {"groups": groups, "kept_groups": kept_groups, "group_score": group_score}


def _recorded(replay: object, layer: int | None, tokens: int, k: int, experts: int) -> torch.Tensor:
    """Return the ids of a layer, i32 [T, k]; refuse routes of another model or of other tokens."""
    if not isinstance(replay, Routes):
        raise wrong_type("route", "replay", replay, "rlk.ops.Routes")
    sizes = {"tokens": tokens, "k": k, "experts": experts}
    replay.check("route", "the call", **sizes, layers=replay.layers, name="replay")
    if layer is None and replay.layers > 1:
        why = f"with replay, which has {replay.layers} layers"
        raise LaunchError(Code.ARG_MISSING, op="route", name="layer", why=why)
    layer = integer("route", "layer", layer or 0)
    if not 0 <= layer < replay.layers:
        raise wrong_value("route", "layer", layer, f"0 to {replay.layers - 1}: replay has {replay.layers}")
    return replay.ids[:, layer].to(torch.int32)


def permute(x: torch.Tensor, ids: torch.Tensor, *, experts: int, leaves: int = 1) -> Permuted:
    """Return the rows of tokens sorted by expert, each token once for each of its experts.

    x: [T, D] bf16, f16 or f32. ids: [T, k] of any integer dtype, ascending for each token and different, as
    `route` returns them. Rows of one expert are in the order of their tokens (a stable sort). Nothing waits
    for the device.

    Differentiable in x: d x of a token is the f32 sum of its rows' gradients by ascending expert, rounded
    once; with leaves (2, 4 or 8, dividing experts) in as many equal pieces of the range of experts, which are
    added pairwise, so that ranks may share the experts. Ids on the host outside of [0, experts), or that do
    not ascend, raise LaunchError; on a device they do under RLK_CHECK=1.
    """
    op = "permute"
    are_tensors(op, x=x, ids=ids)
    has_dims(op, "x", x.shape, 2, "2 dims [T, D]")
    has_dims(op, "ids", ids.shape, 2, "2 dims [T, k]")
    experts = integer(op, "experts", experts, 1, MOST_EXPERTS)
    _pieces(op, leaves, experts)
    if ids.dtype not in INTEGERS:
        raise LaunchError(Code.ARG_DTYPE, op=op, name="ids", got=ids.dtype, wanted="an integer dtype")
    tokens, k = ids.shape
    if tokens != x.shape[0]:
        raise LaunchError(
            Code.ARG_SIZE, op=op, name="ids", axis="T", got=tokens, other="x", wanted=x.shape[0]
        )
    if not 1 <= k <= MOST_CHOICES:
        raise wrong_value(op, "ids.shape[1]", k, f"1 to {MOST_CHOICES}")
    if observing():
        ids = torch.zeros_like(ids)  # there are no values: every pair is of the first expert
    elif on_the_host(ids) or looked_at(ids):
        _refuse_wrong(op, ids, experts, ascending=True)
    counted = tokens * k <= COUNTED and _for_a_device(ids)
    place, order, offsets = (_counted if counted else _sorted)(ids.reshape(-1), experts)
    place = place.view(tokens, k)
    tensors = {"place": place, "order": order, "x": x, "offsets": offsets}
    rows = call(spec.rows_by_expert, tensors, {}, {"k": k, "leaves": leaves})["y"]
    return Permuted(rows, order, place, offsets)


def _for_a_device(ids: torch.Tensor) -> bool:
    """Return whether a call runs on a device, or is noted or recorded, which stands for one on any device.

    The oracle takes over a hundred times as long to compare all pairs with all as torch to sort them.
    """
    return ids.device.type != "cpu" or observing() or dispatch.recorder is not None


Places = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""place, order and offsets of pairs, i32."""


def _counted(ids: torch.Tensor, experts: int) -> Places:
    """Return the places of pairs [R] by two small kernels, of which the first compares all pairs with all."""
    ids = _plain(ids)
    edges = torch.empty(
        experts + 1, dtype=torch.int32, device=ids.device
    )  # of which the extent alone is read
    made = call(spec.places_by_expert, {"ids": ids, "others": ids}, {}, {})
    offsets = call(spec.expert_offsets, {"ids": ids, "edges": edges}, {}, {})["offsets"]
    # a call that is only noted gave no values, and offsets are looked at where they are used
    return _sorted(ids, experts) if observing() else (made["place"], made["order"], offsets)


def _sorted(ids: torch.Tensor, experts: int) -> Places:
    """Return the same by torch's stable sort."""
    found, order = torch.sort(ids, stable=True)
    places = torch.arange(len(order), device=ids.device, dtype=torch.int32)
    place = torch.empty_like(places).scatter_(0, order, places)
    bounds = torch.arange(experts + 1, device=ids.device, dtype=torch.int32)
    offsets = torch.searchsorted(found.to(torch.int32), bounds, out_int32=True)
    return place, order.to(torch.int32), offsets


def _refuse_wrong(op: str, ids: torch.Tensor, experts: int, *, ascending: bool) -> None:
    """Raise LaunchError for ids [T, k] outside of the experts, or, if asked, that do not ascend."""
    ids = ids.long()  # torch compares uint8 with the lowest 8 bits of a number
    wrong = ((ids < 0) | (ids >= experts)).any(-1)
    if ascending:
        wrong |= (ids[:, 1:] <= ids[:, :-1]).any(-1)
    if bool(wrong.any()):
        token = int(wrong.nonzero()[0])
        kind = "ascending ids" if ascending else "ids"
        wanted = f"{kind} from 0 to {experts - 1}, as `route` returns them (token {token})"
        raise wrong_value(op, "ids", ids[token].tolist(), wanted)


def combine(
    rows: torch.Tensor, weights: torch.Tensor, permuted: Permuted, *, leaves: int = 1
) -> torch.Tensor:
    """Return each token's results of its experts, weighted and added, [T, D].

    rows: [T k, D] bf16, f16 or f32, sorted by expert as `permuted.rows`. weights: f32 [T, k], as `route`
    returns them. The products are f32, a token's k terms are added by ascending expert in f32, rounded once;
    with leaves (2, 4 or 8, dividing the number of experts) in as many equal pieces of the range of experts,
    each from -0.0, which are added pairwise.

    Differentiable in rows and weights: d rows[r] = w d y[t], rounded once; d w = the sum over D of rows[r]
    d y[t], a vector8 tree in f32. Raises LaunchError.
    """
    op = "combine"
    are_tensors(op, rows=rows, weights=weights)
    if not isinstance(permuted, Permuted):
        raise wrong_type(op, "permuted", permuted, "Permuted: the result of `permute`")
    has_dims(op, "rows", rows.shape, 2, "2 dims [T k, D]")
    has_dtype(op, "weights", weights, torch.float32)
    if weights.dim() != 2:
        raise wrong_dims(op, "weights", weights.shape, "2 dims [T, k]")
    _pieces(op, leaves, len(permuted.offsets) - 1)
    tensors = {
        "place": permuted.place,
        "order": permuted.order,
        "rows": rows,
        "weights": weights,
        "offsets": permuted.offsets,
    }
    statics = {"k": permuted.place.shape[1], "leaves": leaves}
    return call(spec.combine_rows, tensors, {}, statics)["y"]


def router_losses(
    scores: torch.Tensor,
    ids: torch.Tensor,
    *,
    mask: torch.Tensor | None = None,
    tokens: int | None = None,
    load: torch.Tensor | None = None,
) -> RouterLosses:
    """Return the auxiliary losses and the metrics of one router, over tokens whose mask is true.

    scores: [T, E] bf16, f16 or f32, and ids: [T, k], of `route`. mask: bool [T].

    balance = E sum over e of f[e] P[e]: f is the share of tokens that go through an expert, P its mean
    probability by softmax (Fedus et al. 2021; transformers' load_balancing_loss_func of one layer). z: the
    mean of lse(scores)^2 (Zoph et al. 2022). entropy: the mean of softmax's. load: f.

    tokens: the number that P, z, entropy and load are divided by, of all micro-batches and ranks; by default
    of the mask. Results of parts then add up to those of all tokens. balance does with load as well: f32 [E],
    f of all tokens, which is the sum of the loads of parts. Without it f is of the call's own tokens, and
    balances of parts add up to their mean, weighted by the tokens of each.

    Sums over tokens are f32, ascending in pieces of 64, pieces ascending; over experts halving trees; counts
    are integers. Differentiable in scores through balance (f is constant) and z. Nothing waits for the
    device. Ids on the host outside of [0, E) raise LaunchError, those of masked tokens too; on a device they
    do under RLK_CHECK=1.
    """
    op = "router_losses"
    are_tensors(op, scores=scores, ids=ids)
    has_dims(op, "scores", scores.shape, 2, "2 dims [T, E]")
    has_dims(op, "ids", ids.shape, 2, "2 dims [T, k]")
    if len(ids) != len(scores):
        got, wanted = len(ids), len(scores)
        raise LaunchError(Code.ARG_SIZE, op=op, name="ids", axis="T", got=got, other="scores", wanted=wanted)
    if ids.dtype not in INTEGERS:
        raise LaunchError(Code.ARG_DTYPE, op=op, name="ids", got=ids.dtype, wanted="an integer dtype")
    if not observing() and (on_the_host(ids) or looked_at(ids)):
        _refuse_wrong(op, ids, scores.shape[1], ascending=False)
    tensors = {"scores": scores, "ids": _plain(ids)}
    if mask is not None:
        are_tensors(op, mask=mask)
        has_dtype(op, "mask", mask, torch.bool)
        has_dims(op, "mask", mask.shape, 1, "1 dim [T]")
        if len(mask) != len(scores):
            got, wanted = len(mask), len(scores)
            raise LaunchError(
                Code.ARG_SIZE, op=op, name="mask", axis="T", got=got, other="scores", wanted=wanted
            )
        tensors["active"] = mask
    if load is not None:
        are_tensors(op, load=load)
        has_dtype(op, "load", load, torch.float32)
        has_dims(op, "load", load.shape, 1, "1 dim [E]")
        if len(load) != scores.shape[1]:
            got, wanted = len(load), scores.shape[1]
            raise LaunchError(
                Code.ARG_SIZE, op=op, name="load", axis="E", got=got, other="scores", wanted=wanted
            )
        tensors["given"] = load.detach()
    scalars = {} if tokens is None else {"tokens": float(integer(op, "tokens", tokens, 1))}
    made = call(spec.router_losses, tensors, scalars, {"k": ids.shape[1]})
    return RouterLosses(*(made[name] for name in RouterLosses._fields))


def _plain(ids: torch.Tensor) -> torch.Tensor:
    """Return ids in a dtype that specs read."""
    return ids if ids.dtype in (torch.uint8, torch.int32, torch.int64) else ids.to(torch.int32)


def _pieces(op: str, leaves: int, experts: int) -> None:
    is_choice(op, "leaves", leaves, LEAVES)
    if experts % leaves:
        raise wrong_value(op, "leaves", leaves, f"a divisor of {experts} experts")
