"""Attack programs: what is sent into a box. Standard library only, nothing of ours; each must run anywhere unchanged."""
