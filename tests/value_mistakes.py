"""Mistakes with dtypes, indices, outputs, parameters and gradients, each beside what is right.

In each pair the line of the mistake ends in `# <-`.
"""

from __future__ import annotations

from spec_pairs import F, N, T, U, V, of_row, of_stream, pair, trace

from rlk.errors import Code
from rlk.ir.nodes import Program
from rlk.lang import Axis, L, Op, Outputs, Scalar, Static, Tensor, Tree, bf16, f32, i8, i32, i64, op, u32
from rlk.lang.op import Variant
from rlk.passes.pipeline import canonical

KINDS = ("one", "two")
K = Axis("K", chunk=16, leaf="segment")
ROWS = Axis("T", chunk=1, piece=64, dynamic=True)
PIECES = Axis("P", piece=64)


# --- sums of products ---


@pair(Code.AXIS_SEGMENT)
class SegmentOfPieces:
    def wrong():
        return Axis("K", chunk=16, piece=64, leaf="segment")  # <-

    def right():
        return Axis("K", chunk=16, leaf="segment")


@pair(Code.FOLD_LEAF)
class ProductsOfChunks:
    def wrong():
        @op()
        def spec(x: Tensor[f32, T, V], w: Tensor[bf16, V, N]) -> Outputs:
            total = L.total()
            for v in L.stream(V):
                total.absorb(x[v], by=w[v])  # <-
            return L.out(y=total.value)

        return trace(spec)

    def right():
        @op()
        def spec(x: Tensor[f32, T, K], w: Tensor[bf16, K, N]) -> Outputs:
            total = L.total()
            for k in L.stream(K):
                total.absorb(x[k], by=w[k])
            return L.out(y=total.value)

        return trace(spec)


# --- dtypes ---


@pair(Code.DTYPE_MIX)
class FloatAndInt:
    def wrong():
        return of_stream(lambda x, k: L.out(y=x + k))  # <-

    def right():
        return of_stream(lambda x, k: L.out(y=x + k.to(f32)))


@pair(Code.DTYPE_MIX)
class FractionBesideInt:
    def wrong():
        return of_stream(lambda x, k: L.out(y=k + 0.5))  # <-

    def right():
        return of_stream(lambda x, k: L.out(y=k + 5))


@pair(Code.QUOTIENT)
class IntegersAsFloats:
    def wrong():
        return of_stream(lambda x, k: L.out(y=k / 2))  # <-

    def right():
        return of_stream(lambda x, k: L.out(y=k // 2))


@pair(Code.QUOTIENT)
class FloatsAsIntegers:
    def wrong():
        return of_row(lambda x: L.out(y=x.to(f32) // 2.0))  # <-

    def right():
        return of_row(lambda x: L.out(y=L.floor(x.to(f32) / 2.0)))


@pair(Code.INTEGER_UNDEFINED)
class NegativeDivisor:
    def wrong():
        return of_stream(lambda x, k: L.out(y=k % -2))  # <-

    def right():
        return of_stream(lambda x, k: L.out(y=k % 2))


@pair(Code.INTEGER_UNDEFINED)
class WideShift:
    def wrong():
        return of_stream(lambda x, k: L.out(y=k << 32))  # <-

    def right():
        return of_stream(lambda x, k: L.out(y=k.to(i64) << 32))


@pair(Code.DTYPE_MIX)
class NumberThatDoesNotFit:
    def wrong():
        return of_stream(lambda x, k: L.out(y=k + 2**31))  # <-

    def right():
        return of_stream(lambda x, k: L.out(y=k.to(i64) + 2**31))


@pair(Code.DTYPE_MIX)
class Branches:
    def wrong():
        return of_stream(lambda x, k: L.out(y=L.where(k > 0, x, k)))  # <-

    def right():
        return of_stream(lambda x, k: L.out(y=L.where(k > 0, x, 0)))


@pair(Code.DOT_SHARES_AXIS)
class BatchedDot:
    def wrong():
        @op()
        def spec(x: Tensor[bf16, T, N], w: Tensor[bf16, T, N]) -> Outputs:
            return L.out(y=L.dot(x, w, over=N))  # <-

        return trace(spec)

    def right():
        @op()
        def spec(x: Tensor[bf16, T, N], w: Tensor[bf16, U, N]) -> Outputs:
            return L.out(y=L.dot(x, w, over=N))

        return trace(spec)


@pair(Code.NO_SUCH_AXIS)
class EachOfOne:
    def wrong():
        @op()
        def spec(x: Tensor[bf16, T, N], w: Tensor[bf16, U, N]) -> Outputs:
            return L.out(y=L.dot(x, w, over=N, each=(T,)))  # <-

        return trace(spec)

    def right():
        @op()
        def spec(x: Tensor[bf16, T, N], w: Tensor[bf16, T, N]) -> Outputs:
            return L.out(y=L.dot(x, w, over=N, each=(T,)))

        return trace(spec)


@pair(Code.DTYPE_WANTED)
class HalfArithmetic:
    def wrong():
        @op()
        def spec(x: Tensor[bf16, T, N]) -> Outputs:
            return L.out(y=x * x)  # <-

        return trace(spec)

    def right():
        @op()
        def spec(x: Tensor[bf16, T, N]) -> Outputs:
            return L.out(y=(x.to(f32) * x.to(f32)).to(bf16))

        return trace(spec)


@pair(Code.DTYPE_WANTED)
class Condition:
    def wrong():
        return of_stream(lambda x, k: L.out(y=L.where(k, x, 0.0)))  # <-

    def right():
        return of_stream(lambda x, k: L.out(y=L.where(k != 0, x, 0.0)))


@pair(Code.DTYPE_WANTED)
class ScoresOfInts:
    def wrong():
        def body(x, k):
            soft = L.softmax_sum()
            for v in L.stream(V):
                soft.absorb(k + v.pos)  # <-
            return L.out(y=soft.lse())

        return of_stream(body)

    def right():
        def body(x, k):
            soft = L.softmax_sum()
            for v in L.stream(V):
                soft.absorb((k + v.pos).to(f32))
            return L.out(y=soft.lse())

        return of_stream(body)


@pair(Code.VALUE_WANTED)
class TextOperand:
    def wrong():
        return of_row(lambda x: L.out(y=x + "1"))  # <-

    def right():
        return of_row(lambda x: L.out(y=x + 1))


# --- indices ---


@pair(Code.INDEX_COUNT)
class TooFewIndices:
    def wrong():
        return of_row(lambda x: L.out(y=x.at(T)))  # <-

    def right():
        return of_row(lambda x: L.out(y=x.at(T, N)))


@pair(Code.INDEX_WHAT)
class FloatIndex:
    def wrong():
        return of_row(lambda x: L.out(y=x.at(T, x * 2.0)))  # <-

    def right():
        return of_row(lambda x: L.out(y=x.at(T, (x * 2.0).to(i32))))


@pair(Code.INSIDE_WHAT)
class InsideOfList:
    def wrong():
        return of_stream(lambda x, k: L.out(y=x.at(T, k, inside=[V])))  # <-

    def right():
        return of_stream(lambda x, k: L.out(y=x.at(T, k, inside=V)))


@pair(Code.INDEX_WHAT)
class TileWindow:
    def wrong():
        return of_stream(lambda x, k: L.out(y=x[k]))  # <-

    def right():
        return of_stream(lambda x, k: L.out(y=x.at(T, k)))


# --- outputs ---


@pair(Code.OUTPUT_TWICE)
class OutTwice:
    def wrong():
        def body(x):
            L.out(y=x)
            return L.out(y=x * 2.0)  # <-

        return of_row(body)

    def right():
        def body(x):
            L.out(y=x)
            return L.out(z=x * 2.0)

        return of_row(body)


@pair(Code.OUTPUT_TWICE)
class EmitTwice:
    def wrong():
        def body(x, k):
            for v in L.stream(V):
                L.emit(y=x[v])
                L.emit(y=-x[v])  # <-

        return of_stream(body)

    def right():
        def body(x, k):
            for v in L.stream(V):
                L.emit(y=x[v], z=-x[v])

        return of_stream(body)


@pair(Code.OUTPUT_IS_INPUT)
class OverInput:
    def wrong():
        return of_row(lambda x: L.out(x=x * 2.0))  # <-

    def right():
        return of_row(lambda x: L.out(y=x * 2.0))


@pair(Code.TILE_OPERATOR)
class Power:
    def wrong():
        return of_row(lambda x: L.out(y=x**2))  # <-

    def right():
        return of_row(lambda x: L.out(y=x * x))


@pair(Code.DTYPE_UNKNOWN)
class DtypeByName:
    def wrong():
        return Tensor["bf17", T]  # <-

    def right():
        return Tensor[bf16, T]


@pair(Code.DTYPE_OF_NUMBERS)
class IntegersWithoutDtype:
    def wrong():
        return of_row(lambda x: L.out(y=L.where(x > 0.0, 1, 0)))  # <-

    def right():
        return of_row(lambda x: L.out(y=L.where(x > 0.0, L.number(1, i32), 0)))


@pair(Code.TENSOR_AXIS)
class DimByName:
    def wrong():
        return Tensor[f32, T, "N"]  # <-

    def right():
        return Tensor[f32, T, N]


@pair(Code.TENSOR_AXIS)
class DimByShare:
    def wrong():
        return Tensor[f32, T, N // 4]  # <-

    def right():
        return Tensor[f32, T, Axis("G", extent=N // 4)]


@pair(Code.OUTPUT_MISSING)
class NoOutput:
    def wrong():
        @op()  # <-
        def spec(x: Tensor[f32, T, N]) -> Outputs:
            return L.out(y=None)

        return trace(spec)

    def right():
        @op()
        def spec(x: Tensor[f32, T, N]) -> Outputs:
            return L.out(y=None, z=x)

        return trace(spec)


@pair(Code.OUTPUT_IN_STREAM)
class OutInside:
    def wrong():
        def body(x, k):
            for v in L.stream(V):
                L.out(y=x[v])  # <-

        return of_stream(body)

    def right():
        def body(x, k):
            for v in L.stream(V):
                L.emit(y=x[v])

        return of_stream(body)


@pair(Code.KEEP_IN_STREAM)
class KeptInside:
    def wrong():
        def body(x, k):
            for v in L.stream(V):
                L.emit(y=L.keep(x[v], "kept"))  # <-

        return of_stream(body)

    def right():
        return of_row(lambda x: L.out(y=L.keep(x, "kept")))


@pair(Code.RESERVED_NAME)
class LoopCounter:
    def wrong():
        @op()  # <-
        def spec(x: Tensor[f32, T, N], c: Scalar[f32]) -> Outputs:
            return L.out(y=x * c)

        return trace(spec)

    def right():
        @op()
        def spec(x: Tensor[f32, T, N], cap: Scalar[f32]) -> Outputs:
            return L.out(y=x * cap)

        return trace(spec)


@pair(Code.DOT_ONTO)
class OntoWhole:
    def wrong():
        @op()
        def spec(x: Tensor[f32, T, N], w: Tensor[f32, U, N], z: Tensor[f32, T, U]) -> Outputs:
            return L.out(y=L.dot(x, w, over=N, onto=z))  # <-

        return trace(spec)

    def right():
        @op()
        def spec(x: Tensor[f32, T, N], w: Tensor[f32, U, N], z: Tensor[f32, T, U]) -> Outputs:
            return L.out(y=z + L.dot(x, w, over=N))

        return trace(spec)


@pair(Code.DOT_PIECES)
class PiecesOfIntegers:
    def wrong():
        @op()
        def spec(x: Tensor[i8, T, PIECES], w: Tensor[i8, U, PIECES]) -> Outputs:
            return L.out(y=L.dot(x, w, over=PIECES))  # <-

        return trace(spec)

    def right():
        @op()
        def spec(x: Tensor[i8, T, N], w: Tensor[i8, U, N]) -> Outputs:
            return L.out(y=L.dot(x, w, over=N))

        return trace(spec)


@pair(Code.PIECES_COMBINED)
class PiecesReduced:
    def wrong():
        @op()
        def spec(x: Tensor[f32, T, V], w: Tensor[f32, N, V]) -> Outputs:
            return L.out(y=L.dot(x, w, over=V), z=L.max(x, over=V))  # <-

        return canonical(trace(spec))

    def right():
        @op()
        def spec(x: Tensor[f32, T, V], w: Tensor[f32, N, V]) -> Outputs:
            return L.out(y=L.dot(x, w, over=V))

        return canonical(trace(spec))


@pair(Code.OUTPUT_AXES)
class ForeignAxis:
    def wrong():
        return of_row(lambda x: L.out(y=x + L.pos(U).to(f32)))  # <-

    def right():
        return of_row(lambda x: L.out(y=x + L.pos(N).to(f32)))


@pair(Code.OUTPUT_AXES)
class EmitWithoutAxis:
    def wrong():
        def body(x, k):
            for _ in L.stream(V):
                L.emit(y=k)  # <-

        return of_stream(body)

    def right():
        def body(x, k):
            for v in L.stream(V):
                L.emit(y=k + v.pos)

        return of_stream(body)


# --- operators and gradients ---


@pair(Code.PARAM_KIND)
class Annotation:
    def wrong():
        @op()  # <-
        def spec(x: Tensor[f32, T, N], scale: float) -> Outputs:
            return L.out(y=x * scale)

        return trace(spec)

    def right():
        @op()
        def spec(x: Tensor[f32, T, N], scale: Scalar[f32]) -> Outputs:
            return L.out(y=x * scale)

        return trace(spec)


@pair(Code.NOT_CALLED)
class OpWithoutParentheses:
    def wrong():
        @op  # <-
        def spec(x: Tensor[f32, T, N]) -> Outputs:
            return L.out(y=x * 2.0)

        return trace(spec)

    def right():
        @op()
        def spec(x: Tensor[f32, T, N]) -> Outputs:
            return L.out(y=x * 2.0)

        return trace(spec)


@pair(Code.RANGE_EMPTY)
class RangeUpsideDown:
    def wrong():
        return Scalar[f32, 1.0:0.0]  # <-

    def right():
        return Scalar[f32, 0.0:1.0]


@pair(Code.DEFAULT_REFUSED)
class DefaultOutside:
    def wrong():
        @op()  # <-
        def spec(x: Tensor[f32, T, N], share: Scalar[f32, 0.0:1.0] = 2.0) -> Outputs:
            return L.out(y=x * share)

        return trace(spec)

    def right():
        @op()
        def spec(x: Tensor[f32, T, N], share: Scalar[f32, 0.0:1.0] | None = None) -> Outputs:
            return L.out(y=x * 2.0)

        return trace(spec)


@pair(Code.DEFAULT_REFUSED)
class DefaultThatIsNoChoice:
    def wrong():
        @op()  # <-
        def spec(x: Tensor[f32, T, N], kind: Static[KINDS] = "three") -> Outputs:
            return L.out(y=x * 2.0)

        return trace(spec)

    def right():
        @op()
        def spec(x: Tensor[f32, T, N], kind: Static[KINDS] = "two") -> Outputs:
            return L.out(y=x * 2.0)

        return trace(spec)


@pair(Code.UNKNOWN_NAME)
class StaticChoice:
    def wrong():
        @op()  # <-
        def spec(x: Tensor[f32, T, N], kind: Static[KINDS] = "one") -> Outputs:
            return L.out(y=x)

        return trace(spec, kind="three")

    def right():
        @op()
        def spec(x: Tensor[f32, T, N], kind: Static[KINDS] = "one", any: Static[...] = ()) -> Outputs:
            return L.out(y=x)

        return trace(spec, kind="two", any=("anything",))


def square() -> Op:
    @op(saves=("x",))
    def square(x: Tensor[F, T, N], k: Tensor[i32, T], scale: Scalar[f32] | None) -> Outputs:
        return L.out(y=x.to(f32) * x.to(f32) * k.to(f32))

    return square


def trace_gradient(spec: Op, *wanted: str) -> Program:
    assert spec.gradient is not None
    dtypes = dict(spec.default_variant().dtypes)
    return spec.gradient.trace(Variant.of(dtypes, {"d_y"}, wanted=set(wanted)))


@pair(Code.VJP_WRT)
class GradientOfInts:
    def wrong():
        @square().vjp("k")  # <-
        def gradient(ctx, d_y: Tensor[f32, T, N]) -> Outputs:
            return L.out(d_k=d_y)

    def right():
        @square().vjp("x")
        def gradient(ctx, d_y: Tensor[f32, T, N]) -> Outputs:
            return L.out(d_x=d_y)


@pair(Code.VJP_OUTPUTS)
class GradientMissing:
    def wrong():
        spec = square()

        @spec.vjp("x")  # <-
        def gradient(ctx, d_y: Tensor[f32, T, N]) -> Outputs:
            return L.out(d_z=d_y)

        return trace_gradient(spec, "x")

    def right():
        spec = square()

        @spec.vjp("x")
        def gradient(ctx, d_y: Tensor[f32, T, N]) -> Outputs:
            return L.out(d_x=(ctx.x.to(f32) * d_y).to(ctx.x.dtype))

        return trace_gradient(spec, "x")


@pair(Code.VJP_DTYPE)
class GradientOfAnotherType:
    def wrong():
        spec = square()

        @spec.vjp("x")  # <-
        def gradient(ctx, d_y: Tensor[f32, T, N]) -> Outputs:
            return L.out(d_x=ctx.x.to(f32) * d_y)

        return trace_gradient(spec, "x")

    right = GradientMissing.right


@pair(Code.VJP_DIMS)
class GradientWithDimsInAnotherOrder:
    def wrong():
        spec = square()

        @spec.vjp("x")  # <-
        def gradient(ctx, d_y: Tensor[f32, T, N]) -> Outputs:
            d_x = (ctx.x.to(f32) * d_y).to(ctx.x.dtype)
            L.place("d_x", (N, T), ({}, d_x))
            return L.out()

        return trace_gradient(spec, "x")

    right = GradientMissing.right


@pair(Code.VJP_COTANGENT)
class MisnamedCotangent:
    def wrong():
        spec = square()

        @spec.vjp("x")  # <-
        def gradient(ctx, dy: Tensor[f32, T, N]) -> Outputs:
            return L.out(d_x=(ctx.x.to(f32) * dy).to(ctx.x.dtype))

        return trace_gradient(spec, "x")

    right = GradientMissing.right


@pair(Code.VJP_WITHOUT_COTANGENT)
class NoCotangent:
    def wrong():
        spec = square()

        @spec.vjp("x")  # <-
        def gradient(ctx, order: Tensor[f32, T, N]) -> Outputs:
            return L.out(d_x=(ctx.x.to(f32) * order).to(ctx.x.dtype))

        return trace_gradient(spec, "x")

    right = GradientMissing.right


@pair(Code.VJP_SAVED)
class NotSaved:
    def wrong():
        spec = square()

        @spec.vjp("x")
        def gradient(ctx, d_y: Tensor[f32, T, N]) -> Outputs:
            return L.out(d_x=(d_y * ctx.k.to(f32)).to(ctx.x.dtype))  # <-

        return trace_gradient(spec, "x")

    def right():
        spec = square()

        @spec.vjp("x")
        def gradient(ctx, d_y: Tensor[f32, T, N]) -> Outputs:
            assert ctx.scale is None  # scalars are always there
            return L.out(d_x=(d_y * ctx.x.to(f32)).to(ctx.x.dtype))

        return trace_gradient(spec, "x")


@pair(Code.NOT_CALLED)
class GradientWithoutParentheses:
    def wrong():
        @square().vjp  # <-
        def gradient(ctx, d_y: Tensor[f32, T, N]) -> Outputs:
            return L.out(d_x=d_y)

    right = GradientOfInts.right


@pair(Code.VJP_OF_NOTHING)
class GradientOfNothing:
    def wrong():
        @square().vjp()  # <-
        def gradient(ctx, d_y: Tensor[f32, T, N]) -> Outputs:
            return L.out(d_x=d_y)

    right = GradientOfInts.right


@pair(Code.INTO_GRADIENT)
class GradientOfAnUpdate:
    def wrong():
        @op(into={"y": "x"})
        def spec(x: Tensor[f32, T, N]) -> Outputs:
            return L.out(y=x * x)

        return spec.derive_vjp()  # <-

    def right():
        @op()
        def spec(x: Tensor[f32, T, N]) -> Outputs:
            return L.out(y=x * x)

        return spec.derive_vjp()


@pair(Code.INTO_WRONG)
class UpdateOfAnotherDtype:
    def wrong():
        @op(into={"y": "x"})  # <-
        def spec(x: Tensor[f32, T, N]) -> Outputs:
            return L.out(y=x.to(bf16))

        return trace(spec)

    def right():
        @op(into={"y": "x"})
        def spec(x: Tensor[f32, T, N]) -> Outputs:
            return L.out(y=x * x)

        return trace(spec)


@pair(Code.VJP_TWICE)
class GradientNamedTwice:
    def wrong():
        @square().vjp("x", "x")  # <-
        def gradient(ctx, d_y: Tensor[f32, T, N]) -> Outputs:
            return L.out(d_x=d_y)

    right = GradientOfInts.right


@pair(Code.VJP_COTANGENT_TYPE)
class CotangentOfAnotherType:
    def wrong():
        spec = square()

        @spec.vjp("x")  # <-
        def gradient(ctx, d_y: Tensor[f32, T]) -> Outputs:
            return L.out(d_x=(ctx.x.to(f32) * d_y).to(ctx.x.dtype))

        return trace_gradient(spec, "x")

    right = GradientMissing.right


@pair(Code.VJP_DERIVED)
class DerivedThroughBits:
    def wrong():
        @op(saves=("x",))
        def spec(x: Tensor[f32, T, N]) -> Outputs:
            cut = (x.bits(u32) >> 16) << 16
            return L.out(y=cut.bits(f32))  # <-

        spec.derive_vjp("x")
        return trace_gradient(spec, "x")

    def right():
        @op(saves=("x",))
        def spec(x: Tensor[f32, T, N]) -> Outputs:
            return L.out(y=x * x)

        spec.derive_vjp("x")
        return trace_gradient(spec, "x")


@pair(Code.VJP_SUM)
class DerivedSumWithoutAnOrder:
    def wrong():
        @op()
        def spec(x: Tensor[f32, T, N], bias: Tensor[f32, N]) -> Outputs:
            return L.out(y=x + bias)  # <-

        spec.derive_vjp("bias")
        return trace_gradient(spec, "bias")

    def right():
        @op()
        def spec(x: Tensor[f32, ROWS, N], bias: Tensor[f32, N]) -> Outputs:
            return L.out(y=x + bias)

        spec.derive_vjp("bias")
        return trace_gradient(spec, "bias")


# --- values, axes and orders ---


@pair(Code.FOLD_AS_VALUE)
class TotalAsValue:
    def wrong():
        def body(x, k):
            total = L.total()
            for v in L.stream(V):
                total.absorb(x[v])
            return L.out(y=total / 2.0)  # <-

        return of_stream(body)

    def right():
        def body(x, k):
            total = L.total()
            for v in L.stream(V):
                total.absorb(x[v])
            return L.out(y=total.value / 2.0)

        return of_stream(body)


@pair(Code.OPTIONAL_ABSENT)
class AbsentBias:
    def wrong():
        @op()
        def spec(x: Tensor[f32, T, N], bias: Tensor[f32, N] | None) -> Outputs:
            return L.out(y=x + bias.whole())  # <-

        return trace(spec)

    def right():
        @op()
        def spec(x: Tensor[f32, T, N], bias: Tensor[f32, N] | None) -> Outputs:
            return L.out(y=x * 1.0 if bias is None else x + bias)

        return trace(spec)


@pair(Code.AXIS_WANTED)
class AxisByName:
    def wrong():
        return of_row(lambda x: L.out(y=L.max(x, over="N")))  # <-

    def right():
        return of_row(lambda x: L.out(y=L.max(x, over=N)))


@pair(Code.ORDER_WANTED)
class OrderByName:
    def wrong():
        return of_row(lambda x: L.out(y=L.sum(x, over=N, tree="halving")))  # <-

    def right():
        return of_row(lambda x: L.out(y=L.sum(x, over=N, tree=Tree.halving)))
