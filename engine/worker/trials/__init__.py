"""What ranks do without a model, to see whether they could with one."""
