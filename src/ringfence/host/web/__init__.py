"""HTTP: the operator socket and the API for people and programs."""
