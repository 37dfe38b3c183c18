"""The only way out of a box: the worker that a box's traffic goes through, and the server's end of it."""
