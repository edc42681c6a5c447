"""oomproof: programs that live in the memory they really have."""

__version__ = "0.1.0"
