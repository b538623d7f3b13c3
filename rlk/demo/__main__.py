"""`python -m rlk.demo`, the same as `rlk demo`."""

from __future__ import annotations

import argparse
import sys

from rlk.demo import run

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="rlk demo", description=run.__doc__)
    run.add_arguments(parser)
    sys.exit(run.main(parser.parse_args()))
