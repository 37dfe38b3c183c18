"""Rigs that several folders of tests share: real parts, set up and taken down."""
