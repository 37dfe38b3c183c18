"""The life of a box as values: its states and what may follow, when it rests, what it used, copies of its tree. Pure."""
