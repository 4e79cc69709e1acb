// Jobs with processes of two byte orders: the receiver turns numbers, by the type of the memory that is registered,
// or of the message.
#include <string>
#include <vector>

#include "libraries/bsp/complain.h"
#include "libraries/bsp/superstep.h"
#include "libraries/bsp/types.h"

extern "C" {
using NoteNumbers = void (*)(void* context, std::uint64_t offset, std::uint32_t width, std::uint64_t count);
int shadowib_portable_numbers_at(const void* memory, std::size_t bytes, int entered, std::uint64_t* unit,
                                 std::uint64_t* phase, NoteNumbers note, void* context, const char** why);
int shadowib_portable_numbers_of(const void* type, std::size_t bytes, int is_array, std::uint64_t* unit,
                                 NoteNumbers note, void* context, const char** why);
}

namespace shadowib::bsp {
namespace {

constexpr char kWhose[] = "this job has processes of two byte orders";

enum Known : int { kKnown = 0, kUnknown = 1, kRefused = 2 };  // what these two return

struct Numbers {
  std::uint64_t unit = 0, phase = 0;
  struct Run {
    std::uint64_t offset;
    std::uint32_t width;
    std::uint64_t count;
  };
  std::vector<Run> runs;

  Pattern pattern() const {
    Pattern made(unit, phase);
    for (const Run& run : runs) made.add(run.offset, run.width, run.count);
    return made;
  }
};

void note(void* context, std::uint64_t offset, std::uint32_t width, std::uint64_t count) {
  static_cast<Numbers*>(context)->runs.push_back({offset, width, count});
}

}  // namespace

// The object's type is the one that counts. The pointer's must agree, and tells it where no object is known.
Pattern Supersteps::pattern_of(const void* memory, std::uint64_t bytes) const {
  Numbers object, pointer;
  const char *why = "", *pointer_why = "";
  const int of_object = shadowib_portable_numbers_at(memory, bytes, next_memory_.is_entered ? 1 : 0, &object.unit,
                                                     &object.phase, note, &object, &why);
  if (of_object == kRefused) fail("bsp_push_reg: in the memory at %p %s; %s", memory, why, kWhose);
  const int of_pointer = shadowib_portable_numbers_of(next_memory_.type, bytes, next_memory_.is_array ? 1 : 0,
                                                      &pointer.unit, note, &pointer, &pointer_why);
  if (of_object == kKnown) {
    if (of_pointer == kKnown && !pointer.pattern().agrees(object.pattern(), bytes))
      fail("bsp_push_reg: the memory at %p was made for values of another type than its pointer says; %s", memory,
           kWhose);
    return object.pattern();
  }
  if (of_pointer == kRefused) fail("bsp_push_reg: in the memory at %p %s; %s", memory, pointer_why, kWhose);
  if (of_pointer == kUnknown)
    fail("bsp_push_reg: the type of the memory at %p is not known: %s; %s", memory, pointer_why, kWhose);
  return pointer.pattern();
}

void Supersteps::check_ends(const char* call, std::uint32_t slot, std::uint64_t offset, std::uint64_t bytes) const {
  const Pattern& pattern = registers_.pattern(slot);
  if (bytes == 0 || !(pattern.splits(offset) || pattern.splits(offset + bytes))) return;
  fail("%s: bytes %llu to %llu split a number, and %s", call, static_cast<unsigned long long>(offset),
       static_cast<unsigned long long>(offset + bytes), kWhose);
}

void Supersteps::turn_message(int from, Record record, std::byte* behind) const {
  const auto types = static_cast<std::uint32_t>(record.offset);
  std::string why = turn(static_cast<char>(types >> 8), behind, record.slot);
  if (!why.empty())
    fail("the tag of a message of process %d, whose byte order is another one, %s", from, why.c_str());
  why = turn(static_cast<char>(types & 0xff), behind + padded(record.slot), record.bytes);
  if (!why.empty()) fail("a message of process %d, whose byte order is another one, %s", from, why.c_str());
}

void Supersteps::turn_received() {
  for (int from = 0; from < processes_; ++from) {
    if (from == process_ || !mesh_->is_turned(from)) continue;
    const Received& received = received_[from];
    for_each_record(received.data, received.bytes, [&](const Record& record, const std::byte* behind) {
      std::byte* data = received.data + (behind - received.data);
      if (record.kind == RecordKind::kPut) registers_.pattern(record.slot).turn(record.offset, data, record.bytes);
      if (record.kind == RecordKind::kMessage) turn_message(from, record, data);
    });
  }
}

void Supersteps::turn_got(int from, std::uint32_t slot, std::uint64_t offset, std::byte* data,
                          std::uint64_t bytes) const {
  if (from != process_ && mesh_->is_turned(from)) registers_.pattern(slot).turn(offset, data, bytes);
}

void Supersteps::turn_gets() {
  std::byte* at = fetched_.reserve(nullptr, 0);
  for (const Get& get : gets_) {
    turn_got(get.from, get.slot, get.offset, at, get.bytes);
    at += padded(get.bytes);
  }
}

// All processes hear all of them, and so come to one verdict; process 0 tells it.
void Supersteps::hear_pattern(int from, const std::byte* told, std::size_t bytes) {
  Pattern pattern;
  if (!pattern.decode(told, bytes)) fail("process %d has told no types of its registered memory", from);
  if (registers_.hear_pattern(from, pattern)) return;
  if (process_ == 0)
    fail("process %d has registered memory of another type than a process before it, in superstep %llu; %s", from,
         static_cast<unsigned long long>(number_), kWhose);
  mesh_->await_end(kToBeEndedMs);
  end_quietly();
}

}  // namespace shadowib::bsp
