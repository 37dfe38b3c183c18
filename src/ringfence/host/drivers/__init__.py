"""Makes boxes on a substrate."""
