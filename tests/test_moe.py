"""Choice of experts, its replay, and the moves of rows to experts and back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch
from runners import by_cute, by_triton

from rlk import ops
from rlk.env import Env
from rlk.errors import Code, LaunchError
from rlk.interp.run import run
from rlk.lang.op import Variant
from rlk.nn.identity import operator_ids
from rlk.ops import Flips, Permuted, Routes, moe
from rlk.passes.pipeline import canonical
from rlk.runtime.call.dispatch import dispatch
from rlk.specs.moe import expert_weights
from rlk.testing.bits import assert_same_bits, differing

TOKENS, EXPERTS, K, WIDTH = 9, 16, 3, 24
FORMS: dict[str, dict[str, Any]] = {
    "mixtral": {},
    "qwen3_moe, not renormalized": {"renormalize": False},
    "deepseek_v2": {"groups": 4, "kept_groups": 2, "group_score": "max", "renormalize": False, "scale": 16.0},
    "deepseek_v3": {"score": "sigmoid", "groups": 4, "kept_groups": 2, "bias": True, "scale": 2.5},
}


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Leave the oracle in charge, whatever a test did."""
    before = dispatch.interpreters
    yield
    dispatch.interpreters = before
    dispatch.forget()


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def options_of(form: str) -> dict[str, Any]:
    made = dict(FORMS[form])
    if made.pop("bias", False):
        made["bias"] = 0.3 * normal(EXPERTS, seed=7)
    return made


def moved(ids: torch.Tensor, dtype: torch.dtype = torch.bfloat16, **options: Any) -> Permuted:
    return ops.permute(normal(len(ids), WIDTH, seed=3, dtype=dtype), ids, experts=EXPERTS, **options)


def ids_of(tokens: int = TOKENS, k: int = K, seed: int = 0) -> torch.Tensor:
    return ops.route(normal(tokens, EXPERTS, seed=seed), k).ids


# --- the choice and the weights ---------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_choices_and_weights_are_those_of_float64(form: str) -> None:
    scores, options = normal(TOKENS, EXPERTS).requires_grad_(), options_of(form)
    wide = scores.detach().double().requires_grad_()
    got, want = ops.route(scores, K, **options), ops.route.reference(wide, K, **options)
    assert got.ids.tolist() == want.ids.tolist()
    assert got.ids.dtype is torch.uint8 and got.weights.dtype is torch.float32
    torch.testing.assert_close(got.weights.double(), want.weights, rtol=1e-6, atol=0)
    g = normal(TOKENS, K, seed=1)
    (mine,) = torch.autograd.grad(got.weights, scores, g)
    (theirs,) = torch.autograd.grad(want.weights, wide, g.double())
    torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-6)
    others = [ops.route(scores, K, **options_of(other)) for other in FORMS if other != form]
    assert all(differing(got.weights, other.weights) for other in others)


def everything() -> list[torch.Tensor]:
    """Return results and gradients of a route in each form, and of the moves of its rows."""
    found = []
    for form in FORMS:
        scores = normal(TOKENS, EXPERTS, dtype=torch.bfloat16).requires_grad_()
        made = ops.route(scores, K, **options_of(form))
        g = normal(TOKENS, K, seed=1)
        found += [made.ids, made.weights, *torch.autograd.grad(made.weights, scores, g)]
    found += moe._counted(found[0].reshape(-1), EXPERTS)
    for leaves in (1, 4):
        x = normal(TOKENS, WIDTH, seed=3, dtype=torch.bfloat16).requires_grad_()
        weights = found[1].detach().requires_grad_()
        permuted = ops.permute(x, found[0], experts=EXPERTS, leaves=leaves)
        y = ops.combine(permuted.rows, weights, permuted, leaves=leaves)
        found += [y, *torch.autograd.grad(y, (x, weights), normal(TOKENS, WIDTH, seed=4).bfloat16())]
    return found


@pytest.mark.parametrize("run", [by_triton, by_cute])
def test_generated_kernels_have_the_bits_of_the_oracle(run: Callable[[], None]) -> None:
    want = everything()
    run()
    got = everything()
    assert [differing(a, b) for a, b in zip(got, want, strict=True)] == [0] * len(want)


def test_of_equal_scores_the_lowest_experts_are_chosen() -> None:
    scores = torch.tensor([[0.0, 1.0, -0.0, 0.0, 1.0, 0.0], [2.0, 2.0, 2.0, 2.0, 2.0, 2.0]])
    assert ops.route(scores, 4).ids.tolist() == [[0, 1, 2, 4], [0, 1, 2, 3]]
    grouped = {"groups": 3, "kept_groups": 1, "group_score": "max"}
    assert ops.route(scores, 2, **grouped).ids.tolist() == [[0, 1], [0, 1]]
    # the control: among the same experts in another order the lowest ids are others
    assert (5 - ops.route(scores.flip(-1), 4).ids.flip(-1).int()).tolist() != ops.route(
        scores, 4
    ).ids.tolist()


def test_scores_that_round_to_one_probability_are_told_apart() -> None:
    """A sigmoid of 30 and of 40 is 1.0 in f32."""
    scores = torch.tensor([[30.0, 40.0, 0.0]])
    assert torch.sigmoid(scores)[0, 0] == torch.sigmoid(scores)[0, 1]
    assert ops.route(scores, 1, score="sigmoid").ids.tolist() == [[1]]


@pytest.mark.parametrize("form", FORMS)
def test_nan_scores_are_of_their_token_alone(form: str) -> None:
    scores, options = normal(TOKENS, EXPERTS), options_of(form)
    bad = scores.clone()
    bad[4, 11] = torch.nan
    bad.requires_grad_()
    got, want = ops.route(bad, K, **options), ops.route(scores, K, **options)
    rest = torch.arange(TOKENS) != 4
    assert got.weights[4].isnan().all() and len(set(got.ids[4].tolist())) == K
    assert 11 not in got.ids[4].tolist()
    for a, b in ((got.ids, want.ids), (got.weights, want.weights)):
        assert_same_bits(a[rest], b[rest])
    (slope,) = torch.autograd.grad(got.weights.square().sum(), bad)
    assert slope[4].isnan().all() and slope[rest].isfinite().all()


def test_a_token_has_the_bits_of_itself_in_any_batch() -> None:
    """By results and gradients of the whole way to experts and back; the control adds in another order."""
    scores, k = normal(TOKENS, EXPERTS, seed=5), 6
    x, g = (normal(TOKENS, WIDTH, seed=s) for s in (6, 8))

    def run(at: slice) -> list[torch.Tensor]:
        given = scores[at].clone().requires_grad_(), x[at].clone().requires_grad_()
        chosen = ops.route(given[0], k)
        permuted = ops.permute(given[1], chosen.ids, experts=EXPERTS)
        y = ops.combine(permuted.rows * permuted.rows, chosen.weights, permuted)
        return [chosen.ids, chosen.weights, y, *torch.autograd.grad(y, given, g[at])]

    whole = run(slice(None))
    for at in (slice(3, 4), slice(0, 5), slice(7, None)):
        assert [differing(a, b[at]) for a, b in zip(run(at), whole, strict=True)] == [0] * len(whole)
    terms = (x * x)[:, None] * whole[1][..., None]
    down, up = (reduce(torch.add, each.unbind(1)) for each in (terms.flip(1), terms))
    assert_same_bits(whole[2], up)
    assert differing(whole[2], down)


# --- rows by expert -----------------------------------------------------------------------------------------


def test_rows_are_sorted_by_expert_and_then_by_token() -> None:
    ids = ids_of()
    made = moved(ids)
    pairs = sorted((expert, token) for token, row in enumerate(ids.tolist()) for expert in row)
    x = normal(TOKENS, WIDTH, seed=3, dtype=torch.bfloat16)
    assert_same_bits(made.rows, x[[token for _, token in pairs]])
    counts = [sum(expert == e for expert, _ in pairs) for e in range(EXPERTS)]
    assert made.offsets.diff().tolist() == counts and 0 in counts
    assert made.order[made.place.flatten().long()].tolist() == list(range(TOKENS * K))


def test_kernels_that_count_pairs_have_the_integers_of_the_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels count on devices, and their ids are noted for any; on the CPU torch sorts."""
    ids = ops.route(normal(90, EXPERTS), K).ids
    noted = {name for name, _ in operator_ids(torch.device("cpu"), lambda: moved(ids))}
    assert noted == {"places_by_expert", "expert_offsets", "rows_by_expert"}
    place, order, offsets = moe._counted(ids.reshape(-1), EXPERTS)
    monkeypatch.setattr(moe, "_counted", lambda *_: pytest.fail("kernels count on the CPU"))
    made = moved(ids)
    for a, b in zip((made.place.flatten(), made.order, made.offsets), (place, order, offsets), strict=True):
        assert_same_bits(a, b)
    assert differing(moved(ids.flip(0)).order, order)
    monkeypatch.setattr(moe, "_for_a_device", lambda ids: True)  # the control: the kernels are reached
    with pytest.raises(pytest.fail.Exception, match="count on the CPU"):
        moved(ids)


@pytest.mark.parametrize("leaves", [1, 2, 4])
def test_terms_are_added_by_expert_in_pieces_and_pieces_pairwise(leaves: int) -> None:
    """Of results, and of d x; one piece and four differ somewhere."""
    ids = ids_of(k=8)
    permuted = moved(ids, leaves=leaves)
    rows, weights = normal(TOKENS * 8, WIDTH, seed=4), normal(TOKENS, 8, seed=5)

    def added(terms: torch.Tensor, pieces: int) -> torch.Tensor:
        size, sums = EXPERTS // pieces, []
        for piece in range(pieces):
            total = torch.full_like(terms[:, 0], -0.0)
            for i in range(8):
                mine = (ids[:, i].long() // size == piece)[:, None]
                total = torch.where(mine, total + terms[:, i], total)
            sums.append(total)
        while len(sums) > 1:
            sums = [a + b for a, b in zip(sums[::2], sums[1::2], strict=True)]
        return sums[0]

    terms = rows[permuted.place.long()] * weights[..., None]
    assert_same_bits(ops.combine(rows, weights, permuted, leaves=leaves), added(terms, leaves))
    x = normal(TOKENS, WIDTH, seed=3).requires_grad_()
    (d_x,) = torch.autograd.grad(ops.permute(x, ids, experts=EXPERTS, leaves=leaves).rows, x, rows)
    assert_same_bits(d_x, added(rows[permuted.place.long()], leaves))
    assert differing(added(terms, leaves), added(terms, 4 if leaves == 1 else 1))


# --- replay -------------------------------------------------------------------------------------------------


def test_a_replay_of_equal_scores_is_the_route_itself() -> None:
    """Bit for bit, gradients included; other scores have the recorded experts and report what flipped."""
    scores = normal(TOKENS, EXPERTS).requires_grad_()
    made = ops.route(scores, K)
    shuffled = made.ids.flip(-1).long()  # engines list them by score
    routes = Routes.of([torch.zeros_like(shuffled) + torch.arange(K), shuffled], experts=EXPERTS)
    again = ops.route(scores, K, replay=routes, layer=1)
    assert_same_bits(again.ids, made.ids)
    assert_same_bits(again.weights, made.weights)
    a, b = (torch.autograd.grad(r.weights, scores, normal(TOKENS, K, seed=1))[0] for r in (again, made))
    assert_same_bits(a, b)
    assert again.flipped is not None and not again.flipped.any()
    other = scores.detach().clone()
    other[5] = -other[5]
    replayed = ops.route(other, K, replay=routes, layer=1)
    assert_same_bits(replayed.ids, made.ids)
    assert replayed.flipped is not None and replayed.flipped.nonzero().flatten().tolist() == [5]
    assert differing(replayed.weights, made.weights)
    want = torch.softmax(other.double().gather(1, made.ids.long()), -1)
    torch.testing.assert_close(replayed.weights.double(), want, rtol=1e-6, atol=0)
    report = Flips.of_layers([again.flipped, replayed.flipped])
    assert report == Flips(1, TOKENS, 5, 1, (0, 1))
    assert "1 of 9 tokens" in str(report) and "token 5, in layer 1" in str(report)


def test_routes_are_stored_in_k_bytes_a_token_and_layer() -> None:
    ids = [ids_of(seed=s) for s in range(4)]
    routes = Routes.of([x.int() for x in ids], experts=EXPERTS)
    assert routes.nbytes == TOKENS * 4 * K and (routes.tokens, routes.layers, routes.k) == (TOKENS, 4, K)
    assert Routes.of([x.int() for x in ids], experts=300).ids.dtype is torch.int16
    again = Routes.cat([routes.take(slice(0, 2)), routes.take(torch.arange(2, TOKENS))])
    assert again.digest() == routes.digest() and str(routes.flips(again)) == "no token of 9 changed experts"
    changed = routes.ids.clone()
    changed[6, 2] = torch.tensor([0, 1, 2])
    other = Routes.of(changed, experts=EXPERTS)
    assert other.digest() != routes.digest() and routes.flips(other) == Flips(1, TOKENS, 6, 2, (0, 0, 1, 0))
    assert Routes.of(routes.ids, experts=EXPERTS + 1).digest() != routes.digest()


WRONG_IDS = {
    "above": (16, [3, 257]),
    "below": (16, [-1, 3]),
    "twice": (16, [3, 3]),
    "above, where uint8 has no room": (256, [3, 300]),
    "twice, where uint8 has no room": (256, [255, 255]),
    "below, of one choice where uint8 has no room": (256, [-1]),
    "above, where int16 wraps": (300, [3, 65540]),
}


@pytest.mark.parametrize("what", WRONG_IDS)
def test_a_kernel_reports_recorded_ids_that_are_no_experts(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device nothing waits for ids: storing them compactly makes none valid, and the kernel tells."""
    experts, wrong = WRONG_IDS[what]
    k = len(wrong)
    right = [0, experts - 1][-k:]
    on_the_host = Routes.of(torch.tensor([[right], [right]]), experts=experts)
    monkeypatch.setattr(sys.modules[Routes.__module__], "on_the_host", lambda ids: False)
    plain = expert_weights.default_variant()
    statics = dict(plain.statics) | {"k": k}
    program = canonical(expert_weights.trace(Variant.of(dict(plain.dtypes), plain.present, statics)))
    for ids in (right, wrong):
        made = Routes.of(torch.tensor([[right], [ids[::-1]]]), experts=experts)
        assert made.ids[0].tolist() == [right]
        assert (made.digest() == on_the_host.digest()) == (ids is right)
        given = {"scores": SCORES.new_zeros(2, experts).numpy(), "ids": made.ids[:, 0].int().numpy()}
        assert bool(run(program, {**given, "scale": 1.0}).errors) == (ids is wrong)


def test_ids_of_few_bits_are_compared_as_numbers() -> None:
    ids = torch.tensor([[3, 50]], dtype=torch.uint8)
    assert ops.permute(torch.zeros(1, 8), ids, experts=300).offsets[[50, 51]].tolist() == [1, 2]


# --- refusals -----------------------------------------------------------------------------------------------


def test_a_record_is_loaded_as_it_was_saved(tmp_path: Path) -> None:
    torch.save({"routes": recorded()}, tmp_path / "routes.pt")
    loaded = torch.load(tmp_path / "routes.pt", weights_only=True)["routes"]
    assert loaded.digest() == recorded().digest() != recorded(experts=EXPERTS + 1).digest()


def recorded(tokens: int = TOKENS, k: int = K, experts: int = EXPERTS) -> Routes:
    return Routes.of([torch.arange(k).expand(tokens, k)], experts=experts)


SCORES = normal(TOKENS, EXPERTS)
REFUSED: dict[str, tuple[Callable[[], object], Code, str]] = {
    "k": (lambda: ops.route(SCORES, 17), Code.ARG_VALUE, "1 to 16, of E = 16 experts"),
    "experts": (lambda: ops.route(torch.zeros(2, 1025), 2), Code.ARG_VALUE, "E from 1 to 1024"),
    "groups": (lambda: ops.route(SCORES, 2, groups=3), Code.ARG_VALUE, "a divisor of E = 16"),
    "kept": (lambda: ops.route(SCORES, 3, groups=8), Code.ARG_VALUE, "at least 2: k = 3 experts from"),
    "bias": (lambda: ops.route(SCORES, 2, bias=torch.zeros(8)), Code.ARG_SIZE, "bias has E = 8"),
    "tokens": (lambda: ops.route(SCORES, K, replay=recorded(4)), Code.ARG_SIZE, "replay has tokens = 4"),
    "model": (
        lambda: ops.route(SCORES, K, replay=recorded(k=2, experts=64)),
        Code.ARG_SIZE,
        "replay has experts = 64, but the call has experts = 16",
    ),
    "layer": (lambda: ops.route(SCORES, K, replay=recorded(), layer=1), Code.ARG_VALUE, "replay has 1"),
    "no layer": (
        lambda: ops.route(SCORES, K, replay=Routes.of([ids_of(), ids_of()], experts=EXPERTS)),
        Code.ARG_MISSING,
        "layer is required with replay, which has 2 layers",
    ),
    "flips": (lambda: recorded().flips(recorded(8)), Code.ARG_SIZE, "other has tokens = 8"),
    "twice": (lambda: Routes.of([torch.tensor([[1, 1]])], experts=4), Code.ARG_VALUE, "token 0, layer 0"),
    "outside": (lambda: Routes.of([torch.tensor([[1, 4]])], experts=4), Code.ARG_VALUE, "from 0 to 3"),
    "order": (lambda: moved(ids_of().flip(-1)), Code.ARG_VALUE, "ascending ids from 0 to 15"),
    "rows": (
        lambda: ops.combine(torch.zeros(4, 8), torch.ones(TOKENS, K), moved(ids_of())),
        Code.ARG_SIZE,
        "permuted.order has R = 27, but rows has R = 4",
    ),
    "leaves": (lambda: moved(ids_of(), leaves=3), Code.ARG_VALUE, "1, 2, 4, 8"),
    "losses, above": (
        lambda: ops.router_losses(SCORES, torch.tensor([[0, 16]] * TOKENS)),
        Code.ARG_VALUE,
        "router_losses: ids=[0, 16] is not allowed\n    expected ids from 0 to 15",
    ),
    "losses, below": (
        lambda: ops.router_losses(SCORES, torch.tensor([[-1, 2]] * TOKENS)),
        Code.ARG_VALUE,
        "ids=[-1, 2]",
    ),
    "load": (
        lambda: ops.router_losses(SCORES, ids_of(), load=torch.ones(8)),
        Code.ARG_SIZE,
        "load has E = 8, but scores has E = 16",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_routed_is_refused_with_what_was_found(what: str) -> None:
    run, code, said = REFUSED[what]
    with pytest.raises(LaunchError) as raised:
        run()
    assert raised.value.code is code and said in str(raised.value)


def test_ids_on_a_device_are_checked_if_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """By `permute` and `router_losses` alike; without RLK_CHECK nothing waits for them."""
    for module in (moe, sys.modules[moe.looked_at.__module__]):
        monkeypatch.setattr(module, "on_the_host", lambda ids: False)
    ids = torch.tensor([[0, EXPERTS]] * TOKENS)
    for call in (lambda: ops.router_losses(SCORES, ids), lambda: moved(ids)):
        call()
        with monkeypatch.context() as patch:
            patch.setattr(Env, "current", staticmethod(lambda: Env.read({"RLK_CHECK": "1"})))
            with pytest.raises(LaunchError, match="ids from 0 to 15"):
                call()


def test_no_tokens_give_no_rows() -> None:
    made = ops.route(SCORES[:0], K)
    permuted = ops.permute(torch.zeros(0, WIDTH), made.ids, experts=EXPERTS)
    assert made.weights.shape == (0, K) and permuted.rows.shape == (0, WIDTH)
    assert permuted.offsets.tolist() == [0] * (EXPERTS + 1)
    assert ops.combine(permuted.rows, made.weights, permuted).shape == (0, WIDTH)


@pytest.mark.parametrize("dynamic", [None, True])
def test_losses_and_rows_compile_for_any_number_of_choices(dynamic: bool | None) -> None:
    """With the bits of eager calls; k is a constant of a graph, and another k is traced again."""

    def run(ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = SCORES[: len(ids)]
        return ops.router_losses(x, ids).load, ops.permute(x, ids, experts=EXPERTS).rows

    torch.compiler.reset()
    compiled = torch.compile(run, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for tokens, k in ((TOKENS, 2), (TOKENS, 3), (5, 3)):
        ids = ids_of(tokens, k)
        for a, b in zip(compiled(ids), run(ids), strict=True):
            assert_same_bits(a, b)


# --- auxiliary losses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [False, True])
def test_losses_of_a_router_are_those_of_float64(masked: bool) -> None:
    """And the balance that of transformers; their bits do not depend on what is masked between tokens."""
    scores = normal(200, EXPERTS).requires_grad_()
    ids = ops.route(scores, K).ids
    mask = torch.arange(200) % 3 != 0 if masked else None
    got = ops.router_losses(scores, ids, mask=mask)
    wide = scores.detach().double().requires_grad_()
    want = ops.router_losses.reference(wide, ids, mask=mask)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-6)
    (mine,) = torch.autograd.grad(got.balance + 0.1 * got.z, scores)
    (theirs,) = torch.autograd.grad(want.balance + 0.1 * want.z, wide)
    torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-7)
    if masked:
        bad = torch.where(mask[:, None], scores.detach(), torch.nan)
        again = ops.router_losses(bad, ids, mask=mask)
        for a, b in zip(again, got, strict=True):
            assert_same_bits(a, b)
        return
    transformers = pytest.importorskip("transformers.models.mixtral.modeling_mixtral")
    peer = transformers.load_balancing_loss_func((scores.detach(),), EXPERTS, K)
    torch.testing.assert_close(got.balance.detach(), peer, rtol=1e-5, atol=0)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    shuffled = ops.router_losses(scores[order], ids[order])  # the control: tokens in another order
    assert any(differing(a, b) for a, b in zip(shuffled, got, strict=True))


@pytest.mark.parametrize("parts", [2, 4])
def test_losses_of_parts_add_up_to_those_of_all_tokens(parts: int) -> None:
    """The balance too, where f is of all tokens; where it is of a part, to the mean of the parts."""
    scores, active = normal(64, EXPERTS, seed=2), torch.arange(64) % 5 != 0
    ids, tokens = ops.route(scores, K).ids, int(active.sum())
    whole = ops.router_losses(scores, ids, mask=active)
    cut = [slice(i, i + 64 // parts) for i in range(0, 64, 64 // parts)]

    def added(**options: Any) -> list[torch.Tensor]:
        made = [
            f(scores[at], ids[at], mask=active[at], tokens=tokens, **options)
            for at in cut
            for f in (ops.router_losses, ops.router_losses.reference)
        ]
        for ours, exact in zip(made[::2], made[1::2], strict=True):
            torch.testing.assert_close(ours.balance.double(), exact.balance, rtol=1e-5, atol=0)
        return [torch.stack(x).sum(0) for x in zip(*made[::2], strict=True)]

    for a, b in zip(added(load=whole.load), whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=0)
    balance, *rest = added()
    for a, b in zip(rest, whole[1:], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=0)
    alone = [ops.router_losses(scores[at], ids[at], mask=active[at]).balance for at in cut]
    shares = [active[at].sum() / tokens for at in cut]
    torch.testing.assert_close(balance, sum(a * n for a, n in zip(alone, shares, strict=True)))
    assert (balance - whole.balance).abs() > 1e-3  # the control: f of a part is another one
