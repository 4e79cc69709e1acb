"""Sets whose images stay near: in memory or on the disk of the host. The same life as of any set, and refusals by name.

near_test.py BUILD_DIR [unittest options]: the job is a Python program that counts.
"""
import fcntl
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import unittest

BUILD = pathlib.Path(sys.argv[1]).resolve()
SHADOWIB = BUILD / "bin" / "shadowib"
TIMEOUT_S = 60
KEEPER_LOOKS_S = 6  # a keeper looks at whether it is wanted each 5 s
COUNTS = """
import sys, time
for n in range(1, 100000):
    with open(sys.argv[1], "a") as f:
        print(n, file=f)
    time.sleep(0.01)
    if n >= 40 and len(sys.argv) > 2 and open(sys.argv[2]).read() == "end":
        sys.exit(0)
"""

# Moves its offset in the file when the first word is there, or tells it when the second one is.
OFFSETS = """
import os, sys, time
fd = os.open("results", os.O_RDWR)
open(sys.argv[1] + ".open", "w").close()
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
if sys.argv[1] == "move":
    os.lseek(fd, 100, os.SEEK_SET)
with open(sys.argv[1] + ".told", "w") as told:
    told.write(str(os.lseek(fd, 0, os.SEEK_CUR)))
"""


# A far place; puts wait while there is a file HOLD.
FAR = """#!/bin/sh
name=$(dirname "$0")/$(echo "$2" | tr / _)
case $1 in
  put) cat >"$name.part"; while [ -e "$(dirname "$0")/HOLD" ]; do sleep 0.02; done; mv "$name.part" "$name" ;;
  get) cat "$name" ;;
  stat) if [ -e "$name" ]; then stat -c %s "$name"; else echo absent; fi ;;
  rm) rm -f "$name" ;;
esac
"""


def column(table, name):
    """The cells of a printed table below a name."""
    header, *lines = table.splitlines()
    start = header.index(name)
    end = start + len(name)
    while end < len(header) and header[end] == " ":
        end += 1
    return [line[start:end if end < len(header) else None].strip() for line in lines]


def in_memory(path):
    out = subprocess.run(["stat", "-f", "-c", "%T", path], capture_output=True, text=True, check=True).stdout.strip()
    return out in ("tmpfs", "ramfs")


class Near(unittest.TestCase):
    def setUp(self):
        self.top = pathlib.Path(tempfile.mkdtemp(prefix="shadowib-near-"))
        self.memory = pathlib.Path(tempfile.mkdtemp(prefix="shadowib-near-", dir="/dev/shm"))
        self.dir = self.top / "ckpt"
        self.disk = self.top / "place"
        self.disk.mkdir()
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("SHADOWIB_")}
        self.processes = []

    def tearDown(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        shutil.rmtree(self.top, ignore_errors=True)
        shutil.rmtree(self.memory, ignore_errors=True)

    def place(self, store):
        return self.memory if store.startswith("mem") else self.disk

    def images(self, store):
        return sorted(self.place(store).glob("shadowib-*/*/*/*.img"))

    def shadowib(self, *words, code=0):
        done = subprocess.run([SHADOWIB, *map(str, words), "--dir", self.dir], env=self.env, cwd=self.top, text=True, capture_output=True,
                              timeout=TIMEOUT_S)
        self.assertEqual(done.returncode, code, f"{words}\n{done.stdout}{done.stderr}")
        return done

    def start(self, *words):
        with open(self.top / f"log{len(self.processes)}", "w") as log:
            process = subprocess.Popen([SHADOWIB, *map(str, words)], env=self.env, cwd=self.top, stdin=subprocess.DEVNULL, stdout=log,
                                       stderr=subprocess.STDOUT)
        self.processes.append(process)
        return process

    def counted(self):
        lines = (self.top / "counts").read_text().split() if (self.top / "counts").exists() else []
        return [int(line) for line in lines]

    def start_job(self, *options):
        (self.top / "word").write_text("go")
        process = self.start("run", "--join-children", "--job", "demo", "--dir", self.dir, *options, "--", sys.executable, "-c", COUNTS,
                             self.top / "counts", self.top / "word")
        self.await_counts(process, 3)
        return process

    def await_counts(self, process, more):
        end = len(self.counted()) + more
        deadline = time.monotonic() + TIMEOUT_S
        while len(self.counted()) < end:
            self.assertIsNone(process.poll(), "the job has ended")
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def wait_for(self, condition):
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def checkpoint(self, *words, code=0):
        done = self.shadowib("checkpoint", "demo", "--json", *words, code=code)
        return json.loads(done.stdout)

    def life(self, store):
        """Checkpoint, kill, verify, restart, to the end."""
        job = self.start_job("--store", store, "--near", self.place(store))
        self.checkpoint()
        saved = self.checkpoint("--kill")
        self.assertEqual(job.wait(TIMEOUT_S), -9)
        self.assertEqual(saved["store"], store)
        status = json.loads(self.shadowib("status", "demo", "--json").stdout)
        self.assertEqual((status["store"], status["near"], status["keepers"]), (store, str(self.place(store)), []))
        self.assertIn(f"store {store} in {self.place(store)}\n", self.shadowib("status", "demo").stdout)
        self.assertEqual(len(self.images(store)), 2)
        self.assertEqual([i for i in self.images(store) if str(i).startswith(saved["near"])], [pathlib.Path(saved["near"]) / "member-0.img"])
        self.assertEqual(list((self.dir / "sets").glob("*/*.img")), [])
        listed = json.loads(self.shadowib("list", "--json").stdout)["sets"]
        self.assertEqual([s["store"] for s in listed], [store, store])
        self.assertEqual(listed[0]["survives"], {"hosts": 0, "per": "set", "power_failure": store.startswith("disk")})
        self.assertNotIn("redundancy", status)
        self.assertTrue(json.loads(self.shadowib("verify", "demo", "--json").stdout)["ok"])
        (self.top / "demo").write_text("a program has the job's name")
        self.assertEqual(json.loads(self.shadowib("inspect", "demo", "--json").stdout)["store"], store)
        before = len(self.counted())
        restarted = self.start("restart", "demo", "--dir", self.dir)
        self.await_counts(restarted, 3)
        # The job goes on in the store that it was in, without a word.
        self.assertEqual(self.checkpoint()["store"], store)
        (self.top / "word").write_text("end")
        self.assertEqual(restarted.wait(TIMEOUT_S), 0)
        counts = self.counted()
        self.assertEqual(counts[before:], list(range(counts[before], counts[-1] + 1)))
        self.assertLessEqual(counts[before], counts[before - 1] + 1)
        removed = json.loads(self.shadowib("gc", "--keep", 1, "--json").stdout)["removed"]
        self.assertEqual([r["kind"] for r in removed], ["set", "set", "job"])
        self.assertEqual(len(self.images(store)), 1)
        self.shadowib("gc", "--keep", 0)
        self.assertEqual(list(self.place(store).glob("shadowib-*/*")), [])

    def test_life_in_memory(self):
        self.life("mem:single")

    def test_life_on_the_disk(self):
        if in_memory(self.disk):
            print("\nSKIPPED: test_life_on_the_disk: the temporary directory lies in memory", flush=True)
            self.skipTest("the temporary directory lies in memory")
        self.life("disk:single")

    def test_members_that_opened_one_file_keep_their_offsets(self):
        """Commands read the tables of near sets from files of their own."""
        (self.top / "results").touch()
        jobs = [self.start("run", "--join-children", "--job", "demo", "--dir", self.dir, "--store", "mem:single", "--near", self.memory, "--",
                           sys.executable, "-c", OFFSETS, word) for word in ("move", "tell")]
        self.wait_for(lambda: (self.top / "move.open").exists() and (self.top / "tell.open").exists())
        self.checkpoint("--kill")
        for job in jobs:
            self.assertEqual(job.wait(TIMEOUT_S), -9)
        # For hosts that have no image of member 0: its table ends with member, object and description of the last file compared.
        table = (self.dir / "sets" / "demo.0001" / "member-0.table").read_bytes()
        self.assertEqual(struct.unpack("<3I", table[-12:])[0], 1)
        restarted = self.start("restart", "demo", "--dir", self.dir)
        for word, offset in (("move", "100"), ("tell", "0")):
            (self.top / word).touch()
            told = self.top / f"{word}.told"
            self.wait_for(lambda told=told: told.exists() and told.read_text())
            self.assertEqual(told.read_text(), offset)
        self.assertEqual(restarted.wait(TIMEOUT_S), 0)

    def test_a_lost_or_damaged_image_is_refused_by_name(self):
        job = self.start_job("--store", "mem:single", "--near", self.memory)
        saved = self.checkpoint("--kill")
        job.wait(TIMEOUT_S)
        image = self.images("mem")[0]
        good = image.read_bytes()
        image.unlink()
        for words in (("verify", "demo"), ("restart", "demo")):
            told = self.shadowib(*words, code=3).stderr
            for word in ("demo.0001", "member-0.img", os.uname().nodename, f"{saved['near']}/member-0.img\n"):
                self.assertIn(word, told)
            self.assertIn("was saved on this host", told)
        self.assertIn(f"missing      set demo.0001: member-0.img was saved on this host, {os.uname().nodename}", self.shadowib("inspect", "demo").stdout)
        told = json.loads(self.shadowib("inspect", "demo", "--json").stdout)
        self.assertEqual([(i["member"], i["path"], i["bytes"], i["hosts"]) for i in told["images"]],
                         [(0, str(image), len(good), [os.uname().nodename])])
        self.assertIn("is there no more", told["images"][0]["missing"])
        image.write_bytes(good[:5000] + bytes([good[5000] ^ 1]) + good[5001:])
        self.assertIn("member-0.img", self.shadowib("restart", "demo", code=5).stderr)
        image.write_bytes(good)
        image.chmod(0o600)
        self.assertTrue(json.loads(self.shadowib("verify", "demo", "--json").stdout)["ok"])

    def test_memory_does_not_come_lazily(self):
        """Refused with the reason, whatever the set: scripts that ask for it are told what they get without it."""
        told = self.shadowib("restart", "demo", "--lazy", code=2).stderr
        self.assertIn("--lazy is not supported", told)
        self.assertIn("leave out --lazy", told)

    def test_a_place_that_is_not_the_users_own_is_refused(self):
        root = self.memory / f"shadowib-{os.geteuid()}"
        root.symlink_to(self.top)
        told = self.shadowib("run", "--store", "mem:single", "--near", self.memory, "--", "true", code=125)
        self.assertIn("is a link", told.stderr)
        job = self.start_job()
        self.assertIn("is a link", self.checkpoint("--store", "mem:single", "--near", self.memory, code=9)["error"])
        self.assertIsNone(job.poll())
        root.unlink()
        self.checkpoint("--store", "mem:single", "--near", self.memory)

    def test_stores_that_are_none_and_places_of_the_wrong_kind(self):
        for store, word in (("disk:xors", "has an unknown scheme"), ("mem:rs:8", "no number of parities"), ("tape", "is none"),
                            ("mem", "names no scheme")):
            told = self.shadowib("run", "--store", store, "--", "true", code=125)
            self.assertIn(word, told.stderr)
            self.assertIn("disk:SCHEME", told.stderr)
        self.assertIn("lies in memory", self.shadowib("run", "--store", "disk:single", "--near", self.memory, "--", "true", code=125).stderr)
        self.assertIn("use --store", self.shadowib("run", "--near", self.memory, "--", "true", code=125).stderr)
        self.env["SHADOWIB_STORE"] = "nonsense"
        self.assertIn("SHADOWIB_STORE", self.shadowib("run", "--", "true", code=125).stderr)

    def test_what_one_host_cannot_keep_apart_is_refused_before_anything_is_written(self):
        job = self.start_job("--store", "mem:mirror", "--near", self.memory)
        for store, word in (("mem:mirror", "hosts of two failure domains"), ("mem:xor", "hosts of 2 failure domains"),
                            ("mem:rs:2", "hosts of 3 failure domains")):
            told = self.checkpoint("--store", store, "--near", self.memory, code=2)["error"]
            self.assertIn(word, told)
            self.await_counts(job, 3)
            self.assertEqual(list(self.memory.glob("shadowib-*/*")), [])
            self.assertEqual(list((self.dir / "sets").iterdir()), [])
        self.checkpoint("--store", "central")

    def test_no_space_is_told_and_leaves_nothing(self):
        self.env["SHADOWIB_FAULT"] = "70:enospc"
        job = self.start_job("--store", "mem:single", "--near", self.memory)
        del self.env["SHADOWIB_FAULT"]
        told = self.checkpoint(code=6)["error"]
        self.assertIn("--near", told)
        self.await_counts(job, 3)
        self.assertEqual(list(self.memory.glob("shadowib-*/*")), [])
        self.assertEqual(list((self.dir / "sets").iterdir()), [])

    def test_auto_goes_on_to_the_next_store_when_one_runs_out_of_space(self):
        """Here each of them does, so all are told; the job has lost nothing."""
        self.env["SHADOWIB_FAULT"] = "70:enospc"
        job = self.start_job("--store", "auto", "--survive", 0, "--near", self.memory)
        del self.env["SHADOWIB_FAULT"]
        told = self.checkpoint(code=6)["error"]
        for store in ("mem:single", "disk:single", "central"):
            self.assertIn(f"{store} ran out of space", told)
        self.await_counts(job, 3)
        self.assertEqual(list(self.memory.glob("shadowib-*/*/*/*.img")), [])
        self.assertEqual(list((self.dir / "sets").iterdir()), [])

    def test_shared_pages_are_refused_where_sets_lie_elsewhere(self):
        """--incremental with near stores, auto and far places: refused by name, before anything is written."""
        far = self.top / "far"
        far.mkdir()
        job = self.start_job()
        for store in ("mem:single", "disk:mirror", "mem:xor", "disk:rs:2", "auto"):
            told = self.checkpoint("--store", store, "--incremental", "--compress", "lz4", code=2)["error"]
            self.assertIn("--incremental needs images in --dir", told)
            told = self.shadowib("run", "--store", store, "--incremental", "--", "true", code=125).stderr
            self.assertIn("--incremental needs images in --dir", told)
        told = self.checkpoint("--incremental", "--far", f"dir:{far}", code=2)["error"]
        self.assertIn("cannot be flushed", told)
        self.assertEqual(list((self.dir / "sets").iterdir()) if (self.dir / "sets").exists() else [], [])
        for _ in range(2):
            self.checkpoint("--incremental", "--compress", "lz4")
        told = self.shadowib("flush", "demo", "--far", f"dir:{far}", code=4).stderr
        self.assertIn("shares pages with earlier sets", told)
        self.assertEqual(list(far.iterdir()), [])
        self.await_counts(job, 3)

    def test_a_set_stays_that_survives_more_than_the_newer_ones(self):
        self.start_job()
        near = ("--near", self.memory, "--store", "mem:single")
        self.checkpoint()
        for _ in range(2):
            self.checkpoint("--keep", 1, *near)
        names = [s["name"] for s in json.loads(self.shadowib("list", "--json").stdout)["sets"]]
        self.assertEqual(names, ["demo.0001", "demo.0003"])
        table = self.shadowib("list").stdout
        self.assertEqual(column(table, "survives"), ["all but DIR", "0 hosts"])
        self.assertEqual(column(table, "store"), ["central", "mem:single"])
        self.assertEqual(column(table, "manifest"), ["ok", "ok"])
        self.assertEqual(len(self.images("mem")), 1)
        self.checkpoint("--keep", 1, "--store", "central")
        names = [s["name"] for s in json.loads(self.shadowib("list", "--json").stdout)["sets"]]
        self.assertEqual(names, ["demo.0004"])
        self.assertEqual(self.images("mem"), [])

    def test_another_store_of_the_same_kind_lies_where_the_job_was_started_with(self):
        self.start_job("--store", "disk:single", "--near", self.disk)
        self.assertEqual(pathlib.Path(self.checkpoint("--store", "disk:single")["near"]).parents[2], self.disk)
        kept = self.checkpoint("--store", "mem:single", "--near", self.memory)  # no place of memory
        self.assertEqual(pathlib.Path(kept["near"]).parents[2], self.memory)
        self.env["SHADOWIB_NEAR"] = str(self.memory)
        self.assertEqual(pathlib.Path(self.checkpoint("--store", "mem:single")["near"]).parents[2], self.memory)

    def far(self):
        """A far place behind a command, and what it has."""
        place = self.top / "far"
        place.mkdir()
        (place / "command").write_text(FAR)
        (place / "command").chmod(0o755)
        return place, f"exec:{place}/command", lambda: sorted(p.name.split("_")[-1] for p in place.glob("demo_*_*"))

    def test_waits_for_the_far_place_or_not(self):
        place, far, there = self.far()
        job = self.start_job("--far", far)
        whole = ["manifest.json", "manifest.xxh3", "member-0.img"]
        saved = self.checkpoint("--wait", "far")
        self.assertEqual((there(), saved["far"]), (whole, far))
        (place / "HOLD").touch()
        saved = self.checkpoint("--wait", "near", "--store", "mem:single", "--near", self.memory)
        self.assertNotIn("far", saved)
        self.assertNotEqual(there(), sorted(2 * whole))
        saved = self.checkpoint("--kill", "--wait", "near")
        self.assertEqual(job.wait(TIMEOUT_S), -9)
        self.assertNotEqual(there(), sorted(3 * whole))
        (place / "HOLD").unlink()
        self.wait_for(lambda: there() == sorted(3 * whole))
        self.wait_for(lambda: all(s["far"] for s in json.loads(self.shadowib("list", "--json").stdout)["sets"]))
        table = self.shadowib("list").stdout
        self.assertEqual(column(table, "store"), ["central", "mem:single", "central"])
        self.assertEqual(column(table, "survives"), ["all but DIR", "0 hosts", "all but DIR"])
        self.wait_for(lambda: not json.loads(self.shadowib("status", "demo", "--json").stdout)["flushing"])
        self.shadowib("gc", "--keep", 1)
        table = self.shadowib("list").stdout
        self.assertEqual(column(table, "manifest"), ["ok", "only far", "only far"])
        self.assertEqual(column(table, "far"), ["yes"] * 3)

    def test_waits_for_a_flush_that_is_under_way(self):
        place, far, there = self.far()
        self.start_job("--far", far)
        (place / "HOLD").touch()
        self.checkpoint()
        self.wait_for(lambda: list(place.glob("*.part")))
        waits = self.start("checkpoint", "demo", "--wait", "far", "--dir", self.dir)
        self.wait_for(lambda: "waiting for another flush of job demo" in (self.top / "log1").read_text())
        self.assertIsNone(waits.poll())
        (place / "HOLD").unlink()
        self.assertEqual(waits.wait(TIMEOUT_S), 0)
        self.assertEqual(there().count("manifest.json"), 2)

    def test_a_set_that_does_not_get_to_the_far_place_stays(self):
        """The exit code and the words are those of flush."""
        place, far, there = self.far()
        job = self.start_job()
        (place / "command").write_text("#!/bin/sh\necho no such bucket >&2\nexit 78\n")
        told = self.shadowib("checkpoint", "demo", "--far", far, "--wait", "far", code=6)
        self.assertEqual(told.stdout.splitlines()[-1], str(self.dir / "sets" / "demo.0001"))
        for words in ("demo.0001 is committed and stays, but is not in exec:", "exit code 78: no such bucket"):
            self.assertIn(words, told.stderr)
        self.assertIn("exit code 78: no such bucket", self.shadowib("flush", "demo", "--wait", "--far", far, code=6).stderr)
        saved = self.checkpoint("--kill", "--far", far, "--wait", "far", code=6)
        self.assertEqual((saved["number"], saved["code"]), (2, 6))
        self.assertIn("is committed and stays", saved["error"])
        self.assertEqual(job.wait(TIMEOUT_S), -9)
        self.assertEqual(len(json.loads(self.shadowib("list", "--json").stdout)["sets"]), 2)
        self.assertEqual(there(), [])

    def test_a_wait_for_what_will_not_be_flushed_is_refused(self):
        _, far, there = self.far()
        job = self.start_job()
        for words, text in (((), "has no far place; name one with --far"), (("--far", far, "--flush", "none"), "give --flush all"),
                            (("--far", far, "--flush", 2), "the next set, demo.0001, is not one that is flushed (--flush 2); give --flush all")):
            self.assertIn(text, self.checkpoint("--wait", "far", *words, code=2)["error"])
        self.await_counts(job, 3)
        self.assertFalse((self.dir / "sets").exists() and list((self.dir / "sets").iterdir()))
        self.checkpoint()
        self.checkpoint("--wait", "far", "--far", far, "--flush", 2)
        self.assertIn("manifest.json", there())
        self.assertIn("leave out --wait", self.checkpoint("--cluster", "east", "--wait", "far", "--store", "central", code=2)["error"])

    def test_gc_takes_what_a_dead_command_left_and_nothing_of_others(self):
        self.env["SHADOWIB_FAULT"] = "220:crash"
        self.start_job("--store", "mem:single", "--near", self.memory)
        subprocess.run([SHADOWIB, "checkpoint", "demo", "--dir", self.dir], env=self.env, capture_output=True, timeout=TIMEOUT_S)
        del self.env["SHADOWIB_FAULT"]
        left = self.images("mem")
        self.assertEqual(len(left), 1)
        kept = self.checkpoint()["near"]
        others = left[0].parents[1] / ("0" * 32)
        others.mkdir(mode=0o700)
        (others / "home").symlink_to("/another/directory")
        removed = json.loads(self.shadowib("gc", "--keep", 5, "--json").stdout)["removed"]
        self.assertEqual([(r["kind"], r["path"]) for r in removed if r["kind"] == "images"], [("images", str(left[0].parent))])
        self.assertEqual([str(i.parent) for i in self.images("mem")], [kept])
        self.assertTrue(others.exists())

    def test_gc_leaves_images_of_a_directory_that_is_not_mounted(self):
        job = self.start_job("--store", "mem:single")  # in the place where every directory's images are looked for
        self.checkpoint("--kill")
        job.wait(TIMEOUT_S)
        self.dir.rename(self.top / "aside")
        self.dir.mkdir()  # the mount point
        self.assertIn("mounted?", self.shadowib("gc", "--keep", 9, code=3).stderr)
        self.dir.rmdir()
        (self.top / "aside").rename(self.dir)
        self.assertTrue(json.loads(self.shadowib("verify", "demo", "--json").stdout)["ok"])
        self.shadowib("gc", "--keep", 0)

    def test_an_image_of_which_no_command_knows_is_removed_by_its_member(self):
        self.env["SHADOWIB_FAULT"] = "68:slow"  # the saver
        job = self.start_job("--store", "disk:single", "--near", self.disk)
        command = self.start("checkpoint", "demo", "--dir", self.dir, "--save", "forked")
        self.wait_for(lambda: self.images("disk"))
        command.kill()
        self.wait_for(lambda: "not taken" in (self.top / "log0").read_text())
        self.assertEqual(self.images("disk"), [])
        (self.top / "word").write_text("end")
        self.assertEqual(job.wait(TIMEOUT_S), 0)

    def test_a_set_is_not_rebuilt_during_a_flush(self):
        """A flush has images on its host for a moment: they are no copies."""
        job = self.start_job("--store", "disk:single", "--near", self.disk)
        self.checkpoint("--kill")
        job.wait(TIMEOUT_S)
        lease = os.open(self.dir / "sets" / ".lease-demo.0001", os.O_RDWR | os.O_CREAT)
        fcntl.fcntl(lease, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        self.assertIn("is being flushed, rebuilt or removed", self.shadowib("rebuild", "demo", code=11).stderr)
        os.close(lease)
        self.assertIn("which has no copies", self.shadowib("rebuild", "demo", code=2).stderr)

    def test_a_keeper_on_an_empty_host_waits_for_a_rebuild(self):
        """The job has ended, and its image is lost: on such a host a keeper is started by hand."""
        job = self.start_job("--store", "disk:single", "--near", self.disk)
        self.checkpoint("--kill")
        job.wait(TIMEOUT_S)
        shutil.rmtree(next(self.disk.glob("shadowib-*/demo/*")))
        keeper = self.start("keeper", "demo", "--dir", self.dir)
        with self.assertRaises(subprocess.TimeoutExpired):
            keeper.wait(KEEPER_LOOKS_S)
        self.shadowib("gc", "demo", "--keep", "0")
        self.assertEqual(keeper.wait(TIMEOUT_S), 0)

    def test_without_options_nothing_is_near(self):
        self.start_job()
        saved = self.checkpoint()
        self.assertNotIn("store", saved)
        self.assertEqual(sorted(p.name for p in pathlib.Path(saved["set"]).iterdir()), ["manifest.json", "manifest.xxh3", "member-0.img"])
        self.assertEqual(json.loads((pathlib.Path(saved["set"]) / "manifest.json").read_text())["format"], 1)
        self.assertEqual(list((self.dir / "jobs" / "demo").glob("store")), [])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
