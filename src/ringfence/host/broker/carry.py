"""Carrying commands over from a lost wire to the next one to the same guest, by their keys.

A command that the guest runs is attached to; one that has ended is reported again by the guest itself; one that it does
not know is lost. It must never start anything: a key that a guest knows is never run again.
"""

from __future__ import annotations

from collections.abc import Mapping

from ringfence.host.broker.commands import WireCommand
from ringfence.host.broker.exchange import Exchange
from ringfence.host.broker.record import BoxRecord
from ringfence.host.broker.tasks import Tasks
from ringfence.host.kernel.errors import BoxLost, RingfenceError
from ringfence.wire.messages import CmdStarted

_GRACE_MS = 2000  # for a command that was started for nobody


def carry_over(record: BoxRecord, known: Mapping[str, str], exchange: Exchange, tasks: Tasks) -> None:
    """`known`: key -> state, of the hello of the new wire. Called before any later frame is read."""
    for key in record.unwanted & known.keys():
        tasks.go(_stop(key, exchange), f"stop of {key}")
    record.unwanted.clear()
    for command in list(record.commands.values()):
        state = "ended" if command.ended else known.get(command.key)
        if state is None:
            command.lose("the wire was lost, and the box no longer knows the command")
        elif state == "ended":
            command.rebind(exchange)
        else:
            command.expect()
            tasks.go(_attach(command, exchange), f"attach to {command.key}")


async def _attach(command: WireCommand, exchange: Exchange) -> None:
    def settle(reply: CmdStarted | None, error: RingfenceError | None) -> None:
        if error is None:
            command.rebind(exchange)
        elif not isinstance(error, BoxLost):
            command.lose(f"the wire was lost, and the box did not attach: {error.message}")

    try:
        await exchange.clear()
        await exchange.send("cmd.spawn", command.params, settle)
    except RingfenceError:
        return  # the command knows; a wire that is lost as well is carried over by the next one


async def _stop(key: str, exchange: Exchange) -> None:
    try:
        await exchange.request("cmd.stop", {"key": key, "grace_ms": _GRACE_MS})
    except RingfenceError:
        return  # it has ended, or the box has
