"""B5: what the shim adds to posting and polling, on the null backend and over a device's library (backend verbs): reliable
connections, shared receive queues, datagrams, extended verbs, one send in 32 signaled, UCX's pattern, and after a restart. Counted are instructions and allocations, the same with one queue pair and region and
with many; nanoseconds are only reported, since they depend on what else a machine does."""
import json
import shutil
import subprocess

from common import ROOT, Case, Line, Skip, check, main

# Instructions that may be added to one receive posted, one send posted and their completions polled. rc, device-rc-32: the goals. Of the
# others, what was measured and a twentieth. Why they cost more than rc: a shared receive's completion has its queue pair looked
# up; a datagram's address handle is turned; extended verbs build a request that is then posted, and take completions one by one,
# which makes three polls of one. Over a device polls go on until nothing is left, which is one more, and each function of the
# library is called through the backend. SHADOWIB_SIGNAL_EVERY is 64. With one send in 32 signaled a device makes a completion of each 16th for the shim alone, and of each datagram.
# After a restart keys are turned and completions name their queue pair anew: 283.
BOUNDS = {"rc": 130, "srq": 280, "ud": 250, "extended": 557,
          "device-rc": 175, "device-rc-32": 200, "device-srq": 318, "device-srq-32": 472, "device-ud": 286, "device-ud-32": 449,
          "device-extended": 629, "device-extended-32": 709, "device-ucx": 434, "device-restarted": 297}
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


def run() -> int:
    line = Line("hot_path", __doc__)
    for mode in BOUNDS:
        line.case(mode, lambda case, m=mode: overhead(case, m))
    return line.finish()


if __name__ == "__main__":
    main(run)
