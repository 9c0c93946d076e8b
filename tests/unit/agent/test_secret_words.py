"""What is left out of a recorded command line."""

from __future__ import annotations

import shlex

import pytest

from pardbg_agent.life.secret_words import without_secrets


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("train.py --token SECRET --lr 0.1", "train.py --token *** --lr 0.1"),
        ("train.py --api-key=SECRET x", "train.py --api-key=*** x"),
        ("train.py --apiKey SECRET", "train.py --apiKey ***"),
        ("train.py --hub_token SECRET --key SECRET", "train.py --hub_token *** --key ***"),
        ("train.py wandb.api_key=SECRET +db.password=SECRET",
         "train.py wandb.api_key=*** +db.password=***"),
        ("env FOO_TOKEN=SECRET AWS_SECRET_ACCESS_KEY=SECRET python t.py",
         "env FOO_TOKEN=*** AWS_SECRET_ACCESS_KEY=*** python t.py"),
        ("train.py --data https://me:SECRET@host/x", "train.py --data https://***@host/x"),
        ("train.py s3://host/x?token=SECRET&n=1", "train.py 's3://host/x?token=***&n=1'"),
        ("train.py hf_SECRETSECRETSECRET", "train.py ***"),
        ("train.py --x=sk-SECRETSECRETSECRET", "train.py --x=***"),
        ("train.py AKIASECRETSECRETSECR", "train.py ***"),
        ("sh -c 'WANDB_API_KEY=SECRET exec train.py --password SECRET --lr 1'",
         "sh -c 'WANDB_API_KEY=*** exec train.py --password *** --lr 1'"),
        ("""train.py '{"api_key": "SECRET", "n": 1}'""",
         """train.py '{"api_key": "***", "n": 1}'"""),
        ("curl -H 'Authorization: Bearer SECRETSECRET'", "curl -H 'Authorization: *** ***'"),
        ("torchrun --nproc-per-node 2 train.py --max-tokens 512 --pad-token 0 --tokenizer gpt2 "
         "--num_key_value_heads 8 --sort-key length --token-dropout 0.1 --passes 3", None),
        ("python hf_trainerF.py --model sk-learn-pipe", None),
    ],
)  # fmt: skip
def test_secrets_are_left_out_and_nothing_else(said: str, kept: str | None) -> None:
    found = without_secrets(shlex.split(said) if "?" not in said else said.split())
    assert "SECRET" not in " ".join(found).replace("AWS_SECRET_ACCESS", "")
    assert found == shlex.split(kept or said)
