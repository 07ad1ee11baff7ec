"""The training loop and what every run needs: config, optimizer, metrics, distribution."""
