"""Megatron-core's GPT model with rlk's embedding, layers, head and loss."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models import gpt
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

from rlk import ops
from rlk.errors import Code, LaunchError
from rlk.integrations.megatron.layers import (
    RMSNorm,
    VocabParallelEmbedding,
    as_given,
    by_sequence,
    offsets_of,
    ranks_of,
)
from rlk.integrations.megatron.options import (
    OP,
    check_arguments,
    check_config,
    check_ranks,
    model_config,
    refused,
)
from rlk.integrations.megatron.specs import Places, TransformerLayer, building
from rlk.nn.config import ModelConfig
from rlk.nn.logits import head_logits, head_logp
from rlk.nn.packed import Packed, check_tokens, pack_tokens
from rlk.nn.ranks import mark_shares, or_all_raise
from rlk.nn.rotary import tables_of


class GPTModel(gpt.GPTModel):
    """Megatron-core's GPTModel with the bits of `rlk.nn.CausalLM`: logits, losses and gradients.

    Arguments are Megatron's. transformer_layer_spec: what `rlk_layer_spec(config)` returns.
    position_embedding_type: "rope". Parameters have Megatron's names, shapes and attributes;
    `rlk.sync.digest` and `transfer` know them by their Hugging Face names. nn_config: of the `CausalLM` that
    has the same bits. Raises LaunchError with every option that rlk does not have.
    """

    def __init__(
        self,
        config: Any,
        transformer_layer_spec: ModuleSpec,
        vocab_size: int,
        max_sequence_length: int,
        *args: Any,
        **options: Any,
    ) -> None:
        given = inspect.signature(gpt.GPTModel.__init__).bind(
            self, config, transformer_layer_spec, vocab_size, max_sequence_length, *args, **options
        )
        given.apply_defaults()
        check_config(config)
        check_arguments(given.arguments)
        module = getattr(transformer_layer_spec, "module", None)
        if not (isinstance(module, type) and issubclass(module, TransformerLayer)):
            found = type(transformer_layer_spec).__name__ if module is None else module.__name__
            raise refused("transformer_layer_spec", found, "what rlk_layer_spec(config) returns")
        groups = given.arguments["pg_collection"]
        group = parallel_state.get_tensor_model_parallel_group()
        if groups is not None and groups.tp is not group:
            raise refused("pg_collection.tp", "another group", "parallel_state's, or pg_collection=None")
        check_ranks(config, vocab_size, group.size())
        block = TransformerBlockSubmodules([transformer_layer_spec] * config.num_layers, RMSNorm)
        with building():
            super().__init__(config, block, vocab_size, max_sequence_length, *args, **options)
        # LanguageModelEmbedding names the class itself; weights, attributes and hooks stay
        self.embedding.word_embeddings.__class__ = VocabParallelEmbedding
        self.output_layer.shares = {"weight": 0}
        self.nn_config: ModelConfig = model_config(
            config,
            vocab_size=vocab_size,
            positions=max_sequence_length,
            tied=self.share_embeddings_and_output_weights,
            rotary_base=self.rotary_base,
            rotary_percent=self.rotary_percent,
        )
        self.tables = tables_of(self.nn_config.ropes, max_sequence_length)[0]
        if (ranks := ranks_of(group)) is not None:
            mark_shares(self, ranks)

    def _preprocess(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor | None,
        decoder_input: torch.Tensor | None = None,
        inference_context: Any = None,
        packed_seq_params: Any = None,
        padding_mask: torch.Tensor | None = None,
    ) -> tuple[Any, ...]:
        """Return embeddings [s, b, hidden] and, as rotary_pos_emb, where their tokens are."""
        for name, found in (
            ("decoder_input", decoder_input),
            ("inference_context", inference_context),
            ("padding_mask", padding_mask),
        ):
            if found is not None:
                raise refused(name, type(found).__name__, "None")

        def checked() -> Packed:
            if packed_seq_params is None:
                packed = pack_tokens(input_ids, None)
            else:
                ids = input_ids.flatten()
                packed = pack_tokens(ids, ops.Layout.packed(offsets_of(packed_seq_params), tokens=len(ids)))
            check_tokens(packed, self.vocab_size, self.max_sequence_length)
            return packed

        packed = or_all_raise(ranks_of(self.pg_collection.tp), input_ids, checked)
        x = self.embedding(input_ids=input_ids, position_ids=position_ids)
        places = Places(packed.tokens, self.tables)
        return as_given(by_sequence(x), x), places, None, None, None, None

    def _postprocess(
        self,
        hidden_states: torch.Tensor,
        *,
        labels: torch.Tensor | None,
        loss_mask: torch.Tensor | None = None,
        runtime_gather_output: bool | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """Return f32 losses [b, s] of labels [b, s], else f32 logits [b, s, V], or the rank's part of V.

        Losses are -log p(label), without logits in memory, 0 where loss_mask is. Logits have no gradient
        where ranks share the head.
        """
        tied = self.share_embeddings_and_output_weights
        weight = self.shared_embedding_or_output_weight() if tied else self.output_layer.weight
        ranks, hidden = ranks_of(self.pg_collection.tp), by_sequence(hidden_states)
        shape = hidden_states.shape[1::-1]
        if labels is not None:
            mask = None if loss_mask is None else loss_mask.flatten() != 0
            logp = head_logp(hidden, weight, labels.flatten(), ranks, mask=mask).logp
            assert logp is not None
            return (0.0 - logp).view(shape)  # a loss of 0, not of -0, where the mask is 0
        if ranks is not None and hidden.requires_grad and torch.is_grad_enabled():
            choices = "no input where ranks share the head; losses of labels have gradients"
            raise LaunchError(Code.NOT_DIFFERENTIABLE, op=OP, name="logits", choices=choices)
        logits = head_logits(hidden, weight, None)
        gather = not self.parallel_output if runtime_gather_output is None else runtime_gather_output
        if ranks is not None and gather:
            logits = ranks.all_columns(logits)
        return logits.unflatten(0, shape)
