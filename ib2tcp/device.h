// The devices ib2tcp offers, contexts opened on them and their asynchronous events.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <vector>

#include "shadowib/base/lock.h"

namespace shadowib::ib2tcp {

inline constexpr int kMaxDevices = 8, kMaxPorts = 8;
inline constexpr int kGidTableEntries = 8;  // the first is the port's, the others are empty
inline constexpr int kMaxQp = 65535, kMaxQpWr = 16384, kMaxSge = 30, kMaxCqe = 1 << 22, kMaxMr = 1 << 20,
                     kMaxMw = 65536, kMaxMulticastAttach = 1024;
inline constexpr int kMaxSrq = 65535, kMaxSrqWr = 65535;
inline constexpr int kMaxRdAtomic = 16, kMaxInline = 1024;
// The device takes larger values than it tells (kMax...): a job that comes from an adapter has queues as that one
// granted them. Soft-RoCE has a million requests, which it rounds up, and for 512 bytes of inline data 32 elements,
// asked for or not. As many elements as the shim knows of.
inline constexpr std::uint32_t kMostWr = 1 << 21, kMostSge = 64;

struct Device {
  ibv_device verbs{};  // first: callers see this
  int index = 0;
  int port_count = 1;
  std::uint64_t guid = 0;              // network byte order, drawn at random; a port's GID ends in its LID instead
  std::uint16_t lids[kMaxPorts] = {};  // lids[port - 1]
};

// Events a context has raised and the program has not read. async_fd counts them.
struct Context {
  ibv_context verbs{};  // first
  Device* device = nullptr;
  SpinLock events_lock;
  std::deque<ibv_async_event> events SHADOWIB_GUARDED_BY(events_lock);
  std::atomic<int> users{0};  // protection domains, completion queues, channels

  // Under the engine's lock. Nothing if the object has one of this type that the program has not read: so many events
  // of some objects hide none of another, and objects bound their number.
  void raise(const ibv_async_event& event);
  // Drops events about an object that is being destroyed. `unread` is its own.
  void forget(const void* object, const std::uint32_t& unread);
};

// The port's GID: link-local prefix and its GUID.
union ibv_gid port_gid(const Device& device, int port);

// Slots of BackendOps; see the verbs manual and backend.h.
ibv_device** get_device_list(int* count);
void free_device_list(ibv_device** list);
const char* get_device_name(ibv_device* device);
std::uint64_t get_device_guid(ibv_device* device);
int get_device_index(ibv_device* device);
ibv_context* open_device(ibv_device* device);
int close_device(ibv_context* context);
int query_device(ibv_context* context, ibv_device_attr* attr);
int query_port(ibv_context* context, std::uint8_t port, ibv_port_attr* attr, std::size_t attr_bytes);
int query_gid(ibv_context* context, std::uint8_t port, int index, union ibv_gid* gid);
int query_gid_type(ibv_context* context, std::uint8_t port, unsigned index, int* type);
int query_pkey(ibv_context* context, std::uint8_t port, int index, std::uint16_t* pkey);
int get_async_event(ibv_context* context, ibv_async_event* event);
void ack_async_event(ibv_async_event* event);

}  // namespace shadowib::ib2tcp
