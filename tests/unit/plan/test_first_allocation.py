from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from oomproof.plan.first_allocation import Sample, first_allocation

SAMPLES = st.lists(
    st.builds(
        Sample, st.integers(0, 1000), st.integers(0, 100).map(float), st.sampled_from([0.25, 0.5, 1.0])
    ),
    min_size=1,
    max_size=20,
)


def waste(allocation: int, samples: Sequence[Sample], largest: int) -> float:
    """The formula as it stands in the paper, not as it is computed."""
    total = sum(sample.weight for sample in samples)
    mean = sum(sample.weight * sample.seconds for sample in samples) / total
    exceeding = sum(s.weight * s.seconds for s in samples if s.bytes > allocation) / total
    return allocation * mean + largest * exceeding


@given(SAMPLES, st.integers(0, 5000))
def test_no_other_sample_wastes_less(samples: Sequence[Sample], largest: int) -> None:
    chosen = first_allocation(samples, largest)
    assert chosen in {sample.bytes for sample in samples}
    least = min(waste(sample.bytes, samples, largest) for sample in samples)
    assert waste(chosen, samples, largest) <= least * (1 + 1e-9) + 1e-9


def test_a_rare_large_one_is_let_die_where_that_is_cheaper() -> None:
    samples = [*[Sample(10, 60.0)] * 99, Sample(900, 60.0)]
    assert first_allocation(samples, 1000) == 10
    assert first_allocation(samples, 100_000) == 900


def test_old_samples_count_less() -> None:
    samples = [*[Sample(500, 60.0, 0.001)] * 10, *[Sample(10, 60.0)] * 10]
    assert first_allocation(samples, 1000) == 10
