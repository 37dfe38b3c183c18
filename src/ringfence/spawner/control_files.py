"""Single control files of a cgroup directory: written, read, counted. Must never be given a name that came from a
box."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from ringfence.spawner.limits import Knob


def write_all(directory: str, knobs: list[Knob]) -> None:
    """Raises OSError, what is before it written."""
    left = refused(directory, knobs, lambda _, error: error.errno == errno.EINVAL)
    for knob in left:
        write(directory, knob)


def refused(directory: str, knobs: list[Knob], may_be: Callable[[Knob, OSError], bool]) -> list[Knob]:
    """Writes them in their order, and what was refused once more after the rest: v1 takes memory above memory + swap
    (EINVAL) only once that is raised. What was refused again; OSError for what may not be."""
    left = knobs
    for _ in range(2):
        trying, left = left, []
        for knob in trying:
            try:
                write(directory, knob)
            except OSError as error:
                if not may_be(knob, error):
                    raise
                left.append(knob)
    return left


def write(directory: str, knob: Knob) -> None:
    """Raises OSError, with the file's name."""
    try:
        fd = os.open(f"{directory}/{knob.file}", os.O_WRONLY)
    except FileNotFoundError:
        if knob.optional:
            return
        raise
    try:
        os.write(fd, knob.value.encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, f"{directory}/{knob.file}") from error
    finally:
        os.close(fd)


def as_it_is(directory: str, knobs: list[Knob]) -> list[Knob]:
    """The same control files with the values that they have now; those that are there."""
    now = [Knob(knob.file, read(f"{directory}/{knob.file}").strip(), optional=True) for knob in knobs]
    return [knob for knob in now if knob.value]


def read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except OSError:
        return ""


def number(path: str) -> int:
    text = read(path).strip()
    return int(text) if text.isdigit() else 0


def count(path: str, name: str) -> int:
    for line in read(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdigit():
            return int(value)
    return 0


def removed(directory: str) -> bool:
    """Whether it is gone now; False: it is in use."""
    try:
        os.rmdir(directory)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
