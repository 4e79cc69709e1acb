"""S4: whatever fails while a set is saved near, its copies are made, it is rebuilt, or it is flushed, the new set or the last one restarts,
nothing hangs, and nothing stays that gc does not name. Commands, members, savers, keepers and hosts are killed, stopped, slow, fail, or run out
of space, at each point of hooks/job/phase.h. Needs root, for namespaces and file systems of a chosen size."""
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import time

from common import Case, Line, check, main
from copy_speed import BigJob
from jobs import Program, wait_for
from lost_hosts import SPARE, Hosts, state_of
from spaces import ip

HOSTS = "abc"
OTHER = "a"               # commands run there
MEBIBYTES = 2
LIMIT_S = 20              # given by --timeout to checkpoints that cannot succeed, since somebody is stopped or cut off
PATIENT_S = 120           # to others, on a machine with much else to do
GRACE_S = 120             # beyond that, or for other commands: 60 s are what a silent keeper is given
SLOW_S = 2                # hooks/threads/fault.h
HOWS = ("crash", "stop", "slow", "fail")
SNAPSHOT, CLONE, SAVER, SAVE, GIVE, TAKE, OUTCOME = 65, 66, 68, 70, 72, 74, 90
REQUESTED, MATCHED, COLLECTED, COPIED, COMMITTED = 200, 210, 220, 225, 230
SURVEYED, FLUSH, FLUSHED = 290, 400, 410


class Full:
    """A file system without room, for a while."""

    def __init__(self, path: pathlib.Path):
        self.path = path

    def __enter__(self):
        info = os.statvfs(self.path)
        self._resize((info.f_blocks - info.f_bfree) * info.f_frsize)

    def __exit__(self, *_):
        self._resize(1 << 30)

    def _resize(self, size: int):
        subprocess.run(["mount", "-o", f"remount,size={max(size // 4096, 1) * 4096}", self.path], check=True)


class Kept:
    """A job of one process a host, and a set behind it. `at` is where a command runs."""

    def __init__(self, case: Case, store: str):
        self.case, self.store = case, store
        (case.work / "ckpt").mkdir()
        self.on_memory(case.work / "ckpt")
        self.hosts = Hosts(case, "mem", HOSTS + SPARE)
        self.job = BigJob(case, self.hosts, store, MEBIBYTES)
        self.victim, self.spare = "b", SPARE  # whoever fails is there; it is lost, and the spare takes its members
        self.rounds = 0
        self.save()

    def on_memory(self, path: pathlib.Path):
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", path], check=True)
        self.case.cleanups.append(lambda _: subprocess.run(["umount", "--lazy", path], check=False))

    # What runs.

    def begin(self, *words: str, at: str = OTHER, fault: str = "") -> Program:
        """The process is the command itself: each exec before it has left it its pid."""
        argv = self.hosts.at(at, [self.job.shadowib, *words, "--dir", str(self.job.directory)])
        return self.job._spawn(f"{words[0]}-{at}", argv, {"SHADOWIB_FAULT": fault})

    def checkpoint(self, save: str = "stopped", fault: str = "", time_out: int = PATIENT_S) -> Program:
        return self.begin("checkpoint", self.job.name, "--timeout", str(time_out), "--save", save, fault=fault)

    def await_stopped(self, pid: int):
        wait_for("a process to stop at its fault point", lambda: state_of(pid) in "TX", 60)
        check(state_of(pid) == "T", "it has ended before it came to its fault point")

    def end(self, program: Program, text: str) -> int:
        """Nothing hangs, and what fails says why."""
        began = time.monotonic()
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.process.wait(PATIENT_S + GRACE_S)
        check(program.ended(), f"{text}: {program.role} hangs: {program.text()[-1500:]}")
        code = program.process.returncode
        self.case.note(f"{text}: {code} after {time.monotonic() - began:.1f} s: {program.text().strip()[-300:]}")
        check(code <= 0 or code == 128 + signal.SIGKILL or program.text().strip(), f"{text}: exit code {code}, and not a word")
        return code

    def go_on(self):
        """All that is stopped, on any host."""
        for pid in self.hosts.pids(self.hosts.names):
            if state_of(pid) == "T":
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def keepers_on(self, name: str) -> list[int]:
        found = []
        for pid in self.hosts.pids(name):
            with contextlib.suppress(OSError):  # it has ended
                if b"\0keeper\0" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def keeper(self, name: str, fault: str = ""):
        """The host has a new one."""
        for pid in self.keepers_on(name):
            os.kill(pid, signal.SIGKILL)
        wait_for("a keeper to be gone", lambda: not self.keepers_on(name), 30)
        program = self.begin("keeper", self.job.name, at=name, fault=fault)
        wait_for(f"the keeper on {name}", lambda: program.ended() or name in self.status()["keepers"], 30)
        check(not program.ended(), f"the keeper on {name}: {program.text()}")

    def status(self) -> dict:
        return json.loads(self.job.command("status", self.job.name, "--json").stdout)

    # What has become of it.

    def listed(self) -> list[dict]:
        return sorted(json.loads(self.job.command("list", "--json").stdout)["sets"], key=lambda entry: entry["number"])

    def save(self):
        program = self.checkpoint()
        check(self.end(program, "a checkpoint without faults") == 0, program.text())

    def all_answer(self) -> bool:
        return all(not program.ended() for program in self.job.programs) and sum(m.answered for m in self.job.members()) == self.job.count

    def restart(self, fault: str = ""):
        """The newest set, by processes in which the fault is."""
        self.job.kill()
        self.job.sets.append(self.listed()[-1]["path"])
        self.job.environment["SHADOWIB_FAULT"] = fault
        self.job.restart_shares()
        self.job.environment.pop("SHADOWIB_FAULT")
        self.job.await_progress()

    def files(self) -> dict[str, list[str]]:
        """By host, what lies near, without the link to its home; and what is beside the sets in DIR."""
        found = {name: [str(path.relative_to(self.hosts.own(name))) for path in sorted(self.hosts.own(name).glob("shadowib-*/*/*/*"))
                        if not path.is_symlink()] for name in self.hosts.names}
        return found | {"": sorted(path.name for path in (self.job.directory / "sets").iterdir())}

    def nothing_stays(self, text: str):
        told = self.job.at(OTHER, "gc", "--keep", "1")
        listed, files = self.listed(), self.files()
        check(files.pop("") == [pathlib.Path(entry["path"]).name for entry in listed], f"{text}: beside {len(listed)} sets: {files}")
        ids = {entry["set_id"] for entry in listed}
        for name, paths in files.items():
            for _, _, set_id, piece in (path.split("/") for path in paths):
                check(set_id in ids and not piece.startswith("."), f"{text}: {set_id}/{piece} is left on {name}; gc told {told}")

    def judge(self, text: str, before: list[dict], code: int, alive: bool = True):
        """`alive`: all members have to be. `before`: the sets."""
        self.rounds += 1
        sets = self.listed()
        check([s["set_id"] for s in sets[:len(before)]] == [s["set_id"] for s in before], f"{text}: listed are {sets}, before {before}")
        check(len(sets) <= len(before) + 1, f"{text}: {len(sets)} sets, {len(before)} before")
        check(code != 0 or len(sets) == len(before) + 1, f"{text}: the command has succeeded, and there is no set")
        self.job.at(OTHER, "verify", sets[-1]["path"])
        if alive:
            wait_for(f"all members to answer after {text}", self.all_answer, PATIENT_S + GRACE_S, 0.1)
        else:
            self.restart()
        self.save()
        self.nothing_stays(text)

    def finish(self) -> str:
        """Every byte of each process is what it was before all that."""
        self.restart()
        (self.case.work / "finish").touch()
        self.job.finish(240)
        (self.case.work / "finish").unlink()
        return f"{self.rounds} faults"


def limit(how: str) -> int:
    return LIMIT_S if how == "stop" else PATIENT_S


def members(kept: Kept, points: dict[int, tuple], save: str, who: str = "member"):
    """Of one member, or of its saver."""
    for point, hows in points.items():
        for how in hows:
            text, before = f"{how} of a {who} at {point}, --save {save}", kept.listed()
            member = next(member for member, name in kept.job.where.items() if name == kept.victim)
            kept.restart(f"{point}:{how}:{member}:1")
            code = kept.end(kept.checkpoint(save, time_out=limit(how)), text)
            check(code != 0 or how == "slow" or point == OUTCOME, f"{text}: the checkpoint has succeeded")
            kept.go_on()
            # Where writes fail they fail always.
            kept.judge(text, before, code, alive=how not in ("crash", "enospc") or (how == "crash" and who == "saver"))


def commands(kept: Kept, points: dict[int, tuple]):
    for point, hows in points.items():
        for how in hows:
            text, before = f"{how} of the command at {point}", kept.listed()
            program = kept.checkpoint(fault=f"{point}:{how}", time_out=limit(how))
            if how == "stop":
                kept.await_stopped(program.process.pid)
                wait_for(f"the members to go on without the command: {text}", kept.all_answer, PATIENT_S + GRACE_S, 0.1)
                kept.go_on()
            kept.judge(text, before, kept.end(program, text))


def command_out_of_space(kept: Kept):
    text, before = "DIR is full", kept.listed()
    program = kept.checkpoint(fault=f"{COLLECTED}:stop")
    kept.await_stopped(program.process.pid)
    with Full(kept.job.directory):
        kept.go_on()
        code = kept.end(program, text)
        check(code != 0 and "space" in program.text().lower(), f"{text}: {code} {program.text()}")
    kept.judge(text, before, code)


def keepers(kept: Kept, points: dict[int, tuple]):
    """At the victim's keeper, which takes and gives while copies or parities are made."""
    for point, hows in points.items():
        for how in hows:
            text, before = f"{how} of a keeper at {point}", kept.listed()
            kept.keeper(kept.victim, f"{point}:{how}:-1:1")
            code = kept.end(kept.checkpoint(time_out=limit(how)), text)
            check((code == 0) == (how == "slow"), f"{text}: exit code {code}")
            kept.go_on()
            kept.keeper(kept.victim)
            kept.judge(text, before, code)


def out_of_space_for_copies(kept: Kept):
    text, before = "a host is full when it is to take copies", kept.listed()
    program = kept.checkpoint(fault=f"{COLLECTED}:stop")
    kept.await_stopped(program.process.pid)
    with Full(kept.hosts.own(kept.victim)):
        kept.go_on()
        code = kept.end(program, text)
        check(code != 0 and "space" in program.text().lower(), f"{text}: {code} {program.text()}")
    kept.judge(text, before, code)


class Ill:
    """The victim's host: lost, stopped, stopped for a while, or cut off from the others."""

    def __init__(self, kept: Kept, how: str, name: str):
        self.kept, self.how, self.name = kept, how, name

    def _signal(self, number: int):
        for pid in self.kept.hosts.pids(self.name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _link(self, state: str):
        ip("-n", self.kept.hosts.spaces[self.name], "link", "set", "eth0", state)

    def __enter__(self):
        if self.how == "crash":
            self.kept.hosts.lose(self.name)
        elif self.how == "fail":
            self._link("down")
        else:
            self._signal(signal.SIGSTOP)
        if self.how == "slow":
            time.sleep(SLOW_S)
            self._signal(signal.SIGCONT)

    def __exit__(self, *_):
        if self.how == "fail":
            self._link("up")
        elif self.how == "stop":
            self._signal(signal.SIGCONT)


def hosts(kept: Kept, points: dict[int, tuple]):
    """Of the victim, while the command, on another host, stands at a point."""
    for point, hows in points.items():
        for how in hows:
            text, before = f"{how} of a host at {point} of the command", kept.listed()
            program = kept.checkpoint(fault=f"{point}:stop", time_out=LIMIT_S if how in ("stop", "fail") else PATIENT_S)
            kept.await_stopped(program.process.pid)
            with Ill(kept, how, kept.victim):
                os.kill(program.process.pid, signal.SIGCONT)
                code = kept.end(program, text)
            check(code != 0 or how == "slow" or point == COPIED, f"{text}: the checkpoint has succeeded")
            kept.judge(text, before, code, alive=how != "crash")


def rebuilding(kept: Kept, text: str, fault: str = "", taker: str = "", giver: str = "", ill: str = "", full: bool = False):
    """A host is lost; what it had is made again on the spare, which takes its members. `fault` is of the command."""
    lost, spare, before = kept.victim, kept.spare, kept.listed()
    stops = bool(ill) or fault.endswith(":stop")
    kept.job.lose(lost)
    kept.keeper(spare, taker)
    for name in (OTHER, "c") if giver else ():
        kept.keeper(name, giver)
    program = kept.begin("rebuild", before[-1]["path"], fault=f"{SURVEYED}:stop" if ill else fault)
    if stops:
        kept.await_stopped(program.process.pid)
    with contextlib.ExitStack() as stack:
        if ill:
            stack.enter_context(Ill(kept, ill, "c"))
        if full:
            stack.enter_context(Full(kept.hosts.own(spare)))
        if stops:
            os.kill(program.process.pid, signal.SIGCONT)
        code = kept.end(program, text)
        check(not full or "space" in program.text().lower(), f"{text}: {code} {program.text()}")
    goes_well = "slow" in (ill, *(words.split(":")[1] for words in (fault, taker, giver) if words)) or fault.endswith(":stop")
    check((code == 0) == goes_well, f"{text}: exit code {code}: {program.text()}")
    kept.go_on()
    for name in (spare, *((OTHER, "c") if giver else ())):
        kept.keeper(name)
    check([s["set_id"] for s in kept.listed()] == [s["set_id"] for s in before], f"{text}: other sets are listed")
    again = kept.begin("rebuild", before[-1]["path"])
    check(kept.end(again, f"{text}, again") == 0, f"{text}: a second rebuild: {again.text()}")
    kept.job.at(OTHER, "verify", before[-1]["path"], "--strict")
    kept.nothing_stays(text)
    kept.job.move(lost, spare)
    kept.victim, kept.spare = spare, lost  # which is empty now
    kept.restart()
    kept.save()
    kept.nothing_stays(text)
    kept.rounds += 1


def rebuilds(kept: Kept, few: bool):
    for how in () if few or kept.store == "mem:mirror" else HOWS:
        rebuilding(kept, f"{how} of rebuild", fault=f"{SURVEYED}:{how}")
    for how in ("crash",) if few else HOWS:
        rebuilding(kept, f"{how} of the keeper that takes for a rebuild", taker=f"{TAKE}:{how}:-1:1")
    for how in () if few else HOWS:
        rebuilding(kept, f"{how} of a keeper that gives for a rebuild", giver=f"{GIVE}:{how}:-1:1")
    if not few:
        rebuilding(kept, "the host that takes for a rebuild is full", full=True)
    # A second lost host is S5's (lost_hosts).
    for how in () if few or kept.store == "mem:mirror" else ("stop", "slow", "fail"):
        rebuilding(kept, f"{how} of a host during a rebuild", ill=how)


def flushing(kept: Kept, far: pathlib.Path, text: str, fault: str = "", giver: str = "", ill: str = "", full: bool = False):
    """From a host that has one of three images. `fault` is of the command."""
    before, stops = kept.listed(), bool(ill) or fault.endswith(":stop")
    if giver:
        kept.keeper(kept.victim, giver)
    words = ("flush", before[-1]["path"], "--far", f"dir:{far}")
    program = kept.begin(*words, fault=f"{FLUSH}:stop" if ill else fault)
    if stops:
        kept.await_stopped(program.process.pid)
    with contextlib.ExitStack() as stack:
        if ill:
            stack.enter_context(Ill(kept, ill, kept.victim))
        if full:
            stack.enter_context(Full(far))
        if stops:
            os.kill(program.process.pid, signal.SIGCONT)
        code = kept.end(program, text)
        check(not full or (code != 0 and "space" in program.text().lower()), f"{text}: {code} {program.text()}")
        whole(kept, far, text)
    kept.go_on()
    if giver:
        kept.keeper(kept.victim)
    if ill == "crash":
        kept.restart()
    again = kept.begin(*words)
    check(kept.end(again, f"{text}, again") == 0, f"{text}: a second flush: {again.text()}")
    check(before[-1]["set_id"] in whole(kept, far, text), f"{text}: the set is not in {far}")
    kept.judge(text, before, 1)


def whole(kept: Kept, far: pathlib.Path, text: str) -> list[str]:
    """The sets that are listed there, each of which is whole; and none has a manifest and lacks a piece."""
    for manifest in far.glob("*/*/manifest.json"):
        kept.job.command("verify", str(manifest.parent))
    lists = list(far.glob("*/sets.json"))
    ids = [entry["set_id"] for file in lists for entry in json.loads(file.read_text())["sets"]]
    for set_id in ids:
        check((far / kept.job.name / set_id / "manifest.json").exists(), f"{text}: half a set is listed: {set_id}")
    return ids


def flushes(kept: Kept, few: bool):
    far = kept.case.work / "far"
    far.mkdir()
    kept.on_memory(far)
    for point in (FLUSHED,) if few else (FLUSH, FLUSHED):
        for how in ("crash",) if few else HOWS:
            flushing(kept, far, f"{how} of flush at {point}", fault=f"{point}:{how}")
    for how in () if few else HOWS:
        flushing(kept, far, f"{how} of a keeper that gives for a flush", giver=f"{GIVE}:{how}:-1:1")
    for how in () if few else HOWS:
        flushing(kept, far, f"{how} of a host during a flush", ill=how)
    if not few:
        flushing(kept, far, "the far place is full", full=True)


def with_job(store: str, *parts):
    def run_parts(case: Case) -> str:
        kept = Kept(case, store)
        for part, *arguments in parts:
            part(kept, *arguments)
        return kept.finish()
    return run_parts


def run() -> int:
    line = Line("store_faults", __doc__)
    if line.quick:
        line.case("mem xor, some of each", with_job(
            "mem:xor", (members, {SAVER: ("crash",)}, "forked", "saver"), (keepers, {TAKE: ("crash",)}), (hosts, {COLLECTED: ("crash",)}),
            (flushes, True), (rebuilds, True)))
        return line.finish()
    line.case("members", with_job("mem:xor", (members, {SAVE: (*HOWS, "enospc"), OUTCOME: HOWS}, "stopped")))
    line.case("members, by savers", with_job("mem:xor", (members, {SNAPSHOT: HOWS, CLONE: HOWS, OUTCOME: HOWS}, "forked")))
    line.case("savers", with_job("mem:xor", (members, {SAVER: HOWS, SAVE: ("enospc",)}, "forked", "saver")))
    line.case("commands", with_job("mem:xor", (commands, {point: HOWS for point in (REQUESTED, MATCHED, COLLECTED, COPIED, COMMITTED)}),
                                   (command_out_of_space,)))
    for store in ("mem:mirror", "mem:xor"):
        name = store.replace(":", " ")
        line.case(f"{name}, keepers", with_job(store, (keepers, {GIVE: HOWS, TAKE: HOWS}), (out_of_space_for_copies,)))
        line.case(f"{name}, hosts", with_job(store, (hosts, {point: HOWS for point in (MATCHED, COLLECTED, COPIED)})))
        line.case(f"{name}, rebuild", with_job(store, (rebuilds, False)))
    line.case("mem xor, flush", with_job("mem:xor", (flushes, False)))
    return line.finish()


if __name__ == "__main__":
    main(run)
