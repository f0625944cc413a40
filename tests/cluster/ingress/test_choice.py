"""What listens, as the command says it."""

import pytest

from cluster.cli import main
from cluster.ingress.ingress import Ingress


def test_the_report_gives_the_reason() -> None:
    assert Ingress("haproxy", "", "127.0.0.1", {}).report == "Ingress: HAProxy"
    assert Ingress("proxy", "", "127.0.0.1", {}).report == "Ingress: Serve's own proxy"
    report = Ingress("proxy", "there is none", "127.0.0.1", {}).report
    assert report == "Ingress: Serve's own proxy, not HAProxy: there is none"


def test_an_unknown_ingress_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "configs/demo", "--ingress", "nginx"])
    assert "invalid choice: 'nginx'" in capsys.readouterr().err
