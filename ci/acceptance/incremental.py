"""I3: --incremental writes what has changed since the newest set, and each set restarts by itself.

One page of a hundred changes between checkpoints. Bytes are counted in every run; the time is compared in a whole run alone."""
import json
import os
import pathlib
import re
import statistics

from common import Case, Line, check, main
from jobs import CORRUPT, Job, wait_for

MIB = 1 << 20
GOAL_OF_FULL = 0.4
MOST_PACKS = 64


class Changing:
    """A job of one process whose memory changes when it is told to."""

    members = 1
    anew = 0  # bytes at most that a restart makes anew, for the set behind it to write

    def __init__(self, case: Case, mebibytes: int, how: str, words: tuple = (), backend: str = "ib2tcp"):
        self.case, self.log = case, case.work / "member.log"
        self.job = Job(case, "changing", backend=backend, environment={"SHADOWIB_LOG": f"debug:{self.log}", "SHADOWIB_SAVE": how})
        self.pages = mebibytes * MIB // 4096
        self.program = self.job.start("changing", [case.line.program("ci_changes"), str(mebibytes), *words])
        wait_for("the process to fill its memory", lambda: "ready" in self.program.text() or self.program.ended(), 300)
        check(not self.program.ended(), self.program.text())

    def place_for(self, _order: str) -> pathlib.Path:
        return self.case.work

    def order(self, what: str):
        file = self.place_for(what) / what
        file.touch()
        wait_for(f"the program to obey {what}", lambda: not file.exists() or self.program.ended(), 300, 0.002)
        check(not self.program.ended(), self.program.text())

    def checkpoint(self, kill: bool = False, incremental: bool = True) -> pathlib.Path:
        path = self.job.checkpoint(kill=kill, timeout=300, environment={"SHADOWIB_INCREMENTAL": "1" if incremental else "0"})
        return pathlib.Path(path)

    def keep_newest(self):
        """As gc --keep 1 does it."""
        self.job.command("gc", "--keep", "1")
        self.job.sets = self.job.sets[-1:]

    def saved_s(self) -> float:
        """Of the newest checkpoint: seconds from the inspection to the commit."""
        text = self.log.read_text(errors="replace")
        words = re.findall(r"took ms: (.*)", text)[-1]
        return sum(float(ms) for name, ms in re.findall(r"(\w+) ([\d.]+)", words) if name in ("inspect", "save", "commit")) / 1e3

    def restart(self):
        self.program = self.job.restart()
        wait_for("the restarted member", lambda: self.job.check_running() or len(self.job.members()) == self.members, 120)
        before = self.job.output().count("is right")
        self.order("check")
        check(self.job.output().count("is right") == before + 1, self.job.output()[-2000:])

    def finish(self):
        (self.case.work / "finish").touch()
        self.job.finish(300)
        check(self.job.output().count(f"all of {self.pages} pages are right") == self.members, self.job.output()[-2000:])


class WrittenByPeer(Changing):
    """Member 0 changes nothing: a peer with the same memory writes it, by the device."""

    members = 2
    anew = 7 * MIB  # libraries of the device, and what they hold: 4.5 MiB on Soft-RoCE

    def __init__(self, case: Case, mebibytes: int, how: str, backend: str):
        super().__init__(case, mebibytes, how, ("written", str(case.work)), backend)
        self.job.place = case.work / "writer"
        self.job.place.mkdir()
        writer = self.job.start("writer", [case.line.program("ci_changes"), str(mebibytes), "writes", str(case.work)])
        both = (self.program, writer)
        wait_for("the two to connect", lambda: self.job.check_running() or all("connected" in program.text() for program in both), 300)

    def place_for(self, order: str) -> pathlib.Path:
        return self.case.work / "writer" if order == "change" else self.case.work

    def finish(self):
        (self.case.work / "writer" / "finish").touch()
        super().finish()


def image_of(path: pathlib.Path) -> pathlib.Path:
    return path / "member-0.img"


def packs_of(path: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path.glob("member-0.*.pages"))


def used_of_packs(changing: Changing, path: pathlib.Path) -> dict[str, int]:
    """Bytes that the set's image uses of each earlier image."""
    inspected = json.loads(changing.job.command("inspect", str(image_of(path)), "--json").stdout)
    return {pack["file"]: pack["used_bytes"] for pack in inspected["packs"]}


def in_a_row(case: Case, mebibytes: int, rounds: int, restarts: int, how: str, make=Changing) -> str:
    changing = make(case, mebibytes, how)
    changed = changing.pages * 4096 / 100
    whole = os.path.getsize(image_of(changing.checkpoint()))
    limit = 1.02 * changed + MIB
    sizes, most, restarted, used, left = [], 0, False, {}, 0
    for i in range(1, rounds + 1):
        changing.order("change")
        ends = i % (rounds // restarts) == 0
        path = changing.checkpoint(kill=ends)
        sizes.append(os.path.getsize(image_of(path)))
        # None writes more, however many there have been: in the end hardly any page lies beside the one before it. But what was still
        # used of an image that is used for less than half is written again, once. A restart makes such images: they hold its libraries.
        before, used = used, used_of_packs(changing, path)
        left_behind = sum(count for pack, count in before.items() if pack not in used)
        left += left_behind
        most_bytes = limit + (changing.anew if restarted else 0) + left_behind
        check(sizes[-1] <= most_bytes, f"set {i} writes {sizes[-1] / MIB:.2f} MiB, {most_bytes / MIB:.2f} may be, of {changed / MIB:.2f} MiB that "
              f"changed: {[f'{size / MIB:.1f}' for size in sizes]}")
        restarted = ends
        most = max(most, len(packs_of(path)))
        changing.keep_newest()
        if ends:
            changing.job.command("verify", str(path))
            changing.restart()
    worst, mean = max(sizes), statistics.mean(sizes)
    check(most <= MOST_PACKS, f"{most} packs of one image")
    check(left <= restarts * changing.anew / 2 + whole / 2, f"{left / MIB:.1f} MiB of images that were left behind have been written again")
    kept = sum(file.stat().st_blocks * 512 for file in path.glob("member-0.*"))
    check(kept <= 2 * whole + rounds * MIB, f"the newest set takes {kept / MIB:.0f} MiB, an image {whole / MIB:.0f}")
    lost = packs_of(path)[0]
    lost.rename(case.work / "lost")
    result = changing.job.command("verify", str(path), check_code=False)
    check(result.returncode == CORRUPT and lost.name in result.stderr, f"verify of a set without {lost.name}: {result.stderr}")
    (case.work / "lost").rename(lost)
    changing.finish()
    return (f"{rounds} sets of which {restarts} restarted; whole {whole / MIB:.1f} MiB, then {sizes[0] / MIB:.2f} (goal {limit / MIB:.2f}), "
            f"mean {mean / MIB:.2f}, most {worst / MIB:.2f}; {most} packs, {left / MIB:.2f} MiB of those left behind written again; the last set takes {kept / MIB:.0f} MiB")


def quicker(case: Case, mebibytes: int) -> str:
    """Medians of pairs: a whole image, and one of what has changed since."""
    changing = Changing(case, mebibytes, "stopped")
    changing.checkpoint()
    pairs = []
    for _ in range(5):
        changing.order("change")
        changing.checkpoint(incremental=False)
        full = changing.saved_s()
        changing.keep_newest()
        changing.checkpoint()  # with hashes, and no base that has any
        changing.order("change")
        changing.checkpoint()
        pairs.append((full, changing.saved_s()))
        changing.keep_newest()
    changing.finish()
    full, part = (statistics.median(column) for column in zip(*pairs))
    text = f"all of it {full:.3f} s, one page of a hundred {part:.3f} s: {part / full:.2f} times, goal {GOAL_OF_FULL}"
    check(part <= GOAL_OF_FULL * full, text)
    return text


def run() -> int:
    line = Line("incremental", __doc__)
    if line.quick:
        line.case("10 in a row", lambda case: in_a_row(case, 64, 10, 2, "stopped"))
        line.case("3 in a row by savers", lambda case: in_a_row(case, 64, 3, 1, "forked"))
    else:
        line.case("50 in a row", lambda case: in_a_row(case, 1024, 50, 5, "stopped"))
        line.case("20 in a row by savers", lambda case: in_a_row(case, 1024, 20, 4, "forked"))
        line.case("time", lambda case: quicker(case, 1024))
    return line.finish()


if __name__ == "__main__":
    main(run)
