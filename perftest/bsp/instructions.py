"""Instructions of the BSP library's own code in a superstep, counted by callgrind (valgrind).

  perftest/bsp/instructions.py [--build build/release] [--json]

bsp_steps runs supersteps against made-up verbs whose peers answer at once: the same numbers every time. Functions of the made-up verbs
are left out. Printed are instructions by processes, empty and with 16 messages of 8 bytes to each other process.
"""
import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SUPERSTEPS = 400  # the first ones make room; that is less than an instruction of each
PROCESSES = (2, 4, 8, 16, 32)
MESSAGES = 16


def own_instructions(text: str) -> int:
    """Of all functions but the made-up verbs'."""
    names, total, function, callee_next = {}, 0, None, False
    for line in text.splitlines():
        found = re.match(r"(c?)fn=\((\d+)\)(?: (.*))?$", line)
        if found:
            if found[3]:
                names[found[2]] = found[3]
            if not found[1]:
                function = names.get(found[2], "")
        elif line.startswith("calls="):
            callee_next = True  # the next line's cost is the callee's
        elif re.match(r"[+\-*\d]", line) and function is not None:
            if not callee_next and "fake_" not in function:
                total += int(line.split()[1])
            callee_next = False
    return total


def run(program: pathlib.Path, processes: int, supersteps: int, messages: int) -> int:
    with tempfile.TemporaryDirectory(prefix="shadowib-bsp-steps-") as directory:
        out = pathlib.Path(directory) / "callgrind.out"
        command = ["valgrind", "--tool=callgrind", "--toggle-collect=step", f"--callgrind-out-file={out}", str(program), str(processes),
                   str(supersteps), str(messages)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)} failed ({done.returncode}):\n{done.stderr[-2000:]}")
        return own_instructions(out.read_text())


def count(build: pathlib.Path, processes: int, messages: int = 0) -> float:
    """Instructions of one superstep."""
    return run(build / "bin" / "bsp_steps", processes, SUPERSTEPS, messages) / SUPERSTEPS


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2] / "build" / "release")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not shutil.which("valgrind"):
        print("SKIPPED: valgrind is not installed: instructions are counted by its callgrind")
        sys.exit(77)
    rows = [{"processes": p, "empty": count(options.build, p), "messages": count(options.build, p, MESSAGES)} for p in PROCESSES]
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{'processes':>9}{'empty':>10}{f'{MESSAGES} messages to each':>24}")
    for row in rows:
        print(f"{row['processes']:9}{row['empty']:10.0f}{row['messages']:24.0f}")


if __name__ == "__main__":
    main()
