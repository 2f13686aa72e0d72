"""What a leader knows of one member: its window, and where it goes back to."""

from __future__ import annotations

from brokerd.raft.messages import NodeId
from brokerd.raft.progress import Progress, ProgressState

A, B, C, D = (NodeId(n) for n in "abcd")


def test_progress_pipelines_up_to_its_window_and_frees_it_by_acknowledgements() -> None:
    progress = Progress(B, 1, inflight_max=2)
    progress.acknowledge(3)
    progress.become_replicate()
    progress.inflights.extend([4, 5])
    assert progress.is_paused
    assert progress.acknowledge(4)
    assert not progress.is_paused
    assert not progress.acknowledge(4)


def test_progress_steps_back_to_the_hint_and_never_behind_the_match() -> None:
    progress = Progress(B, 10, inflight_max=2)
    progress.probe_sent = True
    assert not progress.reject(4, 2)
    assert progress.reject(9, 5)
    assert (progress.next, progress.probe_sent) == (6, False)
    progress.acknowledge(5)
    progress.become_replicate()
    assert not progress.reject(5, 1)
    assert progress.reject(8, 1)
    assert (progress.state, progress.next) == (ProgressState.PROBE, 6)
