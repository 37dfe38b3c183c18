"""Tests of host/capabilities."""
