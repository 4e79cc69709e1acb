"""Which network ib2tcp uses: hosts with IPv6 alone, an address that is dead, a network that is named, and another after a restart.

networks_test.py BUILD_DIR PROGRAM [unittest options]. Hosts are network namespaces with two cables between them; needs root and ip(8).
The job is the two programs that send and receive until a file says that it is enough.
"""
import json
import os
import shutil
import subprocess
import sys
import time
import unittest

import restart_case
from restart_case import SHADOWIB, TIMEOUT_S


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Networks(restart_case.RestartCase):
    def setUp(self):
        super().setUp()
        self.hosts = {host: f"shadowib-net-{os.getpid()}-{host}" for host in "ab"}
        for name in self.hosts.values():
            ip("netns", "add", name)
            self.addCleanup(subprocess.run, ["ip", "netns", "del", name], capture_output=True, check=False)
            ip("-n", name, "link", "set", "lo", "up")
        for cable in ("fast", "slow"):
            ip("link", "add", cable, "netns", self.hosts["a"], "type", "veth", "peer", "name", cable, "netns", self.hosts["b"])
            for name in self.hosts.values():
                ip("-n", name, "link", "set", cable, "up")

    def tearDown(self):
        super().tearDown()
        self.doCleanups()

    def give(self, host, device, address):
        ip("-n", self.hosts[host], "addr", "add", address, "dev", device, *(["nodad"] if ":" in address else []))

    def number_both(self, first=1):
        for cable, network in (("slow", 1), ("fast", 2)):
            for host, number in (("a", 1), ("b", 2)):
                self.give(host, cable, f"10.77.{network}.{number * first}/24")

    def at(self, host):
        return ("ip", "netns", "exec", self.hosts[host])

    def run_pair(self, *words):
        """At a the sender, at b the receiver."""
        command = ["run", "--job", "j", "--backend", "ib2tcp", *words, "--", restart_case.PROGRAM]
        return [self.start(*command, program, by=self.at(host), transport="auto")
                for program, host in (("impatient_sender", "a"), ("slow_receiver", "b"))]

    def finish(self, processes):
        self.tell("enough")
        for process in processes:
            self.ends(process, 0)

    def status(self):
        """The members that answer; none while the job starts."""
        done = subprocess.run([SHADOWIB, "status", "j", "--json"], env={**os.environ, "SHADOWIB_DIR": str(self.dir)}, timeout=TIMEOUT_S,
                              capture_output=True, text=True, check=False)
        return [m for m in json.loads(done.stdout)["members"] if m["answered"]] if done.returncode == 0 else []

    def figures(self):
        found = [(m["state"] or {}).get("objects", {}).get("backend_figures", {}) for m in self.status()]
        return [figures for figures in found if "listens" in figures]

    def await_traffic(self, processes):
        """Until both have sent what they had not before."""
        def sent():
            return sorted(f["frames_sent"] for f in self.figures() if f["links_up"] == 1)
        end = time.monotonic() + TIMEOUT_S
        before = []
        while len(before) < 2 or not all(now > then for now, then in zip(sent(), before)):
            for process in processes:
                self.assertIsNone(process.poll(), "".join(p.log.read_text(errors="replace") for p in self.processes))
            self.assertLess(time.monotonic(), end, "".join(p.log.read_text(errors="replace") for p in self.processes))
            before = before if len(before) == 2 else sent()
            time.sleep(0.05)

    def connections(self, host):
        """Both ends' addresses of every established connection there."""
        rows = subprocess.run([*self.at(host), "ss", "-Htn", "state", "established"], capture_output=True, text=True, check=True).stdout
        return [tuple(end.rpartition(":")[0].strip("[]").replace("::ffff:", "") for end in row.split()[2:4]) for row in rows.splitlines()]

    def test_hosts_with_ipv6_alone(self):
        for host, number in (("a", 1), ("b", 2)):
            self.give(host, "fast", f"fd77::{number}/64")
        pair = self.run_pair()
        self.await_traffic(pair)
        self.assertIn(("fd77::1", "fd77::2"), [tuple(sorted(ends)) for ends in self.connections("a")])
        self.finish(pair)

    def test_a_dead_address_holds_nothing_up(self):
        """Behind a gateway that is not there: nobody answers and nobody refuses. It comes first in b's list."""
        self.give("b", "slow", "10.99.0.2/32")
        for host, number in (("a", 1), ("b", 2)):
            self.give(host, "fast", f"10.77.2.{number}/32")
            ip("-n", self.hosts[host], "route", "add", f"10.77.2.{3 - number}/32", "dev", "fast")
        ip("-n", self.hosts["a"], "route", "add", "10.77.7.0/24", "dev", "slow")
        ip("-n", self.hosts["a"], "route", "add", "10.99.0.0/24", "via", "10.77.7.1", "onlink", "dev", "slow")
        ip("-n", self.hosts["a"], "neigh", "add", "10.77.7.1", "lladdr", "02:00:00:00:00:77", "dev", "slow")
        pair = self.run_pair()
        self.await_traffic(pair)
        self.assertIn(("10.77.2.1", "10.77.2.2"), [tuple(sorted(ends)) for ends in self.connections("a")])
        # One attempt at a time would have taken the five seconds of a handshake.
        self.assertNotIn("no answer in time", "".join(process.log.read_text() for process in pair))
        self.finish(pair)

    def test_the_network_that_is_named_is_used_and_follows_to_a_restart(self):
        self.number_both()
        pair = self.run_pair("--network", "10.77.2.0/24")
        self.await_traffic(pair)
        self.assertIn(("10.77.2.1", "10.77.2.2"), [tuple(sorted(ends)) for ends in self.connections("a")])
        self.assertEqual({tuple(f["listens"]) for f in self.figures()}, {("10.77.2.1",), ("10.77.2.2",)})
        table = subprocess.run([SHADOWIB, "status", "j"], env={**os.environ, "SHADOWIB_DIR": str(self.dir)}, timeout=TIMEOUT_S,
                               capture_output=True, text=True, check=True).stdout
        self.assertIn("10.77.2.1:", table)
        self.checkpoint("--kill")
        for process in pair:
            self.ends(process, -9)
        shares = [self.restart(1, "--members", member, "--network", "slow", by=self.at(host), transport="auto")
                  for member, host in ((0, "b"), (1, "a"))]
        self.await_traffic(shares)
        self.assertIn(("10.77.1.1", "10.77.1.2"), [tuple(sorted(ends)) for ends in self.connections("a")])
        self.assertEqual({tuple(f["listens"]) for f in self.figures()}, {("10.77.1.1",), ("10.77.1.2",)})
        self.finish(shares)

    def test_a_wrong_network_is_refused_with_the_interfaces(self):
        self.number_both()
        self.ends(self.start("run", "--network", "10.88.0.0/16", "--", "true", by=self.at("a")), 125)
        said = self.processes[-1].log.read_text()
        for word in ("10.88.0.0/16", "fast 10.77.2.1/24", "slow 10.77.1.1/24"):
            self.assertIn(word, said)
        doctor = subprocess.run([*self.at("a"), SHADOWIB, "doctor"], env={**os.environ, "SHADOWIB_IB2TCP_NETWORK": "fast"},
                                capture_output=True, text=True, check=False).stdout
        self.assertIn("ib2tcp listens on fast only: fast 10.77.2.1", doctor)


if __name__ == "__main__":
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("ss"):
        print("SKIPPED: networks: needs root, ip and ss (iproute2)")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
