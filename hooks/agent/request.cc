// A program that asks for its own checkpoint.
#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "hooks/agent/agent_state.h"
#include "hooks/agent/start_command.h"
#include "hooks/job/job_directory.h"
#include "hooks/job/protocol.h"
#include "hooks/raw/tasks.h"
#include "hooks/threads/stop.h"
#include "shadowib/base/descriptors.h"
#include "shadowib/base/unowned_descriptors.h"

namespace shadowib {
namespace {

constexpr int kLookMs = 10;  // at the command's output, while waiting
constexpr char kWithoutAWord[] =
    "the checkpoint command ended without a word; `shadowib list` shows whether it has taken the checkpoint";

// The command's answer is its last line: the path of the set, or why there is none. Keeps at least the last 1024
// bytes.
struct Output {
  int fd = -1;
  char text[2048] = {};
  std::size_t length = 0;
  bool ended = false;

  void read_more() {
    for (;;) {
      constexpr std::size_t kKept = sizeof(text) / 2;
      if (length > kKept) std::memmove(text, text + length - kKept, kKept), length = kKept;
      ssize_t n = ::read(fd, text + length, sizeof(text) - 1 - length);
      if (n <= 0) {
        ended = n == 0;
        return;
      }
      length += static_cast<std::size_t>(n);
      text[length] = '\0';
    }
  }
  const char* last_line() {
    while (length > 0 && text[length - 1] == '\n') text[--length] = '\0';
    const char* newline = std::strrchr(text, '\n');
    return newline != nullptr ? newline + 1 : text;
  }
};

Status begin(bool kill, int timeout_ms, Output* output) {
  if (!is_member()) return Status::of(Code::kUsage, 0, "this process is no member of a job");
  int write_end = -1;
  {
    UnownedDescriptors unowned;
    int pipe[2];
    if (::pipe2(pipe, O_CLOEXEC | O_NONBLOCK) != 0)
      return Status::of(Code::kIo, errno, "no pipe to the checkpoint command");
    // Both ends are ours: a checkpoint does not see them.
    output->fd = unowned.own(pipe[0]);
    write_end = unowned.own(pipe[1]);
  }
  Status status = output->fd >= 0 && write_end >= 0
                      ? start_checkpoint_command(kill, timeout_ms, write_end)
                      : Status::of(Code::kIo, errno, "no descriptor left for a pipe to the checkpoint command");
  close_owned_descriptor(write_end);
  if (!status.ok()) close_owned_descriptor(output->fd);
  return status;
}

// Of this command's own checkpoint. A round that this member ends meanwhile may be of another command.
bool is_path_of_set(const char* answer) {
  const char* name = std::strrchr(answer, '/');
  std::string job;
  std::uint32_t number = 0;
  return answer[0] == '/' && parse_set_name(name + 1, &job, &number) && job == g_job.info.job;
}

// Why the command has not taken the latest checkpoint, as its exit code tells who starts it by hand. Inside.
Code reason_of_the_command() {
  std::string text;
  bool found = false;
  Fields fields;
  const std::string key = checkpoint_key(g_job.info.epoch, g_agent.last_request, "fail/command");
  if (!g_job.exchange->get(key, &text, &found).ok() || !found || !decode_fields(text, &fields)) return Code::kAborted;
  return status_from_fields(fields).code();
}

}  // namespace

int request_checkpoint(bool kill, int timeout_ms, Status* status, std::string* set_path) {
  std::uint32_t generation;
  std::uint64_t last_request;
  Output output;
  {
    Inside inside;
    generation = g_job.info.generation;
    last_request = g_agent.last_request;
    *status = begin(kill, timeout_ms, &output);
  }
  if (!status->ok()) return 0;
  for (;;) {
    {
      Inside inside;
      if (g_job.info.generation != generation) {  // a new process; the descriptor belongs to the old one
        set_path->clear();
        return 1;
      }
      output.read_more();
      if (output.ended) {
        close_owned_descriptor(output.fd);
        const char* answer = output.last_line();
        if (is_path_of_set(answer))
          set_path->assign(answer);
        else
          *status = Status::of(g_agent.last_request != last_request ? reason_of_the_command() : Code::kAborted, 0,
                               "%.300s", answer[0] != '\0' ? answer : kWithoutAWord);
        return 0;
      }
    }
    raw_sleep_ms(kLookMs);
  }
}

}  // namespace shadowib
