"""The floor everything stands on: contracts, robots, and the policy with its parts."""
