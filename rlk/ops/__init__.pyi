# written by rlk gen
"""The public operators, `rlk.ops.logp(...)`."""

import torch
from rlk.ops.advantages import Overlong as Overlong
from rlk.ops.collective import ordered_all_reduce as ordered_all_reduce
from rlk.ops.collective import ordered_gather_sum as ordered_gather_sum
from rlk.ops.collective import ordered_reduce_scatter as ordered_reduce_scatter
from rlk.ops.layout import Layout as Layout
from rlk.ops.layout import Side
from rlk.ops.losses import Loss as Loss
from rlk.ops.moe import Permuted as Permuted
from rlk.ops.moe import Route as Route
from rlk.ops.moe import RouterLosses as RouterLosses
from rlk.ops.policy import AdvantagesOf
from rlk.ops.preference import Name
from rlk.ops.presets import LOSSES as LOSSES
from rlk.ops.results import Attention
from rlk.ops.results import Csr as Csr
from rlk.ops.results import EntropyBonus
from rlk.ops.results import Gae
from rlk.ops.results import KTOLoss
from rlk.ops.results import LogProbs
from rlk.ops.results import NLLLoss
from rlk.ops.results import PolicyLoss
from rlk.ops.results import PreferenceLoss
from rlk.ops.results import RMSNorm
from rlk.ops.results import RatioKL
from rlk.ops.results import Support as Support
from rlk.ops.results import TokenAdvantages
from rlk.ops.results import TokenRewards
from rlk.ops.results import ValueLoss
from rlk.ops.rotary import rope_table as rope_table
from rlk.ops.routes import Flips as Flips
from rlk.ops.routes import Routes as Routes
from rlk.ops.sampling import Penalties as Penalties
from rlk.ops.sampling import PerRow
from rlk.ops.sampling import Sample
from rlk.ops.spans import Spans as Spans
from rlk.ops.spans import loss_spans as loss_spans
from rlk.ops.spans import modality_spans as modality_spans
from rlk.ops.value import Aggregation
from rlk.ops.value import Counted
from rlk.runtime.operator import Operator as Operator
from rlk.runtime.registry import Namespace
from typing import Literal

class _CacheQkv(Operator):
    def __call__(
        self,
        qkv: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slots: torch.Tensor,
        *,
        q_weight: torch.Tensor | None = None,
        k_weight: torch.Tensor | None = None,
        cos: torch.Tensor | None = None,
        sin: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        eps: float = 1e-06,
        profile: str = 'hf_llama',
        interleaved: bool = False,
        rotary_dim: int | None = None,
    ) -> torch.Tensor:
        """Return q of a decode step, and write its keys and values into a paged cache: one kernel.

        qkv: [..., (Hq + 2 Hk) E] bf16, f16 or f32, the result of one product: heads of q, of k, of v. k_cache,
        v_cache: [P, page, Hk, E], and slots [...], as `write_cache` takes them. q_weight, k_weight: [E], both or
        none: q and k are normalised with them (eps, profile). cos, sin, position_ids, interleaved, rotary_dim: as
        in `rope`; without tables nothing is rotated. Returns q [..., Hq, E].

        The bits are those of `qk_norm`, `rope` and `write_cache` apart, every rounding included. Inside f32.
        Differentiable in nothing. Raises LaunchError.
        """

cache_qkv: _CacheQkv

class _ClampedSwiglu(Operator):
    def __call__(
        self,
        x: torch.Tensor,
        *,
        limit: float = 7.0,
        alpha: float = 1.702,
    ) -> torch.Tensor:
        """Return (u + 1) g sigmoid(alpha g) of g = min(gate, limit), u = max(min(up, limit), -limit), [..., N].

        x: [..., 2 N] bf16, f16 or f32, gates at even places, ups at odd ones, as the experts of GPT-OSS give
        them. limit: 0 or more. f32, one rounding. NaN stays NaN.

        Differentiable in x: 0 where a number was clamped. Raises LaunchError.
        """

clamped_swiglu: _ClampedSwiglu

class _Combine(Operator):
    def __call__(
        self,
        rows: torch.Tensor,
        weights: torch.Tensor,
        permuted: Permuted,
        *,
        leaves: int = 1,
    ) -> torch.Tensor:
        """Return each token's results of its experts, weighted and added, [T, D].

        rows: [T k, D] bf16, f16 or f32, sorted by expert as `permuted.rows`. weights: f32 [T, k], as `route`
        returns them. The products are f32, a token's k terms are added by ascending expert in f32, rounded once;
        with leaves (2, 4 or 8, dividing the number of experts) in as many equal pieces of the range of experts,
        each from -0.0, which are added pairwise.

        Differentiable in rows and weights: d rows[r] = w d y[t], rounded once; d w = the sum over D of rows[r]
        d y[t], a vector8 tree in f32. Raises LaunchError.
        """

combine: _Combine

class _Embedding(Operator):
    def __call__(
        self,
        ids: torch.Tensor,
        weight: torch.Tensor,
    ) -> torch.Tensor:
        """y[t] = weight[ids[t]]; an id outside [0, V) gives NaN in its row and sets the device's error word.

        Its gradient: f32 sums over the tokens of an id in ascending order, in chunks of 8, rounded once.

        ids: [...] i64 or i32.
        weight: [V, D] bf16, f16 or f32.

        Differentiable in weight.
        Raises LaunchError.
        """

embedding: _Embedding

class _EntropyBonus(Operator):
    def __call__(
        self,
        entropy: torch.Tensor,
        *,
        layout: Layout,
        coef: float,
    ) -> EntropyBonus:
        """Return -coef times the token mean of the entropy, a term to add to a loss.

        entropy: f32 of the layout's token shape, [T] packed or [B, L] padded, as `logp` or `linear_logp` return
        it. Sums run over active tokens in their compacted order: padded and packed inputs give the same bits. No
        active token: 0. A coef below 0 is a penalty. Differentiable in entropy. Raises LaunchError.
        """

entropy_bonus: _EntropyBonus

class _Gae(Operator):
    def __call__(
        self,
        values: torch.Tensor,
        rewards: torch.Tensor,
        *,
        layout: Layout,
        gamma: float,
        lam: float,
        bootstrap: torch.Tensor | None = None,
    ) -> Gae:
        """Return generalised advantage estimates and returns of tokens (Schulman 2015).

        A_t = delta_t + gamma lam A_next, delta_t = r_t + gamma V_next - V_t, returns = A + V, where next is the
        next active token of the sequence: tool outputs and padding are passed over, and give 0. The last active
        token of a sequence ends it, with V_next = 0, or bootstrap[sequence] where it was cut off; A_next = 0.

        values, rewards: f32 of the layout's token shape, [T] packed or [B, L] padded. bootstrap: f32
        [sequences]. A token's bits depend on the active tokens after it in its sequence alone: one pass from the
        last to the first, each operation rounded, gamma * lam rounded once. Differentiable in nothing. Raises
        LaunchError.
        """

gae: _Gae

class _Geglu(Operator):
    def __call__(
        self,
        gate: torch.Tensor,
        up: torch.Tensor,
        *,
        approximate: Literal['tanh', 'none'] = 'tanh',
    ) -> torch.Tensor:
        """y = gelu(gate) * up, gelu rounded to the dtype first, as eager transformers do (Shazeer 2020).

        gelu(x) = x (1 + erf(x / sqrt 2)) / 2, or for tanh x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
        (Hendrycks and Gimpel 2016).

        gate: [..., N] bf16, f16 or f32.
        up: [..., N] bf16, f16 or f32.
        approximate: 'tanh' or 'none'.

        Differentiable in gate and up.
        Raises LaunchError.
        """

geglu: _Geglu

class _GroupAdvantage(Operator):
    def __call__(
        self,
        rewards: torch.Tensor,
        groups: torch.Tensor,
        *,
        scale: Literal['group', 'batch', 'none'] = 'group',
        baseline: Literal['mean', 'loo', 'length', 'best'] = 'mean',
        std: Literal['unbiased', 'pop'] = 'unbiased',
        eps: float = 0.0001,
        eps_mode: Literal['add', 'max', 'inside'] = 'add',
        lengths: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the advantage of each sample over the others of its group, f32 [N].

        rewards: f32 [N]; NaN: not scored, takes no part in any statistic and has advantage 0. groups: int32 or
        int64 offsets [G + 1], group g holds the samples [groups[g], groups[g + 1]) and may be empty.
        baseline: "mean" of the group; "loo", the mean of its other samples; "length", its mean weighted by
        lengths (OPO, Hao 2025), int32 or int64 [N]; or "best": the largest reward less the second, all others 0
        (Tang 2025; verl's grpo_passk). scale: divide by the standard
        deviation of the rewards of the "group", of the whole "batch", or by nothing ("none"). std: "unbiased"
        (n - 1) or "pop" (n). eps_mode: divide by std + eps ("add"), max(std, eps) ("max") or
        sqrt(var + eps) ("inside"). GRPO (Shao 2024) is the default; Dr.GRPO scale="none"; RLOO baseline="loo",
        scale="none"; OPO baseline="length", scale="none"; REINFORCE++ one group of all samples; its baseline form
        the scale="none" advantages once more as one group.

        Where the deviation is 0, as in a group of equal rewards or of one, the advantage is exactly 0. Offsets
        that do not ascend from 0 to N raise on the host; on a device they give NaN and set the error word.
        Negative lengths raise on the host. Differentiable in nothing. Raises LaunchError.
        """

group_advantage: _GroupAdvantage

class _GroupedMatmul(Operator):
    def __call__(
        self,
        x: torch.Tensor,
        w: torch.Tensor,
        offsets: torch.Tensor,
        *,
        bias: torch.Tensor | None = None,
        leaves: int = 1,
        grad_leaves: int = 1,
        out_dtype: torch.dtype | None = None,
        weight_grad_out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return x[t] w[e]^T + bias[e] for rows sorted by expert: e is the expert whose rows t is among.

        x: [T, K], w: [E, N, K], bias: [E, N], one dtype, bf16 or f16. offsets: int32 or int64 [E + 1], on the
        device of x: rows [offsets[e], offsets[e + 1]) are those of expert e, which may have none. Returns [T, N].
        One f32 accumulator over ascending K (chain16), an f32 sum, one rounding; out_dtype=torch.float32 returns
        the f32 sum. The bits of a row are those of `matmul(x, w[e], bias=bias[e])`: they depend on the row and on
        its expert alone, not on how many rows an expert has.
        leaves: 1, 2, 4 or 8 equal pieces of K, of which each has one f32 accumulator (chain16), added pairwise,
        as of `matmul`; K must be a multiple of it. More leaves are other bits, for experts whose K ranks share.

        Differentiable in x, w and bias. The gradient of the result is rounded to the dtype of x; each gradient is
        an f32 sum, rounded once. d x: N in grad_leaves equal pieces (1, 2, 4 or 8), one chain16 each, added
        pairwise: for experts whose N ranks share. d w: the rows of an expert in pieces of 8192, counted from its
        first row, one chain16 each, added ascending. d bias: the same pieces, each the sums of 64 rows (by
        halving) in ascending order. Both are +0 where an expert has no rows.
        weight_grad_out: f32 [E, N, K], contiguous; backward adds the f32 d w to it, in place, once, and w.grad
        stays as it is; nothing is added where an expert has no rows.

        Offsets on the host must ascend from 0 to T. Those on a device are never read by the host; they are
        checked under RLK_CHECK=1, and wrong ones touch no memory outside of the tensors. Raises LaunchError.
        """

grouped_matmul: _GroupedMatmul

class _JsdLoss(Operator):
    def __call__(
        self,
        student_logits: torch.Tensor,
        teacher_logits: torch.Tensor,
        *,
        beta: float = 0.5,
        temperature: float | torch.Tensor = 1.0,
        mask: torch.Tensor | None = None,
        math: str | None = None,
    ) -> torch.Tensor:
        """Return the generalised Jensen-Shannon divergence of each row, f32 [...] (GKD, Agarwal et al. 2024).

        JSD(beta) = beta KL(p | m) + (1 - beta) KL(q | m), m = beta p + (1 - beta) q, with the student's
        q = softmax(student_logits / temperature) and the teacher's p likewise. By convention beta = 0 is the
        forward KL(p | q), beta = 1 the reverse KL(q | p); both as in TRL's `GKDTrainer.generalized_jsd_loss`. No
        factor of temperature^2 is applied.

        student_logits, teacher_logits: [..., V] of one shape, each bf16, f16 or f32, rows strided at will, last
        dim contiguous. beta: 0, 1, or at least 2^-24 from both. temperature: a positive number, or f32 of the
        rows' shape, where a dim may be 1. mask: bool of the rows' shape; rows with a false mask are not read and
        give 0. math: "portable" or "sm90" overrides who defines exp2.

        0 log 0 = 0: a token that both models exclude (logits of -inf) adds nothing. A KL is inf where the first
        distribution has a token that the second excludes; then the reverse KL has no finite gradient, the forward
        one has q - p. A mixture is finite whatever is excluded. A row with NaN, with +inf or without a finite
        logit, or with a temperature that is not positive and finite, gives NaN and sets the device's error word.

        Each vocabulary is folded as in `logp`, in 8 pieces of ceil(V / 8), in chunks of 256; then the terms of
        tokens are summed over the same pieces, chunks ascending (halving trees), pieces pairwise. Terms of a KL
        are p (log p - log q) - p + q, so that it is not negative and keeps its digits where it is small. Those of
        a mixture cancel: its absolute error is about 2^-24 times the sum of m abs(log p - log q), so that it may
        fall below 0 where it is that small. Beside that, both have the error of the log-probs (see `logp`).
        Differentiable in student_logits alone: detach the teacher's. Raises LaunchError.
        """

jsd_loss: _JsdLoss

class _KtoLoss(Operator):
    def __call__(
        self,
        logp: torch.Tensor,
        ref_logp: torch.Tensor,
        desirable: torch.Tensor,
        *,
        beta: float = 0.1,
        mismatched: tuple[torch.Tensor, torch.Tensor] | None = None,
        desirable_weight: float = 1.0,
        undesirable_weight: float = 1.0,
        loss: Literal['kto', 'apo_zero_unpaired'] = 'kto',
    ) -> KTOLoss:
        """Return the mean over samples of w (1 - sigmoid(beta (r - z))), r - z negated for undesirable ones.

        r = logp - ref_logp, on log-probs summed over completions, f32 [P]. desirable: bool [P]; w is
        desirable_weight, or undesirable_weight. z = max(0, mean of logp - ref_logp over completions of other
        prompts): mismatched=(logp, ref_logp), f32 [M], of all ranks if there are several; without it z = 0
        (Ethayarajh 2024). loss: "apo_zero_unpaired" (D'Oosterlinck 2024) is that with z = 0, and takes no
        mismatched completions. per_sample is f32 [P]; metrics: divergence, z. Sums run over samples in a fixed
        order. No sample: loss 0. Differentiable in logp; z has no gradient. Raises LaunchError.
        """

kto_loss: _KtoLoss

class _LinearJsdLoss(Operator):
    def __call__(
        self,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        teacher_hidden: torch.Tensor,
        teacher_weight: torch.Tensor,
        *,
        beta: float = 0.5,
        temperature: float | torch.Tensor = 1.0,
        mask: torch.Tensor | None = None,
        math: str | None = None,
    ) -> torch.Tensor:
        """Return the generalised Jensen-Shannon divergence of two linear heads in each row, f32 [...].

        The bits are those of `jsd_loss(matmul(hidden, weight, out_dtype=torch.float32),
        matmul(teacher_hidden, teacher_weight, out_dtype=torch.float32), ...)`, which has the formula, the options
        beta, temperature, mask and math, and the rows that give NaN.

        hidden: [..., D], weight: [V, D], of the student, one dtype, bf16 or f16. teacher_hidden: [..., D2],
        teacher_weight: [V, D2], of the teacher, likewise; rows and V are the student's, D2 and the dtype need not
        be. Hidden states of rows with a false mask may hold anything.

        Differentiable in hidden and weight; detach the teacher's. Backward computes the logits again. The
        gradient of the logits is rounded to the dtype of hidden; each gradient is an f32 sum in the order of
        `linear_logp`'s, rounded once: d hidden over the vocabulary in 8 pieces of P = ceil(V / 8), merged
        pairwise; d weight over active rows in pieces of 8192, ascending. Extra memory: f32 logits of as many rows
        as fit in 1 GiB for both heads, at least one row; in backward, half as much again for their gradient, and
        2 P + 20 D bytes for each of at most 8192 rows, 2 D2 for the teacher's, 2 P D bytes, and 4 V D bytes if
        rows are more than 8192. Raises LaunchError.
        """

linear_jsd_loss: _LinearJsdLoss

class _LinearLogp(Operator):
    def __call__(
        self,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        ids: torch.Tensor,
        *,
        bias: torch.Tensor | None = None,
        temperature: float | torch.Tensor = 1.0,
        softcap: float | None = None,
        logit_scale: float = 1.0,
        mask: torch.Tensor | None = None,
        ignore_index: int = -100,
        needs: tuple[str, ...] = ('logp',),
        keep_logits: str | int = 'never',
        group: object | None = None,
        vocab_start: int = 0,
        weight_grad_out: torch.Tensor | None = None,
        support: Support | Csr | None = None,
        math: str | None = None,
    ) -> LogProbs:
        """Return log softmax(z)[ids] of a linear head, z from hidden weight^T; the logits never reach memory.

        hidden: [..., D], weight: [V, D], bias: [V], one dtype, bf16 or f16. ids: [...]. Results are f32. The
        options temperature, softcap, logit_scale, mask, ignore_index and math, and the bits, are those of
        `logp(matmul(hidden, weight, out_dtype=torch.float32), ids)`; needs: of logp, lse, entropy.

        Differentiable in hidden, weight and bias, through logp, lse and entropy; one that needs none costs none.
        The gradient of the scores is rounded to the dtype of hidden; each gradient is an f32 sum in a fixed
        order, rounded once: over the vocabulary in 8 pieces of P = ceil(V / 8), merged pairwise; over active rows
        in pieces of 8192, ascending. That of bias is summed over these pieces likewise, in each by 64 rows (by
        halving) ascending, and costs a product more. Extra memory: forward 12 to 16 bytes for each of at most
        8192 rows and 256 entries of the vocabulary; backward 2 P + 14 D bytes for each of at most 8192 rows, or,
        if that is more and rows are, 16384 (P + D) + 4 P D bytes.

        keep_logits: a limit in bytes. Where f32 logits of this call (4 V bytes a row) fit in it and a gradient is
        needed, they are kept instead of computed again; the bits are the same.
        group: a process group (torch.distributed) whose ranks hold equal shards of the vocabulary: weight is rows
        [vocab_start, vocab_start + weight.shape[0]) of it; ids are those of the whole, and all else is equal on
        all ranks, which compare dtypes, shapes and numbers in a call that is none of the group's last 4096 (as
        `ordered_all_reduce` does): with another number of rows they wait for each other once. 1, 2, 4 or 8 ranks;
        the shard must be a multiple of 8 / ranks rows. The bits are those of one rank with the whole weight.
        weight_grad_out: f32 [V, D], contiguous; backward adds the f32 gradient of weight to it once, in place:
        weight.grad stays as it is.
        support: as `logp` takes it, of the f32 products: what `sample` kept, or `Csr` of token ids, of the whole
        vocabulary on every rank. The bits are those of `logp(matmul(...), ids, support=support)`. Raises
        LaunchError.
        """

linear_logp: _LinearLogp

class _LinearPolicyLoss(Operator):
    def __call__(
        self,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        ids: torch.Tensor,
        old_logp: torch.Tensor,
        advantages: torch.Tensor,
        *,
        layout: Layout,
        loss: Loss | str = 'ppo',
        ref_logp: torch.Tensor | None = None,
        rollout_logp: torch.Tensor | None = None,
        temperature: float | torch.Tensor = 1.0,
        bias: torch.Tensor | None = None,
        softcap: float | None = None,
        logit_scale: float = 1.0,
        keep_logits: str | int = 'never',
        group: object | None = None,
        vocab_start: int = 0,
        weight_grad_out: torch.Tensor | None = None,
        advantages_of: AdvantagesOf | None = None,
        token_weights: torch.Tensor | None = None,
        support: Support | Csr | None = None,
        math: str | None = None,
    ) -> PolicyLoss:
        """Return the policy loss of a linear head's log-probs; the logits never reach memory.

        The bits are those of `policy_loss(linear_logp(hidden, weight, ids, mask=layout.active).logp, ...)`, with
        the entropy where the loss has an entropy_coef.

        hidden: [T, D] of a packed layout, [B, L, D] of a padded one; weight: [V, D]; bias: [V]; one dtype, bf16
        or f16. ids: of the layout's token shape. old_logp, ref_logp, rollout_logp, token_weights: f32 of that
        shape. advantages, advantages_of: f32 of that shape or [sequences], as `policy_loss` takes them. loss: any
        that `policy_loss` takes, by name or as a `Loss`, which says whether ref_logp and rollout_logp are needed.
        temperature, softcap, logit_scale, keep_logits, group, vocab_start, weight_grad_out, support and math are
        those of `linear_logp`.

        Rows of inactive tokens are not read, whatever they hold, and their gradient is 0; an active id outside
        [0, V) gives NaN and sets the error word. Differentiable in hidden, weight and bias; backward
        computes the logits again. Raises LaunchError.
        """

linear_policy_loss: _LinearPolicyLoss

class _Logp(Operator):
    def __call__(
        self,
        logits: torch.Tensor,
        ids: torch.Tensor,
        *,
        bias: torch.Tensor | None = None,
        temperature: float | torch.Tensor = 1.0,
        softcap: float | None = None,
        logit_scale: float = 1.0,
        mask: torch.Tensor | None = None,
        ignore_index: int = -100,
        needs: tuple[str, ...] = ('logp',),
        support: Support | Csr | None = None,
        fold: str = 'chunks',
        math: str | None = None,
    ) -> LogProbs:
        """Return log softmax(z)[ids] of given logits, with lse, entropy, argmax and lse2 on request.

        z = softcap(logit_scale * (logits + bias)) * (1 / temperature), softcap(z) = cap tanh(z / cap); f32
        throughout.

        logits: [..., V] bf16, f16 or f32, rows strided at will (`[:, :-1]` costs no copy), last dim contiguous.
        ids: [...] int32 or int64. bias: [V], the dtype of logits. temperature: a positive number, or f32 of the
        rows' shape. mask: bool of the rows' shape; rows with a false mask or ids == ignore_index are not read and
        give 0 (argmax -1). needs: which fields to return, of logp, lse, entropy, argmax, lse2 = log sum exp(2 z);
        the others are None.
        An id outside [0, V), or a temperature of a row that is not positive and finite, gives NaN in its row and
        sets the device's error word (raised under RLK_CHECK=1).
        support: restricts the softmax to the tokens that `sample` kept, of logits as they are given: others have
        log-prob -inf and gradient 0. A Support is compared with these logits; a Csr names ids, and costs a bit a
        token of memory; an id of it outside [0, V) raises on the host, and on a device gives NaN in its row and
        sets the error word. With the support, scores and temperature of a draw, logp is that of the draw, bit for
        bit. Differentiable in logits through logp, lse and entropy; backward through lse2 raises, and a compiled
        graph takes it for a constant: detach what is made of it. math: "portable" or "sm90" overrides who defines
        exp2. Log-probs are z - lse: absolute error of half an ulp of lse (3e-5 near 1000). The entropy is made of
        differences from the largest z, and has the digits that they have.

        The vocabulary is folded in 8 pieces of ceil(V / 8), in chunks of 256 (fold: "chunks", the only one there
        is; docs/decisions/0003-*). Raises LaunchError.
        """

logp: _Logp

class _Matmul(Operator):
    def __call__(
        self,
        x: torch.Tensor,
        w: torch.Tensor,
        *,
        bias: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
        leaves: int = 1,
        part: tuple[int, int] | None = None,
        grad_leaves: int = 1,
        round_product: bool = False,
        order: str | None = None,
        out_dtype: torch.dtype | None = None,
        weight_grad_out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return x w^T + bias + residual: a row's bits do not depend on the number of rows.

        x: [..., K], w: [N, K], bias: [N], residual: [..., N], one dtype, bf16 or f16. leaves: 1, 2, 4 or 8 equal
        pieces of K, of which each has one f32 accumulator over ascending K (chain16), added pairwise; K must be a
        multiple of it. More leaves are other bits; they are for weights whose K ranks share, and fill a device
        where rows are few. f32 sums, one rounding to the dtype; out_dtype=torch.float32 returns the f32 sum.
        round_product: x w^T + bias is rounded before residual is added, as by two operators of 16 bits.

        part: (first, end), a rank's own leaves of `leaves`: x and w have the K of these alone, and the result is
        the f32 sum of their subtree, which `ordered_all_reduce` continues over ranks. Their number is a power of
        two that divides first. Without bias and residual, which are added once, after all leaves.
        order: "chain16" is leaves=1; "leaf8" is leaves=8 of ceil(K / 8) elements, also where the last is short.

        Differentiable in x, w, bias and residual. The gradient of the result is rounded to the dtype of x; each
        gradient is an f32 sum, rounded once. d x: N in grad_leaves equal pieces (1, 2, 4 or 8), one chain16 each,
        added pairwise: for weights whose N ranks share. d w: tokens in pieces of 8192, one chain16 each, added
        ascending. d bias: the same pieces, each the sums of 64 tokens (by halving) in ascending order. d residual
        is the gradient of the result.
        weight_grad_out: f32 [N, K], contiguous; backward adds the f32 d w to it, in place, once, and w.grad stays
        as it is. Raises LaunchError.
        """

matmul: _Matmul

class _NllLoss(Operator):
    def __call__(
        self,
        logp: torch.Tensor,
        *,
        layout: Layout,
        weights: torch.Tensor | None = None,
        aggregation: Aggregation = 'token_mean',
        sequences: Counted = 'active',
        normalizer: float | None = None,
    ) -> NLLLoss:
        """Return the token mean of -w logp: supervised tokens, or the likelihood term beside a preference loss.

        logp: f32 of the layout's token shape, [T] packed or [B, L] padded, as `logp` or `linear_logp` return it.
        weights: f32 of that shape, 1 without them; a token of weight 0 does not count, whatever it holds. They
        need an aggregation over tokens. aggregation, sequences, normalizer and the order of sums: those of
        `value_loss`. No token: loss 0, metrics["active"] 0. per_token is f32 of the token shape, 0 where a token
        does not count. Differentiable in logp. Raises LaunchError.
        """

nll_loss: _NllLoss

class _OptimalTokenBaseline(Operator):
    def __call__(
        self,
        rewards: torch.Tensor,
        logp: torch.Tensor,
        sum_pi_squared: torch.Tensor,
        groups: torch.Tensor,
        *,
        layout: Layout,
        align: Literal['position', 'active'] = 'position',
        tail: Literal['zero', 'group'] = 'zero',
        eps: float = 1e-08,
        rollout_weights: torch.Tensor | None = None,
    ) -> TokenAdvantages:
        """Return advantages of tokens over the optimal baseline of their place in the group, and returns.

        verl's `optimal_token_baseline` (align="position") and `tir_optimal_token_baseline` (align="active"). With
        G the rewards from a token of its sequence on, w = 1 - 2 pi + sum pi^2 the squared gradient of its
        log-prob by the logits, and W the sum of w up to it: A = G - B, B = sum W G / (sum W + eps), sums over the
        tokens that the sequences of the group have at one place. Only active tokens take part; others give 0.

        rewards, logp, sum_pi_squared, rollout_weights: f32 of the layout's token shape, [T] packed or [B, L]
        padded. logp: of the policy that drew the tokens. sum_pi_squared: the sum of the squares of its
        probabilities, exp(lse2 - 2 lse) of `logp`, detached. rollout_weights: w is multiplied by their squares.
        groups: int32 or int64 offsets [groups + 1], group g holds the sequences [groups[g], groups[g + 1]).
        align: a token's place is its "position" in the sequence, or its number among the "active" tokens, which
        is that of other turns where the environment's answers differ in length. tail: the baseline of tokens
        after the last active token of every other sequence of the group, "zero" or that of the "group", which is
        there G itself up to eps.

        A sequence without others in its group has no baseline: A = G. Sequences without active tokens take no
        part. G is summed from the last active token back, W from the first on, one addition a token; W G and W
        over the sequences of a group in chunks of 16 (halving trees), chunks ascending. G enters as a difference
        from the largest at its place: with eps=0, equal returns give exactly 0. A token's bits depend on its
        group's active tokens alone. Offsets that do not ascend from 0 to the number of sequences raise on the
        host; on a device they give NaN and set the error word. Differentiable in nothing. Raises LaunchError.
        """

optimal_token_baseline: _OptimalTokenBaseline

class _Pack(Operator):
    def __call__(
        self,
        x: torch.Tensor,
        layout: Layout,
        *,
        side: Side = 'right',
    ) -> torch.Tensor:
        """Return the tokens of padded rows one sequence after the other, [T, ...].

        x: [B, L, ...] of any dtype that rlk has (bf16, f16, f32, int64, int32, bool). layout: the packed one of
        the result: it says T, and how long each of the B sequences is. side: where x is padded. Tokens that the
        layout's mask leaves out are moved too; padding behind the last sequence is 0.

        A sequence longer than L raises LaunchError where lengths are on the host; on a device it sets the error
        word, and the result is 0. Differentiable in x: each token of the gradient goes back to where it came
        from. Raises LaunchError.
        """

pack: _Pack

class _PagedAttention(Operator):
    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        block_table: torch.Tensor,
        context_lens: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        *,
        causal: bool = True,
        window: int | None = None,
        softcap: float | None = None,
        scale: float | None = None,
        sinks: torch.Tensor | None = None,
        math: str | None = None,
    ) -> Attention:
        """Return `varlen_attention` of keys and values in pages: the same bits, for decode and chunked prefill.

        q: [Tq, Hq, E], the newest tokens of each sequence, whose keys are in the cache already.
        k_cache: [P, page, Hk, E], v_cache: [P, page, Hk, F]. block_table: [B, M] int32, key j of sequence i in
        slot j % page of page block_table[i, j // page]. context_lens: [B] int32, keys of each sequence, those of
        q included. cu_seqlens_q: [B + 1]. The options causal, window, softcap, scale, sinks and math are those of
        `varlen_attention`, and so are the results: o [Tq, Hq, F] and lse, f32 [Hq, Tq]. Differentiable in
        nothing.

        Bad offsets, contexts longer than their pages and pages outside of the cache raise on the host; on a
        device they are checked only under RLK_CHECK=1, and without it such a call's results are undefined.
        Entries of the table and slots beyond a context never affect a result. With few rows, pieces of 512 keys
        run in parallel (split-KV) and merge in a second kernel, in the same order: the same bits. Raises
        LaunchError.
        """

paged_attention: _PagedAttention

class _Penalize(Operator):
    def __call__(
        self,
        logits: torch.Tensor,
        penalties: Penalties,
    ) -> torch.Tensor:
        """Return scores: logits, f32, with penalties: repetition, then frequency, then presence.

        logits: [B, V] bf16, f16 or f32. `sample(logits, penalties=p)` draws from these scores, and
        `logp(penalize(logits, p), token, temperature=..., support=...)` is its log-prob.
        Differentiable in no input. Raises LaunchError.
        """

penalize: _Penalize

class _Permute(Operator):
    def __call__(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        *,
        experts: int,
        leaves: int = 1,
    ) -> Permuted:
        """Return the rows of tokens sorted by expert, each token once for each of its experts.

        x: [T, D] bf16, f16 or f32. ids: [T, k] of any integer dtype, ascending for each token and different, as
        `route` returns them. Rows of one expert are in the order of their tokens (a stable sort). Nothing waits
        for the device.

        Differentiable in x: d x of a token is the f32 sum of its rows' gradients by ascending expert, rounded
        once; with leaves (2, 4 or 8, dividing experts) in as many equal pieces of the range of experts, which are
        added pairwise, so that ranks may share the experts. Ids on the host outside of [0, experts), or that do
        not ascend, raise LaunchError; on a device they do under RLK_CHECK=1.
        """

permute: _Permute

class _PolicyLoss(Operator):
    def __call__(
        self,
        logp: torch.Tensor,
        old_logp: torch.Tensor,
        advantages: torch.Tensor,
        *,
        layout: Layout,
        loss: Loss | str = 'ppo',
        ref_logp: torch.Tensor | None = None,
        rollout_logp: torch.Tensor | None = None,
        entropy: torch.Tensor | None = None,
        advantages_of: AdvantagesOf | None = None,
        token_weights: torch.Tensor | None = None,
    ) -> PolicyLoss:
        """Return a policy loss of tokens, what each contributes, and metrics.

        logp, old_logp, ref_logp, rollout_logp, entropy, token_weights: f32 of the layout's token shape.
        advantages: f32 of that shape, one for each token, or [sequences], one for each sequence. advantages_of:
        which of the two, "tokens" or "sequences"; it may be left out where only one fits, and must be given where
        a packed layout has as many tokens as sequences. loss: a `Loss`, or a name of `rlk.ops.LOSSES`, such as
        "ppo", "gspo", "trl/grpo", "verl/cispo". ref_logp is needed when beta != 0, entropy when entropy_coef !=
        0, rollout_logp by a correction or a rejection, token_weights by a loss that is `weighted`; others are not
        read. Differentiable in logp and entropy.

        Sums run over active tokens in their compacted order, in chunks of 1024 as halving trees, 4096 chunks at a
        time in the same way, those ascending; sums of a sequence in chunks of 1024 from its first active token,
        ascending: padded and packed inputs give the same bits. A `Selection` ranks tokens by covariances whose
        means are summed in the same order, equal ones by their place in it. No active token: loss 0,
        metrics["active"] 0. metrics: active (tokens that count), and those of the loss; log_ratio_histogram: i32,
        how many log ratios lie below, between and at or above `rlk.specs.policy.EDGES`. Raises LaunchError.
        """

policy_loss: _PolicyLoss

class _PreferenceLoss(Operator):
    def __call__(
        self,
        chosen: torch.Tensor,
        rejected: torch.Tensor,
        ref_chosen: torch.Tensor | None = None,
        ref_rejected: torch.Tensor | None = None,
        *,
        loss: Name = 'sigmoid',
        beta: float = 0.1,
        smoothing: float = 0.0,
        margin: float = 0.0,
        tau: float = 0.05,
        chosen_tokens: torch.Tensor | None = None,
        rejected_tokens: torch.Tensor | None = None,
        divergence: Literal['reverse_kl', 'forward_kl', 'js', 'alpha'] = 'reverse_kl',
        alpha: float | None = None,
        weights: torch.Tensor | None = None,
    ) -> PreferenceLoss:
        """Return the mean over pairs of a preference loss, on log-probs summed over completions.

        chosen, rejected, ref_chosen, ref_rejected: f32 [P]. chosen_tokens, rejected_tokens: int32 or int64 [P],
        at least 1 each (on a device another one gives NaN and sets the error word); with them scores are per
        token: log-probs, minus those of the reference, over the count. weights: f32 [P], which multiply what
        pairs add, without a gradient; the mean is over P all the same (WPO, Zhou 2024: see `sequence_logp`).

        divergence: a score is f'(t) of the ratio t to the reference, before it is one per token (Wang 2023):
        "reverse_kl" log t; "forward_kl" 1 - 1 / t; "js" log(2 t / (1 + t)); "alpha" (t^(alpha - 1) - 1) /
        (alpha - 1), its exponent limited to 80, log t for alpha 1. For sigmoid, robust, hinge, ipo, exo_pair and
        discopop.

        loss, with a = beta chosen score, b = beta rejected score, u = a - b - margin, ls = log sigmoid:
        "sigmoid" -ls(u) (DPO, Rafailov 2023; with smoothing s: -(1 - s) ls(u) - s ls(-u)); "robust"
        (s ls(-u) - (1 - s) ls(u)) / (1 - 2 s) (Chowdhury 2024); "hinge" max(0, 1 - u) (SLiC, Zhao 2023); "ipo"
        (chosen - rejected - 1 / (2 beta))^2 of the scores (Azar 2024); "exo_pair" (Ji 2024); "discopop", at
        temperature tau (Lu 2024); "nca_pair" (Chen 2024); "bco_pair" -ls(a) - ls(-b) (Jung 2024); "sppo_hard"
        (Wu 2024); "apo_zero", "apo_down" (D'Oosterlinck 2024). Without a reference: "cpo" as sigmoid (Xu 2024);
        "simpo" as sigmoid, per token, with its margin (Meng 2024); "alphapo" as simpo, of scores
        (1 - p^-alpha) / alpha, p the mean of log-probs exponentiated (Gupta 2025; alpha 0: simpo); "orpo" -beta
        ls(log odds ratio), per token (Hong 2024). The likelihood terms that CPO, ORPO and RPO add: `nll_loss`.
        Of ranks in the batch (AOT, Melnyk 2024), sigmoid of beta times a difference of sorted numbers: "aot" of
        chosen - rejected and ref_chosen - ref_rejected; "aot_unpaired" of chosen - ref_chosen and rejected -
        ref_rejected. Each is ranked by its f32 difference, equal ones in the order of the batch, NaN last; a pair
        adds the term of its first difference.

        per_pair is f32 [P]; metrics: accuracy (how often chosen scores higher), chosen_reward and
        rejected_reward (means of a and b). Sums run over pairs in chunks of 1024 as halving trees, ascending. No
        pair: loss 0. Differentiable in chosen and rejected. Raises LaunchError.
        """

preference_loss: _PreferenceLoss

class _PrefixAttention(Operator):
    def __call__(
        self,
        q: torch.Tensor,
        k_prefix: torch.Tensor,
        v_prefix: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cu_seqlens_prefix: torch.Tensor,
        cu_seqlens: torch.Tensor,
        groups: torch.Tensor,
        *,
        causal: bool = True,
        window: int | None = None,
        softcap: float | None = None,
        scale: float | None = None,
        sinks: torch.Tensor | None = None,
        cu_seqlens_q: torch.Tensor | None = None,
        math: str | None = None,
    ) -> Attention:
        """Return `varlen_attention` of completions that continue shared prompts: the bits of prompt + completion.

        k_prefix: [Tp, Hk, E], v_prefix: [Tp, Hk, F], prompts one after the other, cu_seqlens_prefix: [P + 1].
        q: [Tq, Hq, E], k: [Tk, Hk, E], v: [Tk, Hk, F], of completions alone, cu_seqlens: [B + 1]; those of prompt
        p are groups[p] to groups[p + 1] - 1 of them, groups: [P + 1]. Offsets are int32 or int64, ascending from
        0. cu_seqlens_q: [B + 1], if only the newest tokens of each completion ask, as in decoding. The options
        causal, window, softcap, scale, sinks and math are those of `varlen_attention`, and so are the results:
        o [Tq, Hq, F] and lse, f32 [Hq, Tq].

        A prompt's keys are read once for a tile of queries of all its completions, up to its last multiple of 64;
        each completion reads those behind it with its own (docs/attention.md counts bytes). Extra memory: 8 F +
        16 bytes for each query and head. Differentiable in q, k_prefix, v_prefix, k, v and sinks: where a
        gradient is wanted, keys are gathered and `varlen_attention` is run, which has the same bits and saves
        nothing; the host waits for the length. In a compiled graph the gradient gathers, and runs it once more. A
        gradient of a prompt's keys is the f32 sum of those of its completions, each rounded to the dtype, in
        order (`embedding`), rounded once. Raises LaunchError.
        """

prefix_attention: _PrefixAttention

class _QkNorm(Operator):
    def __call__(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        *,
        cos: torch.Tensor | None = None,
        sin: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        eps: float = 1e-06,
        profile: str = 'hf_llama',
        interleaved: bool = False,
        rotary_dim: int | None = None,
    ) -> torch.Tensor:
        """Return RMSNorm of each head of q or of k, and, given tables, its rotation: one pass over x.

        x: [..., H, E] bf16, f16 or f32; a view inside the result of a product for q, k and v costs no copy.
        weight: [E]. The bits are those of `rms_norm` (eps, profile "hf_llama" or "gemma"), and of `rope` of its
        result (cos, sin, position_ids, interleaved, rotary_dim: all as there). Differentiable in x and weight.

        The gradient of weight is made by heads, so that ranks which share heads agree: an f32 sum over the tokens
        of each head, in pieces of 64, ascending; these sums are added by heads, ascending, and rounded once.
        (`rms_norm` adds all rows, token by token.) Raises LaunchError.
        """

qk_norm: _QkNorm

class _RatioKl(Operator):
    def __call__(
        self,
        logp: torch.Tensor,
        old_logp: torch.Tensor,
        ref_logp: torch.Tensor,
        *,
        mask: torch.Tensor | None = None,
        kl: Literal['k1', 'k2', 'k3', 'abs', 'k1+', 'k3+'] = 'k3',
    ) -> RatioKL:
        """ratio = exp(lp - lp_old) and the KL estimate of each token; tokens with a false mask give 1 and 0.

        kl: k1 = -d, k2 = d^2 / 2, k3 = exp(d) - d - 1, abs = |d|, with d = ref_logp - logp (Schulman 2020); k1+
        and k3+ have the gradient of k2.

        logp: [...] f32.
        old_logp: [...] f32.
        ref_logp: [...] f32.
        mask: [...] bool, optional.
        kl: 'k1', 'k2', 'k3', 'abs', 'k1+' or 'k3+'.

        Differentiable in logp.
        Returns a named tuple of ratio and kl, those that a call has; one alone as it is.
        Raises LaunchError.
        """

ratio_kl: _RatioKl

class _RmsNorm(Operator):
    def __call__(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        *,
        residual: torch.Tensor | None = None,
        eps: float = 1e-06,
        profile: Literal['hf_llama', 'gemma', 'vllm', 'gpt_oss'] = 'hf_llama',
    ) -> torch.Tensor | RMSNorm:
        """y = h / sqrt(mean(h^2) + eps) * w with h = x + residual; given a residual, also h, rounded.

        Zhang and Sennrich 2019. The mean is a vector8 tree over N. hf_llama: h is rounded to x's dtype, so is
        h * rstd before the product with w. gemma: h is rounded, (h * rstd) * (1 + w) is rounded once; gpt_oss: so
        is (h * rstd) * w. vllm: the sum h stays f32 for the norm (vLLM's native form); the rest as hf_llama.

        x: [..., N] bf16, f16 or f32.
        weight: [N] bf16, f16 or f32.
        residual: [..., N] bf16, f16 or f32, optional.
        eps: a number, at least 0.0.
        profile: 'hf_llama', 'gemma', 'vllm' or 'gpt_oss'.

        Differentiable in x, weight and residual.
        Returns a named tuple of y and residual, those that a call has; one alone as it is.
        Raises LaunchError.
        """

rms_norm: _RmsNorm

class _Rope(Operator):
    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        *,
        position_ids: torch.Tensor,
        interleaved: bool = False,
        rotary_dim: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return q and k with their pairs rotated by the angles of their positions (Su et al. 2021).

        q: [..., Hq, E], k: [..., Hk, E]; these and the tables bf16, f16 or f32. rotary_dim: R, an even number up
        to E, by default E: the first R elements of a head are rotated, the others copied. cos, sin: [positions,
        R / 2], as `rope_table` makes them, or [positions, R] whose halves repeat (as in transformers); for
        interleaved pairs [positions, R / 2] alone, which of a table that repeats each angle is
        `cos[:, ::2].contiguous()`. position_ids: int32 or int64 of the tokens' shape [...]; one outside the table
        gives NaN in those R.
        interleaved: pairs are neighbours, not the two halves of R.

        Differentiable in q and k. Raises LaunchError.
        """

rope: _Rope

class _Route(Operator):
    def __call__(
        self,
        scores: torch.Tensor,
        k: int,
        *,
        score: str = 'softmax',
        bias: torch.Tensor | None = None,
        groups: int = 1,
        kept_groups: int = 1,
        group_score: str = 'top2',
        renormalize: bool = True,
        scale: float = 1.0,
        replay: Routes | None = None,
        layer: int | None = None,
    ) -> Route:
        """Return the k experts of each token and their weights.

        scores: [..., E] bf16, f16 or f32, what the router's product gives; E up to 1024. k: up to E and 32.
        score: "softmax" over the experts or "sigmoid" of each. weights = scale * p of the chosen experts, divided
        by their sum if renormalize (for softmax that is the softmax over the chosen ones alone, as in GPT-OSS;
        for sigmoid 1e-20 is added to the sum). f32 throughout.

        Choice: the largest scores; of equal ones the lowest ids. bias: f32 [E], added to p for the choice, not in
        the weights (DeepSeek-V3's balancing). groups: experts are cut into so many equal groups, and only those
        of the kept_groups best are chosen from, of equal ones the lowest; group_score: the sum of a group's two
        largest p + bias ("top2", DeepSeek-V3) or its largest ("max", DeepSeek-V2). Without a bias, or a sum of
        two, scores are compared and not p, which may round two of them to one number.
        Mixtral, GPT-OSS: `score="softmax"`; Qwen3-MoE: renormalize is its norm_topk_prob.

        A token with a NaN among its scores has weights NaN, and so has no other token; NaN counts as -inf in its
        choice. Differentiable in scores, through the weights: sums over the chosen experts ascend by id, the sum
        of the softmax is a halving tree over the experts.

        replay: recorded routes of these tokens, of which `layer` is read (to be given where they have several):
        ids are those, weights are computed from the scores at them, and `flipped` says which tokens would have
        had others (`Flips.of_layers`). Routes of other numbers of tokens, experts or choices are refused; an id
        outside of the experts, or one that a token has twice, sets the error word. Raises LaunchError.
        """

route: _Route

class _RouterLosses(Operator):
    def __call__(
        self,
        scores: torch.Tensor,
        ids: torch.Tensor,
        *,
        mask: torch.Tensor | None = None,
        tokens: int | None = None,
        load: torch.Tensor | None = None,
    ) -> RouterLosses:
        """Return the auxiliary losses and the metrics of one router, over tokens whose mask is true.

        scores: [T, E] bf16, f16 or f32, and ids: [T, k], of `route`. mask: bool [T].

        balance = E sum over e of f[e] P[e]: f is the share of tokens that go through an expert, P its mean
        probability by softmax (Fedus et al. 2021; transformers' load_balancing_loss_func of one layer). z: the
        mean of lse(scores)^2 (Zoph et al. 2022). entropy: the mean of softmax's. load: f.

        tokens: the number that P, z, entropy and load are divided by, of all micro-batches and ranks; by default
        of the mask. Results of parts then add up to those of all tokens. balance does with load as well: f32 [E],
        f of all tokens, which is the sum of the loads of parts. Without it f is of the call's own tokens, and
        balances of parts add up to their mean, weighted by the tokens of each.

        Sums over tokens are f32, ascending in pieces of 64, pieces ascending; over experts halving trees; counts
        are integers. Differentiable in scores through balance (f is constant) and z. Nothing waits for the
        device. Ids on the host outside of [0, E) raise LaunchError, those of masked tokens too; on a device they
        do under RLK_CHECK=1.
        """

router_losses: _RouterLosses

class _ScatterRewards(Operator):
    def __call__(
        self,
        rewards: torch.Tensor,
        offsets: torch.Tensor,
        *,
        layout: Layout,
        at: Literal['last', 'all'] = 'last',
        costs: torch.Tensor | None = None,
        overlong: Overlong | None = None,
    ) -> torch.Tensor | TokenRewards:
        """Return the rewards of regions as rewards of tokens: f32 of the layout's token shape, else 0.

        rewards, costs: f32 [N]. offsets: int32 or int64 [N + 1]; region n holds the tokens
        [offsets[n], offsets[n + 1]) of all sequences one after the other, padding not counted, so that the same
        offsets fit packed and padded layouts. Regions lie inside of sequences and cover all tokens: cu_seqlens
        for a reward per sequence, finer ones for turns or steps, with reward 0 where there is none. at: "last",
        the last active token of the region, which `gae` reads, or "all" its active tokens. costs: placed like
        rewards and kept apart; then (rewards, costs) is returned. overlong: a penalty on the number of active
        tokens of a region, added to its reward.

        A region without an active token gives nothing. Offsets that miss a token raise on the host; on a device
        they give NaN and set the error word. Differentiable in nothing. Raises LaunchError.
        """

scatter_rewards: _ScatterRewards

class _Sample(Operator):
    def __call__(
        self,
        logits: torch.Tensor,
        *,
        seed: int | torch.Tensor,
        request_id: torch.Tensor,
        position: torch.Tensor,
        temperature: PerRow = 1.0,
        top_k: int | torch.Tensor = 0,
        top_p: PerRow = 1.0,
        min_p: PerRow = 0.0,
        penalties: Penalties | None = None,
        math: str | None = None,
    ) -> Sample:
        """Draw a token from each row of logits, and say with which probability.

        logits: [B, V] bf16, f16 or f32, V <= 523264. seed: an integer, or one for each row; request_id, position:
        [B]; int64 or int32. They are all that a draw depends on beside its row and options: Philox 4x32-10 has
        (request_id, position) as counter and seed as key, and its first word becomes (2 k + 1) / 2**24, which is
        strictly between 0 and 1. Neither the slot in the batch, nor its size, nor a graph's capture matters.

        Options are numbers, or one for each row [B], and apply in this order: penalties; temperature (0: the
        largest score, the first of equals); min_p, which drops tokens less likely than min_p times the likeliest;
        top_k, which keeps the k likeliest (0 or -1: all); top_p, which keeps the likeliest that together weigh
        top_p of what is left (1: all). Of equal scores those with lower indices are kept. NaN and -inf are never
        drawn.
        Numbers outside of these ranges raise. In a tensor, top_p and min_p above 1 or below 0 are as 1 or 0, NaN
        is off, and a top_k below 1 keeps all; a row with a negative, infinite or NaN temperature draws nothing,
        as a row without a finite score.

        Tokens weigh exp((z - max z) / temperature) in units of 2**-22, rounded. top_p, to 2**-20, and the draw
        (the first token at which the running weight by index exceeds its part of the whole) are exact integers,
        which no order changes. A row without a finite score, or with +inf, gives token -1, log-probs NaN, and
        sets the device's error word. Differentiable in no input: replay with `logp` for gradients.
        math: "portable" or "sm90" overrides who defines exp2. Raises LaunchError.
        """

sample: _Sample

class _SequenceLogp(Operator):
    def __call__(
        self,
        logp: torch.Tensor,
        *,
        layout: Layout,
        over: Literal['sum', 'mean', 'probability'] = 'sum',
        shared: torch.Tensor | None = None,
        tail: float | None = None,
    ) -> torch.Tensor:
        """Return the log-prob of each sequence, the sum over its active tokens: f32 [sequences].

        logp: f32 of the layout's token shape, [T] packed or [B, L] padded. over: their "sum", "mean", or
        "probability", the exponential of the mean. shared, tail: int32 or int64 [sequences] and a number; active
        tokens of a sequence behind its first `shared` ones count `tail` times (LD-DPO, Liu 2024, where shared is
        the smaller number of tokens of a pair; TRL's ld_alpha). A sequence without active tokens: 0, probability
        1.

        The weight of a completion under WPO (Zhou 2024) is the probability of logp - log sum of p^2, which is
        `lse2 - 2 lse` of `logp`.

        The tokens of a sequence are added in chunks of 1024 counted from its first active one, as halving trees,
        ascending: padded and packed inputs give the same bits. Differentiable in logp. Raises LaunchError.
        """

sequence_logp: _SequenceLogp

class _Swiglu(Operator):
    def __call__(
        self,
        gate: torch.Tensor,
        up: torch.Tensor,
    ) -> torch.Tensor:
        """y = silu(gate) * up, silu rounded to the dtype first, as eager transformers do (Shazeer 2020).

        gate: [..., N] bf16, f16 or f32.
        up: [..., N] bf16, f16 or f32.

        Differentiable in gate and up.
        Raises LaunchError.
        """

swiglu: _Swiglu

class _Unpack(Operator):
    def __call__(
        self,
        x: torch.Tensor,
        layout: Layout,
    ) -> torch.Tensor:
        """Return packed tokens as padded rows, [B, L, ...]; padding is 0.

        x: [T, ...] of any dtype that rlk has (bf16, f16, f32, int64, int32, bool), T the sum of the layout's
        lengths. layout: the padded one of the result: it says B, L, the side of the padding, and the lengths.

        Another T raises LaunchError where lengths are on the host; on a device it sets the error word, and the
        result is 0. Differentiable in x: each token of the gradient goes back to where it came from. Raises
        LaunchError.
        """

unpack: _Unpack

class _ValueLoss(Operator):
    def __call__(
        self,
        values: torch.Tensor,
        returns: torch.Tensor,
        *,
        layout: Layout,
        old_values: torch.Tensor | None = None,
        clip: float = 0.2,
        aggregation: Aggregation = 'token_mean',
        sequences: Counted = 'active',
        normalizer: float | None = None,
    ) -> ValueLoss:
        """Return the token mean of 0.5 max((v - R)^2, (clip(v, v0 - clip, v0 + clip) - R)^2) (Schulman 2017).

        values, returns, old_values: f32 of the layout's token shape, [T] packed or [B, L] padded. old_values: v0,
        the values of the rollout; without them nothing is clipped. The gradient flows where the unclipped error
        is not the smaller of the two. Differentiable in values.

        aggregation: the mean over active tokens; over sequences, of means ("sequence_mean") or sums
        ("sequence_sum") of their active tokens; or the "sum". sequences: those with active tokens are counted,
        or "all". normalizer: the loss is divided by it as well.

        Sums run over active tokens in their compacted order, in chunks of 1024 as halving trees, 4096 chunks at a
        time in the same way, those ascending; for "sequence_mean" each term is first divided by the number of
        active tokens of its sequence: padded and packed inputs give the same bits. No active token: loss 0,
        metrics["active"] 0. per_token is f32 of the token shape, 0 where inactive: the terms, before they are
        averaged. Metrics: active, and clip_fraction, over tokens, where old_values are there. Raises LaunchError.
        """

value_loss: _ValueLoss

class _VarlenAttention(Operator):
    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        *,
        causal: bool = True,
        window: int | None = None,
        softcap: float | None = None,
        scale: float | None = None,
        sinks: torch.Tensor | None = None,
        math: str | None = None,
    ) -> Attention:
        """Return softmax(scale q k^T) v of packed sequences, and the log of its denominators.

        q: [Tq, Hq, E], k: [Tk, Hk, E], v: [Tk, Hk, F], one dtype, bf16 or f16; Hk divides Hq, and query head h
        reads head h // (Hq / Hk). cu_seqlens_q, cu_seqlens_k: [B + 1] int32 or int64, ascending from 0: where
        sequences begin; some may be empty. Returns o [Tq, Hq, F] and lse, f32 [Hq, Tq]. Offsets that descend or
        are out of bounds raise on the host; on a device they are checked only under RLK_CHECK=1, and without it
        such a call's results are undefined.

        causal: the last query of a sequence is at the position of its last key, and a query sees the keys up to
        its own position. window: the number of these keys that it sees, its own included. scale: 1 / sqrt(E)
        unless given. softcap: scores z become cap tanh(z / cap). sinks: f32 [Hq], a score for each head that only
        adds to the denominator (and lse). A query that sees no key has o = 0 and lse = -inf, or the sink. Rows of
        q outside
        of every sequence are not computed: their results are undefined.

        Keys are taken in chunks of 64, ascending, in pieces of 512 from the start of their sequence: online
        softmax inside a piece, probabilities rounded to the dtype before P V, f32 sums; pieces merge in ascending
        order (docs/decisions/0025-*). So a row's bits depend only on its sequence up to it, if the data of its
        chunks is finite. math: as in `logp`. Raises LaunchError.

        Differentiable in q, k, v and sinks, through o and lse (but not through lse alone); inputs that need no
        gradient cost nothing. Probabilities and the gradients of scores are rounded to the dtype before they are
        contracted. Each row of a gradient is one f32 sum in a fixed order, rounded once: of q over its keys,
        ascending; of k and v over the queries that see the key, ascending from the first of their sequence, and
        for each of these over the heads that share it (docs/decisions/0027-*). So it depends only on its
        sequence; that of sinks is summed over all queries in packed order. Rows outside of every sequence have
        undefined gradients too. Extra memory: 4 bytes for each query and head.
        """

varlen_attention: _VarlenAttention

class _WriteCache(Operator):
    def __call__(
        self,
        k: torch.Tensor,
        v: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slots: torch.Tensor,
        *,
        cos: torch.Tensor | None = None,
        sin: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        interleaved: bool = False,
        rotary_dim: int | None = None,
    ) -> None:
        """Write keys and values of new tokens into a paged cache, in place; given tables, keys rotated.

        k: [..., Hk, E], v: [..., Hk, F], bf16, f16 or f32, contiguous along the last dim. k_cache: [P, page,
        Hk, E], v_cache: [P, page, Hk, F], of their dtype, as `paged_attention` reads them: any view that is
        contiguous along its last dim. slots: int32 or int64 [...]: s is the slot s % page of page s // page, -1
        is padding and not written; no two tokens have the same one. A slot outside of the cache writes nothing
        and sets the device's error word (raised under RLK_CHECK=1). cos, sin, position_ids, interleaved,
        rotary_dim: as in `rope`, with whose f32 arithmetic keys are rotated.

        One kernel where E = F, else two. Differentiable in nothing. Raises LaunchError.
        """

write_cache: _WriteCache

OPERATORS: dict[str, Operator]

def __getattr__(name: str) -> Namespace: ...  # the operators of another package
