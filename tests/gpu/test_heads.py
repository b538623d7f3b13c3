"""On a device the gradient of a linear head repeats its bits, and knows active rows and nothing else."""

from __future__ import annotations

import pytest
import torch
from linear_cases import active_rows, cotangents, gradients, head

from rlk.testing.bits import assert_same_bits, differing

D, V = 512, 5003
TOKENS = 8192  # of a piece of rows
REPEATS = 100
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def on_device(rows: int, depth: int = D, vocabulary: int = V, dtype: torch.dtype = torch.bfloat16) -> Tensors:
    hidden, weight, ids = head((rows,), depth, vocabulary, dtype)
    return hidden.cuda(), (weight * 0.2).cuda(), ids.cuda()


def given_for(rows: int) -> dict[str, torch.Tensor]:
    return {name: g.cuda() for name, g in cotangents((rows,), ("logp", "entropy")).items()}


@pytest.mark.parametrize("rows", [300, TOKENS + 300])
def test_a_hundred_runs_have_the_same_bits(rows: int) -> None:
    tensors, given = on_device(rows), given_for(rows)
    first = gradients(*tensors, given)
    for run in range(REPEATS):
        again = gradients(*tensors, given)
        for name in first:
            assert torch.equal(again[name].view(torch.int16), first[name].view(torch.int16)), (run, name)


@pytest.mark.parametrize("rows", [TOKENS, TOKENS + 808])
def test_a_row_alone_has_the_bits_that_it_has_among_thousands(rows: int) -> None:
    hidden, weight, ids = on_device(rows)
    given = given_for(rows)
    together = gradients(hidden, weight, ids, given, ("hidden",))["hidden"]
    for row in (0, 1, 7, rows // 2, TOKENS - 1, rows - 1):
        one = slice(row, row + 1)
        some = {name: g[one] for name, g in given.items()}
        alone = gradients(hidden[one], weight, ids[one], some, ("hidden",))["hidden"]
        assert_same_bits(alone, together[one], f"row {row} of {rows}")


@pytest.mark.parametrize("rows", [TOKENS, TOKENS + 808])
def test_some_rows_of_many_have_the_bits_of_the_oracle(rows: int) -> None:
    hidden, weight, ids = on_device(rows)
    given = given_for(rows)
    got = gradients(hidden, weight, ids, given, ("hidden",))["hidden"]
    chosen = torch.tensor([0, 2, 3, rows // 2, TOKENS - 1, rows - 1])
    some = {name: g.cpu()[chosen] for name, g in given.items()}
    factors = hidden.cpu()[chosen], weight.cpu(), ids.cpu()[chosen]
    want = gradients(*factors, some, ("hidden",), math=model_there())["hidden"]
    assert_same_bits(got.cpu()[chosen], want, "rows")


def model_there() -> str:
    """Return the option that gives the oracle the exp2 of this device."""
    return "sm90" if torch.cuda.get_device_capability() == (9, 0) and not torch.version.hip else "portable"


def test_the_sum_over_rows_does_not_know_the_inactive_ones() -> None:
    hidden, weight, ids = on_device(TOKENS + 808, 64, 1001)
    given = given_for(len(ids))
    active = active_rows(ids, {})
    some = {name: g[active] for name, g in given.items()}
    alone = gradients(hidden[active], weight, ids[active], some)
    hidden[ids < 0] = float("nan")
    padded = gradients(hidden, weight, ids, given)
    assert_same_bits(padded["weight"].cpu(), alone["weight"].cpu(), "weight")
    assert_same_bits(padded["hidden"][active].cpu(), alone["hidden"].cpu(), "hidden")


def test_rows_in_another_order_are_seen_by_the_sum_alone() -> None:
    """The control; f16 shows more of an f32 sum."""
    hidden, weight, ids = on_device(300, dtype=torch.float16)
    given, order = given_for(300), torch.randperm(300, device="cuda")
    turned = {name: g[order] for name, g in given.items()}
    one, two = gradients(hidden, weight, ids, given), gradients(hidden[order], weight, ids[order], turned)
    assert_same_bits(two["hidden"].cpu(), one["hidden"][order].cpu(), "hidden")
    assert differing(two["weight"].cpu(), one["weight"].cpu())


@pytest.mark.parametrize("name", ["hidden", "weight"])
@pytest.mark.parametrize("rows", [300, TOKENS + 300])
def test_a_frozen_input_changes_nothing(name: str, rows: int) -> None:
    tensors, given = on_device(rows), given_for(rows)
    both, alone = gradients(*tensors, given), gradients(*tensors, given, wanted=(name,))
    assert_same_bits(alone[name].cpu(), both[name].cpu(), name)


@pytest.mark.parametrize("options", [{"keep_logits": 1 << 40}, {"mask": True}, {"softcap": 9.0}], ids=str)
def test_kept_logits_have_the_bits_of_computed_ones(options: dict[str, object]) -> None:
    tensors, given = on_device(300), given_for(300)
    fixed = {**options, "mask": torch.arange(300, device="cuda") % 3 != 0} if "mask" in options else options
    want = gradients(*tensors, given, **{**fixed, "keep_logits": "never"})
    got = gradients(*tensors, given, **{**fixed, "keep_logits": 1 << 40})
    for name in want:
        assert_same_bits(got[name].cpu(), want[name].cpu(), name)
