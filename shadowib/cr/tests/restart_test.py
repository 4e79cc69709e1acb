"""What a program may see after a restart: restart_scenarios under the shim, checkpointed, killed and restarted.

restart_test.py BUILD_DIR PROGRAM [unittest options]; SHADOWIB_TEST_BACKEND=verbs: over an adapter instead of ib2tcp
"""
import contextlib
import functools
import json
import pathlib
import re
import socket
import struct
import subprocess
import sys
import unittest

from restart_case import BACKEND, BUILD, PROGRAM, SHADOWIB, TIMEOUT_S, TRANSPORTS, RestartCase


@contextlib.contextmanager
def joined_group():
    """The machine takes part in the multicast tests' group, so that an adapter of the kernel's gets back what it sends there."""
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as s:
        if BACKEND == "verbs":
            adapter = pathlib.Path("/sys/class/infiniband/rxe0/ports/1/gid_attrs/ndevs/0").read_text().strip()
            s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP,
                         socket.inet_pton(socket.AF_INET6, "ff12::1234") + struct.pack("@I", socket.if_nametoindex(adapter)))
        yield


def left_in_kernel():
    """How many objects of each kind the kernel holds for the adapter; what contexts have is not counted."""
    if BACKEND != "verbs":
        return {}
    said = subprocess.run(["rdma", "-j", "resource", "show", "rxe0"], capture_output=True, text=True, check=True).stdout
    return {kind: n for kind, n in json.loads(said)[0].items() if isinstance(n, int) and kind not in ("ifindex", "ctx")}


def lacking(reason, scenario, ends, says="^"):
    """A test of what Soft-RoCE has not got: by itself, without us and without a restart, the scenario ends there with that code,
    and says that. Once it does not, the test is to be run."""
    def decorate(test):
        @functools.wraps(test)
        def either(self):
            if BACKEND != "verbs":
                return test(self)
            alone = subprocess.run([PROGRAM, scenario, "natively"], cwd=self.dir, timeout=TIMEOUT_S, capture_output=True, text=True)
            self.assertEqual(alone.returncode, ends, f"{scenario} natively: {alone.stderr}")
            self.assertRegex(alone.stderr, says)
            self.skip(test.__name__, f"Soft-RoCE {reason}")
            raise unittest.SkipTest(reason)
        return either
    return decorate


def with_threads_of_libc(test):
    """A test of threads that libc makes within itself. ThreadSanitizer does not know them: their malloc crashes."""
    @functools.wraps(test)
    def either(self):
        if BUILD.name != "tsan":
            return test(self)
        why = "ThreadSanitizer knows no threads that libc makes"
        self.skip(test.__name__, why)
        raise unittest.SkipTest(why)
    return either


class Restart(RestartCase):
    @with_threads_of_libc
    def test_helper_threads_of_libc(self):
        self.ends(self.run_program("helper_threads"), -9)
        self.restart(4).wait(TIMEOUT_S)  # it has itself checkpointed and killed once more
        self.ends(self.restart(5), 0)

    @with_threads_of_libc
    def test_timers_that_run_out_as_threads_are_stopped(self):
        self.alone("timers_that_run_out")

    @with_threads_of_libc
    def test_a_timer_that_runs_out_while_threads_are_stopped(self):
        self.alone("timer_of_the_stop", SHADOWIB_FAULT="40:slow")

    def test_registrations_of_the_program(self):
        unregistered = {"GLIBC_TUNABLES": "glibc.pthread.rseq=0"}
        self.ends(self.run_program("registrations", **unregistered), -9)
        self.restart(1).wait(TIMEOUT_S)  # it has itself checkpointed and killed once more
        self.ends(self.restart(2), 0)

    def test_a_thread_in_a_sandbox(self):
        self.alone("sandboxed_thread")
        self.assertIn("seccomp filter of its own", self.processes[0].log.read_text())

    @staticmethod
    def under_filter(action):
        """A filter of the place's, on calls that Docker's default profile denies: kcmp, get_mempolicy and keyctl."""
        return {"by": (sys.executable, pathlib.Path(__file__).with_name("under_filter.py"), action, "312,239,250")}

    def test_a_place_whose_filter_denies(self):
        self.alone("at_once", **self.under_filter("deny"))

    def test_a_place_whose_filter_kills(self):
        self.ends(self.run_program("refused_by_the_place", **self.under_filter("kill")), 0)
        self.assertEqual(self.processes[0].log.read_text().count("ends a process that calls get_mempolicy(2)"), 4)

    def test_an_error_known_from_completions_alone(self):
        self.alone("error_by_completion")

    def test_a_send_queue_that_was_draining(self):
        # The other member comes late to settling; what runs meanwhile must not have been taken for held.
        slow = {"SHADOWIB_FAULT": "40:slow:1"}
        programs = [self.run_program(name, **slow) for name in ("draining", "bystander")]
        for program in programs:
            self.ends(program, -9)
        self.ends(self.restart(1), 0)

    def test_what_a_completion_queue_was_armed_for(self):
        self.alone("arming")

    def test_a_change_that_names_the_state_it_begins_in(self):
        self.alone("current_state")

    def test_attributes_set_twice(self):
        self.alone("attributes")

    def test_the_event_of_a_drained_send_queue(self):
        self.alone("drain_event")

    def test_a_region_whose_memory_is_unmapped(self):
        self.alone("unmapped_region")

    def test_a_region_whose_memory_is_protected(self):
        self.alone("protected_region")

    def test_a_device_opened_after_the_restart(self):
        self.alone("opened_later")

    def test_a_member_without_a_device(self):
        for transport in TRANSPORTS:
            with self.afresh(transport):
                without = self.run_program("without_device", transport=transport)
                self.ends(self.run_program("with_device", transport=transport), -9)
                self.ends(without, -9)
                self.restart(2, transport=transport).wait(TIMEOUT_S)  # after one that was taken in passing
                self.ends(self.restart(3, transport=transport), 0)

    def test_shared_receives(self):
        self.ends(self.run_program("shared_receives"), -9)
        self.restart(1).wait(TIMEOUT_S)  # it has itself checkpointed and killed once more
        self.ends(self.restart(2), 0)

    def test_extended_verbs(self):
        self.ends(self.run_program("extended_verbs"), -9)
        self.restart(1).wait(TIMEOUT_S)  # it has itself checkpointed and killed once more
        self.ends(self.restart(2), 0)

    @lacking("has no XRC", "extended_connection", 1, r"open_domain.* \(errno Operation not supported\)")
    def test_an_extended_connection(self):
        self.ends(self.run_program("extended_connection"), -9)
        self.restart(1).wait(TIMEOUT_S)  # it has itself checkpointed and killed once more
        self.ends(self.restart(2), 0)

    @lacking("has no XRC", "extended_completions", 1, r"open_domain.* \(errno Operation not supported\)")
    def test_completions_of_extended_connections(self):
        self.alone("extended_completions")

    @lacking("has no XRC", "extended_domains", 1, r"open_domain.* \(errno Operation not supported\)")
    def test_domains_of_extended_connections(self):
        self.alone("extended_domains")

    @lacking("has no XRC", "extended_handles", 1, r"open_domain.* \(errno Operation not supported\)")
    def test_handles_of_an_extended_target(self):
        self.ends(self.run_program("extended_handles"), -9)
        self.restart(1).wait(TIMEOUT_S)  # it has itself checkpointed and killed once more
        self.ends(self.restart(2), 0)

    @lacking("has no XRC", "extended_two", 1, r"open_domain.* \(errno Operation not supported\)")
    def test_an_extended_connection_between_processes(self):
        for transport in TRANSPORTS:
            with self.afresh(transport):
                for program in [self.run_program(name, transport=transport) for name in ("extended_one", "extended_two")]:
                    self.ends(program, -9)
                self.ends(self.restart(1, transport=transport), 0)

    def test_shared_receives_of_a_destroyed_queue_pair(self):
        self.alone("shared_receives_of_a_destroyed_queue_pair")

    @lacking("does not tell of the last shared receive", "last_receive_event", 1, r"readable\(context->async_fd")
    def test_the_event_of_the_last_shared_receive(self):
        self.alone("last_receive_event")

    def test_a_completion_queue_that_was_changed(self):
        self.alone("changed_queue")

    @lacking("cannot change a region", "changed_region", 1, r"ibv_rereg_mr.* \(errno Operation not supported\)")
    def test_a_region_that_was_changed(self):
        self.alone("changed_region")

    def test_objects_that_come_and_go(self):
        before = left_in_kernel()
        self.ends(self.run_program("churn"), -9)
        self.restart(1).wait(TIMEOUT_S)  # it has itself checkpointed and killed once more
        last = self.restart(2)
        self.await_file("nothing left")
        status = subprocess.run([SHADOWIB, "status", "j", "--json", "--dir", str(self.dir)], capture_output=True, text=True,
                                check=True).stdout
        objects = json.loads(status)["members"][0]["state"]["objects"]
        self.assertEqual(objects["contexts"], 1)
        self.assertEqual(objects["queue_pairs"], [])
        for kind in ("protection_domains", "memory_regions", "completion_queues", "shared_receive_queues", "address_handles",
                     "xrc_domains", "memory_windows", "multicast_groups"):
            self.assertEqual(objects[kind], 0, kind)
        if BACKEND == "ib2tcp":
            self.assertEqual(objects["backend_figures"]["objects"], 0)
        self.assertEqual(left_in_kernel(), before)
        # Nor in the exchange: not of what is destroyed, and not of the job before the restart.
        keys = self.in_exchange()
        self.assertEqual([key for key in keys if "late" in key], [])
        self.assertEqual({key[0] for key in keys}, {(self.dir / "jobs" / "j" / "epoch").read_text().strip()})
        self.assertTrue(all(path.name.split(".")[0] == keys[0][0] for path in (self.dir / "jobs" / "j" / "alive").glob("*.*")))
        if any("has no capability" in p.log.read_text(errors="replace") for p in self.processes):
            self.assertEqual(BACKEND, "verbs")
            self.skip("test_objects_that_come_and_go with XRC", "Soft-RoCE has no XRC")
        self.tell("seen")
        self.ends(last, 0)

    def test_an_event_channel_closed_while_it_is_asked(self):
        self.ends(self.run_program("closing_channels"), 0)

    def test_connections_of_rdma_cm(self):
        self.ends(self.run_program("connections"), -9)
        self.restart(1).wait(TIMEOUT_S)  # it has itself checkpointed and killed once more
        self.ends(self.restart(2), 0)

    def test_a_stop_in_a_command_of_rdma_cm(self):
        self.ends(self.run_program("busy_manager"), -9)
        self.restart(1).wait(TIMEOUT_S)  # it has itself checkpointed and killed once more
        self.ends(self.restart(2), 0)

    def test_a_connection_half_made(self):
        self.alone("half_made")

    def test_a_listener_that_is_late(self):
        self.alone("late_listener")

    def test_events_that_nobody_has_read(self):
        self.alone("unread_events")

    def test_a_listener_found_after_the_restart(self):
        server = self.run_program("listener")
        self.ends(server, -9)
        self.processes.remove(server)
        server = self.restart(1)
        self.await_file("restarted")
        self.ends(self.run_program("caller"), 0)
        self.ends(server, 0)

    def test_datagrams(self):
        self.alone("datagrams")

    def test_datagrams_with_a_global_route(self):
        self.alone("datagrams_by_gid")

    def test_a_held_datagram_whose_handle_is_destroyed(self):
        self.alone("destroyed_handle")

    def test_a_datagram_into_a_zero_based_region(self):
        self.alone("zero_based_receive")

    def test_datagrams_between_processes(self):
        for transport in TRANSPORTS:
            with self.afresh(transport):
                for program in [self.run_program(name, transport=transport) for name in ("datagrams_one", "datagrams_two")]:
                    self.ends(program, -9)
                self.ends(self.restart(1, transport=transport), 0)

    def test_an_unreliable_connection(self):
        self.alone("unreliable_connection")

    def test_windows_made_after_the_restart(self):
        self.alone("late_windows")

    def test_bound_windows(self):
        self.ends(self.run_program("windows"), -9)
        self.restart(1).wait(TIMEOUT_S)  # it has itself checkpointed and killed once more
        self.ends(self.restart(2), 0)

    def test_windows_that_are_bound_no_more(self):
        self.alone("closed_windows")

    @lacking("crashes in a bind to no region", "unbound_window", -11)
    def test_a_window_that_is_bound_to_nothing(self):
        self.alone("unbound_window")

    def test_an_armed_queue_when_windows_are_bound_again(self):
        self.alone("armed_windows")

    def test_binds_that_had_not_run(self):
        self.ends(self.run_program("binds_to_come"), -9)
        self.restart(1).wait(TIMEOUT_S)  # it has itself checkpointed and killed once more
        self.ends(self.restart(2), 0)

    def test_an_invalidation_that_waits_for_a_receive(self):
        self.alone("invalidation_to_come")

    def test_windows_between_processes(self):
        for transport in TRANSPORTS:
            with self.afresh(transport):
                for program in [self.run_program(name, transport=transport) for name in ("window_owner", "window_writer")]:
                    self.ends(program, -9)
                self.ends(self.restart(1, transport=transport), 0)

    def test_multicast(self):
        with joined_group():
            self.alone("multicast")

    def test_a_group_of_an_ip_address(self):
        self.alone("group_of_an_address")

    def test_multicast_between_processes(self):
        for transport in TRANSPORTS:
            with self.afresh(transport):
                names = ("multicast_sender", "multicast_early", "multicast_late")
                with joined_group():
                    for program in [self.run_program(name, transport=transport) for name in names]:
                        self.ends(program, -9)
                    self.ends(self.restart(1, transport=transport), 0)

    def joined_by_a_second(self, transport, during=False):
        self.ends(self.run_program("first", transport=transport), -9)
        # 110: the first thing a restored member does; until it has waited there nobody has taken an index.
        slow = {"SHADOWIB_FAULT": "110:slow:0"} if during else {}
        restarted = self.restart(1, transport=transport, **slow)
        if during:
            self.await_text(restarted, "verifying")  # it has the job's locks: who comes sooner begins the job anew
        else:
            self.await_file("first")
        joined = self.run_program("second", transport=transport)
        self.ends(joined, -9)
        restarted.wait(TIMEOUT_S)
        self.ends(self.restart(2, transport=transport), 0)

    def test_a_process_that_joins_after_the_restart(self):
        for transport in TRANSPORTS:
            with self.afresh(transport):
                self.joined_by_a_second(transport)

    def test_a_process_that_joins_during_the_restart(self):
        self.joined_by_a_second("shm", during=True)


class Flow(RestartCase):
    """What Soft-RoCE has taught: each was wrong there once, or would have been with what was tried first."""

    def test_receives_that_hold_a_write_back(self):
        self.alone_over_each("receives_as_flow_control")

    def test_a_peer_that_may_not_be_written_to(self):
        self.alone_over_each("no_access")

    def test_a_write_behind_a_send_that_waits(self):
        self.alone_over_each("write_behind_a_send")

    def test_an_impatient_sender(self):
        for transport in TRANSPORTS:
            with self.afresh(transport):
                # It runs on for two seconds when the other member is stopped already.
                late = {"SHADOWIB_FAULT": "35:slow:0"}
                programs = [self.run_program("impatient_sender", transport=transport, **late)]
                self.await_members(1)
                programs.append(self.run_program("slow_receiver", transport=transport))
                self.await_file("under way")
                self.checkpoint()
                self.checkpoint("--kill")
                for program in programs:
                    self.ends(program, -9)
                restarted = self.restart(2, transport=transport)
                self.await_text(restarted, "restored 2 processes")
                self.tell("enough")
                self.ends(restarted, 0)

    def test_a_send_queue_that_was_held(self):
        self.alone_over_each("held")

    def test_a_peer_in_init(self):
        self.alone_over_each("peer_in_init")

    def test_a_queue_that_is_full(self):
        self.alone_over_each("full_queue")

    def test_unsignaled_writes_without_end(self):
        self.alone_over_each("many_unsignaled")

    def test_unsignaled_requests_of_every_kind(self):
        self.alone_over_each("unsignaled_kinds")

    def test_unsignaled_messages_before_a_hold(self):
        self.alone_over_each("unsignaled_and_held")


class AcrossAdapters(RestartCase):
    """Run by itself, where the kernel has an RDMA device."""

    def across(self, scenario, before, after, **environment):
        self.ends(self.start("run", "--job", "j", "--backend", before, "--", PROGRAM, scenario, **environment), -9)
        self.ends(self.restart(1, SHADOWIB_BACKEND=after), 0)

    def test_of_unsignaled_writes_one_in_four_is_completed(self):
        log = self.dir / "shim.log"
        self.ends(self.start("run", "--job", "j", "--backend", "verbs", "--", PROGRAM, "many_unsignaled", SHADOWIB_LOG=f"info:{log}"), -9)
        told = re.search(r"of (\d+) send requests (\d+) have been signaled for shadowib alone", log.read_text())
        self.assertIsNotNone(told, log.read_text())
        posted, completed = map(int, told.groups())
        self.assertGreaterEqual(posted, 200)
        self.assertLessEqual(completed, 1.05 * posted / 4)  # of a queue of 16
        self.ends(self.restart(1), 0)

    def test_datagrams_of_processes_that_shared_an_address(self):
        for program in [self.start("run", "--job", "j", "--backend", "verbs", "--", PROGRAM, f"datagrams_{name}") for name in ("one", "two")]:
            self.ends(program, -9)
        self.ends(self.restart(1, SHADOWIB_BACKEND="ib2tcp"), 0)

    def test_a_group_from_a_device_to_itself(self):
        self.across("group_of_an_address", "verbs", "verbs")

    def test_a_group_from_a_device_to_ib2tcp(self):
        self.across("group_of_an_address", "verbs", "ib2tcp")

    def test_a_group_from_ib2tcp_to_a_device(self):
        self.across("group_of_an_address", "ib2tcp", "verbs")

    def test_a_device_that_is_looked_for_afterwards(self):
        for before, after, name in (("verbs", "ib2tcp", "rxe0"), ("ib2tcp", "verbs", "ib2tcp0")):
            with self.afresh(f"{before} to {after}"):
                self.across("looked_for_later", before, after, EXPECTED_DEVICE=name)

    def test_queues_as_large_as_there_were(self):
        for before, after in (("verbs", "ib2tcp"), ("ib2tcp", "verbs")):
            with self.afresh(f"{before} to {after}"):
                self.across("as_much_as_granted", before, after)

    def test_as_many_reads_as_there_were(self):
        for before, after in (("verbs", "ib2tcp"), ("ib2tcp", "verbs")):
            with self.afresh(f"{before} to {after}"):
                self.across("as_many_reads", before, after)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
