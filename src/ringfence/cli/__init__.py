"""The terminal: imports client only, and the composition root inside the commands that need no server."""
