"""Layout of a module's text: lines of at most `COLUMNS` columns, and each spec line named where it changes.

Neither changes a token of the program, but parentheses around a right-hand side that spans several lines.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

COLUMNS = 120
INDENT = "    "
_PLACE = re.compile(r"^(?P<code>.*?) *# (?P<place>[\w.]+\.py:\d+)$")
_SPANS = re.compile(
    r"""
    (?P<string>[rbfuRBFU]{0,2}(?:\"{3}(?:\\.|[^\\])*?\"{3}|\'{3}(?:\\.|[^\\])*?\'{3}
        |"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))
    |(?P<comment>\#[^\n]*) | (?P<end>\n) | (?P<joined>\\\n) | (?P<open>[(\[{]) | (?P<close>[)\]}])
    |(?P<space>[^\S\n]+) | (?P<word>[^()\[\]{}"'\#\\\n]+)
    """,
    re.VERBOSE | re.DOTALL,
)
"""What statements are told apart by: strings, comments, ends of lines, brackets, and what is between."""
_OPEN, _CLOSE = "([{", ")]}"
_QUOTED = frozenset("\"'\\")
"""Characters of strings and of lines that are joined, outside of comments."""
_STATEMENTS = ("return", "if", "elif", "while", "assert", "yield")
# Where a line may break outside of brackets, the loosest first: commas, then clauses, then binary operators.
_LEVELS = (
    {","},
    {"for", "if", "else"},
    {"or"},
    {"and"},
    {"<", "<=", ">", ">=", "==", "!=", "in"},
    {"|"},
    {"^"},
    {"&"},
    {"<<", ">>"},
    {"+", "-"},
    {"*", "/", "//", "%", "@"},
)


def laid_out(source: str) -> str:
    """Return the text of a module with its spec lines named once per block, and no line over `COLUMNS`."""
    return "\n".join(_short(_places_once(source.split("\n"))))


def _places_once(lines: list[str]) -> Iterator[str]:
    """Drop the comment with the spec's line where that is the line of the statement above it."""
    last = ""
    for line in lines:
        found = _PLACE.match(line)
        if found is None:
            # a new function: its first statement names its line again
            last = "" if line.startswith(("def ", "@")) else last
            yield line
            continue
        code, place = found["code"], found["place"]
        if place != last:
            yield line
        elif code:
            yield code
        last = place


def _short(lines: Iterator[str]) -> Iterator[str]:
    """Break the statements that have a line over `COLUMNS`."""
    given = list(lines)
    if all(len(line) <= COLUMNS for line in given):
        yield from given
        return
    done = 0
    for first, last in statements("\n".join(given)):
        if any(len(line) > COLUMNS for line in given[first : last + 1]):
            yield from _prose(given[done:first])
            yield from _broken(given[first : last + 1])
            done = last + 1
    yield from _prose(given[done:])


def _prose(lines: list[str]) -> Iterator[str]:
    """Break comments and docstrings between words."""
    for line in lines:
        text = line.strip()
        start = line[: len(line) - len(text)] + ("# " if text.startswith("# ") else "")
        room = COLUMNS
        while len(line) > room and (cut := line.rfind(" ", len(start) + 1, room + 1)) > 0:
            yield line[:cut]
            line = f"{start}{'' if start.endswith('# ') else INDENT}{line[cut + 1 :]}"
        yield line


def _tokens(text: str) -> list[tokenize.TokenInfo]:
    return list(tokenize.generate_tokens(io.StringIO(text).readline))


def statements(text: str) -> Iterator[tuple[int, int]]:
    """Yield the first and the last line of every statement but docstrings, from 0."""
    at, line = 0, 0
    while at < len(text):
        end = text.find("\n", at)
        code = text[at : end if end >= 0 else len(text)].partition("#")[0]
        if _QUOTED.isdisjoint(code) and sum(map(code.count, _OPEN)) == sum(map(code.count, _CLOSE)):
            if code.strip():  # one line is one statement, as most are: a fifth of the time of reading spans
                yield line, line
            if end < 0:
                return
            at, line = end + 1, line + 1
            continue
        depth, first, document = 0, -1, False  # of the statement that has begun, if any
        for token in _SPANS.finditer(text, at):
            kind, at = token.lastgroup, token.end()
            if kind in ("open", "close", "string", "word"):
                if first < 0:
                    first, document = line, kind == "string"
                depth += (kind == "open") - (kind == "close")
            elif kind == "end" and depth == 0:
                break
            line += token[0].count("\n")
        if first >= 0 and not document:
            yield first, line
        line += 1


@dataclass(frozen=True, slots=True)
class _Token:
    """A token of a statement on one line: where it begins and ends, and how many brackets are around it."""

    text: str
    start: int
    end: int
    depth: int
    binary: bool  # whether an operand is before it


def _broken(lines: list[str]) -> list[str]:
    """Return the lines of a statement that is too long."""
    indent = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    above = [f"{indent}{line.strip()}" for line in lines if line.strip().startswith("#")]
    code, named = without_place(lines)
    made = _statement(indent, on_one_line(code))
    if named:
        place = f"# {named}"
        made = (
            (f"{made[0]}  {place}", *made[1:])
            if len(made[0]) + len(place) + 2 <= COLUMNS
            else (f"{indent}{place}", *made)
        )
    return [*above, *made]


def without_place(lines: list[str]) -> tuple[list[str], str]:
    """Return the lines of a statement without the comment that names its spec line, and that line."""
    found = [_PLACE.match(line) for line in lines]
    code = [each["code"] if each else line for each, line in zip(found, lines, strict=True)]
    return code, next((each["place"] for each in found if each), "")


def on_one_line(lines: list[str]) -> str:
    """Return the code of a statement's lines on one line."""
    made = ""
    for line in map(str.strip, lines):
        if not line.startswith("#"):
            tight = not made or made[-1] in _OPEN or line[:1] in (*_CLOSE, ".")
            made += line if tight else f" {line}"
    return made


@lru_cache(1024)  # a text is read to be cut, and again for each way to cut it
def _read(text: str) -> tuple[_Token, ...]:
    """Return the tokens of an expression or statement on one line."""
    skipped = (tokenize.NEWLINE, tokenize.NL, tokenize.ENDMARKER, tokenize.INDENT, tokenize.DEDENT)
    found: list[_Token] = []
    depth = 0
    # in brackets: parts of a statement need not be one
    for token in _tokens(f"({text}\n)")[1:]:
        if token.type in skipped or token.start[0] > 1:
            continue
        depth -= token.string in _CLOSE and token.type == tokenize.OP
        before = found[-1].text if found else ""
        value = before[-1:].isalnum() or before[-1:] in (*_CLOSE, "_", '"', "'")
        binary = (
            bool(before) and value and before not in ("for", "in", "if", "else", "return", "not", "and", "or")
        )
        found.append(_Token(token.string, token.start[1] - 1, token.end[1] - 1, depth, binary))
        depth += token.string in _OPEN and token.type == tokenize.OP
    return tuple(found)


@lru_cache(4096)  # kernels of one operator, and of one backend, share most of their long statements
def _statement(indent: str, text: str) -> tuple[str, ...]:
    """Break a statement: inside its brackets, or inside parentheses around its right-hand side."""
    if len(indent) + len(text) <= COLUMNS:
        return (indent + text,)
    tokens = _read(text)
    head = next((t.end + 1 for t in tokens if t.depth == 0 and t.text in ("=", "+=", "-=", "|=")), 0)
    if not head and tokens[0].text in _STATEMENTS:
        head = tokens[0].end + 1
    tail = ":" if text.endswith(":") else ""
    right = text[head : len(text) - len(tail)]
    block = tokens[0].text in ("for", "with", "def", "class", "@")
    if head and not block and _cuts(right):
        left = [f"{indent}{text[:head]}("]
        if len(left[0]) > COLUMNS:  # of many names
            names, sign = text[:head].rsplit(maxsplit=1)
            left = [f"{indent}(", *_expression(indent + INDENT, names), f"{indent}) {sign} ("]
        return (*left, *_expression(indent + INDENT, right), f"{indent}){tail}")
    return tuple(_brackets(indent, text))


def _cuts(text: str) -> list[int]:
    """Return where an expression may break outside of its brackets, at its loosest operators."""
    tokens = [t for t in _read(text) if t.depth == 0]
    for level in _LEVELS:
        found = [t for t in tokens if t.text in level and (t.binary or t.text in (",", "for", "if", "else"))]
        cuts = [t.end if t.text == "," else t.start for t in found]
        if cuts := [cut for cut in cuts if text[:cut].strip() and text[cut:].strip()]:
            return cuts
    return []


def _expression(indent: str, text: str) -> list[str]:
    """Break an expression that stands inside brackets, filling lines."""
    text = text.strip()
    if len(indent) + len(text) <= COLUMNS:
        return [indent + text]
    cuts = _cuts(text)
    if not cuts:
        return _brackets(indent, text)
    parts = [text[a:b].strip() for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    made, line = [], ""
    for part in parts:
        if line and len(indent) + len(line) + 1 + len(part) <= COLUMNS:
            line = f"{line} {part}"
            continue
        if line:
            made += _part(indent, line)
        line = part
    return [*made, *_part(indent, line)]


def _part(indent: str, text: str) -> list[str]:
    """Break one part of an expression: an operator or a keyword's name before it, a comma behind it."""
    if len(indent) + len(text) <= COLUMNS:
        return [indent + text]
    comma = text.endswith(",")
    inner = text[:-1] if comma else text
    tokens = _read(inner)
    named = len(tokens) > 2 and tokens[1].text == "=" and tokens[1].depth == 0
    if named and _cuts(value := inner[tokens[1].end :]):
        made = [f"{indent}{inner[: tokens[1].end]}(", *_expression(indent + INDENT, value), f"{indent})"]
    elif not named and _cuts(inner):
        made = _expression(indent, inner)
    else:
        return _brackets(indent, text)
    return [*made[:-1], made[-1] + ("," if comma else "")]


def _brackets(indent: str, text: str) -> list[str]:
    """Break inside the brackets of a text, the longest pair first, until the rest fits."""
    left = sorted(_pairs(text), key=lambda pair: pair[1] - pair[0])
    chosen: list[tuple[int, int]] = []
    while left and (not chosen or any(len(indent) + len(x) > COLUMNS for x in _pieces(text, chosen)[::2])):
        chosen = sorted([*chosen, left.pop()])
    made: list[str] = []
    for i, piece in enumerate(_pieces(text, chosen)):
        made += [indent + piece] if i % 2 == 0 else _expression(indent + INDENT, piece)
    return made


def _pairs(text: str) -> list[tuple[int, int]]:
    """Return the outermost pairs of brackets: behind the opening one, and at the closing one."""
    pairs, start = [], 0
    for token in _read(text):
        if token.depth == 0 and token.text in _OPEN:
            start = token.end
        elif token.depth == 0 and token.text in _CLOSE:
            pairs.append((start, token.start))
    return pairs


def _pieces(text: str, chosen: list[tuple[int, int]]) -> list[str]:
    """Return what is outside of the chosen brackets and what is inside, alternating."""
    pieces, at = [], 0
    for start, end in chosen:
        pieces += [text[at:start], text[start:end]]
        at = end
    return [*pieces, text[at:]]
