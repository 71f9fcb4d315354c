"""The arena: every system of the comparison on the same records, streams and adversaries.

`settings` makes the scene, `contestants` names the systems, `games` plays the adversaries, `costs`
counts, `measure` fills rows, `table` words them, `plot` draws them, `save` writes all of it.
"""
