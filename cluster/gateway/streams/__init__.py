"""Streams that clients may resume, stored outside the gateways."""
