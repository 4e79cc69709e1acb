"""Wrong uses: all processes end, with one message that names process, call and reason, and no output twice."""
import re
import subprocess

from bsp_job import HERE, PATIENCE_S, Bench, main, need

ABORTED = 124
LAST = "process 2: "

# case: (exit code, pattern of the one message)
CASES = {
    "put_before_begin": (ABORTED, r"process \d: bsp_put\(\) was called before bsp_begin\(\)"),
    "sync_before_begin": (ABORTED, r"process \d: bsp_sync\(\) was called before bsp_begin\(\)"),
    "last_ends_before_begin": (ABORTED, r"process [01]: process 2 ended before bsp_begin\(\)"),
    "last_breaks_off": (ABORTED, r"process [01]: process 2 ended before bsp_begin\(\)"),
    "first_ends_before_begin": (ABORTED, r"process [12]: process 0 ended before bsp_begin\(\)"),
    "all_end_before_begin": (3, None),
    "fewer_begin": (0, None),
    "not_registered": (ABORTED, r"process \d: bsp_put: 0x[0-9a-f]+ is not registered"),
    "beyond": (ABORTED, r"process \d: bsp_put: bytes 2 to 6 are beyond the 4 that process 0 has registered"),
    "negative": (ABORTED, r"process \d: bsp_put: offset -4 is negative"),
    "no_process": (ABORTED, r"process \d: bsp_put: there is no process 3; numbers are 0 to 2"),
    "get_beyond": (ABORTED, r"process \d: bsp_get: bytes 4 to 8 are beyond"),
    "too_early": (ABORTED, r"process \d: bsp_hpput: 0x[0-9a-f]+ is not registered; registrations count from the superstep after"),
    "pop_unknown": (ABORTED, r"process \d: bsp_pop_reg: 0x[0-9a-f]+ is not registered"),
    "other_order": (ABORTED, r"process 0: process 2 and process 0 have registered or removed memory in another order"),
    "other_tag_size": (ABORTED, r"process 0: process 2 and process 0 have .* set other tag sizes, in superstep 1"),
    "end_and_sync": (ABORTED, r"process 0: process 2 called bsp_end\(\) where process 0 called bsp_sync\(\)"),
    "move_nothing": (ABORTED, r"process \d: bsp_move: the queue is empty"),
    "begin_twice": (ABORTED, r"process \d: bsp_begin\(\) was called twice"),
    "sync_after_end": (ABORTED, r"process \d: bsp_sync\(\) was called after bsp_end\(\)"),
    "abort": (ABORTED, LAST + "the answer is 42"),
    "exit_early": (ABORTED, LAST + r"ended with exit code 3 before bsp_end\(\)"),
    "exit_at_once": (134, r"process [01]: lost process 2 in superstep [01] "),
    "killed": (137, r"bsprun: process 2 was ended by signal 9 \(Killed\); the job ends"),
    "child_exits": (0, None),
}
# All processes make these at once: each may tell it before it learns of another's end.
BY_ALL = {"put_before_begin", "sync_before_begin", "not_registered", "beyond", "negative", "no_process", "get_beyond", "too_early",
          "pop_unknown", "move_nothing", "begin_twice", "sync_after_end"}


def run(bench: Bench):
    program = bench.compile(HERE / "programs" / "wrong.c")
    for case, (code, pattern) in CASES.items():
        done = bench.run("-n", 3, program, case)
        told = [line for line in done.stderr.splitlines() if re.match(r"bsp(run)?: ", line)]
        where = f"{case}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        need(done.returncode == code, where)
        if pattern:
            need(told and all(re.match(r"(bsp: )?" + pattern, line) for line in told), where)
        need(len(told) == (pattern is not None) or (case in BY_ALL and 1 <= len(told) <= 3), f"{len(told)} messages: {where}")
        if "before_begin" not in case and case != "last_breaks_off" and case not in BY_ALL:
            need(done.stdout.count("started") == 1 if case in ("abort", "exit_early", "exit_at_once", "killed", "child_exits")
                 else done.stdout.count("started") <= 1, f"output flushed or doubled: {where}")
    # Compilers by the name of bspcc, as `CC=bspcc make` has them.
    for cc, wanted in (("bspcc -g -DX=1", " cc -g -DX=1 "), ("ccache bspcc", " ccache cc "), (f"{bench.build}/bin/bspcc", " cc "), ("gcc", " gcc ")):
        done = subprocess.run([bench.build / "bin" / "bspcc", "--show", "-c", "x.c"], capture_output=True, text=True, timeout=PATIENCE_S,
                              check=False, env={**bench.environment, "CC": cc})
        need(done.returncode == 0 and f" {done.stdout}".startswith(wanted), f"CC={cc}: {done.stdout}{done.stderr}")
    for words in ([], ["--show"]):
        done = subprocess.run([bench.build / "bin" / "bspcc", *words], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        need(done.returncode == 2 and "no files" in done.stderr and not done.stdout, f"bspcc {words}: {done.returncode} {done.stdout}{done.stderr}")
    narrow = HERE / "programs" / "narrow.c"
    done = bench.compile(narrow, check=False)
    need(done.returncode != 0 and "incompatible pointer" in done.stderr, f"a size_t* for an int*: {done.returncode} {done.stderr}")
    bench.compile(narrow, "-DBSP_MULTICORE")


if __name__ == "__main__":
    main(run)
