"""What a file in configs/serve may say."""

import pytest

from cluster.api.keys.key_ring import KeyRing
from cluster.gateway.options import ModelOptions
from cluster.launch.config.app_config import read_app_config
from cluster.launch.packages import ROOT
from engine.errors import InvalidConfig

ENGINE = {"model": "configs/demo"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "engine is required"),
        ({"engine": ENGINE, "num_engine": 2}, "unknown key 'num_engine'; did you mean 'num_engines'"),
        ({"engine": ENGINE, "patience": float("inf")}, "patience=inf: Input should be a finite number"),
        ({"engine": ENGINE, "num_gateways": 0}, "num_gateways=0: Input should be greater than or equal to 1"),
        ({"engine": ENGINE, "num_store_shards": 65}, "num_store_shards=65: Input should be less than or equal to 64"),
    ],
)
def test_keys_and_their_ranges_are_checked(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(InvalidConfig, match=sentence):
        read_app_config(arguments)


def test_a_relative_model_is_one_of_the_repository() -> None:
    assert read_app_config({"engine": ENGINE}).all_models()[0].engine_config().model == str(ROOT / "configs" / "demo")


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"api_keys": ["a"], "insecure_no_key": True}, "insecure_no_key"),
        ({"otlp_traces_endpoint": "localhost"}, "otlp_traces_endpoint is not a URL"),
        ({"collect_detailed_traces": "all"}, "collect_detailed_traces=all is of no use without otlp_traces_endpoint"),
    ],
)
def test_what_contradicts_itself_is_refused(more: dict[str, object], sentence: str) -> None:
    with pytest.raises(InvalidConfig, match=sentence):
        read_app_config({"engine": ENGINE, **more}).check()


@pytest.mark.parametrize(
    ("given", "num_shards"),
    [
        ({}, 1),
        ({"num_gateways": 8}, 1),
        ({"num_gateways": 9}, 2),
        ({"num_gateways": 8, "num_store_shards": 3}, 3),
        ({"num_gateways": 2000}, 64),
    ],
)
def test_the_store_has_a_shard_for_every_few_gateways(given: dict[str, int], num_shards: int) -> None:
    config = read_app_config({"engine": ENGINE, **given})
    assert config.gateway_options((ModelOptions("demo", "configs/demo"),)).num_store_shards == num_shards


def test_the_keys_are_those_of_the_file_of_serve() -> None:
    assert isinstance(keys := read_app_config({"engine": ENGINE, "api_keys": ["a"]}).check(), KeyRing) and keys
