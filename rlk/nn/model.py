"""A dense causal language model on `rlk.ops`: hidden states, log-probs without logits, decoding."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from rlk.errors import Code, LaunchError
from rlk.nn.cache import PagedCache
from rlk.nn.checkpoint import (
    HEAD,
    check_tensors,
    config_of,
    dtype_of,
    load_tensors,
    read_checkpoint,
    write_checkpoint,
    written_config,
)
from rlk.nn.config import ModelConfig, check_config
from rlk.nn.experts import RouteLog, stored
from rlk.nn.generate import Generation, Limits, Sampling, generate, requests_of
from rlk.nn.identity import numerics_id, small
from rlk.nn.logits import head_logits, head_logp
from rlk.nn.modules import DecoderLayer, Embedding, Linear, RMSNorm, lay_out, take_memory
from rlk.nn.packed import Packed, check_ids, check_tokens, pack_tokens, refuse_others
from rlk.nn.ranks import Ranks, mark_shares, or_all_raise
from rlk.nn.rotary import tables_of
from rlk.nn.tokens import PagedTokens, Tokens, WholeSequences
from rlk.ops.layout import Layout
from rlk.ops.offsets import on_the_host
from rlk.ops.results import Csr, LogProbs, Support
from rlk.runtime.binding.checks import has_dims, has_dtype, is_device, is_tensor, wrong_type, wrong_value
from rlk.runtime.call.entry import watched

DTYPES = (torch.bfloat16, torch.float16)
DECODE = "CausalLM.decode"


def check_dtype(dtype: object) -> None:
    """Raise LaunchError for a dtype that a model cannot have."""
    if dtype not in DTYPES:
        wanted = f"{DTYPES[0]} or {DTYPES[1]}: products take 16-bit factors"
        raise wrong_value("CausalLM", "dtype", dtype, wanted)


def check_device(device: torch.device | str | None) -> None:
    """Raise LaunchError for a GPU where torch finds none."""
    if device is None:
        return
    if is_device("CausalLM", device).type == "cuda" and not torch.cuda.is_available():
        raise wrong_value("CausalLM", "device", str(device), "a device that is here: torch finds no GPU")


class Decoder(torch.nn.Module):
    """Embedding, decoder layers and the last norm: `model.` in the names of Hugging Face's parameters."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_config("Decoder", config)
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.embed_tokens = Embedding(
            config.vocab_size,
            config.hidden_size,
            scale=config.embedding_scale,
            std=config.initializer_range,
            **made,
        )
        tables = tables_of(config.ropes, config.max_position_embeddings)
        self.layers = torch.nn.ModuleList(
            DecoderLayer(config, i, each, **made) for i, each in enumerate(tables)
        )
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps, profile=config.norm_profile, **made)
        self.gradient_checkpointing = False
        self.ranks: Ranks | None = None

    def forward(self, ids: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        """Return the last hidden states [T, hidden] of packed ids [T]; all rows on every rank."""
        if self.ranks is not None:
            self.ranks.tokens = len(ids)
        x, residual = self.embed_tokens(ids), None
        if x.dtype not in DTYPES:
            wanted = f"{DTYPES[0]} or {DTYPES[1]}, as of model.to({DTYPES[0]}): products take 16-bit factors"
            raise wrong_value("CausalLM", "the dtype of its weights", x.dtype, wanted)
        for layer in self.layers:
            if self.gradient_checkpointing and torch.is_grad_enabled():
                x, residual = checkpointed(layer, x, residual, tokens)
            else:
                x, residual = layer(x, residual, tokens)
        x = self.norm(x) if residual is None else self.norm(x, residual)[0]  # a model without layers has none
        return x if self.ranks is None else self.ranks.whole(x)


def checkpointed(
    layer: DecoderLayer, x: torch.Tensor, residual: torch.Tensor | None, tokens: Tokens
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what a layer returns, and run it again in backward; the sum of its inputs alone is kept."""
    if residual is None or not layer.sums_alike or watched(x):
        made: tuple[torch.Tensor, torch.Tensor] = checkpoint(layer, x, residual, tokens, use_reentrant=False)
        return made
    # one rounding of an f32 sum, as in the norm
    made = checkpoint(layer, x + residual, None, tokens, summed=True, use_reentrant=False)
    return made


class CausalLM(torch.nn.Module):
    """A decoder with a linear head over the vocabulary: training, scoring and decoding give the same bits.

    Its parameters have the names that transformers' model of the family has. Make one with `from_pretrained`
    or from a `ModelConfig` (`ModelConfig.of` of a config of transformers); dtype: bf16 or f16. Weights of a
    model that is not loaded are drawn by torch's generator of the device, as transformers draws them: normal
    with the standard deviation `config.initializer_range`; biases are 0 (a router's are drawn), norms 1, or 0
    where 1 is added to them. On "meta" nothing is drawn. source: config.json of the checkpoint it was loaded
    from. Raises LaunchError.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        super().__init__()
        check_config("CausalLM", config)
        check_dtype(dtype)
        self.config = config
        self.source: Mapping[str, Any] | None = None
        self.model = Decoder(config, device=device, dtype=dtype)
        self.lm_head = Linear(
            config.hidden_size,
            config.vocab_size,
            bias=False,
            std=config.initializer_range,
            device="meta" if config.tie_word_embeddings else device,
            dtype=dtype,
        )
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        lay_out(self)

    # --- checkpoints ------------------------------------------------------------------------------------

    @classmethod
    def from_pretrained(
        cls,
        path: str | os.PathLike[str],
        *,
        dtype: torch.dtype | None = None,
        leaves: int | None = None,
        device: torch.device | str | None = None,
        **resolve: Any,
    ) -> CausalLM:
        """Load a model from a folder, or a repository of the Hugging Face hub: config.json and safetensors.

        dtype: bf16 or f16, to which weights are rounded, whatever the files have; by default bf16, with a
        warning where the files have f16, which bf16 does not hold. leaves: by default "rlk_leaves" of
        config.json or 1. resolve: as transformers finds files: revision, cache_dir, token, local_files_only.
        Everything is checked before memory is taken. Raises LaunchError with all that is wrong: the
        architecture, options, files, tensors that are missing, unknown or of another shape or dtype;
        UnsupportedError without the packages transformers and safetensors.
        """
        if dtype is not None:
            check_dtype(dtype)
        check_device(device)
        found, config = read_checkpoint(path, leaves, **resolve)
        model = cls(config, device="meta", dtype=dtype_of(found) if dtype is None else dtype)
        sources = check_tensors(found, stored(dict(model.named_parameters()), config), config)
        take_memory(model, device)
        load_tensors(stored(dict(model.named_parameters()), config), found, sources)
        model.source = found.config
        return model

    def save_pretrained(
        self,
        folder: str | os.PathLike[str],
        *,
        config: object | None = None,
        max_shard_size: int | str = "5GB",
    ) -> None:
        """Write weights and config.json, which transformers and `from_pretrained` load, into a folder.

        config: a config of transformers that says what the model is, or its dict; by default config.json of
        the checkpoint that was loaded, or the config that `ModelConfig.of` read. config.json has "rlk_leaves"
        and the dtype too. max_shard_size: bytes, or "5GB". Generation settings and tokenizers are not
        written. Raises LaunchError, also for a model that ranks share.
        """
        if self.model.ranks is not None:
            found, wanted = f"shared by {self.model.ranks.size} ranks", "rlk.parallel.save_pretrained for it"
            raise LaunchError(Code.ARG_VALUE, op="save_pretrained", name="model", value=found, wanted=wanted)
        from torch.distributed.tensor import DTensor  # 0.8 s, of which importing rlk.nn needs nothing

        if any(isinstance(p, DTensor) for p in self.parameters()):
            found, wanted = "sharded by FSDP2", "rlk.parallel.save_pretrained for it, on every rank"
            raise LaunchError(Code.ARG_VALUE, op="save_pretrained", name="model", value=found, wanted=wanted)
        given = self.config_to_write(config)
        tensors = stored(dict(self.named_parameters()), self.config)
        if self.config.tie_word_embeddings:
            tensors.pop(HEAD, None)
        write_checkpoint(folder, given, tensors, max_shard_size)

    def config_to_write(self, config: object | None) -> dict[str, Any]:
        """Return config.json as `save_pretrained` writes it, given its config. Raises LaunchError."""
        raw = self.source if config is None else None
        if raw is None:
            raw = config_of(config, self.config)
        return written_config(raw, self.config, self.lm_head.weight.dtype)

    # --- whole sequences --------------------------------------------------------------------------------

    def forward(
        self,
        ids: torch.Tensor,
        layout: Layout | Packed | None = None,
        *,
        routes: RouteLog | None = None,
        **others: object,
    ) -> torch.Tensor:
        """Return the last hidden states, after the last norm: [..., hidden], in the dtype of the model.

        ids: int32 or int64 of the layout's token shape, [T] packed or [B, L] padded. layout: by default one
        sequence [T], or B sequences of L tokens. Padding is removed first and its rows are 0; what the
        layout's mask says changes nothing. routes: notes the experts of the packed tokens, or replays a
        record of a model with as many layers and experts; None for a model without experts. Others, such as
        attention_mask, are refused, with what takes their place. Logits are `logits(hidden)`, log-probs are
        `logps`. Raises LaunchError, also for ids outside the vocabulary and sequences of more than
        max_position_embeddings tokens; where only a device knows them, they set its error word.
        """
        refuse_others("CausalLM.forward", others, ("ids", "layout", "routes"))
        packed = self._packed(ids, layout, call="forward")
        return packed.restore(self.model(packed.ids, self._noted(packed.tokens, routes)))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return f32 logits [..., V] of hidden states [..., hidden], after the model's softcap if it has one.

        `ops.logp(logits, ids)` has the bits of `logps`, and `ops.sample(logits)` draws from the model. Where
        ranks share the head, every rank gets all logits, and they have no gradient.
        """
        ranks = self._head_ranks
        if ranks is not None and hidden.requires_grad and torch.is_grad_enabled():
            choices = "no input where ranks share the head; logps has gradients"
            raise LaunchError(Code.NOT_DIFFERENTIABLE, op="CausalLM.logits", name="hidden", choices=choices)
        z = head_logits(hidden, self.lm_head.weight, self.config.final_softcap)
        return z if ranks is None else ranks.all_columns(z)

    def logps(
        self,
        ids: torch.Tensor,
        layout: Layout | Packed | None = None,
        *,
        needs: tuple[str, ...] = ("logp",),
        temperature: float = 1.0,
        support: Any = None,
        routes: RouteLog | None = None,
        **others: object,
    ) -> LogProbs:
        """Return log p(ids[t] | ids before t) of every token, f32 of the shape of ids, by `ops.linear_logp`.

        Logits never reach memory. The first token of a sequence and padding give 0. needs: of logp, lse,
        entropy. ids, layout: as of `forward`. temperature, support: as of `ops.linear_logp`, of packed rows.
        Differentiable in the parameters. Raises LaunchError, also for others, as `forward`.
        """
        known = ("ids", "layout", "needs", "temperature", "support", "routes")
        refuse_others("CausalLM.logps", others, known)
        packed = self._packed(
            ids, layout, call="logps", needs=needs, temperature=temperature, support=support
        )
        hidden = self.model(packed.ids, self._noted(packed.tokens, routes))
        made = head_logp(
            hidden, self.lm_head.weight, packed.next_ids, self._head_ranks, mask=packed.has_next, needs=needs,
            temperature=temperature, softcap=self.config.final_softcap, support=support,
        )  # fmt: skip
        return LogProbs(*(None if x is None else packed.restore_next(x) for x in made))

    @property
    def _head_ranks(self) -> Ranks | None:
        """The ranks that share the head's weight; None where each has all of it."""
        return self.model.ranks if self.lm_head.shares else None

    def _noted(self, tokens: WholeSequences | PagedTokens, routes: RouteLog | None) -> Tokens:
        """Return tokens whose experts are noted in a log; refuse a log that this model cannot replay."""
        if routes is None:
            return tokens
        if not isinstance(routes, RouteLog):
            raise wrong_type("CausalLM", "routes", routes, "rlk.nn.RouteLog")
        routes.check("CausalLM", self.config)
        return replace(tokens, routes=routes)

    def _packed(self, ids: torch.Tensor, layout: Layout | Packed | None, **call: object) -> Packed:
        def checked() -> Packed:
            packed = pack_tokens(ids, layout)
            check_tokens(packed, self.config.vocab_size, self.config.max_position_embeddings)
            return packed

        packed, ranks = or_all_raise(self.model.ranks, ids, checked), self.model.ranks
        if ranks is not None:
            ranks.call = {"cu_seqlens": packed.tokens.cu_seqlens, **call}
        return packed

    # --- pages ------------------------------------------------------------------------------------------

    def cache(self, pages: int, page_size: int = 16) -> PagedCache:
        """Allocate pages of keys and values for all layers, in the dtype and on the device of the model.

        `PagedCache.page_bytes(config, page_size, dtype)` are the bytes of one. Raises LaunchError.
        """
        c, like, layers = self.config, self.lm_head.weight, self.model.layers
        heads = layers[0].self_attn.options.key_heads if len(layers) else c.num_key_value_heads
        return PagedCache.empty(
            c.num_hidden_layers, pages, page_size, heads, c.head_dim, like.dtype, like.device
        )

    @torch.no_grad()
    def prefill(
        self,
        ids: torch.Tensor,
        cache: PagedCache,
        block_table: torch.Tensor,
        context_lens: torch.Tensor,
        cu_seqlens: torch.Tensor,
        *,
        routes: RouteLog | None = None,
    ) -> torch.Tensor:
        """Return the last hidden states [T, hidden] of new tokens; their keys and values go into the cache.

        ids: int32 or int64 [T], the newest tokens of each sequence, of which cu_seqlens, int32 or int64
        [B + 1], are the offsets: a prompt, a chunk of one, or one token each. context_lens: int32 [B], with
        the new tokens. block_table: int32 [B, M], as of `ops.paged_attention`. routes: as of `forward`. The
        rows are those of `forward`, bit for bit.

        On a device nothing waits for it, and tensors of the same sizes run the same kernels: a CUDA graph
        holds a step. Tokens behind cu_seqlens[-1] and those of a sequence with a context of 0 are padding:
        they are not kept, and their rows mean nothing. Raises LaunchError, as `PagedTokens.of` says.
        """
        return self._paged("CausalLM.prefill", ids, cache, block_table, context_lens, cu_seqlens, routes)

    @torch.no_grad()
    def decode(
        self,
        ids: torch.Tensor,
        cache: PagedCache,
        block_table: torch.Tensor,
        context_lens: torch.Tensor,
        *,
        routes: RouteLog | None = None,
    ) -> torch.Tensor:
        """Return the last hidden states [B, hidden] of one new token, ids [B], a sequence; as `prefill`."""
        has_dims(DECODE, "ids", is_tensor(DECODE, "ids", ids).shape, 1, "1 dim [B]")
        each = torch.arange(len(ids) + 1, device=ids.device, dtype=torch.int32)
        return self._paged(DECODE, ids, cache, block_table, context_lens, each, routes)

    def _paged(
        self,
        op: str,
        ids: torch.Tensor,
        cache: PagedCache,
        block_table: torch.Tensor,
        context_lens: torch.Tensor,
        cu_seqlens: torch.Tensor,
        routes: RouteLog | None,
    ) -> torch.Tensor:
        def checked() -> PagedTokens:
            has_dims(op, "ids", is_tensor(op, "ids", ids).shape, 1, "1 dim [T]")
            if not isinstance(cache, PagedCache):
                raise wrong_type(op, "cache", cache, "rlk.nn.PagedCache: model.cache(pages) makes one")
            has_dtype(op, "ids", ids, torch.int64, torch.int32)
            if op == DECODE and isinstance(block_table, torch.Tensor) and len(block_table) != len(ids):
                wanted = f"one new token for each of the {len(block_table)} sequences of block_table"
                raise wrong_value(op, "len(ids)", len(ids), wanted)
            tokens = PagedTokens.of(cache, cu_seqlens, context_lens, block_table, len(ids), op=op)
            if on_the_host(ids):
                check_ids(ids[tokens.slots >= 0], self.config.vocab_size, op=op)
            most = self.config.max_position_embeddings
            if on_the_host(context_lens) and bool((context_lens > most).any()):
                wanted = f"at most max_position_embeddings = {most}"
                raise wrong_value(op, "max(context_lens)", int(context_lens.max()), wanted)
            return tokens

        tokens, ranks = or_all_raise(self.model.ranks, ids, checked), self.model.ranks
        if ranks is not None:
            ranks.call = {"call": op, "cu_seqlens": tokens.cu_seqlens, "context_lens": context_lens}
        return self.model(ids, self._noted(tokens, routes))

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int | Sequence[int],
        seed: int | Sequence[int],
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        eos_ids: Collection[int] = (),
        request_ids: Sequence[int] | None = None,
        page_size: int = 16,
        pages: int | None = None,
        max_batch: int = 64,
        chunk: int = 512,
        supports: bool = False,
        routes: bool = False,
    ) -> list[Generation]:
        """Continue prompts by sampled tokens, over pages, in one changing batch; in the order of the prompts.

        A small loop for tests and examples: it launches each step anew and waits for its tokens. prompts:
        ids, at least one each. max_new_tokens, seed: of all requests, or of each. temperature, top_k, top_p,
        min_p: as of `ops.sample`, None is off. eos_ids: tokens that end a sequence, kept as its last.
        request_ids: by default the places in prompts. supports: return what draws ran over too. routes: of a
        model with experts, return those of each token of a finished sequence too, as `RouteLog(replay=)`
        takes them; the last token is read for that, so a sequence has at most max_position_embeddings tokens.

        pages: of page_size tokens each, by default enough for max_batch of the longest sequences. A request
        is admitted when its tokens fit into free pages and fewer than max_batch run; prompts are read chunk
        tokens a step, beside those that decode. Where pages run out, the newest request gives its own up and
        reads its tokens again later.

        A request's draws and routes depend on its seed, request id, prompt and options alone: batch, chunk,
        pages and preemption change no bit. Log-probs are those of `logps` of the finished sequence, bit for
        bit. Raises LaunchError.
        """
        sampling = Sampling(temperature, top_k or 0, 1.0 if top_p is None else top_p, min_p or 0.0)
        if routes and self.config.experts is None:
            wanted = "False for a model without experts"
            raise wrong_value("CausalLM.generate", "routes", routes, wanted)
        requests = requests_of(prompts, max_new_tokens, seed, request_ids, routes)
        limits = Limits(page_size, pages, max_batch, chunk)
        return generate(self, requests, sampling, limits, frozenset(eos_ids), supports)

    # --- the model as a whole ---------------------------------------------------------------------------

    def gradient_checkpointing_enable(self) -> None:
        """Keep the input of each layer alone for backward, and run the layer again there: the same bits."""
        self.model.gradient_checkpointing = True

    def gradient_checkpointing_disable(self) -> None:
        """Keep for backward what layers computed, as at first."""
        self.model.gradient_checkpointing = False

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Yield names and parameters; those of which a rank has a share are marked for `rlk.optim`."""
        if self.model.ranks is not None:
            mark_shares(self, self.model.ranks)
        yield from super().named_parameters(prefix, recurse, remove_duplicate)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        next(self.named_parameters(), None)  # of a copy

    def numerics_id(self, device: torch.device | str) -> str:
        """Return the id of the whole model's numerics on a device: equal ids and weights give equal bits.

        It digests the ids of all operators that `forward`, `logits`, `logps`, `prefill` and `decode` run, in
        the variants that they run, and the options of the model, leaves among them; no names of families and
        no number of positions. Nothing is launched.
        """
        dtype = self.lm_head.weight.dtype
        like = CausalLM(small(self.config), dtype=dtype, device="meta")
        take_memory(like, "cpu")
        return numerics_id(self.config, dtype, device, like._every_view)

    def _every_view(self) -> None:
        """Call every view of the model on three tokens."""
        ids = torch.zeros(3, dtype=torch.int64)
        offsets, table = torch.tensor((0, 3), dtype=torch.int32), torch.zeros((1, 1), dtype=torch.int32)
        self.logits(self(ids))
        kept = torch.zeros(3, dtype=torch.int32)
        supports = (None, Support(kept.float(), kept, kept), Csr(torch.arange(4), torch.zeros(3).long()))
        for support in supports:
            for needs in (("logp", "lse"), ("logp", "lse", "entropy")):
                self.logps(ids, needs=needs, support=support)
        cache = self.cache(1)
        self.prefill(ids, cache, table, offsets[1:], offsets)
        self.decode(ids[:1], cache, table, offsets[1:])

    def _apply(self, fn: Any, recurse: bool = True) -> CausalLM:
        super()._apply(fn, recurse)
        lay_out(self)
        return self
