"""What is refused before anything starts, and what the deployments are told."""

import pytest
import yaml
from ray._common.utils import import_attr
from ray.serve._private.api import call_user_app_builder_with_args_if_necessary
from ray.serve._private.deploy_utils import get_app_code_version
from ray.serve.schema import ServeDeploySchema

from cluster.launch.app import ONE_LOOP, build_app, build_demonstration
from cluster.launch.packages import ROOT
from cluster.telemetry.tracing import Telemetry
from engine.errors import InvalidConfig
from engine.offload.shared_folder import is_shared
from tests.documents.snippets import snippet


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"engine": {"model": "configs/demo", "tensor_paralel_size": 2}}, "did you mean 'tensor_parallel_size'"),
        ({"engine": {"model": "configs/nothing"}}, f"{ROOT}/configs/nothing/config.json does not exist"),
    ],
)
def test_refuses_configurations(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(InvalidConfig, match=sentence):
        build_app(arguments)


def test_serve_builds_what_its_files_name() -> None:
    """As `serve deploy` does: Serve refuses functions of two parameters."""
    for path in sorted((ROOT / "configs/serve").glob("*.yaml")):
        (application,) = yaml.safe_load(path.read_text())["applications"]
        builder = import_attr(application["import_path"])
        args = application["args"] | {"insecure_no_key": True, "api_key_file": None}
        built = call_user_app_builder_with_args_if_necessary(builder, args)
        assert built._bound_deployment.name == "GatewayDeployment"


def test_serve_keeps_the_engines_where_only_their_number_has_changed() -> None:
    """As docs/cluster.md has it: what Serve compares is what is below `args`."""
    file = yaml.safe_load(snippet("docs/cluster.md", "num_replicas: 3").text)
    (application,) = ServeDeploySchema(**file).applications
    names = {each.name for each in application.deployments}
    gateway = build_app(application.args)._bound_deployment
    ((engine,), *_) = gateway.init_args
    assert names == {gateway.name, engine._bound_deployment.name}
    fewer = application.model_copy(update={"deployments": application.deployments[1:]})
    assert get_app_code_version(fewer) == get_app_code_version(application)
    other = application.model_copy(update={"args": application.args | {"num_engines": 3}})
    assert get_app_code_version(other) != get_app_code_version(application)


def test_builds_an_application_of_two_deployments() -> None:
    application = build_app(
        {"engine": {"model": "configs/demo", "tensor_parallel_size": 2, "pipeline_parallel_size": 2}, "num_gateways": 3}
    )
    gateway = application._bound_deployment
    ((engine,), *_) = gateway.init_args
    assert (gateway.name, gateway.num_replicas) == ("GatewayDeployment", 3)
    assert (engine._bound_deployment.name, engine._bound_deployment.num_replicas) == ("EngineDeployment", 1)


def test_no_configuration_lets_a_page_kill_workers() -> None:
    """Only who builds the application in Python may say so, as `squadron demo` does."""
    args = {"engine": {"model": "configs/demo"}}
    *_, options = build_app(args)._bound_deployment.init_args
    assert not options.kills_workers
    *_, options = build_demonstration(args)._bound_deployment.init_args
    assert options.kills_workers
    with pytest.raises(InvalidConfig, match="kills_workers"):
        build_app(args | {"kills_workers": True})


def test_only_gateways_answer_in_the_event_loop_of_their_connections() -> None:
    """What an engine replica does as it starts would keep Serve's own calls waiting there."""
    gateway = build_app({"engine": {"model": "configs/demo"}})._bound_deployment
    engine = gateway.init_args[0][0]._bound_deployment
    assert gateway.ray_actor_options["runtime_env"] == ONE_LOOP
    assert not engine.ray_actor_options.get("runtime_env")


@pytest.mark.parametrize("is_strict", [True, False])
def test_gateways_are_told_to_be_strict(is_strict: bool) -> None:
    gateway = build_app({"engine": {"model": "configs/demo"}, "strict_fields": is_strict})._bound_deployment
    assert gateway.init_args[-1].http.strict_fields is is_strict


def test_gateways_and_engines_are_told_what_to_observe() -> None:
    url = "http://127.0.0.1:4318/v1/traces"
    given = {"otlp_traces_endpoint": url, "collect_detailed_traces": "all", "enable_log_requests": True}
    gateway = build_app({"engine": {"model": "configs/demo"}, "log_format": "json"} | given)._bound_deployment
    engine = gateway.init_args[0][0]._bound_deployment
    telemetry = Telemetry(url, collect_detailed_traces=True, log_requests=True)
    assert gateway.init_args[-1].telemetry == engine.init_args[2] == telemetry
    configs = [each._deployment_config.logging_config for each in (gateway, engine)]
    assert [config["encoding"] for config in configs] == ["JSON", "JSON"]


def test_refuses_an_endpoint_before_anything_starts() -> None:
    with pytest.raises(InvalidConfig, match="otlp_traces_endpoint is not a URL"):
        build_app({"engine": {"model": "configs/demo"}, "otlp_traces_endpoint": "localhost"})


ONE, TWO = ({"engine": {"model": "configs/demo", "served_model_name": name}} for name in ("org/one", "two"))


def test_each_model_has_engines_of_its_own() -> None:
    app = build_app({"models": [ONE | {"num_engines": 2}, TWO], "aliases": {"both": {"org/one": 1, "two": 3}}})
    engines, _, _, options = app._bound_deployment.init_args
    deployments = [(engine._bound_deployment.name, engine._bound_deployment.num_replicas) for engine in engines]
    assert deployments == [("EngineDeployment-org-one", 2), ("EngineDeployment-two", 1)]
    assert [model.name for model in options.models] == ["org/one", "two"]
    (alone,), *_ = build_app({"models": [ONE]})._bound_deployment.init_args
    assert alone._bound_deployment.name == "EngineDeployment-org-one", "as beside others that come or go"
    assert options.aliases["both"].shares == (("org/one", 1), ("two", 3))


def test_prefill_engines_are_a_deployment_beside_those_that_answer() -> None:
    prefill = {"num_prefill_engines": 2, "prefill_memory": 0.5, "prefill_transport": "nixl"}
    app = build_app({"models": [ONE | prefill, TWO]})
    (answering, other), (computing, none), _, options = app._bound_deployment.init_args
    assert none is None and other._bound_deployment.init_args[0].kv_offloading_path is None
    deployment = computing._bound_deployment
    assert (deployment.name, deployment.num_replicas) == ("EnginePrefillDeployment-org-one", 2)
    configs = [each._bound_deployment.init_args[0] for each in (answering, computing)]
    assert [config.kv_role for config in configs] == ["consumer", "producer"]
    assert len({config.kv_offloading_path for config in configs}) == 1 and is_shared(configs[0].kv_offloading_path)
    assert {(config.kv_offloading_path_size, config.kv_peer_transport) for config in configs} == {(0.5, "nixl")}
    assert [model.prefill_min_tokens for model in options.models] == [512, None]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"models": [ONE, ONE]}, "two have the name 'org/one'"),
        ({"models": [ONE, {"engine": ONE["engine"] | {"served_model_name": "org:one"}}]}, "differ in signs only"),
        ({"models": [ONE], "num_engines": 2}, "num_engines is of the only model; with models it is a key of each"),
        ({"models": [ONE | {"num_gateways": 2}]}, "num_gateways"),
        ({"models": [ONE], "aliases": {"a": "two"}}, "'a' stands for 'two', and there are 'org/one'"),
        ({"models": [ONE], "aliases": {"a": {"org/one": "all"}}}, "aliases.a.weights.org/one='all': .* valid number"),
        ({"models": [ONE], "aliases": {"a": ["org/one"]}}, r"aliases.a.model=\['org/one'\]: .* valid string"),
        ({"models": [ONE, TWO | {"prefill_min_tokens": 9}]}, r"^models\[1\]: prefill_min_tokens=9 is of no use"),
        ({"models": {"one": ONE}}, "models=.*: Input should be a valid list"),
    ],
)
def test_refuses_models(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(InvalidConfig, match=sentence):
        build_app(arguments)
