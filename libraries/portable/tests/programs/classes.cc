// Classes at sites: virtual functions, two bases, references, templates, lambdas, overloads, exceptions that pass
// frames with sites, static variables.
#include <shadowib/portable.h>

#include <cstdarg>
#include <cstdio>
#include <stdexcept>

namespace geometry {

class Shape {
 public:
  explicit Shape(long id) : id_(id) {}
  virtual ~Shape() { ended_ += id_; }
  virtual double area(double scale) const = 0;
  long id() const { return id_; }
  static long ended() { return ended_; }

 private:
  long id_;
  static long ended_;
};
long Shape::ended_ = 0;

struct Named {
  char letter;
  short weight = -3;
  explicit Named(char c) : letter(c) {}
  virtual const char* kind() const { return "named"; }
};

class Square : public Shape, public Named {
 public:
  Square(long id, double side) : Shape(id), Named('s'), side_(side) { shadowib_portable_site(); }
  double area(double scale) const override {
    double mine = side_ * side_;
    shadowib_portable_site();
    return mine * scale + weight;
  }
  const char* kind() const override {
    shadowib_portable_site();
    return "square";
  }

 private:
  double side_;
};

class Round : public Shape {
 public:
  Round(long id, double radius) : Shape(id), radius_(radius) {}
  ~Round() override { shadowib_portable_site(); }
  double area(double scale) const override { return 3 * radius_ * radius_ * scale; }

 private:
  double radius_;
};

}  // namespace geometry

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

template <typename T, int kRoom>
class Stack {
 public:
  void push(const T& value) {
    shadowib_portable_site();
    values_[count_++] = value;
  }
  T& top() { return values_[count_ - 1]; }
  T sum() const {
    T all{};
    for (const T& value : values_) {
      all += value;
      if (&value == &values_[1]) shadowib_portable_site();
    }
    return all;
  }

 private:
  T values_[kRoom] = {};
  unsigned long count_ = 0;
};

struct Counted {
  explicit Counted(int n) : number(n) { alive++; }
  Counted(const Counted& other) : number(other.number) { alive++; }
  ~Counted() { alive--; }
  int number;
  static int alive;
};
int Counted::alive = 0;

long take(long n) {
  shadowib_portable_site();
  return n * 2;
}
double take(double x) {
  shadowib_portable_site();
  return x / 2;
}
unsigned long take(unsigned long n) {
  shadowib_portable_site();
  return n + 7;
}

Counted pass(Counted by_value, int more) {
  shadowib_portable_site();
  by_value.number += more;
  return by_value;
}

void may_throw(int n) {
  Counted here(n);
  shadowib_portable_site();
  if (n % 3 == 2) throw std::runtime_error("two");
  if (n % 3 == 1) throw here;
}

int caught(int n) {
  int result = 0;
  try {
    Counted outer(100 + n);
    may_throw(n);
    result = outer.number;
  } catch (const Counted& counted) {
    result = -counted.number;
  } catch (const std::exception&) {
    result = 1000;
  }
  shadowib_portable_site();
  return result + Counted::alive;
}

int& steps() {
  static int count = static_cast<int>(take(2L));
  return count;
}

template <typename Visit>
long visit(int n, Visit&& visitor) {
  long sum = 0;
  for (int i = 0; i < n; i++) sum += visitor(i);
  return sum;
}

enum class Colour : short { kRed = -2, kBlue = 9 };

}  // namespace

int main() {
  geometry::Shape* shapes[3] = {new geometry::Square(1, 1.5), new geometry::Round(2, 0.5),
                                new geometry::Square(3, 2)};
  double area = 0;
  for (const auto* shape : shapes) area = shape->area(1 + area);
  auto* square = dynamic_cast<geometry::Square*>(shapes[2]);
  geometry::Named& named = *square;
  note("%g %s %c %d\n", area, named.kind(), named.letter, named.weight);

  Stack<long, 4> longs;
  Stack<double, 3> doubles;
  for (int i = 0; i < 3; i++) {
    longs.push(i * 5L - 7);
    doubles.push(i / 4.0);
    longs.top() -= take(longs.top()) + static_cast<long>(take(3UL));
  }
  note("%ld %g %g\n", longs.sum(), doubles.sum(), take(doubles.top()));

  long total = -40;
  Colour colour = Colour::kRed;
  auto add = [&total, factor = 3L, colour](long n) {
    shadowib_portable_site();
    total += n * factor;
    return total + static_cast<int>(colour);
  };
  note("%ld %ld\n", visit(4, add), total);

  for (int n = 0; n < 5; n++) note("%d ", caught(n));
  Counted five = pass(pass(Counted(5), 1), steps()++);
  note("%d %d %d\n", five.number, Counted::alive, steps());
  for (auto*& shape : shapes) {
    delete shape;
    shape = nullptr;
  }
  note("%ld\n", geometry::Shape::ended());
  std::puts(printed);
  return 0;
}
