#include "hooks/launcher/spawn.h"

#include <cstdlib>
#include <cstring>

extern "C" char** environ;

namespace shadowib {
namespace {

// Set by `shadowib run` without a prefix of ours.
constexpr const char* kOthers[] = {"LD_PRELOAD",   "LD_LIBRARY_PATH", "LD_BIND_NOW",
                                   "PMIX_MCA_gds", "UCX_UD_TIMEOUT",  "GLIBC_TUNABLES"};

bool same_name(const char* one, const char* other) {
  const std::size_t length = std::strcspn(one, "=");
  return std::strncmp(one, other, length) == 0 && (other[length] == '=' || other[length] == '\0');
}

bool is_handed_on(const char* variable) {
  if (std::strncmp(variable, "SHADOWIB_", 9) == 0) return true;
  for (const char* name : kOthers)
    if (same_name(name, variable)) return true;
  return false;
}

bool has_variable(char* const* environment, const char* variable) {
  for (; environment != nullptr && *environment != nullptr; ++environment)
    if (same_name(variable, *environment)) return true;
  return false;
}

std::size_t length_of(char* const* environment) {
  std::size_t length = 0;
  while (environment != nullptr && environment[length] != nullptr) ++length;
  return length;
}

// A new array with copies of `own` and of what is handed on; null if there is no memory.
char** extend(char* const* own) {
  char** const all = static_cast<char**>(std::calloc(length_of(own) + length_of(environ) + 1, sizeof(char*)));
  if (all == nullptr) return nullptr;
  std::size_t count = 0;
  bool complete = true;
  const auto add = [&](const char* variable) {
    all[count] = ::strdup(variable);
    complete = all[count] != nullptr && complete;
    count += all[count] != nullptr;
  };
  for (char* const* v = own; v != nullptr && *v != nullptr; ++v) add(*v);
  for (char* const* v = environ; v != nullptr && *v != nullptr; ++v)
    if (is_handed_on(*v) && !has_variable(own, *v)) add(*v);
  if (complete) return all;
  while (count > 0) std::free(all[--count]);
  std::free(all);
  return nullptr;
}

}  // namespace

pmix_app_t* apps_in_job(const pmix_app_t apps[], std::size_t napps) {
  const char* job = std::getenv("SHADOWIB_JOB");
  if (job == nullptr || *job == '\0' || apps == nullptr || napps == 0) return nullptr;
  auto* const copies = static_cast<pmix_app_t*>(std::calloc(napps, sizeof(pmix_app_t)));
  if (copies == nullptr) return nullptr;
  std::memcpy(copies, apps, napps * sizeof(pmix_app_t));
  for (std::size_t i = 0; i < napps; ++i) {
    copies[i].env = extend(apps[i].env);
    if (copies[i].env != nullptr) continue;
    free_apps_in_job(copies, i);
    return nullptr;
  }
  return copies;
}

void free_apps_in_job(pmix_app_t* apps, std::size_t napps) {
  if (apps == nullptr) return;
  for (std::size_t i = 0; i < napps; ++i) {
    for (char** v = apps[i].env; *v != nullptr; ++v) std::free(*v);
    std::free(apps[i].env);
  }
  std::free(apps);
}

}  // namespace shadowib
