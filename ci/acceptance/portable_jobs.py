"""Jobs of portable programs: `shadowib checkpoint` has each process save at its next site, and the images are a set like others. It is listed, verified,
inspected, restarted, also on other architectures. Commands and processes are killed in the middle: a set is whole or not there."""
import concurrent.futures
import fcntl
import json
import os
import pathlib
import signal
import struct
import subprocess
import time

from common import Case, Line, check, main
from portable_programs import HERE, Program, at_hand

KILLS, QUICK = 50, 8
STEPS = 400
PATIENCE_S = 120
COUNT = """#include <shadowib/portable.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
int main(int argc, char** argv) {
  const int most = atoi(argv[1]);
  long* sums = malloc(50000 * sizeof *sums);
  for (int i = 0; i < 50000; i++) sums[i] = i;
  for (int step = 0; step < most; step++) {
    for (int i = 0; i < 50000; i++) sums[i] = (sums[i] * 3 + step) % 1000003;
    if (getenv("COUNT_PAUSE_US")) nanosleep(&(struct timespec){0, atol(getenv("COUNT_PAUSE_US")) * 1000}, NULL);
    shadowib_portable_site();
    while (step == most / 2 && getenv("COUNT_HOLD")) {
      nanosleep(&(struct timespec){0, 1000000}, NULL);
      shadowib_portable_site();
    }
  }
  long all = 0;
  for (int i = 0; i < 50000; i++) all = (all * 31 + sums[i]) % 1000003;
  printf("%s %ld\\n", argv[1], all);
  return 0;
}
"""
NO_SITE = """#include <shadowib/portable.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static SHADOWIB_NO_SITE void kill_saver(void) {
  int saver = 0;
  FILE* children = fopen("/proc/thread-self/children", "r");
  if (children && fscanf(children, "%d", &saver) == 1) kill(saver, SIGKILL);
  if (children) fclose(children);
}
static void* other(void* unused) { pause(); return unused; }
int main(int argc, char** argv) {
  pthread_t thread;
  if (!strcmp(argv[1], "thread")) pthread_create(&thread, NULL, other, NULL);
  if (!strcmp(argv[1], "silent")) pause();
  if (!strcmp(argv[1], "ends")) {
    while (access(argv[2], F_OK)) usleep(1000);
    return 0;
  }
  const int many = strcmp(argv[1], "saver") ? 1 : 16 << 20;
  int* values = malloc(many * sizeof *values);
  for (int i = 0; i < many; i++) values[i] = i;
  for (;;) {
    usleep(1000);
    shadowib_portable_site();
    if (many > 1) kill_saver();
  }
}
"""
GROWS = """#include <shadowib/portable.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#define MIB 1048576L
int main(void) {
  unsigned char* block = malloc(64 * MIB);
  memset(block, 7, 64 * MIB);
  for (int i = 65; i < 100; i++) {
    block = realloc(block, i * MIB);
    for (long at = (i - 1) * MIB; at < i * MIB; at++) if (block[at]) return 3;
    if (block[64 * MIB - 1] != 7) return 4;
  }
  block = realloc(block, 10 * MIB + 5);
  block = realloc(block, 20 * MIB);
  for (long at = 10 * MIB + 5; at < 20 * MIB; at++) if (block[at]) return 5;
  struct rusage used;
  getrusage(RUSAGE_SELF, &used);
  printf("%ld\\n", used.ru_maxrss);
  return 0;
}
"""


class Job:
    """A job in a directory of its own."""

    def __init__(self, case: Case, name: str = "solve"):
        self.case, self.name, self.directory = case, name, case.work / "d"
        self.shadowib = case.line.program("shadowib")
        self.started: list[subprocess.Popen] = []

    def command(self, *words: str) -> subprocess.CompletedProcess:
        return subprocess.run([self.shadowib, words[0], "--dir", str(self.directory), *words[1:]], capture_output=True, text=True, check=False,
                              timeout=PATIENCE_S)

    def start(self, *words: str, options: tuple[str, ...] = (), pause_us: int = 0) -> subprocess.Popen:
        """Held at sites in the middle, or with so long a pause before each. A restart is not."""
        slow = {"COUNT_PAUSE_US": str(pause_us)} if pause_us else {"COUNT_HOLD": "yes"}
        process = subprocess.Popen([self.shadowib, "run", "--portable", "--dir", str(self.directory), "--job", self.name, *options, "--", *words],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **slow})
        self.started.append(process)
        return process

    def await_member(self, member: int = 0, pid: int | None = -1):
        """Until that member is there: the process started last, or with None any."""
        pid = self.started[-1].pid if pid == -1 else pid
        deadline, file = time.monotonic() + PATIENCE_S, self.directory / "jobs" / self.name / "portable" / f"member-{member}.json"
        while not file.exists() or pid not in (None, json.loads(file.read_text())["pid"]):
            check(time.monotonic() < deadline, "the process has not started")
            time.sleep(0.005)

    def requested(self) -> bytes:
        """What the processes have been asked last."""
        file = self.directory / "jobs" / self.name / "portable" / "request"
        return file.read_bytes() if file.exists() else b""

    def end(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        self.started.clear()

    def checkpoint(self, *options: str) -> pathlib.Path:
        done = self.command("checkpoint", self.name, *options)
        check(done.returncode == 0, f"checkpoint {options}: {done.returncode}, {done.stderr}")
        return pathlib.Path(done.stdout.splitlines()[-1])

    def sets(self) -> list[dict]:
        if not self.directory.exists():  # nothing has begun
            return []
        done = self.command("list", "--json")
        check(done.returncode == 0, f"list: {done.stderr}")
        return json.loads(done.stdout)["sets"]

    def refused(self, code: int, words: str, *command: str):
        done = self.command(*command)
        check(done.returncode == code, f"{command}: exit code {done.returncode} instead of {code}: {done.stderr}")
        check(words in done.stderr, f"{command} does not say '{words}': {done.stderr}")


def program_of(case: Case, text: str, name: str, architecture=HERE) -> Program:
    (case.work / f"{name}.c").write_text(text)
    return Program(case, case.work / f"{name}.c", architecture)


def saved(case: Case) -> str:
    job, here = Job(case), program_of(case, COUNT, "count")
    wanted = here.output(str(STEPS))
    process = job.start(str(here.path), str(STEPS))
    job.await_member()
    first, second = job.checkpoint(), job.checkpoint("--kill")
    process.communicate()
    check(process.returncode == -signal.SIGKILL, f"--kill left the process: {process.returncode}")
    check([s["name"] for s in job.sets()] == ["solve.0001", "solve.0002"], f"list: {job.sets()}")
    check(all(s["backend"] == "portable" and s["ok"] for s in job.sets()), f"list: {job.sets()}")
    for path in (first, second):
        check(job.command("verify", str(path)).returncode == 0, f"{path} is not intact")
    shown = json.loads(job.command("inspect", "solve.0002", "--json").stdout)
    check(shown["kind"] == "processes" and shown["images"][0]["command_line"] == [str(here.path), str(STEPS)], f"inspect: {shown}")
    values = job.command("inspect", "solve.0002", "--values").stdout
    check("sums of main()" in values and "most of main(), line 6 = " in values, f"inspect --values: {values[:2000]}")
    done = job.command("restart", "solve")
    check(done.returncode == 0 and wanted in done.stdout, f"restart: {done.returncode}, {done.stdout}, {done.stderr}")
    check(job.command("checkpoint", "solve").returncode == 3, "a checkpoint of a job that has ended")
    return "listed, verified, inspected, restarted"


def moved(case: Case) -> str:
    """To each architecture, by the set alone."""
    job, wanted = Job(case), ""
    left_out = ("powerpc",) if case.line.quick else ()  # it costs as much as another
    programs = {a: program_of(case, COUNT, "count", a) for a in at_hand(case) if a.name not in left_out}
    wanted = programs[HERE].output(str(STEPS))
    job.start(str(programs[HERE].path), str(STEPS))
    job.await_member()
    job.checkpoint("--kill")
    job.end()
    for architecture, program in programs.items():
        if architecture == HERE:
            continue
        job.refused(20, "is a program of", "restart", "solve.0001", "--program", str(program.path))
        done = job.command("restart", "solve.0001", "--program", str(program.path), "--runner",
                           f"{architecture.name}={' '.join(architecture.runner)}")
        check(done.returncode == 0 and wanted in done.stdout, f"{architecture.name}: {done.returncode}, {done.stdout}, {done.stderr}")
    # And a job of another architecture is saved, and comes back here.
    there = [a for a in programs if a != HERE][-1]
    job.start(str(programs[there].path), str(STEPS), options=("--runner", f"{there.name}={' '.join(there.runner)}"))
    job.await_member()
    path = job.checkpoint("--kill")
    job.end()
    done = job.command("restart", str(path), "--program", str(programs[HERE].path))
    check(done.returncode == 0 and wanted in done.stdout, f"from {there.name}: {done.returncode}, {done.stdout}, {done.stderr}")
    return ", ".join(a.name for a in programs)


def members(case: Case) -> str:
    """Three processes of one job, each at its own site."""
    job, here = Job(case), program_of(case, COUNT, "count")
    wanted = {str(n): here.output(str(n)) for n in (350, 400, 450)}
    for member, steps in enumerate(wanted):
        job.start(str(here.path), steps)
        job.await_member(member)
    job.refused(2, "--kill, --timeout, --keep", "checkpoint", "solve", "--incremental")
    pids = [process.pid for process in job.started]
    told = job.command("status", "solve")
    check(told.returncode == 0 and "of portable programs, alive" in told.stdout, f"status: {told.returncode}, {told.stdout}, {told.stderr}")
    check([line.split()[:2] for line in told.stdout.splitlines()[2:]] == [[str(i), str(pid)] for i, pid in enumerate(pids)], f"status: {told.stdout}")
    told = json.loads(job.command("status", "--json").stdout)["jobs"][0]
    check(told["alive"] and told["portable"] and [member["pid"] for member in told["members"]] == pids, f"status --json: {told}")
    path = job.checkpoint("--kill")
    job.end()
    told = job.command("status", "solve")
    check(told.returncode == 0 and "not alive" in told.stdout, f"status of a job that has ended: {told.returncode}, {told.stdout}, {told.stderr}")
    check(sorted(p.name for p in path.iterdir()) == ["manifest.json", "manifest.xxh3", *(f"member-{i}.psi" for i in range(3))], f"{list(path.iterdir())}")
    done = job.command("restart", "solve")
    check(done.returncode == 0 and all(line in done.stdout for line in wanted.values()), f"restart: {done.returncode}, {done.stdout}, {done.stderr}")
    check("restored 3 processes" in done.stderr, done.stderr)
    return "3 processes"


def refusals(case: Case) -> str:
    job, program, count = Job(case), program_of(case, NO_SITE, "site"), program_of(case, COUNT, "count")
    for how, code, words in (("thread", 4, "member 0: the process has 2 threads"), ("saver", 4, "member 0: its saver was ended by signal 9"), ("silent", 7, "0 of 1 processes"), ("ends", 8, "member 0 ended before")):
        end = case.work / f"end-{how}"
        process = job.start(str(program.path), how, str(end))
        job.await_member()
        before = job.requested()
        with concurrent.futures.ThreadPoolExecutor() as pool:
            refused = pool.submit(job.refused, code, words, "checkpoint", "solve", "--timeout", "100" if code != 7 else "0.5")
            while how == "ends" and job.requested() == before and not refused.done():
                time.sleep(0.005)
            end.touch()
            refused.result()
        check(how != "ends" or process.wait(PATIENCE_S) == 0, f"the program ended with {process.returncode}")
        check(not job.sets() and not list((job.directory / "sets").iterdir()), f"{how}: a part of a set is left")
        if how in ("thread", "saver"):
            check(process.poll() is None, "the refused process does not go on")
        job.end()
        (job.directory / "jobs" / "solve" / "portable" / "member-0.json").unlink()
    job.start(str(count.path), "100000")
    job.await_member()
    path = job.checkpoint()
    job.refused(11, "job solve is alive", "restart", "solve")
    job.refused(2, "--program, --runner", "restart", "solve", "--members", "0")
    job.end()
    job.refused(3, "no process of job solve is alive", "checkpoint", "solve")
    done = job.command("restart", "solve", "--program", str(program.path))
    check(done.returncode == 20 and "the program has no file count.c" in done.stderr, f"another program: {done.returncode}, {done.stderr}")
    done = job.command("restart", "solve", "--program", str(case.work / "nowhere"))
    check(done.returncode == 3 and "nowhere" in done.stderr and "restored" not in done.stderr, f"no program: {done.returncode}, {done.stderr}")
    image = path / "member-0.psi"
    content = image.read_bytes()
    for damaged, words in ((content[:9000] + bytes([content[9000] ^ 1]) + content[9001:], "XXH3 differs"), (content[:-1], "is truncated")):
        image.write_bytes(damaged)
        job.refused(5, words, "verify", "solve")
        job.refused(5, words, "restart", "solve")
    image.write_bytes(content)
    (path / "more").write_text("")
    job.refused(5, "does not belong to the set", "verify", "solve")
    return "by name, with their exit codes"


def alone(case: Case) -> str:
    """One restart at a time: its lock is there from before it looks until its processes have ended."""
    job, count = Job(case), program_of(case, COUNT, "count")
    job.start(str(count.path), "100000")
    job.await_member()
    job.checkpoint("--kill")
    job.end()
    path = job.directory / "jobs" / "solve" / "alive" / "restart"
    with open(path, "w", encoding="ascii") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        job.refused(11, "job solve is just being restarted by another command", "restart", "solve")
    (job.directory / "jobs" / "solve" / "portable" / "member-0.json").unlink()
    job.started.append(subprocess.Popen([job.shadowib, "restart", "--dir", str(job.directory), "solve"], stdout=subprocess.DEVNULL,
                                        env={**os.environ, "COUNT_PAUSE_US": "20000"}))
    job.await_member(pid=None)
    with open(path, "w", encoding="ascii") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            check(False, "a restart that runs does not hold the lock of restarts")
        except BlockingIOError:
            pass
    job.refused(11, "job solve is alive", "restart", "solve")
    job.end()
    waits_for_a_checkpoint(job)
    return "refused by name, and waits for a checkpoint that finds nobody"


def is_held(lock) -> bool:
    """By another process. Asking takes no lock."""
    asked = struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 0, 0, 0)
    return struct.unpack("hhqqi4x", fcntl.fcntl(lock, fcntl.F_GETLK, asked))[0] != fcntl.F_UNLCK


def waits_for_a_checkpoint(job: Job):
    """Somebody asks for a checkpoint just when the job is restarted."""
    alive = job.directory / "jobs" / job.name / "alive"
    epoch = sorted(alive.glob("*.0"), key=lambda path: path.stat().st_mtime_ns)[-1].name[:-len(".0")]
    with open(alive / f"{epoch}.ckpt0", "w", encoding="ascii") as checkpoint:
        fcntl.lockf(checkpoint, fcntl.LOCK_EX)
        restart = subprocess.Popen([job.shadowib, "restart", "--dir", str(job.directory), "solve"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        job.started.append(restart)
        with open(alive / "restart", "rb") as lock:
            while restart.poll() is None and not is_held(lock):
                time.sleep(0.005)
    _, err = restart.communicate(timeout=PATIENCE_S)
    check(restart.returncode == 0, f"a restart beside a checkpoint: {restart.returncode}, {err}")


def killed(case: Case) -> str:
    """The command, or the process, dies at any moment of a checkpoint."""
    job, here, random = Job(case), program_of(case, COUNT, "count"), case.random()
    wanted = here.output(str(STEPS))
    kills, committed, left = QUICK if case.line.quick else KILLS, 0, 0
    process = job.start(str(here.path), str(10 ** 6), pause_us=200)
    job.await_member()
    job.checkpoint()
    for i in range(kills):
        with subprocess.Popen([job.shadowib, "checkpoint", "solve", "--dir", str(job.directory)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
            time.sleep(random.uniform(0, 0.2))
            (command if i % 2 else process).send_signal(signal.SIGKILL)
            command.communicate()
        committed += command.returncode == 0
        if not i % 2:  # the command has told it, was done before, or found nobody
            process.communicate()
            check(command.returncode in (0, 3, 8), f"the process died, and the command ended with {command.returncode}")
            process = job.start(str(here.path), str(10 ** 6), pause_us=200)
            job.await_member()
        left += sum(p.name.startswith(".") for p in (job.directory / "sets").iterdir())
        for entry in job.sets():
            check(entry["ok"], f"{entry}")
        check(job.command("verify", "solve").returncode == 0, "the newest set is damaged")
        # The process that lost its command goes on, and is saved again.
        job.checkpoint("--keep", "2")
    job.end()
    check(job.command("gc", "--keep", "1").returncode == 0 and [p.name[0] for p in (job.directory / "sets").iterdir()] == ["s"], "gc leaves parts")
    # --kill whose command dies: the process ends if there is a set, else goes on.
    lost = 0
    for _ in range(kills // 2):
        process = job.start(str(here.path), str(STEPS), pause_us=200)
        job.await_member()
        before = len(job.sets())
        with subprocess.Popen([job.shadowib, "checkpoint", "solve", "--kill", "--dir", str(job.directory)], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) as command:
            time.sleep(random.uniform(0, 0.2))
            command.send_signal(signal.SIGKILL)
        text, _ = process.communicate(timeout=PATIENCE_S)
        made = len(job.sets()) > before
        lost += made
        check(process.returncode == (-signal.SIGKILL if made else 0), f"{'a' if made else 'no'} set, and the process ended with {process.returncode}")
        if made:
            done = job.command("restart", "solve")
            check(done.returncode == 0, f"restart: {done.stderr}")
            text = done.stdout
        check(wanted in text, f"another result: {text}")
    return f"{kills} kills, {committed} sets committed before, {left} parts left to gc; --kill: {lost} ended"


def grows(case: Case) -> str:
    """A large block grows without a copy, and shrinks without a trace."""
    most = int(program_of(case, GROWS, "grows").output())
    check(most < 115 * 1024, f"{most} KiB for a block of 99 MiB: realloc copies")
    return f"{most // 1024} MiB at most for a block of 99 MiB"


def run() -> int:
    line = Line("portable_jobs", __doc__)
    for case in (saved, moved, members, refusals, alone, killed, grows):
        line.case(case.__name__, case)
    return line.finish()


if __name__ == "__main__":
    os.umask(0o077)
    main(run)
