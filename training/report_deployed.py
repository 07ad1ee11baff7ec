"""The report's part about what was exported: is it the checkpoint, how long does it take, how does
it drive an arm?

It reads what `vla parity` left in the manifest and what `vla bench policy` and `bridge` wrote.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from vla import pages, svg
from vla.pages import escape, table

SHARES = ("p50", "p95", "p99")
"""Percentiles."""
LIMITS = ("velocity", "acceleration", "jerk")
"""Limits that commands are held against."""


def parity(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yield what was found of an exported policy beside its checkpoint."""
    yield f"<h2>Exported, {escape(str(manifest['precision']))}</h2>"
    told = manifest["parity"]
    if not told:
        yield "<p>It has not been held against its checkpoint yet: `vla parity` does it.</p>"
        return
    found, loop = told["found"], told["closed_loop"]
    rows = [
        [escape(name), f"{one['worst']:.1e}", f"{one['cosine']:.7f}"]
        for name, one in found["stages"].items()
    ]
    rows.append(
        [f"action, as a share of its range, {found['decisions']:,} decisions",
         f"{found['action']:.1e}", f"{found['cosine']:.7f}"]
    )  # fmt: skip
    sentence = (
        f"Given the same noise, actions differ from the checkpoint's by at most "
        f"{found['action']:.1e} of their range over {found['decisions']:,} decisions; memories "
        f"merged other entries in {found['parted']} of them."
    )
    if loop:
        sentence += (
            f" On the same {loop['episodes']} episodes {loop['torch']:.1%} succeed with PyTorch, "
            f"{loop['exported']:.1%} exported: at most {max(0.0, -100 * loop['low']):.1f} points "
            "are lost (95 %)."
        )
    yield f"<p>{escape(sentence)}</p>"
    yield table(["stage", "largest difference", "least cosine"], rows, numbers=range(1, 3))
    for line in told["faults"]:
        yield f"<p>Beyond the budget: {escape(str(line))}.</p>"


def latency(told: Mapping[str, Any]) -> Iterator[str]:
    """Yield how long a decision takes, by target."""
    yield "<h2>Time of a decision</h2>"
    seconds, peaks = told["seconds"], told["peak_mb"]
    rows = [
        [escape(name), *(f"{1e3 * one[share]:.2f}" for share in SHARES),
         f"{peaks[name]:.0f}" if name in peaks else ""]
        for name, one in seconds.items()
    ]  # fmt: skip
    head = ["target, one core, batch 1", *(f"{share}, ms" for share in SHARES), "peak, MB"]
    yield table(head, rows, numbers=range(1, 5))
    series = [
        [(1e3 * time, i / (len(times) - 1)) for i, time in enumerate(times)]
        for times in told["quantiles"].values()
    ]
    drawing = svg.curves(series, x_label="ms", y_label="share decided within", y_range=(0.0, 1.0))
    yield svg.legend(list(told["quantiles"]))
    yield pages.figure(drawing, "Targets took turns call by call; a call ends as it returns.")


def bridge(told: Mapping[str, Any]) -> Iterator[str]:
    """Yield how the policy drove a simulated arm through ROS 2."""
    yield "<h2>Through ROS 2</h2>"
    episodes, kept = told["episodes"], told["audit"]
    won = sum(bool(one["success"]) for one in episodes)
    violations = sum(kept["violations"].values())
    yield f"<p>{escape(_drove(told, won))}</p>"
    rows = [
        [str(i), escape(str(one["instruction"])), "yes" if one["success"] else "no",
         f"{one['steps']}", escape(str(one["safety"]["stage"]) or "none")]
        for i, one in enumerate(episodes)
    ]  # fmt: skip
    head = ["episode", "instruction", "success", "control steps", "last intervention"]
    yield table(head, rows, numbers=range(3, 4))
    shares = ", ".join(f"{name} {kept['worst'][name]:.0%}" for name in LIMITS)
    yield (
        f"<p>Of {kept['commands']:,} commands {violations} violate a limit; the largest share of "
        f"each: {shares}.</p>"
    )


def _drove(told: Mapping[str, Any], won: int) -> str:
    return (
        f"{won} of {len(told['episodes'])} episodes succeeded in real time, with a policy node and "
        f"a safety node over DDS; {told['in_process']:.0%} of the same episodes in one process. "
        f"{told['merges_alike']} of {told['decisions']} decisions merged the same entries of the "
        f"memory as in one process, {told['on_the_grid']} came at the control step of training."
    )
