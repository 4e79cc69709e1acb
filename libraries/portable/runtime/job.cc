#include "libraries/portable/runtime/job.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "libraries/portable/runtime/options.h"
#include "libraries/portable/runtime/registry.h"

namespace shadowib::portable {

const volatile std::uint64_t* job_word = nullptr;
std::uint64_t job_answered = 0;

namespace {

constexpr std::size_t kRequestBytes = 16384;
constexpr std::size_t kDecisionAt = 8, kTextAt = 16;
constexpr char kCommitted = 'c', kWithdrawn = 'w';
constexpr long kLookNs = 5000000;

struct Order {
  std::uint64_t id = 0;
  std::string staging, lock, set;
  bool kill = false;
};

constexpr long kAskedNs = 20000000;

pid_t joined = 0;  // this process; 0: it belongs to no job
Order order, handed_over;
unsigned long long order_step = 0;
unsigned order_processes = 0;

// Its begin, as it is now: the command may run on another host, which a mapping need not hear of.
bool read_request(unsigned char* to, std::size_t bytes) {
  const int fd = open((options().job + "/request").c_str(), O_RDONLY | O_CLOEXEC);
  const bool whole = fd >= 0 && read(fd, to, bytes) == static_cast<ssize_t>(bytes);
  if (fd >= 0) close(fd);
  return whole;
}

std::uint64_t id_of(const unsigned char* request) {
  std::uint64_t id = 0;
  std::memcpy(&id, request, sizeof id);
  return id;
}

// 0: none, or it cannot be read.
std::uint64_t request_id() {
  unsigned char id[8];
  return read_request(id, sizeof id) ? id_of(id) : 0;
}

// A line behind the file of the lock, by which others learn of this process (hooks/job/member_record.h). The file
// keeps its time, that of joining.
void record(const std::string& line) {
  const int lock = options().job_lock;
  struct stat before = {};
  if (lock < 0 || fstat(lock, &before) != 0) return;
  if (pwrite(lock, line.data(), line.size(), before.st_size) < 0) return;
  const timespec times[2] = {before.st_atim, before.st_mtim};
  futimens(lock, times);
}

void record_left(int status) {
  if (joined == getpid()) record("left status=" + std::to_string(status & 0xff) + "\n");
}

void note_exit(int status, void*) { record_left(status); }

// The command holds this lock as long as it lives.
bool lock_is_held(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return false;
  struct flock64 lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  const bool known = fcntl64(fd, F_OFD_GETLK, &lock) == 0;
  close(fd);
  return known && lock.l_type != F_UNLCK;
}

std::string next_line(std::string& text) {
  const auto end = text.find('\n');
  std::string line = text.substr(0, end);
  text = end == std::string::npos ? "" : text.substr(end + 1);
  return line;
}

// "0-3,7": whether this process is among them.
bool is_meant(std::string members) {
  for (char& c : members)
    if (c == ',') c = ' ';
  const unsigned own = options().member;
  for (const char* at = members.c_str(); *at;) {
    char* end = nullptr;
    const unsigned long first = std::strtoul(at, &end, 10);
    const unsigned long last = *end == '-' ? std::strtoul(end + 1, &end, 10) : first;
    if (end == at) return false;
    if (first <= own && own <= last) return true;
    at = end;
  }
  return false;
}

// False: there is none, or it is not for this process, which has begun since.
bool read_order(Order& read) {
  static unsigned char request[kRequestBytes];
  if (!read_request(request, sizeof request)) return false;
  read.id = id_of(request);
  std::string text;
  for (std::size_t i = kTextAt; i < kRequestBytes && request[i] != 0; i++) text += static_cast<char>(request[i]);
  read.staging = next_line(text), read.lock = next_line(text), read.set = next_line(text);
  read.kill = next_line(text) == "kill";
  const bool meant = is_meant(next_line(text));
  // The command may have written another one meanwhile.
  if (read.id == 0 || read.id != request_id() || read.staging.empty()) return false;
  if (!meant) job_answered = read.id;
  return meant;
}

bool is_there(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

// True once the set is committed, so this process is to end. False: it goes on.
bool await_decision(const Order& of) {
  const timespec pause = {0, kLookNs};
  for (;;) {
    unsigned char request[kTextAt] = {};
    const bool known = read_request(request, sizeof request);
    if (known && (id_of(request) != of.id || request[kDecisionAt] == kWithdrawn)) return false;
    if (known && request[kDecisionAt] == kCommitted) return true;
    // A command that has died has renamed the set, or not.
    if (!lock_is_held(of.lock)) return !is_there(of.staging) && is_there(of.set);
    nanosleep(&pause, nullptr);
  }
}

void write_answer(const std::string& text) {
  // The bytes of the id in their order, which all processors have alike.
  unsigned char bytes[8];
  std::memcpy(bytes, &order.id, sizeof bytes);
  char name[17];
  for (unsigned i = 0; i < sizeof bytes; i++) std::snprintf(name + 2 * i, 3, "%02x", bytes[i]);
  const std::string path = options().job + "/answer-" + name + "." + std::to_string(options().member);
  const std::string part = path + ".new";
  const int fd = open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const bool whole = fd >= 0 && write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (fd < 0 || close(fd) != 0 || !whole || rename(part.c_str(), path.c_str()) != 0)
    std::fprintf(stderr, "shadowib: %s cannot be written: %s\n", path.c_str(), std::strerror(errno));
}

}  // namespace

void join_job() {
  if (options().job.empty()) return;
  const std::string path = options().job + "/request";
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  void* memory = fd < 0 ? MAP_FAILED : mmap(nullptr, kRequestBytes, PROT_READ, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    std::fprintf(stderr,
                 "shadowib: the job's file %s cannot be read: %s; start the program by shadowib run --portable\n",
                 path.c_str(), std::strerror(errno));
    std::exit(2);
  }
  close(fd);
  // Programs that this one starts are no members.
  if (options().job_lock >= 0) fcntl(options().job_lock, F_SETFD, FD_CLOEXEC);
  job_word = static_cast<const volatile std::uint64_t*>(memory);
  joined = getpid();
  record(options().record);
  on_exit(note_exit, nullptr);
}

bool in_job() { return joined != 0; }

bool take_order() {
  Order read;
  if (!read_order(read)) return false;
  job_answered = read.id;
  if (!lock_is_held(read.lock)) return false;
  order = read;
  order_step = 0, order_processes = 0;
  return true;
}

bool has_order() { return order.id != 0; }
bool order_kills() { return order.kill; }
void hand_over_order() { handed_over = std::exchange(order, {}); }
std::string order_directory() { return order.staging; }

void answer_saved(std::uint64_t visits, int process) {
  const std::vector<const Module*> all = modules();
  write_answer("saved\nvisits " + std::to_string(visits) + "\nstep " + std::to_string(order_step) + "\nprocesses " +
               std::to_string(order_processes) + "\npid " + std::to_string(process) + "\ntarget " +
               (all.empty() || !all[0]->target ? "" : all[0]->target) + "\n");
  const Order done = order;
  order = {};
  if (!done.kill || !await_decision(done)) return;
  record("saved set=" + done.set.substr(done.set.rfind('/') + 1) + "\n");
  kill(getpid(), SIGKILL);
}

void answer_refused(const std::string& reason) {
  write_answer("refused\n" + reason + "\n");
  order = {};
}

void answer_for_saver(const std::string& reason) {
  std::swap(order, handed_over);
  if (has_order()) answer_refused(reason);
  std::swap(order, handed_over);
}

}  // namespace shadowib::portable

using namespace shadowib::portable;

// For a library that decides for all processes of a program at which site they save, as BSPlib's. The runtime then
// answers no request by itself. Returns the request that waits, or 0.
extern "C" unsigned long long shadowib_portable_asked(void) {
  job_word = nullptr;
  static timespec looked = {};
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (!in_job() || (now.tv_sec - looked.tv_sec) * 1000000000LL + now.tv_nsec - looked.tv_nsec < kAskedNs) return 0;
  looked = now;
  const std::uint64_t id = request_id();
  if (id == 0 || id == job_answered) return 0;
  Order read;
  if (!read_order(read)) return 0;
  if (lock_is_held(read.lock)) return read.id;
  job_answered = read.id;
  return 0;
}

// The next site saves for the request that waits now, as `step` of a program of so many processes.
extern "C" void shadowib_portable_order(unsigned long long step, unsigned processes) {
  if (!in_job() || !take_order()) return;
  order_step = step, order_processes = processes;
}

// An orderly end without handlers is one, too.
extern "C" void _exit(int status) {
  record_left(status);
  for (;;) syscall(SYS_exit_group, status);
}
extern "C" void _Exit(int status) noexcept { _exit(status); }
