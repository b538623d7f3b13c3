"""linear_attention_grad on gfx942, written by rlk 0.1.0: do not edit.

numerics: bf53b7bb2cab3ba4
schedule: tiles 1, 4 warps, 3 stages, unroll 1
inputs:
  q: f32 [T, K=64]
  k: f32 [T, K=64]
  v: f32 [T, W=64]
  gate: f32 [T]
  begin: i32 [B]
  end: i32 [B]
  o: f32 [T, W=64]
  d_o: f32 [T, W=64]
outputs:
  d_q: f32 [T, K=64]
  d_k: f32 [T, K=64]
  d_v: f32 [T, W=64]
  d_gate: f32 [T]
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
def add(a, b):
    # A term of a sum.
    return a + b


@tl.macro
def sum_over_k(x):
    # The sum over K, halving.
    for c in tl.unroll(16):
        x[c] = add(x[c], tl.shfl_xor(x[c], 32, width=64))
    for c in tl.unroll(16):
        x[c] = add(x[c], tl.shfl_xor(x[c], 16, width=64))
    for c in tl.unroll(16):
        x[c] = add(x[c], tl.shfl_xor(x[c], 8, width=64))
    for c in tl.unroll(16):
        x[c] = add(x[c], tl.shfl_xor(x[c], 4, width=64))
    for c in tl.unroll(16):
        x[c] = add(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(16):
        x[c] = add(x[c], tl.shfl_xor(x[c], 1, width=64))


@tl.macro
def sum_over_k_2(x):
    # The sum over K, halving.
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 32, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 16, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 8, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 4, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 1, width=64))


@tl.macro
def sum_over_w(x, x_reduce_smem, thread):
    # The sum over W, halving.
    for c in tl.unroll(8):
        x[c] = add(x[c // 8 * 16 + c % 8], x[c // 8 * 16 + c % 8 + 8])
    for c in tl.unroll(4):
        x[c] = add(x[c // 4 * 8 + c % 4], x[c // 4 * 8 + c % 4 + 4])
    for c in tl.unroll(2):
        x[c] = add(x[c // 2 * 4 + c % 2], x[c // 2 * 4 + c % 2 + 2])
    for c in tl.unroll(1):
        x[c] = add(x[2 * c], x[2 * c + 1])
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(1):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(1):
        x[c] = add(x[c], x_reduce_smem[c, thread ^ 128])
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(1):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(1):
        x[c] = add(x[c], x_reduce_smem[c, thread ^ 64])


@tl.prim_func
def linear_attention_grad(
    q: memory("q", "float32"), k: memory("k", "float32"), v: memory("v", "float32"), gate: memory("gate", "float32"),
    begin: memory("begin", "int32"), end: memory("end", "int32"), o: memory("o", "float32"),
    d_o: memory("d_o", "float32"), d_q: memory("d_q", "float32"), d_k: memory("d_k", "float32"),
    d_v: memory("d_v", "float32"), d_gate: memory("d_gate", "float32"), T: tl.int32, k_t_stride: tl.int64,
    v_t_stride: tl.int64, d_o_t_stride: tl.int64, d_q_t_stride: tl.int64, q_t_stride: tl.int64, o_t_stride: tl.int64,
    d_k_t_stride: tl.int64, d_v_t_stride: tl.int64, B: tl.int32, programs: tl.int32
):
    # A block owns 1 of B (rows). K: 64 indices, 1 to each of 64 threads; W: 64 indices, 16 to each of 4 threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        f32_reduce_smem = tl.alloc_shared((16, 256), "float32", "shared")
        w = tl.alloc_local((16,), "int32")
        s_state = tl.alloc_local((16,), "float32")
        v_value = tl.alloc_local((16,), "float32")
        d_o_value = tl.alloc_local((16,), "float32")
        new_product = tl.alloc_local((16,), "float32")
        k_times_v = tl.alloc_local((16,), "float32")
        new_2 = tl.alloc_local((16,), "float32")
        d_o_times_new = tl.alloc_local((16,), "float32")
        dq = tl.alloc_local((16,), "float32")
        s_state_2 = tl.alloc_local((16,), "float32")
        s_state_3 = tl.alloc_local((16,), "float32")
        s_state_4 = tl.alloc_var("float32")
        v_value_2 = tl.alloc_local((16,), "float32")
        d_o_value_2 = tl.alloc_local((16,), "float32")
        o_value = tl.alloc_local((16,), "float32")
        q_times_d_o = tl.alloc_local((16,), "float32")
        pull = tl.alloc_local((16,), "float32")
        pull_times_v = tl.alloc_local((16,), "float32")
        dk = tl.alloc_local((16,), "float32")
        pull_times_k = tl.alloc_local((16,), "float32")
        sum_k = tl.alloc_local((16,), "float32")
        o_times_d_o = tl.alloc_local((16,), "float32")
        own = tl.alloc_local((16,), "float32")
        sum_k_2 = tl.alloc_local((1,), "float32")
        gate_times_pull = tl.alloc_local((16,), "float32")
        s_state_5 = tl.alloc_local((16,), "float32")
        b = block
        writes = (thread & 192) == 0
        writes_2 = (thread & 63) == 0
        writes_3 = thread == 0
        begin_value = tl.alloc_var("int32", begin[b])  # linear_attention.py:47
        end_value = tl.alloc_var("int32", end[b])
        end_minus_begin = tl.alloc_var("int32", end_value - begin_value)
        k_value = tl.alloc_var("int32", thread % 64)  # linear_attention.py:48
        for c in tl.unroll(16):
            w[c] = thread // 64 + c * 4
            s_state[c] = f32(0.0)  # linear_attention.py:47
        for s_step in tl.serial(0, end_minus_begin):
            s = tl.alloc_var("int32", begin_value + s_step)
            s_ge_0 = tl.alloc_var("bool", 0 <= s)  # linear_attention.py:48
            s_lt_T = tl.alloc_var("bool", s < T)
            gate_guard = tl.alloc_var("bool", s_ge_0 & s_lt_T)
            gate_value = tl.alloc_var("float32", tl.if_then_else(gate_guard, gate[s], tl.Cast("float32", 0)))
            k_value_2 = tl.alloc_var(
                "float32", tl.if_then_else(gate_guard, k[tl.int64(s) * k_t_stride + k_value], tl.Cast("float32", 0))
            )
            for c in tl.unroll(16):
                v_value[c] = tl.if_then_else(gate_guard, v[tl.int64(s) * v_t_stride + w[c]], tl.Cast("float32", 0))
                d_o_value[c] = tl.if_then_else(  # linear_attention.py:49
                    gate_guard, d_o[tl.int64(s) * d_o_t_stride + w[c]], tl.Cast("float32", 0)
                )
                new_product[c] = gate_value * s_state[c]  # linear_attention.py:48
                k_times_v[c] = k_value_2 * v_value[c]
                new_2[c] = new_product[c] + k_times_v[c]
                d_o_times_new[c] = d_o_value[c] * new_2[c]  # linear_attention.py:49
                dq[c] = d_o_times_new[c]
            sum_over_w(dq, f32_reduce_smem, thread)
            dq_2 = dq[0]
            if writes:  # linear_attention.py:50
                d_q[tl.int64(s) * d_q_t_stride + k_value] = dq_2
            for c in tl.unroll(16):
                s_state[c] = new_2[c]
        for c in tl.unroll(16):  # linear_attention.py:47
            s_state_2[c] = s_state[c]
        end_minus_1 = tl.alloc_var("int32", end_value - 1)  # linear_attention.py:53
        for c in tl.unroll(16):
            s_state_3[c] = f32(0.0)
        s_state_4 = f32(0.0)
        for s_step_2 in tl.serial(0, end_minus_begin):
            s_2 = tl.alloc_var("int32", end_minus_1 - s_step_2)
            s_ge_0_2 = tl.alloc_var("bool", 0 <= s_2)  # linear_attention.py:55
            s_lt_T_2 = tl.alloc_var("bool", s_2 < T)
            gate_guard_2 = tl.alloc_var("bool", s_ge_0_2 & s_lt_T_2)
            gate_value_2 = tl.alloc_var("float32", tl.if_then_else(gate_guard_2, gate[s_2], tl.Cast("float32", 0)))
            k_value_3 = tl.alloc_var(
                "float32", tl.if_then_else(gate_guard_2, k[tl.int64(s_2) * k_t_stride + k_value], tl.Cast("float32", 0))
            )
            for c in tl.unroll(16):
                v_value_2[c] = tl.if_then_else(
                    gate_guard_2, v[tl.int64(s_2) * v_t_stride + w[c]], tl.Cast("float32", 0)
                )
                d_o_value_2[c] = tl.if_then_else(
                    gate_guard_2, d_o[tl.int64(s_2) * d_o_t_stride + w[c]], tl.Cast("float32", 0)
                )
            q_value = tl.alloc_var(  # linear_attention.py:57
                "float32", tl.if_then_else(gate_guard_2, q[tl.int64(s_2) * q_t_stride + k_value], tl.Cast("float32", 0))
            )
            for c in tl.unroll(16):  # linear_attention.py:64
                o_value[c] = tl.if_then_else(gate_guard_2, o[tl.int64(s_2) * o_t_stride + w[c]], tl.Cast("float32", 0))
                q_times_d_o[c] = q_value * d_o_value_2[c]  # linear_attention.py:57
                pull[c] = q_times_d_o[c] + s_state_3[c]
                pull_times_v[c] = pull[c] * v_value_2[c]  # linear_attention.py:58
                dk[c] = pull_times_v[c]
            sum_over_w(dk, f32_reduce_smem, thread)
            dk_2 = dk[0]
            if writes:  # linear_attention.py:60
                d_k[tl.int64(s_2) * d_k_t_stride + k_value] = dk_2
            for c in tl.unroll(16):  # linear_attention.py:62
                pull_times_k[c] = pull[c] * k_value_3
                sum_k[c] = pull_times_k[c]
            sum_over_k(sum_k)
            for c in tl.unroll(16):
                if writes_2:
                    d_v[tl.int64(s_2) * d_v_t_stride + w[c]] = sum_k[c]
                o_times_d_o[c] = o_value[c] * d_o_value_2[c]  # linear_attention.py:64
                own[c] = o_times_d_o[c]
            sum_over_w(own, f32_reduce_smem, thread)
            own_2 = own[0]
            k_times_dk = tl.alloc_var("float32", k_value_3 * dk_2)  # linear_attention.py:65
            sum_k_2[0] = k_times_dk
            sum_over_k_2(sum_k_2)
            sum_k_3 = sum_k_2[0]
            own_minus_add_over_k = tl.alloc_var("float32", own_2 - sum_k_3)
            made = tl.alloc_var("float32", s_state_4 + own_minus_add_over_k)
            d_gate_value = tl.alloc_var("float32", made / gate_value_2)  # linear_attention.py:66
            if writes_3:
                d_gate[s_2] = d_gate_value
            for c in tl.unroll(16):  # linear_attention.py:68
                gate_times_pull[c] = gate_value_2 * pull[c]
                s_state_3[c] = gate_times_pull[c]
            s_state_4 = made
        for c in tl.unroll(16):  # linear_attention.py:53
            s_state_5[c] = s_state_3[c]


def call(
    kernels, q, k, v, gate, begin, end, o, d_o, d_q, d_k, d_v, d_gate, T, B, k_t_stride, v_t_stride, d_o_t_stride,
    d_q_t_stride, q_t_stride, o_t_stride, d_k_t_stride, d_v_t_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = B
    if programs > 0:
        kernels.linear_attention_grad(
            (programs,), q, k, v, gate, begin, end, o, d_o, d_q, d_k, d_v, d_gate, T, k_t_stride, v_t_stride,
            d_o_t_stride, d_q_t_stride, q_t_stride, o_t_stride, d_k_t_stride, d_v_t_stride, B
        )
