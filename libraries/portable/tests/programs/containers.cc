// Containers of the standard library at sites: their content is the same wherever the program goes on.
#include <shadowib/portable.h>

#include <algorithm>
#include <array>
#include <complex>
#include <cstdarg>
#include <cstdio>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace {

// Printed at the end, so that it is all there after a restart.
char printed[2000];
int length = 0;

[[gnu::format(printf, 1, 2)]] void note(const char* format, ...) {
  va_list values;
  va_start(values, format);
  length += std::vsnprintf(printed + length, sizeof printed - static_cast<unsigned>(length), format, values);
  va_end(values);
}

struct Body {
  std::string name;
  std::array<double, 3> at;
  std::vector<long> history;
};

using Index = std::map<std::string, std::vector<Body*>>;

struct Tree {
  long key;
  std::unique_ptr<Tree> left, right;
  explicit Tree(long k) : key(k) {}
};

std::string label(int n) {
  std::string text = "body ";
  text += std::to_string(n);
  shadowib_portable_site();
  if (n % 2) text += " with a name that is too long for the object itself";
  return text;
}

void insert(std::unique_ptr<Tree>& tree, long key) {
  if (!tree) {
    tree = std::make_unique<Tree>(key);
    shadowib_portable_site();
    return;
  }
  insert(key < tree->key ? tree->left : tree->right, key);
}

long walk(const Tree* tree, int depth) {
  if (!tree) return 0;
  if (depth == 2) shadowib_portable_site();
  return walk(tree->left.get(), depth + 1) * 3 + tree->key - walk(tree->right.get(), depth + 1);
}

std::vector<std::unique_ptr<Body>> make_bodies(int count) {
  std::vector<std::unique_ptr<Body>> bodies;
  for (int i = 0; i < count; i++) {
    auto body = std::make_unique<Body>();
    body->name = label(i);
    body->at = {i / 2.0, -1.0 * i, 0.25};
    for (long step = 0; step <= i; step++) body->history.push_back(step * i - 3);
    bodies.push_back(std::move(body));
    shadowib_portable_site();
  }
  return bodies;
}

}  // namespace

int main() {
  auto bodies = make_bodies(5);
  Index index;
  for (auto& body : bodies) {
    index[body->name.substr(0, 6)].push_back(body.get());
    shadowib_portable_site();
  }
  for (const auto& [name, list] : index) {
    shadowib_portable_site();
    note("%s %zu %s %ld\n", name.c_str(), list.size(), list[0]->name.c_str(), list[0]->history.back());
  }

  std::unique_ptr<Tree> tree;
  for (long key : {5, -3, 9, 1, -8, 7}) insert(tree, key);
  note("%ld\n", walk(tree.get(), 0));

  std::map<long, unsigned long> counts;
  std::set<std::pair<int, char>> pairs;
  std::list<std::string> lines;
  for (int i = 0; i < 4; i++) {
    counts[-3L * i] += 2UL + counts.size();
    pairs.emplace(i * 7 % 4, static_cast<char>('a' + i));
    lines.push_front(label(i + 10));
    shadowib_portable_site();
  }
  for (const auto& [key, count] : counts) note("%ld:%lu ", key, count);
  for (const auto& [number, letter] : pairs) note("%d%c ", number, letter);
  for (const std::string& line : lines) {
    shadowib_portable_site();
    note("%zu ", line.size());
  }

  std::vector<int> order = {5, 3, 9, -1, 4, 8};
  int compared = 0;
  std::sort(order.begin(), order.end(), [&compared](int a, int b) {
    if (++compared % 4 == 0) shadowib_portable_site();
    return a < b;
  });
  for (int one : order) note("%d ", one);

  std::optional<std::string> maybe;
  std::tuple<long, std::string, double> three{-3, "three", 0.5};
  shadowib_portable_site();
  maybe = std::get<1>(three) + " of them, which is too long for it";
  std::complex<double> number(1.5, -2);
  std::vector<std::string> texts(3, *maybe);
  texts.pop_back();
  shadowib_portable_site();
  number *= std::complex<double>(0, static_cast<double>(std::max(std::get<0>(three), 2L)));
  maybe.reset();
  for (char c : std::string("short")) {
    if (c == 'o') shadowib_portable_site();
    note("%c", c);
  }
  note(" %d %zu %g %g\n", maybe.has_value(), texts.back().size(), number.real(), number.imag());
  std::puts(printed);
  return 0;
}
