// Devices, contexts and events. Contexts are such as libraries before 1.1.7 had, without the extended verbs' table:
// verbs.h then takes the plain functions for ibv_create_qp_ex, ibv_query_device_ex and ibv_query_port, and refuses
// the others.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>

#include "perftest/bare/backend.h"
#include "shadowib/abi/handlers.h"
#include "shadowib/abi/slots.h"

using namespace shadowib;
using bare::ops;

namespace {

constexpr size_t kOldestPortAttr = 48;  // what the exported symbol writes

// Events are read without blocking by those who have asked for it, and until there is one by others; backends'
// descriptors never block.
void let_program_choose(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK); }

bool wait_for_event(int fd) {
  if (errno != EAGAIN || (::fcntl(fd, F_GETFL) & O_NONBLOCK) != 0) return false;
  pollfd p{fd, POLLIN, 0};
  return ::poll(&p, 1, -1) >= 0;
}

void fill_operations(ibv_context* context) {
  static const NewestVerbsContext refusing = [] {
    NewestVerbsContext filled{};
    fill_refusing_slots(&filled);
    return filled;
  }();
  context->ops = refusing.context.context.ops;
  context->ops.poll_cq = ops().poll_cq;
  context->ops.req_notify_cq = ops().req_notify_cq;
  context->ops.post_send = ops().post_send;
  context->ops.post_recv = ops().post_recv;
  context->ops.post_srq_recv = ops().post_srq_recv;
}

int minus1(int rc) {
  if (rc == 0) return 0;
  if (rc > 0) errno = rc;
  return -1;
}

}  // namespace

extern "C" {

ibv_device** shadowib_ibv_get_device_list(int* count) {
  if (count != nullptr) *count = 0;
  bare::turn_program_imports();
  const BackendOps* backend = bare::backend();
  return backend != nullptr ? backend->get_device_list(count) : nullptr;
}
void shadowib_ibv_free_device_list(ibv_device** list) { ops().free_device_list(list); }
const char* shadowib_ibv_get_device_name(ibv_device* device) { return ops().get_device_name(device); }
__be64 shadowib_ibv_get_device_guid(ibv_device* device) { return ops().get_device_guid(device); }
int shadowib_ibv_get_device_index(ibv_device* device) { return ops().get_device_index(device); }

ibv_context* shadowib_ibv_open_device(ibv_device* device) {
  if (int rc = bare::start_helper(); rc != 0) return errno = rc, nullptr;
  ibv_context* context = ops().open_device(device);
  if (context == nullptr) return nullptr;
  fill_operations(context);
  let_program_choose(context->async_fd);
  return context;
}
int shadowib_ibv_close_device(ibv_context* context) { return ops().close_device(context); }

int shadowib_ibv_query_device(ibv_context* context, ibv_device_attr* attr) {
  return ops().query_device(context, attr);
}
int shadowib_ibv_query_port(ibv_context* context, uint8_t port, _compat_ibv_port_attr* attr) {
  return ops().query_port(context, port, reinterpret_cast<ibv_port_attr*>(attr), kOldestPortAttr);
}
int shadowib_ibv_query_gid(ibv_context* context, uint8_t port, int index, ibv_gid* gid) {
  return minus1(ops().query_gid(context, port, index, gid));
}
int shadowib_ibv_query_gid_type(ibv_context* context, uint8_t port, unsigned index, int* type) {
  return minus1(ops().query_gid_type(context, port, index, type));
}
int shadowib_ibv_query_pkey(ibv_context* context, uint8_t port, int index, uint16_t* pkey) {
  return minus1(ops().query_pkey(context, port, index, pkey));
}
int shadowib_ibv_get_pkey_index(ibv_context* context, uint8_t port, uint16_t pkey) {
  uint16_t found = 0;
  for (int i = 0; ops().query_pkey(context, port, i, &found) == 0; ++i)
    if (found == pkey) return i;
  return -1;
}

int shadowib_ibv_query_gid_ex(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* entry,
                              uint32_t flags, size_t entry_size) {
  if (flags != 0 || entry_size < sizeof(*entry) || port > 255) return EINVAL;
  ibv_gid gid{};
  if (int rc = ops().query_gid(context, static_cast<uint8_t>(port), static_cast<int>(index), &gid); rc != 0)
    return EINVAL;
  if (gid.global.subnet_prefix == 0 && gid.global.interface_id == 0) return ENODATA;
  *entry = {};
  entry->gid = gid;
  entry->gid_index = index;
  entry->port_num = port;
  entry->gid_type = IBV_GID_TYPE_IB;
  return 0;
}
ssize_t shadowib_ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries, size_t capacity, uint32_t flags,
                                     size_t entry_size) {
  ssize_t n = 0;
  ibv_gid_entry entry{};
  for (uint32_t port = 1; shadowib_ibv_query_gid_ex(context, port, 0, &entry, flags, entry_size) == 0; ++port, ++n) {
    if (static_cast<size_t>(n) >= capacity) return -EINVAL;
    *reinterpret_cast<ibv_gid_entry*>(reinterpret_cast<char*>(entries) + static_cast<size_t>(n) * entry_size) = entry;
  }
  return n;
}

int shadowib_ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  while (ops().get_async_event(context, event) != 0)
    if (!wait_for_event(context->async_fd)) return -1;
  return 0;
}
void shadowib_ibv_ack_async_event(ibv_async_event* event) { ops().ack_async_event(event); }

ibv_comp_channel* shadowib_ibv_create_comp_channel(ibv_context* context) {
  ibv_comp_channel* channel = ops().create_comp_channel(context);
  if (channel != nullptr) let_program_choose(channel->fd);
  return channel;
}
int shadowib_ibv_destroy_comp_channel(ibv_comp_channel* channel) { return ops().destroy_comp_channel(channel); }

int shadowib_ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
  while (ops().get_cq_event(channel, cq) != 0)
    if (!wait_for_event(channel->fd)) return -1;
  *cq_context = (*cq)->cq_context;
  return 0;
}
void shadowib_ibv_ack_cq_events(ibv_cq* cq, unsigned count) { ops().ack_cq_events(cq, count); }

}  // extern "C"
