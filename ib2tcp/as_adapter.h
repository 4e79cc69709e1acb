// While one lives, its thread reads and writes a program's memory as an adapter does: unseen by ThreadSanitizer.
//
// The program's protocol orders such accesses: a completion, or a last byte that it polls. Sockets and rings between
// two processes carry it, and ThreadSanitizer cannot follow them. Locks and atomics count as before. For the calls
// that move payload, and no more: the rest of ib2tcp is watched. Nothing in other builds.
#pragma once

#if defined(__SANITIZE_THREAD__)
extern "C" void __tsan_ignore_thread_begin();
extern "C" void __tsan_ignore_thread_end();
#endif

namespace shadowib::ib2tcp {

class AsAdapter {
 public:
#if defined(__SANITIZE_THREAD__)
  AsAdapter() { __tsan_ignore_thread_begin(); }
  ~AsAdapter() { __tsan_ignore_thread_end(); }
#else
  AsAdapter() {}  // written out, so that no compiler calls it unused
#endif
  AsAdapter(const AsAdapter&) = delete;
  AsAdapter& operator=(const AsAdapter&) = delete;
};

}  // namespace shadowib::ib2tcp
