"""MW9: workers of a task farm on another host, which run the program from its beginning, as guests of the job.

  joins      one joins when many updates have been made: it has them all, in order. It is killed, told to leave, and joins again
  restart    the master is saved, and everything is killed; after the restart workers join again, and know the updates of before
  too late   a farm that does not keep its updates refuses the worker by name, and goes on

The hosts are network namespaces, which need root. Each result says which updates its worker has, as a fingerprint of all in order.
"""
import os
import signal

from common import Case, Line, check, main
from jobs import Job, Program, wait_for
from lost_hosts import Hosts
from task_farms import PATIENCE_S, await_rounds, begun, finish, has_workers, marks, oracle

HERE, THERE = "a", "b"
# TASKS and MOST_BYTES of the storm: one update in three, and one message in 16 up to MOST_BYTES large, both ways.
SHAPE = {True: ("200", "100000"), False: ("2600", "4000000")}
KEEP_MIB = 1024
MOST_US = "4000"


class FarmOnHosts(Job):
    def __init__(self, case: Case, name: str, *options: str):
        super().__init__(case, name)
        self.hosts = Hosts(case, "disk", HERE + THERE)
        tasks, most_bytes = SHAPE[case.line.quick]
        seed = str(case.random().randrange(1 << 30))
        self.words = [tasks, seed, MOST_US, most_bytes]
        self.wanted = oracle(case, "mw_storm", self.words)
        self.files = [word for file in ("marks", "begun", "hurry") for word in (f"--{file}", str(case.work / file))]
        run = [self.shadowib, "run", "--job", name, "--dir", str(self.directory), "--backend", "ib2tcp", "--"]
        storm = [case.line.program("mw_storm"), *self.words, *self.files, "--TOPC-num-slaves=1", "--TOPC-stats", *options]
        self.programs.append(self._spawn("master", self.hosts.at(HERE, [*run, *storm])))

    def join(self, role: str) -> Program:
        """A worker on the other host."""
        run = [self.shadowib, "run", "--job", self.name, "--dir", str(self.directory), "--guest", "--backend", "ib2tcp", "--"]
        storm = [self.case.line.program("mw_storm"), *self.words, *self.files]
        return self._spawn(role, self.hosts.at(THERE, [*run, *storm]))

    def begun_by(self, worker: Program) -> int:
        return sum(one.pid == worker.process.pid for one in begun(self.case))

    def await_tasks(self, worker: Program, number: int = 3):
        before = self.begun_by(worker)

        def has():
            check(not worker.ended(), f"{worker.role} ended with {worker.process.returncode}:\n{worker.text()[-3000:]}")
            check(not self.programs[-1].ended(), f"the farm ended:\n{self.output()[-3000:]}")
            return self.begun_by(worker) >= before + number
        wait_for(f"{number} tasks for {worker.role}", has, PATIENCE_S)

    def await_end(self, worker: Program, code: int):
        self._wait(worker, PATIENCE_S)
        check(worker.process.returncode == code, f"{worker.role} ended with {worker.process.returncode}, not {code}:\n{worker.text()[-3000:]}")

    def await_half(self):
        """Updates of half of the tasks lie behind, and more are not made before hurry()."""
        await_rounds(self.case, self, int(self.words[0]) // 2)

    def hurry(self):
        check(not self.programs[-1].ended(), f"the farm ended by itself:\n{self.output()[-3000:]}")
        (self.case.work / "hurry").touch()
        finish(self, self.wanted)


def joins(case: Case):
    job = FarmOnHosts(case, "joins", f"--TOPC-keep-updates={KEEP_MIB}")
    job.await_half()
    first = job.join("first")
    job.await_tasks(first)
    os.kill(first.process.pid, signal.SIGKILL)
    job.await_end(first, -signal.SIGKILL)
    await_rounds(case, job, marks(case) + 5)
    second = job.join("second")
    job.await_tasks(second)
    second.process.terminate()
    job.await_end(second, 0)
    await_rounds(case, job, marks(case) + 5)
    has_workers(case, job, 1)  # that of the master's host; the others are not replaced there
    third = job.join("third")
    job.await_tasks(third)
    job.hurry()
    job.await_end(third, 0)
    return f"three workers on the other host, {job.wanted.split(', ')[1]}"


def restarts(case: Case):
    job = FarmOnHosts(case, "restarts", f"--TOPC-keep-updates={KEEP_MIB}")
    job.await_half()
    before = job.join("before")
    job.await_tasks(before)
    taken = job.checkpoint(kill=False, timeout=120)
    await_rounds(case, job, marks(case) + 3)
    job.hosts.lose(HERE)
    job._wait(job.programs[-1], PATIENCE_S)
    job._wait(before, PATIENCE_S)  # no member lives, so the job ends its guests
    job.generation += 1
    restart = [job.shadowib, "restart", taken, "--dir", str(job.directory), "--workers", "1"]
    job.programs = [job._spawn("restart", job.hosts.at(HERE, restart))]
    has_workers(case, job, 1)
    after = job.join("after")
    job.await_tasks(after)
    job.hurry()
    job.await_end(after, 0)
    return job.wanted.split(", ")[1]


def too_late(case: Case):
    job = FarmOnHosts(case, "late")
    job.await_half()
    late = job.join("late")
    job.await_end(late, 1)
    check("start the farm with --TOPC-keep-updates=MIB" in late.text(), late.text()[-3000:])
    await_rounds(case, job, marks(case) + 5)
    job.hurry()
    return "refused by name"


def run() -> int:
    line = Line("farm_hosts", __doc__.splitlines()[0])
    line.case("joins", joins)
    line.case("restart", restarts)
    line.case("too late", too_late)
    return line.finish()


if __name__ == "__main__":
    main(run)
