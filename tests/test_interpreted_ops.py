"""The generated Triton source of every operator, interpreted on the CPU, has the bits of the oracle."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from edited_text import joined
from gpu.calls import CHANGES
from loss_cases import RECORDS
from sampling_cases import requests, scores

from rlk import Layout, ops
from rlk.errors import ScheduleError, UnsupportedError
from rlk.ops import Loss
from rlk.ops.losses import clip
from rlk.runtime.binding import candidates
from rlk.runtime.call import dispatch as runtime
from rlk.runtime.call.dispatch import dispatch
from rlk.schedule.schedule import Schedule
from rlk.testing.bits import assert_same_bits, differing
from rlk.testing.simulators.interpreter import interpret

ALL = ("logp", "lse", "entropy", "argmax", "lse2")
Lowered = Callable[..., Any]


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Leave the oracle in charge, whatever a test did."""
    before = dispatch.interpreter
    yield
    dispatch.interpret_with(before)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def flat(made: Any) -> list[torch.Tensor]:
    if isinstance(made, torch.Tensor):
        return [made]
    parts = made.values() if isinstance(made, dict) else made or ()
    return [x for part in parts for x in flat(part)]


def results(case: Case) -> list[torch.Tensor]:
    """Return every output and gradient of a call."""
    call, leaves = case
    given = [x.clone().requires_grad_() for x in leaves]
    made = flat(call(*given))
    smooth = [y for y in made if y.requires_grad]
    if smooth:
        cotangents = [normal(*y.shape, seed=i, dtype=y.dtype) for i, y in enumerate(smooth)]
        torch.autograd.backward(smooth, cotangents)
    return [*made, *(x.grad for x in given if x.grad is not None)]


def by_oracle(case: Case) -> list[torch.Tensor]:
    dispatch.interpret_with(None)
    return results(case)


def by_triton(case: Case) -> list[torch.Tensor]:
    dispatch.interpret_with(interpret)
    return results(case)


def compare(case: Case) -> None:
    for i, (a, b) in enumerate(zip(by_triton(case), by_oracle(case), strict=True)):
        assert_same_bits(a, b, f"result {i}")


Case = tuple[Callable[..., Any], list[torch.Tensor]]


# every operator


def logits(shape: tuple[int, ...], vocabulary: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Logits with a row of -inf, one whose first chunks are -inf, and one with a NaN."""
    made = 3 * normal(*shape, vocabulary).to(dtype)
    rows = made.reshape(-1, vocabulary)
    if len(rows) > 4:
        rows[1], rows[2, : vocabulary // 3], rows[3, vocabulary // 2] = -math.inf, -math.inf, math.nan
        rows[4, ::2] = -math.inf
    return made


def ids(shape: tuple[int, ...], vocabulary: int) -> torch.Tensor:
    """Ids with an ignored one, and one outside the vocabulary."""
    made = torch.randint(vocabulary, shape, generator=torch.Generator().manual_seed(1))
    flat_ids = made.reshape(-1)
    if len(flat_ids) > 5:
        flat_ids[0], flat_ids[5] = -100, vocabulary + 3
    return made


def scored(
    vocabulary: int,
    math_model: str,
    dtype: torch.dtype = torch.bfloat16,
    rows: tuple[int, ...] = (2, 4),
    **options: Any,
) -> Case:
    picked = ids(rows, vocabulary)

    def call(x: torch.Tensor) -> ops.LogProbs:
        made = ops.logp(x, picked, math=math_model, **options)  # type: ignore[arg-type]
        return made if made.lse2 is None else made._replace(lse2=made.lse2.detach())  # backward refuses it

    return call, [logits(rows, vocabulary, dtype)]


def every_step(vocabulary: int, model: str) -> Case:
    rows = (2, 4)
    mask = torch.tensor([[True, True, False, True]] * 2)
    return scored(
        vocabulary, model, torch.float32, rows, needs=ALL, softcap=5.0, logit_scale=0.5, mask=mask,
        bias=normal(vocabulary, seed=3), temperature=normal(*rows, seed=4).abs() + 0.5,
    )  # fmt: skip


def distilled(
    vocabulary: int, model: str, beta: float, dtype: torch.dtype = torch.bfloat16, **options: Any
) -> Case:
    """Students with odd rows, teachers that exclude other tokens; none of them infinitely far in reverse."""
    student, teacher = logits((2, 4), vocabulary, dtype), 3 * normal(2, 4, vocabulary, seed=9)
    teacher[0, 2, : vocabulary // 3], teacher[1, 1, ::3], teacher[1, 2] = -math.inf, -math.inf, math.nan
    mask = torch.tensor([[True, True, False, True]] * 2)
    return (
        lambda x: ops.jsd_loss(x, teacher, beta=beta, mask=mask, math=model, **options),  # type: ignore[arg-type]
        [student],
    )


def sliced(vocabulary: int, model: str) -> Case:
    picked = ids((3, 4), vocabulary)
    return (
        lambda x: ops.logp(x[:, :-1], picked[:, 1:], needs=("logp", "entropy"), math=model),
        [logits((3, 4), vocabulary, torch.float32)],
    )


def policy(record: Loss, tokens: int, per_token: bool = False) -> Case:
    lp = -normal(tokens).abs()
    old, ref = lp + 0.3 * normal(tokens, seed=1), lp + 0.3 * normal(tokens, seed=2)
    extra = {"ref_logp": ref, "rollout_logp": old + 0.1 * normal(tokens, seed=3)}
    extra["token_weights"] = (2 * normal(tokens, seed=8)).round() / 2
    mask = torch.rand(tokens, generator=torch.Generator().manual_seed(5)) < 0.8
    edges = torch.tensor([0, tokens // 3, tokens // 3, tokens - 3])
    layout = Layout.packed(edges, mask=mask, outside="padding")
    advantages = normal(tokens if per_token else 3, seed=6)

    def call(lp: torch.Tensor, entropy: torch.Tensor) -> Any:
        return ops.policy_loss(lp, old, advantages, layout=layout, loss=record, **extra, entropy=entropy)

    return call, [lp, normal(tokens, seed=7).abs()]


def rotated(interleaved: bool, dtype: torch.dtype, width: int = 32) -> Case:
    cos, sin = normal(10, width // 2), normal(10, width // 2, seed=1)
    options = {"interleaved": interleaved, "rotary_dim": width}
    position = torch.tensor([[0, 3, 9, 3, 1, 11], [5, 4, 3, 2, 1, 0]])
    return (
        lambda q, k: ops.rope(q, k, cos, sin, position_ids=position, **options),
        [normal(2, 6, 4, 32, dtype=dtype), normal(2, 6, 2, 32, dtype=dtype, seed=2)],
    )


def normed_heads(dtype: torch.dtype) -> Case:
    """Norms of q and of k inside what one product for q, k and v gave: their rows have two strides."""

    def call(qkv: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        q, k = qkv[..., :96].unflatten(-1, (6, 16)), qkv[..., 96:128].unflatten(-1, (2, 16))
        return [ops.rms_norm(q, w), ops.rms_norm(k, w)]

    return call, [normal(2, 35, 160, dtype=dtype), normal(16, dtype=dtype, seed=1)]


def normed(profile: str, residual: bool, dtype: torch.dtype, rows: int = 150, width: int = 96) -> Case:
    leaves = [normal(rows, width, dtype=dtype), normal(width, dtype=dtype, seed=1)]
    if not residual:
        return lambda x, w: ops.rms_norm(x, w, profile=profile), leaves  # type: ignore[arg-type]
    extra = normal(rows, width, dtype=dtype, seed=2)
    return lambda x, w, r: ops.rms_norm(x, w, residual=r, profile=profile), [*leaves, extra]  # type: ignore[arg-type]


def ratios(kl: str) -> Case:
    old, ref = normal(300, seed=1), normal(300, seed=2)
    mask = old > -1
    return lambda x: ops.ratio_kl(x, old, ref, mask=mask, kl=kl), [normal(300)]  # type: ignore[arg-type]


def embedded(dtype: torch.dtype) -> Case:
    picked = torch.randint(9, (4, 19), generator=torch.Generator().manual_seed(1))
    return lambda w: ops.embedding(picked, w), [normal(50, 48, dtype=dtype)]


def grouped(**options: Any) -> Case:
    """Groups of none, one, few and many; one constant, one with a reward that is missing."""
    rewards = 3 + normal(200)
    rewards[8:44], rewards[60] = 0.7, math.nan
    groups = torch.tensor([0, 7, 7, 8, 44, 121, 200])
    return lambda: ops.group_advantage(rewards, groups, **options), []


def compared(align: str, weighted: bool = False, tail: str = "zero") -> Case:
    """Tokens of groups of one, none, a few and more sequences than a chunk has, a third of them inactive."""
    lengths = torch.arange(24) * 7 % 40
    mask = torch.rand(24, 40, generator=torch.Generator().manual_seed(2)) < 0.66
    layout = Layout.padded(lengths, 40, mask=mask)
    rewards, logp = normal(24, 40), -normal(24, 40, seed=1).abs()
    given = {"rewards": rewards, "logp": logp, "sum_pi_squared": (2 * logp).exp() + 0.01}
    given |= {"rollout_weights": normal(24, 40, seed=3).abs()} if weighted else {}
    options = {"groups": torch.tensor([0, 1, 1, 5, 24]), "layout": layout, "align": align, "tail": tail}
    return lambda: ops.optimal_token_baseline(**given, **options), []  # type: ignore[arg-type]


def estimated(padded: bool) -> Case:
    """Tokens of sequences of none, one and many, a third of them inactive."""
    lengths = torch.tensor([70, 0, 1, 100, 9])
    mask = torch.rand(5, 100, generator=torch.Generator().manual_seed(2)) < 0.66
    valid = torch.arange(100) < lengths[:, None]
    given = [normal(5, 100, seed=s) for s in (0, 1)]
    layout = Layout.padded(lengths, 100, mask=mask)
    if not padded:
        given = [x[valid] for x in given]
        layout = Layout.packed(torch.tensor([0, 70, 70, 71, 171, 180]), mask=mask[valid])
    options = {"gamma": 0.99, "lam": 0.95, "bootstrap": normal(5, seed=3) if padded else None}
    return lambda: ops.gae(*given, layout=layout, **options), []  # type: ignore[arg-type]


def of_critic(clipped: bool) -> Case:
    mask = torch.rand(2500, generator=torch.Generator().manual_seed(5)) < 0.8
    layout = Layout.packed(torch.tensor([0, 900, 900, 2500]), mask=mask)
    returns, old = normal(2500, seed=1), normal(2500, seed=2) if clipped else None

    def call(values: torch.Tensor, entropy: torch.Tensor) -> Any:
        value = ops.value_loss(values, returns, layout=layout, old_values=old)
        return value, ops.entropy_bonus(entropy, layout=layout, coef=0.01)

    return call, [normal(2500), normal(2500, seed=3)]


def averaged(aggregation: str, sequences: str = "active") -> Case:
    """The critic's loss, and a likelihood with weights where that is a mean over tokens."""
    mask = torch.rand(2500, generator=torch.Generator().manual_seed(5)) < 0.8
    layout = Layout.packed(torch.tensor([0, 900, 900, 2500]), mask=mask)
    options: Any = {"layout": layout, "aggregation": aggregation, "sequences": sequences, "normalizer": 3.0}
    weights = (normal(2500, seed=3) * mask.roll(1)) if aggregation in ("token_mean", "sum") else None

    def call(values: torch.Tensor, logp: torch.Tensor) -> Any:
        value = ops.value_loss(values, normal(2500, seed=1), old_values=normal(2500, seed=2), **options)
        return value, ops.nll_loss(logp, weights=weights, **options)

    return call, [normal(2500), normal(2500, seed=4)]


def moved(dtype: torch.dtype) -> Case:
    """Rows of four numbers a token, packed and padded again on the other side."""
    lengths = torch.tensor([70, 0, 1, 100, 9])
    packed = Layout.packed(torch.tensor([0, 70, 70, 71, 171, 180]), tokens=180)
    left = Layout.padded(lengths, 103, side="left")
    return lambda x: ops.unpack(ops.pack(x, packed), left), [normal(5, 100, 4, dtype=dtype)]


def rewarded(**options: Any) -> Case:
    lengths = torch.tensor([70, 0, 1, 100, 9])
    mask = torch.rand(5, 100, generator=torch.Generator().manual_seed(2)) < 0.66
    layout = Layout.padded(lengths, 100, side="left", mask=mask)
    offsets = torch.tensor([0, 33, 70, 71, 71, 171, 175, 180])
    given = {"layout": layout, "costs": normal(7, seed=1), "overlong": ops.Overlong(80, 40, 0.5)}
    return lambda: ops.scatter_rewards(normal(7), offsets, **given, **options), []


def preferred(name: str, **options: Any) -> Case:
    """Pairs in two chunks, of log-probs below those of the reference."""
    chosen, rejected = (-4 - normal(1100, seed=s).abs() for s in (0, 1))
    refs = [-normal(1100, seed=s).abs() for s in (2, 3)] if name not in ("orpo", "alphapo") else []
    tokens = torch.arange(1100) % 7 + 1
    counts = {"chosen_tokens": tokens, "rejected_tokens": tokens + 1} if not name.startswith("aot") else {}

    def call(a: torch.Tensor, b: torch.Tensor) -> Any:
        return ops.preference_loss(a, b, *refs, loss=name, beta=0.3, **counts, **options)  # type: ignore[arg-type]

    return call, [chosen, rejected]


def summed(over: str, **options: Any) -> Case:
    mask = torch.rand(2500, generator=torch.Generator().manual_seed(5)) < 0.8
    layout = Layout.packed(torch.tensor([0, 900, 900, 2500]), mask=mask)
    return lambda x: ops.sequence_logp(x, layout=layout, over=over, **options), [-0.1 * normal(2500).abs()]  # type: ignore[arg-type]


def unpaired() -> Case:
    ref, other = normal(1100, seed=1), normal(300, seed=2)
    return lambda x: ops.kto_loss(x, ref, ref > 0, mismatched=(other + 0.3, other)), [normal(1100)]


LOWERED = (
    "gspo", "gmpo", "trl/vespo", "verl/sapo", "verl/cispo", "dppo_kl", "sequence, sequence_mean",
    "mask sequence, normalized", "truncate token, normalized", "rejected by k3 sum", "rejected by k2 max",
    "drift", "weighted means of sequences", "clip_cov of many", "kl_cov of many", "bypass", "sequence_mask",
    "prime/ref_kl",
)  # fmt: skip
"""Losses with every number that a sequence has, every metric, and most of the functions of surrogates."""


def drawn(vocabulary: int, dtype: torch.dtype, model: str, **options: Any) -> Case:
    """Tokens, log-probs and support of two rows with ties, one with a NaN, infinities and zeros."""
    x, who = scores(2, vocabulary, dtype), requests(2)
    return lambda: ops.sample(x, **who, math=model, **options), []


def crowded(vocabulary: int, dtype: torch.dtype) -> Case:
    """A row whose best five are in one lane of 1024, so that they are searched for."""
    x, who = scores(1, vocabulary, dtype), requests(1)
    x[:, 3::1024] = 20.0 + torch.arange(-(-(vocabulary - 3) // 1024)) / 4
    return lambda: ops.sample(x, **who, top_k=5, top_p=0.99, temperature=9.0), []


def restricted(vocabulary: int, model: str, listed: bool) -> Case:
    """Log-probs over a support, a threshold for each row or listed ids."""
    x, who = scores(3, vocabulary, torch.bfloat16, seed=1).nan_to_num(nan=0.0), requests(3)
    made = ops.sample(x, **who, top_k=40, math=model)
    support = made.support.to_csr(x) if listed else made.support
    return (
        lambda z: ops.logp(
            z, made.token, support=support, needs=("logp", "entropy"), temperature=0.7, math=model
        ),
        [x],
    )


BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
CASES: dict[str, Callable[[], Case]] = {
    **{
        f"logp {v} {m}{', all' if needs == ALL else ''}": lambda v=v, m=m, n=needs: scored(v, m, needs=n)
        for v in (1, 3, 7, 9, 257, 2049, 4800)
        for m in ("sm90", "portable")
        for needs in (("logp",), ALL)
    },
    **{
        f"{make.__name__} {v} {m}": lambda make=make, v=v, m=m: make(v, m)
        for make in (every_step, sliced)
        for v in (5, 2049)
        for m in ("sm90", "portable")
    },
    "logp f16": lambda: scored(2500, "sm90", F16, needs=ALL, temperature=0.7),
    "logp one row": lambda: scored(3000, "sm90", F32, rows=(1,), needs=ALL),
    "logp no dims": lambda: scored(300, "sm90", F32, rows=(), needs=ALL),
    **{
        f"jsd_loss {beta} {v} {m}": lambda beta=beta, v=v, m=m: distilled(v, m, beta)
        for beta in (0.0, 0.3, 1.0)
        for v in (3, 257, 2049)
        for m in ("sm90", "portable")
    },
    "jsd_loss f32, temperature": lambda: distilled(4800, "sm90", 0.5, F32, temperature=0.7),
    "jsd_loss f16, by row": lambda: distilled(
        2500, "portable", 0.9, F16, temperature=normal(2, 4, seed=4).abs() + 0.5
    ),
    **{
        f"rms_norm {p} {str(d)[6:]}{' residual' if r else ''}": lambda p=p, r=r, d=d: normed(p, r, d)
        for p in ("hf_llama", "gemma", "vllm")
        for d in (BF16, F32)
        for r in (False, True)
    },
    "rms_norm odd": lambda: normed("hf_llama", True, F16, 3, 1001),
    "rms_norm one": lambda: normed("gemma", False, F32, 1, 1),
    **{f"swiglu {str(d)[6:]}": lambda d=d: (ops.swiglu, [normal(7, 3, 96, seed=s, dtype=d) for s in (0, 1)])
       for d in (BF16, F16, F32)},
    **{f"geglu {a} {str(d)[6:]}": lambda a=a, d=d: (
        lambda gate, up: ops.geglu(gate, up, approximate=a),
        [normal(7, 3, 96, seed=s, dtype=d) for s in (0, 1)],
    ) for a in ("tanh", "none") for d in (BF16, F32)},
    **{f"rms_norm of heads {str(d)[6:]}": lambda d=d: normed_heads(d) for d in (BF16, F32)},
    **{f"rope {i} {w} of 32 {str(d)[6:]}": lambda i=i, d=d, w=w: rotated(i, d, w)
       for i, w, d in ((False, 16, BF16), (True, 10, F32), (False, 24, F32))},
    **{f"rope {i} {str(d)[6:]}": lambda i=i, d=d: rotated(i, d) for i in (False, True) for d in (BF16, F32)},
    **{f"embedding {str(d)[6:]}": lambda d=d: embedded(d) for d in (BF16, F32)},
    **{f"ratio_kl {kl}": lambda kl=kl: ratios(kl) for kl in ("k1", "k2", "k3", "abs", "k1+", "k3+")},
    "policy_loss ppo": lambda: policy(Loss(), 2500, per_token=True),
    "policy_loss, every term": lambda: policy(Loss(clip(dual=3.0), beta=0.1, entropy_coef=0.01), 2500),
    "sample, top-k and top-p": lambda: drawn(1300, BF16, "sm90", temperature=0.7, top_k=30, top_p=0.9),
    "sample, by row": lambda: drawn(
        1030, F16, "portable", temperature=torch.tensor([0.0, 1.5]), top_p=torch.tensor([1.0, 0.8])
    ),
    "sample, a crowded lane": lambda: crowded(4100, BF16),
    "sample of few": lambda: drawn(5, F32, "sm90", min_p=0.1),
    **{
        f"logp of {'ids' if i else 'a threshold'} {m}": lambda i=i, m=m: restricted(2049, m, i)
        for i in (False, True)
        for m in ("sm90", "portable")
    },
    "policy_loss of few": lambda: policy(Loss(beta=0.1, kl="k1+"), 9),
    "group_advantage": lambda: grouped(),
    "optimal_token_baseline": lambda: compared("position"),
    "optimal_token_baseline of active tokens": lambda: compared("active", weighted=True, tail="group"),
    "group_advantage loo batch": lambda: grouped(baseline="loo", scale="batch", eps_mode="inside"),
    **{
        f"preference_loss {name}": lambda name=name, given=given: preferred(name, **given)
        for name, given in (
            ("sigmoid", {"margin": 0.2}), ("robust", {"smoothing": 0.1}), ("exo_pair", {"smoothing": 0.1}),
            ("discopop", {}), ("apo_down", {}), ("orpo", {}), ("alphapo", {"alpha": 0.25}),
            ("aot", {"smoothing": 0.1}), ("aot_unpaired", {}),
        )
    },
    **{
        f"preference_loss of {name}": lambda name=name, alpha=alpha: preferred(
            "sigmoid", divergence=name, alpha=alpha, weights=normal(1100, seed=7)
        )
        for name, alpha in (("forward_kl", None), ("js", None), ("alpha", 0.3))
    },
    "kto_loss": unpaired,
    **{f"sequence_logp {over}": lambda over=over: summed(over) for over in ("sum", "mean", "probability")},
    "sequence_logp tail": lambda: summed("sum", shared=torch.tensor([300, 0, 1100]), tail=0.3),
    **{f"scatter_rewards {at}": lambda at=at: rewarded(at=at) for at in ("last", "all")},
    "pack, unpack": lambda: moved(F32),
    "pack, unpack bfloat16": lambda: moved(BF16),
    "value_loss, entropy_bonus": lambda: of_critic(False),
    "value_loss clipped": lambda: of_critic(True),
    **{
        f"value_loss, nll_loss {a} {s}": lambda a=a, s=s: averaged(a, s)
        for a, s in (("sequence_mean", "active"), ("sequence_sum", "all"), ("token_mean", "active"))
    },
    "gae padded": lambda: estimated(True),
    "gae packed": lambda: estimated(False),
    "group_advantage length": lambda: grouped(
        baseline="length", scale="none", lengths=torch.arange(200) * 7 % 31
    ),
    "group_advantage best": lambda: grouped(baseline="best"),
    "group_advantage none": lambda: grouped(scale="none", std="pop"),
    **{f"policy_loss {name}": lambda name=name: policy(RECORDS[name], 2500) for name in LOWERED},
    "policy_loss kl_cov of many": lambda: policy(RECORDS["kl_cov of many"], 300),  # clip_cov has more tokens
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_generated_source_has_the_bits_of_the_oracle(name: str) -> None:
    compare(CASES[name]())


# schedules

VARIED = (
    "logp 2049 sm90, all", "logp 4800 portable", "logp 3 sm90, all", "every_step 2049 sm90",
    "sliced 2049 sm90", "rms_norm hf_llama bfloat16 residual", "rms_norm gemma float32", "rms_norm odd",
    "swiglu bfloat16", "geglu tanh bfloat16", "rope False 16 of 32 bfloat16",
    "rope False bfloat16", "rope True float32", "embedding bfloat16", "ratio_kl k3",
    "policy_loss, every term",
)  # fmt: skip


def rescheduled(change: Callable[[Schedule], Schedule], used: set[tuple[Schedule, ...]]) -> Lowered:
    """Return `lowered` with every chosen schedule changed, where the lowering accepts the change."""
    real = runtime.lowered

    def changed(invocation: Any, model: Any, geometry: Any, tensors: Any, on: Any, *rest: Any) -> Any:
        chosen = real(invocation, model, geometry, tensors, on)
        try:
            made = real(invocation, model, geometry, tensors, on, tuple(change(s) for s in chosen[2]))
        except (ScheduleError, UnsupportedError):
            return chosen
        used.add(made[2])
        return made

    return changed


def in_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fold the vocabulary of a row in one kernel, however few the rows are."""
    monkeypatch.setattr(candidates, "apart", lambda program, extents: frozenset())


FOLDS = [name for name in VARIED if name.startswith(("logp", "every_step", "sliced"))]


@pytest.mark.parametrize(
    ("form", "name"), [("chosen", n) for n in VARIED] + [("in one kernel", n) for n in FOLDS]
)
def test_no_schedule_changes_a_bit(form: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if form == "in one kernel":
        in_one_kernel(monkeypatch)
    case = CASES[name]()
    want = by_oracle(case)
    used: set[tuple[Schedule, ...]] = set()
    for change in CHANGES:
        with monkeypatch.context() as patched:
            patched.setattr(runtime, "lowered", rescheduled(change, used))
            for i, (a, b) in enumerate(zip(by_triton(case), want, strict=True)):
                assert_same_bits(a, b, f"result {i}")
    assert len(used) >= 6, "the schedules were the same"


# negative controls: the same source with one rule broken


def rewritten(pattern: str, text: str, counts: list[int]) -> Lowered:
    """Return `lowered` with the source of what it lowers changed."""
    real = runtime.lowered

    def changed(*args: Any, **options: Any) -> Any:
        program, signature, schedules, emitted = real(*args, **options)
        source, count = re.subn(pattern, text, joined(emitted.source))
        counts.append(count)
        return program, signature, schedules, replace(emitted, source=source)

    return changed


SUM_OF_EIGHT = (r" +x = tl\.sum\(tl\.reshape\(x, \((\d+), 2, 4\)\), 1\)\n.*\n.*\n", "    x = tl.sum(x, 1)\n")
FUSION = (
    r"(\w+) = (\w+) \* (\w+)( +#.*)?\n(\s+)(\w+) = (\w+) \* (\w+)( +#.*)?\n\s+(\w+) = \1 \+ \6\b",
    r"\6 = \7 * \8\n\5\10 = tl.fma(\2, \3, \6)",
)
SWAPPED = (
    r"(\w+) = v_step \* 256\b",
    r"\1 = tl.where(v_step == 1, 2, tl.where(v_step == 2, 1, v_step)) * 256",
)
OTHER_TREE = (r"\(4, 2\)\), tl\.reshape\((\w+), \(4, 2\)\)\), 1", r"(2, 4)), tl.reshape(\1, (2, 4))), 0")
NOTHING = (r"(\w+) = v_step \* 256\b", r"\1 = 256 * v_step")


def wide_rows() -> Case:
    """Rows of 3 full chunks a piece: chunks can trade places without leaving the piece."""
    picked = torch.randint(8 * 768, (64,), generator=torch.Generator().manual_seed(1))
    return lambda x: ops.logp(x, picked, math="sm90"), [3 * normal(64, 8 * 768)]


def differences(case: Case, rule: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Return how many places of the source changed, and how many results then differ from the oracle's."""
    in_one_kernel(monkeypatch)
    want = by_oracle(case)
    counts: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr(runtime, "lowered", rewritten(*rule, counts))
        got = by_triton(case)
    return sum(counts), sum(differing(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("rule", ["SUM_OF_EIGHT", "FUSION", "SWAPPED", "OTHER_TREE"])
def test_a_broken_rule_of_the_fold_changes_bits(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    places, wrong = differences(wide_rows(), globals()[rule], monkeypatch)
    assert places and wrong


def test_a_rewriting_that_breaks_no_rule_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    places, wrong = differences(wide_rows(), NOTHING, monkeypatch)
    assert places and not wrong


def test_fusion_changes_bits_of_rope(monkeypatch: pytest.MonkeyPatch) -> None:
    places, wrong = differences(CASES["rope False float32"](), FUSION, monkeypatch)
    assert places and wrong


def test_fusion_changes_bits_of_partial_rope(monkeypatch: pytest.MonkeyPatch) -> None:
    places, wrong = differences(CASES["rope False 24 of 32 float32"](), FUSION, monkeypatch)
    assert places and wrong


def test_a_gelu_that_is_not_rounded_changes_bits_of_geglu(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = (r"(gelu_f32 = )gelu\.to\(tl\.float32\)", r"\1g_times_cdf")
    case = CASES["geglu tanh bfloat16"]()
    with torch.no_grad():
        places, wrong = differences(case, rule, monkeypatch)
    assert places and wrong


def test_an_unordered_sum_changes_bits_of_a_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = (
        r"(def sum_over_n\(x\):\n.*\n)(?:    x = .*\n)+",
        r"\1    x = tl.sum(tl.reshape(x, (8, 128)), 1)\n",
    )
    case = normed("hf_llama", False, F32, 150, 96)
    with torch.no_grad():  # the forward alone: its tile is 8 rows of 128
        places, wrong = differences(case, rule, monkeypatch)
    assert places and wrong


def strided_vectors(logits: torch.Tensor) -> Any:
    """Ids with a stride, temperatures expanded from one, and a sum, whose cotangent is expanded too."""
    ids = torch.arange(2 * len(logits))[::2]
    temperature = torch.full((1,), 0.7).expand(len(logits))
    return ops.logp(logits, ids, temperature=temperature).logp.sum()


def test_vectors_may_have_any_stride() -> None:
    compare((strided_vectors, [normal(5, 300)]))
    ids = torch.arange(10)
    again = ops.logp(normal(5, 300), ids[::2].contiguous(), temperature=0.7).logp
    assert_same_bits(again, ops.logp(normal(5, 300), ids[::2], temperature=0.7).logp, "logp")
    assert differing(again, ops.logp(normal(5, 300), ids[:5], temperature=0.7).logp)
