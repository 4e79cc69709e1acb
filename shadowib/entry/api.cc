// The C API of shadowib/shadowib.h, over hooks/agent/agent.h.
#include <cstdio>
#include <cstring>
#include <string>

#include "hooks/agent/agent.h"
#include "hooks/threads/stop.h"
#include "shadowib/base/status.h"
#include "shadowib/cr/identity.h"
#include "shadowib/cr/participant.h"
#include "shadowib/include/shadowib/shadowib.h"

#define SHADOWIB_EXPORT __attribute__((visibility("default")))

namespace shadowib {
namespace {

constexpr int kDefaultTimeoutMs = 60000;  // as the command's

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

SHADOWIB_EXPORT const char* shadowib_last_error(void) { return t_last_error; }
}
