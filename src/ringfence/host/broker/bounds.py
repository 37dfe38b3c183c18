"""How long and how much the broker bears. One object, made where the broker is made; tests make shorter ones."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bounds:
    hello_seconds: float = 5.0  # PID 1 answers as soon as it reads; it was seen to listen
    frame_seconds: float = 10.0  # a frame that has begun must have ended by then
    write_seconds: float = 30.0  # what was queued must have left by then
    reply_seconds: float = 30.0  # PID 1 answers at once whatever its commands do; a forked loop is up in 0.1 s
    events: int = 20  # run.event of one run in a second
    output: int = 32 * 1024 * 1024  # bytes of output of a box in a second; 0 = no bound
    queue_bytes: int = 4 * 1024 * 1024  # written and not taken: four of the largest frames
