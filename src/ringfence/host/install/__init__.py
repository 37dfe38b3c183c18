"""Makes and checks an installation: state tree, accounts, runtime copy, and what this host can enforce."""
