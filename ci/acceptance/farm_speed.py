"""MW7: what a null task of 64 bytes costs in a task farm, beside the same messages by plain verbs.

  round trip   one worker, one task at a time; verbs: ib_send_lat
  ahead        one worker, 16 tasks posted ahead; verbs: ib_send_bw, both ways

All are under shadowib, in turn, with real-time priority where that is allowed. The best of some runs counts.
Figures are shown and not judged. The goals are 1.3 round trips, and 0.7 of the rate, of plain verbs.
"""
import re
import subprocess

from common import Case, Line, Skip, check, main
from jobs import Job, free_port, wait_for

RUNS = {True: 1, False: 3}
TASKS = {True: 2000, False: 50000}
PATIENCE_S = 200


def real_time() -> list[str]:
    words = ["chrt", "--fifo", "5"]
    return words if subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0 else []


class FastJob(Job):
    """Its programs have real-time priority."""

    def start(self, role: str, argv: list[str], environment: dict | None = None, **options):
        run = [*real_time(), self.shadowib, "run", "--job", self.name, "--dir", str(self.directory), "--backend", "ib2tcp", "--", *argv]
        program = self._spawn(role, run, environment, **options)
        self.programs.append(program)
        return program


def farm_us(case: Case, number: int, ahead: int) -> float:
    job = FastJob(case, f"farm{ahead}n{number}")
    job.start("master", [case.line.program("ci_farm_speed"), str(TASKS[case.line.quick]), "--TOPC-num-slaves=1", f"--TOPC-aggregated-tasks={ahead}"])
    job.finish(PATIENCE_S)
    return float(re.search(r"([0-9.]+) us a task", job.output())[1])


def verbs_row(case: Case, number: int, tool: str, *words: str) -> list[float]:
    """The figures of one run of perftest."""
    job, port = FastJob(case, f"{tool}{number}"), free_port()
    argv = [tool, "-s", "128", "-n", str(TASKS[case.line.quick]), "-p", str(port), *words]
    server = job.start("server", argv)
    wait_for("the server", lambda: server.ended() or f":{port:04X} " in open("/proc/net/tcp").read() + open("/proc/net/tcp6").read(), 60)
    client = job.start("client", [*argv, "127.0.0.1"])
    job.finish(PATIENCE_S)
    rows = [line.split() for line in client.text().splitlines() if re.match(r"\s*128\s", line)]
    check(rows, client.text()[-2000:])
    return [float(word) for word in rows[-1]]


def round_trip(case: Case):
    farms, verbs = [], []
    for number in range(RUNS[case.line.quick]):
        farms.append(farm_us(case, number, 1))
        verbs.append(2 * verbs_row(case, number, "ib_send_lat")[4])  # half a round trip, typical
    return f"{min(farms):.2f} us; plain verbs {min(verbs):.2f} us, so {min(farms) / min(verbs):.2f} of it"


def ahead(case: Case):
    farms, verbs = [], []
    for number in range(RUNS[case.line.quick]):
        farms.append(farm_us(case, number, 16))
        verbs.append(2 / verbs_row(case, number, "ib_send_bw", "-b", "-t", "16")[4])  # millions of messages in a second, both ways
    return f"{min(farms):.2f} us a task; plain verbs {min(verbs):.2f} us, so {min(verbs) / min(farms):.2f} of its rate"


def run() -> int:
    line = Line("farm_speed", __doc__.splitlines()[0])
    if subprocess.run(["which", "ib_send_lat"], capture_output=True, check=False).returncode != 0:
        raise Skip("ib_send_lat is not installed")
    line.case("round trip", round_trip)
    line.case("ahead", ahead)
    return line.finish()


if __name__ == "__main__":
    main(run)
