"""Interpreter of generated Triton source on a CPU, with the bits of a device.

`interpret(source)` executes a module of `@triton.jit` functions with an interpreting decorator in the place
of `triton.jit`, so compiled and interpreted kernels live side by side in one process. Arithmetic is that of
`interpreter_builder`; `triton.language` is patched only while a kernel runs.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import itertools
import linecache
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache, partial
from types import CodeType, ModuleType
from typing import Any

import numpy as np
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter as base
from triton.runtime.jit import JITFunction

from rlk.testing.simulators.interpreter_builder import (
    Array,
    FaithfulBuilder,
    NotModelled,
    OutOfBounds,
    Span,
    TensorHandle,
    numpy_dtype,
)
from rlk.testing.simulators.interpreter_versions import Patch, hooks

__all__ = ["Interpreted", "InterpreterFault", "NotModelled", "OutOfBounds", "interpret"]

# What a launch says to a compiler; an interpreter has no use for it.
LAUNCH_OPTIONS = {"num_warps", "num_stages", "num_ctas", "enable_fp_fusion", "maxnreg", "warmup", "stream"}


class _Semantic(TritonSemantic):  # type: ignore[misc]
    """Triton's rules of types, which compare and make shapes of constexprs: most of an operation's time."""

    def binary_op_type_checking_impl(self, lhs: Any, rhs: Any, *rest: Any, **more: Any) -> Any:
        if type(lhs) is type(rhs) is tl.tensor and lhs.dtype is rhs.dtype and id(lhs.dtype) in _KEPT:
            return self.broadcast_impl_value(lhs, rhs)
        return super().binary_op_type_checking_impl(lhs, rhs, *rest, **more)

    def cast(self, input: Any, dst_ty: Any, *rest: Any, **more: Any) -> Any:
        if input.dtype is dst_ty.scalar:
            return input
        return super().cast(input, dst_ty, *rest, **more)

    def broadcast_impl_value(self, lhs: Any, rhs: Any) -> Any:
        left, right = _lengths(lhs.type), _lengths(rhs.type)
        if left == right:
            return lhs, rhs
        if not left:
            return self._splat(lhs, right), rhs
        if not right:
            return lhs, self._splat(rhs, left)
        if len(left) == len(right) and all(m == n or 1 in (m, n) for m, n in zip(left, right)):
            wide = tuple(map(max, left, right))
            return self._widen(lhs, left, wide), self._widen(rhs, right, wide)
        return super().broadcast_impl_value(lhs, rhs)

    def _splat(self, x: Any, lengths: tuple[int, ...]) -> Any:
        data = np.full(lengths, x.handle.data, x.handle.data.dtype)
        handle = TensorHandle(data, x.handle.dtype.scalar, dict(x.handle.attr))
        return tl.tensor(handle, _block(x.dtype, lengths))

    def _widen(self, x: Any, lengths: tuple[int, ...], wide: tuple[int, ...]) -> Any:
        if lengths == wide:
            return x
        return tl.tensor(_builder.create_broadcast(x.handle, list(wide)), _block(x.dtype, wide))


_KEPT = frozenset(map(id, (tl.float32, tl.int1, tl.int32, tl.int64)))
"""Elements that two operands alike keep in every operation: shorter floats are divided as f32."""


def _lengths(type: Any) -> tuple[int, ...]:
    """Return a type's shape as Triton holds it, () of a scalar: newer versions wrap it."""
    return tuple(getattr(type.shape, "values", type.shape)) if type.is_block() else ()


def _block(element: Any, lengths: tuple[int, ...]) -> Any:
    """Return a type of blocks, one object for equal ones; of pointers, which have no hash, for the same."""
    if not element.is_ptr():
        return _same_block(element, lengths)
    known: dict[tuple[int, ...], Any] = element.__dict__.setdefault("blocks", {})
    if lengths not in known:
        known[lengths] = tl.block_type(element, list(lengths))
    return known[lengths]


@cache
def _same_block(element: Any, lengths: tuple[int, ...]) -> Any:
    return tl.block_type(element, list(lengths))


def _with_element(self: Any, element: Any) -> Any:
    return _block(element, _lengths(self))


_equal, _equal_element = tl.block_type.__eq__, tl.dtype.__eq__


def _equal_block(self: Any, other: Any) -> Any:
    return self is other or _equal(self, other)


def _equal_dtype(self: Any, other: Any) -> Any:
    return self.name == other.name if type(other) is tl.dtype else _equal_element(self, other)


_builder = FaithfulBuilder()
_semantic = _Semantic(_builder)
_lock = threading.RLock()
_serial = itertools.count()


class InterpreterFault(RuntimeError):
    """A kernel failed; the message names the kernel and the program."""


# ---------------------------------------------------------------------------------------- modules
def interpret(source: str, *, filename: str | None = None, package: str | None = None) -> ModuleType:
    """Return the module that `source` defines, with each of its `@triton.jit` functions interpreted.

    A kernel of the module is launched as a compiled one is: `module.kernel[grid](tensor, 3, BLOCK=64)`, with
    torch CPU tensors or NumPy arrays. Raises InterpreterFault when a program fails; its cause is OutOfBounds,
    NotModelled or whatever the kernel raised.
    """
    filename = filename or f"<interpreted {next(_serial)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    module = ModuleType(filename)
    module.__dict__.update(__file__=filename, __package__=package)
    module.__dict__.update(_jit=Interpreted, _as_tensor=_as_tensor, _kernel_range=_range, _and=_and, _or=_or)
    exec(_code(source, filename), module.__dict__)
    return module


@lru_cache(maxsize=256)
def _code(source: str, filename: str) -> CodeType:
    return compile(_Rewriter().visit(ast.parse(source, filename)), filename, "exec")


class _Rewriter(ast.NodeTransformer):
    """Replaces the jit decorator, and gives assignments, loops, `and` and `or` the compiler's meaning."""

    def __init__(self) -> None:
        self.inside = False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        kept = [d for d in map(_decorator, node.decorator_list) if d is not None]
        if not any(getattr(d, "id", "") == "_jit" for d in kept):
            return node
        self.inside, before = True, self.inside
        node.decorator_list = kept
        self.generic_visit(node)
        self.inside = before
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if self.inside and node.id == "range":
            return ast.copy_location(ast.Name("_kernel_range", node.ctx), node)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        if not self.inside:
            return node
        nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        terms: list[ast.expr] = [ast.copy_location(ast.Lambda(nothing, x), x) for x in node.values]
        return _call("_and" if isinstance(node.op, ast.And) else "_or", terms, node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        if self.inside and not isinstance(node.value, ast.Tuple):
            node.value = _call("_as_tensor", [node.value], node.value)
        return node


def _call(function: str, terms: list[ast.expr], where: ast.expr) -> ast.Call:
    """Return a call of a function that stands where another expression did."""
    name = ast.copy_location(ast.Name(function, ast.Load()), where)
    return ast.copy_location(ast.Call(name, terms, []), where)


def _decorator(node: ast.expr) -> ast.expr | None:
    """Map `jit`, `triton.jit` and `triton.jit(...)` to `_jit`; drop what would register on tl.tensor."""
    target = node.func if isinstance(node, ast.Call) else node
    name = getattr(target, "attr", getattr(target, "id", ""))
    if name == "jit":
        return ast.copy_location(ast.Name("_jit", ast.Load()), node)
    return None if name == "_tensor_member_fn" else node


class Interpreted:
    """A `@triton.jit` function that runs as Python: called from a kernel, or launched with a grid."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.__name__ = fn.__name__
        self.__doc__ = fn.__doc__
        self.signature = inspect.signature(fn)
        self.arg_names = list(self.signature.parameters)
        self.constexprs = {
            n for n, p in self.signature.parameters.items() if "constexpr" in str(p.annotation)
        }

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return partial(self.launch, grid)

    def launch(self, grid: Any, *args: Any, checked: bool = True, **kwargs: Any) -> None:
        """Run every program of the grid in order; `checked` refuses addresses outside the arguments."""
        options = LAUNCH_OPTIONS - set(self.arg_names)
        kwargs = {k: v for k, v in kwargs.items() if k not in options}
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = dict(bound.arguments)
        grid = grid(given) if callable(grid) else grid
        grid = (tuple(grid) if isinstance(grid, Sequence) else (grid,)) + (1, 1)
        with _patched(), np.errstate(all="ignore"):
            values: dict[str, Any] = {}
            spans: dict[str, Span] = {}
            for name, value in given.items():
                raw = name in self.constexprs
                values[name] = value if raw else _argument(name, value, spans)
            before = _builder.spans, _builder.checked
            _builder.spans, _builder.checked = spans, checked
            try:
                self._run(grid[:3], values)
            finally:
                _builder.spans, _builder.checked = before

    def _run(self, grid: tuple[int, ...], values: dict[str, Any]) -> None:
        _builder.set_grid_dim(*(int(n) for n in grid))
        for x, y, z in itertools.product(*(range(int(n)) for n in grid)):
            _builder.set_grid_idx(x, y, z)
            try:
                self.fn(**values)
            except Exception as fault:
                raise InterpreterFault(f"kernel {self.__name__}, program ({x}, {y}, {z}): {fault}") from fault


# -------------------------------------------------------------------------------------- arguments
_ELEMENTS = {
    "bool": tl.int1,
    "int8": tl.int8,
    "uint8": tl.uint8,
    "int16": tl.int16,
    "uint16": tl.uint16,
    "int32": tl.int32,
    "uint32": tl.uint32,
    "int64": tl.int64,
    "uint64": tl.uint64,
    "float8_e4m3fn": tl.uint8,
    "float8_e5m2": tl.uint8,
    "bfloat16": tl.bfloat16,
    "float16": tl.float16,
    "float32": tl.float32,
    "float64": tl.float64,
}


@cache
def _pointer(name: str) -> Any:
    return tl.pointer_type(_ELEMENTS[name])


@contextlib.contextmanager
def reaching(tensors: Sequence[Any]) -> Iterator[None]:
    """Let kernels address CPU tensors that are no arguments, each inside of its memory: tables tell where."""
    before = _builder.reached
    _builder.reached = tuple(Span("", t.data_ptr(), t.data_ptr() + t.nbytes) for t in tensors)
    try:
        yield
    finally:
        _builder.reached = before


def _argument(name: str, value: Any, spans: dict[str, Span]) -> Any:
    if isinstance(value, np.ndarray):
        import torch

        value = torch.from_numpy(value)
    if hasattr(value, "data_ptr"):
        if value.device.type != "cpu":
            raise TypeError(f"argument {name!r} is on {value.device}, the interpreter reads CPU memory")
        start = value.data_ptr()
        reach = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride())) if value.numel() else 0
        spans[name] = Span(name, start, start + reach * value.element_size())
        dtype = _pointer(str(value.dtype).removeprefix("torch."))
        handle = TensorHandle(np.array([start], dtype=np.uint64), dtype, {"argument": name})
        return tl.tensor(handle, dtype)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return tl.tensor(_builder.get_int1(value), tl.int1)
    if isinstance(value, int):
        return _semantic.to_tensor(value)
    if isinstance(value, float):
        # A float argument is an f32 whatever its value; to_tensor would make a subnormal an f64.
        return tl.tensor(_builder.get_fp32(value), tl.float32)
    return value


def _as_tensor(value: Any) -> Any:
    if isinstance(value, tl.constexpr):
        value = value.value
    return _semantic.to_tensor(value) if isinstance(value, (bool, int, float)) else value


def _and(*terms: Callable[[], Any]) -> Any:
    """`a and b` inside a kernel: elementwise for tensors, Python's for everything else."""
    value = terms[0]()
    for term in terms[1:]:
        if isinstance(value, tl.tensor):
            value = value.logical_and(term())
        elif value:
            value = term()
    return value


def _or(*terms: Callable[[], Any]) -> Any:
    value = terms[0]()
    for term in terms[1:]:
        if isinstance(value, tl.tensor):
            value = value.logical_or(term())
        elif not value:
            value = term()
    return value


def _scalar(value: Any) -> int:
    if isinstance(value, tl.tensor):
        return int(value.handle.data.reshape(()))
    return int(value.value) if isinstance(value, tl.constexpr) else int(value)


def _range(start: Any, stop: Any = None, step: Any = None, **options: Any) -> Iterator[Any]:
    """`range` and `tl.range` inside a kernel: the index is an integer tensor, as in compiled code."""
    if stop is None:
        start, stop = 0, start
    bounds = [b for b in (start, stop, step) if isinstance(b, tl.tensor)]
    wide = any(b.dtype.primitive_bitwidth == 64 for b in bounds)
    dtype, make = (tl.int64, _builder.get_int64) if wide else (tl.int32, _builder.get_int32)
    for i in range(_scalar(start), _scalar(stop), 1 if step is None else _scalar(step)):
        yield tl.tensor(make(i), dtype)


def _static_range(start: Any, stop: Any = None, step: Any = None, **options: Any) -> range:
    if stop is None:
        start, stop = 0, start
    return range(_scalar(start), _scalar(stop), 1 if step is None else _scalar(step))


# ------------------------------------------------------------------------------ reduce and scan
def _tensor(data: Array, dtype: Any) -> Any:
    if data.ndim == 0:
        return tl.tensor(TensorHandle(data.reshape(1), dtype.scalar), dtype.scalar)
    return tl.tensor(TensorHandle(data, dtype.scalar), _block(dtype.scalar, data.shape))


def _combine(fn: Any, left: Sequence[Any], right: Sequence[Any]) -> tuple[Any, ...]:
    out = fn(*left, *right)
    return tuple(_semantic.to_tensor(x) for x in (out if isinstance(out, tuple) else (out,)))


def _slices(operands: Sequence[Any], axis: int, index: Any) -> tuple[Any, ...]:
    at = (slice(None),) * axis + (index,)
    return tuple(_tensor(x.handle.data[at], x.dtype) for x in operands)


def _any_order(fn: Any, operands: Sequence[Any]) -> bool:
    return getattr(fn, "__name__", "") in _ORDER_FREE or all(x.dtype.is_int() for x in operands)


_ORDER_FREE = {
    "_argmax_combine_tie_break_left",
    "_argmin_combine_tie_break_left",
    "_elementwise_max",
    "_elementwise_min",
}


def _reduce(input: Any, axis: Any, combine_fn: Any, keep_dims: bool = False, **_: Any) -> Any:
    """Reduce along `axis`: two terms in one vectorised call, more in ascending order.

    A device would pair more than two float terms in an order that its layout chooses; ascending is one of
    the legal ones, picked because no tree of this project is ascending and a sum that depends on it shows.
    """
    operands = input if isinstance(input, tuple) else (input,)
    rank = len(operands[0].shape)
    dims = tuple(range(rank)) if axis is None else (_scalar(axis) % rank,)
    if axis is None:
        operands = tuple(_tensor(x.handle.data.reshape(-1), x.dtype) for x in operands)
    axis = dims[0]
    extent = operands[0].handle.data.shape[axis]
    if _any_order(combine_fn, operands):
        while extent > 1:
            extent //= 2
            halves = (_slices(operands, axis, h) for h in (slice(0, extent), slice(extent, 2 * extent)))
            operands = _combine(combine_fn, *halves)
        out = _slices(operands, axis, 0)
    else:
        out = _slices(operands, axis, 0)
        for i in range(1, extent):
            out = _combine(combine_fn, out, _slices(operands, axis, i))
    if keep_dims:
        out = tuple(_tensor(np.expand_dims(x.handle.data.reshape(x.shape), dims), x.dtype) for x in out)
    return out if isinstance(input, tuple) else out[0]


def _scan(input: Any, axis: int, combine_fn: Any, reverse: bool = False, **_: Any) -> Any:
    operands = input if isinstance(input, tuple) else (input,)
    axis = _scalar(axis) % len(operands[0].shape)
    order = range(operands[0].handle.data.shape[axis])
    order = order[::-1] if reverse else order
    state = _slices(operands, axis, order[0])
    steps = [state]
    for i in order[1:]:
        state = _combine(combine_fn, state, _slices(operands, axis, i))
        steps.append(state)
    steps = steps[::-1] if reverse else steps
    shape = [n for d, n in enumerate(operands[0].shape) if d != axis]
    out = tuple(
        _tensor(np.stack([s[k].handle.data.reshape(shape) for s in steps], axis), x.dtype)
        for k, x in enumerate(operands)
    )
    return out if isinstance(input, tuple) else out[0]


def _assembly(asm: Any, constraints: Any, args: Sequence[Any], *_: Any, **options: Any) -> Any:
    """Return what is moved: no other assembly is modelled."""
    text = getattr(asm, "value", asm)
    if text != "mov.b32 $0, $1;":
        raise NotModelled(f"inline assembly: {text}")
    return args[0]


# ---------------------------------------------------------------------------------------- patches
_MISSING = object()
_depth = 0


@contextlib.contextmanager
def _patched() -> Iterator[None]:
    """Let `triton.language` interpret; nested launches patch once."""
    global _depth
    with _lock:
        saved: list[Patch] = []
        if _depth == 0:
            for owner, name, value in _patches():
                saved.append((owner, name, owner.__dict__.get(name, _MISSING)))
                setattr(owner, name, value)
        _depth += 1
        try:
            yield
        finally:
            _depth -= 1
            for owner, name, value in reversed(saved):
                delattr(owner, name) if value is _MISSING else setattr(owner, name, value)


def _bound(member: Callable[..., Any]) -> Callable[..., Any]:
    member = getattr(member, "__wrapped__", member)  # without a look whether it is called from a kernel

    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs["_semantic"] = _semantic
        kwargs.pop("_generator", None)
        return member(*args, **kwargs)

    return call


@cache
def _shape(lengths: tuple[int, ...]) -> tuple[Any, Any]:
    return tl.core.tuple([tl.constexpr(n) for n in lengths]), tl.constexpr(math.prod(lengths))


def _init_tensor(self: Any, handle: Any, type: Any) -> None:
    """Do as tl.tensor.__init__, with the shape made once: it takes a third of the time otherwise."""
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.shape, self.numel = _shape(_lengths(type))


@cache
def _patches() -> list[Patch]:
    owners = (tl, tl.core, tl.math, tl.core.tensor, tl.core.tensor_descriptor_base)
    out: list[Patch] = []
    for owner in owners:
        for name, member in inspect.getmembers(owner):
            if tl.core.is_builtin(member):
                out.append((owner, name, _bound(member)))
    out += hooks()
    out += [(tl.extra.cuda, f"gdc_{name}", lambda: None) for name in ("wait", "launch_dependents")]
    tensor = tl.core.tensor
    out += [(tensor, "__index__", _scalar), (tensor, "__init__", _init_tensor)]
    out += [(tl.block_type, "with_element_ty", _with_element), (tl.block_type, "__eq__", _equal_block)]
    out.append((tl.dtype, "__eq__", _equal_dtype))
    out.append((base, "_get_np_dtype", numpy_dtype))
    for lang in (tl, tl.core):
        out += [(lang, "reduce", _reduce), (lang, "associative_scan", _scan)]
        out += [(lang, "range", _range), (lang, "static_range", _static_range)]
        out.append((lang, "inline_asm_elementwise", _assembly))
    return out + _standard_patches()


def _standard_patches() -> list[Patch]:
    """Interpreted copies of the functions that triton.language itself writes as @jit."""
    import triton.language.standard as standard

    copy = interpret(inspect.getsource(standard), filename=standard.__file__, package="triton.language")
    out: list[Patch] = []
    for name, fn in list(copy.__dict__.items()):
        if not isinstance(fn, Interpreted):
            continue
        out += [
            (lang, name, fn) for lang in (tl, standard) if isinstance(lang.__dict__.get(name), JITFunction)
        ]
        if isinstance(getattr(tl.core.tensor, name, None), JITFunction):
            out.append((tl.core.tensor, name, _method(fn)))
    return out


def _method(fn: Interpreted) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: fn(self, *args, **kwargs)
