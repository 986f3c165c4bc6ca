"""The data plane: what runs inside the pods (and, on a laptop, as processes).

It never imports the operator. Each subpackage that needs JAX or PyTorch is imported by the
workload that runs it and by nothing else; `contract` is light and is what both planes share.
"""

__version__ = "0.1.0"
