#include "hooks/agent/values.h"

#include <cerrno>
#include <cstring>
#include <map>
#include <string>

#include "hooks/job/current_job.h"
#include "hooks/threads/stop.h"
#include "shadowib/base/lock.h"

namespace shadowib {
namespace {

using Values = std::map<std::string, std::string>;

SpinLock g_lock;
Values* g_values SHADOWIB_GUARDED_BY(g_lock) = nullptr;  // what this process has published

Status check_name(const char* name) {
  if (name != nullptr && std::strchr(name, '/') == nullptr && Exchange::valid_key(name)) return {};
  return Status::of(Code::kUsage, EINVAL, "'%.100s' is no name of a value: use 1 to 64 of A-Za-z0-9._-",
                    name != nullptr ? name : "(null)");
}

std::string key_of(const std::string& name) { return std::string(job_info().epoch) + "/value/" + name; }

Status publish_first(const std::string& name, std::string_view value) {
  Status status = job_exchange()->claim(key_of(name), value);
  if (status.code() != Code::kBusy) return status;
  return Status::of(Code::kBusy, EEXIST, "the value '%.64s' belongs to another process of the job", name.c_str());
}

}  // namespace

Status publish_value(const char* name, const void* value, std::size_t bytes) {
  SHADOWIB_TRY(check_name(name));
  if (bytes > kMaxValueBytes)
    return Status::of(Code::kUsage, EMSGSIZE, "the value '%.64s' has %zu bytes; it may have %zu", name, bytes,
                      kMaxValueBytes);
  Inside inside;
  SpinGuard guard(g_lock);
  if (g_values == nullptr) g_values = new Values;
  const std::string_view bytes_of_value(static_cast<const char*>(value), bytes);
  const auto at = g_values->find(name);
  if (at == g_values->end()) {
    if (g_values->size() == kMaxValues)
      return Status::of(Code::kUsage, ENOSPC, "no room for the value '%.64s': this process has published %zu", name,
                        kMaxValues);
    SHADOWIB_TRY(publish_first(name, bytes_of_value));
    g_values->emplace(name, bytes_of_value);
    return {};
  }
  SHADOWIB_TRY(job_exchange()->publish(key_of(name), bytes_of_value));
  at->second = bytes_of_value;
  return {};
}

Status lookup_value(const char* name, void* to, std::size_t capacity, std::size_t* bytes) {
  SHADOWIB_TRY(check_name(name));
  Inside inside;
  std::string value;
  bool found = false;
  SHADOWIB_TRY(job_exchange()->get(key_of(name), &value, &found));
  if (!found) return Status::of(Code::kNotFound, ENOENT, "no process of the job has published '%.64s'", name);
  *bytes = value.size();
  if (value.size() > capacity)
    return Status::of(Code::kUsage, EOVERFLOW, "the value '%.64s' has %zu bytes; there is room for %zu", name, *bytes,
                      capacity);
  if (!value.empty()) std::memcpy(to, value.data(), value.size());
  return {};
}

Status publish_values_again() {
  SpinGuard guard(g_lock);
  if (g_values == nullptr) return {};
  for (const auto& [name, value] : *g_values) SHADOWIB_TRY(job_exchange()->publish(key_of(name), value));
  return {};
}

void values_reset_after_fork() SHADOWIB_NO_THREAD_SAFETY_ANALYSIS {
  g_lock.reset();
  g_values = nullptr;  // another thread may have been changing it: its memory is given up
}

}  // namespace shadowib
