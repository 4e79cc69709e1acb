"""S6: sets are copied to a far place whole or not at all. A directory, and a store behind a command that fails, stalls and cuts objects
short, never list half a set; a flush that is killed is gone on with; a set that is lost here restarts from there, every byte right; gc removes
no set that is being flushed. In the whole form LAMMPS takes 3 % longer at most where its sets are flushed: run that alone on the machine."""
import fcntl
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import termios
import time

import patience
from common import Case, Line, Skip, check, main
from jobs import BUSY, CORRUPT, IO, NOT_FOUND, TIMEOUT, Job, descendants, finish_big, wait_for
from mpi import PATHS, QUIET, MpiJob
from mpi_cost import loop_time
from mpi_programs import Lammps

SLOWER, PAIRS, INTERVAL_S, STEPS = 1.03, 5, 4, 12000
STORE = pathlib.Path(__file__).resolve().parent / "programs" / "object_store.py"


def member(case: Case, *options: str, size: int = 2, **session) -> Job:
    """A job of one small process that is a member and waits. `session`: as subprocess.Popen() takes it."""
    job = Job(case)
    words = [job.shadowib, "run", "--job", job.name, "--dir", str(job.directory), "--backend", "ib2tcp", *options, "--",
             case.line.program("ci_big_process"), str(size)]
    program = job._spawn("member", words, **session)
    job.programs.append(program)
    wait_for("the member to be ready", lambda: "ready" in program.text() or program.ended(), 60)
    check(not program.ended(), program.text())
    return job


def listed(job: Job) -> list[dict]:
    return json.loads(job.command("list", "--json").stdout)["sets"]


class Store:
    """The store behind object_store.py."""

    def __init__(self, case: Case):
        self.top = case.work / "store"
        self.far = f"exec:{sys.executable} {STORE} {self.top}"

    def beside(self, suffix: str) -> pathlib.Path:
        return pathlib.Path(f"{self.top}.{suffix}")

    def plan(self, *faults: tuple):
        self.beside("plan").write_text(json.dumps([dict(zip(("word", "name", "how", "times"), fault)) for fault in faults]))

    def idle(self) -> bool:
        """No call is under way."""
        with open(self.beside("busy"), "a") as busy:
            try:
                fcntl.flock(busy, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def puts(self) -> list[str]:
        """The files put so far; forgets them."""
        log = self.beside("log")
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return [line.split()[1].rsplit("/", 1)[1] for line in lines if line.startswith("put ")]

    def check_whole(self):
        check(not self.beside("twice").exists(), "two flushes of one job")
        half = self.beside("half")
        check(not half.exists(), f"half a set: {half.read_text() if half.exists() else ''}")

    def has(self, name: str) -> bool:
        return any(self.top.glob(f"*/*/{name}"))


OBJECTS = ["member-0.img", "manifest.xxh3", "manifest.json"]


def lose(job: Job):
    """All sets of DIR, and what it knows of them."""
    shutil.rmtree(job.directory)


def flush(job: Job, far: str, *options: str, code: int = 0) -> subprocess.CompletedProcess:
    result = job.command("flush", job.name, "--far", far, *options, check_code=False)
    check(result.returncode == code, f"flush exited with {result.returncode}, not {code}: {result.stdout}{result.stderr}")
    return result


def restart_from(job: Job, far: str, name: str):
    """With nothing left here."""
    job.generation += 1
    words = [job.shadowib, "restart", name, "--dir", str(job.directory), *(["--far", far] if far else [])]
    job.programs = [job._spawn("restart", words)]
    finish_big(job)


def directory(case: Case):
    job, far = member(case), case.work / "archive"
    told = flush(job, f"dir:{far}", code=NOT_FOUND).stderr
    check("no set" in told, told)
    first = job.checkpoint(kill=False)
    told = flush(job, f"dir:{far}", code=NOT_FOUND).stderr
    check(str(far) in told and "mount" in told, f"a directory that is not there: {told}")
    far.mkdir()
    flush(job, f"dir:{far}")
    second = job.checkpoint()
    flush(job, f"dir:{far}")
    again = json.loads(flush(job, f"dir:{far}", "--json").stdout)
    check(again["sent"] == 0 and again["objects"] == len(OBJECTS), f"sent again: {again}")
    ids = {s["number"]: s["set_id"] for s in listed(job)}
    for number, path in ((1, first), (2, second)):
        there = far / job.name / ids[number]
        job.command("verify", str(there))
        check((there / "member-0.img").read_bytes() == (pathlib.Path(path) / "member-0.img").read_bytes(), "another image")
    image = far / job.name / ids[2] / "member-0.img"
    lose(job)
    good = image.read_bytes()
    image.write_bytes(good[:70000] + bytes([good[70000] ^ 1]) + good[70001:])
    for name in ("job.0002", "job"):
        result = job.command("restart", name, "--far", f"dir:{far}", check_code=False)
        check(result.returncode == CORRUPT and "member-0.img" in result.stderr, f"{result.returncode} {result.stderr}")
        check(not listed(job), "a damaged set was fetched")
    image.write_bytes(good)
    check(job.command("restart", "job.0003", "--far", f"dir:{far}", check_code=False).returncode == NOT_FOUND, "a set that is nowhere")
    restart_from(job, f"dir:{far}", job.name)
    check([s["name"] for s in listed(job)] == ["job.0002"], "the newest set was not fetched")
    # The place is known by now.
    shutil.rmtree(second)
    restart_from(job, "", "job.0002")
    return "sent once, fetched when lost, damage refused"


def faults(case: Case):
    """Each word and object fails in each way: for good, and twice only."""
    job, store = member(case), Store(case)
    job.checkpoint()
    cases = [("put", name, how) for name in OBJECTS for how in ("fail", "cut", "stall")]
    cases += [("get", "member-0", how) for how in ("fail", "cut", "stall")]
    cases += [("stat", "member-0", "fail"), ("stat", "member-0", "stall"), ("put", "sets.json", "fail"), ("get", "sets.json", "cut"),
              ("stat", "sets.json", "fail")]
    if case.line.quick:
        stalls = [c for c in cases if c[2] == "stall"]
        cases = case.random().sample([c for c in cases if c not in stalls], 2) + case.random().sample(stalls, 1)
    for word, name, how in cases:
        shutil.rmtree(store.top, ignore_errors=True)
        store.plan((word, name, how, 1000))
        limit = ["--far-timeout", "8"] if how == "stall" else []  # long enough for an interpreter to start on a busy machine
        result = flush(job, store.far, *limit, code={"fail": IO, "cut": CORRUPT, "stall": TIMEOUT}[how])
        # What is cut short is told by the object, not by the command, which has ended well.
        words = [name] + ([str(STORE), word] if how != "cut" else []) + (["exit code 1", "the store is away"] if how == "fail" else [])
        for expected in words:
            check(expected in result.stderr, f"{word} {name} {how}: no '{expected}' in {result.stderr}")
        check(result.stderr.count("trying again") == 2, f"{word} {name} {how}: {result.stderr}")
        store.check_whole()
        lists = store.has("manifest.json") and (store.top / job.name / "sets.json").exists()
        check(not lists or how == "cut" or name == "sets.json", f"{word} {name} {how}: a set is listed")
        store.plan((word, name, how, 2))
        flush(job, store.far, *limit)
        store.check_whole()
        check(all(store.has(o) for o in OBJECTS), "an object is missing")
    # A failure that another try does not mend.
    broken = case.work / "broken"
    broken.write_text("#!/bin/sh\necho no such bucket >&2\nexit 78\n")
    broken.chmod(0o700)
    told = flush(job, f"exec:{broken}", code=IO).stderr
    check("exit code 78: no such bucket" in told and "trying again" not in told, told)
    check("not there" in flush(job, "exec:/nonexistent/far", code=NOT_FOUND).stderr, "a command that is not there")
    lose(job)
    restart_from(job, store.far, "job.0001")
    return f"{len(cases)} faults"


def start_flush(job: Job, far: str) -> subprocess.Popen:
    return subprocess.Popen([job.shadowib, "flush", job.name, "--far", far, "--dir", str(job.directory)], env=job.environment,
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def killed(case: Case):
    """Half of each object in turn has been sent when the flush is killed."""
    job, store = member(case), Store(case)
    job.checkpoint()
    for name in OBJECTS:
        shutil.rmtree(store.top, ignore_errors=True)
        store.plan(("put", name, "wait", 1))
        process = start_flush(job, store.far)
        wait_for(f"half of {name} to be sent", lambda: store.beside("waiting").exists() or process.poll() is not None, 60)
        check(process.poll() is None, f"the flush ended: {process.stderr.read() if process.poll() is not None else ''}")
        process.send_signal(signal.SIGKILL)
        process.wait()
        wait_for("the store's command to end with the flush", store.idle, 60)
        store.beside("waiting").unlink()
        store.check_whole()
        check(not (store.top / job.name / "sets.json").exists(), "half a set is listed")
        result = job.command("restart", "job.0007", "--far", store.far, check_code=False)
        check(result.returncode == NOT_FOUND, f"{result.returncode} {result.stderr}")
        store.puts()
        flush(job, store.far)
        check(store.puts() == OBJECTS[OBJECTS.index(name):] + ["sets.json"], f"after a kill at {name}")
        store.check_whole()
    lose(job)
    restart_from(job, store.far, "job")
    return "resumed at each object"


def gc_beside(case: Case):
    """gc, --keep and another flush come while an image is being sent."""
    job, store = member(case), Store(case)
    path = job.checkpoint()
    store.plan(("put", "member-0.img", "wait", 1))
    process = start_flush(job, store.far)
    wait_for("half of the image to be sent", lambda: store.beside("waiting").exists() or process.poll() is not None, 60)
    check(process.poll() is None, "the flush ended")
    told = job.command("gc", "--keep", "0")
    check("being flushed" in told.stderr and os.path.isdir(path), f"gc during a flush: {told.stdout}{told.stderr}")
    flush(job, store.far, code=BUSY)
    store.beside("waiting").unlink()
    check(process.wait(60) == 0, f"the flush: {process.stderr.read()}")
    store.check_whole()
    job.command("gc", "--keep", "0")
    check(not os.path.isdir(path), "the set stayed once it was flushed")
    restart_from(job, "", "job.0001")
    return "a set that is being flushed stays"


def flusher(job: Job) -> list[int]:
    """The processes that checkpoints have started."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = pathlib.Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[1:2] == [b"flush"] and str(job.directory).encode() in words:
            found.append(int(entry))
    return found


def await_flush(job: Job, what: str, condition):
    """Until the condition holds. The flush has the lowest priority, so on a machine with much to do it may take long; it hangs if it sleeps
    all the time."""
    before, since = (), time.monotonic()
    while not condition():
        work = [patience.queued(pid) for first in flusher(job) for pid in [first, *descendants(first)]]
        ran = tuple(sorted(time_ran for _, _, time_ran in work))
        if ran != before or any(runnable for _, runnable, _ in work):
            before, since = ran, time.monotonic()
        check(time.monotonic() - since < 60, f"waited in vain for {what}: for a minute no flush has done anything")
        time.sleep(0.02)


def autogroup(case: Case, pid: int) -> str:
    """The group that shares processors with other groups, and its nice value; "": this kernel has none (sched(7))."""
    try:
        return pathlib.Path(f"/proc/{pid}/autogroup").read_text().strip()
    except FileNotFoundError:
        case.line.leave_out(f"{case.name}, autogroup", "this kernel has none")
        return ""


def automatic(case: Case):
    """Sets are flushed behind checkpoints: newest first, one flush at a time, at the lowest priority; after --kill before the command ends."""
    store = Store(case)
    job = member(case, "--far", store.far, "--flush", "all", "--flush-rate", "1e9", start_new_session=True)
    store.plan(("put", "member-0.img", "wait", 1))
    job.checkpoint(kill=False)
    await_flush(job, "half of the image to be sent", lambda: store.beside("waiting").exists())
    running = flusher(job)
    check(len(running) == 1 and os.getpriority(os.PRIO_PROCESS, running[0]) == 19, f"flushes: {running}")
    check(os.getsid(running[0]) not in (os.getsid(0), os.getsid(job.members()[0].pid)), "the command is not in the program's session, but its flush is")
    group = autogroup(case, running[0])
    check(not group or group.endswith(" nice 19"), f"its session: {group}")
    job.checkpoint(kill=False)
    job.command("checkpoint", job.name, "--flush", "none")
    job.checkpoint(kill=False)
    await_flush(job, "later flushes to leave it to the first one", lambda: flusher(job) == running)
    numbers = {s["set_id"]: s["number"] for s in listed(job)}
    store.beside("waiting").unlink()
    await_flush(job, "all flushes to end", lambda: not flusher(job))
    store.check_whole()
    log = [line.split() for line in store.beside("log").read_text().splitlines()]
    order = [numbers[words[1].split("/")[1]] for words in log if words[0] == "put" and words[1].endswith("manifest.json")]
    # The record says all, so the third goes as well.
    check(order == [1, 4, 3, 2], f"flushed in the order {order}")
    events = [json.loads(line) for path in (job.directory / "history" / job.name).iterdir() for line in path.read_text().splitlines()]
    check([e["event"] for e in events].count("flush") == 4, f"history: {[e['event'] for e in events]}")
    path = job.checkpoint()
    check(store.puts()[-2:] == ["manifest.json", "sets.json"], "the last set is not in the store")
    store.check_whole()
    lose(job)
    # The job goes on with the place that it came from.
    job.generation += 1
    job.programs = [job._spawn("restart", [job.shadowib, "restart", path, "--dir", str(job.directory), "--far", store.far, "--flush", "2"])]
    wait_for("the job to run", lambda: [m.alive for m in job.members()] == [True], 60)
    store.puts()
    job.checkpoint()
    check("manifest.json" in store.puts(), "the sixth set is not in the store")
    job.restart()
    wait_for("the job to run again", lambda: [m.alive for m in job.members()] == [True], 60)
    job.checkpoint()
    check(store.puts() == [], "the seventh set is in the store")
    restart_from(job, "", job.sets[-1])
    refused = job.command("run", "--job", "other", "--flush", "all", "--", "true", check_code=False)
    check(refused.returncode == 125 and "no far place" in refused.stderr, f"{refused.returncode} {refused.stderr}")
    return "1 4 3 2"


def in_session(case: Case):
    """The flush of a set that a program has taken itself: a nice value counts beside a program in the program's own session only. It goes on
    when the program and its terminal have gone."""
    store = Store(case)
    master, terminal = os.openpty()
    store.plan(("put", "member-0.img", "wait", 1))
    job = member(case, "--far", store.far, "--flush", "all", "--interval", "2", "--keep", "1", start_new_session=True,
                 preexec_fn=lambda: fcntl.ioctl(terminal, termios.TIOCSCTTY, 0))
    os.close(terminal)
    await_flush(job, "half of the image to be sent", lambda: store.beside("waiting").exists())
    program = job.members()[0].pid
    first, = (pid for pid in flusher(job) if descendants(pid))  # later ones leave it to this one
    check(os.getpriority(os.PRIO_PROCESS, first) == 19, f"its nice value is {os.getpriority(os.PRIO_PROCESS, first)}")
    check(os.getsid(first) == os.getsid(program), "the flush is not in the program's session")
    check(os.getpgid(first) != os.getpgid(program), "the flush is in the program's process group")
    check(autogroup(case, first) == autogroup(case, program), "the flush does not share the program's processors")
    os.close(master)
    os.kill(program, signal.SIGKILL)
    wait_for("the program to end", lambda: job.programs[0].ended(), 60)
    check(first in flusher(job), "the flush has ended with the program")
    store.beside("waiting").unlink()
    await_flush(job, "the flush to end", lambda: not flusher(job))
    store.check_whole()
    lose(job)
    restart_from(job, store.far, job.name)
    return "it goes on behind the end of the session"


def told(case: Case):
    """What list, verify and status say of far sets, and what gc removes there, also when it is cut short."""
    store = Store(case)
    job = member(case, "--far", store.far, "--flush", "2")
    def status_of() -> dict:
        return json.loads(job.command("status", job.name, "--json").stdout)

    for number in range(1, 5):
        job.checkpoint(kill=False)
        await_flush(job, "the flush to end", lambda number=number: (status_of()["sets_in_far"], status_of()["flushing"]) == (number // 2, False))
    status = status_of()
    check((status["far"], status["flush"], status["flushing"], status["sets_in_far"]) == (store.far, "2", False, 2), f"status: {status}")
    check([s["far"] for s in listed(job)] == [[], [store.far], [], [store.far]], f"list: {listed(job)}")
    path = job.checkpoint()
    store.beside("log").unlink()
    for words in (["verify", "job.0002"], ["verify", "job.0002", "--strict"]):
        check(f"it is in {store.far}, too" in job.command(*words).stdout, "verify does not tell of the far place")
    ids = {s["number"]: s["set_id"] for s in listed(job)}
    image = store.top / job.name / ids[2] / "member-0.img"
    good = image.read_bytes()
    image.write_bytes(good[:-100] + bytes([good[-100] ^ 1]) + good[-99:])
    check("too" in job.command("verify", "job.0002").stdout, "sizes are right")
    result = job.command("verify", "job.0002", "--strict", check_code=False)
    check(result.returncode == CORRUPT and "member-0.img" in result.stderr, f"{result.returncode} {result.stderr}")
    image.write_bytes(good[:-1])
    check("damaged" in job.command("verify", "job.0002").stdout, "a short object is not noticed")
    image.write_bytes(good)
    store.beside("half").unlink()  # which was this case's own damage
    job.command("gc", "--keep", "1")
    only = json.loads(job.command("list", "--json").stdout)["only_far"]
    check([s["name"] for s in only] == ["job.0002", "job.0004"], f"list: {only}")
    check(job.command("list").stdout.count("only far") == 2, "list does not show sets that are only far")
    check("is not here, and intact in" in job.command("verify", "job.0002").stdout, "a set that is only far")
    check(len(job.command("gc", "--keep", "1", "--keep-far", "1", "--dry-run").stdout.splitlines()) == 1, "a dry run")
    # A newer set that cannot be fetched replaces none.
    newest = store.top / job.name / ids[4] / "manifest.json"
    newest.rename(newest.with_suffix(".away"))
    check("nothing to remove" in job.command("gc", "--keep", "1", "--keep-far", "1").stderr, "the last far set that is whole has gone")
    newest.with_suffix(".away").rename(newest)
    # Cut short after the manifest has gone.
    store.plan(("rm", "member-0.img", "fail", 1))
    check(job.command("gc", "--keep", "1", "--keep-far", "1", check_code=False).returncode == IO, "the store has failed")
    store.check_whole()
    check(not (image.parent / "manifest.json").exists() and image.exists(), "the manifest did not go first")
    check(job.command("verify", "job.0002", check_code=False).returncode == CORRUPT, "a set that is half removed")
    job.command("gc", "--keep", "1", "--keep-far", "1")
    store.check_whole()
    check(not list(image.parent.iterdir()), f"left: {list(image.parent.iterdir())}")
    check([s["name"] for s in json.loads(job.command("list", "--json").stdout)["only_far"]] == ["job.0004"], "the newest far set")
    restart_from(job, "", "job.0004")
    restart_from(job, "", path)
    return "list, verify, status, gc"


def near(case: Case):
    """An image in memory is lost with its host, and comes back from far."""
    place = pathlib.Path(f"/dev/shm/shadowib-s6-{os.getpid()}")
    place.mkdir()
    case.cleanups.append(lambda _failed: shutil.rmtree(place, ignore_errors=True))
    job, store = member(case, "--store", "mem:single", "--near", str(place)), Store(case)
    path = job.checkpoint(environment={"SHADOWIB_COMPRESS": "zstd"})  # files are files, whatever is in them
    flush(job, store.far)
    images = list(place.glob("*/*/*/*.img"))
    check(len(images) == 1, f"images: {images}")
    images[0].unlink()
    restart_from(job, "", path)
    check("fetching 1 image of job.0001 from the far place" in job.output(), job.output()[-2000:])
    check(images[0].exists(), "the image did not come back to its place")
    # Nor is a damaged one used, if the far place is named.
    with open(images[0], "r+b") as file:
        file.seek(-5000, os.SEEK_END)
        byte = file.read(1)
        file.seek(-5000, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))
    restart_from(job, store.far, path)
    shutil.rmtree(path)
    restart_from(job, "", "job.0001")
    check(list(pathlib.Path(path).glob("*.img")), "the set was not fetched whole")
    return "one image, then the whole set"


class NearLammps(MpiJob):
    """Takes checkpoints by itself. `far`: flushes each of them; "": none."""

    def __init__(self, case: Case, name: str, near: pathlib.Path, far: str):
        super().__init__(case, name, PATHS["ucx rc"], Lammps(STEPS))
        self.options = ["--store", "mem:single", "--near", str(near), "--interval", str(INTERVAL_S), "--keep", "1",
                        *(["--far", far, "--flush", "all"] if far else [])]

    def launch(self):
        words = [self.shadowib, "run", "--job", self.name, "--dir", str(self.directory), "--backend", "ib2tcp", *self.options, "--"]
        self.programs = [self._spawn("mpirun", ["mpirun", "-np", str(self.ranks), *QUIET, *self.path.options.split(), *words,
                                                *self.program.words(self.case.line, self.path)])]

    def checkpoints(self) -> int:
        paths = (self.directory / "history" / self.name).iterdir()
        return sum(json.loads(line)["event"] == "checkpoint" for path in paths for line in path.read_text().splitlines())


def slowed(case: Case) -> str:
    """Runs in pairs, both with checkpoints: one has them flushed behind it, the other has not."""
    if missing := Lammps(STEPS).missing(None) or ("" if shutil.which("mpirun") else "mpirun is not installed (package openmpi-bin)"):
        raise Skip(missing)
    near = pathlib.Path(f"/dev/shm/shadowib-s6-{os.getpid()}")
    near.mkdir()
    case.cleanups.append(lambda _failed: shutil.rmtree(near, ignore_errors=True))
    ratios, results, flushed, seconds = [], set(), 0, []
    for number in range(PAIRS):
        took = {}
        for with_far in (False, True) if number % 2 == 0 else (True, False):
            far = case.work / f"archive{number}"
            far.mkdir(exist_ok=True)
            job = NearLammps(case, f"{'far' if with_far else 'near'}{number}", near, f"dir:{far}" if with_far else "")
            job.launch()
            job.finish(300)
            await_flush(job, "the last flush to end", lambda job=job: not flusher(job))
            took[with_far], there = loop_time(job), len(list(far.glob(f"{job.name}/*/manifest.json")))
            check(job.checkpoints() > 1 and (there > 1) == with_far, f"{job.name}: {job.checkpoints()} checkpoints, {there} sets in the far place")
            results.add(job.result())
            flushed += there if with_far else 0
            case.note(f"{job.name}: {took[with_far]:.2f} s, {job.checkpoints()} checkpoints")
            job.command("gc", "--keep", "0", check_code=False)
        ratios.append(took[True] / took[False])
        seconds.append(took[False])
        shutil.rmtree(far)
    check(len(results) == 1, f"the results differ: {results}")
    ratio = statistics.median(ratios)
    text = (f"{ratio:.4f} times as long ({', '.join(f'{r:.3f}' for r in ratios)}), {flushed} sets flushed in {PAIRS} pairs of "
            f"{statistics.median(seconds):.1f} s, allowed {SLOWER}")
    check(ratio <= SLOWER, text)
    return text


def run():
    line = Line("flush", __doc__)
    line.case("directory", directory)
    line.case("faults of a command", faults)
    line.case("killed", killed)
    line.case("gc beside", gc_beside)
    line.case("automatic", automatic)
    line.case("in the program's session", in_session)
    line.case("told", told)
    line.case("near", near)
    if not line.quick:
        line.case("LAMMPS beside it", slowed)
    return line.finish()


if __name__ == "__main__":
    main(run)
