"""Systems that run applications: Parrot, and what a client can do without it."""
