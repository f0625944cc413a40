import math
from typing import Any

import pytest

from parallel.errors import UnsupportedModel
from parallel.spec.rope import read_rope
from tests.parallel.spec.ropes import KINDS, hf_config


@pytest.mark.parametrize("parameters", KINDS[1:4], ids=lambda each: each["rope_type"])
def test_the_older_form_means_the_same(parameters: dict[str, Any]) -> None:
    new = read_rope(hf_config(rope_parameters={**parameters, "rope_theta": 5e5}))
    rest = {key: value for key, value in parameters.items() if key != "rope_type"}
    assert read_rope(hf_config(rope_theta=5e5, rope_scaling=parameters)) == new
    assert read_rope(hf_config(rope_theta=5e5, rope_scaling={"type": parameters["rope_type"], **rest})) == new


def test_what_is_absent_is_the_default() -> None:
    rope = read_rope(hf_config())
    assert (rope.kind, rope.theta, rope.parameters) == ("default", 10000.0, {})
    assert read_rope(hf_config(rope_theta=1e6, rope_scaling=None)).theta == 1e6


def test_yarn_extends_the_context_that_it_names() -> None:
    """As Qwen2.5's model cards have it added; where no original context is named, the one that is
    there is meant.
    """
    yarn = {"factor": 4.0, "original_max_position_embeddings": 4096, "type": "yarn"}
    assert read_rope(hf_config(rope_scaling=yarn)).max_positions == 16384
    assert read_rope(hf_config(rope_scaling=yarn | {"original_max_position_embeddings": 1024})).max_positions == 4096
    assert read_rope(hf_config(rope_scaling={"factor": 4.0, "type": "yarn"})).max_positions == 4096
    assert read_rope(hf_config(rope_scaling={"factor": 4.0, "type": "linear"})).max_positions == 4096
    assert read_rope(hf_config()).max_positions == 4096


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "rope type 'dynamic' is not supported; there are default, linear"),
        ({"rope_type": "linear"}, "rope type 'linear' needs 'factor'"),
        ({"rope_type": "linear", "factor": 2.0, "surprise": 1}, "takes no 'surprise'; it takes factor"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor is not supported"),
        ({"rope_type": "yarn", "factor": "4"}, "rope type 'yarn': factor='4' is no positive number"),
        ({"rope_type": "linear", "factor": 0}, "rope type 'linear': factor=0 is no positive number"),
        ({"rope_type": "yarn", "factor": math.inf}, "rope type 'yarn': factor=inf is no positive number"),
        ({"rope_type": "yarn", "factor": 4, "attention_factor": "1"}, "attention_factor='1' is no positive number"),
        ({"rope_type": "yarn", "factor": 4, "attention_factor": 0}, "attention_factor=0 is no positive number"),
        ({"rope_type": "yarn", "factor": 4, "beta_fast": math.nan}, "beta_fast=nan is no positive number"),
        ({"rope_type": "yarn", "factor": 4, "truncate": "no"}, "truncate='no' is neither true nor false"),
        ({"rope_type": ["yarn"]}, r"rope type \['yarn'\] is not supported"),
        ({"rope_theta": "1e6"}, "rope_theta='1e6' is no positive number"),
        ({"rope_theta": 0}, "rope_theta=0 is no positive number"),
        ({"rope_theta": [1e6]}, r"rope_theta=\[1000000.0\] is no positive number"),
        ({"rope_theta": True}, "rope_theta=True is no positive number"),
        ("yarn", "rope_parameters='yarn' is no object"),
    ],
)
def test_what_is_not_computed_is_refused(parameters: Any, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read_rope(hf_config(rope_parameters=parameters))


def test_yarn_added_beside_the_newer_form_is_not_ignored() -> None:
    """As Qwen's model cards have it, to a file that a recent transformers has written."""
    yarn = {"factor": 4.0, "original_max_position_embeddings": 4096, "type": "yarn"}
    plain = {"rope_theta": 1e6, "rope_type": "default"}
    with pytest.raises(UnsupportedModel, match="; write what is meant, with rope_theta, into rope_parameters"):
        read_rope(hf_config(rope_parameters=plain, rope_scaling=yarn))
    both = read_rope(hf_config(rope_parameters=yarn | {"rope_theta": 1e6}, rope_scaling=yarn))
    assert (both.kind, both.theta, both.max_positions) == ("yarn", 1e6, 16384)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}


@pytest.mark.parametrize(
    ("given", "same"),
    [
        (YARN, {"type": "yarn", "factor": 4.0}),
        (YARN, YARN | {"attention_factor": 0.1 * math.log(4.0) + 1.0}),
        (YARN | {"beta_fast": 32, "truncate": True}, YARN | {"beta_slow": 1, "mscale": None}),
        ({"rope_type": "default", "partial_rotary_factor": 1.0}, {"type": "default"}),
        ({"rope_type": "linear", "factor": 2.0}, {"type": "linear", "factor": 2, "rope_theta": 1e6}),
    ],
)
def test_both_forms_may_mean_the_same_in_other_words(given: dict[str, Any], same: dict[str, Any]) -> None:
    for new, old in ((given, same), (same, given)):
        rope = read_rope(hf_config(rope_theta=1e6, rope_parameters=new, rope_scaling=old))
        assert rope == read_rope(hf_config(rope_theta=1e6, rope_parameters=new))


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_parameters": YARN | {"rope_theta": 1e6}, "rope_scaling": YARN | {"rope_theta": 1e4}},
        {"rope_parameters": YARN | {"rope_theta": 1e6}, "rope_scaling": YARN, "rope_theta": 1e4},
        {"rope_parameters": YARN, "rope_scaling": YARN | {"original_max_position_embeddings": 1024}},
        {"rope_parameters": YARN, "rope_scaling": YARN | {"attention_factor": 1.5}},
    ],
)
def test_forms_that_differ_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel, match="differ, with rope_theta="):
        read_rope(hf_config(**fields))


def test_theta_may_be_in_the_older_form_alone() -> None:
    assert read_rope(hf_config(rope_parameters=YARN, rope_scaling=YARN | {"rope_theta": 1e6})).theta == 1e6
