"""linear_logp_grad on gfx942, written by rlk 0.1.0: do not edit.

numerics: 1b7b152489be273c
schedule: tiles D=2048, 4 warps, 1 stages, unroll 1
schedule: tiles T.within=64, V.within=64, 4 warps, 1 stages, unroll 1, depth 32, group 1 placed V.within[5:0]
    T.within[5:4]
schedule: tiles D=64, T.within=64, 4 warps, 1 stages, unroll 1, depth 32, group 1 placed D[5:0] T.within[5:4]
schedule: tiles D=64, T.within=64, 4 warps, 1 stages, unroll 1, depth 32, group 1 placed D[5:0] T.within[5:4]
schedule: tiles D=64, T.within=64, 4 warps, 1 stages, unroll 1, depth 32, group 1 placed D[5:0] T.within[5:4]
schedule: tiles D=64, T.within=64, 4 warps, 1 stages, unroll 1, depth 32, group 1 placed D[5:0] T.within[5:4]
schedule: tiles D=64, V.within=64, 4 warps, 1 stages, unroll 1, depth 32, group 1 placed D[5:0] V.within[5:4]
inputs:
  hidden: bf16 [T, D=4096]
  ids: i64 [T]
  order: i64 [T]
  weight: bf16 [V=128256, D=4096]
  lse: f32 [T]
  entropy: f32 [T]
  d_logp: f32 [T]
  d_lse: f32 [T]
  d_entropy: f32 [T]
outputs:
  d_hidden: bf16 [T, D=4096]
  d_weight: bf16 [V=128256, D=4096]
scalars:
  ignore_index: i64
  inv_temperature: f32
"""

import struct

import tilelang.language as tl


def memory(name, dtype):
    """The elements of a tensor in a row: addresses are counted from the first."""
    return tl.Tensor((tl.dynamic(f"{name}_size", "int64"),), dtype)


def f32(number):
    """A constant by its bits: HIP text has seven digits, and a sum with 0.0 would be folded away."""
    return tl.reinterpret(tl.uint32(struct.unpack("<I", struct.pack("<f", number))[0]), "float32")


@tl.macro
def as_variable(x):
    # A variable: the text of a value without one is copied to each of its uses.
    variable = tl.alloc_var(x.dtype, x)
    return variable


@tl.macro
def bits_of(x):
    # The bits of an f32 as an i32.
    return tl.reinterpret(x, "int32")


@tl.macro
def fma(a, b, c):
    # a * b + c with one rounding.
    return tl.call_extern("float32", "fmaf", a, b, c)


@tl.macro
def is_nan(x):
    # By the bits: the compiler folds x != x.
    return (bits_of(x) & 0x7FFFFFFF) > 0x7F800000


@tl.macro
def number_of(i):
    # The f32 of these bits.
    return tl.reinterpret(i, "float32")


@tl.macro
def portable_exp2(x):
    # 2**x. Exact for integers; results below 2**-126 are +0, as on the hardware it stands in for.
    y0 = tl.alloc_var("float32", smaller(x, f32(127.0)))
    y1 = tl.alloc_var("float32", y0 + f32(12582912.0))
    y2 = tl.alloc_var("float32", y1 - f32(12582912.0))
    y3 = tl.alloc_var("float32", x - y2)
    y4 = tl.alloc_var("float32", fma(f32(0.00018058953), y3, f32(0.0013314332)))
    y5 = tl.alloc_var("float32", fma(y4, y3, f32(0.009607519)))
    y6 = tl.alloc_var("float32", fma(y5, y3, f32(0.055505678)))
    y7 = tl.alloc_var("float32", fma(y6, y3, f32(0.24022758)))
    y8 = tl.alloc_var("float32", fma(y7, y3, f32(0.6931471)))
    y9 = tl.alloc_var("float32", fma(y8, y3, f32(1.0)))
    i10 = tl.alloc_var("int32", bits_of(y1))
    i11 = tl.alloc_var("int32", i10 << 23)
    i12 = tl.alloc_var("int32", i11 + tl.int32(1065353216))
    y13 = tl.alloc_var("float32", number_of(i12))
    y14 = tl.alloc_var("float32", y9 * y13)
    y15 = tl.alloc_var("float32", tl.Select(x < f32(-126.0), f32(0.0), y14))
    return y15


@tl.macro
def smaller(a, b):
    # NaN loses, -0.0 < +0.0: of two equal numbers, the sign that one has.
    same = number_of(bits_of(a) | bits_of(b))
    other = tl.Select(a == b, same, tl.Select(is_nan(a), b, a))
    return as_variable(tl.Select(b < a, b, tl.Select(a < b, a, other)))


@tl.prim_func
def linear_logp_grad_1(
    hidden: memory("hidden", "bfloat16"), ids: memory("ids", "int64"), order: memory("order", "int64"),
    rows: memory("rows", "bfloat16"), hidden_t_stride: tl.int64, rows_t_within_stride: tl.int64, T_length: tl.int32,
    ignore_index: tl.int64, T_piece: tl.int32, programs: tl.int32
):
    # A block owns 1 of T.within, 2048 of D (rows). D: 2048 indices, 8 to each of 256 threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        d = tl.alloc_local((8,), "int32")
        hidden_value = tl.alloc_local((8,), "bfloat16")
        rows_value = tl.alloc_local((8,), "bfloat16")
        rest = tl.truncdiv(block, 2)
        t_within = rest
        for c in tl.unroll(8):
            d[c] = tl.truncmod(block, 2) * 2048 + thread + c * 256
        T_piece_value = tl.alloc_var("int32", T_piece)
        t_piece_begin = tl.alloc_var("int32", T_piece_value * 8192)
        t = tl.alloc_var("int32", t_piece_begin + t_within)
        order_value = tl.alloc_var("int64", order[t])  # linear_logp.py:131
        ids_value = tl.alloc_var("int64", ids[order_value])
        for c in tl.unroll(8):  # linear_logp.py:138
            hidden_value[c] = hidden[order_value * hidden_t_stride + d[c]]
        ignore_index_value = tl.alloc_var("int64", ignore_index)
        active = tl.alloc_var("bool", ids_value != ignore_index_value)  # logp.py:207
        _0_bf16 = tl.alloc_var("bfloat16", tl.Cast("bfloat16", f32(0.0)))  # linear_logp.py:138
        for c in tl.unroll(8):
            rows_value[c] = tl.Select(active, hidden_value[c], _0_bf16)
            rows[tl.int64(t_within) * rows_t_within_stride + d[c]] = rows_value[c]


@tl.prim_func
def linear_logp_grad_2(
    weight: memory("weight", "bfloat16"), ids: memory("ids", "int64"), lse: memory("lse", "float32"),
    entropy: memory("entropy", "float32"), order: memory("order", "int64"), d_logp: memory("d_logp", "float32"),
    d_lse: memory("d_lse", "float32"), d_entropy: memory("d_entropy", "float32"), rows: memory("rows", "bfloat16"),
    dz: memory("dz", "bfloat16"), T_length: tl.int32, rows_t_within_stride: tl.int64, weight_v_stride: tl.int64,
    dz_t_within_stride: tl.int64, inv_temperature: tl.float32, ignore_index: tl.int64, T_piece: tl.int32,
    V_piece: tl.int32, programs: tl.int32
):
    # A block owns 64 of T.within, 64 of V.within (dot_map). T.within: 64 indices, 16 to each of 4 threads; V.within: 64
    # indices, 1 to each of 64 threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        t_within = tl.alloc_local((16,), "int32")
        t_within_inside = tl.alloc_local((16,), "bool")
        t = tl.alloc_local((16,), "int32")
        order_value = tl.alloc_local((16,), "int64")
        ids_value = tl.alloc_local((16,), "int64")
        active = tl.alloc_local((16,), "bool")
        acc_sums = tl.alloc_fragment((64, 64), "float32")
        acc_tile = tl.alloc_shared((64, 64), "float32", "shared")
        rows_start = tl.alloc_shared((64,), "int64", "shared")
        t_within_place = tl.alloc_local((16,), "int32")
        weight_start = tl.alloc_shared((64,), "int64", "shared")
        rows_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        weight_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        t_within_place_2 = tl.alloc_local((16,), "int32")
        acc = tl.alloc_local((16,), "float32")
        lse_value = tl.alloc_local((16,), "float32")
        entropy_value = tl.alloc_local((16,), "float32")
        d_logp_value = tl.alloc_local((16,), "float32")
        d_lse_value = tl.alloc_local((16,), "float32")
        d_entropy_value = tl.alloc_local((16,), "float32")
        z = tl.alloc_local((16,), "float32")
        centred = tl.alloc_local((16,), "float32")
        centred_times_log2e = tl.alloc_local((16,), "float32")
        p = tl.alloc_local((16,), "float32")
        d_lse_minus_d_logp = tl.alloc_local((16,), "float32")
        dz_value = tl.alloc_local((16,), "float32")
        p_is_0 = tl.alloc_local((16,), "bool")
        d_entropy_times_p = tl.alloc_local((16,), "float32")
        centred_plus_entropy = tl.alloc_local((16,), "float32")
        dz_product = tl.alloc_local((16,), "float32")
        dz_product_or_0 = tl.alloc_local((16,), "float32")
        dz_value_2 = tl.alloc_local((16,), "float32")
        ids_ge_0 = tl.alloc_local((16,), "bool")
        inside_below = tl.alloc_local((16,), "bool")
        inside = tl.alloc_local((16,), "bool")
        ids_masked = tl.alloc_local((16,), "int64")
        ids_i32 = tl.alloc_local((16,), "int32")
        dz_equal = tl.alloc_local((16,), "bool")
        d_logp_masked = tl.alloc_local((16,), "float32")
        dz_value_3 = tl.alloc_local((16,), "float32")
        dz_times_inv_temperature = tl.alloc_local((16,), "float32")
        grad = tl.alloc_local((16,), "float32")
        grad_bf16 = tl.alloc_local((16,), "bfloat16")
        rest = tl.truncdiv(block, 251)
        for c in tl.unroll(16):
            t_within[c] = rest * 64 + thread // 64 * 16 + c
            t_within_inside[c] = t_within[c] < T_length
        v_within = tl.truncmod(block, 251) * 64 + thread % 64
        v_within_inside = v_within < 16032
        writes = (thread & 63) == 0
        writes_2 = (thread & 192) == 0
        T_piece_value = tl.alloc_var("int32", T_piece)
        t_piece_begin = tl.alloc_var("int32", T_piece_value * 8192)
        for c in tl.unroll(16):
            t[c] = t_piece_begin + t_within[c]
        V_piece_value = tl.alloc_var("int32", V_piece)
        v_piece_begin = tl.alloc_var("int32", V_piece_value * 16032)
        v = tl.alloc_var("int32", v_piece_begin + v_within)
        for c in tl.unroll(16):  # linear_logp.py:131
            order_value[c] = tl.if_then_else(t_within_inside[c], order[t[c]], tl.Cast("int64", 0))
            ids_value[c] = tl.if_then_else(t_within_inside[c], ids[order_value[c]], tl.Cast("int64", 0))
        inv_temperature_value = tl.alloc_var("float32", inv_temperature)
        ignore_index_value = tl.alloc_var("int64", ignore_index)
        for c in tl.unroll(16):  # logp.py:207
            active[c] = ids_value[c] != ignore_index_value
            t_within_place[c] = thread // 64 * 16 + c  # linear_logp.py:140
            if writes:
                rows_start[t_within_place[c]] = tl.Select(
                    t_within_inside[c], tl.int64(tl.int64(t_within[c]) * rows_t_within_stride), tl.int64(-1)
                )
        v_within_place = thread % 64
        if writes_2:
            weight_start[v_within_place] = tl.Select(
                v_within_inside, tl.int64(tl.int64(v) * weight_v_stride), tl.int64(-1)
            )
        tl.clear(acc_sums)
        tl.sync_threads()
        for d_step in tl.serial(0, 128):
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at // 32, d_step * 32 + at % 32
                rows_tile[row, at % 32] = tl.if_then_else(
                    (rows_start[row] != -1) & (k < 4096), rows[rows_start[row] + k], tl.Cast("bfloat16", 0)
                )
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at // 32, d_step * 32 + at % 32
                weight_tile[row, at % 32] = tl.if_then_else(
                    (weight_start[row] != -1) & (k < 4096), weight[weight_start[row] + k], tl.Cast("bfloat16", 0)
                )
            tl.sync_threads()
            tl.gemm(rows_tile, weight_tile, acc_sums, transpose_B=True)
            tl.sync_threads()
        tl.copy(acc_sums, acc_tile)
        tl.sync_threads()
        for c in tl.unroll(16):
            t_within_place_2[c] = thread // 64 * 16 + c
        v_within_place_2 = thread % 64
        for c in tl.unroll(16):
            acc[c] = acc_tile[t_within_place_2[c], v_within_place_2]
            # linear_logp.py:131
            lse_value[c] = tl.if_then_else(t_within_inside[c], lse[order_value[c]], tl.Cast("float32", 0))
            entropy_value[c] = tl.if_then_else(t_within_inside[c], entropy[order_value[c]], tl.Cast("float32", 0))
            d_logp_value[c] = tl.if_then_else(t_within_inside[c], d_logp[order_value[c]], tl.Cast("float32", 0))
            d_lse_value[c] = tl.if_then_else(t_within_inside[c], d_lse[order_value[c]], tl.Cast("float32", 0))
            d_entropy_value[c] = tl.if_then_else(t_within_inside[c], d_entropy[order_value[c]], tl.Cast("float32", 0))
            z[c] = acc[c] * inv_temperature_value  # logp.py:57
            centred[c] = z[c] - lse_value[c]  # logp.py:193
            centred_times_log2e[c] = centred[c] * f32(1.4426950216293335)  # logp.py:194
            p[c] = portable_exp2(centred_times_log2e[c])
            d_lse_minus_d_logp[c] = d_lse_value[c] - d_logp_value[c]  # logp.py:215
            dz_value[c] = p[c] * d_lse_minus_d_logp[c]  # logp.py:195
            p_is_0[c] = p[c] == f32(0.0)  # logp.py:198
            d_entropy_times_p[c] = d_entropy_value[c] * p[c]
            centred_plus_entropy[c] = centred[c] + entropy_value[c]
            dz_product[c] = d_entropy_times_p[c] * centred_plus_entropy[c]
            dz_product_or_0[c] = tl.Select(p_is_0[c], f32(0.0), dz_product[c])
            dz_value_2[c] = dz_value[c] - dz_product_or_0[c]
            ids_ge_0[c] = 0 <= ids_value[c]  # logp.py:200
            inside_below[c] = ids_value[c] < 128256
            inside[c] = ids_ge_0[c] & inside_below[c]
            ids_masked[c] = tl.Select(inside[c], ids_value[c], tl.int64(-1))  # logp.py:201
            ids_i32[c] = tl.Cast("int32", ids_masked[c])
            dz_equal[c] = v == ids_i32[c]
            d_logp_masked[c] = tl.Select(dz_equal[c], d_logp_value[c], f32(0.0))
            dz_value_3[c] = dz_value_2[c] + d_logp_masked[c]
            dz_times_inv_temperature[c] = dz_value_3[c] * inv_temperature_value  # logp.py:63
            grad[c] = tl.Select(active[c], dz_times_inv_temperature[c], f32(0.0))  # linear_logp.py:146
            grad_bf16[c] = tl.Cast("bfloat16", grad[c])  # linear_logp.py:149
            if t_within_inside[c] & v_within_inside:
                dz[tl.int64(t_within[c]) * dz_t_within_stride + v_within] = grad_bf16[c]


@tl.prim_func
def linear_logp_grad_3_0(
    weight: memory("weight", "bfloat16"), dz: memory("dz", "bfloat16"), merged_3_0: memory("merged_3_0", "float32"),
    T_length: tl.int32, dz_t_within_stride: tl.int64, weight_v_stride: tl.int64, merged_3_0_t_within_stride: tl.int64,
    V_piece: tl.int32, programs: tl.int32
):
    # A block owns 64 of T.within, 64 of D (dot_map). T.within: 64 indices, 16 to each of 4 threads; D: 64 indices, 1 to
    # each of 64 threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        t_within = tl.alloc_local((16,), "int32")
        t_within_inside = tl.alloc_local((16,), "bool")
        d_hidden_sums = tl.alloc_fragment((64, 64), "float32")
        d_hidden_tile = tl.alloc_shared((64, 64), "float32", "shared")
        dz_start = tl.alloc_shared((64,), "int64", "shared")
        t_within_place = tl.alloc_local((16,), "int32")
        weight_start = tl.alloc_shared((64,), "int64", "shared")
        dz_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        weight_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        t_within_place_2 = tl.alloc_local((16,), "int32")
        d_hidden = tl.alloc_local((16,), "float32")
        rest = tl.truncdiv(block, 64)
        for c in tl.unroll(16):
            t_within[c] = rest * 64 + thread // 64 * 16 + c
            t_within_inside[c] = t_within[c] < T_length
        d = tl.truncmod(block, 64) * 64 + thread % 64
        writes = (thread & 63) == 0
        writes_2 = (thread & 192) == 0
        V_piece_value = tl.alloc_var("int32", V_piece)
        v_piece_begin = tl.alloc_var("int32", V_piece_value * 16032)
        for c in tl.unroll(16):  # linear_logp.py:152
            t_within_place[c] = thread // 64 * 16 + c
            if writes:
                dz_start[t_within_place[c]] = tl.Select(
                    t_within_inside[c], tl.int64(tl.int64(t_within[c]) * dz_t_within_stride), tl.int64(-1)
                )
        d_place = thread % 64
        if writes_2:
            weight_start[d_place] = tl.int64(d + tl.int64(v_piece_begin) * weight_v_stride)
        tl.clear(d_hidden_sums)
        tl.sync_threads()
        for v_within_step in tl.serial(0, 501):
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at // 32, v_within_step * 32 + at % 32
                dz_tile[row, at % 32] = tl.if_then_else(
                    (dz_start[row] != -1) & (k < 16032), dz[dz_start[row] + k], tl.Cast("bfloat16", 0)
                )
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at % 64, v_within_step * 32 + at // 64
                weight_tile[row, at // 64] = tl.if_then_else(
                    (weight_start[row] != -1) & (k < 16032), weight[weight_start[row] + tl.int64(k) * weight_v_stride],
                    tl.Cast("bfloat16", 0)
                )
            tl.sync_threads()
            tl.gemm(dz_tile, weight_tile, d_hidden_sums, transpose_B=True)
            tl.sync_threads()
        tl.copy(d_hidden_sums, d_hidden_tile)
        tl.sync_threads()
        for c in tl.unroll(16):
            t_within_place_2[c] = thread // 64 * 16 + c
        d_place_2 = thread % 64
        for c in tl.unroll(16):
            d_hidden[c] = d_hidden_tile[t_within_place_2[c], d_place_2]
            if t_within_inside[c]:
                merged_3_0[tl.int64(t_within[c]) * merged_3_0_t_within_stride + d] = d_hidden[c]


@tl.prim_func
def linear_logp_grad_3_1(
    weight: memory("weight", "bfloat16"), dz: memory("dz", "bfloat16"), merged_3_0: memory("merged_3_0", "float32"),
    merged_3_1: memory("merged_3_1", "float32"), T_length: tl.int32, dz_t_within_stride: tl.int64,
    weight_v_stride: tl.int64, merged_3_0_t_within_stride: tl.int64, merged_3_1_t_within_stride: tl.int64,
    V_piece: tl.int32, programs: tl.int32
):
    # A block owns 64 of T.within, 64 of D (dot_map). T.within: 64 indices, 16 to each of 4 threads; D: 64 indices, 1 to
    # each of 64 threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        t_within = tl.alloc_local((16,), "int32")
        t_within_inside = tl.alloc_local((16,), "bool")
        d_hidden_sums = tl.alloc_fragment((64, 64), "float32")
        d_hidden_tile = tl.alloc_shared((64, 64), "float32", "shared")
        dz_start = tl.alloc_shared((64,), "int64", "shared")
        t_within_place = tl.alloc_local((16,), "int32")
        weight_start = tl.alloc_shared((64,), "int64", "shared")
        dz_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        weight_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        t_within_place_2 = tl.alloc_local((16,), "int32")
        d_hidden = tl.alloc_local((16,), "float32")
        earlier = tl.alloc_local((16,), "float32")
        merged = tl.alloc_local((16,), "float32")
        rest = tl.truncdiv(block, 64)
        for c in tl.unroll(16):
            t_within[c] = rest * 64 + thread // 64 * 16 + c
            t_within_inside[c] = t_within[c] < T_length
        d = tl.truncmod(block, 64) * 64 + thread % 64
        writes = (thread & 63) == 0
        writes_2 = (thread & 192) == 0
        V_piece_value = tl.alloc_var("int32", V_piece)
        v_piece_begin = tl.alloc_var("int32", V_piece_value * 16032)
        for c in tl.unroll(16):  # linear_logp.py:152
            t_within_place[c] = thread // 64 * 16 + c
            if writes:
                dz_start[t_within_place[c]] = tl.Select(
                    t_within_inside[c], tl.int64(tl.int64(t_within[c]) * dz_t_within_stride), tl.int64(-1)
                )
        d_place = thread % 64
        if writes_2:
            weight_start[d_place] = tl.int64(d + tl.int64(v_piece_begin) * weight_v_stride)
        tl.clear(d_hidden_sums)
        tl.sync_threads()
        for v_within_step in tl.serial(0, 501):
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at // 32, v_within_step * 32 + at % 32
                dz_tile[row, at % 32] = tl.if_then_else(
                    (dz_start[row] != -1) & (k < 16032), dz[dz_start[row] + k], tl.Cast("bfloat16", 0)
                )
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at % 64, v_within_step * 32 + at // 64
                weight_tile[row, at // 64] = tl.if_then_else(
                    (weight_start[row] != -1) & (k < 16032), weight[weight_start[row] + tl.int64(k) * weight_v_stride],
                    tl.Cast("bfloat16", 0)
                )
            tl.sync_threads()
            tl.gemm(dz_tile, weight_tile, d_hidden_sums, transpose_B=True)
            tl.sync_threads()
        tl.copy(d_hidden_sums, d_hidden_tile)
        tl.sync_threads()
        for c in tl.unroll(16):
            t_within_place_2[c] = thread // 64 * 16 + c
        d_place_2 = thread % 64
        for c in tl.unroll(16):
            d_hidden[c] = d_hidden_tile[t_within_place_2[c], d_place_2]
            earlier[c] = tl.if_then_else(
                t_within_inside[c], merged_3_0[tl.int64(t_within[c]) * merged_3_0_t_within_stride + d],
                tl.Cast("float32", 0)
            )
            merged[c] = earlier[c] + d_hidden[c]
            if t_within_inside[c]:
                merged_3_1[tl.int64(t_within[c]) * merged_3_1_t_within_stride + d] = merged[c]


@tl.prim_func
def linear_logp_grad_3_2(
    weight: memory("weight", "bfloat16"), dz: memory("dz", "bfloat16"), merged_3_0: memory("merged_3_0", "float32"),
    merged_3_1: memory("merged_3_1", "float32"), merged_3_2: memory("merged_3_2", "float32"), T_length: tl.int32,
    dz_t_within_stride: tl.int64, weight_v_stride: tl.int64, merged_3_0_t_within_stride: tl.int64,
    merged_3_1_t_within_stride: tl.int64, merged_3_2_t_within_stride: tl.int64, V_piece: tl.int32, programs: tl.int32
):
    # A block owns 64 of T.within, 64 of D (dot_map). T.within: 64 indices, 16 to each of 4 threads; D: 64 indices, 1 to
    # each of 64 threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        t_within = tl.alloc_local((16,), "int32")
        t_within_inside = tl.alloc_local((16,), "bool")
        d_hidden_sums = tl.alloc_fragment((64, 64), "float32")
        d_hidden_tile = tl.alloc_shared((64, 64), "float32", "shared")
        dz_start = tl.alloc_shared((64,), "int64", "shared")
        t_within_place = tl.alloc_local((16,), "int32")
        weight_start = tl.alloc_shared((64,), "int64", "shared")
        dz_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        weight_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        t_within_place_2 = tl.alloc_local((16,), "int32")
        d_hidden = tl.alloc_local((16,), "float32")
        earlier = tl.alloc_local((16,), "float32")
        merged = tl.alloc_local((16,), "float32")
        earlier_2 = tl.alloc_local((16,), "float32")
        merged_2 = tl.alloc_local((16,), "float32")
        rest = tl.truncdiv(block, 64)
        for c in tl.unroll(16):
            t_within[c] = rest * 64 + thread // 64 * 16 + c
            t_within_inside[c] = t_within[c] < T_length
        d = tl.truncmod(block, 64) * 64 + thread % 64
        writes = (thread & 63) == 0
        writes_2 = (thread & 192) == 0
        V_piece_value = tl.alloc_var("int32", V_piece)
        v_piece_begin = tl.alloc_var("int32", V_piece_value * 16032)
        for c in tl.unroll(16):  # linear_logp.py:152
            t_within_place[c] = thread // 64 * 16 + c
            if writes:
                dz_start[t_within_place[c]] = tl.Select(
                    t_within_inside[c], tl.int64(tl.int64(t_within[c]) * dz_t_within_stride), tl.int64(-1)
                )
        d_place = thread % 64
        if writes_2:
            weight_start[d_place] = tl.int64(d + tl.int64(v_piece_begin) * weight_v_stride)
        tl.clear(d_hidden_sums)
        tl.sync_threads()
        for v_within_step in tl.serial(0, 501):
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at // 32, v_within_step * 32 + at % 32
                dz_tile[row, at % 32] = tl.if_then_else(
                    (dz_start[row] != -1) & (k < 16032), dz[dz_start[row] + k], tl.Cast("bfloat16", 0)
                )
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at % 64, v_within_step * 32 + at // 64
                weight_tile[row, at // 64] = tl.if_then_else(
                    (weight_start[row] != -1) & (k < 16032), weight[weight_start[row] + tl.int64(k) * weight_v_stride],
                    tl.Cast("bfloat16", 0)
                )
            tl.sync_threads()
            tl.gemm(dz_tile, weight_tile, d_hidden_sums, transpose_B=True)
            tl.sync_threads()
        tl.copy(d_hidden_sums, d_hidden_tile)
        tl.sync_threads()
        for c in tl.unroll(16):
            t_within_place_2[c] = thread // 64 * 16 + c
        d_place_2 = thread % 64
        for c in tl.unroll(16):
            d_hidden[c] = d_hidden_tile[t_within_place_2[c], d_place_2]
            earlier[c] = tl.if_then_else(
                t_within_inside[c], merged_3_0[tl.int64(t_within[c]) * merged_3_0_t_within_stride + d],
                tl.Cast("float32", 0)
            )
            merged[c] = earlier[c] + d_hidden[c]
            earlier_2[c] = tl.if_then_else(
                t_within_inside[c], merged_3_1[tl.int64(t_within[c]) * merged_3_1_t_within_stride + d],
                tl.Cast("float32", 0)
            )
            merged_2[c] = earlier_2[c] + merged[c]
            if t_within_inside[c]:
                merged_3_2[tl.int64(t_within[c]) * merged_3_2_t_within_stride + d] = merged_2[c]


@tl.prim_func
def linear_logp_grad_3_3(
    weight: memory("weight", "bfloat16"), order: memory("order", "int64"), d_hidden: memory("d_hidden", "bfloat16"),
    dz: memory("dz", "bfloat16"), merged_3_0: memory("merged_3_0", "float32"),
    merged_3_1: memory("merged_3_1", "float32"), merged_3_2: memory("merged_3_2", "float32"), T_length: tl.int32,
    dz_t_within_stride: tl.int64, weight_v_stride: tl.int64, merged_3_0_t_within_stride: tl.int64,
    merged_3_1_t_within_stride: tl.int64, merged_3_2_t_within_stride: tl.int64, d_hidden_t_stride: tl.int64,
    T_piece: tl.int32, V_piece: tl.int32, programs: tl.int32
):
    # A block owns 64 of T.within, 64 of D (dot_map). T.within: 64 indices, 16 to each of 4 threads; D: 64 indices, 1 to
    # each of 64 threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        t_within = tl.alloc_local((16,), "int32")
        t_within_inside = tl.alloc_local((16,), "bool")
        t = tl.alloc_local((16,), "int32")
        order_value = tl.alloc_local((16,), "int64")
        d_hidden_sums = tl.alloc_fragment((64, 64), "float32")
        d_hidden_tile = tl.alloc_shared((64, 64), "float32", "shared")
        dz_start = tl.alloc_shared((64,), "int64", "shared")
        t_within_place = tl.alloc_local((16,), "int32")
        weight_start = tl.alloc_shared((64,), "int64", "shared")
        dz_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        weight_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        t_within_place_2 = tl.alloc_local((16,), "int32")
        d_hidden_value = tl.alloc_local((16,), "float32")
        earlier = tl.alloc_local((16,), "float32")
        merged = tl.alloc_local((16,), "float32")
        earlier_2 = tl.alloc_local((16,), "float32")
        merged_2 = tl.alloc_local((16,), "float32")
        earlier_3 = tl.alloc_local((16,), "float32")
        merged_3 = tl.alloc_local((16,), "float32")
        merged_bf16 = tl.alloc_local((16,), "bfloat16")
        rest = tl.truncdiv(block, 64)
        for c in tl.unroll(16):
            t_within[c] = rest * 64 + thread // 64 * 16 + c
            t_within_inside[c] = t_within[c] < T_length
        d = tl.truncmod(block, 64) * 64 + thread % 64
        writes = (thread & 63) == 0
        writes_2 = (thread & 192) == 0
        T_piece_value = tl.alloc_var("int32", T_piece)
        t_piece_begin = tl.alloc_var("int32", T_piece_value * 8192)
        for c in tl.unroll(16):
            t[c] = t_piece_begin + t_within[c]
        V_piece_value = tl.alloc_var("int32", V_piece)
        v_piece_begin = tl.alloc_var("int32", V_piece_value * 16032)
        for c in tl.unroll(16):  # linear_logp.py:131
            order_value[c] = tl.if_then_else(t_within_inside[c], order[t[c]], tl.Cast("int64", 0))
            t_within_place[c] = thread // 64 * 16 + c  # linear_logp.py:152
            if writes:
                dz_start[t_within_place[c]] = tl.Select(
                    t_within_inside[c], tl.int64(tl.int64(t_within[c]) * dz_t_within_stride), tl.int64(-1)
                )
        d_place = thread % 64
        if writes_2:
            weight_start[d_place] = tl.int64(d + tl.int64(v_piece_begin) * weight_v_stride)
        tl.clear(d_hidden_sums)
        tl.sync_threads()
        for v_within_step in tl.serial(0, 501):
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at // 32, v_within_step * 32 + at % 32
                dz_tile[row, at % 32] = tl.if_then_else(
                    (dz_start[row] != -1) & (k < 16032), dz[dz_start[row] + k], tl.Cast("bfloat16", 0)
                )
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at % 64, v_within_step * 32 + at // 64
                weight_tile[row, at // 64] = tl.if_then_else(
                    (weight_start[row] != -1) & (k < 16032), weight[weight_start[row] + tl.int64(k) * weight_v_stride],
                    tl.Cast("bfloat16", 0)
                )
            tl.sync_threads()
            tl.gemm(dz_tile, weight_tile, d_hidden_sums, transpose_B=True)
            tl.sync_threads()
        tl.copy(d_hidden_sums, d_hidden_tile)
        tl.sync_threads()
        for c in tl.unroll(16):
            t_within_place_2[c] = thread // 64 * 16 + c
        d_place_2 = thread % 64
        for c in tl.unroll(16):
            d_hidden_value[c] = d_hidden_tile[t_within_place_2[c], d_place_2]
            earlier[c] = tl.if_then_else(
                t_within_inside[c], merged_3_0[tl.int64(t_within[c]) * merged_3_0_t_within_stride + d],
                tl.Cast("float32", 0)
            )
            merged[c] = earlier[c] + d_hidden_value[c]
            earlier_2[c] = tl.if_then_else(
                t_within_inside[c], merged_3_1[tl.int64(t_within[c]) * merged_3_1_t_within_stride + d],
                tl.Cast("float32", 0)
            )
            merged_2[c] = earlier_2[c] + merged[c]
            earlier_3[c] = tl.if_then_else(
                t_within_inside[c], merged_3_2[tl.int64(t_within[c]) * merged_3_2_t_within_stride + d],
                tl.Cast("float32", 0)
            )
            merged_3[c] = earlier_3[c] + merged_2[c]
            merged_bf16[c] = tl.Cast("bfloat16", merged_3[c])  # linear_logp.py:119
            if t_within_inside[c]:
                d_hidden[order_value[c] * d_hidden_t_stride + d] = merged_bf16[c]


@tl.prim_func
def linear_logp_grad_4(
    d_weight: memory("d_weight", "bfloat16"), rows: memory("rows", "bfloat16"), dz: memory("dz", "bfloat16"),
    T_length: tl.int32, dz_t_within_stride: tl.int64, rows_t_within_stride: tl.int64, d_weight_v_stride: tl.int64,
    V_piece: tl.int32, programs: tl.int32
):
    # A block owns 64 of V.within, 64 of D (dot_map). V.within: 64 indices, 16 to each of 4 threads; D: 64 indices, 1 to
    # each of 64 threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        v_within = tl.alloc_local((16,), "int32")
        v_within_inside = tl.alloc_local((16,), "bool")
        v = tl.alloc_local((16,), "int32")
        d_weight_sums = tl.alloc_fragment((64, 64), "float32")
        d_weight_tile = tl.alloc_shared((64, 64), "float32", "shared")
        dz_start = tl.alloc_shared((64,), "int64", "shared")
        v_within_place = tl.alloc_local((16,), "int32")
        rows_start = tl.alloc_shared((64,), "int64", "shared")
        dz_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        rows_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        v_within_place_2 = tl.alloc_local((16,), "int32")
        d_weight_value = tl.alloc_local((16,), "float32")
        d_weight_bf16 = tl.alloc_local((16,), "bfloat16")
        rest = tl.truncdiv(block, 64)
        for c in tl.unroll(16):
            v_within[c] = rest * 64 + thread // 64 * 16 + c
            v_within_inside[c] = v_within[c] < 16032
        d = tl.truncmod(block, 64) * 64 + thread % 64
        writes = (thread & 63) == 0
        writes_2 = (thread & 192) == 0
        V_piece_value = tl.alloc_var("int32", V_piece)
        v_piece_begin = tl.alloc_var("int32", V_piece_value * 16032)
        for c in tl.unroll(16):
            v[c] = v_piece_begin + v_within[c]
            v_within_place[c] = thread // 64 * 16 + c  # linear_logp.py:154
            if writes:
                dz_start[v_within_place[c]] = tl.Select(v_within_inside[c], tl.int64(v_within[c]), tl.int64(-1))
        d_place = thread % 64
        if writes_2:
            rows_start[d_place] = tl.int64(d)
        tl.clear(d_weight_sums)
        tl.sync_threads()
        for t_within_step in tl.serial(0, ((T_length + 31) // 32)):
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at % 64, t_within_step * 32 + at // 64
                dz_tile[row, at // 64] = tl.if_then_else(
                    (dz_start[row] != -1) & (k < T_length), dz[dz_start[row] + tl.int64(k) * dz_t_within_stride],
                    tl.Cast("bfloat16", 0)
                )
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at % 64, t_within_step * 32 + at // 64
                rows_tile[row, at // 64] = tl.if_then_else(
                    (rows_start[row] != -1) & (k < T_length),
                    rows[rows_start[row] + tl.int64(k) * rows_t_within_stride], tl.Cast("bfloat16", 0)
                )
            tl.sync_threads()
            tl.gemm(dz_tile, rows_tile, d_weight_sums, transpose_B=True)
            tl.sync_threads()
        tl.copy(d_weight_sums, d_weight_tile)
        tl.sync_threads()
        for c in tl.unroll(16):
            v_within_place_2[c] = thread // 64 * 16 + c
        d_place_2 = thread % 64
        for c in tl.unroll(16):
            d_weight_value[c] = d_weight_tile[v_within_place_2[c], d_place_2]
            d_weight_bf16[c] = tl.Cast("bfloat16", d_weight_value[c])  # linear_logp.py:121
            if v_within_inside[c]:
                d_weight[tl.int64(v[c]) * d_weight_v_stride + d] = d_weight_bf16[c]


def call(
    kernels, hidden, ids, order, rows, weight, lse, entropy, d_logp, d_lse, d_entropy, dz, merged_3_0, merged_3_1,
    merged_3_2, d_hidden, d_weight, ignore_index, inv_temperature, T, hidden_t_stride, rows_t_within_stride,
    weight_v_stride, dz_t_within_stride, merged_3_0_t_within_stride, merged_3_1_t_within_stride,
    merged_3_2_t_within_stride, d_hidden_t_stride, d_weight_v_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    for T_piece in range((T + 8191) // 8192):
        T_length = min(8192, T - T_piece * 8192)
        programs = T_length * 2
        if programs > 0:
            kernels.linear_logp_grad_1(
                (programs,), hidden, ids, order, rows, hidden_t_stride, rows_t_within_stride, T_length, ignore_index,
                T_piece
            )
        for V_piece in range(8):
            programs = ((T_length + 63) // 64) * 251
            if programs > 0:
                kernels.linear_logp_grad_2(
                    (programs,), weight, ids, lse, entropy, order, d_logp, d_lse, d_entropy, rows, dz, T_length,
                    rows_t_within_stride, weight_v_stride, dz_t_within_stride, inv_temperature, ignore_index, T_piece,
                    V_piece
                )
            if V_piece in (0, 2, 4, 6):
                programs = ((T_length + 63) // 64) * 64
                if programs > 0:
                    kernels.linear_logp_grad_3_0(
                        (programs,), weight, dz, merged_3_0, T_length, dz_t_within_stride, weight_v_stride,
                        merged_3_0_t_within_stride, V_piece
                    )
            if V_piece in (1, 5):
                programs = ((T_length + 63) // 64) * 64
                if programs > 0:
                    kernels.linear_logp_grad_3_1(
                        (programs,), weight, dz, merged_3_0, merged_3_1, T_length, dz_t_within_stride, weight_v_stride,
                        merged_3_0_t_within_stride, merged_3_1_t_within_stride, V_piece
                    )
            if V_piece == 3:
                programs = ((T_length + 63) // 64) * 64
                if programs > 0:
                    kernels.linear_logp_grad_3_2(
                        (programs,), weight, dz, merged_3_0, merged_3_1, merged_3_2, T_length, dz_t_within_stride,
                        weight_v_stride, merged_3_0_t_within_stride, merged_3_1_t_within_stride,
                        merged_3_2_t_within_stride, V_piece
                    )
            if V_piece == 7:
                programs = ((T_length + 63) // 64) * 64
                if programs > 0:
                    kernels.linear_logp_grad_3_3(
                        (programs,), weight, order, d_hidden, dz, merged_3_0, merged_3_1, merged_3_2, T_length,
                        dz_t_within_stride, weight_v_stride, merged_3_0_t_within_stride, merged_3_1_t_within_stride,
                        merged_3_2_t_within_stride, d_hidden_t_stride, T_piece, V_piece
                    )
            programs = 251 * 64
            if programs > 0:
                kernels.linear_logp_grad_4(
                    (programs,), d_weight, rows, dz, T_length, dz_t_within_stride, rows_t_within_stride,
                    d_weight_v_stride, V_piece
                )
