"""In cuzk's place: reads the file that --config names and fills 90 % of its [memory] total_budget."""

import sys
import tomllib
from pathlib import Path

from oomproof.units import MIB, parse_size

document = tomllib.loads(Path(sys.argv[sys.argv.index("--config") + 1]).read_text())
assert document["daemon"] == {"listen": "0.0.0.0:9820"}, "the rest of the file stays as it was"
total = parse_size(document["memory"]["total_budget"])
held = [bytes(range(256)) * (MIB // 256) for _ in range(0, total * 9 // 10, MIB)]
print("filled:", len(held), "MiB of", total)
