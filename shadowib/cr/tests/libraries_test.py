"""Restarts with libraries that call libibverbs themselves: UCX, libfabric, and rdma-core's where the drop-in is installed beside it.

libraries_test.py BUILD_DIR PROGRAM [unittest options]
"""
import pathlib
import re
import shutil
import sys
import time
import unittest

from restart_case import BACKEND, PROGRAM, TIMEOUT_S, RestartCase, await_listener, free_port


class OtherPrograms(RestartCase):
    def test_memory_of_ucx(self):
        if BACKEND != "ib2tcp" or shutil.which("ucx_perftest") is None:
            self.skip("test_memory_of_ucx", "needs ucx_perftest and ib2tcp")
            raise unittest.SkipTest("no ucx_perftest")
        for transport in ("posix", "sysv"):
            with self.afresh(transport):
                port = free_port()
                words = ["run", "--job", "j", "--backend", BACKEND, "--", "ucx_perftest", "-t", "tag_lat", "-n", 10**9, "-p", port]
                settings = {"UCX_TLS": f"rc_v,{transport},self", "UCX_NET_DEVICES": "ib2tcp0:1"}
                server = self.start(*words, **settings)
                await_listener(port, server)
                client = self.start(*words, "127.0.0.1", **settings)
                self.await_round_trips(client, 0)
                self.checkpoint("--kill")
                self.ends(server, -9)
                self.ends(client, -9)
                restarted = self.restart(1)
                self.await_round_trips(client, self.round_trips(client))
                restarted.terminate()
                self.ends(restarted, 20)

    @staticmethod
    def round_trips(client):
        """What it says every second."""
        return max((int(n) for n in re.findall(r"^\[thread 0\] +(\d+) ", client.log.read_text(errors="replace"), re.MULTILINE)), default=0)

    def await_round_trips(self, client, beyond):
        end = time.monotonic() + TIMEOUT_S
        while self.round_trips(client) <= beyond:
            self.assertLess(time.monotonic(), end, "".join(p.log.read_text(errors="replace") for p in self.processes))
            time.sleep(0.05)


class OverLibfabric(RestartCase):
    """Libfabric calls libibverbs, and where sanitizers put the backend beside the program that would be us."""

    def test_from_one_transport_to_another(self):
        for before, after in (("ofi:tcp", "ofi:tcp"), ("ofi:tcp;ofi_rxm", "ofi:tcp;ofi_rxm"), ("ofi:tcp", "ofi:tcp;ofi_rxm"),
                              ("ofi:tcp;ofi_rxm", "tcp"), ("tcp", "ofi:tcp")):
            for pair in (("window_owner", "window_writer"), ("datagrams_one", "datagrams_two")):
                with self.afresh(f"{pair}: {before} to {after}"):
                    for program in [self.run_program(name, transport=before) for name in pair]:
                        self.ends(program, -9)
                    self.ends(self.restart(1, transport=after), 0)

    def test_more_restarts_than_the_loader_has_link_namespaces(self):
        port = free_port()
        words = ("run", "--job", "j", "--backend", "ib2tcp", "--", "ibv_rc_pingpong", "-p", port, "-n", 1 << 30)
        server = self.start(*words, transport="ofi:tcp")
        await_listener(port, server)
        programs = [server, self.start(*words, "localhost", transport="ofi:tcp")]
        self.await_members(2)
        for number in range(1, 19):
            self.checkpoint("--kill")
            for program in programs:
                program.wait(TIMEOUT_S)
            programs = [self.restart(number, transport=("ofi:tcp", "ofi:tcp;ofi_rxm", "tcp")[number % 3])]
            self.await_text(programs[0], "restored 2 processes")


class SystemLibraries(RestartCase):
    def test_the_drop_in_directory_does_not_hide_the_verbs_library(self):
        program = self.start("run", "--backend", "verbs", "--", "ibv_devices")
        program.wait(TIMEOUT_S)
        said = program.log.read_text()
        self.assertNotIn("cannot load", said)
        if not pathlib.Path("/sys/class/infiniband").exists():
            self.assertIn("Function not implemented", said)  # as without us


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
