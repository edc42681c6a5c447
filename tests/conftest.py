"""What all tests share: real kernels and their bookkeeping, see the two plugins."""

pytest_plugins = ["rigs.pytest_worlds", "rigs.pytest_guests"]
