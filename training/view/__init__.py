"""What Rerun shows: data sets, policies in simulation, practice as it goes on."""
