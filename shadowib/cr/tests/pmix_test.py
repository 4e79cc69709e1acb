"""A job below Open MPI's mpirun whose processes find each other by the server that the launch has: checkpoints, restarts under
another launcher and under none, and launchers that are gone.

pmix_test.py BUILD_DIR PROGRAM [unittest options]; the program is not used, two verbs_check are the job.
"""
import os
import re
import shutil
import subprocess
import sys
import time
import unittest

import restart_case
from restart_case import BUILD, SHADOWIB, TIMEOUT_S, await_listener, free_port

ITERATIONS, REST_US = 2_000, 1_000
# Its ranks share processors with whatever else runs here, and may be root's in a container.
MPIRUN = ["mpirun", "--oversubscribe", "--bind-to", "none"]
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class Pmix(restart_case.RestartCase):
    def launch(self, *words):
        log = self.dir / f"{len(self.processes)}.log"
        with open(log, "w") as out:
            process = subprocess.Popen([*MPIRUN, *map(str, words)], cwd=self.dir, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                       env={**os.environ, **AS_ROOT, "SHADOWIB_DIR": str(self.dir), "SHADOWIB_IB2TCP_TRANSPORT": "tcp"})
        process.log = log
        self.processes.append(process)
        return process

    def command(self, *words, code=0):
        done = subprocess.run([SHADOWIB, *map(str, words)], env={**os.environ, "SHADOWIB_DIR": str(self.dir)}, timeout=TIMEOUT_S,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr + "".join(p.log.read_text() for p in self.processes))
        return done.stdout + done.stderr

    def begin_job(self):
        """Two ranks that write to, send to and ask each other for all they have got, and count it."""
        port = free_port()
        check = ["run", "--job", "j", "--backend", "ib2tcp", "--exchange", "pmix:", "--", BUILD / "bin" / "verbs_check", "--port", port, "--iters",
                 ITERATIONS, "--depth", "8", "--talk", REST_US]
        waits = ["sh", "-c", 'until test -e listening; do sleep 0.02; done; exec "$@"', "sh"]
        job = self.launch("-np", "1", SHADOWIB, *check, ":", "-np", "1", *waits, SHADOWIB, *check, "127.0.0.1")
        await_listener(port, job)
        self.tell("listening")
        return job

    def await_sends(self, job):
        """Until both have sent something since they began, or began again."""
        end = time.monotonic() + TIMEOUT_S
        while True:
            done = subprocess.run([SHADOWIB, "status", "j", "--json"], env={**os.environ, "SHADOWIB_DIR": str(self.dir)}, timeout=TIMEOUT_S,
                                  stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if len(sent := re.findall(r'"sends_retired": *(\d+)', done.stdout)) == 2 and min(map(int, sent)) > 50:
                return
            self.assertIsNone(job.poll(), job.log.read_text())
            self.assertLess(time.monotonic(), end, done.stdout + done.stderr + job.log.read_text())
            time.sleep(0.02)

    def recorded(self):
        return (self.dir / "jobs" / "j" / "exchange").read_text().strip()

    def places(self):
        return list((self.dir / "jobs" / "j").glob("server-*"))

    def await_server_end(self):
        """It takes away what it has told of itself."""
        end = time.monotonic() + TIMEOUT_S
        while self.places():
            self.assertLess(time.monotonic(), end, "the exchange's server outlives its launcher")
            time.sleep(0.02)

    def test_a_job_goes_from_launcher_to_launcher_and_to_none(self):
        job = self.begin_job()
        self.await_sends(job)
        self.assertRegex(first := self.recorded(), r"^pmix://127\.0\.0\.1:\d+/shadowib\?password-file=.*/jobs/j/exchange-password$")
        (place,) = self.places()
        password = place.read_text().split()[2]
        self.assertEqual([file.stat().st_mode & 0o777 for file in (place, place.parent / "exchange-password")], [0o600, 0o600])
        self.checkpoint()
        self.checkpoint("--kill")
        self.assertNotEqual(job.wait(TIMEOUT_S), 0)
        for file in (self.dir / "sets").rglob("*.*"):
            if file.is_file():
                self.assertNotIn(password.encode(), file.read_bytes(), file)
        self.await_server_end()
        self.assertIn("does that still run?", self.command("status", "j", code=6))
        self.assertIn("no launcher that speaks PMIx has started this command", self.command("restart", self.dir / "sets" / "j.0002", code=2))

        again = self.launch("-np", "2", SHADOWIB, "restart", self.dir / "sets" / "j.0002")
        self.await_generation("g1", again)
        self.assertNotEqual(self.recorded(), first)
        self.checkpoint("--kill")
        self.assertEqual(again.wait(TIMEOUT_S), 20, again.log.read_text())
        self.await_server_end()
        self.ends(self.restart(3, "--exchange", f"dir:{self.dir}/x"), 0)

    def await_generation(self, generation, launcher):
        end = time.monotonic() + TIMEOUT_S
        while not (self.dir / "jobs" / "j" / "epoch").read_text().startswith(generation):
            self.assertIsNone(launcher.poll(), launcher.log.read_text())
            self.assertLess(time.monotonic(), end, launcher.log.read_text())
            time.sleep(0.02)
        self.await_sends(launcher)

    def test_who_has_lost_the_launcher_still_has_the_exchange(self):
        job = self.begin_job()
        self.await_sends(job)
        job.kill()
        job.wait()
        self.checkpoint("--kill")
        self.await_server_end()
        self.ends(self.restart(1, "--exchange", f"dir:{self.dir}/x"), 0)

    def test_ranks_use_one_server_as_the_contract_has_it(self):
        script = 'SHADOWIB_TEST_EXCHANGES=$(echo "${SHADOWIB_EXCHANGE%%\\?*}" | sed "s|//|//:$(cat ' + str(self.dir) + \
            '/jobs/c/exchange-password)@|") exec "$@"'
        contract = [BUILD / "bin" / "exchange_contract_test", "--gtest_filter=*/pmix3", "--gtest_color=no"]
        job = self.launch("-np", "2", SHADOWIB, "run", "--job", "c", "--exchange", "pmix:contract", "--", "sh", "-c", script, "sh", *contract)
        self.assertEqual(job.wait(TIMEOUT_S), 0, job.log.read_text())
        passed = re.findall(r"\[  PASSED  \] (\d+) tests", job.log.read_text())
        self.assertEqual(len(passed), 2, job.log.read_text())
        self.assertGreater(min(map(int, passed)), 20, job.log.read_text())

    def test_where_there_is_none(self):
        said = self.command("run", "--job", "j", "--exchange", "pmix:", "--", "true", code=125)
        self.assertIn("no launcher that speaks PMIx has started this command", said)
        said = self.command("run", "--job", "j", "--exchange", "pmix:a//b", "--", "true", code=125)
        self.assertIn("its form is pmix: or pmix:PREFIX", said)
        said = self.command("status", "j", "--exchange", "pmix:", code=3)
        self.assertIn("no job j", said)
        job = self.launch("-np", "1", SHADOWIB, "doctor", "--exchange", "pmix:")
        job.wait(TIMEOUT_S)
        self.assertIn("it is of a job, and there is none here", job.log.read_text())


if __name__ == "__main__":
    if shutil.which("mpirun") is None or b"Open MPI" not in subprocess.run(["mpirun", "--version"], capture_output=True, env={**os.environ, **AS_ROOT},
                                                                            check=False).stdout:
        print("SKIPPED: there is no mpirun of Open MPI's; ci/setup installs it")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
