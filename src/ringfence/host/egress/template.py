"""The program that workers are forked of: loads all that one needs once, then one fork a request, and nothing else.

A packet is the decimal egress id, with two descriptors: the worker's end of its control socket, and where it says that it
has closed itself in. The spawner starts this as PID 1 of a process namespace, without a right but the two that change ids;
it ends, and every worker with it, when the spawner's end closes. Must never read what a box or a worker sends.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from typing import NoReturn

from ringfence.host.egress import confine, preloaded, rehearsal, roots, seccomp, worker
from ringfence.host.egress.trust import Trust

_PACKET = 32
_SAID = 1000  # bytes of what stopped a worker


def main() -> None:
    """sys.argv: the socket's descriptor, that of the folder that all is loaded from, the first and the last id that a worker
    may be given."""
    channel, site, first, last = (int(word) for word in sys.argv[1:5])
    confine.not_dumpable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # PID 1: the kernel reaps what ends
    preloaded.warm()
    rehearsal.rehearse()
    filter_code, trust = seccomp.program(), Trust(roots.host_roots())
    os.close(site)
    gc.collect()
    gc.freeze()  # children share these pages: a collection in one would write to every object's header
    with socket.socket(fileno=channel) as requests:
        while serve_one(requests, range(first, last + 1), filter_code, trust):
            pass


def serve_one(requests: socket.socket, ids: range, filter_code: bytes, trust: Trust) -> bool:
    """False: the spawner has gone."""
    said, fds, _, _ = socket.recv_fds(requests, _PACKET, 2)
    if not said:
        return False
    try:
        uid = int(said)
        if len(fds) == 2 and uid in ids and os.fork() == 0:
            _child(uid, fds[0], fds[1], filter_code, trust)
    except (ValueError, OSError):  # no process left: the descriptors are closed unused, which says so
        pass
    finally:
        for fd in fds:
            os.close(fd)
    return True


def _child(uid: int, control: int, report: int, filter_code: bytes, trust: Trust) -> NoReturn:
    status = 1
    try:
        with socket.socket(fileno=report) as told:
            try:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                confine.close_in(uid, (control, report), filter_code=filter_code)
            except BaseException as error:
                told.send(repr(error).encode()[:_SAID])
                raise
            told.send(b"ok")
        worker.run(control, trust)
        status = 0
    finally:
        os._exit(status)  # whatever it was, and without a word: what it knows is for nobody
