"""This node's disks: what is there of models, and room for what is to come."""
