"""The demo runs from text to report, and finds no bit that moves."""

from __future__ import annotations

import argparse
import dataclasses
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="the demo extra is not installed")
pytest.importorskip("matplotlib", reason="the demo extra is not installed")

from rlk import ops
from rlk.demo import chain, drawn, invariance, model, report, run, text
from rlk.demo.batch import Case, make_batch
from rlk.demo.step import Tokens, grpo

TINY = dataclasses.replace(model.SMALL, layers=1, shape=text.Shape(2, 2, (4, 9), (3, 12)))
TINY_CHAIN = dataclasses.replace(model.SMALL_CHAIN, layers=1, hidden=64, intermediate=96, shape=TINY.shape)


@pytest.fixture(scope="module")
def case() -> Case:
    batch = make_batch(text.cut(TINY.shape, 0), TINY.shape.group_size, "cpu")
    draw = torch.Generator().manual_seed(0)
    logits = 2.5 * torch.randn(*batch.targets.shape, 997, generator=draw)
    batch = dataclasses.replace(batch, targets=batch.targets % 997)
    old, ref = (-7 + torch.randn(batch.targets.shape, generator=draw) for _ in range(2))
    return Case(batch, logits, old, ref)


@pytest.mark.slow
def test_the_demo_reports_no_differing_bit(tmp_path: Path) -> None:
    options = run.Options("cpu", TINY, TINY_CHAIN, seed=1, out=tmp_path, sampled_rows=2, repeats=1)
    measured = run.demo(options)
    assert measured.differing == 0
    assert all(row.compared > 0 for row in measured.bits)
    known = version("transformers") in drawn.VERSIONS
    assert len(measured.chain) == 3 + known and all(row.rlk_differing == 0 for row in measured.chain)
    assert (tmp_path / report.CHAIN).read_bytes().startswith(b"\x89PNG")
    assert all(row.rlk <= 2e-5 for row in measured.errors)
    assert all(row.rlk_ms > 0 < row.torch_ms for row in measured.costs)


def test_a_step_is_the_same_in_every_batch(case: Case) -> None:
    whole = grpo(case.logits, Tokens.padded(case))
    rows = list(invariance.rows(case, whole, seed=3))
    assert {row.against for row in rows} == {
        "batch of 1 against all",
        "permuted samples",
        "packed against padded",
    }
    assert [row for row in rows if row.differing] == []


def test_a_moved_bit_is_reported(case: Case) -> None:
    """The negative control: the logit of one target moves by two units in the last place of its log-prob."""
    whole = grpo(case.logits, Tokens.padded(case))
    moved = case.logits.clone()
    row, column = case.batch.mask.nonzero()[0]
    moved[row, column, case.batch.targets[row, column]] += 2**-19  # log-probs here are between -16 and -4
    rows = list(invariance.rows(dataclasses.replace(case, logits=moved), whole, seed=3))
    assert {r.what for r in rows if r.differing} >= {"logp", "ratio", "d_logits"}


def test_a_view_that_moved_is_counted() -> None:
    """The negative control: of two log-probs of one view, one by its last bit, another by a half."""
    alone = torch.linspace(-3, -1, 9)
    moved = alone.clone()
    moved[2] += 0.5
    moved[4] = torch.nextafter(moved[4], torch.tensor(torch.inf))
    found = (chain.View(chain.ALONE, alone, alone), chain.View(chain.LEFT, moved, moved))
    (row,) = chain.rows(found)
    assert (row.compared, row.stock_differing, row.rlk_differing) == (9, 2, 2)
    assert row.stock_largest == row.rlk_largest == 0.5
    assert [bits.differing for bits in chain.bits([row])] == [2]


def test_a_split_chosen_by_the_batch_is_seen_in_the_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: products of few rows split K, as libraries do, and round each part."""

    def split(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, leaves: int) -> torch.Tensor:
        if len(x) > 4:
            return ops.matmul(x, w, bias=bias, leaves=leaves)
        half = x.shape[-1] // 2
        return ops.matmul(x[:, :half], w[:, :half]) + ops.matmul(x[:, half:], w[:, half:])

    monkeypatch.setattr("rlk.nn.compute.row_linear", split)
    stock = model.make_model(TINY_CHAIN, 0, "cpu")
    found = chain.rows(chain.both(stock, text.cut(TINY.shape, 0), "cpu"))
    assert [row.rlk_differing > 0 for row in found] == [False, False, True]


def test_a_log_prob_that_the_engine_gives_otherwise_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control of continuous batching: one of its log-probs moved by the last bit."""
    monkeypatch.setattr(drawn, "known_version", lambda *_: None)
    trained = torch.linspace(-3, -1, 9)
    moved = trained.clone()
    moved[4] = torch.nextafter(moved[4], torch.tensor(torch.inf))
    arms = iter([(trained + 1, trained), (moved, trained)])
    monkeypatch.setattr(drawn, "_both", lambda *_: next(arms))
    monkeypatch.setattr("rlk.patch", lambda net: nullcontext(net))
    row = drawn.row(None, text.cut(TINY.shape, 0), 0)
    assert row is not None and (row.compared, row.stock_differing, row.rlk_differing) == (9, 9, 1)


def test_inactive_tokens_give_exact_zeros(case: Case) -> None:
    whole = grpo(case.logits, Tokens.padded(case))
    idle = ~case.batch.mask
    for name in ("logp", "entropy", "lse", "kl", "d_logp", "d_logits"):
        assert torch.equal(getattr(whole, name)[idle], torch.zeros_like(getattr(whole, name)[idle]))
    assert torch.equal(whole.ratio[idle], torch.ones_like(whole.ratio[idle]))


def test_options_follow_the_machine(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    run.add_arguments(parser)
    options = run.options_of(parser.parse_args(["--device", "cpu", "--out", str(tmp_path)]))
    assert (options.device, options.size, options.seed) == ("cpu", model.SMALL, 0)
    assert options.chain == model.SMALL_CHAIN
