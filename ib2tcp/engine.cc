#include "ib2tcp/engine.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ib2tcp/border.h"
#include "ib2tcp/host.h"
#include "ib2tcp/identity.h"
#include "ib2tcp/link.h"

namespace shadowib::ib2tcp {

Engine* g_engine = nullptr;

namespace {

// Delayed acknowledgements go out after this many turns in which nothing moved: by then the program had its
// chance to answer, and its answer would have carried them.
constexpr int kAckTurns = 3;
// More sockets than this are asked by epoll instead of one by one.
constexpr int kDirectSockets = 4;
// How often a program that polls all the time looks for connections that come and go.
constexpr std::int64_t kControlNs = 100'000;
// How often as long as a look-up of the exchange took to fail, and how long at most, there is no other one.
constexpr std::int64_t kRests = 10, kLongestRestNs = 30'000'000'000;
// How often peers are looked at, and after how long a host that says nothing is gone. Idle ones end as soon.
constexpr int kLookAtPeersSeconds = 5;
constexpr std::uint32_t kHostPatienceMs = 40'000;

// An object of its own: with a base class in front, the engine's lock would lie further from its address.
class EngineDriver final : public Driver {
 public:
  void arm(Timer& timer, std::int64_t deadline_ns) override { g_engine->arm(timer, deadline_ns); }
  void disarm(Timer& timer) override { g_engine->disarm(timer); }
  void watch(Watch& watch, int fd, std::uint32_t events, bool control) override {
    g_engine->watch(watch, fd, events, control);
  }
  void unwatch(Watch& watch) override { g_engine->unwatch(watch); }
  void want_turn() override { g_engine->want_turn(); }
  void count_refused(Refused what) override {
    Statistics& counts = g_engine->statistics;
    (what == Refused::kFrame ? counts.frames_refused : counts.handshakes_refused).add(1);
  }
};

}  // namespace

Driver& engine_driver() {
  static constinit EngineDriver driver;
  return driver;
}

int Engine::open() {
  UnownedDescriptors unowned;
  data_set_ = unowned.own(::epoll_create1(EPOLL_CLOEXEC));
  control_set_ = unowned.own(::epoll_create1(EPOLL_CLOEXEC));
  bell_ = unowned.own(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  lost_peers_clock_ = unowned.own(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (data_set_ < 0 || control_set_ < 0 || bell_ < 0 || lost_peers_clock_ < 0) return EMFILE;
  bell_watch_ = {[](void* self, std::uint32_t) { static_cast<Engine*>(self)->hear_bell(); }, this};
  control_watch_ = {[](void* self, std::uint32_t) {
                      auto* engine = static_cast<Engine*>(self);
                      engine->run_epoll(engine->control_set_);
                    },
                    this};
  lost_peers_watch_ = {[](void* self, std::uint32_t) { static_cast<Engine*>(self)->look_for_lost_peers(); }, this};
  watch(bell_watch_, bell_, EPOLLIN, false);
  watch(control_watch_, control_set_, EPOLLIN, false);
  watch(lost_peers_watch_, lost_peers_clock_, EPOLLIN, true);
  return 0;
}

void Engine::add_sockets(int change) {
  const bool any = sockets != 0;
  sockets += change;
  if (any == (sockets != 0)) return;
  constexpr itimerspec kNever{}, kRegularly{{kLookAtPeersSeconds, 0}, {kLookAtPeersSeconds, 0}};
  ::timerfd_settime(lost_peers_clock_, 0, any ? &kNever : &kRegularly, nullptr);
}

void Engine::look_for_lost_peers() {
  std::uint64_t rings;
  [[maybe_unused]] auto n = ::read(lost_peers_clock_, &rings, sizeof(rings));
  for (std::size_t i = 0; i < connected_.size(); ++i) connected_[i]->end_if_lost(kHostPatienceMs);
  want_turn();
}

Engine::Engine() = default;
Engine::~Engine() = default;

void Engine::end_loan() {
  for (std::uint32_t lent = kLent; !loan_.compare_exchange_weak(lent, kNotLent); lent = kLent) cpu_pause();
}

bool Engine::lock_or_borrow() {
  constexpr timespec kPause{0, 20'000};
  for (int tries = 0;; ++tries) {
    if (lock.try_lock()) return false;
    std::uint32_t lent = kLent;
    if (loan_.compare_exchange_strong(lent, kBorrowed)) return true;
    if (tries < 100)
      cpu_pause();
    else
      ::nanosleep(&kPause, nullptr);
  }
}

void Engine::give_back() { loan_.store(kLent); }

int exchange_publish(const char* key, const void* value, std::size_t bytes) {
  g_engine->lend();
  const int rc = g_host->publish(key, value, bytes);
  g_engine->end_loan();
  return rc;
}

int exchange_lookup(const char* key, void* value, std::size_t capacity, std::size_t* bytes) {
  const std::int64_t begun = monotonic_ns();
  std::int64_t& rests_until = g_engine->exchange_rests_until_ns;
  if (begun < rests_until) return EAGAIN;
  g_engine->lend();
  const int rc = g_host->lookup(key, value, capacity, bytes);
  g_engine->end_loan();
  const bool failed_before = std::exchange(rests_until, 0) != 0;
  if (rc == 0 || rc == ENOENT || rc == EOVERFLOW) {
    if (failed_before) log_message(LogLevel::kInfo, "the job's exchange answers again");
    return rc;
  }
  const std::int64_t now = monotonic_ns();
  rests_until = now + std::min(kRests * (now - begun), kLongestRestNs);
  if (!failed_before)
    log_message(LogLevel::kWarn, "the job's exchange does not answer (errno %d): new connections wait until it does",
                rc);
  return rc;
}

int exchange_claim(const char* key) {
  g_engine->lend();
  const int rc = g_host->claim(key);
  g_engine->end_loan();
  return rc;
}

Link* Engine::link_with(const std::uint8_t uuid[16]) {
  for (Link* link : links_)
    if (std::memcmp(link->peer().uuid, uuid, 16) == 0) return link;
  return nullptr;
}

// One that has ended is taken out behind the turn, with its stream: nobody goes through the list then.
void Engine::add_connected(Link& link) {
  if (std::find(connected_.begin(), connected_.end(), &link) == connected_.end()) connected_.push_back(&link);
}

std::uint32_t Engine::number_of(const Link& link) const {
  return static_cast<std::uint32_t>(std::find(links_.begin(), links_.end(), &link) - links_.begin());
}

void Engine::arm(Timer& timer, std::int64_t deadline_ns) {
  timer.hook.unlink();
  timer.deadline_ns = deadline_ns;
  timers_.insert(timer);
  if (deadline_ns < next_deadline_ns_) {
    next_deadline_ns_ = deadline_ns;
    want_turn();
  }
}

bool Engine::run_timers() {
  std::int64_t now = monotonic_ns();
  if (now < next_deadline_ns_) return false;
  Timers due;
  while (!timers_.empty() && timers_.begin()->deadline_ns <= now) {
    Timer& timer = *timers_.begin();
    timer.hook.unlink();
    due.insert(due.end(), timer);
  }
  bool any = !due.empty();
  while (!due.empty()) {  // one that fires may disarm another: it leaves `due` by itself
    Timer& timer = *due.begin();
    timer.hook.unlink();
    timer.fire(timer.owner);
  }
  if (any) want_turn();  // what they set going is for the next turn to send
  next_deadline_ns_ = timers_.empty() ? INT64_MAX : timers_.begin()->deadline_ns;
  return any;
}

void Engine::watch(Watch& watch, int fd, std::uint32_t events, bool control) {
  watch.fd = fd;
  watch.in_control = control;
  epoll_event event{};
  event.events = events;
  event.data.ptr = &watch;
  int rc = ::epoll_ctl(control ? control_set_ : data_set_, EPOLL_CTL_ADD, fd, &event);
  SHADOWIB_CHECK(rc == 0, "descriptor %d, errno %d", fd, errno);
}

void Engine::rewatch(Watch& watch, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = &watch;
  ::epoll_ctl(watch.in_control ? control_set_ : data_set_, EPOLL_CTL_MOD, watch.fd, &event);
}

void Engine::unwatch(Watch& watch) {
  if (watch.fd < 0) return;
  ::epoll_ctl(watch.in_control ? control_set_ : data_set_, EPOLL_CTL_DEL, watch.fd, nullptr);
  watch.fd = -1;
}

bool Engine::run_epoll(int set) {
  epoll_event events[64];
  int n = ::epoll_wait(set, events, 64, 0);
  dispatch(events, n);
  return n > 0;
}

void Engine::dispatch(epoll_event* events, int count) {
  for (int i = 0; i < count; ++i) {
    auto* watch = static_cast<Watch*>(events[i].data.ptr);
    // An earlier event of the batch may have ended this one; its object is buried, not gone.
    if (watch->fd >= 0) watch->ready(watch->owner, events[i].events);
  }
}

void Engine::dig() {
  while (!graves_.empty()) {
    Grave grave = graves_.back();
    graves_.pop_back();
    grave.destroy(grave.object);
  }
  std::erase_if(connected_, [](const Link* link) { return !link->is_connected(); });
}

// A system call every 64 turns would take a tenth of a program's time that does nothing but poll.
bool Engine::is_control_due() {
  if (handshakes > 0) return true;
  const std::int64_t now = monotonic_ns();
  if (now - control_ns_ < kControlNs) return false;
  control_ns_ = now;
  return true;
}

bool Engine::turn(bool flush) {
  bool moved = poller != nullptr && poller->poll();
  if (sockets > kDirectSockets) run_epoll(data_set_);
  for (std::size_t i = 0; i < connected_.size(); ++i) {
    Link* link = connected_[i];
    Stream* stream = link->stream();
    if (stream == nullptr) continue;
    bool read = link->is_memory_readable() ? stream->readable() : sockets <= kDirectSockets || link->readable;
    moved |= link->turn(read);
  }
  // Listeners, handshakes and ends of connections can wait a little, unless somebody is just connecting.
  if ((++turns_ & (handshakes > 0 ? 3 : 63)) == 0 && is_control_due()) run_epoll(control_set_);
  if (!timers_.empty()) moved |= run_timers();
  idle_turns_ = moved ? 0 : idle_turns_ + 1;
  if (flush || idle_turns_ >= kAckTurns)
    for (std::size_t i = 0; i < connected_.size(); ++i)  // what is sent may need a new link
      if (connected_[i]->owes_acks()) connected_[i]->send_owed_acks();
  if (!graves_.empty()) dig();
  return moved;
}

bool Engine::prepare_sleep(int* timeout_ms) {
  if (poller != nullptr && !poller->prepare_sleep()) return false;
  for (Link* link : connected_) {
    if (link->stream() == nullptr || link->prepare_sleep()) continue;
    for (Link* prepared : connected_) prepared->wake_up();
    return false;
  }
  if (timers_.empty()) next_deadline_ns_ = INT64_MAX;  // the last was disarmed: nothing is due, ever
  if (next_deadline_ns_ != INT64_MAX) {
    std::int64_t left_ms = std::max<std::int64_t>(0, (next_deadline_ns_ - monotonic_ns() + 999'999) / 1'000'000);
    if (*timeout_ms < 0 || left_ms < *timeout_ms)
      *timeout_ms = static_cast<int>(std::min<std::int64_t>(left_ms, 60'000));
  }
  return true;
}

}  // namespace shadowib::ib2tcp
