"""Every system on the same records, streams and adversaries.

`scene` makes the records with a target, `systems` sets every system up, `games` plays the three
adversaries, `measure` fills the rows and `table` shows them. `sequential` is the other comparison:
a hundred deletions in a row.
"""
