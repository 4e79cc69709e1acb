"""A8: a 4 GiB process is saved and restored under a memory limit of its size + 256 MiB."""
import os
import pathlib
import resource
import shutil

from common import Case, Line, Skip, check, main
from jobs import Job, wait_for

MIB = 1 << 20


class MemoryLimit:
    """A memory control group (version 1 or 2) of our own, or RLIMIT_AS where there is none."""

    def __init__(self, case: Case, limit: int):
        self.limit, self.group = limit, None
        name = f"shadowib-a8-{os.getpid()}"
        for parent, file in ((self._own("memory", "/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
                             (self._own("", "/sys/fs/cgroup"), "memory.max")):
            group, self.file = parent / name, file
            try:
                group.mkdir()
                self.group = group
                self.set(limit)
                break
            except OSError:
                self.remove()
        for swap in ("memory.memsw.limit_in_bytes", "memory.swap.max"):
            if self.group and (self.group / swap).exists():
                try:
                    (self.group / swap).write_text("0" if swap.endswith("max") else str(limit))
                except OSError:
                    pass
        case.cleanups.insert(0, lambda _: self.remove())
        self.kind = f"control group {self.group}" if self.group else "RLIMIT_AS"

    @staticmethod
    def _own(controller: str, mount: str) -> pathlib.Path:
        for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(","):
                own = pathlib.Path(mount) / path.lstrip("/")
                return own if own.exists() else pathlib.Path(mount)
        return pathlib.Path(mount)

    def set(self, limit: int):
        """Of a control group. In version 1 memory with swap may have no less than memory alone."""
        with_swap = self.group / "memory.memsw.limit_in_bytes"
        if with_swap.exists() and limit > self.limit:
            with_swap.write_text(str(limit))
        (self.group / self.file).write_text(str(limit))
        if with_swap.exists() and limit < self.limit:
            with_swap.write_text(str(limit))
        self.limit = limit

    def enter(self):
        """Runs in the child, before exec."""
        if self.group:
            (self.group / "cgroup.procs").write_text(str(os.getpid()))
        else:
            resource.setrlimit(resource.RLIMIT_AS, (self.limit, self.limit))

    def peak(self) -> str:
        for name in ("memory.max_usage_in_bytes", "memory.peak"):
            if self.group and (self.group / name).exists():
                used = int((self.group / name).read_text())
                failed = (self.group / "memory.failcnt")
                hits = f", limit hit {failed.read_text().strip()} times" if failed.exists() else ""
                return f"peak {used // MIB} MiB with cached files{hits}"
        return "peak unknown"

    def remove(self):
        if self.group and self.group.exists():
            try:
                self.group.rmdir()
            except OSError:
                pass


def limited(case: Case, mebibytes: int):
    available = int(next(line for line in pathlib.Path("/proc/meminfo").read_text().splitlines()
                         if line.startswith("MemAvailable")).split()[1]) // 1024
    if available < mebibytes + 600:
        raise Skip(f"{available} MiB of memory are available, {mebibytes + 600} are needed")
    if shutil.disk_usage(case.work).free < 2.2 * mebibytes * MIB:
        raise Skip(f"the disk has no {2.2 * mebibytes:.0f} MiB free")
    limit = MemoryLimit(case, (mebibytes + 256) * MIB)
    job = Job(case)
    program = job.start("big", [case.line.program("ci_big_process"), str(mebibytes)], preexec_fn=limit.enter)
    wait_for("the process to fill its memory", lambda: "ready" in program.text() or program.ended(), 300)
    check(not program.ended(), f"exit code {program.process.returncode}: {program.text()}")
    path = job.checkpoint(timeout=600)
    bytes_saved = sum(p.stat().st_size for p in pathlib.Path(path).iterdir())
    saved = limit.peak()
    inner = MemoryLimit(case, (mebibytes + 256) * MIB) if not limit.group else limit
    argv = [job.shadowib, "restart", path, "--dir", str(job.directory)]
    job.generation += 1
    job.programs = [job._spawn("restart1", argv, preexec_fn=inner.enter)]  # pylint: disable=protected-access
    wait_for("the restarted member", lambda: job.check_running() or len(job.members()) == 1, 600, 0.2)
    (case.work / "finish").touch()
    job.finish(600)
    check("all of" in job.output(), job.output())
    return f"{bytes_saved // MIB} MiB image, limit {limit.limit // MIB} MiB by {limit.kind}; saving: {saved}, in all: {limit.peak()}"


def run() -> int:
    line = Line("memory_limit", __doc__)
    size = 256 if line.quick else 4096
    line.case(f"{size} MiB process, 256 MiB more", lambda case: limited(case, size))
    return line.finish()


if __name__ == "__main__":
    main(run)
