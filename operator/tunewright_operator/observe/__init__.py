"""Pure: what the cluster shows of a resource -> its phase, conditions, progress and cost.

Nothing here knows a client or a clock; `now` is an argument. The input are the slim objects of
`reconcile.cache`, as plain dictionaries.
"""
