#include "hooks/imager/restore/page_stream.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "shadowib/base/processes.h"

namespace shadowib {
namespace {

bool send_all(int fd, const void* data, std::uint64_t bytes) {
  const auto* from = static_cast<const std::uint8_t*>(data);
  while (bytes > 0) {
    const ssize_t n = ::send(fd, from, bytes, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    from += n;
    bytes -= static_cast<std::uint64_t>(n);
  }
  return true;
}

// All that the member asks for, to the end of its question.
bool receive_question(int fd, std::vector<std::uint32_t>* batches) {
  constexpr std::size_t kAtOnce = 4096;
  std::size_t bytes = 0;
  for (;;) {
    batches->resize(bytes / sizeof(std::uint32_t) + kAtOnce);
    const ssize_t n = ::recv(fd, reinterpret_cast<char*>(batches->data()) + bytes,
                             batches->size() * sizeof(std::uint32_t) - bytes, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    bytes += static_cast<std::size_t>(n);
    if (n == 0) break;
  }
  batches->resize(bytes / sizeof(std::uint32_t));
  return bytes % sizeof(std::uint32_t) == 0;
}

// Damaged pages are answered by zeros: the restorer checks what it gets, and tells where the damage is. An end before
// the last page is an error of reading there.
void serve(const MemberImage& member, int fd) {
  std::vector<std::uint32_t> wanted;
  if (!receive_question(fd, &wanted)) return;
  ImageFiles files(member.image, member.fd);
  const std::vector<std::uint8_t> zeros(kHashedPagesPerRecord * kPage);
  for (const std::uint32_t number : wanted) {
    if (number >= member.image.batches.size()) return;
    const PageBatch& batch = member.image.batches[number];
    const std::uint8_t* pages = zeros.data();
    const Status status = files.unpack(batch, &pages);
    if (!status.ok() && status.code() != Code::kCorrupt) return;
    if (!send_all(fd, status.ok() ? pages : zeros.data(), batch.page_count * kPage)) return;
  }
}

}  // namespace

bool has_compressed(const LoadedImage& image) {
  return std::any_of(image.batches.begin(), image.batches.end(),
                     [](const PageBatch& b) { return b.frame.codec != 0; });
}

Status PageStreams::start(const RestartPart& part) {
  const pid_t starter = ::getpid();
  for (const MemberImage* member : part) {
    if (!has_compressed(member->image)) continue;
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      return Status(Code::kIo, errno, "cannot make a socket pair; raise the limit on open files (ulimit -n)");
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != starter) ::_exit(1);
      close_all_but({member->fd, ends[1]});  // what else is open may be the program's: who has it is counted
      serve(*member, ends[1]);
      ::_exit(0);
    }
    const int error = errno;
    ::close(ends[1]);
    if (pid < 0) {
      ::close(ends[0]);
      return Status(Code::kIo, error, "cannot fork to decompress pages; see the limit on processes (ulimit -u)");
    }
    ends_[member->image.header.member] = ends[0];
    processes_.insert(pid);
  }
  return {};
}

int PageStreams::of(std::uint32_t member) const {
  const auto at = ends_.find(member);
  return at == ends_.end() ? -1 : at->second;
}

void PageStreams::close_others(std::uint32_t member) {
  for (const auto& [other, fd] : ends_)
    if (other != member) ::close(fd);
  std::erase_if(ends_, [member](const auto& end) { return end.first != member; });
}

void PageStreams::close_all() {
  for (const auto& [member, fd] : ends_) ::close(fd);
  ends_.clear();
}

void PageStreams::end() {
  close_all();
  for (const pid_t pid : processes_) {
    ::kill(pid, SIGKILL);
    while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  processes_.clear();
}

Status ask_for_pages(int stream, const std::vector<std::uint32_t>& batches) {
  if (stream < 0) return {};
  if (send_all(stream, batches.data(), batches.size() * sizeof(std::uint32_t)) && ::shutdown(stream, SHUT_WR) == 0)
    return {};
  return Status(Code::kIo, errno, "the process that decompresses pages is gone");
}

}  // namespace shadowib
