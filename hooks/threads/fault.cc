#include "hooks/threads/fault.h"

#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "hooks/raw/tasks.h"
#include "hooks/threads/stop.h"
#include "shadowib/base/log.h"

namespace shadowib {
namespace {

enum class Action {
  kNone,
  kCrash,
  kStop,
  kTerminate,
  kFail,
  kNoDescriptor,
  kNoMemory,
  kSlow,
  kStuck,
  kNoSpace,
  kFault
};

struct Fault {
  int point = -1;
  Action action = Action::kNone;
  int member = -1;  // -1: every member
  int passage = 0;  // 0: every time
};

std::atomic<int> g_member{-1};

Action action_of(const char* name, std::size_t length) {
  static constexpr struct {
    const char* name;
    Action action;
  } kActions[] = {{"crash", Action::kCrash}, {"stop", Action::kStop},           {"term", Action::kTerminate},
                  {"fail", Action::kFail},   {"emfile", Action::kNoDescriptor}, {"enomem", Action::kNoMemory},
                  {"slow", Action::kSlow},   {"stuck", Action::kStuck},         {"enospc", Action::kNoSpace},
                  {"fault", Action::kFault}};
  for (const auto& a : kActions)
    if (std::strlen(a.name) == length && std::strncmp(a.name, name, length) == 0) return a.action;
  return Action::kNone;
}

Fault parse(const char* text) {
  Fault fault;
  if (text == nullptr) return fault;
  char* end;
  fault.point = static_cast<int>(std::strtol(text, &end, 10));
  if (end == text || *end != ':') return {};
  const char* name = end + 1;
  const char* colon = std::strchr(name, ':');
  fault.action = action_of(name, colon ? static_cast<std::size_t>(colon - name) : std::strlen(name));
  if (colon) {
    char* rest;
    fault.member = static_cast<int>(std::strtol(colon + 1, &rest, 10));
    if (*rest == ':') fault.passage = std::atoi(rest + 1);
  }
  if (fault.action == Action::kNone) log_line(LogLevel::kWarn, "SHADOWIB_FAULT=%s is not understood, ignored", text);
  return fault;
}

std::atomic<int> g_passages{0};

Fault& configured() {
  static Fault fault = parse(std::getenv("SHADOWIB_FAULT"));
  return fault;
}
// Read when the library is loaded: a child that is forked while another thread reads it would wait for that for ever.
[[maybe_unused]] const Fault& g_fault_is_read = configured();

Status failure(int point, int error) {
  return Status::of(Code::kIo, error, "fault point %d fails because SHADOWIB_FAULT says so: %s", point,
                    std::strerror(error));
}

bool concerns_us(const Fault& fault) {
  return fault.action != Action::kNone &&
         (fault.member < 0 || fault.member == g_member.load(std::memory_order_relaxed));
}

}  // namespace

Status fault_point(int point) {
  const Fault& fault = configured();
  if (fault.point != point || !concerns_us(fault)) return {};
  const int passage = g_passages.fetch_add(1) + 1;
  if (fault.passage != 0 && fault.passage != passage) return {};
  switch (fault.action) {
    case Action::kCrash:
      ::kill(::getpid(), SIGKILL);
      // The first process of a pid namespace cannot kill itself so.
      for (;;) ::syscall(SYS_exit_group, 128 + SIGKILL);
    case Action::kStop:
      ::kill(::getpid(), SIGSTOP);
      break;
    case Action::kSlow:
      raw_sleep_ms(2000);
      break;
    case Action::kStuck:
      while (g_stop_requested.load() != 0) raw_sleep_ms(10);
      break;
    case Action::kTerminate:
      ::kill(::getpid(), SIGTERM);
      break;
    case Action::kFault:
      __asm__ volatile("ud2");
      break;
    case Action::kFail:
      return failure(point, EIO);
    case Action::kNoDescriptor:
      return failure(point, EMFILE);
    case Action::kNoMemory:
      return failure(point, ENOMEM);
    default:
      break;
  }
  return {};
}

bool fault_no_space() { return configured().action == Action::kNoSpace && concerns_us(configured()); }

void fault_begin_anew(const char* text) {
  configured() = parse(*text != '\0' ? text : nullptr);
  g_passages = 0;
}

void fault_set_member(unsigned member) { g_member.store(static_cast<int>(member)); }

}  // namespace shadowib
