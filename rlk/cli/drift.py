"""Compare two engines that score the same tokens: inputs, log-probs, operators.

Engines: transformers, rlk.nn, rlk.patch, vllm and recorded:FILE, with settings behind a colon, such as
transformers:attn=eager,side=left,chunk=1,batch=4. Settings are attn (as transformers takes it), dtype,
device, side (of padding), batch (sequences of a call), chunk (tokens of a call over a cache, 1 is decoding),
page (slots of a page, of rlk.nn), memory (the share of the device's that vLLM takes), eager (1: vLLM in this
process, without graphs, so that its operators are compared), temperature and model.
Exit status: 0 no difference, 1 a difference, 2 not compared, or bad input.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from rlk.cli.text import file_to_write, made_folder, natural
from rlk.drift.engine import Facts, Sequences, Unwatched
from rlk.drift.engines import asked_for, opened
from rlk.drift.recorded import Recorded, save_scores
from rlk.drift.report import compare
from rlk.errors import Code, LaunchError

TINY = "tiny"
OP = "rlk drift"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `rlk drift`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("a", metavar="A", help="the engine to compare with, such as the rollout")
    parser.add_argument("b", metavar="B", help="the engine that is compared, such as the trainer")
    parser.add_argument(
        "--model", default=TINY, metavar="PATH",
        help="of both: a folder or a name on the Hugging Face hub; default: a random model of 4 layers",
    )  # fmt: skip
    parser.add_argument("--tokens", type=Path, metavar="FILE", help="JSON: a list of lists of token ids")
    parser.add_argument("--seed", type=natural, default=0, help="of random tokens, without --tokens")
    parser.add_argument("--lengths", default="24,60,9,37", metavar="N,N", help="of random sequences")
    parser.add_argument("--temperature", type=float, default=1.0, help="of log-probs of both, default 1")
    parser.add_argument("--clip", type=float, default=0.2, help="half the width of the band of ratios")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="for the report, a chart, tensors")
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="write A's log-probs as a recorded rollout"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Compare and print; 0 without a difference, 1 with one, 2 where log-probs were not compared."""
    if not arguments.temperature > 0:
        raise _wrong("--temperature", arguments.temperature, "a number above 0")
    for name in (arguments.a, arguments.b):  # before a model is made
        asked_for(name, arguments.temperature)
    lengths = _lengths(arguments.lengths)
    if not 0 <= arguments.clip < math.inf:
        raise _wrong("--clip", arguments.clip, "a number from 0 on")
    if arguments.record is not None:
        file_to_write(arguments.record, OP, "--record")
    if arguments.out is not None:
        made_folder(arguments.out, OP, "--out")
    without_progress_bars()
    with ExitStack() as stack:
        path = stack.enter_context(_model(arguments.model, (arguments.a, arguments.b)))
        a, b = (
            stack.enter_context(opened(name, path, arguments.temperature))
            for name in (arguments.a, arguments.b)
        )
        sequences = _sequences(arguments, lengths, (a, b))
        report = compare(a, b, sequences, clip=arguments.clip)
        if arguments.record is not None:
            save_scores(arguments.record, a.name, report.facts[0], a.score(sequences, Unwatched()))
    print(json.dumps(report.as_dict(), indent=1, allow_nan=False) if arguments.json else report.text())
    if arguments.out is not None:
        files = report.save(arguments.out)
        if not arguments.json:
            print(f"wrote {', '.join(str(file) for file in files)}")
    if report.drift is None:
        return 2
    return 0 if report.equal else 1


def without_progress_bars() -> None:
    """Let transformers write a report's lines alone."""
    with suppress(ModuleNotFoundError):
        import_module("transformers").logging.disable_progress_bar()


@contextmanager
def _model(name: str, engines: tuple[str, str]) -> Iterator[str | None]:
    """Return the model's path; the random one is written into a folder that lasts as long as the context."""
    if name != TINY or all(each.startswith("recorded:") for each in engines):
        yield name
        return
    from rlk.drift.faults import tiny_model

    with tempfile.TemporaryDirectory(prefix="rlk-drift-") as folder:
        # vLLM has no bias where transformers' Qwen3 has one
        biases = not any(each.partition(":")[0] == "vllm" for each in engines)
        tiny_model(layers=4, biases=biases).save_pretrained(folder)
        yield folder


def _lengths(text: str) -> list[int]:
    """Return the lengths of random sequences; a token alone has no log-prob."""
    lengths = [int(n) if n.isdecimal() else 0 for n in text.split(",")]
    if min(lengths) < 1 or max(lengths) < 2:
        raise _wrong("--lengths", text, "numbers above 0 with commas between them, one of at least 2")
    return lengths


def _sequences(arguments: argparse.Namespace, lengths: list[int], engines: tuple[Any, Any]) -> Sequences:
    """Return the tokens: of a recorded rollout, of a file, or random ones."""
    for engine in engines:
        if isinstance(engine, Recorded):
            if arguments.tokens is not None:
                raise _wrong("--tokens", arguments.tokens, "none beside recorded:FILE, which has its tokens")
            return _within(engine.sequences, engines)
    if arguments.tokens is not None:
        try:
            found = json.loads(arguments.tokens.read_text(encoding="utf-8"))
        except ValueError:
            found = None
        rows = found if isinstance(found, list) else [found]
        if not all(isinstance(row, list) and all(type(i) is int for i in row) for row in rows):
            raise _wrong("--tokens", arguments.tokens, "a JSON list of lists of token ids")
        return _within(Sequences.of(found), engines)
    vocabulary = min(size for engine in engines if (size := _vocabulary(engine)))
    drawn = torch.Generator().manual_seed(arguments.seed)
    return Sequences.of([torch.randint(vocabulary, (n,), generator=drawn).tolist() for n in lengths])


def _vocabulary(engine: Any) -> int | None:
    """Return the size of an engine's vocabulary, without a digest of its weights."""
    found: Facts = engine.settings() if hasattr(engine, "settings") else engine.facts()
    return found.vocabulary


def _within(sequences: Sequences, engines: tuple[Any, Any]) -> Sequences:
    """Refuse ids that an engine's vocabulary does not have."""
    largest = int(sequences.ids.max())
    for engine in engines:
        size = _vocabulary(engine)
        if size is not None and largest >= size:
            raise _wrong("token id", largest, f"ids below {size}, the vocabulary of {engine.name}")
    return sequences


def _wrong(name: str, value: object, wanted: str) -> LaunchError:
    return LaunchError(Code.ARG_VALUE, op=OP, name=name, value=str(value), wanted=wanted)
