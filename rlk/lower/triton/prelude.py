"""Device functions of generated Triton modules: text that the lowering copies, parsed and never imported.

A module gets the functions that its kernels call, and those that they call in turn. A comment stands where a
docstring would: the compiler reads the body.
"""

import triton
import triton.language as tl


@triton.jit
def negative_zero():
    # Triton reads the literal -0.0 as +0.0.
    return tl.full((), -2147483648, tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def philox(c0, c1, c2, c3, k0, k1):
    # Four random words: Philox 4x32-10.
    for _ in tl.static_range(10):
        high0, low0 = tl.umulhi(c0, 0xD2511F53), c0 * 0xD2511F53
        high1, low1 = tl.umulhi(c2, 0xCD9E8D57), c2 * 0xCD9E8D57
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + 0x9E3779B9, k1 + 0xBB67AE85
    return c0, c1, c2, c3


@triton.jit
def signed_half(x):
    # LLVM's AMD backend casts a product to f16 as f16(a * b + 0.0), which loses the sign of a zero.
    half = x.to(tl.float16).to(tl.int16, bitcast=True)
    sign = (x.to(tl.int32, bitcast=True) >> 16).to(tl.int16) & -32768
    return (half | sign).to(tl.float16, bitcast=True)


@triton.jit
def keep_k_order(factor):
    # The same 16-bit elements. By the narrowest load behind a factor Triton chooses which 16 of K are one
    # mma.sync: elements of 8 bits give other sums than ascending steps. It looks behind no volatile assembly.
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [factor], factor.dtype, is_pure=False, pack=2)


@triton.jit
def byte_alone(x):
    # The same bytes. One instruction converts two floats to two bytes; where the second is packed with both
    # again, ptxas 12.8 and 12.9 read it before it is written. They look behind no volatile assembly.
    word = x.to(tl.int32)
    word = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [word], tl.int32, is_pure=False, pack=1)
    return word.to(tl.uint8)


@triton.jit
def divided(x, by):
    # x / by, correctly rounded, with one divisor per row: a reciprocal and two fma corrections, where all
    # magnitudes are in 2**-60 .. 2**60 (0x21800000 .. 0x5D800000), so that no correction is rounded away.
    bits, below = x.to(tl.uint32, bitcast=True), by.to(tl.int32, bitcast=True)
    least = (tl.min(bits * 2 - 1, 1) >> 1).to(tl.int32)[:, None]  # the smallest magnitude above zero
    most = tl.sum(tl.abs(x), 1).to(tl.int32, bitcast=True)[:, None]  # not less than the largest
    room = (least - 0x217FFFFF) | (0x5D800000 - most)
    room = room | (below - 0x21800000) | (0x5D800000 - below)
    if tl.min(tl.min(room, 1), 0) >= 0:
        inverse, negative = tl.div_rn(1.0, by), x * -1.0
        near = x * inverse
        near = tl.fma(tl.fma(by, near, negative) * -1.0, inverse, near)  # zeros keep their signs
        quotients = tl.fma(tl.fma(by, near, negative) * -1.0, inverse, near)
    else:
        quotients = tl.div_rn(x, by)
    return quotients


@triton.jit
def halves(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    # The lower and the upper columns: an index bit whose two values are in one thread, so that nothing moves.
    return tl.split(tl.permute(tl.reshape(x, (ROWS, 2, COLUMNS)), (0, 2, 1)))


@triton.jit
def segment_of(begin_ptr, tile, count, EACH: tl.constexpr, TILE: tl.constexpr):
    # Segment of a tile of rows: segment i starts at tile begin[i] * EACH // TILE + i.
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        later = tl.load(begin_ptr + middle) * EACH // TILE + middle > tile
        low, high = tl.where(later, low, middle), tl.where(later, middle, high)
    return low


@triton.jit
def segment_near(begin_ptr, tile, count, EACH: tl.constexpr, TILE: tl.constexpr):
    # As segment_of; the place among segments of one index each is tried first: decoding needs no other.
    near = tl.maximum(tl.minimum((tile * TILE + TILE + EACH - 1) // (TILE + EACH), count - 1), 0)
    below = tl.load(begin_ptr + near) * EACH // TILE + near <= tile
    after = tl.load(begin_ptr + near + 1, mask=near + 1 < count, other=0) * EACH // TILE + near + 1
    found = (near + 1 >= count) | (after > tile)
    low = tl.where(below, tl.where(found, near, near + 1), 0)
    high = tl.where(below, tl.where(found, near + 1, count), near)
    while high - low > 1:
        middle = (low + high) // 2
        later = tl.load(begin_ptr + middle) * EACH // TILE + middle > tile
        low, high = tl.where(later, low, middle), tl.where(later, middle, high)
    return low


@triton.jit
def segment_of_few(
    begin_ptr, end_ptr, tile, COUNT: tl.constexpr, LANES: tl.constexpr, EACH: tl.constexpr, TILE: tl.constexpr
):
    # Segment of a tile of rows, and the number of the tile in it: tiles without rows come after all others.
    lane = tl.arange(0, LANES)
    begin = tl.load(begin_ptr + lane, mask=lane < COUNT, other=0).to(tl.int32)
    end = tl.load(end_ptr + lane, mask=lane < COUNT, other=0).to(tl.int32)
    tiles = (tl.maximum(end - begin, 0) * EACH + TILE - 1) // TILE
    before = (tl.cumsum(tiles, 0) <= tile).to(tl.int32)
    owner = tl.minimum(tl.sum(before, 0), COUNT - 1)
    return owner, tile - tl.sum(tl.where(lane < owner, tiles, 0), 0)
