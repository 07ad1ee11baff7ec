"""Other formats, one file each, found by its name; what runs them is `vla.data.import_command`."""
