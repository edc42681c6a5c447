"""Real kernels for the tests: guests that run a command under another kernel and cgroup mode.

guest     boot one, run a command in it, bring back exit code, output and kernel log
image     what a guest boots from, made from a Debian kernel package
cpio      the archive format of an initramfs
debian    where the kernel packages come from
init.sh   the guest's first process

``make rig`` (``python -m rigs``) installs it all; standard library only, so that any Python can.
"""
