// What libshadowib.so is to a program, without verbs: the agent, the guards and a participant that does as told.
// AGENT_TEST_UNSETTLED=N: settle times out N times. AGENT_TEST_REFUSE=N: settle refuses the Nth time.
// AGENT_TEST_PASSING=N: it refuses N times for what passes. AGENT_TEST_STUCK_RESUME=1: resume waits, the first time,
// until the program's threads go on. AGENT_TEST_BUSY=FILE: a hook before a checkpoint makes it, and waits until it is
// removed.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "hooks/agent/agent.h"
#include "hooks/raw/tasks.h"
#include "hooks/threads/stop.h"
#include "shadowib/base/log.h"

namespace {

int number(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoi(text) : 0;
}

class ObedientParticipant final : public shadowib::Participant {
 public:
  shadowib::Status settle(const shadowib::SettleContext& context) override {
    ++settles_;
    if (settles_ == number("AGENT_TEST_REFUSE"))
      return shadowib::Status(shadowib::Code::kRefused, 0, "queue pair 7 cannot be captured");
    if (settles_ <= number("AGENT_TEST_PASSING"))
      return shadowib::Status(shadowib::Code::kRefused, EAGAIN, "queue pair 7 is just being made");
    if (settles_ <= number("AGENT_TEST_UNSETTLED"))
      return shadowib::Status(shadowib::Code::kTimeout, 0, "counts differ");
    // All members of the checkpoint must come here with the same keys.
    return context.exchange->barrier(std::string(context.prefix) + "/settled", std::to_string(context.job->member),
                                     static_cast<int>(context.member_count), 500, context.abort_key);
  }
  shadowib::Status quiesce() override { return {}; }
  void resume() override {
    if (resumes_++ == 0 && number("AGENT_TEST_STUCK_RESUME") != 0)
      while (shadowib::g_stop_requested.load() != 0) shadowib::raw_sleep_ms(10);
  }
  shadowib::Status restart(const shadowib::JobInfo&, shadowib::Exchange*) override {
    ++restarts_;
    return {};
  }
  void describe(std::string* json) override {
    *json += "{\"settles\":" + std::to_string(settles_) + ",\"resumes\":" + std::to_string(resumes_) +
             ",\"hooks\":" + std::to_string(hooks_[0]) + std::to_string(hooks_[1]) + std::to_string(hooks_[2]) +
             ",\"restarts\":" + std::to_string(restarts_) + "}";
  }
  int hooks_[3] = {};

 private:
  int settles_ = 0, resumes_ = 0, restarts_ = 0;
};

ObedientParticipant g_participant;

}  // namespace

extern "C" __attribute__((visibility("default"))) int agent_test_join(void) {
  shadowib::set_participant(&g_participant);
  shadowib::add_hook(
      [](int event, void*) {
        ++g_participant.hooks_[event];
        // A hook that takes until the test removes the file.
        const char* const busy = std::getenv("AGENT_TEST_BUSY");
        if (busy != nullptr && event == 0 && ::creat(busy, 0600) >= 0)
          while (::access(busy, F_OK) == 0) ::usleep(1000);
      },
      nullptr);
  shadowib::Status status = shadowib::join_job();
  if (!status.ok()) shadowib::log_line(shadowib::LogLevel::kError, "%s", status.text());
  return status.ok() ? 0 : 1;
}

extern "C" __attribute__((visibility("default"))) int agent_test_request(int kill) {
  shadowib::Status status;
  std::string path;
  int result = shadowib::request_checkpoint(kill != 0, 20000, &status, &path);
  if (!status.ok()) shadowib::log_line(shadowib::LogLevel::kError, "%s", status.text());
  if (status.ok() && result == 0 && access(path.c_str(), F_OK) != 0) return 49;
  return status.ok() ? result : 50 + static_cast<int>(status.code());
}
