"""A traced program as the text of a spec: what an author would write for it, one value in a line."""

from __future__ import annotations

import keyword
import math
from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from rlk.errors import Code, LaunchError
from rlk.ir.dims import Axis, Part
from rlk.ir.monoid import Kind, Monoid
from rlk.ir.nodes import (
    Bits,
    Block,
    Cast,
    Check,
    Combine,
    Const,
    Decl,
    Dot,
    Extent,
    Fma,
    Fn1,
    Fn2,
    Fold,
    Keep,
    Kernel,
    Let,
    Load,
    Loop,
    Map1,
    Map2,
    Math,
    MathFn,
    MathModel,
    Merge,
    Node,
    Param,
    Philox,
    Pos,
    Program,
    Reduce,
    Result,
    Role,
    Select,
    Store,
    Stream,
    Value,
    bounds_of,
    const_value,
    operands,
)
from rlk.ir.tree import Order, Tree
from rlk.ir.types import DType, TileType
from rlk.lang.op import Op
from rlk.passes.walk import walk

_SIGNS = {
    Fn2.ADD: "+", Fn2.SUB: "-", Fn2.MUL: "*", Fn2.MOD: "%", Fn2.AND: "&", Fn2.OR: "|", Fn2.XOR: "^",
    Fn2.SHL: "<<", Fn2.SHR: ">>", Fn2.LT: "<", Fn2.LE: "<=", Fn2.EQ: "==", Fn2.NE: "!=",
}  # fmt: skip
_FUNCTIONS = {Fn2.MAX: "maximum", Fn2.MIN: "minimum", Fn2.MULHI: "mulhi"}
_BOUNDS = ("begin", "end", "when", "since", "until")


def gradient_text(op: Op, program: Program) -> str:
    """Return the text of a traced gradient, as `vjp` takes it; of the variant that was traced.

    Raises CANNOT_WRITE for recurrences and merged states, which `--ir` prints.
    """
    assert op.gradient is not None
    (kernel,) = program.kernels
    taken = {f.name for f in op.gradient.formals}
    read = [d for d in kernel.params if d.role in (Role.IN, Role.SCALAR)]
    given = [d for d in read if d.name in taken]
    names = {d.name: d.name if d.name in taken else f"ctx.{d.name}" for d in read}
    listed = ", ".join(["ctx", *(f"{d.name}: {_annotation(d)}" for d in given)])
    wanted = [d.name.removeprefix("d_") for d in kernel.params if d.role is Role.OUT]
    named = ", ".join(f'"{n}"' for n in wanted)
    axes = [_declared(axis, name) for axis, name in _renamed_axes(kernel).items()]
    head = [*axes, f"@{op.name}.vjp({named})", f"def {program.name}({listed}) -> Outputs:"]
    lines = _Writer(kernel, names).lines()
    return "\n".join([*head, *lines, "    return L.out()", ""])


def _annotation(decl: Decl) -> str:
    dtype = "boolean" if decl.type.dtype is DType.BOOL else decl.type.dtype.value
    if decl.role is Role.SCALAR:
        return f"Scalar[{dtype}]"
    return f"Tensor[{', '.join((dtype, *map(_axis, decl.type.axes)))}]"


def _axis(axis: Axis) -> str:
    parts = {Part.PIECE: ".pieces", Part.STEP: ".steps", Part.LANE: ".lanes"}
    return axis.name + parts.get(axis.part, "" if axis.part is Part.ALL else f".{axis.part.value}")


def _renamed_axes(kernel: Kernel) -> dict[Axis, str]:
    """Return names for axes that share theirs with one of the inputs: contracted, but not streamed."""
    known = {a.name: a for d in kernel.params if d.role is Role.IN for a in d.type.axes}
    types = (let.type for let in walk(kernel.body) if isinstance(let.node, Pos))
    axes = (a for type in types if isinstance(type, TileType) for a in type.axes)
    return {a: f"{a.name}_whole" for a in axes if a.part is Part.ALL and known.get(a.name, a) != a}


def _declared(axis: Axis, name: str) -> str:
    cuts = ("chunk", "split", "piece", "fan_in")
    given = [f"{cut}={getattr(axis, cut)}" for cut in cuts if getattr(axis, cut) is not None]
    given += ["dynamic=True"] if axis.dynamic else []
    return f"{name} = Axis({', '.join((repr(axis.name).replace(chr(39), chr(34)), *given))})"


def _tree(order: Order) -> str:
    return f"Tree({order.order})" if isinstance(order, Tree) else f"Tree.{order.value}"


class _Writer:
    """Writes a block. A value that is read once stands where it is read, if its text is short."""

    def __init__(self, kernel: Kernel, params: Mapping[str, str]) -> None:
        self.body, self.params = kernel.body, params
        self.axes = _renamed_axes(kernel)
        self.decls = {d.name: d for d in kernel.params}
        self.lets = {let.value: let for let in walk(kernel.body)}
        self.counts = Counter(v for let in walk(kernel.body) for v in _read_by(let))
        axes = {a.name for d in kernel.params for a in d.type.axes}
        self.used = {"L", "Tree", "math", "ctx", *axes, *(n for n in params.values() if "." not in n)}
        self.texts: dict[Value, str] = {}
        self.loose: set[Value] = set()  # whose text is no operand without brackets
        self.variables: dict[Axis, str] = {}
        self.folds: dict[tuple[Value, int], str] = {}
        self.tables: dict[str, str] = {}

    def lines(self) -> Iterator[str]:
        yield from (f"    {line}" for line in self.block(self.body))

    def block(self, block: Block) -> Iterator[str]:
        here = {v for let in block.lets for v in operands(let.node)}
        for let in block.lets:
            match let.node:
                case Stream() as stream:
                    yield from self.stream(let, stream)
                case Store() as store:
                    yield self.store(store)
                case Check(bad=bad, what=what):
                    yield f'L.check({self.of(bad)}, "{what}")'
                case Const() | Pos() | Extent() | Param() | Result():
                    self.texts[let.value] = self.expression(let)
                case Load(guard=None, fill=None, index=index) if all(
                    isinstance(self.lets[i].node, Pos) for i in index
                ):
                    self.texts[let.value] = self.expression(let)
                case node:
                    text = self.expression(let)
                    once = self.counts[let.value] == 1 and let.value in here
                    if once and len(text) < 48 and not isinstance(node, Keep | Dot | Reduce | Philox):
                        self.texts[let.value] = text
                        if isinstance(node, Map2) and node.fn not in _FUNCTIONS or text.startswith("-"):
                            self.loose.add(let.value)
                    else:
                        self.texts[let.value] = self.name(let.name or _stem(node))
                        yield f"{self.texts[let.value]} = {text}"

    def axis(self, axis: Axis) -> str:
        return self.axes.get(axis) or _axis(axis)

    def name(self, stem: str) -> str:
        """Return a name that nothing has."""
        stem = "".join(c if c.isalnum() or c == "_" else "_" for c in stem)
        stem = f"{stem}_" if keyword.iskeyword(stem) or not stem else stem
        found, count = stem, 1
        while found in self.used:
            count += 1
            found = f"{stem}_{count}"
        self.used.add(found)
        return found

    def of(self, value: Value) -> str:
        """Return a value as an argument."""
        return self.number(value) if isinstance(self.lets[value].node, Const) else self.texts[value]

    def beside(self, value: Value, other: Value) -> str:
        """Return a value as an argument; a number beside a tile is written without its dtype."""
        let = self.lets[value]
        is_alone = not isinstance(let.node, Const) or isinstance(self.lets[other].node, Const)
        return self.of(value) if is_alone else self.literal(let)

    def inner(self, value: Value, other: Value | None = None) -> str:
        """Return a value as an operand."""
        text = self.of(value) if other is None else self.beside(value, other)
        return f"({text})" if value in self.loose else text

    def literal(self, let: Let) -> str:
        assert isinstance(let.node, Const) and isinstance(let.type, TileType)
        number = const_value(let.node.bits, let.type.dtype)
        if not isinstance(number, float):
            return repr(number)
        if not math.isfinite(number):
            return "math.nan" if math.isnan(number) else "-math.inf" if number < 0 else "math.inf"
        shortest = repr(float(str(np.float32(number))))  # as few digits as give the same f32
        return shortest if np.float32(float(shortest)) == np.float32(number) else repr(number)

    def number(self, value: Value) -> str:
        let = self.lets[value]
        assert isinstance(let.type, TileType)
        dtype = "boolean" if let.type.dtype is DType.BOOL else let.type.dtype.value
        return f"L.number({self.literal(let)}, {dtype})"

    def expression(self, let: Let) -> str:
        """Return the text of a node."""
        match let.node:
            case Param(name=name):
                return self.params.get(name, name)
            case Const():
                return self.literal(let)
            case Pos(axis=axis):
                return (
                    f"{self.variables[axis]}.pos" if axis in self.variables else f"L.pos({self.axis(axis)})"
                )
            case Extent(axis=axis):
                return f"L.extent({_axis(axis)})"
            case Map1() | Map2() | Math() | Fma() | Select() | Cast() | Bits():
                return self.elementwise(let.node)
            case Philox(counter=counter, key=key):
                words, keys = (", ".join(self.of(v) for v in group) for group in (counter, key))
                return f"L.philox(({words}), ({keys}))"
            case Load() as load:
                return self.load(load)
            case Reduce(fn=fn, x=x, over=over, order=order):
                named = {"add": "sum", "or": "any"}.get(fn.value, fn.value)
                tree = "" if order is None else f", tree={_tree(order)}"
                return f"L.{named}({self.of(x)}, over={self.axis(over)}{tree})"
            case Dot(a=a, b=b, over=over, onto=onto, each=each):
                more = "" if onto is None else f", onto={self.of(onto)}"
                more += f", each=({''.join(f'{_axis(a)}, ' for a in each).strip()})" if each else ""
                return f"L.dot({self.of(a)}, {self.of(b)}, over={self.axis(over)}{more})"
            case Keep(x=x):
                return f'L.keep({self.of(x)}, "{let.name}")'
            case Result(of=of, index=index):
                return self.result(of, index)
            case Merge() | Loop() | Stream() | Store() | Check():
                raise LaunchError(Code.CANNOT_WRITE, what="merged states")

    def elementwise(self, node: Node) -> str:
        """Return the text of an elementwise node."""
        match node:
            case Map1(fn=fn, x=x):
                signs = {Fn1.NEG: "-", Fn1.NOT: "~"}
                if fn in signs:
                    return f"{signs[fn]}{self.inner(x)}"
                return f"abs({self.of(x)})" if fn is Fn1.ABS else f"L.{fn.value}({self.of(x)})"
            case Map2(fn=fn2, a=a, b=b) if fn2 in _FUNCTIONS:
                return f"L.{_FUNCTIONS[fn2]}({self.beside(a, b)}, {self.beside(b, a)})"
            case Map2(fn=fn2, a=a, b=b):
                type = self.lets[a].type
                is_float = isinstance(type, TileType) and type.dtype.is_float
                sign = ("/" if is_float else "//") if fn2 is Fn2.DIV else _SIGNS[fn2]
                return f"{self.inner(a, b)} {sign} {self.inner(b, a)}"
            case Math(fn=math_fn, x=x, model=model):
                name = "softmax_exp2" if model is MathModel.SOFTMAX else math_fn.value
                return f"L.{name}({self.of(x)})"
            case Fma(a=a, b=b, c=c):
                return f"L.fma({', '.join(self.of(v) for v in (a, b, c))})"
            case Select(cond=cond, a=a, b=b):
                return f"L.where({self.of(cond)}, {self.beside(a, b)}, {self.beside(b, a)})"
            case Cast(x=x, dtype=dtype):
                return f"{self.inner(x)}.to({'boolean' if dtype is DType.BOOL else dtype.value})"
            case Bits(x=x, dtype=dtype):
                return f"{self.inner(x)}.bits({dtype.value})"
            case _:
                raise AssertionError(node)

    def load(self, load: Load) -> str:
        """Return the text of a load: the whole tensor, a chunk of it, or a gather."""
        name = self.tables.get(load.param) or self.params.get(load.param, load.param)
        nodes = [self.lets[i].node for i in load.index]
        axes = [n.axis for n in nodes if isinstance(n, Pos)]
        own = len(axes) == len(nodes) and load.guard is None and load.fill is None
        streamed = [self.variables[a] for a in axes if a in self.variables]
        if own and not streamed:
            return f"{name}.at({', '.join(map(self.axis, axes))})"
        if own and len(streamed) == 1:
            return f"{name}[{streamed[0]}]"
        index = [self.axis(n.axis) if isinstance(n, Pos) and n.axis not in self.variables else self.of(i)
                 for n, i in zip(nodes, load.index, strict=True)]  # fmt: skip
        more = [f"when={self.of(load.guard)}"] if load.guard is not None else []
        more += [f"fill={self.of(load.fill)}"] if load.fill is not None else []
        return f"{name}.at({', '.join((*index, *more, 'inside=True'))})"

    def store(self, store: Store) -> str:
        """Return the line of a store: an output, or a table."""
        decl = self.decls[store.param]
        listed = ", ".join(map(self.axis, decl.type.axes)) + "," * (len(decl.type.axes) == 1)
        own = [self.lets[i].node == Pos(a) for a, i in zip(decl.type.axes, store.index, strict=True)]
        where = ", ".join(
            f"{self.axis(a)}: {self.of(i)}"
            for a, i, is_own in zip(decl.type.axes, store.index, own, strict=True)
            if not is_own or a in self.variables
        )
        when = "" if store.guard is None else f", when={self.of(store.guard)}"
        if decl.role is Role.WORK:
            self.tables[store.param] = self.name(store.param)
            place = f", {{{where}}}" if where or when else ""
            made = f'L.table({self.of(store.value)}, "{store.param}", ({listed}){place}{when})'
            return f"{self.tables[store.param]} = {made}"
        return f'L.place("{store.param}", ({listed}), ({{{where}}}, {self.of(store.value)}){when})'

    # --- streams ---

    def stream(self, let: Let, stream: Stream) -> Iterator[str]:
        """Yield the lines of a stream and of its folds."""
        if stream.init or stream.rows is not None or stream.after is not None:
            raise LaunchError(
                Code.CANNOT_WRITE, what="a recurrence, or a stream whose states are stored by row"
            )
        results = {x.node.index: x.name for x in self.lets.values()
                   if isinstance(x.node, Result) and x.node.of == let.value}  # fmt: skip
        folds = dict(enumerate(stream.folds))
        if any(f.monoid.kind is Kind.LARGEST for f in stream.folds):
            read = {x.node.index for x in self.lets.values() if self.counts[x.value]
                    and isinstance(x.node, Result) and x.node.of == let.value}  # fmt: skip
            if 0 in read:
                yield from self.largest(let, stream, results.get(0) or "largest")
            # its argmax, which only a gradient reads
            folds = {i: f for i, f in folds.items() if i and read - {0}}
            if not folds:
                return
        first = 0
        for i, fold in enumerate(stream.folds):
            if i not in folds:
                first += len(fold.yielded)
                continue
            softmax = fold.monoid.is_softmax
            stem = "soft" if softmax else results.get(first) or fold.monoid.kind.value
            self.folds[let.value, i] = self.name(stem)
            word = "top" if fold.monoid.kind is Kind.TOP_K else fold.monoid.kind.value
            yield f"{self.folds[let.value, i]} = L.{word}({self.options(fold)})"
            first += len(fold.yielded)
        bounds = zip(_BOUNDS, bounds_of(stream), strict=False)
        given = [f"{name}={self.of(v)}" for name, v in bounds if v is not None]
        given += ["reverse=True"] if stream.reverse else []
        variable = self.name(stream.axis.name.lower())
        self.variables[stream.axis] = variable
        yield f"for {variable} in L.stream({', '.join((_axis(stream.axis), *given))}):"
        yield from (f"    {line}" for line in self.block(stream.body))
        for i, fold in folds.items():
            x, *more = map(self.of, fold.inputs)
            named = zip(
                ("by", "times") if fold.monoid.contracts else fold.monoid.payloads, more, strict=False
            )
            listed = ", ".join((x, *(f"{name}={text}" for name, text in named)))
            yield f"    {self.folds[let.value, i]}.absorb({listed})"
        del self.variables[stream.axis]

    def largest(self, let: Let, stream: Stream, stem: str) -> Iterator[str]:
        """Yield the lines of the largest number of a dynamic axis, whose stream `L.max` makes."""
        yield from self.block(stream.body)  # of the whole axis
        (x,) = stream.folds[0].inputs
        self.folds[let.value, 0] = self.name(stem)
        yield f"{self.folds[let.value, 0]} = L.max({self.of(x)}, over={_axis(stream.axis)})"

    def options(self, fold: Fold) -> str:
        """Return the arguments with which a fold is declared."""
        found = [] if fold.monoid.lanes == Monoid(Kind.TOTAL).lanes else [f"lanes={_tree(fold.monoid.lanes)}"]
        found += [str(fold.monoid.count)] if fold.monoid.count else []
        found += ["kept=True"] if fold.kept and fold.monoid.kind is not Kind.TOP else []
        found += ["open=True"] if fold.open else []
        found += [f"after=({''.join(f'{self.of(v)}, ' for v in fold.after)})"] if fold.after else []
        return ", ".join((*found, *(["entropy=True"] if fold.monoid.centred else [])))

    def result(self, of: Value, index: int) -> str:
        """Return the text of a result of a stream, or of a word of random bits."""
        stream = self.lets[of].node
        if not isinstance(stream, Stream):
            return f"{self.texts[of]}[{index}]"
        for i, fold in enumerate(stream.folds):
            if index < len(fold.yielded):
                name = self.folds[of, i]
                states = ("value",) if fold.monoid.kind is Kind.TOTAL else fold.monoid.state
                if fold.monoid.kind is Kind.LARGEST:
                    return name
                k = fold.monoid.count
                if k and not fold.open:
                    return f"{name}.{'values' if index < k else 'indices'}[{index % k}]"
                if fold.open or fold.monoid.kind is Kind.TOP:
                    return f"{name}.{'states' if fold.open else 'values'}[{index}]"
                is_payload = fold.monoid.is_softmax and states[index] in fold.monoid.payloads
                return f'{name}.payload("{states[index]}")' if is_payload else f"{name}.{states[index]}"
            index -= len(fold.yielded)
        raise AssertionError("a carried value")


def _stem(node: Node) -> str:
    """Return a name for a value that the author gave none."""
    named = {Fn2.MUL: "product", Fn2.ADD: "both", Fn2.SUB: "difference", Fn2.DIV: "quotient"}
    match node:
        case Map2(fn=fn2):
            return named.get(fn2, fn2.value)
        case Map1(fn=Fn1(value=name)) | Math(fn=MathFn(value=name)) | Reduce(fn=Combine(value=name)):
            return name
        case _:
            return type(node).__name__.lower()


def _read_by(let: Let) -> tuple[Value, ...]:
    folds = let.node.folds if isinstance(let.node, Stream) else ()
    return (*operands(let.node), *(v for f in folds for v in f.inputs))
