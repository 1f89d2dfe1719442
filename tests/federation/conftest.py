"""What the tests of the data side share."""

from collections.abc import Callable

import pytest

from fedgauss.errors import DataError

Refusal = Callable[[Callable[[], object]], str]


@pytest.fixture
def refusal() -> Refusal:
    """The message with which bad data is refused. 31415.9 is the value the tests put in: it must not be shown."""

    def message(call: Callable[[], object]) -> str:
        with pytest.raises(DataError) as info:
            call()
        text = str(info.value)
        assert "31415" not in text
        assert info.value.__cause__ is None
        assert info.value.__suppress_context__ or info.value.__context__ is None
        return text

    return message
