"""A9: the figures: what the shim adds, ib2tcp against fi_pingpong, settle time, saving and restarting 1 GiB beside dd with
fsync. Prints tables and goals, writes build/release/acceptance-figures.json. A goal that is missed is said, no failure."""
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import time

from common import ROOT, Case, Line, check, main
from jobs import Job, wait_for

FIGURES: dict = {}
# Of ib2tcp against libfabric, by side and size: what is said, whether it is a least value, and the value.
GOALS = {("ib2tcp tcp", 64): ("64 B latency", False, 1.1), ("ib2tcp tcp", 1 << 20): ("1 MiB bandwidth", True, 1.0),
         ("ib2tcp shm", 64): ("64 B latency", False, 1.0), ("ib2tcp shm", 1 << 20): ("1 MiB bandwidth", True, 0.7)}


def table(title: str, headings: list, rows: list):
    cells = [[str(c) for c in row] for row in [headings, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(headings))]
    print(f"  {title}")
    for row in cells:
        print("    " + "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))))
    print(flush=True)


def judged(value: float, goal: float, least: bool = False) -> str:
    return "met" if (value >= goal if least else value <= goal) else "MISSED"


def perftest(case: Case):
    out = case.work / "perftest"
    words = ["python3", str(ROOT / "perftest" / "run"), "--build", str(case.line.build), "--out", str(out),
             "--modes", "rc", "--pairs", "tcp,shm"] + (["--realtime"] if os.geteuid() == 0 else [])
    done = subprocess.run(words + (["--quick"] if case.line.quick else []), capture_output=True, text=True, check=False)
    check(done.returncode == 0, f"perftest/run: {done.stdout[-1500:]}{done.stderr[-1500:]}")
    results = json.loads((out / "results.json").read_text())
    FIGURES["perftest"] = results
    rows = []
    for e in results["overhead"]:
        for key, goal in (("ns", 15), ("instructions", 200), ("mallocs", 0)):
            if key in e["added"]:
                value = round(e["added"][key], 1)
                rows.append([f"{key} added, {e['qps']} QP, {e['mrs']} MR", value, f"<= {goal}", judged(value, goal)])
    for c in results["comparisons"]:
        goals = GOALS.get((c["ours"], c["size"]))
        if goals is None:
            continue
        what, least, goal = goals
        name = f"{c['ours']} / {c['theirs']}, {what}"
        if c["verdict"] != "ok":
            rows.append([name, "-", f"{'>=' if least else '<='} {goal}x", f"not judged: {c['reason']}"])
            continue
        value, low, high = (1 / c[k] for k in ("ratio", "high", "low")) if least else (c[k] for k in ("ratio", "low", "high"))
        rows.append([name, f"{value:.2f}x ({low:.2f} to {high:.2f})", f"{'>=' if least else '<='} {goal}x",
                     judged(value, goal, least)])
    table("The shim and ib2tcp", ["", "measured", "goal", ""], rows)
    return f"{len(rows)} figures"


def settle(case: Case):
    """Two processes, one queue pair each, 16 requests outstanding: shadowib-pingpong's own figures."""
    rows = []
    for transport in ("shm", "tcp"):
        rounds = []
        for _ in range(2 if case.line.quick else 10):
            words = [case.line.program("shadowib-pingpong"), "--transport", transport, "--window", "16", "--rounds", "2", "--json"]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            check(done.returncode == 0, done.stdout + done.stderr)
            rounds += json.loads(done.stdout)["rounds"]
        times = [r["settle_ms"] for r in rounds]
        FIGURES[f"settle_ms {transport}"] = times
        for name, value in (("median", statistics.median(times)), ("worst", max(times))):
            rows.append([f"{transport}, {name} of {len(times)}", f"{value:.2f} ms", "< 5 ms", judged(value, 5)])
    table("Settling, from the last thread stopped to the frontier", ["", "measured", "goal", ""], rows)
    return "; ".join(f"{row[0]} {row[1]}" for row in rows)


def dd(path: pathlib.Path, mebibytes: int) -> float:
    start = time.monotonic()
    subprocess.run(["dd", "if=/dev/zero", f"of={path}", "bs=1M", f"count={mebibytes}", "conv=fsync"], check=True,
                   capture_output=True)
    return time.monotonic() - start


def gibibyte(case: Case):
    size = 128 if case.line.quick else 1024
    times: dict[str, list] = {"dd + fsync": [], "saving the image (in the member)": [], "checkpoint, whole command": [],
                              "restart, until it runs": []}
    for number in range(3):
        os.sync()
        times["dd + fsync"].append(dd(case.work / "dd.out", size))
        (case.work / "dd.out").unlink()
        job = Job(case, f"job{number}")
        program = job.start("big", [case.line.program("ci_big_process"), str(size)])
        wait_for("the process to fill its memory", lambda p=program: "ready" in p.text() or p.ended(), 120)
        os.sync()
        start = time.monotonic()
        result = job.command("checkpoint", job.name, "--kill", "--json")
        times["checkpoint, whole command"].append(time.monotonic() - start)
        report = json.loads(result.stdout)
        times["saving the image (in the member)"].append(report["members"][0]["save_ns"] / 1e9)
        program.process.wait(30)
        start = time.monotonic()
        job.restart(report["set"])
        (case.work / "finish").touch()
        wait_for("the restarted process", lambda j=job: "all of" in j.output() or j.members() and time.monotonic(), 120, 0.005)
        times["restart, until it runs"].append(time.monotonic() - start)
        job.finish()
        (case.work / "finish").unlink()
        shutil.rmtree(report["set"])
    FIGURES["1 GiB seconds"] = times
    base = statistics.median(times["dd + fsync"])
    table(f"{size} MiB, seconds", ["", "median", "best", "against dd"],
          [[name, f"{statistics.median(v):.2f}", f"{min(v):.2f}", f"{statistics.median(v) / base:.2f}x"] for name, v in times.items()])
    return "; ".join(f"{name} {statistics.median(v):.2f} s" for name, v in times.items())


def run() -> int:
    line = Line("figures", __doc__)
    line.case("perftest", perftest)
    line.case("settle time", settle)
    line.case("1 GiB", gibibyte)
    if FIGURES:
        path = line.build / "acceptance-figures.json"
        before = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**before, **FIGURES}, indent=1) + "\n")
        print(f"  written: {path}")
    return line.finish()


if __name__ == "__main__":
    main(run)
