	.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
	.amdhsa_code_object_version 5
	.text
	.globl	matmul
	.type	matmul,@function
matmul:
	s_load_dwordx2 s[2:3], s[0:1], 0x0
	s_load_dwordx8 s[4:11], s[0:1], 0x8
	s_load_dwordx4 s[12:15], s[0:1], 0x28
	s_waitcnt lgkmcnt(0)
	s_branch .LBB0_0
.LBB0_0:
	v_readfirstlane_b32 s0, v0
	s_bfe_u32 s9, s0, 0x20006
	v_and_b32_e32 v1, 63, v0
	v_lshl_or_b32 v1, s9, 6, v1
	v_lshrrev_b32_e32 v2, 4, v1
	s_lshl_b32 s17, s16, 5
	v_or_b32_e32 v3, s17, v2
	s_ashr_i32 s16, s17, 31
	v_mul_lo_u32 v6, s11, v3
	s_mul_i32 s18, s10, s16
	v_mad_u64_u32 v[4:5], s[0:1], s10, v3, 0
	v_add3_u32 v5, v5, s18, v6
	v_and_b32_e32 v20, 15, v0
	v_mov_b32_e32 v17, 0
	v_cmp_gt_i32_e32 vcc, s8, v3
	v_lshl_add_u64 v[18:19], v[4:5], 1, s[2:3]
	v_lshlrev_b32_e32 v16, 1, v20
	v_mov_b32_e32 v4, v17
	s_and_saveexec_b64 s[0:1], vcc
	s_cbranch_execz .LBB0_2
	v_lshl_add_u64 v[4:5], v[18:19], 0, v[16:17]
	global_load_ushort v4, v[4:5], off
.LBB0_2:
	s_or_b64 exec, exec, s[0:1]
	v_or_b32_e32 v3, 16, v2
	v_or_b32_e32 v5, s17, v3
	v_mul_lo_u32 v8, s11, v5
	v_mad_u64_u32 v[6:7], s[10:11], s10, v5, 0
	v_add3_u32 v7, v7, s18, v8
	v_lshl_add_u64 v[6:7], v[6:7], 1, s[2:3]
	v_cmp_gt_i32_e64 s[0:1], s8, v5
	v_lshl_add_u64 v[22:23], v[6:7], 0, v[16:17]
	v_mov_b32_e32 v5, v17
	s_and_saveexec_b64 s[2:3], s[0:1]
	s_cbranch_execz .LBB0_4
	global_load_ushort v5, v[22:23], off
.LBB0_4:
	s_or_b64 exec, exec, s[2:3]
	v_mad_u64_u32 v[6:7], s[2:3], s12, v2, 0
	v_mov_b32_e32 v8, v7
	v_mad_u64_u32 v[8:9], s[2:3], s13, v2, v[8:9]
	v_mov_b32_e32 v7, v8
	v_lshl_add_u64 v[6:7], v[6:7], 1, s[4:5]
	v_lshl_add_u64 v[26:27], v[6:7], 0, v[16:17]
	global_load_ushort v2, v[26:27], off
	v_mad_u64_u32 v[6:7], s[10:11], s12, v3, 0
	v_mov_b32_e32 v8, v7
	v_mad_u64_u32 v[8:9], s[10:11], s13, v3, v[8:9]
	v_mov_b32_e32 v7, v8
	v_cmp_gt_u32_e64 s[2:3], 18, v3
	v_lshl_add_u64 v[24:25], v[6:7], 1, s[4:5]
	v_mov_b32_e32 v17, 0
	v_mov_b32_e32 v3, 0
	s_and_saveexec_b64 s[4:5], s[2:3]
	s_cbranch_execz .LBB0_6
	v_lshl_add_u64 v[6:7], v[24:25], 0, v[16:17]
	global_load_ushort v3, v[6:7], off
.LBB0_6:
	s_or_b64 exec, exec, s[4:5]
	v_and_b32_e32 v21, 32, v0
	v_and_b32_e32 v30, 31, v0
	v_lshlrev_b32_e32 v0, 1, v0
	v_and_b32_e32 v0, 24, v0
	v_lshrrev_b32_e32 v6, 2, v21
	v_lshlrev_b32_e32 v1, 1, v1
	s_lshl_b32 s4, s9, 3
	v_xor_b32_e32 v0, v0, v6
	v_xor_b32_e32 v1, s4, v1
	v_lshl_or_b32 v0, v30, 5, v0
	v_xor_b32_e32 v6, 16, v0
	v_add_u32_e32 v31, 0, v1
	v_add_u32_e32 v32, 0, v0
	s_waitcnt lgkmcnt(0)
	s_barrier
	s_waitcnt vmcnt(1)
	ds_write_b16 v31, v4
	ds_write_b16 v31, v5 offset:512
	s_waitcnt lgkmcnt(0)
	s_barrier
	v_add_u32_e32 v33, 0, v6
	ds_read_b64 v[28:29], v32
	ds_read_b64 v[34:35], v33
	s_waitcnt lgkmcnt(0)
	s_barrier
	s_waitcnt vmcnt(0)
	ds_write_b16 v31, v2
	ds_write_b16 v31, v3 offset:512
	s_waitcnt lgkmcnt(0)
	s_barrier
	ds_read_b64 v[36:37], v32
	ds_read_b64 v[38:39], v33
	s_waitcnt lgkmcnt(1)
	v_mfma_f32_32x32x8_bf16 v[0:15], v[36:37], v[28:29], 0
	s_waitcnt lgkmcnt(0)
	v_mfma_f32_32x32x8_bf16 v[0:15], v[38:39], v[34:35], v[0:15]
	s_and_saveexec_b64 s[4:5], vcc
	s_cbranch_execz .LBB0_8
	v_lshl_add_u64 v[28:29], v[18:19], 0, v[16:17]
	global_load_ushort v17, v[28:29], off offset:32
.LBB0_8:
	s_or_b64 exec, exec, s[4:5]
	v_mov_b32_e32 v29, 0
	v_mov_b32_e32 v34, 0
	s_and_saveexec_b64 s[4:5], s[0:1]
	s_cbranch_execz .LBB0_10
	global_load_ushort v34, v[22:23], off offset:32
.LBB0_10:
	s_or_b64 exec, exec, s[4:5]
	global_load_ushort v35, v[26:27], off offset:32
	s_and_saveexec_b64 s[4:5], s[2:3]
	s_cbranch_execz .LBB0_12
	v_mov_b32_e32 v28, v16
	v_lshl_add_u64 v[28:29], v[24:25], 0, v[28:29]
	global_load_ushort v29, v[28:29], off offset:32
.LBB0_12:
	s_or_b64 exec, exec, s[4:5]
	s_waitcnt lgkmcnt(0)
	s_barrier
	s_waitcnt vmcnt(1)
	ds_write_b16 v31, v17
	ds_write_b16 v31, v34 offset:512
	s_waitcnt lgkmcnt(0)
	s_barrier
	ds_read_b64 v[36:37], v32
	ds_read_b64 v[38:39], v33
	s_waitcnt lgkmcnt(0)
	s_barrier
	s_waitcnt vmcnt(0)
	ds_write_b16 v31, v35
	ds_write_b16 v31, v29 offset:512
	s_waitcnt lgkmcnt(0)
	s_barrier
	ds_read_b64 v[28:29], v32
	ds_read_b64 v[34:35], v33
	s_waitcnt lgkmcnt(1)
	v_mfma_f32_32x32x8_bf16 v[0:15], v[28:29], v[36:37], v[0:15]
	v_or_b32_e32 v17, 32, v20
	v_cmp_gt_u32_e64 s[4:5], 40, v17
	s_and_b64 s[12:13], s[4:5], vcc
	v_mov_b32_e32 v17, 0
	v_mov_b32_e32 v20, 0
	s_waitcnt lgkmcnt(0)
	v_mfma_f32_32x32x8_bf16 v[0:15], v[34:35], v[38:39], v[0:15]
	s_and_saveexec_b64 s[10:11], s[12:13]
	s_cbranch_execz .LBB0_14
	v_lshl_add_u64 v[18:19], v[18:19], 0, v[16:17]
	global_load_ushort v20, v[18:19], off offset:64
.LBB0_14:
	s_or_b64 exec, exec, s[10:11]
	s_and_b64 s[10:11], s[4:5], s[0:1]
	s_and_saveexec_b64 s[0:1], s[10:11]
	s_cbranch_execz .LBB0_16
	global_load_ushort v17, v[22:23], off offset:64
.LBB0_16:
	s_or_b64 exec, exec, s[0:1]
	v_mov_b32_e32 v19, 0
	v_mov_b32_e32 v22, 0
	s_and_saveexec_b64 s[0:1], s[4:5]
	s_cbranch_execz .LBB0_18
	global_load_ushort v22, v[26:27], off offset:64
.LBB0_18:
	s_or_b64 exec, exec, s[0:1]
	s_and_b64 s[2:3], s[4:5], s[2:3]
	v_mov_b32_e32 v18, 0
	s_and_saveexec_b64 s[0:1], s[2:3]
	s_cbranch_execz .LBB0_20
	v_mov_b32_e32 v18, v16
	v_lshl_add_u64 v[24:25], v[24:25], 0, v[18:19]
	global_load_ushort v18, v[24:25], off offset:64
.LBB0_20:
	s_or_b64 exec, exec, s[0:1]
	s_waitcnt lgkmcnt(0)
	s_barrier
	s_waitcnt vmcnt(0)
	ds_write_b16 v31, v20
	ds_write_b16 v31, v17 offset:512
	s_waitcnt lgkmcnt(0)
	s_barrier
	ds_read_b64 v[16:17], v32
	ds_read_b64 v[24:25], v33
	s_waitcnt lgkmcnt(0)
	s_barrier
	ds_write_b16 v31, v22
	ds_write_b16 v31, v18 offset:512
	s_waitcnt lgkmcnt(0)
	s_barrier
	ds_read_b64 v[22:23], v32
	ds_read_b64 v[26:27], v33
	s_waitcnt lgkmcnt(1)
	v_mfma_f32_32x32x8_bf16 v[0:15], v[22:23], v[16:17], v[0:15]
	v_or_b32_e32 v17, s17, v30
	s_mul_i32 s2, s14, s16
	s_cmp_eq_u32 s9, 0
	v_cmp_gt_i32_e32 vcc, s8, v17
	v_lshrrev_b32_e32 v18, 1, v21
	v_lshrrev_b32_e32 v16, 3, v21
	s_waitcnt lgkmcnt(0)
	v_mfma_f32_32x32x8_bf16 v[0:15], v[26:27], v[24:25], v[0:15]
	s_nop 10
	v_mul_lo_u32 v12, s15, v17
	v_mad_u64_u32 v[10:11], s[0:1], s14, v17, 0
	v_add3_u32 v11, v11, s2, v12
	v_lshl_add_u64 v[10:11], v[10:11], 2, s[6:7]
	s_cselect_b64 s[2:3], -1, 0
	v_lshl_add_u64 v[10:11], v[10:11], 0, v[18:19]
	s_and_b64 s[4:5], vcc, s[2:3]
	s_and_saveexec_b64 s[0:1], s[4:5]
	s_cbranch_execz .LBB0_22
	global_store_dwordx4 v[10:11], v[0:3], off
	global_store_dwordx4 v[10:11], v[4:7], off offset:32
.LBB0_22:
	s_or_b64 exec, exec, s[0:1]
	v_or_b32_e32 v0, 16, v16
	v_cmp_gt_u32_e64 s[0:1], 18, v0
	s_and_b64 s[0:1], s[0:1], vcc
	s_and_b64 s[0:1], s[0:1], s[2:3]
	s_and_saveexec_b64 s[2:3], s[0:1]
	s_cbranch_execz .LBB0_24
	global_store_dwordx2 v[10:11], v[8:9], off offset:64
.LBB0_24:
	s_endpgm
	.section	.rodata,"a",@progbits
	.amdhsa_kernel matmul
		.amdhsa_group_segment_fixed_size 0
		.amdhsa_private_segment_fixed_size 0
		.amdhsa_kernarg_size 72
		.amdhsa_user_sgpr_count 16
		.amdhsa_user_sgpr_dispatch_ptr 0
		.amdhsa_user_sgpr_queue_ptr 0
		.amdhsa_user_sgpr_kernarg_segment_ptr 1
		.amdhsa_user_sgpr_dispatch_id 0
		.amdhsa_user_sgpr_kernarg_preload_length 14
		.amdhsa_user_sgpr_kernarg_preload_offset 0
		.amdhsa_user_sgpr_private_segment_size 0
		.amdhsa_uses_dynamic_stack 0
		.amdhsa_enable_private_segment 0
		.amdhsa_system_sgpr_workgroup_id_x 1
		.amdhsa_system_sgpr_workgroup_id_y 0
		.amdhsa_system_sgpr_workgroup_id_z 0
		.amdhsa_system_sgpr_workgroup_info 0
		.amdhsa_system_vgpr_workitem_id 0
		.amdhsa_next_free_vgpr 40
		.amdhsa_next_free_sgpr 19
		.amdhsa_accum_offset 40
		.amdhsa_reserve_vcc 1
		.amdhsa_reserve_xnack_mask 1
		.amdhsa_float_round_mode_32 0
		.amdhsa_float_round_mode_16_64 0
		.amdhsa_float_denorm_mode_32 3
		.amdhsa_float_denorm_mode_16_64 3
		.amdhsa_dx10_clamp 1
		.amdhsa_ieee_mode 1
		.amdhsa_fp16_overflow 0
		.amdhsa_tg_split 0
		.amdhsa_exception_fp_ieee_invalid_op 0
		.amdhsa_exception_fp_denorm_src 0
		.amdhsa_exception_fp_ieee_div_zero 0
		.amdhsa_exception_fp_ieee_overflow 0
		.amdhsa_exception_fp_ieee_underflow 0
		.amdhsa_exception_fp_ieee_inexact 0
		.amdhsa_exception_int_div_zero 0
	.end_amdhsa_kernel
	.text
.Lfunc_end0:
	.size	matmul, .Lfunc_end0-matmul
	.section	.AMDGPU.csdata,"",@progbits
	.text
	.fill 256, 4, 3212836864
	.section	.AMDGPU.gpr_maximums,"",@progbits
	.text
	.section	".note.GNU-stack","",@progbits
	.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     0
    .args:
      - .address_space:  global
        .offset:         0
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         8
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         16
        .size:           8
        .value_kind:     global_buffer
      - .offset:         24
        .size:           4
        .value_kind:     by_value
      - .offset:         32
        .size:           8
        .value_kind:     by_value
      - .offset:         40
        .size:           8
        .value_kind:     by_value
      - .offset:         48
        .size:           8
        .value_kind:     by_value
      - .address_space:  global
        .offset:         56
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         64
        .size:           8
        .value_kind:     global_buffer
    .group_segment_fixed_size: 0
    .kernarg_segment_align: 8
    .kernarg_segment_size: 72
    .max_flat_workgroup_size: 256
    .name:           matmul
    .private_segment_fixed_size: 0
    .sgpr_count:     25
    .sgpr_spill_count: 0
    .symbol:         matmul.kd
    .uniform_work_group_size: 1
    .uses_dynamic_stack: false
    .vgpr_count:     40
    .vgpr_spill_count: 0
    .wavefront_size: 64
amdhsa.target:   amdgcn-amd-amdhsa--gfx942
amdhsa.version:
  - 1
  - 2
...
	.end_amdgpu_metadata
