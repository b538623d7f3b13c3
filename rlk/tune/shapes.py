"""Shapes that are tuned: sizes by axis, the shipped lists, and how sizes are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType

from rlk.env import whole
from rlk.errors import Code, LaunchError
from rlk.ir.dims import Axis
from rlk.lang.op import Op
from rlk.lang.types import TensorType
from rlk.runtime.call.autograd import Separate
from rlk.runtime.registry import find

ROWS = (1, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192)
SIDES = (4096, 14336)
PIECE_ROWS = (16, 64, 128, 256, 512)  # of a product by pieces, whose columns are few: 4096
HEAD_ROWS = (1, 64, 300, 1024, 8192)
GRADIENT_ROWS = (64, 1024, 8192)
OTHER_ROWS = (64, 1024, 8192)  # of operators without a list: extents of their dynamic axes
TRAINED_ROWS = 1024  # of the gradients of a model
VOCABULARY, HIDDEN = 128256, 4096


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a call: of a contraction with a list of its own by its letters, else of every axis by name.

    op: the name of what is tuned, that of a gradient with GRADIENT, of one input's with ONE and its name.
    """

    op: str
    sizes: tuple[tuple[str, int], ...]

    @staticmethod
    def of(op: str, *sizes: int) -> Shape:
        """Return a shape of a contraction in SUBJECTS: rows, columns and length."""
        return Shape(op, tuple(zip(SUBJECTS[op].letters, sizes, strict=True)))

    @property
    def contraction(self) -> tuple[int, int, int]:
        """Rows, columns and length; of a head, hidden units are what its forward contracts."""
        rows, columns, length = (size for _, size in self.sizes)
        return rows, columns, length

    def __str__(self) -> str:
        return text_of(self.op, dict(self.sizes))


def text_of(op: str, sizes: Mapping[str, int]) -> str:
    """Return a shape as messages have it."""
    if op in SUBJECTS:
        return f"{op} {' x '.join(map(str, sizes.values()))}"
    return f"{op} {', '.join(f'{axis}={size}' for axis, size in sizes.items())}"


@dataclass(frozen=True, slots=True)
class Subject:
    """A contraction with a list: the letters of rows, columns and length, and the default sizes."""

    letters: tuple[str, str, str]
    sizes: tuple[tuple[int, int, int], ...]


SUBJECTS: Mapping[str, Subject] = {
    "matmul": Subject(("M", "N", "K"), tuple((m, n, k) for m in ROWS for n in SIDES for k in SIDES)),
    "matmul_leaf8": Subject(("M", "N", "K"), tuple((m, SIDES[0], k) for m in PIECE_ROWS for k in SIDES)),
    "linear_logp": Subject(("N", "V", "D"), tuple((m, VOCABULARY, HIDDEN) for m in HEAD_ROWS)),
    "linear_logp_grad": Subject(("N", "V", "D"), tuple((m, VOCABULARY, HIDDEN) for m in GRADIENT_ROWS)),
}
GRADIENT = "_grad"  # of an operator's name
ONE = "_grad@"  # of that of the gradient of one input, which stands behind it
GROUPED = "grouped_matmul"
Call = tuple[str, dict[str, int], int]
"""An operator, the sizes of its axes that are weights', and its rows for each row of the model."""


def subject(op: str, gradient: bool) -> str:
    """Return the name of what is tuned; raise LaunchError for no operator, or one without a gradient.

    op: the name of any registered operator, or path/to/spec.py:name.
    """
    if op.endswith(GRADIENT):
        choices = f"{op.removesuffix(GRADIENT)} --grad"
        raise LaunchError(Code.UNKNOWN_NAME, what="operator", name=op, choices=choices)
    if gradient and found(op)[0].gradient is None:
        raise LaunchError(Code.NOT_DIFFERENTIABLE, op="rlk tune", name=op, choices="no input of it")
    found(op)
    return op + GRADIENT * gradient


@cache
def found(name: str) -> tuple[Op, ModuleType]:
    """Return the operator and the module of a subject's name, its gradient's too: a file is imported once."""
    return find(base_of(name))


def base_of(name: str) -> str:
    """Return the operator of a subject's name."""
    return name.partition(ONE)[0].removesuffix(GRADIENT)


def separately(shapes: Iterable[Shape]) -> tuple[Shape, ...]:
    """Return shapes with each gradient whose inputs have kernels of their own once for each of these."""
    import rlk.ops  # noqa: F401 - which says so of rlk's own operators

    made: list[Shape] = []
    for each in shapes:
        op = found(each.op)[0]
        how = op.calls.separate
        if not isinstance(how, Separate) or not each.op.endswith(GRADIENT):
            made.append(each)
            continue
        there = [f.name for f in op.formals if not f.optional or f.name in op.record.present]
        made += [Shape(f"{each.op}@{name}", each.sizes) for name in how.reads if name in there]
    return tuple(made)


def axes_of(op: Op) -> dict[str, Axis]:
    """Return the axes of the tensors that are there in the variant that stands for an operator."""
    present = set(op.record.present)
    there = (f for f in op.formals if not f.optional or f.name in present)
    types = (f.type for f in there if isinstance(f.type, TensorType))
    return {axis.name: axis.whole for type in types for axis in type.axes}


def shapes(name: str) -> tuple[Shape, ...]:
    """Return the default shapes of what is tuned: a list, else registered extents with few to many rows."""
    if name in SUBJECTS:
        return tuple(Shape.of(name, *sizes) for sizes in SUBJECTS[name].sizes)
    every = (_complete(name, {}, rows) for rows in OTHER_ROWS)
    return tuple(dict.fromkeys(every))


@dataclass(frozen=True, slots=True)
class Mixture:
    """A model's layers of experts: count, those of a token, width of each, and of those that all tokens have.

    dense: whether other layers have an MLP. gate: the operator between an expert's two products.
    """

    count: int
    k: int
    width: int
    shared: int
    dense: bool
    gate: str


def of_model(
    sizes: Mapping[str, int], gate: str, rows: Sequence[int], experts: Mixture | None = None
) -> tuple[Shape, ...]:
    """Return the shapes of a decoder's products, norms, activations and head, then those of their gradients.

    sizes: hidden, vocab, intermediate, heads, kv_heads, head_dim. gate: swiglu or geglu. rows: of calls;
    gradients are of those that training has, from `TRAINED_ROWS` on. experts: their products are grouped, of
    k rows for each row of the model, and `intermediate` counts for dense layers alone.
    """
    hidden, vocab = sizes["hidden"], sizes["vocab"]
    heads = sizes["heads"] * sizes["head_dim"]
    both = heads + 2 * sizes["kv_heads"] * sizes["head_dim"]
    mlps = [sizes["intermediate"]] if experts is None or experts.dense else []
    if experts is not None and experts.shared:
        mlps.append(experts.shared)
    products = [(both, hidden), (hidden, heads)]
    for wide in mlps:
        products += [(2 * wide, hidden), (hidden, wide)]
    if experts is not None:
        products.append((experts.count, hidden))  # the router
    calls: list[Call] = [("matmul", {"N": n, "K": k}, 1) for n, k in dict.fromkeys(products)]
    if experts is not None:
        each, k, wide = {"E": experts.count}, experts.k, experts.width
        calls += [
            (GROUPED, {**each, "N": 2 * wide, "K": hidden}, k),
            (GROUPED, {**each, "N": hidden, "K": wide}, k),
            (experts.gate, {"N": wide}, k),
        ]
    calls += [("linear_logp", {"V": vocab, "D": hidden}, 1), ("logp", {"V": vocab}, 1)]
    calls += [("rms_norm", {"N": hidden}, 1), *((gate, {"N": wide}, 1) for wide in mlps)]
    trained = [n for n in rows if n >= TRAINED_ROWS]
    forward = [_sized(name, n * times, held) for name, held, times in calls for n in rows]
    return (
        *forward,
        *(_sized(name + GRADIENT, n * times, held) for name, held, times in calls for n in trained),
    )


def _sized(name: str, rows: int, held: Mapping[str, int]) -> Shape:
    if name in SUBJECTS:
        return Shape.of(name, rows, *held.values())
    return _complete(name, {"T": rows, **held}, rows)


def shape(name: str, text: str) -> Shape:
    """Return what "M=64,N=4096,K=4096" means; raise LaunchError for anything else.

    Axes that are not named have the extents with which the operator is registered.
    """
    letters = SUBJECTS[name].letters if name in SUBJECTS else tuple(axes_of(found(name)[0]))
    pairs = [part.partition("=") for part in text.split(",")]
    sizes = {letter.strip(): count for letter, _, size in pairs if (count := whole(size))}
    missing = name in SUBJECTS and len(sizes) < len(letters)
    if missing or not sizes or not sizes.keys() <= {*letters} or len(pairs) != len(sizes):
        wanted = ",".join(f"{letter}=4096" for letter in letters)
        raise LaunchError(Code.ARG_VALUE, op="rlk tune", name="--shape", value=text[:60], wanted=wanted)
    if name in SUBJECTS:
        return Shape(name, tuple((letter, sizes[letter]) for letter in letters))
    return _complete(name, sizes, OTHER_ROWS[1])


def _complete(name: str, sizes: Mapping[str, int], rows: int) -> Shape:
    """Return a shape of all axes: sizes given, else those of the registration, else rows of dynamic axes."""
    op, _ = found(name)
    known = {**op.record.extents, **sizes}
    axes = axes_of(op)
    unknown = [name for name, axis in axes.items() if name not in known and not axis.dynamic]
    if unknown:
        wanted = f"--shape {','.join(f'{axis}=4096' for axis in unknown)}, or extents= in its registration"
        raise LaunchError(
            Code.ARG_MISSING, op=op.qualified, name=", ".join(unknown), why=f"to tune: {wanted}"
        )
    return Shape(name, tuple((axis, known.get(axis, rows)) for axis in axes))
