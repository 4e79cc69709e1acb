// The objects that shim_overhead posts to and polls, made of the null backend's or by libibverbs.
#pragma once

#include <infiniband/verbs.h>

#include <vector>

namespace shadowib::perftest {

enum class Mode { kRc, kSrq, kUd, kExtended, kUcx };

inline constexpr int kUcxBatch = 16;  // messages of an iteration of kUcx

struct Options {
  const char* backend = nullptr;  // native if set
  Mode mode = Mode::kRc;
  int qps = 1, mrs = 1, repeats = 5;
  int signal_every = 1;      // of the sends of a queue pair, one in so many is signaled
  bool until_empty = false;  // polls until nothing is left, as programs do
  long iterations = 200000;
  const char* hold =
      nullptr;  // measures when PATH.go is there, and prints into PATH.json; PATH.ready says that it waits
  bool count_steps = false;
};

struct Objects {
  ibv_cq* cq;
  ibv_srq* srq;  // kSrq, kUcx
  std::vector<ibv_qp*> qps;
  std::vector<ibv_mr*> mrs;
  std::vector<ibv_ah*> ahs;  // kUd: as many as queue pairs
  // kExtended by libibverbs: the same queues. A backend has none (backend.h).
  ibv_cq_ex* extended_cq;
  std::vector<ibv_qp_ex*> extended_qps;
};

// Ends the process with errno's text.
[[noreturn]] void die(const char* what);

// The backend's own objects, reached through the inlines of verbs.h as a provider's would be; or libibverbs' as
// found. They last as long as the process.
Objects make_native(const Options& options);
Objects make_by_verbs(const Options& options);

}  // namespace shadowib::perftest
