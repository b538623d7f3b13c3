"""Writers of recorded rollouts, to copy into a program without rlk: they need NumPy and safetensors alone.

A record is a safetensors file of packed sequences, prompt and completion of each behind each other:

| tensor | dtype, shape | |
|---|---|---|
| `ids` | int64 [T] | tokens, in the order in which the model read them |
| `cu_seqlens` | int64 [B + 1] | offsets of the sequences |
| `logps` | float32 [T] | log p(ids[t] given the ids before t); NaN where the engine returned none |
| `sampled` | bool [T] | tokens that the engine sampled, each of which must have a log-prob |
| `positions` | int64 [T] | optional: positions of the rotary embedding, where they were observed |
| `context` | int64 [T] | optional: the number of keys that each token sees, its own included |
| `digest.bits` | int64 [T] | optional, as the next three: `rlk.drift.Digest` of each token's distribution |
| `digest.entropy`, `digest.top` | float32 [T] | |
| `digest.sketch` | float32 [T, 16] | |

Its metadata are texts: `format` ("rlk.drift"), `version` ("2"), `engine`, and, where known, `temperature`,
`stage` ("logits", "log-probs" or "none": where the temperature divides), `dtype`, `logits_dtype`, `padding`,
`vocabulary`, and `special` and `weights` as JSON (ids by name; the `hex` of `rlk.sync.digest` by name).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy
from safetensors.numpy import save_file

NONE, INFINITY = float("nan"), float("inf")
DTYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
"""Names of dtypes; a writer takes them with "torch." before, too."""


def write_rollouts(
    path: str,
    engine: str,
    sequences: Iterable[tuple[Sequence[int], Sequence[float]]],
    *,
    sampled: Iterable[Sequence[Any]] | None = None,
    positions: Iterable[Sequence[int]] | None = None,
    **settings: Any,
) -> None:
    """Write sequences: ids of prompt and completion, and as many log-probs, NaN where there is none.

    sampled: for each token whether the engine sampled it; without it, all but the first of each sequence.
    positions: those that the engine gave its model; without them they are not compared.
    settings: temperature=, stage=, dtype= and the other metadata of the format. Raises ValueError.
    """
    try:
        rows = [([int(i) for i in ids], [float(x) for x in logps]) for ids, logps in sequences]
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"sequences: give a pair for each, its ids and as many log-probs ({error})"
        ) from error
    for number, (ids, logps) in enumerate(rows):
        if not ids or len(ids) != len(logps):
            raise ValueError(f"sequence {number} has {len(ids)} ids and {len(logps)} log-probs")
    if not rows:
        raise ValueError("there is no sequence to write")
    counted = None if positions is None else list(positions)
    if counted is not None and [len(p) for p in counted] != [len(ids) for ids, _ in rows]:
        raise ValueError("positions and ids have different lengths")
    drawn = [[False] + [True] * (len(ids) - 1) for ids, _ in rows] if sampled is None else list(sampled)
    if [len(s) for s in drawn] != [len(ids) for ids, _ in rows]:
        raise ValueError("sampled and ids have different lengths")
    tensors = {
        "ids": numpy.array([i for ids, _ in rows for i in ids], numpy.int64),
        "cu_seqlens": numpy.cumsum([0, *(len(ids) for ids, _ in rows)], dtype=numpy.int64),
        "logps": numpy.array([x for _, logps in rows for x in logps], numpy.float32),
        "sampled": numpy.array([bool(s) for each in drawn for s in each], numpy.bool_),
    }
    if counted is not None:
        tensors["positions"] = numpy.array([int(p) for each in counted for p in each], numpy.int64)
    texts = {name: _text(name, value) for name, value in settings.items() if value is not None}
    save_file(tensors, path, {"format": "rlk.drift", "version": "2", "engine": engine, **texts})


def write_vllm(path: str, outputs: Iterable[Any], **settings: Any) -> None:
    """Write what `LLM.generate` of vLLM returned: RequestOutputs with `logprobs=0` or more.

    Log-probs of the prompt are written where `prompt_logprobs=` was given. vLLM's `logprobs_mode` says
    whether a temperature is in them: "raw_logprobs" (its default) has none, "processed_logprobs" has.
    """
    rows, sampled = [], []
    for output in outputs:
        prompt = list(output.prompt_token_ids)
        given = output.prompt_logprobs or [None] * len(prompt)
        before = [NONE if at is None else at[i].logprob for i, at in zip(prompt, given)]
        for made in output.outputs:
            ids = list(made.token_ids)
            if made.logprobs is None:
                raise ValueError("no log-probs: generate with SamplingParams(logprobs=0)")
            after = [at[i].logprob for i, at in zip(ids, made.logprobs)]
            rows.append((prompt + ids, before + after))
            sampled.append([False] * len(prompt) + [True] * len(ids))
    write_rollouts(path, "vllm", rows, sampled=sampled, **settings)


def write_sglang(
    path: str, prompts: Iterable[Sequence[int]], outputs: Iterable[Any], **settings: Any
) -> None:
    """Write what `Engine.generate` of SGLang returned for ids of prompts, with `return_logprob=True`.

    Log-probs of the prompt are written where `logprob_start_len=0` was given.
    """
    rows, sampled = [], []
    for prompt, output in zip(prompts, outputs, strict=True):
        meta = output["meta_info"]
        made = meta["output_token_logprobs"]  # (log-prob, id, text or None) each
        given = {len(prompt): meta.get("input_token_logprobs")}.get(
            len(meta.get("input_token_logprobs") or ())
        )
        before = [NONE if x[0] is None else x[0] for x in given] if given else [NONE] * len(prompt)
        rows.append(
            ([*prompt, *(x[1] for x in made)], [*before, *(NONE if x[0] is None else x[0] for x in made)])
        )
        sampled.append([False] * len(prompt) + [True] * len(made))
    write_rollouts(path, "sglang", rows, sampled=sampled, **settings)


def write_trl(path: str, output: Mapping[str, Any], **settings: Any) -> None:
    """Write a rollout of TRL: a mapping with `prompt_ids`, `completion_ids` and `logprobs`, a list each.

    That is what a `rollout_func` returns. Where TRL has several log-probs of a place, the largest first,
    `logprob_token_ids` says which is the sampled one's. Or the padded tensors of a GRPOTrainer's batch, with
    `sampling_per_token_logps` (else `old_per_token_logps`), `prompt_mask` and `completion_mask`. Tokens of
    tools, where `tool_mask` (`env_mask` of a `rollout_func`) is 0, have no log-prob: TRL fills in zeros.
    """
    drawn = output.get("tool_mask")
    drawn = output.get("env_mask") if drawn is None else drawn
    if "prompt_mask" in output:
        padded = output.get("sampling_per_token_logps")
        padded = output["old_per_token_logps"] if padded is None else padded
        prompts = _unpadded(output["prompt_ids"], output["prompt_mask"])
        completions = _unpadded(output["completion_ids"], output["completion_mask"])
        logps = _unpadded(padded, output["completion_mask"])
        drawn = None if drawn is None else _unpadded(drawn, output["completion_mask"])
    else:
        prompts, completions, logps = output["prompt_ids"], output["completion_ids"], output["logprobs"]
    named = output.get("logprob_token_ids") or [None] * len(prompts)
    drawn = [[1] * len(ids) for ids in completions] if drawn is None else drawn
    rows, sampled = [], []
    for prompt, ids, found, names, own in zip(prompts, completions, logps, named, drawn, strict=True):
        each = [
            _sampled(found[t], ids[t], None if names is None else names[t]) if own[t] else NONE
            for t in range(len(ids))
        ]
        rows.append(([*prompt, *ids], [NONE] * len(prompt) + each))
        sampled.append([False] * len(prompt) + list(own))
    write_rollouts(path, "trl", rows, sampled=sampled, **settings)


def write_verl(path: str, data: Any, **settings: Any) -> None:
    """Write a DataProto of verl, or its batch: prompts, responses, attention_mask and rollout_log_probs.

    position_ids are written as they are. Of a response, tokens count where attention_mask is 1. Those of
    tools, where response_mask is 0, have no log-prob: verl fills in zeros.
    """
    batch = getattr(data, "batch", data)
    width = batch["responses"].shape[1]
    exists = _rows(batch["attention_mask"])
    ids = _rows(batch["input_ids"])
    places = _rows(batch["position_ids"])
    found = _rows(batch["rollout_log_probs"])
    drawn = batch.get("response_mask")
    drawn = [mask[-width:] for mask in exists] if drawn is None else _rows(drawn)
    rows, sampled, positions = [], [], []
    for mask, row, at, logps, own in zip(exists, ids, places, found, drawn, strict=True):
        every = [NONE] * (len(row) - width) + [x if flag else NONE for x, flag in zip(logps, own)]
        keep = [i for i, flag in enumerate(mask) if flag]
        own = [0] * (len(row) - width) + list(own)
        rows.append(([row[i] for i in keep], [every[i] for i in keep]))
        sampled.append([own[i] for i in keep])
        positions.append([at[i] for i in keep])
    write_rollouts(path, "verl", rows, sampled=sampled, positions=positions, **settings)


def _text(name: str, value: Any) -> str:
    """Return a setting as metadata; raise ValueError for a name or value that the format does not have."""
    if name not in SETTINGS:
        raise ValueError(f"{name} is no setting, expected one of {', '.join(SETTINGS)}")
    if name in ("dtype", "logits_dtype"):
        value = str(value).removeprefix("torch.")
    fits, wanted = SETTINGS[name]
    if not fits(value):
        raise ValueError(f"{name} is {value!r}, expected {wanted}")
    return json.dumps(dict(value), default=int) if isinstance(value, Mapping) else str(value)


def _among(*choices: str) -> tuple[Callable[[Any], bool], str]:
    return lambda value: value in choices, f"one of {', '.join(choices)}"


def _whole(value: Any) -> bool:
    return isinstance(value, (int, numpy.integer)) and not isinstance(value, bool) and value >= 0


def _above_zero(value: Any) -> bool:
    return (
        isinstance(value, (int, float, numpy.number)) and not isinstance(value, bool) and 0 < value < INFINITY
    )


def _maps_to(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, Mapping)
        and all(isinstance(name, str) and fits(each) for name, each in value.items())
    )


SETTINGS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "temperature": (_above_zero, "a number above 0"),
    "stage": _among("logits", "log-probs", "none"),
    "dtype": _among(*DTYPES),
    "logits_dtype": _among(*DTYPES),
    "padding": _among("none", "left", "right"),
    "vocabulary": (_whole, "a whole number"),
    "special": (_maps_to(_whole), "ids by name"),
    "weights": (_maps_to(lambda value: isinstance(value, str)), "hex digits by name"),
}
"""The settings of a record: whether a value fits, and what is expected."""


def _sampled(logps: Any, token: int, names: Sequence[int] | None) -> float:
    """Return the log-prob of a token among those of a place."""
    if not isinstance(logps, (list, tuple)):
        return NONE if logps is None else float(logps)
    if names is None and len(logps) > 1:
        raise ValueError("several log-probs of a token need logprob_token_ids")
    found = logps[0 if names is None else list(names).index(token)]
    return NONE if found is None else float(found)


def _rows(x: Any) -> list[list[Any]]:
    """Return a tensor's or an array's rows as lists."""
    return x.tolist() if hasattr(x, "tolist") else [list(row) for row in x]


def _unpadded(x: Any, mask: Any) -> list[list[Any]]:
    """Return each row's elements where a mask is not 0."""
    return [
        [v for v, flag in zip(row, keep) if flag] for row, keep in zip(_rows(x), _rows(mask), strict=True)
    ]
