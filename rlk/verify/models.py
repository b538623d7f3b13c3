"""The model that `rlk verify` runs: a checkpoint, a config with random weights, or a tiny built-in one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rlk.digest import digest
from rlk.errors import Code, LaunchError, UnsupportedError
from rlk.nn import CausalLM, ModelConfig
from rlk.nn.checkpoint import VERSIONS
from rlk.nn.config import FAMILIES
from rlk.nn.ranks import Ranks
from rlk.observe import TINY, randomize
from rlk.parallel.plan import check_shares
from rlk.sync import digest as digest_of_weights

RANKS, LEAVES = 2, 8
"""Ranks that share a model, and leaves of one whose own leaves they cannot share."""
POSITIONS = 4096  # of random models: no sequence is longer
OP, MODEL = "rlk verify", "MODEL"
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 24, "head_dim": 32, **MIXED}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
PARTS: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "qwen2": {"tie_word_embeddings": True},
    "llama": {"rope_parameters": LLAMA3, "rope_theta": None},
    "mistral": {"sliding_window": 8},
    "gemma2": {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 30.0},
    "gemma3_text": {
        **GEMMA,
        "rope_theta": None,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
}
"""By family, the entries of its built-in model's config beside TINY."""
BUILT_IN = {"tiny": "qwen3", **{f"tiny-{kind.removesuffix('_text')}": kind for kind in PARTS}}
"""Names of built-in models, and their families."""


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """A model under test. name: as it was asked for. source: "built in", "config" or "checkpoint".

    raw: its config, as a config.json of transformers would have it. identity: a digest of config and weights.
    """

    name: str
    source: str
    raw: Mapping[str, Any]
    model: CausalLM
    identity: str


def subject(name: str, dtype: torch.dtype, device: torch.device) -> Subject:
    """Return the model that a name means: one of BUILT_IN, a config (a .json file), or a checkpoint's folder.

    Configs get random weights, of seed 0 (`rlk.observe.randomize`). Raises LaunchError for a name that is
    none of these, and for whatever the config or the checkpoint does not have.
    """
    path = Path(name)
    if name in BUILT_IN:
        kind = BUILT_IN[name]
        raw = {"model_type": kind, **TINY, **PARTS[kind]}
        return random_subject(
            name, "built in", {n: x for n, x in raw.items() if x is not None}, dtype, device
        )
    if path.is_dir():
        model = CausalLM.from_pretrained(path, dtype=dtype, device=device)
        raw = dict(model.source or {})
        return Subject(name, "checkpoint", raw, model, identity(model))
    if path.is_file():
        return random_subject(name, "config", read_config(path), dtype, device)
    wanted = f"a checkpoint's folder, a config (a .json file), or one of {', '.join(BUILT_IN)}"
    raise LaunchError(Code.ARG_VALUE, op=OP, name=MODEL, value=name, wanted=wanted)


def read_config(path: Path) -> dict[str, Any]:
    """Return a config of a file, with the defaults of transformers' class. Raises LaunchError."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _unreadable(path, f"is no JSON: {error}") from error
    if not isinstance(raw, dict) or "model_type" not in raw:
        raise _unreadable(path, 'is no config of a model: it has no "model_type"')
    if raw["model_type"] not in FAMILIES:
        ModelConfig.of(raw)  # which refuses it
    try:
        from transformers import AutoConfig
    except ImportError:
        return raw  # its own entries may be enough
    try:
        given = {n: x for n, x in raw.items() if n not in ("model_type", "transformers_version")}
        made: dict[str, Any] = AutoConfig.for_model(raw["model_type"], **given).to_dict()
    except Exception as error:  # transformers raises many types for what it cannot read
        raise _unreadable(path, f"transformers cannot read it: {error}") from error
    return made


def _unreadable(path: Path, what: str) -> LaunchError:
    instead = "name the config.json of a checkpoint, or a file written like one"
    return LaunchError(Code.CHECKPOINT_FILE, path=str(path), what=what, instead=instead)


def random_subject(
    name: str, source: str, raw: Mapping[str, Any], dtype: torch.dtype, device: torch.device
) -> Subject:
    """Return a model of a config with random weights, of seed 0. source: "built in" or "config"."""
    config = ModelConfig.of(raw)
    # rows of rotary tables beyond the longest sequence are never read, and change no bit of the others
    positions = min(config.max_position_embeddings, POSITIONS)
    model = CausalLM(replace(config, max_position_embeddings=positions), device=device, dtype=dtype)
    randomize(model, around=0.0 if config.norm_profile == "gemma" else 1.0)  # a norm of 1 + weight
    if config.experts is not None:
        cancel_attention(model)
    return Subject(name, source, raw, model, identity(model))


@torch.no_grad()
def cancel_attention(model: CausalLM) -> None:
    """Make the sums of each attention's last product small beside their terms, so that their order shows.

    Controls of a model of experts change these products alone, and 16 bits of a short sum seldom show its
    order. The second half of heads repeats the first; the weights of its results are those of the first with
    the other sign, up to a few of 128 parts.
    """
    drawn = torch.Generator().manual_seed(0)
    for layer in model.model.layers:
        attention = layer.self_attn
        for linear in (attention.q_proj, attention.k_proj, attention.v_proj):
            for p in (linear.weight, linear.bias):
                if p is not None:
                    half = len(p) // 2
                    p[half:] = p[:half]
        weight = attention.o_proj.weight
        half = weight.shape[1] // 2
        parts = torch.randint(-2, 3, (len(weight), half), generator=drawn).to(weight.device) / 128
        weight[:, :half] *= 128
        weight[:, half:] = -weight[:, :half].float() * (1 + parts)


def identity(model: CausalLM) -> str:
    """Return a digest of a model's config and weights."""
    config = {f.name: str(getattr(model.config, f.name)) for f in fields(model.config) if f.compare}
    return digest({"config": config, "weights": digest_of_weights(model).total})[:16]


# --- ranks --------------------------------------------------------------------------------------------------


def shared_leaves(config: ModelConfig) -> int:
    """Return the leaves of the model that ranks share: its own, if they can share those."""
    return LEAVES if config.leaves % RANKS else config.leaves


def run_leaves(config: ModelConfig) -> int:
    """Return the leaves that views of ranks run with: the model's own where ranks cannot share it."""
    return config.leaves if unshared(config) else shared_leaves(config)


def unshared(config: ModelConfig) -> str | None:
    """Return why ranks cannot share a model, None if they can."""
    try:
        like = replace(config, leaves=shared_leaves(config))
        check_shares(like, Ranks(dist.ProcessGroup(0, RANKS), RANKS, 0, sequence=True))
        CausalLM(like, device="meta")  # refuses extents that leaves do not divide
    except LaunchError as error:
        return error.diagnostics[0].message
    return None


# --- transformers -------------------------------------------------------------------------------------------


def stock_model(of: Subject, *, attention: str | None = None, dtype: torch.dtype | None = None) -> Any:
    """Return transformers' model with the weights of a subject; attention: its implementation.

    dtype: by default the subject's. Raises UnsupportedError without transformers.
    """
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError as error:
        raise UnsupportedError(
            Code.PEER_ABSENT, peer="transformers", versions=VERSIONS["transformers"]
        ) from error
    like = of.model.lm_head.weight
    given = {
        n: x for n, x in of.raw.items() if n not in ("model_type", "transformers_version", "architectures")
    }
    config = AutoConfig.for_model(of.raw["model_type"], **given)
    config.rlk_leaves = of.model.config.leaves
    how = {} if attention is None else {"attn_implementation": attention}
    if of.model.config.experts is not None:
        how["experts_implementation"] = "eager"  # torch's grouped product takes no float64
    made = AutoModelForCausalLM.from_config(config, dtype=like.dtype, **how)
    made.load_state_dict(of.model.state_dict())
    return made.to(device=like.device, dtype=dtype or like.dtype).eval()
