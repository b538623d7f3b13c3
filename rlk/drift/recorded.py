"""Recorded rollouts as an engine: safetensors files of the format of `rlk.drift.writers`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch

from rlk.drift.digests import Digest
from rlk.drift.engine import Facts, Scores, Sequences, Watch
from rlk.drift.writers import DTYPES
from rlk.errors import Code, LaunchError

FORMAT, VERSION = "rlk.drift", "2"
NEEDED = {"ids": torch.int64, "cu_seqlens": torch.int64, "logps": torch.float32, "sampled": torch.bool}
OPTIONAL = {"positions": torch.int64, "context": torch.int64}


class Recorded:
    """A file of recorded tokens and log-probs: `recorded:FILE`. It has no modules."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read and check a file. Raises LaunchError: missing, of another format or version, inconsistent."""
        self.path = os.fspath(path)
        self.name = f"recorded:{self.path}"
        self._tensors, self._texts = _read(self.path)
        self.sequences = Sequences(self._tensors["ids"], self._tensors["cu_seqlens"])

    def facts(self) -> Facts:
        """Return the settings of the file's metadata."""
        texts = self._texts
        known = {n: texts[n] for n in ("dtype", "logits_dtype", "stage", "padding") if n in texts}
        try:
            return Facts(
                **known,  # type: ignore[arg-type]
                temperature=float(texts["temperature"]) if "temperature" in texts else None,
                vocabulary=int(texts["vocabulary"]) if "vocabulary" in texts else None,
                special=json.loads(texts.get("special", "{}")),
                weights=json.loads(texts.get("weights", "{}")),
            )
        except (ValueError, TypeError) as error:
            raise _bad(self.path, f"metadata cannot be read: {error}") from None

    def score(self, sequences: Sequences, watch: Watch) -> Scores:
        """Return the recorded log-probs; the tokens are those of the file."""
        t = self._tensors
        names = ("bits", "entropy", "top", "sketch")
        held = all(f"digest.{name}" in t for name in names)
        known = t["sampled"] | ~t["logps"].isnan()
        return Scores(
            self.sequences, t["logps"], known, t.get("positions"), t.get("context"),
            Digest(*(t[f"digest.{name}"] for name in names)) if held else None,
        )  # fmt: skip

    def modules(self) -> Mapping[str, torch.nn.Module]:
        """Return no modules."""
        return {}


def save_scores(path: str | os.PathLike[str], engine: str, facts: Facts, scores: Scores) -> None:
    """Write an engine's scores as a recorded rollout, with the checksums of its weights."""
    from safetensors.torch import save_file

    found = {"ids": scores.tokens.ids, "cu_seqlens": scores.tokens.cu_seqlens, "context": scores.context}
    found |= {"positions": scores.positions, "sampled": scores.known}
    found |= {"logps": torch.where(scores.known, scores.logps, torch.nan)}
    if scores.digest is not None:
        d = scores.digest
        found |= {"digest.bits": d.bits, "digest.entropy": d.entropy, "digest.top": d.top}
        found |= {"digest.sketch": d.sketch}
    texts = {n: getattr(facts, n) for n in ("dtype", "logits_dtype", "temperature", "stage", "padding")}
    texts |= {"vocabulary": facts.vocabulary}
    made = {name: str(value) for name, value in texts.items() if value is not None}
    made |= {"special": json.dumps(dict(facts.special)), "weights": json.dumps(dict(facts.weights))}
    tensors = {name: x.contiguous().cpu() for name, x in found.items() if x is not None}
    save_file(tensors, path, {"format": FORMAT, "version": VERSION, "engine": engine, **made})


def _read(path: str) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise _bad(path, "there is no such file", "give a file that rlk.drift.writers wrote")
    try:
        with safe_open(path, "pt") as file:
            texts = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except (SafetensorError, OSError) as error:
        raise _bad(path, f"no safetensors file: {error}") from None
    if texts.get("format") != FORMAT:
        raise _bad(path, f"format is {texts.get('format')!r}, expected {FORMAT!r}")
    if texts.get("version") != VERSION:
        raise _bad(
            path, f"version is {texts.get('version')!r}, expected {VERSION!r}", "use an rlk that knows it"
        )
    for name in ("dtype", "logits_dtype"):
        if texts.get(name, DTYPES[0]) not in DTYPES:
            raise _bad(path, f"{name} is {texts[name]!r}, expected one of {', '.join(DTYPES)}")
    if missing := [name for name in NEEDED if name not in tensors]:
        raise _bad(path, f"tensor {missing[0]} is missing")
    for name, dtype in {**NEEDED, **OPTIONAL}.items():
        if name not in tensors:
            continue
        if tensors[name].dtype != dtype or tensors[name].dim() != 1:
            found = f"{tensors[name].dtype} of {tensors[name].dim()} dims"
            raise _bad(path, f"tensor {name} is {found}, expected {dtype} of 1 dim")
    if len(tensors["ids"]) and int(tensors["ids"].min()) < 0:
        raise _bad(path, f"ids has {int(tensors['ids'].min())}, expected ids from 0 on")
    cu, count = tensors["cu_seqlens"], len(tensors["ids"])
    if len(cu) < 2 or cu[0] != 0 or cu[-1] != count or bool((cu.diff() <= 0).any()):
        raise _bad(path, f"cu_seqlens do not ascend from 0 to the {count} ids")
    for name, x in tensors.items():
        if name != "cu_seqlens" and len(x) != count:
            raise _bad(path, f"tensor {name} has {len(x)} rows, but there are {count} ids")
    return tensors, texts


def _bad(path: str, what: str, instead: str = "write it anew with rlk.drift.writers") -> LaunchError:
    return LaunchError(Code.DRIFT_FILE, path=path, what=what, instead=instead)
