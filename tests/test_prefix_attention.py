"""Completions of a shared prompt have the bits that they have alone behind a copy of it."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import torch
from edited_text import edit_text, joined, substituted

from rlk import ops
from rlk.errors import LaunchError, SpecError, UnsupportedError
from rlk.lang import Axis, L, Outputs, Tensor, Variant, bf16, f16, f32, i32, i64, op
from rlk.lower import cute, triton
from rlk.ops import attention
from rlk.passes.pipeline import canonical, launched
from rlk.runtime.call.entry import call
from rlk.schedule.attention import rows_axis
from rlk.schedule.axes import roles
from rlk.schedule.cute_tiles import warpgroups
from rlk.schedule.heuristics import choose
from rlk.specs import attention as spec
from rlk.target.facts import target
from rlk.testing import generated
from rlk.testing.bits import assert_same_bits, differing

EDGES = (0, 1, 15, 16, 17, 63, 64, 65, 255, 511, 512, 513, 577)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no mask": {"causal": False},
    "window": {"window": 70},
    "window of the completion alone": {"window": 2},
    "softcap and scale": {"softcap": 4.0, "scale": 0.7},
    "sinks": {"sinks": torch.tensor([0.5, -2.0, 3.0, 0.0])},
}


def drawn(
    prompts: tuple[int, ...], completions: tuple[tuple[int, ...], ...], dtype: torch.dtype = torch.bfloat16,
    heads: tuple[int, int] = (4, 2), offsets: torch.dtype = torch.int32, asks: int | None = None,
) -> dict[str, torch.Tensor]:  # fmt: skip
    """Draw a call: the lengths of prompts, and of the completions of each; asks: queries of each at most."""
    torch.manual_seed(0)
    flat = [n for group in completions for n in group]
    queries = [min(n, n if asks is None else asks) for n in flat]

    def cu(lengths: Any) -> torch.Tensor:
        return torch.tensor([0, *accumulate(lengths)], dtype=offsets)

    shapes = {"q": (sum(queries), heads[0], 16), "k_prefix": (sum(prompts), heads[1], 16),
              "v_prefix": (sum(prompts), heads[1], 24), "k": (sum(flat), heads[1], 16),
              "v": (sum(flat), heads[1], 24)}  # fmt: skip
    made = {n: torch.randn(shape).to(dtype) for n, shape in shapes.items()}
    made |= {"cu_seqlens_prefix": cu(prompts), "cu_seqlens": cu(flat), "groups": cu(map(len, completions))}
    return made if asks is None else made | {"cu_seqlens_q": cu(queries)}


def unshared(given: dict[str, torch.Tensor], **options: Any) -> Any:
    """Return `varlen_attention` of every prompt + completion, copied one behind the other."""
    prompts, own = given["cu_seqlens_prefix"].tolist(), given["cu_seqlens"].tolist()
    keys, values, lengths, i = [], [], [], 0
    for p, count in enumerate(given["groups"].diff().tolist()):
        for _ in range(count):
            of_prompt, mine = slice(*prompts[p : p + 2]), slice(*own[i : i + 2])
            keys += [given["k_prefix"][of_prompt], given["k"][mine]]
            values += [given["v_prefix"][of_prompt], given["v"][mine]]
            lengths.append(len(keys[-2]) + len(keys[-1]))
            i += 1
    cu = torch.tensor([0, *accumulate(lengths)], dtype=given["cu_seqlens"].dtype)
    asks = given.get("cu_seqlens_q", given["cu_seqlens"])
    return ops.varlen_attention(given["q"], torch.cat(keys), torch.cat(values), asks, cu, **options)


def assert_same(got: Any, want: Any) -> None:
    assert_same_bits(got.o, want.o)
    assert_same_bits(got.lse, want.lse)


def reaching(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a call of two completions that have 1 and 2 keys: their first queries stand in the prompt."""
    own = {n: given[n][:3] for n in ("k", "v")} | {"cu_seqlens": torch.tensor([0, 1, 3], dtype=torch.int32)}
    return given | own | {"cu_seqlens_q": given["cu_seqlens"]}


SHAPES = {
    "prompts of all lengths": drawn(EDGES, tuple((3, 1 + i % 2) for i in range(len(EDGES)))),
    "groups of 1 to 8": drawn((70,) * 8, tuple((2,) * n for n in range(1, 9))),
    "none, empty ones and long ones": drawn((130, 600, 0), ((0, 5), (), (600, 0, 1))),
    "f16, int64, one head of keys": drawn((100, 520), ((3, 70), (9,)), torch.float16, (4, 1), torch.int64),
    "newest tokens": drawn((100, 520), ((3, 70), (513, 1, 9)), asks=2),
    "more queries than own keys": reaching(drawn((100,), ((40, 41),))),
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_shared_prompts_have_the_bits_of_copies(shape: str, options: str) -> None:
    given, chosen = SHAPES[shape], OPTIONS[options]
    assert_same(ops.prefix_attention(**given, **chosen), unshared(given, **chosen))


def test_a_prompt_of_other_keys_is_seen() -> None:
    """The control: one key of a prompt, of a whole chunk or behind it, reaches all completions."""
    given = SHAPES["groups of 1 to 8"]
    want = unshared(given)
    for row in (7 * 70, 7 * 70 + 65):
        moved = {**given, "k_prefix": given["k_prefix"].clone()}
        moved["k_prefix"][row] += 1
        got = ops.prefix_attention(**moved)
        assert_same_bits(got.o[:-16], want.o[:-16])
        assert all(differing(got.lse[:, i], want.lse[:, i]) for i in range(-16, 0))


def test_a_merge_of_states_at_the_boundary_is_seen() -> None:
    """The control: prompt and completion apart, merged by their lse, are close and not equal."""
    given = drawn((100,), ((5,) * 4,))
    n, cu = len(given["q"]), given["cu_seqlens"]
    whole = torch.tensor([0, 100], dtype=torch.int32)
    first = ops.varlen_attention(
        given["q"], given["k_prefix"], given["v_prefix"], torch.tensor([0, n]), whole.long(), causal=False
    )
    second = ops.varlen_attention(given["q"], given["k"], given["v"], cu, cu)
    lse, want = torch.logaddexp(first.lse, second.lse), ops.prefix_attention(**given)
    torch.testing.assert_close(lse, want.lse, rtol=0, atol=1e-5)
    assert differing(lse, want.lse)


def test_results_are_close_to_float64() -> None:
    given = SHAPES["newest tokens"]
    got, want = ops.prefix_attention(**given, window=90), ops.prefix_attention.reference(**given, window=90)
    torch.testing.assert_close(got.o.double(), want.o, rtol=2**-7, atol=2**-7)
    torch.testing.assert_close(got.lse.double(), want.lse, rtol=0, atol=1e-5)


def test_gradients_are_those_of_copies_summed_over_completions() -> None:
    given = drawn((17, 70), ((3, 2), (4,)))
    names, weight = ("q", "k_prefix", "v_prefix", "k", "v"), torch.randn(9, 4, 24)
    found = []
    for call_of in (ops.prefix_attention, ops.prefix_attention.reference):
        dtype = torch.bfloat16 if not found else torch.float64
        leaves = {n: given[n].detach().to(dtype).requires_grad_() for n in names}
        made = call_of(**{**given, **leaves})
        found.append(torch.autograd.grad((made.o * weight.to(dtype)).sum(), list(leaves.values())))
        if dtype is torch.bfloat16:
            assert_same(made, ops.prefix_attention(**given))
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=2**-6, atol=float(theirs.abs().max()) / 64)


@pytest.mark.parametrize("gone", ["q", "k", "k_prefix"])
def test_of_nothing_there_is_a_result(gone: str) -> None:
    lengths = {"q": ((70,), ((0, 0),)), "k": ((70,), ((0, 0),)), "k_prefix": ((0,), ((3, 2),))}[gone]
    given = drawn(*lengths)
    if gone == "k":
        given |= {"q": torch.ones(2, 4, 16).bfloat16(), "cu_seqlens_q": torch.tensor([0, 1, 2]).int()}
    assert_same(ops.prefix_attention(**given), unshared(given))


def test_groups_that_do_not_fit_are_refused() -> None:
    given = drawn((17, 70), ((3, 2), (4,)))
    with pytest.raises(LaunchError, match="groups"):
        ops.prefix_attention(**{**given, "groups": given["groups"][:-1]})


T, V = Axis("T", dynamic=True), Axis("V", chunk=64)


@op()
def left(x: Tensor[f32, T, V]) -> Outputs:
    soft = L.softmax_sum(open=True)
    for v in L.stream(V):
        soft.absorb(x[v])
    return L.out(m=soft.max)


def test_only_where_pieces_have_states_may_a_fold_be_left_open() -> None:
    with pytest.raises(SpecError, match="leaf=chunk"):
        left.trace(left.default_variant())


# --- generated kernels ---


def inputs_of(
    given: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch, **options: Any
) -> dict[str, Any]:
    """Return what a call gives its spec, as arrays."""
    found: dict[str, Any] = {}

    def keep(spec: Any, tensors: Any, scalars: Any, statics: Any, math: Any) -> Any:
        found.update({n: as_array(x) for n, x in tensors.items()} | scalars)
        return call(spec, tensors, scalars, statics, math)

    with monkeypatch.context() as patched:
        patched.setattr(attention, "call", keep)
        ops.prefix_attention(**given, **options)
    return found


def as_array(x: torch.Tensor) -> Any:
    return (x.view(torch.uint16) if x.dtype is torch.bfloat16 else x).contiguous().numpy()


def traced(inputs: dict[str, Any]) -> Any:
    """Return the program of a call."""
    present = {n for n in ("window", "softcap", "inv_softcap", "sinks") if n in inputs}
    dtypes = {"F": bf16 if inputs["q"].dtype == np.uint16 else f16}
    dtypes["Offsets"] = i64 if inputs["begin_q"].dtype == np.int64 else i32
    program = canonical(
        spec.prefix_attention.trace(Variant.of(dtypes, {"scale", *present}, {"causal": True}))
    )
    assert len(program.kernels) == 2
    return program


def interpreted(inputs: dict[str, Any], **more: Any) -> generated.Ran:
    rows = len(inputs["q"])
    return generated.run_generated(traced(inputs), inputs, extents={"Q": rows, "C": rows}, **more)


FORMS = [shape for shape in SHAPES if shape != "prompts of all lengths"]
GENERATED = [(shape, option) for shape in FORMS for option in ("plain", "window")]
GENERATED += [(FORMS[0], option) for option in ("softcap and scale", "sinks")]


@pytest.mark.parametrize(("shape", "options"), GENERATED)
def test_generated_kernels_have_the_bits_of_copies(
    shape: str, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    given, chosen = SHAPES[shape], OPTIONS[options]
    ran = interpreted(inputs_of(given, monkeypatch, **chosen))
    want = unshared(given, **chosen, math="sm90")
    assert_same_bits(ran.tensors["o"].reshape(want.o.shape), as_array(want.o), "o", "bf16")
    assert_same_bits(ran.tensors["lse"].reshape(want.lse.shape), as_array(want.lse), "lse")


@pytest.mark.parametrize(
    ("pattern", "new"),
    [
        (r"m_piece = m_of_piece\b", 'm_piece = tl.full((16, 1), float("-inf"), tl.float32)'),
        (r"l_before = s_of_prompt", "l_before = s_of_prompt * 0"),
        (r"first_step = tl.maximum\((\w+), 0\)", "first_step = 0"),
        (r"other=k_prefix\)", "other=0.0)"),
    ],
)
def test_an_edit_of_the_text_is_seen(pattern: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    given = drawn((600,), ((1, 2),))
    inputs, want = inputs_of(given, monkeypatch), unshared(given, math="sm90")
    assert_same_bits(interpreted(inputs).tensors["lse"].reshape(4, 3), as_array(want.lse))
    edit_text(monkeypatch, triton, substituted(pattern, new))
    assert differing(interpreted(inputs).tensors["lse"].reshape(4, 3), as_array(want.lse))


def test_keys_of_a_prompt_are_read_by_one_program_of_all_its_completions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """8 completions of 4 tokens, 2 heads of queries for each of keys: one tile of 64 rows a head of keys."""
    pytest.importorskip("triton")
    inputs = inputs_of(drawn((128,), ((4,) * 8,)), monkeypatch)
    source = joined(interpreted(inputs).emitted.source)
    first = source.split("def prefix_attention_1")[1].splitlines()[1]
    assert "64 of C*G" in first and "1 of H" in first


def by_cute(inputs: dict[str, Any], rows_of: int = 0) -> generated.Ran:
    """Run the kernels for Hopper thread by thread, of values that vectors of 16 bytes can be.

    rows_of: a tile, other than what is chosen.
    """
    dims = {"q": "thg", "k": "sh", "v": "sh", "k_prefix": "kh", "v_prefix": "kh", "o": "thg"}
    aligned = frozenset({*dims, *(f"{name}_{axis}_stride" for name, axes in dims.items() for axis in axes)})
    program, rows = traced(inputs), len(inputs["q"])
    sizes = {**generated.extents_of(program, inputs), "Q": rows, "C": rows}
    static = {name: size for name, size in sizes.items() if name in "HGEW"}
    on = target("sm_90a")
    kernels = launched(program, static, on.softmax, sizes).kernels
    chosen = [warpgroups(k, choose(k, on, None, sizes), on, sizes) for k in kernels]
    axes = [str(rows_axis(roles(k, sizes))) for k in kernels]
    chosen = [c.with_tile(axis, rows_of or c.tile(axis)) for c, axis in zip(chosen, axes, strict=True)]
    return interpreted(inputs, schedules=chosen, divisible=aligned, backend="cute")


def of_16(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a call with the first 16 elements of its values."""
    return given | {name: given[name][..., :16].contiguous() for name in ("v", "v_prefix")}


BY_CUTE = [*zip(FORMS, ("softcap and scale", "plain", "window", "sinks", "plain"), strict=False)]


@pytest.mark.parametrize(("shape", "options", "rows_of"), [*((*x, 0) for x in BY_CUTE), (*BY_CUTE[0], 192)])
def test_cute_kernels_have_the_bits_of_copies(
    shape: str, options: str, rows_of: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row is read from the prompt or from the completion; the loop goes on from states in memory."""
    pytest.importorskip("triton")
    given, chosen = of_16(SHAPES[shape]), OPTIONS[options]
    ran = by_cute(inputs_of(given, monkeypatch, **chosen), rows_of)
    want = unshared(given, **chosen, math="sm90")
    assert rows_of == 0 or "block=(512, 1, 1)" in ran.emitted.source
    assert_same_bits(ran.tensors["o"].reshape(want.o.shape), as_array(want.o), "o", "bf16")
    assert_same_bits(ran.tensors["lse"].reshape(want.lse.shape), as_array(want.lse), "lse")


@pytest.mark.parametrize(
    ("pattern", "new"),
    [
        (r"(o_before\[r, c\]) = load_where.*", r"\1 = Float32(0.0)"),
        (r"(m_piece\[r\]) = m_of_piece_value\[r\]", r'\1 = Float32(float("-inf"))'),
        (r"v_prefix, \((\w+),", r"v_prefix, (\1 ^ 1,"),
    ],
)
def test_an_edit_of_cute_text_is_seen(pattern: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    given = of_16(drawn((600,), ((1, 2),)))
    inputs, want = inputs_of(given, monkeypatch), unshared(given, math="sm90")
    edit_text(monkeypatch, cute, substituted(pattern, new))
    assert differing(by_cute(inputs).tensors["o"].reshape(want.o.shape), as_array(want.o))


def test_values_that_vectors_of_threads_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedError, match="sums of 24 elements"):
        by_cute(inputs_of(drawn((128,), ((70,) * 2,)), monkeypatch))


@pytest.mark.parametrize("name", ["plain", "window", "softcap and scale", "sinks"])
def test_a_compiled_graph_has_the_bits_and_gradients_of_an_eager_call(name: str) -> None:
    """Compile with fullgraph=True: the number of gathered keys is data, which a graph cannot hold."""
    given = drawn((70, 5, 0), ((3, 20), (9,), (4, 1)))
    leaves = {n: x.requires_grad_() for n, x in given.items() if x.is_floating_point()}
    options = {
        n: x.clone().requires_grad_() if isinstance(x, torch.Tensor) else x for n, x in OPTIONS[name].items()
    }
    leaves |= {n: x for n, x in options.items() if isinstance(x, torch.Tensor)}

    def whole() -> Any:
        return ops.prefix_attention(**given, **options)

    def results(fn: Any) -> list[torch.Tensor]:
        made = fn()
        total = (made.o.float().sin().sum() + made.lse.cos().nan_to_num().sum(),)
        return [made.o, made.lse, *torch.autograd.grad(total, tuple(leaves.values()))]

    eager = results(whole)
    compiled = results(torch.compile(whole, fullgraph=True, backend="aot_eager"))
    for mine, theirs in zip(compiled, eager, strict=True):
        assert_same_bits(mine, theirs)
    assert all(x.any() for x in eager[2:])
    for x in leaves.values():
        x.grad = None


def test_the_ops_of_a_graph_are_what_torch_asks_of_ops() -> None:
    given = drawn((70, 5), ((3, 20), (9,)))
    tensors = [given[n] for n in ("q", "k_prefix", "v_prefix", "k", "v")]
    tensors = [x.detach().requires_grad_() for x in tensors]
    offsets = [given[n] for n in ("cu_seqlens_prefix", "cu_seqlens", "groups")]
    torch.library.opcheck(
        torch.ops.rlk.prefix_attention_gathered,
        (*tensors, *offsets, None, None, True, None, None, None, None),
        test_utils=(
            "test_schema",
            "test_autograd_registration",
            "test_faketensor",
            "test_aot_dispatch_static",
        ),
    )
