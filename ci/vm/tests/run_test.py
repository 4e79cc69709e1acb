"""ci/vm/run itself: exit codes come through, a panic and a hang are failures, a log stays, errors are clear."""
import contextlib
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import types
import unittest
import unittest.mock

RUN = pathlib.Path(__file__).resolve().parents[1] / "run"
SHARED_DIRECTORY = RUN.parent / "tests" / "shared_directory.py"
SKIPPED, TIMED_OUT, DIED, USAGE = 77, 124, 125, 2


class Vm(unittest.TestCase):
    def setUp(self):
        self.top = tempfile.TemporaryDirectory(prefix="shadowib-vm-test-")
        self.addCleanup(self.top.cleanup)
        self.log = pathlib.Path(self.top.name) / "logs" / "run.log"

    def vm(self, *words, script: str = "", code: int = 0, env: dict | None = None):
        argv = [RUN, "--log", self.log, *words, *(["--", "bash", "-c", script] if script else [])]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900, check=False,
                              env={**os.environ, **(env or {})}, cwd=self.top.name)
        log = self.log.read_text() if self.log.exists() else "none"
        self.assertEqual(done.returncode, code, f"{words} {script}\n{done.stdout}{done.stderr}\nlog:\n{log}")
        return done


class Guests(Vm):
    @contextlib.contextmanager
    def when_told(self, line: str, answer: pathlib.Path):
        """While in it: makes the file `answer` as soon as the log has that line."""
        over = threading.Event()

        def watch():
            while not over.wait(0.05):
                if self.log.exists() and line in self.log.read_text():
                    answer.touch()
                    return

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()

    def test_a_command_finds_the_device_and_ends_well(self):
        shared = pathlib.Path(self.top.name) / "shared"
        shared.mkdir()
        done = self.vm("--share", shared, env={"GREETING": "a b"}, script=f"""
            set -e
            rdma link show rxe0/1 | grep -q 'state ACTIVE'
            grep -q 0000:0000:0000:0000:0000:ffff:c0a8:4d01 /sys/class/infiniband/rxe0/ports/1/gids/1
            [ -c /dev/infiniband/uverbs0 ] && [ -c /dev/infiniband/rdma_cm ]
            touch /tmp/x /run/x /dev/shm/x
            ! touch "$PWD/x" 2>/dev/null
            [ -x {RUN} ]
            echo "$GREETING, $PWD, node $SHADOWIB_VM_NODE of $SHADOWIB_VM_NODES, $SHADOWIB_VM_ADDRESS"
            echo more >&2
            echo kept >{shared}/file""")
        self.assertEqual(done.stdout, f"a b, {self.top.name}, node 0 of 1, 192.168.77.1\nmore\n")
        self.assertEqual((shared / "file").read_text(), "kept\n")
        log = self.log.read_text()
        self.assertIn("output | more\n", log)
        self.assertIn("result | exited with 0\n", log)

    def test_exit_codes_come_through(self):
        done = self.vm("--json", script="exit 3", code=3)
        told = json.loads(done.stdout)
        self.assertEqual((told["exit_code"], told["nodes"][0]["outcome"]), (3, "exited"))
        self.assertLess(told["nodes"][0]["boot_seconds"], told["nodes"][0]["seconds"])

    def test_a_signal_is_told_and_what_is_left_running_holds_nothing_up(self):
        """Nor is anything lost where the program that carries output has not come to it for long."""
        done = self.vm("--timeout", "90", code=128 + 15, script="""
            relay=$(pgrep -P 1 -x cat) && kill -STOP $relay || exit 1
            { sleep 3; kill -CONT $relay; } & sleep 1000 &
            printf unended; kill -TERM $$; sleep 5""")
        self.assertEqual(done.stdout, "unended")

    def test_a_panic_is_a_failure(self):
        """Output has its way through a program of the guest's: what is written right before a panic may not have been sent."""
        shared = pathlib.Path(self.top.name) / "shared"
        shared.mkdir()
        with self.when_told("output | before\n", shared / "heard"):
            done = self.vm("--share", shared, code=DIED, script=f"""
                echo before
                until [ -e {shared}/heard ]; do sleep 0.2; done
                echo c >/proc/sysrq-trigger; sleep 60; exit 0""")
        self.assertEqual(done.stdout, "before\n")
        self.assertIn("kernel panic: sysrq triggered crash", done.stderr)
        self.assertRegex(self.log.read_text(), r"kernel \| .*Call Trace")

    def test_a_hang_is_a_failure(self):
        done = self.vm("--timeout", "40", script="echo before; sleep 1000", code=TIMED_OUT)
        self.assertEqual(done.stdout, "before\n")
        self.assertIn("ran out of its 40 s", done.stderr)
        self.assertIn(str(self.log), done.stderr)
        self.assertIn("output | before\n", self.log.read_text())

    def test_a_guest_that_goes_without_a_word_is_a_failure(self):
        done = self.vm(script="echo b >/proc/sysrq-trigger; sleep 60", code=DIED)
        self.assertIn("ended without telling a result", done.stderr)

    def test_two_nodes_talk_share_a_directory_and_the_worse_exit_code_counts(self):
        done = self.vm("--nodes", "2", "--shared-directory", code=3, script=f"""
            python3 {SHARED_DIRECTORY} || exit 1
            # rping closes its channel while its thread reads from it: it may exit with 255 after all pings. The data counts.
            if [ $SHADOWIB_VM_NODE = 0 ]; then rping -s -C 5; exit 0; fi
            for ((i = 0; i < 240; i++)); do  # until the other listens
              pings=$(rping -c -v -a $SHADOWIB_VM_PEER -C 5 | grep -c "ping data")
              [ "$pings" = 5 ] && echo "reached $(hostname | tr 1 0)" && exit 3
              [ "$pings" = 0 ] || exit 1
              sleep 0.5
            done
            exit 1""")
        for line in ("0| shared\n", "1| shared\n", "1| reached node0\n"):
            self.assertIn(line, done.stdout)


class Errors(Vm):
    def test_a_guest_that_has_no_turn_is_not_late(self):
        """One waits for the other, which stands in the queue for a processor: 13 s, of which it runs 0.1 s."""
        loader = importlib.machinery.SourceFileLoader("vm_run", str(RUN))
        run = importlib.util.module_from_spec(importlib.util.spec_from_loader("vm_run", loader))
        loader.exec_module(run)
        now, states = [100.0], {1: (0.0, False, 0.0), 2: (0.0, True, 0.0)}
        nodes = [types.SimpleNamespace(process=types.SimpleNamespace(pid=pid)) for pid in states]
        with unittest.mock.patch.object(run.patience, "queued", lambda pid: states[pid]), \
                unittest.mock.patch.object(run.time, "monotonic", lambda: now[0]):
            clock = run.Clock(nodes)
            now[0], states[2] = 113.0, (0.0, True, 0.1)
            self.assertAlmostEqual(clock.look(), 0.1)
            now[0], states[2] = 115.0, (0.0, False, 0.1)  # both sleep
            self.assertAlmostEqual(clock.look(), 2.1)

    def test_wrong_usage(self):
        for words, told in ((["--nodes", "3", "--", "true"], "invalid choice: 3"),
                            (["--timeout", "-1", "--", "true"], "-1 is not between 0 and 86400 seconds"),
                            (["--memory", "5", "--", "true"], "256 at least"),
                            (["--share", "/nowhere", "--", "true"], "/nowhere is no directory"),
                            (["--times", "2", "--", "true"], "--times"),
                            (["--shared-directory", "--", "true"], "add --nodes 2"),
                            ([], "no command; for example")):
            with self.subTest(words=words):
                self.assertIn(told, self.vm(*words, code=USAGE).stderr)

    def test_help_teaches(self):
        told = self.vm("--help").stdout
        for word in ("--nodes", "SHADOWIB_VM_PEER", "  124  ", "  125  ", "   77  ", "Examples:"):
            self.assertIn(word, told)

    def test_no_kernel_is_a_loud_skip(self):
        done = self.vm("--kernel", "linux-image-0.0-none", "--", "true", code=SKIPPED, env={"XDG_CACHE_HOME": self.top.name})
        self.assertRegex(done.stdout, r"^SKIPPED: cannot download linux-image-0.0-none: .")


if __name__ == "__main__":
    sys.path.insert(0, str(RUN.parent))
    import kernel
    try:
        kernel.tool("qemu-system-x86_64", "qemu-system-x86")
        kernel.obtain()
    except kernel.Unavailable as error:
        print(f"SKIPPED: {error}")
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
