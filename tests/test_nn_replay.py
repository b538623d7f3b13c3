"""A decoder layer's replayed calls: the same bits for other tensors, and made again where a layer changed."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from model_families import FAMILIES
from nn_cases import integers

import rlk.nn.replay
from rlk.errors import LaunchError
from rlk.nn import DecoderLayer, ModelConfig, PagedCache, PagedTokens
from rlk.nn.modules import RMSNorm, lay_out
from rlk.nn.replay import SETTLED, recorded
from rlk.nn.rotary import tables_of
from rlk.ops import linear
from rlk.runtime.call.tape import Call
from rlk.testing.bits import differing

Pair = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture(autouse=True)
def as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replay calls on CPU tensors, whose kernels the oracle runs; nothing is recorded for a gradient."""
    monkeypatch.setattr(rlk.nn.replay, "on_a_device", lambda x: True)
    with torch.no_grad():
        yield


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The products whose call was looked up: a replay looks up none."""
    found: list[str] = []
    call = linear.call

    def counting(op: object, *args: object) -> object:
        found.append(str(op))
        return call(op, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(linear, "call", counting)
    return found


def layer_of(family: str = "qwen3", **options: object) -> tuple[DecoderLayer, PagedCache]:
    config = ModelConfig.of(FAMILIES[family](**options))
    torch.manual_seed(0)
    layer = DecoderLayer(config, 1, tables_of(config.ropes, config.max_position_embeddings)[1])
    lay_out(layer.to(torch.bfloat16))
    sizes = config.num_key_value_heads, config.head_dim
    cache = PagedCache.empty(2, 6, 4, *sizes, torch.bfloat16, torch.device("cpu"))
    for part in (cache.keys, cache.values):
        part.normal_()
    return layer, cache


def states(layer: DecoderLayer, seed: int, rows: int = 2) -> Pair:
    draw = torch.Generator().manual_seed(seed)
    width = len(layer.input_layernorm.weight)
    x, residual = (torch.randn(rows, width, generator=draw).bfloat16() for _ in range(2))
    return x, residual


def tokens_of(cache: PagedCache, *contexts: int) -> PagedTokens:
    rows = len(contexts)
    table = integers(*range(3 * rows)).view(rows, 3)
    return PagedTokens.of(cache, integers(*range(rows + 1)), integers(*contexts), table, rows)


def unreplayed(layer: DecoderLayer, given: Pair, tokens: PagedTokens) -> Pair:
    """The same call of a copy of the layer that has met no shape."""
    fresh = copy.deepcopy(layer)
    assert not fresh.replays.made
    return fresh(*given, tokens)


def assert_replayed(
    layer: DecoderLayer, cache: PagedCache, looked_up: list[str], contexts: tuple[int, ...]
) -> None:
    """A call with new numbers in all tensors looks nothing up, and has the bits of a layer that does."""
    for seed in (7, 8):
        given, tokens = states(layer, seed, len(contexts)), tokens_of(cache, *contexts)
        written = cache.keys.clone()
        looked_up.clear()
        got = layer(*given, tokens)
        assert looked_up == []
        want = unreplayed(layer, given, tokens)  # writes the same keys
        assert looked_up != []
        assert all(differing(a, b) == 0 for a, b in zip(got, want, strict=True))
        assert differing(written, cache.keys) > 0


@pytest.mark.parametrize("family", ("qwen3", "gemma2", "qwen2"))
def test_a_shape_met_again_is_replayed(family: str, looked_up: list[str]) -> None:
    layer, cache = layer_of(family)
    for seed in range(2):
        layer(*states(layer, seed), tokens_of(cache, 5, 9))
    assert_replayed(layer, cache, looked_up, (7, 3))
    other, pages = layer_of(family)  # another cache of the same sizes
    for seed in range(2):
        other(*states(other, seed), tokens_of(pages, 5, 9))
    assert_replayed(other, PagedCache(pages.keys.clone(), pages.values.clone()), looked_up, (8, 4))


def change_numbers(layer: DecoderLayer) -> None:
    layer.mlp.down_proj.weight.mul_(-2)


def change_parameter(layer: DecoderLayer) -> None:
    old = layer.self_attn.q_norm.weight
    layer.self_attn.q_norm.weight = torch.nn.Parameter(old * 2, requires_grad=False)


def change_memory(layer: DecoderLayer) -> None:
    layer.self_attn.o_proj.weight.data = layer.self_attn.o_proj.weight * -1


def change_option(layer: DecoderLayer) -> None:
    layer.input_layernorm.eps = 1.0


def change_module(layer: DecoderLayer) -> None:
    layer.post_attention_layernorm = RMSNorm(64, dtype=torch.bfloat16)
    layer.post_attention_layernorm.weight.fill_(3.0)


def add_hook(layer: DecoderLayer) -> None:
    layer.mlp.register_forward_hook(lambda module, args, made: made * 2)


def exchange_forward(layer: DecoderLayer) -> None:
    layer.mlp.forward = lambda x: x  # type: ignore[method-assign]


CHANGES = (
    change_numbers, change_parameter, change_memory, change_option, change_module, add_hook, exchange_forward,
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_layer_that_changed_is_not_replayed_as_it_was(
    change: Callable[[DecoderLayer], None], looked_up: list[str]
) -> None:
    layer, cache = layer_of()
    given, tokens = states(layer, 3), tokens_of(cache, 6, 2)
    for _ in range(3):
        before = layer(*given, tokens)
    looked_up.clear()
    layer(*given, tokens)
    assert looked_up == []
    change(layer)
    got, want = layer(*given, tokens), unreplayed(layer, given, tokens)
    assert all(differing(a, b) == 0 for a, b in zip(got, want, strict=True))
    assert differing(got[0], before[0]) > 0
    looked_up.clear()
    for _ in range(4):
        again = layer(*given, tokens)
    assert differing(again[0], want[0]) == 0
    # what only calls can compute is called each time; the rest is replayed anew
    assert len(looked_up) == {change_numbers: 0, add_hook: 16, exchange_forward: 8}.get(change, 12)


def test_calls_that_do_more_than_run_kernels_are_not_recorded(looked_up: list[str]) -> None:
    layer, cache = layer_of()
    layer.mlp.up_proj.weight.data = layer.mlp.up_proj.weight.clone()  # joined by a copy in each call
    given, tokens = states(layer, 3), tokens_of(cache, 6, 2)
    for _ in range(3):
        layer(*given, tokens)
    assert list(layer.replays.made.values()) == [False]
    looked_up.clear()
    layer(*given, tokens)
    assert len(looked_up) == 4


def test_gradients_and_other_shapes_take_the_layer_itself(looked_up: list[str]) -> None:
    layer, cache = layer_of()
    for _ in range(2):
        layer(*states(layer, 3), tokens_of(cache, 6, 2))
    assert [callable(x) for x in layer.replays.made.values()] == [True]
    x, residual = states(layer, 5)
    apart = torch.stack((x, x), 1)[:, 0]  # rows of another stride
    for given, tokens in (
        ((apart, residual), tokens_of(cache, 6, 2)),
        ((x[:1], residual[:1]), tokens_of(cache, 6)),
        ((x, None), tokens_of(cache, 6, 2)),
    ):
        looked_up.clear()
        got = layer(*given, tokens)  # type: ignore[arg-type]
        assert len(looked_up) == 4
        assert differing(got[0], unreplayed(layer, given, tokens)[0]) == 0  # type: ignore[arg-type]
    layer.requires_grad_(False)
    looked_up.clear()
    with torch.enable_grad():
        layer(x, residual, tokens_of(cache, 6, 2))
    assert len(looked_up) == 4
    assert pickle.loads(pickle.dumps(layer.replays)).made == {}


def assert_as_unreplayed(layer: DecoderLayer, given: Pair, tokens: PagedTokens) -> None:
    got, want = layer(*given, tokens), unreplayed(layer, given, tokens)
    assert all(differing(a, b) == 0 for a, b in zip(got, want, strict=True))


def replayed_layer() -> tuple[DecoderLayer, PagedCache, PagedTokens]:
    layer, cache = layer_of()
    tokens = tokens_of(cache, 6, 2)
    for _ in range(3):
        layer(*states(layer, 3), tokens)
    assert [callable(x) for x in layer.replays.made.values()] == [True]
    return layer, cache, tokens


def beside_the_residual(layer: DecoderLayer) -> Pair:
    x, _ = states(layer, 3)
    return x, x


def beside_a_parameter(layer: DecoderLayer) -> Pair:
    """Arguments in one buffer with a weight."""
    x, residual = states(layer, 3)
    norm = layer.post_attention_layernorm
    flat = torch.cat([t.flatten() for t in (norm.weight, x, residual)])
    norm.weight.data = flat[: len(norm.weight)]
    a, b = flat[len(norm.weight) :].view(2, *x.shape)
    return a, b


@pytest.mark.parametrize("shared", (beside_the_residual, beside_a_parameter))
def test_arguments_that_share_memory_are_not_recorded(shared: Callable[[DecoderLayer], Pair]) -> None:
    layer, cache = layer_of()
    given, tokens = shared(layer), tokens_of(cache, 6, 2)
    for _ in range(3):
        layer(*given, tokens)
    assert_as_unreplayed(layer, states(layer, 5), tokens)


def test_a_copy_of_a_layer_is_not_replayed_as_the_other() -> None:
    layer, _, tokens = replayed_layer()
    other = copy.copy(layer)
    other._modules = dict(layer._modules)
    change_module(other)
    given = states(layer, 5)
    assert_as_unreplayed(other, given, tokens)
    assert differing(other(*given, tokens)[0], layer(*given, tokens)[0]) > 0
    assert_as_unreplayed(layer, given, tokens)


def test_a_negated_view_is_not_replayed_as_its_memory() -> None:
    layer, _, tokens = replayed_layer()
    x, residual = states(layer, 5)
    assert_as_unreplayed(layer, (torch._neg_view(x), residual), tokens)


def other_strides(layer: DecoderLayer) -> None:
    weight = layer.mlp.down_proj.weight
    weight.data = weight.flatten().view(weight.shape[1], -1).t()


def other_sign(layer: DecoderLayer) -> None:
    weight = layer.input_layernorm.weight
    weight.data = torch._neg_view(weight.data)


def other_dtype(layer: DecoderLayer) -> None:
    weight = layer.mlp.down_proj.weight
    weight.data = weight.data.view(torch.float16)


def test_a_parameter_of_another_sign_at_one_address() -> None:
    layer, _, tokens = replayed_layer()
    given = states(layer, 5)
    before, address = layer(*given, tokens)[0], [p.data_ptr() for p in layer.parameters()]
    other_sign(layer)
    assert address == [p.data_ptr() for p in layer.parameters()]
    assert_as_unreplayed(layer, given, tokens)
    assert differing(before, layer(*given, tokens)[0]) > 0


@pytest.mark.parametrize("change", (other_strides, other_dtype))
def test_what_a_layer_refuses_is_refused_after_replays(change: Callable[[DecoderLayer], None]) -> None:
    layer, _, tokens = replayed_layer()
    address = layer.mlp.down_proj.weight.data_ptr()
    change(layer)
    assert address == layer.mlp.down_proj.weight.data_ptr()
    with pytest.raises(LaunchError, match=r"stride 64|float16"):
        layer(*states(layer, 5), tokens)


@pytest.mark.parametrize(("offset", "is_recorded"), ((0, True), (4, False)))
def test_memory_of_a_call_begins_with_its_tensor(offset: int, is_recorded: bool) -> None:
    layer, cache = layer_of()
    own = torch.empty(8)[offset:]
    call = Call(lambda tensors, scalars: tensors, {"y": own}, {}, {"y": own})
    made = recorded(layer, [call], (*states(layer, 3), tokens_of(cache, 6, 2)), (own, own))
    assert (made is not None) is is_recorded


def test_an_attribute_of_another_name_is_a_change() -> None:
    layer, _, tokens = replayed_layer()
    norm = layer.post_attention_layernorm
    norm.other = norm.eps
    del norm.eps
    with pytest.raises(AttributeError, match="eps"):
        layer(*states(layer, 5), tokens)


def test_replays_hold_no_memory_that_a_layer_left() -> None:
    layer, _, _ = replayed_layer()
    left = [p.untyped_storage()._weak_ref() for p in layer.parameters()]
    expired = torch.UntypedStorage._expired
    try:
        assert not any(map(expired, left))
        layer.to(torch.float32)
        assert all(map(expired, left))
    finally:
        for each in set(left):
            torch.UntypedStorage._free_weak_ref(each)
    gc.collect()
    gc.disable()
    try:
        layer, _, _ = replayed_layer()
        there = weakref.ref(layer)
        del layer
        assert there() is None
    finally:
        gc.enable()


def test_a_layer_rests_for_less_after_many_replays(looked_up: list[str]) -> None:
    layer, _, tokens = replayed_layer()
    given = states(layer, 5)

    def calls_until_replayed() -> int:
        change_memory(layer)
        for count in range(100):
            looked_up.clear()
            layer(*given, tokens)
            if not looked_up:
                return count
        raise AssertionError

    assert [calls_until_replayed() for _ in range(4)] == [4, 5, 7, 11]
    layer.replays.replayed = SETTLED - 1
    layer(*given, tokens)
    assert calls_until_replayed() == 4
