#include "libraries/bsp/mesh.h"

#include <poll.h>
#include <shadowib/shadowib.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "libraries/bsp/complain.h"
#include "libraries/bsp/meeting.h"

namespace shadowib::bsp {
namespace {

constexpr std::uint32_t kSignalEvery = 16;
// In the immediate data of a word: the job ends; because a process is gone.
constexpr std::uint32_t kEndBit = 1u << 31, kLostBit = 1u << 30;
constexpr int kSleepMs = 250;  // then peers that owe something are asked for a sign of life
constexpr int kNextTellsMs = 2000;
constexpr int kAbortPolls = 1000;  // of a millisecond

constexpr int kReceiveAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

}  // namespace

Mesh::Mesh(int process, int processes, std::uint64_t epoch, int spins)
    : process_(process),
      processes_(processes),
      spins_(spins),
      epoch_(epoch),
      adapter_(process, processes),
      peers_(processes),
      receives_(std::max<std::uint32_t>(16, processes)) {
  const std::size_t slots = 2 * sizeof(Slot) * processes, bytes = slots + sizeof(Shown);
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("no memory for the slots of %d processes", processes);
  slots_ = static_cast<Slot*>(memory);
  shown_ = reinterpret_cast<Shown*>(static_cast<std::byte*>(memory) + slots);
  slots_memory_ = adapter_.register_memory(memory, bytes, kReceiveAccess);
  if (slots_memory_ == nullptr) fail("cannot register memory: %s", std::strerror(errno));
  for (std::size_t i = 0; i < receives_.size(); ++i)
    receives_[i] = {0, i + 1 < receives_.size() ? &receives_[i + 1] : nullptr, nullptr, 0};
  for (std::uint32_t posted = 0; posted + receives_.size() <= adapter_.receive_depth(); posted += receives_.size()) {
    taken_receives_ = static_cast<std::uint32_t>(receives_.size());
    repost_receives();
  }
}

void Mesh::connect() {
  Greeting own;
  own.epoch = epoch_;
  own.process = static_cast<std::uint32_t>(process_);
  own.processes = static_cast<std::uint32_t>(processes_);
  own.slots_address = reinterpret_cast<std::uintptr_t>(slots_);
  own.slots_key = slots_memory_->rkey;
  adapter_.describe(&own);
  const std::vector<std::byte> value = encode(own);
  const std::string name = greeting_name(epoch_, process_);
  show(name, value.data(), value.size());
  std::vector<std::byte> heard(SHADOWIB_VALUE_BYTES);
  for (int i = 0; i < processes_; ++i) {
    if (i == process_) continue;
    const std::size_t bytes = await(epoch_, i, greeting_name(epoch_, i), heard.data(), heard.size());
    Greeting greeting;
    const std::string wrong = decode(heard.data(), bytes, epoch_, i, processes_, &greeting);
    if (!wrong.empty()) fail("the greeting of process %d is wrong: %s", i, wrong.c_str());
    Peer& peer = peers_[i];
    peer.qp = adapter_.queue_pair(i);
    peer.is_turned = ((greeting.layout ^ own.layout) & kBigEndian) != 0;
    is_mixed_ = is_mixed_ || peer.is_turned;
    peer.slots = greeting.slots_address + 2 * sizeof(Slot) * static_cast<std::uint64_t>(process_);
    peer.shown = greeting.slots_address + 2 * sizeof(Slot) * static_cast<std::uint64_t>(processes_);
    peer.key = greeting.slots_key;
    peer.data.sg_list = &peer.data_sge;
    peer.data.num_sge = 1;
    peer.data.opcode = IBV_WR_RDMA_WRITE;
    peer.data.next = &peer.word;
    peer.data.wr.rdma.rkey = peer.word.wr.rdma.rkey = peer.key;
    peer.word.sg_list = &peer.word_sge;
    peer.word.num_sge = 1;
    peer.word.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    peer.word.imm_data = static_cast<std::uint32_t>(process_);
    peer.word_sge.length = sizeof(Word);
    adapter_.connect(i, greeting);
  }
  // A write must not come before the queue pair can receive.
  const std::string ready = ".ready";
  show(name + ready, "", 0);
  for (int i = 0; i < processes_; ++i)
    if (i != process_) await(epoch_, i, greeting_name(epoch_, i) + ready, heard.data(), heard.size());
}

// Requests.

void Mesh::make_room(int peer) {
  wait([this, peer] { return peers_[peer].outstanding <= kSendDepth - 4; });
}

void Mesh::post(int to, ibv_send_wr* first, ibv_send_wr* last, std::uint32_t count) {
  Peer& peer = peers_[to];
  if (peer.outstanding > kSendDepth - 4) [[unlikely]]
    make_room(to);
  peer.outstanding += count;
  peer.unsignaled += count;
  last->send_flags &= ~static_cast<unsigned>(IBV_SEND_SIGNALED);
  if (peer.unsignaled >= kSignalEvery) {
    last->send_flags |= IBV_SEND_SIGNALED;
    last->wr_id = static_cast<std::uint64_t>(Kind::kPosted) | static_cast<std::uint64_t>(to) << 8 |
                  static_cast<std::uint64_t>(peer.unsignaled) << 32;
    peer.unsignaled = 0;
  } else {
    last->wr_id = static_cast<std::uint64_t>(Kind::kPosted) | static_cast<std::uint64_t>(to) << 8;
  }
  first->wr_id = first == last ? first->wr_id : static_cast<std::uint64_t>(to) << 8;
  ibv_send_wr* bad = nullptr;
  if (ibv_post_send(peer.qp, first, &bad) != 0) [[unlikely]]
    lose(to, "cannot be sent to");
}

// A request that completes.
void Mesh::post_one(int to, ibv_send_wr* wr, Kind kind) {
  Peer& peer = peers_[to];
  if (peer.outstanding > kSendDepth - 4) make_room(to);
  ++peer.outstanding;
  wr->send_flags |= IBV_SEND_SIGNALED;
  wr->wr_id = static_cast<std::uint64_t>(kind) | static_cast<std::uint64_t>(to) << 8 |
              static_cast<std::uint64_t>(peer.unsignaled + 1) << 32;
  peer.unsignaled = 0;
  ibv_send_wr* bad = nullptr;
  if (ibv_post_send(peer.qp, wr, &bad) == 0) return;
  if (!may_be_gone(peer)) lose(to, "cannot be sent to");
  peer.outstanding = 0;
}

void Mesh::send_word(int to, const Word& word, const Local& data, std::size_t bytes) {
  Peer& peer = peers_[to];
  const std::uint64_t there = peer.slots + parity_of(word.superstep) * sizeof(Slot);
  peer.word_sge.addr = reinterpret_cast<std::uintptr_t>(&word);
  peer.word_sge.length = sizeof(Word);
  peer.word.wr.rdma.remote_addr = there + offsetof(Slot, word);
  peer.word.send_flags = IBV_SEND_INLINE;
  if (bytes == 0) return post(to, &peer.word, &peer.word, 1);
  peer.data_sge = {reinterpret_cast<std::uintptr_t>(data.memory), static_cast<std::uint32_t>(bytes), data.key};
  peer.data.wr.rdma.remote_addr = there + offsetof(Slot, data);
  post(to, &peer.data, &peer.word, 2);
}

void Mesh::send_signal(int to) {
  Peer& peer = peers_[to];
  peer.word_sge.length = 0;
  peer.word.wr.rdma.remote_addr = peer.slots;
  peer.word.send_flags = IBV_SEND_INLINE;
  post(to, &peer.word, &peer.word, 1);
}

void Mesh::read(int from, void* to, std::uint32_t to_key, std::uint64_t address, std::uint32_t key,
                std::uint64_t bytes) {
  constexpr std::uint64_t kMost = 1u << 30;
  for (std::uint64_t done = 0; done < bytes;) {
    const auto part = static_cast<std::uint32_t>(std::min(kMost, bytes - done));
    ibv_sge sge{reinterpret_cast<std::uintptr_t>(to) + done, part, to_key};
    ibv_send_wr wr{};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_RDMA_READ;
    wr.wr.rdma = {address + done, key};
    ++reads_;
    ++peers_[from].reads;
    post_one(from, &wr, Kind::kRead);
    done += part;
  }
}

void Mesh::write(int to, const Local& from, std::uint64_t address, std::uint32_t key, std::uint64_t bytes) {
  constexpr std::uint64_t kMost = 1u << 30;
  for (std::uint64_t done = 0; done < bytes;) {
    const auto part = static_cast<std::uint32_t>(std::min(kMost, bytes - done));
    ibv_sge sge{reinterpret_cast<std::uintptr_t>(from.memory) + done, part, from.key};
    ibv_send_wr wr{};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.wr.rdma = {address + done, key};
    post(to, &wr, &wr, 1);
    done += part;
  }
}

// Its word of this superstep says it, too: that is sent at the superstep's end.
void Mesh::ask_superstep(int from) {
  if (without("begun")) return;
  Peer& peer = peers_[from];
  while (poll()) {
  }
  for (std::uint64_t there = 0; peer.arrived == barrier_ && there != shown_->superstep;) {
    read(from, &shown_->read, slots_memory_->lkey, peer.shown + offsetof(Shown, superstep), peer.key, sizeof(there));
    wait_reads();
    there = shown_->read;
  }
  peer.superstep = shown_->superstep;
}

// Barriers.

void Mesh::begin_barrier() {
  ++barrier_;
  missing_ = 0;
  for (int i = 0; i < processes_; ++i)
    if (i != process_ && peers_[i].arrived != barrier_) ++missing_;
}

void Mesh::begin_last_barrier() {
  begin_barrier();
  is_last_ = true;
}

void Mesh::arrive(std::uint32_t immediate) {
  if ((immediate & kEndBit) != 0) {
    is_told_ = true;
    if ((immediate & kLostBit) == 0) end_quietly();  // also if its end was noticed before its word
    if (is_losing_) return;
    std::fflush(nullptr);
    end_for_lost_peer();
  }
  Peer& peer = peers_[immediate];
  if (++peer.arrived == barrier_) --missing_;
}

void Mesh::wait_barrier() {
  wait([this] { return missing_ == 0; });
}

void Mesh::wait_reads() {
  wait([this] { return reads_ == 0; });
}

void Mesh::flush() {
  for (int i = 0; i < processes_; ++i) {
    if (i == process_ || peers_[i].outstanding == 0) continue;
    ibv_send_wr wr{};
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.wr.rdma = {peers_[i].slots, peers_[i].key};
    post_one(i, &wr, Kind::kPing);
  }
  wait([this] {
    return std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.outstanding == 0; });
  });
}

void Mesh::tell(End end) {
  if (is_aborting_) return;
  is_aborting_ = true;
  for (int i = 0; i < processes_; ++i) {
    Peer& peer = peers_[i];
    if (peer.qp == nullptr || peer.outstanding > kSendDepth - 4) continue;
    peer.word_sge.length = 0;
    peer.word.wr.rdma.remote_addr = peer.slots;
    peer.word.imm_data = kEndBit | (end == End::kLost ? kLostBit : 0) | static_cast<std::uint32_t>(process_);
    peer.word.send_flags = IBV_SEND_INLINE;
    post_one(i, &peer.word, Kind::kPosted);
  }
  for (int n = 0; n < kAbortPolls; ++n) {
    while (poll()) {
    }
    if (std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.outstanding == 0; })) return;
    ::poll(nullptr, 0, 1);
  }
}

// Completions.

void Mesh::repost_receives() {
  taken_receives_ -= static_cast<std::uint32_t>(receives_.size());
  ibv_recv_wr* bad = nullptr;
  if (ibv_post_srq_recv(adapter_.receives(), receives_.data(), &bad) != 0) fail("cannot post RDMA receives");
}

void Mesh::take_sent(const ibv_wc& completion) {
  const auto peer = static_cast<std::uint32_t>(completion.wr_id >> 8) & 0xffffffu;
  peers_[peer].outstanding -= static_cast<std::uint32_t>(completion.wr_id >> 32);
  switch (static_cast<Kind>(completion.wr_id & 0xff)) {
    case Kind::kRead:
      --reads_;
      --peers_[peer].reads;
      break;
    case Kind::kPing:
      peers_[peer].is_pinged = false;
      break;
    case Kind::kPosted:
      break;
  }
}

void Mesh::take(const ibv_wc& completion) {
  if (completion.status != IBV_WC_SUCCESS) [[unlikely]]
    return failed(completion);
  if (completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
    if (++taken_receives_ == receives_.size()) repost_receives();
    arrive(completion.imm_data);
  } else {
    take_sent(completion);
  }
}

bool Mesh::poll() {
  ibv_wc completions[16];
  const int n = ibv_poll_cq(adapter_.completions(), 16, completions);
  for (int i = 0; i < n; ++i) take(completions[i]);
  return n > 0;
}

void Mesh::failed(const ibv_wc& completion) {
  int peer = -1;
  for (int i = 0; i < processes_; ++i)
    if (i != process_ && peers_[i].qp->qp_num == completion.qp_num) peer = i;
  if (peer < 0) return;
  peers_[peer].outstanding = 0;
  peers_[peer].unsignaled = 0;
  if (is_losing_ || may_be_gone(peers_[peer])) return;
  if (completion.status == IBV_WC_REM_ACCESS_ERR)
    fail("memory that process %d has registered cannot be reached; was it freed or unmapped?", peer);
  lose(peer, ibv_wc_status_str(completion.status));
}

template <typename Done>
void Mesh::wait(Done&& done) {
  for (int idle = 0; !done();) {
    if (poll()) {
      idle = 0;
    } else if (++idle > spins_) {
      sleep();
      idle = 0;
    }
  }
}

void Mesh::sleep() {
  if (ibv_req_notify_cq(adapter_.completions(), 0) != 0) fail("cannot wait for RDMA completions");
  if (poll()) return;
  pollfd channel{adapter_.channel()->fd, POLLIN, 0};
  if (::poll(&channel, 1, kSleepMs) == 0) return ping_silent_peers();
  ibv_cq* cq;
  void* context;
  while (ibv_get_cq_event(adapter_.channel(), &cq, &context) == 0) ibv_ack_cq_events(cq, 1);
}

// A peer that computes for long answers, as its adapter does; one that is gone does not.
void Mesh::ping_silent_peers() {
  for (int i = 0; i < processes_; ++i) {
    Peer& peer = peers_[i];
    if (i == process_ || peer.is_pinged || may_be_gone(peer) || peer.outstanding > kSendDepth - 4) continue;
    peer.is_pinged = true;
    ibv_send_wr wr{};
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.wr.rdma = {peer.slots, peer.key};
    post_one(i, &wr, Kind::kPing);
  }
}

void Mesh::await_end(int timeout_ms) {
  for (int waited = 0; waited < timeout_ms && !is_told_; waited += kLookMs) {
    while (poll()) {
    }
    ::poll(nullptr, 0, kLookMs);
  }
}

// The starter tells, and ends this process soon. If it does not, the lowest of the others tells, then the next; each
// waits long enough to be ended by what the one before it does.
void Mesh::lose(int peer, const char* how) {
  is_losing_ = true;
  std::fflush(nullptr);
  const int before = process_ - (process_ > peer ? 1 : 0);
  const int wait_ms = kToBeEndedMs + kNextTellsMs * std::min(before, 10);
  await_end(wait_ms);
  if (!is_told_ && is_first_to_tell(epoch_)) {
    say("lost process %d in superstep %llu (%s); the job ends", peer,
        static_cast<unsigned long long>(shown_->superstep), how);
    tell(End::kLost);
  }
  end_for_lost_peer();
}

}  // namespace shadowib::bsp
