"""Heads after the product for q, k, v: norms summed by heads, and writes into a paged cache in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from runners import by_cute, by_triton

from rlk import ops
from rlk.env import Env
from rlk.errors import Code, LaunchError
from rlk.lang.op import Op
from rlk.ops.heads import sum_of_heads, weight_partials
from rlk.runtime.binding.host_stub import error_words
from rlk.runtime.binding.invocation import geometry_of, target_of
from rlk.runtime.call import dispatch as runtime
from rlk.runtime.call.dispatch import dispatch
from rlk.specs import heads as spec
from rlk.testing.bits import assert_same_bits, differing

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
HEADS, KEYS, WIDTH = 6, 2, 16
TOKENS = 150
"""Three pieces of 64 tokens, the last one short."""
Tensors = dict[str, torch.Tensor]
BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Leave the oracle in charge, whatever a test did."""
    before = dispatch.interpreters
    yield
    dispatch.interpreters = before
    dispatch.forget()


RUNNERS: dict[str, Callable[[], None]] = {
    "oracle": lambda: dispatch.interpret_with(None), "triton": by_triton, "cute": by_cute,
}  # fmt: skip


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def rotation(tokens: int, width: int = WIDTH) -> dict[str, Any]:
    cos, sin = ops.rope_table(64, width)
    position = torch.randint(64, (tokens,), generator=torch.Generator().manual_seed(5))
    return {"cos": cos, "sin": sin, "position_ids": position}


# --- norms of q and k -----------------------------------------------------

ROTATED: dict[str, dict[str, Any]] = {
    "plain": {},
    "rotated": rotation(TOKENS),
    "neighbours": rotation(TOKENS) | {"interleaved": True},
    "in part": rotation(TOKENS, 10) | {"rotary_dim": 10},
    "neighbours in part": rotation(TOKENS, 4) | {"rotary_dim": 4, "interleaved": True},
}


def chained(x: torch.Tensor, weight: torch.Tensor, profile: str, **options: Any) -> torch.Tensor:
    """Return the norm, then the rotation of its result, as two operators."""
    y = ops.rms_norm(x, weight, profile=profile)  # type: ignore[arg-type]
    assert isinstance(y, torch.Tensor)
    if not options:
        return y
    cos, sin = options.pop("cos"), options.pop("sin")
    return ops.rope(y, y[:, :1], cos, sin, **options)[0]


@pytest.mark.parametrize("form", ROTATED)
@pytest.mark.parametrize("profile", ["hf_llama", "gemma"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_norm_of_heads_has_the_bits_of_norm_and_rotation(
    dtype: torch.dtype, profile: str, form: str
) -> None:
    """And so has the gradient of x, of heads inside the result of one product."""
    qkv = normal(TOKENS, (HEADS + 2 * KEYS) * WIDTH, dtype=dtype).requires_grad_()
    weight = (1 + 0.1 * normal(WIDTH, seed=1)).to(dtype)
    x = qkv[:, : HEADS * WIDTH].unflatten(-1, (HEADS, WIDTH))
    g = normal(TOKENS, HEADS, WIDTH, seed=2, dtype=dtype)
    want = chained(x, weight, profile, **ROTATED[form])
    got = ops.qk_norm(x, weight, profile=profile, **ROTATED[form])
    assert_same_bits(got, want, form)
    (mine,), (theirs,) = (torch.autograd.grad(y, (qkv,), g, retain_graph=True) for y in (got, want))
    assert_same_bits(mine, theirs, f"gradient, {form}")


def weight_gradient(x: torch.Tensor, weight: torch.Tensor, g: torch.Tensor, **options: Any) -> torch.Tensor:
    leaf = weight.detach().clone().requires_grad_()
    (found,) = torch.autograd.grad(ops.qk_norm(x, leaf, **options), (leaf,), g)
    return found


def ascending(terms: list[torch.Tensor]) -> torch.Tensor:
    total = torch.full_like(terms[0], -0.0)
    for term in terms:
        total = total + term
    return total


def drawn(dtype: torch.dtype, tokens: int = TOKENS) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x, g = (normal(tokens, HEADS, WIDTH, seed=s, dtype=dtype) for s in (0, 2))
    return x, (1 + 0.1 * normal(WIDTH, seed=1)).to(dtype), g


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_weight_takes_its_heads_one_after_the_other(dtype: torch.dtype, runner: str) -> None:
    """Tokens of each head as `rms_norm` of that head adds them, in f32; then heads; then one rounding."""
    x, weight, g = drawn(dtype)
    RUNNERS[runner]()
    got = weight_gradient(x, weight, g)
    RUNNERS["oracle"]()
    parts = []
    for head in range(HEADS):
        leaf = weight.float().requires_grad_()
        y = ops.rms_norm(x[:, head], leaf)
        assert isinstance(y, torch.Tensor)
        parts += torch.autograd.grad(y, (leaf,), g[:, head])
    assert_same_bits(got, ascending(parts).to(dtype))


@pytest.mark.parametrize("form", ROTATED)
@pytest.mark.parametrize("profile", ["hf_llama", "gemma"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_ranks_that_share_heads_have_the_sum_of_one_rank(dtype: torch.dtype, profile: str, form: str) -> None:
    x, weight, g = drawn(dtype)
    options = {"profile": profile, **ROTATED[form]}
    want = weight_gradient(x, weight, g, **options)
    for at in (1, 2, 5):
        parts = slice(0, at), slice(at, HEADS)
        shares = [weight_partials(g[:, part], x[:, part], **options) for part in parts]
        assert [len(s) for s in shares] == [at, HEADS - at]
        assert_same_bits(sum_of_heads(torch.cat(shares), dtype), want, f"heads from {at}")


def test_sums_of_ranks_that_are_added_afterwards_have_other_bits() -> None:
    """The control: each rank adds its heads first. And the rows of all heads in one order."""
    x, weight, g = drawn(torch.float32)
    want = weight_gradient(x, weight, g)
    partials = weight_partials(g, x)
    assert differing(ascending([ascending(list(p)) for p in partials.split(3)]), want)
    assert differing(ascending(list(partials.flip(0))), want)
    leaf = weight.clone().requires_grad_()
    y = ops.rms_norm(x, leaf)
    assert isinstance(y, torch.Tensor)
    (rows,) = torch.autograd.grad(y, (leaf,), g)
    assert differing(rows, want)
    torch.testing.assert_close(rows, want)


@pytest.mark.parametrize("form", ROTATED)
@pytest.mark.parametrize("runner", ["triton", "cute"])
def test_generated_text_has_the_bits_of_the_oracle(runner: str, form: str) -> None:
    x, weight, g = drawn(torch.bfloat16, 70)
    options = dict(ROTATED[form])
    if options:
        options["position_ids"] = options["position_ids"][:70]
    made = []
    for name in ("oracle", runner):
        RUNNERS[name]()
        leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()
        y = ops.qk_norm(*leaves, **options)
        made.append((y, *torch.autograd.grad(y, leaves, g)))
    for a, b in zip(*made, strict=True):
        assert_same_bits(a, b, form)


def test_views_and_leading_dims_change_no_bit_of_a_weight() -> None:
    """The same tokens as [B, L] or packed, contiguous or inside the result of a product."""
    x, weight, g = drawn(torch.float32)
    want = weight_gradient(x, weight, g)
    wide = torch.cat((g, x, g), 1).flatten(1)
    view = wide[:, HEADS * WIDTH : 2 * HEADS * WIDTH].unflatten(-1, (HEADS, WIDTH))
    assert_same_bits(weight_gradient(view, weight, g), want)
    shaped = (t.unflatten(0, (3, 50)) for t in (view, g))
    assert_same_bits(weight_gradient(next(shaped), weight, next(shaped)), want)
    assert differing(weight_gradient(x.flip(0), weight, g.flip(0)), want)


@pytest.mark.parametrize("form", ROTATED)
@pytest.mark.parametrize("profile", ["hf_llama", "gemma"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_norm_of_heads_is_near_its_float64_form(dtype: torch.dtype, profile: str, form: str) -> None:
    x, weight, g = drawn(dtype)
    eps = {torch.float32: 2.0**-22, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-9}[dtype]
    leaves, wide = (
        [t.clone().requires_grad_() for t in (x.to(t), weight.to(t))] for t in (dtype, torch.float64)
    )
    got = ops.qk_norm(*leaves, profile=profile, **ROTATED[form])
    want = ops.qk_norm.reference(*wide, profile=profile, **ROTATED[form])
    pairs = [(got, want), *zip(torch.autograd.grad(got, leaves, g),
                               torch.autograd.grad(want, wide, g.double()), strict=True)]  # fmt: skip
    for mine, exact in pairs:
        scale = float(exact.detach().abs().max())
        torch.testing.assert_close(mine.double(), exact, rtol=0.0, atol=3 * eps * scale)


def test_a_token_alone_has_the_bits_of_the_token_in_a_batch() -> None:
    """The control: with another weight it has not."""
    x, weight, g = drawn(torch.bfloat16)
    options = ROTATED["rotated"]
    leaf = x.clone().requires_grad_()
    y = ops.qk_norm(leaf, weight, **options)
    (d_x,) = torch.autograd.grad(y, (leaf,), g)
    for token in (0, 64, 149):
        at = slice(token, token + 1)
        alone = options | {"position_ids": options["position_ids"][at]}
        leaf = x[at].clone().requires_grad_()
        got = ops.qk_norm(leaf, weight, **alone)
        assert_same_bits(got, y[at])
        assert_same_bits(torch.autograd.grad(got, (leaf,), g[at])[0], d_x[at])
        assert differing(ops.qk_norm(x[at], weight + 0.5, **alone), y[at])


# --- writes into a cache -----------------------------------------------------

PAGES, SLOTS = 7, 4
STEP = 9


def nhd(dtype: torch.dtype, width: int = WIDTH) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a whole cache, and keys and values in it: each a tensor [P, page, Hk, E]."""
    whole = normal(2, PAGES, SLOTS, KEYS, width, seed=7, dtype=dtype)
    return whole, whole[0], whole[1]


def hnd(dtype: torch.dtype, width: int = WIDTH) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a cache of vLLM, [blocks, heads, slots, 2E], and the views of its keys and values."""
    whole = normal(PAGES, KEYS, SLOTS, 2 * width, seed=7, dtype=dtype)
    pages = whole.transpose(1, 2)
    return whole, pages[..., :width], pages[..., width:]


def off(dtype: torch.dtype, width: int = WIDTH) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a cache whose memory begins at no multiple of 16 bytes."""
    whole = normal(1 + 2 * PAGES * SLOTS * KEYS * width, seed=7, dtype=dtype)
    keys, values = whole[1:].view(2, PAGES, SLOTS, KEYS, width)
    return whole, keys, values


LAYOUTS = {"NHD": nhd, "HND": hnd, "not aligned": off}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rotated": rotation(STEP),
    "neighbours": rotation(STEP) | {"interleaved": True},
    "in part": rotation(STEP, 6) | {"rotary_dim": 6},
}


def slots(dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Slots of a step: two of them padding, the last of the cache among them."""
    return torch.tensor([3, -1, 7, PAGES * SLOTS - 1, 0, 1, -1, 18, 12], dtype=dtype)


def placed(cache: torch.Tensor, at: torch.Tensor, x: torch.Tensor) -> None:
    """Write tokens into a cache as torch does."""
    there = at >= 0
    cache[at[there] // SLOTS, at[there] % SLOTS] = x[there]


def step(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Return the result of a product for q, k and v, and the views of each."""
    qkv = normal(STEP, (HEADS + 2 * KEYS) * WIDTH, dtype=dtype)
    return qkv, *qkv.unflatten(-1, (-1, WIDTH)).split((HEADS, KEYS, KEYS), 1)


def turned(x: torch.Tensor, **options: Any) -> torch.Tensor:
    if not options:
        return x
    cos, sin = options.pop("cos"), options.pop("sin")
    return ops.rope(x, x, cos, sin, **options)[0]


@pytest.mark.parametrize("form", OPTIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("runner", RUNNERS)
def test_keys_and_values_are_written_where_they_belong_and_nowhere_else(
    runner: str, dtype: torch.dtype, layout: str, form: str
) -> None:
    _, _, k, v = step(dtype)
    want, want_k, want_v = LAYOUTS[layout](dtype)
    placed(want_k, slots(), turned(k, **OPTIONS[form]))
    placed(want_v, slots(), v)
    got, k_cache, v_cache = LAYOUTS[layout](dtype)
    RUNNERS[runner]()
    assert ops.write_cache(k, v, k_cache, v_cache, slots(torch.int32), **OPTIONS[form]) is None
    assert_same_bits(got, want)
    assert differing(got, LAYOUTS[layout](dtype)[0])


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("form", OPTIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("runner", RUNNERS)
def test_one_pass_has_the_bits_of_norm_rotation_and_writes_apart(
    runner: str, layout: str, form: str, weights: bool
) -> None:
    for dtype, profile in ((torch.bfloat16, "hf_llama"), (torch.float32, "gemma")):
        qkv, q, k, v = step(dtype)
        w_q, w_k = ((1 + normal(WIDTH, seed=s)).to(dtype) for s in (3, 4))
        named = {"q_weight": w_q, "k_weight": w_k} if weights else {}
        RUNNERS["oracle"]()
        if weights:
            q, k = (ops.rms_norm(x, w, profile=profile, eps=1e-5) for x, w in ((q, w_q), (k, w_k)))  # type: ignore[arg-type,assignment]
        want, want_k, want_v = LAYOUTS[layout](dtype)
        placed(want_k, slots(), turned(k, **OPTIONS[form]))
        placed(want_v, slots(), v)
        want_q = turned(q, **OPTIONS[form])
        got, k_cache, v_cache = LAYOUTS[layout](dtype)
        RUNNERS[runner]()
        made = ops.cache_qkv(
            qkv, k_cache, v_cache, slots(), profile=profile, eps=1e-5, **named, **OPTIONS[form]
        )
        assert_same_bits(made, want_q)
        assert_same_bits(got, want)


def test_a_norm_that_is_not_rounded_before_the_rotation_is_seen() -> None:
    """The control: one rounding less."""
    qkv, q, _, _ = step(torch.bfloat16)
    weight = (1 + normal(WIDTH, seed=3)).bfloat16()
    _, k_cache, v_cache = nhd(torch.bfloat16)
    options = OPTIONS["rotated"]
    made = ops.cache_qkv(qkv, k_cache, v_cache, slots(), q_weight=weight, k_weight=weight, **options)
    wide = ops.rms_norm(q.float(), weight.float())
    assert isinstance(wide, torch.Tensor)
    assert differing(turned(wide, **options).bfloat16(), made)


@pytest.mark.parametrize("runner", RUNNERS)
def test_the_slots_of_other_tokens_change_no_bit(runner: str) -> None:
    """A token alone, in any slot, has the bits that it has in a batch."""
    qkv, *_ = step(torch.bfloat16)
    weight = (1 + normal(WIDTH, seed=3)).bfloat16()
    named = {"q_weight": weight, "k_weight": weight}
    options = OPTIONS["rotated"]
    RUNNERS[runner]()
    _, k_cache, v_cache = nhd(torch.bfloat16)
    q = ops.cache_qkv(qkv, k_cache, v_cache, slots(), **named, **options)
    for token, slot in ((0, 3), (3, 27), (8, 12)):
        _, k_alone, v_alone = hnd(torch.bfloat16)
        at = slice(token, token + 1)
        alone = options | {"position_ids": options["position_ids"][at]}
        mine = ops.cache_qkv(qkv[at], k_alone, v_alone, torch.tensor([5]), **named, **alone)
        assert_same_bits(mine[0], q[token])
        assert_same_bits(k_alone[1, 1], k_cache[slot // SLOTS, slot % SLOTS])
        assert_same_bits(v_alone[1, 1], v_cache[slot // SLOTS, slot % SLOTS])
        assert differing(mine[0], q[token - 1])


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("bad", [PAGES * SLOTS, -2, 2**40])
def test_a_slot_outside_of_the_cache_writes_nothing_and_is_reported(
    runner: str, bad: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    qkv, _, k, v = step(torch.bfloat16)
    at = slots()
    at[4] = bad
    want, want_k, want_v = nhd(torch.bfloat16)
    inside = torch.where(at == bad, -1, at)
    placed(want_k, inside, k)
    placed(want_v, inside, v)
    calls = (
        lambda keys, values: ops.write_cache(k, v, keys, values, at),
        lambda keys, values: ops.cache_qkv(qkv, keys, values, at),
    )
    for call in calls:
        RUNNERS[runner]()
        got, keys, values = nhd(torch.bfloat16)
        call(keys, values)
        assert_same_bits(got, want)
        error_words(torch.device("cpu"))[:] = torch.tensor([1, 20])  # left by an unchecked call
        with monkeypatch.context() as patch:
            patch.setattr(Env, "current", staticmethod(lambda: Env.read({"RLK_CHECK": "1"})))
            RUNNERS[runner]()
            with pytest.raises(LaunchError, match="a slot outside of the cache") as caught:
                call(keys, values)
        assert "row 4" in str(caught.value)


def test_values_of_another_width_are_written_by_a_call_of_their_own() -> None:
    _, _, k, _ = step(torch.bfloat16)
    v = normal(STEP, KEYS, 10, dtype=torch.bfloat16)
    _, want_k, _ = nhd(torch.bfloat16)
    _, _, want_v = nhd(torch.bfloat16, 10)
    placed(want_k, slots(), turned(k, **OPTIONS["rotated"]))
    placed(want_v, slots(), v)
    _, k_cache, _ = nhd(torch.bfloat16)
    _, _, v_cache = nhd(torch.bfloat16, 10)
    ops.write_cache(k, v, k_cache, v_cache, slots(), **OPTIONS["rotated"])
    assert_same_bits(k_cache, want_k)
    assert_same_bits(v_cache, want_v)


def test_tokens_may_have_several_leading_dims_and_none_at_all() -> None:
    qkv, *_ = step(torch.bfloat16)
    options = OPTIONS["rotated"]
    want, k_cache, v_cache = nhd(torch.bfloat16)
    flat = ops.cache_qkv(qkv, k_cache, v_cache, slots(), **options)
    got, k_cache, v_cache = nhd(torch.bfloat16)
    square = options | {"position_ids": options["position_ids"].view(3, 3)}
    made = ops.cache_qkv(qkv.view(3, 3, -1), k_cache, v_cache, slots().view(3, 3), **square)
    assert made.shape == (3, 3, HEADS, WIDTH)
    assert_same_bits(made.flatten(0, 1), flat)
    assert_same_bits(got, want)
    got, k_cache, v_cache = nhd(torch.bfloat16)
    one = ops.cache_qkv(
        qkv[0], k_cache, v_cache, slots()[0], **options | {"position_ids": options["position_ids"][0]}
    )
    assert_same_bits(one, flat[0])
    for count in (0, 1):
        none = {n: x[:count] if n == "position_ids" else x for n, x in options.items()}
        got, k_cache, v_cache = nhd(torch.bfloat16)
        made = ops.cache_qkv(qkv[:count], k_cache, v_cache, slots()[:count], **none)
        assert made.shape == (count, HEADS, WIDTH)
        assert bool(differing(got, nhd(torch.bfloat16)[0])) is bool(count)


def test_a_position_outside_of_the_tables_gives_nan_where_heads_are_rotated() -> None:
    qkv, *_ = step(torch.bfloat16)
    options = OPTIONS["in part"] | {"position_ids": torch.full((STEP,), 64)}
    _, k_cache, v_cache = nhd(torch.bfloat16)
    q = ops.cache_qkv(qkv, k_cache, v_cache, slots(), **options)
    assert q[..., :6].isnan().all() and not q[..., 6:].isnan().any()
    assert k_cache[0, 3, :, :6].isnan().all() and not v_cache.isnan().any()


def test_caches_are_read_back_by_paged_attention() -> None:
    """Keys written page by page, in any pages, attend as the same keys in a row do."""
    length, width = 70, 32
    q, k, v = (normal(length, n, width, seed=i, dtype=torch.bfloat16) for i, n in enumerate((2, 2, 2)))
    options = rotation(length, width) | {"position_ids": torch.arange(length) % 64}
    edges = torch.tensor([0, length], dtype=torch.int32)
    want = ops.varlen_attention(turned(q, **options), turned(k, **options), v, edges, edges).o
    pages = torch.tensor([[4, 0, 2, 1, 3]], dtype=torch.int32)
    at = pages[0, torch.arange(length) // 16].long() * 16 + torch.arange(length) % 16
    cache = torch.zeros(5, 2, 16, 2 * width, dtype=torch.bfloat16).transpose(1, 2)
    views = cache[..., :width], cache[..., width:]
    made = ops.cache_qkv(torch.cat((q, k, v), 1).flatten(1), *views, at, **options)
    got = ops.paged_attention(made, *views, pages, torch.tensor([length], dtype=torch.int32), edges).o
    assert_same_bits(got, want)


def test_float64_forms_write_the_same_places() -> None:
    qkv, _, k, v = step(torch.float32)
    weight = 1 + normal(WIDTH, seed=3)
    named = {"q_weight": weight, "k_weight": weight}
    for form, options in OPTIONS.items():
        exact = [x.double() for x in nhd(torch.float32)[1:]]
        got, k_cache, v_cache = nhd(torch.float32)
        q = ops.cache_qkv(qkv, k_cache, v_cache, slots(), **named, **options)
        want = ops.cache_qkv.reference(qkv, *exact, slots(), **named, **options)
        for mine, theirs in zip((q, k_cache, v_cache), (want, *exact), strict=True):
            torch.testing.assert_close(mine.double(), theirs, rtol=1e-6, atol=2e-6, msg=form)
        got, k_cache, v_cache = nhd(torch.float32)
        exact = [x.double() for x in nhd(torch.float32)[1:]]
        ops.write_cache(k, v, k_cache, v_cache, slots(), **options)
        ops.write_cache.reference(k, v, *exact, slots(), **options)
        for mine, theirs in zip((k_cache, v_cache), exact, strict=True):
            torch.testing.assert_close(mine.double(), theirs, rtol=1e-6, atol=2e-6, msg=form)


# --- under torch's tools -----------------------------------------------------------------------------


def arguments(op: Op) -> list[Any]:
    """Return the arguments of an operator in torch's registry, every optional one among them."""
    qkv, q, k, v = step(BF16)
    _, k_cache, v_cache = hnd(BF16)
    given = {
        "qkv": qkv.unflatten(-1, (-1, WIDTH)), "q": torch.empty_like(q), "k": k, "v": v, "slots": slots(),
        "k_cache": k_cache.clone(), "v_cache": v_cache.clone(), **rotation(STEP),
        "q_weight": torch.ones(WIDTH), "k_weight": torch.ones(WIDTH),
    }  # fmt: skip
    return [given.get(f.name, f.default) for f in op.formals]


@pytest.mark.parametrize("op", [spec.write_cache, spec.cache_qkv], ids=lambda op: op.name)
def test_torch_accepts_operators_that_write_their_arguments(op: Op) -> None:
    registered = getattr(torch.ops.rlk, op.name).default
    written = {a.name for a in registered._schema.arguments if a.alias_info and a.alias_info.is_write}
    assert written == {"k_cache", "v_cache"} | ({"q"} if op is spec.cache_qkv else set())
    torch.library.opcheck(registered, tuple(arguments(op)))


def test_a_graph_writes_the_caches_that_it_is_given() -> None:
    """And what it reads of them afterwards was written before."""
    qkv, *_ = step(BF16)
    options = OPTIONS["rotated"]

    def call(qkv: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor) -> torch.Tensor:
        q = ops.cache_qkv(qkv, k_cache, v_cache, slots(), **options)
        return q + k_cache[0, 3, :1] + v_cache[0, 3, :1]

    made = []
    for run in (call, torch.compile(call, fullgraph=True, backend="aot_eager")):
        whole, k_cache, v_cache = hnd(BF16)
        made.append((run(qkv, k_cache, v_cache), whole))
    for a, b in zip(*made, strict=True):
        assert_same_bits(a, b)
    assert differing(made[0][1], hnd(BF16)[0])


# --- refusals -----------------------------------------------------


def cached(**changes: Any) -> Any:
    _, k_cache, v_cache = nhd(BF16)
    given = {"qkv": step(BF16)[0], "k_cache": k_cache, "v_cache": v_cache, "slots": slots()} | changes
    return ops.cache_qkv(**given)


def written(**changes: Any) -> Any:
    _, _, k, v = step(BF16)
    _, k_cache, v_cache = nhd(BF16)
    given = {"k": k, "v": v, "k_cache": k_cache, "v_cache": v_cache, "slots": slots()} | changes
    return ops.write_cache(**given)


def normed(**changes: Any) -> Any:
    x, weight, _ = drawn(BF16)
    return ops.qk_norm(**({"x": x, "weight": weight} | changes))


REFUSED: dict[str, tuple[Callable[[], Any], Code, str]] = {
    "half a rotation": (lambda: normed(cos=torch.ones(3, 8)), Code.ARG_MISSING, "sin, position_ids"),
    "a rotation of nothing": (lambda: normed(rotary_dim=4), Code.ARG_VALUE, "rotary_dim"),
    "an odd width": (lambda: normed(**rotation(TOKENS) | {"rotary_dim": 5}), Code.ARG_VALUE, "even"),
    "a table of another width": (lambda: normed(**rotation(TOKENS, 12)), Code.ARG_SIZE, "cos"),
    "an empty table": (
        lambda: normed(**rotation(TOKENS) | {"cos": torch.ones(0, 8)}), Code.ARG_VALUE, "cos.shape"),
    "another profile": (lambda: normed(profile="vllm"), Code.ARG_VALUE, "profile"),
    "a negative eps": (lambda: normed(eps=-1.0), Code.ARG_VALUE, "eps"),
    "a row without heads": (lambda: normed(x=normal(WIDTH, dtype=BF16)), Code.ARG_RANK, "H, E"),
    "a short weight": (lambda: normed(weight=normal(9, dtype=BF16)), Code.ARG_SIZE, "weight"),
    "one weight of two": (lambda: cached(q_weight=normal(WIDTH)), Code.ARG_MISSING, "k_weight"),
    "heads that do not divide": (lambda: cached(qkv=normal(STEP, 100, dtype=BF16)), Code.ARG_VALUE, "Hq"),
    "no heads of q": (lambda: cached(qkv=normal(STEP, 64, dtype=BF16)), Code.ARG_VALUE, "Hq"),
    "pages without slots": (
        lambda: cached(k_cache=normal(PAGES, 0, KEYS, WIDTH, dtype=BF16)), Code.ARG_VALUE, "k_cache.shape"),
    "a flat cache": (lambda: written(v_cache=normal(28, KEYS, WIDTH, dtype=BF16)), Code.ARG_RANK, "v_cache"),
    "a cache of another dtype": (
        lambda: written(k_cache=nhd(torch.float16)[1]), Code.ARG_DTYPE, "k_cache"),
    "a cache of other heads": (
        lambda: written(k_cache=normal(PAGES, SLOTS, 3, WIDTH, dtype=BF16)), Code.ARG_SIZE, "k_cache"),
    "a cache that is not contiguous": (
        lambda: written(k_cache=normal(PAGES, SLOTS, WIDTH, KEYS, dtype=BF16).transpose(2, 3)),
        Code.ARG_STRIDE, "k_cache"),
    "fewer slots than tokens": (lambda: written(slots=slots()[1:]), Code.ARG_SIZE, "slots"),
    "slots of another dtype": (lambda: written(slots=slots().float()), Code.ARG_DTYPE, "slots"),
    "a gradient of keys": (
        lambda: written(k=step(BF16)[2].clone().requires_grad_()), Code.NOT_DIFFERENTIABLE, "k"),
    "a list": (lambda: written(slots=[1, 2]), Code.ARG_TYPE, "slots"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_bad_arguments_are_refused_by_name(case: str) -> None:
    call, code, name = REFUSED[case]
    with pytest.raises(LaunchError) as caught:
        call()
    assert caught.value.diagnostics[0].code is code
    assert name in str(caught.value)


# --- memory that the caller gives -----------------------------------------------------


@pytest.mark.parametrize(("first", "aligned"), [(0, True), (1, False), (4, True)])
def test_vectors_are_stored_only_where_the_memory_that_is_given_begins_at_one(
    first: int, aligned: bool
) -> None:
    """A slice of a flat buffer, as those of gradients are, may begin at any element."""
    seen: list[frozenset[str]] = []

    def recorder(invocation: Any, tensors: Tensors) -> Any:
        geometry, on = geometry_of(invocation, tensors), runtime.target("sm_90a")
        assert target_of(torch.device("cpu")) is None
        used = {n: t for n, t in tensors.items() if n != "weight_grad"}
        seen.append(
            runtime.requested(
                invocation, runtime.model_of(invocation, tensors["x"].device), geometry, used, on
            ).aligned
        )
        return lambda given, scalars: given

    x, d_y = normal(64, 32, dtype=BF16), normal(64, 48, dtype=BF16)
    buffer = torch.zeros(48 * 32 + first)[first:].view(48, 32)
    with dispatch.recorded(recorder):
        ops.products.add_weight_gradient(d_y, x, buffer)
    assert ("d_w" in seen[0]) is aligned
