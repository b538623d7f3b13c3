"""Transcendental functions as fixed sequences of fma, f32 and i32 operations, the same on every machine.

A function is written once over an abstract machine. NumPy runs it, numba compiles it, and a builder of tile
IR turns it into nodes for the emitters. Coefficients come from tools/fit_portable.py and are frozen: to
change one is to change the numerics of every operator that uses it. Errors against the exact value are
measured by tests/test_portable.py; all are below 2 units in the last place.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

F = TypeVar("F")
I = TypeVar("I")
B = TypeVar("B")


class Machine(Protocol[F, I, B]):
    """The operations of a portable function, on an f32 (F), an i32 that wraps around (I) and a bool (B).

    Every float operation is rounded once, to nearest even, with subnormals. min and max are IEEE 754-2019
    minimumNumber and maximumNumber; lt and eq are false for NaN.
    """

    def f32(self, value: float) -> F: ...
    def i32(self, value: int) -> I: ...

    def add(self, a: F, b: F) -> F: ...
    def sub(self, a: F, b: F) -> F: ...
    def mul(self, a: F, b: F) -> F: ...
    def div(self, a: F, b: F) -> F: ...
    def inverse(self, d: F) -> F:
        """Return 1 / d, for d from 1 to 2 alone."""
        ...

    def fma(self, a: F, b: F, c: F) -> F: ...
    def min(self, a: F, b: F) -> F: ...
    def max(self, a: F, b: F) -> F: ...
    def lt(self, a: F, b: F) -> B: ...
    def eq(self, a: F, b: F) -> B: ...
    def select(self, cond: B, a: F, b: F) -> F: ...

    def iadd(self, a: I, b: I) -> I: ...
    def isub(self, a: I, b: I) -> I: ...
    def iand(self, a: I, b: I) -> I: ...
    def ior(self, a: I, b: I) -> I: ...
    def ixor(self, a: I, b: I) -> I: ...
    def shl(self, a: I, bits: int) -> I: ...
    def sar(self, a: I, bits: int) -> I:
        """Shift right, copying the sign."""
        ...

    def ieq(self, a: I, b: I) -> B: ...

    def as_i32(self, x: F) -> I:
        """Reinterpret the bits."""
        ...

    def as_f32(self, i: I) -> F:
        """Reinterpret the bits."""
        ...

    def to_f32(self, i: I) -> F:
        """Convert the number; every use is below 2**24 and exact."""
        ...


INF = float("inf")
NAN = float("nan")
MAGIC = 12582912.0  # 1.5 * 2**23: x + MAGIC has the integer nearest to x in its low bits, ties to even
ONE = 0x3F800000  # the bits of 1.0
THREE_QUARTERS = 0x3F400000
EXPONENT = 23  # where the exponent field starts
SIGN = -0x80000000
MAGNITUDE = 0x7FFFFFFF
SMALLEST_NORMAL = 2.0**-126

LOG2E = 1.44269504
LOG2E_HIGH, LOG2E_LOW = 1.442695, 1.925963e-08
LN2 = 0.693147182
LN2_HIGH, LN2_LOW = 0.693147182, -1.90465421e-09

# highest power first
EXP2 = (0.00018058953, 0.0013314332, 0.009607519, 0.055505678, 0.24022758, 0.6931471, 1.0)
EXP = (0.001381949, 0.0083686905, 0.04166828, 0.16666521, 0.49999994, 1.0, 1.0)
# fmt: off
LOG = (-0.045135185, 0.10471279, -0.13164203, 0.14478002, -0.16646925, 0.19990832, -0.25000107, 0.3333345,
       -0.5)
LOG2 = (-0.0652458, 0.15115356, -0.189876, 0.20883508, -0.24016319, 0.28841, -0.36067566,
        0.48089996, -0.7213475)
# fmt: on
EXPM1 = (0.00019764257, 0.0013932347, 0.008333543, 0.041666493, 0.16666666, 0.5)
K3 = (2.6118526e-06, 2.5040988e-05, 0.00019858872, 0.0013888375, 0.008333275, 0.041666668, 0.16666667)
TANH = (-0.006169614, 0.021000376, -0.053835757, 0.13332437, -0.33333313)
ERF = (-0.0005959584, 0.0049873525, -0.026762966, 0.11281731, -0.3761249, 0.12837915)
ERFC = (-1.1230012e-05, 0.00032279402, -0.0036424296, 0.02376202, -0.106236845, -0.6351513, -0.12864849)
SIN = (2.8204595e-06, -0.00019852072, 0.008333378, -0.16666667)
COS = (-2.8704312e-07, 2.482041e-05, -0.0013888977, 0.041666668, -0.5, 1.0)

# pi / 2 in three parts; n times the first is subtracted exactly, by one fma
HALF_PI = (1.57079637, -4.37113883e-08, -1.71512451e-15)
TWO_OVER_PI = 0.636619772
TRIG_LIMIT = 2.0**20


def _polynomial(m: Machine[F, I, B], coefficients: tuple[float, ...], x: F) -> F:
    """Horner's scheme, one fma per coefficient after the first."""
    y = m.f32(coefficients[0])
    for c in coefficients[1:]:
        y = m.fma(y, x, m.f32(c))
    return y


def _abs(m: Machine[F, I, B], x: F) -> F:
    return m.as_f32(m.iand(m.as_i32(x), m.i32(MAGNITUDE)))


def _power(m: Machine[F, I, B], n: I, bias: int = 0) -> F:
    """2**(n + bias), for a sum in [-126, 127]; n may carry MAGIC's bits, which the shift drops."""
    return m.as_f32(m.iadd(m.shl(n, EXPONENT), m.i32(ONE + (bias << EXPONENT))))


def _reduced(m: Machine[F, I, B], x: F, shifted: F) -> F:
    """x - n ln 2, for the integer n in `shifted` = n + MAGIC."""
    n = m.sub(shifted, m.f32(MAGIC))
    return m.fma(n, m.f32(-LN2_LOW), m.fma(n, m.f32(-LN2_HIGH), x))


def exp2(m: Machine[F, I, B], x: F) -> F:
    """2**x. Exact for integers; results below 2**-126 are +0, as on the hardware it stands in for."""
    # The clamp keeps 2**n finite; beyond it the fraction grows past 1 and the product overflows by itself.
    shifted = m.add(m.min(x, m.f32(127.0)), m.f32(MAGIC))
    fraction = m.sub(x, m.sub(shifted, m.f32(MAGIC)))
    y = m.mul(_polynomial(m, EXP2, fraction), _power(m, m.as_i32(shifted)))
    return m.select(m.lt(x, m.f32(-126.0)), m.f32(0.0), y)


def _halves(m: Machine[F, I, B], shifted: F) -> tuple[F, F]:
    """Two normal numbers whose product is 2**n, for n in [-252, 254]: n itself may be no normal exponent."""
    n = m.isub(m.as_i32(shifted), m.i32(0x4B400000))
    half = m.sar(n, 1)
    return _power(m, half), _power(m, m.isub(n, half))


def exp(m: Machine[F, I, B], x: F) -> F:
    """e**x, with gradual underflow."""
    y = m.max(m.min(x, m.f32(89.0)), m.f32(-104.0))  # e**89 is inf, e**-104 is 0
    shifted = m.fma(y, m.f32(LOG2E), m.f32(MAGIC))
    p = _polynomial(m, EXP, _reduced(m, y, shifted))
    first, second = _halves(m, shifted)
    y = m.mul(m.mul(p, first), second)  # only the last product rounds
    return m.select(m.eq(x, x), y, x)


def _exp_small(m: Machine[F, I, B], x: F) -> F:
    """e**x for |x| <= 87."""
    shifted = m.fma(x, m.f32(LOG2E), m.f32(MAGIC))
    return m.mul(_polynomial(m, EXP, _reduced(m, x, shifted)), _power(m, m.as_i32(shifted)))


def _log1p_core(m: Machine[F, I, B], f: F) -> F:
    """log(1 + f) for f in [-1/4, 1/2]."""
    return m.fma(_polynomial(m, LOG, f), m.mul(f, f), f)


def _binade(m: Machine[F, I, B], x: F) -> tuple[F, F]:
    """(n, f) with x = 2**n (1 + f) and f in [-1/4, 1/2), for positive finite x, subnormals included."""
    small = m.lt(x, m.f32(SMALLEST_NORMAL))
    bits = m.as_i32(m.select(small, m.mul(x, m.f32(2.0**23)), x))
    n = m.sar(m.isub(bits, m.i32(THREE_QUARTERS)), EXPONENT)
    f = m.sub(m.as_f32(m.isub(bits, m.shl(n, EXPONENT))), m.f32(1.0))
    return m.add(m.to_f32(n), m.select(small, m.f32(-23.0), m.f32(0.0))), f


def _log_edges(m: Machine[F, I, B], x: F, y: F, pole: float) -> F:
    """y, with the values of a logarithm with its pole at `pole`: NaN below it, x itself at +inf and NaN."""
    y = m.select(m.lt(x, m.f32(INF)), y, x)
    y = m.select(m.eq(x, m.f32(pole)), m.f32(-INF), y)
    return m.select(m.lt(x, m.f32(pole)), m.f32(NAN), y)


def log(m: Machine[F, I, B], x: F) -> F:
    """Natural logarithm; log(+-0) = -inf, log(x < 0) = NaN."""
    n, f = _binade(m, x)
    return _log_edges(m, x, m.fma(n, m.f32(LN2), _log1p_core(m, f)), 0.0)


def log2(m: Machine[F, I, B], x: F) -> F:
    """Binary logarithm, exact at powers of two; log2(+-0) = -inf, log2(x < 0) = NaN."""
    n, f = _binade(m, x)
    tail = m.mul(_polynomial(m, LOG2, f), m.mul(f, f))
    tail = m.fma(f, m.f32(LOG2E_LOW), tail)
    return _log_edges(m, x, m.add(n, m.fma(f, m.f32(LOG2E_HIGH), tail)), 0.0)


def log1p(m: Machine[F, I, B], x: F) -> F:
    """log(1 + x); log1p(-1) = -inf, log1p(x < -1) = NaN, log1p(-0) = -0."""
    sum_bits = m.as_i32(m.add(x, m.f32(1.0)))
    n = m.sar(m.isub(sum_bits, m.i32(THREE_QUARTERS)), EXPONENT)
    shift = m.shl(n, EXPONENT)
    # 1 + x = 2**n (1 + f): f = x 2**-n + (2**-n - 1), where 2**-n is held as 4 * 2**-n to stay normal
    scaled = m.as_f32(m.isub(m.as_i32(x), shift))
    power = m.as_f32(m.isub(m.i32(ONE + (2 << EXPONENT)), shift))
    f = m.add(scaled, m.fma(m.f32(0.25), power, m.f32(-1.0)))
    y = _log_edges(m, x, m.fma(m.to_f32(n), m.f32(LN2), _log1p_core(m, f)), -1.0)
    return m.select(m.eq(x, m.f32(0.0)), x, y)


def expm1(m: Machine[F, I, B], x: F) -> F:
    """e**x - 1, accurate near 0; expm1(-0) = -0."""
    y = m.max(m.min(x, m.f32(89.0)), m.f32(-30.0))  # e**89 is inf; below -30 the result is -1
    shifted = m.fma(y, m.f32(LOG2E), m.f32(MAGIC))
    n = m.sub(shifted, m.f32(MAGIC))
    f = _reduced(m, y, shifted)
    is_one = m.eq(n, m.f32(1.0))
    # v = e**f - 1, or for n = 1 already (e**f - 1) + 1/2, which saves a rounding
    v = m.select(is_one, m.add(f, m.f32(0.5)), f)
    v = m.fma(_polynomial(m, EXPM1, f), m.mul(f, f), v)
    # 2**n v + (2**n - 1), at half its size so that n = 128 does not overflow early; high + low = half - 1/2
    half = _power(m, m.as_i32(shifted), -1)
    high = m.sub(half, m.f32(0.5))
    low = m.sub(m.sub(half, high), m.f32(0.5))
    y = m.add(m.fma(v, half, low), high)
    y = m.select(is_one, v, y)
    y = m.select(m.eq(n, m.f32(0.0)), v, m.add(y, y))
    return m.select(m.lt(m.f32(0.0), _abs(m, x)), y, x)  # +-0 and NaN return themselves


def k3(m: Machine[F, I, B], d: F) -> F:
    """e**d - 1 - d, accurate everywhere: the k3 estimate of a KL divergence; never negative."""
    y = m.min(d, m.f32(89.0))  # k3(89) is inf
    near = m.max(y, m.f32(-40.0))  # below, e**d no longer matters
    shifted = m.fma(near, m.f32(LOG2E), m.f32(MAGIC))
    central = m.lt(_abs(m, d), m.f32(0.75))
    shifted = m.select(central, m.f32(MAGIC), shifted)
    r = _reduced(m, near, shifted)
    s = m.mul(r, r)
    p = m.fma(s, m.mul(r, _polynomial(m, K3, r)), m.mul(s, m.f32(0.5)))
    # d = n ln 2 + r: k3(d) = 2**n k3(r) + (2**n r + (2**n - 1 - d)), at half its size
    half = _power(m, m.as_i32(shifted), -1)
    rest = m.fma(y, m.f32(-0.5), m.sub(half, m.f32(0.5)))
    y = m.fma(half, p, m.fma(half, r, rest))
    y = m.select(central, p, m.add(y, y))
    return m.select(m.eq(d, d), y, d)


def tanh(m: Machine[F, I, B], x: F) -> F:
    """Hyperbolic tangent, odd bit for bit."""
    a = _abs(m, x)
    s = m.mul(a, a)
    near = m.fma(m.mul(_polynomial(m, TANH, s), s), a, a)
    e = _exp_small(m, m.mul(m.min(a, m.f32(10.0)), m.f32(2.0)))  # tanh(10) is 1
    far = m.sub(m.f32(1.0), m.div(m.f32(2.0), m.add(e, m.f32(1.0))))
    y = m.select(m.lt(a, m.f32(0.55)), near, far)
    signed = m.as_f32(m.ior(m.as_i32(y), m.iand(m.as_i32(x), m.i32(SIGN))))
    return m.select(m.eq(x, x), signed, x)


def erf(m: Machine[F, I, B], x: F) -> F:
    """Error function, odd bit for bit: x + x P(x^2) below 0.93, 1 - exp(x Q(x) - x) above."""
    a = _abs(m, x)
    near = m.fma(_polynomial(m, ERF, m.mul(a, a)), a, a)
    b = m.min(a, m.f32(4.0))  # erf(4) is 1
    far = m.sub(m.f32(1.0), _exp_small(m, m.fma(_polynomial(m, ERFC, b), b, m.sub(m.f32(0.0), b))))
    y = m.select(m.lt(a, m.f32(0.93)), near, far)
    signed = m.as_f32(m.ior(m.as_i32(y), m.iand(m.as_i32(x), m.i32(SIGN))))
    return m.select(m.eq(x, x), signed, x)


def sigmoid(m: Machine[F, I, B], x: F) -> F:
    """1 / (1 + e**-x), accurate in both tails, with gradual underflow."""
    y = m.max(m.as_f32(m.ior(m.as_i32(x), m.i32(SIGN))), m.f32(-104.0))  # -|x|
    shifted = m.fma(y, m.f32(LOG2E), m.f32(MAGIC))
    r = _reduced(m, y, shifted)
    t = m.mul(_polynomial(m, EXP[:-1], r), r)  # e**r = 1 + t
    first, second = _halves(m, shifted)
    e = m.mul(m.mul(m.add(t, m.f32(1.0)), first), second)
    d = m.add(e, m.f32(1.0))
    q = m.inverse(d)
    # Below 0, e q = 2**n q (1 + t): e and q are rounded already, so t takes what is missing: 1 / (1 + e) is
    # q (1 - u) for u = q (d + low) - 1, where d + low = 1 + e exactly.
    low = m.sub(e, m.sub(d, m.f32(1.0)))
    u = m.fma(q, low, m.fma(q, d, m.f32(-1.0)))
    w = m.mul(q, first)
    below = m.mul(m.fma(w, m.sub(t, m.fma(t, u, u)), w), second)
    y = m.select(m.lt(x, m.f32(0.0)), below, q)
    return m.select(m.eq(x, x), y, x)


def rsqrt(m: Machine[F, I, B], x: F) -> F:
    """1 / sqrt(x); rsqrt(+-0) = +-inf, rsqrt(x < 0) = NaN."""
    small = m.lt(x, m.f32(SMALLEST_NORMAL))
    y = m.select(small, m.mul(x, m.f32(2.0**24)), x)
    # J. Kadlec's start and first step: 6.5e-4 relative; then one cubic step
    r = m.as_f32(m.isub(m.i32(0x5F1FFFF9), m.sar(m.as_i32(y), 1)))
    r = m.mul(m.mul(r, m.f32(-0.703952253)), m.fma(m.mul(y, r), r, m.f32(-2.38924456)))
    e = m.fma(m.mul(y, r), r, m.f32(-1.0))
    r = m.fma(m.mul(r, e), m.fma(e, m.f32(0.375), m.f32(-0.5)), r)
    r = m.mul(r, m.select(small, m.f32(4096.0), m.f32(1.0)))
    r = m.select(m.lt(x, m.f32(INF)), r, m.select(m.eq(x, m.f32(INF)), m.f32(0.0), x))
    infinity = m.as_f32(m.ior(m.iand(m.as_i32(x), m.i32(SIGN)), m.i32(0x7F800000)))
    r = m.select(m.eq(x, m.f32(0.0)), infinity, r)
    return m.select(m.lt(x, m.f32(0.0)), m.f32(NAN), r)


def _sin_cos(m: Machine[F, I, B], x: F, quarter: int) -> F:
    """sin(x + quarter pi / 2) for |x| <= TRIG_LIMIT; NaN beyond."""
    shifted = m.fma(x, m.f32(TWO_OVER_PI), m.f32(MAGIC))
    n = m.sub(shifted, m.f32(MAGIC))
    r = x
    for part in HALF_PI:
        r = m.fma(n, m.f32(-part), r)
    s = m.mul(r, r)
    sine = m.fma(m.mul(_polynomial(m, SIN, s), s), r, r)
    cosine = _polynomial(m, COS, s)
    quadrant = m.iadd(m.as_i32(shifted), m.i32(quarter))
    even = m.ieq(m.iand(quadrant, m.i32(1)), m.i32(0))
    sign = m.shl(m.iand(quadrant, m.i32(2)), 30)
    y = m.as_f32(m.ixor(m.as_i32(m.select(even, sine, cosine)), sign))
    return m.select(m.lt(m.f32(TRIG_LIMIT), _abs(m, x)), m.f32(NAN), y)


def sin(m: Machine[F, I, B], x: F) -> F:
    """Sine of x radians for |x| <= 2**20; NaN beyond: larger arguments have no meaning in f32 phases."""
    return m.select(m.eq(x, m.f32(0.0)), x, _sin_cos(m, x, 0))


def cos(m: Machine[F, I, B], x: F) -> F:
    """Cosine of x radians for |x| <= 2**20; NaN beyond."""
    return _sin_cos(m, x, 1)


def _to_float8(m: Machine[F, I, B], x: F, fraction: int, bias: int, largest: float) -> I:
    """Return the byte of the nearest 8-bit float, ties to even; saturates, and NaN is 0x7f."""
    a = m.min(_abs(m, x), m.f32(largest))
    # a power of two as large as the last place of a's result, times 2**fraction: that of subnormals at least
    power = m.max(m.as_f32(m.iand(m.as_i32(a), m.i32(0x7F800000))), m.f32(2.0 ** (1 - bias)))
    shifter = m.mul(power, m.f32(MAGIC * 2.0**-fraction))
    rounded = m.sub(m.add(a, shifter), shifter)
    # in the exponents of f32 less the difference of biases, where subnormals are subnormals
    small = m.mul(rounded, m.f32(2.0 ** (bias - 127)))
    whole, nan = m.eq(x, x), struct.unpack("<f", struct.pack("<i", 0x7F << (23 - fraction)))[0]
    code = m.sar(m.as_i32(m.select(whole, small, m.f32(nan))), 23 - fraction)
    signed = m.as_i32(m.select(whole, x, m.f32(0.0)))
    return m.ior(code, m.iand(m.sar(signed, 24), m.i32(0x80)))


def _from_float8(m: Machine[F, I, B], code: I, fraction: int, bias: int) -> tuple[F, I]:
    """Return an 8-bit float as if it had no infinities and no NaN, and its bits at the places of an f32's."""
    exponents = 7 - fraction
    bits = m.sar(m.shl(code, 24), 8 - exponents)  # the sign fills the exponent's other bits
    bits = m.iand(bits, m.i32(SIGN | 0x7F << (23 - fraction)))
    return m.mul(m.as_f32(bits), m.f32(2.0 ** (127 - bias))), bits


def to_e4m3(m: Machine[F, I, B], x: F) -> I:
    """The byte of the nearest e4m3, ties to even; beyond 448 and at infinity +-448, of every NaN 0x7f."""
    return _to_float8(m, x, 3, 7, 448.0)


def from_e4m3(m: Machine[F, I, B], code: I) -> F:
    """The f32 of a byte of e4m3, exactly; 0x7f and 0xff are NaN."""
    y, _ = _from_float8(m, code, 3, 7)
    return m.select(m.ieq(m.iand(code, m.i32(0x7F)), m.i32(0x7F)), m.f32(NAN), y)


def to_e5m2(m: Machine[F, I, B], x: F) -> I:
    """The byte of the nearest e5m2, ties to even; beyond 57344 and at infinity +-57344, of every NaN 0x7f."""
    return _to_float8(m, x, 2, 15, 57344.0)


def from_e5m2(m: Machine[F, I, B], code: I) -> F:
    """The f32 of a byte of e5m2, exactly; 0x7c is infinity, above it NaN."""
    y, bits = _from_float8(m, code, 2, 15)
    finite = m.lt(_abs(m, y), m.f32(65536.0))
    return m.select(finite, y, m.as_f32(m.ior(bits, m.i32(0x7F800000))))


Function = Callable[[Any, Any], Any]

FUNCTIONS: dict[str, Function] = {
    "exp2": exp2,
    "exp": exp,
    "log2": log2,
    "log": log,
    "expm1": expm1,
    "log1p": log1p,
    "tanh": tanh,
    "erf": erf,
    "sigmoid": sigmoid,
    "rsqrt": rsqrt,
    "sin": sin,
    "cos": cos,
    "k3": k3,
}
CONVERSIONS: dict[str, Function] = {
    "to_e4m3": to_e4m3,
    "from_e4m3": from_e4m3,
    "to_e5m2": to_e5m2,
    "from_e5m2": from_e5m2,
}
"""From an f32 to the byte of an 8-bit float, as an i32, and back."""


def definition(name: str) -> Function:
    """Return a function or a conversion by name."""
    return FUNCTIONS[name] if name in FUNCTIONS else CONVERSIONS[name]


class _Listing:
    """A machine that writes down every operation."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __getattr__(self, operation: str) -> Callable[..., str]:
        def record(*operands: str | float) -> str:
            # a constant by its bits: two texts of one f32 are one constant
            shown = (struct.pack(">f", x).hex() if isinstance(x, float) else str(x) for x in operands)
            self.lines.append(f"{operation} {' '.join(shown)}")
            return f"v{len(self.lines) - 1}"

        return record

    def inverse(self, d: str) -> str:
        return self.div(self.f32(1.0), d)


def listing(name: str) -> tuple[str, ...]:
    """Return the operations of a function, one a line: its definition in numerics ids."""
    machine = _Listing()
    definition(name)(machine, "x")
    return tuple(machine.lines)
