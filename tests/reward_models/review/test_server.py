"""The review server: for this machine and its own page alone; corrections stay, videos seek."""

import io
import json
import socket
from pathlib import Path

import av
import pytest

from reward_models.core import overrides
from reward_models.review import clips, server
from reward_models.review.server import byte_range
from tests.reward_models.label_report.made_up import write_labelled
from tests.reward_models.review.served import ask, serving


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_labelled(tmp_path / "data", frames=20)


@pytest.fixture
def served(folder: Path):
    with serving(folder) as found:
        yield found


TREND = {"episode": 1, "frame": 3, "kind": "trend", "value": -1}
SUCCESS = {"episode": 1, "frame": None, "kind": "success", "value": False}


def test_it_listens_on_this_machine_alone_at_a_free_port(served):
    assert served.server_address[0] == "127.0.0.1"
    assert served.url == f"http://127.0.0.1:{served.server_port}/{served.token}/"
    assert len(served.token) >= 20
    with serving(served.folder) as other:
        assert other.token != served.token


def test_the_page_names_the_data_set_and_runs_its_own_script_alone(served):
    page = ask(served, "")
    assert page.status == 200
    assert b"Review of data" in page.body
    assert b"as ann" in page.body
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'; script-src 'self'" in policy
    assert b"dispatch" not in ask(served, "page.js").body
    assert b"http" not in ask(served, "page.js").body.replace(b"http://www.w3.org/2000/svg", b"")


def test_the_queue_begins_with_the_most_doubtful(served):
    told = ask(served, "queue.json").json
    # Unsure and flagged, then in conflict (1 and 3), then right.
    assert [e["index"] for e in told["episodes"]] == [2, 1, 3, 0]
    assert told["overrides"] == []


def test_labels_of_an_episode_are_json_without_nan(served):
    told = ask(served, "episode/2.json").json
    assert told["frames"] == len(told["progress"]) == 20
    assert told["progress"][10:] == [None] * 10
    assert told["reasons"][0].startswith("confidence 0.30")


def test_a_clip_plays_in_browsers_with_a_frame_for_a_frame(served):
    reply = ask(served, "clip/0.mp4")
    assert reply.headers["Content-Type"] == "video/mp4"
    with av.open(io.BytesIO(reply.body)) as file:
        stream = file.streams.video[0]
        assert (stream.codec_context.name, stream.pix_fmt) == ("h264", "yuv420p")
        assert sum(1 for _ in file.decode(video=0)) == 20
    head = ask(served, "clip/0.mp4", method="HEAD")
    assert (head.body, head.headers["Content-Length"]) == (b"", str(len(reply.body)))


def test_parts_of_a_clip_can_be_asked_for(served):
    whole = ask(served, "clip/0.mp4").body
    part = ask(served, "clip/0.mp4", Range="bytes=10-19")
    assert (part.status, part.body) == (206, whole[10:20])
    assert part.headers["Content-Range"] == f"bytes 10-19/{len(whole)}"
    assert ask(served, "clip/0.mp4", Range="bytes=-5").body == whole[-5:]
    beyond = ask(served, "clip/0.mp4", Range=f"bytes={len(whole)}-")
    assert (beyond.status, beyond.headers["Content-Range"]) == (416, f"bytes */{len(whole)}")


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (None, None), ("bytes=0-", range(100)), ("bytes=90-200", range(90, 100)),
        ("bytes=-10", range(90, 100)), ("bytes=-500", range(100)), ("bytes=100-", range(0)),
        ("bytes=5-2", range(0)), ("bytes=-", None), ("lines=1-2", None), ("bytes=0-1,4-5", None),
    ],
)  # fmt: skip
def test_ranges_mean_what_the_standard_says(header, found):
    got = byte_range(header, 100)
    assert (got if got is None else list(got)) == (found if found is None else list(found))


def test_corrections_are_stored_with_author_and_time_and_undone(served):
    assert len(ask(served, "override", TREND).json["overrides"]) == 1
    assert len(ask(served, "override", SUCCESS).json["overrides"]) == 2
    stored = overrides.read(served.folder)
    assert [(o.kind, o.frame, o.value, o.author) for o in stored] == [
        ("trend", 3, -1, "ann"), ("success", None, False, "ann")
    ]  # fmt: skip
    told = ask(served, "undo", {}).json
    assert (told["undone"]["kind"], len(told["overrides"])) == ("success", 1)
    assert ask(served, "undo", {}).json["overrides"] == []
    assert ask(served, "undo", {}).json["undone"] is None


def test_corrections_are_there_after_a_restart(folder: Path):
    with serving(folder) as first:
        ask(first, "override", TREND)
    with serving(folder, author="bob") as second:
        (found,) = ask(second, "queue.json").json["overrides"]
        assert (found["author"], found["frame"]) == ("ann", 3)
        # It is not bob's to undo.
        assert ask(second, "undo", {}).json["undone"] is None


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({**TREND, "frame": 20}, "got frame 20, expected less than 20"),
        ({**TREND, "episode": 9}, "got episode 9, expected one of the 4 labelled ones"),
        ({**TREND, "value": 5}, "'value' 5, expected -1, 0 or 1"),
        ({**TREND, "author": "eve"}, "expected episode, frame, kind, value"),
        ([1], "expected a JSON object"),
        (b"{", "got no JSON"),
    ],
)
def test_what_is_no_correction_is_refused_with_a_sentence(served, body, sentence):
    reply = ask(served, "override", body)
    assert reply.status == 400
    assert sentence in reply.json["error"]
    assert overrides.read(served.folder) == []


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/", {}, 404),
        ("/wrong-token/override", {}, 404),
        ("override", {"Host": "evil.example"}, 403),
        ("override", {"Host": "127.0.0.1"}, 403),
        ("override", {"Origin": "http://evil.example"}, 403),
        ("override", {"Content_Type": "text/plain"}, 415),
        ("elsewhere", {}, 404),
    ],
)
def test_strangers_can_neither_write_nor_find_out(served, path, headers, status):
    reply = ask(served, path, TREND, **headers)
    assert reply.status == status
    assert served.token not in reply.body.decode()
    assert overrides.read(served.folder) == []


def test_reading_needs_token_and_host_as_well(served):
    for path in ("", "queue.json", "episode/0.json", "clip/0.mp4"):
        assert ask(served, f"/{path}").status == 404
        assert ask(served, path, Host="evil.example").status == 403
    assert ask(served, "../meta/info.json").status == 404
    assert ask(served, "clip/99.mp4").status == 400


def test_a_long_body_is_not_read(served):
    assert ask(served, "override", b" " * 5000).status == 413
    # And the next request on a fresh connection is answered.
    assert ask(served, "queue.json").status == 200


def test_a_full_disk_is_told_and_the_corrections_stay(served, monkeypatch):
    ask(served, "override", TREND)

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(overrides.os, "fsync", full)
    reply = ask(served, "override", SUCCESS)
    assert reply.status == 500
    assert "No space left" in reply.json["error"]
    assert len(overrides.read(served.folder)) == 1


def test_old_clips_make_room_for_new_ones(served, monkeypatch):
    monkeypatch.setattr(clips, "MAX_CLIPS", 2)
    paths = [served.clips.clip(k) for k in (0, 1, 2)]
    assert [path.exists() for path in paths] == [False, True, True]
    assert ask(served, "clip/0.mp4").status == 200


def test_instructions_and_names_cannot_break_the_page(folder: Path):
    with serving(folder, author="<script>") as found:
        assert b"as &lt;script&gt;" in ask(found, "").body


def test_a_taken_port_an_empty_author_and_damage_are_told_before_the_work(folder: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"port {port}: .*; give another --port"):
            server.open_server(folder, port, "ann")
    with pytest.raises(ValueError, match="author: got an empty name"):
        server.open_server(folder, 0, "")
    (folder / "meta/overrides.json").write_text(json.dumps({}))
    with pytest.raises(ValueError, match="expected a JSON list"):
        server.main([str(folder)])
