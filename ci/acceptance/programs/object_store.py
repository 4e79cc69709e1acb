"""An object store for tests: object_store.py STORE put|get|stat|rm NAME. Objects are files of the directory STORE, and are not put in one step.

STORE.plan is a JSON list of faults: {"word": "put", "name": REGEX, "how": "fail"|"stall"|"cut"|"wait", "times": N}. STORE.log has a line for each
call. STORE.half appears if ever a set has its manifest and lacks an object, or part of one; STORE.twice if two calls come at once.
"""
import fcntl
import json
import os
import pathlib
import re
import sys
import time

STORE, word, name = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
path = STORE / name
BLOCK = 1 << 16


def beside(suffix):
    return pathlib.Path(f"{STORE}.{suffix}")


def fault():
    plan = json.loads(beside("plan").read_text()) if beside("plan").exists() else []
    for entry in plan:
        if entry["times"] > 0 and entry["word"] == word and re.search(entry["name"], name):
            entry["times"] -= 1
            beside("plan").write_text(json.dumps(plan))
            return entry["how"]
    return ""


def put(how):
    total = int(os.environ["SHADOWIB_FAR_BYTES"])
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        done = 0
        while part := sys.stdin.buffer.read(BLOCK if total > BLOCK else max(1, total // 2)):
            done += len(part)
            file.write(part)
            file.flush()
            if how and 2 * done >= total:
                break
        if how == "wait":
            beside("waiting").touch()
            while beside("waiting").exists():
                time.sleep(0.01)
            file.write(sys.stdin.buffer.read())
        elif how == "cut":
            sys.stdin.buffer.read()
    if how == "fail":
        sys.exit("the store is away")


def get(how):
    content = path.read_bytes()
    if how in ("fail", "cut", "stall"):
        content = content[:len(content) // 2]
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()
    if how == "fail":
        sys.exit("the store is away")


def look_for_half_a_set():
    for manifest in STORE.glob("*/*/manifest.json"):
        try:
            members = json.loads(manifest.read_text())["members"]
        except (ValueError, KeyError):
            continue  # it is being put
        for member in members:
            image = manifest.parent / member["file"]
            if not image.exists() or image.stat().st_size != member["bytes"]:
                beside("half").write_text(f"{word} {name}: {image}\n")


STORE.mkdir(exist_ok=True)
busy = open(beside("busy"), "w")
try:
    fcntl.flock(busy, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    beside("twice").write_text(f"{word} {name}\n")
how_ = fault()
with open(beside("log"), "a") as log:
    log.write(f"{word} {name} {how_}\n")
if word == "put":
    put(how_)
elif word == "get":
    get(how_)
elif how_ == "fail":
    sys.exit("the store is away")
elif word == "stat":
    print(path.stat().st_size if path.exists() else "absent")
elif word == "rm":
    path.unlink(missing_ok=True)
else:
    sys.exit(64)
look_for_half_a_set()
if how_ == "stall":
    time.sleep(3600)
