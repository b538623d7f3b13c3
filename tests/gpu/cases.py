"""Calls compared with the oracle on a device: every operator and gradient, at sizes of use."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from gpu.attended import ATTENDED
from gpu.calls import DOT_CHANGES, WIDE_CHANGES, Case

from rlk.ir.types import DType
from rlk.lang.op import Op
from rlk.runtime.binding.arguments import TORCH_DTYPES
from rlk.runtime.binding.invocation import Tensors
from rlk.specs.advantage import gae, group_advantage, scatter_rewards
from rlk.specs.gated import clamped_swiglu
from rlk.specs.grouped import grouped_matmul, grouped_matmul_leaf4, grouped_matmul_leaf8
from rlk.specs.heads import qk_norm
from rlk.specs.linear_logp import linear_logp
from rlk.specs.logp import logp
from rlk.specs.loss import ratio_kl
from rlk.specs.matmul import matmul, matmul_backward, matmul_leaf2, matmul_leaf8
from rlk.specs.model import embedding, geglu, rope, rope_partial, swiglu
from rlk.specs.moe import (
    choose_experts,
    combine_rows,
    expert_offsets,
    expert_weights,
    places_by_expert,
    rows_by_expert,
)
from rlk.specs.norm import rms_norm
from rlk.specs.packing import take_rows
from rlk.specs.policy import policy_loss, policy_loss_of_sequences
from rlk.specs.preference import kto_loss, preference_loss
from rlk.specs.sampling import penalize, sample
from rlk.specs.value import entropy_bonus, value_loss

ALL = ("logp", "entropy", "argmax", "lse2")
SOFTCAP = {"logit_scale": 1.5, "softcap": 20.0, "inv_softcap": 0.05}
BASE = {"ignore_index": -100}
WARM = {**BASE, "inv_temperature": 1 / 0.7}


def ids(rows: int, vocabulary: int) -> Callable[[torch.device], Tensors]:
    """Draw ids with an ignored one, and one outside the vocabulary where there is room."""

    def draw(device: torch.device) -> Tensors:
        picked = torch.randint(vocabulary, (rows,), device=device)
        if rows > 2:
            picked[1], picked[2] = -100, vocabulary + 3
        return {"ids": picked}

    return draw


def infinities(tensors: Tensors) -> None:
    """Make one row all -inf, and the first chunk of every piece of another."""
    logits = tensors["logits"]
    if logits.shape[0] > 5:
        logits[3] = -math.inf
        logits[4, :300] = -math.inf
        logits[5, ::7] = -math.inf


def scored(rows: int, vocabulary: int, scalars: dict[str, float] = BASE, **options: object) -> Case:
    """A logp call on logits of about N(0, 3^2)."""
    drawn = ids(rows, vocabulary)
    sampled = None if rows <= 8 else (0, 1, 2, 3, 4, 5, rows // 2, rows - 1)
    made = {"T": rows, "V": vocabulary}
    fixed = {"scale": 3.0, "given": drawn, "edit": infinities, "rows": sampled}
    return Case(logp, made, scalars, **{**fixed, **options})  # type: ignore[arg-type]


def linear(
    tokens: int, depth: int, vocabulary: int, scalars: dict[str, float] = BASE, **options: object
) -> Case:
    """A linear_logp call whose scores are of about N(0, depth / 400)."""
    made = {"T": tokens, "D": depth, "V": vocabulary}
    fixed = {"edit": _smaller_weight, "given": ids(tokens, vocabulary), "changes": DOT_CHANGES}
    return Case(linear_logp, made, scalars, **{**fixed, **options})  # type: ignore[arg-type]


def _smaller_weight(tensors: Tensors) -> None:
    tensors["weight"] *= 0.05


def linear_gradient(
    tokens: int, depth: int, vocabulary: int, scalars: dict[str, float] = BASE, **options: object
) -> Case:
    """The gradient of a linear_logp call to both factors: the oracle needs every row for that of weight."""
    fixed = {
        "wanted": ("hidden", "weight"),
        "extra": compacted,
        "cotangents": ("logp",),
    }
    return linear(tokens, depth, vocabulary, scalars, **{**fixed, **options})


def product_gradient(tokens: int, n: int, k: int, **options: object) -> Case:
    """All gradients of a product with bias and residual."""
    fixed = {
        "present": ("bias", "residual"),
        "wanted": ("x", "w", "bias", "residual"),
        "changes": DOT_CHANGES[:3],
    }
    return Case(matmul, {"T": tokens, "N": n, "K": k}, **{**fixed, **options})  # type: ignore[arg-type]


def backward_of_product(wanted: str, tokens: int, n: int, k: int) -> Case:
    """A rank's part of d x in 4 pieces, or d w onto a buffer."""
    statics = {"wants": (wanted,), "grad_leaves": 4, "partial": wanted == "x"}
    present = ("weight_grad",) if wanted == "w" else ()
    return Case(
        matmul_backward, {"T": tokens, "N": n, "K": k}, present=present, statics=statics,
        changes=DOT_CHANGES[:3],
    )  # fmt: skip


def grouped_product(
    counts: tuple[int, ...], n: int, k: int, op: Op = grouped_matmul, **options: object
) -> Case:
    """A product of rows sorted by expert, so many for each, or the sum of its gradient onto a buffer."""
    ends = torch.tensor(counts, dtype=torch.int32).cumsum(0).int()

    def drawn(device: torch.device) -> Tensors:
        return {"begin": (ends - torch.tensor(counts)).int().to(device), "end": ends.to(device)}

    extents = {"T": sum(counts), "E": len(counts), "N": n, "K": k}
    fixed = {"given": drawn, "changes": DOT_CHANGES}
    return Case(op, extents, **{**fixed, **options})  # type: ignore[arg-type]


def routed(op: Op, tokens: int, experts: int, k: int, width: int = 0, **options: object) -> Case:
    """A part of a layer of experts: k different experts of each token, and the rows of these pairs."""
    chosen = torch.rand(tokens, experts, generator=torch.Generator().manual_seed(0)).argsort(1)[:, :k]
    ids = chosen.sort(1).values
    found, order = ids.flatten().sort(stable=True)
    place = torch.argsort(order).view(tokens, k)
    offsets = torch.searchsorted(found, torch.arange(experts + 1))
    made = {"ids": ids, "order": order, "place": place, "offsets": offsets}
    read = {formal.name for formal in op.formals}

    def drawn(device: torch.device) -> Tensors:
        return {name: x.to(torch.int32).to(device) for name, x in made.items() if name in read}

    extents = {"T": tokens, "E": experts, "K": k, "R": tokens * k, "D": width, "O": experts + 1}
    options["statics"] = {"k": k, **options.get("statics", {})}  # type: ignore[dict-item]
    return Case(op, extents, given=drawn, **options)  # type: ignore[arg-type]


def compacted(saved: Tensors) -> Tensors:
    """Return what linear_logp's gradient reads beside its cotangents: active rows, then the others."""
    active = saved["ids"] != BASE["ignore_index"]
    if "mask" in saved:
        active = active & saved["mask"]
    return {"order": torch.argsort(~active, stable=True)}


def some_rows(tokens: int, vocabulary: int) -> Callable[[torch.device], Tensors]:
    """Draw ids, and a mask that lets two thirds of the rows count."""

    def draw(device: torch.device) -> Tensors:
        return ids(tokens, vocabulary)(device) | {"mask": torch.rand(tokens, device=device) < 0.66}

    return draw


def rows_of_tokens(device: torch.device) -> Tensors:
    """Three sequences of 700 tokens, two thirds of them active."""
    tokens = 2100
    active = torch.rand(tokens, device=device) < 0.66
    order = torch.argsort((~active).int(), stable=True).int()
    sequence = torch.arange(3, device=device).repeat_interleave(700).int()
    end = active.view(3, 700).sum(1).cumsum(0).int()
    begin = torch.cat((end[:1] * 0, end[:-1]))
    return {"active": active, "order": order, "sequence": sequence, "begin": begin, "end": end}


def grouped(saved: Tensors) -> Tensors:
    """Return what embedding's gradient reads beside its cotangent: tokens by id, and where each id lies."""
    picked = saved["ids"].long()
    order = torch.argsort(picked, stable=True)
    edges = torch.arange(WORDS + 1, device=picked.device)
    return {"order": order, "segments": torch.searchsorted(picked[order], edges)}


WORDS = 1000
CLIPPED = {"surrogate_least": 0.8, "surrogate_most": 1.2}
LOSSES = {
    "policy_loss": (policy_loss, {**CLIPPED, "beta": 0.1}),
    "policy_loss_of_sequences": (policy_loss_of_sequences, {**CLIPPED, "correction_high": 1.1}),
}
_LOSS: dict[str, Any] = {"extents": {"T": 2100, "S": 2100, "B": 3}, "scale": 0.3, "given": rows_of_tokens}


def token_ids(device: torch.device) -> Tensors:
    """4096 ids, most of a few words."""
    return {"ids": (WORDS * torch.rand(4096, device=device) ** 3).long()}


ROTATED = ("cos", "sin", "position_ids")


def positions(device: torch.device) -> Tensors:
    """Positions out of order."""
    return {"position_ids": torch.randint(512, (300,), device=device)}


def groups_of_samples(device: torch.device) -> Tensors:
    """4000 groups of 16 samples and 95 of one to 95, some constant, some samples not scored."""
    sizes = torch.cat((torch.full((4000,), 16), torch.arange(1, 96)))
    edges = torch.cat((torch.zeros(1, dtype=torch.int64), sizes.cumsum(0))).to(device)
    rewards = 1000 + 0.1 * torch.randn(int(edges[-1]), device=device)
    rewards[16:64], rewards[70:80] = 0.7, math.nan
    return {"rewards": rewards, "bounds": edges.unfold(0, 2, 1)}


def counted_tokens(device: torch.device) -> Tensors:
    """2100 tokens, two thirds of them active."""
    return {name: x for name, x in rows_of_tokens(device).items() if name != "sequence"}


def taken_rows(device: torch.device) -> Tensors:
    """3000 of 4096 rows, each taken once, and ten places that take none."""
    source = torch.randperm(4096, device=device)[:3000]
    source[40:50] = -1
    back = torch.full((4096,), -1, device=device)
    back[source[source >= 0]] = torch.nonzero(source >= 0).reshape(-1)
    return {"source": source, "back": back}


def regions_of_tokens(device: torch.device) -> Tensors:
    """4096 regions of 65536 tokens, two thirds of them active."""
    edges = torch.cat((torch.randint(65536, (4095,)), torch.tensor([0, 65536]))).sort().values.to(device)
    active = torch.rand(65536, device=device) < 0.66
    return {"active": active, "bounds": edges.unfold(0, 2, 1)}


def labels(device: torch.device) -> Tensors:
    """Return which of 3000 samples are desirable."""
    return {"desirable": torch.rand(3000, device=device) < 0.4}


def tokens_of_sequences(device: torch.device) -> Tensors:
    """300 sequences of 0 to 897 tokens, two thirds of them active."""
    edges = torch.cat((torch.zeros(1, dtype=torch.int64), (3 * torch.arange(300)).cumsum(0))).to(device)
    active = torch.rand(int(edges[-1]), device=device) < 0.66
    return {"active": active, "bounds": edges.unfold(0, 2, 1)}


GROUPS = {"N": 68560, "G": 4095, "E": 2}


def drawn(rows: int, vocabulary: int, *present: str, f: DType = DType.BF16) -> Case:
    """A draw of rows with many options, some without a finite score."""

    def draw(device: torch.device) -> Tensors:
        index = torch.arange(rows, device=device)
        scores = torch.empty(rows, vocabulary, dtype=TORCH_DTYPES[f], device=device).normal_(0.0, 3.0)
        if rows > 5:
            scores[3], scores[4, ::3], scores[5, 7 % vocabulary] = -math.inf, math.nan, math.inf
        top_p = torch.tensor((0.9, 1.0, 0.5, 0.999, 0.0), device=device)
        every = {
            "inv_temperature": torch.tensor((1.0, 1 / 0.7, math.inf, 0.5), device=device)[index % 4],
            "top_k": torch.tensor((50, 0, 1, 1500, 5, 1 << 20), device=device)[index % 6].int(),
            "top_p": top_p[index % 5],
            "min_p": torch.tensor((0.0, 0.0, 0.05), device=device)[index % 3],
        }
        who = {"seed": index + (1 << 40), "request_id": index * 7, "position": index + (1 << 33)}
        return {"scores": scores, "blocks": scores, **who} | {name: every[name] for name in present}

    repeated = None if rows <= 8 else (0, 1, 2, 3, 4, 5, rows // 2, rows - 1)
    made = {"T": rows, "W": vocabulary, "U": vocabulary}
    return Case(sample, made, present=present, given=draw, rows=repeated, f=f, changes=WIDE_CHANGES)


def kept(rows: int, vocabulary: int, listed: bool) -> Callable[[torch.device], Tensors]:
    """Draw ids, and a support as a threshold or as a mask."""

    def draw(device: torch.device) -> Tensors:
        if listed:
            words = torch.randint(-(1 << 31), 1 << 31, (rows, -(-vocabulary // 32)), device=device).int()
            return ids(rows, vocabulary)(device) | {"words": words}
        last = torch.randint(vocabulary, (rows,), device=device).int()
        return ids(rows, vocabulary)(device) | {"threshold": torch.randn(rows, device=device), "last": last}

    return draw


def counted(rows: int, vocabulary: int) -> Callable[[torch.device], Tensors]:
    """Draw how often tokens were generated, and which are in the prompt."""

    def draw(device: torch.device) -> Tensors:
        counts = torch.randint(-3, 4, (rows, vocabulary), device=device).clamp(min=0).int()
        return {"counts": counts, "prompt": torch.rand(rows, vocabulary, device=device) < 0.1}

    return draw


CASES: dict[str, Case] = {
    "sample 64 x 151936, top-k and top-p": drawn(64, 151936, "top_k", "top_p"),
    "sample 256 x 151936, every option": drawn(256, 151936, "inv_temperature", "top_k", "top_p", "min_p"),
    "sample 7 x 50257 f32, every option": drawn(
        7, 50257, "inv_temperature", "top_k", "top_p", "min_p", f=DType.F32
    ),
    "sample 7 x 3001 f16": drawn(7, 3001, f=DType.F16),
    "sample 6 x 5, top-p": drawn(6, 5, "top_p"),
    "logp 64 x 50257, above a threshold": scored(
        64, 50257, WARM, present=("threshold", "last"), given=kept(64, 50257, False)
    ),
    "logp 64 x 50257, of a mask, all results": scored(
        64, 50257, statics={"needs": ALL}, present=("words",), given=kept(64, 50257, True)
    ),
    "logp_grad 64 x 50257, above a threshold": scored(
        64, 50257, WARM, present=("threshold", "last"), given=kept(64, 50257, False), wanted=("logits",)
    ),
    "penalize 64 x 50257": Case(
        penalize, {"T": 64, "V": 50257}, present=("prompt",), given=counted(64, 50257)
    ),
    **ATTENDED,
    "logp 7 x 50257": scored(7, 50257),
    "logp 1 x 128256": scored(1, 128256),
    "logp 8192 x 128256": scored(8192, 128256),
    "logp 8192 x 128256, entropy, temperature": scored(
        8192, 128256, WARM, statics={"needs": ("logp", "entropy")}
    ),
    "logp 300 x 151936": scored(300, 151936),
    "logp 64 x 50257, all results": scored(64, 50257, WARM, statics={"needs": ALL}),
    "logp 16 x 32000 f32, all steps": scored(16, 32000, {**WARM, **SOFTCAP}, f=DType.F32, present=("bias",)),
    "logp 16 x 3001 f16, one piece short": scored(16, 3001, f=DType.F16),
    "logp 6 x 5": scored(6, 5),
    # chunks that start between vectors
    "logp 1100 x 50257, all results": scored(1100, 50257, WARM, statics={"needs": ALL}),
    "logp 1030 x 32001 f32": scored(1030, 32001, {**WARM, **SOFTCAP}, f=DType.F32, present=("bias",)),
    "logp 1029 x 8211 f16": scored(1029, 8211, f=DType.F16),
    "logp_grad 8192 x 128256": scored(8192, 128256, wanted=("logits",), cotangents=("logp",)),
    "logp_grad 300 x 50257, all cotangents": scored(
        300, 50257, WARM, statics={"needs": ("logp", "entropy")}, wanted=("logits",)
    ),
    "logp_grad 16 x 32000 f32, all steps": scored(
        16,
        32000,
        {**WARM, **SOFTCAP},
        f=DType.F32,
        present=("bias",),
        wanted=("logits",),
        cotangents=("logp", "lse"),
    ),
    "linear_logp 300 x 4096 x 50257": linear(300, 4096, 50257, rows=(0, 1, 2, 3, 299)),
    "linear_logp 8192 x 512 x 5003, entropy, temperature": linear(
        8192, 512, 5003, WARM, statics={"needs": ("entropy",)}, rows=(0, 1, 2, 3, 4096, 8191)
    ),
    "linear_logp 16 x 72 x 3001 f16, all steps": linear(
        16, 72, 3001, {**WARM, **SOFTCAP}, f=DType.F16, present=("bias",)
    ),
    **{
        f"linear_logp_grad {n} x 512 x {v}": linear_gradient(n, 512, v, changes=DOT_CHANGES[:few])
        for n, v, few in (
            (1, 5003, 2),
            (7, 5003, 2),
            (300, 5003, None),
            (1, 50257, 2),
            (7, 50257, 2),
            (300, 50257, 2),
        )
    },
    "linear_logp_grad 130 x 72 x 3001 f16, all steps, all cotangents": linear_gradient(
        130,
        72,
        3001,
        {**WARM, **SOFTCAP},
        f=DType.F16,
        present=("bias", "mask"),
        statics={"needs": ("entropy",)},
        given=some_rows(130, 3001),
        cotangents=None,
        changes=DOT_CHANGES[:2],
    ),
    "linear_logp_grad 20000 x 64 x 100, three pieces of rows": linear_gradient(
        20000, 64, 100, changes=DOT_CHANGES[:3]
    ),
    "linear_logp_grad 5 x 16 x 3": linear_gradient(5, 16, 3, changes=DOT_CHANGES[:2]),
    "linear_logp 130 x 72 x 3001, entropy, kept logits": linear(
        130, 72, 3001, WARM, statics={"needs": ("entropy",), "keep": True}
    ),
    "linear_logp_grad 130 x 72 x 3001, kept logits": linear_gradient(
        130, 72, 3001, WARM, statics={"keep": True}, changes=DOT_CHANGES[:3]
    ),
    "matmul_leaf8 64 x 300 x 1000, bias and residual": Case(
        matmul_leaf8, {"T": 64, "N": 300, "K": 1000}, present=("bias", "residual")
    ),
    "matmul_leaf8 7 x 33 x 41 f16, f32 out": Case(
        matmul_leaf8,
        {"T": 7, "N": 33, "K": 41},
        statics={"keep_f32": True},
        f=DType.F16,
        changes=DOT_CHANGES[:2],
    ),
    "matmul_leaf8 1500 x 64 x 520, piece after piece": Case(
        matmul_leaf8, {"T": 1500, "N": 64, "K": 520}, changes=DOT_CHANGES[:3]
    ),
    "matmul 300 x 1000 x 520, bias and residual": Case(
        matmul, {"T": 300, "N": 1000, "K": 520}, present=("bias", "residual")
    ),
    "matmul 7 x 33 x 41 f16, f32 out": Case(
        matmul, {"T": 7, "N": 33, "K": 41}, statics={"keep_f32": True}, f=DType.F16
    ),
    "matmul 300 x 1000 x 520, a rounded product and a residual": Case(
        matmul, {"T": 300, "N": 1000, "K": 520}, present=("residual",), statics={"round_product": True}
    ),
    "matmul_leaf2 300 x 1000 x 520, bias": Case(
        matmul_leaf2, {"T": 300, "N": 1000, "K": 520}, present=("bias",)
    ),
    "grouped_matmul of 6 experts": grouped_product((3, 0, 300, 1, 140, 0), 272, 520, present=("bias",)),
    "grouped_matmul_leaf4 of 6 experts": grouped_product(
        (3, 0, 300, 1, 140, 0), 272, 512, grouped_matmul_leaf4, present=("bias",)
    ),
    "grouped_matmul_leaf8_grad of 3 experts, 4 pieces of N": grouped_product(
        (3, 0, 300), 256, 512, grouped_matmul_leaf8, wanted=("x", "w"), statics={"grad_leaves": 4}
    ),
    "grouped_matmul of 2 experts, f32 out": grouped_product(
        (7, 33), 33, 41, statics={"keep_f32": True}, f=DType.F16
    ),
    "grouped_matmul_grad of 6 experts": grouped_product(
        (3, 0, 300, 1, 140, 0),
        272,
        520,
        present=("bias",),
        wanted=("x", "w", "bias"),
        changes=DOT_CHANGES[:3],
    ),
    "grouped_matmul_grad of a long expert": grouped_product(
        (5, 8200), 64, 104, wanted=("x", "w"), changes=DOT_CHANGES[:1]
    ),
    "choose_experts 300 x 128": routed(choose_experts, 300, 128, 8),
    "choose_experts 70 x 256, biased groups": routed(
        choose_experts,
        70,
        256,
        8,
        present=("bias",),
        statics={"score": "sigmoid", "groups": 8, "kept_groups": 4},
    ),
    "choose_experts 33 x 60, 6 of the best groups": routed(
        choose_experts, 33, 60, 6, statics={"groups": 4, "kept_groups": 2, "group_score": "max"}
    ),
    "expert_weights 300 x 128": routed(expert_weights, 300, 128, 8, scalars={"scale": 2.5}),
    "expert_weights_grad 300 x 128": routed(
        expert_weights, 300, 128, 8, scalars={"scale": 2.5}, wanted=("scores",)
    ),
    "expert_weights_grad 33 x 60, sigmoid, not renormalised": routed(
        expert_weights,
        33,
        60,
        6,
        scalars={"scale": 1.0},
        wanted=("scores",),
        statics={"score": "sigmoid", "renormalize": False},
    ),
    "rows_by_expert 70 x 2048": routed(rows_by_expert, 70, 128, 8, 2048),
    "rows_by_expert_grad 70 x 2048": routed(rows_by_expert, 70, 128, 8, 2048, wanted=("x",)),
    "combine_rows 70 x 2048": routed(combine_rows, 70, 128, 8, 2048),
    "combine_rows 33 x 200, 4 leaves": routed(combine_rows, 33, 16, 6, 200, statics={"leaves": 4}),
    "combine_rows_grad 70 x 2048": routed(combine_rows, 70, 128, 8, 2048, wanted=("rows", "weights")),
    "matmul_grad 300 x 1000 x 520": product_gradient(300, 1000, 520),
    "matmul_grad 7 x 33 x 41 f16": product_gradient(7, 33, 41, f=DType.F16, changes=DOT_CHANGES[:2]),
    "matmul_grad 300 x 1040 x 200, 8 pieces": product_gradient(300, 1040, 200, statics={"grad_leaves": 8}),
    "matmul_grad 20000 x 64 x 100, three pieces of rows": product_gradient(20000, 64, 100),
    "matmul_backward 300 x 1040 x 200, a part of d x": backward_of_product("x", 300, 1040, 200),
    "matmul_backward 300 x 1000 x 520, d w onto a buffer": backward_of_product("w", 300, 1000, 520),
    "matmul_backward 20000 x 64 x 100, d w onto a buffer": backward_of_product("w", 20000, 64, 100),
    "rms_norm 32768 x 4096": Case(
        rms_norm, {"T": 32768, "N": 4096}, {"eps": 1e-6}, rows=(0, 1, 127, 128, 16384, 32767)
    ),
    "rms_norm 7 x 5000, odd width": Case(rms_norm, {"T": 7, "N": 5000}, {"eps": 1e-6}),
    "rms_norm 64 x 1536, gemma with residual": Case(
        rms_norm, {"T": 64, "N": 1536}, {"eps": 1e-6}, ("residual",), {"profile": "gemma"}
    ),
    "rms_norm 64 x 2048 f16, vllm with residual": Case(
        rms_norm, {"T": 64, "N": 2048}, {"eps": 1e-5}, ("residual",), {"profile": "vllm"}, DType.F16
    ),
    "rms_norm_grad 300 x 4096": Case(
        rms_norm, {"T": 300, "N": 4096}, {"eps": 1e-6}, wanted=("x", "weight"), cotangents=("y",)
    ),
    "rms_norm_grad 130 x 1536, residual": Case(
        rms_norm, {"T": 130, "N": 1536}, {"eps": 1e-6}, ("residual",), wanted=("x", "weight", "residual")
    ),
    "swiglu 300 x 14336": Case(swiglu, {"T": 300, "N": 14336}, rows=(0, 7, 299)),
    "swiglu_grad 64 x 2000": Case(swiglu, {"T": 64, "N": 2000}, wanted=("gate", "up")),
    "places_by_expert 4100 pairs": Case(
        places_by_expert,
        {"R": 4100, "P": 4100},
        given=lambda device: dict.fromkeys(
            ("ids", "others"), (torch.arange(4100, device=device) * 37 % 128).to(torch.uint8)
        ),
    ),
    "expert_offsets 4100 pairs": Case(
        expert_offsets,
        {"P": 4100, "O": 129},
        given=lambda device: {
            "ids": (torch.arange(4100, device=device) * 37 % 128).to(torch.uint8),
            "edges": torch.zeros(129, dtype=torch.int32, device=device),
        },
    ),
    "rms_norm 300 x 2880, gpt_oss with residual": Case(
        rms_norm, {"T": 300, "N": 2880}, {"eps": 1e-5}, ("residual",), {"profile": "gpt_oss"}
    ),
    "clamped_swiglu 300 x 2880": Case(
        clamped_swiglu, {"T": 300, "N": 2880, "G": 2}, {"limit": 1.0, "alpha": 1.702}
    ),
    "clamped_swiglu_grad 64 x 2880": Case(
        clamped_swiglu, {"T": 64, "N": 2880, "G": 2}, {"limit": 1.0, "alpha": 1.702}, wanted=("x",)
    ),
    "geglu 300 x 15360": Case(geglu, {"T": 300, "N": 15360}, rows=(0, 7, 299)),
    "geglu 64 x 2000, by erf": Case(geglu, {"T": 64, "N": 2000}, statics={"approximate": "none"}),
    "geglu_grad 64 x 2000": Case(geglu, {"T": 64, "N": 2000}, wanted=("gate", "up")),
    "geglu_grad 64 x 2000, by erf": Case(
        geglu, {"T": 64, "N": 2000}, statics={"approximate": "none"}, wanted=("gate", "up")
    ),
    "rope_partial 300 x 32 x 128": Case(
        rope_partial, {"T": 300, "H": 32, "E": 128, "C": 32, "P": 512}, given=positions, rows=(0, 1, 150, 299)
    ),
    "rope_partial_grad 300 x 8 x 80, interleaved": Case(
        rope_partial,
        {"T": 300, "H": 8, "E": 80, "C": 16, "P": 512},
        statics={"interleaved": True, "copies": 3},
        given=positions,
        wanted=("x",),
    ),
    "qk_norm 300 x 32 x 128, rotated": Case(
        qk_norm,
        {"T": 300, "H": 32, "E": 128, "C": 64, "P": 512},
        {"eps": 1e-6},
        ROTATED,
        given=positions,
        rows=(0, 1, 150, 299),
    ),
    "qk_norm_grad 300 x 8 x 128, rotated": Case(
        qk_norm,
        {"T": 300, "H": 8, "E": 128, "C": 64, "P": 512},
        {"eps": 1e-6},
        ROTATED,
        given=positions,
        wanted=("x", "weight"),
    ),
    "qk_norm_grad 130 x 5 x 256, gemma": Case(
        qk_norm,
        {"T": 130, "H": 5, "E": 256},
        {"eps": 1e-6},
        statics={"profile": "gemma"},
        wanted=("x", "weight"),
    ),
    "rope 300 x 32 x 128": Case(
        rope, {"T": 300, "H": 32, "E": 128, "C": 64, "P": 512}, given=positions, rows=(0, 1, 150, 299)
    ),
    "rope_grad 300 x 8 x 64, interleaved": Case(
        rope,
        {"T": 300, "H": 8, "E": 64, "C": 32, "P": 512},
        statics={"interleaved": True},
        given=positions,
        wanted=("x",),
    ),
    "embedding 4096 x 512": Case(
        embedding, {"T": 4096, "V": WORDS, "D": 512}, given=token_ids, rows=(0, 1, 4095)
    ),
    "embedding_grad 4096 x 512": Case(
        embedding, {"T": 4096, "V": WORDS, "D": 512}, given=token_ids, wanted=("weight",), extra=grouped
    ),
    "ratio_kl 5000": Case(ratio_kl, {"T": 5000}, scale=0.5),
    "ratio_kl_grad 5000": Case(ratio_kl, {"T": 5000}, scale=0.5, wanted=("logp",)),
    **{f"{name} 2100": Case(op, scalars=numbers, **_LOSS) for name, (op, numbers) in LOSSES.items()},
    **{
        f"{name}_grad 2100": Case(op, scalars=numbers, wanted=("logp",), cotangents=("loss",), **_LOSS)
        for name, (op, numbers) in LOSSES.items()
    },
    **{
        f"group_advantage 4095 groups, {scale} {baseline}": Case(
            group_advantage,
            GROUPS,
            {"eps": 1e-4},
            statics={"scale": scale, "baseline": baseline},
            given=groups_of_samples,
        )
        for scale, baseline in (("group", "mean"), ("batch", "loo"), ("none", "loo"))
    },
    **{
        f"preference_loss{grad} 3000, {kind}": Case(
            preference_loss,
            {"P": 3000},
            {"beta": 0.3, **constants},
            ("ref_chosen", "ref_rejected"),
            {"kind": kind},
            wanted=("chosen", "rejected") if grad else (),
        )
        for kind, constants in (
            ("sigmoid", {"smoothing": 0.1, "margin": 0.2}),
            ("exo_pair", {"smoothing": 0.1}),
            ("apo_down", {}),
        )
        for grad in ("", "_grad")
    },
    **{
        f"kto_loss{grad} 3000": Case(
            kto_loss,
            {"P": 3000, "M": 1500},
            {"beta": 0.3, "desirable_weight": 1.3, "undesirable_weight": 0.8},
            ("other_logp", "other_ref_logp"),
            given=labels,
            wanted=("logp",) if grad else (),
        )
        for grad in ("", "_grad")
    },
    **{
        f"value_loss{grad} 2100": Case(
            value_loss,
            {"T": 2100, "S": 2100},
            {"clip": 0.2},
            ("old_values",),
            given=counted_tokens,
            wanted=("values",) if grad else (),
        )
        for grad in ("", "_grad")
    },
    **{
        f"entropy_bonus{grad} 2100": Case(
            entropy_bonus,
            {"T": 2100, "S": 2100},
            {"coef": 0.01},
            given=counted_tokens,
            wanted=("entropy",) if grad else (),
        )
        for grad in ("", "_grad")
    },
    "take_rows 3000 of 4096 x 128": Case(take_rows, {"T": 3000, "R": 4096, "D": 128}, given=taken_rows),
    "take_rows_grad 3000 of 4096 x 128": Case(
        take_rows, {"T": 3000, "R": 4096, "D": 128}, given=taken_rows, wanted=("x",)
    ),
    **{
        f"scatter_rewards 4096 regions, {at}": Case(
            scatter_rewards,
            {"N": 4096, "T": 65536, "E": 2},
            {"soft": 10.0, "buffer": 6.0, "factor": 0.5},
            ("costs",),
            {"at": at},
            given=regions_of_tokens,
        )
        for at in ("last", "all")
    },
    "gae 300 sequences": Case(
        gae,
        {"T": 134550, "B": 300, "E": 2},
        {"gamma": 0.99, "decay": 0.94},
        ("bootstrap",),
        given=tokens_of_sequences,
    ),
}
