"""Commands on a job that lives: words about its end and refusals, its history, report and metrics, status --watch, inspect.

operate_test.py BUILD_DIR [unittest options]: two of rdma-core's ibv_rc_pingpong are the job.
"""
import contextlib
import fcntl
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

BUILD = pathlib.Path(sys.argv[1]).resolve()
SHADOWIB = BUILD / "bin" / "shadowib"
TIMEOUT_S = 60


# A member of a portable job whose image takes its time.
SLOW = r"""
import os, time
place, member = os.environ["SHADOWIB_PORTABLE_JOB"], os.environ["SHADOWIB_PORTABLE_MEMBER"]
def request():
    with open(place + "/request", "rb") as file: return file.read()
open("ready", "w").close()
while not any(request()[:8]): time.sleep(0.02)
asked = request()
image = asked[16:].decode().splitlines()[0] + f"/member-{member}.psi"
answer = f"{place}/answer-{asked[:8].hex()}.{member}"
with open(image + ".new", "wb", buffering=0) as file:
    for _ in range(160):
        file.write(bytes(1000))
        time.sleep(0.05)
os.rename(image + ".new", image)
with open(answer + ".new", "w") as file: file.write("saved\nstep 0\n")
os.rename(answer + ".new", answer)
time.sleep(1000)
"""


def free_port():
    with socket.socket() as s:
        s.bind(("", 0))
        return s.getsockname()[1]


class Operate(unittest.TestCase):
    def setUp(self):
        self.top = pathlib.Path(tempfile.mkdtemp(prefix="shadowib-operate-"))
        self.dir = self.top / "ckpt"
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("SHADOWIB_")}
        self.processes = []

    def tearDown(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        shutil.rmtree(self.top, ignore_errors=True)

    def command(self, *words, code=0):
        done = subprocess.run([SHADOWIB, *map(str, words), "--dir", self.dir], env=self.env, cwd=self.top, text=True,
                              capture_output=True, timeout=TIMEOUT_S)
        self.assertEqual(done.returncode, code, f"{words}\n{done.stdout}{done.stderr}")
        return done

    def start(self, *words, name, **options):
        log = self.top / name
        with open(log, "w") as out:
            process = subprocess.Popen([SHADOWIB, *map(str, words)], env=self.env, cwd=self.top, stdin=subprocess.DEVNULL, stdout=out,
                                       stderr=subprocess.STDOUT, **options)
        process.log = log
        self.processes.append(process)
        return process

    def test_a_portable_image_that_takes_longer_than_the_timeout(self):
        """The time-out is for coming to a site: nobody is given up who writes."""
        (self.top / "slow").write_text(SLOW)
        member = self.start("run", "--dir", self.dir, "--portable", "--job", "demo", "--", sys.executable, "slow", name="member")
        while not (self.top / "ready").exists():
            self.assertIsNone(member.poll(), member.log.read_text())
            time.sleep(0.02)
        self.command("checkpoint", "demo", "--timeout", "3")
        self.assertEqual((self.dir / "sets/demo.0001/member-0.psi").stat().st_size, 160000)

    def start_job(self, options=(), **settings):
        """Both ends, once they are connected."""
        port = free_port()
        words = ("run", "--dir", self.dir, "--job", "demo", "--backend", "ib2tcp", *options, "--", "ibv_rc_pingpong", "-p", port, "-n", "500000000")
        server = self.start(*words, name="server", **settings)
        while server.poll() is None and not any(f":{port:04X} " in line and " 0A " in line
                                                for line in pathlib.Path("/proc/net/tcp6").read_text().splitlines()
                                                + pathlib.Path("/proc/net/tcp").read_text().splitlines()):
            time.sleep(0.01)
        client = self.start(*words, "localhost", name="client", **settings)
        self.await_members(server, client)
        return server, client

    def await_members(self, *processes):
        while True:
            status = json.loads(self.command("status", "demo", "--json").stdout)
            pairs = [qp for m in status["members"] if m["state"] for qp in m["state"]["objects"]["queue_pairs"]]
            if len(pairs) == 2 and all(qp["state"] == "RTS" and qp["sends_posted"] > 0 for qp in pairs):
                return status
            for process in processes:
                self.assertIsNone(process.poll(), process.log.read_text())

    def restart(self):
        restarted = self.start("restart", "demo", "--backend", "ib2tcp", "--dir", self.dir, name=f"restart{len(self.processes)}")
        while "restored" not in restarted.log.read_text():
            self.assertIsNone(restarted.poll(), restarted.log.read_text())
            time.sleep(0.01)
        self.await_members(restarted)
        return restarted

    def set_path(self, number):
        return str(self.dir / "sets" / f"demo.{number:04d}")

    def test_a_refusal_is_told_once(self):
        self.env["SHADOWIB_FAULT"] = "60:fail"  # both members have a reason
        server, client = self.start_job()
        del self.env["SHADOWIB_FAULT"]
        done = self.command("checkpoint", "demo", code=6)
        told = [line for p in (server, client) for line in p.log.read_text().splitlines() if line.startswith("shadowib")]
        self.assertEqual(len(told), 1, told)
        self.assertRegex(told[0], r"checkpoint \d+: not taken: ")
        self.assertIn(told[0].partition("not taken: ")[2], done.stderr)
        for p in (server, client):
            self.assertIsNone(p.poll())

    def test_an_end_on_request_does_not_look_like_a_crash(self):
        server, client = self.start_job()
        self.command("checkpoint", "demo", "--kill")
        self.assertEqual([server.wait(TIMEOUT_S), client.wait(TIMEOUT_S)], [-9, -9])
        told = [line for p in (server, client) for line in p.log.read_text().splitlines() if line.startswith("shadowib")]
        self.assertEqual(len(told), 1, told)
        self.assertIn(f"job demo is saved and ends on request: shadowib restart {self.set_path(1)}", told[0])
        restarted = self.restart()
        self.command("checkpoint", "demo", "--kill")
        self.assertEqual(restarted.wait(TIMEOUT_S), 20)
        said = restarted.log.read_text()
        self.assertEqual(len(re.findall(r"(?m)^pid \d+: ended on request$", said)), 2, said)
        self.assertIn(f"job demo was saved as {self.set_path(2)} and ended on request", said)
        self.assertNotIn("SIGKILL", said)
        # A member that is killed by somebody else is a crash.
        restarted = self.restart()
        members = json.loads(self.command("status", "demo", "--json").stdout)["members"]
        self.kill_descendants(restarted.pid, members[0]["comm"], 9)
        self.assertEqual(restarted.wait(TIMEOUT_S), 20)
        self.assertIn("killed by signal 9 (SIGKILL)", restarted.log.read_text())

    def test_a_bad_job_name_is_refused_by_who_would_join(self):
        """Without the command `run`, which has the same rule."""
        library = BUILD / "lib" / "libshadowib.so"
        for name in ("a b", "../x", "-a", "x" * 65):
            done = subprocess.run(["ibv_devinfo"], capture_output=True, text=True, timeout=TIMEOUT_S,
                                  env={**self.env, "LD_PRELOAD": str(library), "LD_LIBRARY_PATH": str(BUILD / "lib" / "dropin"),
                                       "SHADOWIB_JOB": name, "SHADOWIB_DIR": str(self.dir)})
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(f"SHADOWIB_JOB='{name}' is no job name", done.stderr)
            self.assertFalse(self.dir.exists())

    def test_a_job_is_watched(self):
        server, client = self.start_job()
        self.command("checkpoint", "demo")
        looks = subprocess.Popen([SHADOWIB, "status", "demo", "--dir", self.dir, "--watch", "--every", "0.1", "--json"], env=self.env,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.processes.append(looks)
        first, second = (json.loads(looks.stdout.readline()) for _ in range(2))
        self.assertEqual([m["sends_per_s"] for m in first["members"]], [None, None])
        self.assertTrue(all(m["sends_per_s"] > 0 and m["receives_per_s"] > 0 and m["queue_pairs"] == 1 for m in second["members"]), second)
        self.assertEqual((second["set"]["name"], second["alive"], second["checkpoint"]), ("demo.0001", True, False))
        self.assertEqual(second["set"]["bytes"], sum(p.stat().st_size for p in (self.dir / "sets/demo.0001").glob("*.img")))
        self.assertGreater(second["set"]["stopped_ms"], 0)
        # A screen of 12 rows and 70 columns.
        master, slave = os.openpty()
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("4H", 12, 70, 0, 0))
        screen = subprocess.Popen([SHADOWIB, "status", "--dir", self.dir, "--watch", "--every", "0.1"], env=self.env, stdout=slave)
        self.processes.append(screen)
        os.close(slave)
        shown = b""
        while shown.count(b"\033[H") < 3:
            shown += os.read(master, 65536)
        screen.send_signal(2)
        try:
            while True:
                shown += os.read(master, 65536)
        except OSError:  # its end
            os.close(master)
        self.assertEqual(screen.wait(TIMEOUT_S), 0)
        self.assertTrue(shown.startswith(b"\033[?1049h"), "the other screen")
        self.assertTrue(shown.endswith(b"\033[?1049l"), "and back")
        last = shown.split(b"\033[H")[2].decode().replace("\033[K", "").replace("\033[J", "").splitlines()
        self.assertLessEqual(len(last), 12, last)
        self.assertLessEqual(max(map(len, last)), 70)
        self.assertRegex(last[0], "^job         demo, epoch g0-[0-9a-f]+, alive")
        self.assertRegex(last[2], r"^newest set  demo\.0001, [0-9.]+ s old, [0-9.]+ MiB, the program stood for ")
        self.assertRegex(last[3], r"^members     2, [0-9.]+ .*sends/s")
        self.assertRegex(last[6], f"^ *0 .*{server.pid if server.pid < client.pid else client.pid}")
        # It ends with the job.
        self.command("checkpoint", "demo", "--kill")
        self.assertEqual(looks.wait(TIMEOUT_S), 0)
        self.assertIn("job demo has ended", looks.stderr.read())
        looks.stdout.close()
        looks.stderr.close()

    def test_inspect_sums_up(self):
        self.start_job()
        self.command("checkpoint", "demo", "--kill")
        text = self.command("inspect", "demo").stdout
        self.assertLess(len(text.splitlines()), 40, text)
        self.assertEqual(len(re.findall(r"(?m)^RDMA         1 context, 1 protection domain, 1 memory region \([0-9.]+ KiB\), "
                                        r"1 completion queue, 1 queue pair \(1 connected\)$", text)), 2, text)
        self.assertRegex(text, r"(?m)^memory       heap       [0-9.]+ KiB in 1 mapping, [0-9.]+ KiB of it saved$")
        self.assertRegex(text, r"(?m)^threads      \d+: .*shadowib-agent")
        self.assertRegex(text, r"(?m)^descriptors  \d+: .*file")
        image = next((self.dir / "sets/demo.0001").glob("*.img"))
        self.assertIn("1 queue pair (1 connected)", self.command("inspect", image).stdout)
        maps = self.command("inspect", image, "--maps").stdout
        self.assertRegex(maps, r"(?m)^[0-9a-f]{12} .* r-xp .*libc")
        alone = shutil.copy(image, self.top / "alone.img")
        self.assertIn("RDMA         not known", self.command("inspect", alone).stdout)
        full = json.loads(self.command("inspect", image, "--json").stdout)
        self.assertEqual((full["objects"]["queue_pairs"], full["memory"]["heap"]["mappings"]), (1, 1))
        self.assertEqual(sum(kind["mappings"] for kind in full["memory"].values()), len(full["mappings"]))

    def events(self):
        return json.loads(self.command("history", "demo", "--json").stdout)["events"]

    def test_the_history_has_it_all(self):
        server, client = self.start_job()
        metrics = self.top / "demo.prom"
        self.command("checkpoint", "demo", "--metrics", metrics)
        self.command("checkpoint", "demo", "--timeout", "0.001", code=7)
        self.command("checkpoint", "demo", "--kill", "--metrics", metrics)
        for p in (server, client):
            p.wait(TIMEOUT_S)
        restarted = self.restart()
        self.kill_descendants(restarted.pid, "ibv_rc_pingpong", 15)
        self.assertEqual(restarted.wait(TIMEOUT_S), 20)
        events = self.events()
        self.assertEqual([e["event"] for e in events], ["started", "started", "checkpoint", "checkpoint_failed", "checkpoint", "restart",
                                                        "failure", "failure", "ended"])
        first, second = events[2], events[4]
        self.assertEqual((first["set"], first["members"], first["kill"], second["kill"]), ("demo.0001", 2, False, True))
        self.assertEqual(first["bytes"], sum(p.stat().st_size for p in (self.dir / "sets/demo.0001").glob("*.img")))
        for phase in ("join", "hooks", "stop", "settle", "quiesce", "inspect", "save", "commit"):
            self.assertGreater(first[phase + "_ms"], 0)
        self.assertLess(first["save_ms"], first["stopped_ms"])
        self.assertLess(first["stopped_ms"], first["took_ms"])
        self.assertEqual(events[3]["code"], 7)
        self.assertEqual((events[5]["set"], events[5]["generation"], events[5]["backend"]), ("demo.0002", 1, "ib2tcp"))
        self.assertEqual((events[6]["how"], events[8]["exit_code"]), ("killed by signal 15 (SIGTERM)", 20))
        self.assertLess(events[6]["lost_s"], TIMEOUT_S)
        self.assertNotIn("lost_s", events[7], "it is the same time")
        text = metrics.read_text()
        self.assertIn('shadowib_checkpoints_total{job="demo",result="committed"} 2\n', text)
        self.assertIn('shadowib_checkpoints_total{job="demo",result="failed"} 1\n', text)
        families = set()
        for line in text.splitlines():
            self.assertRegex(line, r'^(# HELP (\w+) .*\.|# TYPE (\w+) (counter|gauge|summary)|(\w+)\{job="demo"(,\w+="\w+")?\} [0-9.e+-]+)$')
            families.add(line.split()[2] if line[0] == "#" else re.sub("(_sum|_count)?{.*", "", line))
        self.assertTrue(all(name.startswith("shadowib_") for name in families))
        # gc packs it and leaves it.
        self.command("gc", "--keep", "0")
        self.assertFalse((self.dir / "jobs" / "demo").exists())
        self.assertEqual(self.events(), events)
        self.assertEqual(len(list((self.dir / "history/demo").glob("*.jsonl"))), 1)
        # Only the program's name: arguments may hold passwords, and the page is for others, too.
        self.assertEqual(events[0]["command"], "ibv_rc_pingpong")
        file = pathlib.Path(self.command("report", "demo").stdout.strip())
        page = file.read_text()
        self.assertIn("demo.0002: 2 members", page)
        self.assertNotIn("500000000", page)
        mask = os.umask(0)
        os.umask(mask)
        self.assertEqual(stat.S_IMODE(file.stat().st_mode), 0o666 & ~mask)
        file.chmod(0o640)
        self.command("report", "demo")
        self.assertEqual(stat.S_IMODE(file.stat().st_mode), 0o640)

    def test_a_checkpoint_of_its_own_writes_them_too(self):
        server, client = self.start_job(options=("--interval", "0.2", "--metrics", "own.prom"))
        while not (self.top / "own.prom").exists() or 'result="committed"} 0' in (self.top / "own.prom").read_text():
            self.assertIsNone(server.poll(), server.log.read_text())
            time.sleep(0.01)
        self.assertIn("checkpoint", [e["event"] for e in self.events()])

    def test_an_interval_is_chosen_by_the_pauses(self):
        self.env["SHADOWIB_LOG"] = f"info:{self.top}/log"
        mtbf = 2.0
        server, client = self.start_job(options=("--interval", "auto", "--mtbf", mtbf, "--keep", 2))
        said = []
        while len(said) < 6:  # of both members
            for process in (server, client):
                self.assertIsNone(process.poll(), process.log.read_text())
            said = re.findall(r"checkpoints stop the program for ([\d.]+) s: the next one is in ([\d.]+) s", (self.top / "log").read_text())
            time.sleep(0.01)
        for pause, interval in said:
            young = (2 * float(pause) * mtbf) ** 0.5 if float(pause) < mtbf / 2 else mtbf
            self.assertAlmostEqual(float(interval), young, delta=0.1 * young)

    def test_no_checkpoint_fails_for_its_history(self):
        self.start_job()
        shutil.rmtree(self.dir / "history")
        (self.dir / "history").write_text("in the way")
        done = self.command("checkpoint", "demo", "--metrics", "/nowhere/file")
        self.assertIn("the history of job demo lacks this: cannot ", done.stderr)
        self.assertIn("shadowib: --metrics: cannot ", done.stderr)
        self.assertTrue(pathlib.Path(done.stdout.splitlines()[-1]).is_dir())
        (self.dir / "history").unlink()
        (self.dir / "history/demo").mkdir(parents=True)
        full = subprocess.run(["unshare", *([] if os.geteuid() == 0 else ["--map-root-user"]), "--mount", "sh", "-c",
                               'mount -t tmpfs -o size=4k none "$0/history/demo" && { head -c 9000 /dev/zero >"$0/history/demo/fill"; '
                               'exec "$1" checkpoint demo --dir "$0"; }', str(self.dir), str(SHADOWIB)],
                              env=self.env, capture_output=True, text=True, timeout=TIMEOUT_S)
        self.assertEqual(full.returncode, 0, full.stderr)
        self.assertIn("No space left on device", full.stderr)
        self.assertTrue(pathlib.Path(full.stdout.splitlines()[-1]).is_dir())

    def kill_descendants(self, pid, comm, number):
        """Both members, by this signal. They are held first: one that sees the other end would end by itself."""
        members = []
        for child in self.descendants(pid):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # helpers of the command may end meanwhile
                if pathlib.Path(f"/proc/{child}/comm").read_text().strip() == comm:
                    members.append(child)
        self.assertEqual(len(members), 2)
        for sent in (signal.SIGSTOP, number):
            for member in members:
                os.kill(member, sent)
        for member in members:
            with contextlib.suppress(ProcessLookupError):  # SIGKILL did not wait for it
                os.kill(member, signal.SIGCONT)

    def descendants(self, pid):
        try:
            children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            return
        for child in children:
            yield from self.descendants(child)
            yield int(child)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
