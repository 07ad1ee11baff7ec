"""What all other folders build on: contracts, robots, and the policy with its parts."""
