"""What is known of model providers, their use and its limits. Pure."""
