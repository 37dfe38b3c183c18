"""Durable facts on SQLAlchemy Core."""
