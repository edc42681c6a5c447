"""A leaf cgroup below the own one: made, limited, watched, emptied and removed.

The only place that writes to cgroupfs. `probe` puts its toucher into a leaf and
`launch` each attempt, so that usage, peak and kills belong to them alone.
Not covered: finding the limits that hold already, see `oomproof.limits`.
"""

from oomproof.leaf.model import Leaf, MemoryEvents, MemoryFiles
from oomproof.leaf.place import known_leaf, make_leaf, own_files

__all__ = ["Leaf", "MemoryEvents", "MemoryFiles", "known_leaf", "make_leaf", "own_files"]
