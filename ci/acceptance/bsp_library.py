"""BSPlib over verbs: random supersteps against a ledger, over shared memory and TCP, undisturbed and with kills and restarts; what a
checkpoint of a BSP job has to have; guards left out."""
import json
import pathlib
import time

from common import Case, Failure, Line, check, main
from jobs import A_PROCESS_FAILED, Job, wait_for

SUPERSTEPS = 150
SETS = 2  # of B9
SEEDS_WITHOUT = 40  # storms that may miss that a guard is left out


class Bsp(Job):
    """A job whose processes are bsprun's."""

    def bsprun(self, processes: int, program: list[str], environment: dict | None = None, options: tuple = ()):
        argv = [self.case.line.program("bsprun"), "-n", str(processes), "--job", self.name, "--dir", str(self.directory), *options,
                *program]
        started = self._spawn("bsprun", argv, environment)
        self.programs.append(started)
        return started

    def await_end(self, program, code: int = 0, timeout: float = 240):
        self._wait(program, timeout)
        check(program.process.returncode == code, f"{program.role} exited with {program.process.returncode} instead of {code}:\n"
              f"{program.text()[-3000:]}")


def storm(case: Case, processes: int, transport: str, seed: int, supersteps: int = SUPERSTEPS) -> str:
    job = Bsp(case, f"s{seed}", transport)
    ended = job.bsprun(processes, [case.line.program("bsp_storm"), str(seed), str(supersteps)])
    job.await_end(ended)
    check(f"seed {seed}, {processes} processes, {supersteps} supersteps" in ended.text() and "exact" in ended.text(), ended.text())
    return ended.text().strip().splitlines()[-1]


def storms(case: Case, transport: str, seeds: int) -> str:
    rng = case.random()
    for _ in range(seeds):
        storm(case, rng.choice([1, 2, 2, 3, 4, 5, 8]), transport, rng.randrange(1, 2**31))
    return f"{seeds} seeds, each with {SUPERSTEPS} supersteps: the ledger is exact"


def progress(path: pathlib.Path, processes: int) -> int:
    """The superstep of the process that is behind; -1: one has told none."""
    told = []
    for process in range(processes):
        file = pathlib.Path(f"{path}.{process}")
        told.append(int(file.read_text()) if file.exists() else -1)
    return min(told)


def await_progress(job: Bsp, path: pathlib.Path, processes: int, beyond: int):
    def moved():
        job.check_running()
        return progress(path, processes) > beyond
    wait_for(f"supersteps beyond {beyond}", moved, 120)


def kills(case: Case, processes: int, transport: str) -> str:
    """case.wanted times: checkpoint, kill, restart, at random moments of one job after another, each to its right end."""
    rng = case.random()
    while case.done < case.wanted:
        seed = rng.randrange(1, 2**31)
        job = Bsp(case, f"k{case.done}", transport)
        path = case.work / f"progress{case.done}"
        moments = min(5, case.wanted - case.done)
        # It ends when it is told to: no machine is so quick that it ends before.
        started = job.bsprun(processes, [case.line.program("bsp_storm"), str(seed), str(10**9), str(path)])
        beyond, taken = 15, 0
        for _ in range(moments):
            await_progress(job, path, processes, beyond)
            time.sleep(rng.uniform(0, 0.05))
            job.command("checkpoint", job.name, "--timeout", "60", "--kill")
            taken += 1
            code = 137 if started is job.programs[0] and started.role == "bsprun" else A_PROCESS_FAILED
            job.await_end(job.programs[0], code)
            # Files of progress are of the future now.
            for process in range(processes):
                pathlib.Path(f"{path}.{process}").unlink(missing_ok=True)
            newest = sorted((job.directory / "sets").glob(f"{job.name}.*"))[-1]
            job.restart(str(newest))
            beyond = 0
        await_progress(job, path, processes, beyond)
        pathlib.Path(f"{path}.stop").write_text("")
        job.await_end(job.programs[0])
        check(f"seed {seed}, {processes} processes" in job.output() and "exact" in job.output(), job.output()[-2000:])
        case.progress(case.done + taken)
        job.stop()
    return f"{case.done} x checkpoint, kill, restart, {processes} processes: the ledger is exact"


def early_device(case: Case) -> str:
    """A program that has opened the device before bsp_begin() is saved with all its processes, and ends well after a restart."""
    job = Bsp(case, "early", "shm")
    path = case.work / "progress"
    started = job.bsprun(3, [case.line.program("bsp_early_device"), str(path)])
    await_progress(job, path, 3, 15)
    job.command("checkpoint", job.name, "--timeout", "60", "--kill")
    job.await_end(started, 137)
    newest = sorted((job.directory / "sets").glob("early.*"))[-1]
    shown = json.loads(job.command("inspect", str(newest), "--json").stdout)
    check(len(shown["images"]) == 3, f"{len(shown['images'])} members are in the set instead of 3")
    (case.work / "progress.go").write_text("")
    job.restart(str(newest))
    job.await_end(job.programs[0])
    check(job.output().count("right") == 3, job.output()[-2000:])
    return "3 processes saved and restarted"


def intervals(case: Case) -> str:
    """B9: with --interval all images of a set are of one superstep. Without the flag in the word they are not."""
    def supersteps(name: str, environment: dict) -> list[set[int]]:
        job = Bsp(case, name, "shm", environment)
        path = case.work / name
        started = job.bsprun(3, [case.line.program("bsp_lockstep"), str(path)], options=("--interval", "0.05"))
        last = SETS - 1
        wait_for(f"{SETS} checkpoints", lambda: started.ended() or len(list(case.work.glob(f"{name}.*.{last}"))) == 3, 120)
        check(not started.ended(), f"the job ended:\n{started.text()[-2000:]}")
        pathlib.Path(f"{path}.stop").write_text("")
        job.await_end(started)
        return [{int((case.work / f"{name}.{process}.{n}").read_text()) for process in range(3)} for n in range(SETS)]
    seen = supersteps("guarded", {})
    check(all(len(of_set) == 1 for of_set in seen), f"supersteps within sets: {seen}")
    for n in range(SEEDS_WITHOUT):
        unguarded = supersteps(f"alone{n}", sabotage(case, "due_flag"))
        if any(len(of_set) > 1 for of_set in unguarded):
            break
    check(any(len(of_set) > 1 for of_set in unguarded), f"process 0 decided alone, and nothing differs: {unguarded}")
    return f"{SETS} sets of one superstep each; {unguarded[0]} with process 0 alone"


def sabotage(case: Case, guard: str) -> dict:
    """A library without that guard, whose supersteps are slow where the guard counts."""
    library = case.line.build / "sabotage" / "lib"
    check((library / "libshadowib-bsp.so.0").exists(), f"{library} is not built")
    return {"LD_LIBRARY_PATH": str(library), "SHADOWIB_BSP_SABOTAGE": guard}


def guard(case: Case, name: str) -> str:
    """Some storm finds it if a guard is left out. None finds anything if it is not, however slow the supersteps are there."""
    def storm(what: str, seed: int) -> tuple[int, str]:
        job = Bsp(case, f"{what.replace('_', '-')}-{seed}", "shm", sabotage(case, what))
        ended = job.bsprun(2, [case.line.program("bsp_storm"), str(seed), "300"])
        job._wait(ended, 240)
        return ended.process.returncode, ended.text()
    code, text = storm("slow", 7)
    check(code == 0 and "exact" in text, f"with its guards: {code} {text[-2000:]}")
    for seed in range(7, 7 + SEEDS_WITHOUT):  # whether two processes meet in the gap is a race
        code, text = storm(name, seed)
        if code != 0 and "exact" not in text:  # a torn superstep may also hang, or end a process by a signal
            return f"seed {seed}: {(text.strip().splitlines() or [str(code)])[-1]}"
    raise Failure(f"without {name}: {SEEDS_WITHOUT} storms are exact")


def overtaking(case: Case) -> str:
    """A put at once and a direct get wait until the other process has ended the superstep before. Without the wait they do harm."""
    def overtake(way: str, what: str) -> tuple[int, str]:
        job = Bsp(case, f"{way}-{what}", "shm", sabotage(case, what))
        ended = job.bsprun(2, [case.line.program("bsp_overtake"), way, "50"])
        job._wait(ended, 240)
        return ended.process.returncode, (ended.text().strip().splitlines() or [""])[-1]
    told = []
    for way in ("put", "land", "get"):
        code, text = overtake(way, "slow")
        check(code == 0 and text == "right", f"{way} with its guards: {code} {text}")
        code, text = overtake(way, "begun")
        check(code == 124 and "instead of" in text, f"{way} without the guard: {code} {text}")
        told.append(f"{way}: {text}")
    return "; ".join(told)


def late_process(case: Case) -> str:
    """B13: a process of an old run lives on in the job, and writes; a new run neither meets nor hears it."""
    storm_words = [case.line.program("bsp_storm"), "5", "200"]

    def run(name: str, environment: dict) -> int:
        job = Bsp(case, name, "shm", environment)
        old = {"SHADOWIB_BSP_PROCESSES": "2", "SHADOWIB_BSP_PROCESS": "0", "SHADOWIB_BSP_HERE": "2", "SHADOWIB_BSP_EPOCH": "1"}
        straggler = job.start("old", storm_words, old)
        # It has shown what the others look for before it makes queue pairs.
        wait_for("the old process", lambda: straggler.ended() or any(m.queue_pairs for m in job.members()), 120)
        check(not straggler.ended(), straggler.text()[-2000:])
        new = job._spawn("new", [case.line.program("bsprun"), "-n", "2", "--job", name, "--dir", str(job.directory), *storm_words])
        job._wait(new, 240)
        job.stop()
        return new.process.returncode
    check(run("late", {}) == 0, "a process of an old run disturbs the new one")
    check(run("mixed", sabotage(case, "epoch")) != 0, "without the epoch the old process does no harm: the test shows nothing")
    return "200 exact supersteps beside it; without the epoch the run fails"


def run() -> int:
    line = Line("bsp_library", __doc__)
    for transport in ("shm", "tcp"):
        line.case(f"storm {transport}", lambda case, t=transport: storms(case, t, 2 if line.quick else 250))
    line.case("kills shm", lambda case: kills(case, 3, "shm"), 2 if line.quick else 50)
    line.case("kills tcp", lambda case: kills(case, 4, "tcp"), 1 if line.quick else 50)
    line.case("early device", early_device)
    line.case("B9 intervals", intervals)
    for name in ("gets_barrier", "parity", "unread_messages"):
        line.case(f"guard {name}", lambda case, n=name: guard(case, n))
    line.case("guard begun", overtaking)
    line.case("B13 late process", late_process)
    return line.finish()


if __name__ == "__main__":
    main(run)
