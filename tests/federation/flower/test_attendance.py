"""Which clients a round asks, by what they did in earlier rounds."""

from __future__ import annotations

from fedsparsify.federation.flower import attendance as module
from fedsparsify.federation.flower.attendance import Attendance


def asked_in(attendance: Attendance, rounds: range, least: int = 1) -> list[int]:
    """The rounds that ask client 1, beside client 0 who is always there."""
    return [t for t in rounds if 1 in attendance.asked([0, 1], t, least)[0]]


def test_one_missed_deadline_costs_no_round():
    attendance = Attendance()
    attendance.missed(1, 4)
    assert asked_in(attendance, range(5, 9)) == [5, 6, 7, 8]


def test_silence_is_answered_by_longer_and_longer_pauses():
    attendance, asked = Attendance(), []
    for t in range(1, 40):
        if 1 in attendance.asked([0, 1], t, 1)[0]:
            asked.append(t)
            attendance.missed(1, t)
    assert asked == [1, 2, 4, 8, 16, 24, 32]


def test_a_client_that_was_away_is_asked_at_once_when_it_gives_a_sign_of_life():
    attendance = Attendance()
    for t in (1, 2, 4):
        attendance.missed(1, t)
    assert asked_in(attendance, range(5, 8)) == []
    for t in (1, 2, 4):  # it answers what it finds
        attendance.came_late(1, t)
    assert asked_in(attendance, range(5, 8)) == [5, 6, 7]


def test_a_client_that_is_always_late_is_asked_less_often():
    attendance, asked = Attendance(), []
    for t in range(1, 20):
        if 1 in attendance.asked([0, 1], t, 1)[0]:
            asked.append(t)
            attendance.missed(1, t)
            attendance.came_late(1, t)
    assert asked == [1, 2, 4, 8, 16]
    attendance.answered(1)
    assert asked_in(attendance, range(17, 20)) == [17, 18, 19]


def test_those_that_a_round_needs_are_asked():
    attendance = Attendance()
    for t in (1, 2):
        attendance.missed(1, t)
    assert attendance.asked([0, 1], 3, 1) == ([0], {1: "it missed its last deadlines, and is asked again in round 4"})
    assert attendance.asked([0, 1], 3, 2) == ([0, 1], {})
    attendance.returned(1)
    assert attendance.asked([0, 1], 3, 1) == ([0, 1], {})


def test_a_failed_client_counts_again_after_a_pause_that_grows(monkeypatch):
    now, attendance = [100.0], Attendance()
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    pauses = []
    for _ in range(8):
        attendance.failed(1)
        before = now[0]
        while not attendance.usable(1):
            now[0] += 1
        pauses.append(now[0] - before)
    assert pauses == [10, 20, 40, 80, 160, 320, 600, 600] and attendance.usable(0)
    attendance.failed(1)
    attendance.answered(1)
    assert attendance.usable(1)
