"""Runs one command in a guest: another kernel, another cgroup mode, the host's own files.

The host's file system is visible in the guest, read-only below a throw-away overlay, so that
whatever is installed on the host can be run there; one folder can be shared for writing.
Emulated in software unless the host has hardware virtualisation: a boot takes about five
seconds, Python runs some twenty times slower, one processor. No network.

See `rigs.image` for what a guest boots from.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rigs import cpio
from rigs.image import image

CgroupMode = Literal["v2", "v1", "hybrid", "none"]

_QEMU = "qemu-system-x86_64"
_INIT = Path(__file__).with_name("init.sh")
# Without five-level page tables: each level costs the emulation time at every miss of the TLB.
_EMULATED_CPU = "max,la57=off"
_LOG_TAIL_LINES = 60


class GuestError(Exception):
    """Raised when a guest ended without the command's exit code; see its two kinds."""

    def __init__(self, cause: str, output: str, console: str) -> None:
        self.output = output
        """What the command had written until then."""
        self.console = console
        """What QEMU and the guest's kernel complained about."""
        tail = "\n".join(console.splitlines()[-_LOG_TAIL_LINES:])
        super().__init__(f"{cause}\n{tail}" if tail else cause)


class GuestTimedOut(GuestError):
    """Raised when the command had not ended in time; the guest has been switched off."""


class GuestDied(GuestError):
    """Raised when the guest ended by itself, by a panic for example, before the command did."""


@dataclass(frozen=True, slots=True)
class GuestRun:
    """A command that ran to its end in a guest."""

    exit_code: int
    """As a shell tells it: 128 + N for a death by signal N."""
    output: str
    """Standard output and standard error, as written."""
    kernel_log: str
    """The guest's whole ``dmesg``, in which OOM kills are found."""
    seconds: float
    """Wall time, boot included."""


@dataclass(frozen=True, slots=True)
class Guest:
    """A configuration in which commands can be run; each run boots a new guest."""

    kernel: str
    """A key of `rigs.debian.KERNELS`."""
    cgroup: CgroupMode
    memory_mib: int = 2048
    swap_mib: int = 0
    """Size of a compressed swap device (zram); 0: no swap."""
    kernel_arguments: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        swap = f"-swap{self.swap_mib}" if self.swap_mib else ""
        return f"{self.cgroup}-{self.kernel}{swap}"

    def problem(self) -> str | None:
        """Why this configuration cannot be run here; None when it can."""
        if reason := machine_problem():
            return reason
        if shutil.which(_QEMU) is None:
            return f"{_QEMU} is not installed (make rig)"
        if not image(self.kernel).is_current():
            return f"the guest kernel {self.kernel} is not installed (make rig)"
        return None

    def run(
        self,
        command: str,
        *,
        timeout_s: float,
        environment: Mapping[str, str] | None = None,
        working_directory: Path = Path("/"),
        shared: Path | None = None,
    ) -> GuestRun:
        """Runs a command in a new guest and waits for its end: `start` and `RunningGuest.wait` in one."""
        with self.start(
            command, environment=environment, working_directory=working_directory, shared=shared
        ) as running:
            return running.wait(timeout_s)

    def start(
        self,
        command: str,
        *,
        environment: Mapping[str, str] | None = None,
        working_directory: Path = Path("/"),
        shared: Path | None = None,
    ) -> RunningGuest:
        """Boots a guest that runs the shell command `command`.

        `shared` is a folder of the host that the guest sees at the same path and may write to.
        """
        control = Path(tempfile.mkdtemp(prefix="oomproof-guest-"))
        (control / "command").write_text(_script(command, environment or {}, working_directory))
        self._write_initramfs(control / "initramfs")
        with (control / "complaints").open("w") as complaints:
            qemu = subprocess.Popen(
                self._qemu_command(control, shared),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=complaints,
            )
        return RunningGuest(self, qemu, control)

    def _write_initramfs(self, path: Path) -> None:
        init = cpio.archive([cpio.executable("init", _INIT.read_bytes())])
        path.write_bytes(image(self.kernel).initramfs.read_bytes() + init)

    def _qemu_command(self, control: Path, shared: Path | None) -> list[str]:
        accelerated = _has_hardware_virtualisation()
        # setpriv: no guest outlives the test run, however that ends.
        command = ["setpriv", "--pdeathsig", "KILL", _QEMU, "-nodefaults", "-no-user-config", "-no-reboot"]
        command += ["-machine", "q35", "-smp", "1", "-m", str(self.memory_mib), "-display", "none"]
        command += ["-accel", "kvm" if accelerated else "tcg,tb-size=512"]
        command += ["-cpu", "host" if accelerated else _EMULATED_CPU]
        command += ["-kernel", str(image(self.kernel).vmlinux), "-initrd", str(control / "initramfs")]
        command += ["-append", " ".join(self._kernel_command_line(shared))]
        command += ["-serial", f"file:{control / 'console'}"]
        command += ["-device", "virtio-serial-pci", "-chardev", f"file,id=output,path={control / 'output'}"]
        command += ["-device", "virtserialport,chardev=output,name=output"]
        command += _share("host", Path("/"), "readonly=on,multidevs=remap")
        command += _share("control", control)
        if shared is not None:
            command += _share("shared", shared)
        return command

    def _kernel_command_line(self, shared: Path | None) -> list[str]:
        words = ["console=ttyS0", "loglevel=4", "quiet", "panic=-1", "reboot=t", "mitigations=off", "nokaslr"]
        words += ["tsc=reliable", "random.trust_cpu=on", f"RIG_CGROUP={self.cgroup}"]
        if self.cgroup == "v2":
            words.append("cgroup_no_v1=all")
        if self.swap_mib:
            words.append(f"RIG_SWAP_MIB={self.swap_mib}")
        if shared is not None:
            words.append(f"RIG_SHARED={shared}")
        return [*words, *self.kernel_arguments]


class RunningGuest:
    """A guest that has been started; made by `Guest.start`. Use as a context manager."""

    def __init__(self, guest: Guest, qemu: subprocess.Popen[bytes], control: Path) -> None:
        self._guest = guest
        self._qemu = qemu
        self._control = control
        self._started = time.monotonic()

    def wait(self, timeout_s: float) -> GuestRun:
        """Waits until the command has ended.

        Raises GuestTimedOut when that takes longer than `timeout_s` seconds, boot included,
        and GuestDied.
        """
        try:
            qemu_exit_code = self._qemu.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.switch_off()
            cause = f"guest {self._guest}: still running after {timeout_s:g} s, switched off"
            raise GuestTimedOut(cause, self.output(), self._read("console")) from None
        exit_code = self._read("exit_code")
        if not exit_code:
            cause = f"guest {self._guest}: died before the command ended (QEMU's exit code: {qemu_exit_code})"
            log = self._read("complaints") + self._read("console")
            raise GuestDied(cause, self.output(), log)
        seconds = time.monotonic() - self._started
        return GuestRun(int(exit_code), self.output(), self._read("kernel_log"), seconds)

    def output(self) -> str:
        """What the command has written so far."""
        return self._read("output")

    def switch_off(self) -> None:
        """Ends the guest at once; a `wait` in another thread then raises GuestDied."""
        self._qemu.kill()
        self._qemu.wait()

    def __enter__(self) -> RunningGuest:
        return self

    def __exit__(self, *_: object) -> None:
        self.switch_off()
        shutil.rmtree(self._control, ignore_errors=True)

    def _read(self, name: str) -> str:
        try:
            return (self._control / name).read_text(errors="replace")
        except FileNotFoundError:
            return ""


def machine_problem() -> str | None:
    """Why no guest can ever run on this machine; None when one can."""
    if platform.machine() != "x86_64":
        return f"guests are x86-64 machines, this is {platform.machine()}"
    return None


def _script(command: str, environment: Mapping[str, str], working_directory: Path) -> str:
    variables = {"PATH": os.defpath, "HOME": "/root", "LANG": "C.UTF-8", **environment}
    exports = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    return "\n".join([*exports, f"cd {shlex.quote(str(working_directory))} || exit", command, ""])


def _share(tag: str, path: Path, options: str = "multidevs=remap") -> list[str]:
    return [
        "-fsdev",
        f"local,id={tag},path={path},security_model=none,{options}",
        "-device",
        f"virtio-9p-pci,fsdev={tag},mount_tag={tag}",
    ]


def _has_hardware_virtualisation() -> bool:
    # /dev/kvm alone does not say so: under a paravirtualised KVM, stock kernels do not boot.
    driven = any(Path("/sys/module", name).exists() for name in ("kvm_intel", "kvm_amd"))
    return driven and os.access("/dev/kvm", os.R_OK | os.W_OK)
