"""The calls of a model that are compiled ahead: a reviewed TOML table, or the config.json of a model."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from rlk.errors import Code, LaunchError
from rlk.nn.config import ModelConfig

COMMON = "common"  # the matrix that ships with rlk, by name
DTYPES = ("bf16", "f16", "f32")
LARGEST = 2**31 - 1  # of a size


@dataclass(frozen=True, slots=True)
class Model:
    """The sizes of a model that kernels know, and over how many ranks its tensors are split.

    hidden, vocab, intermediate: of its residual stream, its head, its MLP. heads, kv_heads, head_dim: of its
    attention. profile: of its norms, as `rms_norm` names them.
    """

    name: str
    hidden: int
    vocab: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    profile: str = "hf_llama"
    tp: tuple[int, ...] = (1,)


NO_MODEL = Model("", 1, 1, 1, 1, 1, 1)
"""Stands where all calls are of registered operators, whose sizes the matrix or their registration says."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of one operator: for each number of rows, dtype and choice of options; with gradients or without.

    split: whether ranks that share a model call it with a part of its sizes. For registered operators of
    others, sizes: of axes by name, numbers or names of a model's sizes; and an entry of dtypes may be a
    dtype by variable.
    """

    op: str
    rows: tuple[int, ...]
    dtypes: tuple[str | Mapping[str, str], ...] = ("bf16",)
    options: tuple[dict[str, Any], ...] = field(default_factory=lambda: ({},))
    backward: bool = False
    split: bool = True
    sizes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Matrix:
    """Models and the calls that each of them makes."""

    models: tuple[Model, ...]
    calls: tuple[Calls, ...]


def wrong(what: str, value: object, wanted: str) -> LaunchError:
    """Return the error of a table that says something else than it may."""
    return LaunchError(Code.ARG_VALUE, op="rlk aot", name=what, value=value, wanted=wanted)


def read_matrix(place: str) -> Matrix:
    """Read a matrix from a TOML file, or the one that ships with rlk: "common".

    A model may be named alone where the shipped matrix knows its sizes. Without [[call]] the calls are those
    of the shipped matrix. Raises LaunchError naming what is wrong.
    """
    path = Path(__file__).with_name("common.toml") if place == COMMON else Path(place)
    try:
        members = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise wrong("MATRIX", place, f"a file that can be read ({error.strerror}), or {COMMON!r}") from None
    except (ValueError, RecursionError) as error:  # no UTF-8, no TOML, too long a number
        raise wrong("MATRIX", place, f"TOML: {error}") from None
    if set(members) - {"model", "call"}:
        raise wrong(place, ", ".join(sorted(set(members) - {"model", "call"})), "[[model]] and [[call]]")
    models = tuple(_model(each, place) for each in _tables(members, "model", place))
    calls = tuple(_calls(each, place) for each in _tables(members, "call", place))
    if place != COMMON and not calls:
        calls = common().calls
    if not models and calls and all("." in each.op for each in calls):
        models = (NO_MODEL,)
    if not models or not calls:
        raise wrong(place, "no model" if not models else "no call", "at least one [[model]] and [[call]]")
    return Matrix(models, calls)


def _tables(members: dict[str, Any], name: str, place: str) -> list[dict[str, Any]]:
    found = members.get(name, [])
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise wrong(place, name, f"tables, each under [[{name}]]")
    return found


@cache
def common() -> Matrix:
    """Return the matrix that ships with rlk."""
    return read_matrix(COMMON)


def _model(members: dict[str, Any], place: str) -> Model:
    known = {} if place == COMMON else {m.name: m for m in common().models}
    name = str(members.get("name"))
    sizes = [f.name for f in fields(Model) if f.name not in ("name", "tp", "profile")]
    if set(members) <= {"name", "tp"}:
        if name not in known:
            raise wrong(f"{place}: model", name, f"sizes ({', '.join(sizes)}), or one of {', '.join(known)}")
        members = {**{f.name: getattr(known[name], f.name) for f in fields(Model)}, **members}
    return _made(Model, members, place)


def _calls(members: dict[str, Any], place: str) -> Calls:
    made = _made(Calls, members, place)
    if not {dtype for dtype in made.dtypes if isinstance(dtype, str)} <= set(DTYPES):
        raise wrong(f"{place}: {made.op}: dtypes", made.dtypes, ", ".join(DTYPES))
    return made


def _made(kind: type[Any], members: dict[str, Any], place: str) -> Any:
    """Build a dataclass from a table: its fields and no others, lists as tuples."""
    names = {f.name for f in fields(kind)}
    if set(members) - names:
        raise wrong(
            f"{place}: {kind.__name__.lower()}", sorted(set(members) - names), ", ".join(sorted(names))
        )
    given = {name: tuple(x) if isinstance(x, list) else x for name, x in members.items()}
    for each in fields(kind):
        fits, wanted = _KINDS[str(each.type)]
        if each.name in given and not fits(given[each.name]):
            raise wrong(f"{place}: {kind.__name__.lower()}: {each.name}", members[each.name], wanted)
    for each in fields(kind):
        if each.name not in given and each.default is MISSING and each.default_factory is MISSING:
            table = "model" if kind is Model else "call"
            _, wanted = _KINDS[str(each.type)]
            said = ", ".join(
                f"{name} = {value!r}" for name, value in members.items() if name in ("op", "name")
            )
            raise wrong(place, f"[[{table}]] {said}".strip(), f"{each.name} = {wanted}, which it lacks")
    return kind(**given)


def _is_size(value: object) -> bool:
    return type(value) is int and 1 <= value <= LARGEST


def _is_table_of_text(value: object) -> bool:
    return isinstance(value, dict) and len(value) > 0 and all(isinstance(x, str) for x in value.values())


def _all(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, tuple) and len(value) > 0 and all(map(fits, value))


# how a field's type is written -> what has it, and that in words
_KINDS: dict[str, tuple[Callable[[object], bool], str]] = {
    "str": (lambda value: isinstance(value, str), "text"),
    "bool": (lambda value: isinstance(value, bool), "true or false"),
    "int": (_is_size, f"a whole number, at least 1 and at most {LARGEST}"),
    "tuple[int, ...]": (_all(_is_size), f"a list of whole numbers, at least 1 and at most {LARGEST}"),
    "tuple[str | Mapping[str, str], ...]": (
        _all(lambda value: isinstance(value, str) or _is_table_of_text(value)),
        'a list of texts, or of tables such as { F = "bf16", W = "f32" }',
    ),
    "Mapping[str, Any]": (
        lambda value: (
            isinstance(value, dict) and all(isinstance(x, str) or _is_size(x) for x in value.values())
        ),
        "a table of sizes, each a number or the name of a size of the model",
    ),
    "tuple[dict[str, Any], ...]": (_all(lambda value: isinstance(value, dict)), "a list of tables"),
}


@dataclass(frozen=True, slots=True)
class Experts:
    """The sizes of a model's experts.

    count: experts of a layer, of which a token goes through k. width: of each, which is what `intermediate`
    is of an MLP. shared: width of the experts that every token goes through, 0 where there are none. dense:
    whether some layers have an MLP of `intermediate`. kind: the model's type.
    """

    count: int
    k: int
    width: int
    shared: int
    dense: bool
    kind: str


def model_of_config(path: Path, tp: int) -> tuple[Model, str]:
    """Return the sizes in a Hugging Face config.json, split over `tp` ranks, and its dtype.

    path: the file, or a folder that has it. Raises LaunchError for a file that has not the fields of a
    decoder with grouped heads.
    """
    members = _members(path)
    given = {ours: members.get(theirs) for ours, theirs in _CONFIG.items()}
    if given["kv_heads"] is None:
        given["kv_heads"] = given["heads"]
    if given["head_dim"] is None and _is_size(given["heads"]) and _is_size(given["hidden"]):
        given["head_dim"] = given["hidden"] // given["heads"]
    for ours, theirs in _CONFIG.items():
        if not _is_size(given[ours]):
            wanted = f"{theirs} is {given[ours]!r}, not a whole number of at least 1"
            raise _no_decoder(path, wanted)
    if given["heads"] % given["kv_heads"]:
        wanted = f"{given['heads']} num_attention_heads do not share {given['kv_heads']} num_key_value_heads"
        raise _no_decoder(path, wanted)
    kind = str(members.get("model_type", path.parent.name))
    profile = "gemma" if "gemma" in kind else "hf_llama"
    dtype = str(members.get("dtype") or members.get("torch_dtype") or "bfloat16")
    model = Model(name=kind, profile=profile, tp=(tp,), **given)
    return model, "f16" if dtype == "float16" else "bf16"


def decoder_of_config(path: Path) -> ModelConfig:
    """Return the decoder of a config.json, or of a folder; raise LaunchError for a model of another kind."""
    return ModelConfig.of(_members(path))


def experts_of_config(path: Path) -> Experts | None:
    """Return the sizes of the experts in a config.json, None for a dense model; raise LaunchError."""
    members = _members(path)
    counts = [members.get(name) for name in ("num_experts", "num_local_experts", "n_routed_experts")]
    count = next((each for each in counts if each), None)
    if count is None:
        return None
    k = members.get("num_experts_per_tok", members.get("experts_per_token"))
    width = members.get("moe_intermediate_size") or members.get("intermediate_size")
    for name, size in (("experts", count), ("num_experts_per_tok", k), ("moe_intermediate_size", width)):
        if not _is_size(size):
            raise _no_decoder(path, f"{name} is {size!r}, not a whole number of at least 1")
    shared = members.get("shared_expert_intermediate_size") or (members.get("n_shared_experts") or 0) * width
    some = members.get("mlp_only_layers") or members.get("first_k_dense_replace")
    dense = bool(some) or (members.get("decoder_sparse_step") or 1) > 1
    return Experts(count, k, width, shared, dense, str(members.get("model_type", "")))


def _members(path: Path) -> dict[str, Any]:
    """Return the fields of a config.json, or of a folder's, those of its language model at the top."""
    path = path / "config.json" if path.is_dir() else path
    try:
        members = json.loads(path.read_text(encoding="utf-8"))
        return {**members, **(members.get("text_config") or {})}
    except OSError as error:
        raise wrong("--model-config", str(path), f"a file that can be read ({error.strerror})") from None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise _no_decoder(path, repr(error)) from None


# fields of a model, and what a config.json calls them
_CONFIG = {
    "hidden": "hidden_size",
    "vocab": "vocab_size",
    "intermediate": "intermediate_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
}


def _no_decoder(path: Path, why: str) -> LaunchError:
    return wrong("--model-config", str(path), f"the config.json of a decoder ({why})")
