"""bsprun and sets: how many are kept, a restart from one, a job that is kept alive, and --json."""
import json
import pathlib
import subprocess

from bsp_job import HERE, PATIENCE_S, Bench, main, need

STEPS = 40


def result(steps: int, processes: int) -> str:
    return f"sum {sum(i * processes + processes - 1 for i in range(steps))}\n"


def bsprun(bench: Bench, *words) -> subprocess.CompletedProcess:
    """Without the job and directory that Bench gives."""
    return subprocess.run([str(bench.build / "bin" / "bsprun"), *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=PATIENCE_S, check=False, cwd=bench.work, env=bench.environment)


def last_object(output: str) -> dict:
    return json.loads(output[output.rindex("{"):])


def numbers(directory: pathlib.Path, job: str) -> list[int]:
    return sorted(int(path.name.rsplit(".", 1)[1]) for path in (directory / "sets").glob(f"{job}.[0-9]*"))


def keep_and_from(bench: Bench, program: pathlib.Path):
    """A checkpoint is due in each superstep. The newest set has the end of the job before it."""
    directory = bench.work / "kept"
    done = bsprun(bench, "-n", 2, "--job", "kept", "--dir", directory, "--interval", "0.001", "--keep", 2, program, 6)
    need(done.returncode == 0 and done.stdout == result(6, 2), f"--keep: {done.returncode} {done.stdout}{done.stderr}")
    sets = numbers(directory, "kept")
    need(len(sets) == 2 and sets[-1] >= 3, f"sets that --keep 2 has left: {sets}")
    done = bsprun(bench, "--from", f"kept.{sets[0]:04}", "--dir", directory)
    need(done.returncode == 0 and result(6, 2) in done.stdout, f"--from: {done.returncode} {done.stdout}{done.stderr}")


def supervised(bench: Bench, program: pathlib.Path):
    directory, killed = bench.work / "alive", bench.work / "killed"
    words = ["-n", 2, "--job", "alive", "--dir", directory, "--interval", "0.5", "--keep", 2, "--supervise", "--json"]
    done = bsprun(bench, *words, program, STEPS, directory / "sets", killed)
    need(done.returncode == 0 and killed.exists(), f"--supervise: {done.returncode} {done.stdout}{done.stderr}")
    need(done.stdout.count(result(STEPS, 2)) == 1, f"--supervise: {done.stdout}{done.stderr}")
    need(last_object(done.stdout) == {"job": "alive", "exit_code": 0}, f"--supervise --json: {done.stdout}")
    need("restarting alive.0" in done.stderr, f"the job did not go on from a set: {done.stderr}")
    need(len(numbers(directory, "alive")) <= 2, f"sets: {numbers(directory, 'alive')}")


def supervised_on_hosts(bench: Bench, program: pathlib.Path):
    """Host b is lost as soon as there is a set: its part of bsprun is killed. Then a process is."""
    directory, killed, lost = bench.work / "spread", bench.work / "killed on a host", bench.work / "lost"
    rsh = bench.work / "rsh"
    rsh.write_text(f"""#!/bin/sh
host=$1
shift
case "$*" in *"'--share'"*) [ $host = a ] ||
  (until ls {directory}/sets/spread.0*/manifest.json; do sleep 0.05; kill -0 $$ || exit; done
   kill -9 $$ && mkdir -p {lost}/b) >/dev/null 2>&1 &;;
esac
exec sh -c "$*"
""")
    rsh.chmod(0o755)
    words = ["--hosts", "a:1,b:1", "--job", "spread", "--dir", directory, "--interval", "0.5", "--supervise"]
    bench.environment["SHADOWIB_RSH"] = str(rsh)
    done = bsprun(bench, *words, program, STEPS, lost, killed)
    del bench.environment["SHADOWIB_RSH"]
    need(done.returncode == 0 and done.stdout.count(result(STEPS, 2)) == 1, f"--hosts: {done.returncode} {done.stdout}{done.stderr}")
    need(lost.exists() and killed.exists(), f"host b was not lost: {done.stderr}")
    need("restarting spread.0" in done.stderr, f"the job did not go on from a set: {done.stderr}")


def failures_before_the_begin(bench: Bench, program: pathlib.Path):
    """A host that cannot be reached, and a process that is killed before it has joined, are no results."""
    down, rsh, killed = bench.work / "down", bench.work / "down_rsh", bench.work / "killed early"
    rsh.write_text(f'''#!/bin/sh
case "$*" in *"'--share'"*) mkdir {down} 2>/dev/null && exit 255;; esac
shift
exec sh -c "$*"
''')
    rsh.chmod(0o755)
    for name, words in (("unreached", ["--hosts", "a:1,b:1", program, 2]),
                        ("early", ["-n", 2, "sh", "-c", f'mkdir "{killed}" 2>/dev/null && kill -9 $$; exec {program} 2'])):
        bench.environment["SHADOWIB_RSH"] = str(rsh)
        done = bsprun(bench, "--job", name, "--dir", bench.work / name, "--supervise", *words)
        del bench.environment["SHADOWIB_RSH"]
        need(done.returncode == 0 and done.stdout == result(2, 2), f"{name}: {done.returncode} {done.stdout}{done.stderr}")
        need("starting from the beginning" in done.stderr, f"{name}: nothing has failed: {done.stderr}")
    need(down.exists() and killed.exists(), "nobody was unreached or killed")


def wrong_uses(bench: Bench):
    """They are results: those that wait for the message end by themselves once it is told, as an end by a signal is a failure."""
    wrong = bench.compile(HERE / "programs" / "wrong.c")
    for name in ("end_and_sync", "other_order", "last_ends_before_begin", "abort"):
        done = bsprun(bench, "-n", 3, "--job", name, "--dir", bench.work / name, "--supervise", wrong, name)
        need(done.returncode == 124 and "next try" not in done.stderr, f"{name}: {done.returncode} {done.stdout}{done.stderr}")


def as_json(bench: Bench, program: pathlib.Path):
    done = bsprun(bench, "-n", 2, "--job", "told", "--dir", bench.work / "told", "--json", program, 2)
    need(last_object(done.stdout) == {"job": "told", "exit_code": 0}, f"--json: {done.stdout}{done.stderr}")
    # Any directory with a file serves as one with a set.
    done = bsprun(bench, "-n", 2, "--job", "told", "--dir", bench.work / "told", "--json", program, 2, bench.work, bench.work / "killed too")
    need(done.returncode == 137 and last_object(done.stdout) ==
         {"job": "told", "exit_code": 137, "process": 1, "signal": 9}, f"--json of a killed process: {done.stdout}{done.stderr}")


def wrong_options(bench: Bench, program: pathlib.Path):
    for words, text in ((["--supervise", program], "--supervise needs --job"),
                        (["--supervise", "--job", "j", "--hosts", "a:0", program], "is no HOST:SLOTS"),
                        (["--from", "j.0001", program], "--from SET takes the program from the set"),
                        (["--from", "j.0001", "-n", 2], "--from SET goes with"), (["--from", ""], "it is empty"),
                        (["--keep", 0, program], "no number of sets")):
        done = bsprun(bench, *words)
        need(done.returncode == 125 and text in done.stderr, f"{words}: {done.returncode} {done.stderr}")


def odd_names(bench: Bench, program: pathlib.Path):
    """The job is named after the program, though names of jobs have fewer characters."""
    odd = bench.work / ".my prog+"
    odd.symlink_to(program)
    done = bsprun(bench, "-n", 2, "--dir", bench.work / "odd", odd, 2)
    need(done.returncode == 0 and done.stdout == result(2, 2), f"{odd}: {done.returncode} {done.stdout}{done.stderr}")


def run(bench: Bench):
    program = bench.compile(HERE / "programs" / "steps.c")
    wrong_options(bench, program)
    as_json(bench, program)
    odd_names(bench, program)
    keep_and_from(bench, program)
    supervised(bench, program)
    supervised_on_hosts(bench, program)
    failures_before_the_begin(bench, program)
    wrong_uses(bench)


if __name__ == "__main__":
    main(run)
