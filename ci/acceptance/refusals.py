"""A6: what cannot be captured is refused before anything is saved, by name (descriptor number, type, pid); the job is
unharmed, and its checkpoint works once the thing is gone."""
import os
import pathlib
import re
import shutil
import socket
import stat
import subprocess

from common import Case, Line, Skip, check, main
from jobs import REFUSED, Job, wait_for


def refuse(case: Case, kind: str, argument: str, expected: str, tracer: bool = False):
    """`expected`: a regular expression for the message; {fd}, {pid} and {child} stand for what the program tells."""
    odd = case.line.program("ci_odd_process")
    job = Job(case)
    program = job.start("odd", [odd, kind, argument])
    wait_for("the odd process to be ready", lambda: "ready" in program.text() or program.ended(), 20)
    if program.ended():
        said = program.text().strip()
        check(program.process.returncode == 77, f"exit code {program.process.returncode}: {said}")
        raise Skip(said.splitlines()[-1].replace("SKIPPED: ", ""))
    fd, pid, child = re.search(r"ready fd=(-?\d+) pid=(\d+) child=(\d+)", program.text()).groups()
    check(int(pid) == program.process.pid, "run does not keep the pid")
    if tracer:
        tracing = subprocess.Popen([odd, "trace", pid], stdout=subprocess.PIPE, text=True)
        case.cleanups.append(lambda _: (tracing.kill(), tracing.wait()))
        said = tracing.stdout.readline().strip()
        if said != "ready":
            raise Skip(said.replace("SKIPPED: ", ""))

    result = job.command("checkpoint", job.name, "--kill", check_code=False)
    message = result.stderr.strip()
    check(result.returncode == REFUSED, f"exit code {result.returncode} instead of {REFUSED}: {message}")
    wanted = [rf"(?i)descriptor {fd}\b"] if int(fd) >= 0 else []
    wanted += [rf"\bpid {pid}\b", expected.format(fd=fd, pid=pid, child=child)]
    for pattern in wanted:
        check(re.search(pattern, message), f"the message does not match '{pattern}': {message}")
    sets = job.directory / "sets"
    left = [p.name for p in sets.iterdir()] if sets.exists() else []
    check(not left, f"something was written: {left}")

    job.check_running()
    if tracer:
        tracing.kill()
        tracing.wait()
    (case.work / "close").touch()
    wait_for("the odd process to be ordinary", lambda: "closed" in program.text(), 20)
    job.checkpoint(kill=False)
    job.checkpoint()
    job.restart()
    (case.work / "finish").touch()
    job.finish()
    return message.splitlines()[-1]


def to_an_outsider(case: Case):
    with socket.create_server(("127.0.0.1", 0)) as server:
        return refuse(case, "tcp", str(server.getsockname()[1]), "(?i)tcp.*outside")


def setuid_child(case: Case):
    if os.geteuid() != 0:
        raise Skip("only root can make a program setuid to somebody else")
    program = case.work / "sleeper-setuid"
    shutil.copy(case.line.program("ci_sleeper"), program)
    os.chown(program, 65534, 65534)
    program.chmod(0o4755)
    for directory in [case.work, *case.work.parents]:
        if os.statvfs(directory).f_flag & os.ST_NOSUID:
            raise Skip("the file system is mounted nosuid")
    return refuse(case, "child", str(program), r"(?i)child.*\b{child}\b|\b{child}\b.*child")


def uverbs(case: Case):
    """A descriptor of a device file as the kernel's RDMA drivers have it, opened past libibverbs."""
    directory = pathlib.Path("/dev/infiniband")
    for device in sorted(directory.glob("uverbs*")) if directory.exists() else []:
        if os.access(device, os.R_OK | os.W_OK):
            return refuse(case, "open", str(device), "(?i)uverbs")
    if os.geteuid() != 0:
        raise Skip("there is no RDMA device, and only root can make a device file")
    device, made = directory / "uverbs99", not directory.exists()
    try:
        directory.mkdir(exist_ok=True)
        os.mknod(device, 0o600 | stat.S_IFCHR, os.makedev(1, 11))  # the kernel log stands in for a driver
    except OSError as error:
        raise Skip(f"a device file cannot be made: {error.strerror}") from None
    try:
        return refuse(case, "open", str(device), "(?i)(uverbs|RDMA)")
    finally:
        device.unlink()
        if made:
            directory.rmdir()


def run() -> int:
    line = Line("refusals", __doc__)
    line.case("TCP to an outsider", to_an_outsider)
    for kind, expected in (("inotify", "(?i)inotify"), ("io_uring", "(?i)io_?uring"), ("userfaultfd", "(?i)userfaultfd"),
                           ("raw", "(?i)raw socket"), ("lease", "(?i)lease"), ("notification", "(?i)(notif|F_NOTIFY)"),
                           ("device-mapping", "(?i)(/dev/|perf_event)"), ("in-flight", "(?i)(SCM_RIGHTS|in flight)")):
        line.case(kind, lambda case, k=kind, e=expected: refuse(case, k, "", e))
    line.case("ptraced", lambda case: refuse(case, "nothing", "", "(?i)trace", tracer=True))
    line.case("static child", lambda case: refuse(case, "child", case.line.program("ci_sleeper"),
                                                  r"(?i)child.*\b{child}\b|\b{child}\b.*child"))
    line.case("setuid child", setuid_child)
    line.case("uverbs", uverbs)
    return line.finish()


if __name__ == "__main__":
    main(run)
