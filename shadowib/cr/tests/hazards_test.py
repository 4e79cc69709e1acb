"""The hazards of docs/internals/hazards.md: each scenario ends well, and goes wrong as it must when the guard against it is left out.

hazards_test.py BUILD_DIR/hazards PROGRAM [unittest options]. The tree has the shim whose guards can be left out
(shadowib/base/guard.h) and, in ib2tcp's place, one that misbehaves on command (ib2tcp/testing/wayward). What is withheld at
the moment of a checkpoint is what the scenario has commanded; no outcome hangs on when something happens.
"""
import pathlib
import re
import struct
import sys
import unittest

from restart_case import PROGRAM, RestartCase, TIMEOUT_S

SOURCE = pathlib.Path(__file__).resolve().parents[3]
FIELDS = 32  # more than struct wayward_control has
DEVICE = {0: 1}  # field: value


class Hazard(RestartCase):
    signal_every = "64"  # over a device

    def control(self, fields):
        values = [fields.get(i, 0) for i in range(FIELDS)]
        (self.dir / "wayward").write_bytes(struct.pack(f"{FIELDS}I", *values))

    def run_through(self, scenarios, fields, guard):
        """Runs them, restarts what is checkpointed and killed until all has ended; the last exit codes and all that was said."""
        self.control(fields)
        environment = {"SHADOWIB_WAYWARD": str(self.dir / "wayward"), "SHADOWIB_SIGNAL_EVERY": self.signal_every}
        if guard is not None:
            environment.update(SHADOWIB_GUARD_OFF=guard, SCENARIO_ANY_TIME="5")  # what was lost is waited for
        codes = self.codes([self.run_program(scenario, **environment) for scenario in scenarios])
        killed = set(codes) == {-9}
        while killed:
            codes = self.codes([self.restart(self.newest(), *(() if guard is None else ("--timeout", "8")))])
            killed = "ended on request" in self.processes[-1].log.read_text(errors="replace")
        return codes, "".join(p.log.read_text(errors="replace") for p in self.processes)

    def codes(self, processes):
        return [process.wait(TIMEOUT_S) for process in processes]

    def guarded(self, *scenarios, fields=None):
        """They end well."""
        with self.afresh(f"{scenarios} {fields or ''}"):
            codes, said = self.run_through(scenarios, fields or {}, None)
            self.assertEqual(set(codes), {0}, said)

    def unguarded(self, guard, otherwise, *scenarios, fields=None):
        """Without the guard they do not, and say so."""
        with self.afresh(f"{scenarios} {fields or ''} without {guard}"):
            codes, said = self.run_through(scenarios, fields or {}, guard)
            self.assertTrue(any(code != 0 for code in codes), f"nothing went wrong without {guard}: {said}")
            self.assertRegex(said, otherwise)

    def hazard(self, guard, otherwise, *scenarios, fields=None):
        self.guarded(*scenarios, fields=fields)
        self.unguarded(guard, otherwise, *scenarios, fields=fields)


class Requests(Hazard):
    """What may have run, or not."""

    def test_h1_a_write_whose_memory_is_used_again(self):
        for fields in ({}, DEVICE):
            self.hazard("h1", "the write was made twice", "write_seen", fields=fields)

    def test_h2_an_atomic_whose_completion_is_not_drained(self):
        for fields in ({}, DEVICE):
            self.hazard("h2", "it was added twice", "atomic_run", fields=fields)

    def test_h3_a_message_whose_acknowledgement_is_on_its_way(self):
        for fields in ({}, DEVICE):
            self.hazard("h3", "the message came twice", "message_taken", fields=fields)

    def test_h3_a_message_whose_receive_completes_late(self):
        self.hazard("h3.late", "is due", "message_acknowledged", fields=DEVICE)

    def test_h4_an_unsignaled_tail(self):
        self.guarded("unsignaled_tail")
        self.guarded("unsignaled_tail", fields=DEVICE)
        self.unguarded("h4", "does not settle: 3 requests posted, 0 known to have run", "unsignaled_tail", fields=DEVICE)
        self.unguarded("h4,h1", "an unsignaled write was made twice", "unsignaled_tail", fields=DEVICE)
        self.unguarded("h4.fence", "an unsignaled write was made twice", "unsignaled_tail", fields=DEVICE)
        self.guarded("unsignaled_before_a_wait", fields=DEVICE)
        self.unguarded("h4.swallow", r"not so: ibv_poll_cq\(send_cq, 1, &wc\) == 0", "unsignaled_tail", fields=DEVICE)
        self.signal_every = "1"
        self.guarded("unsignaled_tail", fields=DEVICE)
        self.guarded("unsignaled_before_a_wait", fields=DEVICE)
        self.unguarded("h4,h1", "an unsignaled write was made twice", "unsignaled_tail", fields=DEVICE)

    def test_h5_requests_behind_one_without_a_receive(self):
        self.hazard("h5.blocked", "does not settle: 2 requests posted, 1 known to have run", "receives_as_flow_control")
        self.hazard("h5.blocked", "does not settle: 4 requests posted, 0 known to have run", "write_behind_a_send", fields=DEVICE)

    def test_h5_a_receiver_that_is_stopped_longer_than_its_sender_has_patience(self):
        self.hazard("h5.retries", "is due, there came 1 with RNR retry counter exceeded",
                    "refused_while_stopped")

    def test_h9_a_read_of_what_is_changed_then(self):
        for fields in ({}, DEVICE):
            self.hazard("h9.read", "it was read twice", "read_run", fields=fields)

    def test_h9_inline_immediate_solicited_chained_and_empty(self):
        for fields in ({}, DEVICE):
            self.hazard("h9.inline", "inline data is what the program has put there since", "inline_kept", fields=fields)

    def test_h12_a_datagram_that_was_taken(self):
        for fields in ({}, DEVICE):
            self.hazard("h12.once", "a datagram came twice", "datagram_taken", fields=fields)

    def test_h12_a_sender_whose_number_is_another(self):
        self.hazard("h12.source", "of somebody that nobody knows", "datagram_source")

    def test_h13_restarts_in_a_row(self):
        self.hazard("h13", "known to have run", "restarts_in_a_row")
        self.guarded("restarts_in_a_row", fields=DEVICE)


class Queues(Hazard):
    """What is in queues, and who is told of it."""

    def test_h6_the_limit_of_a_shared_queue(self):
        self.hazard("h6.limit", r"not so: !readable\(context->async_fd, 0\)", "shared_receives")

    def test_h6_receives_that_went_with_a_queue_pair(self):
        self.hazard("h6.purged", r"not so: wc.wr_id == id", "shared_receives_of_a_destroyed_queue_pair")

    def test_h7_a_queue_of_two_that_is_half_polled(self):
        # At the first checkpoint or, where the acknowledgement of request 4 was late, at the second.
        overtaken = r"request (2 with status success is due, there came 4|3 with status success is due, there came 5) with success"
        for fields in ({}, DEVICE):
            self.hazard("h7.order", overtaken, "half_polled", fields=fields)
            self.hazard("h7.purge", "request 3 with status success is due, there came 2 with success", "destroyed_half_polled",
                        fields=fields)

    def test_h7_completions_out_of_turn(self):
        for fields in ({}, DEVICE):
            self.hazard("h7.order", "a completion came out of turn", "out_of_turn", fields=fields)

    def test_h8_events(self):
        self.hazard("h8.fired", r"not so: readable\(channel->fd, 0\)", "arming")
        self.hazard("h8.fired", r"not so: readable\(context->async_fd", "last_receive_event")
        self.unguarded("h8.armed", "not so: readable", "arming")
        self.unguarded("h8.descriptor", "not so: readable", "arming")
        self.hazard("h8.forced", "there was an event, and the program is due none", "forced_event", fields=DEVICE)


class States(Hazard):
    """Queue pairs and ids."""

    def test_h10_a_queue_that_is_held(self):
        # What was to be held arrives: its bytes are seen first, or its completion.
        self.hazard("h10.held", r"not so: (is_full_of\(place, c\)|ibv_poll_cq\(receive_cq)", "held")

    def test_h10_a_peer_that_is_not_ready(self):
        self.hazard("h10.init", r"not so: ibv_poll_cq\(send_cq, 1, &wc\) == 0", "peer_in_init")

    def test_h10_errors(self):
        self.hazard("h10.error", "IBV_QPS_ERR", "error_by_completion")

    def test_h11_ids_that_come_after_a_restart(self):
        self.hazard("h11.numbers", "two queue pairs have one number", "ids_after_a_restart")
        self.unguarded("h11.lookup", "remote access error", "ids_after_a_restart")

    def test_h15_windows(self):
        self.hazard("h15.bound", "request 51 with status success is due, there came 51 with remote access error", "armed_windows")
        self.hazard("h15.invalidated", "request 4 with status remote access error is due, there came 4 with success", "closed_windows")


class Processes(Hazard):
    """Threads, adapters, connection managers, children and peers."""

    def test_h14_a_thread_inside_of_a_backend(self):
        self.hazard("h14.inside", "a thread was stopped inside the backend", "stopped_in_a_post")

    def test_h14_a_thread_inside_of_the_loader(self):
        self.hazard("h14.loader", "the loader thread did not finish within 8000 ms", "stopped_in_the_loader")

    def test_h14_a_thread_inside_of_the_loader_for_long(self):
        """It works all the time, and so is waited for, longer than for one that sleeps."""
        self.guarded("stopped_in_a_long_call_of_the_loader")

    def test_h14_a_thread_inside_of_malloc(self):
        self.hazard("h14.loader", "the loader thread did not finish within 8000 ms", "stopped_in_malloc")

    def test_h14_a_thread_inside_of_malloc_after_a_restart(self):
        self.hazard("h14.loader", "the loader thread did not finish within 8000 ms", "stopped_in_malloc_once_restarted")

    def test_h14_a_thread_inside_of_munmap_as_the_program_has_it(self):
        self.hazard("h14.loader", "a thread was stopped inside of the program's munmap", "stopped_in_munmap")

    def test_h14_a_thread_inside_that_waits_for_a_stopped_one(self):
        self.guarded("inside_behind_a_stopped_thread")

    def test_h14_a_thread_that_has_a_function_bound(self):
        self.hazard("h14.loader", "the loader thread did not finish within 8000 ms", "stopped_while_binding")

    def test_h16_a_write_that_has_completed_and_is_not_in_memory(self):
        self.hazard("h16", "a write that had completed is lost", "write_on_its_way_to_memory", fields=DEVICE)

    def test_h17_an_extended_message_that_was_seen(self):
        for fields in ({}, DEVICE):
            self.hazard("h17", "the write was made twice", "extended_write_seen", fields=fields)

    def test_h18_a_connection_half_made(self):
        self.hazard("h18.listen", r"not so: (event->event == type|readable\(events->fd)", "connections")
        self.hazard("h18.ask", r"not so: readable\(events->fd", "lost_request", fields=DEVICE)

    def test_h19_a_child(self):
        self.hazard("h19", "the child took its parent's objects for its own", "forked")

    def test_h20_a_peer_that_is_gone(self):
        for fields in ({}, DEVICE):
            self.hazard("h20.gone", "request 101 with status Work Request Flushed Error is due, there came -1 with nothing", "peer_gone", fields=fields)

    def test_a_guest_that_may_write_on_a_device(self):
        """It is refused by name while memory would be saved under it, and not once it may not."""
        self.control(DEVICE)
        environment = {"SHADOWIB_WAYWARD": str(self.dir / "wayward"), "SCENARIO_ANY_TIME": "60"}
        member = self.run_program("writing_guest", **environment)
        self.await_members(1)
        guest = self.start("run", "--job", "j", "--guest", "--backend", "ib2tcp", "--", PROGRAM, "guest_client", GUEST_ROLE="idle", **environment)
        self.ends(member, 0)
        self.assertRegex(member.log.read_text(), "no checkpoint: .*queue pair 0x[0-9a-f]+ lets a guest .* write into this process")
        self.ends(guest, -15)

    def test_h20_retries_that_run_out_while_threads_are_stopped(self):
        self.hazard("h20.pause", r"not so: ibv_poll_cq\(send_cq, 1, &wc\) == 0", "peer_not_ready", fields=DEVICE)


class Guards(unittest.TestCase):
    def test_each_is_left_out_by_a_test_and_has_its_place_in_the_table(self):
        base = SOURCE / "shadowib" / "base"
        names = re.findall(r"^  k\w+, *// (h[\w.]+): ", (base / "guard.h").read_text(), re.M)
        self.assertEqual(names, re.findall(r'"(h\d[\w.]*)"', (base / "guard.cc").read_text()), "in one order")
        left_out = re.findall(r'self\.(?:hazard|unguarded)\("([^"]+)"', pathlib.Path(__file__).read_text())
        left_out += re.findall(r'asleep\(case, "([^"]+)"', (SOURCE / "ci/acceptance/federation_alone.py").read_text())
        self.assertEqual(set(names), {name for words in left_out for name in words.split(",")})
        table = (SOURCE / "docs/internals/hazards.md").read_text()
        self.assertEqual([name for name in sorted(names) if f"`{name}`" not in table], [])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
