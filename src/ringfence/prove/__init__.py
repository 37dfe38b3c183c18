"""The attack, leak and fault suites as a product feature: what the walls of this host hold, tried on this host."""
