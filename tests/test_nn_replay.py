"""A decoder layer's replayed calls: the same bits for other tensors, and made again where a layer changed."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator

import pytest
import torch
from model_families import FAMILIES
from nn_cases import integers

import rlk.nn.replay
from rlk.nn import DecoderLayer, ModelConfig, PagedCache, PagedTokens
from rlk.nn.modules import RMSNorm, lay_out
from rlk.nn.rotary import tables_of
from rlk.ops import linear
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
