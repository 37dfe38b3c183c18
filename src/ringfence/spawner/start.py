"""The steps of one start, from limits to identity, and of one stop. Must never answer before bubblewrap's mounts are
done, so that what goes wrong in them is told in its own words."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import sys
import time
from dataclasses import dataclass

from ringfence.spawner import disk_parts, identity, launch, paths, sources, sweep
from ringfence.spawner.children import Children
from ringfence.spawner.disks import Disks
from ringfence.spawner.errors import NO_PROCESS_LEFT, Busy, Failed, SpawnerError, Unavailable, of_os_error
from ringfence.spawner.identity import Identifier, Live
from ringfence.spawner.launch import Launched
from ringfence.spawner.limits import share
from ringfence.spawner.protocol import Limits, Started
from ringfence.spawner.registry import Entry, take_socket
from ringfence.spawner.sources import Host
from ringfence.spawner.tasks import Steps, Wait
from ringfence.spawner.warmer import Warmer

START_SECONDS = 20.0  # a start takes some 30 ms; a loaded host gets 600 times that
STOP_SECONDS = 20.0
# bubblewrap, PID 1, its command spawner, a loop, and four for commands: with less a box comes up and can do nothing.
START_PIDS = 8


@dataclass(frozen=True, slots=True)
class Info:
    """From bubblewrap's --info-fd."""

    pid: int
    pid_ns: int


class Starter:
    """Starts and ends boxes; one step at a time of each, many boxes at once."""

    def __init__(self, host: Host, children: Children, warmer: Warmer, disks: Disks) -> None:
        self._host = host
        self._children = children
        self._warmer = warmer
        self._disks = disks
        self.identifier = Identifier()

    def alive(self, box: str) -> Live | None:
        """Who runs as the box's PID 1 now, or None."""
        with paths.box_directory(self._host.state, box) as fd:
            live = identity.read(fd)
        pidfd = self.identifier.open_live(live) if live is not None else None
        if pidfd is None:
            return None
        os.close(pidfd)
        return live

    def held(self, box: str) -> Live | None:
        """`alive`, under its limits: None of a box that is out of its cgroups, which must not go on."""
        live = self.alive(box)
        return live if live is not None and self._host.cgroups.holds(box, live.identity.pid) else None

    def start(self, entry: Entry, limits: Limits, image: str) -> Steps[Started]:
        """Raises SpawnerError, with nothing left running. `image`: what its /usr is; of a box that runs it stays what it is. One that
        is out of its cgroups is ended, and started in new ones."""
        running = self.held(entry.box)
        if running is not None:
            return Started(running.identity, True, {})
        if self.alive(entry.box) is not None:
            yield from self.end(entry)
        with paths.box_directory(self._host.state, entry.box) as fd:
            yield from self._disks.renew(fd)
            paths.missing_control(fd)
        clock = [time.monotonic()]
        yield from self._clear_remains(entry)
        try:
            launched, net_ns = self._launch(entry, limits, image, clock)
            live = yield from self._follow(entry, launched, net_ns, clock)
        except OSError as error:
            yield from self.end(entry)
            raise of_os_error(error, "starting the box") from error
        except SpawnerError:
            yield from self.end(entry)
            raise
        names = ("prepare", "open", "fork", "info", "mounts", "identity")
        timings = {n: round((b - a) * 1e3, 3) for n, a, b in zip(names, clock, clock[1:], strict=False)}
        return Started(live.identity, False, timings | {"total": round((clock[-1] - clock[0]) * 1e3, 3)})

    def _clear_remains(self, entry: Entry) -> Steps[None]:
        """After a box that ended by itself: no process, cgroup or file in /tmp of it may meet the new one."""
        with paths.box_directory(self._host.state, entry.box) as fd:
            unclean = paths.read_file(fd, "live.json") is not None
        if unclean or self._host.cgroups.populated(entry.box):
            yield from self.end(entry)

    def _launch(self, entry: Entry, limits: Limits, image: str, clock: list[float]) -> tuple[Launched, int]:
        shares = share(limits)
        self._host.cgroups.make(entry.box)
        if self._host.cgroups.pids_left() < START_PIDS:
            raise Unavailable("no process is left for another box", NO_PROCESS_LEFT)
        self._warmer.warm()  # not before: the kernel makes no cgroup while a move waits
        self._host.cgroups.set_limits(entry.box, shares)
        self._host.root.refresh()
        clock.append(time.monotonic())
        with sources.Opened() as opened:
            opening = sources.open_all(self._host, entry, shares, image, opened)
            clock.append(time.monotonic())
            net_ns = os.fstat(opening.network).st_ino
            launched = launch.launch(self._host, entry, limits, opening)
        clock.append(time.monotonic())
        self._children.add(launched.outer, launched.output, watched=True, box=entry.box)
        return launched, net_ns

    def _follow(self, entry: Entry, launched: Launched, net_ns: int, clock: list[float]) -> Steps[Live]:
        """Until PID 1 is about to run the guest. Raises Failed with bubblewrap's last words."""
        until = time.monotonic() + START_SECONDS
        pidfd = -1
        try:
            info = yield from self._read_info(launched, until)
            clock.append(time.monotonic())
            try:
                pidfd = os.pidfd_open(info.pid)
            except ProcessLookupError:
                raise (yield from self._failure(launched)) from None
            whole = yield from _all_mounted(launched.done, until)
            clock.append(time.monotonic())
            if not whole or identity.exited(pidfd):
                raise (yield from self._failure(launched))
            who = self.identifier.take(info.pid, pidfd, entry.uid, info.pid_ns, net_ns)
        except BaseException:
            self._abandon(launched, pidfd)
            raise
        finally:
            for fd in (launched.info, launched.done, *([pidfd] if pidfd >= 0 else ())):
                os.close(fd)
        live = Live(who, launched.outer, identity.start_time(launched.outer))
        with paths.box_directory(self._host.state, entry.box) as box:
            identity.write(box, live)
        clock.append(time.monotonic())
        return live

    def _abandon(self, launched: Launched, pidfd: int) -> None:
        """A start that failed: where no cgroup holds them, nobody else would find its processes."""
        with contextlib.suppress(ProcessLookupError):
            if pidfd >= 0:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            if self._children.running(launched.outer):
                os.kill(launched.outer, signal.SIGKILL)

    def _read_info(self, launched: Launched, until: float) -> Steps[Info]:
        """bubblewrap writes its object in several pieces."""
        data = b""
        while b"}" not in data:
            yield Wait(until, launched.info)
            piece = os.read(launched.info, 4096) if time.monotonic() < until else b""
            if not piece:
                raise (yield from self._failure(launched))
            data += piece
        raw = json.loads(data)
        return Info(int(raw["child-pid"]), int(raw.get("pid-namespace", 0)))

    def _failure(self, launched: Launched) -> Steps[SpawnerError]:
        """What bubblewrap said, as an error to raise."""
        yield from self._children.wait(launched.outer, 1.0)
        said = self._children.last_words(launched.outer)
        if os.strerror(errno.EAGAIN) in said:  # clone(2), in a cgroup whose pids are spent
            return Unavailable(f"the box did not start: {said}", NO_PROCESS_LEFT)
        remedy = ""
        if "No permissions" in said or "namespace" in said:
            remedy = "sysctl -w user.max_user_namespaces=65536 kernel.apparmor_restrict_unprivileged_userns=0"
        return Failed(f"the box did not start: {said or 'bubblewrap gave no reason'}", remedy)

    def end(self, entry: Entry, *, for_good: bool = False) -> Steps[None]:
        """Kills all, waits until nothing is left, removes cgroups, empties /tmp, forgets the identity. Idempotent.
        `for_good`: the tree goes next; the /tmp of an image goes with it and need not be mounted."""
        host = self._host
        with paths.box_directory(host.state, entry.box) as fd:
            live = identity.read(fd)
        yield from host.cgroups.kill(entry.box)
        if live is not None:
            self.identifier.kill(live)
            yield from self._gone(live)
        yield from host.cgroups.remove(entry.box)
        with paths.box_directory(host.state, entry.box) as fd, sources.Opened() as opened:
            gone_with_image = for_good and disk_parts.has(fd, disk_parts.IMAGE)
            usable = gone_with_image or (yield from self._usable(entry.box, fd))
            tmp = self._open_tmp(fd, entry.uid, opened) if usable and not gone_with_image else None
            if tmp is not None:
                yield from sweep.empty(tmp, entry.uid, self._children, groups=host.config.mode != "shared")
            if usable or for_good:  # else the next start, or its end, empties /tmp: that the mark stays says so
                take_socket(fd)
                identity.forget(fd)

    def _gone(self, live: Live) -> Steps[None]:
        """Until PID 1 has ended; the bwrap process outside is reaped by us, or by init if another server started it."""
        until = time.monotonic() + STOP_SECONDS
        pidfd = self.identifier.open_live(live)
        if pidfd is not None:
            try:
                yield Wait(until, pidfd)
                if not identity.exited(pidfd):
                    raise Failed("the box's PID 1 does not end", "ringfence doctor")
            finally:
                os.close(pidfd)
        if self._children.running(live.outer_pid):
            yield from self._children.wait(live.outer_pid, until - time.monotonic())

    def _usable(self, box: str, box_fd: int) -> Steps[bool]:
        """False: its image cannot be mounted. It must be stopped and removed all the same; its next start says why it
        cannot be used."""
        try:
            yield from self._disks.renew(box_fd)
        except (Failed, Busy) as error:
            sys.stderr.write(f"ringfence: /tmp of box {box} is not emptied: {error.message}\n")
            return False
        return True

    def _open_tmp(self, box_fd: int, uid: int, opened: sources.Opened) -> int | None:
        """The box's /tmp; None in a half-made box, which has no tree yet, and in a half-removed one, whose image is gone
        already."""
        if uid != os.geteuid() and disk_parts.untouched(box_fd):
            return None
        try:
            tree = opened.keep(paths.open_tree(box_fd, uid))
            return opened.keep(paths.open_part(tree, "tmp", uid))
        except Failed:
            return None


def _all_mounted(done: int, until: float) -> Steps[bool]:
    """Until bubblewrap has read its byte and closed its end (true). Closed with the byte unread (a reset, unix(7)), or
    not in time: it died on the way."""
    yield Wait(until, done)
    try:
        return time.monotonic() < until and os.read(done, 16) == b""
    except ConnectionError:
        return False
