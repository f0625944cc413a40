"""From the bytes of a body to a `Call`, or to the one error that says what is wrong with them."""
