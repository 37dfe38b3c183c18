"""Does: the async use cases over the ports. Opens nothing itself."""
