"""Runs a command under a seccomp filter, as a container or a service does.

under_filter.py kill|deny NUMBER[,NUMBER...] COMMAND...: system calls of these numbers end the process, or fail with EPERM.
"""
import ctypes
import os
import struct
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, MODE_FILTER = 38, 22, 2
ALLOW, DENY, KILL = 0x7fff0000, 0x00050001, 0x80000000
LOAD_NUMBER, IS_EQUAL, RETURN = 0x20, 0x15, 0x06


def instruction(code, value, if_true=0, if_false=0):
    return struct.pack("HBBI", code, if_true, if_false, value)


def main():
    action = {"kill": KILL, "deny": DENY}[sys.argv[1]]
    program = [instruction(LOAD_NUMBER, 0)]
    for number in sys.argv[2].split(","):
        program += [instruction(IS_EQUAL, int(number), 0, 1), instruction(RETURN, action)]
    program.append(instruction(RETURN, ALLOW))
    code = ctypes.create_string_buffer(b"".join(program))
    header = ctypes.create_string_buffer(struct.pack("HP", len(program), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    for words in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, MODE_FILTER, header, 0, 0)):
        if libc.prctl(*words) != 0:
            sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    os.execvp(sys.argv[3], sys.argv[3:])


main()
