// One process's side of the supersteps: what it puts, gets and sends, and the sync that makes it happen.
//
// One thread. A sync with p = 1 uses no adapter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "libraries/bsp/inbox.h"
#include "libraries/bsp/mesh.h"
#include "libraries/bsp/outbox.h"
#include "libraries/bsp/registers.h"
#include "libraries/bsp/word.h"

namespace shadowib::bsp {

// Registered memory that grows.
class Pool {
 public:
  // At least that many bytes; the old content is gone.
  std::byte* reserve(const Adapter* adapter, std::size_t bytes);
  std::uint32_t key() const { return region_ != nullptr ? region_->lkey : 0; }

 private:
  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
  ibv_mr* region_ = nullptr;
};

// A registration that is made again.
struct RegisteredMemory {
  std::byte* memory;
  std::uint64_t bytes;
};

class Supersteps {
 public:
  // `mesh` is null for one process. Connected, and outlives this.
  Supersteps(int process, int processes, Mesh* mesh);

  // Calls of the program. Each ends the job if the call is wrong; `call` is its name for the message.
  void put(const char* call, int to, const void* source, const void* destination, std::uint64_t offset,
           std::uint64_t bytes);
  void put_at_once(const char* call, int to, const void* source, const void* destination, std::uint64_t offset,
                   std::uint64_t bytes);
  void get(const char* call, int from, const void* source, std::uint64_t offset, void* destination,
           std::uint64_t bytes);
  void get_now(const char* call, int from, const void* source, std::uint64_t offset, void* destination,
               std::uint64_t bytes);
  void send(const char* call, int to, const void* tag, const void* payload, std::uint64_t bytes);
  void push(const void* memory, std::uint64_t bytes);
  void pop(const void* memory);
  // The type that the program's pointer to the next pushed memory leads to, as the portable runtime has it, and
  // whether it is an array, so that characters are meant.
  void next_memory(const void* type, bool is_array) { next_memory_ = {type, is_array, false}; }
  // They count for the next message alone.
  void next_types(std::uint32_t types) { next_types_ = types; }
  std::uint32_t set_tag_bytes(std::uint32_t bytes);  // the present size
  Inbox& inbox() { return inbox_; }

  // Ends the superstep. `due`: a checkpoint is wanted at its end. Returns if one is, which all processes learn alike.
  bool sync(bool due) { return exchange(due ? kCheckpointDue : 0u); }
  // The last one: all processes call it, or the job ends.
  void end() { exchange(kEnding); }
  // A barrier that moves nothing.
  void barrier();
  std::uint64_t number() const { return number_; }
  std::uint32_t tag_bytes() const { return tag_bytes_; }
  const Registers& registers() const { return registers_; }
  // Right after the constructor, in all processes: as behind the sync that began superstep `number`, with these
  // registrations. Ends the job if the others are elsewhere, or have registered otherwise.
  void resume(std::uint64_t number, std::uint32_t tag_bytes, const std::vector<RegisteredMemory>& memories);

 private:
  struct Get {
    int from;
    std::uint32_t slot;
    std::uint64_t offset, bytes;
    void* destination;
  };
  struct Sent {  // an outbox, and the region of its memory once it has grown
    Outbox box;
    ibv_mr* region = nullptr;
    std::size_t registered = 0;
  };
  struct PointerType {
    const void* type = nullptr;
    bool is_array = false;
    bool is_entered = false;  // no pointer: variables of frames that the image had are known
  };
  struct Received {
    std::byte* data;
    std::size_t bytes;
  };

  std::uint32_t slot_of(const char* call, int process, const void* memory, std::uint64_t offset, std::uint64_t bytes);
  void check_process(const char* call, int process) const;
  Sent& sent(int to) { return sent_[2 * to + parity_of(number_)]; }
  bool exchange(std::uint32_t flags);
  void tell_registrations();
  void send_words(std::uint32_t flags);
  std::uint32_t key_of(Sent* sent);
  const Word& word_of(int process) const;
  std::uint32_t judge() const;
  void pull();
  void run_gets();
  void land_gets();
  void apply(int from, const Received& received);
  // In a job of two byte orders (mixed.cc).
  Pattern pattern_of(const void* memory, std::uint64_t bytes) const;
  void check_ends(const char* call, std::uint32_t slot, std::uint64_t offset, std::uint64_t bytes) const;
  void turn_received();
  void turn_message(int from, Record record, std::byte* behind) const;
  void turn_gets();
  void turn_got(int from, std::uint32_t slot, std::uint64_t offset, std::byte* data, std::uint64_t bytes) const;
  void hear_pattern(int from, const std::byte* told, std::size_t bytes);
  void next_superstep();
  void release_sources();
  std::byte* bounce(const void* source, std::size_t bytes);

  const int process_, processes_;
  Mesh* const mesh_;
  Registers registers_;
  Inbox inbox_;
  std::vector<Sent> sent_;  // by peer, then parity
  std::byte* sent_memory_ = nullptr;
  ibv_mr* sent_region_ = nullptr;
  std::vector<Received> received_;
  std::vector<Get> gets_;
  std::vector<ibv_mr*> sources_;  // of puts at once, until the sync
  std::size_t bounced_ = 0;       // bytes of the bounce memory of this superstep
  Pool pulled_, fetched_;
  std::uint32_t tag_bytes_ = 0, next_tag_bytes_ = 0, next_types_ = 0;
  PointerType next_memory_;
  std::uint64_t number_ = 0;
  const bool is_mixed_;
  Word word_;
};

// Empty if process `peer`'s word agrees with process 0's; else what is wrong, for the program's author.
std::string disagreement(const Word& first, const Word& other, int peer);

}  // namespace shadowib::bsp
