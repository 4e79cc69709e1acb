// The helper: the thread lent to a backend that moves data while the program computes (BackendOps::progress).
#pragma once

#include "shadowib/base/status.h"

namespace shadowib {

// Starts it if the backend wants one and it does not run yet.
Status start_helper();

// Parks it outside the backend, for the image; wakes it again afterwards (resume and restart).
Status park_helper(int timeout_ms);
void unpark_helper();

// At an orderly exit: answers what peers still wait for, as an adapter would have done by itself.
void flush_at_exit();

// In a forked child: there is none.
void forget_helper();

}  // namespace shadowib
