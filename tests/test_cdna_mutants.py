"""Wrong kernels are caught: a sample of the mutants that `python tests/cdna_mutants.py` tries in full."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("triton")

from cdna_mutants import ORDERS, TARGET, caught, differing, mutants, sampled

from rlk.testing.machine import Emulated

SUBJECT = ("rms_norm", 0)
FLOOR = 0.9


def test_most_wrong_kernels_are_caught() -> None:
    tried = sampled(SUBJECT, 4)
    found = {str(m): caught(m) for m in tried}
    missed = [name for name, what in found.items() if what is None]
    assert len(tried) >= 12
    assert 1 - len(missed) / len(tried) >= FLOOR, missed


def test_every_deleted_barrier_is_caught() -> None:
    deleted = [m for m in mutants(("linear_logp_join", 0)) if m.kind == "barrier deleted"]
    assert deleted and all(caught(m) for m in deleted)


def test_mutants_are_of_every_kind_that_a_kernel_has() -> None:
    kinds = Counter(m.kind for m in mutants(SUBJECT))
    wanted = {
        "barrier deleted",
        "address shifted",
        "lanes moved",
        "tree level swapped",
        "index shifted",
        "mask widened",
    }
    assert set(kinds) == wanted


def test_an_unchanged_kernel_is_not_caught() -> None:
    """The control: what is caught is the change."""
    assert all(differing(SUBJECT, Emulated(TARGET, order)) == 0 for order in ORDERS)
