"""Calls of the CuTe lowering on a device: one form of every nest, at sizes that its copies allow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpu.attended import attention, paged
from gpu.calls import Case
from gpu.cases import CASES as EVERY
from gpu.cases import WARM, grouped_product, linear, linear_gradient

from rlk.ir.types import DType
from rlk.schedule.schedule import Schedule
from rlk.specs.grouped import grouped_weight_grad
from rlk.specs.matmul import matmul, matmul_backward, matmul_leaf8

ENTROPY = {"needs": ("entropy",)}
SHARED = (
    "swiglu 300 x 14336", "swiglu_grad 64 x 2000", "rope 300 x 32 x 128", "embedding 4096 x 512",
    "geglu 300 x 15360", "geglu_grad 64 x 2000, by erf", "clamped_swiglu 300 x 2880",
    "clamped_swiglu_grad 64 x 2880", "rope_partial 300 x 32 x 128",
    "rope_partial_grad 300 x 8 x 80, interleaved", "qk_norm 300 x 32 x 128, rotated",
    "qk_norm_grad 300 x 8 x 128, rotated", "qk_norm_grad 130 x 5 x 256, gemma",
    "ratio_kl 5000", "ratio_kl_grad 5000", "policy_loss_grad 2100", "logp 7 x 50257", "logp 1 x 128256",
    "logp 8192 x 128256, entropy, temperature", "logp 64 x 50257, all results",
    "logp 16 x 32000 f32, all steps", "logp 16 x 3001 f16, one piece short", "logp 6 x 5",
    "logp_grad 300 x 50257, all cotangents", "rms_norm 32768 x 4096", "rms_norm 7 x 5000, odd width",
    "rms_norm 64 x 1536, gemma with residual", "rms_norm 64 x 2048 f16, vllm with residual",
    "rms_norm_grad 300 x 4096", "rms_norm_grad 130 x 1536, residual", "embedding_grad 4096 x 512",
    "policy_loss 2100", "policy_loss_of_sequences 2100", "policy_loss_of_sequences_grad 2100",
    "sample 64 x 151936, top-k and top-p", "sample 7 x 50257 f32, every option",
    "sample 7 x 3001 f16", "logp 64 x 50257, above a threshold", "logp 64 x 50257, of a mask, all results",
    "logp_grad 64 x 50257, above a threshold", "penalize 64 x 50257",
    "group_advantage 4095 groups, group mean", "group_advantage 4095 groups, batch loo",
    "gae 300 sequences", "scatter_rewards 4096 regions, last", "scatter_rewards 4096 regions, all",
    "preference_loss 3000, sigmoid", "preference_loss_grad 3000, sigmoid", "preference_loss 3000, exo_pair",
    "kto_loss 3000", "kto_loss_grad 3000", "value_loss 2100", "value_loss_grad 2100", "entropy_bonus 2100",
    "take_rows 3000 of 4096 x 128", "take_rows_grad 3000 of 4096 x 128",
    "varlen_attention 8 x 4 heads of 128, one loop",
    "varlen_attention 8 x 4 heads of 64 f16, one loop, window",
    "varlen_attention_grad 2 x 4 heads of 128, ragged", "varlen_attention_grad 8 heads of 64 f16, window",
    "varlen_attention_grad 1 x 7 heads of 96, softcap and sinks", "paged_attention decode, one loop",
    "paged_attention decode, pieces apart", "varlen_attention 1 x 7 heads of 96, softcap and sinks",
    "varlen_attention 2 x 2 heads of 256", "varlen_attention 2 heads of 192 and 128, no mask",
    "varlen_attention_grad 2 x 2 heads of 256", "varlen_attention_grad 2 heads of 192 and 128, no mask",
    "prefix_attention 2 x 4 heads of 128", "prefix_attention decode of 8 heads of 64 f16, window",
)  # fmt: skip
"""Elements, rows, merges and column folds, from the calls of all lowerings."""


SOME = (0, 1, 8, 63)
"""Rows that the oracle repeats."""


def product(
    m: int, n: int, k: int, *present: str, leaf8: bool = False, f: DType = DType.BF16,
    rows: tuple[int, ...] | None = None,
) -> Case:  # fmt: skip
    spec = matmul_leaf8 if leaf8 else matmul
    return Case(spec, {"T": m, "N": n, "K": k}, present=present, f=f, rows=rows)


def gradient(wanted: str, m: int, n: int, k: int, pieces: int = 1, **options: object) -> Case:
    """The gradient of one factor of a product; pieces: of N, for d x."""
    onto = ("weight_grad",) if options.pop("onto", False) else ()
    statics = {"wants": (wanted,), "grad_leaves": pieces}
    return Case(matmul_backward, {"T": m, "N": n, "K": k}, present=onto, statics=statics, **options)  # type: ignore[arg-type]


ROUTED = (3, 0, 300, 1, 140, 0)
"""Rows of experts, more than one tile of some, none of others."""


CASES: dict[str, Case] = {
    "matmul 300 x 1024 x 512": product(300, 1024, 512),
    "matmul 1 x 4096 x 4096": product(1, 4096, 4096),
    "matmul 64 x 320 x 48 f16": product(64, 320, 48, f=DType.F16),
    "matmul 37 x 5120 x 512, 48 columns": product(37, 5120, 512),
    "matmul 500 x 25600 x 528, 160 columns": product(500, 25600, 528, rows=(*SOME, 128, 499)),
    "matmul 130 x 1000 x 496, bias and residual": product(130, 1000, 496, "bias", "residual"),
    "matmul_leaf8 64 x 320 x 1024, bias and residual": product(64, 320, 1024, "bias", "residual", leaf8=True),
    "matmul_leaf8 130 x 4096 x 1408, pieces in turn": product(
        130, 4096, 1408, leaf8=True, rows=(*SOME, 64, 129)
    ),
    "matmul_leaf8 500 x 4096 x 2048, pieces in turn": product(
        500, 4096, 2048, leaf8=True, rows=(*SOME, 127, 128, 499)
    ),
    "matmul_leaf8 70 x 8704 x 1024 f16, pieces in turn, bias": product(
        70, 8704, 1024, "bias", leaf8=True, f=DType.F16, rows=SOME
    ),
    "matmul_leaf8 200 x 8208 x 1024, pieces in turn, bias and residual": product(
        200, 8208, 1024, "bias", "residual", leaf8=True, rows=SOME
    ),
    "matmul_leaf8 64 x 14336 x 4096, pieces in turn": product(64, 14336, 4096, leaf8=True, rows=SOME),
    "d x of 300 x 1024 x 512": gradient("x", 300, 1024, 512),
    "d x of 1 x 1024 x 512": gradient("x", 1, 1024, 512),
    "d x of 20 x 1024 x 512, pieces side by side": gradient("x", 20, 1024, 512, 8),
    "d x of 500 x 2048 x 4096, pieces in turn": gradient("x", 500, 2048, 4096, 8, rows=(*SOME, 127, 499)),
    "d x of 8192 x 6144 x 4096, two pieces": gradient("x", 8192, 6144, 4096, 2, rows=(*SOME, 4096, 8191)),
    "d w of 300 x 1024 x 512": gradient("w", 300, 1024, 512),
    "d w of 1 x 512 x 1024 f16": gradient("w", 1, 512, 1024, f=DType.F16),
    "d w of 20000 x 64 x 256, three pieces of rows": gradient("w", 20000, 64, 256),
    "d w of 300 x 1024 x 512 onto a buffer": gradient("w", 300, 1024, 512, onto=True),
    "d w of 20000 x 64 x 256 onto a buffer": gradient("w", 20000, 64, 256, onto=True),
    "grouped_matmul of 6 experts, bias": grouped_product(ROUTED, 272, 528, present=("bias",), changes=None),
    "grouped_matmul of 8 experts of one row each": grouped_product((1,) * 8, 256, 512, changes=None),
    "grouped_matmul of 40 experts of few rows": grouped_product((0, 3, 9, 1, 20) * 8, 1088, 64, changes=None),
    "grouped_matmul of 8 experts of one row each, narrow tiles": grouped_product(
        (1,) * 8, 1536, 128, changes=None
    ),
    "grouped_matmul of 40 experts of few rows, clusters": grouped_product(
        (0, 30, 9, 1, 40) * 8, 1088, 64, changes=None
    ),
    "grouped_matmul of 30 experts of 40 rows": grouped_product((64, 7, 49) * 10, 192, 128, changes=None),
    "grouped_matmul of 4 experts, clusters": grouped_product((1040, 1, 1200, 1855), 2304, 64, changes=None),
    "grouped_matmul of 500 experts": grouped_product((1, 0, 4, 2, 3) * 100, 64, 64, changes=None),
    "grouped_matmul of 2 experts f16, f32 out": grouped_product(
        (7, 133), 48, 80, statics={"keep_f32": True}, f=DType.F16, changes=None
    ),
    "d x of 6 experts": grouped_product(ROUTED, 272, 528, wanted=("x",), changes=None),
    "d x of 40 experts of few rows": grouped_product(
        (0, 3, 9, 1, 20) * 8, 64, 1088, wanted=("x",), changes=None
    ),
    "d w of 6 experts": grouped_product(ROUTED, 272, 528, wanted=("w",), changes=None),
    "d w of a long expert": grouped_product((5, 8200), 64, 112, wanted=("w",), changes=None),
    "d w of 6 experts onto a buffer": grouped_product(ROUTED, 272, 528, op=grouped_weight_grad, changes=None),
    "linear_logp 1 x 64 x 3": linear(1, 64, 3),
    "linear_logp 300 x 4096 x 50257": linear(300, 4096, 50257, rows=(0, 1, 2, 3, 299)),
    "linear_logp 8192 x 512 x 5003, entropy, temperature": linear(
        8192, 512, 5003, WARM, statics=ENTROPY, rows=(0, 1, 2, 3, 4096, 8191)
    ),
    "linear_logp 16 x 64 x 3001 f16, bias": linear(16, 64, 3001, WARM, f=DType.F16, present=("bias",)),
    "linear_logp_grad 300 x 512 x 5120": linear_gradient(300, 512, 5120),
    "linear_logp_grad 300 x 512 x 5120, all cotangents": linear_gradient(
        300, 512, 5120, WARM, statics=ENTROPY, cotangents=None
    ),
    "linear_logp_grad 20000 x 64 x 256, three pieces of rows": linear_gradient(20000, 64, 256),
    "varlen_attention 4 x 4 heads of 128, empty sequences": attention(
        (300, 0, 70, 1) * 10, (300, 0, 1100, 900) * 10, (4, 4), 128, 128, sequences=4
    ),
    "varlen_attention 4 x 4 heads of 128, maxima that grow": attention(
        (300, 70) * 10, (1100, 900) * 10, (4, 4), 128, 128, {"scale": 1.0}, sequences=4
    ),
    "varlen_attention 8 x 2 heads of 96, softcap and sinks": attention(
        (130, 5, 300) * 5,
        (130, 777, 300) * 5,
        (8, 2),
        96,
        96,
        {"softcap": 20.0, "inv_softcap": 0.05},
        present=("sinks",),
        sequences=3,
    ),
    "varlen_attention 8 heads of 64, no mask": attention(
        (260,) * 12, (512, 700, 63) * 4, (8, 1), 64, 64, statics={"causal": False}, sequences=3
    ),
    "varlen_attention 4 x 4 heads of 256, empty sequences": attention(
        (300, 0, 70, 1) * 10, (300, 0, 1100, 900) * 10, (4, 4), 256, 256, sequences=4
    ),
    "varlen_attention 4 x 4 heads of 96, empty sequences": attention(
        (300, 0, 70, 300) * 10, (300, 0, 1100, 900) * 10, (4, 4), 96, 96, sequences=4
    ),
    "varlen_attention 4 x 4 heads of 64 f16, window, empty sequences": attention(
        (300, 0, 70, 300) * 10,
        (300, 0, 1100, 900) * 10,
        (4, 4),
        64,
        64,
        {"window": 333},
        f=DType.F16,
        sequences=4,
    ),
    "varlen_attention 8 heads of 80": attention((260, 40) * 12, (512, 700) * 12, (8, 1), 80, 80, sequences=3),
    "varlen_attention 8 heads of 112": attention(
        (260, 40) * 12, (512, 700) * 12, (8, 1), 112, 112, sequences=3
    ),
    "varlen_attention 2 x 2 heads of 256, softcap": attention(
        (150, 300), (700, 300), (2, 2), 256, 256, {"softcap": 20.0, "inv_softcap": 0.05}
    ),
    "paged_attention 2 x 8 heads of 256, chunked prefill": paged((900, 600), (100, 257), 16, (2, 8), 256),
    "varlen_attention_grad 2 x 4 heads of 256, ragged": attention(
        (300, 0, 70, 1), (300, 20, 310, 200), (2, 4), 256, 256, wanted=("q", "k", "v")
    ),
    "varlen_attention_grad 2 x 4 heads of 96, ragged": attention(
        (300, 0, 70, 1), (300, 20, 310, 200), (2, 4), 96, 96, wanted=("q", "k", "v")
    ),
    "varlen_attention_grad 4 heads of 80 and 112": attention(
        (150, 20, 1), (200, 20, 300), (4, 1), 80, 112, wanted=("q", "k", "v")
    ),
    "varlen_attention_grad 2 heads of 64 and 128, no mask": attention(
        (150, 20, 1), (200, 20, 300), (2, 1), 64, 128, statics={"causal": False}, wanted=("q", "k", "v")
    ),
    "paged_attention 8 x 4 heads of 128, chunked prefill": paged(
        (900, 600) * 6, (100, 257) * 6, 16, (8, 4), 128, 2
    ),
    "paged_attention 8 x 4 heads of 128, pages of 64": paged(
        (900, 600) * 6, (100, 257) * 6, 64, (8, 4), 128, 2
    ),
    "paged_attention 2 x 4 heads of 64, pages of 128": paged((900, 600), (100, 257), 128, (2, 4), 64),
    **{name: EVERY[name] for name in SHARED},
}

CHANGES: dict[str, Callable[[Schedule], Schedule]] = {
    "chosen": lambda s: s,
    "blocks alone": lambda s: replace(s, cluster=1),
    "two stages": lambda s: replace(s, stages=2) if s.stages > 1 else s,
    "groups of three, few blocks": lambda s: replace(s, group=3, programs=14) if s.programs else s,
    "nothing read early": lambda s: s if s.programs else replace(s, stages=1, unroll=1),
    "twice the threads": lambda s: s if s.programs else replace(s, warps=min(32, 2 * s.warps)),
}
"""Of schedules; the first is what a call runs."""
