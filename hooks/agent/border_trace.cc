#include "hooks/agent/border_trace.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <span>

#include "hooks/agent/agent.h"
#include "hooks/agent/own_cluster.h"
#include "hooks/job/cluster.h"
#include "hooks/job/current_job.h"
#include "hooks/raw/tasks.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/log.h"
#include "shadowib/base/unowned_descriptors.h"

namespace shadowib {
namespace {

char g_path[512] = "";
std::atomic<bool> g_begun{false};  // the file is known to have its first line

// A line of JSON. Longer than any event; no memory is allocated, since threads of the program may be stopped.
class TraceLine {
 public:
  explicit TraceLine(const char* event) {
    add(R"({"event":"%s","at_us":%lld,"job":"%s")", event, static_cast<long long>(monotonic_ns() / 1000),
        g_job.info.job);
  }
  [[gnu::format(printf, 2, 3)]] void add(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int n = std::vsnprintf(text_.data() + bytes_, text_.size() - bytes_, format, arguments);
    va_end(arguments);
    SHADOWIB_CHECK(n >= 0 && bytes_ + static_cast<std::size_t>(n) < text_.size(), "a line of the trace is too long");
    bytes_ += static_cast<std::size_t>(n);
  }
  void add_list(const char* name, std::span<const std::uint32_t> numbers) {
    add(",\"%s\":", name);
    for (std::size_t i = 0; i < numbers.size(); ++i) add("%c%u", i == 0 ? '[' : ',', numbers[i]);
    add("]");
  }
  std::span<const char> end() {
    add("}\n");
    return {text_.data(), bytes_};
  }

 private:
  std::array<char, 4096> text_;
  std::size_t bytes_ = 0;
};

bool write_all(int fd, std::span<const char> text) {
  return ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

// The first line of the file says whose trace it is. Clusters may join at any time, so it has room for all.
bool write_start(int fd) {
  const OwnCluster& cluster = own_cluster();
  TraceLine line("start");
  line.add(R"(,"policy":"%s","clusters":%u,"incarnation":%u)", policy_name(cluster.policy), federation::kMaxClusters,
           cluster.running.incarnations[cluster.running.index]);
  return write_all(fd, line.end());
}

void append(TraceLine* line) {
  const UnownedDescriptors unowned;
  const int fd = ::open(g_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  struct stat file {};
  const auto begin = [&] {
    return ::flock(fd, LOCK_EX) == 0 && ::fstat(fd, &file) == 0 && (file.st_size != 0 || write_start(fd));
  };
  const bool written = fd >= 0 && (g_begun || begin()) && write_all(fd, line->end());
  if (written) g_begun = true;
  if (!written)
    log_line(LogLevel::kError, "the trace %.200s (SHADOWIB_TRACE) lacks a line: %s", g_path, std::strerror(errno));
  if (fd >= 0) raw_close(fd);
}

void add_place(TraceLine* line, unsigned cluster, federation::Incarnation incarnation, federation::Sn sn) {
  line->add(R"(,"cluster":%u,"incarnation":%u,"sn":%u)", cluster, incarnation, sn);
}

}  // namespace

Status set_trace_path(const std::string& path) {
  if (!path.empty() && (path[0] != '/' || path.size() >= sizeof(g_path)))
    return Status::of(Code::kUsage, EINVAL, "SHADOWIB_TRACE='%.100s' is no absolute path of at most %zu bytes",
                      path.c_str(), sizeof(g_path) - 1);
  g_begun = false;
  std::memcpy(g_path, path.c_str(), path.size() + 1);
  return {};
}

bool is_traced() { return g_path[0] != '\0'; }

void trace_message(const TracedMessage& message) {
  static constexpr const char* kNames[] = {"post", "hold", "deliver"};
  const bool is_post = message.kind == TracedMessage::Kind::kPost;
  TraceLine line(kNames[static_cast<std::size_t>(message.kind)]);
  add_place(&line, own_cluster().running.index, message.incarnation, message.sn);
  line.add(R"(,"%s":%u,"flow":%llu,"number":%u)", is_post ? "to" : "from", message.peer,
           static_cast<unsigned long long>(message.flow), message.number);
  if (is_post) line.add(",\"member\":%u", g_job.info.member);
  if (!message.vector.empty()) line.add_list("vector", message.vector);
  append(&line);
}

void trace_commit(const federation::ClcRecord& record) {
  if (!is_traced()) return;
  TraceLine line("commit");
  add_place(&line, record.cluster, record.incarnation, record.sn);
  line.add(R"(,"forced":%s)", record.forced ? "true" : "false");
  line.add_list("before", record.before.of);
  line.add_list("after", record.after.of);
  line.add(",\"member\":%u", g_job.info.member);
  append(&line);
}

}  // namespace shadowib
