"""What is allowed: the limit that binds this process, from every file of the kernel that tells.

Three layers: `discovery` (where are the files), `v1`, `v2`, `host`, `process` (what do they say),
`judgement` (what does it mean on this host). The sole reader of cgroupfs and /proc for limits.
"""

from oomproof.limits.detect import detect_limits
from oomproof.limits.discovery import find_memory_cgroup
from oomproof.limits.judgement import with_leaf_limit

__all__ = ["detect_limits", "find_memory_cgroup", "with_leaf_limit"]
