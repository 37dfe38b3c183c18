"""The command line's entry: runs the asked command and maps every error to its exit code.

Only what the command needs is imported: `exec` pays neither for an HTTP library nor for the option parser of the others,
and no client command for a part of the server.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import sys

from ringfence.cli import say_it

FULL = "make room where the output goes; what the server was asked to do is done"


def main() -> int:
    """The process's exit code."""
    _have_standard_files()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names are Unicode; a terminal's encoding may be less
    words = sys.argv[1:]
    as_json = "--json" in (words[: words.index("--")] if "--" in words else words)
    try:
        code = _run(words, as_json)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _leave_stdout()
        return 141
    except Exception as error:
        return _told(error, as_json)


def _told(error: Exception, as_json: bool) -> int:
    """The exit code of a failure, said where it can be said: a full disk under stdout takes no error object either."""
    code: int | None = None
    try:
        code = _failed(error, as_json)
        sys.stdout.flush()
    except OSError:
        _leave_stdout()
        return _failed(error, False) if as_json or code is None else code
    return code


def _leave_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that the flush at exit has nothing to complain about


def _have_standard_files() -> None:
    """A closed 0, 1 or 2 would be taken by the next socket, and output would go into it."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    if sys.stdout is None:  # so says Python when it finds 1 or 2 closed
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def _run(words: list[str], as_json: bool) -> int:
    gc.disable()  # importing makes no garbage, and looking for it takes a tenth of the time
    if words[:1] == ["exec"]:
        from ringfence.cli import exec_words

        plain = exec_words.parse(words[1:])
        if plain is not None:
            from ringfence.cli import exec_run

            gc.enable()
            return exec_run.run(plain)
    from ringfence.cli import tree

    gc.enable()
    return tree.run(words, as_json)


def _failed(error: Exception, as_json: bool) -> int:
    from ringfence.client.errors import ApiError

    if isinstance(error, ApiError):
        return say_it.error(error.code, error.message, error.remedy, error.details, as_json, error.exit_code)
    if os.environ.get("RINGFENCE_DEBUG"):
        raise error
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        return say_it.error("failed", f"the output cannot be written: {error.strerror}", FULL, {}, as_json, 1)
    what = f"{type(error).__name__}: {error}"
    return say_it.error("failed", what, "RINGFENCE_DEBUG=1 shows where; please report it", {}, as_json, 1)
