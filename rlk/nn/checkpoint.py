"""Checkpoints of Hugging Face's layout: safetensors files and config.json, checked before memory is taken."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from rlk.errors import Code, LaunchError, UnsupportedError
from rlk.nn.config import LEAVES, ModelConfig, joined
from rlk.runtime.binding.checks import wrong_type

CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
DTYPES = ("F32", "BF16", "F16")
"""Dtypes of tensors in files, as safetensors names them."""
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
}
"""Of each model_type: the class that engines look up in config.json."""
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
NO_PARAMETER = re.compile(r"(.*\.)?rotary_emb\.inv_freq")
"""Buffers that older versions of transformers wrote; rlk computes them."""
ROWS = 4096  # of two tensors compared at once
UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
RESOLVE = ("revision", "cache_dir", "token", "local_files_only", "force_download", "subfolder", "proxies")
"""Options by which transformers finds files."""
VERSIONS = {"transformers": ">=5.0", "safetensors": ">=0.6"}


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in a file. dtype: as safetensors names it."""

    file: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint: its config.json, and the tensors of its files by their names."""

    path: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Stored]


# --- reading: nothing is loaded yet ----------------------------------------------------------------------


def read_checkpoint(
    path: str | os.PathLike[str], leaves: int | None, **resolve: Any
) -> tuple[Checkpoint, ModelConfig]:
    """Return what a folder, or a repository of the Hugging Face hub, holds; no weights are read.

    resolve: as transformers takes it to find files: RESOLVE. Raises LaunchError for other options, and with
    every finding about config.json and the files, with those about dtypes among them; of a good config
    `check_tensors` finds them.
    """
    for option in resolve:
        if option not in RESOLVE:  # such as device_map, which would be ignored
            what, choices = "option of from_pretrained", ", ".join(("dtype", "leaves", "device", *RESOLVE))
            raise LaunchError(Code.UNKNOWN_NAME, what=what, name=option, choices=choices)
    name = os.fspath(path)
    if os.path.isfile(name):  # which is no name of a repository either
        raise _unreadable(name, "is a file", f"name its folder, which holds {CONFIG} too")
    raw, given = _read_config(name, resolve)
    try:
        config = ModelConfig.of(given, leaves=leaves)
    except LaunchError as error:
        problems = [error]
    else:
        problems = []
    tensors: dict[str, Stored] = {}
    try:
        files = _weight_files(name, resolve)
    except LaunchError as error:
        files = []
        problems.append(error)
    for file in files:
        try:
            for key, stored in _headers(file):
                if key in tensors:
                    what = f"{key} is in {os.path.basename(tensors[key].file)} too"
                    raise _unreadable(file, what, "keep one")
                tensors[key] = stored
        except LaunchError as error:
            problems.append(error)
    if problems:
        raise joined([*problems, *_unsupported_dtypes(name, tensors)])
    return Checkpoint(name, raw, tensors), config


def check_tensors(
    found: Checkpoint, wanted: Mapping[str, torch.Tensor], config: ModelConfig
) -> dict[str, str]:
    """Return the name in the files of each parameter that is to be loaded.

    wanted: the parameters of the model by their names, on any device. Raises LaunchError that names all
    tensors that are missing, unknown, or of another shape or dtype.
    """
    sources = {name: name for name in wanted}
    if config.tie_word_embeddings:
        sources.pop(HEAD, None)
        if EMBEDDING not in found.tensors and HEAD in found.tensors:
            sources[EMBEDDING] = HEAD
    missing = [name for name, key in sources.items() if key not in found.tensors]
    known = {*sources.values(), *((HEAD,) if config.tie_word_embeddings else ())}
    extra = [key for key in found.tensors if key not in known and not NO_PARAMETER.fullmatch(key)]
    problems = [
        LaunchError(code, path=found.path, count=len(names), names=_listed(names), model=config.model_type)
        for code, names in ((Code.CHECKPOINT_LACKS, missing), (Code.CHECKPOINT_EXTRA, extra))
        if names
    ]
    problems += _wrong_shapes(found, wanted, sources)
    problems += _unsupported_dtypes(found.path, found.tensors)
    if not problems and config.tie_word_embeddings and {HEAD, EMBEDDING} <= set(found.tensors):
        if not _equal(found.tensors[HEAD].file, HEAD, found.tensors[EMBEDDING].file, EMBEDDING):
            what = f"{HEAD} differs from {EMBEDDING}, but tie_word_embeddings says that they are one"
            problems.append(
                _unreadable(found.path, what, 'write "tie_word_embeddings": false in config.json')
            )
    if problems:
        raise joined(problems)
    return sources


def _read_config(name: str, resolve: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return config.json as it is, and with the defaults of transformers' class."""
    transformers = _peer("transformers")
    file = _resolved(name, CONFIG, resolve, needed=True)
    if file is None:
        raise _unreadable(name, f"there is no {CONFIG}", "name a folder or repository of a checkpoint")
    try:
        raw = json.loads(Path(file).read_text(encoding="utf-8"))
    except ValueError as error:
        raise _unreadable(file, f"is no JSON: {error}", "write it anew") from error
    if not isinstance(raw, dict):
        raise _unreadable(file, "is no JSON object", "write it anew")
    try:
        return raw, transformers.AutoConfig.from_pretrained(name, **resolve).to_dict()
    except Exception as error:  # transformers raises many types for what it cannot read
        with suppress(KeyError, TypeError):
            ModelConfig.of(raw)  # an unsupported model is refused in rlk's words
        what = f"transformers cannot read it: {error}"
        raise _unreadable(file, what, "see transformers.AutoConfig.from_pretrained") from error


def _resolved(name: str, file: str, resolve: Mapping[str, Any], *, needed: bool = False) -> str | None:
    """Return the path of a file of a checkpoint, downloaded if it has to be; None if there is none.

    needed: of a repository it must be there, so that an error says whether the network, the name, or a right
    is missing.
    """
    hub = _peer("transformers").utils
    if os.path.isdir(name):
        path = os.path.join(name, file)
        return path if os.path.isfile(path) else None
    try:
        found: str | None = hub.cached_file(
            name, file, _raise_exceptions_for_missing_entries=needed, **resolve
        )
    except (OSError, ValueError) as error:
        what = f"there is no such folder, and as a repository of the Hugging Face hub: {error}"
        raise _unreadable(name, what, "name a folder, or a repository that can be reached") from error
    return found


def _weight_files(name: str, resolve: Mapping[str, Any]) -> list[str]:
    """Return the files of a checkpoint's weights: one, or those that its index names."""
    if (single := _resolved(name, SINGLE, resolve)) is not None:
        return [single]
    index = _resolved(name, INDEX, resolve)
    if index is None:
        what = f"there is neither {SINGLE} nor {INDEX}"
        raise _unreadable(name, what, "convert weights of other formats by transformers' save_pretrained")
    try:
        shards = sorted(set(json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(index, "is no index of safetensors files", "write the checkpoint anew") from error
    found = {shard: _resolved(name, shard, resolve) for shard in shards}
    if missing := [shard for shard, file in found.items() if file is None]:
        raise _unreadable(index, f"names files that are missing: {', '.join(missing)}", "copy them too")
    return [file for file in found.values() if file is not None]


def _headers(file: str) -> Iterator[tuple[str, Stored]]:
    """Yield the tensors of a file by their names."""
    safetensors = _peer("safetensors")
    try:
        with safetensors.safe_open(file, framework="pt") as opened:
            for key in opened.keys():
                part = opened.get_slice(key)
                yield key, Stored(file, tuple(part.get_shape()), part.get_dtype())
    except (safetensors.SafetensorError, OSError) as error:
        raise _unreadable(file, f"cannot be read: {error}", "copy or download it again") from error


def _unsupported_dtypes(name: str, tensors: Mapping[str, Stored]) -> list[LaunchError]:
    """Return an error for each dtype that is none of DTYPES, naming its tensors."""
    by_dtype: dict[str, list[str]] = {}
    for key, stored in tensors.items():
        if stored.dtype not in DTYPES and not NO_PARAMETER.fullmatch(key):
            by_dtype.setdefault(stored.dtype, []).append(key)
    return [
        LaunchError(Code.CHECKPOINT_DTYPE, path=name, name=_listed(keys), got=dtype, wanted=", ".join(DTYPES))
        for dtype, keys in by_dtype.items()
    ]


def _wrong_shapes(
    found: Checkpoint, wanted: Mapping[str, torch.Tensor], sources: Mapping[str, str]
) -> list[LaunchError]:
    """Return an error for each pair of shapes that differ, naming the tensors."""
    wrong: dict[tuple[tuple[int, ...], tuple[int, ...]], list[str]] = {}
    for name, key in sources.items():
        stored = found.tensors.get(key)
        if stored is not None and stored.shape != tuple(wanted[name].shape):
            wrong.setdefault((stored.shape, tuple(wanted[name].shape)), []).append(key)
    return [
        LaunchError(
            Code.CHECKPOINT_SHAPE, path=found.path, name=_listed(keys), got=list(got), wanted=list(shape)
        )
        for (got, shape), keys in wrong.items()
    ]


def _listed(names: Iterable[str]) -> str:
    """Return names with those of several layers as one: model.layers.{0..3}.mlp.up_proj.weight."""
    layers: dict[tuple[str, str], list[int]] = {}
    for name in names:
        before, number, after = re.match(r"(.*?layers\.)?(\d+)?(.*)", name).groups("")  # type: ignore[union-attr]
        found = layers.setdefault((before, after) if before and number else ("", name), [])
        found.extend([int(number)] if before and number else [])
    return ", ".join(f"{before}{_ranges(at)}{after}" for (before, after), at in layers.items())


def _ranges(numbers: list[int]) -> str:
    """Return ascending numbers as text: {0..3,7}; one alone as it is."""
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and runs[-1][-1] == n - 1:
            runs[-1][1:] = [n]
        else:
            runs.append([n])
    text = ",".join("..".join(map(str, run)) for run in runs)
    return text if len(numbers) < 2 else f"{{{text}}}"


def _equal(file: str, key: str, other_file: str, other_key: str) -> bool:
    """Return whether two tensors of files are equal, reading some rows at a time."""
    safe_open = _peer("safetensors").safe_open
    with safe_open(file, framework="pt") as first, safe_open(other_file, framework="pt") as second:
        a, b = first.get_slice(key), second.get_slice(other_key)
        if a.get_dtype() != b.get_dtype():
            return False
        rows = range(0, a.get_shape()[0], ROWS)
        return all(torch.equal(a[at : at + ROWS], b[at : at + ROWS]) for at in rows)


# --- loading ---------------------------------------------------------------------------------------------


def dtype_of(found: Checkpoint) -> torch.dtype:
    """Return the dtype of a model whose caller names none, bf16; warn of f16 weights, which lose bits."""
    names = [name for name, stored in found.tensors.items() if stored.dtype == "F16"]
    if names:
        warnings.warn(
            f"{found.path}: {len(names)} of {len(found.tensors)} tensors are float16, and are rounded to "
            "bfloat16, which has 8 of their 11 bits: pass dtype=torch.float16 to keep them, or "
            "dtype=torch.bfloat16 to round them without this warning",
            stacklevel=3,
        )
    return torch.bfloat16


def load_tensors(
    parameters: Mapping[str, torch.Tensor],
    found: Checkpoint,
    sources: Mapping[str, str],
    cuts: Mapping[str, tuple[slice, ...]] | None = None,
) -> None:
    """Copy tensors into the parameters of a model, file by file, cast to their dtype.

    parameters, sources: as of `check_tensors`. cuts: by parameter, the part of a tensor that is read; others
    are read whole. Raises LaunchError for weights that the dtype cannot hold.
    """
    safe_open = _peer("safetensors").safe_open
    by_file: dict[str, list[str]] = {}
    for name, key in sources.items():
        by_file.setdefault(found.tensors[key].file, []).append(name)
    beyond = []
    for file, names in by_file.items():
        with safe_open(file, framework="pt") as opened, torch.no_grad():
            for name in names:
                given, parameter = _part(opened, sources[name], (cuts or {}).get(name)), parameters[name]
                parameter.copy_(given)
                # f16 ends at 65504; infinities of the checkpoint itself are left
                if parameter.dtype is torch.float16 and given.dtype is not torch.float16:
                    if not bool((torch.isfinite(parameter).to(given.device) | ~torch.isfinite(given)).all()):
                        beyond.append(name)
    if beyond:
        got, wanted = "values beyond those of float16", "dtype=torch.bfloat16 for this checkpoint"
        name = _listed(beyond)
        raise LaunchError(Code.CHECKPOINT_DTYPE, path=found.path, name=name, got=got, wanted=wanted)


def _part(opened: Any, key: str, cut: tuple[slice, ...] | None) -> torch.Tensor:
    """Return a tensor of an open file, or the part of it that is asked for."""
    found: torch.Tensor = opened.get_tensor(key) if cut is None else opened.get_slice(key)[cut]
    return found


# --- writing ---------------------------------------------------------------------------------------------


def write_checkpoint(
    folder: str | os.PathLike[str],
    config: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    max_shard_size: int | str,
) -> None:
    """Write tensors and config.json into a folder, as transformers lays them out; older ones are replaced.

    max_shard_size: bytes of a file's tensors, or "5GB"; a tensor that is larger has a file of its own.
    """
    save_file = _peer("safetensors.torch").save_file
    most = _bytes_of(max_shard_size)
    at = Path(folder)
    if at.exists() and not at.is_dir():
        raise LaunchError(
            Code.ARG_VALUE, op="save_pretrained", name="folder", value=str(at), wanted="a folder"
        )
    at.mkdir(parents=True, exist_ok=True)
    shards = _shards(tensors, most)
    names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    if len(shards) == 1:
        names = [SINGLE]
    for name, keys in zip(names, shards, strict=True):
        save_file(
            {key: tensors[key].detach().contiguous() for key in keys},
            at / f"{name}.part",
            metadata={"format": "pt"},
        )
    for old in at.iterdir():  # before the new ones have their names: a reader takes SINGLE first
        if old.name in (SINGLE, INDEX) or SHARD.fullmatch(old.name):
            old.unlink()
    for name in names:
        os.replace(at / f"{name}.part", at / name)
    if len(shards) > 1:
        total = sum(t.numel() * t.element_size() for t in tensors.values())
        held = {key: name for name, keys in zip(names, shards, strict=True) for key in keys}
        _write_json(at / INDEX, {"metadata": {"total_size": total}, "weight_map": held})
    _write_json(at / CONFIG, config)


def written_config(raw: Mapping[str, Any], config: ModelConfig, dtype: torch.dtype) -> dict[str, Any]:
    """Return config.json of a model: as it was read, with its leaves and its dtype."""
    made = {name: value for name, value in raw.items() if name != "torch_dtype"}
    if not made.get("architectures"):
        made["architectures"] = [ARCHITECTURES[config.model_type]]
    return {**made, "dtype": str(dtype).removeprefix("torch."), LEAVES: config.leaves}


def config_of(given: object | None, config: ModelConfig) -> Mapping[str, Any]:
    """Return a config of transformers, or its dict, as config.json is to hold it; None: `config.source`.

    Raises LaunchError for a config that transformers would read as that of another model.
    """
    if given is None and config.source is None:
        why = (
            "for a ModelConfig that ModelConfig.of did not make: pass a config of transformers of the "
            f"model_type {config.model_type!r}, such as config=transformers.AutoConfig.for_model(...)"
        )
        raise LaunchError(Code.ARG_MISSING, op="save_pretrained", name="config", why=why)
    if given is None or isinstance(given, Mapping):
        # what `ModelConfig.of` takes as given where a dict leaves it out, and classes of transformers do not
        taken = {
            "head_dim": config.head_dim,
            "num_key_value_heads": config.num_key_value_heads,
            "tie_word_embeddings": config.tie_word_embeddings,
        }
        made = dict(config.source if given is None else given)  # type: ignore[arg-type]
        made |= {name: value for name, value in taken.items() if made.get(name) is None}
    elif hasattr(given, "to_json_string"):
        made = json.loads(given.to_json_string())
    else:
        wanted = "config of transformers, or its dict"
        raise wrong_type("save_pretrained", "config", given, wanted)
    found = ModelConfig.of(_with_defaults(made), leaves=config.leaves)
    if found != config:
        compared = (f.name for f in fields(config) if f.compare)
        other = ", ".join(n for n in compared if getattr(found, n) != getattr(config, n))
        value = "that of ModelConfig.of" if given is None else type(given).__name__
        wanted = f"a config of this model: transformers reads another {other} in it"
        raise LaunchError(Code.ARG_VALUE, op="save_pretrained", name="config", value=value, wanted=wanted)
    return made


def _with_defaults(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a config with the defaults of transformers' class; as it is where transformers is absent."""
    try:
        from transformers import AutoConfig
    except ImportError:
        return raw
    known = type(AutoConfig.for_model(raw["model_type"])) if raw.get("model_type") in ARCHITECTURES else None
    if known is None:
        return raw
    made: Mapping[str, Any] = known.from_dict(dict(raw)).to_dict()
    return made


def _shards(tensors: Mapping[str, torch.Tensor], most: int) -> list[list[str]]:
    """Cut names into runs, in order, of at most so many bytes."""
    shards: list[list[str]] = [[]]
    size = 0
    for key, tensor in tensors.items():
        more = tensor.numel() * tensor.element_size()
        if shards[-1] and size + more > most:
            shards.append([])
            size = 0
        shards[-1].append(key)
        size += more
    return shards


def _bytes_of(size: int | str) -> int:
    if isinstance(size, str) and (found := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]i?B)\s*", size, re.I)):
        return int(float(found[1]) * UNITS[found[2].upper()])
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    wanted = 'a number of bytes, or one with a unit, such as "5GB"'
    raise LaunchError(Code.ARG_VALUE, op="save_pretrained", name="max_shard_size", value=size, wanted=wanted)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _unreadable(path: str, what: str, instead: str) -> LaunchError:
    return LaunchError(Code.CHECKPOINT_FILE, path=path, what=what, instead=instead)


def _peer(name: str) -> Any:
    """Import a package that only checkpoints need."""
    try:
        return __import__(name, fromlist=["_"])
    except ImportError as error:
        peer = name.partition(".")[0]
        raise UnsupportedError(Code.PEER_ABSENT, peer=peer, versions=VERSIONS[peer]) from error
