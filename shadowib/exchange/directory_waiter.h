// Waiting for changes in directories: inotify where it can be had, otherwise looking again at a bounded rate.
#pragma once

#include <cstdint>
#include <string>

#include "shadowib/base/lock.h"
#include "shadowib/exchange/bell.h"
#include "shadowib/exchange/raw_files.h"

namespace shadowib {

// Watches up to kMaxDirectories directories at a time. Used by one thread at a time.
class DirectoryWaiter {
 public:
  static constexpr int kMaxDirectories = 2;

  // remote: changes made on other hosts are not notified, so look again every so often even with inotify.
  explicit DirectoryWaiter(bool remote) : remote_(remote) {}

  // A new wait starts: polling begins at its shortest interval again.
  void begin() { begun_ns_ = monotonic_ns(); }

  // The next sleep before looking again when polling, after a wait of that length: 1 ms, twice as long each time up
  // to 50 ms. From a wait of 5 s on it is a hundredth of the wait, up to 500 ms. A thousand members that wait for a
  // request for hours would keep a file server busy otherwise.
  static std::int64_t interval_after(std::int64_t waited_ns);

  // Watches exactly these absolute paths from now on; those watched already stay so, without a gap. Changes after
  // arm() wake wait(). Where inotify is not available (EMFILE, ENOSPC...) wait() polls.
  void arm(const std::string* paths, int count);

  // Sleeps until a value ("=...") came or went in an armed directory, cancel_fd (if >= 0) is readable, or timeout_ns
  // ran out (< 0: none); when polling also after interval_after(). True if cancel_fd is readable.
  bool wait(std::int64_t timeout_ns, int cancel_fd);

  // The first directory of the last arm(); lets a pool hand out the waiter that already watches it.
  const std::string& directory() const { return paths_[0]; }
  bool polling() const { return polling_; }

  // The directory(), held open between the looks of a watch: a process that has no descriptor left goes on watching.
  // Belongs to the user of the waiter.
  OwnedFd held;
  // One that is listened to instead of inotify. Belongs to the user, too.
  Bell bell;

 private:
  bool drain();

  const bool remote_;
  bool polling_ = false;
  bool tried_ = false;
  std::int64_t begun_ns_ = monotonic_ns();
  OwnedFd inotify_;
  std::string paths_[kMaxDirectories];
  int watches_[kMaxDirectories] = {-1, -1};
};

// Waiters that outlive a call: closing an inotify descriptor takes milliseconds in the kernel, arming one
// microseconds.
class WaiterPool {
 public:
  ~WaiterPool();
  void set_remote(bool remote) { remote_ = remote; }
  DirectoryWaiter* take(const std::string& directory);
  void give_back(DirectoryWaiter* waiter);

 private:
  static constexpr int kIdle = 8;
  bool remote_ = false;
  SpinLock lock_;
  DirectoryWaiter* idle_[kIdle] SHADOWIB_GUARDED_BY(lock_) = {};
};

// A waiter borrowed for one scope.
class WaiterLease {
 public:
  WaiterLease(WaiterPool& pool, const std::string& directory) : pool_(pool), waiter_(pool.take(directory)) {}
  ~WaiterLease() { pool_.give_back(waiter_); }
  WaiterLease(const WaiterLease&) = delete;
  WaiterLease& operator=(const WaiterLease&) = delete;
  DirectoryWaiter* operator->() { return waiter_; }

 private:
  WaiterPool& pool_;
  DirectoryWaiter* waiter_;
};

}  // namespace shadowib
