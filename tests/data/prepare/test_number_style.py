from __future__ import annotations

import numpy as np
import pytest

from gossamer.data.prepare.number_style import NumberStyle, find_style
from gossamer.data.prepare.rules import TableRules
from gossamer.data.prepare.texts import Texts
from gossamer.errors import InvalidData


@pytest.mark.parametrize(
    ("cells", "sample", "numbers"),
    [
        (["1,5", "2,25", "-3,0"], "1234,5", [1.5, 2.25, -3.0]),
        (["1.234,5", "2"], "1.234,5", [1234.5, 2.0]),
        (["1,234,567", "1,234"], "1,234.5", [1234567.0, 1234.0]),
        (["1 234", "5"], "1,234.5", [1234.0, 5.0]),
        (["1'234.25", "5"], "1,234.5", [1234.25, 5.0]),
        (["0,234", "1,234"], "1234,5", [0.234, 1.234]),
        (["$464,645", "-$1,200.50"], "$1,234.5", [464645.0, -1200.5]),
        (["€ 1.234", "5 €"], "€1.234,5", [1234.0, 5.0]),
        (["12 %", "3.5%"], "1234.5 %", [12.0, 3.5]),
        (["12,5 %", "3 %"], "1234,5 %", [12.5, 3.0]),
        (["CHF 1'000", "CHF 5"], "CHF1,234.5", [1000.0, 5.0]),
    ],
)
def test_styles_are_found_and_read(cells: list[str], sample: str, numbers: list[float]) -> None:
    texts = Texts.of([*cells, "", "NA"])
    style = find_style("c", texts, TableRules())
    assert style is not None
    assert style.sample == sample
    assert NumberStyle.from_sample(sample) == style
    found, bad = style.read(texts)
    assert np.array_equal(found, [*numbers, np.nan, np.nan], equal_nan=True)
    assert not bad.any()


@pytest.mark.parametrize(
    "cells", [["red", "$5"], ["12 kg", "13 kg"], ["1,2,3", "4,5"], ["5 %", "7"]]
)
def test_other_texts_are_no_numbers(cells: list[str]) -> None:
    assert find_style("c", Texts.of(cells), TableRules()) is None


def test_a_comma_that_may_be_either_is_asked_for() -> None:
    texts = Texts.of(["1,234", "567"])
    with pytest.raises(
        InvalidData, match=r"row 0 = 1,234: may have a decimal comma.*decimal=comma"
    ):
        find_style("c", texts, TableRules())
    for decimal, value in (("comma", 1.234), ("point", 1234.0)):
        style = find_style("c", texts, TableRules(decimal=decimal))  # type: ignore[arg-type]
        assert style is not None
        assert style.read(texts)[0].tolist() == [value, 567.0]


def test_cells_of_another_style_are_bad() -> None:
    found, bad = NumberStyle(",").read(Texts.of(["1,5", "1.5", "x", ""]))
    assert bad.tolist() == [False, True, True, False]
    assert found[0] == 1.5
