"""An engine in memory for tests of the web, the SDK and the command line: real subprocesses, no walls."""
