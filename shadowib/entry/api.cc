// The C API of shadowib/shadowib.h, over hooks/agent/agent.h.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "hooks/agent/agent.h"
#include "hooks/agent/values.h"
#include "hooks/raw/tasks.h"
#include "hooks/threads/stop.h"
#include "shadowib/base/status.h"
#include "shadowib/cr/identity.h"
#include "shadowib/cr/participant.h"
#include "shadowib/include/shadowib/shadowib.h"

#define SHADOWIB_EXPORT __attribute__((visibility("default")))

namespace shadowib {
namespace {

constexpr int kDefaultTimeoutMs = 60000;              // as the command's
constexpr int kFirstLookMs = 1, kLongestLookMs = 50;  // between looks for a value

// Static TLS: a lazily allocated block would come from the program's malloc.
thread_local char t_last_error[384] __attribute__((tls_model("initial-exec")));

int errno_of(const Status& status) {
  switch (status.code()) {
    case Code::kOk:
      return 0;
    case Code::kUsage:
      return EINVAL;
    case Code::kNotFound:
      return ENOENT;
    case Code::kRefused:
      return EOPNOTSUPP;
    case Code::kCorrupt:
      return EBADMSG;
    case Code::kTimeout:
      return ETIMEDOUT;
    case Code::kAborted:
      return ECANCELED;
    case Code::kVersion:
      return EPROTO;
    case Code::kBusy:
      return EBUSY;
    case Code::kPermission:
      return status.error() ? status.error() : EPERM;
    case Code::kIo:
    case Code::kInternal:
      break;
  }
  return status.error() ? status.error() : EIO;
}

int failure(const Status& status) {
  std::snprintf(t_last_error, sizeof(t_last_error), "%s", status.text());
  return -errno_of(status);
}

// Of calls that tell kinds of usage apart.
int failure_by_error(const Status& status) {
  const int rc = failure(status);
  const bool tells = status.code() == Code::kUsage || status.code() == Code::kBusy;
  return tells && status.error() != 0 ? -status.error() : rc;
}

// The program's errno stays as it was: the API reports by return value.
class KeepErrno {
 public:
  ~KeepErrno() { errno = saved_; }

 private:
  int saved_ = errno;
};

// Without a device, too: the others wait for every member's part in settling and rebuilding. Ranks of a launcher join
// by themselves (hooks/launcher).
__attribute__((constructor)) void prepare_to_join() {
  set_participant(verbs_participant());
  Inside inside;
  note_names_here();
}

Status join() { return join_job(); }

}  // namespace
}  // namespace shadowib

using namespace shadowib;

extern "C" {

SHADOWIB_EXPORT const char* shadowib_version(void) { return SHADOWIB_VERSION; }

SHADOWIB_EXPORT int shadowib_is_member(void) { return is_member() ? 1 : 0; }

SHADOWIB_EXPORT int shadowib_join(void) {
  KeepErrno keep;
  Status status = join();
  return status ? 0 : failure(status);
}

SHADOWIB_EXPORT int shadowib_join_as(int role) {
  KeepErrno keep;
  if (role != SHADOWIB_MEMBER && role != SHADOWIB_GUEST)
    return failure(Status::of(Code::kUsage, EINVAL, "shadowib_join_as: there is no role %d", role));
  Status status = role == SHADOWIB_GUEST ? join_job_as_guest() : join();
  return status ? 0 : failure(status);
}

SHADOWIB_EXPORT int shadowib_checkpoint(unsigned flags, int timeout_ms, char* path, size_t path_bytes) {
  KeepErrno keep;
  if (flags & ~SHADOWIB_CHECKPOINT_KILL)
    return failure(Status::of(Code::kUsage, EINVAL, "shadowib_checkpoint: unknown flags 0x%x", flags));
  if (Status joined = join(); !joined) return failure(joined);
  // Not inside the shim while waiting: this thread is stopped and saved like the others.
  Status status;
  std::string set_path;
  int result = request_checkpoint((flags & SHADOWIB_CHECKPOINT_KILL) != 0,
                                  timeout_ms > 0 ? timeout_ms : kDefaultTimeoutMs, &status, &set_path);
  Inside inside;  // the string's memory belongs to the arena, whose lock must not be held by a stopped thread
  if (path != nullptr && path_bytes > 0) std::snprintf(path, path_bytes, "%s", set_path.c_str());
  set_path = std::string();
  return status ? result : failure(status);
}

SHADOWIB_EXPORT int shadowib_add_hook(shadowib_hook fn, void* arg) {
  KeepErrno keep;
  if (fn == nullptr) return failure(Status(Code::kUsage, EINVAL, "shadowib_add_hook: the hook is NULL"));
  Inside inside;
  int id = add_hook(fn, arg);
  return id >= 0 ? id : failure(Status(Code::kInternal, ENOMEM, "shadowib_add_hook: no room for another hook"));
}

SHADOWIB_EXPORT void shadowib_remove_hook(int id) {
  KeepErrno keep;
  Inside inside;
  remove_hook(id);
}

SHADOWIB_EXPORT int shadowib_publish(const char* name, const void* value, size_t bytes) {
  KeepErrno keep;
  if (value == nullptr && bytes > 0)
    return failure(Status(Code::kUsage, EINVAL, "shadowib_publish: the value is NULL"));
  if (Status joined = join(); !joined) return failure(joined);
  Status status = publish_value(name, value, bytes);
  return status ? 0 : failure_by_error(status);
}

SHADOWIB_EXPORT int shadowib_lookup(const char* name, void* value, size_t capacity, int timeout_ms) {
  KeepErrno keep;
  if (value == nullptr && capacity > 0)
    return failure(Status(Code::kUsage, EINVAL, "shadowib_lookup: the place for the value is NULL"));
  if (Status joined = join(); !joined) return failure(joined);
  // Waits outside of the shim, where a checkpoint may stop this thread. Looks are counted instead of the time.
  int step_ms = kFirstLookMs;
  for (int left_ms = timeout_ms;;
       left_ms -= left_ms > 0 ? step_ms : 0, step_ms = std::min(2 * step_ms, kLongestLookMs)) {
    std::size_t bytes = 0;
    Status status = lookup_value(name, value, capacity, &bytes);
    if (status) return static_cast<int>(bytes);
    if (status.code() != Code::kNotFound || timeout_ms == 0) return failure_by_error(status);
    if (timeout_ms > 0 && left_ms <= 0)
      return failure(Status::of(Code::kTimeout, 0, "%.300s within %d ms", status.text(), timeout_ms));
    if (timeout_ms > 0) step_ms = std::min(step_ms, left_ms);
    raw_sleep_ms(step_ms);
  }
}

SHADOWIB_EXPORT const char* shadowib_last_error(void) { return t_last_error; }
}
