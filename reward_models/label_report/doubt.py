"""Order in which a person should review labelled episodes, and the reasons."""

from collections.abc import Sequence

import numpy as np

from reward_models.label_report.read import Episode, mean

MIN_CONFIDENCE = 0.5
"""Mean confidence below which an episode is flagged."""
UNDECIDED = (0.25, 0.75)
"""Success probabilities between these flag an episode."""
MAX_ABSTAINED = 0.2
"""Share of abstained frames above which an episode is flagged."""
MAX_CONFLICT = 0.5
"""Distance of success and final progress above which an episode is flagged."""
MIN_MATCH = 0.5
"""Mean match of scene and instruction below which an episode is flagged."""
NO_REASON = "marked for review by the labeller"


def reasons(episode: Episode) -> list[str]:
    """Return the reasons to review an episode, one clause each."""
    clauses = []
    if UNDECIDED[0] < episode.success_prob < UNDECIDED[1]:
        clauses.append(f"success {episode.success_prob:.2f} is undecided")
    if conflict(episode) > MAX_CONFLICT:
        clauses.append(
            f"success {episode.success_prob:.2f}, but progress ends at {episode.final_progress:.2f}"
        )
    if episode.mean_confidence < MIN_CONFIDENCE:
        clauses.append(f"confidence {episode.mean_confidence:.2f} on average")
    abstained = float(episode.abstained.mean())
    if abstained > MAX_ABSTAINED:
        clauses.append(f"abstained on {abstained:.0%} of the frames")
    match = mean(episode.match[episode.scored])
    if match < MIN_MATCH:
        clauses.append(f"the scene may not fit the instruction, match {match:.2f}")
    first = episode.first_done_frame
    if first is not None and episode.done_prob[-1] < 0.5:
        clauses.append(f"done at {first / episode.fps:.1f} s, but not at the end")
    return clauses or ([NO_REASON] if episode.review else [])


def conflict(episode: Episode) -> float:
    """Return the distance of success and final progress, in [0, 1]; 0 if one is unknown."""
    return float(np.nan_to_num(abs(episode.success_prob - episode.final_progress)))


def doubt(episode: Episode) -> float:
    """Return a score of doubt: low confidence, conflict, and flags."""
    unsure = 1.0 - float(np.nan_to_num(episode.mean_confidence))
    return unsure + conflict(episode) + 0.5 * bool(reasons(episode))


def error(episode: Episode) -> float:
    """Return the mean absolute error of progress; NaN if the truth is unknown."""
    if episode.truth is None or episode.abstained.all():
        return float("nan")
    return float(np.nanmean(np.abs(episode.progress - episode.truth)))


def most_doubtful(episodes: Sequence[Episode]) -> list[Episode]:
    """Return episodes by doubt, largest first."""
    return sorted(episodes, key=lambda e: (-doubt(e), e.index))


def worst(episodes: Sequence[Episode]) -> list[Episode]:
    """Return episodes by error, largest first, then those without truth by doubt."""
    by_error = sorted(
        (e for e in episodes if not np.isnan(error(e))), key=lambda e: (-error(e), e.index)
    )
    return [*by_error, *most_doubtful([e for e in episodes if np.isnan(error(e))])]
