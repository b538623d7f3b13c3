"""TRL's log-probs, entropies and GRPO loss through rlk: `with rlk.integrations.trl.patched(): ...`."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

import torch

from rlk import ops
from rlk.errors import Code, LaunchError
from rlk.integrations import patching
from rlk.integrations.swap import Swap, Swaps
from rlk.integrations.tensors import SHORT, entropies, f32, no_form, rows_of
from rlk.ops import LOSSES, Loss
from rlk.ops.losses import Correction, cispo, clip, sapo, vespo

VERSIONS = ("1.16.0",)
Tensors = dict[str, Any]
Logps = tuple[torch.Tensor, torch.Tensor]
MEDIA = (
    "pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles",
    "image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids",
)  # fmt: skip
CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")
GLOBAL = ("cispo", "dapo", "vespo")
"""Loss types that are summed, and divided by the tokens of a whole generation batch."""


# --- log-probs ----------------------------------------------------------------------------------------------


def selective_log_softmax(
    logits: torch.Tensor, index: torch.Tensor, temperature: float = 1.0, row_mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Return log-probs of ids [...] or [..., K] of logits [..., V], f32; 0 where a row's mask is 0."""
    mask = None if row_mask is None else row_mask != 0
    several = index.dim() == logits.dim()
    made = [
        ops.logp(logits, ids.contiguous(), temperature=temperature, mask=mask).logp
        for ids in (index.unbind(-1) if several else (index,))
    ]
    found: list[torch.Tensor] = [x for x in made if x is not None]
    return torch.stack(found, -1) if several else found[0]


def entropy_from_logits(logits: torch.Tensor, chunk_size: int = 128) -> torch.Tensor:
    """Return the entropy of each row of logits [..., V], f32; nothing is chunked."""
    return entropies(logits)


def selective_log_softmax_and_entropy(
    logits: torch.Tensor,
    index: torch.Tensor,
    entropy_requires_grad: bool = True,
    temperature: float = 1.0,
    row_mask: torch.Tensor | None = None,
) -> Logps:
    """Return log-probs of ids [...] and entropies of logits [..., V], both f32, in one pass."""
    mask = None if row_mask is None else row_mask != 0
    made = ops.logp(logits, index, temperature=temperature, mask=mask, needs=("logp", "entropy"))
    assert made.logp is not None and made.entropy is not None
    return made.logp, made.entropy if entropy_requires_grad else made.entropy.detach()


class FusedLogProbs:
    """Replacement of TRL's ChunkedLogProbFunction, which every trainer with `fused_lm_head=True` calls."""

    @staticmethod
    def apply(
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        temperature: float,
        chunk_size: int,
        final_logit_softcapping: float | None = None,
        logit_scale: float = 1.0,
        outputs: tuple[str, ...] = ("entropy", "log_sum_sq_probs", "mean_logits", "is_top1"),
    ) -> tuple[torch.Tensor | None, ...]:
        """Return log-prob, entropy, log sum p^2, mean logit and whether the target is the likeliest, per row.

        hidden [N, D], weight [V, D], targets [N]; what is not in outputs is None. bf16 and f16, without a
        trained bias, and without the last three outputs: `linear_logp`, no logits in memory. Else f32
        logits of torch's product (autocast is honoured), and `logp` of them.
        """
        kind = hidden.device.type
        if torch.is_autocast_enabled(kind):
            hidden, weight = (x.to(torch.get_autocast_dtype(kind)) for x in (hidden, weight))
            bias = None if bias is None else bias.to(hidden.dtype)
        options: Any = {"temperature": temperature, "logit_scale": logit_scale}
        options["softcap"] = final_logit_softcapping
        rare = {"log_sum_sq_probs", "mean_logits", "is_top1"} & set(outputs)
        fixed = bias is None or not bias.requires_grad
        needs = ("logp", *(("entropy",) if "entropy" in outputs else ()))
        if hidden.dtype in SHORT and hidden.dtype == weight.dtype and fixed and not rare:
            made = ops.linear_logp(hidden, weight, targets, bias=bias, needs=needs, **options)
            return made.logp, made.entropy, None, None, None
        logits = torch.nn.functional.linear(f32(hidden), f32(weight), None if bias is None else f32(bias))
        needs += ("lse", "lse2", "argmax") if rare else ()
        made = ops.logp(logits, targets, needs=needs, **options)
        return made.logp, made.entropy, *_rare(made, logits.detach(), targets, rare, options)


def _rare(
    made: Any, logits: torch.Tensor, targets: torch.Tensor, rare: set[str], options: Any
) -> tuple[torch.Tensor | None, ...]:
    """Return log sum p^2, the mean logit and whether the target is the likeliest: without gradients."""
    z = logits * options["logit_scale"]
    if options["softcap"] is not None:
        z = options["softcap"] * torch.tanh(z / options["softcap"])
    return (
        (made.lse2 - 2 * made.lse).detach() if "log_sum_sq_probs" in rare else None,
        (z / options["temperature"]).mean(-1) if "mean_logits" in rare else None,
        made.argmax == targets if "is_top1" in rare else None,
    )


# --- the loss -----------------------------------------------------------------------------------------------


def loss_of(trainer: Any) -> Loss:
    """Return the record of a GRPOTrainer's loss, without its entropy bonus and its global normalisers.

    Raises UnsupportedError for a loss type that rlk does not have.
    """
    args, name, level = trainer.args, trainer.loss_type, trainer.importance_sampling_level
    base = replace(LOSSES["trl/bnpo"], level=level, metrics=("clip_fraction",))
    if name in GLOBAL:
        base = replace(base, aggregation="sum")
    elif name in ("grpo", "sapo"):
        base = replace(base, aggregation="sequence_mean")
    elif name in ("dr_grpo", "luspo"):
        most = float(trainer.max_completion_length) if name == "dr_grpo" else None
        base = replace(base, aggregation="sequence_sum", normalizer=most)
    if trainer.beta != 0.0:
        enters = "ratio" if args.use_bias_correction_kl else "loss"
        base = replace(base, beta=trainer.beta, kl_enters=enters)
    if name in CLIPPED:
        low = trainer.epsilon_low if trainer.epsilon_low < 1.0 else None  # no ratio is below 0
        return replace(base, surrogate=clip(low, trainer.epsilon_high, delta=args.delta))
    if name == "cispo":
        return replace(base, surrogate=cispo(None, trainer.epsilon_high))
    if name == "sapo":
        return replace(base, surrogate=sapo(args.sapo_temperature_pos, args.sapo_temperature_neg))
    if name == "vespo" and not (trainer.beta and args.use_bias_correction_kl):
        powers = (args.vespo_k_pos, args.vespo_lambda_pos, args.vespo_k_neg, args.vespo_lambda_neg)
        limits = LOSSES["trl/vespo"]
        return replace(
            base, surrogate=vespo(*powers), level="sequence_sum", token_limits=limits.token_limits,
            sequence_limits=limits.sequence_limits,
        )  # fmt: skip
    raise no_form("trl", f"loss_type={name!r}", "keep TRL's loss: LOG_PROBS.patch()")


def grpo_loss(self: Any, model: Any, inputs: Tensors) -> torch.Tensor:
    """Return the loss of one micro-batch of a GRPOTrainer, in place of its `_compute_loss`: f32 [].

    self: the trainer. inputs: prompt_ids and prompt_mask [B, P]; completion_ids and completion_mask [B, L];
    advantages, f32 [B] or [B, L]; and where the trainer has them old_per_token_logps, ref_per_token_logps,
    sampling_per_token_logps and tool_mask [B, L], importance_sampling_ratio [B, L] or [B, 1], and
    num_items_in_batch []. Log-probs come from the trainer's own path, which calls what else is swapped;
    importance weights of vLLM and entropy masks multiply advantages. Metrics are logged under TRL's names.

    Raises UnsupportedError for losses that rlk has not (docs/integrations.md lists them), and under `EXACT`
    LaunchError for a rollout whose log-probs are not the policy's.
    """
    if self.use_adaptive_entropy and self._entropy_bonus_enabled:
        raise no_form(
            "trl", "an adaptive entropy coefficient", "use entropy_coef, or LOG_PROBS.patch() alone"
        )
    mask = inputs["completion_mask"]
    mask = mask * inputs["tool_mask"] if "tool_mask" in inputs else mask
    ids, seen = (
        torch.cat([inputs[f"prompt_{what}"], inputs[f"completion_{what}"]], 1) for what in ("ids", "mask")
    )
    logp, entropy, aux = self._get_per_token_logps_and_entropies(
        model, ids, seen, inputs["completion_ids"].size(1), compute_entropy=True,
        compute_aux_loss=self.aux_loss_enabled, **{name: inputs.get(name) for name in MEDIA},
    )  # fmt: skip
    old = inputs.get("old_per_token_logps")
    old = logp.detach() if old is None else old
    counted = mask
    if self.top_entropy_quantile < 1.0:
        counted = mask * self.get_high_entropy_mask(entropy, mask, 1 - self.top_entropy_quantile)
    batch = {"logp": f32(logp), "old_logp": f32(old)}
    if self.beta != 0.0:
        batch["ref_logp"] = f32(inputs["ref_per_token_logps"])
    layout, loss = rows_of(mask), loss_of(self)
    advantages, loss, rollout = _weighted(self, inputs, batch, mask, counted, loss)
    made = ops.policy_loss(**batch, advantages=advantages, layout=layout, loss=loss, **rollout).loss
    made, policy = _normalized(self, inputs, made)
    if self._entropy_bonus_enabled:
        bonus = ops.entropy_bonus(f32(entropy), layout=rows_of(counted), coef=self.entropy_coef).loss
        made = made + bonus / _accumulated(self)
        self._metrics[_mode(self)]["policy_loss"].append(self.accelerator.gather(policy).nanmean().item())
        if _mode(self) == "train" and self.accelerator.sync_gradients:
            self._metrics["train"]["entropy_coef"].append(self.entropy_coef)
    if self.aux_loss_enabled:
        made = made + self.router_aux_loss_coef * aux / _accumulated(self)
        gathered = self.accelerator.gather_for_metrics(aux).mean().item()
        self._metrics[_mode(self)]["aux_loss"].append(gathered)
    _log(self, batch, inputs, mask, entropy.detach())
    if SCORES.on and self.use_vllm:
        _check_rollout(self, batch["logp"].detach(), inputs, mask)
    return made


def _weighted(
    trainer: Any, inputs: Tensors, batch: Tensors, mask: torch.Tensor, counted: torch.Tensor, loss: Loss
) -> tuple[torch.Tensor, Loss, Tensors]:
    """Return advantages with every weight that multiplies the surrogate, the loss, and its rollout."""
    given = f32(inputs["advantages"])
    advantages, rollout = given[:, None] if given.dim() == 1 else given, {}
    if trainer.off_policy_mask_threshold is not None:
        sampled = inputs.get("sampling_per_token_logps")
        if sampled is None:
            loss = replace(loss, most_drift=float(trainer.off_policy_mask_threshold))
        else:
            advantages = advantages * trainer.get_off_policy_mask(
                advantages, batch["logp"], sampled, mask, trainer.off_policy_mask_threshold
            )
    if counted is not mask:
        advantages = advantages * (counted != 0)
    if "importance_sampling_ratio" in inputs and trainer.loss_type == "vespo":
        weight = inputs["importance_sampling_ratio"]
        if weight.shape != mask.shape:
            raise no_form("trl", "vespo with a ratio of sequences", "use a token-level correction")
        # w of a token is exp(old - rollout): its log is what vespo adds to that of the sequence
        rollout["rollout_logp"] = batch["old_logp"] - weight.clamp(min=1e-8).log()
        loss = replace(loss, correction=Correction("truncate", "token", None, None))
    elif trainer.use_vllm and trainer.vllm_importance_sampling_correction and trainer.loss_type != "vespo":
        advantages = advantages * inputs["importance_sampling_ratio"]
    return advantages.expand(mask.shape).contiguous().float(), loss, rollout


def _normalized(trainer: Any, inputs: Tensors, loss: torch.Tensor) -> Logps:
    """Return the loss as accumulation and processes want it, and what TRL logs of it."""
    if trainer.loss_type not in GLOBAL:
        return loss / _accumulated(trainer), loss.detach()
    count = inputs["num_items_in_batch"].clamp(min=1.0) / trainer.accelerator.num_processes
    if _mode(trainer) == "train":
        count = count * _accumulated(trainer) / trainer.args.steps_per_generation
    loss = loss / count
    return loss, loss.detach()


def _mode(trainer: Any) -> str:
    return "train" if trainer.model.training else "eval"


def _accumulated(trainer: Any) -> float:
    return trainer.current_gradient_accumulation_steps if trainer.model.training else 1.0


@torch.no_grad()
def _log(trainer: Any, batch: Tensors, inputs: Tensors, mask: torch.Tensor, entropy: torch.Tensor) -> None:
    """Append TRL's metrics of a micro-batch; these means are torch's, and wait for the device as TRL's do."""
    into, layout = trainer._metrics[_mode(trainer)], rows_of(mask)
    logp, old = batch["logp"].detach(), batch["old_logp"].detach()
    log_ratio = torch.where(layout.active, logp - old, 0.0)
    if trainer.importance_sampling_level == "sequence":
        log_ratio = (log_ratio.sum(-1) / mask.sum(-1).clamp(min=1))[:, None]
    ratio, given = log_ratio.exp(), inputs["advantages"]
    sign = given[:, None] if given.dim() == 1 else given

    def mean(x: torch.Tensor) -> float:
        whole = x.shape[1] == 1
        part = torch.stack([x.sum(), torch.full_like(x[0, 0], len(x))])
        if not whole:
            part = torch.stack([torch.where(layout.active, x, 0.0).sum(), mask.sum().to(x.dtype)])
        total = trainer.accelerator.reduce(part, reduction="sum")
        return (total[0] / total[1].clamp(min=1.0)).item()

    def of_rows(x: torch.Tensor) -> torch.Tensor:
        rows = x[:, 0] if x.shape[1] == 1 else torch.where(layout.active, x, 0.0).sum(-1) / mask.sum(-1)
        gathered: torch.Tensor = trainer.accelerator.gather(rows)
        return gathered[~gathered.isnan()]

    if trainer.beta != 0.0:
        kl = ops.ratio_kl(logp, old, batch["ref_logp"], mask=layout.active).kl
        into["kl"].append(mean(kl * ratio if trainer.args.use_bias_correction_kl else kl))
    into["entropy"].append(mean(entropy))
    if trainer.loss_type in CLIPPED:
        if trainer.args.delta is not None:
            ratio = ratio.clamp(max=trainer.args.delta)
        low = ((ratio < 1 - trainer.epsilon_low) & (sign < 0)).float()
        high = ((ratio > 1 + trainer.epsilon_high) & (sign > 0)).float()
        for name, x in (("low_mean", low), ("high_mean", high), ("region_mean", low + high)):
            into[f"clip_ratio/{name}"].append(mean(x))
        for name, rows in (("low_min", of_rows(low)), ("high_max", of_rows(high))):
            found = (
                (rows.min() if name == "low_min" else rows.max()) if len(rows) else torch.tensor(torch.nan)
            )
            into[f"clip_ratio/{name}"].append(found.item())
    elif trainer.loss_type == "cispo":
        into["cispo_clip_ratio"].append(mean(((ratio > trainer.epsilon_high) & (sign > 0)).float()))
    elif trainer.loss_type == "vespo":
        into["vespo/phi_seq_mean"].append(mean(_phi(trainer, sign, logp - old, mask, inputs)))


def _phi(
    trainer: Any, sign: torch.Tensor, log_ratio: torch.Tensor, mask: torch.Tensor, inputs: Tensors
) -> torch.Tensor:
    """Return vespo's weights of sequences, which TRL's own method computes for the log."""
    args = trainer.args
    return trainer.get_gamma_weights(
        sign, log_ratio, mask, inputs.get("importance_sampling_ratio"), args.vespo_k_pos,
        args.vespo_lambda_pos, args.vespo_k_neg, args.vespo_lambda_neg,
    )  # fmt: skip


# --- vLLM in the same process -------------------------------------------------------------------------------

NEUTRAL_OPTIONS = {
    "repetition_penalty": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "structured_outputs_regex": None,
}  # fmt: skip
"""Options of TRL's VLLMGeneration under which a token's log-prob is that of the softmax by temperature."""
ALLOWED_KWARGS = frozenset(
    "detokenize ignore_eos include_stop_str_in_output max_tokens stop stop_token_ids".split()
)
"""What `generation_kwargs` may have: nothing that changes what is drawn from."""


def init_vllm(self: Any) -> None:
    """Make TRL's engine with quantization="rlk", in place of `VLLMGeneration._init_vllm`.

    Raises UnsupportedError before there is an engine: for a server, for adapters, whose merged weights are
    rounded, for options that change log-probs beside the temperature, for one seed of all requests, for a
    policy that is not patched whole or rounds its logits; and after, for numerics that are not the engine's.
    """
    found = {name: getattr(self, name) for name in NEUTRAL_OPTIONS}
    changed = [f"{n}={x!r}" for n, x in found.items() if (x or NEUTRAL_OPTIONS[n]) != NEUTRAL_OPTIONS[n]]
    changed += [
        f"generation_kwargs[{name!r}]" for name in sorted(set(self.generation_kwargs) - ALLOWED_KWARGS)
    ]
    if hasattr(self.model, "peft_config"):
        raise no_form("trl", "an adapter, which TRL merges for the engine", "train all weights")
    if self.mode != "colocate":
        raise no_form("trl", f"vllm_mode={self.mode!r}", 'use vllm_mode="colocate"')
    if "seed" in self.generation_kwargs:
        instead = (
            "leave it out: TRL asks for each completion alone, and with one seed those of a group are equal"
        )
        raise no_form("trl", "generation_kwargs['seed']", instead)
    if changed:
        instead = "leave it out: TRL's log-probs are those of the temperature alone"
        raise no_form("trl", ", ".join(changed), instead)
    of_policy = _numerics_id(self.model)
    where = import_module("trl.generation.vllm_generation")
    theirs = where.LLM

    def engine(**options: Any) -> Any:
        if options.get("quantization") is not None:
            raise no_form("trl", f"a policy quantized by {options['quantization']}", "load it in bfloat16")
        return theirs(**options | {"quantization": "rlk"})

    where.LLM = engine
    try:
        ENGINE.original(INIT)(self)
    finally:
        where.LLM = theirs
    (of_engine,) = set(self.llm.collective_rpc("rlk_numerics_id"))
    if of_policy != of_engine:
        raise no_form(
            "trl", f"a policy of numerics {of_policy} with an engine of {of_engine}",
            "use one device, one dtype and one number of leaves (rlk_leaves in config.json) for both",
        )  # fmt: skip


def _numerics_id(model: Any) -> str:
    """Return the id of a policy's numerics; raise UnsupportedError if its logits are not rlk's in f32."""
    head = getattr(getattr(model.get_output_embeddings(), "forward", None), "__func__", None)
    if len(patching.patched_decoders(model)) != 1 or not hasattr(head, "logits_dtype"):
        instead = "use rlk.patch(model), strict, before GRPOTrainer(model)"
        raise no_form("trl", "a policy that is not patched whole", instead)
    if head.logits_dtype != torch.float32:
        raise no_form("trl", "a policy whose logits are rounded", 'use rlk.patch(model, logits="float32")')
    first = next(p for p in model.parameters() if p.is_floating_point())
    return patching.numerics_id(model, first.device)


def generate_and_score(self: Any, inputs: Any) -> Tensors:
    """Return TRL's batch of completions with the rollout's log-probs for the old ones, without their pass.

    In place of `GRPOTrainer._generate_and_score_completions`, which computes the old log-probs with the
    weights that it has just sent to the engine: the same function of the same weights and tokens. Beside
    TRL's keys: old_per_token_logps f32 [B, L], the rollout's; importance_sampling_ratio, ones [B, L], or
    [B, 1] of sequences, if the trainer corrects by it; rlk_step int64 [B], the step whose weights drew.
    Raises UnsupportedError for a token without a log-prob. Without vLLM the batch is TRL's.
    """
    theirs = SCORES.original(SCORE)
    if not self.use_vllm:
        return dict(theirs(self, inputs))
    corrects, passes = self.vllm_importance_sampling_correction, self._get_per_token_logps_and_entropies
    every = self.args.steps_per_generation * self.num_iterations
    old = [self.args.gradient_accumulation_steps % every != 0]  # whether TRL's first pass is that of them

    def without_old(*args: Any, **options: Any) -> Any:
        return (None, None, None) if old and old.pop() else passes(*args, **options)

    self.vllm_importance_sampling_correction = False
    self._get_per_token_logps_and_entropies = without_old
    try:
        made = dict(theirs(self, inputs))
    finally:
        self.vllm_importance_sampling_correction = corrects
        self._get_per_token_logps_and_entropies = passes
    sampled = made["sampling_per_token_logps"]
    if bool(sampled.isnan().any()):
        raise no_form("trl", "a token without a log-prob", "let every token of a completion be drawn by vLLM")
    made["old_per_token_logps"] = sampled
    made["rlk_step"] = torch.full((len(sampled),), self.state.global_step)  # of the weights that drew
    if corrects:
        whole = self.vllm_importance_sampling_mode.startswith("sequence")
        made["importance_sampling_ratio"] = torch.ones_like(sampled[:, :1] if whole else sampled)
    return made


@torch.no_grad()
def _check_rollout(trainer: Any, logp: torch.Tensor, inputs: Tensors, mask: torch.Tensor) -> None:
    """Log how the rollout's log-probs differ from a training forward of the same weights.

    Raises LaunchError if they do: then old log-probs would have to be computed. Not looked at are batches
    that are used again after a step of the optimizer, and policies that no sampler drew from.
    """
    if int(inputs["rlk_step"][0]) != trainer.state.global_step:
        return
    sampled, where, into = inputs["sampling_per_token_logps"], mask.bool(), trainer._metrics[_mode(trainer)]
    d = (logp - sampled)[where]
    d = d if len(d) else logp.new_zeros(1)
    ratio, away = d.exp(), d.abs()
    numbers = torch.stack(
        [away.mean(), away.max(), ratio.min(), ratio.mean(), ratio.max(), (away != 0).sum(), where.sum()]
    )
    gathered = trainer.accelerator.gather(numbers[None].double())
    most, least = gathered.amax(0).tolist(), gathered.amin(0).tolist()
    mean = gathered.mean(0).tolist()
    for name, value in (
        ("sampling_logp_difference/mean", mean[0]),
        ("sampling_logp_difference/max", most[1]),
        ("importance_sampling_ratio/min", least[2]),
        ("importance_sampling_ratio/mean", mean[3]),
        ("importance_sampling_ratio/max", most[4]),
    ):
        into[f"sampling/{name}"].append(value)
    if most[5]:
        raise LaunchError(
            Code.ROLLOUT_DIFFERS, count=int(most[5]), of=int(most[6]), most=f"{most[1]:.3g}", peer="trl"
        )


# --- the swap -----------------------------------------------------------------------------------------------

LOG_PROBS = Swap(
    "trl",
    VERSIONS,
    {
        "trl.trainer.utils:selective_log_softmax": selective_log_softmax,
        "trl.trainer.utils:entropy_from_logits": entropy_from_logits,
        "trl.trainer.utils:selective_log_softmax_and_entropy": selective_log_softmax_and_entropy,
        "trl.kernels.chunked_logprob:ChunkedLogProbFunction": FusedLogProbs,
    },
)
LOSS = Swap("trl", VERSIONS, {"trl.trainer.grpo_trainer:GRPOTrainer._compute_loss": grpo_loss})
INIT = "trl.generation.vllm_generation:VLLMGeneration._init_vllm"
SCORE = "trl.trainer.grpo_trainer:GRPOTrainer._generate_and_score_completions"
ENGINE = Swap("trl", VERSIONS, {INIT: init_vllm})
SCORES = Swap("trl", VERSIONS, {SCORE: generate_and_score})
SWAPS = Swaps((LOG_PROBS, LOSS))
VLLM = Swaps((LOG_PROBS, LOSS, ENGINE))
"""The same, and rlk's engine for `use_vllm=True`; TRL computes old log-probs, and logs that they agree."""
EXACT = Swaps((LOG_PROBS, LOSS, ENGINE, SCORES))
"""The same without the pass for old log-probs: those of the rollout are used, and checked in the loss."""
patch, unpatch, patched = SWAPS.patch, SWAPS.unpatch, SWAPS.patched
