"""A policy goes up and comes down through the Hub's own client and a server on this machine."""

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import ModelCard, constants, file_download

from tests.commands.lines import content, only_sentence
from tests.training.small_policy import small_policy, write_run
from tests.vla.hub_server import TOKEN, Hub, Model
from vla import checkpoint, cli
from vla.hub import card, facts
from vla.utils import hub_name

# The client of huggingface_hub 1 sends bytes in a way that httpx gave up.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

FILES = ["README.md", "model.safetensors", "policy.json", "tokenizer.json"]
FILE = "/{repo_id}/resolve/{revision}/{filename}"
EVALUATION = {
    "task": {"type": "cue_colour", "delay_steps": [16, 64]}, "seed": 501, "rate": 0.75,
    "interval": [0.3, 0.95], "success": [True, True, True, False],
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run with a checkpoint, a trainer's state and a test."""
    folder = tmp_path_factory.mktemp("runs") / "cue"
    write_run(small_policy(), folder)
    (folder / "checkpoint" / "trainer.json").write_text("{}")
    (folder / "evaluation.json").write_text(json.dumps(EVALUATION))
    return folder


@pytest.fixture
def hub():
    with Hub() as server:
        yield server


def vla(line: str, hub: Hub, home: Path) -> subprocess.CompletedProcess[str]:
    """Run a command that may contact the Hub; its client reads the environment once."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    told = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN}
    own = {"HF_HOME": str(home / "hf"), "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1"}
    own["HF_HUB_DISABLE_XET"] = "1"  # the server here has no such storage
    return subprocess.run(
        [sys.executable, "-m", "vla.cli", *line.split()], capture_output=True, text=True,
        check=False, env={**plain, **told, **own}, cwd=Path(__file__).parents[2],
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.fixture
def here(monkeypatch, tmp_path):
    """Return a way to run a command in this process, whose client is told of another server."""

    def run_(line: str, hub: Hub, token: str = TOKEN) -> int:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        for module in (constants, file_download):  # where huggingface_hub 1 and 0 look
            monkeypatch.setattr(
                module, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + FILE, raising=False
            )
        monkeypatch.setenv("HF_TOKEN", token)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.delenv("MNEME_DEBUG", raising=False)
        return cli.main(line.split())

    return run_


@pytest.fixture
def refusals(here, capsys):
    """Return what a command says that fails."""

    def say(line: str, hub: Hub, token: str) -> str:
        capsys.readouterr()
        assert here(line, hub, token) == 1
        return only_sentence(capsys.readouterr().err)

    return say


def test_what_was_pushed_comes_back_to_the_byte_and_opens(run, hub, tmp_path) -> None:
    done = vla(f"hub push {run} me/cue --license mit --yes", hub, tmp_path)
    assert done.returncode == 0, done.stderr
    files = hub.models["me/cue"].commits[hub.models["me/cue"].branches["main"]]
    assert sorted(files) == [".gitattributes", *FILES]  # no trainer, no logs
    sizes = {name: f"{len(files[name]):,} bytes" for name in FILES}
    for name, size in sizes.items():
        assert any(size in line and name in line for line in done.stdout.splitlines())
    # An upload is one commit on top of the empty repository.
    assert len(hub.models["me/cue"].commits) == 2

    pulled = vla(f"hub pull me/cue --out {tmp_path / 'pulled'}", hub, tmp_path)
    assert pulled.returncode == 0, pulled.stderr
    there = content(tmp_path / "pulled")
    assert sorted(there) == FILES
    own = content(run / "checkpoint")
    assert {k: there[k] for k in checkpoint.FILES} == {k: own[k] for k in checkpoint.FILES}
    assert there["README.md"] == hashlib.md5(files["README.md"]).hexdigest()
    policy, origin = checkpoint.load(tmp_path / "pulled")
    assert policy.robot.name == "so101"
    assert origin.step == 7


def test_a_branch_is_made_and_pulled_by_name_and_by_commit(
    run, hub, tmp_path, here, capsys
) -> None:
    assert here(f"hub push {run} me/cue --license mit --yes --private", hub) == 0
    assert hub.models["me/cue"].private
    (run / "checkpoint" / "trainer.safetensors").write_bytes(b"state")
    line = f"hub push {run} me/cue --license apache-2.0 --yes --revision try --trainer"
    assert here(line, hub) == 0
    (run / "checkpoint" / "trainer.safetensors").unlink()
    model = hub.models["me/cue"]
    assert model.branches["try"] != model.branches["main"]
    assert model.commits[model.branches["try"]]["trainer.safetensors"] == b"state"
    main = model.branches["main"]
    for name, licence in (("try", "apache-2.0"), (main, "mit")):
        out = tmp_path / name[:4]
        assert here(f"hub pull me/cue@{name} --out {out}", hub) == 0
        assert ModelCard.load(out / "README.md").data.license == licence
        assert model.branches.get(name, main) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "fault", "words"),
    [
        ("hub push {run} me/new --license mit --yes", {"token": "hf_wrong"}, ("401", "hf auth")),
        ("hub push {run} others/cue --license mit --yes", {}, ("403", "nothing was committed")),
        ("hub push {run} me/cue --license mit --yes", {"cut": "upload"}, ("403", "nothing was")),
        ("hub push {run} me/cue --license mit", {}, ("nothing was uploaded", "--yes")),
        ("hub push {run} me/cue --yes", {}, ("the license is unknown", "--license")),
        ("hub push {run} me/cue --yes --license MIT!", {}, ("'MIT!'", "apache-2.0")),
        ("hub push {run} me/cue --yes --license mit --trainer", {}, ("no trainer.safetensors",)),
        ("hub pull me/nothing --out {out}", {}, ("no such model", "404")),
        ("hub pull me/cue@old --out {out}", {"pushed": "1"}, ("no such revision",)),
        ("hub pull me/other --out {out}", {"other": "1"}, ("it lacks policy.json",)),
        (
            "hub pull me/cue --out {out}", {"pushed": "1", "spoil": "model.safetensors"},
            ("model.safetensors is damaged",),
        ),
        ("hub pull me/cue --out {run}", {"pushed": "1"}, ("exists; choose",)),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_one_sentence_and_leaves_nothing(
    line, fault, words, run, hub, tmp_path, refusals
) -> None:
    before = content(run)
    if "pushed" in fault:
        fill(hub, "me/cue", run)
    if "other" in fault:
        hub.models["me/other"] = fill(hub, "me/other", run)
        hub.models["me/other"].commits[hub.models["me/other"].branches["main"]] = {"a.bin": b""}
    hub.cut, hub.spoil = fault.get("cut"), fault.get("spoil")
    out = tmp_path / "pulled"
    said = refusals(line.format(run=run, out=out), hub, fault.get("token", TOKEN))
    for word in words:
        assert word in said
    assert not [p for p in tmp_path.iterdir() if "pulled" in p.name]
    assert content(run) == before
    assert len(hub.models["me/cue"].commits if "me/cue" in hub.models else "1") == 1


def fill(hub: Hub, name: str, run: Path):
    """Put a checkpoint on the server, without the client."""
    hub.models[name] = model = Model(private=False)
    folder = run / "checkpoint"
    model.commit_("main", {name: (folder / name).read_bytes() for name in checkpoint.FILES})
    return model


def test_a_server_that_breaks_off_in_the_middle_leaves_nothing(
    run, hub, tmp_path, refusals
) -> None:
    fill(hub, "me/cue", run)
    hub.cut = "model.safetensors"
    said = refusals(f"hub pull me/cue --out {tmp_path / 'pulled'}", hub, TOKEN)
    assert "me/cue: the transfer with http://127.0.0.1" in said
    assert "nothing was written" in said
    assert not list(tmp_path.iterdir())


def test_a_damaged_policy_that_arrives_whole_is_refused(run, hub, tmp_path, refusals) -> None:
    model = fill(hub, "me/cue", run)
    files = model.commits[model.branches["main"]]
    files["policy.json"] = files["policy.json"].replace(b'"format": 2', b'"format": 9')
    said = refusals(f"hub pull me/cue --out {tmp_path / 'pulled'}", hub, TOKEN)
    assert "checkpoint format 9, expected 1 to 2" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "verb", ["push {run} me/cue --license mit --yes", "pull me/cue --out {new}"]
)
def test_offline_the_hub_is_not_contacted(verb, run, tmp_path, capsys) -> None:
    assert cli.main(f"hub {verb}".format(run=run, new=tmp_path / "new").split()) == 1
    assert "HF_HUB_OFFLINE" in only_sentence(capsys.readouterr().err)


def test_a_name_of_the_hub_where_a_folder_is_expected_leads_to_pull(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="`vla hub pull me/reach --out DIR` first"):
        checkpoint.find(Path("me/reach"))
    (tmp_path / "runs").mkdir()
    with pytest.raises(ValueError, match="wrote$"):  # a folder of ours, mistyped
        checkpoint.find(Path("runs/raech"))


@pytest.mark.parametrize(
    "name", ["reach", "me/", "/me/reach", "me/a/b", "me/a--b", "me/..", "-/x", "me/x.git", "a b/c"]
)
def test_no_name_of_the_hub(name) -> None:
    with pytest.raises(ValueError, match="expected OWNER/NAME"):
        hub_name.check(name)


def test_a_folder_whose_replacement_was_killed_is_kept(run, hub, tmp_path, refusals) -> None:
    fill(hub, "me/cue", run)
    out = tmp_path / "pulled"
    old = checkpoint.old_place(out)
    old.mkdir()
    (old / "mine").write_text("mine")
    assert "exists; choose" in refusals(f"hub pull me/cue --out {out}", hub, TOKEN)
    assert (out / "mine").read_text() == "mine"


def test_what_appears_during_a_download_is_kept(run, hub, tmp_path, refusals, monkeypatch) -> None:
    fill(hub, "me/cue", run)
    out, load = tmp_path / "pulled", checkpoint.load

    def meanwhile(folder):
        out.mkdir()
        (out / "mine").write_text("mine")
        return load(folder)

    monkeypatch.setattr(checkpoint, "load", meanwhile)
    assert "exists; choose" in refusals(f"hub pull me/cue --out {out}", hub, TOKEN)
    assert [path.name for path in tmp_path.iterdir()] == ["pulled"]
    assert (out / "mine").read_text() == "mine"


# --- the card --------------------------------------------------------------------------------


def test_the_card_says_what_the_run_is_and_the_hub_can_read_it(run, fake_dataset, tmp_path) -> None:
    path = fake_dataset
    out = tmp_path / "README.md"
    words = (
        f"hub card {run} --out {out} --license mit --name me/cue --dataset {path} --datasets me/d"
    )
    assert cli.main(words.split()) == 0
    read = ModelCard.load(out)
    assert (read.data.license, read.data.library_name) == ("mit", "mneme-vla")
    assert read.data.pipeline_tag == "robotics"
    assert read.data.datasets == ["me/d"]
    assert {"robotics", "so101", "memory-bank", "head-diffusion"} <= set(read.data.tags)
    (result,) = read.data.eval_results
    assert (result.task_type, result.dataset_type) == ("robotics", "cue_colour")
    assert (result.metric_type, result.metric_value) == ("success_rate", 0.75)
    assert result.metric_args == {"episodes": 4, "interval_95": [0.3, 0.95]}
    assert result.dataset_split == "seed 501"
    told = facts.describe(path)
    for words in (
        "75.0%", "30.0% to 95.0%", told.sha256, f"{told.episodes} episodes", "`bank`: slots 7",
        "vla hub pull me/cue --out runs/cue", "press the", "None.", '"delay_steps"',
    ):  # fmt: skip
        assert words in read.text, words


def test_a_card_names_no_folder_of_this_machine_and_no_test_of_other_weights(run, tmp_path) -> None:
    folder = tmp_path / "own"
    write_run(small_policy(), folder)
    config = {
        "pretrained_vision_encoder": "/home/somebody/reward_model",
        "wandb_project": "secret",
        "seed": 3,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evaluation.json").write_text(json.dumps({**EVALUATION, "step": 5}))
    found = facts.read(folder)
    assert found.results == ()
    assert found.left_out == (
        "evaluation.json evaluates update 5, these weights are of update 7: left out",
    )
    text = card.write(found, name="", license_name="mit")
    assert "/home/somebody" not in text
    assert '"reward_model"' in text
    assert "secret" not in text
    assert "These weights were not evaluated." in text


def test_the_licence_is_that_of_the_pretrained_weights_unless_one_is_asked_for(run) -> None:
    found = facts.read(run)
    with pytest.raises(ValueError, match="the license is unknown"):
        card.choose_license(found, None)
    tuned = dataclasses.replace(
        found, origin={**found.origin, "pretrained": {"licence": "gemma", "name": "x"}}
    )
    assert card.choose_license(tuned, None) == "gemma"
    assert card.choose_license(tuned, "mit") == "mit"
    assert "| licence | gemma |" in card.write(tuned, name="me/x", license_name="gemma")
