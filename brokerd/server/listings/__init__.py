"""Live rows of what a member has, for every front door that lists it."""
