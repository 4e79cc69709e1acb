#include "hooks/store/far_command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "hooks/store/hex_hash.h"
#include "shadowib/base/lock.h"

namespace shadowib {
namespace {

constexpr std::size_t kOutputStep = 64 << 10, kMostWords = 100, kMostProgram = 80;
// Exit codes of commands that fail the same way again: sysexits.h, and a shell that finds or may start nothing.
constexpr int kLastingCodes[] = {64, 77, 78, 126, 127};

// A command that does not read its input must not end this process.
class NoPipeSignal {
 public:
  NoPipeSignal() {
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    ::sigaction(SIGPIPE, &ignore, &before_);
  }
  ~NoPipeSignal() { ::sigaction(SIGPIPE, &before_, nullptr); }
  NoPipeSignal(const NoPipeSignal&) = delete;
  NoPipeSignal& operator=(const NoPipeSignal&) = delete;

 private:
  struct sigaction before_ {};
};

struct Pipe {
  int read = -1, write = -1;
  ~Pipe() {
    close_read();
    close_write();
  }
  Pipe() = default;
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  bool open() {
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC) != 0) return false;
    read = fds[0];
    write = fds[1];
    return true;
  }
  void close_read() {
    if (read >= 0) ::close(read);
    read = -1;
  }
  void close_write() {
    if (write >= 0) ::close(write);
    write = -1;
  }
};

void no_wait(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

// One call of the command, in a process group of its own.
class Call {
 public:
  Call(std::vector<std::string> words, int stall_ms) : words_(std::move(words)), stall_ms_(stall_ms) {
    const std::size_t program = words_.size() - 2;  // then a word and the object's name, which are told in any case
    for (std::size_t i = 0; i < program; ++i) shown_ += (i == 0 ? "" : " ") + words_[i];
    if (shown_.size() > kMostProgram) shown_ = "..." + shown_.substr(shown_.size() - kMostProgram);
    for (std::size_t i = program; i < words_.size(); ++i) shown_ += " " + words_[i];
  }
  ~Call() { end(); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  Status run(std::uint64_t bytes, const PieceSource& source, const PieceSink& sink) {
    SHADOWIB_TRY(start(bytes));
    const Status moved = move(bytes, source, sink);
    if (!moved.ok()) return moved;  // the destructor ends it before its input does: it sees no end of the object
    return judge(bytes);
  }

 private:
  Status start(std::uint64_t bytes) {
    if (!in_.open() || !out_.open() || !err_.open())
      return Status::of(Code::kIo, errno, "far: cannot make a pipe: %.60s", std::strerror(errno));
    std::vector<char*> arguments;
    for (std::string& word : words_) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const std::string size = std::to_string(bytes);
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ < 0) return Status::of(Code::kIo, errno, "far: cannot fork: %.60s", std::strerror(errno));
    if (pid_ == 0) {
      ::setpgid(0, 0);
      // One that outlives a killed flush would take the end of its input for the end of the object.
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(126);
      ::dup2(in_.read, 0);
      ::dup2(out_.write, 1);
      ::dup2(err_.write, 2);
      ::close_range(3, ~0u, 0);
      ::signal(SIGPIPE, SIG_DFL);
      ::setenv("SHADOWIB_FAR_BYTES", size.c_str(), 1);
      ::execvp(arguments[0], arguments.data());
      const char* why = std::strerror(errno);
      (void)!::write(2, why, std::strlen(why));
      ::_exit(errno == ENOENT ? 127 : 126);
    }
    ::setpgid(pid_, pid_);
    in_.close_read();
    out_.close_write();
    err_.close_write();
    for (const int fd : {in_.write, out_.read, err_.read}) no_wait(fd);
    exited_ = static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0));
    return exited_ >= 0 ? Status()
                        : Status::of(Code::kIo, errno, "far: cannot watch a process: %.60s", std::strerror(errno));
  }

  Status move(std::uint64_t bytes, const PieceSource& source, const PieceSink& sink) {
    std::string part;
    std::size_t at = 0;
    std::uint64_t left = bytes;
    std::int64_t end = monotonic_ns() + stall_ns();
    for (;;) {
      if (in_.write >= 0 && at == part.size()) {
        if (left == 0) {
          in_.close_write();
        } else {
          part.resize(std::min<std::uint64_t>(left, kOutputStep));
          SHADOWIB_TRY(source(part.data(), part.size()));
          left -= part.size();
          at = 0;
          end = monotonic_ns() + stall_ns();  // the source may wait for the rate
        }
      }
      pollfd fds[] = {{in_.write, POLLOUT, 0}, {out_.read, POLLIN, 0}, {err_.read, POLLIN, 0}, {exited_, POLLIN, 0}};
      const std::int64_t wait_ns = end - monotonic_ns();
      if (wait_ns <= 0)
        return Status::of(Code::kTimeout, ETIMEDOUT, "far: '%.220s' has moved no byte for %d ms and was ended%s%.80s",
                          shown(), stall_ms_, words().empty() ? "" : ": ", words().c_str());
      if (::poll(fds, 4, static_cast<int>((wait_ns + 999999) / 1000000)) < 0 && errno != EINTR)
        return Status::of(Code::kIo, errno, "far: cannot wait for a command: %.60s", std::strerror(errno));
      bool moved = false;
      if (fds[0].revents != 0) {
        const ssize_t n = ::write(in_.write, part.data() + at, part.size() - at);
        if (n > 0) at += static_cast<std::size_t>(n);
        moved = n > 0;
        taken_ += n > 0 ? static_cast<std::uint64_t>(n) : 0;
        if (n < 0 && errno == EPIPE) in_.close_write();  // how it ends tells why
      }
      if (fds[1].revents != 0) SHADOWIB_TRY(read_output(sink, &moved));
      if (fds[2].revents != 0) read_errors();
      if (moved) end = monotonic_ns() + stall_ns();
      if (fds[3].revents == 0) continue;
      // What it has written is in the pipes by now; what it has left running is ended.
      SHADOWIB_TRY(read_output(sink, &moved));
      read_errors();
      return {};
    }
  }

  Status read_output(const PieceSink& sink, bool* moved) {
    char buffer[kOutputStep];
    ssize_t n = 0;
    while (out_.read >= 0 && (n = ::read(out_.read, buffer, sizeof(buffer))) > 0) {
      *moved = true;
      SHADOWIB_TRY(sink({buffer, static_cast<std::size_t>(n)}));
    }
    if (n == 0) out_.close_read();
    return {};
  }

  void read_errors() {
    char buffer[4096];
    ssize_t n = 0;
    while (err_.read >= 0 && (n = ::read(err_.read, buffer, sizeof(buffer))) > 0) {
      errors_.append(buffer, static_cast<std::size_t>(n));
      if (errors_.size() > 2 * kMostWords) errors_.erase(0, errors_.size() - kMostWords);
    }
    if (n == 0) err_.close_read();
  }

  Status judge(std::uint64_t bytes) {
    const int status = end();
    const std::string said = words().empty() ? "" : ": " + words();
    if (WIFSIGNALED(status))
      return Status::of(Code::kIo, EREMOTEIO, "far: '%.220s' was killed by signal %d%.100s", shown(),
                        WTERMSIG(status), said.c_str());
    if (const int code = WEXITSTATUS(status); code != 0) {
      const bool lasts =
          std::find(std::begin(kLastingCodes), std::end(kLastingCodes), code) != std::end(kLastingCodes);
      return Status::of(Code::kIo, lasts ? ENOEXEC : EREMOTEIO, "far: '%.220s' has ended with exit code %d%.100s",
                        shown(), code, said.c_str());
    }
    if (taken_ == bytes) return {};
    return Status::of(Code::kIo, EREMOTEIO, "far: '%.220s' has ended with exit code 0 and taken %llu of %llu bytes",
                      shown(), static_cast<unsigned long long>(taken_), static_cast<unsigned long long>(bytes));
  }

  // Ends the command and what it has left running. The wait status: how it had ended if it had.
  int end() {
    int status = 0;
    if (pid_ > 0) {
      ::kill(-pid_, SIGKILL);  // before the wait, which frees the number for another group
      while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
      }
      pid_ = -1;
    }
    if (exited_ >= 0) ::close(exited_);
    exited_ = -1;
    return status;
  }

  const char* shown() const { return shown_.c_str(); }
  // The last words on its standard error, on one line.
  std::string words() const {
    std::string text = errors_.size() > kMostWords ? errors_.substr(errors_.size() - kMostWords) : errors_;
    while (!text.empty() && text.back() == '\n') text.pop_back();
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text;
  }
  std::int64_t stall_ns() const { return static_cast<std::int64_t>(stall_ms_) * 1000000; }

  const NoPipeSignal no_signal_;
  std::vector<std::string> words_;
  const int stall_ms_;
  std::string shown_, errors_;
  Pipe in_, out_, err_;
  pid_t pid_ = -1;
  int exited_ = -1;
  std::uint64_t taken_ = 0;
};

bool executable(const std::string& path) { return ::access(path.c_str(), X_OK) == 0; }

}  // namespace

Status FarCommand::check() {
  const std::string& program = command_[0];
  bool found = program.find('/') != std::string::npos && executable(program);
  if (program.find('/') == std::string::npos) {
    const char* path = std::getenv("PATH");
    const std::string places = path != nullptr ? path : "/bin:/usr/bin";
    for (std::size_t at = 0; !found && at <= places.size();) {
      const std::size_t end = std::min(places.find(':', at), places.size());
      found = executable(places.substr(at, end - at) + "/" + program);
      at = end + 1;
    }
  }
  return found ? Status()
               : Status::of(Code::kNotFound, ENOENT, "far: the command %.200s is not there or cannot be executed",
                            program.c_str());
}

Status FarCommand::call(const char* what, const std::string& name, std::uint64_t bytes, const PieceSource& source,
                        const PieceSink& sink) {
  std::vector<std::string> words = command_;
  words.insert(words.end(), {what, name});
  return Call(std::move(words), stall_ms_).run(bytes, source, sink);
}

namespace {

Status no_source(char* /*to*/, std::size_t /*bytes*/) { return {}; }
Status no_sink(std::string_view /*part*/) { return {}; }

}  // namespace

// "BYTES", "BYTES XXH3" or "absent". A failure is none of these, so a store that is away has lost no object.
Status FarCommand::stat(const std::string& name, FarObject* object) {
  *object = {};
  std::string text;
  SHADOWIB_TRY(call("stat", name, 0, no_source, [&text](std::string_view part) {
    if (text.size() < 200) text += part;
    return Status();
  }));
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  if (text == "absent") return {};
  char hash[33] = "";
  unsigned long long bytes = 0;
  int used = 0;
  if (text.empty() || text[0] < '0' || text[0] > '9' ||
      (std::sscanf(text.c_str(), "%20llu%n %32[0-9a-f]%n", &bytes, &used, hash, &used) < 1) ||
      used != static_cast<int>(text.size()) || (hash[0] != '\0' && !valid_set_id(hash)))
    return Status::of(Code::kIo, ENOEXEC,
                      "far: '%.100s stat %.120s' has printed '%.60s'; it prints BYTES, BYTES XXH3 or absent",
                      command_[0].c_str(), name.c_str(), text.c_str());
  *object = {true, bytes, hash};
  return {};
}

Status FarCommand::put(const std::string& name, std::uint64_t bytes, const PieceSource& source) {
  return call("put", name, bytes, source, no_sink);
}

Status FarCommand::get(const std::string& name, const PieceSink& sink) {
  return call("get", name, 0, no_source, sink);
}

Status FarCommand::remove(const std::string& name) { return call("rm", name, 0, no_source, no_sink); }

}  // namespace shadowib
