"""The paragraph of the agent's prompt that states what really isolates its box. Pure: from facts to text.

It must never claim a wall that this host does not have: each sentence comes from a fact, and each missing part is named.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# What the lack of a part means for the agent and the people whose work it does. Ids as in `accept`.
_WEAK: dict[str, str] = {
    "no-cgroup": "memory, processor and process limits are not enforced, and a box cannot be frozen",
    "shared-uid": "all boxes share one host user id, so namespaces are the only wall between them",
    "no-landlock": "a command can signal the agent loop in the same box",
    "no-landlock-scope": "a command can end the agent loop in the same box, which is noticed and made good",
    "no-pidfs": "the box's first process is told from others by pid and start time only",
    "no-disk-quota": "the size of the box's files is counted, not bounded: a box above its limit is stopped",
    "no-cpu-limit": "the processor time of a box is not bounded",
    "no-swap-limit": "the memory limit holds for RAM alone: a box may use all of the host's swap",
    "no-freezer": "the box cannot be frozen: a pause is a stop",
    "no-nft": "the box has a loopback interface only",
    "unproved": "no attack suite has tried these walls as they are now, since this host was booted",
}


@dataclass(frozen=True, slots=True)
class Posture:
    """What is known of a box's isolation."""

    driver: str
    mode: str  # root, subuid, shared
    weak: tuple[str, ...]  # ids of what this host cannot enforce
    network: bool  # whether anything outside the box can be reached
    memory_bytes: int
    pids: int
    disk_bytes: int
    persistent: tuple[str, ...] = ("/home/user", "/workspace")
    emptied: tuple[str, ...] = ("/tmp",)


def weaknesses(weak: Iterable[str]) -> list[str]:
    """A clause for each id, in the order given; an unknown id is named as it is."""
    return [_WEAK.get(one) or _unknown(one) for one in weak]


def _unknown(one: str) -> str:
    return f"the attack {one} of the proof suite is not stopped" if one[:1].isupper() else f"this host lacks {one}"


def paragraph(posture: Posture) -> str:
    """Plain English, one paragraph, without a line break."""
    parts = [
        f"You work in a box of your user's own, made by the {posture.driver} driver in {posture.mode} mode: "
        "commands run there as user id 1000 without privileges, and other people's boxes, the host's files and the "
        "server's keys are out of reach.",
        "The network is open to what policy allows."
        if posture.network
        else "There is no network: every connection is refused.",
        f"{' and '.join(posture.persistent)} survive a restart of the box; {' and '.join(posture.emptied)} is emptied "
        "when it stops, and processes end then.",
    ]
    if "no-cgroup" not in posture.weak:
        parts.append(f"Limits: {posture.memory_bytes // (1 << 20)} MiB of memory, {posture.pids} processes.")
    if "no-disk-quota" not in posture.weak:
        parts.append(f"The files of the box may have {posture.disk_bytes // (1 << 20)} MiB together.")
    if posture.weak:
        parts.append("What this host does not enforce: " + "; ".join(weaknesses(posture.weak)) + ".")
    parts.append("A rule about commands inside the box is advice, not a wall: the walls are around the box.")
    return " ".join(parts)
