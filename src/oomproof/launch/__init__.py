"""Start a program, watch it, judge its death and start it again smaller; also as PID 1.

`attempts.run_attempts` is the way in. Each of its parts stands alone: `spawn` starts one
process, `supervisor` runs one attempt to its end and returns what was seen, `verdict`
judges that without touching the kernel, `events` tells programs about it.
Not covered: finding the budget (`oomproof.plan`) and keeping the record (`oomproof.history`).
"""
