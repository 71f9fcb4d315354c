"""The arena: every system of the comparison on the same records, streams and adversaries.

`settings` makes the scene, `contestants` the systems in it, `games` plays the adversaries,
`measure` fills a row, `table` prints and saves, `plot` draws.
"""
