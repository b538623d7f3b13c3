"""Try schedules of an operator, or of a model's, on the device that is here, and propose entries of tables.

Every candidate's outputs are compared, as integers, with those of the shipped schedule: one that differs is
an error. Entries are printed for people to review, and the record is written as JSON; --write appends those
of a user's table (RLK_SCHEDULES) to a file.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from rlk.aot.matrix import experts_of_config, model_of_config
from rlk.aot.progress import Progress
from rlk.backends.registry import complete, of_name, registered
from rlk.cli.text import made_folder, positive, table
from rlk.env import Env, whole
from rlk.errors import Code, LaunchError, UnsupportedError
from rlk.runtime.binding.invocation import target_of
from rlk.runtime.kernels.build import kernel_key
from rlk.schedule.user_table import append, written
from rlk.target.facts import Target, target
from rlk.tune import record
from rlk.tune.precompile import Compiled, compile_all
from rlk.tune.problem import SHIPPED, backend_of, problem
from rlk.tune.propose import bound_of, proposals, summary, user_entries
from rlk.tune.session import Row, Session
from rlk.tune.shapes import (
    OTHER_ROWS,
    SUBJECTS,
    TRAINED_ROWS,
    Mixture,
    Shape,
    of_model,
    separately,
    shape,
    shapes,
    subject,
    text_of,
)

DRY_TARGET = "sm_90a"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `rlk tune`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "op", metavar="OP", nargs="?",
        help="a registered operator, such as my.zloss, or path/to/spec.py:name",
    )  # fmt: skip
    parser.add_argument(
        "--all", type=Path, metavar="CONFIG",
        help="instead of OP: products, of experts too, norms, activation, head and their gradients of the "
        "model that a config.json, or a folder's, describes",
    )  # fmt: skip
    parser.add_argument(
        "--rows", action="append", type=positive,
        help="of --all; may be repeated; default: " + ", ".join(map(str, OTHER_ROWS)) + "; gradients are of "
        f"those from {TRAINED_ROWS} on",
    )  # fmt: skip
    parser.add_argument("--grad", action="store_true", help="the gradient, not the operator")
    tuned = [each.name for each in registered() if each.table is not None]
    parser.add_argument(
        "--backend", choices=tuned,
        help=f"default: {complete().name}; with --all the one that runs each call",
    )  # fmt: skip
    parser.add_argument(
        "--shape", action="append", default=[], metavar="M=64,N=4096,K=4096",
        help="sizes of axes by name; of linear_logp N=rows,V=vocabulary,D=hidden; may be repeated; "
        "default: a list, or the registered extents with 64, 1024 and 8192 rows",
    )  # fmt: skip
    parser.add_argument("--only", default="", metavar="TEXT", help="shapes whose text contains this")
    parser.add_argument(
        "--lane",
        default="1/1",
        metavar="I/N",
        help="every N-th shape from the I-th: a device for each lane",
    )
    parser.add_argument("--seconds", type=float, default=0.2, help="that each schedule is timed, alone")
    parser.add_argument("--limit-s", type=float, default=540.0, help="of everything; what is left is named")
    parser.add_argument(
        "--child-limit-s", type=float, default=60.0,
        help="that the measuring process may say nothing; a hang costs it and one candidate",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("tune.json"), help="the record (default: tune.json)")
    parser.add_argument("--commit", help="what to record as rlk's version, where there is no git checkout")
    parser.add_argument("--dry", action="store_true", help=f"compile for {DRY_TARGET}, launch nothing")
    parser.add_argument(
        "--read", nargs="+", type=Path, metavar="FILE", help="propose from these records, measure nothing"
    )
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="append what is proposed to this table of RLK_SCHEDULES"
    )


def run(arguments: argparse.Namespace) -> int:
    """Compile, measure, print; return 1 if a candidate differed or hung, or a shape could not be measured."""
    if (arguments.op is None) == (arguments.all is None):
        why = "one of the two: an operator, or the config.json of a model"
        raise LaunchError(Code.ARG_MISSING, op="rlk tune", name="OP or --all", why=why)
    name = None if arguments.op is None else subject(arguments.op, arguments.grad)
    if arguments.read:
        return _conclude(*record.read(arguments.read, name), arguments.write)
    begin = time.monotonic()
    wanted = _of_model(arguments) if name is None else _chosen(_listed(name, arguments), arguments)
    on = target(DRY_TARGET) if arguments.dry else _here()
    one = {arguments.backend or complete().name: wanted}
    groups = _by_backend(wanted, arguments.backend, on) if name is None else one
    for backend in groups:
        if on.name not in of_name(backend).targets:
            raise UnsupportedError(
                Code.UNSUPPORTED, what="tuning", backend=backend, target=on.name,
                alternatives=f"--backend {complete().name}",
            )  # fmt: skip
        kernel_key(backend, "", None, on.name)  # refused where its compiler is missing
    if not arguments.dry:
        made_folder(arguments.out.parent, "rlk tune", "--out")
    deadline = begin + arguments.limit_s
    every = {backend: _compiled(wanted, backend, on, deadline) for backend, wanted in groups.items()}
    if arguments.dry:
        for compiled in every.values():
            _say_plans(compiled)
        _say_late([each for c in every.values() for each in _late(c)], arguments)
        broken = [pair for c in every.values() for pair in c.failed if pair[1] == SHIPPED]
        return 1 if broken or any(c.refused for c in every.values()) else 0
    device = torch.cuda.get_device_name()
    rows: list[Row] = []
    late: list[Shape] = []
    for backend, compiled in every.items():
        late += _measure(backend, compiled, rows, device, arguments, deadline)
    _say_late(late, arguments)
    print(f"{time.monotonic() - begin:.0f} s, record in {arguments.out}\n")
    return _conclude(device, rows, arguments.write) or (1 if any(c.refused for c in every.values()) else 0)


def _compiled(wanted: Sequence[Shape], backend: str, on: Target, deadline: float) -> Compiled:
    """Compile the schedules of shapes by a backend, and say how many."""
    begin, progress = time.monotonic(), Progress(sys.stderr, "compiled")
    compiled = compile_all(wanted, backend, on, deadline, progress.follow)
    progress.end()
    _say_compiled(compiled, time.monotonic() - begin)
    return compiled


def _measure(
    backend: str, compiled: Compiled, rows: list[Row], device: str, arguments: argparse.Namespace,
    deadline: float,
) -> list[Shape]:  # fmt: skip
    """Append the row of each shape, and write the record after each; return the shapes that time cut off."""
    session = Session(backend, arguments.seconds, arguments.child_limit_s, deadline)
    late = _late(compiled)
    try:
        for each in compiled.plans:
            if each in late or time.monotonic() >= deadline:
                late = list(dict.fromkeys([*late, each]))
                continue
            rows.append(session.measure(each, compiled))
            _say_row(rows[-1])
            record.write(arguments.out, device, shlex.join(["rlk", *sys.argv[1:]]), rows, arguments.commit)
    finally:
        session.close()
    return late


def _late(compiled: Compiled) -> list[Shape]:
    """Return the shapes whose shipped schedule was not compiled when the time was up."""
    return [each for each, name in compiled.unreached if name == SHIPPED]


def _say_late(late: Sequence[Shape], arguments: argparse.Namespace) -> None:
    """Name the shapes that time cut off: they are no failure."""
    if late:
        print(f"not reached in {arguments.limit_s:g} s (--limit-s; --only TEXT continues with some):")
        print("\n".join(f"    {each}" for each in late), flush=True)


def _of_model(arguments: argparse.Namespace) -> Sequence[Shape]:
    """Return the shapes of a model; raise LaunchError for a file that describes no decoder."""
    if arguments.grad or arguments.shape:
        given = "--grad" if arguments.grad else "--shape"
        wanted = f"no {given} beside it: gradients are measured, and --rows says of how many rows"
        raise LaunchError(
            Code.ARG_VALUE, op="rlk tune", name="--all", value=str(arguments.all), wanted=wanted
        )
    try:
        model, _ = model_of_config(arguments.all, 1)
    except LaunchError as error:
        raise error.reworded(op={"rlk aot": "rlk tune"}, name={"--model-config": "--all"}) from None
    gate = "geglu" if model.profile == "gemma" else "swiglu"
    mixture = None
    if (at := experts_of_config(arguments.all)) is not None:
        inner = "clamped_swiglu" if at.kind == "gpt_oss" else gate
        mixture = Mixture(at.count, at.k, at.width, at.shared, at.dense, inner)
    return _chosen(of_model(asdict(model), gate, arguments.rows or OTHER_ROWS, mixture), arguments)


def _by_backend(wanted: Sequence[Shape], given: str | None, on: Target) -> dict[str, Sequence[Shape]]:
    """Return shapes by the backend that tunes them: the one that is given, else the one that runs them."""
    groups: dict[str, list[Shape]] = {}
    for each in wanted:
        groups.setdefault(given or backend_of(problem(each, "meta"), on), []).append(each)
    return {**groups}


def _listed(name: str, arguments: argparse.Namespace) -> Sequence[Shape]:
    """Return the shapes of an operator that are asked for, else its list."""
    return [shape(name, text) for text in arguments.shape] or shapes(name)


def _chosen(listed: Sequence[Shape], arguments: argparse.Namespace) -> Sequence[Shape]:
    """Return the shapes of this lane; raise LaunchError where there is none."""
    lane, _, lanes = arguments.lane.partition("/")
    turn, turns = whole(lane), whole(lanes)
    if not turn or not turns or turn > turns:
        raise LaunchError(
            Code.ARG_VALUE, op="rlk tune", name="--lane", value=arguments.lane[:60], wanted="I/N, such as 1/4"
        )
    listed = separately(listed)
    chosen = [each for each in listed if arguments.only in str(each)]
    if not chosen:
        texts = ", ".join(map(str, listed))
        raise LaunchError(Code.UNKNOWN_NAME, what="shape", name=arguments.only, choices=texts)
    return chosen[turn - 1 :: turns]


def _here() -> Target:
    """Return the target of the current device; raise LaunchError where there is none."""
    if not torch.cuda.is_available():
        raise LaunchError(
            Code.NO_BACKEND, op="rlk tune", device="this machine", why="nothing can be timed without a GPU",
            alternatives=f"--dry compiles for {DRY_TARGET}, --read proposes from records",
        )  # fmt: skip
    on = target_of(torch.device("cuda", torch.cuda.current_device()))
    assert on is not None
    return on


def _say_compiled(compiled: Compiled, seconds: float) -> None:
    tried = sum(len(plan.schedules) for plan in compiled.plans.values())
    cut = f", {len(compiled.unreached)} not reached" if compiled.unreached else ""
    print(
        f"{len(compiled.plans)} shapes, {tried} schedules, {compiled.modules} modules by {Env.current().jobs}"
        f" processes in {seconds:.1f} s; {len(compiled.failed)} failed{cut}",
        flush=True,
    )
    for each, why in compiled.refused.items():
        print(f"    {each}: {why}", file=sys.stderr)
    for (each, name), why in compiled.failed.items():
        print(f"    {each}, {name}: {why[:300]}", file=sys.stderr)


def _say_plans(compiled: Compiled) -> None:
    """Print the kernels of each shape by name, with their schedules and the number of others to try."""
    for each, plan in compiled.plans.items():
        print(each)
        for kernel, chosen in zip(plan.kernels, plan.schedules[SHIPPED], strict=True):
            print(f"    {kernel}: {chosen}")
        print(f"    {len(plan.schedules) - 1} candidates", flush=True)


def _say_row(row: Row) -> None:
    head = f"{text_of(row['op'], row['sizes'])}, {row['backend']}"
    bare = f": {bound_of(row)} {', '.join(f'{ms:.4f}' for ms in row['cublas'])} ms" if row["cublas"] else ""
    print(f"\n{head}{bare}\n  shipped: {row['schedules'][SHIPPED]}")
    cells = summary(row)
    if cells:
        headers = ("schedule", "ms", "range", "x shipped", f"x {bound_of(row)}")
        print(table(headers, cells, right=headers[1:]))
    for name in row["same"]:
        print(f"  {name} is what is shipped")
    for name, why in row["errors"].items():
        print(f"  FAILED {name}: {why.splitlines()[-1] if why else ''}")
    if row["unfinished"]:
        print(f"  out of time: {', '.join(row['unfinished'])}")
    sys.stdout.flush()


def _conclude(device: str, rows: Sequence[Row], table_of_user: Path | None) -> int:
    """Print what is proposed, and what went wrong; return the exit status.

    table_of_user: where to append what is proposed for a user's table.
    """
    reviewed = [row for row in rows if row["op"] in SUBJECTS]
    made, own = proposals(reviewed, device), user_entries(rows, device)
    shown = [*map(str, made), *(map(written, own) if not reviewed or table_of_user is not None else ())]
    print("\n".join(shown) if shown else "no entry is proposed: nothing was faster than what is shipped")
    if own and table_of_user is not None:
        append(table_of_user, own)
        print(f"{len(own)} {'entry' if len(own) == 1 else 'entries'} appended to {table_of_user}")
        print(f"calls find them by RLK_SCHEDULES={table_of_user.resolve()}")
    wrong = 0
    for row in rows:
        size = text_of(row["op"], row["sizes"])
        found = [f"{n} differs from the shipped bits in {', '.join(o)}" for n, o in row["differing"].items()]
        found += [f"{name} hung" for name in row["hung"]]
        found += [f"not measured: {row['failed']}"] if "failed" in row else []
        wrong += len(found)
        for text in found:
            print(f"WRONG  {size}: {text}", file=sys.stderr)
    return 1 if wrong or not rows else 0
