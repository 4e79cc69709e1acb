// The functions behind the exported verbs: handling "shadow" in verbs.def, defined in shadowib/entry, reached from
// exports.S.
//
// Each has the type of the verb it answers for; manual page and error convention stand in verbs.def.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>

extern "C" {

// Devices.
decltype(ibv_get_device_list) shadowib_ibv_get_device_list;
decltype(ibv_free_device_list) shadowib_ibv_free_device_list;
decltype(ibv_get_device_name) shadowib_ibv_get_device_name;
decltype(ibv_get_device_guid) shadowib_ibv_get_device_guid;
decltype(ibv_get_device_index) shadowib_ibv_get_device_index;
decltype(ibv_open_device) shadowib_ibv_open_device;
decltype(ibv_close_device) shadowib_ibv_close_device;
decltype(ibv_query_device) shadowib_ibv_query_device;
// Writes the first 48 bytes of an ibv_port_attr only.
int shadowib_ibv_query_port(ibv_context* context, std::uint8_t port, struct _compat_ibv_port_attr* attr);
decltype(ibv_query_gid) shadowib_ibv_query_gid;
decltype(_ibv_query_gid_ex) shadowib_ibv_query_gid_ex;
decltype(_ibv_query_gid_table) shadowib_ibv_query_gid_table;
// Private to rdma-core: enum ibv_gid_type_sysfs { IBV_GID_TYPE_SYSFS_IB_ROCE_V1, IBV_GID_TYPE_SYSFS_ROCE_V2 }.
int shadowib_ibv_query_gid_type(ibv_context* context, std::uint8_t port, unsigned index, int* type);
decltype(ibv_query_pkey) shadowib_ibv_query_pkey;
decltype(ibv_get_pkey_index) shadowib_ibv_get_pkey_index;
decltype(ibv_get_async_event) shadowib_ibv_get_async_event;
decltype(ibv_ack_async_event) shadowib_ibv_ack_async_event;

// Has `function` called by ibv_get_sysfs_path first: whoever asks goes on to look for devices there.
void shadowib_on_sysfs_path(void (*function)());

// Protection domains and memory.
decltype(ibv_alloc_pd) shadowib_ibv_alloc_pd;
decltype(ibv_dealloc_pd) shadowib_ibv_dealloc_pd;
ibv_mr* shadowib_ibv_reg_mr(ibv_pd* pd, void* address, size_t length, int access);
ibv_mr* shadowib_ibv_reg_mr_iova(ibv_pd* pd, void* address, size_t length, std::uint64_t iova, int access);
ibv_mr* shadowib_ibv_reg_mr_iova2(ibv_pd* pd, void* address, size_t length, std::uint64_t iova, unsigned access);
decltype(ibv_dereg_mr) shadowib_ibv_dereg_mr;

// Completion.
decltype(ibv_create_comp_channel) shadowib_ibv_create_comp_channel;
decltype(ibv_destroy_comp_channel) shadowib_ibv_destroy_comp_channel;
decltype(ibv_create_cq) shadowib_ibv_create_cq;
decltype(ibv_destroy_cq) shadowib_ibv_destroy_cq;
decltype(ibv_get_cq_event) shadowib_ibv_get_cq_event;
decltype(ibv_ack_cq_events) shadowib_ibv_ack_cq_events;

// Queue pairs.
decltype(ibv_create_qp) shadowib_ibv_create_qp;
decltype(ibv_modify_qp) shadowib_ibv_modify_qp;
decltype(ibv_query_qp) shadowib_ibv_query_qp;
decltype(ibv_destroy_qp) shadowib_ibv_destroy_qp;
decltype(ibv_query_qp_data_in_order) shadowib_ibv_query_qp_data_in_order;
decltype(ibv_qp_to_qp_ex) shadowib_ibv_qp_to_qp_ex;

// Shared receive queues.
decltype(ibv_rereg_mr) shadowib_ibv_rereg_mr;
decltype(ibv_resize_cq) shadowib_ibv_resize_cq;
decltype(ibv_create_ah) shadowib_ibv_create_ah;
decltype(ibv_create_ah_from_wc) shadowib_ibv_create_ah_from_wc;
decltype(ibv_destroy_ah) shadowib_ibv_destroy_ah;
decltype(ibv_init_ah_from_wc) shadowib_ibv_init_ah_from_wc;
decltype(ibv_attach_mcast) shadowib_ibv_attach_mcast;
decltype(ibv_detach_mcast) shadowib_ibv_detach_mcast;
decltype(ibv_create_srq) shadowib_ibv_create_srq;
decltype(ibv_modify_srq) shadowib_ibv_modify_srq;
decltype(ibv_query_srq) shadowib_ibv_query_srq;
decltype(ibv_destroy_srq) shadowib_ibv_destroy_srq;

// fork.
decltype(ibv_fork_init) shadowib_ibv_fork_init;
int shadowib_ibv_dontfork_range(void* base, size_t size);
int shadowib_ibv_dofork_range(void* base, size_t size);
decltype(ibv_is_fork_initialized) shadowib_ibv_is_fork_initialized;

}  // extern "C"
