"""Run one GRPO step from logits on the shipped text, and write its report."""

from __future__ import annotations

import argparse

from rlk.cli.text import made_folder
from rlk.demo import run as demo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `rlk demo`."""
    demo.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the demo; 1 if any compared bit differs."""
    made_folder(arguments.out, "rlk demo", "--out")
    return demo.main(arguments)
