"""Wrong kernels of TileLang are caught: a sample of what `make mutants` tries."""

from __future__ import annotations

import ladder
import pytest
from tilelang_mutants import CHANGES, caught, mutants, sampled, wrong

SUBJECTS = ("product", "rms_norm across waves")
FLOOR = 0.85


@pytest.fixture(autouse=True)
def compilers() -> None:
    ladder.require()


def test_most_wrong_kernels_are_caught() -> None:
    tried = [m for name in SUBJECTS for m in sampled(name, 3)]
    missed = [str(m) for m in tried if caught(m) is None]
    assert len(tried) >= 15
    assert 1 - len(missed) / len(tried) >= FLOOR, missed


def test_mutants_are_of_every_kind() -> None:
    assert {m.kind for name in SUBJECTS for m in mutants(name)} == set(CHANGES)


@pytest.mark.parametrize("name", SUBJECTS)
def test_an_unchanged_kernel_is_not_caught(name: str) -> None:
    """The control: what is caught is the change, in memory that ends where a tensor does."""
    assert [wrong(name, waves) for waves in ladder.WAVES] == [0] * len(ladder.WAVES)
