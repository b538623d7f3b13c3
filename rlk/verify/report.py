"""A report of `rlk verify` as text: a line for each row, then what is wrong, with its first difference."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlk.verify.rows import LEFT_OUT, NOT_FINITE, OTHER_EXPERTS
from rlk.verify.run import WRONG, Report
from rlk.verify.trace import CHAINS

Row = Mapping[str, Any]
"""A row as `Report.json` has it."""
VIEW, PROMISE, COMPARED = 44, 12, 38  # columns
MUTED = 0.5  # spread of logits below which roundings hardly show
STATUS = {
    "holds": "holds",
    "broken": "BROKEN",
    "detected": "detected",
    "not detected": "NOT DETECTED",
    "no difference": "no difference",
    "measured": "measured",
    "not run": "not run",
    "failed": "FAILED",
}
HEADINGS = {
    "stock": "stock transformers, which promises none of this",
    "control": "controls, which must differ",
}


def opening(about: Mapping[str, Any]) -> str:
    """Return the lines before the rows: the model, the machine, and what is compared."""
    same = about["identity"]
    weights = "its weights" if about["source"] == "checkpoint" else "random weights"
    versions = ", ".join(f"{name} {found}" for name, found in same["versions"].items())
    sizes = f"{about['layers']} layers, hidden {about['hidden_size']}, vocabulary {about['vocab_size']}"
    parameters = f"{about['parameters']:,} parameters, {weights}, {same['dtype']}"
    tokens = f"{about['tokens']:,} tokens in {about['sequences']} sequences"
    lines = [
        f"{about['model']}: {about['model_type']}, {sizes}, {parameters}",
        f"on {same['device']}; numerics id {same['numerics_id']}; rlk {about['rlk']}, {versions}",
        f"{tokens}; views are compared with packed training, by digests of their bits",
    ]
    if about["resumed"]:
        lines.append(f"{_counted(about['resumed'], 'row')} of the earlier run, which were not run again")
    spread = about.get("logits_sigma")
    if spread is not None and not isinstance(spread, float):
        lines.append(f"note: logits are not finite ({spread}): equal bits of NaN say nothing")
    elif spread is not None and spread < MUTED:
        lines.append(f"note: logits spread by {spread:.2g} only: differences may be lost in their rounding")
    columns = ("view".ljust(VIEW), "promise".ljust(PROMISE), "compared".ljust(COMPARED), "result")
    return "\n".join([*lines, "", "  " + "  ".join(columns)])


def lines_of(row: Row, heading: bool) -> Iterator[str]:
    """Yield the line of a row, under its group's name where it is the first of the group."""
    if heading:
        yield HEADINGS.get(row["group"], str(row["group"]))
    promise = row["promise"]
    if promise == "accuracy":
        promise = f"<= {row['bar']} x"
    yield (
        "  "
        + "  ".join(
            (row["view"].ljust(VIEW), promise.ljust(PROMISE), evidence(row).ljust(COMPARED), result(row))
        ).rstrip()
    )


def evidence(row: Row) -> str:
    """Return what was compared."""
    if row["status"] in ("not run", "failed"):
        return "-"
    if row["promise"] == "accuracy":
        return f"{row['compared']:,} {row['unit']}, {row['values']:,} errors"
    return f"{row['compared']:,} {row['unit']}, {row['values']:,} values"


def result(row: Row) -> str:
    """Return what was found."""
    figures, status = row["figures"], row["status"]
    if status in ("not run", "failed", "no difference"):
        return f"{STATUS[status]}: {str(row['reason']).splitlines()[0]}"
    if row["promise"] == "accuracy":
        said = (
            f"{STATUS[status]}: {number(figures['ratio'])} x transformers "
            f"({number(figures['rlk'])}, {number(figures['transformers'])})"
        )
        if figures.get(LEFT_OUT):
            other = figures[OTHER_EXPERTS]
            said += f"; {figures[LEFT_OUT]:,.0f} tokens left out, {other:,.0f} with other experts"
        return said
    said = f"{row['unequal']:,} differ"
    if status == "measured":
        for name, short in (
            ("largest difference of log-probs", "log-probs by up to"),
            ("largest error of log-probs", "float64 error up to"),
            ("largest difference over the largest element", "by up to"),
        ):
            if name in figures:
                said += f", {short} {number(figures[name])}"
        if figures.get(NOT_FINITE):
            said += f", {figures[NOT_FINITE]:,.0f} log-probs not finite"
        return said
    if status == "holds":
        return "equal"
    first = row["first"]
    inside = f", first in {first['inside']}" if first and first["inside"] else ""
    if inside and not row["unequal"]:
        return f"{STATUS[status]}: in {first['inside']}, and lost in later roundings"
    return f"{STATUS[status]}: {said}{inside}{changed(row)}"


def changed(row: Row) -> str:
    """Return how many tokens changed experts, "" without any."""
    count = row["experts"]["changed"] if row["experts"] else 0
    return f"; {count:,} changed experts" if count else ""


def number(x: float | str) -> str:
    """Return a measured number with three digits."""
    return x if isinstance(x, str) else f"{x:.3g}" if math.isfinite(x) else str(x)


def closing(report: Report) -> str:
    """Return the lines after the rows: operators, everything that is wrong, and the totals."""
    parts = [_operators(found)] if (found := by_operator(report.rows)) else []
    parts += ["\n".join(told(row)) for row in report.wrong]
    return "\n\n".join([*parts, totals(report)])


def by_operator(rows: Sequence[Row]) -> dict[str, tuple[int, int]]:
    """Return rows compared and rows that differ of each operator, controls apart."""
    found = {name: [0, 0] for name in CHAINS}
    for row in rows:
        if row["promise"] == "bitwise":
            chosen = row["experts"]
            extra = {} if chosen is None else {"experts": (chosen["compared"], chosen["changed"])}
            for name, counts in (row["operators"] | extra).items():
                found[name] = [a + b for a, b in zip(found[name], counts, strict=True)]
    return {name: (n, bad) for name, (n, bad) in found.items() if n}


def _operators(found: Mapping[str, tuple[int, int]]) -> str:
    lines = [f"  {'operator':<12}{'rows compared':>15}{'differ':>8}  is"]
    for name, (count, bad) in found.items():
        lines.append(f"  {name:<12}{count:>15,}{bad:>8,}  {CHAINS[name]}")
    return "\n".join(lines)


def told(row: Row) -> Iterator[str]:
    """Yield lines about a row that is wrong: what differs, and the first difference with its values."""
    yield f"{STATUS[row['status']]}  {row['key']}, against {row['against']}"
    if row["status"] in WRONG[1:]:
        yield from (f"    {line}" for line in str(row["reason"]).splitlines())
    elif row["promise"] == "accuracy":
        yield f"    {result(row)}; at most {row['bar']} x"
    else:
        yield f"    {row['unequal']:,} of {row['compared']:,} {row['unit']} differ"
        if row["first"]:
            yield from (f"    {line}" for line in first_lines(row["first"]))
        if changed(row):
            yield f"    {experts_line(row['experts'])}"


def first_lines(first: Mapping[str, Any]) -> Iterator[str]:
    """Yield the place of a first difference, and the values there."""
    inside = f", in {first['inside']} ({CHAINS[first['operator']]})" if first["inside"] else ""
    yield f"first at {first['where']}{inside}"
    for v in first["values"]:
        ulps = f"{v['ulps']:,} ulp{'s' * (v['ulps'] != 1)}"
        both = f"{v['got']} ({v['got_bits']}) against {v['want']} ({v['want_bits']})"
        count = f"{v['differing']:,} of {v['of']:,} values differ"
        yield f"  {v['what']}[{v['column']}]: {both}, {ulps}; {count}"


def experts_line(experts: Mapping[str, Any]) -> str:
    """Return which tokens changed experts."""
    layers = f"{sum(n > 0 for n in experts['by_layer'])} of {len(experts['by_layer'])} layers"
    tokens = f"{experts['changed']:,} of {experts['compared']:,} tokens"
    first = f"{experts['first']}, in layer {experts['first_layer']} of those with experts"
    return f"{tokens} changed experts, in {layers}: the first is {first}"


def totals(report: Report) -> str:
    """Return the line that says whether the contract holds."""
    count = report.json()["totals"]
    said = []
    if count["broken"]:
        said.append(f"{_counted(count['broken'], 'promise')} BROKEN")
    if count["failed"]:
        said.append(f"{_counted(count['failed'], 'row')} FAILED")
    said.append(f"{_counted(count['holds'], 'promise')} hold{'s' * (count['holds'] == 1)}")
    if count["not run"]:
        reasons = dict.fromkeys(row["reason"] for row in report.rows if row["status"] == "not run")
        said.append(f"{count['not run']} not run ({'; '.join(map(str, reasons))})")
    said.append(controls(count))
    values = sum(row["values"] for row in report.rows if row["promise"] == "bitwise")
    return f"{', '.join(said)}; {values:,} values compared by digests of their bits"


def controls(count: Mapping[str, int]) -> str:
    """Return how many of the controls that ran were detected, and how many found no difference."""
    ran = sum(count[status] for status in ("detected", "not detected", "no difference"))
    said = f"{count['detected']} of {ran} controls detected"
    same = count["no difference"]
    return f"{said}, {same} without a difference" if same else said


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"
