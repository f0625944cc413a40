"""From the bytes of a body to a `Call`, or to an error that says what is wrong."""
