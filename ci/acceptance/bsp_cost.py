"""What a superstep costs: the library's own instructions, bounded; and in the whole version l and g beside a message of plain verbs,
in one run. Times of the short version are told and not judged: they depend on what else a machine does."""
import shutil
import statistics
import sys

from common import ROOT, Case, Line, Skip, check, main
from jobs import Job

sys.path.insert(0, str(ROOT / "perftest" / "bsp"))
import instructions as counted  # noqa: E402

# Instructions of a superstep with p processes: A p + B, with a twentieth as room over what was measured.
# 257 p + 84 and 103 were measured.
EMPTY = (270, 88)
# A message of 8 bytes more: sent, received, and put into the queue.
MESSAGE = 108
ROUND_TRIPS = 1.3  # l by half round trips of 64 bytes


def instructions(case: Case) -> str:
    if not shutil.which("valgrind"):
        raise Skip("valgrind is not installed: instructions are counted by its callgrind")
    case.line.program("bsp_steps")
    told = []
    for processes in (2, 8) if case.line.quick else counted.PROCESSES:
        empty = counted.count(case.line.build, processes)
        bound = EMPTY[0] * processes + EMPTY[1]
        check(empty <= bound, f"{processes} processes: {empty:.0f} instructions in an empty superstep, at most {bound} may be")
        told.append(f"p = {processes}: {empty:.0f}")
        if case.line.quick and processes > 2:
            continue
        full = counted.count(case.line.build, processes, counted.MESSAGES)
        each = (full - empty) / (counted.MESSAGES * (processes - 1))
        check(each <= MESSAGE, f"{processes} processes: {each:.0f} instructions for a message, at most {MESSAGE} may be")
        told[-1] += f", {each:.0f} a message"
    return "instructions of a superstep: " + "; ".join(told)


def cost(case: Case, processes: int, transport: str, name: str, supersteps: int) -> tuple[float, float]:
    job = Job(case, name, transport)
    words = [case.line.program("bsprun"), "-n", str(processes), "--job", name, "--dir", str(job.directory),
             case.line.program("bsp_cost"), str(supersteps)]
    done = job._spawn("cost", words)
    job._wait(done, 240)
    check(done.process.returncode == 0, done.text()[-2000:])
    fields = [line for line in done.text().splitlines() if line.startswith("p ")][-1].split()
    return float(fields[3]), float(fields[5])


def times(case: Case, transport: str) -> str:
    """Interleaved, so that both meet the same machine."""
    l, g, half = [], [], []
    for n in range(1 if case.line.quick else 7):
        got = cost(case, 2, transport, f"c{n}", 200 if case.line.quick else 5000)
        l.append(got[0])
        g.append(got[1])
        job = Job(case, f"v{n}", transport)
        pong = job.start("pingpong", [case.line.program("verbs_pingpong"), "--sizes", "64", "--iterations",
                                      "500" if case.line.quick else "20000"])
        job._wait(pong, 240)
        half.append(float([line for line in pong.text().splitlines() if line.startswith("64 ")][-1].split()[1]))
    ratio = statistics.median(l) / statistics.median(half)
    case.figures = {"l_us": statistics.median(l), "g_ns": statistics.median(g), "half_round_trip_us": statistics.median(half)}
    text = (f"l {statistics.median(l):.2f} us, g {statistics.median(g):.1f} ns per 8-byte put, {ratio:.2f} half round trips of 64 bytes "
            f"({statistics.median(half):.2f} us)")
    check(case.line.quick or ratio <= ROUND_TRIPS, f"{text}: at most {ROUND_TRIPS} may be")
    return text


def run() -> int:
    line = Line("bsp_cost", __doc__)
    line.case("instructions", instructions)
    for transport in ("shm", "tcp"):
        line.case(f"l and g {transport}", lambda case, t=transport: times(case, t))
    return line.finish()


if __name__ == "__main__":
    main(run)
