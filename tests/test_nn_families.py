"""Every family computes what transformers does, with the same bits in every view of a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from model_families import FAMILIES, LONGEST, VOCABULARY, WINDOW, equal, loaded, written

from rlk import ops
from rlk.nn import CausalLM

LENGTHS = (23, 1, 9, 17)
assert WINDOW < min(n for n in LENGTHS if n > 1), "windows must end inside of sequences"
SEEDS = 3


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    """A model of each family, with random weights."""
    return CausalLM.from_pretrained(written(request.param, tmp_path_factory.mktemp(request.param)))


def drawn(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed))


SEQUENCES = drawn(sum(LENGTHS)).split(LENGTHS)


def offsets(lengths: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor((0, *lengths)).cumsum(0).to(torch.int32)


def padded(side: str) -> torch.Tensor:
    """Return the sequences as rows, padded by an id that is no padding for the model."""
    width = max(LENGTHS) + 3
    rows = torch.full((len(LENGTHS), width), 7)
    for row, ids in zip(rows, SEQUENCES, strict=True):
        row[: len(ids)] = ids if side == "right" else row[: len(ids)]
        if side == "left":
            row[width - len(ids) :] = ids
    return rows


def of_rows(rows: torch.Tensor, side: str) -> list[torch.Tensor]:
    """Return what belongs to each sequence of padded rows."""
    width = rows.shape[1]
    return [row[:n] if side == "right" else row[width - n :] for row, n in zip(rows, LENGTHS, strict=True)]


@pytest.fixture(scope="module")
def alone(model: CausalLM) -> list[torch.Tensor]:
    """Logits of each sequence by itself."""
    with torch.no_grad():
        return [model.logits(model(ids)) for ids in SEQUENCES]


# --- numbers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_errors_are_those_of_transformers_in_bf16(family: str, tmp_path: Path) -> None:
    """Logits against the same bf16 weights in float64: each token's largest error, and the mean square.

    The largest of all is that of one token, which another seed moves by more than a twentieth.
    """
    ours, theirs = [], []
    for seed in range(SEEDS):
        folder = written(family, tmp_path / str(seed), seed)
        ids = drawn(4 * 40, seed).view(4, 40)
        exact, eager = loaded(folder, torch.bfloat16).double(), loaded(folder, torch.bfloat16)
        model = CausalLM.from_pretrained(folder)
        with torch.no_grad():
            wanted = exact(ids).logits.flatten(0, 1)
            ours.append((model.logits(model(ids)).double().flatten(0, 1) - wanted).abs())
            theirs.append((eager(ids).logits.double().flatten(0, 1) - wanted).abs())
    a, b = torch.cat(ours), torch.cat(theirs)
    assert a.amax(-1).mean() <= 1.05 * b.amax(-1).mean()
    assert a.square().mean() <= 1.05 * b.square().mean()
    assert b.max() > 0.01  # a model whose logits spread, so that roundings show


def test_a_window_and_an_angle_are_seen_in_the_numbers(model: CausalLM) -> None:
    """Negative control of the errors: other windows or angles give other logits by more than roundings."""
    config = model.config
    changes = [replace(config, ropes=tuple(replace(r, theta=r.theta * 2) for r in config.ropes))]
    if any(config.windows):
        changes.append(replace(config, windows=tuple(w and w + 1 for w in config.windows)))
    if dict(config.ropes[0].scaling)["rope_type"] != "default":
        plain = (("rope_type", "default"),)
        changes.append(replace(config, ropes=tuple(replace(r, scaling=plain) for r in config.ropes)))
    ids = drawn(40)
    with torch.no_grad():
        wanted = model.logits(model(ids))
        for change in changes:
            other = CausalLM(change)
            other.load_state_dict(model.state_dict())
            assert (other.logits(other(ids)) - wanted).abs().max() > 0.05


# --- views -----------------------------------------------------------------------------------------------


def test_packed_sequences_have_the_bits_of_each_alone(model: CausalLM, alone: list[torch.Tensor]) -> None:
    layout = ops.Layout.packed(offsets(LENGTHS), tokens=sum(LENGTHS))
    with torch.no_grad():
        found = model.logits(model(torch.cat(SEQUENCES), layout))
    assert all(equal(a, b) for a, b in zip(found.split(LENGTHS), alone, strict=True))


@pytest.mark.parametrize("side", ("left", "right"))
def test_padding_changes_no_bit(model: CausalLM, alone: list[torch.Tensor], side: str) -> None:
    rows = padded(side)
    layout = ops.Layout.padded(torch.tensor(LENGTHS), rows.shape[1], side=side)
    with torch.no_grad():
        found = model.logits(model(rows, layout))
    assert all(equal(a, b) for a, b in zip(of_rows(found, side), alone, strict=True))


def test_prefill_and_decoding_over_pages_have_the_same_bits(
    model: CausalLM, alone: list[torch.Tensor]
) -> None:
    """Prompts in two chunks, then tokens one by one, beside each other, in pages in disorder."""
    found = decoded(model, list(SEQUENCES))
    assert all(equal(a, b) for a, b in zip(found, alone, strict=True))


def decoded(model: CausalLM, sequences: list[torch.Tensor], page_size: int = 4) -> list[torch.Tensor]:
    """Return the logits of sequences by prefill of a half in two chunks, and decode of the other half."""
    pages = -(-LONGEST // page_size)
    order = torch.randperm(len(sequences) * pages, generator=torch.Generator().manual_seed(1))
    table = order.view(len(sequences), pages).to(torch.int32)
    cache = model.cache(table.numel(), page_size)
    rows: list[list[torch.Tensor]] = [[] for _ in sequences]
    done = [0] * len(sequences)

    def step(upto: list[int]) -> None:
        going = [i for i, n in enumerate(upto) if n > done[i]]
        if not going:
            return
        new = tuple(upto[i] - done[i] for i in going)
        ids = torch.cat([sequences[i][done[i] : upto[i]] for i in going])
        lengths = torch.tensor([upto[i] for i in going], dtype=torch.int32)
        if max(new) == 1:
            hidden = model.decode(ids, cache, table[going], lengths)
        else:
            hidden = model.prefill(ids, cache, table[going], lengths, offsets(new))
        for i, part in zip(going, model.logits(hidden).split(new), strict=True):
            rows[i].append(part)
            done[i] = upto[i]

    halves = [len(ids) // 2 for ids in sequences]
    step([n // 2 for n in halves])
    step(halves)
    while any(done[i] < len(ids) for i, ids in enumerate(sequences)):
        step([min(done[i] + 1, len(ids)) for i, ids in enumerate(sequences)])
    with torch.no_grad():
        return [torch.cat(part) for part in rows]


def test_log_probs_are_those_of_the_logits_in_every_view(model: CausalLM, alone: list[torch.Tensor]) -> None:
    layout = ops.Layout.padded(torch.tensor(LENGTHS), max(LENGTHS) + 3, side="left")
    needs = ("logp", "lse", "entropy")
    with torch.no_grad():
        found = model.logps(padded("left"), layout, needs=needs)
        for i, (ids, logits) in enumerate(zip(SEQUENCES, alone, strict=True)):
            wanted = ops.logp(logits[:-1], ids[1:], needs=needs)
            for name in needs:
                row = of_rows(getattr(found, name), "left")[i]
                assert equal(row[1:], getattr(wanted, name)) and not row[:1].any()


@pytest.mark.parametrize("change", ("a bit of a weight", "a token", "an offset"))
def test_a_change_is_seen_in_bits(model: CausalLM, alone: list[torch.Tensor], change: str) -> None:
    """Negative control of the views."""
    ids, lengths = torch.cat(SEQUENCES), LENGTHS
    weight = model.model.layers[1].mlp.down_proj.weight
    before = weight.detach().clone()
    with torch.no_grad():
        match change:
            case "a bit of a weight":
                weight.view(torch.int16).bitwise_xor_(1)
            case "a token":
                ids[0] = (ids[0] + 1) % VOCABULARY
            case "an offset":
                lengths = (LENGTHS[0] - 1, LENGTHS[1] + 1, *LENGTHS[2:])
        layout = ops.Layout.packed(offsets(lengths), tokens=len(ids))
        found = model.logits(model(ids, layout))
        weight.copy_(before)
    assert not all(equal(a, b) for a, b in zip(found.split(LENGTHS), alone, strict=True))
