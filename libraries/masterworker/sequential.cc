// The runtime of libshadowib-mw-seq: one process does all. The oracle of tests, and a way to debug a program.
//
// With SHADOWIB_BEGINS_ANEW it treats programs as a farm does whose workers end: each task loses some rounds by REDO
// and CONTINUATION, and begins anew with the original input. A program must come to the same result.
#include <utility>

#include "libraries/masterworker/runtime.h"

namespace shadowib::masterworker {
namespace {

#if defined(SHADOWIB_BEGINS_ANEW)
constexpr bool kBeginsAnew = true;
#else
constexpr bool kBeginsAnew = false;
#endif

class Sequential : public Runtime {
 public:
  void run(Callbacks callbacks) override {
    callbacks_ = std::move(callbacks);
    abandoned_ = false;
    while (!abandoned_) {
      const std::optional<Payload> input = callbacks_.generate();
      if (!input) return;
      ++counts_.tasks;
      do_all(*input);
    }
  }
  void raw_begin(Callbacks callbacks) override {
    callbacks_ = std::move(callbacks);
    abandoned_ = false;
  }
  void submit(Payload input) override {
    if (abandoned_) return;
    ++counts_.tasks;
    do_all(input);
  }
  bool wait_for_result() override { return false; }
  void raw_end() override {}
  void finalize() override {}

  bool is_master() const override { return true; }
  int rank() const override { return 0; }
  int workers() const override { return 1; }
  int idle_workers() const override { return 1; }
  bool up_to_date() const override { return true; }
  Round round() const override { return round_; }
  void abort_tasks() override {}
  bool abort_pending() const override { return false; }
  void abandon() override { abandoned_ = true; }
  Counts counts() const override { return counts_; }

 private:
  // A task's rounds. DoTask gets a copy of its input, as from a message: what it writes there is seen by nobody.
  void do_all(const Payload& original) {
    Payload input = original;
    int lost = 0;
    for (;;) {
      const Payload output = callbacks_.work(Payload::copy(input.data(), input.size()).data());
      ++counts_.checks;
      Action action = callbacks_.check(input, output);
      if (action.kind == ActionKind::kUpdate) {
        ++counts_.updates;
        if (callbacks_.update) callbacks_.update(input, output);
      }
      round_ = action.kind == ActionKind::kRedo           ? Round::kRedo
               : action.kind == ActionKind::kContinuation ? Round::kContinuation
                                                          : Round::kFirst;
      if (round_ == Round::kFirst || abandoned_) return;
      ++(round_ == Round::kRedo ? counts_.redos : counts_.continuations);
      if (round_ == Round::kContinuation) input = std::move(action.next);
      if (kBeginsAnew && ++rounds_ % 2 == 0 && ++lost <= 2) {
        round_ = Round::kFirst;
        input = original;
      }
    }
  }

  Callbacks callbacks_;
  Round round_ = Round::kFirst;
  bool abandoned_ = false;
  std::uint64_t rounds_ = 0;
  Counts counts_;
};

}  // namespace

std::unique_ptr<Runtime> make_runtime(const Settings&) { return std::make_unique<Sequential>(); }

}  // namespace shadowib::masterworker
