"""Which nodes start with which parameters, and how."""
