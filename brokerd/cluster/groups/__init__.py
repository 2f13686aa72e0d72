"""The Raft groups of a member."""
