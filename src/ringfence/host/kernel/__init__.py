"""Decides. Plain functions and nouns: no await, clock, randomness or I/O; standard library only."""
