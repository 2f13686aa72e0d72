"""The cluster's metadata, who may do what, and routing.  Pure."""
