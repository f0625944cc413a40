"""What Serve is told of a model that is scaled by its load."""

import pytest

from cluster.launch.app import build_app
from engine.errors import InvalidConfig

ENGINE = {"model": "configs/demo"}


def test_in_place_of_a_number() -> None:
    app = build_app({"engine": ENGINE, "autoscaling": {"min_engines": 0, "max_engines": 3, "downscale_delay": 60}})
    (engines,), *_ = app._bound_deployment.init_args
    config = engines._bound_deployment._deployment_config.autoscaling_config
    assert (config.min_replicas, config.initial_replicas, config.max_replicas) == (0, 1, 3)
    assert (config.upscale_delay_s, config.downscale_delay_s) == (10, 60)
    assert config.policy.policy_function == "cluster.launch.config.load_policy:LoadPolicy"
    assert config.policy.policy_kwargs == {"target_load": 0.7, "standby_engines": 0}
    assert config.policy.get_policy()(target_load=0.5, standby_engines=0), "it is sent whole"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"autoscaling": {"min_engines": 4, "max_engines": 3}}, "min_engines=4 is above max_engines=3"),
        ({"autoscaling": {}}, "autoscaling.max_engines"),
        ({"autoscaling": {"max_engines": 2, "target_load": 1.5}}, "autoscaling.target_load=1.5"),
        ({"autoscaling": {"max_engines": 2}, "num_engines": 2}, "num_engines=2 and autoscaling exclude each other"),
        ({"autoscaling": {"max_engines": 2, "upscale_delay": float("inf")}}, "autoscaling.upscale_delay=inf"),
        ({"prefill_min_tokens": 64}, "prefill_min_tokens=64 is of no use without num_prefill_engines"),
        ({"prefill_min_tokens": 1234567}, "prefill_min_tokens=1234567 is of no use without num_prefill_engines"),
        ({"prefill_memory": 0.5}, "prefill_memory=0.5 is of no use without num_prefill_engines"),
        ({"prefill_transport": "nixl"}, "prefill_transport=nixl is of no use without num_prefill_engines"),
        (
            {"num_prefill_engines": 1, "prefill_transport": "rdma"},
            "prefill_transport='rdma': Input should be 'tcp' or 'nixl'",
        ),
        ({"num_prefill_engines": 1, "prefill_memory": float("inf")}, "prefill_memory=inf"),
        (
            {"num_prefill_engines": 1, "prefill_memory": 4 << 30},
            "prefill_memory=4294967296: .* less than or equal to 65536",
        ),
        (
            {"num_prefill_engines": 1, "prefill_memory": 1e-9},
            "prefill_memory=1e-09: .* greater than or equal to 0.00097",
        ),
        ({"num_prefill_engines": 1, "prefill_min_tokens": 10**12}, "prefill_min_tokens=1000000000000: .* 1073741824"),
    ],
)
def test_refuses(args: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidConfig, match=words):
        build_app({"engine": ENGINE} | args)


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"enable_prefix_caching": False}, "num_prefill_engines needs enable_prefix_caching"),
        ({"swap_space": 0}, "num_prefill_engines needs host memory that blocks pass through; swap_space=0"),
        ({"max_model_len": 256}, "prefill_min_tokens=512 is above max_model_len=256: no prompt would go to"),
        ({"speculative_config": {"model": "configs/demo"}}, "num_prefill_engines cannot be used with a draft model"),
        ({"kv_offloading_path": "/kept"}, "prefill_transport=nixl is of no use with kv_offloading_path=/kept"),
    ],
)
def test_refuses_what_could_not_use_the_blocks_of_prefill_engines(engine: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidConfig, match=words):
        build_app({"engine": ENGINE | engine, "num_prefill_engines": 1, "prefill_transport": "nixl"})
