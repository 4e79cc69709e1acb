// The typed C++20 interface: who has the longest Collatz sequence below a bound? An UPDATE tells all workers the best
// so far. A task that is refused on purpose throws, and arrives in check() as an error. A second farm counts
// sequences at least half as long as what the first has found. Usage: typed [BOUND]
#include <shadowib/masterworker.h>

#include <cstdio>
#include <cstdlib>

namespace {

struct Range {
  long begin = 0, end = 0;
};
struct Best {
  long start = 1, length = 1;
};

long length_from(long n) {
  long length = 1;
  for (; n != 1; n = n % 2 == 0 ? n / 2 : 3 * n + 1) ++length;
  return length;
}

struct Collatz {
  long bound = 100000, at = 1;
  int errors = 0, ranges = 0;

  std::optional<Range> next(const Best&) {
    if (at >= bound) return std::nullopt;
    const Range range{at, std::min(at + 2000, bound)};
    at = range.end;
    return range;
  }
  Best work(const Range& range, const Best&, mw::Task& task) {
    ++task.local<int>();
    if (range.begin == 1) throw std::runtime_error("one is trivial");
    Best best{range.begin, 0};
    for (long n = range.begin; n < range.end; ++n) {
      const long length = length_from(n);
      if (length > best.length) best = {n, length};
    }
    return best;
  }
  mw::Action<Range> check(const Range&, const Best& found, const Best& best, const mw::Result& result) {
    ++ranges;
    if (result.error() != nullptr) {
      ++errors;
      return mw::done();
    }
    if (found.length > best.length || (found.length == best.length && found.start < best.start)) return mw::update();
    return mw::done();
  }
  void update(Best& best, const Range&, const Best& found) { best = found; }
};

struct Long {
  long bound = 0, at = 1, found = 0;

  std::optional<Range> next(const Best&) {
    if (at >= bound) return std::nullopt;
    const Range range{at, std::min(at + 2000, bound)};
    at = range.end;
    return range;
  }
  long work(const Range& range, const Best& best, mw::Task&) {
    long count = 0;
    for (long n = range.begin; n < range.end; ++n) count += 2 * length_from(n) >= best.length;
    return count;
  }
  mw::Action<Range> check(const Range&, const long& count, const Best&, const mw::Result&) {
    found += count;
    return mw::done();
  }
};

}  // namespace

int main(int argc, char** argv) {
  Collatz collatz;
  Best best;
  if (argc > 1 && argv[1][0] != '-') collatz.bound = std::atol(argv[1]);
  mw::run(collatz, best, argc, argv);
  Long others{collatz.bound};
  mw::run(others, best, argc, argv);  // with other workers: those of the first farm have ended
  std::printf("%ld has a sequence of %ld, in %d ranges, %d refused; %ld are at least half as long\n", best.start,
              best.length, collatz.ranges, collatz.errors, others.found);
  mw::finish();
}
