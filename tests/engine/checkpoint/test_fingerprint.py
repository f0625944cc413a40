"""Digests tell apart what gives other tokens."""

import json
import shutil
from pathlib import Path

from cluster.checkpoint.manifest import make_manifest, write_manifest
from engine.checkpoint.fingerprint import fingerprint, tokenizer_digest
from engine.checkpoint.sample import weights_digest
from tests.engine.support.workloads import DEMO


def test_every_fact_counts_and_their_order_does_not() -> None:
    facts = {"dtype": "float32", "backend": "cpu"}
    assert fingerprint(facts) == fingerprint(dict(reversed(facts.items())))
    assert len({fingerprint(facts), fingerprint(facts | {"dtype": "bfloat16"}), fingerprint({"backend": "cpu"})}) == 3


def test_the_digest_of_weights_sees_another_training_and_a_manifest(tmp_path: Path) -> None:
    shutil.copytree(DEMO, tmp_path / "model")
    folder = tmp_path / "model"
    seen = {weights_digest(str(folder))}
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    seen.add(weights_digest(str(folder)))
    write_manifest(folder, make_manifest(folder, 1, lambda _: None))
    seen.add(weights_digest(str(folder)))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rope_theta": 5.0}))
    seen.add(weights_digest(str(folder)))
    assert len(seen) == 4
    seen = {tokenizer_digest(str(folder))}
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    seen.add(tokenizer_digest(str(folder)))
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    seen.add(tokenizer_digest(str(folder)))
    (folder / "added_tokens.json").write_text('{"<|mark|>": 768}')
    seen.add(tokenizer_digest(str(folder)))
    assert len(seen) == 4


def test_files_of_tokens_that_are_not_read_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"added_tokens_decoder": {}}')
    before = tokenizer_digest(str(tmp_path))
    (tmp_path / "added_tokens.json").write_text('{"<|mark|>": 768}')
    (tmp_path / "special_tokens_map.json").write_text('{"bos_token": "<|mark|>"}')
    assert tokenizer_digest(str(tmp_path)) == before
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert tokenizer_digest(str(tmp_path)) != before
