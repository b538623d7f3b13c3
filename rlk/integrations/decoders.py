"""Forwards that `rlk.patch` puts into a transformers model, in place of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer, StaticLayer
from transformers.loss.loss_utils import ForCausalLMLoss
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from rlk import ops
from rlk.integrations import batch as batches
from rlk.integrations.batch import PEER, Batch, CachedSequences
from rlk.integrations.tensors import SHORT, no_form
from rlk.nn.compute import AttentionOptions, attention, decoder_layer, gated_mlp, product_alone
from rlk.nn.config import Experts, ModelConfig, Profile
from rlk.nn.embedded import embedding_of_ranks, whole_embedding_of_ranks
from rlk.nn.experts import Routed, RouteLog, mixture, routed
from rlk.nn.logits import head_logp
from rlk.nn.normed import rms_norm_of_rows
from rlk.nn.packed import check_ids
from rlk.nn.products import column_linear, column_linear_of_ranks, row_linear, row_linear_of_ranks
from rlk.nn.ranks import Ranks, or_all_raise
from rlk.nn.rotary import tables_of
from rlk.nn.tokens import Tokens, WholeSequences
from rlk.ops.results import LogProbs
from rlk.runtime.binding.checks import wrong_value

Forward = Callable[..., Any]
Scored = Callable[[Any, torch.Tensor], tuple[torch.Tensor, torch.Tensor | None]]
IGNORED = frozenset(
    "cache_position cu_seq_lens_k max_length_q max_length_k num_items_in_batch is_causal".split()
)
"""Keywords that change nothing here; any other that says something is refused."""
ROUTER_LOGITS = "output_router_logits"
ROUTER_LOSSES = "set it to False; a forward hook on layer.mlp.gate has the scores for rlk.ops.router_losses"
NAMES: WeakKeyDictionary[torch.nn.Module, str] = WeakKeyDictionary()
"""Names of linear layers in the model that was patched, for messages."""
CHECKPOINTED_OUTSIDE = "__call__" in vars(GradientCheckpointingLayer)
"""Whether transformers checkpoints around a layer's forward (5.17), not inside of it (5.23)."""


@dataclass(frozen=True, slots=True, eq=False)
class Decoding:
    """Options of one model's forwards. logits_dtype: of logits, None for the model's own.

    loss_logits: a training forward with labels returns logits too.
    """

    config: ModelConfig
    layers: tuple[AttentionOptions, ...]
    logits_dtype: torch.dtype | None
    loss_logits: bool

    @staticmethod
    def of(config: ModelConfig, logits_dtype: torch.dtype | None, loss_logits: bool) -> Decoding:
        tables = tables_of(config.ropes, config.max_position_embeddings)
        layers = tuple(AttentionOptions.of(config, i, each) for i, each in enumerate(tables))
        return Decoding(config, layers, logits_dtype, loss_logits)


def module_ranks(module: Any) -> Ranks | None:
    """Return the ranks that share a module's weight, None if it is whole."""
    found: Ranks | None = module.__dict__.get("ranks")
    return found


# --- modules with the arguments that transformers gives them -----------------------------------------------


@cache
def linear_forward(rows: bool, leaves: int) -> Forward:
    """Return the forward of a linear layer. rows: its input features may be shared by ranks."""
    product = row_linear if rows else column_linear

    @product_alone
    def forward(self: Any, input: torch.Tensor) -> torch.Tensor:
        x, w, bias = input, self.weight, self.bias
        if w.dtype not in SHORT or x.dtype != w.dtype:
            x, w, bias = _autocast(self, x, w, bias)
        ranks = module_ranks(self)
        if ranks is None:
            return product(x, w, bias, leaves)
        if rows:
            return row_linear_of_ranks(x, w, bias, leaves, ranks)
        return column_linear_of_ranks(x, w, bias, leaves, ranks)

    return forward


def _autocast(layer: Any, x: torch.Tensor, *rest: torch.Tensor | None) -> list[Any]:
    """Return tensors in the dtype of autocast, as torch's own product takes them there. layer: has them."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind):
        where = NAMES.get(layer, type(layer).__name__)
        raise no_form(
            PEER, f"{where} with weights of {layer.weight.dtype} and an input of {x.dtype}",
            "use one 16-bit dtype (peft: autocast_adapter_dtype=False), or torch.autocast",
        )  # fmt: skip
    dtype = torch.get_autocast_dtype(kind)
    return [None if t is None else t.to(dtype) for t in (x, *rest)]


@cache
def norm_forward(profile: Profile, eps: str) -> Forward:
    """Return the forward of an RMSNorm. eps: the name of its attribute."""

    def forward(
        self: Any, hidden_states: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        ranks, number = module_ranks(self), getattr(self, eps)
        if ranks is not None:
            y, total = rms_norm_of_rows(hidden_states, residual, self.weight, number, profile, ranks)
            return y if residual is None else (y, total)
        made = ops.rms_norm(hidden_states, self.weight, residual=residual, eps=number, profile=profile)
        return made if residual is None else (made.y, made.residual)

    return forward


def embedding_forward(self: Any, input: torch.Tensor) -> torch.Tensor:
    """Return rows of an embedding, times its `embed_scale` if it has one; `padding_idx` gets no gradient."""
    ranks = module_ranks(self)
    if ranks is None:
        check_ids(input, len(self.weight), op=PEER)
        x = ops.embedding(input, self.weight)
    else:
        embedded = embedding_of_ranks if "shares" in vars(self) else whole_embedding_of_ranks
        x, input = embedded(input, self.weight, ranks), input[ranks.rows(len(input))]
    if self.padding_idx is not None and x.requires_grad:
        x = torch.where((input == self.padding_idx)[..., None], x.detach(), x)
    scale = getattr(self, "embed_scale", None)
    return x if scale is None else x * scale.to(x.dtype)


WITHOUT_LOGITS = (
    "a loss of labels returns logits in eval mode: call model.train() first; logits without gradients: use "
    "torch.no_grad(); log-probs: logps of what rlk.patch returned; or take a plan= without lm_head"
)


@cache
def head_forward(dtype: torch.dtype | None) -> Forward:
    """Return the forward of a head: logits of a dtype, or log-probs of ids without them."""

    def forward(
        self: Any, input: torch.Tensor, ids: torch.Tensor | None = None, **options: Any
    ) -> torch.Tensor | LogProbs:
        ranks = module_ranks(self)
        if ids is not None:
            return head_logp(input, self.weight, ids, ranks, bias=self.bias, **options)
        if ranks is not None and input.requires_grad and torch.is_grad_enabled():
            what = "logits with gradients where ranks share the head"
            raise no_form(PEER, what, WITHOUT_LOGITS)
        z = ops.matmul(input, self.weight, bias=self.bias, out_dtype=dtype)
        return z if ranks is None else ranks.all_columns(z)

    forward.gives_log_probs = forward  # type: ignore[attr-defined]
    forward.logits_dtype = dtype  # type: ignore[attr-defined]
    return forward


# --- modules with the arguments that the forwards below give them -------------------------------------------


def attention_forward(at: AttentionOptions) -> Forward:
    """Return the forward of an attention layer."""

    def forward(self: Any, x: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        if self.training and getattr(self, "attention_dropout", 0.0):
            raise no_form(PEER, f"attention_dropout={self.attention_dropout} in training", "set it to 0")
        return attention(self, x, tokens, at)

    return forward


def mlp_forward(config: ModelConfig) -> Forward:
    """Return the forward of a gated MLP."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return gated_mlp(self, x, config.activation, config.leaves)

    return forward


def of_all_tokens(inner: Forward) -> Forward:
    """Return the forward of a layer with whole weights, of which a rank gives and gets its own tokens."""

    def forward(self: Any, x: torch.Tensor, *given: Any) -> torch.Tensor:
        ranks = module_ranks(self)
        assert ranks is not None
        return ranks.own_rows(inner(self, ranks.whole(x), *given))

    return forward


def experts_forward(config: ModelConfig, layer: int) -> Forward:
    """Return the forward of a layer of experts."""
    experts = config.experts
    assert experts is not None
    number = experts.number(layer)

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return mixture(self, x, experts, number, None, config.leaves)

    return forward


def scores_of(router: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the scores of rows by a router, rounded to their dtype, and no correction of the choice."""
    return ops.matmul(x, router.weight, bias=getattr(router, "bias", None)), None


def corrected_scores_of(router: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the scores of rows in f32, and the numbers that correct the choice (DeepSeek-V3)."""
    return ops.matmul(x, router.weight, out_dtype=torch.float32), router.e_score_correction_bias.float()


def router_forward(experts: Experts, scored: Scored = scores_of) -> Forward:
    """Return the forward of a router: scores, weights and ids of the rows of hidden_states, as `routed` does.

    It may be called as transformers' own, by hidden_states [..., hidden] alone.
    """

    def forward(
        self: Any, hidden_states: torch.Tensor, at: Experts = experts, layer: int = 0,
        routes: RouteLog | None = None,
    ) -> Routed:  # fmt: skip
        scores, correction = scored(self, hidden_states.reshape(-1, hidden_states.shape[-1]))
        return routed(scores, at, layer, routes, correction)

    return forward


def block_forward(at: Experts) -> Forward:
    """Return the forward of DeepSeek-V3's experts with the one that all tokens go through, [..., hidden]."""

    def forward(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        x = hidden_states.flatten(0, -2)
        return mixture(self, x, at, 0, None).view_as(hidden_states) + self.shared_experts(hidden_states)

    return forward


def layer_forward(sandwich: bool) -> Forward:
    """Return the forward of a decoder layer: of a pair (x, residual), whose sum the next norm takes."""

    def forward(
        self: Any, x: torch.Tensor, residual: torch.Tensor | None, tokens: Tokens
    ) -> tuple[torch.Tensor, torch.Tensor]:
        run = partial(decoder_layer, self, sandwich=sandwich)
        if self.gradient_checkpointing and self.training and not CHECKPOINTED_OUTSIDE:
            return self._gradient_checkpointing_func(run, x, residual, tokens)
        return run(x, residual, tokens)

    return forward


def model_forward(at: Decoding) -> Forward:
    """Return the forward of a decoder without its head: padding removed, layers, norm, padding restored."""

    def forward(
        self: Any,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        given = input_ids if inputs_embeds is None else inputs_embeds
        if given is None or (input_ids is not None and inputs_embeds is not None):
            raise no_form(PEER, "not exactly one of input_ids and inputs_embeds", "give one")
        hidden_states, as_dict = _read_options(self, kwargs)
        held = _cache(self, past_key_values, use_cache)
        ranks = module_ranks(self)
        batch = kwargs.pop("batch", None) or read_batch(
            at, given, attention_mask, position_ids, held, kwargs.pop("cu_seq_lens_q", None), ranks,
            {"call": "the decoder"},
        )  # fmt: skip
        _refuse(kwargs)
        if ranks is not None:
            ranks.tokens = len(batch.tokens.positions)
            if ranks.sequence and (inputs_embeds is not None or hidden_states):
                what = "inputs_embeds or output_hidden_states where ranks have tokens of their own"
                raise no_form(PEER, what, "parallelize with sp=False")
        x = self.embed_tokens(batch.pack(input_ids)) if inputs_embeds is None else batch.pack(inputs_embeds)
        if x.dtype not in SHORT:
            raise no_form(PEER, f"hidden states of {x.dtype}", "load the model with dtype=torch.bfloat16")
        residual, seen = None, []
        for layer in self.layers[: at.config.num_hidden_layers]:
            if hidden_states:
                seen.append(batch.restore(x if residual is None else residual + x))
            x, residual = layer(x, residual, batch.tokens)
        x = self.norm(x) if residual is None else self.norm(x, residual)[0]
        x = batch.restore(x if ranks is None else ranks.whole(x))
        made = BaseModelOutputWithPast(
            last_hidden_state=x, past_key_values=held, hidden_states=(*seen, x) if hidden_states else None
        )
        return made if as_dict else made.to_tuple()

    return forward


def causal_forward(at: Decoding) -> Forward:
    """Return the forward of a causal language model. needs: return log-probs of input_ids, without logits."""

    def forward(
        self: Any,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        *,
        needs: tuple[str, ...] = (),
        temperature: float = 1.0,
        **kwargs: Any,
    ) -> Any:
        loss_options = {n: kwargs.pop(n) for n in LOSS_OPTIONS if n in kwargs}
        skip = kwargs.pop("skip_logits", None)
        as_dict = kwargs.pop("return_dict", None)
        held = _cache(self.model, past_key_values, False if needs else use_cache)
        given = input_ids if inputs_embeds is None else inputs_embeds
        batch = read_batch(
            at, given, attention_mask, position_ids, held, kwargs.pop("cu_seq_lens_q", None),
            module_ranks(self.model),
            {"call": "logps" if needs else "forward", "needs": needs, "temperature": temperature,
             "labels": labels},
        )  # fmt: skip
        out = self.model(
            input_ids=input_ids, past_key_values=held, inputs_embeds=inputs_embeds,
            use_cache=held is not None, batch=batch, return_dict=True, **kwargs,
        )  # fmt: skip
        if needs:
            if labels is not None:
                raise no_form(PEER, "log-probs of labels", "leave labels out: log-probs are of input_ids")
            return _log_probs(self, at, batch, out.last_hidden_state, input_ids, needs, temperature)
        loss = logits = None
        fused = labels is not None and self.loss_function is ForCausalLMLoss
        if fused:
            loss = _loss(self, at, batch, out.last_hidden_state, labels, **loss_options)
            skip = self.training and not at.loss_logits if skip is None else skip
        if not (fused and skip):
            logits = _logits(self, at, batch, out.last_hidden_state, logits_to_keep)
            # autograd forbids writing to a view of what a custom function made, and trainers divide logits in
            # place; the tensor that this one shares its memory with is not used again
            logits = torch.ops.aten._unsafe_view.default(logits, logits.shape)
        if labels is not None and not fused:
            options = {"vocab_size": at.config.vocab_size, **loss_options}
            loss = self.loss_function(logits=logits, labels=labels, **options)
        made = CausalLMOutputWithPast(
            loss=loss, logits=logits, past_key_values=out.past_key_values, hidden_states=out.hidden_states
        )
        return made if (self.config.return_dict if as_dict is None else as_dict) else made.to_tuple()

    return forward


LOSS_OPTIONS = ("num_items_in_batch", "ignore_index", "shift_labels")


def read_batch(
    at: Decoding,
    given: torch.Tensor | None,
    mask: torch.Tensor | None,
    positions: torch.Tensor | None,
    held: Any,
    cu_seqlens: torch.Tensor | None,
    ranks: Ranks | None,
    call: dict[str, object],
) -> Batch:
    """Return the packed tokens of ids [B, L] or embeddings [B, L, hidden].

    ranks: those that share the decoder, and compare ids and `call` in its embedding.
    """
    if given is None:
        raise no_form(PEER, "not exactly one of input_ids and inputs_embeds", "give one")
    batches.check_given(given)
    shape, device = (given.shape[0], given.shape[1]), given.device

    def read() -> Batch:
        return batches.read(
            shape, device, mask=mask, positions=positions, cu_seqlens=cu_seqlens, cache=held,
            window=any(w is not None for w in at.config.windows), longest=at.config.max_position_embeddings,
        )  # fmt: skip

    batch = or_all_raise(None if given.is_floating_point() else ranks, given, read)
    if ranks is not None:
        tokens = batch.tokens
        if isinstance(tokens, WholeSequences):
            ranks.call = {"cu_seqlens": tokens.cu_seqlens, **call}
        elif isinstance(tokens, CachedSequences):
            ranks.call = {"cu_seqlens": tokens.cu_q, "offsets of keys": tokens.cu_k, **call}
    return batch


# --- the head ---------------------------------------------------------------------------------------------


def _scores(self: Any, at: Decoding, hidden: torch.Tensor) -> torch.Tensor:
    """Return logits [..., V] of hidden states, softcapped."""
    z: torch.Tensor = self.lm_head(hidden)
    if at.config.final_softcap is None:
        return z
    return (torch.tanh(z.float() / at.config.final_softcap) * at.config.final_softcap).to(z.dtype)


def _scored(self: Any, at: Decoding, hidden: torch.Tensor, ids: torch.Tensor, **options: Any) -> LogProbs:
    """Return log-probs of ids [T] after hidden states [T, hidden]; without logits if the head is plain."""
    found = getattr(self.lm_head.forward, "__func__", None)
    if found is not None and getattr(found, "gives_log_probs", None) is found:
        # through the module, so that its hooks run: they may gather its weight
        made: LogProbs = self.lm_head(hidden, ids, softcap=at.config.final_softcap, **options)
        return made
    return ops.logp(_scores(self, at, hidden), ids, **options)


def _log_probs(
    self: Any,
    at: Decoding,
    batch: Batch,
    hidden: torch.Tensor,
    ids: torch.Tensor | None,
    needs: tuple[str, ...],
    temperature: float,
) -> LogProbs:
    """Return log p(ids[t] | ids before t) [B, L]; 0 at padding and at the first token of a sequence."""
    if ids is None or not isinstance(batch.tokens, WholeSequences):
        raise no_form(PEER, "log-probs without ids or beside a cache", "give input_ids of whole sequences")
    flat, cu = batch.pack(ids), batch.tokens.cu_seqlens
    has_next = torch.ones(len(flat), dtype=torch.bool, device=flat.device)
    has_next[(cu[1:] - 1)[cu[1:] > cu[:-1]].to(torch.int64)] = False
    following = torch.nn.functional.pad(flat[1:], (0, 1)) if len(flat) else flat
    made = _scored(
        self, at, batch.pack(hidden), following, mask=has_next, needs=needs, temperature=temperature
    )

    def behind(x: torch.Tensor) -> torch.Tensor:
        return batch.restore(torch.nn.functional.pad(x[:-1], (1, 0)) if len(x) else x)

    return LogProbs(*(None if x is None else behind(x) for x in made))


def _loss(
    self: Any,
    at: Decoding,
    batch: Batch,
    hidden: torch.Tensor,
    labels: torch.Tensor,
    num_items_in_batch: torch.Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return transformers' ForCausalLMLoss of the tokens that exist: their mean, or sum / num_items."""
    if shift_labels is None:
        shift_labels = torch.nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    _check_labels(self, shift_labels, hidden, ignore_index)
    targets = batch.pack(shift_labels.to(hidden.device))
    logp = _scored(self, at, batch.pack(hidden), targets, ignore_index=ignore_index).logp
    assert logp is not None
    count = (targets != ignore_index).sum() if num_items_in_batch is None else num_items_in_batch
    return -logp.sum() / (count.to(logp.device) if isinstance(count, torch.Tensor) else count)


def _check_labels(self: Any, labels: torch.Tensor, hidden: torch.Tensor, ignore_index: int) -> None:
    """Raise LaunchError for labels of another shape or dtype than ids have; on the host, for other ids."""
    shape = hidden.shape[:-1]
    if labels.shape != shape:
        raise wrong_value(PEER, "labels", list(labels.shape), f"the shape of the ids, {list(shape)}")
    if labels.dtype not in (torch.int64, torch.int32):
        raise wrong_value(PEER, "labels", labels.dtype, "torch.int64 or torch.int32")
    if labels.device.type == "cpu":
        check_ids(labels[labels != ignore_index], self.config.vocab_size, op=PEER, name="labels")


def _logits(
    self: Any, at: Decoding, batch: Batch, hidden: torch.Tensor, keep: int | torch.Tensor
) -> torch.Tensor:
    """Return logits of all positions, or of those to keep; 0 at padding."""
    if isinstance(keep, torch.Tensor) and keep.ndim == 2:
        if keep.dtype == torch.bool:
            return _scores(self, at, hidden[keep])
        return _scores(self, at, torch.take_along_dim(hidden, keep[..., None], dim=1))
    if isinstance(keep, int) and keep == 0:
        return batch.restore(_scores(self, at, batch.pack(hidden)))
    part = slice(-keep, None) if isinstance(keep, int) else keep
    hidden = hidden[:, part]
    rows = None
    if batch.rows is not None:  # tokens of a product are counted without padding
        real = torch.zeros(batch.shape, dtype=torch.bool, device=hidden.device).flatten()
        rows = real.index_fill(0, batch.rows, True).view(batch.shape)[:, part].flatten().nonzero().flatten()
    shape = (hidden.shape[0], hidden.shape[1])
    flat = hidden.flatten(0, 1)
    return batches.spread(_scores(self, at, flat if rows is None else flat[rows]), rows, shape)


# --- options and caches -----------------------------------------------------------------------------------


def _read_options(self: Any, kwargs: dict[str, Any]) -> tuple[bool, bool]:
    """Take output_hidden_states and return_dict from keywords; refuse attentions and router logits."""
    found = []
    for name in ("output_attentions", ROUTER_LOGITS, "output_hidden_states", "return_dict"):
        said = kwargs.pop(name, None)
        found.append(bool(getattr(self.config, name, False) if said is None else said))
    if found[0]:
        raise no_form(PEER, "output_attentions", "leave it out: probabilities never reach memory")
    if found[1]:
        raise no_form(PEER, ROUTER_LOGITS, ROUTER_LOSSES)
    return found[2], found[3]


def _refuse(kwargs: dict[str, Any]) -> None:
    """Raise UnsupportedError for keywords that ask for something else."""
    if kwargs.get("is_causal") is False:
        raise no_form(PEER, "is_causal=False", "decoders are causal")
    unknown = sorted(n for n, x in kwargs.items() if n not in IGNORED and x is not None and x is not False)
    if unknown:
        told = (f"{n} {list(x.shape)}" if isinstance(x := kwargs[n], torch.Tensor) else n for n in unknown)
        meant = "; a mask is attention_mask=" if any("mask" in n for n in unknown) else ""
        raise no_form(PEER, f"a forward with {', '.join(told)}", f"leave it out{meant}")


def _cache(self: Any, held: Any, use_cache: bool | None) -> Any:
    """Return the cache of a call, which keeps all keys, or None; refuse caches of other layers."""
    use_cache = self.config.use_cache if use_cache is None else use_cache
    if self.gradient_checkpointing and self.training:
        if held is not None and int(held.get_seq_length()):
            raise no_form(PEER, "gradient checkpointing beside a cache with keys", "use one of them")
        return None
    if held is None:
        return DynamicCache() if use_cache else None
    if not isinstance(held, Cache):
        raise no_form(PEER, f"past_key_values of {type(held).__name__}", "give a DynamicCache or StaticCache")
    for i, layer in enumerate(held.layers):
        if type(layer) is DynamicSlidingWindowLayer and not layer.get_seq_length():
            held.layers[i] = layer = DynamicLayer()  # keys are counted from the start of a sequence
        if type(layer) not in (DynamicLayer, StaticLayer):
            raise no_form(PEER, f"a cache of {type(layer).__name__}", "give a DynamicCache or StaticCache")
    made = held.layer_class_to_replicate
    if made not in (None, DynamicLayer):
        raise no_form(PEER, f"a cache of {made.__name__}", "give a DynamicCache or StaticCache")
    return held
