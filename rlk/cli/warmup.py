"""Prepare every kernel that a model needs, out of installed wheels, a store, or the compilers."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rlk.cli.text import positive
from rlk.env import Env
from rlk.errors import LaunchError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `rlk warmup`."""
    parser.add_argument("--model-config", required=True, type=Path, metavar="FILE", help="a config.json")
    parser.add_argument("--tp", type=positive, default=1, metavar="RANKS", help="ranks that share the model")
    parser.add_argument("--target", help="such as sm_90a; default: that of the first device")
    parser.add_argument("--matrix", default="common", metavar="FILE", help="whose calls; default: common")
    parser.add_argument("--op", action="append", help="only this operator; may be repeated")
    parser.add_argument(
        "--rows", action="append", type=positive, help="instead of the matrix's; may be repeated"
    )
    parser.add_argument(
        "--share",
        action="store_true",
        help="let every user read the store, who then names it by RLK_SYSTEM_CACHE",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prepare; exit 1 where something does not compile, or is not kept."""
    from rlk.aot.matrix import model_of_config, read_matrix, wrong
    from rlk.aot.progress import Progress
    from rlk.aot.warm import chosen_calls, here, warm
    from rlk.cache.root import share
    from rlk.target.facts import target

    try:
        if arguments.tp & (arguments.tp - 1):
            raise wrong("--tp", arguments.tp, "a power of two")
        model, dtype = model_of_config(arguments.model_config, arguments.tp)
        calls = chosen_calls(read_matrix(arguments.matrix).calls, dtype, arguments.op, arguments.rows)
    except LaunchError as error:
        raise error.reworded(op={"rlk aot": "rlk warmup"}) from None
    on = here() if arguments.target is None else target(arguments.target)
    made = warm(model, calls, on, Progress(sys.stderr, "prepared"))
    kept = f", {made.lost} kept nowhere" if made.lost else f" into {Env.current().cache_dir}"
    print(f"{model.name} on {on.name}: {made.total} kernels, {made.wheels} of them in installed wheels; "
          f"{made.compiled} compiled{kept}")  # fmt: skip
    for name, why in made.failed:
        print(f"failed  {name}: {why}", file=sys.stderr)
    if made.lost:
        print(f"not kept  {made.lost} kernels end with this process: {made.why}", file=sys.stderr)
    if arguments.share and not made.lost:
        place = Env.current().cache_dir
        try:
            share(place)
        except OSError as error:
            print(f"not shared  {place}: {error.strerror or error}", file=sys.stderr)
            return 1
        print(f"every user can read it: RLK_SYSTEM_CACHE={place}")
    return 1 if made.failed or made.lost else 0
