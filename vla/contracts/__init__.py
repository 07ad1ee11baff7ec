"""What crosses folder boundaries: types, specs, protocols, the registry, configurations."""
