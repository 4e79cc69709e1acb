#include "storm/ledger.h"

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

namespace storm {
namespace {
constexpr std::uint64_t kPrinted = 8;  // faults of a process
}

const char* name_of(Kind kind) {
  static constexpr const char* kNames[] = {
      "send",         "send_imm",     "send_inv",    "write",     "write_imm",
      "read",         "mirror_write", "mirror_read", "fetch_add", "shared_fetch_add",
      "compare_swap", "bind_mw",      "local_inv",   "credit",    "flush"};
  return kNames[static_cast<int>(kind)];
}

const char* name_of(Fault fault) {
  static constexpr const char* kNames[] = {"lost", "doubled",    "early", "corrupted", "reordered",
                                           "hung", "completion", "event", "refused",   "identity"};
  return kNames[static_cast<int>(fault)];
}

const char* name_of(Count count) {
  static constexpr const char* kNames[] = {"bytes",   "epochs",  "completions", "completion_events", "limit_events",
                                           "dropped", "flushed", "churned",     "address_handles",   "deepest"};
  return kNames[static_cast<int>(count)];
}

void Ledger::raise_to(Count what, std::uint64_t n) {
  Number& number = counts_[static_cast<int>(what)];
  std::uint64_t seen = number.load(std::memory_order_relaxed);
  while (seen < n && !number.compare_exchange_weak(seen, n, std::memory_order_relaxed)) continue;
}

void Ledger::fault(Fault fault, const char* format, ...) {
  const std::uint64_t before = faults_[static_cast<int>(fault)].fetch_add(1);
  if (before < kPrinted) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    std::fprintf(stderr, "storm %s: %s: %s\n", name_.c_str(), name_of(fault), text);
  }
  failed_.store(true, std::memory_order_release);
}

void Ledger::give_up(const char* why) {
  if (!failed_.exchange(true)) std::fprintf(stderr, "storm %s: %s\n", name_.c_str(), why);
}

std::uint64_t Ledger::operations() const {
  std::uint64_t sum = 0;
  for (int kind = 0; kind < static_cast<int>(Kind::kCredit); ++kind)
    sum += kinds_[kind].load(std::memory_order_relaxed);
  return sum;
}

std::string Ledger::json() const {
  nlohmann::ordered_json report;
  for (int i = 0; i < static_cast<int>(Kind::kCount); ++i)
    report["operations"][name_of(static_cast<Kind>(i))] = kinds_[i].load();
  for (int i = 0; i < static_cast<int>(Fault::kCount); ++i)
    report["faults"][name_of(static_cast<Fault>(i))] = faults_[i].load();
  for (int i = 0; i < static_cast<int>(Count::kCount); ++i)
    report["counts"][name_of(static_cast<Count>(i))] = counts_[i].load();
  return report.dump();
}

Ledger& ledger() {
  static Ledger the_ledger;
  return the_ledger;
}

bool succeeded(bool condition, const char* what, int error) {
  const int number = error != 0 ? error : errno;
  if (!condition) ledger().fault(Fault::kRefused, "%s: %s", what, std::strerror(number < 0 ? -number : number));
  return condition;
}

}  // namespace storm
