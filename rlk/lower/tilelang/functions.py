"""Helper functions of generated kernels, where TileLang would round, fold or reorder by itself."""

from __future__ import annotations

from rlk.ir.types import DType
from rlk.lower.common.lines import Function, Line
from rlk.lower.common.machine import TextMachine, written
from rlk.lower.tilelang.text import held, literal


def _helper(name: str, arguments: str, about: str, *body: str) -> Function:
    return Function(name, tuple(arguments.split(", ")), about, tuple(map(Line, body)))


_ALL = (
    _helper(
        "held", "x", "A variable: the text of a value without one is copied to each of its uses.",
        "variable = tl.alloc_var(x.dtype, x)",
        "return variable",
    ),
    _helper("add", "a, b", "A term of a sum.", "return a + b"),
    _helper("most", "a, b", "Of integers.", "return tl.max(a, b)"),
    _helper("least", "a, b", "Of integers.", "return tl.min(a, b)"),
    _helper("bits_of", "x", "As an integer.", 'return tl.reinterpret(x, "int32")'),
    _helper("number_of", "i", "As a float.", 'return tl.reinterpret(i, "float32")'),
    _helper("magnitude", "x", "Without its sign.", "return number_of(bits_of(x) & 0x7FFFFFFF)"),
    _helper("is_nan", "x", "By its bits.", "return (bits_of(x) & 0x7FFFFFFF) > 0x7F800000"),
    _helper(
        "larger", "a, b", "NaN loses, -0.0 < +0.0: of two equal numbers, the sign that both have.",
        "same = number_of(bits_of(a) & bits_of(b))",
        "other = tl.Select(a == b, same, tl.Select(is_nan(a), b, a))",
        "return held(tl.Select(a < b, b, tl.Select(b < a, a, other)))",
    ),
    _helper(
        "smaller", "a, b", "NaN loses, -0.0 < +0.0: of two equal numbers, the sign that one has.",
        "same = number_of(bits_of(a) | bits_of(b))",
        "other = tl.Select(a == b, same, tl.Select(is_nan(a), b, a))",
        "return held(tl.Select(b < a, b, tl.Select(a < b, a, other)))",
    ),
    _helper(
        "fma", "a, b, c", "a * b + c with one rounding.", 'return tl.call_extern("float32", "fmaf", a, b, c)'
    ),
    _helper(
        "hardware_exp2", "x", "2**x as the hardware has it: ex2.approx.ftz.",
        'return tl.call_extern("float32", "rlk_exp2", x)',
    ),
    _helper(
        "any_lane", "condition", "Whether it holds for some thread of the warp.",
        'return tl.call_extern("int32", "__any_sync", tl.uint32(0xFFFFFFFF), condition) != 0',
    ),
    _helper(
        "signed_half", "x", "LLVM makes f16(a * b) of f16(a * b + 0.0), which loses the sign of a zero.",
        'half = tl.alloc_var("int16", tl.reinterpret(tl.Cast("float16", x), "int16"))',
        'sign = tl.alloc_var("int16", tl.Cast("int16", bits_of(x) >> 16) & tl.int16(-32768))',
        'both = tl.alloc_var("int16", half | sign)',
        'return tl.reinterpret(both, "float16")',
    ),
    _helper(
        "philox", "c0, c1, c2, c3, k0, k1", "Four random words: Philox 4x32-10.",
        *(f'x{i} = tl.alloc_var("uint32", c{i})' for i in range(4)),
        *(f'y{i} = tl.alloc_var("uint32", k{i})' for i in range(2)),
        "for _ in tl.unroll(10):",
        '    high0 = tl.alloc_var("uint32", high_product(x0, tl.uint32(0xD2511F53)))',
        '    high1 = tl.alloc_var("uint32", high_product(x2, tl.uint32(0xCD9E8D57)))',
        '    low0 = tl.alloc_var("uint32", x0 * tl.uint32(0xD2511F53))',
        '    low1 = tl.alloc_var("uint32", x2 * tl.uint32(0xCD9E8D57))',
        "    x0 = high1 ^ x1 ^ y0",
        "    x1 = low1",
        "    x2 = high0 ^ x3 ^ y1",
        "    x3 = low0",
        "    y0 = y0 + tl.uint32(0x9E3779B9)",
        "    y1 = y1 + tl.uint32(0xBB67AE85)",
        "return x0, x1, x2, x3",
    ),
    _helper(
        "segment_of", "begin, tile, count, each, rows",
        "The segment that a tile of rows lies in: segment i has tiles from begin[i] * each // rows + i on.",
        'low = tl.alloc_var("int32", 0)',
        'high = tl.alloc_var("int32", count)',
        'middle = tl.alloc_var("int32")',
        "while high - low > 1:",
        "    middle = (low + high) // 2",
        '    if tl.truncdiv(tl.Cast("int32", begin[middle]) * each, rows) + middle > tile:',
        "        high = middle",
        "    else:",
        "        low = middle",
        "return low",
    ),
    _helper(
        "high_product", "a, b", "The upper 32 bits of an unsigned product.",
        'product = tl.Cast("uint64", a) * tl.Cast("uint64", b)',
        'return tl.Cast("uint32", tl.shift_right(product, tl.uint64(32)))',
    ),
)  # fmt: skip
HELPERS = {helper.name: helper for helper in _ALL}
_FLOAT2 = 'tl.call_extern("float32", "{}", a, b)'
_PTX = (
    _helper("larger", "a, b", "NaN loses, -0.0 < +0.0 (PTX max.f32).", f"return {_FLOAT2.format('fmaxf')}"),
    _helper("smaller", "a, b", "NaN loses, -0.0 < +0.0 (PTX min.f32).", f"return {_FLOAT2.format('fminf')}"),
)
OF_VENDORS = {"amd": HELPERS, "nvidia": HELPERS | {helper.name: helper for helper in _PTX}}
"""LLVM's AMD backend takes two zeros for equal."""


class TileLangMachine(TextMachine):
    """The operations of portable functions in TileLang."""

    __slots__ = ()
    real = "y"

    def let(self, text: str, stem: str) -> str:
        return super().let(held(text, DType.I32 if stem == "i" else DType.F32), stem)

    def f32(self, value: float) -> str:
        return literal(value, DType.F32)

    def i32(self, value: int) -> str:
        return literal(value, DType.I32)

    def div(self, a: str, b: str) -> str:
        return self.let(f"{a} / {b}", "y")

    def fma(self, a: str, b: str, c: str) -> str:
        return self.let(f"fma({a}, {b}, {c})", "y")

    def min(self, a: str, b: str) -> str:
        return self.let(f"smaller({a}, {b})", "y")

    def max(self, a: str, b: str) -> str:
        return self.let(f"larger({a}, {b})", "y")

    def lt(self, a: str, b: str) -> str:
        return f"{a} < {b}"

    def eq(self, a: str, b: str) -> str:
        # TileLang takes x == x for true, of a NaN too
        return f"tl.Not(is_nan({a}))" if a == b else f"{a} == {b}"

    def select(self, cond: str, a: str, b: str) -> str:
        return self.let(f"tl.Select({cond}, {a}, {b})", "y")

    def ieq(self, a: str, b: str) -> str:
        return f"{a} == {b}"

    def as_i32(self, x: str) -> str:
        return self.let(f"bits_of({x})", "i")

    def as_f32(self, i: str) -> str:
        return self.let(f"number_of({i})", "y")

    def to_f32(self, i: str) -> str:
        return self.let(f'tl.Cast("float32", {i})', "y")


def portable(name: str) -> Function:
    """Return a portable function as a TileLang macro."""
    return written(name, TileLangMachine())
