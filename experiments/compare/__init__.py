"""The arena: every system of the comparison on the same records, streams and adversaries.

`scene` makes the scene, `contestants` names the systems, `games` plays the adversaries, `costs`
counts, `judges` judges models, `measure` fills each `row`, `table` words rows, `values` makes CSV
and JSON of them, `plot` draws them, `save` writes all of it.
"""
