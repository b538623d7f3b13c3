"""Callables of operators, made from their annotations: signature, checks of arguments, named results."""

from __future__ import annotations

import functools
import inspect
import linecache
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from keyword import iskeyword
from typing import Any, Literal, NoReturn

import torch

from rlk.errors import Code, LaunchError, SpecError
from rlk.ir.nodes import MathModel
from rlk.ir.types import DType
from rlk.lang.op import OWN, Formal, Op, check_cotangents
from rlk.lang.types import DTypeVar, ScalarType, StaticType, TensorType
from rlk.lang.variants import check_names, outputs
from rlk.passes.pipeline import canonical, specialize
from rlk.runtime.binding.checks import (
    F32_MOST,
    flag,
    integer,
    is_choice,
    is_device,
    names_among,
    number,
    wrong_value,
)
from rlk.runtime.binding.invocation import Invocation, row_axis
from rlk.runtime.binding.selection import model
from rlk.runtime.call.dispatch import Decision, decide
from rlk.runtime.call.entry import call, observed
from rlk.runtime.call.lists import call_each
from rlk.runtime.prefetch import explain, joined

MATH = "math"
"""The option of operators with softmax folds: who defines exp2."""
_WORDS = ("call", "flag", "integer", "is_choice", "made", "names_among", "number", "op", "results", "scalars",
          "tensors", "float", "str", "type")  # fmt: skip
"""The words of a callable's own text, beside the names of its parameters."""
_INTEGERS = {DType.I32: (-(2**31), 2**31 - 1), DType.I64: (-(2**63), 2**63 - 1), DType.U32: (0, 2**32 - 1)}


class Operator:
    """A public operator: call it; ask it for its numerics id, tier, decision and float64 reference.

    specs: the specs that a call runs, in order; several for an operator composed of others. forms: specs that
    an option of a call names in place of those.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        exact: Callable[..., Any],
        specs: tuple[Op, ...],
        forms: tuple[Op, ...] = (),
    ) -> None:
        functools.update_wrapper(self, fn)
        self.fn, self.reference, self.specs, self.forms = fn, exact, specs, forms

    def __call__(self, /, *args: Any, **options: Any) -> Any:
        return self.fn(*args, **options)

    def numerics_id(self, device: torch.device | str, *, math: str | None = None) -> str:
        """Return the id of the operator's numerics on a device: equal ids give equal bits.

        math: as in a call, "portable" or "sm90"; by default the device decides.
        """
        return self._decision(device, math).numerics_id

    def tier(self, device: torch.device | str, *, math: str | None = None) -> dict[str, str]:
        """Return, for every output, "exact" (the oracle predicts its bits) or "pinned" (they only repeat)."""
        return {name: found.value for name, found in self._decision(device, math).tiers}

    def explain(self, /, *args: Any, **options: Any) -> Decision:
        """Return the code that a call with these arguments (or, given a device only, a call on it) runs."""
        if len(args) == 1 and not options and isinstance(args[0], str | torch.device):
            return self._decision(args[0], None)
        return explain(self.fn, *args, **options)

    def _decision(self, device: torch.device | str, math: str | None) -> Decision:
        on = is_device(self.fn.__name__, device)
        defines = model(math, self.fn.__name__)
        invocations = [Invocation(spec, spec.default_variant(), defines) for spec in self.specs]
        return joined([decide(invocation, on) for invocation in invocations])

    def __repr__(self) -> str:
        return f"<rlk.ops.{self.fn.__name__}>"


def published(
    fn: Callable[..., Any], exact: Callable[..., Any], *specs: Op, forms: tuple[Op, ...] = ()
) -> Operator:
    """Give a function the methods of `Operator` as attributes, so that a call of it costs no wrapper."""
    operator = Operator(fn, exact, specs, forms)
    for name in ("numerics_id", "tier", "explain", "reference", "specs"):
        setattr(fn, name, getattr(operator, name))
    return operator


def publish(op: Op, result: type | None = None) -> Operator:
    """Make the function that a call of an operator runs, from its annotations.

    result: the named tuple of several results; by default one is made.
    """
    if op.gradient is not None:
        # no call would miss a gradient whose cotangent has another name: torch finds no connection
        plain = op.default_variant()
        made = {decl.name: decl for decl in outputs(op.trace(plain))}
        check_cotangents(op.gradient, made, plain)
    if any(f.name == MATH for f in op.formals) and takes_math(op):
        raise SpecError(Code.RESERVED_NAME, op.loc, name=MATH, instead=f"{MATH}_value")
    if op.fn.__module__.partition(".")[0] != OWN:  # rlk's generated specs save what one variant has
        check_names(op)
    fn = made_from(op, result)
    op.calls.function = fn
    return published(fn, _reference_of(op, result), op)


class _Noted(Exception):
    """Ends a call whose arguments were noted."""


def _noted(parts: list[Any], _: Op, *what: Any) -> NoReturn:
    parts.append(what)
    raise _Noted


def each(op: Op, args: tuple[Any, ...], options: Mapping[str, Any]) -> list[Any]:
    """Run an operator on each item of lists; `Op.each` says of what."""
    signature = inspect.signature(op.public)
    try:
        given = signature.bind(*args, **options).arguments
    except TypeError as error:
        wanted = f"{op.name}({', '.join(map(_spelled, signature.parameters.values()))})"
        raise TypeError(f"{op.name}.each(): {error}; give the arguments as in {wanted}") from None
    shared = {MATH, *(f.name for f in op.formals if isinstance(f.type, StaticType))}
    listed = {name: value for name, value in given.items() if isinstance(value, list)}
    for name in listed.keys() & shared:
        wanted = "one value for all items, no list: call each for the items of each value"
        raise wrong_value(op.qualified, name, listed[name], wanted)
    counts = {name: len(value) for name, value in listed.items()}
    if len({*counts.values()}) != 1:
        kinds = ", ".join(f"{name}: {type(value).__name__}" for name, value in given.items())
        value = ", ".join(f"{n} of {name}" for name, n in counts.items()) or kinds
        raise wrong_value(op.qualified, "each", value, "lists of one length")
    parts: list[Any] = []
    for i in range(next(iter(counts.values()))):
        own = {name: value[i] if name in listed else value for name, value in given.items()}
        with observed(partial(_noted, parts)), suppress(_Noted):
            op.public(**own)  # checks and names the arguments
    if not parts:
        return []
    _, scalars, statics, math = parts[0]
    for i, (_, others, *_) in enumerate(parts):
        for name in scalars.keys() ^ others.keys():
            at = f"{name}[{i if name in scalars else 0}]"
            raise wrong_value(op.qualified, at, None, "a number for every item, or None for all")
    own = {name: [part[1][name] for part in parts] for name in scalars if name in listed}
    for_all = {name: x for name, x in scalars.items() if name not in listed}
    made = call_each(op, [part[0] for part in parts], for_all, own, statics, math)
    results = _results_of(op)
    return [results(outputs) for outputs in made]


def _spelled(parameter: inspect.Parameter) -> str:
    """Return a parameter as a call gives it."""
    return f"{parameter.name}=" if parameter.kind is parameter.KEYWORD_ONLY else parameter.name


@cache
def _results_of(op: Op) -> Results:
    return Results(op.name, op.returns, None)


def _reference_of(op: Op, result: type | None) -> Callable[..., Any]:
    """Return the float64 form that an operator's record names; one that says so if there is none."""

    def reference(*args: Any, **options: Any) -> Any:
        if op.record.reference is None:
            why = "to have a float64 form: register the operator with one"
            raise LaunchError(Code.ARG_MISSING, op=op.qualified, name="reference", why=why)
        made = op.record.reference(*map(_wide, args), **{name: _wide(x) for name, x in options.items()})
        return Results(op.name, op.returns, result)(made) if isinstance(made, dict) else made

    return reference


def _wide(value: Any) -> Any:
    """Return floats of a tensor as float64."""
    floats = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if floats else value


# --- the text of a callable ------------------------------------------------------------------------------


def made_from(op: Op, result: type | None = None) -> Callable[..., Any]:
    """Return a Python function that maps the arguments of a call to tensors, scalars and statics.

    Required tensors come first, by position or name; optional ones, scalars and statics by keyword.
    """
    name = op.name
    source = "\n".join(_lines(op, result))
    file = f"<rlk operator {op.qualified}>"
    # so that tracebacks and debuggers show the lines
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    results, own = Results(name, op.returns, result), words(op)
    given = {"op": op, "call": call, "results": results, "number": number, "integer": integer, "flag": flag,
             "names_among": names_among, "is_choice": is_choice}  # fmt: skip
    given |= {kind.__name__: kind for kind in (float, str, type) if own[kind.__name__] != kind.__name__}
    names: dict[str, Any] = {
        "torch": torch, "Literal": Literal, **{own[word]: value for word, value in given.items()},
        **{f"choices_of_{f.name}": f.type.choices for f in op.formals if isinstance(f.type, StaticType)},
        **({} if result is None else {result.__name__: result}),
        **{f"default_of_{f.name}": f.default for f in op.formals if f.default is not inspect.Parameter.empty},
    }  # fmt: skip
    exec(compile(source, file, "exec"), names)
    results.named(shown_outputs(op))  # made here, so that no compiler has to trace it
    fn: Callable[..., Any] = names[name]
    fn.__module__, fn.__doc__ = op.fn.__module__, docstring(op)
    return fn


@cache
def words(op: Op) -> dict[str, str]:
    """Return the identifiers of a callable's text: none is a parameter's name, or the function's."""
    taken = {op.name, *(f.name for f in op.formals)}
    longest = max(map(len, taken))
    return {word: f"{word}_{'_' * longest}" if word in taken else word for word in _WORDS}


def ordered(op: Op) -> tuple[Formal, ...]:
    """Return the parameters in the order of a call's: required tensors, then those by keyword."""
    return tuple(sorted(op.formals, key=lambda formal: not _given(formal, TensorType)))


def _lines(op: Op, result: type | None) -> Iterator[str]:
    required = [f for f in op.formals if _given(f, TensorType)]
    others = ordered(op)[len(required) :]
    parameters = [f"{f.name}: {annotation(f)}" for f in required]
    keywords = [f"{f.name}: {annotation(f)}{_default(f)}" for f in others]
    if takes_math(op):
        keywords.append(f"{MATH}: str | None = None")
    listed = ", ".join([*parameters, *(["*", *keywords] if keywords else [])])
    yield f"def {op.name}({listed}) -> {returned(op, result)}:"
    own = words(op)
    yield f"    {own['tensors']} = {{{', '.join(f'{f.name!r}: {f.name}' for f in required)}}}"
    yield f"    {own['scalars']} = {{{', '.join(_scalar(op, f) for f in others if _given(f, ScalarType))}}}"
    for formal in others:
        if formal.optional:
            place, value = ("scalars", _checked(op, formal)) if isinstance(formal.type, ScalarType) else (
                "tensors", formal.name)  # fmt: skip
            yield f"    if {formal.name} is not None:"
            yield f"        {own[place]}[{formal.name!r}] = {value}"
    statics = ", ".join(f"{f.name!r}: {_checked(op, f)}" for f in others if isinstance(f.type, StaticType))
    given = f"{own['op']}, {own['tensors']}, {own['scalars']}, {{{statics}}}"
    yield f"    {own['made']} = {own['call']}({given}{f', {MATH}' if takes_math(op) else ''})"
    match list(op.returns):
        case [only] if only in {decl.name for decl in outputs(op.trace(op.default_variant()))}:
            yield f"    return {own['made']}[{only!r}]"
        case _:
            yield f"    return {own['results']}({own['made']})"


def _given(formal: Formal, kind: type) -> bool:
    return isinstance(formal.type, kind) and not formal.optional


def _scalar(op: Op, formal: Formal) -> str:
    return f"{formal.name!r}: {_checked(op, formal)}"


def _default(formal: Formal) -> str:
    if formal.default is not inspect.Parameter.empty:
        return f" = default_of_{formal.name}"
    if formal.optional:
        return " = None"
    return " = ()" if isinstance(formal.type, StaticType) and formal.type.several else ""


def _checked(op: Op, formal: Formal) -> str:
    """Return the expression that checks an option and returns its value."""
    name, own = formal.name, words(op)
    head = f"{op.qualified!r}, {name!r}, {name}"
    match formal.type:
        case ScalarType(dtype=dtype, least=least, most=most) if dtype in _INTEGERS:
            low, high = _INTEGERS[dtype]
            low, high = low if least is None else least, high if most is None else most
            return f"{own['integer']}({head}, {low}, {high})"
        case ScalarType(least=least, most=most):
            limits = [f"{word}={x!r}" for word, x in (("least", least), ("most", most)) if x is not None]
            low = max(-F32_MOST if least is None else least, -F32_MOST)
            high = min(F32_MOST if most is None else most, F32_MOST)
            checked = f"{own['number']}({', '.join((head, *limits))})"
            # a call less where nothing is wrong
            kind = f"{own['type']}({name}) is {own['float']}"
            return f"{name} if {kind} and {low!r} <= {name} <= {high!r} else {checked}"
        case StaticType(choices=choices, several=True):
            return f"{own['names_among']}({head}, choices_of_{name})"
        case StaticType(choices=choices) if set(map(type, choices)) == {bool}:
            return f"{own['flag']}({head})"
        case StaticType(choices=choices) if set(map(type, choices)) == {str}:
            checked = f"{own['is_choice']}({head}, choices_of_{name})"
            kind = f"{own['type']}({name}) is {own['str']}"
            return f"{name} if {kind} and {name} in choices_of_{name} else {checked}"
        case StaticType(choices=choices) if choices:
            return f"{own['is_choice']}({head}, choices_of_{name})"
        case _:
            return name


@cache
def takes_math(op: Op) -> bool:
    """Return whether the bits of an operator, or of its gradient, depend on who defines exp2."""
    program = canonical(op.trace(op.default_variant()))
    return specialize(program, {}, MathModel.PORTABLE) != specialize(program, {}, MathModel.SM90)


# --- results ---------------------------------------------------------------------------------------------


class Results:
    """Makes the result of a call of its outputs by name: one tensor, or a named tuple of several."""

    def __init__(self, op: str, returns: Mapping[str, str], result: type | None) -> None:
        made = "".join(part.capitalize() for part in op.split("_"))
        self._type = f"{made}Result" if iskeyword(made) else made
        self._returns, self._result = returns, result
        self._types: dict[tuple[str, ...], Any] = {}
        self._makers: dict[tuple[str, ...], Callable[[Mapping[str, Any]], Any]] = {}

    def __call__(self, made: Mapping[str, Any]) -> Any:
        """Return the outputs that are there."""
        outputs = tuple(made)
        maker = self._makers.get(outputs)
        if maker is None:
            maker = self._makers[outputs] = self._maker(outputs)
        return maker(made)

    def _maker(self, outputs: tuple[str, ...]) -> Callable[[Mapping[str, Any]], Any]:
        """Return what makes the result of these outputs."""
        names = self._returns or {name: name for name in outputs}
        there = {public: name for name, public in names.items() if name in outputs}
        if len(there) == 1:
            only = next(iter(there.values()))
            return lambda made: made[only]  # no itemgetter: torch.compile traces this
        kind = self.named(tuple(there)) if self._result is None else self._result
        return lambda made: kind(**{public: made[name] for public, name in there.items()})

    def named(self, fields: tuple[str, ...]) -> Any:
        """Return the named tuple of these results."""
        found = self._types.get(fields)
        if found is None:
            found = self._types[fields] = namedtuple(self._type, fields)
        return found


def returned(op: Op, result: type | None) -> str:
    """Return the annotation of what a call returns."""
    several = "tuple[torch.Tensor, ...]" if result is None else result.__name__
    there = shown_outputs(op)
    if len(there) == 1:
        return "torch.Tensor" if len(op.returns) < 2 else f"torch.Tensor | {several}"
    return several


def shown_outputs(op: Op) -> tuple[str, ...]:
    """Return the names of the results of a call with nothing optional."""
    there = tuple(decl.name for decl in outputs(op.trace(op.default_variant())))
    return tuple(public for name, public in (op.returns or dict(zip(there, there, strict=True))).items()
                 if name in there)  # fmt: skip


# --- words for people and editors -------------------------------------------------------------------------

_NAMES = {DType.F32: "float"}


def annotation(formal: Formal) -> str:
    """Return the annotation of a parameter of the callable."""
    match formal.type:
        case TensorType():
            found = "torch.Tensor"
        case ScalarType(dtype=dtype):
            found = _NAMES.get(dtype, "int")
        case StaticType(several=True, choices=choices):
            found = "tuple[str, ...]"
        case StaticType(choices=choices):
            kinds = {type(choice) for choice in choices} or {type(formal.default)}
            literal = all(isinstance(c, (str, int)) for c in choices) and choices and kinds != {bool}
            found = f"Literal[{', '.join(map(repr, choices))}]" if literal else _kind(kinds)
    return f"{found} | None" if formal.optional else found


def _kind(kinds: set[type]) -> str:
    only = next(iter(kinds)).__name__ if len(kinds) == 1 else "object"
    found = {"tuple": "tuple[str, ...]"} | {name: name for name in ("bool", "int", "str", "float")}
    return found.get(only, "object")


def docstring(op: Op) -> str:
    """Return the docstring of the callable: the spec's, then every parameter, result and gradient."""
    said = [f"{f.name}: {said_of(op, f)}" for f in ordered(op)]
    if takes_math(op):
        said.append('math: "portable" or "sm90" overrides who defines exp2')
    wrt = op.gradient.wrt if op.gradient is not None else ()
    slopes = f"Differentiable in {_listed(wrt)}." if wrt else "Differentiable in nothing."
    results = tuple(op.returns.values()) or shown_outputs(op)
    many = f"Returns a named tuple of {_listed(results)}, those that a call has; one alone as it is."
    text = [op.doc, "", "\n".join(f"{line}." for line in said), "", slopes]
    return "\n".join([*text, *([many] if len(results) > 1 else []), "Raises LaunchError."])


def said_of(op: Op, formal: Formal) -> str:
    """Return a parameter in words: dims and dtypes, range or choices."""
    optional = ", optional" if formal.optional else ""
    optional += ", written" if formal.name in op.into.values() else ""
    match formal.type:
        case TensorType(dtype=dtype, axes=axes):
            choices = dtype.choices if isinstance(dtype, DTypeVar) else (dtype,)
            rows = row_axis(op)
            dims = ["..." if axis == rows else str(axis.name) for axis in axes]
            return f"[{', '.join(dims)}] {_listed([str(c) for c in choices], 'or')}{optional}"
        case ScalarType(dtype=dtype, least=least, most=most):
            ends = [f"at least {least}"] * (least is not None) + [f"at most {most}"] * (most is not None)
            return ", ".join(("a number" if dtype is DType.F32 else f"an integer, {dtype}", *ends)) + optional
        case StaticType(choices=choices, several=True):
            return f"results to compute beside the others, of {_listed(list(map(str, choices)))}"
        case StaticType(choices=choices):
            return _listed(list(map(repr, choices)), "or") or "a value that selects a variant"


def _listed(words: Any, last: str = "and") -> str:
    words = list(words)
    return f" {last} ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)
