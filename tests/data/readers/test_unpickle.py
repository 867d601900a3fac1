from __future__ import annotations

import pickle
import struct
from typing import Any

import numpy as np
import pytest

from gossamer.data.readers.unpickle import read_batch
from gossamer.errors import InvalidData

ARRAY = np.arange(12, dtype=np.uint8).reshape(3, 4)


def short_text(text: bytes) -> bytes:
    """Python 2 text in protocol 2: the opcode SHORT_BINSTRING."""
    return b"U" + bytes([len(text)]) + text


def python2_batch(shape: tuple[int, int] = (3, 4), code: bytes = b"u1") -> bytes:
    """A batch as Python 2 and numpy 1 wrote them, opcode by opcode."""
    dtype = b"cnumpy\ndtype\n" + short_text(code) + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + short_text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85"
    array += short_text(b"b") + b"\x87R"
    content = b"T" + struct.pack("<i", ARRAY.size) + ARRAY.tobytes()
    sizes = b"K" + bytes([shape[0]]) + b"K" + bytes([shape[1]]) + b"\x86"
    array += b"(K\x01" + sizes + dtype + b"\x89" + content + b"tb"
    return b"\x80\x02}(" + short_text(b"data") + array + short_text(b"labels") + b"]K\x07au."


def test_python2_batch() -> None:
    batch = read_batch(python2_batch(), "w")
    assert np.array_equal(batch["data"], ARRAY)
    assert batch["labels"] == [7]
    # numpy itself reads the same from it, so the bytes above are a true batch
    truth = pickle.loads(
        python2_batch().replace(b"numpy.core.multiarray", b"numpy._core.multiarray"),
        encoding="bytes",
    )
    assert np.array_equal(truth[b"data"], ARRAY)


@pytest.mark.parametrize("protocol", [3, 4])
def test_python3_batch(protocol: int) -> None:
    written = pickle.dumps({"data": ARRAY, "names": [b"a", "b"], "n": 3}, protocol)
    batch = read_batch(written, "w")
    assert np.array_equal(batch["data"], ARRAY)
    assert (batch["names"], batch["n"]) == (["a", "b"], 3)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"garbage",
        b"cos\nsystem\n(S'true'\ntR.",
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"cnumpy.core.multiarray\nscalar\n.",
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\ndtype\ntR.",
        b"\x80\x02}(" + short_text(b"\xff") + b"K\x01u.",
        python2_batch(shape=(3, 5)),
        python2_batch(code=b"O8"),
        python2_batch()[:-30],
        pickle.dumps([1, 2]),
        pickle.dumps({"data": np.zeros(3)}, 4),
        pickle.dumps({"data": np.asfortranarray(ARRAY)}, 4),
        pickle.dumps({"data": np.array([print], dtype=object)}, 4),
        b"cnumpy\nndarray\n(tR(I1\n(I-1\ntI0\nI0\nI0\ntb.",
        b"\x80\x04\x82\x01.",
        b"Pid\n.",
    ],
    ids=lambda content: f"{len(content)} bytes",
)
def test_anything_else_is_refused_in_one_line(content: bytes) -> None:
    with pytest.raises(InvalidData, match="nothing in it was run") as caught:
        read_batch(content, "batch")
    assert "\n" not in str(caught.value)


def test_impossible_shape() -> None:
    class Negative:
        def __reduce__(self) -> tuple[Any, ...]:
            kind = np.dtype(np.uint8)
            make = np.zeros(0, dtype=np.uint8).__reduce__()[0]
            return make, (np.ndarray, (0,), b"b"), (1, (-3, -4), kind, False, ARRAY.tobytes())

    with pytest.raises(InvalidData, match="impossible shape"):
        read_batch(pickle.dumps({"data": Negative()}, 4), "batch")
