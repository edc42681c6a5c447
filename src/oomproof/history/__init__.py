"""What happened here before: every attempt, written down before it starts and when it ends.

`store.History` is the file; `record.Record` is what a launcher writes through, and what
keeps a broken disk from becoming a broken start.
Not covered: drawing conclusions from it (`oomproof.plan`).
"""
