"""Memory and time that presets take."""
