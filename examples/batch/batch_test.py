"""The scripts for batch systems, with a scontrol and an ssh of our own.

batch_test.py BUILD_DIR PROGRAM [unittest options]; PROGRAM: restart_scenarios.
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "shadowib" / "cr" / "tests"))
from restart_case import BUILD, PROGRAM, TIMEOUT_S, RestartCase

HERE = pathlib.Path(__file__).resolve().parent
NAMES = ("one", "two")


class Batch(RestartCase):
    def setUp(self):
        super().setUp()
        tools = self.dir / "tools"
        tools.mkdir()
        for name, text in {"scontrol": f'echo "$@" >> {self.dir}/scontrol.txt',
                           "ssh": f'echo "$3" >> {self.dir}/hosts.txt; exec sh -c "$4"'}.items():
            (tools / name).write_text(f"#!/bin/sh\n{text}\n")
            (tools / name).chmod(0o755)
        self.environment = {**os.environ, "PATH": f"{tools}:{BUILD / 'bin'}:{os.environ['PATH']}", "SHADOWIB_DIR": str(self.dir),
                            "SHADOWIB_BACKEND": "ib2tcp", "SLURM_JOB_ID": "77", "SLURM_JOB_NAME": "j"}

    def script(self, name, *words):
        log = self.dir / f"{len(self.processes)}.log"
        with open(log, "w") as out:
            process = subprocess.Popen([HERE / name, *map(str, words)], cwd=self.dir, env=self.environment, stdin=subprocess.DEVNULL,
                                       stdout=out, stderr=subprocess.STDOUT)
        process.log = log
        self.processes.append(process)
        return process

    def slurm(self):
        """Two processes, which end when they are told to."""
        parts = [f"'{PROGRAM}' asked_by_signals_{name} > {name}.txt 2>&1" for name in NAMES]
        return self.script("slurm.sh", "bash", "-c", f"{parts[0]} & {parts[1]} && wait $!")

    def run_until_warned(self):
        self.has_signals_at_once()
        job = self.slurm()
        for name in NAMES:
            self.await_file(name)
        job.send_signal(signal.SIGUSR1)
        self.ends(job, 0)
        self.assertEqual((self.dir / "scontrol.txt").read_text(), "requeue 77\n")
        self.assertEqual([path.name for path in (self.dir / "sets").iterdir()], ["j.0001"])

    def test_a_job_goes_on_where_its_time_ended(self):
        self.run_until_warned()
        job = self.slurm()
        self.await_text(job, "restored 2 processes")
        self.tell("finish")
        self.ends(job, 0)
        self.assertEqual((self.dir / "scontrol.txt").read_text(), "requeue 77\n", "it was queued again after its end")

    def test_a_job_fails_as_its_program_does(self):
        self.ends(self.script("slurm.sh", "sh", "-c", "exit 3"), 3)
        self.ends(self.script("slurm.sh"), 2)

    def test_a_job_of_any_name_runs(self):
        for name in ("two words/[1]", "-x", "n" * 200):
            self.environment["SLURM_JOB_NAME"] = name
            self.ends(self.script("slurm.sh", "sh", "-c", "exit 3"), 3)

    def test_a_job_of_several_nodes_goes_on_on_them(self):
        self.run_until_warned()
        for name, text in {"scontrol": "echo alpha; echo beta", "rsh": f'echo "$1" >> {self.dir}/hosts.txt; shift; exec sh -c "$*"'}.items():
            (self.dir / "tools" / name).write_text(f"#!/bin/sh\n{text}\n")
            (self.dir / "tools" / name).chmod(0o755)
        self.environment |= {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "x", "SLURM_TASKS_PER_NODE": "1(x2)", "SHADOWIB_RSH": "rsh"}
        job = self.slurm()
        while job.log.read_text().count("restored 1 process") < 2:
            self.assertIsNone(job.poll(), job.log.read_text())
            time.sleep(0.05)
        self.tell("finish")
        self.ends(job, 0)
        self.assertEqual(sorted((self.dir / "hosts.txt").read_text().split()), ["alpha", "beta"])

    def test_members_are_dealt_out_to_hosts(self):
        self.run_until_warned()
        job = self.script("hosts.sh", self.dir / "sets" / "j.0001", "alpha", "beta", "gamma")
        self.await_text(job, "restored 1 process")
        self.tell("finish")
        self.ends(job, 0)
        self.assertEqual(sorted((self.dir / "hosts.txt").read_text().split()), ["alpha", "beta"])
        self.ends(self.script("hosts.sh", self.dir / "sets" / "j.0009", "alpha"), 3)

    def inspected(self, store, images):
        """hosts.sh with a command that tells of such a set, and starts nothing."""
        text = json.dumps({"images": images, "path": "p", "store": store}, indent=2)
        (self.dir / "tools" / "shadowib").write_text(f"#!/bin/sh\n[ $1 = restart ] && exec echo \"$@\"\ncat <<END\n{text}\nEND\n")
        (self.dir / "tools" / "shadowib").chmod(0o755)
        return self.script("hosts.sh", self.dir, "alpha", "beta")

    def test_sets_whose_images_are_near(self):
        missing = [{"hosts": ["n0", "n1"], "member": n, "missing": "not here", "pid": 4} for n in range(3)]
        job = self.inspected("mem:mirror", missing)
        self.ends(job, 0)
        self.assertEqual(sorted(job.log.read_text().splitlines()), [f"restart {self.dir} --members {part}" for part in ("0,1", "2")])
        (self.dir / "hosts.txt").unlink()
        job = self.inspected("mem:single", missing)
        self.ends(job, 3)
        self.assertIn("(store mem:single); start on each host", job.log.read_text())
        self.assertFalse((self.dir / "hosts.txt").exists())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
