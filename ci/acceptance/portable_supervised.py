"""A BSP program compiled for two architectures is kept alive on pretended hosts: it loses processes and hosts, is restarted by itself, also on the
other architecture, and ends with the right result."""
import contextlib
import json
import os
import shutil
import signal
import subprocess
import time

from common import Case, Line, Skip, check, main
from jobs import descendants, wait_for
from lost_hosts import Hosts
from portable_bsp import PATIENCE_S, RING, BspJob, at_hand, compiled, runners
from portable_programs import HERE

LOSSES, QUICK = 20, 1
GIVEN_UP, SAVED = 70, 75
OTHER = "aarch64"
# A remote shell that knows hosts by name only. A host that is down does not answer.
RSH = """#!/bin/sh
host=$1
shift
[ ! -e "{work}/down.$host" ] || exit 255
case "$*" in *"'--share'"*) echo $$ >"{work}/share.$host";; esac
exec sh -c "$*"
"""
ENDS = """#include <bsp.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static int end;
int main(void) {
  bsp_begin(bsp_nprocs());
  bsp_push_reg(&end, sizeof end);
  bsp_sync();
  while (!end) {
    const int now = access(getenv("RING_HOLD"), F_OK) == 0;
    if (bsp_pid() == 0)
      for (int i = 0; i < bsp_nprocs(); i++) bsp_put(i, &now, &end, 0, sizeof now);
    nanosleep(&(struct timespec){0, 1000000}, 0);
    bsp_sync();
  }
  if (getenv("ENDS_BADLY")) bsp_abort("the end\\n");
  bsp_end();
  return bsp_pid() == 1 ? 3 : 0;
}
"""


class Supervised(BspJob):
    """Its output and its supervisor's are in files, for one supervisor may go on after another."""

    def __init__(self, case: Case, name: str = "ring"):
        super().__init__(case)
        self.name, self.random = name, case.random(name)
        case.cleanups.append(self.end_all)
        self.directory.mkdir(exist_ok=True)
        self.out, self.log = case.work / "out", case.work / "log"
        self.rsh = case.work / "rsh"
        self.rsh.write_text(RSH.format(work=case.work))
        self.rsh.chmod(0o755)
        self.holding = {**os.environ, "RING_PAUSE_US": "3000", "RING_HOLD": str(self.end_file), "SHADOWIB_RSH": str(self.rsh)}

    @staticmethod
    def end_all(_failed: bool = False):
        """A job outlives its supervisor."""
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def supervise(self, *words: str, environment: dict | None = None) -> subprocess.Popen:
        with open(self.out, "ab") as out, open(self.log, "ab") as log:
            process = subprocess.Popen(self.words("--portable", "--supervise", "--job", self.name, "--interval", "0.5", *words), stdin=subprocess.DEVNULL,
                                       stdout=out, stderr=log, env={**self.holding, **(environment or {})})
        self.started.append(process)
        return process

    def told(self) -> str:
        return self.log.read_text()

    def sets(self) -> list[dict]:
        return [entry for entry in super().sets() if entry["name"].startswith(f"{self.name}.")]

    def newest(self) -> str:
        return max((entry["name"] for entry in self.sets()), default="")

    def await_set(self, process: subprocess.Popen, than: str = ""):
        """One that was made from now on, by all processes."""
        def there():
            check(process.poll() is None, f"the supervisor ended with {process.returncode}: {self.told()[-2000:]}")
            return self.newest() > than
        wait_for(f"a set after {than or 'the start'}", there, PATIENCE_S, 0.05)

    def await_restart(self, process: subprocess.Popen, number: int):
        def back():
            check(process.poll() is None, f"the supervisor ended with {process.returncode}: {self.told()[-2000:]}")
            return self.told().count("restored ") >= number
        wait_for(f"restart {number}", back, PATIENCE_S, 0.05)
        self.await_set(process, self.newest())

    def members(self) -> list[dict]:
        files = sorted((self.directory / "jobs" / self.name / "portable").glob("member-*.json"))
        return [json.loads(file.read_text()) for file in files]

    def architectures(self) -> str:
        """A letter for each process, as xxaa, by what the kernel runs."""
        exes = [os.readlink(f"/proc/{member['pid']}/exe") for member in self.members()]
        return "".join("a" if "qemu" in exe else "x" for exe in exes)

    def kill_one(self):
        os.kill(self.random.choice(self.members())["pid"], signal.SIGKILL)

    def lose(self, host: str):
        """The part of bsprun there is gone at once, and with it the processes."""
        (self.case.work / f"down.{host}").touch()
        os.kill(int((self.case.work / f"share.{host}").read_text()), signal.SIGKILL)

    def is_up(self, host: str):
        (self.case.work / f"down.{host}").unlink()

    def result(self, process: subprocess.Popen, code: int = 0) -> list[str]:
        self.end_file.touch()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            check(False, f"no end: {self.told()[-2000:]}")
        check(process.returncode == code, f"the supervisor ended with {process.returncode} instead of {code}: {self.told()[-2000:]}")
        return sorted(line for line in self.out.read_text().splitlines() if not line.startswith("pid "))

    def events(self, name: str) -> list[dict]:
        done = self.command("history", self.name, "--json")
        check(done.returncode == 0, f"history: {done.stderr}")
        return [event for event in json.loads(done.stdout)["events"] if event["event"] == name]


def one_host(case: Case) -> str:
    """Processes are killed, then the supervisor; the same line goes on."""
    job, ring = Supervised(case), compiled(case, RING)
    wanted, losses = job.all_of(3, ring), QUICK if case.line.quick else LOSSES
    process = job.supervise("-n", "3", ring)
    job.await_set(process)
    for number in range(losses):
        job.kill_one()
        job.await_restart(process, number + 1)
    process.kill()
    process.wait()
    second = job.supervise("-n", "3", ring)
    wait_for("the second supervisor", lambda: "the job runs already" in job.told(), PATIENCE_S)
    job.kill_one()
    job.await_restart(second, losses + 1)
    check(job.result(second) == wanted, f"another result: {job.out.read_text()}")
    check("files rolled back" not in job.told(), "portable sets know of no files")
    check(len(job.events("failure")) > losses, f"failures: {job.events('failure')}")
    check(len(job.sets()) <= 2, f"sets: {job.sets()}")
    return f"{losses + 1} processes and a supervisor killed"


def hosts(case: Case) -> str:
    """Four processes on a host of each architecture. A process is killed; one host is lost, then it is back and the other one is lost."""
    by_name = {a.name: a for a in at_hand(case)}
    if OTHER not in by_name:
        raise Skip(f"no cross compiler or qemu-user of {OTHER}")
    ring, there = compiled(case, RING), compiled(case, RING, by_name[OTHER])
    words = ("--hosts", f"a:2,b:2:{OTHER}", "--program", there, *runners([by_name[OTHER]]), ring)
    wanted, rounds = BspJob(case).all_of(4, ring), QUICK if case.line.quick else LOSSES
    for number in range(rounds):
        job, seen = Supervised(case, f"ring{number}"), []
        process = job.supervise(*words)
        job.await_set(process)
        seen.append(job.architectures())
        for restart, (lost, back) in enumerate((("", ""), ("b", ""), ("a", "b"), ("", "a")), 1):
            if number > 0:
                time.sleep(job.random.uniform(0, 1))
            if back:
                job.is_up(back)
            if lost:
                job.lose(lost)
            else:
                job.kill_one()
            job.await_restart(process, restart)
            seen.append(job.architectures())
        check(job.result(process) == wanted, f"another result: {job.out.read_text()}")
        check(seen == ["xxaa", "xxaa", "xxxx", "aaaa", "xxaa"], f"processes ran on {seen}")
        lost = [event["on"] for event in job.events("host_lost")]
        check(lost == ["b", "a"], f"lost hosts in the history: {lost}")
        check("host b does not answer; it is left out" in job.told(), job.told()[-2000:])
        for file in (job.end_file, job.out, job.log):
            file.unlink()
    return f"{' -> '.join(seen)}, {rounds} times"


def ends(case: Case) -> str:
    """What is a result, and what is none: an exit code, an abort, an end on request, sets that are damaged."""
    (case.work / "ends.c").write_text(ENDS)
    program = compiled(case, case.work / "ends.c")
    for name, environment, code in (("code", {}, 3), ("abort", {"ENDS_BADLY": "1"}, 124)):
        job = Supervised(case, name)
        process = job.supervise("-n", "2", program, environment=environment)
        job.await_set(process)
        job.kill_one()
        job.await_restart(process, 1)
        job.result(process, code)
        job.end_file.unlink()
        check(job.told().count("restored ") == 1, f"a result was taken for a failure: {job.told()[-2000:]}")
        job.log.unlink()
    job = Supervised(case, "saved")
    process = job.supervise("-n", "2", program)
    job.await_set(process)
    check(job.command("checkpoint", job.name, "--kill").returncode == 0, "checkpoint --kill")
    process.wait(PATIENCE_S)
    check(process.returncode == SAVED and not job.events("failure"), f"{process.returncode}: {job.told()[-2000:]}")
    process = job.supervise("-n", "2", program)
    job.await_restart(process, 1)
    check(job.command("checkpoint", job.name, "--kill").returncode == 0, "checkpoint --kill of a restarted job")
    process.wait(PATIENCE_S)
    check(process.returncode == SAVED and not job.events("failure"), f"after a restart: {process.returncode}: {job.told()[-2000:]}")
    for entry in job.sets():
        with open(job.directory / "sets" / entry["name"] / "member-0.psi", "r+b") as image:
            image.truncate(9000)
    process = job.supervise("-n", "2", program)
    process.wait(PATIENCE_S)
    check(process.returncode == GIVEN_UP and "sets can be restarted" in job.told(), f"{process.returncode}: {job.told()[-2000:]}")
    return f"3, 124, {SAVED}, {GIVEN_UP}"


def network(case: Case) -> str:
    """Hosts that have nothing but a network between them."""
    network_of = Hosts(case, "disk", "ab")
    job, ring = Supervised(case), compiled(case, RING)
    wanted = job.all_of(3, ring)
    spaces = " ".join(f'{name}) space={space};;' for name, space in network_of.spaces.items())
    job.rsh.write_text(f'#!/bin/sh\nhost=$1\nshift\n[ ! -e "{case.work}/down.$host" ] || exit 255\n'
                       f'case $host in {spaces} esac\nexec ip netns exec $space sh -c "$*"\n')
    process = job.supervise("--hosts", "a:2,b:1", ring)
    job.await_set(process)
    check(len(network_of.pids("a")) > 2 and len(network_of.pids("b")) > 1, "the processes are not there")
    (case.work / "down.b").touch()
    network_of.lose("b")
    job.await_restart(process, 1)
    check(not network_of.pids("b"), "a process is on the lost host")
    check(job.result(process) == wanted, f"another result: {job.out.read_text()}")
    return "a:2,b:1, then a"


def lease(case: Case) -> str:
    """A bsprun that stands still says nothing to its hosts, whose processes end."""
    job, ring = Supervised(case), compiled(case, RING)
    job.save_when_begun(job.begin(2, ring), "--kill")
    with open(job.log, "ab") as log:
        restart = subprocess.Popen([job.shadowib, "restart", job.name, "--dir", str(job.directory), "--hosts", "a:1,b:1", "--rsh", str(job.rsh), "--lease", "2"],
                                   stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=job.holding)
    job.started.append(restart)
    wait_for("both processes", lambda: len(job.members()) == 2 and job.command("checkpoint", job.name).returncode == 0, PATIENCE_S)
    pids = [member["pid"] for member in job.members()]
    with open(f"/proc/{restart.pid}/task/{restart.pid}/children", encoding="ascii") as children:
        bsprun = int(children.read())
    os.kill(bsprun, signal.SIGSTOP)
    wait_for("the end of the processes", lambda: not any(os.path.exists(f"/proc/{pid}/root") for pid in pids), 30)
    os.kill(bsprun, signal.SIGCONT)
    restart.wait(PATIENCE_S)
    check(restart.returncode != 0 and "no word of the bsprun that has started these processes for 2 s" in job.told(), f"{restart.returncode}: {job.told()}")
    return "after 2 s"


def refusals(case: Case) -> str:
    job, ring = Supervised(case), compiled(case, RING)
    for words, text in ((("--portable", "--supervise", ring), "--supervise needs --job"), (("--portable", "--backend", "ib2tcp", ring), "does not go with --backend"),
                        (("--hosts", "a:2:aarch64", ring), "--hosts a:aarch64: only programs of --portable"),
                        (("--portable", "--hosts", "a:2:vax", ring), "is no HOST:SLOTS"),
                        (("--portable", "--hosts", "a:2:s390x", ring), "runs programs of s390x, and there is none")):
        done = subprocess.run(job.words(*words), capture_output=True, text=True, check=False, env=job.holding, timeout=PATIENCE_S)
        check(done.returncode == 125 and text in done.stderr, f"{words}: {done.returncode}, {done.stderr}")
    (case.work / "one.c").write_text("#include <shadowib/portable.h>\nint main(void) { for (;;) shadowib_portable_site(); }\n")
    done = subprocess.run([case.line.program("shadowib-cc"), "-o", "one", "one.c"], cwd=case.work, capture_output=True, text=True, check=False)
    check(done.returncode == 0, done.stderr)
    job.name = "one"
    job.start(str(case.work / "one"))
    job.await_member()
    job.checkpoint("--kill")
    job.end()
    job.refused(2, "--hosts is for sets of bsprun", "restart", "one", "--hosts", "a:1")
    job.refused(2, "--program, --runner, --hosts, --rsh, --lease", "restart", "one", "--files", "roll-back")
    shutil.rmtree(job.directory)
    return "by name"


def run() -> int:
    line = Line("portable_supervised", __doc__)
    for case in (one_host, hosts, ends, network, lease, refusals):
        line.case(case.__name__, case)
    return line.finish()


if __name__ == "__main__":
    main(run)
