"""Stored credentials, sealed. The one room that sees a value in clear beside the egress worker it is released to."""
