"""Local training: one client by autograd (`worker`), many clients at once (`cohort`, by one of the `backends`)."""
