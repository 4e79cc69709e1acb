"""MW: task farms give the result of one process, whatever happens to their workers and their master.

  strategies   each example program, with 1 and 4 workers, prints what it prints in one process
  anew         and what it prints where each task loses rounds and begins anew
  names        a program with every name of topc.h, as C17 and as C++20
  storm        tasks, sizes and actions by a seed, and a ledger: posted ahead, over phases, with large messages
  seeds        short storms, each of another shape; in every second one a worker is killed
  deaths       workers are killed at random, each with a task
  leave        workers get SIGTERM: no task is begun twice, and no other worker is made
  stopped      a worker is stopped for ever: its tasks are copied
  restart      a worker is killed, two are asked for, a checkpoint, all are killed, and a restart with another number; then again;
               then all workers get SIGTERM before the checkpoint, and the restart makes as many as were asked for
  m14, m16     guards of the wire, on and off
"""
import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import time

from common import ROOT, Case, Line, check, main
from jobs import Job, wait_for

STRATEGIES = {"trivial": ["400000", "80"], "optimistic": ["120"], "dataflow": ["40"], "gauss": ["40", "50"], "search": ["8"],
              "raw": ["6"], "typed": ["60000"], "session": ["40000"]}
PATIENCE_S = 240


def last_line(text: str, begins: str = "") -> str:
    lines = [line for line in text.splitlines() if line.startswith(begins) and not line.startswith("shadowib")]
    return lines[-1] if lines else ""


def oracle(case: Case, program: str, arguments: list[str]) -> str:
    return subprocess.run([case.line.program(f"{program}_seq"), *arguments], cwd=case.work, capture_output=True, text=True, check=True,
                          timeout=PATIENCE_S).stdout.strip()


def farm(case: Case, program: str, arguments: list[str], workers: int, *options: str) -> Job:
    job = Job(case, f"farm{case.name.replace(' ', '').replace('-', '')}{workers}")
    job.start("master", [case.line.program(program), *arguments, f"--TOPC-num-slaves={workers}", *options])
    return job


def finish(job: Job, wanted: str):
    job.finish(PATIENCE_S)
    said = job.programs[-1].text()
    check("FAULT" not in job.output(), job.output()[-3000:])
    check(wanted in job.output().splitlines(), f"the farm says\n{said[-2000:]}\nin one process it is\n{wanted}")


def workers_of(case: Case, program: str) -> list[int]:
    """Processes of the program in a session of their own: a worker is one by setsid()."""
    path, found = case.line.program(program), []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and os.readlink(f"/proc/{entry}/exe") == path and os.readlink(f"/proc/{entry}/cwd") == str(case.work):
                state, *fields = pathlib.Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
                if state not in "ZX" and fields[2] == entry:
                    found.append(int(entry))
        except (OSError, IndexError):
            pass
    return sorted(found)


def marks(case: Case) -> int:
    """How many rounds have been checked, over all lives of the master."""
    path = case.work / "marks"
    return path.stat().st_size // 8 if path.exists() else 0


@dataclasses.dataclass
class Round:
    """One that a worker has begun."""
    pid: int
    task: int
    at_ns: int  # of time.monotonic_ns()


def begun(case: Case) -> list[Round]:
    """In the order of their lines."""
    path = case.work / "begun"
    lines = path.read_text().splitlines() if path.exists() else []
    return [Round(*map(int, words)) for words in map(str.split, lines) if len(words) == 3]


def counts_of(job: Job) -> dict[str, int]:
    """The counts of --TOPC-stats."""
    line = last_line(job.output(), "topc: tasks ")
    check(line, f"no counts in\n{job.output()[-2000:]}")
    return {name: int(number) for name, number in re.findall(r"([a-z ]+) (\d+)", line.removeprefix("topc: ").replace(", ", ","))}


def strategy(name: str, workers: int):
    def run(case: Case):
        wanted = oracle(case, f"mw_{name}", STRATEGIES[name])
        finish(farm(case, f"mw_{name}", STRATEGIES[name], workers), wanted)
        return wanted
    return run


def anew(name: str):
    """In one process where rounds are lost, as with workers that end: what has no loss prints the same."""
    def run(case: Case):
        wanted = oracle(case, f"mw_{name}", STRATEGIES[name])
        said = subprocess.run([case.line.program(f"mw_{name}_anew"), *STRATEGIES[name]], cwd=case.work, capture_output=True, text=True,
                              check=True, timeout=PATIENCE_S).stdout.strip()
        check(said == wanted, f"where tasks begin anew the program says\n{said}\nand else\n{wanted}")
    return run


def storm(arguments: list[str], workers: int, *options: str):
    def run(case: Case):
        seed = str(case.random().randrange(1 << 30))
        words = [arguments[0], seed, *arguments[1:]]
        wanted = oracle(case, "mw_storm", words)
        finish(farm(case, "mw_storm", words, workers, *options), wanted)
        return f"seed {seed}"
    return run


def names(language: str, *compiler: str):
    def run(case: Case):
        library = case.line.build / "lib"
        words = [*compiler, "-Wall", "-Werror", "-I", ROOT / "libraries/masterworker/include", "-x", language,
                 ROOT / "ci/acceptance/programs/topc_names.c", "-o", case.work / "names"]
        for kind in ("mw-seq", "mw"):
            made = subprocess.run([*words, f"-L{library}", f"-Wl,-rpath,{library}", f"-lshadowib-{kind}"], capture_output=True, text=True,
                                  check=False)
            check(made.returncode == 0, made.stderr[-3000:])
            if kind == "mw-seq":
                alone = subprocess.run([case.work / "names"], capture_output=True, text=True, check=False, timeout=PATIENCE_S)
                check(alone.stdout == "all names\n", f"in one process it exits with {alone.returncode}: {alone.stdout}{alone.stderr}")
        job = Job(case, "names")
        job.start("master", [str(case.work / "names")])
        finish(job, "all names")
    return run


def seeds(number: int):
    def run(case: Case):
        where = case.work
        for i in range(case.done, number):
            case.work, random = where / str(i), case.random(i)  # a storm has its own files
            case.work.mkdir()
            ahead, phases, workers = random.choice((1, 1, 4)), random.choice((1, 1, 3)), random.randint(1, 4)
            words = [str(random.randint(40, 150)), str(random.randrange(1 << 30)), str(random.choice((0, 500, 3000))),
                     str(random.choice((64, 200, 5000, 100000))), "--phases", str(phases), *(["--ahead"] if ahead > 1 else [])]
            case.note(f"storm {i}: {words}, {workers} workers, {ahead} ahead")
            job, wanted = held_back(case, words, workers, f"--TOPC-aggregated-tasks={ahead}")
            await_rounds(case, job, random.randint(1, 30))
            if i % 2 == 1:
                os.kill(busy_worker(case, job, random), signal.SIGKILL)
            hurry(case, job, wanted)
            wait_for("the workers' end", lambda: not workers_of(case, "mw_storm"), PATIENCE_S)
            case.progress(i + 1)
        case.work = where
        return f"{number} storms"
    return run


def held_back(case: Case, words: list[str], workers: int, *options: str) -> tuple[Job, str]:
    """A storm that goes on until hurry() lets it come to its end, and its line in one process."""
    wanted = oracle(case, "mw_storm", words)
    files = [word for name in ("marks", "begun", "hurry", "hold") for word in (f"--{name}", str(case.work / name))]
    return farm(case, "mw_storm", [*words, *files], workers, "--TOPC-stats", *options), wanted


def hurry(case: Case, job: Job, wanted: str) -> dict[str, int]:
    check(not job.programs[-1].ended(), f"the farm ended by itself:\n{job.output()[-3000:]}")
    (case.work / "hurry").touch()
    finish(job, wanted)
    return counts_of(job)


def await_rounds(case: Case, job: Job, beyond: int):
    """Waits until so many rounds are checked. The farm cannot end before."""
    def moved():
        check(not job.programs[-1].ended(), f"the farm ended:\n{job.output()[-3000:]}")
        return marks(case) >= beyond
    wait_for(f"{beyond} rounds to be checked", moved, PATIENCE_S)


def busy_worker(case: Case, job: Job, random) -> int:
    """One that has had a task."""
    def busy():
        check(not job.programs[-1].ended(), f"the farm ended:\n{job.output()[-3000:]}")
        return sorted({one.pid for one in begun(case)} & set(workers_of(case, "mw_storm")))
    return random.choice(wait_for("a worker with a task", busy, PATIENCE_S))


def kill_with_task(case: Case, job: Job, random) -> tuple[int, int]:
    """Kills a worker that is within a task: it is held there until it is dead. Its process, and the moment, of time.monotonic_ns()."""
    victim, hold = busy_worker(case, job, random), case.work / "hold"
    (case.work / "hold.new").write_text(str(victim))
    (case.work / "hold.new").rename(hold)
    wait_for(f"{victim} to stay in a task", lambda: job.programs[-1].ended() or not hold.exists(), PATIENCE_S)
    check(not job.programs[-1].ended(), f"the farm ended:\n{job.output()[-3000:]}")
    at_ns = time.monotonic_ns()
    os.kill(victim, signal.SIGKILL)
    wait_for(f"the end of {victim}", lambda: victim not in workers_of(case, "mw_storm"), PATIENCE_S)
    return victim, at_ns


def deaths(kills: int):
    def run(case: Case):
        random = case.random()
        seed = str(random.randrange(1 << 30))
        job, wanted = held_back(case, ["200", seed, "20000", "8000"], 4)
        for _ in range(kills):
            await_rounds(case, job, marks(case) + 5)
            kill_with_task(case, job, random)
            has_workers(case, job, 4)
        counts = hurry(case, job, wanted)
        check(counts["workers lost"] >= kills, f"{kills} workers were killed: {counts}")
        return f"{kills} workers killed, {counts['copies']} copies, seed {seed}"
    return run


def leave(times: int):
    """Workers that get SIGTERM end their task: no task is begun twice but for copies. And no other is made in their place."""
    def run(case: Case):
        random = case.random()
        seed = str(random.randrange(1 << 30))
        job, wanted = held_back(case, ["200", seed, "20000", "20000", "--plain"], 3)
        has_workers(case, job, 3)
        for i in range(times):
            job.command("worker", job.name, "-n", "1")
            has_workers(case, job, 4)
            await_rounds(case, job, marks(case) + 5)
            os.kill(busy_worker(case, job, random), signal.SIGTERM)
            has_workers(case, job, 3)
        counts = hurry(case, job, wanted)
        most = counts["tasks"] + counts["copies"] + counts["workers lost"]
        check(counts["tasks"] <= len(begun(case)) <= most, f"{len(begun(case))} rounds were begun: {counts}")
        return f"{times} workers left, {len(begun(case))} rounds begun, {counts['copies']} copies, seed {seed}"
    return run


def stopped(case: Case):
    random = case.random()
    seed = str(random.randrange(1 << 30))
    job, wanted = held_back(case, ["150", seed, "20000", "5000"], 3)
    has_workers(case, job, 3)
    victim = busy_worker(case, job, random)
    os.kill(victim, signal.SIGSTOP)
    try:
        await_rounds(case, job, marks(case) + 20)
        counts = hurry(case, job, wanted)
    finally:
        os.kill(victim, signal.SIGCONT)
    wait_for("the workers' end", lambda: not workers_of(case, "mw_storm"), 60)
    check(counts["copies"] > 0, f"the worker was stopped with a task, and nobody else did it: {counts}")
    return f"{counts['copies']} copies, seed {seed}"


def has_workers(case: Case, job: Job, number: int):
    """Waits until the farm has so many, while it runs."""
    master = job.programs[-1]
    wait_for(f"{number} workers", lambda: len(workers_of(case, "mw_storm")) == number or master.ended(), PATIENCE_S)
    check(not master.ended(), f"the farm ended before it had {number} workers:\n{job.output()[-3000:]}")


def kill_all(case: Case, job: Job):
    """The master at once; its workers end by themselves."""
    for pid in [member.pid for member in job.members()] if job.generation == 0 else []:
        os.kill(pid, signal.SIGKILL)
    job.stop()
    job.programs = []
    wait_for("the workers' end", lambda: not workers_of(case, "mw_storm"), PATIENCE_S)


def send_away(case: Case, job: Job):
    """SIGTERM to all workers, as at a batch system's time limit, until the master says that it has none."""
    def gone():
        for pid in workers_of(case, "mw_storm"):
            try:
                os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:
                pass
        check(not job.programs[-1].ended(), f"the farm ended:\n{job.output()[-3000:]}")
        return "all workers have left" in job.output()
    wait_for("all workers to leave", gone, PATIENCE_S)


def restart(restarts: list[int]):
    def run(case: Case):
        random = case.random()
        seed = str(random.randrange(1 << 30))
        job, wanted = held_back(case, ["200", seed, "20000", "8000"], 2)
        os.kill(busy_worker(case, job, random), signal.SIGKILL)
        job.command("worker", job.name, "-n", "2")
        has_workers(case, job, 4)
        for number in restarts:
            check(len(job.members()) == 1, "workers are members of the job")
            taken = job.checkpoint(kill=False)
            await_rounds(case, job, marks(case) + 3)
            kill_all(case, job)
            job.restart(taken, options=("--workers", str(number)))
            has_workers(case, job, number)
            await_rounds(case, job, marks(case) + 3)
        send_away(case, job)
        taken = job.checkpoint(kill=False)
        kill_all(case, job)
        job.restart(taken)
        has_workers(case, job, restarts[-1])
        hurry(case, job, wanted)
        numbers = (case.work / "marks").read_text().split()
        check(len(numbers) - len(set(numbers)) >= len(restarts), "no round was checked again: the restarts went on from nowhere")
        return f"restarted with {', '.join(map(str, restarts))} workers, seed {seed}"
    return run


def statistics(case: Case, workers: int, off: str) -> dict:
    """The counts that a farm tells at its end, with a guard left out. It does not end before it has had all its workers, and the first
    of them comes when its master has been seen alone."""
    job = Job(case, f"guards{workers}{off}", environment={"SHADOWIB_GUARD_OFF": off})
    job.start("master", [case.line.program("mw_storm_unguarded"), "40", "7", "2000", "--least", str(workers), "--TOPC-num-slaves=0", "--TOPC-stats"])
    seen_alone(job, spins=off == "m16")
    job.command("worker", job.name, "-n", str(workers))
    job.finish(PATIENCE_S)
    counts = counts_of(job)
    return {"bytes": counts["buffer bytes"], "spins": counts["spins alone"]}


def seen_alone(job: Job, spins: bool):
    """Waits until a master without a worker has slept some times, or if it spins, until it has computed more than its start takes."""
    def computed_s(pid: int) -> float:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def sleeps(pid: int) -> int:
        return int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text(), re.M)[1])

    wait_for("the master", lambda: job.members(), PATIENCE_S)
    pid = job.members()[0].pid
    seen, wanted = (computed_s, 2.0) if spins else (sleeps, 10)
    before = seen(pid)
    wait_for("a master alone to spin" if spins else "a master alone to sleep", lambda: seen(pid) >= before + wanted, PATIENCE_S)


def guard_m14(case: Case):
    """The master's buffers are those of one worker, however many there are."""
    few, many = statistics(case, 1, ""), statistics(case, 4, "")
    check(few["bytes"] == many["bytes"], f"buffers grow: {few} and {many}")
    few, many = statistics(case, 1, "m14"), statistics(case, 4, "m14")
    check(few["bytes"] < many["bytes"], "without the guard they should")


def guard_m16(case: Case):
    """A master without a worker sleeps."""
    check(statistics(case, 1, "")["spins"] == 0, "it spins")
    check(statistics(case, 1, "m16")["spins"] > 0, "without the guard it should")


def checks(line: Line):
    quick = line.quick
    for name in STRATEGIES:
        for workers in ((2,) if quick else (1, 4)):
            line.case(f"{name} {workers}", strategy(name, workers))
        line.case(f"{name} anew", anew(name))
    line.case("names C17", names("c", "cc", "-std=c17"))
    line.case("names C++20", names("c++", "c++", "-std=c++20"))
    line.case("storm", storm(["300", "500", "200"], 2))
    line.case("storm large", storm(["120", "0", "300000"], 2))
    line.case("storm ahead", storm(["300", "500", "200", "--ahead"], 2, "--TOPC-aggregated-tasks=4"))
    line.case("storm phases", storm(["200", "500", "200", "--phases", "4"], 2))
    line.case("seeds", seeds(2 if quick else 200), 2 if quick else 200)
    line.case("deaths", deaths(2 if quick else 50))
    line.case("leave", leave(1 if quick else 30))
    line.case("stopped", stopped)
    line.case("restart", restart([1, 3] if quick else [1, 2, 8, 3]))
    line.case("m14", guard_m14)
    line.case("m16", guard_m16)


def run() -> int:
    line = Line("task_farms", __doc__.splitlines()[0])
    checks(line)
    return line.finish()


if __name__ == "__main__":
    main(run)
