"""Time-outs of commands that do not count how long a command stands in the queue for a processor or a disk.

Measured on Linux 6.18 with two processors and four polling ranks, by the kernel's own trace points (sched_wakeup to sched_switch): a
woken process, of a session of its own or not, waits 13 s for its turn; /bin/true takes up to 24 s. A file that is made on ext4 waits for
the journal, and that for all data that others write just then. What hangs sleeps or runs, and is found as soon as ever."""
import os
import pathlib
import shutil
import subprocess
import time

STEP_S = 0.5


def queued(pid: int) -> tuple[float, bool, float]:
    """Of a process: seconds that it has waited for processors, whether it does so or waits for a disk now or runs, and seconds that it has
    run."""
    ran = waited = 0.0
    runnable = False
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            place = pathlib.Path(f"/proc/{pid}/task/{task}")
            on, behind, _ = (place / "schedstat").read_text().split()
            ran, waited = ran + int(on) / 1e9, waited + int(behind) / 1e9
            runnable |= (place / "stat").read_text().rsplit(")", 1)[1].split()[0] in ("R", "D")
    except OSError:
        pass  # it has just ended
    return waited, runnable, ran


def counted(before: tuple[float, bool, float], after: tuple[float, bool, float], passed: float) -> float:
    """Seconds that count of a step of `passed` seconds, by what queued() told when it began and ended. Of a step that began and ended in
    the queue, what the process has run. Of another one, all but its time in the queue for a processor, of which the kernel adds what has
    ended alone."""
    if before[1] and after[1]:
        return min(passed, max(0.0, after[2] - before[2]))
    return max(0.0, passed - max(0.0, after[0] - before[0]))


def doing(pid: int) -> str:
    """What each thread of a process does at this moment: its state, where it sleeps in the kernel, its system call, and its stack
    if there is gdb."""
    lines = []
    try:
        for task in sorted(os.listdir(f"/proc/{pid}/task"), key=int):
            name, state, wchan, call = (pathlib.Path(f"/proc/{pid}/task/{task}/{file}").read_text().strip()
                                        for file in ("comm", "stat", "wchan", "syscall"))
            lines.append(f"{pid} {task} {name} {state.rsplit(')', 1)[1].split()[0]} {wchan} {call}")
    except OSError as error:
        lines.append(f"{pid}: {error}")
    if shutil.which("gdb"):
        words = ["gdb", "-p", str(pid), "-batch", "-nx", "-ex", "set debuginfod enabled off", "-ex", "thread apply all bt 12"]
        try:
            lines.append(subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                        errors="replace", timeout=60, check=False).stdout)
        except subprocess.TimeoutExpired:
            lines.append("gdb did not end within 60 s")
    return "\n".join(lines)


class TimedOut(subprocess.TimeoutExpired):
    """With .doing, what the command did when its time was over."""

    def __init__(self, words: list[str], timeout: float, what: str):
        super().__init__(words, timeout)
        self.doing = what

    def __str__(self) -> str:
        return f"{super().__str__()}; it did this:\n{self.doing}"


def run(words: list[str], timeout: float, **options) -> subprocess.CompletedProcess:
    """subprocess.run() with the output captured. TimedOut after `timeout` seconds in which the process did not wait for a
    processor."""
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:
        left, before, then = timeout, (0.0, True, 0.0), time.monotonic()
        while True:
            try:
                out, err = process.communicate(timeout=STEP_S)
                return subprocess.CompletedProcess(words, process.returncode, out, err)
            except subprocess.TimeoutExpired:
                now, after = time.monotonic(), queued(process.pid)
                left -= counted(before, after, now - then)
                before, then = after, now
                if left > 0:
                    continue
                what = doing(process.pid)
                process.kill()
                process.communicate()
                raise TimedOut(words, timeout, what) from None
