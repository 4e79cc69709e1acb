#include "libraries/masterworker/master_link.h"

#include <algorithm>
#include <cstring>

#include "libraries/masterworker/guard.h"
#include "libraries/masterworker/master_requests.h"

namespace shadowib::masterworker {
namespace {

constexpr std::uint32_t kAskEach = 8;  // of its tasks that go inline one asks for a completion
static_assert(MasterLink::kReceives % Emptied::kMost == 0);
constexpr std::uint32_t kTicksSilent = 4;  // then a worker counts as stopped

void fill(char* at, const Outgoing& message) {
  if (message.input.size() != 0) std::memcpy(at, message.input.data(), message.input.size());
  if (message.output.size() != 0)
    std::memcpy(at + message.input.size(), message.output.data(), message.output.size());
}

// What goes inline. An update does not: its bytes count as lag until the worker has it.
bool goes_inline(const Outgoing& message, std::uint32_t most_bytes) {
  return message.lag_bytes == 0 && message.output.size() == 0 && sizeof(Header) + message.input.size() <= most_bytes;
}

}  // namespace

MasterLink::MasterLink(std::uint64_t most_lag_bytes) : adapter_(kCompletions), most_lag_bytes_(most_lag_bytes) {
  receives_ = adapter_.map(std::size_t{kReceives} * kSlotBytes, IBV_ACCESS_LOCAL_WRITE);
  sends_ = adapter_.map(std::size_t{kSends} * kSlotBytes, 0);
  hellos_ = adapter_.map(std::size_t{2} * kHellos * kDatagramBytes, IBV_ACCESS_LOCAL_WRITE);
  ibv_srq_init_attr init{};
  init.attr.max_wr = kReceives;
  init.attr.max_sge = 1;
  shared_ = ibv_create_srq(adapter_.domain, &init);
  if (shared_ == nullptr) give_up("the device has no shared receive queues of %d requests", kReceives);
  for (std::uint32_t i = 0; i < kReceives; ++i) return_receive(i);
  slots_.resize(kSends);
  for (std::uint32_t i = kSends; i-- > 0;) free_slots_.push_back(i);
  open_door();
}

MasterLink::~MasterLink() {
  // The master may be gone already: it is told nothing.
  for (auto& [id, connection] : connections_) forget(*connection);
  close_door();
  ibv_destroy_srq(shared_);
}

MasterLink::Connection* MasterLink::find(WorkerId id) {
  const auto at = by_id_.find(id);
  return at == by_id_.end() ? nullptr : at->second;
}

void MasterLink::return_receive(std::uint32_t index) {
  const char* at = receives_.data + std::size_t{index} * kSlotBytes;
  if (!emptied_.add(work_id(Work::kReceive, 0, index), receives_, at, kSlotBytes)) return;
  ibv_recv_wr* bad = nullptr;
  if (ibv_post_srq_recv(shared_, emptied_.post(), &bad) != 0) give_up("ibv_post_srq_recv failed");
}

bool MasterLink::progress() {
  ibv_wc completions[32];
  const int got = adapter_.poll(completions, 32);
  if (got != 0) looked_ns_ = tick_ns();
  for (int i = 0; i < got; ++i) completed(completions[i]);
  return got != 0;
}

void MasterLink::sleep(int timeout_ms) {
  adapter_.arm();
  if (!progress()) adapter_.sleep(timeout_ms);
}

void MasterLink::completed(const ibv_wc& wc) {
  const bool good = wc.status == IBV_WC_SUCCESS;
  switch (work_of(wc.wr_id)) {
    case Work::kReceive:
      if (good) received(wc, index_of(wc.wr_id));
      clear(receives_, index_of(wc.wr_id), kSlotBytes, good ? wc.byte_len : kSlotBytes);
      return_receive(index_of(wc.wr_id));
      return;
    case Work::kHello:
      return received_hello(wc, index_of(wc.wr_id));
    case Work::kAnswer:
      clear(hellos_, kHellos + index_of(wc.wr_id), kDatagramBytes, kDatagramBytes);
      return;
    case Work::kSend: {
      Slot& slot = slots_[index_of(wc.wr_id)];
      if (slot.to == 0 || (slot.serial & 0xfffffffffff) != serial_of(wc.wr_id))
        return;  // of a connection that is gone
      const WorkerId to = slot.to;
      Connection* connection = find(to);
      release(index_of(wc.wr_id));
      if (connection == nullptr) return;
      --connection->slots;
      connection->out.taken(slot.bytes);
      if (!good) return lost(to);
      if (free_slots_.size() != 1) return sent(*connection, slot.ends);
      connection->in_flight -= slot.ends;
      connection->heard_ns = looked_ns_;
      return pump_waiting(to);  // others may have none
    }
    case Work::kInline:
      if (Connection* connection = find(serial_of(wc.wr_id))) {
        if (!good) return lost(connection->id);
        sent(*connection, index_of(wc.wr_id));
      }
      return;
    case Work::kRead:
      return fetched(serial_of(wc.wr_id), good);
    case Work::kPing:
    case Work::kWrite:
      if (Connection* connection = find(serial_of(wc.wr_id))) {
        if (!good) return lost(connection->id);
        if (work_of(wc.wr_id) == Work::kWrite) {
          --connection->words;
          return;
        }
        connection->ping_out = false;
        connection->ticks_silent = 0;
      }
  }
}

// The oldest messages in flight have arrived.
void MasterLink::sent(Connection& to, std::uint32_t messages) {
  to.in_flight -= messages;
  to.heard_ns = looked_ns_;
  pump(to);
}

// A slot that holds no message is zero, and an image has no pages of zeros. So it is the same for any number of
// workers.
void MasterLink::clear(const Buffer& slots, std::uint32_t index, std::size_t slot_bytes, std::size_t used) {
  std::memset(slots.data + index * slot_bytes, 0, used);
}

void MasterLink::release(std::uint32_t index) {
  slots_[index].to = 0;
  clear(sends_, index, kSlotBytes, slots_[index].length);
  free_slots_.push_back(index);
}

// Slots have become free while workers had none. Each in turn, the worker `after` last.
void MasterLink::pump_waiting(WorkerId after) {
  const auto first = connections_.upper_bound(after);
  for (auto at = first; at != connections_.end(); ++at) pump(*at->second);
  for (auto at = connections_.begin(); at != first; ++at) pump(*at->second);
}

void MasterLink::received(const ibv_wc& wc, std::uint32_t index) {
  const auto at = by_queue_pair_.find(wc.qp_num);
  Connection* from = at == by_queue_pair_.end() ? nullptr : at->second;
  const char* text = receives_.data + std::size_t{index} * kSlotBytes;
  Header header;
  if (from == nullptr || wc.byte_len < sizeof(header)) return;
  std::memcpy(&header, text, sizeof(header));
  if (header.magic != kMagic || (header.life != door_.life && guarded(Guard::kKnowLife))) return;
  if (header.address == 0 && header.output_bytes > wc.byte_len - sizeof(header)) return lost(from->id);
  from->heard_ns = looked_ns_;
  handle(*from, header, text + sizeof(header));
}

void MasterLink::handle(Connection& from, const Header& header, const char* body) {
  switch (header.kind) {
    case Kind::kReady: {
      from.ready = true;
      unborn_ = 0;
      from.joining = true;
      const bool reached = master_->joined(from.id, from.hello.updates, from.hello.phase);
      from.joining = false;
      unexpect(from.hello.token);
      if (!reached) lost(from.id, true);
      return;
    }
    case Kind::kResult:
      if (header.address != 0) return fetch(from, header);
      return master_->arrived(from.id, header.number, Payload::copy(body, header.output_bytes));
    case Kind::kRelease: {
      const auto lent = from.lent.find(static_cast<std::uint32_t>(header.number));
      if (lent == from.lent.end()) return;
      from.out.taken(lent->second);
      put(lent->first);
      from.lent.erase(lent);
      return;
    }
    case Kind::kLeave:
      if (header.number == kToldToLeave && from.hello.elsewhere == 0) ++farewells_;
      return lost(from.id, true);
    default:
      return;
  }
}

void MasterLink::fetch(Connection& from, const Header& header) {
  if (header.output_bytes >= std::uint64_t{1} << 31) return lost(from.id);
  if (from.reads == kReads)
    from.unread.push_back(header);
  else if (!read(from, header))
    lost(from.id);
}

bool MasterLink::read(Connection& from, const Header& header) {
  Buffer& buffer = adapter_.take(header.output_bytes);
  const std::uint64_t serial = ++serial_;
  ibv_sge piece{reinterpret_cast<std::uint64_t>(buffer.data), static_cast<std::uint32_t>(header.output_bytes),
                buffer.region->lkey};
  ibv_send_wr request{}, *bad = nullptr;
  request.wr_id = work_id(Work::kRead, serial);
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_READ;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma = {header.address, header.key};
  readings_[serial] = {from.id, header, buffer.id};
  ++from.reads;
  return ibv_post_send(from.qp, &request, &bad) == 0;
}

void MasterLink::fetched(std::uint64_t serial, bool good) {
  const auto at = readings_.find(serial);
  if (at == readings_.end()) return;
  const Reading reading = at->second;
  readings_.erase(at);
  Buffer* buffer = adapter_.find(reading.buffer);
  Connection* from = find(reading.from);
  if (good && from != nullptr) {
    master_->arrived(reading.from, reading.header.number, Payload::copy(buffer->data, reading.header.output_bytes));
    Header header;
    header.kind = Kind::kRelease;
    header.number = reading.header.buffer;
    push(reading.from, header, {}, {});
  }
  adapter_.put(reading.buffer);
  if (from == nullptr) return;
  --from->reads;
  if (good && from->unread.empty()) return;
  if (!good || !read(*from, from->unread.front())) return lost(reading.from);
  from->unread.pop_front();
}

void MasterLink::push(WorkerId to, Header header, const Payload& input, const Payload& output) {
  Connection* connection = find(to);
  if (connection == nullptr) return;
  header.life = door_.life;
  header.input_bytes = input.size();
  header.output_bytes = output.size();
  if (connection->out.closed()) return;
  Outgoing message{header, input, output};
  if (!connection->out.admit(message, !connection->joining)) {
    warn("a worker (process %u) lags more than %llu MiB behind; it is given up", connection->hello.pid,
         static_cast<unsigned long long>(most_lag_bytes_ >> 20));
    return;  // tick() ends it. Not here: the master is in the middle of telling its workers something
  }
  if (!connection->out.empty() || !has_room(*connection, message)) return connection->out.add(std::move(message));
  if (!post(*connection, message)) connection->out.close();
}

void MasterLink::pump(Connection& to) {
  while (!to.out.empty() && has_room(to, to.out.front())) {
    if (!post(to, to.out.pop())) return to.out.close();
  }
}

bool MasterLink::has_room(const Connection& to, const Outgoing& message) const {
  if (!to.ready || to.in_flight == kInFlight) return false;
  if (goes_inline(message, to.inline_bytes)) return true;
  // A second slot only where the others can have one each: so workers that take nothing leave some to them.
  return free_slots_.size() > (to.slots == 0 ? 0 : std::max<std::size_t>(connections_.size(), kSends / 4));
}

// The message's bytes, where its worker may read them. All workers read one copy of an update.
Buffer& MasterLink::buffer_of(const Outgoing& message) {
  const std::uint64_t update = message.header.kind == Kind::kUpdate ? message.header.number : 0;
  if (const auto shared = large_updates_.find(update); shared != large_updates_.end()) {
    Buffer& buffer = *adapter_.find(shared->second);
    ++buffer.users;
    return buffer;
  }
  Buffer& buffer = adapter_.take(message.input.size() + message.output.size());
  fill(buffer.data, message);
  buffer.update = update;
  if (update != 0) large_updates_[update] = buffer.id;
  return buffer;
}

// One user less. With the last, the buffer is free for other bytes.
void MasterLink::put(std::uint32_t id) {
  const Buffer* buffer = adapter_.find(id);
  if (buffer != nullptr && buffer->users == 1 && buffer->update != 0) large_updates_.erase(buffer->update);
  adapter_.put(id);
}

// The message's bytes belong to the device once it is posted. So it may ask for no completion: that of a later one
// tells of it, too.
bool MasterLink::post_inline(Connection& to, const Outgoing& message) {
  ++to.in_flight;
  ++to.unasked;
  ibv_sge pieces[2] = {
      {reinterpret_cast<std::uint64_t>(&message.header), sizeof(Header), 0},
      {reinterpret_cast<std::uint64_t>(message.input.data()), static_cast<std::uint32_t>(message.input.size()), 0}};
  ibv_send_wr request{}, *bad = nullptr;
  request.wr_id = work_id(Work::kInline, to.id, to.unasked);
  request.sg_list = pieces;
  request.num_sge = message.input.size() == 0 ? 1 : 2;
  request.opcode = IBV_WR_SEND;
  request.send_flags = IBV_SEND_INLINE;
  if (message.header.kind != Kind::kTask || to.unasked == kAskEach) {
    request.send_flags |= IBV_SEND_SIGNALED;
    to.unasked = 0;
  }
  return ibv_post_send(to.qp, &request, &bad) == 0;
}

bool MasterLink::post(Connection& to, const Outgoing& message) {
  if (goes_inline(message, to.inline_bytes)) return post_inline(to, message);
  const std::uint32_t index = free_slots_.back();
  free_slots_.pop_back();
  Slot& slot = slots_[index];
  slot = {++serial_, to.id, message.lag_bytes, 0, to.unasked + 1};
  to.unasked = 0;
  ++to.slots;
  ++to.in_flight;
  char* text = sends_.data + std::size_t{index} * kSlotBytes;
  Header header = message.header;
  const std::size_t body = message.input.size() + message.output.size();
  std::uint32_t length = sizeof(header);
  if (body > kSlotBytes - sizeof(header)) {
    const Buffer& buffer = buffer_of(message);
    header.address = reinterpret_cast<std::uint64_t>(buffer.data);
    header.key = buffer.region->rkey;
    header.buffer = buffer.id;
    to.lent.emplace(buffer.id, message.lag_bytes);
    slot.bytes = 0;
  } else {
    fill(text + sizeof(header), message);
    length += static_cast<std::uint32_t>(body);
  }
  std::memcpy(text, &header, sizeof(header));
  slot.length = length;
  ibv_sge piece{reinterpret_cast<std::uint64_t>(text), length, sends_.region->lkey};
  ibv_send_wr request{}, *bad = nullptr;
  request.wr_id = work_id(Work::kSend, slot.serial, index);
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  request.send_flags = IBV_SEND_SIGNALED;
  return ibv_post_send(to.qp, &request, &bad) == 0;
}

void MasterLink::send_task(WorkerId to, const Handout& handout, std::uint64_t generation, const Payload& input) {
  Header header;
  header.kind = Kind::kTask;
  header.round = static_cast<std::uint8_t>(handout.round);
  header.number = handout.id;
  header.extra = generation;
  push(to, header, input, {});
}

void MasterLink::send_update(WorkerId to, std::uint64_t number, const Payload& input, const Payload& output) {
  Header header;
  header.kind = Kind::kUpdate;
  header.number = number;
  push(to, header, input, output);
}

void MasterLink::send_end(WorkerId to, std::uint64_t phase) {
  Header header;
  header.kind = Kind::kEnd;
  header.number = phase;
  push(to, header, {}, {});
}

void MasterLink::abort_all(WorkerId to, std::uint64_t generation) {
  write_word(to, offsetof(AbortWords, generation), generation);
}
void MasterLink::abort_one(WorkerId to, std::uint64_t handout) {
  write_word(to, offsetof(AbortWords, handout), handout);
}

// An abort is advice: where no request is free it is left out.
void MasterLink::write_word(WorkerId to, std::size_t offset, std::uint64_t value) {
  Connection* connection = find(to);
  if (connection == nullptr || !connection->ready || connection->words == kWords) return;
  ibv_sge piece{reinterpret_cast<std::uint64_t>(&value), sizeof(value), 0};
  ibv_send_wr request{}, *bad = nullptr;
  request.wr_id = work_id(Work::kWrite, to);
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_WRITE;
  request.send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
  request.wr.rdma = {connection->hello.abort_address + offset, connection->hello.abort_key};
  if (ibv_post_send(connection->qp, &request, &bad) == 0) ++connection->words;
}

void MasterLink::tick(std::int64_t now, int timeout_s) {
  while (progress()) {
  }
  std::vector<WorkerId> silent;
  for (auto& [id, connection] : connections_) {
    const bool busy = master_->has_tasks(id);
    const bool given_up = connection->out.closed();
    const bool late = timeout_s != 0 && busy &&
                      now - std::max(connection->heard_ns, master_->last_heard_ns(id)) > timeout_s * 1'000'000'000LL;
    const auto birth = connection->ready ? births_.end() : births_.find(connection->hello.token);
    const bool unborn = !connection->ready && (now - connection->heard_ns > kBirthNs ||
                                               (birth != births_.end() && is_over(birth->second, now)));
    if (given_up || late || unborn) {
      if (unborn && connection->hello.elsewhere == 0) count_unborn();
      if (late)
        warn("a worker (process %u) has had a task for %d s without a sign; it is given up", connection->hello.pid,
             timeout_s);
      silent.push_back(id);
      continue;
    }
    if (connection->ping_out && now - connection->counted_ns >= kPingMs * std::int64_t{1'000'000}) {
      ++connection->ticks_silent;
      connection->counted_ns = now;
    }
    if (!connection->ready || connection->ping_out) continue;
    ibv_send_wr request{}, *bad = nullptr;
    request.wr_id = work_id(Work::kPing, id);
    request.opcode = IBV_WR_RDMA_WRITE;
    request.send_flags = IBV_SEND_SIGNALED;
    request.wr.rdma = {connection->hello.abort_address, connection->hello.abort_key};
    connection->ping_out = ibv_post_send(connection->qp, &request, &bad) == 0;
    connection->counted_ns = now;
  }
  for (const WorkerId id : silent) lost(id);
  give_up_births(now);
}

bool MasterLink::answers(WorkerId worker) {
  const Connection* connection = find(worker);
  return connection != nullptr && connection->ticks_silent < kTicksSilent;
}

void MasterLink::lost(WorkerId worker, bool told) {
  Connection* connection = find(worker);
  if (connection == nullptr) return;
  if (tells_)
    warn("worker %u (process %u) %s", connection->welcome.rank, connection->hello.pid, told ? "leaves" : "is lost");
  forget(*connection);
  unexpect(connection->hello.token);
  connections_.erase(worker);
  if (master_ != nullptr) master_->gone(worker, told);
  pump_waiting(worker);
}

void MasterLink::forget(Connection& connection) {
  if (connection.hello.elsewhere != 0) --elsewhere_;
  by_queue_pair_.erase(connection.qp->qp_num);
  by_id_.erase(connection.id);
  by_token_.erase(connection.hello.token);
  ibv_destroy_qp(connection.qp);
  for (std::uint32_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].to == connection.id) release(i);
  }
  for (const auto& [buffer, bytes] : connection.lent) put(buffer);
  for (auto reading = readings_.begin(); reading != readings_.end();) {
    if (reading->second.from == connection.id) {
      adapter_.put(reading->second.buffer);
      reading = readings_.erase(reading);
    } else {
      ++reading;
    }
  }
}

void MasterLink::restarted() {
  for (auto& [id, connection] : connections_) forget(*connection);
  connections_.clear();
  for (const auto& [token, birth] : births_) master_->born(birth.updates);
  births_.clear();
  unborn_ = 0;
  if (guarded(Guard::kKnowLife)) door_.life = random_number();
}

void MasterLink::finish() {
  const std::int64_t until = now_ns() + 1'000'000'000;
  const auto waiting = [this] {
    return std::any_of(connections_.begin(), connections_.end(), [](const auto& entry) {
      const Connection& to = *entry.second;
      return to.in_flight != to.unasked || !to.out.empty();
    });
  };
  while (waiting() && now_ns() < until)
    if (!progress()) sleep(50);
}

}  // namespace shadowib::masterworker
