"""Laws of DTensors: copies and rows in shards have the bits of plain tensors; all else is refused by name."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from rank_cases import Found, run

from rlk import ops
from rlk.passes.row_independence import rows_are_independent
from rlk.runtime.binding.invocation import row_axis
from rlk.testing.bits import assert_same_bits, differing

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")


@pytest.fixture(scope="module", params=[2])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    """Return the results of two processes: of 5 rows the last one has fewer."""
    return run("gloo", request.param, tmp_path_factory.mktemp("mesh"), module="dtensor_cases")


@pytest.mark.parametrize("form", ["copies", "shards", "compiled"])
def test_a_mesh_has_the_bits_of_plain_tensors_and_their_gradients(form: str, ranks: list[Found]) -> None:
    for found in ranks:
        assert found[form]
        for name, made in found[form].items():
            for got, want in zip(made, found["plain"][name], strict=True):
                assert_same_bits(got, want, name)


def test_a_row_of_another_rank_would_be_seen(ranks: list[Found]) -> None:
    """The control: the last rank's last row is changed, and all see that row alone change."""
    for found in ranks:
        got, want = found["another last row"]["logits"], found["plain"]["logits"]
        for a, b in zip(got, want, strict=True):
            assert_same_bits(a[:-1], b[:-1])
            assert differing(a[-1:], b[-1:])


WORDS = {
    "a sum over rows": "results depend on other rows",
    "the gradient of all rows": "weight is [Replicate()] on its mesh: its gradient would sum the rows",
    "the gradient of a weight": "w is [Replicate()] on its mesh: its gradient would sum the rows",
    "a term": "x is [Partial(sum)] on its mesh",
    "a cut row": "only the first 1 dims may be shared out",
    "a cut weight": "linear_logp: weight is [Shard(dim=0)] on its mesh: it is read as a whole",
    "plain rows": "up is",
    "other rows": "other tensors of these rows are [Shard(dim=0)]",
}


@pytest.mark.parametrize("name", WORDS)
def test_what_a_mesh_cannot_run_is_refused_by_name(name: str, ranks: list[Found]) -> None:
    for found in ranks:
        code, text = found["errors"][name]
        assert code == "ARG_PLACED" and WORDS[name] in text and "Replicate()" in text, text


def test_which_operators_have_rows_that_stand_alone() -> None:
    alone = {
        name
        for name, op in ops.OPERATORS.items()
        if all(rows_are_independent(s.trace(s.default_variant()), row_axis(s)) for s in op.specs)  # type: ignore[arg-type]
    }
    rows = {
        "logp",
        "jsd_loss",
        "linear_jsd_loss",
        "linear_logp",
        "matmul",
        "ratio_kl",
        "rms_norm",
        "qk_norm",
        "swiglu",
        "geglu",
        "clamped_swiglu",
        "rope",
        "embedding",
    }
    assert alone == rows | {"sample", "penalize", "route", "combine"}


def test_neither_shards_nor_the_compiler_are_imported_to_find_out() -> None:
    code = "import sys, rlk.nn; print({'torch.distributed.tensor', 'torch._dynamo'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
