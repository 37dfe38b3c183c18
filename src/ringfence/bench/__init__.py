"""Measures this host: ratios against the bare floor, taken in one run."""
