"""Token sampling: top-k, top-p and min-p as one threshold, then a walk along integer weights.

Everything after the weights is integer arithmetic, which no order of additions changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from rlk.lang import (
    Axis,
    DTypeVar,
    L,
    Outputs,
    Tensor,
    Tile,
    bf16,
    boolean,
    f16,
    f32,
    i32,
    i64,
    op,
    u32,
)
from rlk.lang.trace import for_kernels

LANES, BLOCKS, DIGIT = 1024, 1024, 4
T = Axis("T", dynamic=True)
V = Axis("V", chunk=256, split=8)
W = Axis("W", chunk=LANES)  # the vocabulary again: lane i has tokens i, i + 1024, ...
U = Axis("U", chunk=1, split=BLOCKS)  # and again: in blocks that follow each other
J = Axis("J", split=1 << DIGIT).pieces  # numbers that are tried at once
F = DTypeVar("F", (bf16, f16, f32))

LOG2E = 1.4426950408889634
UNIT = 22  # the largest weight of a row is 2**22
MOST_TOKENS = LANES * ((1 << 31 - UNIT) - 1)  # weights of a lane or a block add up to less than 2**31
FRACTION = 20  # bits of top_p
UNIFORM = 24  # bits of a draw, its midpoint included
UNUSED = {bf16: 16, f16: 12, f32: 0}  # low bits of a key that tell no two scores of a dtype apart
SIGN, MAGNITUDE = 31, 0x7FFFFFFF
NOTHING = -0x7F800001  # the key of -inf

ANY_NUMBER, ANY_MASS = (1 << 31) - 1, 1 << 62

Reaches = Callable[[Tile, Tile | None], Tile]


@dataclass(frozen=True, slots=True)
class Keys:
    """Integers that compare as the scores of a dtype do; equal scores have equal keys."""

    unused: int

    @property
    def bits(self) -> int:
        return 32 - self.unused

    @property
    def nothing(self) -> int:
        """The key of -inf, and of NaN."""
        return NOTHING >> self.unused

    def of(self, x: Tile) -> Tile:
        return _ordered(x) >> self.unused

    def value(self, key: Tile) -> Tile:
        """Return the score of a key."""
        whole = key << self.unused
        # of negative scores the unused bits are ones: their magnitude is inverted
        whole = L.where(key < 0, whole | ((1 << self.unused) - 1), whole)
        return (whole ^ ((whole >> SIGN) & MAGNITUDE)).bits(f32)

    def first_from(self, bound: Tile) -> Tile:
        """Return the smallest key of a score that is not below a bound."""
        key = _ordered(bound)
        return L.where(key < 0, key, key + ((1 << self.unused) - 1)) >> self.unused


@dataclass(frozen=True, slots=True)
class Row:
    """The scores of a row: how they compare, what they weigh, and the keys of each lane's largest three."""

    keys: Keys
    best: Tile
    inverse: Tile | None
    pool: tuple[Tile, ...] = ()

    def scaled(self, x: Tile) -> Tile:
        return x if self.inverse is None else x * self.inverse

    def weight(self, x: Tile) -> Tile:
        """Return exp((x - best) / temperature) in units of 2**-22, i32, rounded to nearest even."""
        e = L.softmax_exp2((self.scaled(x) - self.scaled(self.best)) * LOG2E)
        # the best weighs 1 also where it is infinite; what is NaN weighs nothing
        e = L.where(x == self.best, 1.0, L.maximum(e, 0.0))
        # the last place of a number in [2, 4) is 2**-22
        return (e + 2.0).bits(i32) - 0x40000000

    def complete(self, threshold: Tile) -> Tile:
        """Return whether all tokens of a row that are not below a threshold are in the pool."""
        return L.max(self.pool[2], over=W.lanes) < threshold

    def above(self, threshold: Tile) -> tuple[Tile, Tile, Tile]:
        """Return of each lane's part of the pool what `_above` returns of the tokens, if it is complete.

        A key tells all that a weight depends on: it is the same for +0.0 and -0.0, whose weights are equal,
        and for NaN and -inf, which a threshold above some lane's third is not.
        """
        more, mass, equal = [], [], []
        for keys in self.pool:
            over = keys > threshold
            more.append(over.to(i32))
            mass.append(L.where(over, self.weight(self.keys.value(keys)), 0))
            equal.append((keys == threshold).to(i32))
        first, second, third = (a + b + c for a, b, c in (more, mass, equal))
        return first, second, third


@dataclass(frozen=True, slots=True)
class Kept:
    """A support: every token whose key is above a threshold, then the first of those that meet it.

    ties: at most so many of these. goal: no more than the tokens need that together weigh so much. mass: what
    the tokens above the threshold weigh, where that is known.
    """

    threshold: Tile
    ties: Tile
    goal: Tile | None = None
    mass: Tile | None = None


def _ordered(x: Tile) -> Tile:
    bits = (L.maximum(x, -math.inf) + 0.0).bits(i32)  # NaN loses; -0.0 + 0.0 is +0.0
    return bits ^ ((bits >> SIGN) & MAGNITUDE)


def _whole(x: Tile, over: Axis) -> Tile:
    """Return the sum of up to 1024 non-negative numbers, i64."""
    low, high = L.sum(x & 0xFFFF, over=over), L.sum(x >> 16, over=over)
    return (high.to(i64) << 16) + low.to(i64)


def _sum(x: Tile, over: Axis) -> Tile:
    """Return the sum of numbers that add up to less than 2**31, i64; kernels need no halves for it."""
    return L.sum(x, over=over).to(i64) if for_kernels() else _whole(x, over)


def _digit(reached: Tile) -> Tile:
    """Return the largest of the numbers tried that reached the goal, 0 where none did."""
    return L.max(L.where(reached, L.pos(J), 0), over=J)


def _largest(bits: int, reaches: Reaches, low: Tile | None = None, high: Tile | None = None) -> Tile:
    """Return the largest key that reaches a goal, which smaller keys reach too, four bits at a time.

    low, high: bounds of it; bits in which they agree are not searched for.
    """
    found: Tile | int = -(1 << bits - 1)
    for shift in range(bits - DIGIT, -1, -DIGIT):
        tried = (L.pos(J) << shift) + found
        if low is None or high is None:
            found = (_digit(reaches(tried, None)) << shift) + found
        else:
            apart = (low >> shift) != (high >> shift)
            digit = _digit(reaches(tried, apart))
            found = L.where(apart, (digit << shift) + found, (low >> shift) << shift)
    assert isinstance(found, Tile)
    return found


def _locate(amounts: Tile, target: Tile, add: Callable[[Tile, Axis], Tile] = _sum) -> tuple[Tile, Tile]:
    """Return the first of 1024 indices at which the running sum of amounts exceeds a target.

    And what is left: the target less the amounts before that index. add: `_whole` where they are too many.
    """
    place = L.pos(U.pieces)

    def before(end: Tile) -> Tile:
        return add(L.where(place < end, amounts, 0), U.pieces)

    index: Tile | int = 0
    for shift in (8, 4, 0):
        tried = (L.pos(J) << shift) + index
        index = (_digit(before(tried) <= target) << shift) + index
    assert isinstance(index, Tile)
    return index, target - before(index)


# --- the support ---


def _above(
    row: Row, scores: Tensor, threshold: Tile, when: Tile | None = None, *, by_pool: bool = False
) -> tuple[Tile, Tile, Tile]:
    """Return how many tokens are above a threshold, what they weigh, and how many meet it.

    by_pool: kernels take it from the pool, and read no token of a row whose pool is complete.
    """
    pooled = by_pool and for_kernels()
    if pooled:
        known = row.complete(threshold)
        when = ~known if when is None else when & ~known
    more, mass, equal = L.total(kept=True), L.total(kept=True), L.total(kept=True)
    for w in L.stream(W, when=when):
        x = scores[w].to(f32)
        key = row.keys.of(x)
        more.absorb((key > threshold).to(i32))
        mass.absorb(L.where(key > threshold, row.weight(x), 0))
        equal.absorb((key == threshold).to(i32))
    found = [more.value, mass.value, equal.value]
    if pooled:
        found = [L.where(known, a, b) for a, b in zip(row.above(threshold), found, strict=True)]
    return L.sum(found[0], over=W.lanes), _whole(found[1], over=W.lanes), L.sum(found[2], over=W.lanes)


def _searched(row: Row, low: Tile, settled: Tile, reaches: Reaches) -> Tile:
    """Return the largest key that reaches a goal, from `low` on: that itself where it is settled."""
    return _largest(row.keys.bits, reaches, low, L.where(settled, low, row.keys.of(row.best)))


def _top_k(row: Row, scores: Tensor, kept: Kept, top_k: Tile) -> Kept:
    """Return the support of the k best tokens; k < 1 and k >= V leave it as it is."""
    on = (top_k > 0) & (top_k < L.extent(W))

    def by_pool(tried: Tile, _: Tile | None) -> Tile:
        there = [(keys >= tried).to(i32) for keys in row.pool]
        return L.sum(there[0] + there[1] + there[2], over=W.lanes) >= top_k

    def by_tokens(tried: Tile, apart: Tile | None) -> Tile:
        n = L.total(kept=True)
        for w in L.stream(W, when=apart):
            n.absorb((row.keys.of(scores[w].to(f32)) >= tried).to(i32))
        return L.sum(n.value, over=W.lanes) >= top_k

    # the k-th best of a part of the tokens is at most that of all: and equal, but for lanes with four of them
    least = L.maximum(_largest(row.keys.bits, by_pool), kept.threshold)
    low = L.where(on, least, kept.threshold)
    more, mass, equal = _above(row, scores, low, by_pool=True)
    settled = (more < top_k) | ~on
    cut = _searched(row, low, settled, by_tokens)
    again = _above(row, scores, cut, when=~settled)
    more, mass, equal = (L.where(settled, a, b) for a, b in zip((more, mass, equal), again, strict=True))
    ties = L.where(cut > kept.threshold, L.minimum(equal, top_k - more), kept.ties)
    return Kept(cut, ties, mass=mass)


def _top_p(row: Row, scores: Tensor, kept: Kept, top_p: Tile) -> Kept:
    """Return the best tokens of a support that together weigh at least top_p of it; 1 leaves it as it is."""
    on = top_p < 1.0
    mass = _above(row, scores, kept.threshold)[1] if kept.mass is None else kept.mass
    ties = kept.ties.to(i64) * row.weight(row.keys.value(kept.threshold)).to(i64)
    part = (L.clip(top_p, 0.0, 1.0) * float(1 << FRACTION)).to(i64)
    goal = L.maximum(((mass + ties) * part + ((1 << FRACTION) - 1)) >> FRACTION, 1)
    weights = [row.weight(row.keys.value(keys)) for keys in row.pool]

    def by_pool(tried: Tile, _: Tile | None) -> Tile:
        def there(i: int) -> Tile:
            return L.where(row.pool[i] >= tried, weights[i], 0)

        if for_kernels():  # three weights of a lane are one number
            return _whole(there(0) + there(1) + there(2), over=W.lanes) >= goal
        parts = [_whole(there(i), over=W.lanes) for i in range(3)]
        return parts[0] + parts[1] + parts[2] >= goal

    def by_tokens(tried: Tile, apart: Tile | None) -> Tile:
        total = L.total(kept=True)
        for w in L.stream(W, when=apart):
            x = scores[w].to(f32)
            total.absorb(L.where(row.keys.of(x) >= tried, row.weight(x), 0))
        return _whole(total.value, over=W.lanes) >= goal

    low = L.maximum(L.where(on, _largest(row.keys.bits, by_pool), kept.threshold), kept.threshold)
    settled = (_above(row, scores, low, when=on, by_pool=True)[1] < goal) | ~on
    cut = _searched(row, low, settled, by_tokens)
    ties = L.where(cut > kept.threshold, ANY_NUMBER, kept.ties)
    return Kept(cut, ties, goal=L.where(on, goal, ANY_MASS))


def _min_p(row: Row, min_p: Tile) -> Kept:
    """Return the tokens whose probability is at least min_p times the largest."""
    margin = L.log(min_p)
    if row.inverse is not None:
        margin = margin / row.inverse
    bound = L.minimum(L.maximum(row.best + margin, -math.inf), row.best)
    below = row.keys.first_from(bound) - 1
    # -1 is the key of -0.0: no score has it, but as a number it is not below the +0.0 that is kept
    below = L.where(below == -1, -2, below)
    return Kept(L.maximum(below, row.keys.nothing), L.number(0, i32))


def _everything(keys: Keys) -> Kept:
    return Kept(L.number(keys.nothing, i32), L.number(0, i32))


# --- the draw ---


def _uniform(seed: Tile, request_id: Tile, position: Tile) -> Tile:
    """Return the numerator of (2 k + 1) / 2**24, k of 23 random bits, i64."""
    words = [w for x in (request_id, position, seed) for w in (x.to(u32), (x >> 32).to(u32))]
    first, *_ = L.philox((words[0], words[1], words[2], words[3]), (words[4], words[5]))
    return ((first >> (32 - UNIFORM + 1)).to(i64) << 1) + 1


def _part_of(total: Tile, numerator: Tile) -> Tile:
    """Return floor(total * numerator / 2**24) of a total below 2**42, by two products that fit in 63 bits."""
    high, low = (total >> 16) * numerator, (total & 0xFFFF) * numerator
    return (high >> (UNIFORM - 16)) + ((((high & ((1 << UNIFORM - 16) - 1)) << 16) + low) >> UNIFORM)


def _draw(row: Row, blocks: Tensor, kept: Kept, numerator: Tile) -> tuple[Tile, Tile, Tile]:
    """Return the token at which the running weight by index exceeds its part, and how many ties, the last."""
    size = (L.extent(U) + (BLOCKS - 1)) // BLOCKS
    place, threshold = L.pos(U.pieces), kept.threshold
    equal, mass = L.total(kept=True), L.total(kept=True)
    for u in L.stream(U):
        x = blocks[u].to(f32)
        key = row.keys.of(x)
        equal.absorb((key == threshold).to(i32))
        mass.absorb(L.where(key > threshold, row.weight(x), 0))

    def block(index: Tile) -> Tile:
        """Return the scores of a block, -inf beyond its end."""
        return blocks.at(T, L.where(place < size, index * size + place, -1), fill=-math.inf).to(f32)

    weight = row.weight(row.keys.value(threshold))
    some = L.minimum(L.sum(equal.value, over=U.pieces), kept.ties)
    if kept.goal is not None:
        each = L.maximum(weight, 1).to(i64)
        needed = L.maximum(kept.goal - _whole(mass.value, over=U.pieces), 0) + (each - 1)
        some = L.minimum(some.to(i64), needed // each).to(i32)
    tied, left = _locate(equal.value, some.to(i64) - 1)
    within, _ = _locate((row.keys.of(block(tied)) == threshold).to(i32), left)
    last = L.where(some > 0, tied * size + within, -1)
    ties = L.where(place < tied, equal.value, L.where(place == tied, left.to(i32) + 1, 0))
    amounts = mass.value + ties * weight
    chosen, left = _locate(amounts, _part_of(_whole(amounts, over=U.pieces), numerator), _whole)
    x = block(chosen)
    key, index = row.keys.of(x), chosen * size + place
    there = (key > threshold) | ((key == threshold) & (index <= last))
    within, _ = _locate(L.where(there, row.weight(x), 0), left)
    return chosen * size + within, some, last


@op()
def sample(
    scores: Tensor[F, T, W],
    blocks: Tensor[F, T, U],
    seed: Tensor[i64, T],
    request_id: Tensor[i64, T],
    position: Tensor[i64, T],
    inv_temperature: Tensor[f32, T] | None,
    top_k: Tensor[i32, T] | None,
    top_p: Tensor[f32, T] | None,
    min_p: Tensor[f32, T] | None,
) -> Outputs:
    """A token of softmax(scores / temperature) over what min-p, top-k and top-p keep, in this order.

    scores and blocks are one tensor. inv_temperature = inf takes the best token, the first of equals. Weights
    are integers in units of 2**-22 of the largest. The support is every score above `threshold`, and those
    that equal it up to index `last`, of which there are `ties`. A row without a finite score, with one that
    is +inf, or whose inv_temperature is not above 0 gives token -1 and sets the error word.
    """
    greedy = None if inv_temperature is None else inv_temperature == math.inf
    inverse = None if greedy is None else L.where(greedy, 1.0, inv_temperature)
    keys, pool = Keys(UNUSED[scores.dtype]), L.top()
    for w in L.stream(W):
        pool.absorb(keys.of(scores[w].to(f32)))
    best = keys.value(L.max(pool.values[0], over=W.lanes))
    row = Row(keys, best, inverse, tuple(L.maximum(each, keys.nothing) for each in pool.values))
    kept = _min_p(row, min_p.whole()) if min_p is not None else _everything(keys)
    if top_k is not None:
        kept = _top_k(row, scores, kept, top_k.whole())
    if top_p is not None:
        kept = _top_p(row, scores, kept, top_p.whole())
    if greedy is not None:
        goal = None if kept.goal is None else L.where(greedy, ANY_MASS, kept.goal)
        kept = Kept(L.where(greedy, keys.of(best), kept.threshold), L.where(greedy, 1, kept.ties), goal)
    # a search by lanes and a walk by blocks place a row differently: they are two kernels
    row = Row(keys, L.keep(best, "best"), inverse)
    goal = None if kept.goal is None else L.keep(kept.goal, "goal")
    kept = Kept(L.keep(kept.threshold, "cut"), L.keep(kept.ties, "most_ties"), goal)
    token, ties, last = _draw(row, blocks, kept, _uniform(seed, request_id, position))
    found = (row.best > -math.inf) & (row.best < math.inf)
    if inv_temperature is not None:
        found = found & (inv_temperature > 0.0)  # not of a NaN, nor of 1 / inf
    L.check(~found, "no finite score, one that is +inf, or a temperature below 0, infinite or NaN")
    return L.out(
        token=L.where(found, token, -1).to(i64),
        threshold=L.where(found, keys.value(kept.threshold), -math.inf),
        ties=L.where(found, ties, 0),
        last=L.where(found, last, -1),
    )


@op()
def penalize(
    logits: Tensor[F, T, V],
    counts: Tensor[i32, T, V],
    prompt: Tensor[boolean, T, V] | None,
    repetition: Tensor[f32, T],
    frequency: Tensor[f32, T],
    presence: Tensor[f32, T],
) -> Outputs:
    """Scores of tokens that were there already, less likely: z / r or z r, - f times, - p once."""
    z, generated = logits.to(f32), counts > 0
    seen = generated if prompt is None else generated | prompt
    z = L.where(seen, L.where(z > 0.0, z / repetition, z * repetition), z)
    z = z - frequency * counts.to(f32)
    return L.out(scores=z - L.where(generated, presence, 0.0))
