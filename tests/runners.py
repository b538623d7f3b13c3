"""Generated source in place of the oracle, for the calls of a test on CPU tensors."""

from __future__ import annotations

import pytest

from rlk.runtime.call.dispatch import dispatch


def by_triton() -> None:
    """Run calls by Triton's source, in its interpreter."""
    pytest.importorskip("triton")
    from rlk.testing.simulators.interpreter import interpret

    dispatch.interpret_with(interpret)


def by_cute() -> None:
    """Run calls by CuTe's source, in the simulator; what it has no form for by Triton's."""
    pytest.importorskip("triton")
    from rlk.testing.simulators import hopper
    from rlk.testing.simulators.interpreter import interpret

    dispatch.interpret_with(interpret, cute=hopper.interpret)
