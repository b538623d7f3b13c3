"""`rlk.patch`: a loaded transformers model whose modules compute by rlk, its parameters left as they are."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import dataclass, field, replace
from importlib import import_module
from types import MethodType, TracebackType
from typing import TYPE_CHECKING, Any, Literal

import torch

from rlk.errors import NOWHERE, Code, Diagnostic, LaunchError, UnsupportedError
from rlk.integrations.batch import PEER
from rlk.integrations.continuous_batching import batch_generator, initializer, kept_manager
from rlk.integrations.swap import known_version
from rlk.integrations.tensors import SHORT
from rlk.integrations.transformers import VERSIONS
from rlk.nn.config import LEAVES, Experts, ModelConfig, experts_of_deepseek
from rlk.nn.experts import store_transposed
from rlk.nn.model import CausalLM, Decoder
from rlk.nn.products import lay_adjacent
from rlk.ops.results import LogProbs
from rlk.runtime.binding.checks import wrong_type, wrong_value

if TYPE_CHECKING:
    from rlk.integrations.decoders import Decoding, Forward

FAMILIES = {
    "llama": ("Llama", "LlamaModel", "hf_llama"),
    "mistral": ("Mistral", "MistralModel", "hf_llama"),
    "qwen2": ("Qwen2", "Qwen2Model", "hf_llama"),
    "qwen3": ("Qwen3", "Qwen3Model", "hf_llama"),
    "gemma2": ("Gemma2", "Gemma2Model", "gemma"),
    "gemma3": ("Gemma3", "Gemma3TextModel", "gemma"),
    "qwen3_moe": ("Qwen3Moe", "Qwen3MoeModel", "hf_llama"),
    "mixtral": ("Mixtral", "MixtralModel", "hf_llama"),
    "gpt_oss": ("GptOss", "GptOssModel", "gpt_oss"),
    "deepseek_v3": ("DeepseekV3", "DeepseekV3Model", "hf_llama"),
}
"""By the module of transformers: how its classes begin, its decoder's class, the profile of its norms."""
LAYER_NORMS = ("input_layernorm", "post_attention_layernorm")
SANDWICH_NORMS = ("pre_feedforward_layernorm", "post_feedforward_layernorm")
HEAD_NORMS = ("self_attn.q_norm", "self_attn.k_norm")
ROLES = {
    "RMSNorm": "norm",
    "Attention": "attention",
    "MLP": "mlp",
    "SparseMoeBlock": "experts",
    "TopKRouter": "router",
    "DecoderLayer": "layer",
    "ForCausalLM": "head",
}
"""By the end of a class's name."""
ODD_ROLES = {"GptOssMLP": "experts", "DeepseekV3MoE": "block", "DeepseekV3TopkRouter": "router"}
"""By the name of a class that says something else. A block is exchanged by itself, in a model that is not."""
GROUPS = (("self_attn", ("q_proj", "k_proj", "v_proj")), ("mlp", ("gate_proj", "up_proj")))
"""Linear layers of one input, by the module that holds them."""
ROW_PARALLEL = ("o_proj", "down_proj")
ABSENT = object()
WHOLE = "attention, gated MLPs, layers and models"
"""What is exchanged in a model that can be exchanged whole: forwards with arguments of rlk's."""

Logits = Literal["float32", "model"]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something of a model that is not exchanged. whole: nor is what makes one function of its modules."""

    where: str
    what: str
    instead: str
    whole: bool = False

    def said(self) -> Diagnostic:
        fields = (("where", self.where), ("what", self.what), ("instead", self.instead))
        return Diagnostic(Code.PATCH_PART, NOWHERE, fields)

    def __str__(self) -> str:
        return f"{self.where}: {self.what} ({self.instead})"


def _first_of(same: list[Problem]) -> Problem:
    """Return the first of problems that differ by their module alone, with how many others there are."""
    first, more = same[0], len(same) - 1
    return replace(first, where=f"{first.where} and {more} more") if more else first


@dataclass(slots=True, eq=False)
class Patched:
    """A patched model; a context manager that undoes the patch.

    problems: what was not exchanged, a line for each. done: what `put` set. stored: weights that are stored
    transposed. undone: whether `undo` was called.
    """

    model: torch.nn.Module
    problems: tuple[str, ...]
    done: list[tuple[Any, str, Any, Any]] = field(default_factory=list, repr=False)
    stored: list[torch.nn.Parameter] = field(default_factory=list, repr=False)
    undone: bool = False

    def undo(self) -> None:
        """Put everything back; a second call does nothing.

        Weights that were moved behind each other stay so; those stored transposed (GPT-OSS's experts) are
        contiguous again. A manager of continuous batching that was kept (`persistent_manager=True`) is
        destroyed, since its steps are rlk's. Raises LaunchError, with all else put back, if other code
        replaced a forward after the patch.
        """
        self.undone = True
        for head, name, _, _ in self.done:
            if name == "init_continuous_batching" and kept_manager(head) is not None:
                head.destroy_cached_continuous_batching_manager()
        while self.stored:
            p = self.stored.pop()
            p.data = p.data.contiguous()
        lost = []
        while self.done:
            owner, name, ours, before = self.done.pop()
            if vars(owner).get(name, ABSENT) != ours:
                lost.append(f"{type(owner).__name__}.{name}")
            elif before is ABSENT:
                vars(owner).pop(name)
            else:
                setattr(owner, name, before)
        if lost:
            raise LaunchError(Code.SWAP_LOST, peer=PEER, names=", ".join(sorted(set(lost))))

    def logps(self, input_ids: torch.Tensor, *, temperature: float = 1.0, **inputs: Any) -> LogProbs:
        """Return log p(ids[t] | ids before t), f32 [B, L], without logits: 0 at padding and at first tokens.

        input_ids: int32 or int64 [B, L]. inputs: others of the model's forward, such as attention_mask [B, L]
        (bool, integers, or floats that are 0 or 1), position_ids [B, L] and cu_seq_lens_q [sequences + 1],
        int32 or int64; and `needs`, names of the results, of logp, lse and entropy. Differentiable in the
        parameters. Raises UnsupportedError, and LaunchError for other dtypes and shapes and after `undo`.
        """
        self._still("logps")
        if not patched_heads(self.model):
            raise LaunchError(Code.PATCH_IN_PARTS, op="Patched.logps", model=type(self.model).__name__)
        inputs = {"needs": ("logp",), "use_cache": False, **inputs}
        found: LogProbs = self.model(input_ids=input_ids, temperature=temperature, **inputs)
        return found

    def numerics_id(self, device: torch.device | str) -> str:
        """Return the id of the model's numerics on a device, without adapters: as of `rlk.nn.CausalLM`.

        Raises LaunchError if not all of one decoder was exchanged, and after `undo`.
        """
        self._still("numerics_id")
        return numerics_id(self.model, device)

    def _still(self, op: str) -> None:
        """Raise LaunchError after `undo`."""
        if self.undone:
            raise LaunchError(Code.PATCH_UNDONE, op=f"Patched.{op}")

    def __enter__(self) -> Patched:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()

    def put(self, owner: Any, name: str, ours: Any) -> None:
        """Set an attribute of an object until `undo`."""
        self.done.append((owner, name, ours, vars(owner).get(name, ABSENT)))
        setattr(owner, name, ours)

    def exchange(self, module: torch.nn.Module, forward: Forward) -> None:
        """Replace a module's forward until `undo`."""
        self.put(module, "forward", MethodType(forward, module))


def patch(
    model: torch.nn.Module,
    *,
    leaves: int | None = None,
    strict: bool = True,
    logits: Logits = "float32",
    loss_logits: bool = False,
) -> Patched:
    """Exchange the computations of a loaded transformers model for rlk's, in place, until it is undone.

    model: Llama, Mistral, Qwen2, Qwen3, Gemma 2, Gemma 3 (text), Qwen3-MoE, Mixtral or GPT-OSS, in bf16 or
    f16, or a module that holds one: peft's, a reward model. Parameters keep identity, names and values;
    weights of one input are moved behind each other in memory, and GPT-OSS's experts are stored transposed,
    not contiguous, until `undo`: shard such a model first (`fully_shard`). Use it as `with rlk.patch(model):`
    or keep the result and call `.undo()`.

    leaves: pieces of contractions that ranks may share, 1, 2, 4 or 8; by default `config.rlk_leaves`, or 1.
    strict: raise UnsupportedError, which lists everything that cannot be exchanged, with nothing exchanged;
    False prints the list, a line for each, exchanges the rest and prints what that is: of DeepSeek-V3 linear
    layers, norms, embedding and experts.
    logits: "float32", whose log softmax `logps` takes, or "model": rounded to the model's dtype, as
    transformers does. loss_logits: a training forward with labels returns logits beside its loss too. Raises
    LaunchError for a model that is patched already, and for one of `rlk.nn`, which needs no patch. Warns of
    f32 adapters in a 16-bit model, which torch.autocast alone runs.
    """
    if not isinstance(model, torch.nn.Module):
        raise wrong_type("rlk.patch", "model", model, "loaded model of transformers")
    if any(isinstance(module, (CausalLM, Decoder)) for module in model.modules()):
        wanted = "a model of transformers: one of rlk.nn computes by rlk already, and needs no patch"
        raise wrong_value("rlk.patch", "model", f"rlk.nn.{type(model).__name__}", wanted)
    if leaves not in (None, 1, 2, 4, 8):
        raise wrong_value("rlk.patch", "leaves", leaves, "1, 2, 4 or 8")
    known_version(PEER, VERSIONS)
    if logits not in ("float32", "model"):
        raise LaunchError(
            Code.ARG_VALUE, op="patch", name="logits", value=logits, wanted='"float32" or "model"'
        )
    parts = _Parts.of(model, leaves)
    problems = parts.kinds_of_problems()
    if strict and problems:
        last = Diagnostic(Code.PATCH_NOTHING, NOWHERE, (("rest", parts.exchanged()),))
        raise UnsupportedError.collected((*(each.said() for each in problems), last))
    for each in problems:
        print(f"rlk.patch: not exchanged: {each}")
    made = Patched(model, tuple(map(str, problems)))
    try:
        _exchange(made, parts, torch.float32 if logits == "float32" else None, loss_logits)
    except BaseException:
        made.undo()
        raise
    if problems:
        print(f"rlk.patch: exchanged: {parts.exchanged()}")
    if parts.adapters:
        _warn_of_adapters(parts.adapters)
    return made


def _warn_of_adapters(wide: dict[str, torch.dtype]) -> None:
    """Warn of adapters whose dtype is not 16 bits; inside of autocast they are rounded in each call."""
    (first, dtype), *others = wide.items()
    where = f"{first} and {len(others)} more" if others else first
    warnings.warn(
        f"rlk.patch: {where}: adapters of {dtype} in a 16-bit model. Call it inside of torch.autocast, which "
        "rounds them in each call (Trainer does with bf16=True), or make them 16-bit: "
        "autocast_adapter_dtype=False in peft's get_peft_model or from_pretrained, or .to(torch.bfloat16)",
        stacklevel=3,
    )


def patched_decoders(model: torch.nn.Module) -> list[Any]:
    """Return the decoders of a model that are exchanged whole."""
    return [m for m in model.modules() if _role(m)[0] == "decoder" and _is_ours(vars(m).get("forward"))]


def patched_heads(model: torch.nn.Module) -> list[Any]:
    """Return the causal language models inside of a model that are exchanged whole."""
    return [m for m in model.modules() if _role(m)[0] == "head" and _is_ours(vars(m).get("forward"))]


def numerics_id(model: torch.nn.Module, device: torch.device | str) -> str:
    """Return the id of a patched model's numerics on a device, as `Patched.numerics_id` does."""
    decoders = patched_decoders(model)
    if len(decoders) != 1:
        found = f"{len(decoders)} decoders"
        raise LaunchError(
            Code.ARG_VALUE, op="numerics_id", name="model", value=found, wanted="one, exchanged whole"
        )
    config = ModelConfig.of(decoders[0].config)  # with the leaves that the patch put there
    found = next(p.dtype for p in model.parameters() if p.is_floating_point())
    dtype = found if found in SHORT else torch.bfloat16  # of products whose shards are f32
    return CausalLM(config, dtype=dtype, device="meta").numerics_id(device)


# --- what a model consists of ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """The modules of a model that are exchanged. decoders: with their configs, and the whole of each.

    adapters: those whose dtype is none of 16 bits, by their names.
    """

    linears: dict[str, torch.nn.Module]
    norms: dict[str, tuple[torch.nn.Module, str, str]]
    embeddings: dict[str, torch.nn.Module]
    blocks: dict[str, tuple[Any, Experts]]
    decoders: dict[str, tuple[Any, ModelConfig]]
    heads: list[Any]
    problems: list[Problem]
    adapters: dict[str, torch.dtype]

    @staticmethod
    def of(model: torch.nn.Module, leaves: int | None) -> _Parts:
        parts = _Parts({}, {}, {}, {}, {}, [], [], {})
        for name, module in model.named_modules():
            parts._sort(name, module, leaves)
        if not any(_role(module)[0] == "decoder" for module in model.modules()):
            known = ", ".join(decoder for _, decoder, _ in FAMILIES.values())
            what = f"{type(model).__name__} has no decoder that rlk knows"
            parts.problems.append(Problem("the model", what, f"give a model that holds one of {known}", True))
        return parts

    def kinds_of_problems(self) -> tuple[Problem, ...]:
        """Return one of each kind of problem, with the first module that has it."""
        alike: dict[Problem, list[Problem]] = {}
        for problem in self.problems:
            alike.setdefault(replace(problem, where=""), []).append(problem)
        return tuple(_first_of(same) for same in alike.values())

    def exchanged(self) -> str:
        """Return in words what is exchanged."""
        found = {
            "linear layers": len(self.linears),
            "norms": len(self.norms),
            "embeddings": len(self.embeddings),
            "layers of experts with their routers": len(self.blocks),
            "models with their layers": len(self.decoders) if self.whole else 0,
        }
        made = ", ".join(f"{what} ({count})" for what, count in found.items() if count)
        if not made:
            return "nothing"
        return made if self.whole else f"{made}; not {WHOLE}, so that bits depend on the batch"

    @property
    def whole(self) -> bool:
        return not any(p.whole for p in self.problems)

    def _sort(self, name: str, module: torch.nn.Module, leaves: int | None) -> None:
        """Put one module where it belongs, or say why it is not exchanged."""
        role, profile = _role(module)
        linear, embedding = (isinstance(module, kind) for kind in (torch.nn.Linear, torch.nn.Embedding))
        if role is None and not linear and not embedding:
            if _is_quantized(module):
                self._problem(name, *_unknown(module))
        elif (forward := vars(module).get("forward")) is not None:
            self._replaced(name, forward)
        elif role == "other":
            self._problem(
                name, f"a {type(module).__name__} with a forward of its own", "use the own class", True
            )
        elif role == "norm":
            eps = "variance_epsilon" if hasattr(module, "variance_epsilon") else "eps"
            if self._loaded(name, module):
                self.norms[name] = (module, profile, eps)
        elif role == "experts":
            self._loaded(f"{name}.experts", module.experts)
        elif role == "router":
            self._loaded(name, module)
        elif role == "block":
            if self._loaded(f"{name}.experts", module.experts) and self._loaded(f"{name}.gate", module.gate):
                self._block(name, module)
        elif role == "decoder":
            self._decoder(name, module, leaves)
        elif role == "head":
            self.heads.append(module)
        elif linear:
            if not _same(type(module), torch.nn.Linear):
                self._problem(name, *_unknown(module))
            elif self._loaded(name, module):
                self.linears[name] = module
        elif embedding:
            self._embedding(name, module)

    def _problem(self, name: str, what: str, instead: str, whole: bool = False) -> None:
        self.problems.append(Problem(name or "the model", what, instead, whole))

    def _replaced(self, name: str, forward: Any) -> None:
        if _is_ours(forward):
            raise LaunchError(Code.PATCH_TWICE, where=name or "the model")
        self._problem(name, "a forward that other code put on the object", "patch before it does", True)

    def _loaded(self, name: str, module: torch.nn.Module) -> bool:
        """Return whether parameters are tensors of 16 bits, or shards, which may be cast when gathered."""
        for p in module.parameters(recurse=False):
            kind = type(p.data).__name__
            if kind not in ("Tensor", "DTensor"):
                self._problem(name, f"a weight of {kind}", "load the model unquantized")
                return False
            if kind == "Tensor" and p.dtype not in SHORT:
                if ".lora_" in name:
                    self.adapters[name] = p.dtype
                    continue
                what = f"parameters of {p.dtype}, and rlk's products take 16-bit factors"
                self._problem(name, what, "load the model with dtype=torch.bfloat16", True)
                return False
        return True

    def _embedding(self, name: str, module: torch.nn.Module) -> None:
        odd = [n for n in ("max_norm", "scale_grad_by_freq", "sparse") if getattr(module, n)]
        scaled = any(cls.__name__.endswith("TextScaledWordEmbedding") for cls in type(module).__mro__)
        if odd:
            self._problem(name, f"an embedding with {', '.join(odd)}", "leave it out")
        elif not scaled and not _same(type(module), torch.nn.Embedding):
            self._problem(name, *_unknown(module))
        elif self._loaded(name, module):
            self.embeddings[name] = module

    def _block(self, name: str, module: Any) -> None:
        try:
            self.blocks[name] = (module, experts_of_deepseek(module.config.to_dict()))
        except LaunchError as error:
            for each in error.diagnostics:
                self._problem(name, each.message, "; ".join(each.fix))

    def _decoder(self, name: str, module: Any, leaves: int | None) -> None:
        config = module.config
        if module.training and getattr(config, "attention_dropout", 0.0):
            what = f"attention_dropout={config.attention_dropout} in training"
            self._problem(name, what, "load the model with attention_dropout=0", True)
        if (getattr(module, "_tp_size", None) or 1) > 1:
            self._problem(name, "tensor parallelism of transformers", "load the model without", True)
        try:
            found = ModelConfig.of(config, leaves=leaves)
        except LaunchError as error:
            first = error.diagnostics[0]
            self._problem(name, first.message, "; ".join(first.fix), True)
            return
        if getattr(config, "output_router_logits", False):
            self._problem(name, "output_router_logits", "set it to False: see rlk.ops.router_losses", True)
        self.decoders[name] = (module, found)
        roles = {"": "layer", "self_attn": "attention", "mlp": "mlp"} | dict.fromkeys(LAYER_NORMS, "norm")
        roles |= dict.fromkeys(SANDWICH_NORMS if found.sandwich_norms else (), "norm")
        roles |= dict.fromkeys(HEAD_NORMS if found.qk_norm else (), "norm")
        for i, layer in enumerate(module.layers):
            roles["mlp"] = "mlp" if found.is_dense(i) else "experts"
            for part, role in roles.items():
                each = layer.get_submodule(part)
                if _role(each)[0] not in (role, "other"):  # others are told already
                    where = ".".join(x for x in (name, "layers", str(i), part) if x)
                    self._problem(where, f"a {type(each).__name__}", f"use the model's own {role}", True)


def _is_ours(forward: Any) -> bool:
    return str(getattr(getattr(forward, "__func__", None), "__module__", "")).startswith("rlk.")


def _role(module: torch.nn.Module) -> tuple[str | None, str]:
    """Return what a module is in a supported model, and the model's norm profile; None for all else."""
    for cls in type(module).__mro__:  # FSDP2 makes a subclass of a module's class
        path = cls.__module__.split(".")
        if path[:2] == ["transformers", "models"] and path[2:3] and path[2] in FAMILIES:
            begins, decoder, profile = FAMILIES[path[2]]
            roles = {begins + name: role for name, role in ROLES.items()} | ODD_ROLES | {decoder: "decoder"}
            role = roles.get(cls.__name__)
            return role if role is None or _same(type(module), cls) else "other", profile
    return None, ""


def _same(found: type, known: type) -> bool:
    """Return whether a class has the forward of a known one; wrappers of transformers are looked through."""
    return inspect.unwrap(found.forward) is inspect.unwrap(known.forward)  # type: ignore[attr-defined]


def _is_quantized(module: torch.nn.Module) -> bool:
    """Return whether a module looks like a linear layer of other bits: its weight is no float."""
    weight = getattr(module, "weight", getattr(module, "qweight", None))
    return isinstance(weight, torch.Tensor) and not weight.is_floating_point()


def _unknown(module: torch.nn.Module) -> tuple[str, str]:
    return f"a {type(module).__name__}, quantized or unknown", "load the model unquantized"


# --- the exchange -------------------------------------------------------------------------------------------


def _exchange(made: Patched, parts: _Parts, logits_dtype: torch.dtype | None, loss_logits: bool) -> None:
    """Put forwards on the modules of a model: of leaves alone, or of the whole."""
    forwards = import_module("rlk.integrations.decoders")  # imports transformers, which is there now
    for name, module in parts.linears.items():
        forwards.NAMES[module] = name
        made.exchange(module, _linear(forwards, name, logits_dtype, parts))
    for module, profile, eps in parts.norms.values():
        made.exchange(module, forwards.norm_forward(profile, eps))
    for module in parts.embeddings.values():
        made.exchange(module, forwards.embedding_forward)
    for module, experts in parts.blocks.values():
        made.exchange(module, forwards.block_forward(experts))
        made.exchange(module.gate, forwards.router_forward(experts, forwards.corrected_scores_of))
    if not parts.whole:
        return
    for module, config in parts.decoders.values():
        at = forwards.Decoding.of(config, logits_dtype, loss_logits)
        if config.leaves != getattr(module.config, LEAVES, 1):
            made.put(module.config, LEAVES, config.leaves)
        _exchange_decoder(made, forwards, module, at)
        for head in parts.heads:
            if head.model is module:
                made.exchange(head, forwards.causal_forward(at))
                made.put(head, "create_masks_for_generate", _mask_as_given)
                made.put(head, "init_continuous_batching", initializer(config, head))
                made.put(head, "generate_batch", batch_generator(config, head))


def _exchange_decoder(made: Patched, forwards: Any, module: Any, at: Decoding) -> None:
    made.exchange(module, forwards.model_forward(at))
    for i, (layer, options) in enumerate(zip(module.layers, at.layers, strict=True)):
        is_dense = at.config.is_dense(i)
        for holder, names in GROUPS if is_dense else GROUPS[:1]:
            lay_out([getattr(getattr(layer, holder), name) for name in names])
        made.exchange(layer, forwards.layer_forward(at.config.sandwich_norms))
        made.exchange(layer.self_attn, forwards.attention_forward(options))
        mlp = forwards.mlp_forward(at.config) if is_dense else forwards.experts_forward(at.config, i)
        made.exchange(layer.mlp, mlp)
        if not is_dense:
            experts = at.config.experts
            made.exchange(getattr(layer.mlp, experts.router), forwards.router_forward(experts))
            if experts.clamped is not None:
                for p in (layer.mlp.experts.gate_up_proj, layer.mlp.experts.down_proj):
                    if _movable(p):
                        store_transposed(p)
                        made.stored.append(p)


def _linear(forwards: Any, name: str, logits_dtype: torch.dtype | None, parts: _Parts) -> Forward:
    """Return the forward of a linear layer by its place: head, row-parallel, or any other."""
    path = name.split(".")
    if any(part.startswith("lora_") for part in path):
        return forwards.linear_forward(False, 1)
    if "lm_head" in path and parts.whole:
        return forwards.head_forward(logits_dtype)
    inside = [c.leaves for prefix, (_, c) in parts.decoders.items() if name.startswith(prefix)]
    return forwards.linear_forward(any(part in ROW_PARALLEL for part in path), inside[0] if inside else 1)


def _mask_as_given(attention_mask: torch.Tensor | None = None, **_: object) -> torch.Tensor | None:
    """Return the mask of padding that `generate` has, where it would make one of all pairs."""
    return attention_mask


def lay_out(modules: list[Any]) -> None:
    """Move the weights of one input behind each other, if they are plain tensors of this process."""
    if any(not _same(type(m), torch.nn.Linear) for m in modules):
        return
    for name in ("weight", "bias"):
        group = [getattr(m, name) for m in modules]
        if all(_movable(p) for p in group) and len({(p.dtype, p.device) for p in group}) == 1:
            lay_adjacent(group)


def _movable(p: Any) -> bool:
    plain = type(p) is torch.nn.Parameter and type(p.data) is torch.Tensor and p.device.type != "meta"
    return plain and p.is_contiguous() and not (p.device.type == "cpu" and p.is_shared())
