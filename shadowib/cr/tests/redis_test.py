"""A job whose processes find each other by a Redis server: checkpoints, restarts, and a server that is not there.

redis_test.py BUILD_DIR PROGRAM [unittest options]; the program is restart_scenarios, two verbs_check are the job that is restarted.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

import restart_case
from restart_case import BUILD, SHADOWIB, TIMEOUT_S, await_listener, free_port

ITERATIONS, REST_US = 2_000, 1_000
PASSWORD = "correct-horse-battery"


class Redis(restart_case.RestartCase):
    def setUp(self):
        super().setUp()
        self.servers = []
        self.addCleanup(lambda: [self.end_server(server) for server in list(self.servers)])

    def begin_server(self, *options, port=None, tls=False):
        """On a port of its own, unless one is given; holds nothing that another held before it. With tls it hears nothing else."""
        while True:
            at = port or free_port()
            ports = ["--tls-port", str(at), "--port", "0"] if tls else ["--port", str(at)]
            server = subprocess.Popen(["redis-server", "--bind", "127.0.0.1", *ports, "--dir", str(self.dir), "--save", "", *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if any("Ready to accept connections" in line for line in server.stdout):
                break
            self.assertIsNone(port, f"port {port} has been taken")
            server.wait()
            server.stdout.close()
        server.port = at
        self.servers.append(server)
        return server

    def end_server(self, server):
        self.servers.remove(server)
        server.kill()
        server.wait()
        server.stdout.close()

    def keys(self, server, *words):
        said = subprocess.run(["redis-cli", "-p", str(server.port), *words, "--raw", "keys", "*"], capture_output=True, text=True, check=True,
                              env={**os.environ, "REDISCLI_AUTH": PASSWORD})
        return sorted(said.stdout.split())

    def command(self, *words, code=0, **environment):
        done = subprocess.run([SHADOWIB, *map(str, words)], env={**os.environ, "SHADOWIB_DIR": str(self.dir), **environment},
                              timeout=TIMEOUT_S, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def begin_job(self, uri, **environment):
        """Two processes that write to, send to and ask each other for all they have got, and count it."""
        port = free_port()
        words = ["run", "--job", "j", "--backend", "ib2tcp", "--exchange", uri, "--", BUILD / "bin" / "verbs_check", "--port", port,
                 "--iters", ITERATIONS, "--depth", "8", "--talk", REST_US]
        server = self.start(*words, **environment)
        await_listener(port, server)
        self.await_members(1)
        client = self.start(*words, "127.0.0.1", **environment)
        self.await_members(2)
        return server, client

    def await_sends(self):
        while True:
            said = self.command("status", "j", "--json")
            if len(sent := re.findall(r'"sends_retired": *(\d+)', said)) == 2 and min(map(int, sent)) > 50:
                return
            self.assertTrue(all(program.poll() is None for program in self.processes), said)

    def environments(self, processes):
        return [pathlib.Path(f"/proc/{process.pid}/environ").read_text() for process in processes]

    def test_a_job_is_restarted_by_another_server(self):
        first = self.begin_server("--requirepass", PASSWORD)
        # 127.1 is a name to us, and to the resolver a number.
        programs = self.begin_job(f"redis://127.1:{first.port}/2/jobs", SHADOWIB_REDIS_PASSWORD=PASSWORD)
        self.await_sends()
        for text in self.environments(programs):
            self.assertIn(f"SHADOWIB_EXCHANGE=redis://127.0.0.1:{first.port}/2/jobs?password-file={self.dir}/jobs/j/exchange-password", text)
            self.assertNotIn(PASSWORD, text)
        self.assertEqual((self.dir / "jobs" / "j" / "exchange-password").stat().st_mode & 0o777, 0o600)
        self.checkpoint()
        self.checkpoint("--kill")
        for program in programs:
            self.ends(program, -9)
        for file in [*(self.dir / "sets").rglob("*.*"), self.dir / "jobs" / "j" / "exchange"]:
            if file.is_file():
                self.assertNotIn(PASSWORD.encode(), file.read_bytes(), file)
        self.assertNotEqual(self.keys(first, "-n", "2"), ["jobs:x"], "the test does not look where the job was")

        self.end_server(first)
        second = self.begin_server()
        again = self.restart(2, "--exchange", f"redis://localhost:{second.port}/other")
        self.await_members_of("g1")
        self.checkpoint("--kill")
        self.assertEqual(again.wait(TIMEOUT_S), 20, again.log.read_text())  # its processes were killed
        self.ends(self.restart(3), 0)
        self.command("gc", "--keep", "1")
        self.assertEqual(self.keys(second), ["other:x"], "nothing of the job is left")

    def make_certificates(self):
        """Of an authority, a client, and a server that is known by the name 127.1: the query of a URI, the options of a server."""
        def openssl(*words):
            subprocess.run(["openssl", *words], cwd=self.dir, check=True, capture_output=True)
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        openssl("req", "-x509", *key, "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem")
        for name in ("server", "client"):
            openssl("req", "-x509", "-CA", "ca.pem", "-CAkey", "ca.key", *key, "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:127.1",
                    "-addext", "basicConstraints=CA:FALSE", "-keyout", f"{name}.key", "-out", f"{name}.pem")
        options = [word for option, file in (("cert", "server.pem"), ("key", "server.key"), ("ca-cert", "ca.pem"))
                   for word in (f"--tls-{option}-file", str(self.dir / file))]
        return f"?ca={self.dir}/ca.pem&cert={self.dir}/client.pem&key={self.dir}/client.key", options

    @unittest.skipUnless(shutil.which("openssl"), "there is no openssl; ci/setup installs it")
    def test_tls_is_honoured_over_restarts(self):
        """Members know the server's address only, and it by the name that the command was given. Each restart has new sessions."""
        query, options = self.make_certificates()
        server = self.begin_server(*options, "--requirepass", PASSWORD, tls=True)
        place = f"rediss://127.1:{server.port}/2/jobs"
        said = self.command("run", "--job", "refused", "--exchange", place + query.partition("&")[0], "--", "true", code=125)
        self.assertIn("it wants a certificate of ours", said)
        programs = self.begin_job(place + query, SHADOWIB_REDIS_PASSWORD=PASSWORD)
        self.await_sends()
        for text in self.environments(programs):
            self.assertRegex(text, rf"SHADOWIB_EXCHANGE=rediss://127\.0\.0\.1:{server.port}/2/jobs\?\S*&server-name=127\.1")
        self.checkpoint()
        self.checkpoint("--kill")
        for program in programs:
            self.ends(program, -9)
        again = self.restart(2)
        self.await_members_of("g1")
        self.checkpoint()
        self.checkpoint("--kill")
        self.assertEqual(again.wait(TIMEOUT_S), 20, again.log.read_text())
        self.ends(self.restart(4), 0)

    @unittest.skipUnless(shutil.which("openssl"), "there is no openssl; ci/setup installs it")
    def test_a_member_that_cannot_read_its_tls_files(self):
        """The restart can, for its working directory has the file. The sessions of the image are not there to say so by."""
        query, options = self.make_certificates()
        server = self.begin_server(*options, tls=True)
        place = f"rediss://127.1:{server.port}/0/jobs"
        program = self.run_program("lasting", SHADOWIB_EXCHANGE=place + query)
        self.await_file("ready")
        self.checkpoint("--kill")
        self.ends(program, -9)
        elsewhere = self.dir / "elsewhere"
        elsewhere.mkdir()
        shutil.copy(self.dir / "ca.pem", elsewhere / "passing.pem")
        again = self.restart(1, "--exchange", place + query.replace(f"{self.dir}/ca.pem", "/proc/self/cwd/passing.pem"), place=elsewhere)
        self.ends(again, 9)
        self.assertIn("cannot be read from /proc/self/cwd/passing.pem", again.log.read_text())

    def await_members_of(self, generation):
        epoch = self.dir / "jobs" / "j" / "epoch"  # written after where the exchange is
        while not epoch.read_text().startswith(generation) or len(json.loads(self.command("status", "j", "--json"))["members"]) < 2:
            self.assertIsNone(self.processes[-1].poll(), self.processes[-1].log.read_text())

    def test_a_server_that_goes_away_while_the_job_runs(self):
        server = self.begin_server()
        program = self.run_program("lasting", SHADOWIB_EXCHANGE=f"redis://localhost:{server.port}")
        self.await_file("ready")
        self.checkpoint()
        self.end_server(server)
        said = self.command("checkpoint", "j", code=6)
        self.assertRegex(said, r"redis://localhost:\d+/0/shadowib: cannot connect: Connection refused")
        self.begin_server(port=server.port)
        said = self.command("checkpoint", "j", code=3)
        self.assertIn("has the job been started?", said)
        self.assertIsNone(program.poll(), program.log.read_text())
        self.tell("enough")
        self.ends(program, 0)

    def test_who_is_not_let_in(self):
        server = self.begin_server("--requirepass", PASSWORD)
        uri = f"redis://localhost:{server.port}"
        for environment in ({}, {"SHADOWIB_REDIS_PASSWORD": "wrong-word"}):
            said = self.command("run", "--job", "refused", "--exchange", uri, "--", "true", code=125, **environment)
            self.assertIn("give its password by SHADOWIB_REDIS_PASSWORD", said)
            self.assertNotIn("wrong-word", said)
        said = self.command("run", "--job", "refused", "--exchange", "redis://no-such-host.invalid", "--", "true", code=125)
        self.assertIn("'no-such-host.invalid' is unknown here", said)

    def test_doctor_tells_of_it(self):
        server = self.begin_server("--requirepass", PASSWORD)
        words = ["doctor", "--json", "--exchange", f"redis://:{PASSWORD}@localhost:{server.port}"]
        done = subprocess.run([SHADOWIB, *words], capture_output=True, text=True, check=False, env={**os.environ, "SHADOWIB_DIR": str(self.dir)})
        self.assertNotIn(PASSWORD, done.stdout + done.stderr)
        finding = next(f for f in json.loads(done.stdout)["findings"] if f["what"] == "exchange")
        self.assertEqual((finding["verdict"], finding["detail"]), ("ok", f"redis://localhost:{server.port}/0/shadowib can be reached and used"))
        self.assertEqual(self.keys(server), ["shadowib:s:", "shadowib:x"])
        done = subprocess.run([SHADOWIB, *words[:-1], f"redis://localhost:{server.port}"], capture_output=True, text=True, check=False,
                              env={**os.environ, "SHADOWIB_DIR": str(self.dir)})
        finding = next(f for f in json.loads(done.stdout)["findings"] if f["what"] == "exchange")
        self.assertEqual(finding["verdict"], "missing")


if __name__ == "__main__":
    if shutil.which("redis-server") is None:
        print("SKIPPED: there is no redis-server; ci/setup installs it")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
