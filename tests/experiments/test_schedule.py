from experiments.report import Schedule, clock


class Clock:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self):
        return self.now


def test_time_left_is_what_an_earlier_run_took_at_the_pace_of_this_one():
    time = Clock()
    schedule = Schedule({"a": 10.0, "b": 20.0, "c": 30.0}, time)
    assert schedule.left() == 60
    time.now += 4
    assert schedule.left() == 56
    assert schedule.words() == "1/3, 0:04, about 0:56 left"
    time.now += 16  # a took twice as long as expected
    schedule.finish("a")
    assert schedule.left() == 2 * (20 + 30)
    time.now += 100  # b takes longer than that: at least c is left
    assert schedule.left() == 2 * 30
    assert schedule.words() == "2/3, 2:00, about 1:00 left"


def test_figures_that_never_ran_count_as_the_mean_of_the_others():
    time = Clock()
    schedule = Schedule({"a": None, "b": None, "c": None}, time)
    assert schedule.left() is None
    assert schedule.words() == "1/3, 0:00"
    time.now += 10
    schedule.finish("a")
    assert schedule.left() == 20
    assert Schedule({"a": None, "b": 6.0}, time).left() == 12


def test_the_pace_is_that_of_figures_whose_time_was_known():
    time = Clock()
    schedule = Schedule({"a": None, "b": 20.0, "c": 30.0}, time)
    for name, seconds in (("a", 10), ("b", 40)):
        time.now += seconds
        schedule.finish(name)
    assert schedule.left() == 2 * 30


def test_saved_figures_take_no_time_and_teach_nothing():
    time = Clock()
    schedule = Schedule({"a": 0.0, "b": None}, time)
    time.now += 1
    schedule.finish("a")
    assert schedule.left() is None
    time.now += 5
    schedule.finish("b")
    assert schedule.left() == 0
    assert schedule.words() == "2/2, 0:06"


def test_clock_reads_in_hours_minutes_and_seconds():
    assert [clock(s) for s in (0.4, 59.6, 3599, 3661)] == ["0:00", "1:00", "59:59", "1:01:01"]
