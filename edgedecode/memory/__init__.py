"""Memory: the limit, the budget and its leases, the session plan, and measurements of the process."""
