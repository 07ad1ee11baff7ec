"""Interventions during rollouts: when they start, who acts, retries."""
