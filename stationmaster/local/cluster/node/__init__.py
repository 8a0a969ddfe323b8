"""The nodes: a kubelet that runs the pods bound to them as local process groups."""
