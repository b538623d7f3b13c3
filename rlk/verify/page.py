"""A report of `rlk verify` as one HTML page: charts as SVG, tables beside them, no script, no network."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from rlk.verify.report import (
    HEADINGS,
    STATUS,
    Row,
    by_operator,
    changed,
    controls,
    evidence,
    experts_line,
    first_lines,
    number,
    result,
)
from rlk.verify.trace import CHAINS

STYLE = """
:root { color-scheme: light dark; --back: #ffffff; --ink: #1b1f24; --soft: #59636e; --line: #d1d9e0;
  --panel: #f6f8fa; --rlk: #1f6f8b; --stock: #b3592a; --good: #1a6e3c; --bad: #b3261e; --none: #6e7781; }
@media (prefers-color-scheme: dark) { :root { --back: #0f1419; --ink: #e6eaee; --soft: #a3adb8;
  --line: #343c45; --panel: #181e25; --rlk: #5cb8d6; --stock: #e59a6b; --good: #62c486; --bad: #ff8a80;
  --none: #8b949e; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem; background: var(--back); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { margin: 0 0 .25rem; font-size: 1.6rem; } h2 { margin: 2.2rem 0 .5rem; font-size: 1.2rem; }
p { max-width: 48rem; margin: .4rem 0; } .soft, caption, figcaption { color: var(--soft); }
.verdict { margin: 1rem 0; padding: .7rem 1rem; border: 1px solid var(--line);
  border-left: 6px solid var(--good); background: var(--panel); font-weight: 600; }
.verdict.bad { border-left-color: var(--bad); }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .6rem; margin: 1rem 0; }
dl div { padding: .5rem .7rem; background: var(--panel); border: 1px solid var(--line); }
dt { color: var(--soft); font-size: .8rem; } dd { margin: 0; font-weight: 600; overflow-wrap: anywhere; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .88rem; }
caption { text-align: left; padding-bottom: .3rem; } th, td { padding: .3rem .6rem; text-align: left;
  vertical-align: top; border-bottom: 1px solid var(--line); }
thead th { border-bottom: 2px solid var(--line); }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tbody th { font-weight: 500; } tr.group th { padding-top: 1rem; font-weight: 700; }
.good { color: var(--good); } .bad { color: var(--bad); font-weight: 700; } .none { color: var(--none); }
figure { margin: .8rem 0; } svg { display: block; width: 100%; min-width: 44rem; height: auto; }
svg text { fill: var(--ink); font: 13px system-ui, sans-serif; } svg .soft { fill: var(--soft); }
svg .axis { stroke: var(--line); } .rlk { fill: var(--rlk); } .stock { fill: var(--stock); }
svg path.rlk, svg path.stock { fill: none; stroke-width: 2; } svg path.rlk { stroke: var(--rlk); }
svg path.stock { stroke: var(--stock); stroke-dasharray: 6 3; }
summary { cursor: pointer; color: var(--soft); }
pre { margin: .3rem 0; padding: .6rem; background: var(--panel); overflow-x: auto; font-size: .82rem; }
:focus-visible { outline: 2px solid var(--rlk); outline-offset: 2px; }
@media print { body { max-width: none; } }
"""
INTRODUCTION = (
    "The same tokens under the same weights, in every way that training, scoring and a rollout run them. "
    "Results are compared with those of packed training by digests of their bits: one bit is a difference."
)
WIDTH, BAR, GAP, LABEL = 960, 16, 10, 330  # of charts, in units of their view box
FLOOR = 1e-12  # of errors on a logarithmic axis


def page(found: Mapping[str, Any]) -> str:
    """Return the page of a report, as `Report.json` gives it."""
    rows: list[Row] = found["rows"]
    title = f"rlk verify: {found['model']}"
    parts = [
        _verdict(found, rows),
        _facts(found),
        _beside(rows),
        _controls(rows),
        _operators(rows),
        _profile(rows),
        _contract(rows),
    ]
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            "</head>",
            "<body>",
            f"<header><h1>{escape(title)}</h1>",
            f"<p>{INTRODUCTION}</p>",
            "</header>",
            "<main>",
            *(part for part in parts if part),
            "</main>",
            "</body>",
            "</html>",
            "",
        ]
    )


# --- the verdict --------------------------------------------------------------------------------------------


def _verdict(found: Mapping[str, Any], rows: Sequence[Row]) -> str:
    count = found["totals"]
    wrong = count["broken"] + count["not detected"] + count["failed"]
    values = sum(row["values"] for row in rows if row["promise"] == "bitwise")
    if wrong:
        said = f"✗ {wrong} of {len(rows)} rows are wrong"
    elif count["holds"]:
        said = f"✓ {count['holds']} promises hold, {controls(count)}"
    else:
        said = "○ nothing was tried"
    facts = [
        ("promises that hold", f"{count['holds']:,}"),
        ("promises broken", f"{count['broken']:,}"),
        ("rows that failed", f"{count['failed']:,}"),
        ("not run", f"{count['not run']:,}"),
        ("controls", controls(count)),
        ("values compared by digests of their bits", f"{values:,}"),
    ]
    bad = " bad" if wrong or not count["holds"] else ""
    return f'<p class="verdict{bad}" role="status">{escape(said)}</p>\n{_list(facts)}'


def _facts(found: Mapping[str, Any]) -> str:
    same = found["identity"]
    weights = "of the checkpoint" if found["source"] == "checkpoint" else "random"
    facts = [
        ("architecture", f"{found['model_type']}, {found['layers']} layers, hidden {found['hidden_size']}"),
        ("parameters", f"{found['parameters']:,}, {weights}, {same['dtype']}"),
        ("device", same["device"]),
        ("tokens", f"{found['tokens']:,} in {found['sequences']} sequences"),
        ("numerics id", same["numerics_id"]),
        ("versions", ", ".join([f"rlk {found['rlk']}", *(f"{k} {v}" for k, v in same["versions"].items())])),
    ]
    return f"<h2>What was run</h2>\n{_list(facts)}"


def _list(facts: Sequence[tuple[str, str]]) -> str:
    made = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(said)}</dd></div>" for name, said in facts)
    return f"<dl>{made}</dl>"


# --- charts -------------------------------------------------------------------------------------------------


def _beside(rows: Sequence[Row]) -> str:
    """Draw the share of tokens that differ by view, of stock transformers and of rlk.patch."""
    stock = {r["view"]: r for r in rows if r["group"] == "stock" and r["status"] == "measured"}
    own = {r["view"]: r for r in rows if r["group"] == "patch" and r["status"] in ("holds", "broken")}
    if not stock:
        return ""
    bars = []
    for view, row in stock.items():
        largest = row["figures"].get("largest difference of log-probs")
        extra = "" if not largest else f", log-probs by up to {number(largest)}"
        group = [("stock", _share(row), f"{row['unequal']:,} of {row['compared']:,}{extra}")]
        if view in own:
            mine = own[view]
            group.insert(0, ("rlk", _share(mine), f"{mine['unequal']:,} of {mine['compared']:,}"))
        bars.append((view, group))
    text = (
        "Share of tokens whose logits have another bit than the reference: stock transformers against its "
        "own sequences one by one, the same model under rlk.patch against packed training. Stock promises "
        "nothing of this; a log-prob that differs between rollout and training is a ratio that is not 1."
    )
    keys = (("rlk", "under rlk.patch"), ("stock", "stock transformers"))
    chart = _bars("Tokens that differ", bars, keys)
    return f"<h2>The same views by stock transformers</h2>\n<p>{text}</p>\n{chart}"


def _controls(rows: Sequence[Row]) -> str:
    """Draw the share of tokens that differ in each control."""
    found = [r for r in rows if r["group"] == "control" and r["compared"]]
    if not found:
        return ""
    bars = [
        (r["view"], [("rlk", _share(r), f"{r['unequal']:,} of {r['compared']:,}: {STATUS[r['status']]}")])
        for r in found
    ]
    text = "The model with one thing changed on purpose. A comparison that did not see it would see nothing."
    chart = _bars("Tokens that differ in controls", bars, (("rlk", "tokens that differ"),))
    return f"<h2>Controls</h2>\n<p>{text}</p>\n{chart}"


def _share(row: Row) -> float:
    return row["unequal"] / row["compared"] if row["compared"] else 0.0


def _bars(
    title: str,
    groups: Sequence[tuple[str, list[tuple[str, float, str]]]],
    keys: Sequence[tuple[str, str]],
) -> str:
    """Draw horizontal bars of shares, groups of them below each other, and a table of the same numbers."""
    top, lines = 34, []
    y, room = top, WIDTH - LABEL - 300
    for name, group in groups:
        middle = y + len(group) * (BAR + 2) / 2 + 4
        lines.append(f'<text x="{LABEL - 12}" y="{middle:.0f}" text-anchor="end">{escape(name)}</text>')
        for kind, share, said in group:
            width = max(share * room, 1.5)
            lines.append(f'<rect class="{kind}" x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR}"/>')
            lines.append(f'<text x="{LABEL + width + 6:.1f}" y="{y + BAR - 3}">{escape(said)}</text>')
            y += BAR + 2
        y += GAP
    legend, x = [], LABEL
    drawn = {kind for _, group in groups for kind, *_ in group}
    for kind, said in [key for key in keys if key[0] in drawn]:
        legend.append(f'<rect class="{kind}" x="{x}" y="8" width="12" height="12"/>')
        legend.append(f'<text x="{x + 18}" y="19">{escape(said)}</text>')
        x += 40 + 8 * len(said)
    axis = f'<line class="axis" x1="{LABEL}" x2="{LABEL}" y1="{top - 4}" y2="{y - GAP}"/>'
    names = dict(keys)
    table = _table(
        title,
        ("view", "of", "differ"),
        [(name, names[kind], said) for name, group in groups for kind, _, said in group],
    )
    return _figure(title, y, [*legend, axis, *lines], table)


def _profile(rows: Sequence[Row]) -> str:
    """Draw the error of each module's result against float64, along the model."""
    found = next((r for r in rows if r["promise"] == "accuracy" and r["profile"]), None)
    if found is None:
        return ""
    points = [(name, float(ours), float(theirs)) for name, ours, theirs in found["profile"]]
    floats = [x for _, *pair in points for x in pair if FLOOR < x < math.inf]
    if len(points) < 2 or not floats:
        return ""
    low, high = math.floor(math.log10(min(floats))), math.ceil(math.log10(max(floats)))
    high = max(high, low + 1)
    left, right, top, bottom = 80, WIDTH - 20, 40, 300

    def at(i: int, value: float) -> tuple[float, float]:
        x = left + (right - left) * i / (len(points) - 1)
        level = (math.log10(min(max(value, 10.0**low), 10.0**high)) - low) / (high - low)
        return x, bottom - (bottom - top) * level

    lines = []
    for power in range(low, high + 1):
        y = at(0, 10.0**power)[1]
        lines.append(f'<line class="axis" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text class="soft" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">1e{power}</text>')
    for kind, column in (("rlk", 1), ("stock", 2)):
        places = [at(i, float(p[column])) for i, p in enumerate(points)]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        lines.append(f'<path class="{kind}" d="M{path}"/>')
    layers = [i for i, (name, *_) in enumerate(points) if name.endswith("input_layernorm")]
    for i in layers[:: -(-len(layers) // 12) or 1]:
        x = at(i, 1.0)[0]
        lines.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>')
        name = points[i][0].removesuffix(".input_layernorm")
        lines.append(f'<text class="soft" x="{x:.1f}" y="{bottom + 40}" text-anchor="middle">{name}</text>')
    for i, end in ((0, "start"), (len(points) - 1, "end")):
        x = at(i, 1.0)[0]
        lines.append(
            f'<text class="soft" x="{x:.1f}" y="{bottom + 22}" text-anchor="{end}">{points[i][0]}</text>'
        )
    for x, kind, said in ((left, "rlk", "rlk.nn"), (left + 120, "stock", "transformers, eager")):
        lines.append(f'<path class="{kind}" d="M{x} 14L{x + 26} 14"/><text x="{x + 32}" y="19">{said}</text>')
    title = "Relative error of each module's result against float64"
    rows_of = [(name, number(ours), number(theirs)) for name, ours, theirs in points]
    table = _table(title, ("module", "rlk.nn", "transformers"), rows_of)
    ratios = [
        f"{r['view'].removeprefix('logits, ')}: {result(r)}, at most {r['bar']} x"
        for r in rows
        if r["promise"] == "accuracy" and r["status"] in ("holds", "broken")
    ]
    said = "".join(f"<p>{escape(line)}</p>" for line in ratios)
    text = "Root mean square of the error over that of the result, in the order of the model."
    return (
        f"<h2>Errors against float64</h2>\n<p>{text}</p>\n{said}\n{_figure(title, bottom + 48, lines, table)}"
    )


def _figure(title: str, height: float, lines: Sequence[str], table: str) -> str:
    said = f"{escape(title)}; the numbers are in the table below"
    drawing = "\n".join(lines)
    chart = f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{said}">\n{drawing}\n</svg>'
    numbers = f"<details><summary>{escape(title)}: the numbers</summary>{table}</details>"
    return f'<figure><div class="wide" tabindex="0">{chart}</div>{numbers}</figure>'


# --- tables -------------------------------------------------------------------------------------------------


def _operators(rows: Sequence[Row]) -> str:
    """Lay out what was compared of each operator in each view."""
    tried = [r for r in rows if r["promise"] == "bitwise" and r["operators"]]
    names = list(by_operator(tried))
    if not names:
        return ""
    body = []
    for row in tried:
        cells = "".join(_cell(row["operators"].get(name)) for name in names)
        body.append(f'<tr><th scope="row">{escape(row["key"])}</th>{cells}</tr>')
    head = "".join(f'<th scope="col" class="n">{escape(name)}</th>' for name in names)
    chains = "".join(f"<li><b>{escape(n)}</b>: {escape(CHAINS[n])}</li>" for n in names)
    text = "Rows of each operator's result that were compared with training, summed over layers."
    return (
        f'<h2>Operator by operator</h2>\n<p>{text}</p><ul class="soft">{chains}</ul>\n'
        f'<div class="wide" tabindex="0"><table><caption>Rows compared, and how many differ</caption>'
        f'<thead><tr><th scope="col">view</th>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'
    )


def _cell(counts: Sequence[int] | None) -> str:
    if counts is None:
        return '<td class="n none">–</td>'
    count, bad = counts
    if bad:
        return f'<td class="n bad">✗ {bad:,} of {count:,}</td>'
    return f'<td class="n good">✓ {count:,}</td>'


def _contract(rows: Sequence[Row]) -> str:
    """Lay out every row of the contract: what is promised, the evidence, what was found."""
    body: list[str] = []
    group = None
    for row in rows:
        if row["group"] != group:
            group = row["group"]
            name = escape(HEADINGS.get(row["group"], str(row["group"])))
            body.append(f'<tr class="group"><th scope="colgroup" colspan="7">{name}</th></tr>')
        body.append(_row(row))
    heads = ("view", "operator", "dtype", "promise", "against", "evidence", "result")
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    return (
        '<h2>The contract, row by row</h2>\n<div class="wide" tabindex="0"><table>'
        "<caption>What is promised, what was compared, what was found</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


MARKS = {
    "holds": ("good", "✓"),
    "detected": ("good", "✓"),
    "broken": ("bad", "✗"),
    "not detected": ("bad", "✗"),
    "failed": ("bad", "✗"),
    "measured": ("", ""),
    "no difference": ("none", "○"),
    "not run": ("none", "○"),
}


def _row(row: Row) -> str:
    kind, mark = MARKS[row["status"]]
    promise = f"error <= {row['bar']} x" if row["promise"] == "accuracy" else row["promise"]
    said = f'<span class="{kind}">{mark} {escape(result(row))}</span>'
    if row["first"]:
        more = [experts_line(row["experts"])] if changed(row) else []
        detail = escape("\n".join([*first_lines(row["first"]), *more]))
        said += f"<details><summary>first difference</summary><pre>{detail}</pre></details>"
    cells = (row["operator"], row["dtype"], promise, row["against"], evidence(row))
    rest = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return f'<tr><th scope="row">{escape(row["view"])}</th>{rest}<td>{said}</td></tr>'


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)

    def lines() -> Iterator[str]:
        for first, *rest in rows:
            cells = "".join(f"<td>{escape(cell)}</td>" for cell in rest)
            yield f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>'

    return (
        f'<div class="wide" tabindex="0"><table><caption>{escape(title)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines())}</tbody></table></div>"
    )
