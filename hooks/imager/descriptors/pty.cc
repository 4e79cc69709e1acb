#include "hooks/imager/descriptors/pty.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "hooks/raw/proc.h"

#ifndef EXTPROC
#define EXTPROC 0200000
#endif

namespace shadowib::descriptors {
namespace {

constexpr unsigned long kGetModes = _IOR('T', 0x2A, TerminalModes), kSetModes = _IOW('T', 0x2B, TerminalModes);
constexpr int kPatienceMs = 5000;
constexpr int kLineDiscipline = 4095;  // bytes that it takes before it leaves the rest in front of it

// By a process in the background of this very terminal, which would be stopped for it.
class NoJobControl {
 public:
  NoJobControl() {
    sigset_t set;
    ::sigemptyset(&set);
    ::sigaddset(&set, SIGTTOU);
    ::sigaddset(&set, SIGTTIN);
    ::pthread_sigmask(SIG_BLOCK, &set, &before_);
  }
  ~NoJobControl() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoJobControl(const NoJobControl&) = delete;
  NoJobControl& operator=(const NoJobControl&) = delete;

 private:
  sigset_t before_;
};

std::int64_t now_ms() {
  timespec ts{};
  ::clock_gettime(CLOCK_MONOTONIC, &ts);
  return ts.tv_sec * 1000ll + ts.tv_nsec / 1000000;
}

// What the kernel does on a thread of its own, and tells nobody when it has.
template <typename Condition>
bool becomes(Condition condition) {
  for (const std::int64_t end = now_ms() + kPatienceMs; !condition();) {
    if (now_ms() > end) return false;
    ::sched_yield();
  }
  return true;
}

short ready(int fd, short events, int timeout_ms = 0) {
  pollfd p{fd, events, 0};
  return ::poll(&p, 1, timeout_ms) < 0 ? 0 : p.revents;
}

bool is_canonical(const TerminalModes& m) { return (m.local & ICANON) != 0 && (m.local & EXTPROC) == 0; }

// True if bytes of the master's come out of the slave as they are, and nothing comes back.
bool is_transparent(const TerminalModes& m) {
  constexpr std::uint32_t kInput = ISTRIP | IUCLC | IGNCR | ICRNL | INLCR | IXON | PARMRK;
  return (m.input & kInput) == 0 && (m.local & (ICANON | ISIG | ECHO)) == 0;
}

// Modes in which what is written at one end is there to be read at the other, nothing changed, echoed or acted upon.
// ICANON stays, or the kernel would forget where lines end.
struct PlainModes {
  TerminalModes modes;
  char end_of_file = 0, quote = 0, stop = 0, start = 0;

  explicit PlainModes(const TerminalModes& m) : modes(m) {
    modes.input = modes.output = 0;
    modes.local &= ICANON | EXTPROC;
    std::memset(modes.characters, 0, sizeof(modes.characters));
    modes.characters[VMIN] = 1;
    if (!is_canonical(m)) return;
    modes.local |= IEXTEN;
    char free[4];
    std::size_t found = 0;
    for (char c = 1; found < 4; ++c)
      if (c != '\n' && c != static_cast<char>(m.characters[VEOL]) && c != static_cast<char>(m.characters[VEOL2]))
        free[found++] = c;
    end_of_file = free[0], quote = free[1], stop = free[2], start = free[3];
    modes.input = IXON;
    modes.characters[VEOF] = static_cast<std::uint8_t>(end_of_file);
    modes.characters[VLNEXT] = static_cast<std::uint8_t>(quote);
    modes.characters[VSTOP] = static_cast<std::uint8_t>(stop);
    modes.characters[VSTART] = static_cast<std::uint8_t>(start);
    modes.characters[VEOL] = m.characters[VEOL];
    modes.characters[VEOL2] = m.characters[VEOL2];
  }

  bool ends_line(char c) const {
    const auto byte = static_cast<std::uint8_t>(c);
    return c == '\n' || (c != '\0' && (byte == modes.characters[VEOL] || byte == modes.characters[VEOL2]));
  }
  bool is_special(char c) const { return ends_line(c) || c == end_of_file || c == quote || c == stop || c == start; }
  // What has to be typed for that line, whose end of file is not a byte of it.
  void append_typed(const std::string& line, bool finished, std::string* typed) const {
    const bool by_byte = finished && !line.empty() && ends_line(line.back());
    for (std::size_t i = 0; i < line.size(); ++i) {
      if (is_special(line[i]) && !(by_byte && i + 1 == line.size())) typed->push_back(quote);
      typed->push_back(line[i]);
    }
    if (finished && !by_byte) typed->push_back(end_of_file);
  }
};

bool write_all(int fd, const std::string& bytes) {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t n = ::write(fd, bytes.data() + done, bytes.size() - done);
    if (n > 0)
      done += static_cast<std::size_t>(n);
    else if (n < 0 && errno == EINTR)
      continue;
    else if (n == 0 || errno != EAGAIN || (ready(fd, POLLOUT, kPatienceMs) & POLLOUT) == 0)
      return false;
  }
  return true;
}

// Until there is nothing more: only then the kernel has moved all that was on its way. `each`: every read's bytes, a
// line, by themselves.
bool read_all(int fd, bool each, std::vector<Message>* queue, bool may_be_closed = false) {
  char buffer[8192];
  for (;;) {
    const ssize_t n = ::read(fd, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN || (may_be_closed && errno == EIO);
    if (n == 0 && !each) return true;
    if (each || queue->empty()) queue->emplace_back();
    queue->back().data.append(buffer, static_cast<std::size_t>(n));
  }
}

int waiting(int fd) {
  int bytes = 0;
  return ::ioctl(fd, FIONREAD, &bytes) == 0 ? bytes : 0;
}
bool is_writable(int fd) { return (ready(fd, POLLOUT) & POLLOUT) != 0; }

// One pty, by both ends that do not block.
class Pty {
 public:
  Pty(int master, int slave) : master_(master), slave_(slave) {}

  bool read_modes(TerminalModes* modes) const { return ::ioctl(slave_, kGetModes, modes) == 0; }
  bool set_modes(const TerminalModes& modes) const { return ::ioctl(slave_, kSetModes, &modes) == 0; }

  // Empties it. Packet mode is off. Leaves plain modes behind. What is still on its way to the slave is treated as it
  // always is, and echoed, so the master comes after it.
  Status drain(const TerminalModes& modes, Object* o) const {
    bool read = read_all(slave_, is_canonical(modes), &o->input);
    read = read_all(master_, false, &o->queue, true) && read;
    // Empty, it takes bytes unless it was stopped; modes without IXON start what the stop character has stopped.
    const bool stood = !is_writable(slave_);
    TerminalModes plain = PlainModes(modes).modes;
    plain.input = 0;
    // A line without an end can only be read where lines do not count.
    if (is_canonical(modes)) plain.local &= ~static_cast<std::uint32_t>(ICANON);
    read = set_modes(plain) && read;
    if (is_canonical(modes)) {
      std::vector<Message> rest;
      read = read_all(slave_, false, &rest) && read;
      o->unfinished = !rest.empty();
      if (!rest.empty()) o->input.push_back(std::move(rest[0]));
    }
    if (stood) o->pty_flags |= is_writable(slave_) ? kPtyStopped : kPtySuspended;
    if ((o->pty_flags & kPtySuspended) != 0) ::ioctl(slave_, TCXONC, TCOON);
    if (stood) read = read_all(master_, false, &o->queue, true) && read;  // echoes that had been held back
    return read ? Status() : Status(Code::kInternal, errno, "what waits in it cannot be read");
  }

  // Puts all in, with the modes at last.
  Status fill(const TerminalModes& modes, const Object& o) const {
    const PlainModes plain(modes);
    if (!set_modes(plain.modes)) return Status(Code::kInternal, errno, "its modes cannot be set");
    std::string beyond;
    if (is_canonical(modes) ? !type_lines(plain, o) : !type_bytes(o, &beyond))
      return Status(Code::kInternal, errno, "what waits to be read from it does not fit");
    for (const Message& m : o.queue)
      if (!write_all(slave_, m.data)) return Status(Code::kInternal, errno, "what it has put out does not fit");
    if ((o.pty_flags & kPtyStopped) != 0 && !stop(modes))
      return Status(Code::kInternal, errno, "its output cannot be stopped");
    if (!set_modes(modes)) return Status(Code::kInternal, errno, "its modes cannot be set");
    if ((o.pty_flags & kPtySuspended) != 0) ::ioctl(slave_, TCXONC, TCOOFF);
    if (!write_all(master_, beyond)) return Status(Code::kInternal, errno, "what waits to be read does not fit");
    return {};
  }

 private:
  // The kernel reads what is typed on a thread of its own, under the modes of then; a stop character behind all of it
  // tells when it has.
  bool type_lines(const PlainModes& plain, const Object& o) const {
    std::string typed;
    std::size_t held = 0;
    int complete = 0;
    for (std::size_t i = 0; i < o.input.size(); ++i) {
      const bool finished = o.unfinished == 0 || i + 1 < o.input.size();
      const std::string& line = o.input[i].data;
      plain.append_typed(line, finished, &typed);
      held += line.size() + 1;
      if (finished) complete += static_cast<int>(line.size());
    }
    if (typed.empty()) return true;
    if (!write_all(master_, typed)) return false;
    if (held >= kLineDiscipline)  // no room for one more, nor is a line without an end there
      return becomes([&] { return waiting(slave_) >= complete; });
    return write_all(master_, std::string(1, plain.stop)) && becomes([this] { return !is_writable(slave_); }) &&
           write_all(master_, std::string(1, plain.start)) && (ready(slave_, POLLOUT, kPatienceMs) & POLLOUT) != 0;
  }

  // What the line discipline cannot hold is left for later, when it is under its own modes.
  bool type_bytes(const Object& o, std::string* beyond) const {
    std::string bytes;
    for (const Message& m : o.input) bytes += m.data;
    if (bytes.size() > kLineDiscipline) {
      *beyond = bytes.substr(kLineDiscipline);
      bytes.resize(kLineDiscipline);
    }
    return write_all(master_, bytes) && becomes([&] { return waiting(slave_) >= static_cast<int>(bytes.size()); });
  }

  bool stop(const TerminalModes& modes) const {
    TerminalModes stopping = PlainModes(modes).modes;
    stopping.input = IXON;
    stopping.characters[VSTOP] = 1;
    stopping.characters[VSTART] = 2;
    return set_modes(stopping) && write_all(master_, "\1") && becomes([this] { return !is_writable(slave_); });
  }

  int master_, slave_;
};

Status read_flags(int master, Object* o) {
  int packet = 0, locked = 0;
  if (::ioctl(master, TIOCGPKT, &packet) != 0 || ::ioctl(master, TIOCGPTLCK, &locked) != 0)
    return Status(Code::kRefused, errno, "the kernel does not tell its state; it needs Linux 3.8");
  o->pty_flags |= (packet != 0 ? kPtyPacket : 0) | (locked != 0 ? kPtyLocked : 0);
  if (packet != 0 && (ready(master, POLLPRI) & POLLPRI) != 0)
    return Status(Code::kRefused, 0, "it is in packet mode and a status byte waits; read it before the checkpoint");
  return {};
}

Status read_slave(int slave, Object* o) {
  TerminalModes modes{};
  winsize window{};
  int exclusive = 0, discipline = 0;
  if (::ioctl(slave, kGetModes, &modes) != 0 || ::ioctl(slave, TIOCGWINSZ, &window) != 0 ||
      ::ioctl(slave, TIOCGETD, &discipline) != 0 || ::ioctl(slave, TIOCGEXCL, &exclusive) != 0)
    return Status(Code::kRefused, errno, "the kernel does not tell its state; it needs Linux 3.8");
  if (discipline != 0) return Status(Code::kRefused, 0, "its line discipline is not N_TTY; end what has set another");
  pid_t foreground = 0;
  if (::ioctl(slave, TIOCGPGRP, &foreground) == 0 && foreground != ::getpgrp())
    return Status(
        Code::kRefused, 0,
        "this process has its master and is in its background, where nothing can be read; checkpoint when it "
        "is in the foreground");
  if (exclusive != 0) o->pty_flags |= kPtyExclusive;
  o->modes.assign(reinterpret_cast<const char*>(&modes), sizeof(modes));
  o->window.assign(reinterpret_cast<const char*>(&window), sizeof(window));
  if (waiting(slave) >= kLineDiscipline && !is_transparent(modes))
    return Status(Code::kRefused, 0,
                  "more waits to be read at its slave than can be put back; let the program read it first");
  return {};
}

Status drain_and_refill(int master, int slave, Object* o) {
  const NoJobControl none;
  SHADOWIB_TRY(read_slave(slave, o));
  TerminalModes modes;
  std::memcpy(&modes, o->modes.data(), sizeof(modes));
  const int flags = ::fcntl(master, F_GETFL), packet = 0, again = 1;
  ::fcntl(master, F_SETFL, flags | O_NONBLOCK);
  if ((o->pty_flags & kPtyPacket) != 0) ::ioctl(master, TIOCPKT, &packet);
  const Pty pty(master, slave);
  const Status drained = pty.drain(modes, o), filled = pty.fill(modes, *o);
  if ((o->pty_flags & kPtyPacket) != 0) ::ioctl(master, TIOCPKT, &again);
  ::fcntl(master, F_SETFL, flags);
  return drained.ok() ? filled : drained;
}

}  // namespace

int open_slave(int master, int flags) {
  return ::ioctl(master, TIOCGPTPEER, (flags & (O_ACCMODE | O_NONBLOCK)) | O_NOCTTY | O_CLOEXEC);
}

Status capture_pty(int master, Object* o) {
  SHADOWIB_TRY(read_flags(master, o));
  const int unlocked = 0, locked = 1;
  if ((o->pty_flags & kPtyLocked) != 0) ::ioctl(master, TIOCSPTLCK, &unlocked);
  const int slave = open_slave(master, O_RDWR | O_NONBLOCK);
  const int error = errno;
  if ((o->pty_flags & kPtyLocked) != 0) ::ioctl(master, TIOCSPTLCK, &locked);
  if (slave < 0)
    return Status(Code::kRefused, error,
                  "its slave cannot be opened: TIOCEXCL is set on it, or Linux is older than 4.13");
  const Status status = drain_and_refill(master, slave, o);
  raw_close(slave);
  if (status.ok()) o->pty_flags |= kPtyContents;
  return status;
}

Status fill_pty(int master, int slave, const Object& o) {
  TerminalModes modes;
  winsize window;
  std::memcpy(&modes, o.modes.data(), sizeof(modes));
  std::memcpy(&window, o.window.data(), sizeof(window));
  ::ioctl(slave, TIOCSWINSZ, &window);
  SHADOWIB_TRY(Pty(master, slave).fill(modes, o));
  if (const int on = 1; (o.pty_flags & kPtyPacket) != 0) ::ioctl(master, TIOCPKT, &on);
  return {};
}

}  // namespace shadowib::descriptors
