"""ringfence: one shared agent for a whole team, one walled box per person."""
