"""Pure functions and small modules that the parts of the policy share."""
