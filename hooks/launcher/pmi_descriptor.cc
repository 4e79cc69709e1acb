#include "hooks/launcher/pmi_descriptor.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/descriptors/capture/launcher_socket.h"
#include "hooks/job/current_job.h"
#include "hooks/launcher/connection.h"
#include "hooks/launcher/gate.h"
#include "hooks/launcher/membership.h"
#include "hooks/launcher/pmi_request.h"
#include "hooks/launcher/pmi_server.h"
#include "hooks/launcher/rank.h"
#include "hooks/raw/proc.h"
#include "hooks/threads/stop.h"
#include "shadowib/base/lasting.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/log.h"

namespace shadowib {
namespace {

constexpr std::int64_t kFirstPauseNs = 200'000, kLongestPauseNs = 20'000'000;  // between looks at a barrier
constexpr char kInit[] = "cmd=init ", kMapping[] = "PMI_process_mapping";
constexpr const char* kConstants[] = {"get_maxes", "get_my_kvsname", "get_appnum", "get_universe_size"};

std::atomic<int> g_fd{-1};

struct Conversation {
  bool in_gate = false, begun = false;
  bool told = false;                   // of the latest barrier, without a launcher
  bool warned = false;                 // likewise, that it cannot end yet
  std::vector<std::uint32_t> missing;  // ranks that have not come to it
  PmiRequests written;
  std::deque<PmiRequest> asked;  // not answered yet, oldest first
  std::string came;              // of the launcher's, no whole line yet
  std::string answers;           // to be read
  PmiKnowledge known;
};

Conversation& conversation() { return Lasting<Conversation>::get(); }

bool gone() { return launcher_rank().gone.load(); }

// No checkpoint from a request's first byte to its answer's last, unless that depends on other ranks.
void come_in(Conversation* c) {
  if (c->in_gate || gone()) return;
  enter_launcher_gate("a request of PMI");
  c->in_gate = true;
}

void go_out_if_free(Conversation* c) {
  const auto may_wait = [](const PmiRequest& r) { return is_pmi_barrier(r) || is_pmi_abort(r); };
  if (!c->in_gate || !c->written.is_between() || !std::all_of(c->asked.begin(), c->asked.end(), may_wait)) return;
  c->in_gate = false;
  leave_launcher_gate();
}

void forget_questions(Conversation* c) {
  {
    Inside inside;
    c->asked.clear();
    c->written.clear();
  }
  go_out_if_free(c);
}

// All of it, since who is stopped between two parts would go on with the second in another world.
bool send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

// A question of our own, while the program waits for the answer to one of its. Empty: none came.
std::string ask(int fd, const std::string& question) {
  std::string answer;
  if (!send_all(fd, question + "\n")) return {};
  for (char c = 0; c != '\n';) {
    const ssize_t n = ::read(fd, &c, 1);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0 || answer.size() > PmiRequests::kLongest) return {};
    if (c != '\n') answer += c;
  }
  return answer;
}

bool number_in_environment(const char* name, std::uint32_t* number) {
  const char* const text = std::getenv(name);
  char* end = nullptr;
  if (text != nullptr) *number = static_cast<std::uint32_t>(std::strtoul(text, &end, 10));
  return text != nullptr && *text != '\0' && *end == '\0';
}

// What a rank may ask for at any time and cannot be known afterwards is asked for now.
bool learn(int fd, PmiKnowledge* known, LauncherRank* r) {
  for (const char* command : kConstants)
    note_pmi_answer({command, {}}, ask(fd, std::string("cmd=") + command), known, r);
  PmiWords words = parse_pmi_words(known->constant["get_my_kvsname"]);
  const std::string name = words["kvsname"];
  if (name.empty() || name.size() >= sizeof(r->name)) return false;
  std::memcpy(r->name, name.c_str(), name.size() + 1);
  const std::string mapping = ask(fd, "cmd=get kvsname=" + name + " key=" + kMapping);
  if (!mapping.empty()) note_pmi_answer({"get", {{"key", kMapping}}}, mapping, known, r);
  return number_in_environment("PMI_RANK", &r->rank) && number_in_environment("PMI_SIZE", &r->size) &&
         r->size > r->rank;
}

void begin(Conversation* c, int fd) {
  LauncherRank& r = launcher_rank();
  if (r.size != 0) {  // it is one already, by PMIx
    forget_pmi_descriptor();
    return;
  }
  bool known = false;
  {
    Inside inside;
    known = learn(fd, &c->known, &r);
    if (known) {
      r.kind = "pmi1";
      note_launcher_descriptor(fd);
      leave_out_inherited(fd);
    }
  }
  if (!known) {
    r.size = 0;
    log_line(LogLevel::kWarn,
             "the launcher behind descriptor %d does not tell who this process is: checkpoints will be refused", fd);
    forget_pmi_descriptor();
    return;
  }
  join_as_rank();
}

// A line of the launcher's, for the program. What it answers.
std::string hear_line(Conversation* c, std::string_view line) {
  std::string command;
  c->answers += line;
  c->answers += '\n';
  if (c->asked.empty()) return command;  // it was not asked
  note_pmi_answer(c->asked.front(), line, &c->known, &launcher_rank());
  command = c->asked.front().command;
  c->asked.pop_front();
  return command;
}

void hear(Conversation* c, int fd, const char* bytes, std::size_t count) {
  bool initialised = false, finalised = false;
  {
    Inside inside;
    c->came.append(bytes, count);
    for (std::size_t end; (end = c->came.find('\n')) != std::string::npos; c->came.erase(0, end + 1)) {
      const std::string command = hear_line(c, std::string_view(c->came).substr(0, end));
      initialised = initialised || command == "init";
      finalised = finalised || command == "finalize";
    }
  }
  if (initialised) begin(c, fd);
  if (finalised) leave_as_rank();
  go_out_if_free(c);
}

// The rank ends, as by its launcher's hand, and the others hear of it.
[[noreturn]] void abort_job(const PmiRequest& request) {
  const LauncherRank& own = launcher_rank();
  const auto code = request.words.find("exitcode");
  const int status = code != request.words.end() ? std::atoi(code->second.c_str()) : 1;
  const AbortRequest abort{own.rank, status, "by PMI", {}};
  const Status told = job_exchange()->publish(abort_key(job_info().epoch), encode_abort(own.name, abort));
  if (!told.ok()) log_line(LogLevel::kError, "rank %u cannot tell the job that it aborts: %s", own.rank, told.text());
  log_line(LogLevel::kError, "rank %u ends: it has aborted the job with status %d", own.rank, status);
  ::_exit(status);
}

// Without a launcher: answers what is asked, up to a barrier that is not over. True: nothing is asked that waits.
bool answer_questions(Conversation* c) {
  Inside inside;
  c->came.clear();  // an answer that was cut short by the restart is given again
  while (!c->asked.empty()) {
    const PmiRequest& request = c->asked.front();
    if (is_pmi_abort(request)) abort_job(request);
    PmiServer server({job_exchange(), job_info().epoch, launcher_rank().name}, &c->known, &launcher_rank());
    if (is_pmi_barrier(request)) {
      Status status = c->told ? Status() : server.tell_barrier(&c->missing);
      c->told = status.ok();
      if (status.ok()) status = server.look_at_barrier(&c->missing);
      if (!status.ok() && !std::exchange(c->warned, true))
        log_line(LogLevel::kWarn, "a barrier of PMI cannot end yet: %s", status.text());
      if (!status.ok() || !c->missing.empty()) return false;
    }
    c->answers += server.answer(request);
    c->asked.pop_front();
  }
  return true;
}

// False: not PMI-1.
bool take_questions(Conversation* c, std::string_view bytes) {
  Inside inside;
  for (PmiRequest request; c->written.take(&bytes, &request);) {
    if (request.command == "init" && request.words["pmi_version"] != "1") return false;
    if (is_pmi_barrier(request)) {
      count_pmi_barrier(&launcher_rank());
      c->told = c->warned = false;
    }
    c->asked.push_back(std::move(request));
  }
  return true;
}

std::size_t give(Conversation* c, void* data, std::size_t bytes) {
  Inside inside;
  const std::size_t n = std::min(bytes, c->answers.size());
  std::memcpy(data, c->answers.data(), n);
  c->answers.erase(0, n);
  return n;
}

}  // namespace

void note_pmi_descriptor(int fd) {
  struct stat st {};
  if (g_fd.load() >= 0 || fd < 0 || ::fstat(fd, &st) != 0 || !S_ISSOCK(st.st_mode)) return;
  Inside inside;
  conversation() = {};
  g_fd = fd;
}

bool is_pmi_descriptor(int fd) { return fd >= 0 && fd == g_fd.load(std::memory_order_relaxed); }

void forget_pmi_descriptor() {
  g_fd = -1;
  forget_questions(&conversation());
}

ssize_t write_pmi(const void* data, std::size_t size) {
  Conversation& c = conversation();
  const int fd = g_fd.load();
  const std::string_view bytes(static_cast<const char*>(data), size);
  if (!c.begun && !bytes.starts_with(kInit)) {
    forget_pmi_descriptor();
    return ::write(fd, data, size);
  }
  c.begun = true;
  come_in(&c);
  const bool understood = take_questions(&c, bytes);
  if (gone()) {
    answer_questions(&c);
  } else if (!send_all(fd, bytes)) {
    const int error = errno;
    forget_questions(&c);
    errno = error;
    return -1;
  }
  if (!understood) forget_pmi_descriptor();
  go_out_if_free(&c);
  return static_cast<ssize_t>(size);
}

ssize_t read_pmi(void* data, std::size_t size) {
  Conversation& c = conversation();
  std::atomic<std::uint32_t> nobody{0};
  for (std::int64_t pause = kFirstPauseNs; size > 0;) {
    if (const std::size_t n = give(&c, data, size); n > 0) return static_cast<ssize_t>(n);
    if (gone()) {
      const std::int64_t began = monotonic_ns();
      const bool all = answer_questions(&c);
      // Who looks for many takes longer, and looks less often.
      const std::int64_t longest = std::max(kLongestPauseNs, 10 * (monotonic_ns() - began));
      if (all && c.answers.empty()) return 0;  // what nobody has asked for will not come
      if (!all) futex_wait(&nobody, 0, pause);
      pause = std::min(2 * pause, longest);
      continue;
    }
    char chunk[2048];
    const int fd = g_fd.load();
    const ssize_t n = ::read(fd, chunk, sizeof(chunk));
    const int error = errno;
    if (n > 0) {
      hear(&c, fd, chunk, static_cast<std::size_t>(n));
    } else if (!gone()) {
      if (n == 0 || (error != EINTR && error != EAGAIN)) forget_questions(&c);
      errno = error;
      return n;
    }
  }
  return 0;
}

Status take_pmi_descriptor() {
  const int fd = g_fd.load();
  if (fd < 0 || !descriptors::is_launcher_descriptor(fd)) return {};
  const int flags = ::fcntl(fd, F_GETFD);
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  const bool taken = null >= 0 && ::syscall(SYS_dup3, null, fd, (flags & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0) == fd;
  const int error = errno;
  if (null >= 0) descriptors::raw_close(null);
  if (taken) return {};
  return Status::of(Code::kIo, error, "the launcher's descriptor %d cannot become /dev/null: %s", fd,
                    ::strerrordesc_np(error));
}

void reset_pmi_after_fork() {
  g_fd = -1;
  conversation().in_gate = false;
}

}  // namespace shadowib
