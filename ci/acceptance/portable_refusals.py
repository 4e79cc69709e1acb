"""What portable images refuse, before the program is left or before it goes on: each by the name of the variable, and by its reason."""
import pathlib
import re

from common import Case, Line, Skip, check, main
from portable_programs import ALL, HERE, Program, at_hand, digest, values

HEADER = "#include <shadowib/portable.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n"
SITE = "shadowib_portable_site();"

# Not saved: what the message says, and the program. Line 5 is the first of its own.
UNSAVED = {
    "union": (r"u of p\.c\.either: bytes of union e, whose meaning is not known",
              "union e { int i; float f; };\nstatic struct { int a; union e either; } u = {1, {7}};\nint main(void) { SITE printf(\"%d\\n\", u.either.i); }"),
    "block without a type": (r"the block allocated at p\.c:6 has no known type",
                             "static void* kept;\nint main(void) { kept = malloc(9);\nmemset(kept, 1, 9); SITE puts(\"on\"); }"),
    "block of no whole number": (r"the block allocated at p\.c:5: 9 bytes are no whole number of int \(4 bytes each\)",
                                 "int main(void) { int* p = malloc(9); p[0] = 1; SITE printf(\"%d\\n\", p[0]); }"),
    "pool of characters": (r"at of p\.c: a pointer to struct s within the block allocated at p\.c:6 as characters",
                           "struct s { int a; long b; }; static struct s* at;\nint main(void) { char* pool = malloc(999);\nat = (struct s*)pool; at->a = 3; SITE printf(\"%d\\n\", at->a); }"),
    "global pool of characters": (r"at of p\.c: a pointer to struct s within pool of p\.c as characters",
                                  "struct s { int a; long b; }; static char pool[999] __attribute__((aligned(16))); static struct s* at;\nint main(void) { at = (struct s*)pool; at->a = 3; SITE printf(\"%d\\n\", at->a); }"),
    "local pool of characters": (r"at of main\(\), line 6: a pointer to long(?: int)? within pool of main\(\), line 5 as characters",
                                 "int main(int c, char** v) { char pool[64] __attribute__((aligned(16)));\nlong* at = (long*)(pool + 8); *at = c; SITE printf(\"%ld %d\\n\", *at, !v); }"),
    "characters at the end of a struct": (r"at of p\.c: a pointer to double within the block allocated at p\.c:6 as struct b",
                                          "struct b { long used; char room[56]; }; static double* at;\nint main(void) { struct b* b = malloc(sizeof *b);\nat = (double*)(b->room + 8); *at = 0.5; SITE printf(\"%g\\n\", *at); }"),
    "pool of the first caller's type": (r"two of main\(\), line 8: a pointer to struct two within the block allocated at p\.c:7 as struct one",
                                        "struct one { double x, y; }; struct two { int n[4]; };\nstatic void* take(int n) { static void* pool; static int used; if (!pool) pool = malloc(1600); used += n; return (char*)pool + used - n; }\nint main(void) { struct one* one = take(16);\nstruct two* two = take(16); one->x = 1; two->n[1] = 2; SITE printf(\"%g %d\\n\", one->x, two->n[1]); }"),
    "byte within a number": (r"at of p\.c: a pointer to a byte within int, within number of p\.c",
                             "static int number = 7; static char* at;\nint main(void) { at = (char*)&number + 1; SITE printf(\"%d\\n\", *at); }"),
    "stream": (r"f of main\(\), line 5: a pointer to memory that is not the program's",
               "int main(void) { FILE* f = fopen(\"/dev/null\", \"w\"); SITE fputs(\"x\", f); puts(\"on\"); fclose(f); }"),
    "memory of libc": (r"home of p\.c: a pointer to memory that is not the program's",
                       "static char* home;\nint main(void) { home = getenv(\"PATH\"); SITE puts(home ? \"on\" : \"\"); }"),
    "thread-local variable": (r"the variable mine of p\.c is thread-local",
                              "static __thread int mine = 4;\nint main(void) { SITE printf(\"%d\\n\", mine); }"),
}

# The same, of C++.
UNSAVED_CPLUSPLUS = {
    "unordered_map": (r"m of main\(\), line \d+: bytes of std::unordered_map<int, int.*>, which is not supported",
                      "#include <unordered_map>\nint main() { std::unordered_map<int, int> m; m[3] = 4;\nSITE printf(\"%d\\n\", m[3]); }"),
    "shared_ptr": (r"p of main\(\), line \d+: bytes of std::shared_ptr<int>, which is not supported",
                   "#include <memory>\nint main() { auto p = std::make_shared<int>(3);\nSITE printf(\"%d\\n\", *p); }"),
    "deque": (r"d of main\(\), line \d+: bytes of std::deque<long.*>, which is not supported",
              "#include <deque>\nint main() { std::deque<long> d{1, 2};\nSITE printf(\"%ld\\n\", d[1]); }"),
    "std::function": (r"f of main\(\), line \d+: bytes of std::function<int \(int\)>, which is not supported",
                      "#include <functional>\nint main() { std::function<int(int)> f = [](int x) { return x + 1; };\nSITE printf(\"%d\\n\", f(3)); }"),
    "variant": (r"v of main\(\), line \d+: bytes of std::variant<int, double>, which is not supported",
                "#include <variant>\nint main() { std::variant<int, double> v = 0.5;\nSITE printf(\"%g\\n\", std::get<1>(v)); }"),
    "vector of bool": (r"v of main\(\), line \d+: bytes of std::vector<bool.*>, which is not supported",
                       "#include <vector>\nint main() { std::vector<bool> v(3, true);\nSITE printf(\"%d\\n\", (int)v[1]); }"),
    "mutex in a class": (r"s of p\.cc\.lock: bytes of std::mutex, which is not supported",
                         "#include <mutex>\nstatic struct { std::mutex lock; int n; } s;\nint main() { s.lock.lock(); s.n = 3;\nSITE s.lock.unlock(); printf(\"%d\\n\", s.n); }"),
    "virtual base": (r"d of main\(\), line \d+: bytes of D, which has a virtual base",
                     "struct B { int b = 1; virtual ~B() {} }; struct D : virtual B { int d = 2; };\nint main() { D d;\nSITE printf(\"%d\\n\", d.b + d.d); }"),
    "base of the library": (r"d of main\(\), line \d+: bytes of D, which has a base that is not supported",
                            "#include <bitset>\nstruct D : std::bitset<70> {}; int main() { D d; d[69] = true;\nSITE printf(\"%d\\n\", (int)d[69]); }"),
    "pointer to a member": (r"f of main\(\), line \d+: bytes of a pointer to a member, whose meaning is not known",
                            "struct S { int n; int get() { return n; } };\nint main() { S s{3}; int (S::*f)() = &S::get;\nSITE printf(\"%d\\n\", (s.*f)()); }"),
    "class in a buffer of characters": (r"a pointer to struct S within room of p\.cc as characters",
                                        "#include <new>\nstruct S { long n; ~S() {} }; alignas(8) static char room[64]; static S* made;\nint main() { made = new (room) S{3};\nSITE printf(\"%ld\\n\", made->n); }"),
    "handler of an exception": (r"an exception is being handled",
                                "int main() { try { throw 3; } catch (int n) {\nSITE printf(\"%d\\n\", n); } }"),
    "exception on its way": (r"an exception is on its way",
                             "struct S { ~S() { SITE } };\nint main() { try { S s; throw 3; } catch (int n) { printf(\"%d\\n\", n); } }"),
    "comparison of stable_sort": (r"bytes of std::_Temporary_buffer<.*, which is not supported",
                                  "#include <algorithm>\n#include <vector>\nint main() { std::vector<int> v{3, 1, 2};\nstd::stable_sort(v.begin(), v.end(), [](int a, int b) { SITE return a < b; }); printf(\"%d\\n\", v[0]); }"),
    "call by the C++ library": (r"called std::_Function_handler<int \(int\), main::\$_0>::_M_invoke\(.*\), and was not compiled by shadowib-cc",
                                "#include <functional>\nint main() { std::function<int(int)> f = [](int x) { SITE return x + 1; };\nprintf(\"%d\\n\", f(3)); }"),
}

# Not restarted: what the message says, from where to where, and the program.
UNFIT = {
    "long of 64 bits": (r"far of p\.c\[1\]: 5000000000 does not fit long(?: int)? of 32 bits", "x86_64", "i686",
                        "static long far[2] = {1, 2};\nint main(void) { if (sizeof far[0] > 4) far[1] = 100000 * (far[1] + 49998);\nSITE printf(\"%ld\\n\", far[1]); }"),
    "negative into unsigned": (r"letter of p\.c: -1 does not fit unsigned int of 32 bits", "x86_64", "aarch64",
                               "#include <stddef.h>\nstatic wchar_t letter;\nint main(void) { letter = (wchar_t)-1; SITE printf(\"%d\\n\", (int)letter); }"),
    "sum of an unknown and a signed number": (r"a value between two steps of an expression.* may have a sign or not", "i686", "x86_64",
                                              "static struct { unsigned long u; } s = {3000000000u};\nstatic int at(int n) { SITE return n; }\n"
                                              "int main(int c, char** v) { volatile long l = c; double r = (s.u + (unsigned long)l) + (unsigned long)at(c); printf(\"%g %d\\n\", r, !v); }"),
    "block of a size_t": (r"count of main\(\), line 5: 4294967296 does not fit unsigned int of 32 bits", "aarch64", "i686",
                          "int main(int c, char** v) { size_t count = c; while (sizeof count > 4 && count < 4294967295) count *= 2; SITE\nprintf(\"%zu %d\\n\", count, !v); }"),
}
# The same, of C++: two functions there, which are one here. Messages name functions as the source does.
UNFIT_CPLUSPLUS = {
    "functions of two widths": (r"the program has no function unsigned long twice<unsigned long>\(unsigned long\) that a pointer leads to", "x86_64", "i686",
                                "template <class T> static T twice(T x) { return 2 * x; } static size_t (*one)(size_t); static unsigned (*two)(unsigned);\n"
                                "int main() { one = twice<size_t>; two = twice<unsigned>;\nSITE printf(\"%d\\n\", (int)one(3) + (int)two(4)); }"),
}
EXACT = "static long double third;\nint main(void) { third = 1; third /= 3; SITE printf(\"%d\\n\", third > 0.3L); }"


def source(case: Case, text: str, suffix: str = ".c") -> pathlib.Path:
    path = case.work / f"p{suffix}"
    path.write_text(HEADER + text.replace("SITE", SITE) + "\n")
    return path


def unsaved(case: Case, message: str, text: str, suffix: str = ".c") -> str:
    program = Program(case, source(case, text, suffix), HERE)
    plain = program.output()
    done = program.run(DIR=str(case.work), AT="1", REPORT="1")
    check((done.returncode, done.stdout) == (0, plain), f"the program does not go on: {done}")
    check(re.search(r"no checkpoint at this site: .*" + message, done.stderr), f"no {message!r} in {done.stderr!r}")
    check("1 refused" in done.stderr and not list(case.work.glob("*.psi*")), f"an image is there: {done.stderr!r}")
    return "named, the program goes on"


def pair(case: Case, text: str, home: str, away: str, suffix: str = ".c") -> tuple[Program, Program]:
    there = {a.name for a in at_hand(case)}
    if not {home, away} <= there:
        raise Skip(f"{home} or {away} is not at hand")
    by_name = {a.name: a for a in ALL}
    path = source(case, text, suffix)
    return Program(case, path, by_name[home]), Program(case, path, by_name[away])


def unfit(case: Case, message: str, home: str, away: str, text: str, suffix: str = ".c") -> str:
    here, there = pair(case, text, home, away, suffix)
    image, output = here.save(case.work / "home", AT="1")
    check(here.output(FROM=str(image)) == output, "it does not even restart at home")
    refused(there, image, message)
    return "named, nothing is begun"


def refused(program: Program, image: pathlib.Path, message: str):
    done = program.run(FROM=str(image))
    check(done.returncode == 5 and done.stdout == "", f"exit code {done.returncode}, not 5: {done}")
    check(re.search(r"cannot be restarted: .*" + message, done.stderr), f"no {message!r} in {done.stderr!r}")


def rounded(case: Case) -> str:
    here, there = pair(case, EXACT, "s390x", "x86_64")
    image, output = here.save(case.work / "home", AT="1")
    done = there.run(FROM=str(image))
    check((done.returncode, done.stdout) == (0, output) and "1 floats were rounded" in done.stderr, f"not counted: {done}")
    done = there.run(FROM=str(image), EXACT="1")
    check(done.returncode == 5 and "1 floats would be rounded" in done.stderr, f"not refused: {done}")
    return "counted, and refused if it must be exact"


def other_source(case: Case) -> str:
    text = "static int sum;\nstatic void step(int n) { sum += n; SITE }\nint main(void) { for (int i = 0; i < 9; i++) step(i); printf(\"%d\\n\", sum); }"
    image, _ = Program(case, source(case, text), HERE).save(case.work / "home", AT="3")
    refused(Program(case, source(case, text.replace("sum += n", "sum -= n")), HERE), image, r"p\.c had another source: step\(\) differs")
    # Layout and comments are not the program.
    done = Program(case, source(case, text.replace("sum += n;", "sum  +=  n; /* more */")), HERE).output(FROM=str(image))
    check(done == "36\n", f"a comment makes another program: {done}")
    return "named; comments do not count"


def damaged(case: Case) -> str:
    text = "static int many[5000];\nint main(void) { many[7] = 3; SITE printf(\"%d\\n\", many[7]); }"
    program = Program(case, source(case, text), HERE)
    image, _ = program.save(case.work / "home", AT="1")
    whole, broken = image.read_bytes(), case.work / "broken.psi"
    number, random = digest(case, image), case.random()
    kinds = [b"", whole[:-4096], whole[:-1], whole + whole[-4096:], whole[4096:], whole[:4096] + whole[8192:12288] + whole[4096:8192] + whole[12288:]]
    for _ in range(20 if case.line.quick else 300):
        at = random.randrange(len(whole))
        kinds.append(whole[:at] + bytes([whole[at] ^ (1 << random.randrange(8))]) + whole[at + 1:])
    for content in kinds:
        broken.write_bytes(content)
        done = values(case, broken)
        check(done.returncode == 5 and done.stderr, f"shadowib-values takes a damaged image: {done}")
    broken.write_bytes(kinds[-1])
    refused(program, broken, "")
    refused(program, case.work / "nowhere.psi", "it cannot be opened: No such file")
    check(digest(case, image) == number, "the image itself has changed")
    return f"{len(kinds)} damages, all seen"


def run() -> int:
    line = Line("portable_refusals", __doc__)
    for name, (message, text) in UNSAVED.items():
        line.case(f"save {name}", lambda case, message=message, text=text: unsaved(case, message, text))
    for name, (message, text) in UNSAVED_CPLUSPLUS.items():
        line.case(f"save C++ {name}", lambda case, message=message, text=text: unsaved(case, message, text, ".cc"))
    for name, (message, home, away, text) in UNFIT.items():
        line.case(f"restart {name}", lambda case, m=message, h=home, a=away, t=text: unfit(case, m, h, a, t))
    for name, (message, home, away, text) in UNFIT_CPLUSPLUS.items():
        line.case(f"restart C++ {name}", lambda case, m=message, h=home, a=away, t=text: unfit(case, m, h, a, t, ".cc"))
    line.case("restart rounded", rounded)
    line.case("restart other source", other_source)
    line.case("restart damaged", damaged)
    return line.finish()


if __name__ == "__main__":
    main(run)
