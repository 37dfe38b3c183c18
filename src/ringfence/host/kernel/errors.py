"""The host's errors, cut by whose fault it is and what the caller should do.

    RingfenceError            code, message, remedy, details; the exit code and HTTP status that it becomes
    ├── Invalid               the caller's input                     2 / 422   (TooLarge 413, NameInvalid)
    ├── Unauthenticated       no or wrong or expired credential      3 / 401
    ├── Refused               policy says no                         3 / 403
    ├── NotFound              absent, or not to be seen: same text   4 / 404
    ├── Conflict              state says no: exists, busy            1 / 409   (KeyReused, LaneBusy, LaneFull 429, Steered,
    │                                                                      Exhausted 429, Diverged, StepGap, StaleEpoch,
    │                                                                      Busy, Parked, which is a StaleEpoch)
    ├── Unavailable           a part or an isolation is missing      5 / 503   (BoxLost, DiskFull 507)
    └── Failed                ours: a bug or a broken part           1 / 500

Messages carry the size and the limit; remedies carry the command to copy.
"""

from __future__ import annotations

from typing import Any, ClassVar


class RingfenceError(Exception):
    code: ClassVar[str] = "failed"
    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, *, remedy: str = "", **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.details = details
        # What only an operator is told, such as a foreign process; in no answer unless somebody puts it there.
        self.of_host = ""

    def as_json(self) -> dict[str, Any]:
        """The object under "error" of every JSON answer."""
        return {"code": self.code, "message": self.message, "remedy": self.remedy, "details": self.details}


class Invalid(RingfenceError):
    code = "invalid"
    exit_code = 2
    http_status = 422


class TooLarge(Invalid):
    code = "too_large"
    http_status = 413


class NameInvalid(Invalid):
    code = "invalid_name"


class Unauthenticated(RingfenceError):
    code = "unauthenticated"
    exit_code = 3
    http_status = 401


class Refused(RingfenceError):
    code = "refused"
    exit_code = 3
    http_status = 403


class NotFound(RingfenceError):
    code = "not_found"
    exit_code = 4
    http_status = 404


class Conflict(RingfenceError):
    code = "conflict"
    http_status = 409


class Busy(Conflict):
    """Something else is being done with the box: it is worth asking again, for what was asked is not at fault."""


class KeyReused(Conflict):
    """An idempotency key that was used with another body."""

    code = "key_reused"


class LaneBusy(Conflict):
    """A message with mode `reject`, and the lane has a live turn."""

    code = "lane_busy"


class LaneFull(Conflict):
    """Too many messages wait in the lane."""

    code = "lane_full"
    http_status = 429


class Steered(Conflict):
    """A run that was to finish, and its actor had said more to the turn."""

    code = "steered"


class Exhausted(Conflict):
    """A run asked for more than the budget of a run."""

    code = "budget_exhausted"
    http_status = 429


class Diverged(Conflict):
    """A step that is asked again, and is not the one of the journal."""

    code = "diverged"


class StepGap(Conflict):
    """A step whose number is not the next one."""

    code = "step_gap"


class StaleEpoch(Conflict):
    """A write by an executor that has lost its lease."""

    code = "stale_lease"


class Parked(StaleEpoch):
    """What a loop asked waits for somebody's answer, and the run with it: the loop is to end."""

    code = "parked"


class Unavailable(RingfenceError):
    code = "unavailable"
    exit_code = 5
    http_status = 503


class BoxLost(Unavailable):
    """The box ended while it was needed."""

    code = "box_lost"


class DiskFull(Unavailable):
    code = "disk_full"
    http_status = 507


class Failed(RingfenceError):
    """Ours to mend."""
