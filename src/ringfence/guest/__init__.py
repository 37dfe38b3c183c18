"""UNTRUSTED: what runs inside a box. Standard library and wire only."""
