"""gae on gfx942, written by rlk 0.1.0: do not edit.

numerics: 7687ee342bde8999
schedule: tiles 1, 4 warps, 3 stages, unroll 1
"""

import struct

import tilelang.language as tl


def memory(name, dtype):
    """The elements of a tensor in a row: addresses are counted from the first."""
    return tl.Tensor((tl.dynamic(f"{name}_size", "int64"),), dtype)


def f32(number):
    """A constant by its bits: HIP text has seven digits, and a sum with 0.0 would be folded away."""
    return tl.reinterpret(tl.uint32(struct.unpack("<I", struct.pack("<f", number))[0]), "float32")


@tl.prim_func
def gae(values: memory("values", "float32"), rewards: memory("rewards", "float32"), active: memory("active", "bool"), bounds: memory("bounds", "int64"), bootstrap: memory("bootstrap", "float32"), advantages: memory("advantages", "float32"), returns: memory("returns", "float32"), bounds_b_stride: tl.int64, T: tl.int32, B: tl.int32, errors: memory("errors", "int32"), gamma: tl.float32, decay: tl.float32, programs: tl.int32):
    # A block owns 1 of B (rows).
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        r_state = tl.alloc_var("float32")
        r_state_2 = tl.alloc_var("float32")
        r_state_3 = tl.alloc_var("float32")
        r_state_4 = tl.alloc_var("float32")
        b = block
        writes = thread == 0
        bounds_2 = tl.alloc_var("int64", bounds[tl.int64(b) * bounds_b_stride])  # advantage.py:106
        bounds_3 = tl.alloc_var("int64", bounds[tl.int64(b) * bounds_b_stride + 1])  # advantage.py:106
        bootstrap_2 = tl.alloc_var("float32", bootstrap[b])  # advantage.py:166
        gamma_2 = tl.alloc_var("float32", gamma)
        decay_2 = tl.alloc_var("float32", decay)
        difference = tl.alloc_var("int32", B - 1)  # advantage.py:105
        as_i64 = tl.alloc_var("int64", tl.Cast("int64", T))  # advantage.py:105
        equal = tl.alloc_var("bool", b == 0)  # advantage.py:107
        chosen = tl.alloc_var("int64", tl.Select(equal, tl.int64(0), bounds_2))  # advantage.py:107
        larger_2 = tl.alloc_var("int64", tl.max(chosen, tl.int64(0)))  # advantage.py:107
        smaller_2 = tl.alloc_var("int64", tl.min(larger_2, as_i64))  # advantage.py:107
        equal_2 = tl.alloc_var("bool", b == difference)  # advantage.py:108
        chosen_2 = tl.alloc_var("int64", tl.Select(equal_2, as_i64, bounds_3))  # advantage.py:108
        smaller_3 = tl.alloc_var("int64", tl.min(chosen_2, as_i64))  # advantage.py:108
        larger_3 = tl.alloc_var("int64", tl.max(smaller_2, smaller_3))  # advantage.py:108
        differs = tl.alloc_var("bool", smaller_2 != bounds_2)  # advantage.py:109
        differs_2 = tl.alloc_var("bool", larger_3 != bounds_3)  # advantage.py:109
        either = tl.alloc_var("bool", differs | differs_2)  # advantage.py:109
        if either & writes:  # advantage.py:110
            tl.atomic_max(errors[0], 1)  # advantage.py:110
            tl.atomic_max(errors[1], b + 1)  # advantage.py:110
        as_i32 = tl.alloc_var("int32", tl.Cast("int32", smaller_2))  # advantage.py:168
        as_i32_2 = tl.alloc_var("int32", tl.Cast("int32", larger_3))  # advantage.py:168
        difference_2 = tl.alloc_var("int32", as_i32_2 - as_i32)  # advantage.py:168
        difference_3 = tl.alloc_var("int32", as_i32_2 - 1)  # advantage.py:168
        r_state = bootstrap_2  # advantage.py:176
        r_state_2 = f32(0.0)  # advantage.py:176
        for r_step in tl.serial(0, difference_2):  # advantage.py:176
            r = tl.alloc_var("int32", difference_3 - r_step)  # advantage.py:168
            at_most = tl.alloc_var("bool", 0 <= r)  # advantage.py:169
            below = tl.alloc_var("bool", r < T)  # advantage.py:169
            both = tl.alloc_var("bool", at_most & below)  # advantage.py:169
            active_2 = tl.alloc_var("bool", tl.if_then_else(both, active[r], tl.Cast("bool", 0)))  # advantage.py:169
            values_2 = tl.alloc_var("float32", tl.if_then_else(both, values[r], tl.Cast("float32", 0)))  # advantage.py:169
            rewards_2 = tl.alloc_var("float32", tl.if_then_else(both, rewards[r], tl.Cast("float32", 0)))  # advantage.py:170
            product = tl.alloc_var("float32", gamma_2 * r_state)  # advantage.py:170
            total = tl.alloc_var("float32", rewards_2 + product)  # advantage.py:170
            difference_4 = tl.alloc_var("float32", total - values_2)  # advantage.py:170
            product_2 = tl.alloc_var("float32", decay_2 * r_state_2)  # advantage.py:171
            total_2 = tl.alloc_var("float32", difference_4 + product_2)  # advantage.py:171
            chosen_3 = tl.alloc_var("float32", tl.Select(active_2, values_2, r_state))  # advantage.py:172
            chosen_4 = tl.alloc_var("float32", tl.Select(active_2, total_2, r_state_2))  # advantage.py:173
            total_3 = tl.alloc_var("float32", total_2 + values_2)  # advantage.py:174
            chosen_5 = tl.alloc_var("float32", tl.Select(either, f32(float("nan")), total_2))  # advantage.py:175
            chosen_6 = tl.alloc_var("float32", tl.Select(active_2, chosen_5, f32(0.0)))  # advantage.py:175
            if writes:  # advantage.py:176
                advantages[r] = chosen_6  # advantage.py:176
            chosen_7 = tl.alloc_var("float32", tl.Select(either, f32(float("nan")), total_3))  # advantage.py:175
            chosen_8 = tl.alloc_var("float32", tl.Select(active_2, chosen_7, f32(0.0)))  # advantage.py:175
            if writes:  # advantage.py:176
                returns[r] = chosen_8  # advantage.py:176
            r_state = chosen_3  # advantage.py:176
            r_state_2 = chosen_4  # advantage.py:176
        r_state_3 = r_state  # advantage.py:168
        r_state_4 = r_state_2  # advantage.py:168


def call(kernels, values, rewards, active, bounds, bootstrap, advantages, returns, gamma, decay, T, B, bounds_b_stride, errors):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = B
    if programs > 0:
        kernels.gae((programs,), values, rewards, active, bounds, bootstrap, advantages, returns, bounds_b_stride, T, B, errors, gamma, decay)
