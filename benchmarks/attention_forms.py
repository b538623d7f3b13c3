# ruff: noqa
# mypy: ignore-errors
"""Edited texts of the forward attention kernel, timed by turns beside FlashAttention 4.

`python -m benchmarks.attention_forms 64 plain last last+exps fa4` compiles each form in a child of its own, lets
each launch once under a time limit, compares the bits of all results, and then times them one after the other,
in two rounds. A form is a list of edits (names of EDITS) and of plans (last: the maximum only where needed;
rows2: two warpgroups). For experiments: what is faster becomes part of the lowering.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import select as selecting
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from edited_text import joined

def sub(text, pattern, new, count=1, flags=re.M):
    out, n = re.subn(pattern, new, text, flags=flags)
    assert n >= count, (pattern, n)
    return out

def both(t):
    """E: O += P V of the last step in flight too, until P is written anew."""
    # end of step: wait for S of the next step alone
    t = sub(t, r"^    warpgroup\.wait_group\(0\)\n    if cutlass\.const_expr\(more\):\n        k_ring\.consumer_release\(k_consumer_state\)\n        k_consumer_state\.advance\(\)\n    v_ring\.consumer_release\(v_consumer_state\)\n    v_consumer_state\.advance\(\)",
      "    if cutlass.const_expr(more):\n        warpgroup.wait_group(1)\n        k_ring.consumer_release(k_consumer_state)\n        k_consumer_state.advance()\n    else:\n        warpgroup.wait_group(0)\n        v_ring.consumer_release(v_consumer_state)\n        v_consumer_state.advance()")
    # P waits
    wait = ("    if cutlass.const_expr(more):\n        warpgroup.wait_group(1)\n    else:\n        warpgroup.wait_group(0)\n"
            "    if s_step > first_steps:\n        v_ring.consumer_release(v_consumer_state)\n        v_consumer_state.advance()\n"
            "    for r in cutlass.range_constexpr(2):\n        for c in cutlass.range_constexpr(16):\n            p_bf16[r, c] = Float32(e_all[r, c]).to(BFloat16)\n")
    t = sub(t, r"^    v_ring\.consumer_wait\(v_consumer_state\)\n", wait + "    v_ring.consumer_wait(v_consumer_state)\n")
    t = sub(t, r"p_bf16\[r, c\] = Float32\(p\[c\]\)\.to\(BFloat16\)", "e_all[r, c] = p[c]")
    t = sub(t, r"p_bf16\[r, c\] = Float32\(p_2\[c\]\)\.to\(BFloat16\)", "e_all[r, c] = p_2[c]")
    t = sub(t, r"^    l_chunk_parts = cute", "    e_all = cute.make_rmem_tensor((2, 16), Float32)\n    l_chunk_parts = cute")
    # rare paths
    t = sub(t, r"^(        if any_lane\(select\(stays.*\n)", r"\1            warpgroup.wait_group(0)\n")
    t = sub(t, r"^(    if new_piece & \(s_step > first_steps\):\n)", r"\1        warpgroup.wait_group(0)\n")
    t = sub(t, r"^(    if new_piece:\n)", r"\1        warpgroup.wait_group(0)\n")
    return t

def merge_later(t):
    """B: S of the next step is issued before the merge of a piece."""
    m = re.search(r"^    if new_piece & \(s_step > first_steps\):\n(?:        .*\n)+", t, re.M)
    merge = m.group(0); t = t.replace(merge, "")
    q = re.search(r"^    if new_piece:\n(?:        .*\n)+", t, re.M)
    restart = q.group(0); t = t.replace(restart, "")
    k = re.search(r"^    if cutlass\.const_expr\(more\):\n        k_ring\.consumer_wait\(k_consumer_state\)\n        multiply\(.*\n", t, re.M)
    assert k
    return t.replace(k.group(0), k.group(0) + merge + restart)

def turns(t, where):
    take = "    cute.arch.barrier(barrier_id=4 + group, number_of_threads=256)\n"
    give = "    cute.arch.barrier_arrive(barrier_id=5 + group % 3, number_of_threads=256)\n"
    if where == "exps":
        t = sub(t, r"^    l_chunk_parts = cute", take + "    l_chunk_parts = cute")
        t = sub(t, r"^    v_ring\.consumer_wait\(v_consumer_state\)\n", give + "    v_ring.consumer_wait(v_consumer_state)\n")
        rest = "                " + take.strip() + "\n                " + give.strip() + "\n"
    elif where == "products":
        t = sub(t, r"^(    v_ring\.consumer_wait\(v_consumer_state\)\n)", r"\1" + take)
        # behind the issue of S of the next step
        t = sub(t, r"^(    if cutlass\.const_expr\(more\):\n        k_ring\.consumer_wait\(k_consumer_state\)\n        multiply\(.*\n)", r"\1" + give)
        t = sub(t, r"^(            for s_step_2 in)", "            " + give.strip() + r"\n\1")
        t = sub(t, r"^(            for s_step in cutlass\.range\(first_steps, full_steps)", "            " + take.strip() + r"\n\1")
        rest = "                " + take.strip() + "\n                " + give.strip() + "\n"
    t = sub(t, r"^(            for s_step_2 in .*\n)", r"\1" + rest)
    # the producer's own barrier is 4: take others
    t = t.replace("barrier_id=4 + group", "barrier_id=7 + group").replace("barrier_id=5 + group % 3", "barrier_id=8 + group % 3")
    first = "        if group == 1:\n            cute.arch.barrier_arrive(barrier_id=8, number_of_threads=256)\n"
    return sub(t, r"^(        mine = thread - 128\n)", first + r"\1")

def apply(text, names):
    t = joined(text)
    for n in names:
        t = {"both": both, "later": merge_later, "exps": lambda x: turns(x, "exps"), "products": lambda x: turns(x, "products")}[n](t)
    return t

def flight(t):
    """E': O += P V of the last step and S of the next in flight beside the softmax; sums change behind a wait alone."""
    m = re.search(r"^    if new_piece & \(s_step > first_steps\):\n(?:        .*\n)+", t, re.M)
    merge = m.group(0); t = t.replace(merge, "")
    acc = re.search(r"^            if rescales > 0:\n(?:                .*\n)+            else:\n(?:                .*\n)+", merge, re.M)
    rows = merge.replace(acc.group(0), "            weight_a[r], weight_b[r] = alpha_a, alpha_b\n").replace("        rescales = rescales + 1\n", "")
    body = acc.group(0).replace("alpha_a)", "weight_a[r])").replace("alpha_b)", "weight_b[r])")
    late = "    if new_piece & (s_step > first_steps):\n        for r in cutlass.range_constexpr(2):\n" + body + "        rescales = rescales + 1\n"
    q = re.search(r"^    if new_piece:\n(?:        .*\n)+", t, re.M)
    restart = q.group(0); t = t.replace(restart, "")
    k = re.search(r"^    if cutlass\.const_expr\(more\):\n        k_ring\.consumer_wait\(k_consumer_state\)\n        multiply\(.*\n", t, re.M)
    init = ("    weight_a, weight_b = cute.make_rmem_tensor((2,), Float32), cute.make_rmem_tensor((2,), Float32)\n"
            "    weight_a.fill(Float32(1.0))\n    weight_b.fill(Float32(1.0))\n"
            "    scaled_by = cute.make_rmem_tensor((2,), Float32)\n    scaled_by.fill(Float32(1.0))\n"
            "    e_all = cute.make_rmem_tensor((2, 16), Float32)\n")
    t = t.replace(k.group(0), k.group(0) + init + rows + restart)
    t, n = re.subn(r"^( +)for c in cutlass\.range_constexpr\(\d+\):\n +acc_o\[r, c\] = mul\(acc_o\[r, c\], alpha\)\n", r"\1scaled_by[r] = mul(scaled_by[r], alpha)\n", t, flags=re.M)
    assert n == 2, n
    count = re.search(r"for c in cutlass\.range_constexpr\((\d+)\)", body).group(1)
    t = sub(t, r"^            p_bf16\[r, c\] = Float32\(p\[c\]\)\.to\(\w+\)", "            e_all[r, c] = p[c]")
    t = sub(t, r"^                p_bf16\[r, c\] = Float32\(p_2\[c\]\)\.to\(\w+\)", "                e_all[r, c] = p_2[c]")
    wait = ("    if cutlass.const_expr(more):\n        warpgroup.wait_group(1)\n    else:\n        warpgroup.wait_group(0)\n"
            "    if s_step > first_steps:\n        v_ring.consumer_release(v_consumer_state)\n        v_consumer_state.advance()\n"
            + late +
            "    if any_lane((scaled_by[0] != Float32(1.0)) | (scaled_by[1] != Float32(1.0))):\n"
            "        for r in cutlass.range_constexpr(2):\n"
            f"            for c in cutlass.range_constexpr({count}):\n"
            "                acc_o[r, c] = mul(acc_o[r, c], scaled_by[r])\n"
            "    for r in cutlass.range_constexpr(2):\n        for c in cutlass.range_constexpr(16):\n            p_bf16[r, c] = Float32(e_all[r, c]).to(p_bf16.element_type)\n")
    t = sub(t, r"^    v_ring\.consumer_wait\(v_consumer_state\)\n", wait + "    v_ring.consumer_wait(v_consumer_state)\n")
    t = sub(t, r"^    warpgroup\.wait_group\(0\)\n    if cutlass\.const_expr\(more\):\n        k_ring\.consumer_release\(k_consumer_state\)\n        k_consumer_state\.advance\(\)\n    v_ring\.consumer_release\(v_consumer_state\)\n    v_consumer_state\.advance\(\)",
      "    if cutlass.const_expr(more):\n        warpgroup.wait_group(1)\n        k_ring.consumer_release(k_consumer_state)\n        k_consumer_state.advance()\n    else:\n        warpgroup.wait_group(0)\n        v_ring.consumer_release(v_consumer_state)\n        v_consumer_state.advance()")
    return t

EDITS = {"both": both, "later": merge_later, "flight": flight, "exps": lambda x: turns(x, "exps"), "products": lambda x: turns(x, "products")}
def apply(text, names):
    t = joined(text)
    for n in names:
        if n in EDITS: t = EDITS[n](t)
    return t

def dummy(t):
    return sub(t, r"^(            for s_step in cutlass\.range\(first_steps, full_steps)", "            multiply(mma_pv, acc_o_fragment, p_bf16_fragment, v_factor[None, None, None, v_consumer_state.index], True, 1)\n" + r"\1")
EDITS["dummy"] = dummy
def norel(t):
    return sub(t, r"^    if s_step > first_steps:\n        v_ring\.consumer_release", "    if True:\n        v_ring.consumer_release")
EDITS["norel"] = norel

def headwait(t):
    t = sub(t, r"^    if cutlass\.const_expr\(more\):\n        warpgroup\.wait_group\(1\)\n        k_ring\.consumer_release\(k_consumer_state\)\n        k_consumer_state\.advance\(\)\n    else:\n        warpgroup\.wait_group\(0\)\n        v_ring",
      "    if cutlass.const_expr(not more):\n        warpgroup.wait_group(0)\n        v_ring")
    t = sub(t, r"^(    s = \[\[mul\(qk)", "    warpgroup.wait_group(1)\n    k_ring.consumer_release(k_consumer_state)\n    k_consumer_state.advance()\n" + r"\1")
    t = sub(t, r"^            warpgroup\.wait_group\(0\)\n            k_ring\.consumer_release\(k_consumer_state\)\n            k_consumer_state\.advance\(\)\n(            multiply\(mma_pv.*\n)", r"\1")
    return t
EDITS["headwait"] = headwait

PAIR = '''
def multiply_from(unit, to, a, b, first, count):
    # A part of a wgmma group, accumulating.
    atom = cute.make_mma_atom(unit.op)
    atom.set(warpgroup.Field.ACCUMULATE, True)
    warpgroup.fence()
    for i in range(first, first + count):
        cute.gemm(atom, to, a[None, None, i], b[None, None, i], to)
    warpgroup.commit_group()


def scores_of_row(qk, scale_times_log2e, s_begin, quad, end_k_value, until, r, half, masked):
    # Scores of a thread's row in units of ln 2.
    s = []
    for c in range(16):
        x = mul(qk[r, 16 * half + c], scale_times_log2e)
        if masked:
            kv = s_begin + 64 * half + (quad + 8 * (c // 2) + c % 2)
            x = select((kv < end_k_value) & (kv < until[r]), x, Float32(float("-inf")))
        s.append(x)
    return s


def packed(a, b):
    # cvt.rn.bf16x2.f32, in its place.
    from cutlass._mlir.dialects import llvm
    from cutlass.cutlass_dsl import T
    x = llvm.inline_asm(T.i32(), [b.ir_value(), a.ir_value()], "cvt.rn.bf16x2.f32 $0, $1, $2;", "=r,f,f", has_side_effects=True, is_align_stack=False, asm_dialect=llvm.AsmDialect.AD_ATT)
    return Int32(x)


@cute.jit
def chunk_of_pair(
    qk, e, m_piece, l_piece, scaled_by, new_piece, s_begin, scale_times_log2e, quad, end_k_value, until,
    half: cutlass.Constexpr, masked: cutlass.Constexpr
):
    # Online softmax of 64 keys under the maximum as it was, anew where it may not stay.
    scaled_by.fill(Float32(1.0))
    if cutlass.const_expr(half == 0):
        if new_piece:
            for r in cutlass.range_constexpr(2):
                s = scores_of_row(qk, scale_times_log2e, s_begin, quad, end_k_value, until, r, half, masked)
                m_limit = m_piece[r] + Float32(8.0)
                m_chunk = max_over_s_lane(max_over_s_lane_of_thread(s))[0]
                m_grows = m_limit < m_chunk
                m_new = select(m_grows, m_chunk, m_piece[r])
                is_empty = m_new == Float32(float("-inf"))
                m_safe = select(is_empty, Float32(0.0), m_new)
                alpha = exp2(m_piece[r] - m_safe)
                scaled_by[r] = mul(scaled_by[r], alpha)
                l_scaled = mul(l_piece[r], alpha)
                m_piece[r], l_piece[r] = m_new, l_scaled
    parts = cute.make_rmem_tensor((4,), Float32)
    for r in cutlass.range_constexpr(2):
        s = scores_of_row(qk, scale_times_log2e, s_begin, quad, end_k_value, until, r, half, masked)
        p = []
        for c in cutlass.range_constexpr(16):
            p.append(exp2(s[c] - m_piece[r]))
        for c in cutlass.range_constexpr(16):
            e[16 * r + c] = p[c]
        of_row = sum_over_s_lane_of_thread(p)
        for i in cutlass.range_constexpr(2):
            parts[2 * r + i] = of_row[i]
        stays = all_below(of_row, Float32(256.0))
        if any_lane(select(stays, Boolean(False), Boolean(True))):
            again = scores_of_row(qk, scale_times_log2e, s_begin, quad, end_k_value, until, r, half, masked)
            m_limit = m_piece[r] + Float32(8.0)
            m_chunk = max_over_s_lane(max_over_s_lane_of_thread(again))[0]
            m_grows = m_limit < m_chunk
            m_new = select(m_grows, m_chunk, m_piece[r])
            is_empty = m_new == Float32(float("-inf"))
            m_safe = select(is_empty, Float32(0.0), m_new)
            alpha = exp2(m_piece[r] - m_safe)
            scaled_by[r] = mul(scaled_by[r], alpha)
            l_scaled = mul(l_piece[r], alpha)
            m_piece[r], l_piece[r] = m_new, l_scaled
            p_2 = []
            for c in cutlass.range_constexpr(16):
                p_2.append(exp2(again[c] - m_safe))
            for c in cutlass.range_constexpr(16):
                e[16 * r + c] = p_2[c]
            of_row_2 = sum_over_s_lane_of_thread(p_2)
            for i in cutlass.range_constexpr(2):
                parts[2 * r + i] = of_row_2[i]
    l_chunk = sum_over_s_lane([parts[i] for i in range(4)])
    for r in cutlass.range_constexpr(2):
        l_piece[r] = l_piece[r] + l_chunk[r]


@cute.jit
def varlen_attention_pair(
    pair, k_consumer_state, v_consumer_state, rescales, k_ring, v_ring, q_factor, k_factor, v_factor, mma_qk, mma_pv,
    qk_fragment, qk, p_bf16_fragment, p_bf16, m_piece, l_piece, m_before, l_before, acc_o_fragment, acc_o, o_before,
    scaled_b, begin_k_value, scale_times_log2e, quad, end_k_value, until, group,
    masked: cutlass.Constexpr, first: cutlass.Constexpr
):
    # Two chunks of 64 keys: S of both at once; O += P V of the pair before beside their softmax.
    s_begin = begin_k_value + pair * 128
    new_piece = pair % 4 == 0
    weight_a, weight_b = cute.make_rmem_tensor((2,), Float32), cute.make_rmem_tensor((2,), Float32)
    scaled_a = cute.make_rmem_tensor((2,), Float32)
    e = cute.make_rmem_tensor((32,), Float32)
    p_words = cute.recast_tensor(p_bf16_fragment, Int32)
    weight_a.fill(Float32(1.0))
    weight_b.fill(Float32(1.0))
    scaled_a.fill(Float32(1.0))
    if cutlass.const_expr(not first):
        k_ring.consumer_wait(k_consumer_state)
        #TAKE
        multiply(mma_qk, qk_fragment, q_factor[None, None, None, 0], k_factor[None, None, None, k_consumer_state.index], False, E16)
        v_ring.consumer_wait(v_consumer_state)
        multiply_from(mma_pv, acc_o_fragment, p_bf16_fragment, v_factor[None, None, None, v_consumer_state.index], 0, 4)
        #GIVE
        warpgroup.wait_group(1)
        k_ring.consumer_release(k_consumer_state)
        k_consumer_state.advance()
        if new_piece:
            for r in cutlass.range_constexpr(2):
                m = fmax(m_before[r], m_piece[r])
                is_empty = m == Float32(float("-inf"))
                m_safe = select(is_empty, Float32(0.0), m)
                alpha_a = exp2(m_before[r] - m_safe)
                alpha_b = exp2(m_piece[r] - m_safe)
                l_a_scaled = mul(l_before[r], alpha_a)
                l_b_scaled = mul(l_piece[r], alpha_b)
                l = l_a_scaled + l_b_scaled
                weight_a[r], weight_b[r] = alpha_a, alpha_b
                m_piece[r], m_before[r], l_before[r] = Float32(float("-inf")), m, l
    #EXPS
    chunk_of_pair(qk, e, m_piece, l_piece, scaled_a, new_piece, s_begin, scale_times_log2e, quad, end_k_value, until, half=0, masked=masked)
    if cutlass.const_expr(not first):
        warpgroup.wait_group(0)
        if any_lane((scaled_b[0] != Float32(1.0)) | (scaled_b[1] != Float32(1.0))):
            for r in cutlass.range_constexpr(2):
                for c in cutlass.range_constexpr(COLS):
                    acc_o[r, c] = mul(acc_o[r, c], scaled_b[r])
        multiply_from(mma_pv, acc_o_fragment, p_bf16_fragment, v_factor[None, None, None, v_consumer_state.index], 4, 4)
    for b in cutlass.range_constexpr(8):
        for r in cutlass.range_constexpr(2):
            p_words[r + 2 * b + 0] = packed(e[16 * r + 2 * b], e[16 * r + 2 * b + 1])
    chunk_of_pair(qk, e, m_piece, l_piece, scaled_b, new_piece, s_begin, scale_times_log2e, quad, end_k_value, until, half=1, masked=masked)
    #EXPS_END
    if cutlass.const_expr(not first):
        warpgroup.wait_group(0)
        v_ring.consumer_release(v_consumer_state)
        v_consumer_state.advance()
        if new_piece:
            if rescales > 0:
                for r in cutlass.range_constexpr(2):
                    for c in cutlass.range_constexpr(COLS):
                        o_a_scaled = mul(o_before[r, c], weight_a[r])
                        o_b_scaled = mul(acc_o[r, c], weight_b[r])
                        o_before[r, c] = o_a_scaled + o_b_scaled
            else:
                for r in cutlass.range_constexpr(2):
                    for c in cutlass.range_constexpr(COLS):
                        o_a_scaled = mul(negative_zero(), weight_a[r])
                        o_b_scaled = mul(acc_o[r, c], weight_b[r])
                        o_before[r, c] = o_a_scaled + o_b_scaled
            rescales = rescales + 1
        if any_lane((scaled_a[0] != Float32(1.0)) | (scaled_a[1] != Float32(1.0))):
            for r in cutlass.range_constexpr(2):
                for c in cutlass.range_constexpr(COLS):
                    acc_o[r, c] = mul(acc_o[r, c], scaled_a[r])
    for b in cutlass.range_constexpr(8):
        for r in cutlass.range_constexpr(2):
            p_words[r + 2 * b + 16] = packed(e[16 * r + 2 * b], e[16 * r + 2 * b + 1])
    return k_consumer_state, v_consumer_state, rescales


'''
CALL = ("k_consumer_state, v_consumer_state, rescales = varlen_attention_pair(PAIR, k_consumer_state, v_consumer_state, rescales, k_ring, v_ring, q_factor, k_factor, v_factor, mma_qk, mma_pv, "
  "qk_fragment, qk, p_bf16_fragment, p_bf16, m_piece, l_piece, m_before, l_before, acc_o_fragment, acc_o, o_before, scaled_b, begin_k_value, scale_times_log2e, quad, end_k_value, until, group, masked=MASK, first=FIRST)\n")
def pairs(t, how="", stages=None, halves=2):
    """Steps of one or two chunks of 64 keys; O += P V of the step before beside their softmax."""
    keys = 64 * halves
    in_smem = "if rescales > 0:" in t
    e = int(re.search(r"k: b?f16 \[S, H=\d+, E=(\d+)\]", t).group(1))
    w = int(re.search(r"v: b?f16 \[S, H=\d+, W=(\d+)\]", t).group(1))
    groups = int(re.search(r"groups = OperandMajorMode.K, OperandMajorMode.MN, \((\d), 1, 1\)", t).group(1))
    rows = 64 * groups
    old = int(re.search(r"k_ring: cute.struct.MemRange\[Int64, (\d+)\]", t).group(1)) // 2
    new = stages or old // halves
    t = sub(t, r"(\b[kv]_ring: cute\.struct\.MemRange\[Int64, )\d+\]", rf"\g<1>{2 * new}]", 2)
    t = sub(t, r"^(    k: cute.struct.Align\[cute.struct.MemRange\[\w+, )\d+", rf"\g<1>{new * keys * e}")
    t = sub(t, r"^(    v: cute.struct.Align\[cute.struct.MemRange\[\w+, )\d+", rf"\g<1>{new * keys * w}")
    t = sub(t, rf"make_smem_layout_b\(ROW_MAJOR, \({rows}, 64, {e}\), (\w+), {old}\)", rf"make_smem_layout_b(ROW_MAJOR, ({rows}, {keys}, {e}), \1, {new})")
    t = sub(t, rf"make_smem_layout_b\(COL_MAJOR, \({rows}, {w}, 64\), (\w+), {old}\)", rf"make_smem_layout_b(COL_MAJOR, ({rows}, {w}, {keys}), \1, {new})")
    t = sub(t, r"(mma_qk = .*tiler_mn=\(64, )64\)", rf"\g<1>{keys})")
    t = sub(t, rf"num_stages={old},(.*)tx_count=(\d+)", lambda m: f"num_stages={new},{m.group(1)}tx_count={halves * int(m.group(2))}", 2)
    t = sub(t, rf"(PipelineUserType\.(?:Consumer|Producer), ){old}\)", rf"\g<1>{new})", 3)
    t = sub(t, r"seen\[r\] // 64 for", f"seen[r] // {keys} for")
    t = sub(t, r"seen\[r\] \+ 63 for", f"seen[r] + {keys - 1} for")
    t = sub(t, r"seen_plus_63\[r\] // 64 for", f"seen_plus_63[r] // {keys} for")
    t = sub(t, r"^(                s_step_times_64 = s_step \* )64", rf"\g<1>{keys}")
    t = sub(t, rf"\(s_begin, 0\), \(64, {e}\)", f"(s_begin, 0), ({keys}, {e})")
    t = sub(t, rf"\(0, s_begin\), \({w}, 64\)", f"(0, s_begin), ({w}, {keys})")
    t = sub(t, rf"k, cute\.slice_\(layouts\[1\], \(None, None, 0\)\), \(64, {e}\)", f"k, cute.slice_(layouts[1], (None, None, 0)), ({keys}, {e})")
    t = sub(t, rf"v, cute\.slice_\(layouts\[2\], \(None, None, 0\)\), \({w}, 64\)", f"v, cute.slice_(layouts[2], (None, None, 0)), ({w}, {keys})")
    # the step
    m = re.search(r"^@cute\.jit\ndef varlen_attention_step\((?:.*\n)+?(?=^@cute\.kernel)", t, re.M)
    clear = re.search(r"^        if \(end_k_value < s_begin \+ 64\):\n((?:            .*\n)+)", m.group(0), re.M).group(1)
    clear = re.sub(r"range_constexpr\(4\)", f"range_constexpr({4 * halves})", clear, count=1)
    whole = PAIR
    if halves == 1:
        a = whole.index("    if cutlass.const_expr(not first):\n        warpgroup.wait_group(0)\n        if any_lane((scaled_b[0]")
        b = whole.index("    #EXPS_END")
        whole = whole[:a] + whole[b:]
        a = whole.index("    for b in cutlass.range_constexpr(8):\n        for r in cutlass.range_constexpr(2):\n            p_words[r + 2 * b + 16]")
        b = whole.index("    return k_consumer_state, v_con", a)
        whole = whole[:a] + whole[a:b].replace("b + 16]", "b]") + whole[b:]
        whole = whole.replace("pair * 128", "pair * 64").replace("pair % 4", "pair % 8")
    call = CALL
    if not in_smem:
        a = whole.index("            if rescales > 0:\n"); b = whole.index("            else:\n", a); c = whole.index("            rescales = rescales + 1\n")
        inner = whole[a:b].split("\n", 1)[1]
        whole = whole[:a] + "\n".join(x[4:] for x in inner.split("\n")) + whole[c + len("            rescales = rescales + 1\n"):]
        whole = whole.replace("v_consumer_state, rescales, k_ring", "v_consumer_state, k_ring").replace("v_consumer_state, rescales\n", "v_consumer_state\n")
        call = CALL.replace("v_consumer_state, rescales", "v_consumer_state")
    body = whole.replace("E16", str(e // 16)).replace("COLS", str(w // 4)).lstrip("\n")
    take = f"cute.arch.barrier(barrier_id=7 + group, number_of_threads=256)"
    give = f"cute.arch.barrier_arrive(barrier_id=8 + group % {groups}, number_of_threads=256)"
    if how == "turns":
        body = body.replace("#TAKE", take).replace("#GIVE", give)
    elif how == "exps":
        body = body.replace("#EXPS_END", give).replace("#EXPS", take)
    t = t.replace(m.group(0), body)
    t = sub(t, rf"qk_fragment = cute.make_rmem_tensor\(mma_qk.partition_shape_C\(\({rows}, 64\)\)", f"qk_fragment = cute.make_rmem_tensor(mma_qk.partition_shape_C(({rows}, {keys}))")
    t = sub(t, r"qk = by_rows\(qk_fragment, 8\)", f"qk = by_rows(qk_fragment, {8 * halves})")
    t = sub(t, rf"mma_pv\.partition_shape_A\(\({rows}, 64\)\)", f"mma_pv.partition_shape_A(({rows}, {keys}))")
    t = sub(t, r"p_bf16 = by_rows\(p_bf16_fragment, 8\)", f"p_bf16 = by_rows(p_bf16_fragment, {8 * halves})")
    a = t.index("            for s_step in cutlass.range(first_steps, full_steps")
    b = t.index("            for s_step_2 in cutlass.range(last_steps")
    c = lambda pair, mask, first: call.replace("PAIR", pair).replace("MASK", mask).replace("FIRST", first)
    turn = how == "turns"
    loop = ("            scaled_b = cute.make_rmem_tensor((2,), Float32)\n            scaled_b.fill(Float32(1.0))\n            " + c("first_steps", "True", "True")
      + "            for pair in cutlass.range(first_steps + 1, full_steps, unroll=1):\n                " + c("pair", "False", "False")
      + "            for pair in cutlass.range(imax(full_steps, first_steps + 1), last_steps, unroll=1):\n                " + c("pair", "True", "False")
      + "            with cute.arch.elect_one():\n                q_ring.consumer_release(tile_consumer_state)\n"
      + f"            s_begin = begin_k_value + (last_steps - 1) * {keys}\n"
      + "            v_ring.consumer_wait(v_consumer_state)\n"
      + f"            if (end_k_value < s_begin + {keys}):\n" + "".join("    " + x + "\n" for x in clear.splitlines())
      + (f"            {take}\n" if turn else "")
      + "            multiply_from(mma_pv, acc_o_fragment, p_bf16_fragment, v_factor[None, None, None, v_consumer_state.index], 0, 4)\n"
      + (f"            {give}\n" if turn else "")
      + "            warpgroup.wait_group(0)\n"
      + "            if any_lane((scaled_b[0] != Float32(1.0)) | (scaled_b[1] != Float32(1.0))):\n                for r in cutlass.range_constexpr(2):\n"
      + f"                    for c in cutlass.range_constexpr({w // 4}):\n                        acc_o[r, c] = mul(acc_o[r, c], scaled_b[r])\n"
      + "            MORE_multiply_from(mma_pv, acc_o_fragment, p_bf16_fragment, v_factor[None, None, None, v_consumer_state.index], 4, 4)\n"
      + "            warpgroup.wait_group(0)\n            v_ring.consumer_release(v_consumer_state)\n            v_consumer_state.advance()\n")
    if halves == 1:
        x = loop.index("            if any_lane((scaled_b"); y = loop.index("            warpgroup.wait_group(0)\n", x)
        loop = loop[:x] + loop[y + len("            warpgroup.wait_group(0)\n"):]
    loop = loop.replace("MORE_", "")
    t = t[:a] + loop + t[b:]
    if how:
        t = sub(t, r"^(            for s_step_2 in .*\n)", rf"\1                {take}\n                {give}\n")
        t = sub(t, r"^(        mine = thread - 128\n)", "        if group == 1:\n            cute.arch.barrier_arrive(barrier_id=8, number_of_threads=256)\n" + r"\1")
    return t
EDITS["pairs"] = pairs
EDITS["pairs-turns"] = lambda t: pairs(t, "turns")
EDITS["pairs-exps"] = lambda t: pairs(t, "exps")

PACK = '''
def packed(a, b):
    # cvt.rn.bf16x2.f32, in its place.
    from cutlass._mlir.dialects import llvm
    from cutlass.cutlass_dsl import T
    x = llvm.inline_asm(T.i32(), [b.ir_value(), a.ir_value()], "cvt.rn.bf16x2.f32 $0, $1, $2;", "=r,f,f", has_side_effects=True, is_align_stack=False, asm_dialect=llvm.AsmDialect.AD_ATT)
    return Int32(x)


'''
def pack(t):
    t = t.replace("    for r in cutlass.range_constexpr(2):\n        for c in cutlass.range_constexpr(16):\n            p_bf16[r, c] = Float32(e[r, c]).to(p_bf16.element_type)\n",
      "    words = cute.recast_tensor(p_bf16_fragment, Int32)\n    for b in cutlass.range_constexpr(8):\n        for r in cutlass.range_constexpr(2):\n            words[r + 2 * b] = packed(e[r, 2 * b], e[r, 2 * b + 1])\n")
    t = t.replace("    for r in cutlass.range_constexpr(2):\n        for c in cutlass.range_constexpr(16, 32):\n            p_bf16[r, c] = Float32(e[r, c]).to(p_bf16.element_type)\n",
      "    for b in cutlass.range_constexpr(8, 16):\n        for r in cutlass.range_constexpr(2):\n            words[r + 2 * b] = packed(e[r, 2 * b], e[r, 2 * b + 1])\n")
    assert "words[" in t
    return t.replace("def multiply_from(", PACK.strip("\n") + "\n\n\ndef multiply_from(", 1)
EDITS["pack"] = pack

EDITS["one"] = lambda t: pairs(t, halves=1)
EDITS["one-turns"] = lambda t: pairs(t, "turns", halves=1)
EDITS["one-exps"] = lambda t: pairs(t, "exps", halves=1)

def low(t, count=12):
    """The first columns of earlier pieces' sums in shared memory, the others where the compiler keeps them."""
    threads = 256
    t = sub(t, r"^(    epilogue_smem: )", rf"    o_low: cute.struct.Align[cute.struct.MemRange[Float32, {2 * count * threads}], 128]\n\1")
    t = sub(t, r"\bacc_o, o_before,", "acc_o, o_low, o_before,", 2)
    t = sub(t, r"^( +)o_before\[r, c\] = (.*)$", rf"\1if cutlass.const_expr(c < {count}):\n\1    o_low[r, c] = \2\n\1else:\n\1    o_before[r, c] = \2")
    t = sub(t, r"mul\(o_before\[r, c\]", f"mul((o_low if c < {count} else o_before)[r, c]", 2)
    return sub(t, r"^( +)(o_before = by_rows\(o_before_fragment, \d+\)\n)",
        rf"\1\2\1o_low = cute.make_tensor(memory.o_low.data_ptr() + 4 * mine, cute.make_layout((2, (4, {count // 4})), stride=({count * threads}, (1, {4 * threads}))))\n"
        rf"\1for r in cutlass.range_constexpr(2):\n\1    for c in cutlass.range_constexpr({count}):\n\1        o_low[r, c] = negative_zero()\n")
EDITS["low12"] = low
def vone(t):
    """One stage of V; its room for sums of earlier pieces."""
    old = int(re.search(r"v_ring: cute.struct.MemRange\[Int64, (\d+)\]", t).group(1)) // 2
    assert old == 2
    w = int(re.search(r"v: b?f16 \[S, H=\d+, W=(\d+)\]", t).group(1))
    t = sub(t, r"(\bv_ring: cute\.struct\.MemRange\[Int64, )\d+\]", r"\g<1>2]")
    t = sub(t, r"^(    v: cute.struct.Align\[cute.struct.MemRange\[\w+, )\d+", rf"\g<1>{64 * w}")
    t = sub(t, rf"make_smem_layout_b\(COL_MAJOR, \((\d+), {w}, 64\), (\w+), 2\)", rf"make_smem_layout_b(COL_MAJOR, (\1, {w}, 64), \2, 1)")
    t = sub(t, r"(barrier_storage=memory\.v_ring\.data_ptr\(\), num_stages=)2", r"\g<1>1")
    t = sub(t, r"(v_consumer_state = pipeline.make_pipeline_state\(pipeline\.PipelineUserType\.Consumer, )2", r"\g<1>1")
    t = sub(t, r"^( +)(producer_state = pipeline.make_pipeline_state\(pipeline\.PipelineUserType\.Producer, 2\)\n)", r"\1\2\1v_producer_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 1)\n")
    t = sub(t, r"tma_load\(v_ring, producer_state,", "tma_load(v_ring, v_producer_state,")
    t = sub(t, r"^( +)producer_state\.advance\(\)\n", r"\1producer_state.advance()\n\1v_producer_state.advance()\n")
    return t
EDITS["vone"] = vone
EDITS["low28"] = lambda t: low(t, 28)

def local(t):
    """Sums of earlier pieces in an array of local memory, by vectors of 16 bytes."""
    n = int(re.search(r"^( +)o_before = by_rows\(o_before_fragment, (\d+)\)", t, re.M).group(2)) * 2
    a = re.search(r"^( +)o_before_fragment = .*\n +o_before_fragment\.fill.*\n +o_before = by_rows.*\n", t, re.M)
    pad = a.group(1)
    t = t.replace(a.group(0), f"{pad}o_before = cute.make_rmem_tensor(cute.make_layout((4, {n // 2})), Float32)\n"
      f"{pad}for i in cutlass.range_constexpr({n // 2}):\n{pad}    o_vector = cute.make_rmem_tensor((4,), Float32)\n{pad}    o_vector.fill(negative_zero())\n{pad}    cute.autovec_copy(o_vector, o_before[None, first_steps + i])\n")
    def merge(m):
        pad, body = m.group(1), m.group(0)
        la, lb = re.search(r"mul\(o_before\[r, c\], ([\w\[\]]+)\)", body).group(1), re.search(r"mul\(acc_o\[r, c\], ([\w\[\]]+)\)", body).group(1)
        return (f"{pad}for i in cutlass.range_constexpr({n // 4}):\n{pad}    o_vector = cute.make_rmem_tensor((4,), Float32)\n"
          f"{pad}    cute.autovec_copy(o_before[None, first_steps + ({n // 4} * r + i)], o_vector)\n"
          f"{pad}    for j in cutlass.range_constexpr(4):\n{pad}        o_a_scaled = mul(o_vector[j], {la})\n{pad}        o_b_scaled = mul(acc_o[r, 4 * i + j], {lb})\n{pad}        o_vector[j] = o_a_scaled + o_b_scaled\n"
          f"{pad}    cute.autovec_copy(o_vector, o_before[None, first_steps + ({n // 4} * r + i)])\n")
    t, k = re.subn(r"^( +)for c in cutlass\.range_constexpr\(\d+\):\n +o_a_scaled = mul\(o_before\[r, c\].*\n.*\n +o_before\[r, c\] = .*\n", merge, t, flags=re.M)
    assert k == 1
    def end(m):
        pad = m.group(1)
        return (f"{pad}for c in cutlass.range_constexpr({n}):\n{pad}    if cutlass.const_expr(c % 4 == 0):\n{pad}        o_vector = cute.make_rmem_tensor((4,), Float32)\n{pad}        cute.autovec_copy(o_before[None, first_steps + ({n // 4} * r + c // 4)], o_vector)\n"
          f"{pad}    o_a_scaled = mul(o_vector[c % 4], alpha_a)\n")
    t, k = re.subn(r"^( +)for c in cutlass\.range_constexpr\(\d+\):\n +o_a_scaled = mul\(o_before\[r, c\], alpha_a\)\n", end, t, flags=re.M)
    assert k == 1
    if "first_steps" not in re.search(r"def varlen_attention_(?:step|pair)\((.*?)\):", t, re.S).group(1):
        t = t.replace("scaled_b, begin_k_value,", "scaled_b, first_steps, begin_k_value,")
    return t
EDITS["local"] = local

def early(t):
    """P is written before sums of earlier pieces are merged."""
    c = re.search(r"^    for b in cutlass\.range_constexpr\(8\):\n        for r in .*\n            p_words\[.*\n(?=    return k_con)", t, re.M).group(0)
    t = t.replace(c, "")
    a = "        warpgroup.wait_group(0)\n        v_ring.consumer_release(v_consumer_state)\n        v_consumer_state.advance()\n"
    assert t.count(a) == 1
    return t.replace(a, a + c + "    if cutlass.const_expr(not first):\n")
EDITS["early"] = early

def scratch(t, batch=8):
    """Sums of earlier pieces in memory of their own (behind the work counter), by vectors of 16 bytes."""
    n = int(re.search(r"^( +)o_before = by_rows\(o_before_fragment, (\d+)\)", t, re.M).group(2)) * 2
    a = re.search(r"^( +)o_before_fragment = .*\n +o_before_fragment\.fill.*\n +o_before = by_rows.*\n", t, re.M)
    pad = a.group(1)
    pair = "varlen_attention_pair" in t
    step = "pair" if pair else "s_step"
    t = t.replace(a.group(0), f"{pad}o_before = cute.make_tensor(cute.recast_ptr((varlen_attention_work_counter + 64 + block * {256 * 2 * n} + 4 * mine).align(16), dtype=Float32), cute.make_layout((4, {n // 2}), stride=(1, {4 * 256})))\n")
    def merge(m):
        pad, body = m.group(1), m.group(0)
        la, lb = re.search(r"mul\(o_before\[r, c\], ([\w\[\]]+)\)", body).group(1), re.search(r"mul\(acc_o\[r, c\], ([\w\[\]]+)\)", body).group(1)
        def loop(pad, some):
            load = (f"{pad}    for i in cutlass.range_constexpr({batch}):\n{pad}        cute.autovec_copy(o_before[None, {n // 4} * r + {batch} * j + i], o_vectors[None, i])\n" if some else
                    f"{pad}    o_vectors.fill(negative_zero())\n")
            return (f"{pad}for j in cutlass.range_constexpr({n // 4 // batch}):\n{pad}    o_vectors = cute.make_rmem_tensor((4, {batch}), Float32)\n" + load +
              f"{pad}    for i in cutlass.range_constexpr({batch}):\n{pad}        for c in cutlass.range_constexpr(4):\n"
              f"{pad}            o_a_scaled = mul(o_vectors[c, i], {la})\n{pad}            o_b_scaled = mul(acc_o[r, 4 * ({batch} * j + i) + c], {lb})\n{pad}            o_vectors[c, i] = o_a_scaled + o_b_scaled\n"
              f"{pad}        cute.autovec_copy(o_vectors[None, i], o_before[None, {n // 4} * r + {batch} * j + i])\n")
        return f"{pad}if {step} - first_steps > 8:\n" + loop(pad + "    ", True) + f"{pad}else:\n" + loop(pad + "    ", False)
    t, k = re.subn(r"^( +)for c in cutlass\.range_constexpr\(\d+\):\n +o_a_scaled = mul\(o_before\[r, c\].*\n.*\n +o_before\[r, c\] = .*\n", merge, t, flags=re.M)
    assert k == 1
    def end(m):
        pad = m.group(1)
        return (f"{pad}o_row = cute.make_rmem_tensor((4, {n // 4}), Float32)\n{pad}o_row.fill(negative_zero())\n{pad}if (last_steps - 1) // 8 > first_steps // 8:\n"
          f"{pad}    for i in cutlass.range_constexpr({n // 4}):\n{pad}        cute.autovec_copy(o_before[None, {n // 4} * r + i], o_row[None, i])\n"
          f"{pad}for c in cutlass.range_constexpr({n}):\n{pad}    o_a_scaled = mul(o_row[c % 4, c // 4], alpha_a)\n")
    t, k = re.subn(r"^( +)for c in cutlass\.range_constexpr\(\d+\):\n +o_a_scaled = mul\(o_before\[r, c\], alpha_a\)\n", end, t, flags=re.M)
    assert k == 1
    if pair:
        t = t.replace("scaled_b, begin_k_value,", "scaled_b, first_steps, begin_k_value,")
    return t
EDITS["scratch"] = scratch
EDITS["scratch4"] = lambda t: scratch(t, 4)


# --- order of issue: products of a group next to each other, nothing between them ---

STEP = r"^@cute\.jit\ndef varlen_attention_step\((?:.*\n)+?(?=^@cute\.kernel)"
V_WAIT = "    v_ring.consumer_wait(v_consumer_state)\n"
SCORES = r"^    if cutlass\.const_expr\(more\):\n        k_ring\.consumer_wait\(k_consumer_state\)\n        multiply\(.*\n"
SUMS = r"^    l_chunk = sum_over_s_lane\(.*\n    l_new = .*\n    for r in .*\n        l_piece\[r\] = l_new\[r\]\n"
ROWS = r"^    for r in cutlass\.range_constexpr\(2\):\n        p = \[\]\n(?:        .*\n)+"


def in_step(t, edit):
    m = re.search(STEP, t, re.M)
    return t.replace(m.group(0), edit(m.group(0)))


def first(t):
    """V is waited for right behind the issue of S: a branch, over which the compiler moves no product."""
    def edit(s):
        assert s.count(V_WAIT) == 1
        k = re.search(SCORES, s, re.M).group(0)
        return s.replace(V_WAIT, "").replace(k, k + V_WAIT)
    return in_step(t, edit)
EDITS["first"] = first


def before(t):
    """V is waited for right before O += P V, as it was."""
    def edit(s):
        assert s.count(V_WAIT) == 1
        clear = re.search(r"^    if cutlass\.const_expr\(masked\):\n        if \(end_k_value", s, re.M).group(0)
        return s.replace(V_WAIT, "").replace(clear, V_WAIT + clear)
    return in_step(t, edit)
EDITS["before"] = before


def carry(t):
    """Row sums of a step are exchanged in the next, beside its exponentials; after `first`."""
    found = []
    def edit(s):
        l = re.search(SUMS, s, re.M).group(0)
        found.append(l)
        s = s.replace(l, "")
        s = sub(s, r"^    l_chunk_parts = cute.*\n", "")
        s = sub(s, r"\bl_piece, m_before\b", "l_piece, l_chunk_parts, m_before")
        inner = "".join("    " + x + "\n" for x in l.splitlines())
        s = sub(s, r"^    if new_piece & \(s_step > first_steps\):\n", lambda m: m.group(0) + inner + "        l_chunk_parts.fill(Float32(0.0))\n")
        k = re.search(SCORES, s, re.M).group(0)
        assert k + V_WAIT in s
        return s.replace(k + V_WAIT, k + V_WAIT + l)
    t = in_step(t, edit)
    t = sub(t, r"\bl_piece, m_before\b", "l_piece, l_chunk_parts, m_before", 3)
    made = r"\1l_chunk_parts = cute.make_rmem_tensor((4,), Float32)\n\1l_chunk_parts.fill(Float32(0.0))\n\1\2"
    t = sub(t, r"^(            )(rescales = Int32\(0\)\n)", made)
    last = "".join("        " + x + "\n" for x in found[0].splitlines())
    return sub(t, r"^(            for s_step_2 in .*\n)", lambda m: last + m.group(1))
EDITS["carry"] = carry


def joint(t):
    """Both rows of a thread have their numerators before one vote."""
    def edit(s):
        a = re.search(ROWS, s, re.M).group(0)
        i, j = a.index("        # numerators that sum"), a.index("        if any_lane(")
        new = (a[:i] + "    stays = all_below([l_chunk_parts[i] for i in range(4)], Float32(256.0))\n"
            "    if any_lane(select(stays, Boolean(False), Boolean(True))):\n        for r in cutlass.range_constexpr(2):\n"
            + a[j:].split("\n", 1)[1])
        return s.replace(a, new)
    return in_step(t, edit)
EDITS["joint"] = joint


def early(t):
    """Scores of the next step are scaled beside O += P V of this one."""
    def edit(s):
        m = re.search(r"^    s = (\[\[mul\(qk.*\]) for r in range\(2\)\].*\n", s, re.M)
        s = s.replace(m.group(0), "    s = [[s_next[r, c] for c in range(16)] for r in range(2)]\n")
        old = "    warpgroup.wait_group(0)\n    if cutlass.const_expr(more):\n        k_ring.consumer_release(k_consumer_state)\n        k_consumer_state.advance()\n"
        assert old in s
        new = ("    if cutlass.const_expr(more):\n        warpgroup.wait_group(1)\n        k_ring.consumer_release(k_consumer_state)\n        k_consumer_state.advance()\n"
            "        for r in cutlass.range_constexpr(2):\n            for c in cutlass.range_constexpr(16):\n                s_next[r, c] = mul(qk[r, c], scale_times_log2e)\n"
            "    warpgroup.wait_group(0)\n")
        return sub(s.replace(old, new), r"\bqk_fragment, qk,", "qk_fragment, qk, s_next,")
    t = in_step(t, edit)
    t = sub(t, r"\bqk_fragment, qk, p_", "qk_fragment, qk, s_next, p_", 3)
    a = t.index("            for s_step in cutlass.range(first_steps, full_steps")
    begin = ("            s_next = cute.make_rmem_tensor((2, 16), Float32)\n            for r in cutlass.range_constexpr(2):\n"
        "                for c in cutlass.range_constexpr(16):\n                    s_next[r, c] = mul(qk[r, c], scale_times_log2e)\n")
    return t[:a] + begin + t[a:]
EDITS["early-s"] = early


def in_turn(t, where):
    """A warpgroup at a time: rows: computes its exponentials; pv: issues P V; both: issues P V and then S."""
    take = "    cute.arch.barrier(barrier_id=7 + group, number_of_threads=256)\n"
    give = "    cute.arch.barrier_arrive(barrier_id=8 + group % 3, number_of_threads=256)\n"
    def edit(s):
        rows = re.search(ROWS, s, re.M).group(0)
        pv = re.search(r"^    multiply\(mma_pv.*\n", s, re.M).group(0)
        if where == "rows":
            clear = re.search(r"^    if cutlass\.const_expr\(masked\):\n        if \(end_k_value", s, re.M).group(0)
            return s.replace(rows, take + rows).replace(clear, give + clear)
        return s.replace(pv, take + pv + give)
    t = in_step(t, edit)
    both = "                " + take.strip() + "\n                " + give.strip() + "\n"
    t = sub(t, r"^(            for s_step_2 in .*\n)", lambda m: m.group(1) + both)
    begin = "        if group == 1:\n            cute.arch.barrier_arrive(barrier_id=8, number_of_threads=256)\n"
    return sub(t, r"^(        mine = thread - 128\n)", lambda m: begin + m.group(1))
EDITS["rows-turn"] = lambda t: in_turn(t, "rows")
EDITS["pv-turn"] = lambda t: in_turn(t, "pv")


def planned(names):
    """Change the plans of this process."""
    import rlk.schedule.attention as schedules
    from rlk.lower.cute.attention import plan

    if "last" in names:
        plan.AttentionPlan.maximum_last = property(lambda self: self.dynamic_schedule)
    if {"scratch", "scratch4"} & set(names):
        from rlk.lower.common.emitted import From
        from rlk.runtime.binding import host_stub

        plain = host_stub._argument
        words = f"zeros({128 + 160 * 256 * 128}, dtype=words, device=device)"
        host_stub._argument = lambda v, *a: words if v is From.WORK_COUNTER else plain(v, *a)
    if "rows2" in names:
        made = tuple(replace(x, rows=128, stages=4 if x.most == 128 else x.stages) for x in schedules.table())
        schedules.table = lambda: made
        plan.AttentionPlan.dynamic_schedule = property(lambda self: self.ahead and self.by_tma)


def edited(names):
    """Edit what the lowering writes."""
    from rlk.lower import cute

    real = cute.lower

    def changed(*args, **kwargs):
        emitted = real(*args, **kwargs)
        return replace(emitted, source=apply(emitted.source, names)) if names else emitted

    cute.lower = changed


def child(dim, form, seconds):
    """Compile, launch, print a digest of the bits, and a time for each line that is read."""
    import torch

    from benchmarks import bench_attention
    from benchmarks.cliffs import case_of, lengths_of
    from benchmarks.shapes import fixed
    from benchmarks.timing import measure

    names = [x for x in form.split("+") if x != "plain"]
    row = next((r for r in fixed() if r.op == "varlen_attention" and r.passes == "fwd" and r.shape["d"] == dim), None)
    torch.manual_seed(0)
    if not dim:
        if form == "paged-threads":
            from rlk.lower.cute.attention import plan
            from rlk.schedule import attention
            plan.paged_tma_tile_of = lambda *a: None
            attention.whole_pages = lambda kernel: False
        case = bench_attention.pages(8, 8192, 1024)
        launch = case.peers["fa4_cute"]() if form == "fa4-paged" else case.rlk()
        got = launch()
        digest = "-"
        if form != "fa4-paged":
            torch.cuda.synchronize()
            digest = hashlib.blake2b(got.o.cpu().view(torch.int16).numpy().tobytes()).hexdigest()[:12]
        del got
    elif form in ("fa4", "unmerged"):
        heads = tuple(row.shape[n] for n in ("Hq", "Hk", "d"))
        x = bench_attention.packed(lengths_of(row), heads)
        launch = bench_attention.fa4_cute(x) if form == "fa4" else bench_attention.unmerged(x)
        launch()
        digest = "-"
    else:
        planned(names)
        edited([x for x in names if x in EDITS])
        launch = case_of(row).rlk
        launch = launch()
        got = launch()
        torch.cuda.synchronize()
        bits = hashlib.blake2b(got.o.cpu().view(torch.int16).numpy().tobytes())
        bits.update(got.lse.cpu().view(torch.int32).numpy().tobytes())
        again = launch()
        same = torch.equal(again.o.view(torch.int16), got.o.view(torch.int16))
        digest = bits.hexdigest()[:12] + ("" if same else " RUNS DIFFER")
        del got, again
    torch.cuda.synchronize()
    print(f"ready {digest}", flush=True)
    for _ in sys.stdin:
        found = measure(launch, seconds=seconds)
        torch.cuda.synchronize()
        print(f"{found.ms:.4f} {found.burst_ms:.4f}", flush=True)


def answer(process, seconds):
    """Return a line of a child, or what ended it."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        ready, _, _ = selecting.select([process.stdout], [], [], max(0.0, until - time.monotonic()))
        if ready:
            line = process.stdout.readline()
            if not line:
                return "ended"
            if line.startswith("ready ") or re.match(r"\d+\.\d+ \d", line):
                return line.strip()
    return "no answer"


def main():
    """Compare from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("dim", type=int, help="head dim of a row of known cliffs")
    parser.add_argument("forms", nargs="+")
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--limit", type=float, default=80.0, help="seconds until a first launch must be done")
    parser.add_argument("--child", action="store_true")
    options = parser.parse_args()
    if options.child:
        child(options.dim, options.forms[0], options.seconds)
        return
    children, begun = {}, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for form in options.forms:
            own = {**__import__("os").environ, "RLK_CACHE_DIR": f"{folder}/{form}", "RLK_BACKEND": "cute"}
            command = [sys.executable, "-m", "benchmarks.attention_forms", str(options.dim), form, "--child"]
            command += ["--seconds", str(options.seconds)]
            log = open(f"{folder}/{form}.log", "w")
            children[form] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=own
            )
        digests = {f: answer(p, options.limit - (time.monotonic() - begun)) for f, p in children.items()}
        for form, found in digests.items():
            if not found.startswith("ready"):
                children[form].kill()
                print(f"{form}: {found}: {Path(folder, form + '.log').read_text()[-700:]}", flush=True)
        live = [form for form in children if digests[form].startswith("ready")]
        times = {form: [] for form in live}
        for _ in range(2):
            for form in live:
                try:
                    children[form].stdin.write("\n")
                    children[form].stdin.flush()
                    times[form].append(answer(children[form], 15))
                except OSError as error:
                    times[form].append(str(error))
        for form in live:
            print(f"d={options.dim:4d}  {'   '.join(times[form]):40s} {digests[form][6:]:14s} {form}", flush=True)
        for process in children.values():
            process.kill()


if __name__ == "__main__":
    main()
