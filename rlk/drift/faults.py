"""Faults of an engine, each injected into a tiny model, to try what finds them.

`with FAULTS["norm: another eps"].pair() as (a, b, sequences)` gives a clean engine, the same with the fault,
and tokens; `compare(a, b, sequences)` should name `where`. Comparisons themselves use nothing of it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from types import MethodType
from typing import Any, get_args

import torch
from torch.nn import functional

from rlk.drift.engine import Facts, Scores, Sequences, Watch
from rlk.drift.engines import Nn, Transformers
from rlk.drift.operators import Verdict
from rlk.drift.options import Options
from rlk.drift.parity import Kind
from rlk.observe import TINY, hooked, randomize

LAYER = 1
BOS, EOS, VOCABULARY = 0, 1, TINY["vocab_size"]
TEMPERATURE = Options(temperature=0.7)
Inject = Callable[["Faulty"], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, and the name of the operator or input that is at fault.

    inject: a context manager over engine b. a, b: options of both engines. names: weights that a finding
    must name. says: words of the explanation. depends: all that the difference must depend on. dtype: of
    both. experts: whether the model is one of experts. verdict: on the operator; of an input there is none.
    """

    name: str
    where: str
    inject: Inject
    a: Options = Options()
    b: Options | None = None
    names: tuple[str, ...] = ()
    says: str = ""
    depends: tuple[str, ...] = ()
    dtype: torch.dtype = torch.bfloat16
    paged: bool = False
    experts: bool = False
    verdict: Verdict = "another function"

    @contextmanager
    def pair(self, seed: int = 0) -> Iterator[tuple[Any, Any, Sequences]]:
        """Return a clean engine, one with the fault, and tokens."""
        if self.paged:
            with paged_pair(seed, self.inject, self.b or self.a) as made:
                yield made
            return
        model = tiny_model(seed, self.dtype, experts=self.experts)
        a = Transformers(model, self.a, "clean")
        b = Faulty(copy.deepcopy(model), self.b or self.a, "faulty")
        with self.inject(b):
            yield a, b, tiny_sequences(seed)


class Faulty(Transformers):
    """An engine of which parts are exchanged. within: entered around each run."""

    edit: Callable[[Sequences], Sequences] = staticmethod(lambda s: s)  # type: ignore[assignment]
    within: Callable[[], AbstractContextManager[Any]] = nullcontext
    claims: Mapping[str, Any] = {}
    score_with: Callable[..., torch.Tensor] | None = None
    cache_of: Callable[[], Any] | None = None

    @property
    def variants(self) -> dict[str, Transformers]:
        """Return the faulty engine without one of its options."""
        made: dict[str, Transformers] = {}
        for trigger, options in self.options.without().items():
            made[trigger] = other = copy.copy(self)
            other.options = options
        return made

    def facts(self) -> Facts:
        """Return what the engine says of itself, true or not."""
        return replace(super().facts(), **self.claims)

    def score(self, sequences: Sequences, watch: Watch) -> Scores:
        """Score the tokens with the fault."""
        with self.within():
            return super().score(self.edit(sequences), watch)

    def log_probs(self, logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Return log-probs, wrong ones where they are the fault."""
        plain = super().log_probs
        return plain(logits, ids) if self.score_with is None else self.score_with(logits, ids, plain)

    def _cache(self) -> Any:
        return super()._cache() if self.cache_of is None else self.cache_of()


# --- the tiny model -----------------------------------------------------------------------------------------


def tiny_config(layers: int = 2, experts: bool = False, biases: bool = True) -> Any:
    """Return the config of a Qwen3, hidden size 64; experts: of a Qwen3-MoE, 3 of 8 experts."""
    import transformers

    more = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "norm_topk_prob": True}
    kind = transformers.Qwen3MoeConfig if experts else transformers.Qwen3Config
    return kind(
        **more if experts else {},
        **TINY | {"intermediate_size": 96, "num_hidden_layers": layers},
        attention_bias=biases, bos_token_id=BOS, eos_token_id=EOS, pad_token_id=None,
    )  # fmt: skip


@cache
def _tiny_model(
    seed: int, dtype: torch.dtype, attention: str, layers: int, experts: bool, biases: bool
) -> Any:
    import transformers

    with torch.random.fork_rng(devices=[]):
        model = transformers.AutoModelForCausalLM.from_config(
            tiny_config(layers, experts, biases), dtype=torch.float32
        )
    randomize(model, seed)
    if experts:
        _bring_scores_near(model)
    model.set_attn_implementation(attention)
    return model.to(dtype).eval()


@torch.no_grad()
def _bring_scores_near(model: Any) -> None:
    """Let pairs of router rows differ by an ulp of bf16 in each weight, so that last choices are close."""
    for layer in model.model.layers:
        w = layer.mlp.gate.weight
        rows = w[::2].bfloat16()
        w[::2] = rows.float()
        w[1::2] = (rows.view(torch.int16) + 1).view(torch.bfloat16).float()


def tiny_model(
    seed: int = 0, dtype: torch.dtype = torch.bfloat16, attention: str = "eager", layers: int = 2,
    experts: bool = False, biases: bool = True,
) -> Any:  # fmt: skip
    """Return a random model of transformers on the CPU."""
    return copy.deepcopy(_tiny_model(seed, dtype, attention, layers, experts, biases))


def tiny_sequences(seed: int = 0, lengths: tuple[int, ...] = (11, 24, 7)) -> Sequences:
    """Return random sequences from bos to eos."""
    made = torch.Generator().manual_seed(seed)
    drawn = [torch.randint(2, VOCABULARY, (n - 2,), generator=made).tolist() for n in lengths]
    return Sequences.of([[BOS, *ids, EOS] for ids in drawn])


# --- means ------------------------------------------------------------------------------------------------


@contextmanager
def assigned(owner: Any, **values: Any) -> Iterator[None]:
    """Set attributes of an object, and put back what was there."""
    absent = object()
    before = {name: vars(owner).get(name, absent) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            delattr(owner, name) if value is absent else setattr(owner, name, value)


def engine(**values: Any) -> Inject:
    """Set attributes of the engine."""
    return lambda b: assigned(b, **values)


def forward(path: str, function: Callable[..., Any]) -> Inject:
    """Exchange a module's forward by function(module, its own forward, ...)."""

    def inject(b: Faulty) -> AbstractContextManager[None]:
        module = b.model.get_submodule(path)
        plain = module.forward

        def ours(self: Any, *args: Any, **kwargs: Any) -> Any:
            return function(self, plain, *args, **kwargs)

        return assigned(module, forward=MethodType(ours, module))

    return inject


def weight(path: str, edit: Callable[[torch.Tensor], torch.Tensor]) -> Inject:
    """Exchange a weight by an edited one."""

    @contextmanager
    def inject(b: Faulty) -> Iterator[None]:
        p = b.model.get_parameter(path)
        before = p.data
        p.data = edit(before.clone())
        try:
            yield
        finally:
            p.data = before

    return inject


def inputs(edit: Callable[[dict[str, Any]], Mapping[str, Any]]) -> Inject:
    """Edit the arguments with which the model is called."""

    @contextmanager
    def inject(b: Faulty) -> Iterator[None]:
        def before(name: str, module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
            return args, {**kwargs, **edit(kwargs)}

        with hooked([("", b.model)], before=before):
            yield

    return inject


def tokens(edit: Callable[[list[list[int]]], list[list[int]]]) -> Inject:
    """Edit the tokens that the engine reads."""
    return engine(edit=lambda s: Sequences.of(edit(s.lists())))


def attention(function: Callable[..., Any]) -> Inject:
    """Exchange the attention of one layer by function(eager, module, q, k, v, mask, scaling)."""

    @contextmanager
    def inject(b: Faulty) -> Iterator[None]:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import eager_mask
        from transformers.models.qwen3.modeling_qwen3 import eager_attention_forward as eager

        def ours(module: Any, q: Any, k: Any, v: Any, mask: Any, scaling: float = 1.0, **kwargs: Any) -> Any:
            if module.layer_idx != LAYER:
                return eager(module, q, k, v, mask, scaling=scaling, **kwargs)
            return function(partial(eager, **kwargs), module, q, k, v, mask, scaling)

        AttentionInterface.register("drift_fault", ours)
        AttentionMaskInterface.register("drift_fault", eager_mask)
        b.model.set_attn_implementation("drift_fault")
        try:
            yield
        finally:
            b.model.set_attn_implementation("eager")

    return inject


def log_probs(function: Callable[..., torch.Tensor]) -> Inject:
    """Exchange log-probs by function(logits f32, ids, temperature)."""

    def inject(b: Faulty) -> AbstractContextManager[None]:
        temperature = b.options.temperature
        return assigned(b, score_with=lambda z, ids, plain: function(z.float(), ids, temperature))

    return inject


def of(scores: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return log-probs of ids by the softmax of scores."""
    return torch.log_softmax(scores, -1).gather(-1, ids[:, None])[:, 0]


def both(*faults: Inject) -> Inject:
    """Inject several at once."""

    @contextmanager
    def inject(b: Faulty) -> Iterator[None]:
        with ExitStack() as stack:
            for each in faults:
                stack.enter_context(each(b))
            yield

    return inject


# --- faults of attention and of the cache -------------------------------------------------------------------


def _scores(module: Any, q: Any, k: Any, mask: Any, scaling: float) -> torch.Tensor:
    z = q @ k.repeat_interleave(module.num_key_value_groups, 1).transpose(2, 3) * scaling
    found: torch.Tensor = z if mask is None else z + mask
    return found


def _out(module: Any, p: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, None]:
    o = p @ v.repeat_interleave(module.num_key_value_groups, 1)
    return o.transpose(1, 2).contiguous(), None


def _short_softmax(eager: Any, module: Any, q: Any, k: Any, v: Any, mask: Any, scaling: float) -> Any:
    z = _scores(module, q, k, mask, scaling)
    e = (z - z.amax(-1, keepdim=True)).exp()
    return _out(module, e / e.sum(-1, keepdim=True), v)


def _swapped_chunks(eager: Any, module: Any, q: Any, k: Any, v: Any, mask: Any, scaling: float) -> Any:
    """Merge chunks of 4 keys by an online softmax, the last chunk first."""
    z = _scores(module, q, k, mask, scaling).float()
    values = v.repeat_interleave(module.num_key_value_groups, 1).float()
    m = torch.full_like(z[..., :1], torch.finfo(torch.float32).min)
    total, o = torch.zeros_like(m), torch.zeros(*z.shape[:-1], v.shape[-1])
    for s, each in zip(z.split(4, -1)[::-1], values.split(4, 2)[::-1], strict=True):
        new = torch.maximum(m, s.amax(-1, keepdim=True))
        p, old = (s - new).exp(), (m - new).exp()
        total, o, m = total * old + p.sum(-1, keepdim=True), o * old + p @ each, new
    return (o / total).to(q.dtype).transpose(1, 2).contiguous(), None


def _windowed(keys: int) -> Callable[..., Any]:
    def function(eager: Any, module: Any, q: Any, k: Any, v: Any, mask: Any, scaling: float) -> Any:
        at = torch.arange(k.shape[2])
        far = at[-q.shape[2] :, None] - at[None] >= keys
        return eager(
            module,
            q,
            k,
            v,
            mask + torch.where(far, torch.finfo(q.dtype).min, 0.0).to(q.dtype),
            scaling=scaling,
        )

    return function


def _causal_dropped(eager: Any, module: Any, q: Any, k: Any, v: Any, mask: Any, scaling: float) -> Any:
    return eager(module, q, k, v, torch.zeros_like(mask), scaling=scaling)


def _scaled(factor: float) -> Callable[..., Any]:
    return lambda eager, module, q, k, v, mask, scaling: eager(
        module, q, k, v, mask, scaling=scaling * factor
    )


def _other_heads(eager: Any, module: Any, q: Any, k: Any, v: Any, mask: Any, scaling: float) -> Any:
    """Let query head h read key head h mod 2 in place of h div 2."""
    order = torch.tensor([0, 2, 1, 3])
    o, p = eager(module, q[:, order], k, v, mask, scaling=scaling)
    return o[:, :, order], p


def _capped(eager: Any, module: Any, q: Any, k: Any, v: Any, mask: Any, scaling: float) -> Any:
    z = _scores(module, q, k, None, scaling).float()
    p = (torch.tanh(z / 4) * 4 + mask).softmax(-1).to(q.dtype)
    return _out(module, p, v)


def cached(edit: Callable[[torch.Tensor, torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]) -> Inject:
    """Edit the keys and values [B, heads, slots, E] that one layer reads; the int is how many are new."""

    def inject(b: Faulty) -> AbstractContextManager[None]:
        from transformers import DynamicCache

        class Edited(DynamicCache):  # type: ignore[misc]
            """A cache from which one layer reads other keys or values."""

            def update(
                self, k: torch.Tensor, v: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
            ) -> Any:
                keys, values = super().update(k, v, layer_idx, *args, **kwargs)
                if layer_idx != LAYER:
                    return keys, values
                return edit(keys.clone(), values.clone(), k.shape[2])

        return assigned(b, cache_of=Edited)

    return inject


def _stale(keys: torch.Tensor, values: torch.Tensor, new: int) -> tuple[torch.Tensor, torch.Tensor]:
    keys[:, :, 3] = keys[:, :, 2]  # slot 3 holds the key that was there before
    return keys, values


def _wrong_slot(keys: torch.Tensor, values: torch.Tensor, new: int) -> tuple[torch.Tensor, torch.Tensor]:
    values[:, :, [2, 3]] = values[:, :, [3, 2]]
    return keys, values


def _other_row(keys: torch.Tensor, values: torch.Tensor, new: int) -> tuple[torch.Tensor, torch.Tensor]:
    old = keys.shape[2] - new
    keys[:, :, :old] = keys[:, :, :old].roll(1, 0)
    return keys, values


def _eight_bits(keys: torch.Tensor, values: torch.Tensor, new: int) -> tuple[torch.Tensor, torch.Tensor]:
    return keys.to(torch.float8_e4m3fn).to(keys.dtype), values.to(torch.float8_e4m3fn).to(values.dtype)


# --- faults of other operators ------------------------------------------------------------------------------


def _split_k(self: Any, plain: Any, x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    first = functional.linear(x[..., :half], self.weight[:, :half])
    made = first + functional.linear(x[..., half:], self.weight[:, half:])
    return made if self.bias is None else made + self.bias


def _where(condition: Callable[[torch.Tensor], bool]) -> Callable[..., Any]:
    """Split K where a condition on x [B, L, K] holds."""
    return lambda self, plain, x: _split_k(self, plain, x) if condition(x) else plain(x)


def _short_sums(self: Any, plain: Any, x: torch.Tensor) -> torch.Tensor:
    parts = (functional.linear(a, b) for a, b in zip(x.split(16, -1), self.weight.split(16, 1), strict=True))
    return torch.stack(list(parts)).cumsum(0, dtype=x.dtype)[-1]


def _norm(
    weight_of: Callable[[torch.Tensor], torch.Tensor], mean: bool = False, short: bool = True
) -> Callable[..., Any]:
    def function(self: Any, plain: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        x = hidden_states.float()
        x = x - x.mean(-1, keepdim=True) if mean else x
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        w = weight_of(self.weight)
        return w * x.to(hidden_states.dtype) if short else (w.float() * x).to(hidden_states.dtype)

    return function


def _gated_once(self: Any, plain: Any, x: torch.Tensor) -> torch.Tensor:
    gate, up = self.gate_proj(x).float(), self.up_proj(x).float()
    made: torch.Tensor = self.down_proj((functional.silu(gate) * up).to(x.dtype))
    return made


def _rounded_late(self: Any, plain: Any, hidden_states: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    """Add the residual to the product of o_proj before it is rounded."""
    seen: list[torch.Tensor] = []
    o = self.self_attn.o_proj
    with o.register_forward_pre_hook(lambda m, args: seen.append(args[0])):
        self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
    exact = functional.linear(seen[0].float(), o.weight.float(), None if o.bias is None else o.bias.float())
    x = (hidden_states.float() + exact).to(hidden_states.dtype)
    made: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
    return made


def _residual_of_norm(self: Any, plain: Any, hidden_states: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    normed = self.input_layernorm(hidden_states)
    x = normed + self.self_attn(hidden_states=normed, **kwargs)[0]
    made: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
    return made


def _interleaved() -> AbstractContextManager[None]:
    """Rotate neighbouring elements of q and k in place of the two halves, in all layers."""
    from transformers.models.qwen3 import modeling_qwen3 as qwen3

    def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        c, s = cos[:, None, :, :half], sin[:, None, :, :half]
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * c - b * s, b * c + a * s), -1).flatten(-2)

    def rotated(q: Any, k: Any, cos: Any, sin: Any, *args: Any, **kwargs: Any) -> Any:
        return turned(q, cos, sin), turned(k, cos, sin)

    return assigned(qwen3, apply_rotary_pos_emb=rotated)


def _angles(edit: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Inject:
    """Make the tables of rotations from edit(positions [B, L, 1], frequencies)."""

    def table(self: Any, plain: Any, x: torch.Tensor, position_ids: torch.Tensor) -> Any:
        angles = edit(position_ids[..., None].float(), self.inv_freq)
        both_halves = torch.cat((angles, angles), -1)
        return both_halves.cos().to(x.dtype), both_halves.sin().to(x.dtype)

    return forward("model.rotary_emb", table)


def _every_weight(b: Faulty) -> AbstractContextManager[None]:
    """Leave all weights as they were before an update of relative size 1e-2."""
    made = [weight(name, lambda w: w * 1.01) for name, _ in b.model.named_parameters()]
    return both(*made)(b)


def _padded_head(b: Faulty) -> AbstractContextManager[None]:
    wide = lambda w: functional.pad(w, (0, 0, 0, 32))  # noqa: E731
    config = lambda engine: assigned(engine.model.config, vocab_size=VOCABULARY + 32)  # noqa: E731
    return both(weight("lm_head.weight", wide), config)(b)


def _tied(b: Faulty) -> AbstractContextManager[None]:
    return assigned_parameter(b.model.lm_head, b.model.model.embed_tokens.weight)


@contextmanager
def assigned_parameter(module: Any, p: torch.nn.Parameter) -> Iterator[None]:
    """Give a module another module's weight."""
    before, module.weight = module.weight, p
    try:
        yield
    finally:
        module.weight = before


@contextmanager
def _half(b: Faulty) -> Iterator[None]:
    b.model.to(torch.float16)
    try:
        yield
    finally:
        b.model.to(torch.bfloat16)


@contextmanager
def _swapped_layers(b: Faulty) -> Iterator[None]:
    """Call the second layer first."""
    before = b.model.model.layers
    b.model.model.layers = torch.nn.ModuleList(before)
    b.model.model.layers._modules = {str(i): before[i] for i in (1, 0)}
    try:
        yield
    finally:
        b.model.model.layers = before


def _swap_tensors(b: Faulty, first: str, second: str) -> AbstractContextManager[None]:
    x, y = (b.model.get_parameter(n).data.clone() for n in (first, second))
    return both(weight(first, lambda w: y), weight(second, lambda w: x))(b)


def _top_k(k: int) -> Callable[..., torch.Tensor]:
    def function(z: torch.Tensor, ids: torch.Tensor, temperature: float) -> torch.Tensor:
        p = torch.softmax(z / temperature, -1)
        least = p.sort(-1, descending=True).values[:, k - 1 : k]
        chosen = p.gather(-1, ids[:, None])
        mass = torch.where(p >= torch.minimum(least, chosen), p, 0.0).sum(-1)
        return (chosen[:, 0] / mass).log()

    return function


def _not_a_number(z: torch.Tensor, ids: torch.Tensor, temperature: float) -> torch.Tensor:
    made = of(z / temperature, ids)
    made[len(made) // 2] = torch.nan
    return made


# --- routers ------------------------------------------------------------------------------------------------


def _router_ulp(b: Faulty) -> AbstractContextManager[None]:
    """Add one ulp to a router weight, by which a token's next expert overtakes its last one."""
    path = f"{AT}.mlp.gate"
    gate = b.model.get_submodule(path)
    seen: list[torch.Tensor] = []

    def before(name: str, module: Any, args: Any, kwargs: Any) -> None:
        seen.append(args[0])

    with hooked([("", gate)], before=before), torch.no_grad():
        for ids in tiny_sequences().lists():
            b.model(input_ids=torch.tensor([ids]))
    x, w = torch.cat(seen).double(), gate.weight.detach()
    scores, order = (x @ w.double().T).sort(descending=True)
    k = gate.top_k
    raised = (w.view(torch.int16) + 1).view(w.dtype)
    moved = x * (raised.double() - w.double())[order[:, k]]  # [T, hidden]
    nearest = (moved - (scores[:, k - 1 : k] - scores[:, k : k + 1])).flatten().argsort(descending=True)
    before_it = gate(x.to(w.dtype))[2].sort(-1).values
    for at in nearest[:256].tolist():  # scores are rounded: not each of them changes a choice
        token, column = divmod(at, w.shape[1])
        edited = w.clone()
        edited[order[token, k], column] = raised[order[token, k], column]
        changing = weight(f"{path}.weight", lambda _, edited=edited: edited)
        with changing(b), torch.no_grad():
            if not torch.equal(gate(x.to(w.dtype))[2].sort(-1).values, before_it):
                return changing(b)
    raise AssertionError("no ulp of a router weight changes an expert")


def _routed(
    scores_of: Callable[..., torch.Tensor], renormalize: bool = True
) -> Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Route by other scores, or without making the weights' sum 1."""

    def function(self: Any, plain: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        z = scores_of(self, x)
        w, ids = z.float().softmax(-1).topk(self.top_k)
        return z, (w / w.sum(-1, keepdim=True) if renormalize else w).to(z.dtype), ids

    return function


def _router_product(self: Any, x: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, self.weight)


def _router_short_sums(self: Any, x: torch.Tensor) -> torch.Tensor:
    parts = (functional.linear(a, b) for a, b in zip(x.split(16, -1), self.weight.split(16, 1), strict=True))
    return torch.stack(list(parts)).cumsum(0, dtype=x.dtype)[-1]


# --- pages of rlk.nn ----------------------------------------------------------------------------------------


@contextmanager
def paged_pair(seed: int, inject: Inject, options: Options) -> Iterator[tuple[Any, Any, Sequences]]:
    """Return two engines of `rlk.nn` over pages, the second with a fault in its block tables."""
    from rlk.nn import CausalLM, ModelConfig

    model = CausalLM(ModelConfig.of(tiny_config()))
    found = dict(tiny_model(seed).named_parameters())
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(found[name])
    b = Nn(copy.copy(model), options, "faulty")
    with inject(b):  # type: ignore[arg-type]
        yield Nn(model, options, "clean"), b, tiny_sequences(seed, (9, 13))


def _stale_page(b: Any) -> AbstractContextManager[None]:
    """Let the last sequence read another's page where its first should be, once it has several."""
    plain = b.model.prefill

    def prefill(ids: Any, cache: Any, table: Any, lengths: Any, offsets: Any) -> Any:
        if cache.page_size == 4 and int(lengths.max()) > 4:
            wrong = table.clone()
            wrong[-1, 0] = table[0, 0]
            return plain(ids, cache, wrong, lengths, offsets)
        return plain(ids, cache, table, lengths, offsets)

    return assigned(b.model, prefill=prefill)


# --- the list -----------------------------------------------------------------------------------------------

AT = f"model.layers.{LAYER}"
LEFT, CHUNKS = Options(side="left"), Options(chunk=4)


def _inputs() -> Iterator[Fault]:
    """Yield faults of what an engine is given."""
    ids, special = "token ids", "special tokens"
    yield Fault(
        "tokens: another id", ids, tokens(lambda s: [[*s[0][:4], s[0][4] % 90 + 3, *s[0][5:]], *s[1:]])
    )
    yield Fault("tokens: bos added again", special, tokens(lambda s: [[BOS, *x] for x in s]))
    yield Fault("tokens: bos missing", special, tokens(lambda s: [x[1:] for x in s]))
    yield Fault("tokens: eos not counted", special, tokens(lambda s: [x[:-1] for x in s]))
    yield Fault("tokens: prompt truncated on the left", ids, tokens(lambda s: [s[0], s[1][8:], s[2]]))
    yield Fault("tokens: sequences in another order", ids, tokens(lambda s: s[::-1]))
    yield Fault("tokens: one sequence lost", ids, tokens(lambda s: s[:-1]))
    yield Fault("tokens: other id of eos", special, engine(claims={"special": {"bos": BOS, "eos": 7}}))
    counted = lambda k: {"position_ids": torch.arange(k["input_ids"].shape[1]).expand_as(k["input_ids"])}  # noqa: E731
    yield Fault("positions: padding is counted", "position ids", inputs(counted), LEFT)
    yield Fault(
        "positions: from 1 on", "position ids", inputs(lambda k: {"position_ids": k["position_ids"] + 1})
    )
    packed = lambda k: {"position_ids": k["position_ids"] + 24 * torch.arange(3)[:, None]}  # noqa: E731
    yield Fault("positions: not restarted in a pack", "position ids", inputs(packed))
    seen = lambda k: {"attention_mask": torch.ones_like(k["attention_mask"])}  # noqa: E731
    yield Fault("mask: padding is seen", "mask", inputs(seen), LEFT)
    yield Fault(
        "mask: of another row", "mask", inputs(lambda k: {"attention_mask": k["attention_mask"].roll(1, 0)})
    )

    def hidden(k: dict[str, Any]) -> dict[str, Any]:
        mask = k["attention_mask"].clone()
        mask[:, 0] = 0
        return {"attention_mask": mask}

    yield Fault("mask: the first token is hidden", "mask", inputs(hidden))
    yield Fault("temperature: not given", "temperature", engine(), TEMPERATURE, Options())
    yield Fault(
        "temperature: declared to divide log-probs",
        "temperature stage",
        engine(claims={"stage": "log-probs"}),
        TEMPERATURE,
    )
    yield Fault("vocabulary: padded head", "vocabulary", _padded_head)
    yield Fault("dtype: float16 in place of bfloat16", "dtype", _half)
    yield Fault("log-probs: NaN", "log-probs", log_probs(_not_a_number))


def _weights() -> Iterator[Fault]:
    """Yield faults of weights."""

    def one(name: str, path: str, edit: Callable[[torch.Tensor], torch.Tensor]) -> Fault:
        return Fault(f"weights: {name}", "weights", weight(path, edit), names=(path,))

    def ulp(w: torch.Tensor) -> torch.Tensor:
        w.view(torch.int16).view(-1)[w.abs().argmin()] += 1
        return w

    gate, up = f"{AT}.mlp.gate_proj.weight", f"{AT}.mlp.up_proj.weight"
    low = torch.randn(2, 64, generator=torch.Generator().manual_seed(0)).bfloat16() * 0.05
    yield one("one ulp in one weight", f"{AT}.mlp.down_proj.weight", ulp)
    yield Fault("weights: stale after an update", "weights", _every_weight, names=("model.norm.weight",))
    yield one("one tensor not sent", f"{AT}.self_attn.v_proj.weight", lambda w: w * 1.02)
    yield one("transposed shard", f"{AT}.self_attn.o_proj.weight", lambda w: w.T.contiguous())
    yield Fault(
        "weights: gate and up swapped", "weights", lambda b: _swap_tensors(b, gate, up), names=(gate, up)
    )
    yield one("shards of heads in another order", f"{AT}.self_attn.k_proj.weight", lambda w: w.roll(16, 0))
    yield one("bias dropped", f"{AT}.self_attn.q_proj.bias", torch.zeros_like)
    yield one("rounded to 8 bits", gate, lambda w: w.to(torch.float8_e4m3fn).to(w.dtype))
    yield one("adapter merged on one side", f"{AT}.self_attn.o_proj.weight", lambda w: w + low.T @ low)
    yield one("norm not converted from 1 + w", f"{AT}.input_layernorm.weight", lambda w: w - 1)
    yield Fault("weights: head tied on one side", "weights", _tied, names=("lm_head.weight",))


def _operators() -> Iterator[Fault]:
    """Yield faults of norms, rotations, products and layers."""

    def one(name: str, part: str, function: Callable[..., Any], **more: Any) -> Fault:
        path = f"{AT}.{part}".rstrip(".")
        return Fault(name, more.pop("where", path), forward(path, function), **more)

    norm, rotary = "input_layernorm", "model.rotary_emb"
    cos = f"{rotary}.cos"
    yield Fault(
        "norm: another eps",
        f"{AT}.{norm}",
        lambda b: assigned(b.model.get_submodule(f"{AT}.{norm}"), variance_epsilon=1e-4),
        verdict="rounding",
    )
    yield one(
        "norm: weight applied before rounding", norm, _norm(lambda w: w, short=False), verdict="rounding"
    )
    yield one("norm: of 1 + weight", norm, _norm(lambda w: 1 + w))
    yield one("norm: mean subtracted", "post_attention_layernorm", _norm(lambda w: w, mean=True))
    yield one("norm: of q skipped", "self_attn.q_norm", lambda self, plain, x: x)
    yield Fault("norm: the last one skipped", "model.norm", forward("model.norm", lambda self, plain, x: x))
    yield Fault(
        "rope: off by one",
        cos,
        forward(rotary, lambda self, plain, x, position_ids: plain(x, position_ids + 1)),
    )
    yield Fault("rope: another theta", cos, _angles(lambda at, f: at * f**1.1))
    yield Fault(
        "rope: angles in 16 bits",
        cos,
        _angles(lambda at, f: (at * f).bfloat16().float()),
        verdict="rounding",
    )
    yield Fault("rope: positions scaled", cos, _angles(lambda at, f: at / 4 * f))
    yield Fault(
        "rope: neighbours in place of halves",
        "model.layers.0.self_attn.attention",
        engine(within=_interleaved),
    )
    yield one("product: split-K", "self_attn.o_proj", _split_k, verdict="rounding")
    yield one("product: sums in 16 bits", "mlp.down_proj", _short_sums, verdict="rounding")
    yield one(
        "product: bias not added",
        "self_attn.k_proj",
        lambda self, plain, x: functional.linear(x, self.weight),
    )
    yield one(
        "product: factors of 8 bits",
        "mlp.up_proj",
        lambda self, plain, x: plain(x.to(torch.float8_e4m3fn).to(x.dtype)),
    )
    yield one(
        "product: an adapter on one side",
        "self_attn.o_proj",
        lambda self, plain, x: plain(x) + 0.02 * x.sum(-1, keepdim=True),
    )


def _layers() -> Iterator[Fault]:
    """Yield faults of the MLP, residual sums, whole layers, embedding and head."""

    def one(name: str, part: str, function: Callable[..., Any], **more: Any) -> Fault:
        path = f"{AT}.{part}".rstrip(".")
        return Fault(name, more.pop("where", path), forward(path, function), **more)

    yield one("mlp: GELU in place of SiLU", "mlp.act_fn", lambda self, plain, x: functional.gelu(x))
    yield one(
        "mlp: sigmoid rounded first",
        "mlp.act_fn",
        lambda self, plain, x: x * torch.sigmoid(x),
        verdict="rounding",
    )
    yield one("mlp: rounded once (fused)", "mlp", _gated_once, where=f"{AT}.mlp.gated", verdict="rounding")
    yield one(
        "residual: added before rounding (fused)",
        "",
        _rounded_late,
        where=f"{AT}.post_attention_layernorm.residual",
        verdict="rounding",
    )
    yield one(
        "residual: of the norm's result",
        "",
        _residual_of_norm,
        where=f"{AT}.post_attention_layernorm.residual",
    )
    yield one(
        "layers: one skipped",
        "",
        lambda self, plain, hidden_states, **rest: hidden_states,
        verdict="not called",
    )
    yield Fault("layers: two swapped", "model.layers.0.input_layernorm.residual", _swapped_layers)
    yield Fault(
        "embedding: scaled",
        "model.embed_tokens",
        forward("model.embed_tokens", lambda self, plain, x: plain(x) * 8),
    )
    yield Fault(
        "head: logits capped",
        "lm_head",
        forward("lm_head", lambda self, plain, x: torch.tanh(plain(x) / 4) * 4),
    )


def _attentions() -> Iterator[Fault]:
    """Yield faults of attention and of its cache."""
    where = f"{AT}.self_attn.attention"
    for name, function in (
        ("attention: keys merged in another order", _swapped_chunks),
        ("attention: softmax in 16 bits", _short_softmax),
    ):
        yield Fault(name, where, attention(function), verdict="rounding")
    for name, function in (
        ("attention: scale", _scaled(1.1)),
        ("attention: later keys are seen", _causal_dropped),
        ("attention: a window of 6", _windowed(6)),
        ("attention: a window one too short", _windowed(23)),
        ("attention: other key heads", _other_heads),
        ("attention: scores capped", _capped),
    ):
        yield Fault(name, where, attention(function))
    for name, edit in (
        ("cache: stale key", _stale), ("cache: wrong slot", _wrong_slot),
        ("cache: in 8 bits", _eight_bits),
    ):  # fmt: skip
        yield Fault(name, where, cached(edit), Options(), CHUNKS, depends=("chunk",))
    other = cached(_other_row)
    yield Fault("cache: of another sequence", where, other, Options(), CHUNKS, depends=("chunk", "batch"))
    yield Fault(
        "cache: stale page", "model.layers.0.self_attn.attention", _stale_page, Options(page=4, chunk=4),
        depends=("chunk", "page", "batch"), paged=True,
    )  # fmt: skip


def _triggered() -> Iterator[Fault]:
    """Yield faults that appear in some calls alone."""
    up = f"{AT}.mlp.up_proj"
    alone = Options(batch=1)
    padded = lambda x: bool((x[-1, 0] == x[-1, 1]).all())  # noqa: E731
    for name, condition, a, b, depends in (
        ("product: split-K for few tokens", lambda x: x.shape[1] <= 4, Options(), CHUNKS, ("chunk",)),
        ("product: split-K in a batch", lambda x: x.shape[0] > 1, alone, Options(), ("batch",)),
        ("product: split-K for padded rows", padded, Options(), LEFT, ("padding", "batch")),
    ):
        inject = forward(up, _where(condition))
        yield Fault(name, up, inject, a, b, depends=depends, verdict="rounding")


def _routers() -> Iterator[Fault]:
    """Yield faults of routers, in a model of experts."""
    path = f"{AT}.mlp.gate"

    def one(name: str, where: str, function: Callable[..., Any], **more: Any) -> Fault:
        return Fault(f"router: {name}", where, forward(path, function), experts=True, **more)

    name = "router: one ulp in one weight"
    yield Fault(name, "weights", _router_ulp, names=(f"{path}.weight",), experts=True)
    yield one("sums in 16 bits", path, _routed(_router_short_sums), verdict="changed experts")
    yield one("weights not renormalised", f"{path}.weights", _routed(_router_product, renormalize=False))
    lowest = lambda self, x: -_router_product(self, x)  # noqa: E731
    yield one("lowest scores chosen", path, _routed(lowest))


def _log_probs() -> Iterator[Fault]:
    """Yield faults behind the logits."""

    def one(name: str, says: str, function: Callable[..., torch.Tensor], **more: Any) -> Fault:
        return Fault(name, "log_probs", log_probs(function), TEMPERATURE, says=says, **more)

    f32 = {"dtype": torch.float32}
    yield one("temperature: applied twice", "applied twice", lambda z, ids, t: of(z / t / t, ids))
    yield one("temperature: not applied", "not applied", lambda z, ids, t: of(z, ids))
    yield one("temperature: multiplied", "multiplied", lambda z, ids, t: of(z * t, ids))
    yield one("temperature: after the softmax", "after the softmax", lambda z, ids, t: of(z, ids) / t)
    yield one(
        "logits: rounded to bfloat16",
        "logits are rounded to bfloat16",
        lambda z, ids, t: of(z.bfloat16().float() / t, ids),
        **f32,
    )
    yield one(
        "log-probs: rounded to bfloat16",
        "log-probs are rounded",
        lambda z, ids, t: of(z / t, ids).bfloat16().float(),
    )
    yield one("log-probs: of the token before", "token before", lambda z, ids, t: of(z / t, ids.roll(1)))
    yield one("log-probs: over a support of 8", "likeliest", _top_k(8))
    yield one(
        "log-probs: of the likeliest token", "likeliest token", lambda z, ids, t: of(z / t, z.argmax(-1))
    )
    yield one("log-probs: probabilities", "not their logarithms", lambda z, ids, t: of(z / t, ids).exp())


FAULTS = {
    fault.name: fault
    for part in (_inputs, _weights, _operators, _layers, _attentions, _triggered, _routers, _log_probs)
    for fault in part()
}
"""All faults by their names."""


def verdict(report: Any) -> str:
    """Return the verdict on the operator that a report names, or "input"."""
    first = None if report.operators is None else report.operators.cause
    return first.verdict if first is not None and first.name == report.cause else "input"


def located(fault: Fault, report: Any) -> bool:
    """Return whether a report names a fault: where, what is wrong, which tensors, why, what it depends on."""
    named = {n for f in report.findings for n in f.names}
    explained = report.explanation or ""
    return bool(
        report.cause == fault.where
        and verdict(report) == ("input" if fault.where in get_args(Kind) else fault.verdict)
        and {*fault.names} <= named
        and fault.says in explained
        and {*fault.depends} == {*report.depends}
    )
