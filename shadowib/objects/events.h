// Event queues behind completion channels and async descriptors.
//
// From generation 0 on the program's descriptor is an epoll set that holds the real descriptor and an eventfd of ours
// (hazard H8). A kernel descriptor cannot carry events that a checkpoint took out of the backend. Its number never
// changes.
#pragma once

#include <deque>

#include "shadowib/base/lock.h"

namespace shadowib {

class EventQueue {
 public:
  // Makes the program's descriptor (lowest free number) over real_fd. Returns it, or -1 with errno.
  int open(int real_fd);
  // After a restart: the program's descriptor is back, empty; adds the new real descriptor and a new eventfd.
  bool reattach(int program_fd, int real_fd);
  void close(int program_fd);

  // Makes the descriptor readable (pending > 0) or leaves it to the real one. Caller holds lock.
  void update_signal(bool pending);

  // Sleeps until the descriptor is readable, outside any Inside. Returns false with EAGAIN if it is O_NONBLOCK, and
  // with EINTR if a handler of the program ran that ends a read(2): one without SA_RESTART.
  static bool wait(int program_fd);

  SpinLock lock;

 private:
  bool attach(int program_fd, int real_fd);
  int eventfd_ = -1;
  bool signaled_ = false;
};

}  // namespace shadowib
