"""Every injected fault is named by what it is in, and clean runs raise no alarm.

Those of pages are in tests/test_drift.py, beside other runs of rlk's operators.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("transformers")

import torch

from rlk.drift.faults import CHUNKS, FAULTS, LEFT, TEMPERATURE, Fault, engine, located
from rlk.drift.operators import Trace, difference
from rlk.drift.options import Options
from rlk.drift.report import Report, compare

CLEAN = (
    Fault("the same", "", engine()),
    Fault("chunks", "", engine(), Options(), CHUNKS),
    Fault("a batch", "", engine(), Options(batch=1), Options()),
    Fault("padding on the left", "", engine(), Options(), LEFT),
    Fault("a temperature, f32", "", engine(), TEMPERATURE, dtype=torch.float32),
    Fault("logits divided by 1", "", engine(claims={"stage": "logits"})),
)
"""Pairs without a fault, of equal options and of those that the faults use."""


def report(fault: Fault, seed: int = 0) -> Report:
    with fault.pair(seed) as (a, b, sequences):
        return compare(a, b, sequences, depends=bool(fault.depends))


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if not fault.paged])
def test_a_fault_is_named_by_what_it_is_in(name: str) -> None:
    found = report(FAULTS[name])
    assert located(FAULTS[name], found), found.text()
    assert not found.equal


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if len(fault.names) == 1])
def test_operators_tell_a_wrong_weight_where_no_checksum_is_known(name: str) -> None:
    fault = FAULTS[name]
    with fault.pair() as (a, b, sequences):
        b.claims = {"weights": {}}
        found = compare(a, b, sequences, depends=False)
    if "one ulp" in name and not fault.experts:  # rounded away: the checksum alone finds it
        assert found.equal
        return
    first = "model.embed_tokens" if "stale" in name else fault.names[0].rpartition(".")[0]
    assert found.cause == first and "weights" in found.unknown, found.text()


def test_both_results_of_a_rotary_embedding_have_a_name_and_a_place() -> None:
    found = report(FAULTS["rope: off by one"])
    assert found.operators is not None
    names = [d.name for d in found.operators.local]
    assert names[:2] == ["model.rotary_emb.cos", "model.rotary_emb.sin"] and len({*names}) == len(names)
    assert {*names} <= {*found.operators.drift}
    wrong = FAULTS["attention: a window one too short"]  # the second sequence has 24 tokens, the others fewer
    text = report(wrong).text()
    assert "1 tokens, first sequence 1, token 23" in text, text


def test_there_are_faults_of_forty_kinds() -> None:
    assert len(FAULTS) >= 40
    assert len({fault.where for fault in FAULTS.values()}) >= 20


@pytest.mark.parametrize("fault", CLEAN, ids=lambda fault: fault.name)
def test_a_clean_run_raises_no_alarm(fault: Fault) -> None:
    found = report(fault, seed=1)
    assert found.cause is None and found.equal, found.text()


def test_a_wrong_name_is_not_taken_for_the_right_one() -> None:
    found = report(FAULTS["norm: of 1 + weight"])
    assert not located(FAULTS["norm: mean subtracted"], found)
    assert not located(FAULTS["weights: bias dropped"], found)
    right = FAULTS["norm: of 1 + weight"]
    assert located(right, found)
    assert not located(replace(right, verdict="rounding"), found)
    assert not located(replace(right, depends=("batch",)), found)
    assert not located(right, replace(found, depends=("batch",)))


@pytest.mark.parametrize("order", [1, -1])
def test_weights_of_a_router_in_two_dtypes_are_equal_where_experts_are(order: int) -> None:
    """One of three tokens changed experts; the control: a weight of another token is another one."""

    def gate(ids: list[list[int]], weights: torch.Tensor) -> Trace:
        return Trace(3, ["gate"], outputs={"gate#1": weights, "gate#2": torch.tensor(ids)})

    w = torch.tensor([[0.7, 0.3], [0.6, 0.4], [0.8, 0.2]])
    other = torch.tensor([[0.7, 0.3], [0.4, 0.6], [0.8, 0.2]])
    for theirs, verdict in ((w, None), (other, "another function")):
        pair = gate([[0, 2], [1, 3], [0, 1]], w), gate([[0, 2], [1, 3], [0, 2]], theirs.bfloat16())
        found = difference("gate.weights", "outputs", "gate#1", *pair[::order])
        assert (found and found.verdict) == verdict


def test_changed_experts_are_named_with_their_router_tokens_and_reason() -> None:
    """By the router itself, or because its input differs; nothing is said where routes are equal."""
    itself = report(FAULTS["router: one ulp in one weight"])
    assert itself.operators is not None
    (changed,) = itself.operators.changed
    assert changed.router == "model.layers.1.mlp.gate" and changed.own == changed.tokens
    assert 0 < len(changed.tokens) < changed.total == 42 and changed.closest in changed.tokens
    assert 0 <= changed.gap < 0.02  # a few roundings of a score
    assert "on equal inputs, by the router itself: sequence" in itself.text()
    assert itself.as_dict()["changed_experts"][0]["tokens"] == [*changed.tokens]
    inherited = report(replace(FAULTS["norm: weight applied before rounding"], experts=True))
    assert inherited.operators is not None and inherited.cause == "model.layers.1.input_layernorm"
    (changed,) = inherited.operators.changed
    assert changed.own == () and changed.tokens
    assert "because its input differs: sequence" in inherited.text()
    clean = report(Fault("experts in chunks", "", engine(), Options(), CHUNKS, experts=True), seed=1)
    assert clean.cause is None and clean.equal and "changed experts" not in clean.text()
