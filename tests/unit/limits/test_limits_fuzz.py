"""Any bytes in any file: no exception, no hang, and never a larger answer than a valid level allows."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from oomproof.limits import host, mounts, process, v1, v2
from oomproof.limits.anonymise import Names
from oomproof.limits.capture import capture
from oomproof.limits.detect import detect_limits
from oomproof.limits.explain import explain
from oomproof.limits.files import Tree, parse_keyed, parse_number, printable
from oomproof.limits.hints import read_hints
from oomproof.limits.model import Status
from oomproof.limits.report import report_as_json
from oomproof.units import GIB, KIB
from unit.limits.machines import HOST_TOTAL, V1_MOUNT, V2_MOUNT, Machine

CG = "/sys/fs/cgroup"
WORDS = st.sampled_from(
    b"0::/|memory|cgroup|cgroup2| - |/..|max|MemTotal:| kB|\n|\0|\\040|9223372036854771712|-1|inactive_file "
    b"|:|,| |\xff|/a|rw|1|0|\r".split(b"|")
)
SOUP = st.one_of(st.binary(max_size=400), st.lists(WORDS, max_size=40).map(b"".join))
LIMIT = st.one_of(SOUP, st.integers(-1, 1 << 65).map(lambda n: str(n).encode()), st.just(b"max\n"))
FAST = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@contextmanager
def fresh() -> Iterator[Machine]:
    directory = tempfile.mkdtemp(prefix="oomproof-fuzz-")
    try:
        yield Machine(Path(directory))
    finally:
        shutil.rmtree(directory)


@settings(deadline=2000)  # milliseconds: over-long lines must not hang it, a busy machine may slow it
@given(SOUP)
@example(b"9" * 100_000)
@example(b"0::/" + b"/.." * 50_000)
@example(b"1 2 3 /" + b"\\040" * 50_000 + b" / rw - cgroup2 c rw")
def test_every_parser_takes_any_bytes(content: bytes) -> None:
    for membership in mounts.parse_cgroup(content):
        assert membership is None or membership.path.startswith("/")
    for mount in mounts.parse_mountinfo(content):
        assert mount.root.startswith("/")
        assert mount.point.startswith("/")
    number = parse_number(content)
    assert number is None or 0 <= number < 1 << 64
    for pattern in (host._FIELDS, v1._STAT, v1._OOM_CONTROL, v2._STAT, v2._EVENTS, process._SIZES):
        assert all(0 <= value <= ((1 << 64) - 1) * KIB for value in parse_keyed(content, pattern).values())
    assert all(value >= 0 for value in v2.parse_pressure(content).values())
    assert all(value is None or value >= 0 for value in process.parse_limits(content).values())
    nodes = host.parse_list(content)
    assert nodes is None or all(0 <= node <= host.MAX_NODES for node in nodes)
    process.has_capability(content, process.CAP_IPC_LOCK)


@settings(deadline=None)
@given(st.text(max_size=60), st.text(max_size=60))
def test_paths_of_any_form_have_a_way_or_none(own: str, root: str) -> None:
    found = mounts.route(f"/{own}", mounts.Mount(2, f"/{root}", "/m"))
    assert found is None or ".." not in found.names


@given(
    st.dictionaries(st.sampled_from(["MEMORY_LIMIT", "SLURM_MEM_PER_NODE", "AWS_EXECUTION_ENV"]), st.text())
)
def test_hints_take_any_text(environment: dict[str, str]) -> None:
    for hint in read_hints(environment):
        assert hint.message.isprintable()


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_paths_are_shown_as_one_printable_line(raw: bytes) -> None:
    shown = printable(raw.decode("utf-8", "surrogateescape"))
    assert shown.isprintable()
    shown.encode("utf-8")


@FAST
@given(SOUP, SOUP, SOUP, SOUP)
def test_any_proc_files_give_a_printable_answer(
    cgroup: bytes, mountinfo: bytes, meminfo: bytes, status: bytes
) -> None:
    with fresh() as machine:
        machine.file("/proc/self/cgroup", cgroup).file("/proc/self/mountinfo", mountinfo)
        machine.file("/proc/meminfo", meminfo).file("/proc/self/status", status)
        machine.level_v2(CG, limit=GIB)
        report = machine.detect()
        json.dumps(report_as_json(report), ensure_ascii=False).encode("utf-8")
        assert all(line.isprintable() for line in explain(report))
        assert (report.status is Status.UNKNOWN) == (report.limit_bytes is None)


@FAST
@given(
    noise=SOUP,
    own=LIMIT,
    middle=LIMIT,
    usage=LIMIT,
    stat=SOUP,
    version=st.sampled_from([1, 2]),
)
@example(noise=b"", own=b"max", middle=b"junk", usage=b"0", stat=b"", version=2)
def test_never_more_than_a_valid_level_allows(  # noqa: PLR0917
    noise: bytes, own: bytes, middle: bytes, usage: bytes, stat: bytes, version: int
) -> None:
    """/a/b is ours, /a and the mount's root lie above; the root is valid and limits to 1 GiB."""
    with fresh() as machine:
        machine.host()
        member = b"0::/a/b" if version == 2 else b"7:memory:/a/b"
        # Noise that forms a line of its own could name another cgroup: that is another machine, not noise.
        quiet = noise.replace(b":", b"").replace(b"cgroup", b"")
        machine.file("/proc/self/cgroup", quiet + b"\n" + member + b"\n" + quiet)
        mount = (V2_MOUNT if version == 2 else V1_MOUNT).encode()
        machine.file("/proc/self/mountinfo", quiet + b"\n" + mount + b"\n" + quiet)
        top = CG if version == 2 else f"{CG}/memory"
        file, current = ("memory.max", "memory.current")
        if version == 1:
            file, current = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        for directory, limit in ((f"{top}/a/b", own), (f"{top}/a", middle), (top, str(GIB).encode())):
            machine.file(f"{directory}/{file}", limit).file(f"{directory}/{current}", usage)
            machine.file(f"{directory}/memory.stat", stat).file(f"{directory}/cgroup.procs", "")
        report = machine.detect()
        valid = [n for text in (own, middle) if (n := parse_number(text)) is not None]
        if report.limit_bytes is not None:
            assert report.limit_bytes <= min([GIB, *valid])
        if report.available_bytes is not None:
            assert report.limit_bytes is not None
            assert 0 <= report.available_bytes <= report.limit_bytes
        if parse_number(own) is None and own.strip(b" \t\n") not in (b"max", b"-1"):
            assert report.status is Status.UNKNOWN
        assert report.limit_bytes != HOST_TOTAL


@settings(max_examples=40, deadline=None)
@given(
    st.binary(min_size=1, max_size=30).filter(
        lambda name: not {0, 10, 47} & set(name) and name not in (b".", b"..")
    )
)
def test_any_cgroup_name_is_read_and_replays_under_its_pseudonym(name: bytes) -> None:
    with fresh() as machine:
        machine.host().mounts(V2_MOUNT).member(b"0::/" + name).root_v2()
        machine.level_v2(CG.encode() + b"/" + name, limit=GIB)
        report = machine.detect()
        assert report.limit_bytes == GIB
        bundle = machine.root / "machine.tar"
        assert capture(bundle, machine.root).limit_bytes == GIB


@settings(deadline=None)
@given(st.lists(st.text("abcdefghij0123456789", min_size=2, max_size=4), min_size=1, max_size=8))
def test_different_names_have_different_pseudonyms(words: list[str]) -> None:
    names = Names()
    shown = {word: names.text(word.encode()) for word in words}
    assert len(set(shown.values())) == len(shown)
    assert all(names.text(word.encode()) == pseudonym for word, pseudonym in shown.items())


def test_a_tree_without_anything_is_no_error() -> None:
    with fresh() as machine:
        assert detect_limits(machine.root).status is Status.UNKNOWN
        assert Tree(machine.root).read("/nul\0byte") is None
