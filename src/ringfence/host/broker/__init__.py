"""The host's end of the wire: hostile bytes in, typed asks out."""
