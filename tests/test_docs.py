"""The documentation stays true: its size, links, paths, verbs, commands and generated pages."""

import argparse
import importlib
import inspect
import re
import shlex
import sys
import urllib.parse
from pathlib import Path

import pytest
import tyro

from tests.training.tiny_run import run, tiny_config
from tools import cli_docs
from vla import cli

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").glob("*.md"))
WRITTEN = [page for page in DOCS if page.name != "cli.md"]
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *DOCS]
FOLDERS = (
    "vla", "sim", "training", "reward_models", "deploy", "robot_bridge", "benchmarks", "launch",
    "tests", "tools", "docs", "lerobot_policy_mneme", "lerobot_robot_mneme_ros2",
)  # fmt: skip
MISSING_LICENCE = "Proprietary"
GROUPS = [[verb.split()[0]] for verb in cli.VERBS if " " in verb]
"""Words with which verbs of a group begin."""
UNKNOWN = re.compile("unrecognized|unknown|invalid choice|no such verb")
"""What is wrong with a flag or a verb, not with what a sentence leaves out."""


def names(pages):
    return [page.relative_to(ROOT).as_posix() for page in pages]


def blocks(text, language=""):
    """Return what stands between fences of a language."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for name, block in fenced if name == language]


def prose(text):
    """Return a page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def slug(heading):
    """Return the anchor that GitHub gives a heading."""
    kept = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower())
    return kept.strip().replace(" ", "-")


def anchors(page):
    return {slug(line) for line in re.findall(r"^#+ (.*)$", prose(page.read_text()), re.MULTILINE)}


def in_blocks(page):
    """Return the whole commands of a page, as a shell would run them."""
    text = page.read_text()
    lines = []
    for block in blocks(text):
        joined = re.sub(r"\\\n\s*", " ", block)
        lines += [line.strip().removesuffix("&").strip() for line in joined.splitlines()]
    return [
        shlex.split(line, comments=True)
        for line in lines
        if line.startswith(("vla ", "python -m "))
    ]


def quoted(page):
    """Return what a page quotes of commands in its sentences; "..." stands for the rest."""
    found = re.findall(r"`((?:vla|python -m) [^`]+)`", prose(page.read_text()))
    return [[w for w in shlex.split(line) if w != "..."] for line in found if "VERB" not in line]


def verb_of(words):
    """Return the longest verb that a command begins with; "" if there is none."""
    two, one = " ".join(words[1:3]), " ".join(words[1:2])
    return next((verb for verb in (two, one) if verb in cli.VERBS), "")


def test_readme_is_short():
    text = README.read_text()
    assert len(text.splitlines()) <= 250
    results = text.split("## Results")[1].split("##")[0]
    assert len(re.findall(r"^\|", results, re.MULTILINE)) - 2 <= 15
    tree = blocks(text.split("## Where things are")[1])[0]
    assert len(tree.splitlines()) <= 40


def test_readme_says_what_the_licence_is_and_is_not():
    assert MISSING_LICENCE in (ROOT / "package.xml").read_text()
    assert MISSING_LICENCE in README.read_text()


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_links_lead_somewhere(page):
    links = re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", prose(page.read_text()))
    for link in links:
        if urllib.parse.urlparse(link).scheme:
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {link}"


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_named_files_exist(page):
    found = re.findall(rf"(?<![\w./-])((?:{'|'.join(FOLDERS)})/[\w/.*-]*\.\w+)", page.read_text())
    for path in found:
        if "NAME" in path or "ROBOT" in path:
            continue
        assert list(ROOT.glob(path)), f"{page.name} names {path}"


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_named_verbs_exist(page):
    for words in re.findall(r"`vla ([a-z][a-z -]*[a-z])", page.read_text()):
        verb = words.split(" -")[0].split()
        known = {" ".join(verb[:2]), verb[0]} & {*cli.VERBS, *(v.split()[0] for v in cli.VERBS)}
        assert known, f"{page.name} names `vla {words}`"


class Read(BaseException):
    """A command's words were understood."""


def then_stop(function):
    def call(*args, **options):
        function(*args, **options)
        raise Read

    return call


@pytest.fixture
def stops(monkeypatch, capsys):
    """Return what calls a function up to where its arguments are read: "" or what was wrong."""
    monkeypatch.setattr(tyro, "cli", then_stop(tyro.cli))
    parse_args = argparse.ArgumentParser.parse_args
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", then_stop(parse_args))

    def call(function, words):
        monkeypatch.setattr(sys, "argv", ["prog", *words])
        try:
            function(words) if inspect.signature(function).parameters else function()
        except Read:
            return ""
        except (SystemExit, ValueError) as error:
            return f"{error} {capsys.readouterr().err}"
        return f"stopped before its arguments: {capsys.readouterr().err}"

    return call


def problem_of(words, stops, data):
    """Return what is wrong with a command; "" where it is understood."""
    if words[0] == "python":
        if not words[2].startswith("benchmarks."):
            return ""
        return stops(importlib.import_module(words[2]).main, words[3:])
    verb = verb_of(words)
    if not verb:
        return "" if words[1:] in GROUPS else "no such verb"
    rest = words[1 + len(verb.split()) :]
    problems = []
    for form in cli_docs.forms(verb, data):
        problems.append(stops(form.start, rest))
        if not problems[-1]:
            return ""
    return problems[0]


@pytest.mark.parametrize("page", [README, *WRITTEN], ids=names([README, *WRITTEN]))
def test_commands_are_understood(page, stops, tmp_path):
    (tmp_path / "meta").mkdir()
    whole = {
        shlex.join(words): problem_of(words, stops, str(tmp_path)) for words in in_blocks(page)
    }
    parts = {shlex.join(words): problem_of(words, stops, str(tmp_path)) for words in quoted(page)}
    wrong = [f"{line}: {problem}" for line, problem in whole.items() if problem]
    wrong += [f"{line}: {problem}" for line, problem in parts.items() if UNKNOWN.search(problem)]
    assert not wrong, "\n".join(wrong)


def test_the_example_of_the_readme_runs(arm_dataset, tmp_path, monkeypatch, capsys):
    run(tiny_config(steps=1), arm_dataset, tmp_path / "runs" / "reach")
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks(README.read_text(), "python")[0], "README.md", "exec"), {})
    assert re.search(r"\d+ of \d+ episodes succeeded", capsys.readouterr().out)


def test_the_reference_of_commands_is_up_to_date():
    assert cli_docs.PAGE.read_text() == cli_docs.render()
