"""A4: a program that finds libibverbs by dlopen and dlvsym, as NCCL does, is shadowed by the drop-in directory; and programs
that use libfabric themselves neither hang nor lose their signal handlers."""
import shutil
import signal

from common import Line, Skip, check, main
from jobs import Job, sends, wait_for


def dlopened(case):
    """It sees ib2tcp, its data are right, and it goes through a checkpoint, kill and restart."""
    line = case.line
    job = Job(case, "pace")
    job.start("dlopen", [line.program("ci_dlopen_verbs"), "ib2tcp0", "1000000000"])
    job.wait_data_phase(1)
    first = sends(job.members())
    wait_for("50,000 messages", lambda: sends(job.members()) > first + 50_000, 60)
    job.stop()
    plain = Job(case, "plain")
    plain.start("dlopen", [line.program("ci_dlopen_verbs"), "ib2tcp0", "20000"])
    plain.finish()
    check("all as they should be" in plain.output(), plain.output())
    job = Job(case, "restarted")
    job.start("dlopen", [line.program("ci_dlopen_verbs"), "ib2tcp0", "3000000"])
    job.wait_data_phase(1)
    wait_for("some messages", lambda: sends(job.members()) > case.random().randrange(1000, 200_000), 60)
    job.checkpoint()
    job.restart()
    job.finish()
    check("all as they should be" in job.output(), job.output())
    return "ib2tcp0 found by dlvsym, 20,000 messages, and 3,000,000 with a restart among them"


def fi_pingpong(case):
    """What it finds is its business; it has to come to an end, and not by a signal."""
    if not shutil.which("fi_pingpong"):
        raise Skip("fi_pingpong is not installed (package libfabric-bin)")
    job = Job(case)
    program = job.start("fi_pingpong", ["fi_pingpong", "-p", "verbs"])
    try:
        code = program.process.wait(3)
    except Exception:  # it found a device and waits for its client
        client = job.start("client", ["fi_pingpong", "-p", "verbs", "localhost"])
        wait_for("fi_pingpong's client to end", client.ended, 30)
        wait_for("fi_pingpong's server to end", program.ended, 30)
        code = program.process.returncode
        check(client.process.returncode is not None and client.process.returncode >= 0,
              f"the client ended by signal {-client.process.returncode}: {client.text()}")
    check(code >= 0, f"ended by {signal.Signals(-code).name if code < 0 else code}: {program.text()}")
    return f"exit code {code}: {program.text().strip().splitlines()[-1] if program.text().strip() else 'no output'}"


def handlers(case, arguments: list[str]):
    job = Job(case)
    program = job.start("keeper", [case.line.program("ci_signal_keeper"), *arguments])
    wait_for("the program's end", program.ended, 60)
    if program.process.returncode == 77:
        raise Skip(program.text().strip().splitlines()[-1].replace("SKIPPED: ", ""))
    job.finish()
    return program.text().strip().splitlines()[-1]


def run() -> int:
    line = Line("found_by_name", __doc__)
    line.case("dlopen and dlvsym", dlopened)
    line.case("fi_pingpong -p verbs", fi_pingpong)
    line.case("signal handlers", lambda case: handlers(case, []))
    line.case("signal handlers, libfabric loaded", lambda case: handlers(case, ["libfabric.so.1"]))
    return line.finish()


if __name__ == "__main__":
    main(run)
