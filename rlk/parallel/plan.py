"""Tensor-parallel plans: modules by the patterns of their names, as those of DTensor, and their shards."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from rlk.errors import Code, LaunchError
from rlk.nn.config import ModelConfig, joined
from rlk.nn.ranks import Ranks
from rlk.ops.sharded import PIECES
from rlk.runtime.binding.checks import wrong_type
from rlk.runtime.call.collective import SHARE, Share, process_group

OP = "parallelize"
Style = Literal["column", "row", "vocab"]
EMBEDDING = "model.embed_tokens"
PLAN: dict[str, Style] = {
    EMBEDDING: "vocab",
    "model.layers.*.self_attn.[qkv]_proj": "column",
    "model.layers.*.self_attn.o_proj": "row",
    "model.layers.*.mlp.gate_proj": "column",
    "model.layers.*.mlp.up_proj": "column",
    "model.layers.*.mlp.down_proj": "row",
    "lm_head": "vocab",
}
"""How ranks share the weights of a module by its name: "column" and "vocab" by rows, "row" by columns.

Norms and biases of row-parallel layers are whole on every rank.
"""
GROUPS = (
    ("self_attn", ("q_proj", "k_proj", "v_proj", "o_proj")),
    ("mlp", ("gate_proj", "up_proj", "down_proj")),
)
"""Modules that ranks share together, by the one that holds them: the last takes the columns of the others."""
Styles = Mapping[str, Style]
"""How ranks share the weights of a model's modules, by name; those of others are whole on every rank."""
Cut = tuple[slice, ...]


def style_of(name: str) -> Style | None:
    """Return how ranks share the weight of a module by `PLAN`, None if each has all of it."""
    return next((style for pattern, style in PLAN.items() if fnmatchcase(name, pattern)), None)


def default_styles(model: torch.nn.Module) -> Styles:
    """Return how ranks share the modules of a model by `PLAN`."""
    styles = {name: style_of(name) for name, _ in model.named_modules()}
    return {name: style for name, style in styles.items() if style is not None}


def dim_of(name: str, styles: Styles | None = None) -> int | None:
    """Return the dim of a parameter that ranks share, by its name; None if each has all of it.

    styles: None for those of `PLAN`, here and below.
    """
    module, _, kind = name.rpartition(".")
    match style_of(module) if styles is None else styles.get(module):
        case "column" | "vocab":
            return 0
        case "row" if kind == "weight":
            return 1
    return None


def cuts_of(model: torch.nn.Module, ranks: Ranks, styles: Styles | None = None) -> dict[str, Cut]:
    """Return the part of each parameter that this rank has, by the names of parameters that ranks share."""
    dims = {name: (dim_of(name, styles), p) for name, p in model.named_parameters(remove_duplicate=False)}
    return {
        name: (slice(None),) * dim + (_own(p.shape[dim], ranks),)
        for name, (dim, p) in dims.items()
        if dim is not None
    }


def _own(extent: int, ranks: Ranks) -> slice:
    each = ranks.share(extent)
    return slice(ranks.rank * each, (ranks.rank + 1) * each)


def shares_of(
    model: torch.nn.Module, ranks: Ranks, styles: Styles | None = None
) -> dict[str, torch.nn.Parameter]:
    """Return a rank's parameters by their names, each in memory of its own; tied ones stay one."""
    cuts, made = cuts_of(model, ranks, styles), dict[int, torch.nn.Parameter]()
    found = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        if name in cuts and id(p) not in made:
            part = p.detach()[cuts[name]].clone(memory_format=torch.contiguous_format)
            made[id(p)] = torch.nn.Parameter(part, p.requires_grad)
            setattr(made[id(p)], SHARE, Share(ranks.group, len(cuts[name]) - 1))
        found[name] = made.get(id(p), p)
    return found


def put(model: torch.nn.Module, parameters: Mapping[str, torch.nn.Parameter]) -> None:
    """Give modules of a model other parameters, by name."""
    for name, p in parameters.items():
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, p)


# --- who shares ---------------------------------------------------------------------------------------------


def ranks_of(mesh: DeviceMesh | dist.ProcessGroup, tp: str | int | None, sp: bool = False) -> Ranks:
    """Return the ranks that share weights: those of a mesh's dim `tp`, or of a process group.

    tp: name or number of a dim; None where there is one dim, and for a group. sp: sequence parallelism.
    Raises LaunchError.
    """
    return ranks_in(group_of(mesh, tp), sp)


def ranks_in(group: dist.ProcessGroup, sp: bool) -> Ranks:
    """Return the ranks of a group. Raises LaunchError."""
    if not isinstance(sp, bool):
        raise LaunchError(Code.ARG_TYPE, op=OP, name="sp", wanted="bool", got=type(sp).__name__)
    return Ranks(group, group.size(), group.rank(), sp)


def group_of(mesh: DeviceMesh | dist.ProcessGroup, tp: str | int | None) -> dist.ProcessGroup:
    """Return the process group of a mesh's dim, or the group that is given. Raises LaunchError."""
    if mesh is None:  # torch's word for the default group, which may have more ranks than were meant
        raise wrong_type(OP, "mesh", mesh, "torch.distributed DeviceMesh or ProcessGroup")
    group = process_group(OP, _along(mesh, tp) if isinstance(mesh, DeviceMesh) else mesh)
    if tp is not None and not isinstance(mesh, DeviceMesh):
        wanted = "None with a process group, which has no dims: give a DeviceMesh"
        raise LaunchError(Code.ARG_VALUE, op=OP, name="tp", value=tp, wanted=wanted)
    return group


def _along(mesh: DeviceMesh, tp: str | int | None) -> dist.ProcessGroup:
    names, dims = mesh.mesh_dim_names or (), mesh.ndim
    known = (*names, *range(dims), *((None,) if dims == 1 else ()))
    if tp not in known or isinstance(tp, bool):
        wanted = " or ".join(map(repr, known))
        raise LaunchError(Code.ARG_VALUE, op=OP, name="tp", value=tp, wanted=f"a dim of the mesh: {wanted}")
    return mesh.get_group(tp)


def shares_heads(styles: Styles) -> bool:
    """Return whether ranks share the heads of attention."""
    return any(name.endswith(".o_proj") for name in styles)


def check_shares(config: ModelConfig, ranks: Ranks, styles: Styles | None = None) -> None:
    """Raise LaunchError with everything of a model that so many ranks cannot share; nothing was sent."""
    size, problems = ranks.size, []
    if size == 1:
        return
    heads = styles is None or shares_heads(styles)
    vocabulary = styles is None or "vocab" in styles.values()
    if config.experts is not None:
        problems.append(_refused("experts", config.experts.count, "a model without experts, or one rank"))
    elif config.leaves % size:
        wanted = f"a multiple of {size}, the number of ranks: load the model with leaves=8"
        if size > PIECES or size & (size - 1):
            wanted = f"a multiple of the number of ranks, which must be 1, 2, 4 or 8 and is {size}"
        problems.append(LaunchError(Code.ARG_VALUE, op=OP, name="leaves", value=config.leaves, wanted=wanted))
    if heads and config.sinks:  # modules of experts hold all heads' sinks
        problems.append(_refused("sinks", True, "a model without sinks of heads, or one rank"))
    for name in ("num_attention_heads", "num_key_value_heads") if heads else ():
        if (found := getattr(config, name)) % size:
            problems.append(_refused(name, found, f"a multiple of {size}, the number of ranks"))
    if vocabulary and config.vocab_size % PIECES:
        wanted = f"a multiple of {PIECES}, the pieces that ranks share"
        problems.append(_refused("vocab_size", config.vocab_size, wanted))
    if ranks.sequence and config.norm_profile == "vllm":
        problems.append(_refused("norm_profile", "vllm", '"hf_llama" or "gemma" with sp=True'))
    if problems:
        raise joined(problems)


def already_shared(ranks: Ranks) -> LaunchError:
    """Return the error of a model that ranks share already."""
    found, wanted = f"shared by {ranks.size} ranks", "a model with whole weights"
    return LaunchError(Code.ARG_VALUE, op=OP, name="model", value=found, wanted=wanted)


def _refused(name: str, found: Any, wanted: str) -> LaunchError:
    return LaunchError(Code.ARG_VALUE, op=OP, name=f"config.{name}", value=found, wanted=wanted)
