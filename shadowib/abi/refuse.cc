#include "shadowib/abi/refuse.h"

#include <infiniband/verbs.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "shadowib/base/log.h"

namespace shadowib {
namespace {

struct CensusName {
  unsigned id;
  const char* name;
  const char* man;
};
constexpr CensusName kNames[] = {
#define CENSUS_NAME(id, name, man) {id, name, man},
#include "census_names.inc"
#undef CENSUS_NAME
};
// Ids of names the installed library lacks are left out of the table, so an id is at most kNames' last.
constexpr unsigned kIds = kNames[sizeof(kNames) / sizeof(kNames[0]) - 1].id + 1;
std::atomic<bool> g_warned[kIds];
std::atomic<unsigned> g_refused{0};

// librdmacm asks for enhanced connection establishment at every connection, and takes EOPNOTSUPP for an answer: a
// warning would be one about nothing.
LogLevel level_of(const char* name) {
  const bool optional = std::strcmp(name, "ibv_query_ece") == 0 || std::strcmp(name, "ibv_set_ece") == 0;
  return optional ? LogLevel::kInfo : LogLevel::kWarn;
}

}  // namespace

void warn_refused(unsigned id) {
  SHADOWIB_CHECK(id < kIds, "census id %u", id);
  if (g_warned[id].load(std::memory_order_relaxed) || g_warned[id].exchange(true)) return;
  ++g_refused;
  for (const CensusName& entry : kNames) {
    if (entry.id != id) continue;
    log_line(level_of(entry.name), "%s is not supported under shadowib: answered EOPNOTSUPP%s%s%s", entry.name,
             entry.man[0] ? " (see " : "", entry.man, entry.man[0] ? ")" : "");
    return;
  }
}

unsigned refused_names() { return g_refused; }

}  // namespace shadowib

using shadowib::warn_refused;

extern "C" {

int shadowib_refuse_int(unsigned id) {
  warn_refused(id);
  return EOPNOTSUPP;
}

void* shadowib_refuse_ptr(unsigned id) {
  warn_refused(id);
  errno = EOPNOTSUPP;
  return nullptr;
}

int shadowib_refuse_minus1(unsigned id) {
  warn_refused(id);
  errno = EOPNOTSUPP;
  return -1;
}

unsigned long long shadowib_refuse_zero(unsigned id) {
  warn_refused(id);
  errno = EOPNOTSUPP;
  return 0;
}

void shadowib_refuse_void(unsigned id) {
  warn_refused(id);
  errno = EOPNOTSUPP;
}

int shadowib_refuse_rereg(unsigned id) {
  warn_refused(id);
  errno = EOPNOTSUPP;
  return IBV_REREG_MR_ERR_CMD;
}

int shadowib_census_noop(void) { return 0; }
}
