"""Credits of a command's streams: how much may be on its way. Numbers only.

Output (both streams of a command together) and stdin begin with a full window. The sender takes what it sends off its
credit and sends no byte without; the receiver gives back with `cmd.grant` (host: output) or `cmd.credit` (guest:
stdin) what has been consumed. With each hello, and with each `cmd.spawn` that attaches, both begin anew with a full
window: a receiver must therefore be able to hold two of them. Bytes that were on the lost wire are lost.
"""

CHUNK = 48 * 1024
"""Bytes of one frame of output or stdin: 64 KiB as base64, and 3 divides it."""
WINDOW = 256 * 1024
"""Bytes on their way: five chunks, so that a round trip never empties it."""
GIVE_BACK = 64 * 1024
"""A receiver gives credit back at least whenever this much was consumed: a quarter of the window."""
