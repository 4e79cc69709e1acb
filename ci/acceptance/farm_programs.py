"""MW8: the task farms ecm and cubes give the right answer, whatever happens to their workers and their master.

  ecm, cubes    small inputs: the answer is that of one process, and the one that is known
  refusals      wrong usage and input: the exit code and the message that the README tells
  killed        one of four workers is killed, again and again; then the job is saved, killed and restarted with 1, 2, 8, or 0 and later 2
                workers, again and again

ecm's numbers are made of known primes, and cubes' formulas are van der Waerden's, whose answers are known: W(4,5) = 55, W(3,10) = 97.
So no answer depends on another run. With variables given a truth value, a formula that has no answer is one still, and takes less time.
If a farm ends before it could be killed, another one gets more work.
"""
import os
import random
import signal
import subprocess

from common import Case, Failure, Line, check, main
from jobs import Job, wait_for
from task_farms import workers_of

PATIENCE_S = 300
ROUNDS = 3  # with more work each, until it lasts long enough
WORKERS = 4
KILLS = {True: 1, False: 50}
RESTARTS = {True: [(0, 2)], False: [(1,), (2,), (8,), (0, 2)] * 5}  # workers that the restart makes, and that are asked for then
# Van der Waerden's formulas whose answer is no, and variables that are given.
CUBES = {True: ((10, 97), (11, 114), (12, 135)), False: ((13, 160, -80, 40), (13, 160, -80, -40), (13, 160, -80))}


# Inputs with known answers.

def is_prime(n: int) -> bool:
    """Miller-Rabin; with these bases right below 3.3e24."""
    small = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
    if n < 2 or any(n % p == 0 for p in small):
        return n in small
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in small:
        x = pow(base, odd, n)
        if x not in (1, n - 1) and not any((x := x * x % n) == n - 1 for _ in range(twos - 1)):
            return False
    return True


def prime(source: random.Random, digits: int) -> int:
    while not is_prime(n := source.randrange(10 ** (digits - 1), 10 ** digits)):
        pass
    return n


def numbers(source: random.Random, count: int) -> dict[str, str]:
    """Numbers, and the lines that ecm prints for them."""
    found = {}
    for _ in range(count):
        p, q = sorted((prime(source, 14), prime(source, 15)))
        found[str(p * q)] = f"{p * q} = {p} * {q}"
    return found


def van_der_waerden(short: int, long: int, n: int) -> list[list[int]]:
    """Satisfiable iff n < W(short, long): no `short` true and no `long` false variables of 1..n in arithmetic progression."""
    return [[sign * (first + i * step) for i in range(length)] for length, sign in ((short, -1), (long, 1)) for first in range(1, n + 1)
            for step in range(1, (n - first) // (length - 1) + 1)]


def formula(case: Case, short: int, long: int, n: int, *given: int) -> tuple[str, list[list[int]]]:
    clauses = van_der_waerden(short, long, n) + [[literal] for literal in given]
    path = case.work / f"w{short}_{long}_{n}{''.join(f'_{literal}' for literal in given)}.cnf"
    path.write_text(f"c van der Waerden\np cnf {n} {len(clauses)}\n" + "".join(" ".join(map(str, c)) + " 0\n" for c in clauses))
    return str(path), clauses


# One run.

def once(words: list[str], code: int, text: str = "") -> subprocess.CompletedProcess:
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    check(done.returncode == code, f"{' '.join(words)[:200]} exited with {done.returncode}:\n{done.stdout[-1000:]}{done.stderr[-1000:]}")
    return done


def factorisations(text: str) -> list[str]:
    return [line for line in text.splitlines() if " = " in line]


def answers(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("s ")]


def start(case: Case, name: str, words: list[str], workers: int) -> Job:
    job = Job(case, name)
    job.start("master", [*words, f"--TOPC-num-slaves={workers}"])
    return job


def small_ecm(case: Case):
    wanted = {**numbers(case.random(), 4), "2^128+1": "2^128+1 = 59649589127497217 * 5704689200685129054721",
              "20!3": "20!3 = 2^7 * 5^2 * 7 * 11 * 17"}
    path = case.work / "numbers"
    path.write_text("".join(f"{number} // of a file\n" for number in wanted))
    alone = once([case.line.program("mw_ecm_seq"), "--file", str(path)], 0)
    check(alone.stdout.splitlines() == list(wanted.values()), f"in one process:\n{alone.stdout}\nwanted:\n" + "\n".join(wanted.values()))
    job = start(case, "ecm", [case.line.program("mw_ecm"), "--file", str(path)], 2)
    job.finish(PATIENCE_S)
    check(factorisations(job.output()) == list(wanted.values()), job.output()[-3000:])
    return f"{len(wanted)} numbers"


def is_model(text: str, clauses: list[list[int]]) -> bool:
    true = {int(word) for line in text.splitlines() if line.startswith("v ") for word in line.split()[1:]}
    return 0 in true and not any(-v in true for v in true - {0}) and all(true.intersection(clause) for clause in clauses)


def small_cubes(case: Case):
    for n, answer, code in ((54, "s SATISFIABLE", 10), (55, "s UNSATISFIABLE", 20)):
        path, clauses = formula(case, 4, 5, n)
        alone = once([case.line.program("mw_cubes_seq"), path], code)
        job = start(case, f"cubes{n}", [case.line.program("mw_cubes"), "--exit-zero", path], 2)
        job.finish(PATIENCE_S)
        for text in (alone.stdout, job.programs[0].text()):
            check(answers(text) == [answer], text[-3000:])
            check(code == 20 or is_model(text, clauses), f"the model is none:\n{text[-3000:]}")
    return "54 can be coloured, 55 cannot"


def refusals(case: Case):
    ecm, cubes = case.line.program("mw_ecm_seq"), case.line.program("mw_cubes_seq")
    for words, text, code, message in (
            ([ecm], "", 2, "no numbers"), ([ecm, "2^^3"], "", 2, "a number was expected at character 3"), ([ecm, "1"], "", 2, "below 2"),
            ([ecm, "-f", "nowhere"], "", 2, "nowhere: No such file"), ([ecm, "-f", "-"], "12 // fine\n3x\n", 2, "'3x'"),
            ([ecm, "-d", "many", "9"], "", 2, "--digits many"), ([ecm, "-c", "9", "9"], "", 2, "needs --b1"),
            ([ecm, "--b1", "50", "-c", "2", "(10^30+57)*(10^40+121)"], "", 3, ""),
            ([ecm, "--TOPC-num-slaves=x", "9"], "", 1, "--TOPC-num-slaves=x: a number is needed"), ([ecm, "--TOPC-help"], "", 0, ""),
            ([ecm, "--help"], "", 0, ""), ([cubes, "--help"], "", 0, ""), ([cubes], "", 2, "no formula"),
            ([cubes, "nowhere"], "", 2, "nowhere: No such file"), ([cubes, "-"], "p cnf 2 1\n1 3 0\n", 2, "line 2"),
            ([cubes, "--depth", "99", "-"], "", 2, "--depth 99"), ([cubes, "-"], "p cnf 2 1\n1 2 0\n", 10, ""),
            ([cubes, "--exit-zero", "-"], "p cnf 1 2\n1 0\n-1 0\n", 0, "")):
        done = once(words, code, text)
        check(message in done.stderr, f"{' '.join(words)} says {done.stderr!r}")
    return "18 command lines"


# Killed, saved, restarted.

class Ended(Exception):
    """The farm came to its end before it could be disturbed."""


class Farm:
    """`found`: how far its output has come."""

    def __init__(self, case: Case, name: str, program: str, words: list[str], found):
        self.case, self.program, self.found = case, program, found
        self.job = start(case, name, [case.line.program(program), *words], WORKERS)

    def advance(self, by: int):
        """Waits until it has found more."""
        goal = self.found(self.job.output()) + by
        wait_for("progress", lambda: self.found(self.job.output()) >= goal or self.job.programs[-1].ended(), PATIENCE_S)
        if self.job.programs[-1].ended():
            raise Ended

    def kill_worker(self, source: random.Random):
        alive = wait_for("a worker", lambda: workers_of(self.case, self.program) or self.job.programs[-1].ended(), PATIENCE_S)
        if alive is True:
            raise Ended
        victim = source.choice(alive)
        self.kill(victim)
        wait_for(f"the end of {victim}", lambda: victim not in workers_of(self.case, self.program), PATIENCE_S)
        self.case.note(f"killed worker {victim}")

    def kill(self, pid: int):
        """Whoever is gone by now has ended by itself, with the farm."""
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            raise Ended from None

    def save_and_kill(self) -> str:
        """Saves it, lets it go on, and kills the master. Its workers end by themselves."""
        job = self.job
        before = len(job.output())
        saved = job.command("checkpoint", job.name, "--timeout", "120", timeout=180, check_code=False)
        if saved.returncode != 0:
            # Its end, or a fault.
            check(job.programs[-1].ended(), f"the checkpoint failed with {saved.returncode}: {saved.stderr}")
            raise Ended
        wait_for("more output", lambda: len(job.output()) > before or job.programs[-1].ended(), PATIENCE_S)
        if job.programs[-1].ended():
            raise Ended
        if job.generation == 0:
            for member in job.members():
                self.kill(member.pid)
        else:  # status has the process id that the restarted member sees
            job.stop()
        wait_for("the master's end", job.programs[-1].ended, PATIENCE_S)
        if job.programs[-1].process.returncode == 0:
            raise Ended
        wait_for("the workers' end", lambda: not workers_of(self.case, self.program), PATIENCE_S)
        return saved.stdout.strip().splitlines()[-1]

    def restart(self, path: str, workers: tuple[int, ...]):
        # The files are cut to what they were, so that each line stands there once.
        self.job.restart(path, options=("--workers", str(workers[0]), "--files", "roll-back"))
        wait_for("the master", lambda: self.job.programs[-1].ended() or self.job.members(), PATIENCE_S)
        self.has_workers(workers[0])
        for more in workers[1:]:
            if self.job.command("worker", self.job.name, "-n", str(more), check_code=False).returncode != 0:
                check(self.job.programs[-1].ended(), "the farm takes no more workers")
                raise Ended
        self.has_workers(sum(workers))

    def has_workers(self, number: int):
        """Waits until it has so many, or has ended."""
        wait_for(f"{number} workers", lambda: len(workers_of(self.case, self.program)) == number or self.job.programs[-1].ended(), PATIENCE_S)


def disturbed(case: Case, make) -> str:
    """`make(attempt)`: a Farm, with more work each time, and what judges its end. One that ended too soon is judged as the others are."""
    kills, restarts = KILLS[case.line.quick], RESTARTS[case.line.quick]
    for attempt in range(ROUNDS):
        farm, judge = make(attempt)
        source = case.random(f"kills{attempt}")
        try:
            for number in range(kills):
                if number % 10 == 0:
                    farm.advance(1)
                farm.has_workers(WORKERS)
                farm.kill_worker(source)
            for workers in restarts:
                farm.advance(1)
                farm.restart(farm.save_and_kill(), workers)
        except Ended:
            case.note(f"round {attempt} ended too soon")
            farm.job.finish(PATIENCE_S)
            judge(farm.job.output())
            continue
        farm.job.finish(PATIENCE_S)
        judge(farm.job.output())
        with_workers = ", ".join("+".join(map(str, workers)) for workers in restarts[:4])
        return f"{kills} workers killed, {len(restarts)} restarts, with {with_workers} workers in turn, round {attempt}"
    raise Failure(f"{ROUNDS} farms ended before they could be disturbed")


def killed_ecm(case: Case) -> str:
    quick = case.line.quick

    def make(attempt: int):
        wanted = numbers(case.random(f"numbers{attempt}"), (8 + 4 * (KILLS[quick] + len(RESTARTS[quick]))) << attempt)
        path = case.work / f"numbers{attempt}"
        path.write_text("\n".join(wanted))
        farm = Farm(case, f"ecm{attempt}", "mw_ecm", ["--ecm-only", "--file", str(path)], lambda text: text.count(": factor "))

        def judge(text: str):
            check(factorisations(text) == list(wanted.values()), f"wanted:\n{chr(10).join(wanted.values())}\ncame:\n{text[-6000:]}")
        return farm, judge
    return disturbed(case, make)


def killed_cubes(case: Case) -> str:
    def make(attempt: int):
        path, _ = formula(case, 3, *CUBES[case.line.quick][attempt])
        farm = Farm(case, f"cubes{attempt}", "mw_cubes", ["--exit-zero", "--conflicts", "1000", path],
                    lambda text: text.count("cubes refuted"))

        def judge(text: str):
            check(answers(text) == ["s UNSATISFIABLE"], text[-3000:])
        return farm, judge
    return disturbed(case, make)


def run() -> int:
    line = Line("farm_programs", __doc__.splitlines()[0])
    line.case("ecm", small_ecm)
    line.case("cubes", small_cubes)
    line.case("refusals", refusals)
    line.case("ecm killed", killed_ecm)
    line.case("cubes killed", killed_cubes)
    return line.finish()


if __name__ == "__main__":
    main(run)
