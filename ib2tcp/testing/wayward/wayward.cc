// A backend for tests: ib2tcp, which does on command what networks and adapters do when it suits them. It withholds
// completions, acknowledgements and requests, takes completions of several queue pairs out of turn, loses datagrams,
// places data late, and can behave as a device does, where completions alone tell what has run (control.h).
//
// It stands in ib2tcp's place, under its name: <lib>/shadowib/libshadowib-ib2tcp.so of a tree for tests. Without
// SHADOWIB_WAYWARD it is ib2tcp, with numbers that are no accident.
#include "ib2tcp/testing/wayward/wayward.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <vector>

#include "ib2tcp/host.h"
#include "ib2tcp/testing/wayward/control.h"
#include "shadowib/abi/backend.h"
#include "shadowib/base/arena.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/log.h"

// entry.cc's, under another name here.
extern "C" int ib2tcp_backend_entry(const shadowib::HostServices* host, shadowib::BackendOps* ops);

namespace shadowib::ib2tcp {
namespace {

constexpr std::int64_t kStayNs = 500'000'000;
constexpr std::size_t kPage = 4096;
static_assert(sizeof(wayward_control) <= kPage);

HostServices g_services;  // what ib2tcp is offered
BackendOps g_below;       // ib2tcp's own
wayward_control g_nothing_told{};
wayward_control* g_control = &g_nothing_told;

std::uint32_t told(const std::uint32_t& field) { return __atomic_load_n(&field, __ATOMIC_SEQ_CST); }
void tell(std::uint32_t& field, std::uint32_t value) { __atomic_store_n(&field, value, __ATOMIC_SEQ_CST); }

// A request that was taken and has gone no further.
struct HeldPost {
  ibv_qp* qp;
  ibv_send_wr wr;
  std::vector<ibv_sge> list;
  std::vector<char> inlined;
};

struct State {
  SpinLock lock;
  std::map<ibv_cq*, std::deque<ibv_wc>> completions;  // taken out below and not polled yet
  std::map<ibv_qp*, std::uint64_t> executed;          // as last told
  std::deque<HeldPost> posts;
  std::deque<HeldPost> late;    // completed, and not made yet
  std::set<ibv_qp*> loopbacks;  // connected to themselves: nothing is withheld of these
};
State* g_state;

bool concerns(std::uint32_t hold, std::uint32_t qp_num) { return hold == 1 || hold == qp_num; }

bool is_held(const ibv_wc& wc) {
  const bool receive = (wc.opcode & IBV_WC_RECV) != 0;
  return concerns(told(receive ? g_control->hold_receives : g_control->hold_sends), wc.qp_num);
}

void let_go() {
  for (std::uint32_t* field : {&g_control->hold_sends, &g_control->hold_receives, &g_control->hold_acknowledgements})
    tell(*field, 0);
}
void let_posts_go() { tell(g_control->hold_posts, 0); }

void use_up(std::uint32_t& patience, void (*then)()) {
  const std::uint32_t left = told(patience);
  if (left == 1) then();
  if (left != 0) tell(patience, left - 1);
}

void count_withheld() {
  std::size_t count = g_state->posts.size();
  for (const auto& [cq, kept] : g_state->completions)
    for (const ibv_wc& wc : kept) count += is_held(wc);
  tell(g_control->withheld, static_cast<std::uint32_t>(count));
}

int pass_on(HeldPost& held) {
  held.wr.next = nullptr;
  held.wr.sg_list = held.list.data();
  ibv_send_wr* bad = nullptr;
  const int rc = g_below.post_send(held.qp, &held.wr, &bad);
  if (rc != 0) log_message(LogLevel::kWarn, "wayward: a request that was withheld is refused now: errno %d", rc);
  return rc;
}

// Of a request that will not be passed on.
void complete_instead(const HeldPost& held, ibv_wc_status status) {
  ibv_wc wc{};
  wc.wr_id = held.wr.wr_id;
  wc.status = status;
  wc.qp_num = held.qp->qp_num;
  wc.opcode = IBV_WC_SEND;
  g_state->completions[held.qp->send_cq].push_back(wc);
}

// The adapter has sent for as long as it may, and nobody has answered.
void give_peer_up() {
  if (g_state->posts.empty()) return;
  std::deque<HeldPost> lost;
  lost.swap(g_state->posts);
  ibv_wc_status status = IBV_WC_RETRY_EXC_ERR;
  for (const HeldPost& held : lost) {
    complete_instead(held, status);
    status = IBV_WC_WR_FLUSH_ERR;
  }
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  (void)g_below.modify_qp(lost.front().qp, &attr, IBV_QP_STATE);
}

// Caller holds the lock, as below.
void count_poll() {
  tell(g_control->polls, told(g_control->polls) + 1);
  if (told(g_control->inside) != 0) tell(g_control->stopped_inside, 1);
  use_up(g_control->patience, let_go);
  use_up(g_control->patience_with_posts, let_posts_go);
  use_up(g_control->lose_peer, give_peer_up);
}

void pass_posts_on() {
  if (told(g_control->hold_posts) != 0) return;
  while (!g_state->posts.empty()) {
    (void)pass_on(g_state->posts.front());
    g_state->posts.pop_front();
  }
}

bool is_loopback(const ibv_cq* cq) {
  for (const ibv_qp* qp : g_state->loopbacks)
    if (qp->send_cq == cq) return true;
  return false;
}

// A write that the requester hears of before it is made. What is to be written is kept apart.
void place_later(ibv_qp* qp, const ibv_send_wr& wr) {
  HeldPost& late = g_state->late.emplace_back();
  late.qp = qp;
  late.wr = wr;
  std::size_t bytes = 0;
  for (int i = 0; i < wr.num_sge; ++i) bytes += wr.sg_list[i].length;
  auto* copy = static_cast<char*>(g_services.map((bytes + kPage - 1) & ~(kPage - 1)));
  ibv_mr* mr = g_below.reg_mr(qp->pd, copy, bytes, reinterpret_cast<std::uint64_t>(copy), IBV_ACCESS_LOCAL_WRITE);
  SHADOWIB_CHECK(mr != nullptr, "no memory for a write that is to be made later");
  late.list = {{reinterpret_cast<std::uint64_t>(copy), static_cast<std::uint32_t>(bytes), mr->lkey}};
  for (int i = 0; i < wr.num_sge; copy += wr.sg_list[i++].length)
    std::memcpy(copy, reinterpret_cast<const void*>(wr.sg_list[i].addr), wr.sg_list[i].length);
  if ((wr.send_flags & IBV_SEND_SIGNALED) != 0) complete_instead(late, IBV_WC_SUCCESS);
  late.wr.num_sge = 1;
  late.wr.send_flags = 0;
}

void place() {
  while (!g_state->late.empty()) {
    (void)pass_on(g_state->late.front());
    g_state->late.pop_front();
  }
}

void take_from_below(ibv_cq* cq, std::deque<ibv_wc>* kept) {
  ibv_wc wc[16];
  int n;
  while ((n = g_below.poll_cq(cq, 16, wc)) > 0) kept->insert(kept->end(), wc, wc + n);
}

// The one to be polled next, or the end.
std::deque<ibv_wc>::iterator next_of(std::deque<ibv_wc>* kept) {
  auto found = kept->end();
  for (auto it = kept->begin(); it != kept->end(); ++it) {
    if (is_held(*it)) continue;
    if (found == kept->end() || it->qp_num > found->qp_num) found = it;
    if (told(g_control->newest_first) == 0) break;
  }
  return found;
}

int poll_cq(ibv_cq* cq, int count, ibv_wc* wc) {
  SpinGuard guard(g_state->lock);
  if (is_loopback(cq)) return g_below.poll_cq(cq, count, wc);
  count_poll();
  pass_posts_on();
  std::deque<ibv_wc>& kept = g_state->completions[cq];
  take_from_below(cq, &kept);
  int n = 0;
  for (auto it = next_of(&kept); n < count && it != kept.end(); it = next_of(&kept)) {
    wc[n++] = *it;
    kept.erase(it);
  }
  count_withheld();
  return n;
}

// Somebody is inside of an adapter's library, with a lock of it perhaps. Threads that are being stopped wait for it.
void stay_inside() {
  if (told(g_control->stay_inside) == 0) return;
  tell(g_control->inside, 1);
  while (told(g_control->paused) == 0 && told(g_control->stay_inside) != 0) ::usleep(1000);
  const std::int64_t end = monotonic_ns() + kStayNs;
  while (told(g_control->stay_inside) == 2 ? told(g_control->stopped_inside) == 0 : monotonic_ns() < end) cpu_pause();
  tell(g_control->stay_inside, 0);
  tell(g_control->inside, 0);
}

void hold(ibv_qp* qp, const ibv_send_wr& wr) {
  HeldPost& held = g_state->posts.emplace_back();
  held.qp = qp;
  held.wr = wr;
  held.list.assign(wr.sg_list, wr.sg_list + wr.num_sge);
  if ((wr.send_flags & IBV_SEND_INLINE) == 0) return;
  for (const ibv_sge& sge : held.list)
    held.inlined.insert(held.inlined.end(), reinterpret_cast<char*>(sge.addr),
                        reinterpret_cast<char*>(sge.addr) + sge.length);
  held.list = {
      {reinterpret_cast<std::uint64_t>(held.inlined.data()), static_cast<std::uint32_t>(held.inlined.size()), 0}};
  held.wr.num_sge = held.inlined.empty() ? 0 : 1;
}

bool loses(const ibv_qp* qp, const ibv_send_wr& wr) {
  if (qp->qp_type != IBV_QPT_UD || told(g_control->lose_datagrams) == 0) return false;
  tell(g_control->lose_datagrams, told(g_control->lose_datagrams) - 1);
  ibv_wc wc{};
  wc.wr_id = wr.wr_id;
  wc.opcode = IBV_WC_SEND;
  wc.qp_num = qp->qp_num;
  if ((wr.send_flags & IBV_SEND_SIGNALED) != 0) g_state->completions[qp->send_cq].push_back(wc);
  return true;
}

int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  stay_inside();
  SpinGuard guard(g_state->lock);
  pass_posts_on();
  const bool is_late = told(g_control->place_late) != 0 && !g_state->loopbacks.contains(qp);
  if (!is_late) place();
  for (; wr != nullptr; wr = wr->next) {
    if (concerns(told(g_control->hold_posts), qp->qp_num) && !g_state->loopbacks.contains(qp)) {
      hold(qp, *wr);
      continue;
    }
    if (loses(qp, *wr)) continue;
    if (is_late && wr->opcode == IBV_WR_RDMA_WRITE) {
      place_later(qp, *wr);
      continue;
    }
    ibv_send_wr one = *wr;
    one.next = nullptr;
    ibv_send_wr* none = nullptr;
    if (int rc = g_below.post_send(qp, &one, &none); rc != 0) {
      *bad = wr;
      return rc;
    }
  }
  count_withheld();
  return 0;
}

std::uint64_t sq_executed(ibv_qp* qp) {
  SpinGuard guard(g_state->lock);
  std::uint64_t& known = g_state->executed[qp];
  if (!concerns(told(g_control->hold_acknowledgements), qp->qp_num)) known = g_below.sq_executed(qp);
  return known;
}

// A queue pair's completions go with it, those that are withheld included.
void forget_completions(std::uint32_t qp_num) {
  for (auto& [cq, kept] : g_state->completions)
    for (auto it = kept.begin(); it != kept.end();)
      if (it->qp_num == qp_num) {
        if (g_services.purged != nullptr) g_services.purged(it->wr_id);
        it = kept.erase(it);
      } else {
        ++it;
      }
}

void forget(ibv_qp* qp, std::uint32_t qp_num) {
  SpinGuard guard(g_state->lock);
  forget_completions(qp_num);
  std::erase_if(g_state->posts, [qp](const HeldPost& held) { return held.qp == qp; });
  g_state->executed.erase(qp);
  g_state->loopbacks.erase(qp);
}

int modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
  const int rc = g_below.modify_qp(qp, attr, mask);
  if (rc == 0 && (mask & IBV_QP_DEST_QPN) != 0 && attr->dest_qp_num == qp->qp_num) {
    SpinGuard guard(g_state->lock);
    g_state->loopbacks.insert(qp);
  }
  if (rc == 0 && (mask & IBV_QP_STATE) != 0 && attr->qp_state == IBV_QPS_RESET) forget(qp, qp->qp_num);
  return rc;
}

int destroy_qp(ibv_qp* qp) {
  const std::uint32_t qp_num = qp->qp_num;
  const int rc = g_below.destroy_qp(qp);
  if (rc == 0) forget(qp, qp_num);
  return rc;
}

int destroy_cq(ibv_cq* cq) {
  const int rc = g_below.destroy_cq(cq);
  if (rc != 0) return rc;
  SpinGuard guard(g_state->lock);
  g_state->completions.erase(cq);
  return 0;
}

void set_paused(int paused) {
  tell(g_control->paused, static_cast<std::uint32_t>(paused));
  g_below.set_paused(paused);
}

void open_control(const HostServices* host) {
  const char* name = host->config("SHADOWIB_WAYWARD");
  if (name == nullptr) return;
  const int fd = ::open(name, O_RDWR | O_CLOEXEC);
  void* at = fd < 0 ? MAP_FAILED : ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  SHADOWIB_CHECK(at != MAP_FAILED, "SHADOWIB_WAYWARD names no file: %s", name);
  ::close(fd);
  host->own_mapping(at, kPage);
  g_control = static_cast<wayward_control*>(at);
  let_go();
  for (std::uint32_t* field : {&g_control->patience, &g_control->patience_with_posts, &g_control->newest_first,
                               &g_control->lose_datagrams, &g_control->place_late, &g_control->lose_peer,
                               &g_control->stay_inside, &g_control->paused, &g_control->inside, &g_control->withheld})
    tell(*field, 0);
  tell(g_control->hold_posts, told(g_control->begins_with));
}

void misbehave(BackendOps* ops) {
  ops->poll_cq = poll_cq;
  ops->post_send = post_send;
  ops->modify_qp = modify_qp;
  ops->destroy_qp = destroy_qp;
  ops->destroy_cq = destroy_cq;
  ops->sq_executed = sq_executed;
  ops->set_paused = set_paused;
  if (told(g_control->device) == 0) return;
  ops->sq_executed = nullptr;
  ops->set_paused = nullptr;
  ops->needs_signals = true;
  ops->purges_completions = false;
}

}  // namespace

std::uint32_t wayward_first_number() {
  const std::uint32_t number = told(g_control->first_number);
  return number != 0 ? number : 0x1000;
}

}  // namespace shadowib::ib2tcp

extern "C" __attribute__((visibility("default"))) int shadowib_backend_entry(const shadowib::HostServices* host,
                                                                             shadowib::BackendOps* ops) {
  using namespace shadowib::ib2tcp;
  shadowib::arena_exclude_from_image(host->map, host->unmap);
  open_control(host);
  g_services = *host;
  if (told(g_control->device) != 0) g_services.purged = nullptr;
  g_state = new State;
  if (int rc = ib2tcp_backend_entry(&g_services, &g_below); rc != 0) return rc;
  *ops = g_below;
  misbehave(ops);
  return 0;
}
