"""What all tests share: real kernels and their bookkeeping, see the two plugins."""

import signal

import hypothesis

# Where time is the promise a test says so itself; elsewhere a busy machine is no failure.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")

pytest_plugins = ["rigs.pytest_worlds", "rigs.pytest_guests"]


def pytest_configure() -> None:
    """Programs under test inherit what is ignored; a run in the background or under nohup ignores some."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, usual)
