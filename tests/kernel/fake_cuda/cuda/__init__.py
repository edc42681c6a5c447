"""A stand-in for the package cuda-core on machines without a GPU."""
