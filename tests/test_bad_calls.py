"""Calls that no operator can serve raise one located error, in the words of the caller."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from rlk import Layout, explain, ops
from rlk.env import Env
from rlk.errors import Code, LaunchError
from rlk.ops import (
    Csr,
    Loss,
    Overlong,
    Penalties,
    Support,
    entropy_bonus,
    gae,
    group_advantage,
    kto_loss,
    linear_logp,
    logp,
    matmul,
    pack,
    paged_attention,
    penalize,
    policy_loss,
    preference,
    preference_loss,
    prefix_attention,
    ratio_kl,
    rms_norm,
    rope,
    rope_table,
    sample,
    sequence_logp,
    unpack,
    value_loss,
    varlen_attention,
)
from rlk.ops.losses import (
    Correction,
    Rejection,
    Selection,
    Surrogate,
    cispo,
    clip,
    clip_cov,
    dppo_kl,
    ipo_mask,
    kl_cov,
    lower_mask,
    reinforce,
    sapo,
    vespo,
)

x = torch.zeros(3, 64)
ids = torch.tensor([1, 2, 3])
h, w = torch.zeros(3, 16, dtype=torch.bfloat16), torch.zeros(64, 16, dtype=torch.bfloat16)
cu = torch.tensor([0, 1, 3], dtype=torch.int32)
q = torch.zeros(3, 2, 16, dtype=torch.bfloat16)
lay = Layout.packed(torch.tensor([0, 1, 3]), tokens=3)
lp, adv = torch.zeros(3), torch.tensor([1.0, 2.0])
smp = {"seed": 0, "request_id": ids, "position": ids}
bt, cl = torch.zeros(2, 1, dtype=torch.int32), torch.tensor([1, 2], dtype=torch.int32)
kc = torch.zeros(2, 4, 2, 16, dtype=torch.bfloat16)


def P(**options: float) -> torch.Tensor:
    return penalize(x, Penalties(counts=torch.zeros(3, 64, dtype=torch.int32), **options))


angles = torch.randn(8, 8)


def prefix(grad: bool, **others: torch.Tensor) -> object:
    offsets = {
        "cu_seqlens_prefix": torch.tensor([0, 3]),
        "cu_seqlens": cu.long(),
        "groups": torch.tensor([0, 2]),
    }
    given = dict.fromkeys(("k_prefix", "v_prefix", "k", "v"), q) | offsets | others
    return prefix_attention(q.clone().requires_grad_(grad), **given)


PREFIXES: list[tuple[dict[str, torch.Tensor], Code, str]] = [
    (
        {"v_prefix": q[:2]},
        Code.ARG_SIZE,
        "v_prefix has T, heads = (2, 2), but k_prefix has T, heads = (3, 2)",
    ),
    ({"k_prefix": q[:, :1]}, Code.ARG_SIZE, "k_prefix has heads, E = (1, 16), but k has heads, E = (2, 16)"),
    ({"v_prefix": q[..., :8]}, Code.ARG_SIZE, "v_prefix has heads, F = (2, 8), but v has heads, F = (2, 16)"),
    ({"k_prefix": q[0, 0, 0]}, Code.ARG_RANK, "k_prefix has 0 dims (), expected 3 dims"),
    ({"k_prefix": q.float()}, Code.ARG_DTYPE, "k_prefix has dtype torch.float32, expected torch.bfloat16"),
    ({"k_prefix": q.to("meta")}, Code.ARG_DEVICE, "k_prefix is on meta, but q is on cpu"),
    (
        {"groups": torch.tensor([0, 2], device="meta")},
        Code.ARG_DEVICE,
        "groups is on meta, but q is on cpu",
    ),
]
"""What a gradient of prefix_attention joins to one table, and a call without one reads apart."""
BAD: list[tuple[Callable[[], object], Code, str]] = [
    (lambda: logp(x, ids, softcap=0), Code.ARG_VALUE, "logp: softcap=0"),
    (lambda: logp(x, ids, softcap=math.nan), Code.ARG_VALUE, "logp: softcap=nan"),
    (lambda: logp(x, ids, logit_scale=math.nan), Code.ARG_VALUE, "logp: logit_scale=nan"),
    (lambda: logp(x, ids, ignore_index=2**70), Code.ARG_VALUE, "logp: ignore_index=1180591620717411303424"),
    (lambda: logp(x, ids, needs="lse"), Code.ARG_VALUE, "logp: needs='lse'"),
    (lambda: logp(x, ids, needs=("x",)), Code.ARG_VALUE, "logp: needs='x'"),
    (lambda: logp(x, ids, needs=(1,)), Code.ARG_VALUE, "logp: needs=1"),
    (
        lambda: logp(x.to_sparse(), ids),
        Code.ARG_TYPE,
        "logp: logits must be a dense tensor, got torch.sparse_coo",
    ),
    (lambda: ops.logp.numerics_id("gpu"), Code.ARG_VALUE, "logp: device='gpu'"),
    (lambda: ops.logp.explain("gpu"), Code.ARG_VALUE, "logp: device='gpu'"),
    (lambda: logp(x, ids, math="fast"), Code.ARG_VALUE, "logp: math='fast'"),
    (
        lambda: logp(x, ids, temperature=torch.ones(3, dtype=torch.int64)),
        Code.ARG_DTYPE,
        "logp: temperature has dtype torch.int64, expected a float dtype",
    ),
    (
        lambda: logp(x, ids, support=Csr(torch.tensor([0, 1, 2, 3]), torch.tensor([1.0, 2.0, 3.0]))),
        Code.ARG_DTYPE,
        "logp: support.ids has dtype torch.float32, expected torch.int32 or torch.int64",
    ),
    (
        lambda: logp(x, ids, support=Csr(torch.tensor([0, 1, 2, 3]), torch.tensor([1, 64, 3]))),
        Code.ARG_VALUE,
        "logp: support.ids[1]=64",
    ),
    (
        lambda: logp(x, ids, support=Csr(torch.tensor([0, 1, 2, 3]), torch.tensor([1, -1, 3]))),
        Code.ARG_VALUE,
        "logp: support.ids[1]=-1",
    ),
    (
        lambda: logp(x, ids, support=Csr(torch.tensor([0, 1, 2, 30]), torch.tensor([1, 2, 3]))),
        Code.ARG_VALUE,
        "logp: support.offsets=[0, 1, 2, 30]",
    ),
    (
        lambda: logp(x, ids, support=Csr(torch.tensor([0, 1, 2, 3]), torch.tensor([1, 2, 300]))),
        Code.ARG_VALUE,
        "logp: support.ids[2]=300",
    ),
    (
        lambda: logp(x, ids, support=Csr(torch.tensor([0, 2, 3, 3]), torch.tensor([1, 1, 3]))),
        Code.ARG_VALUE,
        "logp: support.ids[1]=1",
    ),
    (
        lambda: logp(x, ids, support=Csr(torch.tensor([0, 1, 3]), torch.tensor([1, 2, 3]))),
        Code.ARG_SIZE,
        "logp: support.offsets[1:] has rows = 2, but ids has rows = 3",
    ),
    (lambda: logp(x, ids, support=3), Code.ARG_TYPE, "logp: support must be a Support or Csr, got int"),
    (lambda: Layout.padded(torch.tensor([1, 2]), -1), Code.ARG_VALUE, "Layout.padded: L=-1"),
    (
        lambda: Layout.padded(torch.tensor([1, 2]), 3.0),
        Code.ARG_TYPE,
        "Layout.padded: L must be a int, got float",
    ),
    (lambda: Layout.packed(torch.tensor([0, 1]), tokens=-1), Code.ARG_VALUE, "Layout.packed: tokens=-1"),
    (
        lambda: Layout.packed(torch.tensor([0, 5]), tokens=5.0),
        Code.ARG_TYPE,
        "Layout.packed: tokens must be a int, got float",
    ),
    (
        lambda: Layout.packed(torch.tensor([0, 40]), tokens=41, mask=torch.ones(40, dtype=torch.bool)),
        Code.ARG_SHAPE,
        "Layout.packed: mask has shape (40,), expected (41,) by tokens",
    ),
    (
        lambda: Layout.packed(torch.tensor([0, 40]), mask=torch.ones(39, dtype=torch.bool)),
        Code.ARG_SHAPE,
        "Layout.packed: mask has shape (39,), expected (40,) by cu_seqlens",
    ),
    (
        lambda: Layout.packed(torch.tensor([0, 50, 40]), mask=torch.ones(39, dtype=torch.bool)),
        Code.ARG_VALUE,
        "Layout.packed: cu_seqlens=[0, 50, 40]",
    ),
    (
        lambda: Layout.packed(torch.tensor([0, 1]), tokens=1, spans=[3]),
        Code.ARG_TYPE,
        "Layout.packed: spans must be a Spans, or a tuple of them, got list",
    ),
    (
        lambda: Layout.packed(torch.tensor([0, 1]), mask=[True]),
        Code.ARG_TYPE,
        "Layout.packed: mask must be a torch.Tensor, got list",
    ),
    (
        lambda: policy_loss(lp, lp, adv, layout=lay, loss={"a": 1}),
        Code.ARG_TYPE,
        "policy_loss: loss must be a Loss, or a name, got dict",
    ),
    (lambda: policy_loss(lp, lp, adv, layout=lay, loss="nope"), Code.ARG_VALUE, "policy_loss: loss='nope'"),
    (lambda: Loss(beta=-0.1), Code.ARG_VALUE, "Loss: beta=-0.1"),
    (lambda: clip(1.0), Code.ARG_VALUE, "clip: low=1.0"),
    (
        lambda: explain("logp", x, ids),  # type: ignore[arg-type]
        Code.ARG_TYPE,
        "rlk.explain: op must be a function of rlk.ops, such as rlk.ops.logp, got 'logp'",
    ),
    (
        lambda: kto_loss(lp, lp, lp > 0, mismatched=(lp.clone().requires_grad_(), lp)),
        Code.NOT_DIFFERENTIABLE,
        "kto_loss has no gradient for mismatched[0]",
    ),
    *(
        (
            lambda count=count: preference_loss(
                lp, lp, loss="simpo", chosen_tokens=torch.tensor([3, count, 1]), rejected_tokens=ids + 1
            ),
            Code.ARG_VALUE,
            f"preference_loss: chosen_tokens={count}",
        )
        for count in (0, -1)
    ),
    (lambda: Loss(token_limits=0.2), Code.ARG_VALUE, "Loss: token_limits=0.2"),
    (lambda: Loss(token_limits=(0.2, -0.2)), Code.ARG_VALUE, "Loss: token_limits[0]=0.2"),
    (lambda: Loss(normalizer=0), Code.ARG_VALUE, "Loss: normalizer=0"),
    (lambda: Loss(normalizer=-1.0), Code.ARG_VALUE, "Loss: normalizer=-1.0"),
    (lambda: clip(-0.5), Code.ARG_VALUE, "clip: low=-0.5"),
    (lambda: clip(math.nan), Code.ARG_VALUE, "clip: low=nan"),
    (lambda: clip(dual=0.5), Code.ARG_VALUE, "clip: dual=0.5"),
    (lambda: Loss(beta=math.nan), Code.ARG_VALUE, "Loss: beta=nan"),
    (lambda: Loss(beta=0.1, kl_limit=-1), Code.ARG_VALUE, "Loss: kl_limit=-1"),
    (lambda: cispo(3.0, 2.0), Code.ARG_VALUE, "cispo: least=3.0"),
    (lambda: Loss(entropy_coef=math.inf), Code.ARG_VALUE, "Loss: entropy_coef=inf"),
    (lambda: Correction(low=3.0, high=2.0), Code.ARG_VALUE, "Correction: low=3.0"),
    (lambda: Correction(high=-1.0), Code.ARG_VALUE, "Correction: high=-1.0"),
    (lambda: Rejection(low=1.0, high=0.0), Code.ARG_VALUE, "Rejection: low=1.0"),
    (lambda: Loss(correction="tis"), Code.ARG_TYPE, "Loss: correction must be a Correction, got str"),
    (
        lambda: Loss(rejections=Rejection(high=1.0)),
        Code.ARG_TYPE,
        "Loss: rejections must be a tuple of Rejection, got Rejection",
    ),
    (lambda: Loss(metrics="ess"), Code.ARG_VALUE, "Loss: metrics='ess'"),
    (lambda: Loss(most_drift=math.nan), Code.ARG_VALUE, "Loss: most_drift=nan"),
    (
        lambda: policy_loss(lp, lp.double(), adv, layout=lay),
        Code.ARG_DTYPE,
        "policy_loss: old_logp has dtype torch.float64, expected torch.float32",
    ),
    (lambda: sapo(0.0), Code.ARG_VALUE, "sapo: tau_positive=0.0"),
    (
        lambda: group_advantage(lp, torch.tensor([0, 3]), eps=math.nan),
        Code.ARG_VALUE,
        "group_advantage: eps=nan",
    ),
    (lambda: group_advantage(lp, torch.tensor([0, 3]), eps=-1), Code.ARG_VALUE, "group_advantage: eps=-1"),
    (
        lambda: group_advantage(lp.double(), torch.tensor([0, 3])),
        Code.ARG_DTYPE,
        "group_advantage: rewards has dtype torch.float64, expected torch.float32",
    ),
    (lambda: gae(lp, lp, layout=lay, gamma=math.nan, lam=1.0), Code.ARG_VALUE, "gae: gamma=nan"),
    (lambda: gae(lp, lp, layout=lay, gamma=1.0, lam=2.0), Code.ARG_VALUE, "gae: lam=2.0"),
    (lambda: rms_norm(x, torch.ones(64), eps=-100), Code.ARG_VALUE, "rms_norm: eps=-100"),
    (lambda: rms_norm(x, torch.ones(64), eps=math.nan), Code.ARG_VALUE, "rms_norm: eps=nan"),
    (lambda: P(repetition=0.0), Code.ARG_VALUE, "penalize: repetition=0.0"),
    (lambda: P(frequency=math.nan), Code.ARG_VALUE, "penalize: frequency=nan"),
    (lambda: penalize(x, 3), Code.ARG_TYPE, "penalize: penalties must be a Penalties, got int"),
    (lambda: sample(x, **{**smp, "seed": 2**63}), Code.ARG_VALUE, "sample: seed=9223372036854775808"),
    (lambda: sample(x, **smp, top_k=2**40), Code.ARG_VALUE, "sample: top_k=1099511627776"),
    (lambda: sample(x, **smp, top_p=math.nan), Code.ARG_VALUE, "sample: top_p=nan"),
    (lambda: sample(x, **smp, temperature=math.inf), Code.ARG_VALUE, "sample: temperature=inf"),
    (lambda: sample(x, **smp, temperature=math.nan), Code.ARG_VALUE, "sample: temperature=nan"),
    (lambda: sample(x, **{**smp, "seed": 1.5}), Code.ARG_TYPE, "sample: seed must be a int, got float"),
    (
        lambda: varlen_attention(q[..., :0], q[..., :0], q, cu, cu),
        Code.ARG_VALUE,
        "varlen_attention: q.shape[2]=0",
    ),
    (lambda: varlen_attention(q, q, q, cu, cu, window=0), Code.ARG_VALUE, "varlen_attention: window=0"),
    (lambda: varlen_attention(q, q, q, cu, cu, window=2.5), Code.ARG_VALUE, "varlen_attention: window=2.5"),
    (
        lambda: varlen_attention(q, q, q, cu, cu, scale=math.nan),
        Code.ARG_VALUE,
        "varlen_attention: scale=nan",
    ),
    (lambda: varlen_attention(q, q, q, cu, cu, softcap=-1), Code.ARG_VALUE, "varlen_attention: softcap=-1"),
    (
        lambda: varlen_attention(q, q, q, torch.tensor([0, 3, 1], dtype=torch.int32), cu),
        Code.ARG_VALUE,
        "varlen_attention: cu_seqlens_q=[0, 3, 1]",
    ),
    (
        lambda: varlen_attention(q, q, q, cu, torch.tensor([0, 3, 100], dtype=torch.int32)),
        Code.ARG_VALUE,
        "varlen_attention: cu_seqlens_k=[0, 3, 100]",
    ),
    (
        lambda: varlen_attention(q, q, q, cu, torch.tensor([-1, 2, 3])),
        Code.ARG_VALUE,
        "varlen_attention: cu_seqlens_k=[-1, 2, 3]",
    ),
    (
        lambda: varlen_attention(q, q, q, cu, torch.tensor([0, 2**33, 2**33])),
        Code.ARG_VALUE,
        "varlen_attention: cu_seqlens_k=[0, 8589934592, 8589934592]",
    ),
    (
        lambda: varlen_attention(q, q, q, cu, torch.tensor([0, 3])),
        Code.ARG_DTYPE,
        "varlen_attention: cu_seqlens_k has dtype torch.int64, expected torch.int32",
    ),
    (
        lambda: varlen_attention(q, q, q, cu.float(), cu),
        Code.ARG_DTYPE,
        "varlen_attention: cu_seqlens_q has dtype torch.float32, expected torch.int32 or torch.int64",
    ),
    (
        lambda: varlen_attention(q, q, q, cu[None], cu),
        Code.ARG_RANK,
        "varlen_attention: cu_seqlens_q has 2 dims (1, 3), expected 1 dim",
    ),
    (
        lambda: paged_attention(q, kc, kc, bt + 2, cl, cu),
        Code.ARG_VALUE,
        "paged_attention: block_table[0]=[2]",
    ),
    (
        lambda: paged_attention(q, kc, kc, bt, cl + 3, cu),
        Code.ARG_VALUE,
        "paged_attention: context_lens[1]=5",
    ),
    (
        lambda: paged_attention(q, kc, kc, bt, cl - 3, cu),
        Code.ARG_VALUE,
        "paged_attention: context_lens[0]=-2",
    ),
    (
        lambda: paged_attention(q, kc, kc, bt, cl[:1], cu),
        Code.ARG_SIZE,
        "paged_attention: context_lens has B = (1,), but cu_seqlens_q has B = 2",
    ),
    (
        lambda: paged_attention(q, kc, kc, bt.long(), cl, cu),
        Code.ARG_DTYPE,
        "paged_attention: block_table has dtype torch.int64, expected torch.int32",
    ),
    (
        lambda: paged_attention(q, kc, kc, bt[:, 0], cl, cu),
        Code.ARG_RANK,
        "paged_attention: block_table has 1 dims (2,), expected 2 dims [B, M]",
    ),
    (
        lambda: prefix_attention(
            q, q, q, q, q, torch.tensor([0, 3]), torch.tensor([0, 1, 3]), torch.tensor([0, 1])
        ),
        Code.ARG_VALUE,
        "prefix_attention: groups=[0, 1]",
    ),
    (
        lambda: prefix_attention(
            q, q, q, q, q, torch.tensor([0, 1, 3]), torch.tensor([0, 1, 3]), torch.tensor([0, 3, 2])
        ),
        Code.ARG_VALUE,
        "prefix_attention: groups=[0, 3, 2]",
    ),
    (
        lambda: rope(q, q, torch.randn(8, 16), torch.randn(8, 16), position_ids=ids, interleaved=True),
        Code.ARG_SIZE,
        "rope: cos has E / 2 = 16, but q has E / 2 = 8",
    ),
    (
        lambda: kto_loss(lp, lp, lp > 0, mismatched=lp),
        Code.ARG_TYPE,
        "kto_loss: mismatched must be a pair (logp, ref_logp), got Tensor",
    ),
    (
        lambda: kto_loss(lp, lp, lp > 0, mismatched=(lp, lp, lp)),
        Code.ARG_TYPE,
        "kto_loss: mismatched must be a pair (logp, ref_logp), got tuple",
    ),
    (
        lambda: kto_loss(lp, lp, lp > 0, mismatched=(lp, lp.double())),
        Code.ARG_DTYPE,
        "kto_loss: mismatched[1] has dtype torch.float64, expected torch.float32",
    ),
    (
        lambda: kto_loss(lp, lp, lp > 0, desirable_weight=math.nan),
        Code.ARG_VALUE,
        "kto_loss: desirable_weight=nan",
    ),
    (lambda: kto_loss(lp, lp, lp > 0, beta=math.nan), Code.ARG_VALUE, "kto_loss: beta=nan"),
    (lambda: preference_loss(lp, lp, lp, lp, margin=math.nan), Code.ARG_VALUE, "preference_loss: margin=nan"),
    (
        lambda: value_loss(lp, lp, layout=lay, old_values=lp, clip=math.nan),
        Code.ARG_VALUE,
        "value_loss: clip=nan",
    ),
    (lambda: entropy_bonus(lp, layout=lay, coef=math.nan), Code.ARG_VALUE, "entropy_bonus: coef=nan"),
    (lambda: Overlong(10, 20), Code.ARG_VALUE, "Overlong: limit=10"),
    (
        lambda: ops.scatter_rewards(lp[:2], torch.tensor([0, 1, 3]), layout=lay, overlong=3),
        Code.ARG_TYPE,
        "scatter_rewards: overlong must be a penalty made by Overlong, got int",
    ),
    (
        lambda: ops.scatter_rewards(lp[:2], torch.tensor([0, 1, 3], device="meta"), layout=lay),
        Code.ARG_DEVICE,
        "scatter_rewards: offsets is on meta, but layout is on cpu",
    ),
    (
        lambda: group_advantage(lp, torch.tensor([0, 3], device="meta")),
        Code.ARG_DEVICE,
        "group_advantage: groups is on meta, but rewards is on cpu",
    ),
    (
        lambda: group_advantage(
            lp, torch.tensor([0, 3]), baseline="length", lengths=torch.tensor([1, -2, 3])
        ),
        Code.ARG_VALUE,
        "group_advantage: lengths=-2",
    ),
    (lambda: Overlong(10, 2, factor=math.nan), Code.ARG_VALUE, "Overlong: factor=nan"),
    (
        lambda: pack(torch.randn(2, 2, dtype=torch.float64), lay),
        Code.ARG_DTYPE,
        "pack: x has dtype torch.float64, expected torch.int64",
    ),
    (lambda: ratio_kl(lp, lp, lp, kl=["k1"]), Code.ARG_VALUE, "ratio_kl: kl=['k1']"),
    (lambda: matmul(h, w, order="x"), Code.ARG_VALUE, "matmul: order='x'"),
    (
        lambda: matmul(h, w.float(), order="leaf8"),
        Code.ARG_DTYPE,
        "matmul: w has dtype torch.float32, expected torch.bfloat16 or torch.float16",
    ),
    (
        lambda: linear_logp(h, w, ids, bias=torch.zeros(64)),
        Code.ARG_DTYPE,
        "linear_logp: bias has dtype torch.float32, expected torch.bfloat16 or torch.float16",
    ),
    (
        lambda: logp(x, ids, temperature=torch.ones(4)),
        Code.ARG_SHAPE,
        "logp: temperature has shape (4,), expected (3,) as the rows of ids have",
    ),
    (
        lambda: logp(x.expand(3, 3, 64), ids.expand(3, 3), temperature=torch.ones(3)),
        Code.ARG_SHAPE,
        "logp: temperature has shape (3,), expected (3, 3) as the rows of ids have",
    ),
    (
        lambda: logp(x, ids, temperature=torch.ones(3, device="meta")),
        Code.ARG_DEVICE,
        "logp: temperature is on meta, but logits is on cpu",
    ),
    (lambda: penalize(x, Penalties([1])), Code.ARG_TYPE, "penalize: counts must be a torch.Tensor, got list"),
    (
        lambda: penalize(x, Penalties(torch.zeros(3, 64, dtype=torch.int32), prompt=[1])),
        Code.ARG_TYPE,
        "penalize: prompt must be a torch.Tensor, got list",
    ),
    (
        lambda: logp(x, ids, support=Support(1, 2, 3)),
        Code.ARG_TYPE,
        "logp: support.threshold must be a torch.Tensor, got int",
    ),
    (lambda: logp(x, ids, math=[]), Code.ARG_VALUE, "logp: math=[]"),
    (
        lambda: logp(x, ids, logit_scale=torch.ones(3)),
        Code.ARG_TYPE,
        "logp: logit_scale must be a number, got Tensor",
    ),
    (lambda: logp(x, ids, logit_scale=True), Code.ARG_TYPE, "logp: logit_scale must be a number, got bool"),
    (lambda: ops.logp.numerics_id("cpu", math="x"), Code.ARG_VALUE, "logp: math='x'"),
    (
        lambda: rope(q, q, angles, angles, position_ids=ids[:2]),
        Code.ARG_SIZE,
        "rope: position_ids has rows = (2,), but q or k has rows = (3,)",
    ),
    (
        lambda: rope(q, q, angles[:, :5], angles[:, :5], position_ids=ids, rotary_dim=8),
        Code.ARG_SIZE,
        "rope: cos has R / 2 = 5, but rotary_dim has R / 2 = 4",
    ),
    (
        lambda: rope(q, q, angles, angles, position_ids=ids, rotary_dim=7),
        Code.ARG_VALUE,
        "rope: rotary_dim=7",
    ),
    (
        lambda: rope(q, q, angles, angles, position_ids=ids, rotary_dim=18),
        Code.ARG_VALUE,
        "rope: rotary_dim=18",
    ),
    (
        lambda: rope(q, q, angles, angles, position_ids=ids, rotary_dim=8.0),
        Code.ARG_TYPE,
        "rope: rotary_dim must be",
    ),
    (lambda: rope_table(0, 8), Code.ARG_VALUE, "rope_table: positions=0"),
    (lambda: rope_table(8, 7), Code.ARG_VALUE, "rope_table: dim=7"),
    (lambda: rope_table(8.0, 8), Code.ARG_TYPE, "rope_table: positions must be a int"),
    (lambda: rope_table(8, 8, base=0.0), Code.ARG_VALUE, "rope_table: base=0.0"),
    (lambda: rope_table(8, 8, scaling="linear"), Code.ARG_TYPE, "rope_table: scaling must be a mapping"),
    (
        lambda: rope_table(8, 8, scaling={"rope_type": "dynamic"}),
        Code.ARG_VALUE,
        "rope_table: scaling[\"rope_type\"]='dynamic'",
    ),
    (
        lambda: rope_table(
            8,
            8,
            scaling={
                "rope_type": "yarn",
                "factor": 2.0,
                "original_max_position_embeddings": 8,
                "truncate": 2,
            },
        ),
        Code.ARG_VALUE,
        'rope_table: scaling["truncate"]=2',
    ),
    (
        lambda: rope_table(
            8,
            8,
            base=1.0,
            scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
        ),
        Code.ARG_VALUE,
        "rope_table: base=1.0",
    ),
    (
        lambda: rope_table(8, 8, scaling={"rope_type": "linear"}),
        Code.ARG_MISSING,
        'rope_table: scaling["factor"] is',
    ),
    (
        lambda: rope_table(8, 8, scaling={"rope_type": "linear", "factor": 2.0, "beta_fast": 32.0}),
        Code.ARG_VALUE,
        'rope_table: scaling["beta_fast"]=32.0',
    ),
    (
        lambda: rope_table(8, 8, base=1e6, scaling={"rope_type": "default", "rope_theta": 1e4}),
        Code.ARG_VALUE,
        "rope_table: base=1000000.0",
    ),
    (
        lambda: rope_table(
            8,
            8,
            scaling={
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 4.0,
                "high_freq_factor": 1.0,
                "original_max_position_embeddings": 8192,
            },
        ),
        Code.ARG_VALUE,
        'rope_table: scaling["high_freq_factor"]=1.0',
    ),
    (
        lambda: rope(q, q, angles, angles, position_ids=ids, interleaved="no"),
        Code.ARG_TYPE,
        "rope: interleaved must be a bool, got str",
    ),
    (
        lambda: Layout.packed(torch.tensor([0, 3]), mask=torch.ones(3, dtype=torch.bool, device="meta")),
        Code.ARG_DEVICE,
        "Layout.packed: mask is on meta, but layout is on cpu",
    ),
    (
        lambda: Layout.packed(torch.tensor([0, 3]), tokens=3, spans=ops.loss_spans(*(cu.to("meta"),) * 3)),
        Code.ARG_DEVICE,
        "Layout.packed: spans is on meta, but layout is on cpu",
    ),
    (
        lambda: ops.loss_spans(cu, cu.to("meta"), cu),
        Code.ARG_DEVICE,
        "loss_spans: sequence is on cpu, but begin is on meta",
    ),
    (lambda: Loss(selection=3), Code.ARG_TYPE, "Loss: selection must be a Selection, got int"),
    (lambda: Loss(selection=Selection()), Code.ARG_VALUE, "Loss: selection='a Selection'"),
    (
        lambda: Loss(reinforce(), level="sequence_sum", correction=Correction("truncate", high=2.0)),
        Code.ARG_VALUE,
        "Loss: level='sequence_sum'",
    ),
    (
        lambda: Loss(metrics=["ess"]),
        Code.ARG_TYPE,
        "Loss: metrics must be a tuple of names, got list",
    ),
    (lambda: Loss(weighted="x"), Code.ARG_TYPE, "Loss: weighted must be a bool, got str"),
    (lambda: Loss(bypass=[]), Code.ARG_TYPE, "Loss: bypass must be a bool, got list"),
    (lambda: Loss(Surrogate(3)), Code.ARG_TYPE, "Loss: surrogate.fn must be a function of a token, got int"),
    (lambda: Correction(normalized=1), Code.ARG_TYPE, "Correction: normalized must be a bool, got int"),
    (lambda: Selection(share=None), Code.ARG_TYPE, "Selection: share must be a number, got NoneType"),
    (lambda: Selection(low=5.0, high=1.0), Code.ARG_VALUE, "Selection: low=5.0"),
    (lambda: clip_cov(-0.5), Code.ARG_VALUE, "clip_cov: low=-0.5"),
    (lambda: kl_cov(None), Code.ARG_TYPE, "kl_cov: coef must be a number, got NoneType"),
    (lambda: kl_cov(math.inf), Code.ARG_VALUE, "kl_cov: coef=inf"),
    (lambda: lower_mask(-1.0), Code.ARG_VALUE, "lower_mask: below=-1.0"),
    (lambda: ipo_mask(drift=math.nan), Code.ARG_VALUE, "ipo_mask: drift=nan"),
    (lambda: dppo_kl(most=None), Code.ARG_TYPE, "dppo_kl: most must be a number, got NoneType"),
    (lambda: vespo(None), Code.ARG_TYPE, "vespo: power_positive must be a number, got NoneType"),
    (
        lambda: policy_loss(lp, lp, torch.tensor([1, 2]), layout=lay, loss="verl/clip_cov"),
        Code.ARG_DTYPE,
        "policy_loss: advantages has dtype torch.int64, expected torch.float32",
    ),
    (
        lambda: policy_loss(lp.to_sparse(), lp, adv, layout=lay),
        Code.ARG_TYPE,
        "policy_loss: logp must be a dense tensor, got torch.sparse_coo",
    ),
    (
        lambda: sequence_logp(lp, layout=lay, shared=ids, tail=1.0),
        Code.ARG_SIZE,
        "sequence_logp: shared has B = 3, but layout has B = 2",
    ),
    (
        lambda: preference_loss(lp, lp.to("meta"), lp, lp, loss="aot"),
        Code.ARG_DEVICE,
        "preference_loss: rejected is on meta, but chosen is on cpu",
    ),
    (
        lambda: kto_loss(lp, lp, lp > 0, mismatched=(lp[None], lp[None])),
        Code.ARG_RANK,
        "kto_loss: mismatched[0] has 2 dims (1, 3), expected 1 dim",
    ),
    (lambda: pack(torch.zeros(2, 1), lay), Code.ARG_VALUE, "pack: layout=[2]"),
    (
        lambda: pack(torch.zeros(2, 2, device="meta"), lay),
        Code.ARG_DEVICE,
        "pack: x is on meta, but layout is on cpu",
    ),
    (
        lambda: unpack(torch.zeros(5), Layout.padded(torch.tensor([1, 2]), 3)),
        Code.ARG_VALUE,
        "unpack: layout=[0, 1, 3]",
    ),
    (
        lambda: varlen_attention(q, q, q, cu, cu, causal="no"),
        Code.ARG_TYPE,
        "varlen_attention: causal must be a bool, got str",
    ),
    (
        lambda: varlen_attention(q, q, q[..., :0], cu, cu),
        Code.ARG_VALUE,
        "varlen_attention: v.shape[-1]=0",
    ),
    (
        lambda: paged_attention(q, kc, kc[..., :0], bt, cl, cu),
        Code.ARG_VALUE,
        "paged_attention: v_cache.shape[-1]=0",
    ),
    *(
        (lambda grad=grad, given=given: prefix(grad, **given), code, f"prefix_attention: {said}")
        for grad in (False, True)
        for given, code, said in PREFIXES
    ),
]
TEMPERATURES = [
    (None, Code.ARG_TYPE), ("1", Code.ARG_TYPE), (True, Code.ARG_TYPE),
    *((value, Code.ARG_VALUE) for value in (math.inf, math.nan, 0, -1, 1e-45, 1e-50, 1e39)),
]  # fmt: skip


@pytest.mark.parametrize(("call", "code", "said"), BAD, ids=[said for _, _, said in BAD])
def test_a_bad_call_is_refused_in_the_words_of_the_caller(
    call: Callable[[], object], code: Code, said: str
) -> None:
    with pytest.raises(LaunchError) as caught:
        call()
    assert caught.value.code is code and str(caught.value).startswith(said)


@pytest.mark.parametrize(("value", "code"), TEMPERATURES)
def test_a_temperature_is_a_positive_number_whose_reciprocal_f32_holds(value: object, code: Code) -> None:
    for op, given in ((logp, (x, ids)), (linear_logp, (h, w, ids))):
        with pytest.raises(LaunchError, match=f"{op.__name__}: temperature") as caught:
            op(*given, temperature=value)
        assert caught.value.code is code


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, 1e-45])
def test_a_row_of_a_bad_temperature_is_nan_and_reported(
    value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlk.env import Env

    rows = torch.tensor([1.0, value, 0.5])
    good = torch.tensor([1.0, 1.0, 0.5])
    for op, given in ((logp, (x, ids)), (linear_logp, (h, w, ids))):
        made, want = op(*given, temperature=rows).logp, op(*given, temperature=good).logp
        assert made[1].isnan() and torch.equal(made[[0, 2]], want[[0, 2]])
        mask = torch.tensor([True, False, True])
        assert not op(*given, temperature=rows, mask=mask).logp.isnan().any()
        with monkeypatch.context() as patch:
            patch.setattr(Env, "current", staticmethod(lambda: Env.read({"RLK_CHECK": "1"})))
            with pytest.raises(LaunchError, match=f"{op.__name__}: row 1 .* temperature") as caught:
                op(*given, temperature=rows)
        assert caught.value.code is Code.BAD_ROW


def test_good_calls_at_the_edges_are_served() -> None:
    """The control: what the table refuses is refused for its value alone."""
    assert logp(x, ids, temperature=3e-39).logp is not None
    csr = Csr(torch.tensor([0, 1, 2, 3]), torch.tensor([1, 63, 0]))
    assert logp(x, torch.tensor([1, 63, 0]), support=csr).logp.tolist() == [0.0, 0.0, 0.0]
    assert Layout.padded(torch.tensor([0, 0]), 0).tokens == 0
    spans = ops.loss_spans(torch.tensor([0]), torch.tensor([0]), torch.tensor([2]))
    assert Layout.packed(torch.tensor([0, 3]), tokens=3, spans=[spans]).active.tolist() == [True, True, False]
    assert sample(x, **smp, top_k=-1).token.shape == (3,)
    square, heat = (x.expand(3, 3, 64), ids.expand(3, 3)), torch.tensor([[1.0], [2.0], [3.0]])
    assert torch.equal(
        logp(*square, temperature=heat).logp, logp(*square, temperature=heat.expand(3, 3)).logp
    )
    for window in (2**31 - 1, 2**31, 2**32, 2**32 + 1, 2**63):
        made = varlen_attention(q, q, q, cu, cu, window=window)
        assert torch.equal(made.lse, varlen_attention(q, q, q, cu, cu).lse)
    for high in (None, math.inf):
        assert policy_loss(lp, lp, adv, layout=lay, loss=Loss(clip(0.2, high))).per_token[0] == -1
    assert math.isclose(float(logp(x, ids, temperature=1e38).logp[0]), -math.log(64), rel_tol=1e-6)


def test_an_id_that_no_row_can_keep_changes_no_other_row() -> None:
    """Of a support on a device, whose ids the host does not look at."""
    from rlk.ops.support import _words

    good = _words(Csr(torch.tensor([0, 1, 3, 4]), torch.tensor([1, 2, 63, 0])), 64)
    for bad in (-1, 64, 2**40):
        found = _words(Csr(torch.tensor([0, 1, 3, 4]), torch.tensor([1, 2, bad, 0])), 64)
        assert torch.equal(found[[0, 2]], good[[0, 2]]) and not found[1].any()
    long = _words(Csr(torch.tensor([0, 1, 3, 9]), torch.tensor([1, 2, 63, 0])), 64)
    assert torch.equal(long[:2], good[:2])


def test_an_unknown_loss_is_answered_with_the_nearest_names() -> None:
    for wrong, near in (("gsop", "gspo"), ("verl/cispoo", "verl/cispo"), ("hf/dapo", "dapo")):
        with pytest.raises(LaunchError) as caught:
            policy_loss(lp, lp, adv, layout=lay, loss=wrong)
        message = str(caught.value)
        assert near in message.partition("nearest: ")[2] and message.count(",") < 5


def test_an_option_that_belongs_to_the_loss_is_answered_with_what_to_write() -> None:
    given = {"layout": lay, "beta": 0.1}
    calls: tuple[tuple[Callable[..., object], tuple[torch.Tensor, ...]], ...] = (
        (policy_loss, (lp, lp, adv)),
        (ops.linear_policy_loss, (h, w, ids, lp, adv)),
    )
    for op, tensors in calls:
        with pytest.raises(TypeError, match=r"'beta': write loss=dataclasses.replace\(rlk.ops.LOSSES"):
            op(*tensors, **given)
        with pytest.raises(TypeError, match=r"argument 'betta'$"):
            op(*tensors, layout=lay, betta=0.1)


def test_counts_of_tokens_below_one_spoil_their_pair_where_no_number_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a device; the control is the same call with good counts."""
    monkeypatch.setattr(preference, "on_the_host", lambda _: False)
    good = ids + 1
    want = preference_loss(lp, lp, loss="simpo", chosen_tokens=good, rejected_tokens=good)
    bad = torch.where(ids == ids[1], 0, good)
    made = preference_loss(lp, lp, loss="simpo", chosen_tokens=bad, rejected_tokens=good)
    assert want.per_pair.isfinite().all()
    assert made.per_pair.isnan().tolist() == (bad == 0).tolist()
    monkeypatch.setattr(Env, "current", staticmethod(lambda: Env.read({"RLK_CHECK": "1"})))
    with pytest.raises(LaunchError, match="preference_loss: row 1 has a count of tokens below 1"):
        preference_loss(lp, lp, loss="simpo", chosen_tokens=bad, rejected_tokens=good)
