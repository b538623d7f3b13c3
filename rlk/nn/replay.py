"""Replays of a decoder layer over pages: its bound calls one after the other, without looking them up again.

An eager decode step of few tokens is bound by the host. For a shape that a layer has met before, one function
runs the kernels' bound calls: no argument is checked and no call is looked up, for the layer did both when
the function was made. It is made again where a module, a parameter, a hook or an option of the layer changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.nn.modules.module import _has_any_global_hook

from rlk.env import Env
from rlk.nn.cache import PagedCache
from rlk.nn.tokens import PagedTokens, Tokens, sizes_of
from rlk.runtime.call.dispatch import dispatch
from rlk.runtime.call.entry import observing, watched
from rlk.runtime.call.tape import Call, taped

Pair = tuple[torch.Tensor, torch.Tensor]
Replay = Callable[[torch.Tensor, torch.Tensor | None, PagedTokens], Pair]
Same = Callable[[torch.nn.Module], bool]

MOST = 64  # shapes that a layer keeps
LONGEST_REST = 2**16  # calls for which a layer that changed is not looked at
SETTLED = 64  # replays after which a layer that changes rests for one call again
MODULES = "rlk.nn.modules"  # whose forward calls operators of rlk, with their parameters
HOOKS = ("_forward_hooks", "_forward_pre_hooks")

_forgotten = [0]  # how often bound calls became stale


def _forget() -> None:
    _forgotten[0] += 1


dispatch.forgets(_forget)


@dataclass(slots=True, eq=False)
class Replays:
    """The replays of one layer by shape: None where it was met once, False where it cannot be replayed.

    same: whether a layer is as the layer was when they were made. rest: calls for which a layer that changed
    is left alone, twice as many each time. replayed: calls that were replayed since it changed. Deep copies
    of a layer begin without any.
    """

    made: dict[object, Replay | bool | None] = field(default_factory=dict)
    same: Same | None = None
    rest: int = 0
    next_rest: int = 1
    replayed: int = 0

    def __reduce__(self) -> Any:
        return Replays, ()

    def forget(self) -> None:
        """Give back what replays hold, the memory of parameters among it."""
        self.made.clear()
        self.same = None

    def find(
        self,
        layer: torch.nn.Module,
        forward: Callable[..., Pair],
        x: torch.Tensor,
        residual: torch.Tensor | None,
        tokens: Tokens,
    ) -> Pair | None:
        """Return what `forward(layer, x, residual, tokens)` returns, or None where it is to be called.

        forward: computes by operators of rlk alone. It is called here where a shape is met again.
        """
        if torch.compiler.is_compiling() or torch.is_grad_enabled() or not isinstance(tokens, PagedTokens):
            return None
        if not _replayable(x, residual, tokens):
            return None
        if self.rest:
            self.rest -= 1
            return None
        key = (_forgotten[0], sizes_of(x), None if residual is None else sizes_of(residual), tokens.sizes)
        found = self.made.get(key, True)
        if found is True:
            if len(self.made) >= MOST:
                self.made.clear()
            self.made[key] = None
            return None
        if (self.same is None or not self.same(layer)) and not self._renewed(layer):
            return None
        if found is False:
            return None
        if found is not None:
            self.replayed += 1
            if self.replayed == SETTLED:
                self.next_rest = 1
            return found(x, residual, tokens)
        with taped() as calls:
            pair = forward(layer, x, residual, tokens)
        self.made[key] = recorded(layer, calls, (x, residual, tokens), pair) or False
        return pair

    def _renewed(self, layer: torch.nn.Module) -> bool:
        """Look at a layer for the first time, or after it changed; return whether it may be replayed now."""
        changed = self.same is not None
        self.same, self.replayed = unchanged(layer), 0
        if changed or self.same is None:
            self.made.clear()
            self.rest, self.next_rest = self.next_rest, min(2 * self.next_rest, LONGEST_REST)
        return not self.rest


def _replayable(x: torch.Tensor, residual: torch.Tensor | None, tokens: PagedTokens) -> bool:
    """Return whether a call computes on a device, unseen, and checks no numbers there."""
    return (
        on_a_device(x)
        and not watched(x, x if residual is None else residual)
        and type(tokens.cache) is PagedCache
        and not observing()
        and dispatch.recorder is None
        and forward_ad._current_level < 0
        and not Env.current().check
    )


def on_a_device(x: torch.Tensor) -> bool:
    """Return whether operators leave offsets and pages to kernels: those on the host are looked at."""
    return x.is_cuda


# --- whether a layer is what it was ---


def unchanged(layer: torch.nn.Module) -> Same | None:
    """Return a function that tells whether a layer is as this one is now; None where it may not be replayed.

    It looks at each module's class, hooks, attributes, modules and parameters, and how and where these lie.
    Their numbers may change: kernels read them anew. It holds the layer's modules, but not the layer, which
    holds it.
    """
    scope: dict[str, Any] = {"hooked": _has_any_global_hook}
    terms = ["not hooked()"]

    def name(value: object) -> str:
        scope[f"v{len(scope)}"] = value
        return f"v{len(scope) - 1}"

    for module in layer.modules():
        kind, state = type(module), vars(module)
        if kind.__module__ != MODULES or "forward" in state or state.get("ranks") is not None:
            return None
        this, own = ("layer", "state") if module is layer else (name(module), name(state))
        terms += [f"{this}.__class__ is {name(kind)}", f"{name(kind)}.forward is {name(kind.forward)}"]
        terms.append(f"len({own}) == {len(state)}")
        for key in ("_parameters", "_modules"):
            terms.append(f"len({own}[{key!r}]) == {len(state[key])}")
            terms += [f"{own}[{key!r}][{k!r}] is {name(each)}" for k, each in state[key].items()]
        for p in module.parameters(recurse=False):
            it = name(p)
            terms += [f"{it}.data_ptr() == {p.data_ptr()}", f"{it}.dtype is {name(p.dtype)}"]
            terms += [f"{it}.shape == {tuple(p.shape)}", f"{it}.stride() == {p.stride()}"]
            terms.append(f"{it}.is_neg() is {p.is_neg()}")
        if module is not layer:  # whose own hooks are called around its forward
            terms += [f"not {own}[{key!r}]" for key in HOOKS]
        options = (key for key in state if not key.startswith("_") and key not in ("training", "replays"))
        terms += [f"{own}[{key!r}] is {name(state[key])}" for key in options]
    lines = ["state = layer.__dict__", "try:", f"    return {' and '.join(terms)}"]
    lines += ["except KeyError:", "    return False"]
    same: Same = _defined("same", "layer", lines, scope)
    return same if same(layer) else None


def _defined(name: str, parameters: str, lines: Sequence[str], scope: dict[str, Any]) -> Any:
    """Return the function of a text: a loop over what it does would cost as much as the kernels' launches."""
    exec(_compiled("\n    ".join([f"def {name}({parameters}):", *lines])), scope)
    return scope.pop(name)  # a function that its own globals name is a cycle


@lru_cache(maxsize=256)
def _compiled(text: str) -> CodeType:
    return compile(text, "<replay>", "exec")


# --- the calls of a layer as one function ---

TOKENS = "positions", "cu_seqlens", "context_lens", "block_table", "slots"


class Unknown(Exception):
    """A tensor of which nobody knows what it is for other arguments.

    It is neither an argument nor a parameter of the layer, and no bound call made it; or it may be one of
    several arguments or parameters that share memory.
    """


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor of which others may be views. text: how a function reads it. name: what it assigned, if so."""

    text: str
    tensor: torch.Tensor
    name: str = ""


@dataclass(slots=True, eq=False)
class Line:
    """A line of a function: what it assigns, if anything, and the assigned names that it reads."""

    name: str
    text: str
    reads: set[str]


@dataclass(slots=True, eq=False)
class Recording:
    """Writes bound calls as a function. sources: by the address of their memory; fixed: of parameters."""

    fixed: frozenset[int]
    sources: dict[int, list[Source]] = field(default_factory=dict)
    scope: dict[str, Any] = field(default_factory=lambda: {"empty_strided": torch.empty_strided})
    lines: list[Line] = field(default_factory=list)
    reads: set[str] = field(default_factory=set)
    views: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def of(layer: Any, x: torch.Tensor, residual: torch.Tensor | None, tokens: PagedTokens) -> Recording:
        """Begin with the arguments of a layer. Raises Unknown where they share memory with others."""
        fixed = (*layer.parameters(), *layer.self_attn.options.tables.of(x))
        made = Recording(frozenset(map(_address, fixed)))
        given = {"x": x} if residual is None else {"x": x, "residual": residual}
        given |= {f"tokens.{name}": getattr(tokens, name) for name in TOKENS}
        given |= {"tokens.cache.keys": tokens.cache.keys, "tokens.cache.values": tokens.cache.values}
        for text, t in given.items():
            if _address(t) in made.fixed | made.sources.keys():
                raise Unknown
            made.add(Source(text, t))
        return made

    def function(self, calls: Sequence[Call], results: Pair) -> Replay:
        """Return the function of these calls and results. Raises Unknown."""
        for call in calls:
            self.call(call)
        self.write("", f"return {', '.join(map(self.text, results))}")
        made: Replay = _defined("replay", "x, residual, tokens", _freed(self.lines), self.scope)
        return made

    def call(self, call: Call) -> None:
        """Write a bound call; memory that nobody has before it is written to is allocated."""
        written = {id(t) for t in call.made.values()}
        for t in call.tensors.values():
            if id(t) in written and _address(t) not in self.sources.keys() | self.fixed:
                if t.storage_offset():  # memory of its own begins with it
                    raise Unknown
                how = f"dtype={self.constant(t.dtype)}, device={self.constant(t.device)}"
                name = self.write("own", f"empty_strided({tuple(t.shape)}, {t.stride()}, {how})")
                self.add(Source(name, t, name))
        given = ", ".join(f"{name!r}: {self.text(t)}" for name, t in call.tensors.items())
        name = self.write("made", f"{self.constant(call.run)}({{{given}}}, {self.constant(call.scalars)})")
        for key, t in call.made.items():
            if _address(t) not in self.sources:
                self.add(Source(f"{name}[{key!r}]", t, name))

    def add(self, source: Source) -> None:
        self.sources.setdefault(_address(source.tensor), []).append(source)

    def write(self, kind: str, text: str) -> str:
        """Add a line; return the name that it assigns."""
        name = f"{kind}{len(self.lines)}" if kind else ""
        self.lines.append(Line(name, text, self.reads))
        self.reads = set()
        return name

    def constant(self, value: object) -> str:
        """Return the name of a constant."""
        self.scope[f"c{len(self.scope)}"] = value
        return f"c{len(self.scope) - 1}"

    def text(self, t: torch.Tensor) -> str:
        """Return the text of a tensor; of other sizes than what lies in its memory it is a view of that."""
        address = _address(t)
        if address in self.fixed:
            return self.constant(t)
        found = self.sources.get(address, [])
        source = next((each for each in found if each.tensor is t), found[0] if found else None)
        if source is None or (len(found) > 1 and source.tensor is not t) or not address:
            raise Unknown
        of, text = source.tensor, source.text
        if of.dtype is not t.dtype:
            raise Unknown
        self.reads |= {source.name} - {""}
        start, place = of.storage_offset(), t.storage_offset()
        if (t.shape, t.stride(), place) == (of.shape, of.stride(), start):
            return text
        if source.name:
            return f"{text}.as_strided({tuple(t.shape)}, {t.stride()}, {place})"
        view = f"{text}.as_strided({tuple(t.shape)}, {t.stride()}, {text}.storage_offset() + {place - start})"
        if view not in self.views:  # of an argument: several calls read pages
            self.views[view] = f"view{len(self.lines)}"
            self.lines.append(Line(self.views[view], view, set()))
        self.reads.add(self.views[view])
        return self.views[view]


def recorded(layer: Any, calls: Sequence[Call], given: Any, results: Pair) -> Replay | None:
    """Return the function that runs bound calls for other tensors of the same sizes.

    given: the arguments of the layer, (x, residual, tokens). None where something else than bound calls made
    a tensor: it would not be made again.
    """
    try:
        return Recording.of(layer, *given).function(calls, results)
    except Unknown:
        return None


def _address(t: torch.Tensor) -> int:
    return t.untyped_storage().data_ptr()


def _freed(lines: Sequence[Line]) -> list[str]:
    """Return the text of lines, of which each gives back what is read for the last time."""
    found: list[str] = []
    for i, line in enumerate(lines):
        later = set[str]().union(*(each.reads for each in lines[i + 1 :]))
        found.append(f"{line.name} = {line.text}" if line.name in later else line.text)
        last = sorted(line.reads - later)
        if last and line is not lines[-1]:
            found.append(f"del {', '.join(last)}")
    return found
