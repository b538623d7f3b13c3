"""Plans in the forms of others: styles of DTensor, or their names in transformers, by patterns of names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from re import sub
from typing import Any, Literal

import torch
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)

from rlk.errors import Code, LaunchError
from rlk.nn.config import joined
from rlk.parallel.plan import GROUPS, OP, Styles, default_styles, style_of

Role = Literal["column", "row", "embedding", "head", "norm", "norm of heads", "holder", "other"]
Plan = Mapping[str, "ParallelStyle | str"]
"""Styles by patterns of the names of modules."""
OWN_TOKENS, WHOLE = "tokens", "all"
"""What a plan says of a module that has all of its weights: tokens of a rank, or nothing."""
WORDS: dict[Role, dict[str, str]] = {
    "column": {"colwise": "column", "column": "column"},
    "row": {"rowwise": "row", "row": "row"},
    "embedding": {"embedding_rowwise": "vocab", "vocab": "vocab"},
    "head": {"colwise": "vocab", "colwise_gather_output": "vocab", "colwise_rep": "vocab", "vocab": "vocab"},
    "norm": {"sequence_parallel": OWN_TOKENS, "replicated_with_grad_allreduce": WHOLE},
    "norm of heads": {"replicated_with_grad_allreduce": WHOLE},
}
"""Names of styles, those of transformers and of `PLAN`, by what they are of."""
_BETWEEN = "Replicate(), or with sp=True Shard(0) or Shard(1),"
WANTED: dict[Role, str] = {
    "column": f"ColwiseParallel() with input_layouts={_BETWEEN} and output_layouts=Shard(-1)",
    "row": f"RowwiseParallel() with input_layouts=Shard(-1) and output_layouts={_BETWEEN}".rstrip(","),
    "embedding": f"RowwiseParallel(input_layouts=Replicate()) with output_layouts={_BETWEEN}".rstrip(","),
    "head": f"ColwiseParallel() with input_layouts={_BETWEEN} and output_layouts=Replicate() or Shard(-1): "
    "every rank gets all logits",
    "norm": "SequenceParallel() of dim 0 or 1 with sp=True",
    "norm of heads": "whole on every rank, or SequenceParallel(sequence_dim=2): a rank has its own heads",
    "holder": "PrepareModuleInput() of Replicate(), or with sp=True of Shard(0) or Shard(1), whose desired "
    "layout is Replicate(): rlk gathers the tokens itself",
    "other": "left out: projections of attention and MLP, norms, the embedding and the head have styles",
}


def resolved(model: torch.nn.Module, plan: Plan | None, sp: bool) -> Styles:
    """Return how ranks share the modules of a model, by name; of those that are left out each has all.

    plan: None for that of `PLAN`. A pattern has a name, or "*", for each part of a module's name, which may
    be that below "model." too. Raises LaunchError with all that has no form.
    """
    if plan is None:
        return default_styles(model)
    if not isinstance(plan, Mapping):
        wanted, got = "dict of styles by patterns of names", type(plan).__name__
        raise LaunchError(Code.ARG_TYPE, op=OP, name="plan", wanted=wanted, got=got)
    problems: list[LaunchError] = []
    of_tokens: list[str] = []
    said: dict[str, tuple[str, str]] = {}
    modules = dict(model.named_modules())
    for pattern, style in plan.items():
        names = _matching(modules, pattern)
        if not names:
            wanted = 'a pattern of names of modules, as "model.layers.*.mlp.up_proj": there is none of it'
            problems.append(_refused("plan", pattern, wanted))
        for name in names:
            role = role_of(name, modules[name])
            found = _read(role, style, sp)
            before = said.get(name)
            if found is None and not sp and _read(role, style, True) is not None:
                of_tokens.append(pattern)
                break
            if found is None:
                problems.append(_refused(f"plan[{pattern!r}]", style, f"of {name}: {_wanted(role)}"))
                break  # the layers after it say the same
            if before is not None and before[1] != found:
                wanted = f"that of {before[0]!r}, which matches {name} too"
                problems.append(_refused(f"plan[{pattern!r}]", style, wanted))
                break
            said[name] = pattern, found
    if of_tokens:
        more = f" and {len(of_tokens) - 1} more" if len(of_tokens) > 1 else ""
        value = f"{of_tokens[0]}{more}, by shares of the tokens"
        problems.append(_refused("plan", value, "sp=True beside it: with sp=False ranks have all tokens"))
    kinds: dict[str, Any] = {name: found for name, (_, found) in said.items() if found != WHOLE}
    if not problems:
        problems += _incomplete_groups(modules, kinds)
    if problems:
        raise joined(problems)
    return {name: kind for name, kind in kinds.items() if kind != OWN_TOKENS}


def plan_facts(model: torch.nn.Module, styles: Styles) -> dict[str, str]:
    """Return a plan as facts that ranks compare, one for all layers that it shares alike."""
    every = Counter(_pattern(name) for name in default_styles(model))
    alike = Counter((_pattern(name), style) for name, style in styles.items())
    return {
        f"plan of {at if alike[at := _pattern(name), style] == every[at] else name}": style
        for name, style in styles.items()
    }


def _pattern(name: str) -> str:
    return sub(r"\.\d+\.", ".*.", name, count=1)


def _matching(modules: Mapping[str, torch.nn.Module], pattern: object) -> list[str]:
    if not isinstance(pattern, str):
        return []
    for prefix in ("", "model."):
        parts = f"{prefix}{pattern}".split(".")
        if found := [name for name in modules if _fits(name.split("."), parts)]:
            return found
    return []


def _fits(name: list[str], parts: list[str]) -> bool:
    return len(name) == len(parts) and all(map(fnmatchcase, name, parts))


def role_of(name: str, module: torch.nn.Module) -> Role:
    """Return what a module of a decoder is to a plan."""
    style, last = style_of(name), name.rpartition(".")[2]
    if style == "vocab":
        return "head" if last == "lm_head" else "embedding"
    if style is not None:
        return style
    if type(module).__name__.endswith("RMSNorm"):
        return "norm of heads" if ".self_attn." in name else "norm"
    return "holder" if last in ("self_attn", "mlp") else "other"


# --- one style ----------------------------------------------------------------------------------------------


def _read(role: Role, style: object, sp: bool) -> str | None:
    """Return what a style says of a module: a `Style`, OWN_TOKENS or WHOLE; None where it has no form."""
    if isinstance(style, str):
        found = WORDS.get(role, {}).get(style)
        return None if found == OWN_TOKENS and not sp else found
    between: tuple[Placement, ...] = (Replicate(), *((Shard(0), Shard(1)) if sp else ()))
    at: Any = style
    fits, found = False, WHOLE
    match role:
        case "column" | "head" if type(style) is ColwiseParallel:
            made: tuple[Placement, ...] = (Shard(-1), Replicate()) if role == "head" else (Shard(-1),)
            found = "vocab" if role == "head" else "column"
            fits = at.input_layouts[0] in between and at.output_layouts[0] in made
        case "row" | "embedding" if type(style) is RowwiseParallel:
            given = Shard(-1) if role == "row" else Replicate()
            found = "row" if role == "row" else "vocab"
            fits = at.input_layouts[0] == given and at.output_layouts[0] in between
        case "norm" if type(style) is SequenceParallel:
            found, fits = OWN_TOKENS, at.sequence_sharding[0] in between[1:]
        case "norm of heads" if type(style) is SequenceParallel:
            fits = at.sequence_sharding[0] == Shard(2)  # of heads [B, L, heads, head dim]: a rank's own
        case "holder" | "head" | "norm" if type(style) is PrepareModuleInput:
            pairs = list(_prepared(style))
            fits = bool(pairs) and all(a in between and b == Replicate() for a, b in pairs)
    return found if fits else None


def _prepared(style: PrepareModuleInput) -> Iterator[tuple[Placement, Placement]]:
    """Yield the layouts of inputs that are prepared, and those that they get."""
    yield from (
        (a, b)
        for a, b in zip(style.input_layouts or (), style.desired_input_layouts or (), strict=True)
        if a is not None
    )
    wanted = style.desired_input_kwarg_layouts
    yield from ((a, wanted.get(name)) for name, a in style.input_kwarg_layouts.items() if a is not None)


def _wanted(role: Role) -> str:
    words = [repr(word) for word in WORDS.get(role, {})]
    return ", or ".join([WANTED[role], *([" or ".join(words)] if words else [])])


# --- styles together ----------------------------------------------------------------------------------------


def _incomplete_groups(
    modules: Mapping[str, torch.nn.Module], said: Mapping[str, str]
) -> Iterator[LaunchError]:
    """Yield what is wrong with styles that are right each by itself: modules that go together and do not."""
    attentions: dict[bool, str] = {}
    for last, parts in GROUPS:
        halves: list[LaunchError] = []
        for holder in (name for name in modules if name.rpartition(".")[2] == last):
            members = [name for part in parts if (name := f"{holder}.{part}") in modules]
            inside = [name for name in members if name in said]
            attentions |= {bool(inside): holder} if last == "self_attn" else {}
            halves += _all_or_none(members, inside, f"of {holder}")
        yield from halves[:1]  # the layers after it say the same
    if len(attentions) > 1:
        value = f"{attentions[True]} without {attentions[False]}"
        wanted = "the attention of all layers, or of none: a cache has as many heads for each"
        yield _refused("plan", value, wanted)
    norms = [name for name, module in modules.items() if role_of(name, module) == "norm"]
    inside = [name for name in norms if said.get(name) == OWN_TOKENS]
    yield from _all_or_none(norms, inside, "norms between products")
    ends = [name for name in modules if style_of(name) == "vocab"]
    if len({id(modules[name].weight) for name in ends}) < len(ends):
        yield from _all_or_none(ends, [name for name in ends if name in said], "modules of a tied weight")


def _all_or_none(members: list[str], inside: list[str], what: str) -> Iterator[LaunchError]:
    out = [name for name in members if name not in inside]
    if inside and out:
        value = f"{', '.join(inside)} without {', '.join(out)}"
        yield _refused("plan", value, f"all {len(members)} {what}, or none")


def _refused(name: str, found: object, wanted: str) -> LaunchError:
    return LaunchError(Code.ARG_VALUE, op=OP, name=name, value=found, wanted=wanted)
