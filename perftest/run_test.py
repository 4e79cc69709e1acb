#!/usr/bin/env python3
"""perftest/run against a fi_pingpong made up for it, whose server ends at once now and then."""
import contextlib
import importlib.machinery
import importlib.util
import io
import os
import stat
import subprocess
import sys
import tempfile
import types
import unittest

HERE = os.path.dirname(os.path.realpath(__file__))
FAKE = """#!/usr/bin/env python3
import os, socket, sys, time
port = int(sys.argv[sys.argv.index("-B" if "-B" in sys.argv else "-P") + 1])
if "-P" in sys.argv:
    print("bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec\\n64 20k =20k 2.4m 0.01s 263.59 0.25 4.12")
    sys.exit(0)
with open(os.path.join(os.path.dirname(sys.argv[0]), "left")) as file:
    left = int(file.read())
if left > 0:
    with open(os.path.join(os.path.dirname(sys.argv[0]), "left"), "w") as file:
        file.write(str(left - 1))
    sys.exit("no endpoint")
listener = socket.create_server(("", port))
time.sleep(60)
"""


def load():
    loader = importlib.machinery.SourceFileLoader("perftest_run", os.path.join(HERE, "run"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("perftest_run", loader))
    loader.exec_module(module)
    return module


class ServerEndsAtOnce(unittest.TestCase):
    def ask(self, times):
        run, errors, before = load(), io.StringIO(), os.environ["PATH"]
        core = min(os.sched_getaffinity(0))
        bench = run.Bench(types.SimpleNamespace(build="/", quick=True, cores=(core, core), realtime=False))
        with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stderr(errors):
            with open(os.path.join(directory, "left"), "w", encoding="utf-8") as file:
                file.write(str(times))
            path = os.path.join(directory, "fi_pingpong")
            with open(path, "w", encoding="utf-8") as file:
                file.write(FAKE)
            os.chmod(path, stat.S_IRWXU)
            os.environ["PATH"] = directory + ":" + before
            try:
                return bench.fi_pingpong("shm", "rdm", 64, 100), errors.getvalue()
            finally:
                os.environ["PATH"] = before
                os.rmdir(bench.directory)

    def test_another_port_is_tried_and_it_is_said(self):
        figure, errors = self.ask(2)
        self.assertEqual(figure, 0.25)
        self.assertEqual(errors.count("ended at once (exit code 1), another port is tried. It said: no endpoint"), 2)

    def test_a_server_that_is_there_is_asked_once(self):
        self.assertEqual(self.ask(0), (0.25, ""))

    def test_five_ports_are_enough(self):
        with self.assertRaisesRegex(SystemExit, "on five ports"):
            self.ask(5)


class RealTimeIsNotAllowed(unittest.TestCase):
    def test_is_said_before_anything_is_measured(self):
        drop = ["setpriv", "--bounding-set", "-sys_nice"] if os.geteuid() == 0 else []
        command = [*drop, sys.executable, os.path.join(HERE, "run"), "--realtime", "--build", "/nowhere"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 2)
        self.assertIn("--realtime: SCHED_FIFO is not allowed here", result.stderr)


if __name__ == "__main__":
    unittest.main()
