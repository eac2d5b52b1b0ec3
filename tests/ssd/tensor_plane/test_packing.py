"""What travels comes out as it went in, and what is damaged is noticed."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ssd.speculation.law import SparseLaw
from ssd.tensor_plane.channel import MOST_BYTES, Broken
from ssd.tensor_plane.framing import HEADER, MOST_TENSORS, Header, What, flat, parts, size_of
from ssd.tensor_plane.packing import PackedLaws, pack, packed_bytes

weights = st.floats(min_value=0.0, exclude_min=True, max_value=2.0**127, width=32)


@st.composite
def laws(draw):
    ids = sorted(draw(st.sets(st.integers(0, 2**31 - 1), min_size=1, max_size=70)))
    return SparseLaw(tuple(ids), tuple(draw(st.lists(weights, min_size=len(ids), max_size=len(ids)))))


@given(st.lists(laws(), min_size=1, max_size=8))
def test_laws_come_out_as_they_went_in(sent):
    header, whole = flat(5, pack(sent))
    assert len(whole) == header.size <= packed_bytes(len(sent), sum(len(law.ids) for law in sent))
    came = Header.read(header.tensor())
    packed = PackedLaws(parts(came, whole.clone()))
    assert came.number == 5 and len(packed) == len(sent)
    assert [packed.law(row) for row in range(len(sent))] == sent
    assert packed.law(len(sent)) is None and packed.law(-1) is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from([torch.uint8, torch.int32, torch.int64, torch.float32, torch.float16, torch.bfloat16]),
            st.lists(st.integers(0, 5), max_size=3),
        ),
        min_size=1,
        max_size=MOST_TENSORS,
    )
)
def test_any_tensors_come_out_as_they_went_in(shapes):
    sent = [torch.randint(0, 200, shape).to(dtype) for dtype, shape in shapes]
    header, whole = flat(1, sent)
    came = parts(Header.read(header.tensor()), whole)
    assert len(came) == len(sent) and len(whole) == size_of(sent)
    for mine, theirs in zip(came, sent, strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape and torch.equal(mine, theirs)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=HEADER, max_size=HEADER), st.integers(0, HEADER))
def test_a_header_of_noise_is_refused_or_describes_what_fits(noise, kept):
    """The first `kept` numbers are those of a good header."""
    good, whole = flat(3, [torch.arange(7), torch.arange(3, dtype=torch.int32)])
    tensor = torch.tensor(good.tensor().tolist()[:kept] + noise[kept:])
    try:
        header = Header.read(tensor)
    except Broken:
        return
    assert 0 <= header.size <= MOST_BYTES
    found = parts(header, whole)
    assert sum(tensor.nbytes for tensor in found) <= len(whole)


@given(st.data())
def test_laws_of_noise_are_refused_whole_or_one_by_one(data):
    numbers = st.lists(st.integers(-5, 20), max_size=12)
    offsets, ids = data.draw(numbers), data.draw(numbers)
    some = st.lists(st.sampled_from([1.0, -1.0, 0.0, math.nan, math.inf]), min_size=len(ids), max_size=len(ids))
    tensors = (
        torch.tensor(offsets, dtype=torch.int32),
        torch.tensor(ids, dtype=torch.int32),
        torch.tensor(data.draw(some), dtype=torch.float32),
    )
    try:
        packed = PackedLaws(tensors)
    except ValueError:
        return
    for row in range(len(packed)):
        law = packed.law(row)
        assert law is None or (law.ids and all(0 < weight < math.inf for weight in law.weights))


@pytest.mark.parametrize(
    "tensors",
    [
        (),
        [torch.zeros(1)] * (MOST_TENSORS + 1),
        [torch.zeros(1, dtype=torch.float64)],
        [torch.zeros(1, 1, 1, 1)],
        [torch.zeros(MOST_BYTES + 1, dtype=torch.uint8)],
    ],
)
def test_what_no_header_can_describe_is_refused(tensors):
    with pytest.raises(ValueError, match="bundle"):
        flat(1, tensors)


@pytest.mark.parametrize("tensors", [(), (torch.zeros(2, dtype=torch.int32),), (torch.zeros(1), *pack([])[1:])])
def test_other_tensors_are_no_laws(tensors):
    with pytest.raises(ValueError, match="offsets"):
        PackedLaws(tensors)


def test_beats_and_answers_are_headers_alone():
    assert Header.read(Header(What.BEAT, 9).tensor()) == Header(What.BEAT, 9)
    assert Header.read(Header(What.OPEN, 5, extra=7).tensor()).extra == 7
