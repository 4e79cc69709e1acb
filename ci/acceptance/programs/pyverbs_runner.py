"""Runs rdma-core's own tests, bodies unchanged: pyverbs_runner.py TESTS RESULTS NAMES --dev DEVICE --gid N

TESTS is their directory, NAMES a regular expression: those run whose name has a match. RESULTS gets a line for each:
"<file>.<class>.<test> <outcome> <reason>", where the outcome is pass, fail, error or skip. Python's traces go to standard error.
"""
import importlib.machinery
import os
import re
import socket
import sys
import unittest

TESTS, RESULTS, NAMES = sys.argv[1:4]
del sys.argv[1:4]


def name_of(test):
    return test.id().removeprefix("tests.")


def all_in(suite):
    for test in suite:
        yield from all_in(test) if isinstance(test, unittest.TestSuite) else (test,)


class Recorder(unittest.TextTestResult):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.lines = {}

    def note(self, test, outcome, reason=""):
        name = name_of(test)
        self.lines[name] = f"{name} {outcome} {' '.join(str(reason).split())}".rstrip()

    def addSuccess(self, test):
        super().addSuccess(test)
        self.note(test, "pass")

    def addError(self, test, err):
        super().addError(test, err)
        self.note(test, "error", err[1])

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.note(test, "fail", err[1])

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note(test, "skip", reason)


sys.path.insert(0, TESTS)
from args_parser import parser  # noqa: E402  of the tests
tests = importlib.machinery.SourceFileLoader("tests", os.path.join(TESTS, "__init__.py")).load_module()
parser.parse_args()


def address_of_this_host():
    """An IPv4 address by which processes here reach each other: one of an interface if there is one, else the loopback's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return s.getsockname()[0]


def add_address(self, device, port, index):
    """For _get_ip_mac, which looks for a network interface below the device in /sys: Soft-RoCE has none there, but by GID."""
    try:
        with open(f"/sys/class/infiniband/{device}/ports/{port}/gid_attrs/ndevs/{index}") as interface:
            addresses = self.get_ip_mac_address(interface.read().strip())
    except OSError:
        addresses = address_of_this_host(), None
    self.args.append([device, port, index, *addresses])


tests.base.RDMATestCase._get_ip_mac = add_address
loaded = unittest.defaultTestLoader.loadTestsFromModule(tests)
suite = unittest.TestSuite(test for test in all_in(loaded) if re.search(NAMES, name_of(test)))
result = unittest.TextTestRunner(resultclass=Recorder, verbosity=0).run(suite)
with open(RESULTS, "w", encoding="utf-8") as sink:
    sink.writelines(line + "\n" for line in sorted(result.lines.values()))
