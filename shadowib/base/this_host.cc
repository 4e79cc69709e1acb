#include "shadowib/base/this_host.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>

#include "shadowib/base/unowned_descriptors.h"

namespace shadowib {

std::string this_machine() {
  char boot[64];  // by system calls: stdio would take the program's heap
  UnownedDescriptors unowned;
  const int fd = ::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  const ssize_t bytes = fd >= 0 ? ::read(fd, boot, sizeof(boot)) : 0;
  if (fd >= 0) ::close(fd);
  std::string host;
  for (ssize_t i = 0; i < bytes; ++i)
    if (host.size() < 16 && std::isxdigit(static_cast<unsigned char>(boot[i]))) host += boot[i];
  return host;
}

std::string this_host() {
  struct stat st {};
  ::stat("/proc/self/ns/net", &st);
  return this_machine() + "-" + std::to_string(st.st_ino);
}

}  // namespace shadowib
