"""One file for each schema, named by its number."""
