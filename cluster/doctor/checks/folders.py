"""Whether every node has the models that are folders: nothing copies them there."""

import os
from collections.abc import Iterable, Iterator, Sequence

from cluster.doctor.facts.nodes import on_node, results
from cluster.doctor.finding import Finding, failure, ok
from cluster.doctor.need import Need, may_be_on
from cluster.workers.nodes import Node
from engine.config import EngineConfig

ANSWER_SECONDS = 60.0


def check_folders(needs: Sequence[Need], nodes: Sequence[Node]) -> Iterator[Finding]:
    """On the nodes where engines may be. Those that do not answer are told of elsewhere."""
    wanted = [sorted(_folders(need.config for need in needs if may_be_on(node, need.config))) for node in nodes]
    if not any(wanted):
        return
    calls = [on_node(node.node_id, missing).remote(folders) for node, folders in zip(nodes, wanted, strict=True)]
    answers = list(results(calls, ANSWER_SECONDS))
    for node, (folders, _) in zip(nodes, answers, strict=True):
        if folders:
            yield failure(
                "folders",
                f"{node.address} has no {', '.join(folders)}",
                "put the model at the same path on every node where an engine may be, or name one of the hub",
            )
    if all(folders == [] for folders, _ in answers):
        yield ok("folders", f"{', '.join(sorted(set().union(*wanted)))} on {sum(map(bool, wanted))} node(s)")


def missing(folders: Sequence[str]) -> list[str]:
    """Those of them that are not on this node."""
    return [folder for folder in folders if not os.path.isdir(folder)]


def _folders(configs: Iterable[EngineConfig]) -> set[str]:
    """Models, and those of drafts, that are not fetched by the nodes themselves."""
    models = [model for config in configs for model in (config, config.draft)]
    return {model.model for model in models if model is not None and model.source is None}
