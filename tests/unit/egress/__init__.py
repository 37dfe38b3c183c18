"""Tests; see CONTRIBUTING.md for what each folder holds."""
