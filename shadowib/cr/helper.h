// The helper: the thread lent to a backend that moves data while the program computes (BackendOps::progress).
#pragma once

#include "shadowib/base/status.h"

namespace shadowib {

// Starts it if the backend wants one and it does not run yet.
Status start_helper();

// Parks it outside the backend, for the image; wakes it again afterwards (resume and restart).
Status park_helper(int timeout_ms);
void unpark_helper();

// In a forked child: there is none.
void forget_helper();

}  // namespace shadowib
