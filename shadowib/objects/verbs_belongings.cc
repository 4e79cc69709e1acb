#include "shadowib/objects/verbs_belongings.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "shadowib/base/descriptors.h"
#include "shadowib/base/mappings.h"

namespace shadowib {
namespace {

struct Range {
  std::uintptr_t start, end;
};
std::vector<Range> g_owned;  // as of the last image

// A queue of the device's each, and many: neighbours are one. 0 or an errno.
int device_ranges(std::vector<Range>* found) {
  return for_each_mapping([found](const Mapping& m) {
    if (::strncmp(m.name, "/dev/infiniband/", 16) != 0) return true;
    if (!found->empty() && found->back().end == m.start)
      found->back().end = m.end;
    else
      found->push_back({m.start, m.end});
    return true;
  });
}

}  // namespace

bool own_library_descriptor(const UnownedDescriptors& unowned, int* fd) {
  const int owned = unowned.own(*fd);
  if (owned < 0) return false;
  *fd = owned;
  return true;
}

void return_library_descriptor(const HostServices* host, int* fd) {
  const int owned = *fd, plain = ::fcntl(owned, F_DUPFD_CLOEXEC, 3);
  // Without a descriptor left the library closes the one we call ours, which is then called so for nothing.
  if (plain < 0) return;
  *fd = plain;
  host->close_descriptor(owned);
}

int own_device_mappings(const HostServices* host) {
  std::vector<Range> now;
  if (int rc = device_ranges(&now); rc != 0) return rc;
  if (now.size() > kMaxOwnedMappings / 2) return E2BIG;
  for (const Range& range : g_owned) host->disown_mapping(reinterpret_cast<void*>(range.start));
  g_owned = std::move(now);
  for (const Range& range : g_owned) host->own_mapping(reinterpret_cast<void*>(range.start), range.end - range.start);
  return 0;
}

void forget_device_mappings() { g_owned.clear(); }

}  // namespace shadowib
