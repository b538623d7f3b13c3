"""A model's calls of the public operators on meta tensors, which are recorded and not run.

The operators run as they do for a user, autograd and exchanges between ranks included; in place of launching
a kernel, what would be launched is handed to an observer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from rlk import ops
from rlk.aot.matrix import Calls, Matrix, Model, wrong
from rlk.aot.others import arguments, other
from rlk.lang.op import Op
from rlk.ops.layout import Layout
from rlk.ops.results import LogProbs
from rlk.ops.sharded import arguments_alike
from rlk.runtime.call.dispatch import dispatch
from rlk.runtime.prefetch import Observer, stand_in, unwritten
from rlk.runtime.registry import others

TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
_POSITIONS, _PAGE, _SEQUENCES = 4096, 64, 8


def observe(matrix: Matrix, observer: Observer) -> None:
    """Call `observer` with everything that the calls of a matrix would launch, repetitions included.

    Raises what the calls raise: LaunchError for options that an operator does not take.
    """
    with dispatch.recorded(lambda invocation, tensors: unwritten(invocation, tensors, observer)):
        for model in matrix.models:
            for calls in matrix.calls:
                if not calls.split:
                    _make(calls, model, 1, None)
            for tp in model.tp:
                with _ranks(tp) as group:
                    for calls in matrix.calls:
                        if calls.split:
                            _make(calls, model, tp, group)


@contextmanager
def _ranks(count: int) -> Iterator[dist.ProcessGroup | None]:
    """Stand for the first of `count` ranks; what ranks exchange goes nowhere."""
    if count == 1:
        yield None
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise wrong("tp", count, "a process that is no rank of a running group")
    dist.init_process_group("fake", rank=0, world_size=count, store=FakeStore())
    try:
        with arguments_alike():  # nobody is there to compare with
            yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


def _make(calls: Calls, model: Model, tp: int, group: dist.ProcessGroup | None) -> None:
    make, own = CALLERS.get(calls.op), other(calls.op)
    if own is not None:
        make = partial(_registered, own, calls.sizes)
    if make is None:
        raise wrong("op", calls.op, ", ".join((*CALLERS, *others())))
    for dtype in calls.dtypes:
        if own is None and not isinstance(dtype, str):
            raise wrong(f"{calls.op}: dtypes", dict(dtype), f"of rlk's operators one of {', '.join(TYPES)}")
        for rows in calls.rows:
            for options in calls.options:
                call = _Call(model, rows, dtype, tp, group, calls.backward)
                given = {name: tuple(x) if isinstance(x, list) else x for name, x in options.items()}
                if own is None and given.pop("mask", False):
                    given["mask"] = torch.ones(rows, dtype=torch.bool)
                make(call, given)


@dataclass(slots=True)
class _Call:
    """One call of a model: its sizes on a rank, and what makes tensors of them."""

    model: Model
    rows: int
    dtypes: str | Mapping[str, str]  # a dtype by variable: of operators of others alone
    tp: int
    group: dist.ProcessGroup | None
    grad: bool

    @property
    def dtype(self) -> torch.dtype:
        """Return the model's dtype."""
        assert isinstance(self.dtypes, str)
        return TYPES[self.dtypes]

    def share(self, name: str) -> int:
        """Return a size of the model on one rank; at least 1, as kept by ranks that share a head."""
        size = int(getattr(self.model, name))
        if size % self.tp and size > self.tp:
            raise wrong(f"{self.model.name}: {name}", size, f"a multiple of {self.tp} ranks")
        return max(1, size // self.tp)

    def float(self, *shape: int) -> torch.Tensor:
        """Return a tensor of the model's dtype."""
        return stand_in(*shape, dtype=self.dtype, grad=self.grad)

    def head(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return hidden states, and this rank's rows of the head's weight."""
        return self.float(self.rows, self.model.hidden), self.float(self.share("vocab"), self.model.hidden)

    def ids(self, *shape: int) -> torch.Tensor:
        """Return ids, as tokenizers give them."""
        return torch.zeros(shape, dtype=torch.int64)

    def backward(self, outputs: list[torch.Tensor | None], inputs: list[torch.Tensor]) -> None:
        """Ask for gradients of all inputs, if the call wants them, given dense cotangents."""
        found = [out for out in outputs if out is not None and out.requires_grad]
        if self.grad and found:
            dense = [stand_in(*out.shape, dtype=out.dtype) for out in found]
            torch.autograd.grad(found, inputs, dense, retain_graph=True, allow_unused=True)

    def layout(self) -> tuple[Layout, tuple[int, ...]]:
        """Return all rows packed, as sequences of about the same length, and the shape of one number each."""
        some = min(_SEQUENCES, self.rows)
        edges = torch.linspace(0, self.rows, some + 1).round().to(torch.int32)
        return Layout.packed(edges, tokens=self.rows), (self.rows,)


def _scores(call: _Call, options: dict[str, Any]) -> None:
    logits = call.float(call.rows, call.model.vocab)
    made = ops.logp(logits, call.ids(call.rows), **options)
    _through(call, made, [logits])


def _head(call: _Call, options: dict[str, Any]) -> None:
    hidden, weight = call.head()
    made = ops.linear_logp(hidden, weight, call.ids(call.rows), group=call.group, **options)
    _through(call, made, [hidden, weight])


def _through(call: _Call, made: LogProbs, inputs: list[torch.Tensor]) -> None:
    """Ask for gradients through log-probs, and where there is an entropy through both."""
    call.backward([made.logp], inputs)
    if made.entropy is not None:
        call.backward([made.logp, made.entropy], inputs)


def _numbers(call: _Call, options: dict[str, Any]) -> tuple[Layout, dict[str, torch.Tensor], torch.Tensor]:
    """Return a layout, old, reference and rollout log-probs of its tokens, and advantages."""
    layout, shape = call.layout()
    given = {name: stand_in(*shape) for name in ("old_logp", "ref_logp", "rollout_logp")}
    advantages = stand_in(*shape) if options.pop("per_token", False) else stand_in(layout.sequences)
    return layout, given, advantages


def _policy(call: _Call, options: dict[str, Any]) -> None:
    layout, given, advantages = _numbers(call, options)
    logp = stand_in(*layout.shape, grad=call.grad)
    old = given.pop("old_logp")
    made = ops.policy_loss(logp, old, advantages, layout=layout, **given, **options)
    call.backward([made.loss], [logp])


def _linear_policy(call: _Call, options: dict[str, Any]) -> None:
    layout, given, advantages = _numbers(call, options)
    hidden, weight = call.head()
    old, ids = given.pop("old_logp"), call.ids(call.rows)
    options |= {"layout": layout, "group": call.group, **given}
    made = ops.linear_policy_loss(hidden, weight, ids, old, advantages, **options)
    call.backward([made.loss], [hidden, weight])


def _norm(call: _Call, options: dict[str, Any]) -> None:
    x, weight = call.float(call.rows, call.model.hidden), call.float(call.model.hidden)
    residual = call.float(call.rows, call.model.hidden) if options.pop("residual", False) else None
    made = ops.rms_norm(x, weight, profile=call.model.profile, residual=residual, **options)
    results = list(made) if isinstance(made, tuple) else [made]
    call.backward(results, [x, weight] + ([residual] if residual is not None else []))


def _step(call: _Call, options: dict[str, Any]) -> tuple[torch.Tensor, int, int, dict[str, Any]]:
    """Return what a product for q, k and v gives, heads of q and of k, and a rotation's inputs if asked."""
    dim, heads, keys = call.model.head_dim, call.share("heads"), call.share("kv_heads")
    tables = {n: stand_in(_POSITIONS, dim // 2) for n in ("cos", "sin")}
    turned = {**tables, "position_ids": call.ids(call.rows)} if options.pop("rotated", True) else {}
    return call.float(call.rows, (heads + 2 * keys) * dim), heads, keys, turned


def _norm_heads(call: _Call, options: dict[str, Any]) -> None:
    qkv, heads, keys, turned = _step(call, options)
    dim, first = call.model.head_dim, 0
    for count in (heads, keys):
        x, weight = qkv[:, first : first + count * dim].unflatten(-1, (count, dim)), call.float(dim)
        first += count * dim
        made = ops.qk_norm(x, weight, profile=_of_heads(call.model), **turned, **options)
        call.backward([made], [qkv, weight])


def _cache_step(call: _Call, options: dict[str, Any]) -> None:
    """One token of each of `rows` sequences; normed: whether the model normalises q and k."""
    call.grad = False
    qkv, _, keys, turned = _step(call, options)
    k_cache, v_cache = (call.float(call.rows, _PAGE, keys, call.model.head_dim) for _ in range(2))
    weights = {n: call.float(call.model.head_dim) for n in ("q_weight", "k_weight")}
    given = {**turned, **(weights if options.pop("normed", False) else {})}
    profile = _of_heads(call.model)
    ops.cache_qkv(qkv, k_cache, v_cache, call.ids(call.rows), profile=profile, **given, **options)


def _of_heads(model: Model) -> str:
    """Return the profile of a model's norms as those of heads are named: vLLM's differs by the residual."""
    return "hf_llama" if model.profile == "vllm" else model.profile


def _write_step(call: _Call, options: dict[str, Any]) -> None:
    call.grad = False
    qkv, _, keys, turned = _step(call, {"rotated": options.pop("rotated", False)})
    dim = call.model.head_dim
    k, v = qkv[:, -2 * keys * dim :].unflatten(-1, (2, keys, dim)).unbind(1)
    caches = (call.float(call.rows, _PAGE, keys, dim) for _ in range(2))
    ops.write_cache(k, v, *caches, call.ids(call.rows), **turned, **options)


def _glu(op: Callable[..., Any], call: _Call, options: dict[str, Any]) -> None:
    gate, up = (call.float(call.rows, call.share("intermediate")) for _ in range(2))
    call.backward([op(gate, up, **options)], [gate, up])


def _rotate(call: _Call, options: dict[str, Any]) -> None:
    dim = call.model.head_dim
    q, k = (call.float(call.rows, call.share(heads), dim) for heads in ("heads", "kv_heads"))
    cos, sin = (stand_in(_POSITIONS, dim, dtype=call.dtype) for _ in range(2))
    made = ops.rope(q, k, cos, sin, position_ids=call.ids(call.rows), **options)
    call.backward(list(made), [q, k])


def _embed(call: _Call, options: dict[str, Any]) -> None:
    weight = call.float(call.model.vocab, call.model.hidden)
    call.backward([ops.embedding(call.ids(call.rows), weight, **options)], [weight])


def _product(call: _Call, options: dict[str, Any]) -> None:
    """The products of a decoder's layer, whole rows or columns of each weight on a rank."""
    m, heads = call.model, call.share("heads") * call.model.head_dim
    both = heads + 2 * call.share("kv_heads") * m.head_dim
    wide = call.share("intermediate")
    for columns, length in {(both, m.hidden), (m.hidden, heads), (2 * wide, m.hidden), (m.hidden, wide)}:
        x, w = call.float(call.rows, length), call.float(columns, length)
        call.backward([ops.matmul(x, w, **options)], [x, w])


def _advantages(call: _Call, options: dict[str, Any]) -> None:
    edges = torch.linspace(0, call.rows, math.ceil(call.rows / _SEQUENCES) + 1).round().to(torch.int32)
    ops.group_advantage(stand_in(call.rows), edges, **options)


def _draw(call: _Call, options: dict[str, Any]) -> None:
    call.grad = False
    ids = call.ids(call.rows)
    ops.sample(call.float(call.rows, call.model.vocab), seed=0, request_id=ids, position=ids, **options)


def _heads(call: _Call) -> tuple[torch.Tensor, int, int]:
    call.grad = False
    dim = call.model.head_dim
    return call.float(call.rows, call.share("heads"), dim), call.share("kv_heads"), dim


def _attend(call: _Call, options: dict[str, Any]) -> None:
    q, heads, dim = _heads(call)
    k, v = (call.float(call.rows, heads, dim) for _ in range(2))
    edges = torch.tensor([0, call.rows], dtype=torch.int32)
    ops.varlen_attention(q, k, v, edges, edges, **options)


def _attend_pages(call: _Call, options: dict[str, Any]) -> None:
    """One query of each of `rows` sequences, as decoding has it, over contexts of `context` tokens."""
    q, heads, dim = _heads(call)
    pages = max(1, options.pop("context", _POSITIONS) // _PAGE)
    k, v = (call.float(call.rows * pages, _PAGE, heads, dim) for _ in range(2))
    table = torch.zeros(call.rows, pages, dtype=torch.int32)
    lengths = torch.full((call.rows,), pages * _PAGE, dtype=torch.int32)
    edges = torch.arange(call.rows + 1, dtype=torch.int32)
    ops.paged_attention(q, k, v, table, lengths, edges, **options)


def _registered(op: Op, sizes: Mapping[str, object], call: _Call, options: dict[str, Any]) -> None:
    """Call an operator that others registered, and ask for the gradients that it has."""
    given = arguments(op, call.rows, call.dtypes, sizes, call.model, options, stand_in, call.grad)
    made = op(**given)
    found = [made] if isinstance(made, torch.Tensor) else list(made)
    differentiable = [t for t in found if t.requires_grad]
    call.backward(differentiable, [t for t in given.values() if getattr(t, "requires_grad", False)])


CALLERS: dict[str, Callable[[_Call, dict[str, Any]], None]] = {
    "logp": _scores,
    "linear_logp": _head,
    "policy_loss": _policy,
    "linear_policy_loss": _linear_policy,
    "rms_norm": _norm,
    "swiglu": partial(_glu, ops.swiglu),
    "geglu": partial(_glu, ops.geglu),
    "rope": _rotate,
    "qk_norm": _norm_heads,
    "cache_qkv": _cache_step,
    "write_cache": _write_step,
    "embedding": _embed,
    "matmul": _product,
    "group_advantage": _advantages,
    "sample": _draw,
    "varlen_attention": _attend,
    "paged_attention": _attend_pages,
}
