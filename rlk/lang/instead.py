"""The words of the language for functions and methods of torch's and NumPy's arrays."""

from __future__ import annotations

import re
from typing import NoReturn

from rlk.errors import Code, SpecError, author
from rlk.ir.nodes import Fn1, MathFn

_METHODS = {
    "sum": "L.sum(x, over=axis, tree=Tree.halving)",
    "mean": "L.sum(x, over=axis, tree=Tree.halving) / L.extent(axis).to(f32)",
    "shape": "L.extent(axis), i32; .axes has the axes",
    "size": "L.extent(axis), i32; .axes has the axes",
    "float": ".to(f32)",
    "half": ".to(f16)",
    "bfloat16": ".to(bf16)",
    "int": ".to(i32)",
    "long": ".to(i64)",
    "bool": "x != 0",
    "type": ".to(dtype)",
    "clamp": "L.clip(x, low, high)",
    "pow": "x * x; for other powers L.exp(p * L.log(x))",
    "matmul": "L.dot(a, b, over=axis)",
    "softmax": "e = L.exp(x - L.max(x, over=axis)), and e / L.sum(e, over=axis, tree=Tree.halving)",
    "argmax": "L.argmax() and absorb chunks of a stream",
    "abs": "abs(x)",
    "neg": "-x",
    "not": "~x",
    "logical_not": "~x",
    "relu": "L.maximum(x, 0.0), which is 0 for NaN; L.where(x > 0.0, x, x * 0.0) keeps NaN",
    "gelu": "x * 0.5 * (1.0 + L.erf(x * 0.7071067811865476))",
    "silu": "x * L.sigmoid(x)",
    "softplus": "L.maximum(x, 0.0) + L.log1p(L.exp(-abs(x)))",
    "square": "x * x",
    "reciprocal": "1.0 / x",
    "ceil": "-L.floor(-x)",
    "sign": "L.where(x > 0.0, 1.0, L.where(x < 0.0, -1.0, 0.0))",
    "prod": "L.exp(L.sum(L.log(x), over=axis, tree=Tree.halving)), of positive numbers",
    "amax": "L.max(x, over=axis)",
    "amin": "L.min(x, over=axis)",
    "logsumexp": "L.softmax_sum(), absorb chunks of a stream, and .lse()",
    "cumsum": "L.carry(0.0, rows), along a stream with chunk=1",
    "arange": "L.pos(axis)",
    "zeros": "L.number(0.0, f32)",
    "ones": "L.number(1.0, f32)",
    "full": "L.number(x, dtype)",
    "cast": ".to(dtype)",
    "mm": "L.dot(a, b, over=axis)",
    "einsum": "L.dot(a, b, over=axis)",
    "gather": "the tensor's .at(...)",
    "isinf": "abs(x) == math.inf",
    "isfinite": "abs(x) < math.inf",
    "clamp_min": "L.maximum(x, low)",
    "clamp_max": "L.minimum(x, high)",
    "at": 'the tensor\'s .at(...); a computed value is first materialized: L.table(x, "name").at(...)',
    "T": "nothing: tiles are broadcast by the names of their axes; L.place orders the dims of an output",
    "view": "nothing: tiles are broadcast by the names of their axes; L.place orders the dims of an output",
}


def written_instead(name: str) -> str:
    """Return what to write for a function or a method of torch's or NumPy's arrays."""
    known = {
        "transpose": "T", "permute": "T", "reshape": "view", "unsqueeze": "view", "squeeze": "view",
        "absolute": "abs", "power": "pow", "clip": "clamp", "bmm": "mm",
    }  # fmt: skip
    found = hint(known.get(name, name))
    functions = {fn.value for fn in (*MathFn, *Fn1)} | {"max", "min", "any", "where"}
    more = ", over=axis" if name in ("max", "min", "any") else ""
    other = f"L.{name}(x{more})" if name in functions else "a function of L, or .to, .bits, .dtype, .axes"
    return found or other


def hint(name: str) -> str:
    """Return what to write for a function that L has not; an empty text where nothing stands for it."""
    return _METHODS.get(name, "")


def of_keyword(error: str) -> tuple[str, str] | None:
    """Return the call of L that a TypeError tells of, with torch's or NumPy's keywords, and what to write."""
    found = re.match(r"(L\.\w+)\(\) (?:got an unexpected keyword argument '(\w+)'|missing .* 'over')", error)
    if found is None:
        return None
    name, keyword = found.groups()
    if keyword in ("keepdim", "keepdims"):
        return f"{keyword}= of {name}", "nothing: tiles are broadcast by the names of their axes"
    if keyword in (None, "dim", "dims", "axis", "axes"):
        lacks = f"{keyword}= of {name}" if keyword else f"{name} without an axis"
        return lacks, "over=N, with N = Axis(...) among its axes: axes are named, not numbered"
    return None


def no_assignment(self: object, items: object, value: object) -> NoReturn:
    """Raise SpecError for `x[...] = value`."""
    instead = "L.where(L.pos(axis) == i, value, x), or L.place for elements of an output"
    raise SpecError(Code.TILE_OPERATOR, author(), what="an assignment to elements", instead=instead)
