"""Prepare every kernel that a model needs, out of installed wheels, a store, or the compilers."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlk.cli.text import positive
from rlk.env import Env
from rlk.errors import Code, LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlk.aot.matrix import Matrix, Model
    from rlk.runtime.prefetch import Observer
    from rlk.target.facts import Target

SIZES = {
    "tokens": "the most tokens of a step (vLLM's max_num_batched_tokens); default: 8192",
    "sequences": "the most sequences of a step (max_num_seqs); default: 256",
    "context": "the most tokens of a sequence (max_model_len); default: the model's positions",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `rlk warmup`."""
    parser.add_argument(
        "--model-config", type=Path, metavar="FILE", help="a config.json; default: the models of --matrix"
    )
    parser.add_argument("--tp", type=positive, metavar="RANKS", help="ranks that share the model; default: 1")
    parser.add_argument("--target", help="such as sm_90a; default: that of the first device")
    parser.add_argument("--matrix", default="common", metavar="FILE", help="whose calls; default: common")
    parser.add_argument("--op", action="append", help="only this operator; may be repeated")
    parser.add_argument(
        "--rows", action="append", type=positive, help="instead of the matrix's; may be repeated"
    )
    for name, what in SIZES.items():
        parser.add_argument(f"--{name}", type=positive, help=f"of an engine: {what}")
    parser.add_argument(
        "--share",
        action="store_true",
        help="let every user read the store, who then names it by RLK_SYSTEM_CACHE",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prepare; exit 1 where something does not compile, or is not kept."""
    from rlk.aot.progress import Progress
    from rlk.aot.warm import here, warm
    from rlk.cache.root import share
    from rlk.target.facts import target

    try:
        matrix = _matrix(arguments)
    except LaunchError as error:
        raise error.reworded(op={"rlk aot": "rlk warmup"}) from None
    on = here() if arguments.target is None else target(arguments.target)
    made = warm(matrix, on, Progress(sys.stderr, "prepared"), _steps(arguments, on))
    kept = f", {made.lost} kept nowhere" if made.lost else f" into {Env.current().cache_dir}"
    names = ", ".join(model.name for model in matrix.models if model.name) or arguments.matrix
    print(f"{names} on {on.name}: {made.total} kernels, {made.wheels} of them in installed wheels; "
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


def _steps(arguments: argparse.Namespace, on: Target) -> Callable[[Observer], None] | None:
    """Return the launches of an engine's steps, of a config.json whose model an engine serves by rlk.

    None where operators or rows are chosen, and of a model that rlk.nn has not, or that has experts.
    """
    from functools import partial

    from rlk.aot.calls import TYPES
    from rlk.aot.matrix import decoder_of_config, model_of_config
    from rlk.nn.serving import Steps, observe

    if arguments.model_config is None or arguments.op or arguments.rows:
        return None
    try:
        model = decoder_of_config(arguments.model_config)
    except LaunchError as error:
        print(f"without the steps of an engine: {error}", file=sys.stderr)
        return None
    if model.experts is not None:
        print("without the steps of an engine: the model has experts", file=sys.stderr)
        return None
    _, dtype = model_of_config(arguments.model_config, 1)
    given = {name: size for name in SIZES if (size := getattr(arguments, name)) is not None}
    steps = Steps(**{"context": model.max_position_embeddings, **given})
    return partial(observe, model, TYPES[dtype], steps, arguments.tp or 1, on)


def _matrix(arguments: argparse.Namespace) -> Matrix:
    """Return the calls to prepare, of one config.json's model or of the models that the matrix has."""
    from rlk.aot.matrix import COMMON, Matrix, model_of_config, read_matrix, wrong
    from rlk.aot.warm import chosen_calls

    tp = arguments.tp or 1
    if tp & (tp - 1):
        raise wrong("--tp", tp, "a power of two")
    models: tuple[Model, ...] = ()
    dtype = None
    if arguments.model_config is not None:
        model, dtype = model_of_config(arguments.model_config, tp)
        models = (model,)
    elif arguments.matrix == COMMON:
        why = "where --matrix names no file that has models, or calls that need none"
        raise LaunchError(Code.ARG_MISSING, op="rlk aot", name="--model-config", why=why)
    matrix = read_matrix(arguments.matrix)
    if not models:
        models = matrix.models if arguments.tp is None else tuple(replace(m, tp=(tp,)) for m in matrix.models)
    return Matrix(models, chosen_calls(matrix.calls, dtype, arguments.op, arguments.rows))
