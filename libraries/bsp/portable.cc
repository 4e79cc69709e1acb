#include "libraries/bsp/portable.h"

#include <cstring>
#include <string>
#include <vector>

#include "libraries/bsp/complain.h"
#include "libraries/bsp/process.h"
#include "libraries/bsp/types.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

extern "C" {
unsigned long long shadowib_portable_asked(void);
void shadowib_portable_order(unsigned long long step, unsigned processes);
}

namespace shadowib::bsp {
namespace {

bool is_due = false;

// A process may have more than 2 GiB of unread messages.
static_assert(sizeof(shadowib_bsp_kept::messages) == 8 && sizeof(shadowib_bsp_kept::message_bytes) == 8 &&
              sizeof(shadowib_bsp_kept::memories) == 8);

// In an image a message is its payload's size, 8 bytes, and its types, 4 bytes, both lowest byte first; then the tag
// and the payload.
constexpr std::size_t kHeadBytes = 12;

std::size_t bytes_of(const Inbox& inbox, const Inbox::Message& message) {
  return kHeadBytes + inbox.tag_bytes() + message.bytes;
}

// The record lies in front of its tag.
std::uint32_t types_of(const Inbox::Message& message) {
  Record record;
  std::memcpy(&record, message.tag - sizeof(Record), sizeof(Record));
  return static_cast<std::uint32_t>(record.offset);
}

void write_number(char* at, std::uint64_t number, int bytes) {
  for (int i = 0; i < bytes; ++i) at[i] = static_cast<char>(number >> (8 * i));
}

std::uint64_t read_number(const char* at, int bytes) {
  std::uint64_t number = 0;
  for (int i = 0; i < bytes; ++i) number |= static_cast<std::uint64_t>(static_cast<unsigned char>(at[i])) << (8 * i);
  return number;
}

// Of one message: *tag and *payload become values of this architecture. Returns how many bytes it had in the image.
std::size_t read_message(const shadowib_bsp_kept& kept, std::size_t at, std::uint32_t* types,
                         std::vector<std::byte>* tag, std::vector<std::byte>* payload) {
  const auto all = static_cast<std::size_t>(kept.message_bytes),
             tag_bytes = static_cast<std::size_t>(kept.inbox_tag_bytes);
  const std::uint64_t bytes = all - at >= kHeadBytes ? read_number(kept.message + at, 8) : all;
  if (all - at < kHeadBytes + tag_bytes || bytes > all - at - kHeadBytes - tag_bytes)
    refuse("the messages in the image of process %d are damaged", kept.process);
  *types = static_cast<std::uint32_t>(read_number(kept.message + at + 8, 4));
  const auto* data = reinterpret_cast<const std::byte*>(kept.message) + at + kHeadBytes;
  tag->clear(), payload->clear();
  std::string why = convert(kept.target, static_cast<char>(*types >> 8), data, tag_bytes, tag);
  if (!why.empty()) refuse("the tag of an unread message of process %d %s", kept.process, why.c_str());
  why = convert(kept.target, static_cast<char>(*types & 0xff), data + tag_bytes, bytes, payload);
  if (!why.empty()) refuse("an unread message of process %d %s", kept.process, why.c_str());
  return kHeadBytes + tag_bytes + bytes;
}

void add_message(Outbox* box, const std::vector<std::byte>& tag, const std::vector<std::byte>& payload,
                 std::uint32_t types) {
  const std::size_t place = box->size();
  box->message(tag.data(), static_cast<std::uint32_t>(tag.size()), payload.data(), payload.size());
  box->set_types(place, types);
}

}  // namespace

bool ask_to_save() { return shadowib_portable_asked() != 0; }
void note_due(bool due) { is_due = due; }

}  // namespace shadowib::bsp

using namespace shadowib::bsp;  // NOLINT: nothing but exported functions follows

EXPORT int shadowib_bsp_is_other() { return is_other() ? 1 : 0; }

EXPORT int shadowib_bsp_due() {
  if (is_due) shadowib_portable_order(supersteps->number(), static_cast<unsigned>(process_count()));
  return is_due ? 1 : 0;
}

EXPORT void shadowib_bsp_measure(shadowib_bsp_kept* kept) {
  Supersteps& all = inside("bsp_sync");
  const Inbox& inbox = all.inbox();
  std::size_t bytes = 0;
  inbox.for_each([&](const Inbox::Message& message) { bytes += bytes_of(inbox, message); });
  kept->superstep = static_cast<long long>(all.number());
  kept->seconds = seconds_since_begin();
  kept->process = process_number();
  kept->processes = process_count();
  kept->tag_bytes = static_cast<int>(all.tag_bytes());
  kept->inbox_tag_bytes = static_cast<int>(inbox.tag_bytes());
  kept->memories = static_cast<long long>(all.registers().by_age().size());
  kept->messages = static_cast<long long>(inbox.count());
  kept->message_bytes = static_cast<long long>(bytes);
  std::strncpy(kept->target, kTarget, sizeof(kept->target) - 1);
}

EXPORT void shadowib_bsp_keep(shadowib_bsp_kept* kept) {
  Supersteps& all = inside("bsp_sync");
  int i = 0;
  for (const std::uint32_t slot : all.registers().by_age()) {
    std::byte* begin = all.registers().local(slot);
    kept->memory[i++] = {begin, begin + all.registers().remote(slot, kept->process).bytes};
  }
  char* at = kept->message;
  const Inbox& inbox = all.inbox();
  inbox.for_each([&](const Inbox::Message& message) {
    write_number(at, message.bytes, 8);
    write_number(at + 8, types_of(message), 4);
    if (inbox.tag_bytes() > 0) std::memcpy(at + kHeadBytes, message.tag, inbox.tag_bytes());
    if (message.bytes > 0) std::memcpy(at + kHeadBytes + inbox.tag_bytes(), message.payload, message.bytes);
    at += bytes_of(inbox, message);
  });
}

EXPORT void shadowib_bsp_resume(const shadowib_bsp_kept* kept) {
  if (supersteps != nullptr) {
    // The same process. Its stack has been left and entered, and lies where it lay.
    int i = 0;
    for (const std::uint32_t slot : supersteps->registers().by_age())
      if (kept->memory[i++].begin != supersteps->registers().local(slot))
        fail("a registered local variable has moved; register memory of malloc, or globals");
    return;
  }
  // Before the others are met: what is refused has done nothing.
  std::vector<std::vector<std::byte>> tags(static_cast<std::size_t>(kept->messages)), payloads(tags.size());
  std::vector<std::uint32_t> types(tags.size());
  std::size_t at = 0;
  for (std::size_t i = 0; i < tags.size(); ++i) at += read_message(*kept, at, &types[i], &tags[i], &payloads[i]);
  // Tags are of one type, if there are any messages.
  const int old_tag = kept->inbox_tag_bytes, tag = tags.empty() ? old_tag : static_cast<int>(tags[0].size());
  begin_again(*kept);
  std::vector<RegisteredMemory> memories;
  for (long long i = 0; i < kept->memories; ++i) {
    auto* begin = static_cast<std::byte*>(kept->memory[i].begin);
    memories.push_back({begin, static_cast<std::uint64_t>(static_cast<std::byte*>(kept->memory[i].end) - begin)});
  }
  supersteps->resume(static_cast<std::uint64_t>(kept->superstep),
                     static_cast<std::uint32_t>(kept->tag_bytes == old_tag ? tag : kept->tag_bytes), memories);
  Inbox& inbox = supersteps->inbox();
  inbox.begin(static_cast<std::uint32_t>(tag));
  // As they came in. Messages last until the next sync, and this memory stays.
  auto* box = new Outbox;
  for (std::size_t i = 0; i < tags.size(); ++i) add_message(box, tags[i], payloads[i], types[i]);
  for_each_record(box->data(), box->size(), [&inbox](const Record& record, const std::byte* behind) {
    inbox.add({behind, behind + padded(record.slot), record.bytes});
  });
}

EXPORT void shadowib_bsp_memory_type(const void* type, int is_array) {
  inside("bsp_push_reg").next_memory(type, is_array != 0);
}

EXPORT void shadowib_bsp_types(int tag, int payload) {
  inside("bsp_send").next_types(shadowib::bsp::types_of(tag, payload));
}
