"""A deterministic world around the real engine and store: virtual time, one source of chance, faults, and a verdict."""
