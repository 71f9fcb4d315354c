"""The systems that the paper is compared with (`tab:comparision`), each behind one interface.

One file per system: `system(...)` builds it, `calibrate(...)` chooses its numbers from a target
(ε, δ). `base` holds what they share.
"""
