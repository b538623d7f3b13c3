"""Mistakes with orders, streams, folds, axes and Python control flow, each beside what is right.

In each pair the line of the mistake ends in `# <-`.
"""

from __future__ import annotations

from spec_pairs import N, T, U, V, W, of_row, of_steps, of_stream, pair, trace

from rlk.errors import Code
from rlk.lang import Axis, L, Outputs, Tensor, Tree, f32, op

F = Axis("F", chunk=8, piece=8, fan_in=4, dynamic=True)
D = Axis("D", chunk=8, dynamic=True)


def of_chunks(body):
    """Trace a spec of whole rows x: f32[T, D] of any length."""

    @op()
    def spec(x: Tensor[f32, T, D]) -> Outputs:
        return body(x.whole())

    return trace(spec)


# --- orders ---


@pair(Code.FLOAT_SUM_NEEDS_TREE)
class SumOrder:
    def wrong():
        return of_row(lambda x: L.out(y=L.sum(x * x, over=N)))  # <-

    def right():
        of_row(lambda x: L.out(y=L.max(x * x, over=N)))
        return of_row(lambda x: L.out(y=L.sum(x * x, over=N, tree=Tree.halving)))


@pair(Code.TREE_NOT_A_PERMUTATION)
class TreeBits:
    def wrong():
        return Tree((0, 2, 1, 1))  # <-

    def right():
        return Tree((0, 2, 1, 3))


@pair(Code.TREE_WIDTH)
class TreeWidth:
    def wrong():
        def body(x, k):
            total = L.total(lanes=Tree((0, 1)))
            for v in L.stream(V):
                total.absorb(x[v])  # <-
            return L.out(y=total.value)

        return of_stream(body)

    def right():
        def body(x, k):
            total = L.total(lanes=Tree((0, 2, 1)))
            for v in L.stream(V):
                total.absorb(x[v])
            return L.out(y=total.value)

        return of_stream(body)


# --- streams ---


@pair(Code.STREAM_LEAK)
class LeakedTile:
    def wrong():
        def body(x, k):
            for v in L.stream(V):
                z = x[v] + 1.0
            return L.out(y=z * 2.0)  # <-

        return of_stream(body)

    def right():
        def body(x, k):
            total = L.total()
            for v in L.stream(V):
                z = x[v] + 1.0
                total.absorb(z)
            return L.out(y=total.value * 2.0)

        return of_stream(body)


@pair(Code.STREAM_LEAK)
class StateInside:
    def wrong():
        def body(x, k):
            total = L.total()
            for v in L.stream(V):
                total.absorb(x[v])
                L.emit(y=x[v] * total.value)  # <-
            return L.out()

        return of_stream(body)

    def right():
        def body(x, k):
            total = L.total()
            for v in L.stream(V):
                total.absorb(x[v])
                L.emit(y=x[v])
            return L.out(s=total.value)

        return of_stream(body)


@pair(Code.STREAM_NESTED)
class Nested:
    def wrong():
        def body(x, k):
            total = L.total()
            for v in L.stream(V):
                inner = L.total()
                for u in L.stream(Axis("U", chunk=4, piece=8)):  # <-
                    inner.absorb(x[v] * u.pos.to(f32))
                total.absorb(inner.value)
            return L.out(y=total.value)

        return of_stream(body)

    def right():
        def body(x, k):
            total = L.total()
            for v in L.stream(V):
                inner = L.total()
                for u in L.stream(U):
                    inner.absorb(x[v] * u.pos.to(f32))
                total.absorb(inner.value)
            return L.out(y=total.value)

        return of_stream(body)


@pair(Code.STREAM_BROKEN)
class Break:
    def wrong():
        def body(x, k):
            total = L.total()
            for v in L.stream(V):  # <-
                total.absorb(x[v])
                break
            return L.out(y=total.value)

        return of_stream(body)

    def right():
        def body(x, k):
            total = L.total()
            for v in L.stream(V):
                total.absorb(x[v])
                continue
            return L.out(y=total.value)

        return of_stream(body)


@pair(Code.STREAM_BROKEN)
class Return:
    def wrong():
        def body(x, k):
            for v in L.stream(V):  # <-
                L.emit(y=x[v])
                return L.out

        return of_stream(body)

    def right():
        def body(x, k):
            for v in L.stream(V):
                L.emit(y=x[v])
            return L.out

        return of_stream(body)


# --- Python control flow ---


@pair(Code.TILE_HAS_NO_TRUTH)
class If:
    def wrong():
        def body(x):
            if x > 0.0:  # <-
                return L.out(y=x * 1.0)
            return L.out(y=-x)

        return of_row(body)

    def right():
        return of_row(lambda x: L.out(y=L.where(x > 0.0, x, -x)))


@pair(Code.TILE_HAS_NO_TRUTH)
class IfTensor:
    def wrong():
        return of_row(lambda x: L.out(y=x * 1.0 if x else x * 2.0))  # <-

    def right():
        return of_row(lambda x: L.out(y=x * 1.0 if x is not None else x * 2.0))


@pair(Code.TILE_NOT_ITERABLE)
class Iterate:
    def wrong():
        return of_row(lambda x: L.out(y=sum(x)))  # <-

    def right():
        return of_row(lambda x: L.out(y=sum([x, x * 1.0])))


# --- axes ---


@pair(Code.NO_SUCH_AXIS)
class SumOverAnother:
    def wrong():
        return of_row(lambda x: L.out(y=L.max(x, over=V)))  # <-

    def right():
        return of_row(lambda x: L.out(y=L.max(x, over=N)))


@pair(Code.NO_SUCH_AXIS)
class WindowOfAnother:
    def wrong():
        def body(x, k):
            total = L.total()
            for v in L.stream(V):
                total.absorb(x[v] + k[v].to(f32))  # <-
            return L.out(y=total.value)

        return of_stream(body)

    def right():
        def body(x, k):
            total = L.total()
            for v in L.stream(V):
                total.absorb(x[v] + k.to(f32))
            return L.out(y=total.value)

        return of_stream(body)


@pair(Code.NO_SUCH_AXIS)
class AbsorbConstant:
    def wrong():
        def body(x, k):
            total = L.total()
            for _ in L.stream(V):
                total.absorb(k)  # <-
            return L.out(y=total.value)

        return of_stream(body)

    def right():
        def body(x, k):
            total = L.total()
            for v in L.stream(V):
                total.absorb(k + v.pos)
            return L.out(y=total.value)

        return of_stream(body)


@pair(Code.AXIS_NEEDS_CHUNK)
class StreamWithoutChunk:
    def wrong():
        def body(x):
            for n in L.stream(N):  # <-
                L.emit(y=x[n])

        return of_row(body)

    def right():
        def body(x, k):
            for v in L.stream(V):
                L.emit(y=x[v])

        return of_stream(body)


@pair(Code.AXIS_LEAF)
class Leaf:
    def wrong():
        return Axis("A", chunk=8, leaf="tile")  # <-

    def right():
        return Axis("A", chunk=8, piece=16, leaf="piece")


@pair(Code.AXIS_LEAF_SIZE)
class LeafSize:
    def wrong():
        return Axis("A", chunk=8, piece=20, leaf="piece")  # <-

    def right():
        return Axis("A", chunk=8, piece=24, leaf="piece")


@pair(Code.AXIS_SIZE)
class ChunkSize:
    def wrong():
        return Axis("A", chunk=48)  # <-

    def right():
        return Axis("A", chunk=64, piece=100)


@pair(Code.AXIS_SIZE)
class SplitCount:
    def wrong():
        return Axis("A", chunk=8, split=0)  # <-

    def right():
        return Axis("A", chunk=8, split=1)


@pair(Code.AXIS_TWO_CUTS)
class SplitAndPiece:
    def wrong():
        return Axis("A", chunk=8, split=4, piece=128)  # <-

    def right():
        return Axis("A", chunk=8, split=4), Axis("A", chunk=8, piece=128)


@pair(Code.AXIS_FAN_IN)
class FanOfNoPieces:
    def wrong():
        return Axis("A", chunk=8, fan_in=4)  # <-

    def right():
        return Axis("A", chunk=8, piece=8, fan_in=4)


@pair(Code.AXIS_EXTENT)
class ExtentOfAnAxis:
    def wrong():
        return Axis("A", extent=N)  # <-

    def right():
        return Axis("A", extent=N // 1)


@pair(Code.EXTENT_OF)
class ShareByNothing:
    def wrong():
        return Axis("A", extent=N // 0)  # <-

    def right():
        return Axis("A", extent=N // 4)


@pair(Code.FAN_IN_NEEDS_SUM)
class FanOfMaxima:
    def wrong():
        @op()
        def spec(x: Tensor[f32, F]):
            best = L.argmax()
            for f in L.stream(F):
                best.absorb(x[f])  # <-
            return L.out(y=best.index)

        return spec.trace(spec.default_variant())

    def right():
        @op()
        def spec(x: Tensor[f32, F]):
            sum = L.total()
            for f in L.stream(F):
                sum.absorb(x[f])
            return L.out(y=sum.value)

        return spec.trace(spec.default_variant())


@pair(Code.AXIS_TWO_ROLES)
class WholeInsideStream:
    def wrong():
        def body(x, k):
            total = L.total()
            for v in L.stream(V):
                total.absorb(x[v] - L.max(x, over=V))  # <-
            return L.out(y=total.value)

        return of_stream(body)

    def right():
        def body(x, k):
            total, most = L.total(), L.max(x, over=V)
            for v in L.stream(V):
                total.absorb(x[v] - most)
            return L.out(y=total.value)

        return of_stream(body)


@pair(Code.AXIS_TWO_ROLES)
class ReduceStreamed:
    def wrong():
        def body(x, k):
            for v in L.stream(V):
                inner = L.total()
                for u in L.stream(U):
                    inner.absorb(L.max(x[v], over=V) * u.pos.to(f32))  # <-
                L.emit(y=x[v] * inner.value)

        return of_stream(body)

    def right():
        def body(x, k):
            for v in L.stream(V):
                inner, largest = L.total(), L.max(x[v], over=V)
                for u in L.stream(U):
                    inner.absorb(largest * u.pos.to(f32))
                L.emit(y=x[v] * inner.value)
            return L.out()

        return of_stream(body)


@pair(Code.AXIS_TWO_ROLES)
class PositionInsideStream:
    def wrong():
        def body(x, k):
            for v in L.stream(V):
                L.emit(y=L.where(L.pos(V) == k, x[v], 0.0))  # <-

        return of_stream(body)

    def right():
        def body(x, k):
            for v in L.stream(V):
                L.emit(y=L.where(v.pos == k, x[v], 0.0))

        return of_stream(body)


@pair(Code.AXIS_TWO_ROLES)
class SameAxisTwice:
    def wrong():
        def body(x, k):
            for _ in L.stream(V):
                for v in L.stream(V):  # <-
                    L.emit(y=x[v])

        return of_stream(body)

    def right():
        def body(x, k):
            for v in L.stream(V):
                L.emit(y=x[v])
            for v in L.stream(V):
                L.emit(z=x[v])

        return of_stream(body)


# --- folds ---


@pair(Code.FOLD_UNUSED)
class Unused:
    def wrong():
        return of_stream(lambda x, k: L.out(y=L.total().value))  # <-

    right = LeakedTile.right


@pair(Code.FOLD_WITHOUT_ENTROPY)
class NoEntropy:
    def wrong():
        def body(x, k):
            soft = L.softmax_sum()
            for v in L.stream(V):
                soft.absorb(x[v])
            return L.out(y=soft.entropy())  # <-

        return of_stream(body)

    def right():
        def body(x, k):
            soft = L.softmax_sum(entropy=True)
            for v in L.stream(V):
                soft.absorb(x[v])
            return L.out(y=soft.entropy())

        return of_stream(body)


@pair(Code.FOLD_TWICE)
class AbsorbTwice:
    def wrong():
        def body(x, k):
            total = L.total()
            for v in L.stream(V):
                total.absorb(x[v])
                total.absorb(x[v])  # <-
            return L.out(y=total.value)

        return of_stream(body)

    right = LeakedTile.right


@pair(Code.FOLD_OUTSIDE)
class AbsorbOutside:
    def wrong():
        return of_stream(lambda x, k: L.total().absorb(x))  # <-

    right = LeakedTile.right


# --- carries ---


@pair(Code.CARRY_STEPS)
class CarryOfChunks:
    def wrong():
        def body(x, k):
            ahead = L.carry(0.0, T)
            for v in L.stream(V):  # <-
                ahead.hand(ahead.value + L.max(x[v], over=V))
                L.emit(y=x[v])

        return of_stream(body)

    def right():
        def body(x, k):
            ahead = L.carry(0.0, T)
            for w in L.stream(W, reverse=True):
                ahead.hand(x[w] + ahead.value * 0.5)
            return L.out(y=ahead.value)

        return of_steps(body)


@pair(Code.CARRY_STEPS)
class ReverseOfChunks:
    def wrong():
        def body(x, k):
            total = L.total()
            for v in L.stream(V, reverse=True):  # <-
                total.absorb(x[v] - L.max(x[v], over=V))

        return of_stream(body)

    right = CarryOfChunks.right


@pair(Code.CARRY_TYPE)
class CarryOfOtherRows:
    def wrong():
        def body(x, k):
            ahead = L.carry(0.0)
            for w in L.stream(W):
                ahead.hand(x[w] + ahead.value)  # <-

        return of_steps(body)

    right = CarryOfChunks.right


@pair(Code.CARRY_TYPE)
class CarryOfAnotherType:
    def wrong():
        def body(x, k):
            ahead = L.carry(0.0, T)
            for _ in L.stream(W):
                ahead.hand(k)  # <-

        return of_steps(body)

    right = CarryOfChunks.right


@pair(Code.CARRY_TYPE)
class CarryOfOneForSegmentsOfMany:
    def wrong():
        def body(x, k):
            count = L.carry(0.0)
            for _ in L.stream(W, end=k):  # <-
                count.hand(count.value + 1)

        return of_steps(body)

    right = CarryOfChunks.right


@pair(Code.FOLD_UNUSED)
class NothingHanded:
    def wrong():
        def body(x, k):
            ahead = L.carry(0.0, T)
            for w in L.stream(W):  # <-
                L.emit(y=x[w] + ahead.value)

        return of_steps(body)

    right = CarryOfChunks.right


@pair(Code.FOLD_TWICE)
class HandedTwice:
    def wrong():
        def body(x, k):
            ahead = L.carry(0.0, T)
            for w in L.stream(W):
                ahead.hand(x[w])
                ahead.hand(x[w] + 1.0)  # <-

        return of_steps(body)

    right = CarryOfChunks.right


@pair(Code.WHOLE_OF_STREAM)
class KeptOfChunks:
    def wrong():
        return of_chunks(lambda x: L.out(y=L.sum(L.keep(x * x, "kept"), over=D, tree=Tree.halving)))  # <-

    def right():
        return of_chunks(lambda x: L.out(y=L.sum(x * x, over=D, tree=Tree.halving)))


@pair(Code.TOP_COUNT)
class TopOfNone:
    def wrong():
        def body(x, k):
            top = L.top(0)  # <-
            for v in L.stream(V):
                top.absorb(x[v])
            return L.out(y=top.values[0])

        return of_stream(body)

    def right():
        def body(x, k):
            top = L.top(2)
            for v in L.stream(V):
                top.absorb(x[v])
            return L.out(y=top.values[0])

        return of_stream(body)


@pair(Code.FOLD_OUTSIDE)
class CarryOutside:
    def wrong():
        return of_steps(lambda x, k: L.out(y=L.carry(0.0, T).value))  # <-

    right = CarryOfChunks.right


@pair(Code.TRACE_OUTSIDE)
class Outside:
    def wrong():
        return L.exp(1.0)  # <-

    def right():
        return of_row(lambda x: L.out(y=x * L.exp(1.0)))
