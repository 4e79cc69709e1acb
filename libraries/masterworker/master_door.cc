// The master's first contact with workers: births, hellos and welcomes.
#include <algorithm>
#include <cstring>

#include "libraries/masterworker/birth.h"
#include "libraries/masterworker/guard.h"
#include "libraries/masterworker/master_requests.h"

namespace shadowib::masterworker {
namespace {

constexpr std::size_t kRouteHeader = 40;
constexpr std::int64_t kRebirthNs = 1'000'000'000;  // one that ends at once is not replaced sooner
constexpr std::uint32_t kUnborn = 8;                // so many in a row are told of

}  // namespace

void MasterLink::open_door() {
  routes_.resize(kHellos);
  door_.key = static_cast<std::uint32_t>(random_number()) & 0x7fffffff;  // the high bit stands for privileged keys
  datagrams_ = adapter_.datagrams(door_.key, kHellos);
  for (std::uint32_t i = 0; i < kHellos; ++i) post_hello(i);
  door_.place = adapter_.place_of(datagrams_->qp_num);
  door_.life = random_number();
}

void MasterLink::close_door() {
  ibv_destroy_qp(datagrams_);
  for (ibv_ah* route : routes_)
    if (route != nullptr) ibv_destroy_ah(route);
}

void MasterLink::expect(std::uint64_t token, int wait_s) {
  const std::int64_t now = tick_ns();
  births_[token] = {master_->bear(), now + kBirthNs + std::max(wait_s, 0) * std::int64_t{1'000'000'000}, false, now};
}

void MasterLink::born(std::uint64_t token, pid_t process) {
  if (const auto birth = births_.find(token); birth != births_.end()) birth->second.process = process;
}

bool MasterLink::is_over(const Birth& birth, std::int64_t now) {
  return birth.process != 0 && now - birth.began_ns >= kRebirthNs && is_gone(birth.process);
}

void MasterLink::unexpect(std::uint64_t token) {
  const auto birth = births_.find(token);
  if (birth == births_.end()) return;
  master_->born(birth->second.updates);
  births_.erase(birth);
}

std::size_t MasterLink::unheard() const {
  return static_cast<std::size_t>(std::count_if(births_.begin(), births_.end(), [this](const auto& birth) {
    return !birth.second.elsewhere && by_token_.count(birth.first) == 0;
  }));
}

std::uint32_t MasterLink::free_rank() const {
  std::vector<bool> taken(connections_.size() + 2);
  for (const auto& [id, connection] : connections_)
    if (connection->welcome.rank < taken.size()) taken[connection->welcome.rank] = true;
  std::uint32_t rank = 1;
  while (taken[rank]) ++rank;
  return rank;
}

void MasterLink::post_hello(std::uint32_t index) {
  ibv_sge piece{reinterpret_cast<std::uint64_t>(hellos_.data) + std::uint64_t{index} * kDatagramBytes, kDatagramBytes,
                hellos_.region->lkey};
  ibv_recv_wr request{work_id(Work::kHello, 0, index), nullptr, &piece, 1};
  ibv_recv_wr* bad = nullptr;
  if (ibv_post_recv(datagrams_, &request, &bad) != 0) give_up("ibv_post_recv (UD) failed");
}

void MasterLink::received_hello(const ibv_wc& wc, std::uint32_t index) {
  if (wc.status == IBV_WC_SUCCESS && wc.byte_len >= kRouteHeader + sizeof(Hello)) heard_hello(index);
  clear(hellos_, index, kDatagramBytes, kDatagramBytes);
  post_hello(index);
}

void MasterLink::heard_hello(std::uint32_t index) {
  Hello hello;
  std::memcpy(&hello, hellos_.data + std::size_t{index} * kDatagramBytes + kRouteHeader, sizeof(hello));
  if (hello.magic != kMagic) return;
  const auto known = by_token_.find(hello.token);
  const bool is_known = known != by_token_.end();
  const Answer judged = is_known ? Answer::kWelcome : judge(hello);
  Connection* connection = is_known ? find(known->second) : judged == Answer::kWelcome ? admit(hello) : nullptr;
  if (connection != nullptr) return answer(hello, connection->welcome);
  // A fork's birth stays until its time is over: so no other one is made at once, to be sent away in its turn.
  if (judged == Answer::kWelcome && hello.elsewhere != 0)
    unexpect(hello.token);
  else if (judged == Answer::kWelcome)
    born(hello.token, 0);
  Welcome no;
  no.answer = judged == Answer::kWelcome ? Answer::kNoRoom : judged;
  no.token = hello.token;
  answer(hello, no);
}

Answer MasterLink::judge(const Hello& hello) {
  if (hello.life != door_.life && guarded(Guard::kKnowLife)) return Answer::kStranger;
  if (births_.count(hello.token) != 0) return Answer::kWelcome;
  if (hello.elsewhere == 0) return Answer::kStranger;
  if (!master_->bear_with(hello.updates)) return Answer::kTooLate;
  births_[hello.token] = {hello.updates, tick_ns() + kBirthNs, true};
  return Answer::kWelcome;
}

MasterLink::Connection* MasterLink::admit(const Hello& hello) {
  const std::size_t completions = kCompletionsOfAll + kCompletionsEach * (connections_.size() + 1);
  if (!adapter_.make_room(static_cast<int>(completions))) {
    warn("the device has no completion queue of %zu entries, so none for another worker; it is sent away",
         completions);
    return nullptr;
  }
  ibv_qp_init_attr init{};
  init.srq = shared_;
  init.cap.max_send_wr = kSendDepth;
  ibv_qp* qp = adapter_.reliable(init, sizeof(std::uint64_t));
  if (qp == nullptr) {
    warn("no queue pair for another worker; it is sent away");
    return nullptr;
  }
  auto connection = std::make_unique<Connection>(most_lag_bytes_);
  connection->id = ++next_id_;
  connection->qp = qp;
  connection->inline_bytes = init.cap.max_inline_data;
  connection->hello = hello;
  connection->heard_ns = tick_ns();
  Welcome& welcome = connection->welcome;
  welcome.answer = Answer::kWelcome;
  welcome.token = hello.token;
  welcome.rank = free_rank();
  welcome.first_packet = static_cast<std::uint32_t>(random_number()) & 0xffffff;
  welcome.connection = adapter_.place_of(qp->qp_num);
  adapter_.to_init(qp, IBV_ACCESS_REMOTE_READ);  // and no writes
  adapter_.connect(qp, hello.connection, hello.first_packet, welcome.first_packet);
  if (!guarded(Guard::kFixedBuffers)) more_bytes_ += adapter_.map(64 * kSlotBytes, IBV_ACCESS_LOCAL_WRITE).bytes;
  by_queue_pair_[qp->qp_num] = by_id_[connection->id] = connection.get();
  by_token_[hello.token] = connection->id;
  Connection* made = connection.get();
  connections_[connection->id] = std::move(connection);
  if (hello.elsewhere != 0) ++elsewhere_;
  welcome.workers = static_cast<std::uint32_t>(connections_.size());
  return made;
}

void MasterLink::answer(const Hello& hello, const Welcome& welcome) {
  const std::uint32_t index = static_cast<std::uint32_t>(next_answer_++ % kHellos);
  char* text = hellos_.data + std::size_t{kHellos + index} * kDatagramBytes;
  std::memcpy(text, &welcome, sizeof(welcome));
  if (routes_[index] != nullptr) ibv_destroy_ah(routes_[index]);
  ibv_ah_attr route = adapter_.route_to(hello.datagrams);
  routes_[index] = ibv_create_ah(adapter_.domain, &route);
  if (routes_[index] == nullptr) return;  // the next hello asks again
  ibv_sge piece{reinterpret_cast<std::uint64_t>(text), sizeof(welcome), hellos_.region->lkey};
  ibv_send_wr request{}, *bad = nullptr;
  request.wr_id = work_id(Work::kAnswer, 0, index);
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  request.wr.ud = {routes_[index], hello.datagrams.queue_pair, door_.key};
  ibv_post_send(datagrams_, &request, &bad);
}

void MasterLink::give_up_births(std::int64_t now) {
  for (auto birth = births_.begin(); birth != births_.end();) {
    const bool is_heard = by_token_.count(birth->first) != 0, is_dead = !is_heard && is_over(birth->second, now);
    if (is_dead || (!is_heard && now > birth->second.until_ns)) {
      if (tells_ && is_dead) warn("a worker (process %d) ended before it had joined", birth->second.process);
      if (!birth->second.elsewhere) count_unborn();
      master_->born(birth->second.updates);
      birth = births_.erase(birth);
    } else {
      ++birth;
    }
  }
}

void MasterLink::count_unborn() {
  if (++unborn_ != kUnborn) return;
  warn(
      "the last %u workers ended before they had joined, and others are made: see memory limits, core files, "
      "and what the program does in forked processes",
      kUnborn);
}

}  // namespace shadowib::masterworker
