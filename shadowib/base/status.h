// Status: the result of every set-up path. No heap, so that the imager can use it too.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace shadowib {

// The kind of a failure, as exit codes and tests tell it. Values are stable: they are documented in shadowib(1).
enum class Code : int {
  kOk = 0,
  kInternal = 1,    // a broken expectation of ours
  kUsage = 2,       // wrong option or argument
  kNotFound = 3,    // no such job, set, member, device
  kRefused = 4,     // something that cannot be captured or restored; the message names it (P4)
  kCorrupt = 5,     // an image or manifest that fails verification
  kIo = 6,          // file system or network error, ENOSPC included
  kTimeout = 7,     // a bounded wait ran out
  kAborted = 8,     // a peer or the command gave up; the job runs on
  kPermission = 9,  // the kernel or a security module denies a needed call; the message names call and remedy
  kVersion = 10,    // other format or protocol version
  kBusy = 11,       // another checkpoint is under way, the job still runs
};

// A code, the errno behind it (0 if none) and a text of at most 383 bytes that says what happened, to
// which object, and what to do. Copyable, no heap. Safe in a signal handler except for of().
class [[nodiscard]] Status {
 public:
  constexpr Status() = default;
  constexpr Status(Code code, int err, const char* text) : code_(code), errno_(err) {
    std::size_t i = 0;
    for (; text[i] != '\0' && i + 1 < sizeof(text_); ++i) text_[i] = text[i];
    text_[i] = '\0';
  }

  // Formats the text as printf does; truncates.
  template <typename... Args>
  static Status of(Code code, int err, const char* format, Args... args) {
    Status s;
    s.code_ = code;
    s.errno_ = err;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-security"
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    std::snprintf(s.text_, sizeof(s.text_), format, args...);
#pragma GCC diagnostic pop
    return s;
  }

  bool ok() const { return code_ == Code::kOk; }
  explicit operator bool() const { return ok(); }
  Code code() const { return code_; }
  int error() const { return errno_; }
  const char* text() const { return text_; }

 private:
  Code code_ = Code::kOk;
  int errno_ = 0;
  char text_[384] = {};
};

}  // namespace shadowib

// Returns the Status of an expression from the enclosing function unless it is ok.
#define SHADOWIB_TRY(expr)                     \
  do {                                         \
    ::shadowib::Status try_status_ = (expr);   \
    if (!try_status_.ok()) return try_status_; \
  } while (0)
