"""What a stream of events says, whatever is in them."""

from __future__ import annotations

from ringfence.host.web.feed import _sent


def test_half_of_a_surrogate_pair_in_live_text_ends_no_stream() -> None:
    """A conversation in a blob may have one, and a provider may say it back."""
    assert _sent("delta", {"text": "a \ud800 \u00e9"}) == 'event: delta\ndata: {"text": "a ? \u00e9"}\n\n'.encode()
