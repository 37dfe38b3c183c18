"""What the native loop needs of its host, and how it gives up. No code of ours below it: everything may import it."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    class Asks(Protocol):
        """The host, as far as the loop needs it."""

        def ask(self, method: str, **params: Any) -> dict[str, Any]:
            """loop.AskError."""

        def news(self) -> list[tuple[str, dict[str, Any]]]:
            """(method, parameters) of what the host told since the last call: `steer` {message}, `wind_down`
            {seconds}. Only speed: whatever is not told here is in run.start or in the answer to run.finish."""


class Wound(Exception):
    """The time is nearly over, and the call of the model that was under way is not made again: the loop thinks anew."""


class RunFailed(Exception):
    """The run cannot be finished. Said to the host as run.fail."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
