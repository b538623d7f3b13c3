"""Calls of a model that cannot be served are refused by name; empty ones return nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from model_families import FAMILIES, LONGEST, VOCABULARY, equal
from torch.utils._python_dispatch import TorchDispatchMode

from rlk import ops
from rlk.errors import Code, LaunchError
from rlk.nn import CausalLM, ModelConfig, WholeSequences, packed, products
from rlk.nn import model as nn_model
from rlk.nn.packed import pack_tokens
from rlk.ops.offsets import all_good
from rlk.specs.packing import POSITIONS
from rlk.testing.bits import assert_same_bits


@pytest.fixture(scope="module")
def model() -> CausalLM:
    torch.manual_seed(0)
    return CausalLM(ModelConfig.of(FAMILIES["llama"]())).requires_grad_(False)


def ids(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel()).remainder(VOCABULARY).view(shape)


def packed_layout(*edges: int) -> ops.Layout:
    return ops.Layout.packed(torch.tensor(edges), tokens=edges[-1])


def padded_layout(width: int, *lengths: int, side: Any = "right") -> ops.Layout:
    return ops.Layout.padded(torch.tensor(lengths), width, side=side)


BAD: dict[str, tuple[Callable[[], tuple[Any, ...]], Code, str]] = {
    "floats": (lambda: (ids(4).float(),), Code.ARG_DTYPE, "ids has dtype torch.float32"),
    "short integers": (lambda: (ids(4).to(torch.int16),), Code.ARG_DTYPE, "torch.int64 or torch.int32"),
    "a list": (lambda: ([1, 2],), Code.ARG_TYPE, "ids must be a torch.Tensor"),
    "a number": (lambda: (torch.tensor(1),), Code.ARG_RANK, "ids has 0 dims"),
    "offsets for a layout": (lambda: (ids(4), torch.tensor([0, 4])), Code.ARG_TYPE, "layout must be"),
    "a layout of fewer": (lambda: (ids(4), packed_layout(0, 3)), Code.LAYOUT_MISMATCH, "ids has (4,)"),
    "a layout of rows": (lambda: (ids(6), padded_layout(3, 1, 2)), Code.LAYOUT_MISMATCH, "(2, 3)"),
    "other packed tokens": (lambda: (ids(4), pack_tokens(ids(3), None)), Code.LAYOUT_MISMATCH, "(3,)"),
    "an id too large": (lambda: (torch.tensor([0, VOCABULARY]),), Code.ARG_VALUE, f"ids={VOCABULARY}"),
    "a negative id": (lambda: (torch.tensor([0, -1]),), Code.ARG_VALUE, "ids=-1"),
    "a sequence too long": (lambda: (ids(LONGEST + 1),), Code.ARG_VALUE, "max_position_embeddings = 64"),
    "rows too long": (lambda: (ids(2, LONGEST + 1),), Code.ARG_VALUE, "max_position_embeddings = 64"),
    "one of them too long": (
        lambda: (ids(LONGEST + 9), packed_layout(0, 8, LONGEST + 9)), Code.ARG_VALUE, "sequence=65",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("view", ("forward", "logps"))
def test_bad_calls_name_what_was_found(model: CausalLM, what: str, view: str) -> None:
    make, code, words = BAD[what]
    with pytest.raises(LaunchError) as caught:
        getattr(model, view)(*make())
    assert caught.value.code is code and words in str(caught.value) and "CausalLM" in str(caught.value)


def test_arguments_of_transformers_are_refused_with_what_takes_their_place(model: CausalLM) -> None:
    for call in (model, model.logps):
        for name, value, said in (
            ("attention_mask", torch.ones(2, 4), r"'attention_mask \[2, 4\]' is unknown\n.*Layout.padded"),
            ("position_ids", None, "'position_ids' is unknown\n.*layout=, whose sequences count"),
            ("nonsense", 1, "'nonsense' is unknown\n.*ids, layout, .*routes"),
        ):
            with pytest.raises(LaunchError, match=said):
                call(ids(2, 4), **{name: value})


def test_pages_name_ids_and_caches_that_cannot_be_read(model: CausalLM) -> None:
    table, one, ends = (torch.tensor(x, dtype=torch.int32) for x in ([[0]], [4], [0, 4]))
    cache = model.cache(1)
    for given, held, said in (
        (ids(4).short(), cache, "CausalLM.prefill: ids has dtype torch.int16, expected torch.int64 or"),
        (ids(4) + VOCABULARY, cache, f"CausalLM.prefill: ids={VOCABULARY + 3} is not allowed"),
        (ids(4), None, "cache must be a rlk.nn.PagedCache"),
    ):
        with pytest.raises(LaunchError, match=said):
            model.prefill(given, held, table, one, ends)  # type: ignore[arg-type]
    padding = torch.cat((ids(4), torch.tensor([-1])))  # is not looked at
    assert equal(model.prefill(padding, cache, table, one, ends)[:4], model(ids(4)))
    with pytest.raises(LaunchError, match="WholeSequences.of: cu_seqlens has dtype torch.float32"):
        WholeSequences.of(ends.float(), 4)


def test_a_model_that_was_cast_to_f32_says_so() -> None:
    wide = CausalLM(ModelConfig.of(FAMILIES["llama"]())).float()
    with pytest.raises(LaunchError, match=r"weights=torch.float32(.|\n)*model.to\(torch.bfloat16\)"):
        wide(ids(3))
    wide.to(torch.float16)(ids(3))


def test_checkpointing_is_switched_on_and_off(model: CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    own = nn_model.checkpointed
    monkeypatch.setattr(nn_model, "checkpointed", lambda *args: (ran.append(1), own(*args))[1])
    for switch in (model.gradient_checkpointing_enable, model.gradient_checkpointing_disable):
        switch()
        model(ids(3))
        assert len(ran) == 2  # layers of the first call


def test_lengths_on_a_device_are_looked_at_by_a_kernel(
    model: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the host could not look: the kernel is given which sequences are too long, if any can be."""
    asked: list[tuple[list[bool], str]] = []

    def report(op: str, bad: torch.Tensor, what: str) -> torch.Tensor:
        asked.append((bad.tolist(), what))
        return all_good(op, bad, what)

    monkeypatch.setattr(packed, "on_the_host", lambda x: False)
    monkeypatch.setattr(packed, "all_good", report)
    model(ids(LONGEST + 1), packed_layout(0, 1, LONGEST + 1))
    model(ids(LONGEST + 4), packed_layout(0, 2, LONGEST + 3, LONGEST + 4))
    model(ids(LONGEST))
    assert asked == [([False, False], POSITIONS), ([False, True, False], POSITIONS)]


def test_what_is_padding_is_not_looked_at(model: CausalLM) -> None:
    rows = ids(1, LONGEST + 2)
    rows[0, :2] = -100
    found = model(rows, padded_layout(LONGEST + 2, LONGEST, side="left"))
    assert equal(found[0, 2:], model(rows[0, 2:])) and not found[0, :2].any()


def test_the_last_position_counts(model: CausalLM) -> None:
    assert not model(ids(LONGEST)).isnan().any()


@pytest.mark.parametrize("shape", ((0,), (0, 5), (3, 0)))
def test_no_tokens_give_no_results(model: CausalLM, shape: tuple[int, ...]) -> None:
    empty = ids(*shape)
    assert model(empty).shape == (*shape, 64)
    found = model.logps(empty, needs=("logp", "entropy"))
    assert found.logp.shape == found.entropy.shape == shape


def test_sequences_without_tokens_change_no_bit(model: CausalLM) -> None:
    """Before, between and behind others, packed and padded; a sequence alone in its row is the control."""
    tokens, lengths = ids(7), (3, 4)
    wanted = torch.cat([model.logps(part).logp for part in tokens.split(lengths)])
    gaps = packed_layout(0, 0, 3, 3, 3, 7, 7)
    assert equal(model.logps(tokens, gaps).logp, wanted)
    rows = torch.zeros(4, 4, dtype=torch.int64)
    rows[1, :3], rows[3] = tokens[:3], tokens[3:]
    found = model.logps(rows, padded_layout(4, 0, 3, 0, 4)).logp
    assert equal(torch.cat((found[1, :3], found[3])), wanted)
    assert not found[0].any() and not found[2].any() and not found[1, 3:].any()
    assert not equal(model.logps(tokens).logp, wanted)


def test_no_sequence_with_tokens_gives_zeros(model: CausalLM) -> None:
    layout = padded_layout(4, 0, 0)
    assert not model(ids(2, 4), layout).any() and not model.logps(ids(2, 4), layout).logp.any()


@pytest.mark.parametrize("device", ("nothing", 1.5))
def test_an_id_on_no_device_is_refused(model: CausalLM, device: Any) -> None:
    with pytest.raises(LaunchError, match="a device of torch"):
        model.numerics_id(device)


def test_int32_ids_have_the_same_bits(model: CausalLM) -> None:
    assert equal(model(ids(5).to(torch.int32)), model(ids(5)))


@pytest.mark.parametrize("graded", (True, False))
def test_weights_that_lie_adjacent_are_read_where_they_are(
    graded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = [torch.nn.Parameter(torch.randn(n, 64).bfloat16(), requires_grad=graded) for n in (32, 16)]
    apart = [w.detach().clone().requires_grad_(graded) for w in weights]
    products.lay_adjacent(weights)
    read: list[torch.Tensor] = []
    matmul = ops.matmul
    monkeypatch.setattr(ops, "matmul", lambda x, w, **more: read.append(w) or matmul(x, w, **more))
    x = torch.randn(3, 64).bfloat16()
    y, other = (products.merged_linear(x, each, (None, None), 1) for each in (weights, apart))
    assert read[0].data_ptr() == weights[0].data_ptr() and equal(y, other)
    assert read[1].data_ptr() not in {w.data_ptr() for w in apart}  # the control: those are copied
    if graded:
        y.float().sum().backward()
        other.float().sum().backward()
        assert all(equal(a.grad, b.grad) for a, b in zip(weights, apart, strict=True))
        late = products.merged_linear(x.requires_grad_(), weights, (None, None), 1)
        with torch.no_grad():
            weights[1].zero_()  # not the one whose version the joined tensor has
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            late.float().sum().backward()


@pytest.mark.parametrize("leaves", (1, 4))
def test_rows_stored_in_turn_have_the_gradients_of_merged_weights(leaves: int) -> None:
    """Megatron's q, k and v: two groups of 32 + 16 + 16 rows; d x is summed as over q, k and v whole."""
    drawn = torch.Generator().manual_seed(1)
    shapes = (64, 64), (128, 64), (64, 128)
    x, w, d_y = (torch.randn(shape, generator=drawn).half() for shape in shapes)
    rows = torch.arange(128).view(2, -1).split((32, 16, 16), 1)
    order = torch.cat([each.flatten() for each in rows])
    weights = [w[each.flatten()].requires_grad_() for each in rows]
    found = []
    for groups in (2, 1):
        stored, given = w.clone().requires_grad_(), x.clone().requires_grad_()
        y = products.stored_linear(given, stored, None, (64, 32, 32), groups, leaves)
        y.backward(d_y)
        found.append((y.detach()[:, order], given.grad, stored.grad[order]))
    given = x.clone().requires_grad_()
    y = products.merged_linear(given, weights, (None,) * 3, leaves)
    y.backward(d_y[:, order])
    want = y.detach(), given.grad, torch.cat([each.grad for each in weights])
    assert all(map(equal, found[0], want))
    assert not equal(found[1][1], want[1])  # the control: one group, whose rows are in another order


@pytest.mark.parametrize(
    ("sizes", "groups"), [((32, 16, 16), 1), ((32, 16, 16), 2), ((64, 64), 1), ((24, 8, 8), 4)]
)
@pytest.mark.parametrize("leaves", (1, 4, 8))
def test_copies_of_pieces_are_rows_in_the_order_of_leaves(
    sizes: tuple[int, ...], groups: int, leaves: int
) -> None:
    """By words, and where no word is whole: pieces of 6 elements, an odd offset or row, another layout."""
    stored = torch.arange(sum(sizes)).view(groups, -1).split([n // groups for n in sizes], 1)
    order = torch.cat([rows.reshape(leaves, -1) for rows in stored], 1).flatten()
    whole = torch.arange(3 * 7 * 141, dtype=torch.int16).view(3, 7, 141).view(torch.bfloat16)
    by_words = []
    n, by_columns = len(order), whole.mT.contiguous().mT
    for x in (
        whole[..., :n].contiguous(), whole[0, :, :n], whole[0, 0, 1:][:n], whole[0, 0, 4:][:n],
        whole[:0, :, :n], by_columns[..., :n],
    ):  # fmt: skip
        rows = x.reshape(-1, n)
        by_words.append(products._has_words(rows, 4, sizes, groups, leaves))
        assert_same_bits(products._columns_by_leaves(x, sizes, groups, leaves), x[..., order])
    whole_words = all(size // by % 4 == 0 for size in sizes for by in (groups, leaves))
    assert by_words[0] == by_words[3] == whole_words and not by_words[1] and not by_words[2]
    w = whole.flatten()[: 3 * n].view(-1, 3)
    assert_same_bits(products._by_leaves(w, 0, sizes, groups, leaves), w[order])


def test_backward_of_merged_weights_takes_nothing_from_the_host() -> None:
    """An index of rows, made on the host, would stop it until the device has it."""

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen[str(op)] += 1
            return op(*args, **(kwargs or {}))

    x, weights = torch.randn(3, 64).bfloat16(), torch.randn(64, 64).bfloat16().split((32, 16, 16))
    seen = Counter[str]()
    y = products.merged_linear(x.requires_grad_(), weights, (None,) * 3, 8)
    with Seen():
        y.backward(torch.ones_like(y))
    assert seen["aten.cat.default"] == 2 and not seen.keys() & {"aten.arange.default", "aten.index.Tensor"}


def test_a_compiled_decoder_has_the_bits_of_the_eager_one(model: CausalLM) -> None:
    """Gradients too: the graph keeps the one product of q, k and v; three would have another d x."""
    tokens, found = WholeSequences.of(torch.tensor([0, 15, 40]), 40), {}
    decoder = model.model.requires_grad_(True)
    calls = {"eager": decoder, "compiled": torch.compile(decoder, backend="aot_eager", dynamic=True)}
    try:
        for name, call in calls.items():
            hidden = call(ids(40), tokens)
            hidden.float().square().sum().backward()
            found[name] = {"hidden": hidden.detach()} | {n: p.grad for n, p in decoder.named_parameters()}
            decoder.zero_grad()
    finally:
        decoder.requires_grad_(False)
        torch.compiler.reset()
    for name, want in found["eager"].items():
        assert want.abs().max() > 0
        assert_same_bits(found["compiled"][name], want, name)
