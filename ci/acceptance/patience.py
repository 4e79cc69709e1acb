"""Time-outs of commands that do not count how long a command stands in the queue for a processor.

Measured on Linux 6.18 with two processors and four polling ranks, by the kernel's own trace points (sched_wakeup to sched_switch): a
woken process, of a session of its own or not, waits 13 s for its turn; /bin/true takes up to 24 s. What hangs sleeps or runs, and is
found as soon as ever."""
import os
import pathlib
import subprocess
import time

STEP_S = 0.5


def _queued(pid: int) -> tuple[float, bool, float]:
    """Of a process: seconds that it has waited for processors, whether it does so or runs now, and seconds that it has run."""
    ran = waited = 0.0
    runnable = False
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            place = pathlib.Path(f"/proc/{pid}/task/{task}")
            on, behind, _ = (place / "schedstat").read_text().split()
            ran, waited = ran + int(on) / 1e9, waited + int(behind) / 1e9
            runnable |= (place / "stat").read_text().rsplit(")", 1)[1].split()[0] == "R"
    except OSError:
        pass  # it has just ended
    return waited, runnable, ran


def run(words: list[str], timeout: float, **options) -> subprocess.CompletedProcess:
    """subprocess.run() with the output captured. TimeoutExpired after `timeout` seconds in which the process did not wait for a
    processor."""
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:
        left, before, then = timeout, (0.0, False, 0.0), time.monotonic()
        while True:
            try:
                out, err = process.communicate(timeout=STEP_S)
                return subprocess.CompletedProcess(words, process.returncode, out, err)
            except subprocess.TimeoutExpired:
                now, after = time.monotonic(), _queued(process.pid)
                stands = before[1] and after[1] and after[2] == before[2]  # the kernel adds what has ended alone
                left -= 0.0 if stands else max(0.0, now - then - max(0.0, after[0] - before[0]))
                before, then = after, now
                if left > 0:
                    continue
                process.kill()
                process.communicate()
                raise subprocess.TimeoutExpired(words, timeout) from None
