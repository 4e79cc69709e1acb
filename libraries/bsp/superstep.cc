#include "libraries/bsp/superstep.h"

#include <poll.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "libraries/bsp/complain.h"
#include "libraries/bsp/sabotage.h"

namespace shadowib::bsp {
namespace {

constexpr std::size_t kBounceBytes = 64 << 10;  // per superstep
constexpr std::size_t kMostBounced = 2048;      // more is registered where it lies
#ifdef SHADOWIB_BSP_PORTABLE
constexpr bool kMayBeMixed = true;
#else
constexpr bool kMayBeMixed = false;  // all processes are of this machine
#endif

std::byte* map_memory(std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("no memory for %zu bytes of communication", bytes);
  return static_cast<std::byte*>(memory);
}

ibv_mr* register_or_fail(const Adapter& adapter, const void* memory, std::size_t bytes, int access) {
  ibv_mr* region = adapter.register_memory(memory, bytes, access);
  if (region == nullptr)
    fail("cannot register %zu bytes at %p with the RDMA device: %s", bytes, memory, std::strerror(errno));
  return region;
}

}  // namespace

std::byte* Pool::reserve(const Adapter* adapter, std::size_t bytes) {
  if (bytes <= bytes_) return memory_;
  if (region_ != nullptr) ibv_dereg_mr(region_);
  if (memory_ != nullptr) ::munmap(memory_, bytes_);
  bytes_ = std::max((bytes + 4095) & ~std::size_t{4095}, 2 * bytes_);
  memory_ = map_memory(bytes_);
  region_ = adapter != nullptr ? register_or_fail(*adapter, memory_, bytes_, IBV_ACCESS_LOCAL_WRITE) : nullptr;
  return memory_;
}

Supersteps::Supersteps(int process, int processes, Mesh* mesh)
    : process_(process),
      processes_(processes),
      mesh_(mesh),
      registers_(processes),
      sent_(2 * processes),
      received_(processes),
      is_mixed_(mesh != nullptr && mesh->is_mixed()) {
  const std::size_t bytes = 2 * kSlotBytes * processes + 2 * kBounceBytes;
  sent_memory_ = map_memory(bytes);
  for (int i = 0; i < 2 * processes; ++i) sent_[i].box.begin_in(sent_memory_ + i * kSlotBytes, kSlotBytes);
  if (mesh_ != nullptr) sent_region_ = register_or_fail(mesh_->adapter(), sent_memory_, bytes, 0);
}

// What the program calls.

void Supersteps::check_process(const char* call, int process) const {
  if (process < 0 || process >= processes_) [[unlikely]]
    fail("%s: there is no process %d; numbers are 0 to %d", call, process, processes_ - 1);
}

std::uint32_t Supersteps::slot_of(const char* call, int process, const void* memory, std::uint64_t offset,
                                  std::uint64_t bytes) {
  check_process(call, process);
  const std::uint32_t slot = registers_.find(memory);
  if (slot == Registers::kNone) [[unlikely]]
    fail("%s: %p is not registered; registrations count from the superstep after bsp_push_reg()", call, memory);
  const std::uint64_t there = registers_.remote(slot, process).bytes;
  if (offset > there || bytes > there - offset) [[unlikely]]
    fail("%s: bytes %llu to %llu are beyond the %llu that process %d has registered", call,
         static_cast<unsigned long long>(offset), static_cast<unsigned long long>(offset + bytes),
         static_cast<unsigned long long>(there), process);
  if constexpr (kMayBeMixed) {
    if (is_mixed_) [[unlikely]]
      check_ends(call, slot, offset, bytes);
  }
  return slot;
}

void Supersteps::put(const char* call, int to, const void* source, const void* destination, std::uint64_t offset,
                     std::uint64_t bytes) {
  const std::uint32_t slot = slot_of(call, to, destination, offset, bytes);
  if (bytes > 0) sent(to).box.put(slot, offset, source, bytes);
}

std::byte* Supersteps::bounce(const void* source, std::size_t bytes) {
  if (bytes > kMostBounced || bounced_ + bytes > kBounceBytes) return nullptr;
  std::byte* at = sent_memory_ + 2 * kSlotBytes * processes_ + (number_ & 1) * kBounceBytes + bounced_;
  bounced_ += padded(bytes);
  std::memcpy(at, source, bytes);
  return at;
}

void Supersteps::put_at_once(const char* call, int to, const void* source, const void* destination,
                             std::uint64_t offset, std::uint64_t bytes) {
  const std::uint32_t slot = slot_of(call, to, destination, offset, bytes);
  if (bytes == 0) return;
#ifdef SHADOWIB_BSP_PORTABLE  // a peer that computes would not answer when it is asked whether it may be written to
  if (to != process_) return sent(to).box.put(slot, offset, source, bytes);
#endif
  if (to == process_) {
    std::memmove(registers_.local(slot) + offset, source, bytes);
    return;
  }
  const RemoteMemory& there = registers_.remote(slot, to);
  mesh_->await_superstep(to);
  if (const std::byte* copy = bounce(source, bytes); copy != nullptr)
    return mesh_->write(to, {copy, sent_region_->lkey}, there.address + offset, there.key, bytes);
  ibv_mr* region = register_or_fail(mesh_->adapter(), source, bytes, 0);
  sources_.push_back(region);
  mesh_->write(to, {source, region->lkey}, there.address + offset, there.key, bytes);
}

void Supersteps::get(const char* call, int from, const void* source, std::uint64_t offset, void* destination,
                     std::uint64_t bytes) {
  const std::uint32_t slot = slot_of(call, from, source, offset, bytes);
  if (bytes > 0) gets_.push_back({from, slot, offset, bytes, destination});
}

void Supersteps::get_now(const char* call, int from, const void* source, std::uint64_t offset, void* destination,
                         std::uint64_t bytes) {
  const std::uint32_t slot = slot_of(call, from, source, offset, bytes);
  if (bytes == 0) return;
  if (from == process_) {
    std::memmove(destination, registers_.local(slot) + offset, bytes);
    return;
  }
  const RemoteMemory& there = registers_.remote(slot, from);
  mesh_->await_superstep(from);
  std::byte* fetched = fetched_.reserve(&mesh_->adapter(), bytes);
  mesh_->read(from, fetched, fetched_.key(), there.address + offset, there.key, bytes);
  mesh_->wait_reads();
  if constexpr (kMayBeMixed) {
    if (is_mixed_) [[unlikely]]
      turn_got(from, slot, offset, fetched, bytes);
  }
  std::memcpy(destination, fetched, bytes);
}

void Supersteps::send(const char* call, int to, const void* tag, const void* payload, std::uint64_t bytes) {
  check_process(call, to);
  Outbox& box = sent(to).box;
#ifdef SHADOWIB_BSP_PORTABLE
  const std::size_t place = box.size();
  box.message(tag, tag_bytes_, payload, bytes);
  box.set_types(place, next_types_);
  next_types_ = 0;
#else
  box.message(tag, tag_bytes_, payload, bytes);
#endif
}

void Supersteps::push(const void* memory, std::uint64_t bytes) {
  ibv_mr* region = nullptr;
  if (mesh_ != nullptr && bytes > 0) {
    constexpr int kAll = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    region = mesh_->adapter().register_memory(memory, bytes, kAll);
    if (region == nullptr)  // memory that may only be read
      region = register_or_fail(mesh_->adapter(), memory, bytes, IBV_ACCESS_REMOTE_READ);
  }
  Pattern pattern;
  if constexpr (kMayBeMixed) {
    if (is_mixed_ && bytes > 0) pattern = pattern_of(memory, bytes);
    next_memory_ = {};
  }
  registers_.push(memory, bytes, region != nullptr ? region->rkey : 0, region, std::move(pattern));
}

void Supersteps::pop(const void* memory) {
  if (!registers_.pop(memory)) fail("bsp_pop_reg: %p is not registered", memory);
}

std::uint32_t Supersteps::set_tag_bytes(std::uint32_t bytes) {
  next_tag_bytes_ = bytes;
  return tag_bytes_;
}

// The sync.

void Supersteps::tell_registrations() {
  for (const Registers::Pending& p : registers_.pending()) {
    if (!p.is_push) continue;
    const auto address = reinterpret_cast<std::uintptr_t>(p.memory);
    for (int i = 0; i < processes_; ++i) {
      if (i == process_) {
        registers_.hear(i, {address, p.bytes, p.key});
        continue;
      }
      sent(i).box.registration(address, p.bytes, p.key);
      if (p.pattern.is_known()) sent(i).box.pattern(p.pattern.encode());
    }
  }
}

// Of an outbox that has outgrown its slot: of all its memory, registered once for each size.
std::uint32_t Supersteps::key_of(Sent* sent) {
  if (!sent->box.has_grown()) return sent_region_->lkey;
  if (sent->registered != sent->box.capacity()) {
    if (sent->region != nullptr) ibv_dereg_mr(sent->region);
    sent->region = register_or_fail(mesh_->adapter(), sent->box.data(), sent->box.capacity(), IBV_ACCESS_REMOTE_READ);
    sent->registered = sent->box.capacity();
  }
  return sent->box.size() > kSlotBytes ? sent->region->rkey : sent->region->lkey;
}

void Supersteps::send_words(std::uint32_t flags) {
  word_.superstep = number_;
  word_.order = registers_.order() ^ (std::uint64_t{next_tag_bytes_} << 32 | next_tag_bytes_);
  word_.flags = flags;
  if (mesh_ == nullptr) return;
  (flags & kEnding) != 0 ? mesh_->begin_last_barrier() : mesh_->begin_barrier();
  for (int i = 0; i < processes_; ++i) {
    if (i == process_) continue;
    Sent& box = sent(i);
    const std::size_t bytes = box.box.size();
    word_.bytes = bytes;
    if (bytes == 0) {
      mesh_->send_word(i, word_, {}, 0);
      continue;
    }
    word_.address = reinterpret_cast<std::uintptr_t>(box.box.data());
    word_.key = key_of(&box);
    mesh_->send_word(i, word_, {box.box.data(), word_.key}, bytes <= kSlotBytes ? bytes : 0);
  }
}

const Word& Supersteps::word_of(int process) const {
  return process == process_ ? word_ : mesh_->slot(process, parity_of(number_)).word;
}

std::string disagreement(const Word& first, const Word& other, int peer) {
  const std::string who = "process " + std::to_string(peer);
  if (first.superstep != other.superstep)
    return who + " is in superstep " + std::to_string(other.superstep) + ", process 0 in " +
           std::to_string(first.superstep);
  if ((first.flags & kEnding) != (other.flags & kEnding))
    return (other.flags & kEnding) != 0 ? who + " called bsp_end() where process 0 called bsp_sync()"
                                        : who + " called bsp_sync() where process 0 called bsp_end()";
  if (first.order != other.order)
    return who +
           " and process 0 have registered or removed memory in another order, or set other tag sizes, in "
           "superstep " +
           std::to_string(first.superstep);
  return {};
}

// All processes see all words, and so come to one verdict; process 0 tells it.
std::uint32_t Supersteps::judge() const {
  const Word& first = word_of(0);
  std::uint32_t flags = first.flags;
  for (int i = 1; i < processes_; ++i) {
    const Word& word = word_of(i);
    flags |= word.flags;
    if (word.order == first.order && word.superstep == first.superstep && ((word.flags ^ first.flags) & kEnding) == 0)
      continue;
    if (process_ == 0) fail("%s", disagreement(first, word, i).c_str());
    mesh_->await_end(kToBeEndedMs);
    end_quietly();
  }
  return flags;
}

void Supersteps::pull() {
  std::size_t bytes = 0;
  for (int i = 0; i < processes_; ++i) {
    if (i == process_) {
      received_[i] = {sent(i).box.data(), sent(i).box.size()};
      continue;
    }
    Slot& slot = mesh_->slot(i, parity_of(number_));
    received_[i] = {slot.data, slot.word.bytes};
    if (slot.word.bytes > kSlotBytes) bytes += padded(slot.word.bytes);
  }
  if (bytes == 0) return;
  std::byte* at = pulled_.reserve(&mesh_->adapter(), bytes);
  for (int i = 0; i < processes_; ++i) {
    if (i == process_ || received_[i].bytes <= kSlotBytes) continue;
    const Word& word = word_of(i);
    mesh_->read(i, at, pulled_.key(), word.address, word.key, word.bytes);
    received_[i].data = at;
    at += padded(word.bytes);
  }
  mesh_->wait_reads();
}

// Memory is at rest: everybody is in this sync, and puts count later.
void Supersteps::run_gets() {
  std::size_t bytes = 0;
  for (const Get& get : gets_) bytes += padded(get.bytes);
  if (bytes == 0) return;
  std::byte* at = fetched_.reserve(mesh_ != nullptr ? &mesh_->adapter() : nullptr, bytes);
  for (const Get& get : gets_) {
    const RemoteMemory& there = registers_.remote(get.slot, get.from);
    if (get.from == process_)
      std::memcpy(at, registers_.local(get.slot) + get.offset, get.bytes);
    else
      mesh_->read(get.from, at, fetched_.key(), there.address + get.offset, there.key, get.bytes);
    at += padded(get.bytes);
  }
  if (mesh_ != nullptr) mesh_->wait_reads();
}

void Supersteps::land_gets() {
  if (gets_.empty()) return;
  const std::byte* at = fetched_.reserve(nullptr, 0);
  for (const Get& get : gets_) {
    std::memcpy(get.destination, at, get.bytes);
    at += padded(get.bytes);
  }
  gets_.clear();
}

void Supersteps::apply(int from, const Received& received) {
  for_each_record(received.data, received.bytes, [this, from](const Record& record, const std::byte* behind) {
    switch (record.kind) {
      case RecordKind::kPut:
        std::memcpy(registers_.local(record.slot) + record.offset, behind, record.bytes);
        break;
      case RecordKind::kMessage:
        inbox_.add({behind, behind + padded(record.slot), record.bytes});
        break;
      case RecordKind::kRegister:
        registers_.hear(from, {record.offset, record.bytes, record.slot});
        break;
      case RecordKind::kPattern:
        if constexpr (kMayBeMixed) hear_pattern(from, behind, record.bytes);
        break;
    }
  });
}

void Supersteps::barrier() {
  if (mesh_ == nullptr) return;
  mesh_->begin_barrier();
  for (int i = 0; i < processes_; ++i)
    if (i != process_) mesh_->send_signal(i);
  mesh_->wait_barrier();
}

// Their requests have left when flush() returns; the program may change the memory then.
void Supersteps::release_sources() {
  if (sources_.empty()) return;
  mesh_->flush();
  for (ibv_mr* region : sources_) ibv_dereg_mr(region);
  sources_.clear();
}

void Supersteps::next_superstep() {
  if (!registers_.pending().empty())
    registers_.commit([](void* region) { ibv_dereg_mr(static_cast<ibv_mr*>(region)); });
  tag_bytes_ = next_tag_bytes_;
  ++number_;
  if (mesh_ != nullptr) mesh_->begin_superstep(number_);
  bounced_ = 0;
  for (int i = 0; i < processes_; ++i) sent(i).box.clear();
}

bool Supersteps::exchange(std::uint32_t flags) {
  if (!registers_.pending().empty()) tell_registrations();
  if (!gets_.empty()) flags |= kHasGets;
  send_words(flags);
  if (mesh_ != nullptr) mesh_->wait_barrier();
  const std::uint32_t all = judge();
  release_sources();
  if ((all & kEnding) != 0) {
    if (mesh_ != nullptr) mesh_->flush();
    return false;
  }
  pull();
  if constexpr (kMayBeMixed) {
    if (is_mixed_) [[unlikely]]
      turn_received();
  }
  if ((all & kHasGets) != 0) {
    dawdle(process_, 0);
    run_gets();
    if constexpr (kMayBeMixed) {
      if (is_mixed_) [[unlikely]]
        turn_gets();
    }
    if (!without("gets_barrier")) {
      barrier();
      dawdle(process_, 1);  // who is slow on both sides of it does not meet the other one without it
    }
    land_gets();
  }
  if (!without("gets_barrier")) dawdle(process_, 1);
  if (!without("unread_messages")) inbox_.begin(tag_bytes_);
  for (int i = 0; i < processes_; ++i) apply(i, received_[i]);
  next_superstep();
  return (all & kCheckpointDue) != 0;
}

void Supersteps::resume(std::uint64_t number, std::uint32_t tag_bytes,
                        const std::vector<RegisteredMemory>& memories) {
  number_ = number - 1;
  if (mesh_ != nullptr) mesh_->begin_superstep(number_);
  next_tag_bytes_ = tag_bytes;
  for (const RegisteredMemory& memory : memories) {
    next_memory_ = {nullptr, false, true};
    push(memory.memory, memory.bytes);
  }
  exchange(0);
}

}  // namespace shadowib::bsp
