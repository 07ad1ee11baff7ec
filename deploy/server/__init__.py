"""The policy server and its client."""
