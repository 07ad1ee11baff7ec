"""Many environments together: in one process, in worker processes, in real time."""
