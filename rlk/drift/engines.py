"""Engines by name: transformers, `rlk.nn` and `rlk.patch`; vLLM and records, of modules of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from rlk import ops
from rlk.drift import vllm_engine
from rlk.drift.digests import Digest, weight_checksums
from rlk.drift.engine import Facts, Padding, Scores, Sequences, Watch
from rlk.drift.options import PLAIN, Options, dtype_name, groups_of, special_ids
from rlk.errors import Code, LaunchError, UnsupportedError
from rlk.integrations.patching import patch
from rlk.nn import CausalLM
from rlk.observe import hooked, positions_of

ROWS = 512  # of logits at a time, whose log-probs over the vocabulary are made


class Collected:
    """Log-probs and digests of tokens, filled in forward by forward."""

    def __init__(self, sequences: Sequences, options: Options) -> None:
        self.tokens, count = sequences, len(sequences.ids)
        self.temperature, digest = options.temperature, options.digest
        self.logps = torch.full((count,), torch.nan)
        self.next_ids, self.has_next, self.digest = sequences.next_ids, sequences.has_next, digest
        self._digests: list[Digest] = []
        self._order: list[torch.Tensor] = []

    def take(self, rows: torch.Tensor, logits: torch.Tensor, log_probs: Any, watch: Watch) -> None:
        """Take the log-probs of the tokens behind those of some rows of logits [N, V]; rows: int64 [N]."""
        keep = self.has_next[rows]
        rows, logits = rows[keep], logits[keep.to(logits.device)]
        for at, z in zip(rows.split(ROWS), logits.split(ROWS), strict=True):
            if not len(at):
                continue
            watch.rows(at)
            made = watch.call("log_probs", partial(log_probs, ids=self.next_ids[at].to(z.device)), z)
            self.logps[at + 1] = made.float().cpu()
            if self.digest:
                self._order.append(at)
                self._digests.append(Digest.of(z.float(), self.temperature))

    def scores(self, positions: torch.Tensor | None, context: torch.Tensor | None) -> Scores:
        """Return the scores of all tokens."""
        digest = None
        if self._order:
            order, found = torch.cat(self._order), Digest.cat(self._digests)
            digest = Digest(*(_spread(x.cpu(), order, len(self.logps)) for x in
                              (found.bits, found.entropy, found.top, found.sketch)))  # fmt: skip
        return Scores(self.tokens, self.logps, self.tokens.places > 0, positions, context, digest)


def _spread(x: torch.Tensor, rows: torch.Tensor, count: int) -> torch.Tensor:
    return x.new_zeros(count, *x.shape[1:]).index_copy(0, rows, x)


# --- transformers -------------------------------------------------------------------------------------------


class Transformers:
    """A causal language model of transformers, or any module that is called and built like one.

    Its first parameters are called as `model(input_ids=, attention_mask=, position_ids=, past_key_values=,
    use_cache=)`; it returns an object with `logits` [B, L, V].
    """

    padding_id = 0

    def __init__(
        self, model: Any, options: Options = PLAIN, name: str = "transformers", special: Any = None
    ) -> None:
        self.model, self.options, self.name = model, options, name
        self.special = dict(special or {})
        self._logits_dtype: str | None = None

    @property
    def variants(self) -> dict[str, Transformers]:
        """Return the engine without one of its options, by the name of the trigger."""
        made = self.options.without()
        return {trigger: type(self)(self.model, options, self.name) for trigger, options in made.items()}

    def facts(self) -> Facts:
        """Return the engine's settings; the logits' dtype is that of the last call. Digests all weights."""
        return replace(self.settings(), weights=weight_checksums(self.model))

    def settings(self) -> Facts:
        """Return the facts but the checksums of weights."""
        at = self.options
        single = at.batch == 1
        padding: Padding = "none" if single else at.side
        return Facts(
            dtype=dtype_name(next(self.model.parameters()).dtype),
            logits_dtype=self._logits_dtype,
            temperature=at.temperature,
            stage="none" if at.temperature == 1.0 else "logits",
            padding=padding,
            vocabulary=getattr(self.model.config, "vocab_size", None),
            special=self.special or special_ids(self.model.config),
        )

    def modules(self) -> Mapping[str, torch.nn.Module]:
        """Return the model's modules by name."""
        return dict(self.model.named_modules())

    @torch.no_grad()
    def score(self, sequences: Sequences, watch: Watch) -> Scores:
        """Score sequences, padded into batches; in chunks over a cache where the options say so."""
        made = Collected(sequences, self.options)
        seen = Consumed(len(sequences.ids))
        with hooked([("", self.model)], before=seen.read):  # after all other hooks of it
            for group in groups_of(sequences, self.options.batch):
                self._group(sequences, group, made, seen, watch)
        return made.scores(seen.positions, seen.context)

    def _group(
        self, sequences: Sequences, group: range, made: Collected, seen: Consumed, watch: Watch
    ) -> None:
        device = next(self.model.parameters()).device
        ids, rows = padded(sequences, group, self.options.side, self.padding_id)
        mask = (rows >= 0).to(torch.int64)
        positions = positions_of(mask)
        longest, chunk = ids.shape[1], self.options.chunk or ids.shape[1]
        cache = None if self.options.chunk is None else self._cache()
        for first in range(0, longest, chunk):
            end = min(first + chunk, longest)
            flat = rows[:, first:end].flatten()
            watch.rows(flat)
            seen.rows, seen.first = rows[:, first:end], first
            out = self.model(
                input_ids=ids[:, first:end].to(device),
                attention_mask=mask[:, :end].to(device),
                position_ids=positions[:, first:end].to(device),
                past_key_values=cache,
                use_cache=cache is not None,
            )
            self._logits_dtype = dtype_name(out.logits.dtype)
            exists = flat >= 0
            made.take(flat[exists], out.logits.flatten(0, 1)[exists.to(device)], self.log_probs, watch)

    def _cache(self) -> Any:
        from transformers import DynamicCache

        return DynamicCache()

    def log_probs(self, logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Return log-probs f32 [N] of ids [N], of logits [N, V] divided by the temperature."""
        z = logits.float() / self.options.temperature
        return torch.log_softmax(z, -1).gather(-1, ids[:, None])[:, 0]


class Consumed:
    """The positions and the mask with which a model of transformers is called, of each token."""

    def __init__(self, count: int) -> None:
        self.positions = torch.full((count,), -1)
        self.context = torch.full((count,), -1)
        self.rows, self.first = torch.zeros(1, 0, dtype=torch.int64), 0

    def read(self, name: str, module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        """Read the arguments of a call."""
        exists, length = self.rows >= 0, self.rows.shape[1]
        at = kwargs.get("position_ids")
        columns = torch.arange(self.first, self.first + length).expand_as(self.rows)
        positions = columns if at is None else at.cpu().expand_as(self.rows)
        mask = kwargs.get("attention_mask")
        if mask is None:
            context = columns + 1
        elif mask.dim() == 2:
            context = (mask != 0).cpu().cumsum(1)[:, self.first : self.first + length]
        else:  # added to scores, or whether a key is seen
            sees = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
            context = sees.cpu().sum(-1)[:, 0]
        self.positions[self.rows[exists]] = positions[exists].to(torch.int64)
        self.context[self.rows[exists]] = context[exists].to(torch.int64)


def padded(
    sequences: Sequences, group: range, side: str, padding_id: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids [B, L] of some sequences, and the numbers of their tokens [B, L], -1 at padding."""
    lengths = [sequences.lengths[i] for i in group]
    longest = max(lengths)
    rows = torch.full((len(group), longest), -1)
    for row, i, n in zip(rows, group, lengths, strict=True):
        first = int(sequences.cu_seqlens[i])
        place = slice(longest - n, longest) if side == "left" else slice(0, n)
        row[place] = torch.arange(first, first + n)
    ids = torch.where(rows >= 0, sequences.ids[rows.clamp(min=0)], padding_id)
    return ids, rows


# --- rlk ----------------------------------------------------------------------------------------------------


class Patched(Transformers):
    """A model of transformers that `rlk.patch` computes."""

    def __init__(
        self, model: Any, options: Options = PLAIN, name: str = "rlk.patch", special: Any = None
    ) -> None:
        super().__init__(model, options, name, special)

    def log_probs(self, logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Return log-probs by `rlk.ops.logp`."""
        return rlk_log_probs(logits, ids, self.options.temperature)


def rlk_log_probs(logits: torch.Tensor, ids: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return log-probs f32 [N] of ids [N] by `rlk.ops.logp`."""
    made = ops.logp(logits, ids, temperature=temperature).logp
    assert made is not None
    return made


class Nn:
    """A model of `rlk.nn`: packed sequences, or pages of a cache where the options have a chunk or a page."""

    def __init__(
        self, model: CausalLM, options: Options = PLAIN, name: str = "rlk.nn", special: Any = None
    ) -> None:
        self.model, self.options, self.name, self.special = model, options, name, dict(special or {})

    @property
    def variants(self) -> dict[str, Nn]:
        """Return the engine without one of its options, by the name of the trigger."""
        made = {k: v for k, v in self.options.without().items() if k != "padding"}
        return {
            trigger: Nn(self.model, options, self.name, self.special) for trigger, options in made.items()
        }

    def facts(self) -> Facts:
        """Return the engine's settings. Digests all weights."""
        return replace(self.settings(), weights=weight_checksums(self.model))

    def settings(self) -> Facts:
        """Return the facts but the checksums of weights."""
        return Facts(
            dtype=dtype_name(self.model.lm_head.weight.dtype),
            logits_dtype="float32",
            temperature=self.options.temperature,
            stage="none" if self.options.temperature == 1.0 else "logits",
            padding="none",
            vocabulary=self.model.config.vocab_size,
            special=self.special or special_ids(_Attributes(self.model.source or {})),
        )

    def modules(self) -> Mapping[str, torch.nn.Module]:
        """Return the model's modules by name."""
        return dict(self.model.named_modules())

    @torch.no_grad()
    def score(self, sequences: Sequences, watch: Watch) -> Scores:
        """Score sequences in packed calls, or chunk by chunk through pages."""
        made = Collected(sequences, self.options)
        paged = self.options.chunk is not None or self.options.page is not None
        run = self._paged if paged else self._packed
        for group in groups_of(sequences, self.options.batch):
            run(sequences, group, made, watch)
        return made.scores(None, None)  # offsets and pages say both, and nothing returns them

    def _packed(self, sequences: Sequences, group: range, made: Collected, watch: Watch) -> None:
        first, end = (int(sequences.cu_seqlens[i]) for i in (group.start, group.stop))
        rows = torch.arange(first, end)
        offsets = (sequences.cu_seqlens[group.start : group.stop + 1] - first).to(self._device)
        watch.rows(rows)
        layout = ops.Layout.packed(offsets, tokens=len(rows))
        hidden = self.model(sequences.ids[first:end].to(self._device), layout)
        self._head(rows, hidden, made, watch)

    def _paged(self, sequences: Sequences, group: range, made: Collected, watch: Watch) -> None:
        page = self.options.page or 16
        starts = [int(sequences.cu_seqlens[i]) for i in group]
        lengths = [sequences.lengths[i] for i in group]
        columns = max((n + page - 1) // page for n in lengths)
        cache = self.model.cache(len(group) * columns, page)
        order = torch.arange(len(group) * columns).flip(0)  # pages of a sequence are not in their order
        table = order.view(len(group), columns).to(self._device, torch.int32)
        chunk = self.options.chunk or max(lengths)
        for first in range(0, max(lengths), chunk):
            ends = [min(first + chunk, n) for n in lengths]
            some = [i for i, end in enumerate(ends) if end > first]
            rows = torch.cat([torch.arange(starts[i] + first, starts[i] + ends[i]) for i in some])
            counts = torch.tensor([0, *(ends[i] - first for i in some)]).cumsum(0)
            watch.rows(rows)
            hidden = self.model.prefill(
                sequences.ids[rows].to(self._device), cache, table[some],
                self._integers([ends[i] for i in some]), self._integers(counts.tolist()),
            )  # fmt: skip
            self._head(rows, hidden, made, watch)

    def _head(self, rows: torch.Tensor, hidden: torch.Tensor, made: Collected, watch: Watch) -> None:
        watch.rows(rows)
        logits = watch.call("lm_head", self.model.logits, hidden)
        log_probs = partial(rlk_log_probs, temperature=self.options.temperature)
        made.take(rows, logits, log_probs, watch)

    @property
    def _device(self) -> torch.device:
        return self.model.lm_head.weight.device

    def _integers(self, numbers: list[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=self._device)


class _Attributes:
    """The entries of a mapping as attributes."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.__dict__.update(given)


# --- by name ------------------------------------------------------------------------------------------------

MODEL = ("model", "dtype", "batch")
SETTINGS = {
    "transformers": (*MODEL, "device", "temperature", "attn", "side", "chunk"),
    "rlk.patch": (*MODEL, "device", "temperature", "side", "chunk"),
    "rlk.nn": (*MODEL, "device", "temperature", "chunk", "page"),
    "vllm": (*MODEL, "memory", "eager"),
    "recorded": (),
}
"""The settings of each kind of engine."""


def split_name(name: str) -> tuple[str, dict[str, str]]:
    """Return the kind of an engine and its settings: "transformers:attn=eager,chunk=1".

    Raises LaunchError for a kind or a setting that there is not.
    """
    kind, _, rest = name.partition(":")
    if kind not in SETTINGS:
        raise LaunchError(
            Code.DRIFT_ENGINE, name=repr(name), what="unknown", instead=f"write one of {', '.join(SETTINGS)}"
        )
    if kind == "recorded":
        if not rest:
            raise LaunchError(Code.DRIFT_ENGINE, name=name, what="no file", instead="write recorded:FILE")
        return kind, {"file": rest}
    found = {}
    for part in filter(None, rest.split(",")):
        key, sign, value = part.partition("=")
        if key not in SETTINGS[kind] or not sign or not value:
            raise LaunchError(
                Code.DRIFT_ENGINE, name=name, what=f"{part!r} is no setting",
                instead=f"write name=value, with a name of {', '.join(SETTINGS[kind])}",
            )  # fmt: skip
        found[key] = value
    return kind, found


def options_of(name: str, given: Mapping[str, str], temperature: float, digest: bool = True) -> Options:
    """Return the options that settings of an engine name; raise LaunchError for other values."""

    def whole(key: str) -> int | None:
        value = given.get(key)
        if value is None:
            return None
        if not value.isdecimal() or int(value) < 1:
            raise _wrong(name, key, value, "a whole number of at least 1")
        return int(value)

    if (side := given.get("side", "right")) not in ("left", "right"):
        raise _wrong(name, "side", side, "left or right")
    try:
        value = float(given.get("temperature", temperature))
    except ValueError:
        raise _wrong(name, "temperature", given["temperature"], "a number above 0") from None
    if not value > 0:
        raise _wrong(name, "temperature", str(value), "a number above 0")
    return Options(whole("batch"), side, whole("chunk"), whole("page"), value, digest)  # type: ignore[arg-type]


DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True, slots=True)
class Asked:
    """The parts of an engine's name. model: a folder or a name on the hub, None where only the caller knows.

    memory: the share of a device's memory that vLLM takes, None for its default. eager: whether it runs in
    this process, without graphs. file: of a record.
    """

    kind: str
    options: Options
    model: str | None
    dtype: torch.dtype
    device: str
    attention: str | None
    memory: float | None
    file: str = ""
    eager: bool = False


def asked_for(name: str, temperature: float = 1.0) -> Asked:
    """Return what an engine's name asks for; nothing is made. Raises LaunchError for names and settings."""
    kind, given = split_name(name)
    options = options_of(name, given, temperature)
    dtype = given.get("dtype", "bfloat16")
    if dtype not in DTYPES:
        raise _wrong(name, "dtype", dtype, f"one of {', '.join(DTYPES)}")
    device = _device(name, given.get("device", "cuda" if torch.cuda.is_available() else "cpu"))
    memory = _share(name, given["memory"]) if "memory" in given else None
    if (eager := given.get("eager", "0")) not in ("0", "1"):
        raise _wrong(name, "eager", eager, "0 or 1")
    return Asked(
        kind,
        options,
        given.get("model"),
        DTYPES[dtype],
        device,
        given.get("attn"),
        memory,
        given.get("file", ""),
        eager == "1",
    )


@contextmanager
def opened(name: str, model: str | None, temperature: float = 1.0) -> Iterator[Any]:
    """Make an engine of its name, as `rlk drift` does; model: a folder or a name on the Hugging Face hub.

    Raises LaunchError for names and settings, UnsupportedError where a package is missing.
    """
    asked = asked_for(name, temperature)
    if asked.kind == "recorded":
        from rlk.drift.recorded import Recorded

        yield Recorded(asked.file)
        return
    path = model if asked.model is None else asked.model
    if path is None:
        raise LaunchError(Code.DRIFT_ENGINE, name=name, what="no model", instead="give --model PATH")
    with ExitStack() as stack:
        try:
            engine = _build(asked, path, name, stack)
        except (OSError, ValueError, ImportError) as error:  # of transformers and vLLM
            raise _unmade(name, error) from error
        yield engine


def _unmade(name: str, error: Exception) -> LaunchError:
    what = str(error).strip().partition("\n")[0] or type(error).__name__
    instead = "look at --model and the engine's settings"
    return LaunchError(Code.DRIFT_ENGINE, name=name, what=what, instead=instead)


def _share(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise _wrong(name, "memory", text, "a number above 0, at most 1")
    return value


def _device(name: str, device: str) -> str:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    there = ["cpu", *(["cuda"] if count else []), *(f"cuda:{i}" for i in range(count))]
    if device not in there:
        raise _wrong(name, "device", device, f"one of {', '.join(there)}")
    return device


def _build(asked: Asked, path: str, name: str, stack: ExitStack) -> Any:
    kind, options, dtype = asked.kind, asked.options, asked.dtype
    match kind:
        case "rlk.nn":
            return Nn(CausalLM.from_pretrained(path, dtype=dtype, device=asked.device), options, name)
        case "vllm":
            vllm = _imported("vllm", name)
            try:
                llm = vllm_engine.made(vllm, path, dtype, asked.memory, asked.eager)
            except (RuntimeError, AssertionError, NotImplementedError) as error:  # such as no device
                raise _unmade(name, error) from error
            return vllm_engine.Vllm(llm, options, name)
    found = _imported("transformers", name)
    if not os.path.isdir(path) and os.sep in path and path.startswith((".", "/")):
        raise LaunchError(Code.DRIFT_ENGINE, name=name, what=f"no folder {path}", instead="give --model PATH")
    how = {} if asked.attention is None else {"attn_implementation": asked.attention}
    model = found.AutoModelForCausalLM.from_pretrained(path, dtype=dtype, **how).to(asked.device).eval()
    if kind == "rlk.patch":
        stack.enter_context(patch(model))
        return Patched(model, options, name)
    return Transformers(model, options, name)


def _imported(package: str, name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise UnsupportedError(
            Code.DRIFT_ENGINE, name=name, what=f"{package} is not installed", instead=f"pip install {package}"
        ) from None


def _wrong(name: str, key: str, value: str, wanted: str) -> LaunchError:
    return LaunchError(
        Code.DRIFT_ENGINE, name=name, what=f"{key}={value} is not allowed", instead=f"expected {wanted}"
    )
