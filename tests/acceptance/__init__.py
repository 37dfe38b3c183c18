"""The product from outside: the command line against a real server with real boxes."""
