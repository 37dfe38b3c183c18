"""Long comparisons with programs that are no part of the project, each in an environment of its own; `make soak` only."""
