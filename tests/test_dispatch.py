"""Laws of calling an operator: what is refused before anything runs, who has gradients, what torch sees."""

from __future__ import annotations

import inspect
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import rlk
from rlk import Layout, ops
from rlk.errors import Code, LaunchError, RlkError, UnsupportedError
from rlk.ops import Loss
from rlk.ops.losses import clip
from rlk.runtime.binding.invocation import Invocation, outputs_of
from rlk.runtime.call import entry as calls
from rlk.runtime.call import library
from rlk.runtime.call.dispatch import dispatch
from rlk.testing.bits import assert_same_bits, differing

V, N, TOKENS = 40, 16, 6
IDS = torch.arange(TOKENS)
LAYOUT = Layout.packed(torch.tensor([0, 4, TOKENS]), tokens=TOKENS)
BF16 = torch.bfloat16


def f32(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


TABLE = f32(9, 4)
ENDS = torch.tensor([0, 4, TOKENS])


# signatures: api.md, and nothing that it does not have

SIGNATURES = {
    "logp": "(logits, ids, *, bias=None, temperature=1.0, softcap=None, logit_scale=1.0, mask=None, "
    "ignore_index=-100, needs=('logp',), support=None, fold='chunks', math=None)",
    "linear_logp": "(hidden, weight, ids, *, bias=None, temperature=1.0, softcap=None, logit_scale=1.0, "
    "mask=None, ignore_index=-100, needs=('logp',), keep_logits='never', group=None, vocab_start=0, "
    "weight_grad_out=None, support=None, math=None)",
    "jsd_loss": "(student_logits, teacher_logits, *, beta=0.5, temperature=1.0, mask=None, math=None)",
    "linear_jsd_loss": "(hidden, weight, teacher_hidden, teacher_weight, *, beta=0.5, temperature=1.0, "
    "mask=None, math=None)",
    "matmul": "(x, w, *, bias=None, residual=None, leaves=1, part=None, grad_leaves=1, round_product=False, "
    "order=None, out_dtype=None, weight_grad_out=None)",
    "grouped_matmul": "(x, w, offsets, *, bias=None, leaves=1, grad_leaves=1, out_dtype=None, "
    "weight_grad_out=None)",
    "route": "(scores, k, *, score='softmax', bias=None, groups=1, kept_groups=1, group_score='top2', "
    "renormalize=True, scale=1.0, replay=None, layer=None)",
    "permute": "(x, ids, *, experts, leaves=1)",
    "combine": "(rows, weights, permuted, *, leaves=1)",
    "router_losses": "(scores, ids, *, mask=None, tokens=None, load=None)",
    "ratio_kl": "(logp, old_logp, ref_logp, *, mask=None, kl='k3')",
    "policy_loss": "(logp, old_logp, advantages, *, layout, loss='ppo', ref_logp=None, rollout_logp=None, "
    "entropy=None, advantages_of=None, token_weights=None)",
    "linear_policy_loss": "(hidden, weight, ids, old_logp, advantages, *, layout, loss='ppo', ref_logp=None, "
    "rollout_logp=None, temperature=1.0, bias=None, softcap=None, logit_scale=1.0, keep_logits='never', "
    "group=None, vocab_start=0, weight_grad_out=None, advantages_of=None, "
    "token_weights=None, support=None, math=None)",
    "rms_norm": "(x, weight, *, residual=None, eps=1e-06, profile='hf_llama')",
    "qk_norm": "(x, weight, *, cos=None, sin=None, position_ids=None, eps=1e-06, profile='hf_llama', "
    "interleaved=False, rotary_dim=None)",
    "write_cache": "(k, v, k_cache, v_cache, slots, *, cos=None, sin=None, position_ids=None, "
    "interleaved=False, rotary_dim=None)",
    "cache_qkv": "(qkv, k_cache, v_cache, slots, *, q_weight=None, k_weight=None, cos=None, sin=None, "
    "position_ids=None, eps=1e-06, profile='hf_llama', interleaved=False, rotary_dim=None)",
    "rope": "(q, k, cos, sin, *, position_ids, interleaved=False, rotary_dim=None)",
    "geglu": "(gate, up, *, approximate='tanh')",
    "clamped_swiglu": "(x, *, limit=7.0, alpha=1.702)",
    "swiglu": "(gate, up)",
    "embedding": "(ids, weight)",
    "group_advantage": "(rewards, groups, *, scale='group', baseline='mean', std='unbiased', eps=0.0001, "
    "eps_mode='add', lengths=None)",
    "scatter_rewards": "(rewards, offsets, *, layout, at='last', costs=None, overlong=None)",
    "pack": "(x, layout, *, side='right')",
    "unpack": "(x, layout)",
    "value_loss": "(values, returns, *, layout, old_values=None, clip=0.2, aggregation='token_mean', "
    "sequences='active', normalizer=None)",
    "nll_loss": "(logp, *, layout, weights=None, aggregation='token_mean', sequences='active', "
    "normalizer=None)",
    "entropy_bonus": "(entropy, *, layout, coef)",
    "sequence_logp": "(logp, *, layout, over='sum', shared=None, tail=None)",
    "preference_loss": "(chosen, rejected, ref_chosen=None, ref_rejected=None, *, loss='sigmoid', beta=0.1, "
    "smoothing=0.0, margin=0.0, tau=0.05, chosen_tokens=None, rejected_tokens=None, "
    "divergence='reverse_kl', alpha=None, weights=None)",
    "kto_loss": "(logp, ref_logp, desirable, *, beta=0.1, mismatched=None, desirable_weight=1.0, "
    "undesirable_weight=1.0, loss='kto')",
    "gae": "(values, rewards, *, layout, gamma, lam, bootstrap=None)",
    "optimal_token_baseline": "(rewards, logp, sum_pi_squared, groups, *, layout, align='position', "
    "tail='zero', eps=1e-08, rollout_weights=None)",
    "sample": "(logits, *, seed, request_id, position, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, "
    "penalties=None, math=None)",
    "penalize": "(logits, penalties)",
    "varlen_attention": "(q, k, v, cu_seqlens_q, cu_seqlens_k, *, causal=True, window=None, softcap=None, "
    "scale=None, sinks=None, math=None)",
    "prefix_attention": "(q, k_prefix, v_prefix, k, v, cu_seqlens_prefix, cu_seqlens, groups, *, "
    "causal=True, window=None, softcap=None, scale=None, sinks=None, cu_seqlens_q=None, math=None)",
    "paged_attention": "(q, k_cache, v_cache, block_table, context_lens, cu_seqlens_q, *, causal=True, "
    "window=None, softcap=None, scale=None, sinks=None, math=None)",
}
OVER_RANKS = {
    "ordered_all_reduce": "(x, group, *, out_dtype=None)",
    "ordered_reduce_scatter": "(x, group, *, out_dtype=None)",
    "ordered_gather_sum": "(x, group)",
}
"""Operators of torch's additions alone: they have no spec."""
PROMISED = {**SIGNATURES, **OVER_RANKS}


def plain_signature(fn: Callable[..., Any]) -> str:
    signature = inspect.signature(fn)
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


@pytest.mark.parametrize("name", PROMISED)
def test_the_signature_is_the_one_that_was_promised(name: str) -> None:
    assert plain_signature(getattr(ops, name)) == PROMISED[name]


def test_every_operator_is_promised() -> None:
    assert set(ops.OPERATORS) == set(SIGNATURES)
    assert set(PROMISED) <= set(ops.__all__)


@pytest.mark.parametrize("name", PROMISED)
def test_the_docstring_states_shapes_gradients_and_errors(name: str) -> None:
    text = inspect.getdoc(getattr(ops, name)) or ""
    for word in ("LaunchError", "ifferentiable in", "f32", "["):
        assert word in text, word
    parameters = inspect.signature(getattr(ops, name)).parameters
    hidden = {"fold", "rollout_logp"}  # refused until they are built
    missing = [p for p in parameters if p not in text and p not in hidden and not p.startswith("old_")]
    assert not missing


@pytest.mark.parametrize("fn", [Layout.packed, Layout.padded, Layout.digest, Layout.tokens_like])
def test_layouts_are_documented(fn: Callable[..., Any]) -> None:
    assert len(inspect.getdoc(fn) or "") > 40


# refusals

REFUSED: dict[str, tuple[Callable[[], object], Code, str]] = {
    # logp
    "no tensor": (lambda: ops.logp([1.0], IDS), Code.ARG_TYPE, "logits"),  # type: ignore[arg-type]
    "ids that are no tensor": (lambda: ops.logp(f32(6, V), 3), Code.ARG_TYPE, "ids"),  # type: ignore[arg-type]
    "f64": (lambda: ops.logp(f32(6, V).double(), IDS), Code.ARG_DTYPE, "logits has dtype torch.float64"),
    "ids of floats": (lambda: ops.logp(f32(6, V), IDS.float()), Code.ARG_DTYPE, "ids has dtype"),
    "ids of i16": (lambda: ops.logp(f32(6, V), IDS.short()), Code.ARG_DTYPE, "torch.int64 or torch.int32"),
    "a bias of another dtype": (
        lambda: ops.logp(f32(6, V), IDS, bias=f32(V).to(BF16)), Code.ARG_DTYPE, "bias"
    ),
    "a mask of integers": (lambda: ops.logp(f32(6, V), IDS, mask=IDS), Code.ARG_DTYPE, "mask"),
    "fewer ids": (lambda: ops.logp(f32(6, V), IDS[:5]), Code.ARG_SIZE, "ids has rows = (5,)"),
    "ids of one dim less": (lambda: ops.logp(f32(2, 3, V), IDS), Code.ARG_SIZE, "ids"),
    "a short bias": (lambda: ops.logp(f32(6, V), IDS, bias=f32(V - 1)), Code.ARG_SIZE, "bias has V = 39"),
    "a bias of rows": (lambda: ops.logp(f32(6, V), IDS, bias=f32(1, V)), Code.ARG_RANK, "bias"),
    "a mask of other rows": (
        lambda: ops.logp(f32(6, V), IDS, mask=torch.ones(5, dtype=torch.bool)), Code.ARG_SIZE, "mask"
    ),
    "a logit": (lambda: ops.logp(torch.tensor(1.0), torch.tensor(1)), Code.ARG_RANK, "logits"),
    "logits by column": (lambda: ops.logp(f32(V, 6).t(), IDS), Code.ARG_STRIDE, "last-dim stride 6"),
    "every other logit": (lambda: ops.logp(f32(6, 2 * V)[:, ::2], IDS), Code.ARG_STRIDE, "logits"),
    "ids on another device": (lambda: ops.logp(f32(6, V), IDS.to("meta")), Code.ARG_DEVICE, "ids is on meta"),
    "logits on another device": (lambda: ops.logp(f32(6, V).to("meta"), IDS), Code.ARG_DEVICE, "meta"),
    "a device without a backend": (
        lambda: ops.logp(f32(6, V).to("meta"), IDS.to("meta")), Code.NO_BACKEND, "cuda, cpu"
    ),
    "no support": (
        lambda: ops.logp(f32(6, V), IDS, support=object()), Code.ARG_TYPE, "Support or Csr"
    ),
    # options that are not built yet
    "another fold": (lambda: ops.logp(f32(6, V), IDS, fold="lanes"), Code.UNSUPPORTED, 'fold="chunks"'),
    "several ids a row": (
        lambda: ops.logp(f32(6, V), IDS[:, None].expand(6, 3)), Code.UNSUPPORTED, "alternatives"
    ),
    # ratio_kl, policy_loss
    "an unknown KL": (lambda: ops.ratio_kl(f32(6), f32(6), f32(6), kl="k4"), Code.ARG_VALUE, "k3"),  # type: ignore[arg-type]
    "log-probs of bf16": (lambda: ops.ratio_kl(f32(6).to(BF16), f32(6), f32(6)), Code.ARG_DTYPE, "logp"),
    "another shape": (lambda: ops.ratio_kl(f32(6), f32(6), f32(2, 3)), Code.ARG_SIZE, "ref_logp"),
    "an unknown loss": (
        lambda: ops.policy_loss(f32(6), f32(6), f32(2), layout=LAYOUT, loss="pp0"),
        Code.ARG_VALUE,
        "nearest: ppo",
    ),
    "an unknown KL of a loss": (
        lambda: ops.policy_loss(f32(6), f32(6), f32(2), layout=LAYOUT, loss=Loss(kl="k9")),  # type: ignore[arg-type]
        Code.ARG_VALUE, "k9",
    ),
    "an unknown aggregation": (
        lambda: ops.policy_loss(f32(6), f32(6), f32(2), layout=LAYOUT, loss=Loss(aggregation="mean")),  # type: ignore[arg-type]
        Code.ARG_VALUE, "token_mean",
    ),
    "no log-probs of the rollout": (
        lambda: ops.policy_loss(f32(6), f32(6), f32(2), layout=LAYOUT, loss="slime/tis"),
        Code.ARG_MISSING, "by corrections",
    ),
    "tokens of another layout": (
        lambda: ops.policy_loss(f32(5), f32(6), f32(2), layout=LAYOUT), Code.LAYOUT_MISMATCH, "logp has (5,)"
    ),
    "old tokens of another layout": (
        lambda: ops.policy_loss(f32(6), f32(3, 2), f32(2), layout=LAYOUT), Code.LAYOUT_MISMATCH, "old_logp"
    ),
    "advantages of nothing": (
        lambda: ops.policy_loss(f32(6), f32(6), f32(3), layout=LAYOUT), Code.LAYOUT_MISMATCH, "advantages"
    ),
    "advantages of bf16": (
        lambda: ops.policy_loss(f32(6), f32(6), f32(2).to(BF16), layout=LAYOUT), Code.ARG_DTYPE, "advantages"
    ),
    "no layout": (
        lambda: ops.policy_loss(f32(6), f32(6), f32(6), layout=torch.tensor([0, 6])),  # type: ignore[arg-type]
        Code.ARG_TYPE, "layout",
    ),
    "a loss of another type": (
        lambda: ops.policy_loss(f32(6), f32(6), f32(2), layout=LAYOUT, loss=3), Code.ARG_TYPE, "loss"  # type: ignore[arg-type]
    ),
    # model operators
    "an unknown profile": (lambda: ops.rms_norm(f32(6, N), f32(N), profile="t5"), Code.ARG_VALUE, "gemma"),  # type: ignore[arg-type]
    "an eps that is no number": (lambda: ops.rms_norm(f32(6, N), f32(N), eps="s"), Code.ARG_TYPE, "eps"),  # type: ignore[arg-type]
    "a short weight": (lambda: ops.rms_norm(f32(6, N), f32(N - 1)), Code.ARG_SIZE, "weight has N = 15"),
    "a residual of another dtype": (
        lambda: ops.rms_norm(f32(6, N), f32(N), residual=f32(6, N).to(BF16)), Code.ARG_DTYPE, "residual"
    ),
    "a residual of another shape": (
        lambda: ops.rms_norm(f32(6, N), f32(N), residual=f32(5, N)), Code.ARG_SIZE, "residual"
    ),
    "a gate of another dtype": (lambda: ops.swiglu(f32(6, N).half(), f32(6, N)), Code.ARG_DTYPE, "up"),
    "a gate of another shape": (lambda: ops.swiglu(f32(6, N), f32(6, N - 1)), Code.ARG_SIZE, "up has N = 15"),
    "a scalar gate": (lambda: ops.swiglu(torch.tensor(1.0), torch.tensor(1.0)), Code.ARG_RANK, "gate"),
    "rope of nothing": (
        lambda: ops.rope(torch.tensor(1.0), f32(6, 1, 8), f32(9, 4), f32(9, 4), position_ids=IDS),
        Code.ARG_RANK, "q",
    ),
    "rope without a table": (
        lambda: ops.rope(f32(6, 1, 8), f32(6, 1, 8), f32(4), f32(9, 4), position_ids=IDS),
        Code.ARG_RANK, "cos",
    ),
    "rope of an odd width": (
        lambda: ops.rope(f32(6, 1, 7), f32(6, 1, 7), f32(9, 4), f32(9, 4), position_ids=IDS),
        Code.ARG_VALUE, "even",
    ),
    "a narrow rope table": (
        lambda: ops.rope(f32(6, 1, 8), f32(6, 1, 8), f32(9, 3), f32(9, 3), position_ids=IDS),
        Code.ARG_SIZE, "cos",
    ),
    "tables of two lengths": (
        lambda: ops.rope(f32(6, 1, 8), f32(6, 1, 8), f32(9, 4), f32(8, 4), position_ids=IDS),
        Code.ARG_SIZE, "sin",
    ),
    "positions of other tokens": (
        lambda: ops.rope(f32(6, 1, 8), f32(6, 1, 8), f32(9, 4), f32(9, 4), position_ids=IDS[:4]),
        Code.ARG_SIZE, "position_ids",
    ),
    "positions of floats": (
        lambda: ops.rope(f32(6, 1, 8), f32(6, 1, 8), f32(9, 4), f32(9, 4), position_ids=IDS.float()),
        Code.ARG_DTYPE, "position_ids",
    ),
    "keys of other tokens": (
        lambda: ops.rope(f32(6, 1, 8), f32(5, 1, 8), f32(9, 4), f32(9, 4), position_ids=IDS),
        Code.ARG_SIZE, "k has rows = (5,)",
    ),
    "keys of another width": (
        lambda: ops.rope(f32(6, 1, 8), f32(6, 1, 6), f32(9, 4), f32(9, 4), position_ids=IDS),
        Code.ARG_SIZE, "k has E",
    ),
    "another approximation": (
        lambda: ops.geglu(f32(6, N), f32(6, N), approximate="sigmoid"),  # type: ignore[arg-type]
        Code.ARG_VALUE, "tanh",
    ),
    "a gate of another dtype than up": (
        lambda: ops.geglu(f32(6, N).half(), f32(6, N)), Code.ARG_DTYPE, "up"
    ),
    "a flat embedding": (lambda: ops.embedding(IDS, f32(V)), Code.ARG_RANK, "weight"),
    "an embedding by column": (lambda: ops.embedding(IDS, f32(N, V).t()), Code.ARG_STRIDE, "weight"),
    "embedding ids of floats": (lambda: ops.embedding(IDS.float(), f32(V, N)), Code.ARG_DTYPE, "ids"),
    "no vocabulary": (lambda: ops.logp(f32(6, 0), IDS), Code.ARG_VALUE, "logits.shape[-1]=0"),
    "an embedding of nothing": (lambda: ops.embedding(IDS, f32(0, N)), Code.ARG_VALUE, "weight.shape[0]=0"),
    "no positions": (
        lambda: ops.rope(f32(6, 1, 8), f32(6, 1, 8), f32(0, 4), f32(0, 4), position_ids=IDS),
        Code.ARG_VALUE, "cos.shape[0]=0",
    ),
    "a beta that is a tensor": (lambda: Loss(beta=torch.tensor(0.1)), Code.ARG_TYPE, "beta"),  # type: ignore[arg-type]
    "a clip that is no number": (lambda: clip("0.2"), Code.ARG_TYPE, "low"),  # type: ignore[arg-type]
    "an unknown operator": (lambda: ops.softmax, Code.UNKNOWN_NAME, "logp"),
}  # fmt: skip


def test_the_spy_sees_a_call(launched: list[str]) -> None:
    ops.logp(f32(6, V), IDS)
    assert launched == ["logp"]


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_by_name_and_nothing_runs(name: str, launched: list[str]) -> None:
    call, code, word = REFUSED[name]
    with pytest.raises(
        LaunchError if code not in (Code.NO_BACKEND, Code.UNSUPPORTED) else UnsupportedError
    ) as e:
        call()
    assert e.value.code is code and word in str(e.value), str(e.value)
    assert not launched


@pytest.mark.parametrize("name", REFUSED)
def test_an_error_crosses_processes_whole(name: str) -> None:
    with pytest.raises(RlkError) as caught:
        REFUSED[name][0]()
    sent = pickle.loads(pickle.dumps(caught.value))
    assert type(sent) is type(caught.value) and str(sent) == str(caught.value)
    assert sent.code is caught.value.code


@pytest.mark.parametrize("name", ["ids on another device", "a device without a backend", "fewer ids"])
def test_a_call_that_ran_before_excuses_nothing(name: str, launched: list[str]) -> None:
    ops.logp(f32(6, V), IDS)
    launched.clear()
    with pytest.raises(RlkError) as caught:
        REFUSED[name][0]()
    assert caught.value.code is REFUSED[name][1] and not launched


def test_an_option_that_does_not_exist_raises() -> None:
    with pytest.raises(TypeError, match="temprature"):
        ops.logp(f32(6, V), IDS, temprature=0.7)  # type: ignore[call-arg]


def test_a_missing_tensor_is_named(launched: list[str]) -> None:
    from rlk.runtime.call.entry import call
    from rlk.specs.logp import logp

    with pytest.raises(LaunchError) as caught:
        call(logp, {"logits": f32(6, V)}, {"ignore_index": -100}, {"needs": ()})
    assert caught.value.code is Code.ARG_MISSING and "ids" in str(caught.value) and not launched


def test_a_call_without_tensors_names_them(launched: list[str]) -> None:
    with pytest.raises(LaunchError, match="gate, up is required"):
        calls.call(ops.swiglu.specs[0], {}, {}, {})  # type: ignore[attr-defined]
    assert not launched


def test_a_backend_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    code = "import torch\nfrom rlk import ops\nops.logp(torch.zeros(2, 8), torch.tensor([1, 2]))"
    environment = {**os.environ, "RLK_BACKEND": "mlir", "RLK_CACHE_DIR": str(tmp_path)}
    made = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )
    assert made.returncode != 0 and "RLK_BACKEND" in made.stderr and "triton" in made.stderr


# gradients

UNDIFFERENTIABLE: dict[str, tuple[Callable[[torch.Tensor], object], torch.Tensor]] = {
    "bias": (lambda t: ops.logp(f32(6, V), IDS, bias=t), f32(V)),
    "temperature": (lambda t: ops.logp(f32(6, V), IDS, temperature=t), torch.ones(6)),
    "old_logp": (lambda t: ops.ratio_kl(f32(6), t, f32(6)), f32(6)),
    "ref_logp": (lambda t: ops.ratio_kl(f32(6), f32(6), t), f32(6)),
    "advantages": (lambda t: ops.policy_loss(f32(6), f32(6), t, layout=LAYOUT), f32(2)),
    "cos": (
        lambda t: ops.rope(f32(6, 1, 8), f32(6, 1, 8), t, f32(9, 4), position_ids=IDS), f32(9, 4)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNDIFFERENTIABLE)
def test_a_gradient_that_does_not_exist_is_refused(name: str, launched: list[str]) -> None:
    call, tensor = UNDIFFERENTIABLE[name]
    call(tensor)
    launched.clear()
    with pytest.raises(LaunchError) as caught:
        call(tensor.requires_grad_())
    assert caught.value.code is Code.NOT_DIFFERENTIABLE and name in str(caught.value) and not launched
    with torch.no_grad():
        call(tensor)
    assert launched


def test_a_second_derivative_is_refused() -> None:
    x = f32(6, V).requires_grad_()
    (grad,) = torch.autograd.grad(ops.logp(2 * x, IDS).logp.sum(), x, create_graph=True)
    with pytest.raises(LaunchError) as caught:
        grad.pow(2).sum().backward()
    assert caught.value.code is Code.DOUBLE_BACKWARD
    (grad,) = torch.autograd.grad(ops.logp(2 * x, IDS).logp.sum(), x, create_graph=True)
    with pytest.raises(LaunchError):
        (grad.sum() + ops.logp(x, IDS).logp.sum()).backward()


HEAD = torch.randn(V, 16, generator=torch.Generator().manual_seed(3)).bfloat16()
TWICE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "logp": lambda x: ops.logp(x, IDS).logp.sum(),  # type: ignore[union-attr]
    "rms_norm": lambda x: ops.rms_norm(x, torch.ones(V)).sum(),
    "policy_loss": lambda x: (
        ops.policy_loss(x[:, 0], torch.zeros(TOKENS), torch.ones(TOKENS), layout=LAYOUT).loss
    ),
    "linear_jsd_loss": lambda x: ops.linear_jsd_loss(
        x.bfloat16(), torch.eye(V).bfloat16(), HEAD[:TOKENS], HEAD
    ).sum(),
}


@pytest.mark.parametrize("backward", [False, True])
def test_a_dual_tensor_is_refused_where_its_tangent_would_be_lost(backward: bool) -> None:
    logits = f32(TOKENS, V).requires_grad_(backward)
    with torch.autograd.forward_ad.dual_level():
        made = ops.logp(logits, IDS)  # no input has a tangent
        dual = torch.autograd.forward_ad.make_dual(logits, f32(TOKENS, V, seed=1))
        with pytest.raises(LaunchError, match="logits is a dual tensor") as caught:
            ops.logp(dual, IDS)
    assert caught.value.code is Code.FORWARD_MODE
    assert_same_bits(made.logp.detach(), ops.logp(logits, IDS).logp.detach())


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("name", TWICE)
def test_a_second_derivative_by_the_input_names_the_operator(name: str, inner: bool) -> None:
    """inner: the input is no leaf."""
    x = f32(TOKENS, V).requires_grad_()
    (grad,) = torch.autograd.grad(TWICE[name](x * 1.0 if inner else x), x, create_graph=True)
    with pytest.raises(LaunchError) as caught:
        torch.autograd.grad(grad.sum(), x)
    assert caught.value.code is Code.DOUBLE_BACKWARD
    assert str(caught.value).startswith(f"{name} has no second derivative")


def test_a_first_derivative_that_keeps_its_graph_has_the_same_bits() -> None:
    x = f32(6, V).requires_grad_()
    kept, plain = (
        torch.autograd.grad(ops.logp(x, IDS).logp.sum(), x, create_graph=flag)[0] for flag in (True, False)
    )
    assert_same_bits(kept, plain)
    assert not plain.requires_grad
    (wide,) = torch.autograd.grad(x.double().log_softmax(-1)[torch.arange(6), IDS].sum(), x)
    assert differing(wide, plain), "the control: the f32 of a derivative in f64"


def test_a_graph_can_be_walked_twice() -> None:
    x = f32(6, V).requires_grad_()
    y = ops.logp(x, IDS).logp.sum()
    (a,) = torch.autograd.grad(y, x, retain_graph=True)
    (b,) = torch.autograd.grad(y, x)
    assert_same_bits(a, b)


def test_an_input_changed_after_the_call_is_noticed() -> None:
    x = f32(6, V).requires_grad_()
    y = 1 * x
    made = ops.logp(y, IDS).logp.sum()
    y.data.add_(0)
    with torch.no_grad():
        y += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        made.backward()


@pytest.mark.parametrize("frozen", [(), ("x",), ("weight",), ("residual",), ("x", "residual")])
def test_a_frozen_input_costs_no_gradient(frozen: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"x": f32(6, N), "weight": f32(N), "residual": f32(6, N, seed=1)}
    for name, tensor in given.items():
        tensor.requires_grad_(name not in frozen)
    seen: list[Invocation] = []
    find = dispatch.find
    monkeypatch.setattr(dispatch, "find", lambda i, t: (seen.append(i), find(i, t))[1])
    made = ops.rms_norm(**given)
    made.y.sum().backward()  # type: ignore[union-attr]
    (backward,) = [i for i in seen if i.spec.name == "rms_norm_grad"]
    wanted = {f"d_{name}" for name in given if name not in frozen}
    if {"d_x", "d_residual"} <= wanted:
        wanted.remove("d_residual")  # it is d_x, written once
    assert {d.name for d in outputs_of(backward)} == wanted
    for name, tensor in given.items():
        assert (tensor.grad is None) == (name in frozen)


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap])
def test_transforms_of_torch_func_are_refused_and_run_nothing(transform: Any, launched: list[str]) -> None:
    with pytest.raises(LaunchError, match="rms_norm has no rule for torch.func, and x is a tensor of one"):
        transform(lambda x: ops.rms_norm(x, torch.ones(N)).sum())(f32(6, N))
    assert not launched


def test_nothing_is_kept_where_no_gradient_is_asked_for() -> None:
    x = f32(6, V).requires_grad_()
    with torch.no_grad():
        assert not ops.logp(x, IDS).logp.requires_grad
    with torch.inference_mode():
        assert not ops.logp(x, IDS).logp.requires_grad
    got = ops.logp(x, IDS, needs=("logp", "argmax"))
    assert got.logp.requires_grad and not got.argmax.requires_grad


def test_backward_through_an_output_without_a_gradient_is_refused_by_its_name() -> None:
    """The control is the same formula, detached."""
    x = f32(6, V).requires_grad_()
    made = ops.logp(x, IDS, needs=("logp", "lse", "lse2"))
    squares = (made.lse2 - 2 * made.lse).exp()  # type: ignore[operator]
    with pytest.raises(LaunchError, match="logp has no gradient for lse2") as caught:
        squares.sum().backward()
    assert caught.value.code is Code.NOT_DIFFERENTIABLE and "logp, lse, entropy" in str(caught.value)
    with_it = ops.logp(x, IDS, needs=("logp", "lse", "lse2"))
    (with_it.logp + (with_it.lse2 - 2 * with_it.lse).detach()).sum().backward()  # type: ignore[operator]
    got, x.grad = x.grad, None
    ops.logp(x, IDS).logp.sum().backward()  # type: ignore[union-attr]
    assert got is not None and x.grad is not None
    assert_same_bits(got, x.grad)


# what can be asked of an operator


@pytest.mark.parametrize("name", SIGNATURES)
def test_an_operator_says_what_it_runs(name: str) -> None:
    op = getattr(ops, name)
    assert len(op.numerics_id("cpu")) == 16 and op.numerics_id(torch.device("cpu")) == op.numerics_id("cpu")
    tiers = op.tier("cpu")
    assert tiers and set(tiers.values()) == {"exact"}
    text = str(op.explain("cpu"))
    assert "oracle on cpu" in text and op.numerics_id("cpu") in text
    assert callable(op.reference)


def test_ids_of_numerics_tell_operators_and_models_of_exp2_apart() -> None:
    ids = {name: op.numerics_id("cpu") for name, op in ops.OPERATORS.items()}
    # the same rows moved, to and fro
    assert ids.pop("pack") == ids["unpack"]
    assert len(set(ids.values())) == len(ids)
    assert ops.logp.numerics_id("cpu", math="sm90") != ops.logp.numerics_id("cpu", math="portable")
    assert ops.logp.numerics_id("cpu") == ops.logp.numerics_id("cpu", math="portable")
    assert ops.swiglu.numerics_id("cpu", math="sm90") == ops.swiglu.numerics_id("cpu")


def test_a_call_is_explained_without_running(launched: list[str]) -> None:
    decision = rlk.explain(ops.logp, f32(6, V), IDS, needs=("entropy",))
    assert "entropy" in str(decision) and not launched


# torch.library

RECORD = Loss(beta=0.1, entropy_coef=0.1)  # made outside of compiled functions, whose constant it is
CALLS: dict[str, Callable[..., Any]] = {
    "logp": lambda x, g: ops.logp(
        x.reshape(2, 3, V), IDS.reshape(2, 3), needs=("logp", "lse", "entropy"), temperature=0.7, softcap=9.0
    ),
    "logp alone": lambda x, g: ops.logp(x, IDS),
    "logp of rows": lambda x, g: ops.logp(
        x, IDS, needs=("logp", "argmax"), temperature=g.abs() + 1, mask=g > 0, bias=x.detach()[0]
    ),
    "jsd_loss": lambda x, g: ops.jsd_loss(x, x.detach().flip(0), temperature=g.abs() + 1, mask=g > -1),
    "jsd_loss, reverse": lambda x, g: ops.jsd_loss(x.view(2, 3, V), x.detach().flip(0).view(2, 3, V), beta=1),
    "linear_jsd_loss": lambda x, g: ops.linear_jsd_loss(
        x.to(BF16).view(2, 3, V), 2 * x.to(BF16), x.detach().half()[:, 1:].contiguous().view(2, 3, V - 1),
        x.detach().half()[:, : V - 1].contiguous(), temperature=g.abs().view(2, 3) + 1,
        mask=g.view(2, 3) > -1,
    ),
    "linear_jsd_loss, forward": lambda x, g: ops.linear_jsd_loss(
        x.to(BF16), x.to(BF16), x.detach().to(BF16).flip(0), x.detach().to(BF16), beta=0, temperature=0.7
    ),
    "ratio_kl": lambda x, g: ops.ratio_kl(x[:, 0], g, g + 0.1, kl="k3+"),
    "policy_loss": lambda x, g: (
        ops.policy_loss(
            x[:, 0],
            g,
            g[:2],
            layout=LAYOUT,
            loss=RECORD,
            ref_logp=g,
            entropy=x[:, 1],
        ).loss
    ),
    "rms_norm": lambda x, g: ops.rms_norm(x, x[0]),
    "rms_norm, residual": lambda x, g: ops.rms_norm(x, x[0].detach(), residual=2 * x, profile="gemma"),
    "swiglu": lambda x, g: ops.swiglu(x, x + 1),
    "geglu": lambda x, g: (ops.geglu(x, x + 1), ops.geglu(x, 2 * x, approximate="none")),
    "clamped_swiglu": lambda x, g: ops.clamped_swiglu(x, limit=0.5),
    "rope": lambda x, g: ops.rope(x.reshape(6, 5, 8), x.reshape(6, 5, 8), TABLE, TABLE + 1, position_ids=IDS),
    "rope, partial": lambda x, g: ops.rope(
        x.reshape(6, 4, 10), x.reshape(6, 4, 10), TABLE, TABLE + 1, position_ids=IDS, rotary_dim=8
    ),
    "qk_norm": lambda x, g: ops.qk_norm(x.reshape(6, 5, 8), x[0, :8]),
    "qk_norm, rotated": lambda x, g: ops.qk_norm(
        x.reshape(6, 4, 10), x[0, :10].detach(), cos=TABLE, sin=TABLE + 1, position_ids=IDS, rotary_dim=8
    ),
    "write_cache": lambda x, g: (2 * x, cached(x)),
    "cache_qkv": lambda x, g: (2 * x, cached(x, whole=True)),
    "embedding": lambda x, g: ops.embedding(IDS % 3, x),
    "advantages": lambda x, g: (
        ops.value_loss(
            x[:, 0],
            ops.gae(
                g,
                ops.scatter_rewards(ops.group_advantage(g[:2], ENDS[:2] // 2), ENDS, layout=LAYOUT),
                layout=LAYOUT,
                gamma=0.9,
                lam=0.9,
            ).returns,
            layout=LAYOUT,
            old_values=ops.optimal_token_baseline(g, -g.abs(), g.abs(), GROUPS, layout=LAYOUT).advantages,
        ).loss
    ),
    "nll_loss": lambda x, g: ops.nll_loss(x[:, 0], layout=LAYOUT, weights=g, aggregation="sum").loss,
    "entropy_bonus": lambda x, g: ops.entropy_bonus(x[:, 0], layout=LAYOUT, coef=0.1).loss,
    "preference_loss": lambda x, g: ops.preference_loss(x[:, 0], x[:, 1], g, g + 1, loss="apo_down").loss,
    "sequence_logp": lambda x, g: ops.sequence_logp(x[:, 0], layout=LAYOUT, over="mean"),
    "preference_loss, ranks": lambda x, g: ops.preference_loss(x[:, 0], x[:, 1], g, g + 1, loss="aot").loss,
    "kto_loss": lambda x, g: ops.kto_loss(x[:, 0], g, g > 0, mismatched=(g, g + 1)).loss,
    "pack": lambda x, g: ops.pack(x.reshape(2, 3, V), Layout.packed(ENDS[[0, 2, 2]] // 2, tokens=3)),
    "unpack": lambda x, g: ops.unpack(x, Layout.padded(ENDS.diff(), 5, side="left")),
    "linear_logp": lambda x, g: ops.linear_logp(
        x.to(BF16), 2 * x.to(BF16), IDS, mask=g > -1, needs=("logp", "lse", "entropy")
    ),
    "linear_policy_loss": lambda x, g: (
        ops.linear_policy_loss(
            x.to(BF16), x.to(BF16), IDS, g, g[:2], layout=LAYOUT, loss=RECORD, ref_logp=g
        ).loss
    ),
    "matmul": lambda x, g: (2 * x, ops.matmul(x.detach().half(), x.detach().half(), order="leaf8")),
    "grouped_matmul": lambda x, g: ops.grouped_matmul(x.to(BF16), x.to(BF16)[None].repeat(2, 1, 1), ENDS),
    "route": lambda x, g: mixed(x),
    "router_losses": lambda x, g: ops.router_losses(x, ops.route(x, 3).ids, mask=g > -1)[:2],
    "sample": lambda x, g: (
        2 * x,
        ops.sample(
            x, seed=1, request_id=IDS, position=IDS, top_k=9, temperature=g.abs(),
            penalties=ops.Penalties(IDS[:, None].expand(6, V), presence=0.5),
        ),
    ),
    "varlen_attention": lambda x, g: ops.varlen_attention(
        heads(x), heads(x)[:, :5], heads(x)[:, 5:], ENDS, ENDS, sinks=g.repeat(2)[:10]
    ),
    "prefix_attention": lambda x, g: (
        2 * x,
        ops.prefix_attention(
            heads(x).detach(), *(heads(x).detach()[:, :5],) * 2, *(heads(x).detach()[:, 5:],) * 2,
            PROMPT, ENDS, GROUPS,
        ),
    ),
    "paged_attention": lambda x, g: (
        2 * x,
        ops.paged_attention(
            heads(x).detach(), *(heads(x).detach().view(6, 2, 5, 4),) * 2, IDS.int().view(2, 3), LENGTHS, ENDS
        ),
    ),
}  # fmt: skip
LENGTHS = torch.tensor([4, 3], dtype=torch.int32)
PROMPT, GROUPS = torch.tensor([0, 6], dtype=torch.int32), torch.tensor([0, 2], dtype=torch.int32)


def mixed(x: torch.Tensor) -> torch.Tensor:
    """Return the results of three experts of each row, each the row itself."""
    routed = ops.route(x, 3)
    permuted = ops.permute(x, routed.ids, experts=V)
    return ops.combine(permuted.rows, routed.weights, permuted)


def heads(x: torch.Tensor) -> torch.Tensor:
    return x.to(BF16).reshape(6, 10, 4)


def cached(x: torch.Tensor, whole: bool = False) -> list[torch.Tensor]:
    """Return a cache to which heads were written, and q where it comes with them."""
    pages = torch.zeros(3, 2, 2, 16, dtype=BF16).transpose(1, 2)
    caches, slots = (pages[..., :8], pages[..., 8:]), torch.tensor([4, -1, 0, 5, 1, 2])
    made, turned = x.detach().to(BF16), {"cos": TABLE, "sin": TABLE + 1, "position_ids": IDS}
    if whole:
        weight = made[0, :8].contiguous()
        return [ops.cache_qkv(made, *caches, slots, q_weight=weight, k_weight=weight, **turned), pages]
    ops.write_cache(*made[:, :32].reshape(6, 2, 2, 8).unbind(1), *caches, slots, **turned)
    return [pages]


def test_every_operator_is_among_these_calls() -> None:
    within = {"scatter_rewards", "group_advantage", "gae", "value_loss", "penalize"}  # the steps of others
    within |= {"optimal_token_baseline", "permute", "combine"}
    assert set(ops.OPERATORS) - set(CALLS) == within


def flat(made: Any) -> list[torch.Tensor]:
    if isinstance(made, torch.Tensor):
        return [made]
    return [] if made is None else [x for part in made for x in flat(part)]


def with_gradient(call: Callable[..., Any], x: torch.Tensor, g: torch.Tensor) -> list[torch.Tensor]:
    leaf = x.clone().requires_grad_()
    made = flat(call(leaf, g))
    smooth = [y for y in made if y.requires_grad]
    torch.autograd.backward(smooth, [torch.linspace(-1, 1, y.numel()).reshape(y.shape) for y in smooth])
    assert leaf.grad is not None
    return [*made, leaf.grad]


@pytest.mark.parametrize("name", CALLS)
def test_a_compiled_call_has_the_bits_of_an_eager_one(name: str) -> None:
    x, g = f32(6, V), f32(6, seed=1)
    compiled = torch.compile(CALLS[name], fullgraph=True, backend="aot_eager")
    for a, b in zip(with_gradient(compiled, x, g), with_gradient(CALLS[name], x, g), strict=True):
        assert_same_bits(a, b)


@pytest.mark.parametrize("name", CALLS)
def test_a_fake_call_has_the_shapes_and_dtypes_of_a_real_one(name: str, launched: list[str]) -> None:
    x, g = f32(6, V), f32(6, seed=1)
    want = flat(CALLS[name](x, g))
    launched.clear()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        got = flat(CALLS[name](mode.from_tensor(x), mode.from_tensor(g)))
    assert [(y.shape, y.dtype, y.stride()) for y in got] == [(y.shape, y.dtype, y.stride()) for y in want]
    assert not launched


@pytest.mark.parametrize("name", [n for n in CALLS if "cache" not in n])  # test_heads has these
def test_torch_accepts_the_registration(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """opcheck on exactly what a public call hands to torch's dispatcher."""
    from rlk.runtime.call import entry as calls

    seen: list[tuple[Any, ...]] = []

    def through(op: Any, tensors: Any, scalars: Any, statics: Any, math: Any) -> Any:
        given = {**tensors, **scalars, **statics}
        encoded = [given.get(f.name, library._default(f)) for f in op.formals]
        values = [list(v) if isinstance(v, tuple) else v for v in encoded]
        seen.append((library.register(op), (*values, math or library.AUTO)))
        return library.through_dispatcher(op, tensors, scalars, statics, math)

    with calls.observed(through):
        CALLS[name](f32(6, V).requires_grad_(), f32(6, seed=1))
    assert seen
    for op, arguments in seen[:1]:
        leaves = [
            a.detach().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a
            for a in arguments
        ]
        torch.library.opcheck(op.default, tuple(leaves))
