#include "libraries/masterworker/worker_link.h"

#include <fcntl.h>
#include <poll.h>
#include <shadowib/shadowib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <new>

#include "libraries/masterworker/guard.h"

namespace shadowib::masterworker {
namespace {

enum class Work : std::uint64_t { kReceive = 1, kSend, kInline, kRead, kHello, kWelcome, kLife };
std::uint64_t work_id(Work work, std::uint64_t index) { return static_cast<std::uint64_t>(work) << 32 | index; }

// The index of a message in a slot has, above the slot's number, how many messages are sent when it is.
constexpr int kSlotBits = 16;
constexpr std::uint32_t kSlotMask = (1u << kSlotBits) - 1;
constexpr std::uint32_t kAskEach = 8;  // of results that go inline one asks for a completion

constexpr std::uint32_t kDatagramBytes = 512;
constexpr std::size_t kRouteHeader = 40;
constexpr int kHelloMs = 200;
constexpr int kLastHellos = 10;  // of a fork that is told to leave
constexpr std::int64_t kLifeNs = 500'000'000;

}  // namespace

WorkerLink::WorkerLink(const BirthFacts& facts, const volatile bool* leave) : adapter_(256), facts_(facts) {
  if (!facts.elsewhere) {                                                              // else the job ends its guests
    master_watch_ = static_cast<int>(::syscall(SYS_pidfd_open, facts.master_pid, 0));  // glibc 2.36 has it for C only
    if (master_watch_ < 0) ::_exit(0);                                                 // gone already
    ::fcntl(master_watch_, F_SETFD, FD_CLOEXEC);
  }
  pollfd master{master_watch_, POLLIN, 0};
  const int wait_ms = std::clamp(facts.wait_s, 0, INT_MAX / 1000) * 1000;
  if (::poll(&master, 1, wait_ms) > 0) ::_exit(0);  // a signal ends the wait, too
  receives_ = adapter_.map(std::size_t{kReceives} * kSlotBytes, IBV_ACCESS_LOCAL_WRITE);
  sends_ = adapter_.map(std::size_t{kSends} * kSlotBytes, 0);
  hellos_ = adapter_.map(2 * kDatagramBytes, IBV_ACCESS_LOCAL_WRITE);
  abort_page_ = adapter_.map(sizeof(AbortWords), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  aborts_ = new (abort_page_.data) AbortWords;
  for (std::uint32_t i = 0; i < kSends; ++i) free_sends_.push_back(i);
  datagrams_ = adapter_.datagrams(facts.door.key, 4);
  ibv_qp_init_attr init{};
  init.cap = {kSends + 4, kReceives, 0, 1, 0};
  connection_ = adapter_.reliable(init, 0);
  if (connection_ == nullptr) give_up("a worker gets no queue pair");
  inline_bytes_ = init.cap.max_inline_data;
  adapter_.to_init(connection_, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
  for (std::uint32_t i = 0; i < kReceives; ++i) return_receive(i);
  first_packet_ = static_cast<std::uint32_t>(random_number()) & 0xffffff;
  ibv_ah_attr route = adapter_.route_to(facts.door.place);
  route_ = ibv_create_ah(adapter_.domain, &route);
  if (route_ == nullptr) give_up("a worker finds no way to its master");
  for (int i = 0; i < 4; ++i) post_welcome();
  say_hello();
  // The master counts on a fork until it has heard of it: one that is told to leave joins first, and says so.
  int last_hellos = facts.elsewhere ? 0 : kLastHellos;
  while (!wait_for(&WorkerLink::answered, facts.elsewhere ? leave : nullptr, kHelloMs)) {
    if (master_gone_ || (leave != nullptr && *leave && last_hellos-- == 0)) ::_exit(0);
    if (guarded(Guard::kRepeatHello)) say_hello();
  }
  if (broken_) ::_exit(1);
  Header ready;
  ready.kind = Kind::kReady;
  send(ready, {});
}

void WorkerLink::say_hello() {
  Hello hello;
  hello.pid = static_cast<std::uint32_t>(::getpid());
  hello.token = facts_.token;
  // A master that was just restarted may still show the life before.
  Door door;
  if (facts_.elsewhere && shadowib_lookup(kDoorName, &door, sizeof(door), 0) == sizeof(door))
    facts_.door.life = door.life;
  hello.life = facts_.door.life;
  hello.elsewhere = facts_.elsewhere ? 1 : 0;
  hello.updates = facts_.updates;
  hello.phase = facts_.phase;
  hello.chain[0] = facts_.chain.low;
  hello.chain[1] = facts_.chain.high;
  hello.abort_address = reinterpret_cast<std::uint64_t>(abort_page_.data);
  hello.abort_key = abort_page_.region->rkey;
  hello.first_packet = first_packet_;
  hello.datagrams = adapter_.place_of(datagrams_->qp_num);
  hello.connection = adapter_.place_of(connection_->qp_num);
  char* text = hellos_.data + kDatagramBytes;
  std::memcpy(text, &hello, sizeof(hello));
  ibv_sge piece{reinterpret_cast<std::uint64_t>(text), sizeof(hello), hellos_.region->lkey};
  ibv_send_wr request{}, *bad = nullptr;
  request.wr_id = work_id(Work::kHello, 0);
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  request.wr.ud = {route_, facts_.door.place.queue_pair, facts_.door.key};
  ibv_post_send(datagrams_, &request, &bad);  // a full queue: the next hello comes soon
}

// A guest cannot watch its master's process. An empty message fails if the master is gone; a master drops it.
void WorkerLink::ask_for_life() {
  const std::int64_t now = now_ns();
  if (asked_ || broken_ || now - asked_ns_ < kLifeNs) return;
  asked_ns_ = now;
  ibv_send_wr request{}, *bad = nullptr;
  request.wr_id = work_id(Work::kLife, 0);
  request.opcode = IBV_WR_SEND;
  request.send_flags = IBV_SEND_SIGNALED;
  if (ibv_post_send(connection_, &request, &bad) != 0) broken_ = true;
  asked_ = true;
}

void WorkerLink::return_receive(std::uint32_t index) {
  const char* at = receives_.data + std::size_t{index} * kSlotBytes;
  if (!emptied_.add(work_id(Work::kReceive, index), receives_, at, kSlotBytes)) return;
  ibv_recv_wr* bad = nullptr;
  if (ibv_post_recv(connection_, emptied_.post(), &bad) != 0) broken_ = true;
}

// Answers to repeated hellos are equal, or say no: they may lie over each other.
void WorkerLink::post_welcome() {
  ibv_sge piece{reinterpret_cast<std::uint64_t>(hellos_.data), kDatagramBytes, hellos_.region->lkey};
  ibv_recv_wr request{work_id(Work::kWelcome, 0), nullptr, &piece, 1}, *bad = nullptr;
  if (ibv_post_recv(datagrams_, &request, &bad) != 0) give_up("ibv_post_recv (UD) failed");
}

bool WorkerLink::progress() {
  ibv_wc completions[16];
  const int got = adapter_.poll(completions, 16);
  for (int i = 0; i < got; ++i) completed(completions[i]);
  return got != 0;
}

void WorkerLink::completed(const ibv_wc& wc) {
  const std::uint32_t index = static_cast<std::uint32_t>(wc.wr_id);
  switch (static_cast<Work>(wc.wr_id >> 32)) {
    case Work::kHello:
      return;
    case Work::kWelcome:
      heard_welcome(wc);
      if (!answered() && wc.status == IBV_WC_SUCCESS) post_welcome();  // it asks again
      return;
    case Work::kLife:
      asked_ = false;
      break;
    case Work::kSend:
      free_sends_.push_back(index & kSlotMask);
      in_flight_ -= index >> kSlotBits;
      break;
    case Work::kInline:
      in_flight_ -= index;
      break;
    case Work::kRead:
      read_done_ = true;
      break;
    case Work::kReceive:
      if (wc.status == IBV_WC_SUCCESS) {
        const char* text = receives_.data + std::size_t{index} * kSlotBytes;
        Header header;
        std::memcpy(&header, text, sizeof(header));
        if (wc.byte_len >= sizeof(header) && header.magic == kMagic && header.kind == Kind::kRelease) {
          adapter_.put(static_cast<std::uint32_t>(header.number));
          --lent_;
          return_receive(index);
        } else if (leaving_) {
          return_receive(index);
        } else {
          inbox_.push_back(index);
        }
      }
      break;
  }
  if (wc.status != IBV_WC_SUCCESS) broken_ = true;
}

void WorkerLink::heard_welcome(const ibv_wc& wc) {
  Welcome welcome;
  if (wc.status != IBV_WC_SUCCESS || wc.byte_len < kRouteHeader + sizeof(welcome)) return;
  std::memcpy(&welcome, hellos_.data + kRouteHeader, sizeof(welcome));
  if (answered_ || welcome.magic != kMagic || welcome.token != facts_.token) return;
  if (welcome.answer == Answer::kStranger && facts_.elsewhere)
    return;  // the master may be about to show another life
  if (welcome.answer == Answer::kTooLate)
    warn(
        "the farm has made updates that it has no more, so this worker comes too late; start the farm with "
        "--TOPC-keep-updates=MIB, or with more MIB if it had said that it keeps them no more");
  if (welcome.answer == Answer::kNoRoom && facts_.elsewhere)
    warn("the master's device has no room for another worker, so this one ends; the farm goes on with those it has");
  if (welcome.answer != Answer::kWelcome) {
    broken_ = true;
    return;
  }
  rank_ = welcome.rank;
  workers_ = welcome.workers;
  adapter_.connect(connection_, welcome.connection, welcome.first_packet, first_packet_);
  answered_ = true;
}

bool WorkerLink::look_for(bool (WorkerLink::*ready)() const) {
  for (int looks = 0; looks < Spin::kLooks; ++looks) {
    if ((this->*ready)()) return true;
    if (progress()) looks = -1;
  }
  return false;
}

bool WorkerLink::wait_for(bool (WorkerLink::*ready)() const, const volatile bool* leave, int timeout_ms) {
  if (look_for(ready)) return true;
  const std::int64_t began = now_ns();
  bool slept = false;
  for (;;) {
    if (leave != nullptr && *leave) return false;
    const std::int64_t waited = now_ns() - began;
    if (spin_.over(waited)) {
      if (timeout_ms >= 0 && waited > timeout_ms * std::int64_t{1'000'000}) return false;
      adapter_.arm();
      if (!progress()) {
        slept = true;
        if (leaving_ && facts_.elsewhere) ask_for_life();
        // SIGTERM may come just before the sleep: wake up now and then.
        if (adapter_.sleep(timeout_ms < 0 ? 500 : timeout_ms, master_watch_)) {
          while (progress()) {
          }
          if ((this->*ready)()) break;
          master_gone_ = true;
          return false;
        }
      }
    }
    if (look_for(ready)) break;
  }
  spin_.came(slept ? now_ns() - began : 0);
  return true;
}

bool WorkerLink::next(Message* message, const volatile bool* leave) {
  if (task_slot_) return_receive(*std::exchange(task_slot_, std::nullopt));
  if (!wait_for(&WorkerLink::has_message, leave, -1) || inbox_.empty()) return false;
  const std::uint32_t index = inbox_.front();
  inbox_.pop_front();
  char* text = receives_.data + std::size_t{index} * kSlotBytes;
  Header& header = message->header;
  std::memcpy(&header, text, sizeof(header));
  const std::uint64_t bytes = header.input_bytes + header.output_bytes;
  const bool is_here = header.address == 0 && bytes <= kSlotBytes - sizeof(header);
  if (is_here && header.kind == Kind::kTask) {
    task_slot_ = index;
    message->task = bytes != 0 ? text + sizeof(header) : nullptr;
    return true;
  }
  if (is_here) {
    message->input = Payload::copy(text + sizeof(header), header.input_bytes);
    message->output = Payload::copy(text + sizeof(header) + header.input_bytes, header.output_bytes);
  } else {
    const Payload both = fetch(header);
    if (broken_ || both.size() != bytes) return false;
    message->input = Payload::copy(both.data(), header.input_bytes);
    message->output = Payload::copy(static_cast<const char*>(both.data()) + header.input_bytes, header.output_bytes);
  }
  message->task = message->input.data();
  return_receive(index);
  return !broken_;
}

Payload WorkerLink::fetch(const Header& header) {
  const std::uint64_t bytes = header.input_bytes + header.output_bytes;
  Buffer& buffer = adapter_.take(bytes);
  read_done_ = false;
  constexpr std::uint64_t kMost = std::uint64_t{1} << 30;  // of one request
  for (std::uint64_t at = 0; at < bytes && !broken_; at += kMost) {
    ibv_sge piece{reinterpret_cast<std::uint64_t>(buffer.data) + at,
                  static_cast<std::uint32_t>(std::min(kMost, bytes - at)), buffer.region->lkey};
    ibv_send_wr request{}, *bad = nullptr;
    request.wr_id = work_id(Work::kRead, 0);
    request.sg_list = &piece;
    request.num_sge = 1;
    request.opcode = IBV_WR_RDMA_READ;
    request.send_flags = IBV_SEND_SIGNALED;
    request.wr.rdma = {header.address + at, header.key};
    read_done_ = false;
    if (ibv_post_send(connection_, &request, &bad) != 0) broken_ = true;
    if (!wait_for(&WorkerLink::read_done, nullptr, -1)) broken_ = true;
  }
  Payload both = broken_ ? Payload() : Payload::copy(buffer.data, bytes);
  adapter_.put(buffer.id);
  Header release;
  release.kind = Kind::kRelease;
  release.number = header.buffer;
  send(release, {});
  return both;
}

void WorkerLink::send(Header header, const Payload& output) {
  if (!wait_for(&WorkerLink::can_send, nullptr, -1) || broken_) return;
  header.life = facts_.door.life;
  header.output_bytes = output.size();
  ++in_flight_;
  ++unasked_;
  ibv_send_wr request{};
  request.opcode = IBV_WR_SEND;
  if (sizeof(header) + output.size() <= inline_bytes_) {
    // The bytes belong to the device once they are posted. So a result may ask for no completion: that of a later
    // message tells of it, too.
    ibv_sge pieces[2] = {
        {reinterpret_cast<std::uint64_t>(&header), sizeof(header), 0},
        {reinterpret_cast<std::uint64_t>(output.data()), static_cast<std::uint32_t>(output.size()), 0}};
    request.wr_id = work_id(Work::kInline, unasked_);
    request.sg_list = pieces;
    request.num_sge = output.size() == 0 ? 1 : 2;
    request.send_flags = IBV_SEND_INLINE;
    if (header.kind != Kind::kResult || unasked_ == kAskEach) request.send_flags |= IBV_SEND_SIGNALED;
    return post_send(request);
  }
  const std::uint32_t index = free_sends_.back();
  free_sends_.pop_back();
  char* text = sends_.data + std::size_t{index} * kSlotBytes;
  std::uint32_t length = sizeof(header);
  if (output.size() > kSlotBytes - sizeof(header)) {
    Buffer& buffer = adapter_.take(output.size());
    std::memcpy(buffer.data, output.data(), output.size());
    header.address = reinterpret_cast<std::uint64_t>(buffer.data);
    header.key = buffer.region->rkey;
    header.buffer = buffer.id;
    ++lent_;
  } else if (output.size() != 0) {
    std::memcpy(text + sizeof(header), output.data(), output.size());
    length += static_cast<std::uint32_t>(output.size());
  }
  std::memcpy(text, &header, sizeof(header));
  ibv_sge piece{reinterpret_cast<std::uint64_t>(text), length, sends_.region->lkey};
  request.wr_id = work_id(Work::kSend, std::uint64_t{unasked_} << kSlotBits | index);
  request.sg_list = &piece;
  request.num_sge = 1;
  request.send_flags = IBV_SEND_SIGNALED;
  post_send(request);
}

void WorkerLink::post_send(ibv_send_wr& request) {
  if ((request.send_flags & IBV_SEND_SIGNALED) != 0) unasked_ = 0;
  ibv_send_wr* bad = nullptr;
  if (ibv_post_send(connection_, &request, &bad) != 0) broken_ = true;
}

void WorkerLink::send_result(std::uint64_t handout, const Payload& output) {
  if (output.size() >= std::uint64_t{1} << 31)
    give_up("a task's output has %zu bytes; 2 GiB are the limit", output.size());
  Header header;
  header.kind = Kind::kResult;
  header.number = handout;
  send(header, output);
}

void WorkerLink::send_leave(bool told, int timeout_ms) {
  leaving_ = true;
  if (task_slot_) return_receive(*std::exchange(task_slot_, std::nullopt));
  for (; !inbox_.empty(); inbox_.pop_front()) return_receive(inbox_.front());
  wait_for(&WorkerLink::all_read, nullptr, timeout_ms);
  Header header;
  header.kind = Kind::kLeave;
  header.number = told ? kToldToLeave : 0;
  send(header, {});
  wait_for(&WorkerLink::all_sent, nullptr, timeout_ms);
}

}  // namespace shadowib::masterworker
