"""Heads of q, k and v after their product: norm, rotation, and writes into a paged cache in place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from rlk.errors import Code, LaunchError
from rlk.lang.op import OWN, Op
from rlk.ops.sharded import check_plain
from rlk.runtime.binding.arguments import VECTOR
from rlk.runtime.binding.checks import (
    are_tensors,
    flag,
    has_dims,
    integer,
    is_among,
    number,
    wrong_dims,
    wrong_value,
)
from rlk.runtime.binding.invocation import Run, Scalars, Tensors
from rlk.runtime.binding.selection import Statics, check_differentiable, invoke
from rlk.runtime.call import library
from rlk.runtime.call.dispatch import MOST_SHAPES, dispatch
from rlk.runtime.call.entry import call, observing, watched
from rlk.runtime.call.tape import run_and_tape
from rlk.specs import heads as spec

WRITTEN = {"q": "q_out", "k_cache": "k_out", "v_cache": "v_out"}
"""Arguments of operators in place that are written, and the outputs of their specs that these are."""
PAGES = "[P, page, Hk, E]"
spec.qk_norm.calls.parts = ("x",)
_library = torch.library.Library(OWN, "FRAGMENT")


def qk_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    cos: torch.Tensor | None = None,
    sin: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    eps: float = 1e-6,
    profile: str = "hf_llama",
    interleaved: bool = False,
    rotary_dim: int | None = None,
) -> torch.Tensor:
    """Return RMSNorm of each head of q or of k, and, given tables, its rotation: one pass over x.

    x: [..., H, E] bf16, f16 or f32; a view inside the result of a product for q, k and v costs no copy.
    weight: [E]. The bits are those of `rms_norm` (eps, profile "hf_llama" or "gemma"), and of `rope` of its
    result (cos, sin, position_ids, interleaved, rotary_dim: all as there). Differentiable in x and weight.

    The gradient of weight is made by heads, so that ranks which share heads agree: an f32 sum over the tokens
    of each head, in pieces of 64, ascending; these sums are added by heads, ascending, and rounded once.
    (`rms_norm` adds all rows, token by token.) Raises LaunchError.
    """
    name = "qk_norm"
    are_tensors(name, x=x, weight=weight)
    if x.dim() < 2:
        raise wrong_dims(name, "x", x.shape, "[..., H, E]")
    tensors, statics = _rotation(name, "x", x, cos, sin, position_ids, interleaved, rotary_dim)
    scalars, profiled = _profile(name, eps, profile)
    return call(spec.qk_norm, {"x": x, "weight": weight, **tensors}, scalars, profiled | statics)["y"]


def write_cache(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    *,
    cos: torch.Tensor | None = None,
    sin: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    interleaved: bool = False,
    rotary_dim: int | None = None,
) -> None:
    """Write keys and values of new tokens into a paged cache, in place; given tables, keys rotated.

    k: [..., Hk, E], v: [..., Hk, F], bf16, f16 or f32, contiguous along the last dim. k_cache: [P, page,
    Hk, E], v_cache: [P, page, Hk, F], of their dtype, as `paged_attention` reads them: any view that is
    contiguous along its last dim. slots: int32 or int64 [...]: s is the slot s % page of page s // page, -1
    is padding and not written; no two tokens have the same one. A slot outside of the cache writes nothing
    and sets the device's error word (raised under RLK_CHECK=1). cos, sin, position_ids, interleaved,
    rotary_dim: as in `rope`, with whose f32 arithmetic keys are rotated.

    One kernel where E = F, else two. Differentiable in nothing. Raises LaunchError.
    """
    name = "write_cache"
    are_tensors(name, k=k, v=v, k_cache=k_cache, v_cache=v_cache, slots=slots)
    for what, x in (("k", k), ("v", v)):
        if x.dim() < 2:
            raise wrong_dims(name, what, x.shape, "[..., Hk, E]")
    _pages(name, k_cache, v_cache)
    tables, statics = _rotation(name, "k", k, cos, sin, position_ids, interleaved, rotary_dim)
    tensors = {"k": k, "k_cache": k_cache, "slots": slots, **tables}
    if k.shape[-1] == v.shape[-1]:
        _write(spec.write_cache, tensors | {"v": v, "v_cache": v_cache}, {}, statics)
        return
    _write(spec.write_cache, tensors, {}, statics)
    _write(spec.write_cache, {"k": v, "k_cache": v_cache, "slots": slots}, {}, _UNROTATED)


def cache_qkv(
    qkv: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    *,
    q_weight: torch.Tensor | None = None,
    k_weight: torch.Tensor | None = None,
    cos: torch.Tensor | None = None,
    sin: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    eps: float = 1e-6,
    profile: str = "hf_llama",
    interleaved: bool = False,
    rotary_dim: int | None = None,
) -> torch.Tensor:
    """Return q of a decode step, and write its keys and values into a paged cache: one kernel.

    qkv: [..., (Hq + 2 Hk) E] bf16, f16 or f32, the result of one product: heads of q, of k, of v. k_cache,
    v_cache: [P, page, Hk, E], and slots [...], as `write_cache` takes them. q_weight, k_weight: [E], both or
    none: q and k are normalised with them (eps, profile). cos, sin, position_ids, interleaved, rotary_dim: as
    in `rope`; without tables nothing is rotated. Returns q [..., Hq, E].

    The bits are those of `qk_norm`, `rope` and `write_cache` apart, every rounding included. Inside f32.
    Differentiable in nothing. Raises LaunchError.
    """
    name = "cache_qkv"
    are_tensors(name, qkv=qkv, k_cache=k_cache, v_cache=v_cache, slots=slots)
    if (q_weight is None) != (k_weight is None):
        missing = "k_weight" if k_weight is None else "q_weight"
        raise LaunchError(Code.ARG_MISSING, op=name, name=missing, why="where the other weight is given")
    if not qkv.dim():
        raise wrong_dims(name, "qkv", qkv.shape, "[..., (Hq + 2 Hk) E]")
    _pages(name, k_cache, v_cache)
    keys, width = k_cache.shape[2:]
    heads = qkv.shape[-1] // width - 2 * keys
    if qkv.shape[-1] % width or heads < 1:
        wanted = f"(Hq + 2 Hk) E, for E = {width} and Hk = {keys} of k_cache"
        raise wrong_value(name, "qkv.shape[-1]", qkv.shape[-1], wanted)
    x = qkv.view(*qkv.shape[:-1], heads + 2 * keys, width)
    tables, statics = _rotation(name, "qkv", x, cos, sin, position_ids, interleaved, rotary_dim)
    scalars, profiled = _profile(name, eps, profile)
    q = x.new_empty((*x.shape[:-2], heads, width))
    tensors = {"qkv": x, "q": q, "k_cache": k_cache, "v_cache": v_cache, "slots": slots, **tables}
    if q_weight is not None and k_weight is not None:
        tensors |= {"q_weight": q_weight, "k_weight": k_weight}
    _write(spec.cache_qkv, tensors, scalars, profiled | statics)
    return q


# --- arguments -----------------------------------------------------

_UNROTATED = {"interleaved": False, "partial": False}


def _profile(op: str, eps: float, profile: str) -> tuple[Scalars, dict[str, object]]:
    is_among(op, "profile", profile, spec.PROFILES)
    return {"eps": number(op, "eps", eps, least=0.0)}, {"profile": profile}


def _pages(op: str, *caches: torch.Tensor) -> None:
    for name, x in zip(("k_cache", "v_cache"), caches, strict=True):
        has_dims(op, name, x.shape, 4, f"4 dims {PAGES}")
        if 0 in x.shape:
            raise wrong_value(op, f"{name}.shape", tuple(x.shape), f"{PAGES}, none of them 0")


def _rotation(
    op: str,
    name: str,
    x: torch.Tensor,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    interleaved: bool,
    rotary_dim: int | None,
) -> tuple[Tensors, dict[str, object]]:
    """Return the inputs and statics of a rotation of x [..., H, E]; none without tables."""
    flag(op, "interleaved", interleaved)
    given = {"cos": cos, "sin": sin, "position_ids": position_ids}
    there = {n: t for n, t in given.items() if t is not None}
    if not there:
        if rotary_dim is not None:
            raise wrong_value(op, "rotary_dim", rotary_dim, "None without cos, sin and position_ids")
        return {}, _UNROTATED
    if len(there) < len(given):
        missing = ", ".join(n for n in given if n not in there)
        raise LaunchError(Code.ARG_MISSING, op=op, name=missing, why="where the rest of a rotation is given")
    are_tensors(op, **there)
    width = x.shape[-1]
    if rotary_dim is not None:
        width = integer(op, "rotary_dim", rotary_dim, 2, width)
    if width % 2:
        named = f"{name}.shape[-1]" if rotary_dim is None else "rotary_dim"
        raise wrong_value(op, named, width, "an even number")
    half = width // 2
    for what in ("cos", "sin"):
        table = there[what]
        has_dims(op, what, table.shape, 2, "2 dims [positions, R / 2]")
        if not len(table):
            raise wrong_value(op, f"{what}.shape[0]", 0, "at least 1")
        if table.shape[1] != half:
            # a table of R angles may repeat them by halves or by pairs: only halves are known to be meant
            if interleaved or table.shape[1] != width:
                got = table.shape[1]
                raise LaunchError(
                    Code.ARG_SIZE, op=op, name=what, axis="R / 2", got=got, other=name, wanted=half
                )
            there[what] = table[:, :half]
    return there, {"interleaved": interleaved, "partial": width < x.shape[-1]}


# --- calls that write their arguments -----------------------------------------------------


_known: dict[object, Run] = {}
dispatch.forgets(_known.clear)


def _write(op: Op, tensors: Tensors, scalars: Scalars, statics: Statics) -> None:
    """Run a spec whose outputs are arguments: the memory of these is written."""
    if observing():
        call(op, tensors, scalars, statics)
        return
    for t in tensors.values():
        if t.requires_grad and torch.is_grad_enabled():
            check_differentiable(op, tensors)
    if not watched(*tensors.values()):
        _run(op, tensors, scalars, statics)
        return
    check_plain(op.name, tensors)
    arguments = library.encoded(op, tensors, scalars, statics, None)[:-1]
    getattr(torch.ops.rlk, op.name)(*arguments)


def _run(op: Op, tensors: Tensors, scalars: Scalars, statics: Statics) -> None:
    # one key for everything that selects code, as for calls that return their results
    sizes = [
        (t.dtype, t.shape, t.stride(), t.device, t.data_ptr() % VECTOR, t.is_neg()) for t in tensors.values()
    ]
    key = (id(op), *tensors, *statics.values(), *sizes)
    given = tensors | {out: tensors[name] for name, out in WRITTEN.items() if name in tensors}
    if "q" in tensors and tensors["q"].dim() != 3:
        given["q_out"] = tensors["q"].view(-1, *tensors["q"].shape[-2:])  # tokens are one dim of an output
    run = _known.get(key)
    if run is None:
        memory = frozenset(given.keys() - tensors.keys())
        invocation = replace(invoke(op, tensors, scalars, statics, None), into=memory)
        if len(_known) >= MOST_SHAPES:
            _known.clear()
        run = _known[key] = dispatch.find(invocation, given)
    run_and_tape(run, given, scalars)


def register() -> None:
    """Define the operators that write their arguments in torch's registry."""
    for op in (spec.write_cache, spec.cache_qkv):
        _library.define(f"{op.name}({_parameters(op)}) -> ()")
        _library.impl(op.name, lambda *args, op=op: _implementation(op, args), "CompositeExplicitAutograd")
        torch.library.register_fake(f"{OWN}::{op.name}", lambda *_: None, lib=_library)


def _parameters(op: Op) -> str:
    """Return the parameters of a schema in which what is written says so."""
    every = library.parameters(op).rpartition(", ")[0].split(", ")
    found = []
    for text, mark in zip(every, "abcdefghijklmnopq", strict=False):
        kind, name = text.split(" ")
        found.append(f"{kind.replace('Tensor', f'Tensor({mark}!)')} {name}" if name in WRITTEN else text)
    return ", ".join(found)


def _implementation(op: Op, args: tuple[Any, ...]) -> None:
    tensors, scalars, statics, _ = library.decoded(op, args)
    _run(op, tensors, scalars, statics)


# --- the gradient of a norm's weight, by heads -----------------------------------------------------


def weight_partials(
    d_y: torch.Tensor,
    x: torch.Tensor,
    *,
    cos: torch.Tensor | None = None,
    sin: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    eps: float = 1e-6,
    profile: str = "hf_llama",
    interleaved: bool = False,
    rotary_dim: int | None = None,
) -> torch.Tensor:
    """Return the f32 sum of each head [H, E] in the gradient of the weight of `qk_norm`.

    d_y: the cotangent of its result, x: [..., H, E], both of the heads of one rank; the options are those of
    `qk_norm`. Ranks gather these sums in the order of heads for `sum_of_heads`.
    """
    name = "qk_norm"
    tensors, turned = _rotation(name, "x", x, cos, sin, position_ids, interleaved, rotary_dim)
    scalars, statics = _profile(name, eps, profile)
    tensors |= {"d_y": d_y.to(x.dtype).contiguous(), "x": x}
    return call(spec.qk_norm_partials, tensors, scalars, statics | turned)["partials"]


def sum_of_heads(partials: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the gradient [E] of the weight of `qk_norm` from f32 sums of all heads [H, E], rounded once."""
    return call(spec.sum_of_heads, {"partials": partials}, {}, {})["d_weight"].to(dtype)
