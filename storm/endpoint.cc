#include "storm/endpoint.h"

#include <algorithm>

#include "storm/epoch.h"

namespace storm {
namespace {

constexpr std::uint32_t bit(Word word) { return 1u << static_cast<std::uint32_t>(word); }
constexpr std::uint64_t kTellAfter = 20;  // ticks without progress after which an unreliable sender says where it is

}  // namespace

Endpoint::Endpoint(Commons& commons, const End& end)
    : commons_(commons), end_(end), control_(end.fd), moved_at_(commons.ticks.load()) {}

Endpoint::~Endpoint() = default;

std::uint64_t Endpoint::idle_ticks() const { return over_ ? 0 : commons_.ticks - moved_at_; }

void Endpoint::say(Word word, std::uint64_t first, std::uint64_t second) {
  Message message{};
  message.word = word;
  message.epoch = number_;
  message.values[0] = first;
  message.values[1] = second;
  if (word == Word::kAddress) message.address = epoch_->address();
  control_.say(message);
}

bool Endpoint::listen() {
  Message message;
  bool some = false;
  // What the peer says of its next epoch waits until this end has one, too.
  while (state_ != State::kMaking && ((heard_ & bit(Word::kBye)) == 0 || last_) && control_.hear(&message)) {
    some |= message.word != Word::kPosted;  // what a peer says that cannot go on moves nothing
    if (message.epoch != number_) ledger().fault(Fault::kHung, "the ends of a connection are in different epochs");
    heard(message);
  }
  if (control_.gone() && (heard_ & bit(Word::kFarewell)) == 0)
    ledger().give_up("the other end of a connection has gone");
  return some;
}

void Endpoint::heard(const Message& message) {
  const std::uint64_t first = message.values[0], second = message.values[1];
  heard_ |= bit(message.word);
  switch (message.word) {
    case Word::kAddress:
      epoch_->wiring.peer = message.address;
      break;
    case Word::kCredit:
      epoch_->sender->credited({first, second});
      break;
    case Word::kWindow:
      epoch_->sender->window_bound(static_cast<std::uint32_t>(first));
      break;
    case Word::kPosted:
      peer_posted_ = first;
      break;
    case Word::kFlushed:
      compared_[0] = first;
      compared_[1] = second;
      break;
    case Word::kBye:
      last_ |= first != 0;
      break;
    case Word::kFarewell:
      for (int i = 0; i < kSharedCounters; ++i) {
        peers_additions_.count[i] = message.values[i];
        peers_additions_.hash[i] = message.values[kSharedCounters + i];
      }
      break;
    default:
      break;
  }
}

void Endpoint::make() {
  epoch_ = std::make_unique<Epoch>(commons_, end_.connection, end_.side, number_, additions_, control_);
  if (ledger().failed()) return;
  say(Word::kAddress);
  state_ = State::kConnecting;
}

void Endpoint::connect() {
  epoch_->connect(epoch_->wiring.peer);
  epoch_->receiver->prepare();
  say(Word::kReady);
  state_ = State::kTraffic;
}

bool Endpoint::step() {
  if (state_ == State::kOver) return false;
  const State before = state_;
  bool some = listen();
  if (epoch_ && epoch_->sender) some |= epoch_->poll_own();
  if (ledger().failed()) return false;
  switch (state_) {
    case State::kMaking:
      make();
      break;
    case State::kConnecting:
      if ((heard_ & bit(Word::kAddress)) != 0) connect();
      break;
    case State::kTraffic:
      if ((heard_ & bit(Word::kReady)) != 0) some |= run();
      break;
    case State::kFlushing:
      begin_flush();
      break;
    case State::kFlushed:
      if ((heard_ & bit(Word::kFlushed)) != 0) compare();
      break;
    case State::kErring:
      some |= finish_receives();
      break;
    case State::kParting:
      if ((heard_ & bit(Word::kBye)) != 0) next_epoch();
      break;
    case State::kFarewell:
      if ((heard_ & bit(Word::kFarewell)) != 0) {
        state_ = State::kOver;
        over_ = true;
      }
      break;
    case State::kOver:
      break;
  }
  some |= state_ != before;
  if (some || completions_ != epoch_completions()) moved_at_ = commons_.ticks.load();
  completions_ = epoch_completions();
  return some;
}

std::uint64_t Endpoint::epoch_completions() const { return epoch_ ? epoch_->completions : 0; }

bool Endpoint::run() {
  Sender& sender = *epoch_->sender;
  Receiver& receiver = *epoch_->receiver;
  bool some = sender.step();
  some |= receiver.step();
  if (!said_done_ && sender.done()) {
    say(Word::kDone);
    said_done_ = some = true;
  }
  const std::uint64_t now = commons_.ticks;
  if (some) told_at_ = now;
  if (!epoch_->wiring.reliable()) {
    if (now >= told_at_ + kTellAfter && !sender.all_posted()) {
      say(Word::kPosted, sender.posted());
      told_at_ = now;
    }
    const bool done = (heard_ & bit(Word::kDone)) != 0;
    if (done || peer_posted_ != 0) receiver.sender_at(done ? epoch_->wiring.in().operations : peer_posted_, done);
    peer_posted_ = 0;
  }
  if (!said_received_ && receiver.all_received()) {
    say(Word::kReceived);
    said_received_ = some = true;
  }
  const std::uint32_t all = bit(Word::kDone) | bit(Word::kReceived);
  if (!said_done_ || !said_received_ || (heard_ & all) != all) return some;
  // Idle for a while now and then, with completions and unsignaled tails where they are.
  if (linger_until_ == 0) linger_until_ = now + epoch_->wiring.plan.linger;
  if (now >= linger_until_) state_ = State::kFlushing;
  return some;
}

// The last request; when it has completed, everything before it has run at the peer.
void Endpoint::begin_flush() {
  Sender& sender = *epoch_->sender;
  if (!flush_posted_) flush_posted_ = epoch_->wiring.plan.transport == Transport::kUd || sender.post_flush();
  if (!flush_posted_ || !sender.empty()) return;
  say(Word::kFlushed, epoch_->receiver->counter(), epoch_->receiver->swapped());
  state_ = State::kFlushed;
}

void Endpoint::compare() {
  const Sender& sender = *epoch_->sender;
  const char* name = epoch_->wiring.name();
  if (compared_[0] != sender.counter())
    ledger().fault(compared_[0] > sender.counter() ? Fault::kDoubled : Fault::kLost,
                   "%s: the peer's counter is %lx and should be %lx", name, compared_[0], sender.counter());
  if (compared_[1] != sender.swapped())
    ledger().fault(Fault::kCorrupted, "%s: the peer's register is %lx and should be %lx", name, compared_[1],
                   sender.swapped());
  epoch_->receiver->check_places();
  if (epoch_->wiring.in().ends_in_error && !epoch_->wiring.in().shared_queue) {
    epoch_->to_error();
    state_ = State::kErring;
  } else {
    part();
  }
}

bool Endpoint::finish_receives() {
  if (epoch_->receiver->outstanding() != 0) return false;
  part();
  return true;
}

void Endpoint::part() {
  epoch_.reset();
  completions_ = 0;
  ledger().count(Count::kEpochs);
  last_ |= commons_.stop;
  say(Word::kBye, last_);
  state_ = State::kParting;
}

void Endpoint::next_epoch() {
  if (last_) {
    say_farewell();
    state_ = State::kFarewell;
    return;
  }
  ++number_;
  heard_ = 0;
  linger_until_ = peer_posted_ = 0;
  said_done_ = said_received_ = flush_posted_ = false;
  state_ = State::kMaking;
}

void Endpoint::say_farewell() {
  Message message{};
  message.word = Word::kFarewell;
  message.epoch = number_;
  for (int i = 0; i < kSharedCounters; ++i) {
    message.values[i] = additions_.count[i];
    message.values[kSharedCounters + i] = additions_.hash[i];
  }
  control_.say(message);
}

std::string Endpoint::describe() const {
  static constexpr const char* kStates[] = {"making",   "connecting", "traffic",  "flushing", "flushed",
                                            "in error", "parting",    "farewell", "over"};
  std::string text = "connection " + std::to_string(end_.connection.index) + " end " + std::to_string(end_.side) +
                     ", epoch " + std::to_string(number_) + ": " + kStates[static_cast<int>(state_)] + ", heard " +
                     std::to_string(heard_) + ", idle for " + std::to_string(idle_ticks()) + " ticks";
  if (!epoch_ || !epoch_->sender) return text;
  char numbers[64];
  std::snprintf(numbers, sizeof(numbers), ", queue pair %u of %u", epoch_->sending->qp_num,
                epoch_->wiring.peer.receiving);
  return text + numbers + " (" + name_of(epoch_->wiring.plan.transport) + ")\n    " + epoch_->sender->describe() +
         "\n    " + epoch_->receiver->describe();
}

}  // namespace storm
