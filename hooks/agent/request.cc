// A program that asks for its own checkpoint.
#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "hooks/agent/agent_state.h"
#include "hooks/threads/stop.h"
#include "shadowib/base/descriptors.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/unowned_descriptors.h"

namespace shadowib {
namespace {

constexpr std::int64_t kLookNs = 10'000'000;  // at the command's output, while waiting

// What the command said, for a message: its last line.
struct Output {
  int fd = -1;
  char text[1024] = {};
  std::size_t length = 0;
  bool ended = false;

  void read_more() {
    for (;;) {
      if (length > sizeof(text) / 2) std::memmove(text, text + length / 2, length - length / 2), length -= length / 2;
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
  std::uint32_t generation, rounds;
  Output output;
  {
    Inside inside;
    generation = g_job.info.generation;
    rounds = g_agent.rounds.load();
    *status = begin(kill, timeout_ms, &output);
  }
  if (!status->ok()) return 0;
  bool round_over = false;
  for (;;) {
    {
      Inside inside;
      if (g_job.info.generation != generation) {  // a new process; the descriptor belongs to the old one
        set_path->clear();                        // the agent may be about to note how the round has ended
        return 1;
      }
      round_over = g_agent.rounds.load() != rounds;
      output.read_more();
      if (output.ended) {
        close_owned_descriptor(output.fd);
        if (round_over && g_agent.committed)
          set_path->assign(g_agent.outcome);
        else
          *status =
              Status::of(round_over ? reason_of_the_command() : Code::kAborted, 0, "%.300s",
                         output.length > 0 ? output.last_line() : "the checkpoint command ended without a word");
        return 0;
      }
    }
    futex_wait(&g_agent.rounds, g_agent.rounds.load(), kLookNs);
  }
}

}  // namespace shadowib
