"""The protocol between host and guest: the only code on both sides. No I/O."""
