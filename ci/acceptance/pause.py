"""I1: with --save forked a program stands for clones of its memory, and not until its image is written; with --save auto it does so where
there is the memory for it.

The program ticks every 100 us. Its longest gap is that of a process of 1 MiB, and two bare clones of as much memory, all measured in turn.
In a short sample the savers are held up for two seconds, which the program is not to stand for."""
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import time

from common import Case, Line, Skip, check, main
from jobs import Job, wait_for
from memory_limit import MemoryLimit

MIB = 1 << 20
ROUNDS, SHORT_ROUNDS = 9, 2
SAVERS_HELD_UP, HELD_UP_MS = "68:slow", 2000  # hooks/threads/fault.h
LIVES = 100


class Ticking:
    """A job of one process that ticks."""

    def __init__(self, case: Case, name: str, mebibytes: int, kind: str, held_up: bool = False, backend: str = "ib2tcp", fault: str = "",
                 **options):
        self.case, self.place, self.held_up = case, case.work / name, held_up
        self.place.mkdir()
        self.job = Job(case, name, backend=backend)
        self.job.place = self.place
        if held_up or fault:
            self.job.environment["SHADOWIB_FAULT"] = fault or SAVERS_HELD_UP
        self.program = self.job.start(name, [case.line.program("ci_ticks"), str(mebibytes), kind], **options)
        wait_for("the process to fill its memory", lambda: "ready" in self.program.text() or self.program.ended(), 300)
        check(not self.program.ended(), self.program.text())

    def order(self, what: str) -> str:
        """What the program says to it, if anything."""
        before = len(self.program.text())
        (self.place / what).touch()
        wait_for(f"the program to obey {what}", lambda: not (self.place / what).exists() or self.program.ended(), 300, 0.002)
        check(not self.program.ended(), self.program.text())
        return self.program.text()[before:]

    def took_ms(self, what: str) -> float:
        return statistics.median(map(int, self.order(what).split()[1:])) / 1e6

    def gap_ms(self, how: str) -> float:
        self.order("mark")
        began = time.monotonic()
        self.job.checkpoint(kill=False, timeout=300, environment={"SHADOWIB_SAVE": how})
        if self.held_up and how == "forked":
            check(time.monotonic() - began >= HELD_UP_MS / 1e3, "no saver was held up: the program has written its image itself")
        gap = int(re.search(r"gap (\d+)", self.order("tell"))[1]) / 1e6
        self.job.remove_old_sets()
        return gap

    def finish(self):
        (self.place / "finish").touch()
        wait_for("the program's end", self.program.ended, 300)
        check("are right" in self.program.text(), self.program.text())
        self.job.programs = []


def registered(case: Case, mebibytes: int, rounds: int, backend: str) -> str:
    """Linux copies memory that is registered with a device inside fork, page by page. Shadowib copies it before: so the program stands for two
    clones of memory that is not registered and two memcpys to pages that are there, at most. Told is a bare clone with the kernel's copy, too."""
    small, big = (Ticking(case, name, size, "registered", backend=backend) for name, size in (("small", 1), ("big", mebibytes)))
    bare, found = Ticking(case, "bare", mebibytes, "4k", backend=backend), []
    for _ in range(rounds):
        found.append({"small": small.gap_ms("forked"), "big": big.gap_ms("forked"), "clone": big.took_ms("clone"), "bare clone": bare.took_ms("clone"),
                      "memcpy": big.took_ms("copy"), "stopped": big.gap_ms("stopped")})
    for process in (small, big, bare):
        process.finish()
    case.figures = {"ms": found}
    # Other work on the machine only adds to a gap: a short sample takes the least.
    ms = {name: (min if case.line.quick else statistics.median)(row[name] for row in found) for name in found[0]}
    goal = ms["small"] + 2 * ms["bare clone"] + 2 * ms["memcpy"]
    text = (f"longest gap {ms['big']:.1f} ms; of 1 MiB {ms['small']:.1f}, a bare clone of memory that is not registered {ms['bare clone']:.1f}, a memcpy "
            f"{ms['memcpy']:.1f}: goal {goal:.1f}; a bare clone with the kernel's copy {ms['clone']:.1f}, stopped {ms['stopped']:.1f} ms")
    if case.line.quick:
        check(ms["big"] < ms["small"] + ms["clone"], f"the kernel may have copied: {text}")
    else:
        check(ms["big"] <= goal, f"more than the goal: {text}")
    return text


def paused(case: Case, mebibytes: int, kind: str) -> str:
    small, big = Ticking(case, "small", 1, "4k"), Ticking(case, "big", mebibytes, kind, held_up=case.line.quick)
    rounds = []
    for _ in range(SHORT_ROUNDS if case.line.quick else ROUNDS):
        rounds.append((small.gap_ms("forked"), big.gap_ms("forked"), big.took_ms("clone"), big.gap_ms("stopped")))
    path = big.job.sets[-1]
    small.finish()
    big.finish()
    # Other work on the machine only adds to a gap: a short sample takes the least.
    small_ms, big_ms, clone_ms, stopped_ms = map(min if case.line.quick else statistics.median, zip(*rounds))
    limit = small_ms + 2 * clone_ms
    text = (f"longest gap {big_ms:.1f} ms; of 1 MiB {small_ms:.1f}, a bare clone {clone_ms:.1f}: goal {limit:.1f} "
            f"{'met' if big_ms <= limit else 'MISSED'}; stopped {stopped_ms:.1f} ms")
    check(pathlib.Path(path).exists(), path)
    if case.line.quick:
        check(big_ms < HELD_UP_MS, f"the program has stood until its saver went on: {text}")
    else:
        check(big_ms <= limit, f"more than the goal: {text}")
    return text


def weighed(case: Case, mebibytes: int) -> str:
    """--save auto: a program goes on if its host has the memory for what it may write meanwhile. That is all of its memory at first, and later
    what it has written beside its last saver."""
    narrow, wide = mebibytes * MIB * 6 // 5 + 128 * MIB, 3 * mebibytes * MIB + 256 * MIB
    limit = MemoryLimit(case, narrow)
    if not limit.group:
        raise Skip("no memory control group can be made here")
    process = Ticking(case, "weighed", mebibytes, "4k", held_up=True, preexec_fn=limit.enter)
    job, told = process.job, []

    def save(expected: str, room: int, rewrites: bool = False):
        limit.set(room)
        command = subprocess.Popen([job.shadowib, "checkpoint", job.name, "--save", "auto", "--json", "--dir", str(job.directory)],
                                   env=job.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while rewrites and command.poll() is None:
            process.order("rewrite")
        said, errors = command.communicate(timeout=300)
        check(command.returncode == 0, f"code {command.returncode}: {errors}")
        answer = json.loads(said)
        job.sets.append(answer["set"])
        member = answer["members"][0]
        why = member.get("why_stopped", "")
        check(member.get("save") == expected, f"{expected} was to come with {room // MIB} MiB for all, behind {told}: {member}")
        check((expected == "stopped") == ("too little memory" in why), why)
        told.append(expected)

    save("stopped", narrow)
    save("forked", wide)
    save("forked", narrow)  # nothing was written beside the last saver
    save("forked", wide, rewrites=True)
    save("stopped", narrow)
    process.finish()
    job.restart()
    job.finish(300)
    return f"{', '.join(told)}: with {narrow // MIB}, {wide // MIB}, {narrow // MIB}, {wide // MIB} (all is written again), {narrow // MIB} MiB for all"


def stopped_saver(job: Job) -> int | None:
    """Its pid, once it stands at a fault point."""
    for place in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if ((place / "comm").read_text() == "shadowib-saver\n" and "State:\tT" in (place / "status").read_text()
                    and str(job.directory).encode() in (place / "environ").read_bytes()):
                return int(place.name)
        except OSError:
            continue  # it has ended
    return None


def given_back(case: Case, mebibytes: int) -> str:
    """A saver gives memory back once it is written: the program changes it without a copy from then on."""
    process = Ticking(case, "given", mebibytes, "4k", fault="69:stop")
    job = process.job
    command = subprocess.Popen([job.shadowib, "checkpoint", job.name, "--save", "forked", "--dir", str(job.directory)],
                               env=job.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_for("the saver to have written", lambda: stopped_saver(job) or command.poll() is not None, 300)
    check(command.poll() is None, "the checkpoint has ended before its saver")
    saver = stopped_saver(job)
    kept = int(re.search(r"RssAnon:\s+(\d+)", pathlib.Path(f"/proc/{saver}/status").read_text())[1]) // 1024
    os.kill(saver, signal.SIGCONT)
    said, _ = command.communicate(timeout=300)
    check(command.returncode == 0, said)
    job.sets.append(said.strip().splitlines()[-1])
    check(kept < mebibytes / 4, f"the saver has {kept} MiB behind the last page, of {mebibytes}")
    process.finish()
    job.restart()
    job.finish(300)
    return f"{kept} MiB of {mebibytes} are left behind the last page"


def save_and_rewrite(process: Ticking) -> str:
    """Takes a checkpoint while the program writes all its memory, as often as it can. Why there is none, or nothing."""
    job = process.job
    command = subprocess.Popen([job.shadowib, "checkpoint", job.name, "--save", "forked", "--dir", str(job.directory)],
                               env=job.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    process.order("rewrite")
    while command.poll() is None:
        process.order("rewrite")
    said = command.stdout.read()
    if command.returncode == 0:
        job.sets.append(said.strip().splitlines()[-1])
        job.remove_old_sets()
        return ""
    check("was killed, perhaps since memory ran out" in said, f"a checkpoint failed for another reason than memory: {said}")
    return said


def lives(case: Case, mebibytes: int) -> str:
    """All memory is written again while savers write it, with a fifth of it left. The job lives, whatever becomes of its checkpoint.
    A checkpoint fails for want of memory alone, the next one is taken where nothing is rewritten, and sets of both kinds restart."""
    limit = MemoryLimit(case, mebibytes * MIB * 6 // 5 + 64 * MIB)
    if not limit.group:
        raise Skip("no memory control group can be made here")
    process = Ticking(case, "limited", mebibytes, "4k", preexec_fn=limit.enter)
    job = process.job
    killed, rounds = 0, LIVES
    for _ in range(rounds):
        killed += save_and_rewrite(process) != ""
        check(not process.program.ended(), f"the job is dead: {process.program.text()}")
    taken = rounds - killed
    job.checkpoint(kill=False, timeout=300, environment={"SHADOWIB_SAVE": "forked"})
    peak = limit.peak()
    process.finish()
    for path in job.sets:  # of the last round that was saved, and the one after all rounds; each looks at all its memory
        job.restart(path)
        job.finish(300)
    return f"{rounds} of {rounds} rounds lived, {taken} checkpoints taken, {killed} savers killed; {len(job.sets)} sets restarted; {peak}"


def run() -> int:
    line = Line("pause", __doc__)
    available = int(next(text for text in pathlib.Path("/proc/meminfo").read_text().splitlines()
                         if text.startswith("MemAvailable")).split()[1]) // 1024

    def with_room(function, mebibytes: int, *words):
        def guarded(case: Case) -> str:
            if available < 1.5 * mebibytes + 600:
                raise Skip(f"{available} MiB of memory are available, {1.5 * mebibytes + 600:.0f} are needed")
            return function(case, mebibytes, *words)
        return guarded

    for mebibytes in (256,) if line.quick else (1024, 4096):
        for kind in ("4k", "2m"):
            line.case(f"{mebibytes} MiB in pages of {kind}", with_room(paused, mebibytes, kind))
    line.case("memory is given back", with_room(given_back, 256))
    line.case("memory is weighed", with_room(weighed, 128 if line.quick else 512))
    # Not in the sample: where the disk is slow, what a killed saver was writing is charged until it is written, and the kernel may
    # take the program as well.
    if not line.quick:
        line.case("memory is written again under a limit", with_room(lives, 256))
    return line.finish()


if __name__ == "__main__":
    main(run)
