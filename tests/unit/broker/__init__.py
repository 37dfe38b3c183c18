"""The broker's pure parts."""
