"""The trusted, unprivileged side: authority, durable facts and secrets. Never enters a box."""
