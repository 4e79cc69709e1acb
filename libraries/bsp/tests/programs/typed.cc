// The typed interface: arrays, queues of several types, and a message that splits an element.
//
//   bsprun -n P typed          checks itself
//   bsprun -n P typed split    process 0 has made its queues in another order: the job must end with a message
#include <cstdio>
#include <cstring>
#include <memory>
#include <shadowib/bsp.hpp>
#include <string>
#include <vector>

namespace {

struct Point {
  double x, y;
  int weight;
};

void need(bsp::World& world, bool condition, const char* what) {
  if (!condition) world.abort("%s is wrong", what);
}

void arrays(bsp::World& world) {
  const unsigned p = world.nprocs(), s = world.pid();
  bsp::Array<long> counts(world, p, -1);
  bsp::Array<Point> points(world, 10 + s);  // sizes may differ
  bsp::Array<float> none(world, 0);
  world.sync();
  for (unsigned to = 0; to < p; ++to) counts.put(to, s, 100L * s + to);
  const std::vector<Point> three{{1, 2, static_cast<int>(s)}, {3, 4, 1}, {5, 6, 2}};
  points.put(world.next(), 7, std::span<const Point>(three));
  world.sync();
  for (unsigned from = 0; from < p; ++from) need(world, counts[from] == 100L * from + s, "a put element");
  need(world, points[7].weight == static_cast<int>(world.previous()) && points[9].y == 6, "a put struct");
  long there = 0;
  counts.put(world.next(), 0, -7L);
  counts.get(world.next(), s, there);
  world.sync();
  need(world, there == 100L * s + world.next(), "a get before a put");
  need(world, counts[0] == -7, "a put after a get");
}

void queues(bsp::World& world) {
  const unsigned p = world.nprocs(), s = world.pid();
  bsp::Queue<int, double> numbers(world);
  bsp::Queue<Point, char> texts(world);
  for (unsigned to = 0; to < p; ++to) {
    numbers.send(to, static_cast<int>(s), {1.5 * s, 2.5});
    texts.send(to, Point{1, 2, static_cast<int>(s)}, std::span<const char>("hello", 5));
  }
  world.sync();
  need(world, numbers.size() == p && texts.size() == p, "the number of messages");
  int from = 0;
  for (const auto& [tag, values] : numbers) {
    need(world, tag == from && values.size() == 2 && values[0] == 1.5 * from && values[1] == 2.5, "a message");
    ++from;
  }
  for (const auto& [tag, values] : texts)
    need(world, std::string(values.begin(), values.end()) == "hello" && tag.y == 2, "a text");
  world.sync();
  need(world, numbers.size() == 0, "the queue of the next superstep");
}

// Puts still go to an array that is destroyed in their superstep. Its memory must not be another object's by then.
void destroyed(bsp::World& world) {
  constexpr std::size_t kElements = 100;
  for (int round = 0; round < 20; ++round) {
    auto array = std::make_unique<bsp::Array<double>>(world, kElements, 0.0);
    world.sync();
    array->put(world.next(), 0, std::span<const double>(std::vector<double>(kElements, -1.0)));
    array.reset();
    const std::vector<double> own(kElements, 7.0);
    world.sync();
    for (const double value : own) need(world, value == 7.0, "memory that was an array's");
  }
}

void split(bsp::World& world) {
  if (world.pid() == 0) {
    bsp::Queue<int, char> first(world);
    first.send(world.next(), 1, std::span<const char>("abc", 3));
    world.sync();
  } else {
    bsp::Queue<int, double> first(world);
    world.sync();
  }
}

}  // namespace

int main(int argc, char** argv) {
  bsp::World world;
  if (argc > 1 && std::strcmp(argv[1], "split") == 0) {
    split(world);
    world.sync();
    return 0;
  }
  arrays(world);
  queues(world);
  destroyed(world);
  if (world.pid() == 0) std::puts("typed: right");
}
