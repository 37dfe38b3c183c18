"""`signal` without its enums, which cost 5 ms at the start of a box: the C module under its well-known name."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal

    signal = _signal

__all__ = ["signal"]
