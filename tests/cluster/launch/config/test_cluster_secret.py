"""What processes that build the same application after each other have in common."""

import ray

from cluster.launch.config.cluster_secret import cluster_secret
from cluster.launch.ray_cluster import ray_cluster
from cluster.owner import this_process


@ray.remote(num_cpus=0)
def of_a_process() -> tuple[str, str]:
    """As Serve builds an application: in a task."""
    return cluster_secret(), this_process().token


def test_a_cluster_has_one_and_another_cluster_another() -> None:
    assert cluster_secret() == this_process().token, "there is no cluster"
    found = []
    for _ in range(2):
        with ray_cluster(num_workers=1):
            ours = cluster_secret()
            theirs, token = ray.get(of_a_process.remote())
            assert ours == theirs and ours not in (token, this_process().token)
            found.append(ours)
    assert found[0] != found[1]
