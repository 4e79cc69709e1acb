// A member for agent_test: busy threads of several kinds, and a counter in a file that shows it runs.
// agent_victim COUNTER-FILE [request]: asks for a checkpoint of its own first if told to; ends in an orderly way on
// SIGTERM. AGENT_TEST_END: by _exit then, which main ("_exit") or a signal's handler calls ("handler").
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <string>

extern "C" int agent_test_join(void);
extern "C" int agent_test_request(int kill);

namespace {

std::atomic<bool> g_end{false};
int g_pipe[2];

void* allocate_all_the_time(void*) {
  void* blocks[64] = {};
  for (unsigned i = 0; !g_end; ++i) {
    std::free(blocks[i % 64]);
    blocks[i % 64] = std::malloc(1 + i * 7919 % 3000);
    if (i % 256 == 0) usleep(200);
  }
  for (void* block : blocks) std::free(block);
  return nullptr;
}

void* wait_for_ever(void*) {
  pollfd p{g_pipe[0], POLLIN, 0};
  if (poll(&p, 1, -1) != 1) abort();  // an EINTR
  return nullptr;
}

constexpr rlim_t kDescriptors = 64;
int g_last_descriptor = -1;  // of the program; the agent may have taken one of the numbers before

// AGENT_TEST_DESCRIPTORS: none is left below the soft limit ("full"), or below both limits ("full_hard"); or the
// program has closed all it knows nothing of by a system call of its own ("closed").
void use_up_descriptors() {
  const char* text = std::getenv("AGENT_TEST_DESCRIPTORS");
  const std::string how = text != nullptr ? text : "";
  if (how == "closed") syscall(SYS_close_range, 64, ~0u, 0);
  if (!how.starts_with("full")) return;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = kDescriptors;
  if (how == "full_hard") limit.rlim_max = kDescriptors;
  setrlimit(RLIMIT_NOFILE, &limit);
  for (int fd; (fd = open("/dev/null", O_RDONLY)) >= 0;) g_last_descriptor = fd;
}

// Whether what use_up_descriptors() did is as it was. The agent tells of a checkpoint's end with the limit still
// raised, and lowers it when it waits again.
bool descriptors_are_used_up() {
  const char* text = std::getenv("AGENT_TEST_DESCRIPTORS");
  if (text == nullptr || text[0] != 'f') return true;
  rlimit limit{};
  for (int i = 0; getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != kDescriptors; ++i) {
    if (i == 10000) return false;
    usleep(1000);
  }
  return open("/dev/null", O_RDONLY) < 0 && errno == EMFILE && close(g_last_descriptor) == 0 &&
         open("/dev/null", O_RDONLY) == g_last_descriptor;
}

}  // namespace

int main(int argc, char** argv) {
  const char* how = std::getenv("AGENT_TEST_END");
  const std::string end_by = how != nullptr ? how : "";
  struct sigaction end {};
  end.sa_handler = [](int) { g_end = true; };
  if (end_by == "handler") end.sa_handler = [](int) { _exit(0); };
  end.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &end, nullptr);
  if (getenv("AGENT_TEST_ADOPTS") != nullptr && prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return 5;
  if (pipe(g_pipe) != 0) return 2;
  int counter = open(argv[1], O_RDWR | O_CREAT, 0600);
  if (counter < 0 || agent_test_join() != 0) return 3;
  use_up_descriptors();
  pthread_t threads[3];
  pthread_create(&threads[0], nullptr, allocate_all_the_time, nullptr);
  pthread_create(&threads[1], nullptr, allocate_all_the_time, nullptr);
  pthread_create(&threads[2], nullptr, wait_for_ever, nullptr);
  if (const int failed = argc > 2 ? agent_test_request(0) : 0; failed != 0) return failed;
  if (argc > 2 && (wait(nullptr) != -1 || errno != ECHILD)) return 6;  // the command is no child of ours
  for (std::uint64_t i = 1; !g_end; ++i) {
    if (pwrite(counter, &i, sizeof(i), 0) != sizeof(i)) return 4;
    usleep(500);
  }
  if (!descriptors_are_used_up()) return 7;
  if (end_by == "_exit") _exit(0);
  close(g_pipe[1]);
  for (pthread_t thread : threads) pthread_join(thread, nullptr);
  return 0;
}
