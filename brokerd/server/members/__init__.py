"""Members of the cluster and of the queues' groups: who comes, goes, is refilled and repaired."""
