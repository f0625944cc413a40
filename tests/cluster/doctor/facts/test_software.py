"""Versions, sources and variables."""

from pathlib import Path

from cluster.doctor.facts.software import digest_of_code, shown_environment, versions
from cluster.launch.packages import PACKAGES


def test_the_versions_of_this_process() -> None:
    assert versions()["ray"].startswith("2.60.")
    assert {"python", "squadron", "torch"} <= versions().keys()


def test_a_changed_source_is_another_code(tmp_path: Path) -> None:
    digests = set()
    for text in ("a = 1\n", "a = 2\n"):
        root = tmp_path / text[4]
        for name in PACKAGES:
            (root / name).mkdir(parents=True)
            (root / name / "module.py").write_text(text)
        digests.add(digest_of_code(root))
    assert len(digests) == 2


def test_secrets_are_not_shown() -> None:
    given = {
        "RAY_AUTH_TOKEN": "s3cret",
        "SQUADRON_API_KEY": "s3cret",
        "HF_TOKEN": "s3cret",
        "RAY_REDIS_PASSWORD": "s3cret",
        "RAY_redis_password": "s3cret",
        "RAY_JOB_CONFIG_JSON_ENV_VAR": '{"runtime_env": {"env_vars": {"HF_TOKEN": "s3cret"}}}',
        "HF_ENDPOINT": "https://mirror.example.com/?X-Amz-Signature=s3cret",
        "SQUADRON_CREDENTIALS": "s3cret",
        "RAY_AUTH_MODE": "token",
        "RAY_REDIS_ADDRESS": "redis://user:s3cret@host:6379",
        "RAY_AUTH_TOKEN_PATH": "/run/token",
        "NCCL_DEBUG": "INFO",
        "HOME": "/root",
    }
    shown = shown_environment(given)
    assert "s3cret" not in str(shown)
    assert shown["RAY_AUTH_TOKEN_PATH"] == "/run/token"
    assert shown["RAY_AUTH_MODE"] == "token"
    assert shown["NCCL_DEBUG"] == "INFO" and "HOME" not in shown
