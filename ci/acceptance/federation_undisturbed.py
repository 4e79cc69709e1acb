"""FED1: cluster B is checkpointed again and again at random moments while A sends to it. A is never stopped, and no answer between two processes
of A takes longer than 50 ms. The short sample judges no times: other tests run beside it."""
import shutil
import time

from common import Case, Line, Skip, check, main
from federation_alone import Mixed
from jobs import free_port, wait_for

MOST_US = 50_000


class Answers:
    """ib_send_lat between two processes of A, one pair after the other."""

    def __init__(self, fed: Mixed):
        self.tool = shutil.which("ib_send_lat")
        if not self.tool:
            raise Skip("ib_send_lat is not installed (package perftest)")
        self.fed, self.slowest, self.pair = fed, [], ()
        self.count = 2_000 if fed.case.line.quick else 200_000  # of one ib_send_lat, which prints the slowest when it ends

    def go_on(self):
        if self.pair and not self.pair[1].ended():
            return
        self.await_end()
        port = free_port()
        words = [self.tool, "-F", "-p", str(port), "-n", str(self.count)]
        server = self.fed.run(f"server{len(self.slowest)}", words, "--cluster", "A")
        wait_for("the server to listen", lambda: server.ended() or self.fed.listens(port), 60)
        self.pair = (server, self.fed.run(f"client{len(self.slowest)}", [*words, self.fed.address], "--cluster", "A"))

    def await_end(self):
        if not self.pair:
            return
        for program in self.pair:
            wait_for(f"the end of {program.role}", program.ended, 600)
            check(program.process.returncode == 0, f"{program.role} ended with {program.process.returncode}: {program.text()[-2000:]}")
        lines = self.pair[1].text().splitlines()
        head = next(n for n, line in enumerate(lines) if "#bytes" in line)
        check("t_max" in lines[head].split()[3], f"another table is printed: {lines[head]}")
        self.slowest.append(float(lines[head + 1].split()[3]))
        self.pair = ()


def processes(fed: Mixed) -> dict[int, int]:
    return {m["index"]: m["pid"] for m in fed.status()["members"] if m["cluster"] == "A" and m["alive"]}


def undisturbed(case: Case, program=Mixed) -> str:
    fed, count, random = program(case), 5 if case.line.quick else 200, case.random()
    answers = Answers(fed)
    before, stops = processes(fed), fed.cluster("A")["stops"]
    for _ in range(count):
        answers.go_on()
        time.sleep(random.random())
        fed.take_clc("B")
    answers.await_end()
    check(fed.cluster("A")["stops"] == stops, f"A was stopped {fed.cluster('A')['stops'] - stops} times")
    check(before.items() <= processes(fed).items(), "A has other processes")
    slowest = max(answers.slowest)
    check(case.line.quick or slowest <= MOST_US, f"an answer inside A took {slowest / 1000:.1f} ms")
    return f"{count} CLCs of B; A was never stopped; the slowest of {len(answers.slowest) * answers.count} answers took {slowest / 1000:.1f} ms; {fed.finish()} messages"


def run() -> int:
    line = Line("federation_undisturbed", __doc__)
    line.case("undisturbed", undisturbed)
    return line.finish()


if __name__ == "__main__":
    main(run)
