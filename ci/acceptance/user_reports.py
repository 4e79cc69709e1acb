"""H1: what users' bug reports on checkpoints, MPI and verbs asked for holds here. Each report stands for a kind; its row names the
tests that check it, and runs them. A row whose tests have gone fails."""
import re
import subprocess

from common import ROOT, Case, Line, Skip, check, main

RESTART = "shadowib/cr/tests/restart_test.py"
MEMBERS = "shadowib/cr/tests/members_test.py"

# What is asked for, and the tests: a GoogleTest program and its filter, or a Python test and its cases.
REPORTS = {
    "the main stack goes on growing": [("imager_test", "All/Scenarios.RestartsAsItWas/deep_stack")],
    "fibers on small stacks": [("imager_test", "All/Scenarios.RestartsAsItWas/parked_on_alternate_stack"), ("stop_test", "StopTest.*")],
    "verbs in a plugin that prefers its own symbols": [("exports_test", "*")],
    "every socket option comes back": [("descriptors_test", "*Tcp.AllOptionsAreWhatTheyWere*")],
    "threads that libc makes: timers and asynchronous I/O": [
        ("stop_test", "StopTest.HelperThreadsOfLibcStop"), (RESTART, "Restart.test_helper_threads_of_libc")],
    "a file with another name is no lost one": [("descriptors_test", "Refused.ReplacedFile")],
    "contexts of io_setup are named": [("imager_test", "All/Refusals.NamesTheObject/refuse_asynchronous_io")],
    "memory barriers stay registered": [
        ("imager_test", "All/Restored.AfterARestart/state_memory_barriers*"), (RESTART, "Restart.test_registrations_of_the_program")],
    "restartable sequences stay registered": [("imager_test", "All/Restored.AfterARestart/state_rseq")],
    "locked memory, some of it inaccessible": [
        ("imager_test", "All/Scenarios.RestartsAsItWas/locked_memory:All/Scenarios.RestartsAsItWas/mapping_states:"
                        "All/Refusals.NamesTheObject/refuse_locks_above_the_limit")],
    "Multipath TCP is named": [("descriptors_test", "Refused.SocketsByTheirNames")],
    "no descriptor is left": [("agent_test", "AgentTest.AProgram*")],
    "an unnamed file can be published after a restart": [("imager_test", "Imager.RestartsSharedMemory")],
    "no kernel state of a thread is lost": [("kernel_state_test", "*")],
    "a sandbox of one thread": [("kernel_state_test", "All/Refused.IsNamed/seccomp_of_a_thread"), (RESTART, "Restart.test_a_thread_in_a_sandbox")],
    "standard streams, and descriptors leaked by who starts the job": [
        ("descriptors_test", "StandardStreams.*:Inherited.*"), (MEMBERS, "Members.test_an_output_that_is_emptied")],
    "System V semaphores and queues": [("imager_test", "Imager.RestartsSemaphoresAndQueues"), (MEMBERS, "Members.test_semaphores_and_queues")],
    "locks held for a moment, or for long": [("descriptors_test", "FileLocks.*"), (MEMBERS, "Members.test_file_locks")],
    "a program under valgrind": [("imager_test", "All/Refusals.NamesTheObject/refuse_instrumented")],
    "access to memory that its owner has unmapped or protected": [
        ("ib2tcp_conformance_test", "*MemoryThatIsGone*:*ProtectedMemory*:*MemoryChanges*:*OnlyTheChangedPart*"),
        (RESTART, "Restart.test_a_region_whose_memory_is_protected")],
    "requests for signals on a channel": [("guards_test", "SignalIo.*")],
}


def google_test(line: Line, name: str, words: str) -> int:
    """Runs the tests that the filter names; returns how many."""
    program = line.program(name)
    listed = subprocess.run([program, "--gtest_list_tests", f"--gtest_filter={words}"], capture_output=True, text=True, check=True).stdout
    count = len(re.findall(r"^  \S", listed, re.MULTILINE))
    check(count > 0, f"{name} has no test {words}")
    done = subprocess.run([program, f"--gtest_filter={words}"], capture_output=True, text=True, errors="replace", timeout=600, check=False)
    check(done.returncode == 0, f"{name} --gtest_filter={words} exited with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-2000:]}")
    if "[  SKIPPED ]" in done.stdout and "[       OK ]" not in done.stdout:
        raise Skip(f"{name} {words}: not on this machine")
    return count


def python_test(line: Line, file: str, words: str) -> int:
    done = subprocess.run(["python3", "-B", ROOT / file, line.build, line.program("restart_scenarios"), words], capture_output=True, text=True,
                          errors="replace", timeout=600, check=False)
    check(done.returncode == 0, f"{file} {words} exited with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
    return 1


def run() -> int:
    line = Line("user_reports", __doc__)
    for report, tests in REPORTS.items():
        def body(_case: Case, tests=tests) -> str:
            counts = [python_test(line, name, words) if name.endswith(".py") else google_test(line, name, words) for name, words in tests]
            return f"{sum(counts)} tests"
        line.case(report, body)
    return line.finish()


if __name__ == "__main__":
    main(run)
