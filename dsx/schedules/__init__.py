"""Pipeline schedules: one file a schedule, the order of its passes, and closed forms of its step time."""
