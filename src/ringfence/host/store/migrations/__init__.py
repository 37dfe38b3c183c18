"""Schema changes, oldest first in versions/. Each is frozen once released."""
