#include "shadowib/cli/supervise/notice.h"

#include <signal.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "shadowib/cli/supervise/time_limit.h"

namespace shadowib::cli {
namespace {

constexpr double kRoundingS = 2;  // whole seconds, printed a moment ago

// 0: no signal has this name.
int signal_named(std::string name) {
  if (name.starts_with("SIG")) name.erase(0, 3);
  for (int signal = 1; signal < SIGRTMIN; ++signal)
    if (const char* known = ::sigabbrev_np(signal); known != nullptr && name == known) return signal;
  return 0;
}

bool can_announce(int signal) {
  constexpr int kOthers[] = {SIGKILL, SIGSTOP, SIGCHLD, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
  for (const int other : kOthers)
    if (signal == other) return false;
  return true;
}

}  // namespace

Status parse_notice(const std::string& text, NoticeSource* source) {
  *source = {};
  source->text = text;
  const std::size_t at = text.find('@');
  source->signal = signal_named(text.substr(0, at));
  if (source->signal == 0) {
    source->command = text;
    return {};
  }
  if (!can_announce(source->signal))
    return Status::of(Code::kUsage, EINVAL, "--notice '%.60s': this signal announces nothing; use TERM, USR1 or USR2",
                      text.c_str());
  if (at == std::string::npos) return {};
  if (!parse_duration(text.substr(at + 1), &source->signal_s) || source->signal_s <= 0)
    return Status::of(Code::kUsage, EINVAL, "--notice '%.60s': behind the @ stands what is left, as in USR1@5m",
                      text.c_str());
  return {};
}

Said parse_seconds_left(const std::string& printed, double* left_s) {
  constexpr char kSpace[] = " \t\r\n";
  const std::size_t first = printed.find_first_not_of(kSpace);
  if (first == std::string::npos) return Said::kNothing;
  const std::string word = printed.substr(first, printed.find_last_not_of(kSpace) + 1 - first);
  char* end = nullptr;
  *left_s = std::strtod(word.c_str(), &end);
  // A difference to a time that is not known is far below 0, and announces nothing.
  const bool is_number = end == word.c_str() + word.size() && std::isfinite(*left_s) && *left_s >= 0;
  return is_number ? Said::kSeconds : Said::kNonsense;
}

bool AnnouncedEnd::announced(double now_s, double left_s, double need_s) {
  const double end_s = now_s + left_s;
  const bool is_news = !is_known_ || std::abs(end_s - end_s_) > kRoundingS;
  if (is_news) fits_ = left_s >= need_s;
  is_known_ = true;
  end_s_ = end_s;
  return is_news;
}

bool AnnouncedEnd::save_is_due(double now_s, double need_s) const {
  if (!is_known_ || !fits_) return false;
  return need_s < 0 || std::isinf(end_s_) || left_s(now_s) <= need_s;
}

}  // namespace shadowib::cli
