"""bsprun: input, output, exit codes; here and on pretended hosts."""
import os
import pathlib
import signal
import subprocess
import time

from bsp_job import HERE, PATIENCE_S, Bench, main, need

# Instead of ssh: the command runs here, by a shell of its own, as a host's would.
RSH = "#!/bin/sh\nshift\nexec sh -c \"$*\"\n"


def own_codes(bench: Bench, program, where: list[str], environment: dict):
    for code in (0, 3, 137, 200, 255):
        done = bench.run(*where, program, "code", code, environment=environment)
        need(done.returncode == code and "bsprun:" not in done.stderr, f"{where} code {code}: {done.returncode} {done.stderr}")


def all_output(bench: Bench, program, where: list[str], environment: dict):
    lines = 3000
    done = bench.run(*where, program, "output", lines, environment=environment)
    need(done.returncode == 0, f"{where}: {done.returncode} {done.stderr}")
    wanted = sorted(f"line {i} of process {s}" for i in range(lines) for s in range(3))
    need(sorted(done.stdout.splitlines()) == wanted, f"{where}: {len(done.stdout.splitlines())} lines of {len(wanted)}")


def await_pids(path: pathlib.Path, processes: int) -> list[int]:
    end = time.monotonic() + PATIENCE_S
    files = [pathlib.Path(f"{path}.{i}") for i in range(processes)]
    while not all(file.exists() for file in files):
        need(time.monotonic() < end, "the processes did not start")
        time.sleep(0.02)
    return [int(file.read_text()) for file in files]


def start_waiting(bench: Bench, program, where: list[str], environment: dict, name: str):
    path = bench.work / name
    process = subprocess.Popen(bench.command(*where, program, "wait", path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               stdin=subprocess.DEVNULL, cwd=bench.work, env={**bench.environment, **environment})
    return process, await_pids(path, 3)


def lives(pid: int) -> bool:
    """No zombie, which waits for a parent that takes its time."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def gone(pids: list[int]) -> bool:
    return not any(lives(pid) for pid in pids)


def await_gone(pids: list[int]):
    end = time.monotonic() + PATIENCE_S
    while not gone(pids):
        need(time.monotonic() < end, f"processes are left: {pids}")
        time.sleep(0.02)


def a_killed_process(bench: Bench, program, where: list[str], environment: dict):
    process, pids = start_waiting(bench, program, where, environment, f"killed{where[0]}")
    os.kill(pids[2], signal.SIGKILL)
    _, said = process.communicate(timeout=PATIENCE_S)
    need(process.returncode == 137, f"{where}: {process.returncode} {said}")
    told = [line for line in said.splitlines() if line.startswith("bsp")]
    need(len(told) == 1 and "process 2" in told[0] and "signal 9" in told[0], f"{where}: {said}")
    await_gone(pids)


def a_stopped_job(bench: Bench, program, where: list[str], environment: dict):
    process, pids = start_waiting(bench, program, where, environment, f"stopped{where[0]}")
    process.terminate()
    process.communicate(timeout=PATIENCE_S)
    need(process.returncode == 128 + signal.SIGTERM, f"{where}: {process.returncode}")
    await_gone(pids)


def a_lost_host(bench: Bench, program, where: list[str], environment: dict):
    process, pids = start_waiting(bench, program, where, environment, "lost")
    parent = int(pathlib.Path(f"/proc/{pids[2]}/stat").read_text().rsplit(")", 1)[1].split()[1])
    need(parent != process.pid, "process 2 is not of a share")
    os.kill(parent, signal.SIGKILL)  # the share's bsprun: its processes end with it
    _, said = process.communicate(timeout=PATIENCE_S)
    need(process.returncode == 123, f"{process.returncode} {said}")
    need([line for line in said.splitlines() if line.startswith("bsp")] == ["bsprun: lost host b; the job ends"], said)
    await_gone(pids)


def variables(bench: Bench):
    """A host of its own has none of ours: all that matter are forwarded, and no password stands in a command line."""
    bare = bench.work / "bare_rsh"
    bare.write_text("#!/bin/sh\nshift\nexec env -i PATH=\"$PATH\" sh -c \"$*\"\n")
    bare.chmod(0o755)
    given = {"SHADOWIB_BSP_DEVICE": "it's one", "SHADOWIB_KEEP": "3", "SHADOWIB_REDIS_PASSWORD": "secret"}
    text = 'echo "$SHADOWIB_BSP_DEVICE, $SHADOWIB_KEEP, $SHADOWIB_REDIS_PASSWORD"'
    done = bench.run("--hosts", "a", "sh", "-c", text, environment={**given, "SHADOWIB_RSH": str(bare)})
    need(done.stdout == "it's one, 3, \n", f"variables: {done.returncode} {done.stdout} {done.stderr}")


def a_silent_host(bench: Bench):
    """One host's shell never answers, and does not end either. The other's failure must still end bsprun, whatever a process
    that it has left there prints."""
    rsh = bench.work / "silent_rsh"
    rsh.write_text("#!/bin/sh\n[ $1 = a ] || exec sleep 1000\nshift\nexec sh -c \"$*\"\n")
    rsh.chmod(0o755)
    left = bench.work / "left"
    leave = f'setsid sh -c \'echo $$ >{left}; for i in $(seq 1000); do echo x; sleep 0.1; done\' 2>/dev/null & while [ ! -s {left} ]; do sleep 0.1; done; kill -9 $$'
    done = bench.run("--hosts", "a,b", "sh", "-c", leave, environment={"SHADOWIB_RSH": str(rsh)})
    need(done.returncode == 137 and "host b does not answer" in done.stderr, f"a silent host: {done.returncode} {done.stderr}")
    os.kill(int(left.read_text()), signal.SIGKILL)  # it prints still


def ignored_ends(bench: Bench, program, where: list[str], environment: dict):
    """The caller ignores SIGCHLD: ends are seen all the same."""
    done = subprocess.run(["env", "--ignore-signal=CHLD", *bench.command(*where, program, "code", 3)], capture_output=True, text=True, check=False,
                          timeout=PATIENCE_S, cwd=bench.work, env={**bench.environment, **environment}, stdin=subprocess.DEVNULL)
    need(done.returncode == 3, f"{where}: {done.returncode} {done.stderr}")


NO_FORK = """
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>
extern char* program_invocation_short_name;
pid_t fork(void) {
  static int calls;
  if (strcmp(program_invocation_short_name, "bsprun") == 0 && ++calls == 2) { errno = EAGAIN; return -1; }
  return ((pid_t(*)(void))dlsym(RTLD_NEXT, "fork"))();
}
"""


def no_process_left(bench: Bench, rsh: pathlib.Path):
    """The second share cannot be started: the first is ended, and a third is not begun."""
    source = bench.work / "no_fork.c"
    source.write_text(NO_FORK)
    library = bench.compile(source, "-D_GNU_SOURCE", "-shared", "-fPIC", name="no_fork.so")
    done = bench.run("--hosts", "a,b,c", "sleep", "1000", environment={"SHADOWIB_RSH": str(rsh), "LD_PRELOAD": str(library)})
    need(done.returncode == 125 and "bsprun: cannot start the share of b: Resource temporarily unavailable" in done.stderr,
         f"no process left: {done.returncode} {done.stderr}")


def one_ends_before_begin(bench: Bench, wrong, where: list[str], environment: dict):
    """Also the only one of its host. No file is left that tells of it."""
    done = bench.run(*where, wrong, "last_ends_before_begin", environment=environment)
    need(done.returncode == 124 and done.stderr.count("process 2 ended before bsp_begin()") == 1, f"{where}: {done.returncode} {done.stderr}")
    need(not list(bench.work.rglob("bsp-ended*")), f"files are left: {list(bench.work.rglob('bsp-ended*'))}")


def wrong_options(bench: Bench, program):
    for words, text in ((["--hosts", "a:0", program], "is no HOST:SLOTS"), (["-n", "5", "--hosts", "a:2,b", program], "3 slots for 5"),
                        (["-n", "0", program], "no number of processes from 1 to 960"), ([], "no program"),
                        (["--hosts", "a:900,b:61", program], "the hosts have 961 slots; a job has at most 960 processes"),
                        (["--interval", "abc", program], "no number of seconds from 0.001"),
                        (["--interval", "0", program], "no number of seconds from 0.001"),
                        (["--interval", "nan", program], "no number of seconds from 0.001"),
                        (["--backend", "tcp", program], "none of auto, ib2tcp, verbs")):
        done = bench.run(*words)
        need(done.returncode == 125 and text in done.stderr and done.stderr.count("bsp") <= 2, f"{words}: {done.returncode} {done.stderr}")
    done = bench.run("-n", 2, bench.work / "missing")
    need(done.returncode == 127, f"a missing program: {done.returncode} {done.stderr}")


def run(bench: Bench):
    program = bench.compile(HERE / "programs" / "talk.c")
    wrong = bench.compile(HERE / "programs" / "wrong.c")
    rsh = bench.work / "rsh"
    rsh.write_text(RSH)
    rsh.chmod(0o755)
    done = bench.run("-n", 3, program, "read", stdin="2\n")
    need(done.returncode == 0 and sorted(done.stdout.splitlines()) == ["process 0 of 2", "process 1 of 2", "read 2"],
         f"input: {done.returncode} {done.stdout} {done.stderr}")
    wrong_options(bench, program)
    for where, environment in ((["-n", "3"], {}), (["--hosts", "a:2,b:1"], {"SHADOWIB_RSH": str(rsh)})):
        one_ends_before_begin(bench, wrong, where, environment)
        own_codes(bench, program, where, environment)
        ignored_ends(bench, program, where, environment)
        all_output(bench, program, where, environment)
        a_killed_process(bench, program, where, environment)
        a_stopped_job(bench, program, where, environment)
    a_lost_host(bench, program, ["--hosts", "a:2,b:1"], {"SHADOWIB_RSH": str(rsh)})
    variables(bench)
    a_silent_host(bench)
    no_process_left(bench, rsh)


if __name__ == "__main__":
    main(run)
