"""The storm's own check: a run that is right says so, and each mistake made on purpose is found and called by its name.

  sabotage_test.py BUILD [NAME]
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

# What is done, and what it may be called: what a write that comes at the wrong moment meets is the machine's choice.
NAMES = {
    "lost": ["lost"],
    "doubled": ["doubled"],
    "replayed": ["doubled", "early", "lost", "corrupted", "completion"],
    "early": ["early", "lost"],
    "corrupted": ["corrupted"],
    "completion": ["completion"],
    "counter": ["doubled"],
    "hung": ["hung"],
    "stuck": ["hung"],
    "forgotten": ["hung"],
}
# Ends of unreliable connections that cannot go on tell each other so, and that is no progress.
OPTIONS = {"stuck": ["--transports", "ud"]}
# What a storm does is its seed's, and some have hardly any of what a mistake is to be made in.
SEED = "1"


def run(build: pathlib.Path, *options: str) -> tuple[int, dict, str]:
    with tempfile.TemporaryDirectory(prefix="storm-") as directory:
        words = [build / "bin/shadowib", "run", "--job", "storm", "--dir", directory, "--backend", "ib2tcp", "--",
                 build / "bin/shadowib-storm", "--json", "--area", f"{directory}/area", "--processes", "2", *options]
        # A session of its own, so that its children go with it when it does not end.
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True) as storm:
            try:
                report, said = storm.communicate(timeout=100)
            except subprocess.TimeoutExpired:
                os.killpg(storm.pid, signal.SIGKILL)
                said = storm.communicate()[1]
                return storm.returncode, {"faults": {}, "seed": "unknown"}, f"it did not end\n{said}"
        return storm.returncode, json.loads(report), said


def main() -> int:
    build, wanted = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:]
    wrong = 0
    if not wanted:
        code, report, said = run(build, "--seconds", "3")
        if code != 0 or any(report["faults"].values()) or not report["operations"]["send"]:
            print(f"FAILED: without a mistake: exit code {code}, {report}\n{said[:2000]}")
            wrong += 1
    for name, called in NAMES.items():
        if wanted and name not in wanted:
            continue
        code, report, said = run(build, "--sabotage", name, "--seed", SEED, "--seconds", "10", "--patience", "3", *OPTIONS.get(name, []))
        found = [fault for fault, count in report["faults"].items() if count]
        right = code == 1 and any(fault in called for fault in found)
        print(f"{'found' if right else 'FAILED'}: {name}: exit code {code}, seed {report['seed']}, {found}")
        if not right:
            print(said[:2000])
            wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
