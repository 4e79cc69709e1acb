// The two simplest typed interfaces. for_each: the squares of a vector's numbers, where one throws. Session: a search
// that halves intervals, whose tasks arise from results. Usage: session [NUMBERS]
#include <shadowib/masterworker.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>

namespace {

struct Interval {
  long begin = 0, end = 0;
};

// Where many numbers are looked at, the task is two tasks.
constexpr long kMost = 1000;

long count_primes(const Interval& in) {
  long count = 0;
  for (long n = in.begin; n < in.end; ++n) {
    bool prime = n > 1;
    for (long d = 2; prime && d * d <= n; ++d) prime = n % d != 0;
    count += prime;
  }
  return count;
}

}  // namespace

int main(int argc, char** argv) {
  mw::Options options = mw::take_options(argc, argv);
  const long numbers = argc > 1 ? std::atol(argv[1]) : 10000;
  options.start();

  std::vector<long> all(static_cast<std::size_t>(numbers / 100));
  std::iota(all.begin(), all.end(), 0);
  long sum = 0, refused = 0;
  const auto square = [](const long& n) {
    if (n == 3) throw std::runtime_error("three is refused");
    return n * n;
  };
  try {
    mw::for_each(all, square, [&](const long&, const long& squared) { sum += squared; });
  } catch (const std::runtime_error&) {
    ++refused;
  }

  long primes = 0;
  std::vector<Interval> found{{0, numbers}};
  {
    const auto look = [](const Interval& in) { return in.end - in.begin > kMost ? -1 : count_primes(in); };
    mw::Session session(look, [&](const Interval& in, const long& count) {
      if (count >= 0) {
        primes += count;
        return;
      }
      const long middle = in.begin + (in.end - in.begin) / 2;
      found.push_back({in.begin, middle});
      found.push_back({middle, in.end});
    });
    do {
      while (!found.empty()) {
        const Interval next = found.back();
        found.pop_back();
        session.submit(next);
      }
    } while (session.wait());
    session.finish();
  }
  std::printf("the squares have the sum %ld, %ld refused; %ld primes below %ld\n", sum, refused, primes, numbers);
  mw::finish();
}
