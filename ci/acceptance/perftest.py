"""A3: Debian's perftest runs to its end on ib2tcp under the shim, and survives checkpoint, kill and restart at random
moments of the data phase. Both ends keep a TCP connection open for their results."""
import shutil

from common import Line, Skip, main
from pair import Pair, campaign, iterations_for, run_once

TOOLS = ("ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_atomic_bw", "ib_send_lat")


def perftest(name: str, transport: str, seconds: float) -> Pair:
    tool = shutil.which(name)
    if not tool:
        raise Skip(f"{name} is not installed (package perftest)")

    def commands(port, iterations):
        # -F: the processor's changing frequency is no error.
        common = [tool, "-F", "-p", str(port), "-n", str(iterations)]
        return common, common + ["localhost"]
    # It keeps a time stamp of every message: the image grows by 8 bytes for each.
    return Pair(commands, transport, seconds=seconds, most_iterations=20_000_000, good=("#bytes",),
                bad=("Failed", "failed", "Completion with error"))


def run() -> int:
    line = Line("perftest", __doc__)
    seconds = 2.0 if line.quick else 6.0
    for name in TOOLS:
        for transport in ("tcp",) if line.quick else ("shm", "tcp"):
            def undisturbed(case, n=name, t=transport):
                pair = perftest(n, t, seconds)
                iterations = iterations_for(case, pair)
                run_once(case, pair, iterations, 0, "plain")
                return f"{iterations} iterations"
            if not line.quick:
                line.case(f"{name} {transport}", undisturbed)
            line.case(f"{name} {transport}, restarted", lambda c, n=name, t=transport: campaign(c, perftest(n, t, seconds), 3),
                      1 if line.quick else 5)
    return line.finish()


if __name__ == "__main__":
    main(run)
