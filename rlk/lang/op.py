"""Operators: parameters, traced variants, and the specs of their gradients."""

from __future__ import annotations

import importlib
import inspect
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from traceback import walk_tb
from typing import Any, get_args

from rlk.digest import digest
from rlk.errors import Code, LaunchError, Loc, RlkError, SpecError, author
from rlk.ir.dims import Axis, Share, union
from rlk.ir.nodes import Decl, Kernel, Program, Role
from rlk.ir.text import axes_in, print_program
from rlk.ir.types import DType, TileType, distinct_texts
from rlk.lang.autodiff import backward, reached
from rlk.lang.instead import of_keyword
from rlk.lang.reads import Unset, digest_of, is_rlks
from rlk.lang.recompute import Forward
from rlk.lang.record import Record
from rlk.lang.reserved import check_free, is_free
from rlk.lang.surface import Outputs
from rlk.lang.trace import ScalarArg, TensorArg, Tracer, activate, deactivate
from rlk.lang.types import DTypeVar, Needs, Scalar, ScalarType, Static, StaticType, Tensor, TensorType

Annotation = TensorType | ScalarType | StaticType
SpecFunction = Callable[..., Outputs]
OWN = "rlk"
"""The namespace of the operators that rlk ships."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One choice of everything that selects code: dtypes, present optional inputs, and statics."""

    dtypes: tuple[tuple[str, DType], ...] = ()
    present: frozenset[str] = frozenset()
    statics: tuple[tuple[str, object], ...] = ()
    wanted: frozenset[str] = frozenset()

    @staticmethod
    def of(
        dtypes: Mapping[str, DType] | None = None,
        present: frozenset[str] | set[str] = frozenset(),
        statics: Mapping[str, object] | None = None,
        wanted: frozenset[str] | set[str] = frozenset(),
    ) -> Variant:
        """Build a variant from plain mappings."""
        return Variant(
            tuple(sorted((dtypes or {}).items())),
            frozenset(present),
            tuple(sorted((statics or {}).items(), key=lambda item: item[0])),
            frozenset(wanted),
        )


@dataclass(frozen=True, slots=True)
class Formal:
    """One parameter of a spec."""

    name: str
    type: Annotation
    default: object = inspect.Parameter.empty

    @property
    def optional(self) -> bool:
        return not isinstance(self.type, StaticType) and self.type.optional


@dataclass(slots=True)
class Vjp:
    """The spec of an operator's gradient: cotangents in, cotangents of the named inputs out.

    fn: what an author wrote; None: the gradient is derived from the operator's program.
    """

    op: Op
    wrt: tuple[str, ...]
    fn: SpecFunction | None
    written: tuple[Formal, ...] = ()
    _derived: tuple[Formal, ...] | None = field(default=None, compare=False, repr=False)
    _reads: str | None | Unset = field(default=Unset.UNSET, compare=False, repr=False)

    @property
    def name(self) -> str:
        return f"{self.op.name}_grad"

    @property
    def loc(self) -> Loc:
        return self.op.loc if self.fn is None else _loc(self.fn)

    @property
    def doc(self) -> str:
        """The author's description, or that it is derived."""
        return f"Derived from {self.op.name}." if self.fn is None else inspect.getdoc(self.fn) or ""

    @property
    def formals(self) -> tuple[Formal, ...]:
        """Its parameters; of a derived gradient the cotangents of all outputs that depend on its inputs."""
        if self.fn is not None:
            return self.written
        if self._derived is None:
            self._derived = _derived_formals(self)
        return self._derived

    def trace(self, variant: Variant) -> Program:
        """Trace the gradient: `present` names cotangents that exist, `wanted` the inputs that need one."""
        self.reads()
        made = _trace_vjp(self, variant)
        self.reads()
        return made

    def read_by_traces(self) -> tuple[object, ...]:
        """Return everything that a trace reads of the gradient."""
        return self.op, self.wrt, self.fn, self.written

    def reads(self) -> str | None:
        """Return a digest of everything that traces read, as `Op.reads` does."""
        forward = self.op.reads()
        self._reads = None if forward is None else _settled(self, self._reads, self._functions())
        return self._reads

    def _functions(self) -> tuple[SpecFunction, ...]:
        return (self.op.fn,) if self.fn is None else (self.op.fn, self.fn)


def _settled(spec: Op | Vjp, before: str | None | Unset, fns: tuple[SpecFunction, ...]) -> str | None:
    """Return the digest of what traces of a spec read; None if it is not that of before."""
    if before is None:
        return before
    found = "" if all(is_rlks(fn.__code__.co_filename) for fn in fns) else digest_of(spec)
    return found if before is Unset.UNSET or found == before else None


Prepare = Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]
"""Returns the inputs of a gradient beside saved tensors and cotangents, given saved tensors and scalars."""


@dataclass(slots=True)
class Calls:
    """Facts of the calls of an operator that its spec does not state; a registration writes them.

    namespace: of the operator in `torch.ops`, "" where it is not registered. function: what a call runs.
    public, names: what callers know the operator and its inputs by, in errors. prepare: makes inputs of the
    gradient. refused: outputs that backward refuses by name, where others are constants of the graph.
    separate: how gradients are computed one by one, as the runtime has it; None: all at once. extra: makes
    gradients of further inputs, by their names. alike: inputs whose gradient is that of another one.
    parts: inputs whose gradient may be written into memory of a larger one.
    """

    namespace: str = ""
    function: Callable[..., Any] | None = None
    public: str = ""
    names: dict[object, object] = field(default_factory=dict)
    prepare: Prepare | None = None
    refused: frozenset[str] = frozenset()
    separate: object = None
    extra: dict[str, Callable[..., Any]] = field(default_factory=dict)
    alike: dict[str, str] = field(default_factory=dict)
    parts: tuple[str, ...] = ()


class Op:
    """An operator, written once: `trace(variant)` gives its program of tile IR, and a call runs it.

    does: a digest of the computation of a generated spec, whose function's text does not determine it.
    returns: the outputs that a call returns, each with its name there; none: all of them. nonempty: names of
    axes that a call with rows must have something along. into: outputs, each with the input whose memory a
    call writes it to.
    """

    def __init__(
        self,
        name: str,
        fn: SpecFunction,
        formals: tuple[Formal, ...],
        saves: tuple[str, ...],
        doc: str,
        loc: Loc,
        bounds: tuple[tuple[str, tuple[str, ...]], ...] = (),
        returns: Mapping[str, str] | None = None,
        nonempty: tuple[str, ...] = (),
        into: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.fn, self.formals, self.saves = name, fn, formals, saves
        self.doc, self.loc, self.bounds, self.returns = doc, loc, bounds, dict(returns or {})
        self.nonempty, self.into = nonempty, dict(into or {})
        self.gradient: Vjp | None = None
        self.does = ""
        self.calls, self.record = Calls(), Record()
        self._traced: dict[Variant, Program] = {}
        self._for_kernels: dict[Variant, Program] = {}
        self._reads: str | None | Unset = Unset.UNSET
        self.__doc__, self.__name__, self.__module__ = doc, name, fn.__module__

    def __repr__(self) -> str:
        return f"<rlk operator {self.qualified}>"

    @property
    def qualified(self) -> str:
        """Its name and namespace, my.zloss; for an operator of rlk or an unregistered one the name."""
        return self.name if self.calls.namespace in ("", OWN) else f"{self.calls.namespace}.{self.name}"

    def formal(self, name: str) -> Formal:
        """Return a parameter by name."""
        for formal in self.formals:
            if formal.name == name:
                return formal
        raise SpecError(
            Code.UNKNOWN_NAME,
            self.loc,
            what="parameter",
            name=name,
            choices=", ".join(f.name for f in self.formals),
        )

    def bounded(self, extents: Mapping[str, int]) -> dict[str, int]:
        """Return extents with bounds of the segment lengths of axes that no tensor has."""
        within = {name: math.prod(extents.get(of, 0) for of in factors) for name, factors in self.bounds}
        return within | dict(extents)

    def default_variant(self) -> Variant:
        """Return the variant of first dtypes, defaults, and no optional input."""
        return Variant.of(dtype_choices(self.formals), frozenset(), static_defaults(self.formals))

    def trace(self, variant: Variant) -> Program:
        """Run the spec once on symbolic tiles and return its program (cached)."""
        if variant not in self._traced:
            self.reads()
            self._traced[variant], asked = _trace_op(self, variant)
            if asked:
                self._for_kernels[variant], _ = _trace_op(self, variant, kernels=True)
            self.reads()
        return self._traced[variant]

    def trace_for_kernels(self, variant: Variant) -> Program:
        """Return the program that kernels are made of: that of `trace`, unless the spec has a shorter way."""
        plain = self.trace(variant)
        return self._for_kernels.get(variant, plain)

    def read_by_traces(self) -> tuple[object, ...]:
        """Return everything that a trace reads of the operator."""
        rest = self.bounds, self.returns, self.nonempty, self.into
        return self.name, self.fn, self.formals, self.saves, *rest

    def reads(self) -> str | None:
        """Return a digest of everything that traces of the spec read; "" for a spec in rlk's own text.

        None where that cannot be followed, and from then on where it was changed after a trace: the programs
        that this process has may be those of before.
        """
        self._reads = _settled(self, self._reads, (self.fn,))
        return self._reads

    # --- calls ---

    def __call__(self, /, *args: Any, **options: Any) -> Any:
        """Run the operator on torch tensors: required ones in order, all else by keyword.

        `inspect.signature` says what it takes. Returns the output, or a named tuple of several. Raises
        LaunchError before anything is launched.
        """
        function = self.calls.function
        if function is None:
            refuse_unregistered(self.name, if_compiled=True)
            function = self.public
        return function(*args, **options)

    @property
    def public(self) -> Callable[..., Any]:
        """The function that a call runs, made from the annotations at first use."""
        if self.calls.function is None:
            # looked up by name: the language knows no runtime, and a spec is read without torch
            importlib.import_module("rlk.runtime.operator").publish(self)
        assert self.calls.function is not None
        return self.calls.function

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.public)

    def numerics_id(self, device: Any, *, math: str | None = None) -> str:
        """Return the id of the operator's numerics on a device: equal ids give equal bits.

        math: as in a call, "portable" or "sm90"; by default the device decides.
        """
        found: str = self.public.numerics_id(device, math=math)  # type: ignore[attr-defined]
        return found

    def tier(self, device: Any, *, math: str | None = None) -> dict[str, str]:
        """Return, for every output, "exact" (the oracle predicts its bits) or "pinned" (they only repeat)."""
        found: dict[str, str] = self.public.tier(device, math=math)  # type: ignore[attr-defined]
        return found

    def explain(self, /, *args: Any, **options: Any) -> Any:
        """Return the code that a call with these arguments (or, given a device only, a call on it) runs."""
        return self.public.explain(*args, **options)  # type: ignore[attr-defined]

    def reference(self, /, *args: Any, **options: Any) -> Any:
        """Return what a call returns, computed in float64 by the function that the registration names."""
        return self.public.reference(*args, **options)  # type: ignore[attr-defined]

    def each(self, /, *args: Any, **options: Any) -> list[Any]:
        """Run the operator on each item of lists and return a list of results, as calls in turn would.

        Tensors are given as lists of equal length; numbers of the host as one for all items, or as a list of
        one for each; statics and math= as one for all. Where the operator is elementwise along the one dim of
        its tensors (`x.view(-1)`), all items of the same dtypes run by one launch, with the same bits.
        Gradients are of calls. Memory that is written overlaps no other item's: this is checked before
        anything is launched. A graph of torch.compile breaks at it, and fullgraph=True refuses it: call the
        operator for each item there. Raises LaunchError; TypeError for arguments that a call does not have.
        """
        found: list[Any] = importlib.import_module("rlk.runtime.operator").each(self, args, options)
        return found

    def prepares(self, fn: Prepare) -> Prepare:
        """Register what makes the gradient's inputs that are neither saved nor cotangents (a decorator).

        fn: takes tensors that the gradient reads and scalars, each by name, and returns tensors by name.
        """
        self.calls.prepare = fn
        return fn

    def vjp(self, *wrt: str) -> Callable[[SpecFunction], Vjp]:
        """Register the gradient with respect to the named inputs."""
        if not all(isinstance(name, str) for name in wrt):
            instead = f'{self.name}.vjp("x"), with the inputs that it is differentiable in'
            raise SpecError(Code.NOT_CALLED, author(), name=f"{self.name}.vjp", instead=instead)
        if not wrt:
            raise SpecError(Code.VJP_OF_NOTHING, author(), op=self.name)
        self._refuse_gradient()

        def register(fn: SpecFunction) -> Vjp:
            self._check_wrt(wrt, _loc(fn))
            self.gradient = Vjp(self, wrt, fn, _formals(fn)[1:])
            return self.gradient

        return register

    def derive_vjp(self, *wrt: str) -> Vjp:
        """Derive the gradient with respect to the named inputs from the spec, and register it.

        wrt: names of floating inputs; none: all of them but those of 8 bits, whose gradients would saturate.
        It reads the inputs and outputs that `saves=` lists, and computes all else again. A gradient that
        is written with `vjp`, before or after, is the operator's; this one is then only returned.
        """
        self._refuse_gradient()
        floats = {f.name: f.type.dtype for f in self.formals if isinstance(f.type, TensorType)}
        wide = (n for n, x in floats.items() if _is_float(x) and not any(d.is_storage for d in _choices(x)))
        wrt = wrt or tuple(wide)
        self._check_wrt(wrt, author())
        derived = Vjp(self, wrt, None)
        if self.gradient is None or self.gradient.fn is None:
            self.gradient = derived
        return derived

    def _refuse_gradient(self) -> None:
        """Raise for an operator that writes into its inputs: what a gradient would read of them is gone."""
        for name, source in self.into.items():
            raise SpecError(Code.INTO_GRADIENT, author(), op=self.name, name=name, input=source)

    def _check_wrt(self, wrt: tuple[str, ...], loc: Loc) -> None:
        """Raise unless a gradient names floating inputs, each once."""
        for at, name in enumerate(wrt):
            if name in wrt[:at]:
                raise SpecError(Code.VJP_TWICE, loc, name=name, op=self.name)
            formal = next((f for f in self.formals if f.name == name), None)
            if formal is None or not isinstance(formal.type, TensorType) or not _is_float(formal.type.dtype):
                raise SpecError(Code.VJP_WRT, loc, name=name, op=self.name)


def refuse_unregistered(name: str, *, if_compiled: bool = False) -> None:
    """Raise for a call that goes through torch's dispatcher, of an operator that torch does not know.

    if_compiled: only where torch's compiler traces the call, which cannot trace how a first call is made.
    """
    torch = sys.modules.get("torch") if if_compiled else None
    if if_compiled and (torch is None or torch._guards.TracingContext.try_get() is None):
        return
    who = "torch.compile, fake tensors, opcheck and DTensors need it"
    raise LaunchError(Code.NOT_REGISTERED, op=name, who=who)


# the attribute of torch.compiler.assume_constant_result: the compiler runs it, and so shows what it raises
refuse_unregistered._dynamo_marked_constant = True  # type: ignore[attr-defined]


def op(
    *misplaced: object,
    saves: tuple[str, ...] = (),
    name: str | None = None,
    bounds: Mapping[Axis, tuple[Axis, ...]] | None = None,
    returns: Mapping[str, str] | tuple[str, ...] = (),
    nonempty: tuple[Axis, ...] = (),
    into: Mapping[str, str] | None = None,
) -> Callable[[SpecFunction], Op]:
    """Make an operator of a spec function.

    saves: the inputs and outputs that the gradient reads. returns: the outputs that a call returns, in order,
    by other names if it is a mapping; by default all. bounds: for a dynamic axis that no tensor has, axes
    whose product of extents bounds the length of each segment, and the sum of lengths of one tensor's.
    nonempty: axes along which a call that has rows must have something, as a table that they index.
    into: outputs that a call writes into the memory of inputs, `{"weight_out": "weight"}`, each of the type
    of its input; it returns these inputs. The spec reads what they held before. What an output leaves out (a
    guarded or scattered store) stays. Such an operator has no gradient; memory that overlaps is ARG_OVERLAP.
    """
    if misplaced:
        raise SpecError(Code.NOT_CALLED, author(), name="op", instead="op()")
    shown = dict(returns) if isinstance(returns, Mapping) else {name: name for name in returns}
    within = tuple((a.name, tuple(x.name for x in of)) for a, of in (bounds or {}).items())
    needed = tuple(axis.name for axis in nonempty)

    def make(fn: SpecFunction) -> Op:
        doc, formals = inspect.getdoc(fn) or "", _formals(fn)
        _check_into(fn, formals, into or {})
        return Op(name or fn.__name__, fn, formals, saves, doc, _loc(fn), within, shown, needed, into)

    return make


def _check_into(fn: SpecFunction, formals: tuple[Formal, ...], into: Mapping[str, str]) -> None:
    """Raise unless outputs are written into tensors of the spec, one into each."""
    tensors = [f.name for f in formals if isinstance(f.type, TensorType)]
    for at, (name, source) in enumerate(into.items()):
        if source not in tensors:
            choices = ", ".join(tensors) or "none"
            raise SpecError(
                Code.UNKNOWN_NAME, _loc(fn), what=f"into={{{name!r}: ...}}", name=source, choices=choices
            )
        if source in [*into.values()][:at]:
            why = "another output is written into it"
            raise SpecError(Code.INTO_WRONG, _loc(fn), name=name, input=source, why=why)


@dataclass(frozen=True, slots=True)
class Slopes:
    """The gradient of a generated operator: as `Vjp` has it, cotangents by name with their types."""

    fn: SpecFunction
    wrt: tuple[str, ...]
    cotangents: Mapping[str, Annotation]


def generated(
    name: str,
    fn: SpecFunction,
    inputs: Mapping[str, Annotation],
    saves: tuple[str, ...],
    doc: str,
    slopes: Slopes,
) -> Op:
    """Make an operator of a spec whose parameters another program lists; `fn` takes them by keyword.

    A name that ends in _ is completed by a digest of the spec's computation; specs with the same computation
    become one operator.
    """
    formals = tuple(Formal(n, type) for n, type in inputs.items())
    made = Op(name, fn, formals, saves, doc, _loc(fn))
    cotangents = tuple(Formal(n, type) for n, type in slopes.cotangents.items())
    made.gradient = Vjp(made, slopes.wrt, slopes.fn, cotangents)
    if name.endswith("_"):
        plain = made.default_variant()
        every = Variant(plain.dtypes, plain.present, plain.statics, frozenset(slopes.wrt))
        done = [print_program(program) for program in (made.trace(plain), made.gradient.trace(every))]
        # the traced program has the provisional name in it
        made.does = digest(done)
        made.name, made._traced, made._for_kernels = f"{name}{made.does[:8]}", {}, {}
    return _generated.setdefault(made.name, made)


_generated: dict[str, Op] = {}


class Context:
    """The forward call as a gradient sees it: saved tensors, scalars, statics, and the wanted gradients."""

    def __init__(self, values: dict[str, object], wanted: frozenset[str], vjp: Vjp) -> None:
        self._values, self._wanted, self._vjp = values, wanted, vjp

    def wants(self, name: str) -> bool:
        """Return whether the caller needs the gradient of an input, which the vjp names."""
        if name not in self._vjp.wrt:
            choices = ", ".join(self._vjp.wrt)
            raise SpecError(Code.UNKNOWN_NAME, author(), what="wanted gradient", name=name, choices=choices)
        return name in self._wanted

    def __getattr__(self, name: str) -> Any:
        if name not in self._values:
            raise SpecError(Code.VJP_SAVED, author(), name=name, op=self._vjp.op.name)
        return self._values[name]


def variants(op: Op) -> Iterator[Variant]:
    """Yield the variants by optional inputs and statics; none where not all can be tried."""
    default = op.default_variant()
    chosen = [f for f in op.formals if isinstance(f.type, StaticType)]
    choices: list[tuple[Any, ...]] = [((), (f.name,)) for f in op.formals if f.optional]
    choices += [_values(f.type) for f in chosen if isinstance(f.type, StaticType)]
    if math.prod(map(len, choices)) > TRIED or not all(choices):
        return
    for picked in itertools.product(*choices):
        present, values = picked[: -len(chosen) or None], picked[len(picked) - len(chosen) :]
        statics = dict(zip((f.name for f in chosen), values, strict=True))
        yield Variant.of(dict(default.dtypes), {n for names in present for n in names}, statics)


TRIED = 256  # variants, beyond which an output may be one of a variant that is not tried


def _values(static: StaticType) -> tuple[object, ...]:
    return ((), static.choices) if static.several and static.choices else static.choices


def dtype_choices(formals: tuple[Formal, ...]) -> dict[str, DType]:
    """Return the first choice of every dtype variable."""
    tensors = [f.type for f in formals if isinstance(f.type, TensorType)]
    return {t.dtype.name: t.dtype.choices[0] for t in tensors if isinstance(t.dtype, DTypeVar)}


def static_defaults(formals: tuple[Formal, ...]) -> dict[str, object]:
    """Return the default of every static (its first choice when it has none)."""
    return {
        f.name: f.default if f.default is not inspect.Parameter.empty else _first(f.type)
        for f in formals
        if isinstance(f.type, StaticType)
    }


def _first(static: StaticType) -> object:
    return () if static.several else static.choices[0]


def declared(formal: Formal, variant: Variant) -> Decl | None:
    """Return the declaration of a parameter in a variant; None for statics and absent optional inputs."""
    if formal.optional and formal.name not in variant.present:
        return None
    match formal.type:
        case TensorType(dtype=dtype, axes=axes):
            bound = dict(variant.dtypes)[dtype.name] if isinstance(dtype, DTypeVar) else dtype
            return Decl(formal.name, TileType(bound, axes), Role.IN)
        case ScalarType(dtype=dtype):
            return Decl(formal.name, TileType(dtype), Role.SCALAR)
        case StaticType():
            return None


def _trace_op(op: Op, variant: Variant, *, kernels: bool = False) -> tuple[Program, bool]:
    """Return the traced program, and whether the spec asked `for_kernels`."""
    decls = [d for d in (declared(f, variant) for f in op.formals) if d is not None]
    dims = union(*(f.type.axes for f in op.formals if isinstance(f.type, TensorType)))
    _check_statics(op, variant)
    tracer = Tracer({d.name: d for d in decls}, dims, kernels=kernels)
    arguments = _arguments(op.formals, variant, tracer)
    types = {d.name: d.type for d in decls}
    tracer.into = {name: types[source].axes for name, source in op.into.items() if source in types}
    made = _run(tracer, op.name, op.loc, lambda: op.fn(**arguments), _absent(op.formals, variant))
    for decl in made.kernels[0].params if op.into else ():
        if decl.role is Role.OUT and decl.name in op.into:
            _check_written(op, decl, types.get(op.into[decl.name]))
    _check_extents(op, made)
    return made, tracer.asked


def _check_extents(op: Op, program: Program) -> None:
    """Raise for a declared extent that is another's of the same name, or of an axis that is nowhere."""
    axes = axes_in(program)
    names = {axis.name for axis in axes}
    declared: dict[str, int | Share] = {}
    for axis in axes:
        if axis.extent is None:
            continue
        if declared.setdefault(axis.name, axis.extent) != axis.extent:
            why = f": another axis of this name has {declared[axis.name]}; names of axes differ"
            raise SpecError(Code.AXIS_EXTENT, op.loc, axis=axis.name, extent=axis.extent, why=why)
        if isinstance(axis.extent, Share) and axis.extent.axis not in names:
            why = f": no tensor of {op.name} has the axis {axis.extent.axis}"
            raise SpecError(Code.AXIS_EXTENT, op.loc, axis=axis.name, extent=axis.extent, why=why)


def _check_written(op: Op, output: Decl, type: TileType | None) -> None:
    """Raise unless an output has the type of the input that it is written into, which must be there."""
    if output.type != type:
        why = "a call without it makes the output too"
        if type is not None:
            why = "it is {}, not {}".format(*distinct_texts(type, output.type))
        raise SpecError(Code.INTO_WRONG, op.loc, name=output.name, input=op.into[output.name], why=why)


def _check_statics(op: Op, variant: Variant) -> None:
    for name, value in variant.statics:
        type = op.formal(name).type
        choices = type.choices if isinstance(type, StaticType) else ()
        several = isinstance(type, StaticType) and type.several
        values = value if several and isinstance(value, tuple) else (value,)
        if choices and not set(values) <= set(choices):
            listed = ", ".join(map(repr, choices))
            raise SpecError(Code.UNKNOWN_NAME, op.loc, what=f"static {name}", name=value, choices=listed)


def _trace_vjp(vjp: Vjp, variant: Variant) -> Program:
    op = vjp.op
    forward = op.trace(Variant(variant.dtypes, _forward_present(op, variant), variant.statics))
    outputs = {d.name: d for d in forward.kernels[0].params if d.role is Role.OUT}
    check_cotangents(vjp, outputs, variant)
    saved = {
        d.name: d for d in (declared(f, variant) for f in op.formals if f.name in op.saves) if d is not None
    }
    saved |= {n: Decl(n, d.type, Role.IN) for n, d in outputs.items() if n in op.saves}
    scalars = [f for f in op.formals if isinstance(f.type, ScalarType)]
    saved |= {d.name: d for d in (declared(f, variant) for f in scalars) if d is not None}
    cotangents = {d.name: d for d in (declared(f, variant) for f in vjp.formals) if d is not None}
    dims = union(*(f.type.axes for f in op.formals + vjp.formals if isinstance(f.type, TensorType)))
    tracer = Tracer(saved | cotangents, dims)
    values: dict[str, object] = {f.name: None for f in scalars}
    values |= dict.fromkeys(op.saves) | {n: _static(op.formal(n), value) for n, value in variant.statics}
    values |= {n: TensorArg(tracer, d) for n, d in saved.items() if d.role is Role.IN}
    values |= {n: ScalarArg.load(tracer, d) for n, d in saved.items() if d.role is Role.SCALAR}
    context = Context(values, variant.wanted, vjp)
    arguments = _arguments(vjp.formals, variant, tracer)
    absent = _absent(op.formals + vjp.formals, variant)

    def body() -> None:
        if vjp.fn is not None:
            vjp.fn(context, **arguments)
            return
        _check_derived(vjp, forward.kernels[0], cotangents)
        given = {n.removeprefix("d_"): x for n, x in arguments.items() if isinstance(x, TensorArg)}
        wanted = [name for name in vjp.wrt if name in variant.wanted]
        kernel = forward.kernels[0]
        backward(lambda apart: Forward(tracer, kernel, op.name, op.loc, op.saves, apart), wanted, given)

    program = _run(tracer, vjp.name, vjp.loc, body, absent)
    _check_gradients(vjp, variant, program)
    return program


def _check_derived(vjp: Vjp, forward: Kernel, given: Mapping[str, Decl]) -> None:
    """Raise for an output that depends on inputs of a derived gradient, and of which no variant told.

    given: the cotangents of a variant. Raises too for one of other dims, or narrower dtype, than its output.
    """
    op, known = vjp.op, {f.name for f in vjp.formals}
    types = {d.name: d.type for d in forward.params}
    instead = f"list the choices of every static, or write the gradient: @{op.name}.vjp(...)"
    for name in reached(forward, vjp.wrt):
        if f"d_{name}" not in known and (not op.returns or name in op.returns):
            what = f"the output {name}, which no variant has that could be listed"
            raise SpecError(Code.VJP_DERIVED, op.loc, op=op.name, what=what, instead=instead)
        cotangent = given.get(f"d_{name}")
        exact = {DType.F32, types[name].dtype}  # what holds every cotangent of the output
        same_dims = cotangent is not None and cotangent.type.axes == types[name].axes
        if cotangent is not None and not (same_dims and cotangent.type.dtype in exact):
            here, there = distinct_texts(types[name], cotangent.type)
            what = f"the output {name}, which is {here} here and {there} in another variant"
            instead = f"name outputs of two types apart, or write the gradient: @{op.name}.vjp(...)"
            raise SpecError(Code.VJP_DERIVED, op.loc, op=op.name, what=what, instead=instead)


def _derived_formals(vjp: Vjp) -> tuple[Formal, ...]:
    """Return the cotangents that a derived gradient takes, all optional: those that calls can have."""
    op, found = vjp.op, dict[str, Formal]()
    for variant in (op.default_variant(), *variants(op)):
        try:
            kernel = op.trace(variant).kernels[0]
        except SpecError:  # the author refuses this combination
            continue
        types = {d.name: d for d in kernel.params}
        for name in reached(kernel, vjp.wrt):
            if f"d_{name}" not in found and (not op.returns or name in op.returns):
                dtype = _variable_of(op, types[name], variant) or types[name].type.dtype
                type = TensorType(dtype, types[name].type.axes, optional=True)
                found[f"d_{name}"] = Formal(f"d_{name}", type, None)
    return tuple(found.values())


def check_cotangents(vjp: Vjp, outputs: Mapping[str, Decl], variant: Variant) -> None:
    """Raise for a parameter of a vjp that is meant to be a cotangent and has not the name or type of one.

    outputs: of a variant of the forward. Other parameters are extra inputs, which a caller computes.
    """
    cotangents = {f"d_{name}" for name in outputs}
    choices = ", ".join(sorted(cotangents))
    for formal in vjp.formals:
        name = formal.name
        absent = name.startswith("d_") and name not in cotangents and not formal.optional
        meant = name not in cotangents and not {name, *_stems(name)}.isdisjoint(outputs)
        if absent or meant:
            raise SpecError(Code.VJP_COTANGENT, vjp.loc, op=vjp.op.name, name=name, choices=choices)
    if not any(f.name.startswith("d_") for f in vjp.formals):
        raise SpecError(Code.VJP_WITHOUT_COTANGENT, vjp.loc, op=vjp.op.name, choices=choices)
    for formal in vjp.formals:
        output = outputs.get(formal.name.removeprefix("d_")) if formal.name in cotangents else None
        # rlk's own may be of another dtype: its calls round cotangents to it
        if output is not None and vjp.fn is not None and not vjp.fn.__module__.startswith(f"{OWN}."):
            _check_cotangent(vjp, formal, output, variant)


def _check_cotangent(vjp: Vjp, formal: Formal, output: Decl, variant: Variant) -> None:
    """Raise unless a cotangent is declared in the type that its output has in a variant."""
    given = declared(formal, replace(variant, present=frozenset({formal.name})))
    if given is not None and given.role is Role.IN and given.type == output.type:
        return
    dtype = _variable_of(vjp.op, output, variant) or output.type.dtype
    annotation = TensorType(dtype, output.type.axes, formal.optional).written()
    wanted, got = (output.type, "no tensor") if given is None else distinct_texts(output.type, given.type)
    raise SpecError(
        Code.VJP_COTANGENT_TYPE, vjp.loc, op=vjp.op.name, name=formal.name, output=output.name,
        wanted=wanted, got=got, annotation=annotation,
    )  # fmt: skip


def _variable_of(op: Op, output: Decl, variant: Variant) -> DTypeVar | None:
    """Return the dtype variable that an output's dtype follows; None where the dtype is always the same."""
    bound = dict(variant.dtypes)
    for var in dict.fromkeys(f.type.dtype for f in op.formals if isinstance(f.type, TensorType)):
        if isinstance(var, DTypeVar) and bound[var.name] is output.type.dtype:
            present = _forward_present(op, variant)
            for other in (c for c in var.choices if c is not output.type.dtype):
                there = Variant.of(bound | {var.name: other}, present, dict(variant.statics))
                params = op.trace(there).kernels[0].params
                if any(d.name == output.name and d.type.dtype is other for d in params):
                    return var
    return None


def _stems(name: str) -> set[str]:
    """Return a name without the marks that papers and other packages give to cotangents."""
    stems = {name.removeprefix(mark) for mark in ("grad_", "g_", "dl_", "d", "g")}
    return (stems | {name.removesuffix(mark) for mark in ("_grad", "_bar", "_cotangent")}) - {name}


def _check_gradients(vjp: Vjp, variant: Variant, program: Program) -> None:
    """Raise unless exactly the wanted gradients are written, each in the type of its input."""
    got = {d.name: d.type for d in program.kernels[0].params if d.role is Role.OUT}
    inputs = {n: declared(vjp.op.formal(n), variant) for n in vjp.wrt}
    types = {f"d_{n}": d.type for n, d in inputs.items() if d is not None}
    wanted = {f"d_{n}" for n in variant.wanted}
    wrong = {n for n, type in types.items() if n in got and got[n] != type}
    if wanted <= got.keys() <= {f"d_{n}" for n in vjp.wrt} and not wrong:
        return
    for name in sorted(wrong):
        given, type, input = got[name], types[name], name.removeprefix("d_")
        fields = {"op": vjp.op.name, "name": name, "input": input}
        if {*given.axes} == {*type.axes} and given.dtype is not type.dtype:
            raise SpecError(Code.VJP_DTYPE, vjp.loc, **fields, got=given.dtype, wanted=type.dtype)
        if {*given.axes} == {*type.axes}:
            dims, wanted_dims = (", ".join(map(str, t.axes)) for t in (given, type))
            raise SpecError(Code.VJP_DIMS, vjp.loc, **fields, got=dims, wanted=wanted_dims)
    pairs = {n: distinct_texts(type, types.get(n, type)) for n, type in sorted(got.items())}
    raise SpecError(
        Code.VJP_OUTPUTS,
        vjp.loc,
        op=vjp.op.name,
        got=", ".join(f"{n}: {type}" for n, (type, _) in pairs.items()) or "nothing",
        wanted=", ".join(
            f"{n}: {pairs[n][1] if n in pairs else types[n]}" if n in types else n
            for n in sorted(wanted | wrong)
        )
        or "nothing",
    )


def _forward_present(op: Op, variant: Variant) -> frozenset[str]:
    names = {f.name for f in op.formals}
    return frozenset(n for n in variant.present if n in names)


def _arguments(formals: tuple[Formal, ...], variant: Variant, tracer: Tracer) -> dict[str, object]:
    statics = dict(variant.statics)
    arguments: dict[str, object] = {}
    for formal in formals:
        decl = declared(formal, variant)
        if isinstance(formal.type, StaticType):
            arguments[formal.name] = _static(formal, statics.get(formal.name, formal.default))
        elif decl is None:
            arguments[formal.name] = None
        elif decl.role is Role.SCALAR:
            arguments[formal.name] = ScalarArg.load(tracer, decl)
        else:
            arguments[formal.name] = TensorArg(tracer, decl)
    return arguments


class Needed(tuple[object, ...]):
    """The value of a `Needs` parameter in a spec: asking for a name that it does not list is an error."""

    name: str
    choices: tuple[object, ...]

    def __contains__(self, wanted: object) -> bool:
        if wanted not in self.choices:
            choices = ", ".join(map(str, self.choices))
            raise SpecError(
                Code.UNKNOWN_NAME, author(), what=f"name in {self.name}", name=wanted, choices=choices
            )
        return super().__contains__(wanted)


def _static(formal: Formal, value: object) -> object:
    """Return the value of a static as a spec sees it."""
    if not (isinstance(formal.type, StaticType) and formal.type.several and isinstance(value, tuple)):
        return value
    found = Needed(value)
    found.name, found.choices = formal.name, formal.type.choices
    return found


def _place_in(error: Exception, file: str) -> Loc:
    """Return the innermost line of a file that an error passed through."""
    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
    return Loc(file, lines[-1] if lines else 0)


def _absent(formals: tuple[Formal, ...], variant: Variant) -> tuple[str, ...]:
    return tuple(f.name for f in formals if f.optional and f.name not in variant.present)


def _run(
    tracer: Tracer, name: str, spec: Loc, body: Callable[[], object], absent: tuple[str, ...]
) -> Program:
    """Trace a body. absent: the optional inputs that the variant has not."""
    if not is_free(name):  # the name of its module's function, and the start of those of its kernels
        raise SpecError(Code.RESERVED_NAME, spec, name=name, instead=f"my_{name}_op")
    activate(tracer)
    try:
        body()
        block = tracer.finish(spec)
    except (TypeError, AttributeError) as error:
        if isinstance(error, RlkError):
            raise
        place = _place_in(error, spec.file)
        if place.line and (slip := of_keyword(str(error))):
            raise SpecError(Code.TILE_OPERATOR, place, what=slip[0], instead=slip[1]) from error
        if "'NoneType'" not in str(error):
            raise
        named = [name for name in absent if place.mentions(name)]
        if not named:
            raise
        raise SpecError(Code.OPTIONAL_ABSENT, place, name=named[0]) from error
    finally:
        deactivate()
    params = tuple(tracer.builder.params.values())
    if (hidden := f"{name}_rows") in tracer.builder.params:  # a function of its module
        raise SpecError(Code.RESERVED_NAME, spec, name=hidden, instead=f"{hidden}_value")
    return Program(name, (Kernel(name, params, block),))


_COMPLETE: dict[type, str] = {
    Tensor: "Tensor[f32, T, N], with its dtype and dims",
    Scalar: "Scalar[f32], with its dtype",
    Static: 'Static["a", "b"], with its values',
    Needs: 'Needs["a", "b"], with its names',
}
"""Annotations to write for classes of the language alone."""


@cache
def _formals(fn: SpecFunction) -> tuple[Formal, ...]:
    formals = []
    for p in inspect.signature(fn, eval_str=True).parameters.values():
        annotation = p.annotation
        if not isinstance(annotation, TensorType | ScalarType | StaticType):
            if p.name == "ctx":
                annotation = StaticType(())
            else:
                found = "no annotation" if annotation is p.empty else annotation
                instead = "Tensor[...], for a number Scalar[f32], for an option Static[...]"
                for word in (annotation, *get_args(annotation)):  # of Scalar | None, both
                    if isinstance(word, type) and word in _COMPLETE:
                        found, instead = f"{word.__name__} without [...]", _COMPLETE[word]
                raise SpecError(Code.PARAM_KIND, _loc(fn), name=p.name, found=found, instead=instead)
        if p.default is not p.empty and (accepted := _refuses(annotation, p.default)):
            names = {"name": p.name, "value": p.default, "accepted": accepted}
            raise SpecError(Code.DEFAULT_REFUSED, _loc(fn), **names)
        formals.append(Formal(p.name, annotation, p.default))
    axes = axes_of(tuple(formals))
    for axis in axes:
        check_free(axis.name, (), _loc(fn))
    for formal in formals:
        if not isinstance(formal.type, StaticType):
            check_free(formal.name, axes, _loc(fn))
    return tuple(formals)


def _refuses(annotation: Annotation, default: object) -> str:
    """Return what a parameter accepts, if its default is none of that; else nothing."""
    match annotation:
        case TensorType() if default is not None:
            return "None, for a tensor that may be left out"
        case ScalarType(least=least, most=most) if default is not None:
            ends = (-math.inf if least is None else least, math.inf if most is None else most)
            if not isinstance(default, int | float) or not ends[0] <= default <= ends[1]:
                return f"a number from {ends[0]} to {ends[1]}"
        case StaticType(choices=choices, several=True) if not set(default) <= set(choices):  # type: ignore[call-overload]
            return f"a tuple of some of {', '.join(map(repr, choices))}"
        case StaticType(choices=choices, several=False) if choices and default not in choices:
            return f"one of {', '.join(map(repr, choices))}"
        case _:
            pass
    return ""


def _loc(fn: SpecFunction) -> Loc:
    return Loc(fn.__code__.co_filename, fn.__code__.co_firstlineno)


def _choices(dtype: DType | DTypeVar) -> tuple[DType, ...]:
    return dtype.choices if isinstance(dtype, DTypeVar) else (dtype,)


def _is_float(dtype: DType | DTypeVar) -> bool:
    return all(d.is_float for d in _choices(dtype))


def axes_of(formals: tuple[Formal, ...]) -> tuple[Axis, ...]:
    """Return every axis that the tensor parameters name, in order of first appearance."""
    return union(*(f.type.axes for f in formals if isinstance(f.type, TensorType)))
