"""Counts and weights of a row that kernels of a sampler take from its pool: those of all its tokens."""

from __future__ import annotations

import numpy as np
import pytest
from sampling_cases import EVERY, by_row, requests, scores

from rlk.interp.run import run
from rlk.ir.nodes import MathModel, Program
from rlk.lang import L, Tile, Variant, bf16, f16, f32, op
from rlk.passes.pipeline import canonical
from rlk.runtime.reference import reference_sources, reference_variant
from rlk.runtime.registry import numerics, operators
from rlk.specs import sampling
from rlk.target.facts import target
from rlk.testing.bits import differing

OPTIONS = ("inv_temperature", "top_k", "top_p", "min_p")
TOKENS = 5100
OUTPUTS = ("token", "threshold", "ties", "last")
DTYPES = {"f32": f32, "bf16": bf16, "f16": f16}


def variant(dtype: str, present: tuple[str, ...]) -> Variant:
    return Variant.of({"F": DTYPES[dtype]}, frozenset(present), {})


def inputs(dtype: str, present: tuple[str, ...], crowded: bool) -> dict[str, np.ndarray]:
    """Return rows of 5 tokens a lane; crowded: three lanes have all of a row's best."""
    import torch

    rows, of = len(EVERY), {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[dtype]
    x = scores(rows, TOKENS, of)
    if crowded:
        lanes = torch.arange(TOKENS) % 1024 < 3
        x = torch.where(lanes, x + 20, x).to(of)
    _, options = by_row(rows)
    options["inv_temperature"] = 1.0 / options.pop("temperature")
    given = {name: options[name].numpy() for name in present}
    plain = x.view(torch.uint16).numpy() if dtype == "bf16" else x.numpy()
    return {"scores": plain, "blocks": plain, **given, **{n: t.numpy() for n, t in requests(rows).items()}}


def drawn(program: Program, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    ran = run(program, given, softmax=MathModel.SM90)
    return {name: ran[name] for name in OUTPUTS}


@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize(
    ("dtype", "present"),
    [
        ("bf16", OPTIONS),
        ("bf16", ("top_k", "top_p")),
        ("bf16", ("top_k",)),
        ("f32", OPTIONS),
        ("f16", ("top_p",)),
    ],
)
def test_kernels_draw_what_the_definition_draws(dtype: str, present: tuple[str, ...], crowded: bool) -> None:
    v, given = variant(dtype, present), inputs(dtype, present, crowded)
    plain, short = sampling.sample.trace(v), sampling.sample.trace_for_kernels(v)
    assert plain is not short
    want, got = drawn(canonical(plain), given), drawn(canonical(short), given)
    for name in OUTPUTS:
        assert not differing(want[name], got[name]), name


def test_a_pool_that_is_taken_for_complete_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: lanes with more than three of the best tokens, of which three are counted."""

    def always(row: sampling.Row, threshold: Tile) -> Tile:
        return L.max(row.pool[2], over=sampling.W.lanes) <= row.keys.of(row.best)

    monkeypatch.setattr(sampling.Row, "complete", always)
    again = op()(sampling.sample.fn)
    given = inputs("bf16", OPTIONS, crowded=True)
    v = variant("bf16", OPTIONS)
    want, got = drawn(canonical(again.trace(v)), given), drawn(canonical(again.trace_for_kernels(v)), given)
    assert any(differing(want[name], got[name]) for name in OUTPUTS)


IDS = {
    ("bf16", ("top_p",)): "7d03f6b3c6cd3d2f",
    ("bf16", ("top_k", "top_p")): "51cac20be0a08d43",
    ("f32", OPTIONS): "a9ed25c47ea7a363",
}
"""Those of sm_90a before kernels had a trace of their own: a step that moves in the other one is seen."""


@pytest.mark.parametrize(("dtype", "present"), IDS)
def test_ids_are_those_of_the_definition(dtype: str, present: tuple[str, ...]) -> None:
    v, on = variant(dtype, present), target("sm_90a")
    plain, short = sampling.sample.trace(v), sampling.sample.trace_for_kernels(v)
    assert numerics(canonical(plain), on)[0] == IDS[dtype, present] != numerics(canonical(short), on)[0]


def test_operators_without_a_shorter_way_have_one_program() -> None:
    v = sampling.penalize.default_variant()
    assert sampling.penalize.trace_for_kernels(v) is sampling.penalize.trace(v)


def test_a_checked_in_source_says_the_id_of_the_definition() -> None:
    of = operators()["sample"]
    plain, kernels = (canonical(t(reference_variant(of))) for t in (of.trace, of.trace_for_kernels))
    ids = [numerics(program, target("sm_90a"))[0] for program in (plain, kernels)]
    _, source = next(reference_sources([of]))
    assert f"numerics: {ids[0]}" in source and ids[1] not in source and ids[0] != ids[1]
