// bsp.h for C programs: BSPlib's forms, and MulticoreBSP's under names of their own.
#include <cstdarg>
#include <cstdint>
#include <cstring>

#include "libraries/bsp/complain.h"
#include "libraries/bsp/process.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace shadowib::bsp {
namespace {

// Sizes of BSPlib are int.
inline std::uint64_t size(const char* call, const char* what, long value) {
  if (value < 0) [[unlikely]]
    fail("%s: %s %ld is negative", call, what, value);
  return static_cast<std::uint64_t>(value);
}

inline int to_int(const char* call, std::uint64_t value) {
  if (value > INT32_MAX)
    fail("%s: %llu bytes are more than an int can tell; compile with -DBSP_MULTICORE", call,
         static_cast<unsigned long long>(value));
  return static_cast<int>(value);
}

inline int process(unsigned int pid) { return pid > INT32_MAX ? -1 : static_cast<int>(pid); }

std::uint32_t tag_size(std::uint64_t bytes) {
  constexpr std::uint64_t kMost = 1 << 20;
  if (bytes > kMost)
    fail("bsp_set_tagsize: tags of %llu bytes; the most is 1 MiB", static_cast<unsigned long long>(bytes));
  return static_cast<std::uint32_t>(bytes);
}

void get_tag(const Inbox& inbox, void* tag) {
  if (inbox.tag_bytes() > 0 && tag != nullptr) std::memcpy(tag, inbox.first()->tag, inbox.tag_bytes());
}

void move(void* payload, std::uint64_t capacity) {
  Inbox& inbox = inside("bsp_move").inbox();
  const Inbox::Message* first = inbox.first();
  if (first == nullptr) fail("bsp_move: the queue is empty");
  const std::size_t bytes = first->bytes < capacity ? first->bytes : capacity;
  if (bytes > 0) std::memcpy(payload, first->payload, bytes);
  inbox.remove_first();
}

// nullptr if the queue is empty.
const Inbox::Message* take(void** tag, void** payload) {
  Inbox& inbox = inside("bsp_hpmove").inbox();
  const Inbox::Message* first = inbox.first();
  if (first == nullptr) return nullptr;
  *tag = const_cast<std::byte*>(first->tag);
  *payload = const_cast<std::byte*>(first->payload);
  inbox.remove_first();
  return first;
}

}  // namespace
}  // namespace shadowib::bsp

using namespace shadowib::bsp;  // NOLINT: nothing but exported functions follows

EXPORT void bsp_init(void (*spmd)(), int, char**) { init(spmd); }
EXPORT void bspm_init(void (*spmd)(), int, char**) { init(spmd); }
EXPORT void bsp_begin(int processes) { begin(processes); }
EXPORT void bspm_begin(unsigned int processes) { begin(processes); }
EXPORT void bsp_end() { end(); }
EXPORT void bspm_end() { end(); }
EXPORT int bsp_nprocs() { return process_count(); }
EXPORT unsigned int bspm_nprocs() { return static_cast<unsigned int>(process_count()); }
EXPORT int bsp_pid() { return process_number(); }
EXPORT unsigned int bspm_pid() { return static_cast<unsigned int>(process_number()); }
EXPORT double bsp_time() { return seconds_since_begin(); }
EXPORT double bspm_time() { return seconds_since_begin(); }
EXPORT void bsp_sync() { end_superstep(); }
EXPORT void bspm_sync() { end_superstep(); }

EXPORT void bsp_abort(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fail_with(format, arguments);
}
EXPORT void bspm_abort(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fail_with(format, arguments);
}
EXPORT void bspm_vabort(const char* format, va_list arguments) { fail_with(format, arguments); }

EXPORT void bsp_push_reg(const void* memory, int bytes) {
  inside("bsp_push_reg").push(memory, size("bsp_push_reg", "size", bytes));
}
EXPORT void bspm_push_reg(const void* memory, std::size_t bytes) { inside("bsp_push_reg").push(memory, bytes); }
EXPORT void bsp_pop_reg(const void* memory) { inside("bsp_pop_reg").pop(memory); }
EXPORT void bspm_pop_reg(const void* memory) { inside("bsp_pop_reg").pop(memory); }

EXPORT void bsp_put(int pid, const void* source, void* destination, int offset, int bytes) {
  inside("bsp_put").put("bsp_put", pid, source, destination, size("bsp_put", "offset", offset),
                        size("bsp_put", "size", bytes));
}
EXPORT void bspm_put(unsigned int pid, const void* source, void* destination, std::size_t offset, std::size_t bytes) {
  inside("bsp_put").put("bsp_put", process(pid), source, destination, offset, bytes);
}
EXPORT void bsp_hpput(int pid, const void* source, void* destination, int offset, int bytes) {
  inside("bsp_hpput")
      .put_at_once("bsp_hpput", pid, source, destination, size("bsp_hpput", "offset", offset),
                   size("bsp_hpput", "size", bytes));
}
EXPORT void bspm_hpput(unsigned int pid, const void* source, void* destination, std::size_t offset,
                       std::size_t bytes) {
  inside("bsp_hpput").put_at_once("bsp_hpput", process(pid), source, destination, offset, bytes);
}
EXPORT void bsp_get(int pid, const void* source, int offset, void* destination, int bytes) {
  inside("bsp_get").get("bsp_get", pid, source, size("bsp_get", "offset", offset), destination,
                        size("bsp_get", "size", bytes));
}
EXPORT void bspm_get(unsigned int pid, const void* source, std::size_t offset, void* destination, std::size_t bytes) {
  inside("bsp_get").get("bsp_get", process(pid), source, offset, destination, bytes);
}
EXPORT void bsp_hpget(int pid, const void* source, int offset, void* destination, int bytes) {
  inside("bsp_hpget")
      .get("bsp_hpget", pid, source, size("bsp_hpget", "offset", offset), destination,
           size("bsp_hpget", "size", bytes));
}
EXPORT void bspm_hpget(unsigned int pid, const void* source, std::size_t offset, void* destination,
                       std::size_t bytes) {
  inside("bsp_hpget").get("bsp_hpget", process(pid), source, offset, destination, bytes);
}
EXPORT void bspm_direct_get(unsigned int pid, const void* source, std::size_t offset, void* destination,
                            std::size_t bytes) {
  inside("bsp_direct_get").get_now("bsp_direct_get", process(pid), source, offset, destination, bytes);
}

EXPORT void bsp_set_tagsize(int* tag_bytes) {
  const std::uint32_t bytes = tag_size(size("bsp_set_tagsize", "size", *tag_bytes));
  *tag_bytes = static_cast<int>(inside("bsp_set_tagsize").set_tag_bytes(bytes));
}
EXPORT void bspm_set_tagsize(std::size_t* tag_bytes) {
  *tag_bytes = inside("bsp_set_tagsize").set_tag_bytes(tag_size(*tag_bytes));
}
EXPORT void bsp_send(int pid, const void* tag, const void* payload, int bytes) {
  inside("bsp_send").send("bsp_send", pid, tag, payload, size("bsp_send", "size", bytes));
}
EXPORT void bspm_send(unsigned int pid, const void* tag, const void* payload, std::size_t bytes) {
  inside("bsp_send").send("bsp_send", process(pid), tag, payload, bytes);
}
EXPORT void bspm_hpsend(unsigned int pid, const void* tag, const void* payload, std::size_t bytes) {
  inside("bsp_hpsend").send("bsp_hpsend", process(pid), tag, payload, bytes);
}
EXPORT void bsp_qsize(int* messages, int* bytes) {
  const Inbox& inbox = inside("bsp_qsize").inbox();
  *messages = to_int("bsp_qsize", inbox.count());
  if (bytes != nullptr) *bytes = to_int("bsp_qsize", inbox.bytes());
}
EXPORT void bspm_qsize(unsigned int* messages, std::size_t* bytes) {
  const Inbox& inbox = inside("bsp_qsize").inbox();
  *messages = static_cast<unsigned int>(inbox.count());
  if (bytes != nullptr) *bytes = inbox.bytes();
}
EXPORT void bsp_get_tag(int* status, void* tag) {
  const Inbox& inbox = inside("bsp_get_tag").inbox();
  *status = inbox.first() != nullptr ? to_int("bsp_get_tag", inbox.first()->bytes) : -1;
  if (inbox.first() != nullptr) get_tag(inbox, tag);
}
EXPORT void bspm_get_tag(std::size_t* status, void* tag) {
  const Inbox& inbox = inside("bsp_get_tag").inbox();
  *status = inbox.first() != nullptr ? inbox.first()->bytes : SIZE_MAX;
  if (inbox.first() != nullptr) get_tag(inbox, tag);
}
EXPORT void bsp_move(void* payload, int capacity) { move(payload, size("bsp_move", "size", capacity)); }
EXPORT void bspm_move(void* payload, std::size_t capacity) { move(payload, capacity); }
EXPORT int bsp_hpmove(void** tag, void** payload) {
  const Inbox::Message* taken = take(tag, payload);
  return taken != nullptr ? to_int("bsp_hpmove", taken->bytes) : -1;
}
EXPORT std::size_t bspm_hpmove(void** tag, void** payload) {
  const Inbox::Message* taken = take(tag, payload);
  return taken != nullptr ? taken->bytes : SIZE_MAX;
}
