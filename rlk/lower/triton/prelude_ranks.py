"""Device functions of sums over ranks: loads and stores of memory that several devices share, as PTX.

Text that `rlk/lower/triton/ranks.py` copies, parsed and never imported. Each wait traps after `limit`
nanoseconds: the driver then reports a launch failure, and a rank does not wait for ever for one that died.
"""

import triton
import triton.language as tl


@triton.jit
def put_words(address, bits, call, here):
    # Store 32 bits and the number of the call as one word: whoever sees the number has the bits.
    word = (call.to(tl.int64) << 32) | (bits.to(tl.int64) & 0xFFFFFFFF)
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $3, 0; @p st.relaxed.sys.global.b64 [$1], $2; mov.u32 $0, 0; }",
        "=r,l,l,r",
        [address.to(tl.int64), word, here.to(tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def take_words(address, call, here, limit):
    # Wait until a word has the number of this call; return its 32 bits.
    return tl.inline_asm_elementwise(
        """{
        .reg .pred p;
        .reg .b32 bits, seen, turns;
        .reg .b64 word, begun, now;
        mov.b32 bits, 0;
        setp.eq.s32 p, $3, 0;
        @p bra OUT;
        mov.b32 turns, 0;
        mov.u64 begun, %globaltimer;
        AGAIN:
        ld.relaxed.sys.global.b64 word, [$1];
        mov.b64 {bits, seen}, word;
        setp.eq.s32 p, seen, $2;
        @p bra OUT;
        add.s32 turns, turns, 1;
        and.b32 seen, turns, 1023;
        setp.ne.s32 p, seen, 0;
        @p bra AGAIN;
        mov.u64 now, %globaltimer;
        sub.u64 now, now, begun;
        setp.lt.u64 p, now, $4;
        @p bra AGAIN;
        trap;
        OUT:
        mov.b32 $0, bits;
        }""",
        "=r,l,r,r,l",
        [address.to(tl.int64), call, here.to(tl.int32), limit],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def publish():
    # Make the stores of all threads visible to other devices before the flags that thread 0 sets next.
    tl.debug_barrier()
    tl.inline_asm_elementwise(
        """{
        .reg .pred p;
        .reg .b32 t;
        mov.u32 t, %tid.x;
        setp.eq.s32 p, t, 0;
        @p fence.acq_rel.sys;
        mov.u32 $0, 0;
        }""",
        "=r",
        [],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def set_flag(address, count):
    # By thread 0, which made the fence of `publish`.
    tl.inline_asm_elementwise(
        """{
        .reg .pred p;
        .reg .b32 t;
        mov.u32 t, %tid.x;
        setp.eq.s32 p, t, 0;
        @p st.relaxed.sys.global.b32 [$1], $2;
        mov.u32 $0, 0;
        }""",
        "=r,l,r",
        [address.to(tl.int64), count],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def wait_flag(address, count, limit):
    # Every thread waits until a flag has at least this count, and then sees what was stored before it.
    tl.inline_asm_elementwise(
        """{
        .reg .pred p;
        .reg .b32 seen, turns;
        .reg .b64 begun, now;
        mov.b32 turns, 0;
        mov.u64 begun, %globaltimer;
        AGAIN:
        ld.acquire.sys.global.b32 seen, [$1];
        sub.s32 seen, seen, $2;
        setp.ge.s32 p, seen, 0;
        @p bra OUT;
        add.s32 turns, turns, 1;
        and.b32 seen, turns, 1023;
        setp.ne.s32 p, seen, 0;
        @p bra AGAIN;
        mov.u64 now, %globaltimer;
        sub.u64 now, now, begun;
        setp.lt.u64 p, now, $3;
        @p bra AGAIN;
        trap;
        OUT:
        mov.b32 $0, 0;
        }""",
        "=r,l,r,l",
        [address.to(tl.int64), count, limit],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
