"""Tests on a real node: the operator as its own pod, the quickstart as pods that train and serve."""
