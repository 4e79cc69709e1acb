// What one receive posted, one send posted and both completions polled cost, natively and through the shim, on the
// null backend or over a libibverbs that is made of it (null_verbs.cc).
//
//   shim_overhead native NULL_BACKEND.so [options]    the backend called directly, as a provider would be
//   shim_overhead verbs [options]                     libibverbs as found: natively, or under the shim
// Options: --mode MODE --qps N --mrs N --iterations N --repeats N --signal-every N --until-empty 0|1 --hold PATH
// --count-steps 0|1. Modes:
//   rc        post_recv, post_send, poll_cq on reliable connections
//   srq       the same with receives of one shared receive queue
//   ud        the same with datagrams, an address handle for each queue pair
//   extended  post_recv, a request built by wr_start, wr_send, wr_set_sge and wr_complete, and start_poll, next_poll,
//             end_poll. Backends have no such functions, since the shim makes plain ones of them: natively it is
//             post_recv, post_send and poll_cq doing the same work, so that what the program saves by not filling a
//             work request is taken from the figure, and what the shim adds to it is all in it.
//   ucx       as UCX uses reliable connections: sixteen receives of a shared queue in a chain, sixteen inline sends
//             of two elements, the last one signaled, and polls of sixteen until nothing is left
// An iteration is one message. One send in --signal-every is signaled. With --until-empty polls go on until one finds
// nothing.
// Prints one JSON line: ns (median of the repeats), mallocs and, if the kernel counts them, instructions per
// iteration; and the completions that the device makes in one, if it tells. Every queue pair was used before. With
// --hold it is saved and restarted meanwhile (perftest/run). With --count-steps instructions are counted by single
// steps, which needs no counter and works in a restarted process.
#include <infiniband/verbs.h>
#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "perftest/counted_steps.h"
#include "perftest/overhead_objects.h"

using namespace shadowib::perftest;

// --- mallocs of the whole process, by interposition

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
}
namespace {
std::atomic<unsigned long> g_mallocs{0};
}
extern "C" {
__attribute__((visibility("default"))) void* malloc(size_t n) {
  ++g_mallocs;
  return __libc_malloc(n);
}
__attribute__((visibility("default"))) void* calloc(size_t n, size_t m) {
  ++g_mallocs;
  return __libc_calloc(n, m);
}
__attribute__((visibility("default"))) void* realloc(void* p, size_t n) {
  ++g_mallocs;
  return __libc_realloc(p, n);
}
__attribute__((visibility("default"))) void* aligned_alloc(size_t a, size_t n) {
  ++g_mallocs;
  return __libc_memalign(a, n);
}
}

// --- what is measured

namespace {

ibv_sge element_of(const ibv_mr* mr) { return {reinterpret_cast<std::uintptr_t>(mr->addr), 64, mr->lkey}; }

void post_receive(ibv_qp* qp, ibv_sge* sge) {
  ibv_recv_wr wr{1, nullptr, sge, 1}, *bad;
  if (ibv_post_recv(qp, &wr, &bad) != 0) die("ibv_post_recv");
}

void post_shared_receive(ibv_srq* srq, ibv_sge* sge) {
  ibv_recv_wr wr{1, nullptr, sge, 1}, *bad;
  if (ibv_post_srq_recv(srq, &wr, &bad) != 0) die("ibv_post_srq_recv");
}

// How programs ask for completions and poll them. Set once.
int g_signal_every = 1;
bool g_until_empty = false;

// Whether the send of this round is signaled.
bool signals(long round) { return g_signal_every == 1 || round % g_signal_every == g_signal_every - 1; }

void post_send(ibv_qp* qp, ibv_sge* sge, ibv_ah* ah, long round) {
  ibv_send_wr wr{}, *bad;
  wr.wr_id = 2;
  wr.sg_list = sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = signals(round) ? IBV_SEND_SIGNALED : 0;
  if (ah != nullptr) wr.wr.ud = {ah, qp->qp_num, 0};
  if (ibv_post_send(qp, &wr, &bad) != 0) die("ibv_post_send");
}

void build_send(ibv_qp_ex* qp, const ibv_sge& sge, long round) {
  ibv_wr_start(qp);
  qp->wr_id = 2;
  qp->wr_flags = signals(round) ? IBV_SEND_SIGNALED : 0;
  ibv_wr_send(qp);
  ibv_wr_set_sge(qp, sge.lkey, sge.addr, sge.length);
  if (ibv_wr_complete(qp) != 0) die("ibv_wr_complete");
}

// A receive has wr_id 1, a send 2.
void check(ibv_wc_status status, std::uint64_t wr_id, ibv_wc_opcode opcode) {
  if (status != IBV_WC_SUCCESS || opcode != (wr_id == 1 ? IBV_WC_RECV : IBV_WC_SEND))
    errno = EIO, die("a completion");
}

// Returns how many there were.
template <int most>
int poll(ibv_cq* cq) {
  ibv_wc wc[most];
  int n = ibv_poll_cq(cq, most, wc);
  if (n < 0) die("ibv_poll_cq");
  for (int k = 0; k < n; ++k) check(wc[k].status, wc[k].wr_id, wc[k].opcode);
  return n;
}

// The receive's completion, and the send's if it is signaled.
void poll_all(ibv_cq* cq, long round) {
  const int due = 1 + signals(round);
  int got = 0, n;
  do {
    n = poll<2>(cq);
    got += n;
  } while (g_until_empty ? n != 0 : got < due);
  if (got != due) errno = EIO, die("not as many completions as are due");
}

// UCX's pattern: kUcxBatch messages.
void run_batch(const Objects& o, ibv_qp* qp, ibv_sge* sge) {
  ibv_recv_wr receives[kUcxBatch], *bad_receive;
  for (int i = 0; i < kUcxBatch; ++i) receives[i] = {1, i + 1 < kUcxBatch ? &receives[i + 1] : nullptr, sge, 1};
  if (ibv_post_srq_recv(o.srq, receives, &bad_receive) != 0) die("ibv_post_srq_recv");
  ibv_sge list[2] = {{sge->addr, 16, 0}, {sge->addr + 16, 16, 0}};
  for (int i = 0; i < kUcxBatch; ++i) {
    ibv_send_wr wr{}, *bad;
    wr.wr_id = 2;
    wr.sg_list = list;
    wr.num_sge = 2;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_INLINE | (i + 1 == kUcxBatch ? IBV_SEND_SIGNALED : 0);
    if (ibv_post_send(qp, &wr, &bad) != 0) die("ibv_post_send");
  }
  int got = 0;
  for (int n; (n = poll<16>(o.cq)) != 0;) got += n;
  if (got != kUcxBatch + 1) errno = EIO, die("not as many completions as are due");
}

void poll_all_extended(ibv_cq_ex* cq, long round) {
  ibv_poll_cq_attr attr{};
  const int due = 1 + signals(round);
  for (int got = 0; got < due || g_until_empty;) {
    int rc = ibv_start_poll(cq, &attr);
    if (rc == ENOENT && got == due) break;
    if (rc == ENOENT) continue;
    for (; rc == 0; rc = ibv_next_poll(cq), ++got) check(cq->status, cq->wr_id, ibv_wc_read_opcode(cq));
    if (rc != ENOENT) errno = rc, die("ibv_start_poll, ibv_next_poll");
    ibv_end_poll(cq);
  }
}

// Calls iteration(queue pair's index, region's element, round); queue pairs and regions take turns. Rounds count a
// queue pair's iterations, and neighbours are one apart: however many there are, as many sends are signaled.
template <typename Iteration>
__attribute__((always_inline)) inline void take_turns(const Objects& o, long iterations, Iteration iteration) {
  std::size_t qp_at = 0, mr_at = 0;
  static long round = 0;
  for (long i = 0; i < iterations; ++i) {
    ibv_sge sge = element_of(o.mrs[mr_at]);
    iteration(qp_at, sge, round + static_cast<long>(qp_at));
    if (++qp_at == o.qps.size()) qp_at = 0, ++round;
    if (++mr_at == o.mrs.size()) mr_at = 0;
  }
}

__attribute__((noinline)) void run_loop(const Objects* o, Mode mode, long iterations) {
  if (mode == Mode::kUcx)
    take_turns(*o, iterations / kUcxBatch,
               [o](std::size_t at, ibv_sge& sge, long) { run_batch(*o, o->qps[at], &sge); });
  else if (o->srq != nullptr)
    take_turns(*o, iterations, [o](std::size_t at, ibv_sge& sge, long round) {
      post_shared_receive(o->srq, &sge);
      post_send(o->qps[at], &sge, nullptr, round);
      poll_all(o->cq, round);
    });
  else if (!o->ahs.empty())
    take_turns(*o, iterations, [o](std::size_t at, ibv_sge& sge, long round) {
      post_receive(o->qps[at], &sge);
      post_send(o->qps[at], &sge, o->ahs[at], round);
      poll_all(o->cq, round);
    });
  else if (o->extended_cq != nullptr)
    take_turns(*o, iterations, [o](std::size_t at, ibv_sge& sge, long round) {
      post_receive(o->qps[at], &sge);
      build_send(o->extended_qps[at], sge, round);
      poll_all_extended(o->extended_cq, round);
    });
  else
    take_turns(*o, iterations, [o](std::size_t at, ibv_sge& sge, long round) {
      post_receive(o->qps[at], &sge);
      post_send(o->qps[at], &sge, nullptr, round);
      poll_all(o->cq, round);
    });
}

}  // namespace

// For callgrind's --toggle-collect. The warm-up is none of it.
extern "C" __attribute__((noinline)) void measured_loop(const Objects* o, Mode mode, long iterations) {
  run_loop(o, mode, iterations);
  asm volatile("");  // no tail call: it would have left the function before it began
}

namespace {

// Of this thread's processor time: the loop never sleeps, and what other programs take is not its cost.
double now_ns() {
  timespec t;
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * 1e9 + t.tv_nsec;
}

int open_instruction_counter() {
  perf_event_attr attr{};
  attr.size = sizeof(attr);
  attr.type = PERF_TYPE_HARDWARE;
  attr.config = PERF_COUNT_HW_INSTRUCTIONS;
  attr.exclude_kernel = attr.exclude_hv = 1;
  return static_cast<int>(::syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC));
}

Mode mode_of(const char* name) {
  const char* const kNames[] = {"rc", "srq", "ud", "extended", "ucx"};
  for (int i = 0; i < 5; ++i)
    if (std::strcmp(name, kNames[i]) == 0) return static_cast<Mode>(i);
  errno = EINVAL, die(name);
}

Options parse(int argc, char** argv) {
  Options options;
  int at = 2;
  if (argc < 2)
    die("usage: shim_overhead native BACKEND | verbs [--mode MODE --qps N --mrs N --iterations N --repeats N "
        "--signal-every N --until-empty 0|1 --hold PATH --count-steps 0|1]");
  if (std::strcmp(argv[1], "native") == 0 && argc > 2) options.backend = argv[at++];
  for (; at + 1 < argc; at += 2) {
    long value = std::atol(argv[at + 1]);
    if (!std::strcmp(argv[at], "--mode"))
      options.mode = mode_of(argv[at + 1]);
    else if (!std::strcmp(argv[at], "--qps"))
      options.qps = static_cast<int>(value);
    else if (!std::strcmp(argv[at], "--mrs"))
      options.mrs = static_cast<int>(value);
    else if (!std::strcmp(argv[at], "--iterations"))
      options.iterations = value;
    else if (!std::strcmp(argv[at], "--repeats"))
      options.repeats = static_cast<int>(value);
    else if (!std::strcmp(argv[at], "--signal-every") && value > 0)
      options.signal_every = static_cast<int>(value);
    else if (!std::strcmp(argv[at], "--until-empty"))
      options.until_empty = value != 0;
    else if (!std::strcmp(argv[at], "--count-steps"))
      options.count_steps = value != 0;
    else if (!std::strcmp(argv[at], "--hold"))
      options.hold = argv[at + 1];
    else
      errno = EINVAL, die(argv[at]);
  }
  return options;
}

// Completions that the device has made, if it tells (null_verbs.cc).
std::uint32_t completions_of(const Objects& objects) {
  const char* path = std::getenv("NULL_VERBS_COMPLETIONS");
  if (path == nullptr) return 0;
  ibv_port_attr port{};
  if (ibv_query_port(objects.cq->context, 1, &port) != 0) die("ibv_query_port");
  std::uint32_t made = 0;
  FILE* file = std::fopen(path, "r");
  if (file == nullptr || std::fscanf(file, "%u", &made) != 1) die(path);
  std::fclose(file);
  return made;
}

// Opens PATH with what is added to its name.
FILE* open_beside(const char* path, const char* added, const char* how) {
  char name[512];
  std::snprintf(name, sizeof(name), "%s%s", path, added);
  return std::fopen(name, how);
}

// Says that it is ready, and waits until it is let go, perhaps in a restarted process.
void wait_to_go(const char* path) {
  FILE* ready = open_beside(path, ".ready", "w");
  if (ready == nullptr) die(path);
  std::fclose(ready);
  for (;;) {
    if (FILE* go = open_beside(path, ".go", "r")) {
      std::fclose(go);
      return;
    }
    ::usleep(1000);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options = parse(argc, argv);
  Objects objects = options.backend ? make_native(options) : make_by_verbs(options);
  g_signal_every = options.signal_every;
  g_until_empty = options.until_empty;
  // Unsignaled sends: once round each send queue, since what is found there then is looked at.
  const long around = options.mode == Mode::kUcx ? 4 * kUcxBatch
                      : options.signal_every > 1 ? 2 * options.signal_every
                                                 : 2;
  const long every_queue = around * options.qps;
  run_loop(&objects, options.mode, std::max(options.iterations / 10, every_queue));
  if (options.hold != nullptr) {
    wait_to_go(options.hold);
    run_loop(&objects, options.mode, every_queue);  // what is found once after a restart
  }
  FILE* const to = options.hold != nullptr ? open_beside(options.hold, ".json", "w") : stdout;
  if (to == nullptr) die(options.hold);
  if (options.count_steps) {
    const long steps = count_steps([&] { measured_loop(&objects, options.mode, options.iterations); });
    if (steps < 0) die("ptrace");
    std::fprintf(to, "{\"instructions\": %.1f}\n", double(steps) / options.iterations);
    std::fflush(to);
    ::_exit(0);
  }
  std::vector<double> ns;
  ns.reserve(static_cast<std::size_t>(options.repeats));
  int counter = open_instruction_counter();
  unsigned long long before = 0, after = 0;
  const std::uint32_t completions = completions_of(objects);
  unsigned long mallocs = g_mallocs;
  if (counter >= 0 && ::read(counter, &before, sizeof(before)) < 0) counter = -1;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    double start = now_ns();
    measured_loop(&objects, options.mode, options.iterations);
    ns.push_back((now_ns() - start) / options.iterations);
    if (repeat == 0) mallocs = g_mallocs - mallocs;
  }
  if (counter >= 0 && ::read(counter, &after, sizeof(after)) < 0) counter = -1;
  std::sort(ns.begin(), ns.end());
  const std::uint32_t completed = completions_of(objects) - completions;
  std::fprintf(to, "{\"ns\": %.2f, \"ns_min\": %.2f, \"mallocs\": %.4f", ns[ns.size() / 2], ns[0],
               static_cast<double>(mallocs) / options.iterations);
  if (counter >= 0)
    std::fprintf(to, ", \"instructions\": %.1f", double(after - before) / options.iterations / options.repeats);
  if (completed != 0)
    std::fprintf(to, ", \"completions\": %.6f", double(completed) / options.iterations / options.repeats);
  std::fprintf(to, "}\n");
  std::fflush(to);
  ::_exit(0);
}
