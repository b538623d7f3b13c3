"""Common subexpressions, integer constant folding, loop-invariant code motion, dead code elimination."""

from __future__ import annotations

from dataclasses import replace

from rlk.ir.infer import infer
from rlk.ir.nodes import (
    Block,
    Check,
    Const,
    Dot,
    Fn1,
    Fn2,
    Kernel,
    Let,
    Load,
    Loop,
    Map1,
    Map2,
    Merge,
    Node,
    Reduce,
    Result,
    Select,
    Store,
    Stream,
    Value,
    const_bits,
    const_value,
    defined,
    operands,
)
from rlk.ir.types import DType, TileType, Type
from rlk.passes.rewrite import Replay, renumbered
from rlk.passes.walk import walk


def simplify(kernel: Kernel) -> Kernel:
    """Return a simplified kernel with the same bits: no live float operation is added or reordered."""
    simplifier = _Simplifier(kernel)
    simplifier.block(kernel.body.lets)
    params = tuple(simplifier.builder.params.values())
    pruned = prune(Kernel(kernel.name, params, simplifier.builder.body()))
    # number values without gaps: dropped nodes must not change the text, nor the numerics id
    return renumbered(pruned)


class _Simplifier(Replay):
    """Places every pure value at the shallowest depth where its operands are known, once."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel, lambda replay, let: False)
        self.depth: dict[Value, int] = {}
        self.known: list[dict[Node | tuple[Node, Type], Value]] = [{}]  # by node; constants by type too
        self.consts: dict[Value, tuple[int, DType]] = {}
        self.written = {let.node.param for let in walk(kernel.body) if isinstance(let.node, Store)}

    def copy(self, let: Let) -> None:
        b = self.builder
        b.loc = let.loc
        match let.node:
            case Const(bits=bits):
                assert isinstance(let.type, TileType)
                self.renamed[let.value] = self.constant(bits, let.type.dtype)
            case Loop() as loop:
                self.renamed[let.value] = self.effect(self.nested(loop), let)
            case Store() | Check() as node:
                if not self.never(node):
                    self.effect(self.node(node), let)
            case Load(param=param) as load if param in self.written:
                self.renamed[let.value] = self.effect(self.node(load), let)
            case Load() | Reduce() | Dot() | Merge() | Result() as node:
                # loads are not hoisted: moved over a store to their buffer they would read other values
                self.renamed[let.value] = self.share(self.node(node), let, len(b.open) - 1)
            case node:
                self.renamed[let.value] = self.pure(self.node(node), let)

    def constant(self, bits: int, dtype: DType) -> Value:
        key = (Const(bits), TileType(dtype))
        if key not in self.known[0]:
            value = self.builder.fresh(key[1])
            self.builder.open[0].append(Let(value, key[0], key[1]))
            self.known[0][key], self.depth[value], self.consts[value] = value, 0, (bits, dtype)
        return self.known[0][key]

    def nested(self, loop: Loop) -> Loop:
        self.known.append({})
        made = self.loop(loop)
        self.known.pop()
        return made

    def arguments(self, loop: Loop) -> tuple[Value, ...]:
        args = super().arguments(loop)
        for value in args:
            self.depth[value] = len(self.builder.open) - 1
        return args

    def effect(self, node: Node, let: Let) -> Value:
        value = self.builder.let(node, let.name)
        self.depth[value] = len(self.builder.open) - 1
        return value

    def never(self, node: Store | Check) -> bool:
        """Return whether a guard is known to be false everywhere."""
        condition = node.guard if isinstance(node, Store) else node.bad
        return condition is not None and self.consts.get(self[condition]) == (0, DType.BOOL)

    def pure(self, node: Node, let: Let) -> Value:
        folded = self.fold(node)
        if folded is not None:
            return folded
        depth = max((self.depth[v] for v in operands(node)), default=0)
        return self.share(node, let, depth)

    def share(self, node: Node, let: Let, depth: int) -> Value:
        """Return the value of an equal node in scope, or append the node at a depth."""
        b = self.builder
        node = self.unguarded(node)
        for known in self.known[: depth + 1]:
            if (found := known.get(node)) is not None:
                return found
        type = infer(node, b.types, b.params, let.loc)
        value = b.fresh(type)
        b.open[depth].append(Let(value, node, type, let.name, let.loc))
        self.known[depth][node] = value
        self.depth[value] = depth
        return value

    def unguarded(self, node: Node) -> Node:
        """Drop a guard that always holds."""
        if (
            isinstance(node, Load)
            and node.guard is not None
            and self.consts.get(node.guard) == (1, DType.BOOL)
        ):
            return replace(node, guard=None, fill=None)
        return node

    # --- folding ---

    def fold(self, node: Node) -> Value | None:
        """Return the value that a node is known to have, without computing floats."""
        match node:
            case Select(cond=cond, a=a, b=c) if cond in self.consts:
                chosen = a if self.consts[cond][0] else c
                return chosen if self.builder.tile(chosen).axes == self._axes(node) else None
            case Select(a=a, b=c) if a == c and self.builder.tile(a).axes == self._axes(node):
                return a
            case Map1(fn=Fn1.NOT, x=x) if self.consts.get(x, (0, None))[1] is DType.BOOL:
                return self.constant(1 - self.consts[x][0], DType.BOOL)
            case Map2(fn=fn, a=a, b=c):
                return self._fold2(fn, a, c)
            case _:
                return None

    def _axes(self, node: Node) -> object:
        type = infer(node, self.builder.types, self.builder.params)
        assert isinstance(type, TileType)
        return type.axes

    def _fold2(self, fn: Fn2, a: Value, c: Value) -> Value | None:
        dtype = self.builder.tile(a).dtype
        if dtype.is_float:
            return None
        left, right = self.consts.get(a), self.consts.get(c)
        if left is not None and right is not None:
            if not defined(fn, const_value(left[0], dtype), const_value(right[0], dtype), dtype):
                return None  # the oracle reports it when it runs
            made = evaluate(fn, const_value(left[0], dtype), const_value(right[0], dtype))
            kind = DType.BOOL if fn.compares else dtype
            return self.constant(const_bits(made, kind), kind)
        if self._neutral(fn, right, dtype) and self._axes(Map2(fn, a, c)) == self.builder.tile(a).axes:
            return a
        swaps = fn in (Fn2.ADD, Fn2.MUL, Fn2.AND, Fn2.OR)
        if (
            swaps
            and self._neutral(fn, left, dtype)
            and self._axes(Map2(fn, a, c)) == self.builder.tile(c).axes
        ):
            return c
        return None

    @staticmethod
    def _neutral(fn: Fn2, const: tuple[int, DType] | None, dtype: DType) -> bool:
        if const is None:
            return False
        match fn:
            case Fn2.ADD | Fn2.SUB | Fn2.OR | Fn2.XOR | Fn2.SHL | Fn2.SHR:
                return const[0] == 0
            case Fn2.MUL | Fn2.DIV:
                return const[0] == 1
            case Fn2.AND:
                return dtype is DType.BOOL and const[0] == 1
            case _:
                return False


def evaluate(fn: Fn2, a: float | int | bool, b: float | int | bool) -> int:
    """Return an integer or boolean function of two constants for which it is defined."""
    x, y = int(a), int(b)
    match fn:
        case Fn2.ADD:
            return x + y
        case Fn2.SUB:
            return x - y
        case Fn2.MUL:
            return x * y
        case Fn2.DIV:
            return x // y
        case Fn2.MOD:
            return x % y
        case Fn2.MAX:
            return max(x, y)
        case Fn2.MIN:
            return min(x, y)
        case Fn2.AND:
            return x & y
        case Fn2.OR:
            return x | y
        case Fn2.XOR:
            return x ^ y
        case Fn2.SHL:
            return x << y
        case Fn2.SHR:
            return x >> y
        case Fn2.MULHI:
            return (x * y) >> 32
        case Fn2.LT:
            return int(x < y)
        case Fn2.LE:
            return int(x <= y)
        case Fn2.EQ:
            return int(x == y)
        case Fn2.NE:
            return int(x != y)


def prune(kernel: Kernel) -> Kernel:
    """Return the kernel without values that reach no store and no check, or parameters it never names."""
    used: set[Value] = set()
    body = _prune_block(kernel.body, used)
    named = {
        let.node.param if isinstance(let.node, Load | Store) else getattr(let.node, "name", "")
        for let in walk(body)
    }
    params = tuple(d for d in kernel.params if d.name in named)
    return Kernel(kernel.name, params, body)


def _prune_block(block: Block, used: set[Value]) -> Block:
    used.update(block.results)
    kept: list[Let] = []
    for let in reversed(block.lets):
        match let.node:
            case Store() | Check():
                pass
            case Loop() as loop:
                if let.value not in used and not _has_effect(loop.body):
                    continue
                if loop.exists is not None:
                    used.add(loop.exists)
                let = replace(let, node=replace(loop, body=_prune_block(loop.body, used)))
            case Stream():
                raise AssertionError("streams are expanded before pruning")
            case _ if let.value not in used:
                continue
        used.update(operands(let.node))
        kept.append(let)
    return Block(block.args, tuple(reversed(kept)), block.results)


def _has_effect(block: Block) -> bool:
    return any(isinstance(let.node, Store | Check) for let in walk(block))
