"""Constructs that the HIP source of a kernel must not contain, for its bits and resource limits."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rlk.target.facts import Target

_FLOAT = re.compile(r"(?<![\w.])(\d+\.\d*(?:e[+-]?\d+)?)f?\b")
_FUNCTIONS = re.compile(
    r"\b(__\w*(?:exp|log|pow|sin|cos)\w*f?|(?:exp|exp2|exp10|log|log2|log10|pow|tanh|sin|cos|erf|rsqrt)f)\("
)
_ATOMICS = re.compile(r"\b([Aa]tomic\w+)\((?:\(&\()?(\w+)")
_SHUFFLES = re.compile(r"__shfl\w*\((?:[^()]|\([^()]*\))*?, *(\d+)\)")
_SHARED = re.compile(r"__shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[(\d*)\];")
_BYTES = {
    "float": 4,
    "int": 4,
    "uint": 4,
    "int64_t": 8,
    "half_t": 2,
    "bfloat16_t": 2,
    "uchar": 1,
    "signed": 1,
}
WAVE = 64


def findings(source: str, target: Target) -> Iterator[str]:
    """Yield what is wrong with a kernel's source, in words."""
    if "#pragma clang fp contract(off)" not in source:
        yield "products next to sums may be fused"
    for text in _FLOAT.findall(source):
        if float(text) != 0:
            yield f"the constant {text}, of seven digits: write its bits"
    for name in _FUNCTIONS.findall(source):
        yield f"{name}, whose bits are a device's"
    for name, word in _ATOMICS.findall(source):
        if name != "AtomicMax" or word != "errors":
            yield f"{name} of {word}: no order of additions"
    for width in _SHUFFLES.findall(source):
        if int(width) != WAVE:
            yield f"an exchange of {width} lanes in a wave of {WAVE}"
    size = 0
    for kind, name, count in _SHARED.findall(source):
        if not count:
            yield f"{name}, whose size only a launch would tell"
        size += _BYTES[kind] * int(count or 0)
    if size > 1024 * target.shared:
        yield f"{size} bytes of shared memory, of {1024 * target.shared}"
