"""B5: what the shim adds to posting and polling, on the null backend and over a device's library (backend verbs): reliable
connections, shared receive queues, datagrams, extended verbs, one send in 32 signaled, UCX's pattern, and after a restart. Counted are instructions and allocations, the same with one queue pair and region and
with many; nanoseconds are only reported, since they depend on what else a machine does. And the completions that the device makes
for the shim alone, with k-th signaling."""
import importlib.machinery
import importlib.util
import json
import shutil
import subprocess
import sys
import types

from common import ROOT, Case, Line, Skip, check, main

sys.path.insert(0, str(ROOT / "perftest"))
loader = importlib.machinery.SourceFileLoader("perftest_run", str(ROOT / "perftest" / "run"))
bench = importlib.util.module_from_spec(importlib.util.spec_from_loader("perftest_run", loader))
loader.exec_module(bench)

# Instructions that may be added to one receive posted, one send posted and their completions polled. rc, device-rc-32: the goals. Of the
# others, what was measured and a twentieth. Why they cost more than rc: a shared receive's completion has its queue pair looked
# up; a datagram's address handle is turned; extended verbs build a request that is then posted, and take completions one by one,
# which makes three polls of one. Over a device polls go on until nothing is left, which is one more, and each function of the
# library is called through the backend. SHADOWIB_SIGNAL_EVERY is 64. With one send in 32 signaled a device makes a completion of each 16th for the shim alone, and of each datagram.
# After a restart keys are turned and completions name their queue pair anew: 294.
BOUNDS = {"rc": 130, "srq": 295, "ud": 276, "extended": 591,
          "device-rc": 194, "device-rc-32": 200, "device-srq": 347, "device-srq-32": 362, "device-ud": 317, "device-ud-32": 484,
          "device-extended": 667, "device-extended-32": 600, "device-ucx": 418, "device-restarted": 309}
COMPLETIONS = 1.05  # that a device makes for the shim alone, of k unsignaled requests of a program
FLAT = 5  # by how much they may differ between the sizes


def overhead(case: Case, mode: str) -> str:
    if not shutil.which("valgrind"):
        raise Skip("valgrind is not installed: instructions are counted by its callgrind")
    out = case.work / "perftest"
    words = ["python3", str(ROOT / "perftest" / "run"), "--build", str(case.line.build), "--out", str(out), "--only", "overhead",
             "--modes", mode] + (["--quick"] if case.line.quick else [])
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    check(done.returncode == 0, f"perftest/run: {done.stdout[-1500:]}{done.stderr[-1500:]}")
    entries = json.loads((out / "results.json").read_text())["overhead"]
    sizes = [f"{e['qps']} QP, {e['mrs']} MR" for e in entries]
    instructions = [round(e["added"]["instructions"]) for e in entries]
    case.figures = {size: e["added"] for size, e in zip(sizes, entries)}
    check(max(instructions) <= BOUNDS[mode],
          f"the shim adds more than {BOUNDS[mode]} instructions to an iteration:\n{done.stdout}")
    check(max(instructions) - min(instructions) <= FLAT, f"the instructions added depend on the size:\n{done.stdout}")
    check(not any(e["shim"]["mallocs"] for e in entries), f"the hot path allocates:\n{done.stdout}")
    times = ", ".join(f"{e['added']['ns']:.1f} ns with {size}" for e, size in zip(entries, sizes) if e in (entries[0], entries[-1]))
    return (f"{max(instructions)} instructions added, at most {BOUNDS[mode]} may be; no allocation; the same at {len(entries)} sizes; "
            f"{times}")


def completions(case: Case, every: int) -> str:
    """What the device itself has made beyond what it makes without the shim; one request in 4096 is signaled by the program."""
    case.line.program("shim_overhead")
    pair = bench.Bench(types.SimpleNamespace(build=case.line.build, quick=True, cores=None, realtime=False))
    made = {}
    for side in ("native", "shim"):
        command, env = pair.side(side, "device-rc-4096", 1, 1)
        env = {**env, "NULL_VERBS_COMPLETIONS": str(case.work / f"{side}.completions"), "SHADOWIB_SIGNAL_EVERY": str(every)}
        made[side] = json.loads(bench.run(command + ["--iterations", "65536", "--repeats", "1"], env).stdout)["completions"]
    check(abs(made["native"] - 1 - 1 / 4096) < 1e-6, f"without the shim an iteration has {made['native']} completions: the device counts wrong")
    forced = every * (made["shim"] - made["native"])
    case.figures = {**made, "of_k_requests": forced}
    check(forced <= COMPLETIONS, f"{every} requests have {forced:.3f} completions for the shim alone")
    check(forced >= 1 - 1 / 16, f"{every} requests have {forced:.3f} completions for the shim alone: it does not learn which have run")
    return f"{forced:.3f} of {every} requests that the program did not signal, at most {COMPLETIONS} may be"


def run() -> int:
    line = Line("hot_path", __doc__)
    for every in (1, 16, 64):
        line.case(f"completions, one in {every}", lambda case, k=every: completions(case, k))
    for mode in BOUNDS:
        line.case(mode, lambda case, m=mode: overhead(case, m))
    return line.finish()


if __name__ == "__main__":
    main(run)
