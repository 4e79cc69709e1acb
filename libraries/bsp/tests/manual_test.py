"""Each sentence of the manual, with 1 to 8 processes, over shared memory and TCP, in BSPlib's forms and MulticoreBSP's."""
from bsp_job import HERE, Bench, main, need

CASES = 15


def run(bench: Bench):
    source = HERE / "programs" / "manual.c"
    forms = {"bsplib": bench.compile(source, name="manual"),
             "multicore": bench.compile(source, "-DBSP_MULTICORE", name="manual_multicore")}
    for form, processes, transport in (("bsplib", 1, "shm"), ("bsplib", 2, "shm"), ("bsplib", 3, "tcp"), ("bsplib", 8, "shm"),
                                       ("multicore", 1, "shm"), ("multicore", 4, "shm")):
        done = bench.run("-n", processes, forms[form], environment={"SHADOWIB_IB2TCP_TRANSPORT": transport})
        ok = [line for line in done.stdout.splitlines() if line.startswith("ok ")]
        need(done.returncode == 0, f"{form}, {processes} processes, {transport}: {done.returncode}\n{done.stdout}{done.stderr}")
        need(len(ok) == CASES + (form == "multicore"), f"{form}, {processes} processes: {len(ok)} cases\n{done.stdout}")
    need(bench.run(forms["bsplib"]).returncode == 0, "one process without -n")


if __name__ == "__main__":
    main(run)
