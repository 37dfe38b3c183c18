"""Capabilities: what the host itself does in the world for a step, each under its key and with a way to find out if it did."""
