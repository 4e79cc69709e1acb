"""The examples and the typed interface, compiled as a user's programs."""
import pathlib

from bsp_job import HERE, Bench, main, need

EXAMPLES = pathlib.Path(__file__).resolve().parents[3] / "examples" / "bsp"


def run(bench: Bench):
    for name in ("matrix_multiply.c", "similarity.c", "graph.c", "heat.cc"):
        source = EXAMPLES / name
        compiler, options = ("bspcxx", ["-std=c++20"]) if source.suffix == ".cc" else ("bspcc", [])
        program = bench.compile(source, *options, "-Wextra", "-Werror", compiler=compiler)
        told = set()
        for processes in (1, 3):
            done = bench.run("-n", processes, program)
            need(done.returncode == 0 and f"{source.stem}: " in done.stdout and "right" in done.stdout,
                 f"{name}, {processes} processes: {done.returncode} {done.stdout}{done.stderr}")
            told.add(done.stdout)
        need(len(told) == 1 or source.stem == "graph", f"{name}: the result depends on the number of processes: {told}")
    typed = bench.compile(HERE / "programs" / "typed.cc", "-std=c++20", "-Wextra", "-Werror", compiler="bspcxx")
    for processes in (1, 2, 4):
        done = bench.run("-n", processes, typed)
        need(done.returncode == 0 and done.stdout == "typed: right\n", f"typed, {processes}: {done.returncode} {done.stdout}{done.stderr}")
    # B14: shifted data would be taken for numbers.
    done = bench.run("-n", 2, typed, "split")
    need(done.returncode == 124 and "process 1: queue 0: a message of 11 bytes splits an element of 8" in done.stderr,
         f"split: {done.returncode} {done.stderr}")


if __name__ == "__main__":
    main(run)
