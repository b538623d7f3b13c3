"""Comparison of two engines operator by operator, each on the other's inputs.

The first engine runs with hooks, which keep inputs and outputs of every module without children, token by
token. The second runs twice: freely, which shows inherited drift, and with every module's input and output
exchanged for the first engine's after it was compared. In that run the input of an operator is what the
first engine gave to its own, so a difference is the operator's. Computations between modules (rotation and
attention, residual sums, the product of gate and up) show as inputs that differ while the outputs before
them were equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

import torch

from rlk.drift.engine import Engine, Scores, Sequences
from rlk.observe import hooked
from rlk.testing.digests import bits_of

Verdict = Literal["rounding", "another function", "changed experts", "not called", "not finite"]
BETWEEN = {
    "self_attn.o_proj": "self_attn.attention",
    "mlp.down_proj": "mlp.gated",
    "input_layernorm": "residual",
    "post_attention_layernorm": "residual",
    "pre_feedforward_layernorm": "residual",
}
"""By the module whose input it makes: the computation before it, within a layer."""
LOGITS = 16.0
"""A size of logits, whose roundings a log-prob has."""
SCORES, WEIGHTS, IDS = range(3)
"""The results of a router, by their place: scores of all experts, weights and ids of the chosen ones."""


@dataclass(slots=True)
class Trace:
    """Inputs and outputs of operators, [T, ...] each, in the order of their first calls."""

    count: int
    order: list[str] = field(default_factory=list)
    inputs: dict[str, torch.Tensor] = field(default_factory=dict)
    outputs: dict[str, torch.Tensor] = field(default_factory=dict)

    def keep(
        self, kept: dict[str, torch.Tensor], name: str, rows: torch.Tensor, end: int, x: torch.Tensor
    ) -> None:
        """Put rows x [N, ...] of tokens `rows`, on its device, all before `end`, into one of all tokens."""
        if name not in kept:
            kept[name] = x.new_zeros(self.count, *x.shape[1:])
        if (more := end - len(kept[name])) > 0:  # the engine read other tokens
            kept[name] = torch.cat((kept[name], x.new_zeros(more, *x.shape[1:])))
        kept[name][rows] = x

    def called(self, name: str) -> None:
        """Note the first call of an operator."""
        if name not in self.order:
            self.order.append(name)


class Recorder:
    """A watch that keeps what passes through the modules of an engine.

    forced: the trace of another engine, which takes the place of each input and output after it was kept.
    within: a part of the names of the only modules that are observed, "" for all of them.
    """

    def __init__(self, engine: Engine, count: int, forced: Trace | None = None, within: str = "") -> None:
        self.engine, self.trace, self.within = engine, Trace(count), within
        self.merged: Mapping[str, Sequence[tuple[str, int]]] = getattr(engine, "merged", {})
        self.given = None if forced is None else forced.inputs
        self.wanted = None if forced is None else forced.outputs
        self.rows(torch.zeros(0, dtype=torch.int64))

    def rows(self, rows: torch.Tensor) -> None:
        """Take the tokens of the next forward."""
        rows = rows.cpu()
        at = (rows >= 0).nonzero().flatten()
        self._count, self._tokens = len(rows), rows[at]
        self._at = None if len(at) == len(rows) else at
        self._end = int(self._tokens.max()) + 1 if len(at) else 0
        self._on: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}

    def _indices(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tokens of the forward and their rows on a device, copied there once a forward."""
        if device not in self._on:
            rows = self._tokens if self._at is None else self._at
            self._on[device] = self._tokens.to(device), rows.to(device)
        return self._on[device]

    def call(
        self, name: str, function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor
    ) -> torch.Tensor:
        """Observe a function of rows as an operator."""
        given = self._seen(name, x, self.trace.inputs, self.given, cast=False)
        made = function(given)
        return self._seen(name, made, self.trace.outputs, self.wanted)

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Hook the engine's modules without children."""
        each = self.engine.modules().items()
        # modules within experts see an expert's rows, which are not those of the call
        leaves = [
            (n, m)
            for n, m in each
            if n and self.within in n and ".experts." not in n and not any(True for _ in m.children())
        ]
        with hooked(leaves, self._after, self._before):
            yield

    def _before(self, name: str, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        self.trace.called(name)
        x = args[0] if args else None
        if not isinstance(x, torch.Tensor) or not x.is_floating_point() or _summing(args, kwargs):
            return None
        x = self._seen(name, x, self.trace.inputs, self.given)
        return (x, *args[1:]), kwargs

    def _after(self, name: str, module: torch.nn.Module, args: Any, kwargs: Any, made: Any) -> Any:
        kept, wanted = self.trace.outputs, self.wanted
        if isinstance(made, torch.Tensor):
            return self._output(name, made)
        if (
            isinstance(made, tuple)
            and len(made) == 2
            and isinstance(made[0], torch.Tensor)
            and made[1] is None
        ):
            return self._output(name, made[0]), None  # vLLM's products, which may leave a bias to others
        if not isinstance(made, tuple) or not all(isinstance(x, torch.Tensor) for x in made):
            return None
        if _routing(made):
            return self._routed(name, made)
        if not _summing(args, kwargs):  # cos and sin of a rotary embedding
            return tuple(self._seen(f"{name}#{i}", x, kept, wanted) for i, x in enumerate(made))
        # rlk's norm of x + residual: its input is the sum, which it returns
        y, total = made
        given = self._seen(name, total, self.trace.inputs, self.given)
        if not same_bits(given, total):
            y = module.forward(given)
        return self._seen(name, y, kept, wanted), given

    def _output(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Observe the result of a module; of a merged product each part."""
        kept, wanted, parts = self.trace.outputs, self.wanted, self.merged.get(name)
        if parts is None:
            return self._seen(name, x, kept, wanted)
        every = zip(parts, x.split([width for _, width in parts], -1), strict=True)
        return torch.cat([self._seen(part, each, kept, wanted) for (part, _), each in every], -1)

    def _routed(self, name: str, made: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Observe scores, weights and ids of a router; weights and ids are kept by ascending id."""
        scores, weights, ids = made
        order = ids.long().argsort(-1)
        back, kept, wanted = order.argsort(-1), self.trace.outputs, self.wanted
        scores = self._seen(f"{name}#{SCORES}", scores, kept, wanted)
        w = self._seen(f"{name}#{WEIGHTS}", weights.gather(-1, order), kept, wanted)
        i = self._seen(f"{name}#{IDS}", ids.gather(-1, order), kept, wanted)
        return scores, w.gather(-1, back), i.gather(-1, back)  # in the engine's own order

    def _seen(
        self, name: str, x: torch.Tensor, kept: dict[str, torch.Tensor],
        forced: Mapping[str, torch.Tensor] | None, cast: bool = True,
    ) -> torch.Tensor:  # fmt: skip
        """Keep the rows of x, and return x with those of another trace in their place.

        cast: in the dtype of x; a module may take no other.
        """
        # models keep padding or drop it
        flat = flattened(x, self._count)
        at = self._at if flat is not None else None
        if flat is None and (flat := flattened(x, len(self._tokens))) is None:
            return x
        self.trace.called(name.partition("#")[0])
        tokens, rows = self._indices(x.device)
        self.trace.keep(kept, name, tokens, self._end, flat if at is None else flat[rows])
        if forced is None or name not in forced:
            return x
        other = forced[name]
        if other.shape[1:].numel() != flat.shape[1:].numel():
            return x
        given = other[self._indices(other.device)[0]].to(x.device, x.dtype if cast else other.dtype)
        if at is None:
            return given.reshape(x.shape)
        made = flat.to(given.dtype, copy=True)
        made[rows] = given.reshape(len(at), *flat.shape[1:])
        return made.reshape(x.shape)


def _summing(args: Any, kwargs: Any) -> bool:
    """Return whether a norm was called with a residual."""
    given = args[1] if len(args) == 2 else kwargs.get("residual")
    return isinstance(given, torch.Tensor) and args[0].is_floating_point() and given.shape == args[0].shape


def _routing(made: tuple[torch.Tensor, ...]) -> bool:
    """Return whether a module returned scores [N, E], weights [N, k] and ids [N, k], as routers do."""
    if len(made) != 3 or any(x.dim() != 2 for x in made):
        return False
    scores, weights, ids = made
    floats = scores.is_floating_point() and weights.is_floating_point()
    integers = ids.dtype in (torch.uint8, torch.int16, torch.int32, torch.int64)
    return floats and integers and weights.shape == ids.shape and ids.shape[1] <= scores.shape[1]


def flattened(x: torch.Tensor, count: int) -> torch.Tensor | None:
    """Return x as [N, ...] of N = `count` tokens, which are its leading dims; None where they are not."""
    if x.dim() == 2 and len(x) == count:
        return x
    for dims in range(1, x.dim() + 1):
        if prod(x.shape[:dims]) == count:
            return x.reshape(count, -1)
    return None


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors have the same dtype, shape and bits."""
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits_of(a), bits_of(b))


# --- one operator ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Difference:
    """An operator of two engines on equal inputs. "changed experts": of a router, by roundings of its scores.

    name: of a module, or of a computation between modules. share: of elements with other bits. relative:
    the largest ||a - b|| / ||a|| of a token. ulps: the largest difference in units of the last place of the
    token's largest element, in the narrower dtype. tokens: how many differ; first: the first of them.
    """

    name: str
    verdict: Verdict
    share: float = 1.0
    relative: float = 0.0
    ulps: float = 0.0
    tokens: int = 0
    first: int = 0


def measured(name: str, a: torch.Tensor, b: torch.Tensor) -> Difference | None:
    """Compare an operator's results [T, ...] on equal inputs; None where all bits are equal."""
    narrow = max((a.dtype, b.dtype), key=lambda d: torch.finfo(d).eps)
    if a.dtype != b.dtype:
        a, b = a.to(narrow), b.to(narrow)
    a, b = a.reshape(len(a), -1), b.reshape(len(b), -1).to(a.device)
    differs = bits_of(a) != bits_of(b)
    differs &= ~((a == 0) & (b == 0))  # signs of zeros
    rows = differs.any(1)
    if not bool(rows.any()):
        return None
    share, first = float(differs.float().mean()), int(rows.nonzero()[0])
    x, y = a[rows].double(), b[rows].double()
    if not bool(y.isfinite().all()) or not bool(x.isfinite().all()):
        finite = torch.equal(x.isfinite(), y.isfinite())
        if not finite:
            return Difference(name, "not finite", share, torch.inf, torch.inf, int(rows.sum()), first)
        x, y = x.nan_to_num(0, 0, 0), y.nan_to_num(0, 0, 0)
    eps = torch.finfo(narrow).eps
    # errors of a log-prob are those of logits, however near to 0 it is
    least = LOGITS if name == "log_probs" else 1e-30
    relative = float(((x - y).norm(dim=1) / x.norm(dim=1).clamp(min=least)).max())
    unit = eps * 2.0 ** x.abs().amax(1).clamp(min=least).log2().floor()
    ulps = float(((x - y).abs().amax(1) / unit).max())
    verdict: Verdict = "rounding" if relative <= rounding_limit(narrow) else "another function"
    return Difference(name, verdict, share, relative, ulps, int(rows.sum()), first)


def rounding_limit(dtype: torch.dtype) -> float:
    """Return the largest relative difference of a token that roundings explain.

    Four units of the last place of its dtype for the roundings within an operator, and 64 of f32 for the
    order of sums.
    """
    return 4 * torch.finfo(dtype).eps + 64 * torch.finfo(torch.float32).eps


# --- routers ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChangedExperts:
    """Tokens for which a router of b chose other experts than a's.

    router: its name. tokens: those, ascending. own: those of them that it changes on a's input too: the
    router is the cause; of the others its input is. gap: the smallest difference, of the tokens, between the
    lowest score that a chose and the highest that it did not, at the token `closest`. total: of all tokens.
    """

    router: str
    tokens: tuple[int, ...]
    own: tuple[int, ...]
    gap: float
    closest: int
    total: int


def changed_experts(first: Trace, free: Trace, forced: Trace) -> Iterator[ChangedExperts]:
    """Yield the routers that choose other experts, in the first engine's order."""
    for name in first.order:
        freely, own = (_changed(name, first, x) for x in (free, forced))
        if freely is None or own is None or not bool((freely | own).any()):
            continue
        tokens = (freely | own).nonzero().flatten()
        mine = first.outputs[f"{name}#{IDS}"][tokens].long()
        scores = first.outputs[f"{name}#{SCORES}"][tokens].double()
        chosen = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, mine, True)
        lowest = scores.masked_fill(~chosen, torch.inf).amin(-1)
        gaps = lowest - scores.masked_fill(chosen, -torch.inf).amax(-1)
        at = int(gaps.argmin())
        each = [x.tolist() for x in (tokens, own.nonzero().flatten())]
        yield ChangedExperts(name, tuple(each[0]), tuple(each[1]), float(gaps[at]), each[0][at], len(freely))


def _changed(name: str, a: Trace, b: Trace) -> torch.Tensor | None:
    """Return which tokens have other experts in two traces, bool [T]; None where both have no such router."""
    key = f"{name}#{IDS}"
    mine, theirs = a.outputs.get(key), b.outputs.get(key)
    if mine is None or theirs is None or mine.shape != theirs.shape:
        return None
    return (mine.long() != theirs.long().to(mine.device)).any(-1)


def difference(name: str, kind: str, key: str, a: Trace, b: Trace) -> Difference | None:
    """Compare the results of an operator at a point of two traces; None where they are equal.

    A router's weights are compared where the experts are the same.
    """
    mine, theirs = getattr(a, kind)[key], getattr(b, kind)[key]
    router, _, part = key.partition("#")
    changed = _changed(router, a, b) if part and kind == "outputs" else None
    if changed is None or not bool(changed.any()):
        return measured(name, mine, theirs)
    if part == str(WEIGHTS):
        theirs = theirs.to(mine.device)  # in its own dtype, which says what roundings explain
        return measured(name, mine, torch.where(changed[:, None], mine.to(theirs.dtype), theirs))
    found = measured(name, mine, theirs)
    if found is not None and found.verdict != "rounding":
        return found
    count, first = int(changed.sum()), int(changed.nonzero()[0])
    size = (0.0, 0.0, 0.0) if found is None else (found.share, found.relative, found.ulps)
    return Difference(name, "changed experts", *size, count, first)


# --- a whole model ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """The operators of two engines.

    local: those that differ on equal inputs, in the first engine's order. drift: by operator in that order,
    the relative difference of whole runs, which an operator may have inherited. skipped: operators that only
    one of them calls, so that they were compared as parts of others. order: of the first engine's operators.
    changed: routers whose experts differ.
    """

    local: tuple[Difference, ...]
    drift: Mapping[str, float]
    skipped: tuple[str, ...]
    first: Trace
    forced: Trace
    changed: tuple[ChangedExperts, ...] = ()

    @property
    def cause(self) -> Difference | None:
        """Return the first operator that computes another function or chooses other experts.

        Without any, the first that rounds otherwise.
        """
        wrong = [d for d in self.local if d.verdict != "rounding"]
        return next(iter(wrong or self.local), None)

    def tensors(self, name: str) -> dict[str, torch.Tensor]:
        """Return the input of an operator and both results, by name."""
        at = point_of(name, self.first)
        if at is None:
            return {}
        kind, key = at
        a, b = getattr(self.first, kind)[key], getattr(self.forced, kind)[key]
        found = {"a": a, "b": b}
        whose = key.partition("#")[0] if f"{name}#{IDS}" in self.first.outputs else key
        if kind == "outputs" and whose in self.first.inputs:
            found["input"] = self.first.inputs[whose]
        return {n: x.contiguous().cpu() for n, x in found.items()}


def run_hooked(
    engine: Engine, sequences: Sequences, forced: Trace | None = None, within: str = ""
) -> tuple[Trace, Scores]:
    """Run an engine with hooks; return what passed through its operators, and its scores."""
    recorder = Recorder(engine, len(sequences.ids), forced, within)
    with recorder.hooked():
        scores = engine.score(sequences, recorder)
    return recorder.trace, scores


def compare_operators(a: Engine, b: Engine, sequences: Sequences, free: Trace | None = None) -> Comparison:
    """Run two engines that can be hooked, and compare their operators."""
    first, _ = run_hooked(a, sequences)
    free = free or run_hooked(b, sequences)[0]
    forced, _ = run_hooked(b, sequences, first)
    return compared(first, free, forced)


def compared(first: Trace, free: Trace, forced: Trace) -> Comparison:
    """Compare a run with a free run and one on its own inputs."""
    local, drift = [], {}
    layers = {name.rpartition(".self_attn.")[0] for name in first.order if name.endswith(".q_proj")}
    gone = sorted(x for x in layers if not any(n.startswith(f"{x}.") for n in forced.order))
    local += [Difference(name, "not called") for name in gone]
    for name, kind, key in points(first):
        mine, theirs = getattr(first, kind)[key], getattr(forced, kind).get(key)
        if theirs is None or mine.shape[1:].numel() != theirs.shape[1:].numel():
            continue
        if found := difference(name, kind, key, first, forced):
            local.append(found)
        other = getattr(free, kind).get(key)
        if other is not None and other.shape == mine.shape:
            whole = measured(name, mine, other)
            drift[name] = whole.relative if whole else 0.0
    skipped = sorted(set(first.order) ^ set(forced.order))
    changed = tuple(changed_experts(first, free, forced))
    return Comparison(tuple(local), drift, tuple(skipped), first, forced, changed)


def points(trace: Trace) -> Iterator[tuple[str, str, str]]:
    """Yield the points of a run in its order: name of the computation, "inputs" or "outputs", their key.

    An input is a point where a computation between modules made it.
    """
    for name in trace.order:
        if name in trace.inputs and (between := before(name)):
            yield between, "inputs", name
        if name in trace.outputs:
            yield name, "outputs", name
        if f"{name}#{IDS}" in trace.outputs:  # a router
            yield name, "outputs", f"{name}#{SCORES}"
            yield f"{name}.weights", "outputs", f"{name}#{WEIGHTS}"
            continue
        for i, part in enumerate(("cos", "sin")):  # a module that returns two tensors
            if (key := f"{name}#{i}") in trace.outputs:
                yield f"{name}.{part if name.endswith('rotary_emb') else i}", "outputs", key


def point_of(name: str, trace: Trace) -> tuple[str, str] | None:
    """Return where a trace holds the results of a computation: "inputs" or "outputs", and the key."""
    return next(((kind, key) for each, kind, key in points(trace) if each == name), None)


def before(name: str) -> str | None:
    """Return the name of the computation that makes a module's input; None where another module does."""
    for end, word in BETWEEN.items():
        if name.endswith(f".{end}"):
            layer = name.removesuffix(f".{end}")
            return f"{layer}.{end}.{word}" if word == "residual" else f"{layer}.{word}"
    return {"model.norm": "model.norm.residual", "log_probs": "logits"}.get(name)


# --- what a difference depends on ---------------------------------------------------------------------------


def triggers(a: Engine, b: Engine, sequences: Sequences, name: str, first: Trace) -> list[str]:
    """Return which of batch, padding, chunk, page, rank and graph make an operator differ. first: of a.

    Each is left out of either engine in turn, as its `variants` allow; it is a trigger where the operator
    then has the same bits on both sides. An empty list: it differs in plain runs too.
    """
    found, layer = [], layer_of(name)
    for trigger, other in getattr(b, "variants", {}).items():
        if not _differs(first, other, sequences, name):
            found.append(trigger)
    for trigger, other in getattr(a, "variants", {}).items():
        if trigger in found:
            continue
        if not _differs(run_hooked(other, sequences, within=layer)[0], b, sequences, name):
            found.append(trigger)
    return found


def layer_of(name: str) -> str:
    """Return the layer whose modules make an operator's input, as "model.layers.0."; "" where all do.

    A residual sum has the outputs of all layers before it.
    """
    return "" if name.endswith(".residual") else "".join(re.findall(r"^.*\.layers\.\d+\.", name))


def _differs(first: Trace, b: Engine, sequences: Sequences, name: str) -> bool:
    forced, _ = run_hooked(b, sequences, first, layer_of(name))
    at = point_of(name, first)
    if at is None:
        return True
    kind, key = at
    theirs = getattr(forced, kind).get(key)
    return theirs is None or difference(name, kind, key, first, forced) is not None
