"""Fuzz targets; each also runs as a short seeded loop in the suite."""
