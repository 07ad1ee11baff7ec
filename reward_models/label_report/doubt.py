"""Which labelled episodes a person should see first, and why; it asks no simulator."""

from collections.abc import Sequence

import numpy as np

from reward_models.label_report.read import Episode, mean

UNSURE = 0.5
"""Mean confidence below which an episode is flagged."""
UNDECIDED = (0.25, 0.75)
"""Success between these flags an episode."""
SILENT = 0.2
"""Share of abstained frames above which an episode is flagged."""
CONFLICT = 0.5
"""Distance of success and final progress above which an episode is flagged."""
STRANGE = 0.5
"""Mean match of scene and instruction below which an episode is flagged."""
NO_REASON = "the labeller asks for a look"


def reasons(episode: Episode) -> list[str]:
    """Return why a person should see an episode, one clause each; empty if there is no reason."""
    found = []
    if UNDECIDED[0] < episode.success_prob < UNDECIDED[1]:
        found.append(f"success {episode.success_prob:.2f} is undecided")
    if conflict(episode) > CONFLICT:
        found.append(
            f"success {episode.success_prob:.2f}, but progress ends at {episode.final_progress:.2f}"
        )
    if episode.mean_confidence < UNSURE:
        found.append(f"confidence {episode.mean_confidence:.2f} on average")
    silent = float(episode.abstained.mean())
    if silent > SILENT:
        found.append(f"abstained on {silent:.0%} of the frames")
    match = mean(episode.match[episode.scored])
    if match < STRANGE:
        found.append(f"the scene may not fit the instruction, match {match:.2f}")
    first = episode.first_done_frame
    if first is not None and episode.done_prob[-1] < 0.5:
        found.append(f"done at {first / episode.fps:.1f} s, but not at the end")
    return found or ([NO_REASON] if episode.review else [])


def conflict(episode: Episode) -> float:
    """Return how far success and final progress are apart, in [0, 1]; 0 if one is not known."""
    return float(np.nan_to_num(abs(episode.success_prob - episode.final_progress)))


def doubt(episode: Episode) -> float:
    """Return how much an episode's labels are in doubt: unsure, in conflict, or flagged."""
    unsure = 1.0 - float(np.nan_to_num(episode.mean_confidence))
    return unsure + conflict(episode) + 0.5 * bool(reasons(episode))


def error(episode: Episode) -> float:
    """Return the mean absolute error of progress; NaN if the truth is not known."""
    if episode.truth is None or episode.abstained.all():
        return float("nan")
    return float(np.nanmean(np.abs(episode.progress - episode.truth)))


def most_doubtful(episodes: Sequence[Episode]) -> list[Episode]:
    """Return episodes in the order in which a person should see them."""
    return sorted(episodes, key=lambda e: (-doubt(e), e.index))


def worst(episodes: Sequence[Episode]) -> list[Episode]:
    """Return episodes by error, largest first; where that is not known, by doubt, and after."""
    by_error = sorted(
        (e for e in episodes if not np.isnan(error(e))), key=lambda e: (-error(e), e.index)
    )
    return [*by_error, *most_doubtful([e for e in episodes if np.isnan(error(e))])]
