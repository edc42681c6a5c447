"""One budget, explained: pure arithmetic on what `limits` and `probe` found.

`budget.plan_budget` gives the first budget, `descent` the next one after an OOM kill.
Not covered: reading anything from the machine, and remembering (`oomproof.history`).
"""
