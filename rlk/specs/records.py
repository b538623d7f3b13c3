"""Records of the operators that rlk ships: sizes and variant of their kernels, and inputs of their checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rlk.lang.record import Example, Record, Unshown, Values
from rlk.specs.advantage import gae, group_advantage, scatter_rewards, token_baseline, token_paths
from rlk.specs.attention import paged_attention, prefix_attention, varlen_attention
from rlk.specs.completions import sequence_logp
from rlk.specs.distill import jsd_loss
from rlk.specs.gated import clamped_swiglu
from rlk.specs.grouped import (
    grouped_matmul,
    grouped_matmul_leaf2,
    grouped_matmul_leaf4,
    grouped_matmul_leaf8,
    grouped_weight_grad,
)
from rlk.specs.heads import cache_qkv, qk_norm, qk_norm_partials, sum_of_heads, write_cache
from rlk.specs.linear_logp import (
    linear_logp,
    linear_logp_backward,
    linear_logp_join,
    linear_logp_scores,
)
from rlk.specs.logp import logp, softcapped
from rlk.specs.loss import ratio_kl
from rlk.specs.matmul import column_sums, matmul, matmul_backward, matmul_leaf2, matmul_leaf4, matmul_leaf8
from rlk.specs.model import embedding, geglu, rope, rope_partial, swiglu
from rlk.specs.moe import (
    choose_experts,
    combine_rows,
    expert_offsets,
    expert_weights,
    places_by_expert,
    router_losses,
    rows_by_expert,
)
from rlk.specs.norm import rms_norm
from rlk.specs.optim import adamw, square_sums
from rlk.specs.packing import reported, take_rows, take_whole
from rlk.specs.policy import (
    policy_covariance,
    policy_covariance_of_sequences,
    policy_loss,
    policy_loss_of_sequences,
)
from rlk.specs.preference import kto_loss, preference_loss
from rlk.specs.sampling import penalize, sample
from rlk.specs.value import entropy_bonus, nll_loss, value_loss

# --- inputs ------------------------------------------------------------------------------------------------


def _logp(rng: np.random.Generator) -> Values:
    ids = rng.integers(0, 3001, 6)
    ids[2] = -100
    logits, words = 3 * rng.normal(size=(6, 3001)), rng.integers(-(1 << 31), 1 << 31, (6, 94))
    for row, kept in enumerate(np.maximum(ids, 0)):
        logits[row, kept] = 1.0
        words[row, kept // 32] |= 1 << kept % 32
    words = words.astype(np.uint32).view(np.int32)
    threshold = _apart(logits, rng.normal(size=6))
    support = {"words": words, "threshold": threshold, "last": np.full(6, 3001, np.int32)}
    return support | {
        "ids": ids, "mask": np.array([True, True, True, False, True, True]), "ignore_index": -100,
        "inv_temperature": 1 / 0.7, "logit_scale": 1.5, "softcap": 20.0, "inv_softcap": 0.05,
        "logits": logits, "inv_temperature_row": rng.uniform(0.5, 2.0, 6),
    }  # fmt: skip


def _apart(rows: Any, near: Any) -> Any:
    """Return a value for each row, near the one given, in the widest of 64 gaps between the row's elements.

    A difference that moved an element across a threshold would measure a jump.
    """
    made = []
    for row, value in zip(np.sort(rows), near, strict=True):
        at = min(max(np.searchsorted(row, value) - 32, 0), len(row) - 65)
        gap = at + np.argmax(np.diff(row[at : at + 65]))
        made.append((row[gap] + row[gap + 1]) / 2)
    return np.array(made)


def _jsd_loss(rng: np.random.Generator) -> Values:
    return {
        "student_logits": 2 * rng.normal(size=(6, 3001)), "teacher_logits": 2 * rng.normal(size=(6, 3001)),
        "mask": np.array([True, True, False, True, True, True]), "beta": 0.3, "rest": 0.7,
        "inv_temperature": 1 / 0.7, "inv_temperature_row": rng.uniform(0.5, 2.0, 6),
    }  # fmt: skip


def _linear_logp(rng: np.random.Generator) -> Values:
    given = _logp(rng)
    del given["logits"]
    hidden, weight = rng.normal(size=(6, 40)), 0.4 * rng.normal(size=(3001, 40))
    return given | {
        "hidden": hidden,
        "weight": weight,
        "threshold": _apart(hidden @ weight.T, rng.normal(size=6)),
    }


def _linear_logp_backward(rng: np.random.Generator) -> Values:
    given = _linear_logp(rng)
    active = (given["ids"] != given["ignore_index"]) & given["mask"]
    rows = {n: rng.normal(size=6) for n in ("d_logp", "d_lse", "d_entropy")}
    saved = {"lse": 8.0 + rng.random(6), "entropy": 5.0 + rng.random(6)}
    kept = {"logits": rng.normal(size=(6, 3001)), "weight_grad": rng.normal(size=(3001, 40))}
    return given | rows | saved | kept | {"order": np.argsort(~active, kind="stable")}


def _linear_logp_join(rng: np.random.Generator) -> Values:
    given = {n: x for n, x in _logp(rng).items() if n in ("ids", "mask", "ignore_index")}
    state = {"m": rng.normal(size=(4, 6)), "s": rng.uniform(1, 9, (4, 6)), "hits": np.zeros((4, 6))}
    state["hits"][1] = rng.normal(size=6)
    return given | state | {"centred": -rng.uniform(0, 9, (4, 6)), "vocabulary": 3001}


def _linear_logp_gradient(saved: Mapping[str, Any]) -> Values:
    ids = np.asarray(saved["ids"])
    active = (ids != saved["ignore_index"]) & np.asarray(saved.get("mask", True))
    return {"order": np.argsort(~active, kind="stable")}


def policy_batch(rng: np.random.Generator, tokens: int = 1500, samples: int = 6) -> Values:
    """Draw tokens of sequences with gaps between them, log-probs of three policies near each other."""
    active = rng.random(tokens) < 0.7
    old = rng.normal(size=tokens) - 2.0
    sequence = np.sort(rng.integers(0, samples, tokens)).astype(np.int32)
    ends = np.cumsum(np.bincount(sequence[active], minlength=samples)).astype(np.int32)
    return {
        "active": active, "order": np.argsort(~active, kind="stable").astype(np.int32), "sequence": sequence,
        "begin": np.concatenate(([0], ends[:-1])).astype(np.int32), "end": ends,
        "advantages": rng.normal(size=samples), "logp": old + 0.3 * rng.normal(size=tokens), "old_logp": old,
        "rollout_logp": old + 0.05 * rng.normal(size=tokens),
        "token_weights": np.where(rng.random(tokens) < 0.2, 0.0, 1.5), "selected": rng.random(tokens) < 0.1,
    }  # fmt: skip


def _policy_loss(rng: np.random.Generator) -> Values:
    scalars = {"surrogate_least": 0.8, "surrogate_most": 1.2, "beta": 0.1, "correction_high": 1.1}
    return policy_batch(rng) | scalars


def _sample(rng: np.random.Generator) -> Values:
    scores = np.round(3 * rng.normal(size=(6, 2500)), 1).astype(np.float32).astype(np.float64)
    scores[1], scores[2, ::3], scores[3, 7] = -np.inf, np.nan, np.inf
    inverse = np.array([1.0, 0.5, 2.0, 1.0, np.inf, 1.3])
    return {
        "scores": scores, "blocks": scores, "seed": rng.integers(0, 1 << 62, 6), "request_id": np.arange(6),
        "position": rng.integers(0, 1 << 40, 6), "inv_temperature": inverse,
        "top_k": np.array([50, 0, 1, 3000, 7, 1500]), "top_p": np.array([0.9, 0.5, 1.0, 0.0, 0.3, 0.999]),
        "min_p": np.array([0.0, 0.1, 0.0, 0.0, 0.5, 0.001]),
    }  # fmt: skip


def _penalize(rng: np.random.Generator) -> Values:
    return {"counts": rng.poisson(0.5, (6, 301)), "logits": 3 * rng.normal(size=(6, 301))}


def _rope(rng: np.random.Generator) -> Values:
    angle = rng.uniform(0, 6, (9, 8))
    return {"x": rng.normal(size=(5, 3, 16)), "cos": np.cos(angle), "sin": np.sin(angle)}


def _rope_partial(rng: np.random.Generator) -> Values:
    angle = rng.uniform(0, 6, (9, 5))
    return {"x": rng.normal(size=(5, 3, 16)), "cos": np.cos(angle), "sin": np.sin(angle)}


def _heads(rng: np.random.Generator) -> Values:
    """Heads of q, k and v, and slots of a cache: one is padding, one outside of it."""
    angle = rng.uniform(0, 6, (9, 8))
    return {
        "x": rng.normal(size=(5, 3, 16)), "q": rng.normal(size=(5, 3, 16)),
        "qkv": rng.normal(size=(5, 7, 16)), "k": rng.normal(size=(5, 2, 16)),
        "k_cache": rng.normal(size=(3, 4, 2, 16)),
        "cos": np.cos(angle), "sin": np.sin(angle), "position_ids": np.array([0, 8, 3, 1, 3]),
        "slots": np.array([7, -1, 0, 12, 11]), "eps": 1e-6,
    }  # fmt: skip


def _embedding_gradient(saved: Mapping[str, Any]) -> Values:
    ids = np.asarray(saved["ids"])
    order = np.argsort(ids, kind="stable")
    return {"order": order, "segments": np.searchsorted(ids[order], np.arange(len(saved["weight"]) + 1))}


def _group_advantage(rng: np.random.Generator) -> Values:
    """Return groups of which the last has 64 chunks of 16, in a batch of two chunks of 1024.

    1500 rewards have no other structure; the laws took 16 s of CPU with them, and take 12.
    """
    edges = np.array([0, 7, 7, 8, 44, 1060])
    rewards = 3.0 + rng.normal(size=1060)
    rewards[8:44], rewards[50] = 0.7, np.nan
    lengths = rng.integers(0, 90, 1060)
    return {
        "rewards": rewards, "bounds": np.stack((edges[:-1], edges[1:]), -1), "eps": 1e-4, "lengths": lengths
    }  # fmt: skip


def _tokens(rng: np.random.Generator) -> Values:
    active = rng.random(1500) < 0.7
    order = np.argsort(~active, kind="stable").astype(np.int32)
    return {"active": active, "order": order, "clip": 0.3, "coef": 0.01}


def _tokens_of_sequences(rng: np.random.Generator) -> Values:
    names = ("order", "active", "sequence", "begin", "end")
    given = {name: x for name, x in policy_batch(rng).items() if name in names}
    weights = np.where(rng.random(len(given["active"])) < 0.2, 0.0, 1.5)
    return given | {"clip": 0.3, "normalizer": 7.0, "weights": weights}


def _sequence_logp(rng: np.random.Generator) -> Values:
    given = _tokens_of_sequences(rng)
    tails = {"untouched": np.array([0, 90, 150, 10**6, 170, -3]), "tail": 0.3}
    return given | tails | {"logp": -0.1 * rng.random(len(given["active"]))}


def _sequence_logp_gradient(saved: Mapping[str, Any]) -> Values:
    rank, ends = np.argsort(saved["order"]).astype(np.int32), saved["end"]
    owner = np.minimum(np.searchsorted(ends, rank, side="right"), len(ends) - 1).astype(np.int32)
    return {"rank": rank, "active": rank < ends[-1], "sequence": owner}


def _preference_gradient(saved: Mapping[str, Any]) -> Values:
    return {"back": np.argsort(saved["partner"]).astype(np.int32)} if "partner" in saved else {}


def _take_rows(rng: np.random.Generator) -> Values:
    source = rng.permutation(20)[:13]
    source[4] = -1
    back = np.full(20, -1)
    back[source[source >= 0]] = np.flatnonzero(source >= 0)
    return {"source": source, "back": back}


def _take_whole(rng: np.random.Generator) -> Values:
    return {"source": _take_rows(rng)["source"], "x": rng.integers(-9, 9, (20, 3))}


def _scatter_rewards(rng: np.random.Generator) -> Values:
    edges = np.array([0, 7, 7, 8, 44, 300])
    bounds = np.stack((edges[:-1], edges[1:]), -1)
    scalars = {"soft": 20.0, "buffer": 16.0, "factor": 0.5}
    return {"rewards": rng.normal(size=5), "active": rng.random(300) < 0.7, "bounds": bounds, **scalars}


def _gae(rng: np.random.Generator) -> Values:
    edges = np.array([0, 7, 7, 8, 44, 100])
    return {
        "values": rng.normal(size=100), "active": rng.random(100) < 0.7, "gamma": 0.99, "decay": 0.94,
        "bounds": np.stack((edges[:-1], edges[1:]), -1), "bootstrap": rng.normal(size=5),
    }  # fmt: skip


def _token_paths(rng: np.random.Generator) -> Values:
    edges = np.array([0, 7, 7, 8, 44, 100])
    return {
        "logp": -rng.exponential(size=100), "sum_pi_squared": rng.random(100),
        "active": rng.random(100) < 0.7, "bounds": np.stack((edges[:-1], edges[1:]), -1),
    }  # fmt: skip


def _token_baseline(rng: np.random.Generator) -> Values:
    edges, groups = np.array([0, 7, 7, 8, 44, 100]), np.array([0, 0, 2, 5])
    sequence = np.repeat(np.arange(5), np.diff(edges)).astype(np.int32)
    return {
        "path": rng.random(100), "active": rng.random(100) < 0.7, "sequence": sequence, "eps": 1e-8,
        "place": np.arange(100, dtype=np.int32) - edges[sequence].astype(np.int32),
        "order": np.arange(100, dtype=np.int32), "begin": edges[:-1].astype(np.int32),
        "end": edges[1:].astype(np.int32), "group": np.array([1, 1, 2, 2, 2], np.int32),
        "bounds": np.stack((groups[:-1], groups[1:]), -1),
    }  # fmt: skip


def _preference_loss(rng: np.random.Generator) -> Values:
    """Log-probs below those of the reference: odds need probabilities below 1."""
    logps = {n: rng.uniform(-9, -4, 60) for n in ("chosen", "rejected")}
    refs = {n: rng.uniform(-3, -1, 60) for n in ("ref_chosen", "ref_rejected")}
    tokens = {n: rng.integers(1, 5, 60) for n in ("chosen_tokens", "rejected_tokens")}
    partner = rng.permutation(60).astype(np.int32)
    ranks = {"partner": partner, "power": -0.5}
    return logps | refs | tokens | ranks | {"beta": 0.4, "smoothing": 0.1, "margin": 0.3, "tau": 0.7}


def _attention(rng: np.random.Generator) -> Values:
    queries, keys = np.array([0, 2, 2, 5]), np.array([0, 530, 531, 560])
    return {
        "q": rng.normal(size=(5, 1, 2, 12)), "k": rng.normal(size=(560, 1, 12)),
        "v": rng.normal(size=(560, 1, 10)), "begin_q": queries[:-1], "end_q": queries[1:],
        "begin_k": keys[:-1], "end_k": keys[1:], "scale": 0.3, "window": 70, "softcap": 20.0,
        "inv_softcap": 0.05,
    }  # fmt: skip


def _router_losses(rng: np.random.Generator) -> Values:
    ids = np.sort(np.argsort(rng.random((70, 12)), 1)[:, :3], 1)
    return {"scores": rng.normal(size=(70, 12)), "ids": ids, "given": rng.random(12), "tokens": 90.0}


def _places_by_expert(rng: np.random.Generator) -> Values:
    ids = rng.integers(0, 8, 270)
    return {"ids": ids, "others": ids}


def _expert_offsets(rng: np.random.Generator) -> Values:
    return {"ids": rng.integers(0, 8, 270), "edges": np.zeros(9)}


def _clamped_swiglu(rng: np.random.Generator) -> Values:
    x = 2 * rng.normal(size=(6, 24, 2))
    x[np.abs(np.abs(x) - 1.5) < 0.05] = 0.5  # a difference across the clamp would measure a bend
    return {"x": x, "limit": 1.5, "alpha": 1.702}


def _grouped_matmul(rng: np.random.Generator) -> Values:
    offsets = np.array([0, 3, 3, 20, 21, 40])
    return {
        "x": rng.normal(size=(40, 48)), "w": rng.normal(size=(5, 32, 48)), "begin": offsets[:-1],
        "end": offsets[1:], "bias": rng.normal(size=(5, 32)),
    }  # fmt: skip


def _grouped_leaves(rng: np.random.Generator) -> Values:
    return {
        "x": rng.normal(size=(20, 32)), "w": rng.normal(size=(3, 16, 32)), "begin": np.array([0, 3, 3]),
        "end": np.array([3, 3, 20]), "bias": rng.normal(size=(3, 16)),
    }  # fmt: skip


def _grouped_weight_grad(rng: np.random.Generator) -> Values:
    given = {n: v for n, v in _grouped_matmul(rng).items() if n not in ("w", "bias")}
    return given | {"d_y": rng.normal(size=(40, 32)), "weight_grad": rng.normal(size=(5, 32, 48))}


def _paged_attention(rng: np.random.Generator) -> Values:
    given = {n: x for n, x in _attention(rng).items() if n not in ("k", "v", "begin_k", "end_k")}
    pages = {"k_cache": rng.normal(size=(7, 32, 1, 12)), "v_cache": rng.normal(size=(7, 32, 1, 10))}
    table = rng.permutation(7)[np.arange(12).reshape(3, 4) % 7]
    return given | pages | {"block_table": table, "context_lens": np.array([70, 1, 29])}


def _prefix_attention(rng: np.random.Generator) -> Values:
    given = {n: x for n, x in _attention(rng).items() if n not in ("begin_k", "end_k")}
    prompts, keys = np.array([0, 530, 600]), np.array([0, 3, 4, 9])
    shared = np.stack([prompts[:-1], prompts[1:]])[:, [0, 0, 1]]
    return given | {
        "k_prefix": rng.normal(size=(600, 1, 12)), "v_prefix": rng.normal(size=(600, 1, 10)),
        "begin_prefix": prompts[:-1], "end_prefix": prompts[1:], "begin_asks": np.array([0, 2]),
        "end_asks": np.array([2, 5]), "begin_shared": shared[0], "end_shared": shared[1],
        "begin_k": keys[:-1], "end_k": keys[1:], "place": np.array([531, 532, 72, 73, 74]), "window": 600,
    }  # fmt: skip


def _adamw(rng: np.random.Generator) -> Values:
    drawn = {"exp_avg_sq": rng.random(1500), "kept": 0.99, "rest1": 0.1, "beta2": 0.99, "rest2": 0.01}
    drawn |= {"rate": -1e-2, "root": 0.3, "eps": 1e-8, "seed": 3 << 33, "step": 4, "parameter": 2}
    return drawn | {"first": 5 << 31, "width": 40, "stride": 100}


def _chosen() -> Values:
    """Two of 16 experts of each token, ascending, and the rows of these pairs sorted by expert."""
    ids = np.sort(np.argsort(np.random.default_rng(0).random((7, 16)))[:, :2]).astype(np.int32)
    order = np.argsort(ids.ravel(), kind="stable").astype(np.int32)
    return {
        "ids": ids, "order": order, "place": np.argsort(order).astype(np.int32).reshape(ids.shape),
        "offsets": np.searchsorted(ids.ravel()[order], np.arange(17)).astype(np.int32),
    }  # fmt: skip


def _choose_experts(rng: np.random.Generator) -> Values:
    scores = np.round(2 * rng.normal(size=(7, 12)), 1)
    scores[1, 4], scores[2], scores[3, ::3] = np.nan, -np.inf, -np.inf
    return {"scores": scores, "bias": rng.normal(size=12)}


def _expert_weights(rng: np.random.Generator) -> Values:
    return {"scores": 2 * rng.normal(size=(7, 16)), "ids": _chosen()["ids"], "scale": 2.5}


def _rows_inputs(rng: np.random.Generator) -> Values:
    return _moved({}) | {"x": rng.normal(size=(7, 40)), "rows": rng.normal(size=(14, 40))}


def _moved(saved: Mapping[str, Any]) -> Values:
    return {name: x for name, x in _chosen().items() if name != "ids"}


# --- records: extents are those of a model with 4096 hidden units -----------------------------------------

_HEADS = {"H": 8, "G": 4, "E": 128, "W": 128}
_EDGES = {"E": 2}  # begin and end of a segment
_LONG = Unshown("too long to be read")
_SAME = Unshown("shows nothing that others do not show")

logp.record = Record(
    example=Example(
        _logp,
        present=(("inv_temperature", "mask"), ("threshold", "last")),
        statics={"needs": (("logp",), ("logp", "entropy", "argmax", "lse2"))},
    ),
    extents={"V": 128256},
    present=("inv_temperature",),
    statics={"needs": ("logp", "entropy")},
)
softcapped.record = Record(
    example=Example(lambda rng: {"softcap": 20.0, "inv_softcap": 0.05}),
    extents={"V": 128256}, unshown=(_SAME,),
)  # fmt: skip
linear_logp.record = Record(
    example=Example(
        _linear_logp,
        _linear_logp_gradient,
        present=(("inv_temperature", "mask"),),
        statics={"needs": ((), ("entropy",))},
    ),
    extents={"V": 128256},
    present=("inv_temperature",),
    statics={"needs": ("entropy",)},
)
linear_logp_backward.record = Record(
    example=Example(
        _linear_logp_backward,
        present=(("d_logp", "inv_temperature", "mask"), ("d_lse", "weight_grad")),
        statics={"wants": (("hidden", "weight"), ("hidden",))},
    ),
    unshown=(_SAME,),
)
linear_logp_scores.record = Record(
    example=Example(_linear_logp_backward, present=(("d_logp", "inv_temperature", "mask"),)), unshown=(_SAME,)
)
linear_logp_join.record = Record(example=Example(_linear_logp_join, present=(("mask",),)), unshown=(_SAME,))
jsd_loss.record = Record(example=Example(_jsd_loss, present=(("inv_temperature", "mask"),)), unshown=(_SAME,))
sample.record = Record(
    example=Example(_sample, present=(("top_k",), ("top_p",), ("inv_temperature", "top_k", "top_p"))),
    extents={"T": 256, "W": 151936, "U": 151936},
    present=("inv_temperature", "top_k", "top_p", "min_p"),
    unshown=(_LONG,),
)
penalize.record = Record(
    example=Example(_penalize), extents={"V": 151936}, present=("prompt",), unshown=(_SAME,)
)

matmul.record = Record(extents={"N": 14336}, present=("residual",))
matmul_leaf8.record = Record(
    unshown=(replace(_SAME, backend="triton"), replace(_SAME, program="gradient")),
)
for _op in (column_sums, matmul_leaf2, matmul_leaf4, matmul_backward):
    _op.record = Record(unshown=(_SAME,))
grouped_matmul.record = Record(
    example=Example(_grouped_matmul, present=((), ("bias",)), statics={"grad_leaves": (4,)}),
    extents={"E": 128, "N": 1536, "K": 2048},
    unshown=(_SAME,),
)
for _op in (grouped_matmul_leaf2, grouped_matmul_leaf4, grouped_matmul_leaf8):
    _op.record = Record(example=Example(_grouped_leaves), unshown=(_SAME,))
grouped_weight_grad.record = Record(example=Example(_grouped_weight_grad), unshown=(_SAME,))
rms_norm.record = Record(
    example=Example(lambda rng: {"eps": 1e-6}), extents={"N": 4096}, present=("residual",)
)
swiglu.record = Record(extents={"N": 12288})
geglu.record = Record(extents={"N": 12288})
clamped_swiglu.record = Record(
    example=Example(_clamped_swiglu), extents={"N": 2880, "G": 2}, unshown=(_SAME,)
)
rope_partial.record = Record(example=Example(_rope_partial), extents={"C": 32}, unshown=(_SAME,))
rope.record = Record(example=Example(_rope), unshown=(replace(_SAME, program="gradient"),))
_ROTATED = ("cos", "sin", "position_ids")
qk_norm.record = Record(
    example=Example(
        _heads,
        present=((), _ROTATED),
    ),
    extents={"H": 32, "E": 128, "C": 64},
    present=_ROTATED,
)
qk_norm_partials.record = Record(example=Example(_heads, present=((), _ROTATED)), unshown=(_SAME,))
sum_of_heads.record = Record(unshown=(_SAME,))
write_cache.record = Record(
    example=Example(_heads, present=(("v", "v_cache"), (*_ROTATED, "v", "v_cache"))), unshown=(_SAME,)
)
cache_qkv.record = Record(
    example=Example(_heads, present=((), _ROTATED, (*_ROTATED, "q_weight", "k_weight"))),
    extents={"J": 48, "H": 32, "G": 8, "E": 128, "C": 64},
    present=(*_ROTATED, "q_weight", "k_weight"),
)
choose_experts.record = Record(
    example=Example(_choose_experts, present=((), ("bias",)), statics={"groups": (1, 4), "k": (2, 3)}),
    extents={"E": 128},
    statics={"k": 8},
)
expert_weights.record = Record(example=Example(_expert_weights), extents={"E": 128, "K": 8}, statics={"k": 8})
router_losses.record = Record(
    example=Example(_router_losses, present=(("active",),), statics={"k": (3,)}),
    extents={"E": 128, "K": 8},
    statics={"k": 8},
    unshown=(_SAME,),
)
combine_rows.record = Record(
    example=Example(_rows_inputs, _moved), extents={"K": 8, "D": 2048, "O": 129}, statics={"k": 8}
)
places_by_expert.record = Record(example=Example(_places_by_expert), unshown=(_SAME,))
expert_offsets.record = Record(example=Example(_expert_offsets), unshown=(_SAME,))
rows_by_expert.record = Record(example=Example(_rows_inputs, _moved), unshown=(_SAME,))
embedding.record = Record(
    example=Example(lambda rng: {"ids": rng.integers(0, 11, 40)}, _embedding_gradient),
    extents={"V": 151936},
    unshown=(_SAME,),
)
varlen_attention.record = Record(
    example=Example(_attention, finite=("q", "k", "v")), extents={**_HEADS, "B": 8}
)
prefix_attention.record = Record(
    example=Example(_prefix_attention, finite=("v_prefix", "v")), extents={**_HEADS, "B": 64, "N": 8}
)
paged_attention.record = Record(
    example=Example(_paged_attention, finite=("v_cache",)),
    extents={**_HEADS, "B": 64, "T": 64, "P": 8192, "O": 64, "M": 128},
)

ratio_kl.record = Record(
    example=Example(
        lambda rng: {"logp": rng.normal(size=60) - 2.0}, straight={"kl": {"k1+": "k2", "k3+": "k2"}}
    ),
    unshown=(_SAME,),
)
policy_loss.record = Record(example=Example(_policy_loss))
policy_loss_of_sequences.record = Record(example=Example(_policy_loss), unshown=(_LONG,))
policy_covariance.record = Record(unshown=(_SAME,))
policy_covariance_of_sequences.record = Record(unshown=(_SAME,))
value_loss.record = Record(
    example=Example(_tokens_of_sequences, present=(("old_values", "clip"),)),
    present=("old_values", "clip"),
    unshown=(_SAME,),
)
nll_loss.record = Record(example=Example(_tokens_of_sequences, present=(("weights",),)), unshown=(_SAME,))
entropy_bonus.record = Record(example=Example(_tokens), unshown=(_SAME,))
sequence_logp.record = Record(example=Example(_sequence_logp, _sequence_logp_gradient), unshown=(_SAME,))
preference_loss.record = Record(
    example=Example(_preference_loss, _preference_gradient, present=(("ref_chosen", "ref_rejected"),)),
    present=("ref_chosen", "ref_rejected"),
    unshown=(_SAME,),
)
kto_loss.record = Record(
    example=Example(lambda rng: {"beta": 0.3}), present=("other_logp", "other_ref_logp"), unshown=(_SAME,)
)

group_advantage.record = Record(example=Example(_group_advantage), extents=_EDGES, unshown=(_SAME,))
scatter_rewards.record = Record(
    example=Example(_scatter_rewards, present=(("costs",),)), extents=_EDGES, unshown=(_SAME,)
)
gae.record = Record(example=Example(_gae), extents=_EDGES, present=("bootstrap",), unshown=(_SAME,))
token_paths.record = Record(example=Example(_token_paths), extents=_EDGES, unshown=(_SAME,))
token_baseline.record = Record(example=Example(_token_baseline), extents=_EDGES, unshown=(_SAME,))
_PLACE = ("seed", "step", "parameter", "first", "width", "stride")
adamw.record = Record(
    example=Example(_adamw, present=((), ("master",), _PLACE)),
    present=("master",),
    unshown=(_SAME,),
)
square_sums.record = Record(unshown=(_SAME,))
take_rows.record = Record(example=Example(_take_rows), unshown=(_SAME,))
take_whole.record = Record(example=Example(_take_whole), unshown=(_SAME,))
reported.record = Record(unshown=(_SAME,))
