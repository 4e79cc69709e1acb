"""The command `shadowib` as a user meets it: run's environment and refusals, sets and gc, errors and exit codes.

cli_test.py COMMAND LIBRARY TOOL SUBJECT: a tree of its own is made from them, so that nothing depends on what else is built.
"""
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest

COMMAND, LIBRARY, TOOL, SUBJECT = (pathlib.Path(a).resolve() for a in sys.argv[1:5])
SHOW = "import os,json,sys; print(json.dumps({'pid': os.getpid(), 'env': dict(os.environ), 'argv': sys.argv[1:]}))"
PROGRESS = ("shadowib: the newest set of ", "shadowib: verifying ", "shadowib: checkpoint of ", "shadowib: waiting for the end of ")
OK, USAGE, NOT_FOUND, CORRUPT, IO, BUSY = 0, 2, 3, 5, 6, 11


class Tree(unittest.TestCase):
    def setUp(self):
        self.top = pathlib.Path(tempfile.mkdtemp(prefix="shadowib-cli-"))
        self.prefix = self.top / "prefix"
        self.dir = self.top / "ckpt"
        (self.prefix / "bin").mkdir(parents=True)
        (self.prefix / "lib" / "dropin").mkdir(parents=True)
        self.command = self.prefix / "bin" / "shadowib"
        self.library = self.prefix / "lib" / "libshadowib.so"
        shutil.copy(COMMAND, self.command)
        shutil.copy(LIBRARY, self.library)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("SHADOWIB_", "LD_"))}
        self.env["ASAN_OPTIONS"] = "detect_leaks=0"  # python's, in a build with sanitizers

    def tearDown(self):
        shutil.rmtree(self.top, ignore_errors=True)

    def shadowib(self, *words, code=OK, command=None, env=None, cwd=None):
        done = subprocess.run([command or self.command, *map(str, words)], env={**self.env, **(env or {})}, text=True,
                              cwd=cwd or self.top, capture_output=True, timeout=60)
        self.assertEqual(done.returncode, code, f"{words}\n{done.stdout}{done.stderr}")
        if code not in (OK, 9) and words[0] != "run":
            told = [line for line in done.stderr.splitlines() if not line.startswith(PROGRESS)]
            self.assertEqual(len(told), 1, "an error is one line: " + done.stderr)
        return done

    def tool(self, *words):
        return subprocess.run([TOOL, *map(str, words)], text=True, check=True, capture_output=True).stdout.strip()

    def run_show(self, *options, env=None, command=None, words=(), cwd=None):
        out = self.shadowib("run", *options, "--", sys.executable, "-c", SHOW, *words, env=env, command=command, cwd=cwd)
        return json.loads(out.stdout)


class Run(Tree):
    def in_container(self, script):
        """Exit code and output of a shell that `run` starts as the first process of a pid namespace."""
        words = ["unshare", *([] if os.geteuid() == 0 else ["--map-root-user"]), "--pid", "--fork", "--kill-child", "--mount-proc"]
        if subprocess.run([*words, "true"], capture_output=True).returncode != 0:
            print("\nSKIPPED: test_the_first_process_of_a_container: no pid namespaces here", flush=True)
            self.skipTest("no pid namespaces here")
        done = subprocess.run([*words, self.command, "run", "--job", "j", "--", "sh", "-c", script], cwd=self.top, env=self.env, text=True,
                              capture_output=True, timeout=60)
        return done.returncode, done.stdout

    def test_the_first_process_of_a_container(self):
        # CMD is its child; orphans are reaped, signals passed on, and the end is CMD's.
        self.assertEqual(self.in_container("echo $$ $PPID; exit 7"), (7, "2 1\n"))
        self.assertEqual(self.in_container("kill -9 $$"), (137, ""))
        self.assertEqual(self.in_container("trap 'exit 3' TERM; kill -TERM 1; while :; do :; done"), (3, ""))
        orphan = "(sh -c : & echo $! >orphan); while kill -0 $(cat orphan) 2>/dev/null; do :; done; echo reaped"
        self.assertEqual(self.in_container(orphan), (0, "reaped\n"))

    def test_environment(self):
        seen = self.run_show("--job", "j", "--dir", "ckpt", "--backend", "ib2tcp", "--interval", "2.5",
                             "--checkpoint-on", "USR1,SIGUSR2", "--kill-on", "15", "--keep", "3", "--timeout", "90", "--cpu", "x86-64",
                             words=("--job", "-x"), env={"GLIBC_TUNABLES": "glibc.malloc.check=0"})
        env = seen["env"]
        self.assertEqual(seen["argv"], ["--job", "-x"], "CMD's options are CMD's")
        self.assertEqual(env["SHADOWIB_JOB"], "j")
        self.assertEqual(env["SHADOWIB_DIR"], str(self.dir))
        self.assertEqual(env["SHADOWIB_EXCHANGE"], f"dir:{self.dir}/jobs/j/x")
        self.assertEqual(env["SHADOWIB_BACKEND"], "ib2tcp")
        self.assertEqual(env["SHADOWIB_INTERVAL"], "2.5")
        self.assertEqual((env["SHADOWIB_CHECKPOINT_ON"], env["SHADOWIB_KILL_ON"], env["SHADOWIB_KEEP"]), ("USR1,SIGUSR2", "15", "3"))
        self.assertEqual(env["SHADOWIB_TIMEOUT"], "90")
        self.assertEqual((env["SHADOWIB_CPU"], env["LD_BIND_NOW"]), ("x86-64", "1"))
        self.assertRegex(env["GLIBC_TUNABLES"], "^glibc.malloc.check=0:glibc.cpu.hwcaps=-.*-AVX2,")
        self.assertEqual((env["PMIX_MCA_gds"], env["UCX_UD_TIMEOUT"]), ("hash", "6000000s"))
        own = self.run_show("--dir", "own", env={"PMIX_MCA_gds": "ds21", "UCX_UD_TIMEOUT": "9s"})["env"]
        self.assertEqual((own["PMIX_MCA_gds"], own["UCX_UD_TIMEOUT"]), ("ds21", "9s"))
        self.assertEqual(env["SHADOWIB_COMMAND"], str(self.command))
        self.assertEqual(env["LD_PRELOAD"].split(":")[-1], str(self.library))
        self.assertEqual(env["LD_LIBRARY_PATH"], str(self.prefix / "lib" / "dropin"))
        top = self.dir / "jobs" / "j"
        self.assertRegex((top / "epoch").read_text(), "^g0-[0-9a-f]{8}$")
        self.assertEqual(len((top / "key").read_bytes()), 32)
        self.assertEqual(stat.S_IMODE((top / "key").stat().st_mode), 0o600)
        self.assertEqual(stat.S_IMODE(top.stat().st_mode), 0o700)
        self.assertFalse(list(top.glob("*.new-*")))

    def test_defaults(self):
        env = self.run_show()["env"]
        self.assertRegex(env["SHADOWIB_JOB"], r"^python3?[0-9.]*-\d+$")
        self.assertEqual(env["SHADOWIB_DIR"], str(self.top / "shadowib-ckpt"))
        self.assertEqual(env["SHADOWIB_BACKEND"], "auto")
        self.assertNotIn("SHADOWIB_INTERVAL", env)
        self.assertEqual(self.run_show(env={"SHADOWIB_DIR": "elsewhere"})["env"]["SHADOWIB_DIR"], str(self.top / "elsewhere"))

    def test_existing_lists_stay_behind_ours_and_nesting_adds_nothing(self):
        before = {"LD_PRELOAD": "/lib/x86_64-linux-gnu/libm.so.6", "LD_LIBRARY_PATH": "/opt/x:/opt/y"}
        # The command itself is started with that list; built with AddressSanitizer, it wants no library before its runtime.
        self.env["ASAN_OPTIONS"] += ":verify_asan_link_order=0"
        env = self.run_show("--job", "j", env=before)["env"]
        self.assertEqual(env["LD_PRELOAD"].split(":")[-2:], [str(self.library), before["LD_PRELOAD"]])
        self.assertEqual(env["LD_LIBRARY_PATH"], f"{self.prefix}/lib/dropin:/opt/x:/opt/y")
        inner = self.shadowib("run", "--job", "j", "--", self.command, "run", "--", sys.executable, "-c", SHOW, env=before)
        inner = json.loads(inner.stdout)["env"]
        self.assertEqual(inner["LD_PRELOAD"], env["LD_PRELOAD"])
        self.assertEqual(inner["LD_LIBRARY_PATH"], env["LD_LIBRARY_PATH"])
        self.assertEqual(inner["SHADOWIB_JOB"], "j", "run inside run joins the same job")

    def test_an_exchange_of_one_job_is_not_another_jobs(self):
        env = self.run_show("--job", "b", env={"SHADOWIB_JOB": "a", "SHADOWIB_EXCHANGE": "dir:/nowhere/a"})["env"]
        self.assertTrue(env["SHADOWIB_EXCHANGE"].endswith("/jobs/b/x"))
        env = self.run_show("--job", "c", "--exchange", "dir:xx")["env"]
        self.assertEqual(env["SHADOWIB_EXCHANGE"], f"dir:{self.top}/xx")
        self.assertEqual(self.run_show("--job", "c")["env"]["SHADOWIB_EXCHANGE"], f"dir:{self.top}/xx", "it is remembered")

    def test_an_exchange_that_fails_leaves_nothing_behind(self):
        for wrong in ("redis://127.0.0.1:1", "none:x", "dir:/etc/passwd/x"):
            self.shadowib("run", "--job", "j", "--dir", self.dir, "--exchange", wrong, "--", "true", code=125,
                          env={"SHADOWIB_REDIS_PASSWORD": "secret"})
            self.assertFalse((self.dir / "jobs" / "j").exists(), wrong)
        self.run_show("--job", "j", "--dir", self.dir)
        self.assertEqual((self.dir / "jobs/j/exchange").read_text(), f"dir:{self.dir}/jobs/j/x\n")
        self.shadowib("run", "--job", "j", "--dir", self.dir, "--exchange", "redis://127.0.0.1:1", "--", "true", code=125)
        self.run_show("--job", "j", "--dir", self.dir)

    def test_an_exchange_is_on_record_as_it_is_used(self):
        record = self.dir / "jobs/j/exchange"
        self.run_show("--job", "j", "--dir", self.dir)
        self.run_show("--job", "j", "--dir", self.dir, "--exchange", "dir:xx")
        self.assertEqual(record.read_text(), f"dir:{self.top}/xx\n", "another life of the job, elsewhere")
        with subprocess.Popen([self.command, "run", "--dir", self.dir, "--job", "j", "--", "cat"], env=self.env,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            child.stdin.write(b"x")
            child.stdin.flush()
            self.assertEqual(child.stdout.read(1), b"x")
            done = self.shadowib("run", "--job", "j", "--dir", self.dir, "--exchange", "dir:yy", "--", "true", code=125)
            self.assertIn(f"(process {child.pid}) and its exchange is dir:{self.top}/xx", done.stderr)
            self.assertEqual(record.read_text(), f"dir:{self.top}/xx\n")

    def test_jobs_that_share_an_exchange_have_keys_of_their_own(self):
        for job in ("a", "b"):
            self.run_show("--job", job, "--dir", "ckpt", "--exchange", "dir:xx")
        a, b = ((self.dir / "jobs" / job / "epoch").read_text() for job in ("a", "b"))
        self.assertNotEqual(a, b)

    def test_found_through_links_and_moved_trees(self):
        (self.top / "link").symlink_to(self.command)
        self.assertIn(str(self.library), self.run_show(command=self.top / "link")["env"]["LD_PRELOAD"])
        self.env["PATH"] = f"{self.top}/path:" + self.env["PATH"]
        (self.top / "path").mkdir()
        (self.top / "path" / "shadowib").symlink_to("../link")
        seen = subprocess.run(["shadowib", "run", "--", sys.executable, "-c", SHOW], env=self.env, cwd=self.top,
                              executable=self.top / "path" / "shadowib", capture_output=True, text=True)
        self.assertIn(str(self.library), json.loads(seen.stdout)["env"]["LD_PRELOAD"])
        self.prefix.rename(self.top / "moved")
        seen = self.run_show(command=self.top / "moved" / "bin" / "shadowib")
        self.assertIn(str(self.top / "moved/lib/libshadowib.so"), seen["env"]["LD_PRELOAD"])
        shutil.rmtree(self.top / "moved" / "lib")
        self.shadowib("run", "--", "true", command=self.top / "moved" / "bin" / "shadowib", code=125)

    def test_the_library_is_really_loaded(self):
        done = self.shadowib("run", "--", "true", env={"CLI_TEST_TELL": "1"})
        self.assertEqual(done.stderr, "library loaded\n")

    def test_pid_exit_code_and_signals_are_the_programs(self):
        child = subprocess.Popen([self.command, "run", "--dir", self.dir, "--", sys.executable, "-c", SHOW], env=self.env,
                                 stdout=subprocess.PIPE, text=True)
        self.assertEqual(json.loads(child.communicate()[0])["pid"], child.pid)
        self.shadowib("run", "--", "sh", "-c", "exit 42", code=42)
        self.shadowib("run", "--", "sh", "-c", "kill -TERM $$", code=-signal.SIGTERM)
        self.shadowib("run", "--", "sh", "-c", "exit 2", code=2)

    def test_programs_that_cannot_be_run(self):
        def refused(path, why, code=126):
            done = self.shadowib("run", "--", path, code=code)
            self.assertIn(why, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        program = self.top / "program"
        shutil.copy("/bin/true", program)
        program.chmod(0o4755)
        refused(program, "setuid")
        program.chmod(0o2755)
        refused(program, "setuid or setgid")
        program.chmod(0o644)
        refused(program, "not executable")
        refused(self.top / "nothing", "no such program", 127)
        refused("no-such-program-here", "no such program", 127)
        refused(self.top, "no such program", 127)
        elf = bytearray(pathlib.Path("/bin/true").read_bytes())
        elf[18:20] = (183).to_bytes(2, "little")  # AArch64
        program.write_bytes(elf)
        program.chmod(0o755)
        refused(program, "architecture")
        elf = bytearray(pathlib.Path("/bin/true").read_bytes())
        elf[4] = 1  # 32 bit
        program.write_bytes(elf)
        refused(program, "architecture")
        # Without its PT_INTERP header it is what a static-pie program is.
        elf = bytearray(pathlib.Path("/bin/true").read_bytes())
        offset, count = int.from_bytes(elf[32:40], "little"), int.from_bytes(elf[56:58], "little")
        for i in range(count):
            if elf[offset + 56 * i] == 3:
                elf[offset + 56 * i] = 0
        program.write_bytes(elf)
        refused(program, "static")
        script = self.top / "script"
        script.write_text(f"#! {program} -x\n")
        script.chmod(0o755)
        refused(script, "static")
        script.write_text(f"#!{script}\n")
        refused(script, "do not end")
        script.write_text("exit 3\n")
        self.shadowib("run", "--", script, code=3)
        self.assertFalse(self.dir.exists(), "nothing is made for a program that is refused")

    def test_damaged_elf_files_are_judged_without_harm(self):
        good = pathlib.Path("/bin/true").read_bytes()
        program = self.top / "program"
        for length in (4, 17, 63, 64, 100, 600, 2000):
            program.write_bytes(good[:length])
            program.chmod(0o755)
            done = subprocess.run([self.command, "run", "--dir", self.dir, "--", program], env=self.env,
                                  capture_output=True, timeout=60)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(done.returncode, (126, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGKILL), length)

    def test_own_errors_of_run(self):
        self.shadowib("run", code=125)
        self.shadowib("run", "--nonsense", "--", "true", code=125)
        self.shadowib("run", "--backend", "other", "--", "true", code=125)
        self.shadowib("run", "--interval", "-1", "--", "true", code=125)
        for env in ({}, {"SHADOWIB_INTERVAL": "auto"}):
            words = ("--interval", "auto") if not env else ()
            self.assertIn("needs --mtbf", self.shadowib("run", *words, "--", "true", env=env, code=125).stderr)
            seen = self.run_show(*words, "--mtbf", "3600", env=env)["env"]
            self.assertEqual((seen["SHADOWIB_INTERVAL"], seen["SHADOWIB_MTBF"]), ("auto", "3600"))
        self.shadowib("run", "--keep", "0", "--", "true", code=125)
        self.shadowib("run", "--timeout", "0", "--", "true", code=125)
        self.shadowib("run", "--cpu", "x86-64-v5", "--", "true", code=125)
        for name, why in {"BACKEND": "is none of auto, verbs, ib2tcp", "INTERVAL": "is no number of seconds above 0",
                          "TIMEOUT": "is no number of seconds above 0"}.items():
            self.assertIn(f"SHADOWIB_{name}='abc' {why}",
                          self.shadowib("run", "--", "true", env={f"SHADOWIB_{name}": "abc"}, code=125).stderr)
        self.shadowib("run", "--backend", "auto", "--interval", "1", "--", "true", env={"SHADOWIB_BACKEND": "abc", "SHADOWIB_INTERVAL": "abc"})
        self.assertIn("SHADOWIB_BACKEND='abc' is none", self.shadowib("restart", "x", env={"SHADOWIB_BACKEND": "abc"}, code=USAGE).stderr)
        self.assertIn("SHADOWIB_CPU=i486", self.shadowib("run", "--", "true", env={"SHADOWIB_CPU": "i486"}, code=125).stderr)
        for signals, why in {"USR3": "'USR3' is no signal", "USR1,": "'' is no signal", "KILL": "signal KILL cannot be taken",
                             "65": "'65' is no signal", "SEGV": "cannot be taken", "62": "cannot be taken"}.items():
            for option in ("--checkpoint-on", "--kill-on"):
                self.assertIn(f"{option}: {why}" if why[0] == "'" else why,
                              self.shadowib("run", option, signals, "--", "true", code=125).stderr)
        for value in ("0", "-3", "few", "3 sets", "1e3", "10000000000"):
            for name in ("SHADOWIB_KEEP", "SHADOWIB_PROCESSES"):
                said = f"{name}='{value}' is no number of"
                self.assertIn(said, self.shadowib("run", "--", "true", env={name: value}, code=125).stderr)
                self.assertIn(said, self.shadowib("supervise", "--job", "j", "--", "true", env={name: value}, code=USAGE).stderr)
        self.shadowib("run", "--keep", "1", "--processes", "1", "--", "true", env={"SHADOWIB_KEEP": "0", "SHADOWIB_PROCESSES": "0"})
        self.assertIn("--kill-on: 'NOPE'", self.shadowib("run", "--", "true", env={"SHADOWIB_KILL_ON": "NOPE"}, code=125).stderr)
        self.shadowib("run", "--", "true", env={"SHADOWIB_KILL_ON": "", "SHADOWIB_KEEP": ""})
        self.assertIn("same signal", self.shadowib("run", "--checkpoint-on", "USR1", "--kill-on", "10", "--", "true", code=125).stderr)
        self.shadowib("run", "--job", "../evil", "--", "true", code=125)
        self.shadowib("run", "--job", "a/b", "--", "true", code=125)
        self.shadowib("run", "--exchange", "redis://x", "--", "true", code=125)
        (self.top / "file").write_text("")
        done = self.shadowib("run", "--dir", "file", "--", "true", code=125)
        self.assertIn(str(self.top / "file"), done.stderr)

    def test_many_at_once_make_one_job(self):
        started = [subprocess.Popen([self.command, "run", "--dir", self.dir, "--job", "j", "--", "cat",
                                     self.dir / "jobs/j/key"], env=self.env, stdout=subprocess.PIPE) for _ in range(12)]
        keys = {child.communicate()[0] for child in started}
        self.assertTrue(all(child.returncode == 0 for child in started))
        self.assertEqual(len(keys), 1)
        self.assertEqual(len(keys.pop()), 32)


class Sets(Tree):
    def listed(self):
        return [s["name"] for s in json.loads(self.shadowib("list", "--json", "--dir", self.dir).stdout)["sets"]]

    def test_a_job_stands_for_its_newest_set(self):
        for number in range(1, 12):
            self.tool("set", self.dir, "demo")
        self.tool("set", self.dir, "demo.x")
        (self.top / "demo").write_text("a program of that name\n")
        for command in ("restart", "verify"):
            done = self.shadowib(command, "demo", "--dir", self.dir, code=CORRUPT)
            self.assertIn("the newest set of job demo is demo.0011\n", done.stderr)
            self.assertIn("sets/demo.0011", done.stderr.splitlines()[-1])

    def test_of_a_launchers_ranks_one_tells_it(self):
        self.tool("set", self.dir, "demo")
        for rank, told in (("0", 1), ("1", 0)):
            done = self.shadowib("verify", "demo", "--dir", self.dir, env={"PMIX_RANK": rank}, code=CORRUPT)
            self.assertEqual(done.stderr.count("the newest set of job demo"), told)
            self.shadowib("run", "--dir", self.dir, "--job", f"j{rank}", "--", "true", env={"SLURM_PROCID": rank})
            self.assertEqual((self.dir / "history" / f"j{rank}").exists(), told == 1)

    def test_list(self):
        self.dir.mkdir()
        self.assertEqual(self.listed(), [])
        for job in ("a", "b", "a"):
            self.tool("set", self.dir, job)
        staging = self.tool("staging", self.dir, "a")
        self.assertEqual(self.listed(), ["a.0001", "b.0001", "a.0002"])
        lines = self.shadowib("list", "--dir", self.dir).stdout.splitlines()
        self.assertEqual(len(lines), 4)
        self.assertTrue(lines[3].startswith("a.0002"))
        self.assertTrue(pathlib.Path(staging).is_dir())
        (self.dir / "sets/a.0001/manifest.json").write_text("{}")
        entry = json.loads(self.shadowib("list", "--json", "--dir", self.dir).stdout)["sets"][0]
        self.assertFalse(entry["ok"])

    def test_gc_keeps_the_newest_and_what_is_alive(self):
        for job in ("a", "a", "a", "b", "b"):
            self.tool("set", self.dir, job)
        self.shadowib("run", "--dir", self.dir, "--job", "a", "--", "true")
        self.shadowib("run", "--dir", self.dir, "--job", "b", "--", "true")
        stale, used = self.tool("staging", self.dir, "a"), self.tool("staging", self.dir, "b")
        holders = [subprocess.Popen([TOOL, "hold", self.dir / "jobs/b/alive" / name], stdin=subprocess.PIPE,
                                    stdout=subprocess.PIPE) for name in ("g0.0", "g0.ckpt1")]
        for holder in holders:
            self.assertEqual(holder.stdout.readline(), b"held\n")
        self.assertIn("from hosts that have a keeper", self.shadowib("gc", "--help").stdout)
        done = json.loads(self.shadowib("gc", "--keep", "2", "--dry-run", "--json", "--dir", self.dir).stdout)
        self.assertEqual({pathlib.Path(r["path"]).name for r in done["removed"]}, {"a.0001", pathlib.Path(stale).name, "a"})
        self.assertEqual(len(self.listed()), 5)
        self.shadowib("gc", "--keep", "2", "--dir", self.dir)
        self.assertEqual(self.listed(), ["a.0002", "a.0003", "b.0001", "b.0002"])
        self.assertFalse(os.path.exists(stale))
        self.assertTrue(os.path.exists(used), "a checkpoint under way keeps its staging")
        self.assertEqual(os.listdir(self.dir / "jobs"), ["b"])
        for holder in holders:
            holder.communicate()
        self.shadowib("gc", "--keep", "0", "--dir", self.dir)
        self.assertEqual(self.listed(), [])
        self.assertEqual(os.listdir(self.dir / "sets"), [])
        self.assertEqual(os.listdir(self.dir / "jobs"), [])

    def test_gc_spares_a_program_that_has_not_joined_yet(self):
        child = subprocess.Popen([self.command, "run", "--dir", self.dir, "--job", "j", "--", "cat"], env=self.env,
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        child.stdin.write(b"x")
        child.stdin.flush()
        self.assertEqual(child.stdout.read(1), b"x")
        self.shadowib("gc", "--keep", "1", "--dir", self.dir)
        self.assertTrue((self.dir / "jobs/j/key").exists())
        child.communicate()
        self.shadowib("gc", "--keep", "1", "--dir", self.dir)
        self.assertFalse((self.dir / "jobs/j").exists())

    def test_gc_leaves_histories_but_those_of_mere_starts(self):
        for job in ("never", "once"):
            self.shadowib("run", "--dir", self.dir, "--job", job, "--", "true")
        with open(next((self.dir / "history/once").iterdir()), "a") as out:
            print('{"time":"2026-01-01T00:00:00.000Z","event":"ended","exit_code":0}', file=out)
        done = json.loads(self.shadowib("gc", "--keep", "1", "--json", "--dir", self.dir).stdout)
        self.assertEqual([r["kind"] for r in done["removed"]], ["job", "job", "history"])
        self.assertEqual(os.listdir(self.dir / "history"), ["once"])
        self.assertIn("nothing to remove in", self.shadowib("gc", "--keep", "1", "--dir", self.dir).stderr)

    def test_gc_removes_what_a_living_job_has_left_in_its_exchange(self):
        job = self.dir / "jobs/a"
        self.shadowib("run", "--dir", self.dir, "--job", "a", "--", "true")
        present = (job / "epoch").read_text().strip()
        for epoch in ("g0-00000001", "g1-00000002", "g2-00000003", present):
            for key in ("late/0/qp/=17", "restart/@go/0"):
                (job / "x" / epoch / key).parent.mkdir(parents=True)
                (job / "x" / epoch / key).write_text("")
            (job / "alive" / f"{epoch}.0").write_text("")
        (job / "alive/joining").write_text("")
        holders = [subprocess.Popen([TOOL, "hold", job / "alive" / name], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                   for name in ("g1-00000002.ckpt3", f"{present}.0")]
        for holder in holders:
            self.assertEqual(holder.stdout.readline(), b"held\n")
        for words in (("--dry-run",), ()):
            done = json.loads(self.shadowib("gc", "--keep", "1", "--json", "--dir", self.dir, *words).stdout)
            self.assertEqual([(r["kind"], r["path"]) for r in done["removed"]],
                             [("epoch", f"dir:{job}/x/{epoch}") for epoch in ("g0-00000001", "g2-00000003")])
        self.assertEqual(json.loads(self.shadowib("gc", "--keep", "1", "--json", "--dir", self.dir).stdout)["removed"], [])
        self.assertEqual(sorted(path.name for path in (job / "x").glob("g*")), sorted(["g1-00000002", present]))
        self.assertEqual(sorted(os.listdir(job / "alive")),
                         sorted(["g1-00000002.0", "g1-00000002.ckpt3", f"{present}.0", "joining"]))
        for holder in holders:
            holder.communicate()

    def test_gc_leaves_unreadable_sets_alone(self):
        self.tool("set", self.dir, "a")
        (self.dir / "sets/a.0001/manifest.json").write_text("{}")
        self.assertIn("left alone", self.shadowib("gc", "--keep", "0", "--dir", self.dir).stderr)
        self.assertEqual(self.listed(), ["a.0001"])

    def test_a_foreign_or_damaged_set_is_refused_with_its_code(self):
        path = pathlib.Path(self.tool("set", self.dir, "a"))
        for command in ("verify", "restart", "inspect"):
            self.shadowib(command, "nothing.0001", "--dir", self.dir, code=NOT_FOUND)
            self.shadowib(command, self.top / "nothing", code=NOT_FOUND)
            done = self.shadowib(command, "nothing.0001", "--json", "--dir", self.dir, code=NOT_FOUND)
            self.assertEqual(json.loads(done.stdout)["code"], NOT_FOUND)
        good = (path / "manifest.json").read_bytes()
        for i in range(0, len(good), 97):
            (path / "manifest.json").write_bytes(good[:i] + bytes([good[i] ^ 4]) + good[i + 1:])
            self.shadowib("verify", path, code=CORRUPT)
        self.shadowib("restart", path, code=CORRUPT)
        (path / "manifest.json").write_bytes(good)
        (path / "member.0.image").unlink()
        self.assertIn("missing", self.shadowib("verify", "a.0001", "--dir", self.dir, code=CORRUPT).stderr.splitlines()[-1])

    def test_a_living_job_is_not_restarted(self):
        path = self.tool("set", self.dir, "a")
        holder = subprocess.Popen([TOOL, "hold", self.dir / "jobs/a/alive/g0.0"], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE)
        self.assertEqual(holder.stdout.readline(), b"held\n")
        done = self.shadowib("restart", path, code=BUSY)
        self.assertIn("job a is alive", done.stderr)
        # One that comes to its end is.
        with subprocess.Popen([self.command, "restart", path], env=self.env, stderr=subprocess.PIPE, text=True) as restart:
            self.assertIn("waiting for the end of member or command g0.0", restart.stderr.readline())
            holder.communicate()
            self.assertEqual(restart.wait(60), CORRUPT, "the image is none")
        self.assertEqual(subprocess.run([self.command, "restart", path], env=self.env, capture_output=True).returncode,
                         CORRUPT, "the image is none, but the job is free now")


class Words(Tree):
    def test_usage_errors_are_one_line_with_code_2(self):
        for words in (("frob",), (), ("checkpoint", "--timeout", "x"), ("checkpoint", "a", "b"), ("gc",),
                      ("gc", "--keep", "-1"), ("verify",), ("list", "--nonsense"), ("restart", "s", "--backend", "x"),
                      ("checkpoint", "../x"), ("status", "a/b", "--dir", "."), ("checkpoint", ""), ("restart", ""), ("list", "--dir", ""),
                      ("checkpoint", "--exchange", "")):
            done = subprocess.run([self.command, *words], env=self.env, cwd=self.top, capture_output=True, text=True)
            self.assertEqual(done.returncode, USAGE, words)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertLess(len(done.stderr), 200, done.stderr)

    def test_a_wrong_number_is_named_with_what_may_stand_in_its_place(self):
        for words, thing in {("run", "--interval", "abc", "--", "true"): "seconds from 0.001 to 100000000, nor auto",
                             ("run", "--interval", "nan", "--", "true"): "seconds from 0.001 to 100000000, nor auto",
                             ("run", "--mtbf", "0", "--", "true"): "seconds from 0.001 to 1000000000",
                             ("run", "--timeout", "-1", "--", "true"): "seconds from 0.001 to 2000000",
                             ("checkpoint", "--timeout", "inf"): "seconds from 0.001 to 2000000",
                             ("checkpoint", "--keep", "0"): "sets from 1 to 1000000",
                             ("gc", "--keep", "-1"): "sets from 0 to 1000000",
                             ("restart", "x", "--wait", "1.5"): "seconds from 1 to 86400"}.items():
            done = subprocess.run([self.command, *words], env=self.env, cwd=self.top, capture_output=True, text=True)
            at = words[1:].index("--") if "--" in words[1:] else len(words) - 1
            self.assertEqual(done.stderr, f"shadowib: {words[at - 1]}: '{words[at]}' is no number of {thing}; "
                                          f"see shadowib {words[0]} --help\n")

    def test_what_is_no_directory_no_set_or_no_image(self):
        for words in (("list",), ("status",), ("gc", "--keep", "1")):
            self.assertIn("there is no directory /nowhere\n", self.shadowib(*words, "--dir", "/nowhere", code=NOT_FOUND).stderr)
            self.assertIn("name the directory of your jobs with --dir", self.shadowib(*words, code=NOT_FOUND).stderr)
            self.assertIn("/etc/passwd is no directory", self.shadowib(*words, "--dir", "/etc/passwd", code=USAGE).stderr)
        self.assertIn("/etc/passwd is no image of shadowib", self.shadowib("inspect", "/etc/passwd", code=CORRUPT).stderr)
        for command in ("restart", "verify", "inspect"):
            self.assertIn("demo is no set, and no job of which there are sets", self.shadowib(command, "demo", code=NOT_FOUND).stderr)
        (self.top / "demo").write_text("a program has the job's name")
        for command in ("restart", "verify"):
            self.assertIn("demo is no set, and no job of which there are sets", self.shadowib(command, "demo", code=NOT_FOUND).stderr)

    def test_jobs_that_are_not_there(self):
        self.shadowib("checkpoint", "nobody", "--dir", self.dir, code=NOT_FOUND)
        self.shadowib("checkpoint", "--dir", self.dir, code=NOT_FOUND)
        self.shadowib("status", "nobody", "--dir", self.dir, code=NOT_FOUND)
        self.dir.mkdir()
        out = self.shadowib("status", "--json", "--dir", self.dir).stdout
        self.assertEqual(json.loads(out)["jobs"], [])
        self.shadowib("run", "--job", "j", "--dir", self.dir, "--", "true")
        job = json.loads(self.shadowib("status", "j", "--json", "--dir", self.dir).stdout)
        self.assertEqual((job["job"], job["alive"], job["members"]), ("j", False, []))

    def test_a_typo_a_job_that_is_starting_and_one_that_has_ended_differ(self):
        with subprocess.Popen([self.command, "run", "--dir", self.dir, "--job", "demo", "--", "cat"], env=self.env,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            child.stdin.write(b"x")
            child.stdin.flush()
            self.assertEqual(child.stdout.read(1), b"x")
            done = self.shadowib("checkpoint", "demo", "--dir", self.dir, code=BUSY)
            self.assertIn(f"job demo is starting: process {child.pid} has not opened", done.stderr)
            self.assertIn("there is no job dmeo in", self.shadowib("checkpoint", "dmeo", "--dir", self.dir, code=NOT_FOUND).stderr)
            self.assertIn("; jobs there: demo\n", self.shadowib("checkpoint", "dmeo", "--dir", self.dir, code=NOT_FOUND).stderr)
            # As a launcher that outlives its ranks.
            lock = self.dir / "jobs/demo/alive" / ((self.dir / "jobs/demo/epoch").read_text().strip() + ".0")
            lock.write_text("")
            done = self.shadowib("checkpoint", "demo", "--dir", self.dir, code=NOT_FOUND)
            self.assertIn(f"no process of job demo is alive any more; process {child.pid} lives, and is no member", done.stderr)
            # As a job of that name that is started once more.
            (mark,) = (self.dir / "jobs/demo/started").iterdir()
            os.utime(mark, ns=(2 * lock.stat().st_mtime_ns,) * 2)
            done = self.shadowib("checkpoint", "demo", "--dir", self.dir, code=BUSY)
            self.assertIn(f"job demo is starting: process {child.pid} has not opened", done.stderr)
            lock.unlink()
            # As one that `run` is just making.
            for file in ("epoch", "exchange"):
                (self.dir / "jobs/demo" / file).unlink()
                self.shadowib("checkpoint", "demo", "--dir", self.dir, code=BUSY)
        done = self.shadowib("checkpoint", "demo", "--dir", self.dir, code=NOT_FOUND)
        self.assertIn("no job demo in", done.stderr)
        self.shadowib("run", "--job", "demo", "--dir", self.dir, "--", "true")
        done = self.shadowib("checkpoint", "demo", "--dir", self.dir, code=NOT_FOUND)
        self.assertIn("job demo has ended: none of its processes is alive, and it has no set", done.stderr)
        for _ in range(2):
            self.tool("set", self.dir, "demo")
        done = self.shadowib("checkpoint", "demo", "--dir", self.dir, code=NOT_FOUND)
        self.assertIn("`shadowib restart demo` starts its newest set, demo.0002", done.stderr)

    def test_a_process_of_another_host_counts_for_a_week(self):
        self.shadowib("run", "--job", "demo", "--dir", self.dir, "--", "true")
        mark = self.dir / "jobs/demo/started" / "elsewhere,12,34"
        mark.touch()
        done = self.shadowib("checkpoint", "demo", "--dir", self.dir, code=BUSY)
        self.assertIn("job demo is starting: process 12 on host elsewhere has not opened", done.stderr)
        self.shadowib("gc", "--keep", "0", "--dir", self.dir)
        self.assertTrue(mark.exists())
        os.utime(mark, (time.time() - 8 * 86400,) * 2)
        done = self.shadowib("checkpoint", "demo", "--dir", self.dir, code=NOT_FOUND)
        self.assertIn("job demo has ended", done.stderr)
        self.shadowib("gc", "--keep", "0", "--dir", self.dir)
        self.assertFalse(mark.exists())

    def test_version_and_help(self):
        self.assertRegex(self.shadowib("--version").stdout, r"^shadowib \d+\.\d+\.\d+\n$")
        self.assertIn("restart", self.shadowib("--help").stdout)
        for command in ("run", "checkpoint", "restart", "status", "history", "report", "list", "inspect", "verify", "gc", "doctor"):
            text = self.shadowib(command, "--help").stdout
            self.assertIn("Examples:", text)
            for option in ("--dir", "--exchange", "--json"):
                self.assertIn(option, text)

class Doctor(Tree):
    def setUp(self):
        super().setUp()
        (self.prefix / "lib" / "shadowib").mkdir()
        (self.prefix / "lib" / "shadowib" / "libshadowib-ib2tcp.so").write_text("")

    def findings(self, *words, subject="", env=None, before=None, directory=None):
        """Verdict, detail and remedy by name, of one subject; the exit code is checked against all of them."""
        done = subprocess.run([self.command, "doctor", "--json", "--dir", directory or self.dir, *map(str, words)],
                              env={**self.env, **(env or {})}, capture_output=True, text=True, cwd=self.top,
                              preexec_fn=before, timeout=60)
        report = json.loads(done.stdout)
        verdicts = {f["verdict"] for f in report["findings"]}
        self.assertEqual(done.returncode, 9 if "missing" in verdicts else 4 if "refused" in verdicts else 0, done.stdout)
        self.assertEqual(report["ok"], done.returncode == 0)
        for finding in report["findings"]:
            self.assertIn(finding["verdict"], ("ok", "note", "missing", "refused"))
            self.assertEqual(finding["verdict"] == "ok", finding["remedy"] == "", finding)
        return {f["what"]: f for f in report["findings"] if f["subject"] == subject}

    def test_every_line_is_there(self):
        by_name = self.findings()
        for what in ("kernel", "C library", "processor", "kernel interfaces", "inherited state", "memory map limits",
                     "libshadowib.so", "ib2tcp backend", "drop-in directory", "system libibverbs", "user namespaces",
                     "recorded pids", "a /proc of its own", "memory layout", "time namespace", "vdso",
                     "checkpoint directory", "locks", "exchange", "RDMA devices", "rdma_cm node", "locked memory",
                     "descriptors", "transport shm", "cross memory attach", "transport tcp", "transport ofi"):
            self.assertIn(what, by_name)
        for what in ("kernel", "exchange", "locks", "ib2tcp backend"):
            self.assertEqual(by_name[what]["verdict"], "ok", by_name[what])
        self.assertIn(os.uname().release, by_name["kernel"]["detail"])
        self.assertFalse(self.dir.exists(), "looking leaves nothing behind")

    def test_the_table(self):
        done = subprocess.run([self.command, "doctor", "--dir", self.dir, "--program", "/nothing"], env=self.env,
                              capture_output=True, text=True)
        lines = done.stdout.splitlines()
        self.assertTrue(all(line == "" or line == "program /nothing" or line[:8].rstrip() in ("", "ok", "note", "missing", "refused")
                            for line in lines), done.stdout)
        at = lines.index("program /nothing")
        self.assertRegex(lines[at + 1], "^refused  program  .*no such program")
        self.assertRegex(lines[at + 2], "^ {31}-> ")

    def test_brief_is_what_is_not_ok(self):
        words = (self.command, "doctor", "--dir", self.dir, "--program", "/nothing")
        full, brief = (subprocess.run([*words, *more], env=self.env, capture_output=True, text=True) for more in ((), ("--brief",)))
        self.assertEqual(brief.returncode, full.returncode)
        fine = [line for line in full.stdout.splitlines() if line.startswith("ok ")]
        told, wanted = [[re.sub(r"[\d.]+ [KMGT]iB free", "N free", line) for line in lines]  # others write meanwhile
                        for lines in (brief.stdout.splitlines()[:-1],
                                      [line for line in full.stdout.splitlines() if line and line not in fine])]
        self.assertEqual(told, wanted)
        self.assertEqual(brief.stdout.splitlines()[-1], f"ok       {len(fine)} other things")

    def test_what_is_missing_is_told(self):
        (self.top / "file").write_text("")
        by_name = self.findings(directory=self.top / "file")
        self.assertEqual(by_name["checkpoint directory"]["verdict"], "missing")
        self.assertEqual(by_name["exchange"]["verdict"], "missing")
        self.assertEqual(self.findings("--exchange", "none:x")["exchange"]["verdict"], "missing")
        found = self.findings(before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200)))["descriptors"]
        self.assertEqual(found["verdict"], "missing")
        self.assertIn("200 of at most 200", found["detail"])
        absent = {"SHADOWIB_IBVERBS": "/nothing/libibverbs.so"}
        self.assertEqual(self.findings(env=absent)["system libibverbs"]["verdict"], "note")
        self.assertEqual(self.findings(env={**absent, "SHADOWIB_BACKEND": "verbs"})["system libibverbs"]["verdict"], "missing")
        self.assertEqual(self.findings(env={"SHADOWIB_IBVERBS": "libc.so.6"})["system libibverbs"]["verdict"], "missing")
        shutil.rmtree(self.prefix / "lib" / "shadowib")
        self.assertEqual(self.findings()["ib2tcp backend"]["verdict"], "missing")

    def test_programs(self):
        program = self.top / "program"
        shutil.copy("/bin/true", program)
        by_name = self.findings("--program", program, subject=f"program {program}")
        self.assertEqual(by_name["program"]["verdict"], "ok")
        self.assertEqual(by_name["direct verbs"]["verdict"], "ok")
        program.chmod(0o4755)
        self.assertIn("setuid", self.findings("--program", program, subject=f"program {program}")["program"]["detail"])
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        self.assertEqual(self.findings("--program", program, subject=f"program {program}")["program"]["verdict"], "note")
        two = ("--program", "/bin/true", "--program", "/nothing")
        self.assertEqual(self.findings(*two, subject="program /bin/true")["program"]["verdict"], "ok")
        self.assertEqual(self.findings(*two, subject="program /nothing")["program"]["verdict"], "refused")

    def test_stores(self):
        """The findings are of this machine; what they may be, machine_test tells."""
        place = self.top / "place"
        place.mkdir()
        for words, subject, expected in (
                (("--store", "central"), "store central", {"place"}), (("--store", "disk:single", "--near", place), "store disk:single", {"place"}),
                (("--store", "mem:rs:2"), "store mem:rs:2", {"place", "memory", "hosts"}),
                (("--store", "auto"), "store auto", {"place in memory", "memory", "place on disk", "hosts"})):
            with self.subTest(words):
                self.assertEqual(set(self.findings(*words, subject=subject)) - {"RemoveIPC"}, expected)
        self.assertEqual(list(place.iterdir()), [])
        found = self.findings("--store", "mem:single", "--near", place / "nothing", subject="store mem:single")["place"]
        self.assertEqual(found["verdict"], "refused")
        self.assertIn("No such file", found["detail"])
        self.assertEqual(self.findings("--store", "auto", "--near", place / "nothing", subject="store auto")["place"]["verdict"], "refused")
        for words, text in ((("--near", place), "--near goes with --store"), (("--store", "tape"), "is none"),
                            (("--store", "central", "--near", place), "use --store mem:")):
            done = subprocess.run([self.command, "doctor", "--dir", self.dir, *map(str, words)], env=self.env, capture_output=True, text=True)
            self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
            self.assertIn(text, done.stderr)

    def test_sets(self):
        self.assertEqual(self.findings("--set", "a.0001", subject="set a.0001")["images"]["verdict"], "refused")
        path = pathlib.Path(self.tool("set", self.dir, "a"))
        found = self.findings("--set", "a.0001", subject="set a.0001")["images"]
        self.assertEqual(found["verdict"], "refused")
        self.assertIn("member.0.image", found["detail"])
        (path / "manifest.json").write_text("{}")
        self.assertEqual(self.findings("--set", path, subject=f"set {path}")["images"]["verdict"], "refused")

    def test_a_set_with_an_image(self):
        saved = subprocess.run([SUBJECT, "threads", self.top], env=self.env, capture_output=True, timeout=60)
        self.assertEqual(saved.returncode, 10, saved.stderr)
        path = self.tool("set", self.dir, "a", self.top / "0.img")
        by_name = self.findings("--set", path, subject=f"set {path}")
        for what in ("images", "job", "processor", "vdso", "C library", "user", "files", "held files", "mapped files", "memory", "descriptors"):
            self.assertEqual(by_name[what]["verdict"], "ok", by_name[what])
        self.assertIn("pids", by_name)
        self.assertIn("images name no libshadowib.so", by_name["backend"]["detail"])
        holder = subprocess.Popen([TOOL, "hold", self.dir / "jobs/a/alive/g0.0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.assertEqual(holder.stdout.readline(), b"held\n")
        self.assertEqual(self.findings("--set", path, subject=f"set {path}")["job"]["verdict"], "refused")
        holder.communicate()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[5:])
