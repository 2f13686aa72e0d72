"""Who may come in: logins, limits, who is connected."""
