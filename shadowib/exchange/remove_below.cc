#include "shadowib/exchange/remove_below.h"

#include <cerrno>
#include <vector>

#include "shadowib/exchange/exchange.h"
#include "shadowib/exchange/pmix_exchange.h"
#include "shadowib/exchange/raw_files.h"
#include "shadowib/exchange/redis_exchange.h"
#include "shadowib/exchange/redis_place.h"

namespace shadowib {
namespace {

// 0 or errno. The directory itself stays if somebody has put something new into it.
int remove_tree(int directory, const std::string& name) {
  const OwnedFd fd = open_owned(directory, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  if (!fd) return errno == ENOENT ? 0 : errno;
  std::vector<std::string> entries;
  int err = for_each_entry(fd.get(), [&](std::string_view entry, unsigned char) {
    entries.emplace_back(entry);
    return true;
  });
  for (const std::string& entry : entries) {
    if (err != 0) break;
    if (::syscall(SYS_unlinkat, fd.get(), entry.c_str(), 0) == 0 || errno == ENOENT) continue;
    err = errno == EISDIR || errno == EPERM ? remove_tree(fd.get(), entry) : errno;
  }
  if (err != 0 || ::syscall(SYS_unlinkat, directory, name.c_str(), AT_REMOVEDIR) == 0) return err;
  return errno == ENOENT || errno == ENOTEMPTY || errno == EEXIST ? 0 : errno;
}

}  // namespace

Status remove_below(const std::string& uri, const std::string& prefix) {
  if (!Exchange::valid_key(prefix))
    return Status::of(Code::kUsage, EINVAL, "exchange: '%.100s' is no key", prefix.c_str());
  if (is_redis_uri(uri)) return remove_below_in_redis(uri, prefix);
  if (uri.compare(0, 5, "pmix:") == 0) return remove_below_in_pmix(uri, prefix);
  if (uri.compare(0, 4, "dir:") != 0)
    return Status::of(Code::kUsage, EINVAL, "exchange '%.200s': nothing can be removed there", uri.c_str());
  const OwnedFd root = open_owned(AT_FDCWD, uri.c_str() + 4, O_RDONLY | O_DIRECTORY);
  const int err = root ? remove_tree(root.get(), prefix) : errno == ENOENT ? 0 : errno;
  return err == 0 ? Status()
                  : Status::of(Code::kIo, err, "exchange %.150s: cannot remove what is below %.80s: %s", uri.c_str(),
                               prefix.c_str(), error_text(err));
}

}  // namespace shadowib
