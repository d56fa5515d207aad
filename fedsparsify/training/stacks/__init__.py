"""Many models of one network in shared buffers, trained as one."""
