import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.errors import InvalidSize
from oomproof.units import GIB, KIB, MAX_SIZE, MIB, format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("4096B", 4096),
        ("1k", KIB),
        ("512M", 512 * MIB),
        ("512mib", 512 * MIB),
        ("90GiB", 90 * GIB),
        ("1.5G", 3 * GIB // 2),
        ("500MB", 500_000_000),
        ("1kB", 1000),
        (" 12 MiB ", 12 * MIB),
        ("0.3B", 0),
    ],
)
def test_sizes_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-1",
        "+1",
        "1e9",
        "GiB",
        "1Q",
        "1GiBB",
        "1 G B",
        "0x10",
        "1,5G",
        "nan",
        "1..5",
        "٣",
        "8EiB",
        "9" * 40,
    ],
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidSize) as caught:
        parse_size(text)
    assert repr(text.strip()) in str(caught.value) or repr(text) in str(caught.value)
    assert "size" in str(caught.value)
    assert caught.value.exit_code == 2


@given(st.integers(0, MAX_SIZE))
def test_plain_bytes_are_exact(size: int) -> None:
    assert parse_size(str(size)) == size


@given(st.text(max_size=30))
def test_no_text_raises_anything_but_invalid_size(text: str) -> None:
    try:
        assert 0 <= parse_size(text) <= MAX_SIZE
    except InvalidSize:
        pass


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "unknown"),
        (0, "0 B"),
        (1023, "1023 B"),
        (KIB, "1.00 KiB"),
        (3 * GIB // 2, "1.50 GiB"),
        (-MIB, "-1.00 MiB"),
        (MAX_SIZE, "8.00 EiB"),
    ],
)
def test_sizes_for_people(size: int | None, text: str) -> None:
    assert format_size(size) == text
