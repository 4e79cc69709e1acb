"""What shadowib-c++ compiles: left and entered at each site, and gone on from an image of each. Usage: cplusplus_test.py SHADOWIB_CPLUSPLUS"""
import re
import unittest

from compiler_test import SITE, CompilerTest


class CPlusPlusTest(CompilerTest):
    SUFFIX, OPTIONS = ".cc", ("-std=c++17",)

    def everywhere(self, sites: int, *sources: str):
        """Prints the same when it is left at each site, and when it goes on from an image of each."""
        self.same(sites, *sources)
        for at in range(1, sites + 1):
            self.assertNotIn("lead nowhere", self.comes_back(at))


class ClassTest(CPlusPlusTest):
    def test_overloads_and_names(self):
        self.everywhere(4, f"namespace a {{ static long take(long n) {{ {SITE}; return n; }} static double take(double x) {{ {SITE}; return x / 2; }} }}\n"
                           f"namespace b {{ static int take(unsigned n) {{ {SITE}; return n + 1; }} template <class T> T take(T* p) {{ T old = *p; {SITE}; return old; }} }}\n"
                           'int main() { int n = 4; printf("%ld %g %d %d\\n", a::take(3L), a::take(3.0), b::take(3u), b::take(&n)); }\n')

    def test_methods_members_and_references(self):
        self.everywhere(6, "class Sum { public: explicit Sum(long& to) : to_(to) { n_ = 1; }\n"
                           f"  Sum& add(int x) {{ int before = n_; {SITE}; n_ += x; to_ += before; return *this; }} long get() const {{ {SITE}; return n_ * 100 + to_; }}\n"
                           "private: long& to_; int n_; };\n"
                           'int main() { long all = -3; Sum s(all); Sum& same = s.add(1).add(2); same.add(3).add(4); printf("%ld\\n", s.get() + Sum(all).get()); }\n')

    def test_bases_and_their_tails(self):
        """The last byte of a base's room is the derived class's member."""
        self.everywhere(1, "struct Empty {}; struct A { A() : x(7), c('a') {} int x; char c; }; struct B { long y = -5; }; struct C : Empty, A, B { char d = 'd'; Empty e; short z = 9; };\n"
                           f"int main() {{ static C c; A* a = &c; B* b = &c; {SITE}; a->x++; b->y--; printf(\"%d %c %ld %c %d\\n\", c.x, c.c, c.y, c.d, c.z); }}\n")

    def test_virtual_functions(self):
        self.everywhere(6, "struct Shape { virtual ~Shape() {} virtual int area() = 0; virtual const char* name() { return \"shape\"; } }; struct Other { int o = 3; virtual int other() { return o; } };\n"
                           f"struct Square : Shape, Other {{ int s; Square(int n) : s(n) {{}} int area() override {{ {SITE}; return s * s; }} int other() override {{ {SITE}; return -s; }} }};\n"
                           f"struct Point : Shape {{ ~Point() {{ {SITE}; }} int area() override {{ return 0; }} const char* name() override {{ return \"point\"; }} }};\n"
                           "int main() { Square* square = new Square(4); Shape* all[] = {square, new Point}; Other* other = square; int sum = 0;\n"
                           f"{SITE}; for (Shape* s : all) sum += s->area(); sum = sum * 100 + other->other();\n"
                           f'{SITE}; const char *one = all[0]->name(), *two = all[1]->name(); for (Shape*& s : all) {{ delete s; s = nullptr; }} {SITE}; printf("%d %s %s\\n", sum, one, two); }}\n')

    def test_class_by_value_keeps_its_identity(self):
        self.everywhere(4, "struct Self { Self* me; int n; explicit Self(int n) : me(this), n(n) {} Self(const Self& o) : me(this), n(o.n + 1) {} ~Self() { n = -1; } bool right() const { return me == this; } };\n"
                           f"static Self pass(Self s) {{ {SITE}; Self own(s); {SITE}; own.n += s.right() ? 10 : 0; return own; }}\n"
                           'int main() { Self a(1); Self b = pass(a); Self* c = new Self(pass(b)); printf("%d %d %d %d\\n", b.n, b.right(), c->n, c->right()); delete c; c = nullptr; }\n')

    def test_method_with_the_name_of_a_destructor(self):
        """Only a destructor ends its object: `_ZN1T4byD1Ev` looks like one."""
        self.compiled("struct T { int n; int byD1() { return ++n; } };\n"
                      f'int main(int argc, char**) {{ T t{{argc}}; t.byD1(); {SITE}; t.byD1(); printf("%d\\n", t.n); }}\n')
        self.assertEqual(self.run_program(9).stdout, "3\n")

    def test_templates_and_lambdas(self):
        self.everywhere(9, f"template <class T, int N> struct Row {{ T v[N] = {{}}; T sum() {{ T all = T(); for (T& x : v) {{ {SITE}; all += x; }} return all; }} }};\n"
                           "template <class F> long apply(int n, F&& f) { long r = 0; for (int i = 0; i < n; i++) r += f(i); return r; }\n"
                           "int main() { Row<long, 2> l; l.v[1] = -9; Row<double, 3> d; d.v[2] = 0.25; long total = -1; int k = 3;\n"
                           f"auto f = [&total, k](int i) {{ {SITE}; total += i * k; return total; }};\n"
                           'long r = apply(4, f); printf("%ld %g %ld %ld\\n", l.sum(), d.sum(), r, total); }\n')

    def test_two_files_of_one_class(self):
        (self.work / "both.h").write_text("#include <vector>\nstruct Both { std::vector<int> v; virtual ~Both() {} virtual int last() { int n = (int)v.size(); "
                                          f"{SITE}; return v[n - 1]; }} void add(int x) {{ v.push_back(x); {SITE}; }} }};\n")
        self.everywhere(4, '#include "both.h"\nint other(Both& b);\nint main() { Both b; b.add(3); int n = b.last(); printf("%d %d\\n", n, other(b)); }\n',
                        '#include "both.h"\nint other(Both& b) { b.add(4); Both* p = &b; return p->last(); }\n')

    def test_files_of_one_class_in_another_order(self):
        """The linker keeps the inline functions of the first file: the image's program and this one have them from different files."""
        (self.work / "both.h").write_text(f"struct Both {{ long v; virtual ~Both() {{}} long add(long x) {{ long before = v; {SITE}; v += x; return before; }} }};\n"
                                          f"template <class T> T twice(Both& b, T x) {{ b.add(x); {SITE}; return (T)b.add(x); }}\n")
        self.compiled('#include "both.h"\nlong other(Both& b);\nint main() { Both b; b.v = 3; long n = twice(b, 4L); printf("%ld %ld %ld\\n", n, other(b), b.v); }\n',
                      '#include "both.h"\nlong other(Both& b) { return b.add(5) + twice(b, 6L); }\n')
        (self.work / "program").rename(self.work / "first")
        self.link("part1.cc", "part0.cc")
        (self.work / "program").rename(self.work / "second")
        for one, two in (("first", "second"), ("second", "first")):
            for at in range(1, 8):
                (self.work / "program").unlink(missing_ok=True)
                (self.work / "program").symlink_to(one)
                output = self.saved(at)
                (self.work / "program").unlink()
                (self.work / "program").symlink_to(two)
                result = self.restarted()
                self.assertEqual((result.returncode, result.stdout), (0, output), result.stderr)

    def test_static_variables(self):
        """Made once, and destroyed once, also in a process that has not made them."""
        self.everywhere(3, "#include <string>\nstruct Loud { std::string s; explicit Loud(const char* t) : s(t) {} ~Loud() { printf(\"~%s\\n\", s.c_str()); } };\n"
                           "static Loud of_file(\"of the file, with a long name\"); static const std::string& bound = std::string(\"bound, with a long name\");\n"
                           f"static Loud& one() {{ static Loud s(\"one, with a long name\"); {SITE}; return s; }} static int count() {{ {SITE}; return 3; }}\n"
                           "static Loud& two() { static int n = count(); static Loud s(n == 3 ? \"two\" : \"three\"); return s; }\n"
                           f'int main() {{ one().s += "!"; two().s += "?"; {SITE}; printf("%s %s %s\\n", of_file.s.c_str(), two().s.c_str(), bound.c_str()); }}\n')

    def test_arrays_of_classes(self):
        """`new T[n]` keeps n before the first if T has a destructor."""
        self.everywhere(2, "static int ended; struct T { long n = -1; char c = 'c'; ~T() { ended++; } };\n"
                           f"int main() {{ T* many = new T[5]; T* one = new T; long* plain = new long[3]{{1, -2, 3}}; many[4].n = 8; {SITE};\n"
                           f'long n = many[4].n + plain[1]; delete[] many; many = nullptr; {SITE}; delete one; delete[] plain; printf("%ld %d\\n", n, ended); }}\n')


class ExceptionTest(CPlusPlusTest):
    THROWS = ("#include <stdexcept>\nstatic int alive, ended; struct Here { int n; explicit Here(int n) : n(n) { alive++; } ~Here() { alive--; ended += n; } };\n"
              f"static int may_throw(int n) {{ Here here(n); {SITE}; if (n == 2) throw std::runtime_error(\"two\"); if (n == 3) throw n; return n; }}\n")

    def test_exception_passes_frames_with_sites(self):
        self.everywhere(7, self.THROWS + f"static int between(int n) {{ Here here(10 * n); int r = may_throw(n); {SITE}; return r; }}\n"
                           "static int caught(int n) { try { Here outer(100 * n); return between(n); } catch (const std::exception& e) { return -e.what()[0]; } catch (int) { } return 9; }\n"
                           f'int main() {{ int r[4]; for (int i = 0; i < 4; i++) r[i] = caught(i); {SITE}; printf("%d %d %d %d, %d alive, %d\\n", r[0], r[1], r[2], r[3], alive, ended); }}\n')

    def test_no_memory(self):
        self.compiled("#include <new>\n#include <cstdint>\n"
                      f"int main() {{ int n = 0; volatile size_t many = SIZE_MAX / 4; {SITE}; try {{ char* p = new char[many]; *p = 1; n = p[0]; }} catch (const std::bad_alloc&) {{ n = 7; }}\n"
                      f"int* none = new (std::nothrow) int[many / 4]; {SITE}; printf(\"%d %d\\n\", n, none == nullptr); }}\n")
        result = self.run_program(9)
        self.assertEqual((result.returncode, result.stdout), (0, "7 1\n"), result.stderr)


class LibraryTest(CPlusPlusTest):
    def test_strings(self):
        """In the object itself and on the heap, at the change from one to the other, and with pointers into them."""
        self.everywhere(6, "#include <string>\nstatic std::string of_file = \"short\";\n"
                           f"static std::string longer(std::string s, int n) {{ {SITE}; s.append(n, 'x'); {SITE}; return s; }}\n"
                           "int main() { std::string s = \"fifteen letters\", t = longer(s, 1), u = longer(\"\", 3); std::string* p = new std::string(t); const char* in = &s[3];\n"
                           f'{SITE}; of_file += of_file + of_file + of_file; u = of_file.substr(2, 9); t.clear(); {SITE}; printf("%s %s %s %s %s %s\\n", s.c_str(), t.c_str(), u.c_str(), p->c_str(), of_file.c_str(), in); delete p; p = nullptr; }}\n')

    def test_vectors(self):
        self.everywhere(7, "#include <vector>\n#include <string>\nstruct T { std::string s; T(const char* t) : s(t) {} T(const T& o) : s(o.s) { " + SITE + "; } T(T&& o) noexcept : s(std::move(o.s)) {} };\n"
                           "int main() { std::vector<T> v; T first(\"one with quite a long name\"); v.push_back(first); v.push_back(first); std::vector<T> w = v; w.pop_back();\n"
                           f"std::vector<std::vector<long>> vv(2, {{1, -2, 3}}); vv[1].clear(); vv[0].push_back(-9); {SITE}; long sum = 0; for (long x : vv[0]) sum += x;\n"
                           f'for (long x : {{5L, -3L}}) {{ {SITE}; sum += x; }} printf("%zu %zu %s %ld\\n", v.size(), w.size(), w[0].s.c_str(), sum); }}\n')

    def unchanged(self, sites: int, source: str):
        """Prints the same also in the process that saves at each site."""
        self.same(sites, source)
        plain = self.run_program(0).stdout
        for at in range(1, sites + 1):
            self.comes_back(at)
            self.assertEqual(self.saved(at), plain)

    def test_elements_being_made(self):
        """A site in the constructor or destructor of an element that the vector or optional does not count yet, or any more."""
        element = (f"struct T {{ long n; std::string s; T(long x) : n(x), s(\"one with quite a long name\") {{ {SITE}; n++; }} T(const T& o) : n(o.n), s(o.s) {{ {SITE}; n++; }}\n"
                   f"  ~T() {{ if (n > 90) {SITE}; ended += n + (long)s.size(); }} static long ended; }}; long T::ended = 0;\n")
        self.unchanged(8, "#include <string>\n#include <vector>\n" + element +
                          "int main() { { std::vector<T> v; v.reserve(3); T a(5); v.push_back(a); v.emplace_back(99); std::vector<T> w = v, x(1, a); v.pop_back(); w.clear();\n"
                          'printf("%ld %ld %s\\n", v[0].n, x[0].n, v[0].s.c_str()); } printf("%ld\\n", T::ended); }\n')
        self.unchanged(4, "#include <optional>\n#include <string>\n" + element +
                          'int main() { { std::optional<T> o; o.emplace(4); std::optional<T> p = o, q(std::in_place, 99); q.reset(); printf("%ld %ld %s\\n", o->n, p->n, p->s.c_str()); } printf("%ld\\n", T::ended); }\n')

    def test_string_being_made(self):
        self.unchanged(3, "#include <iterator>\n#include <string>\nstruct Next { using iterator_category = std::input_iterator_tag; using value_type = char; using difference_type = long; using pointer = char*; using reference = char;\n"
                          f"int n; char operator*() const {{ return (char)('a' + n); }} Next& operator++() {{ if (n % 6 == 5) {SITE}; n++; return *this; }} Next operator++(int) {{ Next old = *this; ++*this; return old; }}\n"
                          "bool operator==(const Next& o) const { return n == o.n; } bool operator!=(const Next& o) const { return n != o.n; } };\n"
                          'int main() { std::string s(Next{0}, Next{20}); printf("%s\\n", s.c_str()); }\n')

    def test_other_containers(self):
        self.everywhere(3, "#include <array>\n#include <list>\n#include <map>\n#include <memory>\n#include <optional>\n#include <set>\n#include <string>\n#include <tuple>\n"
                           "int main() { std::map<std::string, long> m; std::set<long> s{3, -3}; std::list<std::string> l{\"a\", \"one that is longer than fifteen\"}; std::optional<std::string> o, none;\n"
                           "std::tuple<long, std::string> t{-1, \"tuple\"}; std::array<std::unique_ptr<long>, 2> a{std::make_unique<long>(-8), nullptr}; m[\"x\"] = -4; auto at = m.find(\"x\");\n"
                           f"{SITE}; m[\"y\"] = at->second - 1; o = std::get<1>(t); s.insert(1); l.pop_front(); auto i = s.begin(); {SITE}; ++i; o.reset(); at = m.erase(at); a[1] = std::move(a[0]);\n"
                           f'{SITE}; printf("%ld %ld %s %d %ld %ld\\n", m["y"], *i, l.front().c_str(), o.has_value() + none.has_value(), *a[1], std::get<0>(t)); }}\n')

    def test_forward_list(self):
        self.everywhere(1, "#include <forward_list>\n#include <string>\nint main() { std::forward_list<int> f{1, 2}; std::forward_list<std::string> g{\"a string that is longer than fifteen\"}; auto before = f.before_begin();\n"
                           f'{SITE}; f.insert_after(before, 9); printf("%d %s\\n", f.front(), g.front().c_str()); }}\n')

    def test_library_calls_the_program(self):
        self.everywhere(4, "#include <algorithm>\n#include <vector>\nint main() { std::vector<int> v{4, 1, 3}; int n = 0;\n"
                           f"std::for_each(v.begin(), v.end(), [&n](int x) {{ {SITE}; n = n * 10 + x; }}); std::sort(v.begin(), v.end(), std::less<int>()); {SITE}; printf(\"%d %d\\n\", n, v[0]); }}\n")

    def test_streams_are_flushed(self):
        self.compiled("#include <iostream>\n" f"int main() {{ std::ios::sync_with_stdio(false); std::cout << \"before \"; {SITE}; std::cout << \"after\\n\"; }}\n")
        self.assertEqual(self.saved(1), "before after\n")
        self.assertEqual(self.restarted().stdout, "after\n")


class DriverTest(CPlusPlusTest):
    def test_functions_without_sites_are_plain(self):
        result = self.compile("#include <iostream>\n#include <map>\n#include <string>\nstatic int plain(int n) { std::map<int, std::string> m; m[n] = \"x\"; std::cout << m[n] << std::endl; return (int)m.size(); }\n"
                              f"int main() {{ int n = plain(3); {SITE}; return n - 1; }}\n", options=("-fshadowib-report",))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(set(re.findall(r": (.*) may reach", result.stderr)), {"main"}, result.stderr)

    def test_another_library(self):
        for option in ("-static-libstdc++", "-stdlib=libc++"):
            result = self.compile(f"int main() {{ {SITE}; }}\n", options=(option,))
            self.assertEqual(result.returncode, 2)
            self.assertIn(f"shadowib-c++: {option} gives another C++ library", result.stderr)

    def test_templates_count_as_source(self):
        source = f"template <class T> T f(T x) {{ {SITE}; return x + 1; }} struct S {{ int get() {{ return 1; }} }}; int main() {{ printf(\"%d\\n\", f(3) + S().get()); }}\n"
        self.compiled(source)
        self.saved(1)
        for other in (source.replace("x + 1", "x + 2"), source.replace("return 1", "return 2")):
            self.compiled(other)
            result = self.restarted()
            self.assertEqual((result.returncode, result.stdout), (5, ""), result.stderr)
            self.assertIn("part0.cc had another source", result.stderr)


if __name__ == "__main__":
    unittest.main()
