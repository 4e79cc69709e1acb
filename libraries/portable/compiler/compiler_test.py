"""What shadowib-cc compiles, what it refuses by file and line, and what a site refuses. Usage: compiler_test.py SHADOWIB_CC"""
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

CC = os.path.abspath(sys.argv.pop(1))
HEADER = "#include <stdio.h>\n#include <stdlib.h>\n#include <shadowib/portable.h>\n"
SITE = "shadowib_portable_site()"


class CompilerTest(unittest.TestCase):
    SUFFIX, OPTIONS = ".c", ()

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.work = pathlib.Path(directory.name)

    def compile(self, *sources: str, options: tuple[str, ...] = ("-O2",)) -> subprocess.CompletedProcess:
        names = []
        for number, text in enumerate(sources):
            (self.work / f"part{number}{self.SUFFIX}").write_text(HEADER + text)
            names.append(f"part{number}{self.SUFFIX}")
        return self.link(*names, options=options)

    def link(self, *names: str, options: tuple[str, ...] = ("-O2",)) -> subprocess.CompletedProcess:
        return subprocess.run([CC, *self.OPTIONS, *options, "-o", "program", *names], cwd=self.work, capture_output=True, text=True, check=False)

    def run_program(self, leaves: int, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run(["./program"], cwd=self.work, capture_output=True, text=True, check=False, timeout=120,
                              env={**os.environ, "SHADOWIB_PORTABLE_EVERYWHERE": str(leaves), "SHADOWIB_PORTABLE_REPORT": "1", **environment})

    def compiled(self, *sources: str, **given):
        result = self.compile(*sources, **given)
        self.assertEqual(result.returncode, 0, result.stderr)

    def same(self, leaves: int, *sources: str):
        """Prints the same without and with leaves, of which there are as many as wanted, at each level."""
        for level in ("-O0", "-O2", "-O3"):
            self.compiled(*sources, options=(level,))
            plain, left = self.run_program(0), self.run_program(1000)
            self.assertEqual(plain.returncode, 0, plain.stderr)
            self.assertEqual((left.returncode, left.stdout), (0, plain.stdout), left.stderr)
            self.assertIn(f" {leaves} leaves, 0 refused", left.stderr)

    def refused(self, text: str, line: int, source: str):
        result = self.compile(source)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn(text, result.stderr)
        self.assertIn(f"part0{self.SUFFIX}:{line}:", result.stderr)

    def saved(self, at: int, **environment: str) -> str:
        result = self.run_program(0, SHADOWIB_PORTABLE_AT=str(at), SHADOWIB_PORTABLE_DIR=str(self.work), **environment)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue((self.work / "member-0.psi").exists(), result.stderr)
        return result.stdout

    def restarted(self) -> subprocess.CompletedProcess:
        return self.run_program(0, SHADOWIB_PORTABLE_FROM=str(self.work / "member-0.psi"))

    def comes_back(self, at: int) -> str:
        """What a restart tells on stderr. It prints what the first run does."""
        output, result = self.saved(at), self.restarted()
        self.assertEqual((result.returncode, result.stdout), (0, output), result.stderr)
        return result.stderr


class SaverTest(CompilerTest):
    """The program goes on while a copy of it writes the image. `saver` finds that copy while it runs, or ends the program."""
    PROGRAM = ("#include <errno.h>\n#include <signal.h>\n#include <sys/wait.h>\n#include <unistd.h>\n"
               "static SHADOWIB_NO_SITE int saver(void) { int pid = 0; FILE* f = fopen(\"/proc/thread-self/children\", \"r\"); if (!f || fscanf(f, \"%d\", &pid) != 1) exit(9); fclose(f); return pid; }\n"
               f"int main(void) {{ enum {{ kMany = 16 << 20 }}; int* many = malloc(kMany * sizeof *many); for (int i = 0; i < kMany; i++) many[i] = i & 7; {SITE};\n")
    SUM = 'long sum = 0; for (int i = 0; i < kMany; i++) sum += many[i]; printf("%ld\\n", sum); }\n'

    def test_the_program_goes_on_meanwhile(self):
        """It changes its memory while the saver is stopped. The image has the values of the site."""
        self.compiled(self.PROGRAM + "if (!shadowib_portable_restarted()) { int pid = saver(); kill(pid, SIGSTOP); for (int i = 0; i < kMany; i++) many[i] = -1; kill(pid, SIGCONT); }\n" + self.SUM)
        self.assertEqual(self.saved(1), f"{-(16 << 20)}\n")
        self.assertEqual(self.restarted().stdout, f"{(16 << 20) * 7 // 2}\n")

    def test_the_program_does_not_see_it(self):
        self.compiled(self.PROGRAM.replace("int main(void) {", "static volatile int ended; static SHADOWIB_NO_SITE void count(int n) { ended += n; }\nint main(void) { signal(SIGCHLD, count);") +
                      'saver(); printf("%d %d ", (int)wait(NULL), errno == ECHILD); printf("%lu %d ", shadowib_portable_refusals(), ended);' + self.SUM)
        self.assertEqual(self.saved(1), f"-1 1 0 0 {(16 << 20) * 7 // 2}\n")

    def test_a_saver_that_is_killed(self):
        """It is told, and the image before stays."""
        self.compiled(self.PROGRAM + f"for (int i = 0; i < kMany; i++) many[i]++; {SITE}; if (!shadowib_portable_restarted()) kill(saver(), SIGKILL);\n" + self.SUM)
        result = self.run_program(0, SHADOWIB_PORTABLE_AT="1,2", SHADOWIB_PORTABLE_DIR=str(self.work))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("no checkpoint at this site: its saver was ended by signal 9. The program goes on.", result.stderr)
        self.assertIn("2 leaves, 1 refused", result.stderr)
        again = self.restarted()
        self.assertEqual((again.returncode, again.stdout), (0, result.stdout), again.stderr)

    def test_a_saver_ends_with_its_program(self):
        self.compiled(self.PROGRAM + 'while (access("member-0.psi.new", F_OK) != 0) usleep(100); printf("%d\\n", saver()); fflush(stdout); kill(saver(), SIGSTOP); kill(getpid(), SIGKILL); }\n')
        result = self.run_program(0, SHADOWIB_PORTABLE_AT="1", SHADOWIB_PORTABLE_DIR=str(self.work))
        self.assertEqual(result.returncode, -9, result.stderr)
        # Its pipe is closed a little before it is dead.
        deadline = time.monotonic() + 60
        while subprocess.run(["ps", "-o", "stat=", "-p", result.stdout], capture_output=True, text=True, check=False).stdout.strip()[:1] not in ("", "Z", "X"):
            self.assertLess(time.monotonic(), deadline, "it is alive")
        self.assertFalse((self.work / "member-0.psi").exists())


class LeaveTest(CompilerTest):
    def test_function_without_a_site(self):
        """The mark may stand before the function itself. Its frame is not left."""
        source = f"static SHADOWIB_NO_SITE int plain(int n) {{ return 3 * n; }}\nint main(int argc, char** argv) {{ {SITE}; printf(\"%d %d\\n\", plain(argc), !argv); }}\n"
        self.same(1, source)
        self.assertNotIn("plain", self.compile(source, options=("-fshadowib-report",)).stderr)

    def test_site_within_an_expression(self):
        self.same(6, f"static int f(int x) {{ {SITE}; return x * 2; }}\n"
                     "int main(int argc, char** argv) { int a[] = {1, 2, 3}; int n = argc + 1;\n"
                     "for (int i = 0; i < 3; i++) a[i] += (n > 1 && f(i) < 9) ? a[2 - i] * f(n) + argc : -1;\n"
                     'printf("%d %d %d %s\\n", a[0], a[1], a[2], argv[0]); }\n')

    def test_pointers_to_locals_of_callers(self):
        self.same(5, f"static int deep(int n, int* up) {{ int own = n; int* mine = &own; if (n == 0) {{ {SITE}; return 1; }}\n"
                     "int below = deep(n - 1, mine); *up += own + below; return own; }\n"
                     'int main(void) { int sum = 0; for (int i = 0; i < 5; i++) deep(i, &sum); printf("%d\\n", sum); }\n')

    def test_structs_by_value(self):
        self.same(3, "struct Big { double x[6]; int n; }; struct Small { float a, b; };\n"
                     f"static struct Big big(struct Big b, struct Small s) {{ {SITE}; b.x[2] += s.a; b.n++; return b; }}\n"
                     "int main(void) { struct Big b = {{1, 2, 3, 4, 5, 6}, 7}; struct Small s = {0.5f, 2};\n"
                     'for (int i = 0; i < 3; i++) b = big(b, s); printf("%g %d\\n", b.x[2], b.n); }\n')

    def test_struct_made_of_results(self):
        """A part that one call gave lives while the next one is at a site."""
        self.same(9, "struct Pair { long a; char* b; }; struct Two { struct Pair first, second; int third; }; struct Bit { int x; };\n"
                     f"static struct Pair pair(long a) {{ struct Pair p = {{a, \"abc\"}}; {SITE}; p.b += a; return p; }}\n"
                     f"static struct Bit bit(int x) {{ struct Bit b = {{x}}; {SITE}; return b; }}\n"
                     "static long use(struct Two t, struct Bit u) { return t.first.a * 100 + t.second.a * 10 + t.third + *t.first.b + *t.second.b + u.x; }\n"
                     "int main(void) { long sum = 0; for (int i = 0; i < 3; i++)\n"
                     'sum += use((struct Two){pair(1), pair(2), i}, bit(i)); printf("%ld\\n", sum); }\n')

    def test_pointer_past_the_end_of_a_local(self):
        """It leads to no other variable, so it is the end again after a restart."""
        self.compiled("int main(int argc, char** argv) { int a[4] = {0}, b[4] = {0}, *end[] = {a + 4, b + 4}, *all[] = {a, b};\n"
                      f"{SITE}; for (int i = 0; i < 2; i++) for (int* at = all[i]; at != end[i]; at++) *at += argc;\n"
                      'printf("%d %d %d\\n", a[0] + a[3], b[0] + b[3], argv == 0); }\n')
        image = self.work / "member-0.psi"
        saved = self.run_program(0, SHADOWIB_PORTABLE_AT="1", SHADOWIB_PORTABLE_DIR=str(self.work))
        self.assertEqual((saved.returncode, saved.stdout), (0, "2 2 0\n"), saved.stderr)
        restarted = self.run_program(0, SHADOWIB_PORTABLE_FROM=str(image))
        self.assertEqual((restarted.returncode, restarted.stdout), (0, "2 2 0\n"), restarted.stderr)

    def test_call_by_pointer_and_another_file(self):
        self.same(4, "extern int other(int);\nint main(void) { int (*f)(int) = other; int r = 0;\n"
                     'for (int i = 0; i < 4; i++) r = r * 3 + f(i); printf("%d\\n", r); }\n',
                  f"int other(int n) {{ int before = n + 7; {SITE}; return before; }}\n")

    def test_two_files_of_one_static_function(self):
        self.same(2, f"int b(int); static int f(int n) {{ {SITE}; return n + 1; }} int a(int n) {{ return f(n); }}\n"
                     'int main(void) { printf("%d\\n", a(1) + b(2)); }\n',
                  f"static int f(int n) {{ {SITE}; return n * 50; }} int b(int n) {{ return f(n); }}\n")

    def test_functions_that_are_called_pure(self):
        """Whatever their attributes promise, their calls are left and entered."""
        for promise in ("pure", "const"):
            self.same(3, f"__attribute__(({promise})) int other(int);\nint main(void) {{ int r = 0;\n"
                         'for (int i = 0; i < 3; i++) r = r * 3 + other(i); printf("%d\\n", r); }\n',
                      f"__attribute__(({promise})) int other(int n) {{ {SITE}; return n + 7; }}\n")
            self.same(2, f"static __attribute__(({promise}, noinline)) int f(int n) {{ {SITE}; return n + 7; }}\n"
                         'int main(int argc, char** argv) { printf("%d\\n", f(argc) * 3 + f(argc) + !argv); }\n')

    def test_function_that_never_returns(self):
        self.same(2, f"static _Noreturn void loop(int* n) {{ for (;;) {{ {SITE}; if (++*n == 2) {{ printf(\"%d\\n\", *n); exit(0); }} }} }}\n"
                     "int main(void) { int n = 0; loop(&n); }\n")

    def test_aligned_and_vector_variables(self):
        self.same(1, "typedef float V __attribute__((vector_size(32)));\n"
                     f"int main(int argc, char** argv) {{ V v = {{1, 2, 3, 4, 5, 6, 7, 8}}; v *= (float)argc; {SITE};\n"
                     'printf("%g\\n", v[0] + v[7]); return argv == 0; }\n')


class HeapTest(CompilerTest):
    """Blocks of the program in the hands of libraries, which know free@GLIBC_2.2.5 only."""
    LIBRARY = ("#include <stdlib.h>\n#include <string.h>\nvoid take(char* block) { free(block); }\n"
               "char* longer(char* block) { return strcat(realloc(block, 100000), \"!\"); }\n")

    def test_libraries_free_and_resize_blocks(self):
        (self.work / "library.c").write_text(self.LIBRARY)
        subprocess.run(["clang-14", "-shared", "-fPIC", "-o", "libtake.so", "library.c"], cwd=self.work, check=True)
        self.compiled("#include <malloc.h>\n#include <string.h>\nSHADOWIB_NO_SITE void take(char*); SHADOWIB_NO_SITE char* longer(char*);\n"
                      "int main(void) { size_t room = 4; char* line = malloc(room); FILE* file = fopen(\"/proc/self/maps\", \"r\");\n"
                      "if (malloc_usable_size(line) < 4 || getline(&line, &room, file) < 9 || room < 10) return 1;\n"
                      "fclose(file); take(line); char* text = strdup(\"text\"); text = longer(text);\n"
                      "int* many = malloc(4 * sizeof *many); for (int i = 0; i < 4; i++) many[i] = i + 1;\n"
                      f"many = reallocarray(many, 50000, sizeof *many); {SITE};\n"
                      'printf("%s %d %d\\n", text, many[3], many[49999]); free(many); free(text); }\n',
                      options=("-O2", "-D_GNU_SOURCE", "-L.", "-ltake", "-Wl,-rpath,$ORIGIN"))
        result = self.run_program(0)
        self.assertEqual((result.returncode, result.stdout), (0, "text! 4 0\n"), result.stderr)
        bound = self.run_program(0, LD_DEBUG="bindings").stderr
        for name in ("free", "realloc"):
            self.assertRegex(bound, rf"binding file \S*libtake\.so \S+ to \S*libshadowib-portable\.so \S+ normal symbol `{name}'")
            self.assertRegex(bound, rf"binding file \S*libc\.so\.6 \S+ to \S*libshadowib-portable\.so \S+ normal symbol `{name}'")


class RefusalTest(CompilerTest):
    def test_array_of_variable_length(self):
        self.refused("an array of variable length", 5, f"int main(int argc, char** argv) {{\nint a[argc]; {SITE}; return a[0] + !argv; }}\n")

    def test_setjmp(self):
        self.refused("setjmp", 5, f"#include <setjmp.h>\njmp_buf b; int main(void) {{ {SITE}; return setjmp(b); }}\n")

    def test_va_start(self):
        self.refused("va_start", 6, "#include <stdarg.h>\nint f(int n, ...) { va_list l;\n" f"va_start(l, n); {SITE}; va_end(l); return n; }}\n"
                                    "int main(void) { return f(0); }\n")

    def test_options_that_hide_types(self):
        for option in ("-g0", "-g1", "-gline-tables-only", "-ffast-math"):
            result = self.compile(f"int main(void) {{ {SITE}; }}\n", options=(option,))
            self.assertEqual(result.returncode, 2)
            self.assertIn(option, result.stderr)

    def test_target_without_a_library(self):
        result = self.compile("int main(void) { return 0; }\n", options=("--target=sparc64-linux-gnu",))
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("has no libshadowib-portable for sparc64-linux-gnu", result.stderr)

    def test_options_that_change_numbers(self):
        for option in ("-ffast-math", "-Ofast", "-ffp-contract=fast", "-funsafe-math-optimizations", "-fassociative-math", "-freciprocal-math",
                       "-ffinite-math-only", "-fno-signed-zeros", "-fno-honor-nans", "-fno-honor-infinities", "-fapprox-func",
                       "-ffp-model=fast", "-mrecip", "-mrecip=all", "-fdenormal-fp-math=preserve-sign", "-fdenormal-fp-math-f32=positive-zero",
                       "-fveclib=libmvec", "-mfpmath=387", "-ffp-eval-method=extended"):
            result = self.compile(f"int main(void) {{ {SITE}; }}\n", options=(option,))
            self.assertEqual(result.returncode, 2, option)
            self.assertIn(f"{option} gives other last bits", result.stderr)
        for option in ("-ffp-contract=off", "-fno-fast-math", "-fno-math-errno", "-ffp-model=strict", "-ffp-model=precise", "-mfpmath=sse"):
            self.compiled(f"int main(void) {{ {SITE}; }}\n", options=(option,))

    def test_foreign_frame(self):
        self.compiled(f"static int c(const void* a, const void* b) {{ {SITE}; return *(const int*)a - *(const int*)b; }}\n"
                      'int main(void) { int a[] = {2, 1}; qsort(a, 2, sizeof *a, c); printf("%d\\n", a[0]); }\n')
        result = self.run_program(1000)
        self.assertEqual((result.returncode, result.stdout), (0, "1\n"))
        self.assertIn("called c(), and was not compiled by shadowib-cc", result.stderr)
        self.assertRegex(result.stderr, r"site: (a function of \S+[^()]|\w+\(\)) called c")
        self.assertIn(" 0 leaves, 1 refused", result.stderr)

    def test_second_thread(self):
        self.compiled("#include <pthread.h>\n#include <unistd.h>\nstatic int ends[2];\n"
                      "static void* wait(void* p) { char c; return read(ends[0], &c, 1) < 0 ? p : 0; }\n"
                      f"int main(void) {{ pthread_t t; if (pipe(ends)) return 1; pthread_create(&t, 0, wait, 0); {SITE};\n"
                      f"close(ends[1]); pthread_join(t, 0); return 0; }}\n")
        result = self.run_program(1000)
        self.assertEqual(result.returncode, 0)
        self.assertIn("the process has 2 threads", result.stderr)

    def test_forked_child(self):
        self.compiled("#include <sys/wait.h>\n#include <unistd.h>\n"
                      f"int main(void) {{ int s; if (fork() == 0) {{ {SITE}; _exit(0); }} wait(&s); return s; }}\n")
        result = self.run_program(1000)
        self.assertEqual(result.returncode, 0)
        self.assertIn("a child that the program forked", result.stderr)

    def test_numbers_of_the_environment(self):
        self.compiled(f"int main(void) {{ {SITE}; }}\n")
        for value in ("1x", "-1", "", "99999999999999999999", " 1"):
            result = self.run_program(0, SHADOWIB_PORTABLE_EVERYWHERE=value)
            self.assertEqual(result.returncode, 2, value)
            self.assertIn("SHADOWIB_PORTABLE_EVERYWHERE", result.stderr)


class SiteTest(CompilerTest):
    """What a visit of a site leaves alone, and when one is due."""

    def test_interval_begins_anew_after_each_checkpoint(self):
        self.compiled("#include <time.h>\nstatic long now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec; }\n"
                      f"int main(void) {{ long begin = now(); while (shadowib_portable_leaves() == 0) {SITE};\n"
                      f"for (int i = 0; i < 1000; i++) {SITE};\n"
                      'printf("%lu %ld\\n", shadowib_portable_leaves(), now() - begin); }\n')
        result = self.run_program(0, SHADOWIB_PORTABLE_INTERVAL="1")
        leaves, seconds = map(int, result.stdout.split())
        self.assertLessEqual(leaves, seconds + 1)

    def test_threads_that_cannot_be_counted(self):
        self.compiled("#include <sys/resource.h>\n"
                      f"int main(void) {{ struct rlimit none = {{0, 0}}; if (setrlimit(RLIMIT_NOFILE, &none)) return 1; {SITE}; puts(\"on\"); }}\n")
        result = self.run_program(1000)
        self.assertEqual((result.returncode, result.stdout), (0, "on\n"))
        self.assertIn("the threads of this process cannot be counted: Too many open files", result.stderr)
        self.assertIn(" 0 leaves, 1 refused", result.stderr)

    def test_site_near_the_end_of_the_stack(self):
        self.compiled("#include <sys/resource.h>\n"
                      "static void little_room(void) { char* here = __builtin_frame_address(0); char line[512]; unsigned long from, to = 0;\n"
                      'FILE* maps = fopen("/proc/self/maps", "r");\n'
                      'while (fgets(line, sizeof line, maps)) if (strstr(line, "[stack]")) sscanf(line, "%lx-%lx", &from, &to);\n'
                      "fclose(maps); struct rlimit limit; getrlimit(RLIMIT_STACK, &limit); limit.rlim_cur = to - (unsigned long)here + 40960;\n"
                      "if (setrlimit(RLIMIT_STACK, &limit)) exit(9); }\n"
                      "static int deep(int n) { volatile char room[4096]; room[n] = 1; if (n) return deep(n - 1) + room[n];\n"
                      f"little_room(); {SITE}; return room[n]; }}\n"
                      'int main(void) { printf("%d\\n", deep(100)); }\n', options=("-O1", "-include", "string.h"))
        for environment in ({"SHADOWIB_PORTABLE_EVERYWHERE": "9"}, {"SHADOWIB_PORTABLE_AT": "1"}):
            result = self.run_program(0, **environment)
            self.assertEqual((result.returncode, result.stdout), (0, "101\n"), result.stderr)
            self.assertIn("1 leaves", result.stderr)

    # The runtime takes memory between leaving and entering, so a malloc of the program's own runs there.
    MALLOC = ("#include <errno.h>\n#include <signal.h>\nextern volatile unsigned shadowib_portable_mode;\nstatic unsigned long between, wrong;\n"
              "SHADOWIB_NO_SITE extern void* __libc_malloc(size_t);\n"
              "void* malloc(size_t n) { if (shadowib_portable_mode) { between++; errno = ENOMEM; raise(SIGUSR1); } return __libc_malloc(n); }\n")

    def test_signal_between_leave_and_enter_waits(self):
        self.compiled(self.MALLOC + "static volatile int handled;\n"
                      "static void handle(int n) { handled += n == SIGUSR1; wrong += shadowib_portable_mode != 0; }\n"
                      f"static int deep(int n) {{ if (n == 0) {SITE}; return n ? 1 + deep(n - 1) : 0; }}\n"
                      "int main(void) { signal(SIGUSR1, handle); int sum = 0; for (int i = 0; i < 20; i++) sum += deep(i);\n"
                      'printf("%d %d %lu %d\\n", sum, between > 200, wrong, handled); }\n')
        result = self.run_program(1000)
        # Pending signals of one number are one: each of the 20 leaves has one.
        self.assertEqual((result.returncode, result.stdout), (0, "190 1 0 20\n"), result.stderr)

    def test_errno_stays(self):
        self.compiled(self.MALLOC + "int main(void) { signal(SIGUSR1, SIG_IGN); errno = 77; " + SITE + ";\n"
                      'printf("%d %d %lu\\n", errno, between > 0, wrong); }\n')
        result = self.run_program(1000)
        self.assertEqual((result.returncode, result.stdout), (0, "77 1 0\n"), result.stderr)

    def test_errno_stays_after_a_refusal(self):
        self.compiled("#include <errno.h>\n#include <sys/resource.h>\nint main(void) { struct rlimit none = {0, 0};\n"
                      f'if (setrlimit(RLIMIT_NOFILE, &none)) return 1; errno = 77; {SITE}; printf("%d\\n", errno); }}\n')
        result = self.run_program(1000)
        self.assertEqual((result.returncode, result.stdout), (0, "77\n"), result.stderr)
        self.assertIn("1 refused", result.stderr)


class RestartTest(CompilerTest):
    """An image of one program in the next process, perhaps of another one."""

    def test_header_of_two_files(self):
        """Each file has its own variable, function and allocation of one name and line."""
        (self.work / "both.h").write_text("static int count; static int* last;\n"
                                          "static int step(int n) { int own = n + count++; int* block = malloc((count + 1) * sizeof *block);\n"
                                          f"block[count] = own; {SITE}; own += block[count] + (last ? *last : 0); last = block + count; return own * 10 + count; }}\n")
        self.compiled('#include "both.h"\nint b(int); int a(int n) { return step(n); }\n'
                      'int main(void) { int x = a(1), y = a(2), z = b(5); printf("%d %d %d %d %d\\n", x, y, z, a(3), b(6)); }\n',
                      '#include "both.h"\nint b(int n) { return step(n) * 3; }\n')
        for at in range(1, 6):
            self.comes_back(at)

    def test_two_allocations_of_one_macro(self):
        self.compiled("#define BOTH(p, q) p = malloc(8 * sizeof *p); q = malloc(4 * sizeof *q)\nstruct s { char* text; short n; };\n"
                      "int main(void) { double* one; struct s* two; BOTH(one, two); for (int i = 0; i < 8; i++) one[i] = i / 2.0;\n"
                      f'two[3].text = "abc"; two[3].n = 7; {SITE}; printf("%g %s %d\\n", one[7], two[3].text, two[3].n); }}\n')
        self.comes_back(1)

    def test_two_files_of_one_name(self):
        for directory, text in (("x", f"int main(void) {{ {SITE}; puts(\"on\"); }}\n"), ("y", "int other;\n")):
            (self.work / directory).mkdir()
            (self.work / directory / "util.c").write_text(HEADER + text)
            subprocess.run([CC, "-c", "util.c"], cwd=self.work / directory, check=True)
        subprocess.run([CC, "-o", "program", "x/util.o", "y/util.o"], cwd=self.work, check=True)
        result = self.run_program(0, SHADOWIB_PORTABLE_AT="1", SHADOWIB_PORTABLE_DIR=str(self.work))
        self.assertEqual((result.returncode, result.stdout), (0, "on\n"), result.stderr)
        self.assertIn("two files of the program are named util.c", result.stderr)

    def test_another_call_of_the_function(self):
        """Sources are hashed before macros of headers: the place of a call is compared, too."""
        for first in (0, 1):
            (self.work / f"first{first}.h").write_text(f"#define FIRST {first}\n")
        source = (f"int main(void) {{ if (FIRST) {SITE};\nputs(\"one\");\nif (!FIRST) {SITE};\nputs(\"two\"); }}\n")
        self.compiled(source, options=("-O0", "-include", "first1.h"))
        self.saved(1)
        self.compiled(source, options=("-O2", "-include", "first0.h"))
        result = self.restarted()
        self.assertEqual((result.returncode, result.stdout), (5, ""), result.stderr)
        self.assertIn("the image's call of shadowib_portable_site() at line 4 of main() is another one in the program", result.stderr)

    def test_two_calls_swapped_by_the_command_line(self):
        """Their places, names and lines are equal: the values of -D count."""
        source = f'static int f(int n) {{ {SITE}; return n; }}\n#define BOTH ONE - TWO\nint main(void) {{ printf("%d\\n", BOTH); }}\n'
        right, swapped = ("-DONE=f(5)", "-DTWO=f(2)"), ("-DONE=f(2)", "-DTWO=f(5)")
        self.compiled(source, options=("-O0", *right))
        output = self.saved(2)
        self.compiled(source, options=("-O2", *swapped))
        result = self.restarted()
        self.assertEqual((result.returncode, result.stdout), (5, ""), result.stderr)
        self.assertIn("had another source: main() differs", result.stderr)
        self.compiled(source, options=("-O2", "-DUNUSED=3", *right))
        self.assertEqual(self.restarted().stdout, output)

    def test_levels_of_optimisation(self):
        source = (f"static int deep(int n, int* up) {{ int own = n * 3; if (n == 0) {{ {SITE}; return *up; }} return deep(n - 1, &own) + own; }}\n"
                  'int main(int argc, char** argv) { int sum = argc; for (int i = 1; i < 4; i++) sum += deep(i, &sum); printf("%d %s\\n", sum, argv[0]); }\n')
        for home, away in (("-O0", "-O3"), ("-O2", "-O0"), ("-O3", "-O1")):
            self.compiled(source, options=(home,))
            output = self.saved(2)
            self.compiled(source, options=(away,))
            result = self.restarted()
            self.assertEqual((result.returncode, result.stdout), (0, output), result.stderr)

    def test_numbers_in_pointers(self):
        self.compiled("static void* numbers[] = {(void*)1, (void*)5000, (void*)65535, (void*)-1, (void*)-4096};\nstatic char* gone = (char*)0x12345678;\n"
                      f"int main(void) {{ {SITE}; for (int i = 0; i < 5; i++) printf(\"%ld \", (long)numbers[i]); puts(gone ? \"\" : \"0\"); }}\n")
        self.assertIn("1 pointers lead nowhere, first gone of part0.c", self.comes_back(1))

    def test_alignment_of_blocks(self):
        self.compiled("int main(void) { double *some = aligned_alloc(64, 64), *more = aligned_alloc(8192, 16384);\n"
                      f'{SITE}; printf("%d %d\\n", (int)((unsigned long)some % 64), (int)((unsigned long)more % 8192)); }}\n')
        self.comes_back(1)

    def test_function_of_another_file(self):
        self.compiled("extern int other(int);\nstatic int (*f)(int) = other;\n"
                      f'int main(void) {{ {SITE}; printf("%d\\n", f(3)); }}\n', "int other(int n) { return n + 7; }\n")
        self.comes_back(1)

    def test_ends_of_local_structs(self):
        self.compiled("struct s { int x, y; };\nint main(int argc, char** argv) { struct s a = {0}, b = {0}; int *end[] = {&a.y + 1, &b.y + 1}, *all[] = {&a.x, &b.x};\n"
                      f"{SITE}; for (int i = 0; i < 2; i++) for (int* at = all[i]; at != end[i]; at++) *at += argc;\n"
                      'printf("%d %d %d\\n", a.x + a.y, b.x + b.y, argv == 0); }\n')
        self.comes_back(1)

    def test_pointer_that_no_library_has(self):
        """It is seen late, when the stack is entered again: the process still ends as the manual says."""
        (self.work / "library.c").write_text("int of_library(int n) { return n + 1; }\n")
        subprocess.run(["clang-14", "-shared", "-fPIC", "-o", "library.so", "library.c"], cwd=self.work, check=True)
        self.compiled("#include <dlfcn.h>\nstatic int (*f)(int);\nint main(void) { f = (int (*)(int))dlsym(RTLD_DEFAULT, \"of_library\");\n"
                      f"{SITE}; printf(\"%d\\n\", f(3)); }}\n", options=("-O2", "-D_GNU_SOURCE"))
        self.assertEqual(self.saved(1, LD_PRELOAD=str(self.work / "library.so")), "4\n")
        result = self.restarted()
        self.assertEqual((result.returncode, result.stdout), (5, ""), result.stderr)
        self.assertIn("member-0.psi cannot be restarted: no library has of_library", result.stderr)


class DriverTest(CompilerTest):
    def test_debug_information_goes_unless_asked_for(self):
        for option, there in (("-O2", False), ("-g", True)):
            self.compiled(f"int main(void) {{ {SITE}; }}\n", options=(option,))
            sections = subprocess.run(["readelf", "-SW", "program"], cwd=self.work, capture_output=True, text=True, check=True).stdout
            self.assertEqual(".debug_info" in sections, there)

    def test_callers_of_callers_are_found(self):
        """Whatever their order in the file, also in a circle; and no function besides."""
        chain = "".join(f"int f{i}(int x) {{ return x ? f{i + 1}(x - 1) : 0; }}\n" for i in range(50))
        source = ("".join(f"int f{i}(int);\n" for i in range(51)) + chain +
                  f"int f50(int x) {{ {SITE}; return f3(x); }}\nint beside(int x) {{ return x ? beside(x - 1) : 0; }}\n"
                  "int main(void) { return f0(1) + beside(1); }\n")
        result = self.compile(source, options=("-fshadowib-report",))
        found = [line.split(": ")[1].split()[0] for line in result.stderr.splitlines() if "may reach a site" in line]
        self.assertEqual(sorted(found), sorted(["main", "f50"] + [f"f{i}" for i in range(51)]), result.stderr)

    def test_report(self):
        result = self.compile(f"int main(int n, char** a) {{ int x = n + 1; {SITE}; return x == 9 && a; }}\n", options=("-fshadowib-report",))
        self.assertIn("part0.c:4: main may reach a site", result.stderr)


if __name__ == "__main__":
    unittest.main()
