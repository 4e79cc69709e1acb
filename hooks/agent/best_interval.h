// The interval between checkpoints that loses the least work. Pure: plain arithmetic, no heap, no libm.
#pragma once

namespace shadowib {

// The square root of a number of zero or more, by Newton's method.
inline double square_root(double x) {
  if (x <= 0) return 0;
  double root = x > 1 ? x : 1;
  for (int i = 0; i < 600; ++i) {
    const double next = (root + x / root) / 2;
    if (next >= root) break;  // it falls until it is as near as a double comes
    root = next;
  }
  return root;
}

// Seconds from the end of a checkpoint to the begin of the next one. `cost_s`: what the job loses by a checkpoint,
// its pause. `mtbf_s`: mean time between failures of the job as a whole. Source: Young 1974: sqrt(2 C M). Daly 2006:
// M where C is M/2 or more.
inline double best_interval_s(double cost_s, double mtbf_s) {
  return cost_s >= mtbf_s / 2 ? mtbf_s : square_root(2 * cost_s * mtbf_s);
}

}  // namespace shadowib
