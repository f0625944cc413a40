import pytest

from tests.engine.frontend.engines import make


@pytest.fixture
def engine():
    engine = make()
    engine.start()
    yield engine
    engine.shutdown()
